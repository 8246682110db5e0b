"""Rooms with conversations, and an agent's memory of them, for the tests of facts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory._characters import Character
from arbiter.memory._context import EvalContext
from arbiter.memory._entities import Entity
from arbiter.memory._records import Fact
from arbiter.memory.answers import CallBudget
from arbiter.memory.facts import Claim, FactEvaluator, FactRules, FactStore, Ingested
from arbiter.memory.stores import MemoryStore, namespace
from arbiter.verdicts import EvaluationResult
from tests.memory.memory_stores import KeywordEmbeddings
from tests.scripted import Scripted

START = datetime(2025, 6, 1, 12, tzinfo=UTC)
AGENT = "sarah"
_RUNS = count(1)


def claim(text: str, type: str = "fact", **fields: Any) -> Claim:
    return Claim(claim=text, type=type, **fields)


def answer(*claims: dict[str, Any] | str) -> str:
    """A model's answer with these claims."""
    found = [
        {
            "type": "fact",
            "in_bio": False,
            "already_known": False,
            **({"claim": c} if isinstance(c, str) else c),
        }
        for c in claims
    ]
    return json.dumps({"claims": found})


def relations(*found: str) -> str:
    """A model's answer to a comparison, with a relation for each pair."""
    return json.dumps({"relations": [{"pair": n, "relation": r} for n, r in enumerate(found, 1)]})


def indexed(*keywords: str) -> InMemoryStore:
    """A store that is searched by these keywords."""
    embeddings = KeywordEmbeddings(*keywords)
    return InMemoryStore(index={"dims": embeddings.dims, "embed": embeddings, "fields": ["claim"]})


class Room:
    """A conversation that goes on turn by turn, with a clock that stands still until it is moved."""

    def __init__(
        self,
        store: BaseStore | None = None,
        *answers: Any,
        rules: FactRules | None = None,
        room_id: str = "room-1",
        user: str = "user-1",
        length: int = 10,
        bio: Sequence[str] = (),
        clock: Any = None,
        **fields: Any,
    ) -> None:
        self.store = MemoryStore(InMemoryStore() if store is None else store)
        self.model = Scripted(answers=list(answers)) if answers else None
        self.rules = rules or FactRules()
        self.room_id = room_id
        self.user = user
        self.length = length
        self.character = Character("Sarah", bio)
        self.now = START
        self.clock = clock or (lambda: self.now)
        self.messages: list[BaseMessage] = []
        self.fields = fields
        self.budget = 4
        self.last: EvalContext | None = None

    def passes(self, **amount: float) -> None:
        self.now += timedelta(**amount)

    def says(
        self, text: str, id: str | None = None, *, user: str | None = None, **known: Any
    ) -> HumanMessage:
        if user is not None:
            known["additional_kwargs"] = {"entity_id": user}
        said = HumanMessage(text, id=id or f"m{len(self.messages) + 1}", **known)
        self.messages.append(said)
        return said

    def replies(self, text: str = "ok", id: str | None = None) -> AIMessage:
        said = AIMessage(text, id=id or f"m{len(self.messages) + 1}")
        self.messages.append(said)
        return said

    def turn(self, **known: Any) -> EvalContext:
        """The context of a turn that has just ended."""
        humans = [message for message in self.messages if isinstance(message, HumanMessage)]
        fields: dict[str, Any] = {
            "history": None,
            "item": None,
            "instruction": None,
            "node": "reply",
            "state": {"messages": self.messages},
            "messages": list(self.messages),
            "new_messages": self.messages[-1:],
            "message": humans[-1] if humans else None,
            "did_respond": True,
            "room_id": self.room_id,
            "entity_id": self.user,
            "agent_id": AGENT,
            "entities": (
                Entity(id=AGENT, names=("Sarah",), is_agent=True),
                Entity(id=self.user, names=("John",)),
            ),
            "is_private": False,
            "store": self.store,
            "model": self.model,
            "selector_model": None,
            "character": self.character,
            "conversation_length": self.length,
            "context": None,
            "config": {},
            "clock": self.clock,
            "emit": print,
            "run_key": f"run-{next(_RUNS)}",
            "ended_at": self.clock(),
            "budget": CallBudget(self.budget),
            "fact_rules": self.rules,
        }
        self.last = EvalContext(**{**fields, **self.fields, **known})
        return self.last

    async def ingest(self, *claims: Claim, evaluator: str = "GET_FACTS", **known: Any) -> Ingested:
        """Ingest claims of a turn that has just ended."""
        ctx = self.turn(**known)
        return await ctx.facts.ingest(claims, ctx, evaluator=evaluator)

    async def hears(self, text: str, *claims: Claim, id: str | None = None, **known: Any) -> Ingested:
        """Add a message of somebody, and ingest these claims from it."""
        said = self.says(text, id)
        sourced = [
            found if found.source_message_ids else replace(found, source_message_ids=(str(said.id),))
            for found in claims
        ]
        return await self.ingest(*sourced, **known)

    async def evaluate(self, evaluator: FactEvaluator | None = None, **known: Any) -> Any:
        """The evaluator's outcome for a turn; None if it has nothing to do."""
        evaluator = evaluator or FactEvaluator()
        ctx = self.turn(**known)
        if not await evaluator.validate(ctx):
            return None
        outcome = await evaluator.handle(ctx)
        assert not isinstance(outcome, EvaluationResult)
        return outcome

    async def facts(self, of: str | None = None, *, state: str | None = None, **known: Any) -> list[Fact]:
        """All facts about an entity, oldest first."""
        found = await self.learned.facts(of or self.user, state=state, **known)
        return sorted(found, key=lambda fact: (fact.first_seen_at, fact.claim))

    @property
    def learned(self) -> FactStore:
        return FactStore(self.store, agent_id=AGENT, clock=self.clock, rules=self.rules)

    async def fact(self, text: str, **known: Any) -> Fact:
        [found] = [fact for fact in await self.facts(**known) if fact.claim == text]
        return found

    async def dump(self) -> str:
        """The whole content of the store as one text."""
        items = await asyncio.to_thread(self.store.store.search, (), limit=10_000)
        found = [[*item.namespace, item.key, item.value] for item in items]
        return json.dumps(found, ensure_ascii=False)


def space(kind: str, scope: str) -> tuple[str, ...]:
    return namespace(AGENT, kind, scope)
