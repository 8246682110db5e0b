"""A set-up in which memory does nothing is reported once, with the remedy; it is never silent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import Op, Result
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from arbiter import ArbiterOS, EvaluationResult, NodeEvaluator
from arbiter.memory import (
    CognitiveEvaluator,
    EvalContext,
    EvaluationCycle,
    FactEvaluator,
    FactsProvider,
    GoalEvaluator,
    HandlerOutcome,
    Provider,
    ProviderContext,
    ProviderResult,
    ReflectionEvaluator,
    TimeProvider,
    evaluator,
)
from arbiter.memory._cursors import OUTAGES_PER_WINDOW
from tests.memory.facts_support import answer
from tests.memory.memory_stores import KeywordEmbeddings
from tests.memory.memory_support import Clock
from tests.scripted import EndpointError, Scripted
from tests.support import MODES, run

KEY = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"


def talk(
    *parts: Any, cycle: EvaluationCycle | None = None, store: Any = None, turns: int = 3, mode: str = "invoke"
) -> Any:
    """Some turns of a graph that is governed with these evaluators and providers."""
    arbiter_os = ArbiterOS()
    if cycle is not None:
        arbiter_os.add_evaluation_cycle(cycle)
    for part in parts:
        if isinstance(part, NodeEvaluator):
            arbiter_os.add_evaluator(part)
        else:
            arbiter_os.add_advisor(part)

    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("Noted.")]}

    graph = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply")
    app: Any = arbiter_os.govern(graph.compile(checkpointer=InMemorySaver(), store=store))
    config: RunnableConfig = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    for number in range(turns):
        run(app, {"messages": [HumanMessage(f"Hello {number}, I live in Oslo")]}, config, mode=mode)
    return arbiter_os.history.last()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("arbiter") and record.levelno >= logging.WARNING
    ]


@MODES
def test_evaluators_without_a_cycle_are_named_in_one_warning(
    caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    talk(FactEvaluator(), ReflectionEvaluator(), mode=mode)
    [told] = warnings_in(caplog)
    assert told.startswith("evaluators 'GET_FACTS', 'REFLECTION' cannot work: no EvaluationCycle was added.")
    assert "arbiter_os.add_evaluation_cycle(EvaluationCycle(" in told


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (
            {"evaluator_model": Scripted(answers=["{}"])},
            "there is no store. Give the EvaluationCycle one, with open_store(...) as store: ",
        ),
        ({"store": InMemoryStore()}, "there is no model. Give the EvaluationCycle one"),
    ],
)
def test_a_cycle_that_lacks_a_part_is_reported_once(
    options: Any, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    talk(FactEvaluator(), GoalEvaluator(), cycle=EvaluationCycle(**options))
    [told] = warnings_in(caplog)
    assert told.startswith(f"evaluators 'GET_FACTS', 'UPDATE_GOAL' cannot work: {cause}")


async def returns_a_bool(ctx: EvalContext) -> Any:
    return True


def raises(ctx: EvalContext) -> Any:
    raise KeyError("I live in Oslo")


async def hangs(ctx: EvalContext) -> bool:
    await asyncio.sleep(60)
    return True


@MODES
@pytest.mark.parametrize(
    ("options", "handler", "problem"),
    [
        (
            {},
            returns_a_bool,
            "the handler returned a bool; expected a HandlerOutcome, an EvaluationResult or None",
        ),
        ({}, raises, f"KeyError in handler (test_told.py:{raises.__code__.co_firstlineno + 1})"),
        (
            {"validate": raises},
            returns_a_bool,
            f"KeyError in validate (test_told.py:{raises.__code__.co_firstlineno + 1})",
        ),
        (
            {"validate": hangs},
            returns_a_bool,
            "validate took longer than 0.1 s (EvaluationCycle(validate_timeout_s=...))",
        ),
    ],
)
def test_an_evaluator_of_the_users_that_fails_is_reported_once(
    options: Any, handler: Any, problem: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the place of the mistake, and without a word of what somebody said."""
    own = evaluator("GREETED", description="Notes who has been greeted.", **options)(handler)
    talk(own, cycle=EvaluationCycle(store=InMemoryStore(), validate_timeout_s=0.1), mode=mode)
    [told] = warnings_in(caplog)
    assert told == f"evaluator 'GREETED' failed: {problem}. This warning is not repeated."


@pytest.mark.parametrize("cycle_mode", ["inline", "background"])
def test_a_warning_quotes_no_returned_value_of_a_scoring_evaluator(
    cycle_mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Judge(NodeEvaluator):
        def validate(self, ctx: EvalContext) -> bool:
            return True

        def evaluate(self, history: Any) -> Any:
            return EvaluationResult(score="I live in Oslo", passed=True)  # type: ignore[arg-type]

    cycle = EvaluationCycle(store=InMemoryStore(), mode=cycle_mode)
    item = talk(Judge("JUDGE"), cycle=cycle)
    assert "JUDGE" in str(item.evaluation_errors)
    found = {*warnings_in(caplog)}
    assert len(found) == 1
    assert "'JUDGE'" in str(found)
    assert "Oslo" not in str(found)


@MODES
def test_a_cycle_that_fails_as_a_whole_is_reported_once(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    def private(config: RunnableConfig) -> bool:
        raise KeyError("I live in Oslo")

    cycle = EvaluationCycle(
        store=InMemoryStore(), evaluator_model=Scripted(answers=[answer()]), is_private=private
    )
    talk(FactEvaluator(), GoalEvaluator(), cycle=cycle, mode=mode)
    place = f"test_told.py:{private.__code__.co_firstlineno + 1}"
    assert warnings_in(caplog) == [
        f"evaluators 'GET_FACTS', 'UPDATE_GOAL' failed: KeyError in the cycle ({place}). "
        "This warning is not repeated."
    ]


@MODES
def test_a_text_whose_first_line_is_too_long_for_the_notes_is_reported_once(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The provider adds nothing then. Lines that are cut from the end of a text are no mistake."""

    class Page(Provider):
        async def get(self, ctx: ProviderContext) -> ProviderResult:
            return ProviderResult(text="word " * 100)

    class Lines(Provider):
        async def get(self, ctx: ProviderContext) -> ProviderResult:
            return ProviderResult(text="a short line\n" * 100)

    cycle = EvaluationCycle(store=InMemoryStore(), max_context_chars=400)
    talk(Page("page"), Lines("lines"), cycle=cycle, mode=mode)
    assert warnings_in(caplog) == [
        "provider 'page' added nothing to a call: the first line of its text did not fit into the block of notes, "
        "which has at most 400 characters. Write shorter lines, or give the EvaluationCycle a larger "
        "max_context_chars. This warning is not repeated."
    ]


def test_messages_under_another_key_than_the_cycles_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Scripted(answers=[answer()])
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=model, messages_key="chat")
    talk(FactEvaluator(), GoalEvaluator(), cycle=cycle)
    [told] = warnings_in(caplog)
    assert told == (
        "evaluators 'GET_FACTS', 'UPDATE_GOAL' cannot work: the state has no 'chat', and messages at 'messages'. "
        "Give the EvaluationCycle messages_key='messages'."
    )


@MODES
def test_a_clock_without_a_zone_is_reported_once(caplog: pytest.LogCaptureFixture, mode: str) -> None:
    """Evaluators that need no times work with it."""
    quiet = evaluator("QUIET", description="Needs nothing.")(
        lambda ctx: HandlerOutcome(0.5, True, "done", {})
    )
    item = talk(
        quiet,
        TimeProvider(),
        cycle=EvaluationCycle(clock=lambda: datetime.fromisoformat("2026-03-14")),
        mode=mode,
    )
    assert (item.evaluation_results["QUIET"].score, item.errors) == (0.5, {})
    [told] = warnings_in(caplog)
    assert told.startswith(
        "no facts are learned or shown, because the clock of the EvaluationCycle returned datetime"
    )


def test_a_complete_set_up_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """With the store of the graph, a model of an evaluator's own, or evaluators that need neither."""
    model = Scripted(answers=[answer()])
    quiet = evaluator("QUIET", description="Needs nothing.")(lambda ctx: None)
    talk(FactEvaluator(model=model), FactsProvider(), quiet, cycle=EvaluationCycle(), store=InMemoryStore())
    talk(quiet)
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("needs", ["store", "model"])
def test_a_handler_that_asks_for_what_is_missing_is_reported(
    needs: str, caplog: pytest.LogCaptureFixture
) -> None:
    from pydantic import BaseModel

    @evaluator("MINE", description="Mine.")
    async def mine(ctx: Any) -> None:
        if needs == "store":
            ctx.needed_store()
        await ctx.ask(BaseModel, [])

    talk(mine, cycle=EvaluationCycle())
    [told] = warnings_in(caplog)
    assert told.startswith(f"evaluator 'MINE' cannot work: there is no {needs}. Give the EvaluationCycle one")


@MODES
def test_providers_without_a_cycle_or_store_or_messages_are_reported(
    caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    talk(FactsProvider(), mode=mode)
    [told] = warnings_in(caplog)
    assert told.startswith("provider 'facts' cannot work: no EvaluationCycle was added.")
    caplog.clear()
    talk(FactsProvider(), TimeProvider(), cycle=EvaluationCycle(), mode=mode)
    [told] = warnings_in(caplog)
    assert told.startswith("provider 'facts' cannot work: there is no store.")
    caplog.clear()
    talk(FactsProvider(), cycle=EvaluationCycle(store=InMemoryStore(), messages_key="chat"), mode=mode)
    [told] = warnings_in(caplog)
    assert told.startswith(
        "provider 'facts' cannot work: the state has no 'chat', and messages at 'messages'."
    )


# Models -------------------------------------------------------------------------------------------


class AuthenticationError(EndpointError):
    def __str__(self) -> str:
        return f"Incorrect API key provided: {KEY}"


@MODES
@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (AuthenticationError(401), "AuthenticationError (status 401)", "Check the key of the model"),
        (ConnectionError("I live in Oslo"), "ConnectionError", "Check the name, the address and the key"),
        (EndpointError(404), "EndpointError (status 404)", "Check the name, the address and the key"),
    ],
)
def test_a_model_that_cannot_be_reached_is_reported_once(
    error: Exception, cause: str, remedy: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the evaluator, the cause and the remedy; without the error's text, which may quote a key."""
    model = Scripted(answers=[error])
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=model, conversation_length=2)
    talk(FactEvaluator(), cycle=cycle, mode=mode)
    [told] = warnings_in(caplog)
    assert told.startswith(f"evaluator 'GET_FACTS' got no answer from its model Scripted: {cause}. {remedy}")
    assert KEY not in caplog.text
    assert "Oslo" not in caplog.text


def test_a_selector_that_cannot_be_reached_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    cycle = EvaluationCycle(selector="llm", selector_model=Scripted(answers=[AuthenticationError(401)]))
    talk(evaluator("MINE", description="Mine.")(lambda ctx: None), cycle=cycle)
    [told] = warnings_in(caplog)
    assert told.startswith("evaluator 'selector' got no answer from its model Scripted: AuthenticationError")


class Asking(CognitiveEvaluator):
    """An evaluator whose `validate` asks a model."""

    async def validate(self, ctx: EvalContext) -> bool:
        await ctx.ask(Note, [HumanMessage("Is there anything to do?")])
        return True

    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        return HandlerOutcome(1.0, True, "done")


class Note(BaseModel):
    text: str = ""


def test_a_model_that_validate_cannot_reach_is_reported_with_its_evaluator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No selector is named if there is none."""
    model = Scripted(answers=[ConnectionError("no network")])
    talk(Asking("ASKS"), cycle=EvaluationCycle(evaluator_model=model))
    [told] = warnings_in(caplog)
    assert told.startswith("evaluator 'ASKS' got no answer from its model Scripted: ConnectionError")


@pytest.mark.lengthy
def test_an_evaluator_that_takes_too_long_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Scripted(answers=["{}"], pause=0.4)
    cycle = EvaluationCycle(
        store=InMemoryStore(), evaluator_model=model, conversation_length=2, handler_timeout_s=0.1
    )
    talk(FactEvaluator(), cycle=cycle)
    [told] = warnings_in(caplog)
    assert told.startswith(
        "evaluator 'GET_FACTS' was stopped after 0.1 s (EvaluationCycle(handler_timeout_s=...))."
    )


@pytest.mark.parametrize("evaluator", [FactEvaluator(), ReflectionEvaluator(), GoalEvaluator()])
def test_a_model_that_takes_too_long_is_not_asked_in_every_turn(evaluator: CognitiveEvaluator) -> None:
    """As one that gives no answer: it is left alone for some minutes."""
    go = threading.Event()

    def slow(prompt: str) -> str:
        return str(go.wait(30))

    model = Scripted(answers=[slow])
    cycle = EvaluationCycle(
        store=InMemoryStore(), evaluator_model=model, conversation_length=2, handler_timeout_s=0.2
    )
    cycle.memory.create_goal("room", "Move", entity_id="ada")
    try:
        talk(evaluator, cycle=cycle)
        assert model.calls == 1
    finally:
        go.set()


@pytest.mark.lengthy
def test_messages_that_a_stopped_evaluator_passes_over_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """One of them may ask to forget something."""
    go, clock = threading.Event(), Clock()

    def slow(prompt: str) -> str:
        return str(go.wait(30))

    model = Scripted(answers=[slow])
    cycle = EvaluationCycle(
        store=InMemoryStore(),
        evaluator_model=model,
        conversation_length=2,
        handler_timeout_s=0.4,
        clock=clock,
    )
    try:
        for _ in range(OUTAGES_PER_WINDOW):
            assert "passed over" not in caplog.text
            talk(FactEvaluator(), cycle=cycle, turns=1)
            clock.now += timedelta(hours=2)
    finally:
        go.set()
    assert "8 attempts at messages of the thread 'room': they are passed over" in caplog.text
    assert model.calls == OUTAGES_PER_WINDOW


@pytest.mark.lengthy
def test_a_room_is_learned_from_again_after_its_store_gave_no_answer() -> None:
    """Nor one to the note that the evaluator was stopped."""

    class Hanging(InMemoryStore):
        hangs = False

        async def abatch(self, ops: Iterable[Op]) -> list[Result]:
            if self.hangs:
                await asyncio.Event().wait()
            return await super().abatch(ops)

    store = Hanging()

    def hear(prompt: str) -> str:
        store.hangs = model.calls == 1
        return answer("The user lives in Oslo")

    model = Scripted(answers=[hear])
    cycle = EvaluationCycle(store=store, evaluator_model=model, conversation_length=2, handler_timeout_s=1.0)
    talk(FactEvaluator(), cycle=cycle, turns=1)
    store.hangs = False
    talk(FactEvaluator(), cycle=cycle, turns=1)
    assert [fact.claim for fact in cycle.memory.facts("ada")] == ["The user lives in Oslo"]


def test_embeddings_that_fail_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    embeddings = KeywordEmbeddings("oslo")
    embeddings.failing = [AuthenticationError(401) for _ in range(20)]
    store = InMemoryStore(index={"dims": embeddings.dims, "embed": embeddings, "fields": ["claim"]})
    memory = EvaluationCycle(store=store).memory
    for claim in ("Ada lives in Oslo", "Ada bakes"):
        memory.remember("ada", claim)
    [told] = warnings_in(caplog)
    assert told.startswith(
        "embeddings failed: AuthenticationError (status 401). Records are stored, found by"
    )
    assert KEY not in caplog.text
    assert len(memory.facts("ada")) == 2


def test_embeddings_that_fail_in_searches_only_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    embeddings = KeywordEmbeddings("oslo")
    store = InMemoryStore(index={"dims": embeddings.dims, "embed": embeddings, "fields": ["claim"]})
    memory = EvaluationCycle(store=store).memory
    memory.remember("ada", "Ada lives in Oslo")
    assert warnings_in(caplog) == []
    embeddings.failing = [AuthenticationError(401) for _ in range(20)]
    for _ in range(2):
        assert [fact.claim for fact in memory.search("Oslo", "ada")] == ["Ada lives in Oslo"]
    [told] = warnings_in(caplog)
    assert told.startswith(
        "embeddings failed: AuthenticationError (status 401). Records are stored, found by"
    )
    assert KEY not in caplog.text


@pytest.mark.parametrize("made", [FactEvaluator, ReflectionEvaluator, GoalEvaluator])
def test_messages_that_are_passed_over_after_unusable_answers_are_reported_once(
    made: Callable[[], CognitiveEvaluator], caplog: pytest.LogCaptureFixture
) -> None:
    """Each answer is cut off at the model's limit of tokens."""
    hours = count()
    cycle = EvaluationCycle(
        store=InMemoryStore(),
        evaluator_model=Scripted(answers=['{"claims": [{"claim": "Ada lives in']),
        conversation_length=2,
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=next(hours)),
    )
    cycle.memory.create_goal("room", "Find a flat", entity_id="ada")
    talk(made(), cycle=cycle, turns=7)
    [told] = warnings_in(caplog)
    assert "got no usable answer from its model: the answer has no JSON object." in told
    assert "Oslo" not in told


@pytest.mark.lengthy
@MODES
def test_of_an_answer_with_endless_claims_the_first_are_learned_and_this_is_reported_once(
    caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """As many as an entity's facts may be. A claim that is repeated counts once."""
    name = f"ENDLESS_{mode}"
    claims = [f"Ada owns book {number // 2}" for number in range(1_020)]
    cycle = EvaluationCycle(
        store=InMemoryStore(), evaluator_model=Scripted(answers=[answer(*claims)]), conversation_length=2
    )
    item = talk(FactEvaluator(name), cycle=cycle, mode=mode, turns=2)
    assert item.evaluation_results[name].metadata["dropped_invalid"] == 10
    known = {fact.claim for fact in cycle.memory.facts("ada")}
    assert known == {f"Ada owns book {number}" for number in range(500)}
    [told] = warnings_in(caplog)
    assert told.startswith(
        f"evaluator {name!r} found more than 500 claims in one answer of its model: the first"
    )
