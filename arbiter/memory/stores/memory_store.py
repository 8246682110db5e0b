"""`MemoryStore`: one behaviour over every LangGraph `BaseStore`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, SearchItem

from arbiter.memory.stores.access import access_to
from arbiter.memory.stores.names import Namespace, joined, namespace, ns_label, safe_key
from arbiter.memory.stores.values import CLAIM, PENDING, claim_of, clean, clean_text, copied, matches
from arbiter.memory.stores.words import likest

__all__ = ["Entry", "Found", "LockProvider", "MemoryStore", "Namespace", "Value", "namespace", "ns_label"]

T = TypeVar("T")
Value = dict[str, Any]
LockProvider = Callable[[str], AbstractAsyncContextManager[Any]]
"""A lock by name that several processes share."""

_TRIES = 3
_PAGE = 1_000
_DETACHED: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True, slots=True)
class Entry:
    """What a store holds under `key`. `score` is the similarity to a query, -1 to 1; None without one."""

    key: str
    value: Value
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a query found, best first. `semantic`: by embeddings; else by words that both have (`score` 0 to 1).

    Where `semantic`, `by_words` are those of the records without a vector that share words with the query. Their scores
    are of words too, and not to be compared with the others.
    """

    entries: Sequence[Entry]
    semantic: bool
    by_words: Sequence[Entry] = field(default=())


class MemoryStore:
    """Reads and writes records in any `BaseStore`: sync or async, with an index or without.

    Only the key "claim" of a value is ever embedded. Can be called from any thread and any event loop. Errors of the
    store pass through; an embedder that fails does not: the record is stored without a vector, with
    `needs_embedding: true`, and `areindex` tries again. An embedder fails that raises, or gives a vector of a wrong
    length or of zeros.

    Values are JSON; in their texts, U+FFFD stands for NUL and for lone surrogates. Locks are those of this process:
    when several processes write to one store without a `lock_provider`, the last writer of a record wins.
    """

    def __init__(self, store: BaseStore, *, lock_provider: LockProvider | None = None) -> None:
        self.store = store
        self.lock_provider = lock_provider
        self._access = access_to(store)

    async def aget(self, ns: Namespace, key: str) -> Value | None:
        item = await self._access.call("get", ns, safe_key(key), refresh_ttl=False)
        return None if item is None else self._own(item.value)

    async def aput(
        self, ns: Namespace, key: str, value: Mapping[str, Any], *, ttl: float | None = None
    ) -> None:
        """Write a record. `ttl` in seconds, where the store can; readers must look at their own time stamps too."""
        stored: Value = clean(value)
        await _uninterrupted(self._put(ns, safe_key(key), stored, ttl))

    async def adelete(self, ns: Namespace, key: str) -> None:
        await self._access.call("delete", ns, safe_key(key))

    async def alist(
        self, ns: Namespace, *, filter: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> list[Entry]:
        """All records of exactly that name space (not of longer ones), newest write first as far as the store knows;
        with `limit` at most so many. `filter` as in `arbiter.memory.stores.values.matches`."""
        wanted: Mapping[str, Any] = clean(filter or {})
        if limit is not None and limit < 1:
            return []
        items = await self._access.items(
            ns, lambda item: matches(item.value, wanted), filter=wanted, limit=limit
        )
        return [Entry(item.key, self._own(item.value)) for item in items]

    async def asearch(self, ns: Namespace, query: str, *, limit: int = 8) -> Found:
        """Records whose "claim" is like `query`, best first. By embeddings where the store has them and they work,
        else by shared words (`arbiter.memory.stores.words.overlap`); never a record without a score."""
        query = clean_text(query)
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
        """All name spaces of that agent that hold records of one kind."""
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
        """Read, change and write one record under its lock. `change` gets None where there is none, and returns None to
        delete it, or the very same object to leave it as it is. `ttl` says of a value to be written what
        `aput` is given. Returns what is there afterwards."""
        writing = False

        async def update() -> Value | None:
            nonlocal writing
            async with self.lock("record", *ns, key):
                writing = True
                return await self._update(ns, safe_key(key), change, ttl)

        return await _uninterrupted(update(), lambda: writing)

    async def areindex(self, ns: Namespace, *, everything: bool = False) -> int:
        """Try once more to embed what could not be embedded; how many were. With `everything` all records that have a
        claim: after a store was given an index, or another model. Gives up after three failures in a row."""
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
        """A lock of this very store by name, shared by all `MemoryStore`s on it in this process, and by other processes
        with `lock_provider`. First come, first served within a process. Not reentrant."""
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
        """`value`, as an object that the caller may change."""
        return copied(value) if self._access.hands_out_its_own else value

    @property
    def indexed(self) -> bool | None:
        """Whether the store has embeddings; None if it does not say."""
        if not hasattr(self.store, "index_config"):
            return None
        return bool(getattr(self.store, "index_config", None))

    async def _hits(self, ns: Namespace, query: str, limit: int) -> list[SearchItem] | None:
        """What the index finds; None where there is none, or where it or its embedder does not work."""
        if self.indexed is False:
            return None

        def wanted(item: SearchItem) -> bool:
            # A vector may be left from what the record said before.
            return claim_of(item.value) is not None and item.value.get(PENDING) is not True

        try:
            with self._watched(query):
                found = await self._access.scored(ns, query, wanted, limit=limit)
        except Exception:  # whatever it was: if it is the store, it will be raised where the records are read
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
        """While a wrong vector of that text counts as a failure of the embedder."""
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
        """Write a value that is ours, and note in it whether it could be embedded."""
        options: dict[str, Any] = {"index": False}
        if ttl is not None and getattr(self.store, "supports_ttl", False):
            options["ttl"] = ttl / 60
        claim = claim_of(value)
        if self.indexed is not False:
            if claim is not None and await self._put_embedded(ns, key, value, claim, options):
                return
            # An index keeps the vector of what is overwritten without one.
            old = await self._access.call("get", ns, key, refresh_ttl=False)
            if old is not None and claim_of(old.value) is not None:
                await self._access.call("delete", ns, key)
        await self._access.call("put", ns, key, value, **options)
        if value.get(PENDING) is True:
            self._access.owe(ns)

    async def _put_embedded(
        self, ns: Namespace, key: str, value: Value, claim: str, options: Mapping[str, Any]
    ) -> bool:
        """Whether it could be; if not, the value says so from now on."""
        if PENDING in value:
            value[PENDING] = False
        try:
            with self._watched(claim):
                await self._access.call("put", ns, key, value, **{**options, "index": [CLAIM]})
        except Exception:  # if it was the store and not the embedder, the next write will raise it again
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
    """Wait for `work`. Whoever is cancelled meanwhile leaves it running if it has `begun`: a write that is on its way
    to a store must not outlive the lock that it was made under."""
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
        task.exception()  # looked at: nobody else may be left to do so
