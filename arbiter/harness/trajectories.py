"""Trajectories: which nodes and tools ran, and how that compares with what a case expects.

A trajectory is a sequence of steps. The node runs of one superstep are one step, because branches have no
order; so are the tool calls of one message. A node of a subgraph is `outer/inner`, and steps of subgraphs count
only if a name of the expectation has a "/".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arbiter._values.kinds import is_list, is_mapping
from arbiter.errors import ConfigurationError, nearest
from arbiter.harness.cases import Order
from arbiter.history._items import History
from arbiter.history._record import Record
from arbiter.instructions import find_instruction


@dataclass(frozen=True, slots=True)
class Visit:
    """One node run: `outer/inner` for a node of a subgraph, its instruction, how it ended, and the tools that it
    called. `policy` is the checker that denied it, or asked a human.
    """

    node: str
    instruction: str | None = None
    status: str = "completed"
    tools: tuple[str, ...] = ()
    redirected_to: str | None = None
    policy: str | None = None


Trajectory = tuple[tuple[Visit, ...], ...]
Visits = Sequence[Sequence[Mapping[str, Any]]]
"""A trajectory as JSON-able data: the fields of each `Visit` that differ from their defaults."""


def visits_of(history: History) -> list[list[dict[str, Any]]]:
    """The trajectory of all runs in a history, as JSON-able data. Attempts of one task count once."""
    entries = history.entries
    # The calls of tools in the graph that a node ran, by the id of that node run.
    inside: dict[str, list[Any]] = {}
    for superstep in entries:
        for item in superstep:
            if item.record.owner:
                for _, calls in _calling(item.record.output):
                    inside.setdefault(item.record.owner, []).extend(calls)
    return [[_visit_of(item.record, inside.get(item.record.id, ())) for item in step] for step in entries]


def _visit_of(record: Record, inside: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"node": _path_of(record) if record.namespace else record.node}
    if record.instruction is not None:
        found["instruction"] = record.instruction.qualified
    if record.status != "completed":
        found["status"] = record.status
    if record.output and (tools := _tools(record, inside)):
        found["tools"] = tools
    if record.redirected_to is not None:
        found["redirected_to"] = record.redirected_to
    decision = None if record.account is None else record.account.decision
    if decision is not None and decision.policy is not None:
        found["policy"] = decision.policy
    return found


def _path_of(record: Record) -> str:
    outer = [level.partition(":")[0] for level in record.namespace.split("|") if level]
    return "/".join([*outer, record.node])


def _tools(record: Record, inside: Sequence[Any]) -> list[str]:
    """The names of the tools that the messages of an output call. Messages that the node was given, or that the nodes
    `inside` it returned, and that it returns with its own, are no calls of it."""
    calling = [*_calling(record.output)]
    given = {id: calls for id, calls in _calling(record.input) if id is not None} if calling else {}
    return [
        str(call["name"])
        for id, calls in calling
        if id is None or given.get(id) != calls
        for call in calls
        if is_mapping(call) and "name" in call and call not in inside
    ]


def _calling(state: Mapping[str, Any]) -> Iterator[tuple[str | None, list[Any]]]:
    """The id and the calls of each message in a state that calls tools."""
    for value in state.values():
        parts: list[Any] = value if is_list(value) else [value]
        for part in parts:
            calls: object = getattr(part, "tool_calls", None)
            if is_list(calls) and calls:
                yield getattr(part, "id", None), calls


def trajectory_of(visits: Visits) -> Trajectory:
    """The trajectory from its JSON-able form."""
    return tuple(
        tuple(replace(Visit(**visit), tools=tuple(visit.get("tools", ()))) for visit in step)
        for step in visits
    )


_Steps = list[list[tuple[str, str | None]]]
"""Each step with the names in it, and their instructions."""


def node_steps(trajectory: Trajectory, expected: Sequence[Any]) -> _Steps:
    """The steps to compare with an expectation about nodes. Of a subgraph, the nodes inside count if one of them is
    named, and then the node itself only if it is named too."""
    named = set(names_in(expected))
    opened = {name[:at] for name in named for at, mark in enumerate(name) if mark == "/"}
    return [
        found
        for step in trajectory
        if (
            found := [
                (v.node, v.instruction)
                for v in step
                if v.node.rpartition("/")[0] in {"", *opened}
                and v.node not in opened - named
                and v.status != "denied"
            ]
        )
    ]


def tool_steps(trajectory: Trajectory) -> _Steps:
    """The calls of tools, message by message."""
    return [[(tool, None) for tool in visit.tools] for step in trajectory for visit in step if visit.tools]


def mismatch(how: str, expected: Sequence[Any], steps: _Steps) -> str | None:
    """Why the steps do not compare with the expectation as `how` says; None if they do."""
    wanted = [_alternatives(element) for element in expected]
    if how == "strict":
        return _strict(wanted, steps)
    flat = [name for step in steps for name in step]
    singles = [one for element in wanted for one in element]
    if how == "unordered":
        return _matching(singles, flat)
    if how == "subset":
        return _subset(singles, flat)
    return _superset(wanted, steps)


def _alternatives(element: Any) -> list[Any]:
    """The names of one step: several for `{all: [...]}`."""
    together: Any = element.get("all") if is_mapping(element) else None
    is_several = isinstance(together, Collection) and not isinstance(together, str | Mapping)
    return [*together] if is_several else [element]


def _fits(wanted: Any, found: tuple[str, str | None]) -> bool:
    if is_mapping(wanted):
        named = str(wanted.get("instruction"))
        return found[1] is not None and find_instruction(named).qualified == found[1]
    return bool(found[0] == wanted)


def _fit(wanted: Sequence[Any], found: Sequence[tuple[str, str | None]]) -> bool:
    """Whether each of `wanted` gets one of `found` for itself (augmenting paths)."""
    names = [one for one in wanted if isinstance(one, str)]
    if Counter(names) - Counter(name for name, _ in found):
        return False
    if len(names) == len(wanted):
        return True
    taken: dict[int, int] = {}

    def place(at: int, seen: set[int]) -> bool:
        fitting = [number for number, each in enumerate(found) if _fits(wanted[at], each)]
        for number in sorted(fitting, key=taken.__contains__):  # those that are free first
            if number not in seen:
                seen.add(number)
                if number not in taken or place(taken[number], seen):
                    taken[number] = at
                    return True
        return False

    return all(place(at, set()) for at in range(len(wanted)))


def _matching(wanted: Sequence[Any], found: Sequence[tuple[str, str | None]]) -> str | None:
    if len(wanted) == len(found) and _fit(wanted, found):
        return None
    return f"expected {_shown(wanted)}, ran {_ran(found)}"


def _strict(wanted: Sequence[Sequence[Any]], steps: _Steps) -> str | None:
    for number in range(max(len(wanted), len(steps))):
        if number >= len(wanted):
            return f"step {number + 1}: expected the end, ran {_ran(steps[number])}"
        if number >= len(steps):
            return f"step {number + 1}: expected {_shown(wanted[number])}, ran nothing"
        if (found := _matching(wanted[number], steps[number])) is not None:
            return f"step {number + 1}: {found}"
    return None


def _subset(wanted: Sequence[Any], found: Sequence[tuple[str, str | None]]) -> str | None:
    """Several runs of one allowed node are allowed, as in a loop."""
    others = [each for each in found if not any(_fits(one, each) for one in wanted)]
    return f"expected nothing beside {_shown(wanted)}, ran {_ran(others)}" if others else None


def _superset(wanted: Sequence[Sequence[Any]], steps: _Steps) -> str | None:
    at = 0
    for step in steps:
        first = at
        # Branches of one superstep have no order, so one step may have what several elements name.
        while at < len(wanted) and _fit([one for each in wanted[first : at + 1] for one in each], step):
            at += 1
    if at == len(wanted):
        return None
    after = f" after {_shown(wanted[at - 1])}" if at else ""
    return f"expected {_shown(wanted[at])}{after}, ran {_ran([each for step in steps for each in step])}"


def _shown(wanted: Sequence[Any]) -> str:
    names = [str(one.get("instruction", one) if is_mapping(one) else one) for one in wanted]
    return ", ".join(names) or "nothing"


def _ran(found: Sequence[tuple[str, str | None]]) -> str:
    counts = Counter(name for name, _ in found)
    return (
        ", ".join(name if count == 1 else f"{name} × {count}" for name, count in counts.items()) or "nothing"
    )


def chosen(given: Sequence[Any] | Order) -> tuple[str, Sequence[Any]]:
    """The comparison and the list of an expectation. A list alone is `strict`."""
    if isinstance(given, Order):
        found = given.chosen
        if found is None:
            raise ConfigurationError("expected exactly one of strict, unordered, subset and superset.")
        if found == ("superset", []):
            raise ConfigurationError("expected a name in superset, got none: any run would pass.")
        return found
    return "strict", given


def names_in(expected: Sequence[Any]) -> Iterator[str]:
    """The names of nodes or tools in an expectation."""
    for element in expected:
        for one in _alternatives(element):
            if isinstance(one, str):
                yield one


def problem_in(expected: Sequence[Any], nodes: Iterable[str] | None = None) -> str | None:
    """The mistake in a list of nodes: a node that does not exist, an unknown instruction, a wrong mapping."""
    known = None if nodes is None else set(nodes)
    for element in expected:
        for one in _alternatives(element):
            if is_mapping(one) and set(one) == {"instruction"}:
                find_instruction(str(one["instruction"]))
            elif not isinstance(one, str):
                return f"expected a name, {{instruction: ...}} or {{all: [...]}}, got {one!r:.80}"
            elif known is not None and one not in known:
                return f"{one!r} is not a node of the graph. Nodes: {', '.join(sorted(known))}.{nearest(one, known)}"
    return None
