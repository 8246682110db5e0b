"""Compares each claim with the known facts, and writes the result. All evaluators share this path.

admitted ─▶ exact ─known─▶ one mention more
              │ new
              ▼
          candidates ─▶ adjudication ─▶ known facts superseded, disputed, refined, ended ─▶ the record itself

Known facts change before the new record is written. Both writes are idempotent and keyed by the claim, so a
crash between them is repaired when the same claim comes again. See docs/memory.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import nlargest
from itertools import islice

from arbiter._threads.deadlines import awaited
from arbiter.memory._context import EvalContext
from arbiter.memory._outcomes import LIMIT
from arbiter.memory._records import Claim, Fact, Ingested
from arbiter.memory._telling import Told
from arbiter.memory.facts._adjudication import Pair, Relation, adjudicate
from arbiter.memory.facts._changes import CLOSED, is_closed, opens, outdated, says_alone
from arbiter.memory.facts._intake import Candidate, Intake
from arbiter.memory.facts._knowledge import Knowledge, Known, retold, says_the_same
from arbiter.memory.facts._normal import normal_form, same_sense
from arbiter.memory.facts._own_names import Introduction, OwnNames, same_name
from arbiter.memory.facts._rules import FactRules, expiry, prior
from arbiter.memory.facts._writing import Writer
from arbiter.memory.stores import MemoryStore
from arbiter.memory.stores._words import overlap, words_of
from arbiter.models import ChatModel

_IN_BATCH = 0.75
"""Claims of one batch are compared with each other too, from this overlap of words on."""
_GUESSES = 24
"""Pairs of one comparison that have nothing in common but their subject."""
_SHOWN = 16
"""Messages that one comparison shows."""
_CLAIMS = 500
"""Claims of one answer that are learned in any case, however few of them may be kept."""
_PATIENCE = 5.0
"""Seconds that a conversation waits for others of the same user; then it goes on without what they add."""
_SHARE = 1 / 6
"""The part of a handler's time that it waits at most: models need the rest."""
_told = Told()


@dataclass(slots=True, kw_only=True)
class _Judged:
    candidate: Candidate
    against: list[tuple[Known, Relation]] = field(default_factory=list[tuple[Known, Relation]])


class Ingestion:
    """The claims of one turn and one evaluator on their way into the store. `scopes` are the entities with
    new records, `shown` the records that the model was shown."""

    def __init__(
        self,
        store: MemoryStore,
        rules: FactRules,
        ctx: EvalContext,
        evaluator: str,
        model: ChatModel | None = None,
        shown: Iterable[Fact] = (),
    ) -> None:
        self.rules = rules
        self.shown = {fact.id: fact for fact in shown}
        self.ctx = ctx
        self.evaluator = evaluator
        self.model = model
        self.knowledge = Knowledge(store, rules, ctx.agent_id, ctx.clock)
        self.intake = Intake(ctx, rules)
        self.writer = Writer(ctx, self.knowledge)
        self.scopes = self.writer.scopes
        self.ending: dict[str, Known] = {}
        """By the ids of claims, the facts that they say again and that a plan is to replace."""
        self.named: dict[str, Known] = {}
        """By the ids of claims, the facts that the model says they repeat."""

    async def run(self, claims: Sequence[Claim], names: Sequence[Introduction] = ()) -> Ingested:
        intake, claims = self.intake, self._bounded(claims)
        async with self._alone() if claims else nullcontext():
            # Not before: somebody may have a message forgotten meanwhile.
            hidden = await self.ctx.hidden(anew=True)
            intake.forgotten, intake.asked = hidden.forgotten, hidden.asked
            await self.ctx.look_up([*(claim.subject for claim in claims), *(one.name for one in names)])
            for speaker in intake.speakers(claims, names):
                intake.names[speaker] = await self._names_of(speaker).all()
            for given in intake.introductions(claims, names):
                await self._introduced(given)
            await self._compare(intake.admitted(claims))
        writer = self.writer
        return Ingested(
            inserted=writer.inserted,
            reinforced=writer.reinforced,
            superseded=writer.superseded,
            refined=writer.refined,
            conflicts=tuple(dict.fromkeys(writer.conflicts)),
            dropped_private=intake.dropped_private,
            dropped_invalid=intake.dropped_invalid,
            fact_ids=tuple(dict.fromkeys(writer.fact_ids)),
        )

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """Wait for other conversations of this user that are read at this time: the second one must see what the
        first one adds."""
        lock = self.knowledge.store.lock(self.ctx.agent_id, "claims", self.ctx.entity_id)
        async with AsyncExitStack() as held:
            with suppress(TimeoutError):
                await awaited(min(_PATIENCE, _SHARE * LIMIT.get()), held.enter_async_context(lock))
            yield

    async def _compare(self, admitted: Iterable[Candidate]) -> None:
        fresh: list[Candidate] = []
        for candidate in admitted:
            generation, known = await self.knowledge.exact(candidate)
            named = None if known is not None else await self.knowledge.named(candidate)
            is_doubtful = (
                named is not None and self._can_ask() and not says_the_same(named.fact, candidate.claim)
            )
            if named is not None and not is_doubtful and same_sense(candidate.claim.claim, named.fact.claim):
                known = named
            repeats = known is None and candidate.claim.already_known and not is_doubtful
            if known is not None and _may_count(known, candidate):
                if _has_to_end(known.fact, candidate):
                    fresh.append(await self.knowledge.of_generation(candidate, generation))
                    self.ending[fresh[-1].id] = known
                else:
                    await self.writer.mention(known, candidate)
            elif not repeats:
                fresh.append(await self.knowledge.of_generation(candidate, generation))
                if named is not None:
                    self.named[fresh[-1].id] = named
        await self._take_all(fresh)

    def _can_ask(self) -> bool:
        return (self.model or self.ctx.model) is not None and self.ctx.budget.left > 0

    def _bounded(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """The first different claims, as many as an entity's facts may be: each is compared with all before it."""
        most = max(_CLAIMS, self.rules.max_facts_per_entity)
        different = dict.fromkeys(_said(claim) for claim in claims)
        if len(different) <= most:
            return claims
        self.intake.dropped_invalid += len(different) - most
        _told.too_many(self.evaluator, most)
        kept = {*islice(different, most)}
        return [claim for claim in claims if _said(claim) in kept]

    async def _take_all(self, fresh: list[Candidate]) -> None:
        # In the order in which the claims were said, because the newest statement of a speaker holds.
        fresh.sort(key=self._place)
        for judged in await self._judged(fresh):
            await self._take_in(judged)

    # Speakers who introduce themselves

    def _names_of(self, speaker: str) -> OwnNames:
        return OwnNames(self.knowledge.store, self.ctx.agent_id, speaker)

    async def _introduced(self, given: Introduction) -> None:
        """Keep what a speaker says of a name, unless the name is another entity's. Facts that the speaker gave
        about somebody of an own name are about the speaker, unless the speaker has told of another one of that
        name, or is already known by another name."""
        if self.intake.is_taken(given):
            return
        known = self.intake.names[given.speaker]
        shared = any(one.whose == "another's" and same_name(one.name, given.name) for one in known)
        if shared and given.whose == "another's":
            return
        names = self._names_of(given.speaker)
        await names.note(given)
        self.intake.names[given.speaker] = await names.all()
        is_called = any(one.whose == "own" and not same_name(one.name, given.name) for one in known)
        if given.whose == "own" and not shared and not is_called:
            told = await self.knowledge.told_of(given.speaker, given.name)
            await self._move(told, given.speaker, given.speaker)
        if given.whose == "not own":
            home = await self.knowledge.brought_home(given.speaker, given.name)
            await self.knowledge.unlink(given.speaker, {known.fact.id for known in home})
            await self._move(home, given.speaker, normal_form(given.name))

    async def _move(self, records: Sequence[Known], speaker: str, subject: str) -> None:
        """Make records of a speaker claims about `subject`, compared with what else is known of it."""
        writer = self.writer
        counted = writer.inserted, writer.reinforced
        fresh: list[Candidate] = []
        ids = await self.knowledge.ids(speaker)
        for candidate in retold([known.fact for known in records], speaker, subject, ids):
            if candidate.moved is not None and candidate.moved.state in CLOSED:
                await writer.insert(candidate.moved, candidate)
                continue
            generation, same = await self.knowledge.exact(candidate)
            if same is None:
                fresh.append(await self.knowledge.of_generation(candidate, generation))
            else:
                await writer.mention(same, candidate)
        await self._take_all(fresh)
        for known in records:
            await self.knowledge.remove(known, speaker)
        writer.inserted, writer.reinforced = counted  # nothing of this is new

    async def _judged(self, fresh: Sequence[Candidate]) -> list[_Judged]:
        """Each new claim with its relation to similar records, and to similar earlier claims of the batch."""
        found = [_Judged(candidate=candidate) for candidate in fresh]
        words = [words_of(candidate.claim.claim) for candidate in fresh]
        records = [Known(kind=candidate.kind, fact=self._record(candidate)) for candidate in fresh]
        asked: list[tuple[_Judged, Known]] = []
        guesses = _GUESSES
        for place, judged in enumerate(found):
            if (again := self.ending.get(judged.candidate.id)) is not None:
                judged.against.append((again, "duplicate"))
                asked += [(judged, plan) for plan in await self._plans_after(again.fact, judged.candidate)]
                continue
            for known in await self.knowledge.similar(judged.candidate, self.named.get(judged.candidate.id)):
                decided = self._decided(known.fact, judged.candidate)
                if decided is not None:
                    judged.against.append((known, decided))
                elif known.fact.state not in CLOSED and (guesses > 0 or not known.guessed):
                    asked.append((judged, known))
                    guesses -= known.guessed
            alike = [
                (score, before)
                for before, earlier in enumerate(fresh[:place])
                if (score := _likeness(earlier, judged.candidate, words[before], words[place]))
            ]
            closest = sorted(before for _, before in nlargest(self.rules.candidates, alike))
            asked += [(judged, records[before]) for before in closest]
        pairs = [self._pair(judged.candidate, known) for judged, known in asked]
        ids = {id for pair in pairs for id in pair.message_ids}
        relations = await adjudicate(pairs, self.ctx, self.model, self.intake.spoken(ids)[-_SHOWN:])
        for (judged, known), relation in zip(asked, relations, strict=True):
            judged.against.append((known, relation))
        return found

    async def _plans_after(self, fact: Fact, candidate: Candidate) -> list[Known]:
        """The plan that is to replace a fact, and those that follow it, in this order."""
        found: list[Known] = []
        while len(found) < self.rules.candidates:
            plan = await self.knowledge.find(candidate, fact.superseded_by or "")
            if plan is None or not plan.fact.planned(candidate.mention.at):
                break
            found.append(plan)
            fact = plan.fact
        return found

    def _pair(self, candidate: Candidate, known: Known) -> Pair:
        fact = known.fact
        speaks_again = says_alone(fact, candidate.mention.speaker)
        return Pair(
            new=self._record(candidate),
            known=fact,
            same_speaker=speaks_again,
            about_itself=fact.subject in {fact.speaker, *fact.speakers},
            corrected=speaks_again and not {*candidate.claim.corrects}.isdisjoint(fact.source_message_ids),
            other_subject=not candidate.is_about(fact.subject),
            again=candidate.id in self.ending,
        )

    def _place(self, candidate: Candidate) -> int:
        return self.intake.place(candidate.mention.sources)

    def _is_older(self, candidate: Candidate, fact: Fact) -> bool:
        """True if the claim was said before the known fact was said last: in this conversation by the order
        of its messages, else by time. What is in the future was said before the clock was set back."""
        said, known = self._place(candidate), self.intake.place(fact.source_message_ids)
        if said >= 0 and known >= 0 and said != known:
            return said < known
        return candidate.mention.at < fact.last_seen_at <= self.ctx.clock()

    def _decided(self, fact: Fact, candidate: Candidate) -> Relation | None:
        """The relation that needs no comparison: one that an earlier, crashed attempt has applied, or the same
        words in a record with an id of another store. None if there is none."""
        if fact.superseded_by == candidate.id:
            return "corrects" if fact.state == "corrected" else "supersedes"
        if candidate.id in fact.contradicts:
            return "contradicts"
        same = normal_form(fact.claim) == normal_form(candidate.claim.claim)
        if not same or fact.state in CLOSED:
            return None
        return "duplicate" if fact.subject == candidate.subject else "corrects"

    async def _was_forgotten(self, candidate: Candidate) -> bool:
        """True if the claim repeats a record that was forgotten, in another thread or process, since the model has
        seen it."""
        repeated = {id for id in (candidate.id, candidate.claim.known_id) if id in self.shown}
        facts = [self.shown[id] for id in repeated if candidate.is_about(self.shown[id].subject)]
        return candidate.moved is None and any([await self.knowledge.was_forgotten(fact) for fact in facts])

    async def _take_in(self, judged: _Judged) -> None:
        candidate = judged.candidate
        if await self._was_forgotten(candidate):
            self.intake.dropped_private += 1
            return
        if any(
            known.fact.sensitivity == "sensitive" and relation in ("duplicate", "refines")
            for known, relation in judged.against
        ):
            candidate = candidate.as_sensitive()
        # After the clock was set back, what was said before is in the future.
        now = self.ctx.clock()
        earlier = [
            known.fact.last_seen_at
            for known, relation in judged.against
            if relation != "unrelated" and not self._is_older(candidate, known.fact)
        ]
        candidate = candidate.not_before(time for time in earlier if time > now)
        duplicates = [known for known, relation in judged.against if relation == "duplicate"]
        # A confidential duplicate in other words stays confidential: an open claim gets a record of its own.
        same = next((known for known in duplicates if _may_count(known, candidate)), None)
        if same is not None:
            await self.writer.mention(same, candidate)
            by = same.fact.superseded_by
            for plan, relation in judged.against:
                # "I stay in Bern after all" says again what is known, and gives up what was to replace it.
                if plan.fact.id == by and plan.fact.planned(candidate.mention.at):
                    await self.writer.related(same.fact, plan, relation, candidate)
                    by = plan.fact.superseded_by
            return
        record = self._record(candidate)
        if candidate.claim.derived_from:
            premises = [await self.knowledge.find(candidate, id) for id in candidate.claim.derived_from]
            if not all(known is not None and known.fact.state == "active" for known in premises):
                return
            record = replace(
                record, confidence=prior("inferred", [known.fact.confidence for known in premises if known])
            )
        for known, relation in judged.against:
            if relation != "refines" and _was_over(candidate) and known.fact.valid_to is None:
                continue  # a time that is past ends nothing: "I lived in Rome until 2019"
            if self._is_older(candidate, known.fact) and says_alone(known.fact, candidate.mention.speaker):
                record = outdated(record, known.fact, relation)
            else:
                record = await self.writer.related(record, known, relation, candidate)
        await self.writer.insert(record, candidate)

    def _record(self, candidate: Candidate) -> Fact:
        if candidate.moved is not None:
            return replace(candidate.moved, id=candidate.id)
        claim, mention, ctx = candidate.claim, candidate.mention, self.ctx
        origin = {"thread_id": ctx.room_id, "node": ctx.node, "evaluator": self.evaluator}
        if ctx.checkpoint_id is not None:
            origin["checkpoint_id"] = ctx.checkpoint_id
        record = Fact(
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
            kind=claim.kind,
            valid_from=claim.valid_from,
            valid_to=_end(claim, mention.at),
            derived_from=claim.derived_from,
            sensitivity=candidate.sensitivity,
            visibility=mention.visibility,
            origin=origin,
            speakers=(mention.speaker,),
            counted=(mention.turn,),
        )
        return replace(record, expires_at=expiry(record, self.rules))


def _said(claim: Claim) -> tuple[str, str]:
    return str(claim.claim), str(claim.subject)


def _may_count(known: Known, candidate: Candidate) -> bool:
    """True if a claim may count as a mention of a known fact: it has the same words, or its audience
    already knows the fact."""
    return normal_form(known.fact.claim) == normal_form(candidate.claim.claim) or not opens(
        known.fact, candidate.mention
    )


def _has_to_end(fact: Fact, candidate: Candidate) -> bool:
    """True if a plan is to replace a fact that a new message says again: the plan may have been given up."""
    mention = candidate.mention
    is_new = not {*mention.sources} <= {*fact.source_message_ids}
    return is_new and fact.superseded_by is not None and not is_closed(fact, mention.at)


def _end(claim: Claim, said_at: datetime) -> datetime | None:
    """The end of validity; None for a state that was over when it was mentioned ("I lived in Rome until 2019")."""
    if claim.valid_to is None or (claim.valid_from is not None and claim.valid_to <= claim.valid_from):
        return None
    return None if claim.type == "fact" and claim.valid_to <= said_at else claim.valid_to


def _was_over(candidate: Candidate) -> bool:
    """True if a claim is about a time that was over when it was made."""
    until = candidate.claim.valid_to
    return until is not None and until <= candidate.mention.at and not candidate.claim.corrects


def _likeness(one: Candidate, other: Candidate, words: Set[str], others: Set[str]) -> float:
    """The worth of comparing two claims of one batch, with these words; 0.0 for none."""
    if (
        one.scope != other.scope
        or one.subject != other.subject
        or "opinion" in (one.claim.type, other.claim.type)
    ):
        return 0.0
    shared = overlap(words, others)
    if not {*other.claim.corrects}.isdisjoint(one.mention.sources):
        return 1 + shared
    if one.claim.slot and one.claim.slot == other.claim.slot:
        # Of many values of a slot the latest: each has replaced the ones before.
        return 2.0 if normal_form(one.claim.value or "") != normal_form(other.claim.value or "") else 0.0
    return shared if shared >= _IN_BATCH else 0.0
