"""No secret that somebody says reaches a model, an embedder, a judge, a store, a log or a trace of memory."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS
from arbiter.memory import (
    EvalContext,
    EvaluationCycle,
    FactEvaluator,
    FactsProvider,
    GoalEvaluator,
    GoalsProvider,
    ProviderContext,
    ProviderResult,
    ReflectionEvaluator,
    ReflectionProvider,
    RelationshipsProvider,
    TrustEvaluator,
    TrustProvider,
    evaluator,
)
from arbiter.memory.providers import Provider
from tests.scripted import Scripted

CANARIES = (
    "hunter2x9",
    "sk-live-4eC39HqLyjWDarjtT1zdp7dc",
    "4111 1111 1111 1111",
    "sonnenblume77",
    "s3cretpw9",
    "DE89 3704 0044 0532 0130 00",
    "zq81kk",
)
SAID: tuple[Any, ...] = (
    "My password is hunter2x9 and I live in Oslo",
    "use the key sk-live-4eC39HqLyjWDarjtT1zdp7dc, or card 4111 1111 1111 1111",
    "Mein WLAN-Passwort lautet sonnenblume77",
    [
        {"type": "text", "text": "postgres://bob:s3cretpw9@db/app "},
        {"type": "text", "text": "is the database"},
    ],
    [{"type": "text", "text": "My PIN code "}, {"type": "text", "text": "is zq81kk"}],
    "pay to DE89 3704 0044 0532 0130 00 please " + "and so on " * 10_000,
    "forget my password hunter2x9",
    "forget what I said about hunter2x9, it is my password",
)


class Listening(Embeddings):
    """An embedder that keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.given += texts
        return [[1.0, float(len(text) % 7)] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Repeating(Provider):
    """Shows what a user's own provider is given."""

    name = "repeating"

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def get(self, ctx: ProviderContext) -> ProviderResult:
        self.seen += [ctx.query, *(str(message.content) for message in ctx.messages)]
        return ProviderResult(text="")


def answer(prompt: str) -> str:
    """An answer that fits whatever is asked; the extractor hands on what it was shown."""
    if "keep track of the goals" in prompt:
        return json.dumps({"goals": []})
    claims = [{"claim": f"User says {line[:1500]}", "type": "fact"} for line in _quoted(prompt)]
    return json.dumps({"claims": claims, "thought": "ok", "facts": [], "relationships": [], "names": []})


def _quoted(prompt: str) -> list[str]:
    return [line[2:] for line in prompt.splitlines() if line.startswith("> ") and "Oslo" in line]


@pytest.mark.lengthy
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("selector", ["rule", "llm"])
def test_a_secret_reaches_nothing_of_memory(
    caplog: pytest.LogCaptureFixture, mode: str, selector: Any
) -> None:
    caplog.set_level("DEBUG")
    embedder, seen = Listening(), list[str]()
    store = InMemoryStore(index={"dims": 2, "embed": embedder, "fields": ["claim"]})
    model = Scripted(answers=[answer])
    cycle = EvaluationCycle(
        store=store,
        evaluator_model=model,
        selector=selector,
        conversation_length=2,
        max_llm_calls_per_turn=20,
    )
    cycle.memory.create_goal("room", "Find a flat", ["look"], entity_id="ada")

    @evaluator("MINE", always_run=True, skip_selection=True)
    def mine(ctx: EvalContext) -> None:
        assert ctx.message is not None
        shown = [
            ctx.message,
            *ctx.new_messages,
            *ctx.messages,
            *ctx.state["messages"],
            ctx.state["messages"][0],
        ]
        seen.extend(str(message.content) for message in shown)
        whole = ctx.state["messages"]
        seen.extend(
            map(repr, [whole, ctx.state, whole[:], copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))])
        )
        assert whole == [*whole]

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    for one in (FactEvaluator(), ReflectionEvaluator(), GoalEvaluator(), TrustEvaluator(), mine):
        arbiter_os.add_evaluator(one)
    for provider in (
        FactsProvider(), RelationshipsProvider(), GoalsProvider(), ReflectionProvider(), TrustProvider(),
        Repeating(seen),
    ):  # fmt: skip
        arbiter_os.add_advisor(provider)

    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"You said: {state['messages'][-1].text}"[:200])]}

    graph = StateGraph(MessagesState)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    app = arbiter_os.govern(graph.compile(checkpointer=InMemorySaver()), {"reply": "RESPOND"})
    config: Any = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    for said in SAID:
        turn: Any = {"messages": [HumanMessage(said)]}
        if mode == "sync":
            app.invoke(turn, config)
        else:
            asyncio.run(app.ainvoke(turn, config))
    cycle.memory.forget("ada", "my password hunter2x9")
    arbiter_os.drain(30)

    assert any("Oslo" in text for text in embedder.given), "the embedder was asked"
    assert any("Oslo" in text for text in seen)
    prompts = ["\n".join(str(message.content) for message in asked) for asked in model.asked]
    assert any("keep track of the goals" in prompt for prompt in prompts)
    items = [*arbiter_os.history.items()]
    everything = {
        "model": prompts,
        "embedder": embedder.given,
        "handlers and providers": seen,
        "store": [repr((entry.key, entry.value)) for entry in store.search((), limit=10_000)],
        "logs": [caplog.text],
        "results": [repr([dict(item.evaluation_results), item.evaluation_errors]) for item in items],
        "traces": [repr(item.evaluator_trace) for item in items],
    }
    found = [
        (canary, place)
        for place, texts in everything.items()
        for canary in CANARIES
        if any(canary in text for text in texts)
    ]
    assert found == []


def test_a_search_sends_no_secret_to_the_embedder() -> None:
    """The query is redacted where it leaves memory."""
    embedder = Listening()
    store = InMemoryStore(index={"dims": 2, "embed": embedder, "fields": ["claim"]})
    cycle = EvaluationCycle(store=store)
    cycle.memory.facts("ada")
    asyncio.run(_search(cycle, "what is my password? it is hunter2x9, and the flat"))
    assert embedder.given
    asked = ProviderContext(
        store=None, agent_id="agent", room_id="r", entity_id="ada", clock=cycle.clock, character=cycle.character,
        query="my password is hunter2x9, and the flat",
    )  # fmt: skip
    assert "the flat" in asked.query
    assert all("hunter2x9" not in text for text in (*embedder.given, asked.query))


async def _search(cycle: EvaluationCycle, query: str) -> None:
    assert cycle.store is not None
    ns = ("arbiter", "memory", "agent", "facts", "ada")
    await cycle.store.aput(ns, "1", {"claim": "User lives in Oslo"})
    await cycle.store.asearch(ns, query)


@pytest.mark.parametrize("evaluates", [FactEvaluator, ReflectionEvaluator, GoalEvaluator])
def test_an_answer_off_the_record_stays_so_when_the_thread_is_trimmed(evaluates: Any) -> None:
    """The thread has the answer, and no more the message that has put it off the record; in another process, too."""

    def reply(state: MessagesState) -> dict[str, Any]:
        gone = [RemoveMessage(id=str(message.id)) for message in state["messages"][:-2]]
        said = "So you leave in May" if "record" in state["messages"][-1].text else "ok"
        return {"messages": [*gone, AIMessage(said)]}

    saver, embeddings = InMemorySaver(), Listening()
    store = InMemoryStore(index={"dims": 2, "embed": embeddings, "fields": ["claim"]})
    builder = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply")
    config: Any = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    models = [Scripted(answers=["{}"]) for _ in range(3)]
    said = ("Off the record: I have told my boss", "Well", "And now?")
    for text, model in zip(said, models, strict=True):
        cycle = EvaluationCycle(store=store, evaluator_model=model, conversation_length=2)
        cycle.memory.create_goal("room", "Find a job", ["Apply"], entity_id="ada", id="goal")
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluation_cycle(cycle)
        arbiter_os.add_evaluator(evaluates())
        arbiter_os.add_advisor(FactsProvider())
        app = arbiter_os.govern(builder.compile(checkpointer=saver), {"reply": "RESPOND"})
        app.invoke({"messages": [HumanMessage(text)]}, config)
        arbiter_os.drain(20)
    shown = [model.prompt(call) for model in models for call in range(model.calls)] + embeddings.given
    assert shown
    assert not [text for text in shown if "May" in text or "boss" in text]
