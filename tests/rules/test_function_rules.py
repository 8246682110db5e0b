"""Rules from functions: decorators, what a function can ask for, and functions that YAML names."""

from __future__ import annotations

import asyncio
import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from arbiter import (
    ArbiterOS,
    History,
    HistoryItem,
    PackError,
    PolicyViolationError,
    RegistrationError,
    Verdict,
)
from arbiter.errors import ConfigurationError, SyncDriverError, UnknownNodeError
from arbiter.instructions import GENERATE, find_instruction
from tests.support import MODES, Spy, State, chain, run, thread


def no_guessing(state: Any) -> tuple[bool, str]:
    """A guess does not go out.

    Not even a good one.
    """
    return state["amount"] != 13, "it is a guess"


async def no_waiting(state: Any) -> bool:
    await asyncio.sleep(0)
    return bool(state["amount"] != 13)


def low(output: Any) -> str | None:
    return "fix" if output["score"] < 0.5 else None


def scored(output: Any, state: Any) -> dict[str, Any]:
    """Two results."""
    return {"good": output["score"] > 0.5, "amount": state["amount"]}


def misspelt(stat: Any) -> bool:
    return True


def of_a_router(current_output: Any) -> bool:
    return True


def with_star(*args: Any) -> bool:
    return True


def with_stars(**kwargs: Any) -> None:
    return None


def at_most_so_much(state: Any, most: int) -> bool:
    return bool(state["amount"] <= most)


def with_yield(state: Any) -> Any:
    yield state["amount"] < 10


async def with_async_yield(state: Any) -> Any:
    yield "a"


def pickled(rule: Any) -> Any:
    return pickle.loads(pickle.dumps(rule))


COPIES: list[Any] = [copy.copy, copy.deepcopy, pickled]
REFUSED: list[tuple[str, Any, str]] = [
    (
        "checker",
        misspelt,
        r"misspelt\(\) asks for stat; .* can ask for state, item, history, output\. Did you mean",
    ),
    ("checker", of_a_router, r"asks for current_output; the function of a checker"),
    ("evaluator", with_star, r"asks for \*args; the function of an evaluator can ask for"),
    ("router", with_stars, r"asks for \*\*kwargs"),
    ("checker", with_yield, r"with_yield\(\) has a yield\. Return the answer"),
    ("router", with_async_yield, "has a yield"),
    ("checker", Spy, "is not a function"),
    ("checker", 5, "is not a function"),
    ("checker", "pay", r"Give options by name.* is registered with arbiter_os\.add_policy_checker\.$"),
    ("evaluator", "pay", r"is registered with arbiter_os\.add_evaluator\.$"),
    ("checker", (lambda: True), r"has no name\. Pass name="),
    ("checker", partial(misspelt, {}), r"has no name\. Pass name="),
]


@MODES
def test_a_function_checks_and_stays_what_it_was(mode: str) -> None:
    arbiter_os = ArbiterOS()
    assert arbiter_os.checker(no_guessing) is no_guessing
    app = arbiter_os.govern(chain(Spy("a")))
    assert run(app, {"log": [], "amount": 1}, mode=mode)["log"] == ["a"]
    with pytest.raises(PolicyViolationError, match=r"policy 'no_guessing' denied node 'a': it is a guess"):
        run(app, {"log": [], "amount": 13}, mode=mode)
    (rule,) = arbiter_os.checkers
    assert (rule.name, rule.description) == ("no_guessing", "A guess does not go out.")
    assert no_guessing({"amount": 1})[0]


def test_options_are_those_of_the_class() -> None:
    arbiter_os = ArbiterOS()

    @arbiter_os.checker(
        name="wary", target_nodes="a", target_instructions=[GENERATE], on_deny="end", deadline=2
    )
    def check(state: Any) -> bool:
        return True

    @arbiter_os.router(max_redirects=1, on_error=True, targets=["a"], needs="judge")
    def route(item: HistoryItem) -> None:
        return None

    @arbiter_os.evaluator(durable=True, needs=("judge",))
    def evaluate() -> float:
        return 0.5

    (checker,), (router,), (judge,) = arbiter_os.checkers, arbiter_os.routers, arbiter_os.evaluators
    assert (checker.name, checker.target_nodes, checker.target_instructions) == ("wary", ("a",), (GENERATE,))
    assert (checker.on_deny, checker.deadline) == ("end", 2)
    assert (router.max_redirects, router.on_error, router.targets, router.needs) == (
        1,
        True,
        ("a",),
        ("judge",),
    )
    assert (judge.durable, judge.needs, judge.name) == (True, ("judge",), "evaluate")
    with pytest.raises(TypeError, match="target_node"):
        arbiter_os.checker(target_node="a")(no_guessing)  # type: ignore[call-overload]


@MODES
def test_an_async_function_checks(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.checker(no_waiting)
    app = arbiter_os.govern(chain(Spy("a")))
    if mode == "sync":
        with pytest.raises(SyncDriverError, match="ainvoke"):
            run(app, {"log": [], "amount": 1}, mode=mode)
        return
    assert run(app, {"log": [], "amount": 1}, mode=mode)["log"] == ["a"]
    with pytest.raises(PolicyViolationError):
        run(app, {"log": [], "amount": 13}, mode=mode)


@MODES
def test_a_checker_that_asks_for_the_output_keeps_it_from_being_committed(mode: str) -> None:
    arbiter_os = ArbiterOS()
    seen: list[Any] = []

    @arbiter_os.checker(target_nodes=["a"])
    def not_low(output: Any, state: Any, item: HistoryItem, history: History) -> Verdict:
        seen.append((output["score"], state["amount"], item.node, history.item is item))
        return Verdict.deny("low")

    app = arbiter_os.govern(chain(Spy("a", score=0.1), checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError, match="low"):
        run(app, {"log": [], "amount": 3}, thread("1"), mode=mode)
    assert seen == [(0.1, 3, "a", True)]
    assert app.get_state(thread("1")).values["log"] == []


@MODES
@pytest.mark.parametrize("is_async", [False, True])
def test_functions_evaluate_and_route(mode: str, is_async: bool) -> None:
    arbiter_os = ArbiterOS()
    returned: list[Any] = []

    @arbiter_os.evaluator
    async def later(output: Any) -> float:
        await asyncio.sleep(0)
        return float(output.get("score", 1.0))

    arbiter_os.evaluator(target_nodes=["a"])(scored)

    def quality(item: HistoryItem, current_output: Any) -> str | None:
        returned.append(current_output)
        return None if item.evaluation_results["scored.good"].passed else "fix"

    async def quality_later(item: HistoryItem, current_output: Any) -> str | None:
        return quality(item, current_output)

    router: Any = quality_later if is_async and mode == "async" else quality
    arbiter_os.router(target_nodes=["a"], targets=["fix"])(router)

    app = arbiter_os.govern(chain(Spy("a", score=0.1), extra=[Spy("fix")]))
    assert run(app, {"log": [], "amount": 3}, mode=mode)["log"] == ["a", "fix"]
    assert returned == [{"log": ["a"], "score": 0.1}]
    first = arbiter_os.history.entries[0][0]
    assert {name: r.score for name, r in first.evaluation_results.items()} == {
        "later": 0.1,
        "scored.good": 0.0,
        "scored.amount": 3,
    }


def test_a_router_for_errors_finds_no_output() -> None:
    arbiter_os = ArbiterOS()
    seen: list[Any] = []

    @arbiter_os.router(on_error=True, targets=["fix"])
    def failed(output: Any, current_output: Any, item: HistoryItem) -> str:
        seen.append((dict(output), current_output, item.error))
        return "fix"

    def broken(state: State) -> State:
        raise ValueError("no")

    app = arbiter_os.govern(chain(broken, extra=[Spy("fix")]))
    assert app.invoke({"log": []})["log"] == ["fix"]
    assert seen == [({}, None, "ValueError: no")]


@MODES
def test_function_rules_hold_in_subgraphs_and_after_a_resume(mode: str) -> None:
    inner: Any = StateGraph(State)
    inner.add_node("in", Spy("in"))
    inner.add_edge(START, "in")
    outer: Any = StateGraph(State)
    outer.add_node("first", Spy("first"))
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "first")
    outer.add_edge("first", "sub")
    arbiter_os = ArbiterOS()

    @arbiter_os.checker(target_nodes=["in"])
    def ask(history: History, state: Any) -> Verdict:
        return Verdict.ask(f"{history.count(node='first')} of {state['amount']}")

    app = arbiter_os.govern(outer.compile(checkpointer=InMemorySaver()))
    paused = run(app, {"log": [], "amount": 5}, thread("1"), mode=mode)
    assert paused["__interrupt__"][0].value["reason"] == "1 of 5"
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"][-1] == "in"


@pytest.mark.parametrize(("decorator", "function", "message"), REFUSED)
def test_a_function_that_cannot_be_a_rule_is_refused(decorator: str, function: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        getattr(ArbiterOS(), decorator)()(function)


def test_a_parameter_with_a_default_of_its_own_keeps_it() -> None:
    arbiter_os = ArbiterOS()

    @arbiter_os.checker
    def at_most(state: Any, /, limit: int = 10) -> bool:
        return bool(state["amount"] <= limit)

    app = arbiter_os.govern(chain(Spy("a")))
    assert app.invoke({"log": [], "amount": 10})["log"] == ["a"]
    with pytest.raises(PolicyViolationError):
        app.invoke({"log": [], "amount": 11})


def test_methods_partials_and_callable_objects_are_functions_too() -> None:
    class Limit:
        """At most so much."""

        def __init__(self, most: int) -> None:
            self.most = most

        def check(self, state: Any) -> bool:
            return bool(state["amount"] <= self.most)

        async def __call__(self, state: Any) -> bool:
            return self.check(state)

    arbiter_os = ArbiterOS()
    arbiter_os.checker(Limit(30).check)
    arbiter_os.checker(name="called")(Limit(20))
    arbiter_os.checker(name="partial")(partial(at_most_so_much, most=10))
    app = arbiter_os.govern(chain(Spy("a")))
    for amount, policy in ((40, "check"), (25, "called"), (15, "partial")):
        with pytest.raises(PolicyViolationError, match=f"policy '{policy}'"):
            asyncio.run(app.ainvoke({"log": [], "amount": amount}))


@pytest.mark.parametrize("decorator", ["checker", "evaluator"])
def test_a_function_cannot_have_an_option_that_its_contract_ignores(decorator: str) -> None:
    """`targets` are a router's: a rule meant for one node would apply to all."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'targets'"):
        getattr(ArbiterOS(), decorator)(targets=["pay"])(no_guessing)


def test_removing_a_function_says_that_its_name_removes_it() -> None:
    def brief(output: Any) -> bool:
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.evaluator(brief)
    function: Any = brief
    with pytest.raises(RegistrationError, match="A rule made of a function is removed by its name"):
        arbiter_os.remove(function)
    with pytest.raises(RegistrationError, match=r"^an evaluator named 'brief' is registered already"):
        arbiter_os.evaluator(brief)
    arbiter_os.remove("brief")
    assert not arbiter_os.evaluators


def test_a_truth_value_of_numpy_is_no_score() -> None:
    """Its result would have a score and no pass, so that routers would not act on a failure."""
    numpy = pytest.importorskip("numpy")

    def short(output: Any) -> Any:
        return numpy.float64(0.2) > 0.5

    def score(output: Any) -> Any:
        return numpy.float32(0.5)

    arbiter_os = ArbiterOS()
    arbiter_os.evaluator(short)
    arbiter_os.evaluator(score)
    arbiter_os.execute({}, Spy("step"))
    item = arbiter_os.history.item
    assert "expected an EvaluationResult, a bool" in item.evaluation_errors["short"]
    assert item.evaluation_results["score"].score == 0.5


def test_targets_of_a_function_are_checked_when_a_graph_is_governed() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.router(targets=["fixx"])(low)
    with pytest.raises(UnknownNodeError, match="Did you mean 'fix'"):
        arbiter_os.govern(chain(Spy("a"), extra=[Spy("fix")]))


@pytest.mark.parametrize("copied", COPIES)
def test_rules_from_functions_can_be_copied(copied: Any) -> None:
    first, second = ArbiterOS(), ArbiterOS()
    first.checker(target_nodes=["a"])(no_guessing)
    second.add_policy_checker(copied(first.checkers[0]))
    assert second.checkers[0].target_nodes == ("a",)
    with pytest.raises(PolicyViolationError, match="it is a guess"):
        second.govern(chain(Spy("a"))).invoke({"log": [], "amount": 13})


def pack(folder: Path, section: str, entry: str) -> Path:
    path = folder / "pack.yaml"
    path.write_text(f"version: 1\nname: p\ndescription: d\n{section}:\n  - {{{entry}}}\n")
    return path


@MODES
def test_yaml_names_a_function(mode: str, tmp_path: Path) -> None:
    source = pack(
        tmp_path, "checkers", f"name: wary, use: {__name__}.no_guessing, target_nodes: [a], on_deny: end"
    )
    arbiter_os = ArbiterOS.from_constitution(source, allow=["tests."])
    (rule,) = arbiter_os.checkers
    assert (rule.name, rule.description, rule.on_deny) == ("wary", "A guess does not go out.", "end")
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    assert run(app, {"log": [], "amount": 13}, mode=mode)["log"] == []
    assert arbiter_os.load_constitution() is not None
    assert run(app, {"log": [], "amount": 1}, mode=mode)["log"] == ["a", "b"]


def test_yaml_names_functions_that_route_and_evaluate(tmp_path: Path) -> None:
    source = pack(
        tmp_path, "evaluators", f"name: s, use: {__name__}.scored, durable: true, description: mine"
    )
    arbiter_os = ArbiterOS.from_constitution(source, allow=["tests."])
    assert (arbiter_os.evaluators[0].durable, arbiter_os.evaluators[0].description) == (True, "mine")
    arbiter_os.load_constitution(pack(tmp_path, "routers", f"name: r, use: {__name__}.low"), allow=["tests."])
    app = arbiter_os.govern(chain(Spy("a", score=0.1), extra=[Spy("fix", score=1.0)]))
    assert app.invoke({"log": []})["log"] == ["a", "fix"]


def test_the_version_of_a_function_changes_with_its_options_and_not_with_its_declarations() -> None:
    def made(**options: Any) -> str:
        arbiter_os = ArbiterOS()
        arbiter_os.router(name="r", **options)(low)
        return str(arbiter_os.routers[0].version)

    assert made() == made(targets=["fix"]) == made(needs=["s"]) == made(deadline=3.0)
    options: list[dict[str, Any]] = [{"max_redirects": 1}, {"on_error": True}, {"target_nodes": ["a"]}]
    options += [{"target_nodes": ["a"], "targets": ["fix"]}, {"target_nodes": ["b"], "targets": ["fix"]}]
    first, second, third, fourth, fifth = (made(**each) for each in options)
    assert third == fourth
    assert len({made(), first, second, third, fifth}) == 5


def test_yaml_names_the_targets_of_a_function_and_the_evaluators_that_it_reads(tmp_path: Path) -> None:
    """As with the decorator, both are checked when a graph is governed."""
    graph = chain(Spy("a", score=0.1), extra=[Spy("fix", score=1.0)])

    def rules(targets: str) -> ArbiterOS:
        entry = (
            f"name: r, use: {__name__}.low, target_nodes: a, targets: {targets}, needs: [s], on_error: false"
        )
        return ArbiterOS.from_constitution(pack(tmp_path, "routers", entry), allow=["tests."])

    arbiter_os = rules("fix")
    (router,) = arbiter_os.routers
    assert (router.targets, router.needs) == (("fix",), ("s",))
    with pytest.raises(ConfigurationError, match="router 'r' reads evaluator 's', which is not registered"):
        arbiter_os.govern(graph)
    arbiter_os.evaluator(name="s")(scored)
    assert arbiter_os.govern(graph).invoke({"log": []})["log"] == ["a", "fix"]
    with pytest.raises(
        UnknownNodeError, match=r"k\.yaml:5: router 'r' redirects to 'fixx'.*Did you mean 'fix'"
    ):
        rules("[fixx]").govern(graph)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "use: {0}.misspelt",
            r"yaml:5: checkers\[0\].use: .* or a function in its place, .* asks for stat; .*mean 'state'",
        ),
        ("use: {0}.no_gessing", r"has no class or function 'no_gessing'. Did you mean 'no_guessing'"),
        ("use: {0}.no_guessing, limit: 3", r"limit: .*expected one of"),
        ("use: {0}.GENERATE", "has no class or function 'GENERATE', but an? .* of that name"),
        ("use: os.system", "expected a class or function under an allowed prefix"),
    ],
)
def test_mistakes_about_a_function_are_reported_with_their_line(
    tmp_path: Path, entry: str, message: str
) -> None:
    source = pack(tmp_path, "checkers", f"name: x, {entry.format(__name__)}")
    with pytest.raises(PackError, match=message):
        ArbiterOS.from_constitution(source, allow=["tests."])


def test_a_name_that_a_file_has_taken_is_reported_with_the_line_of_the_file(tmp_path: Path) -> None:
    arbiter_os = ArbiterOS.from_constitution(
        pack(tmp_path, "checkers", "name: no_guessing, use: condition, deny_when: input.amount > 9")
    )
    said = r"ConditionChecker of .*k\.yaml:5\)\. Give this checker another name, or call"
    with pytest.raises(RegistrationError, match=said):
        arbiter_os.checker(no_guessing)


def test_a_decorated_function_can_target_by_instruction() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.checker(target_instructions="GENERATE")(no_guessing)
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")), {"b": find_instruction("GENERATE")})
    with pytest.raises(PolicyViolationError, match="node 'b'"):
        app.invoke({"log": [], "amount": 13})


def a_rule(state: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("adder", "decorator"),
    [("add_policy_checker", "checker"), ("add_policy_router", "router"), ("add_evaluator", "evaluator")],
)
def test_a_function_in_the_place_of_a_contract_is_sent_to_its_decorator(adder: str, decorator: str) -> None:
    with pytest.raises(RegistrationError, match=rf"Decorate the function with @arbiter_os\.{decorator}\."):
        getattr(ArbiterOS(), adder)(a_rule)
    with pytest.raises(RegistrationError, match=r"expected an? \w+\. Subclass arbiter\."):
        getattr(ArbiterOS(), adder)(3)
