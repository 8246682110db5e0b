"""Evaluation results that are complete, without the evaluators that produced them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from arbiter._values.copies import Copier, for_deep_copy, for_pickle
from arbiter.verdicts import EvaluationResult, EvaluatorTrace

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Results(Mapping[str, EvaluationResult]):
    """Complete evaluation results of an item that was restored or copied."""

    __slots__ = ("_found", "errors", "trace")

    def __init__(
        self,
        found: Mapping[str, EvaluationResult],
        errors: Mapping[str, str] = _NOTHING,
        trace: Sequence[EvaluatorTrace] = (),
    ) -> None:
        self._found = dict(found)
        self.errors = dict(errors)
        """The evaluators that gave no result, with the reason."""
        self.trace = tuple(trace)

    def __getitem__(self, name: str) -> EvaluationResult:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    async def aget(self, name: str) -> EvaluationResult | None:
        """As `get`."""
        return self._found.get(name)

    def error_of(self, name: str) -> str | None:
        """The reason why that evaluator gave no result; None if it gave one."""
        return self.errors.get(name)

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """The results; None for an evaluator that failed."""
        return {**self._found, **dict.fromkeys(self.errors)}

    def __repr__(self) -> str:
        return f"<evaluations {self._found!r}>"


class Lazy(Mapping[str, EvaluationResult]):
    """Evaluation results that may not be complete yet. A copy waits for all of them."""

    __slots__ = ()

    def __copy__(self) -> Lazy:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Results:
        return settled(self, for_deep_copy(memo))

    def __reduce__(self) -> tuple[Any, ...]:
        done = settled(self, for_pickle())
        return Results, (dict(done), done.errors, done.trace)


def settled(evaluations: Mapping[str, EvaluationResult], copier: Copier) -> Results:
    """A complete copy of the evaluations. Waits for all of them."""
    done: Mapping[str, EvaluationResult] = getattr(evaluations, "unread", evaluations)
    found = {
        name: EvaluationResult(copier(result.score), result.passed, result.feedback, copier(result.metadata))
        for name, result in done.items()
    }
    return Results(found, getattr(done, "errors", _NOTHING), getattr(done, "trace", ()))
