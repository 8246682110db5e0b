"""An edit of the database past Arbiter is found: by thread and entry, with the intact parts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.graph import START, StateGraph
from sqlalchemy import Boolean, Float, Integer, event

from arbiter import ArbiterOS, ArbiterWarning, ConfigurationError
from arbiter.ledger import Ledger, LedgerUnavailable, Verification
from arbiter.ledger._anchors import Head, merkle_root
from arbiter.ledger._chain import canonical
from arbiter.ledger._entries import COLUMNS
from arbiter.ledger._tables import metadata
from tests.ledger.ledger_support import KEY, conf, payments, recorded, sql
from tests.support import Spy, State, chain, examples

Attack = Callable[[Callable[..., list[Any]]], Any]


@cache
def untouched() -> bytes:
    """A ledger of three threads with three entries each, in one file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "l.db"
        recorded(path, 3).close()
        return path.read_bytes()


def attacked(tmp_path: Path, attack: Attack, **options: Any) -> Verification:
    """The findings of a verification after an attack by SQL on a ledger of three threads with three entries
    each."""
    path = tmp_path / "l.db"
    path.write_bytes(untouched())
    with sql(path) as run:
        attack(run)
    with Ledger(path) as ledger:
        return ledger.verify(**options)


def test_an_untouched_ledger_is_intact(tmp_path: Path) -> None:
    found = attacked(tmp_path, lambda run: None)
    assert found
    assert (found.threads, found.entries, found.anchored) == (3, 9, 9)


@pytest.mark.parametrize("users", [("",), ("ann", ""), ("", "ann")], ids=" then ".join)
def test_a_run_for_an_empty_user_is_intact(tmp_path: Path, users: Sequence[str]) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        _, app = payments(ledger)
        for user in users:
            app.invoke({"amount": 1}, conf("t", user))
        assert ledger.flush(20)
        assert ledger.verify()


def test_a_run_that_began_before_the_ledger_listened_is_intact(tmp_path: Path) -> None:
    """Its thread has the name of the graph, as its entries do."""
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    chunks = app.stream({}, stream_mode="updates")
    next(chunks)
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os.add_listener(ledger.listener)
        assert len(list(chunks)) == 1
        assert ledger.flush(20)
        assert ledger.verify().findings == []


def test_the_graph_of_a_thread_with_a_subgraph_or_a_function_is_compared_too(tmp_path: Path) -> None:
    """Their node runs do not name it; that an execution of it ended does."""
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        builder: Any = StateGraph(State)
        builder.add_node("inner", chain(Spy("a"))).add_edge(START, "inner")
        arbiter_os.govern(builder.compile()).invoke({})
        arbiter_os.execute({}, Spy("c"), instruction="GENERATE")
        assert ledger.flush(20)
        assert ledger.verify().findings == []
        for thread in ledger.threads():
            with sql(tmp_path / "l.db") as run:
                run("UPDATE threads SET graph = 'forged' WHERE ref = ?", thread["ref"])
            (finding,) = ledger.verify(thread["ref"]).findings
            assert "graph: the columns do not match" in str(finding)


@pytest.mark.lengthy
def test_the_verification_of_one_thread_reads_the_scores_of_no_other(tmp_path: Path) -> None:
    """Nor does that of all hold more scores than those of a page."""
    read: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM scores" in statement and "NOT EXISTS" not in statement:
            read.append(statement.partition(" WHERE ")[2])

    with recorded(tmp_path / "l.db", 3) as ledger:
        engine = ledger._store.engine  # pyright: ignore[reportPrivateUsage]
        event.listen(engine, "before_cursor_execute", note)
        assert ledger.verify("t1")
        assert ledger.verify()
    assert read == ["entry IN (4, 5, 6)", "entry IN (1, 2, 3, 4, 5, 6, 7, 8, 9)"]


SWAP = "UPDATE entries SET seq = CASE seq WHEN 1 THEN -1 ELSE 1 END WHERE thread = 2 AND seq IN (1, 2)"
ATTACKS: dict[str, tuple[str, ...]] = {
    "edit a body": ("UPDATE entries SET body = replace(body, 'completed', 'denied') WHERE id = 5",),
    "edit contents": ("UPDATE contents SET body = replace(body, '0.75', '0.99') WHERE entry = 5",),
    "remove contents": ("DELETE FROM contents WHERE entry = 5",),
    "edit a score": ("UPDATE scores SET score = 1.0 WHERE entry = 4",),
    "remove a score": ("DELETE FROM scores WHERE entry = 4",),
    "edit a count": ("UPDATE rollups SET n = n + 1 WHERE kind = 'node'",),
    "an endless sum": ("UPDATE rollups SET total = 9e999 WHERE kind = 'evaluator'",),
    "edit a bound of a count": ("UPDATE rollups SET least = -1.0 WHERE kind = 'evaluator'",),
    "delete an entry": (
        "DELETE FROM contents WHERE entry = 5",
        "DELETE FROM scores WHERE entry = 5",
        "DELETE FROM entries WHERE id = 5",
    ),
    "swap two entries": (SWAP, "UPDATE entries SET seq = 2 WHERE thread = 2 AND seq = -1"),
    "insert an entry": (
        "INSERT INTO entries (id, thread, seq, key, kind, at, body, hash) SELECT 99, thread, 4, 'x', kind, at, body, "
        "hash FROM entries WHERE id = 5",
    ),
    "move an entry": ("UPDATE entries SET thread = 3, seq = 4 WHERE id = 6",),
    "a body that is not JSON": ("UPDATE entries SET body = 'oops' WHERE id = 5",),
    "an empty hash": ("UPDATE entries SET hash = x'' WHERE id = 5",),
    "an enormous number": ("UPDATE entries SET seq = 4000000000000 WHERE id = 6",),
    "sign an anchor without a key": ("UPDATE anchors SET signature = 'zz'",),
    "name a key without a signature": ("UPDATE anchors SET key_id = 'hmac:00000000'",),
    "another thread's name": ("UPDATE threads SET head_seq = 2 WHERE id = 2",),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_edit_by_sql_is_found(tmp_path: Path, attack: str) -> None:
    def edit(run: Any) -> None:
        run("PRAGMA foreign_keys = OFF")
        for statement in ATTACKS[attack]:
            run(statement)

    found = attacked(tmp_path, edit)
    assert not found
    assert all(str(finding) for finding in found.findings)


@pytest.mark.parametrize("column", [*COLUMNS, "key", "kind"])
def test_each_column_that_is_shown_is_compared_with_the_chain(tmp_path: Path, column: str) -> None:
    value = 12345 if column in ("attempt", "step", "at", "took") else "forged"
    found = attacked(tmp_path, lambda run: run(f"UPDATE entries SET {column} = ? WHERE id = 5", value))
    assert [(finding.kind, finding.seq) for finding in found.findings] == [("column", 2)]
    assert column in found.findings[0].message
    # The entries before it, and those of the other threads, are intact.
    assert found.intact_entries == 3 + 1 + 3


FORGED: dict[str, Sequence[str]] = {
    "threads": ["ref", "thread_id", "subject", "graph", "first_at", "last_at", "items", "denied", "asked", "outcome",
                "head_seq", "head_hash", "erased_at", "pruned_at"],
    "contents": ["entry", "salt", "body"],
    "scores": ["entry", "evaluator", "score", "passed", "read", "at"],
    "rollups": ["hour", "kind", "name", "value", "n", "total", "least", "most"],
    "anchors": ["id", "upto", "threads", "root", "previous"],
    "anchor_heads": ["anchor", "thread", "seq", "hash"],
    "graphs": ["digest", "body"],
    "ledgers": ["uuid", "created_at", "last_entry"],
}  # fmt: skip


@pytest.mark.parametrize("column", [f"{table}.{name}" for table, names in FORGED.items() for name in names])
def test_a_forged_column_of_any_table_is_found(tmp_path: Path, column: str) -> None:
    """A new value in each column of a table, one after another; `entries` has a test of its own."""
    table, _, name = column.partition(".")
    kind = metadata.tables[table].c[name].type

    def forge(run: Any) -> None:
        run("PRAGMA foreign_keys = OFF")
        keys = [key.name for key in metadata.tables[table].primary_key]
        where = " AND ".join(f"{key} = ?" for key in keys)
        newest = (
            f"SELECT {', '.join([name, *keys])} FROM {table} ORDER BY {' DESC, '.join(keys)} DESC LIMIT 1"
        )
        if table == "rollups":  # of an evaluator: others have no least and no most
            newest = newest.replace("ORDER", "WHERE kind = 'evaluator' ORDER")
        ((old, *key),) = run(newest)
        number = isinstance(kind, Integer | Float | Boolean)
        value: Any = int(not old) if isinstance(kind, Boolean) else (old or 0) + 1 if number else "forged"
        run(f"UPDATE {table} SET {name} = ? WHERE {where}", value, *key)

    assert not attacked(tmp_path, forge)


ROWS = {
    "graphs": "id = 1",
    "threads": "id = 2",
    "entries": "id = 5",
    "contents": "entry = 5",
    "scores": "entry = 4",
    "rollups": "kind = 'items'",
    "anchors": "id = 1",
    "anchor_heads": "thread = 2",
}


@pytest.mark.parametrize("table", ROWS)
def test_a_row_that_is_gone_is_found(tmp_path: Path, table: str) -> None:
    def remove(run: Any) -> None:
        run("PRAGMA foreign_keys = OFF")
        assert run(f"DELETE FROM {table} WHERE {ROWS[table]} RETURNING 1")

    assert not attacked(tmp_path, remove)


INSERTED = {
    "a subject": "INSERT INTO subjects VALUES (2, 'mallory')",
    "a subject of no thread": "INSERT INTO subjects VALUES (99, 'mallory')",
    "contents of no entry": "INSERT INTO contents VALUES (99, x'00', '{}')",
    "a score of no entry": "INSERT INTO scores VALUES (99, 'score', 0.1, 0, 0, 1)",
}


@pytest.mark.parametrize("row", INSERTED)
def test_a_row_that_nothing_has_written_is_found(tmp_path: Path, row: str) -> None:
    def insert(run: Any) -> None:
        run("PRAGMA foreign_keys = OFF")
        run(INSERTED[row])

    (finding,) = attacked(tmp_path, insert).findings
    assert "subject" in str(finding) or "belong to nothing" in str(finding)


def test_a_text_that_no_ledger_writes_ends_no_verification(tmp_path: Path) -> None:
    """A graph that nothing names, under the right digest, is no finding, and no error either."""
    forged = sha256(b"[").hexdigest()[:32]
    found = attacked(tmp_path, lambda run: run("INSERT INTO graphs (digest, body) VALUES (?, '[')", forged))
    assert found.entries == 9


def test_entries_that_change_places_are_found(tmp_path: Path) -> None:
    """The ids of two entries of one thread that have neither contents nor scores."""
    path = tmp_path / "l.db"
    with Ledger(path, states="none") as ledger:
        payments(ledger)[1].invoke({"amount": 1}, conf("t"))
    with sql(path) as run:
        run("PRAGMA foreign_keys = OFF")
        for old, new in ((1, -1), (3, 1), (-1, 3)):
            run(f"UPDATE entries SET id = {new} WHERE id = {old}")
            run(f"UPDATE scores SET entry = {new} WHERE entry = {old}")
    with Ledger(path) as ledger:
        assert {(each.kind, each.seq) for each in ledger.verify().findings} == {("column", 2), ("column", 3)}


@pytest.mark.parametrize("column", ["thread_id", "subject", "erased_at"])
def test_a_forged_row_of_an_erased_thread_is_found(tmp_path: Path, column: str) -> None:
    """Another name, another subject, or no erasure any more."""
    path = tmp_path / "l.db"
    with recorded(path, 1) as ledger:
        ledger.erase(thread_id="t0", reason="asked for")
    value = None if column == "erased_at" else "mallory"
    with sql(path) as run:
        run(f"UPDATE threads SET {column} = ?", value)
    with Ledger(path) as ledger:
        (finding,) = ledger.verify().findings
    assert f"{column}: the columns do not match its entries" in str(finding)


def test_a_thread_without_an_id_that_got_one_is_found(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({}, {"configurable": {"user_id": "ann"}})
        ledger.flush(60)
        assert ledger.verify()
        with sql(path) as run:
            run("UPDATE threads SET thread_id = 'mallory'")
        assert not ledger.verify()


def test_a_ledger_row_with_a_schema_that_is_none_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    recorded(path, 1).close()
    with sql(path) as run:
        run("UPDATE ledgers SET schema = 'x'")
    with pytest.raises(LedgerUnavailable, match="its schema x is newer"):
        Ledger(path)


def test_one_edited_body_is_one_finding_with_its_thread_and_entry(tmp_path: Path) -> None:
    found = attacked(tmp_path, lambda run: run(ATTACKS["edit a body"][0]))
    (finding,) = found.findings
    assert str(finding).startswith("thread t1 (")
    assert str(finding).endswith("entry 2: its body does not fit its hash. It was edited, or entry 1 was.")


def test_a_head_with_another_hash_is_named_as_such(tmp_path: Path) -> None:
    found = attacked(tmp_path, lambda run: run("UPDATE threads SET head_hash = x'00' WHERE id = 2"))
    (finding,) = found.findings
    assert str(finding).endswith(": its head does not have the hash of its newest entry, 3.")


def cut(run: Any) -> None:
    """Remove the newest entry of a thread, and set its head and counts back, as somebody who knows the code would."""
    run("DELETE FROM contents WHERE entry = 6")
    run("DELETE FROM entries WHERE id = 6")
    run("UPDATE threads SET head_seq = 2, head_hash = (SELECT hash FROM entries WHERE id = 5) WHERE id = 2")
    run("UPDATE threads SET outcome = NULL WHERE id = 2")
    run("UPDATE rollups SET n = n - 1 WHERE kind = 'outcome'")


def drop(run: Any) -> None:
    """Remove a thread with everything that names it."""
    run("DELETE FROM contents WHERE entry IN (SELECT id FROM entries WHERE thread = 2)")
    run("DELETE FROM scores WHERE entry IN (SELECT id FROM entries WHERE thread = 2)")
    run("DELETE FROM entries WHERE thread = 2")
    run("DELETE FROM anchor_heads WHERE thread = 2")
    run("DELETE FROM threads WHERE id = 2")
    run("DELETE FROM rollups")


@pytest.mark.parametrize("attack", [cut, drop])
def test_with_anchors_of_elsewhere_a_cut_and_a_dropped_thread_are_found(tmp_path: Path, attack: Any) -> None:
    path, anchors = tmp_path / "l.db", tmp_path / "anchors.jsonl"
    recorded(path, 3, anchors=anchors).close()

    def quiet(run: Any) -> None:
        attack(run)
        run("DELETE FROM anchors")
        run("DELETE FROM anchor_heads")

    with sql(path) as run:
        quiet(run)
    with Ledger(path) as ledger:
        assert ledger.verify().after_anchor > 0  # only chained: a cut could not be noticed
        found = ledger.verify(anchors=anchors)
        assert any("its newest part was removed" in str(finding) for finding in found.findings)


def test_a_file_without_an_anchor_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An emptied file of anchors finds nothing, which is no proof."""
    (tmp_path / "anchors.jsonl").touch()
    with recorded(tmp_path / "l.db", 1) as ledger:
        assert ledger.verify()
        assert not caplog.messages
        assert ledger.verify(anchors=tmp_path / "anchors.jsonl")
    assert "there is no anchor in those given" in caplog.text


@pytest.mark.lengthy
def test_anchors_that_are_not_among_those_given_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[Any] = []
    with recorded(tmp_path / "l.db", 0, anchors=lines.append) as ledger:
        _, app = payments(ledger)
        for number in range(5):
            app.invoke({"amount": 1}, conf(f"t{number}"))
            ledger.flush(60)
            ledger.anchor()
        assert ledger.verify(anchors=lines)
        assert not caplog.messages
        assert ledger.verify(anchors=[lines[2], lines[4]])
        assert caplog.messages == ["verify: of the 5 anchors of this ledger, those given lack 3: 1 to 2, 4."]
        caplog.clear()
        assert ledger.verify(anchors=lines[:3])
        assert caplog.messages == [
            "verify: of the 5 anchors of this ledger, those given lack 2: 4 to 5. "
            "A cut of entries after anchor 3 stays unnoticed."
        ]


@pytest.mark.lengthy
def test_a_forged_anchor_covers_no_more_entries(tmp_path: Path) -> None:
    """An edit of the entry up to which the newest anchor reaches does not make later entries count as anchored."""
    with recorded(tmp_path / "l.db", 1) as ledger:
        ledger.anchor()
        payments(ledger)[1].invoke({"amount": 1}, conf("t0"))
        ledger.flush(60)
        before = ledger.verify()
        with sql(tmp_path / "l.db") as run:
            run("UPDATE anchors SET upto = upto + 1000")
        after = ledger.verify()
    assert [(found.anchored, found.after_anchor) for found in (before, after)] == [(3, 3), (3, 3)]


def test_a_cut_below_an_anchor_is_found_in_the_database_alone(tmp_path: Path) -> None:
    found = attacked(tmp_path, cut)
    assert any("anchor 1 knows 3 entries, there are 2" in str(finding) for finding in found.findings)


def rehashed(path: Path) -> None:
    """Edit a body, and hash the whole thread anew, anchors included."""
    with sql(path) as run:
        uuid = run("SELECT uuid FROM ledgers")[0][0]
        ref = run("SELECT ref FROM threads WHERE id = 2")[0][0]
        last = sha256(f"arbiter ledger 1|{uuid}|{ref}".encode()).digest()
        for id, body in run("SELECT id, body FROM entries WHERE thread = 2 ORDER BY seq"):
            forged = body.replace('"took":', '"took":1')
            last = sha256(last + forged.encode()).digest()
            run("UPDATE entries SET body = ?, hash = ?, took = ? WHERE id = ?", forged, last,
                json.loads(forged).get("took"), id)  # fmt: skip
        run("UPDATE threads SET head_hash = ? WHERE id = 2", last)
        run("UPDATE anchor_heads SET hash = ? WHERE thread = 2", last)
        heads = [Head(*row) for row in run(
            "SELECT t.ref, h.seq, h.hash FROM anchor_heads h JOIN threads t ON t.id = h.thread")]  # fmt: skip
        run("UPDATE anchors SET root = ?", merkle_root(heads))


def test_a_ledger_that_was_hashed_anew_is_found_with_anchors_or_a_signature(tmp_path: Path) -> None:
    path, anchors = tmp_path / "l.db", tmp_path / "anchors.jsonl"
    recorded(path, 3, anchors=anchors, key=KEY).close()
    rehashed(path)
    with Ledger(path) as ledger:
        assert ledger.verify()
        assert not ledger.verify(anchors=anchors)
        found = ledger.verify(keys=[KEY])
        assert [str(finding) for finding in found.findings] == ["anchor 1 has a wrong signature."]


def test_anchors_are_signed_and_name_the_key(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with recorded(tmp_path / "l.db", 1, key=pem) as ledger:
        line = ledger.anchor()
        assert line is not None
        assert line["key"].startswith("ed25519:")
        found = ledger.verify(keys=[public])
        assert found
        assert found.signed_by == line["key"]
        assert not ledger.verify(keys=[KEY])
        assert ledger.verify(None, [line], [public]) == found


def test_a_signature_of_any_letters_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with recorded(path, 1, key=KEY) as ledger:
        ledger.anchor()
        with sql(path) as run:
            run("UPDATE anchors SET signature = 'é'")
        assert [str(each) for each in ledger.verify().findings] == ["anchor 1 has a wrong signature."]


def test_forged_anchors_are_found_also_in_a_generator(tmp_path: Path) -> None:
    lines: list[Any] = []
    with recorded(tmp_path / "l.db", 1, anchors=lines.append) as ledger:
        ledger.anchor()
        found = ledger.verify(anchors=({**line, "root": "0" * 64} for line in lines))  # type: ignore[arg-type]
        assert [str(each) for each in found.findings] == [
            "external anchor 1 differs from the one in this database."
        ]


@pytest.mark.lengthy
def test_anchors_of_another_ledger_are_named_as_such(tmp_path: Path) -> None:
    recorded(tmp_path / "a.db", 1, anchors=tmp_path / "a.jsonl").close()
    with recorded(tmp_path / "b.db", 1) as ledger:
        with pytest.raises(ConfigurationError, match="these anchors are of ledger"):
            ledger.verify(anchors=tmp_path / "a.jsonl")
        (tmp_path / "bad").write_text("\nno anchor\n")
        (tmp_path / "code").write_text("\n{no anchor\n")
        (tmp_path / "deep").write_text("[" * 100_000)
        with pytest.raises(ConfigurationError, match=r"deep:1: this line is not an anchor"):
            ledger.verify(anchors=tmp_path / "deep")
        for name in ("bad", "code"):
            with pytest.raises(ConfigurationError, match=rf"{name}:2: this line is not an anchor"):
                ledger.verify(anchors=tmp_path / name)


@pytest.mark.parametrize("is_last", [True, False])
def test_a_torn_line_of_a_file_of_anchors_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_last: bool
) -> None:
    """The disk was full, or the process was killed; the ledger writes the anchor again with the next one."""
    path = tmp_path / "anchors"
    with recorded(tmp_path / "l.db", 1, anchors=path) as ledger:
        ledger.anchor()
        whole = path.read_text()
        path.write_text(whole + whole[:40])
        if not is_last:
            payments(ledger)[1].invoke({"amount": 1}, conf("t1"))
            assert ledger.flush(60)
            ledger.anchor()
        found = ledger.verify(anchors=path)
    assert found
    assert found.after_anchor == 0
    assert caplog.messages == [f"{path}:2: a line that was not written to its end was left out."]


@pytest.mark.parametrize("line", [{}, None])
def test_an_empty_anchor_is_refused_in_a_sentence(tmp_path: Path, line: Any) -> None:
    expected = pytest.raises(ConfigurationError, match="anchors: expected lines of a ledger, got")
    with recorded(tmp_path / "l.db", 1) as ledger, expected:
        ledger.verify(anchors=[line])


@pytest.mark.parametrize("edit", [{"root": "\ud800"}, {"upto": 10**30}])
def test_a_line_of_a_file_of_anchors_that_no_ledger_writes_is_named(
    tmp_path: Path, edit: dict[str, Any]
) -> None:
    lines: list[Any] = []
    with recorded(tmp_path / "l.db", 1, anchors=lines.append) as ledger:
        ledger.anchor()
        (tmp_path / "bad").write_text(json.dumps({**lines[0], **edit}))
        with pytest.raises(ConfigurationError, match=r"bad:1: this line is not an anchor"):
            ledger.verify(anchors=tmp_path / "bad")


@pytest.mark.lengthy
@pytest.mark.slow
def test_an_anchor_is_written_every_thousand_entries(tmp_path: Path) -> None:
    lines: list[Any] = []
    with Ledger(tmp_path / "l.db", anchors=lines.append) as ledger:
        _, app = payments(ledger)
        for number in range(400):
            app.invoke({}, conf(f"t{number}"))
        assert ledger.flush(20)
        assert len(lines) == 1
        assert ledger.verify(anchors=lines)


def test_erasing_a_thread_leaves_no_byte_of_it_and_the_chain_whole(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger(path, anchors=tmp_path / "anchors") as ledger:
        _, app = payments(ledger)
        for number in range(3):
            app.invoke(
                {"log": [f"canary-{number}"]}, conf(f"thread-canary-{number}", f"user-canary-{number}")
            )
        ledger.flush(60)
        ledger.anchor()
        assert b"canary-1" in b"".join(part.read_bytes() for part in tmp_path.glob("l.db*"))
        erased = ledger.erase(thread_id="thread-canary-1", reason="request 4711")
        assert (erased.threads, erased.contents) == (1, 3)
        found = ledger.verify(anchors=tmp_path / "anchors")
        assert (bool(found), found.erased) == (True, 3)
        assert b"canary-1" not in b"".join(part.read_bytes() for part in tmp_path.glob("l.db*"))
        assert len([*ledger.items()]) == 6  # nodes, verdicts, scores and times stay
        # A second time changes nothing; a ledger that does not remember the first cannot tell it from a misspelt name.
        before = ledger.last_entry
        assert ledger.erase(thread_id="thread-canary-1", reason="again").threads == 0
        with (
            Ledger(path) as another,
            pytest.warns(ArbiterWarning, match="no thread 'thread-canary-1'.*Nothing was erased"),
        ):
            assert another.erase(thread_id="thread-canary-1", reason="again").threads == 0
        assert ledger.last_entry == before
        # A run that ends later under that name opens a new thread.
        app.invoke({}, conf("thread-canary-1"))
        ledger.flush(60)
        assert len(list(ledger.history("thread-canary-1").items())) == 2
        assert ledger.erase(subject="user-canary-2", reason="GDPR").threads == 1
        assert ledger.erase(subject="user-canary-2", reason="GDPR").threads == 0
        assert ledger.verify()


def test_a_run_without_a_thread_goes_on_after_its_subject_was_erased(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)

        def erases(state: Any) -> None:
            assert ledger.erase(subject="ann", reason="asked for").threads == 1

        ann: Any = {"configurable": {"user_id": "ann"}}
        arbiter_os.govern(chain(Spy("first"), erases, Spy("last"))).invoke({}, ann)
        assert ledger.flush(60)
        assert [item.node for item in ledger.items()] == ["last", "erases", "first"]
        assert [thread["items"] for thread in ledger.threads(subject="ann")] == [3]
        assert ledger.verify()


def test_erasing_wants_a_thread_or_a_subject_and_a_reason(tmp_path: Path) -> None:
    with recorded(tmp_path / "l.db", 1) as ledger:
        with pytest.raises(ConfigurationError, match="either thread_id or subject"):
            ledger.erase(reason="x")
        with pytest.raises(ConfigurationError, match="give a reason"):
            ledger.erase(thread_id="t0", reason=" ")


names = st.text("abcxyz_", min_size=1, max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(names, parts, max_size=3),
    max_leaves=5,
)


@pytest.mark.lengthy
@given(st.dictionaries(names, json_values, max_size=4))
@examples(1)
def test_bodies_are_canonical(body: dict[str, Any]) -> None:
    """Sorted compact JSON without floats and with ASCII keys is what RFC 8785 defines."""
    expected = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        encoded = expected.encode()
    except UnicodeEncodeError:
        return
    assert canonical(body) == encoded


def test_no_body_holds_a_float(tmp_path: Path) -> None:
    """Floats have more than one JSON form; scores and times are texts and whole microseconds."""
    path = tmp_path / "l.db"
    path.write_bytes(untouched())

    def refuse(text: str) -> Any:
        raise AssertionError(text)

    with sql(path) as run:
        for (body,) in run("SELECT body FROM entries"):
            json.loads(body, parse_float=refuse)


HOSTILE = ("x", 2**62, -1, 1.5, b"\x00", "", None)
"""Values of wrong types and sizes, which SQLite stores in any column."""


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "table",
    ["threads", "entries", "contents", "scores", "rollups", "anchors", "anchor_heads", "subjects", "graphs"],
)
def test_no_value_of_a_column_ends_a_verification(tmp_path: Path, table: str) -> None:
    """Each column of a row in turn gets each hostile value: a finding, and never a traceback."""
    path = tmp_path / "l.db"
    recorded(path, 2, key=KEY).close()
    for user in ("ann", "bob"):  # a thread of two subjects
        with Ledger(path, key=KEY) as ledger:
            payments(ledger)[1].invoke({"amount": 1}, conf("t0", user))
    with (
        Ledger(path) as ledger,
        closing(sqlite3.connect(path)) as file,
        closing(sqlite3.connect(":memory:")) as saved,
    ):
        file.backup(saved)
        columns = file.execute(f"PRAGMA table_info({table})").fetchall()
        names, keys = [column[1] for column in columns], [column[1] for column in columns if column[5]]
        row = file.execute(f"SELECT {', '.join(keys)} FROM {table} ORDER BY {', '.join(keys)}").fetchone()
        where = " AND ".join(f"{key} = ?" for key in keys)
        for name, value in product(names, HOSTILE):
            try:
                changed = file.execute(
                    f"UPDATE {table} SET {name} = ? WHERE {where} AND {name} IS NOT ?", (value, *row, value)
                ).rowcount
                file.commit()
                if not changed:
                    continue
            except sqlite3.IntegrityError:  # NULL where there must be a value
                file.rollback()
                continue
            found = ledger.verify(keys=[KEY])
            assert not found or (table, name) == ("graphs", "id"), (name, value)  # nothing names that number
            saved.backup(file)
        assert ledger.verify(keys=[KEY])
