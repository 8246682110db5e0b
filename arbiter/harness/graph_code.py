"""The user's parts of a graph, which count in its version: functions, constants, prompts, tools, arguments.

graph ─▶ bodies of nodes and edges ─▶ the user's functions ─▶ the functions and constants that these name
                                  └▶ what frameworks and objects hold for them
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from threading import RLock
from types import FunctionType, MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel
from pydantic import BaseModel

from arbiter._values.versions import NO_DATA, as_data, body_code, cells, hash_of, is_constant, kept_by, plain
from arbiter._weaving.tools import codes, is_framework, package
from arbiter.linting._code import called, named_in

_COUNTED = 100_000
"""Values of a constant that count."""
_INSTALLED = {"site-packages", "dist-packages"}


def code_behind(graph: Pregel[Any, Any, Any, Any]) -> list[Any]:
    """The user's functions that a graph consists of, with the texts and constants that each of them names, and the
    functions that they call, a few calls deep; then what frameworks hold for them, such as prompts. `__name__` and its
    like are no such texts: a script has others than the same module imported. Python's own functions and those of
    other packages may be of another version elsewhere.
    """
    seen: dict[int, Any] = {}
    held = list(_held(graph, "", seen))
    bodies = [each for each in held if isinstance(each, FunctionType)]
    own = set(map(package, bodies))

    def is_foreign(function: FunctionType) -> bool:
        return is_framework(function) or (package(function) not in own and _is_installed(function))

    found = [[function, _constants(function)] for function in called(bodies, is_foreign)]
    return [*found, *(each for each in held if not isinstance(each, FunctionType))]


def named_parts(code: list[Any]) -> dict[str, str]:
    """Short hashes of the parts that `code_behind` returned, so that a message can name what changed in them. Each
    recorded answer has them."""
    parts: dict[str, list[Any]] = {}
    for part in code:
        if isinstance(part, list) and part and isinstance(part[0], FunctionType):
            function, constants = cast("tuple[FunctionType, dict[str, Any]]", part)
            parts.setdefault(f"the function {function.__qualname__}", []).append(function)
            for name, data in constants.items():
                parts.setdefault(f"{name} in {function.__qualname__}", []).append(data)
        else:
            parts.setdefault("a prompt, a tool, a schema or an argument", []).append(part)
    return {name: hash_of(found)[:8] for name, found in parts.items()}


def _is_installed(thing: FunctionType | type) -> bool:
    """True for code of Python's own or of an installed package."""
    if isinstance(thing, FunctionType):
        path = thing.__code__.co_filename
    else:
        path = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    return package(thing) in sys.stdlib_module_names or not _INSTALLED.isdisjoint(Path(path).parts)


def _constants(function: FunctionType) -> dict[str, Any]:
    """The texts that a function names, its constants, which have names in capitals, and the prompts and tools."""
    found: dict[str, Any] = {}
    for code in codes(function.__code__):
        for name, value in named_in(code, function):
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
        if is_framework(target.func):
            yield from _held(given, name, seen)
        else:
            yield from (_data(thing, key, value) for key, value in given.items())
    elif isinstance(thing, MethodType):
        yield from _held(target.__func__, name, seen)
        yield from _held(target.__self__, name, seen)
    elif isinstance(thing, FunctionType):
        wrapped = _attribute(thing, "__wrapped__")
        yield from _held(wrapped, name, seen)
        if is_framework(thing):
            for variable, value in cells(thing).items():
                yield from _held(value, variable, seen)
        elif wrapped is None or not _is_installed(thing):
            yield thing
    elif isinstance(thing, type):
        is_schema = issubclass(target, BaseModel) and not is_framework(target)
        if is_schema and (schema := as_data(target)) is not NO_DATA:
            yield schema
    else:
        yield from _held_by(thing, seen)


def _held_by(thing: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """The user's parts of an object that is no function."""
    if isinstance(thing, BaseTool):
        yield [thing.name, thing.description]
    kind: Any = cast(Any, type(thing))
    for part in (*_WRAPPED, *(_PARTS if is_framework(kind) else ())):
        yield from _held(_attribute(thing, part), part, seen)
    if is_framework(kind) or package(kind) in sys.stdlib_module_names:
        return
    bases = [base for base in kind.__mro__ if not is_framework(base) and not _is_installed(base)]
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
