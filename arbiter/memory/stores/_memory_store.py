"""`MemoryStore`: one behaviour over every LangGraph `BaseStore`."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchItem

from arbiter._values.kinds import is_list
from arbiter.memory._secrets import redacted
from arbiter.memory._telling import cause_of
from arbiter.memory.stores._access import access_to
from arbiter.memory.stores._portable import (
    CLAIM,
    PENDING,
    Namespace,
    claim_of,
    clean,
    clean_text,
    copied,
    joined,
    matches,
    safe_key,
)
from arbiter.memory.stores._ranking import Hit
from arbiter.memory.stores._words import Place, is_open

_log = logging.getLogger("arbiter.memory")
T = TypeVar("T")
Value = dict[str, Any]
Link = Literal["slot", "refines", "superseded_by", "source_message_ids"]
"""The keys of a value by which records are found without reading others; see `MemoryStore.alinked`."""
LockProvider = Callable[[str], AbstractAsyncContextManager[Any]]
"""A function of a name that returns a lock which several processes share."""

_TRIES = 3
_BATCH = 500
_PRUNED = 100
_ALIKE = 16
_MOST = 2**31 - 1
_DEPTH = 40
"""Records of each order that are fused."""
_DEEP = 100
_LOOKED_AT = 1_000
# On LoCoMo, meaning alone finds more than words alone; with equal weights, or a flat sum over the ranks (60 is
# usual), the words took places from better hits.
_RANKS, _VECTORS = 10, 1.5
_DETACHED: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a store.

    With a query, `score` orders the records of one search, higher is better, and compares nothing else;
    `similarity` is the cosine of the embeddings of query and claim, -1 to 1, if the embeddings found the record.
    """

    key: str
    value: Value
    score: float | None = None
    similarity: float | None = None
    ns: Namespace = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a query, best first. `semantic` is True if embeddings took part, False for words alone."""

    entries: Sequence[Entry]
    semantic: bool


class MemoryStore:
    """Reads and writes records in any `BaseStore`: sync or async, with or without an index.

    Only the key "claim" of a value is embedded. The store can be called from any thread and any event loop.
    Errors of the store are raised. If the embedder raises, or returns a vector of a wrong length or of zeros,
    the record is stored without a vector and with `needs_embedding: true`; `areindex` tries again.

    Values are JSON; in their texts, U+FFFD replaces NUL and lone surrogates. Locks hold within this process.
    For several processes they need a `lock_provider`, by default the store's own attribute of that name; stores
    of `open_store` have one. Without it the last writer of a record wins.
    """

    def __init__(self, store: BaseStore, *, lock_provider: LockProvider | None = None) -> None:
        self.store = store
        own: LockProvider | None = getattr(store, "lock_provider", None)
        self.lock_provider = own if lock_provider is None else lock_provider
        self._access = access_to(store)

    async def aget(self, ns: Namespace, key: str) -> Value | None:
        item = await self._access.call("get", ns, safe_key(key), refresh_ttl=False)
        return None if item is None else self._own(item.value)

    async def aput(
        self, ns: Namespace, key: str, value: Mapping[str, Any], *, ttl: float | None = None
    ) -> None:
        """Write a record. `ttl` is in seconds; stores without support ignore it, so readers must check
        their own time stamps."""
        stored: Value = clean(value)
        await _uninterrupted(self._put(ns, safe_key(key), stored, ttl))

    async def aget_many(self, ns: Namespace, keys: Iterable[str]) -> dict[str, Value]:
        """The records of a namespace with these keys, by key, in their order. Missing ones are left out."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Value] = {}
        for at in range(0, len(wanted), _BATCH):
            part = wanted[at : at + _BATCH]
            items = await self._access.call("batch", [GetOp(ns, safe_key(key), False) for key in part])
            found |= {
                key: self._own(item.value) for key, item in zip(part, items, strict=True) if item is not None
            }
        return found

    async def aput_many(self, changes: Iterable[tuple[Namespace, str, Mapping[str, Any] | None]]) -> None:
        """Write records without vectors; None deletes one. Records of one batch, of 500, are written at once."""
        ops = [
            PutOp(ns, safe_key(key), None if value is None else clean(value), False)
            for ns, key, value in changes
        ]
        for at in range(0, len(ops), _BATCH):
            await _uninterrupted(self._access.call("batch", ops[at : at + _BATCH]))

    async def aprune(self, ns: Namespace, *, keep: int, at: Callable[[Value], str]) -> None:
        """Delete records beyond the `keep` that were written last, at most 100 in one call.

        `at` is the time of a value as a text. It decides between records that were written at nearly the same
        time: some stores note whole seconds.
        """
        gone = await self.aoldest(ns, keep=keep, at=at)
        await self.aput_many((ns, entry.key, None) for entry in gone)

    async def aoldest(self, ns: Namespace, *, keep: int, at: Callable[[Value], str]) -> list[Entry]:
        """The records that `aprune` would delete."""
        seen = min(keep, _ALIKE)
        last = await self._access.after(ns, keep - seen, limit=seen + _PRUNED)
        last.sort(key=lambda item: at(item.value), reverse=True)
        return [Entry(item.key, self._own(item.value)) for item in last[seen:]]

    async def abeyond(self, ns: Namespace, count: int, *, is_open: bool, most: int = _MOST) -> list[str]:
        """The keys of records with a claim beyond the `count` with the latest "last_seen_at", without reading
        the records: of the open ones or of the closed ones; see `asearch`."""
        hits = await self._access.words.newest(self.store, (ns, is_open), count, most)
        return [hit.key for hit in hits]

    async def adelete(self, ns: Namespace, key: str) -> None:
        await self._access.call("delete", ns, safe_key(key))

    async def alist(
        self, ns: Namespace, *, filter: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The records of exactly that namespace (not of longer ones), newest write first as far as the store
        knows, at most `limit`.

        `filter` maps keys to values, or to comparisons such as `{"$gte": 0.5}` ($eq, $ne, $gt, $gte, $lt,
        $lte).
        """
        wanted: Mapping[str, Any] = clean(filter or {})
        if limit is not None and limit < 1:
            return []
        items = await self._access.items(
            ns, lambda item: matches(item.value, wanted), filter=wanted, limit=limit
        )
        return [Entry(item.key, self._own(item.value)) for item in items]

    async def asearch(
        self,
        places: Namespace | Sequence[Namespace],
        query: str,
        *,
        limit: int = 8,
        wanted: Callable[[Value], bool] | None = None,
        closed: bool = False,
    ) -> Found:
        """The records of one or several namespaces that fit `query`, best first.

        All records compete, by the words of their "claim", "slot" and "value" (BM25), and by the embeddings of
        their claims if the store has them and they work; the two orders are fused. The last line of `query`
        counts most. `wanted` selects values
        before `limit` counts them. `closed` also searches records whose "state" is superseded, corrected,
        retracted or expired.

        Secrets in a query are replaced before anything reads it. Records of other programs are found too; in a
        store that `open_store` did not open, their changes may be a minute late.
        """
        query = redacted(clean_text(query))
        spaces = _spaces(places)
        if limit < 1 or not query.strip() or not spaces:
            return Found((), semantic=False)
        asked = max(_DEPTH, 2 * limit)
        parts = _parts(spaces, closed=closed)
        hits = await self._access.words.hits(self.store, parts, query, max(_DEEP, 4 * limit))
        near = await asyncio.gather(*(self._hits(ns, query, asked, wanted) for ns in spaces))
        if all(part is None for part in near):
            found = await self._read(hits, wanted, limit)
            return Found(found, semantic=False)
        known = (entry for part in near for entry in part or ())
        vectors = sorted(known, key=lambda entry: entry.similarity or 0.0, reverse=True)
        return Found(await self._fused(hits, vectors, wanted, limit, closed=closed), semantic=True)

    async def anewest(
        self,
        places: Namespace | Sequence[Namespace],
        *,
        limit: int,
        wanted: Callable[[Value], bool] | None = None,
        closed: bool = False,
    ) -> list[Entry]:
        """The records of these namespaces with the latest "last_seen_at", latest first; at most `limit`.

        Records without a claim are left out; `wanted` and `closed` as in `asearch`.
        """
        if limit < 1:
            return []
        parts = _parts(_spaces(places), closed=closed)
        pages = await asyncio.gather(*(self._newest(part, limit, wanted) for part in parts))
        found = [entry for page in pages for entry in page]
        return sorted(found, key=_seen, reverse=True)[:limit]

    async def alinked(
        self,
        places: Namespace | Sequence[Namespace],
        name: Link,
        values: Sequence[str],
    ) -> list[Entry]:
        """The records of these namespaces that have one of these values under that name, or among its
        values, in no order.

        Only records with a claim are found; those of other programs as in `asearch`.
        """
        parts = _parts(_spaces(places), closed=True)
        if not parts or not values:
            return []

        def has(value: Value) -> bool:
            found: object = value.get(name)
            return any(each in values for each in (found if is_list(found) else [found]))

        hits = await self._access.words.linked(self.store, parts, name, values)
        return await self._read(hits, has, len(hits))

    async def aindex(self, spaces: Iterable[Namespace]) -> None:
        """Index the words of what was written in these namespaces, so that the next search need not do it."""
        if written := list(dict.fromkeys(spaces)):
            await self._access.words.ready(self.store, written)

    async def aupdate(
        self,
        ns: Namespace,
        key: str,
        change: Callable[[Value | None], Value | None],
        *,
        ttl: Callable[[Value], float | None] | None = None,
    ) -> Value | None:
        """Read, change and write one record under its lock. Returns the record afterwards.

        `change` receives None if there is no record; it returns None to delete the record, or the very same
        object to leave it unchanged. `ttl` returns the seconds for `aput` for a value that is written.
        """
        writing = False

        async def update() -> Value | None:
            nonlocal writing
            async with self.lock("record", *ns, key):
                writing = True
                return await self._update(ns, safe_key(key), change, ttl)

        return await _uninterrupted(update(), lambda: writing)

    async def areindex(self, ns: Namespace, *, everything: bool = False) -> int:
        """Retry the embedding of records without a vector. Returns how many got one.

        With `everything`, all records with a claim are embedded again, for a store with a new index or
        another model. Stops after three failures in a row.
        """
        if self.indexed is False:
            return 0
        done = failures = 0
        for entry in await self.alist(ns, filter=None if everything else {PENDING: True}):
            if claim_of(entry.value) is None:
                continue
            if await self._reindex(ns, entry.key, everything):
                done, failures = done + 1, 0
            else:
                failures += 1
            if failures == _TRIES:
                break
        return done

    @asynccontextmanager
    async def lock(self, *parts: str) -> AsyncGenerator[None]:
        """A named lock of this store, shared by all its `MemoryStore`s in this process, and by other
        processes with `lock_provider`.

        First come, first served within a process. Not reentrant.
        """
        name = joined(parts)
        async with self._access.locks.hold(name):
            if self.lock_provider is None:
                yield
            else:
                async with self.lock_provider(name):
                    yield

    def _own(self, value: Value) -> Value:
        """`value` as an object that the caller may change."""
        return copied(value) if self._access.hands_out_its_own else value

    @property
    def is_home(self) -> bool:
        """True on the event loop that an async store belongs to."""
        return self._access.is_home

    @property
    def indexed(self) -> bool | None:
        """True if the store has embeddings; None if it does not say."""
        if not hasattr(self.store, "index_config"):
            return None
        return bool(getattr(self.store, "index_config", None))

    async def _hits(
        self, ns: Namespace, query: str, limit: int, wanted: Callable[[Value], bool] | None
    ) -> list[Entry] | None:
        """The results of the store's embeddings; None if it has none, or if they or their index fail."""
        if self.indexed is False:
            return None

        def fits(item: SearchItem) -> bool:
            # A pending record may still have the vector of its previous claim.
            if claim_of(item.value) is None or item.value.get(PENDING) is True:
                return False
            return wanted is None or wanted(item.value)

        try:
            found = await self._access.scored(ns, query, fits, limit=limit)
        except Exception as error:  # if the store itself fails, reading the records raises the error again
            if self.indexed:
                self._failed(error)
            return None
        if found is None:
            return [] if self.indexed else None
        return [Entry(item.key, self._own(item.value), None, item.score, ns) for item in found]

    async def _newest(self, place: Place, limit: int, wanted: Callable[[Value], bool] | None) -> list[Entry]:
        found: list[Entry] = []
        offset, step = 0, limit
        while len(found) < limit and offset < _LOOKED_AT:
            page = await self._access.words.newest(self.store, place, offset, step)
            found += await self._read(page, wanted, step)
            if len(page) < step:
                break
            offset, step = offset + step, 2 * step
        return found[:limit]

    async def _fused(
        self,
        hits: Sequence[Hit],
        vectors: Sequence[Entry],
        wanted: Callable[[Value], bool] | None,
        limit: int,
        *,
        closed: bool,
    ) -> list[Entry]:
        """Both orders in one, by the sum of the reciprocals of the ranks."""
        near = {(entry.ns, entry.key): entry for entry in vectors if closed or is_open(entry.value)}
        scores: dict[tuple[Namespace, str], float] = defaultdict(float)
        for rank, at in enumerate(near):
            scores[at] += _VECTORS / (_RANKS + rank)
        for rank, hit in enumerate(hits[: max(_DEPTH, 2 * limit)]):
            scores[hit.ns, hit.key] += 1 / (_RANKS + rank)
        order = sorted(scores.items(), key=lambda pair: pair[1], reverse=True)
        return await self._read([Hit(score, *at) for at, score in order], wanted, limit, near)

    async def _read(
        self,
        hits: Sequence[Hit],
        wanted: Callable[[Value], bool] | None,
        limit: int,
        known: Mapping[tuple[Namespace, str], Entry] = MappingProxyType({}),
    ) -> list[Entry]:
        """The records of hits, in order, as far as they are still there and wanted; at most `limit`. Those that are
        `known` have been read."""
        found: list[Entry] = []
        at = 0
        while at < len(hits) and len(found) < limit:
            some = hits[at : at + 2 * limit]
            at += len(some)
            gets = [GetOp(*hit[1:], refresh_ttl=False) for hit in some if hit[1:] not in known]
            before = self._access.words.writes
            items = iter(await self._access.call("batch", gets) if gets else ())
            for hit in some:
                if (entry := known.get(hit[1:])) is not None:
                    found.append(replace(entry, score=hit.score))
                    continue
                item = next(items)
                if item is None:
                    self._access.words.gone(hit.ns, hit.key, before)
                elif wanted is None or wanted(item.value):
                    found.append(Entry(hit.key, self._own(item.value), hit.score, None, hit.ns))
        return found[:limit]

    async def _update(
        self,
        ns: Namespace,
        key: str,
        change: Callable[[Value | None], Value | None],
        ttl: Callable[[Value], float | None] | None,
    ) -> Value | None:
        found = await self.aget(ns, key)
        before = copied(found)
        after = change(found)
        if after is found and found == before:
            return found
        if after is None:
            await self._access.call("delete", ns, key)
            return None
        stored: Value = clean(after)
        await self._put(ns, key, stored, None if ttl is None else ttl(stored))
        return self._own(stored)

    async def _put(self, ns: Namespace, key: str, value: Value, ttl: float | None) -> None:
        """Write a value that is ours, and note in it whether it was embedded."""
        options: dict[str, Any] = {"index": False}
        if ttl is not None and getattr(self.store, "supports_ttl", False):
            options["ttl"] = ttl / 60
        if self.indexed is not False:
            if claim_of(value) is not None and await self._put_embedded(ns, key, value, options):
                return
            # Overwriting a record without embedding leaves its old vector in the index, so delete it first.
            old = await self._access.call("get", ns, key, refresh_ttl=False)
            if old is not None and claim_of(old.value) is not None:
                await self._access.call("delete", ns, key)
        await self._access.call("put", ns, key, value, **options)

    async def _put_embedded(self, ns: Namespace, key: str, value: Value, options: Mapping[str, Any]) -> bool:
        """Write a value with its vector. Returns False if that fails, and marks the value as pending."""
        if PENDING in value:
            value[PENDING] = False
        try:
            await self._access.call("put", ns, key, value, **{**options, "index": [CLAIM]})
        except Exception as error:
            # If the store fails and not the embedder, the next write raises the error again.
            value[PENDING] = True
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        """Warn that the embeddings failed, once for each cause."""
        if self._access.failures.is_new(cause := cause_of(error)):
            _log.warning(
                "embeddings failed: %s. Records are stored, found by words, and embedded later. Check the key and the "
                "address of the embeddings; this warning is not repeated.",
                cause,
            )

    async def _reindex(self, ns: Namespace, key: str, everything: bool) -> bool:
        async with self.lock("record", *ns, key):
            value = await self.aget(ns, key)
            if value is None or claim_of(value) is None or not (everything or value.get(PENDING) is True):
                return False
            return await self._put_embedded(ns, key, value, {})


async def _uninterrupted(work: Coroutine[Any, Any, T], begun: Callable[[], bool] = lambda: True) -> T:
    """Wait for `work`. A cancelled caller leaves it running if it has `begun`: a write in progress must
    not outlive its lock."""
    task = asyncio.ensure_future(work)
    _DETACHED.add(task)
    task.add_done_callback(_done)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not begun():
            task.cancel()
        raise


def _done(task: asyncio.Task[Any]) -> None:
    _DETACHED.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, because a cancelled caller would leave asyncio to complain about it


def _spaces(places: Namespace | Sequence[Namespace]) -> list[Namespace]:
    """One namespace, or several, as a list without repetitions."""
    given = cast("Sequence[Any]", places)
    several = [given] if given and isinstance(given[0], str) else given
    return list(dict.fromkeys(map(tuple, several)))


def _parts(spaces: Sequence[Namespace], *, closed: bool) -> list[Place]:
    """The parts of namespaces with open records, and those with closed ones if asked."""
    return [(ns, is_open) for ns in spaces for is_open in ((True, False) if closed else (True,))]


def _seen(entry: Entry) -> str:
    seen: object = entry.value.get("last_seen_at")
    return seen if isinstance(seen, str) else ""
