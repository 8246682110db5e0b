"""The chain of a thread: every entry's hash covers its body and the hash of the entry before it.

`hash(n) = SHA-256(hash(n-1) ‖ body(n))`; the first link names the ledger and the thread, so a thread cannot be
moved to another ledger. A body is canonical JSON as RFC 8785 defines it: its keys are ASCII and it has no
floats, and for such values sorted compact JSON is exactly that.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import orjson

SALT_BYTES = 16
_MILLISECONDS = 2**48 - 1


def new_name(at: int) -> str:
    """A uuid for a ledger that was made at that time, in whole milliseconds since 1970. Its last 48 bits are the
    time, which every chain therefore proves (version 8 of RFC 9562).
    """
    drawn = uuid4().int & ~(_MILLISECONDS | 0xF << 76)
    return str(UUID(int=drawn | 8 << 76 | at))


def made_at(ledger: str) -> int | None:
    """The time in the name of a ledger, in microseconds; None if it has none."""
    try:
        name = UUID(ledger)
    except ValueError:
        return None
    return (name.int & _MILLISECONDS) * 1_000 if name.version == 8 else None


def canonical(body: Mapping[str, Any]) -> bytes:
    """The bytes of a body. Raises `TypeError` for values that are not JSON."""
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


def first_hash(ledger: str, ref: str) -> bytes:
    """The hash before the first entry of the thread `ref` in the ledger with that uuid."""
    return sha256(f"arbiter ledger 1|{ledger}|{ref}".encode()).digest()


def next_hash(previous: bytes, body: bytes) -> bytes:
    return sha256(previous + body).digest()


def commitment(salt: bytes, contents: bytes) -> str:
    """The hash by which a body names its contents. Guesses cannot be tested against it without the salt."""
    return sha256(salt + contents).hexdigest()


def key_of(execution: str, event: str) -> str:
    """The key of an entry: the same for the same event of the execution, however often it is written.

    It begins with the time that the execution's uuid begins with, so that the keys of new entries are neighbours
    in the index: an index of keys in no order has to write a page for each of them.
    """
    digest = sha256(f"{execution}\0{event}".encode()).hexdigest()
    return (execution[:8] + execution[9:13] + digest)[:32]
