"""An experiment runs each environment in each arm, counts what happened, and compares the arms."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Any

import pytest

from arbiter.errors import ArbiterWarning, ConfigurationError
from arbiter.experiments import (
    SCENARIOS,
    AgentFactory,
    Corrections,
    Experiment,
    ExperimentPlan,
    ExperimentResult,
    Scenario,
)
from arbiter.experiments.plans import COLUMNS
from arbiter.experiments.results import load_result
from arbiter.harness import Limits
from arbiter.harness.journal import Written, run_folder
from arbiter.personas import GateConfig, JudgeRequest, Persona, variety
from tests.experiments.experiment_support import (
    GATE,
    METRICS,
    corrector,
    experiment,
    judge,
    never,
    nudging,
    pair,
    people,
    scenario,
    speaker,
)
from tests.personas.personas_support import Says, prompt_of, scores
from tests.processes import python
from tests.scripted import Named, Scripted


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass(frozen=True)
class Usual:
    """A run of the experiment with which others are compared."""

    given: Experiment
    result: ExperimentResult
    folder: Path


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Usual:
    given, folder = experiment(), tmp_path_factory.mktemp("usual")
    return Usual(given, given.run(folder=folder), folder)


def plain(result: ExperimentResult) -> dict[str, Any]:
    found = result.to_dict()
    del found["run_id"]
    return found


@pytest.mark.lengthy
def test_treatment_and_control_are_compared(usual: Usual) -> None:
    result = usual.result
    assert list(result.environments) == ["treatment", "control"]
    for arm in result.environments:
        sizes = {metric: len(scores) for metric, scores in result.scores[arm].items()}
        assert sizes == {
            "adherence": 8,
            "consistency": 8,
            "fluency": 8,
            "convergence": 4,
            "ideas_quantity": 4,
        }
    treated, control = result.exposure["treatment"], result.exposure["control"]
    assert (treated.checks, treated.regenerations, treated.nudges, treated.evaluations) == (32, 8, 16, 24)
    assert not control.treated
    assert control.drafts == 24
    assert [row.metric for row in result.comparisons] == list(METRICS)
    adherence = result.comparisons[0]
    assert adherence.difference is not None
    assert adherence.difference > 2
    assert (adherence.p, len(adherence.differences)) == (2 / 16, 4)
    assert result.marks == ()


@pytest.mark.lengthy
def test_the_columns_of_the_table_are_as_wide_as_their_cells() -> None:
    """Two pairs that differ by 0 and by 9 have an interval that is wider than most."""

    def answer(request: JudgeRequest) -> Any:
        extreme = "P 3" in prompt_of(request) and "good" in prompt_of(request)
        return {"judgements": [{"id": id, "score": 9 * extreme} for id in request.propositions]}

    agents = [Persona(f"P {number}", "calm", f"p{number}") for number in range(4)]
    given = experiment(agents=agents, judge=Says(answer), metrics=["adherence", "fluency"], scale=0.5)
    head, *rows = given.run().table().partition("control  paired over")[2].splitlines()[1:4]
    assert re.search(r"\[−\d\d\.\d\d, \+\d\d\.\d\d\]", "".join(rows))
    for name in ("Holm", "T: mean", "n T/C"):
        assert all(re.match(r"  \S", row[head.index(name) - 2 :]) for row in rows)


@pytest.mark.lengthy
def test_the_control_is_asked_nothing_by_the_judge_that_corrects() -> None:
    correcting = corrector()
    arms = {"one": Corrections(), "other": Corrections()}
    result = experiment(arms=arms, corrector=correcting).run(folder=None)
    assert correcting.calls == 0
    assert result.comparisons[0].difference == 0
    assert "corrector" not in result.models


@pytest.mark.lengthy
def test_environments_of_a_number_are_the_same_in_each_arm() -> None:
    arms = {
        "one": Corrections(),
        "other": Corrections(GateConfig(gate_adherence_enabled=True, gate_adherence_threshold=0)),
    }
    for order in ("parallel", "sequential_random"):
        result = pair(arms=arms, order=order).run(folder=None)
        assert all(
            result.environments["one"][metric] == result.environments["other"][metric] for metric in METRICS
        )


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("treatment", "why"),
    [
        (Corrections(GateConfig(gate_adherence_enabled=True, gate_adherence_threshold=0), (never,)), "fired"),
        (Corrections(interventions=(never,)), "none of its interventions fired"),
        (
            Corrections(GateConfig(gate_adherence_enabled=True, minimum_required_qty_of_actions=9)),
            "judged no draft",
        ),
        (Corrections(repetition=True), "no agent repeated itself"),
    ],
)
def test_a_treatment_that_did_nothing_has_no_p_values(treatment: Corrections, why: str) -> None:
    words = iter(f"{letter}{other}" for letter in "abcdefghijkl" for other in "abcdefghijkl")
    model = speaker(lambda prompt: " ".join(next(words) for _ in range(2)))
    result = pair(scenario(treatment, groups=1), model=model).run(folder=None)
    assert result.marks == ("treatment_not_exercised",)
    assert why in result.not_exercised("treatment")
    for row in result.comparisons:
        assert (row.p, row.adjusted, row.welch, row.d, row.paired) == (None, None, None, None, None)
        assert row.untested.startswith("treatment_not_exercised")
    assert re.search(r"no p-values: treatment_not_exercised: arm 'treatment'", result.table())
    assert '"p"' not in json.dumps(result.to_dict())


@pytest.mark.lengthy
def test_failed_extractions_shorten_the_ideas_and_drop_their_pairs() -> None:
    reading = judge()

    def answer(request: JudgeRequest) -> Any:
        fails = request.purpose == "ideas" and re.search("environment (1|3)", prompt_of(request))
        return None if fails else reading.judge(request).value

    def told(prompt: str) -> str:
        theme, number = re.findall(r"Talk about (\w+)", prompt), re.findall("You are Person ([02])", prompt)
        at = {("green", "0"): 0, ("black", "2"): 1, ("black", "0"): 2, ("green", "2"): 3}
        poor = "" if "think of" in prompt else " poor"
        return (
            f"environment {at.get((theme[0], number[0])) if theme and number else ''}{poor} says a good word"
        )

    result = experiment(judge=Says(answer), model=speaker(told)).run(folder=None)
    ideas = result.comparisons[-1]
    assert (len(ideas.treatment), len(ideas.control), len(ideas.differences), ideas.dropped) == (2, 2, 2, 2)
    assert result.dropped["treatment"] == {**dict.fromkeys(METRICS, 0), "ideas_quantity": 2}
    assert "treatment: not scored: 2 of ideas_quantity" in result.table()


@pytest.mark.lengthy
def test_an_environment_whose_model_fails_is_counted_and_left_out_with_its_pair() -> None:
    def fails(prompt: str) -> Any:
        gone = "You are Person 3" in prompt and "black" in prompt and "draft" not in prompt
        return ValueError("no answer") if gone else "Person says a good word"

    result = experiment(model=speaker(fails)).run(folder=None)
    assert result.failed == {"treatment": 1, "control": 1}
    assert result.dropped["control"]["adherence"] == 2
    assert len(result.comparisons[0].differences) == 3
    assert "control: 1 environments did not end (ValueError: no answer)" in result.table()


@pytest.mark.lengthy
def test_what_failed_is_tried_again_on_request() -> None:
    """After an outage of a provider the conversations that ended well stay as they are."""
    is_down = [True]

    def said(prompt: str) -> Any:
        return ValueError("down") if is_down and "You are Person 3" in prompt else "Person says a good word"

    model = speaker(said)
    known: dict[str, Any] = {"model": model, "metrics": ["fluency"], "limits": Limits(concurrency=1)}
    first = experiment(**known).run()
    assert first.failed == {"treatment": 2, "control": 2}
    with pytest.raises(ConfigurationError, match="is finished"):
        experiment(**known).run(resume="last")
    is_down.clear()
    asked = model.calls
    whole = experiment(**known).run(resume="last", retry_errors=True)
    assert whole.failed == {"treatment": 0, "control": 0}
    assert len(whole.comparisons[0].differences) == 4
    assert (
        model.calls - asked == whole.exposure["treatment"].drafts // 2 + whole.exposure["control"].drafts // 2
    )


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Experiment("debate", order="x", seed="y", runs=0, metrics=["fluence"], limits=3)  # type: ignore[arg-type]
    for said in (
        "no scenario 'debate'",
        "order is 'x'",
        "seed is 'y'",
        "runs is 0",
        "'fluence'",
        "limits is 3",
    ):
        assert said in str(raised.value)


PROGRAM = """
import os, sys
from tests.experiments.experiment_support import *
from arbiter.harness import Limits
from arbiter.experiments import Corrections

seen = []
def told(prompt):
    seen.append(prompt)
    if len(seen) == int(sys.argv[1]):
        os._exit(9)
    good = "good" if "draft" in prompt else "poor"
    return f"says a {good} word of {len(prompt)} letters"

tea = scenario(Corrections(GATE), group_size=1, repetitions=2, steps=2, metrics=["adherence"])
found = experiment(tea, model=speaker(told), limits=Limits(concurrency=1)).run(resume=sys.argv[2] or None)
found.write("result.json")
print(len(seen))
"""


@pytest.mark.lengthy
def test_a_killed_experiment_goes_on_where_it_was(project: Path) -> None:
    """Killed in environment 3 of 8 and resumed, it gives the result of an uninterrupted one."""

    def ran(kill_at: int, resume: str = "") -> subprocess.CompletedProcess[str]:
        command = python("-W", "ignore", "-c", PROGRAM, str(kill_at), resume)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    whole = ran(0)
    expected = json.loads((project / "result.json").read_text())
    assert (expected["plan"]["pairs"], int(whole.stdout)) == (8, 8 * (2 + 4))
    assert ran(2 * 6 + 3).returncode == 9
    done = Written.read(run_folder("last", project / ".arbiter/experiments")).results()
    assert [result.case_id for result in done][-1] == "002:1"
    rest = ran(0, "last")
    assert (rest.returncode, int(rest.stdout)) == (0, 6 * 6), rest.stderr
    found = json.loads((project / "result.json").read_text())
    used, usual = (
        {purse: spent["calls"] for purse, spent in result["usage"].items()} for result in (found, expected)
    )
    # Bought again is the part of environment 3 that was there: 3 drafts, the last without an answer, and 2 checks.
    assert used == {**usual, "target": usual["target"] + 3, "correction": usual["correction"] + 2}
    for result in (found, expected):
        del result["run_id"], result["usage"], result["unknown_calls"]
    assert found == expected


@pytest.mark.lengthy
def test_a_resumed_experiment_with_other_settings_is_refused(usual: Usual) -> None:
    limits = Limits(concurrency=1, calls=40)
    first = experiment(limits=limits).run()
    assert first.marks == ("incomplete",)
    assert first.comparisons[0].untested.startswith("incomplete: budget (limits.calls is 40, and ")
    others: list[dict[str, Any]] = [
        {"seed": 43},
        {"arms": {"treatment": Corrections(GATE), "control": Corrections()}},
        {"order": "sequential_random"},
    ]
    for other in others:
        with pytest.raises(ConfigurationError, match="cannot go on"):
            experiment(**other).run(resume="last")
    whole = experiment().run(resume="last")
    assert plain(whole) == plain(usual.result)


@pytest.mark.lengthy
def test_a_result_is_read_from_the_folder_of_its_run(usual: Usual) -> None:
    assert plain(load_result(run_folder("last", usual.folder))) == plain(usual.result)


@pytest.mark.lengthy
def test_an_async_program_runs_experiments_too(usual: Usual) -> None:
    assert plain(asyncio.run(experiment().arun())) == plain(usual.result)


@pytest.mark.lengthy
def test_results_do_not_depend_on_concurrency(usual: Usual) -> None:
    one = experiment(limits=Limits(concurrency=1)).run(folder=None)
    assert plain(one) == plain(usual.result)


@pytest.mark.lengthy
def test_runs_pool_their_scores() -> None:
    result = pair(runs=2, metrics=["fluency"]).run(folder=None)
    assert result.plan.pairs == 4
    assert len(result.scores["control"]["fluency"]) == 8
    assert "seeds 42 to 43" in result.table()


@pytest.mark.lengthy
def test_a_scale_keeps_two_environments() -> None:
    result = experiment(scale=0.01, metrics=["fluency"]).run(folder=None)
    assert (result.plan.pairs, list(result.scores["control"])) == (2, ["fluency"])


@pytest.mark.lengthy
@pytest.mark.parametrize("answer", [None, {"score": "high"}, ["nonsense"], ValueError("no answer")])
def test_a_judge_that_answers_nonsense_gives_no_result(answer: Any) -> None:
    """The scores are missing, none is made up, and the reason is reported."""
    result = pair(judge=Says(answer), metrics=["fluency", "convergence"]).run(folder=None)
    assert result.marks == ("not_scored",)
    assert not any(scores for metrics in result.scores.values() for scores in metrics.values())
    assert set(result.reasons["control"]) == {"fluency", "convergence"}
    assert "control: not scored: 4 of fluency, 2 of convergence (" in result.table()
    assert json.loads(json.dumps(result.to_dict()))["reasons"]["control"]["fluency"]


class _Gone:
    """A repository whose database has gone away after some records."""

    def __init__(self) -> None:
        self.calls = 0

    def log_correction(self, action: Any, persona: Any = None) -> None:
        self._keep()

    def log_intervention(self, evaluated: Any, personas: Any = ()) -> None:
        self._keep()

    def _keep(self) -> None:
        self.calls += 1
        if self.calls > 5:
            raise OSError("the database has gone away")


@pytest.mark.lengthy
def test_a_repository_that_fails_changes_no_result(usual: Usual) -> None:
    gone = _Gone()
    result = experiment(repository=gone).run(folder=None)
    assert gone.calls == 24 + 24  # the messages and the evaluated interventions of the treatment
    assert plain(result) == plain(usual.result)


@pytest.mark.lengthy
@pytest.mark.parametrize("id", SCENARIOS)
def test_treatments_of_the_seed_profile_take_effect(id: str) -> None:
    """The interventions of three short steps fire if their judge finds that they should."""
    corrector = Says(scores())  # every condition holds, and every draft passes
    known: dict[str, Any] = {"model": speaker(), "judge": judge(), "corrector": corrector, "scale": 0.01}
    result = Experiment(id, profile="seed", **known).run(folder=None)
    assert result.marks == ()
    assert (result.exposure["treatment"].nudges > 0) is (id != "debate-controversial")


@pytest.mark.lengthy
def test_interventions_that_can_never_fire_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """`variety` waits for seven messages of an agent, who has six when the last of seven steps begins."""
    for steps, reports in ((7, 1), (8, 0)):
        caplog.clear()
        given = scenario(Corrections(GATE, (variety,)), steps=steps, groups=1, metrics=["fluency"])
        pair(given).run(folder=None)
        found = [one for one in caplog.messages if "intervention 'variety' never fires" in one]
        assert len(found) == reports


# Dry runs and plans -------------------------------------------------------------------------------

DRY = [
    ("brainstorming-average", "40", "200 (20)", "2,200", "2,200–13,200", "2,200–13,200", "≤ 2,200", "1,440"),
    (
        "brainstorming-difficult-full",
        "24",
        "96 (12)",
        "1,056",
        "1,056–3,168",
        "1,056–3,168",
        "≤ 1,056",
        "720",
    ),
    ("brainstorming-difficult-variety", "24", "96 (12)", "1,056", "1,056", "0", "≤ 1,056", "720"),
    ("debate-controversial", "24", "120 (20)", "720", "720–2,160", "720–2,160", "0", "768"),
]


def planned(id: str, **known: Any) -> Experiment:
    return Experiment(id, model=speaker(), judge=judge(), **known)


@pytest.mark.parametrize("row", DRY)
def test_a_dry_run_counts_what_would_happen(row: tuple[str, ...]) -> None:
    given = planned(row[0])
    assert given.plan.row(given.corrections) == row
    assert len(row) == len(COLUMNS)


def test_a_scaled_dry_run_is_smaller() -> None:
    plans = [planned(id, scale=0.1).plan for id in SCENARIOS]
    assert [plan.scoring_calls for plan in plans] == [144, 60, 60, 64]
    assert [(plan.pairs, plan.agents) for plan in plans] == [(4, 20), (2, 8), (2, 8), (2, 10)]


@pytest.mark.lengthy
def test_the_counts_of_a_dry_run_are_those_of_the_run(usual: Usual) -> None:
    given, result = usual.given, usual.result
    _, pairs, agents, drafts, treated, checks, evaluations, scoring = given.plan.row(given.corrections)
    assert (pairs, agents, drafts) == ("4", "8 (4)", f"{result.exposure['control'].drafts}")
    assert (treated, checks, evaluations) == (
        "24–72",
        "24–72",
        f"≤ {result.exposure['treatment'].evaluations}",
    )
    rapporteurs = given.model.calls - sum(each.drafts for each in result.exposure.values())  # type: ignore[union-attr]
    assert int(scoring) == given.judge.calls + rapporteurs == 72  # type: ignore[union-attr]


@pytest.mark.parametrize("id", SCENARIOS)
@pytest.mark.parametrize("profile", ["paper", "seed"])
def test_each_environment_of_a_scenario_has_another_group_theme_or_repetition(id: str, profile: str) -> None:
    found = SCENARIOS[id][profile]
    each = [found.environment(number) for number in range(found.environments)]
    assert len({(one.group, one.theme, one.repetition) for one in each}) == found.environments
    assert found.distinct == (found.groups * found.group_size)


@pytest.mark.parametrize(
    ("id", "attempts"),
    [("brainstorming-average", 5), ("brainstorming-difficult-full", 2), ("debate-controversial", 2)],
)
def test_the_gate_of_the_paper_judges_adherence_alone(id: str, attempts: int) -> None:
    paper, seed = SCENARIOS[id]["paper"].treatment.gate, SCENARIOS[id]["seed"].treatment.gate
    assert paper is not None
    assert seed is not None
    assert (paper.thresholds, paper.max_correction_attempts) == ({"adherence": 5.0}, attempts)
    assert (seed.thresholds, seed.max_correction_attempts) == ({"adherence": 7.0, "consistency": 7.0}, 2)


@pytest.mark.lengthy
def test_an_experiment_is_held_to_its_plan(project: Path) -> None:
    file = pair().plan.write("plan.json")
    result = pair().run(plan=file)
    assert result.plan_hash == ExperimentPlan.read(file).hash == pair().plan.hash
    assert f"planned beforehand: {result.plan_hash}" in result.table()
    with pytest.raises(ConfigurationError, match="seed is 7, planned is 42"):
        pair(seed=7).run(plan=file)
    with pytest.raises(ConfigurationError, match="pairs is 4, planned is 2"):
        experiment().run(plan=file)
    with pytest.raises(ConfigurationError, match="is there already"):
        pair().plan.write(file)
    with pytest.raises(ConfigurationError, match="cannot be written: File name too long"):
        pair().plan.write("x" * 300)
    file.write_text(file.read_text().replace('"alpha": 0.05', '"alpha": 0.1'))
    with pytest.raises(ConfigurationError, match="It was edited"):
        pair().run(plan=file)
    file.write_text(file.read_text().replace('"alpha": 0.1', '"alpha": NaN'))
    with pytest.raises(ConfigurationError, match="It was edited"):
        pair().run(plan=file)
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match="cannot be read as a plan"):
        pair().run(plan=file)
    deep = f'"metrics": {"[" * 900}{"]" * 900}'
    file.write_text(
        json.dumps({**pair().plan.to_dict(), "hash": "?", "metrics": 0}).replace('"metrics": 0', deep)
    )
    with pytest.raises(ConfigurationError, match="It was edited"):
        pair().run(plan=file)
    file.write_text("{}")
    with pytest.raises(ConfigurationError, match="is not a plan of an experiment"):
        pair().run(plan=file)


# Models, people, input ----------------------------------------------------------------------------


@pytest.mark.lengthy
def test_a_model_in_two_roles_is_a_warning() -> None:
    model = speaker(lambda prompt: "fine")
    with pytest.warns(ArbiterWarning, match="also plays the agents"):
        result = experiment(model=model, corrector=None, metrics=["fluency"]).run(folder=None)
    assert result.warnings == ["the judge that corrects also plays the agents"]
    reading = judge()
    with pytest.warns(ArbiterWarning, match="that corrects also scores"):
        experiment(judge=reading, corrector=reading).suite()
    with pytest.warns(ArbiterWarning, match="the judge that scores also plays the agents"):
        experiment(judge=model, model=model, metrics=["fluency"]).suite()
    with pytest.warns(ArbiterWarning, match=r"of the family of the agents' model \(gpt\)"):
        experiment(
            judge=Named(answers=[], model_name="gpt-5"), model=Named(answers=[], model_name="o3")
        ).suite()


@pytest.mark.lengthy
def test_people_from_a_generator_are_in_each_run() -> None:
    class Maker:
        def agents(self, n: int) -> Any:
            return (each for each in people(n))

    template: dict[str, Any] = {"mode": "template", "model": None, "judge": None, "corrector": None}
    for given in ((each for each in people(2)), Maker()):
        made = pair(agents=given, runs=2, **template)
        for _ in range(2):
            assert made.run(folder=None).exposure["control"].drafts == 24


def test_names_of_people_are_compared_in_linear_time() -> None:
    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    crowd = [Persona(Counted(f"Person {number}"), "a person") for number in range(2_000)]
    with pytest.raises(ConfigurationError, match="two people have the name 'Person 1999'"):
        experiment(agents=[*crowd, crowd[-1]]).suite()
    assert Counted.compared < 100_000


@pytest.mark.lengthy
@pytest.mark.parametrize("is_bound", [False, True])
def test_calls_of_a_model_have_their_places_also_with_bound_arguments(is_bound: bool) -> None:
    """`judge_concurrency` is for all calls of a model: those of agents, and those of the judge that corrects."""
    now = most = 0
    lock = Lock()

    def counting(answers: Callable[[str], str]) -> Any:
        def answer(prompt: str) -> Any:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            sleep(0.005)
            with lock:
                now -= 1
            return answers(prompt)

        model = Scripted(answers=[answer])
        return model.bind(stop=["Ann:"]) if is_bound else model

    def passes(prompt: str) -> str:
        return '{"score": 9, "reasoning": "read"}'

    for roles in ({"model": counting(speaker().answers[0])}, {"corrector": counting(passes)}):
        most = 0
        limits = Limits(concurrency=4, judge_concurrency=1)
        assert experiment(scenario(Corrections(GATE)), **roles, limits=limits).run(folder=None).marks == ()
        assert most == 1


@pytest.mark.lengthy
def test_templates_speak_without_a_model_and_are_not_scored() -> None:
    result = Experiment(scenario(), mode="template").run(folder=None)
    assert "synthetic" in result.marks
    assert result.exposure["treatment"].to_dict() == result.exposure["control"].to_dict()
    assert result.exposure["control"].drafts == 24
    assert "scores: synthetic" in result.table()
    assert not any(row.treatment or row.p is not None for row in result.comparisons)


@pytest.mark.lengthy
def test_the_population_of_a_scenario_is_made_from_its_seed() -> None:
    model = speaker()
    Experiment(scenario(), model=model, judge=judge(), corrector=corrector(), metrics=["fluency"]).run(
        folder=None
    )
    first = AgentFactory("averageCustomer", seed=42, template_only=True).agents(4)[0]
    assert any(f"You are {first.name}" in model.prompt(call) for call in range(model.calls))


def nothing(personas: Any, judge: Any) -> Any:
    """A function that forgets to return its interventions."""


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"scenario": "debate-controversal"}, "there is no scenario .* Did you mean 'debate-controversial'"),
        ({"scenario": "debate-controversial", "profile": "papr"}, "Did you mean 'paper'"),
        ({"scale": 0}, "above 0"),
        ({"scale": float("nan")}, "above 0"),
        ({"runs": 0}, "whole number from 1"),
        ({"runs": 10**9}, "the environments of all arms are .*; expected at most 1,000,000. Lower runs"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"order": "random"}, "order is 'random'"),
        ({"mode": "offline"}, "expected one of llm, template"),
        ({"mode": "template"}, "asks no model"),
        ({"model": None}, "needs a model for the agents and a judge"),
        ({"metrics": ["adherance"]}, "Did you mean 'adherence'"),
        ({"metrics": []}, "metrics is empty"),
        ({"metrics": 5}, "metrics has 5; expected some of adherence"),
        ({"metrics": [["fluency"]]}, r"metrics has \['fluency'\]; expected some of adherence"),
        (
            {"scenario": "debate-controversial", "profile": None},
            "profile is None; expected one of paper, seed",
        ),
        (
            {
                "arms": {
                    "one": Corrections(interventions=[nothing]),
                    "other": Corrections(),
                }
            },
            "returned None; expected an InterventionBatch",
        ),
        ({"agents": 5}, "agents is 5; expected personas, or an AgentFactory"),
        ({"scenario": 42}, "scenario is 42; expected a Scenario, or one of brainstorming-average"),
        ({"arms": [Corrections(), Corrections()]}, "at least two Corrections by name"),
        ({"arms": {1: Corrections(), 2: Corrections()}}, "at least two Corrections by name"),
        ({"limits": {"concurrency": 4}}, "expected Limits"),
        ({"agents": ["Ann", "Ben", "Cleo", "Dora"]}, "agents has 'Ann'; expected personas"),
        ({"repository": "store.db"}, r"an object with log_correction\(\) and log_intervention\(\)"),
        ({"ledger": "ledger.db"}, r"expected an open ledger: Ledger\('ledger.db'\)"),
        ({"arms": {"only": Corrections()}}, "at least two Corrections"),
        ({"agents": people(3)}, "agents has 3 people; the experiment needs 4"),
        (
            {"agents": [Persona("Ann", "a"), Persona("Ann", "b"), *people(2)]},
            "two people have the name 'Ann'",
        ),
    ],
)
def test_wrong_input_is_refused_before_anything_runs(known: dict[str, Any], said: str) -> None:
    settings: dict[str, Any] = {
        "scenario": scenario(),
        "model": speaker(),
        "judge": judge(),
        "corrector": corrector(),
        "agents": people(4),
    }
    model = settings["model"]
    with pytest.raises(ConfigurationError, match=said):
        Experiment(**{**settings, **known}).run(folder=None)
    assert model.calls == 0


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"group_size": 0}, "group_size is 0"),
        ({"steps": 1}, "from 2"),
        ({"themes": ()}, "at least one"),
        ({"themes": "tea"}, "in a list"),
        ({"themes": (1, 2)}, "in a list"),
        ({"id": 5}, "id is 5; expected a text"),
        ({"task": " "}, "task is ' '; expected a text"),
        ({"treatment": GATE}, r"expected Corrections\(...\)"),
        ({"task": "Talk."}, "Write {theme}"),
        ({"metrics": ["nothing"]}, "scenario 'tea': metrics has 'nothing'"),
        ({"metrics": None}, "scenario 'tea': metrics has None"),
        ({"ideas": "report"}, "scenario 'tea': ideas is 'report'; expected enumerate or rapporteur"),
    ],
)
def test_a_wrong_scenario_is_refused(known: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        scenario(**known)


@pytest.mark.lengthy
def test_more_than_two_arms_are_compared_pair_by_pair() -> None:
    arms = {"both": Corrections(GATE, (nudging,)), "gate": Corrections(GATE), "none": Corrections()}
    result = pair(arms=arms, metrics=["fluency"]).run(folder=None)
    assert [row.arms for row in result.comparisons] == [("both", "gate"), ("both", "none"), ("gate", "none")]
    assert isinstance(scenario(), Scenario)
