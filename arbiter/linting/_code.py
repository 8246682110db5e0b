"""The destinations that the code of a node or of a conditional edge reveals, without running it."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from langgraph.types import Command, Send, interrupt

from arbiter._values.versions import cells
from arbiter._weaving.tools import codes, is_framework

_DEPTH = 3
_MANY = 1000


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
    for function in called(bodies, is_framework):
        for code in codes(function.__code__):
            named = dict(named_in(code, function))
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
        if not is_framework(target):
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


def called(
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
            for code in codes(function.__code__):
                for _, value in named_in(code, function):
                    if isinstance(value, FunctionType) and not is_left_out(value):
                        ahead.append((value, depth + 1))


def named_in(code: CodeType, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The objects behind the names in the code: globals, and variables of enclosing functions."""
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from cells(function).items()


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
