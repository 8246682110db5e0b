"""Keeps the number of records about one entity within bounds."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from functools import partial

from arbiter.memory._records import Fact
from arbiter.memory.facts._changes import as_of_now, put_away
from arbiter.memory.facts._rules import FactRules
from arbiter.memory.stores import MemoryStore, Namespace, namespace


def weight(fact: Fact, now: datetime, half_life_days: float = 30) -> float:
    """The worth of a fact for keeping and showing it: its confidence, halved every `half_life_days` since the
    last mention."""
    days = max((now - fact.last_seen_at) / timedelta(days=1), 0.0)
    return fact.confidence * math.exp2(-days / half_life_days)


async def keep_within(
    store: MemoryStore, rules: FactRules, *, agent_id: str, entity_id: str, now: datetime
) -> None:
    """Put away expired statuses and the active facts of least weight above `max_facts_per_entity`, and delete the
    oldest closed records above `max_closed_per_entity`, and those closed more than `retention_days` ago.

    It reads the records only if there may be too many of them.
    """
    spaces = [namespace(agent_id, kind, entity_id) for kind in ("facts", "status")]
    most = rules.max_facts_per_entity
    if sum([len(await store.abeyond(ns, 0, is_open=True, most=most + 1)) for ns in spaces]) > most:
        await _put_away(store, rules, spaces, now)
    for ns in (*spaces, namespace(agent_id, "opinions", entity_id)):
        gone = await store.abeyond(ns, rules.max_closed_per_entity, is_open=False)
        if rules.retention_days is not None:
            gone += await _closed_before(store, ns, now - timedelta(days=rules.retention_days))
        await store.aput_many((ns, key, None) for key in gone)


async def _put_away(store: MemoryStore, rules: FactRules, spaces: list[Namespace], now: datetime) -> None:
    active = [
        (ns, fact) for ns in spaces for fact in await _read(store, ns, is_open=True) if fact.state == "active"
    ]
    gone = [(ns, fact) for ns, fact in active if fact.expired(now)]
    kept = [(ns, fact) for ns, fact in active if not fact.expired(now)]
    kept.sort(key=lambda found: weight(found[1], now))
    for ns, fact in (*gone, *kept[: max(len(kept) - rules.max_facts_per_entity, 0)]):
        away = partial(Fact.altered, change=lambda fact: put_away(as_of_now(fact, now)))
        await store.aupdate(ns, fact.id, away)


async def _closed_before(store: MemoryStore, ns: Namespace, time: datetime) -> list[str]:
    found = await _read(store, ns, is_open=False)
    return [fact.id for fact in found if (fact.valid_to or fact.last_seen_at) < time]


async def _read(store: MemoryStore, ns: Namespace, *, is_open: bool) -> list[Fact]:
    values = await store.aget_many(ns, await store.abeyond(ns, 0, is_open=is_open))
    return [fact for value in values.values() if (fact := Fact.read(value)) is not None]
