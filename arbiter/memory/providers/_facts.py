"""`FactsProvider`: known facts about the user, and public ones about others, as far as this room may see
them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from arbiter.evaluators._outputs import checked_number
from arbiter.instructions import Instruction
from arbiter.memory._records import Fact, readable
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._others import told_of_others
from arbiter.memory.providers._provider import Provider, ProviderContext, ProvidingCycle
from arbiter.memory.stores import Entry, MemoryStore, Namespace, Value, namespace
from arbiter.memory.stores._words import likest

KINDS = ("facts", "status")
CONFLICTING = "(unverified, conflicting)"
_DAY = 86_400
_WIDER = 10
_UNEMBEDDED = 2
_OWNER = "FactsProvider"


class FactsProvider(Provider):
    """Known facts about the user of the turn: the `similar` facts most like the last messages, and the
    `recent` facts heard last, statuses included.

    Facts are ranked by confidence, halved every `half_life_days` since the last mention; conflicting ones
    follow, newest first and marked as such. The store's embeddings find similar facts. Without embeddings,
    only the `window` records of each kind that were written last are compared, by words, because a provider
    must not read all facts of a user. If fewer than `recent` of those may be shown, ten times as many are
    read.

    At most `others` facts about others follow, under their names: facts visible to all
    (`FactRules(visibility="agent")`), about at most four people who are named in the last messages or take
    part in the conversation.
    """

    name = "facts"
    description = "Known about the user, with confidence and the date when it was last heard"
    position = 10

    def __init__(
        self,
        name: str = "",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        *,
        similar: int = 6,
        recent: int = 6,
        others: int = 6,
        window: int = 100,
        half_life_days: float = 30.0,
        cycle: ProvidingCycle | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, cycle=cycle, **options)
        self.similar = int(checked_number(_OWNER, "similar", similar, low=0, whole=True))
        self.recent = int(checked_number(_OWNER, "recent", recent, low=0, whole=True))
        self.others = int(checked_number(_OWNER, "others", others, low=0, whole=True))
        self.window = int(checked_number(_OWNER, "window", window, low=1, whole=True))
        self.half_life_days = checked_number(_OWNER, "half_life_days", half_life_days, above=0)

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        store, now = ctx.needed_store(), ctx.clock()
        places = [namespace(ctx.agent_id, kind, ctx.entity_id) for kind in KINDS]
        newest, (near, semantic), others = await asyncio.gather(
            self._newest(store, places, ctx, now),
            self._near(store, places, ctx, now),
            told_of_others(ctx, KINDS, now, self.others),
        )
        if not semantic:
            claims = ((fact, fact.claim) for fact in newest)
            near = [fact for fact, _ in likest(claims, ctx.query, limit=self.similar)]
        chosen = {fact.id: fact for fact in (*near, *newest[: self.recent])}
        chosen |= await _opponents(store, places, ctx, now, chosen)
        shown = self._ranked(_finest(chosen, newest), now)
        lines = [line_of(fact, now) for fact in shown]
        text = "\n".join([*lines, *(line_of(fact, now, about=name) for name, fact in others)])
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={
                "facts": [fact.to_value() for fact in shown],
                "others": [fact.to_value() for _, fact in others],
                "semantic": semantic,
            },
        )

    async def _newest(
        self, store: MemoryStore, places: Sequence[Namespace], ctx: ProviderContext, now: datetime
    ) -> list[Fact]:
        """The showable facts among the records written last, newest first."""
        for window in (self.window, self.window * _WIDER):
            pages = await asyncio.gather(*(store.alist(place, limit=window) for place in places))
            found = [fact for page in pages for fact in _shown(page, ctx, now)]
            if len(found) >= self.recent or all(len(page) < window for page in pages):
                break
        return sorted(found, key=lambda fact: fact.last_seen_at, reverse=True)

    async def _near(
        self, store: MemoryStore, places: Sequence[Namespace], ctx: ProviderContext, now: datetime
    ) -> tuple[list[Fact], bool]:
        """The facts that the store's embeddings find for the query, best first, and True; False without
        embeddings."""
        if store.indexed is False or not ctx.query:
            return [], False
        # Ask for more than needed: superseded facts are as similar to the query as their successors.
        found = await asyncio.gather(
            *(store.asearch(place, ctx.query, limit=self.similar * 3) for place in places)
        )
        if not any(part.semantic for part in found):
            return [], False
        hits = sorted(
            (hit for part in found if part.semantic for hit in part.entries), key=_score, reverse=True
        )
        unembedded = sorted((hit for part in found for hit in part.by_words), key=_score, reverse=True)
        near = _shown(hits, ctx, now)[: self.similar]
        return [*near, *_shown(unembedded, ctx, now)[:_UNEMBEDDED]], True

    def _ranked(self, facts: Iterable[Fact], now: datetime) -> list[Fact]:
        def weight(fact: Fact) -> float:
            days = max(0.0, (now - fact.last_seen_at).total_seconds() / _DAY)
            return fact.confidence * math.pow(0.5, days / self.half_life_days)

        newest = sorted(facts, key=lambda fact: fact.last_seen_at, reverse=True)
        active = sorted((f for f in newest if f.state == "active"), key=weight, reverse=True)
        return [*active, *(fact for fact in newest if fact.state == "disputed")]


def line_of(fact: Fact, now: datetime, *, about: str = "") -> str:
    """A fact as one line: `[conf=0.93, 2026-01-31] User lives in Seattle`.

    Dates to come are in it: `[conf=0.60, 2026-01-31, from 2027-01-01]`, or `until`. `about` is the name of a
    subject other than the user: `[conf=0.93, 2026-01-31] (about Bob) Lives in Seattle`.
    """
    label = f"(about {one_line(about, 100)}) " if about else ""
    dates = [fact.last_seen_at.date().isoformat()]
    for word, when in (("from", fact.valid_from), ("until", fact.valid_to)):
        if when is not None and when > now:
            dates.append(f"{word} {when.astimezone(now.tzinfo).date().isoformat()}")
    line = f"[conf={fact.confidence:.2f}, {', '.join(dates)}] {label}{one_line(fact.claim)}"
    return line if fact.state == "active" else f"{line} {CONFLICTING}"


def may_be_shown(fact: Fact, ctx: ProviderContext) -> bool:
    """True if the user of the turn may see the fact in this room.

    A fact visible to a room is shown in the rooms where it was said. A fact visible to an entity is shown to
    its speakers and to its subject; a subject sees a third party's claim only in the rooms where it was said.
    """
    if fact.visibility == "agent":
        return True
    if fact.visibility == "room":
        return ctx.room_id in fact.room_ids
    if ctx.entity_id in (fact.speaker, *fact.speakers):
        return True
    return ctx.entity_id == fact.subject and (
        fact.provenance != "third_party" or ctx.room_id in fact.room_ids
    )


def _shown(entries: Iterable[Entry], ctx: ProviderContext, now: datetime) -> list[Fact]:
    return [fact for fact in readable(Fact, (entry.value for entry in entries)) if _fits(fact, ctx, now)]


def _fits(fact: Fact, ctx: ProviderContext, now: datetime) -> bool:
    return fact.state in ("active", "disputed") and not fact.expired(now) and may_be_shown(fact, ctx)


def _finest(chosen: Mapping[str, Fact], known: Iterable[Fact]) -> list[Fact]:
    """The chosen facts, each in its most refined form: "lives in Ballard" for "lives in Seattle"."""
    refining = {
        fact.refines: fact for fact in (*known, *chosen.values()) if fact.refines and fact.state == "active"
    }
    found: dict[str, Fact] = {}
    for fact in chosen.values():
        passed = {fact.id}
        while fact.id in refining and refining[fact.id].id not in passed:
            fact = refining[fact.id]
            passed.add(fact.id)
        found[fact.id] = fact
    return list(found.values())


def _score(entry: Entry) -> float:
    return entry.score or 0.0


async def _opponents(
    store: MemoryStore,
    places: Sequence[Namespace],
    ctx: ProviderContext,
    now: datetime,
    chosen: Mapping[str, Fact],
) -> dict[str, Fact]:
    """The other sides of the conflicts in `chosen`: one side alone would look like the truth."""
    missing = {
        id: None
        for fact in chosen.values()
        if fact.state == "disputed"
        for id in fact.contradicts
        if id not in chosen
    }
    found: list[Value | None] = await asyncio.gather(
        *(store.aget(place, id) for id in missing for place in places)
    )
    facts = readable(Fact, (value for value in found if value is not None))
    return {fact.id: fact for fact in facts if _fits(fact, ctx, now)}
