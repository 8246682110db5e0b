"""The examples, run as a reader runs them, and what their stories promise."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, StateGraph

from arbiter import ArbiterOS, PolicyViolationError
from arbiter.instructions import REFLECT, RESPOND
from arbiter.ledger import Ledger
from examples import create_agent_one_line, experiment, memory_tools, monitoring, stdlib_assistant
from examples.payments import graph as payments_graph
from examples.payments import main as payments
from examples.stdlib_assistant import (
    INSTRUCTIONS,
    MAX_REWRITES,
    QUESTIONS,
    Assistant,
    Grounded,
    Library,
    Outcome,
    State,
    Update,
    VerifiedBeforeRespond,
    ask,
    build_arbiter,
    build_graph,
    plain,
    rewritten,
    sentences_of,
)
from tests.processes import python

EXAMPLES = Path(stdlib_assistant.__file__).parent
ANSWERED, REFLECTED, REFUSED = QUESTIONS

STRAIGHT = ["retrieve", "answer", "verify", "respond"]
REWRITTEN = ["retrieve", "answer", "reflect"]


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    with contextlib.closing(Library.installed()) as library:
        yield library


@pytest.fixture(scope="module")
def ungoverned(library: Library) -> Assistant:
    return build_graph(library)


@pytest.fixture
def arbiter_os() -> ArbiterOS:
    return build_arbiter()


@pytest.fixture
def assistant(arbiter_os: ArbiterOS, ungoverned: Assistant) -> Assistant:
    return arbiter_os.govern(ungoverned, instructions=INSTRUCTIONS)


def nodes(outcome: Outcome) -> list[str]:
    return [item.node for item in outcome.history.items()]


def run(script: str, *arguments: str, folder: Path) -> str:
    """The output of `script`, started in `folder`, 80 columns wide."""
    path = os.pathsep.join([str(EXAMPLES.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    finished = subprocess.run(
        python("-W", "error", str(EXAMPLES / script), *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert not finished.stderr
    return finished.stdout


# --- The story of the assistant ---


@pytest.mark.lengthy
def test_a_well_supported_answer_is_given_straight_away(arbiter_os: ArbiterOS, assistant: Assistant) -> None:
    outcome = ask(arbiter_os, assistant, ANSWERED)
    assert nodes(outcome) == STRAIGHT
    assert outcome.refusal is None
    assert outcome.state is not None
    assert outcome.state["sources"] == ["random.shuffle"]
    assert outcome.state["reply"].startswith("Shuffle list x in place")


@pytest.mark.lengthy
def test_a_poorly_supported_answer_is_reflected_on_before_it_is_given(
    arbiter_os: ArbiterOS, assistant: Assistant
) -> None:
    """The first draft says how to delete a mail folder, if it is empty; the second answers."""
    outcome = ask(arbiter_os, assistant, REFLECTED)
    assert nodes(outcome) == [*REWRITTEN, *STRAIGHT]
    first, second = (item for item in outcome.history.items() if item.node == "answer")
    assert (first.redirected_to, second.redirected_to) == ("reflect", None)
    assert not first.evaluation_results["support"].passed
    assert second.evaluation_results["support"].passed
    assert outcome.state is not None
    assert outcome.state["sources"] == ["shutil.rmtree"]


@pytest.mark.lengthy
def test_a_question_without_an_answer_in_the_documentation_is_refused_after_the_last_rewrite(
    arbiter_os: ArbiterOS, assistant: Assistant
) -> None:
    outcome = ask(arbiter_os, assistant, REFUSED)
    assert outcome.state is None
    assert outcome.refusal is not None
    assert outcome.refusal.policy == "verified_before_respond"
    assert outcome.refusal.node == "respond"
    assert outcome.refusal.instruction is RESPOND
    assert "tomato" in outcome.refusal.reason

    assert nodes(outcome) == [*REWRITTEN * MAX_REWRITES, *STRAIGHT]
    assert outcome.history.count(instruction=REFLECT) == MAX_REWRITES
    denied = outcome.history.last(node="respond")
    assert denied is not None
    assert denied.status == "denied"


def test_the_cap_holds_for_each_question_anew(arbiter_os: ArbiterOS, assistant: Assistant) -> None:
    for _ in range(3):
        outcome = ask(arbiter_os, assistant, REFUSED)
        assert outcome.history.count(instruction=REFLECT) == MAX_REWRITES


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_same_graph_answers_everything_when_it_is_not_governed(
    ungoverned: Assistant, question: str
) -> None:
    assert ungoverned.invoke({"question": question})["reply"]


@pytest.mark.parametrize(
    "question",
    [
        "How long should I boil an egg?",
        "What is the capital of France?",
        "Who is the president of the United States?",
        "How do I cook spaghetti carbonara?",
        "How do I cancel my gym membership?",
        "Why is the sky blue?",
        "asdf qwerty zxcv",
        "how do I?",
        "",
        "???",
        '___ " OR * NEAR( - ^',
        "Wie gieße ich Tomaten? 番茄",
    ],
)
def test_nonsense_is_refused(arbiter_os: ArbiterOS, assistant: Assistant, question: str) -> None:
    outcome = ask(arbiter_os, assistant, question)
    assert outcome.refusal is not None
    assert outcome.refusal.policy == "verified_before_respond"


# --- What the assistant finds, and that it invents nothing ---


@pytest.mark.parametrize(
    ("question", "sources"),
    [
        ("How can I parse JSON text?", "json.loads json.load"),
        ("How do I compute the median of some numbers?", "statistics.median"),
        ("How do I copy a file with its metadata?", "shutil.copy2"),
        ("How do I create a temporary directory?", "tempfile.TemporaryDirectory tempfile.mkdtemp"),
        ("How do I encode bytes as base64?", "base64.b64encode base64.standard_b64encode"),
        ("How do I escape HTML special characters?", "html.escape"),
        ("How do I find the greatest common divisor?", "math.gcd"),
        ("How do I generate a UUID?", "uuid.uuid4"),
        ("How do I get the current working directory?", "os.getcwd pathlib.Path.cwd"),
        ("How do I group consecutive items that are equal?", "itertools.groupby"),
        ("How do I make a deep copy of an object?", "copy.deepcopy copy"),
        ("How do I pick a random element from a sequence?", "random.choice"),
        ("How do I split a string on whitespace the way a shell does?", "shlex.split"),
        ("How do I walk a directory tree?", "os.walk pathlib.Path.walk"),
        ("What does OrderedDict.moveToEnd do?", "collections.OrderedDict.move_to_end"),
        ("What does heapq.heappushpop do?", "heapq.heappushpop"),
        ("What does json.dumps do?", "json.dumps"),
        ("Which function merges sorted inputs?", "heapq.merge"),
    ],
)
def test_questions_are_answered_from_the_right_docstring(
    arbiter_os: ArbiterOS, assistant: Assistant, library: Library, question: str, sources: str
) -> None:
    state = ask(arbiter_os, assistant, question).state
    assert state is not None
    (source,) = state["sources"]
    assert source in sources.split()
    assert source in state["signature"]
    for sentence in sentences_of(state["reply"]):
        assert plain(sentence) in plain(library.documents[source].text)


def test_a_rewrite_splits_identifiers_adds_synonyms_then_looks_for_beginnings() -> None:
    terms = {"folder": 6.0, "moveToEnd": 8.0, "list": 2.0}
    missing = ["folder", "moveToEnd"]
    assert rewritten(terms, missing, 1) == (
        '"folder" OR "movetoend" OR "list" OR "directory" OR "move" OR "to" OR "end"'
    )
    assert rewritten(terms, missing, 2) == f'{rewritten(terms, missing, 1)} OR "folder"* OR "moveto"*'
    assert '"list"' not in rewritten(terms, missing, 3)


# --- The model's answers are held to the same rules ---


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("Shuffle list x in place, and return None.", False),
        ("shuffle list x  in place,\nand return None.", False),
        ("Shuffle list x in place, and return None. It is very fast.", True),
        ("Use numpy.random.shuffle on the list in place.", True),
        ("The documentation does not say.", True),
        ("", True),
    ],
)
def test_a_model_may_only_say_what_the_documentation_says(
    arbiter_os: ArbiterOS, library: Library, answer: str, refused: bool
) -> None:
    graph = build_graph(library, FakeListChatModel(responses=[answer]))
    outcome = ask(arbiter_os, arbiter_os.govern(graph, instructions=INSTRUCTIONS), ANSWERED)
    assert (outcome.refusal is not None) is refused


def test_model_without_langchain_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(SystemExit, match="pip install langchain"):
        stdlib_assistant.main(["--model", "openai:gpt-5-mini"])


def test_model_of_a_missing_or_unknown_provider_says_which() -> None:
    with pytest.raises(SystemExit, match=r"--model nobody:model: .*nobody"):
        stdlib_assistant.main(["--model", "nobody:model"])


# --- The checker itself ---


def test_an_older_verification_does_not_cover_a_newer_draft() -> None:
    def verify(state: State) -> Update:
        return {"unsupported": [], "missing": []}

    def draft(state: State) -> Update:
        return {"answer": "unheard of"}

    def respond(state: State) -> Update:
        pytest.fail("the draft was never verified")

    graph = StateGraph(State)
    graph.add_sequence([("verify", verify), ("answer", draft), ("respond", respond)])
    graph.add_edge(START, "verify")
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Grounded())
    arbiter_os.add_policy_checker(VerifiedBeforeRespond())
    instructions = {node: INSTRUCTIONS[node] for node in ("verify", "answer", "respond")}
    governed = arbiter_os.govern(graph.compile(), instructions=instructions)
    with pytest.raises(PolicyViolationError, match="was not verified"):
        governed.invoke(cast(Any, {"terms": {"list": 1.0}}))


# --- Monitoring ---


@pytest.mark.lengthy
def test_a_ledger_shows_what_an_agent_did_after_its_process_has_ended(tmp_path: Path) -> None:
    """Scores over time, the lowest outputs, and the rewards of each step, from the file alone."""
    assert not run("monitoring.py", "serve", "support.db", folder=tmp_path)
    printed = run("monitoring.py", "report", "support.db", folder=tmp_path)
    words = " ".join(re.sub(r"[^\w.:+%()#'-]", " ", printed).split())
    assert "2026-11-17 12 1.00 1.00 100%" in words  # the last day of the old prompt
    assert "2026-11-18 20 0.50 0.09 40%" in words
    assert "24 answers were below 0.6." in words
    assert "0.09 Soon We are on it" in words
    assert "2 answer (goes to revise) -0.05" in words
    assert "in all +0.08" in words
    assert "The ledger is intact: True" in words
    assert max(map(len, printed.splitlines())) <= 80


# --- As a reader runs them ---


@pytest.mark.lengthy
def test_the_demo_shows_an_answer_a_reflection_and_a_refusal(tmp_path: Path) -> None:
    """From a folder that has nothing to do with the checkout, at 80 columns."""
    printed = run("stdlib_assistant.py", folder=tmp_path)
    words = " ".join(printed.split())
    assert "Shuffle list x in place" in printed
    assert "answer goes to reflect" in words
    assert "Recursively delete a directory tree." in printed
    assert "max_redirects=2 reached" in words
    assert "policy 'verified_before_respond' denied node 'respond' (RESPOND)" in printed
    assert "SuperStep 1" in printed
    assert "] REFLECT" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.lengthy
def test_questions_are_arguments_and_quiet_prints_only_the_answers(tmp_path: Path) -> None:
    printed = run("stdlib_assistant.py", "--quiet", ANSWERED, REFUSED, folder=tmp_path)
    answer, refusal = printed.split("refused: ")
    assert answer.splitlines() == [
        "random.shuffle(x)",
        "Shuffle list x in place, and return None.",
        "[random.shuffle]",
    ]
    assert refusal.startswith("policy 'verified_before_respond'")


@pytest.mark.lengthy
def test_a_question_is_printed_as_it_was_asked(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text in the form of rich's markup neither colours nor breaks the page."""
    few = dict(islice(library.documents.items(), 50))
    monkeypatch.setattr(Library, "installed", lambda: Library(few))
    assert stdlib_assistant.main(["[/red] [bold]?"]) == 0
    assert capsys.readouterr().out.count("[/red] [bold]?") >= 2


@pytest.mark.lengthy
def test_create_agent_is_governed_in_one_line(tmp_path: Path) -> None:
    printed = run("create_agent_one_line.py", folder=tmp_path)
    assert "answer: The average is 55000.0." in printed
    assert "refused: policy 'nobody_alone' denied node 'tools' (TOOL_CALL)" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_nodes_of_the_agent_are_recognised_by_the_shipped_pack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert create_agent_one_line.main() == 0
    allowed, denied = capsys.readouterr().out.split("refused: ")
    instructions = r"\[\d+\.1\] (\w+)"
    assert re.findall(instructions, allowed) == ["GENERATE", "TOOL_CALL", "GENERATE"]
    assert re.findall(instructions, denied) == ["GENERATE", "TOOL_CALL"]


# --- Tools for the agent's memory ---


@pytest.mark.lengthy
@pytest.mark.parametrize("arguments", [[], ["--store", "memory.db"]])
def test_an_agent_notes_finds_and_forgets_for_its_user_alone(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert memory_tools.main(arguments) == 0
    told = capsys.readouterr().out
    parts = [" ".join(part.split()) for part in re.split(r"^(?:ada|bob), ", told, flags=re.M)[1:]]
    monday, friday, bob, sunday, holiday = parts
    assert monday.endswith("calls remember Remembered.")
    assert friday.endswith("calls search_memory The user is allergic to nuts")
    assert bob.endswith("calls search_memory Nothing is known about that.")
    asked = "a human is asked, and approves calls search_memory calls forget_memory"
    assert sunday.endswith(f"{asked} Forgotten: 1 record.")
    assert holiday.endswith("Nothing is known about that.")
    assert told.count("a human is asked") == 1


# --- Paying invoices: a constitution in files ---

PAYMENTS = "payments/main.py"


@pytest.fixture
def story(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The output of the payments example, by its numbered parts, in single lines."""
    payments_graph.BANK.clear()
    payments.main()
    parts = re.split(r"^\d\. ", capsys.readouterr().out, flags=re.M)
    return [" ".join(part.split()) for part in parts]


@pytest.mark.lengthy
def test_payments_keep_what_their_story_promises(story: list[str]) -> None:
    _, memo, vendor, unmatched, approval, budget, linted = story
    assert "took the best attempt" in memo
    assert "paid 310.00 to Acme: Payment to Acme for invoice A-1" in memo
    assert memo.count("GENERATE · memo") == 3
    assert "refused by known_vendors: the auditors have stopped payments to this vendor" in vendor
    assert "refused by matched_first: VERIFY has not passed in this run" in unmatched
    assert approval.count("asked: payments above 1,000 are approved by a person") == 2
    assert re.search(r"'amount': 9000.0}} refused by limits.*'amount': 900.0}} paid 900.00", approval)
    assert re.search(r"refused by payments_a_day: 4 of 4 calls .* paid 250.00 to Globex", budget)
    assert "error node 'pay' can be reached without VERIFY" in linted
    assert "START → load → memo → pay" in linted
    assert "policies/payments.yaml:" in linted


@pytest.mark.lengthy
def test_the_bank_sees_only_what_was_allowed(story: list[str]) -> None:
    sent = [("A-1", 310.0), ("A-2", 900.0), ("A-3", 95.5), ("A-4", 120.0), ("G-1", 250.0)]
    assert sent == payments_graph.BANK


@pytest.mark.lengthy
def test_payments_run_from_any_folder(tmp_path: Path) -> None:
    printed = run(PAYMENTS, folder=tmp_path)
    assert "1 error" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_payments_graph_itself_has_no_findings_of_weight() -> None:
    """The graph that is paid with is clean; its shortcut is not."""
    arbiter_os = ArbiterOS.from_constitution(EXAMPLES / "payments")
    assert not arbiter_os.lint(payments_graph.graph).errors
    assert not arbiter_os.lint(payments_graph.graph).warnings
    assert [finding.code for finding in arbiter_os.lint(payments_graph.express()).errors] == [
        "unverified-path"
    ]


@pytest.mark.lengthy
def test_the_experiment_compares_treatment_and_control_and_draws_the_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows the table that the program prints. It can run again: the plan that is there holds."""
    printed = run("experiment.py", "found", folder=tmp_path)
    again = Mock()
    monkeypatch.setattr("arbiter.experiments.Experiment.run", again)
    experiment.run(tmp_path / "found")
    again.assert_called_once()
    page = (EXAMPLES.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    for line in shown.strip().splitlines():
        assert line in printed
    assert (tmp_path / "found" / "effects.svg").read_text(encoding="utf-8").count("<circle") == 4
    result = json.loads((tmp_path / "found" / "result.json").read_text(encoding="utf-8"))
    assert result["plan_hash"] == json.loads((tmp_path / "found" / "plan.json").read_text())["hash"]
    assert not any(result["exposure"]["control"][name] for name in ("checks", "nudges", "regenerations"))


@pytest.mark.filterwarnings("ignore:.*:arbiter.ArbiterWarning")  # an empty ledger has no such node
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: monitoring.main(["report", "none.db"]), "there is no ledger at 'none.db'"),
        (lambda: monitoring.main(["report", "text"]), "it is not a SQLite database"),
        (lambda: monitoring.main(["serve", "none/a.db"]), "there is no folder"),
        (lambda: monitoring.main(["report", "empty.db"]), "empty.db has no answer below 0.6"),
        (lambda: experiment.main(["text"]), "File exists"),
        (lambda: experiment.main(["planned"]), "plan.json is not a plan of an experiment"),
        (lambda: memory_tools.main(["--store", "text"]), "file is not a database"),
    ],
)
def test_an_example_that_cannot_use_a_file_ends_with_a_sentence(
    call: Callable[[], int],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a text")
    (tmp_path / "planned").mkdir()
    (tmp_path / "planned" / "plan.json").write_text("{}")
    Ledger("empty.db").close()
    with pytest.raises(SystemExit) as ended:
        call()
    assert said in f"{ended.value} {capsys.readouterr().err}"


def test_a_question_about_the_experiment_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"usage: experiment.py \[FOLDER\]"):
        experiment.main(["--help"])
    assert not [*tmp_path.iterdir()]
