"""Facts that a speaker gave about a name become the speaker's own, once the speaker turns out to have that name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from arbiter.memory._records import Claim, Fact
from arbiter.memory.facts._changes import Mention
from arbiter.memory.facts._intake import Candidate
from arbiter.memory.facts._normal import FactIds, normal_form
from arbiter.memory.facts._rules import after_mention, prior


def retold(facts: Sequence[Fact], speaker: str, made: FactIds) -> list[Candidate]:
    """The records as claims of the speaker about itself, in the same order. Each has the record that takes
    the place of the old one, with another id and subject, and links among these records."""
    seen = Counter[str]()
    ids: dict[str, str] = {}
    for fact in facts:
        form = normal_form(fact.claim)
        ids[fact.id] = made.of(speaker, fact.claim, seen[form])
        seen[form] += 1
    return [_retold(fact, speaker, ids) for fact in facts]


def _retold(fact: Fact, speaker: str, ids: dict[str, str]) -> Candidate:
    def new(id: str | None) -> str | None:
        return None if id is None else ids.get(id, id)

    own = replace(
        fact,
        id=ids[fact.id],
        subject=speaker,
        provenance="inferred" if fact.provenance == "inferred" else "self_reported",
        confidence=_confidence(fact),
        supersedes=new(fact.supersedes),
        superseded_by=new(fact.superseded_by),
        refines=new(fact.refines),
        contradicts=tuple(ids.get(id, id) for id in fact.contradicts),
        derived_from=tuple(ids.get(id, id) for id in fact.derived_from),
    )
    return Candidate(
        claim=Claim(
            claim=fact.claim,
            type=fact.type,
            slot=fact.slot,
            value=fact.value,
            kind=fact.kind,
            valid_from=fact.valid_from,
            valid_to=fact.valid_to,
        ),
        id=own.id,
        scope=speaker,
        subject=speaker,
        mention=Mention(
            sources=fact.source_message_ids,
            speaker=fact.speaker,
            room_id=fact.room_ids[-1] if fact.room_ids else "",
            at=fact.last_seen_at,
            turn=fact.counted[-1] if fact.counted else "",
            visibility=fact.visibility,
        ),
        provenance=own.provenance,
        sensitivity=fact.sensitivity,
        moved=own,
    )


def _confidence(fact: Fact) -> float:
    """The confidence of the same mentions, if the speaker had made them about itself."""
    if fact.provenance == "inferred":
        return fact.confidence
    found = prior("self_reported")
    for _ in range(fact.mention_count - 1):
        found = after_mention(found, same_speaker=True)
    return max(found, fact.confidence)
