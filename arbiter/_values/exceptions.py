"""Names of exception classes, as rules have them."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Container, Iterable, Iterator
from typing import Any

from arbiter._values.spelling import misspelt
from arbiter._values.versions import path_of

_BUILTINS = builtins.__name__


class ExceptionNames(frozenset[str]):
    """Names such as "ConnectionError", or "json.decoder.JSONDecodeError" with the module that defines the class."""

    def wrong(self) -> Iterator[tuple[str, str]]:
        """The names that no exception has, each with the one that was meant.

        A name of which none is near is left out: it may be that of a package that is not imported yet.
        """
        for name in map(_short, sorted(self)):
            module, _, own = name.rpartition(".")
            known = _in_module(module or _BUILTINS)
            meant = known.get(own) or known.get(_near(own, known) or "")
            if meant not in (None, name) and not is_one_named(_of_program(), (name,)):
                yield name, meant


def is_one_named(kinds: Iterable[str], names: Container[str]) -> bool:
    """True if one of these classes, which have their modules in front, is among the names."""
    return any(kind in names or kind.rpartition(".")[2] in names for kind in kinds)


def _near(name: str, names: Iterable[str]) -> str | None:
    # Only the start tells names apart that end in "Error": TaskError is no misspelt TabError.
    end = "Error" if name.endswith("Error") else ""
    meant = misspelt(name.removesuffix(end), [each.removesuffix(end) for each in names if each.endswith(end)])
    return None if meant is None else meant + end


def _in_module(name: str) -> dict[str, str]:
    """The exceptions that an imported module has, by their names there, with their dotted paths."""
    parts: dict[str, Any] = getattr(sys.modules.get(name), "__dict__", {})
    # The class of `type(part)`, because a lazy object makes itself when it is asked whether it is a class.
    return {
        own: _short(path_of(part))
        for own, part in list(parts.items())
        if issubclass(type(part), type) and issubclass(part, BaseException)
    }


def _of_program() -> Iterator[str]:
    """The dotted paths of all exceptions that are defined now."""
    kinds: list[type] = [BaseException]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
        yield path_of(kind)


def _short(name: str) -> str:
    return name.removeprefix(f"{_BUILTINS}.")
