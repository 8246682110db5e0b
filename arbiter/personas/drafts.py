"""What an agent is about to say, as it is in the update of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from arbiter.history import HistoryItem
from arbiter.personas.conversation import Cast, messages_in
from arbiter.personas.texts import jaccard, tokens
from arbiter.personas.trajectories import SOMEBODY, Trajectory


@dataclass(frozen=True, slots=True)
class Draft:
    """What an agent is about to say, and what was said before. `own` are the texts of its messages so far."""

    agent: str | None
    text: str
    before: Trajectory
    own: tuple[str, ...]


def draft_of(cast: Cast, item: HistoryItem, output: Mapping[str, Any]) -> Draft:
    """The draft in a node's output. A node may return the whole conversation: only what is new of it counts."""
    given = messages_in(item.input_state.get(cast.key))
    now = messages_in(output.get(cast.key))
    if now[: len(given)] == given:
        now = now[len(given) :]
    said = [one for one in now if isinstance(one, str | AIMessage)]
    named = (cast.name(one.name) for one in said if isinstance(one, AIMessage) and one.name)
    agent = next(named, None) or cast.acting(item)
    before = cast.trajectory(given, agent)
    text = "\n".join(
        filter(None, (one.strip() if isinstance(one, str) else str(one.text).strip() for one in said))
    )
    own = tuple(event.text for event in before.actions_of(agent or SOMEBODY))
    return Draft(agent, text, before, own)


def similarity_to(text: str, messages: Sequence[str]) -> tuple[float, str]:
    """The highest Jaccard overlap of the words of `text` with those of a message, and that message; 0.0 with none."""
    words = set(tokens(text))
    found = [(jaccard(words, set(tokens(message))), message) for message in messages]
    return max(found, key=lambda pair: pair[0], default=(0.0, ""))


def commit_nothing(key: str, output: Mapping[str, Any]) -> dict[str, Any]:
    """A node's update without what it says."""
    return {name: output[name] for name in output if name != key}


def with_text(key: str, item: HistoryItem, output: Mapping[str, Any], text: str | None) -> dict[str, Any]:
    """A node's update that says `text` instead."""
    value = output.get(key)
    said = text or ""
    given = messages_in(item.input_state.get(key))
    messages = messages_in(value)
    if isinstance(value, str):
        return {**output, key: said}
    begin = len(given) if messages[: len(given)] == given else 0
    new = range(begin, len(messages))
    spoken = [at for at in new if isinstance(messages[at], str) or _speaks(messages[at])]
    kept: list[Any] = []
    for at, one in enumerate(messages):
        if at == spoken[-1]:
            one = said if isinstance(one, str) else one.model_copy(update={"content": said})
        elif at in spoken:
            continue  # the new text stands for all that was said
        kept.append(one)
    return {**output, key: kept[0] if isinstance(value, BaseMessage) else kept}


def _speaks(message: Any) -> bool:
    return isinstance(message, AIMessage) and bool(str(message.text).strip())
