"""`ReflectionEvaluator`: thoughts about a conversation, facts in it, and relationships between its
participants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Unpack

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter.memory._characters import checked_instructions
from arbiter.memory._context import BudgetSpentError, EvalContext, NotAvailableError, UnusableAnswerError
from arbiter.memory._conversation import text_of, window
from arbiter.memory._cursors import Cursors
from arbiter.memory._entities import Entity, agent_aliases, participants, resolve, without_label
from arbiter.memory._evaluators import CognitiveEvaluator, CognitiveOptions, HandlerOutcome
from arbiter.memory._notes import Traces
from arbiter.memory._records import Fact, Records, Thought, readable
from arbiter.memory.answers import StructuredOutcome
from arbiter.memory.facts import Ingested
from arbiter.memory.facts._extraction import identified
from arbiter.memory.facts._privacy import may_keep
from arbiter.memory.reflection._prompt import (
    EXAMPLES,
    FoundRelationship,
    ReflectionAnswer,
    Stretch,
    reflection_prompt,
    shown_ids,
)
from arbiter.memory.reflection._relationships import EXCLUSIVE_TAGS, Relationships, Sighting
from arbiter.memory.stores import namespace
from arbiter.memory.stores._portable import digest_of
from arbiter.models import ChatModel, model_of

KNOWN_PEOPLE = 8
"""Speakers whose known facts the prompt includes."""
KNOWN_FACTS = 8
"""Facts of each speaker in a prompt: this many similar ones, and this many of the newest."""
MAX_QUERY = 4_000
MAX_THOUGHT = 2_000
"""Longest thought in characters; the rest is cut off."""
SHARED_THOUGHT = 120


class ReflectionEvaluator(CognitiveEvaluator):
    """Reflects once more than a quarter of a conversation's length is new; stores a thought, facts and
    relationships.

    `exclusive_tags` are groups of tags; a relationship keeps the latest of each group. `aliases` maps
    additional names of participants to ids; by default `AGENT_ALIASES` for the agent. With
    `thought_in_feedback` the feedback begins with the shortened thought, unless the room is private. `model`
    replaces the cycle's. `instructions` are added to the prompt.
    """

    description = "Reflects on the conversation: how it goes, facts in it, and who has to do with whom."
    similes = ("REFLECT", "SELF_REFLECT", "EVALUATE_INTERACTION", "ASSESS_SITUATION")
    examples = EXAMPLES
    when_quiet = True
    needs_store = True
    needs_model = True

    def __init__(
        self,
        name: str = "REFLECTION",
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        *,
        exclusive_tags: Sequence[Sequence[str]] = EXCLUSIVE_TAGS,
        aliases: Mapping[str, str] | None = None,
        thought_in_feedback: bool = False,
        model: ChatModel | str | None = None,
        instructions: str | None = None,
        **options: Unpack[CognitiveOptions],
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, **options)
        self.instructions = checked_instructions(name, instructions)
        self.exclusive_tags = exclusive_tags
        self.aliases = aliases
        self.thought_in_feedback = thought_in_feedback
        self.model = None if model is None else model_of(model)

    async def validate(self, ctx: EvalContext) -> bool:
        """True if more than a quarter of `conversation_length`, rounded up, is new, or anything is and the
        thread has been quiet, and no failure delays the next attempt."""
        interval = 0 if ctx.quiet else ceil(ctx.conversation_length / 4)
        cursors = ctx.cursors(self.name)
        if await cursors.waits():
            return False
        unread = await cursors.unprocessed(ctx.messages, limit=interval + 1)
        await ctx.pass_over(unread)
        return len(unread) > interval

    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        """Ask once about the last messages, store facts, relationships and thought, and then move the
        cursor."""
        cursors = ctx.cursors(self.name)
        found = await self._window(ctx, cursors)
        if not found.shown:
            await cursors.advance(found.messages)
            return HandlerOutcome(
                feedback="Nothing that may be remembered.", data={"status": "ok", "messages": 0}
            )
        async with cursors.stopped_as_failed(found.messages):
            return await self._reflect(ctx, cursors, found)

    async def _reflect(self, ctx: EvalContext, cursors: Cursors, found: Stretch) -> HandlerOutcome:
        used = ctx.budget.used
        prompt = reflection_prompt(ctx, found, instructions=self.instructions)
        answer = await ctx.ask(ReflectionAnswer, prompt, model=self.model)
        if answer.value is None:
            skipped = await cursors.fail(found.messages, raised=answer.raised)
            raise UnusableAnswerError(answer.calls, answer.error, skipped=skipped)
        # A second evaluation of the same messages, here or in another process, must see that they were read.
        async with ctx.needed_store().lock(ctx.agent_id, "room", ctx.room_id, self.name):
            if not await cursors.unprocessed(found.messages):
                return HandlerOutcome(
                    feedback="Read already.", data={"status": "read_already", "llm_calls": answer.calls}
                )
            try:
                outcome = await self._keep(ctx, answer, answer.value, found)
            except (BudgetSpentError, NotAvailableError):
                raise
            except Exception:
                # A write that keeps failing must not cost a model call in every turn.
                await cursors.fail(found.messages, raised=True)
                raise
            await cursors.advance(found.messages)
        outcome.data["llm_calls"] = ctx.budget.used - used
        return outcome

    # The prompt

    async def _window(self, ctx: EvalContext, cursors: Cursors) -> Stretch:
        messages = window(ctx.messages, ctx.conversation_length)
        unread = await cursors.unprocessed(messages)
        await ctx.pass_over(unread)
        shown = await ctx.shown(messages)
        speakers = tuple(dict.fromkeys(map(ctx.speaker_of, reversed(shown))))
        people = speakers[:KNOWN_PEOPLE]
        query = " ".join(text_of(part) for part in shown)[-MAX_QUERY:]
        known = await ctx.facts.relevant(people, query, room_id=ctx.room_id, limit=KNOWN_FACTS)
        related = await self._relationships(ctx).among(people)
        return Stretch(
            messages=messages,
            shown=shown,
            new_ids=frozenset(part.id for part in unread),
            entities=participants(
                shown,
                agent_id=ctx.agent_id,
                character=ctx.character,
                entity_id=ctx.entity_id,
                registered=ctx.entities,
            ),
            speakers=speakers,
            facts=[fact for fact in known if _may_be_told(fact, ctx, people)],
            relationships=[told for one in related if (told := one.told_in(ctx.room_id)) is not None],
        )

    # The results

    async def _keep(
        self,
        ctx: EvalContext,
        answer: StructuredOutcome[ReflectionAnswer],
        value: ReflectionAnswer,
        found: Stretch,
    ) -> HandlerOutcome:
        """Store facts, then relationships, then the thought. Every write is idempotent."""
        message_ids = shown_ids(part.id for part in found.shown)
        facts = {fact.id: fact for fact in found.facts}
        claims = [identified(fact.sourced(message_ids, ctx.clock().tzinfo), facts) for fact in value.facts]
        ingested = Ingested()
        if claims:
            ingested = await ctx.facts.ingest(claims, ctx, evaluator=self.name, shown=found.facts)
        await ctx.look_up(name for one in value.relationships for name in (one.source, one.target))
        known = {entity.id: entity for entity in (*ctx.entities, *found.entities)}
        sightings, unresolved = self._resolved(ctx, value.relationships, [*known.values()])
        upserted = await self._relationships(ctx).upsert(sightings, ctx)
        thought = await self._keep_thought(ctx, value.thought, found)
        data: dict[str, Any] = {
            "status": answer.status,
            "messages": len(found.shown),
            **ingested.to_data(),
            "dropped_private": ingested.dropped_private + (thought is None and bool(value.thought.strip())),
            "dropped_invalid": ingested.dropped_invalid + answer.dropped_items,
            "relationships": upserted.seen,
            "new_relationships": upserted.created,
            "unresolved_relationships": unresolved,
            "self_relationships": upserted.self_loops,
            "thoughts": int(thought is not None),
        }
        return HandlerOutcome(
            score=1.0 if answer.status == "ok" else 0.5,
            feedback=self._feedback(ctx, data, thought),
            data=data,
        )

    def _resolved(
        self, ctx: EvalContext, found: Sequence[FoundRelationship], entities: Sequence[Entity]
    ) -> tuple[list[Sighting], int]:
        """The relationships with both ends known, and the number of the others."""
        resolved: list[Sighting] = []
        aliases = self._aliases(entities)
        unknown = {*ctx.strangers.values()}
        for one in found:
            ends = (without_label(name.strip(), entities) for name in (one.source, one.target))
            source, target = (resolve(name, entities, aliases) for name in ends)
            if source is None or target is None or not unknown.isdisjoint((source, target)):
                continue
            metadata = {
                key: part for key, part in one.metadata.items() if may_keep(f"{key}: {part}", ctx.fact_rules)
            }
            tags = tuple(tag for tag in one.tags if may_keep(tag.replace("_", " "), ctx.fact_rules))
            resolved.append(Sighting(source=source, target=target, tags=tags, metadata=metadata))
        return resolved, len(found) - len(resolved)

    def _aliases(self, entities: Sequence[Entity]) -> Mapping[str, str]:
        """The configured aliases, and the shown forms of ids that a prompt cannot show unchanged."""
        named = agent_aliases(entities) if self.aliases is None else self.aliases
        shown = shown_ids(entity.id for entity in entities)
        return {label: id for label, id in shown.items() if label != id} | dict(named)

    async def _keep_thought(self, ctx: EvalContext, text: str, found: Stretch) -> str | None:
        """Store the thought. Returns its text; None if there is none or it may not be stored."""
        kept = " ".join(text.split())[:MAX_THOUGHT]
        if not kept or not may_keep(kept, ctx.fact_rules):
            return None
        thought = Thought(
            id=thought_id(ctx.run_key, self.name),
            text=kept,
            room_id=ctx.room_id,
            at=ctx.ended_at,
            source_message_ids=tuple(part.id for part in found.shown if part.id),
            entity_ids=found.speakers[::-1],
            fact_ids=tuple(fact.id for fact in found.facts),
        )
        thoughts = Thoughts(ctx.needed_store(), ctx.agent_id, ctx.room_id)
        for entity_id in thought.entity_ids:
            await Traces(ctx.needed_store(), ctx.agent_id, entity_id).was_in(ctx.room_id)
        await thoughts.add(thought)
        # Forgetting writes tombstones before it looks for thoughts, so one of the two sees the other's write.
        if await self._is_forgotten(ctx, thought, found):
            await thoughts.remove(thought.id)
            return None
        return kept

    async def _is_forgotten(self, ctx: EvalContext, thought: Thought, found: Stretch) -> bool:
        if not (await ctx.hidden(anew=True)).ids.isdisjoint(thought.source_message_ids):
            return True
        # Facts from elsewhere have their tombstones there.
        elsewhere = [fact for fact in found.facts if ctx.room_id not in fact.room_ids]
        places = [
            namespace(ctx.agent_id, "status" if fact.type == "status" else "facts", id)
            for fact in elsewhere
            for id in found.speakers
        ]
        store = ctx.needed_store()
        for fact in elsewhere:
            if not any([await store.aget(place, fact.id) for place in dict.fromkeys(places)]):
                return True
        return False

    def _relationships(self, ctx: EvalContext) -> Relationships:
        return Relationships(ctx.needed_store(), agent_id=ctx.agent_id, exclusive_tags=self.exclusive_tags)

    def _feedback(self, ctx: EvalContext, data: Mapping[str, Any], thought: str | None) -> str:
        counts = (
            f"{data['inserted']} new facts, {data['reinforced']} confirmed; {data['relationships']} relationships, "
            f"{data['unresolved_relationships']} not resolved; {data['thoughts']} thoughts."
        )
        if not self.thought_in_feedback or thought is None or ctx.is_private:
            return counts
        short = thought if len(thought) <= SHARED_THOUGHT else thought[: SHARED_THOUGHT - 3] + "..."
        return f"{short} ({counts})"


def _may_be_told(fact: Fact, ctx: EvalContext, speakers: Sequence[str]) -> bool:
    """True if a thought may repeat a fact: everybody in the room may read thoughts, so facts told
    elsewhere stay out, also those that others have told of the only speaker."""
    told_by_others = fact.provenance == "third_party" and fact.subject not in fact.speakers
    alone = {*speakers} <= {ctx.agent_id, fact.subject} and not told_by_others
    return alone or fact.visibility == "agent" or ctx.room_id in fact.room_ids


# The thoughts -------------------------------------------------------------------------------------

MOST = 200
"""Thoughts kept for each room, the newest."""


class Thoughts(Records):
    """The thoughts of one agent about one room."""

    kind = "thoughts"

    async def add(self, thought: Thought) -> None:
        """Store a thought; it replaces one with the same id. The oldest above `MOST` are dropped."""
        await self.store.aput(self.space, thought.id, thought.to_value())
        await self.store.aprune(self.space, keep=MOST, at=lambda value: str(value.get("at")))

    async def remove(self, id: str) -> None:
        await self.store.adelete(self.space, id)

    async def all(self, *, limit: int | None = None) -> list[Thought]:
        """The thoughts of the room, newest first."""
        # Read a few more: stores sort by the time of writing, and a corrected thought was written later.
        entries = await self.store.alist(self.space, limit=None if limit is None else 4 * limit)
        found = readable(Thought, (entry.value for entry in entries))
        return sorted(found, key=lambda thought: thought.at, reverse=True)[:limit]


def thought_id(run_key: str, evaluator: str) -> str:
    """The id of an evaluator's thought about a turn; a repetition has the same id."""
    return digest_of(f"{evaluator}\n{run_key}")[:32]
