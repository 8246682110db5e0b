"""What an agent is about to say, as it is in the update of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter.history import History
from arbiter.personas.conversation import Cast, is_single, messages_at, messages_in, new_of, part_at
from arbiter.personas.texts import jaccard, tokens
from arbiter.personas.trajectories import Trajectory
from arbiter.states import ROOT, overwriting, overwriting_with


@dataclass(frozen=True, slots=True)
class Draft:
    """What an agent (None: nobody knows which) is about to say, and what was said before.

    `acts`: it does something else than say `text`, such as call a tool. `calls` are the calls of tools by which it
    speaks, each with its id and what it says. `unread` are tools by which it speaks, and that say nothing in an
    argument that is known.
    """

    agent: str | None
    text: str
    before: Trajectory
    acts: bool = False
    calls: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()

    def own(self, last: int) -> tuple[str, ...]:
        """The texts of the agent's newest messages, at most so many, oldest first."""
        if self.agent is None:
            return ()
        return tuple(event.text for event in self.before.actions_of(self.agent, last=last))


def draft_of(cast: Cast, history: History, output: Mapping[str, Any], known: str | None = None) -> Draft:
    """The draft in the output of the newest node run. Only what is new in it counts, and no message of somebody else
    than an agent. `known` is who acts where nothing else says so."""
    given = cast.given(history)
    said = [one for one in new_of(given, messages_at(output, cast.key)) if is_said(cast, one)]
    named = (cast.name(one.name) for one in said if isinstance(one, BaseMessage) and one.name)
    agent = next(named, None) or cast.acting(history.entries[-1][-1]) or known
    before = cast.trajectory(given, agent, cast.writers(history))
    said_text = "\n".join(filter(None, (_text(cast, one) for one in said)))
    called = [call for one in said if isinstance(one, AIMessage) for call in one.tool_calls]
    calls = tuple((str(call["id"]), text) for call in called if (text := cast.speech(call)) is not None)
    names = (call["name"] for call in called if cast.speech(call) is None)
    unread = tuple(name for name in names if name in cast.speaking_tools)
    return Draft(agent, said_text, before, any(_acts(cast, one) for one in said), calls, unread)


def pending_draft(cast: Cast, history: History) -> Draft:
    """The draft in the calls that the newest node run is about to make, by which an agent speaks."""
    calls = cast.pending(history)
    given = cast.given(history)
    last = given[-1] if len(given) else None
    # The message that calls is the draft itself, and no part of what was said before.
    is_last = isinstance(last, AIMessage) and any(call in last.tool_calls for call in calls)
    item = history.entries[-1][-1]
    agent = (cast.name(last.name) if is_last and last is not None else None) or cast.acting(item)
    before = cast.trajectory(given[:-1] if is_last else given, agent, cast.writers(history))
    text = "\n".join(str(cast.speech(call)).strip() for call in calls)
    return Draft(
        agent, text, before, calls=tuple((str(call["id"]), str(cast.speech(call))) for call in calls)
    )


def pending_with_text(cast: Cast, history: History, text: str) -> dict[str, Any]:
    """What a node run is given to say, with another text: all of it is said by the last call."""
    state = history.entries[-1][-1].input_state
    calls = cast.pending(history)

    def changed(call: Any) -> Any:
        if call not in calls:
            return call
        key = cast.speech_key(call)
        return {**call, "args": {**call["args"], key: text if call == calls[-1] else ""}}

    if (sent := part_at(state, "tool_call")) is not None:
        return {"tool_call": changed(sent)}
    if (sent := part_at(state, ROOT)) is not None:
        return {ROOT: [changed(call) for call in sent]}
    messages = cast.given(history)
    last = messages[-1]
    better = last.model_copy(update={"tool_calls": [changed(call) for call in last.tool_calls]})
    return {cast.key: [*messages.parts[:-1], better]}


def is_said(cast: Cast, one: Any) -> bool:
    """Whether that is something an agent says: a text, an AI message, or a human one in an agent's name."""
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
    """The calls by which a message speaks."""
    if not isinstance(message, AIMessage):
        return []
    return [call for call in message.tool_calls if cast.speech(call) is not None]


def similarity_to(text: str, messages: Sequence[str]) -> tuple[float, str]:
    """The highest Jaccard overlap of the words of `text` with those of a message, and that message; 0.0 with none."""
    words = set(tokens(text))
    found = [(jaccard(words, set(tokens(message))), message) for message in messages]
    return max(found, key=lambda pair: pair[0], default=(0.0, ""))


def commit_nothing(key: str, output: Mapping[str, Any]) -> dict[str, Any]:
    """A node's update without what it says."""
    return {name: output[name] for name in output if name != key}


def with_text(cast: Cast, history: History, output: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A node's update that says `text` instead."""
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
    for at, one in enumerate(messages):
        if at not in spoken:
            kept.append(one)
            continue
        # The new text stands for all that was said; what else the others did stays.
        better = _saying(cast, one, text if at == spoken[-1] else "")
        if at == spoken[-1] or (isinstance(better, AIMessage) and _acts(cast, better)):
            kept.append(better)
    better = kept[0] if is_single(written) else kept
    return {**output, cast.key: overwriting_with(value, better)}


def _saying(cast: Cast, one: Any, text: str) -> Any:
    """The same message, saying that: by the last of its calls that speak, if it has one. Without a text these go."""
    if isinstance(one, str):
        return text
    if not (speaking := _speaking(cast, one)):
        return one.model_copy(update={"content": text})
    calls: list[Any] = []
    for call in one.tool_calls:
        if call not in speaking:
            calls.append(call)
        elif text and call == speaking[-1]:
            calls.append({**call, "args": {**call["args"], cast.speech_key(call): text}})
    return one.model_copy(update={"content": "", "tool_calls": calls})


def _text(cast: Cast, one: Any) -> str:
    if isinstance(one, str):
        return one.strip()
    spoken = cast.spoken(one) if isinstance(one, AIMessage) and one.tool_calls else None
    return (str(one.text) if spoken is None else spoken).strip()
