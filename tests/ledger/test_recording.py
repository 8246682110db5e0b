"""The ledger keeps what governed graphs did, as it was at that moment, and another process reads it."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from arbiter import (
    ArbiterError,
    ArbiterOS,
    ConfigurationError,
    Correction,
    CorrectionGate,
    EvaluationResult,
    HistoryItem,
    HistoryListener,
    NodeEvaluator,
    PolicyViolationError,
    Verdict,
)
from arbiter._databases import writing
from arbiter.checkers import ApprovalChecker
from arbiter.ledger import Ledger, LedgerUnavailable
from arbiter.ledger._contents import CHARS, Capture, capture, dumped, restored
from arbiter.ledger._fitting import fitted
from arbiter.ledger.replaying._views import Notes, state_of
from arbiter.routers import EscalationRouter
from tests.ledger.ledger_support import conf, payments, recorded, sql
from tests.processes import python
from tests.scripted import usage
from tests.support import MODES, Chat, Check, Hold, Judge, Spy, State, chain, examples, run, until

READ = """
import sys
from arbiter.ledger import Ledger
ledger = Ledger(sys.argv[1])
print(ledger.history("t1").to_jsonl(), end="")
"""


@pytest.mark.lengthy
@MODES
def test_another_process_reads_the_history_that_this_one_has_in_memory(tmp_path: Path, mode: str) -> None:
    with Ledger(tmp_path / "l.db", states="full") as ledger:
        arbiter_os, app = payments(ledger)
        run(app, {"amount": 7}, conf("t1"), mode=mode)
        arbiter_os.drain(60)
        assert ledger.flush(60)
        here = arbiter_os.history_of(thread_id="t1").to_dicts()
    there = subprocess.run(
        [*python("-c", READ), str(tmp_path / "l.db")], capture_output=True, text=True, check=True
    )
    assert [json.loads(line) for line in there.stdout.splitlines()] == _plain(here)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_items_of_a_stored_history_equal_those_in_memory(tmp_path: Path) -> None:
    """Messages, tool calls, tuples, sets and times come back as they were."""

    def reply(state: Any) -> Any:
        call = {"name": "look", "args": {"of": 1}, "id": "c1", "type": "tool_call"}
        by = {"model_name": "m", "model_provider": "p"}
        return {
            "messages": [
                AIMessage("hm", tool_calls=[call], id="a"),
                ToolMessage("42", tool_call_id="c1", id="b", artifact={"rows": [1, 2]}),
                AIMessage("42", id="c", usage_metadata=usage(1, 2), response_metadata=by),
                AIMessage("43", id="d", response_metadata={"model_name": "m", "finish_reason": "stop"}),
                ChatMessage(content="fine", id="e", role="critic"),
            ]
        }

    with Ledger(tmp_path / "l.db", states="full") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(reply, state=Chat, checkpointer=InMemorySaver()))
        app.invoke({"messages": [HumanMessage("hi", id="h")]}, conf("t"))
        assert ledger.flush(60)
        (stored,) = ledger.items()
        (known,) = arbiter_os.history_of(thread_id="t").items()
        assert stored.to_dict() == known.to_dict()
        assert stored.output_state["messages"] == known.output_state["messages"]


def test_a_message_with_a_long_call_that_was_written_wrongly_stays_a_message(tmp_path: Path) -> None:
    """Its model ran out of tokens: the call ends somewhere in its arguments, and is cut as other long texts are."""
    args = '{"text": "' + "x" * 50_000
    error = f"Function write arguments:\n\n{args}\n\nare not valid JSON."
    call: Any = {"name": "write", "args": args, "id": "1", "error": error, "type": "invalid_tool_call"}
    said = AIMessage("I write it.", invalid_tool_calls=[call], id="said")
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        app.invoke({"log": [said]}, conf("t"))
        assert ledger.flush(60)
        (item,) = ledger.items()
        (kept,) = item.input_state["log"]
    assert (type(kept), kept.text, kept.id) == (AIMessage, "I write it.", "said")
    (known,) = kept.invalid_tool_calls
    assert (known["name"], known["args"]) == ("write", args[: 16 * 1024])


def test_a_message_keeps_the_fields_that_its_class_does_not_name(tmp_path: Path) -> None:
    own: Any = {"tool_call_id": "1", "status": "error"}
    said = ChatMessage(content="42", id="a", role="tool", **own)
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        app.invoke({"log": [said]}, conf("t"))
        assert ledger.flush(60)
        (item,) = ledger.items()
        assert list(item.input_state["log"]) == [said]


def test_a_stored_history_counts_as_the_one_in_memory(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os, app = payments(ledger)
        for _ in range(3):
            app.invoke({"amount": 1}, conf("t"))
        assert ledger.flush(60)
        stored, known = ledger.history("t"), arbiter_os.history_of(thread_id="t")
        assert [stored.count(), stored.count("TOOL_CALL"), stored.count(node="check")] == [6, 3, 3]
        assert [known.count(), known.count("TOOL_CALL"), known.count(node="check")] == [6, 3, 3]
        assert ledger.history("t", run=-1).count() == 2
        assert repr(stored) == "<StoredHistory: 6 supersteps, 6 items>"


@MODES
@pytest.mark.parametrize("late", [0, 1, 2])
def test_each_answer_is_kept_with_the_time_at_which_its_question_was_asked(
    tmp_path: Path, late: int, mode: str
) -> None:
    """An answer that comes too late is followed by the same question, with times and an answer of its own."""
    now = [1000.0]
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, clock=lambda: now[0])
        arbiter_os.add_policy_checker(ApprovalChecker("boss", expires_after=60))
        app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        paused: Any = run(app, {"log": []}, conf("t"), mode=mode)
        names = ["ann", "ben", "cat"][: late + 1]
        asked = list[tuple[float, float]]()
        for name in names:
            (interrupted,) = paused["__interrupt__"]
            asked.append((interrupted.value["asked_at"], interrupted.value["expires_at"]))
            now[0] += 40 if name == names[-1] else 90
            paused = run(app, Command(resume={"type": "approve", "by": name}), conf("t"), mode=mode)
        assert "__interrupt__" not in paused
        assert ledger.flush(60)
        (known,) = arbiter_os.history_of(thread_id="t").items()
        (stored,) = ledger.items()
        for item in (known, stored):
            assert [answer.by for answer in item.answers] == names
            for found in (item.questions, [answer.question for answer in item.answers]):
                assert [each.asked_at for each in found] == [at for at, _ in asked]
                assert [(each.payload["asked_at"], each.payload["expires_at"]) for each in found] == asked
        assert ledger.verify().gaps == 0


@pytest.mark.parametrize("pauses", [False, True])
def test_a_stored_history_has_the_order_of_the_one_in_memory(tmp_path: Path, pauses: bool) -> None:
    """Also the node runs of a subgraph that keeps its state, which end before the node that ran them."""

    def asks(state: Any) -> Any:
        if pauses:
            interrupt("?")
        return {"log": ["asks"]}

    builder: Any = StateGraph(State)
    builder.add_node("sub", chain(Spy("in1"), asks, Spy("in2"), checkpointer=True))
    builder.add_edge(START, "sub")
    with Ledger(tmp_path / "l.db", states="full") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
        for _ in range(2):
            app.invoke({"log": []}, conf("t"))
            if pauses:
                app.invoke(Command(resume="yes"), conf("t"))
        assert ledger.flush(60)
        stored = ledger.history("t")
        assert [item.node for item in stored.items()] == 2 * ["in1", "asks", "in2", "sub"]
        assert stored.to_dicts() == arbiter_os.history_of(thread_id="t").to_dicts()


@MODES
@pytest.mark.parametrize("forks", [False, True])
def test_runs_and_forks_of_a_stored_thread_share_no_superstep(tmp_path: Path, mode: str, forks: bool) -> None:
    """Without a checkpointer, each run begins again with the first superstep."""
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver() if forks else None))
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os.add_listener(ledger.recording())
        run(app, {"log": []}, conf("1"), mode=mode)
        before_b = (
            next(s.config for s in app.get_state_history(conf("1")) if s.next == ("b",)) if forks else None
        )
        for _ in range(2):
            run(app, None if forks else {"log": []}, before_b or conf("1"), mode=mode)
        assert ledger.flush(20)
        found = ledger.history("1")
        kept = arbiter_os.history_of(thread_id="1")
    assert [[item.id for item in step] for step in found] == [[item.id for item in step] for step in kept]
    assert len(found) == (4 if forks else 6)


@MODES
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_fork_of_an_earlier_run_comes_after_the_later_run(
    tmp_path: Path, is_changed: bool, mode: str
) -> None:
    """With all node runs of the subgraph with which it begins, also if its supersteps have numbers of their own."""
    arbiter_os = ArbiterOS()
    builder: Any = StateGraph(State).add_node("a", Spy("a")).add_node("inside", chain(Spy("b")))
    graph: Any = builder.add_edge(START, "a").add_edge("a", "inside").compile(checkpointer=InMemorySaver())
    app = arbiter_os.govern(graph)
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os.add_listener(ledger.recording())
        for _ in range(2):
            run(app, {"log": []}, conf("1"), mode=mode)
        fork = [state.config for state in app.get_state_history(conf("1")) if state.values["log"] == ["a"]][
            -1
        ]
        run(app, None, app.update_state(fork, {"log": ["changed"]}) if is_changed else fork, mode=mode)
        assert ledger.flush(20)
        found, kept = ledger.history("1"), arbiter_os.history_of(thread_id="1")
    assert [[item.id for item in step] for step in found] == [[item.id for item in step] for step in kept]


def test_drafts_and_errors_come_back_as_they_were(tmp_path: Path) -> None:
    class Reviewer(CorrectionGate):
        def review(self, history: Any, draft: Any, attempt: int) -> Correction:
            if attempt > 1:
                return Correction.commit_attempt(1, details={"outcome": "kept", "scores": [0.5, None]})
            return Correction.retry("too short")

    def fails(state: Any) -> None:
        raise ConnectionResetError("gone")

    with Ledger(tmp_path / "l.db", states="full") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_correction_gate(Reviewer("review", target_nodes=["draft"]))
        app = arbiter_os.govern(chain(Spy("draft"), fails, checkpointer=InMemorySaver()))
        with pytest.raises(ConnectionResetError):
            app.invoke({}, conf("t"))
        assert ledger.flush(60)
        pairs = list(
            zip(ledger.history("t").items(), arbiter_os.history_of(thread_id="t").items(), strict=True)
        )
    for stored, known in pairs:
        assert stored.to_dict() == known.to_dict()
        assert stored.error_types == known.error_types
        assert stored.drafts == known.drafts
    draft, failed = (known for _, known in pairs)
    assert draft.corrections
    assert [feedback for _, feedback in draft.drafts] == ["too short"]
    assert draft.to_dict()["gating"] == {"outcome": "kept", "scores": [0.5, None]}
    assert failed.error_types


@pytest.mark.lengthy
def test_drafts_that_are_too_large_together_are_marked_as_cut(tmp_path: Path) -> None:
    class Reviewer(CorrectionGate):
        def review(self, history: Any, draft: Any, attempt: int) -> Correction:
            return Correction.retry("again") if attempt < self.max_attempts else Correction.commit()

    def writes(state: Any) -> Any:
        return {"log": ["x" * 15_000] * 90}

    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_correction_gate(Reviewer("review", target_nodes=["writes"], max_attempts=4))
        arbiter_os.govern(chain(writes)).invoke({}, conf("t"))
        assert ledger.flush(60)
        (item,) = ledger.items()
    cut, newest = item.drafts
    assert cut == ({"$cut": {"items": 2, "of": 3}}, "")
    assert newest[1] == "again"
    assert newest[0]["log"][-1] == "x" * 15_000


def test_times_and_durations_come_back_as_they_were(tmp_path: Path) -> None:
    """Dates, times of day, naive and aware times, and durations to the microsecond."""
    made = {
        "day": date(2026, 11, 23),
        "at": clock_time(7, 30, 0, 5),
        "naive": datetime.fromisoformat("2026-11-23T07:30"),
        "aware": datetime(2026, 11, 23, 7, 30, tzinfo=timezone(timedelta(hours=2))),
        "wait": timedelta(days=-3, microseconds=7),
    }
    with Ledger(tmp_path / "l.db") as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a", **made), state=dict)).invoke({})
        assert ledger.flush(60)
        (item,) = ledger.items()
    assert dict(item.output_state) == {"log": ["a"], **made}


def test_numbers_paths_and_queues_come_back_as_they_were(tmp_path: Path) -> None:
    """Numbers of numpy come back as Python's own, as an export of the history has them."""
    made = {
        "price": Decimal("1.10"),
        "none": Decimal("-Infinity"),
        "file": Path("a/b.txt"),
        "last": deque([1, Decimal(2)], maxlen=3),
        "sets": {frozenset({1}), frozenset({2}), (1, "a")},
        "count": np.int64(3),
        "share": np.float32(0.5),
        "flag": np.bool_(True),
        "id": UUID(int=7),
        "point": Point(1, Point(2, 3)),
        "keys": {1: "a", "1": "b", None: 0, False: 1, 1.5: 2, (1, "x"): 3, "$x": 4, "$:1": 5},
        "huge": 10**5000,
    }
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.govern(chain(Spy("a", **made), state=dict)).invoke({})
        assert ledger.flush(60)
        (item,) = ledger.items()
        (known,) = arbiter_os.history.items()
        assert dict(item.output_state) == {"log": ["a"], **made}
        assert item.to_dict()["output_state"]["count"] == known.to_dict()["output_state"]["count"] == 3
        assert item.output_state["point"].y.x == 2


class Colour(Enum):
    RED = "red"


def test_objects_are_exported_as_the_history_in_memory_exports_them(tmp_path: Path) -> None:
    made = {
        "colour": Colour.RED,
        "held": Held(UUID(int=1)),
        "by": {Colour.RED: Point(1, 2)},
        "text": "a\ud800",
    }
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.govern(chain(Spy("a", **made), state=dict)).invoke({})
        assert ledger.flush(60)
        (item,) = ledger.items()
        (known,) = arbiter_os.history.items()
        assert item.to_dict()["output_state"] == known.to_dict()["output_state"]


def test_texts_of_numbers_and_paths_that_are_too_long_are_cut(tmp_path: Path) -> None:
    """The item can still be read, and its other fields are whole."""
    made = {"price": Decimal("1." + "3" * 20_000), "file": Path("a" * 20_000), "other": 1}
    with Ledger(tmp_path / "l.db") as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a", **made), state=dict)).invoke({})
        assert ledger.flush(60)
        (item,) = ledger.items()
    output: Any = item.output_state
    assert [output[name]["$cut"]["chars"] for name in ("price", "file")] == [20_002, 20_000]
    assert output["other"] == 1


def test_an_array_is_kept_with_its_shape_and_bounded(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        large = np.arange(10_000).reshape(100, 100)
        ArbiterOS(ledger=ledger).govern(
            chain(Spy("a", small=np.ones((2, 2)), large=large), state=dict)
        ).invoke({})
        assert ledger.flush(60)
        (item,) = ledger.items()
    assert item.output_state["small"] == {
        "$array": {"type": "float64", "shape": [2, 2], "values": [1.0, 1.0, 1.0, 1.0]}
    }
    values = item.output_state["large"]["$array"]["values"]
    assert (len(values), values[20], values[-1]) == (101, {"$cut": {"items": 9_900, "of": 10_000}}, 9_999)


@dataclass(frozen=True)
class Held:
    value: Any


class Point(NamedTuple):
    x: Any
    y: Any


class Counted(Set[int]):
    """A set of a million numbers that counts how many of them are looked at."""

    def __init__(self) -> None:
        self.seen = 0

    def __iter__(self) -> Iterator[int]:
        for self.seen in range(1, 1_000_001):
            yield self.seen

    def __contains__(self, value: object) -> bool:
        return True

    def __len__(self) -> int:
        return 1_000_000


def test_only_the_kept_elements_of_a_large_set_are_read() -> None:
    large = Counted()
    kept = capture({"x": large})["x"]["$set"]
    assert (len(kept), large.seen) == (101, 100)
    assert kept[-1] == {"$cut": {"items": 999_900, "of": 1_000_000}}


@pytest.mark.parametrize("states", ["bounded", "full"])
def test_a_container_that_holds_itself_ends_there(states: Any) -> None:
    """Held twice, it would double at each level."""
    held: list[Any] = []
    held += [held, held]
    named: dict[str, Any] = {}
    named.update(me=named, side="kept")
    shared = ["shared"]
    found = restored(capture({"list": held, "dict": named, "twice": [shared, shared]}, states))
    cycle = {"$cut": {"cycle": True}}
    assert found == {
        "list": [cycle, cycle],
        "dict": {"me": cycle, "side": "kept"},
        "twice": [["shared"], ["shared"]],
    }


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"text": "one", "number": 2, "yes": True, "nothing": None},
        {"text": "one", "$cut": "a key of the user's"},
        {"text": "one", 2: "two"},
        {"largest": 2**53 - 1, "larger": 2**53},
        {"least": -(2**53) + 1, "less": -(2**53)},
        {"half": 0.5, "none": float("nan")},
        {"text": "one", "list": ["two"]},
        {str(n): n for n in range(200)},
        {str(n): n for n in range(201)},
    ],
    ids=lambda state: ",".join(map(str, state))[:30],
)
@pytest.mark.parametrize("states", ["bounded", "full"])
def test_a_state_is_copied_as_the_same_mapping_is_within_a_state(states: Any, state: Any) -> None:
    """A state of texts and small numbers is copied in a shorter way than others."""
    outer, inner, empty = Capture(states), Capture(states), Capture(states)
    copied = outer(state)
    assert copied is not state
    assert copied == inner({"field": state})["field"]
    empty({})
    assert outer.size == inner.size - empty.size


def _array(parts: list[int]) -> Any:
    return np.array(parts)


def _queue(parts: list[Any]) -> deque[Any]:
    return deque(parts)


any_value: Any = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.just("é" * 300),
        st.binary(max_size=5),
        st.decimals(),
        st.dates(),
        st.timedeltas(),
        st.builds(Path, st.sampled_from(["a", "a/b"])),
        st.lists(st.integers(0, 9), max_size=3).map(_array),
    ),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.tuples(parts, parts),
        st.lists(parts, max_size=3).map(_queue),
        st.builds(HumanMessage, st.just("hi"), additional_kwargs=st.fixed_dictionaries({"k": parts})),
        st.builds(Held, parts),
        st.sets(st.frozensets(st.integers(), max_size=2), max_size=2),
        st.builds(Point, parts, parts),
        st.dictionaries(
            st.sampled_from(["a", "$a", "$decimal", "$cut", "$tuple", "$:1", 1, None, (1, 2)]),
            parts,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


def _listed(value: Any) -> list[Any]:
    return [value]


@pytest.mark.lengthy
@given(value=any_value, most=st.integers(64, 2_000))
@examples(1)
def test_a_value_that_is_cut_to_any_size_is_read_again(value: Any, most: int) -> None:
    found = fitted(capture([value, value, "last"]), most)
    text = dumped(found)
    assert len(text) <= most
    restored(found)
    seen = state_of({"x": found}, "input", Notes(), lost=None)
    assert list(seen) == ["x"]
    assert most < 150 or found[-1] == "last"


@pytest.mark.lengthy
@given(value=any_value, deeper=st.integers(0, 100), wrap=st.sampled_from([Held, _listed]))
@examples(1)
def test_any_value_is_stored_and_read_again(value: Any, deeper: int, wrap: Any) -> None:
    """However deeply it is nested: captured, encoded, made again, and as rules see it in a replay."""
    for _ in range(deeper):
        value = wrap(value)
    for states in ("bounded", "full"):
        text = dumped(capture({"x": value}, states))
        found = restored(json.loads(text))
        assert list(found) == ["x"]
        seen = state_of(json.loads(text), "input", Notes(), lost=None)
        assert list(seen) == ["x"]


@MODES
@pytest.mark.parametrize("states", ["bounded", "full"])
def test_an_input_and_an_output_are_recorded_as_they_were_at_that_moment(
    tmp_path: Path, states: Any, mode: str
) -> None:
    """A node that changes its input in place does not change its record, nor that of the node before it."""

    def changes(state: Any) -> Any:
        state["parts"].append(len(state["parts"]))
        state["parts"][0]["deep"].append("changed")
        return {"parts": state["parts"]}

    def again(state: Any) -> Any:
        return changes(state)

    with Ledger(tmp_path / "l.db", states=states, flush_every=60) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(changes, again, state=dict))
        run(app, {"parts": [{"deep": []}]}, conf("t"), mode=mode)
        ledger.flush(60)
        found = [(item.input_state, item.output_state) for item in ledger.items(order="oldest")]
    before, between, after = (
        {"parts": [{"deep": ["changed"] * times}, *range(1, times + 1)]} for times in range(3)
    )
    assert found == [(before, between), (between, after)]


def test_large_states_are_cut_with_their_true_lengths_and_the_last_message_is_whole(tmp_path: Path) -> None:
    messages = [HumanMessage(f"message {n}", id=str(n)) for n in range(1000)]
    last = HumanMessage("the question", id="last")
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(Spy("a"), state=Chat))
        app.invoke({"messages": [*messages, HumanMessage("x" * 1_000_000, id="long"), last]})
        ledger.flush(60)
        (item,) = ledger.items()
        shown = item.input_state["messages"]
        assert shown[-1] == last
        assert shown[20] == {"$cut": {"items": 902, "of": 1002}}
        assert shown[-2]["$message"]["content"]["$cut"]["chars"] == 1_000_000
    # Also where what came before has used up all that is looked at.
    _, asked = Capture()([[[0] * 100] * 100, [*messages, last]])
    assert asked[0] == {"$cut": {"items": 1000, "of": 1001}}
    assert asked[1]["$message"]["content"] == "the question"


@pytest.mark.parametrize("letter", ["x", "ж"])
def test_a_conversation_that_is_too_large_loses_its_middle(tmp_path: Path, letter: str) -> None:
    """Of 1,000 messages of 10,000 characters, the first and the last are whole, and so is what is small."""
    messages = [HumanMessage(letter * 10_000, id=str(n)) for n in range(1000)]
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a", answer="yes"), state=dict))
        app.invoke({"messages": messages, "user": {"name": "Ann"}, "texts": [letter * 10_000] * 80})
        ledger.flush(60)
        (item,) = ledger.items()
    with sql(tmp_path / "l.db") as query:
        ((size,),) = query("SELECT length(CAST(body AS BLOB)) FROM contents WHERE body LIKE '%messages%'")
    first, cut, *rest = item.input_state["messages"]
    assert [first, *rest] == [messages[0], *messages[-len(rest) :]]
    assert cut == {"$cut": {"items": 999 - len(rest), "of": 1000}}
    assert item.input_state["user"] == {"name": "Ann"}
    assert item.output_state["answer"] == "yes"
    assert 200 * 1024 < size <= 256 * 1024


@MODES
def test_denials_answers_and_edits_are_recorded_with_who_and_what(tmp_path: Path, mode: str) -> None:
    def ask(history: Any) -> Verdict:
        amount = history.item.input_state.get("amount", 0)
        if amount > 100:
            return Verdict.deny(f"{amount} is too much")
        return Verdict.ask("sure?") if amount > 10 else Verdict.allow()

    def clock() -> float:
        return 1_700_000_000.5

    with Ledger(tmp_path / "l.db", clock=clock) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, clock=clock)
        arbiter_os.add_policy_checker(Check("spend", ask))
        app = arbiter_os.govern(chain(Spy("pay"), checkpointer=InMemorySaver()))
        with pytest.raises(PolicyViolationError):
            run(app, {"amount": 500}, conf("a"), mode=mode)
        run(app, {"amount": 50}, conf("b"), mode=mode)
        run(app, Command(resume={"type": "edit", "input": {"amount": 5}, "by": "bob"}), conf("b"), mode=mode)
        ledger.flush(60)
        (denied,) = ledger.items(verdict="deny", policy="spend", since="1h")
        assert denied.check_policy_results["spend"].reason == "500 is too much"
        (paid,) = ledger.items(thread_id="b")
        assert (paid.status, paid.attempt, paid.input_state["amount"]) == ("completed", 2, 5)
        assert [item.status for item in ledger.items(thread_id="b", attempts=True)] == [
            "completed",
            "interrupted",
        ]
        known = arbiter_os.history_of(thread_id="b").last()
        assert known is not None
        assert len(known.answers) == 1
        assert (denied.answers, denied.questions, denied.asked_about) == ((), (), None)
        for stored in (paid, *ledger.history("b").items()):
            assert stored.answers == known.answers
            assert stored.questions == known.questions
            assert stored.asked_about == known.asked_about == {"log": [], "amount": 50}
        ledger.erase(thread_id="b", reason="asked to")
        erased, asked = ledger.items(thread_id=paid.ref, attempts=True)
        assert [(answer.kind, answer.by, answer.detail) for answer in erased.answers] == [
            ("edit", "bob", None)
        ]
        assert (erased.questions[0].payload, erased.asked_about, asked.answers) == ({}, None, ())
    with closing(sqlite3.connect(tmp_path / "l.db")) as connection, connection:
        (body, contents), *_ = connection.execute(
            "SELECT e.body, c.body FROM entries e LEFT JOIN contents c ON c.entry = e.id WHERE e.kind = 'answer'"
        ).fetchall()
    answer = json.loads(body)
    assert (answer["answer"], answer["by"], answer["policy_asked"]) == ("edit", "bob", "spend")
    assert contents is None  # erased


@pytest.mark.lengthy
def test_an_evaluation_that_ends_late_is_merged_into_its_item(tmp_path: Path) -> None:
    import threading

    may_end = threading.Event()

    class Slow(NodeEvaluator):
        def evaluate(self, history: Any) -> Any:
            may_end.wait(60)
            return 0.25

    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Slow("slow"))
        arbiter_os.govern(chain(Spy("a"))).invoke({})
        assert not ledger.flush(0.5)
        (early,) = ledger.items()
        assert dict(early.evaluation_results) == {}
        may_end.set()
        arbiter_os.drain(60)
        assert ledger.flush(60)
        (late,) = ledger.items(evaluator="slow", below=0.5)
        assert late.evaluation_results["slow"].score == 0.25
        assert ledger.verify()


@pytest.mark.lengthy
def test_a_slow_evaluation_does_not_change_the_order_of_node_runs(tmp_path: Path, hold: Hold) -> None:
    """The node runs after it are written no earlier, and its thread ends where it ended."""
    with Ledger(tmp_path / "l.db", flush_every=0.01) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Judge("slow", hold.then(0.25), target_nodes="a"))
        app = arbiter_os.govern(chain(Spy("a"), Spy("b"), Spy("c"), checkpointer=InMemorySaver()))
        app.invoke({}, conf("t"))
        until(lambda: len(ledger.items().page()) == 3)
        stored = ledger.history("t")
        assert [item.node for item in stored.items()] == ["a", "b", "c"]
        assert [item.node for item in ledger.items(thread_id="t", order="oldest")] == ["a", "b", "c"]
        hold.release()
        assert ledger.flush(60)
        assert ledger.history("t").to_jsonl() == arbiter_os.history_of(thread_id="t").to_jsonl()


def test_an_evaluation_that_ends_after_the_node_was_resumed_is_kept(tmp_path: Path, hold: Hold) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Judge("read", lambda _: 0.1))
        arbiter_os.add_evaluator(Judge("slow", hold.then(0.25)))
        arbiter_os.add_policy_router(EscalationRouter("human", evaluator="read"))
        app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        app.invoke({}, conf("t"))  # paused, with an output and its evaluations
        app.invoke(Command(resume="approve"), conf("t"))
        hold.release()
        assert ledger.flush(5)
        found = [dict(item.evaluation_results) for item in ledger.items(attempts=True)]
        assert [(item["read"].score, item["slow"].score) for item in found] == [(0.1, 0.25)] * 2


CANARIES = "canary-7431"
SECRETS = {
    "by field name": {"password": f"{CANARIES} x"},
    "by form": {"note": f"use sk-proj-{CANARIES}abcdefghijklmnopqrstuvwxyz0123456789ABCD"},
    "in JSON in a text": {"note": json.dumps({"api_key": CANARIES, "deep": json.dumps({"token": CANARIES})})},
    "in other names for it": {
        "log": [{"privateKey": CANARIES, "ssh_passphrase": CANARIES, "cookies": [CANARIES]}]
    },
    "in a text of JSON in JSON": {"note": json.dumps(json.dumps({"token": CANARIES}))},
    "in JSON in JSON after a word": {
        "note": "got " + json.dumps({"deep": json.dumps({"token": f'1"{CANARIES}', "more": 1})})
    },
    "in a dictionary that was printed": {
        "note": "got " + str({"token": CANARIES, "secret": f"it's {CANARIES}"})
    },
    "in an object that was printed": {"note": f"got State(amount=1, password={CANARIES!r})"},
    "in a list": {"log": [f"Authorization: Bearer {CANARIES}abcdefghijklmnop0123456789"]},
    # Only its beginning is before the cut, and that alone has not the form of a secret.
    "where a long text is cut": {
        "note": f"{'-' * (CHARS - 27)} postgres://ann:{CANARIES}@db.example/x {'-' * 80_000}"
    },
}


@pytest.mark.parametrize("where", SECRETS)
def test_secrets_are_in_no_byte_of_the_database(tmp_path: Path, where: str) -> None:
    def node(state: Any) -> Any:
        raise ValueError(f"Authorization: Bearer {CANARIES}abcdefghijklmnop0123456789")

    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(node, state=dict))
        with pytest.raises(ValueError, match="Bearer"):
            app.invoke(SECRETS[where], conf("t", access_token=CANARIES))
        ledger.flush(60)
        found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"ValueError" in found
        assert CANARIES.encode() not in found


def test_what_a_rule_says_is_kept_if_the_rule_is_named_for_a_secret(tmp_path: Path) -> None:
    """The names of fields say what is secret. A policy may be named for the passwords that it looks for."""
    name = "no_password"
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(Check(name, lambda history: Verdict.ask("it reads it")))
        arbiter_os.add_evaluator(Judge(name, lambda history: EvaluationResult(0.25, False, "it shows it")))
        app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        app.invoke({"log": []}, conf("t"))
        app.invoke(Command(resume="approve"), conf("t"))
        ledger.flush(60)
        (item,) = ledger.items()
        assert item.check_policy_results[name].reason == "it reads it"
        assert item.evaluation_results[name].feedback == "it shows it"
        rules = tmp_path / "none.yaml"
        rules.write_text("version: 1\nname: none\ndescription: No rules.\n")
        assert len(list(ledger.replay(rules))) == 1


def test_a_redactor_of_the_user_that_fails_leaves_no_text(tmp_path: Path) -> None:
    class Broken:
        def redact(self, value: Any, path: Any = ()) -> Any:
            raise RuntimeError("no")

    with Ledger(tmp_path / "l.db", redactor=Broken()) as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({"log": [CANARIES]})
        ledger.flush(60)
        assert CANARIES.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert [item.node for item in ledger.items()] == ["a"]


@pytest.mark.parametrize("answer", [None, object(), {1: "x"}, iter(()), 2**80, "\ud800", SystemExit(3)])
def test_a_redactor_is_asked_about_each_part_and_no_answer_of_it_loses_an_item(
    tmp_path: Path, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Names:
        def redact(self, value: Any, path: Any = ()) -> Any:
            if isinstance(value, int):
                if isinstance(answer, BaseException):
                    raise answer
                return answer
            if path[-1:] == ("alias",):
                return "[alias]"
            return value.replace("ann", "[name]") if isinstance(value, str) else value

    with Ledger(tmp_path / "l.db", redactor=Names()) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        app.invoke({"log": ["of ann", {"alias": "bo", "age": 7}, 5]})
        assert ledger.flush(60)
        (item,) = ledger.items()
        assert item.input_state["log"][0] == "of [name]"
        assert item.input_state["log"][1]["alias"] == "[alias]"
        assert ledger.verify()
        assert (ledger.health().dropped, len(caplog.records) < 2) == (0, True)


def test_a_redactor_may_change_the_names_of_a_thread_and_of_its_subject(tmp_path: Path) -> None:
    """The columns have the true ones, so that they can be found; the contents do not prove them then."""

    class Masked:
        def redact(self, value: Any, path: Any = ()) -> Any:
            return json.loads(json.dumps(value).replace("ann", "XXX"))

    with Ledger(tmp_path / "l.db", redactor=Masked()) as ledger:
        payments(ledger)[1].invoke({"amount": 1}, conf("of ann"))
        assert ledger.flush(60)
        assert ledger.verify().findings == []
        assert len(list(ledger.items(thread_id="of ann", subject="ann"))) == 2
    assert b'"XXX"' in (tmp_path / "l.db").read_bytes()


@pytest.mark.parametrize("states", ["none", "digest"])
def test_states_that_are_not_to_be_kept_are_not_kept(tmp_path: Path, states: Any) -> None:
    with Ledger(tmp_path / "l.db", states=states) as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({"log": [CANARIES]})
        ledger.flush(60)
        assert CANARIES.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
        (item,) = ledger.items()
        assert [*item.input_state] == ([] if states == "none" else ["log"])


def test_a_digest_is_of_the_whole_field_and_the_same_as_in_memory(tmp_path: Path) -> None:
    long = list(range(1000))
    with Ledger(tmp_path / "l.db", states="digest") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, snapshot="digest")
        app = arbiter_os.govern(chain(Spy("a"), state=dict))
        plain = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), state=dict))
        for at, graph in ((0, app), (500, app), (500, plain)):
            graph.invoke({"x": [*long[:at], "changed", *long[at + 1 :]], "lock": threading.Lock()})
        assert ledger.flush(60)
        (known,) = arbiter_os.history.entries[-1]
        first, second, again = (item.input_state["x"]["$digest"] for item in ledger.items(order="oldest"))
        assert first != second == again == known.input_state["x"]
        assert ledger.items().page(1).rows[0].input_state["lock"] == {"$opaque": "_thread.lock: TypeError"}


QUEUED = """
import os, signal, sys, threading
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from tests.support import Spy, chain
arbiter_os = ArbiterOS(ledger=Ledger(sys.argv[1], flush_every=60))
app = arbiter_os.govern(chain(Spy("a")))
def run():
    if sys.argv[2] == "goes on in a thread":
        threading.main_thread().join()
    for _ in range(300):
        app.invoke({})
worker = threading.Thread(target=run)
worker.start()
if sys.argv[2] != "goes on in a thread":
    worker.join()
if sys.argv[2] == "raises":
    raise SystemExit(3)
if sys.argv[2] == "terminated":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "end",
    [
        "returns",
        "goes on in a thread",
        *(pytest.param(end, marks=pytest.mark.slow) for end in ("raises", "terminated")),
    ],
)
def test_everything_that_was_queued_is_written_when_the_script_ends(tmp_path: Path, end: str) -> None:
    subprocess.run([*python("-c", QUEUED), str(tmp_path / "l.db"), end], check=False)
    with Ledger(tmp_path / "l.db") as ledger:
        assert sum(1 for _ in ledger.items()) == 300
        assert ledger.verify()


KILLED = """
import itertools, os, signal, sys, threading
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from tests.support import Spy, chain
ledger = Ledger(sys.argv[1])
app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
for number in itertools.count(1):
    app.invoke({})
    if number == 1:  # the file is open, and what is measured begins
        assert ledger.flush(60)
        threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    print(2 * number - ledger.health().queued, flush=True)  # an item and an execution each
"""


@pytest.mark.parametrize(
    "times",
    [pytest.param(3, marks=pytest.mark.lengthy), pytest.param(20, marks=pytest.mark.slow)],
)
def test_a_killed_process_loses_only_what_was_just_queued_and_the_ledger_is_whole(
    tmp_path: Path, times: int
) -> None:
    path = str(tmp_path / "l.db")
    for number in range(times):
        with Ledger(path) as ledger:
            before = _events(ledger)
        ended = subprocess.run(
            [*python("-c", KILLED), path, str(0.3 + 0.1 * (number % 5))],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        written = [int(line) for line in ended.stdout.splitlines()[:-1]]
        assert written[-1] > 0
        with Ledger(path) as ledger:
            assert ledger.verify()
            assert _events(ledger) - before >= written[-1]


def _events(ledger: Ledger) -> int:
    """The node runs and executions in a ledger."""
    executions = sum(int(count["count"]) for count in ledger.counts("outcome"))
    return sum(1 for _ in ledger.items()) + executions


@pytest.mark.lengthy
def test_a_run_goes_on_while_another_process_holds_the_write_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        holder = sqlite3.connect(tmp_path / "l.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        for _ in range(50):
            app.invoke({})
        assert not ledger.flush(0.2)
        holder.execute("COMMIT")
        holder.close()
        assert ledger.flush(20)
        assert sum(1 for _ in ledger.items()) == 50


@pytest.mark.lengthy
@pytest.mark.slow
def test_what_does_not_fit_the_queue_is_a_gap_with_its_exact_number(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db", queue=10) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        holder = sqlite3.connect(tmp_path / "l.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        for _ in range(600):
            app.invoke({}, conf("t"))
        holder.execute("COMMIT")
        holder.close()
        assert ledger.flush(20)
        kept = sum(1 for _ in ledger.items())
        found = ledger.verify()
        assert found
        executions = sum(count["count"] for count in ledger.counts("outcome"))
        assert found.gaps >= 1
        assert found.not_recorded == 600 - kept
        assert ledger.health().dropped == (600 - kept) + (600 - executions)


@pytest.mark.lengthy
def test_a_forked_child_writes_its_own_items_and_not_its_parents(tmp_path: Path) -> None:
    import os

    with Ledger(tmp_path / "l.db", flush_every=5) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        app.invoke({}, conf("parent"))
        child = os.fork()
        if child == 0:
            try:
                app.invoke({}, conf("child"))
                ledger.flush(60)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert ledger.flush(60)
        assert sorted(str(thread["thread_id"]) for thread in ledger.threads()) == ["child", "parent"]
        assert ledger.verify()


@pytest.mark.lengthy
def test_a_fork_waits_until_no_transaction_is_open(tmp_path: Path) -> None:
    """SQLite would keep the file locked for ever in a child that was forked within one."""
    import os

    entered = threading.Event()
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        engine = ledger._store.engine  # pyright: ignore[reportPrivateUsage]

        def write() -> None:
            with writing(engine):
                entered.set()
                time.sleep(0.2)

        writer = threading.Thread(target=write)
        writer.start()
        entered.wait(60)
        child = os.fork()
        if child == 0:
            try:
                app.invoke({}, conf("child"))
                os._exit(0 if ledger.flush(20) else 3)
            finally:
                os._exit(4)
        writer.join()
        assert os.waitpid(child, 0)[1] == 0
        assert [item.node for item in ledger.items(thread_id="child")] == ["a"]


def test_without_a_thread_nothing_is_recovered(tmp_path: Path) -> None:
    """LangGraph's savers take None for the name of a thread: its runs go on from each other."""
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        for _ in range(3):
            app.invoke({}, {"configurable": {"thread_id": None}})
        assert ledger.flush(60)
        assert [thread["items"] for thread in ledger.threads()] == [1, 1, 1]


@pytest.mark.parametrize("now", [-5e9, 0.0, 253_402_300_000.0], ids=["before 1970", "1970", "9999"])
def test_any_time_of_a_clock_verifies(tmp_path: Path, now: float) -> None:
    with Ledger(tmp_path / "l.db", clock=lambda: now) as ledger:
        arbiter_os, app = payments(ledger, clock=lambda: now)
        app.invoke({"amount": 1}, conf("t"))
        arbiter_os.drain(60)
        assert ledger.flush(60)
        assert ledger.verify().findings == []
        assert len(list(ledger.items(since="1h"))) == 2


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("arbiter.sqlite3x:///a", r"expected a path, sqlite:///\.\.\. or postgresql://\.{4}$"),
        ("/nowhere/at/all.db", "there is no folder '/nowhere/at'"),
        ("postgresql://user:hidden@localhost:1/x", r"cannot open 'postgresql://user:\*\*\*@localhost:1/x'"),
        ("postgresql://user:hid@den@localhost/x", r"'postgresql://user:\*\*\*@localhost/x': .* Write %40"),
        ("postgresql://localhost:1/x?password=hidden&user=a", r"localhost:1/x\?password=\*\*\*&user=a'"),
        ("postgresql://user:hidden@localhost:port/x", "cannot open"),
        ("sqlite:///x.db?mode=ro", "takes no options here. Write 'sqlite:///x.db'"),
        ("sqlite:///x.db?password=hidden", r"x.db\?password=\*\*\*.: a URL of SQLite takes no options"),
        ("", "cannot open '': expected a path"),
        ("a\0b", "embedded null byte"),
        ("a" * 300, "File name too long"),
    ],
    ids=lambda each: str(each)[:30].replace("\0", ""),
)
def test_a_ledger_that_cannot_be_opened_says_why_in_a_sentence(
    where: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LedgerUnavailable, match=problem) as raised:
        Ledger(where)
    assert "hidden" not in str(raised.value)
    assert "den@" not in str(raised.value)
    assert not [*tmp_path.iterdir()]


def test_an_empty_file_that_is_only_read_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "l.db").touch()
    with pytest.raises(LedgerUnavailable, match="there is no ledger at"):
        Ledger(tmp_path / "l.db", create=False)
    assert (tmp_path / "l.db").stat().st_size == 0


@pytest.mark.parametrize(
    ("missing", "where", "key", "sentence"),
    [
        (
            "psycopg",
            "postgresql://nobody:secret@localhost/none",
            None,
            "cannot open 'postgresql://nobody:***@localhost/none': it needs psycopg: "
            "pip install 'arbiteros[postgres]'",
        ),
        (
            "sqlalchemy",
            "l.db",
            None,
            "a ledger needs sqlalchemy and alembic: pip install 'arbiteros[ledger]'",
        ),
        ("alembic", "l.db", None, "a ledger needs sqlalchemy and alembic: pip install 'arbiteros[ledger]'"),
        (
            "cryptography.hazmat.primitives",
            "l.db",
            "-----BEGIN PRIVATE KEY-----",
            "a key in PEM needs cryptography: pip install 'arbiteros[sign]'",
        ),
    ],
)
def test_a_package_of_an_extra_that_is_missing_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, where: str, key: str | None, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ArbiterError) as raised:
        Ledger(where, key=key)
    assert str(raised.value) == sentence
    assert not list(tmp_path.iterdir())


def test_a_package_that_a_finder_refuses_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "sqlalchemy":
                raise ModuleNotFoundError(name=name)

    monkeypatch.delitem(sys.modules, "sqlalchemy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refusing(), *sys.meta_path])
    with pytest.raises(LedgerUnavailable, match="a ledger needs sqlalchemy and alembic: pip install"):
        Ledger(tmp_path / "l.db")


@pytest.mark.parametrize("name", ["a?mode=ro", "a#b%20c", "a b:c@d.db", "äß.db"])
def test_a_ledger_has_the_file_that_was_named(tmp_path: Path, name: str) -> None:
    with recorded(tmp_path / name, 1) as ledger:
        assert len(list(ledger.items())) == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with Ledger(f"sqlite:///{tmp_path / name}", create=False) as ledger:
        assert len(list(ledger.items())) == 2


@pytest.mark.parametrize("ledger", [5, True, b"arbiter.db"])
def test_a_ledger_that_is_none_is_refused_in_a_sentence(ledger: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ledger is .*; expected a Ledger, a path or a URL\."):
        ArbiterOS(ledger=ledger)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, and no database")
    with pytest.raises(LedgerUnavailable, match="it is not a SQLite database"):
        Ledger(path)
    with pytest.raises(LedgerUnavailable, match="it is a directory"):
        Ledger(tmp_path)
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "these are my notes, and no database"


@pytest.mark.parametrize(
    "options",
    [
        {"states": "all"},
        {"flush_every": -1},
        {"queue": 0},
        {"key": b"short"},
        {"key": 5},
        {"anchors": "/nowhere/at/all.jsonl"},
        {"anchors": "/"},
        {"anchors": 5},
        {"anchors": asyncio.sleep},
        {"subject_key": ""},
        {"redactor": "hidden"},
        {"clock": 5},
    ],
    ids=lambda options: str(options).partition(" at 0x")[0],
)
def test_a_wrong_option_is_refused_before_anything_is_made(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        Ledger(tmp_path / "l.db", **options)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("column", ["arbiter_ledger_version SET version_num", "ledgers SET schema"])
def test_a_newer_schema_is_refused(tmp_path: Path, column: str) -> None:
    """Both places that name the schema count."""
    recorded(tmp_path / "l.db", 1).close()
    with closing(sqlite3.connect(tmp_path / "l.db")) as connection, connection:
        connection.execute(f"UPDATE {column} = '9999'")
    with pytest.raises(LedgerUnavailable, match="its schema 9999 is newer"):
        Ledger(tmp_path / "l.db")


def test_outputs_are_the_same_with_and_without_a_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        state: State = {"amount": 3}
        with_one = payments(ledger)[1].invoke(state, conf("t"))
        assert with_one == {"log": ["check", "pay"], "amount": 3, "score": 0.75}


@pytest.mark.lengthy
def test_postgresql_keeps_the_same_as_sqlite(tmp_path: Path, postgres_url: str) -> None:
    with recorded(tmp_path / "l.db") as here, recorded(postgres_url) as there:
        mine = [(item.node, item.status, dict(item.output_state)) for item in here.items()]
        assert mine == [(item.node, item.status, dict(item.output_state)) for item in there.items()]
        assert there.verify()
        assert there.counts("node") == here.counts("node")
        assert [item.node for item in there.items(evaluator="score", above=0.7, subject="user-1")]


@pytest.mark.parametrize("name", ["a\ud800", "a\0b", ""])
@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_names_that_a_database_cannot_store_are_escaped_and_stop_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, where: str, name: str
) -> None:
    url = tmp_path / "arbiter.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    with Ledger(url) as ledger:
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf(name, f"of {name}"))
        app.invoke({"amount": 1}, conf("other"))
        assert ledger.flush(60)
        assert {len(list(ledger.items(thread_id=each))) for each in (name, "other")} == {2}
        assert len(list(ledger.items(subject=f"of {name}"))) == len(list(ledger.history(name))) == 2
        assert ledger.verify()
        assert ledger.erase(subject=f"of {name}", reason="request").threads == 1
        assert ledger.verify()


def test_a_value_that_cannot_be_copied_takes_no_other_with_it(tmp_path: Path) -> None:
    class Broken(dict[str, int]):
        def items(self) -> Any:
            raise RuntimeError

    with Ledger(tmp_path / "arbiter.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(Spy("check", amount=[1, Broken(a=1)], limit=Broken(a=1))))
        app.invoke({"score": 0.5}, conf("t"))
        assert ledger.flush(60)
        (item,) = ledger.items()
        opaque = {"$opaque": f"{__name__}.{Broken.__qualname__}: RuntimeError"}
        assert item.output_state == {"log": ["check"], "amount": [1, opaque], "limit": opaque}


@pytest.mark.parametrize("odd", ["\ud800", "\0"])
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.lengthy)])
def test_names_with_characters_that_no_database_stores_are_kept_escaped(
    tmp_path: Path, request: pytest.FixtureRequest, database: str, odd: str
) -> None:
    """UTF-8 has no lone surrogates, and PostgreSQL no NUL."""
    url = tmp_path / "l.db" if database == "sqlite" else request.getfixturevalue("postgres_url")
    escaped = odd.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    with Ledger(url) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(
            Check(f"c{odd}", lambda _: Verdict.deny(f"no{odd}"), target_nodes=["b"])
        )

        @arbiter_os.evaluator(name=f"e{odd}")
        def scored(output: Any) -> EvaluationResult:
            return EvaluationResult(0.5, True, "half")

        graph = chain(Spy("a"), Spy("b"))
        graph.name = f"G{odd}"
        with suppress(PolicyViolationError):
            arbiter_os.govern(graph).invoke({}, conf("t"))
        arbiter_os.drain()
        assert ledger.flush(60)
        assert ledger.verify()
        assert ledger.health().dropped == 0
        (denied,) = ledger.items(policy=f"c{odd}")
        assert denied.decision.policy == f"c{escaped}"
        assert denied.check_policy_results[f"c{escaped}"].reason.startswith("no")
        (item,) = ledger.items(evaluator=f"e{odd}")
        assert item.evaluation_results[f"e{escaped}"].feedback == "half"
        assert ledger.scores(f"e{odd}", every=None)[0]["mean"] == 0.5
        assert ledger.threads().page(1).rows[0]["graph"] == f"G{escaped}"


@pytest.mark.parametrize("together", [True, False])
def test_an_unlike_entry_with_a_known_key_is_a_gap_and_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, together: bool
) -> None:
    """Neither of the two replaces the other without a word, in one batch or in two."""
    ended: list[HistoryItem] = []

    class Keeps(HistoryListener):
        def ended(self, item: HistoryItem) -> None:
            ended.append(item)

    with Ledger(tmp_path / "l.db", flush_every=30) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, listeners=[Keeps()])
        app = arbiter_os.govern(chain(Spy("check"), Spy("pay")))
        app.invoke({}, conf("t"))
        assert together or ledger.flush(60)
        ended[0].record.step = 100
        ledger.listener.ended(ended[0])
        app.invoke({}, conf("later"))
        assert ledger.flush(60)
        assert [(item.thread_id, item.node, item.step) for item in ledger.items(order="oldest")] == [
            ("t", "check", 1),
            ("t", "pay", 2),
            ("later", "check", 1),
            ("later", "pay", 2),
        ]
        assert ledger.verify().not_recorded == 1
        assert ledger.verify()
    assert "two different entries have the key" in caplog.text


def test_runs_after_the_ledger_was_closed_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path / "l.db")
    app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
    app.invoke({})
    ledger.close()
    app.invoke({})
    app.invoke({})
    assert [each.message for each in caplog.records if "closed" in each.message] == [
        "the ledger is closed: calls, node runs and scores that end from now on are not recorded"
    ]
    health = ledger.health()
    assert (health.queued, health.last_error) == (0, "the ledger is closed")


@pytest.mark.lengthy
def test_the_thread_of_a_dropped_ledger_writes_all_and_ends(tmp_path: Path) -> None:
    def writers() -> int:
        gc.collect()
        return sum(thread.name == "arbiter-ledger" for thread in threading.enumerate())

    before = writers()
    for at in range(5):
        app = ArbiterOS(ledger=tmp_path / "l.db").govern(chain(Spy("a")))
        app.invoke({}, {"configurable": {"thread_id": f"t{at}"}})
        del app
        gc.collect()
    # The context of this thread remembers the last run.
    until(lambda: writers() <= before + 1)
    with Ledger(tmp_path / "l.db") as ledger:
        # That of the last run may still write.
        until(lambda: {item.thread_id for item in ledger.items()} == {f"t{at}" for at in range(5)})


def test_a_ledger_keeps_the_version_and_the_outcome_of_an_evaluation(tmp_path: Path) -> None:
    """A result that is no score is kept with the item, and no search and no mean counts it."""
    silent = Judge("silent", lambda _: EvaluationResult(0.0, None, outcome="not_applicable"))
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os, app = payments(ledger)
        arbiter_os.add_evaluator(silent)
        app.invoke({"amount": 1}, conf("t"))
        assert ledger.flush(20)
        item = next(iter(ledger.items(node="check")))
        live = next(item for step in arbiter_os.history for item in step if item.node == "check")
        assert item.evaluation_versions == live.evaluation_versions
        assert item.evaluation_versions.keys() == {"score", "silent"}
        assert item.evaluation_outcomes == {"score": "scored", "silent": "not_applicable"}
        assert [hour["mean"] for hour in ledger.scores("silent")] == [None]
        assert not list(ledger.items(evaluator="silent"))
        assert ledger.verify()
