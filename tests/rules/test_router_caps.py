"""The effect of a router at its cap: the normal edges, the end, or the best attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send
from pydantic import BaseModel

from arbiter import (
    ArbiterOS,
    ConfigurationError,
    EvaluationResult,
    EvaluationRouter,
    History,
    MetricThresholdPolicyRouter,
    ThresholdEvaluator,
)
from arbiter._lifecycle.routing import with_update
from arbiter.errors import ParameterError
from arbiter.routers import ErrorRouter, EscalationRouter
from tests.graphs import of
from tests.support import MODES, Judge, Route, Spy, State, chain, run, statuses, thread

EMPTY: Any = {"log": [], "amount": 0}


class Writer:
    """Returns one draft after another, each with a score; counts its calls."""

    def __init__(self, scores: Sequence[float], name: str = "write") -> None:
        self.__name__ = name
        self.scores = list(scores)
        self.calls = 0

    def __call__(self, state: Any) -> Any:
        score = self.scores[self.calls]
        self.calls += 1
        return {"log": [f"draft {score}"], "score": score}


def reflecting(
    write: Any, saver: Any = None, keep: int | None = 1000, **parameters: Any
) -> tuple[ArbiterOS, Any]:
    """`write` → `send`; a draft below 0.5 goes to `reflect`, which leads back to `write`."""
    arbiter_os = ArbiterOS(keep=keep)
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5, target_nodes=["write"]))
    given: dict[str, Any] = {"max_redirects": 2, "on_cap": "best_attempt", **parameters}
    arbiter_os.add_policy_router(EvaluationRouter("again", "quality", "reflect", **given))
    return arbiter_os, arbiter_os.govern(graph_of(write, saver))


def graph_of(write: Any, saver: Any = None) -> Any:
    builder = StateGraph(State)
    builder.add_node("write", write)
    builder.add_node("reflect", Spy("reflect"))
    builder.add_node("send", Spy("send"))
    builder.add_edge(START, "write")
    builder.add_edge("write", "send")
    builder.add_edge("reflect", "write")
    return builder.compile(checkpointer=saver)


# What happens at the cap --------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("kind", ["evaluation", "metric"])
@pytest.mark.parametrize(
    ("on_cap", "score", "last"),
    [("continue", 0.1, "send"), ("end", 0.1, "draft 0.1"), ("best_attempt", 0.4, "send")],
)
def test_the_cap_does_what_it_says(on_cap: Any, score: float, last: str, kind: str, mode: str) -> None:
    write = Writer([0.3, 0.4, 0.1])
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5, target_nodes=["write"]))
    if kind == "evaluation":
        router: Any = EvaluationRouter("again", "quality", "reflect", max_redirects=2, on_cap=on_cap)
    else:
        router = MetricThresholdPolicyRouter(
            "again",
            "score",
            0.5,
            "reflect",
            target_nodes=["write"],
            max_redirects=2,
            on_cap=on_cap,
            best_by="quality",
        )
    arbiter_os.add_policy_router(router)
    result = run(arbiter_os.govern(graph_of(write)), EMPTY, mode=mode)
    assert (result["score"], result["log"][-1], write.calls) == (score, last, 3)
    item = arbiter_os.history.last(node="write")
    assert item is not None
    assert "max_redirects=2 reached; it did not redirect to 'reflect'" in item.notes["router again"]
    assert item.redirected_to == (END if on_cap == "end" else None)
    if on_cap == "best_attempt":
        assert item.output_state["score"] == 0.4
        assert "took the best attempt" in item.notes["router again"]
        assert "quality=0.40" in item.notes["router again"]


@MODES
@pytest.mark.parametrize(
    ("scores", "taken"),
    [
        ([0.1, 0.2, 0.3], "draft 0.3"),
        ([0.3, 0.2, 0.1], "draft 0.3"),
        ([0.2, 0.4, 0.2], "draft 0.4"),
        ([0.2, 0.2, 0.1], "draft 0.2"),
    ],
)
def test_the_best_is_taken_wherever_it_was(scores: Any, taken: str, mode: str) -> None:
    _, app = reflecting(Writer(scores))
    assert run(app, EMPTY, mode=mode)["log"][-2:] == [taken, "send"]


class Numbered(Writer):
    """Its drafts differ, also where their scores do not."""

    def __call__(self, state: Any) -> Any:
        return {**super().__call__(state), "log": [f"draft {self.calls}"]}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize(
    ("scores", "taken"), [([0.2, 0.2, 0.2], 3), ([0.2, 0.2, 0.1], 2), ([0.2, 0.1, 0.2], 3)]
)
def test_of_equals_the_latest_is_taken(scores: Any, taken: int, mode: str) -> None:
    _, app = reflecting(Numbered(scores))
    assert run(app, EMPTY, mode=mode)["log"][-2:] == [f"draft {taken}", "send"]


@MODES
def test_attempts_without_a_score_do_not_count(mode: str) -> None:
    def judge(history: History) -> EvaluationResult:
        score = history.entries[-1][-1].output_state["score"]
        if score == 0.9:
            raise ZeroDivisionError("no opinion")
        return EvaluationResult(score, False)

    write = Writer([0.3, 0.9, 0.9])
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", judge, target_nodes=["write"]))
    router = Route("again", lambda h, o: "reflect", target_nodes=["write"], max_redirects=2)
    router.on_cap, router.best_by = "best_attempt", "quality"
    arbiter_os.add_policy_router(router)
    assert run(arbiter_os.govern(graph_of(write)), EMPTY, mode=mode)["score"] == 0.3


@MODES
def test_with_no_score_at_all_the_last_is_taken(mode: str) -> None:
    def judge(history: History) -> EvaluationResult:
        raise ZeroDivisionError("no opinion")

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", judge))
    router = Route("again", lambda h, o: "reflect", target_nodes=["write"], max_redirects=1)
    router.on_cap, router.best_by = "best_attempt", "quality"
    arbiter_os.add_policy_router(router)
    app = arbiter_os.govern(graph_of(Writer([0.3, 0.2])))
    assert run(app, EMPTY, mode=mode)["log"][-2:] == ["draft 0.2", "send"]


@MODES
def test_each_run_of_a_thread_has_attempts_of_its_own(mode: str) -> None:
    """A better draft of an earlier run answered another question."""
    write = Writer([0.4, 0.3, 0.2, 0.1, 0.2, 0.15])
    _, app = reflecting(write, InMemorySaver())
    assert run(app, EMPTY, thread("1"), mode=mode)["score"] == 0.4
    assert run(app, EMPTY, thread("1"), mode=mode)["score"] == 0.2


@MODES
def test_attempts_are_those_of_the_node_itself(mode: str) -> None:
    """Another node that is judged by the same evaluator, in this graph or in a subgraph, has attempts of its own."""
    inner = StateGraph(State)
    inner.add_node("write", lambda state: {"log": ["inner 0.45"], "score": 0.45})
    inner.add_edge(START, "write")
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"log": ["first 0.49"], "score": 0.49})
    builder.add_node("team", inner.compile())
    builder.add_node("write", Writer([0.3, 0.2]))
    builder.add_node("send", Spy("send"))
    for edge in ((START, "first"), ("first", "team"), ("team", "write"), ("write", "send")):
        builder.add_edge(*edge)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5, durable=True))
    arbiter_os.add_policy_router(
        EvaluationRouter(
            "again", "quality", "write", target_nodes=["write"], max_redirects=1, on_cap="best_attempt"
        )
    )
    assert run(arbiter_os.govern(builder), EMPTY, mode=mode)["score"] == 0.3


@MODES
def test_in_a_subgraph_the_attempts_are_those_of_this_call(mode: str) -> None:
    inner = graph_of(Writer([0.4, 0.3, 0.2, 0.1, 0.2, 0.15]))
    builder = StateGraph(State)
    for name in ("one", "two"):
        builder.add_node(name, inner)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    arbiter_os, _ = reflecting(Writer([]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    assert run(app, EMPTY, thread("1"), mode=mode)["score"] == 0.2


# Found again --------------------------------------------------------------------------------------


def interrupted_before_send(path: Path, scores: Any, **more: Any) -> Any:
    """Each draft is written by a process of its own."""

    def process(write: Any, given: Any) -> Any:
        with SqliteSaver.from_conn_string(str(path)) as saver:
            _, app = reflecting(write, saver, **more)
            return app.invoke(given, thread("1"), interrupt_after=["reflect"])

    result = None
    for number, score in enumerate(scores):
        result = process(Writer([score]), None if number else EMPTY)
    return result


def test_the_best_attempt_of_another_process_is_found(tmp_path: Path) -> None:
    """Its update is read back from what the checkpointer holds of it."""
    result = interrupted_before_send(tmp_path / "db", [0.2, 0.4, 0.1])
    assert (result["score"], result["log"][-2:]) == (0.4, ["draft 0.4", "send"])


def test_the_best_attempt_of_another_async_process_is_found(tmp_path: Path) -> None:
    async def process(write: Any, given: Any) -> Any:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            _, app = reflecting(write, saver)
            return await app.ainvoke(given, thread("1"), interrupt_after=["reflect"])

    result: Any = None
    for number, score in enumerate([0.2, 0.4, 0.1]):
        result = asyncio.run(process(Writer([score]), None if number else EMPTY))
    assert (result["score"], result["log"][-2:]) == (0.4, ["draft 0.4", "send"])


@MODES
def test_the_best_attempt_is_found_when_memory_has_let_go_of_it(mode: str) -> None:
    _, app = reflecting(Writer([0.4, 0.3, 0.2]), InMemorySaver(), 1)
    assert run(app, EMPTY, thread("1"), mode=mode)["score"] == 0.4


@MODES
def test_a_lost_best_attempt_leaves_the_last_attempt_and_an_error(mode: str) -> None:
    arbiter_os, app = reflecting(Writer([0.4, 0.3, 0.2]), None, 2)
    assert run(app, EMPTY, mode=mode)["score"] == 0.2
    item = arbiter_os.history.last(node="write")
    assert item is not None
    assert "could not be found again; the last one was taken" in item.errors["router again"]


def test_a_fork_has_the_attempts_that_led_to_it(tmp_path: Path) -> None:
    """Later node runs of the origin are not part of its past, although the checkpointer still has them."""
    saver = InMemorySaver()
    _, app = reflecting(Writer([0.1, 0.45, 0.2, 0.3, 0.2]), saver)
    assert app.invoke(EMPTY, thread("1"))["score"] == 0.45
    after_first = [
        s
        for s in app.get_state_history(thread("1"))
        if s.next == ("write",) and s.values["log"] == ["draft 0.1", "reflect"]
    ]
    assert app.invoke(None, after_first[0].config)["score"] == 0.3


class Draft(BaseModel):
    log: list[str]
    score: float


def shapes(score: float) -> dict[str, Any]:
    update: dict[str, Any] = {"log": [f"draft {score}"], "score": score}
    return {
        "dict": update,
        "pydantic": Draft(**update),
        "Command": Command(update=update, goto=f"after {score}"),
        "pairs": Command(update=[("log", update["log"]), ("score", score)], goto=f"after {score}"),
        "commands": [
            Command(update={"log": ["a"]}),
            Command(update={"log": update["log"], "score": score}, goto=f"after {score}"),
        ],
    }


@pytest.mark.lengthy
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("shape", shapes(0.0))
def test_the_update_is_of_the_best_and_the_way_on_of_the_last(
    shape: str, elsewhere: bool, tmp_path: Path
) -> None:
    """The same, whether the best attempt is in memory or comes from the checkpointer."""

    def process(scores: Sequence[float], given: Any) -> Any:
        drafts = iter(scores)
        builder = StateGraph(State)
        builder.add_node("write", lambda state: shapes(next(drafts))[shape])
        builder.add_node("reflect", Spy("reflect"))
        for name in ("send", "after 0.4", "after 0.1"):
            builder.add_node(name, Spy(name))
        builder.add_edge(START, "write")
        builder.add_edge("write", "send")
        builder.add_edge("reflect", "write")
        arbiter_os, _ = reflecting(Writer([]), max_redirects=1)
        with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            app = arbiter_os.govern(builder.compile(checkpointer=saver))
            return app.invoke(given, thread("1"), interrupt_after=["reflect"])

    if elsewhere:
        process([0.4], EMPTY)
        result = process([0.1], None)
    else:
        drafts = [0.4, 0.1]
        builder_result = process(drafts, EMPTY)
        assert builder_result["score"] == 0.4
        result = process([0.1], None)
    extra = ["a"] if shape == "commands" else []
    ways = ["send"] if shape in ("dict", "pydantic") else ["after 0.1", "send"]
    assert result["log"] == [*extra, "draft 0.4", "reflect", *extra, "draft 0.4", *ways]
    assert result["score"] == 0.4


def test_with_update_keeps_the_command_to_the_parent() -> None:
    better = Command(update={"a": 1}, goto="x")
    last: Any = Command(graph=Command.PARENT, update={"a": 2}, goto="y")
    assert with_update(last, better) == Command(graph=Command.PARENT, update={"a": 1}, goto="y")
    assert with_update({"a": 2}, {"a": 1}) == {"a": 1}
    assert with_update(None, {"a": 1}) == {"a": 1}


@MODES
def test_a_fan_out_does_not_lose_its_branches(mode: str) -> None:
    """Siblings of one superstep are no attempts of each other."""

    def draft(state: State) -> Any:
        return {"log": [f"draft {state.get('score')}"]}

    builder = StateGraph(State)
    builder.add_node("write", draft)
    builder.add_node("reflect", Spy("reflect"))
    builder.add_conditional_edges(
        START, of(lambda state: [Send("write", {"score": n / 10}) for n in range(3)]), ["write"]
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(
        Judge(
            "quality",
            lambda h: EvaluationResult(h.entries[-1][-1].input_state["score"], False),
            target_nodes=["write"],
        )
    )
    arbiter_os.add_policy_router(
        EvaluationRouter("again", "quality", "reflect", max_redirects=0, on_cap="best_attempt")
    )
    result = run(arbiter_os.govern(builder), EMPTY, mode=mode)
    assert result["log"] == ["draft 0.0", "draft 0.1", "draft 0.2"]


@MODES
@pytest.mark.parametrize("max_redirects", [0, 1])
def test_a_piece_of_work_is_not_replaced_by_another_one(max_redirects: int, mode: str) -> None:
    """The first section is done; the next one is other work, however well the first was scored."""
    drafts = {"a": 0.8, "b": 0.5}

    def write(state: Any) -> dict[str, Any]:
        return {"log": [state["section"]], "score": drafts[state["section"]]}

    def next_section(state: Any) -> Any:
        return cast(Any, Command)(goto=Send("write", {"section": "b"}))

    builder: Any = StateGraph(State)
    builder.add_node("write", write)
    builder.add_node("next", next_section, destinations=("write",))
    builder.add_node("reflect", Spy("reflect"))
    builder.add_conditional_edges(START, of(lambda _: [Send("write", {"section": "a"})]), ["write"])
    builder.add_conditional_edges("write", of(lambda s: END if "b" in s["log"] else "next"), ["next", END])
    builder.add_conditional_edges("reflect", of(lambda _: [Send("write", {"section": "a"})]), ["write"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.9, target_nodes=["write"]))
    arbiter_os.add_policy_router(
        EvaluationRouter(
            "again",
            "quality",
            "reflect",
            max_redirects=max_redirects,
            on_cap="best_attempt",
            target_nodes=["write"],
        )
    )
    log = run(arbiter_os.govern(builder), EMPTY, mode=mode)["log"]
    assert [name for name in log if name != "reflect"] == ["a"] * (max_redirects + 1) + ["b"]


@MODES
def test_events_end_with_the_attempt_that_was_taken(mode: str) -> None:
    """A streamed body has streamed another one."""
    _, app = reflecting(Writer([0.4, 0.3, 0.2]))
    if mode == "sync":
        chunks = list(app.stream(EMPTY, stream_mode="updates"))
        assert chunks[-2]["write"]["score"] == 0.4
        return

    async def main() -> Any:
        return [event async for event in app.astream_events(EMPTY, version="v2")]

    events = asyncio.run(main())
    assert events[-1]["data"]["output"]["score"] == 0.4


# Errors -------------------------------------------------------------------------------------------


class OwnError(ConnectionError):
    pass


def failing(
    told: Sequence[Any], *, retry: Any = None, saver: Any = None, **parameters: Any
) -> tuple[ArbiterOS, Any, list[Any]]:
    """`call` raises the given errors, then returns; after an error comes `mend`, which leads back."""
    calls: list[Any] = []

    def call(state: Any) -> Any:
        calls.append(state)
        now = told[len(calls) - 1]
        if isinstance(now, BaseException):
            raise now
        return {"log": [f"call {now}"], "score": now}

    builder = StateGraph(State)
    builder.add_node("call", call, retry_policy=retry)
    builder.add_node("mend", Spy("mend"))
    builder.add_node("after", Spy("after"))
    builder.add_edge(START, "call")
    builder.add_edge("call", "after")
    builder.add_edge("mend", "call")
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5, target_nodes=["call"]))
    arbiter_os.add_policy_router(ErrorRouter("rescue", "mend", target_nodes=["call"], **parameters))
    return arbiter_os, arbiter_os.govern(builder.compile(checkpointer=saver)), calls


NAMES = [
    (["OwnError"], True),
    (["ConnectionError"], True),
    (["OSError"], True),
    (["builtins.ConnectionError"], True),
    ([f"{__name__}.OwnError"], True),
    (["Exception"], True),
    (None, True),
    (["ValueError"], False),
    (["elsewhere.OwnError"], False),
    (["Connection"], False),
    (["ValueError", "OSError"], True),
]


@MODES
@pytest.mark.parametrize(("errors", "counts"), NAMES)
def test_errors_go_by_name_and_by_what_they_derive_from(errors: Any, counts: bool, mode: str) -> None:
    arbiter_os, app, _ = failing([OwnError("down"), 0.9], errors=errors)
    if counts:
        assert run(app, EMPTY, mode=mode)["log"] == ["mend", "call 0.9", "after"]
        assert statuses(arbiter_os)[0] == ("call", "failed")
        return
    with pytest.raises(OwnError, match="down"):
        run(app, EMPTY, mode=mode)


@MODES
def test_langgraphs_own_retries_come_first(mode: str) -> None:
    retry = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=ConnectionError)
    _, app, calls = failing([OwnError("1"), OwnError("2"), 0.9], retry=retry, errors=["OwnError"])
    assert run(app, EMPTY, mode=mode)["log"] == ["mend", "call 0.9", "after"]
    assert len(calls) == 3
    _, app, calls = failing([OwnError("1"), 0.9], retry=retry, errors=["OwnError"])
    assert run(app, EMPTY, mode=mode)["log"] == ["call 0.9", "after"]


@pytest.mark.lengthy
@MODES
def test_at_the_cap_the_exception_passes_through(mode: str) -> None:
    last = OwnError("3")
    arbiter_os, app, calls = failing([OwnError("1"), OwnError("2"), last], max_redirects=2)
    with pytest.raises(OwnError) as caught:
        run(app, EMPTY, mode=mode)
    assert caught.value is last
    assert len(calls) == 3
    item = arbiter_os.history.last(node="call")
    assert item is not None
    assert "max_redirects=2 reached" in item.notes["router rescue"]


@MODES
def test_at_the_cap_the_run_can_end_without_the_exception(mode: str) -> None:
    _, app, _ = failing([OwnError("1"), OwnError("2")], max_redirects=1, on_cap="end")
    assert run(app, EMPTY, mode=mode)["log"] == ["mend"]


def with_doubts(arbiter_os: ArbiterOS) -> None:
    arbiter_os.add_policy_router(EvaluationRouter("doubt", "quality", "mend"))


@MODES
@pytest.mark.parametrize("saver", [None, InMemorySaver])
def test_at_the_cap_an_error_gives_way_to_the_best_earlier_attempt(saver: Any, mode: str) -> None:
    arbiter_os, app, _ = failing(
        [0.3, 0.2, OwnError("1")],
        max_redirects=0,
        on_cap="best_attempt",
        best_by="quality",
        saver=saver and saver(),
    )
    with_doubts(arbiter_os)
    result = run(app, EMPTY, thread("1"), mode=mode)
    assert result["log"] == ["call 0.3", "mend", "call 0.2", "mend", "call 0.3", "after"]
    item = arbiter_os.history.last(node="call")
    assert item is not None
    assert (item.status, item.error) == ("failed", "OwnError: 1")
    assert "took the best attempt" in item.notes["router rescue"]


@MODES
def test_without_an_earlier_attempt_the_exception_passes_through(mode: str) -> None:
    _, app, _ = failing([OwnError("1")], max_redirects=0, on_cap="best_attempt", best_by="quality")
    with pytest.raises(OwnError):
        run(app, EMPTY, mode=mode)


def test_the_names_of_errors_may_be_replaced() -> None:
    router = ErrorRouter("rescue", "mend", errors=["ValueError"])
    assert router.errors is not None
    router.errors |= {"OwnError"}

    def call(state: Any) -> Any:
        raise OwnError("1")

    graph: Any = StateGraph(State)
    graph.add_node("call", call)
    graph.add_node("mend", Spy("mend"))
    graph.add_edge(START, "call")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(router)
    assert arbiter_os.govern(graph.compile()).invoke(EMPTY)["log"] == ["mend"]


@MODES
def test_a_pause_is_no_error(mode: str) -> None:
    from langgraph.types import interrupt

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(ErrorRouter("rescue", "mend"))
    builder = StateGraph(State)
    builder.add_node("call", lambda state: {"log": [interrupt("sure?")]})
    builder.add_node("mend", Spy("mend"))
    builder.add_edge(START, "call")
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    assert "__interrupt__" in run(app, EMPTY, thread("1"), mode=mode)
    assert run(app, Command(resume="yes"), thread("1"), mode=mode)["log"] == ["yes"]


# Configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: EvaluationRouter("r", "q", "t", on_cap="stop"), "on_cap"),  # type: ignore[arg-type]
        (lambda: EvaluationRouter("r", "q", "t", max_redirects=-1), "max_redirects"),
        (lambda: EvaluationRouter("r", "q", "t", max_redirects=True), "max_redirects"),
        (lambda: EvaluationRouter("r", "q", "t", best_by=""), "best_by"),
        (lambda: EvaluationRouter("r", "", "t"), "evaluator"),
        (lambda: EscalationRouter("r", evaluator=""), "evaluator"),
        (lambda: MetricThresholdPolicyRouter("r", "k", 1, "t", on_cap="best_attempt"), "best_by"),
        (lambda: ErrorRouter("r", "t", on_cap="best_attempt"), "best_by"),
        (lambda: ErrorRouter("r", "t", errors="ValueError"), "errors"),
        (lambda: ErrorRouter("r", "t", errors=[]), "errors"),
        (lambda: ErrorRouter("r", "t", errors=["ValueError", ValueError]), "errors"),  # type: ignore[list-item]
    ],
)
def test_wrong_parameters_are_named(make: Any, parameter: str) -> None:
    with pytest.raises(ParameterError, match="router 'r'") as caught:
        make()
    assert caught.value.parameter == parameter


def test_a_misspelt_evaluator_stops_govern_with_the_nearest_name() -> None:
    graph = chain(Spy("write"), extra=[Spy("reflect")])
    for router in (
        EvaluationRouter("r", "qualty", "reflect"),
        MetricThresholdPolicyRouter("r", "score", 1, "reflect", on_cap="best_attempt", best_by="qualty"),
    ):
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_router(router)
        arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5))
        with pytest.raises(ConfigurationError, match="Did you mean 'quality'"):
            arbiter_os.govern(graph)
        router.mode = "off"
        arbiter_os.govern(graph)
