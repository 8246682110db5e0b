"""An approval is used once: by late clicks no more, and by a new attempt not as long as another one has it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeTimeoutError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel, ValidationError

from arbiter import ArbiterOS
from arbiter._weaving import asking
from arbiter.checkers import ApprovalChecker
from arbiter.errors import ApprovalUsedError
from arbiter.routers import ErrorRouter
from tests.processes import python
from tests.support import MODES, PATIENCE, LateSaver, Spy, State, asked, chain, run, thread, until


@pytest.mark.lengthy
@MODES
def test_a_failed_node_whose_error_is_handled_uses_its_approval_at_once(mode: str) -> None:
    """Where the graph goes after the error is the node's output, and saved as late."""
    saver = LateSaver()
    calls: list[str] = []

    def pay(state: Any) -> Any:
        calls.append("pay")
        raise ValueError

    def app() -> Any:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
        arbiter_os.add_policy_router(ErrorRouter("sorry", "last", target_nodes=["pay"]))
        return arbiter_os.govern(chain(pay, Spy("last"), checkpointer=saver))

    app().invoke({"log": []}, thread("1"))
    first = threading.Thread(
        target=run, args=(app(), Command(resume="approve"), thread("1")), kwargs={"mode": mode}
    )
    first.start()
    until(lambda: calls)
    time.sleep(0.05)
    with pytest.raises(ApprovalUsedError):
        run(app(), Command(resume="approve"), thread("1"), mode=mode)
    first.join()
    assert calls == ["pay"]


class Size(BaseModel):
    cm: int


@MODES
@pytest.mark.parametrize("by", ["value", "id"])
@pytest.mark.parametrize(
    "asks", ["the node", "a graph as the node", "a graph in the node", "a function in the node"]
)
def test_an_approval_stays_in_force_if_an_answer_does_not_fit_the_schema_of_its_question(
    asks: str, by: str, mode: str
) -> None:
    """The body's own question is answered again. The answer that LangGraph refused is not saved."""

    def pack(state: Any) -> Any:
        sizes: list[Any] = [interrupt(question, response_schema=Size) for question in ("high?", "wide?")]
        return {"log": [f"{high.cm} x {wide.cm}" for high, wide in [sizes]]}

    arbiter_os = ArbiterOS()
    inside: Any = StateGraph(State).add_node("pack", pack).add_edge(START, "pack").compile()
    function: Any = arbiter_os.govern(pack)
    target = "pack" if asks == "a function in the node" else "agent"
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=[target]))

    def call_inside(state: Any) -> Any:
        return inside.invoke(state)

    def call_function(state: Any) -> Any:
        return function(state)

    nodes: dict[str, Any] = {
        "the node": pack,
        "a graph as the node": inside,
        "a graph in the node": call_inside,
        "a function in the node": call_function,
    }
    builder: Any = StateGraph(State).add_node("agent", nodes[asks]).add_edge(START, "agent")
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))

    def give(output: Any, value: Any) -> Any:
        (question,) = output["__interrupt__"]
        return run(app, Command(resume={question.id: value} if by == "id" else value), thread("1"), mode=mode)

    output = give(run(app, {"log": []}, thread("1"), mode=mode), "approve")
    for question in ("high?", "wide?"):
        assert [each.value for each in output["__interrupt__"]] == [question]
        with pytest.raises(ValidationError):
            give(output, {"cm": "tall"})
        output = give(output, {"cm": 7})
    assert output["log"] == ["7 x 7"]


FLAKY = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False, retry_on=ValueError)


def flow_that_tries_again(node: Any, saver: Any) -> Any:
    async def body(state: Any) -> Any:
        return node(state)

    step = cast("Any", task)(retry_policy=FLAKY)(body)

    async def flow(state: Any) -> Any:
        return await step(state)

    return cast("Any", entrypoint)(checkpointer=saver)(flow)


def graph_that_tries_again(node: Any, saver: Any) -> Any:
    inner: Any = (
        StateGraph(State).add_node("node", node, retry_policy=FLAKY).add_edge(START, "node").compile()
    )

    def outer(state: Any) -> Any:
        return inner.invoke(state)

    return chain(outer, checkpointer=saver)


@MODES
@pytest.mark.parametrize("retried", [flow_that_tries_again, graph_that_tries_again])
@pytest.mark.parametrize("failing", ["function", "after it"])
def test_a_retry_inside_a_node_asks_anew_for_a_function(failing: str, retried: Any, mode: str) -> None:
    calls: list[str] = []

    def fail_once(where: str) -> None:
        if where == failing and len(calls) == 1:
            raise ValueError

    def pay(state: Any) -> Any:
        calls.append("pay")
        fail_once("function")
        return {"log": ["pay"]}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    governed = arbiter_os.govern(pay)

    def node(state: Any) -> Any:
        found = governed(state)
        fail_once("after it")
        return found

    app = arbiter_os.govern(retried(node, InMemorySaver()))
    if retried is flow_that_tries_again:
        mode = "async"
    run(app, {"log": []}, thread("1"), mode=mode)
    again = asked(run(app, Command(resume="approve"), thread("1"), mode=mode))
    assert again["note"].startswith("the earlier approval is used")
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay"]
    assert len(calls) == 2


@MODES
@pytest.mark.parametrize("retries", [0, 1])
def test_a_retry_after_an_edge_that_failed_need_not_wait(
    retries: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of the first attempt is not to come."""
    monkeypatch.setattr(asking, "PAUSES", (3.0,))
    pay, edges = Spy("pay"), Spy("edges")

    def edge(state: Any) -> str:
        edges(state)
        if len(edges.calls) == 1:
            raise ValueError
        return END

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", retries=retries, target_nodes=["pay"]))
    builder = StateGraph(State).add_node("pay", pay, retry_policy=FLAKY).add_edge(START, "pay")
    app = arbiter_os.govern(builder.add_conditional_edges("pay", edge, [END]).compile(InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    begun = time.monotonic()
    found = run(app, Command(resume="approve"), thread("1"), mode=mode)
    if not retries:
        assert asked(found)["note"].startswith("the earlier approval is used")
        found = run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert found["log"] == ["pay"]
    assert time.monotonic() - begun < 3


@MODES
@pytest.mark.parametrize("nested", [False, True])
def test_an_earlier_checkpoint_can_be_answered_again(nested: bool, mode: str) -> None:
    """Each time that a human goes back to the question, the function asks, and runs when it is approved."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    governed: Any = arbiter_os.govern(pay)

    def node(state: Any) -> Any:
        return governed(state)

    app = arbiter_os.govern(chain(node if nested else pay, checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    question = app.get_state(thread("1")).config
    run(app, Command(resume="approve"), thread("1"), mode=mode)
    for times in (2, 3):
        again = asked(run(app, Command(resume="approve"), question, mode=mode))
        assert again["note"].startswith("the earlier approval is used")
        assert run(app, Command(resume="approve"), question, mode=mode)["log"] == ["pay"]
        assert len(pay.calls) == times


@pytest.mark.lengthy
@pytest.mark.parametrize("ends", ["later", "cancelled"])
async def test_an_approved_coroutine_may_outlive_its_node(ends: str) -> None:
    """`asyncio.gather` leaves a call alone if one beside it asks. The approval of both counts when both are done."""
    calls: list[int] = []

    async def pay(amount: int) -> int:
        calls.append(amount)
        if len(calls) == 1:
            await asyncio.sleep(0.01 if ends == "later" else PATIENCE)
        return amount

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    governed = arbiter_os.govern(pay)

    async def node(state: Any) -> Any:
        return {"log": [str(each) for each in await asyncio.gather(governed(1), governed(2))]}

    app = arbiter_os.govern(chain(node, checkpointer=InMemorySaver()))
    await app.ainvoke({"log": []}, thread("1"))
    asked(await app.ainvoke(Command(resume="approve"), thread("1")))
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        if ends == "cancelled":
            other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    again = asked(await app.ainvoke(Command(resume="approve"), thread("1")))
    assert again["note"].startswith("the earlier approval is used")
    assert (await app.ainvoke(Command(resume="approve"), thread("1")))["log"] == ["1", "2"]


@pytest.mark.lengthy
def test_an_approved_function_in_a_thread_may_outlive_its_node() -> None:
    """A timeout of the node does not end the thread."""
    calls: list[str] = []

    def pay(state: Any) -> Any:
        calls.append("pay")
        if len(calls) == 1:
            time.sleep(0.2)
        return {"log": ["pay"]}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    governed: Any = arbiter_os.govern(pay)

    async def node(state: Any) -> Any:
        return await asyncio.to_thread(governed, state)

    builder = StateGraph(State).add_node("node", node, timeout=0.05).add_edge(START, "node")
    app = arbiter_os.govern(builder.compile(InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode="async")
    with pytest.raises(NodeTimeoutError):  # at its end, the event loop waits for the thread
        run(app, Command(resume="approve"), thread("1"), mode="async")
    again = asked(run(app, Command(resume="approve"), thread("1"), mode="async"))
    assert again["note"].startswith("the earlier approval is used")
    assert run(app, Command(resume="approve"), thread("1"), mode="async")["log"] == ["pay"]


class SlowReads(InMemorySaver):
    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        time.sleep(0.02)
        return found


@pytest.mark.lengthy
@pytest.mark.parametrize("nested", [False, True])
def test_clicks_that_read_that_a_body_begins_do_not_ask(nested: bool) -> None:
    """Between its note and its first line, too: another click would answer what the second one asks."""
    saver = SlowReads()
    pay = Spy("pay")
    outcomes: list[str] = []

    def app() -> Any:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
        governed: Any = arbiter_os.govern(pay)

        def node(state: Any) -> Any:
            return governed(state)

        return arbiter_os.govern(chain(node if nested else pay, checkpointer=saver))

    def click(number: int) -> None:
        time.sleep(0.008 * number)
        try:
            found = app().invoke(Command(resume="approve"), thread("1"))
            outcomes.append("asked" if "__interrupt__" in found else "done")
        except ApprovalUsedError:
            outcomes.append("used")

    app().invoke({"log": []}, thread("1"))
    clicks = [threading.Thread(target=click, args=(number,)) for number in range(12)]
    for each in clicks:
        each.start()
    for each in clicks:
        each.join()
    assert len(pay.calls) == 1
    assert "asked" not in outcomes


FORKS = """
import os, sys, threading
from typing import TypedDict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from arbiter import ArbiterOS
from arbiter.checkers import ApprovalChecker

began, over = threading.Event(), threading.Event()

class State(TypedDict):
    amount: int

def pay(state):
    began.set()
    over.wait(60)
    raise ValueError

def invoke(given):
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
        graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
        return arbiter_os.govern(graph).invoke(given, {"configurable": {"thread_id": "1"}})

def click():
    try:
        invoke(Command(resume="approve"))
    except ValueError:
        pass

invoke({"amount": 1})
clicks = threading.Thread(target=click)
clicks.start()
began.wait(60)
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.read(read, 1)
    try:
        found = invoke(Command(resume="approve"))
    except BaseException as error:
        print(type(error).__name__, flush=True)
        os._exit(1)
    os._exit(0 if "__interrupt__" in found else 2)
over.set()
clicks.join()
os.write(write, b"x")
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.lengthy
def test_a_forked_process_can_ask_for_what_failed_in_its_parent(tmp_path: Path) -> None:
    command = [*python("-W", "ignore", "-c", FORKS), str(tmp_path / "run.db")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORKS_AS_IT_SAVES = """
import os, threading
from typing import TypedDict
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from arbiter import ArbiterOS
from arbiter.checkers import ApprovalChecker

saving = threading.Event()

class Saver(InMemorySaver):
    def put_writes(self, config, writes, task_id, task_path=""):
        if threading.current_thread() is clicks and writes[0][0] == "__arbiter_note":
            saving.set()
            threading.Event().wait()
        super().put_writes(config, writes, task_id, task_path)

class State(TypedDict):
    amount: int

clicks = None
arbiter_os = ArbiterOS()
arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
graph = StateGraph(State).add_node("pay", lambda state: {"amount": 2}).add_edge(START, "pay").compile(Saver())
app = arbiter_os.govern(graph)
config = {"configurable": {"thread_id": "1"}}
app.invoke({"amount": 1}, config)
clicks = threading.Thread(target=app.invoke, args=(Command(resume="approve"), config), daemon=True)
clicks.start()
saving.wait(60)
child = os.fork()
if child == 0:
    try:
        found = app.invoke(Command(resume="approve"), config)
    except BaseException as error:
        print(type(error).__name__, flush=True)
        os._exit(1)
    os._exit(0 if found == {"amount": 2} else 2)
assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


@pytest.mark.lengthy
def test_a_forked_process_can_use_an_answer_that_its_parent_was_saving() -> None:
    """The thread that saved it is not in the child, where it would be saved for ever."""
    command = python("-W", "ignore", "-c", FORKS_AS_IT_SAVES)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


KILLED_OR_CANCELLED = """
import asyncio, os, signal, sys
from typing import TypedDict
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from arbiter import ArbiterOS
from arbiter.checkers import ApprovalChecker

database, ends = sys.argv[1:]
config = {"configurable": {"thread_id": "1"}}

class State(TypedDict, total=False):
    paid: list[int]

class Cents(BaseModel):
    cents: int

async def pay(state):
    if ends == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if ends == "cancelled":
        run.cancel()
        await asyncio.sleep(60)
    return {"paid": [interrupt(question, response_schema=Cents).cents for question in ("net?", "tax?")]}

async def main():
    global run
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay")
    async with AsyncSqliteSaver.from_conn_string(database) as saver:
        app = arbiter_os.govern(graph.compile(saver))

        async def give(output, value):
            (question,) = output["__interrupt__"]
            return await app.ainvoke(Command(resume={question.id: value}), config)

        if ends != "no":
            run = asyncio.ensure_future(give(await app.ainvoke({}, config), "approve"))
            await asyncio.wait([run])
            assert run.cancelled()
            return
        output = await app.ainvoke(None, config)
        assert "approval is used" in output["__interrupt__"][0].value["note"]
        output = await give(output, "approve")
        for question in ("net?", "tax?"):
            assert output["__interrupt__"][0].value == question
            output = await give(output, {"cents": len(question)})
        assert output == {"paid": [4, 4]}

asyncio.run(main())
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("ends", ["killed", "cancelled"])
def test_a_run_that_ended_in_an_approved_body_can_go_on_without_an_answer(tmp_path: Path, ends: str) -> None:
    """LangGraph saves no answer that was given by its id before the body ends or pauses. The approval is asked for
    again, since it may be used."""
    told: list[tuple[int, str]] = []
    for end in (ends, "no"):
        command = [*python("-W", "ignore", "-c", KILLED_OR_CANCELLED), str(tmp_path / "run.db"), end]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        told.append((done.returncode, done.stderr))
    assert told == [(-signal.SIGKILL if ends == "killed" else 0, ""), (0, "")]


@MODES
@pytest.mark.parametrize("by", ["value", "id"])
def test_an_answer_that_is_repeated_after_an_error_is_not_for_the_next_question_of_a_function(
    by: str, mode: str
) -> None:
    """The function is asked for again, and then asks its own question itself."""
    fails = [True]

    def pay(state: Any) -> Any:
        if fails.pop():
            raise ValueError
        return {"log": [interrupt("to whom?")]}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    function: Any = arbiter_os.govern(pay)

    def shop(state: Any) -> Any:
        return function(state)

    app = arbiter_os.govern(chain(shop, checkpointer=InMemorySaver()))

    def give(output: Any, value: Any) -> Any:
        (question,) = output["__interrupt__"]
        return run(app, Command(resume={question.id: value} if by == "id" else value), thread("1"), mode=mode)

    first = run(app, {"log": []}, thread("1"), mode=mode)
    with pytest.raises(ValueError):
        give(first, "approve")
    fails.append(False)
    again = give(first, "approve")
    assert "approval is used" in asked(again)["note"]
    fails.append(False)
    paused = give(again, "approve")
    assert asked(paused) == "to whom?"
    fails.append(False)
    assert give(paused, "Ann")["log"] == ["Ann"]


@MODES
@pytest.mark.parametrize(
    "asks", ["the body", "a graph as the node", "an edge", "a node inside", "a function inside"]
)
@pytest.mark.parametrize("first", ["the node", "the body"])
def test_an_answer_does_not_count_for_the_next_question_if_a_run_goes_on_without_one(
    first: str, asks: str, mode: str
) -> None:
    """Neither for one of Arbiter's in the body, nor after an approval for one that the body or an edge asks itself."""
    is_ours = asks.endswith("inside")
    if first == "the body" and not is_ours:
        pytest.skip("both questions are LangGraph's")
    answers: list[Any] = []

    def ask(state: Any) -> Any:
        answers.append(interrupt("sure?"))
        return {"log": ["asked"]}

    arbiter_os = ArbiterOS()
    targets = ["node"] * (first == "the node") + ["last"] * is_ours
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=targets))
    last = Spy("last")
    inner: Any = arbiter_os.govern(chain(Spy("start"), last))
    function: Any = arbiter_os.govern(last)

    def node(state: Any) -> Any:
        if first == "the body":
            interrupt("go on?")
        inside: Any = {"the body": ask, "a node inside": inner.invoke, "a function inside": function}
        return inside.get(asks, dict)({"log": []})

    def route(state: Any) -> str:
        if asks == "an edge":
            ask(state)
        return END

    body: Any = chain(ask) if asks == "a graph as the node" else node
    builder: Any = StateGraph(State).add_node("node", body).add_edge(START, "node")
    builder.add_conditional_edges("node", route, [END])
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))

    def go(value: Any) -> Any:
        return [each.value for each in run(app, value, thread("1"), mode=mode).get("__interrupt__", ())]

    go({"log": []})
    shown = go(Command(resume="approve"))
    for _ in range(2):
        assert go(None) == shown != []
    assert (answers, last.calls) == ([], [])
    assert go(Command(resume="approve")) == []
    assert (answers, len(last.calls)) == ((["approve"], 0) if not is_ours else ([], 1))
