"""Facts: extraction, privacy, deduplication, adjudication, and one `ingest` for whoever found a claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from arbiter.memory.records import Fact
from arbiter.memory.stores import MemoryStore

if TYPE_CHECKING:
    from arbiter.memory.context import EvalContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a model found in a conversation, before anybody has judged it; the fields are the extraction schema's."""

    claim: str
    type: str
    in_bio: bool = False
    already_known: bool = False
    subject: str | None = None
    slot: str | None = None
    value: str | None = None
    valid_from: datetime | None = None
    source_message_ids: tuple[str, ...] = ()
    sensitivity: str | None = None
    known_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What became of claims: counts and ids, as the metadata of a result."""

    inserted: int = 0
    reinforced: int = 0
    superseded: int = 0
    refined: int = 0
    conflicts: tuple[tuple[str, str], ...] = ()
    dropped_private: int = 0
    dropped_invalid: int = 0
    fact_ids: tuple[str, ...] = ()


class FactStore:
    """All facts of one agent."""

    def __init__(
        self, store: MemoryStore, *, agent_id: str, clock: Callable[[], datetime], rules: Any = None
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.clock = clock
        self.rules = rules

    async def ingest(self, claims: Sequence[Claim], ctx: EvalContext, *, evaluator: str) -> Ingested:
        """Take in claims, in order; see docs/memory.md."""
        raise NotImplementedError

    async def facts(
        self,
        entity_id: str,
        *,
        state: str | None = "active",
        kinds: Sequence[str] = ("facts", "status"),
        limit: int | None = None,
    ) -> list[Fact]:
        """What is known about an entity, newest first. `state=None`: whatever its state. Expired statuses are not."""
        raise NotImplementedError

    async def forget(self, entity_id: str, query: str | None = None, *, id: str | None = None) -> int:
        """Delete for good: facts whose claim has `query` in it (any case), the one with that id, or all; with vectors,
        derived facts and mentions in thoughts. It cannot be learned again. Returns how many were deleted."""
        raise NotImplementedError
