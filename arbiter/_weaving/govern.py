"""The preparation of `govern()`: the rule of each node, and the checks of the configuration."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.base import RunnableBinding, RunnableEachBase
from langgraph.constants import END
from langgraph.pregel import Pregel
from langgraph.pregel._read import PregelNode
from pydantic import BaseModel, TypeAdapter

from arbiter._contracts import Contract, title_of
from arbiter._lifecycle.core import Core
from arbiter._lifecycle.evaluations import owner_of
from arbiter._lifecycle.outcomes import unusable
from arbiter._lifecycle.registry import Registry
from arbiter._lifecycle.runs import Schemas
from arbiter._weaving.graph import (
    NodeRule,
    Rules,
    facts_channel_of,
    governed_nodes,
    parts_of,
    subgraphs_of,
    targets_of,
    unbound,
)
from arbiter.advice import Advisor, CorrectionGate
from arbiter.errors import (
    ArbiterWarning,
    ConfigurationError,
    RegistrationError,
    UnknownNodeError,
    callers,
    closest,
    nearest,
)
from arbiter.evaluation import NodeEvaluator
from arbiter.instructions import Instruction, instruction_at
from arbiter.policy import PolicyChecker, PolicyRouter

if TYPE_CHECKING:
    from arbiter._constitution.bindings import BindingPack

Graph = Pregel[Any, Any, Any, Any]
_LABEL = "__arbiter_label__"
_RUNNABLE: Any = Runnable
_EACH: Any = RunnableEachBase


# Labels -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Label:
    """The mark that `@arbiter_os.instruction(...)` leaves on a function."""

    instruction: Instruction
    schemas: Schemas | None = None


def attach(target: Any, label: Label) -> None:
    # object.__setattr__, because pydantic models and frozen dataclasses refuse new attributes.
    try:
        object.__setattr__(target, _LABEL, label)
    except (AttributeError, TypeError):
        raise RegistrationError(
            f"{target!r} cannot be labelled: it takes no attributes. Label the function below it, or name its "
            "instruction in govern(..., instructions={...})."
        ) from None


def label_of(runnable: Any) -> Label | None:
    """The label of a node's body, found through the wrappers of LangGraph, LangChain and functools."""
    seen = 0
    while runnable is not None and seen < 20:
        seen += 1
        label = getattr(runnable, _LABEL, None)
        if isinstance(label, Label):
            return label
        if isinstance(runnable, functools.partial):
            runnable = runnable.func
            continue
        inner = getattr(runnable, "func", None) or getattr(runnable, "afunc", None)
        # `bound` is that of a retry, also in fallbacks. The steps of `map` have an input of their own.
        if inner is None and isinstance(runnable, _RUNNABLE) and not isinstance(runnable, _EACH):
            inner = getattr(runnable, "bound", None)
        if inner is None:
            inner = type(runnable).__call__ if _is_instance(runnable) else None
        if inner is None or inner is runnable:
            return None
        runnable = inner
    return None


def _is_instance(runnable: Any) -> bool:
    return callable(runnable) and not isinstance(runnable, type) and type(runnable).__module__ != "builtins"


# Schemas ------------------------------------------------------------------------------------------


def schemas_of(declared: Any, node: str) -> Schemas | None:
    """The `Schemas` for `{"input": T, "output": T}`, for `(T, T)` with None for an undeclared one, or for a
    `Schemas`.
    """
    if declared is None or isinstance(declared, Schemas):
        return declared
    given: Any = declared
    pair: tuple[Any, Any]
    if isinstance(declared, Mapping) and given and not is_by_node(given):
        pair = (given.get("input"), given.get("output"))
    elif isinstance(declared, tuple) and len(given) == 2:
        pair = (given[0], given[1])
    else:
        raise ConfigurationError(
            f"schemas of {node}: expected {{'input': Model, 'output': Model}} or (Model, Model), "
            f"got {declared!r}."
        )
    if pair == (None, None):
        return None
    one, other = pair
    return Schemas(_adapter(one, node), _adapter(other, node), _name(one), _name(other), _looked_at(one))


def is_by_node(schemas: Any) -> bool:
    """True for a mapping of schemas by the names of nodes, and not by "input" and "output"."""
    return isinstance(schemas, Mapping) and not {"input", "output"}.issuperset(cast("Any", schemas))


def _adapter(schema: Any, node: str) -> TypeAdapter[Any] | None:
    if schema is None:
        return None
    try:
        adapter = TypeAdapter(schema)
        if isinstance(schema, str):
            adapter.rebuild()  # the text may name what is not known here, and then it never is
        return adapter
    except Exception as exc:
        # Not only pydantic's own errors: it reads a dict as one of its core schemas, with a KeyError for JSON Schemas.
        raise unusable(repr(schema), node, exc) from None


def _looked_at(schema: Any) -> frozenset[str] | None:
    """The fields of a state that validation by that class reads; None if it may read all of them."""
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    fields = schema.model_fields.items()
    aliased = any(field.alias or field.validation_alias for _, field in fields)
    if aliased or schema.__pydantic_decorators__.model_validators:
        return None
    return frozenset(name for name, _ in fields)


def _name(schema: Any) -> str:
    return getattr(schema, "__name__", str(schema)) if schema is not None else ""


# The levels of a graph ----------------------------------------------------------------------------


def levels(
    graph: Graph, path: tuple[str, ...] = (), *, every: bool = False
) -> Iterator[tuple[tuple[str, ...], Graph]]:
    """The graph and the graphs in its nodes, outer ones first, each with the path of nodes that leads to it.

    A graph in a node that is governed already keeps the rules with which it was governed. It is left out,
    unless `every` graph is wanted.
    """
    yield path, graph
    for name, inner in _graphs_in(graph):
        if every or facts_channel_of(inner) is None:
            yield from levels(inner, (*path, name), every=every)


def _graphs_in(graph: Graph) -> Iterator[tuple[str, Graph]]:
    for name, node in governed_nodes(graph).items():
        for inner in subgraphs_of(node):
            yield name, inner


def _nodes(graph: Graph, *, every: bool = False) -> Iterator[tuple[str, tuple[str, ...], str, PregelNode]]:
    """The nodes on all levels of a graph: `parent:child`, as LangGraph draws it, then the path, the name, the node."""
    for path, level in levels(graph, every=every):
        for name, node in governed_nodes(level).items():
            yield ":".join((*path, name)), path, name, node


def warn_of_other_rules(graph: Graph, core: Core) -> None:
    """Warn of the nodes that are graphs which another `ArbiterOS` governs."""
    for path, level in levels(graph):
        for name, inner in _graphs_in(level):
            channel = facts_channel_of(inner)
            if channel is not None and channel.core is not core:
                warnings.warn(
                    f"node {':'.join((*path, name))!r} is a graph that another ArbiterOS governs: its nodes keep "
                    "the rules of that one, get none of this one, and are not in this history. For rules of both, "
                    "govern the original graph, with one ArbiterOS.",
                    ArbiterWarning,
                    stacklevel=callers(),
                )


class Mapped:
    """A mapping by node name that the user passed as `instructions=` or `schemas=`."""

    def __init__(self, given: Mapping[str, Any] | None, what: str, graph: Graph) -> None:
        if given is not None and not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{what}= is {given!r:.80}; expected a mapping by the names of nodes.")
        self.given: dict[str, Any] = dict(given or {})
        # Two graphs of one sequence may have nodes of the same name.
        names = list(dict.fromkeys(full for full, *_ in _nodes(graph)))
        self.by_name: dict[str, str] = {}
        for key in self.given:
            if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{what}= has the key {key!r}; expected names of nodes.")
            if key in names:
                self.by_name[key] = key
                continue
            # A node of a subgraph may be given by its own name, if only one node has it.
            inner = [name for name in names if name.rsplit(":", 1)[-1] == key]
            if len(inner) != 1:
                raise UnknownNodeError(f"{what}= names", node=key, names=names)
            self.by_name[inner[0]] = key

    def get(self, path: tuple[str, ...], name: str) -> Any:
        key = self.by_name.get(":".join((*path, name)))
        return None if key is None else self.given[key]


def rules_for(
    graph: Graph,
    instructions: Mapping[str, Instruction | str] | None,
    schemas: Mapping[str, Any] | None,
    *,
    strict: bool,
    packs: Sequence[BindingPack] = (),
) -> Rules:
    """A function that finds each node's rule.

    The first match counts: the mapping, the label, the metadata, a binding pack of `packs`, a binding pack
    that ships with Arbiter.
    """
    named = Mapped(instructions, "instructions", graph)
    for key, value in named.given.items():
        named.given[key] = instruction_at(f"instructions[{key!r}]", value)
    shaped = Mapped(schemas, "schemas", graph)
    for key, value in shaped.given.items():
        shaped.given[key] = schemas_of(value, f"node {key!r}")

    fitting: dict[tuple[str, ...], list[BindingPack]] = {}
    for path, level in levels(graph, every=True):
        fitting.setdefault(path, []).extend(_packs_of(level, packs))

    def rule(path: tuple[str, ...], name: str, node: PregelNode) -> NodeRule:
        label = label_of(node.bound)
        full = ":".join((*path, name))
        instruction = (
            named.get(path, name)
            or (label.instruction if label else None)
            or _from_metadata(name, node)
            or next(filter(None, (pack.instruction_of(full) for pack in fitting[path])), None)
        )
        given = shaped.get(path, name)
        return NodeRule(instruction, given or (label.schemas if label else None))

    if strict:
        bare = dict.fromkeys(
            full
            for full, path, name, node in _nodes(graph)
            if rule(path, name, node).instruction is None and not subgraphs_of(node)
        )
        if bare:
            raise ConfigurationError(
                f"these nodes have no instruction: {', '.join(bare)}. ArbiterOS(strict=True) governs no such "
                "graph; name them in govern(..., instructions={...}) or label them with @arbiter_os.instruction."
            )
    return rule


def _from_metadata(name: str, node: PregelNode) -> Instruction | None:
    found = (node.metadata or {}).get("instruction")
    if found is None:
        return None
    if not isinstance(found, str | Instruction):
        raise ConfigurationError(
            f"node {name!r}: metadata['instruction'] is {found!r}; expected the name of an instruction."
        )
    return instruction_at(f"node {name!r}: metadata['instruction']", found)


def _packs_of(graph: Graph, packs: Sequence[BindingPack]) -> list[BindingPack]:
    """The binding packs for this graph: all of `packs`, and the first shipped one that matches."""
    from arbiter._constitution.bindings import GraphFacts, binding_for, code_of

    config: Mapping[str, Any] = graph.config or {}
    nodes = governed_nodes(graph)
    facts = GraphFacts(
        nodes={name: code_of(unbound(node.bound)) for name, node in nodes.items()},
        metadata=dict(config.get("metadata") or {}),
    )
    shipped = binding_for(facts)
    return [*(pack for pack in packs if pack.fits(facts)), *([shipped] if shipped else ())]


# Soundness ----------------------------------------------------------------------------------------


def check_registered(registry: Registry, graph: Graph, rule: Rules) -> None:
    """Raise `ConfigurationError` if a registered contract does not fit this graph."""
    for contract in registry.registered(Contract):
        check_contract(contract, registry, graph, rule)


def check_contract(contract: Contract, registry: Registry, graph: Graph, rule: Rules) -> None:
    """Raise `ConfigurationError` if this contract does not fit this graph and the registered contracts.

    Its redirects must lead to nodes, and no node may get a second correction gate.
    """
    if isinstance(contract, CorrectionGate | Advisor):
        nodes = [(full.rpartition(":")[2], instruction) for full, instruction in nodes_in(graph, rule)]
        governed = [node for node in nodes if contract.applies_to(*node)]
        if isinstance(contract, CorrectionGate):
            gates = registry.registered(CorrectionGate)
            is_known = any(gate is contract for gate in gates)
            _check_gates(gates if is_known else (*gates, contract), governed)
        contract.governs({name for name, _ in governed})
    if contract.mode == "off":
        return
    applying = [
        level
        for path, level in levels(graph)
        if any(
            contract.applies_to(name, rule(path, name, node).instruction)
            for name, node in governed_nodes(level).items()
        )
    ]
    if not applying:
        return
    for target in contract.redirect_targets:
        if target == END:
            continue
        if not any(target in targets_of(level) for level in applying):
            names = sorted({n for level in applying for n in governed_nodes(level)})
            raise UnknownNodeError(
                f"{title_of(contract)} redirects to",
                node=target,
                names=names,
                nearest=closest(target, [*names, END]),
            )
    if isinstance(contract, Advisor):
        # A node runs without advice, too: the log reports an evaluator that is missing.
        return
    modes = {queue.name: queue.evaluator.mode for queue in registry.evaluators}
    for _, mistake, remedy in missing_evaluators(contract, modes):
        raise ConfigurationError(f"{title_of(contract)} {mistake}. {remedy}")


def missing_evaluators(contract: Contract, modes: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """The evaluators whose results the contract reads and that are not registered or not enabled: without them it
    would silently do nothing. Of each the name, the mistake and the remedy.

    `modes` are those of the registered evaluators, by name.
    """
    if not isinstance(contract, PolicyChecker | PolicyRouter | NodeEvaluator | Advisor):
        return
    named = [("reads", name) for name in contract.needs or ()]
    if isinstance(contract, PolicyRouter) and contract.best_by is not None:
        named.append(("compares attempts by", contract.best_by))
    for what, name in named:
        if (owner := owner_of(name, modes)) is None:
            yield (
                name,
                f"{what} evaluator {name!r}, which is not registered",
                f"Evaluators: {', '.join(sorted(modes)) or 'none'}.{nearest(name, modes)} Add the evaluator first.",
            )
        # An evaluator that lacks a part reports that in the record of each node run.
        elif modes[owner] == "off" and not isinstance(contract, NodeEvaluator):
            yield (
                owner,
                f"{what} evaluator {owner!r}, whose mode is 'off'",
                f"Set the evaluator's mode to 'enforce', or the mode of this {contract.kind} to 'off', too.",
            )


def _check_gates(gates: Sequence[CorrectionGate], nodes: Sequence[tuple[str, Instruction | None]]) -> None:
    for name, instruction in nodes:
        names = [repr(gate.name) for gate in gates if gate.applies_to(name, instruction)]
        if len(names) > 1:
            raise RegistrationError(
                f"node {name!r} has {len(names)} correction gates ({', '.join(names)}); it can have one. "
                "Narrow their target_instructions or target_nodes."
            )


def nodes_in(graph: Graph, rule: Rules) -> list[tuple[str, Instruction | None]]:
    """The nodes of the graph and its subgraphs with their instructions; those of subgraphs as `parent:child`."""
    return [(full, rule(path, name, node).instruction) for full, path, name, node in _nodes(graph)]


SAVE_QUESTIONS = "Compile it with one, as in compile(checkpointer=InMemorySaver()), a subgraph without False."


def has_saver(graph: Any) -> bool:
    """True if the graph was compiled with a checkpointer, and not with True, False or None."""
    return hasattr(graph.checkpointer, "get_tuple")


def unsaved(
    graph: Graph, rule: Rules, contracts: Iterable[Contract], path: tuple[str, ...] = ()
) -> list[tuple[Contract, str]]:
    """The rules that may ask a human, each with a node for which it asks, if no checkpointer is passed to the
    graph. A subgraph with a checkpointer of its own is left out. `path` are the nodes around the graph.
    """
    found: dict[int, tuple[Contract, str]] = {}
    asking = [contract for contract in contracts if contract.asks and contract.enforced]
    saved: list[tuple[str, ...]] = []
    for at, level in levels(graph, path) if asking else ():
        if at != path and has_saver(level):
            saved.append(at)
        if any(at[: len(each)] == each for each in saved):
            continue
        for name, node in governed_nodes(level).items():
            instruction = rule(at, name, node).instruction
            for contract in asking:
                if contract.applies_to(name, instruction):
                    found.setdefault(id(contract), (contract, ":".join((*at, name))))
    return list(found.values())


# Descriptions of a graph for the linter and the commands ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A description of one node.

    `instruction` is its qualified name or "", `code` the place where its body is defined. `chat_model` is
    True if the body is a chat model, alone or at the end of a sequence.
    """

    name: str
    instruction: str
    docstring: str
    code: str
    chat_model: bool


def describe_nodes(graph: Any) -> list[NodeFacts]:
    """The nodes of a compiled graph or builder; those of subgraphs as `parent:child`."""
    from arbiter._constitution.bindings import code_of

    compiled: Graph = graph.compile() if hasattr(graph, "compile") else graph
    rule = rules_for(compiled, None, None, strict=False)
    described: list[NodeFacts] = []
    for full, path, name, node in _nodes(compiled, every=True):
        instruction = rule(path, name, node).instruction
        described.append(
            NodeFacts(
                name=full,
                instruction=instruction.qualified if instruction else "",
                docstring=_docstring_of(unbound(node.bound)),
                code=code_of(unbound(node.bound)),
                chat_model=_is_chat_model(node.bound),
            )
        )
    return described


def _is_chat_model(bound: Any) -> bool:
    from langchain_core.language_models import BaseChatModel  # importing LangGraph does not import it

    while inner := _called_last(bound):
        bound = inner
    return isinstance(bound, BaseChatModel)


def _called_last(bound: Any) -> Any:
    runnable = bound
    if isinstance(bound, RunnableBinding):
        return runnable.bound
    return runnable.last if isinstance(bound, RunnableSequence) else None


def _docstring_of(bound: Any) -> str:
    function: Any = getattr(bound, "func", None) or getattr(bound, "afunc", None)
    while isinstance(function, functools.partial):
        function = function.func
    return (inspect.getdoc(function) or "") if function is not None else ""


def has_async_nodes(graph: Graph) -> bool:
    """True if a node of the graph, or of a graph in it, can only be awaited."""
    return any(
        getattr(part, "func", None) is None and getattr(part, "afunc", None) is not None
        for *_, node in _nodes(graph, every=True)
        for part in parts_of(node.bound)
    )
