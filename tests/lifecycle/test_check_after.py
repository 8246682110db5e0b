"""`check_after`: an output that a checker refuses is not committed, and what becomes of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, Command, StreamMode

from arbiter import (
    ArbiterOS,
    Correction,
    CorrectionGate,
    History,
    PolicyChecker,
    PolicyViolationError,
    SyncDriverError,
    Verdict,
)
from arbiter.instructions import GENERATE, TOOL_CALL
from tests.support import (
    MODES,
    Check,
    Hold,
    Judge,
    Route,
    Spy,
    State,
    allow,
    chain,
    good,
    run,
    statuses,
    thread,
)


class Review(PolicyChecker):
    """A checker around a function of the output."""

    def __init__(self, name: str, answer: Callable[[Any], Any], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.answer = answer
        self.seen: list[Any] = []

    def check_before(self, history: History) -> Verdict:
        return Verdict.allow()

    def check_after(self, output: Mapping[str, Any], history: History) -> Any:
        self.seen.append((dict(output), history.entries[-1][-1].node))
        return self.answer(output)


class SlowReview(Review):
    async def check_after(self, output: Mapping[str, Any], history: History) -> Any:
        await asyncio.sleep(0)
        return super().check_after(output, history)


def boom(_: Any) -> bool:
    raise ZeroDivisionError("division by zero")


def below(limit: int) -> Callable[[Any], bool]:
    return lambda output: output["amount"] < limit


NO: dict[str, tuple[Callable[[Any], Any], str]] = {
    "False": (lambda _: False, "the checker returned False"),
    "(False, why)": (lambda _: (False, "why"), "why"),
    "deny": (lambda _: Verdict.deny("because"), "because"),
    "ask": (lambda _: Verdict.ask("may I?"), "only a router with escalates=True"),
    "raises": (boom, "ZeroDivisionError"),
    "None": (lambda _: None, "returned None"),
    "cannot change it": (lambda output: output.update(amount=1), "read-only"),
}
KINDS = pytest.mark.parametrize(
    ("kind", "mode"), [(Review, "sync"), (Review, "async"), (SlowReview, "async")]
)


@pytest.mark.lengthy
@KINDS
@pytest.mark.parametrize(("answer", "reason"), NO.values(), ids=NO.keys())
def test_a_refused_output_is_not_committed(answer: Any, reason: str, kind: type[Review], mode: str) -> None:
    """The body ran, nothing that it wrote is there, and the error says which policy refused it and why."""
    pay, last = Spy("pay", amount=7), Spy("last")
    review = kind("limit", answer, target_nodes=["pay"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(review)
    app = arbiter_os.govern(chain(Spy("first"), pay, last, checkpointer=InMemorySaver()), {"pay": TOOL_CALL})
    with pytest.raises(PolicyViolationError) as caught:
        run(app, {"log": []}, thread("t"), mode=mode)
    error = caught.value
    assert (error.policy, error.node, error.instruction) == ("limit", "pay", TOOL_CALL)
    assert error.reason.startswith("its output was not committed")
    assert reason in error.reason
    assert "was not run" not in str(error)
    assert (len(pay.calls), last.calls) == (1, [])
    assert review.seen == [({"log": ["pay"], "amount": 7}, "pay")]
    assert app.get_state(thread("t")).values == {"log": ["first"]}
    assert statuses(arbiter_os) == [("first", "completed"), ("pay", "denied")]
    assert arbiter_os.history.entries[-1][-1].check_policy_results["limit"].kind == "deny"


@MODES
@pytest.mark.parametrize("answer", [True, (True, "fine"), Verdict.allow()])
def test_an_allowed_output_is_committed(answer: Any, mode: str) -> None:
    """Each way to say yes."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Review("limit", lambda _: answer))
    result = run(arbiter_os.govern(chain(Spy("a"), Spy("b", amount=3))), {"log": []}, mode=mode)
    assert result == {"log": ["a", "b"], "amount": 3}
    assert statuses(arbiter_os) == [("a", "completed"), ("b", "completed")]


@MODES
def test_a_loop_of_refused_outputs_ends(mode: str) -> None:
    """A node whose output is refused may run again `max_redirects` times; the next refusal raises."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Review("limit", NO["deny"][0], on_deny="redirect:pay", max_redirects=2))
    with pytest.raises(PolicyViolationError, match="max_redirects=2 reached; it did not redirect to pay"):
        run(arbiter_os.govern(chain(pay)), {"log": []}, mode=mode)
    assert len(pay.calls) == 3
    assert statuses(arbiter_os) == [("pay", "denied")] * 3


@KINDS
@pytest.mark.parametrize(("on_deny", "log"), [("redirect:hold", ["first", "hold"]), ("end", ["first"])])
def test_on_deny_redirects_or_ends(kind: type[Review], mode: str, on_deny: str, log: list[str]) -> None:
    """The run goes elsewhere, without what the node wrote; evaluators and routers never see it."""
    judged: list[str] = []

    def judge(history: History) -> Any:
        judged.append(history.entries[-1][-1].node)
        return good(history)

    hold, last = Spy("hold"), Spy("last")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(kind("limit", NO["deny"][0], target_nodes=["pay"], on_deny=on_deny))
    arbiter_os.add_policy_router(Route("r", lambda h, _: judged.append(h.entries[-1][-1].node)))
    arbiter_os.add_evaluator(Judge("e", judge))
    app = arbiter_os.govern(chain(Spy("first"), Spy("pay", amount=7), last, extra=[hold]))
    assert run(app, {"log": []}, mode=mode) == {"log": log}
    arbiter_os.drain()
    assert "pay" not in judged
    assert "first" in judged
    assert last.calls == []
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert item.status == "denied"
    assert dict(item.evaluation_results) == {}


@KINDS
@pytest.mark.parametrize("audit", [{"on_deny": "audit"}, {"mode": "audit"}])
@pytest.mark.parametrize("answer", ["deny", "raises", "ask"])
def test_in_audit_a_refusal_is_recorded_only(
    kind: type[Review], mode: str, audit: dict[str, str], answer: str
) -> None:
    """The output is committed and the verdict says what would have happened."""
    checker = kind("limit", NO[answer][0], target_nodes=["pay"], on_deny=audit.get("on_deny", "raise"))
    if "mode" in audit:
        checker.mode = "audit"
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(checker)
    result = run(arbiter_os.govern(chain(Spy("pay", amount=7), Spy("last"))), {"log": []}, mode=mode)
    assert result == {"log": ["pay", "last"], "amount": 7}
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert (item.status, item.check_policy_results["limit"].kind) == ("completed", "deny")


@MODES
def test_the_first_that_refuses_decides(mode: str) -> None:
    """All are asked, and all verdicts are recorded, with those of before the body."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("before", allow))
    arbiter_os.add_policy_checker(Review("fine", lambda _: True))
    arbiter_os.add_policy_checker(Review("shadow", lambda _: False, on_deny="audit"))
    arbiter_os.add_policy_checker(Review("first", lambda _: (False, "one"), on_deny="end"))
    arbiter_os.add_policy_checker(Review("second", lambda _: (False, "two")))
    assert run(arbiter_os.govern(chain(Spy("pay"))), {"log": []}, mode=mode) == {"log": []}
    results = arbiter_os.history.entries[-1][-1].check_policy_results
    kinds = {name: verdict.kind for name, verdict in results.items()}
    assert kinds == {"before": "allow", "fine": "allow", "shadow": "deny", "first": "deny", "second": "deny"}


@MODES
def test_no_answer_within_the_deadline_refuses(mode: str, hold: Hold) -> None:
    """The run goes on while the checker still hangs."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Review("slow", hold, deadline=0.05))
    with pytest.raises(PolicyViolationError, match=r"no answer within 0\.05 s"):
        run(arbiter_os.govern(chain(Spy("pay"))), {"log": []}, mode=mode)


def test_an_async_review_in_a_sync_run_is_refused_before_the_body() -> None:
    """The error names the checker; the body does not run for nothing."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(SlowReview("limit", lambda _: True))
    with pytest.raises(SyncDriverError, match=r"checker 'limit'.*ainvoke"):
        arbiter_os.govern(chain(pay)).invoke({"log": []})
    assert pay.calls == []


@MODES
@pytest.mark.parametrize("stream_mode", ["values", "updates"])
def test_streams_show_nothing_of_a_refused_output(stream_mode: StreamMode, mode: str) -> None:
    """Neither state mode yields anything that the node wrote."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        Review("limit", NO["deny"][0], target_nodes=["pay"], on_deny="redirect:hold")
    )
    app = arbiter_os.govern(chain(Spy("first"), Spy("pay", amount=7), extra=[Spy("hold")]))

    async def collect() -> list[Any]:
        return [part async for part in app.astream({"log": []}, stream_mode=stream_mode)]

    shown: list[Any] = (
        list(app.stream({"log": []}, stream_mode=stream_mode)) if mode == "sync" else asyncio.run(collect())
    )
    assert "hold" in str(shown)
    assert "7" not in str(shown)
    assert not any("pay" in str(part.get("log", part.get("pay"))) for part in shown)


@MODES
def test_commands_are_refused_whole(mode: str) -> None:
    """Neither the update nor the goto of a command that is refused takes effect; an allowed one keeps both."""

    def pay(state: State) -> Command[Any]:
        return Command(update={"log": ["pay"], "amount": state.get("amount", 0)}, goto="last")

    last = Spy("last")
    arbiter_os = ArbiterOS()
    review = Review("limit", below(5), target_nodes=["pay"], on_deny="end")
    arbiter_os.add_policy_checker(review)
    app = arbiter_os.govern(chain(pay, extra=[last]))
    assert run(app, {"log": [], "amount": 7}, mode=mode) == {"log": [], "amount": 7}
    assert last.calls == []
    assert run(app, {"log": [], "amount": 3}, mode=mode) == {"log": ["pay", "last"], "amount": 3}


@MODES
def test_a_command_from_a_subgraph_is_refused(mode: str) -> None:
    """A command to the parent graph is an output of the node that runs the subgraph."""

    def hand_over(_: State) -> Command[Any]:
        return Command(graph=Command.PARENT, update={"log": ["inner"], "amount": 7}, goto="last")

    last = Spy("last")
    builder = StateGraph(State)
    builder.add_node("sub", chain(hand_over), destinations=("last",))
    builder.add_node("last", last)
    builder.add_edge(START, "sub")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Review("limit", NO["deny"][0], target_nodes=["sub"], on_deny="end"))
    assert run(arbiter_os.govern(builder.compile()), {"log": []}, mode=mode) == {"log": []}
    assert last.calls == []


class Twice(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Correction:
        return Correction.commit() if attempt == 2 else Correction.retry("again")


@MODES
def test_a_correction_gate_comes_first(mode: str) -> None:
    """The review sees the draft that the gate took, once, and has the last word."""
    pay = Spy("pay", amount=7)
    arbiter_os = ArbiterOS()
    review = Review("limit", NO["deny"][0])
    arbiter_os.add_policy_checker(review)
    arbiter_os.add_correction_gate(Twice("gate"))
    with pytest.raises(PolicyViolationError, match="because"):
        run(arbiter_os.govern(chain(pay)), {"log": []}, mode=mode)
    assert (len(pay.calls), len(review.seen)) == (2, 1)


@MODES
def test_an_output_that_a_human_edited_is_reviewed_again(mode: str) -> None:
    """An escalated output is looked at before the question and, when it is edited, after it."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Review("limit", below(5), target_nodes=["pay"]))
    router = Route("human", lambda _h, _o: Verdict.ask("look"), target_nodes=["pay"])
    router.escalates = True
    arbiter_os.add_policy_router(router)
    app = arbiter_os.govern(chain(Spy("pay", amount=3), Spy("last"), checkpointer=InMemorySaver()))

    def answered(name: str, amount: int) -> Any:
        run(app, {"log": []}, thread(name), mode=mode)
        answer: Command[Any] = Command(resume={"type": "edit", "output": {"amount": amount}})
        return run(app, answer, thread(name), mode=mode)

    assert answered("a", 4)["amount"] == 4
    with pytest.raises(PolicyViolationError, match="output was not committed"):
        answered("b", 9)
    assert app.get_state(thread("b")).values == {"log": []}


def test_a_refused_step_can_be_resumed_in_another_process(tmp_path: Any) -> None:
    """The checkpoint before the node stays: a later run, with other rules, takes it from there."""
    for limit, expected in ((5, None), (10, {"log": ["first", "pay"], "amount": 7})):
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Review("limit", below(limit), target_nodes=["pay"]))
        with SqliteSaver.from_conn_string(str(tmp_path / "c.db")) as saver:
            app = arbiter_os.govern(chain(Spy("first"), Spy("pay", amount=7), checkpointer=saver))
            if expected is None:
                with pytest.raises(PolicyViolationError):
                    app.invoke({"log": []}, thread("t"))
            else:
                assert app.invoke(None, thread("t")) == expected


def same(*_: Any) -> str:
    return "same"


def test_a_refused_output_is_never_served_from_the_cache() -> None:
    """The entry that a redirect left in a node's cache is not taken for the node's result."""
    from langgraph.cache.memory import InMemoryCache

    pay = Spy("pay", amount=7)
    builder = StateGraph(State)
    builder.add_node("pay", pay, cache_policy=CachePolicy(key_func=same))
    builder.add_edge(START, "pay")
    answers = iter([False, True])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Review("limit", lambda _: next(answers), on_deny="end"))
    app = arbiter_os.govern(builder.compile(cache=InMemoryCache()))
    assert app.invoke({"log": []}) == {"log": []}
    assert app.invoke({"log": []}) == {"log": ["pay"], "amount": 7}
    assert len(pay.calls) == 2


@MODES
def test_a_governed_function_is_reviewed(mode: str) -> None:
    """Without a graph a refusal raises."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Review("limit", below(5)))

    def pay(state: State) -> dict[str, Any]:
        return {"amount": state.get("amount", 0)}

    def step(amount: int) -> Any:
        if mode == "sync":
            return arbiter_os.execute({"amount": amount}, pay, instruction=GENERATE)
        return asyncio.run(arbiter_os.aexecute({"amount": amount}, pay, instruction=GENERATE))

    assert step(3) == {"amount": 3}
    with pytest.raises(PolicyViolationError, match="output was not committed"):
        step(7)
