"""`Provider`: gives a node additional text for one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.constants import CONFIG_KEY_CHECKPOINTER

from arbiter._threads.deadlines import LOOP, awaited, within
from arbiter._values.kinds import is_list, is_mapping
from arbiter._values.states import ROOT
from arbiter.advice import Advisor
from arbiter.errors import ArbiterError, RegistrationError
from arbiter.history._items import History
from arbiter.instructions import Instruction
from arbiter.memory._characters import Character
from arbiter.memory._context import NotAvailableError
from arbiter.memory._conversation import Shown, misplaced, originals, raw, text_of, window
from arbiter.memory._entities import Entity
from arbiter.memory._off_record import without_hidden
from arbiter.memory._outcomes import outcome
from arbiter.memory._secrets import redacted
from arbiter.memory._telling import NO_CYCLE, NO_STORE, Told
from arbiter.memory._tombstones import Tombstones
from arbiter.memory._turns import config_here
from arbiter.memory.providers._composing import (
    MAX_CHARS,
    ComposedContext,
    ProviderResult,
    Section,
    compose_sections,
    left_out,
)
from arbiter.memory.stores import MemoryStore

ASKED_FOR = "providers"
"""The key of `configurable` with the names of dynamic providers that a run asks for."""
QUERIED = 5


class ProviderError(ArbiterError):
    """A provider failed. The message has its name and the type of its error, but not the error's text,
    which may quote a user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderContext:
    """The room and user of a call.

    `messages` are the last ones of the conversation, read-only, without secrets, without those off the record
    and those that were forgotten, and with the head and the tail of long texts; `query` is the text of the last
    few, for searches. `entity_id` is the user; `entities` are participants known beforehand. `known_ids` returns
    the ids of records by those of messages, because a thread without a checkpointer has other ids in each run.
    `messages_key` is where the state has the conversation; the notes go there.
    """

    store: MemoryStore | None
    agent_id: str
    room_id: str
    entity_id: str
    clock: Callable[[], datetime]
    character: Character
    messages: Sequence[BaseMessage] = ()
    entities: Sequence[Entity] = ()
    is_private: bool = False
    query: str = ""
    messages_key: str = "messages"
    fact_rules: Any = None
    known_ids: Callable[[], Awaitable[Mapping[str, str]]] | None = field(default=None, repr=False)

    _on_record: list[ProviderContext] = field(
        default_factory=list["ProviderContext"], init=False, repr=False, compare=False
    )
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Whatever is given: providers, and the embedder of their searches, see no secret.
        if not isinstance(self.messages, Shown):
            shown = Shown(without_hidden(self.messages))
            if len(shown) < len(self.messages):
                object.__setattr__(self, "query", query_of(shown))
            object.__setattr__(self, "messages", shown)
        object.__setattr__(self, "query", redacted(self.query))

    async def on_record(self) -> ProviderContext:
        """This context without the messages that have a tombstone in its room, which are read once."""
        async with self._reading:
            if not self._on_record:
                self._on_record.append(await self._without_tombstones())
        return self._on_record[0]

    async def _without_tombstones(self) -> ProviderContext:
        if self.store is None or not self.messages:
            return self
        tombstones = Tombstones(self.store, self.agent_id, self.room_id)
        hidden = (await tombstones.read()).ids
        if hidden and self.known_ids is not None:
            hidden |= {id for id, known in (await self.known_ids()).items() if known in hidden}
        messages = without_hidden(originals(self.messages), hidden) if hidden else self.messages
        if len(messages) == len(self.messages):
            return self
        shown = Shown(messages)
        return replace(self, messages=shown, query=query_of(shown))

    def needed_store(self) -> MemoryStore:
        """The store. Raises `NotAvailableError` without one; a provider that lets it pass counts as empty,
        not as failed."""
        if self.store is None:
            raise NotAvailableError(f"{NO_STORE}.")
        return self.store


def query_of(messages: Sequence[BaseMessage]) -> str:
    """The texts of the last five messages with text, one a line, oldest first."""
    return "\n".join(text_of(message).strip() for message in window(messages, QUERIED))


class ProvidingCycle(Protocol):
    """The part of an `EvaluationCycle` that providers use."""

    max_context_chars: int

    def provider_context(self, history: History, state: Mapping[str, Any]) -> ProviderContext | None:
        """The room and user of a node that is about to run; None if they are unknown.

        Called in the node's own context, where LangGraph's `get_config` works.
        """
        ...


class Provider(Advisor):
    """Adds the result of `get` to one call of a node. All providers of a node share one block of text.

    The lowest `position` comes first; `description` is the heading. A `dynamic` provider is asked only in
    runs that name it: `configurable={"providers": ["weather"]}`. `cycle` supplies store and identities; by
    default the cycle of the `ArbiterOS`. Without any cycle the provider is not asked.
    """

    block = "memory"
    name: str = ""
    position: int = 0
    dynamic: bool = False
    deadline: float | None = 5.0

    def __init__(
        self,
        name: str = "",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        *,
        description: str | None = None,
        position: int | None = None,
        dynamic: bool | None = None,
        deadline: float | None = None,
        cycle: ProvidingCycle | None = None,
    ) -> None:
        super().__init__(name or type(self).name, target_instructions, target_nodes, deadline)
        if description is not None:
            self.description = description
        if position is not None:
            self.position = position
        if dynamic is not None:
            self.dynamic = dynamic
        self.cycle = cycle
        self.told = Told()

    def get(self, ctx: ProviderContext) -> ProviderResult | Awaitable[ProviderResult]:
        """The text and values for this call; `async def` or `def`. A `def` is called on a thread of its
        own."""
        raise NotImplementedError

    def _result(self, text: str, **data: Any) -> ProviderResult:
        """A text, also as the value under the provider's name."""
        return ProviderResult(text=text, values={self.name: text}, data=data)

    @property
    def keeps_deadline(self) -> bool:
        # `section_of` watches the deadline.
        own = type(self)
        return own.advise is Provider.advise and own.aadvise is Provider.aadvise

    def advise(self, history: History, state: Mapping[str, Any]) -> Any:
        asked = self._asked(history, state)
        if asked is None:
            return None
        if LOOP.is_here:
            raise ProviderError(f"provider {self.name!r} would wait for the event loop that it is called on.")
        future = LOOP.submit(section_of(self, asked[0]), _context_here())
        return self._said(_waited(future, self.deadline), *asked)

    async def aadvise(self, history: History, state: Mapping[str, Any]) -> Any:
        asked = self._asked(history, state)
        return None if asked is None else self._said(await section_of(self, asked[0]), *asked)

    def compose(self, parts: Sequence[Any]) -> str | None:
        """The block of all sections; None if it is empty."""
        sections = [part for part in parts if isinstance(part, Section)]
        limits = [section.max_chars for section in sections if section.max_chars is not None]
        most = min(limits, default=MAX_CHARS)
        text = compose_sections(sections, most).text
        for section in left_out(sections, text):
            self.told.left_out(section.name, most)
        return text or None

    def ensure_valid(self) -> None:
        super().ensure_valid()
        if type(self).get is Provider.get:
            raise RegistrationError(
                f"provider {self.name!r} ({type(self).__name__}) has no method 'get'. "
                "Define async def get(self, ctx)."
            )

    def _asked(self, history: History, state: Mapping[str, Any]) -> tuple[ProviderContext, int] | None:
        """The context of the call and the maximum length of the block; None if this provider is not asked."""
        cycle: Any = self.cycle or history.group
        if self.dynamic and self.name not in _named():
            return None
        if not hasattr(cycle, "provider_context"):
            self.told.missing("provider", [self.name], NO_CYCLE)
            return None
        if _is_calls(raw(state).get(ROOT)):
            return None
        ctx: ProviderContext | None = cycle.provider_context(history, state)
        if ctx is None:
            return None
        cause = None if self._has_own_key else misplaced(state, ctx.messages_key)
        if cause is not None:
            self.told.missing("provider", [self.name], cause)
        return ctx, cycle.max_context_chars

    def _said(self, section: Section, ctx: ProviderContext, max_chars: int) -> Section | None:
        if section.error:
            raise ProviderError(section.error)
        if section.result is None or not section.result.text.strip():
            return None
        key = None if self._has_own_key else ctx.messages_key
        return replace(section, max_chars=max_chars, messages_key=key)

    @property
    def _has_own_key(self) -> bool:
        """True if a program gave the provider another `messages_key`, which comes before the cycle's."""
        return self.messages_key != Advisor.messages_key


def _context_here() -> Context:
    """The node's context, as in an async run: `get_config` and variables of the program work there. Without the
    checkpointer of a sync run, which a graph that the provider asks could not use in an event loop.
    """
    context, config = copy_context(), var_child_runnable_config.get()
    if config is not None:
        conf = {**config.get("configurable", {})}
        conf.pop(CONFIG_KEY_CHECKPOINTER, None)
        context.run(var_child_runnable_config.set, {**config, "configurable": conf})
    return context


def _is_calls(sent: Any) -> bool:
    """True for the tool calls that an agent sends to a node in place of a state: they have no place for notes."""
    first = sent[0] if is_list(sent) and sent else None
    return is_mapping(first) and bool(first.get("type") == "tool_call")


async def _got(provider: Provider, ctx: ProviderContext) -> Any:
    """The answer of a provider to what may be shown to it."""
    try:
        shown = await ctx.on_record()
    except Exception:
        # Without the tombstones no message may be used.
        shown = replace(ctx, messages=(), query="")
    value, error = await outcome(provider.get, (shown,))
    if error is not None:
        raise error
    return value


async def section_of(provider: Provider, ctx: ProviderContext) -> Section:
    """The section of a provider; its `error` is set if the provider failed. Never raises."""
    answer: Any = None
    raised: BaseException | None
    try:
        answer, raised = await awaited(provider.deadline, outcome(_got, (provider, ctx)))
    except TimeoutError as exc:
        raised = exc
    error = ""
    result: ProviderResult | None = None
    if isinstance(raised, NotAvailableError):
        provider.told.missing("provider", [provider.name], str(raised).rstrip("."))
        result = ProviderResult()
    elif raised is not None:
        # Without the error's text, which may quote a user.
        error = f"{type(raised).__name__} in provider {provider.name!r}"
    elif (fault := _fault(answer)) is None:
        result = answer
    else:
        error = f"provider {provider.name!r} returned {fault}; expected a ProviderResult"
    return Section(
        name=provider.name,
        result=result,
        position=provider.position,
        heading=provider.description,
        error=error,
    )


def _fault(answer: Any) -> str | None:
    if not isinstance(answer, ProviderResult):
        return f"a {type(answer).__name__}"
    given: Any = answer
    if not isinstance(given.text, str):
        return f"a text that is a {type(given.text).__name__}"
    fits = isinstance(given.values, Mapping) and isinstance(given.data, Mapping)
    return None if fits else "values or data that are not a mapping"


async def acompose_context(
    providers: Sequence[Provider],
    ctx: ProviderContext,
    names: Iterable[str] | None = None,
    max_chars: int = MAX_CHARS,
) -> ComposedContext:
    """Ask providers, all at once, and compose their results.

    `names` selects providers; without it all that are not dynamic are asked. Errors of providers are in the
    result, never raised.
    """
    wanted = None if names is None else frozenset([names] if isinstance(names, str) else names)
    asked = [p for p in providers if (not p.dynamic if wanted is None else p.name in wanted)]
    sections = await asyncio.gather(*(section_of(provider, ctx) for provider in asked))
    return compose_sections(sections, max_chars)


def _named() -> Sequence[str]:
    """The names of dynamic providers that this run asks for."""
    named: Any = ((config_here() or {}).get("configurable") or {}).get(ASKED_FOR)
    return (named,) if isinstance(named, str) else tuple(named or ())


def _waited(future: Future[Section], seconds: float | None) -> Section:
    try:
        # The provider's own deadline runs on the loop; this one works even if the loop is blocked.
        section: Section = within(seconds, future)
        return section
    except TimeoutError:
        future.cancel()
        raise
