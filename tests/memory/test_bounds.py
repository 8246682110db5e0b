"""No text of a user can stop the others: 100,000 characters of anything cost little."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS
from arbiter.errors import ParameterError
from arbiter.memory import (
    Entity,
    EvaluationCycle,
    FactEvaluator,
    FactsProvider,
    GoalEvaluator,
    GoalsProvider,
    ReflectionEvaluator,
    ReflectionProvider,
    RelationshipsProvider,
    TimeProvider,
    TrustEvaluator,
    TrustProvider,
)
from arbiter.memory.facts import _intake, _own_names
from tests.memory.dialogue_support import Chat
from tests.redaction.hostile import hostile_texts
from tests.scripted import Scripted

MOST_MS = 50.0
NAMES = ("Ada", "Bob", "Zoë")
VERBS = ("sails", "bakes", "paints")
SHOWN = 8_300
"""Characters of a message that a handler, provider or model may see, its remark included."""


def answer(prompt: str) -> str:
    if "keep track of the goals" in prompt:
        return json.dumps({"goals": []})
    if "judge how much" in prompt:
        return json.dumps({"reasoning": "", "risk": 0.5})
    return json.dumps({"claims": [], "thought": "ok", "facts": [], "relationships": []})


class OneMeaning(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return [1.0, 0.0]


class Companion:
    """A governed chat with all evaluators, which run in each turn, and all providers."""

    def __init__(self, *, embeds: bool = True) -> None:
        self.model = Scripted(answers=[answer])
        index: Any = {"dims": 2, "embed": OneMeaning(), "fields": ["claim"]} if embeds else None
        self.store = InMemoryStore(index=index)
        cycle = EvaluationCycle(
            store=self.store,
            evaluator_model=self.model,
            conversation_length=2,
            max_llm_calls_per_turn=20,
            entities=[Entity(id=f"e{number}", names=(f"Name {number}",)) for number in range(50)],
        )
        cycle.memory.create_goal("evil", "Find a flat", ["look"], entity_id="evil")
        self.os = ArbiterOS()
        self.os.add_evaluation_cycle(cycle)
        for evaluator in (
            FactEvaluator(),
            ReflectionEvaluator(),
            GoalEvaluator(),
            TrustEvaluator(),
        ):
            self.os.add_evaluator(evaluator)
        for provider in (
            FactsProvider(),
            RelationshipsProvider(),
            GoalsProvider(),
            ReflectionProvider(),
            TrustProvider(),
            TimeProvider(),
        ):
            self.os.add_advisor(provider)
        graph = StateGraph(MessagesState)
        graph.add_node("reply", lambda state: {"messages": [AIMessage("ok")]})
        graph.add_edge(START, "reply")
        self.app = self.os.govern(graph.compile(checkpointer=InMemorySaver()), {"reply": "RESPOND"})

    def says(self, text: str, *, who: str = "evil", mode: str = "sync") -> tuple[float, float]:
        """The milliseconds of CPU, of the whole process, and of wall time that a turn takes."""
        turn: Any = {"messages": [HumanMessage(text)]}
        config: Any = {"configurable": {"thread_id": who, "user_id": who}}
        cpu, wall = time.process_time(), time.perf_counter()
        if mode == "sync":
            self.app.invoke(turn, config)
        else:
            asyncio.run(self.app.ainvoke(turn, config))
        self.os.drain(60)
        return (time.process_time() - cpu) * 1000, (time.perf_counter() - wall) * 1000


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("mode", "embeds", "every"),
    [
        ("sync", True, 6),
        *(
            pytest.param(mode, embeds, 1, marks=pytest.mark.slow)
            for mode in ("sync", "async")
            for embeds in (True, False)
        ),
    ],
)
def test_100_000_characters_of_anything_cost_at_most_50_ms_of_cpu(
    mode: str, embeds: bool, every: int
) -> None:
    """More than a turn of five characters does. The limit is for a machine on which that one takes 20 ms."""
    slow: dict[str, float] = {}
    texts = hostile_texts()
    for name in [*texts][::every]:
        text = texts[name]
        extra: list[float] = []
        usual: list[float] = []
        for _ in range(3):  # other work on the machine makes all turns slower, so the best one counts
            companion = Companion(embeds=embeds)
            companion.says("hello", mode=mode)
            usual.append(companion.says("hello", mode=mode)[0])
            extra.append(companion.says(text, mode=mode)[0] - usual[-1])
            if min(extra) <= MOST_MS * max(1.0, min(usual) / 20):
                break
        else:
            slow[name] = min(extra)
    assert slow == {}


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "name",
    [
        "words",
        *(pytest.param(repr(text), marks=pytest.mark.slow) for text in ("please ", "forget ", "( ( (", "\n")),
        pytest.param("no blanks", marks=pytest.mark.slow),
    ],
)
def test_a_long_thread_of_long_texts_costs_no_more_than_its_newest_ones(name: str) -> None:
    companion = Companion()
    text = hostile_texts()[name]
    took = [companion.says(f"{number} {text}")[0] for number in range(12)]
    usual = min(companion.says("hello", who="bob")[0] for _ in range(5))
    assert min(took[8:]) <= 2 * min(took[1:5]) + usual


@pytest.mark.lengthy
async def test_a_long_thread_full_of_names_costs_no_more_than_its_newest_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each name that a claim is about is looked for in earlier messages: somebody may have said to be called so."""
    places: list[str] = []

    def ends(after: str) -> bool:
        places.append(after)
        return True

    monkeypatch.setattr(_own_names, "_ends", ends)
    claims = [
        {"claim": f"{name} {verb}", "type": "fact", "subject": name} for name in NAMES for verb in VERBS
    ]
    chat = Chat({"Ada": claims})
    counts: list[int] = []
    for _ in range(20):
        places.clear()
        await chat.say(f"{' '.join(NAMES)} " * 300)
        counts.append(len(places))
    assert counts[-1] == counts[5] <= 64 * len(NAMES) * 8


@pytest.mark.parametrize("claims", [1, 50])
async def test_each_message_is_looked_at_once_however_many_claims_come_from_it(
    claims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def is_on_record(messages: Any, place: int, hidden: Any) -> bool:
        looked.append(place)
        return True

    monkeypatch.setattr(_intake, "is_on_record", is_on_record)
    told = [{"claim": f"Friend {n} sails", "type": "fact", "subject": f"Friend {n}"} for n in range(claims)]
    chat = Chat({"friends": told})
    for _ in range(5):
        await chat.say("Hello")
    looked.clear()
    await chat.say("All my friends sail")
    assert len(looked) == len({*looked}) == 12
    assert len(await chat.known()) == claims


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "name",
    [
        "any characters",
        *(
            pytest.param(repr(text), marks=pytest.mark.slow)
            for text in ("please ", "forget ", "password ", "4 ")
        ),
    ],
)
def test_another_users_turn_takes_at_most_twice_its_time_meanwhile(name: str) -> None:
    """Beside a turn of 100,000 characters as beside one of five."""
    companion = Companion()
    text = hostile_texts()[name]
    companion.says("hello")
    companion.says("hello", who="bob")

    def quartiles() -> list[float]:
        """Of the milliseconds: other work on the machine disturbs the lower ones less than the medians."""
        beside: dict[str, list[float]] = {"hello": [], text: []}
        for _ in range(8):
            for said, took in beside.items():
                other = threading.Thread(target=companion.says, args=(said,))
                other.start()
                took.append(companion.says("hello", who="bob")[1])
                other.join()
        return [sorted(took)[len(took) // 4] for took in beside.values()]

    measured: list[list[float]] = []
    for _ in range(4):
        measured.append(quartiles())
        short, long = measured[-1]
        if long <= 2 * short + 5:
            return
    pytest.fail(f"milliseconds beside hello, and beside the text: {measured}")


def test_what_is_beyond_the_bound_is_shown_to_no_model() -> None:
    companion = Companion()
    text = (
        "I live in Oslo. "
        + "and so on " * 10_000
        + " In the MIDDLE "
        + "and so on " * 10_000
        + " I like tea."
    )
    companion.says(text)
    prompts = [companion.model.prompt(call) for call in range(companion.model.calls)]
    assert any("I live in Oslo" in prompt and "I like tea" in prompt for prompt in prompts)
    assert any("characters left out" in prompt for prompt in prompts)
    assert all("MIDDLE" not in prompt for prompt in prompts)
    assert all(len(prompt) < 6 * SHOWN for prompt in prompts)


HOSTILE = ["\n", "a. ", "\ufdfa", "\u200b", "\ud800"]


def cheap(work: Any) -> None:
    took: list[float] = []
    for _ in range(3):
        begun = time.process_time()
        work()
        took.append((time.process_time() - begun) * 1000)
    assert min(took) <= 3 * MOST_MS  # what reads all of it takes 250 ms and more, and machines differ


@pytest.mark.lengthy
@pytest.mark.parametrize("text", HOSTILE)
def test_long_ids_names_and_values_cost_a_program_little(text: str) -> None:
    memory = EvaluationCycle(store=InMemoryStore()).memory
    fact = memory.remember("ada", "Ada sails")
    long = text * (100_000 // len(text))
    parts = [f"{at}{long[at : at + 4_000]}" for at in range(0, 100_000, 4_000)]

    def refused() -> None:
        with pytest.raises(ParameterError, match="value: expected a text of at most 2,000 characters"):
            memory.edit("ada", fact.id, value=long)
        with pytest.raises(ParameterError, match="there is no such field") as caught:
            memory.import_([{"entity_id": "ada", "claim": "Ada rows", long: 1}])
        assert len(str(caught.value)) < 300
        for name, steps in ((f"x{long}", ["look"]), ("look", [f"x{long}"]), ("look", parts)):
            with pytest.raises(ParameterError, match="at most 20,000 characters together"):
                memory.create_goal("room", name, steps, entity_id="ada")
        with pytest.raises(ParameterError, match="more than 20,000 characters"):
            memory.import_({"entity_id": "ada", "profiles": [{"schema": long}]})

    for work in (
        lambda: memory.facts(long),
        lambda: memory.export(long),
        lambda: memory.table(long),
        lambda: memory.forget(long, "x"),
        lambda: memory.search("sails", long),
        lambda: memory.remember("ada", "Ada sails", room_id=long),
        lambda: memory.import_([{"entity_id": f"x{long}", "claim": "Ada rows", "id": long}]),
        lambda: memory.register_entity("bob", long),
        lambda: memory.register_entity("bob", *parts),
        refused,
    ):
        cheap(work)


@pytest.mark.lengthy
@pytest.mark.parametrize("text", HOSTILE[2:4])
def test_a_turn_with_long_ids_and_names_costs_little(text: str) -> None:
    companion = Companion(embeds=False)
    long = text * 100_000
    companion.says("hello")

    def says(user_id: str, **fields: Any) -> None:
        config: Any = {"configurable": {"thread_id": "room", "user_id": user_id}}
        companion.app.invoke({"messages": [HumanMessage("hello", **fields)]}, config)

    says("ada")
    usual = companion.says("hello")[0]
    begun = time.process_time()
    says(long)
    says("ada", id=long)
    says("ada", name=long)
    says("ada", additional_kwargs={"entity_id": long})
    assert (time.process_time() - begun) * 1000 <= 4 * (MOST_MS + 2 * usual)


def test_claims_that_are_long_in_their_normal_form_are_refused() -> None:
    memory = EvaluationCycle(store=InMemoryStore()).memory
    with pytest.raises(ParameterError, match="longer than 2,000 characters"):
        memory.remember("ada", "\ufdfa" * 2_000)


def test_a_date_that_is_none_is_an_error_with_its_field() -> None:
    memory = EvaluationCycle(store=InMemoryStore()).memory
    wrong: Any = "tomorrow" * 1_000
    with pytest.raises(ParameterError, match="valid_from: expected a datetime, got 'tomorrow") as caught:
        memory.remember("ada", "Ada sails", valid_from=wrong)
    assert len(str(caught.value)) < 300


@pytest.mark.lengthy
def test_long_ids_of_messages_do_not_add_up() -> None:
    """Cursors and records keep short ones in their place, by which the messages are known as before."""
    companion = Companion(embeds=False)
    config: Any = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    for number in range(3):
        said = HumanMessage("I live in Oslo", id=f"{number}" * 50_000)
        companion.app.invoke({"messages": [said]}, config)
    assert companion.model.calls < 10
    kept = companion.store.search((), limit=1_000)
    assert len(str([item.value for item in kept])) < 20_000


def test_an_export_of_a_long_id_compares_it_with_no_text() -> None:
    memory = EvaluationCycle(store=InMemoryStore()).memory
    long = [f"{number} a" * 30_000 for number in range(3)]
    thought = {"id": "t", "text": "We talk.", "room_id": "r", "at": "2026-01-01", "entity_ids": long}
    memory.import_({"entity_id": "ada", "thoughts": [thought, {**thought, "id": "u", "entity_ids": []}]})
    numbers = iter(long)  # Python keeps patterns
    cheap(lambda: memory.export(next(numbers)))
    assert len(memory.export(long[0])["thoughts"]) == 1
