"""How a history is printed: superstep boxes, one block an item, inputs and outputs as YAML.

Everything in a history may come from a model, so this module is one mechanism with three promises.

Bounded: a value is folded before it is formatted. Of a long string, list or mapping only the part
that is shown is ever touched, and `repr` is called on nothing that could be large.

Safe: characters that a terminal would act on, hide or cannot show are printed as escapes. Nothing
passes through rich's markup. Content never starts at column 0, where only the boxes are.

Readable: 80 columns, with or without colour, in plain ASCII for terminals that lack `╔` or `✓`.
What is a comment (`# … (+1,234 chars)`), a tag (`!Person`) or in angle brackets outside quotes
(`<cycle>`) was written here; text that looks the same is quoted. Values that were not folded are
valid YAML, except for a text block with a line too long for the page: its rest is indented further.

Importing this module imports rich, so `History` imports it where it prints.
"""

from __future__ import annotations

import gc
import io
import math
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from functools import lru_cache
from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import BaseMessage
from pydantic import BaseModel
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style

from arbiter.verdicts import OTHER_TARGETS

if TYPE_CHECKING:
    from arbiter.history import History, HistoryItem

_VALUE_LINES = 40  # of one input or output
_PROSE_LINES = 12  # of one reason, feedback or error
_CHARS = 500  # of a string that is a field of the state itself
_NESTED_CHARS = 200  # of a string further inside
_CELLS = 1000  # of one of these: escapes are wider than what they stand for
_KEYS = 20  # of one mapping
_HEAD, _TAIL = 7, 3  # of one sequence: the first and the last
_DEPTH = 8  # of containers in containers
_SHOWN_BY_ITS_RESULT = ("ran", "failed", "timeout")
_SECTION_LINES = 100  # of all checks, or all evaluations, of one item
_SORTED = 200  # a larger set is shown in its own order
_MARKS = 4  # on one letter: enough to write any language, too few to paint over other lines
_HTML_WIDTH = 100
_NARROWEST = 40  # below this, lines are laid out for 40 columns and the terminal's side cuts them

_HTML = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:normal;'
    "font-family:Menlo,'DejaVu Sans Mono',consolas,'Courier New',monospace\">{code}</pre>\n"
)

_HEADING, _KEY, _NOTE = "bold", "cyan", "dim"
_GOOD, _BAD, _UNSURE = "green", "red", "yellow"
_STATUS = {
    "completed": _GOOD,
    "denied": _BAD,
    "failed": _BAD,
    "interrupted": _UNSURE,
    "cancelled": _UNSURE,
    "running": _KEY,
}

_Line = tuple[tuple[str, str], ...]  # spans of (text, style); a line has no line end
_Atoms = list[str]  # what must stay together when a line is broken: a character or its escape


def render_history(
    history: History, *, max_value_lines: int = _VALUE_LINES, title: str | None = None
) -> RenderableType:
    """`history` for `console.print`. Waits for the evaluations when it is printed, not before."""
    return _Rendering(history, max_value_lines, title)


def pprint_history(history: History, console: Console | None = None) -> None:
    """Print `history` on `console`, by default the standard output."""
    (console or Console()).print(render_history(history))


def history_html(history: History) -> str:
    """`history` as one `<pre>` with inline styles, everything in it escaped, for notebooks."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=_HTML_WIDTH,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(render_history(history))
    return console.export_html(inline_styles=True, code_format=_HTML)


def history_text(history: History, width: int = 80) -> str:
    """`history` as plain text without a final line end. A `width` below 40 columns counts as 40."""
    page = _Page(_Ink("utf-8"), width, _VALUE_LINES)
    return "\n".join("".join(text for text, _ in line) for line in page.lines(history, None))


@dataclass(frozen=True, slots=True)
class _Rendering:
    history: History
    max_value_lines: int
    title: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Segments and not Text: nothing that reads markup, emoji codes or control codes sees them.
        ink = _Ink(options.encoding, plain=options.legacy_windows)
        page = _Page(ink, options.max_width, self.max_value_lines)
        for line in page.lines(self.history, self.title):
            for text, style in line:
                yield Segment(text, Style.parse(style))
            yield Segment.line()


# --- Characters: what can be shown, and where a line may be broken ---

# Printable by category, and yet nothing to be seen: a place to hide text from the human reader.
# U+FE0F stays, since it is part of many an emoji and can carry nothing by itself.
_HIDDEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
_WRITTEN_SPACES = {0xA0: " ", 0x202F: " ", 0x3000: " "}  # French and Japanese prose has them
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class _Ink:
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

    def rule(self, title: str) -> str:
        return f"--- {title} ---" if self.plain else f"─── {title} ───"

    def shows(self, text: str) -> bool:
        """Whether all of `text` can be printed as it is, on one line."""
        if text.isascii():
            return text.isprintable()
        return (
            text.translate(_WRITTEN_SPACES).isprintable() and not _HIDDEN.search(text) and self._encodes(text)
        )

    def atoms(self, text: str, escaped: str = "") -> _Atoms:
        """`text`, with escapes for what cannot be shown, and backslashes before the `escaped`."""
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
    """Whether it is drawn onto the character before it."""
    return not character.isascii() and unicodedata.category(character).startswith("M")


@lru_cache(maxsize=4096)
def _cells(atom: str) -> int:
    # U+FE0F may turn a narrow character into a wide one: which ones, terminals do not agree on.
    return cell_len(atom.replace("\ufe0f", "")) + ("\ufe0f" in atom)


def _width(atoms: Iterable[str]) -> int:
    return sum(map(_cells, atoms))


def _fitting(atoms: _Atoms, cells: int) -> int:
    """How many of `atoms` fit."""
    for count, atom in enumerate(atoms):
        cells -= _cells(atom)
        if cells < 0:
            return count
    return len(atoms)


def _wrap(atoms: _Atoms, first: int, room: int, mark: str = "") -> list[str]:
    """Lines of at most `first`, then `room` cells.

    Broken at a single space, which is dropped, or, where there is none, anywhere, and then `mark`
    ends the line.
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
    """Text of our own making, printed as it is: a number, a time, a placeholder."""

    text: str


@dataclass(frozen=True, slots=True)
class _Words:
    """The start of a string, and how much of it is left out."""

    text: str
    dropped: int = 0
    unit: str = "chars"
    tag: str = ""


@dataclass(frozen=True, slots=True)
class _Branch:
    """Some children of a container; `dropped` more were left out before the child number `gap`."""

    children: Sequence[tuple[Any, Any]]  # (key, value); the key of a sequence's child is not used
    keyed: bool
    tag: str = ""
    dropped: int = 0
    gap: int = 0


_Shape = _Bare | _Words | _Branch


def _shape(value: Any, chars: int = _CHARS) -> _Shape:
    """What is shown of `value`. Never raises; a large value takes no longer than a small one."""
    try:
        return next(make(value, chars) for kinds, make in _SHAPES if isinstance(value, kinds))
    except Exception as error:
        return _Bare(f"<{_type_name(value)}: cannot be shown, {_type_name(error)}>")


def _text(value: str, chars: int, tag: str = "") -> _Words:
    # `str.` because a subclass may answer differently.
    return _Words(str.__getitem__(value, slice(chars)), max(0, str.__len__(value) - chars), tag=tag)


def _whole(value: int, chars: int) -> _Shape:
    bits = int.bit_length(value)
    if bits > 128:  # Python needs quadratic time for the digits, and from some length on refuses.
        return _Bare(f"<{_type_name(value)} of about {round(bits * math.log10(2)):,} digits>")
    return _Bare(int.__repr__(value))


def _real(value: float, chars: int) -> _Shape:
    if not math.isfinite(value):
        return _Bare(".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf")
    text = float.__repr__(value)
    return _Bare(text if "." in text else text.replace("e", ".0e"))  # YAML's floats have a point


def _bytes(value: Any, chars: int) -> _Shape:
    octets = memoryview(value).cast("B")
    start = octets[:chars].tobytes().decode("latin-1")
    return _Words(start, max(0, octets.nbytes - chars), "bytes", f"!{_type_name(value)}")


def _member(value: Any, chars: int) -> _Shape:
    # A combination of flags may have no name.
    name = f"{value.value}" if value.name is None else value.name
    return _text(name, chars, f"!{_type_name(value)}")


def _moment(value: Any, chars: int) -> _Shape:
    kind = next(kind for kind in _MOMENTS if isinstance(value, kind))
    return _Bare(kind.isoformat(value))  # a subclass might put anything into its own


def _dict(value: dict[Any, Any], chars: int) -> _Shape:
    # Past the methods of a subclass: a read-only view copies each value that it hands out.
    kind: Any = dict
    return _fields(kind.items(value), kind.__len__(value), "")


def _mapping(value: Mapping[Any, Any], chars: int) -> _Shape:
    return _fields(value.items(), len(value), "")


def _fields(pairs: Iterable[tuple[Any, Any]], size: int, tag: str) -> _Branch:
    children = [(key, child) for key, child in islice(pairs, _KEYS)]
    return _Branch(children, True, tag, max(0, size - len(children)), len(children))


def _sequence(value: Any, chars: int) -> _Shape:
    kind = next(kind for kind in _LISTS if isinstance(value, kind))
    size, parts, at = kind.__len__(value), kind.__iter__(value), kind.__getitem__  # as for dict
    if kind is tuple and (names := getattr(_type(value), "_fields", None)):  # a named tuple
        return _fields(zip(names, parts, strict=False), size, f"!{_type_name(value)}")
    if size <= _HEAD + _TAIL:
        return _Branch([(None, child) for child in islice(parts, size)], False)
    shown = chain(islice(parts, _HEAD), (at(value, place) for place in range(-_TAIL, 0)))
    return _Branch([(None, child) for child in shown], False, "", size - _HEAD - _TAIL, _HEAD)


def _set(value: AbstractSet[Any], chars: int) -> _Shape:
    members: Iterable[Any] = value
    if len(value) <= _SORTED:
        try:
            members = sorted(value)
        except Exception:  # not comparable: in the order they come
            members = value
    shown = [(None, member) for member in islice(members, _HEAD + _TAIL)]
    dropped = max(0, len(value) - len(shown))
    return _Branch(shown, False, f"!{_type_name(value)}", dropped, len(shown))


def _message(value: BaseMessage, chars: int) -> _Shape:
    """`role: content`, then what else there is to know of a message."""
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
            shown.append((field, _Branch(children, False, "", dropped, len(children))))
    return _Branch(shown, True)


def _model(value: BaseModel, chars: int) -> _Shape:
    # `__dict__` and not `model_dump`, which converts all of it. `repr=False` hides a field.
    hidden = {name for name, info in type(value).model_fields.items() if not info.repr}
    extra = value.__pydantic_extra__ or {}
    pairs = (
        (name, child) for name, child in chain(value.__dict__.items(), extra.items()) if name not in hidden
    )
    size = len(value.__dict__) + len(extra) - len(hidden & value.__dict__.keys())
    return _fields(pairs, size, f"!{_type_name(value)}")


def _other(value: Any, chars: int) -> _Shape:
    if is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in fields(value) if f.repr and hasattr(value, f.name)]
        pairs = ((name, getattr(value, name)) for name in shown)
        return _fields(pairs, len(shown), f"!{_type_name(value)}")
    return _described(value, chars)


def _described(value: Any, chars: int) -> _Bare | _Words:
    """By its `repr`, if it has one of its own that is sure to be short."""
    name = _type_name(value)
    if _type(value).__repr__ is object.__repr__:
        return _Bare(f"<{name} object>")
    if not _is_small(value):
        size = f" of {len(value):,} items" if isinstance(value, Sized) else ""
        return _Bare(f"<{name} object{size}>")
    return _text(_ADDRESS.sub("", repr(value)), chars, f"!{name}")


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_UNOPENED = (type, ModuleType, FunctionType)  # their `repr` is a name, and they lead to everything


def _is_small(value: Any) -> bool:
    """Whether all that `value` refers to, and so any usual `repr` of it, is small."""
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


def _type_name(value: object) -> str:
    try:
        return re.sub(r"[^A-Za-z0-9_.]", "_", type(value).__name__)[:24]
    except Exception:  # a metaclass may answer anything
        return "object"


_LISTS: tuple[Any, ...] = (list, tuple, deque)
_MOMENTS: tuple[Any, ...] = (datetime, date, time)

# The first kind that matches counts: an enum may be a string too, a model a mapping.
_SHAPES: tuple[tuple[type | tuple[type, ...], Callable[[Any, int], _Shape]], ...] = (
    (type(None), lambda value, _: _Bare("null")),
    (Enum, _member),
    (str, _text),
    (bool, lambda value, _: _Bare("true" if value else "false")),
    (int, _whole),
    (float, _real),
    ((bytes, bytearray, memoryview), _bytes),
    (_MOMENTS, _moment),
    (_Branch, lambda value, _: value),
    (BaseMessage, _message),
    (BaseModel, _model),
    (dict, _dict),
    (Mapping, _mapping),
    (_LISTS, _sequence),
    (AbstractSet, _set),
    (object, _other),
)


# --- YAML: the shapes as lines ---

# No colon, no hash, no quote, one space at a time: what every reader of YAML takes for a string.
_PLAIN = re.compile(r"[^\W\d_][\w.,;!?()/+*%=@$'’_-]*( [\w.,;!?()/+*%=@$'’_-]+)*")
_RESERVED = frozenset({"null", "true", "false", "yes", "no", "on", "off"})


class _Yaml:
    """Values as lines of YAML. `lead` is what the first line of one starts with, say `  key:`."""

    __slots__ = ("_ink", "_page_width")

    def __init__(self, ink: _Ink, width: int) -> None:
        self._ink = ink
        self._page_width = width

    def lines(self, value: Any, lead: str, indent: int, path: tuple[int, ...] = ()) -> Iterator[_Line]:
        """Lazily: what is not printed is not looked at. `path` has the containers around it."""
        if id(value) in path:
            yield from self._flow([list("<cycle>")], lead, indent)
            return
        shape = _shape(value, _CHARS if len(path) < 2 else _NESTED_CHARS)
        match shape:
            case _Bare():
                yield from self._flow([list(shape.text)], lead, indent)
            case _Words():
                yield from self._words(shape, lead, indent)
            case _Branch():
                yield from self._branch(shape, lead, indent, (*path, id(value)))

    def fields(self, state: Any, column: int) -> Iterator[Iterator[_Line]]:
        """The lines of each field of a state; none if it is empty."""
        match _shape(state):
            case _Branch([], _, _, _, _) | _Bare("null"):
                pass
            case _Branch(_, _, "", _, _) as shape:
                yield from self._children(shape, " " * column, column, (id(state),))
            case _:
                yield self.lines(state, " " * column, column)

    def note(self, text: str, column: int) -> _Line:
        return ((" " * column, ""), (f"# {self._ink.ellipsis} ({text})", _NOTE))

    def _branch(self, shape: _Branch, lead: str, indent: int, path: tuple[int, ...]) -> Iterator[_Line]:
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
                yield ((head, _KEY),)
        yield from chain.from_iterable(self._children(shape, start, inner, path))

    def _children(
        self, shape: _Branch, start: str, column: int, path: tuple[int, ...]
    ) -> Iterator[Iterator[_Line]]:
        fold = self.note(f"+{shape.dropped:,} {'keys' if shape.keyed else 'items'}", column)
        for number, (key, child) in enumerate(shape.children):
            if shape.dropped and number == shape.gap:
                yield iter([fold])
            mark = f"{self._key(key, column)}:" if shape.keyed else "-"
            yield self.lines(child, start + mark, column, path)
            start = " " * column
        if shape.dropped and shape.gap == len(shape.children):
            yield iter([fold])

    def _closed(self, shape: _Branch, lead: str, indent: int) -> Iterator[_Line]:
        """An empty container, or one that is too deep inside of others to be opened."""
        size = len(shape.children) + shape.dropped
        inside = self._ink.ellipsis if size else ""
        text = f"{{{inside}}}" if shape.keyed else f"[{inside}]"
        note = f"{size:,} {'keys' if shape.keyed else 'items'}, too deep" if size else ""
        yield from self._flow([list(text)], _after(lead, shape.tag), indent, note)

    def _row(self, shape: _Branch, lead: str) -> _Line | None:
        """A short list of short things on one line: `[1, 2, 3]`."""
        if shape.keyed or shape.dropped:
            return None
        texts: list[str] = []
        for _, child in shape.children:
            match _shape(child, self._page_width):
                case _Bare(text):
                    texts.append(text)
                case _Words(text, 0, _, "") if self._is_plain(text) and not set(",?") & set(text):
                    texts.append(text)
                case _:
                    return None
        start, row = _after(lead, shape.tag), f"[{', '.join(texts)}]"
        fits = cell_len(start) + cell_len(row) <= self._page_width
        return ((start, _KEY), (row, "")) if fits else None

    def _key(self, key: Any, column: int) -> str:
        room = max(8, min(40, self._page_width - column - 30))  # and a tag beside it
        shape = _shape(key, room)
        if isinstance(shape, _Branch):
            try:
                shape = _described(key, room)
            except Exception as error:  # it holds something that has no text
                shape = _Bare(f"<{_type_name(key)}: cannot be shown, {_type_name(error)}>")
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

    def _words(self, shape: _Words, lead: str, indent: int) -> Iterator[_Line]:
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

    def _block(self, text: str, lead: str, indent: int, note: str) -> Iterator[_Line]:
        yield ((_after(lead, "|" if text.endswith("\n") else "|-").rstrip(), _KEY),)
        room = self._page_width - indent - 2
        for line in text.removesuffix("\n").split("\n"):
            for number, part in enumerate(_wrap(self._ink.atoms(line), room, room - 2)):
                column = indent + (4 if number else 2)
                yield ((" " * column + part if part else "", ""),)
        if note:
            yield self.note(note, indent)

    def _flow(
        self, parts: list[_Atoms], lead: str, indent: int, note: str = "", mark: str = ""
    ) -> Iterator[_Line]:
        """A scalar on the line of `lead` if it fits, else on as many lines as it needs."""
        start, further = _after(lead, ""), " " * (indent + 2)
        first, room = self._page_width - cell_len(start), self._page_width - indent - 2
        lines = ["".join(chain(*parts))]
        if sum(map(_width, parts)) > first:
            if first < 24:
                yield ((start.rstrip(), _KEY),)
                start, first = further, room
            lines.clear()
            for part in parts:
                # YAML skips spaces at the start of a further line of a quoted scalar.
                atoms = _kept(part) if mark and lines else part
                broken = _wrap(atoms, room if lines else first, room, mark)
                lines += [*broken[:-1], broken[-1] + ("" if part is parts[-1] else mark)]
        shown: list[_Line] = [((start, _KEY), (lines[0], ""))]
        shown += [((further, ""), (line, "")) for line in lines[1:]]
        if note:
            last, comment = shown[-1], self.note(note, indent + 2)
            if sum(cell_len(text) for text, _ in (*last, comment[1])) < self._page_width:
                shown[-1] = (*last, (" ", ""), comment[1])
            else:
                shown.append(comment)
        yield from shown


def _after(lead: str, tag: str) -> str:
    """`lead`, a space if there is something in it, and the tag of the value."""
    start = f"{lead} " if lead.strip() and not lead.endswith(" ") else lead
    return f"{start}{tag} " if tag else start


def _cropped(line: _Line, cells: int) -> _Line:
    """`line`, without what is over the edge. On narrow pages keys and tags far inside can be."""
    if sum(cell_len(text) for text, _ in line) <= cells:
        return line
    spans: list[tuple[str, str]] = []
    for text, style in line:
        spans.append((set_cell_size(text, min(cells, cell_len(text))), style))
        cells -= cell_len(spans[-1][0])
    return tuple(spans)


_PASSED = frozenset({"passed", "passed_after_retry", "corrected"})


def _scores_of(gating: Mapping[str, Any]) -> Iterator[str]:
    """What was looked at, as far as a gate's details have the shape of those that ship."""
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


class _Page:
    """A history as lines of `width` columns."""

    __slots__ = ("_ink", "_value_lines", "_width", "_yaml")

    def __init__(self, ink: _Ink, width: int, value_lines: int) -> None:
        self._ink = ink
        self._width = max(width, _NARROWEST)
        self._value_lines = max(value_lines, 1)
        self._yaml = _Yaml(ink, self._width)

    def lines(self, history: History, title: str | None) -> Iterator[_Line]:
        return (_cropped(line, self._width) for line in self._lines(history, title))

    def _lines(self, history: History, title: str | None) -> Iterator[_Line]:
        if title is not None:
            yield ((self._ink.rule(self._ink.line(title, self._width - 8)), _HEADING),)
        empty = True
        for step, superstep in enumerate(history.entries, 1):
            if not empty:
                yield ()
            yield ((self._ink.box(f"SuperStep {step}"), _HEADING),)
            for place, item in enumerate(superstep, 1):
                if place > 1:
                    yield ()
                yield from self._item(item, f"[{step}.{place}]")
            empty = False
        if empty:
            yield (("The history is empty: no node has run.", _NOTE),)

    def _item(self, item: HistoryItem, number: str) -> Iterator[_Line]:
        kind = "(no instruction)" if item.instruction is None else str(item.instruction)
        dot = f" {self._ink.dot} "
        facts = [self._name(item.node), self._name(item.status)]
        if 0 < item.duration < math.inf:
            facts.append(_duration(item.duration))
        if item.attempt > 1:
            facts.append(f"attempt {item.attempt}")
        if item.namespace:
            facts.append(f"in {self._ink.line(item.namespace, 120)}")
        lead = f"  {number} {self._ink.line(kind, min(40, self._width - 24))}"
        style = _STATUS.get(item.status, "")
        yield from self._prose(lead + dot, dot.join(facts), "", (_HEADING, style), hang=8)
        for heading, lines in self._sections(item):
            first = next(lines, None)
            if first is not None:
                yield ((f"    {heading}:", _HEADING),)
                yield first
                yield from lines
        if item.error:
            yield from self._prose("    Error: ", "", item.error, (_HEADING, _BAD), hang=10)

    def _sections(self, item: HistoryItem) -> Iterator[tuple[str, Iterator[_Line]]]:
        yield "Input", self._value(item.input_state)
        yield "Output", self._value(item.output_state)
        yield "Checks", self._capped(self._checks(item), _SECTION_LINES)
        yield "Corrections", self._capped(self._corrections(item), _SECTION_LINES)
        yield "Routes", self._capped(self._routes(item), _SECTION_LINES)
        yield "Evaluations", self._capped(self._evaluations(item), _SECTION_LINES)
        yield "Contract errors", self._capped(self._failures(item.errors), _SECTION_LINES)
        yield "Notes", self._capped(self._notes(item), _SECTION_LINES)

    def _value(self, state: Any) -> Iterator[_Line]:
        """The fields of `state`. Without room for all, the long ones are cut and not the last."""
        limit = self._value_lines
        fields = [list(islice(lines, limit + 1)) for lines in self._yaml.fields(state, 6)]
        most = _share([len(lines) for lines in fields], limit)
        shown = (self._capped(iter(lines), most) for lines in fields)
        return self._capped(chain.from_iterable(shown), limit)

    def _capped(self, lines: Iterator[_Line], limit: int) -> Iterator[_Line]:
        """At most `limit` lines, and one more that says if there were more."""
        yield from islice(lines, limit)
        if next(lines, None) is not None:
            yield self._yaml.note(f"cut after {limit:,} lines", 6)

    def _checks(self, item: HistoryItem) -> Iterator[_Line]:
        marks = {"allow": (self._ink.tick, _GOOD), "deny": (self._ink.cross, _BAD)}
        for name, verdict in self._pairs(item.check_policy_results):
            mark, style = marks.get(verdict.kind, ("?", _UNSURE))
            reason = "" if verdict.kind == "allow" else _plain_text(verdict.reason)
            yield from self._entry(mark, f"{name}: " if reason else name, reason, style)

    def _corrections(self, item: HistoryItem) -> Iterator[_Line]:
        yield from self._gating(getattr(item, "gating", {}))  # a row of another history may have none
        for correction in item.corrections:
            yield from self._entry("-", "", _plain_text(correction), _UNSURE)

    def _gating(self, gating: Mapping[str, Any]) -> Iterator[_Line]:
        """What a gate says about the draft that was taken: its outcome, and its scores."""
        outcome = gating.get("outcome")
        if not isinstance(outcome, str):
            return
        mark, style = (self._ink.tick, _GOOD) if outcome in _PASSED else (self._ink.cross, _BAD)
        text = _plain_text(", ".join(_scores_of(gating)))
        head = f"gate: {self._name(outcome)}" + (" - " if text else "")
        yield from self._entry(mark, head, text, style)

    def _routes(self, item: HistoryItem) -> Iterator[_Line]:
        taken = item.redirected_to
        answers = [pair for pair in self._pairs(item.route_policy_results) if pair[1] is not None]
        for name, target in answers:
            fate = " (not taken)" if taken is None else ""
            if (name, target) != answers[0]:
                fate = " (overruled)"
            text = f"{name}: {self._name(_plain_text(target))}{fate}"
            yield from self._entry(self._ink.route, text, "", _NOTE if fate else _KEY)
        if taken is not None:
            text = f"redirected to {self._name(taken)}"
            yield from self._entry(self._ink.route, text, "", _KEY)

    def _evaluations(self, item: HistoryItem) -> Iterator[_Line]:
        for name, result in self._pairs(item.evaluation_results):
            mark, style = (self._ink.tick, _GOOD) if result.passed else (self._ink.cross, _BAD)
            feedback = _plain_text(result.feedback)
            head = f"{name}: score={_score(result.score)}" + (" - " if feedback else "")
            yield from self._entry(mark, head, feedback, style)
        # After the results: only when all evaluators are done is it known which of them failed.
        yield from self._failures(item.evaluation_errors)
        for part in item.evaluator_trace:
            if part.status not in _SHOWN_BY_ITS_RESULT and part.detail != OTHER_TARGETS:
                text = f"{self._name(part.name)}: {part.status}" + (
                    f" ({part.detail})" if part.detail else ""
                )
                yield from self._entry("-", "", _plain_text(text), _NOTE)

    def _notes(self, item: HistoryItem) -> Iterator[_Line]:
        for name, remark in self._pairs(item.notes):
            yield from self._entry("-", f"{name}: ", _plain_text(remark), _UNSURE)

    def _failures(self, errors: Mapping[str, str]) -> Iterator[_Line]:
        for name, error in self._pairs(errors):
            yield from self._entry("!", f"{name}: ", _plain_text(error), _BAD)

    def _pairs(self, results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, result in results.items():
            yield self._name(name), result

    def _name(self, name: str) -> str:
        return self._ink.line(name, 60)

    def _entry(self, mark: str, head: str, text: str, style: str) -> Iterator[_Line]:
        return self._prose(f"      {mark} ", head, text, (style, ""), hang=10)

    def _prose(
        self, lead: str, head: str, text: str, styles: tuple[str, str], *, hang: int
    ) -> Iterator[_Line]:
        """`lead` and, in another style, `head` and `text`. Further lines start at `hang`."""
        if (dropped := len(text) - _CHARS) > 0:
            text = f"{text[:_CHARS]}{self._ink.ellipsis} (+{dropped:,} chars)"
        text = head + text
        lead_style, style = styles
        first, room = self._width - cell_len(lead), self._width - hang
        lines: list[str] = []
        for line in text.rstrip().split("\n"):
            lines += _wrap(self._ink.atoms(line), room if lines else first, room)
        yield ((lead, lead_style), (lines[0].rstrip(), style))
        for line in lines[1:_PROSE_LINES]:
            yield ((" " * hang, ""), (line.rstrip(), style))
        if len(lines) > _PROSE_LINES:
            yield self._yaml.note(f"+{len(lines) - _PROSE_LINES:,} lines", hang)


def _plain_text(value: Any) -> str:
    """A string as it is; anything else that a contract left in its place, as short text."""
    if type(value) is str:
        return value
    shape = _shape(value)
    return f"<{_type_name(value)}>" if isinstance(shape, _Branch) else shape.text


def _score(score: float) -> str:
    try:
        return f"{score:.2f}" if abs(score) < 1e6 else f"{score:.3g}"
    except Exception:
        return _plain_text(score)


def _duration(seconds: float) -> str:
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,} min {rest:02d} s"


def _share(sizes: Sequence[int], total: int) -> int:
    """The most lines that each may have, so that all together have about `total`."""
    left = len(sizes)
    for size in sorted(sizes):
        fair = total // left
        if size > fair:
            return max(1, fair - 1)  # one more says that it was cut
        total, left = total - size, left - 1
    return max(sizes, default=0)
