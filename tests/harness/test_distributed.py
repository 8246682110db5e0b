"""Many machines: a suite on a real local Ray gives the report of this process, and survives its workers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from arbiter.errors import ConfigurationError
from arbiter.harness import Limits, Report, Suite, load_suite
from arbiter.harness.cache import CacheMode
from arbiter.harness.distributed import driving, on_ray
from arbiter.harness.distributed.desk import Desk
from arbiter.harness.exports import export_run
from arbiter.harness.journal import Written, run_folder
from arbiter.store import SqlRepository
from tests.cli.cli_support import typed
from tests.experiments.test_experiment_command import MODELS
from tests.harness.test_eval_command import Said

APP = '''
import os, signal
from pathlib import Path
from typing import TypedDict
from langgraph.graph import START, StateGraph

def bought(what):
    with open("bought.txt", "a") as file:
        file.write(what + "\\n")

def once(name):
    """True for the first process that asks."""
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class State(TypedDict, total=False):
    n: int
    plan: str
    answer: str

def plan(state):
    return {"plan": f"is {state['n']} odd?"}

def write(state):
    bought(f"answer {state['n']}")
    if state["n"] == POISON or (state["n"] == DIES and once("died")):
        die()
    return {"answer": "yes" if state["n"] % 2 else "no"}

graph = StateGraph(State)
graph.add_node("plan", plan)
graph.add_node("write", write)
graph.add_edge(START, "plan")
graph.add_edge("plan", "write")
graph = graph.compile()

def odd(given):
    return "yes" if given["n"] % 2 else "no"
'''
LATE = """
import time
from langchain_core.language_models import FakeListChatModel

def waits(name, seconds):
    end = time.monotonic() + seconds
    while not Path(name).exists() and time.monotonic() < end:
        time.sleep(0.05)

def late(state):
    if state["n"] == 0:  # goes on after its time, and answers while its process has another case
        Path("begun").touch()
        time.sleep(3.3)
        Path("late").touch()
        waits("again", 10)
        FakeListChatModel(responses=["yes"]).invoke("?")
        Path("answered").touch()
    elif state["n"] == 1:
        waits("begun", 2.5)
        time.sleep(1.5)
    elif once("died"):
        waits("late", 2.9)
        die()
    else:
        Path("again").touch()
        waits("answered", 2.5)
        time.sleep(0.3)
    return {"answer": "yes"}

late = StateGraph(State).add_node("late", late).add_edge(START, "late").compile()
"""
OPENED = """
def files():
    return [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.exists()]

def watched(state):
    is_worker = Path("driver").read_text() != str(os.getpid())
    assert not (is_worker and any("cache.sqlite" in file for file in files())), "a worker has the cache"
    return write(state)

watched = StateGraph(State).add_node("write", watched).add_edge(START, "write").compile()
"""
GRADING = '''
import copy
from langchain_core.messages import HumanMessage
from pydantic import BaseModel
from arbiter.models import JudgeReply, JudgeRequest
from APP import bought, die, once

class Grade(BaseModel):
    score: float

class Judge:
    model = "judge-1"

    def judge(self, request):
        text = str(request.messages[0].text)
        bought(f"judgement {text}")
        usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        return JudgeReply(value={"score": 0.5}, usage=usage, model="judge-1")

    async def ajudge(self, request):
        return self.judge(request)

class Graded:
    """Asks a judge twice for each run."""
    name = "graded"

    def __init__(self):
        self.judge = Judge()

    def with_judges(self, wrap, votes=None):
        new = copy.copy(self)
        new.judge = wrap(self.judge)
        return new

    def score(self, run):
        found = []
        for question in ("first", "second"):
            message = HumanMessage(f"{question} {run.case.id}")
            request = JudgeRequest(purpose="grade", propositions=(), messages=(message,), schema=Grade)
            found.append(self.judge.judge(request).value["score"])
            if run.input["n"] == DIES_JUDGED and question == "first" and once("judge-died"):
                die()
        return sum(found) / 2
'''
SLOW = """
import time

def slowly(state):
    found = write(state)
    time.sleep(0.3)
    return found

slow = StateGraph(State).add_node("write", slowly).add_edge(START, "write").compile()
"""
ROLES = {"model": "talking", "judge": "judge", "corrector": "corrector"}
TALKING = """
import asyncio, hashlib, os, re, signal
from pathlib import Path
from tests.harness.test_distributed import once

def noted(kind, prompt):
    with open("bought.txt", "a") as file:
        file.write(f"{kind} {hashlib.sha256(prompt.encode()).hexdigest()}\\n")

def dies(name, speaker=""):
    if Path("kill").exists() and once(name):
        Path(name).write_text(speaker)
        os.kill(os.getpid(), signal.SIGKILL)

loops = []

class Talking(Named):
    async def _agenerate(self, messages, stop=None, run_manager=None, **known):
        if asyncio.get_running_loop() not in loops:
            loops.append(asyncio.get_running_loop())
        if Path("kill").exists():
            with open("loops.txt", "a") as file:
                file.write(f"{os.getpid()} {len(loops)}\\n")
        prompt = "\\n".join(str(message.text) for message in messages)
        noted("agents", prompt)
        if len(messages) > 5:
            dies("agent-died", re.search(r"You are ([^,]+), and you stay", prompt)[1])
        return self._generate(messages, stop, run_manager, **known)

def judging(prompt):
    # In another conversation: one whose worker died twice is lost.
    speaker = Path("agent-died").exists() and Path("agent-died").read_text()
    if speaker and speaker not in prompt:
        dies("judge-died")
    noted("judge", prompt)
    return heard(prompt)

talking = Talking(model_name="speaker-1", answers=agents.answers)
judge.answers = [judging]
"""
SUITE = """\
suite: odd
target: {graph: APP.py:graph, output: answer}
evaluators: [{name: brief, use: length, key: answer, at_most: 2, target_nodes: [write]}]
scorers:
  - {name: right, use: equals}
  - {name: graded, use: GRADING.Graded}
cases: [{from: cases.jsonl}]
limits: {concurrency: 4}
"""


@dataclass(frozen=True)
class SuiteFile:
    """A suite in a file, as workers make it."""

    file: str
    grading: str
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self) -> Suite:
        return replace(load_suite(self.file, allow=[self.grading]), **self.changes)


class Project:
    """The files of a suite. Their modules have names of their own, because workers keep the ones that they know."""

    def __init__(
        self, folder: Path, *, dies: int = -1, dies_judged: int = -1, poison: int = -1, n: int = 6
    ) -> None:
        self.folder = folder
        self.app, self.grading = (f"{name}_{uuid4().hex[:8]}" for name in ("app", "grading"))
        head = f"DIES, DIES_JUDGED, POISON = {dies}, {dies_judged}, {poison}\n"
        self.write(f"{self.app}.py", head + APP)
        self.write(f"{self.grading}.py", head + GRADING)
        self.write("odd.yaml", SUITE)
        cases = [{"id": f"c{k}", "input": {"n": k}, "expected": "yes" if k % 2 else "no"} for k in range(n)]
        self.write("cases.jsonl", "".join(json.dumps(case) + "\n" for case in cases))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace("APP", self.app).replace("GRADING", self.grading))

    def suite(self) -> Suite:
        return load_suite("odd.yaml", allow=[self.grading])

    def measured(self, on: str = "", resume: str | None = None, **changes: Any) -> Report:
        """The report of the suite, on Ray if an address is given."""
        run = replace(self.suite(), **changes).prepare(resume=resume)
        if on:
            named = {name: value for name, value in changes.items() if name in ("repeats", "cache")}
            run.driver = on_ray(on, SuiteFile("odd.yaml", self.grading, named))
        return run.run()


def once(name: str) -> bool:
    """True for the first process that asks."""
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def bought() -> Counter[str]:
    """The questions to the target and the judge, with the number of times."""
    return Counter(Path("bought.txt").read_text().splitlines())


def without_timing(report: Report) -> str:
    found = report.to_dict()
    del found["timing"]
    return json.dumps(found)


@pytest.fixture(scope="module")
def cluster() -> Generator[str]:
    """A local Ray of two CPUs."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray: Any = import_module("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield "auto"
    ray.shutdown()


@pytest.mark.slow
def test_a_suite_on_ray_gives_the_same_report(project: Path, cluster: str) -> None:
    """Byte for byte, timings aside, and also its node runs can be exported."""
    odd = Project(project)
    local = odd.measured(repeats=2)
    assert set(bought().values()) == {2}
    distant = odd.measured(cluster, repeats=2)
    assert without_timing(distant) == without_timing(local)
    assert distant.usage["judge"].calls == 24
    assert set(bought().values()) == {4}
    made = export_run(distant.run_id, "steps")
    assert made.files == {"train.parquet": 24}


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_and_buys_nothing_twice(project: Path, cluster: str) -> None:
    """One worker dies in a node, another between two judgements. Answers that had arrived are not bought
    again."""
    odd = Project(project, dies=3, dies_judged=4)
    report = odd.measured(cluster)
    assert [result.status for result in report.results] == ["completed"] * 6
    spent = bought()
    assert spent.pop("answer 3") == 2  # its worker died before it answered
    assert report.results[3].thread_id == f"{report.run_id}-1:{report.results[3].case_id}:0"
    assert report.results[0].thread_id == f"{report.run_id}:{report.results[0].case_id}:0"
    assert set(spent.values()) == {1}
    assert (project / "judge-died").exists()
    assert report.usage["judge"].calls == 12
    assert without_timing(odd.measured()) == without_timing(report)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["judge", "all"])
def test_workers_take_from_the_cache_of_the_driver(project: Path, cluster: str, cache: CacheMode) -> None:
    """A run on Ray fills it, and the next ones buy nothing, on Ray and on this machine. The file is the driver's."""
    odd = Project(project)
    odd.write(f"{odd.app}.py", (project / f"{odd.app}.py").read_text() + OPENED)
    odd.write("odd.yaml", SUITE.replace("APP.py:graph, output", "APP.py:watched, output"))
    odd.write("driver", str(os.getpid()))
    first = odd.measured(cluster, cache=cache)
    assert [result.status for result in first.results] == ["completed"] * 6, first.results[0].error
    assert first.usage["judge"].calls == 12
    assert set(bought().values()) == {1}
    distant = odd.measured(cluster, cache=cache)
    spent = bought()
    assert {count for what, count in spent.items() if what.startswith("judgement")} == {1}
    assert {spent[f"answer {n}"] for n in range(6)} == {2 if cache == "judge" else 1}
    assert (distant.usage["judge"].calls, distant.usage["judge"].replayed_calls) == (0, 12)
    local = odd.measured(cache=cache)
    assert bought() - spent == ({} if cache == "all" else {f"answer {n}": 1 for n in range(6)})
    assert without_timing(distant) == without_timing(local)


@pytest.mark.slow
def test_an_answer_after_its_time_ends_no_run_in_which_a_worker_died(project: Path, cluster: str) -> None:
    odd = Project(project, n=3)
    odd.write(f"{odd.app}.py", (project / f"{odd.app}.py").read_text() + LATE)
    odd.write("odd.yaml", "suite: odd\ntarget: {graph: APP.py:late}\ncases: [{from: cases.jsonl}]\n")
    report = odd.measured(cluster, limits=Limits(concurrency=2, case_timeout=3))
    assert [result.status for result in report.results] == ["timeout", "completed", "completed"]


@pytest.mark.slow
def test_a_case_whose_worker_dies_twice_is_lost(project: Path, cluster: str) -> None:
    """A poisonous case does not loop, and the others are done."""
    report = Project(project, poison=2).measured(cluster)
    expected = ["completed" if n != 2 else "lost" for n in range(6)]
    assert [result.status for result in report.results] == expected
    assert report.results[2].error == "its worker died twice"
    assert bought().pop("answer 2") == 2
    assert all(count == 1 for what, count in bought().items() if what != "answer 2")


@pytest.mark.slow
def test_a_budget_stops_a_run_on_ray_and_a_resume_does_the_rest(project: Path, cluster: str) -> None:
    """The driver counts the tokens of workers, 24 a case; at most 3 cases run at once."""
    odd = Project(project, n=12)
    report = odd.measured(cluster, limits=Limits(concurrency=3, tokens=60))
    done = [result.case_id for result in report.results if result.status == "completed"]
    assert 3 <= len(done) <= 6
    assert report.stopped == "budget"
    whole = odd.measured(cluster, resume="last")
    assert [result.status for result in whole.results] == ["completed"] * 12
    assert set(bought().values()) == {1}
    assert whole.usage["judge"].calls == 24


@pytest.mark.slow
def test_quick_functions_go_in_chunks(project: Path, cluster: str) -> None:
    """Their report is that of this process, too."""
    odd = Project(project, n=500)
    text = SUITE.replace("graph: APP.py:graph, output: answer", "function: APP.py:odd")
    odd.write(
        "odd.yaml", "\n".join(line for line in text.splitlines() if "use: " not in line or "equals" in line)
    )
    distant = odd.measured(cluster)
    assert without_timing(distant) == without_timing(odd.measured())
    assert len(distant.results) == 500


@pytest.mark.slow
def test_a_mistake_of_the_workers_is_raised_once(project: Path, cluster: str) -> None:
    """A worker that has other files than the driver measures nothing."""
    odd = Project(project)
    run = odd.suite().prepare()
    run.driver = on_ray(cluster, SuiteFile("odd.yaml", odd.grading))
    odd.write("odd.yaml", SUITE.replace("at_most: 2", "at_most: 3"))
    with pytest.raises(ConfigurationError, match="differs from the driver's: row brief changed"):
        run.run()
    other = odd.suite().prepare()
    other.driver = on_ray(cluster, SuiteFile("nowhere.yaml", odd.grading))
    with pytest.raises(ConfigurationError, match=r"a worker cannot run the suite: nowhere\.yaml"):
        other.run()


@pytest.mark.slow
def test_the_command_runs_a_suite_on_ray(project: Path, cluster: str) -> None:
    odd = Project(project)
    said = Said(
        "run", "odd.yaml", "--ray", cluster, "--allow", odd.grading, "--case", "c1", "--format", "json"
    )
    assert said.code == 0
    [result] = json.loads(said.out)["results"]
    assert (result["case"], result["output"]) == ("c1", "yes")


@pytest.mark.slow
def test_ctrl_c_ends_a_run_on_ray_in_good_order(project: Path, cluster: str) -> None:
    """Pressed in a terminal it reaches the workers too. A resume does the rest, and nothing twice."""
    odd = Project(project, n=12)
    odd.write(f"{odd.app}.py", (project / f"{odd.app}.py").read_text() + SLOW)
    odd.write("odd.yaml", SUITE.replace("APP.py:graph, output", "APP.py:slow, output"))
    ray: Any = import_module("ray")
    address = ray.get_runtime_context().gcs_address
    command = ["eval", "run", "odd.yaml", "--allow", odd.grading, "--ray", address, "--concurrency", "2"]
    running = subprocess.Popen(
        [sys.executable, "-m", "arbiter", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (project / "bought.txt").exists() or len(bought()) < 3:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    shown, said = running.communicate()
    assert running.returncode == 130, said
    assert "stopped: interrupted" in shown
    [run_id] = re.findall(r"--resume ([\w-]+)", said)
    done = Written.read(run_folder(run_id)).results()
    assert 1 <= len(done) < 12
    assert {result.status for result in done} == {"completed"}
    report = odd.measured(cluster, resume=run_id)
    assert [result.status for result in report.results] == ["completed"] * 12
    assert set(bought().values()) == {1}


CREW = """\
suite: crew
target: {agents: {ilka: {persona: "arbiter:ilka", graph: "APP.py:speaker"}, tomasz: {persona: "arbiter:tomasz"}},
         messages: said.jsonl}
scorers: [{name: talks, use: GRADING.Talks}]
"""
SPEAKER = """
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState

def speak(state):
    bought(state["messages"][-1].text)
    return {"messages": [AIMessage("Aye.")]}

speaker = StateGraph(MessagesState).add_node("speak", speak).add_edge(START, "speak").compile()
"""
TALKS = """
class Talks:
    name = "talks"

    def score(self, run):
        return len(run.output["messages"]) / 100
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("--window", "30d", "--agents", "tomasz"), ("--window", "30d", "--synthetic")]
)
def test_agents_on_ray_give_the_same_report(project: Path, cluster: str, options: tuple[str, ...]) -> None:
    """Also those that answer prompts, and with options of the command line that change the suite."""
    crew = Project(project)
    crew.write(f"{crew.app}.py", (project / f"{crew.app}.py").read_text() + SPEAKER)
    crew.write(f"{crew.grading}.py", TALKS)
    crew.write("crew.yaml", CREW)
    said = [
        {"agent": "tomasz", "text": f"Number {n}.", "channel": "quay", "at": f"2026-11-{n + 1:02}T09:00:00Z"}
        for n in range(20)
    ]
    crew.write("said.jsonl", "".join(json.dumps(one) + "\n" for one in said))
    reports: list[dict[str, Any]] = []
    for more in ((), ("--ray", cluster)):
        found = Said("run", "crew.yaml", "--allow", crew.grading, "--format", "json", *options, *more)
        assert found.code == 0, found.err
        reports.append(json.loads(found.out))
        del reports[-1]["timing"]
    local, distant = map(json.dumps, reports)
    assert distant == local
    if "--synthetic" in options:
        assert set(bought().values()) == {2}
    else:
        assert reports[1]["results"][0]["scores"][0]["value"] == 0.2


# Experiments


@pytest.mark.slow
def test_an_experiment_on_ray_has_the_same_result(project: Path, cluster: str) -> None:
    """One worker dies in a conversation, another while its conversation is judged. Answers that had arrived
    are not bought again, and a worker keeps one event loop, to which the connections of its models belong."""
    name = f"models_{uuid4().hex[:8]}"
    (project / f"{name}.py").write_text(MODELS + TALKING)
    models = [f"--{role}={name}.py:{given}" for role, given in ROLES.items()]
    command = ["experiment", "run", "debate-controversial", "--scale", "0.05", "--profile", "seed", *models]

    def ran(*options: str) -> tuple[dict[str, Any], Counter[str], dict[str, int]]:
        (project / "bought.txt").unlink(missing_ok=True)
        typed(*command, "--out", "result.json", *options)
        found = json.loads((project / "result.json").read_text())
        calls = {purse: amount["calls"] for purse, amount in found["usage"].items()}
        del found["run_id"], found["usage"], found["unknown_calls"]
        return found, bought(), calls

    expected, spent, _ = ran()
    (project / "kill").touch()
    result, again, calls = ran("--ray", cluster, "--store", "store.db")
    with SqlRepository("store.db") as store:
        drafts = sum(len(action.attempts) for action in store.corrections())
    # Those of the conversation whose worker died may be there, too.
    assert 0 <= drafts - result["exposure"]["treatment"]["drafts"] < 15
    assert json.dumps(result) == json.dumps(expected)
    assert (project / "agent-died").exists()
    assert (project / "judge-died").exists()
    repeated = again - spent
    kinds = Counter(line.split()[0] for line in repeated.elements())
    assert 1 <= kinds["agents"] < 15  # the turns of one conversation until its worker died
    assert 0 <= kinds["judge"] < 8  # those that were asked at the moment when a worker died
    assert not spent - again
    asked = Counter(line.split()[0] for line in again.elements())
    # Those that ran when a worker died count too, once: as many as there are agents, or questions at once.
    assert 0 <= calls["target"] - asked["agents"] <= 5
    assert 1 <= calls["judge"] - asked["judge"] <= 8
    assert {line.split()[1] for line in (project / "loops.txt").read_text().splitlines()} == {"1"}


# Without a cluster


def closed_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("there", "--ray is 'there'; expected auto, HOST:PORT or ray://HOST:PORT"),
        ("127.0.0.1:PORT", "no Ray cluster answers at '127.0.0.1:[0-9]+': .*refused"),
    ],
)
@pytest.mark.lengthy
def test_an_address_without_a_cluster_is_refused(address: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        on_ray(address.replace("PORT", str(closed_port())), SuiteFile("odd.yaml", ""))


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not Ray, whose default port is 6379"), (b"", "timed out")],
)
def test_what_listens_and_is_no_ray_is_refused(
    answer: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 10 seconds, while Ray itself would wait for more than a minute."""
    assert vars(driving)["_ANSWER"] == 10
    monkeypatch.setattr(driving, "_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greeted() -> None:
            with listening.accept()[0] as connection, suppress(ConnectionResetError):
                connection.sendall(answer)
                while connection.recv(100):  # until the other side has gone
                    pass

        thread = threading.Thread(target=greeted)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"no Ray cluster answers at '{address}': .*{said}"):
            on_ray(address, SuiteFile("odd.yaml", ""))
        thread.join()


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("arbiter.harness.distributed.driving.import_module", missing)
    with pytest.raises(ConfigurationError, match=r"Install arbiteros\[ray\]"):
        on_ray("auto", SuiteFile("odd.yaml", ""))


def test_a_replay_on_ray_is_refused(project: Path) -> None:
    odd = Project(project)
    found = Said("run", "odd.yaml", "--allow", odd.grading, "--ray", "auto", "--mock")
    assert found.code == 2
    assert "--ray is for runs that ask models, and the mode is 'mock'" in found.err


async def test_a_dead_worker_gives_its_places_back() -> None:
    """Calls that wait for a place get it, and a place that is given to a dead worker returns at once."""
    desk = Desk(1)
    key = ("provider", "model")
    assert await desk.enter("dead", key) == 0
    waits = [desk.enter("dead", key), desk.enter("alive", key)]
    await desk.release("dead")
    assert [await each for each in waits] == [0, 0]
    await desk.leave("alive", key, 0, False, False)
    assert await desk.enter("other", key) == 0
