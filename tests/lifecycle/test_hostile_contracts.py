"""Contracts that misbehave on purpose, and what must hold all the same."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import operator
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.pregel._loop import PregelLoop
from langgraph.types import CachePolicy, Command, Send, interrupt
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from arbiter import (
    ArbiterError,
    ArbiterOS,
    Correction,
    CorrectionError,
    EvaluationResult,
    EvaluationRouter,
    History,
    HistoryItem,
    HistoryListener,
    HistoryPolicyChecker,
    PolicyChecker,
    PolicyViolationError,
    Verdict,
)
from arbiter.checkers import BudgetChecker, ConditionChecker, RequireBefore, ToolsChecker
from arbiter.instructions import GENERATE, RESPOND, TOOL_CALL, VERIFY
from tests.lifecycle.test_advice import Review, Tell
from tests.support import (
    MODES,
    PATIENCE,
    Check,
    Hold,
    Judge,
    Route,
    Spy,
    State,
    chain,
    gained,
    good,
    run,
    thread,
)


@MODES
def test_a_copy_of_a_view_shares_nothing_with_the_state(mode: str) -> None:
    def tamper(state: Any) -> None:
        for copied in (dict(state), {**state}, {} | state, state | {}):
            copied["log"] = [*copied["log"], "EVIL"]
            with pytest.raises(TypeError):
                state["log"].append("EVIL")
        for items in ([] + state["log"], state["log"] * 1, 1 * state["log"], list(state["log"])):
            items.append("EVIL")

    def check(history: History) -> bool:
        tamper(history.entries[-1][-1].input_state)
        return True

    def judge(history: History) -> EvaluationResult:
        tamper(history.entries[-1][-1].output_state)
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("check", check))
    arbiter_os.add_evaluator(Judge("judge", judge, durable=True))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    assert run(app, {"log": ["in"]}, mode=mode) == {"log": ["in", "a", "b"]}
    assert not any(item.evaluation_errors for item in arbiter_os.history.items())


def one(state: State) -> Command[Any]:
    return Command(update={"amount": 1})


def test_router_cannot_change_a_command() -> None:
    def tamper(history: History, output: Any) -> None:
        output.update["amount"] = 666

    builder = StateGraph(State)
    builder.add_node("a", one)
    builder.add_edge(START, "a")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("tamper", tamper))
    assert arbiter_os.govern(builder).invoke({"log": []})["amount"] == 1


class Page:
    """Counts the copies that are made of it."""

    copies = 0

    def __deepcopy__(self, memo: Any) -> Page:
        Page.copies += 1
        return self


@MODES
@pytest.mark.parametrize("listed", [False, True])
def test_a_router_sees_a_command_without_a_copy_of_its_update(listed: bool, mode: str) -> None:
    """Also of what it sends. It can read everything and change nothing, whatever the size of the update."""
    pages = [Page() for _ in range(3)]
    sent = Send("b", {"log": ["sent"], "pages": pages})
    seen: list[Any] = []

    def first(state: Any) -> Any:
        command: Any = Command(update={"log": ["a"], "pages": pages}, goto=[sent, "b"])
        return [command] if listed else command

    def read(history: History, output: Any) -> None:
        command = output[0] if listed else output
        assert (type(command), type(command.goto[0])) == (Command, Send)
        assert len(command.update["pages"]) == len(command.goto[0].arg["pages"]) == 3
        seen.append((Page.copies, command.update["log"][0], command.goto[0].arg["log"][0], command.goto[1]))
        changes: list[Callable[[], Any]] = [
            lambda: command.update.clear(),
            lambda: command.update["pages"].clear(),
            lambda: command.goto.clear(),
            lambda: command.goto[0].arg["log"].append("tampered"),
            lambda: setattr(command.goto[0], "node", "a"),
            lambda: setattr(command, "update", {}),
        ]
        for change in changes:
            with suppress(TypeError, AttributeError):
                change()

    Page.copies = 0
    builder: Any = StateGraph(Paged)
    builder.add_node("a", first, destinations=("b",))
    builder.add_node("b", of_the_pages)
    builder.add_edge(START, "a")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("reads", read, target_nodes=["a"]))
    found = run(arbiter_os.govern(builder.compile()), {"log": [], "pages": []}, mode=mode)
    assert seen == [(0, "a", "sent", "b")]
    assert sorted(found["log"]) == ["3 from a", "3 from sent", "a"]


class Paged(TypedDict):
    log: Annotated[list[str], operator.add]
    pages: list[Any]


def of_the_pages(state: Any) -> Any:
    return {"log": [f"{len(state['pages'])} from {state['log'][0]}"]}


def cached(node: Any, **kinds: Any) -> Any:
    builder = StateGraph(State)
    before = START
    for name in kinds:
        body = node if name == "respond" else Spy(name)
        builder.add_node(name, body, cache_policy=CachePolicy() if name == "respond" else None)
        builder.add_edge(before, name)
        before = name
    return builder.compile(checkpointer=InMemorySaver(), cache=InMemoryCache())


def test_a_cache_answers_for_no_checker_that_asks() -> None:
    respond = Spy("respond")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("sure?")))
    app = arbiter_os.govern(cached(respond, respond=RESPOND))
    for name in ("1", "2"):
        assert "__interrupt__" in app.invoke({"amount": 5}, thread(name))
        app.invoke(Command(resume="approve"), thread(name))


def test_a_cache_answers_for_no_checker_that_reads_the_history() -> None:
    respond = Spy("respond")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(HistoryPolicyChecker("verify_first", [GENERATE, RESPOND]))
    kinds = {"write": GENERATE, "verify": VERIFY, "respond": RESPOND}
    app = arbiter_os.govern(cached(respond, **kinds), kinds)
    for name in ("1", "2"):
        app.invoke({"log": []}, thread(name))
    assert len(respond.calls) == 2


class ByInput(Check):
    """Says that its answer depends on the input alone."""

    reads_history = False


class Counting(ConditionChecker):
    """A built-in kind that somebody has made depend on more."""

    calls = 0

    def check_before(self, history: History) -> Verdict:
        self.calls += 1
        return super().check_before(history)


class Before(PolicyChecker):
    """Says that its answer depends on the input alone."""

    reads_history = False

    def check_before(self, history: History) -> bool:
        return True


class After(Before):
    """Judges outputs too, by unknown criteria."""

    calls = 0

    def check_after(self, output: Any, history: History) -> bool:
        self.calls += 1
        return True


@MODES
def test_a_checker_of_ones_own_is_asked_each_time(mode: str) -> None:
    """Its answer may depend on anything: who is there, what time it is. The second run is denied."""
    open_now = [True, False]
    respond = Spy("respond")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("hours", lambda _: open_now.pop(0)))
    app = arbiter_os.govern(cached(respond, respond=RESPOND))
    run(app, {"log": []}, thread("1"), mode=mode)
    with pytest.raises(PolicyViolationError, match="hours"):
        run(app, {"log": []}, thread("2"), mode=mode)


@pytest.mark.parametrize("make", [lambda: Counting("c", "input.amount > 100"), lambda: After("after")])
def test_a_subclass_and_a_check_of_the_output_are_asked_each_time(make: Any) -> None:
    respond, checker = Spy("respond"), make()
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(checker)
    app = arbiter_os.govern(cached(respond, respond=RESPOND))
    for name in ("1", "2"):
        app.invoke({"log": [], "amount": 5}, thread(name))
    assert checker.calls == len(respond.calls) == 2


def test_a_cache_serves_nothing_of_a_time_before_a_rule_followed_the_node() -> None:
    """The rule is for another node, and has to know that this one wrote."""
    respond, pay = Spy("respond"), Spy("pay")
    builder = StateGraph(State)
    builder.add_node("respond", respond, cache_policy=CachePolicy())
    builder.add_node("pay", pay)
    builder.add_edge(START, "respond")
    builder.add_edge("respond", "pay")
    arbiter_os = ArbiterOS()
    kinds: dict[str, Any] = {"respond": GENERATE, "pay": TOOL_CALL}
    app = arbiter_os.govern(builder.compile(cache=InMemoryCache()), kinds)
    app.invoke({"log": []})
    arbiter_os.add_policy_checker(
        RequireBefore("verified", VERIFY, since=[GENERATE], target_instructions=[TOOL_CALL])
    )
    for _ in range(2):
        with pytest.raises(PolicyViolationError, match="verified"):
            app.invoke({"log": []})
    assert len(pay.calls) == 1


def test_a_cache_serves_where_checkers_only_allow() -> None:
    respond = Spy("respond")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ByInput("fine", lambda _: True))
    app = arbiter_os.govern(cached(respond, respond=RESPOND))
    for name in ("1", "2"):
        assert app.invoke({"log": []}, thread(name)) == {"log": ["respond"]}
    assert len(respond.calls) == 1


LIMIT = """version: 1
name: limits
description: Amounts have a limit.
checkers:
  - {{name: lim, use: condition, deny_when: "input.amount > {}", target_nodes: [respond]}}
  - {{name: other, use: condition, deny_when: "input.amount < 0", target_nodes: [respond]}}
evaluators:
  - {{name: fine, use: threshold, key: amount, threshold: {}}}
"""


def limits(where: Path, limit: int, least: int = 0) -> Path:
    (where / "policies").mkdir(exist_ok=True)
    (where / "policies" / "limits.yaml").write_text(LIMIT.format(limit, least))
    return where


@pytest.mark.lengthy
@MODES
def test_a_cache_does_not_serve_what_older_rules_allowed(mode: str, tmp_path: Path) -> None:
    respond = Spy("respond")
    arbiter_os = ArbiterOS.from_constitution(limits(tmp_path, 1000))
    app = arbiter_os.govern(cached(respond, respond=RESPOND))
    given: dict[str, Any] = {"log": [], "amount": 500}
    run(app, given, thread("1"), mode=mode)
    limits(tmp_path, 1000)
    arbiter_os.load_constitution()
    run(app, given, thread("2"), mode=mode)
    assert len(respond.calls) == 1  # the rules are the same
    limits(tmp_path, 1000, least=1)
    arbiter_os.load_constitution()
    run(app, given, thread("3"), mode=mode)
    assert len(respond.calls) == 2  # another evaluator judges it
    limits(tmp_path, 100)
    arbiter_os.load_constitution()
    with pytest.raises(PolicyViolationError, match="lim"):
        run(app, given, thread("4"), mode=mode)


@MODES
def test_a_cache_does_not_serve_what_the_rules_of_others_allowed(mode: str) -> None:
    """The names are the same, and so are the classes."""
    cache = cast(Any, InMemoryCache())
    respond = Spy("respond")
    for limit in (1000, 100):
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(ConditionChecker("lim", f"input.amount > {limit}"))
        graph = cached(respond, respond=RESPOND)
        graph.cache = cache
        app = arbiter_os.govern(graph)
        if limit == 1000:
            run(app, {"log": [], "amount": 500}, thread("1"), mode=mode)
        else:
            with pytest.raises(PolicyViolationError, match="lim"):
                run(app, {"log": [], "amount": 500}, thread("2"), mode=mode)


@MODES
def test_approval_of_a_function_counts_for_what_was_shown(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("pay?"), target_nodes=["pay"]))
    amounts = [10]
    paid: list[int] = []

    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    governed = arbiter_os.govern(pay)

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_: str) -> int:
        amounts[0] = min(amounts[0] * 100, 100_000)
        return governed(amounts[0])

    first = run(flow, "go", thread("1"), mode=mode)["__interrupt__"][0].value
    assert first["input"] == {"__root__": 1000}
    again = run(flow, Command(resume="approve"), thread("1"), mode=mode)["__interrupt__"][0].value
    assert again["input"] == {"__root__": 100_000}
    assert paid == []
    assert run(flow, Command(resume="approve"), thread("1"), mode=mode) == 100_000


def test_late_answer_of_a_checker_that_will_not_be_cancelled() -> None:
    class Stubborn(Check):
        async def check_before(self, history: History) -> bool:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
            return True

    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Stubborn("stubborn", good, deadline=0.05))
    with pytest.raises(PolicyViolationError, match="no answer within"):
        asyncio.run(arbiter_os.govern(chain(pay)).ainvoke({"log": []}))
    assert pay.calls == []


def odd_result(**fields: Any) -> Any:
    def judge(_: History) -> EvaluationResult:
        parts: dict[str, Any] = {"score": 0.5, "passed": True, **fields}
        return EvaluationResult(**parts)

    return judge


@MODES
@pytest.mark.parametrize(
    "fields", [{"feedback": None}, {"feedback": 3}, {"metadata": None}, {"metadata": [1]}]
)
def test_odd_parts_of_a_result_are_a_fault(fields: Any, mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("odd", odd_result(**fields)))
    arbiter_os.add_policy_router(EvaluationRouter("r", "odd", "b", target_nodes=["a"]))
    assert run(arbiter_os.govern(chain(Spy("a"), Spy("b"))), {"log": []}, mode=mode)["log"] == ["a", "b"]
    assert "odd" in arbiter_os.history.entries[0][0].evaluation_errors


@pytest.mark.parametrize("on_deny", ["raise", "audit"])
def test_odd_reasons_are_shown_as_text(on_deny: str) -> None:
    reason: Any = ValueError("why")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("odd", lambda _: Verdict.deny(reason), on_deny=on_deny))
    app = arbiter_os.govern(chain(Spy("a")))
    if on_deny == "audit":
        assert app.invoke({"log": []}) == {"log": ["a"]}
    else:
        with pytest.raises(PolicyViolationError, match="ValueError"):
            app.invoke({"log": []})


@MODES
def test_odd_feedback_is_recorded_as_text(mode: str, tmp_path: Path) -> None:
    feedback: Any = ValueError("no source")
    arbiter_os = ArbiterOS(ledger=tmp_path / "l.db")
    arbiter_os.add_correction_gate(Review("odd", lambda h, d, n: Correction.retry(feedback), max_attempts=2))
    assert run(arbiter_os.govern(chain(Spy("a"))), {"log": []}, mode=mode) == {"log": ["a"]}
    assert json.loads(arbiter_os.history.to_jsonl())["corrections"] == ["ValueError('no source')"] * 2
    assert arbiter_os.ledger.flush(PATIENCE)
    [item] = arbiter_os.ledger.items()
    assert [said for _, said in item.drafts] == ["ValueError('no source')"] * 2
    arbiter_os.ledger.close()


@MODES
@pytest.mark.parametrize("answer", [Correction.retry, Correction.give_up])
def test_feedback_of_none_is_no_reason(answer: Any, mode: str) -> None:
    """As that of a judge whose answer has none."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("odd", lambda h, d, n: answer(None), on_exhausted="raise"))
    with pytest.raises(CorrectionError, match="no reason was given"):
        run(arbiter_os.govern(chain(Spy("a"))), {"log": []}, mode=mode)
    assert set(arbiter_os.history.item.corrections) == {""}


def test_schema_whose_validator_breaks_has_not_agreed() -> None:
    class Broken(BaseModel):
        log: list[str]

        @field_validator("log")
        @classmethod
        def check(cls, value: list[str]) -> list[str]:
            raise KeyError("oops")

    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a")), schemas={"a": {"input": Broken}})
    with pytest.raises(PolicyViolationError, match="KeyError"):
        app.invoke({"log": []})
    assert arbiter_os.history.entries[-1][-1].status == "denied"


@MODES
@pytest.mark.parametrize("adjacent", [True, False])
def test_a_denied_step_does_not_count_as_done(adjacent: bool, mode: str) -> None:
    """A VERIFY that was denied does not stand between; a GENERATE that was denied did not happen."""
    respond = Spy("respond")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(HistoryPolicyChecker("vf", [GENERATE, RESPOND], adjacent=adjacent))
    arbiter_os.add_policy_checker(
        Check("no", lambda _: False, target_nodes=["verify"], on_deny="redirect:respond")
    )
    kinds = {"write": GENERATE, "verify": VERIFY, "respond": RESPOND}
    app = arbiter_os.govern(chain(Spy("write"), Spy("verify"), respond), kinds)
    with pytest.raises(PolicyViolationError, match="vf"):
        run(app, {"log": []}, mode=mode)
    assert respond.calls == []


@pytest.mark.lengthy
def test_evaluator_that_hangs_after_many_quick_calls(hold: Hold) -> None:
    calls: list[int] = []

    def judge(history: History) -> EvaluationResult:
        calls.append(1)
        if len(calls) > 5:
            hold()
        return good(history)

    class Short(Judge):
        deadline = 0.3

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Short("hangs", judge))
    arbiter_os.add_evaluator(Judge("sound", good))
    arbiter_os.add_policy_router(EvaluationRouter("r", "hangs", "b", target_nodes=["a"]))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    for _ in range(4):
        assert app.invoke({"log": []}) == {"log": ["a", "b"]}
    assert arbiter_os.drain(PATIENCE)
    assert all("sound" in item.evaluation_results for item in arbiter_os.history.items())


def test_evaluator_that_raises_keyboard_interrupt_in_the_background() -> None:
    def judge(history: History) -> EvaluationResult:
        raise KeyboardInterrupt

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("rude", judge))
    app = arbiter_os.govern(chain(Spy("a")))
    for _ in range(2):
        app.invoke({"log": []})
        assert arbiter_os.drain(60)
    assert "KeyboardInterrupt" in arbiter_os.history.entries[-1][-1].evaluation_errors["rude"]


def leave_at_a_signal(*_: Any) -> Any:
    sys.exit(7)


def leave_and_ignore_the_next_one(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(7)


class Leaving:
    def __call__(self, number: int, frame: Any) -> None:
        sys.exit(7)


@contextmanager
def exiting_on_sigterm(handler: Any) -> Generator[None]:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@MODES
@pytest.mark.parametrize(
    ("stage", "handler"),
    [
        ("router", leave_at_a_signal),
        ("evaluator", leave_at_a_signal),
        ("listener", leave_at_a_signal),
        ("router", leave_and_ignore_the_next_one),
        ("router", Leaving()),
    ],
)
def test_a_program_whose_signal_handler_exits_ends_whatever_runs(
    stage: str, handler: Any, mode: str, hold: Hold
) -> None:
    signals = iter([signal.SIGTERM])  # an evaluation that was cut off is repeated in the background

    def terminated(*_: Any) -> Any:
        for number in signals:
            os.kill(os.getpid(), number)
        return hold() if stage == "evaluator" else None

    class Listener(HistoryListener):
        def began(self, item: HistoryItem) -> None:
            terminated()

    arbiter_os = ArbiterOS(listeners=[Listener()] if stage == "listener" else [])
    if stage == "router":
        arbiter_os.add_policy_router(Route("router", terminated))
    if stage == "evaluator":
        arbiter_os.add_evaluator(Judge("judge", terminated))
        arbiter_os.add_policy_router(EvaluationRouter("needs", "judge", "b", target_nodes=["a"]))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    with exiting_on_sigterm(handler), pytest.raises(SystemExit, match="7"):
        run(app, {"log": []}, mode=mode)


@MODES
def test_a_function_that_handles_signals_may_be_called_by_a_contract_and_fails_it(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("router", leave_at_a_signal))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    with exiting_on_sigterm(leave_at_a_signal):
        assert run(app, {"log": []}, mode=mode) == {"log": ["a", "b"]}


@MODES
def test_checker_that_interrupts_by_itself_before_another_asks(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("who", lambda _: bool(interrupt("who are you?"))))
    arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("pay?")))
    pay = Spy("pay")
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    paused = run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert paused["__interrupt__"][0].value["reason"] == "pay?"
    assert pay.calls == []
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay"]


def test_ask_where_no_answer_can_be_tied_to_the_question_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "arbiter._weaving.asking.PAUSES", (0.001,)
    )  # the wait for a checkpoint that never comes
    inner = StateGraph(State)
    inner.add_node("x", Spy("x"))
    inner.add_edge(START, "x")
    builder = StateGraph(State)
    builder.add_node("team", inner.compile(checkpointer=False))
    builder.add_edge(START, "team")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("pay?"), target_nodes=["x"]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    app.invoke({"log": []}, thread("1"))
    with pytest.raises(PolicyViolationError, match="no checkpointer"):
        app.invoke(Command(resume="approve"), thread("1"))


def test_values_passed_on_by_a_gate_or_advisor_can_be_changed() -> None:
    def a(state: Any) -> Any:
        state.get("extra", []).append(1)
        return {"log": [["x"]]}

    def b(state: Any) -> Any:
        state["log"][0].append("y")
        return {}

    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Review("g", lambda h, d, n: Correction.commit(d), target_nodes=["a"]))

    def hand_on(history: History, state: Any) -> Any:
        return {"extra": state["log"]}

    arbiter_os.add_advisor(Tell("t", hand_on, target_nodes=["a"]))
    assert arbiter_os.govern(chain(a, b)).invoke({"log": []}) == {"log": [["x", "y"]]}


class Model(BaseModel):
    amount: int = 0
    hint: str | None = None


@dataclasses.dataclass
class Data:
    amount: int = 0
    hint: str | None = None


def returns_model(state: Any) -> Any:
    state.amount = 2
    return state


def returns_command(state: Any) -> Any:
    return Command(update={**state, "amount": 2})


@pytest.mark.parametrize(
    ("schema", "body"), [(Model, returns_model), (Data, returns_model)], ids=["pydantic", "dataclass"]
)
def test_advice_does_not_become_state_by_way_of_a_model(schema: Any, body: Any) -> None:
    builder = StateGraph(schema)
    builder.add_node("a", body)
    builder.add_edge(START, "a")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("t", {"hint": "SECRET"}))
    output = arbiter_os.govern(builder).invoke({"amount": 1})
    assert output["amount"] == 2
    assert output.get("hint") is None


def test_a_value_of_the_nodes_own_that_equals_a_transient_one_is_kept() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Tell("t", {"amount": 1}))
    app = arbiter_os.govern(chain(Spy("a", amount=1)))
    assert app.invoke({"log": [], "amount": 9})["amount"] == 1


def test_router_that_answers_a_member_of_an_enum() -> None:
    class Next(str, Enum):  # noqa: UP042 - its own str() is another text, unlike a StrEnum's
        REFLECT = "reflect"

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("r", lambda h, o: Next.REFLECT, target_nodes=["a"]))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), extra=[Spy("reflect")]))
    assert app.invoke({"log": []}) == {"log": ["a", "reflect"]}


def test_values_can_be_pickled() -> None:
    error = PolicyViolationError(policy="p", node="n", reason="r")
    for value in (Verdict.allow(), Verdict.ask("x", y=1), EvaluationResult(1.0, True), error):
        copied = pickle.loads(pickle.dumps(value))
        assert copied == value or str(copied) == str(value)


@pytest.mark.lengthy
def test_an_arbiter_and_its_records_are_garbage_collected() -> None:
    refs: list[Any] = []

    def once(config: RunnableConfig | None = None) -> None:
        arbiter_os = ArbiterOS()
        graph = chain(Spy("a"))
        arbiter_os.execute({"log": []}, graph, config)
        refs.append(weakref.ref(arbiter_os))
        refs.append(weakref.ref(graph))

    for _ in range(5):
        once()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


@pytest.mark.lengthy
def test_a_run_that_rules_look_into_is_freed_without_a_collection() -> None:
    """As LangGraph's own runs are."""
    runs: list[Any] = []

    def body(state: Any, config: RunnableConfig) -> Any:
        scratchpad = config.get("configurable", {})["__pregel_scratchpad"]
        runs.append(weakref.ref(scratchpad.get_null_resume))
        return {"log": ["a"]}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ToolsChecker("tools", deny=["delete"]))
    arbiter_os.add_policy_checker(BudgetChecker("tokens", tokens=1000))
    app = arbiter_os.govern(chain(body))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            app.invoke({"log": []})
        assert [ref() for ref in runs] == [None, None, None]
    finally:
        gc.enable()


def fails(history: History, output: Any = None) -> bool:
    raise ZeroDivisionError


async def fails_in_the_loop(history: History) -> bool:
    raise ZeroDivisionError


FAILING: dict[str, Any] = {
    "evaluator": lambda: Judge("e", fails, durable=True),
    "async evaluator": lambda: Judge("e", fails_in_the_loop, durable=True),
    "checker with a deadline": lambda: Check("c", fails, on_deny="audit", deadline=PATIENCE),
    "router": lambda: Route("r", fails),
    "router with a deadline": lambda: Route("r", fails, deadline=PATIENCE),
    "async checker with a deadline": lambda: Check(
        "c", fails_in_the_loop, on_deny="audit", deadline=PATIENCE
    ),
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("kind", FAILING)
def test_a_run_whose_rule_failed_is_freed_without_a_collection(kind: str, mode: str) -> None:
    rule = FAILING[kind]()
    if mode == "sync" and kind == "async checker with a deadline":
        return  # a sync run refuses it
    arbiter_os = ArbiterOS(keep=1)
    match rule:
        case Judge():
            arbiter_os.add_evaluator(rule)
        case Route():
            arbiter_os.add_policy_router(rule)
        case _:
            arbiter_os.add_policy_checker(rule)
    app = arbiter_os.govern(chain(Spy("a")))
    runs = PregelLoop.__subclasses__()
    run(app, {"log": []}, mode=mode)
    for loop in runs:
        assert gained(loop, lambda: run(app, {"log": []}, mode=mode), times=3) <= 0


@pytest.mark.lengthy
def test_an_arbiter_keeps_no_agent_alive_whose_nodes_know_their_graph() -> None:
    """The usual class around a graph: its methods are the nodes, and it has the governed graph."""
    arbiter_os = ArbiterOS(keep=1)

    class Agent:
        def __init__(self) -> None:
            self.app = arbiter_os.govern(chain(Spy("a"), self.answer))

        def answer(self, state: Any) -> Any:
            return {"log": ["answered"]}

    agents: weakref.WeakSet[Agent] = weakref.WeakSet()
    last = Agent()
    for _ in range(5):
        agents.add(last)
        assert last.app.invoke({"log": []}) == {"log": ["a", "answered"]}
        last = Agent()
    gc.collect()
    assert not agents
    with pytest.raises(ArbiterError, match="nowhere"):  # what is governed is still known
        arbiter_os.add_policy_router(EvaluationRouter("r", "look", "nowhere"))


@MODES
@pytest.mark.parametrize("deadline", [None, 2.0])
def test_checker_that_raises_stop_iteration_denies(mode: str, deadline: float | None) -> None:
    """An event loop would wait for it for ever: asyncio hands on no `StopIteration`."""

    def check(history: History) -> bool:
        nothing: list[bool] = []
        return next(iter(nothing))

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("empty", check, deadline=deadline))
    with pytest.raises(PolicyViolationError, match="StopIteration"):
        run(arbiter_os.govern(chain(Spy("a"))), {"log": []}, mode=mode)
