"""The spending of a run: tokens and calls by purse, budgets, and judges that are asked on behalf of cases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from arbiter import ArbiterOS, Verdict
from arbiter.evaluators import JudgeEvaluator
from arbiter.harness import Case, Limits, Score, Suite, load_suite
from arbiter.harness.journal import run_folder
from arbiter.harness.reports.report import load_report
from arbiter.harness.targets import TargetFile
from arbiter.memory import EvalContext, EvaluationCycle
from arbiter.models import ChatJudge, JudgeRequest
from arbiter.personas import GateConfig, Persona, PersonaGate
from tests.scripted import Named, Scripted, usage
from tests.support import MODES, PATIENCE, Check, Spy, State, chain

ILKA = Persona("Ilka", "A retired harbour pilot.", "ilka")
GRADE = '{"reasoning": "fine", "score": 8}'


def model(*answers: str, tokens: tuple[int, int] = (7, 3)) -> Scripted:
    return Scripted(answers=[AIMessage(answer, usage_metadata=usage(*tokens)) for answer in answers])


def asking(writer: Scripted) -> Callable[[Any], str]:
    return lambda given: str(writer.invoke("Hi").text)


def cases(count: int) -> list[Case]:
    return [Case(f"case-{number}", number) for number in range(count)]


@pytest.mark.parametrize("kind", ["function", "async", "decorated", "graph", "thread"])
def test_the_model_calls_of_the_target_are_counted(kind: str) -> None:
    writer = model("Hello.")

    def write(given: Any) -> str:
        return str(writer.invoke("Hi").text)

    async def awrite(given: Any) -> str:
        return str((await writer.ainvoke("Hi")).text)

    def node(state: State) -> State:
        return {"log": [write(state)]}

    def elsewhere(state: State, config: RunnableConfig) -> State:
        """Calls the model on a thread that knows nothing of the run but its config."""
        with ThreadPoolExecutor(1) as pool:
            return {"log": [str(pool.submit(writer.invoke, "Hi", config).result().text)]}

    def decorated(given: Any) -> Any:
        return awrite(given)

    targets: dict[str, Any] = {
        "function": write,
        "async": awrite,
        "decorated": decorated,
        "graph": chain(node),
        "thread": chain(elsewhere),
    }
    target: Any = targets[kind]
    given = [Case("a", {"log": []}), Case("b", {"log": ["b"]})]
    report = Suite("spending", given, scorers={"tokens": lambda run: run.tokens <= 10}).run(target)
    assert report.rows["tokens"].mean == 1.0
    assert (report.usage["target"].tokens, report.usage["target"].calls) == (20, 2)


def test_a_call_that_does_not_say_makes_the_sum_a_lower_bound() -> None:
    silent = Scripted(answers=["Hello."])
    report = Suite("silent", cases(2)).run(asking(silent))
    assert report.unknown_calls == 2
    assert report.usage["target"].usd is None


def test_the_judges_of_evaluators_have_a_purse_of_their_own() -> None:
    judge = model(GRADE)
    graph = chain(lambda_node)
    suite = Suite(
        "judged", [Case("a", {"log": []})], evaluators=[JudgeEvaluator("good", "It is good.", judge)]
    )
    report = suite.run(graph)
    assert report.rows["good"].cases == {"a": (0.8,)}
    assert report.usage["judge"].tokens == 10
    assert "target" not in report.usage
    assert report.identity.judges["good"].model


@pytest.mark.parametrize("silent", [0, 1])
def test_a_repair_without_usage_is_one_call_of_unknown_size(silent: int) -> None:
    answers = [AIMessage(text, usage_metadata=usage(60, 40)) for text in ("no JSON", GRADE)]
    answers[silent].usage_metadata = None
    suite = Suite(
        "one", cases_of_graph(1), evaluators=[JudgeEvaluator("good", "Good.", Scripted(answers=answers))]
    )
    report = suite.run(chain(Spy("plan")))
    assert (report.usage["judge"].tokens, report.unknown_calls) == (100, 1)
    assert "judge ≥ 100" in report.printed()


def test_tokens_that_a_call_of_the_target_did_not_report_pass_no_limit(project: Path) -> None:
    """Else a model that counts nothing would keep within any number."""
    silent = Scripted(answers=["Hi"])
    expect: dict[str, Any] = {"max_tokens": 100, "condition": "tokens < 100"}
    data = {
        "suite": "silent",
        "scorers": [{"name": "tokens", "use": "tokens", "most": 100}],
        "cases": [{"id": "a", "input": 1, "expect": expect}],
    }
    (project / "suite.yaml").write_text(json.dumps(data))
    [result] = load_suite("suite.yaml").run(asking(silent), folder=None).results
    found = {score.name: (score.passed, score.outcome) for score in result.scores}
    assert found["expect.max_tokens"] == (False, "scored")
    assert found["expect.condition"] == (None, "error")
    assert found["tokens"] == (None, "abstained")


def test_a_call_of_the_target_that_failed_and_was_made_again_breaks_no_limit_of_tokens(project: Path) -> None:
    """Such as one that the provider refused because there were too many."""
    writer = Scripted(answers=[ConnectionError("429")]).with_fallbacks([model("Hi.")])
    data = {
        "suite": "again",
        "scorers": [{"name": "tokens", "use": "tokens", "most": 100}],
        "cases": [{"id": "a", "input": 1, "expect": {"max_tokens": 100, "condition": "tokens == 10"}}],
    }
    (project / "suite.yaml").write_text(json.dumps(data))

    def write(given: Any) -> str:
        return str(writer.invoke("Hi").text)

    [result] = load_suite("suite.yaml").run(write, folder=None).results
    assert [score.passed for score in result.scores] == [True, True, True]


def test_a_judge_of_a_derived_class_needs_no_more_than_a_model() -> None:
    class Own(ChatJudge):
        def __init__(self) -> None:
            self.model = model(GRADE)

    suite = Suite("own", cases_of_graph(1), evaluators=[JudgeEvaluator("good", "Good.", Own())])
    assert suite.run(chain(Spy("plan")), folder=None).rows["good"].mean == 0.8


def test_tokens_that_no_call_reported_are_unknown() -> None:
    judge = JudgeEvaluator("good", "Good.", Scripted(answers=[AIMessage(GRADE)]))
    suite = Suite("one", cases_of_graph(1), evaluators=[judge])
    assert "tokens   judge unknown   cost unknown" in suite.run(chain(Spy("plan"))).printed()


@MODES
def test_what_judges_cost_counts_if_the_run_is_denied(mode: str) -> None:
    """The node was judged as it ran, before a later one was denied."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", lambda history: Verdict.deny("no"), target_nodes=["pay"]))
    graph = chain(Spy("plan"), Spy("pay"))
    judge = JudgeEvaluator("good", "Good.", model(GRADE), target_nodes=["plan"])
    suite = Suite("denied", cases_of_graph(3), evaluators=[judge])
    options: Any = {"arbiter_os": arbiter_os}
    report = suite.run(graph, **options) if mode == "sync" else asyncio.run(suite.arun(graph, **options))
    assert {result.status for result in report.results} == {"denied"}
    assert (report.usage["judge"].calls, report.usage["judge"].tokens) == (3, 30)
    assert report.rows["good"].n == 0


def cases_of_graph(count: int) -> list[Case]:
    return [Case(f"case-{number}", {"log": [str(number)]}) for number in range(count)]


def lambda_node(state: State) -> State:
    return {"log": ["done"]}


def test_evaluators_leave_the_users_arbiter_os_after_the_run() -> None:
    arbiter_os = ArbiterOS()
    graph = arbiter_os.govern(chain(lambda_node))
    suite = Suite(
        "judged", [Case("a", {"log": []})], evaluators=[JudgeEvaluator("good", "Good.", model(GRADE))]
    )
    for _ in range(2):
        assert suite.run(graph, arbiter_os=arbiter_os).rows["good"].mean == 0.8
    assert list(arbiter_os.evaluators) == []


@pytest.mark.lengthy
@pytest.mark.parametrize("named", [False, True])
def test_the_judges_of_a_governed_graph_are_counted_and_named(named: bool) -> None:
    """They are asked by the rules of the graph, as in production."""
    arbiter_os, judge = ArbiterOS(), Named(model_name="tester", answers=model(GRADE).answers)
    arbiter_os.add_evaluator(JudgeEvaluator("good", "It is good.", judge))
    graph = arbiter_os.govern(chain(Spy("plan")))
    given = [Case("a", {"log": []}), Case("b", {"log": ["b"]})]
    suite = Suite("governed", given, evaluators=["good"] if named else [], limits=Limits(concurrency=1))
    report = suite.run(graph, arbiter_os=arbiter_os)
    assert (report.usage["judge"].tokens, report.usage["judge"].calls, judge.calls) == (20, 2, 2)
    assert report.results[0].usage["judge"]["tester"]["input_tokens"] == 7
    assert report.judges == {"named:tester": False}
    report.save_baseline("before.json")
    limited = replace(suite, limits=Limits(concurrency=1, tokens=5)).run(graph, arbiter_os=arbiter_os)
    assert [result.status for result in limited.results] == ["completed", "skipped_budget"]
    other = ArbiterOS()
    other.add_evaluator(JudgeEvaluator("good", "It is good.", model(GRADE)))
    compared = suite.run(
        other.govern(chain(Spy("plan"))), arbiter_os=other, baseline="before.json"
    ).comparison
    assert compared.rows["good"].reason.startswith("the judge of good changed: named:tester then")
    replayed = suite.run(graph, arbiter_os=arbiter_os, mode="record") and suite.run(
        graph, arbiter_os=arbiter_os, mode="mock"
    )
    assert (replayed.usage["judge"].tokens, replayed.usage["judge"].replayed_tokens) == (0, 20)


def judged(judge: Any, own: bool, **options: Any) -> Any:
    """The report of a run whose judge belongs to the graph itself, or to the suite."""
    arbiter_os, evaluator = ArbiterOS(), JudgeEvaluator("good", "It is good.", judge, **options)
    if own:
        arbiter_os.add_evaluator(evaluator)
    suite = Suite("judged", [Case("a", {"log": []})], evaluators=[] if own else [evaluator])
    return suite.run(arbiter_os.govern(chain(Spy("plan"))), arbiter_os=arbiter_os)


class ValidatingJudge(JudgeEvaluator):
    def validate(self, ctx: EvalContext) -> bool:
        return True


@pytest.mark.parametrize("own", [True, False])
def test_judges_that_the_evaluation_cycle_asks_are_counted(own: bool) -> None:
    arbiter_os, evaluator = ArbiterOS(), ValidatingJudge("good", "It is good.", model(GRADE))
    arbiter_os.add_evaluation_cycle(EvaluationCycle(agent_id="agent"))
    if own:
        arbiter_os.add_evaluator(evaluator)
    suite = Suite("cycle", [Case("a", {"log": []})], evaluators=[] if own else [evaluator])
    report = suite.run(arbiter_os.govern(chain(Spy("plan"))), arbiter_os=arbiter_os)
    [spent] = report.results[0].usage["judge"].values()
    assert (report.rows["good"].mean, spent["calls"], spent["input_tokens"]) == (0.8, 1, 7)


def waiting_for(released: Event) -> Scripted:
    def answer(prompt: str) -> str:
        return str(released.wait(PATIENCE))

    return Scripted(answers=[answer])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("answer", "outcome", "spent"),
    [
        (AIMessage("Good.", usage_metadata=usage(7, 3)), "abstained", (2, 20, 0)),
        (ValueError("down"), "error", (1, 0, 1)),
    ],
)
def test_the_judges_of_evaluators_that_fail_are_counted(
    answer: Any, outcome: str, spent: tuple[int, int, int], own: bool
) -> None:
    report = judged(Scripted(answers=[answer]), own)
    assert report.rows["good"].outcomes == {outcome: 1}
    found = report.usage["judge"]
    assert (found.calls, found.tokens, found.unknown_calls) == spent


@pytest.mark.parametrize("own", [True, False])
def test_a_judge_that_goes_on_behind_its_deadline_is_a_call_of_unknown_size(own: bool) -> None:
    released = Event()
    report = judged(waiting_for(released), own, deadline=0.05)
    released.set()
    assert report.rows["good"].outcomes == {"timeout": 1}
    assert (report.usage["judge"].calls, report.unknown_calls) == (1, 1)


def test_a_target_that_goes_on_behind_its_timeout_is_a_call_of_unknown_size() -> None:
    released = Event()
    report = Suite("late", cases(1), limits=Limits(case_timeout=0.05)).run(asking(waiting_for(released)))
    released.set()
    assert report.results[0].status == "timeout"
    assert (report.usage["target"].calls, report.unknown_calls) == (1, 1)


def test_judgements_of_a_governed_graph_that_a_killed_process_bought_are_counted() -> None:
    """The case is run and judged again, because its node evaluators read a history in memory."""
    arbiter_os, judge = ArbiterOS(), model(GRADE)
    arbiter_os.add_evaluator(JudgeEvaluator("good", "It is good.", judge))
    graph = arbiter_os.govern(chain(Spy("plan")))
    suite = Suite("killed", [Case("a", {"log": []}), Case("b", {"log": ["b"]})], limits=Limits(concurrency=1))
    suite.run(graph, arbiter_os=arbiter_os)
    path = run_folder("last") / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    bought = next(at for at, line in enumerate(lines) if json.loads(line).get("output_tokens"))
    path.write_text("".join(lines[: bought + 1]))
    resumed = suite.run(graph, arbiter_os=arbiter_os, resume="last")
    assert (judge.calls, resumed.usage["judge"].calls, resumed.usage["judge"].tokens) == (4, 3, 30)
    assert resumed.rows["good"].cases == {"a": (0.8,), "b": (0.8,)}


def test_a_rubric_judges_whole_runs(project: Path) -> None:
    (project / "app.py").write_text("def answer(given):\n    return 'a refund'\n")
    (project / "suite.yaml").write_text(
        "suite: rubric\ntarget: {function: app.py:answer}\n"
        "scorers: [{name: polite, use: judge, rubric: It is polite., judge: tester}]\n"
        "cases: [{id: a, input: {question: Refund}}]\n"
    )
    judge = model(GRADE)
    report = load_suite("suite.yaml", models={"tester": judge}).run()
    assert report.rows["polite"].mean == 0.8
    assert "a refund" in judge.prompt()
    assert "It is polite." in judge.prompt()
    assert report.usage["judge"].calls == 1


def test_a_judge_that_cannot_be_read_abstains(project: Path) -> None:
    (project / "app.py").write_text("def answer(given):\n    return 'a refund'\n")
    (project / "suite.yaml").write_text(
        "suite: rubric\ntarget: {function: app.py:answer}\n"
        "scorers: [{name: polite, use: judge, rubric: It is polite., judge: tester}]\n"
        "cases: [{id: a, input: 1}]\n"
    )
    report = load_suite("suite.yaml", models={"tester": model("no idea")}).run()
    assert report.rows["polite"].outcomes == {"abstained": 1}


def test_a_budget_keeps_cases_from_starting_and_a_resume_does_the_rest() -> None:
    writer = model("Hello.", tokens=(60, 40))
    suite = Suite("budget", cases(20), limits=Limits(concurrency=4, tokens=1000))
    report = suite.run(asking(writer))
    started = [result.status for result in report.results].count("completed")
    assert 10 <= started <= 13
    assert [result.status for result in report.results].count("skipped_budget") == 20 - started
    assert report.usage["target"].tokens == 100 * started
    assert report.comparison.exit_code == 5


def test_a_run_that_uses_its_budget_up_with_its_last_case_is_decided() -> None:
    """No case was kept from starting, so nothing is missing that a higher limit could add."""
    suite = Suite("budget", cases(3), limits=Limits(concurrency=1, tokens=300))
    report = suite.run(asking(model("Hello.", tokens=(60, 40))))
    assert [result.status for result in report.results] == ["completed"] * 3
    assert (report.stopped, report.comparison.exit_code) == (None, 0)


def test_a_resume_with_a_higher_budget_does_the_rest_once() -> None:
    writer = model("Hello.", tokens=(60, 40))

    def write(given: Any) -> str:
        return str(writer.invoke("Hi").text)

    Suite("budget", cases(20), limits=Limits(concurrency=4, tokens=1000)).run(write)
    report = Suite("budget", cases(20), limits=Limits(concurrency=4, tokens=5000)).run(write, resume="last")
    assert [result.status for result in report.results] == ["completed"] * 20
    assert writer.calls == 20
    assert report.usage["target"].tokens == 2000
    assert report.comparison.exit_code == 0


def test_judgements_that_were_paid_for_are_not_bought_again() -> None:
    judge = model(GRADE)
    suite = Suite("judged", [Case("a", {"log": []})], evaluators=[JudgeEvaluator("good", "Good.", judge)])
    graph = chain(lambda_node)
    suite.run(graph)
    path = run_folder("last") / "journal.jsonl"
    kept = [line for line in path.read_text().splitlines(keepends=True) if '"kind":"judgement"' in line]
    assert len(kept) == 1
    lines = path.read_text().splitlines(keepends=True)
    at = lines.index(kept[0])
    path.write_text("".join(lines[: at + 1]))
    report = suite.run(graph, resume="last")
    assert judge.calls == 1
    assert report.rows["good"].mean == 0.8


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ("gpt-4o-mini", "the judge named:gpt-4o-mini is also the model of the target"),
        ("o3", "the judge named:o3 is of the family of the target's gpt-4o-mini, whose style it may prefer"),
        ("claude-sonnet-4-5", ""),
    ],
)
def test_a_judge_of_the_targets_family_is_reported(judge: str, said: str) -> None:
    writer, reader = priced("Hello."), Named(answers=[GRADE], model_name=judge)
    report = Suite("judged", cases(1), scorers=[Asking(ChatJudge(reader))]).run(asking(writer))
    shown = " ".join(report.printed().split())
    assert said in shown
    assert bool(said) is ("the judge named:" in shown)


def test_lint_names_a_gate_that_has_the_judge_of_a_row() -> None:
    """A gate tunes texts to its judge, which then finds them good."""
    reader = Named(answers=[GRADE], model_name="m-1")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(PersonaGate(reader, ILKA, GateConfig(gate_fluency_enabled=True)))
    graph = arbiter_os.govern(chain(lambda_node))
    suite = Suite("judged", cases_of_graph(1), scorers=[Asking(ChatJudge(reader))], target=graph)
    [remark] = suite.lint()
    assert remark.startswith("the judge of asked, named:m-1, is also that of the gate 'persona', which tunes")
    other = replace(suite, scorers=[Asking(ChatJudge(Named(answers=[GRADE], model_name="m-2")))])
    assert other.lint() == []


def test_lint_names_an_evaluator_that_reads_no_key_of_the_state() -> None:
    """Otherwise each of its evaluations abstains, after the run was paid for."""
    judged = JudgeEvaluator("good", "It is good.", model(GRADE), key="logs")
    suite = Suite("judged", [Case("a", {"log": []})], evaluators=[judged], target=chain(Spy("plan")))
    [remark] = suite.lint()
    assert remark.startswith("the evaluator 'good' reads 'logs', which is not a key of the graph's state.")
    assert "Did you mean 'log'?" in remark
    known = JudgeEvaluator("good", "It is good.", model(GRADE), key="log")
    assert replace(suite, evaluators=[known], target=chain(Spy("plan"))).lint() == []


def test_lint_names_a_store_that_all_cases_share() -> None:
    """A case would find the memories of others in it, in an order that depends on which case was quick."""

    def made() -> Any:
        return chain(Spy("plan"), store=InMemoryStore())

    suite = Suite("shared", [Case("a", {"log": []}, expect={"completes": True})], target=made)
    [remark] = suite.lint()
    assert remark.startswith("the graph has a store that all cases share")
    Path("made.py").write_text(
        "from langgraph.store.memory import InMemoryStore\n"
        "from tests.support import Spy, chain\n"
        "def graph(): return chain(Spy('plan'), store=InMemoryStore())\n"
    )
    assert replace(suite, target=TargetFile(graph="made.py:graph", fresh=True)).lint() == []


def killed_after(count: int, **about: Any) -> None:
    """Cut the journal of the last run after that many lines about this, as a kill would have."""
    path = run_folder("last") / "journal.jsonl"
    kept: list[str] = []
    for text in path.read_text().splitlines(keepends=True):
        kept.append(text)
        count -= about.items() <= json.loads(text).items()
        if not count:
            break
    path.write_text("".join(kept))


class Asking:
    """A scorer that asks a judge, and tells the tokens of the run."""

    name = "asked"

    def __init__(self, judge: Any) -> None:
        self.judge = judge

    def with_judges(self, wrap: Callable[[Any], Any], votes: int | None = None) -> Asking:
        return Asking(wrap(self.judge))

    def score(self, run: Any) -> Score:
        request = JudgeRequest(
            purpose="grade", propositions=(), messages=(HumanMessage(run.case.id),), schema=Grade
        )
        self.judge.judge(request)
        return Score("asked", run.tokens, scale=(0, 100))


class Grade(BaseModel):
    score: float


def priced(answer: str) -> Scripted:
    said = {"model_name": "gpt-4o-mini"}
    return Scripted(answers=[AIMessage(answer, usage_metadata=usage(7, 3), response_metadata=said)])


def bought_twice(writer: Scripted, reader: Scripted) -> tuple[Suite, Callable[[Any], str]]:
    """A suite of two cases that each call `writer` twice and `reader` once, one after another."""
    suite = Suite(
        "twice", cases(2), scorers=[Asking(ChatJudge(reader))], limits=Limits(concurrency=1, usd=1000)
    )
    return suite, lambda given: f"{writer.invoke('Hi').text} {writer.invoke('Hi').text}"


@pytest.mark.parametrize("purse", ["target", "judge"])
def test_a_call_that_fails_does_not_end_a_run_with_a_limit_in_dollars(purse: str) -> None:
    """What it cost is unknown, so the cost is a lower bound. A model without a price ends the run."""
    writer, reader = priced("Hello."), priced(GRADE)
    failing = writer if purse == "target" else reader
    failing.answers.insert(0, ValueError("refused"))
    suite = Suite(
        "failing", cases(4), scorers=[Asking(ChatJudge(reader))], limits=Limits(concurrency=1, usd=1000)
    )
    report = suite.run(asking(writer))
    assert (report.stopped, report.unknown_calls) == (None, 1)
    assert [result.status for result in report.results].count("completed") == 3 + (purse == "judge")
    assert report.usage[purse].usd is not None
    assert "cost ≥ $0.00" in report.printed()


@pytest.mark.parametrize(
    ("lines", "about", "unknown"),
    [
        (1, {"kind": "session"}, 0),
        (1, {"kind": "spent", "purse": "target", "running": 1}, 1),
        (1, {"kind": "spent", "purse": "target", "input_tokens": 7}, 0),
        (2, {"kind": "spent", "purse": "target", "running": 1}, 1),
        (2, {"kind": "spent", "purse": "target", "input_tokens": 7}, 0),
        (1, {"kind": "answer"}, 0),
        (1, {"kind": "spent", "purse": "judge", "running": 1}, 1),
        (1, {"kind": "spent", "purse": "judge", "input_tokens": 7}, 0),
        (1, {"kind": "judgement"}, 0),
        (1, {"kind": "case"}, 0),
        (2, {"kind": "spent", "case": "case-1", "running": 1}, 1),
    ],
)
def test_what_a_killed_run_had_bought_counts_once(lines: int, about: dict[str, Any], unknown: int) -> None:
    """Calls of the target and of the judge; a call whose answer never came is an unknown call."""
    writer, reader = priced("Hello."), priced(GRADE)
    suite, write = bought_twice(writer, reader)
    whole = suite.run(write)
    killed_after(lines, **about)
    before = load_report(run_folder("last")).usage
    told = {purse: spent.calls for purse, spent in before.items()}
    writer.asked.clear()
    reader.asked.clear()
    resumed = suite.run(write, resume="last")
    assert {purse: spent.calls for purse, spent in resumed.usage.items()} == {
        "target": told.get("target", 0) + writer.calls,
        "judge": told.get("judge", 0) + reader.calls,
    }
    assert resumed.unknown_calls == unknown
    known = sum(spent.calls for spent in resumed.usage.values()) - unknown
    assert sum(spent.tokens for spent in resumed.usage.values()) == 10 * known
    assert resumed.rows["asked"].values == whole.rows["asked"].values == {"case-0": 20, "case-1": 20}
    assert resumed.stopped is None  # a limit in dollars does not end a run because a call was lost
    assert load_report(run_folder("last")).usage == resumed.usage
