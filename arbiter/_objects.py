"""Objects that commands and files name by path: graphs, builders, functions."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from arbiter._values.kinds import is_mapping
from arbiter.errors import ConfigurationError, describe, nearest


def load_object(where: str, noun: str = "graph") -> Any:
    """The object at "package.module:name" or "path/to/file.py:name", which is meant to be a `noun`.

    The working directory is importable. Raises `ConfigurationError` if there is nothing at that place.
    """
    module_name, found, name = where.rpartition(":")
    if not found or not module_name or not name:
        raise ConfigurationError(
            f"expected package.module:{noun} or path/to/file.py:{noun}, got {where!r}. Name the {noun} after a colon."
        )
    module = _module(module_name)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            names = sorted(
                name for name, value in vars(module).items() if isinstance(value, StateGraph | Pregel)
            )
            told = f" Graphs there: {', '.join(names)}." if names else ""
            public = [name for name in dir(target) if not name.startswith("_")]
            raise ConfigurationError(f"{module_name} has no {part!r}.{told}{nearest(part, public)}")
        target = getattr(target, part)
    return target


def model_named(text: str) -> Any:
    """The chat model that "path/to/file.py:name" names; any other text, such as "openai:gpt-5-mini", as it is."""
    return load_object(text, "model") if ".py:" in text else text


def load_graph(where: str) -> Any:
    """The graph or builder at "package.module:name" or "path/to/file.py:name"; a function there is called.

    The working directory is importable. Raises `ConfigurationError` if there is no graph at that place.
    """
    target = load_object(where)
    if not isinstance(target, StateGraph | Pregel) and inspect.isfunction(target):
        target = _called(target, where)
    if not isinstance(target, StateGraph | Pregel):
        raise ConfigurationError(
            f"{where} is of type {type(target).__name__}; expected a compiled graph, a StateGraph, or a function "
            "without arguments that returns one."
        )
    return target  # pyright: ignore[reportUnknownVariableType] - LangGraph leaves its generics open


def ignored_keys(graph: Any, inputs: Iterable[Any]) -> Iterator[tuple[str, int, str]]:
    """The keys of inputs that a compiled graph does not read, each with the number of inputs that have it and with the
    end of a sentence about it.
    """
    if isinstance(builder := getattr(graph, "builder", None), StateGraph):
        read: Any = cast(Any, builder).schemas[cast(Any, builder).input_schema]
    else:
        read = () if isinstance(graph.input_channels, str) else graph.input_channels
    keys = [name for name in read if not name.startswith("__")]
    found = Counter(
        str(key) for each in inputs if keys and is_mapping(each) for key in each if key not in keys
    )
    for key, count in found.items():
        yield (
            key,
            count,
            "which the graph ignores, because it is not a key of its input schema. "
            f"Keys: {', '.join(keys)}.{nearest(key, keys)}",
        )


def import_from_here() -> None:
    """Make modules in the working directory importable: those of graphs, and of classes that rules name."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _module(name: str) -> ModuleType:
    import_from_here()
    try:
        if name.endswith(".py"):
            return _from_file(Path(name))
        return importlib.import_module(name)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ConfigurationError(f"{name} could not be imported: {describe(error)}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {str(path)!r}.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(_free_name(path), path)
    assert spec is not None  # a path that ends with .py has a spec
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _free_name(path: Path) -> str:
    """The name of the module in a file: that of the file, unless another module that was imported has it, such as
    Python's own json, which stays what it is for all others.
    """
    known = sys.modules.get(path.stem)
    file = getattr(known, "__file__", None)
    if (
        known is None
        or path.stem in _from_files
        or (file is not None and Path(file).resolve() == path.resolve())
    ):
        _from_files.add(path.stem)
        return path.stem
    return f"{path.stem}_py"


_from_files: set[str] = set()
"""The names of modules that were read from files that a path named."""


def ensure_sync(function: Any, where: str) -> None:
    """Raise `ConfigurationError` for an async function, which makes a graph only in an event loop."""
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"{where} is an async function; expected one that returns a graph itself. Define it with def; it may "
            "return asyncio.run(...) of the async one."
        )


def _called(target: Any, where: str) -> Any:
    ensure_sync(target, where)
    try:
        inspect.signature(target).bind()
    except TypeError:
        raise ConfigurationError(
            f"{where} is a function that needs arguments; expected one without."
        ) from None
    try:
        return target()
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{where}() raised {describe(error)}") from error
