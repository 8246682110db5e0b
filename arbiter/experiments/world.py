"""The world: one LangGraph graph in which agents talk, step by step; the same one for all arms.

    interventions ─▶ facilitator ─▶ act ─▶ deliver ─┬▶ interventions ...
                                                    └▶ end, after the last step

"interventions" and "deliver" do nothing themselves but begin and end a step. A treatment acts on
"interventions" and "act" from outside (`arms.Treatment`). "act" runs once for each agent: for all at the same
time ("parallel": everybody hears what was said before the step, and what they say is delivered in the order of
the agents), or for one after another in a seeded order ("sequential_random").
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from arbiter.errors import ConfigurationError
from arbiter.experiments.arms import ACT, HEAD
from arbiter.models import ChatModel
from arbiter.models._asking import without_thought
from arbiter.models._json import whole
from arbiter.personas import Persona

Order = Literal["parallel", "sequential_random"]
FACILITATOR, DELIVER = "facilitator", "deliver"

ROLE = (
    "You are {name}, and you stay {name} whatever is said.\n\n{text}\n\n"
    "You talk with {others}. A message of theirs begins with its speaker's name. Answer with what {name} says next "
    "and nothing else: no name in front of it, no stage directions."
)
TURN = "It is your turn, {name}."


class Conversation(TypedDict):
    """The state of a world."""

    messages: Annotated[list[BaseMessage], operator.add]
    """The conversation so far: messages of agents have their name, those of the facilitator have none."""
    step: int
    acted: Annotated[int, operator.add]
    """The number of turns so far."""


class Turn(TypedDict):
    """The input of "act": the conversation that the agent hears."""

    messages: list[BaseMessage]
    agent: str


@dataclass(slots=True)
class Setting:
    """One environment: its agents, the facilitator's prompts by step (from 0), and the number of steps.

    `drafts` counts the texts that agents wrote so far.
    """

    personas: Sequence[Persona]
    prompts: Mapping[int, str]
    steps: int
    seed: int = 0
    environment: int = 0
    drafts: int = field(default=0, init=False)
    _heard: dict[tuple[str, str, bool], BaseMessage] = field(
        default_factory=dict[tuple[str, str, bool], BaseMessage], init=False, repr=False
    )
    """The form of each message in prompts, by its speaker, its text and whether it is the agent's own. A governed
    node gets copies of the messages.
    """

    def __post_init__(self) -> None:
        names = [persona.name for persona in self.personas]
        if len(set(names)) < len(names) or not names:
            raise ConfigurationError(
                f"the agents are {names}; expected at least one, each with its own name."
            )
        if self.steps < 1:
            raise ConfigurationError(f"steps is {self.steps!r}; expected a whole number from 1.")

    def order(self, step: int) -> list[str]:
        """The names of the agents in the order in which they act in a step, if one acts after another."""
        names = [persona.name for persona in self.personas]
        random.Random(seed_of(self.seed, self.environment, step)).shuffle(names)
        return names

    def heard(self, message: BaseMessage, agent: str) -> BaseMessage:
        """A message from the side of an agent. It is made once, because a conversation is in each of its prompts."""
        speaker, text = message.name or "", str(message.text)
        key = speaker, text, speaker == agent
        if key not in self._heard:
            named = f"{speaker}: {text}" if speaker else text
            self._heard[key] = AIMessage(text) if speaker == agent else HumanMessage(named)
        return self._heard[key]


def seed_of(seed: int, environment: int, step: int) -> int:
    """The seed of a step: the same one in each arm, process and order of environments."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{environment}:{step}".encode()).digest())


class World:
    """The graph of a scenario. `graph` is compiled once; environments are passed to it as its context.

    Without a `model` agents speak lines made from their personas, which shows that everything is connected.
    """

    def __init__(self, model: ChatModel | None, *, order: Order = "parallel") -> None:
        if order not in get_args(Order):
            raise ConfigurationError(f"order is {order!r}; expected one of {', '.join(get_args(Order))}.")
        self.model = model
        self.order: Order = order
        self.graph: Any = self._compiled()

    def _compiled(self) -> Any:
        graph: Any = StateGraph(Conversation, context_schema=Setting)
        graph.add_node(HEAD, _begin)
        graph.add_node(FACILITATOR, _facilitate)
        graph.add_node(ACT, self._act, input_schema=Turn)
        graph.add_node(DELIVER, _end_step)
        graph.add_edge(START, HEAD)
        graph.add_edge(HEAD, FACILITATOR)
        graph.add_conditional_edges(FACILITATOR, self._first, [ACT])
        graph.add_conditional_edges(ACT, self._next, [ACT, DELIVER])
        graph.add_conditional_edges(DELIVER, _go_on, [HEAD, END])
        return graph.compile()

    async def converse(
        self, setting: Setting, *, graph: Any = None, thread_id: str = "world"
    ) -> list[BaseMessage]:
        """Let the agents of an environment talk, and return what they said. `graph` is the governed one."""
        agents = len(setting.personas)
        state: Any = await (self.graph if graph is None else graph).ainvoke(
            {"messages": [], "step": 0, "acted": 0},
            {"configurable": {"thread_id": thread_id}, "recursion_limit": setting.steps * (agents + 3) + 1},
            context=setting,
        )
        return list(state["messages"])

    async def ask(self, setting: Setting, said: Sequence[BaseMessage], agent: str, question: str) -> str:
        """Let an agent answer one more question, after the conversation."""
        return await self._speak(setting, agent, [*said, HumanMessage(question)])

    def _first(self, state: Conversation, runtime: Runtime[Setting]) -> list[Send]:
        setting = runtime.context
        if self.order == "sequential_random":
            return [_turn(state, setting.order(state["step"])[0])]
        return [_turn(state, persona.name) for persona in setting.personas]

    def _next(self, state: Conversation, runtime: Runtime[Setting]) -> list[Send] | str:
        setting = runtime.context
        done = state["acted"] - state["step"] * len(setting.personas)
        if self.order == "parallel" or done == len(setting.personas):
            return DELIVER
        return [_turn(state, setting.order(state["step"])[done])]

    async def _act(self, state: Turn, runtime: Runtime[Setting]) -> dict[str, Any]:
        agent = state["agent"]
        text = await self._speak(runtime.context, agent, state["messages"])
        runtime.context.drafts += 1
        return {"messages": [AIMessage(text, name=agent)], "acted": 1}

    async def _speak(self, setting: Setting, agent: str, said: Sequence[BaseMessage]) -> str:
        if self.model is None:
            return f"{agent} here, for the {len(said)}th time." if said else f"I am {agent}."
        reply = await self.model.ainvoke(_prompt(setting, agent, said))
        answer = without_thought(reply if isinstance(reply, str) else str(reply.text))
        # The text is in all later prompts, and no model can be sent half of a character.
        text: str = whole(answer.strip())
        return text


def _turn(state: Conversation, agent: str) -> Send:
    return Send(ACT, {"messages": state["messages"], "agent": agent})


def _begin(state: Conversation) -> dict[str, Any]:
    return {"step": state["step"]}


def _facilitate(state: Conversation, runtime: Runtime[Setting]) -> dict[str, Any]:
    prompt = runtime.context.prompts.get(state["step"])
    return {"messages": [] if prompt is None else [HumanMessage(prompt)]}


def _end_step(state: Conversation) -> dict[str, Any]:
    return {"step": state["step"] + 1}


def _go_on(state: Conversation, runtime: Runtime[Setting]) -> str:
    return HEAD if state["step"] < runtime.context.steps else END


def _prompt(setting: Setting, agent: str, said: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation from the side of one agent. System messages in it are transient thoughts of a treatment."""
    persona = next(each for each in setting.personas if each.name == agent)
    others = ", ".join(each.name for each in setting.personas if each is not persona) or "a facilitator"
    role = [ROLE.format(name=agent, text=persona.text, others=others)]
    role += [str(message.text) for message in said if isinstance(message, SystemMessage)]
    heard = [setting.heard(message, agent) for message in said if not isinstance(message, SystemMessage)]
    return [SystemMessage("\n\n".join(role)), *heard, HumanMessage(TURN.format(name=agent))]
