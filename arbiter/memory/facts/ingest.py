"""One `ingest` for whoever found a claim: compare it with what is known, and write what follows.

admitted ─▶ exact ─known─▶ one mention more
              │ new
              ▼
          candidates ─▶ adjudication ─▶ what it supersedes, contradicts, refines, ends ─▶ the record itself

What is known is changed before the new record is written. Both are idempotent and keyed by what the claim says, so a
crash between them is mended when the same claim comes again. See docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from arbiter.memory.context import EvalContext, FactEvent
from arbiter.memory.facts.adjudication import Pair, Relation, Statement, adjudicate
from arbiter.memory.facts.changes import (
    CLOSED,
    disputed,
    expiry,
    mentioned,
    read,
    retracted,
    settled,
    superseded,
)
from arbiter.memory.facts.claims import Claim, Ingested
from arbiter.memory.facts.confidence import prior
from arbiter.memory.facts.guards import may_repeat
from arbiter.memory.facts.intake import Candidate, Intake
from arbiter.memory.facts.normal import fact_id, normal_form, tombstone_key
from arbiter.memory.facts.rules import FactRules
from arbiter.memory.records import Fact
from arbiter.memory.stores import MemoryStore, Value, namespace
from arbiter.memory.words import overlap, words_of

_MOST_GENERATIONS = 100
_IN_BATCH = 0.75
"""Claims of one batch that share so many words are compared with each other, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A record, and the kind of name space that it is in. `score` as in `Pair`."""

    kind: str
    fact: Fact
    score: float | None = None


@dataclass(slots=True, kw_only=True)
class _Judged:
    candidate: Candidate
    against: list[tuple[Known, Relation]] = field(default_factory=list[tuple[Known, Relation]])


class Ingestion:
    """The claims of one turn and one evaluator on their way into the store."""

    def __init__(self, store: MemoryStore, rules: FactRules, ctx: EvalContext, evaluator: str) -> None:
        self.store = store
        self.rules = rules
        self.ctx = ctx
        self.evaluator = evaluator
        self.inserted = self.reinforced = self.superseded = self.refined = 0
        self.conflicts: list[tuple[str, str]] = []
        self.fact_ids: list[str] = []
        self.scopes: set[str] = set()
        """The entities of whom something new was written."""

    async def run(self, claims: Sequence[Claim]) -> Ingested:
        intake = Intake(self.ctx, self.rules)
        fresh: list[Candidate] = []
        for candidate in intake.admitted(claims):
            if await self._is_forgotten(candidate):
                intake.dropped_private += 1
                continue
            generation, known = await self._exact(candidate)
            known = known or await self._named(candidate)
            if known is not None:
                await self._mention(known, candidate)
            elif not candidate.claim.already_known:
                fresh.append(self._of_generation(candidate, generation))
        for judged in await self._judged(fresh):
            await self._take_in(judged)
        return Ingested(
            inserted=self.inserted,
            reinforced=self.reinforced,
            superseded=self.superseded,
            refined=self.refined,
            conflicts=tuple(dict.fromkeys(self.conflicts)),
            dropped_private=intake.dropped_private,
            dropped_invalid=intake.dropped_invalid,
            fact_ids=tuple(dict.fromkeys(self.fact_ids)),
        )

    # What is known --------------------------------------------------------------------------------

    async def _exact(self, candidate: Candidate) -> tuple[int, Known | None]:
        """The record of that very claim, and which generation of it is the next to be written.

        A closed record is history: unless it was this very source that it came from, the claim begins anew.
        """
        generation = 0
        for kind in candidate.kinds:
            for number in range(_MOST_GENERATIONS):
                id = self._id(candidate, number)
                fact = read(await self.store.aget(self._namespace(kind, candidate), id))
                if fact is None:
                    break
                known = Known(kind=kind, fact=fact)
                if fact.state not in CLOSED or self._is_history(fact, candidate):
                    return number, known
                generation = max(generation, number + 1)
        return generation, None

    def _is_history(self, fact: Fact, candidate: Candidate) -> bool:
        ended = fact.valid_to is not None and candidate.mention.at < fact.valid_to
        return ended or {*candidate.mention.sources} <= {*fact.source_message_ids}

    async def _named(self, candidate: Candidate) -> Known | None:
        """The record that the model says is repeated, if that can be."""
        id = candidate.claim.known_id
        if not id:
            return None
        known = await self._find(candidate, id)
        if known is None or known.fact.state in CLOSED or known.fact.subject != candidate.subject:
            return None
        return known if may_repeat(candidate.claim.claim, known.fact.claim) else None

    async def _find(self, candidate: Candidate, id: str) -> Known | None:
        for kind in candidate.kinds:
            fact = read(await self.store.aget(self._namespace(kind, candidate), id))
            if fact is not None:
                return Known(kind=kind, fact=fact)
        return None

    async def _is_forgotten(self, candidate: Candidate) -> bool:
        key = tombstone_key(self.ctx.agent_id, candidate.scope, candidate.claim.claim)
        return await self.store.aget(self._namespace("tombstones", candidate), key) is not None

    # Candidates and their relations ---------------------------------------------------------------

    async def _judged(self, fresh: Sequence[Candidate]) -> list[_Judged]:
        """Each new claim with what it is to similar records, and to similar claims before it in the batch."""
        found = [_Judged(candidate=candidate) for candidate in fresh]
        asked: list[tuple[_Judged, Known]] = []
        for place, judged in enumerate(found):
            for known in await self._similar(judged.candidate):
                decided = self._decided(known.fact, judged.candidate)
                if decided is not None:
                    judged.against.append((known, decided))
                elif known.fact.state not in CLOSED:
                    asked.append((judged, known))
            for earlier in fresh[:place]:
                if _alike(earlier, judged.candidate):
                    asked.append((judged, Known(kind=earlier.kind, fact=self._record(earlier))))
        pairs = [
            Pair(new=_statement(judged.candidate), known=_stated(known.fact), score=known.score)
            for judged, known in asked
        ]
        for (judged, known), relation in zip(
            asked, await adjudicate(pairs, self.ctx, self.rules), strict=True
        ):
            judged.against.append((known, relation))
        return found

    async def _similar(self, candidate: Candidate) -> list[Known]:
        """The records of the same subject that may have to do with a claim, most similar first."""
        if candidate.claim.type == "opinion":
            return []
        rules = self.rules
        scored: dict[str, tuple[float, Known]] = {}
        for kind in candidate.kinds:
            ns = self._namespace(kind, candidate)
            found = await self.store.asearch(ns, candidate.claim.claim, limit=2 * rules.candidates)
            for entries, semantic in ((found.entries, found.semantic), (found.by_words, False)):
                least = rules.candidate_score if semantic else rules.lexical_score
                for entry in entries:
                    fact = read(entry.value)
                    if fact is None or entry.score is None or entry.score < least:
                        continue
                    known = Known(kind=kind, fact=fact, score=entry.score if semantic else None)
                    scored.setdefault(fact.id, (entry.score, known))
            if candidate.claim.slot:
                for entry in await self.store.alist(ns, filter={"slot": candidate.claim.slot}):
                    fact = read(entry.value)
                    if fact is not None:
                        scored.setdefault(fact.id, (0.0, Known(kind=kind, fact=fact)))
        best = sorted(scored.values(), key=lambda pair: pair[0], reverse=True)
        similar = [known for _, known in best if self._is_comparable(known.fact, candidate)]
        return similar[: rules.candidates]

    def _is_comparable(self, fact: Fact, candidate: Candidate) -> bool:
        if fact.subject != candidate.subject or fact.id == candidate.id or fact.state == "expired":
            return False
        return fact.state not in CLOSED or fact.superseded_by == candidate.id

    def _decided(self, fact: Fact, candidate: Candidate) -> Relation | None:
        """The relation, if it was already acted on before a crash kept the claim from being written."""
        if fact.superseded_by == candidate.id:
            return "supersedes"
        return "contradicts" if candidate.id in fact.contradicts else None

    # Writing --------------------------------------------------------------------------------------

    async def _take_in(self, judged: _Judged) -> None:
        candidate = judged.candidate
        same = next((known for known, relation in judged.against if relation == "duplicate"), None)
        if same is not None:
            await self._mention(same, candidate)
            return
        record = self._record(candidate)
        if candidate.claim.derived_from:
            premises = [await self._find(candidate, id) for id in candidate.claim.derived_from]
            if not all(known is not None and known.fact.state == "active" for known in premises):
                return
            record = replace(
                record, confidence=prior("inferred", [known.fact.confidence for known in premises if known])
            )
        for known, relation in judged.against:
            record = await self._related(record, known, relation, candidate)
        await self._insert(record, candidate)

    async def _related(self, record: Fact, known: Known, relation: Relation, candidate: Candidate) -> Fact:
        """Change what is known as the relation says; the new record with its links."""
        old, at = known.fact, candidate.mention.at
        if relation == "refines":
            await self._mention(known, candidate, event="refined", other=record.id)
            self.refined += 1
            return replace(record, refines=record.refines or old.id)
        if relation == "contradicts" and "status" not in (old.type, record.type):
            return await self._dispute(record, known, candidate)
        ends = relation == "ends" and (old.type == "status" or record.type == "fact")
        # A contradiction to what was only true for the time being is a change.
        if relation in ("supersedes", "contradicts") or ends:
            until = record.valid_from or at
            changed = await self._change(known, candidate, lambda fact: superseded(fact, record.id, at=until))
            if changed is not None and changed.superseded_by == record.id:
                if old.state not in CLOSED:
                    self.superseded += 1
                    self._note("ended" if ends else "superseded", candidate, old, record.id)
                    await self._followed(known, candidate, record.id, until)
                return replace(record, supersedes=record.supersedes or old.id)
        return record

    async def _dispute(self, record: Fact, known: Known, candidate: Candidate) -> Fact:
        old = known.fact
        changed = await self._change(known, candidate, lambda fact: disputed(fact, record.id))
        if changed is None or record.id not in changed.contradicts or changed.state in CLOSED:
            return record
        if record.id not in old.contradicts:
            self.conflicts.append((old.id, record.id))
            self._note("contradicted", candidate, old, record.id)
            await self._retract_derived(known, candidate)
        return replace(record, state="disputed", contradicts=(*record.contradicts, old.id))

    async def _insert(self, record: Fact, candidate: Candidate) -> None:
        """Write a new record; if it is there meanwhile, as somebody else's, count the mention."""
        how: list[str] = []

        def change(value: Value | None) -> Value | None:
            there = read(value)
            if there is None:
                how[:] = ["inserted"]
                return record.to_value()
            after, counted = mentioned(there, candidate.mention, self.rules)
            how[:] = ["reinforced"] if counted else []
            return value if after is there else after.to_value()

        known = Known(kind=candidate.kind, fact=record)
        ns = self._namespace(candidate.kind, candidate)
        await self.store.aupdate(ns, record.id, change, ttl=self._ttl)
        # Looked at once more: it may have been forgotten meanwhile. Whoever forgets marks first and then deletes.
        if await self._is_forgotten(candidate):
            await self.store.aupdate(ns, record.id, lambda value: None)
            return
        self.fact_ids.append(record.id)
        self.scopes.add(candidate.scope)
        if "inserted" in how:
            self.inserted += 1
        elif "reinforced" in how:
            self.reinforced += 1
            self._note("confirmed", candidate, known.fact)

    async def _mention(
        self, known: Known, candidate: Candidate, *, event: str = "confirmed", other: str | None = None
    ) -> None:
        """Count the mention, once, and let it settle a dispute."""
        counted = False
        before: Fact = known.fact

        def change(value: Value | None) -> Value | None:
            nonlocal counted, before
            fact = read(value)
            if fact is None:
                counted = False
                return value
            before = fact
            after, counted = mentioned(fact, candidate.mention, self.rules)
            return value if after is fact else after.to_value()

        ns = self._namespace(known.kind, candidate)
        await self.store.aupdate(ns, known.fact.id, change, ttl=self._ttl)
        self.fact_ids.append(known.fact.id)
        if not counted:
            return
        if event == "confirmed":
            self.reinforced += 1
        self._note(event, candidate, before, other)
        if before.state == "disputed" and event == "confirmed":
            await self._settle(replace(known, fact=before), candidate)

    async def _settle(self, known: Known, candidate: Candidate) -> None:
        """A dispute ends when one who said one side says it again; not against what somebody says of themselves."""
        fact, speaker = known.fact, candidate.mention.speaker
        found = [await self._find(candidate, id) for id in fact.contradicts]
        rivals = [rival for rival in found if rival is not None and rival.fact.state == "disputed"]
        overruled = any(rival.fact.provenance == "self_reported" for rival in rivals)
        if speaker not in fact.speakers or (overruled and speaker != fact.subject):
            return
        won = await self._change(known, candidate, settled)
        if won is None or won.state != "active":
            return
        for rival in rivals:
            changed = await self._change(
                rival, candidate, lambda lost: superseded(lost, fact.id, at=candidate.mention.at)
            )
            if changed is not None and changed.superseded_by == fact.id:
                self.superseded += 1
                self._note("superseded", candidate, rival.fact, fact.id)

    async def _followed(self, known: Known, candidate: Candidate, by: str, at: datetime) -> None:
        """What said it more exactly goes with what is superseded, and so does what was inferred from it."""
        for kind in ("facts", "status"):
            ns = self._namespace(kind, candidate)
            for entry in await self.store.alist(ns, filter={"refines": known.fact.id}):
                finer = read(entry.value)
                if finer is not None and finer.id != by and finer.state not in CLOSED:
                    await self._change(
                        Known(kind=kind, fact=finer), candidate, lambda fact: superseded(fact, by, at=at)
                    )
        await self._retract_derived(known, candidate)

    async def _retract_derived(self, known: Known, candidate: Candidate) -> None:
        if not self.rules.chaining:
            return
        for kind in ("facts", "status"):
            for entry in await self.store.alist(self._namespace(kind, candidate)):
                fact = read(entry.value)
                if fact is None or known.fact.id not in fact.derived_from or fact.state in CLOSED:
                    continue
                derived = Known(kind=kind, fact=fact)
                await self._change(derived, candidate, lambda fact: retracted(fact, at=candidate.mention.at))
                await self._retract_derived(derived, candidate)

    async def _change(
        self, known: Known, candidate: Candidate, change: Callable[[Fact], Fact]
    ) -> Fact | None:
        """Change a record, unless a later turn has spoken of it. What is there afterwards; None if it is gone."""

        def apply(value: Value | None) -> Value | None:
            fact = read(value)
            if fact is None or fact.last_seen_at > candidate.mention.at:
                return value
            after = change(fact)
            return value if after is fact else after.to_value()

        ns = self._namespace(known.kind, candidate)
        return read(await self.store.aupdate(ns, known.fact.id, apply, ttl=self._ttl))

    # Records --------------------------------------------------------------------------------------

    def _record(self, candidate: Candidate) -> Fact:
        claim, mention, ctx = candidate.claim, candidate.mention, self.ctx
        checkpoint: Any = ctx.config.get("configurable", {}).get("checkpoint_id")
        origin = {"thread_id": ctx.room_id, "node": ctx.node, "evaluator": self.evaluator}
        return Fact(
            id=candidate.id,
            claim=claim.claim.strip(),
            type="fact" if claim.type == "fact" else "status" if claim.type == "status" else "opinion",
            subject=candidate.subject,
            agent_id=ctx.agent_id,
            provenance=candidate.provenance,
            speaker=mention.speaker,
            confidence=prior(candidate.provenance),
            first_seen_at=mention.at,
            last_seen_at=mention.at,
            source_message_ids=mention.sources,
            room_ids=(mention.room_id,),
            slot=claim.slot,
            value=claim.value,
            valid_from=claim.valid_from,
            derived_from=claim.derived_from,
            sensitivity=candidate.sensitivity,
            visibility=mention.visibility,
            expires_at=expiry(claim.type, mention.at, self.rules),
            origin={**origin, **({"checkpoint_id": checkpoint} if isinstance(checkpoint, str) else {})},
            speakers=(mention.speaker,),
            counted=(mention.turn,),
        )

    def _id(self, candidate: Candidate, generation: int) -> str:
        return fact_id(self.ctx.agent_id, candidate.subject, candidate.claim.claim, generation)

    def _of_generation(self, candidate: Candidate, generation: int) -> Candidate:
        return replace(candidate, id=self._id(candidate, generation)) if generation else candidate

    def _namespace(self, kind: str, candidate: Candidate) -> tuple[str, ...]:
        return namespace(self.ctx.agent_id, kind, candidate.scope)

    def _ttl(self, value: Value) -> float | None:
        """Seconds after which a store may drop a record by itself: what is still believed, and only for a time."""
        fact = read(value)
        if fact is None or fact.expires_at is None or fact.state != "active":
            return None
        return max((fact.expires_at - fact.last_seen_at) / timedelta(seconds=1), 1.0)

    def _note(self, kind: str, candidate: Candidate, fact: Fact, other: str | None = None) -> None:
        speaker = candidate.mention.speaker
        self.ctx.events.append(
            FactEvent(
                kind=kind,
                speaker=speaker,
                fact_id=fact.id,
                other_id=other,
                same_speaker=speaker in fact.speakers,
            )
        )


def _statement(candidate: Candidate) -> Statement:
    claim = candidate.claim
    return Statement(claim=claim.claim, type=claim.type, slot=claim.slot, value=claim.value)


def _stated(fact: Fact) -> Statement:
    return Statement(claim=fact.claim, type=fact.type, slot=fact.slot, value=fact.value)


def _alike(one: Candidate, other: Candidate) -> bool:
    """Whether two claims of one batch are worth comparing."""
    if (
        one.scope != other.scope
        or one.subject != other.subject
        or "opinion" in (one.claim.type, other.claim.type)
    ):
        return False
    if one.claim.slot and one.claim.slot == other.claim.slot:
        return normal_form(one.claim.value or "") != normal_form(other.claim.value or "")
    return overlap(words_of(one.claim.claim), words_of(other.claim.claim)) >= _IN_BATCH
