"""Packs: rules as YAML. The place of the shipped ones, and the conversion of a file into objects.

Reading is stricter than YAML: a file must be small and shallow, without alias bombs and duplicate keys, and a
pydantic model rejects unknown keys. Every value remembers its line, and the mistakes in all files of a folder
are reported at once, as one `PackError`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails
from yaml.parser import ParserError
from yaml.scanner import ScannerError

from arbiter.errors import ConfigurationError, PackError, PackMistake, UnknownInstructionError, nearest
from arbiter.instructions import Instruction, find_instruction

Kind = Literal["instructions", "policies", "evaluators"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The size that a file may have: bytes, levels of nesting, and values at any depth."""

    bytes: int = 256 * 1024
    depth: int = 20
    values: int = 20_000


PACK = Bounds()
_ALIASED = 1_000_000
"""The values that aliases may add to those of a text."""
MAX_BITS = 1024
"""The size of a whole number. Python cannot print numbers with thousands of digits."""
_MISREAD = re.compile(r"[-+]?(?:0[0-9_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)")
"""Numbers that YAML 1.1 reads in base 8 (010) or 60 (1:30), and YAML 1.2 does not."""

Place = tuple[str | int, ...]


def pack_folder(kind: Kind) -> Traversable:
    """The packs that ship with Arbiter: the folder installed with it, else that of its checkout."""
    installed = files("arbiter").joinpath("packs").joinpath(kind)
    if installed.is_dir():
        return installed
    checkout = Path(__file__).resolve().parent.parent.parent
    # Without this condition, a broken install would use any folder called "policies" in site-packages.
    if (checkout / "pyproject.toml").is_file() and (checkout / kind).is_dir():
        return checkout / kind
    raise ConfigurationError(
        f"the {kind} packs that ship with Arbiter are missing from this installation. "
        "Install arbiteros again."
    )


@dataclass(frozen=True, slots=True)
class Document:
    """One file as plain data. `lines` maps the place of every value to its line; if the value has a key, to
    the key's line.

    `mistakes` are those that YAML itself accepts. `words` are the texts that YAML reads as true or false although
    they are other words, such as `No`, by their place.
    """

    file: str
    data: Any
    lines: Mapping[Place, int]
    mistakes: Sequence[PackMistake]
    words: Mapping[Place, str]

    def line(self, place: Place) -> int:
        """The line of the value at `place`, or of the nearest value around it."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]

    def mistake(self, place: Place, message: str) -> PackMistake:
        return PackMistake(self.file, self.line(place), path_of(place), message)


class _UnreadableError(Exception):
    """The file cannot be read at all, so it has no further mistakes to report."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        self.message = message


class _Loader(yaml.SafeLoader):
    """Stops at the first level that is too deep; PyYAML itself would continue until the stack overflows."""

    depth = 0

    def __init__(self, text: str, bounds: Bounds) -> None:
        super().__init__(text)
        self.bounds = bounds
        # A text has no more values than characters. Aliases may add as many as are read in a few seconds.
        self.most = min(bounds.values, len(text) + _ALIASED)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > self.bounds.depth:
            # The stubs of yaml leave this method open.
            event = cast(Any, self.peek_event())  # type: ignore[no-untyped-call]
            raise _UnreadableError(int(event.start_mark.line) + 1, _too_deep(self.bounds))
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _too_deep(bounds: Bounds) -> str:
    return f"expected at most {bounds.depth} levels of nesting, got more"


@dataclass(slots=True)
class _Reader:
    file: str
    loader: _Loader
    lines: dict[Place, int] = field(default_factory=dict[Place, int])
    mistakes: list[PackMistake] = field(default_factory=list[PackMistake])
    words: dict[Place, str] = field(default_factory=dict[Place, str])
    values: int = 0

    def read(self, node: yaml.Node, place: Place = ()) -> Any:
        # An alias is the same node again, so its size counts here, where it is expanded.
        self.values += 1
        bounds, most = self.loader.bounds, self.loader.most
        if self.values > most:
            raise _UnreadableError(_line(node), f"expected at most {most} values, got more")
        if len(place) > bounds.depth:
            raise _UnreadableError(_line(node), _too_deep(bounds))
        self.lines.setdefault(place, _line(node))
        if node.tag == "tag:yaml.org,2002:map" and isinstance(node, yaml.MappingNode):
            return self.read_mapping(node, place)
        if node.tag == "tag:yaml.org,2002:seq" and isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*place, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self.read_scalar(node, place)
        return self.mistake(node, place, f"expected plain YAML, got the tag {node.tag!r}")

    def read_mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag != "tag:yaml.org,2002:str" or not isinstance(key, str):
                got = short(key) if isinstance(key, str) else f"a {key_node.id}"
                if key_node.tag == "tag:yaml.org,2002:merge":
                    got = "the merge key '<<'. Write its keys out"
                self.mistake(key_node, place, f"expected a text as key, got {got}")
            elif not _is_text(key):
                self.mistake(key_node, place, f"expected a key in Unicode, got {short(key)}")
            elif key in mapping:
                again = f"expected once, got again after line {self.lines[(*place, key)]}"
                self.mistake(key_node, (*place, key), again)
            else:
                self.lines[(*place, key)] = _line(key_node)
                mapping[key] = self.read(value_node, (*place, key))
        return mapping

    def read_scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        try:
            value: Any = self.loader.construct_object(node)
        except Exception:
            # PyYAML raises more than its own errors: for example for 2024-99-99 or `!!bool maybe`.
            got = short(node.value)
            if node.tag.startswith("!"):
                got = f"the tag {node.tag!r}. Put a text that begins with ! in quotes"
            return self.mistake(node, place, f"expected plain YAML, got {got}")
        if isinstance(value, bool):
            if node.value.lower() not in ("true", "false"):
                self.words[place] = node.value
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            return self.mistake(node, place, f"expected a smaller number, got {short(node.value)}")
        if isinstance(value, int | float) and _MISREAD.fullmatch(node.value):
            got = f"got {short(node.value)}, which YAML reads as {short(value)}"
            return self.mistake(node, place, f"expected a decimal number, or a text in quotes, {got}")
        if isinstance(value, str) and not _is_text(value):
            return self.mistake(node, place, f"expected a text in Unicode, got {short(value)}")
        return value

    def mistake(self, node: yaml.Node, place: Place, message: str) -> None:
        self.mistakes.append(PackMistake(self.file, _line(node), path_of(place), message))


def _is_text(text: str) -> bool:
    """True if the text can be written as UTF-8: half of a surrogate pair cannot."""
    return text.isascii() or text == text.encode(errors="ignore").decode()


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def path_of(place: Iterable[str | int]) -> str:
    """`("checkers", 2, "max_calls")` as `checkers[2].max_calls`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(steps).removeprefix(".")


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_document(file: Traversable, name: str, bounds: Bounds = PACK) -> Document:
    """One file as plain data. Raises `PackError` if it cannot be read at all, or is larger than `bounds`."""
    try:
        return _parse(file, name, bounds)
    except OSError as error:
        raise PackError.at(
            name, 1, f"expected a file that can be read, got {error.strerror or error}"
        ) from None
    except _UnreadableError as error:
        raise PackError.at(name, error.line, error.message) from None


def _read(file: Traversable, most: int) -> bytes:
    """The bytes of a regular file, at most one more than `most`. Any other file, such as a named pipe, could
    block for ever.
    """
    if not isinstance(file, Path):
        with file.open("rb") as stream:
            return stream.read(most + 1)
    number = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for is_kind, name in _NOT_FILES if is_kind(mode)), "something else")
            raise _UnreadableError(1, f"expected a file, got {kind}")
        with open(number, "rb", closefd=False) as stream:
            return stream.read(most + 1)
    finally:
        os.close(number)


_NOT_FILES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def _whole(loader: _Loader) -> yaml.Node | None:
    try:
        return loader.get_single_node()
    except (OverflowError, ValueError):  # an escape such as \U99999999
        message = "expected YAML, got an escape that is not a character"
        raise _UnreadableError(loader.line + 1, message) from None


def _parse(file: Traversable, name: str, bounds: Bounds) -> Document:
    raw = _read(file, bounds.bytes)
    if len(raw) > bounds.bytes:
        raise _UnreadableError(1, f"expected at most {bounds.bytes} bytes, got more")
    try:
        loader = _Loader(raw.decode("utf-8-sig"), bounds)
        root = _whole(loader)
    except UnicodeDecodeError as error:
        raise _UnreadableError(raw.count(b"\n", 0, error.start) + 1, "expected UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = ", ".join(filter(None, (error.context, error.problem)))
        is_form = isinstance(error, ScannerError | ParserError)
        remedy = ". Check the indentation (no tabs), brackets and quotes" if is_form else ""
        raise _UnreadableError(line, f"expected YAML; {problem}{remedy}") from None
    except yaml.YAMLError:  # a character that YAML does not allow; PyYAML reports no line
        raise _UnreadableError(1, "expected YAML, got a file with control characters") from None
    if root is None:
        raise _UnreadableError(1, "expected a mapping, got an empty file")
    reader = _Reader(name, loader)
    return Document(name, reader.read(root), reader.lines, reader.mistakes, reader.words)


class PackModel(BaseModel):
    """The base of all models of packs: unknown keys are mistakes, and `"3"` is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _instruction(value: object) -> Instruction:
    try:
        return find_instruction(value)
    except UnknownInstructionError as error:
        raise ValueError(str(error)) from None


Text = Annotated[str, Field(min_length=1)]
INSTRUCTION = {"$comment": "instruction"}
"""Stands in a JSON Schema for the instructions, which `json_schema` defines once."""
InstructionText = Annotated[Instruction, PlainValidator(_instruction), WithJsonSchema(INSTRUCTION)]
_Model = TypeVar("_Model", bound=PackModel)
_T = TypeVar("_T")

# pydantic's own words for these are Python terms, or twice as long.
_EXPECTED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "too_short": "at least one",
    "string_too_short": "a text that is not empty",
}


def pack_files(folder: Traversable) -> list[Traversable]:
    """The pack files of a folder, by name."""
    found = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [f for f in found if f.name.lower().endswith((".yaml", ".yml")) and not f.name.startswith(".")]


def load_packs(
    folder: Traversable, model: type[_Model], convert: Callable[[Document, _Model], _T]
) -> tuple[_T, ...]:
    """Each `.yaml` file of `folder`, by name, validated as `model` and converted by `convert`.

    `convert` reports mistakes as a `PackError` too. Raises one `PackError` with the mistakes of all files.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"expected a folder of packs, got {str(folder)!r}.")
    packs: list[_T] = []
    mistakes: list[PackMistake] = []
    for file in pack_files(folder):
        try:
            document = read_document(file, f"{folder.name}/{file.name}".removeprefix("/"))
            packs.append(convert(document, validate(document, model)))
        except PackError as error:
            mistakes.extend(error.mistakes)
    if mistakes:
        raise PackError(mistakes)
    return tuple(packs)


def validate(document: Document, model: type[_Model]) -> _Model:
    """A document as that model. Raises a `PackError` with all mistakes."""
    mistakes = list(document.mistakes)
    # An unreadable value is None by now, and its mistake is reported already.
    reported = {mistake.path for mistake in mistakes}
    try:
        pack = model.model_validate(document.data)
    except ValidationError as error:
        for place, message in explain(model, document.data, error):
            mistake = document.mistake(place, message)
            if mistake.path not in reported:
                mistakes.append(mistake)
    else:
        if not mistakes:
            return pack
    raise PackError(sorted(mistakes, key=lambda mistake: mistake.line))


def explain(
    model: type[PackModel], data: Any, error: ValidationError, also: Iterable[str] = ()
) -> Iterator[tuple[Place, str]]:
    """The mistakes in `data`, by place, one sentence each. `also` are keys that other code reads."""
    alternatives: dict[Place, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        alternatives.setdefault(_place_in(data, details), []).append(details)
    for place, found in alternatives.items():
        tried = len(found) > 1 or len(place) < len(found[0]["loc"])
        if tried and _is_choice(place, alternatives):
            continue  # the mistake inside the alternative that was meant is reported instead
        if len(found) == 1:
            yield place, _message(model, found[0], also)
        else:
            expected = dict.fromkeys(_expected(details) for details in found)
            yield place, f"expected {' or '.join(expected)}, got {short(found[0]['input'])}"


def _place_in(data: Any, details: ErrorDetails) -> Place:
    """The place of the mistake. pydantic's own path also names the member of a union, which is not a place."""
    place: list[str | int] = []
    found = data
    *before, last = details["loc"] or ("",)
    for step in before:
        if (isinstance(found, dict) and step in found) or (isinstance(found, list) and isinstance(step, int)):
            found = cast(Any, found)[step]
            place.append(step)
    inside = (isinstance(found, dict) and last in found) or (
        isinstance(found, list) and isinstance(last, int)
    )
    if details["loc"] and (inside or details["type"] in ("missing", "extra_forbidden")):
        place.append(last)
    return tuple(place)


def _is_choice(place: Place, places: Iterable[Place]) -> bool:
    return any(len(other) > len(place) and other[: len(place)] == place for other in places)


def _expected(details: ErrorDetails) -> str:
    limits = details.get("ctx", {})
    if details["type"] == "too_long":
        return f"at most {limits['max_length']}"
    if details["type"] == "too_short" and limits["min_length"] > 1:
        return f"at least {limits['min_length']}"
    return _EXPECTED.get(details["type"]) or details["msg"].removeprefix("Input should be ")


def _message(model: type[PackModel], details: ErrorDetails, also: Iterable[str] = ()) -> str:
    kind, place, got = details["type"], details["loc"], details["input"]
    if kind == "missing":
        return "expected a value, got nothing"
    if kind == "extra_forbidden":
        keys = sorted({*_keys_at(model, place[:-1]), *(also if len(place) == 1 else ())})
        hint = nearest(str(place[-1]), keys)
        return f"expected one of {', '.join(keys)}, got {str(place[-1])!r}.{hint}"
    if kind == "value_error":
        return details["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        pattern = details.get("ctx", {}).get("pattern")
        return f"expected a text like {pattern}, got {short(got)}"
    remedy = _REMEDIES[kind](got) if kind in _REMEDIES else ""
    return f"expected {_expected(details)}, got {short(got)}{remedy}"


def quotes(got: object) -> str:
    """The remedy for a text such as `off` or `2024-01-01`, which YAML reads as a bool or a date; "" for any other
    value.
    """
    what = "on, off, yes and no" if isinstance(got, bool) else "dates" if isinstance(got, date) else ""
    return what and f". YAML reads {what} so unless they are in quotes"


def _as_list(got: object) -> str:
    """How to write a value that should have been a list, or ""."""
    match got:
        case None:
            return ". Write [] for none"
        case str():
            return f". Write [{got}]" if len(got) < 60 else ""
        case dict():
            return ". Begin each entry with '- '"
        case _:
            return ""


def _as_number(got: object, *, whole: bool = False) -> str:
    """How to write a number that is in quotes, or that YAML reads as a text (`1,000`, `1e3`), or ""."""
    found = _NUMBER.fullmatch(got) if isinstance(got, str) else None
    if found is None or (whole and (found["part"] or found["power"])):
        return ""
    text = found["whole"].replace(",", "") + (found["part"] or ".0" * bool(found["power"]))
    return f". Write {text}" + (f"e{found['sign'] or '+'}{found['power']}" if found["power"] else "")


_NUMBER = re.compile(
    r"(?P<whole>-?([1-9]\d{0,2}(,\d{3})+|[1-9]\d*|0))(?P<part>\.\d+)?([eE](?P<sign>[+-]?)(?P<power>\d+))?",
    re.ASCII,
)
_REMEDIES: dict[str, Callable[[object], str]] = {
    "literal_error": quotes,
    "string_type": quotes,
    "list_type": _as_list,
    "int_type": partial(_as_number, whole=True),
    "float_type": _as_number,
}


def _keys_at(model: type[PackModel], place: Sequence[str | int]) -> Iterable[str]:
    """The keys of the value at a place, which may also name members of unions on the way."""
    kinds: list[Any] = [model]
    for step in place:
        if len(kinds) > 1:  # pydantic names the one that it tried
            kinds = [kind for kind in kinds if str(step).startswith(kind.__name__)] or kinds
        else:
            kinds = [part for kind in kinds for part in _alternatives(_inside(kind, step))]
    return [key for kind in kinds for found in _models_in(kind) for key in _members(found)]


def _members(kind: Any) -> Iterable[str]:
    """The names of the fields of a model, as files have them, or of a dataclass; none for other types."""
    found: Any = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {})
    return [getattr(field, "alias", None) or name for name, field in found.items()]


def _inside(kind: Any, step: str | int) -> Any:
    members: Any = getattr(kind, "model_fields", None)
    if members is not None:
        return members[step].annotation if step in members else Any
    return get_args(kind)[-1] if get_args(kind) else Any


def _alternatives(kind: Any) -> list[Any]:
    """The members of a union, without None and annotations; for any other type, the type itself."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _alternatives(get_args(kind)[0])
    if origin in (Union, UnionType):
        return [found for part in get_args(kind) for found in _alternatives(part) if found is not type(None)]
    return [kind]


def _models_in(kind: Any) -> list[Any]:
    if _members(kind):
        return [kind]
    return [found for part in get_args(kind) for found in _models_in(part)]
