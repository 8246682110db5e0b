"""`arbiter export --to langfuse|langsmith`: the scores of a ledger for another system, for cron or as a service."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from arbiter.cli._options import Screen, number_of, opened
from arbiter.errors import ConfigurationError
from arbiter.history._rendering import moment_text

if TYPE_CHECKING:
    from arbiter.ledger import Ledger
    from arbiter.ledger._outbox import ReceiverState
    from arbiter.ledger._sending import Export
    from arbiter.telemetry import ScoreReceiver

RECEIVERS = ("langfuse", "langsmith")
_SHOWN = 10


def send_scores(where: str, to: str, *, follow: bool) -> int:
    """Send what the receiver has not got yet, or follow the ledger until Ctrl+C.

    Returns 1 if the receiver could not be reached or takes nothing, and if it has refused scores this time.
    """
    from arbiter.telemetry import ReceiverBusy, ReceiverError

    screen = Screen("table")
    receiver = _receiver(to)
    with opened(where) as ledger:
        before, problem = _states(ledger, receiver), None
        try:
            export = ledger.export_to(receiver, follow=follow)
            if follow:
                with suppress(KeyboardInterrupt):
                    screen.say(f"{receiver.name} gets the scores of {ledger.where}; stop with Ctrl+C")
                    while export.is_running:
                        time.sleep(0.5)
                export.stop()
                problem = export.stopped_by
            screen.say(_sentence(export))
        except ReceiverBusy as error:
            problem = f"{error} What was not taken stays in the ledger; the next export goes on there."
        except ReceiverError as error:
            problem = str(error)
        states = _states(ledger, receiver)
    if problem is not None:
        Screen("jsonl").say(f"{receiver.name}: {problem}")
    for state in states:
        if state.waiting:
            screen.say(
                f"To be sent again, because the run is not there yet: {number_of(state.waiting, 'score')}."
            )
        if state.refusals:
            screen.say(f"Refused in all: {number_of(state.refused, 'score')}. The newest refusals:")
            rows = [(moment_text(at), count, why) for at, count, why in state.refusals[:_SHOWN]]
            screen.table(("at", ">scores", "why"), rows)
    is_worse = sum(state.refused for state in states) > sum(state.refused for state in before)
    return 1 if problem is not None or is_worse else 0


def _receiver(to: str) -> ScoreReceiver:
    try:
        from arbiter import telemetry

        return telemetry.LangfuseScores() if to == "langfuse" else telemetry.LangSmithScores()
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error


def _states(ledger: Ledger, receiver: ScoreReceiver) -> list[ReceiverState]:
    return [state for state in ledger.receivers() if state.receiver == receiver.name]


def _sentence(export: Export) -> str:
    from arbiter.ledger._sending import no_spans

    if not export.accepted and not export.refused and export.untraced:
        return no_spans(export.receiver.name, export.untraced)
    parts = [f"{export.receiver.name} took {number_of(export.accepted, 'score')}"]
    if export.refused:
        parts.append(f"refused {export.refused:,}")
    if export.untraced:
        parts.append(f"{export.untraced:,} more belong to no span and were not sent")
    return ", ".join(parts) + "."
