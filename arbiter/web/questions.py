"""Questions that wait for a human: what a checkpointer knows of them, and what an answer to them may change.

    ledger (threads that paused) ─▶ checkpointer of their graph ─▶ Question ─▶ its fields, redacted ─▶ an answer

Only the checkpointer knows whether a question is still open, and about which input. So nothing of a question is
taken from a page: a page names the question, and says what is to be done.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from arbiter._values.states import digest
from arbiter._weaving.asking import is_answered
from arbiter._weaving.channel import FACTS, FactsChannel
from arbiter.errors import describe
from arbiter.models._json import finite, no_constant

if TYPE_CHECKING:
    from arbiter._lifecycle.core import Core
    from arbiter._lifecycle.registry import Registration
    from arbiter.ledger import Ledger

_INTERRUPT = "__interrupt__"
_SUBJECTS = {"approval": "input", "escalation": "output"}
_NEWEST = 30
"""Threads that are looked at although the ledger does not say that they wait: their process may have been killed."""
_LONGEST = 32_000
"""Characters of a field on a page."""
_KNOWN = {
    "type", "policy", "reason", "requests", "node", "instruction", "item", "input", "output", "digest", "allowed",
    "asked_at", "expires_at", "approvers", "note", "question", "after", "retries", "tuples",
}  # fmt: skip
"""The parts of a question that are shown by themselves, or not at all."""
_KEPT_OUT = ("source", "step", "parents", "writes", "run_id", "run_attempt", "thread_id")


@dataclass(frozen=True, slots=True)
class Stamp:
    """The name of one question. An interrupt may keep its id when the same node asks again."""

    interrupt: str
    digest: str
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question that is open in a checkpointer, with its raw value."""

    ref: str
    thread_id: str
    graph: Any
    interrupt: str
    value: Any
    settings: Mapping[str, Any]
    """The plain values of `configurable` that the paused execution had."""

    @property
    def subject(self) -> str | None:
        """The part that is asked about, `input` or `output`; None for a question of a node's own."""
        parts = _parts_of(self.value)
        subject = _SUBJECTS.get(str(parts.get("type")))
        return subject if subject in parts and isinstance(parts.get("digest"), str) else None

    @property
    def stamp(self) -> Stamp:
        if self.subject is None:
            return Stamp(self.interrupt, digest({"value": self.value}), 0)
        return Stamp(self.interrupt, self.value["digest"], int(self.value.get("question", 0)))

    @property
    def node(self) -> str:
        return "" if self.subject is None else str(self.value["node"])

    @property
    def requests(self) -> Sequence[Mapping[str, Any]]:
        """The policies that ask, each with its reason."""
        if self.subject is None:
            return ()
        asked = {"policy": self.value["policy"], "reason": self.value.get("reason", "")}
        return self.value.get("requests") or (asked,)

    @property
    def approvers(self) -> Sequence[str] | None:
        """The names of the people who may approve; None for everybody with the role."""
        return None if self.subject is None else self.value.get("approvers")

    @property
    def note(self) -> str:
        """A remark on why it is asked again."""
        return "" if self.subject is None else str(self.value.get("note", ""))

    @property
    def asked_at(self) -> datetime | None:
        return self._time("asked_at")

    @property
    def expires_at(self) -> datetime | None:
        return self._time("expires_at")

    def _time(self, name: str) -> datetime | None:
        found = None if self.subject is None else self.value.get(name)
        return None if found is None else datetime.fromtimestamp(found, UTC)

    def missing_rules(self) -> list[str]:
        """The policies that asked and that do not govern the graph here: nothing would read the answer."""
        registry = core_of(self.graph).registry
        groups: tuple[Sequence[Registration[Any]], ...] = (
            registry.checkers,
            registry.output_checkers,
            registry.routers,
        )
        known = {each.contract.name for group in groups for each in group}
        return [each["policy"] for each in self.requests if each["policy"] not in known]

    @property
    def extras(self) -> Mapping[str, Any]:
        """The data that policies add to their question."""
        if self.subject is None:
            return {}
        return {name: part for name, part in self.value.items() if name not in _KNOWN and part}

    def may_approve(self, name: str) -> bool:
        return self.approvers is None or name in self.approvers


@dataclass(frozen=True, slots=True)
class Field:
    """One field of what is asked about, as JSON for a page. `kept` is the reason why it cannot be edited."""

    name: str
    text: str
    raw: Any
    kept: str | None = None

    @property
    def rows(self) -> int:
        """The lines of a box that shows the text."""
        return min(max(self.text.count("\n") + 1, len(self.text) // 70 + 1), 20)


class Questions:
    """The open questions of the paused threads of a ledger, in the checkpointers of some governed graphs."""

    def __init__(self, ledger: Ledger, graphs: Mapping[str, Any]) -> None:
        self._ledger = ledger
        self.graphs = graphs

    def of(self, thread: Mapping[str, Any]) -> list[Question]:
        """The open questions of a thread of the ledger; none if no graph knows it."""
        if thread["thread_id"] is None:
            return []
        for name, graph in self.graphs.items():
            if thread["graph"] in (None, name, graph.get_name()):
                with self._reading(name):
                    found = _open(graph, thread)
                if found:
                    return found
        return []

    @contextmanager
    def _reading(self, name: str) -> Generator[None]:
        """Inside, what the checkpointer of that graph raises is a sentence: it is no fault of the ledger's."""
        try:
            yield
        except Exception as error:
            why = self._ledger.shown(describe(error))
            sentence = f"The checkpoints of graph {name!r} cannot be read: {why}"
            raise HTTPException(503, sentence) from error

    def unmarked(self) -> list[Mapping[str, Any]]:
        """Threads that may wait although the ledger does not say so, among those that ran last."""
        newest = self._ledger.threads().page(_NEWEST) if self.graphs else ()
        return [
            thread
            for thread in newest
            if thread["outcome"] != "paused" and thread["thread_id"] is not None and self._is_paused(thread)
        ]

    def _is_paused(self, thread: Mapping[str, Any]) -> bool:
        config = {"configurable": {"thread_id": thread["thread_id"]}}
        savers = {id(graph.checkpointer): (name, graph.checkpointer) for name, graph in self.graphs.items()}
        for name, saver in savers.values():
            with self._reading(name):
                saved = saver.get_tuple(config)
            writes = () if saved is None else saved.pending_writes or ()
            if any(channel == _INTERRUPT for _, channel, _ in writes):
                return True
        return False

    def fields(self, question: Question) -> list[Field]:
        """The subject of the question, field by field: redacted, and bounded."""
        if question.subject is None:
            return [Field("", self.text(question.value), question.value, _NOT_PLAIN)]
        about: Any = question.value[question.subject]
        if not isinstance(about, dict):
            return [Field(question.subject, self.text(about), about, _NOT_PLAIN)]
        return [self._field(name, raw) for name, raw in _parts_of(about).items()]

    def _field(self, name: str, raw: Any) -> Field:
        ((shown_name, shown),) = self._ledger.shown({name: raw}).items()
        text = _bounded(json_text(shown))
        if _is_same(shown, raw) and shown_name == name:
            return Field(name, text, raw, _TOO_LONG if len(text) > _LONGEST else None)
        if '"$cut"' in text:
            kept = _TOO_LONG
        else:
            kept = _REDACTED if shown_name != name or "$secret" in text or "[secret: " in text else _NOT_PLAIN
        return Field(shown_name, text, raw, kept)

    def text(self, value: Any) -> str:
        """A value as JSON for a page, redacted."""
        return _bounded(json_text(self._ledger.shown(value)))


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… (+{len(text) - _LONGEST:,} characters)"


_NOT_PLAIN = "It is not plain data, and stays as it is."
_TOO_LONG = "It is too long to be edited here, and stays as it is."
_REDACTED = "Parts of it are redacted. It stays as it is."


def core_of(graph: Any) -> Core:
    """The rules and settings that a governed graph runs under."""
    channel: FactsChannel = graph.channels[FACTS]
    return channel.core


def _parts_of(value: Any) -> dict[str, Any]:
    """The parts of a mapping by their names; none of anything else."""
    parts: Any = value
    return {str(name): part for name, part in parts.items()} if isinstance(value, dict) else {}


def _open(graph: Any, thread: Mapping[str, Any]) -> list[Question]:
    config: Any = {"configurable": {"thread_id": thread["thread_id"]}}
    state = graph.get_state(config)
    # LangGraph shows the interrupt of a task that has failed since, although its answer is there.
    has_failed = any(task.error is not None and task.interrupts for task in state.tasks)
    answered = _answered(graph, graph.get_state(config, subgraphs=True)) if has_failed else frozenset[str]()
    settings = {
        name: value
        for name, value in _parts_of(state.metadata).items()
        if name not in _KEPT_OUT
        and not name.startswith(("__", "langgraph_", "checkpoint_"))
        and isinstance(value, str | int | float | bool)
    }
    return [
        Question(thread["ref"], thread["thread_id"], graph, each.id, each.value, settings)
        for each in state.interrupts
        if each.id not in answered
    ]


def _answered(graph: Any, state: Any) -> frozenset[str]:
    """The ids of the interrupts that show questions of policies which were answered, in subgraphs too."""
    saved = graph.checkpointer.get_tuple(state.config)
    writes = () if saved is None else saved.pending_writes or ()
    found: set[str] = set()
    for task in state.tasks:
        if hasattr(task.state, "tasks"):
            found |= _answered(graph, task.state)
        found |= {each.id for each in task.interrupts if is_answered(writes, task.id, each)}
    return frozenset(found)


def json_text(value: Any) -> str:
    """A value as indented JSON. Control characters and invisible ones are escaped, as JSON allows."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def _is_same(one: Any, other: Any) -> bool:
    """True if both are equal, of equal types: 1, 1.0 and True are not the same."""
    kind = cast(Any, type(one))
    if kind is not type(other):
        return False
    if kind is dict:
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if kind is list:
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


class InvalidAnswer(Exception):  # noqa: N818  it is no failure: the page is shown once more
    """The form holds no valid answer. `problems` has a sentence for each field, by its place in the form."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = problems


def edited(question: Question, fields: Sequence[Field], form: Mapping[str, str]) -> dict[str, Any]:
    """The changed fields of an edit, by name. The form has the text of field number N as `field-N`.

    Raises `InvalidAnswer`.
    """
    problems: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for number, field in enumerate(fields):
        place = f"field-{number}"
        text = form.get(place)
        if text is None:
            continue
        if field.kept is not None:
            problems[place] = field.kept
            continue
        try:
            value = json.loads(text, parse_constant=no_constant, parse_float=finite)
        except (ValueError, RecursionError) as error:
            problems[place] = (
                f"This is not JSON: {str(error) or 'it is nested too deeply'}. A text needs quotes."
            )
            continue
        if not _is_same(value, field.raw):
            changes[field.name] = value
    unfit = {} if problems else _unfit(question, changes)
    problems |= {
        f"field-{number}": unfit[field.name] for number, field in enumerate(fields) if field.name in unfit
    }
    if not changes and not problems:
        problems["edit"] = "Nothing was changed. Approve it as it is, or change a field."
    if problems:
        raise InvalidAnswer(problems)
    return changes


def _unfit(question: Question, changes: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for each change that the node's input does not take, as far as its types say so."""
    before = question.value[question.subject]
    schema = _input_schema(question) if question.subject == "input" else None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        try:
            schema.model_validate({**before, **changes})
        except ValidationError as error:
            found = {
                str((each["loc"] or ("",))[0]): f"It does not fit: {each['msg']}." for each in error.errors()
            }
            # A mistake that is not of one field is shown at the first that was changed.
            return {name: text for name, text in found.items() if name in changes} or {
                next(iter(changes)): next(iter(found.values()))
            }
        return {}
    hints = _hints(schema)
    problems: dict[str, str] = {}
    for name, value in changes.items():
        problem = _misfit(hints[name], value) if name in hints else _other_kind(before[name], value)
        if problem is not None:
            problems[name] = problem
    return problems


def _input_schema(question: Question) -> Any:
    """The type of the node's input; None if it is not known, as for a node of a subgraph."""
    builder: Any = getattr(question.graph, "builder", None)
    node = getattr(builder, "nodes", {}).get(question.node)
    return getattr(node, "input_schema", None)


def _hints(schema: Any) -> Mapping[str, Any]:
    try:
        return {} if schema is None else get_type_hints(schema)
    except Exception:  # a name that is only there for a type checker
        return {}


def _misfit(hint: Any, value: Any) -> str | None:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
    except Exception:  # a type that pydantic has no schema for
        return None
    try:
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return f"It does not fit: {error.errors()[0]['msg']}."
    return None


_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def _other_kind(before: Any, value: Any) -> str | None:
    """A sentence if a value is of another kind than the one it replaces, where nothing else is known of it."""
    kinds: list[type[Any]] = [type(before), type(value)]
    expected, found = map(_KINDS.get, kinds)
    if expected is None or value is None or expected == found:
        return None
    return f"It does not fit: expected {expected}, as it was, got {found}."
