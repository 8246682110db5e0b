"""`FactEvaluator`: learns facts, statuses and opinions from a conversation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal, Unpack, cast
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage
from pydantic import BaseModel

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter.errors import ParameterError
from arbiter.memory._characters import checked_instructions
from arbiter.memory._commands import hastens
from arbiter.memory._context import EvalContext, UnusableAnswerError
from arbiter.memory._conversation import originals, text_of, window
from arbiter.memory._cursors import Cursors
from arbiter.memory._entities import resolve
from arbiter.memory._evaluators import (
    CognitiveEvaluator,
    CognitiveOptions,
    EvaluationExample,
    ExampleMessage,
    HandlerOutcome,
)
from arbiter.memory._off_record import on_record
from arbiter.memory._records import Claim, ClaimType, Fact, Ingested
from arbiter.memory.answers import StructuredOutcome
from arbiter.memory.facts._changes import Mention
from arbiter.memory.facts._extraction import (
    ExtractedClaims,
    GivenName,
    InferredClaims,
    extraction,
    fact_of,
    identified,
    label,
    meant,
    rendered,
    says_nothing,
)
from arbiter.memory.facts._fact_store import facts_of
from arbiter.memory.facts._forgetting import Wanted
from arbiter.memory.facts._intake import is_generic
from arbiter.memory.facts._normal import caseless
from arbiter.memory.facts._own_names import Introduction, OwnNames, denies
from arbiter.memory.facts._profiles import (
    Update,
    checked_schemas,
    fields_of,
    lines_of,
    listed_as,
    still_told,
    updates_in,
    with_profiles,
)
from arbiter.memory.facts._wishes import Carried, WishBook, command_of
from arbiter.models import ChatModel, model_of, visible

_log = logging.getLogger("arbiter.memory")

Trigger = Literal["cursor", "modulo"]
_CONTEXT = 4
_MOST = 64
_PEOPLE = 8
_QUERY = 4_000
"""Characters of the messages with which known facts are looked for."""
_KNOWN = 200
"""Records of a speaker that a prompt shows if a message may ask to forget some."""

EXAMPLES = (
    EvaluationExample(
        context="{{user1}} tells the agent about a change in life.",
        messages=(
            ExampleMessage("{{user1}}", "I just moved to Seattle last month!"),
            ExampleMessage("Agent", "How are you finding the weather there?"),
            ExampleMessage("{{user1}}", "It's rainy, but I love my new job at the tech startup"),
        ),
        outcome="""{"claims": [
{"claim": "{{user1}} moved to Seattle last month", "type": "fact", "in_bio": false, "already_known": false},
{"claim": "{{user1}} works at a tech startup", "type": "fact", "in_bio": false, "already_known": false},
{"claim": "{{user1}} enjoys their new job", "type": "opinion", "in_bio": false, "already_known": false}]}""",
    ),
    EvaluationExample(
        context="{{user1}} and the agent talk about a friend, of whom the agent knows where he lives.",
        messages=(
            ExampleMessage(
                "{{user1}}", "{{user2}} still lives in New York. He is busy with a new project these days."
            ),
            ExampleMessage("Agent", "You should visit him!"),
        ),
        outcome="""{"claims": [
{"claim": "{{user2}} lives in New York", "type": "fact", "in_bio": false, "already_known": true,
 "subject": "{{user2}}"},
{"claim": "{{user2}} is working on a new project", "type": "status", "in_bio": false, "already_known": false,
 "subject": "{{user2}}"}]}""",
    ),
)


class FactEvaluator(CognitiveEvaluator):
    """Learns facts about the participants of a conversation, once half a conversation's length is unread, or
    the thread has been quiet for a while.

    With `trigger="modulo"` it runs when the number of all messages is a multiple of that half, as in the
    original; a turn that jumps over the multiple is missed. Messages that may ask to forget something are read
    at once, in any language, and what the model reads in them is carried out.
    `instructions` are added to the prompt: what to look for, and what to leave out. `schemas` are pydantic models
    of profiles, which the same model call fills for the speakers; see `Memory.profile`.
    """

    when_quiet = True
    needs_store = True
    needs_model = True
    description = (
        "Extracts facts, statuses and opinions about people and their world from the conversation, and what the "
        "users want to be forgotten or kept off the record."
    )
    similes = ("GET_CLAIMS", "EXTRACT_CLAIMS", "EXTRACT_FACTS", "EXTRACT_CLAIM", "EXTRACT_INFORMATION")
    examples = EXAMPLES

    def __init__(
        self,
        name: str = "GET_FACTS",
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        *,
        trigger: Trigger = "cursor",
        model: ChatModel | str | None = None,
        instructions: str | None = None,
        schemas: Iterable[type[BaseModel]] = (),
        **options: Unpack[CognitiveOptions],
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, **options)
        if trigger not in ("cursor", "modulo"):
            problem = f"expected 'cursor' or 'modulo', got {trigger!r:.80}."
            raise ParameterError(f"evaluator {name!r}", "trigger", problem)
        self.instructions = checked_instructions(name, instructions)
        self.schemas = checked_schemas(f"evaluator {name!r}", schemas)
        self.trigger = trigger
        self.model = None if model is None else model_of(model)

    def does_without_model(self, ctx: EvalContext) -> bool:
        """True if the newest message is a plain command to forget, which needs no model."""
        return ctx.message is not None and command_of(ctx.message) is not None

    async def validate(self, ctx: EvalContext) -> bool:
        """True if enough messages are unread, if one of them may ask to forget something, or if one that was read
        has another text."""
        cursors = ctx.cursors(self.name)
        unread = await self._unread(ctx, cursors)
        edited = await cursors.edited(ctx.messages)
        hidden = await ctx.hidden()
        if any(command_of(part) and part.id not in hidden.forgotten for part in (*edited, *unread)):
            return True
        return await self._is_due(ctx, cursors, unread, edited)

    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        # Nodes of one superstep end together; under the lock the second one sees the cursor of the first.
        async with ctx.needed_store().lock(ctx.agent_id, "room", ctx.room_id, self.name):
            cursors = ctx.cursors(self.name)
            wishes = WishBook(ctx, facts_of(ctx).forgetting)
            await wishes.resume()
            unread = await self._unread(ctx, cursors)
            edited = await cursors.edited(ctx.messages)
            await wishes.commands([*edited, *unread])
            if not await self._is_due(ctx, cursors, unread, edited):
                return _outcome(Ingested(), wishes.carried, calls=0)
            read = [*edited, *unread][: _at_once(ctx)]
            async with cursors.stopped_as_failed(read, again=bool(edited)):
                return await self._learn(ctx, cursors, edited[: len(read)], read, wishes)

    async def _unread(self, ctx: EvalContext, cursors: Cursors) -> list[BaseMessage]:
        """The unread messages; of a long conversation that was never read, the first and the last ones."""
        most = None if self.trigger == "modulo" else 2 * _at_once(ctx)
        unread = await cursors.unprocessed(ctx.messages, most=most)
        await ctx.pass_over(unread)
        return unread

    async def _is_due(
        self,
        ctx: EvalContext,
        cursors: Cursors,
        unread: Sequence[BaseMessage],
        edited: Sequence[BaseMessage],
    ) -> bool:
        if (ctx.model is None and self.model is None) or await cursors.waits():
            return False
        if edited or (unread and await self._hasty(ctx, unread)):
            return True
        if not unread:
            return False
        enough = ceil(ctx.conversation_length / 2)
        if self.trigger == "cursor":
            return ctx.quiet or len(unread) >= enough
        return ((await cursors.read()).processed_total + len(unread)) % enough == 0

    async def _hasty(self, ctx: EvalContext, unread: Sequence[BaseMessage]) -> list[str]:
        """The speakers of unread messages that may ask to forget something, or answer whether to forget
        everything. This decides only when the model is asked, and how much it is shown."""
        pending = (await ctx.hidden()).pending
        speakers = [
            speaker
            for message in await ctx.on_record(unread)
            if isinstance(message, HumanMessage)
            and ((speaker := ctx.speaker_of(message)) in pending or hastens(text_of(message)))
        ]
        return [*dict.fromkeys(speakers)]

    async def _learn(
        self,
        ctx: EvalContext,
        cursors: Cursors,
        edited: Sequence[BaseMessage],
        read: Sequence[BaseMessage],
        wishes: WishBook,
    ) -> HandlerOutcome:
        earlier, fresh = await self._window(ctx, read)
        if not any(isinstance(message, HumanMessage) for message in fresh):
            # The agent learns nothing from its own messages alone.
            await self._take_back(ctx, edited, ())
            await cursors.advance(read)
            await cursors.note_texts(ctx.messages, read)
            return _outcome(Ingested(), wishes.carried, calls=0)
        used = ctx.budget.used
        known, told, outcome = await self._read(ctx, earlier, fresh)
        # The part of an answer that is cut off may be the wish.
        is_wish = (outcome.value is None or outcome.is_cut_off) and bool(await self._hasty(ctx, fresh))
        if outcome.value is None or is_wish:
            skipped = await cursors.fail(read, raised=outcome.raised or is_wish, again=bool(edited))
            if skipped:
                await cursors.note_texts(ctx.messages, read)
            if skipped and is_wish:
                _log.warning(
                    "a message in the thread %r may ask to forget something, and evaluator %r got no usable answer "
                    "about it from its model: nothing is forgotten. cycle.memory.forget(...) does it from a program.",
                    *(ctx.room_id, self.name),
                )
            raise UnusableAnswerError(outcome.calls, outcome.error, skipped=skipped)
        ids = {fact.id for fact in told}
        shown = {fact.id: fact for fact in (*known, *told)}
        found = (identified(claim, shown) for claim in _claims_in(outcome.value, ctx, fresh, earlier, shown))
        claims = [replace(claim, already_known=False) if claim.known_id in ids else claim for claim in found]
        try:
            commanded = len(wishes.carried.gone)
            await wishes.read(
                outcome.value,
                shown=shown,
                fresh=fresh,
                earlier=earlier,
                claims=claims,
                fields=fields_of(self.schemas),
            )
            await self._take_back(ctx, edited, claims)
            kept = wishes.still_claimed(claims)
            gone = {fact.id for fact in wishes.carried.gone}
            ingested = await facts_of(ctx).ingest(
                kept,
                ctx,
                evaluator=self.name,
                model=self.model,
                names=await self._names(outcome.value.names, fresh, ctx),
                shown=[fact for fact in known if fact.id not in gone],
            )
            updates = updates_in(outcome.value, self.schemas)
            # A command says how far it goes.
            carried = replace(wishes.carried, gone=wishes.carried.gone[commanded:])
            filled = await self._fill(ctx, updates, fresh, claims, kept=kept, carried=carried)
            if wishes.carried.asking:
                # What such a message says anew is learned first; then no prompt repeats what it asks to forget.
                await ctx.tombstones.bury((), at=ctx.clock(), asked=wishes.carried.asking)
                await ctx.hidden(anew=True)
        except Exception:
            # A write that keeps failing must not cost model calls in every turn.
            await cursors.fail(read, raised=True, again=bool(edited))
            raise
        await cursors.advance(read)
        await cursors.note_texts(ctx.messages, read)
        ingested = replace(
            ingested,
            dropped_private=ingested.dropped_private + filled["private"],
            dropped_invalid=ingested.dropped_invalid + filled["invalid"] + outcome.dropped_items,
        )
        calls = ctx.budget.used - used
        done = _outcome(ingested, wishes.carried, calls=calls, clean=outcome.status == "ok")
        if self.schemas:
            done.data["profile_fields"] = filled["changed"]
        return done

    async def _names(
        self, given: Sequence[GivenName], fresh: Sequence[BaseMessage], ctx: EvalContext
    ) -> list[Introduction]:
        """The names that a model lists, and those of the speakers' own names that a message denies."""
        names = _introduced(given, fresh, ctx)
        said = [message for message in fresh if isinstance(message, HumanMessage) and message.id]
        for speaker in {ctx.speaker_of(message) for message in said}:
            known = await OwnNames(ctx.needed_store(), ctx.agent_id, speaker).own()
            names += [
                Introduction(name=name, source_message_ids=(str(message.id),), whose="not own")
                for message in said
                if ctx.speaker_of(message) == speaker
                for name in dict.fromkeys([*known, *(one.name for one in names)])
                if denies(text_of(message), name)
            ]
        return names

    async def _take_back(
        self, ctx: EvalContext, edited: Sequence[BaseMessage], claims: Sequence[Claim]
    ) -> None:
        """Delete what was learned from the earlier texts of edited messages alone, but for what their new texts
        say again."""
        words = {caseless(claim.claim) for claim in claims}
        repeated = {claim.known_id for claim in claims}
        speakers = dict.fromkeys(ctx.speaker_of(message) for message in edited)
        for speaker in speakers:
            ids = {str(message.id) for message in edited if ctx.speaker_of(message) == speaker}

            def is_gone(fact: Fact, ids: set[str] = ids) -> bool:
                said_again = fact.id in repeated or caseless(fact.claim) in words
                return bool(fact.source_message_ids) and {*fact.source_message_ids} <= ids and not said_again

            wanted = Wanted(fact=is_gone, messages={ctx.room_id: ids}, told=True, edited=True)
            await facts_of(ctx).forgetting(speaker).forget(wanted)

    async def _fill(
        self,
        ctx: EvalContext,
        updates: Sequence[Update],
        fresh: Sequence[BaseMessage],
        claims: Sequence[Claim],
        *,
        kept: Sequence[Claim],
        carried: Carried,
    ) -> Counter[str]:
        """Fill the profiles of speakers with what they have said of themselves in these messages, but for values that
        tell what was forgotten: the facts that are gone, the `claims` that are not `kept`, and fields that a later
        message asks to forget."""
        rules = facts_of(ctx).rules
        filled = Counter[str]()
        # The same answer may have said that a message is not to be remembered.
        hidden = (await ctx.hidden(anew=True)).forgotten if updates else ()
        told = [message for message in fresh if isinstance(message, HumanMessage) and message.id]
        for update in updates:
            entity = _meant(update.subject, ctx.entity_id, ctx)
            said = [str(message.id) for message in told if ctx.speaker_of(message) == entity]
            own = [id for id in said if id not in hidden]
            cited = {*map(label, update.source_message_ids)}
            sources = tuple(id for id in own if label(id) in cited) if cited else tuple(own[-1:])
            if entity is None or not sources:
                filled["invalid"] += len(update.values)
                continue
            mention = Mention(
                sources=sources,
                speaker=entity,
                room_id=ctx.room_id,
                at=ctx.ended_at,
                turn=ctx.run_key,
                visibility="room" if ctx.is_private else rules.visibility,
            )
            profiles = facts_of(ctx).profiles(entity)
            names = [caseless(one) for one in await OwnNames(profiles.store, ctx.agent_id, entity).own()]
            mine = [
                claim
                for claim in claims
                if _meant(claim.subject, entity, ctx) == entity or caseless(claim.subject or "") in names
            ]
            stay = [claim for claim in mine if claim in kept and {*claim.source_message_ids} & {*own}]
            go = [claim for claim in mine if claim not in stay and {*claim.source_message_ids} & {*said}]
            go_too = [fact for fact in carried.gone if fact.subject == entity]
            asked = max((said.index(id) for id in carried.asking if id in said), default=-1)
            told_at = max(map(said.index, sources))
            unwanted = carried.fields if entity == ctx.entity_id else {}
            wanted = {
                name: value
                for name, value in update.values.items()
                if (listed := listed_as(update.schema.__name__, name)) not in unwanted
                or told_at > asked
                or (told_at == asked and value != unwanted[listed])
            }
            values = still_told(wanted, gone=[*go, *go_too], kept=stay)
            filled += await profiles.update(update.schema, values, mention)
        return filled

    async def _profiles(self, ctx: EvalContext) -> list[str] | None:
        """The lines of the user's profiles for the prompt; None if there are none to fill."""
        if not self.schemas:
            return None
        profiles = facts_of(ctx).profiles(ctx.entity_id)
        await profiles.drop_old()
        lines: list[str] = []
        for schema in self.schemas:
            profile = await profiles.read(schema, room_id=ctx.room_id)
            lines += [
                f"{listed_as(schema.__name__, name)}: {visible(value)}" for name, value in lines_of(profile)
            ]
        return lines

    async def _window(
        self, ctx: EvalContext, read: Sequence[BaseMessage]
    ) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """A few earlier messages, and those to read; of both what a model may see."""
        hidden = await ctx.hidden()
        ids = {message.id for message in read}
        said = originals(ctx.messages)
        first = next(place for place, message in enumerate(said) if message.id in ids)
        last = next(place for place in range(len(said) - 1, -1, -1) if said[place].id in ids)
        # Look a few messages back: the first one may answer a message that is off the record.
        before = window(ctx.messages, 2 * _CONTEXT, end=first)
        latest = [*before, *ctx.messages[first : last + 1]]
        fresh = [message for message in on_record(latest, hidden.forgotten) if message.id in ids]
        # Between an edited message and the newest ones are messages that were read before.
        earlier = [message for message in on_record(latest, hidden.ids) if message.id not in ids]
        return earlier[-_CONTEXT:], fresh

    async def _read(
        self, ctx: EvalContext, earlier: Sequence[BaseMessage], fresh: Sequence[BaseMessage]
    ) -> tuple[list[Fact], list[Fact], StructuredOutcome[ExtractedClaims | InferredClaims]]:
        """The facts that the model was shown, claims of the unread messages that it was shown like facts, and its
        answer."""
        asking = await self._hasty(ctx, fresh)
        known = await self._known(ctx, fresh, asking)
        outcome = await self._extracted(ctx, known, earlier, fresh)
        shown = {fact.id: fact for fact in known}
        if outcome.value is None or not ctx.budget.left:
            return known, [], outcome
        said = {caseless(claim.claim) for claim in outcome.value.claims}
        said |= {label(message.id) for message in (*earlier, *fresh) if message.id}
        fields = fields_of(self.schemas)
        wishes = [wish.id for wish in outcome.value.forget if not meant(wish.id, fields)]
        if all(fact_of(named, shown) or named in said or caseless(named) in said for named in wishes):
            return known, [], outcome
        # Somebody asks, in words that no table has, to forget what the model was not shown, or what earlier unread
        # messages say.
        speakers = {ctx.speaker_of(message) for message in fresh if isinstance(message, HumanMessage)}
        more = await self._known(ctx, fresh, [*speakers])
        told = _as_facts(_claims_in(outcome.value, ctx, fresh, earlier, shown), fresh, ctx)
        if len(more) == len(known) and not told:
            return known, [], outcome
        again = await self._extracted(ctx, more, earlier, fresh, told)
        return (known, [], outcome) if again.value is None else (more, told, again)

    async def _known(
        self, ctx: EvalContext, fresh: Sequence[BaseMessage], asking: Iterable[str]
    ) -> list[Fact]:
        """The facts for the prompt: those relevant to the messages, and many more of those who may be asking to
        forget something."""
        facts = facts_of(ctx)
        people = dict.fromkeys([ctx.entity_id, *(ctx.speaker_of(message) for message in fresh)])
        known_of = [*[id for id in people if id != ctx.agent_id][:_PEOPLE], ctx.agent_id]
        await facts.reindex(known_of)
        query = " ".join(text_of(message) for message in fresh)[-_QUERY:]
        known = await facts.relevant(known_of, query, room_id=ctx.room_id, limit=facts.rules.candidates)
        found = {fact.id: fact for fact in known}
        alone = {*people} <= {ctx.entity_id, ctx.agent_id}
        for speaker in asking:
            for fact in await facts.owned(speaker, query, limit=_KNOWN):
                # A fact of another room is shown only where nobody else speaks.
                if alone or fact.is_told_in(ctx.room_id):
                    found.setdefault(fact.id, fact)
        return list(found.values())

    async def _extracted(
        self,
        ctx: EvalContext,
        known: Sequence[Fact],
        earlier: Sequence[BaseMessage],
        fresh: Sequence[BaseMessage],
        told: Sequence[Fact] = (),
    ) -> StructuredOutcome[ExtractedClaims | InferredClaims]:
        rules = facts_of(ctx).rules
        said_by = [ctx.speaker_of(message) for message in fresh if isinstance(message, HumanMessage)]
        asked = extraction(
            ctx,
            known=known,
            told=told,
            earlier=earlier,
            fresh=fresh,
            pending=said_by[-1] if said_by[-1] in (await ctx.hidden()).pending else None,
            examples=rendered(self.examples),
            chaining=rules.chaining,
            instructions=self.instructions,
            profiles=await self._profiles(ctx),
        )
        schema: type[ExtractedClaims | InferredClaims] = InferredClaims if rules.chaining else ExtractedClaims
        answer = with_profiles(schema, self.schemas)
        return await ctx.ask(answer, asked, model=self.model, item_field="claims")


def _meant(named: str | None, speaker: str, ctx: EvalContext) -> str | None:
    """The participant that an answer names; the speaker if it names none, or "the user"."""
    if named is None or is_generic(named) or named == speaker:
        return speaker
    return resolve(named, ctx.entities)


def _claims_in(
    answer: ExtractedClaims | InferredClaims,
    ctx: EvalContext,
    fresh: Sequence[BaseMessage],
    earlier: Sequence[BaseMessage],
    known: Mapping[str, Fact],
) -> list[Claim]:
    found = (claim.as_claim(ctx.clock().tzinfo) for claim in answer.claims)
    sourced = (_sourced(claim, fresh, earlier, known, guess=not ctx.strangers) for claim in found)
    return [claim for claim in sourced if claim is not None]


def _as_facts(claims: Iterable[Claim], fresh: Sequence[BaseMessage], ctx: EvalContext) -> list[Fact]:
    """The claims of all messages but the newest one, as facts with ids for one prompt."""
    humans = {message.id: message for message in fresh if isinstance(message, HumanMessage)}
    newest, now = next(reversed(humans)), ctx.clock()
    found: list[Fact] = []
    for claim in claims:
        said = [humans[id] for id in claim.source_message_ids if id in humans and id != newest]
        if said:
            speakers = tuple(dict.fromkeys(map(ctx.speaker_of, said)))
            found.append(
                Fact(
                    id=uuid4().hex,
                    claim=claim.claim,
                    type=cast("ClaimType", claim.type),
                    subject=claim.subject or speakers[0],
                    agent_id=ctx.agent_id,
                    provenance="self_reported",
                    speaker=speakers[0],
                    speakers=speakers,
                    confidence=0.0,
                    first_seen_at=now,
                    last_seen_at=now,
                )
            )
    return found


def _sourced(
    claim: Claim,
    fresh: Sequence[BaseMessage],
    earlier: Sequence[BaseMessage],
    known: Mapping[str, Fact],
    *,
    guess: bool,
) -> Claim | None:
    """The claim with the ids of its source messages; None if it cites earlier context only.

    With `guess`, a claim that cites no known message is attributed to the newest human message. For the messages
    with a slip, a model may name the known fact that was learned from them.
    """
    if claim.derived_from:
        return claim
    shown = {label(message.id): message.id for message in (*earlier, *fresh) if message.id}
    wrong: list[str] = []
    for given in claim.corrects:
        if id := meant(label(given), shown):
            wrong.append(shown[id])
        elif (fact := fact_of(given, known)) is not None:
            wrong += fact.source_message_ids
    told = {label(message.id) for message in fresh if message.id}
    cited = [id for given in claim.source_message_ids if (id := meant(label(given), shown))]
    ids = tuple(dict.fromkeys(shown[id] for id in cited if id in told))
    if not ids:
        if cited:
            return None
        humans = [message.id for message in fresh if isinstance(message, HumanMessage) and message.id]
        ids = tuple(humans[-1:]) if guess else ()
    return replace(claim, source_message_ids=ids, corrects=tuple(wrong))


def _introduced(
    names: Iterable[GivenName], fresh: Sequence[BaseMessage], ctx: EvalContext
) -> list[Introduction]:
    """The names with the ids of their messages; a model may give a speaker's id in place of a message's, and none
    where one alone speaks."""
    told: dict[str, tuple[str, ...]] = {}
    said = [message for message in fresh if isinstance(message, HumanMessage) and message.id]
    alone = len({*map(ctx.speaker_of, said)}) == 1
    spoken = tuple(str(message.id) for message in said if alone)
    for message in fresh:
        if message.id:
            for id in (label(message.id), label(ctx.speaker_of(message))):
                told[id] = (*told.get(id, ()), message.id)
    texts = {message.id: text_of(message) for message in fresh}
    return [
        Introduction(
            name=given.name,
            source_message_ids=ids,
            whose="own" if given.is_own else "not own",
        )
        for given in names
        if (ids := told.get(meant(label(given.message_id), told)) if given.message_id else spoken)
        and not all(says_nothing(given.name, texts[id]) for id in ids)
    ]


def _at_once(ctx: EvalContext) -> int:
    """The number of unread messages that one prompt has at most."""
    return max(_MOST, 2 * ctx.conversation_length)


def _outcome(ingested: Ingested, carried: Carried, *, calls: int, clean: bool = True) -> HandlerOutcome:
    counted = f"{ingested.inserted} learned, {ingested.reinforced} confirmed"
    return HandlerOutcome(
        score=1.0 if clean else 0.5,
        feedback=f"{counted}, {carried.forgotten} forgotten" if carried.forgotten else counted,
        data={**ingested.to_data(), **carried.data(), "llm_calls": calls},
    )
