"""Evaluation results that are complete, without the evaluators that produced them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from arbiter._values.copies import Copier, for_deep_copy, for_pickle
from arbiter.verdicts import EvaluationResult, EvaluatorTrace, Outcome

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Judgement(NamedTuple):
    """One evaluation that is done: its result, or the problem that left it without one.

    Both are None for an evaluator of a group that was not run.
    """

    name: str
    result: EvaluationResult | None
    problem: str | None
    outcome: Outcome
    version: str
    """The evaluator's version; "" if it is not known."""


class EvaluationResults(Mapping[str, EvaluationResult]):
    """The results of the evaluators of one node run, by name."""

    __slots__ = ()

    async def aget(self, name: str) -> EvaluationResult | None:
        """As `get`, without blocking the event loop."""
        return self.get(name)


class Results(EvaluationResults):
    """Complete evaluation results of an item that was restored or copied."""

    __slots__ = ("_found", "absent", "ended", "errors", "trace", "versions")

    def __init__(
        self,
        found: Mapping[str, EvaluationResult],
        errors: Mapping[str, str] = NOTHING,
        trace: Sequence[EvaluatorTrace] = (),
        ended: Mapping[str, Outcome] = NOTHING,
        versions: Mapping[str, str] = NOTHING,
    ) -> None:
        self._found = dict(found)
        self.absent: Callable[[str], None] | None = None
        """Called with each name that is looked for and absent."""
        self.errors = dict(errors)
        """The evaluators that gave no result, with the reason."""
        self.trace = tuple(trace)
        self.ended: Mapping[str, Outcome] = {
            **{name: result.outcome for name, result in self._found.items()},
            **dict.fromkeys(self.errors, "error"),
            **ended,
        }
        """The outcome of each evaluation."""
        self.versions = dict(versions)
        """The versions of the evaluators, as far as they are known."""

    def __getitem__(self, name: str) -> EvaluationResult:
        if self.absent is not None and name not in self._found:
            self.absent(name)
        return self._found[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return Results, (self._found, self.errors, self.trace, self.ended, self.versions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def error_of(self, name: str) -> str | None:
        """The reason why that evaluator gave no result; None if it gave one."""
        return self.errors.get(name)

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """The results; None for an evaluator that failed."""
        return {**self._found, **dict.fromkeys(self.errors)}

    def judgements(self) -> list[Judgement]:
        """All evaluations."""
        return [
            Judgement(
                name, self._found.get(name), self.errors.get(name), outcome, self.versions.get(name, "")
            )
            for name, outcome in self.ended.items()
        ]

    def __repr__(self) -> str:
        return f"<evaluations {self._found!r}>"


End = tuple[str, EvaluationResult | None, str | None, Outcome]
"""A `Judgement` without its version, which may have to be read from source."""

NO_RESULTS = Results({})
"""Those of a node run that no evaluator judges."""


class Lazy(EvaluationResults):
    """Evaluation results that may not be complete yet.

    A copy waits for all of them, and so do `len`, iteration, `errors`, `ended` and `versions`.
    """

    __slots__ = ()

    def ends(self) -> Iterator[End]:
        """All evaluations. Waits for them, and marks none as read."""
        raise NotImplementedError

    def version_of(self, name: str) -> str:
        """The version of the evaluator that gives the result of that name; "" if it is not known."""
        raise NotImplementedError

    @property
    def trace(self) -> Sequence[EvaluatorTrace]:
        """The stages of a group's evaluators so far."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return (name for name, result, _, _ in self.ends() if result is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def errors(self) -> Mapping[str, str]:
        """The evaluators that gave no result, with the reason."""
        return MappingProxyType({name: problem for name, _, problem, _ in self.ends() if problem is not None})

    @property
    def ended(self) -> Mapping[str, Outcome]:
        """The outcome of each evaluation."""
        return MappingProxyType({name: outcome for name, _, _, outcome in self.ends()})

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the evaluators behind the results."""
        return {name: version for name in self if (version := self.version_of(name))}

    def report_uncommitted(self, name: str, node: str) -> None:
        """Warn that a rule looked for this result of an earlier run of `node`, if nothing commits it."""

    def __copy__(self) -> Lazy:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Results:
        return settled(self, for_deep_copy(memo))

    def __reduce__(self) -> tuple[Any, ...]:
        done = settled(self, for_pickle())
        return Results, (dict(done), done.errors, done.trace, done.ended, done.versions)


def settled(evaluations: Mapping[str, EvaluationResult], copier: Copier) -> Results:
    """A complete copy of the evaluations. Waits for all of them."""
    done = evaluations
    if isinstance(evaluations, Lazy):  # to look up a result would mark it as read
        done = {name: result for name, result, _, _ in evaluations.ends() if result is not None}
    found = {
        name: EvaluationResult(
            copier(result.score),
            result.passed,
            result.feedback,
            copier(result.metadata),
            outcome=result.outcome,
        )
        for name, result in done.items()
    }
    ended: Mapping[str, Outcome] = getattr(evaluations, "ended", NOTHING)
    versions: Mapping[str, str] = getattr(evaluations, "versions", NOTHING)
    errors = getattr(evaluations, "errors", NOTHING)
    return Results(found, errors, getattr(evaluations, "trace", ()), ended, versions)
