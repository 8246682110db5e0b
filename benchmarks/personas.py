"""The cost of measuring and correcting character. `python benchmarks/personas.py [--json FILE]`.

The gate with four dimensions and a judge that takes 200 ms, in sync and async runs: the time that it adds to
a node run, for each attempt. A gate with nothing enabled, against no gate. Adherence scores of 1,000 recorded
messages with the mock judge. Repetition and vocabulary statistics of 10,000 messages, in CPU time. Times are
those of the fastest round.

The CPU time that each contract adds to a node run, with 10, 100, 1,000 and 3,000 messages of 12 words in the
state and with 100 of 3,000 words, and the longest time that it blocks the event loop of an async run. The
growth of the added time over 600 turns of a conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from rich.console import Console
from rich.table import Table

from arbiter import ArbiterOS
from arbiter.personas import (
    AdherenceEvaluator,
    AdherenceScorer,
    ConvergenceEvaluator,
    Event,
    FluencyEvaluator,
    GateConfig,
    JudgeReply,
    JudgeRequest,
    MockJudge,
    Persona,
    PersonaGate,
    RecordingJudge,
    RepetitionSuppressor,
    SelfConsistencyEvaluator,
    Trajectory,
    anti_convergence,
    text_statistics,
    variety,
    vocabulary_similarity,
)

JIM = Persona("Jim", "A calm salesman.", "jim")
WAIT = 0.2
ALL = GateConfig(
    gate_adherence_enabled=True,
    gate_consistency_enabled=True,
    gate_fluency_enabled=True,
    gate_suitability_enabled=True,
)
MESSAGES = 10_000


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


class Patient:
    """A judge that takes its time, and scores the first drafts of an action low."""

    def __init__(self, wait: float, failing: int = 0) -> None:
        self.wait = wait
        self.failing = failing

    def judge(self, request: JudgeRequest) -> JudgeReply:
        time.sleep(self.wait)
        return self._reply(request)

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        await asyncio.sleep(self.wait)
        return self._reply(request)

    def _reply(self, request: JudgeRequest) -> JudgeReply:
        prompt = str(request.messages[-1].text)
        low = any(f"> draft {number}\n" in prompt for number in range(1, self.failing + 1))
        items = [{"id": id, "score": 3 if low else 8} for id in request.propositions]
        return JudgeReply(value={"judgements": items} if request.purpose == "batch" else items[0])


def speaking() -> Any:
    def jim(state: Any) -> Any:
        told = str(state["messages"][-1].text)
        number = 3 if "attempt 2 of" in told else 2 if "attempt 1 of" in told else 1
        return {"messages": [AIMessage(f"draft {number}")]}

    builder: Any = StateGraph(Chat)
    builder.add_node("jim", jim)
    builder.add_edge(START, "jim")
    return builder.compile()


def governed(gate: PersonaGate | None) -> Any:
    arbiter_os = ArbiterOS()
    if gate is not None:
        arbiter_os.add_correction_gate(gate)
    return arbiter_os.govern(speaking())


GIVEN = {"messages": [HumanMessage("Hello.", id="1"), AIMessage("Before.", name="Jim", id="2")]}


def fastest(call: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        begun = clock()
        call()
        best = min(best, clock() - begun)
    return best


async def afastest(app: Any, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        await app.ainvoke(GIVEN)
        best = min(best, time.perf_counter() - begun)
    return best


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    seconds: float
    most: float


def gate_rows(rounds: int) -> list[Row]:
    rows: list[Row] = []
    bare = governed(None)
    bare.invoke(GIVEN)
    without = fastest(lambda: bare.invoke(GIVEN), rounds)
    awithout = asyncio.run(afastest(bare, rounds))
    for attempts in (1, 3):
        app = governed(PersonaGate(Patient(WAIT, failing=attempts - 1), [JIM], ALL))
        app.invoke(GIVEN)
        taken = (fastest(lambda: app.invoke(GIVEN), rounds) - without) / attempts  # noqa: B023 - called at once
        rows.append(Row(f"gate, 4 dimensions, {attempts} attempt(s), sync", taken, 1.15 * WAIT))
        taken = (asyncio.run(afastest(app, rounds)) - awithout) / attempts
        rows.append(Row(f"gate, 4 dimensions, {attempts} attempt(s), async", taken, 1.15 * WAIT))
    off = governed(PersonaGate(Patient(WAIT), [JIM], GateConfig()))
    bare = governed(PersonaGate(Patient(WAIT), [JIM], ALL, target_nodes=["nobody"]))
    times = 200

    def many(app: Any) -> Callable[[], None]:
        def call() -> None:
            for _ in range(times):
                app.invoke(GIVEN)

        return call

    pairs = [(fastest(many(off), 1), fastest(many(bare), 1)) for _ in range(max(rounds, 5))]
    taken = (min(pair[0] for pair in pairs) - min(pair[1] for pair in pairs)) / times
    rows.append(Row("gate, everything disabled, against one of another node", max(taken, 0.0), 0.00002))
    return rows


def scoring_row(rounds: int) -> Row:
    said = Trajectory.of(Event.action("Jim", f"message {number} of the morning") for number in range(1000))
    recorder = RecordingJudge(Patient(0))
    AdherenceScorer(recorder, JIM, sample=1000).score(said)

    def score() -> None:
        result = AdherenceScorer(MockJudge(recorder.recording), JIM, sample=1000).score(said)
        assert result.sample_size == 1000

    return Row("adherence of 1,000 messages, mock judge", fastest(score, rounds), 2.0)


def statistics_rows(rounds: int) -> list[Row]:
    """CPU seconds for messages of 12 words and of 60."""
    random_of = random.Random(1)
    words = [f"word{number}" for number in range(3000)]
    zipf = [f"word{int(random_of.paretovariate(0.9)) % 5000}" for _ in range(100_000)]
    rows: list[Row] = []
    for length, most in ((12, 3.0), (60, 6.0)):
        sentences = [" ".join(random_of.choices(zipf, k=length // 6)) for _ in range(200)]
        kinds = {
            "uniform": [" ".join(random_of.choices(words, k=length)) for _ in range(MESSAGES)],
            "Zipf": [" ".join(random_of.choices(zipf, k=length)) for _ in range(MESSAGES)],
            "templates": [" ".join(random_of.choices(sentences, k=6)) for _ in range(MESSAGES)],
        }
        for kind, messages in kinds.items():
            by_speaker = {f"speaker {at}": messages[at::10] for at in range(10)}

            def count(messages: list[str] = messages, by_speaker: dict[str, list[str]] = by_speaker) -> None:
                text_statistics(messages)
                vocabulary_similarity(by_speaker)

            taken = fastest(count, rounds, time.process_time)
            rows.append(Row(f"statistics of {MESSAGES:,} messages of {length} words, {kind}", taken, most))
    return rows


# By the length of the conversation ----------------------------------------------------------------

CASES = ((10, 12), (100, 12), (1_000, 12), (3_000, 12), (100, 3_000))
"""Numbers of messages and of words in each."""
LONG = CASES[-1]
TURNS = 600
PAM = Persona("Pam", "A painter.", "pam")
GATE = 0.005
"""Limits in seconds of CPU: for the gate's addition to a node run, and for any contract's block of the event loop."""


class Prompt(Patient):
    """A judge that answers at once, without any complaint."""

    def __init__(self) -> None:
        super().__init__(0)

    def judge(self, request: JudgeRequest) -> JudgeReply:
        if request.purpose == "check":
            return JudgeReply(value={"result": False})
        return self._reply(request)

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        return self.judge(request)


CONTRACTS: dict[str, Callable[[ArbiterOS], object]] = {
    "nothing": lambda _: None,
    "gate, 4 dimensions": lambda os: os.add_correction_gate(PersonaGate(Prompt(), [JIM, PAM], ALL)),
    "suppressor": lambda os: os.add_advisor(RepetitionSuppressor([JIM, PAM])),
    "anti-convergence": lambda os: os.add_advisor(anti_convergence([JIM, PAM], Prompt())),
    "variety": lambda os: os.add_advisor(variety([JIM, PAM], Prompt())),
    "adherence, read": lambda os: os.add_evaluator(AdherenceEvaluator(persona=JIM, judge=Prompt())),
    "consistency, read": lambda os: os.add_evaluator(SelfConsistencyEvaluator(persona=JIM, judge=Prompt())),
    "fluency, read": lambda os: os.add_evaluator(FluencyEvaluator(persona=JIM, judge=Prompt())),
    "convergence, read": lambda os: os.add_evaluator(ConvergenceEvaluator(judge=Prompt())),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """Seconds of CPU by the size of the conversation.

    They are the time that a contract adds, and the longest block of the event loop: by work on the loop
    alone, and (`held`) by threads that hold the interpreter too. Such threads run for at least
    `sys.getswitchinterval()`. `turns` is the addition in the last tenth of the turns divided by that in the
    first.
    """

    name: str
    sync: tuple[float, ...]
    stall: tuple[float, ...]
    held: tuple[float, ...]
    turns: float = 0.0

    def most(self, case: tuple[int, int]) -> float:
        return GATE if self.name.startswith("gate") and case != LONG else float("inf")

    @property
    def most_turns(self) -> float:
        return 1.1 if self.name.startswith("gate") else float("inf")


def talk(size: int, words: int) -> dict[str, Any]:
    random_of = random.Random(size)
    known = [f"word{number}" for number in range(3000)]
    texts = (" ".join(random_of.choices(known, k=words)) for _ in range(size))
    said = [AIMessage(text, name="Jim" if n % 2 else "Pam", id=str(n)) for n, text in enumerate(texts)]
    return {"messages": [HumanMessage("Hello.", id="hello"), *said]}


def cpu_of(app: Any, arbiter_os: ArbiterOS, given: dict[str, Any], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds + 1):
        begun = time.process_time()
        app.invoke(given)
        for item in arbiter_os.history.entries[-1]:
            len(item.evaluation_results)
        arbiter_os.drain(30)
        best = min(best, time.process_time() - begun)
    return best


async def stalls_of(
    app: Any, arbiter_os: ArbiterOS, given: dict[str, Any], rounds: int
) -> tuple[float, float]:
    """The longest wait of another task of the loop, in CPU time of the loop's thread, and of all threads."""
    best = [float("inf")] * 2
    for _ in range(rounds + 1):
        longest, on = [0.0, 0.0], True

        async def beat() -> None:
            while on:  # noqa: B023 - awaited in this round
                begun = time.thread_time(), time.process_time()
                await asyncio.sleep(0)
                ended = time.thread_time(), time.process_time()
                for at in range(2):
                    longest[at] = max(longest[at], ended[at] - begun[at])  # noqa: B023 - as above

        task = asyncio.create_task(beat())
        await app.ainvoke(given)
        await arbiter_os.adrain(30)
        on = False
        await task
        best = [min(best[at], longest[at]) for at in range(2)]
    return best[0], best[1]


def turns_of(add: Callable[[ArbiterOS], object], turns: int) -> float:
    """The time that a contract adds to a turn in the last tenth, divided by that in the first: medians of CPU
    seconds.

    Each turn is run bare and governed, right after each other.
    """
    arbiter_os, empty = ArbiterOS(), ArbiterOS()
    add(arbiter_os)
    app, bare = arbiter_os.govern(speaking()), empty.govern(speaking())
    messages = talk(turns + 30, 12)["messages"]
    added: list[float] = []
    for turn in range(turns):
        given = {"messages": messages[: 30 + turn]}
        without, taken = cpu_of(bare, empty, given, 0), cpu_of(app, arbiter_os, given, 0)
        added.append(taken - without)
    tenth = turns // 10
    return statistics.median(added[-tenth:]) / statistics.median(added[:tenth])


def growth_rows(rounds: int) -> list[Growth]:
    rows: list[Growth] = []
    bare: list[float] = []
    for name, add in CONTRACTS.items():
        taken: list[float] = []
        stalls: list[tuple[float, float]] = []
        for case in CASES:
            arbiter_os = ArbiterOS()
            add(arbiter_os)
            app = arbiter_os.govern(speaking())
            given = talk(*case)
            taken.append(cpu_of(app, arbiter_os, given, rounds))
            stalls.append(asyncio.run(stalls_of(app, arbiter_os, given, rounds)))
        bare = bare or taken
        added = [max(one - base, 0.0) for one, base in zip(taken, bare, strict=True)]
        own, held = zip(*stalls, strict=True)
        if name == "nothing":
            rows.append(Growth(name, tuple(taken), own, held))
        else:
            grown = statistics.median(turns_of(add, TURNS) for _ in range(rounds))
            rows.append(Growth(name, tuple(added), own, held, grown))
    return rows


def growth_table(rows: list[Growth]) -> Table:
    table = Table("contract", title="CPU milliseconds, by the messages in the state and the words of each")
    for what in ("added", "stall"):
        for size, words in CASES:
            table.add_column(f"{what}\n{size:,}\n× {words:,}", justify="right")
    table.add_column(f"held\n{LONG[0]:,}\n× {LONG[1]:,}", justify="right")
    table.add_column(f"{TURNS} turns\nlast tenth\n/ first", justify="right")
    bare = rows[0].stall
    for row in rows:
        cells = [_cell(seconds, row.most(case)) for seconds, case in zip(row.sync, CASES, strict=True)]
        cells += [_cell(seconds, GATE + own) for seconds, own in zip(row.stall, bare, strict=True)]
        cells.append(_cell(row.held[-1], float("inf")))
        grown = f"{row.turns:.2f}" if row.turns <= row.most_turns else f"[red]{row.turns:.2f}[/red]"
        table.add_row(row.name, *cells, grown if row.turns else "")
    return table


def _cell(seconds: float, most: float) -> str:
    shown = f"{seconds * 1e3:.1f}"
    return shown if seconds <= most else f"[red]{shown}[/red]"


def main() -> int:
    parser = argparse.ArgumentParser(description="What measuring and correcting character costs.")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [*gate_rows(options.rounds), scoring_row(options.rounds), *statistics_rows(options.rounds)]
    table = Table("what", title="milliseconds")
    table.add_column("taken", justify="right")
    table.add_column("at most", justify="right")
    for row in rows:
        style = "" if row.seconds <= row.most else "red"
        table.add_row(row.name, f"{row.seconds * 1e3:.2f}", f"{row.most * 1e3:g}", style=style)
    Console().print(table)
    growth = growth_rows(options.rounds)
    Console().print(growth_table(growth))
    if options.json:
        numbers: dict[str, Any] = {row.name: {"seconds": row.seconds, "most": row.most} for row in rows}
        numbers["growth"] = {
            row.name: {"added": row.sync, "stall": row.stall, "held": row.held, "turns": row.turns}
            for row in growth
        }
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    slow = any(row.seconds > row.most for row in rows)
    grown = any(
        row.turns > row.most_turns
        or any(seconds > row.most(case) for seconds, case in zip(row.sync, CASES, strict=True))
        for row in growth
    )
    held_up = any(
        seconds > GATE + own
        for row in growth
        for seconds, own in zip(row.stall, growth[0].stall, strict=True)
    )
    return 1 if slow or grown or held_up else 0


if __name__ == "__main__":
    sys.exit(main())
