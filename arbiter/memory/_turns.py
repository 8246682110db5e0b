"""From a node run to an `EvalContext`: its messages, participants, room and user."""

from __future__ import annotations

import hmac
import json
import operator
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.runnables import RunnableConfig
from langgraph.channels import AnyValue, BinaryOperatorAggregate, EphemeralValue, LastValue, UntrackedValue
from langgraph.config import get_config
from langgraph.func import entrypoint
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from arbiter._values.contexts import ambient, during
from arbiter._values.states import ROOT, as_state
from arbiter.evaluation import FinishedRun, NodeEvaluator
from arbiter.memory._conversation import SPEAKER, ShownList, counts, holds_messages, list_of, raw
from arbiter.memory._entities import MOST_OF_NAME
from arbiter.memory._records import short_id

_INSERTED = "lc_source"
"""The key by which LangChain marks a message of its own: a summary of the conversation is no statement of the user."""

AT_WORK = ContextVar("arbiter_memory_at_work", default="")
"""The room that the running evaluators, or a tool that forgets, work on, "" outside of them. They must not wait for a
thread that is worked on: it may be their own."""


@contextmanager
def at_work(config: RunnableConfig | None, room_id: str) -> Generator[None]:
    """The surroundings of work in that room, such as that of evaluators that follow a node."""
    with ambient(config), during(AT_WORK, room_id):
        yield


def config_here() -> RunnableConfig | None:
    """The config of the node that is running; None outside of a graph."""
    try:
        return get_config()
    except RuntimeError:
        return None


def runtime_of(config: RunnableConfig | None) -> Runtime[Any] | None:
    """LangGraph's runtime of the node; None outside of a graph."""
    if config is None:
        return None
    with ambient(config):
        try:
            return get_runtime()
        except (KeyError, RuntimeError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Thread, user and checkpoint of a turn. `entity_id` is the user's; None if the program has not named
    one."""

    thread_id: str | None
    entity_id: str | None
    checkpoint_id: str | None


def place_of(config: RunnableConfig | None, runtime: Runtime[Any] | None) -> Place:
    """Thread and user of a call of the graph; empty ids count as absent.

    The user is `context.user_id`, else `configurable["user_id"]`, else the user that LangGraph Platform has
    authenticated.
    """
    conf: Mapping[str, Any] = (config or {}).get("configurable") or {}
    context: Any = None if runtime is None else runtime.context
    said: Any = getattr(context, "user_id", None)
    if said is None:
        said = as_state(context).get("user_id")
    info = None if runtime is None else runtime.execution_info
    users = (_id(said), _id(conf.get("user_id")), _id(conf.get("langgraph_auth_user_id")))
    return Place(
        thread_id=_id(conf.get("thread_id")),
        entity_id=next((user for user in users if user is not None), None),
        checkpoint_id=None if info is None else info.checkpoint_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A finished node run, with the parts of it that are not there later."""

    evaluators: Sequence[NodeEvaluator]
    """The evaluators of the cycle that apply to the node, in the order of registration."""
    run: FinishedRun
    ended_at: datetime
    runtime: Runtime[Any] | None
    messages: Sequence[Any]
    """The messages that the node was given."""
    new_messages: Sequence[Any]

    def given(self) -> set[str | None] | None:
        """The ids of the messages that the node was given; None if the thread has no checkpoints."""
        return {getattr(part, "id", None) for part in self.messages} if self.run.saved else None

    @property
    def place(self) -> Place:
        return place_of(self.run.config, self.runtime)


def _id(value: Any) -> str | None:
    text = "" if value is None else str(value)
    return text if text.strip() else None


# Messages -----------------------------------------------------------------------------------------


def written(output: Any, key: str) -> list[Any]:
    """The messages that a node run returned: in an update, a `Command`, a list of those, a model, or as
    bare messages, also of an `@entrypoint` that saves something else."""
    if isinstance(output, entrypoint.final):
        return written(output.value, key)
    if isinstance(output, BaseMessage):
        return [output]
    parts: Any = output
    if isinstance(output, list | tuple) and parts:
        if all(isinstance(part, BaseMessage) for part in parts):
            return [*parts]
        if any(isinstance(part, Command | Mapping) for part in parts):
            return [message for part in parts for message in written(part, key)]
    if isinstance(output, Command) and isinstance(parts.update, BaseMessage):
        return [parts.update]
    state = as_state(parts)
    return written(state[ROOT], key) if isinstance(output, Command) and ROOT in state else list_of(state, key)


def has_structured_response(output: Any) -> bool:
    """True if an agent of LangChain has answered in the form of a schema: the message is a call, without a text."""
    return as_state(output).get("structured_response") is not None


def given(state: Mapping[str, Any], key: str) -> list[Any]:
    """The messages of a node's input.

    A read-only list is read without its own iterator, which would copy a whole long conversation in each
    turn.
    """
    found: Any = state.get(key if key in state else ROOT)
    if isinstance(found, list):
        return [*list[Any].__iter__(found)]  # pyright: ignore[reportUnknownArgumentType]
    return list_of({key: found}, key)


_REPLACED = (AnyValue, EphemeralValue, LastValue, UntrackedValue)


def _reducer(channels: Mapping[str, Any], key: str) -> Any:
    """Whatever joins the values that are written to the key; None if the last one stays as it is."""
    channel: Any = channels.get(key, channels.get(ROOT))
    if channel is None or type(channel) in _REPLACED:
        return None
    # A class of its own may do more with what it joins.
    is_reduced = cast(Any, type(channel)) is BinaryOperatorAggregate
    return channel.operator if is_reduced else channel


def replaces(run: FinishedRun, key: str) -> bool:
    """True if the messages that a node run returned take the place of those before."""
    return bool(run.channels) and _reducer(run.channels[0], key) is None


def name_messages(messages: Iterable[Any], run: FinishedRun, key: str) -> None:
    """Set the missing ids of messages that a node run returned, before LangGraph would.

    Records refer to messages by id, so the id must be the one that the thread keeps. Where LangGraph certainly
    leaves messages as they are, so does memory, and `MessageIds` makes ids of their texts.
    """
    as_they_are = (None, operator.add, operator.concat)
    if run.channels and all(_reducer(channels, key) in as_they_are for channels in run.channels):
        return
    for message in messages:
        if isinstance(message, BaseMessage) and not message.id:
            message.id = str(uuid.uuid4())


class MessageIds:
    """The ids of the messages of a turn, across several lists of them.

    A message without an id gets one made of `scope`, its speaker, its content and the number of equal
    messages before it, so a history that a client sends again has the same ids. The id of an AI message also
    depends on the message that it answers: "OK." to a new message is not the "OK." of an earlier turn. If the
    thread is not `kept`, random ids are replaced in the same way, because LangGraph creates new ones in each run.
    Without the `key`, no guess of a text can be checked against such an id. A hash replaces ids of more than 1,000
    characters.
    """

    def __init__(self, scope: str, *, kept: bool, key: bytes = b"") -> None:
        self.scope = scope
        self.kept = kept
        self.key = key
        self._equals = Counter[str]()
        self._given: dict[str, tuple[str, int]] = {}
        self._parts: dict[int, tuple[str, int]] = {}
        self._replaced: dict[int, tuple[str, int]] = {}
        self._answered = ""

    def replace(self) -> None:
        """Begin a list that takes the place of the one before: what stands in both has the same ids."""
        self._parts, self._replaced = {}, self._parts
        self._equals.clear()

    def of(self, message: BaseMessage, part: object) -> str | None:
        """The id of a message, which was made of that part of a list."""
        found = self._of(message, id(part))
        if isinstance(message, HumanMessage):
            self._answered = found or ""
        return found and short_id(found)

    def _of(self, message: BaseMessage, part: int) -> str | None:
        id = message.id
        if id and (self.kept or not _is_random(id)):
            return id
        known = self._given.get(id) if id else self._replaced.pop(part, None)
        if isinstance(message, RemoveMessage):
            return id if known is None else self._made(*known)
        if known is None:
            said = json.dumps(
                [self.scope, message.type, speaker_said(message), message.name, repr(message.content)]
                + ([self._answered] if isinstance(message, AIMessage) else [])
            )
            known = said, self._equals[said]
        said, number = known
        self._equals[said] = max(self._equals[said], number + 1)
        if id:
            self._given[id] = known
        else:
            self._parts.setdefault(part, known)
        return self._made(said, number)

    def _made(self, said: str, number: int) -> str:
        digest = hmac.digest(self.key, f"{said}#{number}".encode(), "sha256")
        return str(uuid.UUID(bytes=digest[:16], version=5))  # any but the version of random ids


def _is_random(id: str) -> bool:
    try:
        return uuid.UUID(id).version == 4
    except ValueError:
        return False


def as_messages(found: Sequence[Any], ids: MessageIds) -> list[BaseMessage]:
    """The messages in any form that LangChain accepts, each with an id; other values are left out."""
    messages: list[BaseMessage] = []
    for part in found:
        if isinstance(part, BaseMessage):
            message = part
        else:
            try:
                [message] = convert_to_messages([part])
            except (ValueError, TypeError, NotImplementedError):
                continue
        if isinstance(message, HumanMessage) and message.additional_kwargs.get(_INSERTED):
            message = SystemMessage(message.content, id=message.id)
        id, name = ids.of(message, part), message.name and message.name[:MOST_OF_NAME]
        as_it_is = id == message.id and name == message.name
        messages.append(message if as_it_is else message.model_copy(update={"id": id, "name": name}))
    return messages


def latest(value: Mapping[str, Any], key: str, length: int) -> list[BaseMessage]:
    """The end of a state's messages: from the last `length` messages with text on, and further back to the
    newest human message if needed.

    A read-only list is read without its own iterator, which would copy each message.
    """
    is_sent = key not in value and holds_messages(raw(value).get(ROOT))
    found: Any = value.get(ROOT if is_sent else key)
    parts: Any = found
    if not isinstance(found, list | tuple):
        parts = list_of(value, key)
    last: list[BaseMessage] = []
    counted, asked = 0, False
    backwards = list[Any].__reversed__(parts) if isinstance(found, list) else reversed(parts)
    for number, part in enumerate(backwards):
        if counted >= length and asked:
            break
        for message in as_messages([part], MessageIds(f"<{number}", kept=True)):
            last.append(message)
            counted += counts(message)
            asked = asked or isinstance(message, HumanMessage)
    return last[::-1]


def merged(before: Sequence[BaseMessage], after: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The list after the node, as LangGraph's `add_messages` builds it: a message with a known id replaces
    the old one."""
    by_id: dict[str | None, BaseMessage] = {message.id: message for message in before}
    for message in after:
        if not isinstance(message, RemoveMessage):
            by_id[message.id] = message
        elif message.id == REMOVE_ALL_MESSAGES:
            by_id.clear()
        else:
            by_id.pop(message.id, None)
    return list(by_id.values())


def newest_human(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    return next((message for message in reversed(messages) if isinstance(message, HumanMessage)), None)


def speaker_said(message: BaseMessage | None) -> str | None:
    """The entity that a message claims to be from; None without such a claim."""
    said = None if message is None else message.additional_kwargs.get(SPEAKER)
    return said if isinstance(said, str) and said.strip() else None


def state_of(turn_input: Any, turn_output: Any, key: str, messages: Sequence[BaseMessage]) -> dict[str, Any]:
    """Input merged with output, plus the merged messages. No reducers are applied to other keys."""
    state = {**as_state(turn_input), **as_state(turn_output)}
    state.pop(ROOT, None)
    if messages:
        state[key] = ShownList(messages)
    return state
