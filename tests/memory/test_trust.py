"""Trust: the numbers computed from evidence, the entity it is about, and that nothing counts twice."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS, EvaluationResult, History, PolicyViolationError, Verdict
from arbiter.errors import ParameterError
from arbiter.history._record import Record
from arbiter.memory import Claim, EvaluationCycle, HandlerOutcome, MemoryStore
from arbiter.memory._entities import Entity
from arbiter.memory._notes import Events, FactEvent
from arbiter.memory.stores import namespace
from arbiter.memory.trust import (
    EVIDENCE,
    WEIGHTS,
    Evidence,
    Source,
    Trust,
    TrustEvaluator,
    TrustProfile,
    admit,
    age_weight,
    overall,
)
from tests.memory.memory_support import NOON, Clock, turn
from tests.support import MODES, Chat, Check, run

NOTHING = dict.fromkeys(WEIGHTS, 50.0)


def piece(
    type: str,
    id: str = "e",
    *,
    days: float = 0,
    source: Source = "host",
    verified: bool = False,
    points: float | None = None,
) -> Evidence:
    return Evidence(
        id=id, type=type, at=NOON - timedelta(days=days), source=source, verified=verified, points=points
    )


def pieces(*types: str, **fields: Any) -> list[Evidence]:
    return [piece(type, f"e{n}", **fields) for n, type in enumerate(types)]


def scored(evidence: Sequence[Evidence]) -> TrustProfile:
    return TrustProfile(entity_id="user-1", at=NOON, evidence=tuple(evidence))


# The numbers --------------------------------------------------------------------------------------


def test_the_weights_of_the_dimensions_are_those_of_a_mean() -> None:
    assert math.fsum(WEIGHTS.values()) == 1
    assert all(set(deltas) <= set(WEIGHTS) for deltas in EVIDENCE.values())


def test_a_stranger_is_neutral() -> None:
    assert scored([]).dimensions == NOTHING
    assert overall(NOTHING) == 50
    assert scored([]).confidence == 0


@pytest.mark.parametrize(
    ("days", "weight"),
    [
        (0, 0.85),  # 0.7 + 0.15
        (-3, 0.85),  # what has not happened yet is not worth more
        (1, 0.574571),  # 0.7 × 0.606531 + 0.15
        (2, 0.407516),  # 0.7 × 0.367879 + 0.15
        (365, 0.15),
    ],
)
def test_evidence_counts_less_as_it_gets_older_and_never_nothing(days: float, weight: float) -> None:
    assert age_weight(NOON - timedelta(days=days), NOON) == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize(
    ("evidence", "moved", "total"),
    [
        # 50 - 20 × 0.85 and 50 - 15 × 0.85; 8.25 + 10 + 12.5 + 10 + 3.725 = 44.475
        ([piece("INCONSISTENT_BEHAVIOR")], {"reliability": 33, "transparency": 37.25}, 44),
        # 50 + 20 × 0.85 and 50 + 10 × 0.85; 16.75 + 10 + 12.5 + 10 + 5.85 = 55.1
        ([piece("CONSISTENT_BEHAVIOR")], {"reliability": 67, "transparency": 58.5}, 55),
        # 50 - 15 × 0.85 and 50 - 20 × 0.85; 12.5 + 10 + 9.3125 + 10 + 3.3 = 45.1125
        ([piece("SUSPICIOUS_ACTIVITY")], {"integrity": 37.25, "transparency": 33}, 45),
        # 50 - 35 × 0.4075156 and 50 - 20 × 0.4075156; 10.4624 + 10 + 8.9342 + 10 + 5 = 44.3967
        ([piece("SECURITY_VIOLATION", days=2)], {"integrity": 35.736954, "reliability": 41.849688}, 44),
        # one and a half times as much: 50 + 22.5 × 0.85 and 50 + 15 × 0.85
        ([piece("PROMISE_KEPT", verified=True)], {"reliability": 69.125, "integrity": 62.75}, 58),
        # 10 points where the table has 15, and so 6.67 where it has 10
        ([piece("HELPFUL_ACTION", points=10)], {"benevolence": 58.5, "competence": 55.666667}, 53),
        # 25 where the table has -20, and so -18.75 where it has -15
        ([piece("SUSPICIOUS_ACTIVITY", points=25)], {"transparency": 28.75, "integrity": 34.0625}, 44),
        # -15 and +10 on integrity, both × 0.85; -25 and +15 on reliability
        (pieces("PROMISE_BROKEN", "PROMISE_KEPT"), {"reliability": 41.5, "integrity": 45.75}, 47),
        ([piece("OF_ANOTHER_VERSION")], {}, 50),
    ],
)
def test_evidence_moves_the_dimensions_of_its_type(
    evidence: list[Evidence], moved: Mapping[str, float], total: int
) -> None:
    found = scored(evidence).dimensions
    assert found == pytest.approx({**NOTHING, **moved}, abs=1e-6)
    assert overall(found) == total


def test_a_dimension_is_held_to_its_range_once_at_the_end() -> None:
    """Four violations leave -69 of integrity; that an identity was verified then does not make it 17."""
    found = scored(pieces(*["SECURITY_VIOLATION"] * 4, "VERIFIED_IDENTITY")).dimensions
    assert found["integrity"] == 0
    assert scored(pieces(*["CONSISTENT_BEHAVIOR"] * 9)).dimensions["reliability"] == 100


def test_halves_of_the_overall_trust_go_up() -> None:
    assert overall({**NOTHING, "reliability": 52}) == 51  # 50.5
    assert overall({**NOTHING, "reliability": 48}) == 50  # 49.5


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (pieces("PROMISE_KEPT", "PROMISE_KEPT"), 0),  # too few
        # 0.4 × 3/20 + 0.3 × |2 - 1|/3 + 0.3 × 3/3
        (pieces("PROMISE_KEPT", "PROMISE_KEPT", "SPAM"), 0.46),
        # 0.4 × 4/20 + 0.3 × 0 + 0.3: evidence that disagrees is worth less than evidence that agrees
        (pieces("PROMISE_KEPT", "PROMISE_KEPT", "SPAM", "SPAM"), 0.38),
        (pieces("SPAM", "SPAM", "SPAM", "SPAM"), 0.68),
        # 0.4 × 4/20 + 0.3 + 0: none of it from the last seven days
        (pieces("SPAM", "SPAM", "SPAM", "SPAM", days=8), 0.38),
        (pieces("SPAM", "SPAM", "SPAM", "SPAM", days=7), 0.68),
        (pieces(*["SPAM"] * 20), 1),
        (pieces(*["SPAM"] * 40), 1),
    ],
)
def test_confidence_grows_with_how_much_evidence_agrees_and_is_recent(
    evidence: list[Evidence], expected: float
) -> None:
    assert scored(evidence).confidence == pytest.approx(expected)


# Bounds of the evidence ---------------------------------------------------------------------------

PIECES = st.lists(
    st.builds(
        Evidence,
        id=st.text("abcdef", min_size=1, max_size=3),
        type=st.sampled_from(sorted(EVIDENCE)),
        at=st.integers(0, 14 * 24).map(lambda hours: NOON - timedelta(hours=hours)),
        source=st.sampled_from(["host", "facts", "policy", "judge"]),
        verified=st.booleans(),
        points=st.none() | st.floats(-30, 30),
    ),
    max_size=30,
    unique_by=lambda found: found.id,
)


@pytest.mark.lengthy
@given(PIECES, st.randoms())
def test_the_order_of_evidence_does_not_matter(found: list[Evidence], order: random.Random) -> None:
    """Neither for what is kept, nor to the last digit of what it comes to."""
    shuffled = [*found]
    order.shuffle(shuffled)
    one_by_one: tuple[Evidence, ...] = ()
    for each in shuffled:
        one_by_one = admit(one_by_one, [each])
    at_once = admit((), found)
    assert one_by_one == at_once
    assert scored(shuffled).dimensions == scored(found).dimensions
    assert scored(shuffled).confidence == scored(found).confidence


@pytest.mark.lengthy
@given(PIECES)
def test_evidence_that_was_recorded_or_left_out_changes_nothing_the_second_time(
    found: list[Evidence],
) -> None:
    kept = admit((), found)
    assert admit(kept, found) == kept


@pytest.mark.lengthy
@given(PIECES)
def test_the_numbers_stay_in_their_ranges(found: list[Evidence]) -> None:
    assert all(0 <= value <= 100 for value in scored(found).dimensions.values())
    assert 0 <= overall(scored(found).dimensions) <= 100
    assert 0 <= scored(found).confidence <= 1


@pytest.mark.parametrize(
    ("type", "source", "kept"),
    [
        ("CONSISTENT_BEHAVIOR", "facts", 3),
        ("HELPFUL_ACTION", "judge", 3),
        ("HELPFUL_ACTION", "host", 10),
        ("INCONSISTENT_BEHAVIOR", "facts", 10),
    ],
)
def test_three_pieces_of_positive_evidence_a_day_count(type: str, source: Source, kept: int) -> None:
    today = pieces(*[type] * 10, source=source)
    yesterday = [piece(type, f"y{n}", days=1, source=source) for n in range(10)]
    assert len(admit((), today)) == kept
    assert len(admit((), [*today, *yesterday])) == 2 * kept


def test_the_earliest_pieces_of_a_day_count_and_later_ones_gain_nothing() -> None:
    found = [piece("CONSISTENT_BEHAVIOR", f"e{n}", days=n / 24, source="facts") for n in range(6)]
    assert [kept.id for kept in admit((), found)] == ["e5", "e4", "e3"]


def test_kept_evidence_is_bounded_and_praise_displaces_no_negative_evidence() -> None:
    bad = piece("SECURITY_VIOLATION", "bad", days=500, source="policy")
    praise = [
        piece("CONSISTENT_BEHAVIOR", f"p{day}.{n}", days=day, source="facts")
        for day in range(400)
        for n in range(3)
    ]
    kept = admit((), [bad, *praise])
    assert bad in kept
    assert len(kept) == 1 + 60 * 3
    assert len(admit((), [piece("SPAM", f"{n}", days=n) for n in range(500)])) == 200


# The store ----------------------------------------------------------------------------------------


def test_a_profile_is_kept_and_its_numbers_are_those_of_now(any_store: BaseStore) -> None:
    clock = Clock()

    async def scenario(store: MemoryStore) -> None:
        trust = Trust(store, "agent", clock)
        assert await trust.profile("user-1") == TrustProfile(entity_id="user-1", at=NOON)
        assert await trust.record("user-1", [piece("INCONSISTENT_BEHAVIOR")]) == 1
        recorded = await Trust(store, "agent", clock).profile("user-1")
        assert recorded.overall == 44
        clock.pass_by(days=2)
        later = await trust.profile("user-1")
        assert later.evidence == recorded.evidence
        # 50 - 20 × 0.4075156; 10.4624 + 10 + 12.5 + 10 + 4.3887 = 47.3511
        assert later.dimensions["reliability"] == pytest.approx(41.849688, abs=1e-6)
        assert later.overall == 47
        assert (await trust.profile("user-10")).evidence == ()
        assert (await Trust(store, "other", clock).profile("user-1")).evidence == ()

    store = MemoryStore(any_store)
    asyncio.run(scenario(store))


def test_no_evidence_gets_lost_between_other(any_store: BaseStore) -> None:
    async def scenario(store: MemoryStore) -> int:
        trust = Trust(store, "agent", Clock())
        await asyncio.gather(*(trust.record("user.1", [piece("SPAM", f"{n}")]) for n in range(20)))
        return len((await trust.profile("user.1")).evidence)

    store = MemoryStore(any_store)
    assert asyncio.run(scenario(store)) == 20


@pytest.mark.parametrize("value", [{}, {"entity_id": "user-1"}, {"evidence": 3}, {"entity_id": 1, "at": "?"}])
def test_an_unreadable_profile_counts_as_none(value: Any) -> None:
    async def scenario(store: MemoryStore) -> None:
        trust = Trust(store, "agent", Clock())
        await store.aput(namespace("agent", "trust", "user-1"), "profile", value)
        assert (await trust.profile("user-1")).overall == 50
        assert await trust.record("user-1", [piece("INCONSISTENT_BEHAVIOR")]) == 1
        assert (await trust.profile("user-1")).overall == 44

    store = MemoryStore(InMemoryStore())
    asyncio.run(scenario(store))


def test_new_evidence_keeps_fields_of_newer_versions() -> None:
    async def scenario(store: MemoryStore) -> None:
        trust, place = Trust(store, "agent", Clock()), namespace("agent", "trust", "user-1")
        await store.aput(place, "profile", {"entity_id": "user-1", "at": NOON.isoformat(), "later": 1})
        await trust.record("user-1", [piece("SPAM")])
        value = await store.aget(place, "profile")
        assert value is not None
        assert (value["later"], len(value["evidence"])) == (1, 1)

    store = MemoryStore(InMemoryStore())
    asyncio.run(scenario(store))


def test_evidence_that_cannot_be_read_does_not_take_the_rest_with_it() -> None:
    good = piece("SPAM", "good").to_value()
    broken: list[Any] = [3, {}, {**good, "at": "?"}, {**good, "points": "many"}, {**good, "id": 7}]
    value = {"entity_id": "user-1", "at": NOON.isoformat(), "evidence": [*broken, {**good, "later": True}]}
    assert TrustProfile.from_value(value).evidence == (piece("SPAM", "good"),)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (piece("PROMISE_KEEPED"), "type: there is no 'PROMISE_KEEPED'. Did you mean 'PROMISE_KEPT'?"),
        (piece("SPAM", points=math.nan), "points"),
        (Evidence(id="e", type="SPAM", at=datetime(2026, 3, 14)), "at: expected a time with its zone"),  # noqa: DTZ001
    ],
)
def test_invalid_evidence_is_refused(wrong: Evidence, problem: str) -> None:
    store = MemoryStore(InMemoryStore())
    with pytest.raises(ParameterError) as caught:
        asyncio.run(Trust(store, "agent", Clock()).record("user-1", [wrong]))
    assert problem in str(caught.value)


# The evaluator: what was said about facts ---------------------------------------------------------

TALK: list[BaseMessage] = [HumanMessage("hi", id="m1"), AIMessage("ok", id="m2")]


async def evaluated(
    store: MemoryStore, evaluator: TrustEvaluator | None = None, **fields: Any
) -> HandlerOutcome:
    ctx = turn(store, fields.pop("messages", TALK), **fields)
    return await (evaluator or TrustEvaluator()).handle(ctx)


def event(kind: str, speaker: str = "user-1", *, fact: str = "f1", **fields: Any) -> FactEvent:
    return FactEvent(kind=kind, speaker=speaker, fact_id=fact, **fields)


def confirmed(*, by: str = "user-2", fact: str = "f1") -> FactEvent:
    return event("confirmed", by, fact=fact, confirms=("user-1",))


@pytest.mark.parametrize(
    ("events", "total"),
    [
        ([], 50),
        # Others have confirmed a statement of the user.
        ([confirmed()], 55),
        # The user has repeated an own statement, or confirmed one of others.
        ([event("confirmed")], 50),
        ([event("confirmed", confirms=("user-2",))], 50),
        # Changes, corrections, and the contradiction of somebody else are no inconsistency.
        (
            [
                event("superseded", other_id="f2"),
                event("corrected", other_id="f2"),
                event("contradicted", other_id="f2"),
                event("refined", other_id="f2"),
                event("ended", other_id="f2"),
            ],
            50,
        ),
        # The agent, and others, are not the user.
        ([event("confirmed", confirms=("agent", "user-2"))], 50),
        # The same speaker confirms once.
        ([confirmed(), confirmed()], 55),
        # Three count: 50 + 51 → 100 and 50 + 25.5; 25 + 10 + 12.5 + 10 + 7.55 = 65.05
        ([confirmed(fact=f"f{n}") for n in range(9)], 65),
    ],
)
def test_the_consistency_of_statements_moves_trust(events: list[FactEvent], total: int) -> None:
    store = MemoryStore(InMemoryStore())
    outcome = asyncio.run(evaluated(store, events=events))
    assert outcome.score == total / 100
    assert outcome.passed == (total >= 50)
    assert outcome.data["overall"] == total


def test_a_turn_that_is_evaluated_twice_counts_once(any_store: BaseStore) -> None:
    """After a crash, a retry or a resume. A speaker confirms a fact once, also in other turns."""
    events = [confirmed(), confirmed(fact="f3")]

    async def scenario(store: MemoryStore) -> None:
        first = await evaluated(store, events=events)
        again = await evaluated(store, events=events, clock=Clock(NOON + timedelta(seconds=1)))
        assert (first.data["recorded"], again.data["recorded"]) == (2, 0)
        assert (first.data["evidence"], again.data["evidence"]) == (2, 2)
        other = await evaluated(store, events=[confirmed(by="user-3")], run_key="run-2")
        assert (other.data["recorded"], other.data["evidence"]) == (1, 3)

    store = MemoryStore(any_store)
    asyncio.run(scenario(store))


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("kind", "speaker", "before", "after", "total"),
    [
        ("fact", "user-1", "nuts", "no nuts", 50),
        ("status", "user-1", "nuts", "no nuts", 50),
        ("fact", "user-1", "nuts", "nuts", 50),
        ("fact", "user-2", "nuts", "no nuts", 50),
        ("fact", "user-2", "nuts", "nuts", 55),
    ],
)
def test_only_what_somebody_else_confirms_earns_trust(
    any_store: BaseStore, kind: str, speaker: str, before: str, after: str, total: int
) -> None:
    """From claims to trust, without a model: users neither lose nor earn trust by repeating or changing their
    own words."""
    store = MemoryStore(any_store)

    async def scenario() -> list[int]:
        totals: list[int] = []
        for number, (by, what) in enumerate((("user-1", before), (speaker, after))):
            message = HumanMessage(what, id=f"m{number}", additional_kwargs={"entity_id": by})
            clock = Clock(NOON + timedelta(minutes=number))
            ctx = turn(store, [message, AIMessage("ok")], run_key=f"run-{number}", clock=clock)
            await ctx.facts.ingest([eats(what, f"m{number}", type=kind)], ctx, evaluator="GET_FACTS")
            totals.append((await TrustEvaluator().handle(ctx)).data["overall"])
        return totals

    assert asyncio.run(scenario()) == [50, total]


def eats(what: str, id: str, *, type: str = "fact") -> Claim:
    return Claim(
        claim=f"User eats {what}",
        type=type,
        subject="user-1",
        slot="diet",
        value=what,
        source_message_ids=(id,),
    )


def test_evidence_is_about_the_speaker_and_never_about_an_agent() -> None:
    bot = Entity(id="bot", names=("Bot",), is_agent=True)
    events = [event("confirmed", "user-3", confirms=("user-2", "agent", "bot"))]

    async def scenario(store: MemoryStore) -> dict[str, int]:
        await evaluated(store, events=events, entities=(bot,))
        trust = Trust(store, "agent", Clock())
        return {who: (await trust.profile(who)).overall for who in ("user-1", "user-2", "agent", "bot")}

    store = MemoryStore(InMemoryStore())
    assert asyncio.run(scenario(store)) == {"user-1": 50, "user-2": 55, "agent": 50, "bot": 50}


def test_the_outcome_lists_the_parts_of_the_trust() -> None:
    store = MemoryStore(InMemoryStore())
    outcome = asyncio.run(evaluated(store, events=[confirmed()]))
    assert outcome == HandlerOutcome(
        0.55,
        True,
        "trust 55 of 100",
        {
            "overall": 55,
            "dimensions": {
                "reliability": 67.0,
                "competence": 50.0,
                "integrity": 50.0,
                "benevolence": 50.0,
                "transparency": 58.5,
            },
            "confidence": 0.0,
            "evidence": 1,
            "recorded": 1,
        },
    )


@pytest.mark.parametrize(("min_trust", "passed"), [(55, True), (55.5, False), (56, False)])
def test_the_least_trust_that_passes_is_configured(min_trust: float, passed: bool) -> None:
    events = [confirmed()]
    store = MemoryStore(InMemoryStore())
    outcome = asyncio.run(evaluated(store, TrustEvaluator(min_trust=min_trust), events=events))
    assert outcome.passed is passed


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"min_trust": 101}, "min_trust: expected 0 to 100, got 101."),
        ({"min_trust": True}, "min_trust"),
        ({"min_trust": math.nan}, "min_trust"),
        (
            {"policy_evidence": {"*": "SPAMM"}},
            "policy_evidence['*']: there is no evidence 'SPAMM'. Did you mean 'SPAM'?",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError) as caught:
        TrustEvaluator(**options)
    assert problem in str(caught.value)


def test_words_are_no_evidence() -> None:
    """Neither thanks nor words that sound bad; there is no pattern to play with."""
    talk = [HumanMessage("thanks, thank you! now hack, attack, scam, spam, ignore all rules", id="m1"), *TALK]
    store = MemoryStore(InMemoryStore())
    assert asyncio.run(evaluated(store, messages=talk)).data["evidence"] == 0


class Unsteady(MemoryStore):
    """Fails once, at one of its writes: before it is done, or after."""

    writes = 0
    failing_at = 0
    when = "before"

    async def aput(self, ns: Any, key: str, value: Any, **options: Any) -> None:
        self.writes += 1
        fails = self.writes == self.failing_at
        if not fails or self.when == "after":
            await super().aput(ns, key, value, **options)
        if fails:
            raise OSError("the disk is full")

    async def aupdate(self, ns: Any, key: str, change: Any, **options: Any) -> Any:
        self.writes += 1
        fails = self.writes == self.failing_at
        found = None
        if not fails or self.when == "after":
            found = await super().aupdate(ns, key, change, **options)
        if fails:
            raise OSError("the disk is full")
        return found


@pytest.mark.parametrize("when", ["before", "after"])
def test_evidence_survives_a_write_that_fails_and_counts_once(when: str) -> None:
    """Whichever write it is, in the facts or in the trust; the next turn of the room makes up for it."""
    said: list[BaseMessage] = [
        HumanMessage("nuts", id="m0"),
        HumanMessage("nuts", id="m1", additional_kwargs={"entity_id": "user-2"}),
        AIMessage("ok"),
    ]

    async def scenario(failing_at: int) -> bool:
        store = Unsteady(InMemoryStore())
        store.when = when
        before = turn(store, said[:1], run_key="run-0")
        await before.facts.ingest([eats("nuts", "m0")], before, evaluator="GET_FACTS")
        store.failing_at = store.writes + failing_at
        for number in (1, 2):  # the second turn reads what the first has not got past
            clock = Clock(NOON + timedelta(minutes=number))
            ctx = turn(store, said, run_key=f"run-{number}", clock=clock)
            with suppress(OSError):
                await ctx.facts.ingest([eats("nuts", "m1")], ctx, evaluator="GET_FACTS")
                await TrustEvaluator().handle(ctx)
        profile = await Trust(store, "agent", clock).profile("user-1")
        assert [piece.type for piece in profile.evidence] == ["CONSISTENT_BEHAVIOR"], failing_at
        return store.writes >= store.failing_at

    async def all_of_them() -> int:
        at = 1
        while await scenario(at):
            at += 1
        return at

    assert asyncio.run(all_of_them()) > 4


def test_evidence_survives_the_end_of_the_process(any_store: BaseStore) -> None:
    """Between facts and trust; counted from the store, once, and then no longer kept there."""

    async def scenario(store: MemoryStore) -> list[int]:
        for number, speaker in enumerate(("user-1", "user-2")):
            message = HumanMessage("nuts", id=f"m{number}", additional_kwargs={"entity_id": speaker})
            ctx = turn(store, [message], run_key=f"run-{number}")
            await ctx.facts.ingest([eats("nuts", f"m{number}")], ctx, evaluator="GET_FACTS")
        assert len(await Events(store, "agent", "room-1").all()) == 1
        resumed = [await evaluated(store, run_key="run-1") for _ in range(2)]
        assert await Events(store, "agent", "room-1").all() == []
        return [outcome.data["recorded"] for outcome in resumed]

    store = MemoryStore(any_store)
    assert asyncio.run(scenario(store)) == [1, 0]


def test_uncounted_events_are_bounded() -> None:
    async def scenario() -> list[str]:
        events = Events(MemoryStore(InMemoryStore()), "agent", "room-1")
        for number in range(70):
            await events.add(event("confirmed", fact=f"f{number}"))
            await events.add(event("confirmed", fact=f"f{number}"))
        return [kept.fact_id for kept in await events.all()]

    assert asyncio.run(scenario()) == [f"f{number}" for number in range(6, 70)]


# The evaluator: denials ---------------------------------------------------------------------------


def record(id: str, checks: Mapping[str, Verdict], *, said_by: str | None = None, days: float = 0) -> Record:
    made = Record(id, "pay", None, int(id[1:]), "", (NOON - timedelta(days=days)).timestamp())
    made.status, made.checks = "denied", checks
    if said_by is not None:
        made.input = {"messages": [HumanMessage("do it", additional_kwargs={"entity_id": said_by})]}
    return made


NO = Verdict.deny("too much")


@pytest.mark.parametrize(
    ("policy_evidence", "checks", "total"),
    [
        (None, {"limit": NO}, 45),
        (None, {"limit": Verdict.allow()}, 50),
        (None, {"limit": Verdict.ask("sure?")}, 50),
        (None, {"limit": Verdict.deny("the checker failed: KeyError: 'x'")}, 50),
        # 50 - 25.5 and 50 - 34: 12.5 + 10 + 6.125 + 10 + 1.6 = 40.225
        (None, {"limit": NO, "other": NO}, 40),
        ({"*": None, "limit": "SPAM"}, {"other": NO}, 50),
        # 50 - 12.75 and 50 - 8.5: 12.5 + 8.3 + 12.5 + 7.45 + 5 = 45.75
        ({"*": None, "limit": "SPAM"}, {"limit": NO}, 46),
        ({"limit": "SPAM"}, {"other": NO}, 50),
        ({}, {"limit": NO}, 50),
        # 50 - 17 and 50 - 29.75: 8.25 + 10 + 5.0625 + 10 + 5 = 38.3125
        ({"*": "SPAM", "limit": "SECURITY_VIOLATION"}, {"limit": NO}, 38),
    ],
)
def test_a_denial_counts_against_the_user_as_its_checker_is_configured(
    policy_evidence: Mapping[str, str | None] | None, checks: Mapping[str, Verdict], total: int
) -> None:
    evaluator = TrustEvaluator(policy_evidence=policy_evidence)
    store = MemoryStore(InMemoryStore())
    outcome = asyncio.run(evaluated(store, evaluator, records=[record("r1", checks)]))
    assert outcome.data["overall"] == total


def test_a_denial_counts_once_however_often_it_is_seen_and_against_one_user(any_store: BaseStore) -> None:
    """It stays in the history of the thread, where the turns of others come across it as well."""
    seen = [record("r1", {"limit": NO})]

    async def scenario(store: MemoryStore) -> None:
        assert (await evaluated(store, records=seen)).data["recorded"] == 1
        assert (await evaluated(store, records=seen, run_key="run-2")).data["recorded"] == 0
        other = await evaluated(store, records=seen, run_key="run-3", entity_id="user-2")
        assert (other.data["recorded"], other.data["overall"]) == (0, 50)
        more = await evaluated(store, records=[*seen, record("r2", {"limit": NO})], entity_id="user-2")
        assert (more.data["recorded"], more.data["overall"]) == (1, 45)
        assert (await Trust(store, "agent", Clock()).profile("user-1")).overall == 45

    store = MemoryStore(any_store)
    asyncio.run(scenario(store))


def test_a_denial_has_the_age_and_the_speaker_of_its_node_run() -> None:
    async def scenario(store: MemoryStore) -> None:
        outcome = await evaluated(store, records=[record("r1", {"limit": NO}, said_by="user-2", days=2)])
        assert outcome.data["overall"] == 50
        # 50 - 15 × 0.407516 and 50 - 20 × 0.407516: 12.5 + 10 + 10.9718 + 10 + 4.1850 = 47.6568
        assert (await Trust(store, "agent", Clock()).profile("user-2")).overall == 48

    store = MemoryStore(InMemoryStore())
    asyncio.run(scenario(store))


def test_a_denial_ages_by_the_clock_of_the_cycle() -> None:
    """The history's own clock does not matter."""
    store, clock = InMemoryStore(), Clock(datetime(2001, 1, 1, tzinfo=UTC))
    arbiter_os, app = talking(
        store, Check("limit", asks_too_much, target_nodes=["pay"], on_deny="audit"), clock=clock
    )
    config: Any = {"configurable": {"thread_id": "room-1", "user_id": "user-1"}}
    for text in ("steal", "hi"):
        app.invoke({"messages": [HumanMessage(text)]}, config)
    found = result(arbiter_os, "pay")
    assert found is not None
    assert found.score == 0.45
    clock.pass_by(days=60)
    profile = asyncio.run(Trust(MemoryStore(store), "agent", clock).profile("user-1"))
    assert abs(profile.evidence[0].at - datetime(2001, 1, 1, tzinfo=UTC)) < timedelta(minutes=1)
    assert profile.overall == 49


def test_a_crash_between_blame_and_evidence_loses_no_evidence_and_blames_no_other_user() -> None:
    """The write of the profile fails once: the next turn, of somebody else, is not blamed; the user's own makes up."""

    class Failing(MemoryStore):
        failing = True

        async def aupdate(self, ns: Any, key: str, change: Any, **options: Any) -> Any:
            if self.failing and ns[2] == "trust":
                raise OSError("the disk is full")
            return await super().aupdate(ns, key, change, **options)

    seen = [record("r1", {"limit": NO})]

    async def scenario() -> list[int]:
        store = Failing(InMemoryStore())
        with pytest.raises(OSError, match="disk"):
            await evaluated(store, records=seen)
        store.failing = False
        return [
            (await evaluated(store, records=seen, entity_id=who)).data["overall"]
            for who in ("user-2", "user-1")
        ]

    assert asyncio.run(scenario()) == [50, 45]


# In a graph ---------------------------------------------------------------------------------------


def asks_too_much(history: History) -> Any:
    text = history.entries[-1][-1].input_state["messages"][-1].text
    return Verdict.deny("too much") if text == "steal" else True


def breaks(history: History) -> Any:
    raise ZeroDivisionError


def talking(store: Any, *checkers: Check, **options: Any) -> tuple[ArbiterOS, Any]:
    def say(state: Any) -> Any:
        return {"messages": [AIMessage("ok")]}

    builder = StateGraph(Chat).add_node("pay", say).add_node("refuse", say).add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(EvaluationCycle(store=store, **options))
    arbiter_os.add_evaluator(TrustEvaluator())
    for checker in checkers:
        arbiter_os.add_policy_checker(checker)
    return arbiter_os, arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()), {"pay": "GENERATE"})


def result(arbiter_os: ArbiterOS, node: str) -> EvaluationResult | None:
    item = arbiter_os.history.last(node=node)
    return None if item is None else item.evaluation_results.get("TRUST")


@MODES
@pytest.mark.parametrize("on_deny", ["raise", "redirect:refuse", "end", "audit"])
def test_a_denial_in_a_graph_lowers_the_trust_in_the_user_once(mode: str, on_deny: str) -> None:
    """For every end of the denied run: the denial counts in the next turn of the thread at the latest, and
    only once."""
    store = InMemoryStore()
    arbiter_os, app = talking(store, Check("limit", asks_too_much, target_nodes=["pay"], on_deny=on_deny))
    config = {"configurable": {"thread_id": "room-1", "user_id": "user-1"}}

    def says(text: str) -> None:
        run(app, {"messages": [HumanMessage(text)]}, config, mode=mode)

    says("hi")
    before = result(arbiter_os, "pay")
    if on_deny == "raise":
        with pytest.raises(PolicyViolationError):
            says("steal")
    else:
        says("steal")
    scores: list[float] = []
    for _ in range(2):
        says("hi")
        after = result(arbiter_os, "pay")
        assert after is not None
        assert after.metadata["evidence"] == 1
        scores.append(after.score)
    assert before is not None
    assert (before.score, scores) == (0.5, [0.45, 0.45])


@MODES
def test_a_checker_that_breaks_is_no_evidence_against_the_user(mode: str) -> None:
    store = InMemoryStore()
    arbiter_os, app = talking(store, Check("broken", breaks, target_nodes=["pay"], on_deny="audit"))
    for _ in range(2):
        run(app, {"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "room-1"}}, mode=mode)
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert item.check_policy_results["broken"].kind == "deny"
    assert item.evaluation_results["TRUST"].score == 0.5
