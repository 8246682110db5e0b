"""Judging node runs: the `NodeEvaluator` contract, and the `EvaluatorCycle` that runs several evaluators
together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from langchain_core.runnables import RunnableConfig

from arbiter._contracts import Contract, TargetInstructions, TargetNodes, Targets
from arbiter._values.parameters import Param, check_parameters
from arbiter._values.states import freeze, is_whole
from arbiter._values.versions import hash_of
from arbiter.errors import RegistrationError
from arbiter.history._items import History
from arbiter.models import Judge
from arbiter.verdicts import Evaluated, EvaluationResult, EvaluatorTrace

__all__ = [
    "EvaluationResult",
    "EvaluatorCycle",
    "EvaluatorTrace",
    "NodeEvaluator",
    "Turn",
    "TurnOutcome",
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
        """Judge the node run `history.item`: an `EvaluationResult`, a bool or a number.

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

    def default_cycle(self) -> EvaluatorCycle | None:
        """The cycle that runs this evaluator if none was added; None if it needs no cycle."""
        return None


_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A finished node run, as a cycle gets it.

    `history` is the view of the node, whose newest item is this run. `input` is the node's input state and
    `output` its output, both read-only. `config` is the node's config without callbacks; it contains the
    LangGraph runtime.
    """

    evaluators: Sequence[NodeEvaluator]
    """The evaluators of the cycle that apply to the node, in the order of registration."""
    history: History
    input: Mapping[str, Any]
    returned: Any
    """The object that the node returned.

    `begin` may give its messages the ids that LangGraph would give them a moment later; it may change nothing
    else.
    """
    config: RunnableConfig | None
    saved: bool = True
    """True if a checkpointer keeps the state. Otherwise LangGraph gives a repeated message another id in each
    run.
    """
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """Data that `begin` keeps for `run`."""

    @property
    def output(self) -> Any:
        return freeze(self.returned)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """The results of a turn. An evaluator in neither `results` nor `errors` has not run, and `trace` gives
    the reason.
    """

    results: Mapping[str, EvaluationResult] = field(default_factory=lambda: _NOTHING)
    errors: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    trace: Sequence[EvaluatorTrace] = ()
    times: Mapping[str, tuple[int, int]] = field(default_factory=lambda: _NOTHING)
    """When each evaluator that ran began and ended, in nanoseconds since 1970."""


class EvaluatorCycle:
    """Runs the evaluators that it takes together, and decides which of them run for a node run.

    An `ArbiterOS` has at most one. With `mode = "inline"` the outcome is complete before a router is called,
    and is committed with the node's update. With `"background"` the node waits only if some code reads a
    result.
    """

    mode: Literal["inline", "background"] = "inline"

    def takes(self, evaluator: NodeEvaluator) -> bool:
        """True if this evaluator runs in the cycle instead of by itself."""
        raise NotImplementedError

    def check(self, evaluators: Sequence[NodeEvaluator]) -> None:
        """Raise a `ConfigurationError` if these evaluators of the cycle cannot run together."""

    def begin(self, turn: Turn) -> None:
        """Called on the node's own thread, before LangGraph gets the output. Save data that will not be
        available later.
        """

    async def run(self, turn: Turn) -> TurnOutcome:
        """Run the turn, on an event loop of Arbiter's own. An exception counts as an error of all its
        evaluators.
        """
        raise NotImplementedError

    def drain(self, timeout: float | None = None) -> bool:
        """Do now what the cycle would do later, after its turns. Returns False if `timeout` seconds were too
        short.
        """
        return True
