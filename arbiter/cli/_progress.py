"""The progress of runs on standard error, and their end by a signal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from rich.console import Console

from arbiter.harness.running import Session
from arbiter.harness.runs import handling
from arbiter.harness.usage import cost_text

err = Console(stderr=True, highlight=False)


class Progress:
    """One line on standard error: rewritten on a terminal, else every 10 seconds; with CI set, the last one alone."""

    def __init__(self) -> None:
        self.begun = self.shown = 0.0
        self.live = err.is_terminal
        self.quiet = bool(os.environ.get("CI"))
        self.last: Session | None = None

    def __call__(self, session: Session) -> None:
        now = time.monotonic()
        if self.last is not session:
            self.end()
            self.begun = self.shown = now - session.elapsed
        self.last = session
        if not self.quiet and now - self.shown > (0.1 if self.live else 10):
            self.shown = now
            self._write(session, "\r" if self.live else "", "" if self.live else "\n")

    def end(self) -> None:
        if self.last is not None and (self.live or self.quiet):
            self._write(self.last, "\r" if self.live else "", "\n")

    def _write(self, session: Session, before: str, after: str) -> None:
        done = len(session.results)
        parts = [f"{done}/{session.total}", f"{session.running} running"]
        failed = sum(not result.passed for result in list(session.results.values()))
        if failed:
            parts.append(f"{failed} failed")
        spent = session.judging.usage.total
        if spent.tokens:
            parts.append(
                f"{spent.tokens / 1000:,.0f}k tokens" if spent.tokens >= 1000 else f"{spent.tokens} tokens"
            )
            parts.append("cost unknown" if spent.usd is None else cost_text(spent))
        if 0 < done < session.total:
            left = (time.monotonic() - self.begun) / done * (session.total - done)
            parts.append(f"{int(left // 3600)}:{int(left // 60 % 60):02}:{int(left % 60):02} left")
        line = " · ".join(parts)
        sys.stderr.write(f"{before}{line:<70}{after}" if self.live else f"{line}{after}")
        sys.stderr.flush()


@contextmanager
def ends_in_good_order() -> Generator[None]:
    """Inside, SIGTERM ends a run as Ctrl-C does: what runs gets its time, and the report is written."""
    with ExitStack() as handled:
        handled.enter_context(
            handling(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        )
        # By a script that runs this in the background; SIGTERM would be ignored with it.
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            handled.enter_context(handling(signal.SIGINT, signal.default_int_handler))
        yield
