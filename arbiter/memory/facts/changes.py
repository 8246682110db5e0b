"""How a fact changes: by a mention, by what supersedes or contradicts it, by what is forgotten. All of it is pure, and
applied twice is as good as once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from arbiter.memory.facts.confidence import after_contradiction, after_mention
from arbiter.memory.facts.rules import VISIBILITIES, FactRules
from arbiter.memory.records import Fact, Visibility

CLOSED = ("superseded", "retracted")
"""What is history: said again, it begins anew in a record of its own."""
_MOST_SOURCES = 500
_MOST_TURNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """That somebody says something in a turn: in which messages, when the turn ended, and who may see it."""

    sources: tuple[str, ...]
    speaker: str
    room_id: str
    at: datetime
    turn: str
    visibility: Visibility


def mentioned(fact: Fact, mention: Mention, rules: FactRules, *, literally: bool = True) -> tuple[Fact, bool]:
    """The fact after a mention, and whether that was an independent one: from a message that is not among its sources,
    in a turn that was not counted yet. What is no news gives the very same fact.

    Counting does not depend on order, so a mention of a turn that ended earlier than the last one counts too. A mention
    in other words, not `literally` these, shows the fact to nobody else: those words were not said there.
    """
    fresh = [id for id in mention.sources if id not in fact.source_message_ids]
    if not fresh:
        return fact, False
    told = literally or not opens(fact, mention)
    seen = replace(
        fact,
        source_message_ids=(*fact.source_message_ids, *fresh)[-_MOST_SOURCES:],
        room_ids=_with(fact.room_ids, [mention.room_id]) if told else fact.room_ids,
    )
    if mention.turn in fact.counted:
        return seen, False
    last = max(fact.last_seen_at, mention.at)
    return replace(
        seen,
        confidence=after_mention(fact.confidence, same_speaker=mention.speaker in fact.speakers),
        mention_count=fact.mention_count + 1,
        speakers=_with(fact.speakers, [mention.speaker]),
        counted=(*fact.counted, mention.turn)[-_MOST_TURNS:],
        last_seen_at=last,
        expires_at=expiry(fact.type, last, rules),
        state="active" if fact.state == "expired" else fact.state,
        visibility=_wider(fact, mention.visibility) if told else fact.visibility,
    ), True


def opens(fact: Fact, mention: Mention) -> bool:
    """Whether those who may see what is said in the mention are more than those who may see the fact."""
    if fact.visibility == "room" and mention.room_id not in fact.room_ids:
        return True
    return VISIBILITIES.index(mention.visibility) > VISIBILITIES.index(fact.visibility)


def expiry(type: str, last_seen_at: datetime, rules: FactRules) -> datetime | None:
    return last_seen_at + rules.status_ttl if type == "status" else None


def superseded(fact: Fact, by: str, *, at: datetime) -> Fact:
    if fact.state in CLOSED:
        return fact
    return replace(fact, state="superseded", superseded_by=by, valid_to=at)


def disputed(fact: Fact, by: str) -> Fact:
    if fact.state in CLOSED or by in fact.contradicts:
        return fact
    return replace(
        fact,
        state="disputed",
        contradicts=(*fact.contradicts, by),
        confidence=after_contradiction(fact.confidence),
    )


def settled(fact: Fact) -> Fact:
    """What of a dispute has turned out right. The links stay: they are history."""
    return replace(fact, state="active") if fact.state == "disputed" else fact


def retracted(fact: Fact, *, at: datetime) -> Fact:
    return fact if fact.state in CLOSED else replace(fact, state="retracted", valid_to=at)


def put_away(fact: Fact) -> Fact:
    return replace(fact, state="expired") if fact.state == "active" else fact


def unlinked(fact: Fact, gone: Collection[str]) -> Fact:
    """The fact without links to what is gone; a dispute that it alone is left of is none."""
    contradicts = tuple(id for id in fact.contradicts if id not in gone)
    lonely = fact.state == "disputed" and fact.contradicts and not contradicts
    changed = replace(
        fact,
        contradicts=contradicts,
        derived_from=tuple(id for id in fact.derived_from if id not in gone),
        supersedes=None if fact.supersedes in gone else fact.supersedes,
        superseded_by=None if fact.superseded_by in gone else fact.superseded_by,
        refines=None if fact.refines in gone else fact.refines,
        state="active" if lonely else fact.state,
    )
    return fact if changed == fact else changed


def read(value: Mapping[str, Any] | None) -> Fact | None:
    """The fact in a store's value; None if there is none, or if it cannot be read."""
    if value is None:
        return None
    try:
        return Fact.from_value(value)
    except ValueError:
        return None


def _with(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *more)))


def _wider(fact: Fact, visibility: Visibility) -> Visibility:
    """What was said in confidence and now openly is no longer in confidence; what is sensitive stays where it is."""
    if fact.sensitivity == "sensitive":
        return fact.visibility
    return VISIBILITIES[max(map(VISIBILITIES.index, (fact.visibility, visibility)))]
