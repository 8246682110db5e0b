"""Facts: what is committed about node runs, as plain JSON-able data in the graph's own checkpoint.

A *fact* is a small dict about one node run. The *ledger value* is what the hidden channel of a governed
graph holds: exact totals, and the last N facts. `fold` is the channel's reducer. Nothing in here reads a
clock, a state or LangGraph; the same writes always give the same value.

    fact    {"id", "node", "step", "at", "took"} and, where they differ from the usual:
            "in" (qualified instruction), "ns" (graph namespace), "status", "attempt", "checks" {name: kind},
            "why" {name: reason}, "routes" {router: target}, "to" (redirected to), "by" (which router),
            "evals" {name: [score, passed, feedback]}
    value   {"seq", "run", "run_from", "nodes", "instructions", "denied", "redirects",
            "first" {instruction: number}, "last" {node: fact}, "facts"}
    writes  a fact; `RUN` when an input arrives; `NESTED_RUN` when a parent node calls a subgraph;
            {"inner": value, ...fact} when a node that ran a subgraph is done

See docs/design/history.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Fact = dict[str, Any]
Value = dict[str, Any]

RUN: Fact = {"start": "run"}
NESTED_RUN: Fact = {"start": "nested"}
KEEP = 256
_EMPTY: Mapping[str, Any] = {}


def fold(value: Value, writes: Iterable[Fact], keep: int = KEEP) -> Value:
    """The ledger value after `writes`, in their order. `value` is left as it is."""
    new = _thaw(value)
    for write in writes:
        if "start" in write:
            new = _start(new, nested=write["start"] == "nested")
            continue
        if inner := write.get("inner"):
            _absorb(new, inner)
            write = {key: part for key, part in write.items() if key != "inner"}
        if write:
            _add(new, write)
    del new["facts"][: -keep or None]
    return new


def _thaw(value: Value) -> Value:
    return {
        "seq": value.get("seq", 0),
        "run": value.get("run", 0),
        "run_from": value.get("run_from", 0),
        "nodes": dict(value.get("nodes", _EMPTY)),
        "instructions": dict(value.get("instructions", _EMPTY)),
        "denied": dict(value.get("denied", _EMPTY)),
        "redirects": dict(value.get("redirects", _EMPTY)),
        "first": dict(value.get("first", _EMPTY)),
        "last": dict(value.get("last", _EMPTY)),
        "facts": list(value.get("facts", ())),
    }


def _start(value: Value, *, nested: bool) -> Value:
    """A new run. A subgraph starts afresh: what it did earlier is already part of its parent's past."""
    if nested:
        return _thaw({"run": value["run"] + 1})
    return {**value, "run": value["run"] + 1, "run_from": value["seq"], "redirects": {}}


def _add(value: Value, fact: Fact) -> None:
    value["seq"] += 1
    _count(value["nodes"], fact["node"])
    if instruction := fact.get("in"):
        _count(value["instructions"], instruction)
        value["first"].setdefault(instruction, value["seq"])
    for checker, kind in fact.get("checks", _EMPTY).items():
        if kind == "deny":
            _count(value["denied"], checker)
    if router := fact.get("by"):
        _count(value["redirects"], router)
    value["last"][fact["node"]] = {**fact, "n": value["seq"]}
    value["facts"].append(fact)


def _absorb(value: Value, inner: Value) -> None:
    """What a subgraph did becomes part of the past of the graph that called it."""
    for totals in ("nodes", "instructions", "denied"):
        for key, amount in inner.get(totals, _EMPTY).items():
            value[totals][key] = value[totals].get(key, 0) + amount
    for node, fact in inner.get("last", _EMPTY).items():
        value["last"][node] = {**fact, "n": value["seq"] + fact["n"]}
    for instruction, number in inner.get("first", _EMPTY).items():
        value["first"].setdefault(instruction, value["seq"] + number)
    value["seq"] += inner.get("seq", 0)
    value["facts"].extend(inner.get("facts", ()))


def _count(totals: dict[str, int], key: str) -> None:
    totals[key] = totals.get(key, 0) + 1


class Past:
    """The committed past of one node run: the ledger value of its graph, after those of the parent graphs."""

    __slots__ = ("before", "value")

    def __init__(self, value: Value, before: Past | None = None) -> None:
        self.value = value
        self.before = before

    def facts(self) -> Iterator[Fact]:
        """The facts at hand, oldest first; at most N of each graph."""
        if self.before is not None:
            yield from self.before.facts()
        yield from self.value.get("facts", ())

    def total(self, kind: str, key: str) -> int:
        """How often `key` was counted in "nodes", "instructions", "denied"; exact, in constant time."""
        own: int = self.value.get(kind, _EMPTY).get(key, 0)
        return own + self.before.total(kind, key) if self.before is not None else own

    @property
    def seq(self) -> int:
        """How many node runs were ever committed."""
        own: int = self.value.get("seq", 0)
        return own + self.before.seq if self.before is not None else own

    def redirects(self, router: str) -> int:
        """How often this router has redirected in this run of the graph."""
        count: int = self.value.get("redirects", _EMPTY).get(router, 0)
        return count

    def last(self, *, instruction: str | None = None, node: str | None = None) -> Fact | None:
        """The newest fact of that instruction and node, also when the facts at hand no longer hold it."""
        latest: Mapping[str, Fact] = self.value.get("last", _EMPTY)
        found = [
            fact
            for name, fact in latest.items()
            if (node is None or name == node) and (instruction is None or fact.get("in") == instruction)
        ]
        if found:
            return max(found, key=lambda fact: fact["n"])
        if self.before is not None:
            return self.before.last(instruction=instruction, node=node)
        return None

    def first_at(self, instruction: str) -> int | None:
        """The number, counted from 1 over all that was ever committed, of the first run of that instruction."""
        if self.before is not None and (found := self.before.first_at(instruction)) is not None:
            return found
        number: int | None = self.value.get("first", _EMPTY).get(instruction)
        return number if number is None or self.before is None else self.before.seq + number

    def last_at(self, instruction: str) -> int | None:
        """As `first_at`, of the last run of that instruction."""
        latest: Mapping[str, Fact] = self.value.get("last", _EMPTY)
        numbers = [fact["n"] for fact in latest.values() if fact.get("in") == instruction]
        if not numbers:
            return None if self.before is None else self.before.last_at(instruction)
        return max(numbers) + (0 if self.before is None else self.before.seq)

    def this_run(self) -> list[Fact]:
        """The facts at hand of the graph's current run, parent graphs included."""
        own: Sequence[Fact] = self.value.get("facts", ())
        count = self.value.get("seq", 0) - self.value.get("run_from", 0)
        own = own[-count:] if count else ()
        return [*(self.before.this_run() if self.before is not None else ()), *own]


NO_PAST = Past({})
