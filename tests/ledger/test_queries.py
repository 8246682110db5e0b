"""Questions: filters alone and together, pages by cursor, counts from rollups, and clear errors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from sqlalchemy import create_engine

from arbiter import ArbiterOS, ConfigurationError, PolicyViolationError, Verdict
from arbiter.ledger import Ledger
from arbiter.ledger._database import DatabaseFile
from arbiter.ledger._entries import Event, origin_of
from arbiter.ledger._queries import Filter, Queries
from arbiter.routers import EscalationRouter
from benchmarks.ledger_pages import analyze, fill
from tests.ledger.ledger_support import conf, payments, recorded
from tests.support import Check, Spy, State, chain


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Forty runs of four users; every tenth is denied."""
    with Ledger(tmp_path_factory.mktemp("ledger") / "l.db") as ledger:
        arbiter_os, app = payments(ledger)
        for number in range(40):
            amount = 500 if number % 10 == 9 else number
            try:
                app.invoke({"amount": amount}, conf(f"t{number}", f"user-{number % 4}"))
            except PolicyViolationError:
                pass
        arbiter_os.drain(60)
        assert ledger.flush(20)
        yield ledger


WANTED: dict[str, Any] = {
    "thread_id": "t3",
    "node": "check",
    "instruction": "ExecutionCore.TOOL_CALL",
    "status": "denied",
    "verdict": "deny",
    "policy": "limit",
    "evaluator": "score",
    "subject": "user-1",
    "since": "1h",
}


def fits(item: Any, name: str, value: Any, ledger: Ledger) -> bool:
    if name == "instruction":
        return item.instruction is not None and item.instruction.qualified == value
    if name in ("node", "status"):
        return bool(getattr(item, name) == value)
    if name in ("verdict", "policy"):
        return bool(item.status == "denied")
    if name == "evaluator":
        return value in item.evaluation_results
    return True


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "names", [c for n in (1, 2, 3) for c in itertools.combinations(WANTED, n)], ids=",".join
)
@pytest.mark.parametrize("few", [0, 5_000], ids=["walked", "sorted"])
def test_filters_alone_and_together_find_what_a_scan_finds(
    ledger: Ledger, names: tuple[str, ...], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {name: WANTED[name] for name in names}
    monkeypatch.setattr("arbiter.ledger._queries._FEW", few)
    found = [item.id for item in ledger.items(**wanted)]
    page = ledger.items(**wanted).page(limit=3)
    assert [item.id for item in page] == found[:3]
    if page.next is not None:
        assert [item.id for item in ledger.items(**wanted).page(after=page.next)] == found[3:53]
    everything = ledger.items(thread_id=wanted.get("thread_id"), subject=wanted.get("subject"))
    expected = [
        item.id
        for item in everything
        if all(fits(item, name, value, ledger) for name, value in wanted.items())
    ]
    assert found == expected


@pytest.mark.lengthy
@pytest.mark.slow
def test_pages_by_cursor_show_each_item_once_while_others_write_and_erase(tmp_path: Path) -> None:
    with recorded(tmp_path / "l.db", 10) as ledger:
        there = {item.id for item in ledger.items()}
        seen: list[str] = []
        after = None
        _, app = payments(ledger)
        for number in itertools.count():
            page = ledger.items().page(limit=3, after=after)
            seen += [item.id for item in page]
            app.invoke({}, conf("new"))
            ledger.flush(60)
            if number < 10:
                ledger.erase(thread_id=f"t{number}", reason="asked for")
            if (after := page.next) is None:
                break
        assert sorted(seen) == sorted(there)


@pytest.mark.lengthy
def test_a_walk_ends_although_a_writer_outruns_it(tmp_path: Path) -> None:
    """New items come after each page of the oldest ones: the walk shows those that were there at its start."""
    with recorded(tmp_path / "l.db", 3) as ledger:
        _, app = payments(ledger)
        page = ledger.items(order="oldest").page(limit=1)
        shown = [*page]
        while page.next is not None:
            app.invoke({}, conf("new"))
            ledger.flush(60)
            page = ledger.items(order="oldest").page(limit=1, after=page.next)
            shown += page
            assert len(shown) <= 6
        assert [item.thread_id for item in shown] == ["t0", "t0", "t1", "t1", "t2", "t2"]


def test_a_new_attempt_hides_no_node_run_that_a_walk_has_not_come_to(tmp_path: Path) -> None:
    def ask(_: State) -> None:
        interrupt("go on?")

    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), ask, checkpointer=InMemorySaver()))
        for name in ("t", "u"):
            app.invoke({}, conf(name))
        ledger.flush(60)
        page = ledger.items().page(limit=1)
        app.invoke(Command(resume=True), conf("t"))
        ledger.flush(60)
        rest = ledger.items().page(after=page.next)
        nodes = [(item.thread_id, item.node, item.status) for item in (*page, *rest)]
        assert nodes == [
            ("u", "ask", "interrupted"), ("u", "a", "completed"),
            ("t", "ask", "interrupted"), ("t", "a", "completed"),
        ]  # fmt: skip


def test_items_come_newest_first_and_oldest_first_on_request(ledger: Ledger) -> None:
    newest = [item.id for item in ledger.items()]
    assert newest == [item.id for item in ledger.items(order="oldest")][::-1]


def test_scores_below_and_above_are_found(ledger: Ledger) -> None:
    assert {item.node for item in ledger.items(evaluator="score", above=0.7)} == {"check"}
    assert {item.node for item in ledger.items(evaluator="score", below=0.7)} == {"pay"}


def test_counts_and_curves_come_from_rollups(ledger: Ledger) -> None:
    counts = {count["name"]: count["count"] for count in ledger.counts("verdict")}
    assert counts == {"allow": 72, "deny": 4}
    (curve,) = ledger.scores("score", every="day")
    assert (curve["count"], curve["mean"], curve["passed"]) == (72, 0.375, 0.5)
    assert {count["name"]: count["count"] for count in ledger.counts("outcome")} == {
        "completed": 36,
        "denied": 4,
    }


def test_executions_come_newest_first_with_their_outcome(ledger: Ledger) -> None:
    """Page after page: those of all threads, of one, and of a time."""
    everything: list[Any] = []
    after = None
    while True:
        page = ledger.executions().page(limit=7, after=after)
        everything += page.rows
        if (after := page.next) is None:
            break
    assert [each["thread_id"] for each in everything] == [f"t{number}" for number in range(40)][::-1]
    assert [each["outcome"] for each in everything] == [*["denied", *["completed"] * 9] * 4]
    assert all(each["began"] <= each["ended"] and each["graph"] == "LangGraph" for each in everything)
    (one,) = ledger.executions(thread_id="t3", since="1h")
    assert one == everything[-4]
    assert {item.run for item in ledger.items(thread_id="t3")} == {one["run"]}
    assert not [*ledger.executions(until="1h")]
    with pytest.raises(ConfigurationError, match=r"no thread 'T3'. Did you mean 't3'\?"):
        ledger.executions(thread_id="T3").page()


def test_threads_come_with_their_totals(ledger: Ledger) -> None:
    threads = {thread["thread_id"]: thread for thread in ledger.threads(subject="user-1")}
    assert len(threads) == 10
    assert (threads["t9"]["denied"], threads["t9"]["outcome"]) == (1, "denied")


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"since": "yesterday"}, r"since: expected an aware datetime, an ISO text or a time ago"),
        ({"below": 0.5}, "name the evaluator as well"),
        ({"order": "random"}, "order is 'random'"),
        ({"since": 5}, "since: expected an aware datetime, an ISO text or a time ago"),
        ({"evaluator": "score", "below": "x"}, "below: expected a number, got 'x'"),
        ({"since": "1h", "until": "2h"}, "since is '1h', which is after until, '2h'. Swap them."),
        ({"limit": "5"}, "limit: expected 1 to 1000, got '5'"),
        ({"after": 5}, "after: expected a cursor like"),
    ],
    ids=str,
)
def test_a_question_that_cannot_be_meant_is_refused(ledger: Ledger, question: Any, problem: str) -> None:
    page = {name: question.pop(name) for name in ("limit", "after") if name in question}
    with pytest.raises(ConfigurationError, match=problem):
        ledger.items(**question).page(**page)


def test_a_cursor_whose_entry_was_pruned_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        _, app = payments(ledger, clock=lambda: time.time() - 100 * 86400)
        app.invoke({}, conf("old"))
        ledger.flush(60)
        after = ledger.items().page(limit=1).next
        ledger.prune(90)
        with pytest.raises(ConfigurationError, match=r"the entry of the cursor '.*' was pruned; begin anew"):
            ledger.items().page(after=after)


def test_pages_of_threads_show_each_once_and_say_what_was_not_searched(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [thread["thread_id"] for thread in ledger.threads()]
    assert sorted(everything) == sorted(f"t{number}" for number in range(40))
    seen: list[str] = []
    after = None
    while True:
        page = ledger.threads().page(limit=7, after=after)
        seen += [thread["thread_id"] for thread in page]
        if (after := page.next) is None:
            break
    assert seen == everything
    denied = next(thread for thread in ledger.threads() if thread["thread_id"] == "t9")
    assert (denied["policy"], denied["lowest"], denied["is_searched"]) == ("limit", None, True)
    monkeypatch.setattr("arbiter.ledger._queries._SCORES", 5)
    assert sum(thread["is_searched"] for thread in ledger.threads().page(limit=7)) == 3


def test_a_cursor_of_another_ledger_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="of another ledger"):
        ledger.items().page(after="zzzz.5")
    with pytest.raises(ConfigurationError, match="expected a cursor like"):
        ledger.items().page(after="nonsense")


def test_an_unknown_thread_is_refused_with_the_nearest_name(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match=r"no thread 'T3'. Did you mean 't3'\?"):
        ledger.history("T3")
    with pytest.raises(ConfigurationError, match="by: expected one of"):
        ledger.counts("colour")


def test_times_are_datetimes_texts_or_spans(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    everything = len([*ledger.items()])
    for since in (now - timedelta(hours=1), (now - timedelta(hours=1)).isoformat(), "60m", "2h", "1d", "1w"):
        assert len([*ledger.items(since=since)]) == everything
    assert not [*ledger.items(until="1h")]


OF_THREAD = "sqlite_autoindex_entries_2"
"""The index of the numbers of a thread's entries."""
FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "entries_at"), ({"node": "pay"}, "entries_node"), ({"instruction": "x"}, "entries_instruction"),
    ({"policy": "limit"}, "entries_policy"), ({"verdict": "deny"}, "entries_verdict"),
    ({"status": "failed"}, "entries_status"), ({"thread_id": "t1"}, OF_THREAD),
    ({"node": "pay", "since": 5}, "entries_node"), ({"policy": "limit", "until": 5}, "entries_policy"),
    ({"verdict": "deny", "node": "pay"}, "entries_verdict"), ({"evaluator": "score"}, "entries_at"),
    ({"evaluator": "score", "below": 0.1, "since": 5}, "entries_at"), ({"subject": "user-1"}, "entries_at"),
    ({"run": "x", "until": 5}, "entries_at"), ({"attempts": True, "order": "oldest"}, "entries_at"),
    ({"thread_id": "t1", "node": "pay", "verdict": "deny"}, OF_THREAD),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "index"), FILTERS, ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["first page", "later page"])
def test_no_page_scans_the_whole_or_sorts_it(
    tmp_path: Path, wanted: Any, index: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each walks the index of the rarest thing that it is asked for."""
    monkeypatch.setattr("arbiter.ledger._queries._FEW", 0)
    with recorded(tmp_path / "l.db", 3) as ledger:
        cursor, upto = (5, 6) if after else (None, 9)
        engine = create_engine(f"sqlite:///{tmp_path / 'l.db'}")
        queries = Queries(engine, ledger.uuid, DatabaseFile.of(engine))
        statement, values = queries.statement(Filter(**wanted), cursor, upto)
        with engine.connect() as connection:
            plan = [
                row[3] for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, tuple(values))
            ]
            if set(wanted) <= {"thread_id", "since", "until"}:
                statement, values = queries.statement_of_executions(Filter(**wanted), cursor, upto)
                rows = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, tuple(values))
                assert index in next(row[3] for row in rows)
        engine.dispose()
    assert [step.split()[4] for step in plan if step.split()[1:4] == ["e", "USING", "INDEX"]] == [index]
    assert not [step for step in plan if "TEMP B-TREE" in step]
    assert not [step for step in plan if step.startswith("SCAN") and "INDEX" not in step]
    if (
        "attempts" not in wanted
    ):  # newer attempts are looked up by task and id: not among all later entries of the thread, nor all attempts
        assert [step for step in plan if "entries_task (thread=? AND task=? AND rowid>? AND rowid<?)" in step]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"subject": "user-1"}, "(thread=?)"),
        ({"subject": "user-1", "node": "pay", "since": 5}, "(thread=?)"),
        ({"evaluator": "score", "until": 5}, "INTEGER PRIMARY KEY (rowid=?)"),
        ({"evaluator": "score", "below": 0.5, "verdict": "deny"}, "INTEGER PRIMARY KEY (rowid=?)"),
    ],
)
@pytest.mark.parametrize("after", [None, 5], ids=["first page", "later page"])
def test_a_subject_or_an_evaluator_with_few_items_is_not_looked_for_among_all(
    tmp_path: Path, wanted: Any, found: str, after: int | None
) -> None:
    with recorded(tmp_path / "l.db", 3) as ledger:
        queries = ledger._queries  # pyright: ignore[reportPrivateUsage]
        statement, values = queries.statement(Filter(**wanted), after, 9)
        plan = [row[3] for row in queries.rows("EXPLAIN QUERY PLAN " + statement, values)]
    (entries,) = [step for step in plan if step.split()[1] == "e"]
    assert entries.endswith(found)


@pytest.mark.parametrize(
    "question",
    [{"verdict": "ask"}, {"thread_id": "t9", "since": "0s"}, {"thread_id": "t9", "until": "1d"}],
    ids=str,
)
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_page_without_a_match_ends_after_a_bounded_number_of_entries(
    ledger: Ledger, question: Any, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all that is denied, or a whole thread, is of another kind or time."""
    monkeypatch.setattr("arbiter.ledger._queries.READ", 1)
    page = ledger.items(**question, order=order).page()
    assert (len(page), page.next is None) == (0, False)
    assert list(ledger.items(**question, order=order)) == []


def test_the_page_of_a_node_run_does_not_walk_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do the scores of a node walk all of their evaluator's."""
    asked: list[tuple[Queries, str, Sequence[Any]]] = []
    rows = Queries.rows

    def noted(queries: Queries, statement: str, values: Sequence[Any]) -> Iterator[Any]:
        asked.append((queries, statement, values))
        return rows(queries, statement, values)

    with recorded(tmp_path / "l.db", 3) as ledger:
        reader = ledger.reader
        monkeypatch.setattr(Queries, "rows", noted)
        thread = reader.thread("t0")
        (entry, *_), _ = reader.entries(thread["id"])
        found = reader.whole(thread, entry.seq)
        assert reader.find_task(thread["id"], found.body["task"]) == entry.seq
        assert len(reader.newest_scores("score", node="check")) == 3
        plans = [
            (statement, step[3])
            for queries, statement, values in list(asked)
            if "e.kind NOT IN" not in statement  # a page of entries goes along the thread
            for step in rows(queries, f"EXPLAIN QUERY PLAN {statement}", values)
        ]
    assert not [
        plan for plan in plans if plan[1].endswith("(thread=?)") or plan[1].startswith("SCAN entries")
    ]
    assert not [plan for plan in plans if plan[1].endswith("(evaluator=?)")]


@pytest.mark.lengthy
def test_in_postgresql_the_scores_of_a_node_are_looked_up_one_by_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Sequence[Any]]] = []
    rows = Queries.rows

    def noted(queries: Queries, statement: str, values: Sequence[Any]) -> Iterator[Any]:
        asked.append((statement, values))
        return rows(queries, statement, values)

    with Ledger(postgres_url) as ledger:
        fill(ledger, 2_000)
        analyze(ledger)
        monkeypatch.setattr(Queries, "rows", noted)
        found = ledger.reader.newest_scores("quality", node="n3", since=0)
        assert len(found) == len(set(found)) == 200
        ((statement, values),) = asked
        with ledger._queries.engine.connect() as connection:  # pyright: ignore[reportPrivateUsage]
            steps = connection.exec_driver_sql(f"EXPLAIN {statement}", tuple(values))
            plan = "\n".join(row[0] for row in steps)
    assert "Nested Loop" in plan
    assert "Hash Join" not in plan


@pytest.mark.lengthy
def test_the_answers_of_an_item_stay_in_their_order(postgres_url: str) -> None:
    """PostgreSQL returns rows in any order, such as that of the last updates."""
    with Ledger(postgres_url) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(Check("check", lambda _: Verdict.ask("sure?")))
        arbiter_os.add_policy_router(EscalationRouter("editor"))
        app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        app.invoke({}, conf("t"))
        for _ in range(2):
            app.invoke(Command(resume={"type": "approve"}), conf("t"))
        assert ledger.flush(60)
        with ledger._queries.engine.begin() as connection:  # pyright: ignore[reportPrivateUsage]
            first = "SELECT MIN(id) FROM entries WHERE kind = 'answer' AND attempt = 3"
            connection.exec_driver_sql(f"UPDATE entries SET took = took WHERE id = ({first})")
        (item,) = ledger.items()
        assert [answer.question.subject for answer in item.answers] == ["input", "output"]


def _item(number: int, at: int) -> Event:
    run = f"00000000-0000-4000-8000-{number:012x}"
    fields = {"node": f"n{number}", "step": 1, "status": "completed", "took": 1}
    return Event(
        kind="item", at=at, origin=origin_of("t", run, run), task=f"task {number}", attempt=1, fields=fields
    )


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_items_of_one_moment_are_each_on_one_page(tmp_path: Path, order: Any) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ledger._store.write([_item(number, 1_000_000) for number in range(7)])  # pyright: ignore[reportPrivateUsage]
        pages, after = list[str](), None
        while True:
            page = ledger.items(order=order).page(limit=2, after=after)
            pages += [item.node for item in page]
            if (after := page.next) is None:
                break
    assert sorted(pages) == [f"n{number}" for number in range(7)]


def test_a_thread_ran_last_when_its_latest_item_ended_whatever_was_written_last(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        for number, at in enumerate((3_000_000, 2_000_000)):
            ledger._store.write([_item(number, at)])  # pyright: ignore[reportPrivateUsage]
        assert ledger.verify()
        (thread,) = ledger.threads()
    assert thread["last_at"].timestamp() == 3
