"""Conversations with a gate: agents that say what a list says, and a judge that scores drafts by their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from arbiter import ArbiterOS
from arbiter.personas import GateConfig, JudgeRequest, Persona, PersonaGate
from tests.personas_support import Says, prompt_of

DIMENSIONS = {
    "action-in-character": "adherence",
    "action-consistent": "consistency",
    "action-fluent": "fluency",
    "action-suitable": "suitability",
}
PAM = Persona("Pam", "A shy painter.", "pam")


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


class Speaker:
    """A chat node that says one text after another, the last one for ever, and keeps what it was given."""

    def __init__(self, *texts: Any, name: str = "jim", **fields: Any) -> None:
        self.__name__ = name
        self.texts = texts
        self.fields = fields
        self.seen: list[list[AnyMessage]] = []

    @property
    def calls(self) -> int:
        return len(self.seen)

    def told(self, call: int = -1) -> str:
        """All that it was shown in that call."""
        return "\n".join(str(message.text) for message in self.seen[call])

    def __call__(self, state: Any) -> Any:
        self.seen.append(list(state["messages"]))
        text = self.texts[min(len(self.seen), len(self.texts)) - 1]
        if isinstance(text, Exception):
            raise text
        return {"messages": [AIMessage(text, **self.fields)]}


def chat(*bodies: Any, checkpointer: Any = None, store: Any = None) -> Any:
    """A conversation in which the bodies speak one after another."""
    builder = StateGraph(Chat)
    before = START
    for body in bodies:
        builder.add_node(body.__name__, body)
        builder.add_edge(before, body.__name__)
        before = body.__name__
    return builder.compile(checkpointer=checkpointer, store=store)


def scored(by_text: Mapping[str, Any]) -> Says:
    """A judge: `by_text` has for the text of each draft the score, or the scores by dimension. 9 for the rest."""

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
