"""A checker that limits the rate of node runs: a token bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Unpack

from langchain_core.callbacks import BaseCallbackHandler

from arbiter._threads.forks import new_lock
from arbiter._values.parameters import Param, check_parameters
from arbiter.checkers._accounts import Accounts, UserKey, account_of, causal, ensure_user, no_account
from arbiter.history._items import History
from arbiter.policy import CheckerOptions, PolicyChecker
from arbiter.verdicts import Verdict

_NANO = 10**9


@dataclass(slots=True)
class _Bucket:
    """A bucket in whole numbers, so that nothing is lost to rounding.

    Each nanosecond brings `calls` units, and a token has as many units as `per_seconds` has nanoseconds.
    Guarded by the checker's lock.
    """

    units: int
    at: int


class RateLimitChecker(PolicyChecker):
    """Denies a node run if there were already `calls` of them in `per_seconds`; the reason says when the next
    is possible.

    It is a token bucket: it holds `burst` tokens (default: `calls`), begins full and gains `calls` in
    `per_seconds`. Each attempt of a node run takes one, also a retry. An attempt whose body does not begin,
    because another checker denied or asked, gives it back. Buckets are in the memory of this process. A run
    without the thread or user that `per` needs is denied.

    It uses the clock of the `ArbiterOS` if one was set, else a clock that cannot be set back. To use another,
    set the attribute `clock` to a function that returns seconds.
    """

    blocking = False
    reads_history = False  # a cached output uses nothing
    clock: Callable[[], float] | None = None

    @check_parameters
    def __init__(
        self,
        name: str,
        calls: Annotated[int, Param("how many node runs `per_seconds` may have", gt=0, tighter="lower")],
        per_seconds: Annotated[float, Param("the seconds for `calls` node runs", gt=0, tighter="higher")],
        *,
        burst: Annotated[
            int | None,
            Param("how many may come at once after a pause; by default `calls`", gt=0, tighter="lower"),
        ] = None,
        per: Annotated[
            Literal["process", "thread", "user"],
            Param("what has a rate of its own; a run without a thread or user is denied where it needs one"),
        ] = "process",
        user_key: UserKey = "user_id",
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        self.calls = calls
        self.per_seconds = per_seconds
        self.burst = calls if burst is None else burst
        ensure_user(f"checker {name!r}", per, user_key)
        self.per = per
        self.user_key = user_key
        self._token = max(round(per_seconds * _NANO), 1)
        self._newest = 0
        """The latest time of a check."""
        self._lock = new_lock()
        self._buckets: Accounts[_Bucket] = Accounts(self._is_full)
        self._taken: dict[tuple[str, str], _Bucket] = {}
        """The buckets of admitted node runs whose body has not begun."""

    def check_before(self, history: History) -> Verdict:
        own = causal(history)
        name = account_of(own, self.per, self.user_key)
        if name is None:
            return Verdict.deny(no_account(self.per, self.user_key))
        key = (own.run_id, own.item.id)
        with self._lock:
            if key in self._taken:
                return Verdict.allow()  # a second check of the same attempt
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
            f"the next is possible in {f'{wait:.0f}' if wait >= 100 else f'{wait:.3g}'} s"
        )

    def handlers(self, history: History) -> Sequence[BaseCallbackHandler]:
        own = causal(history)
        with self._lock:
            self._taken.pop((own.run_id, own.item.id), None)  # the body begins, so the token is used
        return ()

    def observe(self, history: History) -> Mapping[str, float] | None:
        own = causal(history)
        with self._lock:
            if (bucket := self._taken.pop((own.run_id, own.item.id), None)) is not None:
                bucket.units = min(bucket.units + self._token, self.burst * self._token)
        return None

    def _now(self, history: History) -> int:
        clock = history.clock if self.clock is None else self.clock
        # The system's clock can be set back, which would stop the rate.
        return round((time.monotonic if clock is time.time else clock)() * _NANO)

    def _fill(self, bucket: _Bucket, now: int) -> None:
        self._newest = max(now, self._newest)
        if now > bucket.at:
            bucket.units = min(bucket.units + (now - bucket.at) * self.calls, self.burst * self._token)
            bucket.at = now

    def _is_full(self, bucket: _Bucket) -> bool:
        """True if the bucket is full. Only such a bucket may be dropped, because a new one equals it."""
        self._fill(bucket, self._newest)
        return bucket.units == self.burst * self._token
