"""Checks of rules against nodes: does each rule apply to nodes, and does each node have an instruction?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from langgraph.constants import END

from arbiter._conditions import Condition, ConditionError
from arbiter._contracts import Contract
from arbiter._values.spelling import misspelt
from arbiter._values.states import Unreadable
from arbiter._weaving.coverage import misspelt_tools, own_names, wrong_exceptions
from arbiter._weaving.govern import (
    SAVE_QUESTIONS,
    Graph,
    has_saver,
    levels,
    missing_evaluators,
    unsaved,
)
from arbiter._weaving.graph import Rules
from arbiter.checkers import ConditionChecker, FlowChecker
from arbiter.checkers._steps import Step
from arbiter.errors import nearest
from arbiter.evaluation import NodeEvaluator
from arbiter.instructions import Instruction, known_instructions
from arbiter.linting._findings import Finding, Severity
from arbiter.linting._rules import Demands, about, severity_of
from arbiter.linting._topology import Level, Node
from arbiter.policy import PolicyRouter

if TYPE_CHECKING:
    from arbiter._constitution.bindings import BindingPack

_NAMES = ("node", "instruction")
"""The variables of a condition that the linter knows."""


def nodes_without_instruction(graph: Level, *, strict: bool) -> Iterator[Finding]:
    severity: Severity = "error" if strict else "warning"
    for _, node in graph.all_nodes():
        # A subgraph's own nodes have the instructions; an error handler has the name that LangGraph made.
        if node.instruction is None and node.inner is None and not node.handles_errors:
            yield Finding(
                code="no-instruction",
                severity=severity,
                message=f"node {node.full!r} has no instruction: rules for instructions do not see it",
                nodes=(node.full,),
                remedy=f"Say what it is: govern(graph, instructions={{{node.full!r}: ...}}), or label its function "
                "with @arbiter_os.instruction(...).",
            )


def rules_that_never_fire(graph: Level, contracts: Sequence[Contract], demands: Demands) -> Iterator[Finding]:
    nodes = [node for _, node in graph.all_nodes()]
    for contract in contracts:
        yield from _without_nodes(contract, nodes)
        yield from _without_results(contract, contracts, nodes)
        yield from _without_labels(contract, nodes)
        yield from _without_truth(contract, nodes)
    for demand in demands.after:
        yield from _steps_missing(demand.rule, (demand.step,), nodes)
    for required in demands.before:
        yield from _steps_missing(required.rule, required.since, nodes)
    for forbidden in demands.sequences:
        for instruction in forbidden.steps:
            if all(node.instruction is not instruction for node in nodes):
                yield _dead(
                    forbidden.rule,
                    f"it forbids a sequence with {instruction}, which no node of this graph is",
                    f"Give a node the instruction {instruction}, or drop the rule.",
                )
                break
        else:
            last = forbidden.steps[-1]
            targets = [node for node in nodes if node.is_target_of(forbidden.rule)]
            if targets and all(node.instruction is not last for node in targets):
                yield _untargeted(forbidden.rule, f"it denies {last}")


def _without_nodes(contract: Contract, nodes: Sequence[Node]) -> Iterator[Finding]:
    names = [node.name for node in nodes]
    missing = [name for name in contract.target_nodes or () if name not in names]
    for name in missing:
        meant = misspelt(name, names)  # `govern` refuses it, also of a rule that only records
        refused = meant is not None and meant not in (contract.target_nodes or ())
        correct = own_names(name) or "Correct the name in target_nodes."
        yield about(
            contract,
            "unknown-node",
            "error" if refused else severity_of(contract, "error"),
            f"is for node {name!r}, which is not a node of this graph.{nearest(name, names)}",
            f"{correct} Nodes: {', '.join(sorted(set(names)))}.",
        )
    if missing or any(node.is_target_of(contract) for node in nodes):
        return
    if contract.when_idle is not None:
        yield _dead(contract, *contract.when_idle)
        return
    wanted = " or ".join(map(str, contract.target_instructions or ()))
    where = f" among {', '.join(contract.target_nodes)}" if contract.target_nodes else ""
    yield _dead(
        contract,
        f"it is for {wanted or 'no node at all'}, which no node{where} of this graph is",
        _held(nodes),
    )


def _without_results(
    reader: Contract, contracts: Sequence[Contract], nodes: Sequence[Node]
) -> Iterator[Finding]:
    """A router, or an evaluator of others' scores, whose evaluators judge none of its nodes."""
    needs = reader.needs if isinstance(reader, PolicyRouter | NodeEvaluator) else ()
    read = [c for c in contracts if c.kind == "evaluator" and c.name in needs]
    own = [node for node in nodes if node.is_target_of(reader)]
    if not own or not needs or len(read) < len(needs):
        return
    if not any(node.is_target_of(evaluator) for node in own for evaluator in read):
        names = ", ".join(repr(evaluator.name) for evaluator in read)
        where = ", ".join(node.full for node in own)
        yield _dead(reader, f"it reads {names}, which never judges {where}", "Give both the same targets.")


def _without_labels(rule: Contract, nodes: Sequence[Node]) -> Iterator[Finding]:
    """A label that no node of the graph assigns, and labels that no node may not read."""
    if not isinstance(rule, FlowChecker):
        return
    for label, instructions in rule.written_by.items():
        if all(node.instruction not in instructions for node in nodes):
            wanted = " or ".join(sorted(map(str, instructions)))
            why = f"it is written by {wanted}, which no node of this graph is"
            yield _dead(rule, why, _held(nodes), part=f" for its label {label!r}")
    for label in rule.idle_labels:
        why = "no instruction is forbidden to read it"
        yield _dead(rule, why, "Name some under forbid, or drop the label.", part=f" for its label {label!r}")
    if not (readers := [node for node in nodes if node.instruction in rule.forbidden]):
        if rule.forbidden:
            yield _dead(rule, f"it {_keeps_from(rule)}, which no node of this graph is", _held(nodes))
    elif not any(Contract.applies_to(rule, node.name, node.instruction) for node in readers):
        yield _untargeted(rule, f"it {_keeps_from(rule)}")


def _without_truth(rule: Contract, nodes: Sequence[Node]) -> Iterator[Finding]:
    """A condition that is false at each node that the rule is for, whatever the state and the history are.

    A name that it compares and that does not exist is a finding of its own.
    """
    if not isinstance(rule, ConditionChecker) or type(rule).check_before is not ConditionChecker.check_before:
        return
    conditions = [each for each in vars(rule).values() if isinstance(each, Condition)]
    own = [node for node in nodes if node.is_target_of(rule)]
    known = {*(node.name for node in nodes), *(each.value for each in known_instructions())}
    compared = {text for each in conditions for of in _NAMES for text in each.compared(of)}
    if own and compared <= known and not any(_may_hold(each, node) for each in conditions for node in own):
        where = f" at {', '.join(node.full for node in own)}" if compared else ""
        yield _dead(
            rule,
            f"its condition is false{where}, whatever the state is",
            "Correct the condition or the targets, or drop the rule.",
        )


def _may_hold(condition: Condition, node: Node) -> bool:
    values = dict.fromkeys(condition.variables, Unreadable())
    try:
        return condition.evaluate({**values, "node": node.name, "instruction": node.instruction})
    except ConditionError:  # the answer depends on a value that only a run has
        return True


def _keeps_from(rule: FlowChecker) -> str:
    return f"keeps data from {' or '.join(sorted(map(str, rule.forbidden)))}"


def _untargeted(rule: Contract, denies: str) -> Finding:
    return _dead(
        rule, f"{denies}, which none of its targets is", "Widen the rule's targets, or drop the rule."
    )


def _held(nodes: Sequence[Node]) -> str:
    held: dict[Instruction, None] = {node.instruction: None for node in nodes if node.instruction is not None}
    there = (
        f"The nodes of this graph are {', '.join(map(str, held))}." if held else "No node has an instruction."
    )
    return f"{there} Give a node that instruction, or drop the rule."


def _steps_missing(rule: Contract, steps: Sequence[Step], nodes: Sequence[Node]) -> Iterator[Finding]:
    """A rule that waits for one of these steps, none of which any node is."""
    if not steps or any(node.does(step) for node in nodes for step in steps):
        return
    names = [step.node for step in steps if step.node is not None]
    hint = nearest(names[0], [node.name for node in nodes]) if names else ""
    yield _dead(
        rule,
        f"it waits for {' or '.join(map(str, steps))}, which no node of this graph is.{hint}",
        "Correct the step, or drop the rule.",
    )


def _dead(rule: Contract, why: str, remedy: str, *, part: str = "") -> Finding:
    # A rule of a general pack is not wrong because this graph has no use for it.
    severity: Severity = "info" if rule.source.startswith("arbiter:") else "warning"
    return about(rule, "dead-rule", severity, f"can never fire{part}: {why}", remedy)


def evaluators_that_do_not_exist(
    graph: Level, contracts: Sequence[Contract], modes: Mapping[str, str]
) -> Iterator[Finding]:
    """Evaluators that a rule reads and that are not there, so that `govern` refuses the rule, unless it advises."""
    nodes = [node for _, node in graph.all_nodes()]
    for rule in contracts:
        own = tuple(node.full for node in nodes if node.is_target_of(rule))
        for name, mistake, remedy in missing_evaluators(rule, modes) if own else ():
            # One that is neither off nor misspelt may be registered by code, next to the rules of files.
            wrong = rule.kind != "advisor" and (name in modes or misspelt(name, modes) is not None)
            severity: Severity = "error" if wrong else "warning"
            yield about(rule, "unknown-evaluator", severity, mistake, remedy, nodes=own)


def bindings_without_effect(graph: Level, packs: Sequence[BindingPack]) -> Iterator[Finding]:
    """Bindings of instructions, in packs that are for every graph, that fit no node, or only nodes that an earlier
    one binds."""
    if not packs:  # without packs there is no YAML
        return
    from arbiter._constitution.bindings import idle_bindings

    names = [node.full for _, node in graph.all_nodes()]
    for pack, name, line, earlier in idle_bindings(packs, names):
        own = names if ":" in name else [each.rpartition(":")[2] for each in names]
        # `govern` refuses a misspelt name; any other may be a node of another graph.
        wrong = not earlier and not {"*", "?"}.intersection(name) and misspelt(name, own) is not None
        yield Finding(
            code="dead-rule" if earlier else "unknown-node",
            severity="error" if wrong else "warning",
            message=f"the binding of {name!r} to an instruction has no effect: {earlier}"
            if earlier
            else f"an instruction is bound to {name!r}, which is not a node of this graph.{nearest(name, own)}",
            source=f"{pack.file}:{line}",
            remedy="The first that fits a node counts. Put it in front, or drop it."
            if earlier
            else f"Correct the name, or drop the binding. Nodes: {', '.join(sorted(names))}.",
        )


def tools_that_do_not_exist(graph: Graph, contracts: Sequence[Contract]) -> Iterator[Finding]:
    """Misspelt tools of rules. Other unknown names may be those of tools that exist only during a run."""
    for rule, message in misspelt_tools(graph, contracts):
        yield Finding(
            code="unknown-tool",
            severity="warning",
            message=message,
            rule=rule.name,
            source=rule.source,
            remedy="Correct the name in allow or deny.",
        )


def errors_that_do_not_exist(contracts: Sequence[Contract]) -> Iterator[Finding]:
    for rule in contracts:
        for name, meant in wrong_exceptions(rule):
            yield about(
                rule,
                "unknown-error",
                "warning",
                f"is for {name!r}, but no exception has that name. Did you mean {meant!r}?",
                "Correct the name in errors, or put the module that defines it in front of it.",
            )


def targets_that_do_not_exist(graph: Level, contracts: Sequence[Contract]) -> Iterator[Finding]:
    for contract in contracts:
        own = [(level, node) for level, node in graph.all_nodes() if node.is_target_of(contract)]
        for target in contract.redirect_targets:
            if not own or target == END or any(target in level.targets for level, _ in own):
                continue
            names = sorted({name for level, _ in own for name in level.nodes})
            hint = nearest(target, [*names, END])
            yield about(
                contract,
                "unknown-target",
                "error",  # `govern` refuses it, also of a rule that only records
                f"redirects to {target!r}, which is not a node of the graph that it applies in.{hint}",
                f"Redirect to one of: {', '.join(names)}.",
                nodes=[node.full for _, node in own],
            )


def questions_without_checkpointer(
    graph: Graph, rules: Rules, contracts: Sequence[Contract]
) -> Iterator[Finding]:
    """Rules that cannot ask a human. LangGraph's server and `arbiter run` bring a checkpointer to a graph that
    has none, but not to a subgraph that refuses one.
    """
    found: dict[int, tuple[Contract, str, bool]] = {}
    for path, level in levels(graph):
        refuses = level.checkpointer is False
        if refuses or not (path or has_saver(level)):
            for rule, node in unsaved(level, rules, contracts, path):
                found.setdefault(id(rule), (rule, node, refuses))
    for rule, node, refuses in found.values():
        yield about(
            rule,
            "no-checkpointer",
            "error" if refuses else "info",
            f"asks a human at node {node!r}, and this graph has no checkpointer to keep the question until it is "
            "answered: the node is denied instead",
            SAVE_QUESTIONS + ("" if refuses else " LangGraph's server and `arbiter run` bring their own."),
            nodes=(node,),
        )
