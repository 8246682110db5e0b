"""The embedder of a store, looked at while Arbiter uses it: a vector that is none must not get into the index."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore


class VectorError(ValueError):
    """An embedder gave something that is no vector of its store."""


def check_vector(vector: Sequence[float], dims: int | None) -> None:
    """Raise `VectorError` for a wrong length, for zeros (which are as like to everything as to nothing), and for
    numbers that are none."""
    if dims is not None and len(vector) != dims:
        raise VectorError(f"the embedder gave a vector of {len(vector)} dimensions; the store has {dims}.")
    size = sum(abs(float(number)) for number in vector)
    if not size or not isfinite(size):
        raise VectorError("the embedder gave a vector that points nowhere: all zeros, or not finite.")


class WatchedEmbeddings(Embeddings):
    """An embedder that refuses its own wrong vectors, but only for texts that are being watched: whoever else uses the
    store gets from it what it always gave."""

    def __init__(self, inner: Embeddings, dims: int | None) -> None:
        self.inner = inner
        self.dims = dims
        self._guard = threading.Lock()
        self._texts: Counter[str] = Counter()

    @contextmanager
    def watch(self, text: str) -> Generator[None]:
        with self._guard:
            self._texts[text] += 1
        try:
            yield
        finally:
            with self._guard:
                self._texts[text] -= 1
                if not self._texts[text]:
                    del self._texts[text]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._checked(texts, self.inner.embed_documents(texts))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._checked(texts, await self.inner.aembed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        return self._checked([text], [self.inner.embed_query(text)])[0]

    async def aembed_query(self, text: str) -> list[float]:
        return self._checked([text], [await self.inner.aembed_query(text)])[0]

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _checked(self, texts: Sequence[str], vectors: list[list[float]]) -> list[list[float]]:
        watched = [text in self._texts for text in texts]
        if any(watched):
            if len(vectors) != len(texts):
                raise VectorError(f"the embedder gave {len(vectors)} vectors for {len(texts)} texts.")
            for vector, ours in zip(vectors, watched, strict=True):
                if ours:
                    check_vector(vector, self.dims)
        return vectors


def watched_embeddings(store: BaseStore) -> WatchedEmbeddings | None:
    """The embedder of a store, from now on with a watch; None if the store has none, or does not say."""
    inner: object = getattr(store, "embeddings", None)
    if isinstance(inner, WatchedEmbeddings):
        return inner
    config: object = getattr(store, "index_config", None)
    if not isinstance(inner, Embeddings) or not isinstance(config, dict):
        return None
    dims: object = cast("dict[str, object]", config).get("dims")
    watched = WatchedEmbeddings(inner, dims if isinstance(dims, int) else None)
    try:
        cast(Any, store).embeddings = watched
    except (AttributeError, TypeError):
        return None
    return watched
