"""Looks up the known facts that a new claim may affect: the same claim, similar ones, or what its speaker gave about
a name that turns out to be the speaker's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from arbiter.memory._records import KINDS, Claim, Fact, Provenance, readable
from arbiter.memory._tombstones import Forgettings, Tombstones
from arbiter.memory.facts._changes import CLOSED, Mention, is_closed, may_be_used, says_alone, unlinked
from arbiter.memory.facts._intake import Candidate
from arbiter.memory.facts._normal import FactIds, normal_form, same_sense
from arbiter.memory.facts._own_names import same_name
from arbiter.memory.facts._rules import FactRules, after_mention, prior
from arbiter.memory.stores import Link, MemoryStore, Namespace, Value, namespace
from arbiter.memory.stores._words import overlap, terms_that_mean, words_of

_MOST_GENERATIONS = 100
_NAMED = _SLIP = 3
_ALIKE, _RECENT = 2, 1
"""Why a record is compared with a claim, by importance."""
TOLD_OF = "told_of"
"""The part of a fact's origin with the name of its person, before the speaker turned out to have that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A record and the kind of its namespace. `guessed` if it is only a recent one, like a claim in nothing;
    `scope` is the entity that it belongs to, if that is not the claim's."""

    kind: str
    fact: Fact
    guessed: bool = False
    scope: str = ""


class Knowledge:
    """The facts of an agent, looked up by claims."""

    def __init__(
        self, store: MemoryStore, rules: FactRules, agent_id: str, clock: Callable[[], datetime]
    ) -> None:
        self.store = store
        self.rules = rules
        self.agent_id = agent_id
        self.clock = clock
        self._ids: dict[str, FactIds] = {}

    async def ids(self, scope: str) -> FactIds:
        found = self._ids.get(scope)
        if found is None:
            ids = FactIds(self.store, self.agent_id, scope)
            found = self._ids[scope] = await ids.ready()
        return found

    def space(self, kind: str, candidate: Candidate, scope: str = "") -> Namespace:
        return namespace(self.agent_id, kind, scope or candidate.scope)

    async def exact(self, candidate: Candidate) -> tuple[int, Known | None]:
        """The generation to write, and the record of this very claim, if there is one.

        A closed record is history: the claim begins a new generation, unless the record has all of these
        sources or was closed after the mention.
        """
        generation = 0
        ids = await self.ids(candidate.scope)
        for kind in candidate.kinds:
            for number in range(_MOST_GENERATIONS):
                id = ids.of(candidate.subject, candidate.claim.claim, number)
                fact = Fact.read(await self.store.aget(self.space(kind, candidate), id))
                if fact is None:
                    break
                known = Known(kind=kind, fact=fact)
                if not is_closed(fact, candidate.mention.at) or self._is_history(fact, candidate):
                    return number, known
                generation = max(generation, number + 1)
        return generation, None

    def _is_history(self, fact: Fact, candidate: Candidate) -> bool:
        # After the clock was set back, the end of an earlier statement is in the future.
        ended = fact.valid_to is not None and candidate.mention.at < fact.valid_to <= self.clock()
        return ended or {*candidate.mention.sources} <= {*fact.source_message_ids}

    async def named(self, candidate: Candidate) -> Known | None:
        """The record that the model says is repeated; None if its subject or state rules that out."""
        id = candidate.claim.known_id
        known = await self.find(candidate, id) if id else None
        if known is None or known.fact.state in CLOSED or not candidate.is_about(known.fact.subject):
            return None
        return known

    async def find(self, candidate: Candidate, id: str) -> Known | None:
        for kind in candidate.kinds:
            fact = Fact.read(await self.store.aget(self.space(kind, candidate), id))
            if fact is not None:
                return Known(kind=kind, fact=fact)
        return None

    async def is_forgotten(self, candidate: Candidate) -> bool:
        """True if the messages of the claim were forgotten meanwhile, or everything about its people was."""
        mention = candidate.mention
        tombstones = Tombstones(self.store, self.agent_id, mention.room_id)
        if mention.sources and {*mention.sources} <= (await tombstones.read()).forgotten:
            return True
        for entity_id in {candidate.scope, mention.speaker}:
            asked_at = await Forgettings(self.store, self.agent_id, entity_id).at("everything")
            if asked_at is not None and asked_at > mention.at:
                return True
        return False

    async def was_forgotten(self, fact: Fact) -> bool:
        """True if a record is gone because it was forgotten: another subject, or another type, moves it too."""
        for scope in dict.fromkeys((fact.subject, *fact.speakers, fact.speaker)):
            for kind in KINDS.values():
                if await self.store.aget(namespace(self.agent_id, kind, scope), fact.id) is not None:
                    return False
        rooms = [Tombstones(self.store, self.agent_id, room_id) for room_id in fact.room_ids]
        sources = {*fact.source_message_ids}
        return not sources or any([sources <= (await room.read()).forgotten for room in rooms])

    async def told_of(self, speaker: str, name: str) -> list[Known]:
        """The records that a speaker alone has told of somebody of that name, who takes no part; oldest
        first."""
        return [
            known
            for known in await self._all_of(speaker)
            if known.fact.subject != speaker
            and same_name(known.fact.subject, name)
            and {known.fact.speaker, *known.fact.speakers} == {speaker}
        ]

    async def brought_home(self, speaker: str, name: str) -> list[Known]:
        """The records of a speaker that were told of somebody of that name first; oldest first."""
        return [
            known
            for known in await self._all_of(speaker)
            if known.fact.subject == speaker and same_name(str(known.fact.origin.get(TOLD_OF, "")), name)
        ]

    async def unlink(self, speaker: str, gone: Collection[str]) -> None:
        """Let what these records of a speaker had replaced hold again."""
        change = partial(Fact.altered, change=partial(unlinked, gone=gone, reopen=True))
        for known in await self._all_of(speaker):
            if known.fact.id not in gone and unlinked(known.fact, gone) is not known.fact:
                ns = namespace(self.agent_id, known.kind, speaker)
                await self.store.aupdate(ns, known.fact.id, change)

    async def _all_of(self, speaker: str) -> list[Known]:
        found = [
            Known(kind=kind, fact=fact)
            for kind in KINDS.values()
            for entry in await self.store.alist(namespace(self.agent_id, kind, speaker))
            if (fact := Fact.read(entry.value)) is not None
        ]
        return sorted(found, key=lambda known: known.fact.first_seen_at)

    async def remove(self, known: Known, scope: str) -> None:
        ns = namespace(self.agent_id, known.kind, scope)
        await self.store.aupdate(ns, known.fact.id, lambda value: None)

    async def similar(self, candidate: Candidate, named: Known | None = None) -> list[Known]:
        """The records that may relate to a claim: the one that the model has `named`, those whose message it corrects,
        then the most similar ones of the same subject; without embeddings also the newest."""
        if candidate.claim.type == "opinion":
            return []
        rules = self.rules
        listed: list[tuple[int, float, Known]] = []
        words = words_of(candidate.claim.claim)

        def comparable(value: Value) -> bool:
            fact = Fact.read(value)
            return fact is not None and self._is_comparable(fact, candidate)

        for kind in candidate.kinds:
            ns = self.space(kind, candidate)
            found = await self.store.asearch(
                ns, candidate.claim.claim, limit=2 * rules.candidates, wanted=comparable
            )
            for entry in found.entries:
                fact = Fact.from_value(entry.value)
                by_words = not found.semantic or fact.needs_embedding
                score = overlap(words_of(fact.claim), words) if by_words else entry.similarity or 0.0
                if score >= (rules.lexical_score if by_words else rules.candidate_score):
                    listed.append((_ALIKE, score, Known(kind=kind, fact=fact)))
            linked = await self.linked(ns, "slot", [candidate.claim.slot]) if candidate.claim.slot else []
            # Closed records are history, but an attempt that crashed may have closed some for this claim.
            linked += await self.linked(ns, "superseded_by", [candidate.id])
            listed += [(_ALIKE, 0.0, Known(kind=kind, fact=fact)) for fact in linked]
            for scope in dict.fromkeys(["", candidate.mention.speaker] if candidate.claim.corrects else []):
                there = self.space(kind, candidate, scope)
                for fact in await self.linked(there, "source_message_ids", candidate.claim.corrects):
                    listed.append((_SLIP, 0.0, Known(kind=kind, fact=fact, scope=scope)))
            if not found.semantic:
                # Shared words do not find the same claim in another language.
                for entry in await self.store.anewest(ns, limit=rules.candidates, wanted=comparable):
                    fact = Fact.from_value(entry.value)
                    seen = fact.last_seen_at.timestamp()
                    listed.append((_RECENT, seen, Known(kind=kind, fact=fact, guessed=True)))
        if named is not None:
            listed.append((_NAMED, 0.0, named))
        similar: dict[str, Known] = {}
        for _, _, known in sorted(listed, key=lambda one: one[:2], reverse=True):
            if self._is_comparable(known.fact, candidate):
                similar.setdefault(known.fact.id, known)
        return list(similar.values())[: rules.candidates]

    async def linked(self, ns: Namespace, name: Link, values: Sequence[str]) -> list[Fact]:
        return readable(Fact, [entry.value for entry in await self.store.alinked(ns, name, values)])

    def _is_comparable(self, fact: Fact, candidate: Candidate) -> bool:
        # "Sorry, it is Bob and not Rob": a slip may be about somebody else.
        is_slip = not {*candidate.claim.corrects}.isdisjoint(fact.source_message_ids)
        if fact.id in (candidate.id, *candidate.claim.derived_from) or fact.state == "expired":
            return False
        if not candidate.is_about(fact.subject) and not (
            is_slip and says_alone(fact, candidate.mention.speaker)
        ):
            return False
        mention = candidate.mention
        if candidate.scope == self.agent_id and not may_be_used(
            fact, room_id=mention.room_id, people=(mention.speaker,)
        ):
            return False
        return not is_closed(fact, candidate.mention.at) or fact.superseded_by == candidate.id

    async def of_generation(self, candidate: Candidate, generation: int = 0) -> Candidate:
        """The candidate with the id of that generation of its claim."""
        ids = await self.ids(candidate.scope)
        return replace(candidate, id=ids.of(candidate.subject, candidate.claim.claim, generation))


def says_the_same(fact: Fact, claim: Claim) -> bool:
    """True if a claim is in other words what a fact says, or a part of it: a model may write the id of a wrong fact."""
    one, other = terms_that_mean(fact.claim), terms_that_mean(claim.claim)
    is_part = bool(one and other) and (one <= other or other <= one)
    return is_part and same_sense(fact.claim, claim.claim)


# Another subject ----------------------------------------------------------------------------------


def retold(facts: Sequence[Fact], speaker: str, subject: str, made: FactIds) -> list[Candidate]:
    """The records, all of a speaker, as claims about `subject`, in the same order. Each has the record that takes
    the place of the old one, with another id and subject, and links among these records only."""
    seen = Counter[str]()
    ids: dict[str, str] = {}
    for fact in facts:
        form = normal_form(fact.claim)
        ids[fact.id] = made.of(subject, fact.claim, seen[form])
        seen[form] += 1
    return [_retold(fact, speaker, subject, ids) for fact in facts]


def _retold(fact: Fact, speaker: str, subject: str, ids: dict[str, str]) -> Candidate:
    links = (fact.supersedes, fact.superseded_by, fact.refines, *fact.contradicts, *fact.derived_from)
    fact = unlinked(fact, {id for id in links if id is not None and id not in ids}, reopen=True)

    def new(id: str | None) -> str | None:
        return None if id is None else ids[id]

    given: Provenance = "self_reported" if subject == speaker else "third_party"
    before = {} if fact.subject == speaker else {TOLD_OF: fact.subject}
    moved = replace(
        fact,
        id=ids[fact.id],
        subject=subject,
        provenance="inferred" if fact.provenance == "inferred" else given,
        confidence=_confidence(fact, given),
        supersedes=new(fact.supersedes),
        superseded_by=new(fact.superseded_by),
        refines=new(fact.refines),
        contradicts=tuple(ids[id] for id in fact.contradicts),
        derived_from=tuple(ids[id] for id in fact.derived_from),
        origin={**{key: value for key, value in fact.origin.items() if key != TOLD_OF}, **before},
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
        id=moved.id,
        scope=speaker,
        subject=subject,
        mention=Mention(
            sources=fact.source_message_ids,
            speaker=fact.speaker,
            room_id=fact.room_ids[-1] if fact.room_ids else "",
            at=fact.last_seen_at,
            turn=fact.counted[-1] if fact.counted else "",
            visibility=fact.visibility,
        ),
        provenance=moved.provenance,
        sensitivity=fact.sensitivity,
        moved=moved,
    )


def _confidence(fact: Fact, provenance: Provenance) -> float:
    """The confidence of the same mentions, if the speaker had made them about the other subject."""
    if fact.provenance == "inferred":
        return fact.confidence
    found = prior(provenance)
    for _ in range(fact.mention_count - 1):
        found = after_mention(found, same_speaker=True)
    return max(found, fact.confidence) if provenance == "self_reported" else min(found, fact.confidence)
