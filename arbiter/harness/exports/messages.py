"""Inputs and outputs as messages of a chat: a list of `{"role": ..., "content": ...}`."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import convert_to_messages, convert_to_openai_messages

from arbiter._values.kinds import is_list, is_mapping
from arbiter.harness.canonical import only_text

Message = dict[str, Any]


def prompt_of(given: Any) -> list[Message]:
    """The messages of an input: its `messages`, its only text as the user's, or its JSON as the user's."""
    return _messages(given) or [{"role": "user", "content": "" if given is None else only_text(given)}]


def completion_of(written: Any) -> list[Message]:
    """The messages of an output: its `messages`, its only text as the assistant's, or its JSON as that."""
    return _messages(written) or [
        {"role": "assistant", "content": "" if written is None else only_text(written)}
    ]


def _messages(given: Any) -> list[Message]:
    """The messages in a state; none if it has none that can be read."""
    found: Any = given.get("messages") if is_mapping(given) else None
    if found is None:
        return []
    try:
        chat: Any = convert_to_openai_messages(convert_to_messages(found if is_list(found) else [found]))
    except (ValueError, TypeError, NotImplementedError):
        return []
    return [_plain(each) for each in chat]


def _plain(message: Message) -> Message:
    """A message with its role, its content as a text, and calls of tools if it has some."""
    found: Message = {"role": message["role"], "content": _content(message.get("content"))}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [
            {
                "id": str(call.get("id") or ""),
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
            }
            for call in calls
        ]
    if "tool_call_id" in message:
        found["tool_call_id"] = message["tool_call_id"]
    return found


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[Any] = [part.get("text") if is_mapping(part) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return json.dumps(content, ensure_ascii=False)


def said(completion: Any) -> str:
    """The text of a completion: a text, or messages, of which the last one with a content counts."""
    if isinstance(completion, str):
        return completion
    texts = [_content(message.get("content")) for message in completion]
    return next((text for text in reversed(texts) if text), "")
