"""Recordings: the answers of a target and the judgements of its judges, in files that are committed.

    recordings/<suite>/answers.jsonl       one line a case × repeat
    recordings/<suite>/judgements.jsonl    one line a question × vote

A line is written when the answer comes. The key of an answer is a hash of the target, the input and the repeat; that
of a judgement a hash of the whole question, the judge's model and settings, the repeat and the vote. So whatever
changes a question makes its recording stale, and the message names the change: each line has hashes of the parts that
it belongs to.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import finalize

from arbiter._values.files import write_whole, writing
from arbiter._values.kinds import is_list, is_mapping
from arbiter._values.states import is_whole
from arbiter._values.versions import hash_of
from arbiter.errors import ArbiterWarning, callers
from arbiter.harness.canonical import canonical
from arbiter.harness.identity import changes_between
from arbiter.harness.results import Status
from arbiter.harness.writing import locked, why_unwritable
from arbiter.models import JudgeReply, JudgeRequest, RecordingError, is_judgement, judgement_of, reply_of
from arbiter.models._recordings import append
from arbiter.redaction import found_in

_log = logging.getLogger("arbiter.harness")

VERSION = 1
_SHOWN = 5
_NOTHING: Mapping[str, str] = {}
Line = dict[str, Any]
Details = Mapping[str, Mapping[str, str]]
NO_DETAILS: Details = {}


@dataclass(frozen=True, slots=True)
class Place:
    """The case × repeat for which a judge is asked; without one, a question belongs to the whole run."""

    case: str = ""
    repeat: int = 0

    def __str__(self) -> str:
        return f"{self.case} (repeat {self.repeat + 1})" if self.case else "the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question to the judge of a row, and what its answer depends on.

    `judge` has the model, the temperature and a hash of the other arguments; `parts` are those of the row's version.
    """

    request: JudgeRequest
    row: str
    place: Place = field(default_factory=Place)
    judge: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def key(self) -> str:
        return hash_of([self.request.key, self.judge, self.place.repeat, self.request.vote])


def answer_key(input: Any, target: Mapping[str, str], repeat: int) -> str:
    """The key of a target's answer. `target` has hashes of the parts of the target."""
    return hash_of([input, target, repeat])


class Recording:
    """The recordings of one suite. Safe to use from several threads.

    In mode "replay" nothing is written, and a question without a valid recording raises `RecordingError`; `missing`
    collects them all. In mode "record" it returns None for what has to be asked, and appends what it is given. That is
    what is missing, and what failed when it was recorded; with `again` it is everything, but an earlier answer stays
    where the new one fails. Lines that cannot be read are then asked for again.
    With `allow_stale` an outdated answer is taken, and `outdated` says so.
    """

    def __init__(
        self,
        folder: str | Path,
        mode: Literal["replay", "record"] = "replay",
        *,
        again: bool = False,
        allow_stale: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self._place = self.folder.absolute()  # a target may change the working directory
        self.mode = mode
        self.allow_stale = allow_stale
        self.missing: list[str] = []
        """The questions without a valid recording, each with the reason."""
        self._have_none = False
        """True if some of them have no outdated recording, either."""
        self.outdated: list[str] = []
        """The outdated answers that were taken, each with the change since."""
        self.dates: set[str] = set()
        """The days on which the answers that were taken were recorded."""
        self.rows_in_answers: frozenset[str] = frozenset()
        """The rows whose scores are kept with the answers. A replay does not use their judgements."""
        self.failed: Collection[Place] = ()
        """The cases that failed now, of which no judge was asked. With `again`, what was recorded of them stays."""
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self._new: set[str] = set()
        self._touched: set[Any] = set()
        self._warned = False
        self._again = again
        self._asked_again: set[str] = set()
        self._has_broken_lines = False
        self._other_format: dict[str, list[Line]] = defaultdict(list)
        """By file, the lines of another format. They may be good, and stay until they are recorded again."""
        self._release = finalize(self, self._locked()) if mode == "record" else None
        self._details: dict[tuple[str, str], Mapping[str, str]] = {}
        """The parts of each hash in the `target` of answers. In the file, one answer with that hash has them."""
        self._answers = self._read("answers")
        self._judgements = self._read("judgements")

    def _locked(self) -> Callable[[], None]:
        try:
            return locked(self._place)
        except BlockingIOError:
            said = "another process, or another suite of that name, records it. Wait, or rename one"
        except OSError as error:
            said = f"it cannot be written: {why_unwritable(self.folder, error)}"
        raise RecordingError(f"the folder {str(self.folder)!r} of recordings: {said}.")

    def refuse_none(self) -> None:
        """Raise `RecordingError` for a replay without any recording."""
        if self.mode == "replay" and not (self._answers or self._judgements):
            raise RecordingError(
                f"there are no recordings in {str(self.folder)!r}. Run `arbiter eval record`."
            )

    # Answers of the target

    def answer(
        self,
        place: Place,
        *,
        input: Any,
        target: Mapping[str, str],
        details: Details = NO_DETAILS,
        may_fail: bool = False,
    ) -> Mapping[str, Any] | None:
        """The recorded answer to an input, as `keep_answer` got it. In mode "record" a failure is asked again, unless
        it is the target's own and the target `may_fail`."""
        key = answer_key(input, target, place.repeat)
        with self._lock:
            known = self._answers.get(key)
            again = self._again or (known is not None and _has_failed(known, may_fail=may_fail))
            line = self._found(self._answers, key, again)
            if line is None and self.mode == "replay":
                before = self._before(None, place)
                why = self._changes(before, hash_of(input), target, details)
                line = self._without(f"the answer to {place}: {why}", before)
            return None if line is None else line["answer"]

    def keep_answer(
        self,
        place: Place,
        *,
        input: Any,
        target: Mapping[str, str],
        answer: Mapping[str, Any],
        details: Details = NO_DETAILS,
    ) -> None:
        """Record an answer, as plain data. `details` are parts of some hashes of `target`, by their names."""
        line = {
            "key": answer_key(input, target, place.repeat),
            "case": place.case,
            "repeat": place.repeat,
            "input": hash_of(input),
            "target": dict(target),
            "answer": answer,
            "recorded": _today(),
        }
        self._keep("answers", self._answers, line, details)

    def check_answers(
        self, cases: Mapping[Place, Any], target: Mapping[str, str], details: Details = NO_DETAILS
    ) -> None:
        """Raise `RecordingError` with all missing and outdated answers, before the first case runs; with `allow_stale`
        with those of cases that have no answer at all.

        `cases` maps each case × repeat to its input.
        """
        for place, input in cases.items():
            before = self._before(None, place)
            if answer_key(input, target, place.repeat) in self._answers or (self.allow_stale and before):
                continue
            why = self._changes(before, hash_of(input), target, details)
            self._miss(f"the answer to {place}: {why}", before)
        self.check()

    def _changes(
        self, before: Sequence[Line], input: str, target: Mapping[str, str], details: Details
    ) -> str:
        """The changes since the newest answer of `before`."""
        if not before:
            return "it was never recorded"
        changes = [] if before[-1].get("input") == input else ["its input changed"]
        found = changes_between(before[-1]["target"], target)
        others: list[str] = []
        for name in [name for name, how in found.items() if how == "changed"]:
            known = self._details.get(_hash_of(before[-1], name), NO_DETAILS)
            if known and (parts := changes_between(known, details.get(name, {}))):
                del found[name]
                found |= dict(islice(parts.items(), _SHOWN))
                if (left := len(parts) - _SHOWN) > 0:
                    others.append(f"{left:,} more part{'s' if left > 1 else ''} of {name} changed")
        changes += [*(f"{name} {how}" for name, how in sorted(found.items())), *others]
        return ", ".join(changes) or "another repeat was recorded"

    # Judgements

    def judgement(self, asked: Asked) -> JudgeReply | None:
        """The recorded answer to a question. In mode "record" one that could not be read is asked again, unless it is
        about several claims: each of them was asked alone then."""
        alone = asked.request.purpose != "batch"
        with self._lock:
            known = self._judgements.get(asked.key)
            again = self._again or (known is not None and alone and _has_failed(known))
            line = self._found(self._judgements, asked.key, again)
            if line is None and self.mode == "replay":
                before = self._before(asked.row, asked.place)
                vote = f", vote {asked.request.vote + 1}" if asked.request.vote else ""
                last = before[-1] if before else self._last.get(asked.row)
                why = self._other_votes(before, asked) or _judgement_changes(last, asked)
                line = self._without(f"{asked.row} of {asked.place}{vote}: {why}", _alike(before, asked))
            return None if line is None else reply_of(line)

    def keep_judgement(self, asked: Asked, reply: JudgeReply) -> JudgeReply:
        """Record an answer. Returns the one that counts: an equal question may have been answered meanwhile."""
        line = {
            "key": asked.key,
            "case": asked.place.case,
            "repeat": asked.place.repeat,
            "row": asked.row,
            "vote": asked.request.vote,
            "judge": dict(asked.judge),
            "parts": dict(asked.parts),
            "recorded": _today(),
            **judgement_of(asked.request, reply),
        }
        return reply_of(self._keep("judgements", self._judgements, line))

    def _other_votes(self, before: Sequence[Line], asked: Asked) -> str:
        """A sentence about the votes of the same question that were recorded; "" if there are none."""
        keys = {
            vote: replace(asked, request=replace(asked.request, vote=vote)).key
            for vote in sorted({each["vote"] for each in before})
        }
        votes = [str(vote + 1) for vote, key in keys.items() if key in self._judgements]
        if len(votes) == 1:
            return f"only vote {votes[0]} was recorded"
        return f"only votes {', '.join(votes)} were recorded" if votes else ""

    # The whole

    def _before(self, row: str | None, place: Place) -> Sequence[Line]:
        """The lines that a replay has of a case × repeat: the judgements of a row, or its answers."""
        return self._by_place.get((row, place), ())

    @cached_property
    def _by_place(self) -> Mapping[tuple[str | None, Place], list[Line]]:
        found: dict[tuple[str | None, Place], list[Line]] = defaultdict(list)
        for line in (*self._answers.values(), *self._judgements.values()):
            found[line.get("row"), _place(line)].append(line)
        return dict(found)

    @cached_property
    def _last(self) -> Mapping[str, Line]:
        """The last judgement of each row."""
        return {line["row"]: line for line in self._judgements.values()}

    def check(self, *, strict: bool = False) -> None:
        """Raise `RecordingError` with all questions that had no valid recording; if `strict`, also for
        recordings that were not used."""
        lines = [f"  {each}" for each in sorted(self.missing)[:_SHOWN]]
        if len(self.missing) > _SHOWN:
            lines.append(f"  and {len(self.missing) - _SHOWN} more")
        if lines:
            count = len(self.missing)
            what = "1 recording is" if count == 1 else f"{count} recordings are"
            also = (
                ""
                if self.allow_stale or self._have_none
                else ", or pass --allow-stale to measure with old answers"
            )
            raise RecordingError(
                f"{what} missing or stale in {str(self.folder)!r}:\n" + "\n".join(lines) + "\n"
                f"Record what is missing with `arbiter eval record`{also}."
            )
        if strict and (unused := self.unused):
            raise RecordingError(
                f"{len(unused)} of the recordings in {str(self.folder)!r} were not used, the first for {unused[0]}. "
                "Remove them with `arbiter eval record --all`."
            )

    @property
    def unused(self) -> Sequence[str]:
        """The recordings that no question has used, in the order of their keys."""
        with self._lock:
            return [
                f"{line.get('row', 'the answer')} of {_place(line)}"
                for lines in (self._answers, self._judgements)
                for key, line in sorted(lines.items())
                if key not in self._used and line.get("row") not in self.rows_in_answers
            ]

    def close(self, *, is_whole: bool = False) -> None:
        """Sort the files, without the lines that newer ones have replaced, and let other processes record. Does
        nothing in mode "replay".

        `is_whole` says that all cases of the suite were recorded. With `again`, nothing else stays then.
        """
        if self._release is None or not self._release.alive:
            return
        used_alone = is_whole and self._again
        with self._lock:
            lines = [*self._answers.values(), *self._judgements.values()] if used_alone else ()
            kept = {
                *self._asked_again,
                *(line["key"] for line in lines if _place(line) in self.failed),
            } - self._new
            self._used |= kept
            try:
                if is_whole:
                    self._other_format.clear()
                if self._new or used_alone or self._has_broken_lines:
                    self._write("answers", self._answers, used_alone)
                    self._write("judgements", self._judgements, used_alone)
            finally:
                self._release()
                with suppress(OSError):  # has recordings
                    self._place.rmdir()
        if kept:
            what = "1 recording stays" if len(kept) == 1 else f"{len(kept):,} recordings stay"
            _log.warning("%s: %s as before, because no new answer came.", self.folder, what)

    def _write(self, name: str, lines: Mapping[str, Line], used_alone: bool) -> None:
        kept = [
            lines[key]
            for key in sorted(lines)
            if key in self._used or not (used_alone or _slot(lines[key]) in self._touched)
        ]
        path = self._file(name)
        kept = list(_with_details(kept, self._details))
        kept += [line for line in self._other_format[path.name] if _slot(line) not in self._touched]
        if not kept and not path.exists():
            return
        with writing(path):
            write_whole(path, "".join(map(_text_of, kept)))

    def _found(self, lines: Mapping[str, Line], key: str, again: bool) -> Line | None:
        line = lines.get(key)
        if line is not None and again and self.mode == "record" and key not in self._new:
            self._asked_again.add(key)
            return None
        return None if line is None else self._taken(line)

    def _taken(self, line: Line) -> Line:
        self._used.add(line["key"])
        self._touched.add(_slot(line))
        if (day := line.get("recorded")) is not None:
            self.dates.add(day)
        return line

    def _without(self, what: str, before: Sequence[Line]) -> Line:
        """The answer to a question without a valid recording; `before` are outdated answers to it."""
        if self.allow_stale and before:
            self.outdated.append(what)
            return self._taken(before[0])
        self._miss(what, before)
        raise RecordingError(f"no valid recording has {what}. Run `arbiter eval record`.")

    def _miss(self, what: str, before: Sequence[Line]) -> None:
        self.missing.append(what)
        self._have_none |= not before

    def _keep(self, name: str, lines: dict[str, Line], line: Line, details: Details = NO_DETAILS) -> Line:
        new = {part: of for part, of in details.items() if _hash_of(line, part) not in self._details}
        text = _text_of({**line, "details": new} if new else line)
        with self._lock:
            self._details |= {_hash_of(line, part): of for part, of in new.items()}
            known = lines.get(line["key"])
            if known is not None and (
                line["key"] in self._new or (_has_failed(line) and not _has_failed(known))
            ):
                return known
            lines[line["key"]] = line
            self._new.add(line["key"])
            self._used.add(line["key"])
            self._touched.add(_slot(line))
            append(self._file(name), text.encode("utf-8", "backslashreplace"))
            self._warn_of_secrets(name, line, text)
        return line

    def _warn_of_secrets(self, name: str, line: Line, text: str) -> None:
        if not self._warned and found_in(text, ("secrets",)):
            self._warned = True
            warnings.warn(
                f"{self._path(name)}: the recording for {_place(line)} has what looks like a secret, and the file is "
                "meant to be committed. Replace the secret in the case or in what the target returns.",
                ArbiterWarning,
                stacklevel=callers(),
            )

    def _file(self, name: str) -> Path:
        return self._place / f"{name}.jsonl"

    def _path(self, name: str) -> Path:
        """The file as messages name it."""
        return self.folder / f"{name}.jsonl"

    def _read(self, name: str) -> dict[str, Line]:
        path = self._path(name)
        if not path.exists():
            return {}
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RecordingError(f"{path}: cannot be read: {error}") from None
        found: dict[str, Line] = {}
        for line in self._lines(path, content):
            details: Details = line.pop("details", NO_DETAILS)
            # Those of a line that a later one replaces count too.
            self._details |= {_hash_of(line, name): parts for name, parts in details.items()}
            found[line["key"]] = line
        return found

    def _lines(self, path: Path, content: bytes) -> Iterator[Line]:
        whole = content.split(b"\n")  # the last line may be torn within a character
        broken: list[str] = []
        for number, row in enumerate(whole, 1):
            if not row:
                continue
            line: Any = None
            try:
                line = json.loads(row)
                _check(path.name, line)
            except (ValueError, TypeError, RecursionError) as error:
                if line is None and number == len(whole):  # the process was killed while it wrote
                    warnings.warn(
                        f"{path}:{number}: a torn last line was left out.",
                        ArbiterWarning,
                        stacklevel=callers(),
                    )
                    if self.mode == "record":
                        os.truncate(path, len(content) - len(row))  # the next line would be part of it
                    break
                broken.append(f"{path}:{number}: expected a recording, got {error}")
                if self.mode == "replay":
                    raise RecordingError(f"{broken[0]}. Record again with `arbiter eval record`.") from None
                if is_mapping(line) and line.get("v") != VERSION:
                    self._other_format[path.name].append({**line})
                continue
            yield line
        else:
            if whole[-1] and self.mode == "record":  # an editor has removed the last line end
                with path.open("ab") as file:
                    file.write(b"\n")
        if broken:  # nobody could record again if they were refused here
            self._has_broken_lines = True
            others = f", and {len(broken) - 1} more of its lines" if len(broken) > 1 else ""
            warnings.warn(
                f"{broken[0]}. The line is left out{others}; what it was about is asked again.",
                ArbiterWarning,
                stacklevel=callers(),
            )


def _check(file: str, line: Any) -> None:
    """Raise `ValueError` for what is no line of a recording."""
    if not is_mapping(line):
        raise ValueError("a line that is not a JSON object")
    if line.get("v") != VERSION:
        raise ValueError(f"a line of format {line.get('v')!r}, and this version of Arbiter reads {VERSION}")
    is_answer = file == "answers.jsonl"
    own = ("target", "answer") if is_answer else ("row", "vote", "judge", "parts")
    if lacking := [name for name in ("key", "case", "repeat", *own) if name not in line]:
        raise ValueError(f"a line without {lacking[0]!r}")
    details: Any = line.get("details", {})
    parts = [line.get(name, {}) for name in ("target", "answer", "judge", "parts")]
    parts += [details, *(details.values() if is_mapping(details) else ())]
    if not all(map(is_mapping, parts)):
        raise ValueError("a line whose target, answer, judge, parts or details are no JSON object")
    texts = [line[name] for name in ("key", "case", "row", "recorded") if name in line]
    numbers = [line[name] for name in ("repeat", "vote") if name in line]
    if not (
        all(isinstance(each, str) for each in texts) and all(is_whole(each, least=0) for each in numbers)
    ):
        raise ValueError(
            "a line whose day, key, case or row is no text, or whose repeat or vote is no number"
        )
    if is_answer:
        _check_answer(line["answer"])
    elif not is_judgement(line):
        raise ValueError("a judgement without a value")


def _check_answer(answer: Mapping[str, Any]) -> None:
    usage, scores = answer.get("usage", {}), answer.get("evaluations", [])
    is_known = answer.get("status") in get_args(Status) and is_mapping(usage) and is_list(scores)
    if not (is_known and all(map(is_mapping, (*usage.values(), *scores)))):
        raise ValueError("an answer whose status, usage or evaluations have another form")


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _text_of(line: Line) -> str:
    """The line with sorted keys, except those of an output: judges and scorers read them in their own order."""
    ordered = json.loads(canonical({"v": VERSION, **line}))
    # In a line of another format, the answer may be anything.
    if is_mapping(answer := line.get("answer")) and "output" in answer:
        ordered["answer"]["output"] = answer["output"]
    return json.dumps(ordered, ensure_ascii=False, allow_nan=False) + "\n"


def _hash_of(line: Line, name: str) -> tuple[str, str]:
    """The name of a part of the target, and the hash that an answer has of it."""
    return name, str(line["target"].get(name))


def _with_details(
    lines: Iterable[Line], known: Mapping[tuple[str, str], Mapping[str, str]]
) -> Iterator[Line]:
    """The lines, of which the first with a hash has its details."""
    left = {**known}
    for line in lines:
        hashes = [hash for name in line.get("target", ()) if (hash := _hash_of(line, name)) in left]
        details = {hash[0]: left.pop(hash) for hash in hashes}
        yield {**line, "details": details} if details else line


def _place(line: Line) -> Place:
    return Place(line["case"], line["repeat"])


def _slot(line: Line) -> Any:
    """The question of a line, whatever its answer depends on: a new line of the same slot replaces it."""
    return str((line.get("case"), line.get("repeat"), line.get("row")))


def _alike(before: Sequence[Line], asked: Asked) -> list[Line]:
    """The outdated answers to a question of the same kind."""
    request = asked.request
    return [
        each
        for each in before
        if (each["vote"], each["purpose"], tuple(each["propositions"]))
        == (request.vote, request.purpose, request.propositions)
    ]


def _has_failed(line: Line, *, may_fail: bool = False) -> bool:
    """True without an answer of the judge, or if the target (unless it `may_fail`) or one of its node evaluators
    failed, or the judge of one abstained."""
    if (answer := line.get("answer")) is None:
        return line["value"] is None
    evaluations: Sequence[Line] = answer.get("evaluations", ())
    return (answer.get("status") == "failed" and not may_fail) or any(
        each.get("outcome") in ("error", "timeout", "abstained") for each in evaluations
    )


# What changed -------------------------------------------------------------------------------------


def _judgement_changes(last: Line | None, asked: Asked) -> str:
    if last is None:
        return "nothing was recorded for it"
    then, now = last["judge"], asked.judge
    changes = [
        f"the {name} of its judge changed from {then.get(name)!r} to {now.get(name)!r}"
        if name in ("model", "temperature")
        else f"the {name} of its judge changed"
        for name in dict.fromkeys([*now, *then])
        if then.get(name) != now.get(name)
    ]
    changes += [f"its {name} {how}" for name, how in changes_between(last["parts"], asked.parts).items()]
    if changes:
        return ", ".join(changes)
    if _place(last) != asked.place:
        return "the case was never judged"
    return "the judged text changed"
