"""Ada's lines, and scripted models that need no network; `--model` replaces them by a real one.

One model talks, and answers only from its notes. One listens, and finds in Ada's words the claims that the
script lists.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class Conversation(NamedTuple):
    """One thread: its name, and Ada's lines in it."""

    thread: str
    lines: tuple[str, ...]


STORY = (
    Conversation(
        "monday",
        (
            "Hi, I'm Ada. I live in Seattle, and I bake for a living.",
            "I have a cat called Pixel. She hates the rain here.",
            "Off the record: I am thinking of quitting.",
        ),
    ),
    Conversation(
        "thursday",
        (
            "Big news. I moved to Portland!",
            "Pixel came along, my cat likes the new place. I found a flat by the river.",
        ),
    ),
    Conversation(
        "sunday",
        (
            "Where do I live?",
            "And what is my pet called?",
            "Please forget that I have a cat.",
            "What is my pet called?",
        ),
    ),
)

HEARD: dict[str, tuple[dict[str, Any], ...]] = {
    "I live in Seattle": (
        {"claim": "Ada lives in Seattle", "type": "status", "slot": "residence.city", "value": "Seattle"},
    ),
    "I bake for a living": ({"claim": "Ada works as a baker", "type": "fact"},),
    "I have a cat called Pixel": ({"claim": "Ada has a cat called Pixel", "type": "fact"},),
    "I moved to Portland": (
        {"claim": "Ada lives in Portland", "type": "status", "slot": "residence.city", "value": "Portland"},
    ),
    "Pixel came along, my cat": ({"claim": "Ada has a cat called Pixel", "type": "fact"},),
    "I am thinking of quitting": ({"claim": "Ada wants to quit her job", "type": "status"},),
}
"""The claims in Ada's words. The last one is never found, because its message is never shown to the listener."""

FORGOTTEN = {"forget that I have a cat": "a cat"}
"""What Ada asks to forget, and the words of the known facts that the listener takes her to mean."""

COMPARED = {("Ada lives in Seattle", "Ada lives in Portland"): "supersedes"}
THOUGHTS = ("Ada shares what is new in her life. I can ask how the move went.",)
DONE = {"I found a flat": "find a flat"}

_MESSAGE = re.compile(
    r"Message (\S+) of [^\n]*:\n\[quoted text begins\]\n> (.*?)\n\[quoted text ends\]", re.DOTALL
)
_KNOWN = re.compile(r"^> (\S+) \([^)]*\): (.*)$", re.MULTILINE)
_PAIR = re.compile(r"Pair (\d+)\..*?\n> (.*?)\n\[quoted.*?\n> (.*?)\n\[quoted", re.DOTALL)
_ANSWERS = (
    ("where do i live", re.compile(r"Ada lives in (\w+)"), "In {}.", "You have not told me."),
    ("my pet called", re.compile(r"a cat called (\w+)"), "{}, your cat.", "I know of no pet of yours."),
)


class _Player(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "played"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.answer(messages)))])

    def answer(self, messages: list[BaseMessage]) -> str:
        raise NotImplementedError


class Talker(_Player):
    """Answers questions only from the notes that it receives with the conversation."""

    def answer(self, messages: list[BaseMessage]) -> str:
        notes = "\n".join(str(message.text) for message in messages if message.type == "system")
        asked = str(messages[-1].text).lower()
        for question, pattern, known, unknown in _ANSWERS:
            if question in asked:
                found = pattern.search(notes)
                return unknown if found is None else known.format(found[1])
        return "I have forgotten it." if "forget" in asked else "Thank you for telling me."


class Listener(_Player):
    """Answers the evaluators' questions about a conversation."""

    def answer(self, messages: list[BaseMessage]) -> str:
        prompt = "\n".join(str(message.text) for message in messages)
        if '"relations"' in prompt:
            return json.dumps({"relations": [*map(_compared, _PAIR.findall(prompt))]})
        if '"claims"' in prompt:
            known, _, new = prompt.partition("The new messages:")
            return json.dumps({"claims": _claims(new), "forget": _forgotten(known, new)})
        if '"thought"' in prompt:
            return json.dumps(_reflected(prompt))
        return json.dumps({"goals": _moved(prompt)})


def _claims(prompt: str) -> list[dict[str, Any]]:
    return [
        {**claim, "source_message_ids": [id], "in_bio": False, "already_known": False}
        for id, text in _MESSAGE.findall(prompt)
        for words, claims in HEARD.items()
        if words in text
        for claim in claims
    ]


def _forgotten(known: str, prompt: str) -> list[dict[str, str]]:
    return [
        {"id": id, "message_id": message}
        for message, text in _MESSAGE.findall(prompt)
        for words, meant in FORGOTTEN.items()
        if words in text
        for id, claim in _KNOWN.findall(known)
        if meant in claim
    ]


def _compared(pair: tuple[str, str, str]) -> dict[str, Any]:
    number, known, new = pair
    return {"pair": int(number), "relation": COMPARED.get((known, new), "unrelated")}


def _reflected(prompt: str) -> dict[str, Any]:
    between = {"sourceEntityId": "ada", "targetEntityId": "juniper", "tags": ["shares_news"]}
    return {"thought": THOUGHTS[0], "facts": [], "relationships": [between]}


def _moved(prompt: str) -> list[dict[str, Any]]:
    done = [objective for words, objective in DONE.items() if words in prompt]
    objectives = [{"description": objective, "completed": True} for objective in done]
    return [{"id": "move", "objectives": objectives}] if objectives else []
