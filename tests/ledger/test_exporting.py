"""Exports: JSON lines that can take the place of a ledger, and tables that spreadsheets can open."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from arbiter import ArbiterOS, ConfigurationError, EvaluationResult, PolicyViolationError, Verdict
from arbiter.ledger import Ledger, LedgerError
from arbiter.ledger._exporting import FileRecords, JsonLines, csv_lines, followed, read_records, write_whole
from arbiter.ledger._queries import Queries
from arbiter.ledger._stored import history_of
from tests.cli.cli_support import refused, typed
from tests.ledger.ledger_support import conf, payments, recorded, sql
from tests.support import Check, Judge, Spy, chain


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three threads, the last denied and the first erased; rules and graph have their texts."""
    with Ledger(tmp_path_factory.mktemp("ledger") / "l.db") as ledger:
        _, app = payments(ledger)
        app.invoke({"log": ["canary"]}, conf("gone"))
        app.invoke({"amount": 5, "log": ["=1+1"]}, conf("=HYPERLINK(1)"))
        try:
            app.invoke({"amount": 500}, conf("t2", "=ann"))
        except PolicyViolationError:
            pass
        assert ledger.flush(20)
        ledger.erase(thread_id="gone", reason="request 4711")
        yield ledger


def test_json_lines_read_back_are_the_records_of_the_ledger(ledger: Ledger, tmp_path: Path) -> None:
    assert write_whole(tmp_path / "l.jsonl", JsonLines(ledger.records()).all()) > 8
    records = read_records(tmp_path / "l.jsonl")
    assert records.uuid == ledger.uuid
    assert list(records.threads()) == list(ledger.records().threads())
    assert "".join(JsonLines(records).all()) == (tmp_path / "l.jsonl").read_text()
    threads = {thread.thread_id: thread for thread in records.threads()}
    assert history_of(threads["t2"].rows).to_dicts() == ledger.history("t2").to_dicts()


def test_an_export_has_each_text_that_its_entries_name_once(ledger: Ledger) -> None:
    lines = [json.loads(line) for line in JsonLines(ledger.records()).all()]
    texts = [line["digest"] for line in lines if line["row"] in ("graph", "constitution")]
    named = {line["body"].get("graph") for line in lines if line["row"] == "entry" and "node" in line["body"]}
    assert named - {None} <= set(texts)
    assert len(texts) == len(set(texts)) > 0


def test_an_erased_thread_is_exported_without_name_and_contents(ledger: Ledger) -> None:
    text = "".join(JsonLines(ledger.records()).all()) + "".join(csv_lines(ledger.records(), ["score"]))
    assert "canary" not in text
    assert '"gone"' not in text


@pytest.mark.lengthy
def test_since_takes_whole_threads(tmp_path: Path) -> None:
    with recorded(tmp_path / "l.db", 2) as ledger:
        _, app = payments(ledger)
        app.invoke({}, conf("t0"))
        ledger.flush(60)
        (since,) = {
            item.timestamp for item in ledger.items(thread_id="t0").page(limit=2) if item.node == "check"
        }
        (thread,) = ledger.records(since=since).threads()
        assert (thread.thread_id, len(thread.rows)) == ("t0", 6)
        rows = list(
            csv.reader(csv_lines(ledger.records(since=since), [], since=ledger.records(since=since).since))
        )
        assert len(rows) == 1 + 2  # a table has the node runs since then


def test_a_table_has_a_row_for_each_node_run_and_no_formula(ledger: Ledger) -> None:
    rows = list(csv.DictReader(csv_lines(ledger.records(), ["score"])))
    assert [(row["node"], row["status"]) for row in rows] == [
        ("check", "completed"),
        ("pay", "completed"),
        ("check", "completed"),
        ("pay", "completed"),
        ("check", "denied"),
    ]
    assert [row["score score"] for row in rows[2:4]] == ["0.75", "0.0"]
    assert {row["thread"] for row in rows} == {"", "'=HYPERLINK(1)", "t2"}
    assert rows[4]["policy"] == "limit"
    assert json.loads(rows[2]["input"])["amount"] == 5
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "-", "@", "\t"))]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1"])
def test_no_text_is_a_formula(ledger: Ledger, text: str) -> None:
    *_, thread = ledger.records().threads()
    records = FileRecords("u", {thread.ref: replace(thread, thread_id=text)})
    (row,) = csv.DictReader(io.StringIO("".join(csv_lines(records, [])), newline=""))
    assert row["thread"] == "'" + text


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nothing", r"f:2: this is not a line of 'arbiter export --to jsonl'"),
        ("[]", r"f:2: "),
        ('{"row": "entry", "ref": "x", "body": {}, "contents": null}', r"f:2: .*'x'"),
        ('{"row": "page"}', r"f:2: .*its row is 'page'"),
        ('{"row": "graph", "digest": "d", "body": "[]"}', r"f:2: .*the body of its graph is no mapping"),
        ('{"row": "ledger", "v": 2, "uuid": "u"}', r"f:2: .*its version is 2"),
    ],
    ids=str,
)
def test_an_invalid_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "f").write_text(f'{{"row": "ledger", "v": 1, "uuid": "u"}}\n{line}\n')
    with pytest.raises(ConfigurationError, match=problem):
        read_records(tmp_path / "f")


def without(*places: int) -> Callable[[list[str]], list[str]]:
    return lambda lines: [line for place, line in enumerate(lines) if place not in places]


def swapped(lines: list[str]) -> list[str]:
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


def repeated(lines: list[str]) -> list[str]:
    return [*lines, lines[-1]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without(4), "f:5: entry 2 of thread .* should come before it. The file"),
        (without(3, 4), "f:4: entries 1 to 2 of thread .* should come before it. The file"),
        (swapped, "f:4: entry 1 of .*more such lines"),
        (repeated, "comes after entry .: lines were moved or repeated. The file"),
        (without(1), "f:3: the graph .* of entry 1 of thread"),
    ],
    ids=["cut", "without its begin", "swapped", "repeated", "without a graph"],
)
def test_a_file_that_lacks_lines_is_read_and_the_place_is_logged(
    ledger: Ledger,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[list[str]], list[str]],
    problem: str,
) -> None:
    lines = [*JsonLines(ledger.records()).all()]
    assert [json.loads(line)["row"] for line in lines[:4]] == ["ledger", "graph", "thread", "entry"]
    (tmp_path / "f").write_text("".join(lines))
    read_records(tmp_path / "f")
    assert not caplog.messages
    (tmp_path / "f").write_text("".join(change(lines)))
    read_records(tmp_path / "f")
    assert re.search(problem, caplog.text)


@pytest.mark.lengthy
def test_a_file_from_which_threads_were_pruned_lacks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger(tmp_path / "l.db", clock=lambda: 2e9) as ledger:
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf("t0"))
        assert ledger.prune(1).threads == 1
        app.invoke({"amount": 1}, conf("t0"))
        ledger.flush(60)
        (tmp_path / "f").write_text("".join(JsonLines(ledger.records()).all()))
    assert len([*read_records(tmp_path / "f").threads()]) == 2
    assert not caplog.messages


def test_a_file_without_a_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigurationError, match="is empty"):
        read_records(tmp_path / "f")
    (tmp_path / "f").write_text(
        '{"row": "thread", "ref": "x", "thread_id": "t", "subject": null, "graph": "g"}'
    )
    with pytest.raises(ConfigurationError, match="names no ledger"):
        read_records(tmp_path / "f")
    with pytest.raises(ConfigurationError, match=r"'.*/g' cannot be read: No such file"):
        read_records(tmp_path / "g")
    assert FileRecords().texts(["x"]) == []


def test_a_directory_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: it is a directory; name a file in it"):
        write_whole(tmp_path, ["line"])
    assert not [*tmp_path.iterdir()]


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    def lines() -> Any:
        yield "first\n"
        raise LedgerError("the database is gone")

    (tmp_path / "f").write_text("before")
    with pytest.raises(LedgerError):
        write_whole(tmp_path / "f", lines())
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "before")]
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        write_whole(tmp_path / "no" / "f", lines())


@pytest.mark.lengthy
def test_follow_writes_what_is_there_and_then_what_is_added(tmp_path: Path) -> None:
    with recorded(tmp_path / "l.db", 2) as ledger:
        lines = followed(ledger.records(), every=0.01)

        written = ""
        while written.count('"row":"entry"') < 6:
            written += next(lines)
        _, app = payments(ledger)
        app.invoke({}, conf("new"))
        while written.count('"row":"entry"') < 9:
            written += next(lines)
        (tmp_path / "f").write_text(written)
        assert list(read_records(tmp_path / "f").threads()) == list(ledger.records().threads())


@pytest.mark.lengthy
def test_follow_loses_nothing_that_is_committed_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(tmp_path / "l.db", 1) as ledger:
        records = ledger.records()
        _, app = payments(ledger)
        rows = Queries.rows

        def interrupted(queries: Queries, statement: str, values: Any) -> Any:
            if statement == "SELECT last_entry FROM ledgers":
                monkeypatch.undo()
                app.invoke({}, conf("meanwhile"))
                assert ledger.flush(20)
            return rows(queries, statement, values)

        monkeypatch.setattr(Queries, "rows", interrupted)
        last, found = records.newer(records.upto)
        threads = [*found, *records.newer(last)[1]]
        assert [(thread.thread_id, len(thread.rows)) for thread in threads] == [("meanwhile", 3)]


@pytest.mark.lengthy
def test_a_changed_body_is_a_sentence_for_every_reader(tmp_path: Path) -> None:
    recorded(tmp_path / "l.db", 1).close()
    for body in ("no json", "{}", "[]"):
        with sql(tmp_path / "l.db") as run:
            run("UPDATE entries SET body = ? WHERE id = 2", body)
        for arguments in (("export",), ("history", "t0"), ("history", "--node", "pay")):
            said = refused(*arguments, "--ledger", str(tmp_path / "l.db"))
            assert "entry 2 of thread 't0' cannot be read" in said
            assert "arbiter verify" in said


QUESTIONS: dict[str, Callable[[Ledger], object]] = {
    "items": lambda ledger: list(ledger.items()),
    "history": lambda ledger: ledger.history("t0"),
    "follow": lambda ledger: next(ledger.follow("t0")),
    "records": lambda ledger: list(JsonLines(ledger.records()).all()),
    "replay": lambda ledger: ledger.replay("rules.yaml"),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("table", "text"), [("entries", "no json"), ("entries", "{}"), ("entries", "[]"), ("contents", "no json")]
)
def test_an_entry_that_was_changed_beyond_reading_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, table: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(
        "version: 1\nname: rules\ndescription: Few runs.\ncheckers:\n  - {name: few, use: at_most, times: 9}\n"
    )
    recorded(tmp_path / "l.db", 1).close()
    column = "id" if table == "entries" else "entry"
    with sql(tmp_path / "l.db") as run:
        run(f"UPDATE {table} SET body = ? WHERE {column} = 2", text)
    with Ledger(tmp_path / "l.db") as ledger:
        with pytest.raises(LedgerError, match=r"entry 2 of thread 't0' cannot be read .*arbiter verify"):
            QUESTIONS[question](ledger)
        assert not ledger.verify()


CANARIES = (
    "hunter2-canary",
    "AKIAIOSFODNN7CANARY",
    "4111 1111 1111 1111",
    "sk-ant-api03-canarycanarycanarycanary",
)


@pytest.mark.lengthy
def test_an_export_that_finds_no_room_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    recorded(tmp_path / "l.db").close()
    file = tmp_path / "out.jsonl"
    monkeypatch.setattr(os, "fsync", full)
    said = f"'{file}' cannot be written: No space left on device."
    assert said in refused("export", "-o", str(file), "--ledger", str(tmp_path / "l.db"))
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_no_export_and_no_command_shows_a_secret(tmp_path: Path) -> None:
    """By the name of a field, by form, inside of JSON, in reasons, feedback and errors."""
    password, *forms = CANARIES

    def fails(history: Any) -> EvaluationResult:
        return EvaluationResult(0.1, False, f"it says {forms[0]}", {"api_key": password})

    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(
            Check("card", lambda history: Verdict.deny(f"it names {forms[1]}"), target_nodes=["pay"])
        )
        arbiter_os.add_evaluator(Judge("says", fails))
        app = arbiter_os.govern(chain(Spy("check"), Spy("pay"), checkpointer=InMemorySaver()))
        log: Any = [json.dumps({"password": password}), {"token": password}, *forms]
        with pytest.raises(PolicyViolationError):
            app.invoke({"log": log}, conf("t", api_key=password))
        assert ledger.flush(20)
    where = ("--ledger", str(tmp_path / "l.db"))
    shown = [
        typed(*command, *where)
        for command in (
            ("export",),
            ("export", "--to", "csv"),
            ("history",),
            ("history", "t"),
            ("history", "t", "--format", "json"),
            ("history", "--verdict", "deny"),
            ("history", "--verdict", "deny", "--format", "jsonl"),
            ("verify", "--format", "json"),
        )
    ]
    assert "denied" in shown[1]
    assert "[secret" in shown[0]
    assert not [(canary, text) for canary in CANARIES for text in shown if canary in text]
