"""`FactEvaluator`: learns facts, statuses and opinions from a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from math import ceil
from typing import Any, Literal, Unpack

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter.errors import ParameterError
from arbiter.memory._characters import checked_instructions
from arbiter.memory._claims import Claim, Ingested
from arbiter.memory._context import EvalContext, UnusableAnswerError
from arbiter.memory._conversation import counts, speaker_of, text_of
from arbiter.memory._cursors import Cursors
from arbiter.memory._evaluators import (
    CognitiveEvaluator,
    CognitiveOptions,
    EvaluationExample,
    ExampleMessage,
    HandlerOutcome,
)
from arbiter.memory.answers import StructuredOutcome
from arbiter.memory.facts._boundaries import forget_request, on_record, requests
from arbiter.memory.facts._extraction import (
    ExtractedClaims,
    GivenName,
    InferredClaims,
    Speaker,
    extraction,
    label,
    rendered,
)
from arbiter.memory.facts._fact_store import facts_of
from arbiter.memory.facts._own_names import Introduction
from arbiter.memory.stores import namespace
from arbiter.models import ChatModel

Trigger = Literal["cursor", "modulo"]
_LONGEST = 4_000
"""Characters of a message that a prompt shows; the rest is cut."""
_CONTEXT = 4
_MOST = 64
_PEOPLE = 8

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
    """Learns facts about the participants of a conversation, once half a conversation's length is unread.

    With `trigger="modulo"` it runs when the number of all messages is a multiple of that half, as in the
    original; a turn that jumps over the multiple is missed. A request to forget is carried out at once.
    `instructions` are added to the prompt: what to look for, and what to leave out.
    """

    needs_store = True
    needs_model = True
    description = "Extracts facts, statuses and opinions about people and their world from the conversation."
    similes = ("GET_CLAIMS", "EXTRACT_CLAIMS", "EXTRACT_FACTS", "EXTRACT_CLAIM", "EXTRACT_INFORMATION")
    examples = EXAMPLES

    def __init__(
        self,
        name: str = "GET_FACTS",
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        *,
        trigger: Trigger = "cursor",
        model: ChatModel | None = None,
        instructions: str | None = None,
        **options: Unpack[CognitiveOptions],
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, **options)
        if trigger not in ("cursor", "modulo"):
            problem = f"expected 'cursor' or 'modulo', got {trigger!r:.80}."
            raise ParameterError(f"evaluator {name!r}", "trigger", problem)
        self.instructions = checked_instructions(name, instructions)
        self.trigger = trigger
        self.model = model

    async def validate(self, ctx: EvalContext) -> bool:
        """True if enough messages are unread, or the user asks to forget something. Reads only the cursor."""
        if ctx.message is not None and forget_request(text_of(ctx.message)) is not None:
            return True
        cursors = ctx.cursors(self.name)
        return await self._is_due(ctx, cursors, await cursors.unprocessed(ctx.messages))

    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        # Nodes of one superstep end together; under the lock the second one sees the cursor of the first.
        async with ctx.needed_store().lock(ctx.agent_id, "room", ctx.room_id, self.name):
            cursors = ctx.cursors(self.name)
            unread = await cursors.unprocessed(ctx.messages)
            forgotten = await self._forget(ctx, unread)
            if not await self._is_due(ctx, cursors, unread):
                return _outcome(Ingested(), calls=0, forgotten=forgotten)
            return await self._learn(
                ctx, cursors, unread[: max(_MOST, 2 * ctx.conversation_length)], forgotten
            )

    async def _is_due(self, ctx: EvalContext, cursors: Cursors, unread: Sequence[BaseMessage]) -> bool:
        enough = ceil(ctx.conversation_length / 2)
        if not unread or await cursors.waits():
            return False
        if self.trigger == "cursor":
            return len(unread) >= enough
        return ((await cursors.read()).processed_total + len(unread)) % enough == 0

    async def _forget(self, ctx: EvalContext, unread: Sequence[BaseMessage]) -> int:
        """Carry out the unread requests to forget, each once. Returns how many facts were deleted."""
        asking = requests(unread, agent_id=ctx.agent_id, entity_id=ctx.entity_id)
        if not asking:
            return 0
        store, key = ctx.needed_store(), f"{self.name}.requests"
        ns = namespace(ctx.agent_id, "cursors", ctx.room_id)
        # A request may stay unread for some turns; carried out twice, it would delete later facts too.
        done: list[Any] = ((await store.aget(ns, key)) or {}).get("done", [])
        forgotten = 0
        for message, speaker, asked in asking:
            if message.id not in done:
                before = _said_before(message, speaker, ctx)
                forgotten += await facts_of(ctx).forget_as_asked(
                    speaker, asked, said_before=before, room_id=ctx.room_id, at=ctx.ended_at
                )
        ids = [message.id for message, _, _ in asking]
        await store.aput(ns, key, {"done": [*dict.fromkeys([*done, *ids])][-_MOST:]})
        return forgotten

    async def _learn(
        self, ctx: EvalContext, cursors: Cursors, window: Sequence[BaseMessage], forgotten: int
    ) -> HandlerOutcome:
        ids = {message.id for message in window}
        shown = on_record(ctx.messages, agent_id=ctx.agent_id, entity_id=ctx.entity_id)
        fresh = [message for message in shown if message.id in ids]
        if not any(isinstance(message, HumanMessage) for message in fresh):
            # The agent learns nothing from its own messages alone.
            await cursors.advance(window)
            return _outcome(Ingested(), calls=0, forgotten=forgotten)
        first = next(place for place, message in enumerate(shown) if message.id in ids)
        earlier = shown[max(first - _CONTEXT, 0) : first]
        used = ctx.budget.used
        outcome = await self._extracted(ctx, earlier, fresh)
        if outcome.value is None:
            skipped = await cursors.fail(window, raised=outcome.raised)
            raise UnusableAnswerError(outcome.calls, outcome.error, skipped=skipped)
        found = [
            _sourced(claim.as_claim(ctx.clock().tzinfo), fresh, earlier) for claim in outcome.value.claims
        ]
        claims = [claim for claim in found if claim is not None]
        try:
            ingested = await facts_of(ctx).ingest(
                claims,
                ctx,
                evaluator=self.name,
                model=self.model,
                names=_introduced(outcome.value.names, fresh),
            )
        except Exception:
            # A write that keeps failing must not cost model calls in every turn.
            await cursors.fail(window, raised=True)
            raise
        await cursors.advance(window)
        ingested = replace(ingested, dropped_invalid=ingested.dropped_invalid + outcome.dropped_items)
        calls = ctx.budget.used - used
        return _outcome(ingested, calls=calls, forgotten=forgotten, clean=outcome.status == "ok")

    async def _extracted(
        self, ctx: EvalContext, earlier: Sequence[BaseMessage], fresh: Sequence[BaseMessage]
    ) -> StructuredOutcome[ExtractedClaims] | StructuredOutcome[InferredClaims]:
        facts = facts_of(ctx)
        people = dict.fromkeys([ctx.entity_id, *(_speaker(message, ctx)[0] for message in fresh)])
        known_of = [*[id for id in people if id != ctx.agent_id][:_PEOPLE], ctx.agent_id]
        await facts.reindex(known_of)
        query = " ".join(text_of(message) for message in fresh)[-_LONGEST:]
        known = await facts.relevant(known_of, query, room_id=ctx.room_id, limit=facts.rules.candidates)
        asked = extraction(
            today=ctx.clock(),
            character=ctx.character,
            sender=ctx.name_of(ctx.entity_id),
            known=known,
            context=[_said(message, ctx) for message in earlier],
            window=[_said(message, ctx) for message in fresh],
            examples=rendered(self.examples),
            chaining=facts.rules.chaining,
            instructions=self.instructions,
        )
        if facts.rules.chaining:
            return await ctx.ask(InferredClaims, asked, model=self.model, item_field="claims")
        return await ctx.ask(ExtractedClaims, asked, model=self.model, item_field="claims")


def _said_before(message: BaseMessage, speaker: str, ctx: EvalContext) -> str | None:
    """The id of the speaker's previous message; None if there is none."""
    found: str | None = None
    for said in ctx.messages:
        if said is message:
            break
        if isinstance(said, HumanMessage) and counts(said) and _speaker(said, ctx)[0] == speaker:
            found = said.id
    return found


def _speaker(message: BaseMessage, ctx: EvalContext) -> Speaker:
    id = speaker_of(message, agent_id=ctx.agent_id, entity_id=ctx.entity_id)
    return id, ctx.name_of(id)


def _said(message: BaseMessage, ctx: EvalContext) -> tuple[str, Speaker, str]:
    return message.id or "", _speaker(message, ctx), text_of(message)[:_LONGEST]


def _sourced(claim: Claim, fresh: Sequence[BaseMessage], earlier: Sequence[BaseMessage]) -> Claim | None:
    """The claim with the ids of its source messages; None if it cites earlier context only.

    A claim that cites no known message is attributed to the newest human message.
    """
    if claim.derived_from:
        return claim
    shown = {label(message.id): message.id for message in (*earlier, *fresh) if message.id}
    wrong = tuple(shown[id] for id in map(label, claim.corrects) if id in shown)
    told = {label(message.id): message.id for message in fresh if message.id}
    cited = [label(id) for id in claim.source_message_ids]
    ids = tuple(told[id] for id in cited if id in told)
    if not ids:
        if any(message.id and label(message.id) in cited for message in earlier):
            return None
        ids = tuple(message.id for message in fresh if isinstance(message, HumanMessage) and message.id)[-1:]
    return replace(claim, source_message_ids=ids, corrects=wrong)


def _introduced(names: Iterable[GivenName], fresh: Sequence[BaseMessage]) -> list[Introduction]:
    told = {label(message.id): message.id for message in fresh if message.id}
    return [
        Introduction(name=given.name.strip(), source_message_ids=(told[label(given.message_id)],))
        for given in names
        if label(given.message_id) in told
    ]


def _outcome(ingested: Ingested, *, calls: int, forgotten: int, clean: bool = True) -> HandlerOutcome:
    data: dict[str, Any] = asdict(ingested)
    data["conflicts"] = [list(pair) for pair in ingested.conflicts]
    data["fact_ids"] = list(ingested.fact_ids)
    counted = f"{ingested.inserted} learned, {ingested.reinforced} confirmed"
    return HandlerOutcome(
        score=1.0 if clean else 0.5,
        feedback=f"{counted}, {forgotten} forgotten" if forgotten else counted,
        data={**data, "forgotten": forgotten, "llm_calls": calls},
    )
