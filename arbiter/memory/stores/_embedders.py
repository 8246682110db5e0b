"""A check on the embedder of a store: an invalid vector must not get into the index."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import isfinite
from typing import Any, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore

_KNOWN = ("langgraph.store.", "arbiter.memory.")


class VectorError(ValueError):
    """An embedder returned an invalid vector."""


def check_vector(vector: Sequence[float], dims: int | None) -> None:
    """Raise `VectorError` for a wrong length, for all zeros (which are equally similar to everything), and
    for numbers that are not finite."""
    if dims is not None and len(vector) != dims:
        raise VectorError(
            f"the embedder returned a vector of {len(vector)} dimensions; the store has {dims}."
        )
    size = sum(abs(float(number)) for number in vector)
    if not size or not isfinite(size):
        raise VectorError("the embedder returned a vector without a direction: all zeros, or not finite.")


class CheckedEmbeddings(Embeddings):
    """An embedder that rejects its own invalid vectors."""

    def __init__(self, inner: Embeddings, dims: int | None) -> None:
        self.inner = inner
        self.dims = dims

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._checked(texts, self.inner.embed_documents(texts))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._checked(texts, await self.inner.aembed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        return self._checked([text], [self.inner.embed_query(text)])[0]

    async def aembed_query(self, text: str) -> list[float]:
        return self._checked([text], [await self.inner.aembed_query(text)])[0]

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # unpickling asks before the attribute is set
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _checked(self, texts: Sequence[str], vectors: list[list[float]]) -> list[list[float]]:
        if len(vectors) != len(texts):
            raise VectorError(f"the embedder returned {len(vectors)} vectors for {len(texts)} texts.")
        for vector in vectors:
            check_vector(vector, self.dims)
        return vectors


def checked_view(store: BaseStore) -> BaseStore | None:
    """A view of a store whose embedder is checked; None if the store has none or hides it.

    The view is a shallow copy: it shares the records and connections of the store, which stays as it is. Only stores
    of LangGraph and of `open_store` are viewed: other classes may keep a state that a copy would not share.
    """
    inner: object = getattr(store, "embeddings", None)
    config: object = getattr(store, "index_config", None)
    if not isinstance(inner, Embeddings) or not isinstance(config, dict):
        return None
    if not type(store).__module__.startswith(_KNOWN):
        return None
    dims: object = cast("dict[str, object]", config).get("dims")
    checked = CheckedEmbeddings(inner, dims if isinstance(dims, int) else None)
    try:
        view = copy(store)
        cast(Any, view).embeddings = checked
    except (AttributeError, TypeError):
        return None
    return view
