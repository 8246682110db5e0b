"""Reports that are made once, such as a line in the log."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

_MOST: Final = 256
"""Keys may come from users' texts, so neither the memory nor the log grows with them."""


class Once:
    """The keys of what was reported. After 256 keys nothing more is."""

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()

    def is_new(self, key: Hashable) -> bool:
        """True at the first call with this key: it is time to report it."""
        if key in self._keys or len(self._keys) >= _MOST:
            return False
        self._keys.add(key)
        return True
