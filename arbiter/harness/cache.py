"""The cache of live runs: answers that were paid for once, in one SQLite file.

A key has the whole question, the model with its arguments, the repeat and the vote, so that three repeats of a question
stay three answers. Only usable answers are kept: refusals, errors and texts that could not be read are asked again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from arbiter.errors import ConfigurationError

CacheMode = Literal["off", "judge", "all"]
FILE = ".arbiter/cache.sqlite"
_WAIT = 30.0
"""Seconds to wait for another process that writes."""


class Answers(Protocol):
    """Answers by the key of their question: a `Cache`, or the way to the process that has one."""

    def get(self, key: str) -> Mapping[str, Any] | None: ...
    def put(self, key: str, value: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Cache:
    """Plain data by key. Several threads and processes may use one file."""

    def __init__(self, path: str | Path = FILE) -> None:
        self.path = Path(path)
        with self._using():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=_WAIT, check_same_thread=False, isolation_level=None
            )
            # Also of a cache that is dropped without `close`.
            self._closing = weakref.finalize(self, self._connection.close)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT NOT NULL, at REAL NOT NULL)"
            )
        self._lock = threading.Lock()

    @contextmanager
    def _using(self) -> Generator[None]:
        """Inside, a file that is damaged or cannot be written raises `ConfigurationError`."""
        try:
            yield
        except (OSError, ValueError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the cache {str(self.path)!r} cannot be used: {error}. Delete the file, or turn the cache off."
            ) from None

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The value of a key; None if there is none."""
        with self._lock, self._using():
            row = self._connection.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a value, in place of an earlier one."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        with self._lock, self._using():
            self._connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, text, time.time())
            )

    def close(self) -> None:
        with self._lock:
            self._closing()
