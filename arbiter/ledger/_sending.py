"""`Export`: the scores of a ledger on their way to a receiver, with patience.

A batch is sent until its answer is read; only then does the receiver's cursor move. So an outage delays scores,
and a crash between the two sends some again, under the same ids.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from arbiter._threads.deadlines import is_from_outside
from arbiter.errors import describe
from arbiter.ledger._database import LedgerError, LedgerUnavailable
from arbiter.ledger._outbox import BEGINNING, Outbox, Outgoing, Place
from arbiter.ledger._receivers import (
    BatchRefused,
    Delivery,
    ExportedScore,
    ReceiverBusy,
    ReceiverError,
    Refusal,
    ScoreReceiver,
)

if TYPE_CHECKING:
    from arbiter.ledger._store import Store

T = TypeVar("T")
_log = logging.getLogger("arbiter")
SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 60.0
LONGEST_REQUESTED = 300.0
WARN_AFTER = 30.0
GRACE = 600.0
"""Seconds for which a score whose run the receiver does not know is sent again."""
AGAIN_EVERY = 15.0
_REASON = 500
_FEW = 20


class _StoppedError(Exception):
    """The export was stopped while it waited, or between two batches."""


@dataclass(slots=True)
class _Answers:
    """The answers of a receiver about the parts of a batch."""

    accepted: int = 0
    refused: dict[Place, tuple[int, str]] = field(default_factory=dict[Place, tuple[int, str]])
    later: list[Place] = field(default_factory=list[Place])

    def refuse(self, place: Place, count: int, reason: str) -> None:
        before, reasons = self.refused.get(place, (0, ""))
        self.refused[place] = before + count, "; ".join(filter(None, (reasons, reason)))[:_REASON]


class Export:
    """The export of a ledger's scores to one receiver. `Ledger.export_to` makes it.

    `accepted`, `refused` and `untraced` count the scores of this export: taken, refused, and not sent because
    their node run has no span. `last_error` is why the last attempt failed, None after one that did not.
    `stopped_by` is the sentence of the `ReceiverError` that ended the export.
    """

    def __init__(
        self,
        store: Store,
        receiver: ScoreReceiver,
        *,
        every: float = 1.0,
        patience: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.receiver = receiver
        self.accepted = self.refused = self.untraced = 0
        self.last_error: str | None = None
        self.stopped_by: str | None = None
        self._outbox = Outbox(store, receiver.name, takes_failures=receiver.takes_failures, clock=clock)
        self._every = every
        self._patience = patience
        self._clock = clock
        self._upto = -1
        """The newest entry whose scores are answered for."""
        self._again_at = 0.0
        self._has_warned = False
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._moved = threading.Condition()
        self._thread: threading.Thread | None = None

    # In a thread of its own

    def start(self) -> None:
        """Follow the ledger in a thread of its own."""
        name = f"arbiter-export-{self.receiver.name.partition(' ')[0]}"
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """True until the export was stopped, or stopped by itself: see `stopped_by`."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Look for new scores now."""
        self._woken.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the receiver has answered for everything that is committed by now.

        False if `timeout` seconds were not enough, or the export has stopped before.
        """
        newest = self._outbox.newest()
        until = None if timeout is None else time.monotonic() + timeout
        self.wake()
        with self._moved:
            while self._upto < newest:
                left = None if until is None else until - time.monotonic()
                if (left is not None and left <= 0) or not self.is_running:
                    return False
                self._moved.wait(0.1 if left is None else min(left, 0.1))
        return True

    def stop(self, timeout: float = 5.0) -> bool:
        """Send what is committed, if the receiver takes it within `timeout` seconds, and end the thread.

        The rest stays in the ledger: the next export sends it. True if nothing is left.
        """
        try:
            done = self.wait(timeout)
        except Exception as error:  # of the database, which may be gone
            done, self.last_error = False, describe(error)
        self._stopping.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout)
        return done

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                self._woken.clear()
                self.run()
                self._woken.wait(self._every)
        except _StoppedError:
            pass
        except (ReceiverError, LedgerError) as error:
            _log.error(
                "the export of scores to %s has stopped: %s Nothing is lost; the next export goes on from there.",
                self.receiver.name,
                error,
            )
        finally:
            with self._moved:
                self._moved.notify_all()

    # One pass

    def run(self) -> None:
        """Send everything that is committed. Raises `ReceiverError`, and `ReceiverBusy` if patience ends."""
        try:
            if time.monotonic() >= self._again_at:
                after: Place | None = BEGINNING
                while after is not None:
                    outgoing, after = self._patiently(
                        partial(self._outbox.waiting, self.receiver.most, after)
                    )
                    self._deliver(outgoing)
                self._again_at = time.monotonic() + AGAIN_EVERY
            while True:
                outgoing = self._patiently(partial(self._outbox.next, self.receiver.most))
                self._deliver(outgoing)
                self.untraced += outgoing.untraced
                with self._moved:
                    self._upto = outgoing.upto
                    self._moved.notify_all()
                if outgoing.upto == outgoing.after:
                    break
            self._warn_of_nothing_traced()
        except (ReceiverError, LedgerError) as error:
            self.stopped_by = str(error)
            raise

    def finish(self) -> None:
        """Store how far the export has got, so that the next one begins there."""
        self._outbox.finish()

    def _deliver(self, outgoing: Outgoing) -> None:
        """Send a batch, if need be in parts, and store the answers."""
        if self._stopping.is_set():
            raise _StoppedError
        if not outgoing.scores:
            return
        answers = _Answers()
        parts = deque([[*outgoing.scores.values()]])
        while parts:
            part = parts.popleft()
            try:
                delivery = self._patiently(partial(self._sent, part))
            except BatchRefused as error:
                if len(part) == 1:
                    answers.refuse(outgoing.places[part[0].id], 1, str(error))
                else:
                    half = len(part) // 2
                    parts.extendleft((part[half:], part[:half]))
                continue
            answers.accepted += delivery.accepted
            answers.later += [outgoing.places[id] for id in delivery.later]
            for refusal in delivery.refused:
                place = _place_of(refusal, outgoing.places, part)
                answers.refuse(place, refusal.count, str(refusal.reason))
        self._refuse_overdue(answers)
        self._patiently(
            partial(self._outbox.answered, outgoing, refused=answers.refused, later=answers.later)
        )
        self.accepted += answers.accepted
        self.refused += sum(count for count, _ in answers.refused.values())

    def _sent(self, part: Sequence[ExportedScore]) -> Delivery:
        delivery: Any = self.receiver.send(part)
        if not isinstance(delivery, Delivery):
            raise ReceiverError(
                f"the receiver {self.receiver.name!r} answered {delivery!r:.80}; expected a Delivery."
            )
        refused = sum(refusal.count for refusal in delivery.refused)
        if delivery.accepted + refused + len(delivery.later) != len(part):
            raise ReceiverError(
                f"the receiver {self.receiver.name!r} answered for {delivery.accepted} accepted, {refused} refused "
                f"and {len(delivery.later)} later scores of a batch of {len(part)}."
            )
        left = [score.id for score in part]
        for id in delivery.later:
            if id not in left:
                raise ReceiverError(
                    f"the receiver {self.receiver.name!r} answered that the score {id!r:.80} comes later; expected "
                    "the `id` of a score of its batch, each once."
                )
            left.remove(id)
        return delivery

    def _refuse_overdue(self, answers: _Answers) -> None:
        """Refuse scores whose runs the receiver has not known for too long."""
        if not answers.later:
            return
        first = self._patiently(partial(self._outbox.first_sent, answers.later))
        now = self._patiently(self._clock)
        for place in list(answers.later):
            if now - first.get(place, now) >= GRACE:
                answers.later.remove(place)
                answers.refuse(place, 1, f"its run was not there within {GRACE / 60:g} minutes")

    def _patiently(self, act: Callable[[], T]) -> T:
        """The result of `act`, tried until it succeeds: of a receiver that may be away, or a database.

        Only a `ReceiverError`, a refusal, and an entry that cannot be read end that.
        """
        pause, failing_since = SHORTEST_PAUSE, None
        while True:
            try:
                result = act()
            except BaseException as error:  # also SystemExit: it would end the thread that sends
                is_outage = isinstance(error, LedgerUnavailable)
                is_final = isinstance(error, ReceiverError | BatchRefused | LedgerError) and not is_outage
                if is_final or is_from_outside(error):
                    raise
                is_busy = isinstance(error, ReceiverBusy)
                self.last_error = " ".join((str(error) if is_busy else describe(error)).split())[:_REASON]
                failing_since = failing_since or time.monotonic()
                lasted = time.monotonic() - failing_since
                if self._patience is not None and lasted >= self._patience:
                    raise ReceiverBusy(self.last_error) from error
                self._warn_of_failure(lasted)
                asked = error.retry_after if isinstance(error, ReceiverBusy) else None
                if self._stopping.wait(max(pause, min(asked or 0.0, LONGEST_REQUESTED))):
                    raise _StoppedError from error
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            self.last_error = None
            return result

    def _warn_of_failure(self, seconds: float) -> None:
        if seconds >= WARN_AFTER and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s has taken no scores for %d s: %s. They wait in the ledger and are sent when it does.",
                self.receiver.name,
                seconds,
                self.last_error,
            )

    def _warn_of_nothing_traced(self) -> None:
        if self._thread is None or self._has_warned or self.accepted or self.untraced < _FEW:
            return
        self._has_warned = True
        _log.warning("%s", no_spans(self.receiver.name, self.untraced))


def no_spans(receiver: str, count: int) -> str:
    """Why a receiver gets nothing, and the remedy."""
    return (
        f"{receiver} gets no scores: {count} are there, and no node run of theirs has a span. Give "
        "ArbiterOS(listeners=[OpenTelemetry()]) and a tracer provider that does not sample them out."
    )


def _place_of(refusal: Refusal, places: Mapping[str, Place], part: Sequence[ExportedScore]) -> Place:
    """The score that was refused, or the last entry of the batch if the receiver did not say which one."""
    if refusal.id is not None and refusal.id in places:
        return places[refusal.id]
    return places[part[-1].id][0], ""
