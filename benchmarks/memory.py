"""The cost of remembering. `python benchmarks/memory.py [--json FILE]`.

A call of `FactsProvider` for a user with 10,000 known facts, in a SQLite file without embeddings, against the
bare query of the same records. Ten evaluators whose `validate` takes 100 ms each, in sync and async runs. A
turn with four cognitive evaluators in the background, against the same turn without any; the limit applies to
a turn that asks a model which answers within 100 ms. Medians of interleaved pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from rich.console import Console
from rich.table import Table

from arbiter import ArbiterOS
from arbiter.memory import (
    CognitiveEvaluator,
    EvalContext,
    EvaluationCycle,
    Fact,
    FactEvaluator,
    FactsProvider,
    GoalEvaluator,
    MemoryStore,
    ProviderContext,
    ReflectionEvaluator,
    TrustEvaluator,
    open_store,
)
from arbiter.memory._characters import Character
from arbiter.memory.stores import namespace

FACTS = 10_000
ROUNDS = 41
NOW = datetime(2026, 11, 1, tzinfo=UTC)
CONFIG: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}
HELLO: Any = {"messages": [HumanMessage("Where do I live, and what do I like?")]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One line of the table. `limit` and `value` are in `unit`."""

    case: str
    value: float
    unit: str
    limit: float | None
    beside: str = ""

    @property
    def ok(self) -> bool:
        return self.limit is None or self.value <= self.limit


def medians(first: Callable[[], Any], second: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The median seconds of two calls that take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, taken in zip((first, second), times, strict=True):
            begun = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begun)
    return median(times[0]), median(times[1])


# A provider ---------------------------------------------------------------------------------------


def fact(number: int) -> Fact:
    heard = NOW - timedelta(minutes=number)
    return Fact(
        id=f"f{number}",
        claim=f"Ada likes the town number {number} by the river",
        type="fact",
        subject="ada",
        agent_id="agent",
        provenance="self_reported",
        speaker="ada",
        confidence=0.6,
        first_seen_at=heard,
        last_seen_at=heard,
        source_message_ids=(f"m{number}",),
        room_ids=("room",),
    )


def provider(folder: Path) -> Found:
    place = namespace("agent", "facts", "ada")
    with open_store(folder / "memory.db") as store:
        store.batch([PutOp(place, f"f{n}", fact(n).to_value(), index=False) for n in range(FACTS)])
        ctx = ProviderContext(
            store=MemoryStore(store),
            agent_id="agent",
            room_id="room",
            entity_id="ada",
            clock=lambda: NOW,
            character=Character("Agent"),
            query="Where do I live, and what do I like?",
        )
        asked = FactsProvider()
        loop = asyncio.new_event_loop()

        def ours() -> None:
            assert loop.run_until_complete(asked.get(ctx)).text

        def bare() -> None:
            assert len(store.search(place, limit=100)) == 100

        took, query = medians(ours, bare, ROUNDS)
        loop.close()
    return Found(
        case=f"FactsProvider, {FACTS:,} facts, SQLite",
        value=took * 1000,
        unit="ms",
        limit=50,
        beside=f"the bare query {query * 1000:.1f} ms",
    )


# Gates --------------------------------------------------------------------------------------------


class Slow(CognitiveEvaluator):
    def handle(self, ctx: EvalContext) -> None:
        return None


class SlowSync(Slow):
    def validate(self, ctx: EvalContext) -> bool:
        time.sleep(0.1)
        return True


class SlowAsync(Slow):
    async def validate(self, ctx: EvalContext) -> bool:
        await asyncio.sleep(0.1)
        return True


def gates() -> list[Found]:
    found: list[Found] = []
    for kind in (SlowSync, SlowAsync):
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluation_cycle(EvaluationCycle())
        for number in range(10):
            arbiter_os.add_evaluator(kind(f"E{number}"))
        app = arbiter_os.govern(chat(0), {"reply": "RESPOND"})

        def invoke(app: Any = app) -> None:
            app.invoke(HELLO, CONFIG)

        def ainvoke(app: Any = app) -> None:
            asyncio.run(app.ainvoke(HELLO, CONFIG))

        for how, took in zip(("invoke", "ainvoke"), medians(invoke, ainvoke, 5), strict=True):
            written = "def" if kind is SlowSync else "async def"
            case = f"10 × 100 ms of validate ({written}), {how}"
            found.append(Found(case=case, value=took * 1000, unit="ms", limit=200))
    return found


# Background ---------------------------------------------------------------------------------------


def background(seconds: float, limit: float | None) -> Found:
    """The duration of a turn for the caller. Each turn is drained before the next begins, so that
    background work is not counted in another turn."""
    apps: list[tuple[ArbiterOS, Any]] = []
    for evaluators in ((), (FactEvaluator(), ReflectionEvaluator(), GoalEvaluator(), TrustEvaluator())):
        cycle = EvaluationCycle(
            store=InMemoryStore(), evaluator_model=Answers(), mode="background", conversation_length=2
        )
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluation_cycle(cycle)
        for evaluator in evaluators:
            arbiter_os.add_evaluator(evaluator)
        apps.append((arbiter_os, arbiter_os.govern(chat(seconds), {"reply": "RESPOND"})))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for (arbiter_os, app), taken in zip(apps, times, strict=True):
            begun = time.perf_counter()
            app.invoke(HELLO, CONFIG)
            taken.append(time.perf_counter() - begun)
            arbiter_os.drain()
    without, with_them = (median(taken) for taken in times)
    return Found(
        case=f"a turn with a model of {seconds * 1000:g} ms, four evaluators in the background",
        value=with_them / without,
        unit="×",
        limit=limit,
        beside=f"{without * 1000:.2f} ms without any",
    )


class Answers(BaseChatModel):
    """Finds a fact in everything."""

    @property
    def _llm_type(self) -> str:
        return "answers"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        claim = {"claim": "Ada lives in Oslo", "type": "fact"}
        text = json.dumps({"claims": [claim], "thought": "Fine.", "relationships": [], "facts": []})
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def chat(seconds: float) -> Any:
    """A graph of one node, whose model takes that long."""

    def reply(state: MessagesState) -> dict[str, Any]:
        time.sleep(seconds)
        return {"messages": [AIMessage("In Oslo, and you like tea.")]}

    return StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply").compile()


def main() -> int:
    parser = argparse.ArgumentParser(description="What remembering costs.")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [provider(Path(folder)), *gates(), background(0.1, 1.05), background(0, None)]
    table = Table("case", "measured", "limit", "beside it")
    for each in found:
        limit = "" if each.limit is None else f"{each.limit:g} {each.unit}"
        measured = f"{each.value:.3g} {each.unit}" + ("" if each.ok else " (over)")
        table.add_row(each.case, measured, limit, each.beside)
    Console().print(table)
    if arguments.json is not None:
        figures = {each.case: {"value": each.value, "unit": each.unit, "limit": each.limit} for each in found}
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0 if all(each.ok for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
