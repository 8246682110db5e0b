"""Do a correction gate and interventions make agents better? An experiment with a treatment and a control.

    python examples/experiment.py [FOLDER]

Three tradespeople talk about their street, in twelve conversations. In each of them everybody drifts: the longer
they talk, the more they say what anybody would say. In the treatment a gate sends such drafts back, and an
intervention nudges people who have come to sound alike; the control is the same graph with nothing registered.
A judge then scores all conversations without knowing which arm they are from.

The program prints the table of the experiment and writes it to FOLDER (by default a temporary one) as JSON, with
a picture of the effects. The models are scripted, so that it runs anywhere in seconds: the agents draw their
words from a seeded generator, and the judges count words. The graph, the gate, the interventions and the
statistics are real.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import BaseMessage

from arbiter import ArbiterError
from arbiter.experiments import Corrections, Experiment, ExperimentResult, Scenario
from arbiter.personas import GateConfig, JudgeReply, JudgeRequest, Persona, anti_convergence

TRADES = {
    "Ada": "bread", "Ben": "roofs", "Cleo": "bicycles", "Dora": "clocks", "Emil": "gardens", "Fay": "letters",
    "Gus": "keys", "Hana": "shoes", "Ivo": "boats",
}  # fmt: skip
PEOPLE = [
    Persona(name, f"{name} works with {trade} and sees everything in terms of {trade}.", name.lower())
    for name, trade in TRADES.items()
]
SAYINGS = (
    "A street is like {trade}: it needs looking after.",
    "I know {trade}, and I would start with the lights.",
    "Nobody who works with {trade} would put up with that noise.",
    "Give me a week and good {trade}, and the corner by the school is safe.",
    "My customers for {trade} ask for one thing, a place to sit.",
)
PHRASES = (
    "That is a great point, I could not agree more.",
    "I think we all want what is best for everyone.",
    "That is a great point, and it is best for everyone.",
)

TREATMENT = Corrections(
    GateConfig(gate_adherence_enabled=True, gate_adherence_threshold=5), interventions=(anti_convergence,)
)
STREET = Scenario(
    id="our-street",
    group_size=3,
    groups=3,
    themes=("the traffic", "the noise"),
    repetitions=2,
    intro="Good evening. Say in a sentence who you are.",
    task="Tonight we talk about {theme}. What should be done?",
    steps=6,
    treatment=TREATMENT,
    metrics=("adherence", "consistency", "fluency", "convergence"),
)


def chance(text: str) -> random.Random:
    """A generator that is the same for the same text in every process."""
    return random.Random(hashlib.sha256(text.encode()).digest())


class Neighbour(SimpleChatModel):
    """Speaks in character, or in phrases: the more was said, the more likely are phrases."""

    @property
    def _llm_type(self) -> str:
        return "neighbour"

    def _call(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **known: Any,
    ) -> str:
        prompt = "\n".join(str(message.text) for message in messages)
        found = re.search(r"You are (\w+), and you stay", prompt)
        assert found is not None
        luck = chance(prompt)
        drift = min(0.7, 0.2 + 0.02 * len(messages))
        if "your draft" in prompt.lower() or "A thought comes to your mind" in prompt:
            drift *= 0.6  # somebody who is reminded of who they are
        if luck.random() < drift:
            return luck.choice(PHRASES)
        return luck.choice(SAYINGS).format(trade=TRADES[found[1]])


class Reader:
    """A judge that counts: the share of an agent's lines that are its own, with some noise."""

    def __init__(self, name: str) -> None:
        self.model_name = name

    def judge(self, request: JudgeRequest) -> JudgeReply:
        prompt = "\n".join(str(message.text) for message in request.messages)
        score = self.score(prompt)
        value: dict[str, Any] = {"score": score, "reasoning": "counted", "result": True}
        if request.purpose == "batch":
            value = {
                "judgements": [
                    {"id": id, "score": score, "reasoning": "counted"} for id in request.propositions
                ]
            }
        return JudgeReply(value=value, model=self.model_name)

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        return self.judge(request)

    def score(self, prompt: str) -> int:
        draft = re.search(r"^The draft:\n.*\n> (.*)", prompt, re.MULTILINE)
        lines = [draft[1]] if draft else re.findall(r"^> \w+ acts: \[(.*)\]", prompt, re.MULTILINE)
        own = sum(line not in PHRASES for line in lines) / max(1, len(lines))
        noise = 0 if draft else chance(prompt).choice((-2, -1, 0, 0, 1, 2))
        return max(0, min(9, round(3 + 4 * own) + noise))


def experiment() -> Experiment:
    return Experiment(
        STREET, model=Neighbour(), judge=Reader("reader"), corrector=Reader("corrector"), agents=PEOPLE
    )


def run(folder: Path) -> ExperimentResult:
    """Run the experiment as it was planned, and write what it found."""
    plan = folder / "plan.json"
    if not plan.exists():  # a plan is written once
        experiment().plan.write(plan)
    result = experiment().run(plan=plan, folder=folder / "runs")
    result.write(folder / "result.json")
    result.write(folder / "effects.svg")
    return result


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1 or "".join(argv).startswith("-"):
        sys.exit("usage: experiment.py [FOLDER]")
    folder = Path(argv[0] if argv else tempfile.mkdtemp(prefix="experiment-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        print(run(folder).table())
    except (ArbiterError, OSError) as error:  # such as a folder that is a file
        sys.exit(str(error))
    print(f"\nThe effects as a picture: {folder / 'effects.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
