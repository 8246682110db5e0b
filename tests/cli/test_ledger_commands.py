"""The commands about a ledger, on files that governed graphs wrote."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from rich.console import Console
from typing_extensions import TypedDict

from arbiter import ArbiterOS, ConfigurationError, History, PolicyViolationError, ThresholdEvaluator
from arbiter.checkers import ConditionChecker
from arbiter.ledger import Ledger
from tests import docs_check
from tests.cli.cli_support import invoked, refused, started, typed
from tests.ledger.ledger_support import KEY, conf, payments, sql
from tests.processes import python
from tests.support import Check, Spy


class Payment(TypedDict, total=False):
    amount: int
    messages: list[str]
    user: dict[str, Any]
    password: str
    text: str
    card: str
    number: Any


PAYMENT: Payment = {
    "amount": 1200,
    "messages": ["Hi"],
    "user": {"is_admin": False, "full name": "Ann"},
    "password": "hunter2hunter2",
    "card": "4111 1111 1111 1111",
    "number": 10**5000,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of six threads; the fourth is denied by the policy `limit`, the second ran twice."""
    path = tmp_path_factory.mktemp("recorded") / "arbiter.db"
    with Ledger(path) as ledger:
        arbiter_os, app = payments(ledger)
        for number in (0, 1, 1, 2, 3, 4, 5):
            try:
                app.invoke({"amount": 500 if number == 3 else number}, conf(f"pay-{number}"))
            except PolicyViolationError:
                pass
        arbiter_os.drain(60)
        assert ledger.flush(20)
    return path


@pytest.fixture
def folder(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with that ledger under the name that commands look for."""
    monkeypatch.delenv("ARBITER_LEDGER", raising=False)
    monkeypatch.chdir(recorded.parent)
    return recorded.parent


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


# history ------------------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_history_lists_the_threads_newest_first(folder: Path) -> None:
    heading, _, *rows, hint = typed("history").splitlines()
    assert cells(heading)[:3] == ["thread", "graph", "started"]
    assert [cells(row)[0] for row in rows] == ["pay-5", "pay-4", "pay-3", "pay-2", "pay-1", "pay-0"]
    assert cells(rows[2])[4:] == ["1", "1", "0", "denied by limit"]
    assert cells(rows[4])[4:] == ["4", "0", "0", "score 0.00", "completed"]
    assert hint.startswith("6 threads. arbiter history THREAD shows one")
    assert len(json.loads(typed("history", "--format", "json"))) == 6
    assert json.loads(typed("history", "--format", "jsonl").splitlines()[2])["lowest"] is None


def test_history_finds_items(folder: Path) -> None:
    found = typed("history", "--verdict", "deny", "--policy", "limit", "--since", "7d").splitlines()
    assert cells(found[2])[1:] == ["pay-3", "1", "check", "denied limit", "the checker returned False"]
    assert found[3:] == ["1 item."]
    low = typed("history", "--evaluator", "score", "--below", "0.5").splitlines()
    assert {cells(row)[3] for row in low[2:-1]} == {"pay"}
    (item,) = json.loads(typed("history", "--status", "denied", "--format", "json"))
    assert (item["thread_id"], item["policy"], item["verdict"]) == ("pay-3", "limit", "deny")
    assert item["input_state"]["amount"] == 500


def _asked(tmp_path: Path, deny_when: str, state: Payment, reason: str | None = None) -> str:
    """What `arbiter history --verdict deny` shows as the reason for which a condition denied."""
    graph = StateGraph(Payment).add_node("pay", Spy("pay")).add_edge(START, "pay").compile()
    with Ledger(tmp_path / "arbiter.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(ConditionChecker("limit", deny_when, reason=reason))
        with pytest.raises(PolicyViolationError, match=re.escape(reason or deny_when)):
            arbiter_os.govern(graph).invoke(state)
    shown = typed("history", "--verdict", "deny", "--ledger", str(tmp_path / "arbiter.db")).splitlines()
    return cells(shown[2])[-1]


@pytest.mark.parametrize(
    ("deny_when", "why"),
    [
        ("input.amount > 1000", "input.amount is 1200"),
        (
            "input.amount > 1000 && !state.user.is_admin",
            "input.amount is 1200, state.user.is_admin is false",
        ),
        ("input.messages[0] == 'Hi'", 'input.messages[0] is "Hi"'),
        ("input.user['full name'] == 'Ann'", "input.user['full name'] is \"Ann\""),
    ],
)
def test_history_says_which_values_a_condition_found(tmp_path: Path, deny_when: str, why: str) -> None:
    assert _asked(tmp_path, deny_when, PAYMENT) == why


@pytest.mark.parametrize(
    "deny_when",
    [
        "size(input.messages) > 0",
        "input.amount > 1000 && history.count >= 0",
        "input.password != 'a'",
        "has(input.password)",
        "input.card != 'a'",
        "has(input.number)",
    ],
)
def test_history_shows_a_condition_whose_values_are_not_all_plain_and_known(
    tmp_path: Path, deny_when: str
) -> None:
    """Lists, what the history says, what was redacted, and numbers that Python does not print are no values to
    show."""
    assert _asked(tmp_path, deny_when, PAYMENT) == deny_when


def test_history_shows_the_reason_that_the_user_gave(tmp_path: Path) -> None:
    assert _asked(tmp_path, "input.amount > 1000", PAYMENT, "a large amount") == "a large amount"


def test_a_text_that_a_condition_found_is_shown_if_it_is_short(tmp_path: Path) -> None:
    why = _asked(tmp_path, "input.text != ''", {"text": "\u202e\nhello"})
    assert why.startswith("input.text is ")
    assert "\u202e" not in why
    assert _asked(tmp_path, "input.text != ''", {"text": "x" * 9000}) == "input.text != ''"


@pytest.mark.lengthy
def test_items_that_are_far_apart_are_on_one_screen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the ledger looks at a bounded number of entries and may find none of them."""
    wanted = ("history", "--node", "pay", "--evaluator", "score", "--below", "0.5", "--format", "json")
    expected = json.loads(typed(*wanted))
    monkeypatch.setattr("arbiter.ledger._queries.READ", 2)
    with Ledger(folder / "arbiter.db") as ledger:
        page = ledger.items(node="pay", evaluator="score", below=0.5).page()
        assert page.next is not None
        assert len(page) < len(expected)
    assert json.loads(typed(*wanted)) == expected


@pytest.mark.lengthy
def test_the_command_that_a_page_names_shows_the_next_page(folder: Path) -> None:
    with Ledger("many.db") as ledger:
        _, app = payments(ledger)
        for number in range(60):
            app.invoke({"amount": 1}, conf(f"t{number:02}"))
        ledger.flush(60)
    seen: list[str] = []
    for question in (("history",), ("history", "--node", "check")):
        arguments: tuple[str, ...] = (*question, "--ledger", "many.db")
        seen.clear()
        while arguments:
            *lines, last = typed(*arguments).splitlines()
            seen += [cells(line)[len(question) // 2] for line in lines if re.search(r"\bt\d\d\b", line)]
            arguments = tuple(last.split()[2:]) if last.startswith("Next: ") else ()
        assert seen == [f"t{number:02}" for number in reversed(range(60))]
    page = invoked("history", "--ledger", "many.db", "--format", "jsonl")
    assert page.stderr.splitlines()[-1].endswith(" --ledger many.db --format jsonl")


@pytest.mark.lengthy
def test_history_shows_a_thread_as_the_process_that_ran_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules and fields stand in their own order, which is not the alphabetical one."""
    monkeypatch.chdir(tmp_path)
    with Ledger("arbiter.db") as ledger:
        arbiter_os, app = payments(ledger)
        arbiter_os.add_policy_checker(Check("kind", lambda history: True))
        arbiter_os.add_evaluator(ThresholdEvaluator("certain", "score", 0.1))
        app.invoke({"amount": 7}, conf("shown"))
        assert ledger.flush(60)
        remembered = arbiter_os.history_of(thread_id="shown")
        assert typed("history", "shown") == _printed(remembered)
        assert json.loads(typed("history", "shown", "--format", "json")) == json.loads(
            json.dumps(remembered.to_dicts())
        )
    assert started("history", "shown", folder=tmp_path, code=0).stdout == _printed(remembered)


def _printed(history: History) -> str:
    console = Console(file=StringIO(), width=200)
    with console.capture() as captured:
        history.pprint(console)
    return captured.get()


def test_history_shows_one_run_of_a_thread(folder: Path) -> None:
    whole = json.loads(typed("history", "pay-1", "--format", "json"))
    first = json.loads(typed("history", "pay-1", "--run", "1", "--format", "json"))
    newest = json.loads(typed("history", "pay-1", "--run", "-1", "--format", "json"))
    assert [item["id"] for item in whole] == [item["id"] for item in (*first, *newest)]
    assert "has no run 3; it has 2" in refused("history", "pay-1", "--run", "3")


def test_history_of_a_thread_in_a_time_shows_the_items_of_that_time(folder: Path) -> None:
    assert typed("history", "pay-1", "--since", "7d").splitlines()[-1] == "4 items."
    assert json.loads(typed("history", "pay-1", "--until", "2020-01-01", "--format", "json")) == []


def test_history_of_one_run_takes_no_filter_of_items(folder: Path) -> None:
    said = refused("history", "pay-1", "--run", "1", "--node", "pay")
    assert said == "--run shows a run of a thread whole; leave it out to find items of the thread."


@pytest.mark.parametrize("time", [("--since", "7d"), ("--until", "2020-01-01")])
def test_history_that_follows_takes_no_time(time: tuple[str, str], folder: Path) -> None:
    said = refused("history", "pay-1", "--follow", *time)
    assert said == "--follow shows a whole thread, as a table or as jsonl."


@pytest.mark.lengthy
def test_an_erased_thread_is_found_by_its_ref(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        _, app = payments(ledger)
        app.invoke({}, conf("gone"))
        ledger.flush(60)
        ledger.erase(thread_id="gone", reason="request 4711")
    name, marked = cells(typed("history", "--ledger", str(path)).splitlines()[2])[0].split()
    assert marked == "(erased)"
    assert "· pay · completed" in typed("history", name, "--ledger", str(path))
    assert "If it was erased, its name was erased; give its ref." in refused(
        "history", "gone", "--ledger", str(path)
    )


@pytest.mark.lengthy
def test_follow_shows_the_thread_and_then_what_is_added(tmp_path: Path) -> None:
    with Ledger(tmp_path / "arbiter.db") as ledger:
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf("t"))
        assert ledger.flush(60)
        following = subprocess.Popen(
            [sys.executable, "-m", "arbiter", "history", "t", "--follow", "--format", "jsonl"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(docs_check.ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert following.stdout is not None
        shown = [json.loads(following.stdout.readline()) for _ in range(2)]
        app.invoke({"amount": 2}, conf("t"))
        shown += [json.loads(following.stdout.readline()) for _ in range(2)]
        assert [(item["node"], item["input_state"]["amount"]) for item in shown] == [
            ("check", 1),
            ("pay", 1),
            ("check", 2),
            ("pay", 2),
        ]
        following.send_signal(signal.SIGINT)
        assert following.communicate(timeout=100) == ("", "")
        assert following.returncode == 0


# verify, anchor, erase, upgrade -------------------------------------------------------------------


@pytest.fixture
def copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that ledger, which a test may change, in a working directory of its own."""
    shutil.copy(folder / "arbiter.db", tmp_path / "arbiter.db")
    monkeypatch.chdir(tmp_path)
    for name in ("ARBITER_LEDGER_KEY", "ARBITER_LEDGER_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "arbiter.db"


@pytest.mark.lengthy
def test_verify_says_what_is_proved_and_what_is_not(copied: Path) -> None:
    with Ledger(copied) as ledger:
        _, app = payments(ledger)
        app.invoke({}, conf("pay-0"))
        ledger.flush(60)
        lines = typed("verify").splitlines()
        assert re.match(r"arbiter.db: 6 threads, 23 entries, \d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d$", lines[0])
        assert [cells(line)[:2] for line in lines[1:4]] == [
            ["chained", "23"],
            ["anchored", "20"],
            ["after it", "3"],
        ]
        assert "up to anchor 1 of " in lines[2]
        assert lines[-1] == "intact"
        assert json.loads(typed("verify", "--format", "json"))["after_anchor"] == 3
    anchored = typed("verify", "pay-0").splitlines()[2]
    assert cells(anchored)[:2] == ["anchored", "6"]


def test_verify_names_the_thread_and_the_entry_and_ends_with_1(copied: Path) -> None:
    with sql(copied) as run:
        run("UPDATE entries SET body = replace(body, 'pay', 'buy') WHERE node = 'pay' AND thread = 3")
        run("UPDATE entries SET policy = 'other' WHERE verdict = 'deny'")
    lines = typed("verify", code=1).splitlines()
    assert re.match(r"  thread pay-2 \([0-9a-f]{8}\), entry 2: its body does not fit its hash", lines[1])
    assert lines[-1].startswith("BROKEN: 2 findings in 2 threads. ")
    found = json.loads(typed("verify", "--format", "json", code=1))
    assert (found["intact"], len(found["findings"])) == (False, 2)
    assert typed("verify", "pay-0").endswith("intact\n")


def test_an_anchor_as_json_is_one_document_also_if_there_is_none_to_write(copied: Path) -> None:
    assert json.loads(typed("anchor", "--format", "json")) is None
    assert typed("anchor", "--format", "jsonl") == ""
    assert "which is the ledger" in refused("anchor", "--anchors", str(copied))


@pytest.mark.lengthy
def test_an_anchor_that_was_written_without_the_file_is_appended_to_it(copied: Path) -> None:
    """The process that ran the graph has anchored all threads at its end: the file still gets its anchors."""
    said = typed("anchor", "--anchors", "kept.jsonl").splitlines()
    assert said[0].startswith("anchor 1: 6 threads, up to entry 20, not signed.")
    assert typed("anchor", "--anchors", "kept.jsonl") == "no thread has grown since the last anchor.\n"
    with Ledger(copied) as ledger:
        _, app = payments(ledger)
        app.invoke({}, conf("pay-9"))
        ledger.flush(60)
    typed("erase", "--thread", "pay-9", "--reason", "request 4711")
    assert typed("anchor", "--anchors", "kept.jsonl").startswith("anchor 3: 1 thread")
    assert [json.loads(line)["n"] for line in Path("kept.jsonl").read_text().splitlines()] == [1, 2, 3]
    with sql(copied) as run:
        run("DELETE FROM anchor_heads WHERE anchor > 1")
        run("DELETE FROM anchors WHERE id > 1")
    assert "external anchor 2 is not in this database" in typed("verify", "--anchors", "kept.jsonl", code=1)


@pytest.mark.lengthy
def test_anchors_that_were_kept_elsewhere_show_what_was_cut(copied: Path) -> None:
    with Ledger(copied, anchors="kept.jsonl") as ledger:
        _, app = payments(ledger)
        app.invoke({}, conf("pay-9"))
    assert typed("verify", "--anchors", "kept.jsonl").endswith("intact\n")
    with sql(copied) as run:
        run("DELETE FROM anchor_heads WHERE anchor = 2")
        run("DELETE FROM anchors WHERE id = 2")
    assert "external anchor 2 is not in this database" in typed("verify", "--anchors", "kept.jsonl", code=1)


@pytest.mark.lengthy
def test_anchors_are_signed_by_the_key_of_the_environment(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(copied) as ledger:
        _, app = payments(ledger)
        app.invoke({}, conf("pay-9"))
        ledger.flush(60)
        monkeypatch.setenv("ARBITER_LEDGER_KEY", KEY.decode())
        said = typed("anchor", "--anchors", "kept.jsonl").splitlines()
        assert re.match(r"anchor 2: 1 thread, up to entry 23, signed by hmac:[0-9a-f]{8}\.", said[0])
        assert said[1] == "Appended to kept.jsonl."
        assert typed("anchor") == "no thread has grown since the last anchor.\n"
    typed("erase", "--thread", "pay-9", "--reason", "request 4711")
    with sql(copied) as run:
        assert [key for (key,) in run("SELECT substr(key_id, 1, 5) FROM anchors WHERE id > 1")] == [
            "hmac:"
        ] * 2
    # Anchor 1 is older than the key.
    assert "anchor 1 is not signed" in typed("verify", "--anchors", "kept.jsonl", code=1)
    monkeypatch.delenv("ARBITER_LEDGER_KEY")
    assert "names the key hmac:" in typed("verify")
    Path("key").write_bytes(b"short")
    monkeypatch.setenv("ARBITER_LEDGER_KEY_FILE", "key")
    assert "has 5 bytes; expected at least 32" in refused("verify")
    monkeypatch.setenv("ARBITER_LEDGER_KEY_FILE", "no-key")
    assert "'no-key', which cannot be read: No such file" in refused("verify")
    monkeypatch.setenv("ARBITER_LEDGER_KEY", "both")
    assert "are both set" in refused("verify")


def test_a_public_key_verifies_and_does_not_sign(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.generate().public_key()
    Path("key.pem").write_bytes(
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    monkeypatch.setenv("ARBITER_LEDGER_KEY_FILE", "key.pem")
    assert "anchor 1 is not signed" in typed("verify", code=1)
    assert "is a public key, which cannot sign anchors" in refused("anchor")


SAVED = """
import sqlite3
import weakref
from langgraph.checkpoint.sqlite import SqliteSaver
from team import State, pay
from langgraph.graph import START, StateGraph
connection = sqlite3.connect("saved.db", check_same_thread=False)
saver = SqliteSaver(connection)
weakref.finalize(saver, connection.close)
graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(checkpointer=saver)
"""


@pytest.mark.lengthy
def test_erase_removes_contents_names_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARBITER_LEDGER", raising=False)
    (tmp_path / "team.py").write_text(GRAPH)
    (tmp_path / "saved.py").write_text(SAVED)
    for thread in ("t1", "t2"):
        started(
            "run", "saved:graph", "--input", '{"amount": 5}', "--thread", thread, "--ledger", "arbiter.db",
            folder=tmp_path, code=0,
        )  # fmt: skip
    erase = ("erase", "--reason", "request 4711")
    done = started(*erase, "--thread", "t1", "--graph", "saved:graph", folder=tmp_path, code=0)
    assert "erased: the contents of 2 entries and the names of 1 thread." in done.stdout
    assert "The checkpoints of saved:graph were deleted." in done.stdout
    with closing(sqlite3.connect("saved.db")) as saved, saved:
        assert {row[0] for row in saved.execute("SELECT thread_id FROM checkpoints")} == {"t2"}
    assert cells(typed("verify").splitlines()[-2])[:2] == ["erased", "2"]
    ref = re.findall(r"(\w+) \(erased\)", typed("history"))[0]
    assert typed(*erase, "--thread", ref) == f"nothing to erase: {ref} has been erased before.\n"
    done = started(*erase, "--thread", ref, "--graph", "saved:graph", folder=tmp_path, code=0)
    assert done.stdout == (
        f"nothing to erase: {ref} has been erased before. saved:graph has no checkpoints of that name; those of the "
        "thread have its id.\n"
    )
    assert "--graph module:graph deletes them" in typed(*erase, "--thread", "t2")
    done = started(*erase, "--thread", "t2", "--graph", "saved:graph", folder=tmp_path, code=0)
    nothing = "nothing to erase in the ledger. The checkpoints of saved:graph for 't2' were deleted.\n"
    assert done.stdout == nothing
    with closing(sqlite3.connect("saved.db")) as saved:
        assert saved.execute("SELECT thread_id FROM checkpoints").fetchall() == []
    done = started(*erase, "--thread", "t2", "--graph", "saved:graph", folder=tmp_path, code=2)
    assert "this ledger has no thread 't2'" in done.stderr


@pytest.mark.lengthy
def test_verify_against_a_graph_adds_what_only_its_checkpoints_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARBITER_LEDGER", raising=False)
    (tmp_path / "team.py").write_text(GRAPH)
    (tmp_path / "saved.py").write_text(SAVED)
    run = ("run", "saved:graph", "--input", '{"amount": 5}', "--thread", "t1", "--ledger", "lost.db")
    started(*run, folder=tmp_path, code=0)
    Ledger("arbiter.db").close()
    monkeypatch.setattr("arbiter.ledger._recovering.GRACE", 0)
    for name in ("team", "saved"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = typed("verify", "--against", "saved:graph")
    assert said.startswith("recovered: 1 node run from the checkpoints of saved:graph, without contents.\n")
    assert said.endswith("intact\n")
    assert "· pay · completed" in typed("history", "t1")
    said = typed("verify", "--against", "saved:graph")
    assert said.startswith("the checkpoints of saved:graph have nothing that the ledger lacks.\n")

    def locked(*_: object, **__: object) -> None:
        raise ValueError("no server")

    monkeypatch.setattr("langgraph.checkpoint.sqlite.SqliteSaver.list", locked)
    said = refused("verify", "--against", "saved:graph")
    assert said == "recover: the checkpoints of this graph cannot be read: ValueError: no server"


def test_prune_reports_the_removed_contents(copied: Path) -> None:
    with Ledger(copied) as ledger:
        arbiter_os, app = payments(ledger, clock=lambda: time.time() - 100 * 86400)
        app.invoke({}, conf("old"))
        arbiter_os.drain(60)
    assert typed("ledger", "prune", "--keep-days", "90") == (
        "pruned: 1 thread, and the contents of 3 entries, older than 90 days.\n"
    )
    assert "keep_days" in refused("ledger", "prune", "--keep-days", "0")
    assert "pruned" in typed("verify")


@pytest.mark.lengthy
def test_erasing_a_person_names_the_threads_whose_checkpoints_stay(copied: Path) -> None:
    """Afterwards the ledger knows neither their names nor whose they were."""
    done = typed("erase", "--reason", "request 4711", "--subject", "ann")
    names = "'pay-0', 'pay-1', 'pay-2', 'pay-3', 'pay-4', 'pay-5'"
    assert f"Copies may be left: checkpoints of {names} (--graph module:graph deletes them); exports" in done


@pytest.mark.lengthy
def test_an_erasure_that_cannot_be_meant_erases_nothing(copied: Path) -> None:
    erase = ("erase", "--reason", "request 4711")
    assert "no thread 'pay-33'. Did you mean 'pay-3'" in refused(*erase, "--thread", "pay-33")
    assert "subject 'anne'. Did you mean 'ann'" in refused(*erase, "--subject", "anne")
    assert "either --thread or --subject" in refused(*erase)
    assert "either --thread or --subject" in refused(*erase, "--thread", "pay-1", "--subject", "ann")
    assert "give a reason" in refused("erase", "--reason", " ", "--thread", "pay-1")
    assert "Missing option '--reason'" in refused("erase", "--thread", "pay-1")
    Path("team.py").write_text(GRAPH)
    assert "has no checkpointer" in refused(*erase, "--thread", "pay-1", "--graph", "team.py:graph")
    assert json.loads(typed("verify", "--format", "json"))["erased"] == 0


def test_upgrade_names_the_schema_and_makes_no_ledger(copied: Path) -> None:
    assert typed("ledger", "upgrade") == "arbiter.db has the newest schema 0003.\n"
    assert "there is no ledger at 'no.db'" in refused("ledger", "upgrade", "--ledger", "no.db")
    assert not Path("no.db").exists()
    with sql(copied) as run:
        run("UPDATE arbiter_ledger_version SET version_num = '9999'")
    for command in (("history",), ("ledger", "upgrade")):
        assert "its schema 9999 is newer than this version of Arbiter" in refused(*command)


@pytest.mark.parametrize("table", ["entries", "rollups", "subjects"])
def test_a_ledger_that_lost_a_table_is_refused_for_a_run(copied: Path, table: str) -> None:
    """A run would wait for a minute at its end: nothing can be written."""
    with sql(copied) as run:
        run(f"DROP TABLE {table}")
    Path("team.py").write_text(GRAPH)
    assert refused("verify") == f"cannot open 'arbiter.db': no such table: {table}."
    for command in (("run", "team.py:graph", "--ledger", "arbiter.db"), ("ledger", "upgrade")):
        assert refused(*command) == (
            f"cannot open 'arbiter.db': it has lost the table '{table}'. Restore it from a backup."
        )


@pytest.mark.parametrize("table", ["anchors", "constitutions", "cursors", "graphs", "rollups", "undelivered"])
def test_the_history_of_a_ledger_that_lost_another_table_is_shown(copied: Path, table: str) -> None:
    """There may be no backup."""
    expected = typed("history"), typed("history", "--verdict", "deny")
    with sql(copied) as run:
        run(f"DROP TABLE {table}")
    assert (typed("history"), typed("history", "--verdict", "deny")) == expected


# run --ledger -------------------------------------------------------------------------------------

GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
class State(TypedDict):
    amount: float
def pay(state): return {"amount": 0}
graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(name="payments")
"""
RULES = """
version: 1
name: rules
description: What may be paid.
checkers: [{name: small, use: condition, deny_when: input.amount > 1000}]
"""


@pytest.mark.parametrize(
    "options",
    [("-c", "wrong.yaml"), ("-c", "nowhere.yaml"), ("-c", "elsewhere.yaml"), ("--resume", "yes")],
    ids=" ".join,
)
def test_a_mistake_in_the_configuration_of_a_run_makes_no_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """Nor does an `ArbiterOS` that is made from it."""
    (tmp_path / "team.py").write_text(GRAPH)
    (tmp_path / "wrong.yaml").write_text(RULES.replace("deny_when", "deny_wen"))
    (tmp_path / "elsewhere.yaml").write_text(RULES.replace("small,", "small, on_deny: redirect:nowhere,"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "team", raising=False)
    refused("run", "team:graph", "--input", "{}", "--ledger", "l.db", *options)
    assert not list(tmp_path.glob("*.db*"))
    if options[1] in ("wrong.yaml", "nowhere.yaml"):
        with pytest.raises(ConfigurationError):
            ArbiterOS.from_constitution(options[1], ledger="l.db")
        with pytest.raises(ConfigurationError):
            ArbiterOS.from_constitution("arbiter:kernel", shadow=options[1], ledger="l.db")
        assert not list(tmp_path.glob("*.db*"))


@pytest.mark.lengthy
def test_run_records_with_ledger_and_says_how_to_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARBITER_LEDGER", raising=False)
    (tmp_path / "team.py").write_text(GRAPH)
    (tmp_path / "rules.yaml").write_text(RULES)
    run = ("run", "team:graph", "-c", "rules.yaml", "--format", "json", "--input")
    started(*run, '{"amount": 1}', folder=tmp_path, code=0)
    assert not list(tmp_path.glob("*.db"))
    paid = started(*run, '{"amount": 5}', "--ledger", "arbiter.db", folder=tmp_path, code=0)
    (thread,) = re.findall(r"recorded: arbiter history (\S+)$", paid.stderr.strip())
    started(*run, '{"amount": 5000}', "--ledger", "arbiter.db", folder=tmp_path, code=3)
    monkeypatch.chdir(tmp_path)
    assert "· pay · completed" in typed("history", thread)
    ended = [cells(line)[-1] for line in typed("history").splitlines()[2:4]]
    assert ended == ["denied by small", "completed"]
    monkeypatch.setenv("ARBITER_LEDGER", "other.db")
    started(*run, '{"amount": 5}', folder=tmp_path, code=0)
    assert typed("history").splitlines()[-1].startswith("1 thread.")


@pytest.mark.lengthy
def test_a_thread_can_be_named_without_a_checkpointer_if_a_ledger_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(GRAPH)
    run = ("run", "team:graph", "--input", '{"amount": 1}', "--thread", "pay-7")
    assert "no thread is kept" in started(*run, folder=tmp_path, code=2).stderr
    done = started(*run, "--ledger", "arbiter.db", folder=tmp_path, code=0)
    assert "recorded: arbiter history pay-7" in done.stderr


@pytest.mark.lengthy
def test_the_commands_show_the_same_on_postgresql(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (str(tmp_path / "l.db"), postgres_url):
        with Ledger(where) as ledger:
            _, app = payments(ledger)
            for number in (1, 500, 3):
                try:
                    app.invoke({"amount": number}, conf(f"pay-{number}"))
                except PolicyViolationError:
                    pass
            assert ledger.flush(20)
    commands = (
        ("history",),
        ("history", "--policy", "limit"),
        ("history", "--evaluator", "score", "--below", "0.5"),
        ("history", "pay-1"),
        ("verify",),
        ("export", "--to", "csv"),
        ("erase", "--thread", "pay-1", "--reason", "request 4711"),
        ("history", "--node", "pay"),
        ("verify", "pay-3"),
        ("anchor",),
    )
    shown: list[list[str]] = []
    for where in (str(tmp_path / "l.db"), postgres_url):
        monkeypatch.setenv("ARBITER_LEDGER", where)
        shown.append([_masked(typed(*command)) for command in commands])
    assert shown[0] == shown[1]
    assert "pay-500" in shown[0][0]


@pytest.mark.lengthy
def test_the_page_shows_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARBITER_LEDGER", raising=False)
    page = (docs_check.ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    first = next(docs_check.blocks(page))
    subprocess.run(
        python("-c", first.source),
        env={**os.environ, "PYTHONPATH": str(docs_check.ROOT)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (screens,) = re.findall(r"^```console\n(.*?)^```", page, re.M | re.S)
    for screen in screens.split("\n\n"):
        command, _, shown = screen.strip().partition("\n")
        assert _masked(typed(*shlex.split(command.removeprefix("$ arbiter ")))) == _masked(shown + "\n")


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("missing", "needed"),
    [
        ("orjson", "orjson, sqlalchemy and alembic"),
        ("sqlalchemy", "sqlalchemy and alembic"),
        ("alembic", "sqlalchemy and alembic"),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, missing: str, needed: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['arbiter', 'history']; " + (
        "from arbiter.cli import main; main()"
    )
    done = subprocess.run(
        python("-c", program),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(docs_check.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"a ledger needs {needed}: pip install 'arbiteros[ledger]'\n"


def _masked(text: str) -> str:
    """The text without what differs from run to run: places, uuids, times, and the widths of columns."""
    text = re.sub(r"^\S*(l\.db|postgresql://\S+?)(?=[:, ])", "LEDGER", text)
    text = re.sub(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<!\.)\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b", "ID", text
    )
    text = re.sub(
        r"\d+ min \d+ s|[\d.]+ (ms|s)\b|\d{4}-\d\d-\d\d([T ][\d:.+]+Z?)?|\d+(\.\d+)?e-\d+|\d+\.\d{3,}",
        "TIME",
        text,
    )
    return re.sub(r"[ ─]{2,}", "  ", text)


# The ten lines ------------------------------------------------------------------------------------

TEN_LINES = """
from pathlib import Path
from arbiter import ArbiterOS, PolicyViolationError
from arbiter.ledger import Ledger
from team import graph

ledger = Ledger("sqlite:///arbiter.db")
arbiter_os = ArbiterOS(ledger=ledger)
arbiter_os.load_constitution("rules.yaml")
app = arbiter_os.govern(graph)
for amount in (5, 5000):
    try:
        app.invoke({"amount": amount}, {"configurable": {"thread_id": "pay-7", "user_id": "u-12"}})
    except PolicyViolationError as error:
        denied = error

assert ledger.flush(timeout=5)
ledger.history(thread_id="pay-7").pprint()
for item in ledger.items(verdict="deny", policy="small", since="7d"):
    assert (item.thread_id, item.decision.policy) == ("pay-7", "small")
page = ledger.items(verdict="deny").page(limit=50, after=None)
assert len(page) == 1 and page.next is None
assert {row["name"]: row["count"] for row in ledger.counts(by="verdict", every="hour", since="24h")}
assert ledger.scores("quality", every="hour") == []
assert ledger.verify()
Path("stricter.yaml").write_text(Path("rules.yaml").read_text().replace("1000", "1"))
differences = ledger.replay("stricter.yaml")
differences.pprint()
assert ledger.erase(thread_id="pay-7", reason="request 4711").threads == 1
assert ledger.anchor()
ledger.close()
"""


@pytest.mark.lengthy
def test_the_ten_lines_run(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(GRAPH)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "main.py").write_text(TEN_LINES)
    done = subprocess.run(
        python("main.py"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{docs_check.ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "· pay · completed" in done.stdout
    assert "stricter" in done.stdout


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("history", "--since", "yesterday"), "since: expected .*'30m', '24h' or '7d', got 'yesterday'"),
        (("history", "--below", "x", "--evaluator", "score"), "^--below: expected a number, got 'x'.$"),
        (("history", "--below", "0,5", "--evaluator", "score"), "^--below: .* got '0,5'. Write 0.5.$"),
        (("history", "--run", "1.5", "main"), "^--run: expected a whole number, got '1.5'.$"),
        (("history", "--run", "2.0", "pay-33"), "no thread .pay-33."),
        (("view", "--port", "x"), "^--port: expected a whole number from 0 to 65535, got 'x'.$"),
        (("view", "--port", "70000"), "^--port: expected a whole number from 0 to 65535, got '70000'.$"),
        (("eval", "comment", "--pr", "0"), "^--pr: expected a whole number from 1 on, got '0'.$"),
        (("experiment", "plan", "--seed", "x"), "^--seed: expected a whole number, got 'x'.$"),
        (("experiment", "plan", "--scale", "0,5"), "^--scale: .* got '0,5'. Write 0.5.$"),
        (("eval", "plan", "--drop", "1.0.0"), "^--drop: expected a number, got '1.0.0'.$"),
        (("history", "--rnu", "1"), "^No such option: --rnu .*--run.*. Try '.* history --help'.$"),
        (("history", "--run"), "^Option '--run' requires an argument. Try '.* history --help'.$"),
        (("history", "a", "b"), "^Got unexpected extra argument.* Try '.* history --help'.$"),
        (("histroy",), "^No such command 'histroy'. .*Try '.* --help'.$"),
        (("ledger", "--nope"), "^No such option: --nope. Try '.* ledger --help'.$"),
        (("explain",), "^Missing argument 'policy'. Try '.* explain --help'.$"),
        (("history", "--below", "1"), "name the evaluator as well"),
        (("history", "--after", "zzzz.5.1"), "of another ledger"),
        (("history", "--node", "pay", "--after", "zzzz.5"), "of another ledger"),
        (("history", "--node", "pai"), "node is 'pai', which does not occur .* Did you mean 'pay'"),
        (("history", "--policy", "limt"), "policy is 'limt', .* Did you mean 'limit'"),
        (("history", "--evaluator", "scores"), "evaluator is 'scores', .* Did you mean 'score'"),
        (("history", "--verdict", "denied"), "verdict is 'denied'; expected one of 'allow', 'deny', 'ask'"),
        (("history", "--status", "complete"), "status is 'complete'; .* Did you mean 'completed'"),
        (("history", "pay-33"), "no thread 'pay-33'. Did you mean 'pay-3'"),
        (("history", "--format", "xml"), "--format is 'xml'; expected one of table, json, jsonl"),
        (("history", "--follow"), "about one thread"),
        (("history", "--ledger", "no.db"), "there is no ledger at 'no.db'. arbiter run --ledger makes one."),
        (("history", "--ledger", "no/l.db"), "there is no ledger at 'no/l.db'"),
        (("history", "--ledger", "."), "it is a directory"),
        (
            ("history", "--ledger", "mysql://ann:secret@host/db"),
            r"'mysql://ann:\*\*\*@host/db': expected a path",
        ),
        (("history", "--ledger", "text.db"), "it is not a SQLite database"),
        (("verify", "pay-33"), "no thread 'pay-33'. Did you mean 'pay-3'"),
        (("verify", "--anchors", "text.db"), "text.db:1: this line is not an anchor of a ledger"),
        (("verify", "--anchors", "no.jsonl"), "'no.jsonl' cannot be read: No such file"),
        (("verify", "--anchors", "others.jsonl"), "these anchors are of ledger other; this is ledger"),
        (("verify", "--ledger", "no.db"), "there is no ledger at 'no.db'"),
        (("export", "--ledger", "no.db"), "there is no ledger at 'no.db'"),
        (("export", "--to", "xml"), "--to is 'xml'; expected one of jsonl, csv"),
        (("export", "--to", "csv", "--follow"), "--follow writes JSON lines"),
        (("export", "--since", "soon"), "since: expected"),
        (("export", "pay-33"), "no thread 'pay-33'. Did you mean 'pay-3'"),
        (("export", "-o", "no/where"), "'no/where' cannot be written: No such file"),
        (("anchor", "--ledger", "no.db"), "there is no ledger at 'no.db'"),
    ],
    ids=str,
)
def test_a_mistake_is_a_sentence_and_makes_nothing(
    arguments: tuple[str, ...], said: str, folder: Path
) -> None:
    (folder / "text.db").write_text("this is no database")
    (folder / "others.jsonl").write_text('{"v":1,"ledger":"other","n":1,"upto":1,"root":""}')
    before = {path.name for path in folder.iterdir()}
    assert re.search(said, " ".join(refused(*arguments).split()))
    assert {path.name for path in folder.iterdir()} - before <= {"arbiter.db-wal", "arbiter.db-shm"}


@pytest.mark.lengthy
def test_a_policy_that_has_only_allowed_so_far_is_known(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        _, app = payments(ledger)
        app.invoke({}, conf("t"))
        ledger.flush(60)
    assert typed("history", "--policy", "limit", "--ledger", str(tmp_path / "l.db")).endswith("0 items.\n")


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "arguments",
    [
        ("history",),
        ("history", "pay-1", "--format", "jsonl"),
        ("history", "pay-1", "--follow"),
        ("export",),
        ("verify",),
        ("replay", "-c", "arbiter:kernel", "--fail-on", "none"),
        ("run", "app:graph"),
    ],
)
def test_a_reader_that_leaves_is_no_failure(copied: Path, arguments: tuple[str, ...]) -> None:
    """As in `arbiter history | head`. 1 is the code of a graph that failed, and of a ledger that was changed."""
    (copied.parent / "app.py").write_text("from tests.support import Spy, chain\ngraph = chain(Spy('a'))\n")
    with subprocess.Popen(
        python("-m", "arbiter", *arguments),
        env={**os.environ, "PYTHONPATH": str(docs_check.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, b"")


def test_an_export_replaces_no_device_and_the_file_behind_a_link(folder: Path, tmp_path: Path) -> None:
    """As `-o /dev/stdout` did for an administrator: the device was a file from then on."""
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(tmp_path / "behind")
    assert "it is no file, and would be replaced" in refused("export", "-o", str(fifo))
    assert fifo.is_fifo()
    assert "which is the ledger" in refused("export", "-o", str(folder / "arbiter.db"))
    assert "Leave out --since" in refused("export", "pay-1", "--to", "html", "--since", "1h")
    typed("export", "-o", str(link))
    assert link.is_symlink()
    assert (tmp_path / "behind").read_text() == typed("export")


def test_an_empty_ledger_is_no_mistake(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.db").close()
    for arguments in (("history",), ("history", "--node", "pay"), ("history", "pay-7"), ("verify",)):
        assert typed(*arguments, "--ledger", str(tmp_path / "l.db")) == "nothing is recorded yet\n"
    assert len(typed("export", "--ledger", str(tmp_path / "l.db")).splitlines()) == 1
    assert "ISO text" in refused("history", "--since", "yesterday", "--ledger", str(tmp_path / "l.db"))


@pytest.mark.lengthy
def test_a_mistake_ends_with_2_and_a_password_is_not_shown(folder: Path) -> None:
    done = started("history", "--since", "yesterday", folder=folder, code=2)
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
    url = "postgresql://ann:secret@127.0.0.1:1/ledger"
    done = started("history", "--ledger", url, folder=folder, code=2)
    assert "cannot open 'postgresql://ann:***@127.0.0.1:1/ledger'" in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.lengthy
def test_a_damaged_database_is_a_sentence(recorded: Path, tmp_path: Path) -> None:
    data = bytearray(recorded.read_bytes())
    data[8192 : len(data) - 4096] = b"\xa5" * (len(data) - 12288)
    (tmp_path / "l.db").write_bytes(data)
    done = started("history", "--ledger", "l.db", folder=tmp_path, code=2)
    assert re.search(r"'l.db': .*(malformed|corrupt|not a database)", done.stderr)


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("entries verified", ["verify"]),
        ("lines written", ["export"]),
        ("lines written", ["export", "-o", "{}/out.jsonl"]),
        ("writing the thread", ["export", "pay-0", "--to", "html", "-o", "{}/out.html"]),
        ("node runs replayed", ["replay", "-c", "{}/rules.yaml", "--fail-on", "none"]),
        ("pruning", ["ledger", "prune", "--keep-days", "1000"]),
    ],
)
def test_long_commands_show_on_a_terminal_how_far_they_are(
    folder: Path, tmp_path: Path, said: str, arguments: list[str]
) -> None:
    """And the result is the same as without a terminal, where nothing is shown."""
    (tmp_path / "rules.yaml").write_text(
        "version: 1\nname: rules\ndescription: Few.\ncheckers:\n"
        "  - {name: few, use: condition, description: Few., deny_when: input.amount > 2}\n"
    )
    given = [each.format(tmp_path) for each in arguments]
    piped, shown = invoked(*given), invoked(*given, FORCE_COLOR="1")
    assert (piped.exit_code, shown.exit_code) == (0, 0), piped.exception
    assert (said in piped.stderr, said in shown.stderr) == (False, True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout) == piped.stdout
