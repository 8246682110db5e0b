"""Pure functions that change a fact: a mention, a replacement, a contradiction, a deletion. Applying one
twice changes nothing more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from arbiter.memory._records import Claim, Fact, Visibility, latest, time_of
from arbiter.memory.facts._rules import VISIBILITIES, FactRules, after_contradiction, after_mention, expiry

OPEN = ("active", "disputed")
"""States of facts that are believed, or may be true."""
CLOSED = ("superseded", "corrected", "retracted")
"""States of closed records. A closed claim that is said again gets a new record."""
_MOST_SOURCES = 500
"""Messages, and rooms, of a fact that are kept, the latest."""
_MOST_SPEAKERS = 64
"""Speakers of a fact that are kept, the latest: everybody may say the same about the agent."""
_MOST_TURNS = 16
_SINGLE = ("supersedes", "superseded_by", "refines")
_LINKS = (*_SINGLE, "contradicts", "valid_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A statement in a turn: its messages, speaker and room, the end of the turn, and the visibility of
    the statement."""

    sources: tuple[str, ...]
    speaker: str
    room_id: str
    at: datetime
    turn: str
    visibility: Visibility


def mentioned(fact: Fact, mention: Mention, rules: FactRules, *, literally: bool = True) -> tuple[Fact, bool]:
    """The fact after a mention, and True if the mention was independent: from a new source, in a turn not yet
    counted.

    A mention without a new source returns the same object. Counting does not depend on order, so a mention of
    an earlier turn counts too. A mention in other words, not `literally` these, never widens the fact's
    visibility, because its own words were not said there.
    """
    fresh = [id for id in mention.sources if id not in fact.source_message_ids]
    if not fresh:
        return fact, False
    told = literally or not opens(fact, mention)
    seen = replace(
        fact,
        source_message_ids=(*fact.source_message_ids, *fresh)[-_MOST_SOURCES:],
        room_ids=_with(fact.room_ids, [mention.room_id])[-_MOST_SOURCES:] if told else fact.room_ids,
    )
    if mention.turn in fact.counted:
        return seen, False
    last = max(fact.last_seen_at, mention.at)
    return replace(
        seen,
        confidence=after_mention(fact.confidence, same_speaker=mention.speaker in fact.speakers),
        mention_count=fact.mention_count + 1,
        # The subject stays: it may take back its own words.
        speakers=latest(_with(fact.speakers, [mention.speaker]), _MOST_SPEAKERS, keep=[fact.subject]),
        counted=(*fact.counted, mention.turn)[-_MOST_TURNS:],
        last_seen_at=last,
        expires_at=expiry(replace(fact, last_seen_at=last), rules),
        state="active" if fact.state == "expired" else fact.state,
        visibility=_wider(fact, mention.visibility) if told else fact.visibility,
    ), True


def opens(fact: Fact, mention: Mention) -> bool:
    """True if the mention has a wider audience than the fact."""
    if fact.visibility == "room" and mention.room_id not in fact.room_ids:
        return True
    return VISIBILITIES.index(mention.visibility) > VISIBILITIES.index(fact.visibility)


def may_be_used(fact: Fact, *, room_id: str, people: Collection[str]) -> bool:
    """True if a model may be shown the fact in a conversation of these people in that room.

    A fact about the agent comes from people, so only the people who said it may see it, like the facts about
    themselves.
    """
    if fact.visibility == "agent" or room_id in fact.room_ids:
        return True
    is_about_agent = fact.subject == fact.agent_id
    return fact.is_told_in(room_id) and not (is_about_agent and {*people}.isdisjoint(fact.speakers))


def is_closed(fact: Fact, at: datetime) -> bool:
    """True for a closed record, and for one that has ended by the clock."""
    return fact.state in CLOSED or (fact.valid_to is not None and fact.valid_to <= at)


def superseded(fact: Fact, by: str, *, at: datetime) -> Fact:
    if fact.state in CLOSED:
        return fact
    return replace(fact, state="superseded", superseded_by=by, valid_to=at)


def ending(fact: Fact, by: str, *, at: datetime) -> Fact:
    """The fact as one that another will replace at a time to come, unless it ends before; it stays open, and
    readers go by the clock."""
    if fact.state in CLOSED or (fact.valid_to is not None and fact.valid_to <= at):
        return fact
    return replace(fact, superseded_by=by, valid_to=at)


def as_of_now(fact: Fact, now: datetime) -> Fact:
    """The fact with the state that it has by the clock: superseded once its successor has begun."""
    if fact.state in CLOSED or fact.superseded_by is None or fact.valid_to is None or fact.valid_to > now:
        return fact
    return replace(fact, state="superseded")


def reopened(fact: Fact, by: str) -> Fact:
    """The fact without its end, if `by` was to replace it and will not."""
    if fact.state in CLOSED or fact.superseded_by != by:
        return fact
    return replace(fact, superseded_by=None, valid_to=None)


def detailed(fact: Fact, claim: Claim, rules: FactRules) -> Fact:
    """The fact with the dates of a claim that says it again, as far as it gives other ones, and with its kind if
    that was not known."""
    planned_end = None if fact.superseded_by else claim.valid_to
    since, until = claim.valid_from or fact.valid_from, planned_end or fact.valid_to
    changed = replace(fact, valid_from=since, valid_to=until, kind=fact.kind or claim.kind)
    return fact if changed == fact else replace(changed, expires_at=expiry(changed, rules))


def corrected(fact: Fact, by: str, *, at: datetime) -> Fact:
    """The fact as a slip that another one puts right: it never held, and its speaker is not blamed."""
    return fact if fact.state in CLOSED else replace(superseded(fact, by, at=at), state="corrected")


def says_alone(fact: Fact, speaker: str) -> bool:
    """True if a speaker may take a fact back: no other speaker has said it, or it is about the speaker's own
    self."""
    said_by = {fact.speaker, *fact.speakers}
    return said_by == {speaker} or (speaker in said_by and fact.subject == speaker)


def outdated(record: Fact, newer: Fact, relation: str) -> Fact:
    """A record that is learned late, after a newer statement that excludes it: history from the start."""
    if relation not in ("supersedes", "contradicts", "ends", "corrects") or newer.state in CLOSED:
        return record
    if newer.planned(record.last_seen_at) and newer.valid_from is not None:
        return ending(record, newer.id, at=newer.valid_from)
    close = corrected if relation == "corrects" else superseded
    return close(record, newer.id, at=newer.valid_from or newer.first_seen_at)


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
    """The winning side of a dispute, active again. Its links stay as history."""
    return replace(fact, state="active") if fact.state == "disputed" else fact


def retracted(fact: Fact, *, at: datetime) -> Fact:
    return fact if fact.state in CLOSED else replace(fact, state="retracted", valid_to=at)


def following(facts: Iterable[Fact], premise: str) -> list[Fact]:
    """The open facts that were inferred from that one, and those that follow from them. What somebody has said, too,
    does not need the premise."""
    inferred = [
        fact
        for fact in facts
        if fact.derived_from and not fact.source_message_ids and fact.state not in CLOSED
    ]
    found: list[Fact] = []
    ids = {premise}
    while more := [fact for fact in inferred if fact.id not in ids and not ids.isdisjoint(fact.derived_from)]:
        found += more
        ids.update(fact.id for fact in more)
    return found


def put_away(fact: Fact) -> Fact:
    return replace(fact, state="expired") if fact.state == "active" else fact


def unlinked(fact: Fact, gone: Collection[str], *, reopen: bool = False) -> Fact:
    """The fact without links to deleted ones. A dispute with no other side left ends. With `reopen`, a fact that
    a deleted one had replaced holds again."""
    links = (*fact.contradicts, *fact.derived_from, fact.supersedes, fact.superseded_by, fact.refines)
    if not any(id in gone for id in links):
        return fact
    contradicts = tuple(id for id in fact.contradicts if id not in gone)
    will_last = fact.superseded_by in gone and (reopen or fact.state not in CLOSED)
    was_closed = will_last and fact.state in ("superseded", "corrected")
    lonely = fact.state == "disputed" and fact.contradicts and not contradicts
    changed = replace(
        fact,
        contradicts=contradicts,
        derived_from=tuple(id for id in fact.derived_from if id not in gone),
        supersedes=None if fact.supersedes in gone else fact.supersedes,
        superseded_by=None if fact.superseded_by in gone else fact.superseded_by,
        valid_to=None if will_last else fact.valid_to,
        refines=None if fact.refines in gone else fact.refines,
        state="active" if lonely or was_closed else fact.state,
    )
    return fact if changed == fact else changed


def links_of(fact: Fact) -> Mapping[str, Any]:
    """The parts of a fact that `unlinked` may change, for a store."""
    return {name: part for name, part in fact.to_value().items() if name in _LINKS}


def relinked(fact: Fact, links: Mapping[str, Any], back: Mapping[str, Fact]) -> Fact:
    """The fact with its `links` to those that are `back`, as far as nothing has taken their place since."""
    again = {name: links[name] for name in _SINGLE if getattr(fact, name) is None and links[name] in back}
    if "superseded_by" in again and fact.valid_to is None and links["valid_to"]:
        again["valid_to"] = time_of(links["valid_to"])
    rivals = [id for id in links["contradicts"] if id in back and back[id].state == "disputed"]
    if rivals and fact.state == "active":
        again["state"] = "disputed"
    return replace(fact, contradicts=_with(fact.contradicts, rivals), **again)


def _with(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *more)))


def _wider(fact: Fact, visibility: Visibility) -> Visibility:
    """The wider visibility of the two: a claim said in confidence and now openly is open. Sensitive facts
    keep theirs."""
    if fact.sensitivity == "sensitive":
        return fact.visibility
    return VISIBILITIES[max(map(VISIBILITIES.index, (fact.visibility, visibility)))]
