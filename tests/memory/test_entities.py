"""The resolution of names to participants, and the participants of a room."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory._characters import Character
from arbiter.memory._entities import AGENT_ALIASES, Entities, Entity, called, participants, resolve
from arbiter.memory.stores import MemoryStore, namespace

SARAH = Entity(id="sarah-agent", names=("Sarah",), is_agent=True)
JOHN = Entity(id="user-123", names=("John Smith", "Johnny"))
JEAN = Entity(id="8f14e45f-ceea-467f-a8f0-000000000001", names=("Jean-Paul O'Brien",))
ALICE = Entity(id="u.alice@example.com", names=("Alice",))
ALBERT = Entity(id="7c211433-f02a-4b1d-9a41-000000000002", names=("Albert",))
ROOM = (SARAH, JOHN, JEAN, ALICE, ALBERT)

MEANT: dict[str, tuple[str, Entity]] = {
    "exact id": ("user-123", JOHN),
    "id with blanks around it": ("  user-123 ", JOHN),
    "id with dots": ("u.alice@example.com", ALICE),
    "agent": ("agent", SARAH),
    "Assistant": ("Assistant", SARAH),
    "ME": ("ME", SARAH),
    "name": ("Sarah", SARAH),
    "name in another case": ("jOHN sMITH", JOHN),
    "another name": ("johnny", JOHN),
    "name with more blanks": (" John   Smith", JOHN),
    "name in wide letters": ("\uff33\uff41\uff52\uff41\uff48", SARAH),
    "beginning of an id": ("8f14e4", JEAN),
    "a whole word of a name": ("smith", JOHN),
    "a word with an apostrophe": ("O'Brien", JEAN),
    "a word with a hyphen": ("Jean-Paul", JEAN),
    "a word with punctuation": ("Smith!", JOHN),
}


@pytest.mark.parametrize(("name", "entity"), MEANT.values(), ids=MEANT)
def test_a_name_means_a_participant(name: str, entity: Entity) -> None:
    assert resolve(name, ROOM) == entity.id
    assert resolve(name, ROOM[::-1]) == entity.id


NOBODY = {
    "empty": "",
    "blank": "  \t\n",
    "only punctuation": "?!",
    "UUID of nobody": "12345678-1234-5678-1234-567812345678",
    "id of nobody": "user-124",
    "part of two names": "al",
    "part of one name": "lic",
    "part of a word with a hyphen": "Jean",
    "five characters of an id": "8f14e",
    "end of an id": "000000000001",
    "id in another case": "USER-123",
    "words in another order": "Smith John",
    "more than the name": "John Smith's sister",
    "an id inside of a text": "the user-123",
}


@pytest.mark.parametrize("name", NOBODY.values(), ids=NOBODY)
def test_inexact_names_mean_no_entity(name: str) -> None:
    assert resolve(name, ROOM) is None


AMBIGUOUS: dict[str, tuple[str, list[Entity]]] = {
    "two of a name": ("john", [Entity(id="a", names=("John",)), Entity(id="b", names=("JOHN",))]),
    "two of a word": ("john", [Entity(id="a", names=("John Smith",)), Entity(id="b", names=("John Doe",))]),
    "two of a beginning": ("abcdef", [Entity(id="abcdef-1"), Entity(id="abcdef-2")]),
    "no text and no id": ("", [Entity(id="", names=("",))]),
    "no text": ("", [Entity(id="first", names=("First",))]),
}


@pytest.mark.parametrize(("name", "entities"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_one_of_several_is_never_picked(name: str, entities: list[Entity]) -> None:
    assert resolve(name, entities) is None


def test_the_first_way_that_hits_decides() -> None:
    """An id precedes a name, and a weaker step never decides between two people with the same name."""
    id_is_a_name = [Entity(id="Sam", names=("Ann",)), Entity(id="u2", names=("Sam",))]
    assert resolve("Sam", id_is_a_name) == "Sam"
    assert resolve("sam", id_is_a_name) == "u2"
    assert resolve("agent", [Entity(id="u", names=("Agent",)), SARAH]) == SARAH.id
    twins = [
        Entity(id="u1", names=("Kim",)),
        Entity(id="u2", names=("kim",)),
        Entity(id="u3", names=("Kim Lee",)),
    ]
    assert resolve("Kim", twins) is None


def test_one_entity_that_is_listed_twice_is_one() -> None:
    assert resolve("Sarah", [SARAH, SARAH]) == SARAH.id


def test_the_agents_aliases_can_be_changed() -> None:
    aliases = {"bot": SARAH.id, "The User": JOHN.id, "ghost": "nobody-there"}
    assert resolve("BOT", ROOM, aliases) == SARAH.id
    assert resolve("the user", ROOM, aliases) == JOHN.id
    assert resolve("ghost", ROOM, aliases) is None
    assert [resolve(name, ROOM, aliases) for name in AGENT_ALIASES] == [None, None, None]
    assert resolve("agent", [JOHN]) is None


# Participants -------------------------------------------------------------------------------------


def room(*messages: BaseMessage, **known: Any) -> list[Entity]:
    options: dict[str, Any] = {"agent_id": "sarah", "character": Character("Sarah"), "entity_id": "user-1"}
    return list(participants(messages, **options | known))


def says(text: str, name: str | None = None, id: Any = None) -> HumanMessage:
    return HumanMessage(text, name=name, additional_kwargs={} if id is None else {"entity_id": id})


def test_agent_and_user_take_part_in_an_empty_room() -> None:
    assert room() == [Entity(id="sarah", names=("Sarah",), is_agent=True), Entity(id="user-1")]


def test_speakers_are_found_on_messages() -> None:
    found = room(
        says("hi", "Bob", "user-2"),
        says("hi", "John", "user-1"),
        says("hey", "bobby", "user-2"),
        says("ho", "BOB", "user-2"),
        AIMessage("hello", name="helper"),
        AIMessage("also", additional_kwargs={"entity_id": "other-agent"}),
    )
    assert found == [
        Entity(id="sarah", names=("Sarah", "helper"), is_agent=True),
        Entity(id="user-1", names=("John",)),
        Entity(id="user-2", names=("Bob", "bobby")),
        Entity(id="other-agent"),
    ]


def test_people_without_ids_do_not_become_one_person() -> None:
    """Of several names on messages that do not say whose they are, only the newest is the user's."""
    found = room(says("a", "Ann", "user-1"), says("b", "Bob"), says("c"), says("d", "Cid"), says("e"))
    assert found[1] == Entity(id="user-1", names=("Ann", "Cid"))
    assert resolve("Bob", found) is None


def test_registered_entities_are_joined_with_speakers() -> None:
    registered = [Entity(id="user-2", names=("Robert",)), Entity(id="cat", names=("Tom",)), Entity(id="")]
    found = room(says("hi", "Bob", "user-2"), registered=registered)
    assert found[2:] == [Entity(id="user-2", names=("Robert", "Bob")), Entity(id="cat", names=("Tom",))]


def test_only_humans_and_agents_take_part() -> None:
    kwargs = {"entity_id": "tool"}
    tool = ToolMessage("x", tool_call_id="1", name="search", additional_kwargs=kwargs)
    assert len(room(SystemMessage("x", name="boss", additional_kwargs=kwargs), tool)) == 2


@pytest.mark.parametrize("id", ["", 7, None, ["user-2"]])
def test_an_invalid_id_names_no_entity(id: Any) -> None:
    assert [entity.id for entity in room(says("x", id=id))] == ["sarah", "user-1"]


def test_a_text_in_place_of_a_name_is_no_name() -> None:
    assert room(says("x", "J" * 101), says("x", "  \n"))[1].names == ()
    assert room(says("x", "Jo\n hn"))[1].names == ("Jo hn",)


async def test_entities_can_be_registered(any_store: BaseStore) -> None:
    """They are stored in the namespace of their agent, with any id; registering again replaces the names."""
    entities = Entities(MemoryStore(any_store), "sarah")
    ids = ["user-1", "b.c@d", "", "x" * 10_000]
    for id in ids:
        await entities.register(Entity(id=id, names=("Old",)))
    await entities.register(Entity(id="user-1", names=("John", "Johnny")))
    found = await entities.get(ids)
    assert [*found] == ids
    assert found["user-1"] == Entity(id="user-1", names=("John", "Johnny"))
    assert await Entities(MemoryStore(any_store), "jim").get(ids) == {}


async def test_turkish_names_of_older_stores_are_found() -> None:
    """There the Turkish i with a dot and the one without were letters of their own. Registering anew replaces them."""
    store = MemoryStore(InMemoryStore())
    entities = Entities(store, "sarah")
    await store.aput(namespace("sarah", "entities", "all"), "u1", {"id": "u1", "names": ["İrem Işık"]})
    terms = {"i\u0307rem": "part", "işık": "part", "i\u0307rem işık": "whole", "u1": "whole"}
    for term, kind in terms.items():
        await store.aput(namespace("sarah", "names", "all"), term, {kind: ["u1"]})
    for text in ("İrem Işık geldi", "İREM geldi"):
        assert [found.id for found in await entities.named([text])] == ["u1"], text
    await entities.register(Entity(id="u1", names=("Işık",)))
    assert await entities.named(["İrem geldi", "irem"]) == []
    assert [found.id for found in await entities.named(["IŞIK", "isik"])] == ["u1"]


async def test_unreadable_entities_in_a_store_are_skipped() -> None:
    store = MemoryStore(InMemoryStore())
    entities = Entities(store, "sarah")
    await entities.register(JOHN)
    await store.aput(namespace("sarah", "entities", "all"), "broken", {"names": 7})
    assert await entities.get(["broken", JOHN.id]) == {JOHN.id: JOHN}


def test_long_names_that_differ_at_their_end_are_told_apart() -> None:
    entities = [Entity(id=f"{end}", names=(f"{'x' * 250} {end}",)) for end in ("one", "two")]
    assert resolve(f"{'X' * 250} TWO", entities) == "two"
    assert resolve("x" * 250, entities) is None
    assert resolve(f"Ada{' ' * 250}Smith", [Entity(id="1", names=("Ada Smith",))]) == "1"
    long = [Entity(id=f"{'x' * 250}{end}") for end in ("1", "2")]
    assert called(f"{'x' * 250}1", long) == {long[0].id}
