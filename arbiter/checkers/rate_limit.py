"""A checker that lets node runs through at a limited rate: a token bucket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from langchain_core.callbacks import BaseCallbackHandler

from arbiter.checkers.accounts import Accounts, account_of, causal, no_account, non_empty, one_of, positive
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny, PolicyChecker
from arbiter.verdicts import Verdict

_NANO = 10**9


class _Bucket:
    """Whole numbers only, so that nothing is lost to rounding: each nanosecond brings `calls` units, and a token is as
    many of them as `per_seconds` has nanoseconds. Guarded by the checker's lock."""

    __slots__ = ("at", "units")

    def __init__(self, units: int, at: int) -> None:
        self.units = units
        self.at = at


class RateLimitChecker(PolicyChecker):
    """Denies a node run when there were `calls` of them in `per_seconds` already; says when the next is possible.

    A token bucket: it holds `burst` tokens (default: `calls`), begins full and gains `calls` in `per_seconds`; each
    attempt of a node run takes one, also a retry. One whose body does not begin, because another checker denied or
    asked, gives it back. Buckets are in memory, of this process; a run without a thread, or a user, is denied where
    `per` needs one.

    It goes by the clock of the `ArbiterOS` if that was given one, else by one that cannot be set back. Set `clock`, a
    function that gives seconds, on the object to use another.
    """

    blocking = False
    reads_history = False  # what a cache serves uses nothing
    clock: Callable[[], float] | None = None

    def __init__(
        self,
        name: str,
        calls: int,
        per_seconds: float,
        *,
        burst: int | None = None,
        per: Literal["process", "thread", "user"] = "process",
        user_key: str = "user_id",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_deny)
        owner = f"checker {name!r}"
        positive(owner, "calls", calls, whole=True)
        positive(owner, "per_seconds", per_seconds)
        if burst is not None:
            positive(owner, "burst", burst, whole=True)
        one_of(owner, "per", per, ("process", "thread", "user"))
        non_empty(owner, "user_key", user_key)
        self.calls = calls
        self.per_seconds = per_seconds
        self.burst = calls if burst is None else burst
        self.per = per
        self.user_key = user_key
        self._token = max(round(per_seconds * _NANO), 1)
        self._newest = 0
        """The latest time at which it was asked."""
        self._lock = threading.Lock()
        self._buckets: Accounts[_Bucket] = Accounts(self._is_full)
        self._taken: dict[tuple[str, str], _Bucket] = {}
        """Of node runs that were admitted and whose body has not begun."""

    def check_before(self, history: History) -> Verdict:
        own = causal(history)
        name = account_of(own, self.per, self.user_key)
        if name is None:
            return Verdict.deny(no_account(self.per, self.user_key))
        key = (own.run_id, own.own.id)
        with self._lock:
            if key in self._taken:
                return Verdict.allow()  # asked again in the same attempt
            now = self._now(own)
            bucket = self._buckets.get(name)
            if bucket is None:
                bucket = self._buckets.add(name, _Bucket(self.burst * self._token, now))
            self._fill(bucket, now)
            missing = self._token - bucket.units
            if missing <= 0:
                bucket.units -= self._token
                self._taken[key] = bucket
                return Verdict.allow()
        wait = -(-missing // self.calls) / _NANO
        return Verdict.deny(
            f"the rate of {self.calls} in {self.per_seconds:g} s per {self.per} is used up; "
            f"the next is possible in {wait:.3g} s"
        )

    def handlers(self, history: History) -> Sequence[BaseCallbackHandler]:
        own = causal(history)
        with self._lock:
            self._taken.pop((own.run_id, own.own.id), None)  # the body begins: the token is gone
        return ()

    def observe(self, history: History) -> Mapping[str, float] | None:
        own = causal(history)
        with self._lock:
            if (bucket := self._taken.pop((own.run_id, own.own.id), None)) is not None:
                bucket.units = min(bucket.units + self._token, self.burst * self._token)
        return None

    def _now(self, history: History) -> int:
        clock = history.clock if self.clock is None else self.clock
        # The system's clock can be set back, for which a rate must not wait.
        return round((time.monotonic if clock is time.time else clock)() * _NANO)

    def _fill(self, bucket: _Bucket, now: int) -> None:
        self._newest = max(now, self._newest)
        if now > bucket.at:
            bucket.units = min(bucket.units + (now - bucket.at) * self.calls, self.burst * self._token)
            bucket.at = now

    def _is_full(self, bucket: _Bucket) -> bool:
        """Only such a bucket is forgotten: a new one is the same."""
        self._fill(bucket, self._newest)
        return bucket.units == self.burst * self._token
