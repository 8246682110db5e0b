"""Conditions of a rule on a tool call's arguments, and all the ways in which a tool may read one argument.

A text can be understood in several ways: as it was sent, or in its normalised form (Unicode NFKC, without
control and zero-width characters); a path also decoded, expanded, or with the other kind of slash. A rule
that allows must hold for all of them, a rule that denies for at least one. A value that cannot be read raises
`UnclearError`: it is never allowed, and always denied.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import BaseModel, StringConstraints, TypeAdapter
from pydantic_core import SchemaError, ValidationError

from arbiter._values.normal import normalized
from arbiter._values.parameters import Param
from arbiter._values.states import as_state
from arbiter.errors import ParameterError

Test = Callable[[Any, bool], bool]
"""Tests a value: for every reading of it if the second argument is true, else for at least one."""


class UnclearError(Exception):
    """A value that cannot be compared with a rule. The message describes the mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRule:
    """The conditions on one argument of a tool call. All given conditions must hold.

    `matches` is a regular expression (of the linear-time kind: no look-around, no back references): it must
    match the whole text in a rule that allows, and any part of it in a rule that denies. `under` is a folder,
    as an absolute path or from `~`: the argument must be a path to it or into it after links, `..`, `~`,
    `file:` URLs, percent-encoding and backslashes are resolved. `max_length` counts characters of a text, or
    entries of a list or mapping. `equals` and `one_of` distinguish texts from numbers.
    """

    equals: Annotated[
        str | int | float | bool | None, Param("the value; the text `5` is not the number 5")
    ] = None
    one_of: Annotated[Sequence[str | int | float | bool] | None, Param("one of these values")] = None
    matches: Annotated[
        str | None,
        Param("a regular expression: the whole text where a rule allows, any part where it denies"),
    ] = None
    under: Annotated[str | None, Param("a path to this folder or into it; absolute, or from `~`")] = None
    max_length: Annotated[
        int | None, Param("the most characters of a text, or entries of a list or mapping")
    ] = None
    at_most: Annotated[float | None, Param("the highest number")] = None
    at_least: Annotated[float | None, Param("the lowest number")] = None


ASKS = tuple(field.name for field in fields(ArgumentRule))


def tests_of(rule: ArgumentRule, owner: str, path: str) -> Iterator[tuple[str, Test]]:
    """Each condition of the rule as words that follow "argument 'x'", and as a test.

    Raises `ParameterError` if the rule has no condition, or an impossible one.
    """
    asked = {name: value for name in ASKS if (value := getattr(rule, name)) is not None}
    if not asked:
        raise ParameterError(owner, path, f"expected one of {', '.join(ASKS)}, got none.")
    for name, value in asked.items():
        try:
            yield _MAKERS[name](value)
        except ValueError as exc:
            raise ParameterError(owner, f"{path}.{name}", str(exc)) from None


# Readings -----------------------------------------------------------------------------------------

_MAX_DEPTH = 32
_JSON_DEPTH = 4
"""The number of times that JSON may be wrapped in JSON."""
_CLEANED = ("Cc", "Cf")
_KEPT = "\t\n\r"


def normalised(text: str) -> str:
    """NFKC, without control characters (except tab and line ends) and without zero-width and direction marks."""
    if text.isascii() and text.isprintable():
        return text
    kept = "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in _CLEANED)
    return normalized("NFKC", kept)


def canonical(text: str) -> str:
    """NFC, so that texts which Unicode calls the same are equal."""
    return text if text.isascii() else normalized("NFC", text)


def readings(value: object) -> tuple[Any, ...]:
    """A value as it was sent and in its normalised form, as plain data; one of them if they are equal.

    A text that is a JSON object is read as that object.
    """
    sent = _read(value, canonical, 0, _JSON_DEPTH)
    clean = _read(value, normalised, 0, _JSON_DEPTH)
    return (sent,) if sent == clean else (sent, clean)


def _read(value: Any, spell: Callable[[str], str], depth: int, unwraps: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UnclearError("is nested too deeply")
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float):
        return value
    value = _path_as_text(value)
    if isinstance(value, str):
        text = spell(_encodable(value))
        inside = _json_object(text)
        if inside is None:
            return text
        if not unwraps:
            raise UnclearError("is JSON in JSON in JSON")
        return _read(inside, spell, depth + 1, unwraps - 1)
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        value = as_state(value)
    parts: Any = value
    if isinstance(value, Mapping):
        named = by_name(parts, spell)
        return {name: _read(part, spell, depth + 1, unwraps) for name, part in named.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_read(part, spell, depth + 1, unwraps) for part in parts]
    raise UnclearError(f"is a {type(value).__name__}, which no rule can read")


def by_name(value: Mapping[Any, Any], spell: Callable[[str], str] = normalised) -> dict[str, Any]:
    """The entries of a mapping by their names, in one spelling. Raises `UnclearError` if two names become the
    same.
    """
    found: dict[str, Any] = {}
    for key, part in value.items():
        if not isinstance(key, str):
            raise UnclearError(f"has the key {key!r}, which is not a text")
        name = spell(_encodable(key))
        if name in found:
            raise UnclearError(f"has the key {name!r} twice")
        found[name] = part
    return found


def _path_as_text(value: Any) -> Any:
    spell: Any = getattr(value, "__fspath__", None)
    return value if spell is None else spell()


def _encodable(text: str) -> str:
    try:
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError:
        raise UnclearError("has half a character (a lone surrogate)") from None
    return text


def _json_object(text: str) -> dict[str, Any] | None:
    """The object in a JSON text, even if it is wrapped in further JSON texts; None for any other text."""
    for _ in range(_JSON_DEPTH):
        stripped = text.strip()
        if stripped[:1] not in ("{", '"'):
            return None
        try:
            inside = json.loads(stripped, object_pairs_hook=_no_duplicates)
        except RecursionError:
            raise UnclearError("is nested too deeply") from None
        except ValueError:
            return None
        if not isinstance(inside, str):
            return inside if isinstance(inside, dict) else None  # pyright: ignore[reportUnknownVariableType]
        text = inside
    raise UnclearError("is JSON in JSON in JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # One parser takes the first, another the last, so the tool's reading is unknown.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UnclearError("is JSON with a key that comes twice")
    return found


_MAX_COERCED = 256
_TRUE = ("1", "on", "t", "true", "y", "yes")
_FALSE = ("0", "off", "f", "false", "n", "no")
_FLAGS = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}


def coerced(reading: Mapping[str, Any], texts: Collection[str], *, flags: bool) -> Iterator[dict[str, Any]]:
    """A reading of arguments in every way in which a tool may convert texts to numbers; the first is the
    reading itself.

    With `flags`, texts and numbers are also converted to true and false. `texts` are the arguments that are
    certainly texts. All parts of a list are converted alike.
    """
    named = {name: [part] if name in texts else _coercions(part, flags) for name, part in reading.items()}
    return iter(_combined(named))


def _coercions(value: Any, flags: bool) -> list[Any]:
    if isinstance(value, bool):
        return [value, int(value)]
    if isinstance(value, str):
        found = [value, *_numbers(value)]
    elif isinstance(value, int | float):
        found = [value]
    elif isinstance(value, list):
        parts: list[list[Any]] = [_coercions(part, flags) for part in value]  # pyright: ignore[reportUnknownVariableType]
        ways = max(map(len, parts), default=1)
        return [[part[min(way, len(part) - 1)] for part in parts] for way in range(ways)]
    elif isinstance(value, Mapping):
        members: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return _combined({name: _coercions(part, flags) for name, part in members.items()})
    else:
        return [value]
    flag = _FLAGS.get(str(value).strip().lower())
    return [*found, flag] if flags and flag is not None else found


def _combined(named: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    if math.prod(map(len, named.values())) > _MAX_COERCED:
        raise UnclearError("can be read in too many ways")
    return [dict(zip(named, parts, strict=True)) for parts in itertools.product(*named.values())]


def _numbers(text: str) -> Iterator[int | float]:
    for kind in (int, float):
        try:
            yield kind(text)
        except ValueError:
            continue
        return


# Paths --------------------------------------------------------------------------------------------

_MAX_PATH = 4096
_MAX_SPELLINGS = 64


def locations(path: Any) -> tuple[set[str], set[str]]:
    """The places to which a path can lead with links followed, and the same before links are followed.
    Absolute paths.
    """
    path = _path_as_text(path)
    if not isinstance(path, str):
        raise UnclearError("is not a path")
    spelled = {text for text in _spellings(_encodable(path)) if not _is_file_url(text)}
    try:
        real = {_absolute(os.path.realpath(text)) for text in spelled}
    except (OSError, ValueError) as exc:
        raise UnclearError(f"cannot be resolved ({type(exc).__name__})") from None
    return real, {_absolute(text) for text in spelled}


def is_inside(path: str, folder: str) -> bool:
    """True if `path` is `folder` or inside it; both are absolute."""
    return path == folder or path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def _absolute(path: str) -> str:
    found = os.path.normcase(os.path.abspath(path))
    # POSIX keeps two leading slashes, which Linux reads as one.
    return found[1:] if found.startswith("//") else found


def _spellings(path: str) -> set[str]:
    """Every text as which a tool may read the path, including respellings of respellings."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        text = waiting.pop()
        if text in found:
            continue
        if len(text) > _MAX_PATH or len(found) == _MAX_SPELLINGS:
            raise UnclearError("can be read in too many ways")
        found.add(text)
        _refuse_unclear(text)
        waiting.extend(respell(text) for respell in _RESPELLINGS)
    return found


def _refuse_unclear(text: str) -> None:
    if not text.strip():
        raise UnclearError("is an empty path")
    if any(unicodedata.category(c) == "Cc" for c in text):
        raise UnclearError("is a path with a control character")
    # A scheme, a drive, a stream of a file: other systems would read each as another place.
    if ":" in text.replace("\\", "/").partition("/")[0] and not _is_file_url(text):
        raise UnclearError("is a URL or names a drive")
    # For a tool that takes the URL for a relative path, `..` leads to another place.
    if _is_file_url(text) and ".." in text.replace("\\", "/").split("/"):
        raise UnclearError("is a URL with '..'")


def _is_file_url(text: str) -> bool:
    return text[:5].lower() == "file:"


def _without_file_url(text: str) -> str:
    if not _is_file_url(text):
        return text
    path = text[5:]
    if not path.startswith("//"):
        return path
    host, slash, path = path[2:].partition("/")
    if host.lower() not in ("", "localhost"):
        raise UnclearError("is a URL of another machine")
    return slash + path


def _without_query(text: str) -> str:
    return text.partition("#")[0].partition("?")[0] if _is_file_url(text) else text


def _percent_decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise UnclearError("has percent-encoding that is not UTF-8") from None


def _trimmed(text: str) -> str:
    """The path without blanks around each part, which some systems ignore."""
    return "/".join(part.strip() for part in text.split("/"))


_RESPELLINGS: tuple[Callable[[str], str], ...] = (
    normalised,
    _percent_decoded,
    _without_file_url,
    _without_query,
    lambda text: text.replace("\\", "/"),
    os.path.expanduser,
    os.path.expandvars,
    _trimmed,
    # A tool may resolve `..` before links are followed, or after.
    lambda text: text if _is_file_url(text) else os.path.normpath(text),
)


# Tests --------------------------------------------------------------------------------------------


def _by_reading(test: Test) -> Test:
    def holds(value: Any, every: bool) -> bool:
        found = [test(reading, every) for reading in readings(value)]
        return all(found) if every else any(found)

    return holds


_KINDS: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    ("true or false", bool),
    ("a number", (int, float)),
    ("a text", str),
    ("a list", list),
    ("nothing", type(None)),
)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)  # a whole number may be too large for a float


def _kind(value: object) -> str:
    return next((name for name, types in _KINDS if isinstance(value, types)), "a mapping")


def _equals(wanted: Any) -> tuple[str, Test]:
    if not isinstance(wanted, str | int | float):
        raise ValueError(f"expected a text, a number, true or false, got {wanted!r}.")
    return f"equal to {wanted!r}", _one_of([wanted])[1]


def _one_of(wanted: Any) -> tuple[str, Test]:
    if isinstance(wanted, str) or not isinstance(wanted, Sequence) or not wanted:
        raise ValueError(f"expected a list with at least one value, got {wanted!r}.")
    values: Sequence[Any] = wanted  # pyright: ignore[reportUnknownVariableType]
    if wrong := [value for value in values if not isinstance(value, str | int | float)]:
        raise ValueError(f"expected texts, numbers, true or false, got {wrong[0]!r}.")
    by_kind: dict[str, set[Any]] = {}
    for value in values:
        spelled = {canonical(value), normalised(value)} if isinstance(value, str) else {value}
        by_kind.setdefault(_kind(value), set()).update(spelled)

    def test(value: Any, _: bool) -> bool:
        # A tool may read the text '5' as the number 5, so a value of another kind may still be equal.
        if (candidates := by_kind.get(_kind(value))) is None:
            raise UnclearError(f"is {_kind(value)}; expected {' or '.join(by_kind)}")
        return value in candidates

    return f"one of {list(values)!r}", _by_reading(test)


def _matches(pattern: Any) -> tuple[str, Test]:
    if not isinstance(pattern, str):
        raise ValueError(f"expected a regular expression, got {pattern!r}.")
    try:
        anywhere = _regex(pattern)
        whole = _regex(rf"\A(?:{pattern})\z")
    except SchemaError as exc:
        problem = str(exc).strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(
            f"expected a regular expression without look-around and back references, got {pattern!r} ({problem})."
        ) from None

    def test(value: Any, every: bool) -> bool:
        if not isinstance(value, str):
            raise UnclearError(f"is {_kind(value)}; expected a text")
        try:
            (whole if every else anywhere).validate_python(value)
        except ValidationError:
            return False
        return True

    return f"matching {pattern!r}", _by_reading(test)


def _regex(pattern: str) -> TypeAdapter[str]:
    # pydantic uses Rust's engine, which takes linear time for any pattern; Python's own does not.
    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])


def _under(folder: Any) -> tuple[str, Test]:
    expanded = os.path.expanduser(folder) if isinstance(folder, str) else ""
    if not os.path.isabs(expanded) or "\0" in expanded:
        raise ValueError(f"expected the absolute path of a folder, got {folder!r}.")
    lexical = _absolute(expanded)

    def test(value: Any, every: bool) -> bool:
        real, before = locations(value)
        # Resolved each time, because the folder may be created, or become a link, later.
        target = _absolute(os.path.realpath(expanded))
        found = [is_inside(path, target) for path in real]
        if every:
            return all(found)
        return any(found) or any(is_inside(path, lexical) for path in before)

    return f"under {folder!r}", test


def _max_length(limit: Any) -> tuple[str, Test]:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"expected a whole number from 0, got {limit!r}.")

    def test(value: Any, _: bool) -> bool:
        if not isinstance(value, str | list | tuple | Mapping):
            raise UnclearError(f"is {_kind(value)}, which has no length")
        size = len(value)  # pyright: ignore[reportUnknownArgumentType]
        return size <= limit

    return f"no longer than {limit}", test


def _bound(word: str, compare: Callable[[float, float], bool]) -> Callable[[Any], tuple[str, Test]]:
    def make(limit: Any) -> tuple[str, Test]:
        if isinstance(limit, bool) or not isinstance(limit, int | float) or _is_nan(limit):
            raise ValueError(f"expected a number, got {limit!r}.")

        def test(value: Any, _: bool) -> bool:
            if isinstance(value, Enum):
                value = value.value
            if isinstance(value, bool) or not isinstance(value, int | float) or _is_nan(value):
                got = "NaN" if isinstance(value, float) else _kind(value)
                raise UnclearError(f"is {got}; expected a number")
            return compare(value, limit)

        return f"at {word} {limit!r}", test

    return make


_MAKERS: Mapping[str, Callable[[Any], tuple[str, Test]]] = {
    "equals": _equals,
    "one_of": _one_of,
    "matches": _matches,
    "under": _under,
    "max_length": _max_length,
    "at_most": _bound("most", lambda value, limit: value <= limit),
    "at_least": _bound("least", lambda value, limit: value >= limit),
}
