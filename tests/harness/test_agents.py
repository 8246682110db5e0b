"""Agents: their messages in a window, their answers to prompts, and what the gate says of them."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from arbiter import ArbiterOS, ConfigurationError
from arbiter.errors import PackError
from arbiter.harness import Report, Suite, load_suite
from arbiter.harness.agents import Agent, Agents, prompts
from arbiter.harness.messages import CheckpointMessages, JsonlMessages, LedgerMessages, duration, span
from arbiter.ledger import Ledger, LedgerUnavailable
from arbiter.models import JudgeRequest, RecordingError
from arbiter.personas import Persona
from arbiter.store import AgentMessage, SqlRepository
from tests.harness.test_dimensions import scored
from tests.harness.test_eval_command import Said
from tests.harness.test_forms import misfits
from tests.personas.personas_support import Says, prompt_of

END = datetime(2026, 11, 23, 12, tzinfo=UTC)
APP = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

def speak(state):
    return {"messages": [AIMessage("Aye: " + state["messages"][-1].text)]}

builder = StateGraph(MessagesState)
builder.add_node("speak", speak)
builder.add_edge(START, "speak")
graph = builder.compile()
"""
SUITE: dict[str, Any] = {
    "suite": "crew",
    "target": {
        "agents": {
            "ilka": {"persona": "arbiter:ilka", "graph": "app.py:graph"},
            "tomasz": {"persona": "arbiter:tomasz"},
        },
        "messages": "messages.jsonl",
        "channels": ["quay"],
    },
    "models": {"judge": "none"},
    "scorers": [
        {"name": "tone", "use": "adherence", "judge": "judge"},
        {"name": "same", "use": "consistency", "judge": "judge"},
        {"name": "fresh", "use": "fluency", "judge": "judge"},
        {"name": "voices", "use": "convergence", "judge": "judge"},
        {"name": "ideas", "use": "ideas_quantity", "judge": "judge"},
    ],
}
Line = tuple[str, float, str]
"""An agent, the days before the end, and a text."""


def test_agents_may_be_what_can_be_read_once_and_channels_a_single_name(tmp_path: Path) -> None:
    """A text is one channel, and not its letters."""
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps({"agent": "ilka", "text": "Aye.", "at": END.isoformat()}) + "\n")
    crew = [Agent(id=name, persona=Persona(name, "A sailor.")) for name in ("ilka", "tomasz")]
    given: list[Any] = [crew, iter(crew)]
    messages = JsonlMessages(file)
    found = [Agents(agents=agents, messages=messages, channels="quay") for agents in given]
    assert [case.id for case in found[0].cases] == ["ilka", "tomasz", "env:quay"]
    first, second = (Suite("crew", each.cases, target=each).run(folder=None) for each in found)
    assert first.identity == second.identity


def write_messages(*lines: Line) -> None:
    data = [
        {"agent": agent, "text": text, "channel": "quay", "at": (END - timedelta(days=days)).isoformat()}
        for agent, days, text in lines
    ]
    Path("messages.jsonl").write_text("".join(json.dumps(one) + "\n" for one in data))


def spoken(agent: str, count: int, *, days: float = 0, about: str = "the tide") -> list[Line]:
    return [(agent, days + n / 100, f"{agent} says {n} of {about}") for n in range(count)]


def write_suite(**more: Any) -> None:
    Path("suites").mkdir(exist_ok=True)
    Path("suites/crew.yaml").write_text(json.dumps({**SUITE, **more}))


def loaded(judge: Says | None = None) -> Suite:
    return load_suite("suites/crew.yaml", models={"judge": judge or Says(scored)})


@pytest.fixture
def crew(project: Path) -> Path:
    (project / "app.py").write_text(APP)
    write_suite()
    write_messages(*spoken("ilka", 12), *spoken("tomasz", 3, days=0.003), *spoken("ilka", 2, days=10))
    return project


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the judges of files answer; the last one counts."""
    given: list[Any] = [scored]

    def judge(_: Any) -> Says:
        return Says(given[-1])

    monkeypatch.setattr("arbiter.harness.kinds.judge_of", judge)
    return given


def test_an_agent_names_its_persona_as_a_file_does() -> None:
    named: Any = "arbiter:ilka"
    assert Agent(id="ilka", persona=named) == Agent(id="ilka", persona=Persona.of("arbiter:ilka"))
    named = "arbiter:nobody"
    with pytest.raises(ConfigurationError, match="nobody"):
        Agent(id="ilka", persona=named)


def test_a_row_is_an_agent_and_a_dimension_and_its_cases_are_what_was_judged(crew: Path) -> None:
    report = loaded().run()
    assert list(report.rows) == [
        "tone.ilka",
        "tone.tomasz",
        "same.ilka",
        "fresh.ilka",
        "fresh.tomasz",
        "voices.env:quay",
        "ideas.env:quay",
        "completed",
    ]
    assert {name: row.n for name, row in report.rows.items() if row.is_sampled} == {
        "tone.ilka": 12,
        "tone.tomasz": 3,
        "same.ilka": 10,
        "fresh.ilka": 1,
        "fresh.tomasz": 1,
        "voices.env:quay": 1,
    }
    assert "same.tomasz: there is no earlier message to compare with" in " ".join(report.printed().split())
    found = report.to_dict()
    ilka = found["agents"]["ilka"]
    assert (ilka["pass"], set(ilka["dimensions"])) == (True, {"tone", "same", "fresh"})
    assert ilka["dimensions"]["tone"]["sample_size"] == 12
    assert found["agents"]["tomasz"]["dimensions"]["same"] == {
        "score": None,
        "reason": "there is no earlier message to compare with",
    }
    assert found["summary"] == {"total": 2, "passed": 2, "failed": 0, "failed_agents": []}


def test_an_agent_without_messages_is_not_evaluable_and_no_judge_is_asked(crew: Path) -> None:
    write_messages(*spoken("ilka", 2, days=20), ("other", 0, "Hello."))
    judge = Says(scored)
    report = loaded(judge).run()
    ilka = report.results[0]
    assert (ilka.status, ilka.error) == (
        "not_evaluable",
        "there is no message of 'ilka' in the 7d before 2026-11-23 12:00",
    )
    assert not ilka.scores
    assert all("ilka says" not in prompt_of(asked) for asked in judge.asked)
    assert report.to_dict()["summary"]["failed_agents"] == ["ilka", "tomasz"]
    assert report.comparison.exit_code == 5


@pytest.mark.parametrize(("days", "size"), [(6.99, 4), (7, 4), (7.01, 3)])
def test_the_window_begins_so_long_before_the_newest_message(crew: Path, days: float, size: int) -> None:
    write_messages(*spoken("ilka", 3), ("ilka", days, "An older one."))
    report = loaded().run()
    (tone,) = (score for score in report.results[0].scores if score.name == "tone.ilka")
    assert tone.sample_size == size


def test_until_ends_the_window_and_is_not_in_it(crew: Path) -> None:
    write_messages(("ilka", 1, "At the end."), ("ilka", 2, "Before."), ("ilka", 0, "After."))
    until = (END - timedelta(days=1)).isoformat()
    write_suite(target={**SUITE["target"], "until": until, "window": "24h"})
    assert [one["text"] for one in loaded().run().results[0].output["messages"]] == ["Before."]


@pytest.mark.parametrize(("history", "earlier"), [(None, "Last week."), ("60d..20d", "Last month.")])
def test_consistency_compares_with_the_messages_of_the_history(
    crew: Path, history: str | None, earlier: str
) -> None:
    write_messages(("ilka", 0, "Now."), ("ilka", 10, "Last week."), ("ilka", 40, "Last month."))
    write_suite(target={**SUITE["target"], "history": history})
    ilka = loaded().run().results[0]
    assert [one["text"] for one in ilka.output["before"]] == [earlier]


@pytest.mark.lengthy
def test_agents_with_few_messages_answer_prompts(crew: Path) -> None:
    write_messages(*spoken("ilka", 3), *spoken("tomasz", 12))
    assert len(prompts()) >= 10
    report = loaded().run(mode="synthetic")
    ilka, tomasz = report.results[:2]
    assert [one["text"] for one in ilka.output["messages"]] == [
        f"Aye: {prompt}" for prompt in prompts().values()
    ]
    assert all("tomasz says" in one["text"] for one in tomasz.output["messages"])
    assert (report.mode, report.identity.mode) == ("synthetic", "synthetic")
    assert "synthetic" in report.printed()
    report.save_baseline("synthetic.json")
    assert json.loads(Path("synthetic.json").read_text())["mode"] == "synthetic"
    (crew / "app.py").write_text(APP.replace("Aye", "No"))
    write_suite(target={**SUITE["target"], "window": "8d"})
    again = loaded().run(mode="synthetic", baseline="synthetic.json").comparison
    # Other answers to the same prompts are the same cases.
    assert (again.rows["tone.ilka"].n, again.rows["tone.ilka"].method) == (12, "sign flip")


@pytest.mark.lengthy
def test_synthetic_numbers_are_not_compared_with_live_ones(crew: Path) -> None:
    write_messages(*spoken("ilka", 12), *spoken("tomasz", 12))
    loaded().run().save_baseline("live.json")
    synthetic = loaded().run(mode="synthetic", baseline="live.json")
    assert synthetic.comparison.rows["tone.ilka"].verdict == "incomparable"
    assert synthetic.comparison.exit_code == 5
    with pytest.raises(ConfigurationError, match="a synthetic baseline does not replace"):
        synthetic.save_baseline("live.json", update=True)


def test_an_agent_that_cannot_answer_prompts_is_an_error_before_the_run(crew: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="tomasz has fewer than 10 messages in the last 7d, and no graph"
    ):
        loaded().run(mode="synthetic")
    write_suite(target={"function": "app.py:speak"}, cases=[{"input": 1}], scorers=[])
    with pytest.raises(ConfigurationError, match="the mode 'synthetic' is for agents"):
        load_suite("suites/crew.yaml").run(mode="synthetic")


@pytest.mark.lengthy
def test_a_recorded_window_is_replayed_without_the_messages(crew: Path) -> None:
    recorded = loaded().run(mode="record")
    (crew / "messages.jsonl").unlink()
    judge = Says(scored)
    replayed = loaded(judge).run(mode="mock")
    assert judge.calls == 0
    assert rows_of(replayed) == rows_of(recorded)
    (crew / "other.yaml").write_text("name: Ilka\nid: ilka\ndescription: Loud.\n")
    agents = {**SUITE["target"]["agents"], "ilka": {"persona": "other.yaml", "graph": "app.py:graph"}}
    write_suite(target={**SUITE["target"], "agents": agents})
    with pytest.raises(RecordingError, match="the persona of ilka changed"):
        loaded().run(mode="mock")


def rows_of(report: Report) -> dict[str, Any]:
    return {name: row.cases for name, row in report.rows.items()}


def worse(request: JudgeRequest) -> Any:
    found: Any = scored(request)
    for one in found.get("judgements", [found]):
        if "score" in one:
            one["score"] = 2
    return found


@pytest.mark.lengthy
def test_other_messages_are_compared_as_groups_and_one_trajectory_by_its_size(crew: Path) -> None:
    loaded().run().save_baseline("live.json")
    write_messages(*spoken("ilka", 12, about="the wind"), *spoken("tomasz", 3), *spoken("ilka", 2, days=10))
    same = loaded().run(baseline="live.json").comparison.rows
    assert (same["tone.ilka"].verdict, same["tone.ilka"].method) == ("unpaired", "Welch")
    assert (same["fresh.ilka"].verdict, same["fresh.ilka"].method) == ("steady", "means")
    fallen = loaded(Says(worse)).run(baseline="live.json")
    assert fallen.comparison.rows["tone.ilka"].verdict == "regressed"
    assert "✗ regressed, unpaired" in fallen.printed()
    assert misfits(fallen) == []
    assert fallen.comparison.rows["ideas.env:quay"].gated is False
    ilka = fallen.to_dict()["agents"]["ilka"]
    assert ilka["pass"] is False
    assert {one["dimension"] for one in ilka["regressions"]} >= {"tone"}


@pytest.mark.lengthy
def test_each_agent_has_a_baseline_of_its_own_in_a_folder(crew: Path, scores: list[Any]) -> None:
    write_suite(gate={"baseline": "golden/"})
    assert "there is no baseline" in Said("run").out
    assert Said("baseline", "suites/crew.yaml", "--repeats", "1").code == 0
    assert sorted(file.name for file in Path("golden").iterdir()) == [
        "env:quay.json",
        "ilka.json",
        "tomasz.json",
    ]
    ilka = json.loads(Path("golden/ilka.json").read_text())
    assert (ilka["agentId"], set(ilka["dimensions"])) == ("ilka", {"tone", "same", "fresh"})
    assert (ilka["rows"]["completed"]["cases"], bool(ilka["propositionScores"])) == ({"ilka": [1.0]}, True)
    again = Said("baseline", "suites/crew.yaml")
    assert (again.code, "ilka.json is there already" in again.err) == (2, True)

    def rows(*options: str) -> dict[str, str]:
        found = json.loads(Said("run", "--format", "json", *options).out)["comparison"]["rows"]
        return {name: row["verdict"] for name, row in found.items()}

    loaded().run().save_baseline("one.json")
    assert rows() == rows("--baseline", "one.json")
    for file in ("golden", "one.json"):
        assert not any(name.endswith(".tomasz") for name in rows("--agents", "ilka", "--baseline", file))
        assert Said("run", "--agents", "ilka", "--baseline", file).code == 0
    scores.append(worse)
    Path("golden/tomasz.json").unlink()
    means = {"agentId": "ilka", "capturedAt": "2026-11-20T09:12:00Z", "dimensions": ilka["dimensions"]}
    Path("golden/ilka.json").write_text(json.dumps(means))
    fallen = rows()
    assert (fallen["tone.ilka"], fallen["tone.tomasz"]) == ("regressed", "new")
    with pytest.raises(ConfigurationError, match="suites: has no file for ilka, tomasz, env:quay"):
        loaded().run().compare("suites")


@pytest.mark.lengthy
@pytest.mark.usefixtures("scores")
def test_one_agent_is_compared_with_its_baseline(crew: Path) -> None:
    """One agent makes no pairs of "completed"."""
    target = {**SUITE["target"], "agents": {"ilka": SUITE["target"]["agents"]["ilka"]}}
    del target["channels"]
    write_suite(target=target, scorers=SUITE["scorers"][:1], gate={"baseline": "one.json"})
    assert Said("baseline", "suites/crew.yaml", "--repeats", "1").code == 0
    said = Said("run", "--format", "json")
    assert (said.code, json.loads(said.out)["comparison"]["rows"]["completed"]["method"]) == (0, "means")


def test_a_crew_of_which_one_speaks_is_compared_with_its_baseline(crew: Path) -> None:
    """The other one was silent then, too, so nothing changed."""
    write_messages(*spoken("ilka", 12), *spoken("ilka", 2, days=10))
    target = {name: value for name, value in SUITE["target"].items() if name != "channels"}
    write_suite(target=target, scorers=SUITE["scorers"][:1])
    loaded().run().save_baseline("one.json")
    found = loaded().run().compare("one.json")
    assert {name: row.verdict for name, row in found.rows.items()} == {
        "tone.ilka": "steady",
        "completed": "steady",
    }
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        (["ilka"], ["tomasz"], "completed has no cases to compare; two are needed"),
        (["ilka", "tomasz"], ["tomasz"], "completed has 1 case to compare; two are needed"),
    ],
)
def test_an_agent_that_fell_silent_is_not_compared_with_one_that_speaks(
    crew: Path, then: list[str], now: list[str], reason: str
) -> None:
    target = {name: value for name, value in SUITE["target"].items() if name != "channels"}
    write_suite(target=target, scorers=SUITE["scorers"][:1], gate={"rows": ["completed"]})
    write_messages(*(line for name in then for line in spoken(name, 12)))
    loaded().run().save_baseline("then.json")
    write_messages(*(line for name in now for line in spoken(name, 12)))
    found = loaded().run().compare("then.json")
    assert (found.rows["completed"].verdict, found.rows["completed"].reason) == ("incomplete", reason)
    assert found.exit_code == 5


def test_a_claim_without_evidence_has_no_part_in_a_dimension(crew: Path) -> None:
    """It would count as 9 in each run, and hide a drop of the others. Row and dimension have the same number."""

    def partly(request: Any) -> Any:
        if not request.propositions:
            return scored(request)
        judgements = [
            {"id": id, "score": 3, "evidence_present": id != "same-voice"} for id in request.propositions
        ]
        return {"judgements": judgements}

    report = loaded(Says(partly)).run()
    same = report.to_dict()["agents"]["ilka"]["dimensions"]["same"]
    assert (report.rows["same.ilka"].mean, same["score"], same["pass"]) == (3.0, 3.0, True)
    assert same["proposition_scores"] == {"same-attitude": 3.0, "same-facts": 3.0}
    assert report.results[0].scored("same.ilka")[0].raw == pytest.approx((9 + 0.9 * 3 + 0.8 * 3) / 2.7)


def test_the_ideas_of_one_channel_are_shown_beside_those_of_the_baseline(crew: Path) -> None:
    """A count is never gated, so a single one is not undecided."""
    loaded().run().save_baseline("crew.json")

    def fewer(request: Any) -> Any:
        return {"ideas": ["one"]} if not request.propositions else scored(request)

    found = loaded(Says(fewer)).run().compare("crew.json")
    ideas = found.rows["ideas.env:quay"]
    assert (ideas.verdict, ideas.gated, found.exit_code) == ("steady", False, 0)
    assert ideas.delta is not None
    assert ideas.delta < 0
    assert ideas.reason == "ideas.env:quay is a count, which is shown and never gated"


@pytest.mark.lengthy
@pytest.mark.usefixtures("scores")
def test_another_window_asks_the_same_of_agents(crew: Path) -> None:
    """Its messages are others, and are compared as groups; that each agent was evaluated stays one question."""
    Path("golden").mkdir()
    write_suite(gate={"baseline": "golden/"})
    Said("baseline", "suites/crew.yaml", "--repeats", "1")
    said = Said("run", "--window", "8d", "--format", "json")
    assert (said.code, json.loads(said.out)["comparison"]["rows"]["completed"]["verdict"]) == (0, "steady")
    # Recordings and journals hold for the window with which they were written.
    assert [case.input["window"] for case in loaded().cases] == ["7d", "7d", "7d"]
    Said("record")
    stale = Said("run", "--mock", "--window", "8d")
    assert (stale.code, "the answer to ilka (repeat 1): its input changed" in stale.err) == (2, True), (
        stale.err
    )


@pytest.mark.lengthy
def test_the_gate_ignores_dimensions_that_were_not_asked_for(crew: Path, scores: list[Any]) -> None:
    Path("golden").mkdir()
    write_suite(gate={"baseline": "golden/"})
    Said("baseline", "suites/crew.yaml", "--repeats", "1")
    said = Said("run", "--dimensions", "adherence")
    assert (said.code, "the baseline has rows that this run does not have: fresh.ilka" in said.out) == (
        0,
        True,
    )
    assert Said("gate").code == 0
    scores.append(worse)
    fallen = Said("run", "--dimensions", "adherence")
    assert (fallen.code, "Look at it: arbiter eval show crew ilka" in " ".join(fallen.out.split())) == (
        1,
        True,
    )
    assert '"agent": "ilka"' in Said("show", "crew", "ilka").out


@pytest.mark.lengthy
@pytest.mark.usefixtures("scores")
def test_options_choose_agents_dimensions_and_the_window(crew: Path) -> None:
    done = Said("run", "--agents", "ilka", "--dimensions", "adherence", "--window", "4w", "--format", "json")
    report = json.loads(done.out)
    assert [name for name in report["rows"] if name != "completed"] == ["tone.ilka"]
    assert report["agents"]["ilka"]["dimensions"]["tone"]["sample_size"] == 14
    assert Said("run", "--threshold", "9").code == 1
    for options, said in (
        (
            ["--agents", "elka"],
            "'elka' is not an agent of the suite 'crew'. Agents: ilka, tomasz. Did you mean",
        ),
        (["--dimensions", "tone"], "'tone' is not a dimension of the suite"),
        (["--window", "7x"], "window: expected a number and h, d or w, such as 7d, got '7x'"),
        (["--until", "today"], "until: expected a time with an offset"),
        (["--threshold", "12"], "threshold"),
    ):
        wrong = Said("run", *options)
        assert (wrong.code, said in wrong.err) == (2, True), wrong.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"cases": [{"input": 1}]}, "cases: expected none, because each agent and channel is a case"),
        ({"target": {**SUITE["target"], "channels": []}}, "expected target.channels, because convergence"),
        ({"target": {**SUITE["target"], "channels": ["quay", "quay"]}}, "two cases have the id 'env:quay'"),
        ({"scorers": [{"name": "tone", "use": ["adherence"]}]}, "scorers[0].use: expected one of"),
        ({"target": {**SUITE["target"], "window": "7x"}}, "window: expected a number and h, d or w"),
        ({"target": {**SUITE["target"], "history": "7d..30d"}}, "expected the earlier time first"),
        ({"target": {**SUITE["target"], "graph": "app.py:graph"}}, "got agents and graph"),
        ({"target": {**SUITE["target"], "output": "answer"}}, "output would have no effect"),
        ({"target": {"graph": "app.py:graph", "window": "7d"}}, "window would have no effect"),
        ({"target": {**SUITE["target"], "agents": {}}}, "agents: expected at least one"),
    ],
)
def test_mistakes_of_a_suite_of_agents_are_reported(crew: Path, more: dict[str, Any], said: str) -> None:
    write_suite(**more)
    with pytest.raises(PackError) as raised:
        loaded()
    assert said in str(raised.value)
    if "agents" in more.get("target", ()):  # which have their personas, whatever else is wrong
        assert "expected a persona" not in str(raised.value)


@pytest.mark.parametrize("until", [{}, {"until": "2026-11-24T00:00:00Z"}])
def test_all_mistakes_of_a_file_of_messages_are_reported(crew: Path, until: dict[str, str]) -> None:
    """Before the run, also if its end is not that of the newest message."""
    write_suite(target={**SUITE["target"], **until})
    lines: Sequence[str] = (
        '{"agent": "ilka", "text": "Hi", "at": "2026-11-23T12:00:00"}',
        '{"agent": "ilka", "at": "2026-11-23T12:00:00Z"}',
        "[1]",
        '{"agent": "ilka", "text": "Hi", "at": "2026-11-23T12:00:00Z", "who": "x"}',
        "[" * 100_000,
    )
    Path("messages.jsonl").write_text("\n".join(lines))
    with pytest.raises(PackError) as raised:
        loaded().run()
    assert [mistake.line for mistake in raised.value.mistakes] == [1, 2, 3, 4, 5]


def test_spans_of_time() -> None:
    assert (duration("24h"), duration("2w")) == (timedelta(hours=24), timedelta(days=14))
    assert span("30d..7d") == (timedelta(days=30), timedelta(days=7))


def test_messages_of_checkpoints_have_the_time_of_the_first_checkpoint_that_has_them(project: Path) -> None:
    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}", name="ilka")]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    for text in ("one", "two"):
        graph.invoke({"messages": [("human", text)]}, {"configurable": {"thread_id": "quay"}})
    source = CheckpointMessages(saver)
    end = source.end()
    assert end is not None
    found = source.read("ilka", end - timedelta(days=1), end)
    assert [(message.text, message.channel) for message in found] == [
        ("answer 1", "quay"),
        ("answer 3", "quay"),
    ]
    times = sorted(datetime.fromisoformat(saved.checkpoint["ts"]) for saved in saver.list(None))
    assert found[0].at in times
    assert found[0].at < found[1].at == times[-1]
    assert JsonlMessages("none.jsonl").path == Path("none.jsonl")


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("0001-01-01T00:00:00+05:00", "messages.jsonl:1: at: expected a time with an offset"),
        ("9999-12-31T23:59:59.999999Z", "the newest one is of 9999-12-31 .*, after which there is no time"),
    ],
)
def test_a_time_at_the_end_of_the_calendar_is_refused(project: Path, at: str, said: str) -> None:
    (project / "messages.jsonl").write_text(json.dumps({"agent": "ilka", "text": "Hi", "at": at}))
    with pytest.raises(ConfigurationError, match=said):
        JsonlMessages("messages.jsonl").end()


@pytest.mark.lengthy
def test_messages_of_a_ledger_are_those_that_node_runs_returned(crew: Path) -> None:
    def speak(state: MessagesState) -> dict[str, Any]:
        text = f"Answer {len(state['messages'])}."
        return {"messages": [AIMessage(text, name="ilka", id=text), AIMessage("", name="ilka", id="call")]}

    def repeat(state: MessagesState) -> dict[str, Any]:
        return {"messages": state["messages"]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("speak", speak)
    builder.add_node("repeat", repeat)
    builder.add_edge(START, "speak")
    builder.add_edge("speak", "repeat")
    with Ledger("ledger.db") as ledger:
        graph: Any = ArbiterOS(ledger=ledger).govern(builder.compile())
        graph.invoke({"messages": [("human", "Hi")]}, {"configurable": {"thread_id": "quay"}})
        source = LedgerMessages(ledger)
        end = source.end()
        assert end is not None
        (said,) = source.read("ilka", end - timedelta(days=1), end)
        (spoken_at,) = (item.timestamp for item in ledger.items(node="speak"))
        (repeated_at,) = (item.timestamp for item in ledger.items(node="repeat"))
    assert (said.text, said.channel, bool(said.run_id)) == ("Answer 1.", "quay", True)
    assert spoken_at <= said.at <= repeated_at
    write_suite(target={**SUITE["target"], "messages": "ledger:ledger.db"})
    ilka = loaded().run().results[0]
    assert [one["text"] for one in ilka.output["messages"]] == ["Answer 1."]
    write_suite(target={**SUITE["target"], "messages": "ledger:none.db"})
    with pytest.raises(LedgerUnavailable, match=r"none\.db"):
        loaded().run()


@pytest.mark.lengthy
def test_messages_of_a_store_are_those_of_a_file(crew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(loaded().run())
    lines = map(json.loads, (crew / "messages.jsonl").read_text().splitlines())
    with SqlRepository("store.sqlite") as store:
        for name in ("ilka", "tomasz"):
            store.add_agent(name, name.title())
        store.add_messages(
            AgentMessage(
                agent_id=line["agent"],
                text=line["text"],
                channel=line["channel"],
                at=datetime.fromisoformat(line["at"]),
            )
            for line in lines
        )
    write_suite(target={**SUITE["target"], "messages": "sqlite:///store.sqlite"})
    closed: list[SqlRepository] = []
    close = SqlRepository.close

    def closes(store: SqlRepository) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(SqlRepository, "close", closes)
    assert rows_of(loaded().run()) == expected
    gc.collect()
    assert len(closed) == 1
    write_suite(target={**SUITE["target"], "messages": "sqlite:///stor.sqlite"})
    with pytest.raises(ConfigurationError, match="there is no store"):
        loaded().run()
    assert not Path("stor.sqlite").exists()
