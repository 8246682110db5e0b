"""`MemoryStore`: one behaviour over every LangGraph `BaseStore`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchItem

from arbiter.memory._secrets import redacted
from arbiter.memory.stores._access import access_to
from arbiter.memory.stores._names import Namespace, joined, namespace, ns_label, safe_key
from arbiter.memory.stores._values import CLAIM, PENDING, claim_of, clean, clean_text, copied, matches
from arbiter.memory.stores._words import likest

__all__ = ["Entry", "Found", "LockProvider", "MemoryStore", "Namespace", "Value", "namespace", "ns_label"]

T = TypeVar("T")
Value = dict[str, Any]
LockProvider = Callable[[str], AbstractAsyncContextManager[Any]]
"""A function of a name that returns a lock which several processes share."""

_TRIES = 3
_PAGE = 1_000
_BATCH = 500
_DETACHED: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a store. `score` is the similarity to a query, -1 to 1; None without a query."""

    key: str
    value: Value
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a query, best first. `semantic` is True for embeddings, False for shared words (`score`
    0 to 1).

    If `semantic`, `by_words` are records without a vector that share words with the query. Their scores are
    of words too; do not compare them with the others.
    """

    entries: Sequence[Entry]
    semantic: bool
    by_words: Sequence[Entry] = field(default=())


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

    async def aonce(self, ns: Namespace, key: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` unless a record says that it was done in this store; then write that record.

        A cancelled caller leaves the work running. Other callers wait for it.
        """
        if await self.aget(ns, key) is not None:
            return

        async def done() -> None:
            async with self.lock("once", *ns, key):
                if await self.aget(ns, key) is None:
                    await work()
                    await self.aput(ns, key, {"done": True})

        await _uninterrupted(done())

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

    async def asearch(self, ns: Namespace, query: str, *, limit: int = 8) -> Found:
        """The records whose "claim" is similar to `query`, best first; never a record without a score.

        Embeddings decide if the store has them and they work; else shared words: their number divided by the
        geometric mean of both numbers of words.
        """
        query = redacted(clean_text(query))
        if limit < 1 or not query.strip():
            return Found((), semantic=False)
        hits = await self._hits(ns, query, limit)
        if hits is None:
            return Found(await self._lexical(ns, query, limit), semantic=False)
        found = [Entry(item.key, self._own(item.value), item.score) for item in hits]
        if self._access.settled(ns):
            return Found(found, semantic=True)
        pending = await self._by_words(ns, query, limit, {PENDING: True})
        return Found(found, semantic=True, by_words=pending)

    async def aspaces(self, agent_id: str, kind: str) -> list[Namespace]:
        """The namespaces of an agent that hold records of one kind."""
        prefix = namespace(agent_id, kind, "")[:-1]
        found: dict[Namespace, None] = {}
        while True:
            page: list[Namespace] = await self._access.call(
                "list_namespaces", prefix=prefix, max_depth=4, limit=_PAGE, offset=len(found)
            )
            before = len(found)
            found.update(dict.fromkeys(map(tuple, page)))
            if len(found) == before:
                return [ns for ns in found if len(ns) == len(prefix) + 1]

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

    def lock(self, *parts: str) -> AbstractAsyncContextManager[None]:
        """A named lock of this store, shared by all its `MemoryStore`s in this process, and by other
        processes with `lock_provider`.

        First come, first served within a process. Not reentrant.
        """
        return self._lock(joined(parts))

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncGenerator[None]:
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
    def indexed(self) -> bool | None:
        """True if the store has embeddings; None if it does not say."""
        if not hasattr(self.store, "index_config"):
            return None
        return bool(getattr(self.store, "index_config", None))

    async def _hits(self, ns: Namespace, query: str, limit: int) -> list[SearchItem] | None:
        """The results of the index; None if there is none, or if the index or its embedder fails."""
        if self.indexed is False:
            return None

        def wanted(item: SearchItem) -> bool:
            # A pending record may still have the vector of its previous claim.
            return claim_of(item.value) is not None and item.value.get(PENDING) is not True

        try:
            with self._watched(query):
                found = await self._access.scored(ns, query, wanted, limit=limit)
        except Exception:  # if the store itself fails, reading the records raises the error again
            return None
        return [] if found is None and self.indexed else found

    async def _lexical(self, ns: Namespace, query: str, limit: int) -> list[Entry]:
        claims = await self._access.claims(ns)
        if claims is None:
            return await self._by_words(ns, query, limit, {})
        likely = [(key, score, await self.aget(ns, key)) for key, score in likest(claims, query, limit=limit)]
        return [Entry(key, value, score) for key, score, value in likely if value is not None]

    async def _by_words(self, ns: Namespace, query: str, limit: int, filter: Value) -> list[Entry]:
        def wanted(item: SearchItem) -> bool:
            return claim_of(item.value) is not None and matches(item.value, filter)

        begun = time.monotonic()
        items = await self._access.items(ns, wanted, filter=filter, limit=None)
        if PENDING in filter and not items:
            self._access.settle(ns, since=begun)
        found = likest([(item, item.value[CLAIM]) for item in items], query, limit=limit)
        return [Entry(item.key, self._own(item.value), score) for item, score in found]

    def _watched(self, text: str) -> AbstractContextManager[None]:
        """A context in which an invalid vector of that text counts as a failure of the embedder."""
        embedder = self._access.embedder
        return nullcontext() if embedder is None else embedder.watch(text)

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
        claim = claim_of(value)
        if self.indexed is not False:
            if claim is not None and await self._put_embedded(ns, key, value, claim, options):
                return
            # Overwriting a record without embedding leaves its old vector in the index, so delete it first.
            old = await self._access.call("get", ns, key, refresh_ttl=False)
            if old is not None and claim_of(old.value) is not None:
                await self._access.call("delete", ns, key)
        await self._access.call("put", ns, key, value, **options)
        if value.get(PENDING) is True:
            self._access.owe(ns)

    async def _put_embedded(
        self, ns: Namespace, key: str, value: Value, claim: str, options: Mapping[str, Any]
    ) -> bool:
        """Write a value with its vector. Returns False if that fails, and marks the value as pending."""
        if PENDING in value:
            value[PENDING] = False
        try:
            with self._watched(claim):
                await self._access.call("put", ns, key, value, **{**options, "index": [CLAIM]})
        except Exception:  # if the store fails and not the embedder, the next write raises the error again
            value[PENDING] = True
            return False
        return True

    async def _reindex(self, ns: Namespace, key: str, everything: bool) -> bool:
        async with self.lock("record", *ns, key):
            value = await self.aget(ns, key)
            claim = None if value is None else claim_of(value)
            if value is None or claim is None or not (everything or value.get(PENDING) is True):
                return False
            return await self._put_embedded(ns, key, value, claim, {})


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
