"""Writes docs/api.md: the public names of Arbiter, as their docstrings describe them.

    python -m tests.api_page

`tests/project/test_api_page.py` compares the page with the code.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import Any

from arbiter._constitution.kinds import constructor_of, effective_default
from arbiter._contracts import Contract
from tests.docs_check import ROOT

PAGE = ROOT / "docs" / "api.md"
MODULES = (
    "arbiter",
    "arbiter.errors",
    "arbiter.instructions",
    "arbiter.checkers",
    "arbiter.evaluators",
    "arbiter.routers",
    "arbiter.linting",
    "arbiter.testing",
    "arbiter.personas",
    "arbiter.memory",
    "arbiter.redaction",
    "arbiter.statistics",
    "arbiter.store",
    "arbiter.harness",
    "arbiter.experiments",
)
INTRODUCTION = """# API

Every public name, with the first paragraph of its docstring. Names without an underscore that are not on this
page can change. `python -m tests.api_page` writes the page from the code, and a test compares them."""


def page() -> str:
    """The text of docs/api.md."""
    listed: dict[int, str] = {}
    parts = [INTRODUCTION]
    for name in MODULES:
        module = importlib.import_module(name)
        members = sorted(public(module), key=lambda member: member[0].lower())
        here = [(key, value) for key, value in members if id(value) not in listed]
        elsewhere = [f"`{key}`" for key, value in members if id(value) in listed]
        parts.append(
            f"## {name}\n\n| name | |\n|---|---|\n" + "\n".join(row for m in here for row in rows(*m))
        )
        if elsewhere:
            parts.append(wrapped(f"Listed above: {', '.join(elsewhere)}."))
        listed |= {id(value): name for _, value in here}
    return "\n".join(f"{part}\n" for part in parts)


def public(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The classes and functions that a module promises: those of its `__all__`, else the classes that it defines."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    for name in names:
        value = getattr(module, name)
        # The 32 instructions have a page of their own.
        if not name.startswith("_") and not isinstance(value, Enum) and callable(value):
            yield name, value


def rows(name: str, value: Any) -> Iterator[str]:
    yield row(name + signature(value), value)
    if inspect.isclass(value) and not issubclass(value, BaseException | Enum):
        for member, attribute in vars(value).items():
            bare: Any = getattr(attribute, "__func__", attribute)
            if member.startswith("_") or not bare.__doc__:  # an override says nothing new of its contract
                continue
            if isinstance(bare, property | cached_property):
                yield row(f".{member}", bare)
            elif inspect.isfunction(bare):
                yield row(f".{member}{signature(bare, method=not isinstance(attribute, staticmethod))}", bare)


def row(shown: str, value: Any) -> str:
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return f"| `{escaped(shown)}` | {escaped(text)} |"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def signature(value: Any, *, method: bool = False) -> str:
    """Names and simple defaults, as in `(name, *, calls=None)`; annotations are for editors."""
    try:
        parameters = list(inspect.signature(value).parameters.values())[1 if method else 0 :]
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(value) and issubclass(value, BaseException | Enum):
        return ""
    if inspect.isclass(value) and issubclass(value, Contract):
        found = {
            name: each.parameter.replace(default=effective_default(value, each))
            for name, each in constructor_of(value).items()
        }
        named = [
            found.get(parameter.name, parameter)
            for parameter in parameters
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        known = {parameter.name for parameter in named}
        more = [parameter for name, parameter in found.items() if name not in known]
        if len(named) < len(parameters):
            parameters = [*named, *(each.replace(kind=each.KEYWORD_ONLY) for each in more)]
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty, default=simple(parameter.default))
        for parameter in parameters
        if not parameter.name.startswith("_")
    ]
    return str(inspect.Signature(shown))


class Elided:
    def __repr__(self) -> str:
        return "..."


def simple(default: object) -> object:
    """A default that reads the same in every process, or `...`."""
    known = default is inspect.Parameter.empty or default is None
    return default if known or type(default) in (bool, str, int, float, tuple) else Elided()


def wrapped(text: str, width: int = 110) -> str:
    lines = [""]
    for word in re.split(r" (?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", text):
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
