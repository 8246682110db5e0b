"""The version of an evaluator changes with what its numbers depend on, and with nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from arbiter import (
    ArbiterOS,
    EvaluationResult,
    History,
    HistoryItem,
    NodeEvaluator,
    ThresholdEvaluator,
    Verdict,
)
from arbiter._values.versions import version_of
from arbiter.evaluators import JudgeEvaluator
from arbiter.history._record import record_from
from arbiter.instructions import GENERATE
from arbiter.personas import AdherenceEvaluator, Persona, Proposition, PropositionSet
from tests.scripted import Scripted
from tests.support import MODES, Check, Judge, Spy, chain, run, thread

RUBRIC = "It names its sources."


def judge(**changes: Any) -> JudgeEvaluator:
    given: dict[str, Any] = {"name": "j", "rubric": RUBRIC, "model": Scripted(answers=["?"])}
    return JudgeEvaluator(**{**given, **changes})


def adherence(claim: str = "{{agent_name}} is calm", persona: str = "Calm.", **known: Any) -> Any:
    claims = PropositionSet("adherence", [Proposition("calm", claim, **known)])
    return AdherenceEvaluator(
        "a", persona=Persona("Jim", persona), judge=Scripted(answers=["?"]), propositions=claims
    )


@pytest.mark.parametrize(
    "changed",
    [
        judge(rubric="It is short."),
        judge(at_least=0.5),
        judge(include_input=False),
        judge(target_nodes=["a"]),
        judge(target_instructions=GENERATE),
    ],
)
def test_version_changes_with_parameters_and_texts(changed: JudgeEvaluator) -> None:
    assert changed.version != judge().version
    assert len(changed.version) == 16


@pytest.mark.parametrize(
    "same",
    [judge(name="other"), judge(model=Scripted(answers=["!"])), judge(deadline=1.0), judge(durable=True)],
)
def test_version_does_not_change_with_name_model_and_deadline(same: JudgeEvaluator) -> None:
    """A judge's model is compared by itself."""
    assert same.version == judge().version


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (adherence("{{agent_name}} is cold"), "claims"),
        (adherence(weight=0.5), "claims"),
        (adherence(inverted=True), "claims"),
        (adherence(persona="Loud."), "persona"),
    ],
)
def test_parts_of_a_version_name_the_difference(changed: AdherenceEvaluator, part: str) -> None:
    before, now = adherence().version_parts(), changed.version_parts()
    assert part in {name for name in before if before[name] != now[name]}
    assert changed.version != adherence().version


def test_advice_for_the_agent_is_no_part_of_a_version() -> None:
    assert adherence(recommendations_for_improvement="Breathe.").version == adherence().version


SOURCE = """
from arbiter import EvaluationResult, NodeEvaluator

class Polite(NodeEvaluator):
    def __init__(self, word="please"):
        super().__init__("polite")
        self.word = word
        self.seen = []

    def evaluate(self, history):
        self.seen.append(1)
        return self.word in history.item.output_state["text"]

def short(run):
    return len(run.output) < 10

first, second = lambda run: run.output == 1, lambda run: run.output == 2

def made(limit):
    return lambda run: run.output < limit

def counting(calls):
    def score(run):
        calls.append(run)
    return score
"""


def load(path: Path, source: str) -> Any:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("scorers_of_a_user", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def versions(module: Any) -> dict[str, str]:
    things = {
        "Polite": module.Polite(),
        "short": module.short,
        "first": module.first,
        "second": module.second,
        "made": module.made(3),
    }
    return {name: version_of(thing) for name, thing in things.items()}


def test_comments_and_formatting_are_no_part_of_a_version(tmp_path: Path) -> None:
    """Docstrings neither, nor what an object has counted; a changed line of code is, of its function alone."""
    before = load(tmp_path / "one.py", SOURCE)
    formatted = SOURCE.replace("def short(run):", 'def short( run ):\n    """Short."""\n    # ten is enough')
    formatted = formatted.replace(
        "class Polite(NodeEvaluator):", "class Polite(NodeEvaluator):\n    '''Says it.'''\n"
    )
    same = load(tmp_path / "two.py", formatted)
    assert versions(same) == versions(before)
    assert len(set(versions(before).values())) == 5
    used = before.Polite()
    used.seen.append(1)
    assert used.version == before.Polite().version != before.Polite("thanks").version
    assert version_of(before.made(3)) != version_of(before.made(4))
    assert version_of(before.counting([])) != version_of(before.counting([1]))
    counts = before.counting([])
    first = version_of(counts)
    counts(None)
    assert version_of(counts) == first == version_of(before.counting([]))

    changed = load(tmp_path / "three.py", SOURCE.replace("< 10", "< 11"))
    assert {name for name, version in versions(changed).items() if version != versions(before)[name]} == {
        "short"
    }


def test_function_without_source_has_a_version() -> None:
    found: dict[str, Any] = {}
    exec("def one(run): return 1\ndef two(run): return 2\ndef same(run): return 1", found)
    assert version_of(found["one"]) == version_of(found["same"]) != version_of(found["two"])


def test_numbers_of_very_many_digits_have_a_version() -> None:
    """Python refuses to write them in decimal."""
    assert version_of({"a": 10**5_000}) == version_of({"a": 10**5_000}) != version_of({"a": 10**5_000 + 1})


def test_own_version_replaces_it() -> None:
    class Mine(NodeEvaluator):
        version = "v2"

        def evaluate(self, history: History) -> EvaluationResult:
            return EvaluationResult(1.0, True)

    class Counted:
        version = 3

    assert Mine("m").version == "v2"
    evaluator = ThresholdEvaluator("t", "k", 0.5)
    evaluator.version = "mine"
    assert evaluator.version == "mine"
    assert version_of(Counted()) == "3"


@pytest.mark.lengthy
def test_version_is_equal_in_another_process() -> None:
    """Hashes of texts and orders of sets differ between processes; versions do not."""
    code = (
        "from arbiter import ThresholdEvaluator\n"
        "print(ThresholdEvaluator('t', 'k', 0.5, target_nodes={'a', 'b', 'c'}).version)"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}
    )
    here = ThresholdEvaluator("t", "k", 0.5, target_nodes={"a", "b", "c"})
    assert there.stdout.strip() == here.version


@pytest.mark.lengthy
@MODES
def test_committed_results_keep_version_and_outcome(mode: str) -> None:
    """Another process finds both with the result, after many node runs too."""
    saver = InMemorySaver()
    steps = 12

    def governed(seen: list[Any]) -> Any:
        def look(history: History) -> Verdict:
            for item in history.earlier():
                if item.node == "a":
                    seen.append((dict(item.evaluation_versions), dict(item.evaluation_outcomes)))
            return Verdict.allow()

        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Check("look", look, target_nodes=["b"]))
        arbiter_os.add_evaluator(ThresholdEvaluator("good", "score", 0.5, durable=True))
        arbiter_os.add_evaluator(
            Judge("none", lambda h: EvaluationResult(1.0, True, outcome="not_applicable"), durable=True)
        )
        return arbiter_os.govern(chain(Spy("a", score=0.7), Spy("b"), checkpointer=saver))

    for _ in range(steps):
        run(governed([]), {"log": []}, thread("1"), mode=mode)
    seen: list[Any] = []
    run(governed(seen), {"log": []}, thread("1"), mode=mode)
    known = ThresholdEvaluator("good", "score", 0.5).version
    versions, outcomes = seen[0]
    assert (versions["good"], outcomes) == (known, {"good": "scored", "none": "not_applicable"})
    assert seen[-1][1] in ({}, outcomes)
    assert len(seen) == steps + 1


def test_facts_of_an_older_arbiter_are_read() -> None:
    """Without a version, and with the outcome that all results had then."""
    fact = {"id": "1", "node": "a", "step": 1, "at": 0.0, "evals": {"q": [0.5, True, "so"]}}
    item = HistoryItem(record_from(fact))
    assert dict(item.evaluation_versions) == {}
    assert dict(item.evaluation_outcomes) == {"q": "scored"}


def test_version_that_raises_costs_no_run() -> None:
    """It is absent, and logged."""

    class Broken(NodeEvaluator):
        def texts(self) -> Any:
            raise ValueError("no texts")

        def evaluate(self, history: History) -> EvaluationResult:
            return EvaluationResult(1.0, True)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Broken("b", durable=True))
    assert arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver())).invoke({"log": []}, thread("1"))
    assert dict(arbiter_os.history.item.evaluation_versions) == {}
    assert arbiter_os.history.item.evaluation_results["b"].score == 1.0


def test_results_and_errors_are_read_without_the_version(caplog: pytest.LogCaptureFixture) -> None:
    """A version may have to be read from source, and a broken one is logged: only code that asks for it waits."""
    asked: list[str] = []

    class Costly(Judge):
        def texts(self) -> Any:
            asked.append(self.name)
            raise ValueError("no texts")

    def fails(_: History) -> EvaluationResult:
        raise ValueError("no answer")

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Costly("good", lambda _: EvaluationResult(1.0, True)))
    arbiter_os.add_evaluator(Costly("fails", fails))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    item = arbiter_os.history.item
    assert [*item.evaluation_results] == ["good"]
    assert dict(item.evaluation_errors) == {"fails": "ValueError: no answer"}
    assert dict(item.evaluation_outcomes) == {"good": "scored", "fails": "error"}
    assert not asked
    assert "has no version" not in caplog.text
