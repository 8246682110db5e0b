"""A redirect replaces the edges; its cap; who wins; routers that fail; routers on errors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send

from arbiter import (
    ArbiterOS,
    EvaluationRouter,
    History,
    MetricThresholdPolicyRouter,
    PolicyRouter,
    RegistrationError,
    ThresholdEvaluator,
    UnknownNodeError,
)
from arbiter.errors import ParameterError
from arbiter.instructions import GENERATE, REFLECT
from tests.support import MODES, Check, Judge, Route, Spy, State, chain, run, statuses, thread


def once(target: str) -> Any:
    """A router's answer that redirects the first time and then no more."""
    asked: list[str] = []

    def answer(history: History, output: Any) -> str | None:
        asked.append(history.entries[-1][-1].node)
        return target if len(asked) == 1 else None

    return answer


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), float("-inf"), "0.5", True, None])
def test_a_threshold_is_a_finite_number(threshold: Any) -> None:
    """With another threshold the router would never redirect, or fail at each output."""
    with pytest.raises(ParameterError, match=r"threshold: expected a (finite )?number, got"):
        MetricThresholdPolicyRouter("low", "score", threshold, "reflect")


def test_a_deadline_is_finite() -> None:
    router = MetricThresholdPolicyRouter("low", "score", 0.5, "reflect")
    router.deadline = float("inf")
    with pytest.raises(RegistrationError, match="deadline is inf"):
        ArbiterOS().add_policy_router(router)


@MODES
def test_normal_successors_do_not_run(mode: str) -> None:
    """Static edges, conditional edges and a Command's goto are all replaced; the update is kept."""
    builder = StateGraph(State)
    ran: list[str] = []

    def node(name: str, result: Any = None) -> Any:
        def body(state: Any) -> Any:
            ran.append(name)
            return result if result is not None else {"log": [name]}

        return body

    asked: list[str] = []

    def branch(state: Any) -> str:
        asked.append("branch")
        return "by_branch"

    builder.add_node("a", node("a", Command(update={"log": ["a"]}, goto="by_goto")))
    for name in ("by_edge", "by_branch", "by_goto", "reflect"):
        builder.add_node(name, node(name))
    builder.add_edge(START, "a")
    builder.add_edge("a", "by_edge")
    builder.add_conditional_edges("a", branch, ["by_branch", END])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("r", once("reflect"), target_nodes=["a"]))
    assert run(arbiter_os.govern(builder), {"log": []}, mode=mode) == {"log": ["a", "reflect"]}
    assert (ran, asked) == (["a", "reflect"], [])
    assert arbiter_os.history.entries[0][0].redirected_to == "reflect"


@MODES
def test_joins_are_not_fed(mode: str) -> None:
    builder = StateGraph(State)
    for name in ("a", "b", "join", "reflect"):
        builder.add_node(name, Spy(name))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "join")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("r", once("reflect"), target_nodes=["a"]))
    assert run(arbiter_os.govern(builder), {"log": []}, mode=mode)["log"] == ["a", "b", "reflect"]


@MODES
def test_redirect_to_end(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("stop", once(END)))
    assert run(arbiter_os.govern(chain(Spy("a"), Spy("b"))), {"log": []}, mode=mode) == {"log": ["a"]}


@MODES
def test_command_to_the_parent_is_replaced_too(mode: str) -> None:
    """The update stays in the subgraph, whose reflect node runs; the parent is not told."""
    inner = StateGraph(State)
    inner.add_node("a", lambda state: Command(graph=Command.PARENT, update={"log": ["a"]}, goto="p"))
    inner.add_node("reflect", Spy("reflect"))
    inner.add_edge(START, "a")
    outer = StateGraph(State)
    outer.add_node("sub", inner.compile())
    outer.add_node("p", Spy("p"))
    outer.add_edge(START, "sub")
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(outer)
    assert run(app, {"log": []}, mode=mode)["log"] == ["a", "p"]
    arbiter_os.add_policy_router(Route("r", once("reflect"), target_nodes=["a"]))
    assert run(app, {"log": []}, mode=mode)["log"] == ["a", "reflect"]


def handing_over(update: dict[str, Any]) -> Any:
    """The node `sub` is a graph that sends its parent to `p`."""

    def inner(_: State) -> Any:
        return Command(graph=Command.PARENT, update=update, goto="p")

    outer = StateGraph(State)
    for node in ("p", "reflect"):
        outer.add_node(node, Spy(node))
    return outer.add_node("sub", chain(inner)).add_edge(START, "sub")


@MODES
@pytest.mark.parametrize(("target", "log"), [("reflect", ["a", "reflect"]), (END, ["a"])])
def test_a_command_from_a_subgraph_is_replaced_too(target: str, log: list[str], mode: str) -> None:
    """The node whose graph commands its parent keeps the update, and the goto of the command is not taken."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("r", once(target), target_nodes=["sub"]))
    app = arbiter_os.govern(handing_over({"log": ["a"]}).compile(checkpointer=InMemorySaver()))
    assert run(app, {"log": []}, thread("1"), mode=mode)["log"] == log
    (sub,) = [item for item in arbiter_os.history.items() if item.node == "sub"]
    assert (sub.redirected_to, arbiter_os.history.count(node="p")) == (target, 0)
    assert not app.get_state(thread("1")).next


class Watching(PolicyRouter):
    """A router that YAML can name; it keeps what it gets."""

    got: ClassVar[list[Any]] = []

    def route_after(self, history: History, current_output: Any) -> None:
        self.got.append(current_output)


@MODES
def test_a_router_of_a_shadow_gets_the_command_from_a_subgraph(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "watched.yaml"
    rule = f"{{name: watching, use: {__name__}.Watching, target_nodes: [sub]}}"
    path.write_text(f"version: 1\nname: watched\ndescription: d\nrouters:\n  - {rule}\n")
    arbiter_os = ArbiterOS()
    arbiter_os.load_shadow(path, allow=["tests."])
    Watching.got.clear()
    app = arbiter_os.govern(handing_over({"log": ["a"]}))
    assert run(app, {"log": []}, mode=mode)["log"] == ["a", "p"]
    (command,) = Watching.got
    assert (command.update, command.goto) == ({"log": ["a"]}, "p")


@MODES
def test_cap_holds_and_the_item_says_so(mode: str) -> None:
    """A router may redirect `max_redirects` times in a run; then the normal edges are taken."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("again", lambda h, o: "a", target_nodes=["a"], max_redirects=2))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()))
    for _ in range(2):  # each run of the thread has the cap anew
        before = len(run(app, {"log": []}, thread("1"), mode=mode)["log"])
        assert app.get_state(thread("1")).values["log"][-4:] == ["a", "a", "a", "b"]
        assert before % 4 == 0
        last = arbiter_os.history.last(node="a")
        assert last is not None
        assert last.redirected_to is None
        assert "max_redirects=2 reached" in last.notes["router again"]


@MODES
def test_first_registered_wins_and_the_other_is_recorded(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("first", once("one")))
    arbiter_os.add_policy_router(Route("second", once("two")))
    graph = chain(Spy("a"), Spy("b"), extra=[Spy("one"), Spy("two")])
    assert run(arbiter_os.govern(graph), {"log": []}, mode=mode) == {"log": ["a", "one"]}
    item = arbiter_os.history.entries[0][0]
    assert item.route_policy_results == {"first": "one", "second": "two"}
    assert item.redirected_to == "one"


class Unprintable:
    """Such as a proxy of a request that is over."""

    def __repr__(self) -> str:
        raise RuntimeError("there is no request")


FAILING: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda h, o: 1 / 0, "ZeroDivisionError"),
    (lambda h, o: "nowhere", "not a node"),
    (lambda h, o: 42, "not a node"),
    (lambda h, o: 10**5000, "redirects to <int>, which is not a node"),
    (lambda h, o: Unprintable(), "redirects to <Unprintable>, which is not a node"),
    (lambda h, o: o.clear(), "TypeError"),
]


@MODES
@pytest.mark.parametrize(("answer", "said"), FAILING)
def test_failing_router_takes_the_normal_edges(answer: Any, said: str, mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("broken", answer))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a", "b"]}
    assert said in arbiter_os.history.entries[0][0].errors["router broken"]


@MODES
@pytest.mark.parametrize("target", ["other", END])
def test_an_answer_outside_the_declared_targets_takes_the_normal_edges(target: str, mode: str) -> None:
    """As with LangGraph's `path_map`, the declaration binds: the answer is an error of the router, in the item."""
    router = Route("wrong", lambda h, o: target if o["log"] == ["a"] else None)
    router.targets = ("hold", "othre")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(router)
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), extra=[Spy("other"), Spy("hold"), Spy("othre")]))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a", "b"]}
    item = arbiter_os.history.entries[0][0]
    assert item.redirected_to is None
    said = f"redirects to {target!r}, which is not one of its targets. Targets: hold, othre."
    assert item.errors["router wrong"].startswith(said)


@MODES
def test_declared_targets_and_one_as_a_text_are_taken(mode: str) -> None:
    class ToHold(PolicyRouter):
        targets: Any = "hold"

        def route_after(self, history: History, current_output: Any) -> str | None:
            return "hold" if history.item.node == "a" else None

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(ToHold("to_hold"))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), extra=[Spy("hold")]))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a", "hold"]}


def test_older_form_with_the_history_alone() -> None:
    class Old(PolicyRouter):
        def route_after(self, history: History) -> str | None:
            return "other" if history.entries[-1][-1].node == "a" else None

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Old("old"))
    assert arbiter_os.govern(chain(Spy("a"), Spy("b"), extra=[Spy("other")])).invoke({"log": []}) == {
        "log": ["a", "other"]
    }


@MODES
def test_metric_threshold_router(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(
        MetricThresholdPolicyRouter("low", "score", 0.5, "reflect", target_nodes=["a"])
    )
    graph = chain(Spy("a", score=0.2), Spy("b"), extra=[Spy("reflect")])
    assert run(arbiter_os.govern(graph), {"log": []}, mode=mode)["log"] == ["a", "reflect"]
    for value in (0.5, 0.9, None, "0.1", float("nan"), True):
        graph = chain(Spy("a", score=value), Spy("b"), extra=[Spy("reflect")])
        assert run(arbiter_os.govern(graph), {"log": []}, mode=mode)["log"] == ["a", "b"]


@MODES
def test_evaluation_router(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5, [GENERATE]))
    arbiter_os.add_policy_router(EvaluationRouter("reflect_on_low", "quality", "reflect"))
    kinds = {"a": GENERATE, "reflect": REFLECT}
    graph = chain(Spy("a", score=0.2), Spy("b"), extra=[Spy("reflect")])
    assert run(arbiter_os.govern(graph, kinds), {"log": []}, mode=mode)["log"] == ["a", "reflect"]
    graph = chain(Spy("a", score=0.7), Spy("b"), extra=[Spy("reflect")])
    assert run(arbiter_os.govern(graph, kinds), {"log": []}, mode=mode)["log"] == ["a", "b"]


@MODES
def test_evaluation_that_failed_is_no_reason_to_redirect(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", lambda h: 1 / 0))
    arbiter_os.add_policy_router(EvaluationRouter("reflect_on_low", "quality", "reflect"))
    graph = chain(Spy("a"), Spy("b"), extra=[Spy("reflect")])
    assert run(arbiter_os.govern(graph), {"log": []}, mode=mode)["log"] == ["a", "b"]


@MODES
def test_router_on_error_after_the_retries(mode: str) -> None:
    """The fallback runs when LangGraph's own retries are used up, and not before."""
    calls: list[int] = []

    def flaky(state: Any) -> Any:
        calls.append(1)
        raise OSError("down") if len(calls) % 2 else ConnectionError("still down")

    builder = StateGraph(State)
    policy = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3, retry_on=OSError)
    builder.add_node("flaky", flaky, retry_policy=policy)
    builder.add_node("after", Spy("after"))
    builder.add_node("fallback", Spy("fallback"))
    builder.add_edge(START, "flaky")
    builder.add_edge("flaky", "after")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(
        Route("on_error", lambda h, o: "fallback", target_nodes=["flaky"], on_error=True)
    )
    assert run(arbiter_os.govern(builder), {"log": []}, mode=mode) == {"log": ["fallback"]}
    assert len(calls) == 3
    item = arbiter_os.history.entries[0][0]
    assert (item.status, item.attempt, item.redirected_to) == ("failed", 3, "fallback")
    assert item.error == "OSError: down"


@MODES
def test_error_passes_through_as_it_was_when_no_router_answers(mode: str) -> None:
    error = ValueError("mine")

    def broken(state: Any) -> Any:
        raise error

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("on_error", lambda h, o: None, on_error=True))
    arbiter_os.add_policy_router(Route("never_asked", lambda h, o: "a"))
    with pytest.raises(ValueError, match="mine") as caught:
        run(arbiter_os.govern(chain(broken, Spy("a"))), {"log": []}, mode=mode)
    assert caught.value is error
    assert statuses(arbiter_os) == [("broken", "failed")]


def test_unknown_target_stops_govern_with_the_nodes_listed() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EvaluationRouter("auto_reflect", "quality", "reveiw"))
    with pytest.raises(UnknownNodeError) as caught:
        arbiter_os.govern(chain(Spy("approve"), Spy("pay"), Spy("review")))
    assert "'reveiw'" in str(caught.value)
    assert "approve, pay, review" in str(caught.value)
    assert "Did you mean 'review'?" in str(caught.value)


def test_the_word_end_in_the_place_of_a_node_is_answered_with_the_name_of_the_end() -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("pay"), Spy("review")))
    arbiter_os.add_policy_router(Route("stop", lambda h, o: "END"))
    app.invoke({"log": []})
    assert arbiter_os.history.item.errors["router stop"].endswith("Did you mean '__end__'?")
    with pytest.raises(UnknownNodeError, match="Did you mean '__end__'"):
        arbiter_os.add_policy_checker(Check("small", lambda _: True, on_deny="redirect:END"))
    rules = ArbiterOS()
    rules.add_policy_router(MetricThresholdPolicyRouter("low", "score", 0.5, "END"))
    (finding, *_) = rules.lint(chain(Spy("pay"), Spy("review"))).errors
    assert "Did you mean '__end__'?" in finding.message


def test_unknown_target_stops_the_registration_after_govern_too() -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a")))
    with pytest.raises(UnknownNodeError):
        arbiter_os.add_policy_router(EvaluationRouter("r", "quality", "b"))
    assert app.invoke({"log": []}) == {"log": ["a"]}


def test_redirect_of_one_of_many_sends() -> None:
    class Many(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        n: int

    def work(state: Any) -> Any:
        return {"log": [f"work{state['n']}"]}

    def sends(state: Any) -> list[Send]:
        return [Send("work", {"n": i}) for i in range(3)]

    builder = StateGraph(Many)
    builder.add_node("work", work)
    builder.add_node("after", lambda state: {"log": ["after"]})
    builder.add_node("repair", lambda state: {"log": ["repair"]})
    builder.add_conditional_edges(START, sends)
    builder.add_edge("work", "after")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("r", lambda h, o: "repair" if o == {"log": ["work1"]} else None))
    app = arbiter_os.govern(builder)
    assert app.invoke({"log": []})["log"] == ["work0", "work1", "work2", "after", "repair"]
