"""Calls of a `BaseStore`: sync or async, from any running event loop."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC
from typing import Any, TypeVar, cast

from langgraph.store.base import BaseStore, Item, PutOp, SearchItem
from langgraph.store.memory import InMemoryStore

from arbiter._threads.deadlines import start
from arbiter._threads.forks import new_lock
from arbiter._values.once import Once
from arbiter._weaving.stores import held_items, loop_of
from arbiter.errors import ArbiterError
from arbiter.memory.stores._portable import Namespace
from arbiter.memory.stores._searching import LAST, WordSearch
from arbiter.memory.stores._shared_locks import Locks
from arbiter.memory.stores._vectors import checked_view

T = TypeVar("T")

ALL = 2**31 - 1
_PAGE = 100
_FOREIGN_KEYS = "PRAGMA foreign_keys = ON"
_RACES = 100
_WHOLE = ("langgraph.store.memory", "langgraph.store.sqlite", "langgraph.store.postgres", "arbiter.memory")
_SQLITE = ("langgraph.store.sqlite",)
_SORTING = ("langgraph.store.sqlite", "langgraph.store.postgres")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class StoreLoopError(ArbiterError, RuntimeError):
    """An async store belongs to an event loop that is not running, so the store cannot be used."""


class Access:
    """One store and its known properties, shared by all its users in this process."""

    def __init__(self, store: BaseStore) -> None:
        # A weak reference: this object is cached by the store's identity and must not keep the store alive.
        self._store = weakref.ref(store)
        self._threaded = False
        self._in_memory = isinstance(store, InMemoryStore)
        self._untidy = _is_of(store, _SQLITE) and bool(getattr(store, "index_config", None))
        self._whole = _is_of(store, _WHOLE)
        self._sorts = _is_of(getattr(store, "inner", store), _SORTING)
        # An async store works off its operations in a task of its own.
        self._view = None if loop_of(store) else checked_view(store)
        self.words = WordSearch(self._all, self._last)
        self.locks = Locks()
        self.failures = Once()
        """The failures of the embedder that were reported."""

    @property
    def store(self) -> BaseStore:
        found = self._store()
        if found is None:  # pragma: no cover - the caller holds the store
            raise ReferenceError("the store is gone.")
        return found

    @property
    def hands_out_its_own(self) -> bool:
        """True if the store may return the very objects that it keeps."""
        return self._in_memory or not self._whole

    @property
    def is_home(self) -> bool:
        home = loop_of(self.store)
        try:
            return home is not None and home is asyncio.get_running_loop()
        except RuntimeError:
            return False

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The result of a method of `BaseStore`, given by its sync name.

        A sync store is called on a thread, an async store on its own loop, an `InMemoryStore` in place.
        """
        writes: dict[tuple[Namespace, str], Any] = {}
        if method in ("put", "delete"):
            ns, key, *value = args
            writes = {(ns, key): value[0] if value else None}
        elif method == "batch":
            writes = {(op.namespace, op.key): op.value for op in args[0] if isinstance(op, PutOp)}
        if not writes:
            return await self._call(method, *args, **kwargs)
        with self.words.writing(writes):
            result = await self._call(method, *args, **kwargs)
            for (ns, key), given in writes.items():
                self.words.wrote(ns, key, given)
        return result

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        store = self._view or self.store
        if self._untidy:
            self._untidy = False
            await self._keep_vectors_with_records()
        if not self._threaded:
            calling: Callable[..., Coroutine[Any, Any, Any]] = getattr(store, f"a{method}")
            home = loop_of(store)
            try:
                if home is not None:
                    return await _over_there(home, lambda: calling(*args, **kwargs), store)
                if self._in_memory:
                    return await _unraced(lambda: calling(*args, **kwargs))
                return await calling(*args, **kwargs)
            except NotImplementedError:
                if home is not None or self._in_memory:
                    raise
        result = await asyncio.wrap_future(start(lambda: getattr(store, method)(*args, **kwargs)))
        self._threaded = True
        return result

    async def _keep_vectors_with_records(self) -> None:
        # SqliteStore declares a cascade from records to vectors, but SQLite ignores it unless foreign keys are on:
        # the vectors of forgotten records would stay in the file.
        store: Any = self.store
        home = loop_of(store)
        if home is None:

            def turn_on() -> None:
                with store.lock:
                    store.conn.execute(_FOREIGN_KEYS)

            await asyncio.wrap_future(start(turn_on))
        else:

            async def turn_on_there() -> None:
                async with store.lock:
                    await store.conn.execute(_FOREIGN_KEYS)

            await _over_there(home, turn_on_there, store)

    async def items(
        self,
        ns: Namespace,
        wanted: Callable[[Item], bool],
        *,
        filter: Mapping[str, Any],
        limit: int | None,
    ) -> list[Item]:
        """The `wanted` items of exactly that namespace, newest write first. `filter` may only narrow the
        search."""
        narrow = {key: value for key, value in filter.items() if _same_everywhere(key, value)} or None

        def kept(page: Sequence[Item]) -> list[Item]:
            return [item for item in page if tuple(item.namespace) == ns and wanted(item)]

        if (held := held_items(self.store, ns)) is not None:
            found = kept(held)
        elif not self._whole:
            found = kept(await self._paged(ns, narrow))
        else:
            asked = ALL if limit is None or self._in_memory else limit
            while True:
                page = await self._search(ns, filter=narrow, limit=asked)
                found = kept(page)
                if len(page) < asked or len(found) >= (limit or 0):
                    break
                asked = min(asked * 4, ALL)
        found.sort(key=_written, reverse=True)
        return found[:limit]

    async def after(self, ns: Namespace, count: int, *, limit: int) -> list[Item]:
        """At most `limit` items of that namespace beyond the `count` written last; those are not read if the
        store sorts them itself."""
        if self._sorts:
            found = await self._search(ns, limit=limit, offset=count)
            return [item for item in found if tuple(item.namespace) == ns]
        return (await self._all(ns))[count : count + limit]

    async def _all(self, ns: Namespace) -> list[Item]:
        return await self.items(ns, lambda item: True, filter={}, limit=None)

    async def _last(self, ns: Namespace, known: int) -> list[Item]:
        """The items of a namespace written last, as far as the store knows, if `known` of it are known."""
        if (held := held_items(self.store, ns)) is not None:
            return held[max(known - 1, 0) :]
        found: Sequence[Item]
        if self._in_memory:  # it returns the latest last
            found = await self._search(ns, limit=ALL, offset=max(known - 1, 0))
        else:
            found = await self._search(ns, limit=LAST)
        return [item for item in found if tuple(item.namespace) == ns]

    async def _paged(self, ns: Namespace, filter: Mapping[str, Any] | None) -> list[SearchItem]:
        # An unknown store may return fewer items than asked for, so only an empty page is the end.
        found: dict[tuple[Namespace, str], SearchItem] = {}
        offset = 0
        while page := await self._search(ns, filter=filter, limit=_PAGE, offset=offset):
            before = len(found)
            found.update({(tuple(item.namespace), item.key): item for item in page})
            offset += len(page)
            if len(found) == before:  # the store ignores `offset`
                break
        return list(found.values())

    async def _search(self, ns: Namespace, **options: Any) -> list[SearchItem]:
        return cast("list[SearchItem]", await self.call("search", ns, refresh_ttl=False, **options))

    async def scored(
        self, ns: Namespace, query: str, wanted: Callable[[SearchItem], bool], *, limit: int
    ) -> list[SearchItem] | None:
        """Items of exactly that namespace that the store's index finds, best first; None if the items have
        no scores."""
        asked = limit
        while True:
            page = await self._search(ns, query=query, limit=asked)
            with_score = [item for item in page if item.score is not None]
            found = [item for item in with_score if tuple(item.namespace) == ns and wanted(item)]
            if len(found) >= limit or len(page) < asked or len(with_score) < len(page) or asked >= ALL:
                break
            asked = min(asked * 4, ALL)
        if not with_score:
            return None
        found.sort(key=lambda item: item.score or 0.0, reverse=True)
        return found[:limit]


def _is_of(store: object, modules: tuple[str, ...]) -> bool:
    return any(base.__module__.startswith(modules) for base in type(store).__mro__)


def _written(item: Item) -> float:
    at = item.updated_at
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _same_everywhere(key: str, value: object) -> bool:
    """True if all stores interpret that filter alike; other filters are applied here only."""
    return bool(_NAME.match(key)) and (
        isinstance(value, bool) or (isinstance(value, str) and value.isprintable())
    )


async def _over_there(
    home: asyncio.AbstractEventLoop, calling: Callable[[], Coroutine[Any, Any, T]], store: BaseStore
) -> T:
    if home is asyncio.get_running_loop():
        return await calling()
    if not home.is_running():
        raise StoreLoopError(
            f"{type(store).__name__} belongs to the event loop that it was made on, which is not running. "
            "Keep that loop running, or use the sync store."
        )
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calling(), home))


async def _unraced(calling: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # An InMemoryStore has no lock: reading its dictionaries while another thread writes may raise this.
    for _ in range(_RACES):
        try:
            return await calling()
        except RuntimeError as error:
            if "changed size during iteration" not in str(error):
                raise
        await asyncio.sleep(0)
    return await calling()


# By identity: stores of users may be equal without being the same, and their records must not mix.
_ACCESSES: dict[int, tuple[weakref.ref[BaseStore], Access]] = {}
_GUARD = new_lock()


def access_to(store: BaseStore) -> Access:
    with _GUARD:
        known = _ACCESSES.get(id(store))
        if known is not None and known[0]() is store:
            return known[1]
        found = Access(store)
        identity = id(store)

        def forget(gone: weakref.ref[BaseStore]) -> None:
            # Without the guard: the store may be freed on a thread that holds the guard.
            held = _ACCESSES.get(identity)
            if held is not None and held[0] is gone:
                _ACCESSES.pop(identity, None)

        _ACCESSES[identity] = (weakref.ref(store, forget), found)
        return found
