"""Checks of conditions and of the names in rules against the graph: do the fields exist, and the nodes that a
condition counts? Can a condition be true or false at all?
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from arbiter._conditions import Condition
from arbiter._conditions.answers import never_boolean
from arbiter._contracts import Contract
from arbiter._values.spelling import misspelt
from arbiter._values.states import ROOT
from arbiter.checkers import RequireBefore, ToolsChecker
from arbiter.errors import closest, nearest
from arbiter.instructions import known_instructions
from arbiter.linting._findings import Finding, Severity
from arbiter.linting._rules import about, severity_of
from arbiter.linting._topology import Level, Node

_INPUT = ("input", "state")
"""The variables that have a node's input."""


def conditions_without_answer(contracts: Sequence[Contract]) -> Iterator[Finding]:
    """Conditions that can be neither true nor false, so that each evaluation fails."""
    for rule in contracts:
        given: list[Any] = [
            *vars(rule).values(),
            *(rule.conditions if isinstance(rule, ToolsChecker) else ()),
        ]
        for condition in given:
            if isinstance(condition, Condition) and (what := never_boolean(condition.expression)):
                yield about(
                    rule,
                    "no-boolean",
                    severity_of(rule, "error"),
                    f"has the condition {_short(condition)!r}, which gives {what}, never true or false: it fails each "
                    "time",
                    "Compare it with something, as in input.amount > 1000.",
                )


def _short(condition: Condition) -> str:
    text = condition.expression
    return text if len(text) <= 100 else text[:97] + "..."


def names_that_do_not_exist(
    graph: Level, contracts: Sequence[Contract], known: Collection[str]
) -> Iterator[Finding]:
    """Fields and nodes that rules name, and the graph does not have; instructions, and rules that are not `known`.

    A node's output and the payload of a `Send` may have keys that the state lacks. So a field of an output
    is reported only if it is nearly the name of a field, and a field of a payload is a warning.
    """
    found = list(graph.all_nodes())
    for rule in contracts:
        targets = [(level, node) for level, node in found if node.is_target_of(rule)]
        for condition, applied in _conditions(rule, found, targets):
            for variable, *path in sorted(condition.fields, key=str):
                if variable in _INPUT and path:
                    what, optional = f"reads {variable}.{path[0]}", "has(" in condition.expression
                    yield from _input_field(rule, what, str(path[0]), applied, optional=optional)
                elif variable == "output" and path:
                    yield from _key(rule, f"reads output.{path[0]}", str(path[0]), applied)
            yield from _unknown_nodes(rule, condition, [node.name for _, node in found])
            yield from _unknown_instructions(rule, condition)
            yield from _unknown_rules(rule, condition, known)
        for field in rule.bound_to if isinstance(rule, RequireBefore) else ():
            yield from _input_field(rule, f"is bound to {field!r}", field, targets)
        for what, key in _keys(rule):
            yield from _key(rule, what, key, targets)


_Placed = Sequence[tuple[Level, Node]]


def _conditions(rule: Contract, nodes: _Placed, targets: _Placed) -> Iterator[tuple[Condition, _Placed]]:
    """The conditions on states, each with the nodes for which it is evaluated."""
    for name, value in vars(rule).items():
        if isinstance(value, Condition):
            if isinstance(rule, RequireBefore) and name == "passed_when":
                yield value, [(at, node) for at, node in nodes if node.does(rule.required)]
            else:
                yield value, targets


def _keys(rule: Contract) -> Iterator[tuple[str, str]]:
    """The keys of an output that a built-in rule names, each with its use in words."""
    if not type(rule).__module__.startswith("arbiter."):
        return
    if isinstance(key := getattr(rule, "key", None), str):
        yield f"reads the key {key!r}", key
    for key in getattr(rule, "labelled_keys", ()):
        yield f"labels {key!r}", key


def _input_field(
    rule: Contract, what: str, field: str, nodes: _Placed, *, optional: bool = False
) -> Iterator[Finding]:
    lacking = [
        (level, node)
        for level, node in nodes
        # What a branch sends may have no fields, as the tool calls of `create_agent`.
        if node.reads is not None and field not in node.reads and not (field == ROOT and level.sends)
    ]
    if not lacking:
        return
    fields = sorted({name for _, node in lacking for name in node.reads or ()})
    if optional and closest(field, fields) is None:
        return
    surely = len(lacking) == len(nodes) and not optional and not any(level.sends for level, _ in lacking)
    names = [node.full for _, node in lacking]
    yield _unknown_field(
        rule,
        f"{what}, which is not a field of the input of {_nodes(names)}.{nearest(field, fields)}",
        names,
        fields,
        "error" if surely else "warning",
    )


def _key(rule: Contract, what: str, key: str, nodes: _Placed) -> Iterator[Finding]:
    known = [node.writes for _, node in nodes]
    if None in known or any(key in (fields or ()) for fields in known):
        return
    fields = sorted({name for fields in known for name in fields or ()})
    if meant := misspelt(key, fields):
        names = [node.full for _, node in nodes]
        told = f"{what}, which is not a field of the state of {_nodes(names)}. Did you mean {meant!r}?"
        yield _unknown_field(rule, told, names, fields, "warning")


def _unknown_field(
    rule: Contract, told: str, nodes: Sequence[str], fields: Sequence[str], severity: Severity
) -> Finding:
    remedy = f"Correct the name, or add the field to the state. Fields: {', '.join(fields) or 'none'}."
    return about(rule, "unknown-field", severity_of(rule, severity), told, remedy, nodes=nodes)


def _nodes(names: Sequence[str]) -> str:
    nodes = "nodes" if names[1:] else "node"
    return f"{nodes} {', '.join(map(repr, names[:3]))}" + (f" and {len(names) - 3} more" if names[3:] else "")


def _unknown_nodes(rule: Contract, condition: Condition, names: Sequence[str]) -> Iterator[Finding]:
    for name in condition.nodes:
        if name not in names:
            counted = ("history", "nodes", name) in condition.fields
            what, where = (
                ("counts the runs of node", f"history.nodes.{name}")
                if counted
                else ("compares the node with", repr(name))
            )
            yield about(
                rule,
                "unknown-node",
                severity_of(rule, "error" if counted else "warning"),
                f"{what} {name!r}, which is not a node of this graph.{nearest(name, names)}",
                f"Correct {where}. Nodes: {', '.join(sorted(set(names)))}.",
            )


def _unknown_instructions(rule: Contract, condition: Condition) -> Iterator[Finding]:
    names = [instruction.value for instruction in known_instructions()]
    for name in condition.compared("instruction"):
        if name not in names:
            hint = nearest(name.rpartition(".")[2], names)
            yield about(
                rule,
                "unknown-instruction",
                "warning",
                f"compares the instruction with {name!r}, which is none.{hint}",
                'Write the name of an instruction without that of its core, as in "TOOL_CALL".',
            )


def _unknown_rules(rule: Contract, condition: Condition, known: Collection[str]) -> Iterator[Finding]:
    """Misspelt names of rules whose denials are counted. Any other name may be that of a rule that code registers."""
    counted = {str(field[2]) for field in condition.fields if field[:2] == ("history", "denied")}
    for name in sorted(counted.difference(known)):
        if meant := misspelt(name, known):
            said = f"counts the denials of {name!r}, which is not a rule. Did you mean {meant!r}?"
            yield about(rule, "unknown-rule", "warning", said, f"Correct history.denied.{name}.")
