"""Checks of rules about the order of steps, on all possible runs of the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arbiter._contracts import Contract
from arbiter.checkers._steps import Step
from arbiter.instructions import Instruction
from arbiter.linting._findings import Finding, Severity
from arbiter.linting._rules import Demand, Demands, Forbidden, Window, severity_of
from arbiter.linting._runs import Explorer, Runs
from arbiter.linting._topology import Level, Node, shortest_path

_UNDECLARED = (
    " The path takes an edge that is not declared: "
    "only the code of the node decides whether a run ever takes it."
)


def unverified_paths(graph: Level, demands: Demands, contradictory: set[str]) -> Iterator[Finding]:
    """Paths to a target of `require_before` or `within_steps` on which the required step was not done."""
    for demand in demands.before:
        if demand.rule.name in contradictory or _heals(graph, demand):
            continue
        declared, all_runs = _runs(graph, demand, guesses=False), _runs(graph, demand, guesses=True)
        nodes = [node for _, node in graph.all_nodes()]
        nowhere = not any(node.does(demand.step) for node in nodes)
        for full, paths in all_runs.reached.items():
            if (path := paths.get(False)) is None:
                continue
            sure = declared.reached.get(full, {}).get(False)
            yield _unverified(demand, full, sure or path, sure=sure is not None, nowhere=nowhere)
        if not all_runs.complete:
            yield _gave_up(demand.rule)


def _runs(graph: Level, demand: Demand, *, guesses: bool) -> Runs:
    return Explorer(
        steps=[demand.step],
        watches=lambda node: node.is_target_of(demand.rule),
        resets=demand.each_use,
        clears=(lambda node: any(node.does(step) for step in demand.since)) if demand.since else None,
        stays=demand.stays,
        guesses=guesses,
    ).play(graph, mark=bool(demand.since))


def _heals(graph: Level, demand: Demand) -> bool:
    """True if a denial sends the run to the missing step. Such a path is intended."""
    to = demand.rule.redirect_targets
    return any(node.name in to and node.does(demand.step) for _, node in graph.all_nodes())


def _unverified(demand: Demand, full: str, path: tuple[str, ...], *, sure: bool, nowhere: bool) -> Finding:
    rule, step = demand.rule, demand.step
    when = "in between" if demand.since else "before it"
    why = f"{step} did not run {when} on this path" + (", or a router sent it there" if demand.stays else "")
    if nowhere:
        why = f"no node of this graph is {step}"
    again = " since it ran last" if demand.each_use and path.count(full) > 1 else ""
    if demand.since:
        again = f" after {' or '.join(map(str, demand.since))}"
    return Finding(
        code="unverified-path",
        severity=severity_of(rule, "error") if sure else "warning",
        message=f"node {full!r} can be reached without {step}, which {rule.name!r} demands before it{again} "
        f"({why})." + ("" if sure else _UNDECLARED),
        nodes=(full,),
        path=path,
        rule=rule.name,
        source=rule.source,
        remedy=f"Lead every path to {full!r} through {step}"
        + (", declare where the node may go (path_map, or Command[Literal[...]])" if not sure else "")
        + ", or let the denial go there: on_deny='redirect:<node>'.",
    )


def nodes_always_denied(
    graph: Level, demands: Demands, contracts: Sequence[Contract], contradictory: set[str]
) -> Iterator[Finding]:
    """Nodes that a rule denies on every path."""
    for demand in demands.before:
        yield from _never_judged(graph, demand, contracts)
    for ban in demands.after:
        yield from _banned(graph, ban.rule, [ban.step])
    for forbidden in demands.sequences:
        if len(forbidden.steps) > 1 and not forbidden.adjacent and forbidden.rule.name not in contradictory:
            *before, last = forbidden.steps
            yield from _banned(graph, forbidden.rule, [Step(step, None) for step in before], last)
    for window in demands.within:
        yield from _too_late(graph, window)
    for rule in demands.never:
        for _, node in graph.all_nodes():
            if node.is_target_of(rule):
                yield _denied(rule, node.full, "it may run at most 0 times", (), "Allow at least one run")
    for forbidden in demands.sequences:
        if len(forbidden.steps) == 1:
            for _, node in graph.all_nodes():
                if _ends_in(forbidden, node):
                    yield _denied(
                        forbidden.rule,
                        node.full,
                        f"the sequence that it forbids is {forbidden.steps[0]} alone",
                        (),
                        "Add the steps that must not come before it",
                    )


def _never_judged(graph: Level, demand: Demand, contracts: Sequence[Contract]) -> Iterator[Finding]:
    """A demand for a pass of an evaluator that judges none of the nodes that could pass."""
    nodes = [node for _, node in graph.all_nodes()]
    doing = [node for node in nodes if node.does(demand.step)]
    evaluators = [c for c in contracts if c.kind == "evaluator" and c.name == demand.evaluator]
    if not doing or not evaluators or any(node.is_target_of(evaluators[0]) for node in doing):
        return
    for node in nodes:
        if node.is_target_of(demand.rule):
            why = f"a pass of {demand.step} is one of evaluator {demand.evaluator!r}, which never judges {demand.step}"
            yield _denied(demand.rule, node.full, why, (), f"Let {demand.evaluator!r} judge {demand.step}")


def _banned(
    graph: Level, rule: Contract, steps: Sequence[Step], only: Instruction | None = None
) -> Iterator[Finding]:
    """Targets of the rule that have these steps, in their order, before them on every path."""

    def watches(node: Node) -> bool:
        return node.is_target_of(rule) and only in (None, node.instruction)

    runs = Explorer(steps=steps, watches=watches).play(graph)
    if not runs.complete:
        yield _gave_up(rule)
        return
    for full, paths in runs.reached.items():
        if paths.keys() == {len(steps)}:
            done = " and then ".join(map(str, steps))
            why = f"{done} {'has' if len(steps) == 1 else 'have'} run before it on every path"
            remedy = f"Lead a path to {full!r} that comes before {steps[-1]}"
            yield _denied(rule, full, why, paths[len(steps)], remedy)


def _too_late(graph: Level, window: Window) -> Iterator[Finding]:
    for level in graph.levels():
        own = level.nodes.values()
        targets = [node for node in own if node.is_target_of(window.rule)]
        # Steps inside subgraphs count with those around them, so a window across levels is left to the run.
        if any(node.does(window.step) for other, node in graph.all_nodes() if other is not level):
            continue
        if any(node.inner is not None for node in own):
            continue
        for node in targets:
            paths = (
                shortest_path(level.successors, source.name, node.name)
                for source in own
                if source.does(window.step)
            )
            path = min(filter(None, paths), key=len, default=())
            if len(path) - 1 > window.steps:
                why = f"it comes {len(path) - 1} supersteps after {window.step} at the soonest"
                names = tuple(map(level.full, path))
                remedy = f"Allow {len(path) - 1} steps, or do {window.step} nearer to it"
                yield _denied(window.rule, node.full, f"{why}; {window.steps} are allowed", names, remedy)


def _denied(rule: Contract, full: str, why: str, path: Sequence[str], remedy: str) -> Finding:
    return Finding(
        code="always-denied",
        severity=severity_of(rule, "error"),
        message=f"checker {rule.name!r} always denies node {full!r}: {why}",
        nodes=(full,),
        path=tuple(path),
        rule=rule.name,
        source=rule.source,
        remedy=f"{remedy}, or narrow the rule's targets.",
    )


# Forbidden sequences ------------------------------------------------------------------------------


def denied_edges(graph: Level, demands: Demands) -> Iterator[Finding]:
    """Edges that complete a forbidden sequence in consecutive supersteps whenever they are taken."""
    for forbidden in demands.sequences:
        if not forbidden.adjacent or len(forbidden.steps) < 2:
            continue
        for level in graph.levels():
            for path in _sequences(level, forbidden):
                yield _forbidden_edge(level, forbidden, path)


@dataclass(frozen=True, slots=True)
class _Path:
    nodes: tuple[str, ...]
    always: bool


def _sequences(level: Level, forbidden: Forbidden) -> list[_Path]:
    """The paths whose nodes are the forbidden steps in order."""
    paths = [_Path((name,), True) for name, node in level.nodes.items() if _is(node, forbidden.steps[0])]
    for step in forbidden.steps[1:]:
        longer: list[_Path] = []
        for path in paths:
            for name, always in _edges(level, path.nodes[-1]).items():
                if _is(level.nodes[name], step):
                    longer.append(_Path((*path.nodes, name), path.always and always))
        paths = longer
    return [path for path in paths if _ends_in(forbidden, level.nodes[path.nodes[-1]])]


def _edges(level: Level, name: str) -> dict[str, bool]:
    """The nodes that an edge leads to in the next superstep, and whether it always does."""
    if level.goes_anywhere(name):
        known = level.always.get(name, set()) & level.nodes.keys()
        return dict.fromkeys(known, True)
    outcomes = [outcome for outcome in level.outcomes(name) if outcome.ran and not outcome.redirected]
    found: dict[str, bool] = {}
    for target in sorted({target for outcome in outcomes for target in outcome.targets}):
        if not level.nodes[target].deferred:
            found[target] = all(target in outcome.targets for outcome in outcomes)
    return found


def _is(node: Node, instruction: Instruction) -> bool:
    return node.instruction is instruction


def _ends_in(forbidden: Forbidden, node: Node) -> bool:
    return _is(node, forbidden.steps[-1]) and node.is_target_of(forbidden.rule)


def _forbidden_edge(level: Level, forbidden: Forbidden, path: _Path) -> Finding:
    rule = forbidden.rule
    names = tuple(map(level.full, path.nodes))
    steps = " → ".join(map(str, forbidden.steps))
    severity: Severity = "error" if path.always else "warning"
    edge = "the edge" if path.always else "the conditional edge"
    return Finding(
        code="denied-edge",
        severity=severity_of(rule, severity),
        message=f"{edge} {names[-2]!r} → {names[-1]!r} completes {steps}, which {rule.name!r} forbids: "
        f"{names[-1]!r} is denied whenever it is taken",
        nodes=(names[-1], *names[:-1]),
        path=names,
        rule=rule.name,
        source=rule.source,
        remedy=f"Put a step between {names[-2]!r} and {names[-1]!r}, or take the edge out.",
    )


def _gave_up(rule: Contract) -> Finding:
    return Finding(
        code="not-analysed",
        severity="info",
        message=f"this graph can go on in too many ways to hold all of its runs against {rule.name!r}",
        rule=rule.name,
        source=rule.source,
        remedy="Declare the destinations of conditional edges (path_map) and of commands (Command[Literal[...]]).",
    )
