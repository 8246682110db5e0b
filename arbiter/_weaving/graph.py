"""A governed copy of a compiled graph."""

from __future__ import annotations

import copy
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langgraph._internal._runnable import RunnableSeq
from langgraph.constants import END, START
from langgraph.pregel import Pregel
from langgraph.pregel._read import DEFAULT_BOUND, PregelNode
from langgraph.pregel._write import ChannelWrite

from arbiter._lifecycle.core import Core
from arbiter._lifecycle.runs import Schemas
from arbiter._weaving.channel import FACTS, FactsChannel, Origin
from arbiter._weaving.lcel import LcelSteps
from arbiter._weaving.node import GovernedNode, denials_stand
from arbiter._weaving.sequence import GovernedSequence, Passthrough
from arbiter._weaving.writers import BRANCH_TO, GatedBranch, GatedWrite, StartWrite
from arbiter.history._record import Described
from arbiter.instructions import Instruction

_SEQUENCES: tuple[Any, ...] = (RunnableSequence, RunnableSeq)
_BINDING: Any = RunnableBindingBase
_GRAPH: Any = Pregel


@dataclass(frozen=True, slots=True)
class NodeRule:
    """The instruction and schemas that `govern()` found for one node."""

    instruction: Instruction | None
    schemas: Schemas | None


Rules = Callable[[tuple[str, ...], str, PregelNode], NodeRule]
"""(path of parent nodes, node name, node) → its rule."""


def facts_channel_of(graph: object) -> FactsChannel | None:
    """The hidden channel of a governed graph; None if the graph is not governed."""
    channels: Mapping[str, Any] = getattr(graph, "channels", {}) if isinstance(graph, _GRAPH) else {}
    channel = channels.get(FACTS)
    return channel if isinstance(channel, FactsChannel) else None


def governed_nodes(graph: Pregel[Any, Any, Any, Any]) -> dict[str, PregelNode]:
    """The nodes that have a body."""
    return {name: node for name, node in graph.nodes.items() if node.bound is not DEFAULT_BOUND}


def targets_of(graph: Pregel[Any, Any, Any, Any]) -> frozenset[str]:
    """The possible targets of a redirect: nodes that edges can lead to, and END."""
    names = {name for name in graph.nodes if BRANCH_TO.format(name) in graph.channels}
    return frozenset({*names, END}) if names else frozenset()


def subgraphs_of(node: PregelNode) -> list[Pregel[Any, Any, Any, Any]]:
    """The graph that is the node's body, or the graphs that are steps of it."""
    return _graphs_in(node.bound)


def _graphs_in(body: Any) -> list[Pregel[Any, Any, Any, Any]]:
    return [part for part in parts_of(body) if isinstance(part, _GRAPH)]


def unbound(target: Any) -> Any:
    """The object in bindings, such as the graph in those of `graph.with_retry()`."""
    while isinstance(target, _BINDING):
        target = target.bound
    return target


def parts_of(bound: Any) -> list[Any]:
    """The steps of a sequence, the object in bindings; of anything else the object itself."""
    if isinstance(bound, _SEQUENCES):
        return [inner for step in bound.steps for inner in parts_of(step)]
    if isinstance(bound, _BINDING):
        return parts_of(bound.bound)
    return [bound]


def weave(
    graph: Pregel[Any, Any, Any, Any],
    core: Core,
    rules: Rules,
    path: tuple[str, ...] = (),
) -> Pregel[Any, Any, Any, Any]:
    """A governed copy of `graph`, or the graph itself if it is governed already. The original does not change."""
    if facts_channel_of(graph) is not None:
        return graph
    whole = _Whole.of(graph)
    nodes: dict[str, PregelNode] = {}
    for name, node in graph.nodes.items():
        woven = copy.copy(node)
        woven.__dict__.pop("node", None)
        if node.bound is DEFAULT_BOUND:
            writers = _writers(node)
            if name == START and writers and type(writers[0]) is ChannelWrite:
                starts = [StartWrite(writers[0], core), *writers[1:]]  # START may have a branch as well
                woven.__dict__["node"] = node.copy({"writers": starts}).node
        else:
            rule = rules(path, name, node)
            body = with_graphs(node.bound, partial(weave, core=core, rules=rules, path=(*path, name)))
            woven.__dict__["node"] = _woven(whole, name, node, rule, core, body)
            if node.subgraphs and (inner := _graphs_in(body)):
                # `update_state` inside the subgraph saves its channels, so the hidden one must be there.
                woven.subgraphs = inner[:1]
            if node.retry_policy:
                woven.retry_policy = denials_stand(node.retry_policy)
            if node.cache_policy is not None:
                woven.cache_policy = _own_cache(node.cache_policy, core, name, rule, whole.targets)
        nodes[name] = woven
    governed = copy.copy(graph)
    governed.nodes = nodes
    governed.retry_policy = denials_stand(graph.retry_policy)
    governed.channels = {
        **graph.channels,
        FACTS: FactsChannel(Origin(core, graph, rules, path, describe=described)),
    }
    # A graph without `stream_channels` streams all channels; this list leaves out the hidden one.
    governed.stream_channels = graph.stream_channels_asis
    return governed


def described(origin: Origin) -> Described:
    """A governed graph as data: its nodes with their instructions, its edges, and the targets of redirects."""
    graph = origin.graph
    nodes = {
        name: rule.instruction.qualified if rule.instruction else None
        for name, node in governed_nodes(graph).items()
        for rule in (origin.rules(origin.path, name, node),)
    }
    try:
        drawn = graph.get_graph().edges
    except Exception:  # only for its picture: some graphs cannot be drawn
        drawn = []
    body = {
        "name": graph.get_name(),
        "path": list(origin.path),
        "nodes": nodes,
        "edges": [[edge.source, edge.target, edge.conditional] for edge in drawn],
        "targets": sorted(targets_of(graph)),
    }
    return Described.of(json.dumps(body, ensure_ascii=False, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class _Whole:
    """The values that all nodes of a graph share. Looking them up for each node would take long in a large graph."""

    targets: frozenset[str]
    channels: frozenset[str]
    retry_policy: Any
    keeps_writes: bool
    """True if LangGraph may keep the writes of a node."""

    @classmethod
    def of(cls, graph: Pregel[Any, Any, Any, Any]) -> _Whole:
        policies: list[Any] = [graph.cache_policy]
        for node in graph.nodes.values():
            policies += [getattr(node, name, None) for name in ("cache_policy", "timeout")]
        return cls(
            targets=targets_of(graph),
            channels=frozenset(cast(Mapping[str, Any], graph.channels)),
            retry_policy=graph.retry_policy,
            keeps_writes=any(policy is not None for policy in policies),
        )


def _woven(
    whole: _Whole, name: str, node: PregelNode, rule: NodeRule, core: Core, body: Any
) -> Runnable[Any, Any] | None:
    writers = _writers(node)
    gated: list[Runnable[Any, Any]] = []
    for index, writer in enumerate(writers):
        last = index == len(writers) - 1
        if isinstance(writer, ChannelWrite):
            gated.append(GatedWrite(writer, core, first=index == 0, last=last))
        else:
            gated.append(GatedBranch(writer, core, last=last))
    steps: list[Runnable[Any, Any]] = []
    if isinstance(body, _SEQUENCES):
        steps = [Passthrough() for _ in body.steps[1:]]
        body = LcelSteps(list(body.steps))
    wrapper = GovernedNode(
        core,
        node=name,
        body=body,
        instruction=rule.instruction,
        schemas=rule.schemas,
        targets=whole.targets,
        fields=whole.channels if isinstance(node.channels, list) else frozenset(),
        retry=denials_stand(node.retry_policy or whole.retry_policy),
        commits=bool(gated) and isinstance(gated[0], GatedWrite),
        is_subgraph=bool(subgraphs_of(node)),
        keeps_writes=whole.keeps_writes,
    )
    sequence = node.copy({"bound": wrapper, "writers": [*steps, *gated]}).node
    return GovernedSequence.of(sequence, wrapper) if type(sequence) is RunnableSeq else sequence


def _writers(node: PregelNode) -> Sequence[Runnable[Any, Any]]:
    return cast(Sequence[Runnable[Any, Any]], cast(Any, node).flat_writers)


def with_graphs(body: Any, govern: Callable[[Any], Any]) -> Any:
    """The body with the governed copy of each graph in it."""
    if isinstance(body, _GRAPH):
        return govern(body)
    if not _graphs_in(body):
        return body
    if isinstance(body, _SEQUENCES):
        first, *middle, last = [with_graphs(step, govern) for step in body.steps]
        if isinstance(body, RunnableSequence):  # of a class of the user's, too
            return cast(Any, body).model_copy(update={"first": first, "middle": middle, "last": last})
        return RunnableSeq(first, *middle, last, name=body.name)
    return body.model_copy(update={"bound": with_graphs(body.bound, govern)})


def _own_cache(policy: Any, core: Core, name: str, rule: NodeRule, targets: frozenset[str]) -> Any:
    """A node cache with its own keys, so that no unchecked value is ever reused.

    Neither entries of an ungoverned graph or of a graph with other rules count, nor entries that a checker
    would have to check again. Rules count as equal only if they are the very same registrations, because
    neither name nor class shows what a rule allows. So a cache that outlives the process is not reused for
    nodes with rules.
    """
    key_of = policy.key_func

    def key(*args: Any, **kwargs: Any) -> str | bytes:
        found = key_of(*args, **kwargs)
        plan = core.registry.plan(name, rule.instruction, targets)
        tokens = {each.token for each in plan.called if each.contract.enforced}
        tokens.update(queue.token for queue in plan.queues if queue.evaluator.enforced)
        # A cached output counts towards tallies as they counted it, or not at all.
        tokens.update(
            registration.token
            for registration in core.registry.checkers
            if registration.contract in plan.observers
        )
        asked = [
            registration.contract
            for registration in (*plan.checkers, *plan.output_checkers)
            if registration.contract.enforced
        ]
        if not all(checker.is_cacheable for checker in asked):
            tokens.add(uuid.uuid4().hex)
        rules = hashlib.sha256(",".join(sorted(tokens)).encode()).hexdigest() if tokens else ""
        mark = f"arbiter:{rules}:"
        return mark + found if isinstance(found, str) else mark.encode() + found

    return replace(policy, key_func=key)
