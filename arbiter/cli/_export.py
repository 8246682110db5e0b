"""`arbiter export`: what a ledger recorded as JSON lines or CSV, a thread as HTML, scores for another system."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from arbiter.cli._options import Screen, check_other_file, number_of, opened
from arbiter.cli._receivers import RECEIVERS, send_scores
from arbiter.cli._streams import counting, reader_may_leave
from arbiter.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from arbiter.ledger import Ledger
    from arbiter.ledger._exporting import LedgerRecords

TO = ("jsonl", "csv", "html", "otlp", *RECEIVERS)


def export_records(
    where: str, to: str, thread: str | None, *, since: str | None, follow: bool, output: str | None
) -> int:
    """Write the records to the file `output` or to the standard output, or send their scores."""
    from arbiter.ledger._exporting import JsonLines, csv_lines, followed, write_whole

    if to not in TO:
        raise ConfigurationError(f"--to is {to!r}; expected one of {', '.join(TO)}.{nearest(to, TO)}")
    if to in RECEIVERS:
        if thread is not None or since is not None or output is not None:
            raise ConfigurationError(
                f"--to {to} sends every score once; it takes no thread, no --since and no --output."
            )
        return send_scores(where, to, follow=follow)
    if to == "otlp" and (follow or output is not None):
        raise ConfigurationError(
            "--to otlp sends what is recorded now; it takes no --follow and no --output."
        )
    if follow and (to != "jsonl" or output is not None):
        raise ConfigurationError(
            "--follow writes JSON lines to the standard output, without an end: "
            "arbiter export --to jsonl --follow > FILE"
        )
    if to == "html" and thread is None:
        raise ConfigurationError("a file of HTML shows one thread: arbiter export THREAD --to html -o FILE")
    if to == "html" and since is not None:
        raise ConfigurationError("a file of HTML shows a thread from its beginning. Leave out --since.")
    with opened(where) as ledger:
        records = ledger.records(thread_id=thread, since=since)
        if to == "otlp":
            with counting("sending"):
                sent = _sent(records)
            Screen("table").say(sent)
            return 0
        if to == "html":
            lines = _html(ledger, str(thread))
        elif to == "csv":
            lines = csv_lines(records, ledger.names("evaluator"), since=records.since)
        else:
            lines = followed(records) if follow else JsonLines(records).all()
        if output is not None:
            check_other_file("--output", output, where)
            with _counted(lines, to) as counted:
                count = write_whole(output, counted)
            what = f"thread {thread}" if to == "html" else number_of(count, "line")
            Screen("jsonl").say(f"wrote {what} to {output}")
            return 0
        with reader_may_leave(), suppress(KeyboardInterrupt):
            # On a terminal, the lines themselves show how far it is.
            shown = nullcontext(lines) if follow or sys.stdout.isatty() else _counted(lines, to)
            with shown as counted:
                for line in counted:
                    sys.stdout.buffer.write(line.encode())
                    if follow:
                        sys.stdout.buffer.flush()
    return 0


@contextmanager
def _counted(lines: Iterable[str], to: str) -> Generator[Iterator[str]]:
    """The lines, of which a terminal shows how many were written."""
    with counting("writing the thread" if to == "html" else "lines written") as show:

        def each() -> Iterator[str]:
            for count, line in enumerate(lines, 1):
                yield line
                if to != "html":
                    show(count)

        yield each()


def _sent(records: LedgerRecords) -> str:
    try:
        from arbiter.telemetry._recorded import send_recorded
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--to otlp needs {error.name}: pip install 'arbiteros[otel]'") from error
    sent = send_recorded(records, since=records.since)
    return f"sent {number_of(sent.spans, 'span')} and {number_of(sent.log_records, 'log record')}"


def _html(ledger: Ledger, thread: str) -> Iterator[str]:
    try:
        from arbiter.web.exporting import html_lines
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
    return html_lines(ledger, thread)
