"""Searching a store by words: with the index of a store that `open_store` opened, else with one in this process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from time import monotonic as clock
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, Item

from arbiter._threads.deadlines import start
from arbiter._threads.forks import new_lock
from arbiter.memory.stores._portable import Namespace
from arbiter.memory.stores._ranking import Hit, linked, ranked
from arbiter.memory.stores._word_tables import PATIENCE, Index, MemoryIndex, word_tables
from arbiter.memory.stores._words import Place, Written, asked_for, link, written_of

T = TypeVar("T")
REREAD = 60.0
"""Seconds after which a namespace of a foreign store is read again, for what other programs changed."""
LAST = 20
_SPARING = 50
_SMALL = 1_000
"""Namespaces of at most so many records are looked at in every search."""
_MOST = 200_000
"""Records and namespaces that the index holds."""


class WordSearch:
    """The records of a store by their words, best first, and by their time.

    If the store was not opened by `open_store`, the index is in this process. Its own writes are noted at once. For
    those of other programs, a search looks at the records that the store returns first, which are the latest in
    LangGraph's stores, and once a minute all records are read again; neither takes more than a fiftieth of the
    time. `read` returns all records of a namespace, `last` the latest.
    """

    def __init__(
        self,
        read: Callable[[Namespace], Awaitable[Sequence[Item]]],
        last: Callable[[Namespace, int], Awaitable[Sequence[Item]]],
    ) -> None:
        self._read = read
        self._last = last
        self._due: OrderedDict[Namespace, float] = OrderedDict()
        self._look: dict[Namespace, float] = {}
        self._reading: dict[Namespace, list[list[tuple[str, Written | None]]]] = {}
        self._writing: dict[tuple[Namespace, str], int] = {}
        """The number of writes of each record that go on."""
        self._mixed: set[tuple[Namespace, str]] = set()
        """The records of which several went on at a time."""
        self.writes = 0
        """The number of writes that were noted."""
        self._guard = new_lock()

    @cached_property
    def _index(self) -> MemoryIndex:
        return MemoryIndex()

    async def hits(self, store: BaseStore, places: Sequence[Place], query: str, limit: int) -> list[Hit]:
        """The records that share words with the query, best first by BM25 over all these places."""
        terms = asked_for(query)
        if not terms:
            return []
        return await self._asked(store, places, lambda index: ranked(index, places, terms, limit))

    async def newest(self, store: BaseStore, place: Place, offset: int, limit: int) -> list[Hit]:
        keys = await self._asked(store, [place], lambda index: index.newest(place, offset, limit))
        return [Hit(0.0, place[0], key) for key in keys]

    async def linked(
        self, store: BaseStore, places: Sequence[Place], name: str, values: Sequence[str]
    ) -> list[Hit]:
        """The records that have one of these values under that name, which is one of `LINKS`."""
        words = [link(name, value) for value in values]
        return await self._asked(store, places, lambda index: linked(index, places, words))

    async def ready(self, store: BaseStore, spaces: Sequence[Namespace]) -> None:
        """Index what was written in these namespaces since, however long it takes."""
        tables = word_tables(store)
        if tables is not None:
            await asyncio.wrap_future(start(lambda: tables.refresh(spaces)))
            return
        for ns in spaces:
            await self._refresh(ns)

    @contextmanager
    def writing(self, records: Collection[tuple[Namespace, str]]) -> Generator[None]:
        """The time in which these records are written and noted. Of two such times of one record, nothing says which
        write the store has last: its namespace is read again.
        """
        with self._guard:
            for record in records:
                self._writing[record] = self._writing.get(record, 0) + 1
            self._mixed.update(record for record in records if self._writing[record] > 1)
        try:
            yield
        finally:
            with self._guard:
                for record in records:
                    if record in self._mixed:
                        self._due.pop(record[0], None)
                        self._reading.pop(record[0], None)
                    self._writing[record] -= 1
                    if not self._writing[record]:
                        del self._writing[record]
                        self._mixed.discard(record)

    def gone(self, ns: Namespace, key: str, since: int) -> None:
        """Note that a record was not there, if nothing was written since `writes` was that number."""
        with self._guard:
            if self.writes == since and ns in self._due:
                self._index.put(ns, {key: None})

    def wrote(self, ns: Namespace, key: str, value: Mapping[str, Any] | None) -> None:
        """Note a write; None for a deletion."""
        written = None if value is None else written_of(value)
        with self._guard:
            self.writes += 1
            for changes in self._reading.get(ns, ()):
                changes.append((key, written))
            if ns in self._due:
                self._index.put(ns, {key: written})

    async def _asked(self, store: BaseStore, places: Sequence[Place], ask: Callable[[Index], T]) -> T:
        spaces = list(dict.fromkeys(place[0] for place in places))
        tables = word_tables(store)
        if tables is None:
            for ns in spaces:
                await self._refresh(ns)

        def work() -> T:
            if tables is None:
                return ask(self._index)
            tables.refresh(spaces, PATIENCE)
            return ask(tables)

        # A frequent word of many records takes tenths of a second, and this event loop serves all users.
        return await asyncio.wrap_future(start(work))

    async def _refresh(self, ns: Namespace) -> None:
        begun = clock()
        if self._due.get(ns, begun) > begun:
            if self._look.get(ns, begun) > begun:
                return
            if await self._is_looked_at(ns, begun):
                return
        with self._noting(ns) as changes:
            items = await self._read(ns)

            def index() -> None:
                found = {item.key: written_of(item.value) for item in reversed(items)}
                with self._guard:
                    if not any(each is changes for each in self._reading.get(ns, ())):
                        return  # the caller was cancelled, so later changes are not in the list
                    self._install(ns, {**found, **dict(changes)})
                    self._due[ns] = begun + max(REREAD, _SPARING * (clock() - begun))

            if len(items) <= _SMALL:
                index()
            else:  # the words of many records take seconds, and this event loop serves all users
                await asyncio.wrap_future(start(index))

    async def _is_looked_at(self, ns: Namespace, begun: float) -> bool:
        """Index the latest records of a namespace. False if all are new, so that there may be more."""
        held = {*self._index.held(ns)}
        with self._noting(ns) as changes:
            found = {item.key: written_of(item.value) for item in await self._last(ns, len(held))}
            with self._guard:
                if ns in self._due:
                    self._index.put(ns, {**found, **dict(changes)})
        if len(held) > _SMALL:
            self._look[ns] = begun + _SPARING * (clock() - begun)
        return len(found) < LAST or not held.isdisjoint(found)

    @contextmanager
    def _noting(self, ns: Namespace) -> Generator[list[tuple[str, Written | None]]]:
        """The changes of a namespace while it is being read: what is read may be older."""
        changes: list[tuple[str, Written | None]] = []
        with self._guard:
            self._reading.setdefault(ns, []).append(changes)
        try:
            yield changes
        finally:
            with self._guard:
                # By identity: two lists may be equal.
                rest = [each for each in self._reading.pop(ns, ()) if each is not changes]
                if rest:
                    self._reading[ns] = rest

    def _install(self, ns: Namespace, found: Mapping[str, Written | None]) -> None:
        """Index a namespace, and drop those read longest ago if the index holds too much."""
        self._due.pop(ns, None)  # the latest are last
        while self._due and self._index.size() + len(self._due) > _MOST:
            other, _ = self._due.popitem(last=False)
            self._index.put(other, dict.fromkeys(self._index.held(other)))
            self._look.pop(other, None)
        self._index.put(ns, {**dict.fromkeys(self._index.held(ns)), **found})
