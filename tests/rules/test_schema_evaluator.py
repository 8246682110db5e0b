"""`schema_valid`: 1.0 for an output that fits a schema, 0.0 with the mistakes for one that does not."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from arbiter import ArbiterOS, EvaluationResult
from arbiter.errors import ParameterError
from arbiter.evaluators import SchemaEvaluator
from tests.support import MODES, Route, Spy, chain, run

AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


class Paid(BaseModel):
    amount: int


class Answer(Enum):
    YES = "yes"
    NO = "no"


def judged(evaluator: SchemaEvaluator, output: dict[str, Any], mode: str = "sync") -> EvaluationResult:
    """The result of the evaluator for a node with that output."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    run(arbiter_os.govern(chain(Spy("work", **output))), {"log": []}, mode=mode)
    return arbiter_os.history.entries[-1][-1].evaluation_results[evaluator.name]


@MODES
@pytest.mark.parametrize(
    "schema", [AMOUNT, Paid, f"{__name__}.Paid"], ids=["JSON Schema", "class", "dotted path"]
)
def test_an_output_fits_or_not(schema: Any, mode: str) -> None:
    """The score is 1.0 or 0.0, and the feedback says what is wrong."""
    evaluator = SchemaEvaluator("shape", schema)
    good = judged(evaluator, {"amount": 3}, mode)
    assert (good.score, good.passed, good.feedback) == (1.0, True, "fits the schema")
    bad = judged(evaluator, {"amount": "much"}, mode)
    assert (bad.score, bad.passed) == (0.0, False)
    assert bad.feedback.startswith("output.amount: ")


TEXTS: dict[str, tuple[Any, str]] = {
    "value": ({"amount": 1}, ""),
    "text": ('{"amount": 1}', ""),
    "fence": ('```json\n{"amount": 1}\n```', ""),
    "plain fence": ('\n```\n{"amount": 1}\n```\n', ""),
    "message": (AIMessage('{"amount": 1}'), ""),
    "blocks": (AIMessage([{"type": "text", "text": '{"amount": 1}'}]), ""),
    "messages": ([HumanMessage("how much?"), AIMessage('{"amount": 1}')], ""),
    "wrong value": ({"amount": "x"}, "answer.amount: is not of type 'integer'"),
    "wrong text": ('{"amount": "x"}', "answer.amount: is not of type 'integer'"),
    "no JSON": ("I would pay 1", "answer is not JSON: "),
    "prose around it": ('Here: {"amount": 1}', "answer is not JSON: "),
    "NaN": ('{"amount": NaN}', "NaN is not a JSON value"),
    "too deep": ("[" * 100_000, "answer is not JSON: "),
    "a text of JSON": ('"hello"', "answer: is not of type 'object'"),
    "empty": ("", "answer is not JSON: "),
    "nothing": (None, "answer: is not of type 'object'"),
}


@pytest.mark.parametrize(("value", "problem"), TEXTS.values(), ids=TEXTS.keys())
def test_a_key_may_hold_json_as_text(value: Any, problem: str) -> None:
    """In a fence or not, in a message or not. A text that is not JSON scores 0.0 and never raises."""
    result = answer_judged(SchemaEvaluator("shape", AMOUNT, key="answer"), value)
    assert (result.score, result.passed) == ((0.0, False) if problem else (1.0, True))
    assert problem in result.feedback


def answer_judged(evaluator: SchemaEvaluator, value: Any) -> EvaluationResult:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)

    def work(_: Any) -> dict[str, Any]:
        return {"answer": value}

    arbiter_os.execute({}, work)
    return arbiter_os.history.entries[-1][-1].evaluation_results["shape"]


def test_a_schema_of_a_text_judges_the_text() -> None:
    """A text that is to be a text is not read as JSON."""
    evaluator = SchemaEvaluator("shape", {"type": "string", "pattern": "^[0-9]+$"}, key="answer")
    assert answer_judged(evaluator, "12").passed
    assert not answer_judged(evaluator, "twelve").passed
    assert answer_judged(SchemaEvaluator("shape", str, key="answer"), "12").passed


@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        ({"enum": ["yes", "no"]}, "yes", True),
        ({"enum": ["yes", "no"]}, '"yes"', True),
        ({"enum": ["yes", "no"]}, "maybe", False),
        ({"enum": ["1", "2"]}, "1", True),
        ({"enum": [1, "one"]}, "one", False),
        ({"const": "done"}, "done", True),
        ({"type": ["string", "null"]}, "anything", True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "anything", True),
        ({"oneOf": [{"const": "yes"}, {"enum": ["no"]}]}, "no", True),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, "anything", False),
        (Answer, "yes", True),
        (Answer, '"yes"', True),
        (Answer, "maybe", False),
        ({"type": ["string", "object"]}, "anything", False),
        ({"required": ["amount"]}, "anything", False),
        ({}, "anything", False),
    ],
)
def test_a_text_may_be_one_of_the_texts_of_a_schema(schema: Any, text: str, fits: bool) -> None:
    """Quoted as JSON or not. A schema that takes other values, too, is about JSON."""
    assert answer_judged(SchemaEvaluator("shape", schema, key="answer"), text).passed is fits


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"enum": ["yes", "no"]}, "answer: is not one of ['yes', 'no']"),
        ({"type": ["string", "null"], "maxLength": 3}, "answer: is too long"),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, "answer is not JSON: "),
    ],
)
def test_the_feedback_of_a_list_of_texts_says_what_is_expected(schema: dict[str, Any], said: str) -> None:
    """And not that the text is no JSON, which it need not be."""
    feedback = answer_judged(SchemaEvaluator("shape", schema, key="answer"), "maybe").feedback
    assert feedback.startswith(said)


def test_a_key_that_is_missing_fails() -> None:
    """And the feedback says so."""
    result = answer_judged(SchemaEvaluator("shape", AMOUNT, key="other"), 1)
    assert (result.score, result.feedback) == (0.0, "output has no 'other'")


@MODES
def test_a_chat_agent_is_sent_back_until_its_answer_fits(mode: str) -> None:
    """A router reads the result as that of any evaluator."""
    answers = iter(["no idea", '```json\n{"amount": "x"}\n```', '{"amount": 5}'])
    builder = StateGraph(MessagesState)
    builder.add_node("chat", lambda state: {"messages": [AIMessage(next(answers))]})
    builder.add_edge(START, "chat")
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(SchemaEvaluator("shape", AMOUNT, key="messages"))
    again = Route(
        "again", lambda h, _: None if h.entries[-1][-1].evaluation_results["shape"].passed else "chat"
    )
    again.targets = ("chat",)
    arbiter_os.add_policy_router(again)
    result = run(arbiter_os.govern(builder.compile()), {"messages": [HumanMessage("how much?")]}, mode=mode)
    assert result["messages"][-1].text == '{"amount": 5}'
    assert len(result["messages"]) == 4


def test_a_wrong_schema_fails_when_the_evaluator_is_made() -> None:
    """As for the checker, with the evaluator's name."""
    with pytest.raises(ParameterError, match=r"evaluator 'shape': schema\.type: expected a JSON Schema"):
        SchemaEvaluator("shape", {"type": "strng"})
    with pytest.raises(ParameterError, match="cannot be imported"):
        SchemaEvaluator("shape", "absent.Paid")
