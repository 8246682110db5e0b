"""A human sees an output before it is committed. The body does not run again for that."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, TypedDict, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, interrupt
from pydantic import BaseModel

from arbiter import (
    ArbiterOS,
    ConfigurationError,
    EvaluationResult,
    EvaluationRouter,
    History,
    OutputSchemaError,
    PolicyRouter,
    PolicyViolationError,
    ThresholdEvaluator,
    UnknownNodeError,
    Verdict,
)
from arbiter.checkers import ApprovalChecker
from arbiter.errors import ParameterError
from arbiter.routers import EscalationRouter
from tests.graphs import of
from tests.support import MODES, Check, Judge, Route, Spy, State, chain, question, run, statuses, thread

LOW: Any = {"log": [], "amount": 20}


def newsroom(write: Any, saver: Any = None, *more: Any, **parameters: Any) -> tuple[ArbiterOS, Any]:
    """`write` is followed by `send`; a human sees what scores below 0.5."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5, target_nodes=["write"]))
    given: dict[str, Any] = {"evaluator": "quality", "target_nodes": ["write"], **parameters}
    arbiter_os.add_policy_router(EscalationRouter("editor", **given))
    graph = chain(write, Spy("send"), extra=[Spy("fallback")], checkpointer=saver or InMemorySaver())
    return arbiter_os, arbiter_os.govern(graph)


# Approve, edit, reject ----------------------------------------------------------------------------


def nowhere(history: Any, output: Any) -> None:
    """A router that never redirects."""


@MODES
def test_the_human_sees_the_output_and_how_it_was_judged(mode: str) -> None:
    arbiter_os, app = newsroom(Spy("write", score=0.2), approvers=["alice"])
    asked = question(run(app, LOW, thread("1"), mode=mode))
    assert (asked["type"], asked["policy"], asked["node"]) == ("escalation", "editor", "write")
    assert asked["output"] == {"log": ["write"], "score": 0.2}
    assert asked["reason"].startswith("a human has to see the output: quality=0.20 did not pass")
    assert asked["evaluations"]["quality"]["passed"] is False
    assert (asked["approvers"], asked["allowed"]) == (["alice"], ["approve", "edit", "reject"])
    assert statuses(arbiter_os) == [("write", "interrupted")]
    assert app.get_state(thread("1")).values == LOW


@MODES
def test_a_good_output_passes_unseen(mode: str) -> None:
    _, app = newsroom(Spy("write", score=0.8))
    assert run(app, LOW, thread("1"), mode=mode)["log"] == ["write", "send"]


@MODES
def test_approved_output_is_committed_and_the_body_has_run_once(mode: str) -> None:
    write = Spy("write", score=0.2)
    arbiter_os, app = newsroom(write, approvers=["alice"])
    run(app, LOW, thread("1"), mode=mode)
    answer = {"type": "approve", "by": "alice"}
    result = run(app, Command(resume=answer), thread("1"), mode=mode)
    assert (result["log"], result["score"], len(write.calls)) == (["write", "send"], 0.2, 1)
    item = arbiter_os.history.last(node="write")
    assert item is not None
    assert (item.status, item.notes) == ("completed", {"router editor": "approved by 'alice'"})
    assert item.output_state == {"log": ["write"], "score": 0.2}
    assert item.evaluation_results["quality"].passed is False


class AskedTwice(InMemorySaver):
    """A saver in which another execution always asks the same question a moment earlier."""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        for channel, note in writes:
            if channel == "__arbiter_note" and note["name"].startswith("ask "):
                earlier = {**note["about"], "asked_at": note["about"]["asked_at"] - 1}
                super().put_writes(config, [(channel, {**note, "about": earlier})], task_id, task_path)
        super().put_writes(config, writes, task_id, task_path)


@MODES
def test_an_output_about_which_two_executions_ask_at_once_is_not_made_again(mode: str) -> None:
    """The one that is second shows the question of the first: an answer to another one would find no output."""
    write = Spy("write", score=0.2)
    _, app = newsroom(write, saver=AskedTwice())

    def go(given: Any) -> Any:
        if mode == "sync":
            return app.invoke(given, thread("1"), durability="sync")
        return asyncio.run(app.ainvoke(given, thread("1"), durability="sync"))

    go(LOW)
    result = go(Command(resume="approve"))
    assert (result["log"], len(write.calls)) == (["write", "send"], 1)


@MODES
def test_edited_output_is_committed_in_its_place(mode: str) -> None:
    write = Spy("write", score=0.2)
    arbiter_os, app = newsroom(write)
    run(app, LOW, thread("1"), mode=mode)
    answer = {"type": "edit", "output": {"score": 0.9}}
    assert run(app, Command(resume=answer), thread("1"), mode=mode)["score"] == 0.9
    item = arbiter_os.history.last(node="write")
    assert item is not None
    assert (item.output_state["score"], item.notes["router editor"]) == (0.9, "edited")
    assert len(write.calls) == 1


@MODES
@pytest.mark.parametrize("edit", [["edited"], Overwrite(["edited"])])
def test_an_edit_of_what_overwrites_a_field_overwrites_it_too(edit: Any, mode: str) -> None:
    """The human edits the whole list, so the reducer does not add the earlier one again."""

    def write(_: State) -> Any:
        return {"log": Overwrite(["draft"]), "score": 0.2}

    _, app = newsroom(write)
    run(app, {"log": ["old"]}, thread("1"), mode=mode)
    answer = {"type": "edit", "output": {"log": edit}}
    assert run(app, Command(resume=answer), thread("1"), mode=mode)["log"] == ["edited", "send"]


@MODES
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"type": "reject", "message": "too shrill"}, "rejected: too shrill"),
        ("sure", "expected approve, edit or reject"),
        ({"type": "edit", "input": {"score": 1}}, "an edit needs"),
        ({"type": "edit", "output": {"scroe": 1}}, "there is no field 'scroe'. Did you mean 'score'?"),
        ({"type": "approve", "output": {"score": 1}}, "an approval changes no output"),
        ({"type": "edit", "output": ["score"]}, "an edit needs"),
    ],
)
def test_rejected_output_is_not_committed(answer: Any, why: str, mode: str) -> None:
    write = Spy("write", score=0.2)
    arbiter_os, app = newsroom(write)
    run(app, LOW, thread("1"), mode=mode)
    with pytest.raises(PolicyViolationError) as caught:
        run(app, Command(resume=answer), thread("1"), mode=mode)
    assert why in caught.value.reason
    assert (caught.value.policy, len(write.calls)) == ("editor", 1)
    assert app.get_state(thread("1")).values == LOW
    assert statuses(arbiter_os) == [("write", "denied")]


@MODES
@pytest.mark.parametrize(("on_reject", "log"), [("end", []), ("redirect:fallback", ["fallback"])])
def test_on_reject_says_where_a_rejection_leads(on_reject: str, log: Any, mode: str) -> None:
    _, app = newsroom(Spy("write", score=0.2), on_reject=on_reject)
    run(app, LOW, thread("1"), mode=mode)
    assert run(app, Command(resume="reject"), thread("1"), mode=mode)["log"] == log


@MODES
def test_escalations_have_approvers_and_expiry_like_approvals(mode: str) -> None:
    now = [1000.0]
    arbiter_os = ArbiterOS(clock=lambda: now[0])
    arbiter_os.add_policy_router(EscalationRouter("editor", approvers=["alice"], expires_after=60))
    write = Spy("write")
    app = arbiter_os.govern(chain(write, checkpointer=InMemorySaver()))
    run(app, LOW, thread("1"), mode=mode)
    now[0] += 61
    again = question(run(app, Command(resume={"type": "approve", "by": "alice"}), thread("1"), mode=mode))
    assert again["note"] == "approved by 'alice' too late; the question had expired"
    now[0] += 30
    with pytest.raises(PolicyViolationError, match="'bob' may not approve"):
        run(app, Command(resume={"type": "approve", "by": "bob"}), thread("1"), mode=mode)
    assert len(write.calls) == 1


@MODES
def test_edited_output_is_held_against_the_schema(mode: str) -> None:
    class Story(BaseModel):
        score: float

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor"))
    graph = chain(Spy("write", score=0.2), checkpointer=InMemorySaver())
    app = arbiter_os.govern(graph, schemas={"write": {"output": Story}})
    run(app, LOW, thread("1"), mode=mode)
    with pytest.raises(OutputSchemaError):
        answer = {"type": "edit", "output": {"score": "high"}}
        run(app, Command(resume=answer), thread("1"), mode=mode)


# The body does not run again ----------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["approve", {"type": "edit", "output": {"score": 0.7}}])
def test_the_body_does_not_run_again_in_another_process(answer: Any, tmp_path: Path) -> None:
    write = Spy("write", score=0.2)

    def process(given: Any) -> Any:
        with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            return newsroom(write, saver)[1].invoke(given, thread("1"))

    process(LOW)
    assert process(Command(resume=answer))["log"] == ["write", "send"]
    assert len(write.calls) == 1


def test_the_body_does_not_run_again_in_another_async_process(tmp_path: Path) -> None:
    write = Spy("write", score=0.2)

    async def process(given: Any) -> Any:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            return await newsroom(write, saver)[1].ainvoke(given, thread("1"))

    asyncio.run(process(LOW))
    assert asyncio.run(process(Command(resume="approve")))["log"] == ["write", "send"]
    assert len(write.calls) == 1


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("asks", [0, 1, 2])
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_questions_asked_before_keep_their_answers(
    asks: int, checked: bool, elsewhere: bool, mode: str
) -> None:
    """By the body itself with interrupt(), and by a checker before it; also if another process goes on."""
    runs: list[Any] = []

    def write(state: Any) -> Any:
        answers = [interrupt(f"question {n}") for n in range(asks)]
        runs.append(answers)
        return {"log": answers or ["write"], "score": 0.1}

    saver = InMemorySaver()

    def process() -> Any:
        arbiter_os, app = newsroom(write, saver)
        if checked:
            arbiter_os.add_policy_checker(
                ApprovalChecker("boss", target_nodes=["write"], approvers=["alice"])
            )
        return arbiter_os, app

    arbiter_os, app = process()
    given: Any = LOW
    expected = [*(["approval"] if checked else []), *(f"question {n}" for n in range(asks)), "escalation"]
    for number, name in enumerate(expected):
        shown = run(app, given, thread("1"), mode=mode)["__interrupt__"][0].value
        assert (shown if isinstance(shown, str) else shown["type"]) == name
        answers: dict[str, Any] = {"approval": {"type": "approve", "by": "alice"}, "escalation": "approve"}
        given = Command(resume=answers.get(name, f"answer {number}"))
        if elsewhere:
            arbiter_os, app = process()
    result = run(app, given, thread("1"), mode=mode)
    assert len(runs) == 1
    assert result["log"][-1] == "send"
    assert result["score"] == 0.1
    item = arbiter_os.history.last(node="write")
    assert item is not None
    assert item.notes["router editor"] == "approved"
    assert item.notes.get("checker boss") == ("approved by 'alice'" if checked else None)


@MODES
def test_looking_at_a_paused_run_asks_again_and_runs_nothing(mode: str) -> None:
    write = Spy("write", score=0.2)
    _, app = newsroom(write)
    first = question(run(app, LOW, thread("1"), mode=mode))
    for _ in range(3):
        again = question(run(app, None, thread("1"), mode=mode))
        assert (again["output"], again["digest"]) == (first["output"], first["digest"])
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["write", "send"]
    assert len(write.calls) == 1


@MODES
@pytest.mark.parametrize("asks_before", [False, True])
def test_an_approved_output_is_kept_while_an_edge_asks(asks_before: bool, mode: str) -> None:
    """LangGraph runs the node again after each answer to its edge: the human sees no other output."""
    arbiter_os, drafts = ArbiterOS(), list[str]()
    if asks_before:
        arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["write"]))
    arbiter_os.add_policy_router(EscalationRouter("editor", target_nodes=["write"]))

    def write(state: Any) -> Any:
        drafts.append(f"draft {len(drafts)}")
        return {"log": drafts[-1:]}

    def edge(state: Any) -> str:
        assert [interrupt("where?"), interrupt("sure?")] == ["there", "yes"]
        return "send"

    builder: Any = StateGraph(State).add_node("write", write).add_node("send", Spy("send"))
    builder.add_edge(START, "write").add_conditional_edges("write", edge, ["send"])
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    result = run(app, {"log": []}, thread("1"), mode=mode)
    edit = {"type": "edit", "output": {"log": ["edited"]}}
    for answer in (*(["approve"] if asks_before else []), edit, "there", "yes"):
        assert result["__interrupt__"]
        result = run(app, Command(resume=answer), thread("1"), mode=mode)
    assert (result["log"], drafts) == (["edited", "send"], ["draft 0"])
    item = arbiter_os.history_of(thread_id="1").last(node="write")
    assert item is not None
    assert [answer.kind for answer in item.answers] == [*(["approve"] if asks_before else []), "edit"]


@MODES
def test_an_output_shown_to_a_human_is_not_judged_again(mode: str) -> None:
    """A judge that changes its mind meanwhile does not make the human's answer void."""
    scores = iter([0.1, 0.9, 0.9, 0.9])
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(
        Judge("moody", lambda _: EvaluationResult(score := next(scores), score > 0.5), target_nodes=["write"])
    )
    arbiter_os.add_policy_router(EscalationRouter("editor", evaluator="moody"))
    app = arbiter_os.govern(chain(Spy("write"), checkpointer=InMemorySaver()))
    run(app, LOW, thread("1"), mode=mode)
    with pytest.raises(PolicyViolationError, match="rejected"):
        run(app, Command(resume="reject"), thread("1"), mode=mode)
    assert next(scores) == 0.9


@MODES
def test_an_edited_output_is_judged_as_it_is_committed(mode: str) -> None:
    """However long a checkpointer takes to save the answer: the background does not judge what the edit replaces."""
    judged: list[int] = []
    has_judged = threading.Event()

    class Slow(InMemorySaver):
        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            if writes[0][0] == "__arbiter_note" and writes[0][1]["name"].startswith("answer"):
                has_judged.clear()
                judged.clear()
                has_judged.wait(0.3)
            super().put_writes(config, writes, task_id, task_path)

    def look(history: History) -> EvaluationResult:
        judged.append(history.item.output_state["amount"])
        has_judged.set()
        return EvaluationResult(1.0, True)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("unread", look))
    arbiter_os.add_policy_router(EscalationRouter("editor"))
    app = arbiter_os.govern(chain(Spy("write", amount=1), checkpointer=Slow()))
    run(app, LOW, thread("1"), mode=mode)
    assert arbiter_os.drain(60)
    edit = {"type": "edit", "output": {"amount": 2}}
    assert run(app, Command(resume=edit), thread("1"), mode=mode)["amount"] == 2
    assert arbiter_os.drain(60)
    assert judged == [2]


@MODES
def test_an_evaluator_that_came_meanwhile_judges_what_was_kept(mode: str) -> None:
    """In the place of another, whose result the human was shown."""
    judged: list[str] = []

    def judge(name: str) -> Judge:
        def look(history: History) -> EvaluationResult:
            judged.append(name)
            return EvaluationResult(0.1, False)

        return Judge(name, look)

    class Editor(PolicyRouter):
        escalates = True

        def route_after(self, history: History, current_output: Any) -> Any:
            history.entries[-1][-1].evaluation_results.get("first")
            return Verdict.ask("look")

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(judge("first"))
    arbiter_os.add_policy_router(Editor("editor"))
    app = arbiter_os.govern(chain(Spy("write"), checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    arbiter_os.remove_evaluator("first")
    arbiter_os.add_evaluator(judge("second"))
    run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert arbiter_os.drain(60)
    assert judged == ["first", "second"]


@MODES
def test_state_updated_meanwhile_makes_a_new_task_that_runs(mode: str) -> None:
    """`update_state` makes another checkpoint: the node runs for it, and its new output is shown."""
    write = Spy("write", score=0.2)
    _, app = newsroom(write)
    run(app, LOW, thread("1"), mode=mode)
    app.update_state(thread("1"), {"amount": 900})
    paused = run(app, None, thread("1"), mode=mode)
    assert question(paused)["type"] == "escalation"
    assert [call["amount"] for call in write.calls] == [20, 900]
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["write", "send"]
    assert len(write.calls) == 2


@MODES
def test_the_shown_output_is_committed_even_if_the_resume_changed_the_state(mode: str) -> None:
    write = Spy("write", score=0.2)
    _, app = newsroom(write)
    run(app, LOW, thread("1"), mode=mode)
    result = run(app, Command(resume="approve", update={"amount": 900}), thread("1"), mode=mode)
    assert (result["log"], result["amount"], len(write.calls)) == (["write", "send"], 900, 1)


@MODES
def test_a_rule_that_denies_now_stops_the_commit(mode: str) -> None:
    write, saver = Spy("write", score=0.2), InMemorySaver()
    run(newsroom(write, saver)[1], LOW, thread("1"), mode=mode)
    arbiter_os, later = newsroom(write, saver)
    arbiter_os.add_policy_checker(Check("closed", lambda _: (False, "closed"), target_nodes=["write"]))
    with pytest.raises(PolicyViolationError, match="closed"):
        run(later, Command(resume="approve"), thread("1"), mode=mode)
    assert later.get_state(thread("1")).values == LOW


@MODES
def test_a_rule_that_asks_now_asks_first_and_the_output_waits(mode: str) -> None:
    """One question takes the place of the other in the checkpoint; the output is kept in it."""
    write, saver = Spy("write", score=0.2), InMemorySaver()
    run(newsroom(write, saver)[1], LOW, thread("1"), mode=mode)
    arbiter_os, later = newsroom(write, saver)
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["write"]))
    assert question(run(later, Command(resume="approve"), thread("1"), mode=mode))["type"] == "approval"
    assert question(run(later, Command(resume="approve"), thread("1"), mode=mode))["type"] == "escalation"
    assert run(later, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["write", "send"]
    assert len(write.calls) == 1


@MODES
def test_approvers_are_those_of_the_rule_in_force(mode: str) -> None:
    write, saver = Spy("write", score=0.2), InMemorySaver()
    run(newsroom(write, saver, approvers=["alice"])[1], LOW, thread("1"), mode=mode)
    _, later = newsroom(write, saver, approvers=["bob"])
    with pytest.raises(PolicyViolationError, match="'alice' may not"):
        run(later, Command(resume={"type": "approve", "by": "alice"}), thread("1"), mode=mode)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("rule", ["gone", "audit", "off", "another of its name"])
@pytest.mark.parametrize("answer", ["approve", "reject", "none"])
def test_a_question_that_was_asked_is_answered_though_its_rule_is_gone(
    rule: str, answer: str, mode: str
) -> None:
    """The body is done and a human has been asked; that no rule would ask now does not run it again."""
    write, saver = Spy("write", score=0.2), InMemorySaver()
    run(newsroom(write, saver, approvers=["alice"])[1], LOW, thread("1"), mode=mode)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("elsewhere", lambda _: True, target_nodes=["send"]))
    if rule == "another of its name":
        arbiter_os.add_policy_router(Route("editor", nowhere, target_nodes=["write"]))
    elif rule != "gone":
        router = EscalationRouter("editor", target_nodes=["write"])
        router.mode = cast(Any, rule)
        arbiter_os.add_policy_router(router)
    later = arbiter_os.govern(chain(write, Spy("send"), extra=[Spy("fallback")], checkpointer=saver))
    resume: Any = None if answer == "none" else Command(resume={"type": answer, "by": "alice"})
    if answer == "reject":
        with pytest.raises(PolicyViolationError, match="rejected by 'alice'"):
            run(later, resume, thread("1"), mode=mode)
    elif answer == "none":
        assert question(run(later, resume, thread("1"), mode=mode))["output"]["log"] == ["write"]
    else:
        assert run(later, resume, thread("1"), mode=mode)["log"] == ["write", "send"]
    assert len(write.calls) == 1


@MODES
def test_a_body_whose_own_question_looks_like_one_of_ours_is_not_taken_for_one(mode: str) -> None:
    runs: list[Any] = []

    def write(state: Any) -> Any:
        runs.append(interrupt({"type": "escalation", "policy": "editor", "node": "write"}))
        return {"log": ["write"], "score": 0.2}

    _, app = newsroom(write)
    run(app, LOW, thread("1"), mode=mode)
    assert question(run(app, Command(resume="mine"), thread("1"), mode=mode))["output"]["log"] == ["write"]
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["write", "send"]
    assert runs == ["mine"]


# Shapes -------------------------------------------------------------------------------------------


class Model(BaseModel):
    log: list[str] = []
    score: float = 0.0


SHAPES: dict[str, Any] = {
    "dict": {"log": ["write"], "score": 0.2},
    "Command": Command(update={"log": ["write"], "score": 0.2}, goto="other"),
    "Command with Send": Command(update={"log": ["write"]}, goto=[Send("other", {"log": []})]),
    "Command with pairs": Command(update=[("log", ["write"]), ("score", 0.2)], goto=("other",)),
    "commands": [Command(update={"log": ["write"]}), Command(update={"score": 0.2}, goto="other")],
    "nothing": None,
    "pydantic": Model(log=["write"], score=0.2),
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_output_is_kept_as_it_was(shape: str, mode: str, tmp_path: Path) -> None:
    """An approved run has the result of a run without a question."""

    def build(saver: Any) -> Any:
        builder = StateGraph(State)
        builder.add_node("write", lambda state: SHAPES[shape])
        builder.add_node("other", Spy("other"))
        builder.add_node("send", Spy("send"))
        builder.add_edge(START, "write")
        builder.add_edge("write", "send")
        return builder.compile(checkpointer=saver)

    def process(given: Any, governed: bool = True) -> Any:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_router(EscalationRouter("editor", target_nodes=["write"]))
        if mode == "sync":
            with SqliteSaver.from_conn_string(str(tmp_path / f"db{governed}")) as saver:
                graph = build(saver)
                return (arbiter_os.govern(graph) if governed else graph).invoke(given, thread("1"))

        async def main() -> Any:
            async with AsyncSqliteSaver.from_conn_string(str(tmp_path / f"db{governed}")) as saver:
                graph = build(saver)
                return await (arbiter_os.govern(graph) if governed else graph).ainvoke(given, thread("1"))

        return asyncio.run(main())

    expected = process(LOW, governed=False)
    assert question(process(LOW))["type"] == "escalation"
    assert process(Command(resume="approve")) == expected


@MODES
def test_tuples_in_an_approved_output_are_tuples_still(mode: str) -> None:
    """A checkpoint, which keeps the output meanwhile, has no tuples."""

    class Points(TypedDict, total=False):
        points: Any

    points = ((1, 2), [(3,), {"at": (4, [5])}])
    builder: Any = StateGraph(Points)

    def plot(_: Any) -> dict[str, Any]:
        return {"points": points}

    builder.add_node("plot", plot)
    builder.add_edge(START, "plot")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor"))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {}, thread("1"), mode=mode)
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["points"] == points


@MODES
def test_a_command_to_the_parent_waits_for_the_human(mode: str) -> None:
    inner = StateGraph(State)
    runs: list[str] = []

    def write(state: Any) -> Any:
        runs.append("write")
        return Command(graph=Command.PARENT, update={"log": ["write"]}, goto="after")

    inner.add_node("write", write)
    inner.add_edge(START, "write")
    outer = StateGraph(State)
    outer.add_node("team", inner.compile(), destinations=("after",))
    outer.add_node("after", Spy("after"))
    outer.add_edge(START, "team")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor", target_nodes=["write"]))
    app = arbiter_os.govern(outer.compile(checkpointer=InMemorySaver()))
    question(run(app, LOW, thread("1"), mode=mode))
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["write", "after"]
    assert runs == ["write"]


@MODES
def test_a_command_that_came_up_from_a_subgraph_cannot_wait_and_is_denied(mode: str) -> None:
    """LangGraph has it already; letting it pass would be to let it pass unseen."""
    inner = StateGraph(State)
    inner.add_node(
        "write", lambda state: Command(graph=Command.PARENT, update={"log": ["write"]}, goto="after")
    )
    inner.add_edge(START, "write")
    outer = StateGraph(State)
    outer.add_node("team", inner.compile(), destinations=("after",))
    outer.add_node("after", Spy("after"))
    outer.add_edge(START, "team")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor", target_nodes=["team"]))
    app = arbiter_os.govern(outer.compile(checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError, match="command from a subgraph"):
        run(app, LOW, thread("1"), mode=mode)


@MODES
def test_a_subgraph_and_a_node_in_it_are_escalated_one_after_the_other(mode: str) -> None:
    """The question of the inner node also stands with the outer task; it is not taken for its own."""
    write = Spy("write", score=0.2)
    inner = StateGraph(State)
    inner.add_node("write", write)
    inner.add_edge(START, "write")
    outer = StateGraph(State)
    outer.add_node("team", inner.compile())
    outer.add_edge(START, "team")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor"))
    app = arbiter_os.govern(outer.compile(checkpointer=InMemorySaver()))
    assert question(run(app, LOW, thread("1"), mode=mode))["node"] == "write"
    assert question(run(app, Command(resume="approve"), thread("1"), mode=mode))["node"] == "team"
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["write"]
    assert len(write.calls) == 1


# Siblings -----------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("together", [False, True])
def test_two_siblings_have_a_question_and_an_answer_each(together: bool, mode: str) -> None:
    one, two = Spy("one"), Spy("two")
    builder = StateGraph(State)
    for node in (one, two):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor"))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    asked = {i.value["node"]: i.id for i in run(app, LOW, thread("1"), mode=mode)["__interrupt__"]}
    changed = {"type": "edit", "output": {"log": ["changed"]}}
    if together:
        answers = {asked["one"]: "approve", asked["two"]: changed}
        result = run(app, Command(resume=answers), thread("1"), mode=mode)
    else:
        run(app, Command(resume={asked["two"]: changed}), thread("1"), mode=mode)
        result = run(app, Command(resume={asked["one"]: "approve"}), thread("1"), mode=mode)
    assert result["log"] == ["one", "changed"]
    assert (len(one.calls), len(two.calls)) == (1, 1)


# Streams ------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("stream_mode", ["values", "updates", "tasks", "messages", "custom", "debug"])
def test_streams_show_the_output_once_it_is_approved(stream_mode: Any, mode: str) -> None:
    _, app = newsroom(Spy("write", score=0.2))

    def stream(given: Any) -> list[Any]:
        if mode == "sync":
            return list(app.stream(given, thread("1"), stream_mode=stream_mode))

        async def main() -> list[Any]:
            return [c async for c in app.astream(given, thread("1"), stream_mode=stream_mode)]

        return asyncio.run(main())

    before, after = stream(LOW), stream(Command(resume="approve"))
    if stream_mode == "values":
        assert all(chunk["log"] == [] for chunk in before)
        assert after[-1]["log"] == ["write", "send"]
    if stream_mode == "updates":
        assert [list(chunk) for chunk in before] == [["__interrupt__"]]
        assert after == [{"write": {"log": ["write"], "score": 0.2}}, {"send": {"log": ["send"]}}]


def test_events_of_an_approved_run_end_with_the_output_that_was_kept() -> None:
    """`astream_events` streams through the node, whose body does not run."""
    write = Spy("write", score=0.2)
    _, app = newsroom(write)

    async def main(given: Any) -> list[Any]:
        return [event async for event in app.astream_events(given, thread("1"), version="v2")]

    asyncio.run(main(LOW))
    events = asyncio.run(main(Command(resume={"type": "edit", "output": {"score": 0.6}})))
    assert events[-1]["data"]["output"]["log"] == ["write", "send"]
    assert (events[-1]["data"]["output"]["score"], len(write.calls)) == (0.6, 1)


# When it asks -------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    ("score", "asks"), [(0.4, True), (0.5, False), (None, False), ("low", False), (float("nan"), False)]
)
def test_a_number_that_is_absent_is_not_low(score: Any, asks: bool, mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor", key="score", below=0.5))
    app = arbiter_os.govern(chain(Spy("write", score=score), checkpointer=InMemorySaver()))
    result = run(app, LOW, thread("1"), mode=mode)
    assert ("__interrupt__" in result) is asks
    if asks:
        assert question(result)["reason"].endswith("score=0.4 is below 0.5")


def broken(_: History) -> EvaluationResult:
    raise ZeroDivisionError("no opinion")


@MODES
def test_an_evaluation_that_failed_is_for_a_human(mode: str) -> None:
    """Where no machine could judge. A node that the evaluator does not judge passes."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", broken, target_nodes=["write"]))
    arbiter_os.add_policy_router(EscalationRouter("editor", evaluator="quality"))
    app = arbiter_os.govern(chain(Spy("first"), Spy("write"), checkpointer=InMemorySaver()))
    asked = question(run(app, LOW, thread("1"), mode=mode))
    assert asked["node"] == "write"
    assert "quality failed (ZeroDivisionError: no opinion)" in asked["reason"]
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["first", "write"]


@MODES
def test_the_first_router_that_answers_wins(mode: str) -> None:
    for first in ("editor", "elsewhere"):
        arbiter_os = ArbiterOS()
        routers = [EscalationRouter("editor", target_nodes=["write"])]
        routers.insert(first == "editor", Route("elsewhere", lambda h, o: "fallback", target_nodes=["write"]))  # type: ignore[arg-type]
        for router in routers:
            arbiter_os.add_policy_router(router)
        app = arbiter_os.govern(
            chain(Spy("write"), Spy("send"), extra=[Spy("fallback")], checkpointer=InMemorySaver())
        )
        result = run(app, LOW, thread("1"), mode=mode)
        if first == "editor":
            question(result)
            result = run(app, Command(resume="approve"), thread("1"), mode=mode)
        assert result["log"] == ["write", "send" if first == "editor" else "fallback"]


# How often ----------------------------------------------------------------------------------------


def loop(**parameters: Any) -> tuple[ArbiterOS, Any, Spy]:
    """`write` runs five times, then `send`."""
    write = Spy("write")
    builder = StateGraph(State)
    builder.add_node("write", write)
    builder.add_node("send", Spy("send"))
    builder.add_edge(START, "write")
    builder.add_conditional_edges(
        "write", of(lambda state: "write" if state["log"].count("write") < 5 else "send"), ["write", "send"]
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor", target_nodes=["write"], **parameters))
    return arbiter_os, arbiter_os.govern(builder.compile(checkpointer=InMemorySaver())), write


@MODES
@pytest.mark.parametrize(("on_cap", "log"), [("continue", ["write"] * 5 + ["send"]), ("end", ["write"] * 3)])
def test_it_asks_as_often_as_it_may_in_a_run(on_cap: Any, log: Any, mode: str) -> None:
    arbiter_os, app, _ = loop(max_redirects=2, on_cap=on_cap)
    for name in ("1", "2"):  # each run has the cap anew
        given: Any = LOW
        for _ in range(2):
            question(run(app, given, thread(name), mode=mode))
            given = Command(resume="approve")
        assert run(app, given, thread(name), mode=mode)["log"] == log
    item = arbiter_os.history_of(thread_id="2").last(node="write")
    assert item is not None
    assert "max_redirects=2 reached; it did not ask a human" in item.notes["router editor"]


@MODES
def test_rejections_that_lead_back_to_the_writer_count_too(mode: str) -> None:
    """By default the run ends when the human has said no three times."""
    write = Spy("write", score=0.2)
    _, app = newsroom(write, on_reject="redirect:write")
    given: Any = LOW
    for _ in range(3):
        question(run(app, given, thread("1"), mode=mode))
        given = Command(resume="reject")
    assert run(app, given, thread("1"), mode=mode)["log"] == ["write"]
    assert len(write.calls) == 4


@MODES
def test_after_a_capped_reflection_the_human_sees_the_best_attempt(mode: str) -> None:
    scores = iter([0.3, 0.4, 0.1])

    def write(state: Any) -> Any:
        score = next(scores)
        return {"log": [f"write {score}"], "score": score}

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5, target_nodes=["write"]))
    arbiter_os.add_policy_router(
        EvaluationRouter("again", "quality", "write", max_redirects=2, on_cap="best_attempt")
    )
    arbiter_os.add_policy_router(EscalationRouter("editor", evaluator="quality"))
    app = arbiter_os.govern(chain(write, Spy("send"), checkpointer=InMemorySaver()))
    asked = question(run(app, LOW, thread("1"), mode=mode))
    assert asked["output"]["score"] == 0.4
    assert "took the best attempt" in asked["notes"]["router again"]
    result = run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert (result["score"], result["log"][-1]) == (0.4, "send")
    item = arbiter_os.history.last(node="write")
    assert item is not None
    assert "took the best attempt" in item.notes["router again"]


# Configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "parameter"),
    [
        ({"key": "score"}, "below"),
        ({"below": 0.5}, "key"),
        ({"key": "score", "below": "low"}, "below"),
        ({"key": "score", "below": float("nan")}, "below"),
        ({"key": "score", "below": float("-inf")}, "below"),
        ({"on_reject": "audit"}, "on_reject"),
        ({"on_reject": "redirect:"}, "on_reject"),
        ({"on_cap": "stop"}, "on_cap"),
        ({"on_cap": "best_attempt"}, "best_by"),
        ({"max_redirects": -1}, "max_redirects"),
        ({"approvers": "alice"}, "approvers"),
        ({"expires_after": 0}, "expires_after"),
        ({"reason": ""}, "reason"),
    ],
)
def test_wrong_parameters_are_named(parameters: Any, parameter: str) -> None:
    with pytest.raises(ParameterError, match="router 'editor'") as caught:
        EscalationRouter("editor", **parameters)
    assert caught.value.parameter == parameter


def test_unknown_evaluator_and_unknown_node_stop_govern() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5))
    arbiter_os.add_policy_router(EscalationRouter("editor", evaluator="qualty"))
    with pytest.raises(ConfigurationError, match="Did you mean 'quality'"):
        arbiter_os.govern(chain(Spy("write")))
    arbiter_os = ArbiterOS()
    governed = arbiter_os.govern(chain(Spy("write")))
    with pytest.raises(ConfigurationError, match="evaluator 'quality', which is not registered"):
        arbiter_os.add_policy_router(EscalationRouter("editor", evaluator="quality"))
    with pytest.raises(UnknownNodeError, match="'wrote'"):
        arbiter_os.add_policy_router(EscalationRouter("editor", on_reject="redirect:wrote"))
    assert governed.invoke(LOW)["log"] == ["write"]


@MODES
def test_an_escalation_that_no_human_can_answer_is_denied(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(EscalationRouter("editor"))
    with pytest.raises(PolicyViolationError, match="no checkpointer"):
        run(arbiter_os.govern(chain(Spy("write"))), LOW, mode=mode)
    with pytest.raises(PolicyViolationError, match="only a graph can pause"):
        arbiter_os.execute(LOW, Spy("write"))


@MODES
def test_a_router_of_ones_own_escalates_too(mode: str) -> None:
    """And one that asks on terms that make no sense denies."""
    for payload, reason in (({"approvers": ["alice"]}, "'bob' may not"), ({"approvers": 5}, "approvers")):
        own = Route("own", lambda h, o, payload=payload: Verdict.ask("look", **payload))  # type: ignore[misc]
        own.escalates = True
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_router(own)
        app = arbiter_os.govern(chain(Spy("write"), checkpointer=InMemorySaver()))
        with pytest.raises(PolicyViolationError, match=reason):
            run(app, LOW, thread("1"), mode=mode)
            run(app, Command(resume={"type": "approve", "by": "bob"}), thread("1"), mode=mode)


@MODES
def test_redirect_to_the_end_is_a_target_as_any(mode: str) -> None:
    _, app = newsroom(Spy("write", score=0.2), on_reject=f"redirect:{END}")
    run(app, LOW, thread("1"), mode=mode)
    assert run(app, Command(resume="reject"), thread("1"), mode=mode)["log"] == []
