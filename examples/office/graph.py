"""A conversation as a graph: a topic, then round after round of three characters. It knows nothing of
Arbiter."""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from arbiter.personas import Persona
from examples.office.cast import CAST

TOPIC = "The office has to plan its summer party. What shall we do?"
INTERRUPTION = "You all sound the same. Each of you: what is wrong with that plan?"


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    round: int


def topic(state: State) -> State:
    return {"messages": [HumanMessage(TOPIC, name="Host")], "round": 0}


def reflect(state: State) -> State:
    """The host steps in."""
    return {"messages": [HumanMessage(INTERRUPTION, name="Host")]}


def speaking(persona: Persona, model: Any, *, last: bool) -> Any:
    """A node in which that character speaks."""

    def speak(state: State) -> State:
        given = state.get("messages", [])
        for message in given:
            if isinstance(message, SystemMessage):  # advice for this call only
                get_stream_writer()({"agent": persona.name, "told": str(message.text)})
        answer = model.invoke([SystemMessage(f"You are {persona.name}. {persona.text}"), *given])
        said: State = {"messages": [AIMessage(str(answer.text), name=persona.name)]}
        return {**said, "round": state.get("round", 0) + 1} if last else said

    return speak


def build(model: Any, rounds: int) -> Any:
    builder = StateGraph(State)
    builder.add_node("topic", topic)
    builder.add_node("reflect", reflect)
    builder.add_edge(START, "topic")
    before = "topic"
    for persona in CAST:
        builder.add_node(persona.id, speaking(persona, model, last=persona is CAST[-1]))
        builder.add_edge(before, persona.id)
        before = persona.id
    builder.add_edge("reflect", CAST[0].id)

    def more(state: State) -> str:
        return CAST[0].id if state.get("round", 0) < rounds else END

    builder.add_conditional_edges(before, more, [CAST[0].id, END])
    return builder.compile()
