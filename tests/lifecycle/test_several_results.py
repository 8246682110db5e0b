"""Evaluators that return a bool, a number, or several results by name."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import pickle
from io import StringIO
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from rich.console import Console

from arbiter import (
    ArbiterOS,
    ConfigurationError,
    EvaluationResult,
    EvaluationRouter,
    EvaluatorGate,
    History,
    MetricThresholdPolicyRouter,
    PolicyRouter,
    Verdict,
)
from arbiter.checkers import RequireBefore
from arbiter.errors import MissingEvaluationError
from arbiter.evaluators import WeightedEvaluator
from tests.support import MODES, Check, Judge, Route, Spy, State, chain, governed, run, thread


def style(*_: Any) -> dict[str, Any]:
    return {"brief": True, "polite": 0.75, "clear": EvaluationResult(0.25, False, "a riddle")}


def results(arbiter_os: ArbiterOS, node: str = "a") -> dict[str, tuple[float, bool | None]]:
    item = arbiter_os.history.last(node=node)
    assert item is not None
    return {name: (found.score, found.passed) for name, found in item.evaluation_results.items()}


@MODES
@pytest.mark.parametrize(
    ("answer", "score", "passed"), [(True, 1.0, True), (False, 0.0, False), (3, 3, None)]
)
def test_a_bool_passes_or_fails_and_a_number_is_a_score_without_judgement(
    mode: str, answer: Any, score: float, passed: bool | None
) -> None:
    arbiter_os, app = governed(chain(Spy("a")), Judge("judge", lambda _: answer))
    run(app, {"log": []}, mode=mode)
    assert results(arbiter_os) == {"judge": (score, passed)}


@MODES
@pytest.mark.parametrize("is_async", [False, True])
def test_several_results_are_named_by_evaluator_and_key(mode: str, is_async: bool) -> None:
    async def later(_: History) -> Any:
        return style()

    arbiter_os, app = governed(chain(Spy("a")), Judge("style", later if is_async else style))
    run(app, {"log": []}, mode=mode)
    assert results(arbiter_os) == {
        "style.brief": (1.0, True),
        "style.polite": (0.75, None),
        "style.clear": (0.25, False),
    }


def test_reading_one_result_runs_its_evaluator_alone() -> None:
    asked: list[str] = []
    seen: list[Any] = []

    def judge(name: str) -> Judge:
        def evaluate(_: History) -> Any:
            asked.append(name)
            return {"brief": True}

        return Judge(name, evaluate)

    def read(history: History, _: Any) -> None:
        results = history.item.evaluation_results
        seen.append((results["style.brief"].passed, "style.polite" in results, list(asked)))

    _, app = governed(chain(Spy("a")), judge("other"), judge("style"), Route("reader", read))
    app.invoke({"log": []})
    assert seen == [(True, False, ["style"])]


@pytest.mark.parametrize("broken", [math.nan, math.inf, "good", None, EvaluationResult(math.nan, True)])
def test_a_result_that_is_no_result_is_an_error_of_its_own(broken: Any) -> None:
    arbiter_os, app = governed(chain(Spy("a")), Judge("style", lambda _: {"brief": True, "polite": broken}))
    app.invoke({"log": []})
    item = arbiter_os.history.item
    assert list(item.evaluation_results) == ["style.brief"]
    assert item.evaluation_errors.keys() == {"style.polite"}
    assert "evaluator 'style' returned" in item.evaluation_errors["style.polite"]
    with pytest.raises(MissingEvaluationError, match=r"evaluator 'style' gave no result 'style.polite'"):
        item.evaluation_results["style.polite"]


@pytest.mark.parametrize("broken", [math.nan, -math.inf, "good", None, [1.0], {1: True}, {"": 0.5}])
def test_an_answer_that_is_no_result_is_an_error(broken: Any) -> None:
    arbiter_os, app = governed(chain(Spy("a")), Judge("style", lambda _: broken))
    app.invoke({"log": []})
    assert dict(arbiter_os.history.item.evaluation_results) == {}
    assert "evaluator 'style' returned" in arbiter_os.history.item.evaluation_errors["style"]


def test_an_evaluator_may_find_nothing_to_judge() -> None:
    arbiter_os, app = governed(chain(Spy("a")), Judge("style", lambda _: {}))
    app.invoke({"log": []})
    item = arbiter_os.history.item
    assert (dict(item.evaluation_results), dict(item.evaluation_errors)) == ({}, {})


def test_a_name_that_another_evaluator_has_is_an_error_with_a_remedy() -> None:
    arbiter_os, app = governed(
        chain(Spy("a")), Judge("style", style), Judge("style.brief", lambda _: EvaluationResult(0.5, False))
    )
    app.invoke({"log": []})
    item = arbiter_os.history.item
    assert item.evaluation_results["style.brief"].score == 0.5
    assert item.evaluation_results["style.polite"].score == 0.75
    logged = item.evaluation_errors["style.brief"]
    assert "'style.brief' is another evaluator. Rename one of the two" in logged


@MODES
@pytest.mark.parametrize("answer", [{"c": 0.5}, {"d": 0.5}, 0.5], ids=str)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_name_below_that_of_another_evaluator_is_an_error_with_a_remedy(
    mode: str, is_first: bool, answer: Any
) -> None:
    """The name would be read from the other evaluator, whether or not that one gives it."""
    judges = [Judge("a", lambda _: {"b.c": 0.25, "e": 0.75}), Judge("a.b", lambda _: answer)]
    arbiter_os, app = governed(chain(Spy("a")), *(judges if is_first else reversed(judges)))
    run(app, {"log": []}, mode=mode)
    item = arbiter_os.history.item
    other = "a.b" if answer == 0.5 else f"a.b.{next(iter(answer))}"
    found = {name: result.score for name, result in item.evaluation_results.items()}
    assert found == {"a.e": 0.75, other: 0.5}
    assert len(item.evaluation_results) == 2
    copied = pickle.loads(pickle.dumps(item.evaluation_results))
    assert {name: result.score for name, result in copied.items()} == found
    assert "'a.b' is another evaluator. Rename one of the two" in item.evaluation_errors["a.b.c"]


def test_a_broken_result_has_the_version_of_its_own_evaluator() -> None:
    """Also where its name is that of another evaluator."""

    class Style(Judge):
        version = "of style"

    class Brief(Judge):
        version = "of brief"

    arbiter_os, app = governed(
        chain(Spy("a")), Style("style", style), Brief("style.brief", lambda _: {"words": 0.5})
    )
    app.invoke({"log": []})
    evaluations: Any = arbiter_os.history.item.evaluation_results
    len(evaluations)
    done = [(each.name, each.result is None, each.version) for each in evaluations.judgements()]
    assert ("style.brief", True, "of style") in done
    assert ("style.brief.words", False, "of brief") in done


def test_a_result_that_is_false_in_a_boolean_context_is_a_result() -> None:
    """Its class may define `__bool__` by `passed`."""

    class Judged(EvaluationResult):
        def __bool__(self) -> bool:
            return self.passed is True

    arbiter_os, app = governed(chain(Spy("a")), Judge("judge", lambda _: Judged(0.25, False)))
    app.invoke({"log": []})
    item = arbiter_os.history.item
    assert results(arbiter_os) == {"judge": (0.25, False)}
    assert list(item.read_results) == ["judge"]


def test_reading_by_the_name_of_the_evaluator_says_what_there_is() -> None:
    arbiter_os, app = governed(chain(Spy("a")), Judge("style", style))
    app.invoke({"log": []})
    read = arbiter_os.history.item.evaluation_results
    assert read.get("style") is None
    with pytest.raises(MissingEvaluationError, match=r"the evaluator gave 'style.brief', 'style.polite', "):
        read["style"]
    with pytest.raises(KeyError, match="nonsense"):
        read["nonsense"]


@MODES
@pytest.mark.parametrize(("wanted", "ran"), [("style.clear", ["a", "fix"]), ("style.brief", ["a"])])
def test_a_router_reads_one_of_several_results(mode: str, wanted: str, ran: list[str]) -> None:
    arbiter_os, app = governed(
        chain(Spy("a"), extra=[Spy("fix")]),
        Judge("style", style, target_nodes=["a"]),
        EvaluationRouter("quality", wanted, "fix"),
    )
    assert run(app, {"log": []}, mode=mode)["log"] == ran
    assert arbiter_os.history.item.errors == {}


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("style", "it reads 'style', but the evaluator gave 'style.brief'"),
        ("style.short", "it reads 'style.short', but the evaluator gave 'style.brief'"),
        ("style.polite", "evaluator 'style.polite' gave a score without saying whether it passed"),
        ("other.part", "it reads 'other.part', but the evaluator gave one result, 'other'"),
    ],
)
def test_a_router_that_finds_no_judgement_under_a_name_says_so(wanted: str, problem: str) -> None:
    arbiter_os, app = governed(
        chain(Spy("a"), extra=[Spy("fix")]),
        Judge("style", style),
        Judge("other", lambda _: True),
        EvaluationRouter("quality", wanted, "fix"),
    )
    assert app.invoke({"log": []})["log"] == ["a"]
    assert problem in arbiter_os.history.item.errors["router quality"]


def test_a_rule_that_reads_a_result_of_no_evaluator_is_refused() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("style", style))
    arbiter_os.add_policy_router(EvaluationRouter("quality", "stile.brief", "fix"))
    with pytest.raises(ConfigurationError, match=r"evaluator 'stile.brief', which is not registered"):
        arbiter_os.govern(chain(Spy("a"), extra=[Spy("fix")]))


@MODES
@pytest.mark.parametrize("durable", [False, True])
def test_later_nodes_find_several_results_that_were_read_or_are_durable(mode: str, durable: bool) -> None:
    """They find them in another process too, and all of one evaluator together."""
    found: list[Any] = []

    def look(history: History, _: Any) -> None:
        past = next(history.earlier(), None)
        if past is not None:
            found.append({name: (r.score, r.passed) for name, r in past.evaluation_results.items()})

    def read(history: History, _: Any) -> None:
        if not durable:
            history.item.evaluation_results["style.brief"]

    saver = InMemorySaver()
    graph = chain(Spy("a"), Spy("b"), checkpointer=saver, interrupt_before=["b"])
    contracts = (
        Judge("style", style, target_nodes=["a"], durable=durable),
        Judge("unread", style, target_nodes=["a"]),
        Route("reader", read, target_nodes=["a"]),
        Route("looker", look, target_nodes=["b"]),
    )
    run(governed(graph, *contracts)[1], {"log": []}, thread("1"), mode=mode)
    run(governed(graph, *contracts)[1], None, thread("1"), mode=mode)
    assert found == [{"style.brief": (1.0, True), "style.polite": (0.75, None), "style.clear": (0.25, False)}]


@MODES
def test_an_evaluator_that_a_human_was_shown_is_not_asked_again(mode: str) -> None:
    asked: list[str] = []

    class Ask(PolicyRouter):
        escalates = True

        def route_after(self, history: History, current_output: Any) -> Any:
            return Verdict.ask(f"{history.item.evaluation_results['style.polite'].score}")

    def judge(_: History) -> Any:
        asked.append("style")
        return style()

    graph = chain(Spy("a"), checkpointer=InMemorySaver())
    arbiter_os, app = governed(graph, Judge("style", judge), Ask("ask"))
    run(app, {"log": []}, thread("1"), mode=mode)
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["a"]
    assert arbiter_os.drain(60)
    assert asked == ["style"]
    assert len(results(arbiter_os)) == 3


def test_a_step_has_passed_by_one_of_several_results() -> None:
    def app(evaluator: str) -> Any:
        return governed(
            chain(Spy("a"), Spy("b")),
            Judge("style", style, target_nodes=["a"]),
            RequireBefore("first", "node:a", evaluator=evaluator, target_nodes=["b"]),
        )[1]

    assert app("style.brief").invoke({"log": []})["log"] == ["a", "b"]
    for refused in ("style.clear", "style.polite"):
        with pytest.raises(RuntimeError, match="has not passed"):
            app(refused).invoke({"log": []})


def test_weights_read_several_results() -> None:
    arbiter_os, app = governed(
        chain(Spy("a")),
        Judge("style", style),
        WeightedEvaluator("reward", {"style.brief": 1, "style.polite": 1}, at_least=0.8),
    )
    app.invoke({"log": []})
    assert arbiter_os.history.item.evaluation_results["reward"].score == 0.875


def test_the_best_attempt_is_found_by_one_of_several_results() -> None:
    scores = iter([0.2, 0.9, 0.4])

    class Draft(Spy):
        def __call__(self, state: Any) -> dict[str, Any]:
            return {"log": ["a"], "score": next(scores)}

    builder: Any = StateGraph(State)
    builder.add_node("a", Draft("a"))
    builder.add_edge(START, "a")
    _, app = governed(
        builder.compile(checkpointer=InMemorySaver()),
        Judge("style", lambda h: {"good": EvaluationResult(h.item.output_state["score"], False)}),
        MetricThresholdPolicyRouter(
            "again", "score", 1.0, "a", max_redirects=2, on_cap="best_attempt", best_by="style.good"
        ),
    )
    assert app.invoke({"log": []}, thread("1"))["score"] == 0.9


def test_an_audited_evaluator_shows_none_of_its_results_to_a_router() -> None:
    seen: list[Any] = []

    def read(history: History, _: Any) -> None:
        results = history.item.evaluation_results
        seen.append((results.get("style.brief"), list(results), "style.brief" in results))

    evaluator = Judge("style", style)
    evaluator.mode = "audit"
    arbiter_os, app = governed(chain(Spy("a")), evaluator, Route("reader", read))
    app.invoke({"log": []})
    assert seen == [(None, [], False)]
    assert len(results(arbiter_os)) == 3


@MODES
def test_a_failed_result_of_an_audited_evaluator_is_hidden_from_a_router(mode: str) -> None:
    evaluator = Judge("style", lambda _: {"brief": True, "polite": "very"})
    evaluator.mode = "audit"
    arbiter_os, app = governed(
        chain(Spy("a"), Spy("b"), extra=[Spy("c")]),
        evaluator,
        Route("careful", lambda h, _: "c" if h.item.evaluation_errors else None, target_nodes=["a"]),
    )
    assert run(app, {"log": []}, mode=mode)["log"] == ["a", "b"]
    assert list(arbiter_os.history.entries[0][0].evaluation_errors) == ["style.polite"]


def test_one_of_several_results_is_awaited_without_blocking_the_loop() -> None:
    found: list[Any] = []

    async def later(_: History) -> Any:
        await asyncio.sleep(0.01)
        return style()

    class Reader(PolicyRouter):
        async def route_after(self, history: History, current_output: Any) -> None:
            results = history.item.evaluation_results
            found.append((await results.aget("style.clear"), await results.aget("style.none")))

    _, app = governed(chain(Spy("a")), Judge("style", later), Reader("reader"))
    asyncio.run(app.ainvoke({"log": []}))
    assert found == [(EvaluationResult(0.25, False, "a riddle"), None)]


def test_copied_histories_keep_several_results() -> None:
    arbiter_os, app = governed(chain(Spy("a")), Judge("style", lambda _: {"brief": True, "broken": "?"}))
    app.invoke({"log": []})
    item = pickle.loads(pickle.dumps(arbiter_os.history)).item
    assert list(item.evaluation_results) == ["style.brief"]
    assert list(item.evaluation_errors) == ["style.broken"]
    assert item.to_dict()["evaluation_results"]["style.brief"]["passed"] is True


def test_a_rule_that_reads_one_of_several_results_has_no_finding() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("style", style))
    arbiter_os.add_policy_router(EvaluationRouter("quality", "style.brief", "fix", target_nodes=["a"]))
    arbiter_os.add_policy_checker(Check("yes", lambda _: True))
    report = arbiter_os.lint(chain(Spy("a"), extra=[Spy("fix")]))
    assert not [finding for finding in report if "style" in str(finding)]


def test_printed_history_shows_several_results_and_marks_a_score_alone() -> None:
    arbiter_os, app = governed(chain(Spy("a")), Judge("style", style))
    app.invoke({"log": []})
    console = Console(file=StringIO(), width=100)
    arbiter_os.history.pprint(console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "✓ style.brief: score=1.00" in text
    assert "- style.polite: score=0.75" in text
    assert "✗ style.clear: score=0.25 - a riddle" in text


def test_a_gate_lets_a_draft_pass_when_all_results_passed() -> None:
    answers = iter([{"short": False, "kind": True}, {"short": True, "kind": True}])
    a = Spy("a")
    app = governed(chain(a), EvaluatorGate("gate", Judge("style", lambda _: next(answers))))[1]
    app.invoke({"log": []})
    assert len(a.calls) == 2


def test_results_inside_a_subgraph_are_named_alike() -> None:
    inner = chain(Spy("a"))
    builder: Any = StateGraph(State)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    arbiter_os, app = governed(
        builder.compile(),
        Judge("style", style, target_nodes=["a"]),
        EvaluationRouter("q", "style.brief", "a"),
    )
    app.invoke({"log": []})
    assert results(arbiter_os)["style.brief"] == (1.0, True)


def test_a_result_can_be_subclassed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Judged(EvaluationResult):
        by: str = "somebody"

    assert dataclasses.replace(Judged(0.5, True), by="me") == Judged(0.5, True, by="me")
    assert [f.name for f in dataclasses.fields(EvaluationResult)] == [
        "score",
        "passed",
        "feedback",
        "metadata",
        "outcome",
    ]
