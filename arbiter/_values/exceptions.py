"""Names of exception classes, as rules have them."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator

from arbiter._values.spelling import misspelt

_BUILTINS = builtins.__name__


class ExceptionNames(frozenset[str]):
    """Names such as "ConnectionError", or "json.decoder.JSONDecodeError" with the module that defines the class."""

    def count(self, kinds: Iterable[str]) -> bool:
        """True if one of these classes, which have their modules in front, is named."""
        return any(kind in self or kind.rpartition(".")[2] in self for kind in kinds)

    def wrong(self) -> Iterator[tuple[str, str]]:
        """The names that no exception has, each with the one that was meant.

        A name of which none is near is left out: it may be that of a package that is not imported yet.
        """
        for name in map(_short, sorted(self)):
            module, _, own = name.rpartition(".")
            known = _in_module(module or _BUILTINS)
            meant = known.get(own) or known.get(misspelt(own, known) or "")
            is_of_program = not module and own not in known and own in _names_below(BaseException)
            if meant is not None and meant != name and not is_of_program:
                yield name, meant


def _in_module(name: str) -> dict[str, str]:
    """The exceptions that an imported module has, by their names there, with their dotted paths."""
    parts: dict[str, object] = getattr(sys.modules.get(name), "__dict__", {})
    return {
        own: _short(f"{part.__module__}.{part.__qualname__}")
        for own, part in list(parts.items())
        if isinstance(part, type) and issubclass(part, BaseException)
    }


def _short(name: str) -> str:
    return name.removeprefix(f"{_BUILTINS}.")


def _names_below(kind: type) -> set[str]:
    """The names of all classes that derive from a class."""
    below: list[type] = type.__subclasses__(kind)
    return {name for each in below for name in (each.__name__, *_names_below(each))}
