"""Stores for tests of memory: in memory, in SQLite, in PostgreSQL; an embedder of keywords.

The fixtures `any_store` and `any_indexed_store` are in conftest.py.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory.stores._opening import open_store

T = TypeVar("T")
Kind = Literal["memory", "sqlite", "postgres"]


class KeywordEmbeddings(Embeddings):
    """One dimension for each keyword, and one that all texts have.

    `failing` are the results of the next calls: an exception is raised, a list is the vector of each text.
    `texts` are the embedded ones, `queries` the queries.
    """

    def __init__(self, *keywords: str) -> None:
        self.keywords = keywords
        self.dims = len(keywords) + 1
        self.failing: list[Exception | list[float]] = []
        self.texts: list[str] = []
        self.queries: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts.extend(texts)
        return self._vectors(texts)

    def embed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        return self._vectors([text])[0]

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        if self.failing:
            failure = self.failing.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return [list(failure) for _ in texts]
        return [[0.1, *(float(keyword in text.lower()) for keyword in self.keywords)] for text in texts]


@contextmanager
def opened(
    kind: Kind, *, url: Callable[[], str], embeddings: KeywordEmbeddings | None = None
) -> Generator[BaseStore]:
    """A new store of that kind. `url` is called only if a PostgreSQL database is needed."""
    if kind == "memory":
        index: Any = None
        if embeddings is not None:
            index = {"dims": embeddings.dims, "embed": embeddings, "fields": ["claim"]}
        yield InMemoryStore(index=index)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # another test covers missing packages
        opening = open_store(
            url() if kind == "postgres" else ":memory:",
            embeddings=embeddings,
            dims=None if embeddings is None else embeddings.dims,
        )
        store = opening.__enter__()
    try:
        yield store
    finally:
        opening.__exit__(None, None, None)


class LoopThread:
    """An event loop on a thread of its own, as in a server."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()
