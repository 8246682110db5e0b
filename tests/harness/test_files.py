"""Suites and cases in files, and what is said about mistakes in them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from arbiter import ConfigurationError
from arbiter.errors import PackError
from arbiter.harness import Case, Suite, load_suite
from arbiter.harness.case_files import load_cases
from arbiter.harness.files import suite_schema
from tests.scripted import Scripted

APP = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    question: str
    answer: str

def write(state):
    return {"answer": "We offer a refund." if "late" in state["question"] else "No."}

def verify(state):
    return {}

builder = StateGraph(State)
builder.add_sequence([write, verify])
builder.add_edge(START, "write")
graph = builder.compile()

def make():
    return builder.compile()

def answer(given):
    return write(given)["answer"]
"""

SUITE = """\
suite: refunds
target: {graph: app.py:graph, output: answer}
evaluators:
  - {name: brief, use: length, key: answer, at_most: 50, target_nodes: [write]}
scorers:
  - {name: grounded, use: contains}
cases:
  - id: late-parcel
    input: {question: "My parcel is late. Refund?"}
    expected: offer a refund
    tags: [smoke]
    expect: {nodes: [write, verify], completes: true}
  - {from: cases.jsonl}
"""

CASES = """\
{"id": "other-card", "input": {"question": "Another card?"}, "expected": "No", "must_pass": true}

{"input": {"question": "Is it late?"}, "expected": "maybe"}
"""


@pytest.fixture
def files(project: Path) -> Path:
    (project / "app.py").write_text(APP)
    (project / "suite.yaml").write_text(SUITE)
    (project / "cases.jsonl").write_text(CASES)
    return project


def test_a_suite_of_a_file_runs(files: Path) -> None:
    report = load_suite("suite.yaml").run()
    assert list(report.rows) == ["brief", "grounded", "completed"]
    assert {name: row.mean for name, row in report.rows.items()} == {
        "brief": 1.0,
        "grounded": pytest.approx(2 / 3),
        "completed": 1.0,
    }
    assert report.cases[1] == Case("other-card", {"question": "Another card?"}, expected="No", must_pass=True)
    assert report.cases[1].source == "cases.jsonl:1"


@pytest.mark.parametrize(
    "target",
    [
        {"graph": "app.py:make", "fresh": "case", "output": "answer"},
        {"graph": "app.py:builder", "output": "answer"},
        {"function": "app.py:answer"},
        {"outputs": "outputs.jsonl"},
    ],
)
def test_targets_of_files(files: Path, target: dict[str, str]) -> None:
    (files / "outputs.jsonl").write_text('{"id": "a", "output": "We offer a refund."}\n')
    suite = {"suite": "x", "target": target, "cases": [{"id": "a", "input": {"question": "late"}}]}
    (files / "suite.yaml").write_text(yaml.safe_dump(suite))
    assert load_suite("suite.yaml").run().results[0].output == "We offer a refund."


def test_the_rules_of_a_constitution_govern(files: Path) -> None:
    (files / "policies").mkdir()
    (files / "policies/rules.yaml").write_text(
        "version: 1\nname: rules\ndescription: none\ncheckers:\n"
        "  - {name: no_cards, use: condition, deny_when: 'input.question.contains(\"card\")', target_nodes: [write]}\n"
    )
    (files / "suite.yaml").write_text(
        "suite: x\ntarget: {graph: app.py:graph, constitution: .}\ncases:\n"
        '  - {id: a, input: {question: "Another card?"}, expect: {denied_by: no_cards}}\n'
    )
    (result,) = load_suite("suite.yaml").run().results
    assert (result.status, result.passed) == ("denied", True)


def test_runs_have_the_configurable_of_the_target(files: Path) -> None:
    """Rules per user, and nodes that read their config, work as in production."""
    (files / "asks.py").write_text(
        "from langgraph.config import get_config\n"
        "from app import State, StateGraph, START\n"
        "def who(state):\n    return {'answer': get_config()['configurable']['user_id']}\n"
        "graph = StateGraph(State).add_node(who).add_edge(START, 'who').compile()\n"
    )
    (files / "suite.yaml").write_text(
        "suite: x\ntarget: {graph: asks.py:graph, output: answer, configurable: {user_id: u-1}}\n"
        "cases: [{id: a, input: {question: q}}]\n"
    )
    (result,) = load_suite("suite.yaml").run().results
    assert result.output == "u-1"


FIVE = [
    Case("one", {"q": "ä", "n": 1}, expected="x", tags=["a", "b", "c"]),
    Case("two", {"q": "2"}, metadata={"level": "hard"}),
    Case("three", {"q": "3"}, cluster="c", must_pass=True, repeats=2),
    Case("", {"q": "4"}, expected=["x", {"y": None}]),
    Case("five", {"q": "5"}, expect={"contains": "5"}),
]


def entry(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": case.id,
        "input": case.input,
        "expected": case.expected,
        "expect": dict(case.assertions),
        "tags": list(case.tags),
        "cluster": case.cluster,
        "must_pass": case.must_pass,
        "repeats": case.repeats,
        "metadata": dict(case.metadata),
    }
    return {key: value for key, value in found.items() if value}


FILES = {
    "cases.jsonl": "\n".join(json.dumps(entry(case)) for case in FIVE) + "\n",
    "cases.json": json.dumps([entry(case) for case in FIVE], indent=1),
    "cases.yaml": yaml.safe_dump([entry(case) for case in FIVE], allow_unicode=True),
    "cases.csv": "\ufeffid,input.q,input.n,expected,expect,tags,cluster,must_pass,repeats,metadata.level\r\n"
    'one,ä,"[1]",x,,"a;b, c",,,,\r\n'
    "two,2,,,,,,,,hard\r\n"
    "three,3,,,,,c,true,2,\r\n"
    ',4,,"[""x"", {""y"": null}]",,,,,,\r\n'
    'five,5,,,"{""contains"": ""5""}",,,,,\r\n',
}


def test_a_json_file_of_many_cases_is_read_once(project: Path) -> None:
    """To count the lines before each case from the beginning took a minute."""
    many = [{"input": {"n": n, "text": "x" * 500}} for n in range(10_000)]
    (project / "many.json").write_text(json.dumps(many, indent=0))
    begun = time.process_time()
    found = load_cases("many.json")
    assert time.process_time() - begun < 8
    assert found[-1].source == f"many.json:{2 + 6 * 9_999}"


@pytest.mark.parametrize("name", FILES)
def test_cases_are_the_same_in_every_format(project: Path, name: str) -> None:
    (project / name).write_text(FILES[name], encoding="utf-8")
    found = load_cases(name)
    if name.endswith(".csv"):  # a cell is a text, unless it is JSON
        assert found[0].input == {"q": "ä", "n": [1]}
        found[0] = replace(found[0], input=FIVE[0].input)
    assert found == FIVE


def test_the_schema_beside_our_suites_is_the_one_that_is_written() -> None:
    """`arbiter eval schema suites` writes it again."""
    file = Path(__file__).parents[2] / "suites/suite.schema.json"
    assert json.loads(file.read_text(encoding="utf-8")) == json.loads(json.dumps(suite_schema()))


def test_the_schema_accepts_the_suite() -> None:
    validator = jsonschema.Draft202012Validator(suite_schema())
    assert validator.is_valid(yaml.safe_load(SUITE))
    assert not validator.is_valid({"suite": "x", "cases": []})
    assert not validator.is_valid({"suite": "x", "target": {"function": "app.py:answer"}})
    agents = {"agents": {"ilka": {"persona": "arbiter:ilka"}}, "messages": "messages.jsonl"}
    assert validator.is_valid({"suite": "x", "target": agents})
    assert not validator.is_valid({**yaml.safe_load(SUITE), "repeat": 1})


# Mistakes -----------------------------------------------------------------------------------------


def changed(old: str, new: str) -> str:
    assert old in SUITE
    return SUITE.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SUITE + "repeat: 2\n", "suite.yaml:14: repeat: expected one of "),
        (SUITE + "repeat: 2\n", "Did you mean 'repeats'?"),
        (SUITE + "repeats: 0\n", "suite.yaml:14: repeats: expected greater than or equal to 1, got 0"),
        (SUITE + "limits: {concurrency: -1}\n", "suite.yaml:14: limits.concurrency: expected"),
        (
            changed("graph: app.py:graph", "graph: app.py:graph, function: app.py:answer"),
            "got graph and function",
        ),
        (changed("graph: app.py:graph, ", ""), "suite.yaml:2: target: expected exactly one of"),
        (
            changed("graph:", "function:"),
            "output: expected a graph, got function: output would have no effect",
        ),
        (
            changed("output: answer", "output: answer, record: true"),
            "suite.yaml:2: target.record: expected a function, got graph: record would have no effect",
        ),
        (
            changed("output: answer", "output: answer, configurable: {thread_id: t}"),
            "suite.yaml:2: target.configurable.thread_id: expected no thread_id",
        ),
        (changed("use: contains", "use: contain"), "Did you mean 'contains'?"),
        (changed("use: contains", "use: contains, txt: a"), "suite.yaml:6: scorers[0].txt: expected one of"),
        (
            changed("use: contains", "use: contains, text: ''"),
            "suite.yaml:6: scorers[0]: expected a text that",
        ),
        (changed("use: contains", "use: mine:polite"), "Allow it: --allow mine."),
        (
            changed("use: contains", "use: condition, condition: 'outptu'"),
            "suite.yaml:6: scorers[0]: condition",
        ),
        (
            changed("name: grounded", "name: brief"),
            "suite.yaml:6: scorers[0].name: expected a name of its own",
        ),
        (changed("use: length", "use: lenght"), "suite.yaml:4: evaluators[0].use: expected"),
        (
            changed("id: late-parcel", "id: other-card"),
            "cases.jsonl:1: two cases have the id 'other-card' (suite.yaml:8",
        ),
        (changed("id: late-parcel", "id: late parcel"), "suite.yaml:8: cases[0].id: expected a text like"),
        (changed("completes: true", "complets: true"), "Did you mean 'completes'?"),
        (
            changed("expected: offer a refund", "expected: No"),
            "suite.yaml:10: cases[0].expected: expected true, false or a text in quotes, got No, "
            'which YAML does not read as a text. Write "No".',
        ),
        (
            changed("cases.jsonl", "case.jsonl"),
            "suite.yaml:13: cases[1].from: expected a file that can be read",
        ),
        (changed("cases.jsonl", "cases.txt"), "cases.txt:1: expected a file that ends with"),
        (
            "suite: a\ncases: cases.jsonl\n",
            "suite.yaml:2: cases: expected a list, got 'cases.jsonl'. Write [{from: cases.jsonl}]",
        ),
        (
            "suite: a\ncases: [cases.jsonl]\n",
            "suite.yaml:2: cases[0]: expected a case, got 'cases.jsonl'. Write {from: cases.jsonl}",
        ),
        (
            changed("{from: cases.jsonl", "{from: cases.jsonl, id: a"),
            "cases[1].id: expected one of from, got",
        ),
        (changed("suite: refunds", "suite: [refunds]"), "suite.yaml:1: suite: expected a text"),
        (f"{SUITE}gate.baseline: b.json\n", "gate.baseline: expected one of cache, cases"),
        ("- a\n", "suite.yaml:1: expected a mapping"),
        ("", "suite.yaml:1: expected a mapping, got an empty file"),
    ],
)
def test_mistakes_in_a_suite_name_their_line(files: Path, text: str, said: str) -> None:
    (files / "suite.yaml").write_text(text)
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    assert said in str(caught.value)


LONG = json.dumps({"input": "x" * 1_000_001})
BOMB = "- {input: &a [x, x, x, x, x, x, x, x, x]}\n" + "".join(
    f"- {{input: &{name} [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.jsonl", '{"input": 1}\n{"input": 2\n', "c.jsonl:2: expected one JSON object"),
        (
            "c.jsonl",
            '{"input": NaN}\n',
            "c.jsonl:1: expected one JSON object, got '{\"input\": NaN}': NaN is not JSON",
        ),
        ("c.jsonl", '{"input": 1, "input": 2}\n', "c.jsonl:1: expected one JSON object, got"),
        ("c.json", '[{"input": {"a": 1, "a": 2}}]', "c.json:1: expected JSON: it has the key 'a' twice"),
        ("c.jsonl", "", "c.jsonl:1: the file has no cases"),
        ("c.jsonl", b"\xff\n", "c.jsonl:1: expected UTF-8 text"),
        ("c.jsonl", '{"id": "a"}\n', "c.jsonl:1: input: expected a value, got nothing"),
        ("c.jsonl", '{"input": 1, "tag": "a"}\n', "c.jsonl:1: tag: expected one of"),
        (
            "c.jsonl",
            json.dumps({"input": "x" * 1_000_001}),
            "c.jsonl:1: a case without an id: input has 1,000,003 bytes",
        ),
        ("c.json", '[\n {"input": 1},\n {"inputs": 2}\n]', "c.json:3: inputs: expected one of"),
        ("c.json", '{"input": 1}', "c.json:1: expected a list of cases"),
        ("c.json", "[" * 100_000, "c.json:1: expected JSON"),
        ("c.yaml", "- {input: 1}\n- {input: 2, id: a b}\n", "c.yaml:2: id: expected a text like"),
        (
            "c.yaml",
            "- {input: 1, expect: {equals: [a, off]}}\n",
            "c.yaml:1: [0].expect.equals[1]: expected true",
        ),
        ("c.csv", "id,input\na,1\nb,1,2\n", "c.csv:3: expected 2 columns, got 3"),
        (
            "c.csv",
            "id,inptu\na,1\n",
            "c.csv:1: expected a column of a case, got 'inptu'. Did you mean 'input'?",
        ),
        (
            "c.csv",
            "id,input,level\na,1,2\n",
            "got 'level'. Write input.level for a key of the input, or metadata.level",
        ),
        ("c.csv", 'id,input\na,"{1"\n', "c.csv:2: input: expected JSON, because it begins with '{'"),
        ("c.csv", "id,input\n", "c.csv:1: the file has no cases"),
        ("c.csv", "id;input\na;1\n", "c.csv:1: expected commas between the columns, got ';' in 'id;input'"),
        ("c.csv", "id,input,input.n\na,1,2\n", "c.csv:1: expected 'input' or 'input.n', got both"),
        ("c.csv", "id,input.\na,1\n", "c.csv:1: expected a column of a case, got 'input.'"),
        ("c.csv", f"id,input\na,{'x' * 1_000_001}\n", "c.csv:2: case 'a': input has 1,000,003 bytes"),
        ("c.yaml", "\n", "c.yaml:1: the file has no cases"),
        ("c.yaml", BOMB, f"expected at most {1_000_000 + len(BOMB)} values, got more"),
        (
            "c.yaml",
            "- &a {input: 1}\n- {<<: *a, id: b}\n",
            "c.yaml:2: [1]: expected a text as key, got the merge key",
        ),
    ],
)
def test_mistakes_in_cases_name_their_line(project: Path, name: str, text: str | bytes, said: str) -> None:
    (project / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PackError) as caught:
        load_cases(name)
    assert said in str(caught.value)


def test_cases_may_share_an_input_by_an_alias(project: Path) -> None:
    messages = ", ".join(f"{{role: user, text: word {number}}}" for number in range(30))
    rest = "".join(f"- {{id: c{number}, input: *first}}\n" for number in range(1, 400))
    Path("c.yaml").write_text(f"- {{id: c0, input: &first [{messages}]}}\n{rest}")
    cases = load_cases("c.yaml")
    assert (len(cases), cases[-1].input) == (400, cases[0].input)


def test_a_mistake_in_a_csv_file_hides_no_other(project: Path) -> None:
    for text, lines in (("id,inptu\na,1,2\nb,2\n", [1, 2]), ('id,input\na,1,2\na,"{"\n"b,1\n', [2, 3, 4])):
        (project / "c.csv").write_text(text)
        with pytest.raises(PackError) as caught:
            load_cases("c.csv")
        assert [mistake.line for mistake in caught.value.mistakes] == lines


def test_a_wrong_cell_or_column_of_a_csv_file_hides_no_other(project: Path) -> None:
    """Unless the input may be in the column that is not known: it would be missing in each row."""
    (project / "c.csv").write_text(
        'id,input,colour,must_pass,expect\nx,"{1",red,perhaps,"{2"\ny,1,,2,3,4\nz,2,,yes,\n'
    )
    (project / "d.csv").write_text("id,inptu\na,1\n")
    found: list[str] = []
    for name in ("c.csv", "d.csv"):
        with pytest.raises(PackError) as caught:
            load_cases(name)
        found += [
            f"{mistake.line}: {mistake.path or mistake.message:.16}" for mistake in caught.value.mistakes
        ]
    assert found == [
        "1: expected a colum",
        "2: input: expected ",
        "2: expect: expected",
        "2: must_pass",
        "3: expected 5 colum",
        "4: must_pass",
        "1: expected a colum",
    ]


def test_all_mistakes_of_all_files_are_reported_at_once(files: Path) -> None:
    (files / "suite.yaml").write_text(
        SUITE.replace("use: contains", "use: contain").replace("app.py:graph, ", "app.py:graph, outputs: x, ")
        + "  - {from: more.csv}\n"
    )
    (files / "cases.jsonl").write_text('{"input": 1, "tag": 1}\nno\n')
    (files / "more.csv").write_text("id,inptu\n")
    with (files / "suite.yaml").open("a") as suite:
        suite.write("  - {id: pattern, input: 1, expect: {matches: '(', condition: 'outptu'}}\n")
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    places = [f"{mistake.file}:{mistake.line}" for mistake in caught.value.mistakes]
    assert sorted(places) == [
        "cases.jsonl:1",
        "cases.jsonl:2",
        "more.csv:1",
        "suite.yaml:15",
        "suite.yaml:15",
        "suite.yaml:2",
        "suite.yaml:6",
    ]


@pytest.mark.parametrize(
    ("wrong", "lines"),
    [
        ("repeat: 3", [2, 3, 5, 8]),
        ("limits: {concurrency: -1}", [2, 3, 5, 8]),
        ("gate: 1\nvotes: 2.5", [2, 3, 5, 8, 9]),
        ("models: [x]", [2, 3, 8]),  # nothing is known about the judges of scorers
        ("target: 1", [2, 3, 5, 7]),
    ],
)
def test_a_mistake_in_one_part_of_a_suite_hides_none_in_another(
    project: Path, wrong: str, lines: list[int]
) -> None:
    target = "" if wrong.startswith("target") else "target: {function: app.py:answer}\n"
    (project / "suite.yaml").write_text(
        "cases:\n  - {input: 1, id: a b}\n  - {from: none.jsonl}\n"
        f"scorers:\n  - {{name: x, use: contain}}\nsuite: x\n{target}{wrong}\n"
    )
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    assert sorted(mistake.line for mistake in caught.value.mistakes) == lines


def test_a_mistake_of_yaml_in_one_item_hides_none_in_another(project: Path) -> None:
    """Such as a key that is no text, a key that is there twice, and a tag."""
    (project / "suite.yaml").write_text(
        "suite: x\ntarget: {function: app.py:answer}\n"
        "cases:\n"
        "  - {id: a, input: {1: a}, tag: x}\n"
        "  - {id: a b, input: 1}\n"
        "  - {id: c, id: d, input: 1}\n"
        "  - {id: e, input: !!set {a, b}}\n"
        "  - {from: none.jsonl}\n"
        "scorers:\n"
        "  - {name: x, use: contains, use: contains}\n"
        "  - {name: y, use: contain}\n"
        "  - {name: z, use: tokens}\n"
        "  - {name: z, use: tokens}\n"
    )
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    assert sorted(mistake.line for mistake in caught.value.mistakes) == [4, 5, 6, 7, 8, 10, 11, 13]


def test_all_mistakes_of_agents_are_reported(project: Path) -> None:
    (project / "ann.yaml").write_text("name: Ann\nage: 3\n")
    (project / "suite.yaml").write_text(
        "suite: x\ntarget:\n  agents:\n"
        "    ann: {persona: ann.yaml}\n"
        "    bob: {persona: nobody.yaml}\n"
        "    eve: {persona: {nmae: Eve}}\n"
        "  messages: messages.jsonl\n"
        "  window: 7x\n"
        "  until: never\n"
        "  history: 1..2\n"
    )
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    places = {f"{mistake.file}:{mistake.line}" for mistake in caught.value.mistakes}
    assert places == {
        *("ann.yaml:1", "ann.yaml:2", "nobody.yaml:1"),
        *("suite.yaml:6", "suite.yaml:8", "suite.yaml:9", "suite.yaml:10"),
    }


def test_a_seed_is_no_mistake_if_the_scorer_that_samples_is_wrong(project: Path) -> None:
    (project / "suite.yaml").write_text(
        "suite: x\ntarget: {function: app.py:answer}\nseed: 7\ncases: [{id: a, input: 1}]\n"
        "scorers: [{name: tone, use: adherence, persona: arbiter:ilka, judge: openai:gpt-5-mini, smaple: 3}]\n"
    )
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    assert [mistake.path for mistake in caught.value.mistakes] == ["scorers[0].smaple"]


def test_all_mistakes_of_a_scorer_and_of_a_case_are_reported(project: Path) -> None:
    (project / "suite.yaml").write_text(
        "suite: x\ntarget: {function: app.py:answer}\n"
        "scorers:\n  - {nmae: short, use: contains, waht: expected}\n"
        "cases:\n  - {input: 1, tag: a, repeats: 0}\n"
    )
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    found = [(mistake.line, mistake.path.rpartition(".")[2]) for mistake in caught.value.mistakes]
    assert sorted(found) == [
        (4, "name"),
        (4, "nmae"),
        (4, "waht"),
        (6, "repeats"),
        (6, "tag"),
    ]


JUDGED = """\
suite: x
target: {function: app.py:answer}
cases: [{id: late, input: {question: "late?"}}]
models: {judge: models.py:judge}
scorers: [{name: kind, use: judge, rubric: It is kind., judge: judge}]
"""


def test_a_suite_names_a_model_of_the_project_by_its_file(files: Path) -> None:
    (files / "models.py").write_text(
        "from langchain_core.language_models import FakeListChatModel\n"
        'judge = FakeListChatModel(responses=[\'{"reasoning": "It is.", "score": 6}\'])\n'
    )
    (files / "suite.yaml").write_text(JUDGED)
    assert load_suite("suite.yaml").run().rows["kind"].mean == 0.6


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("models.py:judge", "suite.yaml:4: models.judge: there is no file 'models.py'."),
        ("app.py:judge", "suite.yaml:4: models.judge: app.py has no 'judge'. Graphs there: builder, graph."),
        ("judges.py:juge", "suite.yaml:4: models.judge: judges.py has no 'juge'. Did you mean 'judge'?"),
    ],
)
def test_a_model_that_is_not_there_is_a_mistake_of_its_line(files: Path, named: str, said: str) -> None:
    (files / "judges.py").write_text("judge = None\n")
    (files / "suite.yaml").write_text(JUDGED.replace("models.py:judge", named))
    with pytest.raises(PackError) as raised:
        load_suite("suite.yaml")
    assert str(raised.value) == said


def test_a_model_that_nothing_uses_is_reported(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    (project / "suite.yaml").write_text(
        "suite: x\ntarget: {function: app.py:answer}\ncases: [{input: 1}]\nmodels: {grader: a:b, graderr: a:b}\n"
        "scorers: [{name: good, use: judge, rubric: Is it good, judge: grader}]\n"
    )
    load_suite("suite.yaml", models={"grader": Scripted(answers=[])})
    (said,) = caplog.messages
    assert said.startswith(
        "suite.yaml: models: no scorer or evaluator uses 'graderr'. Did you mean 'grader'? Correct the name"
    )


@pytest.mark.parametrize("where", ["suite", "file"])
def test_a_wrong_type_hides_no_expectation_that_cannot_be_met(project: Path, where: str) -> None:
    """Neither of its own case, nor of the others in the file."""
    cases = [
        '{"input": 1, "repeats": 0, "expect": {"matches": "(", "condition": "outptu", "max_tokens": "x"}}',
        '{"id": "a", "input": 2, "expect": {"matches": "["}}',
        '{"id": "a", "input": 3}',
    ]
    (project / "cases.jsonl").write_text("\n".join(cases))
    listed = "".join(f"  - {case}\n" for case in (["{from: cases.jsonl}"] if where == "file" else cases))
    (project / "suite.yaml").write_text(f"suite: x\ntarget: {{function: app.py:answer}}\ncases:\n{listed}")
    with pytest.raises(PackError) as caught:
        load_suite("suite.yaml")
    first = 1 if where == "file" else 4
    found = [(mistake.line - first, str(mistake)) for mistake in caught.value.mistakes]
    words = [(0, "repeats"), (0, "matches"), (0, "outptu"), (0, "max_tokens"), (1, "matches"), (2, "id 'a'")]
    assert len(found) == len(words)
    for line, word in words:
        assert any(at == line and word in said for at, said in found), (line, word, found)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"graph": "app.py:grap"}, "app.py has no 'grap'. Graphs there: builder, graph."),
        ({"graph": "app.py:answer"}, "is a function that needs arguments"),
        ({"graph": "gone.py:graph"}, "there is no file 'gone.py'"),
        ({"graph": "app.py:graph", "output": "anser"}, "Did you mean 'answer'?"),
        ({"graph": "app.py:graph", "constitution": "rules"}, "no constitution in 'rules'"),
        ({"graph": "broken.py:graph"}, "broken.py could not be imported: ZeroDivisionError"),
        ({"function": "app.py:make"}, "expected a function of the input"),
        ({"outputs": "outputs.jsonl"}, "1 of 1 cases have no output: a."),
    ],
)
def test_a_target_that_cannot_be_loaded_is_reported_before_anything_runs(
    files: Path, target: dict[str, str], said: str
) -> None:
    (files / "outputs.jsonl").write_text('{"id": "b", "output": 1}\n')
    (files / "broken.py").write_text("1 / 0\n")
    suite = {"suite": "x", "target": target, "cases": [{"id": "a", "input": {"question": "late"}}]}
    (files / "suite.yaml").write_text(yaml.safe_dump(suite))
    with pytest.raises(ConfigurationError) as caught:
        load_suite("suite.yaml").run()
    assert said in str(caught.value)


# Built-in scorers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "value"),
    [
        ({"use": "equals"}, 1.0),
        ({"use": "equals", "text": "No."}, 0.0),
        ({"use": "contains", "text": "refund"}, 1.0),
        ({"use": "matches", "pattern": "^We .*refund"}, 1.0),
        ({"use": "json_schema", "json_schema": {"type": "number"}}, 0.0),
        ({"use": "condition", "condition": "size(output) < 40"}, 1.0),
        ({"use": "trajectory", "superset": ["verify"]}, 1.0),
        ({"use": "trajectory", "strict": ["verify"]}, 0.0),
        ({"use": "tokens"}, 0.0),
        ({"use": "tokens", "most": 10}, 1.0),
        ({"use": "usd"}, 0.0),
        ({"use": "seconds", "most": 60}, 1.0),
    ],
)
def test_built_in_scorers(files: Path, scorer: dict[str, Any], value: float) -> None:
    suite = {
        "suite": "x",
        "target": {"graph": "app.py:graph", "output": "answer"},
        "scorers": [{"name": "mine", **scorer}],
        "cases": [{"id": "a", "input": {"question": "late"}, "expected": "We offer a refund."}],
    }
    (files / "suite.yaml").write_text(yaml.safe_dump(suite))
    report = load_suite("suite.yaml").run()
    assert report.rows["mine"].mean == value
    assert report.rows["mine"].version


def test_an_output_that_contains_numbers_can_be_expected_by_numbers() -> None:
    """In a list, as one alone."""

    def answer(given: int) -> str:
        return "5 days"

    cases = [Case("one", 1, expected=5), Case("two", 2, expected=[5, "days"]), Case("three", 3, expected=[6])]
    report = Suite("x", cases, scorers=[{"name": "has", "use": "contains"}]).run(answer)
    assert [result.value("has") for result in report.results] == [1.0, 1.0, 0.0]


def test_a_case_without_an_expected_answer_is_no_failure(files: Path) -> None:
    (files / "suite.yaml").write_text(changed("    expected: offer a refund\n", ""))
    row = load_suite("suite.yaml").run().rows["grounded"]
    assert (row.n, row.outcomes) == (2, {"scored": 2, "not_applicable": 1})


@pytest.mark.parametrize("key", ["use", "function"])
def test_a_function_of_the_user_scores_under_an_allowed_prefix(files: Path, key: str) -> None:
    (files / "mine.py").write_text("def polite(run):\n    return 'refund' in run.output\n")
    (files / "suite.yaml").write_text(changed("use: contains", f"{key}: mine:polite"))
    jsonschema.Draft202012Validator(suite_schema()).validate(
        yaml.safe_load((files / "suite.yaml").read_text())
    )
    report = load_suite("suite.yaml", allow=["mine"]).run()
    assert report.rows["grounded"].mean == pytest.approx(2 / 3)


def test_a_class_of_the_user_scores_on_its_scale(files: Path) -> None:
    (files / "own_tone.py").write_text(
        "class Tone:\n    scale = (0, 9)\n    async def score(self, run):\n        return 7\n"
    )
    (files / "suite.yaml").write_text(
        changed("use: contains", "use: own_tone:Tone").replace("    what: expected\n", "")
    )
    row = load_suite("suite.yaml", allow=["own_tone"]).run().rows["grounded"]
    assert (row.scale, row.mean) == ((0, 9), 7)


def test_a_scorer_of_the_user_that_takes_no_run_names_its_line(files: Path) -> None:
    (files / "own_polite.py").write_text("def polite(text, language):\n    return True\n")
    (files / "suite.yaml").write_text(changed("use: contains", "use: own_polite:polite"))
    with pytest.raises(
        PackError, match=r"suite.yaml:\d+: scorers\[0\]: .*\(text, language\); expected one, the CaseRun"
    ):
        load_suite("suite.yaml", allow=["own_polite"])
