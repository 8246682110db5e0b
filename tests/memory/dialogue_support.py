"""A governed chat whose scripted model notices what a test says a message contains."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS
from arbiter.memory import EvaluationCycle, Fact, FactEvaluator, FactsProvider, TrustEvaluator
from tests.memory.memory_support import Clock
from tests.scripted import Scripted

_PAIR = re.compile(r"Pair (\d+)\..*?\n> (.*?)\n\[quoted.*?\n> (.*?)\n\[quoted", re.S)
_MESSAGE = re.compile(
    r"Message (\S+) of [^\n]*:\n\[quoted text begins\]\n> (.*?)\n\[quoted text ends\]", re.S
)

Heard = Mapping[str, Any]
"""Words of a message, and the claims in it: texts, or fields of the extraction's schema."""


class Chat:
    """One node, one model. `hear` is what the model finds in new messages; `compare` are its relations by
    (known claim, new claim), or one relation for all pairs; `says` adds other parts to its answers."""

    def __init__(
        self,
        hear: Heard,
        compare: Mapping[tuple[str, str], str] | str = "unrelated",
        *,
        says: Mapping[str, Mapping[str, Any]] | None = None,
        store: BaseStore | None = None,
        clock: Clock | None = None,
        asynchronous: bool = False,
        saver: Any = None,
        **options: Any,
    ) -> None:
        self.hear, self.compare, self.also = hear, compare, says or {}
        self.clock = clock or Clock()
        self.asynchronous = asynchronous
        self.model = Scripted(answers=[self._answer])
        self.shown = ""
        self.store = InMemoryStore() if store is None else store
        options.setdefault("conversation_length", 2)
        self.cycle = EvaluationCycle(
            store=self.store, evaluator_model=self.model, clock=self.clock, **options
        )
        self.arbiter_os = ArbiterOS()
        self.arbiter_os.add_evaluation_cycle(self.cycle)
        self.arbiter_os.add_evaluator(FactEvaluator())
        self.arbiter_os.add_evaluator(TrustEvaluator())
        self.arbiter_os.add_advisor(FactsProvider())
        builder = StateGraph(MessagesState).add_node("reply", self._reply).add_edge(START, "reply")
        graph = builder.compile(checkpointer=InMemorySaver() if saver is None else saver)
        self.app: Any = self.arbiter_os.govern(graph, {"reply": "RESPOND"})

    def _reply(self, state: MessagesState) -> dict[str, Any]:
        self.shown = "\n".join(message.text for message in state["messages"] if message.type == "system")
        return {"messages": [AIMessage("ok")]}

    async def say(
        self, *texts: str | BaseMessage, user: str | None = "user-1", room: str = "room-1", **fields: Any
    ) -> None:
        """One turn with these messages."""
        said = [HumanMessage(text, **fields) if isinstance(text, str) else text for text in texts]
        config: Any = {"configurable": {"thread_id": room, **({} if user is None else {"user_id": user})}}
        if self.asynchronous:
            await self.app.ainvoke({"messages": said}, config)
        else:
            self.app.invoke({"messages": said}, config)

    async def notes(
        self, text: str = "What do you know?", *, user: str = "user-1", room: str = ""
    ) -> list[str]:
        """The lines about facts that the node gets in a new thread."""
        self.shown = ""
        await self.say(text, user=user, room=room or f"asking-{self.model.calls}-{self.clock.now}")
        return [line for line in self.shown.splitlines() if line.startswith("[conf=")]

    async def known(self, user: str = "user-1", state: Any = "active") -> list[str]:
        return sorted(fact.claim for fact in await self.facts(user, state))

    async def facts(self, user: str = "user-1", state: Any = None) -> list[Fact]:
        return await self.cycle.memory.afacts(user, state)

    async def fact(self, claim: str, user: str = "user-1") -> Fact:
        (found,) = [fact for fact in await self.facts(user) if fact.claim == claim]
        return found

    async def trust(self, user: str = "user-1") -> int:
        return (await self.cycle.memory.atrust(user)).overall

    def pass_by(self, **amount: float) -> None:
        self.clock.now += timedelta(**amount)

    @property
    def compared(self) -> list[str]:
        """The prompts that compare claims."""
        prompts = (self.model.prompt(call) for call in range(self.model.calls))
        return [prompt for prompt in prompts if "Pair 1." in prompt]

    def _answer(self, prompt: str) -> str:
        if "Pair 1." in prompt:
            related = [
                {"pair": int(number), "relation": self._relation(known, new)}
                for number, known, new in _PAIR.findall(prompt)
            ]
            return json.dumps({"relations": related})
        if "The new messages:" not in prompt:
            return json.dumps({"thought": "", "facts": [], "relationships": []})
        new = prompt.split("The new messages:")[1]
        answer: dict[str, list[Any]] = {"claims": []}
        for id, text in _MESSAGE.findall(new):
            for words, found in self.hear.items():
                if words in text:
                    for claim in _several(found):
                        fields: dict[str, Any] = (
                            {"claim": claim, "type": "fact"} if isinstance(claim, str) else claim
                        )
                        answer["claims"].append({"source_message_ids": [id], **fields})
            for words, parts in self.also.items():
                if words in text:
                    for part, item in parts.items():
                        answer.setdefault(part, []).append({"message_id": id, **item})
        return json.dumps(answer)

    def _relation(self, known: str, new: str) -> str:
        return self.compare if isinstance(self.compare, str) else self.compare.get((known, new), "unrelated")


def _several(found: Any) -> list[Any]:
    return [*found] if isinstance(found, list | tuple) else [found]


def status(claim: str, **fields: Any) -> dict[str, Any]:
    return {"claim": claim, "type": "status", **fields}


def fact(claim: str, **fields: Any) -> dict[str, Any]:
    return {"claim": claim, "type": "fact", **fields}


def texts(facts: Sequence[Fact]) -> list[str]:
    return [fact.claim for fact in facts]
