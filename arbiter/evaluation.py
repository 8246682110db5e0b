"""How good it was: the `NodeEvaluator` contract, and the `EvaluatorCycle` that runs several of them together."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from arbiter.contracts import Contract
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import EvaluationResult, EvaluatorTrace

__all__ = [
    "EvaluationResult",
    "EvaluatorCycle",
    "EvaluatorTrace",
    "NodeEvaluator",
    "Turn",
    "TurnOutcome",
]


class NodeEvaluator(Contract):
    """Judges a node run after it is done. It never blocks, never raises and can change nothing.

    Nobody waits for a result that nobody reads: evaluations run in the background unless a router, or
    `durable=True`, wants one. What a router read, and what a durable evaluator returned, is committed with the
    node's own update; later policies find those results and no others, also after a resume elsewhere.
    `deadline` is in seconds; an evaluation that takes longer is an error in the record. One that you set is always
    kept, by calling `evaluate` on another thread. The default of 30 s is given up for an evaluator that has proved
    to be quick, or that declares `blocking = False`: it is called in place.
    An `async def evaluate` runs on an event loop of Arbiter's own.
    """

    kind = "evaluator"
    method = "evaluate"
    durable: bool = False
    needs: tuple[str, ...] = ()
    """Other evaluators whose results it reads."""
    similes: tuple[str, ...] = ()
    """Other names that it goes by. No two evaluators share one."""
    deadline: float | None = 30.0

    def __init__(
        self,
        name: str,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.durable = durable

    def evaluate(self, history: History) -> EvaluationResult | Awaitable[EvaluationResult]:
        """Judge the node run `history.entries[-1][-1]`."""
        raise NotImplementedError

    def default_cycle(self) -> EvaluatorCycle | None:
        """The cycle that runs it where none was added; None for an evaluator that needs none."""
        return None


def spoken(name: str) -> str:
    """A name as it is compared when somebody says it: without case, and any run of blanks, `-` and `_` as one `_`."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A finished node run, as a cycle gets it.

    `history` is the view of the node, whose newest item is this run. `input` and `output` are what the node was given
    and returned, themselves: a cycle must change neither. `config` is what the node was called with, without callbacks;
    the LangGraph runtime is in it.
    """

    evaluators: Sequence[NodeEvaluator]
    """Those of the cycle that apply to the node, in the order of registration."""
    history: History
    input: Any
    output: Any
    config: RunnableConfig | None
    saved: bool = True
    """Whether a checkpointer keeps the state. Where none does, LangGraph gives a message that is sent again another id
    in each run."""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """What `begin` keeps for `run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """What came of a turn. An evaluator in neither `results` nor `errors` has not run, and `trace` says why."""

    results: Mapping[str, EvaluationResult] = field(default_factory=lambda: _NOTHING)
    errors: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    trace: Sequence[EvaluatorTrace] = ()


class EvaluatorCycle:
    """Runs those evaluators of a node run that it takes together, and decides which of them run at all.

    An `ArbiterOS` has at most one. With `mode = "inline"` the outcome is there before a router is asked, and is
    committed with the node's update; with `"background"` the node waits for it only if somebody reads a result.
    """

    mode: Literal["inline", "background"] = "inline"

    def takes(self, evaluator: NodeEvaluator) -> bool:
        """Whether this evaluator is one of the cycle's, instead of being run by itself."""
        raise NotImplementedError

    def check(self, evaluators: Sequence[NodeEvaluator]) -> None:
        """Raise a `ConfigurationError` if these, which it takes, cannot be run together."""

    def begin(self, turn: Turn) -> None:
        """Called on the node's own thread, before its output goes to LangGraph: keep what will not be there later."""

    async def run(self, turn: Turn) -> TurnOutcome:
        """Run the turn, on an event loop of Arbiter's own. An exception is an error of all its evaluators."""
        raise NotImplementedError
