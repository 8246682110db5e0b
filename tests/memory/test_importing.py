"""Importing: what was exported comes back as it was, bad records are all reported, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from arbiter.errors import ParameterError
from arbiter.memory import EvaluationCycle, FactEvaluator, FactRules, Memory, ReflectionEvaluator
from tests.memory.dialogue_support import Chat
from tests.memory.facts_support import Room
from tests.memory.memory_support import Clock
from tests.memory.test_talks import Talk, says
from tests.scripted import Scripted

SECRET = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"


class UserProfile(BaseModel):
    city: str | None = None


def memory(store: BaseStore | None = None, **options: Any) -> Memory:
    given: dict[str, Any] = {"clock": Clock(), **options}
    return EvaluationCycle(
        store=InMemoryStore() if store is None else store, agent_id="sarah", **given
    ).memory


async def _lived() -> Memory:
    """A memory with facts, a correction, a profile, a thought, relationships, goals and trust."""
    learned = {
        "claims": [{"claim": "John lives in Oslo", "type": "status", "source_message_ids": ["m1"]}],
        "profiles": {"UserProfile": {"city": "Oslo"}},
    }
    thought = {
        "thought": "John is friendly.",
        "relationships": [{"sourceEntityId": "user-1", "targetEntityId": "sarah", "tags": ["chat"]}],
    }
    room = Room(InMemoryStore(), json.dumps(learned), json.dumps(thought), length=2)
    room.says("I live in Oslo")
    room.replies()
    await room.evaluate(FactEvaluator(schemas=[UserProfile]))
    ctx = room.turn()
    await ReflectionEvaluator().handle(ctx)
    found = Memory(room.store, agent_id="sarah", clock=room.clock)
    await found.acreate_goal("room-1", "Find a flat", ["Visit three"], entity_id="user-1")
    await found.aregister_entity("user-1", "John", "Johnny")
    [fact] = await found.afacts("user-1")
    await found.aedit("user-1", fact.id, claim="John lives in Bergen")
    return found


def lived() -> Memory:
    return asyncio.run(_lived())


def without_time(export: dict[str, Any]) -> dict[str, Any]:
    """An export without its own time, its lists in a fixed order."""
    return {
        kind: found if isinstance(found, str) else sorted(found, key=json.dumps)
        for kind, found in export.items()
        if kind != "exported_at"
    }


def test_a_record_without_its_state_is_found_by_it() -> None:
    """A claim from elsewhere with an id of its own, or a goal, may leave out what has a default."""
    found = memory()
    claim = {"entity_id": "ada", "claim": "Ada lives in Oslo", "id": "k", "expires_at": None}
    goal = {"id": "g", "room_id": "room-1", "entity_id": "ada", "name": "Find a flat"}
    assert found.import_([claim, {"entity_id": "ada", "goals": [goal]}]) == 2
    assert [fact.id for fact in found.facts("ada")] == ["k"]
    assert [each.id for each in found.goals("room-1", "IN_PROGRESS")] == ["g"]


@pytest.mark.lengthy
@pytest.mark.parametrize("is_async", [False, True])
def test_an_export_comes_back_with_ids_times_and_links(any_store: BaseStore, is_async: bool) -> None:
    export = json.loads(json.dumps(lived().export("user-1")))
    assert all(
        export[kind] for kind in ("status", "profiles", "relationships", "goals", "thoughts", "entities")
    )
    other = memory(any_store)
    new = asyncio.run(other.aimport_(export)) if is_async else other.import_(export)
    assert new == sum(len(found) for found in export.values() if not isinstance(found, str))
    assert without_time(other.export("user-1")) == without_time(export)
    assert other.profile("user-1", UserProfile).city == "Oslo"
    assert [fact.claim for fact in other.search("lives in", "user-1")] == ["John lives in Bergen"]
    assert len(other.relationships("user-1")) == 1
    assert other.forget("user-1") == 2
    assert other.thoughts("room-1") == []


def test_an_export_without_facts_is_imported_into_every_store(any_store: BaseStore) -> None:
    known = memory()
    known.create_goal("room-1", "Find a flat", entity_id="user-1")
    other = memory(any_store)
    assert other.import_(known.export("user-1")) == 1
    assert [goal.name for goal in other.goals("room-1")] == ["Find a flat"]
    assert other.import_([]) == 0


def test_a_goal_without_steps_comes_back() -> None:
    made = memory()
    goal = made.create_goal("room-1", "Rest more", entity_id="user-1")
    other = memory()
    assert other.import_(made.export("user-1")) == 1
    assert other.goals("room-1") == [goal]


def test_importing_again_changes_nothing_and_keeps_what_is_newer() -> None:
    export = lived().export("user-1")
    other = memory()
    assert other.import_([export, export]) > 0
    [fact] = other.facts("user-1")
    other.edit("user-1", fact.id, slot="residence.city")
    assert other.import_(export) == 0
    assert other.facts("user-1")[0].slot == "residence.city"


def test_an_old_export_does_not_bring_back_what_was_forgotten() -> None:
    known = lived()
    export = known.export("user-1")
    known.forget("user-1", "Oslo")
    known.import_(export)
    assert not [fact for fact in known.facts("user-1", None) if "Oslo" in fact.claim]


@pytest.mark.parametrize("query", ["cat", None])
def test_the_import_of_a_forgetting_forgets_no_more_than_that(
    any_store: BaseStore, query: str | None
) -> None:
    """In the store that it comes from it changes nothing; elsewhere, too, what was not forgotten stays visible."""

    async def told() -> tuple[int, bool]:
        chat = Chat({"Oslo": "User lives in Oslo", "cat": "User has a cat"}, store=any_store)
        await chat.say("I live in Oslo")
        await chat.say("I have a cat")
        await chat.cycle.memory.aforget("user-1", query)
        again = await chat.cycle.memory.aimport_(await chat.cycle.memory.aexport("user-1"))
        await chat.say("What is new?")
        return again, "> I live in Oslo" in chat.model.prompt()

    assert asyncio.run(told()) == (0, query is not None)


@pytest.mark.parametrize("query", ["cat", None])
async def test_a_forgetting_is_exported_without_those_of_a_thread_of_the_same_id(query: str | None) -> None:
    """Many programs use the user's id for the thread."""
    chat = Chat({"cat": "User has a cat"})
    for text in ("I have a cat", "Off the record: I am ill"):
        await chat.say(text, room="user-1")
    await chat.cycle.memory.aforget("user-1", query)
    await chat.say("What is new?", room="user-1")
    exported = await chat.cycle.memory.aexport("user-1")
    whats = ["newest"] if query else ["everything", "newest"]
    assert sorted(each["what"] for each in exported["tombstones"]) == whats
    assert await chat.cycle.memory.aimport_(exported) == 0
    # An earlier export.
    of_thread = {"at": "2026-03-14T12:00:00+00:00", "messages": ["m1"], "asked": []}
    of_ada = {"at": "2026-03-14T13:00:00+00:00", "entity_id": "ada"}
    earlier = {"entity_id": "ada", "tombstones": [of_thread, of_ada]}
    assert await chat.cycle.memory.aimport_(earlier) == 1
    [found] = (await chat.cycle.memory.aexport("ada"))["tombstones"]
    assert found == {**of_ada, "what": "everything"}


async def test_what_a_speaker_has_told_of_others_is_theirs_to_forget_after_an_import() -> None:
    """Also if the claim is about something of the other: it is stored with the other person."""
    told = {"entity_id": "ann", "speaker": "bo", "source_message_ids": ["b1"], "room_ids": ["r"]}
    claims = ["Ann has a cat", "The cat of Ann is ill"]
    chat = Talk([("forget", says(forget=["cat"]))])
    given = [{**told, "claim": claims[0]}, {**told, "claim": claims[1], "subject": "cat"}]
    assert await chat.cycle.memory.aimport_(given) == 2
    assert {(f.provenance, f.confidence) for f in await chat.facts("ann")} == {("third_party", 0.4)}
    await chat.say("forget what I said of the cat", user="bo")
    assert await chat.known("ann") == []


def test_a_forgetting_of_an_earlier_export_is_of_everything() -> None:
    at = {"entity_id": "ada", "at": "2026-03-14T12:00:00+00:00"}
    known = memory()
    assert known.import_({"entity_id": "ada", "tombstones": [at]}) == 1
    assert known.export("ada")["tombstones"] == [{**at, "what": "everything"}]
    with pytest.raises(ParameterError, match=r"tombstones\[0\]: it has no key"):
        known.import_({"entity_id": "ada", "tombstones": [{**at, "what": ["newest"]}]})


@pytest.mark.parametrize("query", [None, "Oslo"])
def test_an_old_export_brings_back_neither_forgotten_fields_nor_forgotten_names(query: str | None) -> None:
    learned = {
        "claims": [{"claim": "Ada lives in Oslo", "type": "fact"}],
        "profiles": {"UserProfile": {"city": "Oslo"}},
        "names": [{"name": "Ada", "message_id": "m1"}],
    }
    room = Room(InMemoryStore(), json.dumps(learned), length=2)
    room.says("I'm Ada and live in Oslo", "m1")
    room.replies()
    asyncio.run(room.evaluate(FactEvaluator(schemas=[UserProfile])))
    known = Memory(room.store, agent_id="sarah", clock=room.clock)
    export = known.export("user-1")
    assert "Oslo" in json.dumps(export["profiles"])
    assert "Ada" in json.dumps(export["own_names"])
    known.forget("user-1", query)
    known.import_(export)
    assert known.profile("user-1", UserProfile) == UserProfile()
    assert "Ada" not in json.dumps(known.export("user-1")["own_names"])
    assert known.facts("user-1", None) == []
    other = memory()
    other.import_(export)
    assert other.profile("user-1", UserProfile).city == "Oslo"


def test_claims_from_elsewhere_need_little() -> None:
    known = memory()
    claims: list[dict[str, Any]] = [
        {"entity_id": "ada", "claim": "Ada bakes"},
        {"entity_id": "ada", "claim": "Ada feels tired", "type": "status", "slot": "mood"},
        {
            "entity_id": "ada",
            "claim": "Ada moved",
            "first_seen_at": "2020-05-01",
            "source_message_ids": ["x1"],
        },
    ]
    assert known.import_(claims) == 3
    assert known.import_(claims) == 0
    facts = {fact.claim: fact for fact in known.facts("ada", None)}
    assert facts["Ada bakes"].confidence == 0.6
    assert facts["Ada feels tired"].expires_at is not None
    assert facts["Ada moved"].first_seen_at.year == 2020
    again = known.remember("ada", "Ada bakes", source="m1")
    assert (again.id, again.mention_count) == (facts["Ada bakes"].id, 2)


def test_all_bad_records_are_reported_with_index_and_field_and_nothing_is_imported() -> None:
    known = memory()
    export = lived().export("user-1")
    export["status"][0] |= {"confidence": "high", "first_seen_at": "yesterday", "state": "lost"}
    export["goals"][0].pop("name")
    export["thoughts"].append("a text")
    records: list[Any] = [
        {"entity_id": "ada", "claim": "Ada bakes"},
        {"entity_id": "ada", "claim": 3},
        {"entity_id": "", "claim": "Ada bakes"},
        {"entity_id": "ada", "claim": f"The key is {SECRET}"},
        {"entity_id": "ada", "claim": "Ada bakes", "sluice": "x"},
        {"entity_id": "ada", "agent_id": "other"},
        "a text",
        export,
        {"entity_id": "ada", "clam": "Ada bakes"},
        {"entity_id": "ada", "claim": "Ada bakes", "room_ids": "room-1"},
        {
            "entity_id": "ada",
            "claim": "Ada bakes",
            "first_seen_at": "2026-05-01",
            "last_seen_at": "2020-05-01",
        },
    ]
    with pytest.raises(ParameterError) as caught:
        known.import_(records)
    told = str(caught.value)
    for wanted in (
        "records[1].claim: an int does not fit",
        "records[2].entity_id: expected a non-empty text, got ''",
        "records[3].claim: it holds a secret",
        "records[4].sluice: there is no such field",
        "records[5].agent_id: expected 'sarah', got 'other'",
        "records[6]: expected a mapping, got 'a text'",
        "records[7].status[0].confidence: a str does not fit",
        "records[7].status[0].first_seen_at: expected a time as ISO 8601, got 'yesterday'",
        "records[7].status[0].state: expected one of 'active'",
        "records[7].goals[0].name: it is missing",
        f"records[7].thoughts[{len(export['thoughts']) - 1}]: expected a mapping",
        "records[8].clam: there is no such field. Did you mean 'claim'?",
        "records[8].claim: it is missing",
        "records[9].room_ids: a str does not fit",
        "records[10].last_seen_at: it is before first_seen_at.",
    ):
        assert wanted in told
    assert SECRET not in told
    assert known.facts("ada", None) == known.facts("user-1", None) == []


def test_a_single_claim_needs_no_list() -> None:
    known = memory()
    assert known.import_({"entity_id": "ada", "claim": "Ada bakes"}) == 1
    assert [fact.claim for fact in known.facts("ada")] == ["Ada bakes"]
    with pytest.raises(
        ParameterError, match=r"record\.text: there is no such field.*record\.claim: it is missing"
    ):
        known.import_({"entity_id": "ada", "text": "Ada bakes"})


AT: dict[str, Any] = {"entity_id": "ada", "at": "2026-03-14T12:00:00+00:00"}
TOLD: dict[str, Any] = {**AT, "source_message_ids": ["m1"], "room_ids": ["r"], "visibility": "entity"}
GOAL = {"id": "g", "room_id": "r", "entity_id": "ada", "name": "Find a flat"}


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        ({"tombstones": [{"at": AT["at"]}]}, "tombstones[0].entity_id: it is missing"),
        ({"tombstones": [{**AT, "at": "soon"}]}, "tombstones[0].at: expected a time as ISO 8601, got 'soon'"),
        ({"own_names": [{"name": "Ada"}]}, "own_names[0].names: expected a list of names"),
        ({"own_names": [{"names": ["Ada"]}]}, "own_names[0].names[0]: expected a mapping"),
        ({"own_names": [{"names": [{"nam": "Ada"}]}]}, "own_names[0].names[0].name: it is missing"),
        ({"profiles": [{"schema": "P", "city": "Oslo"}]}, "profiles[0].fields: expected a mapping of fields"),
        ({"profiles": [{"schema": "P", "fields": {"city": "Oslo"}}]}, "profiles[0].fields.city: expected a"),
        ({"profiles": [{"schema": "P", "fields": {"a": TOLD}}]}, "profiles[0].fields.a.value: it is missing"),
        (
            {"profiles": [{"schema": "P", "fields": {"a": {**TOLD, "value": 1, "at": "soon"}}}]},
            "profiles[0].fields.a.at: expected a time as ISO 8601, got 'soon'",
        ),
        (
            {"profiles": [{"schema": "P", "fields": {"a": {**TOLD, "value": {"b": 1 + 2j}}}}]},
            "profiles[0]: a record holds only JSON values, and complex is not one",
        ),
        (
            {"goals": [{**GOAL, "objectives": [{"description": "x"}, {"name": "y"}, "z"]}]},
            "records[1].goals[0].objectives[1].description: it is missing. records[1].goals[0].objectives[2]: exp",
        ),
        ({"facts": [], "claim": "x", "origin": {"a": {1}}}, "records[1].facts: there is no such field"),
        ({"claim": "Ada bakes", "origin": {"a": {1}}}, "a record holds only JSON values, and set is not one"),
        ({"claim": "Ada bakes", "room_ids": [{"a": 1}]}, "records[1].room_ids: a list does not fit"),
    ],
    ids=repr,
)
def test_a_record_that_no_reader_could_use_is_a_mistake(given: dict[str, Any], mistake: str) -> None:
    """And nothing of what stands beside it is written."""
    known = memory()
    with pytest.raises(ParameterError) as caught:
        known.import_([{"entity_id": "ada", "claim": "Ada sails"}, {"entity_id": "ada", **given}])
    assert mistake in str(caught.value)
    assert known.facts("ada") == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{"entity_id": "ada"}], "records[0]: it has neither a claim nor a list"),
        ({"entity_id": "ada", "agent_id": "sarah"}, "record: it has neither a claim nor a list"),
        (
            {"entity_id": "ada", "goals": [GOAL], "statuses": []},
            "statuses: there is no such list. Did you mean 'status'?",
        ),
        (
            {"entity_id": "ada", "goals": [{**GOAL, "stauts": "DONE"}]},
            "goals[0].stauts: there is no such field. Did you",
        ),
    ],
    ids=repr,
)
def test_what_an_import_leaves_out_is_reported(
    given: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an error: a newer version may have written it."""
    assert memory().import_(given) == ("goals" in given)
    assert caplog.text.count(told) == 1


def test_nothing_is_left_out_of_an_export(caplog: pytest.LogCaptureFixture) -> None:
    export = lived().export("user-1")
    known = memory()
    known.import_([export, {key: value for key, value in export.items() if value}])
    known.import_(known.export("nobody"))
    assert not caplog.records


def test_an_export_needs_none_of_its_empty_lists() -> None:
    known = memory()
    export = {key: value for key, value in known.export("ada").items() if value}
    assert known.import_(export) == known.import_([export, {"entity_id": "ada"}]) == 0


@pytest.mark.parametrize("kind", ["status", "profiles", "relationships", "goals", "thoughts", "own_names"])
def test_no_record_with_a_secret_is_imported(kind: str) -> None:
    """In whichever field somebody may have written it."""
    fields = {
        "status": "claim",
        "profiles": "note",
        "goals": "name",
        "thoughts": "text",
        "own_names": "names",
    }
    export = lived().export("user-1")
    field, told = fields.get(kind, "metadata"), f"The key is {SECRET}"
    first: Any = next(iter(export[kind]), None)
    export[kind] = [{**(first or {}), field: {"note": told} if field == "metadata" else told}]
    with pytest.raises(ParameterError, match="it holds a secret") as caught:
        memory().import_(export)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("wrong", ["a text", 3, None, {"claims": []}])
def test_an_object_that_is_not_an_export_is_refused(wrong: Any) -> None:
    with pytest.raises(ParameterError, match="nothing is imported"):
        memory().import_(wrong)


def test_a_model_is_not_needed_and_not_asked() -> None:
    model = Scripted(answers=["{}"])
    known = memory(evaluator_model=model, fact_rules=FactRules(status_ttl=timedelta(days=1)))
    known.import_(
        [{"entity_id": "ada", "claim": "Ada bakes"}, {"entity_id": "ada", "claim": "Ada never bakes"}]
    )
    assert model.calls == 0


# Ids ----------------------------------------------------------------------------------------------


def test_an_id_confirms_no_guess_of_a_claim(any_store: BaseStore) -> None:
    """Without the entity's key in the store, the same claim has another id; with it, it is one record."""
    one, other = memory(any_store), memory()
    fact = one.remember("ada", "Ada sails", source="m1")
    assert fact.id != other.remember("ada", "Ada sails", source="m1").id
    assert fact.id != one.remember("bob", "Ada sails", source="m1").id
    assert memory(any_store).remember("ada", "Ada sails", source="m2").id == fact.id
    assert len(one.facts("ada")) == 1


def test_forgetting_everything_forgets_the_key_of_the_ids(any_store: BaseStore) -> None:
    known = memory(any_store)
    before = known.remember("ada", "Ada sails").id
    export = known.export("ada")
    assert export["keys"]
    assert known.forget("ada") == 1
    assert known.export("ada")["keys"] == []
    assert known.remember("ada", "Ada sails").id != before


def test_an_imported_claim_with_an_id_of_another_store_is_recognised() -> None:
    """An entity that is known already keeps its key, so the ids of an import are not those of this store."""
    one, other = memory(), memory()
    fact = one.remember("ada", "Ada sails", source="m1")
    other.remember("ada", "Ada bakes", source="m2")
    other.import_(one.export("ada"))
    again = other.remember("ada", "Ada sails.", source="m3")
    assert (again.id, again.mention_count) == (fact.id, 2)
    assert len(other.facts("ada")) == 2


def test_a_claim_that_both_stores_know_is_there_once() -> None:
    one, other = memory(), memory()
    one.remember("ada", "Ada sails", source="m1")
    one.remember("ada", "Ada bakes", source="m2")
    known = other.remember("ada", "Ada sails", source="m3")
    assert other.import_(one.export("ada")) > 0
    assert sorted(fact.claim for fact in other.facts("ada")) == ["Ada bakes", "Ada sails"]
    assert known in other.facts("ada")


def test_a_claim_that_holds_again_or_as_another_type_is_there_once_too() -> None:
    one, other = memory(), memory()
    for claim in ("Ada sails", "Ada bakes"):
        one.remember("ada", claim, type="status")
    for source, value in enumerate(("sails", "rows", "sails")):
        other.remember("ada", f"Ada {value}", type="status", slot="sport", value=value, source=f"m{source}")
    other.remember("ada", "Ada bakes")
    before = other.facts("ada", None)
    assert other.import_(one.export("ada")) == 0
    assert other.import_([{"entity_id": "ada", "claim": "Ada bakes", "type": "status"}]) == 0
    assert other.facts("ada", None) == before


SAILS = {"entity_id": "ada", "claim": "Ada sails"}


@pytest.mark.parametrize(
    "given",
    [
        [SAILS, SAILS],
        [{**SAILS, "id": "k1"}, {**SAILS, "id": "k2"}],
        [{**SAILS, "id": "k1"}, SAILS],
        [SAILS, {**SAILS, "id": "k1", "claim": "Ada sails."}],
        [{**SAILS, "id": "k1", "type": "status"}, SAILS],
    ],
    ids=repr,
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_claim_that_is_imported_twice_is_there_once(
    any_store: BaseStore, given: list[Any], at_once: bool
) -> None:
    """Also with another id: programs number the records that they import."""
    known = memory(any_store)
    assert sum(map(known.import_, [given] if at_once else given)) == 1
    assert len(known.facts("ada", None)) == 1


@pytest.mark.parametrize(
    "first",
    [{"valid_to": "2020-01-01"}, {"expires_at": "2020-01-01T00:00:00Z"}, {"valid_from": "2090-01-01"}],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_claim_that_does_not_hold_now_keeps_no_import_of_it_away(
    first: dict[str, str], at_once: bool
) -> None:
    given = [{**SAILS, "id": "k1", "type": "status", **first}, {**SAILS, "id": "k2", "type": "status"}]
    known = memory()
    assert sum(map(known.import_, [given] if at_once else given)) == 2
    assert "k2" in {fact.id for fact in known.facts("ada", None)}


def test_exports_of_two_stores_that_know_the_same_are_there_once() -> None:
    one, other, known = memory(), memory(), memory()
    known.remember("ada", "Ada bakes")
    for each in (one, other):
        each.remember("ada", "Ada sails", source="m1")
        known.import_(each.export("ada"))
    assert sorted(fact.claim for fact in known.facts("ada")) == ["Ada bakes", "Ada sails"]


@pytest.mark.parametrize("key", [None, {}, {"key": 3}, {"key": "no hex"}])
def test_an_unusable_key_is_a_mistake(key: Any) -> None:
    export = {**memory().export("ada"), "keys": [key]}
    with pytest.raises(ParameterError, match=r"keys\[0\]"):
        memory().import_(export)


@pytest.mark.parametrize("who", [None, "", 7])
def test_a_record_of_nobody_has_its_other_mistakes_listed_too(who: Any) -> None:
    record = {"entity_id": who, "claim": " ", "state": "lost"}
    with pytest.raises(ParameterError) as caught:
        memory().import_([record, {"entity_id": who, "claim": " "}])
    for mistake in ("records[0].entity_id", "records[0].state", "records[1].entity_id", "records[1].claim"):
        assert mistake in str(caught.value)


@pytest.mark.parametrize("levels", [60, 5_000])
@pytest.mark.parametrize("kind", [list, dict])
def test_values_that_are_nested_too_deeply_are_a_mistake(levels: int, kind: type) -> None:
    """And not an error of Python, which its destructors may print."""
    deep: Any = "x"
    for _ in range(levels):
        deep = [deep] if kind is list else {"a": deep}
    memory = EvaluationCycle(store=InMemoryStore()).memory
    profile = {"schema": "P", "fields": {"a": {"value": deep}}}
    claim = {"entity_id": "ada", "claim": "Ada sails", "origin": {"a": deep}}
    for given in ({"entity_id": "ada", "profiles": [profile]}, [claim], [deep]):
        with pytest.raises(ParameterError, match="nested deeper than 50 levels"):
            memory.import_(given)
    assert memory.import_([{**claim, "origin": {"a": {"b": ["c"]}}}]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"room_ids": {"value": "my password is hunter2xy"}},
        {"a": {"value": {"speaker": "AKIAIOSFODNN7EXAMPLE"}}},
    ],
)
def test_a_secret_in_a_profile_is_refused_under_any_name(fields: dict[str, Any]) -> None:
    memory = EvaluationCycle(store=InMemoryStore()).memory
    with pytest.raises(ParameterError, match="it holds a secret"):
        memory.import_({"entity_id": "ada", "profiles": [{"schema": "P", "fields": fields}]})


def test_long_texts_and_ids_of_an_earlier_export_are_imported() -> None:
    memory = EvaluationCycle(store=InMemoryStore()).memory
    long, who = "a walk by the sea " * 1_000, "ada" * 10_000
    sources = {"source_message_ids": [who], "room_ids": [who]}
    field = {"value": "Oslo", "at": "2026-01-01", "visibility": "entity", **sources}
    export = {
        "entity_id": who,
        "profiles": [{"schema": "P", "entity_id": who, "fields": {"city": field}}],
        "own_names": [{"names": [{"name": "Ada", "speaker": who, "source_message_ids": [who]}]}],
        "thoughts": [{"id": "t", "text": long, "room_id": "r", "at": "2026-01-01"}],
        "goals": [{"id": "g", "room_id": "r", "entity_id": who, "name": long}],
    }
    assert memory.import_(export) == 4
