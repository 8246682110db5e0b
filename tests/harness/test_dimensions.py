"""Votes, cache, seed and watched files of a suite, and the dimensions of personas as scorers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from arbiter import ConfigurationError
from arbiter.errors import PackError
from arbiter.evaluators import JudgeEvaluator
from arbiter.harness import Case, Suite, load_suite
from arbiter.models import JudgeRequest, RecordingError
from tests.harness.test_eval_command import Said
from tests.harness.test_spending import GRADE, model
from tests.personas.personas_support import Says, prompt_of, scores
from tests.scripted import Scripted
from tests.support import Spy, chain

CASES = [Case("a", {"log": []}), Case("b", {"log": ["b"]})]


def judged(judge: Any, **more: Any) -> Suite:
    return Suite("judged", CASES, evaluators=[JudgeEvaluator("good", "Good.", judge)], **more)


def test_each_question_is_asked_as_often_as_the_suite_says(project: Path) -> None:
    judge = model('{"reasoning": "fine", "score": 8}', '{"reasoning": "fine", "score": 6}')
    report = judged(judge, votes=3).run(chain(Spy("write")))
    assert judge.calls == 6
    assert report.identity.votes == 3
    assert [len(result.scores[0].votes) for result in report.results] == [3, 3]


def test_votes_without_a_judge_are_refused(project: Path) -> None:
    suite = Suite("plain", CASES, scorers={"fine": lambda run: True}, votes=2)
    with pytest.raises(ConfigurationError, match="votes is 2, and no row of the suite asks a judge"):
        suite.run(chain(Spy("write")))


def test_a_cache_without_a_judge_is_refused(project: Path) -> None:
    suite = Suite("plain", CASES, scorers={"fine": lambda run: True}, cache="judge")
    with pytest.raises(ConfigurationError, match="cache is 'judge', and no row of the suite asks a judge"):
        suite.run(chain(Spy("write")))


class Cold(Scripted):
    temperature: float = 0.0


def test_votes_of_a_judge_without_temperature_are_refused(project: Path) -> None:
    write = Spy("write")
    with pytest.raises(ConfigurationError, match="the judge of 'good' has the temperature 0"):
        judged(Cold(answers=[GRADE]), votes=2).run(chain(write))
    assert not write.calls


@pytest.mark.parametrize(("cache", "asked", "ran"), [("off", 4, 4), ("judge", 2, 4), ("all", 2, 2)])
def test_a_live_run_takes_from_the_cache_what_the_suite_allows(
    project: Path, cache: Any, asked: int, ran: int
) -> None:
    judge, write = model(GRADE), Spy("write")
    reports = [judged(judge, cache=cache).run(chain(write)) for _ in range(2)]
    assert (judge.calls, len(write.calls)) == (asked, ran)
    assert reports[0].rows["good"].cases == reports[1].rows["good"].cases
    if cache != "off":
        assert reports[1].usage.get("judge") is None or reports[1].usage["judge"].tokens == 0


def test_repeats_are_not_copies_of_one_cached_answer(project: Path) -> None:
    judge, write = model(GRADE), Spy("write")
    judged(judge, cache="all", repeats=2).run(chain(write))
    assert (judge.calls, len(write.calls)) == (4, 4)


@pytest.mark.parametrize(
    ("more", "said"),
    [({"votes": 0}, "votes is 0"), ({"cache": "on"}, "cache is 'on'"), ({"seed": -1}, "seed is -1")],
)
def test_a_wrong_value_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        judged(model(GRADE), **more)


APP = """
from pathlib import Path
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    question: str
    answer: str

def write(state):
    return {"answer": Path("prompts/tone.txt").read_text() + state["question"]}

builder = StateGraph(State)
builder.add_node("write", write)
builder.add_edge(START, "write")
graph = builder.compile()
"""
SUITE = {
    "suite": "personas",
    "target": {"graph": "app.py:graph", "output": "answer", "watch": ["prompts/**"]},
    "models": {"judge": "none"},
    "scorers": [
        {"name": "tone", "use": "adherence", "persona": "arbiter:ilka", "judge": "judge", "at_least": 5},
        {"name": "same", "use": "consistency", "judge": "judge"},
        {"name": "fresh", "use": "fluency", "judge": "judge"},
        {"name": "ideas", "use": "ideas_quantity", "judge": "judge"},
    ],
    "cases": [{"id": "a", "input": {"question": "Is it late?"}}, {"id": "b", "input": {"question": "Why?"}}],
}


@pytest.fixture
def files(project: Path) -> Path:
    (project / "app.py").write_text(APP)
    (project / "prompts").mkdir()
    (project / "prompts/tone.txt").write_text("Be calm. ")
    write_suite(SUITE)
    return project


def write_suite(suite: dict[str, Any]) -> None:
    Path("suite.yaml").write_text(json.dumps(suite))


def scored(request: JudgeRequest) -> Any:
    """A 7 for each claim, and two ideas."""
    return {"ideas": ["one", "two"]} if request.purpose == "ideas" else scores()(request)


def loaded(judge: Says | None = None) -> Suite:
    return load_suite("suite.yaml", models={"judge": judge or Says(scored)})


def test_the_dimensions_of_personas_judge_whole_runs(files: Path) -> None:
    judge = Says(scored)
    report = loaded(judge).run()
    means = {name: (row.scale[1], row.mean) for name, row in report.rows.items()}
    assert report.rows["fresh"].mean == pytest.approx(5.97, abs=0.01)  # one claim is inverted
    assert means["ideas"] == (float("inf"), 2.0)
    assert means["tone"][0] == 9.0
    # One message of each case is nothing to compare.
    assert report.rows["same"].outcomes == {"not_applicable": 2}
    (tone,) = (score for score in report.results[0].scores if score.name == "tone")
    assert (tone.passed, tone.sample_size) == (True, 1)
    assert any("Be calm. Is it late?" in prompt_of(asked) for asked in judge.asked)
    assert report.usage["judge"].tokens == 12 * judge.calls


@pytest.mark.lengthy
def test_a_run_of_some_dimensions_gates_the_evaluators_of_the_graph_too(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(_: Any) -> Says:
        return Says(scored)

    monkeypatch.setattr("arbiter.harness.kinds.judge_of", judge)
    rule = {"name": "brief", "use": "length", "key": "answer", "at_most": 30, "target_nodes": ["write"]}
    pack = {"version": 1, "name": "own", "description": "Brief answers.", "evaluators": [rule]}
    (files / "evaluators").mkdir()
    (files / "evaluators/own.yaml").write_text(json.dumps(pack))
    suite: dict[str, Any] = {**SUITE, "gate": {"baseline": "base.json"}}
    suite["target"] = {**suite["target"], "constitution": "."}
    suite["scorers"] = [suite["scorers"][0], suite["scorers"][2]]
    cases: list[Any] = [{"id": f"c{n}", "input": {"question": f"Why {n}?"}} for n in range(12)]
    cases[0]["expect"] = {"completes": True}  # of one case alone, which makes no row
    suite["cases"] = cases
    write_suite(suite)
    assert Said("baseline", "suite.yaml").code == 0
    assert Said("run", "suite.yaml", "--dimensions", "adherence").code == 0
    (files / "prompts/tone.txt").write_text("Be calm, and answer at great length. ")
    worse = Said("run", "suite.yaml", "--dimensions", "adherence")
    assert (worse.code, "regressed: brief fell" in worse.out, Said("gate", "personas").code) == (1, True, 1)


def test_the_seed_chooses_the_messages_that_are_judged(files: Path) -> None:
    (files / "app.py").write_text(
        "def talk(given):\n    return [{'role': 'ai', 'content': f'message {n}'} for n in range(9)]\n"
    )
    tone = {"name": "tone", "use": "adherence", "persona": "arbiter:ilka", "judge": "judge", "sample": 3}
    suite = {**SUITE, "target": {"function": "app.py:talk"}, "scorers": [tone], "cases": [{"input": "Talk."}]}
    write_suite(suite)
    texts: dict[int, set[str]] = {}
    for seed in (1, 1, 2):
        judge = Says(scored)
        report = replace(loaded(judge), seed=seed).run()
        chosen = {word for asked in judge.asked for word in re.findall(r"message \d", prompt_of(asked))}
        assert texts.setdefault(seed, chosen) == chosen
        assert (len(chosen), report.identity.seed) == (3, seed)
    assert texts[1] != texts[2]
    write_suite({**suite, "seed": 3, "scorers": [{"name": "same", "use": "equals"}]})
    with pytest.raises(PackError, match="seed: expected a scorer that samples"):
        load_suite("suite.yaml")


@pytest.mark.lengthy
def test_what_a_recording_depends_on_is_named_when_it_changes(files: Path) -> None:
    recorded = loaded().run(mode="record")
    judge = Says(scored)
    assert loaded(judge).run(mode="mock").rows["tone"].cases == recorded.rows["tone"].cases
    assert judge.calls == 0
    (files / "prompts/tone.txt").write_text("Be loud. ")
    with pytest.raises(
        RecordingError, match=r"the answer to a \(repeat 1\): the file prompts/tone.txt changed"
    ):
        loaded().run(mode="mock")
    (files / "prompts/tone.txt").write_text("Be calm. ")
    (files / "prompts/new.txt").write_text("x")
    with pytest.raises(RecordingError, match="prompts/new"):
        loaded().run(mode="mock")


def test_watched_files_that_do_not_exist_are_an_error(files: Path) -> None:
    write_suite({**SUITE, "target": {"graph": "app.py:graph", "watch": ["prompt/**"]}})
    with pytest.raises(ConfigurationError, match=r"watch: 'prompt/\*\*' matches no file"):
        loaded().run()


def test_adherence_needs_a_persona(files: Path) -> None:
    bare = {"name": "tone", "use": "adherence", "judge": "judge"}
    write_suite({**SUITE, "scorers": [bare]})
    with pytest.raises(PackError, match=r"scorers\[0\]: expected a persona"):
        loaded()


def test_a_cache_that_could_not_work_is_refused() -> None:
    def same(given: str) -> str:
        return given

    with pytest.raises(ConfigurationError, match="cache is 'all', and the target is function same"):
        Suite("cached", [Case("a", "Hi")], cache="all").run(same)


def test_an_output_without_any_message_is_not_judged(project: Path) -> None:
    """An agent that says nothing has not said "{'messages': []}"."""

    def silent(_: str) -> dict[str, list[Any]]:
        return {"messages": []}

    judge = Says(scored)
    fresh = {"name": "fresh", "use": "fluency", "judge": "main"}
    suite = Suite("silent", [Case("a", "Hello?")], scorers=[fresh], models={"main": judge})
    result = suite.run(silent).results[0]
    assert (result.outcome("fresh"), result.scored("fresh")[0].raw, judge.asked) == (
        "not_applicable",
        9.0,
        [],
    )


def test_a_state_that_does_not_use_its_messages_is_judged_by_its_other_fields(project: Path) -> None:
    """LangGraph fills in an empty list of messages."""

    class Asking(MessagesState):
        question: str
        answer: str

    def reply(state: Asking) -> dict[str, str]:
        return {"answer": "By the tide."}

    builder: Any = StateGraph(Asking)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    judge = Says(scored)
    fresh = {"name": "fresh", "use": "fluency", "judge": "main"}
    case = Case("a", {"messages": [], "question": "When do we sail?"})
    suite = Suite("quiet", [case], scorers=[fresh], models={"main": judge})
    assert suite.run(builder.compile()).results[0].outcome("fresh") == "scored"
    (asked,) = judge.asked
    assert "When do we sail?" in prompt_of(asked)
    assert "By the tide." in prompt_of(asked)
