"""Stores: the graph's for a contract without effects, which is read-only, and inner parts that memory reads."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import Any, cast

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchOp

from arbiter.errors import ReadOnlyTypeError

_PASSED_ON = frozenset({"_loop", "embeddings", "index_config"})


class ReadOnlyStore(BaseStore):
    """Returns copies of the items of `inner`, and refuses to write."""

    def __init__(self, inner: BaseStore) -> None:
        self.inner = inner
        self.supports_ttl = inner.supports_ttl
        self.ttl_config = inner.ttl_config

    def __getattr__(self, name: str) -> Any:
        if name not in _PASSED_ON:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return copy.deepcopy(self.inner.batch([_reading(op) for op in ops]))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return copy.deepcopy(await self.inner.abatch([_reading(op) for op in ops]))


def _reading(op: Op) -> Op:
    if isinstance(op, PutOp):
        raise ReadOnlyTypeError(
            f"a rule under audit or of a shadow constitution cannot write {op.key!r} to the graph's store: the graph "
            "behaves as if the rule were not there. Let the rule write to a store of its own."
        )
    # Reading an item would postpone the time at which the store drops it.
    return op._replace(refresh_ttl=False) if isinstance(op, GetOp | SearchOp) else op


def loop_of(store: BaseStore) -> asyncio.AbstractEventLoop | None:
    """The event loop that an async store belongs to; None for other stores."""
    home: object = getattr(store, "_loop", None)
    return home if isinstance(home, asyncio.AbstractEventLoop) else None


def held_items(store: BaseStore, namespace: tuple[str, ...]) -> list[Item] | None:
    """The items of a namespace of LangGraph's own InMemoryStore, the latest last; None for other stores.

    A search of such a store looks at the namespaces of all users, so its time would grow with their number.
    """
    from langgraph.store.memory import InMemoryStore

    spaces: object = getattr(store, "_data", None) if type(store) is InMemoryStore else None
    if not isinstance(spaces, dict):
        return None
    return list(cast("dict[tuple[str, ...], dict[str, Item]]", spaces).get(namespace, {}).values())
