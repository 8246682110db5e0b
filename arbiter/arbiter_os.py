"""`ArbiterOS`, the facade: registers contracts, governs graphs, runs them, and shows their history."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack, cast, overload

import langgraph._internal._runnable as langgraph_runnables
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from langgraph.typing import ContextT, InputT, OutputT, StateT

from arbiter._constitution.functions import (
    Checks,
    Evaluates,
    FunctionChecker,
    FunctionEvaluator,
    FunctionRouter,
    Routes,
    rule_of,
)
from arbiter._contracts import ADDERS, Contract
from arbiter._lifecycle.background import Background
from arbiter._lifecycle.core import Core
from arbiter._lifecycle.registry import Plan, Registry, shadow_of
from arbiter._lifecycle.runs import Schemas, Settings
from arbiter._lifecycle.shadow import ShadowReport
from arbiter._threads.deadlines import start
from arbiter._threads.forks import new_rlock
from arbiter._values.recent import Recent
from arbiter._values.states import Snapshot, has_parts_of, is_number, is_whole
from arbiter._weaving.channel import Origin
from arbiter._weaving.coverage import Coverage, report_unused
from arbiter._weaving.executions import report_executions
from arbiter._weaving.functions import Governed, GovernedRunnable, govern_function
from arbiter._weaving.govern import (
    Label,
    attach,
    check_contract,
    check_registered,
    is_by_node,
    label_of,
    nodes_in,
    rules_for,
    schemas_of,
    warn_of_other_rules,
)
from arbiter._weaving.graph import Rules, facts_channel_of, unbound, weave, with_graphs
from arbiter._weaving.runtimes import with_runtime
from arbiter._weaving.tools import HeldTools
from arbiter.advice import Advisor, CorrectionGate
from arbiter.errors import (
    ArbiterWarning,
    ConfigurationError,
    NotAGraphError,
    PackError,
    RegistrationError,
    callers,
)
from arbiter.evaluation import EvaluatorGroup, NodeEvaluator
from arbiter.history._facts import KEEP
from arbiter.history._items import RunHistory
from arbiter.history._record import Described
from arbiter.history._recorder import KEEP_THREADS, Recorder
from arbiter.instructions import Instruction, find_instruction
from arbiter.listening import HistoryListener, ensure_listener
from arbiter.plugins import Plugin
from arbiter.policy import PolicyChecker, PolicyRouter

if TYPE_CHECKING:
    from arbiter._constitution.bindings import BindingPack
    from arbiter._constitution.loading import Constitution, Source
    from arbiter.linting import LintReport

Graph = Pregel[Any, Any, Any, Any]
_Source = tuple[Any, tuple[str, ...], Mapping[str, Any] | None]
Builder = StateGraph[Any, Any, Any, Any]
_REMEMBERED = 128
_CORES = "arbiter._constitution.loading"
"""The module of cores that packs declare."""
T = TypeVar("T")
G = TypeVar("G", bound=Graph)


class ArbiterOS:
    """Governs LangGraph graphs. One `ArbiterOS` can govern many graphs, threads and concurrent runs.

    `keep` bounds the items of each thread that stay in memory (None: all); totals stay exact. `keep_threads`
    bounds the threads whose items stay (None: all); the thread that ran longest ago is dropped first. Items
    hold the states of their nodes, so these two bound the memory of an `ArbiterOS`. `snapshot` says how the
    history copies a node's input and output: a `"shallow"` copy, a `"deep"` copy, or a `"digest"` of each
    field. Rules see the states of the node run itself in any case. With `strict`, a graph with a node that has
    no instruction is refused. `facts` is the number of facts about past node runs in a checkpoint; see
    docs/design/history.md. `clock` says when something begins; how long it takes is measured apart, so a clock
    that is set back or stands still makes no duration 0.
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
        listeners: Iterable[HistoryListener] = (),
        ledger: Any = None,
    ) -> None:
        _whole("keep", keep, none=True)
        _whole("keep_threads", keep_threads, none=True)
        _whole("facts", facts)
        given: Any = snapshot
        if not isinstance(given, str) or given not in ("shallow", "deep", "digest"):
            raise ConfigurationError(f"snapshot is {snapshot!r}; expected 'shallow', 'deep' or 'digest'.")
        if not callable(clock):
            raise ConfigurationError(f"clock is {clock!r}; expected a function that returns POSIX seconds.")
        self._strict = strict
        self._background = Background()
        registry = Registry()
        self._coverage = Coverage(registry)
        settings = Settings(snapshot, self._background, facts, _read(clock))
        self._core = Core(registry, Recorder(keep, keep_threads), settings, self._coverage.report)
        self._functions = replace(self._core, planned=self._coverage.check_functions)
        # A step of `execute` is one of several, so rules may be meant for steps that are not known yet.
        self._steps = replace(self._core, planned=_unchecked)
        self._constitution: Constitution | None = None
        self._source: _Source | None = None
        self._lock = new_rlock()
        self._plugins: dict[str, Plugin] = {}
        self._named: set[Instruction] = set()
        """Instructions of labels and functions, which this object does not keep itself."""
        self._woven = Recent[int, tuple[Any, Any, Graph]](_REMEMBERED)
        self._governed: weakref.WeakSet[Origin] = weakref.WeakSet()
        self._graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        self._recording: Any = None
        """The listener that writes to the ledger; None without one."""
        for listener in listeners:
            self.add_listener(listener)
        if ledger is not None:
            self._record_in(ledger)

    def _record_in(self, ledger: Any) -> None:
        opened: Any = ledger
        if isinstance(ledger, str | os.PathLike):
            # Imported by name: the core does not depend on what stands on it.
            opened = importlib.import_module("arbiter.ledger").Ledger(ledger)
        elif not hasattr(ledger, "recording"):
            raise ConfigurationError(f"ledger is {ledger!r:.80}; expected a Ledger, a path or a URL.")
        self.ledger = opened
        self._recording = opened.recording()
        if self._constitution is not None:
            self._recording.keep(self._constitution.records)
        self.add_listener(self._recording)
        if opened.checker is not None:
            self.add_policy_checker(opened.checker)

    def add_listener(self, listener: HistoryListener) -> None:
        """Report to `listener` everything that happens from the next node run on, in the graphs that this
        object governs. The same listener twice counts once.
        """
        if ensure_listener(listener) not in self._core.settings.listeners:
            self._core.settings.listeners.append(listener)
            self._core.settings.keeps_times |= listener.keeps_times
            if listener.keeps_facts:
                self._core.registry.keep_facts()
            for graph in list(self._graphs):
                report_executions(graph)

    # Copies

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns the same object: graphs, counts and records belong to one `ArbiterOS`."""
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
        source: Source,
        *,
        allow: Iterable[str] = (),
        models: Mapping[str, Any] | None = None,
        shadow: Source | None = None,
        **options: Any,
    ) -> Self:
        """Create an `ArbiterOS` that is governed by packs.

        `source` is a folder with `instructions/`, `policies/` and `evaluators/`, one YAML file, or a pack
        that ships with Arbiter ("arbiter:kernel"); a list names several of these.

        `allow` are prefixes of dotted paths, such as "mycompany.", under which packs may name classes;
        `models` are chat models by the names that packs use. `shadow` is a second constitution, which decides
        next to the first without effect; see `shadow_report`. `options` are those of `ArbiterOS`. Raises
        `PackError` with every mistake in every file.
        """
        from arbiter._constitution.loading import prefixes_of

        ledger = options.pop("ledger", None)
        arbiter_os = cls(**options)
        allow = prefixes_of(allow)
        loaded = [arbiter_os._load(source, allow, models)]
        if shadow is not None:
            loaded.append(arbiter_os._load_shadow(shadow, allow, models, is_recorded=ledger is not None))
        if ledger is not None:
            arbiter_os._record_in(ledger)  # last: a mistake in a pack makes no file
        report_unused(loaded, allow, models)
        return arbiter_os

    @property
    def constitution(self) -> Constitution | None:
        """The constitution in force, as declared by packs; None if none was loaded."""
        return self._constitution

    def load_constitution(
        self,
        source: Source | None = None,
        *,
        allow: Iterable[str] = (),
        models: Mapping[str, Any] | None = None,
    ) -> Constitution:
        """Replace the constitution in force; without `source`, read the current one again.

        If it cannot be loaded, or does not fit a governed graph, this raises and the old one stays in force.
        It applies from the next node on, also to graphs governed before and to paused runs, whose next node
        is checked again. Unchanged rules keep their counts. Contracts that code registered stay, after those
        of the constitution. New bindings of nodes to instructions take effect when the graph is governed
        again. Warns of `allow` prefixes and `models` that no rule uses. Without any, those given before are used
        when the current one is read again.
        """
        from arbiter._constitution.loading import prefixes_of

        prefixes = prefixes_of(allow)
        before = self._source if source is None else (source, (), None)
        if before is None:
            raise ConfigurationError("no constitution was loaded before. Pass a source.")
        loaded = self._load(before[0], prefixes or before[1], before[2] if models is None else models)
        report_unused([loaded], prefixes, models)
        return loaded

    def _load(self, source: Source, allow: tuple[str, ...], models: Mapping[str, Any] | None) -> Constitution:
        # Imported here, so that programs without packs do not import YAML.
        from arbiter._constitution.loading import all_or_nothing, load_constitution

        if isinstance(source, list):
            source = tuple(source)
        with all_or_nothing(), self._lock:
            loaded = load_constitution(source, allow=allow, models=models)
            self._refuse_changed_cores(loaded)
            before = self._constitution
            old = () if before is None else before.contracts
            draft = self._core.registry.with_replaced(old, loaded.contracts)
            self._coverage.check_names(loaded.contracts, loaded.bindings)
            for original, rules in self._originals():
                check_registered(draft, original, rules)
            if before is not None:
                loaded = loaded.keeping(before)  # last: it changes contracts that are in force
                draft = self._core.registry.with_replaced(old, loaded.contracts)
            self._coverage.bindings = loaded.bindings
            self._core.registry.adopt(draft, Described.of(loaded.text))
            self._constitution, self._source = loaded, (source, allow, models)
            self._core.settings.records = loaded.records
            if self._recording is not None:
                self._recording.keep(loaded.records)
        return loaded

    def _refuse_changed_cores(self, loaded: Constitution, also: Iterable[type[Instruction]] = ()) -> None:
        """Raise if a core in use has changed members: it is another class, so rules for its old members would
        never match again.
        """
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
                "they are, since a governed graph or a contract uses them. Give the changed core another name, or "
                "restart",
            )
            for core in cores
            if core.__module__ == _CORES and loaded.cores.get(core.__name__, core) is not core
        ]
        if mistakes:
            raise PackError(mistakes)

    def load_shadow(
        self,
        source: Source | None,
        *,
        allow: Iterable[str] = (),
        models: Mapping[str, Any] | None = None,
    ) -> None:
        """Let a second constitution decide next to the one in force, without effect; None ends that.

        Earlier comparisons are dropped.
        """
        from arbiter._constitution.loading import prefixes_of

        if source is not None:
            allow = prefixes_of(allow)
            is_recorded = self._recording is not None
            report_unused([self._load_shadow(source, allow, models, is_recorded=is_recorded)], allow, models)
            return
        self._core.settings.shadow.clear()
        self._core.registry.watch(None)

    def _load_shadow(
        self, source: Source, allow: tuple[str, ...], models: Mapping[str, Any] | None, *, is_recorded: bool
    ) -> Constitution:
        from arbiter._constitution.loading import all_or_nothing, load_constitution

        with all_or_nothing(), self._lock:
            loaded = load_constitution(source, allow=allow, models=models)
            in_force = self._constitution
            self._refuse_changed_cores(loaded, () if in_force is None else in_force.cores.values())
            self._coverage.check_names(loaded.contracts)
        shadow = shadow_of(loaded.contracts)
        self._core.settings.shadow.clear()
        self._core.registry.watch(shadow)
        if is_recorded and loaded.records is not None:
            before = None if in_force is None or in_force.records is None else in_force.records.to_dict()
            if loaded.records.to_dict() != before:
                warnings.warn(
                    f"{loaded.records.source}: these records have no effect, because a shadow constitution only "
                    "compares decisions. They hold once it is in force.",
                    ArbiterWarning,
                    stacklevel=callers(),
                )
        return loaded

    def shadow_report(self) -> ShadowReport:
        """Every decision in which the shadow constitution differs from the one in force."""
        return self._core.settings.shadow.report()

    @property
    def _bindings(self) -> Sequence[BindingPack]:
        return () if self._constitution is None else self._constitution.bindings

    # Registration

    def add_policy_checker(self, checker: PolicyChecker) -> None:
        """Call this checker before every node to which it applies. Takes effect for graphs governed before,
        too.
        """
        self._add(checker, PolicyChecker)

    def add_policy_router(self, router: PolicyRouter) -> None:
        """Call this router after every node to which it applies. The first router that answers wins."""
        self._add(router, PolicyRouter)

    def add_evaluator(self, evaluator: NodeEvaluator) -> None:
        """Judge every node to which this evaluator applies, after the node."""
        self._add(evaluator, NodeEvaluator)

    @overload
    def checker(self, function: Checks, /) -> Checks: ...
    @overload
    def checker(self, /, **options: Unpack[FunctionChecker]) -> Callable[[Checks], Checks]: ...
    def checker(self, function: Any = None, /, **options: Any) -> Any:
        """A decorator: call this function as a checker before every node to which it applies.

        The names of its parameters select its arguments: `state` (the node's input), `item`, `history`. A
        function with the parameter `output` checks the node's output before it is committed. The options are
        those of `PolicyChecker`; `name` is by default the name of the function. The function itself does not
        change.
        """
        return self._rule(PolicyChecker, function, options)

    @overload
    def router(self, function: Routes, /) -> Routes: ...
    @overload
    def router(self, /, **options: Unpack[FunctionRouter]) -> Callable[[Routes], Routes]: ...
    def router(self, function: Any = None, /, **options: Any) -> Any:
        """A decorator, as `checker`: ask this function after every node that it applies to.

        It can name `state`, `output`, `current_output` (what the node returned, itself), `item` and `history`. The
        options are those of `PolicyRouter`, and its `targets` and `needs`.
        """
        return self._rule(PolicyRouter, function, options)

    @overload
    def evaluator(self, function: Evaluates, /) -> Evaluates: ...
    @overload
    def evaluator(self, /, **options: Unpack[FunctionEvaluator]) -> Callable[[Evaluates], Evaluates]: ...
    def evaluator(self, function: Any = None, /, **options: Any) -> Any:
        """A decorator, as `checker`: judge with this function after every node that it applies to.

        It can name `state`, `output`, `item` and `history`. The options are those of `NodeEvaluator`, and its
        `needs`.
        """
        return self._rule(NodeEvaluator, function, options)

    def _rule(self, contract: type[Contract], function: Any, options: Mapping[str, Any]) -> Any:
        def register(function: Any) -> Any:
            self._add(rule_of(function, contract, options), contract)
            return function

        return register if function is None else register(function)

    def add_evaluation_cycle(self, cycle: EvaluatorGroup) -> None:
        """Run the evaluators that this cycle takes, such as the cognitive ones, in it. There can be only one
        cycle.
        """
        given: Any = cycle
        if not isinstance(given, EvaluatorGroup):
            raise RegistrationError(
                f"add_evaluation_cycle got {given!r:.80}; expected an arbiter.memory.EvaluationCycle."
            )
        self._core.registry.add_group(given)

    def use(self, plugin: Plugin, config: Mapping[str, Any] | None = None) -> None:
        """Register everything in a plugin, or nothing if a part of it cannot be registered.

        Using the same plugin again changes nothing. `config` is passed to its `init`.
        """
        given: Any = plugin
        if not isinstance(given, Plugin):
            raise RegistrationError(f"use got {given!r:.80}; expected an arbiter.Plugin.")
        name: Any = plugin.name
        if not isinstance(name, str) or not name.strip():
            raise RegistrationError(f"a plugin has the name {name!r}; expected a non-empty text.")
        if inspect.iscoroutinefunction(plugin.init):
            raise RegistrationError(f"plugin {name!r} has an async init; expected a def.")
        with self._lock:
            if (known := self._plugins.get(name)) is not None:
                if known is plugin:
                    return
                raise RegistrationError(
                    f"a plugin named {name!r} is used already. Give this one another name."
                )
            before = [id(contract) for contract in self._core.registry.registered(Contract)]
            try:
                if plugin.init is not None:
                    plugin.init({} if config is None else config, self)
                for evaluator in plugin.evaluators:
                    self.add_evaluator(evaluator)
                for provider in plugin.providers:
                    self.add_advisor(provider)
                if plugin.cycle is not None:
                    self.add_evaluation_cycle(plugin.cycle)
            except BaseException:
                # In reverse: an evaluator that another one reads cannot be removed before it.
                for contract in reversed(self._core.registry.registered(Contract)):
                    if id(contract) not in before:
                        self._core.registry.remove(contract)
                raise
            self._plugins[name] = plugin

    def remove(self, rule: str | Contract) -> None:
        """Remove a rule: a checker, router, evaluator, advisor or correction gate, given as the object or by
        its name.

        Governed graphs continue without it, from the next node on. The history keeps its decisions and
        results. Raises `RegistrationError` if two rules have the name, or if another rule reads the results
        of this evaluator.
        """
        with self._lock:
            self._core.registry.remove(self._core.registry.named(rule) if isinstance(rule, str) else rule)

    def remove_evaluator(self, name: str) -> None:
        """As `remove`, for the evaluator with that name."""
        with self._lock:
            self._core.registry.remove(self._core.registry.named(name, NodeEvaluator))

    @property
    def checkers(self) -> Sequence[PolicyChecker]:
        """The registered checkers, in the order in which they are called."""
        return self._core.registry.registered(PolicyChecker)

    @property
    def routers(self) -> Sequence[PolicyRouter]:
        """The registered routers, in the order in which they are called."""
        return self._core.registry.registered(PolicyRouter)

    @property
    def evaluators(self) -> Sequence[NodeEvaluator]:
        """The registered evaluators, in the order of registration."""
        return self._core.registry.registered(NodeEvaluator)

    @property
    def evaluation_cycle(self) -> EvaluatorGroup | None:
        """The cycle of the cognitive evaluators: the one that was added, else the default of the first such
        evaluator.
        """
        return self._core.registry.group

    def add_advisor(self, advisor: Advisor) -> None:
        """Let this advisor add transient context to every call of the nodes to which it applies."""
        self._add(advisor, Advisor)

    def add_correction_gate(self, gate: CorrectionGate) -> None:
        """Let this gate judge every draft of the nodes to which it applies, before it is committed."""
        self._add(gate, CorrectionGate)

    def _add(self, contract: object, kind: type[Contract]) -> None:
        adder = ADDERS[kind.kind]
        if isinstance(contract, type) and issubclass(contract, kind):
            raise RegistrationError(
                f"{adder} got the class {contract.__name__}; make an object of it: {contract.__name__}(...)."
            )
        if not isinstance(contract, kind):
            given = cast(Any, contract)
            remedy = f"Subclass arbiter.{kind.__name__}."
            if isinstance(given, Contract):
                remedy = f"Register it with arbiter_os.{ADDERS[given.kind]}."
            if inspect.isroutine(given) and hasattr(self, kind.kind):
                remedy = f"Decorate the function with @arbiter_os.{kind.kind}."
            raise RegistrationError(f"{adder} got {given!r}; expected a {kind.__name__}. {remedy}")
        contract.ensure_valid()
        with self._lock:
            if any(contract is known for known in self._core.registry.registered(kind)):
                return
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
        """A decorator that labels a node function for `govern`. The function itself does not change.

        The schemas are anything that pydantic validates. If the input does not fit, the function is not run
        and the node is denied; if the output does not fit, the node raises `OutputSchemaError`.
        """
        label = Label(find_instruction(instruction))
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

        `instructions` and `schemas` are mappings by node name; a node of a subgraph is `parent:child`. For a
        function or a Runnable, `instruction` is its instruction and `schemas` its own pair. A binding such as
        `graph.with_retry()` is governed as its graph. Any other Runnable, such as `graph | parser` or a
        `RemoteGraph`, is one step around the nodes of its graphs, and its copy has the methods of every Runnable
        only. The original does not change.
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
        by_node = instructions is not None or schemas is None or is_by_node(schemas)
        if instruction is None and by_node and self._is_bound(target):
            return with_graphs(target, lambda graph: self._govern_graph(graph, instructions, schemas))
        if instructions is not None:
            raise ConfigurationError(
                "instructions= is for a graph; a function or another Runnable takes instruction=. Govern a graph "
                "that is a part of it with instructions={...} first."
            )
        return self._govern_callable(target, instruction, schemas, self._functions, self.govern)

    def _is_bound(self, target: Any) -> bool:
        """True for a graph in bindings, unless they are labelled as one step or another `ArbiterOS` governs it."""
        channel = facts_channel_of(graph := unbound(target))
        is_own = channel is None or channel.core is self._core
        return isinstance(graph, Pregel) and label_of(target) is None and is_own

    def _govern_graph(
        self,
        graph: Graph,
        instructions: Mapping[str, Instruction | str] | None,
        schemas: Mapping[str, Any] | None,
    ) -> Graph:
        if (channel := facts_channel_of(graph)) is not None:
            if channel.core is not self._core:
                raise ConfigurationError(
                    "this graph is already governed by another ArbiterOS. Govern the original graph instead."
                )
            if not instructions and not schemas:
                return graph
            graph = channel.origin.graph
        rules = rules_for(graph, instructions, schemas, strict=self._strict, packs=self._bindings)
        nodes = nodes_in(graph, rules)
        with self._lock:
            check_registered(self._core.registry, graph, rules)
            self._check_names(name for name, _ in nodes)
            governed = weave(graph, self._core, rules)
            if self._core.settings.listeners:
                report_executions(governed)
            self._graphs.add(governed)
            self._governed.add(cast(Any, facts_channel_of(governed)).origin)
            self._coverage.add(nodes)
        warn_of_other_rules(graph, self._core)
        self._coverage.report_missing_instructions()
        return governed

    def _check_names(self, nodes: Iterable[str]) -> None:
        self._coverage.check_names(self._core.registry.contracts(), self._bindings, among=nodes)

    def _originals(self) -> list[tuple[Graph, Rules]]:
        """The originals of the governed graphs, with their rules."""
        # The governed graph keeps them, not this object: a node's function may refer to the governed graph
        # (as `self.app`, say), which would then live as long as this object.
        return [(origin.graph, origin.rules) for origin in self._governed]

    def _govern_callable(
        self,
        target: Any,
        instruction: Instruction | str | None,
        schemas: Any,
        core: Core,
        govern: Callable[[Any], Any],
    ) -> Any:
        """A governed copy of a function or a Runnable. `govern` governs the graphs in it."""
        body: Any = target
        if isinstance(target, type) or not (isinstance(target, Runnable) or callable(target)):
            raise NotAGraphError(
                f"cannot govern {target!r}: expected a compiled graph, a StateGraph, a function or a Runnable."
            )
        label = label_of(target)
        found = find_instruction(instruction) if instruction is not None else None
        name = _name_of(target)
        shapes: Schemas | None = schemas_of(schemas, f"node {name!r}")
        if label is not None:
            found, shapes = found or label.instruction, shapes or label.schemas
        if found is not None:
            self._named.add(found)
        self._coverage.add([(name, found)])
        governed = Governed(core, name, found, shapes, HeldTools(body))
        if isinstance(target, Runnable):

            def once(graph: Any) -> Any:
                return graph if facts_channel_of(graph) is not None else govern(graph)

            return GovernedRunnable(governed, with_graphs(body, once))
        return govern_function(governed, target)

    def lint(
        self,
        graph: Graph | Builder,
        *,
        instructions: Mapping[str, Instruction | str] | None = None,
    ) -> LintReport:
        """Find mistakes in a graph and its registered rules without running anything. See docs/linting.md.

        `instructions` as for `govern`. A governed graph is checked with the instructions with which it was
        governed.
        """
        from arbiter.linting import lint
        from arbiter.linting._linter import compiled

        target = compiled(graph)
        channel = None if instructions else facts_channel_of(graph)
        if channel is None:
            rules = rules_for(target, instructions, None, strict=False, packs=self._bindings)
        else:
            rules = channel.origin.rules
        return lint(target, self._core.registry, rules, strict=self._strict, bindings=self._bindings)

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
        """Run `target` governed on `state`: a graph or builder like its `invoke`, or one node function or
        Runnable as one step.

        The governed graph is kept, so a second call need not govern it again.
        """
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
        if instruction is None and self._is_bound(target):
            return with_graphs(target, self._remembered), config
        if not callable(target) and (callable(state) or isinstance(state, StateGraph | Runnable)):
            given = cast(object, state)
            raise NotAGraphError(
                f"the state comes first, as in execute(state, graph); got {type(given).__name__} and {target!r:.80}."
            )
        is_function = callable(target) and not isinstance(target, Runnable | type)
        if is_function:
            label = label_of(target)
            # As for a node of a graph, config, runtime, store and writer are injected by name.
            runnables: Any = langgraph_runnables
            target = runnables.coerce_to_runnable(target, name=_name_of(target), trace=False)
            if label is not None:
                attach(target, label)
        if is_function or context is not None:
            config = with_runtime(config, context)
        if isinstance(target, GovernedRunnable):
            return target, config
        if isinstance(target, Runnable):
            self._check_names([_name_of(target)])
        return self._govern_callable(target, instruction, None, self._steps, self._remembered), config

    def _remembered(self, graph: Any) -> Graph:
        mark = _fingerprint(graph)
        with self._lock:
            known = self._woven.get(id(graph))
            if known is not None and known[0] is graph and has_parts_of(known[1], mark):
                self._woven.move_to_end(id(graph))
                return known[2]
            governed = cast(Graph, self.govern(graph))
            if governed is not graph:
                # The entry holds the graph, so that its id is not reused. Bounded, because servers may make a
                # graph per request.
                self._woven[id(graph)] = (graph, mark, governed)
            return governed

    # Looking

    @property
    def history(self) -> RunHistory:
        """The newest run of the current context; without one, the latest run.

        Raises `AmbiguousHistoryError` if that may be another caller's run, because several threads are known
        or runs overlapped.
        """
        return self._with_nodes(self._core.recorder.current())

    def history_of(self, *, thread_id: str) -> RunHistory:
        """All runs of that thread that are in memory. Warns if the thread may have been dropped."""
        return self._with_nodes(self._core.recorder.of_thread(str(thread_id)))

    def _with_nodes(self, history: RunHistory) -> RunHistory:
        history.give_nodes(self._coverage.names)
        return history

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until no evaluation is pending, and work through the conversations that memory has not read yet.

        Returns False if `timeout` seconds were too short.
        """
        end = None if timeout is None else time.monotonic() + timeout
        done = self._background.drain(timeout)
        cycle = self.evaluation_cycle
        return done and (
            cycle is None or cycle.drain(None if end is None else max(end - time.monotonic(), 0))
        )

    async def adrain(self, timeout: float | None = None) -> bool:
        """As `drain`, without blocking the event loop."""
        # A daemon thread of its own, because the loop's executor would delay the end of the loop.
        return bool(await asyncio.wrap_future(start(lambda: self.drain(timeout))))


def _unchecked(plan: Plan, config: RunnableConfig | None) -> None:
    """In the place of a check of the rules."""


def _context(runnable: Any, context: Any) -> dict[str, Any]:
    graph = unbound(runnable.runnable if isinstance(runnable, GovernedRunnable) else runnable)
    return {"context": context} if context is not None and isinstance(graph, PregelProtocol) else {}


def _fingerprint(graph: Any) -> dict[Any, Any]:
    """The parts of a graph, which are others when a builder is built further, or a compiled graph gets a
    checkpointer."""
    builder: Any = graph
    if not isinstance(graph, StateGraph):
        return {**vars(builder)}
    parts = {**builder.nodes, **dict.fromkeys((*builder.edges, *builder.waiting_edges))}
    for source, branches in builder.branches.items():
        parts |= {(source, name, None): branch for name, branch in branches.items()}
    return parts


def _name_of(target: Any) -> str:
    if isinstance(target, Runnable):
        return target.get_name()
    while not hasattr(target, "__name__") and hasattr(target, "func"):
        target = target.func
    return getattr(target, "__name__", None) or type(target).__name__


def _read(clock: Callable[[], float]) -> Callable[[], float]:
    """The clock, with its times checked. Records and checkpoints hold them, so a wrong one would fail late."""
    if clock is time.time:
        return clock

    def read() -> float:
        at = clock()
        try:
            if not is_number(at):
                raise ValueError
            datetime.fromtimestamp(at, UTC)
        except (ValueError, OverflowError, OSError):
            raise ConfigurationError(
                f"clock returned {at!r}; expected POSIX seconds, such as {time.time():.0f}."
            ) from None
        return at

    return read


def _whole(name: str, value: object, *, none: bool = False) -> None:
    if not (is_whole(value, least=1) or (none and value is None)):
        hint = ", or None for all" if none else ""
        raise ConfigurationError(f"{name} is {value!r}; expected a whole number from 1{hint}.")
