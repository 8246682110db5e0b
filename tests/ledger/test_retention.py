"""Contents that a ledger deletes: on request, or because they were kept long enough. The chain stays
whole."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from arbiter import ArbiterOS, ArbiterWarning, ConfigurationError, EvaluationResult, Verdict
from arbiter.ledger import Ledger, LedgerError
from tests.ledger.ledger_support import conf, payments, sql
from tests.processes import python
from tests.support import Check, Hold, Judge, Spy, chain, until

CANARY = "canary-5310"
DAY = 86_400.0
BEGIN = 1_700_000_000.0


class Days:
    """A clock that stands still at a day."""

    def __init__(self) -> None:
        self.day = 0.0

    def __call__(self) -> float:
        return BEGIN + self.day * DAY


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def over_sixty_days(where: Any, days: Days, **options: Any) -> Ledger:
    """A ledger of four threads on day 60: old, new, one that has both, and an old one that waits for a human."""
    ledger = Ledger(where, clock=days, **options)
    arbiter_os, app = payments(ledger, clock=days)
    arbiter_os.add_policy_checker(
        Check("human", lambda h: Verdict.ask("sure?") if h.item.input_state["amount"] == 42 else True)
    )
    for day, thread, amount in [
        (0, "old", 1),
        (0, "both", 2),
        (1, "waits", 42),
        (50, "both", 3),
        (51, "new", 4),
    ]:
        days.day = day
        app.invoke({"amount": amount}, conf(thread, remark=f"{CANARY}-{thread}-{day}"))
    days.day = 60
    assert ledger.flush(60)
    return ledger


def kept(ledger: Ledger) -> dict[str, int]:
    """The number of items with contents, by thread."""
    threads = [str(thread["thread_id"]) for thread in ledger.threads()]
    return {
        thread: sum(bool(item.input_state) for item in ledger.items(thread_id=thread))
        for thread in sorted(threads)
    }


@pytest.mark.lengthy
def test_older_contents_are_removed_from_every_byte_of_the_file(tmp_path: Path) -> None:
    """Old threads go as a whole; of a thread that goes on, the old contents; one that waits is kept."""
    days = Days()
    with over_sixty_days(tmp_path / "l.db", days) as ledger:
        assert kept(ledger) == {"both": 4, "new": 2, "old": 2, "waits": 1}
        before = ledger.counts("node")
        pruned = ledger.prune(30)
        assert (pruned.threads, pruned.contents) == (1, 6)
        assert kept(ledger) == {"both": 2, "new": 2, "waits": 1}
        found = bytes_of(tmp_path)
        assert f"{CANARY}-old-0".encode() not in found
        assert f"{CANARY}-both-0".encode() not in found
        for left in ("both-50", "new-51", "waits-1"):
            assert f"{CANARY}-{left}".encode() in found
        assert [item.node for item in ledger.items(thread_id="both")] == ["pay", "check"] * 2
        assert ledger.counts("node") == before
        verified = ledger.verify()
        assert verified
        assert (verified.pruned, verified.erased) == (6, 0)
        assert ledger.prune(30).contents == ledger.prune(30).threads == 0


def test_a_thread_that_was_pruned_has_one_entry_that_the_next_anchor_names(tmp_path: Path) -> None:
    days = Days()
    with over_sixty_days(tmp_path / "l.db", days, anchors=tmp_path / "anchors") as ledger:
        ledger.anchor()
        ledger.prune(30)
        with sql(tmp_path / "l.db") as select:
            ((body, seq, head),) = select(
                "SELECT e.body, t.head_seq, hex(t.head_hash) FROM entries e JOIN threads t ON t.id = e.thread "
                "WHERE t.pruned_at IS NOT NULL AND t.thread_id IS NULL AND t.subject IS NULL"
            )
        said = json.loads(body)
        assert (said["kind"], said["seq"], said["upto"], said["entries"]) == ("pruned", seq, seq - 1, 3)
        assert CANARY not in body
    with Ledger(tmp_path / "l.db", clock=days) as ledger, sql(tmp_path / "l.db") as select:
        found = ledger.verify(anchors=tmp_path / "anchors")
        assert (found.findings, found.after_anchor) == ([], 0)
        ((named,),) = select("SELECT hex(hash) FROM anchor_heads WHERE anchor = 2 AND seq = ?", seq)
        assert named == head


ATTACKS: dict[str, tuple[str, ...]] = {
    "the entry is gone": ("DELETE FROM entries WHERE kind = 'pruned' AND thread = 1",),
    "its head is another": (
        "UPDATE entries SET body = replace(body, '\"head\":\"', '\"head\":\"00') WHERE kind = 'pruned' AND thread = 1",
    ),
    "the thread is not marked": ("UPDATE threads SET pruned_at = NULL WHERE id = 1",),
    "a thread is marked": ("UPDATE threads SET pruned_at = 1 WHERE id = 4",),
    "the thread has a name": ("UPDATE threads SET thread_id = 'mallory' WHERE id = 1",),
    "the thread has a subject": ("UPDATE threads SET subject = 'mallory' WHERE id = 1",),
    # Hourly counts are compared from the last hour on of which something was pruned.
    "the thread ended later": (f"UPDATE threads SET last_at = {2**61} WHERE id = 1",),
    "the thread ended at no time": ("UPDATE threads SET last_at = 'x' WHERE id = 1",),
    "a count is no number": ("UPDATE rollups SET n = 'x' WHERE kind = 'items'",),
    "contents of later entries": (
        "DELETE FROM contents WHERE entry IN (SELECT id FROM entries WHERE thread = 2 AND seq = 5)",
    ),
    "an anchor knew another head": ("UPDATE anchor_heads SET hash = x'00' WHERE thread = 1 AND anchor = 1",),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_pruning_hides_no_edit(tmp_path: Path, attack: str) -> None:
    days = Days()
    with over_sixty_days(tmp_path / "l.db", days) as ledger:
        ledger.anchor()
        ledger.prune(30)
    with sql(tmp_path / "l.db") as run:
        run("PRAGMA foreign_keys = OFF")
        for statement in ATTACKS[attack]:
            run(statement)
    with Ledger(tmp_path / "l.db", clock=days) as ledger:
        assert not ledger.verify()


@pytest.mark.lengthy
def test_a_thread_that_goes_on_after_it_was_pruned_begins_anew(tmp_path: Path) -> None:
    days = Days()
    with over_sixty_days(tmp_path / "l.db", days, keep_days=30) as ledger:
        ledger.prune()
        _, app = payments(ledger, clock=days)
        app.invoke({"amount": 1}, conf("old"))
        assert ledger.flush(60)
        assert len(list(ledger.items(thread_id="old"))) == 2
        assert ledger.verify()


@pytest.mark.lengthy
def test_the_writer_prunes_once_a_day(tmp_path: Path) -> None:
    days = Days()
    over_sixty_days(tmp_path / "l.db", Days()).close()
    days.day = 60
    with Ledger(tmp_path / "l.db", clock=days, keep_days=30) as ledger:
        _, app = payments(ledger, clock=days)

        def on(day: float) -> set[str]:
            days.day = day
            for _ in range(2):  # the writer prunes after it has written
                app.invoke({"amount": 1}, conf("newest"))
                assert ledger.flush(60)
            return set(kept(ledger))

        assert on(60) == {"both", "new", "newest", "waits"}
        assert on(60.9) == {"both", "new", "newest", "waits"}
        assert on(81.5) == {"newest", "waits"}


@pytest.mark.lengthy
def test_the_writer_does_not_wait_for_a_clock_that_was_set_back(tmp_path: Path) -> None:
    days = Days()
    days.day = 10_000
    with Ledger(tmp_path / "l.db", clock=days, keep_days=30) as ledger:
        _, app = payments(ledger, clock=days)

        def on(day: float, thread: str) -> set[str]:
            days.day = day
            for _ in range(2):  # the writer prunes after it has written
                app.invoke({"amount": 1}, conf(thread))
                assert ledger.flush(60)
            return set(kept(ledger))

        assert on(10_000, "ahead") == {"ahead"}
        assert on(0, "old") == {"ahead", "old"}
        assert on(60, "new") == {"ahead", "new"}


@pytest.mark.parametrize("problem", [ZeroDivisionError, SystemExit, KeyboardInterrupt, None])
def test_a_clock_that_fails_stops_no_record(
    problem: type[BaseException] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def clock() -> Any:
        if problem is None:
            return "12:30"
        raise problem

    ledger = Ledger(tmp_path / "l.db", clock=clock, keep_days=30)
    _, app = payments(ledger)
    for _ in range(3):
        app.invoke({"amount": 1}, conf("t"))
        assert ledger.flush(60)
    assert caplog.text.count("could not be pruned") == 1
    with Ledger(tmp_path / "l.db") as again:
        assert [thread["items"] for thread in again.threads()] == [6]
    if problem is None or issubclass(problem, Exception):
        ledger.close()


@pytest.mark.lengthy
def test_postgresql_prunes_and_erases_the_same(postgres_url: str) -> None:
    days = Days()
    with over_sixty_days(postgres_url, days) as ledger:
        assert (ledger.prune(30).threads, kept(ledger)) == (1, {"both": 2, "new": 2, "waits": 1})
        assert ledger.verify().pruned == 6
        assert ledger.erase(subject="ann", reason="request 1").threads == 3
        found = ledger.verify()
        assert (found.findings, found.pruned, found.erased) == ([], 3, 11)


@pytest.mark.parametrize("days", [0, -1, "30", True])
def test_a_wrong_number_of_days_is_refused(tmp_path: Path, days: Any) -> None:
    with pytest.raises(ConfigurationError, match="keep_days: expected a number above 0"):
        Ledger(tmp_path / "l.db", keep_days=days)
    with Ledger(tmp_path / "l.db") as ledger:
        with pytest.raises(ConfigurationError, match="keep_days: expected a number above 0"):
            ledger.prune(days)
        with pytest.raises(ConfigurationError, match="this ledger keeps everything"):
            ledger.prune()


ERASE: dict[str, Callable[[Ledger, Any], Any]] = {
    "a thread": lambda ledger, saver: ledger.erase(
        thread_id=f"t-{CANARY}", reason="request 1", checkpointer=saver
    ),
    "a subject": lambda ledger, saver: ledger.erase(
        subject=f"s-{CANARY}", reason="request 1", checkpointer=saver
    ),
}


@pytest.mark.parametrize("what", ERASE)
def test_erased_contents_are_in_no_byte_of_the_file_and_in_no_checkpoint(tmp_path: Path, what: str) -> None:
    """Nodes, verdicts, scores and times stay; a second erasure changes nothing."""

    def fails(state: Any) -> Any:
        raise ValueError(f"{CANARY} in an error")

    saver = InMemorySaver()
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os, app = payments(ledger)
        graph = arbiter_os.govern(chain(Spy("check", score=0.75), fails, checkpointer=saver))
        with pytest.raises(ValueError, match=CANARY):
            graph.invoke({"amount": 1, "log": [CANARY]}, conf(f"t-{CANARY}", f"s-{CANARY}", remark=CANARY))
        app.invoke({"amount": 2}, conf("other"))
        ledger.flush(60)
        assert CANARY.encode() in bytes_of(tmp_path)

        def left() -> list[Any]:
            return [
                (
                    item.node,
                    item.status,
                    item.timestamp,
                    {k: v.score for k, v in item.evaluation_results.items()},
                )
                for item in ledger.items()
            ]

        before = left()
        erased = ERASE[what](ledger, saver)
        assert (erased.threads, erased.contents) == (1, 3)
        assert CANARY.encode() not in bytes_of(tmp_path)
        assert saver.get_tuple(conf(f"t-{CANARY}")) is None
        assert left() == before
        assert before[-1][3] == {"score": 0.75}
        assert ERASE[what](ledger, None).threads == 0
        found = ledger.verify()
        assert (found.findings, found.erased) == ([], 3)


def test_what_waits_to_be_written_cannot_come_back_after_an_erasure(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        def redact(self, value: Any, path: Any = ()) -> Any:
            hold()
            return value

    monkeypatch.setattr("arbiter.ledger._ledger.SETTLE", 0.1)
    with Ledger(tmp_path / "l.db", redactor=Slow()) as ledger:
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf("t"))
        with pytest.raises(
            LedgerError, match=r"nothing was erased: 3 events still wait .* The last error: none"
        ):
            ledger.erase(subject="ann", reason="a request")
        hold.release()
        assert ledger.flush(60)
        assert ledger.erase(subject="ann", reason="a request").thread_ids == ("t",)
        assert ledger.flush(60)
        assert [thread["thread_id"] for thread in ledger.threads()] == [None]


def test_an_erasure_names_the_copies_that_it_does_not_reach(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ArbiterOS(ledger=ledger)
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf("t"))
        ledger.flush(60)
        (tmp_path / "l.db.schema-1.bak").touch()
        with sql(tmp_path / "l.db") as run:
            run("INSERT INTO cursors VALUES ('langfuse', 99, 0, 0)")
            run("UPDATE entries SET trace = 'a', span = 'b' WHERE kind = 'item'")  # others are not sent
        checkpoints, sent, backup = ledger.erase(thread_id="t", reason="request 1").elsewhere
        assert checkpoints == "checkpoints (checkpointer=... deletes them)"
        assert sent.startswith("langfuse received 2 scores of thread ")
        assert backup.endswith("l.db.schema-1.bak is a copy from before an upgrade")


@pytest.mark.lengthy
@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("how", ["erase", "prune"])
def test_what_is_judged_after_a_removal_brings_back_neither_name_nor_text(
    tmp_path: Path, request: pytest.FixtureRequest, how: str, goes_on: bool, where: str
) -> None:
    """Another process, which does not wait for the evaluation, removes the thread. It may go on under its name."""
    may_end = threading.Event()

    def slow(history: Any) -> Any:
        if history.item.input_state["amount"] == 1:
            may_end.wait(20)
        return EvaluationResult(0.25, False, f"{CANARY} said so")

    url = tmp_path / "l.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    days = Days()
    with Ledger(url, clock=days) as ledger, Ledger(url, clock=days) as other:
        arbiter_os = ArbiterOS(ledger=ledger, clock=days)
        judge = Judge("slow", slow)
        judge.concurrency = 2
        arbiter_os.add_evaluator(judge)
        app = arbiter_os.govern(chain(Spy("a")))
        app.invoke({"amount": 1}, conf("t"))
        until(lambda: len(list(other.items())) == 1)
        days.day = 60
        if how == "erase":
            assert other.erase(thread_id="t", reason="request 1").threads == 1
        else:
            assert other.prune(keep_days=30).threads == 1
        if goes_on:
            app.invoke({"amount": 2}, conf("t"))
            until(lambda: any(thread["thread_id"] == "t" for thread in other.threads()))
        may_end.set()
        assert ledger.flush(60)
        texts = str([thread.get("thread_id") for thread in other.threads()])
        texts += "".join(str(item.to_dict()) for item in other.items(attempts=True))
        assert texts.count("'t'") == (1 if goes_on else 0)
        scored = [item for item in other.items(attempts=True) if item.evaluation_results]
        assert len(scored) == goes_on
        assert other.verify().findings == []
        if where == "sqlite":
            said = bytes_of(tmp_path).count(f"{CANARY} said so".encode())
            assert (said > 0) == goes_on


def test_an_erasure_names_the_threads_that_the_checkpointer_still_has(tmp_path: Path) -> None:
    """The others are deleted. The ledger does not know the names any more, so a second call could not name them."""

    class Locked(InMemorySaver):
        def delete_thread(self, thread_id: str) -> None:
            if thread_id == "t1":
                raise OSError("the disk is full")
            super().delete_thread(thread_id)

    saver = Locked()
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("x"), checkpointer=saver))
        for thread in ("t0", "t1", "t2"):
            app.invoke({"amount": 1}, conf(thread, "ann"))
        with pytest.raises(LedgerError, match=r"still has 't1' \(OSError: the disk is full\)\. Delete"):
            ledger.erase(subject="ann", reason="request", checkpointer=saver)
        assert set(saver.storage) == {"t1"}
        assert ledger.verify()


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"], ids=["NUL", "surrogate"])
def test_an_erasure_deletes_the_checkpoints_of_a_name_that_no_database_takes(
    tmp_path: Path, name: str
) -> None:
    """The ledger stores such a name with escapes, a checkpointer in memory as it is."""
    saver = InMemorySaver()
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("x"), checkpointer=saver))
        app.invoke({"amount": 1}, conf(name))
        assert ledger.erase(thread_id=name, reason="request", checkpointer=saver).threads == 1
        assert not list(saver.list(None))


ERASES = """
import os, signal, sqlite3, sys
from langgraph.checkpoint.sqlite import SqliteSaver
from arbiter.ledger import Ledger
class Saver(SqliteSaver):
    def delete_thread(self, thread_id):
        super().delete_thread(thread_id)
        os.kill(os.getpid(), signal.SIGKILL)
Ledger("l.db").erase(subject="ann", reason="request", checkpointer=Saver(sqlite3.connect("c.db")))
"""


@pytest.mark.lengthy
def test_an_erasure_that_was_killed_finds_the_checkpoints_of_all_threads_again(tmp_path: Path) -> None:
    """The ledger forgets the names when nothing else has them any more."""
    with SqliteSaver.from_conn_string(str(tmp_path / "c.db")) as saver:
        with Ledger(tmp_path / "l.db") as ledger:
            app = ArbiterOS(ledger=ledger).govern(chain(Spy("x"), checkpointer=saver))
            for thread in ("t0", "t1"):
                app.invoke({"amount": 1}, conf(thread, "ann"))
        killed = subprocess.run(python("-c", ERASES), cwd=tmp_path, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert list(saver.list(None))
        with Ledger(tmp_path / "l.db") as ledger:
            assert ledger.erase(subject="ann", reason="request", checkpointer=saver).threads == 2
            assert ledger.verify()
        assert not list(saver.list(None))


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
@pytest.mark.parametrize("subject", ["ann", "ben"])
def test_a_thread_that_ran_for_two_subjects_is_erased_for_each_of_them(
    tmp_path: Path, request: pytest.FixtureRequest, where: str, subject: str
) -> None:
    """Each subject finds the thread until it is erased, and then no table has the name of either."""
    url = tmp_path / "l.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    with Ledger(url) as ledger:
        _, app = payments(ledger)
        for user in ("ann", "ben", "ann", "ben"):
            app.invoke({"amount": 1}, conf("shared", f"{user}-{CANARY}"))
        app.invoke({"amount": 1}, conf("other", "eve"))
        assert ledger.flush(60)
        assert [thread["thread_id"] for thread in ledger.threads(subject=f"{subject}-{CANARY}")] == ["shared"]
        assert len(list(ledger.items(subject=f"{subject}-{CANARY}"))) == 8
        erased = ledger.erase(subject=f"{subject}-{CANARY}", reason="request 1")
        assert erased.thread_ids == ("shared",)
        for name in ("ann", "ben"):
            with pytest.warns(ArbiterWarning, match="no thread of this ledger is about the subject"):
                assert list(ledger.items(subject=f"{name}-{CANARY}")) == []
        assert ledger.verify()
        if where == "sqlite":
            assert CANARY.encode() not in bytes_of(tmp_path)


def test_a_thread_took_as_long_as_it_ran_and_its_erasure_is_no_part_of_that(tmp_path: Path) -> None:
    """An erased thread stays in its place among the others, and its erasure is kept as long as any entry."""
    days = Days()
    with Ledger(tmp_path / "l.db", clock=days) as ledger:
        _, app = payments(ledger, clock=days)
        for name in ("first", "second"):
            app.invoke({"amount": 1}, conf(name))
            days.day += 1
        assert ledger.flush(60)
        before = [(thread["first_at"], thread["last_at"]) for thread in ledger.threads()]
        days.day = 40
        ledger.erase(thread_id="first", reason="request 1")
        assert [(thread["first_at"], thread["last_at"]) for thread in ledger.threads()] == before
        assert ledger.verify().findings == []
        days.day = 60
        assert ledger.prune(30).threads == 1  # "second": the other one's erasure is 20 days old
        days.day = 80
        assert ledger.prune(30).threads == 1
        assert ledger.verify().findings == []
