"""Objects that a forked child process must make anew.

A fork copies locks in their current state, but only one thread. A lock that another thread held would stay
locked in the child for ever, and the work of other threads would never be done.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol


class _Renewable(Protocol):
    def renew(self) -> None: ...


_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_rlocks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A lock that is always free in a forked child."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> Any:
    """A reentrant lock that is free in a forked child, unless the forking thread holds it."""
    lock = threading.RLock()
    _rlocks.add(lock)
    return lock


def renew_in_child(thing: _Renewable) -> None:
    """Call `thing.renew()` in a forked child."""
    _renewed.add(thing)


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()
    for lock in list(_rlocks):
        if not lock._is_owned():
            lock._at_fork_reinit()
    for thing in list(_renewed):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
