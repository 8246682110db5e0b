"""Calls, tokens and dollars by purse and model; what a model does not report is unknown and never 0."""

from __future__ import annotations

import asyncio
import re
from itertools import permutations
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from arbiter.harness import Case, Suite
from arbiter.harness.usage import Spent, Usage
from arbiter.models import JudgeReply
from tests.harness.measurements import purse
from tests.scripted import EndpointError, Scripted, usage
from tests.support import MODES


def says(text: str, tokens: Any = None, model: str = "m-1") -> AIMessage:
    return AIMessage(text, usage_metadata=tokens, response_metadata={"model_name": model})


def calling(*answers: Any) -> Any:
    """A graph whose one node calls its model as often as it has answers, and survives failures."""
    model = Scripted(answers=list(answers))

    def speak(state: MessagesState) -> Any:
        for _ in answers:
            try:
                model.invoke("Hi")
            except EndpointError:
                continue
        return {"messages": [AIMessage("done")]}

    builder = StateGraph(MessagesState)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    return builder.compile()


@MODES
def test_all_model_calls_of_a_target_are_counted(mode: str) -> None:
    """Two answers that say their tokens, one that does not, and one failure."""
    spent = Usage()
    graph = calling(says("a", usage(10, 2)), says("b", usage(5, 1), "m-2"), says("c"), EndpointError(500))
    config: Any = {"callbacks": [spent.callback("case-1")]}
    if mode == "sync":
        graph.invoke({"messages": []}, config)
    else:
        asyncio.run(graph.ainvoke({"messages": []}, config))
    found = purse(spent, "target", "case-1")
    assert (found.input_tokens, found.output_tokens, found.calls, found.unknown_calls) == (15, 3, 4, 2)
    assert set(spent.of("case-1")["target"]) >= {"m-1", "m-2"}
    assert spent.of("case-2") == {}
    assert spent.total.tokens == 18


@pytest.mark.parametrize("prices", [{}, {"m-1": {"input": 1.0, "output": 1.0}}])
@pytest.mark.parametrize(
    "tokens", [{"input_tokens": -5}, {"input_tokens": float("nan")}, {"input_tokens": []}]
)
def test_a_report_of_tokens_that_cannot_be_read_counts_as_none(tokens: Any, prices: Any) -> None:
    """The call itself counts: a limit of calls holds."""
    spent = Usage(prices=prices)
    reply: Any = says("a")
    reply.usage_metadata = {**usage(10, 2), **tokens}  # it is not checked here
    calling(reply, says("b", usage(10, 2))).invoke(
        {"messages": []}, {"callbacks": [spent.callback("case-1")]}
    )
    found = spent.total
    assert (found.calls, found.unknown_calls, found.tokens, found.usd) == (2, 1, 12, None)


def test_purses_models_and_cases_are_kept_apart() -> None:
    spent = Usage(prices={"m": {"input": 1.0, "output": 2.0}})
    spent.add("judge", "m", usage(1_000_000, 0), thread_id="a")
    spent.add("judge", "m", usage(0, 1_000_000), thread_id="b")
    spent.add("correction", "m", usage(1, 1), calls=2, thread_id="b")
    several = (("a",), ("b",), ("a", "b"))
    assert [round(purse(spent, "judge", *each).usd or 0, 6) for each in several] == [1.0, 2.0, 3.0]
    assert list(spent.of("a", "b")) == ["judge", "correction"]
    assert purse(spent, "correction", "b").calls == 2


def test_dollars_do_not_depend_on_the_order_in_which_calls_ended() -> None:
    """Else the reports of two equal runs would differ in the last digits."""
    found: set[float | None] = set()
    for order in permutations((1050, 2831, 3971)):
        spent = Usage(prices={"m": {"input": 0.25, "output": 2.0}})
        for tokens in order:
            spent.add("judge", "m", usage(tokens, tokens // 7), thread_id="a")
        found.add(purse(spent, "judge", "a").usd)
    assert len(found) == 1


def test_unknown_is_never_zero() -> None:
    spent = Usage()
    assert spent.total.usd == 0.0
    spent.add("target", "a-model-of-mine", usage(10, 2))
    now = spent.total
    assert (now.usd, now.unknown_calls, spent.unpriced) == (None, 0, ("a-model-of-mine",))
    spent.add("target", "a-model-of-mine", None, calls=3)
    assert (spent.total.tokens, spent.total.calls, spent.total.unknown_calls) == (12, 4, 3)


def test_replayed_answers_cost_nothing_and_are_counted_apart() -> None:
    spent = Usage()
    spent.add("judge", "m", usage(100, 20), calls=2, replayed=True)
    spent.add("judge", "m", None, replayed=True)
    assert spent.total == Spent(replayed_calls=3, replayed_tokens=120)
    assert spent.total.usd == 0.0


@pytest.mark.parametrize("tokens", [usage(10, 2), None])
def test_earlier_sessions_of_a_run_are_counted_with_it(tokens: Any) -> None:
    """The usage in a journal is added to the usage of this session."""
    before = Usage(prices={"m": {"input": 1.0, "output": 1.0}})
    before.add("judge", "m", tokens, thread_id="a")
    kept = {
        purse: {m: each.to_dict() for m, each in models.items()} for purse, models in before.of("a").items()
    }
    after = Usage()
    after.restore("a", kept)
    assert after.of("a") == before.of("a")
    assert after.total == before.total


def test_a_model_that_was_silent_once_in_an_earlier_session_may_have_a_price() -> None:
    before, after = Usage(prices={"m": {"input": 1.0, "output": 1.0}}), Usage()
    before.add("target", "m", usage(10, 2), thread_id="a")
    before.add("target", "m", None, thread_id="a")
    after.restore("a", {"target": {"m": before.of("a")["target"]["m"].to_dict()}})
    assert after.unpriced == ()


def test_a_refused_request_of_a_judge_is_a_call() -> None:
    spent = Usage()
    spent.add_reply("judge", "m", JudgeReply(value={}, calls=2, usages=(None,)))
    assert (spent.total.calls, spent.total.unknown_calls) == (2, 2)
    spent.add_reply("judge", "m", JudgeReply(value={}, calls=3, usages=(None, usage(10, 2))))
    assert (spent.total.calls, spent.total.unknown_calls, spent.total.tokens) == (5, 4, 12)


def test_a_model_without_a_price_is_named_also_if_another_process_called_it() -> None:
    there, here = Usage(), Usage()
    there.add("judge", "a-model-of-mine", usage(1, 1), thread_id="a")
    here.take("a", "judge", "a-model-of-mine", there.of("a")["judge"]["a-model-of-mine"], 0)
    assert here.unpriced == there.unpriced == ("a-model-of-mine",)


def test_a_cost_below_half_a_cent_is_not_printed_as_nothing() -> None:
    """Cents are printed as before."""
    graph = calling(says("a", usage(10, 2), "gpt-4o-mini"))
    report = Suite("cheap", [Case("a", {"messages": []})]).run(graph, folder=None)
    assert 0 < (report.usage["target"].usd or 0) < 0.005
    assert "cost <$0.01" in report.rendered("markdown").replace("\\", "")
    graph = calling(says("a", usage(10, 2), "gpt-4o-mini"), says("b", usage(300_000, 0), "gpt-4o-mini"))
    report = Suite("priced", [Case("a", {"messages": []})]).run(graph, folder=None)
    assert re.search(r"cost \$0\.0[1-9]", report.rendered("markdown").replace("\\", ""))
