"""The past: the committed node runs that a node can look back on, and their totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from arbiter.history._facts import EMPTY, KEEP, KEEP_TALLIES, NO_TALLY_YET, RunFact, Value, fold
from arbiter.history._packing import Columns, bounded, is_packed_id, restore, rounded, store
from arbiter.history._record import Described, Position, Record


def task_order(path: Any) -> str:
    """A sort key that orders tasks of one superstep as LangGraph applies their writes."""
    if isinstance(path, tuple | list):
        return "~" + ", ".join(task_order(part) for part in path)  # pyright: ignore[reportUnknownVariableType]
    return f"{path:010d}" if isinstance(path, int) else str(path)


class Tally(NamedTuple):
    """A sum over node runs.

    `at` is the number of the last run that added to it, counted from 1 over all committed node runs; 0 if
    none did.
    """

    amount: float
    at: int
    in_run: float
    """The part of `amount` that was added in the current run of the graph."""


NO_TALLY = Tally(0, 0, 0)


_LONGEST_TAIL = 32
_OLDER = 100
"""The number of records in a row, too old for any fact, after which no younger one is looked for: a record that began
again stands before older siblings, but not before so many.
"""


_UNUSUAL = frozenset({"by", "status", "inner", "why", "start"})
"""Keys that the fact of a usual node run, one that completed and was not redirected, does not have."""


_Amounts = Sequence[Any]
"""A tally in the form that the value of the facts channel stores."""


class _Tail:
    """Usual facts that were committed after a value.

    Consecutive pasts share one `_Tail`: facts are only appended, and each past reads only the facts that
    were there when it was made.
    """

    __slots__ = ("facts", "instructions", "nodes", "tallies")

    def __init__(self) -> None:
        self.facts: list[RunFact] = []
        self.nodes: list[str] = []
        self.instructions: list[str] = []
        """The instruction of each fact; "" if it has none."""
        self.tallies: dict[str, dict[str, list[_Amounts]]] = {}
        """The history of each tally, oldest first."""

    def add(self, value: Value, step: int, facts: Sequence[RunFact]) -> bool:
        """Append the facts of one superstep, the last of `step`. Returns False if they have to be folded
        instead.

        That is so if one of them is not usual, or if some keys of its tallies may have to be dropped.
        """
        for fact in facts:
            if not _UNUSUAL.isdisjoint(fact):
                return False
            self.facts.append(fact)
            self.nodes.append(fact["node"])
            self.instructions.append(fact.get("in", ""))
            if "tallies" in fact and not self._count(value, step, fact["tallies"]):
                return False
        return True

    def _count(self, value: Value, step: int, tallies: Mapping[str, Mapping[str, float | None]]) -> bool:
        run, seq = value["run"], value["seq"] + len(self.facts)
        step += value.get("steps", 0)
        for policy, amounts in tallies.items():
            grown = self.tallies.get(policy)
            if grown is None:
                if not amounts:
                    continue
                grown = self.tallies[policy] = {}
            for key, amount in amounts.items():
                if amount is None:
                    return False  # it restarts from the previous superstep's amount
                changes = grown.get(key)
                if changes is None:
                    known: Mapping[str, Any] = value.get("tallies", EMPTY).get(policy, EMPTY)
                    if len(known) + len(grown) >= KEEP_TALLIES:
                        return False
                    total, _, in_run, of_run, _, *again = known.get(key, NO_TALLY_YET)
                    in_run = in_run if of_run == run else 0
                    grown[key] = [(total + amount, seq, in_run + amount, run, step, *again)]
                else:
                    total, _, in_run, _, _, *again = changes[-1]
                    changes.append((total + amount, seq, in_run + amount, run, step, *again))
        return True

    def tally(self, policy: str, key: str, seq: int) -> _Amounts | None:
        """A tally as it was after `seq` node runs, or None if it had not changed by then."""
        if policy in self.tallies:
            for found in reversed(self.tallies[policy].get(key, ())):
                if found[1] <= seq:
                    return found
        return None

    def folded(self, value: Value, at: int, steps: int, keep: int) -> Value:
        """The result of `_Fold` for the value and the first `at` facts, which took `steps` supersteps."""
        number = seq = value["seq"]
        added = self.facts[:at]
        nodes: dict[str, int] = {**value.get("nodes", EMPTY)}
        last: dict[str, Any] = {**value.get("last", EMPTY)}
        facts: list[RunFact] = [*value["facts"], *added]
        del facts[: -keep or None]
        new: Value = {**value, "nodes": nodes, "last": last, "facts": facts}
        numbered: list[tuple[str, int]] = []
        for fact in added:
            number += 1
            node = fact["node"]
            nodes[node] = nodes.get(node, 0) + 1
            last[node] = [number, fact, number]
            if "in" in fact:
                numbered.append((fact["in"], number))
        new["seq"], new["steps"] = seq + at, value.get("steps", 0) + steps
        if self.tallies:
            self._fold_tallies(new, added)
        if numbered:
            counts: dict[str, int] = {**value.get("instructions", EMPTY)}
            first: dict[str, int] = {**value.get("first", EMPTY)}
            latest: dict[str, int] = {**value.get("latest", EMPTY)}
            for instruction, number in numbered:
                counts[instruction] = counts.get(instruction, 0) + 1
                first.setdefault(instruction, number)
                latest[instruction] = number
            new |= {"instructions": counts, "first": first, "latest": latest}
        return new

    def _fold_tallies(self, new: Value, added: Sequence[RunFact]) -> None:
        changed: dict[str, dict[str, Any]] = {}
        for fact in added:
            for policy, amounts in fact.get("tallies", EMPTY).items():
                if amounts:
                    keys = changed.setdefault(policy, {})
                    for key in amounts:
                        keys.pop(key, None)  # the order of the keys is that in which they changed last
                        keys[key] = None
        if not changed:
            return
        new["tallies"] = tallies = {**new.get("tallies", EMPTY)}
        for policy, keys in changed.items():
            tallies[policy] = kept = {**tallies.get(policy, EMPTY)}
            for key in keys:
                kept.pop(key, None)
                kept[key] = list(self.tally(policy, key, new["seq"]) or NO_TALLY_YET)


_NO_COLUMNS = Columns()


_NO_TAIL = _Tail()
"""An empty tail. It must never be added to."""


class Past:
    """The committed past of one node run: the facts of its graph, after those of the parent graphs.

    Usual facts are folded into the value when the value is read, or when they are many, since most pasts are
    never read as a whole. The most frequent questions are answered without folding.
    """

    __slots__ = ("_columns", "_keep", "_state", "_stored", "before")

    def __init__(
        self,
        value: Value,
        before: Past | None = None,
        keep: int = KEEP,
        tail: _Tail = _NO_TAIL,
        at: int = 0,
        steps: int = 0,
        columns: Columns = _NO_COLUMNS,
    ) -> None:
        self._state = (value, tail, at, steps)
        """A value, what came after it, and how many facts and supersteps of that are part of this past. One attribute,
        since threads share it."""
        self._keep = keep
        self._columns = columns
        """The columns of the checkpoint before this past."""
        self._stored: Value | None = None
        self.before = before

    @classmethod
    def restored(cls, stored: Value, keep: int) -> Past:
        value, columns = restore(stored)
        past = cls(value, keep=keep, columns=columns)
        if len(value.get("facts", ())) <= keep:
            past._stored = stored
        return past

    def stored(self) -> Value:
        """The value in the form that a checkpoint stores. Worked out once: LangGraph asks for it at every
        superstep, and also when an input arrives.
        """
        if self._stored is None:
            self._stored, self._columns = store(self.value, self._columns, self._keep)
        return self._stored

    @property
    def is_packed(self) -> bool:
        """True if the ids of some facts were not stored."""
        facts: Sequence[RunFact] = self._state[0].get("facts", ())
        return any(is_packed_id(fact["id"]) for fact in facts)

    def identify(self, records: Iterable[Record]) -> None:
        """Give facts without a stored id the id of the node run that they describe.

        `records` are of node runs that this process knows, newest first.
        """
        of_fact: dict[tuple[str, int, str, int, str], list[RunFact]] = {}
        for fact in self._state[0]["facts"]:
            status = fact.get("status", "completed")
            key = (fact["node"], fact["step"], fact.get("ns", ""), rounded(fact["at"]), status)
            of_fact.setdefault(key, []).append(fact)
        oldest, older = min(at for *_, at, _ in of_fact) / 100 - 1, 0
        known: dict[tuple[str, int, str, int, str], list[Record]] = {}
        for record in records:
            if record.started >= oldest:
                older = 0
                place = (record.node, record.step, record.namespace)
                key = (*place, rounded(record.started), record.status)
                if key in of_fact:
                    known.setdefault(key, []).append(record)
                continue
            older += 1
            if older == _OLDER:
                break
        for key, found in known.items():
            of_key = of_fact[key]
            if len(found) != len(of_key):
                continue  # the siblings cannot be distinguished
            if len(found) > 1:
                found.sort(key=lambda record: task_order(record.path))
            for fact, record in zip(of_key, found, strict=True):
                fact["id"] = record.id

    def __reduce__(self) -> tuple[Any, ...]:
        return Past, (self.value, self.before, self._keep)

    @property
    def value(self) -> Value:
        value, tail, at, steps = self._state
        if at:
            value = tail.folded(value, at, steps, self._keep)
            self._state = value, tail, 0, 0
        return value

    def after(self, writes: Sequence[RunFact]) -> Past:
        """The past of the next superstep, after `writes` are committed."""
        value, tail, at, steps = self._state
        if value and (more := len(writes)) <= _LONGEST_TAIL:
            if not at or at + more > _LONGEST_TAIL or len(tail.facts) != at:
                value, tail, at, steps = self.value, _Tail(), 0, 0
            if tail.add(value, steps + 1, writes):
                return Past(value, self.before, self._keep, tail, at + more, steps + 1, self._columns)
        return Past(fold(self.value, writes, self._keep), self.before, self._keep, columns=self._columns)

    def inside(self, before: Past | None) -> Past:
        """This past as a subgraph sees it that was called by a node with the past `before`."""
        value, tail, at, steps = self._state
        return Past(value, before, self._keep, tail, at, steps)

    def facts(self) -> Iterator[RunFact]:
        """The available facts, oldest first; at most N of each graph."""
        if self.before is not None:
            yield from self.before.facts()
        value = self.value
        yield from bounded(value.get("facts", ()), (fact for _, fact, _ in value.get("last", EMPTY).values()))

    def newest(self, *, of_run: bool = False) -> Iterator[RunFact]:
        """As `facts`, or as `this_run`, newest first, without folding."""
        value, tail, at, _ = self._state
        count = value.get("seq", 0) + at - value.get("run_from", 0) if of_run else self._keep
        newest = chain(reversed(tail.facts[:at]), reversed(value.get("facts", ())))
        yield from islice(newest, min(count, self._keep))
        if self.before is not None:
            yield from self.before.newest(of_run=of_run)

    def total(self, kind: str, key: str) -> int:
        """The count of `key` in "nodes", "instructions" or "denied"; exact, in constant time."""
        value, tail, at, _ = self._state
        own: int = value.get(kind, EMPTY).get(key, 0)
        if at:
            if kind == "instructions":
                own += tail.instructions[:at].count(key)
            elif kind == "nodes":
                own += tail.nodes[:at].count(key)
        return own if self.before is None else own + self.before.total(kind, key)

    @property
    def seq(self) -> int:
        """The number of node runs that were ever committed."""
        value, _, at, _ = self._state
        own: int = value.get("seq", 0) + at
        return own if self.before is None else own + self.before.seq

    @property
    def end(self) -> tuple[str, int]:
        """The id of the last fact of this graph, "" if there is none, and the number of all its facts."""
        value, tail, at, _ = self._state
        facts = tail.facts if at else value.get("facts", ())
        return (facts[at - 1]["id"] if facts else "", value.get("seq", 0) + at)

    def positions(self, graph: Described | None) -> dict[str, Position]:
        """The places of those facts of the outermost graph that are available, by their ids."""
        value = self.value
        facts: Sequence[RunFact] = value.get("facts", ())
        first: int = value.get("seq", 0) - len(facts)
        found: dict[str, Position] = {}
        place, last = (Position(after="", past=0, graph=graph) if not first else None), None
        for number, fact in enumerate(facts, first):
            if fact.get("ns"):
                continue  # it stands before the fact of the node run that it was within
            if last is not None and last["step"] != fact["step"]:
                place = Position(after=last["id"], past=number, graph=graph)
            if place is not None:
                found[fact["id"]] = place
            last = fact
        return found

    @property
    def steps(self) -> int:
        """The number of supersteps that those node runs took. A subgraph's supersteps count within the
        superstep that ran it.
        """
        value, _, _, steps = self._state
        own: int = value.get("steps", 0) + steps
        return own if self.before is None else own + self.before.steps

    @property
    def run_from(self) -> int:
        """The number of node runs that had been committed when this run began."""
        if self.before is not None:
            return self.before.run_from
        number: int = self._state[0].get("run_from", 0)
        return number

    def tally(self, policy: str, key: str) -> Tally:
        """The sum that was counted under `key`. In constant time."""
        amount, at, in_run, run, _, *again = self._tally(policy, key)
        if in_run and run != self._state[0].get("run", 0):
            in_run = 0
        if self.before is None:
            return Tally(amount, at, in_run)
        if again:
            return Tally(amount, self.before.seq + at, in_run)
        outer, outer_at, outer_in_run = self.before.tally(policy, key)
        return Tally(outer + amount, self.before.seq + at if at else outer_at, outer_in_run + in_run)

    def may_forget(self, policy: str) -> bool:
        """True if the policy has counted under as many keys as are kept, so that others may have been dropped."""
        return len(self._state[0].get("tallies", EMPTY).get(policy, EMPTY)) >= KEEP_TALLIES

    def tally_keys(self, policy: str) -> set[str]:
        """The keys under which the policy has counted something."""
        value, tail, at, _ = self._state
        keys = {*value.get("tallies", EMPTY).get(policy, EMPTY)}
        if at and policy in tail.tallies:
            grown = list(tail.tallies[policy])
            if len(tail.facts) != at:  # looked at after the copy: it may grow meanwhile
                seq = value["seq"] + at
                grown = [key for key in grown if tail.tally(policy, key, seq) is not None]
            keys.update(grown)
        return keys if self.before is None else keys | self.before.tally_keys(policy)

    def own_tally(self, policy: str, key: str) -> float:
        """The amount that was counted in this graph, without the graphs around it."""
        amount: float = self._tally(policy, key)[0]
        return amount

    def tallied_in(self, policy: str, key: str) -> int | None:
        """The superstep, counted from 1 as `steps` counts them, in which that tally last changed."""
        step: int = self._tally(policy, key)[4]
        if self.before is None:
            return step or None
        return self.before.steps + step if step else self.before.tallied_in(policy, key)

    def _tally(self, policy: str, key: str) -> _Amounts:
        value, tail, at, _ = self._state
        if at and (found := tail.tally(policy, key, value["seq"] + at)) is not None:
            return found
        known: _Amounts = value.get("tallies", EMPTY).get(policy, EMPTY).get(key, NO_TALLY_YET)
        return known

    def redirects(self, router: str) -> int:
        """The number of times that this router redirected, or had a human asked, in this run of the graph."""
        count: int = self._state[0].get("redirects", EMPTY).get(router, 0)
        return count

    def last(self, *, instruction: str | None = None, node: str | None = None) -> RunFact | None:
        """The newest fact with that instruction and node, even if it is no longer among the available facts."""
        value, tail, at, _ = self._state
        newer: set[str] = set()
        for fact in reversed(tail.facts[:at]):
            if fact["node"] not in newer:
                if node in (None, fact["node"]) and instruction in (None, fact.get("in")):
                    return fact
                newer.add(fact["node"])
        latest: Mapping[str, tuple[int, RunFact, int]] = value.get("last", EMPTY)
        found = [
            (number, fact)
            for name, (number, fact, _) in latest.items()
            if name not in newer
            and (node is None or name == node)
            and (instruction is None or fact.get("in") == instruction)
        ]
        if found:
            return max(found, key=lambda numbered: numbered[0])[1]
        if self.before is not None:
            return self.before.last(instruction=instruction, node=node)
        return None

    def first_at(self, instruction: str) -> int | None:
        """The number of the first completed run with that instruction, counted from 1 over all committed node
        runs.
        """
        if self.before is not None and (found := self.before.first_at(instruction)) is not None:
            return found
        value, tail, at, _ = self._state
        number: int | None = value.get("first", EMPTY).get(instruction)
        if number is None and instruction in (grown := tail.instructions[:at]):
            number = value["seq"] + grown.index(instruction) + 1
        return number if number is None or self.before is None else self.before.seq + number

    def last_at(self, instruction: str) -> int | None:
        """As `first_at`, for the last completed run with that instruction."""
        value, tail, at, _ = self._state
        known = value.get("latest", EMPTY).get(instruction)
        if number := self._number_of_last(value, tail.instructions[:at], instruction, known):
            return number
        return None if self.before is None else self.before.last_at(instruction)

    def done_at(self, node: str) -> int | None:
        """As `last_at`, for the last completed run of that node."""
        value, tail, at, _ = self._state
        known = value.get("last", EMPTY).get(node, _NEVER)[2]
        if number := self._number_of_last(value, tail.nodes[:at], node, known):
            return number
        return None if self.before is None else self.before.done_at(node)

    def _number_of_last(self, value: Value, grown: list[str], name: str, known: int | None) -> int | None:
        """The number of the last run of that name over all committed ones: in `grown`, the names of the runs after
        the value, else `known`, the number in it.
        """
        if name in grown:
            known = value["seq"] + len(grown) - grown[::-1].index(name)
        return known and known + (0 if self.before is None else self.before.seq)

    def this_run(self) -> list[RunFact]:
        """The available facts of the graph's current run, parent graphs included."""
        return list(self.newest(of_run=True))[::-1]


_NEVER = (0, None, 0)


NO_PAST = Past({})
