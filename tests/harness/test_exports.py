"""Exports of runs for trainers: the columns of each form, what is a reward, and that `datasets` reads the files."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import count
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from arbiter import ArbiterOS, EvaluationResult, History, NodeEvaluator, PolicyChecker, PolicyRouter, Verdict
from arbiter._values.kinds import is_list, is_mapping
from arbiter.advice import CorrectionGate
from arbiter.cli import main
from arbiter.errors import ArbiterWarning, ConfigurationError
from arbiter.harness import Case, CaseRun, Limits, Score, Suite
from arbiter.harness.exports import FORMATS, ExportOptions, Rewards, export_run
from arbiter.harness.exports.forms import part_of
from arbiter.harness.journal import run_folder
from arbiter.personas import AdherenceEvaluator, FluencyEvaluator, Persona, PersonaGate
from arbiter.verdicts import Correction
from tests.harness.test_eval_command import Said
from tests.personas.gate_support import Speaker, chat, enabled, scored
from tests.personas.personas_support import Says, scores
from tests.scripted import usage

COLUMNS = {
    "steps": "run_id case_id repeat superstep branch node instruction input output reward rewards passed done "
    "row_versions judge_model tokens policy_violations used_for_control item_id",
    "trl-grpo": "prompt ground_truth case_id",
    "trl-dpo": "prompt chosen rejected margin",
    "trl-reward": "prompt chosen rejected margin",
    "trl-kto": "prompt completion label",
    "stepwise": "prompt completions labels step_rewards",
    "verl": "data_source prompt ability reward_model extra_info",
}
JIM = Persona("Jim", "A calm salesman.", "jim")
QUESTION, ANSWER = {"role": "user", "content": "6 × 7?"}, {"role": "assistant", "content": "42"}


class State(TypedDict, total=False):
    question: str
    plan: str
    answer: str
    log: Annotated[list[str], add]


def solving(answers: Sequence[str], *branches: str) -> Any:
    """A graph that plans, then runs the branches at once, then gives these answers, run by run."""
    turns = count()

    def plan(state: State) -> State:
        return {"plan": f"solve {state.get('question')}"}

    def write(state: State) -> State:
        return {"answer": answers[next(turns) % len(answers)]}

    def look(state: State) -> State:
        return {"log": ["looked"]}

    graph: Any = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("write", write)
    graph.add_edge(START, "plan")
    for branch in branches:
        graph.add_node(branch, look)
        graph.add_edge("plan", branch)
    graph.add_edge(list(branches) or "plan", "write")
    return graph.compile()


def asking(answer: Callable[[dict[str, Any]], Any]) -> Any:
    """A chat graph of one node."""

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        found = answer(state)
        return {"messages": found if isinstance(found, list) else [found]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    return graph.compile()


def says(text: str) -> Callable[[Any], str]:
    """A target that answers with that text, whatever it is asked."""
    return lambda given: text


def gives(value: object) -> Callable[[CaseRun], object]:
    """A scorer that gives every run that value."""
    return lambda run: value


class Judging(NodeEvaluator):
    """A score of 0 to 9 for the node `write`: 9 for "42", else 4; "42" passes."""

    scale = (0.0, 9.0)

    def __init__(self, name: str = "tone") -> None:
        super().__init__(name, target_nodes=["write"])

    def evaluate(self, history: History) -> EvaluationResult:
        right = history.item.output_state["answer"] == "42"
        return EvaluationResult(9.0 if right else 4.0, right, "", {"model": "judge-1"})


def suite(*cases: Case, **fields: Any) -> Suite:
    # One at a time, so that the answers come in order.
    fields = {
        "limits": Limits(concurrency=1),
        "repeats": 2,
        "evaluators": [Judging()],
        "target": solving(["42", "7"]),
        **fields,
    }
    return Suite("sums", cases or [Case("six", {"question": "6 × 7?"}, expected="42")], **fields)


def rows_of(folder: Path, part: str = "train", *, name: str = "") -> Any:
    """The rows of an exported file, as `datasets` reads them."""
    datasets: Any = import_module("datasets")  # comes without types
    [file] = folder.glob(f"{name}{part}.*")
    kind = "parquet" if file.suffix == ".parquet" else "json"
    cache = folder.parent / "cache"
    return datasets.load_dataset(kind, data_files=str(file), split="train", cache_dir=str(cache))


def exported(to: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of the last run in that form."""
    made = export_run("last", to, options=ExportOptions(**options))
    return list(rows_of(made.folder))


# Forms


@pytest.mark.lengthy
def test_each_form_has_its_columns_and_loads_with_datasets(project: Path) -> None:
    """One run of one suite becomes each of the forms."""
    (project / "suites").mkdir()
    (project / "suites/sums.yaml").write_text(
        "suite: sums\nscorers: [{name: right, use: equals, what: expected}]\ncases: [{id: six, input: x}]\n"
    )
    suite().run()
    assert {*COLUMNS, "openrlhf"} == set(FORMATS)
    for to, columns in COLUMNS.items():
        rows = rows_of(export_run("last", to).folder)
        assert rows.column_names == columns.split(), to
        assert len(rows) > 0
    made = export_run("last", "openrlhf")
    assert rows_of(made.folder, name="prompts-").column_names == ["prompt", "label"]
    assert rows_of(made.folder, name="preferences-").column_names == ["prompt", "chosen", "rejected"]
    assert {file.suffix for file in made.folder.iterdir()} == {".jsonl"}


def brief(run: CaseRun) -> bool:
    return len(run.output["answer"]) < 2


@pytest.mark.lengthy
def test_a_step_is_a_node_run_with_its_rewards(project: Path) -> None:
    """Rewards are shares of the scale; scores of the whole run belong to its last superstep."""
    suite(scorers={"brief": brief}).run()
    plan, write, _, wrong = exported("steps")
    assert (plan["node"], plan["superstep"], plan["done"], plan["reward"]) == ("plan", 0, False, None)
    assert json.loads(plan["input"])["question"] == "6 × 7?"
    assert json.loads(write["output"]) == {"answer": "42"}
    assert write["rewards"] == [{"name": "tone", "value": 1.0}, {"name": "brief", "value": 0.0}]
    assert (write["reward"], write["passed"], write["done"]) == (0.5, False, True)
    assert (write["judge_model"], write["used_for_control"]) == ("judge-1", False)
    assert {row["name"] for row in write["row_versions"]} == {"tone", "brief"}
    assert wrong["rewards"][0]["value"] == pytest.approx(4 / 9)
    assert wrong["item_id"] != write["item_id"] != plan["item_id"]


def test_a_function_is_one_step(project: Path) -> None:
    Suite("f", [Case("a", "Paris?")], scorers={"right": gives(True)}).run(says("yes"))
    [step] = exported("steps")
    assert (step["node"], step["input"], step["output"]) == (None, '"Paris?"', '"yes"')
    assert (step["reward"], step["done"], step["passed"]) == (1.0, True, True)


def test_messages_become_chat_messages_and_their_tokens_count(project: Path) -> None:
    """A chat graph's node run has its messages as prompt and completion, calls of tools included."""
    call = {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    answer = AIMessage("", tool_calls=[call], usage_metadata=usage(5, 2))
    target = asking(lambda state: answer)
    given = {"messages": [{"role": "user", "content": "1 + 1?"}]}
    Suite("chat", [Case("a", given)], scorers={"ok": gives(True)}).run(target)
    [step] = exported("steps")
    assert step["tokens"] == 7
    [row] = exported("trl-kto")
    assert [(one["role"], one["content"]) for one in row["prompt"]] == [("user", "1 + 1?")]
    [said] = row["completion"]
    assert said["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}


def test_preferences_are_repeats_that_differ_by_the_margin(project: Path) -> None:
    """Rewards of 1 and 4/9 differ by 5/9: a pair with that margin, and none with a larger one."""
    suite(target=solving(["7", "42", "42"]), repeats=3).run()
    rows = exported("trl-dpo")
    assert len(rows) == 2  # the two right answers are equal
    for row in rows:
        assert row["margin"] == pytest.approx(5 / 9, abs=1e-6)
        assert row["prompt"] == [QUESTION]
        assert json.loads(row["chosen"][0]["content"])["answer"] == "42"
        assert json.loads(row["rejected"][0]["content"])["answer"] == "7"
    with pytest.raises(ConfigurationError, match=r"differ by 0\.6: 1 of 1 cases have two scored repeats"):
        export_run("last", "trl-reward", options=ExportOptions(margin=0.6))
    assert len(exported("trl-reward", margin=0.5)) == 2


def test_preferences_compare_the_rows_that_both_repeats_have(project: Path) -> None:
    """A scorer that failed in one repeat has no part in the difference."""
    turns = count()

    def late(run: Any) -> float:
        return 1.0 if next(turns) == 0 else 1 / 0

    answers = count()

    def answer(given: str) -> str:
        return str(next(answers))

    Suite("f", [Case("a", "x")], scorers={"late": late, "same": gives(0.5)}, repeats=2).run(answer)
    with pytest.raises(ConfigurationError, match="no two repeats"):
        export_run("last", "trl-dpo")


def test_labels_of_kto_are_passes(project: Path) -> None:
    suite().run()
    rows = exported("trl-kto")
    assert [row["label"] for row in rows] == [True, False]
    assert rows[0]["completion"] == [ANSWER]
    assert "solve 6 × 7?" in rows[0]["prompt"][0]["content"]


def test_steps_of_a_chain_have_labels_and_rewards(project: Path) -> None:
    suite().run()
    first, second = exported("stepwise")
    assert first["completions"] == ["solve 6 × 7?", "42"]
    assert (first["labels"], first["step_rewards"]) == ([None, True], [None, 1.0])
    assert second["labels"] == [None, False]


@pytest.mark.lengthy
def test_branches_of_a_superstep_are_no_chain(project: Path) -> None:
    """`stepwise` refuses them and names the nodes; `per_node` makes a row of each node run."""
    suite(target=solving(["42"], "look", "search"), repeats=1).run()
    with pytest.raises(
        ConfigurationError, match=r"case 'six' \(repeat 1\) ran (look, search|search, look) in one"
    ):
        export_run("last", "stepwise")
    [row] = exported("stepwise", per_node=True)
    assert (row["completions"], row["labels"]) == (["42"], [True])
    assert [step["branch"] for step in exported("steps")] == [0, 0, 1, 0]


def test_verl_has_the_rewards_of_nodes_and_the_part(project: Path) -> None:
    suite(Case("six", {"question": "6 × 7?"}, expected={"n": 42}, tags=["arithmetic"])).run()
    [row] = exported("verl")
    assert (row["data_source"], row["ability"], row["prompt"]) == ("sums", "arithmetic", [QUESTION])
    assert row["reward_model"] == {"style": "rule", "ground_truth": '{"n": 42}'}
    rewards = row["extra_info"]["node_rewards"]
    assert [(one["repeat"], one["node"], round(one["reward"], 3)) for one in rewards] == [
        (0, "write", 1.0),
        (1, "write", 0.444),
    ]


# What is a reward


class Reading(PolicyRouter):
    """Reads "tone" after the node `write`, and changes nothing."""

    def __init__(self) -> None:
        super().__init__("reading", target_nodes=["write"])

    def route_after(self, history: History, current_output: Any) -> str | None:
        assert history.item.evaluation_results["tone"].score >= 0
        return None


def steered() -> Any:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Reading())
    own = suite(evaluators=[Judging("tone"), Judging("calm")])
    return own.run(arbiter_os=arbiter_os)


def test_a_score_that_a_rule_read_is_no_reward(project: Path) -> None:
    """A router read "tone", so only "calm" is a reward, unless the score is asked for."""
    report = steered()
    marks = {score.name: score.used_for_control for score in report.results[0].scores}
    assert marks == {"tone": True, "calm": False}
    write = exported("steps")[1]
    assert write["used_for_control"] is True
    assert [reward["name"] for reward in write["rewards"]] == ["calm"]
    with pytest.raises(ConfigurationError, match="no node run that passed or failed"):
        export_run("last", "trl-kto", options=ExportOptions(rows=["tone"]))
    assert len(exported("trl-kto", rows=["tone"], include_control=True)) == 2


def test_a_dimension_that_a_gate_judged_is_no_reward(project: Path) -> None:
    """A persona gate rewrote for fluency, so a score of fluency says nothing; its rewrite is a preference."""
    gate = PersonaGate(scored({"Grrr.": 2}), [JIM], enabled("fluency"))
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    judges = [FluencyEvaluator(judge=Says(scores())), AdherenceEvaluator(judge=Says(scores()), persona=JIM)]
    before = [QUESTION, {"role": "assistant", "content": "Before.", "name": "Jim"}]
    Suite("jim", [Case("a", {"messages": before})], evaluators=judges).run(
        chat(Speaker("Grrr.", "Welcome.", name="jim")), arbiter_os=arbiter_os
    )
    [step] = exported("steps")
    assert (step["used_for_control"], [reward["name"] for reward in step["rewards"]]) == (
        True,
        ["adherence"],
    )
    [row] = exported("trl-dpo", corrections=True)
    assert [pair[-1]["content"] for pair in (row["chosen"], row["rejected"])] == ["Welcome.", "Grrr."]
    assert [one["content"] for one in row["prompt"]] == ["6 × 7?", "Before."]


def test_only_what_is_scored_on_a_scale_with_two_ends_is_a_reward(project: Path) -> None:
    """Errors, abstentions, labels and counts without an upper end are in no reward column."""
    scorers: dict[str, Callable[[Any], object]] = {
        "fails": lambda run: 1 / 0,
        "nothing": gives(None),
        "label": gives("rude"),
        "count": gives(Score("count", 7.0, scale=(0.0, float("inf")))),
        "half": gives(0.5),
    }
    Suite("f", [Case("a", "x")], scorers=scorers).run(says("y"))
    [step] = exported("steps")
    assert step["rewards"] == [{"name": "half", "value": 0.5}]


class Again(CorrectionGate):
    """Sends the first draft back."""

    def review(self, history: History, draft: Mapping[str, Any], attempt: int) -> Correction:
        return Correction.commit() if attempt > 1 else Correction.retry("once more")


@pytest.mark.parametrize("accepted", [True, False])
def test_corrections_are_pairs_of_a_draft_and_what_was_accepted_instead(
    project: Path, accepted: bool
) -> None:
    """A draft that was only taken because the attempts ran out is no preference."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Again("gate", target_nodes=["write"], max_attempts=2 if accepted else 1))
    suite(repeats=1, target=solving(["7", "42"])).run(arbiter_os=arbiter_os)
    if not accepted:
        with pytest.raises(ConfigurationError, match="no draft that a correction gate sent back before"):
            export_run("last", "trl-dpo", options=ExportOptions(corrections=True))
        return
    [row] = exported("trl-dpo", corrections=True)
    assert (row["chosen"], row["rejected"]) == ([ANSWER], [{"role": "assistant", "content": "7"}])
    assert row["margin"] is None


class Never(PolicyChecker):
    def check_before(self, history: History) -> Verdict:
        return Verdict.deny("not today")


def test_denials_are_policy_violations_of_their_step(project: Path) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Never("never", target_nodes=["write"]))
    suite(repeats=1).run(arbiter_os=arbiter_os)
    plan, write = exported("steps")
    assert (plan["policy_violations"], write["policy_violations"]) == ([], ["never"])
    assert (write["output"], write["reward"]) == (None, None)


# Parts


@pytest.mark.lengthy
def test_a_split_keeps_clusters_together_and_does_not_depend_on_the_others(project: Path) -> None:
    cases = [Case(f"c{n}", {"question": str(n)}, cluster=f"user-{n // 4}") for n in range(80)]
    suite(*cases, repeats=1, target=solving(["42"])).run()
    made = export_run("last", "trl-kto", options=ExportOptions(split=0.5))
    parts = {part: list(rows_of(made.folder, part)) for part in ("train", "test")}
    assert len(parts["train"]) + len(parts["test"]) == 80
    assert all(len(rows) % 4 == 0 and rows for rows in parts.values())
    users = [part_of(case, 0.5) for case in cases]
    assert [part_of(case, 0.5) for case in reversed(cases)] == users[::-1]
    shares = [part_of(Case(f"case-{n}", n), 0.9) == "train" for n in range(1000)]
    assert 860 < sum(shares) < 940


def test_an_empty_part_is_reported(project: Path) -> None:
    suite().run()
    with pytest.warns(ArbiterWarning, match=r"t(est|rain)\.parquet is left out: no case falls into it"):
        made = export_run("last", "steps", options=ExportOptions(split=0.5))
    assert len(made.files) == 1


def test_without_pyarrow_files_are_json_lines(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbiter.harness.exports.files.find_spec", dict[str, Any]().get)
    suite().run()
    made = export_run("last", "steps")
    assert [*made.files] == ["train.jsonl"]
    assert [row["node"] for row in rows_of(made.folder)] == ["plan", "write"] * 2


# Rewards of completions

SUMS = """\
suite: sums
scorers:
  - {name: right, use: contains}
cases:
  - {id: six, input: {question: "6 × 7?"}, expected: "42", expect: {matches: "^[0-9]+$", completes: true}}
  - {id: two, input: {question: "1 + 1?"}, expected: "2"}
"""


@pytest.fixture
def sums(project: Path) -> Path:
    (project / "suites").mkdir()
    (project / "suites/sums.yaml").write_text(SUMS)
    cases = [
        Case("six", {"question": "6 × 7?"}, expected="42"),
        Case("two", {"question": "1 + 1?"}, expected="2"),
    ]
    suite(*cases, target=says("42"), evaluators=(), scorers={"right": gives(True)}).run()
    return project


def test_the_module_for_grpo_rewards_completions_by_the_scorers(
    sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in any folder, and takes completions as TRL passes them. Expectations of the output count."""
    made = export_run("last", "trl-grpo")
    assert [row["prompt"] for row in rows_of(made.folder)] == [
        [QUESTION],
        [{"role": "user", "content": "1 + 1?"}],
    ]
    (sums / "elsewhere").mkdir()
    monkeypatch.chdir(sums / "elsewhere")
    reward = runpy.run_path(str(sums / made.folder / "reward.py"))["reward"]
    assert reward.__name__ == "reward"
    completions = [[{"role": "assistant", "content": text}] for text in ("42", "It is 42.", "7")]
    found = reward(
        prompts=[[QUESTION]] * 3, completions=completions, case_id=["six"] * 3, ground_truth=["42"] * 3
    )
    assert found == [1.0, 0.5, 0.5]
    assert reward(completions=["2", "3"], case_id=["two", "two"]) == [1.0, 0.0]


def test_a_suite_of_any_name_has_a_module_for_grpo(sums: Path) -> None:
    Suite('"""', [Case("six", "6 × 7?")], scorers={"right": gives(True)}).run(says("42"))
    made = export_run("last", "trl-grpo", options=ExportOptions(suite=Path("suites/sums.yaml")))
    reward = runpy.run_path(str(made.folder / "reward.py"))["reward"]
    assert reward(completions=["42"], case_id=["six"]) == [1.0]


def test_a_completion_of_brackets_alone_is_a_text(project: Path) -> None:
    (project / "s.yaml").write_text(
        "suite: s\ncases: [{id: a, input: x, expect: {json_schema: {type: object}}}]\n"
    )
    assert Rewards("s.yaml", is_json=True)(['{"a": 1}', "[" * 100_000], ["a", "a"]) == [1.0, 0.0]


def test_a_completion_that_no_scorer_judged_has_no_reward(project: Path) -> None:
    (project / "scorers.py").write_text("def sour(run):\n    raise ValueError('no')\n")
    (project / "s.yaml").write_text(
        "suite: s\nscorers: [{name: sour, use: 'scorers:sour'}]\ncases: [{id: a, input: x}]\n"
    )
    assert Rewards("s.yaml", allow=["scorers"])(["text"], ["a"]) == [None]
    with pytest.raises(KeyError):
        Rewards("s.yaml", allow=["scorers"])(["text"], ["b"])


def test_a_suite_without_scorers_cannot_reward(project: Path) -> None:
    (project / "s.yaml").write_text("suite: s\ncases: [{id: a, input: x}]\n")
    with pytest.raises(ConfigurationError, match=r"s\.yaml: nothing judges completions"):
        Rewards("s.yaml")


# The journal


def test_node_runs_survive_a_resume(project: Path) -> None:
    """A run that was stopped after its first answer keeps that answer's node runs."""
    own = suite(
        *(Case(f"c{n}", {"question": "x"}) for n in range(3)), repeats=1, limits=Limits(concurrency=1)
    )

    def stop(session: Any) -> None:
        session.stop("interrupted")

    own.run(progress=stop)
    own.run(resume="last")
    assert [step["node"] for step in exported("steps")] == ["plan", "write"] * 3


def test_large_states_are_kept_beside_the_journal(project: Path) -> None:
    suite(Case("big", {"question": "x" * 100_000}), repeats=1).run()
    [journal] = project.glob(".arbiter/evals/*/journal.jsonl")
    assert journal.stat().st_size < 20_000
    assert json.loads(exported("steps")[0]["input"])["question"] == "x" * 100_000


def test_a_replay_has_no_node_runs_to_export(project: Path) -> None:
    """The answers of a replay are recorded, and no node ran."""
    suite().run(mode="record")
    suite().run(mode="mock")
    with pytest.raises(
        ConfigurationError, match=r"no node runs for 2 of 2 answers, such as case 'six' \(repeat 1\)"
    ):
        export_run("last", "steps")
    assert len(exported("trl-dpo")) == 1


# Mistakes and the command


@pytest.mark.parametrize(
    ("to", "options", "said"),
    [
        ("trl-dop", {}, r"expected one of steps, .*Did you mean 'trl-dpo'"),
        ("steps", {"rows": None}, "rows is None; expected names of scores"),
        ("trl-dpo", {"margin": "0.5"}, "margin is '0.5'; expected a number above 0"),
        ("trl-dpo", {"split": "0.5"}, "split is '0.5'; expected a number between 0 and 1"),
        ("trl-dpo", {"margin": 0.0}, "margin is 0.0; expected a number above 0"),
        ("trl-dpo", {"split": 1.0}, "split is 1.0; expected a number between 0 and 1"),
        (
            "steps",
            {"margin": 0.5},
            "margin has no effect on 'steps'; it is for trl-dpo, trl-reward, openrlhf",
        ),
        ("trl-kto", {"per_node": True}, "per_node has no effect on 'trl-kto'; it is for stepwise"),
        ("verl", {"corrections": True}, "corrections has no effect on 'verl'"),
        ("trl-dpo", {"corrections": True, "margin": 0.5}, "pairs of corrections have none"),
        ("steps", {"suite": Path("x.yaml")}, "suite and allow have no effect on 'steps'"),
        ("steps", {"rows": ["tune"]}, "no row 'tune'. Rows: tone. Did you mean 'tone'"),
        ("trl-grpo", {}, "0 files in suites/ have the suite 'sums'"),
    ],
)
def test_a_mistake_is_reported_before_a_file_is_written(
    project: Path, to: str, options: dict[str, Any], said: str
) -> None:
    suite().run()
    with pytest.raises(ConfigurationError, match=said):
        export_run("last", to, options=ExportOptions(**options))
    assert not (project / "exports").exists()


@pytest.mark.parametrize("name", ["../../elsewhere", "team/refunds", "re\u2028funds"])
def test_a_suite_whose_name_is_no_folder_needs_one(name: str, project: Path) -> None:
    Suite(name, [Case("a", "A?")], scorers={"brief": brief}).run(says("yes"))
    with pytest.raises(ConfigurationError, match="cannot be that of a folder"):
        export_run("last", "steps")
    assert export_run("last", "steps", out="here").files
    assert not (project / "exports").exists()


def test_a_run_without_results_or_with_files_there_is_refused(project: Path) -> None:
    suite().run()
    export_run("last", "steps", out="here")
    with pytest.raises(ConfigurationError, match=r"here/train\.parquet is there already"):
        export_run("last", "steps", out="here")
    with pytest.raises(ConfigurationError, match="there is no run 'nope'"):
        export_run("nope", "steps")


@pytest.mark.parametrize("field", ["nodes", "as_expected"])
def test_a_journal_of_another_form_is_a_sentence(field: str, project: Path) -> None:
    suite().run()
    journal = run_folder("last") / "journal.jsonl"
    journal.write_text(journal.read_text().replace(f'"{field}":', '"other":'))
    with pytest.raises(ConfigurationError, match="are not as it wrote them"):
        export_run("last", "steps")


def test_the_command_writes_the_files(sums: Path) -> None:
    said = Said("export", "last", "--to", "trl-grpo", "--out", "out")
    assert (said.code, said.out) == (0, "wrote out/train.parquet (2 rows)\nwrote out/reward.py\n")
    wrong = Said("export", "last", "--to", "trl-dpo")
    assert wrong.code == 2
    assert "no two repeats of one case" in wrong.err


def test_a_preference_file_without_pairs_is_left_out_of_openrlhf(
    sums: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so in a sentence."""
    monkeypatch.setattr("sys.argv", ["arbiter", "eval", "export", "last", "--to", "openrlhf", "--out", "out"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    assert said.err.startswith("warning: preferences.jsonl is left out: the run ")
    assert said.err.count("\n") == 1
    with pytest.warns(ArbiterWarning, match=r"preferences\.jsonl is left out: the run .* has no two repeats"):
        made = export_run("last", "openrlhf")
    assert [*made.files] == ["prompts-train.jsonl"]
    assert rows_of(made.folder, name="prompts-")[0] == {"prompt": [QUESTION], "label": "42"}


def test_messages_that_are_objects_are_chat_messages_too(project: Path) -> None:
    """States keep LangChain's messages; exports have the form of chat APIs."""

    def echo(state: dict[str, Any]) -> AIMessage:
        return AIMessage(f"you said {state['messages'][-1].content}")

    Suite("chat", [Case("a", {"messages": [["user", "hi"]]})], scorers={"ok": gives(True)}).run(asking(echo))
    [row] = exported("trl-kto")
    assert row["prompt"] == [{"role": "user", "content": "hi"}]
    assert row["completion"] == [{"role": "assistant", "content": "you said hi"}]


ODD = ["", "a\ud800b\x00c", "é\u2028\u202e", "h" * 300_000]


def speaks(state: dict[str, Any]) -> list[Any]:
    """A call of a tool, its answer, text beside a picture, and an odd text."""
    place = int(state["messages"][0].content)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return [
        AIMessage("", tool_calls=[{"name": "look", "args": {"at": "é"}, "id": "c1"}]),
        ToolMessage("42", tool_call_id="c1"),
        AIMessage([{"type": "text", "text": "see"}, picture]),
        AIMessage(ODD[place]),
    ]


@pytest.mark.lengthy
def test_odd_texts_are_the_same_in_both_kinds_of_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only characters that no file can hold are escaped; the others stay."""
    cases = [Case(f"c{place}", {"messages": [["user", str(place)]]}) for place in range(len(ODD))]
    turns = count()

    def even(run: CaseRun) -> bool:
        return next(turns) % 2 == 0

    def none(name: str) -> None:
        return None

    Suite("odd", cases, scorers={"even": even}, repeats=2, limits=Limits(concurrency=1)).run(asking(speaks))
    parquet: Any = import_module("pyarrow.parquet")
    forms = ("steps", "trl-kto", "stepwise", "verl")
    tables = {
        to: parquet.read_table(export_run("last", to).folder / "train.parquet").to_pylist() for to in forms
    }
    kto = [row["completion"] for row in tables["trl-kto"]][::2]
    assert [said[-1]["content"] for said in kto] == ["", "a\\ud800b\x00c", *ODD[2:]]
    assert kto[0][0]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "é"}'}
    assert (kto[0][1]["role"], kto[0][1]["tool_call_id"]) == ("tool", "c1")
    assert json.loads(kto[0][2]["content"])[1]["type"] == "image_url"
    monkeypatch.setattr("arbiter.harness.exports.files.find_spec", none)
    for to, rows in tables.items():
        made = export_run("last", to, out=f"lines/{to}")
        lines = [json.loads(line) for line in (made.folder / "train.jsonl").read_text().split("\n")[:-1]]
        assert without_nothing(lines) == without_nothing(rows), to


def without_nothing(value: Any) -> Any:
    """The value without the keys that have none, which Parquet fills in."""
    if is_mapping(value):
        return {name: without_nothing(part) for name, part in value.items() if part is not None}
    return [without_nothing(part) for part in value] if is_list(value) else value
