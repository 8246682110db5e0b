"""The built-in evaluators score what is there; what is absent is an error in the record, never a score."""

from __future__ import annotations

import math
import operator
import time
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from arbiter import (
    ArbiterOS,
    ArbiterWarning,
    EvaluationResult,
    EvaluationRouter,
    EvaluatorGate,
    History,
    HistoryItem,
    NodeEvaluator,
    ThresholdEvaluator,
)
from arbiter.errors import ParameterError, RegistrationError
from arbiter.evaluators import (
    ConsistencyEvaluator,
    CostEvaluator,
    LatencyEvaluator,
    LengthEvaluator,
    WeightedEvaluator,
)
from arbiter.evaluators._consistency import similarity
from arbiter.history._record import Record
from arbiter.history._results import Results
from arbiter.instructions import GENERATE, VERIFY
from arbiter.models import Price
from tests.scripted import tool_call, usage
from tests.support import MODES, Judge, Spy, bad, chain, good, run, thread


class Draft(TypedDict, total=False):
    text: Any
    other: Any
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]


def one_node(output: Any, *, checkpointer: Any = None) -> Any:
    """A graph of the node `write`, which returns `output`, or what it gives for a state."""
    builder = StateGraph(Draft)
    builder.add_node("write", output if callable(output) else lambda state: output)
    builder.add_edge(START, "write")
    return builder.compile(checkpointer=checkpointer)


def judged(
    evaluator: NodeEvaluator, output: Any, *more: NodeEvaluator, mode: str = "sync", state: Any = None
) -> HistoryItem:
    """The item of a node that returned `output`, with all evaluations done."""
    arbiter_os = ArbiterOS()
    for each in (evaluator, *more):
        arbiter_os.add_evaluator(each)
    app = arbiter_os.govern(one_node(output), instructions={"write": GENERATE})
    run(app, state or {"log": ["in"]}, mode=mode)
    assert arbiter_os.drain(25)  # less than the deadline of an evaluator
    return arbiter_os.history.entries[-1][-1]


def result(item: HistoryItem, name: str = "e") -> EvaluationResult:
    assert not item.evaluation_errors
    return item.evaluation_results[name]


def problem(item: HistoryItem, name: str = "e") -> str:
    assert name not in item.evaluation_results
    return item.evaluation_errors[name]


# Length


@MODES
@pytest.mark.parametrize(
    ("text", "unit", "bounds", "score"),
    [
        ("12345", "characters", {"at_most": 5}, 1.0),
        ("123456", "characters", {"at_most": 5}, 5 / 6),
        ("1234", "characters", {"at_least": 5}, 0.8),
        ("12345", "characters", {"at_least": 5, "at_most": 5}, 1.0),
        ("", "characters", {"at_least": 1}, 0.0),
        ("", "characters", {"at_most": 0}, 1.0),
        ("x", "characters", {"at_most": 0}, 0.0),
        ("Grüße 🙂", "characters", {"at_most": 7}, 1.0),
        (" one  two\nthree ", "words", {"at_least": 3, "at_most": 3}, 1.0),
        ("   ", "words", {"at_least": 2}, 0.0),
        ([1, 2, 3], "items", {"at_most": 2}, 2 / 3),
        ({"a": 1}, "items", {"at_least": 1}, 1.0),
        ((), "items", {"at_least": 1}, 0.0),
        ([AIMessage("one two"), HumanMessage("three")], "words", {"at_least": 3, "at_most": 3}, 1.0),
        ([AIMessage("one"), HumanMessage("two")], "characters", {"at_least": 6, "at_most": 6}, 1.0),
        (AIMessage([{"type": "text", "text": "one two"}]), "words", {"at_most": 1}, 0.5),
    ],
)
def test_length_within_its_bounds_passes(
    text: Any, unit: Any, bounds: dict[str, Any], score: float, mode: str
) -> None:
    """Outside of them the score says how far outside."""
    found = result(judged(LengthEvaluator("e", "text", unit=unit, **bounds), {"text": text}, mode=mode))
    assert found.score == pytest.approx(score)
    assert found.passed == (score == 1.0)
    assert unit in found.feedback


@pytest.mark.parametrize(
    ("output", "unit", "says"),
    [
        ({"other": "x"}, "characters", "'text' is missing in the output of node 'write', which has 'other'"),
        ({"text": None}, "characters", "'text' is None"),
        (None, "words", "which has nothing"),
        ({"text": 12345}, "characters", "of type int; expected a text"),
        ({"text": True}, "words", "of type bool"),
        ({"text": ["a", "b"]}, "words", "of type list"),
        ({"text": []}, "words", "is an empty list; expected a text or messages"),
        ({"text": "abc"}, "items", "of type str; expected a list"),
        ({"text": b"abc"}, "items", "of type bytes"),
        ({"text": 3}, "items", "of type int"),
    ],
)
def test_a_value_without_a_length_is_an_error(output: Any, unit: Any, says: str) -> None:
    assert says in problem(judged(LengthEvaluator("e", "text", at_most=5, unit=unit), output))


# Latency


@MODES
def test_latency_is_that_of_the_node(mode: str) -> None:
    def slow(state: Draft) -> dict[str, Any]:
        time.sleep(0.05)
        return {"text": "x"}

    item = judged(LatencyEvaluator("e", 0.01), slow, LatencyEvaluator("f", 30), mode=mode)
    assert result(item).score == pytest.approx(0.01 / item.duration)
    assert 0.0 < result(item).score < 0.25
    assert not result(item).passed
    assert item.evaluation_results["f"].score == 1.0
    assert item.evaluation_results["f"].passed


def test_draft_has_no_latency() -> None:
    """A gate judges before the node is done: that is no duration of 0 seconds."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(EvaluatorGate("gate", LatencyEvaluator("e", 5)))
    arbiter_os.govern(one_node({"text": "x"})).invoke({"log": []})
    assert "is not done yet" in str(arbiter_os.history.entries[-1][-1].errors)


# Cost


def answer(text: str = "x", into: int = 10, out: int = 5, **more: Any) -> AIMessage:
    return AIMessage(text, usage_metadata=usage(into, out), response_metadata={"model_name": "m"}, **more)


SAME = answer(id="same")


@MODES
@pytest.mark.parametrize(
    ("output", "tokens"),
    [
        ({"messages": [answer()]}, 15),
        ({"messages": [answer(), answer()]}, 30),
        ({"messages": [HumanMessage("hi"), answer()], "text": {"drafts": [[answer()]]}}, 30),
        ({"text": answer()}, 15),
        ({"messages": [AIMessage("written by hand"), answer()]}, 15),
        ({"messages": [SAME], "text": [SAME]}, 15),
    ],
)
def test_tokens_of_the_output_are_counted_once(output: Any, tokens: int, mode: str) -> None:
    found = result(judged(CostEvaluator("e", tokens), output, CostEvaluator("f", tokens / 2), mode=mode))
    assert (found.score, found.passed, found.metadata["cost"]) == (1.0, True, tokens)
    item = judged(CostEvaluator("f", tokens / 2), output, mode=mode)
    assert (result(item, "f").score, result(item, "f").passed) == (0.5, False)


def test_answers_that_the_node_was_given_were_paid_before() -> None:
    """A node that is an agent returns the whole conversation."""
    old, new = answer(id="old", into=1_000), answer(id="new")

    def agent(state: Draft) -> dict[str, Any]:
        return {"messages": [*state.get("messages", []), new]}

    item = judged(
        CostEvaluator("e", 100),
        agent,
        state={"messages": [HumanMessage("hi", id="q"), old]},
    )
    assert result(item).metadata["cost"] == 15


@pytest.mark.parametrize(
    "output",
    [
        {"text": "x"},
        None,
        {"messages": [AIMessage("written by hand")]},
        {"messages": [answer(), AIMessage("untold", response_metadata={"model_name": "m"})]},
    ],
)
def test_unknown_usage_is_an_error(output: Any) -> None:
    assert "token" in problem(judged(CostEvaluator("e", 100), output))


def test_dollars_are_by_the_prices_given() -> None:
    prices = {"m": Price(input=2.0, output=10.0)}
    output = {"messages": [answer(into=1_000_000, out=100_000)]}
    found = result(judged(CostEvaluator("e", 3.0, unit="usd", prices=prices), output))
    assert (found.metadata["cost"], found.score, found.passed) == (3.0, 1.0, True)
    mapping: Any = {"m": {"input": 2, "output": 10}}
    found = result(judged(CostEvaluator("e", 1.5, unit="usd", prices=mapping), output))
    assert (found.score, found.passed) == (0.5, False)


def test_sum_of_prices_does_not_fail_by_its_last_digit() -> None:
    """0.1 + 0.1 + 0.1 dollars are 0.3 dollars."""
    prices = {"m": Price(input=0.1, output=0)}
    output = {"messages": [answer(into=1_000_000, out=0) for _ in range(3)]}
    assert result(judged(CostEvaluator("e", 0.3, unit="usd", prices=prices), output)).passed


def test_dollars_are_by_genai_prices_otherwise() -> None:
    """Cached tokens are the cheaper ones, and LangChain's name of the provider need not be known."""

    def priced(provider: str | None, cached: int) -> float:
        said = {"model_name": "gpt-4o"} | ({"model_provider": provider} if provider else {})
        counts: Any = {**usage(1_000, 100), "input_token_details": {"cache_read": cached}}
        message = AIMessage("x", usage_metadata=counts, response_metadata=said)
        item = judged(CostEvaluator("e", 1, unit="usd"), {"messages": [message]})
        cost: float = result(item).metadata["cost"]
        return cost

    assert 0 < priced("openai", 900) < priced("openai", 0)
    assert priced("openai", 0) == priced(None, 0) == priced("some_new_provider", 0)


@pytest.mark.parametrize("prices", [None, {"other": Price(1, 1)}])
@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"model_name": "no-such-model"}, "the model 'no-such-model' has no price"),
        ({}, "does not name its model"),
    ],
)
def test_model_without_a_price_is_an_error(prices: Any, said: Any, says: str) -> None:
    message = AIMessage("x", usage_metadata=usage(1, 1), response_metadata=said)
    evaluator = CostEvaluator("e", 100, unit="usd", prices=prices)
    assert says in problem(judged(evaluator, {"messages": [message]}))


def test_dollars_need_prices_from_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> None:
        assert name == "genai_prices"

    monkeypatch.setattr("arbiter.models._prices.find_spec", find_spec)
    with pytest.raises(ParameterError, match=r"arbiteros\[prices\]"):
        CostEvaluator("e", 1, unit="usd")
    CostEvaluator("e", 1, unit="usd", prices={"m": Price(1, 1)})


# Consistency


def talk(evaluator: NodeEvaluator, *texts: Any, instructions: Any = None) -> list[HistoryItem]:
    """The items of a thread whose node wrote these texts, one in each run."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    said = iter(texts)
    builder = StateGraph(Draft)
    builder.add_node("write", lambda state: {"text": next(said)})
    builder.add_edge(START, "write")
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app = arbiter_os.govern(builder.compile(checkpointer=saver), instructions=instructions)
        for _ in texts:
            app.invoke({"log": []}, thread("t"))
    assert arbiter_os.drain(60)
    return list(arbiter_os.history_of(thread_id="t").items())


@pytest.mark.parametrize("instructions", [None, {"write": GENERATE}])
def test_consistency_is_with_earlier_outputs(instructions: Any) -> None:
    first, second, third = talk(
        ConsistencyEvaluator("e", "text", at_least=0.75),
        "The cat sat",
        "the CAT sat!",
        "The cat ran off",
        instructions=instructions,
    )
    assert "nothing to compare with" in problem(first)
    assert result(second).score == 1.0
    assert result(second).passed
    assert result(third).metadata["similarities"] == [2 / 5, 2 / 5]
    assert result(third).score == 2 / 5
    assert not result(third).passed


def test_consistency_compares_the_newest() -> None:
    *_, last = talk(ConsistencyEvaluator("e", "text", compare=2), "a", "b", "c", "c", "c")
    assert result(last).metadata["similarities"] == [1.0, 1.0]


def test_consistency_passes_over_what_has_no_text() -> None:
    first, second, third = talk(ConsistencyEvaluator("e", "text"), "a b", 7, "a b")
    assert "nothing to compare with" in problem(first)
    assert "is of type int; expected a text" in problem(second)
    assert result(third).metadata["similarities"] == [1.0]


def test_consistency_compares_no_text_with_a_digest() -> None:
    """A history of digests has no earlier texts: that is an error, and not a score of 0.0."""
    arbiter_os = ArbiterOS(snapshot="digest")
    arbiter_os.add_evaluator(ConsistencyEvaluator("e", "text"))
    app = arbiter_os.govern(
        chain(Spy("a", text="one"), Spy("b", text="one"), state=Draft), {"a": GENERATE, "b": GENERATE}
    )
    app.invoke({"log": []})
    for item in arbiter_os.history.items():
        assert "nothing to compare with" in problem(item)


def test_consistency_compares_with_the_same_instruction_only() -> None:
    """Also that of another node; and never with what runs beside it."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ConsistencyEvaluator("e", "log"))

    def says(text: str, state: Draft) -> dict[str, Any]:
        return {"log": [AIMessage(text)]}

    builder = StateGraph(Draft)
    for name, text in (("a", "one two"), ("check", "one three"), ("b", "one two"), ("c", "one two")):
        builder.add_node(name, partial(says, text))
    builder.add_edge(START, "a").add_edge("a", "check").add_edge("check", "b").add_edge("check", "c")
    kinds = {"a": GENERATE, "check": VERIFY, "b": GENERATE, "c": GENERATE}
    arbiter_os.govern(builder.compile(), instructions=kinds).invoke({"log": []})
    assert arbiter_os.drain(60)
    items = {item.node: item for item in arbiter_os.history.items()}
    assert "of VERIFY" in problem(items["check"])
    for name in ("b", "c"):
        assert result(items[name]).metadata["similarities"] == [1.0]


def test_consistency_has_nothing_to_compare_with_in_another_process(tmp_path: Path) -> None:
    """A fact says that a node ran, not what it wrote."""
    for _ in range(2):
        arbiter_os = ArbiterOS()  # one that remembers nothing, as in a new process
        arbiter_os.add_evaluator(ConsistencyEvaluator("e", "text"))
        with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            arbiter_os.govern(one_node({"text": "x"}, checkpointer=saver)).invoke({"log": []}, thread("t"))
            assert arbiter_os.drain(60)
        assert "nothing to compare with" in problem(arbiter_os.history.entries[-1][-1])


@given(st.text(), st.text(), st.integers(1, 4))
def test_similarity_is_a_measure(one: str, other: str, n: int) -> None:
    """From 0 to 1, the same both ways, and 1 for what is equal."""
    found = similarity(one, other, n)
    assert 0.0 <= found <= 1.0
    assert found == similarity(other, one, n)
    assert similarity(one, one, n) == 1.0


@pytest.mark.parametrize(
    ("one", "other", "n", "score"),
    [
        ("a b c", "a b d", 1, 0.5),
        ("a b c", "a b d", 2, 1 / 3),
        ("a b", "b a", 1, 1.0),
        ("a b", "b a", 2, 0.0),
        ("a", "a", 3, 1.0),
        ("", "", 1, 1.0),
        ("", "a", 1, 0.0),
        ("!!", "??", 1, 0.0),
        ("ﬁne Straße", "FINE STRASSE", 1, 1.0),
        ("我们去海边", "我们去公园", 1, 2 / 6),
        ("यह कि", "यह की", 1, 1 / 3),
    ],
)
def test_similarity_by_hand(one: str, other: str, n: int, score: float) -> None:
    assert similarity(one, other, n) == pytest.approx(score)


# Weighted


def scores(name: str, score: float, **more: Any) -> Judge:
    return Judge(name, lambda history: EvaluationResult(score, True), **more)


@MODES
@pytest.mark.parametrize("read", [False, True], ids=["unread", "read by a router"])
def test_weighted_mean_waits_for_its_parts(read: bool, mode: str) -> None:
    def slow(history: Any) -> EvaluationResult:
        time.sleep(0.05)
        return EvaluationResult(1.0, True)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(WeightedEvaluator("reward", {"slow": 3, "low": 1.0}, at_least=0.8))
    arbiter_os.add_evaluator(Judge("slow", slow))
    arbiter_os.add_evaluator(scores("low", 0.0))
    if read:
        arbiter_os.add_policy_router(EvaluationRouter("r", "reward", "fix", target_nodes=["write"]))
    app = arbiter_os.govern(chain(Spy("write"), extra=[Spy("fix")]))
    assert run(app, {"log": []}, mode=mode)["log"] == (["write", "fix"] if read else ["write"])
    assert arbiter_os.drain(60)
    found = result(arbiter_os.history.entries[0][0], "reward")
    assert (found.score, found.passed) == (0.75, False)
    assert found.metadata == {"scores": {"slow": 1.0, "low": 0.0}, "skipped": []}
    assert found.feedback == "0.75 (✗ at_least=0.8) of slow=1.00×3, low=0.00×1"


def fails(_: Any) -> EvaluationResult:
    raise ValueError("no idea")


@pytest.mark.parametrize("part", [Judge("part", fails), Judge("part", good, target_nodes=["other"])])
def test_weighted_part_without_a_result_is_neither_0_nor_1(part: Judge) -> None:
    """It makes the whole an error, or is left out of the mean when that was asked for."""
    parts = [scores("known", 0.4), part]
    weights = {"known": 1.0, "part": 9.0}
    strict, lenient = (
        WeightedEvaluator("e", weights),
        WeightedEvaluator("lenient", weights, missing="skip"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ArbiterWarning
        )  # that a part judges no node of this graph is warned of
        item = judged(strict, {"text": "x"}, lenient, *parts)
    assert "'part' gave no result" in problem(item)
    found = item.evaluation_results["lenient"]
    assert (found.score, found.metadata["skipped"]) == (0.4, ["part"])


def test_weighted_mean_of_nothing_is_an_error() -> None:
    elsewhere = [Judge(name, good, target_nodes=["other"]) for name in ("a", "b")]
    with pytest.warns(ArbiterWarning, match="there is no node 'other'"):
        item = judged(WeightedEvaluator("e", {"a": 1, "b": 1}, missing="skip"), {"text": "x"}, *elsewhere)
    assert "none of 'a', 'b' gave a result" in problem(item)


@pytest.mark.parametrize("missing", ["error", "skip"])
@pytest.mark.parametrize("score", [1.01, -0.1, 7, 1e300])
def test_weighted_part_outside_its_range_is_an_error(score: float, missing: Any) -> None:
    """A threshold's score is the number itself, which need not be a part of 1."""
    item = judged(WeightedEvaluator("e", {"a": 1}, missing=missing), {"text": "x"}, scores("a", score))
    assert f"'a' scored {score:g}" in problem(item)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1e6, exclude_min=True, allow_subnormal=False)), min_size=1
    )
)
def test_weighted_mean_is_between_its_parts(parts: list[tuple[float, float]]) -> None:
    weights = {f"p{number}": weight for number, (_, weight) in enumerate(parts)}
    evaluator = WeightedEvaluator("e", weights)
    found = evaluator.evaluate(scored({f"p{n}": score for n, (score, _) in enumerate(parts)}))
    inner = [score for score, _ in parts]
    assert min(inner) - 1e-9 <= found.score <= max(inner) + 1e-9
    assert 0.0 <= found.score <= 1.0


def scored(by: Mapping[str, float]) -> History:
    """A history whose last item was scored so."""
    results = Results({name: EvaluationResult(score, True) for name, score in by.items()})
    history = History()
    history.entries = [[HistoryItem(Record("1", "write", None, 1, "", 0.0), evaluations=results)]]
    return history


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(0, 100))
def test_weighted_parts_that_agree_pass_what_they_agree_on(weights: list[int], percent: int) -> None:
    """0.7 × 0.8 + 0.3 × 0.8 is 0.8, whatever the last digit of the sum says."""
    score = percent / 100
    named = {f"p{number}": weight / 100 for number, weight in enumerate(weights)}
    evaluator = WeightedEvaluator("e", named, at_least=score)
    found = evaluator.evaluate(scored(dict.fromkeys(named, score)))
    assert found.passed
    assert found.score == score


@pytest.mark.lengthy
@MODES
def test_weighted_circle_is_an_error_and_no_hang(mode: str) -> None:
    one = WeightedEvaluator("one", {"two": 1}, deadline=0.5)
    two = WeightedEvaluator("two", {"one": 1}, deadline=0.5)
    item = judged(one, {"text": "x"}, two, mode=mode)
    assert set(item.evaluation_errors) == {"one", "two"}
    assert not item.evaluation_results


@MODES
def test_weighted_circle_that_is_waited_for_is_found_at_once(mode: str) -> None:
    """An evaluator that comes back to itself has no result, and does not wait for one."""
    one = WeightedEvaluator("one", {"two": 1}, durable=True)
    item = judged(one, {"text": "x"}, WeightedEvaluator("two", {"one": 1}), mode=mode)
    assert "'two' gave no result" in problem(item, "one")
    assert "'one' gave no result" in problem(item, "two")


def test_weighted_in_weighted() -> None:
    item = judged(
        WeightedEvaluator("e", {"inner": 1, "b": 1}),
        {"text": "x"},
        WeightedEvaluator("inner", {"a": 1, "b": 3}),
        scores("a", 1.0),
        scores("b", 0.0),
    )
    assert result(item).score == 0.125


# Parameters


NAN, INF = math.nan, math.inf

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (ThresholdEvaluator, {"key": "k", "threshold": NAN}, "threshold"),
    (ThresholdEvaluator, {"key": "k", "threshold": True}, "threshold"),
    (ThresholdEvaluator, {"key": "k", "threshold": "1"}, "threshold"),
    (ThresholdEvaluator, {"key": "k", "threshold": None}, "threshold"),
    (LengthEvaluator, {"key": "k"}, "at_least"),
    (LengthEvaluator, {"key": "k", "at_least": -1}, "at_least"),
    (LengthEvaluator, {"key": "k", "at_least": 1.5}, "at_least"),
    (LengthEvaluator, {"key": "k", "at_most": True}, "at_most"),
    (LengthEvaluator, {"key": "k", "at_most": NAN}, "at_most"),
    (LengthEvaluator, {"key": "k", "at_least": 3, "at_most": 2}, "at_least"),
    (LengthEvaluator, {"key": "k", "at_most": 2, "unit": "tokens"}, "unit"),
    (LatencyEvaluator, {"at_most": 0}, "at_most"),
    (LatencyEvaluator, {"at_most": INF}, "at_most"),
    (LatencyEvaluator, {"at_most": "1 s"}, "at_most"),
    (CostEvaluator, {"at_most": 0}, "at_most"),
    (CostEvaluator, {"at_most": 1, "unit": "eur"}, "unit"),
    (CostEvaluator, {"at_most": 1, "prices": {"m": Price(1, 1)}}, "prices"),
    (CostEvaluator, {"at_most": 1, "unit": "usd", "prices": {}}, "prices"),
    (CostEvaluator, {"at_most": 1, "unit": "usd", "prices": [1]}, "prices"),
    (CostEvaluator, {"at_most": 1, "unit": "usd", "prices": {"m": 1}}, "prices['m']"),
    (CostEvaluator, {"at_most": 1, "unit": "usd", "prices": {"m": {"input": 1}}}, "prices['m']"),
    (CostEvaluator, {"at_most": 1, "unit": "usd", "prices": {"m": Price(1, -1)}}, "prices['m'].output"),
    (CostEvaluator, {"at_most": 1, "unit": "usd", "prices": {"m": Price(True, 1)}}, "prices['m'].input"),
    (ConsistencyEvaluator, {"key": "k", "at_least": 1.1}, "at_least"),
    (ConsistencyEvaluator, {"key": "k", "compare": 0}, "compare"),
    (ConsistencyEvaluator, {"key": "k", "ngram": 1.0}, "ngram"),
    (WeightedEvaluator, {"weights": {}}, "weights"),
    (WeightedEvaluator, {"weights": ["a"]}, "weights"),
    (WeightedEvaluator, {"weights": {1: 1}}, "weights"),
    (WeightedEvaluator, {"weights": {"a": 0}}, "weights['a']"),
    (WeightedEvaluator, {"weights": {"a": -1}}, "weights['a']"),
    (WeightedEvaluator, {"weights": {"a": NAN}}, "weights['a']"),
    (WeightedEvaluator, {"weights": {"a": True}}, "weights['a']"),
    (WeightedEvaluator, {"weights": {"e": 1}}, "weights['e']"),
    (WeightedEvaluator, {"weights": {"a": 1}, "at_least": NAN}, "at_least"),
    (WeightedEvaluator, {"weights": {"a": 1}, "missing": "zero"}, "missing"),
]


@pytest.mark.parametrize(("kind", "given", "parameter"), WRONG)
def test_wrong_parameter_is_refused_by_name(kind: Any, given: dict[str, Any], parameter: str) -> None:
    """Before the first node runs."""
    with pytest.raises(ParameterError) as refused:
        kind("e", **given)
    assert (refused.value.owner, refused.value.parameter) == ("evaluator 'e'", parameter)
    assert "expected" in refused.value.problem


def test_a_name_that_is_no_text_is_refused() -> None:
    name: Any = ["e"]
    with pytest.raises(RegistrationError, match=r"has the name \['e'\]; expected a non-empty text"):
        ArbiterOS().add_evaluator(WeightedEvaluator(name, {"a": 1}))


def test_targets_and_deadline_reach_the_evaluator() -> None:
    more: dict[str, Any] = {
        "target_instructions": ["GENERATE"],
        "target_nodes": ["write"],
        "durable": True,
        "deadline": 3.0,
    }
    for evaluator in (
        LengthEvaluator("e", "k", at_most=1, **more),
        LatencyEvaluator("e", 1, **more),
        CostEvaluator("e", 1, **more),
        ConsistencyEvaluator("e", "k", **more),
        WeightedEvaluator("e", {"a": 1}, **more),
    ):
        assert evaluator.target_instructions == (GENERATE,)
        assert (evaluator.target_nodes, evaluator.durable, evaluator.deadline) == (("write",), True, 3.0)


def test_message_without_a_text_has_no_words() -> None:
    """A tool call alone is an empty text."""
    call = tool_call("transfer", {"to": "Ann"})
    found = result(judged(LengthEvaluator("e", "text", at_least=1, unit="words"), {"text": call}))
    assert (found.score, found.passed) == (0.0, False)


def test_failed_parts_are_named_beside_those_that_passed() -> None:
    item = judged(LengthEvaluator("e", "text", at_most=5), {"other": 1}, Judge("bad", bad))
    assert set(item.evaluation_results) == {"bad"}
    assert set(item.evaluation_errors) == {"e"}
