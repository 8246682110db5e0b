"""A database that is locked, full, cut off or gone: runs go on, and the ledger says exactly what it lacks."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from sqlalchemy import create_engine

from arbiter import ArbiterOS, NodeEvaluator
from arbiter.ledger import Ledger, LedgerError, LedgerUnavailable, _writer
from arbiter.ledger._entries import Event
from arbiter.ledger._store import Store
from arbiter.telemetry import Delivery, ExportedScore, ScoreReceiver
from tests.ledger.ledger_support import conf, recorded, sql
from tests.processes import python
from tests.support import Spy, chain, until

HOLDER = """
import sqlite3, sys, time
holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
holder.execute("COMMIT")
"""


@pytest.mark.slow
def test_no_step_waits_while_another_process_holds_the_write_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    took: list[float] = []

    def node(state: Any) -> None:
        time.sleep(0.005)

    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(node, checkpointer=InMemorySaver()))
        app.invoke({}, conf("t"))
        holding = python("-c", HOLDER, str(tmp_path / "l.db"), "8")
        with subprocess.Popen(holding, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            while holder.poll() is None:
                begun = time.monotonic()
                app.invoke({}, conf("t"))
                took.append(time.monotonic() - begun)
        assert ledger.health().queued > 0
        assert ledger.flush(30)
        assert max(took) < 2  # the lock was held for eight seconds
        assert sum(1 for _ in ledger.items(thread_id="t")) == len(took) + 1
        assert ledger.verify().not_recorded == 0
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 1


FULL = """
import json, logging, resource, sys
from langgraph.checkpoint.memory import InMemorySaver
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from tests.support import Spy, chain
warnings = []
class Kept(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())
logging.getLogger("arbiter").addHandler(Kept(logging.WARNING))
ledger = Ledger(sys.argv[1], queue=25, flush_every=0.02)
app = ArbiterOS(ledger=ledger).govern(chain(Spy("a", log=["x" * 2000]), checkpointer=InMemorySaver()))
def runs(number, thread):
    for _ in range(number):
        app.invoke({}, {"configurable": {"thread_id": thread}})
runs(20, "before")
assert ledger.flush(20)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))  # no file of this process can grow any more
runs(90, "one")
runs(60, "two")
full = not ledger.flush(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
assert ledger.flush(30)
runs(5, "one")
assert ledger.flush(20)
found = ledger.verify()
print(json.dumps({
    "full": full, "warnings": warnings, "intact": bool(found), "not_recorded": found.not_recorded,
    "kept": {t["thread_id"]: t["items"] for t in ledger.threads()}, "error": ledger.health().last_error,
}))
"""


@pytest.mark.lengthy
@pytest.mark.slow
def test_a_full_disk_leaves_gaps_that_add_up_and_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    ended = subprocess.run(python("-c", FULL, str(path)), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["full"]
    assert said["intact"]
    assert len(said["warnings"]) == 1
    assert "could not be written" in said["warnings"][0]
    run = {"before": 20, "one": 95, "two": 60}
    with sql(path) as query:
        rows = query(
            "SELECT t.thread_id, e.body, c.body FROM entries e JOIN threads t ON t.id = e.thread "
            "JOIN contents c ON c.entry = e.id WHERE e.kind = 'gap'"
        )
    lost = dict.fromkeys(run, 0)
    for name, body, contents in rows:
        lost[name] += json.loads(body)["n"]
        assert json.loads(contents)["reason"] == said["error"]
    assert {name: said["kept"][name] + lost[name] for name in run} == run
    assert lost["one"] + lost["two"] == said["not_recorded"] > 50


@pytest.mark.lengthy
def test_an_evaluation_of_a_node_run_that_was_dropped_is_dropped_too(tmp_path: Path) -> None:
    may_end = threading.Event()

    class Slow(NodeEvaluator):
        def evaluate(self, history: Any) -> Any:
            may_end.wait(20)
            return 0.25

    with Ledger(tmp_path / "l.db", queue=3) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Slow("slow"))
        app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        holder = sqlite3.connect(tmp_path / "l.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        for _ in range(150):
            app.invoke({}, conf("t"))
        holder.execute("COMMIT")
        holder.close()
        may_end.set()
        arbiter_os.drain(20)
        assert ledger.flush(20)
        found = ledger.verify()
        assert found, found.findings
        assert found.not_recorded == 150 - sum(1 for _ in ledger.items()) > 0


@pytest.mark.lengthy
def test_postgresql_that_ends_all_connections_loses_and_doubles_nothing(postgres_url: str) -> None:
    admin = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with Ledger(postgres_url, flush_every=0.01) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()))
        for cut in range(5):
            for number in range(15):
                app.invoke({}, conf(f"t{number}"))
                if number == 3 + cut:
                    with admin.connect() as connection:
                        connection.exec_driver_sql(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                        )
        assert ledger.flush(30)
        items = [(item.id, item.attempt) for item in ledger.items(attempts=True)]
        assert len(items) == len(set(items)) == 5 * 15 * 2
        assert ledger.verify()
    admin.dispose()


class Taking(ScoreReceiver):
    name = "taking"

    def send(self, batch: Sequence[ExportedScore]) -> Delivery:
        return Delivery(accepted=len(batch))


@pytest.mark.lengthy
def test_a_server_that_is_away_is_a_sentence_and_ends_no_export(postgres_url: str) -> None:
    """The error of the driver had the statement and its values."""
    server = psycopg.connect(re.sub("arbiter_test_[0-9a-f]+", "postgres", postgres_url), autocommit=True)
    name = re.findall("arbiter_test_[0-9a-f]+", postgres_url)[0]

    def open_for_others(is_open: bool) -> None:
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {is_open}".encode())
        if not is_open:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )

    with server, recorded(postgres_url, 1) as ledger:
        export = ledger.export_to(Taking(), every=0.05)
        open_for_others(False)
        try:
            asked: list[Callable[[], object]] = [
                lambda: [*ledger.items()],
                lambda: [*ledger.threads()],
                lambda: ledger.history("t0"),
                ledger.verify,
                ledger.anchor,
                lambda: ledger.counts("node"),
            ]
            for ask in asked:
                with pytest.raises(LedgerError, match=r"^cannot open 'postgresql:.*accepting connections\.$"):
                    ask()
            until(lambda: export.last_error)
        finally:
            open_for_others(True)
        until(lambda: export.last_error is None)
        assert export.is_running
        assert [item.thread_id for item in ledger.items()]


def test_a_batch_that_is_sent_again_is_written_once(tmp_path: Path) -> None:
    """Its answer was lost: the writer sends it again, and another process may send it too."""
    with Ledger(tmp_path / "l.db") as ledger, Ledger(tmp_path / "l.db") as other:
        arbiter_os = ArbiterOS(ledger=ledger)
        batches: list[Any] = []
        ledger._writer.on_commit.append(lambda store, events: batches.append([*events]))  # pyright: ignore[reportPrivateUsage]
        app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        for _ in range(5):
            app.invoke({}, conf("t"))
        assert ledger.flush(60)
        for again in (ledger, other):
            for batch in batches:
                assert again._store.write(batch) == 0  # pyright: ignore[reportPrivateUsage]
        assert sum(1 for _ in ledger.items()) == 5
        assert ledger.verify()


GONE = """
import os, sqlite3, sys
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from tests.support import Spy, chain
def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
ledger = Ledger(sys.argv[1])
arbiter_os = ArbiterOS(ledger=ledger)
nodes = [Spy(f"n{number}") for number in range(100)]
app = arbiter_os.govern(chain(*nodes, state=dict))
def run(thread):
    app.invoke({"text": thread + "x" * 2000}, {"recursion_limit": 200, "configurable": {"thread_id": thread}})
run("warm")
ledger.flush(30)
before = memory()
holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("BEGIN IMMEDIATE")
for number in range(500):
    run(f"t{number}")
grown = memory() - before
holder.execute("COMMIT")
assert ledger.flush(120)
found = ledger.verify()
print(grown, sum(t["items"] for t in ledger.threads()), found.not_recorded, bool(found))
ledger.close()
"""


@pytest.mark.slow
def test_a_database_that_is_gone_for_long_costs_little_memory_and_the_gap_is_exact(tmp_path: Path) -> None:
    ended = subprocess.run(
        python("-c", GONE, str(tmp_path / "l.db")), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    grown, kept, lost, intact = ended.stdout.split()
    assert int(grown) < 150e6
    assert intact == "True"
    assert int(lost) > 30_000
    assert int(kept) + int(lost) == 100 * 501


def test_contents_that_do_not_fit_the_queue_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Contents are dropped before node runs are: their entries stay whole otherwise."""
    monkeypatch.setattr(_writer, "MOST_BYTES", 10_000)
    ledger = Ledger(tmp_path / "l.db", flush_every=60)
    app = ArbiterOS(ledger=ledger).govern(chain(Spy("a", text="x" * 3_000), checkpointer=InMemorySaver()))
    for _ in range(9):
        app.invoke({}, conf("t"))
    assert ledger.flush(20)
    with sql(tmp_path / "l.db") as run:
        (whole,) = run(
            "SELECT COUNT(*) FROM entries e JOIN contents c ON c.entry = e.id WHERE e.kind = 'item'"
        )[0]
        (items,) = run("SELECT COUNT(*) FROM entries WHERE kind = 'item'")[0]
        (gap,) = run("SELECT body FROM entries WHERE kind = 'gap'")[0]
    assert items == 9
    assert 0 < whole < 9
    assert json.loads(gap)["n"] == 0
    assert json.loads(gap)["without_contents"] >= 9 - whole
    assert "keep less of large states (states=)" in caplog.text
    ledger.close()


def test_a_gap_names_the_reason_why_its_own_events_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage that is over is not the reason why a queue is full later."""
    write, outage = Store.write, iter([OSError("no disk")])

    def failing_once(store: Store, events: Sequence[Event]) -> int:
        for error in outage:
            raise error
        return write(store, events)

    monkeypatch.setattr(Store, "write", failing_once)
    with Ledger(tmp_path / "l.db", flush_every=60, queue=4) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        app.invoke({}, conf("t"))
        assert ledger.flush(20)
        assert ledger.health().last_error == "no disk"
        for _ in range(4):
            app.invoke({}, conf("t"))
        assert ledger.flush(20)
        assert [missed.reason for missed in ledger.verify().missed] == ["the queue was full"]
    assert "give it a longer one (queue=)" in caplog.text


@pytest.mark.parametrize("kind", [OSError, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_anchors_that_cannot_be_kept_elsewhere_stop_no_record(
    kind: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def sink(anchor: Any) -> None:
        raise kind("away")

    monkeypatch.setattr("arbiter.ledger._ledger.ANCHOR_EVERY", 3)
    ledger = recorded(tmp_path / "l.db", anchors=sink)
    assert ledger.flush(60)
    assert ledger.verify().anchored > 0
    assert ledger.health().queued == 0
    ledger.close()
    assert "anchor 1 could not be kept elsewhere: away" in caplog.text
    assert "Traceback" not in caplog.text
    with Ledger(tmp_path / "l.db") as again:
        assert [thread["items"] for thread in again.threads()] == [2, 2, 2]


@dataclass
class Elsewhere:
    """Takes anchors, each of them once."""

    is_away: bool = False
    kept: list[int] = field(default_factory=list[int])

    def __call__(self, anchor: Mapping[str, Any]) -> None:
        if self.is_away:
            raise OSError("away")
        if anchor["n"] in self.kept:
            raise ValueError("it is there already")
        self.kept.append(anchor["n"])


def test_an_anchor_that_a_callable_failed_to_take_is_given_to_it_again(tmp_path: Path) -> None:
    sink = Elsewhere(is_away=True)
    with recorded(tmp_path / "l.db", anchors=sink) as ledger:
        assert ledger.flush(60)
        with pytest.raises(LedgerError, match="anchor 1 could not be kept elsewhere: away"):
            ledger.anchor()
        sink.is_away = False
        assert (ledger.anchor() or {})["n"] == 1  # nothing has grown since
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({}, conf("t"))
        assert ledger.flush(60)
        ledger.anchor()
        assert ledger.anchor() is None
    assert sink.kept == [1, 2]


def test_a_callable_gets_no_anchors_that_another_process_has_given_to_its_own(tmp_path: Path) -> None:
    """Where both keep them, an anchor that is there already may be refused: no later one would be kept."""
    sink, path = Elsewhere(), tmp_path / "l.db"
    with recorded(path, 1, anchors=sink) as ledger, Ledger(path, anchors=sink) as other:

        def anchored(by: Ledger) -> None:
            ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({}, conf("t"))
            assert ledger.flush(60)
            by.anchor()

        anchored(ledger)
        sink.is_away = True
        with pytest.raises(LedgerError, match="anchor 2 could not be kept elsewhere: away"):
            anchored(ledger)
        sink.is_away = False
        anchored(other)
        anchored(ledger)
        anchored(other)
        anchored(ledger)
    assert sink.kept == [1, 3, 2, 4, 5, 6]


def test_close_gives_an_anchor_that_was_not_taken_to_the_callable_again(tmp_path: Path) -> None:
    sink = Elsewhere(is_away=True)
    with recorded(tmp_path / "l.db", 1, anchors=sink) as ledger:
        with pytest.raises(LedgerError, match="away"):
            ledger.anchor()
        sink.is_away = False
    assert sink.kept == [1]


@pytest.mark.parametrize("name", ["l.db", "günlük.db"])
def test_a_ledger_stays_where_it_is_when_the_program_changes_its_folder(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(Path(name)).close()
    (tmp_path / "sub").mkdir()
    with Ledger(name) as ledger:
        monkeypatch.chdir("sub")
        assert ledger.verify()
        (tmp_path / name).rename(tmp_path / "elsewhere.db")
        with pytest.raises(LedgerError, match="was removed"):
            ledger.verify()


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_proofs_and_removals_refuse_a_file_that_is_no_longer_the_ledgers(
    tmp_path: Path, is_replaced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that is open still reads the old file, which has no name any more."""
    path = tmp_path / "here" / "l.db"
    path.parent.mkdir()
    ledger = recorded(path, keep_days=90)
    path.parent.rename(tmp_path / "elsewhere")
    path.parent.mkdir()
    if is_replaced:
        Ledger(path).close()
    for act in (ledger.verify, ledger.anchor, ledger.prune):
        with pytest.raises(LedgerError, match="another file now" if is_replaced else "was removed"):
            act()
    ledger.close()
    assert "without its last anchor" in caplog.text
    assert path.exists() == is_replaced
    with Ledger(tmp_path / "elsewhere" / "l.db") as moved:
        assert moved.verify()


def test_a_ledger_that_cannot_be_written_names_the_reason_as_part_of_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is in a warning, in denials and in `gap` entries: it was a sentence with the path, and two dots."""
    monkeypatch.setattr(_writer, "WARN_AFTER", 0.0)
    path = tmp_path / "l.db"
    with recorded(path, 1) as ledger:
        with sql(path) as execute:
            execute("ALTER TABLE entries RENAME TO moved")
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({}, conf("t"))
        until(lambda: "could not be written" in caplog.text)
        with sql(path) as execute:
            execute("ALTER TABLE moved RENAME TO entries")
        assert ledger.flush(60)
        assert ledger.health().last_error == "no such table: entries"
    assert "could not be written for 1 s: no such table: entries. Runs go on" in caplog.text


def test_a_ledger_whose_database_is_gone_is_closed_with_its_exports(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "l.db"
    with recorded(path, 1) as ledger:
        export = ledger.export_to(Taking(), every=0.05)
        assert export.wait(60)
        with sql(path) as execute:
            execute("DROP TABLE ledgers")
    assert not export.is_running
    assert "closed without its last anchor" in caplog.text


def overwrite(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def drop_a_table(path: Path) -> None:
    with sql(path) as execute:
        execute("DROP TABLE entries")


CALLS: list[Callable[[Ledger], Any]] = [
    lambda ledger: [*ledger.items()],
    lambda ledger: [*ledger.threads()],
    lambda ledger: ledger.history("t0"),
    lambda ledger: ledger.verify(),
    lambda ledger: ledger.anchor(),
    lambda ledger: ledger.erase(thread_id="t0", reason="none"),
]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (overwrite, "database disk image is malformed|file is not a database"),
        (drop_a_table, "no such table: entries"),
    ],
)
@pytest.mark.parametrize("call", CALLS)
def test_a_ledger_file_that_was_harmed_is_a_sentence_without_its_statement(
    call: Callable[[Ledger], Any], harm: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "l.db"
    recorded(path, 1).close()
    with Ledger(path) as ledger:
        harm(path)
        with pytest.raises(LedgerUnavailable, match=rf"^cannot open '.*l\.db': ({said})\.$"):
            call(ledger)


WAITS = """
import sys
import time
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from arbiter.ledger import _writer
from arbiter.ledger._store import Store
from tests.ledger.ledger_support import conf
from tests.support import Spy, chain

ledger = Ledger(sys.argv[1])
ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({}, conf("t"))

def gone(*_):
    raise OSError("the disk is gone")

waits, clock = [], time.monotonic

def waited(writer, timeout=None):
    waits.append(timeout)
    print(timeout)
    return False

time.monotonic = lambda: clock() + sum(waits)
Store.write = gone
_writer.Writer.flush = waited
if sys.argv[2] == "close":
    ledger.close()
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("closes", ["close", "exit"])
def test_close_and_exit_wait_for_a_database_that_is_gone_once(tmp_path: Path, closes: str) -> None:
    done = subprocess.run(
        python("-c", WAITS, str(tmp_path / "l.db"), closes), capture_output=True, text=True, check=True
    )
    waits = [float(line) for line in done.stdout.split()]
    assert 29 < waits[0] <= sum(waits) <= 31
    assert done.stderr.count("the ledger was closed with") == 1
