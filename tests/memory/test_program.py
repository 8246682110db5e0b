"""A program's own door to a memory: search, remember, edit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.errors import ParameterError
from arbiter.memory import Character, EvaluationCycle, FactRules, Memory, Objective
from arbiter.memory.stores import MemoryStore, namespace
from tests.memory.dialogue_support import Chat, fact
from tests.memory.facts_support import relations
from tests.memory.memory_support import Clock
from tests.scripted import Scripted

SECRET = "The key is sk-live-4eC39HqLyjWDarjtT1zdp7dc"
Do = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    """Calls a method of a memory, or its async twin."""

    def called(memory: Memory, name: str, *args: Any, **options: Any) -> Any:
        if request.param == "sync":
            return getattr(memory, name)(*args, **options)
        return asyncio.run(getattr(memory, f"a{name}")(*args, **options))

    return called


def memory(store: BaseStore | None = None, **options: Any) -> Memory:
    return EvaluationCycle(store=InMemoryStore() if store is None else store, **options).memory


# Search -------------------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_search_finds_the_facts_that_fit_best_first(any_store: BaseStore, do: Do) -> None:
    known = memory(any_store)
    for claim in ("Ada has a cat called Pixel", "Ada lives in Oslo", "Ada's cat likes fish"):
        do(known, "remember", "ada", claim)
    do(known, "remember", "bob", "Bob has a cat")
    found = do(known, "search", "a cat called what?", "ada")
    assert [fact.claim for fact in found][:2] == ["Ada has a cat called Pixel", "Ada's cat likes fish"]
    assert [fact.claim for fact in do(known, "search", "cat", "ada", limit=1)] in (
        ["Ada has a cat called Pixel"],
        ["Ada's cat likes fish"],
    )
    assert do(known, "search", "zebra", "ada") == []


def test_search_by_meaning_if_the_store_has_embeddings(any_indexed_store: BaseStore, do: Do) -> None:
    known = memory(any_indexed_store)
    do(known, "remember", "ada", "Ada lives in Seattle")
    do(known, "remember", "ada", "Ada keeps a dog")
    assert do(known, "search", "SEATTLE?", "ada")[0].claim == "Ada lives in Seattle"


def test_search_leaves_out_what_is_superseded_or_expired(do: Do) -> None:
    clock = Clock()
    model = Scripted(answers=[relations("supersedes")])
    known = memory(clock=clock, evaluator_model=model)
    do(known, "remember", "ada", "Ada lives in Oslo")
    do(known, "remember", "ada", "Ada lives in Rome", type="status")
    assert [fact.claim for fact in do(known, "search", "Ada lives in", "ada")] == ["Ada lives in Rome"]
    clock.pass_by(days=4000)
    assert do(known, "search", "Ada lives in", "ada") == []


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        ("search", [None, "ada"], "search: query: expected a text, got None."),
        ("register_entity", ["ada", 7], "register_entity: names: expected a text, got 7."),
        ("register_entity", [7, "Ada"], "register_entity: names: expected a text, got 7."),
        ("create_goal", ["room", "Bake", [7]], "goal 'g': objectives: expected an Objective, got 7."),
        (
            "create_goal",
            ["room", "Bake", Objective(description=7)],  # type: ignore[arg-type]
            "goal 'g': objectives: expected a text, got 7.",
        ),
        ("create_goal", ["room", "Bake", None], "goal 'g': objectives: expected an Objective, got None."),
    ],
)
def test_what_is_no_text_is_an_error_that_names_it(method: str, given: Any, expected: str, do: Do) -> None:
    known = memory()
    with pytest.raises(ParameterError, match=f"^{re.escape(expected)}$"):
        do(known, method, *given, **({"entity_id": "ada", "id": "g"} if method == "create_goal" else {}))
    assert known.goals("room") == []


def test_a_source_that_is_no_text_is_an_error() -> None:
    wrong: Any = 7
    with pytest.raises(ParameterError, match=r"remember: source: expected a text, got 7\."):
        memory().remember("ada", "Ada bakes", source=wrong)


def test_a_bio_that_is_no_text_is_an_error() -> None:
    wrong: Any = 7
    with pytest.raises(ParameterError, match=r"bio: expected texts, got 7\."):
        Character("Sarah", wrong)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_is_no_number_from_1_is_an_error(limit: Any) -> None:
    with pytest.raises(ParameterError, match="limit"):
        memory().search("cat", "ada", limit=limit)


# Remember -----------------------------------------------------------------------------------------


def test_what_a_program_remembers_is_a_fact_like_any_other(any_store: BaseStore, do: Do) -> None:
    clock = Clock()
    known = memory(any_store, clock=clock)
    made = do(
        known, "remember", "ada", "Ada lives in Oslo", slot="residence.city", value="Oslo", source="form-1"
    )
    assert known.facts("ada") == [made]
    assert (made.subject, made.speaker, made.provenance, made.confidence) == (
        "ada",
        "ada",
        "self_reported",
        0.6,
    )
    assert (made.slot, made.value, made.source_message_ids) == ("residence.city", "Oslo", ("form-1",))
    assert made.first_seen_at == clock.now
    clock.pass_by(minutes=1)
    assert do(known, "remember", "ada", "Ada lives in Oslo", source="form-1").mention_count == 1
    clock.pass_by(minutes=1)
    assert do(known, "remember", "ada", "Ada lives in Oslo", source="form-2").mention_count == 2


@pytest.mark.parametrize(
    ("claim", "options", "reason"),
    [
        (SECRET, {}, "it holds a secret"),
        ("Her code", {"slot": "password", "value": "hunter2"}, "it holds a secret"),
        ("Ada has diabetes", {}, "allow_sensitive=True"),
        ("Ada likes it", {"sensitivity": "sensitive"}, "allow_sensitive=True"),
        ("Ada thinks so", {"type": "opinion"}, "store_opinions=True"),
        ("Sarah is a baker", {}, "the agent's own bio says it"),
        ("x" * 2001, {}, "longer than 2,000 characters"),
        (" ", {}, "expected a non-empty text"),
        ("Ada bakes", {"slot": 3}, "slot: expected a text"),
        ("Ada bakes", {"value": "x" * 2001}, "value: expected a text, not longer than 2,000 characters"),
        ("Ada bakes", {"type": "rumour"}, "expected one of 'fact', 'status', 'opinion', got 'rumour'"),
    ],
)
def test_a_claim_that_may_not_be_stored_is_an_error_that_says_why(
    claim: str, options: Any, reason: str, do: Do
) -> None:
    known = memory(character=Character("Sarah", ["Sarah is a baker."]))
    with pytest.raises(ParameterError, match=reason) as caught:
        do(known, "remember", "ada", claim, **options)
    assert known.facts("ada", None) == []
    assert "sk-live" not in str(caught.value)


# Edit ---------------------------------------------------------------------------------------------


def test_an_edited_claim_corrects_the_old_one_and_keeps_its_evidence(any_store: BaseStore, do: Do) -> None:
    clock = Clock()
    known = memory(any_store, clock=clock)
    for source in ("m1", "m2"):
        clock.pass_by(minutes=1)
        old = known.remember("ada", "Ada lives in Olso", source=source)
    clock.pass_by(minutes=1)
    new = do(known, "edit", "ada", old.id, claim="Ada lives in Oslo", value="Oslo")
    assert known.facts("ada") == [new]
    assert (new.claim, new.value, new.supersedes) == ("Ada lives in Oslo", "Oslo", old.id)
    assert (new.confidence, new.mention_count, new.first_seen_at) == (0.72, 2, old.first_seen_at)
    assert new.source_message_ids == ("m1", "m2")
    [past] = [fact for fact in known.facts("ada", None) if fact.id == old.id]
    assert (past.state, past.superseded_by, past.valid_to) == ("corrected", new.id, clock.now)
    assert [fact.claim for fact in known.search("Olso", "ada")] == []
    clock.pass_by(minutes=1)
    assert known.remember("ada", "Ada lives in Oslo", source="m3").id == new.id


def test_other_fields_change_in_place(any_store: BaseStore, do: Do) -> None:
    known = memory(any_store)
    old = known.remember("ada", "Ada feels tired", slot="mood", value="tired")
    since = datetime(2025, 5, 1, tzinfo=UTC)
    new = do(known, "edit", "ada", old.id, type="status", valid_from=since, visibility="agent")
    assert known.facts("ada", None) == [new]
    assert (new.id, new.type, new.valid_from, new.visibility) == (old.id, "status", since, "agent")
    assert new.expires_at is not None
    assert do(known, "edit", "ada", old.id, type="fact").expires_at is None
    assert len(known.facts("ada", None)) == 1


@pytest.mark.parametrize("date", ["valid_from", "valid_to"])
def test_a_plan_that_is_put_off_by_an_edit_lives_longer(date: str, do: Do) -> None:
    clock = Clock()
    known = Memory(InMemoryStore(), clock=clock)
    plan = known.remember("ada", "Ada travels", type="status", slot="plan")
    do(known, "edit", "ada", plan.id, **{date: clock.now + timedelta(days=60)})
    clock.pass_by(days=61 if date == "valid_from" else 59)
    assert [fact.claim for fact in known.facts("ada")] == ["Ada travels"]


def test_a_past_fact_that_is_edited_stays_past(do: Do) -> None:
    clock = Clock()
    known = memory(clock=clock)
    city: Any = {"type": "status", "slot": "residence.city"}
    old = known.remember("ada", "Ada lives in Olso", value="Olso", **city)
    clock.pass_by(days=1)
    new = known.remember("ada", "Ada lives in Rome", value="Rome", **city)
    clock.pass_by(days=1)
    edited = do(known, "edit", "ada", old.id, claim="Ada lives in Oslo", value="Oslo")
    assert (edited.state, edited.superseded_by) == ("superseded", new.id)
    assert known.facts("ada") == [new]
    assert known.facts("ada", "superseded") == [edited]
    then = [fact.claim for fact in known.facts("ada", as_of=clock.now - timedelta(days=1.5))]
    assert then == ["Ada lives in Oslo"]
    assert do(known, "edit", "ada", old.id, claim="Ada lives in Oslo", value="Oslo") == edited


def test_a_fact_that_a_plan_is_to_replace_is_edited_with_its_end(do: Do) -> None:
    clock = Clock()
    known = memory(clock=clock)
    city: Any = {"type": "status", "slot": "residence.city"}
    old = known.remember("ada", "Ada lives in Olso", value="Olso", **city)
    clock.pass_by(days=1)
    moves_at = clock.now + timedelta(days=30)
    plan = known.remember("ada", "Ada lives in Rome", value="Rome", valid_from=moves_at, **city)
    edited = do(known, "edit", "ada", old.id, claim="Ada lives in Oslo", value="Oslo")
    assert (edited.state, edited.valid_to, edited.superseded_by) == ("active", moves_at, plan.id)
    known.forget("ada", id=plan.id)
    clock.pass_by(days=60)
    assert [fact.claim for fact in known.facts("ada")] == ["Ada lives in Oslo"]


@pytest.mark.parametrize("ada", ["ada@example.com", "a" * 300])
def test_an_undo_finds_what_was_said_since_of_users_with_any_id(ada: str) -> None:
    clock = Clock()
    known = memory(clock=clock, fact_rules=FactRules(undo_within=timedelta(days=7)))
    city: Any = {"type": "status", "slot": "residence.city"}
    known.remember(ada, "Ada lives in Oslo", value="Oslo", **city)
    known.forget(ada)
    clock.pass_by(days=1)
    new = known.remember(ada, "Ada lives in Rome", value="Rome", **city)
    assert (known.undo(ada), known.facts(ada)) == (1, [new])
    moves_at = clock.now + timedelta(days=30)
    plan = known.remember(ada, "Ada lives in Bonn", value="Bonn", valid_from=moves_at, **city)
    known.forget(ada, id=plan.id)
    assert known.undo(ada) == 1
    clock.pass_by(days=60)
    assert [fact.claim for fact in known.facts(ada)] == ["Ada lives in Bonn"]


async def test_an_undo_reads_what_was_said_since_once_for_each_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    real = MemoryStore.alinked

    async def counting(self: MemoryStore, *args: Any) -> Any:
        read.append(args)
        return await real(self, *args)

    known = memory(fact_rules=FactRules(undo_within=timedelta(days=7)))
    claims = [
        {"entity_id": "ada", "claim": f"Ada lives in {n}", "type": "status", "slot": "home", "value": str(n)}
        for n in range(20)
    ]
    await known.aimport_(claims)
    await known.aforget("ada")
    monkeypatch.setattr(MemoryStore, "alinked", counting)
    assert await known.aundo("ada") == 20
    assert len(read) == 1


def test_an_edited_fact_ends_with_the_plan_that_an_undo_restores() -> None:
    clock = Clock()
    known = memory(clock=clock, fact_rules=FactRules(undo_within=timedelta(days=7)))
    city: Any = {"type": "status", "slot": "residence.city"}
    old = known.remember("ada", "Ada lives in Olso", value="Olso", **city)
    clock.pass_by(days=1)
    moves_at = clock.now + timedelta(days=30)
    plan = known.remember("ada", "Ada lives in Rome", value="Rome", valid_from=moves_at, **city)
    known.edit("ada", old.id, claim="Ada lives in Oslo", value="Oslo")
    known.forget("ada", id=plan.id)
    assert known.undo("ada") == 1
    clock.pass_by(days=60)
    assert [fact.claim for fact in known.facts("ada")] == ["Ada lives in Rome"]


def test_editing_one_side_of_a_dispute_ends_it(do: Do) -> None:
    known = memory()
    one = known.remember("ada", "Ada eats nuts")
    other = known.remember("ada", "Ada never eats nuts in July")
    for side, rival in ((one, other), (other, one)):
        value = replace(side, state="disputed", contradicts=(rival.id,)).to_value()
        asyncio.run(known.store.aput(namespace("agent", "facts", "ada"), side.id, value))
    do(known, "edit", "ada", one.id, claim="Ada eats fruit")
    assert {fact.claim: fact.state for fact in known.facts("ada")} == {
        "Ada eats fruit": "active",
        "Ada never eats nuts in July": "active",
    }


async def test_what_was_inferred_from_a_corrected_fact_is_retracted(any_store: BaseStore) -> None:
    """Also what follows from that; what follows from other facts stays."""
    son, crete, cat = "User is Dave's son", "Dave was born in Crete", "User has a cat"
    father, cretan, fond = "The father of User is from Crete", "User is half Cretan", "User likes animals"

    def inferred(claim: str, *premises: str) -> dict[str, Any]:
        return fact(claim, derived_from=[*premises], source_message_ids=[])

    hear = {
        "Dave": [son, crete, cat],
        "Hm": [inferred(father, son, crete), inferred(fond, cat, son)],
        "So": inferred(cretan, father, son),
    }
    chat = Chat(hear, store=any_store, fact_rules=FactRules(chaining=True))
    for text in ("I'm Dave's son. He is from Crete.", "Hm", "So"):
        await chat.say(text)
    assert await chat.known() == sorted([son, crete, cat, father, fond, cretan])
    slip = await chat.fact(crete)
    await chat.cycle.memory.aedit("user-1", slip.id, claim="Dave was born in Malta")
    assert await chat.known() == sorted([son, "Dave was born in Malta", cat, fond])
    assert await chat.known(state="retracted") == sorted([father, cretan])


@pytest.mark.parametrize("by", ["edit", "message"])
async def test_what_a_user_has_said_stays_if_a_premise_of_it_was_wrong(by: str) -> None:
    """It was inferred first, and the user's own words are evidence of it."""
    son, crete, malta = "User is Dave's son", "Dave was born in Crete", "Dave was born in Malta"
    father = "The father of User is from Crete"
    hear = {
        "Dave": [son, crete],
        "Hm": fact(father, derived_from=[son, crete], source_message_ids=[]),
        "My father": father,
        "Sorry": malta,
    }
    chat = Chat(hear, {(crete, malta): "corrects"}, fact_rules=FactRules(chaining=True))
    for text in ("I'm Dave's son. He is from Crete.", "Hm", "My father is from Crete."):
        await chat.say(text)
    if by == "edit":
        await chat.cycle.memory.aedit("user-1", (await chat.fact(crete)).id, claim=malta)
    else:
        await chat.say("Sorry, he was born in Malta.")
    assert await chat.known() == sorted([son, malta, father])


@pytest.mark.lengthy
async def test_an_edit_lists_the_facts_once_however_many_follow_from_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if each follows from the one before, or the first of them from the last."""
    known = memory(fact_rules=FactRules(chaining=True))
    premise = await known.aremember("ada", "Ada lives in Oslo")
    exported = await known.aexport("ada")
    [first] = exported["facts"]
    chain = [
        {**first, "id": f"d{n}", "claim": f"Claim {n}", "derived_from": [f"d{n - 1}" if n else premise.id]}
        for n in range(400)
    ]
    inferred = [{**each, "source_message_ids": [], "provenance": "inferred"} for each in chain]
    known = memory(fact_rules=FactRules(chaining=True))
    await known.aimport_({**exported, "facts": [{**first, "derived_from": ["d399"]}, *inferred]})
    listed: list[Any] = []
    alist = MemoryStore.alist

    async def counted(store: MemoryStore, *given: Any, **options: Any) -> Any:
        listed.append(given)
        return await alist(store, *given, **options)

    monkeypatch.setattr(MemoryStore, "alist", counted)
    await known.aedit("ada", premise.id, claim="Ada lives in Bergen")
    assert len(listed) == 2
    assert [fact.claim for fact in await known.afacts("ada")] == ["Ada lives in Bergen"]


def test_an_edit_back_to_earlier_words_holds_again(do: Do) -> None:
    clock = Clock()
    known = memory(clock=clock)
    made = known.remember("ada", "Ada lives in Oslo")
    for claim in ("Ada lives in Bergen", "Ada lives in Oslo", "Ada lives in Bergen"):
        clock.pass_by(hours=1)
        made = do(known, "edit", "ada", made.id, claim=claim)
        assert [fact.claim for fact in known.facts("ada")] == [claim]
    assert len(known.facts("ada", "corrected")) == 3


def test_the_same_edit_again_changes_nothing_more(do: Do) -> None:
    known = memory()
    old = known.remember("ada", "Ada lives in Olso")
    new = do(known, "edit", "ada", old.id, claim="Ada lives in Oslo")
    again = do(known, "edit", "ada", old.id, claim="Ada lives in Oslo")
    assert (again.id, again.state) == (new.id, "active")
    assert [fact.id for fact in known.facts("ada")] == [new.id]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "expected at least one of claim, type"),
        ({"confidence": 1.0}, "it cannot be changed. Fields: claim"),
        ({"clam": "x"}, "Did you mean 'claim'"),
        ({"claim": SECRET}, "it holds a secret"),
        ({"claim": "Ada has diabetes"}, "allow_sensitive=True"),
        ({"claim": " "}, "expected a text"),
        ({"claim": 3}, "claim: an int does not fit"),
        ({"valid_to": "soon"}, "valid_to: expected a time as ISO 8601, got 'soon'"),
        ({"type": "rumour"}, "expected one of 'fact'"),
        ({"valid_from": "yesterday"}, "yesterday"),
        ({"claim": "Ada bakes"}, "says this already"),
    ],
)
def test_an_edit_that_cannot_be_is_an_error_and_changes_nothing(changes: Any, reason: str, do: Do) -> None:
    known = memory()
    known.remember("ada", "Ada bakes")
    old = known.remember("ada", "Ada lives in Oslo")
    with pytest.raises(ParameterError, match=reason) as caught:
        do(known, "edit", "ada", old.id, **changes)
    assert "sk-live" not in str(caught.value)
    assert old in known.facts("ada", None)
    assert len(known.facts("ada", None)) == 2


def test_another_entitys_record_cannot_be_edited(do: Do) -> None:
    known = memory()
    old = known.remember("bob", "Bob bakes")
    with pytest.raises(ParameterError, match="there is no record"):
        do(known, "edit", "ada", old.id, claim="Ada bakes")


def test_an_edit_may_become_sensitive_only_if_the_rules_allow_it() -> None:
    known = memory(fact_rules=FactRules(allow_sensitive=True))
    old = known.remember("ada", "Ada is fine")
    new = known.edit("ada", old.id, claim="Ada has diabetes")
    assert (new.sensitivity, new.visibility) == ("sensitive", "room")
