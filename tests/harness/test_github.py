"""The comment of a pull request, and the first suite with its workflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from arbiter.errors import ConfigurationError
from arbiter.harness import Case, CaseRun, Report, Score, Suite
from arbiter.harness.reports.github import MARKER, OF_SUMMARY, PullRequest, render
from tests.harness.test_eval_command import Said

TOKEN = "ghs_secret"


class GitHub(ThreadingHTTPServer):
    """The part of GitHub's API about comments of pull request 7 of acme/support."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.comments: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.refuses: tuple[int, str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self) -> list[str]:
        return [comment["body"] for comment in self.comments]

    def add(self, body: str | None) -> dict[str, Any]:
        comment = {"id": 100 + len(self.comments), "body": body, "html_url": f"{self.url}/c"}
        self.comments.append(comment)
        return comment


class _Answers(BaseHTTPRequestHandler):
    @property
    def github(self) -> GitHub:
        assert isinstance(self.server, GitHub)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        match = re.fullmatch(r"/repos/acme/support/issues/7/comments\?per_page=(\d+)&page=(\d+)", self.path)
        if self._may(match):
            size, page = map(int, match.groups()) if match else (0, 0)
            self._send(200, self.github.comments[(page - 1) * size : page * size])

    def do_POST(self) -> None:
        if self._may(self.path == "/repos/acme/support/issues/7/comments"):
            self._send(201, self.github.add(self._body()))

    def do_PATCH(self) -> None:
        number = self.path.removeprefix("/repos/acme/support/issues/comments/")
        found = [comment for comment in self.github.comments if str(comment["id"]) == number]
        if self._may(found):
            found[0]["body"] = self._body()
            self._send(200, found[0])

    def _may(self, known: object) -> bool:
        self.github.asked.append(self.command)
        if self.github.refuses is not None:
            status, message = self.github.refuses
            self._send(status, {"message": message})
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._send(401, {"message": "Bad credentials"})
        elif not known:
            self._send(404, {"message": "Not Found"})
        else:
            return True
        return False

    def _body(self) -> str:
        return str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"])

    def _send(self, status: int, data: Any) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    """A local fake of the API, which the environment names as a workflow does."""
    with GitHub() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("GITHUB_API_URL", server.url)
        monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
        monkeypatch.setenv("GITHUB_REPOSITORY", "acme/support")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.shutdown()


class Scored:
    """Gives each case the score that its input has for a row."""

    scale = (0.0, 9.0)

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, run: CaseRun) -> Score | None:
        value = run.output.get(self.name)
        return None if value is None else Score("", float(value), scale=self.scale)


def measured(suite: str = "refunds", baseline: str | None = None, **rows: Sequence[float]) -> Report:
    """The report of a run with these scores from 0 to 9."""
    count = len(next(iter(rows.values())))
    outputs = {f"c{n}": {name: values[n] for name, values in rows.items()} for n in range(count)}
    scorers = [Scored(name) for name in rows]
    made = Suite(suite, [Case(id, id) for id in outputs], scorers=scorers)
    return made.run(outputs, folder=None, baseline=baseline)


def table(text: str) -> list[list[str]]:
    """The cells of the first table."""
    lines = text.partition("<details>")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]


# The text -----------------------------------------------------------------------------------------


def test_a_cell_has_the_mean_and_its_change_from_the_baseline() -> None:
    measured(tone=[7.5] * 8, care=[8.0] * 8, wit=[6.8] * 8).save_baseline("before.json")
    now = measured(baseline="before.json", tone=[7.5] * 8, care=[6.5] * 8, wit=[7.1] * 8)
    text = render([now, measured("other", tone=[5.0] * 2)])
    titles, _, first, second = table(text)
    assert titles == ["suite", "tone", "care", "wit", "completed", "overall", "status"]
    assert first == ["refunds", "7.5 (=)", "6.5 (-1.5)", "7.1 (+0.3)", "1.00 (=)", "7.0 (-0.4)", "✗ failed"]
    assert second == ["other", "5.0", "—", "—", "1.00", "5.0", "✓ passed"]
    assert text.startswith(MARKER)
    (said,) = [line for line in text.partition("<details>")[0].splitlines() if line.startswith("**")]
    assert "care fell by 1.50" in said
    assert "tone" not in said


def test_the_comment_says_that_nothing_regressed_or_that_there_is_no_baseline() -> None:
    first = measured(tone=[7, 8, 6, 7, 7])
    assert "there is no baseline" in render([first])
    first.save_baseline("before.json")
    assert "nothing regressed" in render([measured(baseline="before.json", tone=[7, 8, 6, 7, 7])])


def test_texts_of_users_format_nothing() -> None:
    suite = Suite("x|y @acme/all <!-- ", [Case("a", 1)], scorers={"<b>*": lambda run: False})
    text = render([suite.run({"a": "![](http://evil)"}, folder=None)])
    assert "@acme" not in text
    assert "<b>" not in text
    assert re.findall(r"(?<!\\)<!--.*", text) == [MARKER]
    assert (
        len(
            {len(re.findall(r"(?<!\\)\|", line)) for line in text.partition("<details>")[0].splitlines()}
            - {0}
        )
        == 1
    )


@pytest.mark.lengthy
def test_a_report_that_is_too_long_for_a_comment_is_left_out() -> None:
    cases = [Case(f"{n}-" + "x" * 190, n) for n in range(400)]
    report = Suite("many", cases, scorers={"never": lambda run: False}).run(repr, folder=None)
    text = render([report] * 3)
    assert len(text) <= 65_536
    assert text.count("<details>") == 1
    assert "too long to show here" in text
    assert render([report] * 3, OF_SUMMARY).count("<details>") == 3


@pytest.mark.lengthy
def test_a_long_list_of_failures_fits_into_a_comment() -> None:
    cases = [Case(f"{n}" + "_" * 100, n, must_pass=True) for n in range(1_000)]
    report = Suite("many", cases, scorers={"never": lambda run: False}).run(repr, folder=None)
    assert len(render([report] * 5)) <= 65_536


def test_a_run_that_needs_a_baseline_and_has_none_did_not_pass() -> None:
    text = render([replace(measured(tone=[7, 8]), ci=True)])
    assert table(text)[2][-1] == "? undecided"
    assert "refunds has no baseline" in text
    assert "✓" not in text


# The API ------------------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_a_comment_that_is_written_twice_is_one_comment(github: GitHub) -> None:
    github.add("Nice work!")
    github.add(None)
    pull_request = PullRequest.of_environment(7)
    pull_request.upsert(f"{MARKER}\nfirst")
    assert pull_request.upsert(f"{MARKER}\nsecond") == f"{github.url}/c"
    assert github.bodies() == ["Nice work!", None, f"{MARKER}\nsecond"]


@pytest.mark.lengthy
def test_the_comment_of_a_person_stays(github: GitHub) -> None:
    """Somebody may have copied the comment, marker and all."""
    github.add(f"{MARKER}\nLook at this.")["user"] = {"login": "ada", "type": "User"}
    for text in ("first", "second"):
        PullRequest.of_environment(7).upsert(f"{MARKER}\n{text}")
        github.comments[-1]["user"] = {"login": "github-actions[bot]", "type": "Bot"}
    assert github.bodies() == [f"{MARKER}\nLook at this.", f"{MARKER}\nsecond"]


@pytest.mark.lengthy
def test_the_comment_is_found_behind_a_hundred_others(github: GitHub) -> None:
    for number in range(230):
        github.add(f"{number}: somebody quotes {MARKER}")
    pull_request = PullRequest.of_environment(7)
    for text in ("first", "second"):
        pull_request.upsert(f"{MARKER}\n{text}")
    assert github.bodies()[230:] == [f"{MARKER}\nsecond"]


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (401, "Bad credentials", "GITHUB_TOKEN is not valid, or has expired"),
        (403, "Resource not accessible by integration", "permissions: {pull-requests: write}"),
        (404, "Not Found", "There is no such pull request"),
        (422, "Validation Failed", "The comment was not written"),
    ],
)
def test_a_refusal_says_what_to_do(github: GitHub, status: int, message: str, said: str) -> None:
    github.refuses = (status, message)
    with pytest.raises(ConfigurationError, match=re.escape(said)) as raised:
        PullRequest.of_environment(7).upsert(MARKER)
    assert f"was answered with {status} ({message!r})" in str(raised.value)
    assert TOKEN not in str(raised.value)


def test_an_answer_that_is_not_of_githubs_api_is_refused_in_a_sentence(github: GitHub) -> None:
    """Such as that of a proxy, or of a URL that is a page."""
    github.refuses = (200, "Welcome")
    with pytest.raises(ConfigurationError, match=r"Welcome.*Check GITHUB_API_URL"):
        PullRequest.of_environment(7).upsert(MARKER)


@pytest.mark.lengthy
def test_a_server_that_fails_or_is_not_there_is_a_connection_error(github: GitHub) -> None:
    pull_request = PullRequest.of_environment(7)
    github.refuses = (502, "Bad gateway")
    with pytest.raises(ConnectionError, match="run the job again"):
        pull_request.upsert(MARKER)
    gone = replace(pull_request, api="http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match="could not be reached"):
        gone.upsert(MARKER)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GITHUB_TOKEN", "", "needs GITHUB_TOKEN in the environment"),
        ("GITHUB_TOKEN", f"{TOKEN}\nX: y", "characters that no token has"),
        ("GITHUB_TOKEN", f"{TOKEN}é", "characters that no token has"),
        ("GITHUB_REPOSITORY", "", "needs GITHUB_REPOSITORY in the environment"),
        ("GITHUB_REPOSITORY", "support", "expected owner/name"),
        ("GITHUB_API_URL", "api.github.com", "expected a URL"),
    ],
)
def test_an_environment_that_cannot_work_is_reported_before_anything_is_asked(
    github: GitHub, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=re.escape(said)) as raised:
        PullRequest.of_environment(7)
    assert TOKEN not in str(raised.value)
    assert github.asked == []


@pytest.mark.lengthy
def test_the_command_writes_one_comment_about_the_newest_run_of_each_suite(
    github: GitHub, project: Path
) -> None:
    assert Said("comment", "--pr", "7").code == 2
    for name, text in (("one", "Paris"), ("two", "Rome")):
        (project / f"{name}.yaml").write_text(
            f"suite: {name}\ntarget: {{outputs: answers.jsonl}}\n"
            f"scorers: [{{name: right, use: equals, text: {text}}}]\ncases: [{{id: a, input: 1}}]\n"
        )
    (project / "answers.jsonl").write_text('{"id": "a", "output": "Paris"}\n')
    for file in ("one.yaml", "one.yaml", "two.yaml"):
        assert Said("run", file).code == 0
    printed = Said("comment")
    assert [row[:2] for row in table(printed.out)[2:]] == [["one", "1.00"], ["two", "0.00"]]
    assert github.asked == []
    for _ in range(2):
        said = Said("comment", "--pr", "7")
        assert (said.code, said.out) == (0, "")
        assert f"wrote the comment {github.url}/c" in said.err
    assert github.bodies() == [printed.out.removesuffix("\n")]
    assert Said("comment", "last", "--pr", "7").code == 0
    assert [row[0] for row in table(github.bodies()[0])[2:]] == ["two"]


# The first suite ----------------------------------------------------------------------------------

AGENT = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.managed import RemainingSteps


class State(TypedDict):
    question: str
    tries: int
    sure: bool
    mode: Literal["short", "long"]
    found: list[str]
    customer: "Customer | None"
    left: RemainingSteps


class Customer(TypedDict):
    name: str


@dataclass
class Plain:
    question: str


def write(state):
    assert state["question"] and state["customer"]["name"] and state["tries"] + 1
    return {"found": [*state["found"], state["mode"]]}


def built(schema, node):
    builder = StateGraph(schema)
    builder.add_node("write", node)
    builder.add_edge(START, "write")
    return builder


builder = built(State, write)
graph = builder.compile()
chat = built(MessagesState, lambda state: {"messages": [AIMessage("You said " + state["messages"][-1].text)]}).compile()
plain = built(Plain, lambda state: {"question": state.question.upper()}).compile()


def made():
    return builder.compile()


def on_text(text: str) -> str:
    return text.upper()


def on_fields(given: Mapping[str, Any]) -> int:
    return len(given.keys())


def on_anything(given):
    return given


async def later(given: State) -> str:
    return given["customer"]["name"]


class Assistant:
    def __call__(self, number: int) -> int:
        return number + 1


assistant = Assistant()
"""


@pytest.fixture
def agent(project: Path) -> str:
    """The file of a user's agents, under a name of its own, because modules stay imported."""
    name = f"agent_{project.name}_{project.parent.name}".replace("-", "_")
    (project / f"{name}.py").write_text(AGENT)
    return f"{name}.py"


def rows_of(said: Said) -> dict[str, float]:
    return {name: row["mean"] for name, row in json.loads(said.out)["rows"].items()}


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "name",
    [
        "graph",
        "builder",
        "made",
        "chat",
        "plain",
        "on_text",
        "on_fields",
        "on_anything",
        "later",
        "assistant",
    ],
)
def test_the_first_suite_of_a_target_runs_at_once(agent: str, name: str) -> None:
    said = Said("init", "--target", f"{agent}:{name}")
    assert said.out.splitlines() == ["wrote suites/first.yaml", "wrote suites/suite.schema.json"]
    assert "nothing to report" in Said("lint").out
    run = Said("run", "--format", "json")
    assert (run.code, rows_of(run)) == (0, {"quick": 1.0, "expect": 1.0, "completed": 1.0}), run.out


def test_the_first_suite_without_a_target_has_an_example_and_takes_a_baseline(project: Path) -> None:
    said = Said("init")
    assert "wrote suites/first_agent.py" in said.out
    run = Said("run", "--format", "json")
    assert run.code == 0, run.err
    assert rows_of(run)["right"] == 1.0
    assert Said("baseline", "suites/first.yaml").code == 0
    assert Said("run", "--ci").code == 0


def test_the_first_suite_is_governed_by_the_rules_of_the_project(agent: str, project: Path) -> None:
    (project / "policies").mkdir()
    (project / "policies/own.yaml").write_text(
        "version: 1\nname: own\ndescription: Nothing is written.\n"
        "checkers: [{name: none, use: condition, deny_when: 'true', target_nodes: [write]}]\n"
    )
    Said("init", "--target", f"{agent}:graph")
    assert rows_of(Said("run", "--format", "json"))["completed"] == 0.0


def test_nothing_is_overwritten(agent: str, project: Path) -> None:
    Said("init", "--github")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    for options in (
        [],
        ["--github"],
        ["--target", f"{agent}:graph"],
        ["--target", f"{agent}:graph", "--github"],
    ):
        said = Said("init", *options)
        assert (said.code, "already exists" in said.err) == (2, True)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("agent", "expected package.module:graph or function"),
        ("nowhere.py:graph", "there is no file 'nowhere.py'"),
        ("AGENT:nothing", "has no 'nothing'"),
        ("AGENT:AGENT", "has no 'AGENT'"),
    ],
)
def test_a_target_that_cannot_be_measured_writes_nothing(agent: str, target: str, said: str) -> None:
    found = Said("init", "--target", target.replace("AGENT:", f"{agent}:"), "--github")
    assert (found.code, said in found.err) == (2, True), found.err
    assert not Path("suites").exists()
    assert not Path(".github").exists()


# The workflow -------------------------------------------------------------------------------------


def steps_of(workflow: Any) -> dict[str, str]:
    """The shell commands of the steps that call `arbiter`, by their names."""
    (job,) = workflow["jobs"].values()
    return {step["name"]: step["run"] for step in job["steps"] if "arbiter eval" in step.get("run", "")}


def test_the_workflow_pins_major_versions_and_asks_for_what_it_needs(project: Path) -> None:
    (project / "requirements.txt").write_text("langgraph\n")
    assert "wrote .github/workflows/evaluate.yml" in Said("init", "--github").out
    text = Path(".github/workflows/evaluate.yml").read_text()
    workflow = yaml.load(text, yaml.BaseLoader)  # in which `on` stays a text
    assert set(workflow["on"]) == {"pull_request"}
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)
    assert "pip install arbiteros -r requirements.txt" in text
    (job,) = workflow["jobs"].values()
    assert job["steps"][1]["with"]["python-version"] == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_a_project_in_a_folder_of_a_repository_gets_its_workflow_where_github_looks_for_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".git").mkdir()
    folder = project / "apps" / "desk"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert "wrote ../../.github/workflows/evaluate.yml" in Said("init", "--github").out
    text = (project / ".github/workflows/evaluate.yml").read_text()
    workflow = yaml.load(text, yaml.BaseLoader)
    assert workflow["defaults"] == {"run": {"working-directory": "apps/desk"}}
    paths = workflow["on"]["pull_request"]["paths"]
    assert {"apps/desk/**.py", "apps/desk/suites/**", ".github/workflows/evaluate.yml"} <= set(paths)
    assert len([path for path in paths if not path.startswith("apps/desk/")]) == 1
    assert text.count("hashFiles('apps/desk/.arbiter/evals/*/run.json')") == 2
    assert "Remove it first, or copy its job for another folder." in Said("init", "--github").err


def asked_by(script: str, project: Path) -> str:
    """The arguments of `arbiter` in the command that a step runs; the step's own output if it goes elsewhere."""
    bin = project / "bin"
    bin.mkdir(exist_ok=True)
    (bin / "arbiter").write_text('#!/bin/sh\necho "$@"\n')
    (bin / "arbiter").chmod(0o755)
    path = f"{bin}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": "summary.md", "NUMBER": "7"}
    return subprocess.check_output(["bash", "-e", "-c", script], env=environment, text=True).strip()


@pytest.mark.lengthy
def test_the_workflow_fails_with_a_regression_and_writes_the_summary_and_one_comment(
    github: GitHub, project: Path
) -> None:
    Said("init", "--github")
    assert Said("baseline", "suites/first.yaml").code == 0
    shutil.rmtree(".arbiter")
    agent = Path("suites/first_agent.py")
    agent.write_text(agent.read_text().replace('return "I do not know."', 'return "Poseidonis."'))
    steps = steps_of(yaml.safe_load(Path(".github/workflows/evaluate.yml").read_text()))
    assert list(steps) == ["Evaluate", "Summary", "Comment"]
    assert Said(*asked_by(steps["Evaluate"], project).split()[1:]).code == 1
    assert asked_by(steps["Summary"], project) == ""
    summary = Said(*Path("summary.md").read_text().split()[1:])
    comment = Said(*asked_by(steps["Comment"], project).split()[1:])
    assert (summary.code, comment.code) == (0, 0)
    (body,) = github.bodies()
    assert "case atlantis must pass" in body
    assert table(body)[2][-1] == "✗ failed"
    assert summary.out.rstrip("\n") == body.rstrip("\n")


@pytest.mark.lengthy
def test_the_workflow_replays_recordings_if_there_are_some(agent: str, project: Path) -> None:
    Said("init", "--target", f"{agent}:graph", "--github")
    script = steps_of(yaml.safe_load(Path(".github/workflows/evaluate.yml").read_text()))["Evaluate"]
    assert asked_by(script, project) == "eval run --ci"
    assert Said("record", "suites/first.yaml").code == 0
    assert Said("baseline", "suites/first.yaml").code == 0
    command = asked_by(script, project)
    assert command == "eval run --ci --mock"
    assert Said(*command.split()[1:]).code == 0
    comment = Said("comment", "--ci")
    assert "✓ nothing regressed" in comment.out
    assert "mock" in comment.out


def test_a_project_with_suites_gets_the_workflow_alone(project: Path) -> None:
    Said("init")
    before = Path("suites/first.yaml").read_text()
    assert Said("init", "--github").out == "wrote .github/workflows/evaluate.yml\n"
    assert Path("suites/first.yaml").read_text() == before
