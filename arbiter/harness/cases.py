"""Cases: an input each, what is expected of it, and an id by which a baseline finds it again."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf
from typing import Any, Literal, TypeAlias, cast

from pydantic import Field, ValidationError

from arbiter._constitution.documents import PackModel, explain, path_of
from arbiter._values.copies import jsonable
from arbiter._values.kinds import is_mapping
from arbiter._values.states import FrozenDict, is_whole
from arbiter.errors import ConfigurationError, nearest
from arbiter.harness.canonical import canonical, digest, plain_copy

_ID = re.compile(r"[\w.:-]{1,200}")
MAX_INPUT = 1_000_000
MAX_DEPTH = 40
MAX_CASES = 1_000_000
_NOTHING: Mapping[str, Any] = FrozenDict()

Element: TypeAlias = str | dict[str, Any]
"""A name, `{instruction: VERIFY}`, or `{all: [...]}` for several that ran in one superstep."""


class Order(PackModel):
    """How a run must compare with a list of names: exactly one of the four is given."""

    strict: list[Element] | None = Field(
        None, description="These ran, superstep by superstep, in this order."
    )
    unordered: list[Element] | None = Field(None, description="These ran, in any order.")
    subset: list[Element] | None = Field(None, description="Nothing else ran.")
    superset: list[Element] | None = Field(
        None, description="These ran in this order; others may lie between."
    )

    @property
    def chosen(self) -> tuple[Literal["strict", "unordered", "subset", "superset"], list[Element]] | None:
        """The name of the comparison and its list; None unless exactly one is given."""
        given: list[Any] = [(name, getattr(self, name)) for name in Order.model_fields]
        found = [(name, value) for name, value in given if value is not None]
        return found[0] if len(found) == 1 else None


class Expect(PackModel):
    """The assertions about a run of a case. Each key is an assertion, the score `expect.<key>`.

    `equals`, `contains`, `matches`, `json_schema` and `condition` are about the output; `contains` takes a text
    or a list of texts. `completes`, `raises`, `denied_by`, `waits_for` and `redirected_to` are about how the run
    ended. `nodes` and `tools` are about what ran; see docs/evaluation.md.
    """

    equals: Any = None
    contains: str | list[str] | None = None
    matches: str | None = Field(None, description="A regular expression (RE2) that is found in the output.")
    json_schema: dict[str, Any] | None = None
    condition: str | None = Field(None, description="CEL over input, output, expected, duration and tokens.")
    completes: bool | None = None
    raises: str | None = Field(None, description="The class of the exception that ends the run.")
    denied_by: str | None = Field(None, description="The checker that denies a node run.")
    waits_for: str | None = Field(None, description="The checker that asks a human.")
    redirected_to: str | None = Field(None, description="The node to which a router redirects.")
    nodes: list[Element] | Order | None = None
    tools: list[Element] | Order | None = None
    max_tokens: int | None = Field(None, ge=0)
    max_usd: float | None = Field(None, ge=0)
    max_seconds: float | None = Field(None, ge=0)

    @property
    def given(self) -> Mapping[str, Any]:
        """The assertions, in the order of the fields. `equals: null` is one if it is written."""
        return {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name in self.model_fields_set and (name == "equals" or getattr(self, name) is not None)
        }


def _plain(expect: Expect) -> dict[str, Any]:
    """The fields that are given, as JSON-able data. `equals` may be of any type, as the output is."""
    found = {name: value for name, value in expect if name in expect.model_fields_set}
    try:
        found = expect.model_dump(mode="json", exclude_unset=True)
        canonical(found)
    except ValueError:  # of bytes, an object or a number of very many digits
        found = jsonable(found, most=inf)
    return found


def _equal(one: Any, other: Any) -> bool:
    """False also for an array and for pandas.NA, which have no answer."""
    try:
        return bool(one == other)
    except (TypeError, ValueError):
        return False


def _is_missing(value: Any) -> bool:
    return value is None or _equal(value, "")


@dataclass(frozen=True, slots=True)
class Case:
    """One input, and what is expected of it.

    `input` is JSON-able. Without an `id` ("" or None), it is the first 12 hex digits of the SHA-256 of the input's
    canonical JSON. `expected` is for scorers; `expect` are the built-in assertions, an `Expect` or its fields.
    `cluster` names cases of one conversation or user, which the gate counts as one; "" is none. If a `must_pass` case
    fails, the run fails. `repeats` replaces that of the suite. `source` is the place of its declaration, such as
    "cases/refunds.jsonl:7".
    """

    id: str
    input: Any
    _: KW_ONLY
    expected: Any = None
    expect: Expect | Mapping[str, Any] | None = None
    tags: Sequence[str] = ()
    cluster: str | None = None
    must_pass: bool = False
    repeats: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    source: str = field(default="", compare=False)
    is_named: bool = field(default=False, init=False, compare=False)
    """True if its declaration has an id."""

    def __post_init__(self) -> None:
        given: Any = self.id
        problem = input_problem(self.input)
        if problem is not None:
            raise ConfigurationError(f"{self._place(given)}: input{problem}")
        # The caller may change its own for the next case.
        object.__setattr__(self, "input", plain_copy(self.input))
        if _is_missing(given):
            object.__setattr__(self, "id", digest(self.input)[:12])
        elif not isinstance(given, str) or not _ID.fullmatch(given):
            raise ConfigurationError(
                f"a case has the id {given!r:.80}; expected up to 200 letters, digits and _ . : -, as in 'late-parcel'."
            )
        else:
            object.__setattr__(self, "is_named", True)
        object.__setattr__(self, "expect", self._expectation())
        object.__setattr__(self, "tags", self._tags())
        object.__setattr__(self, "cluster", self._cluster())
        object.__setattr__(self, "must_pass", self._must_pass())
        object.__setattr__(self, "metadata", self._metadata())
        if self.repeats is not None and not is_whole(self.repeats, least=1):
            raise self._wrong("repeats", self.repeats, "a whole number from 1")

    def _place(self, name: object) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}a case without an id" if _is_missing(name) else f"{where}case {name!r:.80}"

    def _cluster(self) -> str | None:
        given: Any = self.cluster
        if given is None or isinstance(given, str):
            return given or None
        # Also NaN, which is not equal to itself: the missing value of a table.
        if not isinstance(given, Hashable) or not _equal(given, given):
            raise self._wrong("cluster", given, "a text, such as 'user-7'")
        return str(given)  # the number or the UUID of a user; a baseline has texts

    def _must_pass(self) -> bool:
        given: Any = self.must_pass
        if not any(_equal(given, each) for each in (True, False, None, "")):
            raise self._wrong("must_pass", given, "True or False")
        return bool(given)

    def _metadata(self) -> Mapping[str, Any]:
        given: Any = self.metadata
        if _is_missing(given):
            return _NOTHING
        if not is_mapping(given):
            raise self._wrong("metadata", given, "a mapping, such as {'topic': 'refunds'}")
        return given

    def _wrong(self, name: str, given: Any, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{self._place(self.id)}: {name} is {given!r:.80}; expected {expected}.")

    def _tags(self) -> tuple[str, ...]:
        given: Any = (self.tags,) if isinstance(self.tags, str) else self.tags
        tags: list[Any] = [*given] if hasattr(given, "__iter__") else [None]
        if not all(isinstance(tag, str) for tag in tags):
            raise self._wrong("tags", given, "texts, such as ['smoke']")
        return tuple(tags)

    def _expectation(self) -> Expect | None:
        given: Any = self.expect
        if given is None or isinstance(given, Expect):
            return given
        if not is_mapping(given):
            raise self._wrong("expect", given, "a mapping, such as {'completes': True}")
        data = dict(given)
        try:
            return Expect.model_validate(data)
        except ValidationError as error:
            told = "; ".join(
                f"{path_of(place)}: {message}" for place, message in explain(Expect, data, error)
            )
            raise ConfigurationError(f"{self._place(self.id)}: expect.{told}") from None

    @property
    def assertions(self) -> Mapping[str, Any]:
        """The assertions of `expect`, by key."""
        return self.expect.given if isinstance(self.expect, Expect) else _NOTHING

    def to_dict(self) -> dict[str, Any]:
        """The case as JSON-able data, without what is empty."""
        found: dict[str, Any] = {"id": self.id, "input": self.input}
        if (expected := jsonable(self.expected)) is not None:
            found["expected"] = expected
        if self.tags:
            found["tags"] = list(self.tags)
        for name in ("cluster", "must_pass", "repeats"):
            if value := getattr(self, name):
                found[name] = value
        if self.metadata:
            found["metadata"] = jsonable(self.metadata)
        if self.source:
            found["source"] = self.source
        if isinstance(self.expect, Expect) and self.expect.model_fields_set:
            found["expect"] = _plain(self.expect)
        return found

    @property
    def digest(self) -> str:
        """The hash of what the case asks: its input and what is expected."""
        asked = {"input": self.input, "expected": jsonable(self.expected, most=inf)}
        if isinstance(self.expect, Expect):
            asked["expect"] = _plain(self.expect)
        return digest(asked)


def input_problem(value: Any) -> str | None:
    """The mistake in the input of a case, beginning with the path in it: " is NaN; expected ..."; or None."""
    found = _not_json(value, "", 0)
    if found is not None:
        return found
    try:
        size = len(canonical(value).encode())
    except UnicodeEncodeError:
        return " has half of a surrogate pair; expected text in Unicode."
    except ValueError:  # Python writes no longer ones
        return " has a number of more than 4,300 digits; expected a shorter one, or a text."
    if size > MAX_INPUT:
        return f" has {size:,} bytes as JSON; expected at most {MAX_INPUT:,}."
    return None


def _not_json(value: Any, path: str, depth: int) -> str | None:
    kind = cast(Any, type(value))
    if kind in (str, int, bool) or value is None:
        return None
    if kind is float:
        return None if value - value == 0 else f"{path} is {value!r}; expected a finite number."
    if depth >= MAX_DEPTH:
        return f"{path[:80]} is nested deeper than {MAX_DEPTH} levels."
    if kind is dict:
        for key, part in cast("dict[Any, Any]", value).items():
            if type(key) is not str:
                return f"{path} has the key {key!r:.80}; expected a text."
            if (found := _not_json(part, f"{path}.{key}", depth + 1)) is not None:
                return found
        return None
    if kind is list or kind is tuple:
        for number, part in enumerate(cast("list[Any]", value)):
            if (found := _not_json(part, f"{path}[{number}]", depth + 1)) is not None:
                return found
        return None
    return f"{path} is of type {kind.__name__}; expected JSON: text, numbers, true, false, null, lists and mappings."


def checked_cases(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The cases of a suite. Raises `ConfigurationError` for no cases, an id twice, and equal inputs without ids."""
    found: list[Case] = []
    try:
        several = iter(cases)
    except TypeError:
        raise ConfigurationError(
            f"cases is {cases!r:.80}; expected cases, such as [Case('a', {{...}})]."
        ) from None
    for given in several:
        if not isinstance(given, Case):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"a suite has {given!r:.80} as a case; expected Case('late-parcel', {{...}})."
            )
        found.append(given)
        if len(found) > MAX_CASES:
            raise ConfigurationError(f"a suite has at most {MAX_CASES:,} cases.")
    if not found:
        raise ConfigurationError("the suite has no cases.")
    if mistakes := same_cases(found):
        raise ConfigurationError("\n".join(said for _, said in mistakes))
    return tuple(found)


def same_cases(cases: Iterable[Case]) -> list[tuple[Case, str]]:
    """The cases with the id, or the input, of an earlier case, each with a sentence that names both."""
    seen: dict[str, Case] = {}
    found: list[tuple[Case, str]] = []
    for case in cases:
        if (known := seen.get(case.id)) is None:
            seen[case.id] = case
        else:
            found.append((case, _twice(known, case)))
    return found


def _twice(first: Case, second: Case) -> str:
    where = f" ({first.source} and {second.source})" if first.source and second.source else ""
    if first.is_named or second.is_named:
        return f"two cases have the id {first.id!r}{where}. Give each an id of its own."
    return f"two cases without ids have the same input {first.input!r:.80}{where}. Give each an id."


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice of cases: those with one of the `ids`, one of the `tags`, and a text in their id.

    An empty field selects all.
    """

    ids: Sequence[str] = ()
    tags: Sequence[str] = ()
    text: str = ""

    def __post_init__(self) -> None:
        for name in ("ids", "tags"):  # a text is one of them, and not its letters
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if given and isinstance(given, str) else tuple(given))

    def of(self, cases: Sequence[Case]) -> tuple[Case, ...]:
        """The selected cases. Raises `ConfigurationError` if there are none, or if a name selects nothing."""
        known = dict.fromkeys(case.id for case in cases)
        tags = sorted({tag for case in cases for tag in case.tags})
        _refuse_unknown("is named", self.ids, known, "Cases")
        _refuse_unknown("has the tag", self.tags, tags, "Tags")
        ids, wanted_tags, text = {*self.ids}, {*self.tags}, self.text.casefold()
        chosen = tuple(
            case
            for case in cases
            if (not ids or case.id in ids)
            and (not wanted_tags or not wanted_tags.isdisjoint(case.tags))
            and text in case.id.casefold()
        )
        if not chosen:
            wanted = [
                *([f"the id {' or '.join(map(repr, self.ids))}"] if self.ids else []),
                *([f"the tag {' or '.join(map(repr, self.tags))}"] if self.tags else []),
                *([f"{self.text!r} in its id"] if self.text else []),
            ]
            raise ConfigurationError(
                f"no case is selected{' with ' if wanted else ''}{' and '.join(wanted)}. Cases: {_listed(known)}."
            )
        return chosen


def _refuse_unknown(claim: str, wanted: Iterable[str], known: Collection[str], noun: str) -> None:
    for name in wanted:
        if name not in known:
            raise ConfigurationError(
                f"no case {claim} {name!r}. {noun}: {_listed(known)}.{nearest(name, known)}"
            )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "none"
