"""Vectors: a check on the embedder of a store, and `LocalIndex`, semantic search for a store without it, which
compares a query with every vector of a namespace.

LangGraph's own index needs a loadable extension in SQLite, or pgvector in PostgreSQL. Without them, vectors
are kept in a table next to the store's and compared here: exact, with a time proportional to the number of
records.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from importlib.util import find_spec
from math import hypot, isfinite
from operator import mul
from typing import Any, NamedTuple, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp

from arbiter._threads.deadlines import start
from arbiter._threads.forks import new_lock
from arbiter.memory.stores._portable import CLAIM, Namespace, claim_of, digest_of, matches
from arbiter.memory.stores._word_tables import Database

_KNOWN = ("langgraph.store.", "arbiter.memory.")
_CHUNK = 16


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
    view: Any = copy(store)
    view.embeddings = CheckedEmbeddings(inner, dims if isinstance(dims, int) else None)
    return cast(BaseStore, view)


class Row(NamedTuple):
    """A vector of length 1 as little-endian float32, and the digest of its text and model.

    `prefix` is the namespace with dots between its labels.
    """

    prefix: str
    key: str
    digest: str
    vector: bytes


class VectorTable:
    """The table `arbiter_vectors`, on SQLite or PostgreSQL.

    A trigger deletes a vector with its record, even if a process without vectors or the time to live deletes it.
    (In SQLite a replaced record does not fire it.)
    """

    def __init__(self, database: Database) -> None:
        self._run = database.run
        text, binary = database.text, database.binary
        self._run(
            f"CREATE TABLE IF NOT EXISTS arbiter_vectors (prefix {text} NOT NULL, key {text} NOT NULL, "
            f"digest {text} NOT NULL, vector {binary} NOT NULL, PRIMARY KEY (prefix, key))",
        )
        for statement in database.forget_vectors:
            self._run(statement)

    def digest(self, ns: Namespace, key: str) -> str | None:
        rows = self._run("SELECT digest FROM arbiter_vectors WHERE prefix = ? AND key = ?", ".".join(ns), key)
        return str(rows[0][0]) if rows else None

    def put(self, row: Row) -> None:
        self._run(
            "INSERT INTO arbiter_vectors (prefix, key, digest, vector) VALUES (?, ?, ?, ?) ON CONFLICT (prefix, key) "
            "DO UPDATE SET digest = excluded.digest, vector = excluded.vector",
            *row,
        )

    def delete(self, ns: Namespace, key: str) -> None:
        self._run("DELETE FROM arbiter_vectors WHERE prefix = ? AND key = ?", ".".join(ns), key)

    def under(self, ns: Namespace) -> list[Row]:
        """The vectors of that namespace and of longer ones, as plain tuples with the fields of a `Row`."""
        columns = "SELECT prefix, key, digest, vector FROM arbiter_vectors"
        if ns:
            prefix = ".".join(ns)  # "/" is the character after "."
            where = "WHERE prefix = ? OR (prefix > ? AND prefix < ?)"
            found = self._run(f"{columns} {where}", prefix, f"{prefix}.", f"{prefix}/")
        else:
            found = self._run(columns)
        return cast("list[Row]", found)


class LocalIndex(BaseStore):
    """`inner` with semantic search over the key "claim"; `inner` answers every other request.

    Writing a record with an unchanged claim costs no embedding. A vector of another text, or of another
    model, is ignored.
    """

    def __init__(self, inner: BaseStore, table: VectorTable, index: dict[str, Any]) -> None:
        self.inner = inner
        self.embeddings: Embeddings = index["embed"]
        self.index_config = index
        self.lock_provider: object = getattr(inner, "lock_provider", None)
        self.supports_ttl = inner.supports_ttl
        self.ttl_config = inner.ttl_config
        self._table = table
        self._model = _model_of(self.embeddings)
        # One batch at a time: SQLite has one writer, and two statements write the vector and value of a record.
        self._guard = new_lock()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        queries = {op.query for op in given if isinstance(op, SearchOp) and op.query}
        asked = {query: self._embedded(query) for query in queries}
        rows = self._rows([op for op in given if isinstance(op, PutOp)])
        with self._guard:
            found = {
                at: self._search(op, asked[op.query])
                for at, op in enumerate(given)
                if isinstance(op, SearchOp) and op.query
            }
            # Vectors first: a crash in between leaves a vector without a record, which no search returns, and never
            # a record that seems to have a vector.
            for (ns, key), row in rows.items():
                if row is None:
                    self._table.delete(ns, key)
                else:
                    self._table.put(row)
            others = iter(self.inner.batch([op for at, op in enumerate(given) if at not in found]))
            return [cast(Result, found[at]) if at in found else next(others) for at in range(len(given))]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        return cast("list[Result]", await asyncio.wrap_future(start(lambda: self.batch(given))))

    def _rows(self, puts: Sequence[PutOp]) -> dict[tuple[Namespace, str], Row | None]:
        """The new vector of each record, None to delete it; records that keep their vector are left out."""
        claims = {(op.namespace, op.key): _indexed(op) for op in puts}
        rows: dict[tuple[Namespace, str], Row | None] = {
            at: None for at, claim in claims.items() if claim is None
        }
        new: dict[tuple[Namespace, str], tuple[str, str]] = {}
        with self._guard:
            for at, claim in claims.items():
                if claim is not None and self._table.digest(*at) != (digest := self._digest(claim)):
                    new[at] = (claim, digest)
        vectors = self.embeddings.embed_documents([claim for claim, _ in new.values()]) if new else []
        if len(vectors) != len(new):
            raise VectorError(f"the embedder returned {len(vectors)} vectors for {len(new)} texts.")
        for (at, (_, digest)), vector in zip(new.items(), vectors, strict=True):
            rows[at] = Row(".".join(at[0]), at[1], digest, _packed(vector))
        return rows

    def _embedded(self, query: str) -> list[float]:
        vector = self.embeddings.embed_query(query)
        check_vector(vector, self.index_config["dims"])
        return vector

    def _digest(self, claim: str) -> str:
        return digest_of(f"{self._model}\n{claim}")

    def _search(self, op: SearchOp, query: Sequence[float]) -> list[SearchItem]:
        found: list[SearchItem] = []
        for item, score in self._nearest(op, query):
            if matches(item.value, op.filter or {}):
                found.append(
                    SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at, score)
                )
            if len(found) == op.offset + op.limit:
                break
        return found[op.offset :]

    def _nearest(self, op: SearchOp, query: Sequence[float]) -> Iterator[tuple[Item, float]]:
        wanted = _packed(query)
        rows = [row for row in self._table.under(op.namespace_prefix) if len(row[3]) == len(wanted)]
        scores = _scores(wanted, [row[3] for row in rows])
        order = sorted(range(len(rows)), key=scores.__getitem__, reverse=True)
        for begin in range(0, len(order), _CHUNK):
            chunk = [(scores[at], Row(*rows[at])) for at in order[begin : begin + _CHUNK]]
            gets = [GetOp(tuple(row.prefix.split(".")), row.key, op.refresh_ttl) for _, row in chunk]
            for (score, row), item in zip(chunk, self.inner.batch(gets), strict=True):
                if isinstance(item, Item) and row.digest == self._digest(claim_of(item.value) or ""):
                    yield item, score


def _indexed(op: PutOp) -> str | None:
    """The text that a write wants to embed; None if there is none."""
    if op.value is None or op.index is False or (op.index is not None and CLAIM not in op.index):
        return None
    return claim_of(op.value)


def _model_of(embeddings: Embeddings) -> str:
    inner: object = getattr(embeddings, "inner", embeddings)
    name: object = getattr(inner, "model", None) or getattr(inner, "model_name", None) or ""
    return f"{type(inner).__qualname__} {name if isinstance(name, str) else ''}"


def _packed(vector: Sequence[float]) -> bytes:
    """The vector scaled to length 1, so that the product of two is the cosine of their angle."""
    length = hypot(*vector)
    scale = 1 / length if length else 0.0
    return struct.pack(f"<{len(vector)}f", *(number * scale for number in vector))


def _scores(query: bytes, vectors: Sequence[bytes]) -> list[float]:
    if not vectors:
        return []
    if find_spec("numpy") is not None:
        import numpy as np

        matrix = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1)
        found: list[float] = (matrix @ np.frombuffer(query, dtype="<f4")).tolist()
        return found
    read = struct.Struct(f"<{len(query) // 4}f").unpack
    wanted = read(query)
    return [sum(map(mul, wanted, read(vector))) for vector in vectors]
