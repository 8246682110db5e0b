"""A checker of data flow: labels on state keys that spread to the data derived from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Unpack, cast

from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import ParameterError, UnknownInstructionError
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem
from arbiter.instructions import Instruction, find_instruction
from arbiter.policy import CheckerOptions, PolicyChecker
from arbiter.verdicts import ALLOW, Verdict

Clears = Literal["written", "all"]

_SENT = "*"
"""Stands, among the keys of a label, for the payload of a `Send`: it may arrive after its key was cleared."""
_ANY = "**"
"""Stands for every key, if more keys were labelled than can be remembered."""
_MOST_KEYS = 80
"""The number of labelled keys that are remembered.

The 256 tallies of a policy that grew last are kept. A superstep adds at most two for each key that it clears,
so even if it pushes out a label, more than this number of keys are left.
"""
_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The origin of a label.

    Keys written by a step of one of the instructions `written_by` get the label: all of them, or only those
    in `keys`. `input_keys` have it from the start of each run.
    """

    written_by: Annotated[
        Sequence[Instruction | str], Param("the instructions whose output has the label")
    ] = ()
    keys: Annotated[
        Sequence[str] | None, Param("only these of the keys that they write have it; all by default")
    ] = None
    input_keys: Annotated[Sequence[str], Param("the keys that have it from the start of each run")] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """A `Label` after validation."""

    instructions: frozenset[Instruction]
    keys: frozenset[str] | None
    input_keys: frozenset[str]


class FlowChecker(PolicyChecker):
    """Denies an instruction that would read a key with a label that is forbidden for it.

    `labels` gives the origin of each label, `forbid` the instructions that may not read it. A node that reads
    a labelled key passes the label on to every key that it writes. Only a completed step of an instruction in
    `cleared_by` removes labels: those of the keys that it wrote, or with `clears="all"` those of all keys;
    overwriting a key does not. While more than 80 keys have labels, and from then on until all are cleared,
    every key counts as labelled. If one step of a superstep labels a key and another clears it, the label
    stays.

    A node reads the keys of its input. The payload of a `Send` may come from any key: it has all labels that
    any key has, and those that come from the node that sent it. All nodes are followed, whatever the targets;
    the targets only say which nodes may be denied.
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        labels: Annotated[
            Mapping[str, Label],
            Param(
                "for each label where it comes from: `written_by`, instructions; `keys`, only those of the keys that "
                "they write; `input_keys`, labelled from the start of each run",
                min_length=1,
                expected="a mapping with at least one label",
            ),
        ],
        forbid: Annotated[
            Mapping[str, Sequence[Instruction | str]],
            Param(
                "for each label the instructions that may not read it",
                min_length=1,
                expected="a mapping with at least one label",
            ),
        ],
        *,
        cleared_by: Annotated[
            Sequence[Instruction | str],
            Param("the instructions that take labels off", expected="a list of instructions"),
        ] = ("VERIFY", "FILTER"),
        clears: Annotated[
            Clears, Param("which keys such a step clears: those that it wrote, or all")
        ] = "written",
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        self.clears = clears
        self._cleared_by = self._read(cleared_by, "cleared_by")
        self._sources = {label: self._source(label, given) for label, given in labels.items()}
        if sum(len(source.input_keys) for source in self._sources.values()) > _MOST_KEYS:
            raise self._wrong("labels", f"expected at most {_MOST_KEYS} input_keys.")
        self.written_by = {
            label: source.instructions for label, source in self._sources.items() if not source.input_keys
        }
        """For each label that no input has, where alone it can come from."""
        sources = self._sources.values()
        self.labelled_keys = sorted(
            {key for each in sources for key in (*(each.keys or ()), *each.input_keys)}
        )
        self._forbidden: dict[Instruction, list[str]] = {}
        for label, instructions in forbid.items():
            if label not in self._sources:
                known = ", ".join(self._sources)
                raise self._wrong(f"forbid.{label}", f"expected one of the labels {known}, got {label!r}.")
            for instruction in sorted(self._read(instructions, f"forbid.{label}"), key=str):
                self._forbidden.setdefault(instruction, []).append(label)
        self.forbidden = frozenset(self._forbidden)
        """The instructions that may not read some label."""
        forbidden = {label for labels in self._forbidden.values() for label in labels}
        self.idle_labels = [label for label in self._sources if forbidden and label not in forbidden]
        """The labels that every instruction may read, in a rule that has others."""
        if not forbidden:
            self.when_idle = "it forbids no instruction to read a label", "Name some under forbid."
        self._refuse_contradictions()
        is_in_inputs = len(self.written_by) < len(self._sources)
        writers = sorted({step for steps in self.written_by.values() for step in steps}, key=str)
        self.awaited_steps = tuple(
            filter(None, (() if is_in_inputs else tuple(writers), tuple(self._forbidden)))
        )

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        return bool(self.forbidden)  # every node is followed; `check_before` applies the targets

    def check_before(self, history: History) -> Verdict:
        own = history.item
        labels = () if own.instruction is None else self._forbidden.get(own.instruction, ())
        if not labels or not super().applies_to(own.node, own.instruction):
            return ALLOW
        counted = history.tally_keys(self.name)
        full = self._is_full(history, counted)
        found = [
            self._reason(history, counted, label, key)
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
        own = history.item
        if own.status != "completed":
            return None  # none of its writes is committed
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
                new[_label(label, _ANY)] = 1  # last, so that it is kept
        return new

    # `counted` are the keys of this rule's tallies.

    def _is_full(self, history: History, counted: Collection[str]) -> bool:
        """True if more labelled keys are known than can be remembered, so that others may have been dropped."""
        if len(counted) <= _MOST_KEYS:
            return False
        labelled = (
            self._has(history, counted, label, key)
            for label in self._sources
            for key in self._known(counted, label)
        )
        return sum(labelled) > _MOST_KEYS

    def _cleared(
        self, history: History, counted: Collection[str], own: HistoryItem, label: str
    ) -> Iterator[tuple[str, float]]:
        known = self._known(counted, label)
        cleared = known if self.clears == "all" else {*own.output_state, _SENT}
        for key in known:
            if self._has(history, counted, label, key):
                if key in cleared:
                    labelled = history.tally(self.name, _label(label, key)).amount
                    yield _clear(label, key, labelled), 1
                # If there are many tallies, those that grew last are kept. Adding 0 counts as growth: so a
                # label outlives its clearings, and its number never restarts from 0 next to an old clearing.
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
        """True if one of the keys is labelled, or may be labelled, since some labels were dropped."""
        for key in keys:
            if self._has(history, counted, label, key):
                return True
        return bool(keys) and self._has(history, counted, label, _ANY)

    def _has(self, history: History, counted: Collection[str], label: str, key: str) -> bool:
        """True if the key is labelled: no clearing step has seen all its labellings."""
        from_start = key in self._sources[label].input_keys
        tally = _label(label, key)
        labelled = history.tally(self.name, tally).amount if tally in counted else 0
        if not from_start and not labelled:
            return False
        clearing = _clear(label, key, labelled)
        if clearing not in counted:
            return True
        cleared = history.tally(self.name, clearing)
        return not (cleared.in_run if from_start else cleared.amount)

    def _reason(self, history: History, counted: Collection[str], label: str, key: str) -> str:
        what = "the payload sent to it" if key == _SENT else repr(key)
        if not self._has(history, counted, label, key):
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
        return f"Steps that clear it: {clearing}{'' if self.clears == 'all' else ', for the keys that it writes'}."

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
        source = _Source(
            self._read(given.written_by, f"{where}.written_by"),
            None if given.keys is None else frozenset(self._list(given.keys, f"{where}.keys")),
            frozenset(self._list(given.input_keys, f"{where}.input_keys")),
        )
        if not source.instructions and not source.input_keys:
            raise self._wrong(where, "expected written_by or input_keys, got neither: no key would get it.")
        if source.keys is not None and not source.keys and not source.input_keys:
            raise self._wrong(f"{where}.keys", "expected at least one, got none. Leave it out to mean all.")
        return source

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

    def _refuse_contradictions(self) -> None:
        for instruction in sorted(self._cleared_by, key=str):
            if instruction in self._forbidden:
                label = self._forbidden[instruction][0]
                raise self._wrong(f"forbid.{label}", f"{instruction} clears labels, so it must read them.")
            for label, source in self._sources.items():
                if instruction in source.instructions:
                    raise self._wrong(f"labels.{label}.written_by", f"{instruction} is in cleared_by.")

    def _wrong(self, parameter: str, problem: str) -> ParameterError:
        return ParameterError(f"checker {self.name!r}", parameter, problem)


def _clear(label: str, key: str, labelled: float) -> str:
    """The tally of the steps that cleared the key after as many labellings as there are now.

    A sibling of a clearing step that labels the key raises that number, so its label stays.
    """
    return f"clear:{label}:{int(labelled)}:{key}"


def _label(label: str, key: str) -> str:
    return f"label:{label}:{key}"
