"""A run is recorded once, and replayed without a model and without running the graph."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial, update_wrapper
from operator import itemgetter
from pathlib import Path
from threading import Semaphore
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain.agents.middleware import dynamic_prompt
from langchain.chat_models import init_chat_model
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel, ConfigDict

from arbiter.errors import ArbiterWarning, ConfigurationError
from arbiter.evaluators import JudgeEvaluator
from arbiter.harness import Case, CaseRun, GateSettings, Limits, Report, Selection, Suite
from arbiter.harness.files import load_suite
from arbiter.harness.journal import run_folder
from arbiter.harness.recordings import Place, Recording
from arbiter.harness.reports.markdown import render
from arbiter.harness.reports.report import load_report
from arbiter.models import ChatJudge, RecordingError
from tests.harness.test_spending import GRADE, Asking, model
from tests.scripted import Named, Scripted, ScriptedTools
from tests.support import Hold, Judge, Spy, State, chain, no_room_after, until

CASES = [Case("a", {"log": []}), Case("b", {"log": ["b"]})]


def without_timing(report: Report) -> dict[str, Any]:
    found = report.to_dict()
    found.pop("timing")
    return found


def graph(node: Any) -> Any:
    return chain(node)


def suite(rubric: str = "It is good.", judge: Any = None, cases: Any = CASES) -> Suite:
    return Suite(
        "recorded",
        cases,
        scorers={"size": lambda run: len(run.output["log"]) / 10},
        evaluators=[
            Judge("kind", half),
            JudgeEvaluator("good", rubric, model(GRADE) if judge is None else judge),
        ],
    )


def half(_: Any) -> float:
    return 0.5


def itself(given: Any) -> Any:
    return given


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.lengthy
def test_a_recorded_run_is_replayed_without_a_call(no_network: None) -> None:
    plan, judge = Spy("plan"), model(GRADE)
    recorded = suite(judge=judge).run(graph(plan), mode="record")
    assert (len(plan.calls), judge.calls) == (2, 2)
    replayed = [suite(judge=judge).run(graph(plan), mode="mock") for _ in range(2)]
    assert (recorded.usage["judge"].tokens, replayed[0].usage["judge"].replayed_tokens) == (20, 20)
    assert replayed[0].usage["judge"].tokens == 0
    assert (len(plan.calls), judge.calls) == (2, 2)
    assert without_timing(replayed[0]) == without_timing(replayed[1])
    assert replayed[0].rows["good"].cases == recorded.rows["good"].cases == {"a": (0.8,), "b": (0.8,)}
    assert replayed[0].rows["size"].cases == recorded.rows["size"].cases
    assert replayed[0].mode == "mock"
    assert replayed[0].identity.mode == "live"
    assert without_timing(load_report(run_folder("last"))) == without_timing(replayed[1])


def test_a_replay_compares_with_the_baseline_of_a_live_run(project: Path) -> None:
    plan = Spy("plan")
    suite().run(graph(plan), mode="record").save_baseline("baseline.json")
    replayed = suite().run(graph(plan), mode="mock", baseline="baseline.json")
    assert {row.verdict for row in replayed.comparison.rows.values()} <= {"steady", "underpowered"}
    assert replayed.comparison.exit_code == 0


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda: suite(rubric="It is brief."), "good"),
        (lambda: suite(cases=[CASES[0], Case("b", {"log": ["c"]})]), "b"),
        (lambda: suite(cases=[*CASES, Case("c", {"log": ["c"]})]), "c"),
    ],
)
def test_what_changed_since_is_named_before_anything_runs(changed: Any, said: str) -> None:
    plan = Spy("plan")
    suite().run(graph(plan), mode="record")
    plan.calls.clear()
    with pytest.raises(RecordingError) as caught:
        changed().run(graph(plan), mode="mock")
    assert f"the answer to {'a' if said == 'good' else said}" in str(caught.value)
    assert said in str(caught.value)
    assert plan.calls == []


PROMPT = "Answer."


def helper() -> str:
    return "by a helper"


def other_helper() -> str:
    return "by another helper"


def node(state: State) -> State:
    return {"log": [PROMPT + helper()]}


def other_node(state: State) -> State:
    return {"log": ["other", PROMPT + helper()]}


def branch(state: State) -> str:
    return "__end__"


def other_branch(state: State) -> str:
    return "node" if not state.get("log") else "__end__"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("body", "PROMPT in other_node is new, the function node is gone"),
        ("text", "PROMPT in node changed"),
        ("helper", "the function helper is gone, the function other_helper is new"),
        ("branch", "the function branch is gone, the function other_branch is new"),
        ("subgraph", "the function other_node is new"),
    ],
)
@pytest.mark.parametrize("mode", ["mock", "cache"])
def test_other_code_of_a_graph_makes_its_answers_stale(
    mode: str, changed: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that `run` gets has no file in the suite that could be compared. The message names what changed."""

    def measure(*, is_replay: bool) -> Report:
        body = other_node if is_replay and changed == "body" else node
        edge = other_branch if is_replay and changed == "branch" else branch
        builder = StateGraph(State).add_node("node", body).add_edge(START, "node")
        graph = builder.add_conditional_edges("node", edge, ["node", END]).compile()
        if changed == "subgraph":
            inner = StateGraph(State).add_node("in", other_node if is_replay else node).add_edge(START, "in")
            graph = StateGraph(State).add_node("node", inner.compile()).add_edge(START, "node").compile()
        suite = Suite("own", [Case("a", {"log": []})], cache="all" if mode == "cache" else "off")
        return suite.run(graph, mode="live" if mode == "cache" else "mock" if is_replay else "record")

    measure(is_replay=False)
    if changed == "text":
        monkeypatch.setitem(globals(), "PROMPT", "Answer at length.")
    elif changed == "helper":
        monkeypatch.setitem(globals(), "helper", other_helper)
    if mode == "mock":
        with pytest.raises(RecordingError, match=said):
            measure(is_replay=True)
    else:
        first = measure(is_replay=True).results[0].output
        assert first == measure(is_replay=True).results[0].output
        if changed != "branch":
            assert first != {"log": ["Answer.by a helper"]}


class Greeter:
    """A node that keeps its prompt."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.greeted: list[str] = []

    def greet(self, state: Any) -> Any:
        self.greeted.append(self.prompt)
        return {"messages": [AIMessage(self.prompt)]}


def first_k(state: Any, *, k: int) -> Any:
    return {"messages": [AIMessage("a" * k)]}


TOP_K = 3


def first_of_all(state: Any) -> Any:
    return {"messages": [AIMessage("a" * TOP_K)]}


class Stopping(BaseModel):
    """A node with fields."""

    stop: str = ""

    def stop_at(self, state: Any, *, k: int = 1) -> Any:
        return {"messages": [AIMessage(self.stop)]}


class Counting:
    """A decorator that is a class."""

    def __init__(self, node: Any) -> None:
        update_wrapper(self, node)
        self.calls = 0
        self.node = node

    def __call__(self, state: Any) -> Any:
        return self.node(state)


def first_of_none(state: Any) -> Any:
    return {"messages": [AIMessage("")]}


def ask_graph(state: Any, *, graph: Any) -> Any:
    return graph.invoke(state)


def agent(prompt: str, *, tool: str = "Say it.", dynamic: str | None = None) -> Any:
    def say(text: str) -> str:
        return text

    @dynamic_prompt
    def of_today(request: Any) -> str:
        return f"{dynamic}"

    say.__doc__ = tool
    middleware: list[Any] = [] if dynamic is None else [of_today]
    return create_agent(ScriptedTools(answers=["Hi."]), [say], system_prompt=prompt, middleware=middleware)


def of_one(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()


def as_update(said: AIMessage) -> dict[str, Any]:
    return {"messages": [said]}


def asking(prompt: str) -> Any:
    prompt_of = {"asked": itemgetter("messages")} | ChatPromptTemplate.from_template(prompt)
    return of_one(prompt_of | ScriptedTools(answers=["Hi."]) | as_update)


def calling(graph: Any) -> Any:
    def call(state: Any) -> Any:
        return graph.invoke(state)

    return of_one(call)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda: agent("Be brief."), lambda: agent("Be kind.")),
        (lambda: calling(agent("Be brief.")), lambda: calling(agent("Be kind."))),
        (lambda: agent("Be brief."), lambda: agent("Be brief.", tool="Shout it.")),
        (lambda: agent("", dynamic="Be brief."), lambda: agent("", dynamic="Be kind.")),
        (lambda: asking("Be brief."), lambda: asking("Be kind.")),
        (lambda: of_one(Greeter("Hi.").greet), lambda: of_one(Greeter("Hello.").greet)),
        (lambda: of_one(partial(first_k, k=1)), lambda: of_one(partial(first_k, k=2))),
        (lambda: of_one(Stopping(stop="a").stop_at), lambda: of_one(Stopping(stop="b").stop_at)),
        (lambda: of_one(partial(Stopping().stop_at, k=1)), lambda: of_one(partial(Stopping().stop_at, k=2))),
        (
            lambda: of_one(partial(ask_graph, graph=agent("Be brief."))),
            lambda: of_one(partial(ask_graph, graph=agent("Be kind."))),
        ),
        (lambda: of_one(Counting(first_of_all)), lambda: of_one(Counting(first_of_none))),
        (lambda: of_one(first_of_all), None),
    ],
    ids=[
        *("prompt", "inner graph", "tool", "middleware", "template", "object", "partial"),
        *("fields", "partial method", "given graph", "decorated", "constant"),
    ],
)
def test_other_prompts_and_arguments_of_a_graph_make_its_answers_stale(
    before: Any, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in no code of the user's nodes: LangChain, an object or a partial function keeps them."""
    suite = Suite("own", [Case("a", {"messages": [{"role": "user", "content": "Hi"}]})])
    suite.run(before(), mode="record")
    assert suite.run(before(), mode="mock").rows["completed"].mean == 1
    if after is None:
        monkeypatch.setitem(globals(), "TOP_K", 4)
    with pytest.raises(RecordingError, match=r"(argument|TOP_K in .*|of_today) changed|first_of_none is new"):
        suite.run((after or before)(), mode="mock")


class Locked(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    lock: Semaphore


CALLS: list[str] = []
KINDS = {"lock": Semaphore(), "kind": Locked}
LOOP: list[Any] = []
LOOP.append(LOOP)


def counting(state: Any) -> Any:
    CALLS.append(f"{len(KINDS)} {len(LOOP)}")
    return {"messages": [AIMessage("Hi.")]}


def test_a_constant_that_grows_or_has_no_json_form_leaves_the_answers_valid() -> None:
    suite = Suite("own", [Case("a", {"messages": [{"role": "user", "content": "Hi"}]})])
    suite.run(of_one(counting), mode="record")
    assert suite.run(of_one(counting), mode="mock").rows["completed"].mean == 1


@dataclass(frozen=True)
class Counted:
    n: int = 0


def two(state: Counted) -> dict[str, int]:
    return {"n": 2}


def three(state: Counted) -> dict[str, int]:
    return {"n": 3}


def test_other_code_behind_a_cache_makes_answers_stale() -> None:
    def graph(node: Any) -> Any:
        return (
            StateGraph(Counted).add_node("node", cast(Any, lru_cache(node))).add_edge(START, "node").compile()
        )

    suite = Suite("own", [Case("a", {"n": 1})])
    suite.run(graph(two), mode="record")
    assert suite.run(graph(two), mode="mock").rows["completed"].mean == 1
    with pytest.raises(RecordingError, match="the function three is new, the function two is gone"):
        suite.run(graph(three), mode="mock")


class Arbitrary(BaseModel):
    """A class without a JSON Schema, whose objects have no JSON."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    thread: threading.Thread | None = None
    lock: Any = None

    @classmethod
    def answer(cls, state: Any) -> Any:
        return {"messages": [AIMessage("Hi.")]}


class Unversioned:
    """A node whose version cannot be made."""

    @property
    def version(self) -> str:
        raise RuntimeError("there is no version")

    def __call__(self, state: Any) -> Any:
        return {"messages": [AIMessage("Hi.")]}


AROUND: list[Any] = [Arbitrary]
AROUND.extend([AROUND, Arbitrary(lock=threading.Lock())])
CONFIGURABLE = init_chat_model("openai:gpt-5-mini", configurable_fields="any")


def naming(state: Any, given: Any = None) -> Any:
    assert AROUND
    return {"messages": [AIMessage("Hi.")]} if CONFIGURABLE else {}


@pytest.mark.parametrize("body", [naming, partial(naming, given=AROUND), Arbitrary.answer, Unversioned()])
def test_values_that_have_no_version_fail_no_run(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a value that holds itself, and a model that is made, with its package and key, when it is asked."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    suite = Suite("own", [Case("a", {"messages": [{"role": "user", "content": "Hi"}]})])
    suite.run(of_one(body), mode="record")
    assert suite.run(of_one(body), mode="mock").rows["completed"].mean == 1


def remembering(state: Any, known: dict[str, str]) -> Any:
    known[str(len(known))] = "Hi."
    return {"messages": [AIMessage("Hi.")]}


def test_an_argument_that_grows_leaves_the_answers_valid() -> None:
    body, suite = partial(remembering, known={}), Suite("own", [Case("a", {"messages": []})])
    suite.run(of_one(body), mode="record")
    assert body.keywords["known"]
    assert suite.run(of_one(body), mode="mock").rows["completed"].mean == 1


@pytest.mark.lengthy
def test_recording_asks_only_missing_questions() -> None:
    plan, judge = Spy("plan"), model(GRADE)
    suite(judge=judge).run(graph(plan), mode="record")
    more = [*CASES, Case("c", {"log": ["c"]})]
    suite(judge=judge, cases=more).run(graph(plan), mode="record")
    assert (len(plan.calls), judge.calls) == (3, 3)
    assert suite(judge=judge, cases=more).run(graph(plan), mode="mock").rows["good"].n == 3
    assert judge.calls == 3


@pytest.mark.lengthy
@pytest.mark.parametrize("down", ["target", "judge", "unreadable"])
def test_what_failed_when_it_was_recorded_is_asked_again(down: str) -> None:
    """A service that was down for a moment is no finding about the agent."""
    plan, judge = Spy("plan"), model(GRADE)
    answers, update = judge.answers[:], plan.update
    if down != "target":
        judge.answers[:] = [ConnectionError("down") if down == "judge" else "no grade"]
    else:
        plan.update = {"log": "no list"}
    assert suite(judge=judge).run(graph(plan), mode="record").rows["good"].n == 0
    judge.answers[:], plan.update = answers, update
    suite(judge=judge).run(graph(plan), mode="record")
    assert suite(judge=judge).run(graph(plan), mode="mock").rows["good"].n == 2


@pytest.mark.parametrize("expect", [{"raises": "TypeError"}, {"completes": False}])
def test_a_failure_that_a_case_expects_is_recorded_once(expect: dict[str, Any]) -> None:
    plan = Spy("plan")
    plan.update = {"log": "no list"}
    failing = Suite("failing", [Case("a", {"log": []}, expect=expect)])
    for _ in range(2):
        assert failing.run(graph(plan), mode="record").results[0].passed
    assert len(plan.calls) == 1


@pytest.mark.lengthy
def test_a_judge_that_failed_is_asked_again_although_its_case_may_fail() -> None:
    judge = model(GRADE)
    answers = judge.answers[:]
    may_fail = suite(judge=judge, cases=[Case("a", {"log": []}, expect={"completes": False})])
    judge.answers[:] = [ConnectionError("down")]
    assert may_fail.run(graph(Spy("plan")), mode="record").rows["good"].n == 0
    judge.answers[:] = answers
    assert may_fail.run(graph(Spy("plan")), mode="record").rows["good"].n == 1


def test_the_parts_of_the_code_are_in_the_file_once_and_each_stale_case_names_its_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = Suite("own", [Case(name, {"log": [name]}) for name in "abc"])
    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    suite.run(graph, mode="record")
    assert Path("recordings/own/answers.jsonl").read_text().count("PROMPT in node") == 1
    monkeypatch.setitem(globals(), "PROMPT", "Answer at length.")
    with pytest.raises(RecordingError) as caught:
        suite.run(graph, mode="mock")
    assert str(caught.value).count("PROMPT in node changed") == 3


def test_a_stale_case_names_its_change_although_another_was_recorded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer of the other was the one that had the parts of the code in the file."""
    path = Path("recordings/own/answers.jsonl")
    cases = [Case(name, {"log": [name]}) for name in "abc"]
    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    Suite("own", cases).run(graph, mode="record")
    first = json.loads(path.read_text().partition("\n")[0])["case"]
    monkeypatch.setitem(globals(), "PROMPT", "Answer at length.")
    Suite("own", [case for case in cases if case.id == first]).run(graph, mode="record")
    assert path.read_text().count("PROMPT in node") == 2
    with pytest.raises(RecordingError) as caught:
        Suite("own", cases).run(graph, mode="mock")
    assert str(caught.value).count("PROMPT in node changed") == 2


def test_a_stale_case_names_some_of_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of Python may change all functions at once."""
    before: dict[str, Any] = {f"CONSTANT_{at}": at for at in range(9)}
    for name, value in before.items():
        monkeypatch.setitem(globals(), name, value)
    body: dict[str, Any] = {}
    exec(f"def naming(state): return {{'log': [str([{', '.join(before)}])]}}", globals(), body)
    graph = StateGraph(State).add_node("node", body["naming"]).add_edge(START, "node").compile()
    suite = Suite("own", [Case("a", {"log": []})])
    suite.run(graph, mode="record")
    for name in before:
        monkeypatch.setitem(globals(), name, "other")
    with pytest.raises(RecordingError) as caught:
        suite.run(graph, mode="mock")
    said = str(caught.value)
    assert said.count(" in naming changed") == 5
    assert "CONSTANT_4 in naming changed, 4 more parts of the code of its nodes changed\n" in said


def test_the_parts_of_the_code_are_written_once_while_cases_are_recorded() -> None:
    path = Path("recordings/own/answers.jsonl")
    counts: list[int] = []

    def count(session: Any) -> None:
        counts.append(path.read_text().count("PROMPT in node"))

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    suite = Suite("own", [Case(name, {"log": [name]}) for name in "abc"], limits=Limits(concurrency=1))
    suite.run(graph, mode="record", progress=count)
    assert counts == [1, 1, 1]


def test_a_recorded_answer_stays_small() -> None:
    """There is one for each case, in a file that is committed."""
    suite().run(graph(Spy("plan")), mode="record")
    first = Path("recordings/recorded/answers.jsonl").read_text().splitlines()[0]
    assert len(first) < 2_000


@pytest.mark.lengthy
def test_outdated_recordings_mark_the_report() -> None:
    suite().run(graph(Spy("plan")), mode="record")
    stale = Recording("recordings/recorded", allow_stale=True)
    report = suite(rubric="It is brief.").run(graph(Spy("plan")), mode="mock", recordings=stale)
    assert [each.partition(" ch")[0] for each in report.outdated] == [
        "the answer to a (repeat 1): rubric of good",
        "the answer to b (repeat 1): rubric of good",
    ]
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    head = f"mock · 2 cases · judge Scripted (uncalibrated) · recorded {today} · 2 recordings outdated"
    assert head in report.printed()
    assert head in load_report(run_folder("last")).printed()
    assert "outdated recordings were taken (--allow-stale): the answer to a (repeat 1)" in report.printed()
    assert without_timing(load_report(run_folder("last"))) == without_timing(report)


def test_old_answers_are_offered_where_all_that_is_missing_has_one() -> None:
    """They could not replace an answer that was never recorded."""
    suite().run(graph(Spy("plan")), mode="record")
    with pytest.raises(
        RecordingError, match="eval record`, or pass --allow-stale to measure with old answers"
    ):
        suite("It is brief.").run(graph(Spy("plan")), mode="mock")
    with pytest.raises(RecordingError, match=r"eval record`\.$"):
        suite(cases=[Case("c", {"log": ["c"]})]).run(graph(Spy("plan")), mode="mock")


def test_all_missing_answers_are_named_also_where_outdated_ones_are_taken() -> None:
    suite().run(graph(Spy("plan")), mode="record")
    cases = [*suite().cases, Case("c", {"log": ["c"]}), Case("d", {"log": ["d"]})]
    stale = Recording("recordings/recorded", allow_stale=True)
    with pytest.raises(RecordingError) as refused:
        suite("It is brief.", cases=cases).run(graph(Spy("plan")), mode="mock", recordings=stale)
    assert str(refused.value).splitlines() == [
        "2 recordings are missing or stale in 'recordings/recorded':",
        "  the answer to c (repeat 1): it was never recorded",
        "  the answer to d (repeat 1): it was never recorded",
        "Record what is missing with `arbiter eval record`.",
    ]
    assert len(list(Path(".arbiter/evals").glob("*/journal.jsonl"))) == 1  # nothing has run but the recording


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_recording_run_says_which_answers_it_cannot_keep(mode: str, hold: Hold) -> None:
    """A replay asks for them, and another recording alone would not help."""
    held = hold.then({"log": ["plan"]})
    late = Suite("late", CASES[:1], limits=Limits(case_timeout=0.05))
    said = "timeouts are not recorded, and a replay refuses to run without the answers of a. Raise limits.case_timeout"
    plan = graph(held)
    with pytest.warns(ArbiterWarning, match=said):
        report = (
            late.run(plan, mode="record") if mode == "sync" else asyncio.run(late.arun(plan, mode="record"))
        )
    assert report.results[0].status == "timeout"


def test_a_replay_says_that_it_tests_no_times() -> None:
    """Recordings have no times, so that a new one of the same answers is the same file."""
    cases = [
        Case("seconds", {"log": []}, expect={"max_seconds": 60}),
        Case("condition", {"log": ["b"]}, expect={"condition": "duration < 60.0"}),
        Case("neither", {"log": ["c"]}, expect={"condition": "output.log[0] != 'duration'"}),
    ]
    scorers = [
        {"name": name, "use": "seconds", **most} for name, most in (("quick", {"most": 9}), ("time", {}))
    ]
    plan, timed = graph(Spy("plan")), Suite("timed", cases, scorers=scorers)
    said = "a replay takes no time, so these say nothing: quick; time; expect of seconds (and 1 more)"
    assert said not in render(timed.run(plan, mode="record"))
    assert said in render(timed.run(plan, mode="mock"))
    assert said in render(load_report(run_folder("last")))


KIND = {"name": "kind", "use": "judge", "rubric": "It is kind.", "judge": "main"}


def judged(count: int, rubric: str = "It is kind.") -> Suite:
    cases = [Case(f"case-{number}", number) for number in range(count)]
    return Suite("judged", cases, scorers=[{**KIND, "rubric": rubric}], models={"main": model(GRADE)})


def test_a_judge_reads_a_recorded_state_as_it_was() -> None:
    """A state whose keys came back in another order was another question, and each replay was refused."""
    states = Suite("states", [Case("a", {"log": []})], scorers=[KIND], models={"main": model(GRADE)})
    plan = graph(Spy("plan", amount=1))
    for mode in ("record", "mock"):
        report = states.run(plan, mode=mode)
        assert list(report.results[0].output) == ["log", "amount"]
        assert report.rows["kind"].cases == {"a": (0.8,)}


def test_a_judge_of_an_output_that_is_not_json_is_asked_once() -> None:
    """A replay has its JSON form. A judge that was asked about the output itself had to be recorded once more."""
    read: list[str] = []

    def reading(run: CaseRun) -> bool:
        read.append(type(run.output["amount"]).__name__)
        return True

    scorers: list[Any] = [KIND, {"name": "fresh", "use": "fluency", "judge": "main"}, reading]
    states = Suite("states", [Case("a", {"log": []})], scorers=scorers, models={"main": model(GRADE)})
    plan = graph(Spy("plan", amount=AIMessage("Hello.", id="1")))
    with pytest.warns(
        ArbiterWarning, match="so judges, and the scorers of a replay, get it in its JSON form"
    ):
        recorded = states.run(plan, mode="record")
    replayed = states.run(plan, mode="mock")
    assert [row.cases for row in replayed.rows.values()] == [row.cases for row in recorded.rows.values()]
    assert read == ["AIMessage", "dict"]


def test_the_judgement_of_one_case_is_no_outdated_one_of_another() -> None:
    judged(2).run(itself, mode="record")
    stale = Recording("recordings/judged", allow_stale=True)
    with pytest.raises(RecordingError, match=r"(?s)1 recording is missing.*kind of case-2 "):
        judged(3, "It is short.").run(itself, mode="mock", recordings=stale)
    assert len(stale.outdated) == 2


def test_outdated_judgements_are_read_once_and_not_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(50).run(itself, mode="record")
    made: list[Place] = []

    class Counted(Place):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr("arbiter.harness.recordings.Place", Counted)
    with pytest.raises(RecordingError, match="50 recordings are missing or stale"):
        judged(50, "It is short.").run(itself, mode="mock")
    assert 50 <= len(made) < 500


@pytest.mark.parametrize("target", [graph(Spy("plan")), itself])
def test_a_replay_that_goes_on_knows_the_recordings_of_its_first_session(target: Any) -> None:
    """All are used, which `strict` asks for, and the report is that of a replay that was never stopped."""
    calls: list[str] = []

    def stopping(run: CaseRun) -> bool:
        calls.append(run.case.id)
        if len(calls) == 13:
            os.kill(os.getpid(), signal.SIGINT)
        return True

    graded = Suite(
        "graded",
        [Case(name, {"log": [name]}) for name in "abcde"],
        scorers=[stopping, Asking(ChatJudge(model(GRADE)))],
        gate=GateSettings(strict=True),
        limits=Limits(concurrency=1),
    )
    graded.run(target, mode="record")
    whole = graded.run(target, mode="mock")
    assert graded.run(target, mode="mock").stopped == "interrupted"
    resumed = graded.run(target, mode="mock", resume="last")
    assert without_timing(resumed) == without_timing(whole)


@pytest.mark.parametrize("scorers", [[], [Asking(ChatJudge(model(GRADE)))]])
def test_a_replay_of_a_function_that_goes_on_does_nothing_twice_but_ask_recordings(
    scorers: list[Any],
) -> None:
    """Each session has the time of `run_timeout`, which may be too short for all cases at once."""
    scored: list[str] = []

    def slow(run: CaseRun) -> bool:
        scored.append(run.case.id)
        return True

    def stop(session: Any) -> None:
        if len(session.results) == 3:
            session.stop("run_timeout")

    def same(given: Any) -> Any:
        return given

    cases = [Case(name, name) for name in "abcde"]
    graded = Suite("graded", cases, scorers=[slow, *scorers], limits=Limits(concurrency=1))
    graded.run(same, mode="record")
    scored.clear()
    assert graded.run(same, mode="mock", progress=stop).stopped == "run_timeout"
    assert graded.run(same, mode="mock", resume="last").stopped is None
    assert scored == [*"abcde"]


def test_a_replay_that_was_refused_is_in_no_report_a_pass(tmp_path: Path) -> None:
    """One stale judgement of twenty is an error that the gate tolerates."""
    cases = [Case(f"case-{number}", number) for number in range(20)]
    judge = Asking(ChatJudge(model(GRADE)))
    graded = Suite("graded", cases, scorers=[judge])
    graded.run(itself, mode="record").save_baseline(tmp_path / "baseline.json")
    recorded = Path("recordings/graded/judgements.jsonl")
    lines = recorded.read_text().splitlines(keepends=True)
    recorded.write_text("".join(line for line in lines if '"case": "case-7"' not in line))
    with pytest.raises(RecordingError, match="1 recording is missing or stale"):
        graded.run(itself, mode="mock")
    report = load_report(run_folder("last"), baseline=tmp_path / "baseline.json")
    assert report.rows["asked"].outcomes["error"] == 1
    assert report.comparison.exit_code == 5
    assert "graded is undecided: 1 recording is missing or stale in 'recordings/graded'" in report.printed()
    with pytest.raises(ConfigurationError, match="cannot be a baseline: 1 recording is missing or stale"):
        report.save_baseline(tmp_path / "other.json")


@pytest.mark.lengthy
def test_a_judge_that_answers_after_the_end_of_the_run_is_late(
    hold: Hold, caplog: pytest.LogCaptureFixture
) -> None:
    judge = JudgeEvaluator("good", "It is good.", Scripted(answers=[hold.then(GRADE)]))
    late = Suite("late", CASES[:1], evaluators=[judge], limits=Limits(score_timeout=0.05))
    report = late.run(graph(Spy("plan")))
    assert (report.stopped, report.rows["good"].outcomes["timeout"]) == ("stuck", 1)
    hold.release()
    until(lambda: "evaluator good failed" in caplog.text)
    assert f"TimeoutError: the run {report.run_id} has ended meanwhile" in caplog.text


@pytest.mark.lengthy
def test_recordings_that_no_case_needs_are_reported_and_refused_if_strict() -> None:
    suite().run(graph(Spy("plan")), mode="record")
    fewer = suite(cases=CASES[:1])
    report = fewer.run(graph(Spy("plan")), mode="mock")
    assert report.unused == ("the answer of b (repeat 1)",)
    assert "recordings that no case needs: the answer of b (repeat 1)" in render(report)
    assert suite().run(graph(Spy("plan")), mode="mock", select=Selection(ids=["a"])).unused == ()
    strict = replace(fewer, gate=GateSettings(strict=True))
    with pytest.raises(RecordingError, match=r"1 of the recordings in .* the first for the answer of b"):
        strict.run(graph(Spy("plan")), mode="mock")
    again = Recording("recordings/recorded", "record", again=True)
    fewer.run(graph(Spy("plan")), mode="record", recordings=again)
    assert strict.run(graph(Spy("plan")), mode="mock").unused == ()


@pytest.mark.lengthy
@pytest.mark.parametrize("down", ["target", "judge"])
def test_recording_all_again_keeps_answers_where_the_new_ones_fail(
    down: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan, judge = Spy("plan"), model(GRADE)
    recorded = suite(judge=judge).run(graph(plan), mode="record")
    answers = Path("recordings/recorded/answers.jsonl")
    before = answers.read_text()
    if down != "target":
        judge.answers[:] = [ConnectionError("down") if down == "judge" else "no grade"]
    else:
        plan.update = {"log": "no list"}
    again = Recording("recordings/recorded", "record", again=True)
    failed = suite(judge=judge).run(graph(plan), mode="record", recordings=again)
    assert failed.rows["good"].n == 0
    assert answers.read_text() == before
    assert "recordings stay as before, because no new answer came." in caplog.text
    replayed = suite(judge=judge).run(graph(plan), mode="mock")
    assert replayed.rows["good"].cases == recorded.rows["good"].cases


def test_recording_all_again_keeps_judgements_of_cases_that_fail() -> None:
    down: list[Exception] = []

    def target(given: Any) -> Any:
        if down:
            raise down.pop()
        return given

    judged = Suite("judged", CASES, scorers=[Asking(ChatJudge(model(GRADE)))])
    judged.run(target, mode="record")
    before = Path("recordings/judged/judgements.jsonl").read_text()
    down.append(ConnectionError("down"))
    again = Recording("recordings/judged", "record", again=True)
    judged.run(target, mode="record", recordings=again)
    assert Path("recordings/judged/judgements.jsonl").read_text() == before
    assert judged.run(target, mode="mock").rows["asked"].n == 2


def test_the_head_of_a_replay_names_the_days_of_its_recordings() -> None:
    suite().run(graph(Spy("plan")), mode="record")
    answers = Path("recordings/recorded/answers.jsonl")
    first, *others = map(json.loads, answers.read_text().splitlines())
    first["recorded"] = "2026-01-31"
    answers.write_text("".join(f"{json.dumps(line)}\n" for line in (first, *others)))
    report = suite().run(graph(Spy("plan")), mode="mock")
    assert f"recorded 2026-01-31 to {datetime.now(UTC):%Y-%m-%d}" in report.printed()
    suite().run(graph(Spy("plan")), mode="record")
    assert "2026-01-31" in answers.read_text()  # it is still valid, so it was not asked for again


def test_one_process_records_a_suite_at_a_time() -> None:
    folder = Path("recordings/recorded")
    recordings = Recording(folder, "record")
    with pytest.raises(RecordingError, match="another process, or another suite of that name, records it"):
        suite().run(graph(Spy("plan")), mode="record")
    recordings.close()
    assert not folder.exists()  # nothing was recorded
    with pytest.raises(ConfigurationError, match="no case is named"):
        suite().run(graph(Spy("plan")), mode="record", select=Selection(ids=["x"]))
    suite().run(graph(Spy("plan")), mode="record")
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 2


def test_recordings_that_cannot_be_written_are_refused_before_the_first_case(project: Path) -> None:
    (project / "recordings").write_text("")
    plan = Spy("plan")
    with pytest.raises(
        RecordingError,
        match=r"the folder 'recordings/recorded' of recordings: it cannot be written: 'recordings' is not a folder",
    ):
        suite().run(graph(plan), mode="record")
    (project / "recordings").unlink()
    with pytest.raises(RecordingError, match="of recordings: it cannot be written: File name too long"):
        Suite("s" * 300, [Case("a", 1)]).run(graph(plan), mode="record")
    assert not plan.calls


def test_a_file_behind_a_link_is_written(project: Path) -> None:
    (project / "shared").mkdir()
    (project / "recordings/recorded").mkdir(parents=True)
    links = [project / "recordings/recorded/answers.jsonl", project / "baseline.json"]
    for link in links:
        link.symlink_to(project / "shared" / link.name)
    suite().run(graph(Spy("plan")), mode="record").save_baseline("baseline.json")
    assert all(link.is_symlink() and (project / "shared" / link.name).stat().st_size for link in links)


def test_recording_goes_on_behind_a_torn_line() -> None:
    suite().run(graph(Spy("plan")), mode="record")
    answers = Path("recordings/recorded/answers.jsonl")
    answers.write_text(answers.read_text()[:-9])
    with pytest.warns(ArbiterWarning, match="torn last line"):
        recordings = Recording("recordings/recorded", "record")
    # The process is killed again, so nothing sorts the file.
    recordings.keep_answer(Place("c"), input={}, target={}, answer={"status": "completed"})
    cases = [json.loads(line)["case"] for line in answers.read_text().splitlines()]
    assert (len(cases), cases[-1]) == (2, "c")


def test_a_full_disk_leaves_no_half_line_before_the_next_one() -> None:
    """The next answer would be lost with it, and the whole file refused."""
    recordings = Recording("recordings/recorded", "record")

    def keep(case: str) -> None:
        recordings.keep_answer(Place(case), input=case, target={}, answer={"status": "completed"})

    keep("a")
    answers = Path("recordings/recorded/answers.jsonl")
    with no_room_after(answers.stat().st_size + 30), pytest.raises(OSError, match="File too large"):
        keep("b")
    keep("c")  # the process is killed then, so nothing sorts the file
    assert [json.loads(line)["case"] for line in answers.read_text().splitlines()] == ["a", "c"]


def test_half_of_a_surrogate_pair_is_recorded_as_a_report_has_it() -> None:
    recordings = Recording("recordings/recorded", "record")
    recordings.keep_answer(Place("a"), input="a", target={}, answer={"status": "failed", "error": "\ud83d"})
    answers = Path("recordings/recorded/answers.jsonl")
    assert json.loads(answers.read_text())["answer"]["error"] == "\ud83d"


def test_a_line_torn_within_a_character_is_left_out() -> None:
    recordings = Recording("recordings/recorded", "record")
    for said in ("café", "thé"):
        recordings.keep_answer(Place(said), input=said, target={}, answer={"status": "completed"})
    recordings.close()
    answers = Path("recordings/recorded/answers.jsonl")
    content = answers.read_bytes()
    answers.write_bytes(content[: content.rindex("é".encode()) + 1])
    with pytest.warns(ArbiterWarning, match="torn last line"):
        Recording("recordings/recorded", "record")
    assert answers.read_bytes() == content.splitlines(keepends=True)[0]


def test_a_last_line_without_its_line_end_is_kept() -> None:
    """Some editors remove it."""
    suite().run(graph(Spy("plan")), mode="record")
    answers = Path("recordings/recorded/answers.jsonl")
    whole = answers.read_text()
    answers.write_text(whole.removesuffix("\n"))
    suite().run(graph(Spy("plan")), mode="record")
    assert answers.read_text() == whole


@pytest.mark.lengthy
def test_lines_of_another_format_stay_until_they_are_recorded_again() -> None:
    """A run that is refused, or of some cases, throws none away."""
    suite().run(graph(Spy("plan")), mode="record")
    answers = Path("recordings/recorded/answers.jsonl")
    other = answers.read_text().replace('"v": 1', '"v": 2')

    def recorded(asked: Suite, select: Selection | None = None) -> list[int]:
        answers.write_text(other)
        with pytest.warns(ArbiterWarning, match="expected a recording, got a line of format 2"):
            asked.run(graph(Spy("plan")), mode="record", select=select)
        return sorted(json.loads(line)["v"] for line in answers.read_text().splitlines())

    with pytest.raises(ConfigurationError, match="no row 'none'"):
        recorded(replace(suite(), gate=GateSettings(rows=["none"])))
    assert [json.loads(line)["v"] for line in answers.read_text().splitlines()] == [2, 2]
    assert recorded(suite(), Selection(ids=["a"])) == [1, 2]
    other += '{"v": 2, "answer": null}\n{"v": 2, "answer": "output"}\n'
    assert recorded(suite(), Selection(ids=["a"])) == [1, 2, 2, 2]
    assert recorded(suite()) == [1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"key": []},
        {"case": None},
        {"recorded": []},
        {"answer": {}},
        {"answer": {"status": "done"}},
        {"answer": {"status": "completed", "evaluations": 5}},
        {"answer": {"status": "completed", "usage": {"m": 5}}},
    ],
)
def test_a_recording_of_another_form_is_named_and_recorded_again(change: dict[str, Any]) -> None:
    suite().run(graph(Spy("plan")), mode="record")
    answers = Path("recordings/recorded/answers.jsonl")
    whole = answers.read_text()
    first, second = whole.splitlines()
    answers.write_text(f"{json.dumps(json.loads(first) | change)}\n{second}\n")
    with pytest.raises(
        RecordingError, match=r"answers.jsonl:1: expected a recording, got an? .* Record again"
    ):
        suite().run(graph(Spy("plan")), mode="mock")
    with pytest.warns(ArbiterWarning, match="what it was about is asked again"):
        suite().run(graph(Spy("plan")), mode="record")
    assert answers.read_text() == whole


def test_nothing_recorded_is_no_pass() -> None:
    with pytest.raises(RecordingError, match="there are no recordings in"):
        suite().run(graph(Spy("plan")), mode="mock")


def test_the_answers_of_a_function_are_recorded_if_its_target_says_so(project: Path) -> None:
    """Such as of a function that asks a model."""
    calls = project / "calls.txt"
    (project / "asking.py").write_text(
        "def answer(given):\n"
        "    with open('calls.txt', 'a') as file:\n"
        "        file.write(given)\n"
        "    return 'Yes.'\n"
    )
    (project / "prompt.txt").write_text("Be kind.")
    target = {"function": "asking.py:answer", "record": True, "watch": ["prompt.txt"]}
    scorers = [{"name": "yes", "use": "contains", "text": "Yes"}]
    data = {"suite": "asking", "target": target, "scorers": scorers, "cases": [{"id": "a", "input": "Hi"}]}
    (project / "suite.yaml").write_text(json.dumps(data))
    with pytest.raises(RecordingError, match="no recordings"):
        load_suite("suite.yaml").run(mode="mock")
    for mode in ("record", "mock", "record"):
        assert load_suite("suite.yaml").run(mode=mode).rows["yes"].mean == 1
    assert calls.read_text() == "Hi"
    for file in ("asking.py", "prompt.txt"):
        before = Path(file).read_text()
        Path(file).write_text(f"{before}\n# changed\n")
        with pytest.raises(RecordingError, match=f"the answer to a .*: the file {file} changed"):
            load_suite("suite.yaml").run(mode="mock")
        Path(file).write_text(before)
    (project / "suite.yaml").write_text(json.dumps({**data, "target": {**target, "record": False}}))
    assert load_suite("suite.yaml").run(mode="mock").rows["yes"].mean == 1
    assert calls.read_text() == "HiHi"


def test_a_function_without_judges_needs_no_recordings() -> None:
    """So that one command replays all suites of a project."""

    def answer(given: Any) -> str:
        return "Yes."

    plain = Suite("plain", CASES, scorers={"short": lambda run: len(run.output) < 9})
    plain.run(answer, mode="record")
    assert plain.run(answer, mode="mock").rows["short"].mean == 1.0


def test_the_tokens_of_recorded_answers_cost_nothing() -> None:
    writer = model("Hello.")

    def write(state: State) -> State:
        return {"log": [str(writer.invoke("Hi").text)]}

    def tokens(run: CaseRun) -> bool:
        return run.tokens == 10

    spending = Suite("spending", CASES, scorers=[tokens])
    assert spending.run(graph(write), mode="record").usage["target"].tokens == 20
    replayed = spending.run(graph(write), mode="mock")
    assert replayed.rows["tokens"].mean == 1.0
    assert (replayed.usage["target"].tokens, replayed.usage["target"].replayed_tokens) == (0, 20)


def test_an_unknown_mode_is_refused() -> None:
    mode: Any = "mok"
    with pytest.raises(ValueError, match="mode is 'mok'"):
        suite().run(graph(Spy("plan")), mode=mode)


@pytest.mark.parametrize("mode", ["mock", "cache"])
@pytest.mark.parametrize("changed", ["model", "temperature", "votes"])
def test_another_judge_of_a_node_evaluator_makes_its_recorded_scores_stale(mode: str, changed: str) -> None:
    """The scores of node evaluators are kept with the answers, and no judgement of theirs is replayed."""

    def measured(name: str, temperature: float | None, votes: int | None) -> tuple[Suite, Named]:
        judge = Named(answers=[GRADE], model_name=name)
        asked = judge if temperature is None else judge.bind(temperature=temperature)
        evaluators = [JudgeEvaluator("good", "It is good.", asked)]
        cache: Any = "off" if mode == "mock" else "all"
        return Suite("judged", CASES, evaluators=evaluators, cache=cache, votes=votes), judge

    first, _ = measured("gpt-5-mini", None, None)
    first.run(graph(Spy("plan")), mode="record" if mode == "mock" else "live")
    name, temperature, votes = "gpt-5-mini", None, None
    if changed == "model":
        name = "gpt-5-nano"
    elif changed == "temperature":
        temperature = 0.7
    else:
        votes = 3
    other, judge = measured(name, temperature, votes)
    if mode == "cache":
        assert other.run(graph(Spy("plan"))).rows["good"].n == 2
        assert judge.calls > 0
        return
    what = {"votes": "number of votes", "temperature": "arguments of the judge"}.get(
        changed, "model of the judge"
    )
    with pytest.raises(RecordingError, match=f"the answer to a .*: {what} of good changed"):
        other.run(graph(Spy("plan")), mode="mock")


@pytest.mark.lengthy
def test_a_report_names_a_judge_that_its_provider_answers_with_another_model(project: Path) -> None:
    """The name that was asked for stays the same, so its rows are compared all the same."""

    def measured(answering: str, mode: Any = "live") -> Report:
        answer = AIMessage(GRADE, response_metadata={"model_name": answering})
        judge = Named(answers=[answer], model_name="gpt-5-mini")
        return suite(judge=judge).run(graph(Spy("plan")), mode=mode, baseline=baseline)

    baseline = None
    assert measured("gpt-5-mini-1", "record").to_dict()["identity"]["judges"]["good"]["returned"] == [
        "gpt-5-mini-1"
    ]
    measured("gpt-5-mini-1").save_baseline("good.json")
    baseline = "good.json"
    said = "the judge of good answers as gpt-5-mini-2, and in the baseline as gpt-5-mini-1"
    for same in (measured("gpt-5-mini-1"), measured("gpt-5-mini-2", "mock")):
        assert said not in " ".join(same.printed().split())
    other = measured("gpt-5-mini-2")
    assert said in " ".join(other.printed().split())
    assert said in render(other)
    assert other.comparison.exit_code == 0
    assert other.rows["good"].cases == {"a": (0.8,), "b": (0.8,)}


SCRIPT = """
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from string import capwords
from helpful import Base, helped, retried
from langgraph.graph import START, StateGraph
from arbiter.harness import Case, Suite

def named(state):
    return {"log": named.__name__}

def inside(folder, notes):
    notes.append(notes)
    return lambda state: {"log": [folder][0] and "x"}

@retried
def dumped(state):
    return {"log": helped(capwords(state["log"]))}

class Last(Base):
    def __call__(self, state):
        return {"log": state["log"]}

@dataclass
class Option:
    width: int

def by_name(state, folders=(), options=()):
    return {}

HANDLERS = {by_name: Option, Option(3).width: Option(4), "names": {"a", "b", "c", "d", "e"}}
SETTINGS = {"folder": Path(sys.argv[-1]).absolute(), "api_key": sys.argv[-1], "folders": [Path(sys.argv[-1])]}

@retried
def configured(state):
    return {} if HANDLERS and SETTINGS else None

class Keeping:
    def __init__(self, options):
        self.options = options

    def keep(self, state):
        return {}

without_source = {}
exec("def known(state): return {'log': str(state['log'] in {'a', 'b', 'c', 'd', 'e'})}", without_source)

def main(mode):
    builder = StateGraph(dict).add_node("named", named).add_edge(START, "named")
    builder.add_node("known", without_source["known"]).add_edge("named", "known")
    builder.add_node("inside", inside(str(Path(sys.argv[1]).absolute()), [])).add_edge("known", "inside")
    builder.add_node("dumped", dumped).add_edge("inside", "dumped")
    builder.add_node("last", Last()).add_edge("dumped", "last")
    builder.add_node("configured", configured).add_edge("last", "configured")
    builder.add_node("keeping", Keeping([Option(3), Path(sys.argv[-1])]).keep).add_edge("configured", "keeping")
    given = functools.partial(by_name, folders=[Path(sys.argv[-1])], options=[Option])
    builder.add_node("given", given).add_edge("keeping", "given")
    Suite("own", [Case("a", {"log": "a"})]).run(builder.compile(), mode=mode)
"""

HELPFUL = """
from functools import wraps

def helped(text):
    return text[SEED:]

def retried(function):
    @wraps(function)
    def wrapper(*args):
        return function(*args) or SEED
    return wrapper

class Base:
    def close(self):
        return SEED
"""


@pytest.mark.lengthy
def test_recordings_of_a_graph_in_python_hold_on_other_machines(tmp_path: Path) -> None:
    """Another process has another order of sets, another name of its main module and other folders, and perhaps other
    versions of Python and of packages.
    """
    place = tmp_path / "made.py"
    place.write_text(SCRIPT + "if __name__ == '__main__':\n    main('record')\n", encoding="utf-8")
    other_python = "import string; exec('def capwords(text): return text', vars(string))"
    runs = [[str(place), "one"], ["-c", f"{other_python}; import made; made.main('mock')", "two"]]
    packages = tmp_path / "site-packages"
    packages.mkdir()
    for seed, arguments in enumerate(runs):
        (packages / "helpful.py").write_text(HELPFUL.replace("SEED", str(seed)), encoding="utf-8")
        env = os.environ | {
            "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path), str(packages)]),
        }
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
