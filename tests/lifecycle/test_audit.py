"""A rule under audit is recorded, and the graph behaves as if it were not there."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler, dispatch_custom_event
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.errors import GraphBubbleUp, GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import push_message
from langgraph.graph.ui import push_ui_message
from langgraph.runtime import get_runtime
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, interrupt

from arbiter import (
    Advisor,
    ArbiterOS,
    Correction,
    CorrectionGate,
    EvaluationResult,
    EvaluationRouter,
    History,
    HistoryPolicyChecker,
    PolicyChecker,
    PolicyViolationError,
    RegistrationError,
    ThresholdEvaluator,
    Verdict,
)
from arbiter._contracts import Contract
from arbiter._lifecycle.registry import Registry
from arbiter.checkers import ApprovalChecker
from arbiter.errors import ReadOnlyTypeError
from arbiter.instructions import GENERATE
from arbiter.routers import ErrorRouter, EscalationRouter
from tests import graphs
from tests.graphs import Recorder, bare
from tests.support import (
    MODES,
    PATIENCE,
    Check,
    Judge,
    Route,
    Spy,
    State,
    add,
    bad,
    chain,
    examples,
    good,
    run,
    statuses,
    thread,
)
from tests.weaving import test_equivalence_generated
from tests.weaving.test_equivalence_generated import Plan, plans

GIVEN: Any = {"log": [], "amount": 20}
MODE = Literal["audit", "off"]


def under(mode: MODE, contract: Any) -> Any:
    contract.mode = mode
    return contract


# Rules that would change everything ---------------------------------------------------------------


def raising(_: History, *__: Any) -> Any:
    raise ZeroDivisionError("broken rule")


def asks_itself(_: History, *__: Any) -> Any:
    return interrupt("a rule's own question") or True


def writes_to_the_stream(_: History, *__: Any) -> Any:
    get_stream_writer()({"from": "a rule"})
    return True


def hanging(_: History, *__: Any) -> Any:
    time.sleep(5)


async def slowly(_: History, *__: Any) -> Any:
    await asyncio.sleep(0)
    return False


RULES: dict[str, Callable[[], Contract]] = {
    "deny": lambda: Check("deny", lambda _: Verdict.deny("never")),
    "redirect": lambda: Check("redirect", lambda _: False, on_deny=f"redirect:{END}"),
    "end": lambda: Check("end", lambda _: False, on_deny="end"),
    "ask": lambda: Check("ask", lambda _: Verdict.ask("sure?", approvers=["nobody"])),
    "approval": lambda: ApprovalChecker("approval", expires_after=1),
    "raise": lambda: Check("raise", raising),
    "interrupt": lambda: Check("interrupt", asks_itself),
    "stream": lambda: Check("stream", writes_to_the_stream),
    "hang": lambda: Check("hang", hanging, deadline=0.005),
    "async": lambda: Check("async", slowly),
    "nonsense": lambda: Check("nonsense", lambda _: "certainly"),
    "route": lambda: Route("route", lambda h, o: "last"),
    "route to the end": lambda: Route("route to the end", lambda h, o: END, on_error=False),
    "route nowhere": lambda: Route("route nowhere", lambda h, o: "nowhere"),
    "route raises": lambda: Route("route raises", raising),
    "route interrupts": lambda: Route("route interrupts", asks_itself),
    "route streams": lambda: Route("route streams", writes_to_the_stream),
    "route on error": lambda: ErrorRouter("route on error", END, on_cap="end"),
    "escalate": lambda: EscalationRouter("escalate"),
    "best": lambda: _best(),
    "evaluate": lambda: Judge("evaluate", bad, durable=True),
    "evaluate raises": lambda: Judge("evaluate raises", raising, durable=True),
}


def _best() -> Contract:
    router = Route("best", lambda h, o: "last", max_redirects=0)
    router.on_cap, router.best_by = "best_attempt", "evaluate"
    return router


def governed_by(rules: list[str], mode: MODE) -> ArbiterOS:
    arbiter_os = ArbiterOS()
    contracts = [RULES[name]() for name in rules]
    if "best" in rules and "evaluate" not in rules:
        contracts.append(RULES["evaluate"]())
    for contract in sorted(contracts, key=lambda contract: contract.kind != "evaluator"):
        add(arbiter_os, under(mode, contract))
    return arbiter_os


# Where a branch fails, LangGraph itself leaves coroutines of other branches that it never awaits, governed or not.
@pytest.mark.lengthy
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("driver", ["sync", "async"])
@examples(0.4)
@given(
    plan=plans,
    rules=st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=5, unique=True),
    mode=st.sampled_from(["audit", "audit", "audit", "off"]),
)
def test_any_graph_under_audit_equals_the_ungoverned(
    driver: str, plan: Plan, rules: list[str], mode: MODE
) -> None:
    """Outputs, streams, checkpoints' values, exceptions and callbacks, whatever the rules would have done."""
    module = test_equivalence_generated

    def account(governing: Any) -> dict[str, Any]:
        if driver == "sync":
            return module._comparable(module.observe(plan, governing), plan)  # pyright: ignore[reportPrivateUsage]
        return module._comparable(asyncio.run(module.aobserve(plan, governing)), plan)  # pyright: ignore[reportPrivateUsage]

    expected = account(bare)
    arbiter_os = governed_by(rules, mode)
    assert account(arbiter_os.govern) == expected
    assert arbiter_os.drain(60)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("name", RULES)
def test_each_rule_under_audit_changes_nothing(name: str, mode: str) -> None:
    """With a checkpointer, a body that pauses, and a second run of the thread."""
    arbiter_os = governed_by([name], "audit")
    assert twice(arbiter_os.govern, mode) == twice_bare(mode)
    assert arbiter_os.drain(60)


@MODES
def test_rules_that_are_off_are_not_asked(mode: str) -> None:
    arbiter_os = governed_by(sorted(RULES), "off")
    assert twice(arbiter_os.govern, mode) == twice_bare(mode)
    assert arbiter_os.drain(60)


def twice(governing: Any, mode: str) -> Any:
    """The visible outcome of two runs of a thread whose body pauses."""

    def work(state: Any) -> Any:
        return {"log": [interrupt("pin?"), interrupt("sure?")]}

    recorder = Recorder()
    app = governing(chain(work, Spy("last"), checkpointer=InMemorySaver()))
    config: Any = graphs.config_of("one", recorder, None)
    chunks: list[Any] = []
    inputs: list[Any] = [GIVEN, Command(resume="1234"), Command(resume="yes")]
    for given_now in inputs * 2:
        entry = graphs.run if mode == "sync" else _arun
        seen = entry(app, "list", given_now, config)
        chunks.extend(seen.chunks)
        assert seen.error is None, seen.error
    snapshots = list(app.get_state_history(config))
    return graphs.account(graphs.Observed(chunks), recorder, snapshots)


@cache
def twice_bare(mode: str) -> Any:
    return twice(bare, mode)


def _arun(app: Any, entry: str, given_now: Any, config: Any) -> Any:
    return asyncio.run(graphs.arun(app, entry, given_now, config))


# What is recorded ---------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("deny", "deny", "never"),
        ("redirect", "deny", "False"),
        ("ask", "ask", "sure?"),
        ("approval", "ask", "a human has to approve it"),
        ("raise", "deny", "ZeroDivisionError: broken rule"),
        ("interrupt", "deny", "GraphInterrupt"),
        ("hang", "deny", "within 0.005 s"),
        ("nonsense", "deny", "'certainly'"),
        ("stream", "allow", ""),
    ],
)
def test_the_history_says_what_a_checker_would_have_done(
    name: str, kind: str, reason: str, mode: str
) -> None:
    arbiter_os = governed_by([name], "audit")
    app = arbiter_os.govern(chain(Spy("work"), Spy("last"), checkpointer=InMemorySaver()))
    assert run(app, GIVEN, thread("1"), mode=mode)["log"] == ["work", "last"]
    item = arbiter_os.history.last(node="work")
    assert item is not None
    assert item.status == "completed"
    found = item.check_policy_results[name]
    assert (found.kind, reason in found.reason) == (kind, True)


@MODES
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("route", "audit: it would have redirected to 'last'"),
        ("route to the end", "audit: it would have redirected to '__end__'"),
        ("escalate", "audit: it would have asked a human"),
        ("best", "audit: it would have redirected to 'last'"),
    ],
)
def test_the_history_says_what_a_router_would_have_done(name: str, said: str, mode: str) -> None:
    arbiter_os = governed_by([name], "audit")
    app = arbiter_os.govern(chain(Spy("work"), Spy("between"), Spy("last"), checkpointer=InMemorySaver()))
    assert run(app, GIVEN, thread("1"), mode=mode)["log"] == ["work", "between", "last"]
    item = arbiter_os.history.last(node="work")
    assert item is not None
    assert said in item.notes[f"router {name}"]
    assert item.redirected_to is None


@MODES
def test_an_error_router_under_audit_lets_the_exception_pass_and_says_so(mode: str) -> None:
    def work(state: Any) -> Any:
        raise ConnectionError("down")

    arbiter_os = governed_by(["route on error"], "audit")
    with pytest.raises(ConnectionError, match="down"):
        run(arbiter_os.govern(chain(work, Spy("last"))), GIVEN, mode=mode)
    item = arbiter_os.history.entries[-1][-1]
    assert "would have redirected to '__end__'" in item.notes["router route on error"]


@MODES
def test_off_is_not_asked_and_not_recorded(mode: str) -> None:
    arbiter_os = governed_by(["deny", "route", "evaluate"], "off")
    assert run(arbiter_os.govern(chain(Spy("work"), Spy("last"))), GIVEN, mode=mode)["log"] == [
        "work",
        "last",
    ]
    item = arbiter_os.history.entries[0][0]
    assert (dict(item.check_policy_results), dict(item.route_policy_results)) == ({}, {})
    assert dict(item.evaluation_results) == {}


# Beside rules that hold ---------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    "name", [name for name in RULES if isinstance(RULES[name](), Check | ApprovalChecker)]
)
def test_rules_that_hold_are_asked_after_one_under_audit(name: str, mode: str) -> None:
    """Also after one that calls interrupt(), which would otherwise end the round."""
    arbiter_os = governed_by([name], "audit")
    arbiter_os.add_policy_checker(Check("holds", lambda _: (False, "it holds")))
    work = Spy("work")
    with pytest.raises(PolicyViolationError, match="it holds"):
        graph = chain(work, checkpointer=InMemorySaver())
        run(arbiter_os.govern(graph), GIVEN, thread("1"), mode=mode)
    assert work.calls == []


@MODES
def test_an_interrupt_under_audit_takes_no_answer_from_the_body(mode: str) -> None:
    def work(state: Any) -> Any:
        return {"log": [interrupt("pin?")]}

    arbiter_os = governed_by(["interrupt", "route interrupts"], "audit")
    app = arbiter_os.govern(chain(work, checkpointer=InMemorySaver()))
    paused = run(app, GIVEN, thread("1"), mode=mode)
    assert [i.value for i in paused["__interrupt__"]] == ["pin?"]
    assert run(app, Command(resume="1234"), thread("1"), mode=mode)["log"] == ["1234"]


@MODES
def test_an_evaluator_under_audit_decides_nothing(mode: str) -> None:
    """A router that holds does not find its result; a router under audit does."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(under("audit", Judge("quality", bad)))
    arbiter_os.add_policy_router(EvaluationRouter("holds", "quality", "fallback", target_nodes=["work"]))
    arbiter_os.add_policy_router(EscalationRouter("human", evaluator="quality", target_nodes=["work"]))
    arbiter_os.add_policy_router(under("audit", EvaluationRouter("would", "quality", "fallback")))
    app = arbiter_os.govern(chain(Spy("work"), Spy("last"), extra=[Spy("fallback")]))
    assert run(app, GIVEN, mode=mode)["log"] == ["work", "last"]
    item = arbiter_os.history.entries[0][0]
    assert item.evaluation_results["quality"].score == 0.1
    assert set(item.notes) == {"router would"}


@MODES
def test_results_read_by_a_rule_under_audit_are_not_committed(mode: str) -> None:
    """Results that are read are committed, and later rules find them; a rule without effect must not cause
    that."""
    seen: list[Any] = []

    def look(history: History) -> bool:
        past = history.last(node="work")
        seen.append(None if past is None else past.evaluation_results.get("quality"))
        return True

    def process(audit: bool) -> None:
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluator(Judge("quality", good))
        arbiter_os.add_policy_checker(Check("look", look, target_nodes=["last"]))
        if audit:
            arbiter_os.add_policy_router(under("audit", EvaluationRouter("would", "quality", "last")))
        run(arbiter_os.govern(chain(Spy("work"), Spy("last"))), GIVEN, mode=mode)
        assert arbiter_os.drain(60)

    process(audit=False)
    process(audit=True)
    assert seen == [None, None]


@MODES
def test_a_node_cache_serves_as_it_did(mode: str) -> None:
    """A checker that reads the history keeps a node from being served from the cache, unless it is under audit."""
    work = Spy("work")
    builder = StateGraph(State)
    builder.add_node("work", work, cache_policy=CachePolicy())
    builder.add_edge(START, "work")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(under("audit", HistoryPolicyChecker("order", [GENERATE])))
    arbiter_os.add_policy_checker(under("audit", Check("deny", lambda _: False)))
    app = arbiter_os.govern(builder.compile(cache=InMemoryCache()))
    for _ in range(3):
        run(app, GIVEN, mode=mode)
    assert len(work.calls) == 1


class Advising(Advisor):
    def advise(self, history: History, state: Any) -> Any:
        return {"amount": 999}


class Refusing(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Correction:
        return Correction.give_up("never good enough")


@MODES
def test_advice_and_gates_under_audit_are_noted_only(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(under("audit", Advising("advice")))
    work = Spy("work")
    arbiter_os.add_correction_gate(under("audit", Refusing("gate")))
    assert run(arbiter_os.govern(chain(work)), GIVEN, mode=mode)["log"] == ["work"]
    assert work.calls[0]["amount"] == 20
    item = arbiter_os.history.entries[0][0]
    assert item.notes == {
        "advisor advice": "audit: it would have added advice",
        "gate gate": "audit: it would give_up: never good enough",
    }


def test_an_async_rule_under_audit_does_not_stop_a_sync_run() -> None:
    arbiter_os = governed_by(["async"], "audit")
    assert arbiter_os.govern(chain(Spy("work"))).invoke(GIVEN)["log"] == ["work"]
    reason = arbiter_os.history.entries[0][0].check_policy_results["async"].reason
    assert "SyncDriverError" in reason


def test_a_denial_under_audit_leaves_a_subgraphs_run_as_it_was() -> None:
    inner = chain(Spy("work"), Spy("last"))
    builder = StateGraph(State)
    builder.add_node("team", inner)
    builder.add_edge(START, "team")
    arbiter_os = governed_by(["deny", "route", "interrupt"], "audit")
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    assert app.invoke(GIVEN, thread("1"))["log"] == ["work", "last"]
    assert {status for _, status in statuses(arbiter_os)} == {"completed"}


def test_a_mode_that_there_is_not_is_refused() -> None:
    class Shadow(Check):
        mode = "shadow"  # type: ignore[assignment]

    with pytest.raises(RegistrationError, match="expected 'enforce', 'audit' or 'off'"):
        add(ArbiterOS(), Shadow("deny", lambda _: False))


@pytest.mark.parametrize("mode", ["of", "Audit", None])
def test_a_misspelt_mode_does_not_switch_off_a_rule_in_force(mode: Any) -> None:
    rule = Check("deny", lambda _: False)
    arbiter_os = ArbiterOS()
    add(arbiter_os, rule)
    with pytest.raises(RegistrationError, match=f"mode is {mode!r}; expected 'enforce', 'audit' or 'off'"):
        rule.mode = mode
    with pytest.raises(PolicyViolationError):
        arbiter_os.govern(chain(Spy("work"))).invoke(GIVEN)


@MODES
def test_a_rule_that_is_switched_holds_so_from_the_next_run_of_a_graph_that_is_governed(mode: str) -> None:
    router, judge = Route("route", lambda h, o: "last"), Judge("quality", good)
    checker = Check("deny", lambda _: False, on_deny="end", target_nodes=["last"])
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("work"), Spy("middle"), Spy("last")))
    for rule in (checker, router, judge):
        add(arbiter_os, under("off", rule))

    def outcome() -> tuple[list[str], str, int]:
        log = run(app, GIVEN, mode=mode)["log"]
        last = arbiter_os.history.item
        return log, last.status, len(arbiter_os.history.entries[0][0].evaluation_results)

    assert outcome() == (["work", "middle", "last"], "completed", 0)
    checker.mode = router.mode = judge.mode = "enforce"
    assert outcome() == (["work"], "denied", 1)
    checker.mode = router.mode = judge.mode = "off"
    assert outcome() == (["work", "middle", "last"], "completed", 0)


def test_a_rule_that_is_made_in_a_mode_costs_other_graphs_nothing() -> None:
    asked: list[str] = []

    class Counted(Check):
        def applies_to(self, node: str, instruction: Any) -> bool:
            asked.append(node)
            return super().applies_to(node, instruction)

    arbiter_os = ArbiterOS()
    add(arbiter_os, Counted("allow", lambda _: True))
    app = arbiter_os.govern(chain(Spy("work")))
    app.invoke(GIVEN)
    asked.clear()
    copy.deepcopy(under("audit", Check("other", lambda _: False)))
    add(ArbiterOS(), under("audit", Check("other", lambda _: False)))
    app.invoke(GIVEN)
    assert asked == []


def test_a_class_may_keep_its_mode_in_a_property() -> None:
    class Switched(Check):
        def __init__(self) -> None:
            super().__init__("deny", lambda _: False)
            self.mode = "audit"

    def kept(rule: Any) -> Any:
        return rule.kept

    def keep(rule: Any, mode: Any) -> None:
        rule.kept = mode

    cast(Any, Switched).mode = property(kept, keep)

    arbiter_os = ArbiterOS()
    add(arbiter_os, Switched())
    assert arbiter_os.govern(chain(Spy("work"))).invoke(GIVEN)["log"] == ["work"]


@MODES
def test_audit_after_the_registration_of_a_rule_keeps_its_exceptions_from_the_run(mode: str) -> None:
    def leave(*_: Any) -> Any:
        raise SystemExit(3)

    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("work")))
    checker = Check("deny", leave)
    add(arbiter_os, checker)
    checker.mode = "audit"
    assert run(app, GIVEN, mode=mode)["log"] == ["work"]
    assert "SystemExit: 3" in arbiter_os.history.item.check_policy_results["deny"].reason


def test_best_attempts_are_not_compared_by_an_evaluator_under_audit() -> None:
    """It is as if it were not there: the last attempt is taken."""
    scores = iter([0.4, 0.1])

    def work(state: Any) -> Any:
        return {"log": ["work"], "score": next(scores)}

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(under("audit", ThresholdEvaluator("quality", "score", 0.5)))
    router = Route("again", lambda h, o: "work", target_nodes=["work"], max_redirects=1)
    router.on_cap, router.best_by = "best_attempt", "quality"
    arbiter_os.add_policy_router(router)
    assert arbiter_os.govern(chain(work, Spy("last"))).invoke(GIVEN)["score"] == 0.1


def test_evaluations_under_audit_are_results_as_any() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(under("audit", Judge("quality", lambda _: EvaluationResult(0.5, True))))
    arbiter_os.govern(chain(Spy("work"))).invoke(GIVEN)
    assert arbiter_os.history.entries[0][0].evaluation_results["quality"].score == 0.5


# Rules that would end the run ---------------------------------------------------------------------


ENDINGS: list[Callable[[], BaseException]] = [
    lambda: SystemExit(3),
    lambda: GeneratorExit(),
    lambda: KeyboardInterrupt(),
    lambda: asyncio.CancelledError(),
    lambda: StopIteration(1),
    lambda: StopAsyncIteration(),
    lambda: BaseExceptionGroup("several", [SystemExit(3)]),
    lambda: GraphBubbleUp(),
    lambda: GraphRecursionError("too many"),
    lambda: MemoryError(),
    lambda: MuteError(),
]


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Ends(PolicyChecker):
    """Runs `act` in one of its methods."""

    def __init__(self, stage: str, act: Callable[[], Any], deadline: float | None, slow: bool) -> None:
        super().__init__("ends", deadline=deadline)
        self.stage, self.act, self.slow = stage, act, slow

    async def check_before(self, history: History) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.stage == "check_before":
            if self.slow:
                await asyncio.sleep(0)
            self.act()
        return True

    async def check_after(self, output: Any, history: History) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.stage == "check_after":
            self.act()
        return True

    def observe(self, history: History) -> Any:
        if self.stage == "observe":
            self.act()

    def handlers(self, history: History) -> list[BaseCallbackHandler]:
        if self.stage == "handlers":
            self.act()
        return [Listener(self.act)] if self.stage == "handler" else []


class Listener(BaseCallbackHandler):
    raise_error = True

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def on_custom_event(self, *args: Any, **kwargs: Any) -> Any:
        self.act()

    def on_tool_start(self, *args: Any, **kwargs: Any) -> Any:
        self.act()


class Advises(Advisor):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__("ends")
        self.act = act

    async def advise(self, history: History, state: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.act()


class Corrects(CorrectionGate):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__("ends")
        self.act = act

    async def review(self, history: History, draft: Any, attempt: int) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.act()
        return Correction.commit()


def acting(stage: str, act: Callable[[], Any], deadline: float | None = None) -> Contract:
    """A contract that runs `act` at that stage."""

    async def soon(*_: Any) -> Any:
        act()

    match stage:
        case "thread":  # where the method of an async run is called as long as it is not known to be quick
            return Check("ends", lambda _: act() or True, deadline=deadline)
        case "route":
            return Route("ends", soon, deadline=deadline)
        case "advise":
            return Advises(act)
        case "gate":
            return Corrects(act)
        case "evaluate":
            return Judge("ends", lambda _: act() or bad, durable=True)
        case _:
            return Ends(stage, act, deadline, slow=True)


def put(arbiter_os: ArbiterOS, contract: Any, shadowed: bool) -> None:
    """Register it under audit, or in a shadow constitution, as `load_shadow` does."""
    if not shadowed:
        add(arbiter_os, under("audit", contract))
        return
    shadow = Registry()
    shadow.add(under("audit", contract))
    arbiter_os._core.registry.watch(shadow)  # pyright: ignore[reportPrivateUsage]


STAGES = [
    "check_before",
    "thread",
    "check_after",
    "observe",
    "handlers",
    "handler",
    "route",
    "advise",
    "gate",
    "evaluate",
]


@tool
def look() -> str:
    """Looks."""
    return "seen"


def calls_a_tool(state: Any) -> Any:
    look.invoke({})
    return {"log": ["work"]}


@pytest.mark.lengthy
@pytest.mark.parametrize(("shadowed", "mode"), [(False, "sync"), (False, "async"), (True, "async")])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_exception_of_a_rule_under_audit_ends_the_run(stage: str, shadowed: bool, mode: str) -> None:
    for make in ENDINGS:

        def end(make: Callable[[], BaseException] = make) -> None:
            raise make()

        for deadline in (None, 5.0) if stage in ("check_before", "route") else (None,):
            arbiter_os = ArbiterOS()
            contract = acting(stage, end, deadline)
            put(arbiter_os, contract, shadowed)
            app = arbiter_os.govern(chain(calls_a_tool, Spy("last"), checkpointer=InMemorySaver()))
            assert run(app, GIVEN, thread("1"), mode=mode)["log"] == ["work", "last"]
            assert {status for _, status in statuses(arbiter_os)} == {"completed"}


class Forgetful(PolicyChecker):
    def __init__(self, gives: Any, blocking: bool, **options: Any) -> None:
        super().__init__("forgetful", **options)
        self.gives, self.blocking = gives, blocking

    def check_before(self, history: History) -> bool:
        return True

    def handlers(self, history: History) -> Any:
        return self.gives


NO_HANDLERS = pytest.mark.parametrize(
    ("gives", "blocking"), [([None], False), ([None], True), (None, False), (None, True)]
)


@MODES
@NO_HANDLERS
def test_a_checker_that_gives_no_handlers_denies(gives: Any, blocking: bool, mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Forgetful(gives, blocking))
    app = arbiter_os.govern(chain(calls_a_tool))
    with pytest.raises(PolicyViolationError, match="a failed check never allows"):
        run(app, GIVEN, mode=mode)
    assert arbiter_os.history.item.status == "denied"


@MODES
@NO_HANDLERS
@pytest.mark.parametrize("shadowed", [False, True])
def test_a_checker_under_audit_whose_handlers_are_none_leaves_the_run_alone(
    shadowed: bool, gives: Any, blocking: bool, mode: str
) -> None:
    """LangChain would ask the object for `run_inline` inside of the body."""
    arbiter_os = ArbiterOS()
    put(arbiter_os, Forgetful(gives, blocking), shadowed)
    app = arbiter_os.govern(chain(calls_a_tool))
    assert run(app, GIVEN, mode=mode)["log"] == ["work"]
    item = arbiter_os.history.item
    if shadowed:
        assert "NoneType" in item.errors["shadow forgetful"]
    else:
        assert item.check_policy_results["forgetful"].kind == "deny"


def writes_everywhere() -> None:
    config: Any = get_config()
    conf = config["configurable"]
    for write in (
        lambda: conf["__pregel_send"]([("log", ["a rule"])]),
        lambda: conf["__pregel_runtime"].stream_writer("a rule"),
        lambda: get_stream_writer()("a rule"),
        lambda: push_message(HumanMessage("a rule", id="1"), state_key="messages"),
        lambda: push_ui_message("a rule", {}),
        lambda: conf["__pregel_stream"](((), "updates", "a rule")),
        lambda: conf["__pregel_runtime"].control.request_drain(),
        lambda: conf["__pregel_runtime"].heartbeat(),
        lambda: conf["__pregel_scratchpad"].subgraph_counter(),
        lambda: conf["__pregel_scratchpad"].interrupt_counter(),
        lambda: conf["__pregel_scratchpad"].resume.append("a rule"),
        lambda: conf["__pregel_checkpointer"].put_writes(config, [("log", ["a rule"])], "task"),
        lambda: conf["__pregel_read"].args[1]["log"].update([["a rule"]]),
        lambda: conf["__pregel_call"](lambda: None, (), {}),
        lambda: dispatch_custom_event("a rule", 1),
        lambda: config["metadata"].update(rule=1),
        lambda: config["tags"].append("rule"),
        lambda: conf.update(thread_id="2"),
        lambda: interrupt("a rule"),
    ):
        with suppress(Exception):
            write()


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("stage", STAGES)
def test_by_no_door_of_the_config_does_a_rule_under_audit_write(stage: str, mode: str) -> None:
    def observe(governing: Any) -> Any:
        recorder = Recorder()
        app = governing(chain(calls_a_tool, Spy("last"), checkpointer=InMemorySaver()))
        config: Any = graphs.config_of("one", recorder, None)
        entry = graphs.run if mode == "sync" else _arun
        seen = entry(app, "list", GIVEN, config)
        assert seen.error is None, seen.error
        return graphs.account(graphs.Observed(seen.chunks), recorder, list(app.get_state_history(config)))

    expected = observe(bare)
    arbiter_os = ArbiterOS()
    add(arbiter_os, under("audit", acting(stage, writes_everywhere)))
    assert observe(arbiter_os.govern) == expected
    assert arbiter_os.drain(60)


@MODES
@pytest.mark.parametrize("shadowed", [False, True])
@pytest.mark.parametrize("stage", ["check_before", "route"])
def test_a_rule_under_audit_reads_the_store_and_does_not_write_to_it(
    stage: str, shadowed: bool, mode: str
) -> None:
    store, read = InMemoryStore(), list[Any]()
    store.put(("users",), "bob", {"limits": [5]})

    def writes(*_: Any) -> Any:
        for own in (get_store(), get_runtime().store):
            assert own is not None
            item = own.get(("users",), "bob")
            assert item is not None
            read.append(copy.deepcopy(item.value))
            item.value["limits"].append(1_000_000)
            with pytest.raises(ReadOnlyTypeError):
                own.put(("users",), "bob", {"limits": [1_000_000]})
            with pytest.raises(ReadOnlyTypeError):
                own.delete(("users",), "bob")
            with pytest.raises(ReadOnlyTypeError):
                own.batch([PutOp(("users",), "eve", {"limits": []})])

    contract = Check("writes", writes) if stage == "check_before" else Route("writes", writes)
    arbiter_os = ArbiterOS()
    put(arbiter_os, contract, shadowed)
    builder = StateGraph(State).add_node("work", Spy("work")).add_edge(START, "work")
    app = arbiter_os.govern(builder.compile(store=store))
    run(app, GIVEN, mode=mode)
    assert read == [{"limits": [5]}] * 2
    assert [(item.key, item.value) for item in store.search(("users",))] == [("bob", {"limits": [5]})]


@pytest.mark.parametrize(
    ("stage", "shadowed"),
    [
        *((stage, False) for stage in ("check_before", "check_after", "route", "advise", "gate")),
        *((stage, True) for stage in ("check_before", "check_after", "route")),
    ],
)
def test_a_run_is_cancelled_also_while_a_rule_under_audit_is_asked(stage: str, shadowed: bool) -> None:
    started = asyncio.Event()

    async def waits(*_: Any) -> Any:
        started.set()
        await asyncio.sleep(60)

    contract = acting(stage, lambda: None)
    setattr(contract, contract.method if stage != "check_after" else stage, waits)
    last = Spy("last")
    arbiter_os = ArbiterOS()
    put(arbiter_os, contract, shadowed)
    app = arbiter_os.govern(chain(Spy("work"), last))

    async def main() -> None:
        task = asyncio.ensure_future(app.ainvoke(GIVEN))
        await asyncio.wait_for(started.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())
    assert last.calls == []
    assert not any(item.errors for item in arbiter_os.history.items())
