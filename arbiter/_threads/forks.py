"""Objects that a forked child process must make anew, and threads that a fork waits for.

A fork copies locks in their current state, but only one thread. A lock that another thread held would stay
locked in the child for ever, and the work of other threads would never be done. Locks inside of a C library
cannot be made anew, so a fork waits until no other thread is in it.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol


class _Renewable(Protocol):
    def renew(self) -> None: ...


_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_WAIT = 5.0
"""Seconds that a fork waits for other threads, and they for it."""
_turn = threading.Condition()
_forks = 0
_held: dict[object, int] = {}
"""What a fork waits for, with the id of the thread that uses it."""
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


def hold_forks(thing: object) -> None:
    """Until `release_forks(thing)`, a fork by another thread waits for a while."""
    mine = threading.get_ident()
    with _turn:
        _turn.wait_for(lambda: not _forks or mine in _held.values(), _WAIT)
        _held[thing] = mine


def release_forks(thing: object) -> None:
    """Let forks go on that wait for `thing`."""
    with _turn:
        _held.pop(thing, None)
        _turn.notify_all()


def _before_fork() -> None:
    global _forks
    mine = threading.get_ident()
    with _turn:
        _forks += 1
        _turn.wait_for(lambda: all(owner == mine for owner in _held.values()), _WAIT)


def _after_fork_in_parent() -> None:
    global _forks
    with _turn:
        _forks -= 1
        _turn.notify_all()


def _after_fork() -> None:
    global _turn, _forks
    _turn, _forks = threading.Condition(), 0
    _held.clear()
    for lock in list(_locks):
        lock._at_fork_reinit()
    for lock in list(_rlocks):
        if not lock._is_owned():
            lock._at_fork_reinit()
    for thing in list(_renewed):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
    )
