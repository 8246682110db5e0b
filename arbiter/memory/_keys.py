"""Random keys that a store keeps, with which ids are made of texts: without the key, no guess of a text can be
checked against an id."""

from __future__ import annotations

import secrets

from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace

KEYS = "keys"
"""The kind of the records with the keys of entities."""


async def key_in(store: MemoryStore, ns: Namespace, name: str) -> bytes:
    """The key of that name, which is made if there is none."""

    def kept(value: Value | None) -> Value:
        return {"id": name, "key": secrets.token_hex(16)} if value is None or not read_key(value) else value

    return read_key(await store.aget(ns, name)) or read_key(await store.aupdate(ns, name, kept))


async def key_of_messages(store: MemoryStore, agent_id: str) -> bytes:
    """The key of what an agent knows of messages without an id: the ids made for them, and names of speakers."""
    return await key_in(store, namespace(agent_id, "message_keys", "all"), "messages")


def read_key(value: Value | None) -> bytes:
    """The key in a record; empty if it has none."""
    try:
        return bytes.fromhex((value or {})["key"])
    except (KeyError, TypeError, ValueError):
        return b""
