"""Rules judge the value that an `Overwrite` writes, as they judge a value that a reducer adds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.types import Command, Overwrite
from pydantic import BaseModel, InstanceOf
from typing_extensions import TypedDict

from arbiter import ArbiterOS, History, PolicyChecker, PolicyViolationError, ThresholdEvaluator
from arbiter.checkers import SchemaChecker
from tests.support import MODES, Chat, chain, run


class Sums(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    amount: Annotated[int, operator.add]
    score: Annotated[float, operator.add]


RETURNED: list[Callable[[dict[str, Any]], Any]] = [
    dict,
    lambda update: Command(update=update),
    lambda update: [Command(update=update)],
]


def graph(returned: Callable[[dict[str, Any]], Any], **update: Any) -> Any:
    def write(state: Sums) -> Any:
        return returned({key: Overwrite(value) for key, value in update.items()})

    return chain(write, state=Sums)


@MODES
@pytest.mark.parametrize("returned", RETURNED)
def test_evaluators_and_the_history_have_the_value(returned: Any, mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("sure", "score", 0.5))
    app = arbiter_os.govern(graph(returned, log=["b"], score=0.9))
    assert run(app, {"log": ["a"]}, mode=mode)["log"] == ["b"]
    item = arbiter_os.history.item
    assert item.evaluation_results["sure"].score == 0.9
    assert item.output_state == {"log": ["b"], "score": 0.9}


@MODES
@pytest.mark.parametrize("returned", RETURNED)
def test_a_checker_of_outputs_gets_the_value(returned: Any, mode: str) -> None:
    got: list[Any] = []

    class Looks(PolicyChecker):
        def check_before(self, history: History) -> bool:
            return True

        def check_after(self, output: Any, history: History) -> bool:
            got.append(dict(output))
            return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Looks("looks"))
    arbiter_os.add_policy_checker(SchemaChecker("small", output={"properties": {"amount": {"maximum": 100}}}))
    app = arbiter_os.govern(graph(returned, amount=5000))
    with pytest.raises(PolicyViolationError, match="greater than the maximum"):
        run(app, {"log": []}, mode=mode)
    assert got == [{"amount": 5000}]


class Sure(TypedDict):
    score: float


@MODES
@pytest.mark.parametrize("returned", RETURNED)
def test_an_output_schema_validates_the_value(returned: Any, mode: str) -> None:
    app = ArbiterOS().govern(graph(returned, score=0.9), schemas={"write": {"output": Sure}})
    assert run(app, {"score": 0.5}, mode=mode)["score"] == 0.9


class Page(dict[str, Any]):
    """A dict of a class of the user's."""


@dataclass
class Entry:
    score: Any = None


class Scored(BaseModel):
    score: float


@MODES
@pytest.mark.parametrize(
    ("output", "schema"),
    [
        (Page(score=0.9), InstanceOf[Page]),
        (Page(score=Overwrite(0.9)), InstanceOf[Page]),
        (Entry(Overwrite(0.9)), Scored),
    ],
)
def test_an_output_of_any_class_is_validated_as_what_it_is(output: Any, schema: Any, mode: str) -> None:
    def write(state: Sums) -> Any:
        return output

    app = ArbiterOS().govern(chain(write, state=Sums), schemas={"write": {"output": schema}})
    assert run(app, {"log": []}, mode=mode)["score"] == 0.9


@MODES
def test_messages_are_judged_too(mode: str) -> None:
    def talk(state: Chat) -> Any:
        return {"messages": Overwrite([AIMessage("Hello!")])}

    def polite(output: Any) -> bool:
        return bool(output["messages"][-1].text == "Hello!")

    arbiter_os = ArbiterOS()
    arbiter_os.evaluator(polite)
    run(arbiter_os.govern(chain(talk, state=Chat)), {"messages": [("user", "Hi")]}, mode=mode)
    assert arbiter_os.history.item.evaluation_results["polite"].passed
