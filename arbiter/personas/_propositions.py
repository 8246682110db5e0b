"""Propositions: claims about behaviour that a judge scores, one by one or in sets read from YAML.

    evaluators/propositions/<dimension>/_default.yaml    claims about every character
    evaluators/propositions/<dimension>/<agent>.yaml     additional claims about one character

See docs/personas.md.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, cast, overload

from pydantic import Field

from arbiter._constitution.documents import (
    Document,
    PackModel,
    Place,
    pack_files,
    pack_folder,
    read_document,
    validate,
)
from arbiter._values.states import is_number, is_whole
from arbiter.errors import ConfigurationError, PackError, PackMistake, callers, nearest
from arbiter.personas._characters import SHIPPED
from arbiter.personas._targets import Target

Precondition = Callable[[Target, str, Mapping[str, str]], bool]
"""Called with the target, the additional context and the template variables; returns True if the claim applies."""

Variables = Mapping[str, str | float]
"""Values for the variables of a claim: texts, or numbers and bools, which are inserted by `str`."""
DEFAULT = "_default"
DEFAULT_WINDOWS: Mapping[str, tuple[int, int]] = {"evaluation": (10, 100), "action": (5, 10)}
"""`first_n` and `last_n` if neither the proposition nor its file sets one: "evaluation" for finished conversations,
"action" for drafts."""


@dataclass(frozen=True, slots=True)
class Proposition:
    """A claim that is scored from 0 (certainly false) to 9 (certainly true).

    `claim` may have `{{ variables }}`. `weight` is 0.0 to 1.0. An `inverted` claim is about bad behaviour: 9
    - score counts. `recommendations_for_improvement` go to the agent if the final score is below a threshold.
    If `precondition` returns False the claim does not apply, which counts as 9. `first_n` and `last_n` events
    of the trajectory are shown; None is the default of the engine's level. With `double_check` the judge is
    asked once more whether it is sure. With `hard` the judge takes off a fifth for each flaw.
    """

    id: str
    claim: str
    weight: float = 1.0
    inverted: bool = False
    recommendations_for_improvement: str | None = None
    precondition: Precondition | None = None
    include_personas: bool = True
    target_type: Literal["agent", "environment"] = "agent"
    first_n: int | None = None
    last_n: int | None = None
    double_check: bool = False
    hard: bool = False

    def __post_init__(self) -> None:
        for name in ("id", "claim"):
            text: Any = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                self._refuse(name, "a text")
        if not (is_number(self.weight) and 0 <= self.weight <= 1):
            self._refuse("weight", "a number from 0 to 1")
        if self.target_type not in ("agent", "environment"):
            self._refuse("target_type", "'agent' or 'environment'")
        for name in ("first_n", "last_n"):
            given: Any = getattr(self, name)
            if given is not None and not is_whole(given, least=0):
                self._refuse(name, "a whole number from 0, or None")
        advice: Any = self.recommendations_for_improvement
        if advice is not None and not isinstance(advice, str):
            self._refuse("recommendations_for_improvement", "a text, or None")
        if self.precondition is not None and not callable(self.precondition):
            self._refuse("precondition", "a function, such as requires_action_type(['TALK'])")

    def _refuse(self, name: str, expected: str) -> None:
        raise ConfigurationError(
            f"proposition {self.id!r}: {name}: expected {expected}, got {getattr(self, name)!r:.80}."
        )


class PropositionSet(Sequence[Proposition]):
    """The propositions of one dimension, the general ones first. `files` are the files they were read from.

    Raises `ConfigurationError` for duplicate ids, or weights that sum to 0.
    """

    def __init__(
        self, dimension: str, propositions: Iterable[Proposition], files: Iterable[str] = ()
    ) -> None:
        self.dimension = dimension
        self.propositions = many_of(propositions)
        found: Any
        for found in self.propositions:
            if not isinstance(found, Proposition):
                raise ConfigurationError(
                    f"propositions of {dimension!r}: expected a Proposition, got {found!r:.80}. "
                    "Write Proposition(id, claim)."
                )
        self.files = tuple(files)
        ids = [proposition.id for proposition in self.propositions]
        if len(set(ids)) != len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise ConfigurationError(f"propositions of {dimension!r}: the id {twice!r} is given twice.")
        if not any(proposition.weight for proposition in self.propositions):
            raise ConfigurationError(f"propositions of {dimension!r}: their weights sum to 0.")

    def __len__(self) -> int:
        return len(self.propositions)

    @overload
    def __getitem__(self, index: int) -> Proposition: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Proposition, ...]: ...
    def __getitem__(self, index: int | slice) -> Proposition | tuple[Proposition, ...]:
        return self.propositions[index]

    def by_id(self, id: str) -> Proposition:
        """The proposition with that id. Raises `KeyError`."""
        for proposition in self.propositions:
            if proposition.id == id:
                return proposition
        raise KeyError(id)

    def changed(self, **changes: Any) -> PropositionSet:
        """A copy with these fields replaced in every proposition."""
        return PropositionSet(
            self.dimension, [replace(found, **changes) for found in self.propositions], self.files
        )

    def __repr__(self) -> str:
        return f"<PropositionSet {self.dimension!r}: {', '.join(found.id for found in self.propositions)}>"


def many_of(propositions: Iterable[Proposition]) -> tuple[Proposition, ...]:
    """The propositions; a single one needs no list."""
    is_many = isinstance(cast(Any, propositions), Iterable)
    return tuple(propositions) if is_many else (cast(Any, propositions),)


# Templates ----------------------------------------------------------------------------------------

_VARIABLE = re.compile(
    r"\{\{\s*([^{}]*?)\s*\}\}"
)  # matches any text between the braces, so that a misspelt `agent-name` is found too


def fill(text: str, variables: Mapping[str, str]) -> str:
    """`text` with each known `{{ name }}` replaced by its value, verbatim, in one pass.

    Inserted values are not expanded again; unknown names stay as written.
    """
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


def variables_in(text: str) -> frozenset[str]:
    return frozenset(_VARIABLE.findall(text))


def texts_of(variables: Variables | None) -> dict[str, str]:
    """Variables with texts as values. Raises `ConfigurationError` for a value of another type."""
    given: Any = {} if variables is None else variables
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"variables: expected a mapping of names to texts, got {given!r:.80}.")
    texts: dict[str, str] = {}
    for name, value in cast(Any, given).items():
        if not isinstance(name, str):
            raise ConfigurationError(f"variables: expected a name as key, got {name!r:.80}.")
        if not isinstance(value, str | bool | int | float):
            raise ConfigurationError(
                f"variables: {name!r}: expected a text or a number, got {value!r:.80}. Write it as a text."
            )
        texts[name] = value if isinstance(value, str) else str(value)
    return texts


VARIABLES = ("agent_name", "channel_name", "action", "action_type", "recipient_name", "task_description")
"""The variables that Arbiter or its caller fills. See docs/personas.md."""


def without_value(names: Sequence[str]) -> str:
    """The error text for a claim with variables that have no value."""
    shown = ", ".join(f"{{{{{name}}}}}" for name in names)
    meant = next((nearest(name, VARIABLES) for name in names if name not in VARIABLES), "")
    return f"there is no value for {shown} here.{meant}"


# Preconditions ------------------------------------------------------------------------------------


def requires_action_type(types: Iterable[str]) -> Precondition:
    """A precondition on the type of action.

    It holds if the variable `action_type`, the draft's type, is one of `types`. Without that variable it
    holds if an action of the agent in the trajectory has one of them.
    """
    given: Any = [types] if isinstance(types, str) else types
    is_many = isinstance(types, Iterable)  # pyright: ignore[reportUnnecessaryIsInstance]
    wanted = frozenset[str](given if is_many else ())
    if not wanted or not all(isinstance(type, str) for type in cast(Any, wanted)):
        raise ConfigurationError(f"expected types of actions, such as ['TALK'], got {types!r:.80}.")

    def applies(target: Target, context: str, variables: Mapping[str, str]) -> bool:
        if "action_type" in variables:
            return variables["action_type"] in wanted
        actions = (event for event in target.trajectory if event.kind == "action")
        return any(event.type in wanted for event in actions if target.agent in (None, event.actor))

    return applies


# Files --------------------------------------------------------------------------------------------


class Applies(PackModel):
    """When a proposition applies."""

    requires_action_type: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class _Settings(PackModel):
    """Settings of a file for all of its propositions, which each proposition may override."""

    include_personas: bool | None = None
    target_type: Literal["agent", "environment"] | None = None
    first_n: Annotated[int, Field(ge=0)] | None = None
    last_n: Annotated[int, Field(ge=0)] | None = None
    double_check: bool | None = None
    hard: bool | None = None


_SETTINGS = tuple(_Settings.model_fields)


class PropositionEntry(_Settings):
    """One claim."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    claim: Annotated[str, Field(pattern=r"\S")]
    weight: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    inverted: bool = False
    recommendations_for_improvement: str | None = None
    precondition: Applies | None = None


class PropositionFile(_Settings):
    """One file of propositions."""

    version: Literal[1] = 1
    dimension: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    agent_id: Annotated[str, Field(min_length=1)] = DEFAULT
    description: str = ""
    extends: Annotated[list[Annotated[str, Field(min_length=1)]], Field(default_factory=list[str])]
    propositions: Annotated[list[PropositionEntry], Field(min_length=1)]


class PropositionWarning(UserWarning):
    """A claim that probably says the opposite of its intention, or a name that is nearly another one: that of an
    agent without a file, or of a type of action."""


def load_propositions(
    folder: str | Path | Traversable | None,
    dimension: str,
    agent: str | None = None,
    *,
    variables: Iterable[str] = (),
) -> PropositionSet:
    """The propositions of `<folder>/<dimension>/_default.yaml` and `<agent>.yaml`, as far as these files
    exist.

    `folder` None stands for the shipped propositions. The agent's propositions are appended; the agent's
    file-level settings override those of the default file for all propositions. A file may extend others of
    its folder by name, or shipped ones of the same dimension ("arbiter:_default"); those are read first.
    Claims may use Arbiter's variables (docs/personas.md) and `variables`, which you fill yourself. Raises
    `PackError` with every mistake in every file, `ConfigurationError` if there is no file at all. Warns of
    double negations, and of an agent without a file whose name is nearly that of an existing one.
    `PropositionSet.files` lists the files that were read.
    """
    own = [variables] if isinstance(variables, str) else variables
    return _Loader(_folder(folder), dimension, (*VARIABLES, *own), {}).load(agent)


def propositions_of(
    folder: str | Path | Traversable | None, dimension: str, agents: Iterable[str | None]
) -> dict[str | None, PropositionSet]:
    """`load_propositions` for each of several agents, by id. Each file is read once."""
    documents: dict[str, tuple[Document, PropositionFile]] = {}
    return {
        agent: _Loader(_folder(folder), dimension, VARIABLES, documents).load(file_of(agent))
        for agent in agents
    }


def file_of(agent: str | None) -> str | None:
    """The name of the file of that agent. None if its id, such as "user:42", cannot be one: it then has the
    propositions for all."""
    return agent if agent and _NAME.fullmatch(agent) else None


def _folder(folder: str | Path | Traversable | None) -> Traversable:
    if folder is None:
        return pack_folder("evaluators").joinpath("propositions")
    if not isinstance(folder, str | Traversable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"expected the folder of propositions, got {folder!r:.80}.")
    if not isinstance(folder, str):
        return folder
    try:
        Path(folder).is_dir()
    except OSError as error:  # a sentence as a path, or a folder that may not be read
        raise ConfigurationError(
            f"the folder of propositions {folder!r:.200} cannot be read: {error.strerror}."
        ) from None
    return Path(folder)


_NAME = re.compile(r"\w[\w.-]*")


@dataclass(slots=True)
class _Loader:
    """Reads the files of one dimension in order, each once."""

    folder: Traversable
    dimension: str
    variables: tuple[str, ...]
    documents: dict[str, tuple[Document, PropositionFile]]
    """The files that this loader or one before it has read, by name."""
    read: list[tuple[Document, PropositionFile]] = field(
        default_factory=list[tuple[Document, PropositionFile]]
    )
    names: dict[str, bool] = field(default_factory=dict[str, bool])
    """Files by name; True once all files that they extend are read."""
    mistakes: list[PackMistake] = field(default_factory=list[PackMistake])

    def load(self, agent: str | None) -> PropositionSet:
        for name in (self.dimension, *([agent] if agent else [])):
            if not isinstance(cast(Any, name), str) or not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"expected the name of a folder or file, of letters, digits and _ . -, got {name!r:.80}."
                )
        for name in dict.fromkeys([DEFAULT, agent or DEFAULT]):
            if (file := self.find(name)) is not None:
                self.add(file, name)
            elif name != DEFAULT and self.names:
                self.warn_of(name)
        if not self.names:
            raise ConfigurationError(self.nothing_for(agent))
        propositions = self.merged()
        if self.mistakes:
            raise PackError(self.mistakes)
        return PropositionSet(self.dimension, propositions, tuple(document.file for document, _ in self.read))

    def nothing_for(self, agent: str | None) -> str:
        """The error text for a dimension without a file for the agent."""
        if files := _files(self.folder, self.dimension):
            return (
                f"there is no {self.dimension}/{agent or DEFAULT}.yaml in {str(self.folder)!r}, and no {DEFAULT}.yaml "
                f"for all agents. Files there: {', '.join(files)}.{nearest(agent or '', files)}"
            )
        places = ", ".join(_known(self.folder)) or "none"
        return f"no propositions of {self.dimension!r} in {str(self.folder)!r}. Dimensions there: {places}."

    def warn_of(self, agent: str) -> None:
        """Warn if an agent without a file is named nearly like an existing file; other agents need no
        file."""
        places = (_files(self.folder, dimension) for dimension in _known(self.folder))
        names = {name for found in places for name in found} - {DEFAULT}
        meant = get_close_matches(agent.casefold(), names, n=1, cutoff=0.85)
        if meant and agent not in names:
            warnings.warn(
                f"there is no {self.dimension}/{agent}.yaml, so {agent!r} has only the default propositions. "
                f"Did you mean {meant[0]!r}?",
                PropositionWarning,
                stacklevel=callers(),
            )

    def find(self, name: str) -> Traversable | None:
        folder = _folder(None) if name.startswith(SHIPPED) else self.folder
        stem = name.removeprefix(SHIPPED)
        if not (inside := folder.joinpath(self.dimension)).is_dir():
            return None
        found = [file for file in pack_files(inside) if _stem(file) == stem]
        if len(found) > 1:
            warnings.warn(
                f"{self.dimension}/{found[0].name} is read, and {found[1].name} beside it is not. Keep one.",
                PropositionWarning,
                stacklevel=callers(),
            )
        return found[0] if found else None

    def add(self, file: Traversable, name: str) -> None:
        """Read a file after those that it extends."""
        shown = f"{SHIPPED if name.startswith(SHIPPED) else ''}{self.dimension}/{file.name}"
        self.names[name] = False
        try:
            if shown not in self.documents:
                document = read_document(file, shown)
                self.documents[shown] = document, validate(document, PropositionFile)
        except PackError as error:
            self.mistakes.extend(error.mistakes)
            return
        document, found = self.documents[shown]
        for at, other in enumerate(found.extends):
            self.extend(document, ("extends", at), other)
        self.names[name] = True
        self.read.append((document, found))
        self.mistakes.extend(_wrong_in(document, found, self.dimension, _stem(file)))

    def extend(self, document: Document, place: Place, name: str) -> None:
        if name in self.names:
            if not self.names[name]:
                message = f"expected a file that does not extend this one, got {name!r}"
                self.mistakes.append(document.mistake(place, message))
        elif (file := self.find(name)) is None:
            shipped = [SHIPPED + name for name in _files(_folder(None), self.dimension)]
            known = [*_files(self.folder, self.dimension), *shipped]
            message = f"expected one of {', '.join(known)}, got {name!r}.{nearest(name, known)}"
            self.mistakes.append(document.mistake(place, message))
        else:
            self.add(file, name)

    def merged(self) -> tuple[Proposition, ...]:
        settings: dict[str, Any] = {}
        for _, found in self.read:
            settings.update(_written(found))
        seen: dict[str, str] = {}
        propositions: list[Proposition] = []
        for document, found in self.read:
            for at, entry in enumerate(found.propositions):
                place = ("propositions", at)
                if entry.id in seen:
                    message = f"expected an id of its own, got {entry.id!r}, which {seen[entry.id]} has"
                    self.mistakes.append(document.mistake((*place, "id"), message))
                    continue
                self.check_variables(document, place, entry)
                line = document.line((*place, "id"))
                seen[entry.id] = f"{document.file}:{line}"
                _lint(entry, f"{document.file}:{document.line((*place, 'claim'))}")
                _lint_types(entry, f"{document.file}:{document.line((*place, 'precondition'))}")
                propositions.append(_proposition(entry, {**settings, **_written(entry)}))
        return tuple(propositions)

    def check_variables(self, document: Document, place: Place, entry: PropositionEntry) -> None:
        """Add a mistake for each unknown variable: a claim with one could never be asked."""
        for key in ("claim", "recommendations_for_improvement"):
            for name in sorted(variables_in(getattr(entry, key) or "") - {*self.variables}):
                known = ", ".join(f"{{{{{variable}}}}}" for variable in self.variables)
                message = f"expected one of {known}, got {{{{{name}}}}}.{nearest(name, self.variables)}"
                self.mistakes.append(document.mistake((*place, key), message))


def _wrong_in(document: Document, found: PropositionFile, dimension: str, stem: str) -> Iterator[PackMistake]:
    for key, expected, got in (("dimension", dimension, found.dimension), ("agent_id", stem, found.agent_id)):
        if expected != got:
            yield document.mistake((key,), f"expected {expected!r}, as the file is called, got {got!r}")
    if not any(entry.weight for entry in found.propositions):
        yield document.mistake(("propositions",), "expected a weight above 0, got weights that sum to 0")


def _written(settings: _Settings) -> dict[str, Any]:
    """The settings that a file or entry sets."""
    return {key: value for key in _SETTINGS if (value := getattr(settings, key)) is not None}


def _proposition(entry: PropositionEntry, settings: Mapping[str, Any]) -> Proposition:
    types = entry.precondition.requires_action_type if entry.precondition else None
    return Proposition(
        entry.id,
        entry.claim.strip(),
        weight=entry.weight,
        inverted=entry.inverted,
        recommendations_for_improvement=entry.recommendations_for_improvement,
        precondition=requires_action_type(types) if types else None,
        **settings,
    )


_NEGATION = re.compile(r"\b(?:never|not|cannot|\w+n['’]t)\b", re.IGNORECASE)


def _lint(entry: PropositionEntry, where: str) -> None:
    if entry.inverted and (found := _NEGATION.search(entry.claim)):
        warnings.warn(
            f"{where}: {entry.id}: an inverted claim with {found[0]!r} is a double negation: if it is true, it "
            "scores low. Claim the bad behaviour itself, or leave out `inverted`.",
            PropositionWarning,
            stacklevel=callers(),
        )


_TYPES = ("TALK", "THINK")
"""The types of the actions that Arbiter makes."""


def _lint_types(entry: PropositionEntry, where: str) -> None:
    for type in entry.precondition.requires_action_type if entry.precondition else ():
        if type not in _TYPES and (meant := nearest(type, _TYPES)):
            warnings.warn(
                f"{where}: {entry.id}: messages have the types {', '.join(_TYPES)}, and not {type!r}; a claim whose "
                f"precondition is not met counts as 9.{meant}",
                PropositionWarning,
                stacklevel=callers(),
            )


def _stem(file: Traversable) -> str:
    return file.name.rpartition(".")[0]


def _files(folder: Traversable, dimension: str) -> list[str]:
    inside = folder.joinpath(dimension)
    return [_stem(file) for file in pack_files(inside)] if inside.is_dir() else []


def _known(folder: Traversable) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _files(folder, entry.name))
