"""Targets: what a suite measures. Each answers one case at a time, on a thread of its own.

compiled graph, builder   governed by an `ArbiterOS` of the run's own, unless it is governed already
function without arguments that returns a graph   called once per worker, or once per case if `fresh`
function of one argument  called with the input of the case
mapping from case ids     outputs that were recorded elsewhere
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import AsyncGeneratorType, GeneratorType, MappingProxyType
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from arbiter._contracts import Contract
from arbiter._lifecycle.evaluations import EvaluatorQueue
from arbiter._objects import ensure_sync, ignored_keys, import_from_here, load_graph, load_object
from arbiter._threads.forks import new_lock
from arbiter._values.kinds import is_list, is_mapping
from arbiter._values.versions import version_of
from arbiter._weaving.govern import has_async_nodes
from arbiter._weaving.graph import facts_channel_of
from arbiter._weaving.pausing import pausing_saver
from arbiter._weaving.tools import tools_in
from arbiter.arbiter_os import ArbiterOS
from arbiter.errors import ArbiterWarning, ConfigurationError, nearest
from arbiter.evaluation import NodeEvaluator
from arbiter.harness.canonical import plain_copy
from arbiter.harness.cases import Case
from arbiter.harness.identity import file_hash, file_hashes
from arbiter.harness.judging import judge_settings
from arbiter.harness.scorers import refuse_signature
from arbiter.history._items import RunHistory
from arbiter.personas import PersonaGate
from arbiter.policy import PolicyChecker

_NOTHING: Mapping[str, Any] = MappingProxyType({})
WHOLE = "expected a function that returns the whole answer"


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a target to a case. `waiting` are the questions on which the run waits for a human."""

    output: Any
    waiting: Sequence[Any] = ()


class NotEvaluableError(Exception):
    """There is nothing of the case that could be judged, such as an agent without messages."""


class Target:
    """The thing that a suite measures. It has no nodes unless a subclass says which.

    Each worker has a function of its own, made by `for_worker`, and calls it with a case and the LangGraph thread of
    the case. It returns an `Answered` or, if `is_async`, a coroutine of one.
    """

    __slots__ = ()
    kind: str
    name: str
    is_async: bool
    is_recorded: bool
    """True if its answers are recorded, and replayed without running it."""

    @property
    def evaluators(self) -> Sequence[NodeEvaluator]:
        """The evaluators that judge its node runs."""
        return ()

    def for_worker(self) -> Callable[[Case, str], Any]:
        raise NotImplementedError

    def parts(self) -> Mapping[str, str]:
        """Hashes of the parts of it, by names that a message can give."""
        raise NotImplementedError

    def mistakes(self, cases: Sequence[Case]) -> Iterator[str]:
        """Sentences about what does not fit it: its settings, or these cases."""
        yield from ()

    def version(self) -> str:
        """A hash of what is measured, as far as it is known: the rules, the files, the code of a function."""
        return version_of(dict(self.parts()))

    def begin(self, thread_id: str) -> None:
        """A case begins on that thread."""

    def end(self, thread_id: str) -> None:
        """The case on that thread is done."""

    def history(self, thread_id: str) -> RunHistory | None:
        """The history of that thread; None if it has no nodes."""
        return None

    def nodes(self) -> Sequence[str] | None:
        """The names of its nodes, `outer/inner` for those of subgraphs; None if it has none."""
        return None

    def tools(self) -> Sequence[str]:
        """The names of the tools that it has, as far as they are known before a run."""
        return ()

    def checkers(self) -> Sequence[str] | None:
        """The names of the checkers that govern it; None if they are unknown."""
        return None

    def gates(self) -> Mapping[str, str]:
        """The correction gates that govern it, each with the model of its judge."""
        return {}


# Functions and outputs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FunctionTarget(Target):
    """A function of the input, sync or async, or a Runnable. Each call gets a copy of the input.

    It runs in any mode, unless `is_recorded`: then `files` have its own.
    """

    function: Callable[[Any], Any]
    name: str
    is_async: bool
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    is_recorded: bool = False
    kind: str = "function"

    def for_worker(self) -> Callable[[Case, str], Any]:
        return self._acall if self.is_async else self._call

    def _call(self, case: Case, thread_id: str) -> Any:
        answer: Any = self.function(plain_copy(case.input))
        if type(answer) is not str and inspect.isawaitable(answer):  # such as of a decorated `async def`
            return self._awaited(answer)
        return Answered(_whole(answer))

    async def _awaited(self, answer: Awaitable[Any]) -> Answered:
        return Answered(_whole(await answer))

    async def _acall(self, case: Case, thread_id: str) -> Answered:
        return await self._awaited(cast("Awaitable[Any]", self.function(plain_copy(case.input))))

    def version(self) -> str:
        return version_of(dict(self.parts())) if self.files else version_of(self.function)

    def parts(self) -> Mapping[str, str]:
        return {"target": version_of(self.function), **_watched(self.files)}


def _whole(answer: Any) -> Any:
    """The answer of a function. Raises `TypeError` for a generator."""
    if isinstance(answer, GeneratorType | AsyncGeneratorType):
        raise TypeError(f"the target returned a generator; {WHOLE}")
    return answer


@dataclass(frozen=True, slots=True)
class OutputsTarget(Target):
    """Outputs that were recorded elsewhere, by case id."""

    outputs: Mapping[str, Any]
    name: str = "outputs"
    is_async: bool = False
    is_recorded: bool = False
    kind: str = "outputs"

    def mistakes(self, cases: Sequence[Case]) -> Iterator[str]:
        missing = [case.id for case in cases if case.id not in self.outputs]
        if missing:
            shown = ", ".join(missing[:5])
            yield f"{len(missing)} of {len(cases)} cases have no output: {shown}."

    def for_worker(self) -> Callable[[Case, str], Any]:
        return lambda case, thread_id: Answered(self.outputs[case.id])

    def version(self) -> str:
        return version_of(dict(self.outputs))

    def parts(self) -> Mapping[str, str]:
        return {"target": self.version()}


# Graphs -------------------------------------------------------------------------------------------


class GraphTarget(Target):
    """A graph, governed, that runs each case in a thread of its own.

    `make` returns the graph; it is called once per worker, and once per case if `fresh`. `output` is the key of
    the final state that is judged. Without it, that is the text of the last AI message, else the whole state.
    `files` are hashes of the files that its answers depend on. `configurable` goes into the config of each run, beside
    its thread id. `is_own` says that the `ArbiterOS` is that
    of the run, so that the evaluators of the suite stay in it. `is_of_file` says that `files` have the graph's code.
    """

    kind = "graph"
    is_recorded = True

    def __init__(
        self,
        make: Callable[[], Any],
        name: str,
        arbiter_os: ArbiterOS | None,
        *,
        evaluators: Sequence[NodeEvaluator | str] = (),
        output: str | None = None,
        fresh: bool = False,
        shared: bool = False,
        files: Mapping[str, str] = _NOTHING,
        configurable: Mapping[str, Any] = _NOTHING,
        is_own: bool = False,
        is_of_file: bool = False,
    ) -> None:
        self.name = name
        self._is_of_file = is_of_file
        self._files = files
        self._configurable = configurable
        self._added: list[str] = []
        self._make = make
        self._output = output
        self._fresh = fresh
        self._shared = shared
        self._lock = threading.Lock()
        self._first: Any = None
        original = make()
        self._arbiter_os = self._governor(original, arbiter_os)
        self._is_own = is_own or (arbiter_os is None and self._arbiter_os is not None)
        with ExitStack() as undo:
            undo.callback(self.close)
            self._register(evaluators)
            graph = self._first = self._governed(original)
            channel = facts_channel_of(graph)
            assert channel is not None
            self._core = channel.core
            with _lent_lock:
                if self._arbiter_os in _lent:  # suites that get the graph alone look here
                    _lent[self._core.registry] = _lent[self._arbiter_os]
            self.shares_store = graph.store is not None and not fresh
            self._names = tuple(_names(graph))
            self._keys = tuple(
                name for name in graph.channels if not name.startswith("__") and ":" not in name
            )
            self.is_async = has_async_nodes(graph)
            undo.pop_all()

    def _governor(self, graph: Any, given: ArbiterOS | None) -> ArbiterOS | None:
        if facts_channel_of(graph) is None:
            return ArbiterOS(keep=None) if given is None else given
        if given is not None:
            given.govern(graph)  # raises if another ArbiterOS governs it
        return given

    def _register(self, evaluators: Sequence[NodeEvaluator | str]) -> None:
        if evaluators and self._arbiter_os is None:
            raise ConfigurationError(
                f"{self.name} is governed already, and the suite has evaluators. Pass the ArbiterOS that governs it: "
                "suite.run(graph, arbiter_os=...)."
            )
        for evaluator in evaluators:
            assert self._arbiter_os is not None
            if not isinstance(evaluator, str):
                self._add(self._arbiter_os, evaluator)
                continue
            known = {each.name: each for each in self._arbiter_os.evaluators}
            if evaluator not in known:
                raise ConfigurationError(
                    f"no evaluator is named {evaluator!r}. Evaluators: {', '.join(known) or 'none'}."
                    f"{nearest(evaluator, known)}"
                )
            if not self._is_own:
                self._add(self._arbiter_os, known[evaluator])  # may be that of a suite beside this one

    def _add(self, arbiter_os: ArbiterOS, evaluator: NodeEvaluator) -> None:
        """Register an evaluator of the suite; with the user's `ArbiterOS`, for the run alone."""
        if self._is_own:
            arbiter_os.add_evaluator(evaluator)
            return
        with _lent_lock:
            lent = _lent.setdefault(arbiter_os, Counter())
            is_known = evaluator in arbiter_os.evaluators
            if is_known and not lent[evaluator.name]:
                return  # the user's own
            if not is_known:
                if (reader := _reader_of(evaluator.name, arbiter_os)) is not None:
                    raise ConfigurationError(
                        f"{reader!r} reads the results of {evaluator.name!r}, which the suite has for its run alone. "
                        f"Register it: arbiter_os.add_evaluator(...), and name it in the suite: {evaluator.name!r}."
                    )
                arbiter_os.add_evaluator(evaluator)
            lent[evaluator.name] += 1
            self._added.append(evaluator.name)

    def _governed(self, original: Any) -> Any:
        if self._arbiter_os is None:
            return original
        graph: Any = self._arbiter_os.govern(original)
        if graph.checkpointer is None and self._arbiter_os.checkers and graph is not original:
            graph.checkpointer = pausing_saver()  # so that a checker can ask, as in production
        return graph

    def close(self) -> None:
        """Take the evaluators of the suite from the `ArbiterOS` again, which may be the user's."""
        while self._added:
            name = self._added.pop()  # one that another reads was added before it
            assert self._arbiter_os is not None
            with _lent_lock:
                _lent[self._arbiter_os][name] -= 1
                if not _lent[self._arbiter_os][name]:
                    self._arbiter_os.remove_evaluator(name)

    @property
    def evaluators(self) -> Sequence[NodeEvaluator]:
        found = self._core.registry.registered(NodeEvaluator)
        with _lent_lock:
            lent = +_lent.get(self._core.registry, Counter[str]())
        # A suite that runs beside this one has the others.
        return [each for each in found if each.name in self._added or each.name not in lent]

    @property
    def queues(self) -> Sequence[EvaluatorQueue]:
        """The evaluators, as its node runs ask them."""
        return tuple(self._core.registry.evaluators)

    def for_worker(self) -> Callable[[Case, str], Any]:
        graph = None if self._fresh else self._graph()
        run: Callable[[Any, Case, str], Any] = self._arun if self.is_async else self._run
        return lambda case, thread_id: run(self._graph() if graph is None else graph, case, thread_id)

    def _graph(self) -> Any:
        """A governed graph: the same one for all workers, unless a function makes them."""
        if self._shared:
            return self._first
        with self._lock:
            graph, self._first = self._first, None
        if graph is None:
            graph = self._governed(self._make())
        channel = facts_channel_of(graph)
        if channel is None or channel.core is not self._core:
            raise ConfigurationError(
                f"{self.name} returns graphs that different ArbiterOS govern. Return the graph before it is governed, "
                "or govern all by one."
            )
        return graph

    def _run(self, graph: Any, case: Case, thread_id: str) -> Answered:
        try:
            return self._answered(graph.invoke(plain_copy(case.input), self._config(thread_id)))
        finally:
            if isinstance(graph.checkpointer, InMemorySaver):
                graph.checkpointer.delete_thread(thread_id)

    async def _arun(self, graph: Any, case: Case, thread_id: str) -> Answered:
        try:
            return self._answered(await graph.ainvoke(plain_copy(case.input), self._config(thread_id)))
        finally:
            if isinstance(graph.checkpointer, InMemorySaver):
                graph.checkpointer.delete_thread(thread_id)

    def _config(self, thread_id: str) -> RunnableConfig:
        return {"configurable": {**self._configurable, "thread_id": thread_id}}

    def _answered(self, state: Any) -> Answered:
        waiting: Sequence[Any] = ()
        if isinstance(state, dict) and "__interrupt__" in state:
            parts = cast("dict[str, Any]", state)
            waiting = [each.value for each in parts["__interrupt__"]]
            state = {key: value for key, value in parts.items() if key != "__interrupt__"}
        return Answered(_output_of(state, self._output), waiting)

    def mistakes(self, cases: Sequence[Case]) -> Iterator[str]:
        if self._output is not None and self._output not in (known := _outputs(self._first)):
            yield (
                f"output is {self._output!r}, which is not a key of the graph's output. "
                f"Keys: {', '.join(known)}.{nearest(self._output, known)}"
            )

    def parts(self) -> Mapping[str, str]:
        constitution = None if self._arbiter_os is None else self._arbiter_os.constitution
        # Evaluators are rows, which have versions of their own.
        contracts = self._core.registry.contracts()
        rules = [str(each.version) for each in contracts if not isinstance(each, NodeEvaluator)]
        target = [self.name, self._names, self._output, dict(self._configurable)]
        return {
            "target": version_of(target),
            "the constitution": version_of(["" if constitution is None else constitution.text, rules]),
            **_watched(self._files),
            **({} if self._is_of_file else {_CODE: self._code[0]}),
        }

    def details(self) -> dict[str, dict[str, str]]:
        """Short hashes of what one of `parts` consists of."""
        return {} if self._is_of_file else {_CODE: self._code[1]}

    @cached_property
    def _code(self) -> tuple[str, dict[str, str]]:
        from arbiter.harness.graph_code import code_behind, named_parts  # for graphs that no file names

        code = code_behind(self._first)
        return version_of(code), named_parts(code)

    def begin(self, thread_id: str) -> None:
        self._core.recorder.hold(thread_id)

    def end(self, thread_id: str) -> None:
        self._core.recorder.release(thread_id, forget=self._is_own)

    def history(self, thread_id: str) -> RunHistory | None:
        return self._core.recorder.of_thread(thread_id)

    def nodes(self) -> Sequence[str] | None:
        return self._names

    def tools(self) -> Sequence[str]:
        return list(tools_in(self._first))

    def ignored_keys(self, inputs: Iterable[Any]) -> Iterator[tuple[str, int, str]]:
        """The keys of inputs that the graph does not read, each with their number and with what to do."""
        return ignored_keys(self._first, inputs)

    def state_keys(self) -> Sequence[str] | None:
        """The keys of the state that all of its nodes share; None if some have a state of their own."""
        return None if any("/" in name for name in self._names) else self._keys

    def checkers(self) -> Sequence[str] | None:
        return [checker.name for checker in self._core.registry.registered(PolicyChecker)]

    def gates(self) -> Mapping[str, str]:
        gates = [each for each in self._core.registry.contracts() if isinstance(each, PersonaGate)]
        return {gate.name: judge_settings(gate.engine.judge)["model"] for gate in gates}


_CODE = "the code of its nodes"
_lent: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
"""The runs that use an evaluator which one of them registered, by its name, of an `ArbiterOS` and of its registry. The
last of them takes it away."""
_lent_lock = new_lock()


def _reader_of(evaluator: str, arbiter_os: ArbiterOS) -> Contract | None:
    """A rule that reads the results of the evaluator of that name."""
    for rule in (*arbiter_os.checkers, *arbiter_os.routers, *arbiter_os.evaluators):
        needs: Sequence[str] = getattr(rule, "needs", ())
        if any(name == evaluator or name.startswith(f"{evaluator}.") for name in needs):
            return rule
    return None


def _watched(files: Mapping[str, str]) -> dict[str, str]:
    return {f"the file {path}": digest for path, digest in files.items()}


def _outputs(graph: Any) -> list[str]:
    """The keys of a graph's final state."""
    channels: Any = graph.output_channels
    return (
        [channels] if isinstance(channels, str) else [name for name in channels if not name.startswith("__")]
    )


def _names(graph: Any, prefix: str = "") -> Iterator[str]:
    for name, node in graph.nodes.items():
        if name.startswith("__"):
            continue
        yield prefix + name
        for inner in node.subgraphs or ():
            if isinstance(inner, Pregel):
                yield from _names(inner, f"{prefix}{name}/")


def _output_of(state: Any, key: str | None) -> Any:
    """The judged part of a final state."""
    if key is not None:
        return state.get(key) if is_mapping(state) else getattr(state, key, None)
    messages = state.get("messages") if is_mapping(state) else getattr(state, "messages", None)
    for message in reversed(messages) if is_list(messages) else ():
        if isinstance(message, AIMessage):
            return str(message.text)
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFile:
    """The target that a suite file declares, loaded when a run begins."""

    graph: str | None = None
    function: str | None = None
    outputs: Mapping[str, Any] | None = None
    constitution: str | None = None
    output: str | None = None
    watch: Sequence[str] = ()
    fresh: bool = False
    configurable: Mapping[str, Any] = field(default_factory=dict[str, Any])
    record: bool = False
    allow: Sequence[str] = ()
    models: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def load(self, arbiter_os: ArbiterOS | None, evaluators: Sequence[NodeEvaluator | str]) -> Target:
        """The target. Raises `ConfigurationError` if it cannot be loaded."""
        if self.outputs is not None:
            return target_of(self.outputs, arbiter_os=arbiter_os, evaluators=evaluators)
        if self.function is not None:
            found = load_object(self.function, "function")
            if not callable(found) or isinstance(found, Pregel) or _takes_nothing(found):
                raise ConfigurationError(
                    f"{self.function} is {found!r:.80}; expected a function of the input, with a parameter "
                    "that has no default. A graph is `graph`."
                )
            files = (_code_at(self.function) if self.record else {}) | file_hashes(".", self.watch)
            target = target_of(
                found, arbiter_os=arbiter_os, evaluators=evaluators, name=self.function, files=files
            )
            return replace(target, is_recorded=self.record) if isinstance(target, FunctionTarget) else target
        where = str(self.graph)
        found = load_object(where)
        files = _code_at(where) | file_hashes(".", self.watch)
        if not isinstance(found, Pregel | StateGraph) and not (callable(found) and _takes_nothing(found)):
            load_graph(where)  # raises, with the reason
        if self.constitution is not None:
            if arbiter_os is not None:
                raise ConfigurationError(
                    "the suite names a constitution, and run() got an ArbiterOS. Load the constitution into it."
                )
            import_from_here()
            arbiter_os = ArbiterOS(keep=None)
            with warnings.catch_warnings():
                # A model or prefix may be meant for the suite's own evaluators and scorers.
                warnings.filterwarnings("ignore", "(models|allow) has", ArbiterWarning)
                arbiter_os.load_constitution(self.constitution, allow=self.allow, models=self.models)
        return target_of(
            found,
            arbiter_os=arbiter_os,
            evaluators=evaluators,
            output=self.output,
            fresh=self.fresh,
            name=where,
            files=files,
            configurable=self.configurable,
            is_own=self.constitution is not None,
        )


# What users pass ----------------------------------------------------------------------------------


def target_of(
    given: Any,
    *,
    arbiter_os: ArbiterOS | None = None,
    evaluators: Sequence[NodeEvaluator | str] = (),
    output: str | None = None,
    fresh: bool = False,
    name: str | None = None,
    files: Mapping[str, str] = _NOTHING,
    configurable: Mapping[str, Any] = _NOTHING,
    is_own: bool = False,
) -> Target:
    """The target for what a user passed to `run`. Raises `ConfigurationError` if it is none."""
    call: Any = given
    graph: dict[str, Any] = {
        "evaluators": evaluators,
        "output": output,
        "fresh": fresh,
        "files": files,
        "configurable": configurable,
        "is_own": is_own,
        "is_of_file": name is not None,
    }
    if isinstance(given, TargetFile):
        return given.load(arbiter_os, evaluators)
    if isinstance(given, StateGraph):
        given = cast(Any, given).compile()
    if isinstance(given, Pregel):
        if fresh:
            raise ConfigurationError("fresh is for a function that returns a graph; got a graph.")
        shown = name or cast("Any", given).get_name()
        compiled: Any = given  # pyright: ignore[reportUnknownVariableType]
        return GraphTarget(lambda: compiled, f"graph {shown}", arbiter_os, shared=True, **graph)
    if callable(given) and not isinstance(given, type | Runnable) and _takes_nothing(given):
        ensure_sync(given, name or _name_of(given))
        return GraphTarget(_compiled(given), f"graph {name or _name_of(given)}", arbiter_os, **graph)
    if evaluators:
        raise ConfigurationError(
            "evaluators judge node runs, and the target is not a graph. Use scorers, or pass a graph."
        )
    if arbiter_os is not None or output is not None or fresh:
        what = "arbiter_os" if arbiter_os is not None else "output" if output is not None else "fresh"
        raise ConfigurationError(f"{what} is for a graph, and the target is not one.")
    if isinstance(given, Mapping):
        outputs = cast("Mapping[str, Any]", given)
        return OutputsTarget(outputs, name or "outputs")
    if isinstance(given, Runnable):
        return FunctionTarget(call.invoke, f"runnable {name or call.get_name()}", False)
    if callable(given) and not isinstance(given, type):
        refuse_signature(f"the target {_name_of(call)}", call, "the input of a case")
        if any(
            inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f)
            for f in (call, type(call).__call__)
        ):
            raise ConfigurationError(f"the target {name or _name_of(call)} is a generator; {WHOLE}.")
        is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
        return FunctionTarget(call, f"function {name or _name_of(call)}", is_async, files)
    raise ConfigurationError(
        f"the target is {given!r:.80}; expected a graph, a builder, a function of the input, a function that returns "
        "a graph, or a mapping from case ids to outputs."
    )


def _code_at(where: str) -> dict[str, str]:
    """The hash of the file that a path such as "app.py:graph" or "package.module:graph" names, by the path."""
    module = where.rpartition(":")[0]
    file = module if module.endswith(".py") else getattr(sys.modules.get(module), "__file__", None)
    return {} if file is None else {module: file_hash(Path(file))}


def _compiled(make: Callable[[], Any]) -> Callable[[], Any]:
    def graph() -> Any:
        made: Any = make()
        if isinstance(made, StateGraph):
            made = cast(Any, made).compile()
        if not isinstance(made, Pregel):
            raise ConfigurationError(
                f"{_name_of(make)}() returned {made!r:.80}; expected a graph. A target that is called with the input "
                "needs a parameter for it, without a default."
            )
        return cast(Any, made)

    return graph


def _name_of(given: Any) -> str:
    return getattr(given, "__name__", None) or type(given).__name__


def _takes_nothing(given: Any) -> bool:
    try:
        inspect.signature(given).bind()
    except (TypeError, ValueError):
        return False
    return True
