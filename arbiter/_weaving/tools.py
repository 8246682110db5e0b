"""The LangChain tools in a node's body, found without running it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from langchain_core.runnables import Runnable
from langgraph.pregel import Pregel

from arbiter._values.versions import cells

_DEPTH = 8
_MANY = 5_000
_FRAMEWORK = ("langchain", "langgraph", "langsmith", "pydantic")
_GRAPH: Any = Pregel
_HOLDERS = ("bound", "func", "afunc", "coroutine", "steps", "tools_by_name", "branches", "runnable")
"""The attributes in which runnables and tools keep the objects that they call."""


class HeldTools:
    """The tools of one body, searched on first use."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self._found: Mapping[str, Sequence[Any]] | None = None

    def __call__(self) -> Mapping[str, Sequence[Any]]:
        if self._found is None:
            self._found = tools_in(self._body)
        return self._found


def tools_in(body: Any) -> Mapping[str, Sequence[Any]]:
    """The tools by name; several tools may share a name. Tools that exist only during a run are not found."""
    base: Any = getattr(sys.modules.get("langchain_core.tools.base"), "BaseTool", None)
    if base is None:
        return {}  # without the class there are no tools
    found: dict[str, list[Any]] = {}
    seen: dict[int, Any] = {}  # the objects too: the next one could have the address of a freed one
    ahead: list[tuple[Any, int]] = [(body, 0)]
    while ahead and len(seen) < _MANY:
        value, depth = ahead.pop()
        if (
            id(value) in seen
            or depth > _DEPTH
            or value is None
            or isinstance(value, str | int | float | bytes)
        ):
            continue
        seen[id(value)] = value
        if isinstance(value, base):
            found.setdefault(value.name, []).append(value)
        ahead.extend((part, depth + 1) for part in _parts(value))
    return found


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from islice(cast(Any, value).values(), _MANY)
    elif isinstance(value, list | tuple | Set):
        yield from islice(cast(Iterable[Any], value), _MANY)
    elif isinstance(value, _GRAPH):
        yield from (node.bound for node in value.nodes.values())
    elif isinstance(value, partial):
        part = cast(Any, value)
        yield from (part.func, part.args, part.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        if not is_framework(value):
            yield from _named(value)
    elif isinstance(value, Runnable) or hasattr(value, "tools_by_name"):
        yield from (getattr(cast(Any, value), name, None) for name in _HOLDERS)
    elif not isinstance(value, type | ModuleType):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()
        yield next((vars(cls)["__call__"] for cls in type(value).__mro__ if "__call__" in vars(cls)), None)


def _named(function: FunctionType) -> Iterator[Any]:
    """The objects behind the names in a function's code: globals, parts of modules, variables around it,
    defaults.
    """
    for code in codes(function.__code__):
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                yield from (vars(value).get(part) for part in code.co_names)
            elif not isinstance(value, type):
                yield value
    yield from cells(function).values()
    yield from (function.__defaults__, function.__kwdefaults__, getattr(function, "__wrapped__", None))


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code and those of the functions inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes(const)


def package(thing: Any) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]


def is_framework(thing: Any) -> bool:
    """True for an object of LangChain, LangGraph or pydantic."""
    return package(thing).startswith(_FRAMEWORK)
