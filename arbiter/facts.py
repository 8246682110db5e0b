"""Facts: what is committed about node runs, as plain JSON-able data in the graph's own checkpoint.

A *fact* is a small dict about one node run. The *ledger value* is what the hidden channel of a governed
graph holds: exact totals, and the last N facts. `fold` is the channel's reducer. Nothing in here reads a
clock, a state or LangGraph; the same writes always give the same value.

    fact    {"id", "node", "step", "at", "took"} and, where they differ from the usual:
            "in" (qualified instruction), "ns" (graph namespace), "status", "attempt", "checks" {name: kind},
            "why" {name: reason}, "routes" {router: target}, "to" (redirected to), "by" (the router that
            redirected or had a human asked), "notes" {contract: remark},
            "evals" {name: [score, passed, feedback]}, "tallies" {policy: {key: amount, or None to begin again}},
            "sent" (digest of an input that came with a `Send`) and "task" (the id, of an attempt that was sent
            elsewhere), where attempts are compared
    value   {"seq", "steps" (supersteps), "run", "run_from", "nodes", "instructions", "denied", "redirects",
            "first" and "latest" {instruction: number, of completed ones},
            "last" {node: [number, fact, number of the last completed one or 0]}, "facts",
            "tallies" {policy: {key: [amount, number, amount in this run, number of this run, superstep]}},
            with a sixth entry, True, for a tally that began again in a subgraph}
    writes  a fact; `RUN` when an input arrives; `NESTED_RUN` when a parent node calls a subgraph;
            {"inner": value, ...fact} when a node that ran a subgraph is done

See docs/design/history.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from arbiter.stored import Fact as Fact
from arbiter.stored import Rows, bounded, is_packed_id, restore, rounded, store
from arbiter.stored import Value as Value

RUN: Fact = {"start": "run"}
NESTED_RUN: Fact = {"start": "nested"}
KEEP = 256
KEEP_TALLIES = 256
"""How many keys of one policy are kept: those that changed last."""
_MOST_TALLIES = 4 * KEEP_TALLIES
_EMPTY: Mapping[str, Any] = {}


def fold(value: Value, writes: Sequence[Fact], keep: int = KEEP) -> Value:
    """The ledger value after `writes`, in their order. `value` is left as it is."""
    new = _Fold(value, max((w["inner"].get("steps", 0) for w in writes if w.get("inner")), default=0))
    for write in writes:
        if "start" in write:
            new.start(nested=write["start"] == "nested")
            continue
        if inner := write.get("inner"):
            new.absorb(inner)
            write = {key: part for key, part in write.items() if key != "inner"}
        if write:
            new.add(write, inner)
    return new.value(keep)


def _tallied(
    before: Mapping[str, list[Any]], run: int, changes: Iterable[tuple[str, float, int, int]]
) -> dict[str, list[Any]]:
    """A policy's tallies after changes, all of them of this run: (key, amount, number of the fact, superstep)."""
    kept = {**before}
    for key, amount, number, step in changes:
        total, _, in_run, of_run, known, *again = kept.pop(key, _NO_TALLY_YET)
        in_run = (in_run if of_run == run else 0) + amount
        # Taken out and put back at the end: the order of the keys is that in which they changed. What a
        # subgraph did early in this superstep may be added after what a sibling of it did at its end.
        kept[key] = [total + amount, number, in_run, run, known if known > step else step, *again]
    if (spare := len(kept) - KEEP_TALLIES) > 0:
        # What is below zero was taken from what a graph around this one has counted: forgotten, it would be
        # there again. So it stays, and there is no more of it than was counted there.
        for key in list(islice((key for key, tally in kept.items() if tally[0] >= 0), spare)):
            del kept[key]
        while len(kept) > _MOST_TALLIES:
            del kept[next(iter(kept))]
    return kept


_NO_TALLY_YET: tuple[Any, ...] = (0, 0, 0, -1, 0)
_BEGAN_AGAIN = 6
"""The number of entries of a tally that has begun again in the graph that it is counted in."""


class _Fold:
    """A ledger value that is being made: what changes is copied first, and once.

    `inside` is how many supersteps the longest of the subgraphs took whose values are absorbed. A superstep is as
    long as that: its subgraphs ran side by side, and each of its nodes is done when the superstep is.
    """

    __slots__ = ("_again", "_before", "_begin", "_end", "_facts", "_new", "_own")

    def __init__(self, value: Value, inside: int = 0) -> None:
        self._begin: int = value.get("steps", 0)
        self._end = self._begin + max(inside, 1)
        self._new: Value = {**value} if value else {"seq": 0, "run": 0, "run_from": 0, "facts": []}
        self._before: Mapping[str, Mapping[str, list[Any]]] = value.get("tallies", _EMPTY)
        self._own: set[str] = set()
        self._again: set[tuple[str, str]] = set()
        """The tallies that have begun again in this superstep."""
        self._facts: list[Fact] = list(self._new["facts"])

    def value(self, keep: int) -> Value:
        del self._facts[: -keep or None]
        self._new["facts"] = self._facts
        return self._new

    def _part(self, name: str) -> dict[str, Any]:
        if name not in self._own:
            self._own.add(name)
            self._new[name] = {**self._new.get(name, _EMPTY)}
        part: dict[str, Any] = self._new[name]
        return part

    def start(self, *, nested: bool) -> None:
        """A new run. A subgraph starts afresh: what it did earlier is already part of its parent's past."""
        run = self._new["run"] + 1
        if nested:
            inside = self._end - self._begin
            self.__init__({"seq": 0, "run": run, "run_from": 0, "facts": []}, inside)  # type: ignore[misc]
            return
        self._new["run"] = run
        self._new["run_from"] = self._new["seq"]
        self._new["redirects"] = {}
        self._own.add("redirects")

    def add(self, fact: Fact, inner: Value | None = None) -> None:
        """The fact of a node run; `inner` is what a subgraph in its body has come to, which is absorbed already."""
        number = self._new["seq"] = self._new["seq"] + 1
        self._new["steps"] = self._end
        node = fact["node"]
        nodes = self._part("nodes")
        nodes[node] = nodes.get(node, 0) + 1
        if (instruction := fact.get("in")) is not None:
            instructions = self._part("instructions")
            instructions[instruction] = instructions.get(instruction, 0) + 1
            if "status" not in fact:  # what was denied or failed was not done
                self._part("first").setdefault(instruction, number)
                self._part("latest")[instruction] = number
        if "status" in fact or "why" in fact:
            for checker, kind in fact.get("checks", _EMPTY).items():
                if kind == "deny":
                    denied = self._part("denied")
                    denied[checker] = denied.get(checker, 0) + 1
        if (router := fact.get("by")) is not None:
            redirects = self._part("redirects")
            redirects[router] = redirects.get(router, 0) + 1
        for policy, amounts in fact.get("tallies", _EMPTY).items():
            if amounts:
                inside: Mapping[str, Any] = (inner or _EMPTY).get("tallies", _EMPTY).get(policy, _EMPTY)
                for key in [key for key, amount in amounts.items() if amount is None]:
                    self._begin_again(policy, key, inside.get(key, _NO_TALLY_YET)[0])
                self._tally(
                    policy, ((key, amount or 0, number, self._end) for key, amount in amounts.items())
                )
        last = self._part("last")
        done = last[node][2] if node in last else 0
        last[node] = [number, fact, done if "status" in fact else number]
        self._facts.append(fact)

    def _tally(self, policy: str, changes: Iterable[tuple[str, float, int, int]]) -> None:
        """Add to a policy's tallies: (key, amount, number of the fact, superstep), all of it of this run."""
        tallies = self._part("tallies")
        tallies[policy] = _tallied(tallies.get(policy, _EMPTY), self._new["run"], changes)

    def _begin_again(self, policy: str, key: str, inside: float = 0) -> None:
        """Take away what was counted before this superstep, which all of its node runs have seen, and `inside` the
        node run itself. What its siblings count stays."""
        tallies = self._part("tallies")
        kept = tallies[policy] = {**tallies.get(policy, _EMPTY)}
        total, number, in_run, of_run, step, *_ = kept.get(key, _NO_TALLY_YET)
        if (policy, key) not in self._again:
            self._again.add((policy, key))
            before = self._before.get(policy, _EMPTY).get(key, _NO_TALLY_YET)
            total -= before[0]
            in_run -= before[2] if before[3] == of_run else 0
        kept[key] = [total - inside, number, in_run - inside, of_run, step, True]

    def absorb(self, inner: Value) -> None:
        """What a subgraph did becomes part of the past of the graph that called it."""
        before = self._new["seq"]
        for name in ("nodes", "instructions", "denied"):
            totals = self._part(name)
            for key, amount in inner.get(name, _EMPTY).items():
                totals[key] = totals.get(key, 0) + amount
        first, last = self._part("first"), self._part("last")
        for instruction, number in inner.get("first", _EMPTY).items():
            first.setdefault(instruction, before + number)
        latest = self._part("latest")
        for instruction, number in inner.get("latest", _EMPTY).items():
            latest[instruction] = before + number
        for node, (number, fact, done) in inner.get("last", _EMPTY).items():
            outer = last[node][2] if node in last else 0
            last[node] = [before + number, fact, before + done if done else outer]
        for policy, tallies in inner.get("tallies", _EMPTY).items():
            for key in [key for key, tally in tallies.items() if len(tally) == _BEGAN_AGAIN]:
                self._begin_again(policy, key)
            # A subgraph starts afresh each time it is called, so all of what it counted is of this run.
            self._tally(
                policy,
                (
                    (key, amount, before + number, self._begin + step)
                    for key, (amount, number, _, _, step, *_) in tallies.items()
                ),
            )
        self._new["seq"] = before + inner["seq"]
        self._new["steps"] = self._end
        self._facts.extend(inner["facts"])


class Tally(NamedTuple):
    """A sum over node runs. `at` is the number, counted from 1 over all committed node runs, of the last run that
    added to it; 0 if none did."""

    amount: float
    at: int
    in_run: float
    """How much of `amount` was added in the current run of the graph."""


NO_TALLY = Tally(0, 0, 0)
_MOST_GROWN = 32
_UNUSUAL = frozenset({"by", "status", "inner", "why", "start"})
"""What the fact of a node run that was done, and went on, as nearly all do, does not have."""
_Amounts = Sequence[Any]
"""A tally as the ledger value has it."""


class _Growth:
    """Usual facts that were committed after a value. Pasts that follow one another share it: it is only ever added to,
    at its end, and each of them looks at as much of it as was there for it."""

    __slots__ = ("facts", "instructions", "nodes", "tallies")

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.nodes: list[str] = []
        self.instructions: list[str] = []
        """Of each fact; "" if it has none."""
        self.tallies: dict[str, dict[str, list[_Amounts]]] = {}
        """What became of each tally, oldest first."""

    def add(self, value: Value, step: int, facts: Sequence[Fact]) -> bool:
        """Add the facts of one superstep, the last of so many; whether that was possible. If not, it has to be folded:
        one is not usual, or some keys of its tallies may have to go."""
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
                    return False  # it takes what the superstep before had, whoever is first in this one
                changes = grown.get(key)
                if changes is None:
                    known: Mapping[str, Any] = value.get("tallies", _EMPTY).get(policy, _EMPTY)
                    if len(known) + len(grown) >= KEEP_TALLIES:
                        return False
                    total, _, in_run, of_run, _, *again = known.get(key, _NO_TALLY_YET)
                    in_run = in_run if of_run == run else 0
                    grown[key] = [(total + amount, seq, in_run + amount, run, step, *again)]
                else:
                    total, _, in_run, _, _, *again = changes[-1]
                    changes.append((total + amount, seq, in_run + amount, run, step, *again))
        return True

    def tally(self, policy: str, key: str, seq: int) -> _Amounts | None:
        """A tally as it was after so many node runs, if it had changed by then."""
        if policy in self.tallies:
            for found in reversed(self.tallies[policy].get(key, ())):
                if found[1] <= seq:
                    return found
        return None

    def folded(self, value: Value, at: int, steps: int, keep: int) -> Value:
        """What `_Fold` makes of the value and the first so many facts, of so many supersteps."""
        number = seq = value["seq"]
        added = self.facts[:at]
        nodes: dict[str, int] = {**value.get("nodes", _EMPTY)}
        last: dict[str, Any] = {**value.get("last", _EMPTY)}
        facts: list[Fact] = [*value["facts"], *added]
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
            counts: dict[str, int] = {**value.get("instructions", _EMPTY)}
            first: dict[str, int] = {**value.get("first", _EMPTY)}
            latest: dict[str, int] = {**value.get("latest", _EMPTY)}
            for instruction, number in numbered:
                counts[instruction] = counts.get(instruction, 0) + 1
                first.setdefault(instruction, number)
                latest[instruction] = number
            new |= {"instructions": counts, "first": first, "latest": latest}
        return new

    def _fold_tallies(self, new: Value, added: Sequence[Fact]) -> None:
        changed: dict[str, dict[str, Any]] = {}
        for fact in added:
            for policy, amounts in fact.get("tallies", _EMPTY).items():
                if amounts:
                    keys = changed.setdefault(policy, {})
                    for key in amounts:
                        keys.pop(key, None)  # the order of the keys is that in which they changed last
                        keys[key] = None
        if not changed:
            return
        new["tallies"] = tallies = {**new.get("tallies", _EMPTY)}
        for policy, keys in changed.items():
            tallies[policy] = kept = {**tallies.get(policy, _EMPTY)}
            for key in keys:
                kept.pop(key, None)
                kept[key] = list(self.tally(policy, key, new["seq"]) or _NO_TALLY_YET)


_NO_ROWS = Rows()
_NO_GROWTH = _Growth()
"""Nothing is ever added to this one."""


class Past:
    """The committed past of one node run: the ledger value of its graph, after those of the parent graphs.

    Usual facts are folded into the value when somebody reads it, or when they are many; most pasts are never read as a
    whole. What is asked for most often is told without folding.
    """

    __slots__ = ("_keep", "_rows", "_state", "before")

    def __init__(
        self,
        value: Value,
        before: Past | None = None,
        keep: int = KEEP,
        growth: _Growth = _NO_GROWTH,
        at: int = 0,
        steps: int = 0,
        rows: Rows = _NO_ROWS,
    ) -> None:
        self._state = (value, growth, at, steps)
        """A value, what came after it, and how many facts and supersteps of that are part of this past. One attribute,
        since threads share it."""
        self._keep = keep
        self._rows = rows
        """What the checkpoint before this past stored."""
        self.before = before

    @classmethod
    def restored(cls, stored: Value, keep: int) -> Past:
        """The past that a checkpoint has stored."""
        value, rows = restore(stored)
        return cls(value, keep=keep, rows=rows)

    def stored(self) -> Value:
        """The value as a checkpoint stores it."""
        stored, self._rows = store(self.value, self._rows, self._keep)
        return stored

    @property
    def is_packed(self) -> bool:
        """Whether the ids of some facts were not stored."""
        facts: Sequence[Fact] = self._state[0].get("facts", ())
        return any(is_packed_id(fact["id"]) for fact in facts)

    def identify(self, runs: Iterable[tuple[str, int, str, float, str]]) -> None:
        """Give facts whose ids were not stored those of the node runs that they are about.

        `runs` are (namespace, step, node, start, id) of the node runs that this process knows, siblings in the order of
        their tasks.
        """
        known: dict[tuple[str, int, str, int], list[str]] = {}
        for namespace, step, node, at, name in runs:
            known.setdefault((namespace, step, node, rounded(at)), []).append(name)
        of_fact: dict[tuple[str, int, str, int], list[Fact]] = {}
        for fact in self._state[0]["facts"]:
            key = (fact.get("ns", ""), fact["step"], fact["node"], rounded(fact["at"]))
            if key in known:
                of_fact.setdefault(key, []).append(fact)
        for key, found in of_fact.items():
            if len(found) == len(known[key]):  # else it is not known which of the siblings are meant
                for fact, name in zip(found, known[key], strict=True):
                    fact["id"] = name

    def __reduce__(self) -> tuple[Any, ...]:
        return Past, (self.value, self.before, self._keep)

    @property
    def value(self) -> Value:
        value, growth, at, steps = self._state
        if at:
            value = growth.folded(value, at, steps, self._keep)
            self._state = value, growth, 0, 0
        return value

    def after(self, writes: Sequence[Fact]) -> Past:
        """The past of the next superstep, when `writes` are committed."""
        value, growth, at, steps = self._state
        if value and (more := len(writes)) <= _MOST_GROWN:
            if not at or at + more > _MOST_GROWN or len(growth.facts) != at:
                value, growth, at, steps = self.value, _Growth(), 0, 0
            if growth.add(value, steps + 1, writes):
                return Past(value, self.before, self._keep, growth, at + more, steps + 1, self._rows)
        return Past(fold(self.value, writes, self._keep), self.before, self._keep, rows=self._rows)

    def inside(self, before: Past | None) -> Past:
        """The same, of a subgraph that a node with the past `before` has called."""
        value, growth, at, steps = self._state
        return Past(value, before, self._keep, growth, at, steps)

    def facts(self) -> Iterator[Fact]:
        """The facts at hand, oldest first; at most N of each graph."""
        if self.before is not None:
            yield from self.before.facts()
        value = self.value
        yield from bounded(
            value.get("facts", ()), (fact for _, fact, _ in value.get("last", _EMPTY).values())
        )

    def latest(self) -> Iterator[Fact]:
        """As `facts`, newest first, without folding."""
        value, growth, at, _ = self._state
        yield from islice(chain(reversed(growth.facts[:at]), reversed(value.get("facts", ()))), self._keep)
        if self.before is not None:
            yield from self.before.latest()

    def total(self, kind: str, key: str) -> int:
        """How often `key` was counted in "nodes", "instructions", "denied"; exact, in constant time."""
        value, growth, at, _ = self._state
        own: int = value.get(kind, _EMPTY).get(key, 0)
        if at:
            if kind == "instructions":
                own += growth.instructions[:at].count(key)
            elif kind == "nodes":
                own += growth.nodes[:at].count(key)
        return own if self.before is None else own + self.before.total(kind, key)

    @property
    def seq(self) -> int:
        """How many node runs were ever committed."""
        value, _, at, _ = self._state
        own: int = value.get("seq", 0) + at
        return own if self.before is None else own + self.before.seq

    @property
    def steps(self) -> int:
        """How many supersteps those took. What a subgraph did counts, side by side with its superstep."""
        value, _, _, steps = self._state
        own: int = value.get("steps", 0) + steps
        return own if self.before is None else own + self.before.steps

    @property
    def run_from(self) -> int:
        """How many node runs had been committed when this run began."""
        if self.before is not None:
            return self.before.run_from
        number: int = self._state[0].get("run_from", 0)
        return number

    def tally(self, policy: str, key: str) -> Tally:
        """What was counted under `key`. In constant time."""
        amount, at, in_run, run, _, *again = self._tally(policy, key)
        if in_run and run != self._state[0].get("run", 0):
            in_run = 0
        if self.before is None:
            return Tally(amount, at, in_run)
        if again:
            return Tally(amount, self.before.seq + at, in_run)
        outer, outer_at, outer_in_run = self.before.tally(policy, key)
        return Tally(outer + amount, self.before.seq + at if at else outer_at, outer_in_run + in_run)

    def tally_keys(self, policy: str) -> set[str]:
        """The keys under which something is counted."""
        value, growth, at, _ = self._state
        keys = {*value.get("tallies", _EMPTY).get(policy, _EMPTY)}
        if at and policy in growth.tallies:
            grown = list(growth.tallies[policy])
            if len(growth.facts) != at:  # looked at after the copy: it may grow meanwhile
                seq = value["seq"] + at
                grown = [key for key in grown if growth.tally(policy, key, seq) is not None]
            keys.update(grown)
        return keys if self.before is None else keys | self.before.tally_keys(policy)

    def own_tally(self, policy: str, key: str) -> float:
        """The amount without what the graphs around this one have counted."""
        amount: float = self._tally(policy, key)[0]
        return amount

    def tallied_in(self, policy: str, key: str) -> int | None:
        """The superstep, counted from 1 as `steps` counts them, in which that tally last changed."""
        step: int = self._tally(policy, key)[4]
        if self.before is None:
            return step or None
        return self.before.steps + step if step else self.before.tallied_in(policy, key)

    def _tally(self, policy: str, key: str) -> _Amounts:
        value, growth, at, _ = self._state
        if at and (found := growth.tally(policy, key, value["seq"] + at)) is not None:
            return found
        known: _Amounts = value.get("tallies", _EMPTY).get(policy, _EMPTY).get(key, _NO_TALLY_YET)
        return known

    def redirects(self, router: str) -> int:
        """How often this router has redirected, or had a human asked, in this run of the graph."""
        count: int = self._state[0].get("redirects", _EMPTY).get(router, 0)
        return count

    def last(self, *, instruction: str | None = None, node: str | None = None) -> Fact | None:
        """The newest fact of that instruction and node, also when the facts at hand no longer hold it."""
        value, growth, at, _ = self._state
        newer: set[str] = set()
        for fact in reversed(growth.facts[:at]):
            if fact["node"] not in newer:
                if node in (None, fact["node"]) and instruction in (None, fact.get("in")):
                    return fact
                newer.add(fact["node"])
        latest: Mapping[str, tuple[int, Fact, int]] = value.get("last", _EMPTY)
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
        """The number, counted from 1 over all that was ever committed, of the first
        completed run of that instruction."""
        if self.before is not None and (found := self.before.first_at(instruction)) is not None:
            return found
        value, growth, at, _ = self._state
        number: int | None = value.get("first", _EMPTY).get(instruction)
        if number is None and instruction in (grown := growth.instructions[:at]):
            number = value["seq"] + grown.index(instruction) + 1
        return number if number is None or self.before is None else self.before.seq + number

    def last_at(self, instruction: str) -> int | None:
        """As `first_at`, of the last completed run of that instruction."""
        value, growth, at, _ = self._state
        if instruction in (grown := growth.instructions[:at]):
            number: int | None = value["seq"] + _last_of(grown, instruction)
        else:
            number = value.get("latest", _EMPTY).get(instruction)
        if number is None:
            return None if self.before is None else self.before.last_at(instruction)
        return number + (0 if self.before is None else self.before.seq)

    def done_at(self, node: str) -> int | None:
        """As `last_at`, of the last completed run of that node."""
        value, growth, at, _ = self._state
        if node in (grown := growth.nodes[:at]):
            number: int = value["seq"] + _last_of(grown, node)
        else:
            number = value.get("last", _EMPTY).get(node, _NEVER)[2]
        if not number:
            return None if self.before is None else self.before.done_at(node)
        return number + (0 if self.before is None else self.before.seq)

    def this_run(self) -> list[Fact]:
        """The facts at hand of the graph's current run, parent graphs included."""
        return list(self.newest())[::-1]

    def newest(self) -> Iterator[Fact]:
        """As `this_run`, newest first."""
        value, growth, at, _ = self._state
        count = min(value.get("seq", 0) + at - value.get("run_from", 0), self._keep)
        yield from islice(chain(reversed(growth.facts[:at]), reversed(value.get("facts", ()))), count)
        if self.before is not None:
            yield from self.before.newest()


def _last_of(names: list[str], name: str) -> int:
    """The place of the last of them, counted from 1."""
    return len(names) - names[::-1].index(name)


_NEVER = (0, None, 0)
NO_PAST = Past({})
