"""The destinations that the code of a node or of a conditional edge reveals, without running it."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from threading import RLock
from types import CodeType, FunctionType, MethodType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from arbiter._values.versions import NO_DATA, as_data, body_code, is_constant, kept_by, plain

_FRAMEWORK = ("langchain", "langgraph", "langsmith", "pydantic")
_DEPTH = 3
_MANY = 1000
_COUNTED = 100_000
_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(slots=True)
class Look:
    """The findings about one piece of code.

    `jumps`: it makes a `Command` with a `goto`; `leaves`: one for the parent graph. `pauses`: it calls
    `interrupt`. `strings` are the texts in it, or in constants that it names. By its return annotation,
    `several`: it may choose a list of destinations; `optional`: it may choose none, as a function without an
    annotation may; `commands_only`: it returns a `Command` and nothing else.
    """

    jumps: bool = False
    leaves: bool = False
    pauses: bool = False
    several: bool = False
    optional: bool = False
    commands_only: bool = False
    strings: set[str] = field(default_factory=set[str])


def look_at(runnable: Any) -> Look:
    """Read the functions of a body or a branch, and the functions of the same program that they call.

    LangChain's and LangGraph's own functions are not read: their destinations are declared.
    """
    seen = Look()
    bodies = list(_functions(runnable, 0))
    hints = list(map(_return_hint, bodies))
    # Without a function to read (another kind of Runnable), any answer is possible.
    seen.several = not bodies or any(map(_is_plural, hints))
    seen.commands_only = bool(bodies) and all(_is(hint, Command) for hint in hints)
    commands = False
    for function in _called(bodies, _is_framework):
        for code in _codes(function.__code__):
            named = dict(_named(code, function))
            # By identity, because a global's class may define equality as it likes.
            commands |= "Command" in code.co_names or any(v is Command for v in named.values())
            seen.pauses |= "interrupt" in code.co_names or any(v is interrupt for v in named.values())
            seen.several |= "Send" in code.co_names or any(v is Send for v in named.values())
            seen.leaves |= "PARENT" in code.co_names
            seen.strings |= set(_texts(code.co_consts))
            seen.strings |= set(_texts(v for v in named.values() if not callable(v)))
    seen.optional = seen.several or Any in hints
    seen.leaves |= Command.PARENT in seen.strings
    seen.leaves &= commands
    seen.jumps = commands and "goto" in seen.strings
    return seen


def code_behind(graph: Pregel[Any, Any, Any, Any]) -> list[Any]:
    """The user's functions that a graph consists of, with the texts and constants that each of them names, and the
    functions that they call, a few calls deep; then what frameworks hold for them, such as prompts. `__name__` and its
    like are no such texts: a script has others than the same module imported. Python's own functions and those of
    other packages may be of another version elsewhere.
    """
    seen: dict[int, Any] = {}
    held = list(_held(graph, "", seen))
    bodies = [each for each in held if isinstance(each, FunctionType)]
    own = set(map(_package, bodies))

    def is_foreign(function: FunctionType) -> bool:
        return _is_framework(function) or (_package(function) not in own and _is_installed(function))

    found = [[function, _constants(function)] for function in _called(bodies, is_foreign)]
    return [*found, *(each for each in held if not isinstance(each, FunctionType))]


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]


def _is_installed(thing: FunctionType | type) -> bool:
    """True for code of Python's own or of an installed package."""
    if isinstance(thing, FunctionType):
        path = thing.__code__.co_filename
    else:
        path = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    return _package(thing) in sys.stdlib_module_names or not _INSTALLED.isdisjoint(Path(path).parts)


def _constants(function: FunctionType) -> dict[str, Any]:
    """The texts that a function names, its constants, which have names in capitals, and the prompts and tools."""
    found: dict[str, Any] = {}
    for code in _codes(function.__code__):
        for name, value in _named(code, function):
            is_counted = isinstance(value, str | Runnable | BaseMessage) or (
                name.isupper() and isinstance(value, (*_CONTAINERS, bool, int, float))
            )
            if (
                is_counted
                and not name.startswith("__")
                and (data := _data(_owner(function, name, value), name, value))
            ):
                found[name] = data
    return found


def _owner(function: FunctionType, name: str, value: Any) -> Any:
    """The module of a global, which several functions may name, else the function that captured the value."""
    module = sys.modules.get(function.__module__)
    return module if getattr(module, name, None) is value else function


_CONTAINERS: Any = (list, tuple, dict, set, frozenset)

_known: WeakKeyDictionary[Any, dict[str, tuple[Any, Any]]] = WeakKeyDictionary()
"""The values of modules, functions and partial functions, with their data when it was first asked for: a cache that
grows as a graph runs changes no version."""
_known_lock = RLock()


def _data(owner: Any, name: str, value: Any) -> Any:
    """The parts of a value that count, which a module, a function or a partial function has under this name."""
    with _known_lock:
        known = _known.setdefault(owner, {})
        if name not in known or known[name][0] is not value:
            known[name] = value, []  # for a value that leads back to the owner
            known[name] = value, _parts(value, name)
        return known[name][1]


def _parts(value: Any, name: str = "") -> Any:
    """The parts of a value that count in a version, as JSON; none if its own methods fail."""
    try:
        return plain(list(itertools.islice(_counted(value, name, {}), _COUNTED)))
    except Exception:
        return []


def _counted(thing: Any, name: str, seen: dict[int, Any]) -> Iterator[Any]:
    """The data in a value of this name and the user's parts in it, without what differs from machine to machine."""
    parts: Any = thing
    if isinstance(thing, Enum):
        yield plain(thing)
    elif not isinstance(thing, _CONTAINERS):
        yield from [thing] if is_constant(name, thing) else _held(thing, name, seen)
    elif id(parts) not in seen:
        seen[id(parts)] = parts
        yield len(parts)
        if isinstance(thing, dict):
            for key, part in parts.items():
                yield from _counted(key, "", seen)
                yield from _counted(part, str(key), seen)
        elif isinstance(thing, set | frozenset):  # has another order in each process
            yield sorted(repr(part) for part in parts if is_constant("", part))
        else:
            for part in parts:
                yield from _counted(part, name, seen)


def _held(thing: Any, name: str, seen: dict[int, Any]) -> Iterator[Any]:
    """The user's parts of a body, or of something in it that has this name: functions, also such as middleware behind
    a framework's own, prompts, tools with their descriptions, schemas of answers, arguments of partial functions and
    of objects. A chat model has none: it is no part of the code.
    """
    if thing is None or id(thing) in seen or isinstance(thing, BaseLanguageModel):
        return
    seen[id(thing)] = thing  # kept, so that no other object gets its id
    target: Any = thing
    if isinstance(thing, str):
        if _PROMPT.search(name):
            yield thing
    elif isinstance(thing, BaseMessage):
        yield plain(target.content)
    elif isinstance(thing, Pregel):
        for body in _bodies(target):
            yield from _held(body, name, seen)
    elif isinstance(thing, list | tuple | dict):
        for part in target.values() if isinstance(thing, dict) else target:
            yield from _held(part, name, seen)
    elif isinstance(thing, functools.partial):
        yield from _held(target.func, name, seen)
        given: dict[str, Any] = {
            **{str(at): value for at, value in enumerate(target.args)},
            **target.keywords,
        }
        if _is_framework(target.func):
            yield from _held(given, name, seen)
        else:
            yield from (_data(thing, key, value) for key, value in given.items())
    elif isinstance(thing, MethodType):
        yield from _held(target.__func__, name, seen)
        yield from _held(target.__self__, name, seen)
    elif isinstance(thing, FunctionType):
        wrapped = _attribute(thing, "__wrapped__")
        yield from _held(wrapped, name, seen)
        if _is_framework(thing):
            for variable, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
                try:
                    value = cell.cell_contents
                except ValueError:  # not filled yet
                    continue
                yield from _held(value, variable, seen)
        elif wrapped is None or not _is_installed(thing):
            yield thing
    elif isinstance(thing, type):
        is_schema = issubclass(target, BaseModel) and not _is_framework(target)
        if is_schema and (schema := as_data(target)) is not NO_DATA:
            yield schema
    else:
        yield from _held_by(thing, name, seen)


def _held_by(thing: Any, name: str, seen: dict[int, Any]) -> Iterator[Any]:
    """The user's parts of an object that is no function."""
    if isinstance(thing, BaseTool):
        yield [thing.name, thing.description]
    kind: Any = cast(Any, type(thing))
    for part in (*_WRAPPED, *(_PARTS if _is_framework(kind) else ())):
        yield from _held(_attribute(thing, part), part, seen)
    if _is_framework(kind) or _package(kind) in sys.stdlib_module_names:
        return
    bases = [base for base in kind.__mro__ if not _is_framework(base) and not _is_installed(base)]
    if bases:
        own = _attribute(thing, "version")
        told = [own] if isinstance(own, str | int) else [*map(body_code, bases), kept_by(thing, _parts)]
        yield from filter(None, told)
    for base, method in itertools.product(bases or kind.__mro__, ("__call__", "invoke")):
        yield from _held(vars(base).get(method), method, seen)


def _attribute(thing: Any, name: str) -> Any:
    """An attribute that an object or its class has. `__getattr__` is not asked: that of a configurable chat model makes
    the model, which needs its package and key."""
    kind: Any = cast(Any, type(thing))
    try:
        is_own = name in getattr(thing, "__dict__", ()) or hasattr(kind, name)
        return getattr(thing, name) if is_own else None
    except Exception:
        return None


def _bodies(graph: Any) -> Iterator[Any]:
    """The bodies of a graph's nodes, its subgraphs, and its conditional edges."""
    for node in graph.nodes.values():
        yield node.bound
        yield from (inner for inner in node.subgraphs or () if isinstance(inner, Pregel))
    builder = getattr(graph, "builder", None)
    for branches in () if builder is None else builder.branches.values():
        for branch in branches.values():
            yield branch.path


_PROMPT = re.compile("prompt|template|system|instruction")
_WRAPPED = ("__wrapped__", "func", "afunc", "coroutine", "bound", "steps", "tools_by_name")
"""The attributes of objects that hold what they call."""
_PARTS = ("messages", "prompt", "template", "schema")
"""Further attributes of a framework's objects that hold what is the user's."""


def _functions(runnable: Any, depth: int) -> Iterator[FunctionType]:
    """The user's functions that a body consists of, found through their wrappers."""
    if runnable is None or depth > 8:
        return
    if isinstance(runnable, functools.partial):
        yield from _functions(cast(Any, runnable).func, depth + 1)
        return
    target: Any = inspect.unwrap(runnable) if callable(runnable) else runnable
    if inspect.ismethod(target):
        target = target.__func__
    if isinstance(target, FunctionType):
        if not _is_framework(target):
            yield target
        return
    inner: list[Any] = [getattr(target, name, None) for name in ("func", "afunc", "coroutine", "bound")]
    inner += list(getattr(target, "steps", None) or ())
    tools: Any = getattr(target, "tools_by_name", None)
    inner += list(cast(Mapping[str, Any], tools).values()) if isinstance(tools, Mapping) else []
    if all(part is None for part in inner) and not isinstance(target, type):
        inner = [getattr(cast(Any, type(target)), name, None) for name in ("__call__", "invoke")]
    for part in inner:
        yield from _functions(part, depth + 1)


def _called(
    functions: Iterable[FunctionType], is_left_out: Callable[[FunctionType], bool]
) -> Iterator[FunctionType]:
    """These functions and the functions that they name, a few calls deep."""
    seen: set[int] = set()
    ahead = [(function, 0) for function in functions]
    while ahead:
        function, depth = ahead.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        if depth < _DEPTH:
            for code in _codes(function.__code__):
                for _, value in _named(code, function):
                    if isinstance(value, FunctionType) and not is_left_out(value):
                        ahead.append((value, depth + 1))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _named(code: CodeType, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The objects behind the names in the code: globals, and variables of enclosing functions."""
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _inside(mapping: Any) -> list[Any]:
    return [*mapping, *mapping.values()]


def _texts(values: Iterable[Any], depth: int = 0) -> Iterator[str]:
    for value in itertools.islice(values, _MANY):
        if isinstance(value, str):
            yield value
        elif depth < _DEPTH and isinstance(value, tuple | list | frozenset | set):
            yield from _texts(cast(Iterable[Any], value), depth + 1)
        elif depth < _DEPTH and isinstance(value, dict):
            yield from _texts(_inside(value), depth + 1)


def _is_framework(thing: Any) -> bool:
    return _package(thing).startswith(_FRAMEWORK)


def _return_hint(function: FunctionType) -> Any:
    """The return annotation of a function, or `Any` without one."""
    try:
        return get_type_hints(function).get("return", Any)
    except Exception:  # names that exist only for a type checker
        return Any


def _is_plural(hint: Any) -> bool:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return any(_is(part, list, tuple, set, Sequence, Iterable) for part in parts)


def _is(hint: Any, *kinds: type) -> bool:
    return (get_origin(hint) or hint) in kinds
