"""The CPU time of a step in the world of an experiment, as its conversation grows. `python benchmarks/world.py`.

Three agents act once in a step, after 10, 1,000 and 10,000 messages, in the control and in treatments with a gate,
interventions and suppression of repetition. Models and judges answer at once. A prompt has the whole
conversation, so a step costs some time for each message in it: at most `LIMIT`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arbiter.experiments import Corrections
from arbiter.experiments.arms import Treatment
from arbiter.experiments.world import Setting, World
from arbiter.models import JudgeReply, JudgeRequest
from arbiter.personas import GateConfig, Persona, anti_convergence, variety

SIZES = (10, 1_000, 10_000)
LIMIT = 10.0
"""Microseconds for each message in the prompt of each agent."""
STEPS = 4
PEOPLE = [Persona(f"Person {n}", f"Person {n} is patient.", f"person-{n}") for n in range(3)]
ARMS: Mapping[str, Corrections] = {
    "control": Corrections(),
    "gate": Corrections(
        GateConfig(gate_adherence_enabled=True, gate_similarity_enabled=True, max_action_similarity=1.0)
    ),
    "interventions": Corrections(interventions=[variety, anti_convergence]),
    "repetition": Corrections(repetition=True),
}


class Speaker:
    """Says one thing."""

    async def ainvoke(self, messages: Any) -> AIMessage:
        return AIMessage("I would rather wait until the fog lifts.")


class Content:
    """Finds nothing to correct."""

    def judge(self, request: JudgeRequest) -> JudgeReply:
        value: dict[str, Any] = {"score": 9, "reasoning": "fine", "result": False}
        if request.purpose == "batch":
            value = {"judgements": [{"id": id, "score": 9} for id in request.propositions]}
        return JudgeReply(value=value)

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        return self.judge(request)


def took(arm: str, size: int, steps: int) -> float:
    """Seconds of CPU for these steps after a conversation of that size."""
    model: Any = Speaker()
    world, setting = World(model), Setting(PEOPLE, {}, steps)
    graph = Treatment(ARMS[arm], PEOPLE, Content()).govern(world.graph)
    said = [
        AIMessage(f"Message {n} about boat {n * 7919 % 1000}.", name=f"Person {n % 3}") for n in range(size)
    ]
    begun = time.process_time()
    asyncio.run(
        graph.ainvoke(
            {"messages": said, "step": 0, "acted": 0},
            {"configurable": {"thread_id": "world"}, "recursion_limit": 1_000},
            context=setting,
        )
    )
    return time.process_time() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds: int = parser.parse_args().rounds
    table = Table("arm", *(f"{size:,} messages" for size in SIZES), "µs a message")
    worst = 0.0
    for arm in ARMS:
        steps: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(rounds + 1):
            for size in SIZES:
                # Without the first step, which reads the conversation that was there before.
                steps[size].append((took(arm, size, 1 + STEPS) - took(arm, size, 1)) / STEPS)
        medians = [statistics.median(found[1:]) for found in steps.values()]
        each = (medians[-1] - medians[0]) / (SIZES[-1] * len(PEOPLE)) * 1e6
        worst = max(worst, each)
        table.add_row(arm, *(f"{median * 1_000:.1f} ms" for median in medians), f"{each:.1f}")
    Console().print(table)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
