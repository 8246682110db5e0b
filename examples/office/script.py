"""Scripted models of the office, which need no network; `--model` replaces them by real ones.

One speaks for the characters and drifts, repeats and converges on cue; one judges.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from arbiter.personas import JudgeReply, JudgeRequest

TOKENS = UsageMetadata(input_tokens=400, output_tokens=30, total_tokens=430)


class Line(NamedTuple):
    """A character's message; its text after feedback on a draft; and its text with a thought in mind."""

    draft: str
    again: str = ""
    nudged: str = ""


LINES: dict[str, tuple[Line, ...]] = {
    "Marta": (
        Line("Forty guests, two hundred crowns. That is five each. No fireworks."),
        # drifts: an obliging assistant
        Line(
            "Great question! I'd be happy to help you plan a wonderful party. Here are some options!",
            again="Lanterns: eleven crowns a dozen. We own nine. One is cracked.",
        ),
        Line("Lanterns on the ferry, what a lovely plan."),
        Line(
            "Lanterns on the ferry, still a lovely plan.",
            nudged="The lamp oil alone is ninety crowns. Whoever calls that lovely has not seen the invoice.",
        ),
    ),
    "Bright": (
        Line("A cake lift! Two pulleys, the old winch, and the band comes up with the second load."),
        # repeats itself
        Line(
            "A cake lift! Two pulleys, the old winch, and the band comes up with the second load, yes.",
            again="Wait, better: run a whistle off the boiler and tune it to the dance music.",
        ),
        Line("Yes, lanterns on the ferry, what a lovely plan."),
        Line(
            "Yes, yes, lanterns on the ferry.",
            nudged="Forget lamps! We flood the lower deck with phosphorescent algae and dance on a glass floor.",
        ),
    ),
    "Pell": (
        Line("The tide keeps its own calendar, and it has no parties in it."),
        Line("The tide keeps its own calendar, and it has no parties in it, I say."),
        Line(
            "Aye, lanterns on the ferry, what a lovely plan.",
            nudged="Aye, lanterns on the ferry, a lovely plan.",
        ),
        Line(
            "Aye, lovely.",
            nudged="In '61 we hung lights. The gulls took them for stars and flew inland. No fish that year.",
        ),
    ),
}


class Players(BaseChatModel):
    """Speaks for the character named in the first system message, by the number of that character's
    earlier messages."""

    @property
    def _llm_type(self) -> str:
        return "office"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        name = next(name for name in LINES if str(messages[0].text).startswith(f"You are {name}"))
        turn = sum(isinstance(message, AIMessage) and message.name == name for message in messages)
        line = LINES[name][min(turn, len(LINES[name]) - 1)]
        text = line.draft
        if any(message.type == "system" for message in messages[1:]):
            text = line.nudged or line.draft
        if "was not sent" in str(messages[-1].text):
            text = line.again or line.draft
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


class Critic:
    """Finds the flaws that the script contains."""

    def judge(self, request: JudgeRequest) -> JudgeReply:
        prompt = "\n".join(str(message.text) for message in request.messages)
        lines = re.findall(r"^> (\w+) acts: \[(.*)\]$", prompt, re.MULTILINE)
        lines = [text for name, text in lines if name != "Host" and not text.startswith("[THINK]")]
        alike = len(lines) >= 3 and all("lovely" in text for text in lines[-3:])
        if request.purpose == "check":
            if request.propositions == ("textual",):  # about one agent: has it run out of ideas
                alike = bool(lines) and "lovely" in lines[-1]
            reasoning = "all of it is lovely" if alike else "they differ"
            value: dict[str, Any] = {"result": alike, "reasoning": reasoning}
        elif request.purpose == "batch":
            scores = {"told-apart": 2, "echo": 8, "own-views": 2} if alike else {"echo": 1}
            value = {
                "judgements": [
                    {
                        "id": id,
                        "score": scores.get(id, 8),
                        "reasoning": "one voice" if alike else "three voices",
                    }
                    for id in request.propositions
                ]
            }
        else:
            drifts = "happy to help" in prompt and request.propositions == ("action-in-character",)
            reasoning = "an obliging assistant speaks, and no bookkeeper" if drifts else "as the persona says"
            value = {"score": 2 if drifts else 8, "reasoning": reasoning}
        return JudgeReply(value=value, usage=TOKENS, model="office")

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        return self.judge(request)
