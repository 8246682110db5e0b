"""The journal of a run: one JSON line for each fact, written when it happens.

    .arbiter/evals/<run id>/run.json        the suite as it was read, its identity and options
                            journal.jsonl   session, spent, nodes, answer, judgement, score, case and end lines
                            blobs/          outputs and node runs over 64 KB, by hash

A line is flushed when it is written, so a killed process loses nothing but a torn last line. Reports are made
from these files alone, and a run is resumed from them: a case with a `case` line is done, one with an
`answer` is judged without calling the target again. If two lines are about the same thing, the later one
counts. A `spent` line is written when a call of a model begins and when its usage is known, so that the sums
have what a killed process bought.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from arbiter._values.files import write_whole
from arbiter._values.kinds import is_mapping
from arbiter.errors import (
    ArbiterError,
    ArbiterWarning,
    ConfigurationError,
    PackError,
    callers,
    describe,
    nearest,
)
from arbiter.harness.canonical import canonical, compact, listed
from arbiter.harness.cases import Case
from arbiter.harness.recordings import Asked
from arbiter.harness.results import CUT, CaseResult, CaseRun
from arbiter.harness.scores import Score, plain_scale, scale_from
from arbiter.harness.usage import NOTHING, Spent, plain_purses
from arbiter.harness.writing import lock, why_unwritable
from arbiter.models import JudgeReply, judgement_of

VERSION = 1
FOLDER = Path(".arbiter/evals")
EVALUATIONS, EXPECTATIONS = "", "expect."
"""The sources of the scores of node evaluators and of assertions, beside the names of scorers."""
_LARGE = 64 * 1024
_SYNC = 0.5
"""Seconds between two writes to the disk itself."""
NodeRuns = Sequence[Sequence[Mapping[str, Any]]]
"""The node runs of a case, superstep by superstep, as JSON-able data."""
_SCORE = TypeAdapter(Score).serializer


def score_to_dict(score: Score) -> dict[str, Any]:
    """A score as JSON-able data: its name, and the fields that differ from their defaults."""
    found: dict[str, Any] = _SCORE.to_python(score, exclude_defaults=True, warnings=False)
    if "scale" in found:
        found["scale"] = plain_scale(score.scale)
    if "usage" in found:  # LangChain adds usages in an order of keys that differs from process to process
        found["usage"] = json.loads(canonical(score.usage))
    return found


def lasting_score(score: Score) -> dict[str, Any]:
    """As `score_to_dict`, without what differs from run to run."""
    found = score_to_dict(score)
    return {name: value for name, value in found.items() if name not in ("duration", "item_id")}


def score_from(data: Mapping[str, Any]) -> Score:
    found = dict(data)
    if "scale" in found:
        found["scale"] = scale_from(found["scale"])
    if "votes" in found:
        found["votes"] = tuple(found["votes"])
    if "elements" in found:
        found["elements"] = tuple((name, value) for name, value in found["elements"])
    return Score(**found)


def answer_to_dict(done: CaseRun, output: Any, thread_id: str) -> dict[str, Any]:
    """The answer of the target as JSON-able data, without what is empty. `output` is JSON."""
    line: dict[str, Any] = {"case": done.case.id, "repeat": done.repeat, "status": done.status}
    if output is not None:
        line["output"] = output
    if not _is_same(output, done.output):
        line["exact"] = False
    others = {
        "error": done.error,
        "error_types": done.error_types,
        "policies": done.policies,
        "trajectory": done.visits,
        "usage": dict(done.usage),
    }
    line |= {name: part for name, part in others.items() if part}
    if done.usd != 0.0:
        line["usd"] = done.usd
    return {**line, "seconds": done.duration, "thread_id": thread_id}


def _is_same(written: Any, output: Any) -> bool:
    """True if the JSON says all about an output. An array or a table, which compares each of its parts, is not JSON."""
    try:
        return bool(written == output)
    except Exception:
        return False


def judgement_line(asked: Asked, reply: JudgeReply) -> dict[str, Any]:
    """An answer of a judge as JSON-able data, with the case that it is about."""
    place = {"key": asked.key, "case": asked.place.case, "repeat": asked.place.repeat, "row": asked.row}
    return {**place, **judgement_of(asked.request, reply)}


@dataclass(slots=True)
class Kept:
    """The lines of a case × repeat: its answer, scores by their source, and its `case` line."""

    answer: Mapping[str, Any] | None = None
    scores: dict[str, tuple[Score, ...]] = field(default_factory=dict[str, "tuple[Score, ...]"])
    done: Mapping[str, Any] | None = None

    @property
    def was_cut(self) -> bool:
        """True if the time of the run was over before that of the case, which is then not done."""
        answer = self.answer
        return answer is not None and answer["status"] == "timeout" and answer.get("error") == CUT

    def result(self) -> CaseResult | None:
        """The result, if the case is done."""
        if self.answer is None or self.done is None:
            return None
        answer = self.answer
        return CaseResult(
            case_id=answer["case"],
            repeat=answer["repeat"],
            status=answer["status"],
            output=answer.get("output"),
            error=answer.get("error"),
            policies=tuple(answer.get("policies", ())),
            as_expected=self.done["as_expected"],
            trajectory=answer.get("trajectory", ()),
            scores=tuple(score for scores in self.scores.values() for score in scores),
            usage=self.done.get("usage", {}),
            duration=answer.get("seconds", 0.0),
            thread_id=answer.get("thread_id", ""),
        )

    def without_errors(self) -> Kept:
        """The same without the scores that are errors, or without anything if the target failed."""
        if self.answer is not None and self.answer["status"] in ("failed", "timeout", "lost"):
            return Kept()
        good = {
            by: scores
            for by, scores in self.scores.items()
            if not any(score.outcome in ("error", "timeout") for score in scores)
        }
        return self if len(good) == len(self.scores) else Kept(self.answer, good)


@dataclass(slots=True)
class Bought:
    """The `spent` lines of a case × repeat: amounts by purse and model, and calls by purse whose answers never came."""

    spent: dict[str, dict[str, Spent]] = field(default_factory=dict[str, "dict[str, Spent]"])
    running: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, line: Mapping[str, Any]) -> None:
        self.running[line["purse"]] = line.get("running", 0)
        if "model" in line:
            self._add(line["purse"], line["model"], Spent.from_dict(line))

    def give_up(self) -> None:
        """The process has ended: what runs has no answer."""
        for purse, calls in self.running.items():
            if calls:
                self._add(purse, "", Spent.unanswered(calls))
        self.running.clear()

    def _add(self, purse: str, model: str, spent: Spent) -> None:
        models = self.spent.setdefault(purse, {})
        models[model] = models.get(model, NOTHING) + spent


@dataclass(slots=True, kw_only=True)
class Written:
    """The files of a run, as read: `head` is run.json, `kept` has its lines by case and repeat."""

    folder: Path
    head: Mapping[str, Any]
    kept: dict[tuple[str, int], Kept] = field(default_factory=dict[tuple[str, int], Kept])
    judgements: dict[tuple[str, str], Mapping[str, Any]] = field(
        default_factory=dict[tuple[str, str], Mapping[str, Any]]
    )
    """By their key and case."""
    bought: dict[tuple[str, int], Bought] = field(default_factory=dict[tuple[str, int], Bought])
    """The amounts of each case and repeat that called models."""
    sessions: int = 0
    end: Mapping[str, Any] | None = None
    seq: int = 0
    began: float = 0.0
    last: float = 0.0
    whole: int = 0
    """The bytes of the journal up to its last whole line."""

    @classmethod
    def read(cls, folder: Path) -> Written:
        """Read the files of a run. Raises `PackError` for a broken line, and warns of a torn last one."""
        written = cls(folder=folder, head=head_of(folder))
        path = folder / "journal.jsonl"
        for number, raw in enumerate(_lines(path), 1):
            if not raw.endswith(b"\n"):
                warnings.warn(
                    f"{path}:{number}: the last line is torn, because the process was killed; it is left out.",
                    ArbiterWarning,
                    stacklevel=callers(),
                )
                break
            line = _parsed(raw, path, number)
            try:
                written._add(line)
            except OTHER_FORM:
                raise _no_line(path, number) from None
            written.whole += len(raw)
        written._give_up()
        return written

    def _add(self, line: Mapping[str, Any]) -> None:
        self.seq, self.last = max(self.seq, line["seq"]), line["at"]
        self.began = self.began or self.last
        if line["kind"] == "session":
            self.sessions, self.end = self.sessions + 1, None
            self._give_up()
        elif line["kind"] == "end":
            self.end = line
        elif line["kind"] == "judgement":
            self.judgements[line["key"], line["case"]] = line
        elif line["kind"] == "spent":
            self.bought.setdefault((line["case"], line["repeat"]), Bought()).add(line)
        else:
            _keep(self.kept.setdefault((line["case"], line["repeat"]), Kept()), line, self.folder)

    def _give_up(self) -> None:
        for each in self.bought.values():
            each.give_up()

    def unfinished(self) -> list[Mapping[str, Any]]:
        """The usage of the cases that are not done, by purse and model."""
        done = {place for place, kept in self.kept.items() if kept.done is not None}
        return [plain_purses(bought.spent) for place, bought in self.bought.items() if place not in done]

    def results(self) -> list[CaseResult]:
        """The results of the cases that are done, in the order of the suite."""
        places = {case["id"]: place for place, case in enumerate(self.head["cases"])}
        found = [result for kept in self.kept.values() if (result := kept.result()) is not None]
        return sorted(found, key=lambda result: (places.get(result.case_id, len(places)), result.repeat))


def head_of(folder: Path) -> Mapping[str, Any]:
    path = folder / "run.json"
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from None
    if not is_mapping(head) or head.get("v") != VERSION:
        found = head.get("v") if is_mapping(head) else head
        raise ConfigurationError(f"{path} has the format {found!r:.40}; expected {VERSION}.")
    return head


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            yield from stream
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}.") from None


def _parsed(raw: bytes, path: Path, number: int) -> Mapping[str, Any]:
    try:
        line: dict[str, Any] = json.loads(raw)
        needed = ("seq", "at") if line["kind"] in ("session", "end") else ("seq", "at", "case", "repeat")
        if line["v"] == VERSION and all(name in line for name in needed):
            return line
    except OTHER_FORM:
        pass
    raise _no_line(path, number)


OTHER_FORM = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""The exceptions of reading JSON that has another form than what was written."""


def _no_line(path: Path, number: int) -> PackError:
    said = "expected a line of a journal. Without it the run cannot go on; start a new one"
    return PackError.at(str(path), number, said)


@contextmanager
def reading(*folders: Path) -> Generator[None]:
    """Inside, the files of some runs are read, shown or compared. If they have another form than what was written,
    because somebody has edited them, raises a `ConfigurationError` that names the runs."""
    try:
        yield
    except ArbiterError:
        raise
    except OTHER_FORM as error:
        names = " or ".join(map(str, folders))
        raise ConfigurationError(
            f"the files of the run {names} are not as it wrote them: {describe(error)}. Start a new run."
        ) from error


def _keep(kept: Kept, line: Mapping[str, Any], folder: Path) -> None:
    if line["kind"] == "answer":
        kept.answer, kept.done = line, None
        kept.scores.clear()
        if "blob" in line:
            kept.answer = {**line, "output": _blob(folder, line["blob"])}
    elif line["kind"] == "score":
        kept.scores.pop(line["by"], None)
        kept.scores[line["by"]] = tuple(map(score_from, line["scores"]))
    elif line["kind"] == "case":
        kept.done = line


def _blob(folder: Path, name: str) -> Any:
    return json.loads((folder / "blobs" / name).read_text(encoding="utf-8"))


def node_runs_in(folder: Path) -> dict[tuple[str, int], list[list[Mapping[str, Any]]]]:
    """The node runs of each case × repeat that a governed graph ran, superstep by superstep."""
    path = folder / "journal.jsonl"
    found: dict[tuple[str, int], list[list[Mapping[str, Any]]]] = {}
    for number, raw in enumerate(_lines(path), 1):
        if raw.endswith(b"\n") and b'"kind":"nodes"' in raw[:200]:
            line = _parsed(raw, path, number)
            nodes = _blob(folder, line["blob"]) if "blob" in line else line["nodes"]
            found[line["case"], line["repeat"]] = nodes
    return found


# Writing ------------------------------------------------------------------------------------------


class Journal:
    """Writes the lines of a run. Thread-safe. One process writes at a time."""

    def __init__(self, folder: Path, *, seq: int = 0, whole: int = 0) -> None:
        self.folder = folder.absolute()  # a target may change the working directory
        self._lock = threading.Lock()
        self._seq = seq
        self._synced = time.monotonic()
        self._guard = _locked(folder)
        self._torn = 0
        """The number of the error for which the last line is not whole, such as a full disk; 0 if it is."""
        self._file = (folder / "journal.jsonl").open("a+b", buffering=0)
        if self._file.tell() > whole:
            self._file.seek(whole)
            # A torn line has no end.
            if b"\n" in self._file.read():
                self.close()
                raise ConfigurationError(
                    f"the run {folder.name} went on in another process after it was read. Resume it again."
                )
            self._file.truncate(whole)

    @classmethod
    def begin(
        cls, folder: Path, run_id: str, head: Mapping[str, Any], cases: Sequence[Case], total: int
    ) -> Journal:
        """Make the folder of a run of these cases, `total` with their repeats, and begin its first session.

        Raises `ConfigurationError` if it cannot be written.
        """
        place = folder / run_id
        try:
            place.mkdir(parents=True)
            ignored = folder / ".gitignore"
            if not ignored.exists():
                ignored.write_text("*\n", encoding="utf-8")
            with ExitStack() as undo:
                journal = cls(place)
                undo.callback(journal.close)
                journal.session(head, total)
                # The last one: a folder without it is no run.
                journal.describe(head, cases)
                undo.pop_all()
            return journal
        except OSError as error:
            raise ConfigurationError(f"{place} cannot be written: {why_unwritable(place, error)}.") from None

    def describe(self, head: Mapping[str, Any], cases: Sequence[Case]) -> None:
        """Write run.json. A session that goes on replaces it: the gate and `must_pass` may be others now."""
        text = compact({"v": VERSION, "run_id": self.folder.name, **head}).decode()
        text = f'{text[:-1]},"cases":{listed(cases, Case.to_dict)}}}'
        write_whole(self.folder / "run.json", text)

    def session(self, head: Mapping[str, Any], total: int) -> None:
        """Write that a session of a run of `total` cases × repeats begins."""
        self.write("session", {"suite": head["suite"], "target": head["target"], "total": total})

    def write(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write a line, and flush it."""
        self._write((kind, compact(body)))

    def _write(self, *lines: tuple[str, bytes]) -> None:
        """Write lines, each a kind and the JSON of a mapping that is not empty, and flush them together."""
        if self._file.closed:  # a call that was left behind ends here, before it buys anything else
            raise TimeoutError(f"the run {self.folder.name} has ended meanwhile")
        with self._lock:
            at, text = time.time(), b""
            for kind, body in lines:
                self._seq += 1
                head = b'{"v":%d,"seq":%d,"at":%.3f,"kind":"%b",' % (VERSION, self._seq, at, kind.encode())
                text += b"%b%b\n" % (head, body[1:])
            is_due = (now := time.monotonic()) - self._synced > _SYNC
            if is_due:
                self._synced = now
        # Outside of the lock: a write lets go of the GIL, and all other threads would queue for the lock meanwhile.
        # The file is in append mode, so lines of several threads do not mix.
        try:
            if self._torn:  # what followed would be a part of the torn line
                raise OSError(self._torn, os.strerror(self._torn))
            if (written := self._file.write(text)) != len(text):
                self._torn = errno.ENOSPC
                try:
                    self._file.write(text[written:])
                except OSError as error:  # only now it says why
                    self._torn = error.errno or errno.ENOSPC
                raise OSError(self._torn, os.strerror(self._torn))
            if is_due:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"the journal of the run {self.folder.name} cannot be written: {error.strerror or error}. "
            f"What it has so far stays; go on with --resume {self.folder.name}",
        )

    def answer(self, line: Mapping[str, Any], nodes: NodeRuns | None = None) -> None:
        """Write the answer of the target, after the node runs of its case if there are some: a case that has an
        answer is not run again."""
        written = ("answer", self._with_blob(line, "output"))
        if nodes is None:
            self._write(written)
        else:
            runs = {"case": line["case"], "repeat": line["repeat"], "nodes": nodes}
            self._write(("nodes", self._with_blob(runs, "nodes")), written)

    def _with_blob(self, body: Mapping[str, Any], large: str) -> bytes:
        """The JSON of the body, with the name of a blob in place of the value `large` if that is over 64 KB."""
        text = compact(body)
        if len(text) <= _LARGE or large not in body or len(data := compact(body[large])) <= _LARGE:
            return text
        blob = hashlib.sha256(data).hexdigest()
        place = self.folder / "blobs" / blob
        try:
            # An answer that has the same blob keeps it, also if the disk is full or the process is killed.
            if not place.exists() or place.stat().st_size != len(data):
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(data)
        except OSError as error:
            raise self._unwritable(error) from error
        return compact({name: value for name, value in body.items() if name != large} | {"blob": blob})

    def scores(self, case_id: str, repeat: int, by: str, scores: Sequence[Score]) -> None:
        """Write the scores of one source: a scorer, or all node evaluators."""
        self._write(("score", _scores(case_id, repeat, by, scores)))

    def case(self, result: CaseResult, last: tuple[str, Sequence[Score]] | None = None) -> None:
        """Write that a case is done, after the scores of its last source."""
        line: dict[str, Any] = {
            "case": result.case_id,
            "repeat": result.repeat,
            "as_expected": result.as_expected,
        }
        if result.usage:
            line["usage"] = dict(result.usage)
        written = ("case", compact(line))
        if last is None:
            self._write(written)
        else:
            self._write(("score", _scores(result.case_id, result.repeat, *last)), written)

    def spent(self, case_id: str, repeat: int, purse: str, model: str, spent: Spent, running: int) -> None:
        """Write the amount of a call, or that one has begun. `running` is the number of calls without an answer.

        An answer that was replayed is left out: a session that goes on replays it again.
        """
        if spent.replayed_calls:
            return
        line: dict[str, Any] = {"case": case_id, "repeat": repeat, "purse": purse}
        if spent != NOTHING:
            amounts = spent.to_dict().items()
            line |= {"model": model, **{name: amount for name, amount in amounts if amount != 0}}
        if running:
            line["running"] = running
        self.write("spent", line)

    def judgement(self, asked: Asked, reply: JudgeReply) -> None:
        """Write an answer of a judge that was paid for."""
        self.write("judgement", judgement_line(asked, reply))

    def close(self) -> None:
        with self._lock:
            if not self._file.closed:
                with self._guard, self._file:  # both are closed, also if the disk is full
                    os.fsync(self._file.fileno())


def _scores(case_id: str, repeat: int, by: str, scores: Sequence[Score]) -> bytes:
    """The line of the scores of one source."""
    return compact({"case": case_id, "repeat": repeat, "by": by, "scores": [*map(score_to_dict, scores)]})


def _locked(folder: Path) -> IO[str]:
    """Hold the lock of a run. Raises `ConfigurationError` that names the process which has it."""
    guard = (folder / "lock").open("a+")
    try:
        lock(guard)
    except BlockingIOError:
        guard.seek(0)
        owner = guard.read().strip()
        guard.close()
        raise ConfigurationError(f"the run {folder.name} is in use by process {owner}.") from None
    guard.seek(0)
    guard.truncate()
    guard.write(str(os.getpid()))
    guard.flush()
    return guard


def state_without_end(folder: Path) -> str:
    """The state of a run whose journal has no end: "running" or "killed"; on Windows, where runs have no lock,
    "running or killed"."""
    try:
        import fcntl

        with (folder / "lock").open() as guard:
            fcntl.flock(guard, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except ImportError:
        return "running or killed"
    except BlockingIOError:
        return "running"
    except OSError:  # no lock, or a folder system without locks
        pass
    return "killed"


# Finding ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run in a list: `done` of `total` cases × repeats are finished, `state` says how it ended. Journals of older
    versions have no total; it is then `done`."""

    suite: str
    target: str
    done: int
    total: int
    state: str


def summary_of(folder: Path) -> Summary:
    """The summary of a run, from the first and the last line of its journal. Only of a run without an end are the
    others read.

    Raises `ConfigurationError` for files that cannot be read.
    """
    path, state = folder / "journal.jsonl", state_without_end(folder)
    first, last = _ends(path)
    begun, end = _parsed(first, path, 1), _end_in(last)
    with reading(folder):
        if end is not None:
            done, state = int(end.get("done", 0)), end["stopped"] or "finished"
        else:
            lines = (raw for raw in enumerate(_lines(path), 1) if b'"kind":"case"' in raw[1][:200])
            cases = [_parsed(raw, path, number) for number, raw in lines]
            done = len({(line["case"], line["repeat"]) for line in cases})
    return Summary(
        suite=begun.get("suite", ""),
        target=begun.get("target", ""),
        done=done,
        total=begun.get("total", done),
        state=state,
    )


def _end_in(raw: bytes) -> Mapping[str, Any] | None:
    """The line if it is the end of a session."""
    try:
        line: Any = json.loads(raw)
    except (ValueError, RecursionError):  # torn
        return None
    return line if is_mapping(line) and line.get("kind") == "end" else None


def _ends(path: Path) -> tuple[bytes, bytes]:
    """The first and the last line of a file."""
    try:
        with path.open("rb") as stream:
            first, size, tail = stream.readline(), stream.seek(0, os.SEEK_END), 4096
            while True:
                stream.seek(max(size - tail, 0))
                lines = stream.read().splitlines()
                if len(lines) > 1 or tail >= size:
                    return first, lines[-1] if lines else b""
                tail *= 8
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}.") from None


def runs_in(folder: Path = FOLDER) -> list[Path]:
    """The folders of all runs, oldest first."""
    return sorted((run.parent for run in folder.glob("*/run.json")), key=lambda run: run.name)


def runs_of(suite: str | None, folder: Path = FOLDER) -> Iterator[Path]:
    """The folders of the runs of a suite (None: of all), newest first. A run that cannot be read is reported, and hides
    no other."""
    for run in reversed(runs_in(folder)):
        try:
            if suite is None or head_of(run).get("suite") == suite:
                yield run
        except ConfigurationError as error:
            warnings.warn(f"{error} The run is left out.", ArbiterWarning, stacklevel=callers())


def run_folder(name: str, folder: Path = FOLDER, *, suite: str | None = None) -> Path:
    """The folder of a run: by its id, by the path of its folder, by the name of a suite for its newest run, or the
    newest of all ("last"), of a suite if one is given.

    Raises `ConfigurationError` if there is none.
    """
    if name != "last":
        for place in (folder / name, Path(name)):
            if (place / "run.json").is_file():
                return place
        if (newest := next(runs_of(name, folder), None)) is not None:
            return newest
        known = [run.name for run in runs_in(folder)]
        others = f" The newest ones: {', '.join(known[-3:])}." if known else ""
        raise ConfigurationError(f"there is no run {name!r} in {folder}.{nearest(name, known)}{others}")
    newest = next(runs_of(suite, folder), None)
    if newest is not None:
        return newest
    of = "" if suite is None else f" of the suite {suite!r}"
    raise ConfigurationError(f"there is no run{of} in {folder}.")


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass of plain values as JSON-able data; paths become texts."""
    parts = {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: str(part) if isinstance(part, Path) else part for name, part in parts.items()}
