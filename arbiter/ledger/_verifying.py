"""Verification: everything that is stored is derived again from the bodies, and compared.

It reads one snapshot. It finds edited bodies, columns, contents and counts, entries that are missing, inserted
or moved, heads that were set back, and threads that an anchor knows and the database does not. It cannot tell
who wrote a false entry in the first place, find a cut after the last anchor that was kept elsewhere, or prove
that everything was recorded.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from arbiter.history._record import Described
from arbiter.ledger._anchors import Head, Key, anchor_hash, line_of, merkle_root, signed_part
from arbiter.ledger._chain import canonical, commitment, first_hash, made_at, next_hash
from arbiter.ledger._database import SCHEMA
from arbiter.ledger._entries import (
    COLUMNS,
    HOUR,
    ITEMS,
    VERDICT,
    Count,
    Counts,
    Scored,
    Totals,
    columns_of,
    names_in,
    scored_of,
    time_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_PAGE = 2_000
_MOST_RANGES = 10
_log = logging.getLogger("arbiter")
_PLACED = (*ITEMS, "execution")
"""The kinds of entries that name the graph."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not fit. `seq` is the number of the entry in its thread, from 1."""

    kind: str
    thread: str | None
    seq: int | None
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Missed:
    """A gap: events of a thread that could not be recorded, or not with their contents, and the reason."""

    thread: str
    events: int
    without_contents: int
    since: datetime
    until: datetime
    reason: str


@dataclass(slots=True)
class Verification:
    """The result of `Ledger.verify`. True if everything fits."""

    threads: int = 0
    entries: int = 0
    anchored: int = 0
    """How many entries the newest anchor that fits covers."""
    erased: int = 0
    pruned: int = 0
    """How many entries were removed, or their contents, because they had been kept long enough."""
    gaps: int = 0
    """How many entries say that something could not be recorded."""
    not_recorded: int = 0
    """How many node runs these gaps name."""
    since: datetime | None = None
    until: datetime | None = None
    signed_by: str | None = None
    intact_entries: int = 0
    """The entries of threads without a finding, and those before the first finding of a thread."""
    anchor: Mapping[str, Any] | None = None
    """The newest anchor up to which everything fits."""
    erased_threads: int = 0
    missed: list[Missed] = field(default_factory=list["Missed"])
    """The gaps."""
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def after_anchor(self) -> int:
        """The number of entries that are only chained: a cut of them could not be noticed."""
        return self.entries - self.anchored

    def __bool__(self) -> bool:
        return not self.findings


@dataclass(slots=True)
class _Thread:
    id: int
    ref: str
    name: str
    head_seq: int
    head_hash: bytes
    pruned_at: int | None
    items: int
    denied: int
    asked: int
    first_at: Any
    last_at: Any
    outcome: Any
    graph: Any
    erased_at: Any
    thread_id: Any
    subject: Any
    subjects: set[Any] = field(default_factory=set[Any])
    """The subjects that are stored for it besides its present one."""
    graphs: set[Any] = field(default_factory=set[Any])
    """The names of the graphs that its entries name."""
    placed: set[Any] = field(default_factory=set[Any])
    """The executions whose graph its entries name."""
    unplaced: set[Any] = field(default_factory=set[Any])
    """The executions of entries that do not name the graph, such as `started`. While one runs, none may name it."""
    last_erased: int | None = None
    """The time of the newest erasure that the chain names."""
    pruned_ats: tuple[int, int] | None = None
    """The times of the first and the last of the entries that were pruned with it."""
    ats: list[int] = field(default_factory=list[int])
    """The time of the first entry, and the latest."""
    ended: str | None = None
    names: set[str | None] = field(default_factory=set[str | None])
    """The thread ids that its entries name, None for a thread without one."""
    about: set[str] = field(default_factory=set[str])
    """The subjects that the contents of executions name."""
    executions: set[Any] = field(default_factory=set[Any])
    known: set[Any] = field(default_factory=set[Any])
    """The executions whose contents say whom they were for. The others still run, or their contents are gone."""
    ids: dict[int, int] = field(default_factory=dict[int, int])
    """The id of each entry that an anchor names, by the number of the entry."""
    last_id: int = 0
    hashes: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The hash of each entry that an anchor names, by the number of the entry."""
    first_wrong: int | None = None
    last_seq: int = 0
    last_hash: bytes = b""
    counted: list[int] = field(default_factory=lambda: [0, 0, 0])
    scores: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """The scores that an entry's body and its later judgements name, by the key of the entry."""
    stored_scores: dict[str, Any] = field(default_factory=dict[str, Any])
    seqs: dict[str, int] = field(default_factory=dict[str, int])
    keys: set[str] = field(default_factory=set[str])
    without_contents: list[int] = field(default_factory=list[int])
    erased_upto: int = 0
    """The number of the newest entry whose contents an erasure has removed."""
    emptied_upto: int = 0
    """The number of the newest entry whose contents a pruning has removed."""
    gone_upto: int = 0
    """The number of the newest entry that a pruning has removed itself."""


class Verifier:
    """Reads one ledger, in one snapshot, and collects what does not fit."""

    def __init__(
        self,
        engine: Engine,
        *,
        thread_id: str | None = None,
        anchors: Sequence[Mapping[str, Any]] = (),
        keys: Sequence[Key] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.progress = progress
        self.engine = engine
        self.thread_id = thread_id
        self.elsewhere = anchors
        self.keys = {key.id: key for key in keys}
        self.found = Verification()
        self.threads: dict[int, _Thread] = {}
        self.by_ref: dict[str, _Thread] = {}
        self.counts = Counts()
        self.texts: dict[str, set[Any]] = {"graph": set(), "rules": set()}
        """The digests by which node runs name graphs and rules."""

    def run(self) -> Verification:
        with self.engine.connect() as connection:
            if self.engine.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                self._run(connection)
        self._count_intact()
        return self.found

    def _run(self, connection: Connection) -> None:
        self.uuid = str(connection.exec_driver_sql("SELECT uuid FROM ledgers").scalar())
        self._read_threads(connection)
        anchors = self._read_anchors(connection)
        for anchor in anchors:
            for ref, (seq, _) in anchor["heads"].items():
                if ref in self.by_ref:
                    self.by_ref[ref].hashes[seq] = b""
        self._read_entries(connection)
        graphs = self._read_texts(connection)
        for thread in self.threads.values():
            thread.graphs |= {graphs[digest] for digest in thread.graphs & graphs.keys()}
            self._check_head(thread)
        self._check_anchors(anchors)
        if self.thread_id is None:
            self._check_ledger(connection)
            self._check_rows(connection)
            self._check_counts(connection)

    def _check_ledger(self, connection: Connection) -> None:
        """Compare the ledger's own row: its uuid, which the chains name, holds the time at which it was made."""
        row = connection.exec_driver_sql("SELECT schema, created_at, last_entry FROM ledgers").one()
        newest = connection.exec_driver_sql("SELECT MAX(id) FROM entries").scalar() or 0
        expected = int(SCHEMA.newest), made_at(self.uuid), newest
        names = ("schema", "created_at", "last_entry")
        wrong = [
            name
            for name, value, stored in zip(names, expected, row, strict=True)
            if value is not None and value != stored
        ]
        if wrong and not self._is_any_wrong():
            self._add("ledger", f"{', '.join(wrong)}: the columns of the ledger were changed.")

    def _check_rows(self, connection: Connection) -> None:
        """Rows that belong to no entry, thread or anchor."""
        for table, column, of in (
            ("contents", "entry", "entries"),
            ("scores", "entry", "entries"),
            ("subjects", "thread", "threads"),
            ("anchor_heads", "anchor", "anchors"),
        ):
            lost = connection.exec_driver_sql(
                f"SELECT COUNT(*) FROM {table} WHERE NOT EXISTS (SELECT 1 FROM {of} WHERE {of}.id = {table}.{column})"
            ).scalar()
            if lost:
                self._add("row", f"{table}: {lost} rows belong to nothing in {of}.")

    def _is_any_wrong(self) -> bool:
        return any(thread.first_wrong is not None for thread in self.threads.values())

    def _read_texts(self, connection: Connection) -> dict[str, str]:
        """Compare the graphs and the rules with the digests by which bodies name them. Returns the graphs' names."""
        names: dict[str, str] = {}
        for name, table in (("graph", "graphs"), ("rules", "constitutions")):
            stored = set[Any]()
            for digest, body in connection.exec_driver_sql(f"SELECT digest, body FROM {table}"):
                stored.add(digest)
                if Described.of(str(body)).digest != digest:
                    self._add("text", f"{table}: the text under {digest} is not the one that was stored.")
                elif table == "graphs":
                    names[digest] = _name_of(body)
            for digest in sorted(self.texts[name] - stored - {None}, key=str):
                self._add("text", f"{table}: the text under {digest}, which entries name, is gone.")
        return names

    def _add(self, kind: str, message: str, thread: _Thread | None = None, seq: int | None = None) -> None:
        if thread is not None:
            where = f"thread {thread.name} ({thread.ref[:8]})"
            message = f"{where}, entry {seq}: {message}" if seq is not None else f"{where}: {message}"
            wrong = 1 if seq is None else seq
            if thread.first_wrong is None or wrong < thread.first_wrong:
                thread.first_wrong = wrong
        self.found.findings.append(Finding(kind, thread.ref if thread else None, seq, message))

    # Threads and entries

    def _read_threads(self, connection: Connection) -> None:
        rows = connection.exec_driver_sql(
            "SELECT id, ref, thread_id, head_seq, head_hash, pruned_at, items, denied, asked, first_at, last_at, "
            "outcome, graph, erased_at, thread_id, subject FROM threads"
        )
        for id, ref, name, seq, hash, *others in rows:
            if self.thread_id in (None, name, ref):
                shown = str(ref if name is None else name)
                self.threads[id] = _Thread(id, str(ref), shown, seq, _blob(hash), *others)
        for id, subject in connection.exec_driver_sql("SELECT thread, subject FROM subjects"):
            if id in self.threads:
                self.threads[id].subjects.add(subject)
        self.by_ref = {thread.ref: thread for thread in self.threads.values()}
        self.found.threads = len(self.threads)

    def _read_entries(self, connection: Connection) -> None:
        current: _Thread | None = None
        for row in self._rows(connection):
            thread = self.threads.get(row[1])
            if thread is None:
                if self.thread_id is None:
                    message = f"entry {row[0]} belongs to no thread of this ledger."
                    self._add("unknown thread", message, None, row[2])
                continue
            self.found.entries += 1
            if self.progress is not None and not self.found.entries % _PAGE:
                self.progress(self.found.entries)
            if thread is not current:
                if current is not None:
                    self._check_scores(current)
                current = thread
                thread.last_hash = first_hash(self.uuid, thread.ref)
            self._check_entry(thread, row)
        if current is not None:
            self._check_scores(current)

    def _rows(self, connection: Connection) -> Iterator[Any]:
        names = ", ".join(f"e.{name}" for name in COLUMNS)
        order = "SELECT e.id, e.thread, e.seq, e.key, e.kind, " + names
        where = ""
        if self.thread_id is not None:
            ids = ", ".join(map(str, self.threads)) or "0"
            where = f" WHERE e.thread IN ({ids})"
        result = connection.execution_options(stream_results=True, yield_per=_PAGE).exec_driver_sql(
            f"{order}, e.body, e.hash, c.salt, c.body FROM entries e LEFT JOIN contents c ON c.entry = e.id"
            f"{where} ORDER BY e.thread, e.seq"
        )
        for page in result.partitions(_PAGE):
            scores = self._scores(connection, [row[0] for row in page])
            for row in page:
                yield (*row, scores.get(row[0], {}))

    def _scores(
        self, connection: Connection, entries: Sequence[int]
    ) -> dict[int, dict[str, tuple[Any, ...]]]:
        found: dict[int, dict[str, tuple[Any, ...]]] = defaultdict(dict)
        ids = ", ".join(map(str, entries))
        rows = connection.exec_driver_sql(
            f"SELECT entry, evaluator, score, passed, read, at FROM scores WHERE entry IN ({ids})"
        )
        for entry, evaluator, score, passed, read, at in rows:
            found[entry][evaluator] = (score, _truth(passed), _truth(read), at)
        return found

    def _check_entry(self, thread: _Thread, row: Any) -> None:
        seq: Any = row[2]
        body, hash = row[-5:-3]
        if not isinstance(seq, int):
            self._add("column", f"its number is {seq!r:.40}.", thread, thread.last_seq + 1)
            seq = thread.last_seq + 1
        elif thread.last_seq == 0 and seq != 1:
            self._begin_after_pruning(thread, seq, body)
        if seq != thread.last_seq + 1:
            missing = (
                f"entries {thread.last_seq + 1} to {seq - 1} are missing"
                if seq > thread.last_seq
                else (f"it stands after entry {thread.last_seq}")
            )
            self._add("missing", f"{missing}.", thread, seq)
        expected = next_hash(thread.last_hash, str(body).encode())
        stored = _blob(hash)
        thread.last_seq = seq
        # The next entry is compared with what is stored here, so that one edit is one finding.
        thread.last_hash = stored
        if seq in thread.hashes:
            thread.hashes[seq], thread.ids[seq] = stored, row[0]
        if row[0] <= thread.last_id:
            self._add("column", f"its id {row[0]} is not after that of the entry before it.", thread, seq)
        thread.last_id = row[0]
        try:
            parsed: Any = orjson.loads(body)
            is_canonical = canonical(parsed) == str(body).encode()
        except (ValueError, TypeError):
            parsed, is_canonical = None, False
        if expected != stored or not is_canonical or not isinstance(parsed, dict):
            before = f", or entry {seq - 1} was" if seq > 1 else ""
            self._add("body", f"its body does not fit its hash. It was edited{before}.", thread, seq)
            return
        try:
            self._check_body(thread, row, {**parsed}, seq)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            self._add("body", "its body fits its hash, but is not that of an entry.", thread, seq)

    def _check_body(self, thread: _Thread, row: Any, read: dict[str, Any], seq: int) -> None:
        salt, content, scores = row[-3:]
        columns = columns_of(read)
        self._check_columns(thread, row, read, columns)
        self._check_contents(thread, read, seq, salt, content)
        own, of = str(read.get("key")), str(read.get("of"))
        thread.keys.add(own)
        key = of if of in thread.keys else own  # of a late judgement: its item, if it is in this thread
        scored = scored_of(read.get("evals") or ())
        named = {name: (score, passed, was_read, read.get("at")) for name, score, passed, was_read in scored}
        if named or scores:
            thread.scores.setdefault(key, {}).update(named)
            thread.seqs.setdefault(key, seq)
            if scores:
                thread.stored_scores[own] = dict(scores)
        self._add_counts(thread, read, columns, scored, content)

    def _begin_after_pruning(self, thread: _Thread, seq: Any, body: Any) -> None:
        """Begin at the entry that says that those before it were pruned: it names the hash that it follows."""
        try:
            said: Any = orjson.loads(body)
            head = bytes.fromhex(said["head"])
            count, since, until = int(said["entries"]), int(said["since"]), int(said["until"])
            is_right = (said["kind"], said["upto"] + 1, said["at"]) == ("pruned", seq, thread.pruned_at)
        except (ValueError, TypeError, KeyError):
            return
        if is_right:
            thread.last_seq = thread.gone_upto = seq - 1
            thread.last_hash = head
            if seq - 1 in thread.hashes:
                thread.hashes[seq - 1] = head
            self.found.pruned += count
            thread.pruned_ats = since, until

    def _check_columns(
        self, thread: _Thread, row: Any, body: Mapping[str, Any], expected: Sequence[Any]
    ) -> None:
        _, _, seq, key, kind = row[:5]
        columns = row[5 : 5 + len(COLUMNS)]
        own = {"thread": thread.ref, "ledger": self.uuid, "seq": seq, "key": key, "kind": kind}
        wrong = [name for name, value in own.items() if body.get(name) != value]
        if expected != columns:
            pairs = zip(COLUMNS, expected, columns, strict=True)
            wrong += [name for name, of_body, value in pairs if of_body != value]
        if wrong:
            self._add("column", f"{', '.join(wrong)}: the columns do not match the body.", thread, seq)

    def _check_contents(
        self, thread: _Thread, body: Mapping[str, Any], seq: int, salt: Any, content: Any
    ) -> None:
        committed = body.get("content")
        if content is None:
            if committed is not None:
                thread.without_contents.append(seq)
        elif committed is None or commitment(_blob(salt), str(content).encode()) != committed:
            self._add("contents", "its contents are not those that it was written with.", thread, seq)

    def _check_scores(self, thread: _Thread) -> None:
        for key, expected in thread.scores.items():
            if thread.stored_scores.get(key, {}) != expected:
                self._add("scores", "its scores do not match its body.", thread, thread.seqs[key])
        thread.scores, thread.stored_scores, thread.seqs, thread.keys = {}, {}, {}, set()

    def _add_counts(
        self,
        thread: _Thread,
        body: Mapping[str, Any],
        columns: Sequence[Any],
        scored: Sequence[Scored],
        content: Any,
    ) -> None:
        if body["kind"] not in ("erasure", "pruned", "gap"):
            thread.executions.add(body.get("execution"))
            # The node runs of a subgraph name that; those of a function name none.
            graph = body.get("graph") if body["kind"] in _PLACED and not body.get("namespace") else None
            (thread.unplaced if graph is None else thread.placed).add(body.get("execution"))
            thread.graphs |= {graph} - {None}
            if body.get("run") == thread.ref:  # a thread without an id is named by its run
                thread.names.add(None)
        if body["kind"] in ITEMS:
            self.texts["graph"].add(body.get("graph"))
            self.texts["rules"].add(body.get("rules"))
            verdict = columns[VERDICT]
            thread.counted[0] += 1
            thread.counted[1] += verdict == "deny"
            thread.counted[2] += verdict == "ask"
        if body["kind"] == "erasure":
            thread.erased_upto = max(thread.erased_upto, int(body.get("upto", 0)))
            thread.last_erased = body["at"]
            thread.about, thread.executions, thread.known = set(), set(), set()
        if body["kind"] == "pruned":
            thread.emptied_upto = max(thread.emptied_upto, int(body.get("upto", 0)))
        if body["kind"] == "gap":
            self.found.gaps += 1
            self.found.not_recorded += int(body.get("n", 0))
            self.found.missed.append(_missed(thread.name, body, content))
        if body["kind"] == "execution":
            thread.ended = str(body.get("outcome"))
            self._add_names(thread, body, content)
        number: int = body["at"]
        if body["kind"] not in ("erasure", "pruned"):  # a thread is as old as what happened in it
            first, latest = thread.ats or (number, number)
            thread.ats = [first, max(latest, number)]
        at = time_of(number)
        self.found.since = at if self.found.since is None else min(self.found.since, at)
        self.found.until = at if self.found.until is None else max(self.found.until, at)
        self.counts.add(body, columns, scored)

    def _add_names(self, thread: _Thread, body: Mapping[str, Any], content: Any) -> None:
        """Add what the contents of an execution say about its thread and its subject, unless it was redacted."""
        found: Any = {} if content is None else orjson.loads(content)
        if not isinstance(found, dict) or "renamed" in found:
            return
        name, subject = names_in(found)
        if _is_whole(name):
            thread.names.add(name)
        if "subject" in found and (subject is None or _is_whole(subject)):
            thread.known.add(body.get("execution"))
            if subject:  # an empty one is nobody, and has no column
                thread.about.add(subject)

    def _check_head(self, thread: _Thread) -> None:
        if any(seq <= thread.erased_upto for seq in thread.without_contents):
            self.found.erased_threads += 1
        for seq in thread.without_contents:
            if seq <= thread.erased_upto:
                self.found.erased += 1
            elif seq <= thread.emptied_upto:
                self.found.pruned += 1
            else:
                self._add("contents", "its contents are gone without an erasure.", thread, seq)
        if thread.pruned_at is not None and not thread.gone_upto:
            self._add("thread", "its entries are gone, and no entry says that they were pruned.", thread)
            return
        expected = thread.last_hash or first_hash(self.uuid, thread.ref)
        if thread.head_seq != thread.last_seq:
            self._add(
                "head", f"its head is entry {thread.head_seq}, its newest entry is {thread.last_seq}.", thread
            )
        elif thread.head_hash != expected:
            self._add(
                "head", f"its head does not have the hash of its newest entry, {thread.last_seq}.", thread
            )
        if thread.first_wrong is None and (wrong := _unlike(thread)):
            self._add("column", f"{', '.join(wrong)}: the columns do not match its entries.", thread)
        counted = [thread.items, thread.denied, thread.asked]
        if thread.first_wrong is None and thread.counted != counted and thread.pruned_at is None:
            self._add(
                "counts", "its counts of items, denials and questions do not match its entries.", thread
            )

    # Anchors

    def _read_anchors(self, connection: Connection) -> list[dict[str, Any]]:
        refs = {row[0]: str(row[1]) for row in connection.exec_driver_sql("SELECT id, ref FROM threads")}
        heads: dict[int, dict[str, tuple[int, bytes]]] = defaultdict(dict)
        rows = connection.exec_driver_sql("SELECT anchor, thread, seq, hash FROM anchor_heads")
        for anchor, thread, seq, hash in rows:
            heads[anchor][refs.get(thread, f"#{thread}")] = (_whole(seq), _blob(hash))
        rows = connection.exec_driver_sql(
            "SELECT id, upto, at, threads, root, previous, key_id, signature FROM anchors ORDER BY id"
        )
        return [{"line": _stored_line(self.uuid, row), "heads": heads.get(row[0], {})} for row in rows]

    def _check_anchors(self, anchors: Sequence[dict[str, Any]]) -> None:
        previous = ""
        heads_of: dict[str, int] = {}
        broken = False
        elsewhere = {line["n"]: line for line in self.elsewhere}
        for number, anchor in enumerate(anchors, 1):
            line = anchor["line"]
            name = f"anchor {line['n']}"
            if line["n"] != number or line["previous"] != previous:
                self._add("anchor", f"{name} does not follow the one before it.")
                broken = True
            previous = anchor_hash(line)
            heads = [Head(ref, seq, hash) for ref, (seq, hash) in anchor["heads"].items()]
            if merkle_root(heads) != line["root"] or len(heads) != line["threads"]:
                self._add("anchor", f"{name} does not fit the heads that are stored with it.")
                broken = True
            if (line.get("key") is None) != (line.get("signature") is None):
                self._add("signature", f"{name} has a signature without a key, or a key without one.")
                broken = True
            broken |= not self._is_signed_well(line, name)
            broken |= not self._reaches(anchor, name)
            if self.thread_id is None and not self._ends_at(anchor) and not self._is_any_wrong():
                self._add("anchor", f"{name} does not name the newest entry of its threads.")
            if not broken:
                heads_of |= {head.ref: head.seq for head in heads}
                self.found.anchor = line
                self.found.signed_by = line.get("key") or self.found.signed_by
        known = {anchor["line"]["n"]: anchor for anchor in anchors}
        for n, line in sorted(elsewhere.items()):
            name = f"external anchor {n}"
            if n not in known:
                self._add("anchor", f"{name} is not in this database: its newest part was removed.")
            elif anchor_hash(known[n]["line"]) != anchor_hash(line):
                self._add("anchor", f"{name} differs from the one in this database.")
            else:
                self._is_signed_well(line, name)
        if elsewhere and (missing := sorted(known.keys() - elsewhere.keys())):
            newest = max(elsewhere)
            cut = f" A cut of entries after anchor {newest} stays unnoticed." if missing[-1] > newest else ""
            _log.warning(
                "verify: of the %d anchors of this ledger, those given lack %d: %s.%s",
                len(known),
                len(missing),
                _ranges(missing),
                cut,
            )
        # Counted by the heads, which the root covers: nothing checks the number of the last entry in an anchor.
        self.found.anchored = sum(
            max(min(heads_of.get(thread.ref, 0), thread.last_seq) - thread.gone_upto, 0)
            for thread in self.threads.values()
        )

    def _is_signed_well(self, line: Mapping[str, Any], name: str) -> bool:
        if not self.keys:
            return True
        key = self.keys.get(str(line.get("key")))
        if key is None:
            by = (
                f"signed by {line['key']}, which is not one of the known keys"
                if line.get("key")
                else "not signed"
            )
            self._add("signature", f"{name} is {by}.")
            return False
        if not key.verifies(signed_part(line), str(line.get("signature"))):
            self._add("signature", f"{name} has a wrong signature.")
            return False
        return True

    def _reaches(self, anchor: Mapping[str, Any], name: str) -> bool:
        fine = True
        for ref, (seq, hash) in anchor["heads"].items():
            thread = self.by_ref.get(ref)
            if thread is None:
                if self.thread_id is None:
                    self._add("thread", f"{name} knows thread {ref[:8]}, which is gone.")
                    fine = False
            elif seq < thread.gone_upto:
                continue  # it was pruned
            elif thread.last_seq < seq:
                self._add(
                    "cut",
                    f"{name} knows {seq} entries, there are {thread.last_seq}. The newest were removed.",
                    thread,
                )
                fine = False
            elif thread.hashes.get(seq) != hash:
                self._add("anchor", f"it is not the entry that {name} knows.", thread, seq)
                fine = False
        return fine

    def _ends_at(self, anchor: Mapping[str, Any]) -> bool:
        """Whether the newest of the entries that an anchor knows is the one that it names."""
        upto, heads = anchor["line"]["upto"], anchor["heads"]
        ids = [self.by_ref[ref].ids.get(seq) for ref, (seq, _) in heads.items() if ref in self.by_ref]
        known = [id for id in ids if id is not None]
        # Others were pruned.
        newest = max(known, default=0)
        return newest == upto or (newest < upto and len(known) < len(ids))

    # Counts

    def _check_counts(self, connection: Connection) -> None:
        pruned = [each.last_at for each in self.threads.values() if each.pruned_at is not None]
        least = max((at // HOUR for at in pruned if isinstance(at, int)), default=-1)
        stored: dict[Count, Totals] = {
            (hour if isinstance(hour, int) else least + 1, kind, name, value): Totals(*amounts)
            for hour, kind, name, value, *amounts in connection.exec_driver_sql(
                "SELECT hour, kind, name, value, n, total, least, most FROM rollups"
            )
        }
        counted = self.counts.totals()
        wrong = {
            count
            for count in stored.keys() | counted.keys()
            if not _alike(stored.get(count), counted.get(count), whole=count[0] > least)
        }
        if wrong and not self._is_any_wrong():
            kinds = ", ".join(sorted({str(count[1]) for count in wrong}))
            self._add("rollups", f"{len(wrong)} hourly counts ({kinds}) do not match the entries.")

    def _count_intact(self) -> None:
        for thread in self.threads.values():
            whole = thread.last_seq if thread.first_wrong is None else thread.first_wrong - 1
            self.found.intact_entries += max(whole - thread.gone_upto, 0)


def _alike(stored: Totals | None, counted: Totals | None, *, whole: bool) -> bool:
    """Whether both are there and equal. Sums may differ a little: their order was another. If entries of the
    hour were pruned, more may be stored than is counted.
    """
    if stored is not None and not whole:
        return counted is None or _whole(stored.n) >= counted.n
    if stored is None or counted is None:
        return False
    same = (stored.n, stored.least, stored.most) == (counted.n, counted.least, counted.most)
    total: Any = stored.total  # an edit may have put anything there
    if not isinstance(total, float | int):
        return False
    # The sum that was counted is the measure: an infinite one in the table would be near to every sum.
    is_near = abs(stored.total - counted.total) <= 1e-6 * max(1.0, abs(counted.total))
    return same and (stored.total == counted.total or is_near)


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as "1 to 3, 7, 9 to 11", of which the first ranges are shown."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:_MOST_RANGES]]
    return ", ".join(shown) + (", ..." if len(ranges) > _MOST_RANGES else "")


def _is_whole(name: Any) -> bool:
    """Whether a name in contents is the name itself: no part of it was redacted or cut."""
    return isinstance(name, str) and "[secret" not in name


def _name_of(graph: Any) -> str:
    """The name of a graph in its text; "" in a text that the ledger has not written."""
    try:
        return str(orjson.loads(graph)["name"])
    except (LookupError, TypeError, ValueError):
        return ""


def _unlike(thread: _Thread) -> list[str]:
    """The columns of a thread that are not what its entries say."""
    has_name = thread.last_erased is None and thread.pruned_at is None
    subjects = {thread.subject, *thread.subjects} - {None}
    fits = {
        "thread_id": thread.names <= {thread.thread_id} if has_name else thread.thread_id is None,
        "subject": thread.about <= subjects
        and (thread.subject is not None or not subjects)
        and (subjects == thread.about or not thread.executions <= thread.known),
    }
    if thread.pruned_ats is not None:
        since, until = thread.pruned_ats
        latest = max([until, *thread.ats[1:]])
        fits["first_at"] = _is_between(since, thread.first_at, latest)
        fits["last_at"] = _is_between(since, thread.last_at, latest)
    elif thread.ats:
        fits["first_at"] = thread.first_at == thread.ats[0]
        fits["last_at"] = thread.last_at == thread.ats[1]
        fits["outcome"] = thread.outcome == thread.ended
        is_known = thread.graphs and thread.unplaced <= thread.placed
        fits["graph"] = not is_known or thread.graph in thread.graphs
        fits["erased_at"] = thread.erased_at == thread.last_erased
    return [name for name, does_fit in fits.items() if not does_fit]


def _is_between(first: int, at: Any, last: int) -> bool:
    return isinstance(at, int) and first <= at <= last


def _blob(value: Any) -> bytes:
    """The bytes of a column. Anything else that an edit has put there fits no hash."""
    if isinstance(value, memoryview):
        return value.tobytes()
    return value if isinstance(value, bytes) else b""


def _whole(value: Any) -> int:
    """The number in a column; -1, which no number is, for anything else."""
    return value if isinstance(value, int) else -1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _stored_line(ledger: str, row: Sequence[Any]) -> dict[str, Any]:
    """The line of a row of `anchors`, whatever an edit has put into its columns."""
    parts: list[Any] = [*map(_whole, row[:4]), *map(_text, row[4:6])]
    parts += [None if each is None else _text(each) for each in row[6:]]
    return line_of(ledger, *parts)


def _truth(value: Any) -> Any:
    """The truth value in a column; SQLite keeps it as 0 or 1, and anything else as it is."""
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


def _missed(thread: str, body: Mapping[str, Any], content: Any) -> Missed:
    found: Any = {} if content is None else orjson.loads(content)
    return Missed(
        thread,
        int(body.get("n", 0)),
        int(body.get("without_contents", 0)),
        time_of(body["since"]),
        time_of(body["until"]),
        str(found.get("reason", "")) if isinstance(found, dict) else "",  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    )
