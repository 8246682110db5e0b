"""What the code of a node or of a conditional edge shows about where it may go, without running it."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, cast, get_origin, get_type_hints

from langgraph.types import Command, Send, interrupt

_FRAMEWORK = ("langchain", "langgraph", "langsmith", "pydantic")
_DEPTH = 3
_MANY = 1000
_LISTS = frozenset({"BUILD_LIST", "LIST_APPEND", "LIST_EXTEND", "BUILD_TUPLE"})


@dataclass(slots=True)
class Look:
    """What was seen.

    `jumps`: it makes a `Command` with a `goto`; `leaves`: one for the parent graph. `several`: it may answer a list
    of destinations, also an empty one. `counts`: it compares numbers by order, as a loop does that counts its rounds.
    `pauses`: it calls `interrupt`. `strings` are the texts that stand in it, or in constants that it names.
    `commands_only`: its return annotation promises a `Command` and nothing else.
    """

    jumps: bool = False
    leaves: bool = False
    several: bool = False
    counts: bool = False
    pauses: bool = False
    commands_only: bool = False
    strings: set[str] = field(default_factory=set[str])


def look_at(runnable: Any) -> Look:
    """Look into the functions of a body or a branch, and into the functions of the same program that they call.

    LangChain's and LangGraph's own functions are not looked into: where they go is declared.
    """
    seen = Look()
    bodies = list(_functions(runnable, 0))
    # Nothing to read (a Runnable of another kind): it may answer anything.
    seen.several = not bodies
    seen.commands_only = bool(bodies) and all(map(_promises_command, bodies))
    commands = False
    for function in _called(bodies):
        for code in _codes(function.__code__):
            named = dict(_named(code, function))
            # By identity: what a global is equal to, only its own class knows.
            commands |= "Command" in code.co_names or any(v is Command for v in named.values())
            seen.pauses |= "interrupt" in code.co_names or any(v is interrupt for v in named.values())
            seen.several |= "Send" in code.co_names or any(v is Send for v in named.values())
            seen.leaves |= "PARENT" in code.co_names
            seen.strings |= set(_texts(code.co_consts))
            seen.strings |= set(_texts(v for v in named.values() if not callable(v)))
            _instructions(code, named, seen)
    seen.leaves |= Command.PARENT in seen.strings
    seen.leaves &= commands
    seen.jumps = commands and "goto" in seen.strings
    return seen


def _instructions(code: CodeType, named: Mapping[str, Any], seen: Look) -> None:
    before: Any = None
    for op in dis.get_instructions(code):
        seen.several |= op.opname in _LISTS
        if op.opname == "COMPARE_OP" and ("<" in op.argrepr or ">" in op.argrepr):
            # Against a float it is a measure of quality, which may stay low for ever.
            against = named.get(before, before) if isinstance(before, str) else before
            seen.counts |= not isinstance(against, float)
        if op.opname not in ("CACHE", "PRECALL", "EXTENDED_ARG"):
            before = op.argval


def _functions(runnable: Any, depth: int) -> Iterator[FunctionType]:
    """The user's functions that a body is made of, through the wrappers around them."""
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


def _called(functions: Iterable[FunctionType]) -> Iterator[FunctionType]:
    """These functions, and those that they name, a few calls deep."""
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
                    if isinstance(value, FunctionType) and not _is_framework(value):
                        ahead.append((value, depth + 1))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _named(code: CodeType, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What the names in the code stand for: globals, and variables of enclosing functions."""
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


def _is_framework(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0].startswith(_FRAMEWORK)


def _promises_command(function: FunctionType) -> bool:
    try:
        hint: Any = get_type_hints(function).get("return")
    except Exception:  # names that only a type checker knows
        return False
    return get_origin(hint) is Command or hint is Command
