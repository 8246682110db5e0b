"""The evaluation cycle: gate at once, select, run one after another, and what the history says of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, interrupt
from typing_extensions import TypedDict

from arbiter import (
    Advisor,
    ArbiterOS,
    Correction,
    CorrectionGate,
    EvaluationResult,
    History,
    HistoryItem,
    NodeEvaluator,
    RegistrationError,
    ThresholdEvaluator,
)
from arbiter.errors import ArbiterWarning, ConfigurationError, EvaluationError, ParameterError
from arbiter.memory import (
    CognitiveEvaluator,
    Entity,
    EvalContext,
    EvaluationCycle,
    FactEvaluator,
    GoalEvaluator,
    HandlerOutcome,
    MemoryStore,
    ReflectionEvaluator,
    evaluator,
)
from tests.memory.test_speakers import Talk
from tests.scripted import Scripted
from tests.support import MODES, PATIENCE, Route, run

Handler = Callable[[EvalContext], Any]


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    confidence: float
    x: int


def config(user: Any = "user-1", room: str = "room-1") -> RunnableConfig:
    return {"configurable": {"thread_id": room, "user_id": user}}


def hi(text: str = "hi") -> Any:
    return {"messages": [HumanMessage(text)]}


def graph(output: Any = None, *, store: Any = None, node: Any = None) -> Any:
    """One node `reply`, which returns `output`, by default an answer in words."""

    def reply(state: Any) -> Any:
        return {"messages": [AIMessage("ok")]} if output is None else output

    builder = StateGraph(Chat).add_node("reply", node or reply).add_edge(START, "reply")
    return builder.compile(checkpointer=InMemorySaver(), store=store)


class E(CognitiveEvaluator):
    """Appends its name to a log."""

    def __init__(
        self,
        name: str,
        log: list[str],
        *,
        handler: Handler | None = None,
        validator: Handler | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("description", f"does {name}")
        super().__init__(name, **options)
        self.log = log
        self.handler = handler
        self.validator = validator
        self.validated = 0

    async def validate(self, ctx: EvalContext) -> bool:
        self.validated += 1
        answer = True if self.validator is None else self.validator(ctx)
        return bool(await answer if asyncio.iscoroutine(answer) else answer)

    async def handle(self, ctx: EvalContext) -> Any:
        self.log.append(self.name)
        if self.handler is None:
            return HandlerOutcome(0.5, True, "done", {"n": 1})
        answer = self.handler(ctx)
        return await answer if asyncio.iscoroutine(answer) else answer


def governed(*evaluators: NodeEvaluator, app: Any = None, **options: Any) -> tuple[ArbiterOS, Any]:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(EvaluationCycle(**options))
    for each in evaluators:
        arbiter_os.add_evaluator(each)
    return arbiter_os, arbiter_os.govern(app or graph(), {"reply": "GENERATE"})


def last(arbiter_os: ArbiterOS) -> HistoryItem:
    item = arbiter_os.history.last(node="reply")
    assert item is not None
    return item


def statuses(item: HistoryItem) -> dict[str, str]:
    return {part.name: part.status for part in item.evaluator_trace}


def refuse(error: BaseException) -> Handler:
    def raises(ctx: EvalContext) -> Any:
        raise error

    return raises


# The stages ---------------------------------------------------------------------------------------


@MODES
def test_handlers_run_in_the_order_of_registration_despite_the_selectors_order(mode: str) -> None:
    """Of three, a model picks two, the last one first; one call, and the history says who was not selected."""
    log: list[str] = []
    model = Scripted(answers=['["C", "A"]'])
    arbiter_os, app = governed(*(E(n, log) for n in "ABC"), selector="llm", selector_model=model)
    run(app, hi(), config(), mode=mode)
    item = last(arbiter_os)
    assert log == ["A", "C"]
    assert list(item.evaluation_results) == ["A", "C"]
    assert statuses(item) == {"A": "ran", "B": "not_selected", "C": "ran"}
    assert model.calls == 1


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("sleep", ["async", "sync"])
def test_all_validate_at_once_and_handlers_never_overlap(mode: str, sleep: str) -> None:
    """Each of ten waits until all have begun; what follows is strictly one after another."""
    spans: list[tuple[float, float]] = []
    begun: list[str] = []
    all_have = asyncio.Event()
    together = threading.Barrier(10)

    class Slow(CognitiveEvaluator):
        def handle(self, ctx: EvalContext) -> None:
            begun = time.perf_counter()
            time.sleep(0.01)
            spans.append((begun, time.perf_counter()))

    class SlowSync(Slow):
        def validate(self, ctx: EvalContext) -> bool:
            together.wait(30)
            return True

    class SlowAsync(Slow):
        async def validate(self, ctx: EvalContext) -> bool:
            begun.append(self.name)
            if len(begun) == 10:
                all_have.set()
            return await all_have.wait()

    kind = SlowAsync if sleep == "async" else SlowSync
    _, app = governed(*(kind(f"E{n}") for n in range(10)), validate_timeout_s=30)
    run(app, hi(), config(), mode=mode)
    assert len(spans) == 10
    assert all(after[0] >= before[1] for before, after in itertools.pairwise(spans))


@MODES
@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3), GraphInterrupt()])
def test_a_validate_that_raises_costs_only_its_own_evaluator(mode: str, error: BaseException) -> None:
    log: list[str] = []
    arbiter_os, app = governed(E("A", log), E("B", log, validator=refuse(error)), E("C", log))
    assert run(app, hi(), config(), mode=mode)["messages"][-1].content == "ok"
    assert log == ["A", "C"]
    assert statuses(last(arbiter_os))["B"] == "validate_error"
    assert "B" not in last(arbiter_os).evaluation_results
    assert "B" not in last(arbiter_os).evaluation_errors


@MODES
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a secret"),
        SystemExit(3),
        KeyboardInterrupt(),
        GraphInterrupt(),
        asyncio.CancelledError(),
    ],
)
def test_a_handler_that_raises_does_not_stop_the_others(mode: str, error: BaseException) -> None:
    """It is an error of its own, named by its type alone, since its text may quote somebody."""
    log: list[str] = []
    arbiter_os, app = governed(E("A", log), E("B", log, handler=refuse(error)), E("C", log))
    result = run(app, hi(), config(), mode=mode)
    assert result["messages"][-1].content == "ok"
    assert "__interrupt__" not in result
    item = last(arbiter_os)
    assert log == ["A", "B", "C"]
    assert item.evaluation_errors == {"B": f"{type(error).__name__} in handler"}
    assert list(item.evaluation_results) == ["A", "C"]
    assert statuses(item)["B"] == "failed"


@pytest.mark.lengthy
@MODES
def test_slow_validates_and_handlers_time_out(mode: str) -> None:
    """A slow validate and a slow handler cost their time-outs, and the others run."""
    log: list[str] = []

    async def long(ctx: EvalContext) -> bool:
        await asyncio.sleep(600)
        return True

    arbiter_os, app = governed(
        E("A", log, validator=long),
        E("B", log, handler=long),
        E("C", log),
        validate_timeout_s=0.5,
        handler_timeout_s=0.5,
    )
    run(app, hi(), config(), mode=mode)
    item = last(arbiter_os)
    assert statuses(item) == {"A": "validate_timeout", "B": "timeout", "C": "ran"}
    assert item.evaluation_errors == {"B": "TimeoutError in handler"}


@pytest.mark.parametrize(
    "output", [{"x": 1}, {"messages": [AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "1"}])]}]
)
@MODES
def test_without_a_response_only_always_run_evaluators_are_asked(mode: str, output: Any) -> None:
    """A call of a tool is no response; the others are not even asked to validate."""
    log: list[str] = []
    usual, always = E("usual", log), E("always", log, always_run=True)
    arbiter_os, app = governed(usual, always, app=graph(output))
    run(app, hi(), config(), mode=mode)
    assert (usual.validated, always.validated) == (0, 1)
    assert log == ["always"]
    assert statuses(last(arbiter_os))["usual"] == "no_response"


def test_always_run_does_not_replace_validate() -> None:
    log: list[str] = []
    arbiter_os, app = governed(E("A", log, always_run=True, validator=lambda ctx: False))
    app.invoke(hi(), config())
    assert log == []
    assert statuses(last(arbiter_os)) == {"A": "validate_false"}


def test_a_selector_cannot_choose_an_evaluator_that_the_gate_refused() -> None:
    """A name that the gate has refused is unknown to the selection."""
    log: list[str] = []
    model = Scripted(answers=['["A", "B"]'])
    arbiter_os, app = governed(
        E("A", log, validator=lambda ctx: False), E("B", log), selector="llm", selector_model=model
    )
    app.invoke(hi(), config())
    assert log == ["B"]
    assert ("A", "unknown_name") in [(p.name, p.status) for p in last(arbiter_os).evaluator_trace]


@pytest.mark.parametrize(
    ("answer", "count"), [('["hunter2", "B", "4111 1111"]', "2 names"), ('["hunter2"]', "1 name")]
)
def test_unknown_names_of_a_selector_are_counted_and_not_recorded(answer: str, count: str) -> None:
    """It may be what somebody said."""
    arbiter_os, app = governed(E("B", []), selector="llm", selector_model=Scripted(answers=[answer]))
    app.invoke(hi("my password is hunter2"), config())
    trace = last(arbiter_os).evaluator_trace
    assert ("selector", "unknown_name", count) in [(p.name, p.status, p.detail) for p in trace]
    for word in ("hunter2", "4111"):
        assert word not in json.dumps(last(arbiter_os).to_dict()["evaluator_trace"])


@pytest.mark.parametrize(("on_error", "expected"), [("all", ["A", "B"]), ("none", [])])
def test_a_selector_that_answers_nonsense_costs_two_calls(on_error: Any, expected: list[str]) -> None:
    log: list[str] = []
    model = Scripted(answers=["dunno"])
    arbiter_os, app = governed(
        E("A", log), E("B", log), selector="llm", selector_model=model, on_selector_error=on_error
    )
    app.invoke(hi(), config())
    assert model.calls == 2
    assert log == expected
    assert "selector_fallback" in statuses(last(arbiter_os)).values()


def test_without_candidates_no_model_is_asked() -> None:
    model = Scripted(answers=["[]"])
    _, app = governed(E("A", [], validator=lambda ctx: False), selector="llm", selector_model=model)
    app.invoke(hi(), config())
    assert model.calls == 0


@MODES
def test_a_callable_selects(mode: str) -> None:
    log: list[str] = []

    def pick(ctx: EvalContext, candidates: Any) -> list[str]:
        return [each.name for each in candidates if each.name != "B"]

    _, app = governed(*(E(n, log) for n in "ABC"), selector=pick)
    run(app, hi(), config(), mode=mode)
    assert log == ["A", "C"]


# One system ---------------------------------------------------------------------------------------


@MODES
def test_cognitive_and_judging_evaluators_are_one_system(mode: str) -> None:
    """Both in the same results, both seen by a router, and only the cognitive one offered to a selector."""
    model = Scripted(answers=['["LEARN"]'])
    seen: dict[str, float] = {}

    def route(history: History, output: Any) -> None:
        results = history.entries[-1][-1].evaluation_results
        seen.update({name: results[name].score for name in ("confidence_check", "LEARN")})

    arbiter_os, app = governed(
        ThresholdEvaluator("confidence_check", "confidence", 0.7),
        E("LEARN", []),
        app=graph({"confidence": 0.9, "messages": [AIMessage("ok")]}),
        selector="llm",
        selector_model=model,
    )
    arbiter_os.add_policy_router(Route("look", route))
    run(app, hi(), config(), mode=mode)
    assert list(last(arbiter_os).evaluation_results) == ["confidence_check", "LEARN"]
    assert seen == {"confidence_check": 0.9, "LEARN": 0.5}
    assert "LEARN" in model.prompt()
    assert "confidence_check" not in model.prompt()


def test_a_judging_evaluator_with_a_validate_of_its_own_is_gated() -> None:
    class Sometimes(ThresholdEvaluator):
        def validate(self, ctx: EvalContext) -> bool:
            return "confidence" in ctx.state

    arbiter_os, app = governed(Sometimes("check", "confidence", 0.7))
    app.invoke(hi(), config())
    assert "check" not in last(arbiter_os).evaluation_results
    assert statuses(last(arbiter_os)) == {"check": "validate_false"}
    app.invoke({**hi(), "confidence": 0.9}, config())
    assert statuses(last(arbiter_os)) == {"check": "ran"}


def test_cognitive_evaluators_need_no_cycle_of_their_own() -> None:
    """The first one brings a cycle with the default options; one that is added later takes its place."""
    log: list[str] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(E("A", log))
    arbiter_os.govern(graph(), {"reply": "GENERATE"}).invoke(hi(), config())
    assert log == ["A"]
    own = EvaluationCycle()
    arbiter_os.add_evaluation_cycle(own)
    assert arbiter_os.evaluation_cycle is own
    with pytest.raises(RegistrationError, match="there is one at most"):
        arbiter_os.add_evaluation_cycle(EvaluationCycle())


def test_names_are_unique_and_the_same_object_counts_once() -> None:
    arbiter_os = ArbiterOS()
    first = E("A", [], similes=("LEARN_FACTS",))
    arbiter_os.add_evaluator(first)
    arbiter_os.add_evaluator(first)
    assert arbiter_os.evaluators == (first,)
    with pytest.raises(ValueError, match="Give this evaluator another name"):
        arbiter_os.add_evaluator(E("A", []))
    with pytest.raises(ValueError, match="cannot use the name 'learn-facts'"):
        arbiter_os.add_evaluator(E("B", [], similes=("learn-facts",)))
    with pytest.raises(ValueError, match="cannot use the name 'learn facts'"):
        arbiter_os.add_evaluator(E("learn facts", []))
    arbiter_os.remove_evaluator("A")
    arbiter_os.add_evaluator(E("A", []))
    with pytest.raises(RegistrationError, match="no evaluator 'Z' to remove"):
        arbiter_os.remove_evaluator("Z")


def test_the_functional_form_is_an_evaluator_like_any_other() -> None:
    seen: list[str] = []

    @evaluator(
        "GREETED", description="whether somebody was greeted", validate=lambda ctx: ctx.message is not None
    )
    async def greeted(ctx: EvalContext) -> HandlerOutcome:
        assert ctx.message is not None
        seen.append(str(ctx.message.text))
        return HandlerOutcome(1.0, True, "", {"messages": len(ctx.messages)})

    arbiter_os, app = governed(greeted)
    app.invoke(hi(), config())
    assert seen == ["hi"]
    assert last(arbiter_os).evaluation_results["GREETED"].metadata == {"messages": 2}


def test_registering_during_a_run_does_not_change_that_run() -> None:
    log: list[str] = []
    arbiter_os, app = governed()

    def register(ctx: EvalContext) -> None:
        arbiter_os.add_evaluator(E("late", log))

    arbiter_os.add_evaluator(E("A", log, handler=register))
    app.invoke(hi(), config())
    assert log == ["A"]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (HandlerOutcome(7.0), 1.0),
        (HandlerOutcome(-1.0), 0.0),
        (HandlerOutcome(float("nan")), 0.0),
        (HandlerOutcome(float("inf")), 1.0),
        (EvaluationResult(0.25, False), 0.25),
        (None, 1.0),
    ],
)
def test_outcomes_become_results(answer: Any, score: float) -> None:
    arbiter_os, app = governed(E("A", [], handler=lambda ctx: answer))
    app.invoke(hi(), config())
    assert last(arbiter_os).evaluation_results["A"].score == score


WRONG: Any = "high"


@pytest.mark.parametrize(
    "answer", ["fine", 0.7, {"score": 1}, HandlerOutcome(WRONG), HandlerOutcome(1.0, WRONG)]
)
def test_an_invalid_outcome_is_an_error(answer: Any) -> None:
    arbiter_os, app = governed(E("A", [], handler=lambda ctx: answer))
    app.invoke(hi(), config())
    assert list(last(arbiter_os).evaluation_errors) == ["A"]
    assert list(last(arbiter_os).evaluation_results) == []


# The context of a handler -------------------------------------------------------------------------


def contexts(**options: Any) -> tuple[list[EvalContext], ArbiterOS, Any]:
    found: list[EvalContext] = []
    arbiter_os, app = governed(E("A", [], handler=found.append, always_run=True), **options)
    return found, arbiter_os, app


@pytest.mark.parametrize(
    "output",
    [
        {"messages": [AIMessage("ok")]},
        {"messages": AIMessage("ok")},
        {"messages": [{"role": "assistant", "content": "ok"}]},
        {"messages": [("ai", "ok")]},
        {"messages": ("ai", "ok")},
        Command(update={"messages": [AIMessage("ok")]}),
        Command(update=[("messages", [AIMessage("ok")])]),
        [Command(update={"messages": [AIMessage("o", id="o")]}), {"messages": [AIMessage("ok")]}],
    ],
)
def test_handlers_see_the_conversation_after_the_node(output: Any) -> None:
    """Messages of every form of output have an id, and the agent has responded."""
    found, _, app = contexts(app=graph(output))
    result = app.invoke(hi(), config())
    [ctx] = found
    assert [str(m.text) for m in ctx.messages] == [str(m.text) for m in result["messages"]]
    assert all(m.id for m in ctx.messages)
    assert ctx.did_respond
    assert str(ctx.new_messages[-1].text) == "ok"
    assert ctx.message is not None
    assert ctx.message.text == "hi"


def test_messages_have_the_ids_that_the_state_has() -> None:
    """A message of the node is named before it is judged, and keeps that name."""
    found, _, app = contexts()
    result = app.invoke(hi(), config())
    assert [m.id for m in found[0].messages] == [m.id for m in result["messages"]]


def test_removed_messages_are_gone() -> None:
    found, _, app = contexts(app=graph({"messages": [RemoveMessage("1"), AIMessage("ok")]}))
    app.invoke({"messages": [HumanMessage("old", id="1"), HumanMessage("new", id="2")]}, config())
    assert [m.text for m in found[0].messages] == ["new", "ok"]


@pytest.mark.parametrize(
    ("given", "entity"),
    [
        ("bob.smith@example.com", "bob.smith@example.com"),
        (42, "42"),
        ("", "thread:room-1"),
        ("  ", "thread:room-1"),
        (None, "thread:room-1"),
        ("x" * 10_000, "x" * 10_000),
    ],
)
def test_unnamed_users_of_two_threads_are_distinct(given: Any, entity: str) -> None:
    """Without a user id a thread's user is a user of that thread alone."""
    found, _, app = contexts()
    app.invoke(hi(), config(given))
    assert found[0].entity_id == entity
    assert found[0].room_id == "room-1"


def test_the_user_of_the_runtime_context_precedes_that_of_the_config() -> None:
    class Context(TypedDict):
        user_id: str

    found: list[EvalContext] = []

    def reply(state: Chat) -> Any:
        return {"messages": [AIMessage("ok")]}

    app = StateGraph(Chat, context_schema=Context).add_node("reply", reply).add_edge(START, "reply").compile()
    _, app = governed(E("A", [], handler=found.append), app=app)
    app.invoke(hi(), config("other"), context={"user_id": "me"})
    assert (found[0].entity_id, found[0].context) == ("me", {"user_id": "me"})


def test_runs_without_a_thread_share_nothing() -> None:
    builder = StateGraph(Chat).add_node("reply", lambda state: {"messages": [AIMessage("ok")]})
    found, _, app = contexts(app=builder.add_edge(START, "reply").compile())
    app.invoke(hi())
    app.invoke(hi())
    assert found[0].room_id != found[1].room_id
    assert found[0].entity_id != found[1].entity_id


def test_a_missing_user_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    _, _, app = contexts()
    with caplog.at_level(logging.WARNING, "arbiter"):
        app.invoke(hi(), {"configurable": {"thread_id": "a"}})
        app.invoke(hi(), {"configurable": {"thread_id": "b"}})
    assert len([r for r in caplog.records if "user_id" in r.message]) == 1


def test_a_run_without_a_thread_and_a_user_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Its facts are lost to every later run."""
    builder = StateGraph(Chat).add_node("reply", lambda state: {"messages": [AIMessage("ok")]})
    _, _, app = contexts(app=builder.add_edge(START, "reply").compile())
    app.invoke(hi())
    app.invoke(hi())
    [told] = [r.getMessage() for r in caplog.records if "user_id" in r.message]
    assert told.startswith("a run has neither a thread_id nor a user_id")
    assert told.endswith("kept for that run alone.")


def test_a_handler_cannot_change_its_input() -> None:
    found, _, app = contexts()
    result = app.invoke(hi(), config())
    [ctx] = found
    with pytest.raises(TypeError):
        ctx.state["x"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        ctx.messages.append(AIMessage("forged"))  # type: ignore[attr-defined]
    ctx.messages[0].content = "forged"
    assert result["messages"][0].content == "hi"


def test_a_look_at_the_length_of_a_conversation_copies_no_message() -> None:
    copied: list[str] = []

    class Counted(HumanMessage):
        def __deepcopy__(self, memo: Any = None) -> Counted:
            copied.append(str(self.id))
            return self

    found, _, app = contexts()
    app.invoke({"messages": [Counted(content="hi", id="h1"), Counted(content="again", id="h2")]}, config())
    said = found[0].state["messages"]
    copied.clear()
    assert len(said) == 3
    assert said != []
    assert said != [said]
    assert copied == []
    assert said == [*said]


@MODES
def test_handlers_find_the_graphs_own_store_and_config(mode: str) -> None:
    """Sync ones too, on their thread."""
    store = InMemoryStore()
    found: list[Any] = []

    class Look(CognitiveEvaluator):
        def handle(self, ctx: EvalContext) -> None:
            found.append((get_store(), get_config().get("configurable", {})["thread_id"], ctx.store))

    _, app = governed(Look("look"), app=graph(store=store))
    run(app, hi(), config(), mode=mode)
    assert found[0][:2] == (store, "room-1")
    assert found[0][2].store is store


def test_emitted_values_are_in_the_custom_stream() -> None:
    _, app = governed(E("A", [], handler=lambda ctx: ctx.emit({"learned": 1})))
    assert list(app.stream(hi(), config(), stream_mode="custom")) == [{"learned": 1}]


def test_results_of_evaluators_before_are_known_to_those_after() -> None:
    seen: list[Any] = []
    _, app = governed(E("A", []), E("B", [], handler=lambda ctx: seen.append(dict(ctx.prior))))
    app.invoke(hi(), config())
    assert [list(prior) for prior in seen] == [["A"]]
    assert seen[0]["A"].score == 0.5


def test_a_state_without_messages_gates_cognitive_evaluators_out() -> None:
    class Numbers(TypedDict, total=False):
        x: int

    log: list[str] = []
    app = StateGraph(Numbers).add_node("reply", lambda state: {"x": 1}).add_edge(START, "reply").compile()
    arbiter_os, app = governed(E("A", log, always_run=True), app=app)
    assert app.invoke({"x": 0}) == {"x": 1}
    assert log == []
    [part] = last(arbiter_os).evaluator_trace
    assert (part.status, part.detail) == ("filtered", "the state has no 'messages'")


class Instead(Advisor):
    def advise(self, history: History, state: Any) -> Any:
        return {"messages": [HumanMessage("Summary")]}


class Takes(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Correction:
        return Correction.commit()


def test_a_turn_has_the_messages_of_the_state_where_advice_replaces_them_under_a_gate() -> None:
    seen: list[list[str]] = []
    arbiter_os, app = governed(E("A", [], handler=lambda ctx: seen.append([m.text for m in ctx.messages])))
    arbiter_os.add_advisor(Instead("instead"))
    arbiter_os.add_correction_gate(Takes("takes"))
    app.invoke(hi("I live in Oslo"), config())
    assert [messages[0] for messages in seen] == ["I live in Oslo"]


def test_evaluators_that_need_a_store_are_gated_out_without_one() -> None:
    class Needy(E):
        needs_store = True

    arbiter_os, app = governed(Needy("A", []))
    app.invoke(hi(), config())
    assert last(arbiter_os).evaluator_trace[0].detail == "there is no store"


# Budgets ------------------------------------------------------------------------------------------


@MODES
def test_a_turn_never_exceeds_its_budget_of_model_calls(mode: str) -> None:
    """The budget is shared by all evaluators; an evaluator without a call left is skipped with a trace and
    does not fail."""
    from pydantic import BaseModel

    class Answer(BaseModel):
        n: int

    async def ask(ctx: EvalContext) -> None:
        await ctx.ask(Answer, [HumanMessage("n?")])

    model = Scripted(answers=['{"n": 1}'])
    arbiter_os, app = governed(
        *(E(n, [], handler=ask) for n in "ABC"), evaluator_model=model, max_llm_calls_per_turn=2
    )
    run(app, hi(), config(), mode=mode)
    assert model.calls == 2
    item = last(arbiter_os)
    assert statuses(item) == {"A": "ran", "B": "ran", "C": "filtered"}
    assert item.evaluator_trace[-1].detail == "budget"
    assert item.evaluation_errors == {}
    run(app, hi("again"), config(), mode=mode)
    assert model.calls == 4  # the next message has a budget of its own


def test_tokens_of_evaluators_are_not_streamed() -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        n: int

    async def ask(ctx: EvalContext) -> None:
        await ctx.ask(Answer, [HumanMessage("n?")])

    _, app = governed(E("A", [], handler=ask), evaluator_model=Scripted(answers=['{"n": 1}']))
    streamed = [chunk[0].text for chunk in app.stream(hi(), config(), stream_mode="messages")]
    assert streamed == ["ok"]


# Background ---------------------------------------------------------------------------------------


@MODES
def test_in_the_background_a_turn_does_not_wait(mode: str) -> None:
    """The node returns at once, the trace says pending, and `drain` leaves nothing behind."""
    go = threading.Event()
    log: list[str] = []

    async def wait(ctx: EvalContext) -> None:
        await asyncio.to_thread(go.wait, 10)

    arbiter_os, app = governed(E("A", log, handler=wait), mode="background")
    run(app, hi(), config(), mode=mode)
    assert statuses(last(arbiter_os)) == {"A": "pending"}
    assert not arbiter_os.drain(0.05)
    go.set()
    assert arbiter_os.drain(60)
    assert statuses(last(arbiter_os)) == {"A": "ran"}
    assert list(last(arbiter_os).evaluation_results) == ["A"]


@pytest.mark.lengthy
def test_in_the_background_turns_of_a_room_keep_their_order_and_rooms_do_not_wait() -> None:
    seen: list[tuple[str, str]] = []
    quick_is_seen = threading.Event()

    async def slow(ctx: EvalContext) -> None:
        assert ctx.message is not None
        if ctx.room_id == "slow":
            await asyncio.to_thread(quick_is_seen.wait, PATIENCE)
        seen.append((ctx.room_id, str(ctx.message.text)))
        if ctx.room_id == "quick":
            quick_is_seen.set()

    arbiter_os, app = governed(E("A", [], handler=slow), mode="background")
    for n in range(4):
        app.invoke(hi(str(n)), config(room="slow"))
    app.invoke(hi("first"), config(room="quick"))
    arbiter_os.drain()
    assert seen == [("quick", "first"), *(("slow", text) for text in "0123")]


def test_background_failures_are_logged_without_conversation_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arbiter_os, app = governed(E("A", [], handler=refuse(RuntimeError("a secret"))), mode="background")
    with caplog.at_level(logging.WARNING, "arbiter"):
        app.invoke(hi(), config())
        arbiter_os.drain()
    assert "RuntimeError in handler" in caplog.text
    assert "a secret" not in caplog.text


# The graph stays what it is -----------------------------------------------------------------------


@MODES
def test_a_node_that_asks_a_human_pauses_as_ever_and_runs_its_evaluators_once(mode: str) -> None:
    log: list[str] = []

    def ask(state: Any) -> Any:
        return {"messages": [AIMessage(interrupt("q"))]}

    arbiter_os, app = governed(E("A", log), app=graph(node=ask))
    assert "__interrupt__" in run(app, hi(), config(), mode=mode)
    assert log == []
    assert run(app, Command(resume="yes"), config(), mode=mode)["messages"][-1].text == "yes"
    assert log == ["A"]
    assert len({item.id for item in arbiter_os.history.items()}) == 1


@pytest.mark.lengthy
def test_a_second_pass_of_a_turn_has_the_same_key() -> None:
    """A retry is an attempt of the same turn, and evaluators that count turns must be able to see that."""
    keys: list[str] = []
    outputs = iter(
        [42, *[{"messages": [AIMessage("ok")]}] * 2]
    )  # LangGraph refuses the first, after it was judged

    def reply(state: Chat) -> Any:
        return next(outputs)

    builder = StateGraph(Chat).add_edge(START, "reply")
    builder.add_node("reply", reply, retry_policy=RetryPolicy(initial_interval=0, retry_on=Exception))
    app = builder.compile(checkpointer=InMemorySaver())
    _, app = governed(E("A", [], handler=lambda ctx: keys.append(ctx.run_key), always_run=True), app=app)
    app.invoke(hi(), config())
    app.invoke(hi(), config())
    assert len(keys) == 3
    assert keys[0] == keys[1] != keys[2]


@MODES
def test_invoking_inside_a_running_loop_works(mode: str) -> None:
    log: list[str] = []
    _, app = governed(E("A", log))

    async def inside() -> Any:
        return app.invoke(hi(), config()) if mode == "sync" else await app.ainvoke(hi(), config())

    assert asyncio.run(inside())["messages"][-1].text == "ok"
    assert log == ["A"]


def test_a_handler_finds_no_result_of_its_own_yet() -> None:
    def own(ctx: EvalContext) -> HandlerOutcome:
        return HandlerOutcome(data={"found": ctx.item.evaluation_results.get("A") is not None})

    arbiter_os, app = governed(E("A", [], handler=own))
    app.invoke(hi(), config())
    assert last(arbiter_os).evaluation_results["A"].metadata == {"found": False}


def test_the_history_shows_evaluators_that_did_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    arbiter_os, app = governed(E("A", []), E("B", [], validator=lambda ctx: False))
    app.invoke(hi(), config())
    arbiter_os.history.pprint()
    assert "B: validate_false" in capsys.readouterr().out
    [found] = arbiter_os.history.to_dicts()
    assert [(p["name"], p["status"]) for p in found["evaluator_trace"]] == [
        ("A", "ran"),
        ("B", "validate_false"),
    ]


def test_outputs_streams_and_checkpoints_are_those_without_evaluators() -> None:
    """Ids aside, which are random in both."""

    def told(app: Any) -> Any:
        chunks = list(app.stream(hi(), config(), stream_mode=["updates", "values"]))
        texts = [[(m.type, m.text) for m in _messages(chunk)] for _, chunk in chunks]
        states = [[m.text for m in s.values.get("messages", [])] for s in app.get_state_history(config())]
        return texts, states

    bare = told(graph())
    log: list[str] = []
    _, app = governed(E("A", log), E("B", log, handler=refuse(RuntimeError())))
    assert told(app) == bare
    assert log == ["A", "B"]


def _messages(chunk: Any) -> Any:
    return chunk["messages"] if "messages" in chunk else chunk["reply"]["messages"]


# Options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "later"),
        ("selector", "best"),
        ("on_selector_error", "raise"),
        ("conversation_length", 0),
        ("conversation_length", True),
        ("max_llm_calls_per_turn", -1),
        ("validate_timeout_s", 0),
        ("handler_timeout_s", float("nan")),
        ("agent_id", ""),
        ("messages_key", 3),
        ("store", {}),
        ("max_context_chars", 0),
        ("clock", "now"),
    ],
)
def test_a_wrong_option_is_refused_at_once(option: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"EvaluationCycle: {option}: expected"):
        EvaluationCycle(**{option: value})


@pytest.mark.lengthy
def test_a_clock_may_be_set_after_the_cycle_is_made() -> None:
    now: dict[str, datetime] = {}
    found: list[datetime] = []
    _, app = governed(E("A", [], handler=lambda ctx: found.append(ctx.ended_at)), clock=lambda: now["now"])
    now["now"] = datetime(2026, 3, 14, tzinfo=UTC)
    app.invoke(hi(), config())
    assert found == [now["now"]]


def test_a_selector_that_is_a_model_needs_one() -> None:
    with pytest.raises(ParameterError, match="needs a selector_model or an evaluator_model"):
        EvaluationCycle(selector="llm")


def test_a_class_or_something_else_is_no_cycle() -> None:
    with pytest.raises(RegistrationError, match=r"expected an arbiter\.memory\.EvaluationCycle"):
        ArbiterOS().add_evaluation_cycle(EvaluationCycle)  # type: ignore[arg-type]


def test_a_cognitive_evaluator_without_a_handler_is_refused() -> None:
    class Nothing(CognitiveEvaluator):
        pass

    with pytest.raises(RegistrationError, match="has no method 'handle'"):
        ArbiterOS().add_evaluator(Nothing("A"))


def test_names_of_one_cycle_differ_in_more_than_case() -> None:
    """A selector that says one of them must mean it."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(E("aa", []))
    with pytest.raises(RegistrationError, match="cannot use the name"):
        arbiter_os.add_evaluator(E("AA", []))


@pytest.mark.parametrize(
    "options",
    [
        {"fact_rules": {"status_ttl": 3}},
        {"character": "Juno"},
        {"clock": 5},
        {"entities": ["ann"]},
        {"entities": [Entity(id="ann", names="Ann")]},  # type: ignore[arg-type]
        {"entities": [Entity(id="ann", names=None)]},  # type: ignore[arg-type]
        {"entities": [Entity(id=7)]},  # type: ignore[arg-type]
        {"lock_provider": 5},
        {"is_private": "no"},
        {"store": MemoryStore(InMemoryStore()), "lock_provider": print},
    ],
)
def test_a_wrong_part_is_refused_before_the_first_turn(options: Any) -> None:
    with pytest.raises(ParameterError, match="EvaluationCycle"):
        EvaluationCycle(**options)


@pytest.mark.parametrize("kind", [FactEvaluator, ReflectionEvaluator, GoalEvaluator])
def test_an_evaluator_takes_a_model_as_the_cycle_does(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of its own that is none was asked in each turn, as a provider that cannot be reached."""
    made = Scripted(answers=["{}"])

    def make(name: str) -> Scripted:
        return made

    monkeypatch.setattr("langchain.chat_models.init_chat_model", make)
    assert kind(model="openai:gpt-5-mini").model is made
    assert kind(model=made).model is made
    for wrong in (7, Own, Scripted):
        with pytest.raises(ConfigurationError, match="expected a chat model, or a text like"):
            kind(model=wrong)


class Own:
    """The methods of a model, in a class that LangChain does not know."""

    def invoke(self, messages: Any, config: Any = None) -> AIMessage:
        return AIMessage('{"claims": [{"claim": "User lives in Oslo", "type": "fact"}]}')

    async def ainvoke(self, messages: Any, config: Any = None) -> AIMessage:
        return self.invoke(messages)


def test_an_evaluator_asks_a_model_of_a_class_of_its_own() -> None:
    own: Any = Own()
    talk = Talk(FactEvaluator(model=own))
    talk.say("I live in Oslo", "ada")
    assert talk.claims("ada") == ["User lives in Oslo"]


@pytest.mark.parametrize(("handler", "part"), [(7, "handler"), (print, "validate")])
def test_a_handler_or_a_validator_that_is_no_function_is_refused(handler: Any, part: str) -> None:
    validate: Any = 7 if part == "validate" else None
    with pytest.raises(
        ParameterError, match=f"evaluator 'A': {part}: expected a function of the context, got 7"
    ):
        evaluator("A", validate=validate)(handler)


def test_an_evaluator_for_other_nodes_is_in_the_trace() -> None:
    arbiter_os, app = governed(E("A", [], target_instructions=["TOOL_CALL"]), E("B", []))
    with pytest.warns(ArbiterWarning, match="no node has the instruction TOOL_CALL"):
        app.invoke(hi(), config())
    trace = [(part.name, part.stage, part.status) for part in last(arbiter_os).evaluator_trace]
    assert trace == [("B", "run", "ran"), ("A", "gate", "filtered")]


@MODES
def test_a_function_that_is_executed_has_the_identity_of_its_config(mode: str) -> None:
    """A room is a thread, also without a graph."""
    found: list[EvalContext] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(E("A", [], handler=found.append))

    def reply(state: Any) -> Any:
        return {"messages": [AIMessage("ok")]}

    if mode == "sync":
        arbiter_os.execute(hi(), reply, config=config(), instruction="RESPOND")
    else:
        asyncio.run(arbiter_os.aexecute(hi(), reply, config=config(), instruction="RESPOND"))
    assert (found[0].room_id, found[0].entity_id) == ("room-1", "user-1")


@pytest.mark.parametrize("score", [float("nan"), -3.0, 4.0])
def test_scores_of_results_are_clamped_too(score: float) -> None:
    arbiter_os, app = governed(E("A", [], handler=lambda ctx: EvaluationResult(score, True)))
    app.invoke(hi(), config())
    assert last(arbiter_os).evaluation_results["A"].score == (1.0 if score > 1 else 0.0)


def test_data_has_to_be_json() -> None:
    arbiter_os, app = governed(E("A", [], handler=lambda ctx: HandlerOutcome(data={"x": object()})))
    app.invoke(hi(), config())
    assert last(arbiter_os).evaluation_errors == {"A": "the handler returned data that is not JSON"}


@MODES
def test_a_cognitive_evaluator_can_be_asked_like_any_other(mode: str) -> None:
    """`evaluate(history)` returns its result, or raises an error with the reason why there is none."""
    arbiter_os, app = governed(E("A", []))
    run(app, hi(), config(), mode=mode)
    history = arbiter_os.history
    result = asyncio.run(E("B", []).evaluate(history))
    assert (result.score, result.feedback) == (0.5, "done")
    with pytest.raises(EvaluationError, match="validate_false"):
        asyncio.run(E("C", [], validator=lambda ctx: False).evaluate(history))


def test_a_store_that_ends_the_program_ends_the_memory_of_nobody_else() -> None:
    """asyncio ends an event loop for SystemExit, and all memory of a process shares one."""

    class Exits(InMemoryStore):
        async def abatch(self, ops: Any) -> Any:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        EvaluationCycle(store=Exits()).memory.facts("ada")
    memory = EvaluationCycle(store=InMemoryStore()).memory
    memory.remember("ada", "Ada lives in Oslo")
    assert [fact.claim for fact in memory.facts("ada")] == ["Ada lives in Oslo"]
