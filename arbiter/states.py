"""States as data: one dict shape for every node input and output, read-only views, snapshots, digests.

LangGraph lets a node take and return almost anything. Contracts and the history see one shape, a dict;
the node and LangGraph keep the object itself.
"""

from __future__ import annotations

import copy
import copyreg
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from math import inf
from operator import is_not
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any, Literal, NoReturn, SupportsIndex, TypeGuard, cast, overload
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from arbiter.errors import ReadOnlyTypeError

Snapshot = Literal["shallow", "deep", "digest"]
ROOT = "__root__"


def as_state(value: object) -> dict[str, Any]:
    """`value` as a new dict: the shape in which contracts and the history see it.

    Dicts, pydantic models and dataclasses give their fields; `None` gives `{}`; a `Command` gives its
    update; a list of commands and updates gives all updates, joined in order; a list of messages, which LangGraph
    writes to the root, and anything else give `{"__root__": value}`. Nothing is copied below the top.
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
        # `__dict__` and not `model_dump`: same objects as the node sees, no conversion, extras included.
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value) if hasattr(value, f.name)}
    parts: Any = value
    if isinstance(value, list | tuple) and any(isinstance(part, Command) for part in parts):
        return joined(map(as_state, parts))
    return {ROOT: value}


def joined(updates: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several updates of one node run as one, in order.

    What is written twice goes to a reducer, so both count: lists and messages are put in one list, mappings in one
    mapping. An `Overwrite` is all that its key gets. Of anything else the last one stands.
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
    """Whether that is a list, or what LangChain takes for a message, which goes to a list."""
    pair: Any = value
    if isinstance(value, tuple):
        return len(pair) == 2 and all(isinstance(part, str) for part in pair)
    return isinstance(value, list | BaseMessage) or (isinstance(value, Mapping) and "role" in pair)


def overwriting(value: Any) -> tuple[bool, Any]:
    """Whether that is an `Overwrite`, in any of the forms in which LangGraph takes one, and what it writes."""
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
    return Overwrite(better) if overwriting(value)[0] else better


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
    """`value`, a node's input, with some fields replaced: a new object of the same kind.

    A pydantic model is validated again. A value without fields is replaced by `changes["__root__"]`.
    """
    state: Any = value
    if isinstance(value, Mapping):
        return {**state, **changes}
    if isinstance(value, BaseModel):
        return type(value).model_validate({**as_state(value), **changes})
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{**as_state(value), **changes})
    if ROOT in changes:
        return changes[ROOT]
    raise TypeError(f"a {type(value).__name__} has no fields to set")


def with_own_list(value: Any, key: str) -> Any:
    """`value`, a node's input, as a new object of the same kind with a copy of the list at `key`: what the node appends
    there is its own. `value` itself if there is no list."""
    part = as_state(value).get(key)
    if not isinstance(part, list):
        return value
    own: list[Any] = list[Any].__getitem__(part, slice(None))  # pyright: ignore[reportUnknownArgumentType]
    given: Any = value
    if isinstance(value, BaseModel):
        return value.model_copy(update={key: own})
    if isinstance(value, Mapping):
        return {**given, key: own}
    if key == ROOT:
        return own
    twin = copy.copy(value)
    object.__setattr__(twin, key, own)  # also of a frozen dataclass
    return twin


def with_seen(value: object, seen: SeenDict, *, is_shared: bool) -> Any:
    """A node's input with what was `seen` of it as it was then: a new object of the same kind, or `value` itself if
    nothing was seen that could have been changed. `is_shared`: so can the fields themselves."""
    given: Any = value
    fields = seen.changed()
    if is_shared and ROOT not in seen:
        fields |= {key: part for key, part in dict[str, Any].items(seen) if type(part) in _ATOMS}
    elif not fields:
        return given
    if ROOT in seen and not isinstance(value, Mapping | BaseModel):
        return fields.get(ROOT, given)
    if isinstance(value, dict):
        twin: Any = copy.copy(given) if not is_shared else {key: given[key] for key in seen if key in given}
        twin.update(fields)
        return twin
    if isinstance(value, BaseModel):
        return value.model_copy(update=fields)
    if is_dataclass(given) and not isinstance(value, type):
        twin = copy.copy(given)
        for name, part in fields.items():
            object.__setattr__(twin, name, part)  # also of one that is frozen
        return twin
    return given


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether that is a finite number, as a parameter can be. True is none."""
    return not isinstance(value, bool) and isinstance(value, int | float) and -inf < value < inf


def is_whole(value: object, *, least: int) -> TypeGuard[int]:
    """Whether that is a whole number from `least` on. True is none."""
    return not isinstance(value, bool) and isinstance(value, int) and value >= least


def number_at(state: Mapping[str, Any], key: str) -> float | None:
    """The number at `key`, or None if there is none. NaN is none; True is not 1."""
    value: Any = state.get(key)
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if number != number else number


def snapshot(value: object, how: Snapshot) -> dict[str, Any]:
    """What the history keeps of a node's input or output."""
    if how == "shallow":
        return value.copy() if type(value) is dict else as_state(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if how == "deep":
        return {key: _deepcopy(part) for key, part in as_state(value).items()}
    return {key: _digest_or_mark(part) for key, part in as_state(value).items()}


class Digest(str):
    """What the history keeps in the place of a value with `snapshot="digest"`: nobody takes it for a text."""

    __slots__ = ()


def _digest_or_mark(value: object) -> Digest:
    try:
        return Digest(digest(value))
    except Exception:
        return Digest(f"no digest {uuid4().hex}")  # never the same: it must not look like another value


def digest(value: object) -> str:
    """A short stable name for `value`: equal values, also in another process, give equal digests; others do not.

    A tuple is a list, and what has no attributes of its own is what its built-in base is. Raises `TypeError` for
    what has no value that could be told: a lock, a generator, a lambda, what contains itself.
    """
    text = _encode(_plain(value, 0))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_MAX_DEPTH = 100
_SIMPLE = frozenset({type(None), bool, int, str})
# Made once: `json.dumps` with options makes an encoder at every call.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _plain(value: object, depth: int) -> Any:
    """`value` as JSON-able data that keeps types apart: every JSON array begins with what it stands for.

    No `repr`: that may hold an address, or leave things out.
    """
    cls: Any = type(value)
    if cls in _SIMPLE:
        return value
    if depth > _MAX_DEPTH:
        raise TypeError(f"it is nested deeper than {_MAX_DEPTH} levels, so it cannot be told from others")
    depth += 1
    inside: Any = value
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
    return ["map", *sorted(([_plain(key, depth), part] for key, part in pairs), key=_map_key)]


def _map_key(pair: list[Any]) -> str:
    return _encode(pair[0])


def _plain_object(value: object, kind: str, depth: int) -> Any:
    """Of what pickle would keep of it, so with slots, and with what types written in C hold."""
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
        # The order of a set's parts and of a mapping's keys says nothing.
        plain = _plain(base(value), depth)
        return plain if not state else ["like", kind, plain, _plain(state, depth)]
    rest = (make, args, state, *([] if part is None else list(part) for part in (items, pairs)), *more)
    return ["object", kind, *[_plain(part, depth) for part in rest]]


def _lasting(value: object, state: Any) -> Any:
    """An object's attributes without what a `cached_property` has kept: whether it was read is no part of it."""
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

    Dicts and lists raise on every change, at every depth; scalars pass; other objects are copied when
    they are reached, so that a change stays with whoever made it. Work is done on access only.
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
    return _deepcopy(given)


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})


def is_atom(value: object) -> bool:
    return type(value) in _ATOMS


def _deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return _copied_where_possible(value, {} if memo is None else memo)


def _copied_where_possible(value: object, memo: dict[int, Any]) -> Any:
    """A copy of what holds something that cannot be copied: a lock, a socket, a generator. That itself is shared, and
    so is what lets go of something at its end: a copy of it would do so too."""
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


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed and hands out frozen values. Equal to a dict with the same items."""

    __slots__ = ()

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
        # With an `__iter__` of its own a subclass is copied through `keys` and `[]`: dict(view) is frozen too.
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
    """A list that cannot be changed and hands out frozen elements."""

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


class SeenDict(FrozenDict):
    """A frozen dict that remembers what it has handed out: `kept()` has that, as it was then, and all else as it is."""

    __slots__ = ("_seen",)

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._seen: dict[Any, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = _item(self, key)
        return value if type(value) in _ATOMS else _seen_in(self._seen, key, value)

    def get(self, key: str, default: Any = None) -> Any:
        value = _get(self, key, default)
        return value if type(value) in _ATOMS or key not in self else self[key]

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def changed(self) -> dict[str, Any]:
        """Of what was handed out, and could be changed, what it was then."""
        return {key: _kept(part) for key, part in self._seen.items() if part is not _item(self, key)}

    def kept(self) -> dict[str, Any]:
        return dict[str, Any].copy(self) | self.changed()

    # These look at all that is in it.

    def __eq__(self, other: object) -> bool:
        return self.copy() == other

    def __ne__(self, other: object) -> bool:
        return self.copy() != other

    def __repr__(self) -> str:
        return repr(self.copy())

    __hash__ = None  # type: ignore[assignment]


class SeenList(FrozenList):
    """As `SeenDict`, a list."""

    __slots__ = ("_seen",)

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._seen: dict[Any, Any] = {}

    def _at(self, index: int) -> Any:
        value = _element(self, index)
        return value if type(value) in _ATOMS else _seen_in(self._seen, index, value)

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
        for index, part in self._seen.items():
            kept[index] = _kept(part)
        return kept

    def __eq__(self, other: object) -> bool:
        return self.copy() == other

    def __ne__(self, other: object) -> bool:
        return self.copy() != other

    def __repr__(self) -> str:
        return repr(self.copy())

    def __contains__(self, value: object) -> bool:
        return value in self.copy()

    def index(self, value: Any, *where: Any) -> int:
        return self.copy().index(value, *where)

    def count(self, value: Any) -> int:
        return self.copy().count(value)

    __hash__ = None  # type: ignore[assignment]


_element = cast(Any, list.__getitem__)


def _seen_in(seen: dict[Any, Any], key: Any, value: Any) -> Any:
    """The view of a part, the same one each time. Of an object, a copy of the copy that is kept."""
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


# A tuple and not `A | B`, which is put together again every time that it is asked for.
_UNCHANGING = (FrozenDict, FrozenList, Digest, Enum, type)
_DICTS: frozenset[Any] = frozenset((dict, FrozenDict))
_LISTS: frozenset[type] = frozenset({list, tuple, FrozenList})
_BASES = (int, str, float, bytes, bytearray, dict, list, tuple, set, frozenset)


def thaw(value: Any) -> Any:
    """`value` without read-only wrappers, for what a contract hands on from what it was shown."""
    parts: Any = value
    if isinstance(value, FrozenDict):
        return {key: thaw(part) for key, part in parts.items()}
    if isinstance(value, FrozenList):
        return [thaw(part) for part in parts]
    if type(value) is dict:
        return {key: thaw(part) for key, part in parts.items()}
    if type(value) in (list, tuple):
        return type(parts)([thaw(part) for part in parts])
    return parts


# Transient input ----------------------------------------------------------------------------------


def without(value: Any, is_transient: Callable[[Any], bool]) -> Any:
    """A node's output without messages that were only lent to it for one call.

    Looks at the lists of the top level (`{"messages": [...]}`, a model's or dataclass's, a `Command`'s update, a bare
    list, an `Overwrite`, a list of commands), where a chat node returns what it was given. Returns `value` itself when
    there is nothing to take out.
    """
    given: Any = value
    is_overwrite, written = overwriting(given)
    if is_overwrite:
        left = without(written, is_transient)
        return given if left is written else Overwrite(left)
    if isinstance(value, list):
        left = [_command_without(part, is_transient) for part in given if not is_transient(part)]
        return left if len(left) != len(given) or any(map(is_not, left, given)) else given
    if isinstance(value, dict):
        changed = _lists_without(given, is_transient)
        return {**given, **changed} if changed else given
    if isinstance(value, Command):
        update = _update_without(given.update, is_transient)
        if update is given.update:
            return given
        return Command(graph=given.graph, update=update, resume=given.resume, goto=given.goto)
    if isinstance(value, BaseModel):
        changed = _lists_without(as_state(value), is_transient)
        return given.model_copy(update=changed) if changed else given
    if is_dataclass(value) and not isinstance(value, type):
        changed = _lists_without(as_state(value), is_transient)
        cleaned: Any = copy.copy(given) if changed else given
        for name, part in changed.items():
            object.__setattr__(cleaned, name, part)  # also of one that is frozen
        return cleaned
    return given


def _command_without(part: Any, is_transient: Callable[[Any], bool]) -> Any:
    """One of several commands and updates that a node returns."""
    return without(part, is_transient) if isinstance(part, Command) else part


def _update_without(update: Any, is_transient: Callable[[Any], bool]) -> Any:
    if not isinstance(update, list | tuple):
        return without(update, is_transient)
    try:
        pairs: list[tuple[Any, Any]] = [(key, part) for key, part in cast(Any, update)]
    except (TypeError, ValueError):
        return without(update, is_transient)
    left = [(key, without(part, is_transient)) for key, part in pairs]
    changed = any(new is not old for (_, new), (_, old) in zip(left, pairs, strict=True))
    return left if changed else cast(Any, update)


def _lists_without(state: dict[Any, Any], is_transient: Callable[[Any], bool]) -> dict[Any, Any]:
    """The lists of a state that have something to take out, without it."""
    lists: dict[Any, Any] = {
        key: part for key, part in state.items() if isinstance(part, list) or overwriting(part)[0]
    }
    left = {key: without(part, is_transient) for key, part in lists.items()}
    return {key: part for key, part in left.items() if part is not lists[key]}
