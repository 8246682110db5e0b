"""The tables of a ledger, one definition for SQLite and PostgreSQL.

Times are whole microseconds since 1970, in UTC. The ids of entries are given in the order of the commits.
`migrations/` creates and changes these tables; a test compares both.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _partial(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


ledgers = Table(
    "ledgers",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", String(36), nullable=False),
    Column("schema", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_entry", BigInteger, nullable=False, server_default=text("0")),
)

graphs = Table(
    "graphs",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("body", Text, nullable=False),
)

constitutions = Table(
    "constitutions",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("body", Text, nullable=False),
)

threads = Table(
    "threads",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("ref", String(36), nullable=False, unique=True),
    Column("thread_id", Text, unique=True),
    Column("subject", Text),
    Column("graph", Text),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("items", Integer, nullable=False, server_default=text("0")),
    Column("denied", Integer, nullable=False, server_default=text("0")),
    Column("asked", Integer, nullable=False, server_default=text("0")),
    Column("outcome", String(16)),
    Column("head_seq", Integer, nullable=False, server_default=text("0")),
    Column("head_hash", LargeBinary(32), nullable=False),
    Column("erased_at", BigInteger),
    Column("pruned_at", BigInteger),
    Index("threads_last_at", "last_at"),
    Index("threads_subject", "subject"),
)

subjects = Table(
    "subjects",
    metadata,
    Column("thread", _Id, ForeignKey("threads.id"), primary_key=True, autoincrement=False),
    Column("subject", Text, primary_key=True),
    Index("subjects_subject", "subject"),
)
"""The subjects that a thread had before its present one."""

entries = Table(
    "entries",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    Column("thread", _Id, ForeignKey("threads.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("key", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("execution", String(36)),
    Column("run", String(36)),
    Column("task", Text),
    Column("attempt", Integer),
    Column("node", Text),
    Column("instruction", Text),
    Column("namespace", Text),
    Column("step", Integer),
    Column("status", String(16)),
    Column("at", BigInteger, nullable=False),
    Column("took", BigInteger),
    Column("verdict", String(8)),
    Column("policy", Text),
    Column("target", Text),
    Column("trace", String(32)),
    Column("span", String(16)),
    Column("body", Text, nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
    UniqueConstraint("key"),
    UniqueConstraint("thread", "seq", name="entries_thread_seq"),
    Index("entries_at", "at"),
    Index("entries_node", "node", "at"),
    Index("entries_instruction", "instruction", "at"),
    Index("entries_task", "thread", "task"),
    _partial("entries_policy", "policy", "at", where="policy IS NOT NULL"),
    _partial("entries_verdict", "at", where="verdict IS NOT NULL AND verdict <> 'allow'"),
    _partial("entries_status", "status", "at", where="status IS NOT NULL AND status <> 'completed'"),
)

contents = Table(
    "contents",
    metadata,
    Column("entry", _Id, ForeignKey("entries.id"), primary_key=True, autoincrement=False),
    Column("salt", LargeBinary(16), nullable=False),
    Column("body", Text, nullable=False),
)

scores = Table(
    "scores",
    metadata,
    Column("entry", _Id, ForeignKey("entries.id"), primary_key=True, autoincrement=False),
    Column("evaluator", Text, primary_key=True),
    Column("score", Float, nullable=False),
    Column("passed", Boolean),
    Column("read", Boolean, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("scores_at", "evaluator", "at"),
    sqlite_with_rowid=False,
)

rollups = Table(
    "rollups",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, primary_key=True),
    Column("n", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
    Column("least", Float),
    Column("most", Float),
    sqlite_with_rowid=False,
)

anchors = Table(
    "anchors",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    Column("upto", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("root", String(64), nullable=False),
    Column("previous", String(64), nullable=False),
    Column("key_id", Text),
    Column("signature", Text),
)

anchor_heads = Table(
    "anchor_heads",
    metadata,
    Column("anchor", _Id, ForeignKey("anchors.id"), primary_key=True, autoincrement=False),
    Column("thread", _Id, ForeignKey("threads.id"), primary_key=True, autoincrement=False),
    Column("seq", Integer, nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
    Index("anchor_heads_thread", "thread", "anchor"),
)

cursors = Table(
    "cursors",
    metadata,
    Column("receiver", Text, primary_key=True),
    Column("entry", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False, server_default=text("0")),
)

undelivered = Table(
    "undelivered",
    metadata,
    Column("receiver", Text, primary_key=True),
    Column("entry", BigInteger, primary_key=True, autoincrement=False),
    Column("evaluator", Text, primary_key=True),
    Column("n", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("reason", Text),
)
"""Scores that a receiver refused, with the reason, or that are sent again later, without one."""
