"""A suite runs a target on its cases and reports what its scorers found."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import json
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, ItemsView, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt
from rich.console import Console

from arbiter import (
    ArbiterOS,
    ConfigurationError,
    History,
    PolicyChecker,
    PolicyViolationError,
    Verdict,
)
from arbiter.evaluation import GroupOutcome
from arbiter.harness import Case, CaseRun, Limits, Report, Score, Selection, Suite, limits, local, running
from arbiter.harness.journal import run_folder
from arbiter.harness.reports import junit
from arbiter.harness.reports.markdown import render
from arbiter.harness.reports.report import load_report
from arbiter.harness.reports.texts import remarks
from arbiter.harness.scores import NINE
from arbiter.instructions import GENERATE
from tests.support import MODES, PATIENCE, Chat, Check, Judge, Route, Spy, State, chain, good, until


def ran(suite: Suite, target: Any = None, *, mode: str = "sync", **options: Any) -> Report:
    if mode == "sync":
        return suite.run(target, **options)
    return asyncio.run(suite.arun(target, **options))


def missing(report: Report, row: str) -> dict[str, int]:
    return {outcome: count for outcome, count in report.rows[row].outcomes.items() if outcome != "scored"}


def capital(question: str) -> str:
    return "Paris" if "France" in question else "I do not know"


async def acapital(question: str) -> str:
    await asyncio.sleep(0)
    return capital(question)


def same(given: Any) -> Any:
    return given


async def asame(given: Any) -> Any:
    return given


def text() -> str:
    return "text"


async def makes_later() -> Any:
    return chain(Spy("plan"))


def text_or(given: str = "text") -> str:
    return given


def parts(given: Any) -> Iterator[Any]:
    yield given


async def aparts(given: Any) -> AsyncIterator[Any]:
    yield given


CAPITALS = (
    Case("france", "What is the capital of France?", expected="Paris"),
    Case("spain", "What is the capital of Spain?", expected="Madrid"),
)


def right(run: CaseRun) -> bool:
    return run.expected in run.output


async def aright(run: CaseRun) -> bool:
    await asyncio.sleep(0)
    return right(run)


@MODES
@pytest.mark.parametrize("target", [capital, acapital])
@pytest.mark.parametrize("scorer", [right, aright])
def test_a_function_is_measured(mode: str, target: Any, scorer: Any) -> None:
    report = ran(Suite("capitals", CAPITALS, scorers={"right": scorer}), target, mode=mode)
    assert report.rows["right"].cases == {"france": (1.0,), "spain": (0.0,)}
    assert [result.status for result in report.results] == ["completed", "completed"]
    assert report.rows["completed"].cases == {"france": (1.0,), "spain": (1.0,)}


@MODES
def test_a_graph_is_governed_and_its_online_evaluations_are_rows(mode: str) -> None:
    """The evaluator is the same object as online, and its scores are those of the history."""
    long = Judge("long", lambda history: len(history.item.output_state["log"]) / 10, target_nodes=["write"])
    graph = chain(Spy("plan"), Spy("write"))
    report = ran(Suite("graph", [Case("a", {"log": []})], evaluators=[long]), graph, mode=mode)
    assert report.rows["long"].cases == {"a": (0.1,)}
    (score,) = report.results[0].scored("long")
    assert (score.node, score.step) == ("write", 2)


def test_an_evaluator_that_judged_several_node_runs_counts_with_their_mean() -> None:
    step = Judge("step", lambda history: 1.0 if history.item.node == "plan" else 0.0)
    report = Suite("graph", [Case("a", {"log": []})], evaluators=[step]).run(chain(Spy("plan"), Spy("write")))
    assert report.rows["step"].cases == {"a": (0.5,)}
    assert [score.node for score in report.results[0].scores] == ["plan", "write"]


def test_a_governed_graph_keeps_its_own_rules() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("kind", good))
    graph = arbiter_os.govern(chain(Spy("plan")))
    assert Suite("graph", [Case("a", {"log": []})]).run(graph).rows["kind"].cases == {"a": (1.0,)}
    with pytest.raises(ConfigurationError, match="governed already, and the suite has evaluators"):
        Suite("graph", [Case("a", {"log": []})], evaluators=[Judge("other", good)]).run(graph)
    report = Suite("graph", [Case("a", {"log": []})], evaluators=["kind"]).run(graph, arbiter_os=arbiter_os)
    assert report.rows["kind"].cases == {"a": (1.0,)}


def test_an_evaluator_name_that_does_not_exist_is_refused_before_anything_runs() -> None:
    spy = Spy("plan")
    with pytest.raises(ConfigurationError, match="no evaluator is named 'tone'"):
        Suite("graph", [Case("a", {"log": []})], evaluators=["tone"]).run(chain(spy))
    assert spy.calls == []


def test_the_last_ai_message_is_the_output() -> None:
    def write(state: Chat) -> Chat:
        return {"messages": [AIMessage("Hello.")]}

    report = Suite("chat", [Case("a", {"messages": [["user", "Hi"]]})]).run(chain(write, state=Chat))
    assert report.results[0].output == "Hello."


def test_recorded_outputs_are_judged() -> None:
    report = Suite("capitals", CAPITALS, scorers=[right]).run({"france": "Paris", "spain": "Rome"})
    assert report.rows["right"].cases == {"france": (1.0,), "spain": (0.0,)}


def test_a_function_that_returns_a_graph_is_called_once_per_worker() -> None:
    made: list[Any] = []

    def build() -> Any:
        made.append(chain(Spy("plan")))
        return made[-1]

    cases = [Case(f"case-{number}", {"log": []}) for number in range(8)]
    report = Suite("graphs", cases, limits=Limits(concurrency=2)).run(build)
    assert [result.status for result in report.results] == ["completed"] * 8
    assert 1 <= len(made) <= 2


# How a run ends -----------------------------------------------------------------------------------


def failing(_: Any) -> None:
    raise ValueError("boom")


@pytest.mark.parametrize("expect", [{"raises": "ValueError"}, {"completes": True}])
def test_a_target_that_raises_has_failed(expect: dict[str, Any]) -> None:
    suite = Suite("failing", [Case("a", 1, expect=expect)], scorers={"never": lambda run: 1 / 0})
    (result,) = suite.run(failing).results
    assert (result.status, result.error) == ("failed", "ValueError: boom")
    assert result.as_expected == ("raises" in expect)
    assert [(score.name, score.passed) for score in result.scores] == [
        (f"expect.{key}", key == "raises") for key in expect
    ]


class Ended(BaseException):
    pass


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Ended]
)
@pytest.mark.parametrize("part", ["target", "scorer"])
def test_what_ends_a_program_ends_a_case(kind: type[BaseException], is_async: bool, part: str) -> None:
    def end(given: Any) -> str:
        raise kind("so")

    async def aend(given: Any) -> str:
        return end(given)

    ending = aend if is_async else end
    given = [Case("a", "A"), Case("b", "B")]
    if part == "target":
        results = Suite("ending", given).run(ending).results
        assert [result.status for result in results] == ["failed", "failed"]
        found = [result.error for result in results]
    else:
        results = Suite("ending", given, scorers={"ends": ending}).run(acapital if is_async else same).results
        found = [result.scored("ends")[0].reason for result in results]
    assert [kind.__name__ in str(each) for each in found] == [True, True]


@pytest.mark.parametrize("waits", ["in a thread", "whatever is cancelled"])
def test_nothing_holds_up_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch, waits: str) -> None:
    """A coroutine that cannot be cancelled and a thread that does not return are left behind."""
    monkeypatch.setattr(running, "GRACE", 0.05)
    monkeypatch.setattr(local, "_END", 0.05)
    returns = threading.Event()

    async def stuck(given: Any) -> None:
        if waits == "in a thread":
            await asyncio.to_thread(returns.wait)
        while not returns.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)

    try:
        report = Suite("stuck", [Case("a", 1)], limits=Limits(case_timeout=0.05)).run(stuck)
    finally:
        returns.set()
    assert report.results[0].status == "timeout"


def test_a_generator_is_no_answer() -> None:
    def parts(given: str) -> Iterator[str]:
        return (part for part in given)

    report = Suite("parts", [Case("a", "abc")]).run(parts)
    assert report.results[0].error == (
        "TypeError: the target returned a generator; expected a function that returns the whole answer"
    )


class Strict(PolicyChecker):
    def check_before(self, history: History) -> Verdict:
        return Verdict.deny("no money")


@MODES
@pytest.mark.parametrize("expect", [{"denied_by": "strict"}, {"denied_by": "mild"}, {"completes": True}])
def test_a_denied_run_is_no_error(mode: str, expect: dict[str, Any]) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Strict("strict"))
    arbiter_os.add_policy_checker(Check("mild", lambda _: Verdict.allow()))
    suite = Suite("denied", [Case("a", {"log": []}, expect=expect)])
    (result,) = ran(suite, chain(Spy("pay")), mode=mode, arbiter_os=arbiter_os).results
    assert (result.status, result.error) == ("denied", None)
    assert result.as_expected == result.passed == (expect == {"denied_by": "strict"})


@MODES
def test_a_report_says_that_a_denial_is_why_a_case_is_not_judged(mode: str) -> None:
    def refused(given: Any) -> Any:
        raise PolicyViolationError(policy="strict", node="pay", reason="no money")

    def broken(given: Any) -> Any:
        raise ValueError("no money")

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Strict("strict"))
    governed = arbiter_os.govern(chain(Spy("pay")))
    for target in (governed, refused):
        suite = Suite("denied", [Case("a", {"log": []})], scorers={"brief": lambda run: True})
        said = render(ran(suite, target, mode=mode))
        assert "a: denied by 'strict'" in said
        assert "not judged: brief 1 error (1 denied)" in said
    assert "(1 failed)" in render(ran(suite, broken, mode=mode))


@MODES
def test_a_report_says_which_of_the_judgements_that_are_missing_a_failure_explains(mode: str) -> None:
    def broken(given: Any) -> Any:
        if given == "fail":
            raise ValueError("no money")
        return given

    def brief(run: CaseRun) -> Score:
        return Score("", outcome="abstained")

    suite = Suite("mixed", [Case("a", "fail"), Case("b", "go")], scorers={"brief": brief})
    assert "brief 1 error (1 failed), 1 abstained" in render(ran(suite, broken, mode=mode))


@MODES
@pytest.mark.parametrize("asks", ["checker", "node", "checker that no case expects"])
def test_a_run_that_waits_for_a_human_does_not_hang(mode: str, asks: str) -> None:
    def question(state: State) -> State:
        interrupt("Really?")
        return {"log": ["asked"]}

    arbiter_os = ArbiterOS()
    answer = Verdict.allow() if asks == "node" else Verdict.ask("Really?")
    arbiter_os.add_policy_checker(Check("four_eyes", lambda _: answer))
    expect = {"waits_for": "four_eyes"} if asks in ("checker", "node") else {}
    suite = Suite("waits", [Case("a", {"log": []}, expect=expect)])
    graph = chain(question if asks == "node" else Spy("pay"))
    (result,) = ran(suite, graph, mode=mode, arbiter_os=arbiter_os).results
    assert result.status == "waits"
    assert result.as_expected == (asks == "checker")


@MODES
def test_a_graph_whose_state_cannot_be_saved_runs_under_checkers(mode: str) -> None:
    """A graph without a checkpointer may hold locks, connections and functions in its state."""

    def hold(state: State) -> Any:
        return {"log": [threading.Lock()]}

    def use(state: State) -> Any:
        with cast(Any, state)["log"][-1]:
            return {"log": ["used"]}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("mild", lambda _: Verdict.allow()))
    suite = Suite("locks", [Case("a", {"log": []}, expect={"completes": True})])
    (result,) = ran(suite, chain(hold, use), mode=mode, arbiter_os=arbiter_os).results
    assert (result.status, result.passed) == ("completed", True)


def test_a_redirect_is_part_of_the_trajectory() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(
        Route("again", lambda history, _: "fix", target_nodes=["write"], max_redirects=1)
    )
    graph = chain(Spy("write"), Spy("send"), extra=[Spy("fix")])
    expect = {"redirected_to": "fix", "nodes": ["write", "fix"]}
    (result,) = (
        Suite("redirected", [Case("a", {"log": []}, expect=expect)]).run(graph, arbiter_os=arbiter_os).results
    )
    assert [(score.name, score.passed) for score in result.scores] == [
        ("expect.redirected_to", True),
        ("expect.nodes", True),
    ]


# Scorers ------------------------------------------------------------------------------------------


def test_a_scorer_that_fails_leaves_the_other_scores_of_its_case() -> None:
    def style(run: CaseRun) -> dict[str, Any]:
        return {"brief": True, "tone": 3}

    def broken(run: CaseRun) -> float:
        return 1 / 0

    scorers = [broken, right, style]
    report = Suite("capitals", CAPITALS, scorers=scorers).run(capital)
    assert missing(report, "broken") == {"error": 2}
    assert report.rows["broken"].cases == {"france": (None,), "spain": (None,)}
    assert report.rows["right"].cases == {"france": (1.0,), "spain": (0.0,)}
    assert report.rows["style.brief"].cases == {"france": (1.0,), "spain": (1.0,)}
    assert missing(report, "style.tone") == {"error": 2}
    assert list(report.rows) == ["broken", "right", "style.brief", "style.tone", "completed"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_part_of_a_score_cannot_have_the_row_of_another_scorer(order: int) -> None:
    scorers: dict[str, Callable[[CaseRun], Any]] = {
        "style.tone": lambda run: 0.2,
        "style": lambda run: {"tone": 0.8 if run.case.id == "france" else None, "all": 1.0},
    }
    report = Suite("styles", CAPITALS, scorers=dict([*scorers.items()][::order])).run(capital)
    assert (report.rows["style.tone"].mean, report.rows["style.all"].mean) == (0.2, 1.0)
    reasons = [score.reason for score in report.results[0].scores if score.outcome == "error"]
    assert reasons == ["returned 'style.tone', which is the row of another one; rename one of them"]
    assert [result.passed for result in report.results] == [False, True]


def test_a_part_of_an_evaluation_cannot_have_the_row_of_a_scorer() -> None:
    arbiter_os = ArbiterOS()

    @arbiter_os.evaluator
    def style(item: Any) -> dict[str, float]:
        return {"tone": 0.8, "brief": 1.0}

    suite = Suite("styles", [Case("a", {"log": []})], scorers={"style.tone": lambda run: 0.2})
    report = suite.run(arbiter_os.govern(chain(Spy("plan"))))
    assert {name: row.mean for name, row in report.rows.items() if name != "completed"} == {
        "style.brief": 1.0,
        "style.tone": 0.2,
    }
    reasons = [(score.name, score.reason) for score in report.results[0].scores if score.outcome == "error"]
    assert reasons == [
        ("style", "returned 'style.tone', which is the row of another one; rename one of them")
    ]


def test_a_row_of_several_scales_is_told() -> None:
    def tone(run: CaseRun) -> bool | Score:
        return "France" in run.input or Score("tone", 8.0, scale=NINE)

    report = Suite("capitals", CAPITALS, scorers=[tone, right]).run(capital)
    assert [line.partition(" are on ")[0] for line in remarks(report)] == ["the scores of tone"]
    assert "on the scales 0–1 and 0–9, and its mean mixes them" in " ".join(report.printed().split())


def test_a_scorer_of_labels_has_no_row_and_leaves_the_run_decided() -> None:
    def manners(run: CaseRun) -> dict[str, Any]:
        return {"kind": "polite", "sure": None if "France" in run.input else "no"}

    def tone(run: CaseRun) -> str:
        return "rude"

    report = Suite("capitals", CAPITALS, scorers=[tone, manners, right]).run(capital)
    assert list(report.rows) == ["right", "completed"]
    assert report.comparison.exit_code == 0
    assert [score.label for score in report.results[1].scores] == ["rude", "polite", "no", None]


def test_a_scorer_of_labels_that_fails_is_not_judged() -> None:
    def tone(run: CaseRun) -> str:
        return {"Paris": "sure"}[run.output]

    report = Suite("capitals", CAPITALS, scorers=[tone]).run(capital)
    assert report.comparison.undecided == ("tone was not judged",)


def test_an_object_with_a_scale_scores_on_it() -> None:
    class Tone:
        name = "tone"
        scale = (0, 9)

        def score(self, run: CaseRun) -> float:
            return 7

    report = Suite("capitals", CAPITALS, scorers=[Tone()]).run(capital)
    assert report.results[0].scores == (
        Score("tone", 7.0, scale=(0.0, 9.0), duration=report.results[0].scores[0].duration),
    )


def test_a_scorer_may_be_called_score() -> None:
    suite = Suite("capitals", CAPITALS, scorers={"score": lambda run: run.expected == run.output})
    assert suite.run(capital).rows["score"].mean == 0.5


NAMELESS: Any = partial(right)


@pytest.mark.parametrize(
    ("scorers", "said"),
    [
        ([NAMELESS], "has no name"),
        ([Judge("tone", good)], "judges node runs. Pass it as one of evaluators"),
        ({"two": pow}, "has the parameters"),
        ({"none": 7}, "is not a function"),
        ({"completed": right}, "a row of its own already"),
        ([right, right], "two scorers have the name 'right'"),
        ([Score], "is a class"),
    ],
)
def test_an_object_that_is_not_a_scorer_is_refused(scorers: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Suite("capitals", CAPITALS, scorers=scorers)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repeats": 0}, "repeats is 0; expected a whole number from 1"),
        ({"limits": {"concurrency": -1}}, "expected Limits"),
        ({"cases": []}, "no cases"),
        ({"name": ""}, "has the name ''"),
        ({"cases": [Case("a", 1), Case("a", 2)]}, "two cases have the id 'a'"),
        ({"cases": [*CAPITALS, CAPITALS[0]]}, "two cases have the id 'france'"),
        ({"cases": [Case("", 1), Case("", 1)]}, "two cases without ids have the same input"),
        ({"cases": ["a"]}, "has 'a' as a case"),
        ({"evaluators": None}, "evaluators has None; expected a NodeEvaluator"),
        ({"cases": Case("a", 1)}, r"cases is Case\(id='a'.*; expected cases"),
    ],
)
def test_an_object_that_is_not_a_suite_is_refused(change: dict[str, Any], said: str) -> None:
    make: Any = Suite
    with pytest.raises(ConfigurationError, match=said):
        make(**{"name": "x", "cases": CAPITALS, **change})


class Unanswered:
    """It equals neither itself nor anything else, and differs from nothing, as pandas.NA and arrays."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __repr__(self) -> str:
        return "NA"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": "a b"}, "has the id 'a b'"),
        ({"input": {"a": [1, float("nan")]}}, r"input.a\[1\] is nan"),
        ({"input": {1, 2}}, "input is of type set"),
        ({"input": "x" * 1_000_001}, "expected at most 1,000,000"),
        ({"expect": {"completed": True}}, "Did you mean 'completes'"),
        ({"repeats": 0}, "repeats is 0"),
        ({"input": 10**5_000}, "input has a number of more than 4,300 digits"),
        ({"tags": None}, "case 'a': tags is None; expected texts"),
        ({"tags": ("smoke", 1)}, "case 'a': tags is .*; expected texts"),
        ({"cluster": ["u-1"]}, r"case 'a': cluster is \['u-1'\]; expected a text"),
        ({"cluster": float("nan")}, "case 'a': cluster is nan; expected a text"),
        ({"must_pass": "no"}, "case 'a': must_pass is 'no'; expected True or False"),
        ({"metadata": ["topic"]}, "case 'a': metadata is .*; expected a mapping"),
        ({"id": Unanswered()}, "a case has the id NA; expected up to"),
        ({"id": Unanswered(), "input": {1}}, "case NA: input is of type set"),
        ({"cluster": Unanswered()}, "case 'a': cluster is NA; expected a text"),
        ({"must_pass": Unanswered()}, "case 'a': must_pass is NA; expected True or False"),
        ({"metadata": Unanswered()}, "case 'a': metadata is NA; expected a mapping"),
    ],
)
def test_an_object_that_is_not_a_case_is_refused(given: dict[str, Any], said: str) -> None:
    make: Any = Case
    with pytest.raises(ConfigurationError, match=said):
        make(**{"id": "a", "input": 1, **given})


def test_a_case_keeps_the_input_that_it_was_made_with() -> None:
    asked: dict[str, Any] = {"tags": []}
    cases: list[Case] = []
    for number in range(3):
        asked["n"] = number
        asked["tags"].append(number)
        cases.append(Case("", asked))
    report = Suite("s", cases).run(same)
    assert [result.output["n"] for result in report.results] == [0, 1, 2]
    assert cases[0].input == {"tags": [0], "n": 0}


OF_USERS: list[Callable[[int], Any]] = [int, float, np.int64, lambda n: UUID(int=n), lambda n: ("user", n)]


@pytest.mark.parametrize("kind", OF_USERS)
def test_a_cluster_that_is_a_number_is_that_of_the_baseline(
    kind: Callable[[int], Any], project: Path
) -> None:
    """So is any other value that two cases can share."""
    cases = [Case(f"case-{n}", n, cluster=kind(n // 2)) for n in range(8)]
    report = Suite("users", cases).run(same)
    report.save_baseline("baseline.json")
    assert report.compare("baseline.json").rows["completed"].n == 4


def test_a_report_in_place_of_a_baseline_is_a_sentence(project: Path) -> None:
    then, now = (Suite("same", [Case("a", 1)]).run(same) for _ in range(2))
    given: Any = then
    with pytest.raises(ConfigurationError, match=r"baseline is a report.*save_baseline\(path\)"):
        now.compare(given)


def test_an_empty_cell_of_a_table_is_the_default() -> None:
    given: Any = {"cluster": "", "must_pass": "", "metadata": ""}
    assert Case("a", 1, **given) == Case("a", 1)


def test_cases_that_can_only_be_indexed_are_cases() -> None:
    """As those of a PyTorch `Dataset`, which has no `__iter__`."""

    class Table:
        def __getitem__(self, at: int) -> Case:
            return CAPITALS[at]

    assert Suite("table", cast(Any, Table())).cases == Suite("list", CAPITALS).cases


def test_cases_with_an_empty_cluster_are_no_cluster() -> None:
    """As in a file that has the key for all its cases, and a value for some."""
    cases = [Case(name, name, cluster=cluster) for name, cluster in [("a", ""), ("b", ""), ("c", None)]]
    report = Suite("s", cases, scorers={"right": lambda run: True}).run(len)
    assert report.rows["right"].n == 3
    assert load_report(run_folder("last")).rows["right"].n == 3


@pytest.mark.lengthy
def test_all_of_a_long_answer_is_expected() -> None:
    """Also what reports leave out of it."""
    whole = list(range(100_010))
    other = [*whole[:-1], -1]
    cases = [Case("a", 1, expected=whole, expect={"equals": whole})]
    suite = Suite("s", cases, scorers=[{"name": "same", "use": "equals"}])
    for answer, passed in ((tuple(whole), True), (other, False)):
        report = suite.run({"a": answer}, folder=None)
        assert [score.passed for score in report.results[0].scores] == [passed, passed]
    assert Case("a", 1, expected=other).digest != cases[0].digest


def test_the_hash_of_an_expected_time_or_of_a_deep_value_is_that_of_its_json() -> None:
    """Baselines have the hashes of their cases."""
    deep = json.loads("[" * 40 + "1" + "]" * 40)
    at = datetime(2026, 11, 29, 9, tzinfo=UTC)
    for value, plain in ((at, "2026-11-29T09:00:00Z"), (deep, deep)):
        asked = {"input": 1, "expected": None, "expect": {"equals": plain}}
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        assert Case("a", 1, expect={"equals": value}).digest == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("expected", [b"\xff", object(), {1, 2}])
def test_an_output_of_any_type_can_be_expected(expected: Any) -> None:
    def answer(given: int) -> Any:
        return expected

    suite = Suite("s", [Case("a", 1, expect={"equals": expected})])
    assert suite.run(answer).rows["completed"].mean == 1
    assert load_report(run_folder("last")).results[0].passed


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (None, "has no target"),
        (7, "the target is 7"),
        (pow, "expected one, the input of a case"),
        (text_or, "needs a parameter for it, without a default"),
        (makes_later, "makes_later is an async function.*Define it with def"),
        (dict, "the target is"),
        (text, "expected a graph"),
        (parts, "the target parts is a generator"),
        (aparts, "the target aparts is a generator"),
    ],
)
def test_an_object_that_is_not_a_target_is_refused(target: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Suite("capitals", CAPITALS).run(target)


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (
            {"nodes": ["plan", {"all": "write"}]},
            r"expected a name, {instruction: ...} or {all: \[...\]}, got {'all': 'write'}",
        ),
        (
            {"nodes": ["plan", "wirte"]},
            "'wirte' is not a node of the graph. Nodes: plan, write. Did you mean 'write'",
        ),
        ({"redirected_to": "wirte"}, "Did you mean 'write'"),
        ({"matches": "("}, "not a regular expression"),
        ({"matches": ""}, "expect.matches: expected a regular expression that an output may lack"),
        ({"contains": ""}, "expect.contains: expected a text that an output may lack, got ''"),
        ({"contains": []}, r"expected a text that an output may lack, got \[\]"),
        ({"contains": [""]}, "expected a text that an output may lack"),
        ({"nodes": {"superset": []}}, "expected a name in superset, got none"),
        ({"json_schema": {"type": "txt"}}, "expected a JSON Schema"),
        ({"condition": "outptu == 1"}, "outptu"),
        ({"nodes": {"strict": [], "subset": []}}, "exactly one of"),
        ({"nodes": [{"instruction": "NOPE"}]}, "NOPE"),
    ],
)
def test_an_expectation_that_is_never_met_or_always_is_refused_before_anything_runs(
    expect: Any, said: str
) -> None:
    plan = Spy("plan")
    with pytest.raises(ConfigurationError, match=said):
        Suite("graph", [Case("a", {"log": []}, expect=expect)]).run(chain(plan, Spy("write")))
    assert plan.calls == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"use": "contains", "text": ""}, "the scorer 'has': expected a text that an output may lack"),
        ({"use": "matches", "pattern": ""}, "the scorer 'has': expected a regular expression"),
        ({"use": "trajectory", "superset": []}, "the scorer 'has': expected a name in superset"),
    ],
)
def test_a_scorer_that_any_output_passes_is_refused(entry: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Suite("empty", [Case("a", 1)], scorers=[{"name": "has", **entry}])


@pytest.mark.parametrize("nothing", ["", [], [""]])
def test_a_case_whose_expected_text_any_output_contains_is_not_scored(nothing: Any) -> None:
    """Another scorer may judge it: the output may have to be empty."""
    cases = [Case("a", "", expected=nothing), Case("b", "some text", expected="text")]
    scorers = [{"name": "has", "use": "contains"}, {"name": "same", "use": "equals"}]
    report = Suite("empty", cases, scorers=scorers).run(same)
    [(has, equal), _] = [result.scores for result in report.results]
    assert (has.outcome, has.value, equal.value) == ("not_applicable", None, float(nothing == ""))
    assert "expected a text that an output may lack, got" in (has.reason or "")


@pytest.mark.parametrize(
    "expect", [{"nodes": ["a"]}, {"tools": []}, {"waits_for": "a"}, {"redirected_to": "a"}]
)
def test_what_a_graph_does_is_expected_of_graphs_alone(expect: Any) -> None:
    (key,) = expect
    with pytest.raises(ConfigurationError, match=f"expect.{key}: expected a graph as target, got a function"):
        Suite("function", [Case("a", 1, expect=expect)]).run(same)


@pytest.mark.parametrize(
    ("expect", "passed"),
    [
        ({"equals": "Paris"}, True),
        ({"equals": None}, False),
        ({"contains": ["Par", "ris"]}, True),
        ({"contains": ["Par", "Rome"]}, False),
        ({"matches": "^P.*s$"}, True),
        ({"matches": '"'}, False),
        ({"json_schema": {"type": "string", "maxLength": 3}}, False),
        ({"condition": "output == expected && duration < 60.0"}, True),
        ({"condition": "size(output) > 100"}, False),
        ({"completes": True}, True),
        ({"completes": False}, False),
        ({"max_seconds": 60}, True),
        ({"max_seconds": 0}, False),
        ({"max_tokens": 0}, True),
        ({"raises": "ValueError"}, False),
    ],
)
def test_assertions(expect: dict[str, Any], passed: bool) -> None:
    case = Case("france", "What is the capital of France?", expected="Paris", expect=expect)
    (score,) = Suite("capitals", [case]).run(capital).results[0].scores
    assert (score.name, score.passed) == (f"expect.{next(iter(expect))}", passed)
    assert bool(score.reason) != passed


@pytest.mark.parametrize("name", ["", "  "])
@pytest.mark.parametrize("key", ["raises", "denied_by"])
def test_an_expected_name_that_is_empty_is_refused(key: str, name: str) -> None:
    """No run could end so."""
    suite = Suite("refused", [Case("a", {"log": []}, expect={key: name})])
    with pytest.raises(ConfigurationError, match=f"case 'a': expect.{key}: expected the name of .*, got '"):
        suite.run(capital, folder=None)


@pytest.mark.parametrize(("evaluators", "expect"), [((), "nodes"), (("unknown",), "")])
def test_a_suite_that_is_refused_leaves_no_evaluator_behind(evaluators: Any, expect: str) -> None:
    arbiter_os = ArbiterOS()
    case = Case("a", {"log": []}, expect={expect: ["unknown"]} if expect else None)
    suite = Suite("refused", [case], evaluators=[Judge("kind", good), *evaluators])
    with pytest.raises(ConfigurationError, match="unknown"):
        suite.run(chain(Spy("write")), arbiter_os=arbiter_os, folder=None)
    assert not arbiter_os.evaluators


def test_what_a_run_returns_can_be_pickled() -> None:
    """Also the values that a user leaves out."""
    report = Suite("capitals", [Case("a", "France?")]).run(capital, folder=None)
    for given in (report, report.results[0], CaseRun(case=Case("a", 1)), GroupOutcome()):
        assert pickle.loads(pickle.dumps(given)) == copy.deepcopy(given) == given


def test_numbers_of_very_many_digits_are_outputs_and_expected() -> None:
    large = 10**5_000
    suite = Suite("large", [Case("a", 1, expected=large)], scorers=[{"name": "same", "use": "equals"}])
    assert suite.run({"a": large}, folder=None).results[0].passed
    assert not suite.run({"a": large + 1}, folder=None).results[0].passed


class Vector:
    """Several numbers, as numpy and pandas have them: a comparison gives no truth value."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


@pytest.mark.parametrize(
    ("expect", "output", "said"),
    [
        ({"equals": [1, 2]}, Vector(), "the truth value of an array is ambiguous"),
        ({"json_schema": {"$ref": "#/$defs/order"}}, {}, "'/$defs/order' does not exist"),
        ({"json_schema": {"$ref": "#"}}, {}, "RecursionError"),
    ],
)
def test_an_expectation_that_cannot_be_checked_is_an_error_of_its_case(
    expect: Any, output: Any, said: str
) -> None:
    suite = Suite("errors", [Case("a", 1, expect=expect), Case("b", 2)])
    first, second = suite.run({"a": output, "b": output}, folder=None).results
    (score,) = first.scores
    assert (score.outcome, first.passed, second.passed) == ("error", False, True)
    assert said in score.reason


@pytest.mark.parametrize(
    ("schema", "output", "passed"),
    [
        ({"type": "string", "pattern": "^[0-9]{4}$"}, "1234", True),
        ({"type": "string", "pattern": "^[0-9]{4}$"}, "12345", False),
        ({"enum": ["true", "unknown"]}, "true", True),
        ({"type": "string", "minLength": 2}, "[1]", True),
        ({"type": "integer"}, "1234", True),
        ({"type": ["string", "null"]}, '{"sum": 5}', True),
        ({"anyOf": [{"enum": ["5"]}, {"type": "null"}]}, "5", True),
        ({"required": ["total"]}, '{"sum": 5}', False),
        ({"properties": {"sum": {"type": "string"}}}, '{"sum": 5}', False),
        ({"anyOf": [{"required": ["total"]}, {"type": "null"}]}, '{"sum": 5}', False),
        ({"minimum": 0, "maximum": 10}, "50", False),
        ({"not": {"type": "number"}}, "5", False),
    ],
)
def test_a_text_that_reads_as_json_is_also_a_text(schema: Any, output: str, passed: bool) -> None:
    suite = Suite("texts", [Case("a", output, expect={"json_schema": schema})])
    assert suite.run(same, folder=None).results[0].passed == passed


class Secret:
    """A value whose repr does not tell it from others, or that has none."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.value == self.value

    def __repr__(self) -> str:
        if self.value < 0:
            raise ValueError("no repr")
        return "Secret(...)"


def test_a_value_is_compared_by_itself_and_not_by_its_repr() -> None:
    expected = {"a": Secret(1), "b": Secret(2), "c": Secret(-1), "d": 10**5_000}
    suite = Suite("values", [Case(id, id, expect={"equals": value}) for id, value in expected.items()])
    assert all(result.passed for result in suite.run(expected.get, folder=None).results)


def test_long_outputs_are_compared_to_their_ends() -> None:
    """A report shows the first 100,000 values."""
    expected = [0] * 100_001
    suite = Suite("long", [Case("a", 1, expect={"equals": expected})])
    assert suite.run({"a": tuple(expected)}, folder=None).results[0].passed
    assert not suite.run({"a": [*expected[1:], 1]}, folder=None).results[0].passed


@pytest.mark.parametrize(
    ("expected", "output", "reason"),
    [
        ("5", 5, 'expected "5", got 5'),
        (True, "true", 'expected true, got "true"'),
        ("a", "b", "expected a, got b"),
    ],
)
def test_a_text_that_looks_like_another_value_is_quoted(expected: Any, output: Any, reason: str) -> None:
    """A cell of a CSV file is a text; "expected 5, got 5" would say nothing."""
    (score,) = Suite("texts", [Case("a", output, expect={"equals": expected})]).run(same).results[0].scores
    assert (score.passed, score.reason) == (False, reason)


@pytest.mark.parametrize(
    ("expect", "is_expected"),
    [
        ({"completes": False}, True),
        ({"completes": False, "raises": "ValueError"}, True),
        ({"completes": False, "raises": "KeyError"}, False),
        ({"completes": True}, False),
        ({}, False),
    ],
)
def test_a_run_that_shall_not_complete_ends_as_expected(expect: dict[str, Any], is_expected: bool) -> None:
    """However it ends: `completes: false` asks for no error, denial, question or timeout in particular."""

    def target(given: Any) -> Any:
        raise ValueError(given)

    report = Suite("ends", [Case("a", 1, expect=expect)]).run(target)
    assert report.results[0].as_expected is is_expected
    assert report.rows["completed"].mean == is_expected


def test_a_run_that_waits_and_shall_not_complete_ends_as_expected() -> None:
    def ask(state: State) -> State:
        interrupt("Go on?")
        return state

    graph = StateGraph(State).add_node(ask).add_edge(START, "ask").compile()
    report = Suite("ends", [Case("a", {"text": ""}, expect={"completes": False})]).run(graph)
    assert (report.results[0].status, report.results[0].as_expected) == ("waits", True)


# Selection ----------------------------------------------------------------------------------------


TAGGED = (Case("fast-1", 1, tags=["smoke"]), Case("fast-2", 2, tags=["smoke", "slow"]), Case("late", 3))


def test_an_assertion_that_cannot_be_judged_is_an_error_and_none_is_nothing_to_judge() -> None:
    """Else many broken assertions would hide behind `not_applicable`, which no limit counts."""

    def target(given: Any) -> Any:
        if given == {"fails": True}:
            raise ValueError(given)
        return given

    assertion = {"condition": "input.n > 0"}
    cases = [
        Case("good", {"n": 1}, expect=assertion),
        Case("broken", {}, expect=assertion),
        Case("fails", {"fails": True}),
        Case("plain", {"n": 2}),
    ]
    found = Suite("s", cases).run(target).rows["expect"]
    assert found.outcomes == {"scored": 1, "error": 1, "not_applicable": 2}


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        (Selection(tags=["slow"]), ["fast-2"]),
        (Selection(text="FAST"), ["fast-1", "fast-2"]),
        (Selection(ids=["late"]), ["late"]),
        (Selection(ids="late"), ["late"]),
        (Selection(tags="slow"), ["fast-2"]),
        (Selection(ids="", tags="slow"), ["fast-2"]),
        (Selection(tags=["smoke"], text="1"), ["fast-1"]),
    ],
)
def test_a_selection_chooses_cases(selection: Selection, ids: list[str]) -> None:
    report = Suite("tagged", TAGGED).run(same, select=selection)
    assert [result.case_id for result in report.results] == ids


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(tags=["smok"]), "no case has the tag 'smok'. Tags: slow, smoke. Did you mean 'smoke'"),
        (Selection(ids=["lat"]), "no case is named 'lat'"),
        ("late", r"select is 'late'; expected Selection\(ids="),
        (
            Selection(tags=["slow"], text="late"),
            "no case is selected with the tag 'slow' and 'late' in its id",
        ),
    ],
)
def test_selecting_nothing_is_refused(selection: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Suite("tagged", TAGGED).run(same, select=selection)


def test_ids_are_hashes_of_the_canonical_input() -> None:
    assert Case("", {"b": 1, "a": "ü"}).id == Case("", {"a": "ü", "b": 1}).id == "4e7ff4080b1a"
    none: Any = None
    assert Case(none, {"b": 1, "a": "ü"}).id == "4e7ff4080b1a"


# Concurrency and time -----------------------------------------------------------------------------


class Busy:
    """A target that notes how many calls run at once. They wait until it is that many."""

    def __init__(self, many: int) -> None:
        self.lock = threading.Lock()
        self.many = many
        self.now = self.most = 0

    def __call__(self, given: Any) -> Any:
        self.begin()
        until(lambda: self.most >= self.many)
        time.sleep(0.005)
        self.end()
        return given

    async def acall(self, given: Any) -> Any:
        self.begin()
        async with asyncio.timeout(PATIENCE):
            while self.most < self.many:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.005)
        self.end()
        return given

    def begin(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def end(self) -> None:
        with self.lock:
            self.now -= 1


@MODES
@pytest.mark.parametrize("kind", ["sync", "async", "graph"])
def test_as_many_cases_run_at_once_as_the_limit_says(mode: str, kind: str) -> None:
    busy = Busy(4)
    target: Any = {"sync": busy, "async": busy.acall, "graph": None}[kind]
    if kind == "graph":

        def work(state: State) -> State:
            busy(None)
            return {"log": ["done"]}

        target = chain(work)
    cases = [Case(f"case-{number}", {"log": [], "amount": number}) for number in range(20)]
    report = ran(Suite("busy", cases, limits=Limits(concurrency=4)), target, mode=mode)
    assert busy.most == 4
    assert [result.case_id for result in report.results] == [case.id for case in cases]


def stuck(given: Any) -> Any:
    if given == "stuck":
        threading.Event().wait(60)
    return given


@pytest.mark.lengthy
@MODES
def test_a_case_whose_target_does_not_return_times_out_alone(mode: str) -> None:
    cases = [Case(f"case-{number}", "stuck" if number == 3 else "fine") for number in range(10)]
    suite = Suite("stuck", cases, scorers={"fine": lambda run: True}, limits=Limits(case_timeout=1))
    report = ran(suite, stuck, mode=mode)
    assert [result.status for result in report.results].count("completed") == 9
    assert (report.results[3].status, report.results[3].outcome("fine")) == ("timeout", "timeout")
    assert (report.left_behind, report.stopped) == (1, None)


@pytest.mark.lengthy
def test_a_case_that_answers_at_the_moment_of_its_timeout_ends_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor sees that a call is late, and before it acts, the worker is in the next call."""
    may_answer, is_next = threading.Event(), threading.Event()

    def answer(given: int) -> int:
        if given == 0:
            assert may_answer.wait(20)
        else:
            is_next.set()
            time.sleep(0.2)
        return given

    def seen(calls: Any) -> list[Any]:
        found = [*calls]
        if found and isinstance(calls, ItemsView) and not may_answer.is_set():
            _, (end, *_) = found[0]
            if time.perf_counter() > end:
                may_answer.set()
                assert is_next.wait(20)
        return found

    monkeypatch.setattr(local, "list", seen, raising=False)
    cases = [Case(str(number), number) for number in range(2)]
    report = Suite("late", cases, limits=Limits(concurrency=1, case_timeout=0.4)).run(answer)
    assert [result.status for result in report.results] == ["completed", "completed"]


def test_fewer_tokens_are_not_among_the_worst_changes() -> None:
    class Counted:
        name, scale, version, times = "used", (0.0, float("inf")), "1", 1

        def score(self, run: CaseRun) -> int:
            return 1_000 // self.times

    counted, passing = Counted(), True

    def right(_: CaseRun) -> bool:
        return passing

    scorers: dict[str, Any] = {"used": counted, "right": right}
    suite = Suite("counting", CAPITALS, scorers=scorers)
    suite.run(capital).save_baseline("counting.json")
    counted.times, passing = 2, False
    printed = suite.run(capital, baseline="counting.json").printed()
    assert "worst changes   right: france ✓ → ✗" in printed
    assert "worst changes   used" not in printed
    assert "500.00" in printed


def test_an_error_without_a_message_is_its_class_alone() -> None:
    def asserting(given: Any) -> None:
        raise AssertionError

    report = Suite("bare", [Case("a", 1, must_pass=True)]).run(asserting)
    assert report.results[0].error == "AssertionError"
    assert report.comparison.failures == ("case a must pass: failed: AssertionError",)


@pytest.mark.lengthy
@MODES
def test_a_run_ends_when_no_worker_is_left(mode: str) -> None:
    cases = [Case(f"case-{number}", "stuck") for number in range(4)]
    suite = Suite("stuck", cases, limits=Limits(concurrency=2, case_timeout=0.1))
    report = ran(suite, stuck, mode=mode)
    assert report.stopped == "stuck"
    statuses = [result.status for result in report.results]
    assert statuses.count("timeout") in (2, 3)  # a third case may begin while the second is not late yet
    assert statuses.count("skipped_budget") == 4 - statuses.count("timeout")
    assert report.comparison.exit_code == 5


@pytest.mark.lengthy
@MODES
def test_a_run_ends_when_its_own_time_is_over(mode: str) -> None:
    """All calls that run are late then, which is not the fault of a target that would have returned."""
    cases = [Case(f"case-{number}", "stuck" if number == 1 else "fine") for number in range(4)]
    suite = Suite("long", cases, limits=Limits(concurrency=1, run_timeout=0.5))
    begun = time.perf_counter()
    report = ran(suite, stuck, mode=mode)
    assert time.perf_counter() - begun < 6
    assert [result.status for result in report.results] == ["completed", "timeout", *["skipped_budget"] * 2]
    assert report.stopped == "run_timeout"
    assert report.comparison.exit_code == 5
    assert "the time of the run is over" in report.printed()


@MODES
def test_a_run_whose_time_is_over_with_its_last_case_is_finished(mode: str) -> None:
    """As with a budget that the last case reaches: no case was cut short, and none is left."""

    def slow(run: CaseRun) -> bool:
        time.sleep(0.3)
        return True

    suite = Suite("s", [Case("a", 1)], scorers={"slow": slow}, limits=Limits(run_timeout=0.2))
    report = ran(suite, asame if mode == "async" else same, mode=mode)
    assert (report.stopped, report.rows["slow"].n, report.comparison.exit_code) == (None, 1, 0)


@MODES
@pytest.mark.parametrize("is_async", [False, True])
def test_a_case_that_the_end_of_the_run_cut_short_is_run_again_by_a_resume(mode: str, is_async: bool) -> None:
    """The target is not to blame: it had no time of its own left."""
    held, again = threading.Event(), False

    def slow(given: Any) -> Any:
        if given == 1 and not again:
            held.wait(PATIENCE)
        return given

    async def aslow(given: Any) -> Any:
        if given == 1 and not again:
            await asyncio.sleep(PATIENCE)
        return given

    target: Any = aslow if is_async else slow
    cases = [Case(f"case-{number}", number) for number in range(3)]
    suite = Suite(
        "long", cases, scorers={"fine": lambda run: True}, limits=Limits(concurrency=1, run_timeout=0.3)
    )
    report = ran(suite, target, mode=mode)
    assert (report.stopped, report.results[1].error) == ("run_timeout", "the time of the run was over")
    again = True
    held.set()
    resumed = ran(replace(suite, limits=Limits(concurrency=1)), target, mode=mode, resume=report.run_id)
    assert [result.status for result in resumed.results] == ["completed"] * 3
    assert resumed.rows["fine"].n == 3


@pytest.mark.lengthy
@MODES
def test_a_case_that_never_ends_does_not_keep_a_resume_from_the_others(mode: str) -> None:
    """With the same limits it is cut short again, after the others."""

    async def stuck(given: Any) -> Any:
        if given == 0:
            await asyncio.sleep(PATIENCE)
        return given

    cases = [Case(f"case-{number}", number) for number in range(3)]
    suite = Suite("stuck", cases, limits=Limits(concurrency=1, run_timeout=0.3))
    report = ran(suite, stuck, mode=mode)
    assert [result.status for result in report.results] == ["timeout", "skipped_budget", "skipped_budget"]
    resumed = ran(suite, stuck, mode=mode, resume=report.run_id)
    assert [result.status for result in resumed.results] == ["timeout", "completed", "completed"]
    assert resumed.stopped == "run_timeout"


def test_cancelling_arun_ends_its_targets_and_leaves_the_loop_nothing_to_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "GRACE", 0.05)
    cleaned: list[str] = []
    reported: list[Any] = []

    async def endless(question: str) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            cleaned.append(question)

    async def given_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Suite("capitals", CAPITALS).arun(endless), 0.2)
        gc.collect()

    asyncio.run(given_up())
    assert sorted(cleaned) == sorted(case.input for case in CAPITALS)
    assert reported == []


def test_cancelling_arun_is_a_cancellation_also_if_a_case_ends_with_an_error_meanwhile() -> None:
    """`asyncio.timeout` and task groups know a cancellation by its exception."""
    began = asyncio.Event()

    async def slow(question: str) -> None:
        began.set()
        await asyncio.sleep(0.05)

    def full(session: Any) -> None:
        raise OSError("no space left")

    async def cancelled() -> None:
        run = asyncio.ensure_future(Suite("capitals", CAPITALS).arun(slow, progress=full, folder=None))
        await began.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancelled())


@MODES
def test_a_cancelled_async_target_cleans_up(mode: str) -> None:
    ended: list[str] = []

    async def slow(given: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(given)

    suite = Suite("slow", [Case("a", "one"), Case("b", "two")], limits=Limits(case_timeout=0.1))
    report = ran(suite, slow, mode=mode)
    assert [result.status for result in report.results] == ["timeout", "timeout"]
    assert sorted(ended) == ["one", "two"]


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("target", [capital, acapital])
def test_a_scorer_that_does_not_return_times_out_alone(mode: str, target: Any) -> None:
    def slow(run: CaseRun) -> bool:
        threading.Event().wait(60 if run.case.id == "spain" else 0)
        return True

    async def aslow(run: CaseRun) -> bool:
        await asyncio.sleep(60 if run.case.id == "spain" else 0)
        return True

    suite = Suite(
        "slow",
        CAPITALS,
        scorers={"slow": slow, "aslow": aslow, "right": right},
        limits=Limits(score_timeout=1),
    )
    report = ran(suite, target, mode=mode)
    assert report.rows["slow"].cases == report.rows["aslow"].cases == {"france": (1.0,), "spain": (None,)}
    assert missing(report, "slow") == missing(report, "aslow") == {"timeout": 1}
    assert report.rows["right"].cases == {"france": (1.0,), "spain": (0.0,)}


@MODES
def test_repeats_run_in_threads_of_their_own(mode: str) -> None:
    plan = Spy("plan")
    suite = Suite("graph", [Case("a", {"log": []}), Case("b", {"log": []}, repeats=1)], repeats=3)
    report = ran(suite, chain(plan), mode=mode)
    assert [(result.case_id, result.repeat) for result in report.results] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("b", 0),
    ]
    assert len({result.thread_id for result in report.results}) == 4
    assert all(result.output == {"log": ["plan"]} for result in report.results)


@pytest.mark.parametrize("of_case", [None, 10**9])
def test_more_repeats_than_memory_can_list_are_refused(of_case: int | None) -> None:
    suite = Suite("many", [Case("a", 1, repeats=of_case), Case("b", 2, repeats=1)], repeats=10**9)
    with pytest.raises(
        ConfigurationError, match="cases × repeats are 1,000,000,001; a run has at most 10,000,000"
    ):
        suite.run(same)


def test_a_target_cannot_change_a_case_for_its_repeats() -> None:
    def greedy(given: dict[str, Any]) -> int:
        given["seen"] += 1
        return int(given["seen"])

    report = Suite("greedy", [Case("a", {"seen": 0})], repeats=3).run(greedy)
    assert [result.output for result in report.results] == [1, 1, 1]


def test_no_case_starts_after_the_time_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(limits.Budget.__init__, "__defaults__", (lambda: now[0],))
    cases = [Case(f"case-{number}", number) for number in range(6)]

    def slow(given: int) -> int:
        now[0] += 0.1
        return given

    report = Suite("slow", cases, limits=Limits(concurrency=1, seconds=0.15)).run(slow)
    assert report.stopped == "budget"
    assert [result.status for result in report.results] == ["completed"] * 2 + ["skipped_budget"] * 4
    assert missing(report, "completed") == {"skipped_budget": 4}
    reason = "limits.seconds is 0.15, and 0.2 are used"
    assert (report.reached, report.comparison.undecided[0]) == (reason, reason)
    assert junit.render(report).count(f'<skipped message="{reason}" />') == 4


@pytest.mark.lengthy
def test_slow_cases_after_quick_ones_run_at_once() -> None:
    """As where most answers are recorded already."""
    together = threading.Barrier(8, timeout=PATIENCE)

    def target(given: int) -> int:
        if given >= 40:
            time.sleep(0.05)
        if given >= 42:
            together.wait()
        return given

    suite = Suite("mixed", [Case(str(n), n) for n in range(50)], limits=Limits(concurrency=8))
    assert {result.status for result in suite.run(target).results} == {"completed"}


@MODES
def test_a_timeout_may_be_longer_than_a_thread_can_wait(mode: str) -> None:
    async def right(run: CaseRun) -> bool:
        return True

    limits = Limits(case_timeout=1e10, score_timeout=1e10, run_timeout=1e10)
    suite = Suite("s", [Case("a", 1)], scorers={"right": right}, limits=limits)
    assert ran(suite, same, mode=mode).rows["right"].mean == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"votes": 3}, "votes is 3, and no row of the suite asks a judge"),
        ({"cache": "judge"}, "cache is 'judge', and no row of the suite asks a judge"),
        ({"cache": "all"}, "cache is 'all', and the target is function same"),
    ],
)
def test_lint_refuses_what_a_run_refuses(change: dict[str, Any], said: str) -> None:
    suite = replace(Suite("s", [Case("a", 1)], scorers={"right": lambda run: True}, target=same), **change)
    for refuse in (suite.lint, suite.run):
        with pytest.raises(ConfigurationError, match=said):
            refuse()


def test_a_late_call_among_quick_cases_ends_its_case_alone() -> None:
    """The thread that goes on in its place ended as if another one were alive, and the run with it."""

    def answer(number: int) -> int:
        if number == 40:
            threading.Event().wait(10)
        return number

    cases = [Case(f"case-{number}", number) for number in range(400)]
    report = Suite("late", cases, limits=Limits(case_timeout=0.3)).run(answer, folder=None)
    statuses = [result.status for result in report.results]
    assert (len(statuses), statuses.count("completed"), statuses[40]) == (400, 399, "timeout")


def test_a_late_call_that_returns_as_it_is_taken_away_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread was the last one for a moment: the run ended without the other cases."""
    returned = threading.Event()
    thread: list[threading.Thread] = []

    def answer(number: int) -> int:
        if number == 40:
            thread.append(threading.current_thread())
            returned.wait(PATIENCE)
        elif returned.is_set():
            threading.Event().wait(0.01)
        return number

    leave_behind = running.Session.leave_behind

    def slowly(session: running.Session) -> None:
        leave_behind(session)
        returned.set()
        thread[0].join(0.2)

    monkeypatch.setattr(running.Session, "leave_behind", slowly)
    cases = [Case(f"case-{number}", number) for number in range(60)]
    report = Suite("late", cases, limits=Limits(case_timeout=0.3)).run(answer, folder=None)
    assert [result.case_id for result in report.results if result.status != "completed"] == ["case-40"]
    assert len(report.results) == 60


@pytest.mark.lengthy
def test_cases_after_a_late_call_run_at_once() -> None:
    """Calls that never return cost the run one timeout together, not one after another."""
    together = threading.Barrier(7)

    def answer(number: int) -> int:
        if number == 40:
            threading.Event().wait(PATIENCE)
        if number > 52:
            together.wait()
        return number

    cases = [Case(f"case-{number}", number) for number in range(60)]
    report = Suite("late", cases, limits=Limits(concurrency=8, case_timeout=2)).run(answer, folder=None)
    assert [result.case_id for result in report.results if result.status != "completed"] == ["case-40"]


@pytest.mark.lengthy
def test_quick_cases_run_on_one_thread_whatever_else_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target and its scorer are quick; the progress is not."""
    of_thread: dict[int, float] = {}
    monkeypatch.setattr(local, "perf_counter", lambda: of_thread.get(threading.get_ident(), 0.0))
    threads: list[int] = []

    def answer(given: int) -> int:
        threads.append(threading.get_ident())
        return given

    cases = [Case(f"case-{number}", number) for number in range(200)]

    def progress(_: Any) -> None:
        me = threading.get_ident()
        of_thread[me] = of_thread.get(me, 0.0) + 1
        time.sleep(0.001)

    Suite("quick", cases, limits=Limits(concurrency=8)).run(answer, folder=None, progress=progress)
    # The first twenty show that cases are quick; then each worker but one leaves after the case that it has.
    assert len(threads) - max(map(threads.count, threads)) <= 20 + 2 * 8


@pytest.mark.lengthy
def test_reports_are_equal_at_any_concurrency_but_for_the_timing() -> None:
    cases = [Case(f"case-{number}", number) for number in range(40)]

    def jittery(given: int) -> int:
        time.sleep(0.001 * (given % 7))
        return given

    reports = [
        Suite(
            "jitter",
            cases,
            scorers={"value": lambda run: run.output / 40},
            limits=Limits(concurrency=concurrency),
        ).run(jittery)
        for concurrency in (1, 16)
    ]
    one, other = (report.to_dict() for report in reports)
    assert one.pop("timing") != other.pop("timing")
    assert one == other


# The terminal -------------------------------------------------------------------------------------


def printed(report: Report, *, width: int = 100, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    report.pprint(Console(file=file, width=width, color_system=None))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_report_on_a_terminal() -> None:
    report = Suite("capitals", CAPITALS, scorers={"right": right}).run(capital)
    shown = printed(report)
    assert "capitals  function capital · live · 2 cases" in shown
    assert "right       share       2   0.50" in shown
    assert "✗ spain  right" in shown


def test_the_reason_of_a_failure_ends_with_one_full_stop() -> None:
    case = Case("a", "No refund.", expect={"equals": "Yes."}, must_pass=True)
    shown = printed(Suite("refunds", [case]).run(same), width=200)
    assert shown.splitlines()[-1].endswith("case a must pass: expect.equals: expected Yes., got No refund.")


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_texts_of_users_cannot_break_the_report(width: int, encoding: str) -> None:
    evil = "[red]bold[/] \x1b[2J \r\n | \u202e" + "x" * 5000

    def label(_: CaseRun) -> str:
        return evil

    def row(_: CaseRun) -> dict[str, bool]:
        return {evil[:30]: True}

    report = Suite("evil", [Case("a", evil, expect={"equals": "b"})], scorers=[label, row]).run(same)
    shown = printed(report, width=width, encoding=encoding)
    assert "\x1b" not in shown
    assert "[red]" in shown
    assert max(map(len, shown.splitlines())) <= width


def test_instructions_can_be_expected_in_place_of_nodes() -> None:
    arbiter_os = ArbiterOS()
    graph = arbiter_os.govern(chain(Spy("plan"), Spy("write")), {"write": GENERATE})
    expect = {"nodes": ["plan", {"instruction": "GENERATE"}]}
    (result,) = Suite("graph", [Case("a", {"log": []}, expect=expect)]).run(graph).results
    assert result.passed


def test_a_case_that_takes_long_keeps_its_node_runs_while_many_others_run() -> None:
    quick: list[Any] = []

    def plan(state: Any) -> State:
        if state["log"]:
            quick.append(state)
        else:
            until(lambda: len(quick) >= 6)
        return {"log": ["plan"]}

    cases = [Case(f"c{n}", {"log": ["x"] * n}, expect={"nodes": ["plan", "write"]}) for n in range(7)]
    graph = ArbiterOS(keep_threads=2).govern(chain(plan, Spy("write")))
    report = Suite("graph", cases, limits=Limits(concurrency=2)).run(graph, folder=None)
    assert [result.passed for result in report.results] == [True] * 7


def test_a_case_keeps_all_of_its_node_runs() -> None:
    """An `ArbiterOS` keeps 1,000 of a thread by default."""

    def many(state: State) -> list[Send]:
        return [Send("work", state)] * 1_001

    builder: Any = StateGraph(State)
    builder.add_node("plan", Spy("plan"))
    builder.add_node("work", Spy("work"))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", many, ["work"])
    expect = {"nodes": ["plan", {"all": ["work"] * 1_001}]}
    report = Suite("graph", [Case("a", {"log": []}, expect=expect)]).run(builder, folder=None)
    assert report.results[0].passed


def test_a_builder_is_compiled() -> None:
    builder: Any = StateGraph(State)
    builder.add_node("plan", Spy("plan"))
    builder.add_edge(START, "plan")
    assert Suite("built", [Case("a", {"log": []})]).run(builder).results[0].output == {"log": ["plan"]}


@pytest.mark.lengthy
def test_the_supervisor_sleeps_while_no_call_can_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its looks would take the GIL from the workers."""
    looks: list[object] = []

    def sleep(given: int) -> None:
        time.sleep(0.2)

    monkeypatch.setattr("arbiter.harness.local._Workers._take_late_calls", looks.append)
    report = Suite("slow", [Case("one", 1)]).run(sleep, folder=None)
    assert report.results[0].status == "completed"
    assert looks == []


def test_a_run_that_loses_cases_is_not_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_alone(session: running.Session) -> None:
        local.drive_on_threads(session)
        session.results.pop(1)

    monkeypatch.setattr("arbiter.harness.runs.drive_on_threads", first_alone)
    report = Suite("s", [Case("a", "?"), Case("b", "?")]).run(capital)
    assert report.stopped == "interrupted"
    assert [result.case_id for result in report.results] == ["a"]
