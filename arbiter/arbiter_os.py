"""`ArbiterOS`: the facade. Registers contracts, governs graphs, runs them, and shows what happened."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast, overload

import langgraph._internal._runnable as langgraph_runnables
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime
from langgraph.typing import ContextT, InputT, OutputT, StateT

from arbiter.advice import Advisor, CorrectionGate
from arbiter.calls import start
from arbiter.contracts import Contract
from arbiter.core import Core
from arbiter.errors import ConfigurationError, NotAGraphError, PackError, RegistrationError
from arbiter.evaluation import EvaluatorCycle, NodeEvaluator
from arbiter.evaluations import Background
from arbiter.facts import KEEP
from arbiter.functions import GovernedRunnable, govern_function
from arbiter.history import RunHistory
from arbiter.instructions import Instruction, find_instruction
from arbiter.lifecycle import Schemas, Settings
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.recorder import KEEP_THREADS, Recorder
from arbiter.registry import Registry
from arbiter.shadow import ShadowReport
from arbiter.states import Snapshot
from arbiter.weaving import Origin, Rules, ledger_of, weave
from arbiter.weaving.coverage import Coverage
from arbiter.weaving.govern import (
    Label,
    attach,
    check_contract,
    check_registered,
    label_of,
    nodes_in,
    rules_for,
    schemas_of,
)

if TYPE_CHECKING:
    from arbiter.constitution import Constitution
    from arbiter.linting import LintReport
    from arbiter.packs import BindingPack

Graph = Pregel[Any, Any, Any, Any]
_Source = tuple[Any, Iterable[str], Mapping[str, Any] | None]
Builder = StateGraph[Any, Any, Any, Any]
_REMEMBERED = 128
_CORES = "arbiter.constitution"
"""The module of the cores that packs declare."""
T = TypeVar("T")
G = TypeVar("G", bound=Graph)


class ArbiterOS:
    """Governs LangGraph graphs. One of these can govern many graphs, threads and concurrent runs.

    `keep` bounds how many items of each thread stay in memory (None: all); totals stay exact. `keep_threads` bounds the
    threads whose items stay (None: all); the one that ran longest ago is forgotten first. Items hold the states of
    their nodes, so these two bound what an `ArbiterOS` keeps alive.
    `snapshot` says what the history keeps of a node's input and output: a `"shallow"` copy, a `"deep"` one, or a
    `"digest"` of each field. `strict` refuses to govern a graph with a node that has no instruction.
    `facts` is how many facts about past node runs a checkpoint carries; see docs/design/history.md.
    """

    def __init__(
        self,
        *,
        keep: int | None = 1000,
        keep_threads: int | None = KEEP_THREADS,
        snapshot: Snapshot = "shallow",
        strict: bool = False,
        facts: int = KEEP,
        clock: Callable[[], float] = time.time,
    ) -> None:
        _whole("keep", keep, none=True)
        _whole("keep_threads", keep_threads, none=True)
        _whole("facts", facts)
        if snapshot not in ("shallow", "deep", "digest"):
            raise ConfigurationError(f"snapshot is {snapshot!r}; expected 'shallow', 'deep' or 'digest'.")
        self._strict = strict
        self._background = Background()
        registry = Registry()
        self._coverage = Coverage(registry)
        settings = Settings(snapshot, self._background, facts, clock)
        self._core = Core(registry, Recorder(keep, keep_threads), settings, self._coverage.report)
        self._constitution: Constitution | None = None
        self._source: _Source | None = None
        self._lock = threading.RLock()
        self._named: set[Instruction] = set()
        """Instructions of labels and functions, which nobody here keeps."""
        self._woven: OrderedDict[int, tuple[Any, Any, Graph]] = OrderedDict()
        self._governed: weakref.WeakSet[Origin] = weakref.WeakSet()

    # Copies

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: what is governed by it, and what it has counted and recorded, is one."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: graphs of this process are governed by it. Pickle its "
            "history, and make one from its constitution or contracts in the other process."
        )

    # Constitution

    @classmethod
    def from_constitution(
        cls,
        source: str | Path | Traversable,
        *,
        allow: Iterable[str] = (),
        models: Mapping[str, Any] | None = None,
        shadow: str | Path | Traversable | None = None,
        **options: Any,
    ) -> Self:
        """One that is governed by packs: those in `instructions/`, `policies/` and `evaluators/` of the folder
        `source`, one YAML file, or a pack that ships with Arbiter ("arbiter:kernel").

        `allow` are prefixes of dotted paths that packs may name classes by, such as "mycompany."; `models` are chat
        models by the names that packs give them. `shadow` is a second constitution, which decides beside the first
        without effect; see `shadow_report`. `options` are those of `ArbiterOS`. Raises `PackError` with every mistake
        in every file.
        """
        arbiter_os = cls(**options)
        arbiter_os.load_constitution(source, allow=allow, models=models)
        if shadow is not None:
            arbiter_os.load_shadow(shadow, allow=allow, models=models)
        return arbiter_os

    @property
    def constitution(self) -> Constitution | None:
        """What packs declared, as it is in force."""
        return self._constitution

    def load_constitution(
        self,
        source: str | Path | Traversable | None = None,
        *,
        allow: Iterable[str] = (),
        models: Mapping[str, Any] | None = None,
    ) -> Constitution:
        """Put a constitution in force, in the place of the one before; without `source`, read that one again.

        All of it or nothing: when it cannot be loaded, or does not fit a graph that is governed, this raises and
        the old one stays. It holds from the next node on, also for graphs governed before and for runs that are
        paused: what they wait to do is checked again. Rules that did not change keep what they counted. Contracts
        that code registered stay, after those of the constitution. New bindings of nodes to instructions need the
        graph to be governed again.
        """
        # YAML is read by those who have some.
        from arbiter.constitution import all_or_nothing, load_constitution

        given: _Source = (source, allow if isinstance(allow, str) else tuple(allow), models)
        if source is None:
            if self._source is None:
                raise ConfigurationError("no constitution was loaded before; say which one.")
            given = self._source
        origin: Any = given[0]
        with all_or_nothing(), self._lock:
            loaded = load_constitution(origin, allow=given[1], models=given[2])
            self._refuse_changed_cores(loaded)
            before = self._constitution
            old = () if before is None else before.contracts
            draft = self._core.registry.with_replaced(old, loaded.contracts)
            self._coverage.check_names(loaded.contracts, loaded.bindings)
            for original, rules in self._originals():
                check_registered(draft, original, rules)
            if before is not None:
                loaded = loaded.keeping(before)  # only now: objects that are in force take another mode here
                draft = self._core.registry.with_replaced(old, loaded.contracts)
            self._coverage.bindings = loaded.bindings
            self._core.registry.adopt(draft)
            self._constitution, self._source = loaded, given
        return loaded

    def _refuse_changed_cores(self, loaded: Constitution, also: Iterable[type[Instruction]] = ()) -> None:
        """A core with other members is another class: what goes by the old members would silently match no rule."""
        used = set(self._named)
        for original, rules in self._originals():
            used |= {instruction for _, instruction in nodes_in(original, rules) if instruction is not None}
        before = () if self._constitution is None else self._constitution.contracts
        for contract in self._core.registry.contracts():
            if contract not in before:
                used.update(contract.target_instructions or ())
        cores = {*also, *(type(instruction) for instruction in used)}
        mistakes = [
            replace(
                loaded.core_places[core.__name__],
                message=f"expected the members of {core.__name__} that are in force, with `acts` and `unverified` as "
                "they are, since a governed graph or a contract goes by them. Give the changed core another name, or "
                "restart",
            )
            for core in cores
            if core.__module__ == _CORES and loaded.cores.get(core.__name__, core) is not core
        ]
        if mistakes:
            raise PackError(mistakes)

    def load_shadow(
        self,
        source: str | Path | Traversable | None,
        *,
        allow: Iterable[str] = (),
        models: Mapping[str, Any] | None = None,
    ) -> None:
        """Let a second constitution decide beside the one in force, without effect; None ends that. What was
        compared so far is forgotten."""
        from arbiter.constitution import all_or_nothing, load_constitution

        shadow = None
        if source is not None:
            shadow = Registry()
            with all_or_nothing(), self._lock:
                loaded = load_constitution(source, allow=allow, models=models)
                in_force = self._constitution
                self._refuse_changed_cores(loaded, () if in_force is None else in_force.cores.values())
                self._coverage.check_names(loaded.contracts)
            for contract in loaded.contracts:
                if contract.enforced:
                    contract.mode = "audit"  # whatever it does besides answering has no effect either
                    shadow.add(contract)
        self._core.settings.shadow.clear()
        self._core.registry.watch(shadow)

    def shadow_report(self) -> ShadowReport:
        """Every decision in which the shadow constitution differs from the one in force."""
        return self._core.settings.shadow.report()

    @property
    def _bindings(self) -> Sequence[BindingPack]:
        return () if self._constitution is None else self._constitution.bindings

    # Registration

    def add_policy_checker(self, checker: PolicyChecker) -> None:
        """Check this before every node that it applies to. Takes effect for graphs governed before, too."""
        self._add(checker, PolicyChecker, "add_policy_checker")

    def add_policy_router(self, router: PolicyRouter) -> None:
        """Ask this after every node that it applies to. The first router that answers wins."""
        self._add(router, PolicyRouter, "add_policy_router")

    def add_evaluator(self, evaluator: NodeEvaluator) -> None:
        """Judge with this after every node that it applies to."""
        self._add(evaluator, NodeEvaluator, "add_evaluator")

    def add_evaluation_cycle(self, cycle: EvaluatorCycle) -> None:
        """Run with this those evaluators that it takes, such as the cognitive ones. There is one at most."""
        given: Any = cycle
        if not isinstance(given, EvaluatorCycle):
            raise RegistrationError(
                f"add_evaluation_cycle got {given!r:.80}; expected an arbiter.memory.EvaluationCycle."
            )
        self._core.registry.add_cycle(given)

    def remove_evaluator(self, name: str) -> None:
        """Judge with that evaluator no more. What it has found so far stays in the history."""
        with self._lock:
            needed = [c for c in self._core.registry.contracts() if name in getattr(c, "needs", ())]
            if needed:
                raise RegistrationError(f"{needed[0].kind} {needed[0].name!r} reads the results of {name!r}.")
            self._core.registry.remove_evaluator(name)

    @property
    def evaluators(self) -> Sequence[NodeEvaluator]:
        """Those that are registered, in that order."""
        return tuple(lane.evaluator for lane in list(self._core.registry.evaluators))

    @property
    def evaluation_cycle(self) -> EvaluatorCycle | None:
        """What runs the cognitive evaluators: the cycle that was added, else the one that the first of them brought."""
        return self._core.registry.cycle

    def add_advisor(self, advisor: Advisor) -> None:
        """Let this add transient context to every call of the nodes that it applies to."""
        self._add(advisor, Advisor, "add_advisor")

    def add_correction_gate(self, gate: CorrectionGate) -> None:
        """Judge every draft of the nodes that this applies to before it is committed."""
        self._add(gate, CorrectionGate, "add_correction_gate")

    def _add(self, contract: object, kind: type[Contract], adder: str) -> None:
        if isinstance(contract, type) and issubclass(contract, kind):
            raise RegistrationError(
                f"{adder} got the class {contract.__name__}; make an object of it: {contract.__name__}(...)."
            )
        if not isinstance(contract, kind):
            raise RegistrationError(
                f"{adder} got {contract!r}; expected a {kind.__name__}. Subclass arbiter.{kind.__name__}."
            )
        contract.ensure_valid()
        with self._lock:
            self._coverage.check_names([contract])
            for original, rules in self._originals():
                check_contract(contract, self._core.registry, original, rules)
            self._core.registry.add(contract)

    def instruction(
        self,
        instruction: Instruction | str,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
    ) -> Callable[[T], T]:
        """A label for a node function, which stays callable as it was; `govern` reads it.

        The schemas are anything that pydantic validates. Input that does not fit is denied before the function
        runs; output that does not fit is an `OutputSchemaError`.
        """
        label = Label(find_instruction(instruction), None)
        self._named.add(label.instruction)
        label.schemas = schemas_of((input_schema, output_schema), "the labelled function")

        def attach_label(function: T) -> T:
            attach(function, label)
            self._coverage.add([(_name_of(function), label.instruction)])
            return function

        return attach_label

    # Governing

    @overload
    def govern(
        self,
        target: StateGraph[StateT, ContextT, InputT, OutputT],
        instructions: Mapping[str, Instruction | str] | None = None,
        *,
        schemas: Mapping[str, Any] | None = None,
    ) -> CompiledStateGraph[StateT, ContextT, InputT, OutputT]: ...
    @overload
    def govern(
        self,
        target: G,
        instructions: Mapping[str, Instruction | str] | None = None,
        *,
        schemas: Mapping[str, Any] | None = None,
    ) -> G: ...
    @overload
    def govern(
        self, target: T, *, instruction: Instruction | str | None = None, schemas: Any = None
    ) -> T: ...
    def govern(
        self,
        target: Any,
        instructions: Mapping[str, Instruction | str] | None = None,
        *,
        schemas: Any = None,
        instruction: Instruction | str | None = None,
    ) -> Any:
        """A governed copy of a compiled graph, a builder (which is compiled first), a function or a Runnable.

        `instructions` and `schemas` go by node name; a node of a subgraph is `parent:child`. For a function or a
        Runnable, `instruction` is its instruction and `schemas` its own pair. The original stays as it was.
        """
        graph: Any = target
        if isinstance(target, StateGraph):
            target = graph = graph.compile()
        if isinstance(target, Pregel):
            if instruction is not None:
                raise ConfigurationError(
                    "instruction= is for a function; a graph takes instructions={'node': ...}."
                )
            return self._govern_graph(graph, instructions, schemas)
        if instructions is not None:
            raise ConfigurationError("instructions= is for a graph; a function takes instruction=.")
        return self._govern_callable(target, instruction, schemas)

    def _govern_graph(
        self,
        graph: Graph,
        instructions: Mapping[str, Instruction | str] | None,
        schemas: Mapping[str, Any] | None,
    ) -> Graph:
        if (ledger := ledger_of(graph)) is not None:
            if ledger.core is not self._core:
                raise ConfigurationError(
                    "this graph is governed by another ArbiterOS already. Govern the original graph instead."
                )
            if not instructions and not schemas:
                return graph
            graph = ledger.origin.graph
        rules = rules_for(graph, instructions, schemas, strict=self._strict, packs=self._bindings)
        nodes = nodes_in(graph, rules)
        with self._lock:
            check_registered(self._core.registry, graph, rules)
            self._check_names(name for name, _ in nodes)
            governed = weave(graph, self._core, rules)
            self._governed.add(cast(Any, ledger_of(governed)).origin)
            self._coverage.add(nodes)
        self._coverage.report_missing_instructions()
        return governed

    def _check_names(self, nodes: Iterable[str]) -> None:
        self._coverage.check_names(self._core.registry.contracts(), self._bindings, among=nodes)

    def _originals(self) -> list[tuple[Graph, Rules]]:
        """The graphs that are governed, as they were before, and by which rules."""
        # They are kept by the governed graph, and not here: a node's function may hold that, `self.app` say, and would
        # keep it alive as long as this object.
        return [(origin.graph, origin.rules) for origin in self._governed]

    def _govern_callable(self, target: Any, instruction: Instruction | str | None, schemas: Any) -> Any:
        body: Any = target
        if isinstance(target, type) or not (isinstance(target, Runnable) or callable(target)):
            raise NotAGraphError(
                f"cannot govern {target!r}: expected a compiled graph, a StateGraph, a function or a Runnable."
            )
        label = label_of(target)
        found = find_instruction(instruction) if instruction is not None else None
        name = _name_of(target)
        shapes: Schemas | None = schemas_of(schemas, name)
        if label is not None:
            found, shapes = found or label.instruction, shapes or label.schemas
        if found is not None:
            self._named.add(found)
        self._coverage.add([(name, found)])
        if isinstance(target, Runnable):
            return GovernedRunnable(self._core, body, name, found, shapes)
        return govern_function(self._core, target, name, found, shapes)

    def lint(
        self,
        graph: Graph | Builder,
        *,
        instructions: Mapping[str, Instruction | str] | None = None,
    ) -> LintReport:
        """What is wrong with a graph and with what is registered for it; nothing is run. See docs/linting.md.

        `instructions` as for `govern`. A governed graph is looked at with those that it was governed with.
        """
        from arbiter.linting import lint
        from arbiter.linting.linter import compiled

        target = compiled(graph)
        ledger = None if instructions else ledger_of(graph)
        if ledger is None:
            rules = rules_for(target, instructions, None, strict=False, packs=self._bindings)
        else:
            rules = ledger.origin.rules
        return lint(target, self._core.registry, rules, strict=self._strict)

    # Running

    def execute(
        self,
        state: Any,
        target: Any,
        config: RunnableConfig | None = None,
        context: Any = None,
        *,
        instruction: Instruction | str | None = None,
    ) -> Any:
        """Run `target` governed on `state`: a graph or builder as its `invoke` would, or one node function or
        Runnable as one step. Governing a graph is remembered, so a second call weaves nothing."""
        runnable, config = self._runnable(state, target, config, context, instruction)
        return runnable.invoke(state, config, **_context(runnable, context))

    async def aexecute(
        self,
        state: Any,
        target: Any,
        config: RunnableConfig | None = None,
        context: Any = None,
        *,
        instruction: Instruction | str | None = None,
    ) -> Any:
        """As `execute`, with `ainvoke`."""
        runnable, config = self._runnable(state, target, config, context, instruction)
        return await runnable.ainvoke(state, config, **_context(runnable, context))

    def _runnable(
        self,
        state: Any,
        target: Any,
        config: RunnableConfig | None,
        context: Any,
        instruction: Instruction | str | None,
    ) -> tuple[Any, RunnableConfig | None]:
        if isinstance(target, StateGraph | Pregel):
            if instruction is not None:
                raise ConfigurationError(
                    "instruction= is for a function; govern the graph with instructions={...} first."
                )
            return self._remembered(target), config
        if isinstance(target, GovernedRunnable):
            return target, config
        if not callable(target) and (callable(state) or isinstance(state, StateGraph | Runnable)):
            given = cast(object, state)
            raise NotAGraphError(
                f"the state comes first, as in execute(state, graph); got {type(given).__name__} and {target!r:.80}."
            )
        if callable(target) and not isinstance(target, Runnable | type):
            self._check_names([_name_of(target)])
            label = label_of(target)
            # As a node of a graph gets them: config, runtime, store and writer are injected by name.
            target = _labelled(
                langgraph_runnables.coerce_to_runnable(target, name=_name_of(target), trace=False), label
            )
            runtime = Runtime(context=context)
            config = {**(config or {})}
            config["configurable"] = {
                **config.get("configurable", {}),
                "__pregel_runtime": runtime,
            }
        return self._govern_callable(target, instruction, None), config

    def _remembered(self, graph: Any) -> Graph:
        mark = _fingerprint(graph)
        with self._lock:
            known = self._woven.get(id(graph))
            if known is not None and known[0] is graph and known[1] == mark:
                self._woven.move_to_end(id(graph))
                return known[2]
            governed = cast(Graph, self.govern(graph))
            if governed is not graph:
                # With the graph itself, so that its id is not given away; bounded, for graphs made per request.
                self._woven[id(graph)] = (graph, mark, governed)
                if len(self._woven) > _REMEMBERED:
                    self._woven.popitem(last=False)
            return governed

    # Looking

    @property
    def history(self) -> RunHistory:
        """The run of the current context; without one, the latest run. Raises `AmbiguousHistoryError` if that may be
        somebody else's, because several threads are known or runs overlapped."""
        return self._core.recorder.current()

    def history_of(self, *, thread_id: str) -> RunHistory:
        """All runs of that thread that are in memory. Warns if the thread may have been forgotten."""
        return self._core.recorder.of_thread(str(thread_id))

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until no evaluation is pending; False if `timeout` seconds were too short."""
        return self._background.drain(timeout)

    async def adrain(self, timeout: float | None = None) -> bool:
        """As `drain`, without blocking the event loop."""
        # A daemon thread of its own: the loop's executor would hold up the loop's end.
        return bool(await asyncio.wrap_future(start(lambda: self.drain(timeout))))


def _context(runnable: Any, context: Any) -> dict[str, Any]:
    return {"context": context} if context is not None and isinstance(runnable, Pregel) else {}


def _labelled(runnable: Any, label: Label | None) -> Any:
    if label is not None:
        attach(runnable, label)
    return runnable


def _fingerprint(graph: Any) -> Any:
    """What changes when a builder is built further. A compiled graph does not change."""
    builder: Any = graph
    if not isinstance(graph, StateGraph):
        return None
    return (
        tuple((name, id(spec)) for name, spec in builder.nodes.items()),
        frozenset(builder.edges),
        frozenset(builder.waiting_edges),
        tuple((start, tuple(branches)) for start, branches in builder.branches.items()),
    )


def _name_of(target: Any) -> str:
    if isinstance(target, Runnable):
        return target.get_name()
    while not hasattr(target, "__name__") and hasattr(target, "func"):
        target = target.func
    return getattr(target, "__name__", None) or type(target).__name__


def _whole(name: str, value: object, *, none: bool = False) -> None:
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        hint = ", or None for all" if none else ""
        raise ConfigurationError(f"{name} is {value!r}; expected a whole number from 1{hint}.")
