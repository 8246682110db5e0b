"""A judge that answers by a function, and shortcuts to the objects under test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from arbiter.personas import (
    Event,
    JudgeReply,
    JudgeRequest,
    Persona,
    Proposition,
    PropositionEngine,
    Target,
    Trajectory,
)
from tests.scripted import usage

JIM = Persona("Jim", "A calm salesman who speaks in short sentences.", "jim")


Answer = Callable[[JudgeRequest], Any] | Mapping[str, Any] | Exception | int | None


class Says:
    """Answers with the result of a function of the question: plain data, None for no answer, or an
    exception."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[JudgeRequest] = []

    def judge(self, request: JudgeRequest) -> JudgeReply:
        self.asked.append(request)
        value: Any = self.answer(request) if callable(self.answer) else self.answer
        if isinstance(value, Exception):
            raise value
        return JudgeReply(
            value=value, problem="nothing" if value is None else "", usage=usage(10, 2), model="m"
        )

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        await asyncio.sleep(0)
        return self.judge(request)

    @property
    def calls(self) -> int:
        return len(self.asked)

    def prompt(self, call: int = -1) -> str:
        return prompt_of(self.asked[call])


def prompt_of(request: JudgeRequest) -> str:
    return "\n".join(str(message.text) for message in request.messages)


def scores(**by_id: Any) -> Callable[[JudgeRequest], Any]:
    """The same score for a proposition in single questions and in batches; 7 for the rest."""

    def answer(request: JudgeRequest) -> Any:
        if request.purpose == "batch":
            return {"judgements": [{"id": id, "score": by_id.get(id, 7)} for id in request.propositions]}
        if request.purpose == "check":
            return {"result": by_id.get(request.propositions[0], True)}
        return {
            "score": by_id.get(request.propositions[0], 7),
            "reasoning": f"about {request.propositions[0]}",
        }

    return answer


def talk(*texts: str, by: str = "Jim", channel: str = "") -> Trajectory:
    return Trajectory.of(Event.action(by, text, channel=channel) for text in texts)


def target(*texts: str, **known: Any) -> Target:
    return Target(trajectory=talk(*(texts or ("Hi",))), agent="Jim", personas=(JIM,), **known)


def claim(id: str = "p", text: str = "{{agent_name}} is calm", **known: Any) -> Proposition:
    return Proposition(id, text, **known)


def engine(judge: Any, **known: Any) -> PropositionEngine:
    return PropositionEngine(judge, **known)


def drive(mode: str, owner: Any, method: str, *args: Any, **known: Any) -> Any:
    """Call the method, or its async twin in an event loop of its own."""
    if mode == "sync":
        return getattr(owner, method)(*args, **known)
    return asyncio.run(getattr(owner, f"a{method}")(*args, **known))


def quoted_lines(prompt: str) -> list[str]:
    return re.findall(r"^> .*$", prompt, re.MULTILINE)
