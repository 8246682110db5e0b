"""`lint`: finds mistakes in a graph and its rules before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from arbiter._contracts import Contract
from arbiter._lifecycle.registry import Registry
from arbiter._weaving.govern import Graph, rules_for
from arbiter._weaving.graph import Rules, facts_channel_of
from arbiter.errors import NotAGraphError
from arbiter.linting._contradictions import contradicting_rules, in_contradiction
from arbiter.linting._coverage import (
    bindings_without_effect,
    errors_that_do_not_exist,
    evaluators_that_do_not_exist,
    nodes_without_instruction,
    questions_without_checkpointer,
    rules_that_never_fire,
    targets_that_do_not_exist,
    tools_that_do_not_exist,
)
from arbiter.linting._cycles import cycles_without_cap, cycles_without_end, unreachable_nodes
from arbiter.linting._fields import conditions_without_answer, names_that_do_not_exist
from arbiter.linting._findings import Finding
from arbiter.linting._gaps import passed_sequences
from arbiter.linting._order import denied_edges, nodes_always_denied, unverified_paths
from arbiter.linting._report import LintReport
from arbiter.linting._rules import contracts_of, demands_of
from arbiter.linting._topology import Level, read_graph

if TYPE_CHECKING:
    from arbiter._constitution.bindings import BindingPack


def lint(
    graph: object,
    contracts: Registry | Iterable[Contract] = (),
    rules: Rules | None = None,
    *,
    strict: bool = False,
    bindings: Sequence[BindingPack] = (),
) -> LintReport:
    """Check a compiled graph or a builder, subgraphs included, against registered contracts. Nothing is run.

    `rules` give the instruction of each node, as `arbiter.weaving.govern.rules_for` finds them; by default
    they come from labels, metadata and binding packs. With `strict`, a node without an instruction is an
    error. The place of a contract's declaration is read from its attribute `source` ("file:line"), if it has
    one. `bindings` are the packs whose bindings should fit nodes.
    """
    target = compiled(graph)
    every = contracts_of(contracts)
    modes = {rule.name: rule.mode for rule in every if rule.kind == "evaluator"}
    found = [rule for rule in every if rule.mode != "off"]
    rules = rules or rules_for(target, None, None, strict=False)
    level = read_graph(target, rules, found)
    unsaved = questions_without_checkpointer(target, rules, found)
    tools = tools_that_do_not_exist(target, found)
    unread = evaluators_that_do_not_exist(level, found, modes)
    unbound = bindings_without_effect(level, bindings)
    known = [rule.name for rule in every]
    return LintReport([*_findings(level, found, known, strict=strict), *tools, *unsaved, *unread, *unbound])


def compiled(graph: object) -> Graph:
    """The compiled graph: a builder is compiled, and for a governed graph the original is returned."""
    target: Any = graph
    if isinstance(target, StateGraph):
        target = cast(Any, target).compile()
    if not isinstance(target, Pregel):
        raise NotAGraphError(f"cannot lint {graph!r}: expected a compiled graph or a StateGraph.")
    channel = facts_channel_of(cast(object, target))
    return cast(Any, target) if channel is None else channel.origin.graph


def _findings(
    graph: Level, contracts: list[Contract], known: Collection[str], *, strict: bool
) -> Iterator[Finding]:
    demands = demands_of(contracts)
    yield from nodes_without_instruction(graph, strict=strict)
    yield from rules_that_never_fire(graph, contracts, demands)
    yield from targets_that_do_not_exist(graph, contracts)
    yield from errors_that_do_not_exist(contracts)
    yield from names_that_do_not_exist(graph, contracts, known)
    yield from conditions_without_answer(contracts)
    yield from unreachable_nodes(graph)
    yield from cycles_without_end(graph, contracts)
    yield from cycles_without_cap(graph, contracts)
    contradictions = list(contradicting_rules(graph, contracts, demands))
    yield from (finding for finding, _ in contradictions)
    contradictory = in_contradiction(contradictions)
    yield from unverified_paths(graph, demands, contradictory)
    yield from nodes_always_denied(graph, demands, contracts, contradictory)
    yield from denied_edges(graph, demands)
    yield from passed_sequences(graph, demands)
