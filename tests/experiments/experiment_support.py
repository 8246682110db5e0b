"""A small experiment with scripted models: two people in each conversation, and a judge that reads its prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from arbiter.experiments import Corrections, Experiment, Scenario
from arbiter.personas import GateConfig, InterventionBatch, JudgeRequest, Persona
from tests.personas.personas_support import Says, prompt_of
from tests.scripted import Scripted

GATE = GateConfig(gate_adherence_enabled=True)
METRICS = ("adherence", "consistency", "fluency", "convergence", "ideas_quantity")


def people(count: int) -> list[Persona]:
    return [
        Persona(f"Person {n}", f"Says number {n} whenever possible.", f"person-{n}") for n in range(count)
    ]


def nudging(personas: Sequence[Persona], judge: Any) -> InterventionBatch:
    """Nudges everybody at each step but the first."""
    return (
        InterventionBatch.create_for_each(personas, judge=judge)
        .set_functional_precondition(lambda targets: len(targets[0].trajectory) > 0)
        .set_effect(lambda targets: f"think of {targets[0].agent}")
    )


def never(personas: Sequence[Persona], judge: Any) -> InterventionBatch:
    return (
        InterventionBatch.create_for_each(personas, judge=judge)
        .set_functional_precondition(lambda targets: False)
        .set_effect("never")
    )


def scenario(treatment: Corrections | None = None, **known: Any) -> Scenario:
    settings: dict[str, Any] = {
        "id": "tea",
        "group_size": 2,
        "groups": 2,
        "themes": ("green tea", "black tea"),
        "intro": "Introduce yourselves.",
        "task": "Talk about {theme}.",
        "steps": 3,
        "treatment": Corrections(GATE, (nudging,)) if treatment is None else treatment,
        "ideas": "rapporteur",
    }
    return Scenario(**{**settings, **known})


def speaker(answer: Callable[[str], Any] | None = None) -> Scripted:
    """Agents that say what they were told last, better if they were sent back or nudged."""

    def said(prompt: str) -> str:
        me = re.findall(r"^You are (.*), and you stay", prompt, re.MULTILINE)[0]
        better = "good" if "think of" in prompt or "draft" in prompt else "poor"
        return f"{me} says a {better} word after {len(prompt.splitlines())} lines"

    return Scripted(answers=[answer or said])


def judge() -> Says:
    """Gives good words high scores, with some variation."""

    def answer(request: JudgeRequest) -> Any:
        prompt = prompt_of(request)
        score = min(
            9, 3 + 5 * prompt.count("a good word") // max(1, prompt.count(" word ")) + len(prompt) % 2
        )
        if request.purpose == "batch":
            return {"judgements": [{"id": id, "score": score} for id in request.propositions]}
        if request.purpose == "ideas":
            return {"ideas": ["an idea"] * score, "reasoning": "counted"}
        return {"score": score, "reasoning": "read"}

    return Says(answer)


def corrector() -> Says:
    """Sends poor drafts back."""

    def answer(request: JudgeRequest) -> Any:
        poor = re.search(r"^The draft:\n.*\n> .*says a poor", prompt_of(request), re.MULTILINE)
        return {"score": 2 if poor else 9, "reasoning": "read"}

    return Says(answer)


def experiment(given: Scenario | None = None, **known: Any) -> Experiment:
    settings: dict[str, Any] = {
        "model": speaker(),
        "judge": judge(),
        "corrector": corrector(),
        "agents": people(4),
    }
    return Experiment(given or scenario(), **{**settings, **known})


def pair(given: Scenario | None = None, **known: Any) -> Experiment:
    """The experiment with two people, and so two pairs of environments: half as many."""
    return experiment(given or scenario(groups=1), **{"agents": people(2), **known})
