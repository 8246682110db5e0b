"""Facts hold from a date on, until a date, or as long as their kind does; readers go by the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from langgraph.store.base import BaseStore

from arbiter.memory import FactRules, open_store
from arbiter.memory.facts import ExtractedClaim
from arbiter.memory.reflection._prompt import FoundFact
from tests.memory.dialogue_support import Chat, fact, status
from tests.memory.memory_support import Clock

SEATTLE, PORTLAND, BERGEN = "User lives in Seattle", "User lives in Portland", "User lives in Bergen"
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
MOVES = {
    "in Seattle": status(SEATTLE, kind="home"),
    "January": status(PORTLAND, kind="home", valid_from="2027-01-01"),
    "March": status(PORTLAND, kind="home", valid_from="2027-03"),
    "then Bergen": status(BERGEN, kind="home", valid_from="2027-06"),
    "moved to Bergen": status(BERGEN, kind="home"),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("relation", ["supersedes", "contradicts"])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_move_in_the_future_takes_effect_then(
    any_store: BaseStore, relation: str, asynchronous: bool
) -> None:
    """Whatever of these the model calls it. No job runs in between: readers go by the clock."""
    chat = Chat(MOVES, relation, store=any_store, asynchronous=asynchronous)
    await chat.say("I live in Seattle.")
    await chat.say("From January on I live in Portland.")
    assert await chat.known() == [SEATTLE]
    assert sorted(await chat.notes("Where do I live?")) == [
        f"[conf=0.60, 2026-03-14, from 2027-01-01] {PORTLAND}",
        f"[conf=0.60, 2026-03-14, until 2026-12-31] {SEATTLE}",
    ]
    assert await chat.trust() == 50

    chat.clock.now = NEW_YEAR
    assert await chat.known() == [PORTLAND]
    assert await chat.known(state="superseded") == [SEATTLE]
    assert await chat.notes("Where do I live?") == [f"[conf=0.60, 2026-03-14] {PORTLAND}"]
    seattle, portland = await chat.fact(SEATTLE), await chat.fact(PORTLAND)
    assert (seattle.valid_to, portland.valid_from, seattle.superseded_by) == (NEW_YEAR, NEW_YEAR, portland.id)


async def test_a_move_that_is_called_off_leaves_the_old_home() -> None:
    stays = "User is not moving to Portland"
    chat = Chat(
        {**MOVES, "not moving": stays}, {(SEATTLE, PORTLAND): "supersedes", (PORTLAND, stays): "corrects"}
    )
    for text in ("I live in Seattle.", "From January on I live in Portland.", "I'm not moving after all."):
        await chat.say(text)
    chat.clock.now = NEW_YEAR
    assert {*await chat.known()} == {SEATTLE, stays}
    assert (await chat.fact(SEATTLE)).valid_to is None


@pytest.mark.parametrize("relation", ["corrects", "supersedes", "contradicts", "ends"])
async def test_a_plan_that_is_given_up_in_other_words_for_the_old_home_leaves_it(relation: str) -> None:
    stays = "User stays in Seattle"
    chat = Chat(
        {**MOVES, "after all": status(stays, kind="home")},
        {
            (SEATTLE, PORTLAND): "supersedes",
            (SEATTLE, stays): "duplicate",
            (PORTLAND, stays): relation,
        },
    )
    for text in ("I live in Seattle.", "From January on I live in Portland.", "I'll stay here after all."):
        await chat.say(text)
    assert await chat.notes("Where do I live?") == [f"[conf=0.72, 2026-03-14] {SEATTLE}"]
    chat.clock.now = NEW_YEAR
    assert await chat.known() == [SEATTLE]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("says", "stays"), [(SEATTLE, True), ("User stays here", True), (SEATTLE, False)])
async def test_a_plan_that_is_given_up_by_saying_the_old_home_again_leaves_it(
    says: str, stays: bool, named: bool, any_store: BaseStore
) -> None:
    """The model may know the claim again, by its words or its id; it then judges the plan by the message."""
    relations = {(SEATTLE, PORTLAND): "supersedes", (PORTLAND, says): "supersedes" if stays else "unrelated"}
    relations[SEATTLE, says] = "duplicate"
    chat = Chat(dict(MOVES), relations, store=any_store)
    await chat.say("I live in Seattle.")
    seattle = await chat.fact(SEATTLE)
    again = {"already_known": True, "known_id": seattle.id} if named or says != SEATTLE else {}
    chat.hear = {**MOVES, "here": {**MOVES["in Seattle"], "claim": says, **again}}
    await chat.say("From January on I live in Portland.")
    await chat.say("I am here.")
    assert (await chat.fact(SEATTLE)).mention_count == 2
    chat.clock.now = NEW_YEAR
    assert await chat.known() == [SEATTLE if stays else PORTLAND]


async def test_plans_that_follow_one_another_are_given_up_together() -> None:
    chat = Chat(MOVES, "supersedes")
    for text in (
        "I live in Seattle.",
        "In January I move to Portland,",
        "and then Bergen.",
        "I stay in Seattle.",
    ):
        await chat.say(text)
    chat.clock.now = NEW_YEAR + timedelta(days=200)
    assert await chat.known() == [SEATTLE]


async def test_without_a_model_a_fact_that_is_said_again_leaves_the_plan() -> None:
    chat = Chat(MOVES, "supersedes", max_llm_calls_per_turn=2)
    await chat.say("I live in Seattle.")
    await chat.say("From January on I live in Portland.")
    chat.cycle.max_llm_calls_per_turn = 1
    await chat.say("I live in Seattle.", room="another")
    chat.clock.now = NEW_YEAR
    assert await chat.known() == [PORTLAND]


@pytest.mark.parametrize("instead", ["2026-12", "2027-01-01"])
@pytest.mark.parametrize("relation", ["corrects", "ends"])
async def test_a_plan_that_took_the_place_of_another_leaves_the_old_home_when_it_is_called_off(
    instead: str, relation: str, any_store: BaseStore
) -> None:
    stays = "User is not moving to Bergen"
    hear = {"Bergen instead": status(BERGEN, kind="home", valid_from=instead), "not moving": stays}
    relations = {(old, new): "supersedes" for old in (SEATTLE, PORTLAND) for new in (PORTLAND, BERGEN)}
    chat = Chat({**MOVES, **hear}, {**relations, (BERGEN, stays): relation}, store=any_store)
    for text in ("I live in Seattle.", "From January on I live in Portland.", "No, in Bergen instead."):
        await chat.say(text)
    await chat.say("I'm not moving after all.")
    chat.clock.now = NEW_YEAR + timedelta(days=200)
    assert {*await chat.known()} == {SEATTLE, stays}


async def test_a_plan_that_is_put_forward_ends_all_that_it_replaces_earlier() -> None:
    hear = {"Bergen instead": status(BERGEN, kind="home", valid_from="2026-12")}
    sooner = {"sooner": status(BERGEN, kind="home", valid_from="2026-11")}
    relations = {(old, new): "supersedes" for old in (SEATTLE, PORTLAND) for new in (PORTLAND, BERGEN)}
    chat = Chat({**MOVES, **hear, **sooner}, relations)
    for text in (
        "I live in Seattle.",
        "From January on I live in Portland.",
        "No, in Bergen instead.",
        "Even sooner!",
    ):
        await chat.say(text)
    chat.clock.now = datetime(2026, 11, 2, tzinfo=UTC)
    assert await chat.known() == [BERGEN]


async def test_a_plan_that_is_forgotten_leaves_the_old_home() -> None:
    chat = Chat(MOVES, "supersedes")
    await chat.say("I live in Seattle.")
    await chat.say("From January on I live in Portland.")
    await chat.cycle.memory.aforget("user-1", id=(await chat.fact(PORTLAND)).id)
    chat.clock.now = NEW_YEAR
    assert await chat.known() == [SEATTLE]


async def test_a_plan_that_was_forgotten_by_mistake_takes_effect() -> None:
    chat = Chat(MOVES, "supersedes", fact_rules=FactRules(undo_within=timedelta(days=30)))
    await chat.say("I live in Seattle.")
    await chat.say("From January on I live in Portland.")
    await chat.cycle.memory.aforget("user-1", id=(await chat.fact(PORTLAND)).id)
    await chat.cycle.memory.aundo("user-1")
    assert await chat.known() == [SEATTLE]
    chat.clock.now = NEW_YEAR
    assert await chat.known() == [PORTLAND]


@pytest.mark.lengthy
async def test_a_plan_that_is_put_off_takes_effect_later() -> None:
    chat = Chat(MOVES, "supersedes")
    for text in ("I live in Seattle.", "From January on I live in Portland.", "It is March now: Portland."):
        chat.pass_by(days=1)
        await chat.say(text)
    chat.clock.now = NEW_YEAR
    assert await chat.known() == [SEATTLE]
    chat.clock.now = datetime(2027, 3, 1, tzinfo=UTC)
    assert await chat.known() == [PORTLAND]


@pytest.mark.lengthy
@pytest.mark.parametrize(("fields", "moved"), [({}, True), ({"already_known": True}, False)])
async def test_a_plan_that_comes_true_early_holds_from_then_on(fields: dict[str, Any], moved: bool) -> None:
    """Its words are said again without a date. A model that knows the plan can repeat it: it is shown the date."""
    chat = Chat({**MOVES, "Here": status(PORTLAND, kind="home", **fields)}, "supersedes")
    for text in ("I live in Seattle.", "From January on I live in Portland.", "Here I am in Portland."):
        chat.pass_by(days=1)
        await chat.say(text)
    assert ", about user-1, from 2027-01-01): User lives in Portland" in chat.model.prompt()
    assert await chat.known() == ([PORTLAND] if moved else [SEATTLE])


async def test_plans_follow_one_another() -> None:
    chat = Chat(MOVES, "supersedes")
    for text in ("I live in Seattle.", "From January on I live in Portland.", "And then Bergen, in June."):
        await chat.say(text)
    homes: list[list[str]] = []
    for month in ("2026-12", "2027-01", "2027-05", "2027-06"):
        chat.clock.now = datetime.fromisoformat(f"{month}-02T00:00:00+00:00")
        homes.append(await chat.known())
    assert homes == [[SEATTLE], [PORTLAND], [PORTLAND], [BERGEN]]


@pytest.mark.lengthy
async def test_a_sudden_move_replaces_the_present_home_and_the_plan() -> None:
    chat = Chat(MOVES, "supersedes")
    for text in ("I live in Seattle.", "From January on I live in Portland.", "I moved to Bergen."):
        chat.pass_by(days=1)
        await chat.say(text)
    assert await chat.known() == [BERGEN]
    chat.clock.now = NEW_YEAR
    assert await chat.known() == [BERGEN]


@pytest.mark.lengthy
async def test_a_home_that_is_moved_back_to_begins_anew() -> None:
    chat = Chat({**MOVES, "back in Seattle": status(SEATTLE, kind="home")}, "supersedes")
    await chat.say("I live in Seattle.")
    await chat.say("From January on I live in Portland.")
    chat.clock.now = datetime(2027, 5, 1, tzinfo=UTC)
    await chat.say("I am back in Seattle.")
    assert await chat.known() == [SEATTLE]
    assert [(one.claim, one.state) for one in await chat.facts()] == [
        (SEATTLE, "active"), (PORTLAND, "superseded"), (SEATTLE, "superseded"),
    ]  # fmt: skip


@pytest.mark.lengthy
async def test_a_plan_survives_the_end_of_the_process(tmp_path: Any) -> None:
    with open_store(tmp_path / "memory.db") as store:
        chat = Chat(MOVES, "supersedes", store=store)
        await chat.say("I live in Seattle.")
        await chat.say("From January on I live in Portland.")
    with open_store(tmp_path / "memory.db") as store:
        assert await Chat(MOVES, store=store, clock=Clock(NEW_YEAR)).known() == [PORTLAND]


# Dates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "since", "until"),
    [
        ("2019", "2019-01-01", "2020-01-01"),
        (2019, "2019-01-01", "2020-01-01"),
        ("2019-05", "2019-05-01", "2019-06-01"),
        ("2019-12", "2019-12-01", "2020-01-01"),
        ("2019/5/7", "2019-05-07", "2019-05-08"),
        (" 2019-05-31 ", "2019-05-31", "2019-06-01"),
        ("2019-05-31T18:30:00+02:00", "2019-05-31T16:30", "2019-05-31T16:30"),
        ("2019-05-31T18:30:00Z", "2019-05-31T18:30", "2019-05-31T18:30"),
        ("2019-05-31T00:00", "2019-05-31", "2019-05-31"),
        ("20190531", "2019-05-31", "2019-06-01"),
        ("2019-W22-5", "2019-05-31", "2019-06-01"),
        ("2019-W22", "2019-05-27", "2019-06-03"),
        ("2019-Q4", "2019-10-01", "2020-01-01"),
        ("summer 2019", "2019-06-01", "2019-09-01"),
        ("winter 2019", "2019-12-01", "2020-03-01"),
        ("mid-2019", "2019-05-01", "2019-09-01"),
        ("end of Q2 2019", "2019-04-01", "2019-07-01"),
        ("spring/summer 2019", "2019-03-01", "2019-09-01"),
        ("end-of-May-2019", "2019-01-01", "2020-01-01"),
    ],
)
def test_a_year_a_month_a_day_and_a_time_are_dates(written: Any, since: str, until: str) -> None:
    fields: dict[str, Any] = {"claim": "X", "type": "fact", "valid_from": written, "valid_to": written}
    claim = ExtractedClaim(**fields).as_claim()
    assert claim.valid_from == datetime.fromisoformat(since).replace(tzinfo=UTC)
    assert claim.valid_to == datetime.fromisoformat(until).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "written", ["soon", "2019-13", "2019-02-30", "19", "0000", True, None, [2019], "9" * 5000]
)
def test_an_invalid_date_is_ignored(written: Any) -> None:
    fields: dict[str, Any] = {"claim": "X", "type": "fact", "valid_from": written, "valid_to": written}
    claim = ExtractedClaim(**fields).as_claim()
    assert (claim.valid_from, claim.valid_to) == (None, None)


@pytest.mark.lengthy
async def test_a_date_is_one_of_the_clocks_zone() -> None:
    """In Tokyo the year begins nine hours before it does in London."""
    tokyo = timezone(timedelta(hours=9))
    chat = Chat(MOVES, "supersedes", clock=Clock(datetime(2026, 12, 30, 12, tzinfo=tokyo)))
    await chat.say("I live in Seattle.")
    await chat.say("From January on I live in Portland.")
    chat.clock.now = datetime(2026, 12, 31, 23, 59, tzinfo=tokyo)
    assert await chat.known() == [SEATTLE]
    assert f"[conf=0.60, 2026-12-30, from 2027-01-01] {PORTLAND}" in await chat.notes()
    await chat.say("Forget nothing of it.")
    assert f"(status, about user-1, from 2027-01-01): {PORTLAND}" in chat.model.prompt()
    chat.clock.now = datetime(2027, 1, 1, tzinfo=tokyo)
    assert await chat.known() == [PORTLAND]
    chat.clock.now = datetime(2027, 1, 2, 1, tzinfo=tokyo)
    await chat.say("From January on I live in Portland.")
    assert await chat.notes() == [f"[conf=0.72, 2027-01-02] {PORTLAND}"]


@pytest.mark.parametrize("hours", [9, -8])
@pytest.mark.parametrize(
    "dates",
    [
        {"valid_from": "0001-01-01"},
        {"valid_from": "9999-12-31T23:59:59Z", "kind": "mood"},
        {"valid_to": "9999-12-31T23:59:59Z"},
        {"valid_to": "9999-12-31T23:59:59-11:00"},
    ],
)
async def test_the_first_and_the_last_dates_of_the_calendar_fit_in_every_zone(
    dates: dict[str, Any], hours: int
) -> None:
    """Models write them for "always"; one of them would cost the user every note, or the whole answer."""
    zone = timezone(timedelta(hours=hours))
    chat = Chat({"sail": status("User sails", **dates)}, clock=Clock(NEW_YEAR.astimezone(zone)))
    await chat.say("I sail.")
    notes = await chat.notes()
    assert [note.partition("] ")[2] for note in notes] == ["User sails"]


async def test_a_program_may_give_the_last_dates_of_the_calendar() -> None:
    chat = Chat({}, clock=Clock(NEW_YEAR.astimezone(timezone(timedelta(hours=9)))))
    last = datetime.max.replace(tzinfo=timezone(timedelta(hours=-8)))
    memory = chat.cycle.memory
    await memory.aimport_([{"entity_id": "user-1", "claim": "User sails", "first_seen_at": last.isoformat()}])
    known = await memory.aremember("user-1", "User skis")
    await memory.aedit("user-1", known.id, valid_to=last)
    assert len(await chat.notes()) == 2
    assert len(await memory.afacts("user-1", as_of=last)) == 1


async def test_a_status_may_live_for_ever() -> None:
    chat = Chat({"sad": status("User is sad", kind="mood")}, fact_rules=FactRules(status_ttl=timedelta.max))
    await chat.say("I am sad.")
    chat.pass_by(days=365_000)
    assert await chat.known() == ["User is sad"]


async def test_dates_of_reflections_are_of_the_same_zone() -> None:
    tokyo = timezone(timedelta(hours=9))
    found = FoundFact.model_validate({"claim": "X", "type": "fact", "validFrom": "2027-01-01"})
    assert found.sourced({}, tokyo).valid_from == datetime(2027, 1, 1, tzinfo=tokyo)


async def test_an_end_of_validity_is_respected(any_store: BaseStore) -> None:
    stay = status("User is in Rome", kind="home", valid_to="2026-03-20")
    chat = Chat({"Rome until Friday": stay}, store=any_store)
    await chat.say("I'm in Rome until Friday.")
    chat.clock.now = datetime(2026, 3, 20, 23, tzinfo=UTC)
    assert await chat.notes() == ["[conf=0.60, 2026-03-14, until 2026-03-20] User is in Rome"]
    chat.clock.now = datetime(2026, 3, 21, tzinfo=UTC)
    assert (await chat.known(), await chat.notes()) == ([], [])


@pytest.mark.lengthy
async def test_a_stay_can_be_prolonged() -> None:
    stay = {"claim": "User is in Rome", "type": "status", "kind": "home"}
    hear = {"Friday": {**stay, "valid_to": "2026-03-20"}, "Sunday": {**stay, "valid_to": "2026-03-22"}}
    chat = Chat(hear)
    await chat.say("I'm in Rome until Friday.")
    await chat.say("I stay until Sunday.")
    chat.clock.now = datetime(2026, 3, 22, 23, tzinfo=UTC)
    assert await chat.known() == ["User is in Rome"]
    chat.clock.now = datetime(2026, 3, 23, tzinfo=UTC)
    assert await chat.known() == []


async def test_what_was_over_when_it_was_said_is_a_fact_for_ever() -> None:
    lived = "User lived in Rome from 2015 to 2019"
    chat = Chat({"Rome": fact(lived, valid_from="2015", valid_to="2019")})
    await chat.say("I lived in Rome from 2015 to 2019.")
    chat.pass_by(days=100)
    assert await chat.known() == [lived]
    assert (await chat.fact(lived)).valid_from == datetime(2015, 1, 1, tzinfo=UTC)


# Kinds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "days", "lasts"),
    [
        ({"kind": "job"}, 3000, True),
        ({"kind": "Job"}, 3000, True),
        ({"slot": "employment.job"}, 3000, True),
        ({"kind": "banana", "slot": "residence.city"}, 3000, True),
        ({}, 35, True),  # nothing is known of its kind: for a year
        ({"kind": "banana"}, 364, True),
        ({"kind": "banana"}, 365, False),
        ({"kind": "mood"}, 1, True),
        ({"kind": "mood"}, 2, False),
        ({"kind": "today", "slot": "home"}, 2, False),
        ({"slot": "current_mood"}, 2, False),
        ({"kind": "plan"}, 13, True),
        ({"kind": "plan"}, 14, False),
        ({"kind": "vacation"}, 14, False),
        # A plan lives from its date on.
        ({"kind": "plan", "valid_from": "2026-06-01"}, 92, True),
        ({"kind": "plan", "valid_from": "2026-06-01"}, 93, False),
        # A trip of a known end lasts until then, and no longer.
        ({"kind": "trip", "valid_to": "2026-06"}, 108, True),
        ({"kind": "trip", "valid_to": "2026-06"}, 109, False),
        ({"kind": "trip", "valid_to": "2026-03-20"}, 7, False),
        ({"kind": 7}, 35, True),
    ],
)
async def test_a_status_lives_as_long_as_its_kind(fields: dict[str, Any], days: int, lasts: bool) -> None:
    chat = Chat({"it is so": status("It is so", **fields)})
    await chat.say("it is so")
    chat.pass_by(days=days)
    assert bool(await chat.notes()) is lasts
    assert bool(await chat.known()) is lasts


@pytest.mark.lengthy
async def test_a_mood_that_is_mentioned_again_lives_on() -> None:
    chat = Chat({"tired": status("User is tired", kind="mood")})
    for _ in range(3):
        await chat.say("I'm tired")
        chat.pass_by(days=1)
    assert await chat.known() == ["User is tired"]


async def test_a_kind_that_is_mentioned_later_counts() -> None:
    """A reflection may note a status before the extraction does."""
    chat = Chat({"so tired": status("User is tired"), "tired of it": status("User is tired", kind="mood")})
    await chat.say("I'm so tired")
    chat.pass_by(hours=1)
    await chat.say("tired of it")
    chat.pass_by(days=2)
    assert await chat.known() == []


@pytest.mark.parametrize("kind", ["home", "mood", "banana"])
async def test_a_time_of_ones_own_is_the_time_for_every_status(kind: str) -> None:
    chat = Chat({"so": status("It is so", kind=kind)}, fact_rules=FactRules(status_ttl=timedelta(days=7)))
    await chat.say("so")
    chat.pass_by(days=6)
    assert await chat.known() == ["It is so"]
    chat.pass_by(days=1)
    assert await chat.known() == []
