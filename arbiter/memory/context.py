"""`EvalContext`: all that a handler is given of one turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel

from arbiter.errors import ArbiterError
from arbiter.history import History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.memory.answers import CallBudget, StructuredOutcome, structured_call
from arbiter.memory.characters import Character
from arbiter.memory.cursors import Cursors
from arbiter.memory.entities import Entity
from arbiter.memory.events import FactEvent
from arbiter.memory.stores import MemoryStore
from arbiter.models import ChatModel
from arbiter.verdicts import EvaluationResult

if TYPE_CHECKING:
    from arbiter.memory.facts import FactStore

T = TypeVar("T", bound=BaseModel)


class NotAvailableError(ArbiterError):
    """A handler wants a store or a model, and the cycle has none. The evaluator is passed over, with a trace."""


class BudgetSpentError(ArbiterError):
    """A handler wants a model, and the calls of this turn are used up. The evaluator is passed over, with a trace."""


class UnusableAnswerError(ArbiterError):
    """A model gave no answer that can be read. `skipped` says whether the messages that it was asked about are passed
    over for good."""

    def __init__(self, calls: int, problem: str, *, skipped: bool) -> None:
        self.calls = calls
        self.problem = problem
        self.skipped = skipped
        then = "The messages are passed over." if skipped else "They are tried again later."
        super().__init__(f"the model's answer cannot be used ({calls} calls): {problem}. {then}")


@dataclass(slots=True, kw_only=True, eq=False)
class EvalContext:
    """One turn: a finished node run, the conversation with what the node added, who takes part, and what to work with.

    `state` is the node's input merged with its output, `messages` the whole list after the node, each with an id;
    all of it read-only. `message` is the newest human message. `prior` has the results of evaluators that ran before
    in this turn. `run_key` names the turn, also when the node runs again. `emit` writes to the graph's custom stream.
    """

    history: History
    item: HistoryItem
    instruction: Instruction | None
    node: str
    state: Mapping[str, Any]
    messages: Sequence[BaseMessage]
    new_messages: Sequence[BaseMessage]
    message: BaseMessage | None
    did_respond: bool
    room_id: str
    entity_id: str
    agent_id: str
    entities: Sequence[Entity]
    is_private: bool
    store: MemoryStore | None
    model: ChatModel | None
    selector_model: ChatModel | None
    character: Character
    conversation_length: int
    context: Any
    config: RunnableConfig
    clock: Callable[[], datetime]
    emit: Callable[[Any], None]
    run_key: str
    ended_at: datetime
    """When the node run ended: a write of a late evaluation does not undo what a later turn has found."""
    budget: CallBudget
    fact_rules: Any = None
    speakers: frozenset[str] | None = None
    """Whom a message may say that it is from; None for anybody. `messages` and `state` say no other."""
    prior: dict[str, EvaluationResult] = field(default_factory=dict[str, EvaluationResult])
    events: list[FactEvent] = field(default_factory=list[FactEvent])

    def needed_store(self) -> MemoryStore:
        """The store; `NotAvailableError` if there is none."""
        if self.store is None:
            raise NotAvailableError("no store: give the EvaluationCycle one, or compile the graph with one.")
        return self.store

    def cursors(self, evaluator: str) -> Cursors:
        """The cursor of that evaluator in this room."""
        return Cursors(
            self.needed_store(),
            agent_id=self.agent_id,
            room_id=self.room_id,
            evaluator=evaluator,
            clock=self.clock,
            ended_at=self.ended_at,
        )

    @property
    def facts(self) -> FactStore:
        """What claims are brought to, by whichever evaluator found them."""
        from arbiter.memory.facts import FactStore

        return FactStore(self.needed_store(), agent_id=self.agent_id, clock=self.clock, rules=self.fact_rules)

    async def ask(
        self,
        schema: type[T],
        messages: Sequence[BaseMessage],
        *,
        model: ChatModel | None = None,
        item_field: str | None = None,
    ) -> StructuredOutcome[T]:
        """Ask the model of the cycle, or `model`, within the turn's budget; see `structured_call`."""
        asked = model or self.model
        if asked is None:
            raise NotAvailableError("no model: give the EvaluationCycle an evaluator_model.")
        if self.budget.left < 1:
            raise BudgetSpentError("the calls of models of this turn are used up.")
        return await structured_call(asked, schema, messages, item_field=item_field, budget=self.budget)

    def name_of(self, entity_id: str) -> str:
        """What that participant is called; its id if nothing else is known."""
        found = next((entity for entity in self.entities if entity.id == entity_id), None)
        return found.names[0] if found is not None and found.names else entity_id
