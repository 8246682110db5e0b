"""Relationships between entities, and the number of their interactions."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory import EvaluationCycle, FactRules
from arbiter.memory.reflection._relationships import (
    COUNTED,
    MAX_METADATA,
    MAX_TAGS,
    ROOMS,
    Relationships,
    Sighting,
    Upserted,
    key_of,
    normal_tags,
)
from arbiter.memory.stores import MemoryStore, namespace
from tests.memory.reflection_support import START, Clock, turn

PLACE = namespace("agent", "relationships", "all")


@pytest.fixture
def store(any_store: BaseStore) -> MemoryStore:
    return MemoryStore(any_store)


@pytest.fixture
def plain() -> MemoryStore:
    return MemoryStore(InMemoryStore())


def known_in(store: MemoryStore, **options: Any) -> Relationships:
    return Relationships(store, agent_id="agent", **options)


def seen(*tags: str, source: str = "a", target: str = "b", **metadata: Any) -> Sighting:
    return Sighting(source=source, target=target, tags=tags, metadata=metadata)


async def test_each_direction_is_a_relationship_of_its_own(store: MemoryStore) -> None:
    relationships = known_in(store)
    done = await relationships.upsert([seen("x"), seen("y", source="b", target="a")], turn())
    assert done == Upserted(seen=2, created=2)
    found = {(one.source, one.target): one for one in await relationships.of("a")}
    assert {pair: one.tags for pair, one in found.items()} == {("a", "b"): ("x",), ("b", "a"): ("y",)}
    assert {one.interactions for one in found.values()} == {1}
    one = found["a", "b"]
    assert (one.first_seen_at, one.last_seen_at, one.room_ids) == (START, START, ("room-1",))
    assert await store.aget(PLACE, key_of("a", "b")) == one.to_value()


async def test_a_reflection_counts_once_despite_the_models_count(store: MemoryStore) -> None:
    relationships = known_in(store)
    await relationships.upsert([seen("group_interaction", interactions=999)], turn(run="1"))
    twice = [seen("positive_sentiment"), seen("Positive Sentiment", interactions=999)]
    assert await relationships.upsert(twice, turn(run="2")) == Upserted(seen=1)
    [found] = await relationships.of()
    assert found.interactions == 2
    assert found.tags == ("group_interaction", "positive_sentiment")


async def test_the_same_turn_once_more_changes_nothing(store: MemoryStore) -> None:
    """Also when others were counted between, and when the turn is repeated later."""
    clock = Clock()
    relationships = known_in(store)
    for run in ("1", "2", "3"):
        await relationships.upsert([seen("x")], turn(run=run, clock=clock))
    before = await relationships.of()
    clock.move(5)
    assert await relationships.upsert([seen("x"), seen("x")], turn(run="1", clock=clock)) == Upserted(seen=1)
    assert await relationships.of() == before
    assert before[0].interactions == 3


async def test_a_relationship_gains_tags_and_metadata(plain: MemoryStore) -> None:
    clock = Clock()
    relationships = known_in(plain)
    await relationships.upsert([seen("x", since="2020", mood=1)], turn())
    clock.move(60)
    await relationships.upsert([seen("y", "x", mood=2)], turn(run="2", room_id="room-2", clock=clock))
    [found] = await relationships.of()
    assert found.tags == ("x", "y")
    assert found.metadata == {"since": "2020", "mood": 2, "interactions": 2}
    assert (found.first_seen_at, found.last_seen_at) == (START, START + timedelta(hours=1))
    assert found.room_ids == ("room-1", "room-2")


async def test_a_relationship_of_an_entity_with_itself_is_dropped(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    assert await relationships.upsert([seen(source="a", target="a")], turn()) == Upserted(self_loops=1)
    assert await relationships.of() == []


async def test_undoing_a_forgetting_brings_words_of_tags_and_metadata_back() -> None:
    memory = EvaluationCycle(
        store=InMemoryStore(), clock=lambda: START, fact_rules=FactRules(undo_within=timedelta(days=1))
    ).memory
    relationships = known_in(memory.store)
    await relationships.upsert([seen("sailing_mate", "friend", likes="sailing")], turn())
    fact = await memory.aremember("a", "A loves boats", slot="sport", value="sailing")
    gone = await memory.aforget("a", id=fact.id)
    await relationships.upsert([seen("colleague")], turn(run="later"))
    [left] = await relationships.of("a")
    assert (left.tags, left.metadata) == (("friend", "colleague"), {"interactions": 2})
    assert await memory.aundo("a", id=gone.id) == 1
    [back] = await relationships.of("a")
    assert {*back.tags} == {"sailing_mate", "friend", "colleague"}
    assert back.metadata == {"interactions": 2, "likes": "sailing"}


@pytest.mark.parametrize(
    ("known", "latest", "tags"),
    [
        (["new_interaction"], ["frequent_interaction"], ("frequent_interaction",)),
        (["x", "new_interaction"], ["Frequent Interaction", "y"], ("x", "frequent_interaction", "y")),
        (["frequent_interaction"], ["new_interaction"], ("new_interaction",)),
        ([], ["frequent_interaction", "new_interaction"], ("frequent_interaction",)),
        (["frequent_interaction"], ["x"], ("frequent_interaction", "x")),
        (["two", "x"], ["three"], ("x", "three")),
        (["three", "x"], ["two", "one"], ("x", "two")),
    ],
)
async def test_tags_that_exclude_each_other(
    plain: MemoryStore, known: list[str], latest: list[str], tags: tuple[str, ...]
) -> None:
    """The latest one stays, and of several that come at once the one that stands later in its group."""
    groups = (("new_interaction", "frequent_interaction"), ("One", "two", "three"))
    relationships = known_in(plain, exclusive_tags=groups)
    await relationships.upsert([seen(*known)], turn(run="1"))
    await relationships.upsert([seen(*latest)], turn(run="2"))
    [found] = await relationships.of()
    assert found.tags == tags


async def test_new_and_frequent_interaction_exclude_each_other_by_default(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    await relationships.upsert([seen("new_interaction", "x")], turn(run="1"))
    await relationships.upsert([seen("frequent_interaction")], turn(run="2"))
    assert (await relationships.of())[0].tags == ("x", "frequent_interaction")


async def test_the_newest_tags_are_kept_of_very_many(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    for number in range(MAX_TAGS + 3):
        await relationships.upsert([seen(f"t{number}")], turn(run=str(number)))
    [found] = await relationships.of()
    assert found.tags == tuple(f"t{number}" for number in range(3, MAX_TAGS + 3))
    assert found.interactions == MAX_TAGS + 3


async def test_the_newest_of_thousands_of_sightings_in_one_turn_are_kept(
    plain: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sighting is compared with all tags before it."""
    read: list[int] = []

    def counting(tags: Any) -> tuple[str, ...]:
        read.append(len(tags))
        return normal_tags(tags)

    monkeypatch.setattr("arbiter.memory.reflection._relationships.normal_tags", counting)
    relationships = known_in(plain)
    tags = [f"t{number}" for number in range(1_000)]
    assert (
        await relationships.upsert(
            [Sighting(source="a", target="b", tags=(tag,), metadata={tag: 1}) for tag in tags], turn()
        )
    ).seen == 1
    [one] = await relationships.of()
    assert one.tags == tuple(tags[-MAX_TAGS:])
    assert [*one.metadata][:-1] == tags[-MAX_METADATA:]
    assert max(read) <= 2 * MAX_TAGS


async def test_a_tag_that_is_seen_again_and_again_stays(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    for number in range(MAX_TAGS + 3):
        await relationships.upsert([seen("friend", f"t{number}")], turn(run=str(number)))
        assert "friend" in (await relationships.of())[0].tags
    assert len((await relationships.of())[0].tags) == MAX_TAGS


async def test_the_newest_metadata_are_kept_of_very_many(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    for number in range(MAX_METADATA + 3):
        metadata = {"since": "2020", f"note{number}": number}
        sighting = Sighting(source="a", target="b", metadata=metadata)
        await relationships.upsert([sighting], turn(run=str(number)))
    [found] = await relationships.of()
    notes = {f"note{number}": number for number in range(4, MAX_METADATA + 3)}
    assert found.metadata == {"since": "2020", **notes, "interactions": MAX_METADATA + 3}


@pytest.mark.parametrize(
    ("tags", "normal"),
    [
        ("group interaction, Positive  Sentiment ,x", ("group_interaction", "positive_sentiment", "x")),
        (["X", " x ", "x y\tz"], ("x", "x_y_z")),
        (["", "  ", ",", "t" * 65], ()),
        ([], ()),
    ],
)
def test_tags_have_one_form(tags: Any, normal: tuple[str, ...]) -> None:
    assert normal_tags(tags) == normal


async def test_those_with_the_most_interactions_come_first(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    for run in ("1", "2"):
        await relationships.upsert([seen(source="a", target="c")], turn(run=run))
    await relationships.upsert([seen(), seen(source="c", target="a"), seen(source="c", target="d")], turn())
    found = await relationships.of("a")
    assert (found[0].source, found[0].target) == ("a", "c")
    assert len(found) == 3
    assert len(await relationships.of()) == 4


async def test_agents_have_relationships_of_their_own(plain: MemoryStore) -> None:
    await known_in(plain).upsert([seen()], turn())
    assert await Relationships(plain, agent_id="other").of() == []


@pytest.mark.parametrize(
    ("source", "target"),
    [("u.alice@example.com", "%.*"), ("", "b"), ("a" * 10_000, "b"), ("\ud800", "b\x00"), ("Ω", "日本")],
    ids=["dots", "empty", "long", "broken", "other letters"],
)
async def test_any_id_will_do(store: MemoryStore, source: str, target: str) -> None:
    relationships = known_in(store)
    for run in ("1", "2"):
        await relationships.upsert([seen(source=source, target=target)], turn(run=run))
    assert [one.interactions for one in await relationships.of(source)] == [2]
    assert [one.interactions for one in await relationships.of()] == [2]


def test_pairs_are_not_mistaken_for_each_other() -> None:
    assert (
        len({key_of("a", "b"), key_of("b", "a"), key_of("a.b", ""), key_of("", "a.b"), key_of("ab", "")}) == 5
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"first_seen_at": None},
        {"first_seen_at": "soon"},
        {"metadata": None},
        {"metadata": {"interactions": "x"}},
    ],
    ids=str,
)
async def test_an_unreadable_record_is_replaced(plain: MemoryStore, broken: dict[str, Any]) -> None:
    relationships = known_in(plain)
    await relationships.upsert([seen()], turn())
    [value] = [entry.value for entry in await plain.alist(PLACE)]
    await plain.aput(PLACE, key_of("a", "b"), {**value, **broken})
    await relationships.upsert([seen("x")], turn(run="2"))
    assert [(one.interactions, one.tags) for one in await relationships.of()] == [(1, ("x",))]


async def test_a_count_that_is_written_as_a_text_is_read(plain: MemoryStore) -> None:
    """Other programs write numbers in other ways; the tags of such a relationship are kept."""
    relationships = known_in(plain)
    await relationships.upsert([seen("friend")], turn())
    [value] = [entry.value for entry in await plain.alist(PLACE)]
    await plain.aput(PLACE, key_of("a", "b"), {**value, "metadata": {"interactions": "4"}})
    await relationships.upsert([seen("x")], turn(run="2"))
    assert [(one.interactions, one.tags) for one in await relationships.of()] == [(5, ("friend", "x"))]


@pytest.mark.parametrize("broken", [{"tags": None}, {"metadata": None}], ids=str)
async def test_an_unreadable_record_is_forgotten_with_the_rest(broken: dict[str, Any]) -> None:
    memory = EvaluationCycle(
        store=InMemoryStore(), clock=lambda: START, fact_rules=FactRules(undo_within=timedelta(days=1))
    ).memory
    await known_in(memory.store).upsert([seen()], turn())
    [value] = [entry.value for entry in await memory.store.alist(PLACE)]
    await memory.store.aput(PLACE, key_of("a", "b"), {**value, **broken})
    await memory.aforget("a")
    assert await memory.store.alist(PLACE) == []


@pytest.mark.parametrize("count", ["many", None, [3]], ids=str)
async def test_a_count_that_is_none_does_not_keep_a_fact_from_being_forgotten(count: Any) -> None:
    memory = EvaluationCycle(store=InMemoryStore(), clock=lambda: START).memory
    await memory.aremember("a", "Ada has a horse")
    await known_in(memory.store).upsert([seen("likes_horses")], turn())
    [value] = [entry.value for entry in await memory.store.alist(PLACE)]
    value["metadata"]["interactions"] = count
    await memory.store.aput(PLACE, key_of("a", "b"), value)
    assert await memory.aforget("a", "horse") == 1
    [left] = [entry.value for entry in await memory.store.alist(PLACE)]
    assert left["tags"] == []


@pytest.mark.lengthy
def test_no_interaction_is_lost_between_threads(store: MemoryStore) -> None:
    """4 threads with 50 turns each, every one with an event loop of its own, end at exactly 200."""

    def reflect(thread: int) -> None:
        async def all_turns() -> None:
            relationships = known_in(MemoryStore(store.store))
            for number in range(50):
                await relationships.upsert([seen(f"t{thread}")], turn(run=f"{thread}:{number}"))

        asyncio.run(all_turns())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(reflect, range(4)))
    [found] = asyncio.run(known_in(store).of())
    assert found.interactions == 200
    assert set(found.tags) == {"t0", "t1", "t2", "t3"}
    assert len(found.counted) == COUNTED


async def test_private_sightings_are_shown_in_their_room_only(store: MemoryStore) -> None:
    """Neither the tags nor the meeting itself are shown elsewhere; once seen openly, a tag is shown
    everywhere."""
    relationships = known_in(store)
    await relationships.upsert([seen("secret_affair")], turn(room_id="dm", is_private=True))
    [found] = await relationships.of()
    assert (found.tags, found.interactions) == (("secret_affair",), 1)
    assert found.told_in("open") is None
    there = found.told_in("dm")
    assert there is not None
    assert (there.tags, there.interactions) == (("secret_affair",), 1)

    await relationships.upsert([seen("colleague")], turn(run="2", room_id="open"))
    await relationships.upsert([seen("colleague", "rival")], turn(run="3", room_id="dm", is_private=True))
    [found] = await relationships.of()
    assert found.interactions == 3
    told = {room: found.told_in(room) for room in ("open", "other", "dm")}
    assert {room: one and (one.tags, one.interactions) for room, one in told.items()} == {
        "open": (("colleague",), 1),
        "other": (("colleague",), 1),
        "dm": (("secret_affair", "colleague", "rival"), 3),
    }

    await relationships.upsert([seen("rival")], turn(run="4", room_id="open"))
    openly = (await relationships.of())[0].told_in("other")
    assert openly is not None
    assert openly.tags == ("colleague", "rival")


async def test_a_shown_relationship_has_no_trace_of_other_rooms(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    await relationships.upsert([seen("x", note="in love")], turn(room_id="dm", is_private=True))
    await relationships.upsert([seen("y")], turn(run="2", room_id="open"))
    told = (await relationships.of())[0].told_in("open")
    assert told is not None
    assert "dm" not in repr(told)
    assert "love" not in repr(told)


async def test_a_sensitive_tag_stays_in_its_room(plain: MemoryStore) -> None:
    """Also when it is seen in a room that is not private."""
    relationships = known_in(plain)
    await relationships.upsert([seen("has_cancer", "friend")], turn())
    [found] = await relationships.of()
    told = [found.told_in(room) for room in ("room-1", "room-2")]
    assert [one and one.tags for one in told] == [("has_cancer", "friend"), ("friend",)]


@pytest.mark.lengthy
async def test_private_rooms_beyond_those_listed_count_as_private(plain: MemoryStore) -> None:
    relationships = known_in(plain)
    for number in range(ROOMS + 5):
        private = turn(run=str(number), room_id=f"dm-{number}", is_private=True)
        await relationships.upsert([seen("x")], private)
    [found] = await relationships.of()
    assert len(found.private_interactions) <= ROOMS + 1
    assert sum(found.private_interactions.values()) == found.interactions == ROOMS + 5
    assert found.told_in("open") is None


async def test_a_record_without_tag_rooms_is_shown(plain: MemoryStore) -> None:
    """As an earlier version wrote it, or a program: its tags are those of the rooms that it names."""
    relationships = known_in(plain)
    await relationships.upsert([seen("x")], turn())
    [entry] = await plain.alist(PLACE)
    later = ("tag_rooms", "confined_tags", "private_interactions")
    older = {name: part for name, part in entry.value.items() if name not in later}
    await plain.aput(PLACE, entry.key, older)
    await relationships.upsert([seen("y")], turn(run="2", room_id="dm", is_private=True))
    told = (await relationships.of())[0].told_in("room-2")
    assert told is not None
    assert (told.tags, told.interactions) == (("x",), 1)
