"""The bin: what a forgetting has taken, kept for the time in which it can be undone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from arbiter._values.kinds import is_list, is_mapping
from arbiter.memory._notes import Related, Traces
from arbiter.memory._records import BELIEVED, KINDS, Fact, Record, Records, readable, time_of
from arbiter.memory._tombstones import Forgettings, Tombstones
from arbiter.memory.facts._adjudication import Pair, by_rule
from arbiter.memory.facts._changes import CLOSED, ending, is_closed, outdated, relinked, says_alone
from arbiter.memory.facts._normal import normal_form
from arbiter.memory.facts._own_names import OwnNames
from arbiter.memory.facts._profiles import put_back
from arbiter.memory.facts._rules import has_one_value
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Binned(Record):
    """One forgetting; claims that were first made after `at` were made since. `records` are (namespace, key, value),
    `messages` the ids that it has buried in each room; `everything_at` is the time of an earlier wish to forget
    everything, which a later one replaced, and `newest_before` that of the forgetting before."""

    id: str
    entity_id: str
    at: datetime
    until: datetime
    records: tuple[Mapping[str, Any], ...] = ()
    messages: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_everything: bool = False
    everything_at: datetime | None = None
    newest_before: datetime | None = None


class Bin(Records):
    """The forgettings of one entity that can still be undone."""

    kind = "bin"

    async def open(self, binned: Binned) -> None:
        """Begin a forgetting. It is noted by its last hour first, so that no bin is kept for ever."""
        hour = _due(self.agent_id, binned.until)

        def noted(value: Value | None) -> Value | None:
            hours = _hours(value)
            return value if hour[-1] in hours else {_HOURS: sorted([*hours, hour[-1]])}

        await self.store.aupdate(_all_hours(self.agent_id), _HOURS, noted)
        until = binned.until.astimezone(UTC).isoformat()
        note = {"id": binned.id, "entity_id": binned.entity_id, "until": until}
        await self.store.aput(hour, binned.id, note)
        await self.store.aput(self.space, binned.id, binned.to_value())

    async def add(
        self,
        id: str,
        records: Iterable[tuple[Namespace, str, Value]],
        messages: Mapping[str, Collection[str]],
    ) -> None:
        """Put records and the ids of buried messages into the bin of a forgetting, before they are deleted."""
        more = [{"namespace": [*ns], "key": key, "value": value} for ns, key, value in records]

        def change(value: Value | None) -> Value | None:
            if value is None:
                return None
            buried = {**value["messages"]}
            for room_id, ids in messages.items():
                buried[room_id] = [*dict.fromkeys([*buried.get(room_id, ()), *ids])]
            return {**value, "records": [*value["records"], *more], "messages": buried}

        await self.store.aupdate(self.space, id, change)

    async def restore(self, id: str | None, now: datetime) -> int:
        """Undo the forgetting with that id, or the last one that has taken something, with the empty ones after it.
        Returns how many facts are back."""
        entries = await self.store.alist(self.space)
        found = [one for one in readable(Binned, (entry.value for entry in entries)) if one.until > now]
        facts = 0
        for binned in sorted(found, key=lambda one: one.at, reverse=True):
            if not id or binned.id == id:
                facts += await self._restore(binned, now)
                for later in found:
                    if later.newest_before == binned.at:
                        before = partial(replace, newest_before=binned.newest_before)
                        change = partial(Binned.altered, change=before)
                        await self.store.aupdate(self.space, later.id, change)
                if binned.records or binned.messages:
                    break
        return facts

    async def _restore(self, binned: Binned, now: datetime) -> int:
        forgettings = Forgettings(self.store, self.agent_id, self.scope)
        if binned.is_everything:
            await forgettings.note("everything", binned.everything_at)
        if await forgettings.at("newest") == binned.at:
            await forgettings.note("newest", binned.newest_before)
        for room_id, ids in binned.messages.items():
            await Tombstones(self.store, self.agent_id, room_id).dig_up(ids)
        facts = 0
        held: dict[tuple[Namespace, str], list[Fact]] = {}
        again = await self._learned_again(binned)
        back: dict[str, Fact] = {}
        links: list[tuple[Namespace, str, Mapping[str, Any]]] = []
        for record in binned.records:
            ns, key, value = tuple(record["namespace"]), record["key"], record["value"]
            if "links" in value:
                links.append((ns, key, value["links"]))
                continue
            if (ns, key) in again:
                continue
            fact = Fact.read(value) if "claim" in value else None
            if fact is not None and has_one_value(fact):
                if (slot := (ns, str(fact.slot))) not in held:
                    entries = await self.store.alinked(_beside(ns), "slot", [slot[1]])
                    held[slot] = readable(Fact, (entry.value for entry in entries))
                fact = _overtaken(fact, _said_since(binned.at, held[slot]))
                fact = replace(fact, origin={**fact.origin, _GONE: binned.at.isoformat()})
                value = {**value, **fact.to_value()}
            facts += await self._put_back(ns, key, value)
            if fact is None:
                continue
            back[key] = fact
            if _GONE in fact.origin:
                await self._replace_restored(fact, held.get((ns, str(fact.slot)), ()), ns)
            if fact.planned(now) and fact.state not in CLOSED:
                await self._plan_again(fact, ns)
        for ns, key, before in links:
            change = partial(relinked, links=before, back=back)
            await self.store.aupdate(ns, key, partial(Fact.altered, change=change))
        await self.store.adelete(self.space, binned.id)
        await self.store.adelete(_due(self.agent_id, binned.until), binned.id)
        return facts

    async def _learned_again(self, binned: Binned) -> set[tuple[Namespace, str]]:
        """The records whose claims were learned again under other ids, because the key of the ids went, too."""
        saved: dict[Namespace, list[Value]] = {}
        for record in binned.records if binned.is_everything else ():
            if "claim" in record["value"]:
                saved.setdefault(tuple(record["namespace"]), []).append(record["value"])
        found: set[tuple[Namespace, str]] = set()
        for ns, values in saved.items():
            known = {_said(entry.value) for entry in await self.store.alist(ns)}
            found |= {(ns, str(value["id"])) for value in values if _said(value) in known}
        return found

    async def _replace_restored(self, fact: Fact, held: Iterable[Fact], ns: Namespace) -> None:
        """Close the facts of the slot that are restored already, and that were forgotten when this one was said."""
        for old in held:
            since = _said_since(time_of(old.origin[_GONE]), [fact]) if _GONE in old.origin else ()
            if since:
                close = partial(Fact.altered, change=partial(_overtaken, since=since))
                await self.store.aupdate((*ns[:2], KINDS[old.type], *ns[3:]), old.id, close)

    async def _plan_again(self, plan: Fact, ns: Namespace) -> None:
        """Let the fact that a restored plan replaces end again when the plan begins."""

        def change(value: Value | None) -> Value | None:
            before = Fact.read(value)
            if before is None or before.superseded_by is not None or plan.valid_from is None:
                return value
            return ending(before, plan.id, at=plan.valid_from).to_value()

        id = plan.supersedes
        while id not in (None, plan.id):
            before = [Fact.read(await self.store.aupdate(place, id, change)) for place in _beside(ns)]
            # One that was edited holds under another id.
            id = next((one.superseded_by for one in before if one and one.state == "corrected"), None)

    async def _put_back(self, ns: Namespace, key: str, saved: Value) -> bool:
        """Write a record unless it was learned again meanwhile. True for facts that are back."""
        written = False

        def change(value: Value | None) -> Value | None:
            nonlocal written
            written = value is None
            if value is not None and "fields" in saved:  # a profile, of which only a part was forgotten
                return {**value, "fields": put_back(value["fields"], saved["fields"])}
            if value is not None and (ns == related.space or ns[2] == OwnNames.kind):  # the same of lists
                return {name: _united(saved.get(name), part) for name, part in value.items()}
            return saved if value is None else value

        related = Related(self.store, self.agent_id)
        if ns == related.space:
            await related.update(key, str(saved.get("source")), str(saved.get("target")), change)
        else:
            await self.store.aupdate(ns, key, change)
            if "claim" in saved and saved.get("subject") != self.scope:
                # Told about somebody else, so the speaker's trace of it may be gone.
                traces = Traces(self.store, self.agent_id, self.scope)
                await traces.has_told(key, kind=ns[2], scope=str(saved.get("subject")))
        return written and "claim" in saved


async def empty_bins(store: MemoryStore, agent_id: str, now: datetime) -> None:
    """Delete what can no longer be undone, of all entities. Reads only the hours until now."""
    this = _due(agent_id, now)[-1]
    past = [hour for hour in _hours(await store.aget(_all_hours(agent_id), _HOURS)) if hour <= this]
    for hour in past:
        ns = namespace(agent_id, "bins", hour)
        for entry in await store.alist(ns):
            note = entry.value
            if datetime.fromisoformat(note["until"]) <= now:
                await store.adelete(namespace(agent_id, "bin", note["entity_id"]), note["id"])
                await store.adelete(ns, entry.key)
    if any(hour < this for hour in past):
        # Nothing is added to an hour that is over.
        await store.aupdate(
            _all_hours(agent_id),
            _HOURS,
            lambda value: {_HOURS: [hour for hour in _hours(value) if hour >= this]},
        )


def _beside(ns: Namespace) -> list[Namespace]:
    """The namespaces of what is believed of the same entity. A namespace has its id in another form."""
    return [(*ns[:2], kind, *ns[3:]) for kind in BELIEVED]


def _said_since(at: datetime, held: Iterable[Fact]) -> list[Fact]:
    """The facts that were said since then. "I lived in Rome until 2019" is none of them, and only a status keeps its
    end."""
    later = [fact for fact in held if fact.type == "status" and fact.first_seen_at > at]
    return [fact for fact in later if not is_closed(fact, fact.first_seen_at)]


def _overtaken(fact: Fact, since: Iterable[Fact]) -> Fact:
    """A restored fact as one that a statement since has replaced, by the rule for comparisons without a model."""
    for newer in since:
        pair = Pair(new=newer, known=fact, same_speaker=says_alone(fact, newer.speaker))
        is_as_open = fact.visibility == "room" or newer.visibility != "room"
        if is_as_open and by_rule(pair) == "supersedes":
            fact = outdated(fact, newer, "supersedes")
    return fact


def _united(saved: Any, now: Any) -> Any:
    """The present value with the members that only the saved one has."""
    if is_mapping(now):
        return {**dict[str, Any](saved or {}), **now}
    if not is_list(now):
        return now
    both: list[Any] = [*(saved or ()), *now]
    return [part for at, part in enumerate(both) if part not in both[:at]]


def _said(value: Value) -> tuple[object, str]:
    return value.get("subject"), normal_form(str(value.get("claim")))


_HOURS = "hours"
_GONE = "forgotten_at"
"""The part of a restored fact's origin with the time at which it was forgotten."""


def _all_hours(agent_id: str) -> Namespace:
    """The namespace of the list of the hours that have notes. (Stores find namespaces by reading them all.)"""
    return namespace(agent_id, "bins", "all")


def _hours(value: Value | None) -> list[str]:
    return [str(hour) for hour in (value or {}).get(_HOURS, ())]


def _due(agent_id: str, until: datetime) -> Namespace:
    return namespace(agent_id, "bins", until.astimezone(UTC).strftime("%Y-%m-%dT%H"))
