"""The command as a new user types it: in this process for what it prints, in another for how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from arbiter import ArbiterOS
from arbiter._constitution.kinds import KINDS
from arbiter._objects import load_graph
from arbiter._weaving.govern import NodeFacts
from arbiter.cli._app import app
from arbiter.cli._init import propose
from arbiter.errors import ArbiterError
from tests import docs_check
from tests.cli.cli_support import invoked, refused, started, typed
from tests.processes import python

TEAM = '''
import sqlite3
import sys
import weakref
from pathlib import Path
from typing import TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode

from arbiter import ArbiterOS


class State(TypedDict, total=False):
    messages: list
    amount: float
    paid: float


@tool
def look_at(place: str) -> str:
    """Looks at a place."""
    return place


def chain(*nodes, saver=None):
    builder = StateGraph(State)
    for name, node in nodes:
        builder.add_node(name, node)
    for (before, _), (after, _) in zip(nodes, nodes[1:]):
        builder.add_edge(before, after)
    builder.add_edge(START, nodes[0][0])
    builder.add_edge(nodes[-1][0], END)
    return builder.compile(checkpointer=saver)


def nothing(state): return {}
def leave(state): sys.exit(0)
async def aleave(state): sys.exit(0)
def pay(state): return {"paid": state["amount"]}
async def apay(state): return {"paid": state["amount"]}
def step(state):
    """Verifies that the amount is right."""
    return {}
def odd(state):
    """Looks for the order of that amount."""
    return {}
@ArbiterOS().instruction("STORE")
def labelled(state): return {}
def red(state): raise ValueError("\\x1b[31mred")
def broken(state): raise ValueError("the bank is closed\\nfor today")

graph = chain(("draft", nothing), ("pay", pay))
agraph = chain(("draft", nothing), ("pay", apay))
aretried = chain(("draft", nothing), ("pay", RunnableLambda(lambda state: state) | RunnableLambda(apay).with_retry()))
failing = chain(("pay", broken))
coloured = chain(("pay", red))
leaving, aleaving = chain(("pay", leave)), chain(("pay", aleave))
agent = create_agent(FakeListChatModel(responses=["hello"]), [look_at], name="agent")
everything = chain(
    ("draft", nothing), ("x1", ToolNode([look_at])), ("x2", FakeListChatModel(responses=["hello"])),
    ("x5", RunnableLambda(nothing) | FakeListChatModel(responses=["hello"]).bind(stop=["."])),
    ("x3", step), ("x6", RunnableLambda(step).with_retry()), ("x4", odd),
    ("generate", labelled), ("team", chain(("verify_tool_call", nothing), ("odd", apay))),
    ('nothing "here" {', nothing), ("helper", agent),
)

def saved():
    connection = sqlite3.connect("runs.db", check_same_thread=False)
    saver = SqliteSaver(connection)
    weakref.finalize(saver, connection.close)
    return chain(("draft", nothing), ("pay", pay), saver=saver)
def made(): return graph
def needs(something): return graph
async def awaits(): return graph
def raises(): raise KeyError("no settings")
def leaves(): sys.exit(0)
number = 3
'''
POLICIES = """
version: 1
name: team-policies
description: What may be paid.
instructions:
  - {node: draft, instruction: GENERATE}
  - {node: pay, instruction: TOOL_CALL}
checkers:
  - name: small
    use: condition
    description: Large payments are made by people.
    deny_when: input.amount > 1000
    ask_when: input.amount > 100
    target_instructions: [TOOL_CALL]
"""
VERIFIED = """
version: 1
name: verified
description: Nothing is paid without a look at it.
instructions: [{node: pay, instruction: TOOL_CALL}]
checkers:
  - {name: looked_at, use: require_before, required: VERIFY, target_instructions: [TOOL_CALL]}
"""
SHOWN = """
version: 1
name: shown
description: A human sees small payments.
evaluators: [{name: size, use: threshold, key: paid, threshold: 0.5, target_nodes: [pay]}]
routers: [{name: editor, use: escalate, evaluator: size}]
"""
MODULES = {
    "team.py": TEAM,
    "rude.py": "raise RuntimeError('the key is missing')\n",
    "quitter.py": "raise SystemExit(7)\n",
    "quits.py": "import sys\nfrom arbiter import PolicyChecker\nclass Leaves(PolicyChecker):\n"
    "    def __init__(self, name): sys.exit(0)\n    def check_before(self, history): return True\n",
    "quits.yaml": "version: 1\nname: quits\ndescription: Rules that leave Python.\n\n"
    "checkers:\n  - {name: a, use: quitter.Rule}\n  - {name: b, use: quits.Leaves}\n",
    "typo.py": "def f(:\n",
    "policies/team.yaml": POLICIES,
    "verified.yaml": VERIFIED,
    "bad.yaml": VERIFIED.replace("require_before", "requires_before"),
    "input.json": '{"amount": 5}',
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's, which is also the working directory."""
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("team", "rude", "quitter", "quits", "typo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


# Help and version ---------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_help_names_each_command_and_the_page_describes_it() -> None:
    page = (docs_check.ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    told = typed("--help")
    for name in commands(get_command(app)):
        assert name.split()[0] in told
        assert f"## arbiter {name}" in page or f"| `arbiter {name}" in page
        for option in re.findall(r" (--[a-z-]+)", typed(*name.split(), "--help")):
            assert option == "--help" or f"`{option}" in page, (name, option)


def commands(command: Any, name: str = "") -> list[str]:
    """The names of all commands, with those of their groups before them."""
    parts: dict[str, Any] = getattr(command, "commands", {})
    return [each for part in parts for each in commands(parts[part], f"{name} {part}".strip())] or [name]


def test_version_is_that_of_the_distribution() -> None:
    assert typed("--version") == "arbiter 0.1.0\n"


# What is wrong is said in a sentence --------------------------------------------------------------


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lint", "team"), "expected package.module:graph or path/to/file.py:graph, got 'team'"),
        (("lint", "nowhere:graph"), "nowhere could not be imported: ModuleNotFoundError"),
        (("lint", "nowhere.py:graph"), "there is no file 'nowhere.py'"),
        (("lint", "team:grph"), "team has no 'grph'.*Did you mean 'graph'"),
        (("lint", "team:needs"), "team:needs is a function that needs arguments"),
        (("lint", "team:awaits"), "team:awaits is an async function.*Define it with def"),
        (("lint", "team:raises"), r"team:raises\(\) raised KeyError: 'no settings'"),
        (("lint", "team:leaves"), r"team:leaves\(\) raised SystemExit: 0"),
        (("lint", "team:number"), "team:number is of type int; expected a compiled graph"),
        (("lint", "rude:graph"), "rude could not be imported: RuntimeError: the key is missing"),
        (("lint", "quitter:graph"), "quitter could not be imported: SystemExit: 7"),
        (("lint", "typo.py:graph"), r"typo.py could not be imported: SyntaxError: .*typo.py, line 1"),
        (("lint", "team:graph", "--format", "xml"), "--format is 'xml'; expected one of table, json"),
        (("lint", "team:graph", "-c", "nowhere"), "no constitution in 'nowhere'.*arbiter init"),
        (
            ("lint", "team:graph", "-c", "arbiter:kernl"),
            "no pack 'arbiter:kernl'.*Did you mean 'arbiter:kernel'",
        ),
        (("lint", "team:graph", "-c", "bad.yaml"), r"bad.yaml:7: checkers\[0\].use: .*'require_before'"),
        (
            ("lint", "team:graph", "-c", "quits.yaml", "--allow", "quitter.", "--allow", "quits."),
            r"quits.yaml:6: .*'quitter.Rule': SystemExit: 7\n.*quits.yaml:7: .*Leaves could not be made: SystemExit: 0",
        ),
        (("run", "team:graph", "--input", '{"amount": 5'), "--input is .*expected JSON, or a file"),
        (
            ("run", "team:graph", "--input", "nothing.json"),
            "--input is 'nothing.json'; expected JSON, or a file that contains it: there is no such file",
        ),
        (
            ("run", "team:graph", "--input", "{amount: 5}"),
            "--input is '{amount: 5}'; expected JSON.*: Expecting",
        ),
        pytest.param(
            ("run", "team:graph", "--input", "[" * 100_000), "--input is .*expected JSON", id="deep"
        ),
        (("run", "team:graph", "--resume", "approve"), "team:graph has no checkpointer"),
        (("explain", "budgt"), "there is no rule or kind 'budgt'. Did you mean 'budget'"),
        (("explain", "smal", "-c", "."), "there is no rule or kind 'smal'. Did you mean 'small'"),
        (("init", "team:graph"), "policies/team.yaml already exists"),
    ],
    ids=str,
)
def test_a_mistake_is_a_sentence(arguments: tuple[str, ...], said: str, project: Path) -> None:
    done = invoked(*arguments, answers="\n" * 9)
    assert isinstance(done.exception, ArbiterError), done.output
    assert re.search(said, str(done.exception)), done.exception


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "arguments", [("lint", "rude:graph"), ("run", "team:graph", "-c", "bad.yaml"), ("explain", "budgt")]
)
def test_a_mistake_is_reported_on_stderr_and_ends_with_2(arguments: tuple[str, ...], project: Path) -> None:
    done = started(*arguments, folder=project, code=2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.lengthy
def test_an_unknown_command_is_reported(project: Path) -> None:
    assert "No such command" in started("dance", folder=project, code=2).stderr


# lint ---------------------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_lint_ends_with_1_when_there_are_errors(project: Path) -> None:
    done = started("lint", "team:graph", "-c", "verified.yaml", folder=project, code=1)
    assert "unverified-path" in done.stdout
    assert "verified.yaml:7" in done.stdout


def test_lint_counts_warnings_with_strict(project: Path) -> None:
    assert "no-instruction" in typed("lint", "team:graph")
    typed("lint", "team:graph", "--strict", code=1)
    assert typed("lint", "team:graph", "-c", ".", "--strict")


def test_lint_says_that_rules_of_the_folder_were_not_named(project: Path) -> None:
    """Without them it finds less, which looks as if nothing was wrong."""
    said = "policies/ is not read, because no constitution is named. Name it: --constitution ."
    assert said in invoked("lint", "team:graph", COLUMNS="200").stderr
    assert "is not read" not in invoked("lint", "team:graph", "-c", ".").stderr
    for file in project.glob("*/*.y*ml"):
        file.unlink()
    assert "is not read" not in invoked("lint", "team:graph").stderr


def test_lint_takes_files_functions_and_builders(project: Path) -> None:
    for where in ("team.py:graph", "./team.py:made", "team:graph.builder"):
        assert "warnings" in typed("lint", where)


def test_lint_prints_json_sarif_and_mermaid(project: Path) -> None:
    wrong = ("lint", "team:graph", "-c", "verified.yaml", "--format")
    assert "unverified-path" in {
        each["code"] for each in json.loads(typed(*wrong, "json", code=1))["findings"]
    }
    sarif = json.loads(typed(*wrong, "sarif", code=1))
    assert sarif["version"] == "2.1.0"
    assert "%% error unverified-path" in typed(*wrong, "mermaid", code=1)


def test_sarif_names_files_from_where_the_command_runs(project: Path) -> None:
    """A code host shows a finding next to its line, wherever the constitution is."""
    file = project / "rules" / "policies" / "verified.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(VERIFIED, encoding="utf-8")
    for constitution in ("rules", "rules/policies/verified.yaml"):
        sarif = json.loads(typed("lint", "team:graph", "-c", constitution, "--format", "sarif", code=1))
        (place,) = {
            place["physicalLocation"]["artifactLocation"]["uri"]
            for result in sarif["runs"][0]["results"]
            for place in result["locations"]
            if "physicalLocation" in place
        }
        assert place == "rules/policies/verified.yaml"


@pytest.mark.lengthy
def test_lint_and_explain_call_for_no_model(project: Path) -> None:
    """A rule that names a chat model is read without a key, a network or the model's package."""
    assert "judged_quality" in typed("lint", "team:graph", "-c", "arbiter:judged-quality")
    assert re.search(r"model +judge", typed("explain", "judged_quality"))


# schema -------------------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_schema_is_written_beside_the_packs(project: Path) -> None:
    assert typed("schema").splitlines() == ["wrote policies/pack.schema.json"]
    schema = json.loads((project / "policies" / "pack.schema.json").read_text(encoding="utf-8"))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert len(typed("schema", "new").splitlines()) == 3


# init ---------------------------------------------------------------------------------------------


def nodes_of(folder: Path) -> dict[str, str]:
    (file,) = (folder / "instructions").glob("*.yaml")
    return {
        entry["node"]: entry["instruction"]
        for entry in yaml.safe_load(file.read_text(encoding="utf-8"))["instructions"]
    }


def test_init_proposes_from_what_each_node_is(project: Path) -> None:
    """Label, tool node, chat model, name, docstring; subgraphs and the nodes of `create_agent`, too."""
    typed("init", "team:everything", "new", "--yes")
    found = {node: instruction.rpartition(".")[2] for node, instruction in nodes_of(project / "new").items()}
    assert found == {
        "draft": "GENERATE",
        "x1": "TOOL_CALL",
        "x2": "GENERATE",
        "x5": "GENERATE",
        "x3": "VERIFY",
        "x6": "VERIFY",
        "generate": "STORE",
        "team:verify_tool_call": "VERIFY",
        "helper:model": "GENERATE",
        "helper:tools": "TOOL_CALL",
    }
    text = (project / "new" / "instructions" / "team.yaml").read_text(encoding="utf-8")
    assert json.dumps('nothing "here" {') + ": no proposal" in text


@pytest.mark.lengthy
def test_init_without_a_terminal_names_the_option_that_asks_nothing(project: Path) -> None:
    done = started("init", "team:graph", "new", folder=project, code=2)
    assert "nothing was written. Take the proposed instructions with --yes." in done.stderr
    assert not (project / "new").exists()


def test_init_asks_about_each_node(project: Path) -> None:
    """Return takes the proposal, a dash leaves a node open, and a name that there is not is asked again."""
    told = typed("init", "team:graph", "new", answers="\nTOOLCALL\nTOOL_CALL\n")
    assert "Did you mean 'TOOL_CALL'" in told
    assert nodes_of(project / "new") == {"draft": "CognitiveCore.GENERATE", "pay": "ExecutionCore.TOOL_CALL"}
    typed("init", "team:graph", "other", answers="-\n-\n")
    assert nodes_of(project / "other") == {}


@pytest.mark.lengthy
def test_init_overwrites_nothing(project: Path) -> None:
    before = (project / "policies" / "team.yaml").read_bytes()
    done = started("init", "team:graph", "--yes", folder=project, code=2)
    assert "policies/team.yaml already exists" in done.stderr
    assert (project / "policies" / "team.yaml").read_bytes() == before
    assert not (project / "instructions").exists()


@pytest.mark.lengthy
@pytest.mark.parametrize("where", ["team:graph", "team:agraph", "team:agent", "team:everything"])
def test_the_files_that_init_writes_are_valid(where: str, project: Path) -> None:
    """It loads, governs, and has no error that the linter finds."""
    typed("init", where, "new", "--yes")
    arbiter_os = ArbiterOS.from_constitution(project / "new")
    governed = arbiter_os.govern(load_graph(where))
    assert arbiter_os.lint(governed).errors == ()
    assert "run_steps" in [checker.name for checker in arbiter_os.constitution.checkers]  # type: ignore[union-attr]
    typed("lint", where, "-c", "new")


def test_init_takes_any_name_of_a_node(project: Path) -> None:
    """YAML reads some names as no text (`no`, `null`), and JSON's form of an emoji as two characters."""
    names = ["no", "null", "\U0001f600", "a\nb", "{x}", "\x85", "größer", "it's", "# 1"]
    text = f"from team import chain, step\ngraph = chain(*((name, step) for name in {names!a}))\n"
    (project / "1.py").write_text(text, encoding="utf-8")
    typed("init", "1.py:graph", "new", "--yes")
    assert list(nodes_of(project / "new")) == names
    typed("lint", "1.py:graph", "-c", "new")


@pytest.mark.lengthy
def test_the_examples_in_the_files_that_init_writes_are_rules(project: Path) -> None:
    """They take the place of the line above them, as the files say."""
    typed("init", "team:graph", "new", "--yes")
    for folder, rule in (("policies", "payments_are_small"), ("evaluators", "answer_is_short")):
        file = project / "new" / folder / "team.yaml"
        before, said, example = file.read_text(encoding="utf-8").partition(
            "# An example, in place of the line"
        )
        assert said
        lines = [line.removeprefix("# ") for line in example.splitlines()[1:]]
        file.write_text("\n".join([*before.splitlines()[:-1], *lines]), encoding="utf-8")
        assert rule in typed("explain", rule, "-c", "new")


@pytest.mark.parametrize(
    ("name", "docstring", "instruction"),
    [
        ("load_order", "", "LOAD"),
        ("CallModel", "", "GENERATE"),
        ("summarise_tool_output", "", "COMPRESS"),
        ("team:replies", "", "RESPOND"),
        ("x", "Calls the model.", "GENERATE"),
        ("x", "Looks for the order that was paid.", ""),
        ("x", "", ""),
    ],
)
def test_the_first_word_that_speaks_for_an_instruction_decides(
    name: str, docstring: str, instruction: str
) -> None:
    proposal = propose(NodeFacts(name=name, instruction="", docstring=docstring, code="", chat_model=False))
    assert proposal.rpartition(".")[2] == instruction


# run ----------------------------------------------------------------------------------------------


@pytest.mark.lengthy
@pytest.mark.parametrize("where", ["team:graph", "team:agraph"])
def test_run_as_json_prints_the_output_alone_on_stdout(where: str, project: Path) -> None:
    """So that it can be piped; the history is on stderr."""
    done = started(
        "run", where, "-c", ".", "--input", "input.json", "--format", "json", folder=project, code=0
    )
    assert json.loads(done.stdout) == {"amount": 5, "paid": 5}
    assert "TOOL_CALL · pay · completed" in done.stderr
    done = started("run", where, "--format", "yaml", folder=project, code=2)
    assert "--format is 'yaml'; expected one of text, json." in done.stderr


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("output", "written"),
    [
        ("AIMessage('Hello', id='1')", {"type": "ai", "content": "Hello", "id": "1", "tool_calls": []}),
        ("{('a', 1): 2, None: float('nan')}", {"('a', 1)": 2, "None": "nan"}),
        ("[2**80, {3}, b'ab', threading.Lock]", [2**80, [3], "b'ab'", "<built-in function allocate_lock>"]),
        ("[*range(120_000)]", [*range(120_000)]),
        ("eval('[' * 40 + ']' * 40)", json.loads("[" * 40 + "]" * 40)),
    ],
)
def test_run_writes_any_output_as_json(output: str, written: Any, project: Path) -> None:
    (project / "any.py").write_text(
        "import threading\nfrom typing import Any, TypedDict\nfrom langchain_core.messages import AIMessage\n"
        "from langgraph.graph import START, StateGraph\n"
        "State = TypedDict('State', {'x': Any}, total=False)\n"
        f"def make(state):\n    return {{'x': {output}}}\n"
        "graph = StateGraph(State).add_node(make).add_edge(START, 'make').compile()\n"
    )
    done = started("run", "any:graph", "--input", "{}", "--format", "json", folder=project, code=0)
    found = json.loads(done.stdout)["x"]
    assert (written.items() <= found.items()) if isinstance(written, dict) else found == written


@pytest.mark.lengthy
def test_run_names_keys_of_the_input_that_the_graph_ignores(project: Path) -> None:
    """LangGraph drops them without a word, and the node fails or answers something else."""
    given = '{"amount": 5, "amuont": 7}'
    done = started("run", "team:graph", "--input", given, "--format", "json", folder=project, code=0)
    assert json.loads(done.stdout) == {"amount": 5, "paid": 5}
    assert "warning: --input has 'amuont', which the graph ignores" in done.stderr
    assert "Did you mean 'amount'?" in done.stderr
    assert (
        "ignores"
        not in started("run", "team:graph", "--input", '{"amount": 5}', folder=project, code=0).stderr
    )


@pytest.mark.lengthy
def test_a_question_of_a_run_as_json_is_on_stderr(project: Path) -> None:
    arguments = ("run", "team:graph", "-c", ".", "--input", '{"amount": 500}', "--format", "json")
    done = started(*arguments, folder=project, code=4)
    assert done.stdout == ""
    assert "waits for a human" in done.stderr


@pytest.mark.lengthy
def test_run_and_lint_report_a_rule_that_applies_to_no_node(project: Path) -> None:
    rule = POLICIES.replace("target_instructions: [TOOL_CALL]", "target_nodes: [%s]")
    (project / "policies" / "team.yaml").write_text(rule % "elsewhere", encoding="utf-8")
    done = started("run", "team:graph", "-c", ".", "--input", "input.json", folder=project, code=0)
    text = "policies/team.yaml:9: checker 'small' applies to no node: there is no node 'elsewhere'."
    assert done.stderr.startswith(f"warning: {text}")
    assert done.stderr.count("warning:") == 1
    assert "'elsewhere', which is not a node of this graph" in typed("lint", "team:graph", "-c", ".", code=1)

    (project / "policies" / "team.yaml").write_text(rule % "payy", encoding="utf-8")
    done = started("run", "team:graph", "-c", ".", folder=project, code=2)
    assert "Did you mean 'pay'?" in done.stderr
    done = started(
        "run", "team:graph", "-c", "arbiter:kernel", "--input", "input.json", folder=project, code=0
    )
    assert "8 of the 10 rules of arbiter:kernel apply to no node" in done.stderr


@pytest.mark.parametrize("where", ["team:graph", "team:agraph", "team:aretried", "team.py:made"])
@pytest.mark.parametrize("given", ['{"amount": 5}', "input.json"])
def test_run_prints_history_and_output(where: str, given: str, project: Path) -> None:
    printed = typed("run", where, "-c", ".", "--input", given)
    assert "TOOL_CALL · pay · completed" in printed
    assert "✓ small" in printed
    assert json.loads(printed[printed.rindex("\n{") :]) == {"amount": 5, "paid": 5}


@pytest.mark.lengthy
@pytest.mark.parametrize(("amount", "policy"), [(5000, "small"), (13, "lucky")])
def test_several_constitutions_are_in_force_together(amount: int, policy: str, project: Path) -> None:
    """The option may be repeated, for each command that takes it; the rules of the first one hold, too."""
    (project / "more.yaml").write_text(
        "version: 1\nname: more\ndescription: More rules.\ncheckers:\n"
        "  - {name: lucky, use: condition, deny_when: input.amount == 13, target_nodes: [pay]}\n"
    )
    both = ("-c", ".", "-c", "more.yaml")
    done = invoked("run", "team:graph", *both, "--input", f'{{"amount": {amount}}}', "--ledger", "l.db")
    assert done.exit_code == 3
    assert f"policy '{policy}' denied node 'pay'" in done.stderr
    assert f"checker {policy}" in typed("explain", policy, *both)
    assert "the same" in typed("replay", *both, "--ledger", "l.db")
    sarif = ("lint", "team:graph", *both, "-c", "verified.yaml", "--format", "sarif")
    assert '"uri": "verified.yaml"' in typed(*sarif, code=1)


@pytest.mark.lengthy
@pytest.mark.parametrize("where", ["team:graph", "team:agraph"])
def test_run_ends_with_3_on_denial(where: str, project: Path) -> None:
    done = started("run", where, "-c", ".", "--input", '{"amount": 5000}', folder=project, code=3)
    assert "policy 'small' denied node 'pay'" in done.stderr
    assert "✗ small" in done.stdout


@pytest.mark.lengthy
def test_run_ends_with_1_when_the_graph_fails(project: Path) -> None:
    done = started("run", "team:failing", "--input", '{"amount": 5}', folder=project, code=1)
    assert re.search(r"node 'pay' raised ValueError: the bank is closed \(\S+team.py:\d+\)", done.stderr)
    assert "pay · failed" in done.stdout
    done = started("run", "team:graph", "--input", "[1]", folder=project, code=1)
    assert done.stderr.startswith("the graph raised InvalidUpdateError")


@pytest.mark.parametrize("where", ["team:leaving", "team:aleaving"])
def test_a_node_that_leaves_python_is_a_failure_of_the_graph(where: str, project: Path) -> None:
    """It ended the command with its own code, such as 0, and without a word."""
    done = invoked("run", where, COLUMNS="200")
    assert done.exit_code == 1
    assert re.search(r"raised SystemExit: 0 \(\S+team.py:\d+\)", done.stderr)
    assert "pay · cancelled" in done.stdout


@pytest.mark.lengthy
def test_errors_send_nothing_that_a_terminal_acts_on(project: Path) -> None:
    """Their texts may come from a model, or from the names in a ledger."""
    for arguments, code in ((("run", "team:coloured"), 1), (("lint", "x\x1b[31m:graph"), 2)):
        done = started(*arguments, folder=project, code=code)
        assert "\\u001b[31m" in done.stderr
        assert "\x1b" not in done.stderr


@pytest.mark.lengthy
def test_commands_to_type_have_names_in_quotes(project: Path) -> None:
    given = ("run", "team:saved", "-c", ".", "--thread", "my thread", "--ledger", "l.db")
    done = invoked(*given, "--input", '{"amount": 500}', COLUMNS="200")
    assert "Go on with --thread 'my thread' --resume." in done.stderr
    assert "recorded: arbiter history 'my thread' --ledger l.db" in done.stderr


STOPPED = """
import sqlite3, weakref
from pathlib import Path
from typing import TypedDict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    n: int

def step(state):
    if Path("stop").exists():
        raise KeyboardInterrupt
    return {"n": state["n"] + 1}

builder = StateGraph(State).add_node(step).add_edge(START, "step")
graph = builder.compile()

def saved():
    connection = sqlite3.connect("runs.db", check_same_thread=False)
    saver = SqliteSaver(connection)
    weakref.finalize(saver, connection.close)
    return builder.compile(checkpointer=saver)
"""


def test_an_interrupted_run_says_how_to_go_on(project: Path) -> None:
    """As `arbiter eval run` does. The ledger has the nodes that ran before."""
    (project / "stopped.py").write_text(STOPPED)
    (project / "stop").touch()
    given = ("run", "stopped:saved", "--thread", "a", "--ledger", "l.db")
    done = invoked(*given, "--input", '{"n": 1}', COLUMNS="200")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "interrupted. Go on with --thread a --input null." in done.stderr
    assert "recorded: arbiter history a --ledger l.db" in done.stderr
    assert "cancelled" in typed("history", "--ledger", "l.db")
    (project / "stop").unlink()
    assert '"n": 2' in typed(*given, "--input", "null")


def test_an_interrupted_run_without_a_checkpointer_cannot_go_on(project: Path) -> None:
    (project / "stopped.py").write_text(STOPPED)
    (project / "stop").touch()
    done = invoked("run", "stopped:graph", "--input", '{"n": 1}', COLUMNS="200")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted.\n")


@pytest.mark.lengthy
def test_run_ends_with_4_when_it_waits_and_another_process_goes_on(project: Path) -> None:
    given = ("run", "team:saved", "-c", ".")
    done = started(*given, "--input", '{"amount": 500}', "--thread", "a", folder=project, code=4)
    assert "waits for a human" in done.stderr
    assert "--thread a --resume" in done.stderr
    edit = '{"type": "edit", "input": {"amount": 2000}}'
    done = started(*given, "--thread", "a", "--resume", edit, folder=project, code=3)
    assert "denied node 'pay'" in done.stderr
    started(*given, "--input", '{"amount": 500}', "--thread", "b", folder=project, code=4)
    done = started(*given, "--thread", "b", "--resume", "approve", folder=project, code=0)
    assert '"paid": 500' in done.stdout


@pytest.mark.parametrize("thread", ["done", "misspelt"])
def test_an_answer_that_no_question_waits_for_begins_no_run(thread: str, project: Path) -> None:
    given = ("run", "team:saved", "-c", ".", "--thread")
    typed(*given, "done", "--input", '{"amount": 5}')
    assert f"the thread '{thread}' waits for no answer" in refused(*given, thread, "--resume", "approve")


@pytest.mark.lengthy
def test_answers_that_were_perhaps_to_approve_leave_the_question_open(project: Path) -> None:
    """Any other text rejects, and a later answer cannot change that."""
    given = ("run", "team:saved", "-c", ".", "--thread", "a")
    started(*given, "--input", '{"amount": 500}', folder=project, code=4)
    for answer in (
        "aprove",
        "Approve",
        '"approved"',
        "edit",
        '{"type": "aprove"}',
        '{"type": "edit", "inputs": {"amount": 5}}',
        '{"decisions": [{"type": "aprove"}]}',
    ):
        done = started(*given, "--resume", answer, folder=project, code=2)
        assert "expected approve, reject, or JSON" in done.stderr, answer
    assert '"paid": 500' in started(*given, "--resume", "approve", folder=project, code=0).stdout


@pytest.mark.lengthy
@pytest.mark.parametrize(("name", "code"), [("ann", 0), ("carl", 3)])
def test_an_approval_without_a_name_leaves_the_question_open_if_only_some_may_approve(
    project: Path, name: str, code: int
) -> None:
    (project / "signed.yaml").write_text(
        "version: 1\nname: signed\ndescription: Signed payments.\ncheckers:\n"
        "  - {name: signed, use: approval, approvers: [bob, ann], target_nodes: pay}\n"
    )
    given = ("run", "team:saved", "-c", "signed.yaml", "--thread", "a")
    started(*given, "--input", '{"amount": 5}', folder=project, code=4)
    for answer in ("approve", '{"type": "edit", "input": {"amount": 4}}'):
        done = started(*given, "--resume", answer, folder=project, code=2)
        assert "These may approve: ann, bob." in " ".join(done.stderr.split()), answer
    signed = f'{{"type": "approve", "by": "{name}"}}'
    assert ('"paid": 5' in started(*given, "--resume", signed, folder=project, code=code).stdout) == (
        not code
    )


@pytest.mark.lengthy
def test_an_edit_of_an_output_that_names_the_input_leaves_the_question_open(project: Path) -> None:
    """The error names what the question is about."""
    (project / "shown.yaml").write_text(SHOWN)
    given = ("run", "team:saved", "-c", "shown.yaml", "--thread", "a")
    started(*given, "--input", '{"amount": 0.2}', folder=project, code=4)
    edit = '{"type": "edit", "input": {"paid": 0.3}}'
    done = started(*given, "--resume", edit, folder=project, code=2)
    assert '{"type": "edit", "output": {...}}' in " ".join(done.stderr.split())
    edit = edit.replace("input", "output")
    assert '"paid": 0.3' in started(*given, "--resume", edit, folder=project, code=0).stdout


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "answer", ["disapprove", "I don't approve", "no", '{"type": "reject", "message": "edit it"}']
)
def test_an_answer_that_denies_in_other_words_rejects(answer: str, project: Path) -> None:
    given = ("run", "team:saved", "-c", ".", "--thread", "a")
    started(*given, "--input", '{"amount": 500}', folder=project, code=4)
    assert "rejected" in started(*given, "--resume", answer, folder=project, code=3).stderr


@pytest.mark.lengthy
def test_a_question_of_the_node_itself_takes_any_answer(project: Path) -> None:
    (project / "asks.py").write_text(
        "from langgraph.types import interrupt\n"
        "from team import *\n"
        "def ask(state): return {'amount': interrupt({'allowed': ['approve', 'edit', 'skip']})}\n"
        "graph = chain(('ask', ask), saver=saved().checkpointer)\n",
        encoding="utf-8",
    )
    started("run", "asks:graph", "--thread", "a", "--input", "{}", folder=project, code=4)
    done = started("run", "asks:graph", "--thread", "a", "--resume", "edit", folder=project, code=0)
    assert '"amount": "edit"' in done.stdout


def test_a_checkpointer_that_fails_at_an_answer_is_a_failure_of_the_graph(project: Path) -> None:
    (project / "away.py").write_text(
        "from langgraph.checkpoint.memory import InMemorySaver\n"
        "from team import graph as bare\n"
        "class Away(InMemorySaver):\n"
        "    def get_tuple(self, config):\n"
        "        raise ConnectionError('no database')\n"
        "graph = bare.copy({'checkpointer': Away()})\n",
        encoding="utf-8",
    )
    assert (
        "ConnectionError: no database"
        in invoked("run", "away:graph", "--thread", "a", "--resume", "approve").output
    )


@pytest.mark.lengthy
def test_each_run_has_a_thread_of_its_own(project: Path) -> None:
    given = ("run", "team:saved", "-c", ".", "--input")
    typed(*given, '{"amount": 5}')
    assert '"amount"' not in typed(*given, '{"messages": []}', code=3)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [(b'{"type": \naprove\napprove\n', 0, '"paid": 500'), (b"\x04", 4, "waits for a human")],
    ids=["answered", "left"],
)
def test_run_asks_the_human_at_the_terminal(answers: bytes, code: int, said: str, project: Path) -> None:
    """At a terminal the question is asked at once; what is no answer is asked again, and Ctrl+D leaves it open."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        python("-m", "arbiter.cli", "run", "team:graph", "-c", ".", "--input", '{"amount": 500}'),
        cwd=project,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(docs_check.ROOT)},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(ours, answers)
    printed, problems = process.communicate(timeout=100)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code, problems
    assert ("--resume is" in problems) == (code == 0)
    assert said in printed + problems
    assert "raised" not in problems


# explain ------------------------------------------------------------------------------------------


def test_explain_describes_a_rule_of_a_constitution(project: Path) -> None:
    told = typed("explain", "small", "-c", ".")
    assert "checker small (condition) policies/team.yaml:9" in told
    assert "Large payments are made by people." in told
    assert re.search(r"deny_when +input.amount > 1000", told)
    assert re.search(r"applies to +TOOL_CALL", told)


@pytest.mark.lengthy
def test_explain_finds_classes_in_the_working_directory(tmp_path: Path) -> None:
    """As `run` and `lint` do; the folder of the installed command is another one."""
    (tmp_path / "own_rules.py").write_text(
        "from arbiter import PolicyChecker\n\n\nclass Never(PolicyChecker):\n"
        "    def check_before(self, history):\n        return False\n",
        encoding="utf-8",
    )
    (tmp_path / "own.yaml").write_text(
        "version: 1\nname: own\ndescription: d\ncheckers: [{name: never, use: own_rules.Never}]\n",
        encoding="utf-8",
    )
    command = "import sys; sys.path.remove(''); from arbiter.cli import main; main()"
    told = subprocess.run(
        python("-c", command, "explain", "never", "-c", "own.yaml", "--allow", "own_rules"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(docs_check.ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert "checker never (own_rules.Never) own.yaml:4" in told.stdout


def test_explain_describes_a_rule_that_ships() -> None:
    told = typed("explain", "run_steps")
    assert "checker run_steps (at_most) arbiter:policies/kernel.yaml:" in told
    assert re.search(r"times +1000", told)
    assert re.search(r"applies to +every node", told)


@pytest.mark.parametrize(
    ("rule", "told"), [("run_tokens", "tokens +500000"), ("run_seconds", "seconds +1800")]
)
def test_explain_shows_the_limits_that_a_pack_sets(rule: str, told: str) -> None:
    assert re.search(told, typed("explain", rule))


def test_explain_shows_every_parameter_that_a_rule_is_given(tmp_path: Path) -> None:
    pack = tmp_path / "pack.yaml"
    pack.write_text(
        "version: 1\nname: own\ndescription: d\ncheckers:\n"
        "  - {name: signed, use: approval, approvers: [ann, bob], expires_after: 3600, reason: It is dear.}\n"
        "  - {name: shape, use: schema, output: {required: [amount]}}\n",
        encoding="utf-8",
    )
    signed = typed("explain", "signed", "-c", str(pack))
    assert re.search("approvers +ann, bob", signed)
    assert re.search("expires_after +3600", signed)
    assert re.search("reason +It is dear.", signed)
    assert re.search("output .*amount", typed("explain", "shape", "-c", str(pack)))


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", sorted({kind for section in KINDS.values() for kind in section}))
def test_explain_describes_each_kind(kind: str) -> None:
    told = typed("explain", kind)
    for section in KINDS.values():
        assert section.get(kind, "") in told
    assert re.search(r"target_nodes +name of a node or a list of them; default none", told)


def test_explain_shows_type_bounds_default_and_meaning_of_a_parameter() -> None:
    told = " ".join(typed("explain", "budget").split())
    assert "cost number above 0; default none The most US dollars." in told
    assert (
        "per `run`, `thread`, `user` or `process`; default `run` Whose account a node run counts on." in told
    )


def test_a_file_with_the_name_of_another_module_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "json.py").write_text(TEAM)
    graph = load_graph("json.py:graph")
    assert sys.modules["json"] is json
    assert graph.invoke({"amount": 3.0})["paid"] == 3.0
    assert load_graph("json.py:graph").nodes.keys() == graph.nodes.keys()
