"""Conversations with a gate: agents that speak from a list, and a judge that scores drafts by their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from arbiter import ArbiterOS
from arbiter.personas import GateConfig, JudgeRequest, Persona, PersonaGate
from tests.personas.personas_support import Says, prompt_of
from tests.support import Chat, chain

DIMENSIONS = {
    "action-in-character": "adherence",
    "action-consistent": "consistency",
    "action-fluent": "fluency",
    "action-suitable": "suitability",
}
PAM = Persona("Pam", "A shy painter.", "pam")


class Speaker:
    """A chat node that sends one text after another, the last one for ever, and keeps its inputs."""

    def __init__(self, *texts: Any, name: str = "jim", **fields: Any) -> None:
        self.__name__ = name
        self.texts = texts
        self.fields = fields
        self.seen: list[list[AnyMessage]] = []

    @property
    def calls(self) -> int:
        return len(self.seen)

    def told(self, call: int = -1) -> str:
        """Everything that the node saw in that call."""
        return "\n".join(str(message.text) for message in self.seen[call])

    def __call__(self, state: Any) -> Any:
        self.seen.append(list(state["messages"]))
        text = self.texts[min(len(self.seen), len(self.texts)) - 1]
        if isinstance(text, Exception):
            raise text
        return {"messages": [AIMessage(text, **self.fields)]}


def chat(*bodies: Any, **options: Any) -> Any:
    """A conversation in which the bodies speak one after another."""
    return chain(*bodies, state=Chat, **options)


def scored(by_text: Mapping[str, Any]) -> Says:
    """A judge: `by_text` maps the text of a draft to its score, or to scores by dimension; other drafts
    get 9."""

    def answer(request: JudgeRequest) -> Any:
        dimension = DIMENSIONS[request.propositions[0]]
        prompt = prompt_of(request)
        found: Any = next((given for text, given in by_text.items() if f"> {text}\n" in prompt), 9)
        score: Any = cast(Any, found).get(dimension, 9) if isinstance(found, dict) else found
        if isinstance(score, Exception) or score is None:
            return score
        return {"score": score, "reasoning": f"the {dimension} of it"}

    return Says(answer)


def enabled(*dimensions: str, **settings: Any) -> GateConfig:
    return GateConfig(**{f"gate_{dimension}_enabled": True for dimension in dimensions}, **settings)


def gated(
    judge: Any,
    config: Any,
    *bodies: Any,
    personas: Sequence[Any] = (),
    checkpointer: Any = None,
    **known: Any,
) -> tuple[Any, PersonaGate, ArbiterOS]:
    """The governed conversation, its gate and its ArbiterOS."""
    gate = PersonaGate(judge, personas or [Persona("Jim", "A calm salesman.", "jim")], config, **known)
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    return arbiter_os.govern(chat(*bodies, checkpointer=checkpointer)), gate, arbiter_os


def hello(*own: str) -> dict[str, Any]:
    """The input: somebody says hello, and Jim has already said `own`."""
    said = [AIMessage(text, name="Jim", id=f"own-{at}") for at, text in enumerate(own)]
    return {"messages": [HumanMessage("Hello.", id="hello"), *said]}


def texts(output: Any) -> list[str]:
    return [str(message.text) for message in output["messages"]]
