"""A turn reads what it needs: its work does not grow with the people, relationships and rooms that it has nothing
to do with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore, GetOp, ListNamespacesOp, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS
from arbiter.checkers import ConditionChecker
from arbiter.history import _causal
from arbiter.history._record import evaluations_from
from arbiter.memory import (
    Entity,
    EvaluationCycle,
    FactEvaluator,
    FactRules,
    FactsProvider,
    Goal,
    GoalEvaluator,
    GoalsProvider,
    Memory,
    ReflectionEvaluator,
    ReflectionProvider,
    Relationship,
    RelationshipsProvider,
    Thought,
    TrustEvaluator,
    TrustProvider,
    _conversation,
    _notes,
)
from arbiter.memory._cursors import Cursors
from arbiter.memory._entities import Entities
from arbiter.memory._notes import Traces
from arbiter.memory.facts import _changes
from arbiter.memory.reflection._evaluator import MOST, Thoughts
from arbiter.memory.stores import MemoryStore, Value, namespace
from tests.memory.facts_support import Room, claim, relations
from tests.memory.memory_stores import opened
from tests.memory.memory_support import NOON
from tests.scripted import Scripted

AGENT = "agent"
Change = tuple[tuple[str, ...], str, Value]


class Counting(BaseStore):
    """A store that counts the operations and the records that it returns."""

    supports_ttl = True

    def __init__(self, inner: BaseStore) -> None:
        self.inner = inner
        self.operations = self.records = 0

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        # PostgreSQL reads all records of the store for it.
        assert not any(isinstance(op, ListNamespacesOp) for op in asked)
        found = self.inner.batch(asked)
        self.operations += sum(not isinstance(op, GetOp) for op in asked) + any(
            isinstance(op, GetOp) for op in asked
        )
        self.records += sum(len(part) if isinstance(part, list) else part is not None for part in found)
        return found

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        raise NotImplementedError


Counting.__module__ = "arbiter.memory.counting"  # as a store whose pages are whole


class App:
    """A governed chat with every evaluator and provider that reads more than the room."""

    def __init__(
        self, store: BaseStore, claim: str = "Ada lives in Oslo", said: str = "I live in Oslo"
    ) -> None:
        self.claim = claim
        self.store = store
        self.said = said
        self.model = Scripted(answers=[self.answer])
        self.cycle = EvaluationCycle(store=store, evaluator_model=self.model, conversation_length=2)
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluation_cycle(self.cycle)
        for evaluator in (FactEvaluator(), ReflectionEvaluator(), GoalEvaluator(), TrustEvaluator()):
            arbiter_os.add_evaluator(evaluator)
        for provider in (
            FactsProvider(),
            RelationshipsProvider(),
            GoalsProvider(),
            ReflectionProvider(),
            TrustProvider(),
        ):
            arbiter_os.add_advisor(provider)
        graph = StateGraph(MessagesState).add_node("reply", self.reply)
        self.app = arbiter_os.govern(graph.add_edge(START, "reply").compile(), {"reply": "RESPOND"})
        self.arbiter_os = arbiter_os
        self.turns = 0
        self.shown = ""

    def reply(self, state: MessagesState) -> dict[str, Any]:
        self.shown = "\n".join(message.text for message in state["messages"] if message.type == "system")
        return {"messages": [AIMessage("Really?")]}

    def answer(self, prompt: str) -> str:
        between = {"sourceEntityId": "ada", "targetEntityId": AGENT, "tags": ["friend"]}
        if '"thought"' in prompt:
            return json.dumps({"thought": "Fine.", "facts": [], "relationships": [between]})
        if "keep track of the goals" in prompt:
            return json.dumps({"goals": []})
        return json.dumps({"claims": [{"claim": self.claim, "type": "fact"}]})

    def turn(self, room: str = "", user: str = "ada") -> None:
        self.turns += 1
        room = room or f"room-{self.turns}"
        said = HumanMessage(self.said, id=f"m{self.turns}")
        where: Any = {"configurable": {"thread_id": room, "user_id": user}}
        self.app.invoke({"messages": [said]}, where)
        item = self.arbiter_os.history_of(thread_id=room).last()
        assert item is not None
        assert not item.evaluation_errors


def entities(numbers: range) -> list[Change]:
    ns = namespace(AGENT, "entities", "all")
    return [(ns, f"u{n}", Entity(id=f"u{n}", names=(f"Name{n}",)).to_value()) for n in numbers]


def relationships(numbers: range) -> list[Change]:
    ns = namespace(AGENT, "relationships", "all")
    found = [(ns, f"r{n}", related(f"u{n}", AGENT).to_value()) for n in numbers]
    return [
        *found,
        *((namespace(AGENT, "related", end), f"r{n}", {}) for n in numbers for end in (f"u{n}", AGENT)),
    ]


def others(numbers: range) -> list[Change]:
    """Other users, each with a fact and a room of its own."""
    at = NOON.isoformat()
    found: list[Change] = []
    for n in numbers:
        fact = {
            "id": f"f{n}",
            "claim": f"User owns {n}",
            "type": "fact",
            "subject": f"u{n}",
            "agent_id": AGENT,
        }
        fact |= {"provenance": "self_reported", "speaker": f"u{n}", "first_seen_at": at, "last_seen_at": at}
        thought = {"id": f"t{n}", "text": "fine", "room_id": f"room-u{n}", "at": at}
        found.append((namespace(AGENT, "facts", f"u{n}"), f"f{n}", {**fact, "confidence": 0.6}))
        found.append((namespace(AGENT, "thoughts", f"room-u{n}"), f"t{n}", thought))
    return found


def related(source: str, target: str) -> Relationship:
    return Relationship(
        source=source,
        target=target,
        tags=("friend",),
        metadata={"interactions": 1},
        first_seen_at=NOON,
        last_seen_at=NOON,
    )


def put(store: BaseStore, changes: Sequence[Change]) -> None:
    store.batch([PutOp(ns, key, value, index=False) for ns, key, value in changes])


GROWING = {"entities": entities, "relationships": relationships, "other users": others}


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def any_store(request: pytest.FixtureRequest, postgres: Callable[[], str]) -> Generator[BaseStore]:
    """An empty store of each kind in turn; PostgreSQL takes most of the time and reads what the others read."""
    with opened(request.param, url=postgres) as store:
        yield store


@pytest.mark.lengthy
@pytest.mark.parametrize("made", GROWING.values(), ids=GROWING.keys())
def test_a_turn_reads_no_more_with_more_people(any_store: BaseStore, made: Any) -> None:
    """No more operations and records with 400 of them than with 10."""
    store = Counting(any_store)
    app = App(store)
    counts: list[tuple[int, int]] = []
    for numbers in (range(10), range(10, 400)):
        put(any_store, made(numbers))
        for _ in range(3):
            app.turn()
        store.operations = store.records = 0
        app.turn()
        counts.append((store.operations, store.records))
    assert counts[1] <= counts[0]
    assert counts[1][1] <= counts[0][1]


@pytest.mark.lengthy
@pytest.mark.parametrize("made", GROWING.values(), ids=GROWING.keys())
def test_forgetting_and_exporting_read_no_more_with_more_people(any_store: BaseStore, made: Any) -> None:
    """By a program; the next turn learns the claim again."""
    store = Counting(any_store)
    app = App(store)
    app.cycle.memory.create_goal("elsewhere", "Move", entity_id="ada")
    exported: dict[str, Any] = {}
    counts: list[tuple[int, int]] = []
    for numbers in (range(10), range(10, 400)):
        put(any_store, made(numbers))
        for _ in range(2):
            app.turn()
            store.operations = store.records = 0
            exported = app.cycle.memory.export("ada")
            assert app.cycle.memory.forget("ada", "Oslo") == 1
        assert len(exported["thoughts"]) == 1  # of the last turn; the others were forgotten
        assert [goal["name"] for goal in exported["goals"]] == ["Move"]
        counts.append((store.operations, store.records))
    assert counts[1][0] <= counts[0][0] + 4  # the rooms of Ada's turns are more by then
    assert counts[1][1] <= counts[0][1] + 20


def test_a_turn_searches_no_other_users_records_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of LangGraph's InMemoryStore looks at the namespaces of all users."""
    searched: list[SearchOp] = []
    find = InMemoryStore._filter_items  # pyright: ignore[reportPrivateUsage]

    def noted(store: InMemoryStore, op: SearchOp) -> Any:
        searched.append(op)
        return find(store, op)

    monkeypatch.setattr(InMemoryStore, "_filter_items", noted)
    app = App(InMemoryStore())
    for _ in range(2):
        app.turn()
    assert app.cycle.memory.forget("ada", "Oslo") == 1
    assert not searched


@pytest.mark.parametrize("is_read", [True, False], ids=["read before", "never read"])
def test_a_turn_works_with_the_messages_that_it_uses(is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a conversation of 2,000 messages, in which something is learned."""
    copied: list[BaseMessage] = []
    safe = _conversation.safe

    def noted(message: BaseMessage) -> BaseMessage:
        copied.append(message)
        return safe(message)

    monkeypatch.setattr(_conversation, "safe", noted)
    app = App(InMemoryStore())
    said = [
        kind(f"apple {n}", id=f"{kind.__name__}{n}")
        for n in range(1_000)
        for kind in (HumanMessage, AIMessage)
    ]
    if is_read:
        asyncio.run(_read(app, said))
    where: Any = {"configurable": {"thread_id": "long", "user_id": "ada"}}
    app.app.invoke({"messages": [*said, HumanMessage("I live in Oslo", id="m")]}, where)
    assert len(copied) < 400
    assert [fact.claim for fact in app.cycle.memory.facts("ada")] == ["Ada lives in Oslo"]


async def _read(app: App, messages: Sequence[BaseMessage]) -> None:
    for name in ("GET_FACTS", "REFLECTION"):
        where: Any = {
            "agent_id": AGENT,
            "room_id": "long",
            "evaluator": name,
            "clock": lambda: NOON,
            "ended_at": NOON,
        }
        await Cursors(MemoryStore(app.store), **where).advance(messages)


@pytest.mark.lengthy
def test_a_turn_does_not_read_all_goals_that_have_ended(any_store: BaseStore) -> None:
    """The provider shows the last of them."""
    store = Counting(any_store)
    app = App(store)
    open_goal = Goal(id="g", room_id="r", entity_id="ada", name="Find a flat")
    put(any_store, [(namespace(AGENT, "goals", "r"), "g", open_goal.to_value())])
    counts: list[int] = []
    for numbers in (range(20), range(20, 300)):
        ended = [replace(open_goal, id=f"g{n}", name=f"Plan {n}", status="DONE") for n in numbers]
        put(any_store, [(namespace(AGENT, "goals", "r"), goal.id, goal.to_value()) for goal in ended])
        for _ in range(2):
            app.turn("r")
        store.records = 0
        app.turn("r")
        counts.append(store.records)
    # Each of the three turns leaves a thought and a read message, which the next one reads.
    assert counts[1] <= counts[0] + 6
    assert "(IN_PROGRESS)" in app.shown
    assert app.shown.count("(DONE)") == 19


@pytest.mark.lengthy
def test_forgetting_does_not_read_what_others_can_still_undo() -> None:
    store = Counting(InMemoryStore())
    memory = Memory(
        store, agent_id=AGENT, clock=lambda: NOON, rules=FactRules(undo_within=timedelta(hours=3))
    )
    counts: list[int] = []
    for numbers in (range(5), range(5, 40)):
        for user in (*(f"u{n}" for n in numbers), "ada"):
            memory.remember(user, "I live in Oslo")
            store.records = 0
            assert memory.forget(user, "Oslo") == 1
        counts.append(store.records)
    assert counts[1] <= counts[0] + 2


@pytest.mark.lengthy
async def test_the_bin_of_a_forgetting_is_not_written_for_each_room_and_relationship() -> None:
    """It is one record with all that was forgotten."""
    written: list[int] = []
    for number in (5, 40):
        inner = InMemoryStore()
        store = Binning(inner)
        rules = FactRules(undo_within=timedelta(hours=3))
        memory = Memory(store, agent_id=AGENT, clock=lambda: NOON, rules=rules)
        put(inner, [change for n in range(number) for change in kept_of(n)])
        for n in range(number):
            await Traces(memory.store, AGENT, "ada").was_in(f"r{n}")
            await memory.aremember("ada", f"Ada has sailed to island {n}", room_id=f"r{n}", source=f"m{n}")
        store.written = 0
        gone = await memory.aforget("ada")
        written.append(store.written)
        assert not await memory.athoughts("r0")
        assert not await memory.arelationships("ada")
        assert await memory.aundo("ada", id=gone.id) == number
        assert (len(await memory.athoughts("r0")), len(await memory.arelationships("ada"))) == (1, number)
    assert written[1] == written[0]


class Binning(Counting):
    """Counts the writes of bins."""

    written = 0

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        self.written += sum(isinstance(op, PutOp) and op.namespace[2] == "bin" for op in asked)
        return super().batch(asked)


Binning.__module__ = Counting.__module__


def kept_of(number: int) -> list[Change]:
    """A thought about a room of the user, and a relationship."""
    thought = Thought(id="t", text="Fine.", room_id=f"r{number}", at=NOON, entity_ids=("ada",))
    one, key = related("ada", f"friend{number}"), f"friend{number}"
    return [
        (namespace(AGENT, "thoughts", thought.room_id), thought.id, thought.to_value()),
        (namespace(AGENT, "relationships", "all"), key, one.to_value()),
        *((namespace(AGENT, "related", end), key, {}) for end in (one.source, one.target)),
    ]


def known(numbers: range) -> list[Change]:
    """Facts of the user, as many as are kept."""
    return [(ns, key, {**value, "state": "active"}) for ns, key, value in superseded(numbers)]


@pytest.mark.lengthy
def test_a_turn_does_not_read_all_known_facts(any_store: BaseStore) -> None:
    store = Counting(any_store)
    app = App(store)
    goal = Goal(id="g", room_id="r", entity_id="ada", name="Find a flat")
    put(any_store, [(namespace(AGENT, "goals", "r"), "g", goal.to_value())])
    counts: list[int] = []
    for numbers in (range(10), range(10, 490)):
        asyncio.run(MemoryStore(store).aput_many(known(numbers)))
        for turn in ("one", "two", "three"):
            app.said = f"I live in Oslo, {len(numbers)}, {turn}"
            store.records, asked = 0, app.model.calls
            app.turn("r")
        counts.append(store.records)
        prompts = [app.model.prompt(call) for call in range(asked, app.model.calls)]
        assert any("keep track of the goals" in prompt and "has seen film" in prompt for prompt in prompts)
    # Each search of a store that `open_store` did not open looks at the 20 records written last.
    assert counts[1] <= counts[0] + 200


def superseded(numbers: range) -> list[Change]:
    """Old facts of the user."""
    at = NOON.isoformat()
    known = {"type": "fact", "subject": "ada", "agent_id": AGENT, "provenance": "self_reported"}
    known |= {"speaker": "ada", "first_seen_at": at, "last_seen_at": at, "state": "superseded"}
    return [
        (
            namespace(AGENT, "facts", "ada"),
            f"f{n}",
            {
                **known,
                "id": f"f{n}",
                "claim": f"Ada has seen film {n}",
                "confidence": 0.6,
                "superseded_by": "x",
            },
        )
        for n in numbers
    ]


@pytest.mark.lengthy
def test_a_turn_does_not_read_all_superseded_records(any_store: BaseStore) -> None:
    store = Counting(any_store)
    app = App(store)
    counts: list[int] = []
    for numbers in (range(10), range(10, 400)):
        put(any_store, superseded(numbers))
        for _ in range(3):
            app.turn()
        store.records = 0
        app.turn()
        counts.append(store.records)
    # Each search of a store that `open_store` did not open looks at the 20 records written last.
    assert counts[1] <= counts[0] + 200


@pytest.mark.lengthy
def test_the_first_turn_drops_closed_records_above_the_bound(any_store: BaseStore) -> None:
    put(any_store, superseded(range(300)))
    app = App(any_store)
    app.turn()
    memory = app.cycle.memory
    assert [fact.claim for fact in memory.facts("ada")] == ["Ada lives in Oslo"]
    assert len(memory.facts("ada", "superseded")) == 100
    assert memory.forget("ada", "film") == 100
    assert len(memory.facts("ada", None)) == 1


# Retention ----------------------------------------------------------------------------------------


async def test_of_closed_records_the_latest_are_kept(any_store: BaseStore) -> None:
    """As many as the rules say; all that is believed stays."""
    room = Room(any_store, *[relations("supersedes")] * 9, rules=FactRules(max_closed_per_entity=3))
    for number in range(8):
        room.passes(days=1)
        await room.hears("...", claim(f"Ada works for company {number}"))
    facts = {fact.claim: fact.state for fact in await room.facts()}
    assert facts["Ada works for company 7"] == "active"
    assert [claim for claim, state in facts.items() if state == "superseded"] == [
        f"Ada works for company {number}" for number in (4, 5, 6)
    ]


async def test_a_closed_claim_that_is_said_again_is_believed_again(any_store: BaseStore) -> None:
    """A superseded claim begins a new record; one that was put away goes on with its mentions."""
    room = Room(any_store, relations("supersedes"), relations("supersedes"), rules=FactRules())
    await room.hears("...", claim("Ada lives in Oslo"))
    await room.hears("...", claim("Ada lives in Rome"))
    await room.hears("...", claim("Ada lives in Oslo"))
    facts = await room.facts()
    assert [(fact.claim, fact.state) for fact in facts if fact.state == "active"] == [
        ("Ada lives in Oslo", "active")
    ]
    assert len(facts) == 3

    small = Room(any_store, rules=FactRules(max_facts_per_entity=2), user="bob")
    for text in ("One likes tea", "Two plays chess", "Three owns a boat"):
        small.passes(days=1)
        await small.hears("...", claim(text))
    assert (await small.fact("One likes tea")).state == "expired"
    await small.hears("...", claim("One likes tea"))
    again = await small.fact("One likes tea")
    assert (again.state, again.mention_count) == ("active", 2)


async def test_of_the_thoughts_about_a_room_the_newest_are_kept(any_store: BaseStore) -> None:
    thoughts = Thoughts(MemoryStore(any_store), AGENT, "r")
    for number in range(MOST + 5):
        at = NOON + timedelta(minutes=number)
        await thoughts.add(Thought(id=f"t{number}", text="fine", room_id="r", at=at))
    kept = [thought.id for thought in await thoughts.all()]
    assert len(kept) == MOST
    assert kept[:5] == [f"t{number}" for number in range(MOST + 4, MOST - 1, -1)]


# An index of names --------------------------------------------------------------------------------


async def test_a_registered_entity_is_found_by_its_name_in_a_text(any_store: BaseStore) -> None:
    """By an id, a whole name, or whole words of one, in any case; not by a part of a word."""
    known = Entities(MemoryStore(any_store), AGENT)
    await known.register(Entity(id="bob", names=("Bob Smith", "Bobby")))
    await known.register(Entity(id="u2", names=("Jean-Paul O'Brien",)))
    await known.register(Entity(id="u3", names=("Anna Maria Luisa de' Medici di Toscana",)))
    for text, ids in {
        "I met BOB yesterday.": ["bob"],
        "Bobby's car": ["bob"],
        "the smith of our town": ["bob"],
        "ask Jean-Paul, or Anna": ["u2", "u3"],
        "Jean said so": [],
        "bobsleigh": [],
        "": [],
    }.items():
        assert sorted(each.id for each in await known.named([text])) == ids, text


async def test_a_name_that_several_share_finds_more_than_one(any_store: BaseStore) -> None:
    """So it means none of them; the whole name of one of them means that one."""
    known = Entities(MemoryStore(any_store), AGENT)
    for number in range(5):
        await known.register(Entity(id=f"u{number}", names=(f"John Smith{number}",)))
    assert len(await known.named(["John is here"])) == 2
    assert "u4" in {each.id for each in await known.named(["John Smith4 is here"])}


async def test_a_new_name_replaces_the_old_one_in_the_index(any_store: BaseStore) -> None:
    known = Entities(MemoryStore(any_store), AGENT)
    await known.register(Entity(id="u1", names=("Bob", "Robert")))
    await known.register(Entity(id="u1", names=("Ann", "Robert")))
    assert await known.named(["Bob"]) == []
    for name in ("Ann", "Robert"):
        assert [each.names for each in await known.named([name])] == [("Ann", "Robert")]


def test_a_subject_is_looked_up_by_the_name_that_the_model_gives() -> None:
    """Also if the text does not separate its words."""
    app = App(InMemoryStore(), said="昨日ボブに会った")
    app.cycle.memory.register_entity("bob", "ボブ")
    claim = {"claim": "ボブ lives in Oslo", "type": "fact", "subject": "ボブ"}
    app.model.answers = [json.dumps({"claims": [claim], "thought": "", "facts": [], "relationships": []})]
    app.turn()
    assert [fact.claim for fact in app.cycle.memory.facts("bob")] == ["ボブ lives in Oslo"]


async def test_traces_are_bounded_and_what_they_lead_to_goes_with_them(
    any_store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to forget finds every record that is left."""
    monkeypatch.setattr(_notes, "KEPT", 20)
    monkeypatch.setattr(_notes, "EVERY", 1)
    store = MemoryStore(any_store)
    room = Room(any_store)
    for number in range(25):
        thought = Thought(id="t", text="They talk.", room_id=f"r{number}", at=NOON, entity_ids=(room.user,))
        await Thoughts(store, "sarah", thought.room_id).add(thought)
        await Traces(store, "sarah", room.user).was_in(thought.room_id)
    for number in range(10):
        await room.hears("...", claim(f"Bob has sailed to {number} islands", subject="sarah"))
    told, rooms = await Traces(store, "sarah", room.user).read()
    assert len(told) + len(rooms) == 20
    found = await asyncio.to_thread(any_store.search, ("arbiter", "sarah", "thoughts"), limit=10_000)
    assert {item.namespace[-1] for item in found} == {*rooms}
    assert {fact.id for fact in await room.facts("sarah")} == {id for id, _, _ in told}
    if isinstance(any_store, InMemoryStore):  # the others may note whole seconds
        assert (len(told), rooms[0]) == (10, "r24")


def test_thoughts_about_the_rooms_of_a_user_stay_however_many_other_users_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent takes part in all rooms, and its own traces of them are bounded, too."""
    monkeypatch.setattr(_notes, "KEPT", 20)
    monkeypatch.setattr(_notes, "EVERY", 1)
    app = App(InMemoryStore())
    for number in range(25):
        app.turn(f"r{number}", f"u{number}")
    assert [len(app.cycle.memory.thoughts(f"r{number}")) for number in range(25)] == [1] * 25


@pytest.mark.lengthy
def test_a_turn_writes_no_more_if_more_users_have_said_the_same_of_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_changes, "_MOST_SPEAKERS", 10)
    monkeypatch.setattr(_changes, "_MOST_SOURCES", 20)
    store = Counting(InMemoryStore())
    app = App(store, "The agent is called Juniper", "You are called Juniper")

    def answer(prompt: str) -> str:
        return app.answer(prompt).replace('"type"', '"subject": "agent", "type"')

    app.model.answers = [answer]
    counts: list[int] = []
    for users in (range(20), range(20, 70)):
        for number in users:
            store.operations = 0
            app.turn(user=f"u{number}")
        counts.append(store.operations)
    [fact] = app.cycle.memory.facts(AGENT)
    assert (fact.mention_count, len(fact.speakers), len(fact.room_ids)) == (70, 10, 20)
    assert counts[1] <= counts[0] + 4


def test_a_turn_does_not_restore_the_node_runs_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust asks for denials in each turn, and a run of the graph without any has nothing to restore."""
    restored: list[str] = []
    real = evaluations_from

    def counting(fact: Any) -> Any:
        restored.append(fact["node"])
        return real(fact)

    monkeypatch.setattr(_causal, "evaluations_from", counting)
    builder = StateGraph(MessagesState)
    for number in range(20):
        builder.add_node(f"n{number}", lambda state: {})
        builder.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ConditionChecker("limit", "false"))
    arbiter_os.add_evaluation_cycle(EvaluationCycle(store=InMemoryStore()))
    arbiter_os.add_evaluator(TrustEvaluator())
    arbiter_os.govern(builder).invoke({"messages": [HumanMessage("Hello")]})
    assert [item.status for item in arbiter_os.history.items()] == ["completed"] * 20
    assert restored == []
