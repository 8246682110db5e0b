"""`FactStore`: all facts of one agent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from arbiter.errors import ConfigurationError, ParameterError
from arbiter.memory._context import EvalContext
from arbiter.memory._records import BELIEVED, KINDS, Claim, Fact, Ingested, checked_time, readable
from arbiter.memory.facts._bin import Bin, empty_bins
from arbiter.memory.facts._changes import OPEN, as_of_now, may_be_used, put_away
from arbiter.memory.facts._forgetting import Forgetting, Forgotten, Wanted, told_about_others
from arbiter.memory.facts._ingest import Ingestion
from arbiter.memory.facts._normal import begins_word, sought
from arbiter.memory.facts._own_names import Introduction
from arbiter.memory.facts._profiles import Profiles
from arbiter.memory.facts._rules import FactRules, weight
from arbiter.memory.stores import Entry, MemoryStore, Namespace, Value, namespace
from arbiter.models import ChatModel


class FactStore:
    """All facts of one agent. `rules` decide what is remembered and for how long."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        agent_id: str,
        clock: Callable[[], datetime],
        rules: FactRules | None = None,
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.clock = clock
        given: Any = FactRules() if rules is None else rules
        if not isinstance(given, FactRules):
            raise ParameterError("FactStore", "rules", f"expected FactRules, got {rules!r:.80}.")
        self.rules = given

    async def ingest(
        self,
        claims: Sequence[Claim],
        ctx: EvalContext,
        *,
        evaluator: str,
        model: ChatModel | None = None,
        names: Sequence[Introduction] = (),
        shown: Iterable[Fact] = (),
    ) -> Ingested:
        """Store claims, in order; see docs/memory.md. Their effects on known facts are appended to
        `ctx.events`.

        Ingesting the same claims of a turn again changes nothing, even from another evaluator. `model`
        compares new claims with known ones; the default is the cycle's. `names` are the names that speakers give
        themselves in these messages: claims about them are the speaker's, also those that are stored. `shown` are the
        records that the model was shown: a claim that repeats one of them is dropped if it was forgotten meanwhile.
        """
        ingestion = Ingestion(self.store, self.rules, ctx, evaluator, model, shown)
        ingested = await ingestion.run(claims, names)
        for entity_id in sorted(ingestion.scopes):
            await self._keep_within_bounds(entity_id)
        return ingested

    async def _keep_within_bounds(self, entity_id: str) -> None:
        """Put away expired statuses and the active facts of least weight above `max_facts_per_entity`, and delete
        the oldest closed records above `max_closed_per_entity`, and those closed more than `retention_days` ago.

        It reads the records only if there may be too many of them.
        """
        rules, store = self.rules, self.store
        spaces = self._places([entity_id], BELIEVED)
        most = rules.max_facts_per_entity
        if sum([len(await store.abeyond(ns, 0, is_open=True, most=most + 1)) for ns in spaces]) > most:
            await self._put_away(spaces)
        for ns in self._places([entity_id], KINDS.values()):
            gone = await store.abeyond(ns, rules.max_closed_per_entity, is_open=False)
            if rules.retention_days is not None:
                time = self.clock() - timedelta(days=rules.retention_days)
                closed = await self._all(ns, is_open=False)
                gone += [fact.id for fact in closed if (fact.valid_to or fact.last_seen_at) < time]
            await store.aput_many((ns, key, None) for key in gone)

    async def _put_away(self, spaces: Sequence[Namespace]) -> None:
        now = self.clock()
        known = [(ns, fact) for ns in spaces for fact in await self._all(ns, is_open=True)]
        active = [(ns, fact) for ns, fact in known if fact.state == "active"]
        gone = [(ns, fact) for ns, fact in active if fact.expired(now)]
        kept = [(ns, fact) for ns, fact in active if not fact.expired(now)]
        kept.sort(key=lambda found: weight(found[1], now))
        for ns, fact in (*gone, *kept[: max(len(kept) - self.rules.max_facts_per_entity, 0)]):
            away = partial(Fact.altered, change=lambda fact: put_away(as_of_now(fact, now)))
            await self.store.aupdate(ns, fact.id, away)

    async def _all(self, ns: Namespace, *, is_open: bool) -> list[Fact]:
        values = await self.store.aget_many(ns, await self.store.abeyond(ns, 0, is_open=is_open))
        return readable(Fact, values.values())

    async def facts(
        self,
        entity_id: str,
        *,
        state: str | None = "active",
        kinds: Sequence[str] = BELIEVED,
        as_of: datetime | None = None,
    ) -> list[Fact]:
        """The facts about an entity at this moment, newest first, without expired statuses; `state=None`
        returns those of every state, and those that only begin later.

        With `as_of`, `state` is the one at that time (`Fact.state_at`): `facts(entity_id, as_of=then)` is what
        held then. Records that were forgotten, or superseded longer ago than `FactRules.retention_days`, are
        gone for every date.
        """
        as_of, now = checked_time("facts", "as_of", as_of), self.clock()
        # A fact whose successor has begun since the last write is still stored as active.
        every = as_of is not None or state in (None, "superseded")
        wanted = None if every else {"state": state}
        spaces = self._places([entity_id], kinds)
        entries = [entry for ns in spaces for entry in await self.store.alist(ns, filter=wanted)]
        found = _facts_of(entries, as_of)
        if as_of is None:
            found = [as_of_now(fact, now) for fact in found]
            found = [fact for fact in found if not (fact.state in OPEN and fact.expired(now))]
            found = [fact for fact in found if state is None or not fact.planned(now)]
        held = [fact for fact in found if state in (None, fact.state)]
        return sorted(held, key=lambda fact: fact.last_seen_at, reverse=True)

    async def search(
        self,
        entity_ids: Iterable[str],
        query: str,
        *,
        limit: int = 12,
        as_of: datetime | None = None,
        wanted: Callable[[Fact], bool] | None = None,
    ) -> list[Fact]:
        """The active and disputed facts about these entities that fit `query`, best first, at most `limit`.

        `wanted` selects facts before they are counted. With `as_of`, the facts that held at that time are
        searched and returned as they were, superseded ones included.
        """
        as_of = checked_time("search", "as_of", as_of)
        found = await self.store.asearch(
            self._places(entity_ids, BELIEVED),
            query,
            limit=limit,
            wanted=self._held(as_of, wanted),
            closed=as_of is not None,
        )
        return _facts_of(found.entries, as_of)

    async def latest(
        self,
        entity_ids: Iterable[str],
        *,
        limit: int = 12,
        as_of: datetime | None = None,
        wanted: Callable[[Fact], bool] | None = None,
    ) -> list[Fact]:
        """The active and disputed facts about these entities that were heard last; as `search`."""
        as_of = checked_time("latest", "as_of", as_of)
        found = await self.store.anewest(
            self._places(entity_ids, BELIEVED),
            limit=limit,
            wanted=self._held(as_of, wanted),
            closed=as_of is not None,
        )
        return _facts_of(found, as_of)

    def _places(self, entity_ids: Iterable[str], kinds: Iterable[str]) -> list[Namespace]:
        return [namespace(self.agent_id, kind, entity_id) for entity_id in entity_ids for kind in kinds]

    def _held(self, as_of: datetime | None, wanted: Callable[[Fact], bool] | None) -> Callable[[Value], bool]:
        now = self.clock()

        def fits(value: Value) -> bool:
            fact = Fact.read(value)
            if fact is None or (wanted is not None and not wanted(fact)):
                return False
            if as_of is not None:
                return fact.state_at(as_of) in OPEN
            return fact.state in OPEN and not fact.expired(now)

        return fits

    async def relevant(
        self, entity_ids: Collection[str], query: str, *, room_id: str, limit: int
    ) -> list[Fact]:
        """The active and disputed facts about these entities that may be used in a conversation of them in
        that room.

        For each entity, first those that fit `query`, at most `limit`, then as many of the latest.
        """
        people = {*entity_ids} - {self.agent_id}
        wanted = partial(may_be_used, room_id=room_id, people=people)
        found: dict[str, Fact] = {}
        for entity_id in dict.fromkeys(entity_ids):
            near = await self.search([entity_id], query, limit=limit, wanted=wanted)
            last = await self.latest([entity_id], limit=limit, wanted=wanted)
            found = {fact.id: fact for fact in (*last, *near)} | found
        return list(found.values())

    async def forget(self, entity_id: str, query: str | None = None, *, id: str | None = None) -> Forgotten:
        """As `Memory.forget`, without a look at the threads that wait. Raises `ParameterError` for a blank query, and
        for a query together with an id."""
        if query is not None and id is not None:
            raise ParameterError("forget", "id", "expected a query or an id, got both. Call it twice.")
        if query is not None and not sought(query):
            raise ParameterError(
                "forget", "query", f"expected a text, got {query!r:.80}. Leave it out for all."
            )
        if id is not None:
            wanted = Wanted(fact=lambda fact: fact.id == id)
        elif query is not None:
            part = sought(query)

            def names(fact: Fact) -> bool:
                said = any(part in sought(text) for text in _texts(fact, entity_id))
                return said or begins_word(part, fact.slot or "")

            wanted = Wanted(
                fact=names, text=lambda text, name: part in sought(text) or begins_word(part, name)
            )
        else:
            wanted = Wanted(fact=lambda fact: True, everything=self.clock())
        return await self.forgetting(entity_id).forget(wanted)

    def forgetting(self, entity_id: str) -> Forgetting:
        return Forgetting(
            self.store, self.rules, agent_id=self.agent_id, entity_id=entity_id, now=self.clock()
        )

    def profiles(self, entity_id: str) -> Profiles:
        return Profiles(self.store, self.agent_id, entity_id, self.rules, self.clock())

    async def undo(self, entity_id: str, id: str | None = None) -> int:
        """As `Memory.undo`."""
        if self.rules.undo_within is None:
            raise ConfigurationError(
                "what is forgotten is erased at once, so it cannot be undone. To keep it for a time, set "
                "FactRules(undo_within=timedelta(days=7))."
            )
        await empty_bins(self.store, self.agent_id, self.clock())
        return await Bin(self.store, self.agent_id, entity_id).restore(id, self.clock())

    async def owned(self, entity_id: str, query: str, *, limit: int) -> list[Fact]:
        """The records about an entity, and those about others that it alone has told: first those similar to
        `query`, then the newest, of every state and kind, at most `limit`."""
        places = self._places([entity_id], KINDS.values())
        near = await self.store.asearch(places, query, limit=limit // 4, closed=True)
        told = await told_about_others(self.store, self.agent_id, entity_id, limit // 4)
        newest = await self.store.anewest(places, limit=limit, closed=True)
        own = [Fact.read(entry.value) for entry in (*near.entries, *newest)]
        found = {fact.id: fact for fact in (*own[: len(near.entries)], *(fact for _, fact in told)) if fact}
        found |= {fact.id: fact for fact in own if fact is not None}
        return list(found.values())[:limit]

    async def reindex(self, entity_ids: Iterable[str]) -> int:
        """Retry embedding the facts that could not be embedded. Returns how many were."""
        return sum([await self.store.areindex(ns) for ns in self._places(entity_ids, KINDS.values())])


def _texts(fact: Fact, entity_id: str) -> Iterable[str]:
    subject = fact.subject if fact.subject != entity_id else None
    return filter(None, (fact.claim, fact.value, subject))


def _facts_of(entries: Iterable[Entry], as_of: datetime | None) -> list[Fact]:
    found = readable(Fact, (entry.value for entry in entries))
    if as_of is None:
        return found
    return [replace(fact, state=then) for fact in found if (then := fact.state_at(as_of)) is not None]


def facts_of(ctx: EvalContext) -> FactStore:
    """The facts of this turn's agent. Raises `NotAvailableError` without a store."""
    return FactStore(ctx.needed_store(), agent_id=ctx.agent_id, clock=ctx.clock, rules=ctx.fact_rules)


EvalContext.open_facts = facts_of
