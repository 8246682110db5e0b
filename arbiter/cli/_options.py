"""Common to the commands about a ledger: their options, the opened ledger, tables and JSON.

Importing this module loads nothing of the ledger: `arbiter --help` needs no extra.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, fields
from datetime import datetime
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from arbiter._objects import model_named
from arbiter._values.files import ensure_ending, ensure_writable, writing
from arbiter.cli._streams import sentence, tell
from arbiter.errors import ArbiterError, ArbiterWarning, ConfigurationError, nearest
from arbiter.history._text import Ink

if TYPE_CHECKING:
    from arbiter.ledger import Ledger

LEDGER = "arbiter.db"
"""The ledger of a command that is given none: a file in the working directory."""
FORMATS = ("table", "json", "jsonl")
_KEY, _KEY_FILE = "ARBITER_LEDGER_KEY", "ARBITER_LEDGER_KEY_FILE"
_CELLS, _WIDEST = 120, 2_000

LedgerOption = Annotated[
    str,
    typer.Option("--ledger", envvar="ARBITER_LEDGER", metavar="URL", help="A file, or a postgresql:// URL."),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="WHEN", help="From then on: 30m, 24h, 7d, or a date such as 2026-11-22 (UTC)."
    ),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Until then: as --since.")]
FormatOption = Annotated[str, typer.Option("--format", help="table, json or jsonl (one object a line).")]
AfterOption = Annotated[
    str | None,
    typer.Option("--after", metavar="CURSOR", help="The page after the one that named this cursor."),
]


@contextmanager
def _mistakes_as_sentences(ctx: Any) -> Generator[None]:
    """Inside, a wrong option, value or name of a command is reported in one sentence, as all other mistakes are."""
    try:
        yield
    except _UsageError as error:
        if isinstance(error, typer.BadParameter) and error.message:
            option: Any = error.param
            raise ConfigurationError(f"{option.opts[0]}: {error.message.rstrip('.')}.") from None
        told = re.sub(r"[^.?]$", r"\g<0>.", cast(Any, error).format_message())
        raise ConfigurationError(f"{told} Try '{ctx.command_path} --help'.") from None


_UsageError: Any = typer.BadParameter.__base__
"""Typer exports its subclass alone."""


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _mistakes_as_sentences(ctx):
            return super().parse_args(ctx, args)


class _Group(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Without arguments, the "mistake" is the help.
        with _mistakes_as_sentences(ctx) if args else nullcontext():
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with _mistakes_as_sentences(ctx):
            return super().resolve_command(ctx, args)


class Commands(typer.Typer):
    """A group of commands, each of which reports its mistakes in one sentence, and reads numbers in one way."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, cls=_Command, **options)

        def made(function: Any) -> Any:
            for each in signature(function, eval_str=True).parameters.values():
                # Typer would evaluate a text anew, and get other infos.
                function.__annotations__[each.name] = each.annotation
                kind, *infos = get_args(each.annotation) or (None,)
                for number in (int, float):
                    for info in infos if number in (kind, *get_args(kind)) else ():
                        info.parser = partial(_number, number, info.min, info.max)
                        info.metavar = f"<{number.__name__}>"
            return register(function)

        return made


def _number(kind: type[int | float], least: float | None, most: float | None, given: Any) -> float:
    """The number that an option was given."""
    what = "a whole number" if kind is int else "a number"
    what += "" if least is None else f" from {least} on" if most is None else f" from {least} to {most}"
    text, hint = str(given), ""
    try:
        number = kind(text.removesuffix(".0") if kind is int else text)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    except ValueError:
        if kind is float and re.fullmatch(r"-?\d+,\d+", text):
            hint = f". Write {text.replace(',', '.')}"
    raise typer.BadParameter(f"expected {what}, got {given!r}{hint}")


def takes(options: type[Any], *names: str) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Makes a command of a function whose first parameter is an object of the dataclass `options`. Its annotated fields
    (of some names; all by default) are arguments and options of the command, of which a `Sequence` may be repeated.
    The function returns the exit code, None for 0.
    """
    annotated: Any = Annotated
    hints: dict[str, Any] = get_type_hints(options, include_extras=True)
    taken: list[Parameter] = []
    several: list[str] = []
    for each in fields(options):
        hint, default = hints[each.name], Parameter.empty if each.default is MISSING else each.default
        if get_origin(hint) is not Annotated or each.name not in (names or hints):
            continue
        if get_origin(hint.__origin__) is Sequence:
            several.append(each.name)
            hint, default = annotated[(list[str] | None, *hint.__metadata__)], None
        taken.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))

    def command_of(function: Callable[..., int | None]) -> Callable[..., None]:
        _, *parameters = signature(function, eval_str=True).parameters.values()
        others = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]

        @wraps(function)
        def command(**given: Any) -> None:
            own = {each.name: given.pop(each.name) for each in others}
            given |= {name: tuple(given[name] or ()) for name in several}
            raise typer.Exit(function(options(**given), **own) or 0)

        cast(Any, command).__signature__ = Signature([*others, *taken])
        return command

    return command_of


def check_format(format: str, formats: Collection[str] = FORMATS) -> None:
    if format not in formats:
        raise ConfigurationError(
            f"--format is {format!r}; expected one of {', '.join(formats)}.{nearest(format, formats)}"
        )


def tell_of_unread_rules(graph: object, constitution: Sequence[str] | None) -> None:
    """Say that the rules of this folder were not asked for: otherwise they seem to have found nothing wrong."""
    from arbiter._weaving.graph import facts_channel_of

    there = [name for name in ("policies", "instructions", "evaluators") if any(Path(name).glob("*.y*ml"))]
    if not constitution and there and facts_channel_of(graph) is None:
        tell(
            f"{there[0]}/ is not read, because no constitution is named. Name it: --constitution .", "yellow"
        )


def check_place(file: Path, endings: Iterable[str]) -> None:
    """Raise `ConfigurationError` if no such file can be written: what it is for may cost money first."""
    ensure_ending(file, endings)
    with writing(file):
        if file.is_dir() or not file.parent.is_dir():
            where = f"would be in {str(file.parent)!r}, which is not a folder"
            raise ConfigurationError(f"{str(file)!r} {'is a folder' if file.is_dir() else where}.")
        ensure_writable(file)


@contextmanager
def opened(where: str, *, create: bool = False, sign: bool = False, **options: Any) -> Generator[Ledger]:
    """The ledger at that place, closed at the end. Errors of its database are raised as one sentence.

    Unless `create` is True, a ledger that is not there is a `LedgerUnavailable`, and nothing is made. With
    `sign`, the key of the environment signs anchors.
    """
    try:
        from arbiter._databases import sentences
        from arbiter.ledger import Ledger
        from arbiter.ledger._database import CHANGED, SCHEMA, unreadable
    except ImportError as error:
        raise ConfigurationError(str(error)) from error

    key = key_of_environment() if sign else None
    with sentences(where, SCHEMA), Ledger(where, create=create, key=key, **options) as ledger:
        try:
            yield ledger
        except CHANGED as error:
            if create or isinstance(error, ArbiterError):
                raise
            raise unreadable(where, error) from error


def check_other_file(option: str, file: str, where: str) -> None:
    """Raise `ConfigurationError` if a file that is to be written is the ledger itself."""
    from arbiter._databases import path_of, url_of
    from arbiter.ledger._database import SCHEMA

    path = path_of(url_of(where, SCHEMA))
    if path is not None and path.exists() and os.path.exists(file) and path.samefile(file):
        raise ConfigurationError(f"{option} is {file!r}, which is the ledger. Name another file.")


@contextmanager
def known_names() -> Generator[None]:
    """A name that does not occur in the ledger, of which its methods warn, is an error inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArbiterWarning)
        try:
            yield
        except ArbiterWarning as warning:
            raise ConfigurationError(str(warning)) from None


def option_of(where: str) -> str:
    """The option that names this ledger in a command that is shown, without a password; "" for the default."""
    from arbiter._databases import shown

    return (
        "" if where == os.environ.get("ARBITER_LEDGER", LEDGER) else f" --ledger {shlex.quote(shown(where))}"
    )


def key_of_environment() -> bytes | None:
    """The key that signs anchors, from ARBITER_LEDGER_KEY or the bytes of the file ARBITER_LEDGER_KEY_FILE."""
    text, path = os.environ.get(_KEY), os.environ.get(_KEY_FILE)
    if text and path:
        raise ConfigurationError(f"{_KEY} and {_KEY_FILE} are both set; set one of them.")
    if not path:
        return text.encode() if text else None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{_KEY_FILE} is {path!r}, which cannot be read: {error.strerror}."
        ) from None


class Screen:
    """The standard output: tables for people, or JSON."""

    def __init__(self, format: str) -> None:
        check_format(format)
        self.format = format
        self.console = Console(highlight=False)
        self._ink = Ink(self.console.encoding)

    def text(self, value: object, cells: int = _CELLS) -> Text:
        """A value on one line. Control characters are shown, not sent to the terminal."""
        return Text(self._ink.line("" if value is None else str(value), cells))

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table, as wide as its texts are: a line that a terminal breaks can be read, half a name cannot.

        Columns of numbers have headings that begin with ">"; their cells stand on the right.
        """
        found = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for heading in headings:
            name = heading.removeprefix(">")
            found.add_column(name, justify="left" if name == heading else "right", no_wrap=True)
        for row in rows:
            found.add_row(*map(self.text, row))
        wide = Console(highlight=False, width=_WIDEST, color_system=None)
        with wide.capture() as captured:
            wide.print(found)
        for line in captured.get().splitlines():
            self.console.print(Text(line.rstrip()), soft_wrap=True)

    def say(self, text: str) -> None:
        """A sentence below a table. Beside JSON it goes to stderr, so that stdout stays JSON."""
        if self.format == "table":
            self.console.print(sentence(text), soft_wrap=True)
        else:
            tell(text)

    def data(self, rows: Sequence[Any] | Mapping[str, Any] | None) -> None:
        """Rows as a JSON list, or as one object a line; a single object, or None, as it is."""
        if self.format == "json":
            sys.stdout.write(json.dumps(rows, indent=2, default=_plain) + "\n")
        else:
            each: Sequence[Any] = [rows] if isinstance(rows, Mapping) else rows or ()
            sys.stdout.writelines(json.dumps(row, default=_plain) + "\n" for row in each)
        sys.stdout.flush()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def number_of(count: int, singular: str, plural: str | None = None) -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def model_given(given: str | None) -> Any:
    """A model by its text, or the object that path/to/file.py:name names."""
    return None if given is None else model_named(given)
