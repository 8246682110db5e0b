"""The form in which a checkpoint stores the facts is small, and a run that is resumed from it decides alike."""

from __future__ import annotations

import operator
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from arbiter import ArbiterOS, EvaluationResult, History, HistoryItem, NodeEvaluator, PolicyChecker
from arbiter._weaving.channel import FACTS
from arbiter.history._facts import RUN, Value, fold
from arbiter.history._packing import PLAIN, Columns, restore, store
from arbiter.history._past import Past
from arbiter.instructions import GENERATE, VERIFY
from tests.support import Route, thread

pytestmark = pytest.mark.lengthy


class State(TypedDict, total=False):
    n: int
    done: Annotated[list[int], operator.add]


def work(state: State) -> State:
    return {"n": state.get("n", 0) + 1}


def verify(state: State) -> State:
    return {}


def spread(state: State) -> list[Send]:
    return [Send("part", {"n": number}) for number in range(3)]


def part(state: State) -> State:
    return {"done": [state.get("n", 0)]}


def looping(saver: Any, most: int, *, parts: bool = False) -> Any:
    """A graph that goes round `work` and `verify` until `n` is a multiple of `most`."""
    builder: Any = StateGraph(State)
    builder.add_node("work", work)
    builder.add_node("verify", verify)
    builder.add_node("part", part)
    builder.add_edge(START, "work")
    builder.add_edge("work", "verify")
    ends: list[str] = ["work", "part" if parts else END]

    def onward(state: State) -> Any:
        if state.get("n", 0) % most:
            return "work"
        return spread(state) if parts else END

    builder.add_conditional_edges("verify", onward, ends)
    return builder.compile(checkpointer=saver)


class Score(NodeEvaluator):
    """Judges each node run differently, and says why in so many words."""

    def __init__(self, words: int) -> None:
        super().__init__("score", [GENERATE])
        self.words = words

    def evaluate(self, history: History) -> EvaluationResult:
        amount = history.entries[-1][-1].output_state.get("n", 0)
        return EvaluationResult(amount % 7 / 10, amount % 2 == 0, "because " * (amount % self.words))


class Witness(PolicyChecker):
    """Notes all that it sees of the past, without ids and times."""

    def __init__(self, *, states: bool = False) -> None:
        super().__init__("witness")
        self.seen: list[Any] = []
        self.states = states

    def check_before(self, history: Any) -> bool:
        self.seen.append([told(item, states=self.states) for item in history.items()])
        return True


def told(item: HistoryItem, *, states: bool) -> Any:
    results = {name: (r.score, r.passed, r.feedback) for name, r in item.evaluation_results.items()}
    shown = (item.node, item.instruction, item.step, item.status, dict(item.check_policy_results), results)
    return (*shown, dict(item.input_state), dict(item.output_state)) if states else shown


def governing(witness: Witness, words: int = 30, clock: Callable[[], float] = time.time) -> ArbiterOS:
    arbiter_os = ArbiterOS(clock=clock)
    arbiter_os.add_policy_checker(witness)
    arbiter_os.add_evaluator(Score(words))
    arbiter_os.add_policy_router(
        Route("look", lambda h, _: h.entries[-1][-1].evaluation_results.get("score") and None)
    )
    return arbiter_os


KINDS = {"work": GENERATE, "verify": VERIFY}


@contextmanager
def sqlite_saver(path: Path) -> Generator[SqliteSaver]:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


def size_of(path: Path) -> int:
    """The size of the stored checkpoints, in bytes."""
    total = 0
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("checkpoints", "writes"):
            columns = [name for _, name, *_ in db.execute(f"pragma table_info({table})")]
            lengths = " + ".join(f"coalesce(length({name}), 0)" for name in columns)
            (found,) = db.execute(f"select sum({lengths}) from {table}").fetchone()
            total += found
    return total


@pytest.mark.parametrize("turns", [1, 30])
def test_a_governed_step_stores_at_most_twice_what_a_bare_step_stores(tmp_path: Path, turns: int) -> None:
    """In one long run and over many short ones, with rules whose decisions and scores are stored."""
    steps = 120 // turns // 2
    sizes: list[int] = []
    for governed in (False, True):
        path = tmp_path / f"{governed}.db"
        with sqlite_saver(path) as saver:
            app = looping(saver, steps)
            if governed:
                times = count(1_800_000_000, 0.004)
                app = governing(Witness(), 2, partial(next, times)).govern(app, KINDS)
            for _ in range(turns):
                app.invoke({}, {"recursion_limit": 1000, **thread("1")})
        sizes.append(size_of(path))
    assert sizes[1] <= 2 * sizes[0]


def test_the_facts_of_a_loop_take_at_most_450_bytes() -> None:
    """A full window of two nodes in turn, with allowing checkers and different scores and feedback."""
    checks = dict.fromkeys(["limit", "order", "schema"], "allow")
    past = Past(fold({}, [RUN]))
    for step in range(1, 1001):
        name, kind = ("verify", "NormativeCore.VERIFY") if step % 2 else ("write", "CognitiveCore.GENERATE")
        fact: dict[str, Any] = {"id": f"{step}", "node": name, "step": step, "in": kind, "checks": checks}
        fact |= {"at": 1.8e9 + step * 0.004, "took": 0.001}
        if name == "write":
            fact["evals"] = {"quality": [step / 1000, True, f"n={step}", "3a18b5a32504cfb7"]}
        past = past.after([fact])
    size = len(past.stored()["packed"])
    assert size <= 450


def test_a_run_that_is_resumed_elsewhere_sees_the_past_that_the_run_before_saw(tmp_path: Path) -> None:
    """Nodes, decisions, scores and the feedback that is kept, also in a process that was not there before."""
    seen: list[Any] = []
    for name, elsewhere in (("here", False), ("elsewhere", True)):
        witness = Witness()
        with sqlite_saver(tmp_path / f"{name}.db") as saver:
            graph = looping(saver, 3, parts=True)
            app = governing(witness).govern(graph, KINDS)
            for _ in range(12):
                if elsewhere:
                    app = governing(witness).govern(graph, KINDS)
                app.invoke({}, thread("1"))
        seen.append(witness.seen)
    assert len(seen[0][-1]) == 106
    for here, elsewhere in zip(*seen, strict=True):
        assert here == elsewhere


def test_states_of_old_items_are_found_again_in_the_process_that_ran_them(tmp_path: Path) -> None:
    """Also those of siblings that ran at the same time, over several runs of a thread."""
    witness = Witness(states=True)
    with sqlite_saver(tmp_path / "states.db") as saver:
        arbiter_os = governing(witness)
        app = arbiter_os.govern(looping(saver, 4, parts=True), KINDS)
        for _ in range(8):
            app.invoke({}, thread("1"))
        last = witness.seen[-1]
        assert [state["n"] for node, *_, state in last if node == "work"] == list(range(1, 33))
        assert [state.get("done") for node, *_, state in last if node == "part"] == [[0], [1], [2]] * 7 + [
            None
        ]
        assert arbiter_os.history_of(thread_id="1").count() == 88
        assert arbiter_os.history.count() == 11, "each invoke is a run of its own"
        # A fork of an old checkpoint is a run of its own, that shares what led to it.
        states = list(app.get_state_history(thread("1")))
        fork = next(state for state in states if state.values.get("n") == 14 and state.next == ("verify",))
        app.invoke(None, fork.config)
        assert [item.output_state["n"] for item in arbiter_os.history.items() if item.node == "work"] == [
            13,
            14,
            15,
            16,
        ]
        assert all(item.id.count("-") == 4 for item in arbiter_os.history_of(thread_id="1").items())


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    """The error says that this version cannot read it, and what to do."""
    of_form_3 = b"x\xf9\xcf4\xb7\x10\x83i6\xae\xe5\x02\x00\x16\x91\x03h"
    with sqlite_saver(tmp_path / "facts.db") as saver:
        app = governing(Witness()).govern(looping(saver, 3, parts=True), KINDS)
        app.invoke({}, thread("1"))
        found = saver.get_tuple(thread("1"))
        assert found is not None
        assert found.parent_config is not None
        found.checkpoint["channel_values"][FACTS] = {"packed": of_form_3}
        saver.put(found.parent_config, found.checkpoint, found.metadata, {})
        refused = r"another version .* \(facts of form 3, expected 2\). Resume it with that version."
        with pytest.raises(RuntimeError, match=refused):
            app.invoke({}, thread("1"))


texts = st.text(max_size=30)
facts = st.fixed_dictionaries(
    {
        "node": st.sampled_from(["a", "b", "\udc80"]),
        "step": st.integers(-1, 10_000),
        "at": st.floats(0, 2e9),
        "took": st.floats(0, 1e6),
    },
    optional={
        "in": st.sampled_from(["X", "Y"]),
        "ns": st.sampled_from(["sub:1", "sub:2|x"]),
        "status": st.sampled_from(["denied", "failed"]),
        "attempt": st.integers(2, 4),
        "checks": st.dictionaries(texts, st.sampled_from(["allow", "deny", "ask"]), max_size=2),
        "why": st.dictionaries(texts, texts, min_size=1, max_size=2),
        "notes": st.dictionaries(texts, st.text(max_size=700), min_size=1, max_size=2),
        "evals": st.dictionaries(
            texts,
            st.tuples(st.floats(0, 1), st.booleans(), st.text(max_size=700)).map(list),
            min_size=1,
            max_size=2,
        ),
        "to": texts,
    },
)


@given(
    supersteps=st.lists(st.one_of(st.just([RUN]), st.lists(facts, min_size=1, max_size=3)), max_size=25),
    keep=st.integers(1, 40),
    stops=st.lists(st.booleans(), min_size=25, max_size=25),
)
def test_a_value_is_restored_as_it_was(
    supersteps: list[list[dict[str, Any]]], keep: int, stops: Sequence[bool]
) -> None:
    """Whenever the run was stopped and restored, but for ids, the precision of times, and the oldest texts."""
    value: Value = fold({}, [RUN])
    here = elsewhere = Past(value, keep=keep)
    for number, (writes, stop) in enumerate(zip(supersteps, stops, strict=False)):
        named = [
            write if write == RUN else {"id": f"{number}-{place}", **write}
            for place, write in enumerate(writes)
        ]
        here, elsewhere = here.after(named), elsewhere.after(named)
        stored = elsewhere.stored()
        if keep > PLAIN:
            assert restore(store(elsewhere.value, Columns(), keep)[0])[0] == restore(stored)[0]
        if stop:
            elsewhere = Past.restored(stored, keep)
        assert seen_of(here) == seen_of(elsewhere)


def seen_of(past: Past) -> Any:
    def plain(fact: dict[str, Any]) -> Any:
        kept = {key: part for key, part in fact.items() if key not in ("id", "at", "took")}
        return kept, pytest.approx(fact["at"], abs=0.0051), pytest.approx(fact["took"], abs=0.0051)

    value = past.value
    rest = {key: part for key, part in value.items() if key not in ("facts", "last")}
    last = {node: (number, plain(fact), done) for node, (number, fact, done) in value.get("last", {}).items()}
    return [plain(fact) for fact in past.facts()], last, rest
