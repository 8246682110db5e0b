"""Work that waits for its time, and is done at the end of the process at the latest."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

_log = logging.getLogger("arbiter")

EXIT_SECONDS = 30.0
"""The number of seconds for which the end of the process waits for all of it together."""


class Waiting(Protocol):
    """Work that waits. `pending` is the number of its pieces."""

    @property
    def pending(self) -> int: ...

    def uses(self, thing: object) -> bool:
        """True if the work needs `thing`, which is about to be closed."""
        ...

    def renew(self) -> None:
        """Forget all of it."""
        ...

    def drain(self, timeout: float | None = None, *, closing: object = None) -> bool:
        """Do all of it now. Returns False if `timeout` seconds were too short. A call that fails and needs
        `closing`, which is closed then, is not tried again."""
        ...


_held: list[Waiting] = []
_registered: list[Callable[[], None]] = []
_reported: list[Waiting] = []


def hold(work: Waiting) -> None:
    """Keep `work`, and do it when the process ends, unless `let_go` is called before."""
    if not _registered:
        _registered.append(drain_held)
        # Before Python closes its thread pools, which call sync models, where that is possible.
        at_exit: Any = getattr(threading, "_register_atexit", atexit.register)
        with suppress(RuntimeError):  # the main thread has ended
            at_exit(drain_held)
    if all(work is not each for each in _held):
        _held.append(work)


def let_go(work: Waiting) -> None:
    """Forget `work`: nothing of it waits."""
    _held[:] = [each for each in _held if each is not work]


def forget_held() -> None:
    """Drop everything that waits, as after a fork: the parent process does it."""
    for work in _held:
        work.renew()
    _held.clear()


def drain_users(thing: object) -> None:
    """Do the held work that uses `thing`, before it is closed, and warn once about what cannot be done in time."""
    # When Python deletes its last objects, no other thread runs, and `drain_held` was called before.
    if not sys.is_finalizing():
        _drain([work for work in _held if work.uses(thing)], "the store was closed", thing)


def drain_held() -> None:
    """Do all work that is held, and warn once about what cannot be done in time."""
    waiting = [each for each in _held if all(each is not other for other in _reported)]
    _reported.extend(_drain(waiting, "the process ended"))


def _drain(waiting: list[Waiting], when: str, closing: object = None) -> list[Waiting]:
    """The work that could not be done."""
    end = monotonic() + EXIT_SECONDS
    pending = 0
    left: list[Waiting] = []
    for work in waiting:
        try:
            done = work.drain(max(end - monotonic(), 0), closing=closing)
        except KeyboardInterrupt:
            done = False
        if not done:
            pending += work.pending
            left.append(work)
    if pending:
        _log.warning(
            "%s not worked through when %s, which waits no longer than %g s; "
            "call arbiter_os.drain() before it to wait for all of them",
            "1 conversation was" if pending == 1 else f"{pending} conversations were",
            when,
            EXIT_SECONDS,
        )
    return left
