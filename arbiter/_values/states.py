"""States as data: one dict shape for every node input and output, read-only views, snapshots, digests.

LangGraph lets a node take and return almost anything. Contracts and the history see a dict; the node and
LangGraph keep the object itself.
"""

from __future__ import annotations

import asyncio
import copy
import copyreg
import hashlib
import json
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cached_property
from operator import is_not
from sys import float_info
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any, Literal, NoReturn, SupportsIndex, TypeGuard, cast, overload
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langgraph.types import Command, Overwrite, Send
from pydantic import BaseModel

from arbiter.errors import ReadOnlyTypeError

Snapshot = Literal["shallow", "deep", "digest"]
ROOT = "__root__"


def as_state(value: object) -> dict[str, Any]:
    """`value` as a new dict: the shape in which contracts and the history see it.

    Dicts, pydantic models and dataclasses become their fields, `None` becomes `{}`, a `Command` its update,
    and a list of commands and updates all updates joined in order. A list of messages, which LangGraph writes
    to the root, and any other value become `{"__root__": value}`. Only the top level is copied.
    """
    if type(value) is dict:
        return value.copy()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {**value}
    if isinstance(value, Command):
        return _update_of(value)
    if isinstance(value, BaseModel):
        # `__dict__` and not `model_dump`: the same objects that the node sees, unconverted, extras included.
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value) if hasattr(value, f.name)}
    if are_commands(value):
        return joined(map(as_state, cast(Any, value)))
    return {ROOT: value}


def written_by(output: object) -> dict[str, Any]:
    """A node's output as its fields, as `as_state`, with the value that each `Overwrite` writes in its place.

    LangGraph's other form of it, a dict, stays as it is: without a reducer it is written as that dict.
    """
    fields = as_state(output)
    # Not a comprehension, which costs each step one more call.
    for key, part in fields.items():
        if isinstance(part, Overwrite):
            fields[key] = part.value
    return fields


def are_commands(output: object) -> bool:
    """True if a node returns several commands; there may be updates among them."""
    parts: Any = output
    return isinstance(output, list | tuple) and any(isinstance(part, Command) for part in parts)


def joined(updates: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several updates of one node run as a single one, in order.

    If a key is written twice, a reducer gets both: lists and messages are joined into one list, mappings into
    one mapping. An `Overwrite` replaces everything for its key. For other values, the last one wins.
    """
    state: dict[str, Any] = {}
    for update in updates:
        for key, part in update.items():
            state[key] = _both(state[key], part) if key in state else part
    return state


def _both(one: Any, other: Any) -> Any:
    if overwriting(one)[0]:
        return one
    if overwriting(other)[0]:
        return other
    if _is_many(one) or _is_many(other):
        return [*(one if isinstance(one, list) else [one]), *(other if isinstance(other, list) else [other])]
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {**cast(Any, one), **cast(Any, other)}
    return other


def _is_many(value: Any) -> bool:
    """True for a list and for a value that LangChain takes for a message, which goes into a list."""
    pair: Any = value
    if isinstance(value, tuple):
        return len(pair) == 2 and all(isinstance(part, str) for part in pair)
    return isinstance(value, list | BaseMessage) or (isinstance(value, Mapping) and "role" in pair)


def overwriting(value: Any) -> tuple[bool, Any]:
    """Whether `value` is an `Overwrite`, in any form that LangGraph accepts, and the value that it writes."""
    if isinstance(value, Overwrite):
        return True, value.value
    form: Any = value
    if isinstance(value, dict):
        if len(form) == 1 and "__overwrite__" in form:
            return True, _item(form, "__overwrite__")
        if len(form) == 2 and "value" in form and dict[Any, Any].get(form, "type") == "__overwrite__":
            return True, _item(form, "value")
    return False, form


def overwriting_with(value: Any, better: Any) -> Any:
    """`better`, as an `Overwrite` if `value` is one."""
    return Overwrite(better) if overwriting(value)[0] and not overwriting(better)[0] else better


def _update_of(command: Any) -> dict[str, Any]:
    update: Any = command.update
    pairs = update
    if isinstance(update, list | tuple):
        try:
            return joined({key: part} for key, part in pairs)
        except (TypeError, ValueError):
            return {ROOT: update}
    return as_state(update)


def with_fields(value: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a node's input, of the same kind, with some fields replaced.

    A pydantic model is validated again. A value without fields is replaced by `changes["__root__"]`; if there
    is none, raises `TypeError`.
    """
    state: Any = value
    if isinstance(value, Mapping):
        return {**state, **changes}
    if isinstance(value, BaseModel):
        twin = type(value).model_validate({**as_state(value), **changes})
        return with_set(twin, value.model_fields_set | changes.keys())
    if is_dataclass(state) and not isinstance(state, type | Command):
        return type(state)(**{**as_state(value), **changes})
    if ROOT in changes:
        return changes[ROOT]
    raise TypeError(f"a {type(value).__name__} has no fields to set")


def with_own(value: Any, keys: Collection[str] | None = None) -> Any:
    """A copy of a node's input, of the same kind, with copies of the values at `keys`, or of all values."""
    state = as_state(value)
    own = {key: _deepcopy(part) for key, part in state.items() if keys is None or key == ROOT or key in keys}
    return with_parts(value, own)


def with_seen(value: Any, seen: SeenDict, *, is_shared: bool) -> Any:
    """A node's input with the parts that were read as they were at that time.

    Returns a new object of the same kind, or `value` itself if no part that can change was read. With
    `is_shared`, the fields themselves may have been changed too.
    """
    parts = seen.changed()
    if is_shared and ROOT not in seen:
        parts |= {key: part for key, part in dict[str, Any].items(seen) if type(part) in _ATOMS}
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            return {key: given[key] for key in seen if key in given} | parts
    return with_parts(value, parts) if parts else value


def with_parts(value: Any, parts: Mapping[str, Any]) -> Any:
    """`value` as a new object of the same kind, with these parts instead of its own, without validation."""
    given: Any = value
    if isinstance(value, BaseModel):
        return with_set(value.model_copy(update=parts), value.model_fields_set)
    if isinstance(value, MutableMapping):
        given = copy.copy(given)
        given.update(parts)
        return given
    if isinstance(value, Mapping):
        return {**given, **parts}
    if ROOT in parts:
        return parts[ROOT]
    twin = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(twin, name, part)  # also of a frozen dataclass
    return twin


def with_set(model: BaseModel, names: Iterable[str]) -> BaseModel:
    """Let these fields alone count as set. If a node returns the model, LangGraph writes no None of the others."""
    object.__setattr__(model, "__pydantic_fields_set__", set(names))
    return model


def has_parts_of(one: Any, other: Any) -> bool:
    """True if both are one object, or two objects with the very same fields."""
    if one is other:
        return True
    own, others = _fields_of(one), _fields_of(other)
    return own.keys() == others.keys() and all(part is others[key] for key, part in own.items())


def _fields_of(value: Any) -> dict[Any, Any]:
    given: Any = value
    if isinstance(value, dict):
        return dict[Any, Any].copy(given)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return getattr(value, "__dict__", {"": value})


def is_number(value: object) -> TypeGuard[int | float]:
    """True if `value` is a finite float, or an int that a float can hold. Booleans are rejected."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= float_info.max


def is_whole(value: object, *, least: int) -> TypeGuard[int]:
    """True if `value` is an int of at least `least`. Booleans are rejected."""
    return not isinstance(value, bool) and isinstance(value, int) and value >= least


def number_at(state: Mapping[str, Any], key: str) -> float | None:
    """The number at `key`, or None if there is none. NaN and booleans do not count as numbers."""
    value: Any = state.get(key)
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if number != number else number


def with_own_parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of a state."""
    return {key: _deepcopy(part) for key, part in state.items()}


def digests_of(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _digest_or_mark(part) for key, part in state.items()}


class Digest(str):
    """The text that the history keeps instead of a value with `snapshot="digest"`. Its own type distinguishes
    it from a real text.
    """

    __slots__ = ()


def _digest_or_mark(value: object) -> Digest:
    try:
        return Digest(digest(value))
    except Exception:
        return Digest(f"no digest {uuid4().hex}")  # unique: it must not equal the digest of another value


def digest(value: object) -> str:
    """A short stable name for `value`: equal values have equal digests, also in another process; others have
    different ones.

    A tuple counts as a list, and an object without attributes of its own as its built-in base. Raises
    `TypeError` for objects that cannot be compared by value: a lock, a generator, a lambda, an object that
    contains itself.
    """
    text = _encode(_plain(value, 0))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_MAX_DEPTH = 100
_SIMPLE = frozenset({type(None), bool, str})
DECIMAL_BITS = 10_000
"""Bits of the largest whole number that is written in decimal: Python refuses to write numbers of very many digits."""
# Made once, because `json.dumps` with options makes an encoder at every call.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _plain(value: object, depth: int) -> Any:
    """`value` as JSON-able data that keeps types apart: every JSON array begins with the name of its type.

    `repr` is not used: it may contain an address, or leave things out.
    """
    cls: Any = type(value)
    if cls in _SIMPLE:
        return value
    inside: Any = value
    if cls is int:
        return value if inside.bit_length() <= DECIMAL_BITS else ["int", hex(inside)]
    if depth > _MAX_DEPTH:
        raise TypeError(f"it is nested deeper than {_MAX_DEPTH} levels, so it cannot be told from others")
    depth += 1
    if cls in _DICTS:
        return _plain_map(dict[Any, Any].items(inside), depth)
    if cls in _LISTS:
        # Past the view's own iterator, which freezes each part.
        parts = tuple[Any].__iter__(inside) if cls is tuple else list[Any].__iter__(inside)
        return ["list", *[_plain(part, depth) for part in parts]]
    if cls is float:
        return ["float", inside.hex()]
    if cls in (bytes, bytearray):
        return ["bytes", hashlib.sha256(inside).hexdigest()]
    if cls in (set, frozenset):
        return ["set", *sorted((_plain(part, depth) for part in inside), key=_encode)]
    kind = f"{cls.__module__}.{cls.__qualname__}"
    if isinstance(value, Enum):
        return ["enum", kind, value.name, _plain(value.value, depth)]
    if isinstance(value, type):
        return ["type", f"{value.__module__}.{value.__qualname__}"]
    if isinstance(value, BaseModel):
        private = value.__pydantic_private__
        return ["object", kind, _plain(_lasting(value, as_state(value)), depth), _plain(private, depth)]
    if isinstance(value, MappingProxyType):
        return _plain_map(inside.items(), depth)
    if isinstance(value, FunctionType) or (
        isinstance(value, BuiltinFunctionType) and isinstance(inside.__self__, ModuleType | None)
    ):
        if "<" in inside.__qualname__:
            raise TypeError(f"a function that has no name of its own ({kind}) cannot be told from others")
        return ["function", f"{inside.__module__}.{inside.__qualname__}"]
    return _plain_object(value, kind, depth)


def _plain_map(items: Iterable[tuple[Any, Any]], depth: int) -> Any:
    pairs = [(key, _plain(part, depth)) for key, part in items]
    if all(type(key) is str for key, _ in pairs):
        return dict(pairs)
    return [
        "map",
        *sorted(([_plain(key, depth), part] for key, part in pairs), key=lambda pair: _encode(pair[0])),
    ]


def _plain_object(value: object, kind: str, depth: int) -> Any:
    """The plain form of the state that pickle would keep, so slots and types written in C are covered."""
    reduce: Any = copyreg.dispatch_table.get(type(value))
    try:
        reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception as exc:
        raise TypeError(f"a {kind} cannot be told from others: {exc}") from exc
    if isinstance(reduced, str):
        return ["global", kind, reduced]
    make, args, state, items, pairs, *more = (*reduced, None, None, None, None)[:6]
    state = _lasting(value, state)
    base: Any = next((base for base in _BASES if isinstance(value, base)), None)
    if base is not None:
        # The order of a set's parts and of a mapping's keys does not matter.
        plain = _plain(base(value), depth)
        return plain if not state else ["like", kind, plain, _plain(state, depth)]
    rest = (make, args, state, *([] if part is None else list(part) for part in (items, pairs)), *more)
    return ["object", kind, *[_plain(part, depth) for part in rest]]


def _lasting(value: object, state: Any) -> Any:
    """An object's attributes without the values of its `cached_property`s: whether one was read is not part
    of its value.
    """
    if not isinstance(state, dict):
        return state
    cls = type(value)
    return {
        name: part
        for name, part in state.items()  # pyright: ignore[reportUnknownVariableType]  # keys are looked at
        if not (isinstance(name, str) and isinstance(getattr(cls, name, None), cached_property))
    }


# Read-only views ----------------------------------------------------------------------------------


def freeze(value: object) -> Any:
    """A read-only view of `value`, for code that must not change it.

    Dicts and lists raise on every change, at every depth; scalars are returned unchanged, and so are queues, events and
    locks, which tasks and threads share; other objects are copied when they are reached, so that changes affect only
    the copy. Work is done on access only.
    """
    kind = type(value)
    given: Any = value
    if kind is dict:
        return FrozenDict(given)
    if kind in _ATOMS:
        return value
    if kind is list:
        return FrozenList(given)
    if isinstance(value, _UNCHANGING):
        return given
    if isinstance(value, dict | MappingProxyType):
        return FrozenDict(given)
    if isinstance(value, list):
        return FrozenList(given)
    if kind is tuple:
        return tuple([freeze(part) for part in given])
    if kind in (set, frozenset):
        return frozenset([freeze(part) for part in given])
    if kind is Command:  # its update may be large, so it is not copied
        return replace(given, update=freeze(given.update), goto=freeze(given.goto))
    if kind is Send:
        given = copy.copy(given)
        given.arg = freeze(given.arg)
        return given
    return _deepcopy(given)


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})


def is_atom(value: object) -> bool:
    return type(value) in _ATOMS


_SHARED = (
    asyncio.Queue, asyncio.Event, asyncio.Lock, asyncio.Condition, asyncio.Semaphore, asyncio.Barrier, asyncio.Future,
    queue.Queue, threading.Event, threading.Condition, threading.Semaphore, threading.Barrier, threading.Thread, Future,
)  # fmt: skip
"""Tasks and threads share these; a copy would separate them."""


def _deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    given: Any = value
    if type(given) is object or isinstance(value, _SHARED):
        return given
    try:
        return copy.deepcopy(value)
    except Exception:
        return _copied_where_possible(value, {} if memo is None else memo)


def _copied_where_possible(value: object, memo: dict[int, Any]) -> Any:
    """A copy of an object that contains parts which cannot be copied, such as a lock, a socket or a
    generator.

    These parts are shared with the original. So are objects with a finalizer: their copy would release the
    same resource.
    """
    given: Any = value
    kind: Any = type(value)
    known = id(value)
    if known in memo or len(memo) > _MOST_COPIED:
        return memo.get(known, given)
    twin: Any = given
    memo[known] = given
    try:
        if kind is dict:
            memo[known] = twin = {}
            twin.update((key, _deepcopy(part, memo)) for key, part in given.items())
        elif kind is list:
            memo[known] = twin = []
            twin.extend(_deepcopy(part, memo) for part in given)
        elif kind in _PLAIN:
            parts: Any = [_deepcopy(part, memo) for part in given]
            memo[known] = twin = kind(parts)
        elif hasattr(given, "__dict__") and not hasattr(given, "__del__"):
            memo[known] = twin = copy.copy(given)
            twin.__dict__.update({name: _deepcopy(part, memo) for name, part in given.__dict__.items()})
    except Exception:
        return memo[known]
    return twin


_MOST_COPIED = 10_000
_PLAIN: frozenset[Any] = frozenset((tuple, set, frozenset))


def _read_only(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise ReadOnlyTypeError(
        "this view is read-only: a checker, advisor, evaluator or router cannot change the state or "
        "the history. Copy it first, for example with dict(...) or list(...)."
    )


_refuse: Any = _read_only


_item = cast(Any, dict.__getitem__)


class View:
    """Base of mappings that are shown as they are: they are read-only themselves."""

    __slots__ = ()


class Unreadable(View):
    """Base of values that are not there. Any use of one raises `UnreadableError`."""

    __slots__ = ()


class UnreadableError(Exception):
    """A rule has read something that is not there."""


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed and returns frozen values. Equal to a dict with the same items."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        # A rule that reads the state of a pydantic or dataclass graph as the node does gets here.
        raise AttributeError(f"the view of a state is a dict without attribute {name!r}; write [{name!r}]")

    def __getitem__(self, key: str) -> Any:
        value = _item(self, key)
        return value if type(value) in _ATOMS else freeze(value)

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        value = _item(self, key)
        return value if type(value) in _ATOMS else freeze(value)

    def values(self) -> Any:
        return [freeze(value) for value in super().values()]

    def items(self) -> Any:
        return [(key, freeze(value)) for key, value in super().items()]

    def __iter__(self) -> Iterator[str]:
        # A subclass with its own `__iter__` is copied through `keys` and `[]`, so dict(view) is frozen too.
        return super().__iter__()

    def __ror__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**other, **self.copy()}

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in super().items()}

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        merged: dict[str, Any] = self.copy() | other
        return merged

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(super().items()),)

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class FrozenList(list[Any]):
    """A list that cannot be changed and returns frozen elements."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        return FrozenList(found) if isinstance(index, slice) else freeze(found)

    def __iter__(self) -> Iterator[Any]:
        return map(freeze, super().__iter__())

    def __reversed__(self) -> Iterator[Any]:
        return map(freeze, super().__reversed__())

    def copy(self) -> list[Any]:
        return list(iter(self))

    def __radd__(self, other: Iterable[Any]) -> list[Any]:
        return list(other) + self.copy()

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return self.copy() * times

    __rmul__ = __mul__

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return self.copy() + list(other)

    def __copy__(self) -> list[Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in super().__iter__()]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(super().__iter__()),)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse


_get = cast(Any, dict.get)
_init = cast(Any, dict.__init__)


class Whole:
    """Methods that read a whole view. They go through the view's own methods, which C code would bypass."""

    __slots__ = ()

    def __eq__(self: Any, other: object) -> bool:
        if isinstance(other, list | dict) and len(self) != len(cast(Any, other)):
            return False  # without a copy of each part
        return bool(self.copy() == other)

    def __ne__(self: Any, other: object) -> bool:
        return not self == other

    def __lt__(self: Any, other: Any) -> bool:
        return bool(self.copy() < other)

    def __le__(self: Any, other: Any) -> bool:
        return bool(self.copy() <= other)

    def __gt__(self: Any, other: Any) -> bool:
        return bool(self.copy() > other)

    def __ge__(self: Any, other: Any) -> bool:
        return bool(self.copy() >= other)

    def __repr__(self: Any) -> str:
        return repr(self.copy())

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.copy(), memo)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        whole: Any = self.copy()
        return whole.__class__, (whole,)

    __hash__ = None  # type: ignore[assignment]


class SeenDict(Whole, FrozenDict):
    """A frozen dict that remembers the values that it has returned.

    `kept()` returns these as they were then, and all other values as they are now.
    """

    __slots__ = ("returned",)

    def __init__(self, given: Any) -> None:
        _init(self, given)
        self.returned: dict[Any, Any] = {}
        """The returned values that can change, by key."""

    def __getitem__(self, key: str) -> Any:
        value = _item(self, key)
        return value if type(value) in _ATOMS else _seen_in(self.returned, key, value)

    def get(self, key: str, default: Any = None) -> Any:
        value = _get(self, key, default)
        return value if type(value) in _ATOMS or key not in self else self[key]

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def changed(self) -> dict[str, Any]:
        """The returned values that can change, as they were when they were returned."""
        return {key: _kept(part) for key, part in self.returned.items() if part is not _item(self, key)}

    def kept(self) -> dict[str, Any]:
        # `dict.copy` would go through `[]`, and so read, copy and keep all that is below.
        return dict(dict[str, Any].items(self)) | self.changed()


class SeenList(Whole, FrozenList):
    """Like `SeenDict`, for a list."""

    __slots__ = ("returned",)

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.returned: dict[Any, Any] = {}

    def _at(self, index: int) -> Any:
        value = _element(self, index)
        return value if type(value) in _ATOMS else _seen_in(self.returned, index, value)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return FrozenList([self._at(at) for at in range(*index.indices(len(self)))])
        at = index.__index__()
        return self._at(at + len(self) if at < 0 and -at <= len(self) else at)

    def __iter__(self) -> Iterator[Any]:
        return map(self._at, range(len(self)))

    def __reversed__(self) -> Iterator[Any]:
        return map(self._at, range(len(self) - 1, -1, -1))

    def kept(self) -> list[Any]:
        kept: list[Any] = list[Any].copy(self)
        for index, part in self.returned.items():
            kept[index] = _kept(part)
        return kept

    def __contains__(self, value: object) -> bool:
        return value in self.copy()

    def index(self, value: Any, *where: Any) -> int:
        return self.copy().index(value, *where)

    def count(self, value: Any) -> int:
        return self.copy().count(value)


_element = cast(Any, list.__getitem__)


def _seen_in(seen: dict[Any, Any], key: Any, value: Any) -> Any:
    """The view of a part, the same one each time. An object is copied again from the copy that is kept."""
    part = seen.get(key, _NOT_SEEN)
    if part is _NOT_SEEN:
        part = seen.setdefault(key, _seen(value))
    return part if isinstance(part, SeenDict | SeenList) else freeze(part)


def _seen(value: object) -> Any:
    kind: Any = type(value)
    if isinstance(value, _UNCHANGING):
        return value
    if kind is dict:
        return SeenDict(value)
    if kind is list:
        return SeenList(value)
    return _deepcopy(value)


def _kept(part: Any) -> Any:
    return part.kept() if isinstance(part, SeenDict | SeenList) else part


_NOT_SEEN = object()


# A tuple and not `A | B`, which Python would build again at every use.
# `View` comes first: a view may note that its class was asked for.
_UNCHANGING = (View, FrozenDict, FrozenList, Digest, Enum, type)
_DICTS: frozenset[Any] = frozenset((dict, FrozenDict))
_LISTS: frozenset[type] = frozenset({list, tuple, FrozenList})
_BASES = (int, str, float, bytes, bytearray, dict, list, tuple, set, frozenset)


def thaw(value: Any) -> Any:
    """`value` without read-only wrappers, for contracts that pass on parts of the state."""
    parts: Any = value
    if isinstance(value, FrozenDict) or type(value) is dict:
        return {key: thaw(part) for key, part in parts.items()}
    if isinstance(value, FrozenList) or type(value) is list:
        return [thaw(part) for part in parts]
    return tuple([thaw(part) for part in parts]) if type(value) is tuple else parts


# Parts of an output -------------------------------------------------------------------------------


class LeftOut:
    """Stands for a part that is removed."""


LEFT_OUT = LeftOut()


def replaced(value: Any, part_for: Callable[[Any], Any]) -> Any:
    """A node's output in which `part_for(message)` replaces each message, and `LEFT_OUT` removes it.

    Looks at the top level, because a chat node may return its input there: `{"messages": [...]}`, a model's or
    dataclass's lists, a `Command`'s update, a bare list, an `Overwrite`, several commands and updates, a single
    message. Returns `value` itself if nothing is replaced.
    """
    given: Any = value
    is_overwrite, written = overwriting(given)
    if is_overwrite:
        other = replaced(written, part_for)
        return given if other is written else Overwrite(other)
    several = are_commands(value)
    if several or isinstance(value, list):
        others = [
            replaced(part, part_for) if several and not isinstance(part, BaseMessage) else part_for(part)
            for part in given
        ]
        if not any(map(is_not, others, given)):
            return given
        return [part for part in others if part is not LEFT_OUT]
    if isinstance(value, Command):
        update = _update_replaced(given.update, part_for)
        if update is given.update:
            return given
        return Command(graph=given.graph, update=update, resume=given.resume, goto=given.goto)
    if (other := part_for(given)) is not given:
        return given if other is LEFT_OUT else other
    if isinstance(value, BaseMessage):
        return given
    if isinstance(value, dict):
        changed = _fields_replaced(given, part_for)
        return {**given, **changed} if changed else given
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        changed = _fields_replaced(as_state(value), part_for)
        return with_parts(value, changed) if changed else given
    return given


def _update_replaced(update: Any, part_for: Callable[[Any], Any]) -> Any:
    if not isinstance(update, list | tuple):
        return replaced(update, part_for)
    try:
        pairs: list[tuple[Any, Any]] = [(key, part) for key, part in cast(Any, update)]
    except (TypeError, ValueError):
        return replaced(update, part_for)
    others = [(key, _field_replaced(part, part_for)) for key, part in pairs]
    changed = any(new is not old for (_, new), (_, old) in zip(others, pairs, strict=True))
    return others if changed else cast(Any, update)


def _fields_replaced(state: dict[Any, Any], part_for: Callable[[Any], Any]) -> dict[Any, Any]:
    others = {key: _field_replaced(part, part_for) for key, part in state.items()}
    return {key: part for key, part in others.items() if part is not state[key]}


def _field_replaced(part: Any, part_for: Callable[[Any], Any]) -> Any:
    if isinstance(part, list) or overwriting(part)[0]:
        return replaced(part, part_for)
    other = part_for(part)  # a single message
    return part if other is LEFT_OUT else other
