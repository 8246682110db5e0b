"""The ledger keeps what governed graphs did, as it was at that moment, and another process reads it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from arbiter import ArbiterOS, ConfigurationError, NodeEvaluator, PolicyViolationError, Verdict
from arbiter.ledger import Ledger, LedgerUnavailable
from tests.ledger.ledger_support import conf, payments, recorded
from tests.processes import python
from tests.support import MODES, Chat, Check, Spy, State, chain, run

READ = """
import sys
from arbiter.ledger import Ledger
ledger = Ledger(sys.argv[1])
print(ledger.history("t1").to_jsonl(), end="")
"""


@MODES
def test_another_process_reads_the_history_that_this_one_has_in_memory(tmp_path: Path, mode: str) -> None:
    with Ledger(tmp_path / "l.db", states="full") as ledger:
        arbiter_os, app = payments(ledger)
        run(app, {"amount": 7}, conf("t1"), mode=mode)
        arbiter_os.drain(10)
        assert ledger.flush(10)
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
        return {
            "messages": [
                AIMessage("hm", tool_calls=[call], id="a"),
                ToolMessage("42", tool_call_id="c1", id="b"),
            ]
        }

    with Ledger(tmp_path / "l.db", states="full") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(reply, state=Chat, checkpointer=InMemorySaver()))
        app.invoke({"messages": [HumanMessage("hi", id="h")]}, conf("t"))
        assert ledger.flush(10)
        (stored,) = ledger.items()
        (known,) = arbiter_os.history_of(thread_id="t").items()
        assert stored.to_dict() == known.to_dict()
        assert stored.output_state["messages"] == known.output_state["messages"]


def test_an_input_is_recorded_as_the_checkers_saw_it(tmp_path: Path) -> None:
    """A node that changes its input in place does not change the record, nor does the next one."""

    def changes(state: Any) -> Any:
        state["log"].append("changed")
        return {"log": ["out"]}

    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(changes, Spy("next")))
        app.invoke({"log": ["in"]})
        ledger.flush(10)
        first, second = ledger.items(order="oldest")
    assert [*first.input_state["log"]] == ["in"]
    assert second.node == "next"


def test_large_states_are_cut_with_their_true_lengths_and_the_last_message_is_whole(tmp_path: Path) -> None:
    messages = [HumanMessage(f"message {n}", id=str(n)) for n in range(1000)]
    last = HumanMessage("the question", id="last")
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(Spy("a"), state=Chat))
        app.invoke({"messages": [*messages, HumanMessage("x" * 1_000_000, id="long"), last]})
        ledger.flush(10)
        (item,) = ledger.items()
        shown = item.input_state["messages"]
        assert shown[-1] == last
        assert shown[20] == {"$cut": {"items": 902, "of": 1002}}
        assert shown[-2]["$message"]["content"]["$cut"]["chars"] == 1_000_000


@MODES
def test_denials_answers_and_edits_are_recorded_with_who_and_what(tmp_path: Path, mode: str) -> None:
    def ask(history: Any) -> Verdict:
        amount = history.item.input_state.get("amount", 0)
        if amount > 100:
            return Verdict.deny(f"{amount} is too much")
        return Verdict.ask("sure?") if amount > 10 else Verdict.allow()

    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(Check("spend", ask))
        app = arbiter_os.govern(chain(Spy("pay"), checkpointer=InMemorySaver()))
        with pytest.raises(PolicyViolationError):
            run(app, {"amount": 500}, conf("a"), mode=mode)
        run(app, {"amount": 50}, conf("b"), mode=mode)
        run(app, Command(resume={"type": "edit", "input": {"amount": 5}, "by": "bob"}), conf("b"), mode=mode)
        ledger.flush(10)
        (denied,) = ledger.items(verdict="deny", policy="spend", since="1h")
        assert denied.check_policy_results["spend"].reason == "500 is too much"
        (paid,) = ledger.items(thread_id="b")
        assert (paid.status, paid.attempt, paid.input_state["amount"]) == ("completed", 2, 5)
        assert [item.status for item in ledger.items(thread_id="b", attempts=True)] == [
            "completed",
            "interrupted",
        ]
    with sqlite3.connect(tmp_path / "l.db") as connection:
        (body, contents), *_ = connection.execute(
            "SELECT e.body, c.body FROM entries e JOIN contents c ON c.entry = e.id WHERE e.kind = 'answer'"
        ).fetchall()
    answer = json.loads(body)
    assert (answer["answer"], answer["by"], answer["policy_asked"]) == ("edit", "bob", "spend")
    assert json.loads(contents)["detail"] == {"amount": 5}


def test_an_evaluation_that_ends_late_is_merged_into_its_item(tmp_path: Path) -> None:
    import threading

    may_end = threading.Event()

    class Slow(NodeEvaluator):
        def evaluate(self, history: Any) -> Any:
            may_end.wait(10)
            return 0.25

    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Slow("slow"))
        arbiter_os.govern(chain(Spy("a"))).invoke({})
        assert not ledger.flush(0.5)
        (early,) = ledger.items()
        assert dict(early.evaluation_results) == {}
        may_end.set()
        arbiter_os.drain(10)
        assert ledger.flush(5)
        (late,) = ledger.items(evaluator="slow", below=0.5)
        assert late.evaluation_results["slow"].score == 0.25
        assert ledger.verify()


CANARIES = "canary-7431"
SECRETS = {
    "by field name": {"password": f"{CANARIES} x"},
    "by form": {"note": f"use sk-proj-{CANARIES}abcdefghijklmnopqrstuvwxyz0123456789ABCD"},
    "in JSON in a text": {"note": json.dumps({"api_key": CANARIES, "deep": json.dumps({"token": CANARIES})})},
    "in a list": {"log": [f"Authorization: Bearer {CANARIES}abcdefghijklmnop0123456789"]},
}


@pytest.mark.parametrize("where", SECRETS)
def test_secrets_are_in_no_byte_of_the_database(tmp_path: Path, where: str) -> None:
    def node(state: Any) -> Any:
        raise ValueError(f"Authorization: Bearer {CANARIES}abcdefghijklmnop0123456789")

    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(node, state=dict))
        with pytest.raises(ValueError, match="Bearer"):
            app.invoke(SECRETS[where], conf("t", access_token=CANARIES))
        ledger.flush(10)
        found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"ValueError" in found
        assert CANARIES.encode() not in found


def test_a_redactor_of_the_user_that_fails_leaves_no_text(tmp_path: Path) -> None:
    class Broken:
        def redact(self, value: Any, path: Any = ()) -> Any:
            raise RuntimeError("no")

    with Ledger(tmp_path / "l.db", redactor=Broken()) as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({"log": [CANARIES]})
        ledger.flush(10)
        assert CANARIES.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert [item.node for item in ledger.items()] == ["a"]


@pytest.mark.parametrize("states", ["none", "digest"])
def test_states_that_are_not_to_be_kept_are_not_kept(tmp_path: Path, states: Any) -> None:
    with Ledger(tmp_path / "l.db", states=states) as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({"log": [CANARIES]})
        ledger.flush(10)
        assert CANARIES.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
        (item,) = ledger.items()
        assert [*item.input_state] == ([] if states == "none" else ["log"])


QUEUED = """
import os, signal, sys
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from tests.support import Spy, chain
arbiter_os = ArbiterOS(ledger=Ledger(sys.argv[1], flush_every=60))
app = arbiter_os.govern(chain(Spy("a")))
for _ in range(300):
    app.invoke({})
if sys.argv[2] == "raises":
    raise SystemExit(3)
if sys.argv[2] == "terminated":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("end", ["returns", "raises", "terminated"])
def test_everything_that_was_queued_is_written_when_the_script_ends(tmp_path: Path, end: str) -> None:
    subprocess.run([*python("-c", QUEUED), str(tmp_path / "l.db"), end], check=False)
    with Ledger(tmp_path / "l.db") as ledger:
        assert sum(1 for _ in ledger.items()) == 300
        assert ledger.verify()


KILLED = """
import os, signal, sys, threading, time
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from tests.support import Spy, chain
arbiter_os = ArbiterOS(ledger=Ledger(sys.argv[1]))
app = arbiter_os.govern(chain(Spy("a")))
threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
done = 0
while True:
    app.invoke({})
    done += 1
    print(done, flush=True)
"""


@pytest.mark.lengthy
def test_a_killed_process_loses_only_what_was_just_queued_and_the_ledger_is_whole(tmp_path: Path) -> None:
    for number in range(3):
        ended = subprocess.run(
            [*python("-c", KILLED), str(tmp_path / "l.db"), str(1.5 + 0.2 * number)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        done = int(ended.stdout.split()[-1])
        assert done > 5
        with Ledger(tmp_path / "l.db") as ledger:
            assert ledger.verify()
            assert sum(1 for _ in ledger.items()) > 0


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
        assert found.not_recorded == (600 - kept) + (600 - executions)
        assert ledger.health().dropped == found.not_recorded


def test_a_forked_child_writes_its_own_items_and_not_its_parents(tmp_path: Path) -> None:
    import os

    with Ledger(tmp_path / "l.db", flush_every=5) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        app.invoke({}, conf("parent"))
        child = os.fork()
        if child == 0:
            try:
                app.invoke({}, conf("child"))
                ledger.flush(10)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert ledger.flush(10)
        assert sorted(str(thread["thread_id"]) for thread in ledger.threads()) == ["child", "parent"]
        assert ledger.verify()


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("arbiter.sqlite3x:///a", r"expected a path, sqlite:///... or postgresql\+psycopg://..."),
        ("/nowhere/at/all.db", "there is no folder '/nowhere/at'"),
        ("postgresql://user:hidden@localhost:1/x", r"cannot open 'postgresql://user:\*\*\*@localhost:1/x'"),
    ],
)
def test_a_ledger_that_cannot_be_opened_says_why_in_a_sentence(where: str, problem: str) -> None:
    with pytest.raises(LedgerUnavailable, match=problem):
        ArbiterOS(ledger=where)


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
    "options", [{"states": "all"}, {"flush_every": -1}, {"queue": 0}, {"key": b"short"}], ids=str
)
def test_a_wrong_option_is_refused_before_anything_is_made(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        Ledger(tmp_path / "l.db", **options)
    assert [*tmp_path.iterdir()] == []


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "l.db", 1).close()
    with sqlite3.connect(tmp_path / "l.db") as connection:
        connection.execute("UPDATE arbiter_ledger_version SET version_num = '9999'")
    with pytest.raises(LedgerUnavailable, match="its schema 9999 is newer"):
        Ledger(tmp_path / "l.db")


def test_outputs_are_the_same_with_and_without_a_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        state: State = {"amount": 3}
        with_one = payments(ledger)[1].invoke(state, conf("t"))
        assert with_one == {"log": ["check", "pay"], "amount": 3, "score": 0.75}


def test_postgresql_keeps_the_same_as_sqlite(tmp_path: Path, postgres_url: str) -> None:
    with recorded(tmp_path / "l.db") as here, recorded(postgres_url) as there:
        mine = [(item.node, item.status, dict(item.output_state)) for item in here.items()]
        assert mine == [(item.node, item.status, dict(item.output_state)) for item in there.items()]
        assert there.verify()
        assert there.counts("node") == here.counts("node")
        assert [item.node for item in there.items(evaluator="score", above=0.7, subject="user-1")]
