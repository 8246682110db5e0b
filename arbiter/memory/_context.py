"""`EvalContext`: everything that a handler receives about one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import dropwhile
from typing import Any, ClassVar, Protocol, TypeVar

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel

from arbiter.errors import ArbiterError
from arbiter.history._items import History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.memory._characters import Character
from arbiter.memory._commands import hastens
from arbiter.memory._conversation import Shown, originals, speaker_of, text_of, window
from arbiter.memory._cursors import Cursors
from arbiter.memory._entities import Entities, Entity, resolve
from arbiter.memory._notes import FactEvent
from arbiter.memory._off_record import on_record
from arbiter.memory._records import Claim, Fact, Ingested
from arbiter.memory._telling import NO_MODEL, NO_STORE, cause_of
from arbiter.memory._tombstones import Before, Forgettings, Hidden, Tombstones
from arbiter.memory.answers import CallBudget, StructuredOutcome, structured_call
from arbiter.memory.stores import MemoryStore
from arbiter.models import ChatModel
from arbiter.verdicts import EvaluationResult

T = TypeVar("T", bound=BaseModel)
_BEFORE = 4


class NotAvailableError(ArbiterError):
    """The cycle lacks the store or the model that a handler asked for. The evaluator is skipped, and the
    trace says so."""


class BudgetSpentError(ArbiterError):
    """A handler asked for a model after the turn's model calls were used up. The evaluator is skipped, and
    the trace says so."""


class UnusableAnswerError(ArbiterError):
    """A model gave no answer that can be read. If `skipped`, the messages in its prompt are never tried
    again."""

    def __init__(self, calls: int, problem: str, *, skipped: bool) -> None:
        self.calls = calls
        self.problem = problem
        self.skipped = skipped
        then = "The messages are passed over." if skipped else "They are tried again later."
        super().__init__(f"the model's answer cannot be used ({calls} calls): {problem}. {then}")


class Facts(Protocol):
    """The operations on the agent's facts that a handler may use; `FactStore` implements them."""

    async def ingest(
        self,
        claims: Sequence[Claim],
        ctx: EvalContext,
        *,
        evaluator: str,
        model: ChatModel | None = None,
        shown: Iterable[Fact] = (),
    ) -> Ingested: ...

    async def facts(
        self, entity_id: str, *, state: str | None = "active", kinds: Sequence[str] = ...
    ) -> list[Fact]: ...

    async def relevant(
        self, entity_ids: Collection[str], query: str, *, room_id: str, limit: int
    ) -> list[Fact]: ...

    async def forget(self, entity_id: str, query: str | None = None, *, id: str | None = None) -> int: ...


def silent(chunk: object) -> None:
    """Writes to no stream."""


@dataclass(slots=True, kw_only=True, eq=False)
class EvalContext:
    """One turn: a finished node run, the conversation including the node's messages, the participants, and
    the tools to work with.

    `state` is the node's input merged with its output; `messages` is the whole list after the node, each
    message with an id. Both are read-only, and their messages have no secrets and at most the head and the
    tail of a long text. `message` is the newest human message. `prior` has the results of evaluators that ran
    earlier in this turn. `run_key` identifies the turn and stays the same if the node runs again. `emit`
    writes to the graph's custom stream.
    """

    history: History
    item: HistoryItem
    instruction: Instruction | None = None
    node: str
    state: Mapping[str, Any]
    messages: Sequence[BaseMessage]
    new_messages: Sequence[BaseMessage] = ()
    trimmed: Sequence[BaseMessage] = ()
    """Messages that the thread has had and has no more, and that may be unread, as far as this process has kept them;
    evaluators with `when_quiet` find them at the beginning of `messages`."""
    message: BaseMessage | None
    did_respond: bool = False
    room_id: str
    entity_id: str
    agent_id: str
    entities: Sequence[Entity]
    is_private: bool
    store: MemoryStore | None
    model: ChatModel | None
    selector_model: ChatModel | None = None
    character: Character
    conversation_length: int
    context: Any = None
    config: RunnableConfig
    clock: Callable[[], datetime]
    emit: Callable[[Any], None] = silent
    run_key: str
    checkpoint_id: str | None = None
    """The checkpoint from which the node ran; None if the thread has no checkpoints."""
    ended_at: datetime
    """When the node run ended. A late evaluation must not overwrite the findings of a later turn."""
    read_at: datetime | None = None
    """When `messages` were read, if that was after the end of the node run."""
    budget: CallBudget
    fact_rules: Any = None
    speakers: frozenset[str] | None = None
    """The speakers that a message may claim; None allows any. Other claims are removed from `messages` and `state`."""
    strangers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names under which people without an id speak in this room, with their ids for this turn. Their words
    are not learned."""
    quiet: bool = False
    """True if the thread has been quiet for a while: what is unread is worked through, whatever its number."""
    unreachable: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Models that gave no answer in this turn, with the cause."""
    cut_off: set[str] = field(default_factory=set[str])
    """Models of whose answers in this turn only the complete parts are used."""
    prior: dict[str, EvaluationResult] = field(default_factory=dict[str, EvaluationResult])
    events: list[FactEvent] = field(default_factory=list[FactEvent])
    open_facts: ClassVar[Callable[[EvalContext], Facts]]
    """Set by `arbiter.memory.facts`, which builds on this module."""
    _hidden: Hidden | None = field(default=None, init=False, repr=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)
    _passed: set[str] = field(default_factory=set[str], init=False, repr=False)
    _whole: EvalContext | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        # Whatever is given: handlers see no secret, and no text that is too long for them.
        if not isinstance(self.messages, Shown):
            shown = self.messages = Shown(self.messages)
            self.new_messages = [shown.the(message) for message in self.new_messages]
            self.message = None if self.message is None else shown.the(self.message)

    def whole(self) -> EvalContext:
        """This context with the `trimmed` messages before the others."""
        if self.trimmed and self._whole is None:
            messages = [*self.trimmed, *originals(self.messages)]
            self._whole = replace(self, messages=messages, trimmed=())
        return self._whole or self

    def needed_store(self) -> MemoryStore:
        """The store. Raises `NotAvailableError` if there is none."""
        if self.store is None:
            raise NotAvailableError(f"{NO_STORE}.")
        return self.store

    @property
    def _known_at(self) -> datetime:
        """The time up to which the messages are known."""
        return self.read_at or self.ended_at

    def cursors(self, evaluator: str) -> Cursors:
        """The cursor of an evaluator in this room. Raises `NotAvailableError` without a store."""
        return Cursors(
            self.needed_store(),
            agent_id=self.agent_id,
            room_id=self.room_id,
            evaluator=evaluator,
            clock=self.clock,
            ended_at=self._known_at,
        )

    @property
    def tombstones(self) -> Tombstones:
        """The tombstones of this room. Raises `NotAvailableError` without a store."""
        return Tombstones(self.needed_store(), self.agent_id, self.room_id)

    def everything(self, entity_id: str) -> Forgettings:
        """The newest forgettings of an entity, and its wish that waits for an answer. Raises `NotAvailableError`
        without a store."""
        return Forgettings(self.needed_store(), self.agent_id, entity_id)

    def speaker_of(self, message: BaseMessage) -> str:
        """The id of the entity that has said a message."""
        return speaker_of(message, agent_id=self.agent_id, entity_id=self.entity_id)

    async def on_record(self, messages: Iterable[BaseMessage]) -> list[BaseMessage]:
        """Those of the messages that a model may see, in order: not off the record and not forgotten, nor the
        agent's answers to such messages."""
        return on_record(messages, (await self.hidden()).ids)

    async def shown(self, latest: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Those of the last messages of the conversation that a model may see."""
        # Look a few messages back: the first one may answer a message that is off the record.
        kept = {id(part) for part in await self.on_record(window(self.messages, len(latest) + _BEFORE))}
        return [part for part in latest if id(part) in kept]

    async def hidden(self, *, anew: bool = False) -> Hidden:
        """The messages of this room that are forgotten or off the record; read once a turn, or `anew`."""
        # All evaluators look for it at once.
        async with self._reading:
            if self._hidden is None or anew:
                self._hidden = Hidden() if self.store is None else await self._read_hidden()
            return self._hidden

    async def _read_hidden(self) -> Hidden:
        found = await self.tombstones.read()
        speaker = self.entity_id if self.message is None else self.speaker_of(self.message)
        for entity_id in dict.fromkeys((self.entity_id, speaker)):
            asked_at, pending, newest = await self.everything(entity_id).read(self.clock())
            if entity_id == self.entity_id and await self._sweep(found, asked_at):
                found = await self.tombstones.read()
            found.newest[entity_id] = newest
            if pending is not None:
                found.pending[entity_id] = pending
        found.forgotten |= self._passed
        return found

    async def _sweep(self, found: Hidden, at: datetime | None) -> bool:
        """Bury what the user said here before it asked, elsewhere, to forget everything. True if it had to."""
        swept = found.swept.get(self.entity_id)
        if at is None or self._known_at < at or (swept is not None and swept >= at):
            return False
        ids = [str(part.id) for part in self._earlier() if self.speaker_of(part) == self.entity_id]
        await self.tombstones.sweep(self.entity_id, ids[::-1], before=at)
        return True

    async def pass_over(self, unread: Iterable[BaseMessage]) -> None:
        """Hide those of these unread messages that a speaker said before its newest forgetting, in another thread:
        they would teach again what was forgotten. A message that may ask to forget something stays."""
        said = [message for message in unread if isinstance(message, HumanMessage) and message.id]
        hidden = await self.hidden()
        for speaker in dict.fromkeys(map(self.speaker_of, said)):
            if speaker not in hidden.newest:
                hidden.newest[speaker] = await self.everything(speaker).at("newest")
            if (at := hidden.newest[speaker]) is None:
                continue
            own = [message for message in said if self.speaker_of(message) == speaker]
            until = await self._last_before(speaker, at)
            newer = set[str | None]() if until is None else self._newer(until, own[0])
            self._passed |= {
                str(part.id) for part in own if part.id not in newer and not hastens(text_of(part))
            }
        hidden.forgotten |= self._passed

    async def _last_before(self, speaker: str, at: datetime) -> str | None:
        """The id of the last message of a speaker in this room from before its newest forgetting, "" if there is none;
        None if all are, because the turn ended before."""
        before = Before(self.needed_store(), self.agent_id, self.room_id)
        noted, until = await before.read(speaker)
        if noted is not None and noted >= at:
            return until if noted == at else ""
        if self._known_at < at:
            return None
        until = next((str(part.id) for part in self._earlier() if self.speaker_of(part) == speaker), "")
        await before.note(speaker, at, until)
        return until

    def _newer(self, until: str, oldest: BaseMessage) -> set[str | None]:
        """The ids of the messages after that one, back to the `oldest`: that one itself may have no text."""
        newer = set[str | None]()
        for part in reversed(originals(self.messages)):
            if part.id == until:
                break
            newer.add(part.id)
            if part.id == oldest.id:
                break
        return newer

    def _earlier(self) -> Iterator[BaseMessage]:
        """The human messages with ids, newest first, without those that this turn has answered."""
        said = [*self.trimmed, *originals(self.messages)][::-1]
        if not self.quiet and self.message is not None:
            answered = next((at for at, part in enumerate(said) if isinstance(part, HumanMessage)), 0)
            said = [*dropwhile(lambda part: isinstance(part, HumanMessage), said[answered:])]
        return (part for part in said if isinstance(part, HumanMessage) and part.id)

    @property
    def facts(self) -> Facts:
        """The facts of this agent. All evaluators store their claims through it. Raises
        `NotAvailableError` without a store."""
        return EvalContext.open_facts(self)

    async def ask(
        self,
        schema: type[T],
        messages: Sequence[BaseMessage],
        *,
        model: ChatModel | None = None,
        item_field: str | None = None,
    ) -> StructuredOutcome[T]:
        """Ask `model`, or the cycle's model, within the turn's budget; see `structured_call`.

        Raises `NotAvailableError` without a model, `BudgetSpentError` if no call is left.
        """
        asked = model or self.model
        if asked is None:
            raise NotAvailableError(f"{NO_MODEL}.")
        if self.budget.left < 1:
            raise BudgetSpentError("the model calls of this turn are used up.")
        outcome = await structured_call(asked, schema, messages, item_field=item_field, budget=self.budget)
        if outcome.failure is not None:
            self.unreachable.append((type(asked).__name__, cause_of(outcome.failure)))
        if outcome.is_cut_off:
            self.cut_off.add(type(asked).__name__)
        return outcome

    async def look_up(self, names: Iterable[str | None]) -> None:
        """Add the registered entities of these names to `entities`."""
        unknown = [name for name in names if name and resolve(name, self.entities) is None]
        if self.store is not None and unknown:
            known = {entity.id for entity in self.entities}
            found = await Entities(self.store, self.agent_id).meant(unknown, unknown)
            self.entities = (*self.entities, *(each for id, each in found.items() if id not in known))

    def name_of(self, entity_id: str) -> str:
        """The first name of a participant; the id itself if no name is known."""
        found = next((entity for entity in self.entities if entity.id == entity_id), None)
        return found.names[0] if found is not None and found.names else entity_id
