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
from arbiter.states import overwriting, overwriting_with


@dataclass(frozen=True, slots=True)
class Draft:
    """What an agent (None: nobody knows which) is about to say, and what was said before.

    `acts`: it does something else than say `text`, such as call a tool.
    """

    agent: str | None
    text: str
    before: Trajectory
    acts: bool = False

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
    text = "\n".join(filter(None, map(_text, said)))
    return Draft(agent, text, before, any(map(_acts, said)))


def is_said(cast: Cast, one: Any) -> bool:
    """Whether that is something an agent says: a text, an AI message, or a human one in an agent's name."""
    if isinstance(one, HumanMessage):
        return bool(one.name) and (not cast.personas or cast.name(one.name) in cast.personas)
    return isinstance(one, str | AIMessage)


def _acts(message: Any) -> bool:
    if not isinstance(message, AIMessage):
        return False
    picture = bool(message.content) and not isinstance(message.content, str) and not _text(message)
    return bool(message.tool_calls or message.invalid_tool_calls or picture)


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
        if id(part) in new and is_said(cast, one) and _text(one)
    ]
    kept: list[Any] = []
    for at, one in enumerate(messages):
        if at == spoken[-1]:
            one = text if isinstance(one, str) else one.model_copy(update={"content": text})
        elif at in spoken:
            continue  # the new text stands for all that was said
        kept.append(one)
    better = kept[0] if is_single(written) else kept
    return {**output, cast.key: overwriting_with(value, better)}


def _text(one: Any) -> str:
    return (one if isinstance(one, str) else str(one.text)).strip()
