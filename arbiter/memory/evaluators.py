"""`CognitiveEvaluator`: what looks at a turn and does something about it, as a class or from a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arbiter.errors import EvaluationError, RegistrationError
from arbiter.evaluation import EvaluatorCycle, NodeEvaluator, Turn
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.memory.context import EvalContext
from arbiter.verdicts import EvaluationResult


@dataclass(frozen=True, slots=True)
class ExampleMessage:
    """One line of an example. `{{user1}}` to `{{user5}}` in `name` and `text` become names."""

    name: str
    text: str
    action: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluationExample:
    """An example for a selector: in such a `context`, after these messages, the outcome would be this."""

    context: str
    messages: tuple[ExampleMessage, ...]
    outcome: str


@dataclass(slots=True)
class HandlerOutcome:
    """What a handler has come to. `score` is 0 to 1; one outside is clamped. `data` is JSON and becomes the metadata
    of the `EvaluationResult`: counts and ids, never what somebody said."""

    score: float = 1.0
    passed: bool = True
    feedback: str = ""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


Outcome = HandlerOutcome | EvaluationResult | None
Handler = Callable[[EvalContext], Outcome | Awaitable[Outcome]]
Validator = Callable[[EvalContext], bool | Awaitable[bool]]


class CognitiveEvaluator(NodeEvaluator):
    """Looks at a turn, and remembers or changes something outside of the graph's state.

    Before its handler it is asked `validate`, all evaluators of a turn at once: cheap, and without writing. It is asked
    only if the agent has responded, or with `always_run`; that does not replace `validate`. A selector that is a
    language model is offered it by `name`, `description`, `examples` and other names (`similes`), unless `selectable`
    is False or `skip_selection` is True.
    """

    selectable: bool = True
    skip_selection: bool = False
    always_run: bool = False
    needs_messages: bool = True
    needs_store: bool = False
    needs_model: bool = False
    examples: tuple[EvaluationExample, ...] = ()

    def __init__(
        self,
        name: str,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        *,
        description: str = "",
        similes: Sequence[str] = (),
        examples: Sequence[EvaluationExample] = (),
        always_run: bool | None = None,
        selectable: bool | None = None,
        skip_selection: bool | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes)
        if description:
            self.description = description
        if similes:
            self.similes = tuple(similes)
        if examples:
            self.examples = tuple(examples)
        if always_run is not None:
            self.always_run = always_run
        if selectable is not None:
            self.selectable = selectable
        if skip_selection is not None:
            self.skip_selection = skip_selection

    def validate(self, ctx: EvalContext) -> bool | Awaitable[bool]:
        """Whether there is something to do."""
        return True

    def handle(self, ctx: EvalContext) -> Outcome | Awaitable[Outcome]:
        """Do it. May be `async def`. None is an outcome like `HandlerOutcome()`."""
        raise NotImplementedError

    async def evaluate(self, history: History) -> EvaluationResult:
        """Run it alone on the newest item, as any evaluator, with the cycle of the `ArbiterOS` if the view knows that,
        else with one of default options. Raises `EvaluationError` if it did not run or failed."""
        item = history.entries[-1][-1]
        cycle = history.cycle or self.default_cycle()
        turn = Turn(
            evaluators=(self,),
            history=history,
            input=item.input_state,
            output=item.output_state,
            config=None,
        )
        cycle.begin(turn)
        outcome = await cycle.run(turn)
        if (found := outcome.results.get(self.name)) is not None:
            return found
        why = outcome.errors.get(self.name) or ", ".join(part.status for part in outcome.trace)
        raise EvaluationError(f"it gave no result: {why}", evaluator=self.name, node=item.node)

    def default_cycle(self) -> EvaluatorCycle:
        from arbiter.memory.cycle import EvaluationCycle

        return EvaluationCycle()

    def ensure_valid(self) -> None:
        super().ensure_valid()
        if type(self).handle is CognitiveEvaluator.handle:
            raise RegistrationError(
                f"evaluator {self.name!r} ({type(self).__name__}) has no method 'handle'. "
                "Define def handle(self, ctx)."
            )


class _FunctionEvaluator(CognitiveEvaluator):
    def __init__(self, name: str, handler: Handler, validator: Validator | None, **options: Any) -> None:
        super().__init__(name, **options)
        self._handler = handler
        self._validator = validator

    def validate(self, ctx: EvalContext) -> bool | Awaitable[bool]:
        return True if self._validator is None else self._validator(ctx)

    def handle(self, ctx: EvalContext) -> Outcome | Awaitable[Outcome]:
        return self._handler(ctx)


def evaluator(
    name: str,
    *,
    description: str = "",
    similes: Sequence[str] = (),
    examples: Sequence[EvaluationExample] = (),
    validate: Validator | None = None,
    always_run: bool = False,
    selectable: bool = True,
    skip_selection: bool = False,
    target_instructions: Iterable[Instruction | str] | None = None,
    target_nodes: Iterable[str] | None = None,
) -> Callable[[Handler], CognitiveEvaluator]:
    """Make a cognitive evaluator of the handler that this decorates: `async def handler(ctx)`, or `def`."""

    def made(handler: Handler) -> CognitiveEvaluator:
        options: Mapping[str, Any] = {
            "description": description,
            "similes": similes,
            "examples": examples,
            "always_run": always_run,
            "selectable": selectable,
            "skip_selection": skip_selection,
            "target_instructions": target_instructions,
            "target_nodes": target_nodes,
        }
        return _FunctionEvaluator(name, handler, validate, **options)

    return made
