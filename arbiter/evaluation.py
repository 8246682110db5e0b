"""Judging node runs: the `NodeEvaluator` contract, and the `EvaluatorGroup` that runs several evaluators
together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from langchain_core.runnables import RunnableConfig

from arbiter._contracts import Contract, TargetInstructions, TargetNodes, Targets
from arbiter._values.parameters import Param, check_parameters
from arbiter._values.states import FrozenDict, is_whole
from arbiter._values.versions import hash_of
from arbiter.errors import RegistrationError
from arbiter.history._items import History
from arbiter.models import Judge
from arbiter.verdicts import Evaluated, EvaluationResult, EvaluatorTrace

__all__ = [
    "EvaluationResult",
    "EvaluatorGroup",
    "EvaluatorTrace",
    "FinishedRun",
    "GroupOutcome",
    "NodeEvaluator",
]


Durable = Annotated[
    bool,
    Param(
        "wait for the result and commit it with the node's update, so that later policies find it",
        tighter="true",
    ),
]
Deadline = Annotated[
    float | None,
    Param(
        "the seconds that an evaluation may take; a later one is an error in the record",
        gt=0,
        expected="seconds above 0",
    ),
]


class EvaluatorOptions(Targets, total=False):
    """The parameters that all evaluators have."""

    durable: Durable
    deadline: Deadline


class NodeEvaluator(Contract):
    """Judges a node run after it is done. It never blocks the run, never raises into it, and cannot change
    the state.

    Evaluations run in the background; only code that reads a result waits for it. A router that `needs` the
    result, or `durable=True`, makes the node run wait. Results that a router read, and results of a durable
    evaluator, are committed with the node's own update; later policies find these results and no others, also
    after a resume elsewhere. `deadline` is in seconds; an evaluation that takes longer is recorded as an
    error. A deadline that you set is always kept, by calling `evaluate` on another thread. The default of 30
    s does not apply to an evaluator that has proved to be quick or declares `blocking = False`: it is called
    in place. An `async def evaluate` runs on an event loop of Arbiter's own.

    `concurrency` is the number of node runs, of all threads, that it judges at once. With 1, the default, its
    calls run one after another, so that it can count in `self`. The judges that ship have 32. Each node run
    is judged once, whatever the number.
    """

    kind = "evaluator"
    method = "evaluate"
    durable: bool = False
    needs: tuple[str, ...] = ()
    """Other evaluators whose results it reads."""
    deadline: float | None = 30.0
    concurrency: int = 1
    scale: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest `value_of` a result."""
    group_type: ClassVar[type[EvaluatorGroup] | None] = None
    """The group that runs it if none was added; None if it runs by itself."""

    @check_parameters
    def __init__(
        self,
        name: str,
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        durable: Durable = False,
        deadline: Deadline = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.durable = durable

    def ensure_valid(self) -> None:
        super().ensure_valid()
        if not is_whole(self.concurrency, least=1):
            raise RegistrationError(
                f"evaluator {self.name!r}: concurrency is {self.concurrency!r:.80}; "
                "expected a whole number from 1."
            )

    def evaluate(self, history: History) -> Evaluated | Awaitable[Evaluated]:
        """Judge the node run `history.item`: an `EvaluationResult`, a bool, a number, or several of these by name.

        A bool is the score 1.0 or 0.0 and says whether the node run passed; a number is a score, with `passed` None.
        A mapping gives several results by key. The key `brief` of the evaluator `style` is the result `style.brief`.
        """
        raise NotImplementedError

    def value_of(self, result: EvaluationResult) -> float:
        """The number of a result on the evaluator's `scale`, by default its score."""
        return float(result.score)

    def version_parts(self) -> Mapping[str, str]:
        return {**super().version_parts(), "scale": hash_of(self.scale)}

    def with_judges(self, wrap: Callable[[Judge], Judge], votes: int | None = None) -> Self:
        """A copy that asks the judges that `wrap` returns in place of its own, each question `votes` times (None:
        as often as before).

        An evaluator without judges is returned as it is. Replaces the judges of an evaluation harness, which
        records, counts and limits what they are asked.
        """
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished node run, as a group of evaluators gets it."""

    history: History
    """The view of the node, whose newest item is this run."""
    input: Mapping[str, Any]
    """The node's input state, read-only."""
    returned: Any
    """The object that the node returned.

    `begin` may give its messages the ids that LangGraph would give them a moment later; it may change nothing
    else.
    """
    config: RunnableConfig | None = None
    """The node's config without callbacks. It contains the LangGraph runtime."""
    saved: bool = True
    """True if a checkpointer keeps the state. Otherwise LangGraph gives a repeated message another id in each
    run.
    """
    channels: Sequence[Mapping[str, Any]] = ()
    """The channels of the node's graph, then those of the graphs around it. Empty if not all are known, or if a
    stream of messages gives ids to those without one.
    """


_NOTHING: Mapping[str, Any] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """The results of a group. An evaluator in neither `results` nor `errors` has not run, and `trace` gives
    the reason.
    """

    results: Mapping[str, EvaluationResult] = field(default_factory=lambda: _NOTHING)
    errors: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    trace: Sequence[EvaluatorTrace] = ()
    times: Mapping[str, tuple[int, int]] = field(default_factory=lambda: _NOTHING)
    """When each evaluator that ran began and ended, in nanoseconds since 1970."""


class EvaluatorGroup:
    """Runs evaluators of a node run together, for example with one question to a model for all of them.

    Each evaluator is registered by itself, and keeps its name, targets and mode. An `ArbiterOS` has at most one
    group. With `durable` a node run waits for its results, and they are committed with the node's update.
    """

    durable: bool = False

    def takes(self, evaluator: NodeEvaluator) -> bool:
        """True if this evaluator runs in the group instead of by itself."""
        raise NotImplementedError

    def check(self, evaluators: Sequence[NodeEvaluator]) -> None:
        """Raise a `ConfigurationError` if these evaluators of the group cannot be registered together."""

    def begin(self, evaluators: Sequence[NodeEvaluator], finished: FinishedRun) -> Future[GroupOutcome]:
        """Begin the evaluators that apply to a node run, in the order of registration.

        Called on the node's own thread, before LangGraph gets the output. So it may save data that will not be
        available later, and must not do the work itself. An exception counts as an error of all of them.
        """
        raise NotImplementedError

    def drain(self, timeout: float | None = None) -> bool:
        """Do now what the group would do later. Returns False if `timeout` seconds were too short."""
        return True
