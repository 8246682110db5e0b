"""Wrong configuration is a clear error of its own kind, with the remedy, before the first node runs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from functools import wraps
from typing import Any, ForwardRef

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph
from pydantic import create_model

from arbiter import (
    Advisor,
    ArbiterError,
    ArbiterOS,
    ConfigurationError,
    CorrectionGate,
    EvaluationRouter,
    EvaluatorGate,
    FeedbackAdvisor,
    HistoryPolicyChecker,
    MetricThresholdPolicyRouter,
    NodeEvaluator,
    NotAGraphError,
    PolicyChecker,
    PolicyRouter,
    PolicyViolationError,
    RegistrationError,
    SyncDriverError,
    ThresholdEvaluator,
    UnknownInstructionError,
    UnknownNodeError,
)
from arbiter.errors import ParameterError
from arbiter.instructions import GENERATE
from tests.support import MODES, Check, Judge, Route, Spy, State, add, allow, chain, good, governed, run


def refused(kind: type[ArbiterError], *words: str) -> Any:
    return pytest.raises(kind, match="(?s)" + ".*".join(words))


def test_not_a_graph() -> None:
    things: list[Any] = [42, "x", None, {"nodes": []}, StateGraph]
    for thing in things:
        with refused(NotAGraphError, "expected a compiled graph"):
            ArbiterOS().govern(thing)


@MODES
def test_the_state_after_the_graph(mode: str) -> None:
    """`execute(graph, state)` is the wrong order, and says so."""
    arbiter_os, graph = ArbiterOS(), chain(Spy("a"))
    things: list[Any] = [graph, graph.builder, Spy("a"), arbiter_os.govern(graph)]
    for thing in things:
        with refused(NotAGraphError, "the state comes first", r"execute\(state, graph\)"):
            if mode == "sync":
                arbiter_os.execute(thing, {"amount": 1})
            else:
                asyncio.run(arbiter_os.aexecute(thing, {"amount": 1}))
    with refused(NotAGraphError, "expected a compiled graph"):
        arbiter_os.execute({"amount": 1}, {"amount": 1})


class Unanswered:
    """A value such as pandas.NA, which no comparison has an answer for."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("ambiguous")


@pytest.mark.parametrize("snapshot", ["deeply", None, ["deep"], Unanswered()], ids=type)
def test_a_snapshot_that_there_is_not_is_refused(snapshot: Any) -> None:
    with refused(ConfigurationError, "snapshot is", "expected 'shallow', 'deep' or 'digest'"):
        ArbiterOS(snapshot=snapshot)


def test_builder_that_does_not_compile_says_what_langgraph_says() -> None:
    with pytest.raises(ValueError, match="entrypoint"):
        ArbiterOS().govern(StateGraph(State))


def test_unknown_instruction_name() -> None:
    with refused(UnknownInstructionError, "'GENRATE'", "Did you mean 'GENERATE'"):
        ArbiterOS().govern(chain(Spy("a")), {"a": "GENRATE"})
    with refused(UnknownInstructionError, "^evaluator 't': target_instructions: expected .* got 'GENRATE'"):
        ThresholdEvaluator("t", "k", 0.5, target_instructions=["GENRATE"])
    with refused(UnknownInstructionError, "'NOPE'"):
        HistoryPolicyChecker("h", ["NOPE"])
    neither: Any = 42
    with refused(UnknownInstructionError, "expected an instruction or its name, got 42"):
        ThresholdEvaluator("t", "k", 0.5, target_instructions=neither)


def test_unknown_instruction_in_the_metadata_of_a_node() -> None:
    builder = StateGraph(State)
    builder.add_node("a", Spy("a"), metadata={"instruction": "GENERAT"})
    builder.add_edge(START, "a")
    with refused(UnknownInstructionError, "'GENERAT'"):
        ArbiterOS().govern(builder)


def test_mapping_that_names_no_node() -> None:
    graph = chain(Spy("approve"), Spy("pay"))
    with refused(UnknownNodeError, "instructions=", "'aprove'", "approve, pay", "Did you mean 'approve'"):
        ArbiterOS().govern(graph, {"aprove": GENERATE})
    with refused(UnknownNodeError, "schemas=", "'pai'"):
        ArbiterOS().govern(graph, schemas={"pai": (State, None)})


@pytest.mark.parametrize("shape", [42, {}, {"in": State}, (State,), {"input": State, "x": 1}])
def test_schemas_of_another_shape(shape: Any) -> None:
    with refused(ConfigurationError, "'a'", "expected"):
        ArbiterOS().govern(chain(Spy("a")), schemas={"a": shape})


@pytest.mark.parametrize("schema", [{"type": "object"}, {"properties": 1}, "Page", "no type", 42])
def test_a_schema_that_pydantic_cannot_use(schema: Any) -> None:
    """A JSON Schema, and a text that names no type, are refused before a node runs."""
    with refused(ConfigurationError, "node 'a'", repr(schema), "SchemaChecker"):
        ArbiterOS().govern(chain(Spy("a")), schemas={"a": {"output": schema}})
    with refused(ConfigurationError, "the labelled function", repr(schema)):
        ArbiterOS().instruction(GENERATE, input_schema=schema)


MISSING: Any = ForwardRef("Missing")


@pytest.mark.parametrize(
    "schema", [list[MISSING], create_model("Unfinished", page=(MISSING, ...))], ids=["list", "class"]
)
def test_a_schema_that_names_an_undefined_type(schema: Any) -> None:
    """The node does not run. A graph may be governed before the definition, in the same module."""
    body = Spy("a")
    arbiter_os = ArbiterOS()
    labelled = arbiter_os.instruction(GENERATE, output_schema=schema)(body)
    for app in (
        arbiter_os.govern(chain(body), schemas={"a": {"input": schema}}),
        arbiter_os.govern(chain(body), schemas={"a": {"output": schema}}),
        arbiter_os.govern(chain(labelled)),
    ):
        with refused(ConfigurationError, "node 'a'", "name 'Missing' is not defined"):
            app.invoke({"log": []})
    with refused(ConfigurationError, "node 'a'", "name 'Missing' is not defined"):
        arbiter_os.govern(labelled)({"log": []})
    assert body.calls == []


def test_a_schema_may_name_a_type_that_its_module_defines_later() -> None:
    page = create_model("Page", log=(MISSING, ...))
    app = ArbiterOS().govern(chain(Spy("a")), schemas={"a": {"input": page, "output": page}})
    page.model_rebuild(_types_namespace={"Missing": list[str]})
    assert app.invoke({"log": []}) == {"log": ["a"]}


def test_a_contract_of_another_kind_is_sent_to_its_own_method() -> None:
    arbiter_os: Any = ArbiterOS()
    router, evaluator = EvaluationRouter("r", "e", "x"), ThresholdEvaluator("e", "k", 0.5)
    with refused(
        RegistrationError, "'r'", "expected a PolicyChecker. Register it with arbiter_os.add_policy_router."
    ):
        arbiter_os.add_policy_checker(router)
    with refused(
        RegistrationError, "'e'", "expected a CorrectionGate. Register it with arbiter_os.add_evaluator."
    ):
        arbiter_os.add_correction_gate(evaluator)


def test_duplicate_names() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("one", allow))
    with refused(RegistrationError, "'one'", "another name"):
        arbiter_os.add_policy_checker(Check("one", allow))
    with refused(RegistrationError, "'one'"):
        arbiter_os.add_policy_router(EvaluationRouter("one", "e", "x"))
    arbiter_os.add_evaluator(ThresholdEvaluator("one", "k", 0.5))
    with refused(RegistrationError, "'one'"):
        arbiter_os.add_evaluator(ThresholdEvaluator("one", "k", 0.5))


def test_duplicate_name_of_a_class_with_a_kind_of_its_own() -> None:
    """Its attribute `kind` is a word for messages; its class says what it is."""

    class Soft(Check):
        kind = "soft check"

    for one, other in ((Check, Soft), (Soft, Check), (Soft, Soft)):
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(one("one", allow))
        with refused(RegistrationError, "'one'", "another name"):
            arbiter_os.add_policy_checker(other("one", allow))


@pytest.mark.parametrize(
    ("base", "add", "method"),
    [
        (PolicyChecker, "add_policy_checker", "check_before"),
        (PolicyRouter, "add_policy_router", "route_after"),
        (NodeEvaluator, "add_evaluator", "evaluate"),
        (Advisor, "add_advisor", "advise"),
        (CorrectionGate, "add_correction_gate", "review"),
    ],
)
def test_contract_classes(base: Any, add: str, method: str) -> None:
    def answer(self: object, *args: object) -> None:
        pass

    def forget(self: object) -> None:
        pass

    def yields(self: object, *args: object) -> Any:
        yield True

    async def ayields(self: object, *args: object) -> Any:
        yield True

    def needs_more(self: object, history: Any, output: Any, attempt: Any, database: Any) -> None:
        pass

    register = getattr(ArbiterOS(), add)
    missing = type("Missing", (base,), {})
    with refused(RegistrationError, "'m'", "Missing", method, "Define def"):
        register(missing("m"))
    for lazy in (yields, ayields):
        with refused(RegistrationError, "'m'", method, "has a yield"):
            register(type("Lazy", (base,), {method: lazy})("m"))
    with refused(RegistrationError, "'m'", method, "cannot be called with history", "Define def"):
        register(type("Bare", (base,), {method: forget})("m"))
    register(type("Decorated", (base,), {method: wraps(needs_more)(answer)})("decorated"))
    sound = type("Sound", (base,), {method: answer})
    register(sound("sound"))
    with refused(RegistrationError, "class Sound"):
        register(sound)
    with refused(RegistrationError, "expected a", base.__name__):
        register(42)
    nameless = type("Nameless", (base,), {method: answer, "__init__": forget})
    with refused(RegistrationError, "Nameless", "super"):
        register(nameless())
    with refused(RegistrationError, "name"):
        register(sound(""))
    for wrong in (answer, 3, (None,)):
        with refused(
            RegistrationError, "'reads'", "needs is ", "expected names of evaluators, such as needs = "
        ):
            register(type("Reads", (sound,), {"needs": wrong})("reads"))
    register(type("Reads", (sound,), {"needs": None})("reads"))
    if base is not PolicyRouter:
        register(type("Own", (sound,), {"targets": [0.5, 0.7]})("own"))  # numbers of the user's class
    for seconds in (0, -1, "1", True):
        with refused(ConfigurationError, "deadline", "seconds above 0"):
            register(sound("late", deadline=seconds))
        late = sound("late")
        late.deadline = seconds
        with refused(RegistrationError, "deadline"):
            register(late)


@pytest.mark.parametrize("on_deny", ["stop", "", "redirect:", "redirect", None, 3])
def test_unknown_on_deny(on_deny: Any) -> None:
    with refused(ConfigurationError, "'c'", "on_deny", "'raise', 'redirect:<node>', 'end' or 'audit'"):
        ArbiterOS().add_policy_checker(Check("c", allow, on_deny=on_deny))


@pytest.mark.parametrize(
    ("contract", "attribute", "value", "expected"),
    [
        (Check("c", allow), "on_deny", "stop", "'raise', 'redirect:<node>', 'end' or 'audit'"),
        (Route("r", lambda h, o: None), "max_redirects", -1, "a whole number from 0"),
        (Route("r", lambda h, o: None), "on_cap", "stop", "'continue', 'end' or 'best_attempt'"),
        (Judge("e", good), "durable", "yes", "true or false"),
        (EvaluatorGate("g", Judge("e", good)), "max_attempts", 0, "a whole number from 1"),
        (EvaluatorGate("g", Judge("e", good)), "on_exhausted", "stop", "'commit' or 'raise'"),
        (FeedbackAdvisor("f", "e"), "deadline", -1, "seconds above 0"),
    ],
)
def test_a_parameter_set_as_an_attribute_is_checked_as_declared(
    contract: Any, attribute: str, value: Any, expected: str
) -> None:
    contract = copy.copy(contract)
    setattr(contract, attribute, value)
    with refused(RegistrationError, repr(contract.name), f"{attribute} is {value!r}; expected", expected):
        add(ArbiterOS(), contract)


def test_gates_and_advisors_check_their_parameters() -> None:
    given: Any = 0
    with refused(ParameterError, "gate 'g'", "max_attempts: expected a whole number from 1, got 0"):
        EvaluatorGate("g", Judge("e", good), max_attempts=given)
    given = 2.0
    with refused(ParameterError, "gate 'g'", "max_attempts: expected a whole number from 1, got 2.0"):
        EvaluatorGate("g", Judge("e", good), max_attempts=given)
    given = "quality"
    with refused(ParameterError, "gate 'g'", "evaluator: expected an evaluator, got 'quality'"):
        EvaluatorGate("g", given)
    given = Judge("e", good)
    with refused(ParameterError, "advisor 'f'", "evaluator: expected a non-empty text"):
        FeedbackAdvisor("f", given)


def test_target_that_is_no_node() -> None:
    graph = chain(Spy("a"), Spy("b"))
    for contract, adder in [
        (Check("c", allow, on_deny="redirect:c"), "add_policy_checker"),
        (MetricThresholdPolicyRouter("m", "k", 0.5, "c"), "add_policy_router"),
    ]:
        arbiter_os = ArbiterOS()
        getattr(arbiter_os, adder)(contract)
        with refused(UnknownNodeError, "'c'", "Nodes: a, b"):
            arbiter_os.govern(graph)


def test_caps_and_settings() -> None:
    for cap in (-1, 1.5, "3", True):
        with refused(ConfigurationError, "max_redirects"):
            ArbiterOS().add_policy_router(EvaluationRouter("r", "e", "x", max_redirects=cap))  # type: ignore[arg-type]
    for keep in (0, -1, "all", 1.5):
        with refused(ConfigurationError, "keep"):
            ArbiterOS(keep=keep)  # type: ignore[arg-type]
    with refused(ConfigurationError, "snapshot"):
        ArbiterOS(snapshot="full")  # type: ignore[arg-type]
    wrong: list[Any] = [[], "GENERATE"]
    for sequence in wrong:
        with refused(ParameterError, "bad_sequence: expected a non-empty list of instructions"):
            HistoryPolicyChecker("h", sequence)


@pytest.mark.parametrize("method", ["observe", "handlers"])
def test_an_async_method_that_is_called_in_place_is_refused(method: str) -> None:
    async def later(self: Any, history: Any) -> Any:
        return {}

    checker: Any = type("Later", (Check,), {method: later})
    with refused(RegistrationError, f"checker 'c': {method} is async"):
        ArbiterOS().add_policy_checker(checker("c", allow))


def test_async_handlers_of_a_blocking_checker_need_an_async_run() -> None:
    async def handlers(self: Any, history: Any) -> Any:
        return []

    checker: Any = type("Later", (Check,), {"handlers": handlers, "blocking": True})
    _, app = governed(chain(Spy("pay")), checker("c", allow))
    with pytest.raises(SyncDriverError, match="ainvoke"):
        app.invoke({"log": []})
    assert run(app, {"log": []}, mode="async") == {"log": ["pay"]}


def test_strict_refuses_a_node_without_instruction() -> None:
    arbiter_os = ArbiterOS(strict=True)
    with refused(ConfigurationError, "no instruction: b"):
        arbiter_os.govern(chain(Spy("a"), Spy("b")), {"a": GENERATE})
    arbiter_os.govern(chain(Spy("a"), Spy("b")), {"a": GENERATE, "b": "RESPOND"})


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "retry": lambda step: step.with_retry(),
    "config of a retry": lambda step: step.with_retry().with_config(tags=["drafts"]),
    "retry of a config": lambda step: step.with_config(tags=["drafts"]).with_retry(),
    "fallbacks": lambda step: step.with_fallbacks([step]),
    "fallbacks of a retry": lambda step: step.with_retry().with_fallbacks([step]),
    "bind": lambda step: step.bind(),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_function_keeps_its_label_in_a_runnable(wrapper: str) -> None:
    arbiter_os = ArbiterOS(strict=True)
    arbiter_os.add_policy_checker(Check("drafts", lambda _: False, target_instructions=[GENERATE]))

    @arbiter_os.instruction(GENERATE)
    def draft(state: Any) -> Any:
        raise AssertionError

    builder: Any = StateGraph(State)
    builder.add_node("draft", WRAPPED[wrapper](RunnableLambda(draft))).add_edge(START, "draft")
    with pytest.raises(PolicyViolationError, match=r"'draft' \(GENERATE\)"):
        arbiter_os.govern(builder.compile()).invoke({"log": []})


def test_a_node_that_maps_a_function_has_not_its_schemas() -> None:
    """They are those of one item of its input."""
    arbiter_os = ArbiterOS()

    @arbiter_os.instruction(GENERATE, input_schema=int)
    def double(number: int) -> int:
        return 2 * number

    state: Any = list
    builder: Any = StateGraph(state)
    builder.add_node("double", RunnableLambda(double).map()).add_edge(START, "double")
    assert arbiter_os.govern(builder.compile()).invoke([1, 2]) == [2, 4]


def test_graph_that_another_arbiter_governs() -> None:
    governed = ArbiterOS().govern(chain(Spy("a")))
    with refused(ConfigurationError, "another ArbiterOS"):
        ArbiterOS().govern(governed)


def test_governing_leaves_the_original_and_others_alone() -> None:
    """The original graph, and every other graph, stays un-governed."""
    graph, other = chain(Spy("a")), chain(Spy("a"))
    nodes, channels = dict(graph.nodes), dict(graph.channels)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", lambda _: False))
    app = arbiter_os.govern(graph)
    assert (graph.nodes, graph.channels) == (nodes, channels)
    assert graph.invoke({"log": []}) == other.invoke({"log": []}) == {"log": ["a"]}
    with pytest.raises(ArbiterError):
        app.invoke({"log": []})
    assert app.get_graph().to_json() == graph.get_graph().to_json()
    assert type(app) is type(graph)
    assert app.with_config(tags=["x"]).get_name() == graph.get_name()
    with pytest.raises(ArbiterError):
        app.with_config(tags=["x"]).invoke({"log": []})
