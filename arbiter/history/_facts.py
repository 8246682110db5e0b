"""Facts: plain JSON-able data about node runs, stored in the graph's own checkpoint.

A *fact* is a small dict about one node run. The *value* of the facts channel is the content of the hidden
channel of a governed graph: exact totals, and the last N facts. `fold` is the channel's reducer. This module
reads neither clock nor state nor LangGraph; the same writes always give the same value.

    fact    {"id", "node", "step", "at", "took"} and, where they differ from the usual:
            "in" (qualified instruction), "ns" (graph namespace), "status", "attempt", "checks" {name: kind},
            "why" {name: reason}, "routes" {router: target}, "to" (redirected to), "by" (the router that
            redirected or had a human asked), "denied_by" (the checker whose denial redirected),
            "notes" {contract: remark},
            "evals" {name: [score, passed, feedback, version, outcome]} (the last two where they are known and
            unusual), "tallies" {policy: {key: amount, or None to begin again}},
            "sent" (digest of an input that came with a `Send`) and "task" (the id, of an attempt that was sent
            elsewhere), where attempts are compared
    value   {"seq", "steps" (supersteps), "run", "run_id" (uuid), "run_from", "nodes", "instructions", "denied",
            "redirects", "first" and "latest" {instruction: number, of completed ones},
            "last" {node: [number, fact, number of the last completed one or 0]}, "facts",
            "tallies" {policy: {key: [amount, number, amount in this run, number of this run, superstep]}},
            with a sixth entry, True, for a tally that began again in a subgraph,
            "call" (the superstep around, and the number of this graph in the body; "" outside of a task)}
    writes  a fact; `RUN` when an input arrives, with a uuid if there are listeners; `NESTED_RUN` when a parent
            node calls a subgraph, with the call;
            {"inner": value, ...fact} when a node that ran a subgraph is done

See docs/design/history.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from arbiter.history._packing import RunFact as RunFact
from arbiter.history._packing import Value as Value

RUN: RunFact = {"start": "run"}
NESTED_RUN: RunFact = {"start": "nested"}
MOVED: RunFact = {"start": "moved"}
"""Another call goes on with a subgraph. It stands before the facts, never in a checkpoint."""
KEEP = 256
KEEP_TALLIES = 256
"""The number of keys that are kept for each policy: those that changed last."""
_MOST_TALLIES = 4 * KEEP_TALLIES
EMPTY: Mapping[str, Any] = {}


def fold(value: Value, writes: Sequence[RunFact], keep: int = KEEP) -> Value:
    """The value of the facts channel after `writes`, in their order. `value` itself does not change."""
    new = _Fold(value, max((w["inner"].get("steps", 0) for w in writes if w.get("inner")), default=0))
    for write in writes:
        if "start" in write:
            kind, call = write["start"], write.get("call", "")
            if kind == "moved":
                new.move(call)
            else:
                new.start(nested=kind == "nested", run_id=write.get("id"), call=call)
            continue
        if inner := write.get("inner"):
            new.absorb(inner)
            write = {key: part for key, part in write.items() if key != "inner"}
        if write:
            new.add(write, inner)
    return new.value(keep)


def without_tallies(fact: RunFact, policies: Container[str]) -> RunFact:
    """The fact as if these policies had counted nothing, also inside of its node."""

    def rest(part: Any) -> Any:
        if "tallies" not in part:
            return part
        return {
            **part,
            "tallies": {name: each for name, each in part["tallies"].items() if name not in policies},
        }

    return {**rest(fact), "inner": rest(fact["inner"])} if fact.get("inner") else rest(fact)


def _tallied(
    before: Mapping[str, list[Any]], run: int, changes: Iterable[tuple[str, float, int, int]]
) -> dict[str, list[Any]]:
    """A policy's tallies after changes, all of them of this run: (key, amount, number of the fact, superstep)."""
    kept = {**before}
    for key, amount, number, step in changes:
        total, _, in_run, of_run, known, *again = kept.pop(key, NO_TALLY_YET)
        in_run = (in_run if of_run == run else 0) + amount
        # Taken out and put back at the end: the keys are in the order in which they changed. A subgraph's
        # early counts may be added after a sibling's late ones.
        kept[key] = [total + amount, number, in_run, run, known if known > step else step, *again]
    if (spare := len(kept) - KEEP_TALLIES) > 0:
        # A negative amount was subtracted from a count of an outer graph. Dropping it would bring that count
        # back. So it stays; there cannot be more of these than the outer graph counted.
        for key in list(islice((key for key, tally in kept.items() if tally[0] >= 0), spare)):
            del kept[key]
        while len(kept) > _MOST_TALLIES:
            del kept[next(iter(kept))]
    return kept


NO_TALLY_YET: tuple[Any, ...] = (0, 0, 0, -1, 0)
_BEGAN_AGAIN = 6
"""The number of entries of a tally that has begun again in the graph that it is counted in."""


class _Fold:
    """A value of the facts channel under construction. Each part is copied once, before its first change.

    `inside` is the number of supersteps of the longest subgraph whose value is absorbed. The superstep counts
    that many: its subgraphs ran side by side, and each of its nodes is done when the superstep is.
    """

    __slots__ = ("_again", "_before", "_begin", "_denying", "_end", "_facts", "_new", "_own")

    def __init__(self, value: Value, inside: int = 0) -> None:
        self._begin: int = value.get("steps", 0)
        self._end = self._begin + max(inside, 1)
        self._new: Value = {**value} if value else {"seq": 0, "run": 0, "run_from": 0, "facts": []}
        self._before: Mapping[str, Mapping[str, list[Any]]] = value.get("tallies", EMPTY)
        self._own: set[str] = set()
        self._again: set[tuple[str, str]] = set()
        """The tallies that have begun again in this superstep."""
        self._denying: set[str] = set()
        """The checkers whose denials have redirected in this superstep."""
        self._facts: list[RunFact] = list(self._new["facts"])

    def value(self, keep: int) -> Value:
        del self._facts[: -keep or None]
        self._new["facts"] = self._facts
        return self._new

    def _part(self, name: str) -> dict[str, Any]:
        if name not in self._own:
            self._own.add(name)
            self._new[name] = {**self._new.get(name, EMPTY)}
        part: dict[str, Any] = self._new[name]
        return part

    def start(self, *, nested: bool, run_id: str | None = None, call: str = "") -> None:
        """Begin a run. Its uuid is None if there is no listener. A subgraph starts afresh: its earlier work is already
        part of its parent's past.
        """
        run = self._new["run"] + 1
        if nested:
            inside = self._end - self._begin
            self.__init__(  # type: ignore[misc]
                {"seq": 0, "run": run, "run_from": 0, "facts": [], "call": call}, inside
            )
            return
        self._new["run"] = run
        self._new["call"] = ""
        self._new.pop("run_id", None)
        if run_id is not None:
            self._new["run_id"] = run_id
        self._new["run_from"] = self._new["seq"]
        self._new["redirects"] = {}
        self._own.add("redirects")

    def move(self, call: str) -> None:
        self._new["call"] = call

    def add(self, fact: RunFact, inner: Value | None = None) -> None:
        """Add the fact of a node run. `inner` is the final value of a subgraph in its body, which is absorbed
        already.
        """
        number = self._new["seq"] = self._new["seq"] + 1
        self._new["steps"] = self._end
        node = fact["node"]
        nodes = self._part("nodes")
        nodes[node] = nodes.get(node, 0) + 1
        if (instruction := fact.get("in")) is not None:
            instructions = self._part("instructions")
            instructions[instruction] = instructions.get(instruction, 0) + 1
            if "status" not in fact:  # denied and failed runs are not completed
                self._part("first").setdefault(instruction, number)
                self._part("latest")[instruction] = number
        if "status" in fact or "why" in fact:
            for checker, kind in fact.get("checks", EMPTY).items():
                if kind == "deny":
                    denied = self._part("denied")
                    denied[checker] = denied.get(checker, 0) + 1
        if (router := fact.get("by")) is not None:
            self._redirect(router)
        # Siblings whose denials lead to one node do so at once: they are one turn of a loop.
        if (checker := fact.get("denied_by")) is not None and checker not in self._denying:
            self._denying.add(checker)
            self._redirect(checker)
        for policy, amounts in fact.get("tallies", EMPTY).items():
            if amounts:
                inside: Mapping[str, Any] = (inner or EMPTY).get("tallies", EMPTY).get(policy, EMPTY)
                for key in [key for key, amount in amounts.items() if amount is None]:
                    self._begin_again(policy, key, inside.get(key, NO_TALLY_YET)[0])
                self._tally(
                    policy, ((key, amount or 0, number, self._end) for key, amount in amounts.items())
                )
        last = self._part("last")
        done = last[node][2] if node in last else 0
        last[node] = [number, fact, done if "status" in fact else number]
        self._facts.append(fact)

    def _redirect(self, policy: str) -> None:
        redirects = self._part("redirects")
        redirects[policy] = redirects.get(policy, 0) + 1

    def _tally(self, policy: str, changes: Iterable[tuple[str, float, int, int]]) -> None:
        """Add to a policy's tallies: (key, amount, number of the fact, superstep), all of it of this run."""
        tallies = self._part("tallies")
        tallies[policy] = _tallied(tallies.get(policy, EMPTY), self._new["run"], changes)

    def _begin_again(self, policy: str, key: str, inside: float = 0) -> None:
        """Subtract the amount from before this superstep, which all its node runs have seen, and `inside`,
        the node run's own.

        The counts of its siblings stay.
        """
        tallies = self._part("tallies")
        kept = tallies[policy] = {**tallies.get(policy, EMPTY)}
        total, number, in_run, of_run, step, *_ = kept.get(key, NO_TALLY_YET)
        if (policy, key) not in self._again:
            self._again.add((policy, key))
            before = self._before.get(policy, EMPTY).get(key, NO_TALLY_YET)
            total -= before[0]
            in_run -= before[2] if before[3] == of_run else 0
        kept[key] = [total - inside, number, in_run - inside, of_run, step, True]

    def absorb(self, inner: Value) -> None:
        """Make a subgraph's node runs part of the past of the graph that called it."""
        before = self._new["seq"]
        for name in ("nodes", "instructions", "denied"):
            totals = self._part(name)
            for key, amount in inner.get(name, EMPTY).items():
                totals[key] = totals.get(key, 0) + amount
        first, last = self._part("first"), self._part("last")
        for instruction, number in inner.get("first", EMPTY).items():
            first.setdefault(instruction, before + number)
        latest = self._part("latest")
        for instruction, number in inner.get("latest", EMPTY).items():
            latest[instruction] = before + number
        for node, (number, fact, done) in inner.get("last", EMPTY).items():
            outer = last[node][2] if node in last else 0
            last[node] = [before + number, fact, before + done if done else outer]
        for policy, tallies in inner.get("tallies", EMPTY).items():
            for key in [key for key, tally in tallies.items() if len(tally) == _BEGAN_AGAIN]:
                self._begin_again(policy, key)
            # A subgraph starts afresh each time it is called, so all its counts belong to this run.
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
