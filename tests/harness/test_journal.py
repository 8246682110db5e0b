"""A run leaves a journal, from which it is resumed and shown."""

from __future__ import annotations

import errno
import json
import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from arbiter import ArbiterOS, ArbiterWarning, ConfigurationError
from arbiter.errors import PackError
from arbiter.harness import Case, CaseRun, Limits, Report, Score, Suite, runs
from arbiter.harness.journal import FOLDER, Journal, Summary, run_folder, runs_in, runs_of, summary_of
from arbiter.harness.reports.report import load_report
from arbiter.harness.targets import TargetFile
from tests.processes import python
from tests.support import PATIENCE, Judge, Spy, chain, no_room_after, until

CASES = [Case(f"case-{number}", number, expect={"completes": True}) for number in range(5)]
calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def answer(given: int) -> str:
    calls.append(given)
    return f"answer {given}"


def long(run: CaseRun) -> float:
    return len(run.output) / 10


SUITE = Suite("numbers", CASES, scorers=[long], limits=Limits(concurrency=1))


def lines(folder: Path | None = None) -> list[dict[str, Any]]:
    path = (folder or run_folder("last")) / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_timing(report: Report) -> dict[str, Any]:
    found = report.to_dict()
    found.pop("timing")
    return found


def cut(after: str, count: int = 1) -> None:
    """Leave the journal as a process that is killed after that line leaves it."""
    path = run_folder("last") / "journal.jsonl"
    kept: list[str] = []
    for line in path.read_text().splitlines(keepends=True):
        kept.append(line)
        count -= json.loads(line)["kind"] == after
        if not count:
            break
    path.write_text("".join(kept))


def test_each_fact_is_a_line() -> None:
    SUITE.run(answer)
    found = lines()
    assert [line["kind"] for line in found] == ["session", *["answer", "score", "score", "case"] * 5, "end"]
    assert [line["seq"] for line in found] == list(range(1, len(found) + 1))
    assert found[1]["output"] == "answer 0"
    assert (Path(".arbiter/evals") / ".gitignore").read_text() == "*\n"


def test_a_report_is_read_from_the_files_of_the_run() -> None:
    report = SUITE.run(answer)
    assert without_timing(load_report(run_folder(report.run_id))) == without_timing(report)
    assert load_report(run_folder("last")).rows == report.rows


def test_a_run_without_a_folder_leaves_nothing(project: Path) -> None:
    SUITE.run(answer, folder=None)
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("after", ["session", "answer", "score", "case"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_killed_run_goes_on_where_it_was(after: str, count: int) -> None:
    whole = SUITE.run(answer)
    count = 1 if after == "session" else count
    cut(after, count)
    answered = sum(line["kind"] == "answer" for line in lines())
    calls.clear()
    resumed = SUITE.run(answer, resume="last")
    assert len(calls) == 5 - answered
    assert without_timing(resumed) == without_timing(whole)
    assert without_timing(load_report(run_folder("last"))) == without_timing(whole)
    assert resumed.sessions == 2


def test_a_resume_that_is_killed_too_loses_nothing() -> None:
    whole = SUITE.run(answer)
    for count in (1, 3):
        cut("case", count)
        calls.clear()
        resumed = SUITE.run(answer, resume="last")
        assert len(calls) == 5 - count
    assert without_timing(resumed) == without_timing(whole)


def test_an_answer_is_judged_after_a_kill_without_calling_the_target() -> None:
    SUITE.run(answer)
    cut("answer", 5)
    calls.clear()
    report = SUITE.run(answer, resume="last")
    assert calls == []
    assert report.rows["long"].n == 5


def test_an_output_that_is_no_json_is_made_again() -> None:
    def objects(given: int) -> object:
        calls.append(given)
        return (given, {given})

    suite = Suite("objects", CASES, limits=Limits(concurrency=1))
    suite.run(objects)
    cut("answer", 2)
    calls.clear()
    suite.run(objects, resume="last")
    assert calls == [1, 2, 3, 4]


class Parts:
    """Compares each of its parts, as an array or a table does."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array with more than one element is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("make", [Parts, lambda: {"embedding": Parts()}])
def test_an_array_or_a_table_is_an_output_like_any_other(make: Callable[[], Any]) -> None:
    def made(given: int) -> Any:
        return make()

    report = Suite("arrays", CASES[:1], scorers={"some": lambda run: run.output is not None}).run(made)
    assert report.rows["some"].mean == 1.0
    assert without_timing(load_report(run_folder("last"))) == without_timing(report)


def test_node_evaluators_judge_again_only_what_they_had_not_judged() -> None:
    plan = Spy("plan")
    graph = chain(plan)
    suite = Suite(
        "graph",
        [Case("a", {"log": []}), Case("b", {"log": ["b"]})],
        scorers={"size": lambda run: len(run.output["log"]) / 10},
        evaluators=[Judge("kind", lambda history: 0.5)],
        limits=Limits(concurrency=1),
    )
    whole = suite.run(graph)
    cut("score", 3)  # the evaluations of both, the scorer's of the first
    plan.calls.clear()
    assert without_timing(suite.run(graph, resume="last")) == without_timing(whole)
    assert plan.calls == []
    cut("answer", 2)
    suite.run(graph, resume="last")
    assert len(plan.calls) == 1


def test_large_outputs_are_files() -> None:
    def large(given: int) -> str:
        return str(given) * 70_000

    suite = Suite("large", CASES[:2], scorers={"size": lambda run: len(run.output) / 100_000})
    whole = suite.run(large)
    assert len(list((run_folder("last") / "blobs").iterdir())) == 2
    assert (run_folder("last") / "journal.jsonl").stat().st_size < 5_000
    assert without_timing(load_report(run_folder("last"))) == without_timing(whole)


@pytest.mark.skipif(sys.platform == "win32", reason="sets a limit of Unix")
def test_a_full_disk_takes_no_answer_that_was_kept() -> None:
    """The second case has the large output of the first one, and the third another one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = [30_000]

    def large(given: int) -> str:
        if given == 1 and full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (full.pop(), hard))
        return ("y" if given == 2 else "x") * 100_000

    large.__dict__["version"] = "1"
    suite = Suite("large", CASES[:3], limits=Limits(concurrency=1))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match=r"the journal of the run .* go on with --resume"):
            suite.run(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert [len(result.output) for result in load_report(run_folder("last")).results] == [100_000] * 2
    assert [len(result.output) for result in suite.run(large, resume="last").results] == [100_000] * 3


@pytest.mark.parametrize(("text", "blobs"), [("é" * 40_000, 1), ("e" * 40_000, 0)], ids=["80 KB", "40 KB"])
def test_an_output_is_large_by_its_bytes(text: str, blobs: int) -> None:
    def answer(given: int) -> str:
        return text

    Suite("large", CASES[:1]).run(answer)
    assert len(list(run_folder("last").glob("blobs/*"))) == blobs
    assert load_report(run_folder("last")).results[0].output == text


def test_a_torn_last_line_is_left_out_with_a_warning() -> None:
    whole = SUITE.run(answer)
    cut("case", 3)
    path = run_folder("last") / "journal.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.warns(ArbiterWarning, match="the last line is torn"):
        resumed = SUITE.run(answer, resume="last")
    assert without_timing(resumed) == without_timing(whole)
    assert [line["seq"] for line in lines()] == list(range(1, len(lines()) + 1))


def test_a_list_reads_the_ends_of_journals_alone(project: Path) -> None:
    SUITE.run(answer)
    finished = run_folder("last")
    whole = (finished / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (finished / "journal.jsonl").write_bytes(whole[0] + b"not read\n" * 1_000 + whole[-1])
    assert summary_of(finished) == Summary(
        suite="numbers", target="function answer", done=5, total=5, state="finished"
    )
    killed = project / "killed"
    killed.mkdir()
    (killed / "journal.jsonl").write_bytes(b"".join(whole[:10])[:-3])
    assert summary_of(killed) == Summary(
        suite="numbers", target="function answer", done=2, total=5, state="killed"
    )


def test_a_run_that_goes_on_is_not_called_interrupted() -> None:
    seen: list[tuple[Report, Summary]] = []

    def looks(given: int) -> str:
        seen.append((load_report(run_folder("last")), summary_of(run_folder("last"))))
        return answer(given)

    report = SUITE.run(looks)
    running, summary = seen[-1]
    assert (len(running.results), running.stopped, summary.state) == (
        len(report.results) - 1,
        "running",
        "running",
    )
    assert running.comparison.undecided[0] == "the run is still running"
    assert "still running" in running.rendered("markdown")
    assert load_report(run_folder("last")).stopped is None


def test_a_broken_line_is_named() -> None:
    SUITE.run(answer)
    path = run_folder("last") / "journal.jsonl"
    text = path.read_text().splitlines(keepends=True)
    text[4] = text[4][:10] + "\n"
    path.write_text("".join(text))
    with pytest.raises(PackError, match=r"journal.jsonl:5: expected a line of a journal"):
        SUITE.run(answer, resume="last")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("score", {"scores": [{"naMe": "long"}]}),
        ("answer", {"case": []}),
        ("answer", {"seq": "4"}),
        ("case", None),
    ],
)
def test_a_line_of_another_form_is_named(kind: str, change: dict[str, Any] | None) -> None:
    SUITE.run(answer)
    path = run_folder("last") / "journal.jsonl"
    found = lines()
    number = next(at for at, line in enumerate(found) if line["kind"] == kind)
    text = [json.dumps(line) for line in found]
    text[number] = DEEP if change is None else json.dumps(found[number] | change)
    path.write_text("\n".join(text) + "\n")
    with pytest.raises(PackError, match=rf"journal.jsonl:{number + 1}: expected a line of a journal"):
        load_report(path.parent)


DEEP = "[" * 100_000


@pytest.mark.parametrize("change", [{"gate": []}, {"cases": [1]}, {"options": 0}, {"measures": None}, None])
def test_a_head_of_another_form_names_its_run(change: dict[str, Any] | None) -> None:
    SUITE.run(answer)
    path = run_folder("last") / "run.json"
    path.write_text(DEEP if change is None else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigurationError, match=path.parent.name):
        load_report(path.parent)


@pytest.mark.parametrize("lost", ["identity", "mode", "run_id"])
def test_a_run_whose_head_lacks_a_part_goes_on_or_is_named(lost: str) -> None:
    SUITE.run(answer)
    cut("case", 2)
    path = run_folder("last") / "run.json"
    head = json.loads(path.read_text())
    del head[lost]
    path.write_text(json.dumps(head))
    if lost == "run_id":  # is that of the folder
        assert SUITE.run(answer, resume="last").run_id == path.parent.name
        return
    with pytest.raises(
        ConfigurationError, match=f"{path.parent.name} are not as it wrote them: KeyError: '{lost}'"
    ):
        SUITE.run(answer, resume="last")


def other(run: CaseRun) -> float:
    return len(run.output) / 20


@pytest.mark.parametrize(
    ("suite", "target", "said"),
    [
        (Suite("numbers", [Case("case-0", 7), *CASES[1:]], scorers=[long]), answer, "case case-0 changed"),
        (Suite("numbers", CASES[1:], scorers=[long]), answer, "case case-0 is gone"),
        (Suite("numbers", CASES, scorers={"long": other}), answer, "row long changed"),
        (Suite("numbers", CASES, scorers=[long], repeats=2), answer, "repeats changed"),
        (SUITE, repr, "target changed"),
    ],
)
def test_a_run_of_something_else_does_not_go_on(suite: Suite, target: Any, said: str) -> None:
    SUITE.run(answer)
    cut("case", 2)
    with pytest.raises(ConfigurationError, match=said):
        suite.run(target, resume="last")


def test_a_run_goes_on_in_its_own_mode() -> None:
    """Else a replay would show answers that a live run got, and a live run replayed ones."""
    SUITE.run(answer)
    cut("case", 2)
    with pytest.raises(ConfigurationError, match="cannot go on: mode changed from 'live' to 'record'"):
        SUITE.run(answer, mode="record", resume="last")


def test_a_target_that_counts_its_calls_is_the_same_afterwards() -> None:
    """Also in a variable that it captured, which has another value then."""
    seen: list[int] = []

    def counting(given: int) -> str:
        seen.append(given)
        return f"answer {given}"

    SUITE.run(counting).save_baseline("before.json")
    cut("case", 2)
    resumed = SUITE.run(counting, resume="last")
    assert seen == [0, 1, 2, 3, 4, 2, 3, 4]
    assert resumed.compare("before.json").exit_code == 0


@pytest.mark.parametrize(
    ("place", "said"),
    [("policies/rules.yaml", "the constitution changed"), ("notes.txt", "the file notes.txt changed")],
)
def test_a_part_of_the_target_that_changed_is_named(project: Path, place: str, said: str) -> None:
    (project / "app.py").write_text(
        "from tests.support import Spy, chain\ngraph = chain(Spy('plan'))\n", encoding="utf-8"
    )
    (project / "policies").mkdir()
    (project / "policies/rules.yaml").write_text(
        "version: 1\nname: rules\ndescription: none\n"
        "checkers:\n  - {name: small, use: condition, deny_when: input.amount > 1, target_nodes: [plan]}\n"
    )
    (project / "notes.txt").write_text("amount > 1")
    target = TargetFile(graph="app.py:graph", constitution=".", watch=["notes.txt"])
    suite = Suite(
        "rules", [Case(f"case-{n}", {"amount": 0, "log": [str(n)]}) for n in range(3)], target=target
    )
    suite.run()
    cut("case", 1)
    (project / place).write_text((project / place).read_text().replace("> 1", "> 2"))
    with pytest.raises(ConfigurationError, match=f"cannot go on: {said}. Start"):
        suite.run(resume="last")


def test_a_finished_run_does_not_go_on() -> None:
    SUITE.run(answer)
    with pytest.raises(ConfigurationError, match="is finished"):
        SUITE.run(answer, resume="last")


def test_an_unknown_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no run of the suite 'numbers'"):
        SUITE.run(answer, resume="last")
    SUITE.run(answer)
    with pytest.raises(ConfigurationError, match="there is no run 'nope'"):
        SUITE.run(answer, resume="nope")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_a_run_in_use_names_its_process() -> None:
    import fcntl

    SUITE.run(answer)
    cut("case", 2)
    with (run_folder("last") / "lock").open("a+") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match=f"in use by process {os.getpid()}"):
            SUITE.run(answer, resume="last")


def test_a_run_that_went_on_in_another_process_since_it_was_read_keeps_what_that_one_wrote() -> None:
    """Several suites are read before the first one runs, which may take hours."""
    SUITE.run(answer)
    cut("case", 2)
    late = SUITE.prepare(answer, resume="last")
    SUITE.run(answer, resume="last")
    calls.clear()
    written = (run_folder("last") / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigurationError, match=r"went on in another process .* Resume it again"):
        late.run()
    assert (run_folder("last") / "journal.jsonl").read_bytes() == written
    assert calls == []


def test_a_file_system_without_locks_keeps_no_run_from_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some network drives; two processes are not kept apart there."""
    import fcntl

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    SUITE.run(answer)
    cut("case", 2)
    assert SUITE.run(answer, resume="last").sessions == 2
    assert SUITE.run(answer, mode="record").rows["long"].n == len(CASES)


def test_a_disk_that_is_full_at_the_end_takes_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(runs, "write_whole", full)
    with pytest.warns(
        ArbiterWarning, match=r"report.json cannot be written: No space .*: arbiter eval report"
    ):
        report = SUITE.run(answer)
    assert without_timing(load_report(run_folder("last"))) == without_timing(report)


def test_errors_are_tried_again_on_request() -> None:
    broken = {0, 1}

    def flaky(given: int) -> str:
        calls.append(given)
        if given in broken and given == 0:
            raise ValueError("boom")
        return f"answer {given}"

    def moody(run: CaseRun) -> float:
        asked.append(("moody", run.case.input))
        if run.case.input in broken:
            raise ValueError("boom")
        return 1.0

    def even(run: CaseRun) -> float:
        asked.append(("even", run.case.input))
        return 1.0

    asked: list[tuple[str, int]] = []
    suite = Suite("moody", CASES, scorers=[moody, even], limits=Limits(concurrency=1))
    first = suite.run(flaky)
    assert first.rows["moody"].outcomes == {"scored": 3, "error": 2}
    broken.clear()
    calls.clear()
    asked.clear()
    second = suite.run(flaky, resume="last", retry_errors=True)
    assert calls == [0]
    assert asked == [("moody", 0), ("even", 0), ("moody", 1)]
    assert second.rows["moody"].outcomes == second.rows["even"].outcomes == {"scored": 5}
    assert [line["status"] for line in lines() if line["kind"] == "answer" and line["case"] == "case-0"] == [
        "failed",
        "completed",
    ]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("keeps", ["a checkpointer", "a governed graph"])
def test_a_case_that_is_run_again_finds_nothing_of_its_first_try(keeps: str, is_async: bool) -> None:
    """Neither its state, in a checkpointer that lasts, nor its history, in the ArbiterOS of the user."""
    broken = [True]

    def plan(state: Any) -> dict[str, Any]:
        return {"log": ["plan"]}

    def write(state: Any) -> dict[str, Any]:
        if broken[0]:
            raise ValueError("boom")
        return {"log": ["write"]}

    async def awrite(state: Any) -> dict[str, Any]:
        return write(state)

    awrite.__name__ = "write"
    arbiter_os = ArbiterOS()
    graph = chain(plan, awrite if is_async else write, checkpointer=Lasting())
    options: Any = {}
    if keeps == "a governed graph":
        graph, options = arbiter_os.govern(graph), {"arbiter_os": arbiter_os}
    suite = Suite("again", [Case("a", {"log": []}, expect={"nodes": ["plan", "write"]})])
    first = suite.run(graph, **options).results[0]
    broken.clear()
    broken.append(False)
    second = suite.run(graph, resume="last", retry_errors=True, **options)
    [result] = second.results
    assert (first.status, result.status) == ("failed", "completed")
    assert result.output["log"] == ["plan", "write"]
    assert result.passed
    assert first.thread_id == f"{second.run_id}:a:0" != result.thread_id


class Lasting(BaseCheckpointSaver[str]):
    """Keeps threads, as a database does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = InMemorySaver()

    def __getattribute__(self, name: str) -> Any:
        kept = ("get_tuple", "aget_tuple", "list", "alist", "put", "aput", "put_writes", "aput_writes")
        return (
            getattr(super().__getattribute__("inner"), name)
            if name in kept
            else super().__getattribute__(name)
        )


def test_an_answer_that_is_judged_after_a_kill_names_the_thread_on_which_it_ran() -> None:
    SUITE.run(answer)
    cut("answer", 2)
    resumed = SUITE.run(answer, resume="last")
    assert [result.thread_id for result in resumed.results][:3] == [
        f"{resumed.run_id}:case-0:0",
        f"{resumed.run_id}:case-1:0",
        f"{resumed.run_id}.2:case-2:0",
    ]
    assert load_report(run_folder("last")).results[1].thread_id == resumed.results[1].thread_id


@pytest.mark.parametrize("text", ["{", "[]", '{"v": 2}'])
def test_a_run_that_cannot_be_read_hides_no_other(project: Path, text: str) -> None:
    SUITE.run(answer).save_baseline("numbers.json")
    cut("case", 2)
    broken = project / ".arbiter/evals/99999999-broken"
    broken.mkdir()
    (broken / "run.json").write_text(text)
    with pytest.warns(ArbiterWarning, match=r"99999999-broken.run\.json .*The run is left out"):
        assert SUITE.run(answer, resume="last").sessions == 2
    with pytest.warns(ArbiterWarning, match="The run is left out"):
        assert SUITE.run(answer, baseline="numbers.json").comparison.exit_code == 0


def test_code_that_belongs_to_no_module_gets_warnings_at_its_line(project: Path) -> None:
    """Such as a cell that a tool runs: its globals have no name."""
    (project / "evals/1").mkdir(parents=True)
    (project / "evals/1/run.json").write_text("{")
    cell = compile("assert list(runs_of('x', folder)) == []", "a cell", "exec")
    with pytest.warns(ArbiterWarning, match="The run is left out") as warned:
        exec(cell, {"runs_of": runs_of, "folder": project / "evals"})
    assert [each.filename for each in warned] == ["a cell"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"comparison": null}'])
def test_a_report_of_another_form_stops_no_later_run(project: Path, text: str) -> None:
    SUITE.run(answer).save_baseline("numbers.json")
    SUITE.run(answer, baseline="numbers.json")
    (run_folder("last") / "report.json").write_text(text)
    other = json.loads((project / "numbers.json").read_text()) | {"capturedAt": "2020-01-01T00:00:00Z"}
    (project / "numbers.json").write_text(json.dumps(other))
    assert SUITE.run(answer, baseline="numbers.json").comparison.exit_code == 0


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_case(project: Path) -> None:
    (project / "file").write_text("")
    (project / "link").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match=r"cannot be written: '.*file' is not a folder"):
        SUITE.run(answer, folder=project / "file" / "evals")
    with pytest.raises(ConfigurationError, match=r"link' is a link to 'nowhere', which does not exist"):
        SUITE.run(answer, folder=project / "link" / "evals")
    assert calls == []


PROGRAM = """
import sys, time
from arbiter.harness import Case, Limits, Suite

def answer(given):
    with open("calls", "a") as file:
        file.write(f"{given}\\n")
    time.sleep(0.15)
    return f"answer {given}"

suite = Suite("killed", [Case(f"case-{number}", number) for number in range(12)],
              scorers={"long": lambda run: len(run.output) / 10}, limits=Limits(concurrency=2))
report = suite.run(answer, resume="last" if "resume" in sys.argv else None)
found = report.to_dict()
found.pop("timing")
import json
print(json.dumps(found))
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_process_that_is_stopped_goes_on_in_another(project: Path, how: int) -> None:
    (project / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen(
        [sys.executable, "program.py"], env=environment, stdout=subprocess.PIPE, text=True
    )
    wait_for(project / "calls", 4)
    process.send_signal(how)
    output, _ = process.communicate(timeout=100)
    if how == signal.SIGINT:
        assert json.loads(output)["stopped"] == "interrupted"
    resumed = subprocess.run(
        python("program.py", "resume"), env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(resumed.stdout)
    assert [result["output"] for result in found["results"]] == [f"answer {number}" for number in range(12)]
    made = (project / "calls").read_text().split()
    # The two calls that ran when the process was killed are made again.
    assert len(made) <= 14
    assert set(made) == set(map(str, range(12)))
    assert len(runs_in()) == 1


async def aanswer(given: int) -> str:
    return answer(given)


@contextmanager
def ctrl_c_at(moment: str, monkeypatch: pytest.MonkeyPatch, *, also_after: bool = False) -> Generator[None]:
    """Press Ctrl-C when that function of `runs` is called, and perhaps when it returns."""
    inner = operator.attrgetter(moment)(runs)

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        found = inner(*given)
        if also_after:
            signal.raise_signal(signal.SIGINT)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(f"arbiter.harness.runs.{moment}", interrupted)
        yield


@pytest.mark.parametrize("target", [answer, aanswer])
@pytest.mark.parametrize(
    "moment", ["Journal.begin", "Session.write_to", "drive_on_threads", "drive_to_the_end"]
)
def test_ctrl_c_before_the_first_case_leaves_a_report(
    target: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever moment it comes: a run that has a journal has a report, and goes on."""
    with ctrl_c_at(moment, monkeypatch, also_after=True):
        SUITE.run(target)
    assert summary_of(run_folder("last")).done == len(calls)
    is_other = moment == ("drive_to_the_end" if target is answer else "drive_on_threads")
    assert load_report(run_folder("last")).stopped == (None if is_other else "interrupted")
    if not is_other:
        assert len(SUITE.run(target, resume="last").results) == 5
    assert sorted(calls) == list(range(5))


@pytest.mark.parametrize("target", [answer, aanswer])
@pytest.mark.parametrize("moment", ["Run._close", "Run._report", "write_whole"])
def test_ctrl_c_after_the_last_case_leaves_a_report(
    target: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paid judgements are not lost at the last moment, with or without files."""
    with ctrl_c_at(moment, monkeypatch):
        report = SUITE.run(target)
    assert (len(report.results), report.stopped) == (5, None)
    assert report.interrupted  # a loop over several suites ends here
    assert (run_folder("last") / "report.json").exists()
    assert load_report(run_folder("last")).stopped is None


def test_a_program_that_handles_ctrl_c_itself_gets_it_after_the_last_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its handler decides, also when it is pressed twice. The report is there."""
    inner, pressed = operator.attrgetter("Run._report")(runs), list[int]()

    def interrupted(run: runs.Run) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return inner(run)

    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        monkeypatch.setattr(runs.Run, "_report", interrupted)
        report = SUITE.run(answer)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (len(report.results), len(pressed)) == (5, 2)


def test_a_folder_without_a_head_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it makes a journal leaves nothing that could be listed or resumed."""

    def killed(*given: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr("arbiter.harness.journal.write_whole", killed)
        with pytest.raises(SystemExit):
            SUITE.run(answer)
    assert len(list(Path(".arbiter/evals").iterdir())) == 2  # its folder, and .gitignore
    assert runs_in() == []


def wait_for(path: Path, count: int) -> None:
    until(lambda: path.exists() and len(path.read_text().split()) >= count)


def test_a_text_without_a_utf_8_form_is_read_back_from_the_journal_as_it_was() -> None:
    """A lone surrogate, such as of half an emoji that a model was cut off in."""
    suite = Suite("numbers", CASES[:1], scorers={"tone": lambda run: "half \ud83d"})
    suite.run(answer)
    assert [score.label for score in load_report(run_folder("last")).results[0].scores[1:]] == ["half \ud83d"]


class Disk:
    """A file whose writes are `through`, which gets the file and the text."""

    def __init__(self, file: Any, through: Callable[[Any, bytes], int]) -> None:
        self.file, self.through = file, through

    def write(self, text: bytes) -> int:
        return self.through(self.file, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_slow_write_keeps_no_other_thread_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, goes_on = Event(), Event()

    def slow(file: Any, text: bytes) -> int:
        if b"slow" in text:
            assert goes_on.wait(PATIENCE)
        return int(file.write(text))

    def quick() -> None:
        journal.write("quick", {"case": "b", "repeat": 0})
        written.set()

    journal = Journal(tmp_path)
    monkeypatch.setattr(journal, "_file", Disk(getattr(journal, "_file"), slow))  # noqa: B009
    one = Thread(target=journal.write, args=("slow", {"case": "a", "repeat": 0}))
    other = Thread(target=quick)
    one.start()
    other.start()
    assert written.wait(PATIENCE)
    goes_on.set()
    one.join()
    monkeypatch.undo()
    journal.close()
    assert sorted(line["kind"] for line in lines(tmp_path)) == ["quick", "slow"]


def test_no_line_follows_one_for_which_the_disk_had_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a part of the torn line, and the journal could not be read."""
    journal = Journal(tmp_path)
    journal.write("whole", {"case": "a", "repeat": 0})
    monkeypatch.setattr(
        journal,
        "_file",
        Disk(getattr(journal, "_file"), lambda file, text: file.write(text[:20])),  # noqa: B009
    )
    for _ in range(2):
        with pytest.raises(OSError, match=r"cannot be written: No space left"):
            journal.write("torn", {"case": "a", "repeat": 0})
    monkeypatch.undo()
    journal.close()
    assert (tmp_path / "journal.jsonl").read_bytes().count(b'{"v"') == 2


def test_a_torn_line_is_reported_with_the_reason(tmp_path: Path) -> None:
    """A limit of the size of files or of a user's quota is no full disk."""
    journal = Journal(tmp_path)
    journal.write("whole", {"case": "a", "repeat": 0})
    with no_room_after((tmp_path / "journal.jsonl").stat().st_size + 20):
        for _ in range(2):
            with pytest.raises(OSError, match=r"cannot be written: File too large"):
                journal.write("torn", {"case": "a", "repeat": 0})
    journal.close()


@pytest.mark.parametrize(
    ("name", "field", "value", "said"),
    [
        ("journal.jsonl", "at", "now", "are not as it wrote them"),
        ("run.json", "target", None, "are not as it wrote them: TypeError: target is None"),
    ],
)
def test_a_value_of_another_type_in_the_files_of_a_run_is_a_sentence(
    project: Path, name: str, field: str, value: Any, said: str
) -> None:
    run_id = Suite("edited", [Case("a", 1)]).run(answer).run_id
    file = FOLDER / run_id / name
    *before, last = file.read_text().rstrip("\n").rsplit("\n", 1)
    if name == "run.json":
        before, last = [], file.read_text()
    edited = json.dumps({**json.loads(last), field: value})
    file.write_text("".join(line + "\n" for line in (*before, edited)))
    with pytest.raises(ConfigurationError, match=said):
        load_report(FOLDER / run_id)


def test_a_run_is_read_with_all_that_scorers_may_return(project: Path) -> None:
    own: Any = {
        "usage": 12,
        "calls": 2.0,
        "step": "2",
        "duration": "1 s",
        "sample_size": 3.0,
        "elements": ((1, 0.5), (2, None)),
        "propositions": {"a": None},
        "used_for_control": 1,
    }

    def scored(name: str) -> Callable[[CaseRun], Score]:
        def score(run: CaseRun) -> Score:
            return Score("", 0.5, **{name: own[name]})

        return score

    scorers = {name: scored(name) for name in own}
    report = Suite("own", [Case("a", 1)], scorers=scorers).run(answer)
    assert load_report(FOLDER / report.run_id).results == report.results
