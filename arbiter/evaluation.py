"""How good it was: the `NodeEvaluator` contract."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from arbiter.contracts import Contract
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import EvaluationResult

__all__ = ["EvaluationResult", "NodeEvaluator"]


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
