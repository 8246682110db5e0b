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
from tests.processes import python
from tests.support import MODES, Hold, Judge, Spy, chain, good, run, until

pytestmark = pytest.mark.lengthy

# Forks --------------------------------------------------------------------------------------------

FORKED = """
import asyncio, os, threading, warnings
from arbiter import ArbiterOS, EvaluationResult, EvaluationRouter, NodeEvaluator
from tests.support import Judge, Spy, chain

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
judged, parent = [], os.getpid()
hold, held, go_on = threading.Event(), threading.Event(), threading.Event()

def judge(history):
    judged.append(os.getpid())
    if hold.is_set() and os.getpid() == parent:
        held.set()
        go_on.wait(60)
    return EvaluationResult(0.0, False)

class AsyncJudge(NodeEvaluator):
    async def evaluate(self, history):
        await asyncio.sleep(0)
        return judge(history)

def forked(kind, gated):
    for event in (hold, held, go_on):
        event.clear()
    evaluator = AsyncJudge("quality") if kind == "async" else Judge("quality", judge)
    evaluator.blocking = kind == "slow"
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    if gated:
        arbiter_os.add_policy_router(EvaluationRouter("gate", "quality", "mend", target_nodes=["work"]))
    app = arbiter_os.govern(chain(Spy("work"), Spy("last"), extra=[Spy("mend")]))
    app.invoke({"log": []})
    assert arbiter_os.drain(60)
    hold.set()
    threading.Thread(target=app.invoke, args=({"log": []},)).start()
    assert held.wait(60)  # the parent is in the middle of an evaluation, and holds its locks
    if (pid := os.fork()) == 0:
        judged.clear()
        log = app.invoke({"log": []})["log"]
        drained = arbiter_os.drain(20)
        item = arbiter_os.history.last(node="work")
        fine = log == (["work", "mend"] if gated else ["work", "last"])
        fine = fine and len(judged) == 2 and not item.evaluation_results["quality"].passed
        print(kind, gated, "child", drained, fine, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    go_on.set()
    print(kind, gated, "parent", arbiter_os.drain(20), flush=True)

for kind in ("quick", "slow", "async"):
    for gated in (False, True):
        forked(kind, gated)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_evaluations_go_on_in_the_child_of_a_fork() -> None:
    """As with `gunicorn --preload` or Celery: the app ran before the fork, and its background is at work. The
    results are unread, or read by a gate."""
    done = subprocess.run(python("-c", FORKED), capture_output=True, text=True, timeout=120)
    expected = [
        line
        for kind in ("quick", "slow", "async")
        for gated in (False, True)
        for line in (f"{kind} {gated} child True True", f"{kind} {gated} parent True")
    ]
    assert done.stdout.splitlines() == expected, done.stderr[-2000:]


LOCKED = """
import faulthandler, gc, os, sys, threading, types, warnings
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from arbiter.checkers import BudgetChecker, RateLimitChecker, ToolsChecker
from arbiter.memory import EvaluationCycle
from arbiter.personas import Intervention, Persona
from tests.personas.gate_support import DIMENSIONS, Speaker, enabled, gated, hello
from tests.personas.personas_support import Says
from tests.support import thread
from tests.memory.test_cycle import E

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

LOCKS = type(threading.Lock()), type(threading.RLock())

def locks():
    \"""Those of all objects and modules of Arbiter.\"""
    for thing in gc.get_objects():
        of = thing.__name__ if isinstance(thing, types.ModuleType) else type(thing).__module__
        if isinstance(of, str) and of.startswith("arbiter"):
            slots = (name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ()))
            for name in {*getattr(thing, "__dict__", ()), *slots}:
                if isinstance(lock := getattr(thing, name, None), LOCKS):
                    yield f"{of}.{name}", lock

def answer(request):
    is_gate = request.propositions[0] in DIMENSIONS
    return {"score": 9, "reasoning": "fine"} if is_gate else {"result": False}

judge, jim = Says(answer), Persona("Jim", "A calm salesman.", "jim")
app, gate, arbiter_os = gated(judge, enabled("fluency"), Speaker("Hi"), checkpointer=InMemorySaver())
arbiter_os.add_advisor(Intervention(jim, judge=judge).set_textual_precondition("bored").set_effect("Sing."))
arbiter_os.add_policy_checker(BudgetChecker("budget", calls=100, per="user"))
arbiter_os.add_policy_checker(RateLimitChecker("rate", calls=100, per_seconds=1))
arbiter_os.add_policy_checker(ToolsChecker("tools", ["search"]))
arbiter_os.add_evaluation_cycle(EvaluationCycle(store=InMemoryStore()))
arbiter_os.add_evaluator(E("remembers", []))
config = {"configurable": {"thread_id": "1", "user_id": "bob"}}
assert app.invoke(hello(), config)["messages"][-1].text == "Hi"

held, ready, go_on = list(locks()), threading.Event(), threading.Event()

def hold():
    for name, lock in held:
        assert lock.acquire(timeout=60), name
    ready.set()
    go_on.wait()
    for _, lock in held:
        lock.release()

holder = threading.Thread(target=hold)
holder.start()
assert ready.wait(60)
if (pid := os.fork()) == 0:
    faulthandler.dump_traceback_later(60, exit=True)  # if it hangs
    said = app.invoke(hello(), config)["messages"][-1].text
    score = arbiter_os.history.last().evaluation_results["remembers"].score
    hanging = [name for name, lock in locks() if not lock.acquire(timeout=5)]
    print("child", said, score, hanging, flush=True)
    os._exit(0)
print("parent", os.waitpid(pid, 0)[1], flush=True)
go_on.set()
holder.join()
print(*sorted({name for name, _ in held}), file=sys.stderr)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_no_lock_that_another_thread_held_hangs_the_child_of_a_fork() -> None:
    """Budgets, rates, tools, gates, interventions, memory, weaving: each lock is held while the process forks."""
    done = subprocess.run(python("-c", LOCKED), capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["child Hi 0.5 []", "parent 0"], done.stderr[-2000:]
    for module in (
        "checkers._budget",
        "checkers._rate_limit",
        "checkers._tools",
        "personas",
        "memory",
        "_weaving",
    ):
        assert f"arbiter.{module}" in done.stderr


IN_A_TURN = """
import asyncio, os, signal, threading, warnings
from arbiter.memory import HandlerOutcome, MemoryStore
from langgraph.store.memory import InMemoryStore
from tests.memory.test_cycle import E, config, governed, hi, last

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
begun, go_on = threading.Event(), threading.Event()
parent, store = os.getpid(), MemoryStore(InMemoryStore())

async def handle(ctx):
    async with store.lock("one", "place"):
        begun.set()
        while os.getpid() == parent and not go_on.is_set():
            await asyncio.sleep(0.002)
    return HandlerOutcome(0.5, True, "done")

arbiter_os, app = governed(E("remembers", [], handler=handle), store=store)
turn = threading.Thread(target=app.invoke, args=(hi(), config()))
turn.start()
assert begun.wait(60)
if (pid := os.fork()) == 0:
    signal.alarm(60)  # ends it if it hangs
    app.invoke(hi(), config())
    print("child", last(arbiter_os).evaluation_results["remembers"].score, flush=True)
    os._exit(0)
print("parent", os.waitpid(pid, 0)[1], flush=True)
go_on.set()
turn.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_turn_of_memory_in_the_parent_holds_up_none_in_the_child() -> None:
    """Neither by the turns of its room, which follow one another, nor by a record that it writes."""
    done = subprocess.run(python("-c", IN_A_TURN), capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["child 0.5", "parent 0"], done.stderr[-2000:]


WITH_DEADLINES = """
import os, signal, warnings
from arbiter import ArbiterOS
from tests.support import Check, Spy, allow, chain

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
arbiter_os = ArbiterOS()
arbiter_os.add_policy_checker(Check("slow", allow, deadline=60))
app = arbiter_os.govern(chain(Spy("a")))
app.invoke({"log": []})
if (pid := os.fork()) == 0:
    signal.alarm(30)  # ends it if it hangs
    print("child", app.invoke({"log": []})["log"], flush=True)
    os._exit(0)
print("parent", os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    done = subprocess.run(python("-c", WITH_DEADLINES), capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["child ['a']", "parent 0"], done.stderr[-2000:]


# The end of the process ---------------------------------------------------------------------------

SCRIPT = """
import sys, time
from arbiter import ArbiterOS, EvaluationResult
import arbiter._lifecycle.background
from tests.support import Judge, Spy, chain

arbiter._lifecycle.background._EXIT_SECONDS = PATIENCE

def judge(history):
    time.sleep(SECONDS)
    print("judged", flush=True)
    return EvaluationResult(1.0, True)

arbiter_os = ArbiterOS()
arbiter_os.add_evaluator(Judge("quality", judge))
arbiter_os.govern(chain(Spy("one"), Spy("two"))).invoke({"log": []})
"""


def ended(seconds: float, patience: float) -> subprocess.CompletedProcess[str]:
    script = f"SECONDS, PATIENCE = {seconds}, {patience}\n{SCRIPT}"
    return subprocess.run(python("-c", script), capture_output=True, text=True, timeout=100)


def test_the_end_of_a_script_waits_for_its_scores() -> None:
    done = ended(1.2, 30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "judged\njudged\n", "")


def test_a_judge_that_hangs_does_not_delay_the_exit_and_the_loss_is_reported() -> None:
    done = ended(3600, 1)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "2 evaluations were not done when the process ended" in line
    assert "call arbiter_os.drain()" in line


def test_an_evaluator_that_falls_behind_is_reported_once(
    hold: Hold, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node runs that wait for it stay in memory, however few the history keeps."""
    monkeypatch.setattr("arbiter._lifecycle.background.MANY", 3)
    arbiter_os = ArbiterOS(keep=1)
    arbiter_os.add_evaluator(AsyncJudge("slow", hold, 60.0, durable=False))
    app = arbiter_os.govern(chain(Spy("work")))
    for _ in range(5):
        app.invoke({"log": []})

    def told() -> list[str]:
        return [line for line in caplog.messages if "falls behind" in line]

    (line,) = until(told)
    assert line.startswith("evaluator slow falls behind: 3 node runs wait for it")
    hold.release()
    assert arbiter_os.drain(60)
    assert told() == [line]


def test_a_slow_evaluator_that_claims_to_be_quick_is_reported_once_among_quick_ones(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbiter._lifecycle.background.MANY", 3)
    begun, released = threading.Event(), threading.Event()

    def held(history: History) -> EvaluationResult:
        begun.set()
        released.wait(60)
        return good(history)

    arbiter_os = ArbiterOS(keep=1)
    for name, judge in (("before", good), ("slow", held), ("after", good)):
        evaluator = Judge(name, judge)
        evaluator.blocking = False
        arbiter_os.add_evaluator(evaluator)
    app = arbiter_os.govern(chain(Spy("work")))
    app.invoke({"log": []})
    assert begun.wait(60)
    for _ in range(5):
        app.invoke({"log": []})
    released.set()
    assert arbiter_os.drain(60)
    (line,) = [line for line in caplog.messages if "falls behind" in line]
    assert line.startswith("evaluator slow falls behind: 3 node runs wait for it")
    assert "leave out its `blocking = False`" in line


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
    done = subprocess.run(python("-c", script), capture_output=True, text=True, timeout=60)
    said = sorted(done.stdout.split())
    assert (done.returncode, said, done.stderr) == (0, sorted(["2", *["judged"] * 2 * (before + 1)]), "")


# Event loops --------------------------------------------------------------------------------------


class AsyncJudge(NodeEvaluator):
    def __init__(self, name: str, judge: Any, deadline: float, *, durable: bool = True) -> None:
        super().__init__(name, durable=durable)
        self.judge, self.deadline = judge, deadline

    async def evaluate(self, history: History) -> EvaluationResult:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        self.judge()
        return EvaluationResult(1.0, True)


@MODES
@pytest.mark.parametrize("same", [False, True], ids=["of another ArbiterOS", "of the same"])
def test_an_async_evaluator_that_blocks_holds_up_no_other(mode: str, same: bool, hold: Hold) -> None:
    """Within one `ArbiterOS` they share an event loop, which is given up as soon as the one that blocks is late."""
    first = ArbiterOS()
    first.add_evaluator(AsyncJudge("blocks", hold, 0.1))
    second = first if same else ArbiterOS()
    second.add_evaluator(AsyncJudge("quick", lambda: None, 30.0))
    run(first.govern(chain(Spy("work"))), {"log": []}, mode=mode)
    run(second.govern(chain(Spy("work"))), {"log": []}, mode=mode)
    assert second.history.entries[-1][-1].evaluation_results["quick"].passed


@pytest.mark.parametrize("waits", [True, False], ids=["after its scores", "before its scores"])
def test_the_event_loop_of_an_arbiter_os_goes_with_it(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbiter._lifecycle.background._IDLE", 0.05)

    def loops() -> int:
        return sum(thread.name == "arbiter-loop" for thread in threading.enumerate())

    scored: list[None] = []

    def judged() -> None:
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluator(AsyncJudge("quick", lambda: scored.append(None), 30.0, durable=waits))
        arbiter_os.govern(chain(Spy("work"))).invoke({"log": []})
        assert not waits or arbiter_os.drain(60)

    gc.collect()
    before = loops()
    for _ in range(5):
        judged()
        gc.collect()
    until(lambda: len(scored) == 5)
    gc.collect()
    until(lambda: loops() <= before + 1)  # the context of this thread remembers the last run


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


# The processes of these tests ---------------------------------------------------------------------

PROGRAMS = {
    "exits": ["-c", "import sys; print(sys.argv, __name__, repr(sys.path[0]), input()); sys.exit(3)", "x"],
    "raises": ["-c", "1 / 0"],
    "warns": ["-W", "error", "-c", "import warnings; warnings.warn('old')"],
    "is killed": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
    "says goodbye": ["-c", "import atexit; atexit.register(print, 'bye'); print('hello')"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_forked_program_ends_as_one_with_an_interpreter_of_its_own(program: str) -> None:
    def ended(command: list[str]) -> tuple[int, str, list[str]]:
        done = subprocess.run(command, input="given\n", capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr.splitlines()[-1:]

    arguments = PROGRAMS[program]
    assert ended(python(*arguments)) == ended([sys.executable, *arguments])


def test_a_forked_program_is_killed_with_its_client() -> None:
    endless = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    with subprocess.Popen(python("-c", endless), stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        client.kill()
        assert client.stdout.read() == ""  # the end of the stream, which the program held open
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(0.01)
