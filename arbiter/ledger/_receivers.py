"""The contract of a receiver of scores: another system that gets the evaluations that a ledger has.

Ledger ─▶ Outbox (what was committed after the receiver's cursor) ─▶ Export (patience) ─▶ ScoreReceiver.send
             ▲                                                                                │
             └────────── cursor, refusals: stored only when an answer was read ◀── Delivery ──┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from arbiter.errors import ArbiterError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedScore:
    """The result of one evaluator for one node run, for another system.

    `id` is the same whenever it is sent: a uuid of trace, span, evaluator and version. `trace` and `span` are
    the ids of the node run's span, in hex. A failed evaluation has no `score`, and its `comment` is the error.
    Texts are redacted as they are in the ledger.
    """

    id: str
    trace: str
    span: str
    evaluator: str
    version: str
    score: float | None
    passed: bool | None
    comment: str
    node: str
    at: datetime
    """The end of the node run, aware."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Scores that a receiver will never take: how many, and why. `id` is that of the score if it is known."""

    reason: str
    id: str | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A receiver's answer about a batch. Every score of the batch is in one of the three.

    `later` has the ids of scores whose run the receiver does not know yet. They are sent again for ten minutes
    and refused after that.
    """

    accepted: int
    refused: Sequence[Refusal] = ()
    later: Sequence[str] = ()


class ReceiverError(ArbiterError, RuntimeError):
    """A receiver takes no scores until its settings are changed: a wrong key, a wrong address.

    The export stops; nothing is lost, and the next one goes on from there.
    """


class ReceiverBusy(ArbiterError, RuntimeError):  # noqa: N818  it is no error of anybody here
    """A receiver cannot be reached or asks for time. The batch is sent again, after `retry_after` seconds at
    the earliest.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BatchRefused(ArbiterError, ValueError):  # noqa: N818
    """A receiver refused a whole batch because of something in it. It is sent again in halves, down to the
    score that is the reason, and that one is stored as refused.
    """


class ScoreReceiver:
    """Base class of receivers: another system that gets the scores in a ledger. Override `send`.

    `name` names the receiver's place in the ledger: give two projects of one system two names.
    """

    name: str = ""
    most = 100
    """The largest number of scores in a batch."""
    takes_failures = False
    """True if failed evaluations are sent too."""

    def send(self, batch: Sequence[ExportedScore]) -> Delivery:
        """Send the scores and read the answer. A score may come again, under the same id.

        Raises `ReceiverError` if it is pointless to go on, `BatchRefused` if something in the batch is wrong,
        and `ReceiverBusy`, or any other exception, if the same batch is to be sent again later.
        """
        raise NotImplementedError
