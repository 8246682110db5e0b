"""Drafts: the messages that an agent is about to commit, read from and written to the update of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter._values.states import ROOT, overwriting, overwriting_with
from arbiter.history._items import History
from arbiter.personas._conversation import Cast
from arbiter.personas._messages import (
    Messages,
    is_single,
    messages_at,
    messages_in,
    new_of,
    part_at,
    standing,
)
from arbiter.personas._texts import jaccard, tokens
from arbiter.personas._trajectories import Trajectory


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that an agent is about to commit (`agent` None: unknown), and the conversation before it.

    `acts` is True if the draft also acts, such as by calling a tool. `calls` are the speaking calls of tools,
    each with its id and text. `unread` are speaking tools whose text is in no known argument. `replaces` is
    True if the draft replaces an earlier message of the agent.
    """

    agent: str | None
    text: str
    before: Trajectory
    acts: bool = False
    calls: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()
    replaces: bool = False

    def own(self, last: int) -> tuple[str, ...]:
        """The texts of the agent's newest messages, at most `last`, oldest first."""
        return tuple(event.text for event in self.before.actions_of(self.agent or "", last=last))


def draft_of(cast: Cast, history: History, output: Mapping[str, Any], known: str | None = None) -> Draft:
    """The draft in the output of the newest node run.

    Only new messages of agents count. `known` is the agent if neither a message nor the cast names one.
    """
    given = cast.given(history)
    new = new_of(given, messages_at(output, cast.key))
    said = [one for one in new if is_said(cast, one)]
    named = (cast.name(one.name) for one in said if isinstance(one, BaseMessage) and one.name)
    agent = next(named, None) or cast.acting(history.item) or known
    stands = standing(given, new)
    before = cast.trajectory(stands, agent, cast.writers(history))
    said_text = "\n".join(filter(None, (_text(cast, one) for one in said)))
    called = [
        (call, cast.speech(call)) for one in said if isinstance(one, AIMessage) for call in one.tool_calls
    ]
    calls = tuple((str(call["id"]), text) for call, text in called if text is not None)
    silent = (call["name"] for call, text in called if text is None)
    unread = tuple(name for name in silent if name in cast.speaking_tools)
    acts = any(_acts(cast, one) for one in said)
    return Draft(agent, said_text, before, acts, calls, unread, replaces=stands is not given)


def pending_draft(cast: Cast, history: History) -> Draft:
    """The draft in the speaking calls that the newest node run is about to make."""
    calls = cast.pending(history)
    given = cast.given(history)
    at = _calling(given, calls)
    agent = (None if at is None else cast.name(given[at].name)) or cast.acting(history.item)
    # The calling message is the draft itself, so it is not part of the conversation before it.
    others = given if at is None else Messages([*given.parts[:at], *given.parts[at + 1 :]])
    before = cast.trajectory(others, agent, cast.writers(history))
    text = "\n".join(str(cast.speech(call)).strip() for call in calls)
    return Draft(
        agent, text, before, calls=tuple((str(call["id"]), str(cast.speech(call))) for call in calls)
    )


def _calling(given: Messages, calls: Sequence[Any]) -> int | None:
    """The place of the message that makes these calls; None if it is not there."""
    for at in reversed(range(len(given) if calls else 0)):
        one = given[at]
        if isinstance(one, AIMessage) and any(call in one.tool_calls for call in calls):
            return at
    return None


def pending_with_text(cast: Cast, history: History, text: str) -> dict[str, Any]:
    """The input of a node run with another text to speak, once to each receiver. No call is left out, because
    each needs an answer."""
    state = history.item.input_state
    calls = cast.pending(history)
    last = cast.last_of_each(calls)

    def changed(call: Any) -> Any:
        if call not in calls:
            return call
        return cast.with_speech(call, text if call in last else "")

    if (sent := part_at(state, "tool_call")) is not None:
        return {"tool_call": changed(sent)}
    if (sent := part_at(state, ROOT)) is not None:
        return {ROOT: [changed(call) for call in sent]}
    given = cast.given(history)
    at = _calling(given, calls)
    assert at is not None
    calling = given[at]
    better = calling.model_copy(update={"tool_calls": [changed(call) for call in calling.tool_calls]})
    return {cast.key: [*given.parts[:at], better, *given.parts[at + 1 :]]}


def is_said(cast: Cast, one: Any) -> bool:
    """True for a message of an agent: a text, an AI message, or a human message in an agent's name."""
    if isinstance(one, HumanMessage):
        return bool(one.name) and (not cast.personas or cast.name(one.name) in cast.personas)
    return isinstance(one, str | AIMessage)


def _acts(cast: Cast, message: Any) -> bool:
    if not isinstance(message, AIMessage):
        return False
    picture = bool(message.content) and not isinstance(message.content, str) and not str(message.text)
    acting = len(message.tool_calls) > len(_speaking(cast, message))
    return bool(acting or message.invalid_tool_calls or picture)


def _speaking(cast: Cast, message: Any) -> list[Any]:
    if not isinstance(message, AIMessage):
        return []
    return [call for call in message.tool_calls if cast.speech(call) is not None]


def similarity_to(text: str, messages: Sequence[str]) -> tuple[float, str]:
    """The highest Jaccard overlap of words with one of `messages`, and that message; 0.0 and "" without
    messages."""
    words = set(tokens(text))
    found = [(jaccard(words, set(tokens(message))), message) for message in messages]
    return max(found, key=lambda pair: pair[0], default=(0.0, ""))


def commit_nothing(key: str, output: Mapping[str, Any]) -> dict[str, Any]:
    """A node's update without its messages."""
    return {name: output[name] for name in output if name != key}


def with_text(cast: Cast, history: History, output: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A node's update with `text` in place of its draft."""
    value = part_at(output, cast.key)
    written = overwriting(value)[1]
    if isinstance(written, str):
        return {**output, cast.key: overwriting_with(value, text)}
    messages = messages_in(value)
    new = {id(one) for one in new_of(cast.given(history), messages).parts}
    spoken = [
        at
        for at, (part, one) in enumerate(zip(messages.parts, messages, strict=True))
        if id(part) in new and is_said(cast, one) and _text(cast, one)
    ]
    kept: list[Any] = []
    for at, (part, one) in enumerate(zip(messages.parts, messages, strict=True)):
        written_as = part if isinstance(part, BaseMessage) else one
        if at not in spoken:
            kept.append(written_as)
            continue
        # The new text replaces all spoken text; other actions of the remaining messages stay.
        better = _saying(cast, written_as, text if at == spoken[-1] else "")
        if at == spoken[-1] or (isinstance(better, AIMessage) and _acts(cast, better)):
            kept.append(better)
    better = kept[0] if is_single(written) else kept
    return {**output, cast.key: overwriting_with(value, better)}


def _saying(cast: Cast, one: Any, text: str) -> Any:
    """The message with another text: in a speaking call to each receiver if it has such calls. An empty text
    removes them."""
    if isinstance(one, str):
        return text
    if not (speaking := _speaking(cast, one)):
        return one.model_copy(update={"content": text})
    calls: list[Any] = []
    last = cast.last_of_each(speaking)
    for call in one.tool_calls:
        if call not in speaking:
            calls.append(call)
        elif text and call in last:
            calls.append(cast.with_speech(call, text))
    return one.model_copy(update={"content": "", "tool_calls": calls})


def _text(cast: Cast, one: Any) -> str:
    if isinstance(one, str):
        return one.strip()
    spoken = cast.spoken(one) if isinstance(one, AIMessage) and one.tool_calls else None
    return (str(one.text) if spoken is None else spoken).strip()
