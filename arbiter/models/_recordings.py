"""Recordings of judges: what was asked and answered, word for word, and its replay without a model.

A recording maps *names* to judgements. A name is the key of the question; `<key>/1` is the second vote on it,
`<key>#1` the answer to the same question when it was asked once more.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from arbiter._threads.forks import new_lock
from arbiter._values.files import writing
from arbiter.errors import ArbiterWarning, ConfigurationError, callers
from arbiter.models._asking import ChatModel
from arbiter.models._judges import Judge, JudgeReply, JudgeRequest, judge_of

VERSION = 1


class RecordingError(ConfigurationError):
    """A recording lacks the judgement of a question, or has a judgement whose question was never asked."""


def judgement_of(request: JudgeRequest, reply: JudgeReply) -> dict[str, Any]:
    """A reply as plain data."""
    return {
        "purpose": request.purpose,
        "propositions": list(request.propositions),
        "value": reply.value,
        "problem": reply.problem,
        "texts": list(reply.texts),
        "calls": reply.calls,
        "usage": reply.usage,
        "model": reply.model,
        **({"usages": list(reply.usages)} if reply.usages else {}),
    }


def reply_of(judgement: Mapping[str, Any]) -> JudgeReply:
    """The reply from its plain data."""
    return JudgeReply(
        value=judgement["value"],
        problem=judgement.get("problem", ""),
        texts=tuple(judgement.get("texts", ())),
        calls=judgement.get("calls", 1),
        usage=judgement.get("usage"),
        model=judgement.get("model", ""),
        usages=tuple(judgement.get("usages", ())),
    )


def is_judgement(found: Any) -> bool:
    """True for the plain data of a reply."""
    given: Any = found
    return isinstance(found, Mapping) and "value" in given and isinstance(given["value"], Mapping | NoneType)


def _name(key: str, vote: int, again: int) -> str:
    return f"{key}{f'/{vote}' if vote else ''}{f'#{again}' if again else ''}"


class RecordingJudge:
    """Asks another judge, or a chat model, and records its answers for a `MockJudge`.

    Errors of the judge are not recorded. `recording` maps the name of a question to its judgement. With `path`
    each answer is appended to that file, one JSON object a line, as it comes, so that a crash loses none. Raises
    `ConfigurationError` if the file has a recording already, or cannot be written.
    """

    replays = True

    def __init__(self, inner: Judge | ChatModel | str, path: str | Path | None = None) -> None:
        self.inner = judge_of(inner)
        # The program that is judged may change the working directory.
        self.path = None if path is None else Path(path).absolute()
        self.recording: dict[str, dict[str, Any]] = {}
        self._asked: Counter[tuple[str, int]] = Counter()
        self._lock = new_lock()
        if self.path is not None:
            _begin(self.path)

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """Ask the other judge and record the answer. Raises the judge's errors."""
        return self._kept(request, self.inner.judge(request))

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """Async version of `judge`."""
        return self._kept(request, await self.inner.ajudge(request))

    def save(self, path: str | Path) -> None:
        """Write the recording as sorted JSON, so that equal recordings are equal byte by byte."""
        data = {"version": VERSION, "judgements": self.recording}
        with writing(path):
            Path(path).write_bytes(_json(data, indent=1, sort_keys=True))

    def _kept(self, request: JudgeRequest, reply: JudgeReply) -> JudgeReply:
        key, judgement = request.key, judgement_of(request, reply)
        with self._lock:
            name = _name(key, request.vote, self._asked[key, request.vote])
            if self.path is not None:
                append(self.path, _json({"name": name, **judgement}))
            self._asked[key, request.vote] += 1
            self.recording[name] = judgement
        return reply


class MockJudge:
    """Replays a recording: the judgements by the names of their questions, or the file that a `RecordingJudge`
    wrote.

    The key is a hash of the whole prompt, so an edited claim, persona or message is a question without an
    answer. It raises `RecordingError`, never a default, through the engine and the scorers to the caller. A
    question that is asked again gets the next answer recorded for it, after the last one that one again.
    """

    replays = True

    def __init__(self, recording: Mapping[str, Mapping[str, Any]] | str | Path) -> None:
        self.recording = recording if isinstance(recording, Mapping) else _read(Path(recording))
        if wrong := [key for key, found in self.recording.items() if not is_judgement(found)]:
            raise RecordingError(f"expected judgements with a value, got {self.recording[wrong[0]]!r:.80}.")
        self._times: Counter[tuple[str, int]] = Counter()
        self._asked: set[str] = set()
        self._lock = new_lock()

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """The recorded answer. Raises `RecordingError` if there is none."""
        key = request.key
        with self._lock:
            times = self._times[key, request.vote]
            name = _name(key, request.vote, times)
            if name in self.recording:
                self._times[key, request.vote] += 1
            elif times:
                name = _name(key, request.vote, times - 1)
            self._asked.add(name)
        found = self.recording.get(name)
        if found is None:
            raise RecordingError(self._missing(request, key))
        return reply_of(found)

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """Async version of `judge`."""
        return self.judge(request)

    @property
    def stale(self) -> tuple[str, ...]:
        """The names of judgements whose questions were not asked yet."""
        return tuple(key for key in self.recording if key not in self._asked)

    def check_used(self) -> None:
        """Raise `RecordingError` if a judgement was not used: the recording then belongs to other
        questions."""
        if stale := self.stale:
            ids = {str(id) for key in stale for id in self.recording[key].get("propositions", ())}
            raise RecordingError(
                f"{len(stale)} of {len(self.recording)} recorded judgements were not asked for "
                f"(about {', '.join(sorted(ids)) or 'ideas'}). Record again."
            )

    def _missing(self, request: JudgeRequest, key: str) -> str:
        about = ", ".join(request.propositions) or request.purpose
        known = any(
            tuple(found.get("propositions", ())) == request.propositions for found in self.recording.values()
        )
        why = "the question has changed since" if known else "nothing about it was recorded"
        if request.vote and key in self.recording:
            why = f"it has no vote {request.vote + 1} on it"
        return f"the recording has no judgement {key[:12]} of {about}: {why}. Record again."


def _begin(path: Path) -> None:
    """Make the file of a recording. An older recording, which has cost its judgements, is not overwritten."""
    with writing(path), path.open("ab") as file:
        if file.tell() == 0:
            return
    raise ConfigurationError(
        f"{str(path)!r} has a recording already. Delete it, or record into another file."
    )


def append(path: Path, line: bytes) -> None:
    """Append a line to a file. On a full disk nothing of it stays: the next line would become a part of it."""
    written = 0
    with path.open("ab", buffering=0) as file:
        try:
            while written < len(line):
                written += file.write(line[written:])
        except OSError:
            if written:  # another process may have appended lines since the file was opened
                file.truncate(file.tell() - written)
            raise


def _json(value: Any, **layout: Any) -> bytes:
    """A line of JSON in UTF-8. Lone surrogates, which have no UTF-8 form, are escaped."""
    try:
        return (json.dumps(value, ensure_ascii=False, **layout) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(value, **layout) + "\n").encode()


def _rows(path: Path, content: bytes) -> Mapping[str, Mapping[str, Any]]:
    """The judgements of a file with one a line. A process that was killed may have left half of the last one."""
    *lines, last = content.split(b"\n")  # in JSON, other line ends may stand within a text
    rows = [json.loads(line) for line in lines]
    if last:
        try:
            rows.append(json.loads(last))
        except ValueError:
            problem = f"{path}: the last line is cut off, and left out."
            warnings.warn(problem, ArbiterWarning, stacklevel=callers())
    return {row.pop("name"): row for row in rows}


def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        content = path.read_bytes()
        if content.startswith(b'{"name"'):
            return _rows(path, content)
        data = json.loads(content)
        if data["version"] != VERSION or not all(map(is_judgement, data["judgements"].values())):
            raise ValueError("another version, or a judgement without a value")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordingError(
            f"expected a recording in {str(path)!r}, got {type(error).__name__}: {error}"
        ) from None
    judgements: Mapping[str, Mapping[str, Any]] = data["judgements"]
    return judgements
