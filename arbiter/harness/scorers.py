"""Scorers: functions of a `CaseRun`, or objects with a `name` and a method `score`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from arbiter._contracts import Contract
from arbiter._values.kinds import is_mapping
from arbiter._values.versions import version_of
from arbiter.errors import ConfigurationError
from arbiter.harness.judging import Judging
from arbiter.harness.results import CaseRun
from arbiter.harness.scores import SHARE, Scale

ScorerFunction: TypeAlias = Callable[[CaseRun], Any]


@runtime_checkable
class Scorer(Protocol):
    """An object that judges a run. It may also have a `scale` (a pair of numbers) and a `version` (a text)."""

    @property
    def name(self) -> str: ...

    def score(self, run: CaseRun, /) -> Any | Awaitable[Any]: ...


Entry: TypeAlias = Mapping[str, Any]
"""A built-in scorer, as a file has it: `{"name": "grounded", "use": "contains"}`."""
Scorers: TypeAlias = Mapping[str, ScorerFunction | Scorer | Entry] | Iterable[ScorerFunction | Scorer | Entry]
"""Scorers by name, or a list of them: a function has its own name, except a lambda, which has none."""


@dataclass(frozen=True, slots=True)
class NamedScorer:
    """A scorer under the name of its row. `given` is the function or object that the user wrote."""

    name: str
    call: Callable[[CaseRun], Any]
    given: Any
    scale: Scale = SHARE
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.call))

    @property
    def version(self) -> str:
        """A hash of the scorer's code and parameters, by which a baseline knows it."""
        return version_of(self.given)

    def asking(self, judging: Judging) -> NamedScorer:
        """The same scorer, whose judges are asked on the way of a run."""
        given = judging.scorer(self.name, self.given)
        return self if given is self.given else NamedScorer(self.name, given.score, given, self.scale)

    def seeded(self, seed: int) -> NamedScorer:
        """The same scorer, which samples by that seed, if it samples."""
        if not callable(getattr(self.given, "with_seed", None)):
            return self
        given = self.given.with_seed(seed)
        return NamedScorer(self.name, given.score, given, self.scale)


def scorers_of(
    given: Scorers, made: Callable[[Any, object], Any] = lambda scorer, name: scorer
) -> tuple[NamedScorer, ...]:
    """The scorers of a suite; `made` makes those that are entries. Raises `ConfigurationError` for what is none, has no
    name, or has a name twice."""
    found: dict[str, NamedScorer] = {}
    for name, scorer in _pairs(given):
        one = _named(name, made(scorer, name))
        if one.name in found:
            raise ConfigurationError(f"two scorers have the name {one.name!r}. Give each a name of its own.")
        found[one.name] = one
    return tuple(found.values())


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    if is_mapping(given):
        return list(given.items())
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise ConfigurationError(
            f"scorers is {given!r:.80}; expected a mapping from names to functions, or a list."
        )
    return [(None, each) for each in given]


def _named(key: object, scorer: Any) -> NamedScorer:
    if isinstance(scorer, NamedScorer):
        return scorer
    if isinstance(scorer, type):
        raise ConfigurationError(
            f"the scorer {scorer.__name__} is a class; make an object of it: {scorer.__name__}(...)."
        )
    if isinstance(scorer, Contract):
        raise ConfigurationError(
            f"{scorer!r} is among the scorers; it judges node runs. Pass it as one of evaluators=[...]."
        )
    method = getattr(scorer, "score", None)
    call: Any = method if callable(method) else scorer
    if not callable(call):
        raise ConfigurationError(
            f"the scorer {scorer!r:.80} is not a function and has no method 'score'; expected def scorer(run)."
        )
    name: Any = key if key is not None else getattr(scorer, "name", None) or _own_name(call)
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"the scorer {scorer!r:.80} has no name. Write scorers={{'polite': ...}}, or give it the attribute `name`."
        )
    refuse_signature(f"the scorer {name!r}", call, "the CaseRun")
    return NamedScorer(name, call, scorer, _scale_of(name, scorer))


def _own_name(call: Any) -> str | None:
    """The name of a function; None for one that names nothing, as of a lambda."""
    name: str | None = getattr(call, "__name__", None)
    return None if name in ("<lambda>", "score") else name


def refuse_signature(what: str, call: Any, given: str) -> None:
    """Raise `ConfigurationError` for a function that cannot be called with one argument, which is `given`."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # written in C
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigurationError(f"{what} has the parameters {signature}; expected one, {given}.") from None


def _scale_of(name: str, scorer: Any) -> Scale:
    given: Any = getattr(scorer, "scale", SHARE)
    try:
        low, high = given
        scale = float(low), float(high)
    except (TypeError, ValueError):
        scale = (1.0, 0.0)
    if not scale[0] < scale[1]:
        raise ConfigurationError(
            f"the scorer {name!r} has the scale {given!r:.80}; expected two numbers, the lower one first."
        )
    return scale
