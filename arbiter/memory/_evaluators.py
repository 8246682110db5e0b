"""`CognitiveEvaluator`: looks at a turn and acts on it; written as a class or made from a function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict, Unpack

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import EvaluationError, ParameterError, RegistrationError
from arbiter.evaluation import EvaluatorGroup, FinishedRun, NodeEvaluator
from arbiter.history._items import History
from arbiter.memory._context import EvalContext
from arbiter.verdicts import OTHER_TARGETS, EvaluationResult


@dataclass(frozen=True, slots=True)
class ExampleMessage:
    """One line of an example. Names replace `{{user1}}` to `{{user5}}` in `name` and `text`."""

    name: str
    text: str
    action: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluationExample:
    """An example for a selector: the `outcome` that these messages would have in such a `context`."""

    context: str
    messages: tuple[ExampleMessage, ...]
    outcome: str


@dataclass(slots=True)
class HandlerOutcome:
    """The outcome of a handler. `score` is clamped to 0 to 1.

    `data` must be JSON and becomes the metadata of the `EvaluationResult`: put counts and ids in it, never
    conversation texts.
    """

    score: float = 1.0
    passed: bool = True
    feedback: str = ""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


Outcome = HandlerOutcome | EvaluationResult | None
Handler = Callable[[EvalContext], Outcome | Awaitable[Outcome]]
Validator = Callable[[EvalContext], bool | Awaitable[bool]]


Description = Annotated[str, Param("a sentence for a selector that is a language model")]
Similes = Annotated[Sequence[str], Param("other names that a selector may use")]
Examples = Annotated[
    Sequence[EvaluationExample],
    Param("examples for a selector, and for the evaluator's own prompt if it has one"),
]
AlwaysRun = Annotated[bool | None, Param("call `validate` even if the agent has not responded")]
Selectable = Annotated[bool | None, Param("whether a selector that is a language model sees the evaluator")]
SkipSelection = Annotated[bool | None, Param("run without being selected")]


class CognitiveOptions(TypedDict, total=False):
    """The options of every cognitive evaluator; None keeps the default of its class."""

    description: Description
    similes: Similes
    examples: Examples
    always_run: AlwaysRun
    selectable: Selectable
    skip_selection: SkipSelection


class CognitiveEvaluator(NodeEvaluator):
    """Looks at a turn, and remembers or changes something outside of the graph's state.

    `validate` decides whether the handler runs. The `validate` methods of all evaluators run at once, so they
    must be cheap and must not write. They are called only if the agent has responded or `always_run` is True.
    A selector that is a language model sees the `name`, `description`, `examples` and other names
    (`similes`), unless `selectable` is False or `skip_selection` is True.
    """

    similes: tuple[str, ...] = ()
    """Other names that it goes by. No two evaluators of a cycle share one."""

    selectable: bool = True
    skip_selection: bool = False
    always_run: bool = False
    when_quiet: bool = False
    """True if it also looks at a thread that has been quiet for the cycle's `after_idle_s`, with `ctx.quiet`."""

    needs_messages: bool = True
    needs_store: bool = False
    needs_model: bool = False
    examples: tuple[EvaluationExample, ...] = ()

    @check_parameters
    def __init__(
        self,
        name: str,
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        *,
        description: Description = "",
        similes: Similes = (),
        examples: Examples = (),
        always_run: AlwaysRun = None,
        selectable: Selectable = None,
        skip_selection: SkipSelection = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes)
        if description:
            self.description = description
        if similes:
            self.similes = tuple(similes)
        if examples:
            self.examples = tuple(examples)
        for example in self.examples:
            given: Any = example
            if not isinstance(given, EvaluationExample):
                problem = f"expected EvaluationExample(context, messages, outcome), got {given!r:.80}."
                raise ParameterError(f"evaluator {name!r}", "examples", problem)
        if always_run is not None:
            self.always_run = always_run
        if selectable is not None:
            self.selectable = selectable
        if skip_selection is not None:
            self.skip_selection = skip_selection

    def validate(self, ctx: EvalContext) -> bool | Awaitable[bool]:
        """True if the handler has something to do. May be `async def`."""
        return True

    def does_without_model(self, ctx: EvalContext) -> bool:
        """True if the evaluator has work in this turn that needs no model, although it `needs_model`. It then
        runs without being selected, too."""
        return False

    def handle(self, ctx: EvalContext) -> Outcome | Awaitable[Outcome]:
        """Do the evaluator's work. May be `async def`. None counts as `HandlerOutcome()`."""
        raise NotImplementedError

    async def evaluate(self, history: History) -> EvaluationResult:
        """Run this evaluator alone on the newest item, like any other evaluator.

        It uses the cycle of the `ArbiterOS` if the view knows one, else a cycle with default options. Raises
        `EvaluationError` if the evaluator did not run or failed.
        """
        item = history.item
        group = history.group
        if not isinstance(group, EvaluatorGroup):
            assert self.group_type is not None  # set by `arbiter.memory._cycle`, which builds on this module
            group = self.group_type()
        finished = FinishedRun(history=history, input=item.input_state, returned=item.output_state)
        outcome = await asyncio.wrap_future(group.begin((self,), finished))
        if (found := outcome.results.get(self.name)) is not None:
            return found
        stages = (part.status for part in outcome.trace if part.detail != OTHER_TARGETS)
        why = outcome.errors.get(self.name) or ", ".join(stages)
        raise EvaluationError(f"it gave no result: {why}", evaluator=self.name, node=item.node)

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
        parts: dict[str, Any] = {"handler": handler, "validate": bool if validator is None else validator}
        for part, given in parts.items():
            if not callable(given):
                problem = f"expected a function of the context, got {given!r:.80}."
                raise ParameterError(f"evaluator {name!r}", part, problem)
        self._handler = handler
        self._validator = validator

    def validate(self, ctx: EvalContext) -> bool | Awaitable[bool]:
        return True if self._validator is None else self._validator(ctx)

    def handle(self, ctx: EvalContext) -> Outcome | Awaitable[Outcome]:
        return self._handler(ctx)


def evaluator(
    name: str,
    *,
    validate: Validator | None = None,
    target_instructions: TargetInstructions = None,
    target_nodes: TargetNodes = None,
    **options: Unpack[CognitiveOptions],
) -> Callable[[Handler], CognitiveEvaluator]:
    """Decorator that makes a cognitive evaluator of a handler, `async def handler(ctx)` or `def`."""

    def made(handler: Handler) -> CognitiveEvaluator:
        return _FunctionEvaluator(
            name,
            handler,
            validate,
            target_instructions=target_instructions,
            target_nodes=target_nodes,
            **options,
        )

    return made
