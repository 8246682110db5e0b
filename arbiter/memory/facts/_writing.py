"""Writes the effects of a new claim. Every write changes one record, under its lock, and may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from arbiter.memory._context import EvalContext
from arbiter.memory._notes import Events, FactEvent, Traces
from arbiter.memory._records import BELIEVED, KINDS, Fact, readable
from arbiter.memory.facts._adjudication import Relation
from arbiter.memory.facts._changes import (
    CLOSED,
    corrected,
    detailed,
    disputed,
    ending,
    following,
    mentioned,
    reopened,
    retracted,
    says_alone,
    settled,
    superseded,
)
from arbiter.memory.facts._intake import Candidate
from arbiter.memory.facts._knowledge import Knowledge, Known
from arbiter.memory.facts._normal import caseless, normal_form
from arbiter.memory.stores import Value


class Writer:
    """Changes known facts, counts its changes, and notes them for evaluators that run later in the turn."""

    def __init__(self, ctx: EvalContext, knowledge: Knowledge) -> None:
        self.store = knowledge.store
        self.rules = knowledge.rules
        self.ctx = ctx
        self.knowledge = knowledge
        self.inserted = self.reinforced = self.superseded = self.refined = 0
        self.conflicts: list[tuple[str, str]] = []
        self.fact_ids: list[str] = []
        self.events = Events(self.store, ctx.agent_id, ctx.room_id)
        self.scopes: set[str] = set()
        """The entities with new or changed records."""

    async def related(self, record: Fact, known: Known, relation: Relation, candidate: Candidate) -> Fact:
        """Change the known fact as the relation demands. Returns the new record with its links."""
        old, at = known.fact, candidate.mention.at
        if relation != "refines" and _is_narrower(candidate, old):
            # What is said in confidence changes nothing elsewhere; where it is shown, it takes the other's place.
            replaces = relation != "unrelated" and says_alone(old, candidate.mention.speaker)
            return replace(record, supersedes=record.supersedes or old.id) if replaces else record
        if relation == "refines":
            await self.mention(known, candidate, event="refined", other=record.id)
            self.refined += 1
            return replace(record, refines=record.refines or old.id)
        if relation == "contradicts" and self._disputes(old, record, candidate):
            return await self._dispute(record, known, candidate)
        ends = relation == "ends" and (old.type == "status" or record.type == "fact")
        if relation not in ("corrects", "supersedes", "contradicts") and not ends:
            return record
        until = at if relation == "corrects" else record.valid_from or at
        # Two plans for one day do not follow one another.
        follows = until > at and not old.planned(until - timedelta.resolution)
        if follows and not (old.planned(at) and _is_same_value(old, record)):
            close = ending
        else:
            close = corrected if relation == "corrects" else superseded
            until = max(until, old.valid_from or until) if old.planned(at) else until
        changed = await self._change(known, candidate, lambda fact: close(fact, record.id, at=until))
        if changed is None or changed.superseded_by != record.id:
            return record
        if old.superseded_by != record.id:
            self.superseded += 1
            kind = "ended" if ends else "corrected" if relation == "corrects" else "superseded"
            self._note(kind, candidate, old, record.id)
            await self._followed(known, candidate, lambda fact: close(fact, record.id, at=until))
            if close is not ending:
                await self._unopposed(known, candidate, record.id)
            if close is not ending and old.planned(at):
                await self._replanned(known, candidate, record)
        return replace(record, supersedes=record.supersedes or old.id)

    def _disputes(self, old: Fact, record: Fact, candidate: Candidate) -> bool:
        """True if a contradiction by another speaker is a dispute. Otherwise it is a change: a status was only
        true for a time. Statements about oneself are not changed by others."""
        is_own = old.subject in (old.speaker, *old.speakers) and candidate.mention.speaker != old.subject
        return is_own or "status" not in (old.type, record.type)

    async def _replanned(self, known: Known, candidate: Candidate, record: Fact) -> None:
        """Undo the end of the facts that a given up plan was to replace, or leave it to the new plan."""
        since = record.valid_from

        def change(fact: Fact) -> Fact:
            lasting = reopened(fact, known.fact.id)
            if lasting is fact or since is None or since <= candidate.mention.at:
                return lasting
            return ending(lasting, record.id, at=since)

        for before in await self._replaced_by(known.fact, candidate):
            await self._change(before, candidate, change)

    async def _replaced_by(self, plan: Fact, candidate: Candidate) -> list[Known]:
        """The facts that a plan is to replace: there are several if it has taken the place of another plan."""
        first = await self.knowledge.find(candidate, plan.supersedes or "")
        found = {} if first is None or first.fact.superseded_by != plan.id else {first.fact.id: first}
        for kind in BELIEVED:
            ns = self.knowledge.space(kind, candidate)
            for fact in await self.knowledge.linked(ns, "superseded_by", [plan.id]):
                found[fact.id] = Known(kind=kind, fact=fact)
        return [*found.values()]

    async def _unopposed(self, known: Known, candidate: Candidate, by: str) -> None:
        """End the disputes that a closed fact leaves without another side. `by` has replaced the fact and
        may be the other side of the same disputes."""
        for id in known.fact.contradicts:
            rival = await self.knowledge.find(candidate, id)
            if rival is None or rival.fact.state != "disputed" or by in rival.fact.contradicts:
                continue
            left = [await self.knowledge.find(candidate, other) for other in rival.fact.contradicts]
            if not any(other is not None and other.fact.state == "disputed" for other in left):
                await self._change(rival, candidate, settled)

    async def _dispute(self, record: Fact, known: Known, candidate: Candidate) -> Fact:
        old = known.fact
        is_new = record.id not in old.contradicts
        changed = await self._change(known, candidate, lambda fact: disputed(fact, record.id))
        if changed is None or record.id not in changed.contradicts or changed.state in CLOSED:
            return record
        if is_new:
            self.conflicts.append((old.id, record.id))
            self._note("contradicted", candidate, old, record.id)
            await self._retract_derived(known, candidate)
        return replace(record, state="disputed", contradicts=(*record.contradicts, old.id))

    async def insert(self, record: Fact, candidate: Candidate) -> None:
        """Write a new record; if another writer has created it meanwhile, count the mention."""
        how: list[str] = []

        def change(value: Value | None) -> Value | None:
            there = Fact.read(value)
            if there is None:
                how[:] = ["inserted"]
                return record.to_value()
            after, counted = mentioned(there, candidate.mention, self.rules)
            how[:] = ["reinforced"] if counted else []
            return value if after is there else after.to_value()

        ns = self.knowledge.space(candidate.kind, candidate)
        await self._leave_trace(record.id, candidate.kind, candidate)
        written = Fact.read(await self.store.aupdate(ns, record.id, change, ttl=self._ttl))
        # Check after the write: forgetting writes the tombstone first and deletes records afterwards.
        if await self.knowledge.is_forgotten(candidate):
            await self.store.aupdate(ns, record.id, lambda value: None)
            return
        self.fact_ids.append(record.id)
        self.scopes.add(candidate.scope)
        if "inserted" in how:
            self.inserted += 1
        elif "reinforced" in how:
            self.reinforced += 1
            self._note("confirmed", candidate, written or record)
            if written is not None:
                await self._confirmed(record, written, candidate, counted=True)

    async def mention(
        self, known: Known, candidate: Candidate, *, event: str = "confirmed", other: str | None = None
    ) -> None:
        """Count the mention, once, and let it settle a dispute."""
        counted = False
        before: Fact = known.fact

        def change(value: Value | None) -> Value | None:
            nonlocal counted, before
            fact = Fact.read(value)
            if fact is None:
                counted = False
                return value
            before = fact
            claim, told = candidate.claim, candidate.mention
            literally = normal_form(fact.claim) == normal_form(claim.claim)
            after, counted = mentioned(fact, told, self.rules, literally=literally)
            if literally and fact.planned(told.at) and not (claim.already_known or claim.valid_from):
                claim = replace(claim, valid_from=told.at)  # a plan has come true early
            if counted and event == "confirmed":
                after = detailed(after, claim, self.rules)
            return value if after is fact else after.to_value()

        if candidate.mention.speaker not in known.fact.speakers:
            await self._leave_trace(known.fact.id, known.kind, candidate)
        ns = self.knowledge.space(known.kind, candidate)
        after = Fact.read(await self.store.aupdate(ns, known.fact.id, change, ttl=self._ttl))
        self.fact_ids.append(known.fact.id)
        self.scopes.add(candidate.scope)
        if event == "confirmed" and after is not None:
            await self._confirmed(before, after, candidate, counted=counted)
        if not counted:
            return
        if event == "confirmed":
            self.reinforced += 1
        self._note(event, candidate, after or before, other)
        if after is not None and after.valid_from != before.valid_from:
            await self._moved(after, candidate)
        if after is not None and after.visibility != before.visibility and after.supersedes:
            await self._revealed(after, candidate)
        if before.state == "disputed" and event == "confirmed":
            await self._settle(replace(known, fact=before), candidate)

    async def _moved(self, fact: Fact, candidate: Candidate) -> None:
        """A plan has another date: what it will replace lasts until then."""
        since = fact.valid_from
        if since is not None:
            for before in await self._replaced_by(fact, candidate):
                await self._change(
                    before, candidate, lambda old: ending(reopened(old, fact.id), fact.id, at=since)
                )

    async def _revealed(self, fact: Fact, candidate: Candidate) -> None:
        """A fact that was confided is now said openly, so it replaces other facts openly, too."""
        before = fact.supersedes and await self.knowledge.find(candidate, fact.supersedes)
        if before and before.fact.superseded_by is None:
            at = fact.valid_from or candidate.mention.at
            await self._change(before, candidate, lambda old: superseded(old, fact.id, at=at))

    async def _leave_trace(self, fact_id: str, kind: str, candidate: Candidate) -> None:
        """Note with the speaker a fact that is stored with somebody else."""
        speaker = candidate.mention.speaker
        if speaker != candidate.scope:
            traces = Traces(self.store, self.ctx.agent_id, speaker)
            await traces.has_told(fact_id, kind=kind, scope=candidate.scope)

    async def _settle(self, known: Known, candidate: Candidate) -> None:
        """End a dispute if a speaker of one side repeats it, or if the speaker of the other side changes
        over. Only the subject can overrule its own statement."""
        fact, speaker = known.fact, candidate.mention.speaker
        found = [await self.knowledge.find(candidate, id) for id in fact.contradicts]
        rivals = [rival for rival in found if rival is not None and rival.fact.state == "disputed"]
        overruled = any(rival.fact.provenance == "self_reported" for rival in rivals)
        lost = rivals if speaker in fact.speakers and (speaker == fact.subject or not overruled) else []
        lost = lost or [rival for rival in rivals if says_alone(rival.fact, speaker)]
        if not lost:
            return
        if len(lost) == len(rivals):
            won = await self._change(known, candidate, settled)
            if won is None or won.state != "active":
                return
        for rival in lost:
            changed = await self._change(
                rival, candidate, lambda side: superseded(side, fact.id, at=candidate.mention.at)
            )
            if changed is not None and changed.superseded_by == fact.id:
                self.superseded += 1
                self._note("superseded", candidate, rival.fact, fact.id)

    async def _followed(self, known: Known, candidate: Candidate, close: Callable[[Fact], Fact]) -> None:
        """Close the refinements of a superseded fact, too, and retract the facts inferred from it."""
        for kind in BELIEVED:
            ns = self.knowledge.space(kind, candidate)
            for entry in await self.store.alist(ns, filter={"refines": known.fact.id}):
                finer = Fact.read(entry.value)
                # The new record is not written yet, unless it refines the fact itself.
                if finer is not None and finer.id != candidate.id:
                    await self._change(Known(kind=kind, fact=finer), candidate, close)
        await self._retract_derived(known, candidate)

    async def _retract_derived(self, known: Known, candidate: Candidate) -> None:
        if not self.rules.chaining:
            return
        spaces = [self.knowledge.space(kind, candidate) for kind in BELIEVED]
        found = [entry.value for space in spaces for entry in await self.store.alist(space)]
        retract = partial(retracted, at=candidate.mention.at)
        for fact in following(readable(Fact, found), known.fact.id):
            await self._change(Known(kind=KINDS[fact.type], fact=fact), candidate, retract)

    async def _change(
        self, known: Known, candidate: Candidate, change: Callable[[Fact], Fact]
    ) -> Fact | None:
        """Change a record, unless a later turn has mentioned it. Returns the record afterwards; None if it
        is gone."""

        def apply(fact: Fact) -> Fact:
            return fact if fact.last_seen_at > candidate.mention.at else change(fact)

        ns = self.knowledge.space(known.kind, candidate, known.scope)
        altered = partial(Fact.altered, change=apply)
        return Fact.read(await self.store.aupdate(ns, known.fact.id, altered, ttl=self._ttl))

    def _ttl(self, value: Value) -> float | None:
        """Seconds after which a store may drop a record; None except for active facts that expire."""
        fact = Fact.read(value)
        if fact is None or fact.expires_at is None or fact.state != "active":
            return None
        return max((fact.expires_at - fact.last_seen_at) / timedelta(seconds=1), 1.0)

    async def _confirmed(self, before: Fact, after: Fact, candidate: Candidate, *, counted: bool) -> None:
        """Keep for the trust evaluator that a speaker has confirmed what others had said.

        The record shows it, so the same claim makes up for a crash between the two writes.
        """
        event = self._event("confirmed", candidate, after)
        if event.confirms and not (counted and event.speaker in before.speakers):
            await self.events.add(event)

    def _note(self, kind: str, candidate: Candidate, fact: Fact, other: str | None = None) -> None:
        self.ctx.events.append(self._event(kind, candidate, fact, other))

    def _event(self, kind: str, candidate: Candidate, fact: Fact, other: str | None = None) -> FactEvent:
        speaker = candidate.mention.speaker
        said = fact.speakers.index(speaker) if speaker in fact.speakers else len(fact.speakers)
        return FactEvent(
            kind=kind,
            speaker=speaker,
            fact_id=fact.id,
            other_id=other,
            confirms=fact.speakers[:said] if kind == "confirmed" else (),
            at=candidate.mention.at,
        )


def _is_same_value(one: Fact, other: Fact) -> bool:
    """True if both say the same of the same thing, as a plan does that has got another date."""
    return bool(one.slot and one.value) and (caseless(one.slot or ""), caseless(one.value or "")) == (
        caseless(other.slot or ""),
        caseless(other.value or ""),
    )


def _is_narrower(candidate: Candidate, fact: Fact) -> bool:
    """True if a claim is for its room only, and the fact is not."""
    return candidate.mention.visibility == "room" and fact.visibility != "room"
