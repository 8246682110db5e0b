"""Standard output and standard error of the commands, and their end."""

from __future__ import annotations

import codecs
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from io import TextIOWrapper, UnsupportedOperation
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from arbiter.errors import ArbiterWarning

_ESCAPED = "arbiter.escaped"


def _write_any_character() -> None:
    """From now on, characters that a stream cannot encode are written as `\\u00e4`, which is also how JSON has them."""
    codecs.register_error(_ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    units = (found[at : at + 2].hex() for at in range(0, len(found), 2))
    return "".join(f"\\u{unit}" for unit in units), error.end


def sentence(text: str, style: str = "") -> Text:
    """A text for a terminal, with its line ends; other characters that it would act on or hide as their codes."""
    from arbiter.models import visible

    return Text("\n".join(map(visible, text.split("\n"))), style)


def tell(text: str, style: str = "") -> None:
    """Print a `sentence` on standard error."""
    Console(stderr=True, highlight=False).print(sentence(text, style), soft_wrap=True)


def begin() -> None:
    """A command begins: threads of an earlier one in this process are not its own."""
    _stuck.clear()
    _write_any_character()


def wait_for_no_thread() -> None:
    """A call of the user's code does not return: its thread, such as one of an event loop's, must not keep the
    process from ending. It has some seconds from `end` on."""
    _stuck.append(True)


def end(code: Any) -> None:
    """The command is done. Python ends the process as soon as all threads but daemons have ended."""
    if _stuck:
        timer = threading.Timer(_PATIENCE, os._exit, (code if isinstance(code, int) else 1,))
        timer.daemon = True
        timer.start()


_stuck: list[bool] = []
_PATIENCE = 3.0


@contextmanager
def counting(what: str) -> Generator[Callable[[int], None]]:
    """Inside, a terminal on standard error shows `what`, such as "lines written", and the number with which the
    result was last called. Nothing is shown elsewhere.
    """
    err = Console(stderr=True, highlight=False)
    if not err.is_terminal:
        yield lambda _: None
        return
    with Status(what, console=err) as status:
        yield lambda count: status.update(f"{what}: {count:,}")


@contextmanager
def stdout_for_results() -> Generator[None]:
    """Inside, what the user's code writes to standard output goes to standard error, also from subprocesses."""
    sys.stdout.flush()
    try:
        descriptor, errors = sys.stdout.fileno(), sys.stderr.fileno()
    except (UnsupportedOperation, AttributeError, ValueError):
        with redirect_stdout(sys.stderr):
            yield
        return
    kept = os.dup(descriptor)
    os.dup2(errors, descriptor)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


@contextmanager
def warnings_as_sentences() -> Generator[None]:
    """Inside, each of Arbiter's own warnings is one sentence on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", ArbiterWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, ArbiterWarning):
                tell(f"warning: {message}", "yellow")
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        yield


@contextmanager
def each_warning_once() -> Generator[None]:
    """Inside, Arbiter logs that a rule or evaluator fails once, not for each case: the report counts the rest."""
    log, told = logging.getLogger("arbiter"), set[object]()

    def is_new(record: logging.LogRecord) -> bool:
        about = record.args[0] if isinstance(record.args, tuple) and record.args else None
        known = (record.msg, str(about)) in told
        told.add((record.msg, str(about)))
        return not known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


@contextmanager
def reader_may_leave() -> Generator[None]:
    """Inside, a closed pipe such as that of `| head` is no failure: the exit code stays that of the command."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # Rich raises the second one about the first one.
        if not isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
