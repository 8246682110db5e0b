"""How an evaluation ended is data: a number, or the reason why there is none."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from arbiter import ArbiterOS, EvaluationResult, History, NodeEvaluator
from arbiter.errors import EvaluationError
from arbiter.evaluators import JudgeEvaluator, TextSimilarityEvaluator
from tests.scripted import Scripted
from tests.support import MODES, Judge, Spy, chain, run


def raises(error: Exception) -> Callable[[History], Any]:
    def evaluate(history: History) -> Any:
        raise error

    return evaluate


def hang(history: History) -> Any:
    time.sleep(10)


class Late(NodeEvaluator):
    async def evaluate(self, history: History) -> EvaluationResult:
        raise TimeoutError("the model's client gave up")


EVALUATORS: dict[str, tuple[NodeEvaluator, str]] = {
    "score": (Judge("e", lambda h: 0.5), "scored"),
    "no part of a mean": (
        Judge("e", lambda h: EvaluationResult(1.0, True, outcome="not_applicable")),
        "not_applicable",
    ),
    "nothing to judge": (
        Judge("e", raises(EvaluationError("x", outcome="not_applicable"))),
        "not_applicable",
    ),
    "abstained": (Judge("e", raises(EvaluationError("x", outcome="abstained"))), "abstained"),
    "a judge without a grade": (JudgeEvaluator("e", "Good.", Scripted(answers=["?"] * 2)), "abstained"),
    "raised": (Judge("e", raises(ValueError("timeout: abstained"))), "error"),
    "deadline": (Judge("e", hang, deadline=0.05), "timeout"),
    "the client's timeout": (Late("e"), "timeout"),
    "no result": (Judge("e", lambda h: "good"), "error"),
    "an unknown outcome": (
        Judge("e", lambda h: EvaluationResult(1.0, True, outcome="late")),  # type: ignore[arg-type]
        "error",
    ),
}


@MODES
@pytest.mark.parametrize(("evaluator", "outcome"), EVALUATORS.values(), ids=EVALUATORS.keys())
def test_item_says_how_each_evaluation_ended(evaluator: NodeEvaluator, outcome: str, mode: str) -> None:
    """Also in copies of the item, and in its dict. A result that counts in no mean is still readable."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    arbiter_os.add_evaluator(Judge("several", lambda h: {"a": 1.0, "b": "?"}))
    run(arbiter_os.govern(chain(Spy("a"))), {"log": ["in"]}, mode=mode)
    item = arbiter_os.history.item
    expected = {"e": outcome, "several.a": "scored", "several.b": "error"}
    assert dict(item.evaluation_outcomes) == expected
    assert item.to_dict()["evaluation_outcomes"] == expected
    for other in (copy.deepcopy(item), pickle.loads(pickle.dumps(item))):
        assert dict(other.evaluation_outcomes) == expected
    has_result = "e" in item.evaluation_results
    assert has_result == (outcome == "scored") or item.evaluation_results["e"].outcome == outcome


def test_first_output_has_nothing_to_be_compared_with() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(TextSimilarityEvaluator("e", "text"))

    def greet(state: Any) -> Any:
        return {"text": "Hello."}

    arbiter_os.execute({"text": ""}, greet)
    assert dict(arbiter_os.history.item.evaluation_outcomes) == {"e": "not_applicable"}
