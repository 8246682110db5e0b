"""Versions: a short hash of everything that a number depends on, equal in every process and Python version.

A version is made of named parts, so that a difference can be named: "the rubric changed". Formatting, comments
and docstrings of code do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from inspect import getmodule, isclass, signature
from pathlib import Path
from threading import RLock
from types import CodeType, FunctionType, MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

from langchain_core.runnables import Runnable
from pydantic import BaseModel

from arbiter._values.states import DECIMAL_BITS

LENGTH = 16
"""The number of hex digits of a version."""


def hash_of(value: Any) -> str:
    """The SHA-256, in hex, of a value's `plain` form."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def version_from(parts: Mapping[str, str]) -> str:
    """The version that consists of these parts, each of them a hash by its name."""
    return hash_of(parts)[:LENGTH]


class Version:
    """The attribute `version` of objects with `version_parts`. A version of a class's or object's own replaces it."""

    def __get__(self, thing: Any, owner: type) -> str:
        return "" if thing is None else version_from(thing.version_parts())


def version_of(thing: Any) -> str:
    """The version of a function, a class or an object.

    An attribute `version` of the object replaces everything else.
    """
    own = getattr(thing, "version", None)
    if isinstance(own, str | int) and not isclass(thing):
        return str(own)
    return hash_of(thing)[:LENGTH]


def plain(value: Any) -> Any:
    """The value as JSON. Chat models and judges are None: they are no part of a question.

    A function is its code, an object of unknown kind its class, the code of that class, and its `version`, or else
    what it keeps of its constructor's arguments.
    """
    if isinstance(value, int) and value.bit_length() > DECIMAL_BITS:
        return hex(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return value.as_posix()
    parts: Any = value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in parts.items()}
    if isinstance(value, AbstractSet):
        return sorted((plain(part) for part in parts), key=repr)
    if isinstance(value, Sequence):
        return [plain(part) for part in parts]
    if isinstance(value, Runnable) or hasattr(value, "ajudge"):
        return None
    return _of_object(value)


def _of_object(value: Any) -> Any:
    if isclass(value):
        return (
            value.model_json_schema() if issubclass(value, BaseModel) else [path_of(value), *_code_of(value)]
        )
    if isinstance(value, FunctionType | MethodType):
        return code_of(value)
    if type(value) is partial:
        return [plain(value.func), plain(value.args), plain(value.keywords)]
    if isinstance(value, BaseModel):
        return [path_of(value.__class__), value.model_dump(mode="json")]
    kind: Any = value.__class__
    if is_dataclass(value):
        return [path_of(kind), {part.name: plain(getattr(value, part.name)) for part in fields(value)}]
    own: Any = getattr(value, "version", None)
    if isinstance(own, str | int):
        return [path_of(kind), str(own)]
    kept = kept_by(value)
    return [*plain(kind), kept] if kept else plain(kind)


def path_of(kind: type) -> str:
    """The dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def parameters_of(thing: Any, kind: type | None = None) -> dict[str, Any]:
    """The parameters of the constructor of `kind`, by default that of its class, that an object keeps under their
    names, with their values."""
    names = _parameters_of(kind or type(thing))
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def _parameters_of(kind: Any) -> list[str]:
    """The names of the parameters of a constructor; none if they cannot be read."""
    try:
        return list(signature(kind.__init__).parameters)[1:]
    except (TypeError, ValueError):
        return []


_kept: dict[Any, tuple[ref[Any], Any]] = {}
"""What objects, by their ids and the form, kept of their arguments when they were first asked: a list that grows later
changes no version. They are not asked for their own `==` and `hash`."""

_kept_lock = RLock()


def kept_by(thing: Any, form: Callable[[Any], Any] | None = None) -> Any:
    """The arguments of its constructor that an object keeps as they are or behind `_`, as far as they are data, in a
    form: as JSON, or what the function returns.
    """
    form = form or as_data
    key = id(thing), form
    with _kept_lock:
        if key in _kept and _kept[key][0]() is thing:
            return _kept[key][1]
        try:
            own = ref(thing, lambda _: _kept.pop(key, None))
        except TypeError:  # it has slots
            return _arguments_of(thing, form)
        _kept[key] = own, {}  # for an argument that leads back to it
        _kept[key] = own, _arguments_of(thing, form)
        return _kept[key][1]


def _arguments_of(thing: Any, form: Callable[[Any], Any]) -> Any:
    own: Mapping[str, Any] = getattr(thing, "__dict__", {})
    names = sorted(thing.model_fields_set) if isinstance(thing, BaseModel) else _parameters_of(type(thing))
    kept = {name: own[key] for name in names for key in (name, f"_{name}") if key in own}
    counted = {name: value for name, value in kept.items() if is_constant(name, value)}
    return {name: found for name, value in counted.items() if (found := form(value)) is not NO_DATA}


def is_constant(name: str, value: Any) -> bool:
    """True for data of that name that may count in a version. A place on the disk and the key of a provider do not:
    they differ from machine to machine.
    """
    if isinstance(value, str):
        return not (_KEY.search(name) or _is_place(value))
    return isinstance(value, _DATA)


def _is_place(text: str) -> bool:
    """True for an absolute path, whether or not this machine has it; `/help` is not taken for one."""
    path = Path(text)
    return path.is_absolute() and len(path.parts) > 2


_DATA = (bool, int, float, str, tuple, list, dict, type(None))
_KEY = re.compile(r"((api|access|secret)_?(key|token)|password)$", re.IGNORECASE)
NO_DATA = object()


def as_data(value: Any) -> Any:
    """The value as JSON; `NO_DATA` if it has no such form, such as a list that holds itself."""
    try:
        return plain(value)
    except Exception:
        return NO_DATA


# Code ---------------------------------------------------------------------------------------------


_codes: WeakKeyDictionary[FunctionType, Any] = WeakKeyDictionary()
"""The code of functions, as it was when it was first asked for."""


def code_of(function: Any) -> Any:
    """A function's code: its syntax tree without docstrings and positions, else its bytecode and constants; and the
    values that it captured.

    It is that of the first call: a function that counts its calls in a variable that it captured has one version, and
    so has its counterpart in another process, which begins to count anew.
    """
    function = getattr(function, "__func__", function)
    if function not in _codes:
        _codes[function] = _read_code(function)
    return _codes[function]


def _read_code(function: FunctionType) -> Any:
    code: CodeType = function.__code__
    tree = _tree_of(code)
    values = [
        found
        for name, value in cells(function).items()
        if is_constant(name, value) and (found := as_data(value)) is not NO_DATA
    ]
    return [_shape(tree) if tree is not None else _bytecode(code), values]


def cells(function: Any) -> dict[str, Any]:
    """The variables around a function that it uses, by name, as far as they have a value yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found


def _code_of(kind: type) -> Iterator[Any]:
    """The code of a class and of its base classes, as far as it is a user's own."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _NOT_USERS:
            yield body_code(base)


def body_code(kind: type) -> Any:
    """The code of a class without that of its base classes."""
    if kind not in _shapes and (tree := _class_tree(kind)) is not None:
        _shapes[kind] = _shape(tree)
    if kind in _shapes:
        return _shapes[kind]
    members: Mapping[str, Any] = vars(kind)
    return {name: code_of(each) for name, each in members.items() if isinstance(each, FunctionType)}


_NOT_USERS = frozenset({"builtins", "arbiter", "abc", "typing", "langchain_core", "langgraph", "pydantic"})
"""Packages whose classes are known by their path: their code may change without a change of meaning."""


def _tree_of(code: CodeType) -> ast.AST | None:
    """The syntax tree of a function. It is None without source, or if one of several lambdas may be meant."""
    module = _module_tree(code.co_filename)
    functions = [] if module is None else _functions(module)
    found = [node for node in functions if _first_line(node) == code.co_firstlineno]
    if code.co_name != "<lambda>":
        found = [node for node in found if getattr(node, "name", None) == code.co_name]
    else:
        found = [node for node in found if isinstance(node, ast.Lambda) and _holds(node, code)]
    return found[0] if len(found) == 1 else None


def _first_line(node: Any) -> int:
    decorators: list[Any] = getattr(node, "decorator_list", [])
    lines: list[int] = [node.lineno, *(each.lineno for each in decorators)]
    return min(lines)


def _holds(node: ast.Lambda, code: CodeType) -> bool:
    """True if the lambda's text has all the places that its bytecode comes from."""
    begin = node.body.lineno, node.body.col_offset
    end = node.body.end_lineno or 0, node.body.end_col_offset or 0
    for line, _, column, _ in code.co_positions():
        # The first instruction belongs to the whole line.
        if line is not None and column and not begin <= (line, column) <= end:
            return False
    return True


@cache
def _parsed(filename: str, size: int, first: str) -> ast.AST | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return None


def _module_tree(filename: str) -> ast.AST | None:
    lines = linecache.getlines(filename)
    return (
        _parsed(filename, len(lines), hashlib.sha256("".join(lines).encode()).hexdigest()) if lines else None
    )


@cache
def _functions(tree: ast.AST) -> list[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


_shapes: WeakKeyDictionary[type, Any] = WeakKeyDictionary()
"""The code of classes whose source was found."""


def _class_tree(kind: type) -> ast.AST | None:
    """The syntax tree of a class: of several with its name, the one that has its methods."""
    filename = getattr(getmodule(kind), "__file__", None)
    codes = [each.__code__ for each in vars(kind).values() if isinstance(each, FunctionType)]
    written = [code for code in codes if code.co_qualname.startswith(kind.__qualname__ + ".")]
    tree = _module_tree(written[0].co_filename if written else filename or "")
    if tree is None:
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.name == kind.__name__
        and all(node.lineno <= code.co_firstlineno <= (node.end_lineno or 0) for code in written)
    ]
    return found[-1] if found else None


def _shape(node: Any) -> Any:
    """A syntax tree as lists, without positions, docstrings and fields that are empty.

    `ast.dump` and `ast.unparse` give other texts in other versions of Python.
    """
    if isinstance(node, ast.Constant):
        return [type(node.value).__name__, repr(node.value)]
    if isinstance(node, ast.AST):
        found: list[Any] = []
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(node, _WITH_DOCSTRING):
                value = _without_docstring(node.body)
            if value is not None and value != []:
                found.append([name, _shape(value)])
        return [type(node).__name__, found]
    parts: Any = node
    return [_shape(part) for part in parts] if isinstance(node, list) else repr(node)


_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _without_docstring(body: list[Any]) -> list[Any]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def _bytecode(code: CodeType) -> Any:
    constants = [_constant(each) for each in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names)]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _bytecode(value)
    # The order of a set differs from process to process.
    return sorted(map(repr, cast(Any, value))) if isinstance(value, frozenset) else repr(value)
