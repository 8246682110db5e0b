"""A checker of where data may flow: labels on state keys that travel with what is made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from arbiter.errors import ParameterError, UnknownInstructionError
from arbiter.history import CausalHistory, History, HistoryItem
from arbiter.instructions import Instruction, find_instruction
from arbiter.policy import OnDeny, PolicyChecker
from arbiter.verdicts import ALLOW, Verdict

Clears = Literal["written", "all"]

_SENT = "*"
"""Stands among the keys of a label for what a `Send` may carry: a payload made before a key was cleared arrives
after that."""
_ANY = "**"
"""Stands for every key: more had labels than are remembered."""
_MOST_KEYS = 80
"""How many labels of keys are remembered. Of a policy's 256 tallies those are kept that grew last: a superstep that
pushes a label out leaves more than that many in sight, since it adds at most two for each that it clears."""
_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Where a label comes from.

    What a step of one of the instructions `written_by` writes has it: all keys, or those of them in `keys`.
    `input_keys` have it from the start of each run.
    """

    written_by: Sequence[Instruction | str] = ()
    keys: Sequence[str] | None = None
    input_keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """A `Label` as it was read."""

    instructions: frozenset[Instruction]
    keys: frozenset[str] | None
    input_keys: frozenset[str]


class FlowChecker(PolicyChecker):
    """Denies an instruction that would read a key with a label that is forbidden to it.

    `labels` says where each label comes from, `forbid` which instructions may not read it. A node that reads a
    labelled key hands the label on to every key that it writes. Only a completed step of an instruction in
    `cleared_by` takes labels off: those of the keys that it wrote, or with `clears="all"` those of all keys;
    overwriting a key does not. While more than 80 keys have labels, and from then on until all are cleared, every key
    counts as labelled. Of two steps in one superstep, one that labels a key wins over one that clears it.

    A node reads the keys of its input. What a `Send` brings may be made of anything: it has all labels that any
    key has, and those that come from the node that sent it. Every node is followed, whatever the targets; they only
    say which nodes may be denied.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        labels: Mapping[str, Label],
        forbid: Mapping[str, Sequence[Instruction | str]],
        *,
        cleared_by: Sequence[Instruction | str] = ("VERIFY", "FILTER"),
        clears: Clears = "written",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_deny)
        self.clears = clears
        self._cleared_by = self._read(cleared_by, "cleared_by")
        self._sources = {label: self._source(label, given) for label, given in self._items(labels, "labels")}
        if sum(len(source.input_keys) for source in self._sources.values()) > _MOST_KEYS:
            raise self._wrong("labels", f"expected at most {_MOST_KEYS} input_keys.")
        self.written_by = {
            label: source.instructions for label, source in self._sources.items() if not source.input_keys
        }
        """For each label that no input has, where alone it can come from."""
        self._forbidden: dict[Instruction, list[str]] = {}
        for label, instructions in self._items(forbid, "forbid"):
            if label not in self._sources:
                known = ", ".join(self._sources)
                raise self._wrong(f"forbid.{label}", f"expected one of the labels {known}, got {label!r}.")
            for instruction in sorted(self._read(instructions, f"forbid.{label}"), key=str):
                self._forbidden.setdefault(instruction, []).append(label)
        self._refuse_contradictions()

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        return True  # every node is followed; `check_before` looks at the targets

    def check_before(self, history: History) -> Verdict:
        own = history.entries[-1][-1]
        labels = () if own.instruction is None else self._forbidden.get(own.instruction, ())
        if not labels or not super().applies_to(own.node, own.instruction):
            return ALLOW
        counted = history.tally_keys(self.name)
        full = self._is_full(history, counted)
        found = [
            self._reason(history, label, key)
            for label in labels
            for key in self._reads(counted, own, label)
            if full or self._may_have(history, counted, label, (key,))
        ]
        if not found:
            return ALLOW
        more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
        return Verdict.deny(
            f"{own.instruction} may not read {', '.join(found[:_MOST])}{more}. {self._remedy()}"
        )

    def observe(self, history: History) -> Mapping[str, float] | None:
        own = history.entries[-1][-1]
        if own.status != "completed":
            return None  # nothing of it is committed
        new: dict[str, float] = {}
        instruction = own.instruction
        clearing = instruction in self._cleared_by
        counted = history.tally_keys(self.name)
        full = self._is_full(history, counted)
        for label, source in self._sources.items():
            if clearing:
                new.update(self._cleared(history, counted, own, label))
                continue
            reads = self._reads(counted, own, label)
            tainted = bool(reads) if full else self._may_have(history, counted, label, reads)
            written = instruction in source.instructions
            if not tainted and not written:
                continue
            for key in own.output_state:
                if tainted or source.keys is None or key in source.keys:
                    new[_label(label, key)] = 1
            new[_label(label, _SENT)] = 1
        if (full and not (clearing and self.clears == "all")) or (not clearing and len(new) > _MOST_KEYS):
            for label in self._sources:
                new[_label(label, _ANY)] = 1  # the last one, so that it is kept
        return new

    # `counted` is for what this rule has tallies.

    def _is_full(self, history: History, counted: Collection[str]) -> bool:
        """Whether more labels of keys are in sight than are remembered: others may have been pushed out."""
        if len(counted) <= _MOST_KEYS:
            return False
        labelled = (
            self._has(history, label, key) for label in self._sources for key in self._known(counted, label)
        )
        return sum(labelled) > _MOST_KEYS

    def _cleared(
        self, history: History, counted: Collection[str], own: HistoryItem, label: str
    ) -> Iterator[tuple[str, float]]:
        known = self._known(counted, label)
        cleared = known if self.clears == "all" else {*own.output_state, _SENT}
        for key in known:
            if self._has(history, label, key):
                if key in cleared:
                    labelled = history.tally(self.name, _label(label, key)).amount
                    yield _clear(label, key, labelled), 1
                # Of many tallies those are kept that grew last. With nothing added a label has grown, too: it is kept
                # longer than what cleared it, so that its number never starts again from 0 beside an old clearing.
                yield _label(label, key), 0

    def _known(self, counted: Collection[str], label: str) -> Collection[str]:
        """The keys that have or had the label."""
        prefix = _label(label, "")
        had = {key.removeprefix(prefix) for key in counted if key.startswith(prefix)}
        return had | self._sources[label].input_keys

    def _reads(self, counted: Collection[str], own: HistoryItem, label: str) -> Collection[str]:
        return self._known(counted, label) if own.sent else own.input_state.keys()

    def _may_have(
        self, history: History, counted: Collection[str], label: str, keys: Collection[str]
    ) -> bool:
        """Whether one of the keys is labelled, or may be, since some labels are forgotten."""
        from_start = self._sources[label].input_keys
        for key in keys:
            if (key in from_start or _label(label, key) in counted) and self._has(history, label, key):
                return True
        return bool(keys) and _label(label, _ANY) in counted and self._has(history, label, _ANY)

    def _has(self, history: History, label: str, key: str) -> bool:
        """Whether the key is labelled: no clearing step has seen all of its labellings."""
        from_start = key in self._sources[label].input_keys
        labelled = history.tally(self.name, _label(label, key)).amount
        if not from_start and not labelled:
            return False
        cleared = history.tally(self.name, _clear(label, key, labelled))
        return not (cleared.in_run if from_start else cleared.amount)

    def _reason(self, history: History, label: str, key: str) -> str:
        what = "what was sent to it" if key == _SENT else repr(key)
        if not self._has(history, label, key):
            return f"{what} (perhaps {label}: more than {_MOST_KEYS} keys have labels)"
        tally = _label(label, key)
        if isinstance(history, CausalHistory):
            for fact in reversed(list(history.past.facts())):
                if fact.get("tallies", {}).get(self.name, {}).get(tally):
                    return f"{what} ({label} since node {fact['node']!r})"
        return (
            f"{what} ({label} from the start)"
            if key in self._sources[label].input_keys
            else f"{what} ({label})"
        )

    def _remedy(self) -> str:
        if not self._cleared_by:
            return "Nothing clears that."
        clearing = " or ".join(sorted(map(str, self._cleared_by)))
        return (
            f"What clears that: {clearing}{'' if self.clears == 'all' else ', for the keys that it writes'}."
        )

    # Reading the parameters

    def _source(self, label: str, given: Any) -> _Source:
        where = f"labels.{label}"
        if ":" in label:
            raise self._wrong(where, "expected a name without ':'.")
        if isinstance(given, Mapping):
            try:
                given = Label(**cast(Any, given))
            except TypeError:
                raise self._wrong(
                    where, f"expected written_by, keys and input_keys, got {given!r}."
                ) from None
        if not isinstance(given, Label):
            raise self._wrong(where, f"expected a Label or a mapping, got {given!r}.")
        if not given.written_by and not given.input_keys:
            raise self._wrong(where, "expected written_by or input_keys, got neither: nothing would have it.")
        return _Source(
            self._read(given.written_by, f"{where}.written_by"),
            None if given.keys is None else frozenset(self._list(given.keys, f"{where}.keys")),
            frozenset(self._list(given.input_keys, f"{where}.input_keys")),
        )

    def _read(self, given: Sequence[Instruction | str], where: str) -> frozenset[Instruction]:
        try:
            return frozenset(find_instruction(one) for one in self._list(given, where))
        except UnknownInstructionError as exc:
            raise self._wrong(where, str(exc)) from exc

    def _list(self, given: Any, where: str) -> Sequence[Any]:
        parts: Any = given
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise self._wrong(where, f"expected a list, got {given!r}.")
        return list(parts)

    def _items(self, given: Any, where: str) -> list[tuple[str, Any]]:
        parts: Any = given
        if not isinstance(given, Mapping) or not given:
            raise self._wrong(where, f"expected a mapping with at least one label, got {given!r}.")
        return [(str(label), part) for label, part in parts.items()]

    def _refuse_contradictions(self) -> None:
        if self.clears not in get_args(Clears):
            raise self._wrong("clears", f"expected 'written' or 'all', got {self.clears!r}.")
        for instruction in sorted(self._cleared_by, key=str):
            if instruction in self._forbidden:
                label = self._forbidden[instruction][0]
                raise self._wrong(f"forbid.{label}", f"{instruction} clears labels, so it has to read them.")
            for label, source in self._sources.items():
                if instruction in source.instructions:
                    raise self._wrong(f"labels.{label}.written_by", f"{instruction} is in cleared_by.")

    def _wrong(self, parameter: str, problem: str) -> ParameterError:
        return ParameterError(f"checker {self.name!r}", parameter, problem)


def _clear(label: str, key: str, labelled: float) -> str:
    """The tally of the steps that cleared the key and had seen as many labellings as there are now.

    A sibling of a clearing step that labels the key raises that number, so its label stays.
    """
    return f"clear:{label}:{int(labelled)}:{key}"


def _label(label: str, key: str) -> str:
    return f"label:{label}:{key}"
