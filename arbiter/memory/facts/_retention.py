"""Keeps the number of facts about one entity within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta

from arbiter.memory._records import Fact
from arbiter.memory.facts._changes import put_away, read
from arbiter.memory.facts._rules import FactRules
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace

HALF_LIFE_DAYS = 30


def weight(fact: Fact, now: datetime) -> float:
    """The worth of a fact for keeping and showing it: its confidence, halved every 30 days since the last
    mention."""
    days = max((now - fact.last_seen_at) / timedelta(days=1), 0.0)
    return fact.confidence * math.exp2(-days / HALF_LIFE_DAYS)


async def keep_within(
    store: MemoryStore, rules: FactRules, *, agent_id: str, entity_id: str, now: datetime
) -> None:
    """Expire the active facts of least weight above `max_facts_per_entity`, and delete facts superseded
    more than `retention_days` ago."""
    active: list[tuple[Namespace, Fact]] = []
    for kind in ("facts", "status"):
        ns = namespace(agent_id, kind, entity_id)
        for entry in await store.alist(ns):
            fact = read(entry.value)
            if fact is not None and fact.state == "active":
                active.append((ns, fact))
            elif fact is not None and fact.state == "superseded" and _is_old(fact, rules, now):
                await store.aupdate(ns, entry.key, lambda value: None)
    surplus = len(active) - rules.max_facts_per_entity
    if surplus > 0:
        active.sort(key=lambda found: weight(found[1], now))
        for ns, fact in active[:surplus]:
            await store.aupdate(ns, fact.id, _changed(put_away))


def _is_old(fact: Fact, rules: FactRules, now: datetime) -> bool:
    if rules.retention_days is None:
        return False
    return (fact.valid_to or fact.last_seen_at) < now - timedelta(days=rules.retention_days)


def _changed(change: Callable[[Fact], Fact]) -> Callable[[Value | None], Value | None]:
    def apply(value: Value | None) -> Value | None:
        fact = read(value)
        if fact is None:
            return value
        after = change(fact)
        return value if after is fact else after.to_value()

    return apply
