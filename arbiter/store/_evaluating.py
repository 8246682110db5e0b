"""Stores an evaluation as it happens: a `running` row first, all scores in one transaction at the end."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

from arbiter.errors import describe
from arbiter.personas import ScorerResult
from arbiter.store._contract import EvaluationRepository
from arbiter.store._opening import StoreError
from arbiter.store._records import Window


class Evaluation:
    """An evaluation that is under way. `run_id` is its id in the repository."""

    def __init__(self, run_id: UUID, dimensions: Sequence[str]) -> None:
        self.run_id = run_id
        self.dimensions = tuple(dimensions)
        self.results: list[ScorerResult] = []

    def add(self, result: ScorerResult) -> ScorerResult:
        """Keep the result of one dimension until the end. Returns it.

        Raises `StoreError` for another dimension than those that were named, and for one that is there.
        """
        left = [name for name in self.dimensions if name not in {kept.dimension for kept in self.results}]
        if result.dimension not in left:
            raise StoreError(
                f"evaluation {self.run_id} still takes {', '.join(left) or 'no scores'}; "
                f"got those of {result.dimension!r}."
            )
        self.results.append(result)
        return result


@contextmanager
def evaluation(
    repository: EvaluationRepository,
    agent_id: str,
    dimensions: str | Sequence[str],
    *,
    window: Window | None = None,
    suite: str = "",
    started: datetime | None = None,
) -> Generator[Evaluation]:
    """Store the evaluation of an agent that the `with` block performs.

    Before the block its row is `running`; after it all scores are stored in one transaction. If the block
    raises, the row is `failed` and nothing else is stored. A process that is killed leaves a `running` row,
    which the next run of the same `suite` sets to `failed`: `started` is the begin of that run.
    """
    named = [dimensions] if isinstance(dimensions, str) else list(dimensions)
    run_id = repository.start_run(agent_id, named, window=window, suite=suite, started=started)
    begun = Evaluation(run_id, named)
    try:
        yield begun
    except BaseException as error:
        try:
            repository.finish_run(run_id, problem=describe(error))
        except Exception as unstored:
            error.add_note(f"The evaluation {run_id} is still `running`: {describe(unstored)}")
        raise
    repository.finish_run(run_id, begun.results)
