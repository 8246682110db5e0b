"""Three characters plan a party, and are kept in character while they do.

    python examples/office/main.py [--model openai:gpt-5-mini] [--rounds 4]

Shows each message as it happens, the scores and corrections of its drafts, the advice for single calls, and
how distinct the voices are after a round. Without `--model` it plays a script in which Marta drifts, Bright
repeats himself, Pell gets a habit, and all three end up agreeing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from arbiter import ArbiterOS, ConfigurationError, EvaluationResult, EvaluationRouter
from arbiter.instructions import REFLECT, RESPOND
from arbiter.models import model_of
from arbiter.personas import (
    ConvergenceEvaluator,
    GatedAction,
    InterventionBatch,
    PersonaGate,
    RepetitionSuppressor,
    anti_convergence,
    variety,
)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))  # for `python examples/office/main.py`, from any folder

from examples.office.cast import BRIGHT, CAST, SETTINGS, STRICT  # noqa: E402
from examples.office.graph import build  # noqa: E402
from examples.office.script import Critic, Players  # noqa: E402

SPEAKERS = [persona.id for persona in CAST]


class Office:
    """The governed conversation, and its governance."""

    def __init__(self, model: str | None = None, rounds: int = 4) -> None:
        players: Any = Players()
        judge: Any = Critic()
        if model is not None:
            players, judge = model_of(model), model
        self.gate = PersonaGate(judge, CAST, SETTINGS, target_instructions=[RESPOND])
        self.interventions = InterventionBatch(
            [
                *anti_convergence(
                    CAST,
                    judge,
                    SETTINGS,
                    nudges={"marta": "challenging_question", "pell": "personal_story"},
                ),
                *variety([BRIGHT], judge, STRICT, stale_after=3),
            ],
            name="nudges",
            target_nodes=SPEAKERS,
        )
        self.arbiter_os = ArbiterOS()
        self.arbiter_os.add_correction_gate(self.gate)
        self.arbiter_os.add_advisor(self.interventions)
        self.arbiter_os.add_advisor(RepetitionSuppressor(CAST, SETTINGS, target_nodes=SPEAKERS))
        self.arbiter_os.add_evaluator(
            ConvergenceEvaluator("voices", judge=judge, at_least=5.0, target_nodes=[SPEAKERS[-1]])
        )
        self.arbiter_os.add_policy_router(EvaluationRouter("break_up", "voices", "reflect", max_redirects=1))
        instructions = {**dict.fromkeys(SPEAKERS, RESPOND), "reflect": REFLECT}
        self.app: Any = self.arbiter_os.govern(build(players, rounds), instructions)


def told(agent: str, text: str) -> Table:
    """The advice that an agent receives for one call."""
    table = Table(f"to {agent} alone", style="magenta", header_style="magenta")
    table.add_row(Text(text))
    return table


def drafts_of(action: GatedAction) -> Table:
    """The drafts of one action with their scores."""
    table = Table(
        "draft", "adherence", "fluency", "similarity", "passed", title=f"{action.agent}: {action.outcome}"
    )
    for attempt in action.attempts:
        scores = [attempt.checks.get(name) for name in ("adherence", "fluency")]
        table.add_row(
            Text(attempt.text or ""),
            *("" if check is None or check.score is None else f"{check.score:g}" for check in scores),
            "" if attempt.similarity is None else f"{attempt.similarity:.2f}",
            "✓" if attempt.passed else "✗",
            style="" if attempt.passed else "red",
        )
    return table


def voices_of(result: EvaluationResult, redirected_to: str | None) -> Table:
    """The distinctness of the voices in a round, with the words that two of them share."""
    pairs: dict[str, float] = result.metadata["evidence"]
    table = Table("voices", *pairs, "on to", title="The round", style="cyan")
    shares = (f"{share:.0%}" for share in pairs.values())
    table.add_row(f"{float(result.metadata['raw']):.1f} of 9", *shares, redirected_to or "")
    return table


def summary(office: Office) -> Table:
    """The gate's statistics by character."""
    table = Table("", "actions", "passed at once", "after a retry", "forced", "similar", title="The gate")
    for persona in CAST:
        found = office.gate.statistics(persona.name)
        table.add_row(
            persona.name,
            str(found.total_actions),
            "" if found.original_pass_rate is None else f"{found.original_pass_rate:.0%}",
            str(found.outcomes["passed_after_retry"]),
            str(found.forced_through_count),
            str(found.similarity_failure_count),
        )
    return table


def play(office: Office, console: Console) -> None:
    shown = 0
    for kind, part in office.app.stream({}, stream_mode=["custom", "updates"]):
        if kind == "custom":
            console.print(told(part["agent"], part["told"]))
            continue
        for node, update in part.items():
            for message in update["messages"]:
                console.print(Text.assemble((f"{message.name}: ", "bold"), str(message.text)))
            actions = list(office.gate.actions)
            for action in actions[shown:]:
                console.print(drafts_of(action))
            shown = len(actions)
            if node == SPEAKERS[-1]:
                item = office.arbiter_os.history.last(node=node)
                assert item is not None
                console.print(voices_of(item.evaluation_results["voices"], item.redirected_to))


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Three characters plan a party.")
    parser.add_argument("--model", help="a real model for all of them and the judge, like openai:gpt-5-mini")
    parser.add_argument("--rounds", type=at_least_one, default=4)
    options = parser.parse_args()
    console = Console(highlight=False)
    try:
        office = Office(options.model, options.rounds)
    except ConfigurationError as error:
        parser.error(str(error))
    play(office, console)
    console.print(summary(office))
    nudged = [found for found in office.interventions.log if found.fired]
    console.print(f"{len(nudged)} of {len(office.interventions.log)} evaluations of an intervention fired.")


if __name__ == "__main__":
    main()
