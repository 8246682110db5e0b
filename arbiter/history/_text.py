"""The format of a printed history: superstep boxes, one block per item, inputs and outputs as YAML.

All content of a history may come from a model, so this module is one mechanism with three promises.

Bounded: a value is folded before it is formatted. Only the part of a long string, list or mapping that is
printed is ever read, and `repr` is never called on a value that could be large.

Safe: characters that a terminal would act on, hide or cannot show are printed as escapes. No text passes
through rich's markup. Content never starts at column 0, which is reserved for the boxes.

Readable: 80 columns, with or without colour, in plain ASCII for terminals that lack `╔` or `✓`. Comments (`#
… (+1,234 chars)`), tags (`!Person`) and angle brackets outside quotes (`<cycle>`) are always written by this
module; text that looks the same is quoted. Values that were not folded are valid YAML, except for a text
block with a line too long for the page: the rest of that line is indented further.

Importing this module imports rich, so `History` imports it only when it prints.
"""

from __future__ import annotations

import gc
import math
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import Any, Protocol, cast

from langchain_core.messages import BaseMessage
from pydantic import BaseModel
from rich.cells import cell_len, set_cell_size

from arbiter.verdicts import EvaluationResult, EvaluatorTrace, Verdict

VALUE_LINES = 40  # of one input or output
PROSE_LINES = 12  # of one reason, feedback or error
CHARS = 500  # of a string that is a field of the state itself
_NESTED_CHARS = 200  # of a string further inside
_CELLS = 1000  # of one of these: escapes are wider than what they stand for
_KEYS = 20  # of one mapping
_HEAD, _TAIL = 7, 3  # of one sequence: the first and the last
_DEPTH = 8  # of containers in containers
SHOWN_BY_ITS_RESULT = ("ran", "failed", "timeout")
_SORTED = 200  # a larger set is shown in its own order
_MARKS = 4  # on one letter: enough to write any language, too few to paint over other lines
NARROWEST = 40  # below this, lines are laid out for 40 columns and the terminal's side cuts them


HEADING, KEY, NOTE = "bold", "cyan", "dim"
GOOD, BAD, UNSURE = "green", "red", "yellow"

Line = tuple[tuple[str, str], ...]  # spans of (text, style); a line has no line end
_Atoms = list[str]  # a line is never broken inside of one: a character or its escape


class Item(Protocol):
    """The attributes of a `HistoryItem` that are printed. A protocol, because the history imports this module
    to print.
    """

    @property
    def node(self) -> str: ...

    @property
    def instruction(self) -> object: ...

    @property
    def namespace(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def status(self) -> str: ...

    @property
    def input_state(self) -> Any: ...

    @property
    def output_state(self) -> Any: ...

    @property
    def duration(self) -> float: ...

    @property
    def check_policy_results(self) -> Mapping[str, Verdict]: ...

    @property
    def route_policy_results(self) -> Mapping[str, str | None]: ...

    @property
    def redirected_to(self) -> str | None: ...

    @property
    def evaluation_results(self) -> Mapping[str, EvaluationResult]: ...

    @property
    def evaluation_errors(self) -> Mapping[str, str]: ...

    @property
    def evaluator_trace(self) -> Sequence[EvaluatorTrace]: ...

    @property
    def corrections(self) -> Sequence[str]: ...

    @property
    def error(self) -> str | None: ...

    @property
    def errors(self) -> Mapping[str, str]: ...

    @property
    def notes(self) -> Mapping[str, str]: ...


class History(Protocol):
    """The attributes of a `History` that are printed."""

    @property
    def entries(self) -> Sequence[Sequence[Item]]: ...


# --- Characters: which can be shown, and where a line may be broken ---

# Printable by category and yet invisible: a place to hide text from the human reader.
# U+FE0F stays, since it is part of many an emoji and can carry nothing by itself.
_HIDDEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
_WRITTEN_SPACES = {0xA0: " ", 0x202F: " ", 0x3000: " "}  # French and Japanese prose has them
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Ink:
    """The characters that one output can show, and escapes for the others."""

    __slots__ = ("_encoding", "cross", "dot", "ellipsis", "plain", "route", "tick")

    def __init__(self, encoding: str, *, plain: bool = False) -> None:
        self._encoding = "" if encoding.lower().startswith("utf") else encoding
        self.plain = plain or not self._encodes("╔═╗✓✗→…·─")
        self.tick, self.cross, self.route, self.ellipsis, self.dot = (
            ("ok", "x", "->", "...", "-") if self.plain else ("✓", "✗", "→", "…", "·")
        )

    def box(self, title: str) -> str:
        return f"+=== {title} ===+" if self.plain else f"╔═══ {title} ═══╗"

    def shows(self, text: str) -> bool:
        """True if all of `text` can be printed unchanged on one line."""
        if text.isascii():
            return text.isprintable()
        return (
            text.translate(_WRITTEN_SPACES).isprintable() and not _HIDDEN.search(text) and self._encodes(text)
        )

    def atoms(self, text: str, escaped: str = "") -> _Atoms:
        """The atoms of `text`. Characters that cannot be shown become escapes; those in `escaped` get a
        backslash.
        """
        atoms: _Atoms = []
        for character in text:
            if character in escaped:
                atoms.append("\\" + character)
            elif not self.shows(character):
                atoms.append(_escape(character))
            elif not _is_mark(character):
                atoms.append(character)
            elif atoms and len(atoms[-1]) <= _MARKS and atoms[-1][0] not in " \\":
                atoms[-1] += character
            else:
                atoms.append(_escape(character))
        return atoms

    def line(self, text: str, cells: int) -> str:
        """`text` on one line of at most `cells` columns."""
        atoms = self.atoms(text[: cells + 1])
        if _width(atoms) <= cells and len(text) <= cells:
            return "".join(atoms)
        return "".join(atoms[: _fitting(atoms, cells - len(self.ellipsis))]) + self.ellipsis

    def _encodes(self, text: str) -> bool:
        try:
            text.encode(self._encoding or "utf-8")
        except (UnicodeEncodeError, LookupError):
            return False
        return True


def _escape(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_mark(character: str) -> bool:
    """True if it is drawn onto the character before it."""
    return not character.isascii() and unicodedata.category(character).startswith("M")


def _cells(atom: str) -> int:
    # U+FE0F may turn a narrow character into a wide one: which ones, terminals do not agree on.
    return cell_len(atom.replace("\ufe0f", "")) + ("\ufe0f" in atom)


def _width(atoms: Iterable[str]) -> int:
    return sum(map(_cells, atoms))


def _fitting(atoms: _Atoms, cells: int) -> int:
    """The number of leading `atoms` that fit into `cells` columns."""
    for count, atom in enumerate(atoms):
        cells -= _cells(atom)
        if cells < 0:
            return count
    return len(atoms)


def wrap(atoms: _Atoms, first: int, room: int, mark: str = "") -> list[str]:
    """Break `atoms` into lines: the first of at most `first` cells, the others of at most `room`.

    A line is broken at a single space, which is dropped. A line without one is broken anywhere and then ends
    in `mark`.
    """
    lines: list[str] = []
    cells = first
    while (count := _fitting(atoms, cells - len(mark))) < len(atoms):
        count = max(count, 1)
        if space := next((at for at in range(count, 0, -1) if _breaks(atoms, at)), 0):
            lines.append("".join(atoms[:space]))
            atoms = atoms[space + 1 :]
        else:
            lines.append("".join(atoms[:count]) + mark)
            atoms = _kept(atoms[count:]) if mark else atoms[count:]
        cells = room
    lines.append("".join(atoms))
    return lines


def _breaks(atoms: _Atoms, at: int) -> bool:
    return atoms[at] == " " and atoms[at - 1] != " " and atoms[at + 1 : at + 2] not in ([" "], [])


def _kept(atoms: _Atoms) -> _Atoms:
    """`atoms`, with an escape if they start with a space."""
    return ["\\ ", *atoms[1:]] if atoms[:1] == [" "] else atoms


# --- Values: each becomes one of three bounded shapes ---


@dataclass(frozen=True, slots=True)
class _Bare:
    """Text that this module wrote, printed unchanged: a number, a time, a placeholder."""

    text: str


@dataclass(frozen=True, slots=True)
class _Words:
    """The start of a string, and the number of characters that are left out."""

    text: str
    dropped: int = 0
    unit: str = "chars"
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Branch:
    """Some children of a container; `dropped` more were left out before the child number `gap`."""

    children: Sequence[tuple[Any, Any]]  # (key, value); the key of a sequence's child is not used
    keyed: bool
    tag: str = ""
    dropped: int = 0
    gap: int = 0


_Shape = _Bare | _Words | Branch


def shaped(value: Any, chars: int = CHARS) -> _Shape:
    """The printed shape of `value`. Never raises; a large value takes no longer than a small one."""
    try:
        return next(make(value, chars) for kinds, make in _SHAPES if isinstance(value, kinds))
    except Exception as error:
        return _Bare(f"<{type_name(value)}: cannot be shown, {type_name(error)}>")


def _text(value: str, chars: int, tag: str = "") -> _Words:
    # `str.` because a subclass may answer differently.
    return _Words(str.__getitem__(value, slice(chars)), max(0, str.__len__(value) - chars), tag=tag)


def _whole(value: int, chars: int) -> _Shape:
    bits = int.bit_length(value)
    if bits > 128:  # Python needs quadratic time for the digits, and from some length on refuses.
        return _Bare(f"<{type_name(value)} of about {round(bits * math.log10(2)):,} digits>")
    return _Bare(int.__repr__(value))


def _real(value: float, chars: int) -> _Shape:
    if not math.isfinite(value):
        return _Bare(".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf")
    text = float.__repr__(value)
    return _Bare(text if "." in text else text.replace("e", ".0e"))  # YAML's floats have a point


def _bytes(value: Any, chars: int) -> _Shape:
    octets = memoryview(value).cast("B")
    start = octets[:chars].tobytes().decode("latin-1")
    return _Words(start, max(0, octets.nbytes - chars), "bytes", f"!{type_name(value)}")


def _member(value: Any, chars: int) -> _Shape:
    # A combination of flags may have no name.
    name = f"{value.value}" if value.name is None else value.name
    return _text(name, chars, f"!{type_name(value)}")


def _moment(value: Any, chars: int) -> _Shape:
    kind = next(kind for kind in _MOMENTS if isinstance(value, kind))
    return _Bare(kind.isoformat(value))  # a subclass might put anything into its own


def _dict(value: dict[Any, Any], chars: int) -> _Shape:
    # Past the methods of a subclass: a read-only view copies each value that it hands out.
    kind: Any = dict
    return _fields(kind.items(value), kind.__len__(value), "")


def _mapping(value: Mapping[Any, Any], chars: int) -> _Shape:
    return _fields(value.items(), len(value), "")


def _fields(pairs: Iterable[tuple[Any, Any]], size: int, tag: str) -> Branch:
    children = [(key, child) for key, child in islice(pairs, _KEYS)]
    return Branch(children, True, tag, max(0, size - len(children)), len(children))


def _sequence(value: Any, chars: int) -> _Shape:
    kind = next(kind for kind in _LISTS if isinstance(value, kind))
    size, parts, at = kind.__len__(value), kind.__iter__(value), kind.__getitem__  # as for dict
    if kind is tuple and (names := getattr(_type(value), "_fields", None)):  # a named tuple
        return _fields(zip(names, parts, strict=False), size, f"!{type_name(value)}")
    if size <= _HEAD + _TAIL:
        return Branch([(None, child) for child in islice(parts, size)], False)
    shown = chain(islice(parts, _HEAD), (at(value, place) for place in range(-_TAIL, 0)))
    return Branch([(None, child) for child in shown], False, "", size - _HEAD - _TAIL, _HEAD)


def _set(value: AbstractSet[Any], chars: int) -> _Shape:
    members: Iterable[Any] = value
    if len(value) <= _SORTED:
        try:
            members = sorted(value)
        except Exception:  # not comparable: in the order they come
            members = value
    shown = [(None, member) for member in islice(members, _HEAD + _TAIL)]
    dropped = max(0, len(value) - len(shown))
    return Branch(shown, False, f"!{type_name(value)}", dropped, len(shown))


def _message(value: BaseMessage, chars: int) -> _Shape:
    """`role: content`, then the other fields of a message."""
    role = getattr(value, "role", None) or value.type.removesuffix("MessageChunk").lower()
    shown: list[tuple[Any, Any]] = [(role, value.id if role == "remove" else value.content)]
    if value.name:
        shown.append(("name", value.name))
    if getattr(value, "status", "success") != "success":
        shown.append(("status", getattr(value, "status", None)))
    for field, detail in (("tool_calls", "args"), ("invalid_tool_calls", "error")):
        calls: list[Any] = getattr(value, field, None) or []
        if calls:
            children = [(None, {call.get("name"): call.get(detail)}) for call in calls[: _HEAD + _TAIL]]
            dropped = len(calls) - len(children)
            shown.append((field, Branch(children, False, "", dropped, len(children))))
    return Branch(shown, True)


def _model(value: BaseModel, chars: int) -> _Shape:
    # `__dict__` and not `model_dump`, which converts all of it. `repr=False` hides a field.
    hidden = {name for name, info in type(value).model_fields.items() if not info.repr}
    extra = value.__pydantic_extra__ or {}
    pairs = (
        (name, child) for name, child in chain(value.__dict__.items(), extra.items()) if name not in hidden
    )
    size = len(value.__dict__) + len(extra) - len(hidden & value.__dict__.keys())
    return _fields(pairs, size, f"!{type_name(value)}")


def _other(value: Any, chars: int) -> _Shape:
    if is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in fields(value) if f.repr and hasattr(value, f.name)]
        pairs = ((name, getattr(value, name)) for name in shown)
        return _fields(pairs, len(shown), f"!{type_name(value)}")
    return _described(value, chars)


def _described(value: Any, chars: int) -> _Bare | _Words:
    """The value's `repr`, if its class defines one and the result is sure to be short; else its class name."""
    name = type_name(value)
    if _type(value).__repr__ is object.__repr__:
        return _Bare(f"<{name} object>")
    if not _is_small(value):
        size = f" of {len(value):,} items" if isinstance(value, Sized) else ""
        return _Bare(f"<{name} object{size}>")
    return _text(_ADDRESS.sub("", repr(value)), chars, f"!{name}")


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_UNOPENED = (type, ModuleType, FunctionType)  # their `repr` is a name, and they lead to everything


def _is_small(value: Any) -> bool:
    """True if the objects that `value` refers to are few and small, and so is any usual `repr` of it."""
    left, waiting, seen = 2000, [value], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, _UNOPENED):
            continue
        seen.add(id(part))
        if isinstance(part, int):
            left -= int.bit_length(part) // 8
        elif isinstance(part, Sized):
            left -= len(part)
        left -= 1
        if left < 0:
            return False
        waiting.extend(gc.get_referents(part))
    return True


def _type(value: object) -> Any:
    return type(value)


def type_name(value: object) -> str:
    try:
        return re.sub(r"[^A-Za-z0-9_.]", "_", type(value).__name__)[:24]
    except Exception:  # a metaclass may answer anything
        return "object"


_LISTS: tuple[Any, ...] = (list, tuple, deque)
_MOMENTS: tuple[Any, ...] = (datetime, date, time)

# The first kind that matches wins: an enum may also be a string, and a model a mapping.
_SHAPES: tuple[tuple[type | tuple[type, ...], Callable[[Any, int], _Shape]], ...] = (
    (type(None), lambda value, _: _Bare("null")),
    (Enum, _member),
    (str, _text),
    (bool, lambda value, _: _Bare("true" if value else "false")),
    (int, _whole),
    (float, _real),
    ((bytes, bytearray, memoryview), _bytes),
    (_MOMENTS, _moment),
    (Branch, lambda value, _: value),
    (BaseMessage, _message),
    (BaseModel, _model),
    (dict, _dict),
    (Mapping, _mapping),
    (_LISTS, _sequence),
    (AbstractSet, _set),
    (object, _other),
)


# --- YAML: the shapes as lines ---

# No colon, hash or quote, and single spaces: every YAML reader takes such text for a string.
_PLAIN = re.compile(r"[^\W\d_][\w.,;!?()/+*%=@$'’_-]*( [\w.,;!?()/+*%=@$'’_-]+)*")
_RESERVED = frozenset({"null", "true", "false", "yes", "no", "on", "off"})


class Yaml:
    """Values as lines of YAML. `lead` is the start of a value's first line, for example ` key:`."""

    __slots__ = ("_ink", "_page_width")

    def __init__(self, ink: Ink, width: int) -> None:
        self._ink = ink
        self._page_width = width

    def lines(self, value: Any, lead: str, indent: int, path: tuple[int, ...] = ()) -> Iterator[Line]:
        """The lines of one value, lazily: parts that are not printed are not read. `path` has the ids of the
        containers around.
        """
        if id(value) in path:
            yield from self._flow([list("<cycle>")], lead, indent)
            return
        shape = shaped(value, CHARS if len(path) < 2 else _NESTED_CHARS)
        match shape:
            case _Bare():
                yield from self._flow([list(shape.text)], lead, indent)
            case _Words():
                yield from self._words(shape, lead, indent)
            case Branch():
                yield from self._branch(shape, lead, indent, (*path, id(value)))

    def fields(self, state: Any, column: int) -> Iterator[Iterator[Line]]:
        """The lines of each field of a state; none if it is empty."""
        match shaped(state):
            case Branch([], _, _, _, _) | _Bare("null"):
                pass
            case Branch(_, _, "", _, _) as shape:
                yield from self._children(shape, " " * column, column, (id(state),))
            case _:
                yield self.lines(state, " " * column, column)

    def note(self, text: str, column: int) -> Line:
        return ((" " * column, ""), (f"# {self._ink.ellipsis} ({text})", NOTE))

    def _branch(self, shape: Branch, lead: str, indent: int, path: tuple[int, ...]) -> Iterator[Line]:
        if not shape.children or len(path) > _DEPTH:
            yield from self._closed(shape, lead, indent)
            return
        if row := self._row(shape, lead):
            yield row
            return
        inner = indent + 2 if lead.strip() else indent
        if lead.endswith("-") and not shape.tag:
            start = f"{lead} "  # `- key: value`
        else:
            start = " " * inner
            if head := _after(lead, shape.tag).rstrip():
                yield ((head, KEY),)
        yield from chain.from_iterable(self._children(shape, start, inner, path))

    def _children(
        self, shape: Branch, start: str, column: int, path: tuple[int, ...]
    ) -> Iterator[Iterator[Line]]:
        fold = self.note(f"+{shape.dropped:,} {'keys' if shape.keyed else 'items'}", column)
        for number, (key, child) in enumerate(shape.children):
            if shape.dropped and number == shape.gap:
                yield iter([fold])
            mark = f"{self._key(key, column)}:" if shape.keyed else "-"
            yield self.lines(child, start + mark, column, path)
            start = " " * column
        if shape.dropped and shape.gap == len(shape.children):
            yield iter([fold])

    def _closed(self, shape: Branch, lead: str, indent: int) -> Iterator[Line]:
        """An empty container, or one that is nested too deep to be opened."""
        size = len(shape.children) + shape.dropped
        inside = self._ink.ellipsis if size else ""
        text = f"{{{inside}}}" if shape.keyed else f"[{inside}]"
        note = f"{size:,} {'keys' if shape.keyed else 'items'}, too deep" if size else ""
        yield from self._flow([list(text)], _after(lead, shape.tag), indent, note)

    def _row(self, shape: Branch, lead: str) -> Line | None:
        """A short list of short things on one line: `[1, 2, 3]`."""
        if shape.keyed or shape.dropped:
            return None
        texts: list[str] = []
        for _, child in shape.children:
            match shaped(child, self._page_width):
                case _Bare(text):
                    texts.append(text)
                case _Words(text, 0, _, "") if self._is_plain(text) and not set(",?") & set(text):
                    texts.append(text)
                case _:
                    return None
        start, row = _after(lead, shape.tag), f"[{', '.join(texts)}]"
        fits = cell_len(start) + cell_len(row) <= self._page_width
        return ((start, KEY), (row, "")) if fits else None

    def _key(self, key: Any, column: int) -> str:
        room = max(8, min(40, self._page_width - column - 30))  # leaves room for a tag
        shape = shaped(key, room)
        if isinstance(shape, Branch):
            try:
                shape = _described(key, room)
            except Exception as error:  # one of its parts cannot be converted to text
                shape = _Bare(f"<{type_name(key)}: cannot be shown, {type_name(error)}>")
        if isinstance(shape, _Bare):
            return shape.text[:room]
        tag = f"{shape.tag} " if shape.tag else ""
        room -= len(tag)
        if self._is_plain(shape.text) and not shape.dropped and len(shape.text) <= room:
            return tag + shape.text
        atoms = self._ink.atoms(shape.text, '"\\')
        if shape.dropped or _width(atoms) > room:
            atoms = [*atoms[: _fitting(atoms, room - len(self._ink.ellipsis))], self._ink.ellipsis]
        return f'{tag}"{"".join(atoms)}"'

    def _words(self, shape: _Words, lead: str, indent: int) -> Iterator[Line]:
        text, dropped = shape.text, shape.dropped
        while _width(self._ink.atoms(text)) > _CELLS:
            dropped += len(text) - len(text) // 2
            text = text[: len(text) // 2]
        note = f"+{dropped:,} {shape.unit}" if dropped else ""
        lead = _after(lead, shape.tag)
        room = self._page_width - indent - 2
        if self._is_plain(text) and all(cell_len(word) <= room for word in text.split(" ")):
            yield from self._flow([self._ink.atoms(text)], lead, indent, note)
        elif self._is_block(text):
            yield from self._block(text, lead, indent, note)
        else:
            yield from self._flow(self._quoted(text), lead, indent, note, mark="\\")

    def _is_plain(self, text: str) -> bool:
        return _PLAIN.fullmatch(text) is not None and text.lower() not in _RESERVED and self._ink.shows(text)

    def _is_block(self, text: str) -> bool:
        body = text.removesuffix("\n")
        return (
            "\n" in text
            and body.strip(" \n") != ""
            and not body.endswith("\n")
            and not body.lstrip("\n").startswith(" ")
            and all("".join(self._ink.atoms(line)) == line for line in body.split("\n"))
        )

    def _quoted(self, text: str) -> list[_Atoms]:
        """One list of atoms for each line of `text`."""
        lines = [self._ink.atoms(line, '"\\') for line in text.split("\n")]
        for line in lines[:-1]:
            line.append("\\n")
        if len(lines) > 1 and not lines[-1]:
            del lines[-1]
        lines[0].insert(0, '"')
        lines[-1].append('"')
        return lines

    def _block(self, text: str, lead: str, indent: int, note: str) -> Iterator[Line]:
        yield ((_after(lead, "|" if text.endswith("\n") else "|-").rstrip(), KEY),)
        room = self._page_width - indent - 2
        for line in text.removesuffix("\n").split("\n"):
            for number, part in enumerate(wrap(self._ink.atoms(line), room, room - 2)):
                column = indent + (4 if number else 2)
                yield ((" " * column + part if part else "", ""),)
        if note:
            yield self.note(note, indent)

    def _flow(
        self, parts: list[_Atoms], lead: str, indent: int, note: str = "", mark: str = ""
    ) -> Iterator[Line]:
        """A scalar: on the line of `lead` if it fits, else on several lines."""
        start, further = _after(lead, ""), " " * (indent + 2)
        first, room = self._page_width - cell_len(start), self._page_width - indent - 2
        lines = ["".join(chain(*parts))]
        if sum(map(_width, parts)) > first:
            if first < 24:
                yield ((start.rstrip(), KEY),)
                start, first = further, room
            lines.clear()
            for part in parts:
                # YAML skips spaces at the start of a further line of a quoted scalar.
                atoms = _kept(part) if mark and lines else part
                broken = wrap(atoms, room if lines else first, room, mark)
                lines += [*broken[:-1], broken[-1] + ("" if part is parts[-1] else mark)]
        shown: list[Line] = [((start, KEY), (lines[0], ""))]
        shown += [((further, ""), (line, "")) for line in lines[1:]]
        if note:
            last, comment = shown[-1], self.note(note, indent + 2)
            if sum(cell_len(text) for text, _ in (*last, comment[1])) < self._page_width:
                shown[-1] = (*last, (" ", ""), comment[1])
            else:
                shown.append(comment)
        yield from shown


def _after(lead: str, tag: str) -> str:
    """`lead`, a space unless it is blank, and the tag of the value."""
    start = f"{lead} " if lead.strip() and not lead.endswith(" ") else lead
    return f"{start}{tag} " if tag else start


def cropped(line: Line, cells: int) -> Line:
    """`line` cut to `cells` columns. On narrow pages, deeply nested keys and tags can be longer."""
    if sum(cell_len(text) for text, _ in line) <= cells:
        return line
    spans: list[tuple[str, str]] = []
    for text, style in line:
        spans.append((set_cell_size(text, min(cells, cell_len(text))), style))
        cells -= cell_len(spans[-1][0])
    return tuple(spans)


PASSED = frozenset({"passed", "passed_after_retry", "corrected"})


def scores_of(gating: Mapping[str, Any]) -> Iterator[str]:
    """The scores in a gate's details, as text, if the details have the shape that Arbiter's own gate writes."""
    checks: Any = gating.get("dimension_scores")
    for name in checks if isinstance(checks, dict) else ():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(checks[name], dict):
            continue
        check = cast("dict[str, Any]", checks[name])
        score, threshold = check.get("score"), check.get("threshold")
        if not isinstance(score, int | float):
            yield f"{name} {check.get('status')}"
        elif isinstance(threshold, int | float) and score < threshold:
            yield f"{name} {score:.4g} of {threshold:g}"
        else:
            yield f"{name} {score:.4g}"
    if isinstance(similarity := gating.get("similarity_score"), int | float):
        yield f"similarity {similarity:.2f}"
    attempts: Any = gating.get("attempts")
    if isinstance(attempts, Sized) and len(attempts) > 1:
        yield f"attempt {gating.get('attempt_number')} of {len(attempts)}"


# --- The page: boxes, items and their sections ---
