"""The background over the life of a process: forks, its end, and event loops that are blocked."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from arbiter import ArbiterOS, EvaluationError, EvaluationResult, EvaluationRouter, History, NodeEvaluator
from tests.support import MODES, Judge, Spy, chain, good, run

# Forks --------------------------------------------------------------------------------------------

FORKED = """
import asyncio, os, threading, time, warnings
from arbiter import ArbiterOS, EvaluationResult, EvaluationRouter, NodeEvaluator
from tests.support import Judge, Spy, chain

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
judged, hold, parent = [], threading.Event(), os.getpid()

def judge(history):
    judged.append(os.getpid())
    if hold.is_set() and os.getpid() == parent:
        time.sleep(1)
    return EvaluationResult(0.0, False)

class AsyncJudge(NodeEvaluator):
    async def evaluate(self, history):
        await asyncio.sleep(0)
        return judge(history)

def forked(kind, gated):
    hold.clear()
    evaluator = AsyncJudge("quality") if kind == "async" else Judge("quality", judge)
    evaluator.blocking = kind == "slow"
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    if gated:
        arbiter_os.add_policy_router(EvaluationRouter("gate", "quality", "mend", target_nodes=["work"]))
    app = arbiter_os.govern(chain(Spy("work"), Spy("last"), extra=[Spy("mend")]))
    app.invoke({"log": []})
    assert arbiter_os.drain(10)
    hold.set()
    threading.Thread(target=app.invoke, args=({"log": []},)).start()
    time.sleep(0.2)  # the parent is in the middle of an evaluation, and holds its locks
    if (pid := os.fork()) == 0:
        judged.clear()
        begun = time.monotonic()
        log = app.invoke({"log": []})["log"]
        drained = arbiter_os.drain(5)
        item = arbiter_os.history.last(node="work")
        fine = log == (["work", "mend"] if gated else ["work", "last"])
        fine = fine and len(judged) == 2 and not item.evaluation_results["quality"].passed
        print(kind, gated, "child", drained, fine, time.monotonic() - begun < 4, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print(kind, gated, "parent", arbiter_os.drain(20), flush=True)

for kind in ("quick", "slow", "async"):
    for gated in (False, True):
        forked(kind, gated)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_evaluations_go_on_in_the_child_of_a_fork() -> None:
    """As with `gunicorn --preload` or Celery: the app ran before the fork, and its background is at work. Read by
    nobody, and by a gate."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    expected = [
        line
        for kind in ("quick", "slow", "async")
        for gated in (False, True)
        for line in (f"{kind} {gated} child True True True", f"{kind} {gated} parent True")
    ]
    assert done.stdout.splitlines() == expected, done.stderr[-2000:]


# The end of the process ---------------------------------------------------------------------------

SCRIPT = """
import sys, time
from arbiter import ArbiterOS, EvaluationResult
import arbiter.evaluations
from tests.support import Judge, Spy, chain

arbiter.evaluations._EXIT_SECONDS = PATIENCE

def judge(history):
    time.sleep(SECONDS)
    print("judged", flush=True)
    return EvaluationResult(1.0, True)

arbiter_os = ArbiterOS()
arbiter_os.add_evaluator(Judge("quality", judge))
arbiter_os.govern(chain(Spy("one"), Spy("two"))).invoke({"log": []})
"""


def ended(seconds: float, patience: float) -> tuple[subprocess.CompletedProcess[str], float]:
    script = f"SECONDS, PATIENCE = {seconds}, {patience}\n{SCRIPT}"
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return done, time.monotonic() - begun


def test_the_end_of_a_script_waits_for_its_scores() -> None:
    done, _ = ended(1.2, 30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "judged\njudged\n", "")


def test_a_judge_that_hangs_does_not_hang_the_end_and_what_is_lost_is_told() -> None:
    done, seconds = ended(3600, 1)
    assert done.returncode == 0
    assert seconds < 30
    (line,) = done.stderr.splitlines()
    assert "2 evaluations were not done when the process ended" in line
    assert "call arbiter_os.drain()" in line


IN_A_THREAD = """
import threading
from arbiter import ArbiterOS, EvaluationResult
from tests.support import Judge, Spy, chain

def judge(history):
    print("judged", flush=True)
    return EvaluationResult(1.0, True)

def go_on():
    threading.main_thread().join()
    print(len(app.invoke({"log": []})["log"]), flush=True)

arbiter_os = ArbiterOS()
arbiter_os.add_evaluator(Judge("quality", judge))
app = arbiter_os.govern(chain(Spy("one"), Spy("two")))
for _ in range(BEFORE):
    app.invoke({"log": []})
threading.Thread(target=go_on).start()
"""


@pytest.mark.parametrize("before", [0, 1])
def test_a_thread_that_goes_on_after_the_main_one_runs_its_graph_and_has_its_scores(before: int) -> None:
    """Python waits for such a thread. The graph runs as the bare one does, and the end waits for what it left to do."""
    script = f"BEFORE = {before}\n{IN_A_THREAD}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    said = sorted(done.stdout.split())
    assert (done.returncode, said, done.stderr) == (0, sorted(["2", *["judged"] * 2 * (before + 1)]), "")


# Event loops --------------------------------------------------------------------------------------


class AsyncJudge(NodeEvaluator):
    def __init__(self, name: str, judge: Any, deadline: float) -> None:
        super().__init__(name, durable=True)
        self.judge, self.deadline = judge, deadline

    async def evaluate(self, history: History) -> EvaluationResult:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        self.judge()
        return EvaluationResult(1.0, True)


@MODES
@pytest.mark.parametrize("same", [False, True], ids=["of another ArbiterOS", "of the same"])
def test_an_async_evaluator_that_blocks_holds_up_no_other(mode: str, same: bool) -> None:
    """Within one `ArbiterOS` they share an event loop, which is given up as soon as the one that blocks is late."""
    free = threading.Event()
    first = ArbiterOS()
    first.add_evaluator(AsyncJudge("blocks", free.wait, 0.1))
    second = first if same else ArbiterOS()
    second.add_evaluator(AsyncJudge("quick", lambda: None, 5.0))
    try:
        run(first.govern(chain(Spy("work"))), {"log": []}, mode=mode)
        begun = time.monotonic()
        run(second.govern(chain(Spy("work"))), {"log": []}, mode=mode)
        assert time.monotonic() - begun < 3
        assert second.history.entries[-1][-1].evaluation_results["quick"].passed
    finally:
        free.set()


def test_the_event_loop_of_an_arbiter_os_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbiter.evaluations._IDLE", 0.05)

    def loops() -> int:
        return sum(thread.name == "arbiter-loop" for thread in threading.enumerate())

    def judged() -> None:
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluator(AsyncJudge("quick", lambda: None, 5.0))
        arbiter_os.govern(chain(Spy("work"))).invoke({"log": []})
        assert arbiter_os.drain(10)

    gc.collect()
    before = loops()
    for _ in range(5):
        judged()
    gc.collect()
    end = time.monotonic() + 5
    while loops() > before + 1 and time.monotonic() < end:
        time.sleep(0.02)
    assert loops() <= before + 1  # the context of this thread remembers the last run


# What failed --------------------------------------------------------------------------------------


def broken(_: History) -> EvaluationResult:
    raise ValueError("no judge today")


@MODES
def test_a_result_that_is_missing_says_why(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("slow", broken))
    arbiter_os.add_evaluator(Judge("fine", good))
    seen: list[BaseException] = []

    class Reads(EvaluationRouter):
        def route_after(self, history: History, current_output: Any) -> None:
            for name in ("slow", "other"):
                try:
                    history.entries[-1][-1].evaluation_results[name]
                except KeyError as exc:
                    seen.append(exc)

    arbiter_os.add_policy_router(Reads("reads", "slow", "work"))
    run(arbiter_os.govern(chain(Spy("work"))), {"log": []}, mode=mode)
    results = arbiter_os.history.entries[-1][-1].evaluation_results
    says = "evaluator 'slow' gave no result: ValueError: no judge today"
    with pytest.raises(KeyError) as slow:
        results["slow"]
    with pytest.raises(KeyError) as other:
        results["other"]
    for error in (seen[0], slow.value):
        assert isinstance(error, EvaluationError)
        assert str(error) == says
        assert error.evaluator == "slow"
    for error in (seen[1], other.value):
        assert not isinstance(error, EvaluationError)
    assert results.get("slow") is None
    assert "slow" not in results
