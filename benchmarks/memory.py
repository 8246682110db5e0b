"""The cost of remembering. `python benchmarks/memory.py [--json FILE]`.

Ten evaluators whose `validate` takes 100 ms each, in sync and async runs. A turn with four cognitive evaluators
in the background, against the same turn without any; the limit applies to a turn that asks a model which answers
within 100 ms. A text of 100,000 characters, and another user's turn at that moment. Medians of interleaved
pairs.

Growth: a turn (a call of the providers, learning, reflection) and a *forget* in a store with 1,000 and 10,000
entities, relationships, superseded facts of the user, or other users with a fact and a room each, against a store
with 10 of each; SQLite, and PostgreSQL if there is a server (see ARBITER_POSTGRES in CONTRIBUTING.md). There are
five times as many relationships, and half as many other users. A call of `FactsProvider` for users with 1,000
and 10,000 known facts, against one with 10, without embeddings, after the first search. `--growth` measures
only this; it takes the fastest of nine interleaved runs, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore, PutOp
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
    ReflectionProvider,
    RelationshipsProvider,
    TrustEvaluator,
    TrustProvider,
    open_store,
)
from arbiter.memory._characters import Character
from arbiter.memory.stores import namespace

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.postgresql import NoServerError, database, server

SIZES = (10, 1_000, 10_000)
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


def fact(number: int, user: str = "ada") -> Fact:
    heard = NOW - timedelta(minutes=number)
    return Fact(
        id=f"f{number}",
        claim=f"Ada likes the town number {number} by the river",
        type="fact",
        subject=user,
        agent_id="agent",
        provenance="self_reported",
        speaker=user,
        confidence=0.6,
        first_seen_at=heard,
        last_seen_at=heard,
        source_message_ids=(f"m{number}",),
        room_ids=("room",),
    )


def provider(name: str, opened: AbstractContextManager[BaseStore]) -> list[Found]:
    asked = FactsProvider()
    with opened as store, closing(asyncio.new_event_loop()) as loop:
        for size in SIZES:
            user = f"user-{size}"
            place = namespace("agent", "facts", user)
            store.batch([PutOp(place, f"f{n}", fact(n, user).to_value(), index=False) for n in range(size)])

        def calling(size: int) -> Callable[[], Any]:
            ctx = ProviderContext(
                store=MemoryStore(store),
                agent_id="agent",
                room_id="room",
                entity_id=f"user-{size}",
                clock=lambda: NOW,
                character=Character("Agent"),
                query="Where do I live, and what do I like? A town like number 7?",
            )

            def call() -> None:
                assert loop.run_until_complete(asked.get(ctx)).text

            call()
            return call

        calls = {size: calling(size) for size in SIZES}
        few = SIZES[0]
        found: list[Found] = []
        for size in SIZES[1:]:
            took, base = medians(calls[size], calls[few], ROUNDS)
            found.append(
                Found(
                    case=f"FactsProvider, {size:,} facts against {few}, {name}",
                    value=took / base,
                    unit="×",
                    limit=2,
                    beside=f"{took * 1000:.1f} ms against {base * 1000:.1f} ms",
                )
            )
    return found


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


# Long texts ---------------------------------------------------------------------------------------

LENGTH = 100_000
HOSTILE = (
    "please ",
    "forget ",
    "( ( (",
    "password is ",
    "4 ",
    "\n",
    "\u5bc6\u7801",
    "a\u0301\u0316",
    "x",
    "line\n",
)


def long_texts() -> list[Found]:
    """A turn with a text of 100,000 characters, and another user's turn beside it: the text that is the worst."""
    costs: dict[str, float] = {}
    waits: dict[str, float] = {}
    for part in HOSTILE:
        text = (part * LENGTH)[:LENGTH]
        cpu: dict[str, list[float]] = {"hello": [], text: []}
        beside: dict[str, list[float]] = {"hello": [], text: []}
        for _ in range(9):
            app = learning()
            turn(app, "hello", "evil")
            turn(app, "hello", "bob")
            for said in cpu:
                cpu[said].append(turn(app, said, "evil")[0])
            for said in beside:
                other = threading.Thread(target=turn, args=(app, said, "evil"))
                other.start()
                beside[said].append(turn(app, "hello", "bob")[1])
                other.join()
        costs[part] = (min(cpu[text]) - min(cpu["hello"])) * 1000
        waits[part] = quarter(beside[text]) / quarter(beside["hello"])
    slowest, longest = max(costs, key=costs.__getitem__), max(waits, key=waits.__getitem__)
    return [
        Found(
            case="CPU that a text of 100,000 characters adds to a turn with three evaluators",
            value=costs[slowest],
            unit="ms",
            limit=50,
            beside=f"{len(HOSTILE)} texts; the worst repeats {slowest!r}",
        ),
        Found(
            case="another user's turn at that moment, against one beside a short text",
            value=waits[longest],
            unit="×",
            limit=2,
            beside=f"the worst repeats {longest!r}",
        ),
    ]


def quarter(taken: list[float]) -> float:
    """The lower quartile: other work on the machine disturbs it less than the median."""
    return sorted(taken)[len(taken) // 4]


def learning() -> Any:
    """A governed graph with memory, whose evaluators run in each turn."""
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=Answers(), conversation_length=2)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    for evaluator in (FactEvaluator(), ReflectionEvaluator(), TrustEvaluator()):
        arbiter_os.add_evaluator(evaluator)
    arbiter_os.add_advisor(FactsProvider())
    return arbiter_os.govern(chat(0), {"reply": "RESPOND"})


def turn(app: Any, text: str, who: str) -> tuple[float, float]:
    """The seconds of CPU and of wall time."""
    config: Any = {"configurable": {"thread_id": who, "user_id": who}}
    cpu, wall = time.process_time(), time.perf_counter()
    app.invoke({"messages": [HumanMessage(text)]}, config)
    return time.process_time() - cpu, time.perf_counter() - wall


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


# Growth -------------------------------------------------------------------------------------------

Change = tuple[tuple[str, ...], str, dict[str, Any]]
TURNS, FORGETS = 9, 9
TWICE = 2.0


def entities(numbers: range) -> Iterator[Change]:
    for n in numbers:
        yield namespace("agent", "entities", "all"), f"u{n}", {"id": f"u{n}", "names": [f"Name{n} Smith"]}


def relationships(numbers: range) -> Iterator[Change]:
    at = NOW.isoformat()
    for n in range(5 * numbers.start, 5 * numbers.stop):
        ends = {"source": f"u{n}", "target": "agent", "first_seen_at": at, "last_seen_at": at}
        value = {**ends, "tags": ["friend"], "metadata": {"interactions": 1}}
        yield namespace("agent", "relationships", "all"), f"r{n}", value
        for end in (f"u{n}", "agent"):
            yield namespace("agent", "related", end), f"r{n}", {}


def superseded(numbers: range) -> Iterator[Change]:
    for n in numbers:
        value = replace(fact(n), state="superseded", superseded_by="x").to_value()
        yield namespace("agent", "facts", "ada"), f"f{n}", value


def others(numbers: range) -> Iterator[Change]:
    at = NOW.isoformat()
    for n in range(numbers.start // 2, numbers.stop // 2):
        known = replace(fact(n), subject=f"u{n}", speaker=f"u{n}").to_value()
        yield namespace("agent", "facts", f"u{n}"), f"f{n}", known
        thought = {"id": f"t{n}", "text": "Fine.", "room_id": f"of-u{n}", "at": at, "entity_ids": [f"u{n}"]}
        yield namespace("agent", "thoughts", f"of-u{n}"), f"t{n}", thought


KINDS = (entities, relationships, superseded, others)


class Companion:
    """A governed chat with one user, who says in each turn, in a new room, where she lives."""

    def __init__(self, store: BaseStore) -> None:
        self.cycle = EvaluationCycle(store=store, evaluator_model=Knows(), conversation_length=2)
        self.arbiter_os = ArbiterOS()
        self.arbiter_os.add_evaluation_cycle(self.cycle)
        for evaluator in (FactEvaluator(), ReflectionEvaluator(), TrustEvaluator()):
            self.arbiter_os.add_evaluator(evaluator)
        for provider in (FactsProvider(), RelationshipsProvider(), ReflectionProvider(), TrustProvider()):
            self.arbiter_os.add_advisor(provider)
        self.app = self.arbiter_os.govern(chat(0), {"reply": "RESPOND"})
        self.turns = 0

    def turn(self) -> None:
        self.turns += 1
        said = HumanMessage("I live in Oslo", id=f"m{self.turns}")
        where: Any = {"configurable": {"thread_id": f"room-{self.turns}", "user_id": "ada"}}
        self.app.invoke({"messages": [said]}, where)
        item = self.arbiter_os.history_of(thread_id=f"room-{self.turns}").last()
        assert item is not None
        assert not item.evaluation_errors

    def forget(self) -> None:
        assert self.cycle.memory.forget("ada", "Oslo") == 1


def growth(opened: Callable[[str], AbstractContextManager[BaseStore]], kind: str) -> list[Found]:
    found: list[Found] = []
    for grown in KINDS:
        sizes = (10, 1_000, 10_000)
        with ExitStack() as stack:
            apps: list[Companion] = []
            for size in sizes:
                store = stack.enter_context(opened(f"{grown.__name__}{size}"))
                for make in KINDS:
                    _put(store, make(range(size if make is grown else 10)))
                apps.append(Companion(store))
                for _ in range(3):
                    apps[-1].turn()
            times: dict[tuple[str, int], list[float]] = defaultdict(list)
            for number in range(TURNS):
                for size, app in zip(sizes, apps, strict=True):
                    times["turn", size].append(_timed(app.turn))
                    if number < FORGETS:
                        times["forget", size].append(_timed(app.forget))
                        app.turn()
        for what in ("turn", "forget"):
            least = min(times[what, 10])
            found += [
                Found(
                    case=f"{what}, {kind}: {sum(1 for _ in grown(range(size))):,} {grown.__name__}",
                    value=min(times[what, size]) / least,
                    unit="×",
                    limit=TWICE,
                    beside=f"{least * 1000:.0f} ms with {sum(1 for _ in grown(range(10)))}",
                )
                for size in sizes[1:]
            ]
    return found


def _put(store: BaseStore, changes: Iterator[Change]) -> None:
    while some := [*islice(changes, 1_000)]:
        store.batch([PutOp(ns, key, value, index=False) for ns, key, value in some])


def _timed(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def growths(folder: Path) -> list[Found]:
    found = provider("SQLite", open_store(folder / "provider.db"))
    found += growth(lambda name: open_store(folder / f"{name}.db"), "SQLite")
    try:
        with server() as address:
            os.environ["ARBITER_POSTGRES"] = address
            found += provider("PostgreSQL", _database())
            found += growth(lambda name: _database(), "PostgreSQL")
    except NoServerError as error:
        print(f"Not measured on PostgreSQL: {error}", file=sys.stderr)
    return found


@contextmanager
def _database() -> Generator[BaseStore]:
    with database() as url, open_store(url) as store:
        yield store


class Knows(Answers):
    """Finds a fact, a thought and a relationship, in the form that is asked for."""

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        between = {"sourceEntityId": "ada", "targetEntityId": "agent", "tags": ["friend"]}
        claims = [{"claim": "Ada lives in Oslo", "type": "fact"}]
        asked = "".join(str(message.text) for message in messages)
        reflected = {"thought": "Fine.", "facts": [], "relationships": [between]}
        text = json.dumps(reflected if '"thought"' in asked else {"claims": claims})
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def main() -> int:
    parser = argparse.ArgumentParser(description="What remembering costs.")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--growth", action="store_true", help="measure growth only")
    arguments = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.growth:
            found = [*gates(), background(0.1, 1.05), background(0, None), *long_texts()]
        found += growths(Path(folder))
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
