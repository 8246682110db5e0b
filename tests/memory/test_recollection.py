"""`Memory`: a program's queries of the memory, and its changes."""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from rich.console import Console

from arbiter.errors import ConfigurationError, ParameterError
from arbiter.memory import EvaluationCycle, Fact, Memory, MemoryStore, Objective, Relationship, Thought
from arbiter.memory._notes import Related, Traces
from arbiter.memory._records import Record
from arbiter.memory.stores import namespace
from tests.memory.memory_support import NOON, Clock
from tests.support import MODES


def memory(store: BaseStore) -> Memory:
    return Memory(store, agent_id="agent", clock=Clock())


def ask(mode: str, found: Memory, method: str, *args: Any, **options: Any) -> Any:
    """The sync method, or its awaited twin."""
    if mode == "sync":
        return getattr(found, method)(*args, **options)
    return asyncio.run(getattr(found, f"a{method}")(*args, **options))


def fact(id: str, claim: str, **known: Any) -> Fact:
    values: dict[str, Any] = {
        "type": "fact",
        "subject": "ada",
        "agent_id": "agent",
        "provenance": "self_reported",
        "speaker": "ada",
        "confidence": 0.6,
        "first_seen_at": NOON,
        "last_seen_at": NOON,
        "room_ids": ("room",),
        "source_message_ids": ("m1",),
        **known,
    }
    return Fact(id=id, claim=claim, **values)


def put(store: BaseStore, kind: str, scope: str, key: str, record: Record) -> None:
    value = record.to_value()
    if isinstance(record, Relationship):
        found = Related(MemoryStore(store), "agent")
        asyncio.run(found.update(key, record.source, record.target, lambda _: value))
    else:
        asyncio.run(MemoryStore(store).aput(namespace("agent", kind, scope), key, value))


@MODES
def test_facts_returns_believed_facts(any_store: BaseStore, mode: str) -> None:
    """Active ones, unless another state, or any, is asked for; of that entity alone."""
    put(any_store, "facts", "ada", "1", fact("1", "Ada lives in Oslo"))
    put(any_store, "facts", "ada", "2", fact("2", "Ada lived in Rome", state="superseded"))
    put(any_store, "facts", "bob", "3", fact("3", "Bob lives in Rome", subject="bob"))
    found = memory(any_store)
    assert [f.id for f in ask(mode, found, "facts", "ada")] == ["1"]
    assert [f.id for f in ask(mode, found, "facts", "ada", "superseded")] == ["2"]
    assert {f.id for f in ask(mode, found, "facts", "ada", None)} == {"1", "2"}


@MODES
def test_a_goal_is_created_once(any_store: BaseStore, mode: str) -> None:
    """A node that runs again takes nothing back."""
    found = memory(any_store)
    first = ask(
        mode, found, "create_goal", "room", "Move", ["pack", Objective(description="go")], entity_id="ada"
    )
    again = ask(mode, found, "create_goal", "room", "Move", ["pack"], entity_id="ada")
    assert first == again
    [goal] = ask(mode, found, "goals", "room")
    assert [step.description for step in goal.objectives] == ["pack", "go"]
    assert ask(mode, found, "goals", "another") == []
    assert ask(mode, found, "goals", "room", "DONE") == []


@pytest.mark.parametrize(
    ("name", "step"),
    [("", "look"), ("  ", "look"), ("Use password hunter2x9", "look"), ("Move", "the password is hunter2x9")],
)
def test_a_goal_needs_a_name_and_holds_no_secret(name: str, step: str) -> None:
    with pytest.raises(ParameterError) as caught:
        memory(InMemoryStore()).create_goal("room", name, [step], entity_id="ada")
    assert "hunter2x9" not in str(caught.value)


@MODES
def test_thoughts_are_newest_first_and_of_their_room(any_store: BaseStore, mode: str) -> None:
    for number in range(3):
        at = NOON.replace(hour=number)
        put(
            any_store,
            "thoughts",
            "room",
            f"t{number}",
            Thought(id=f"t{number}", text=f"{number}", room_id="room", at=at),
        )
    found = memory(any_store)
    assert [thought.text for thought in ask(mode, found, "thoughts", "room")] == ["2", "1", "0"]
    assert ask(mode, found, "thoughts", "other") == []


@MODES
def test_export_returns_all_records_about_an_entity(any_store: BaseStore, mode: str) -> None:
    """As JSON, and nothing about anybody else."""
    put(any_store, "facts", "ada", "1", fact("1", "Ada lives in Oslo", state="superseded"))
    put(any_store, "facts", "bob", "2", fact("2", "Bob lives in Rome", subject="bob"))
    friends = Relationship(
        source="ada",
        target="agent",
        tags=("friendly",),
        metadata={"interactions": 2},
        first_seen_at=NOON,
        last_seen_at=NOON,
    )
    put(any_store, "relationships", "all", "r", friends)
    put(any_store, "thoughts", "room", "t", Thought(id="t", text="Ada is well.", room_id="room", at=NOON))
    put(any_store, "thoughts", "room", "u", Thought(id="u", text="Canada is large.", room_id="room", at=NOON))
    found = memory(any_store)
    asyncio.run(Traces(found.store, "agent", "ada").was_in("room"))
    ask(mode, found, "register_entity", "ada", "Ada", "Countess")
    for room in ("room", "room.2"):
        ask(mode, found, "create_goal", room, "Move", entity_id="ada")
        ask(mode, found, "create_goal", room, "Stay", entity_id="bob")
    exported = json.loads(json.dumps(ask(mode, found, "export", "ada")))
    assert [part["claim"] for part in exported["facts"]] == ["Ada lives in Oslo"]
    assert [part["tags"] for part in exported["relationships"]] == [["friendly"]]
    assert [part["text"] for part in exported["thoughts"]] == ["Ada is well."]
    assert [(part["room_id"], part["name"]) for part in exported["goals"]] == [
        ("room", "Move"),
        ("room.2", "Move"),
    ]
    assert exported["entities"][0]["names"] == ["Ada", "Countess"]
    assert "Bob" not in json.dumps(exported)


@MODES
def test_forgotten_facts_are_gone(any_store: BaseStore, mode: str) -> None:
    put(any_store, "facts", "ada", "1", fact("1", "Ada lives in Oslo"))
    put(any_store, "facts", "ada", "2", fact("2", "Ada likes tea"))
    found = memory(any_store)
    assert ask(mode, found, "forget", "ada", "oslo") == 1
    assert [f.id for f in ask(mode, found, "facts", "ada", None)] == ["2"]
    assert ask(mode, found, "forget", "ada") == 1
    assert ask(mode, found, "facts", "ada", None) == []


def related(source: str, target: str, *tags: str) -> Relationship:
    return Relationship(
        source=source,
        target=target,
        tags=tags,
        metadata={"interactions": 2, "note": "drinks tea with him"},
        first_seen_at=NOON,
        last_seen_at=NOON,
    )


@MODES
def test_forgetting_everything_forgets_relationships(any_store: BaseStore, mode: str) -> None:
    """From and to the entity. Goals and registered names stay, because the program set them."""
    for source, target in (("ada", "bob"), ("bob", "ada"), ("bob", "cy")):
        put(any_store, "relationships", "all", f"{source}-{target}", related(source, target, "in_love"))
    found = memory(any_store)
    ask(mode, found, "register_entity", "ada", "Ada")
    ask(mode, found, "create_goal", "room", "Move", entity_id="ada")
    assert ask(mode, found, "forget", "ada") == 0
    assert [(each.source, each.target) for each in ask(mode, found, "relationships")] == [("bob", "cy")]
    exported = ask(mode, found, "export", "ada")
    assert exported["relationships"] == []
    assert (len(exported["goals"]), len(exported["entities"])) == (1, 1)


@MODES
def test_forgetting_a_fact_removes_tags_that_mention_it(any_store: BaseStore, mode: str) -> None:
    put(any_store, "relationships", "all", "r", related("ada", "bob", "drinks_tea", "friend"))
    found = memory(any_store)
    ask(mode, found, "forget", "ada", "tea")
    [kept] = ask(mode, found, "relationships")
    assert (kept.tags, kept.metadata) == (("friend",), {"interactions": 2})


@MODES
def test_trust_is_neutral_without_evidence(mode: str) -> None:
    profile = ask(mode, memory(InMemoryStore()), "trust", "ada")
    assert (profile.overall, profile.confidence) == (50, 0)


def test_the_table_shows_claims_as_they_are() -> None:
    """With confidence and sources; nothing in a claim is taken for markup, or leaves its cell."""
    store = InMemoryStore()
    put(
        store,
        "facts",
        "ada",
        "1",
        fact("1", "[red]Ada[/red] lives\nin Oslo", mention_count=3, confidence=0.804),
    )
    put(store, "facts", "ada", "2", fact("2", "Ada hates tea", state="disputed"))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(memory(store).table("ada"))
    shown = captured.get()
    assert "[red]Ada[/red] lives\\u000ain Oslo" in shown
    assert "0.80" in shown
    assert "m1" in shown
    assert "Ada hates tea (conflicting)" in shown


def test_a_single_step_is_a_text_and_not_its_letters() -> None:
    goal = memory(InMemoryStore()).create_goal("room", "Move", "Sign", entity_id="ada")
    assert [step.description for step in goal.objectives] == ["Sign"]


def test_the_table_has_its_days_in_the_clocks_zone() -> None:
    tokyo = timezone(timedelta(hours=9))
    found = Memory(InMemoryStore(), clock=lambda: datetime(2026, 6, 1, 8, tzinfo=tokyo))
    found.remember("ada", "Ada sails")
    console = Console(width=120)
    with console.capture() as captured:
        console.print(found.table("ada"))
    assert "2026-06-01" in captured.get()


def test_methods_and_their_twins_take_the_same() -> None:
    twins = [name for name in vars(Memory) if f"a{name}" in vars(Memory)]
    assert len(twins) == 17

    for name in twins:
        method, twin = getattr(Memory, name), getattr(Memory, f"a{name}")
        assert inspect.signature(method).parameters == inspect.signature(twin).parameters
        assert (method.__name__, inspect.iscoroutinefunction(method)) == (name, False)


def test_a_state_that_does_not_exist_is_an_error() -> None:
    """It would find nothing, for ever."""
    memory: Any = Memory(InMemoryStore())
    with pytest.raises(ParameterError, match=r"state: expected one of 'active', .*Did you mean 'active'\?"):
        memory.facts("ada", "actve")
    with pytest.raises(ParameterError, match="status: expected one of 'IN_PROGRESS'"):
        memory.goals("room", "DOING")


def test_a_cycle_without_a_store_says_so() -> None:
    with pytest.raises(ConfigurationError, match="no store of its own"):
        _ = EvaluationCycle().memory
