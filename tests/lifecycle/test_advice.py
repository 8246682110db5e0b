"""Advice lives for one call; a correction gate lets no rejected draft be seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, cast

import langgraph.prebuilt as prebuilt
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import NodeTimeoutError
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages, push_message
from langgraph.types import Command, RetryPolicy, Send, TimeoutPolicy, interrupt
from pydantic import BaseModel, ValidationError

from arbiter import (
    Advisor,
    ArbiterOS,
    Correction,
    CorrectionError,
    CorrectionGate,
    EvaluationResult,
    EvaluationRouter,
    EvaluatorGate,
    FeedbackAdvisor,
    History,
    RegistrationError,
)
from tests import support
from tests.scripted import Scripted
from tests.support import MODES, Judge, Route, Spy, bad, chain, run, thread

Advise = Callable[[Any, Any], Any]
Answer = Callable[[Any, Any, Any], Any]


class Chat(support.Chat, total=False):
    topic: str


class Hooked(MessagesState):
    llm_input_messages: list[Any]


class Tell(Advisor):
    def __init__(self, name: str, advice: Any, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.advice = advice

    def advise(self, history: History, state: Mapping[str, Any]) -> Any:
        return self.advice(history, state) if callable(self.advice) else self.advice


class Review(CorrectionGate):
    def __init__(self, name: str, answer: Answer, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.answer = answer

    def review(self, history: History, draft: Mapping[str, Any], attempt: int) -> Any:
        return self.answer(history, draft, attempt)


def chat(*bodies: Any, **options: Any) -> Any:
    return chain(*bodies, state=Chat, **options)


@MODES
def test_text_reaches_a_chat_node_for_one_call_only(mode: str) -> None:
    """The advice is a message of the call; neither state nor checkpoint ever holds it."""
    seen: list[list[Any]] = []

    def speak(state: Any) -> Any:
        seen.append([(m.type, m.content) for m in state["messages"]])
        # A node that hands back what it was given must not make the advice permanent.
        return {"messages": [*state["messages"], AIMessage("hello", id="1")]}

    def last(state: Any) -> Any:
        seen.append([(m.type, m.content) for m in state["messages"]])
        return {}

    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("be_kind", "Be kind.", target_nodes=["speak"]))
    app = arbiter_os.govern(chat(speak, last, checkpointer=InMemorySaver()))
    start = [SystemMessage("You are a bot.", id="s"), HumanMessage("hi", id="h")]
    output = run(app, {"messages": start}, thread("1"), mode=mode)
    assert seen[0] == [
        ("system", "You are a bot."),
        ("system", "Be kind."),
        ("human", "hi"),
    ]
    assert [m.content for m in output["messages"]] == ["You are a bot.", "hi", "hello"]
    assert seen[1] == [("system", "You are a bot."), ("human", "hi"), ("ai", "hello")]
    for snapshot in app.get_state_history(thread("1")):
        assert "Be kind." not in str(snapshot.values)


@MODES
def test_text_and_mapping_reach_other_nodes_as_keys(mode: str) -> None:
    node = Spy("node")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("text", "hurry"))
    arbiter_os.add_advisor(Tell("keys", {"amount": 7}))
    output = run(arbiter_os.govern(chain(node)), {"log": [], "amount": 1}, mode=mode)
    assert node.calls == [{"log": [], "amount": 7, "advice": "hurry"}]
    assert output == {"log": ["node"], "amount": 1}


def test_pydantic_state_gets_a_changed_copy() -> None:
    class Model(BaseModel):
        x: int = 0
        y: int = 0

    seen: list[Model] = []

    def node(state: Model) -> Any:
        seen.append(state)
        return {"y": state.x}

    builder: Any = StateGraph(Model)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("keys", {"x": 5}))
    assert arbiter_os.govern(builder).invoke({"x": 1}) == {"x": 1, "y": 5}
    assert seen == [Model(x=5)]


BAD_ADVICE: list[Advise | int | list[Any]] = [
    lambda h, s: 1 / 0,
    42,
    [HumanMessage("x")],
    lambda h, s: s.clear(),
]


@MODES
@pytest.mark.parametrize("advice", BAD_ADVICE)
def test_failing_advisor_is_skipped_and_recorded(advice: Any, mode: str) -> None:
    node = Spy("node")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("broken", advice))
    assert run(arbiter_os.govern(chain(node)), {"log": []}, mode=mode) == {"log": ["node"]}
    assert node.calls == [{"log": []}]
    assert "advisor broken" in arbiter_os.history.entries[-1][-1].errors


class Modelled(BaseModel):
    value: int = 0


@dataclass
class Plain:
    value: int = 0


@MODES
@pytest.mark.parametrize("state", [Modelled, Plain])
def test_advice_for_a_field_that_the_state_lacks_is_reported(state: Any, mode: str) -> None:
    """Of a gate's feedback, too."""

    def node(given: Any) -> Any:
        return {"value": given.value + 1}

    builder: Any = StateGraph(state)
    builder.add_node("a", node)
    builder.add_edge(START, "a")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", "be brief"))
    arbiter_os.add_correction_gate(
        Review("gate", lambda history, draft, attempt: Correction.retry("shorter"))
    )
    assert run(arbiter_os.govern(builder.compile()), {"value": 1}, mode=mode)["value"] == 2
    said = f"TypeError: the node's input, a {state.__name__}, has no field '{{}}' for the advice; add one"
    errors = arbiter_os.history.item.errors
    assert errors["advisor tell"] == said.format("advice")
    assert said.format("feedback") in errors["gate gate"]


@MODES
def test_feedback_advisor_hands_on_what_was_found_wrong(mode: str) -> None:
    draft = Spy("draft")
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", bad, target_nodes=["draft"]))
    arbiter_os.add_policy_router(EvaluationRouter("again", "quality", "draft", max_redirects=1))
    arbiter_os.add_advisor(FeedbackAdvisor("tell", "quality"))
    run(arbiter_os.govern(chain(draft)), {"log": []}, mode=mode)
    assert draft.calls == [{"log": []}, {"log": ["draft"], "advice": "quality: bad"}]


@MODES
def test_rejected_drafts_are_seen_nowhere(mode: str) -> None:
    """Not in the state, not in a checkpoint, not in any stream; the feedback reaches the next call."""
    model = GenericFakeChatModel(
        messages=iter([AIMessage("draft one"), AIMessage("draft two"), AIMessage("final")])
    )
    inputs: list[list[str]] = []

    def speak(state: Any) -> Any:
        inputs.append([str(m.content) for m in state["messages"]])
        answer = model.invoke(state["messages"])
        get_stream_writer()({"custom": answer.content})
        return {"messages": [answer]}

    def review(history: History, draft: Any, attempt: int) -> Correction:
        text = draft["messages"][-1].content
        assert history.entries[-1][-1].output_state["messages"][-1].content == text
        return Correction.commit() if text == "final" else Correction.retry(f"no. {attempt}")

    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", review))
    app = arbiter_os.govern(chat(speak, checkpointer=InMemorySaver()))
    modes: Any = ["values", "updates", "messages", "custom", "debug", "tasks", "checkpoints"]
    state = {"messages": [HumanMessage("hi")]}
    if mode == "sync":
        chunks: list[Any] = list(app.stream(state, thread("1"), stream_mode=modes))
    else:

        async def collect() -> list[Any]:
            return [c async for c in app.astream(state, thread("1"), stream_mode=modes)]

        chunks = asyncio.run(collect())
    assert inputs == [["hi"], ["hi", "no. 1"], ["hi", "no. 2"]]
    text = str(chunks)
    assert "draft" not in text.replace("'draft'", "")
    assert "no. 1" not in text
    assert [c[1] for c in chunks if c[0] == "custom"] == [{"custom": "final"}]
    assert [c[1][0].content for c in chunks if c[0] == "messages"][-1] == "final"
    assert [m.content for m in app.get_state(thread("1")).values["messages"]] == ["hi", "final"]
    item = arbiter_os.history.entries[-1][-1]
    assert list(item.corrections) == ["no. 1", "no. 2"]


@MODES
def test_attempts_are_bounded(mode: str) -> None:
    node = Spy("node")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", lambda h, d, a: Correction.retry("again"), max_attempts=3))
    assert run(arbiter_os.govern(chain(node)), {"log": []}, mode=mode) == {"log": ["node"]}
    assert len(node.calls) == 3
    assert "max_attempts=3" in arbiter_os.history.entries[-1][-1].notes["gate gate"]


GIVING_UP: list[tuple[Answer, dict[str, Any], int]] = [
    (lambda h, d, a: Correction.give_up("hopeless"), {}, 1),
    (lambda h, d, a: Correction.retry("hopeless"), {"on_exhausted": "raise", "max_attempts": 2}, 2),
]


@MODES
@pytest.mark.parametrize(("answer", "kwargs", "calls"), GIVING_UP)
def test_giving_up_fails_the_node(answer: Any, kwargs: Any, calls: int, mode: str) -> None:
    node = Spy("node")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", answer, **kwargs))
    with pytest.raises(CorrectionError, match="hopeless"):
        run(arbiter_os.govern(chain(node)), {"log": []}, mode=mode)
    assert len(node.calls) == calls
    assert arbiter_os.history.entries[-1][-1].status == "failed"


BAD_ANSWERS: list[Answer] = [lambda h, d, a: 1 / 0, lambda h, d, a: None, lambda h, d, a: d.clear()]


@MODES
@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_failing_gate_lets_the_draft_pass_and_says_so(answer: Any, mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", answer))
    assert run(arbiter_os.govern(chain(Spy("node"))), {"log": []}, mode=mode) == {"log": ["node"]}
    assert "let through" in arbiter_os.history.entries[-1][-1].errors["gate gate"]


@MODES
def test_gate_may_commit_an_earlier_draft(mode: str) -> None:
    drafts: list[Any] = []

    def review(history: History, draft: Any, attempt: int) -> Correction:
        drafts.append(dict(draft))
        return Correction.retry("more") if attempt == 1 else Correction.commit({"log": ["best"]})

    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", review))
    assert run(arbiter_os.govern(chain(Spy("node"))), {"log": []}, mode=mode) == {"log": ["best"]}


@MODES
def test_evaluator_gate(mode: str) -> None:
    seen: list[Any] = []

    def node(state: Any) -> Any:
        seen.append(state.get("feedback"))
        return {"log": [f"draft{len(seen)}"]}

    def judge(history: History) -> EvaluationResult:
        text = history.entries[-1][-1].output_state["log"][0]
        return EvaluationResult(0.5, text == "draft2", f"{text} is not the second")

    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(EvaluatorGate("gate", Judge("second", judge)))
    assert run(arbiter_os.govern(chain(node)), {"log": []}, mode=mode) == {"log": ["draft2"]}
    assert seen == [None, "draft1 is not the second"]


@MODES
def test_gate_then_evaluation_then_route_see_the_committed_draft(mode: str) -> None:
    counter = iter(range(9))

    def node(state: Any) -> Any:
        return {"log": [f"draft{next(counter)}"]}

    routed: list[Any] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(
        Review("gate", lambda h, d, a: Correction.retry("x") if a < 3 else Correction.commit())
    )
    arbiter_os.add_policy_router(Route("r", lambda h, o: routed.append(dict(o))))
    assert run(arbiter_os.govern(chain(node)), {"log": []}, mode=mode) == {"log": ["draft2"]}
    assert routed == [{"log": ["draft2"]}]


def test_two_gates_on_one_node_are_refused() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("one", lambda h, d, a: Correction.commit()))
    arbiter_os.add_correction_gate(Review("two", lambda h, d, a: Correction.commit()))
    with pytest.raises(RegistrationError, match="'one', 'two'"):
        arbiter_os.govern(chain(Spy("node")))


@MODES
def test_a_gate_takes_an_earlier_attempt_with_its_command(mode: str) -> None:
    """Its destination and its stream come with it."""
    calls: list[int] = []

    def speak(state: Any) -> Any:
        calls.append(1)
        number = len(calls)
        get_stream_writer()(f"draft {number}")
        goto = "first" if number == 1 else "last"
        return Command(update={"messages": [AIMessage(f"draft {number}")]}, goto=goto)

    def first(state: Any) -> Any:
        return {"topic": "first"}

    def last(state: Any) -> Any:
        return {"topic": "last"}

    def answer(history: Any, draft: Any, attempt: int) -> Correction:
        return Correction.retry("again") if attempt < 3 else Correction.commit_attempt(1, details={"took": 1})

    builder: Any = StateGraph(Chat)
    for body in (speak, first, last):
        builder.add_node(body.__name__, body)
    builder.add_edge(START, "speak")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", answer, target_nodes=["speak"]))
    app: Any = arbiter_os.govern(builder.compile())

    async def collect() -> list[Any]:
        return [part async for part in app.astream({}, stream_mode=["custom", "values"])]

    if mode == "sync":
        parts = list(app.stream({}, stream_mode=["custom", "values"]))
    else:
        parts = asyncio.run(collect())
    assert [part for kind, part in parts if kind == "custom"] == ["draft 1"]
    assert parts[-1][1]["topic"] == "first"
    assert [str(message.text) for message in parts[-1][1]["messages"]] == ["draft 1"]
    assert next(item for item in arbiter_os.history.items() if item.node == "speak").gating == {"took": 1}


@MODES
@pytest.mark.parametrize("attempt", [0, -1, 7])
def test_an_attempt_that_never_was_is_not_taken(attempt: int, mode: str) -> None:
    def answer(history: Any, draft: Any, number: int) -> Correction:
        return Correction.retry("again") if number == 1 else Correction.commit_attempt(attempt)

    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", answer))
    assert run(arbiter_os.govern(chain(Spy("a"))), {"log": []}, mode=mode) == {"log": ["a"]}
    assert "is not at hand" in arbiter_os.history.entries[-1][-1].errors["gate gate"]


@MODES
def test_a_replaced_update_keeps_where_the_node_goes(mode: str) -> None:
    def speak(state: Any) -> Any:
        return Command(update={"topic": "draft"}, goto="then")

    def then(state: Any) -> Any:
        return {"messages": [AIMessage("then")]}

    builder: Any = StateGraph(Chat)
    builder.add_node("speak", speak)
    builder.add_node("then", then)
    builder.add_edge(START, "speak")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(
        Review("gate", lambda h, d, a: Correction.commit({"topic": "better"}), target_nodes=["speak"])
    )
    app: Any = arbiter_os.govern(builder.compile())
    output = run(app, {}, mode=mode)
    assert (output["topic"], len(output["messages"])) == ("better", 1)


@MODES
def test_contracts_with_an_async_twin_are_asked_by_it_in_async_runs(mode: str) -> None:
    asked: list[str] = []

    class TwoTells(Tell):
        def advise(self, history: History, state: Mapping[str, Any]) -> Any:
            asked.append("advise")

        async def aadvise(self, history: History, state: Mapping[str, Any]) -> Any:
            asked.append("aadvise")

    class TwoReviews(Review):
        def review(self, history: History, draft: Mapping[str, Any], attempt: int) -> Any:
            asked.append("review")
            return Correction.commit()

        async def areview(self, history: History, draft: Mapping[str, Any], attempt: int) -> Any:
            asked.append("areview")
            return Correction.commit()

    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(TwoTells("tell", None))
    arbiter_os.add_correction_gate(TwoReviews("gate", lambda h, d, a: None))
    run(arbiter_os.govern(chain(Spy("a"))), {"log": []}, mode=mode)
    assert asked == (["advise", "review"] if mode == "sync" else ["aadvise", "areview"])


@MODES
def test_a_gate_gets_its_kept_notes_after_a_pause(mode: str) -> None:
    """After a pause an ArbiterOS that knows nothing of the drafts goes on with the next attempt."""
    saver = InMemorySaver()
    resumed: list[Any] = []
    attempts: list[int] = []

    class Keeps(Review):
        def resume(self, history: History, kept: Any) -> str:
            resumed.append(list(kept))
            return super().resume(history, kept)

    def answer(history: Any, draft: Any, attempt: int) -> Correction:
        attempts.append(attempt)
        return Correction.retry("secret", keep={"n": attempt}) if attempt < 3 else Correction.commit()

    def speak(state: Any) -> Any:
        if len(attempts) == 2:
            interrupt("go on?")
        return {"messages": [AIMessage(str(state["messages"][-1].text))]}

    def app() -> Any:
        arbiter_os = ArbiterOS()
        arbiter_os.add_correction_gate(Keeps("gate", answer))
        return arbiter_os.govern(chat(speak, checkpointer=saver))

    run(app(), {"messages": [HumanMessage("hi")]}, thread("1"), mode=mode)
    output = run(app(), Command(resume="yes"), thread("1"), mode=mode)
    assert attempts == [1, 2, 3]
    assert resumed == [[{"n": 1}, {"n": 2}]]
    assert str(output["messages"][-1].text) == "2 of your drafts were already sent back."


@MODES
def test_a_retry_policy_goes_on_with_the_next_attempt(mode: str) -> None:
    attempts: list[int] = []
    calls: list[str] = []

    def answer(history: Any, draft: Any, attempt: int) -> Correction:
        attempts.append(attempt)
        return Correction.retry("again") if attempt < 2 else Correction.commit()

    def speak(state: Any) -> Any:
        calls.append(str(state["messages"][-1].text))
        if len(calls) == 2:
            raise ConnectionError("down")
        return {"messages": [AIMessage("x")]}

    builder: Any = StateGraph(Chat)
    policy = RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=3)
    builder.add_node("speak", speak, retry_policy=policy)
    builder.add_edge(START, "speak")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", answer))
    app: Any = arbiter_os.govern(builder.compile())
    run(app, {"messages": [HumanMessage("hi")]}, mode=mode)
    assert attempts == [1, 2]
    assert calls == ["hi", "again", "again"]


class SlowTokens(Scripted):
    """A model that takes a pause for each token, and streams its answers as tokens if somebody listens."""

    async def _astream(self, *args: Any, **known: Any) -> AsyncIterator[ChatGenerationChunk]:
        for answer in self.answers:
            await asyncio.sleep(self.pause)
            yield ChatGenerationChunk(message=AIMessageChunk(content=answer))

    async def _agenerate(self, *args: Any, **known: Any) -> ChatResult:
        await asyncio.sleep(self.pause * len(self.answers))
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(self.answers)))])


@pytest.mark.lengthy
def test_a_node_under_a_gate_is_not_idle_while_it_streams_or_writes() -> None:
    """Chunks and messages that wait for the gate reset the idle timeout, as in the bare graph."""
    pause, pauses = 0.5, 4

    async def streams(state: Any) -> Any:
        for number in range(pauses):
            await asyncio.sleep(pause)
            get_stream_writer()(number)
        return {"messages": [AIMessage("done")]}

    async def pushes(state: Any) -> Any:
        for number in range(pauses):
            await asyncio.sleep(pause)
            push_message(AIMessage("done", id=str(number)))
        return {}

    async def speaks(state: Any) -> Any:
        model = SlowTokens(answers=["d", "o", "n", "e"], pause=pause)
        return {"messages": [await model.ainvoke("Say done.")]}

    async def last_of(body: Any, *, drafts: int, policy: TimeoutPolicy) -> Any:
        def answer(history: Any, draft: Any, attempt: int) -> Correction:
            return Correction.retry("again") if attempt < drafts else Correction.commit()

        builder: Any = StateGraph(Chat).add_node("speak", body, timeout=policy).add_edge(START, "speak")
        arbiter_os = ArbiterOS()
        if drafts:
            arbiter_os.add_correction_gate(Review("gate", answer))
        app: Any = arbiter_os.govern(builder.compile())
        try:
            parts = [part async for part in app.astream({}, stream_mode=["messages", "custom", "values"])]
        except NodeTimeoutError:
            return "timeout"
        return parts[-1][1]["messages"][-1].text

    async def all_of_them() -> list[Any]:
        auto = TimeoutPolicy(idle_timeout=pause * 3)
        beats = TimeoutPolicy(idle_timeout=pause * 3, refresh_on="heartbeat")
        bodies = (streams, pushes, speaks)
        return await asyncio.gather(
            *(last_of(body, drafts=drafts, policy=auto) for drafts in (0, 1, 2) for body in bodies),
            *(last_of(streams, drafts=drafts, policy=beats) for drafts in (0, 1)),
        )

    assert asyncio.run(all_of_them()) == ["done"] * 9 + ["timeout"] * 2


class Odd(BaseMessage):
    """A message of a type that LangChain does not know."""

    type: str = "odd"


def test_a_model_under_a_gate_with_an_idle_timeout_takes_messages_of_any_type() -> None:
    async def speaks(state: Any) -> Any:
        return {"messages": [await SlowTokens(answers=["do", "ne"]).ainvoke([Odd(content="Say done.")])]}

    builder: Any = StateGraph(Chat).add_node("speak", speaks, timeout=TimeoutPolicy(idle_timeout=60))
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", lambda history, draft, attempt: Correction.commit()))
    app: Any = arbiter_os.govern(builder.add_edge(START, "speak").compile())

    async def said() -> Any:
        parts = [part async for part in app.astream({}, stream_mode=["messages", "values"])]
        return parts[-1][1]["messages"][-1].text

    assert asyncio.run(said()) == "done"


@MODES
@pytest.mark.parametrize("called", ["as the node", "by the node"])
def test_a_graph_under_a_gate_runs_with_every_durability(called: str, mode: str) -> None:
    """A gated graph saves nothing, so it has no checkpoint that `durability="sync"` could wait for."""

    def name(state: Any) -> Any:
        return {"topic": "tea"}

    inside = chat(name)

    def call_inside(state: Any) -> Any:
        return inside.invoke(state)

    def commit(history: Any, draft: Any, attempt: int) -> Correction:
        return Correction.commit()

    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", commit, target_nodes=["agent"]))
    builder: Any = StateGraph(Chat)
    builder.add_node("agent", inside if called == "as the node" else call_inside)
    app: Any = arbiter_os.govern(builder.add_edge(START, "agent").compile(checkpointer=InMemorySaver()))
    for durability in ("sync", "async", "exit"):
        call = (app.invoke if mode == "sync" else app.ainvoke)(
            {"messages": []}, thread(durability), durability=durability
        )
        assert (call if mode == "sync" else asyncio.run(call))["topic"] == "tea"


@MODES
@pytest.mark.parametrize("by", ["value", "id"])
@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("called", ["as the node", "by the node"])
def test_a_graph_under_a_gate_gets_each_answer_for_its_own_question(
    called: str, drafts: int, by: str, mode: str
) -> None:
    """A gated graph begins anew when the run is resumed, and the answers to its earlier questions are kept."""

    def pack(state: Any) -> Any:
        return {"topic": f"{interrupt('size?')} {interrupt('colour?')}"}

    def send(state: Any) -> Any:
        return {"topic": f"{state['topic']} to {interrupt('where?')}"}

    reviewed: list[str] = []

    def answer(history: Any, draft: Any, attempt: int) -> Correction:
        reviewed.append(draft["topic"])
        return Correction.retry("again") if attempt < drafts else Correction.commit()

    inside = chat(pack, send)

    def call_inside(state: Any) -> Any:
        return inside.invoke(state)

    builder: Any = StateGraph(Chat)
    builder.add_node("agent", inside if called == "as the node" else call_inside)
    graph: Any = builder.add_edge(START, "agent").compile(checkpointer=InMemorySaver())
    given: Any = {"messages": []}
    output: Any = None
    asked: list[str] = []
    while given is not None and len(asked) < 9:
        arbiter_os = ArbiterOS()  # one that knows nothing of the drafts before
        arbiter_os.add_correction_gate(Review("gate", answer, target_nodes=["agent"]))
        output = run(arbiter_os.govern(graph), given, thread("1"), mode=mode)
        given = None
        for question in output.get("__interrupt__", ()):
            asked.append(question.value)
            given = Command(resume={question.id: str(len(asked))} if by == "id" else str(len(asked)))
    assert asked == ["size?", "colour?", "where?"] * drafts
    assert reviewed == ["1 2 to 3", "4 5 to 6"][:drafts]
    assert output["topic"] == reviewed[-1]


class Typed(BaseModel):
    topic: str = ""


class Size(BaseModel):
    cm: int


@MODES
@pytest.mark.parametrize("by", ["value", "id"])
@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("asks", ["as the node", "by the node", "the node itself"])
def test_a_question_under_a_gate_can_be_answered_again_if_an_answer_did_not_fit_its_schema(
    asks: str, drafts: int, by: str, mode: str
) -> None:
    """The answer that LangGraph refused is not kept, and those before it are."""

    def pack(state: Any) -> Any:
        size: Any = interrupt("size?", response_schema=Size)
        return {"topic": f"{size.cm} cm, {interrupt('colour?', response_schema=Typed).topic}"}

    def answer(history: Any, draft: Any, attempt: int) -> Correction:
        return Correction.retry("again") if attempt < drafts else Correction.commit()

    inside = chat(pack)

    def call_inside(state: Any) -> Any:
        return inside.invoke(state)

    nodes: dict[str, Any] = {"as the node": inside, "by the node": call_inside, "the node itself": pack}
    builder: Any = StateGraph(Chat)
    builder.add_node("agent", nodes[asks])
    graph: Any = builder.add_edge(START, "agent").compile(checkpointer=InMemorySaver())
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("gate", answer, target_nodes=["agent"]))
    app = arbiter_os.govern(graph)

    def give(question: Any, value: Any) -> Any:
        return run(app, Command(resume={question.id: value} if by == "id" else value), thread("1"), mode=mode)

    output: Any = run(app, {"messages": []}, thread("1"), mode=mode)
    for _ in range(drafts):
        for asked, wrong, right in (
            ("size?", {"cm": "tall"}, {"cm": 7}),
            ("colour?", {"topic": 1}, {"topic": "red"}),
        ):
            (question,) = output["__interrupt__"]
            assert question.value == asked
            with pytest.raises(ValidationError):
                give(question, wrong)
            assert [each.value for each in app.get_state(thread("1")).interrupts] == [asked]
            output = give(question, right)
    assert output["topic"] == "7 cm, red"


def sends(given: Any, seen: list[Any]) -> Any:
    """A graph with a node that gets `given`, by a `Send`, and adds it to `seen`."""

    def start(state: Any) -> Any:
        return Send("a", given)

    builder: Any = StateGraph(Chat)
    builder.add_node("a", seen.append)
    builder.add_conditional_edges(START, start, ["a"])
    return builder.compile()


@MODES
@pytest.mark.parametrize("given", [Command(goto="b"), Typed(topic="tea"), {"topic": "tea"}])
@pytest.mark.parametrize("advice", [None, "", {}, []])
def test_advice_of_nothing_leaves_the_input_as_it_is(advice: Any, given: Any, mode: str) -> None:
    seen: list[Any] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", advice))
    run(arbiter_os.govern(sends(given, seen)), {"messages": []}, mode=mode)
    assert seen == [given]
    assert not arbiter_os.history.item.errors


def test_advice_for_a_command_is_reported() -> None:
    """A `Command` that was sent as input keeps its goto."""
    seen: list[Any] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", {"goto": "c"}))
    run(arbiter_os.govern(sends(Command(goto="b"), seen)), {"messages": []})
    assert seen == [Command(goto="b")]
    assert "Command" in arbiter_os.history.item.errors["advisor tell"]


@MODES
@pytest.mark.parametrize("memory", [None, True], ids=["stateless", "with a memory of its own"])
def test_advice_for_a_graph_goes_to_its_nodes_and_into_none_of_its_checkpoints(
    mode: str, memory: bool | None
) -> None:
    """A graph saves and streams its input, so its chat nodes get the advice, each for its call."""
    seen: list[list[Any]] = []

    def think(state: Any) -> Any:
        return {"topic": "tea"}

    def speak(state: Any) -> Any:
        seen.append([m.content for m in state["messages"]])
        return {"messages": [AIMessage("hello")]}

    saver = InMemorySaver()
    inside = chat(think, speak, checkpointer=memory)
    around = StateGraph(Chat).add_node("agent", inside).add_edge(START, "agent").compile(checkpointer=saver)
    arbiter_os = ArbiterOS()
    once = iter(["SECRET", None])

    def tell(history: History, state: Any) -> str | None:
        return next(once)

    arbiter_os.add_advisor(Tell("tell", tell, target_nodes=["agent"]))
    app = arbiter_os.govern(around)
    chunks = [
        repr(chunk)
        for chunk in app.stream(
            {"messages": [HumanMessage("hi", id="1")]},
            thread("t"),
            stream_mode=["values", "updates", "debug"],
            subgraphs=True,
        )
    ]
    run(app, {"messages": [HumanMessage("again", id="2")]}, thread("t"), mode=mode)
    assert seen == [["SECRET", "hi"], ["hi", "hello", "again"]]
    assert not any("SECRET" in chunk for chunk in chunks)
    assert "SECRET" not in repr(saver.blobs) + repr(saver.writes) + repr(saver.storage)


@MODES
def test_advice_reaches_all_messages_of_a_node_that_may_read_either(mode: str) -> None:
    """A node of a graph with the keys of LangGraph's prebuilt agent may read either of them."""
    seen: list[dict[str, list[str]]] = []

    def speak(state: Any) -> Any:
        seen.append({key: [str(part.content) for part in parts] for key, parts in state.items()})
        return {"messages": [AIMessage("hello")]}

    builder = StateGraph(Hooked).add_node("speak", speak).add_edge(START, "speak")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", "SECRET"))
    given = {"messages": [HumanMessage("hi")], "llm_input_messages": [HumanMessage("in")]}
    output = run(arbiter_os.govern(builder.compile()), given, mode=mode)
    assert seen == [{"messages": ["SECRET", "hi"], "llm_input_messages": ["SECRET", "in"]}]
    assert "SECRET" not in repr(output)


def sending(state: Any, next: Any) -> Command[Any]:
    return Command(goto=[Send(next, state)])


RETURNS: dict[str, Advise] = {
    "commands": lambda state, next: (Command(update=state), Command(goto=next)),
    "an update beside a command": lambda state, next: [state, Command(goto=next)],
    "a command that sends": lambda state, next: sending({**state, "n": 1}, next),
    "commands that send": lambda state, next: [sending(state, next), Command(goto=())],
}


@MODES
@pytest.mark.parametrize("advice", ["SECRET", {"topic": "SECRET"}], ids=["text", "mapping"])
@pytest.mark.parametrize("returned", RETURNS.values(), ids=RETURNS)
def test_a_node_that_returns_or_sends_its_input_keeps_no_advice(
    returned: Advise, advice: Any, mode: str
) -> None:
    """Whatever form its output has: an update, several commands, the states that it sends to other nodes."""
    seen: list[Any] = []

    def work(state: Any) -> Any:
        return returned(state, "next")

    def look(state: Any) -> Any:
        seen.append([state["topic"], *(part.text for part in state["messages"])])
        return {}

    saver = InMemorySaver()
    builder: Any = StateGraph(Chat)
    builder.add_node("work", work, destinations=("next",)).add_node("next", look).add_edge(START, "work")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", advice, target_nodes=["work"]))
    app = arbiter_os.govern(builder.compile(checkpointer=saver))
    run(app, {"messages": [HumanMessage("hi", id="1")], "topic": "tea"}, thread("t"), mode=mode)
    assert seen == [["tea", "hi"]]
    assert not any(item.errors for item in arbiter_os.history.items())
    assert "SECRET" not in repr(saver.blobs) + repr(saver.writes) + repr(saver.storage)


class Article(BaseModel):
    topic: str = "tea"
    text: str = ""


@MODES
def test_a_command_with_a_whole_model_keeps_no_advice(mode: str) -> None:
    def work(state: Article) -> Any:
        return Command(update=state.model_copy(update={"text": f"about {state.topic}"}))

    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", {"topic": "coffee"}))
    app = arbiter_os.govern(StateGraph(Article).add_node("work", work).add_edge(START, "work").compile())
    assert run(app, Article(), mode=mode) == {"topic": "tea", "text": "about coffee"}


class Notes(BaseModel):
    topic: str = "tea"
    lines: list[str] = []


@MODES
def test_a_node_that_returns_the_fields_of_its_model_keeps_no_advice(mode: str) -> None:
    """The model with advice is validated anew, so its lists are copies."""

    def work(state: Notes) -> Any:
        return {**vars(state)}

    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", {"topic": "coffee"}))
    app = arbiter_os.govern(StateGraph(Notes).add_node("work", work).add_edge(START, "work").compile())
    assert run(app, Notes(lines=["one"]), mode=mode) == {"topic": "tea", "lines": ["one"]}


@MODES
def test_a_command_from_a_graph_that_a_node_calls_brings_no_advice_to_the_parent(mode: str) -> None:
    """As an agent of langgraph-supervisor hands over: with all messages that it was given."""

    def hand_over(state: Any) -> Any:
        return Command(graph=Command.PARENT, goto="next", update={"messages": state["messages"]})

    inner = chat(hand_over)

    def work(state: Any) -> Any:
        return inner.invoke(state)

    async def awork(state: Any) -> Any:
        return await inner.ainvoke(state)

    builder: Any = StateGraph(Chat)
    builder.add_node("work", work if mode == "sync" else awork, destinations=("next",))
    builder.add_node("next", Spy("next")).add_edge(START, "work")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", "SECRET", target_nodes=["work"]))
    output = run(arbiter_os.govern(builder.compile()), {"messages": [HumanMessage("hi", id="1")]}, mode=mode)
    assert [part.text for part in output["messages"]] == ["hi"]
    assert [item.node for item in arbiter_os.history.items()] == ["work", "next"]


class LastMessages(TypedDict):
    messages: list[Any]


@MODES
@pytest.mark.parametrize("gated", [False, True])
def test_messages_that_advice_puts_in_place_of_the_nodes_own_are_not_returned_with_its_input(
    gated: bool, mode: str
) -> None:
    """Also if a second advisor, or the feedback of a gate, adds to them. The state has no reducer here."""
    seen: list[Any] = []

    def work(state: Any) -> Any:
        seen.append([part.text for part in state["messages"]])
        return {"messages": state["messages"]}

    arbiter_os = ArbiterOS()
    replacing = {"messages": [SystemMessage("SECRET"), HumanMessage("hi", id="1")]}
    arbiter_os.add_advisor(Tell("replaces", replacing))
    if gated:
        twice = Review(
            "twice", lambda _, __, at: Correction.commit() if at == 2 else Correction.retry("again")
        )
        arbiter_os.add_correction_gate(twice)
    else:
        arbiter_os.add_advisor(Tell("adds", "be brief"))
    app = arbiter_os.govern(chain(work, state=LastMessages))
    output = run(app, {"messages": [HumanMessage("hi", id="1")]}, mode=mode)
    assert seen[-1] == (["SECRET", "hi", "again"] if gated else ["SECRET", "be brief", "hi"])
    assert [part.text for part in output["messages"]] == ["hi"]


class Topic(Advisor):
    block = "topics"

    def advise(self, history: History, state: Mapping[str, Any]) -> str | None:
        return state.get("topic")

    def compose(self, parts: Any) -> str:
        return ", ".join(parts)


@MODES
def test_a_block_for_a_graph_reaches_nodes_that_get_none_of_their_own(mode: str) -> None:
    """An advisor without a target is asked for the nodes inside, too, whose state may lack what it reads."""
    heard: list[list[str]] = []

    def speak(state: Any) -> Any:
        heard.append([part.text for part in state["messages"]])
        return {}

    agent: Any = StateGraph(support.Chat).add_node("speak", speak).add_edge(START, "speak").compile()
    builder = StateGraph(Chat).add_node("agent", agent).add_edge(START, "agent")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Topic("topic"))
    run(arbiter_os.govern(builder.compile()), {"messages": [HumanMessage("hi")], "topic": "Owls"}, mode=mode)
    assert heard == [["Owls", "hi"]]
    assert not any(item.errors for item in arbiter_os.history.items())


def test_advice_without_a_place_in_any_node_of_a_graph_is_reported() -> None:
    """Lost advice is reported."""
    inside = chain(Spy("a"))
    builder = StateGraph(Chat)
    builder.add_node("agent", inside)
    builder.add_edge(START, "agent")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", [HumanMessage("hm")], target_nodes=["agent"]))
    arbiter_os.govern(builder.compile()).invoke({"topic": "tea"})
    item = arbiter_os.history.last(node="agent")
    assert item is not None
    assert item.errors == {"advisor tell": "no node of the graph inside could take its advice"}


@MODES
def test_advice_reaches_a_graph_whose_state_is_a_list_of_messages(mode: str) -> None:
    seen: list[list[str]] = []

    def speak(state: Any) -> Any:
        seen.append([str(part.content) for part in state])
        return [*state[:1], AIMessage("hello", id="2")]

    builder: Any = StateGraph(cast(Any, Annotated[list[Any], add_messages]))
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", "SECRET"))
    output: Any = run(arbiter_os.govern(builder.compile()), [HumanMessage("hi", id="1")], mode=mode)
    assert seen == [["SECRET", "hi"]]
    assert [part.content for part in output] == ["hi", "hello"]
    assert not arbiter_os.history.item.errors


@MODES
@pytest.mark.parametrize("listed", [False, True])
def test_an_entrypoint_saves_no_advice_with_its_messages(listed: bool, mode: str) -> None:
    saver = InMemorySaver()
    heard: list[list[str]] = []

    @entrypoint(checkpointer=saver)
    def talk(said: Any, *, previous: Any = None) -> Any:
        before: Any = [] if previous is None else previous["messages"]
        messages = [*before, *(said if listed else said["messages"])]
        heard.append([part.text for part in messages])
        return entrypoint.final(value={"messages": messages}, save={"messages": messages})

    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", "SECRET"))
    app: Any = arbiter_os.govern(cast(Any, talk))
    for text in ("hi", "again"):
        messages = [HumanMessage(text)]
        output: Any = run(app, messages if listed else {"messages": messages}, thread("t"), mode=mode)
    assert heard == [["SECRET", "hi"], ["hi", "SECRET", "again"]]
    assert [part.text for part in output["messages"]] == ["hi", "again"]
    assert "SECRET" not in repr(saver.blobs) + repr(saver.writes) + repr(saver.storage)


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@MODES
def test_advice_reaches_a_prebuilt_agent_whose_hook_makes_its_messages(mode: str) -> None:
    """The agent reads the messages of the hook, which are not those of the state."""
    model = Scripted(answers=["hello", "hello again"])
    saver = InMemorySaver()

    def newest(state: Any) -> Any:
        return {"llm_input_messages": state["messages"][-1:]}

    agent: Any = cast(Any, prebuilt).create_react_agent(model, [], pre_model_hook=newest, checkpointer=saver)
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("tell", "SECRET"))
    app = arbiter_os.govern(agent)
    for text in ("hi", "again"):
        run(app, {"messages": [HumanMessage(text)]}, thread("t"), mode=mode)
    assert [[part.text for part in asked] for asked in model.asked] == [["SECRET", "hi"], ["SECRET", "again"]]
    assert "SECRET" not in repr(saver.blobs) + repr(saver.writes) + repr(saver.storage)
