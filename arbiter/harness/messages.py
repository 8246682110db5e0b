"""Messages of agents: what they said, where and when, read from files, checkpoints, a ledger or the evaluation store.

A window is a time before an end: "7d", "24h" or "2w". Its start is in it, its end is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import finalize

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from arbiter._values.kinds import is_list, is_mapping
from arbiter.errors import ConfigurationError, PackError, PackMistake

if TYPE_CHECKING:
    from arbiter.ledger import Ledger
    from arbiter.store import SqlRepository

AgentOf = Callable[[AIMessage, str], str]
"""Gives the agent of a message and its thread."""

_DURATION = re.compile(r"(\d{1,4})(h|d|w)")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
INSTANT = timedelta(microseconds=1)


def duration(text: str) -> timedelta:
    """The length of "7d", "24h" or "2w". Raises `ConfigurationError` for anything else."""
    given: Any = text
    found = _DURATION.fullmatch(given) if isinstance(given, str) else None
    if found is None or not int(found[1]):
        raise ConfigurationError(f"expected a number and h, d or w, such as 7d, got {given!r:.60}")
    return int(found[1]) * _UNITS[found[2]]


def span(text: str) -> tuple[timedelta, timedelta]:
    """The start and the end of "30d..7d", both before the end of a window."""
    first, dots, last = text.partition("..")
    if not dots:
        raise ConfigurationError(f"expected two times before the end, such as 30d..7d, got {text!r:.60}")
    start, end = duration(first), duration(last)
    if start <= end:
        raise ConfigurationError(f"expected the earlier time first, such as 30d..7d, got {text!r:.60}")
    return start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `at` is aware. `kind` is TALK, THINK or another kind of action."""

    agent: str
    text: str
    at: datetime
    channel: str = ""
    kind: str = "TALK"
    run_id: str = ""


class Messages(Protocol):
    """A source of messages."""

    def read(self, agent: str | None, since: datetime, until: datetime) -> Sequence[Message]:
        """The messages of an agent (None: of all) from `since` on and before `until`, oldest first."""
        ...

    def end(self) -> datetime | None:
        """The moment after the newest message; None if there are none."""
        ...


class _Read:
    """A source that reads all of its messages at once, when they are first asked for."""

    def _all(self) -> Iterable[Message]:
        raise NotImplementedError

    @cached_property
    def messages(self) -> Sequence[Message]:
        """All messages, oldest first."""
        return sorted(self._all(), key=lambda message: message.at)

    def read(self, agent: str | None, since: datetime, until: datetime) -> Sequence[Message]:
        return [
            message
            for message in self.messages
            if since <= message.at < until and (agent is None or message.agent == agent)
        ]

    def end(self) -> datetime | None:
        return _after(self.messages[-1].at if self.messages else None)


class JsonlMessages(_Read):
    """Messages in a JSONL file: `agent`, `text` and `at` (ISO 8601 with an offset), and perhaps `channel`, `kind` and
    `run_id`, on each line. Raises `PackError` with all mistakes when it is first read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def _all(self) -> Iterator[Message]:
        try:
            lines = self.path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise PackError.at(str(self.path), 1, f"expected a file that can be read, got {error}") from None
        found: list[Message] = []
        mistakes: list[PackMistake] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found.append(_message(json.loads(line)))
            except (ValueError, RecursionError) as error:
                mistakes.append(PackMistake(str(self.path), number, "", str(error)))
        if mistakes:
            raise PackError(mistakes)
        return iter(found)


_TEXTS = ("agent", "text", "channel", "kind", "run_id")


def _message(data: Any) -> Message:
    if not is_mapping(data):
        raise ValueError(f"expected a JSON object, got {data!r:.60}")
    if unknown := sorted(set(data) - {*_TEXTS, "at"}):
        raise ValueError(f"expected {', '.join(_TEXTS)} and at, got {unknown[0]!r}")
    for name in _TEXTS:
        if not isinstance(data.get(name, None if name in ("agent", "text") else ""), str):
            raise ValueError(f"{name}: expected a text, got {data.get(name)!r:.60}")
    texts: dict[str, str] = {name: data[name] for name in _TEXTS if name in data}
    return Message(at=moment(data.get("at")), **texts)


def moment(given: Any) -> datetime:
    """An aware time, in UTC. Raises `ValueError` for a text that is none, or that has no offset."""
    with suppress(OverflowError, TypeError, ValueError):
        at = given if isinstance(given, datetime) else datetime.fromisoformat(given)
        if at.tzinfo is not None:
            return at.astimezone(UTC)  # 0001-01-01T00:00:00+01:00 is none in UTC
    raise ValueError(f"at: expected a time with an offset, such as 2026-11-23T09:00:00Z, got {given!r:.60}")


def _after(newest: datetime | None) -> datetime | None:
    """The moment after the newest message; None if there is none."""
    try:
        return None if newest is None else newest + INSTANT
    except OverflowError:
        raise ConfigurationError(
            f"messages: the newest one is of {newest}, after which there is no time. Correct its time."
        ) from None


class StoreMessages:
    """The messages in an evaluation store: a `sqlite:///` or `postgresql://` URL, or the path of a SQLite file.

    Needs `arbiteros[store]`. Raises `ConfigurationError` for a file that does not exist.
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)

    @cached_property
    def _store(self) -> SqlRepository:
        file = self.url.removeprefix("sqlite:///")
        if "://" not in file and not Path(file).exists():
            raise ConfigurationError(f"messages: there is no store {self.url!r}.")
        try:
            from arbiter.store import SqlRepository
        except ImportError as error:
            raise ConfigurationError(f"messages: {error}.") from None
        store = SqlRepository(self.url)
        finalize(self, store.close)
        return store

    def read(self, agent: str | None, since: datetime, until: datetime) -> Sequence[Message]:
        return [
            Message(
                agent=found.agent_id,
                text=found.text,
                at=found.at,
                channel=found.channel,
                kind=found.kind,
                run_id=str(found.run_id or ""),
            )
            for found in self._store.messages(agent, since=since, until=until)
        ]

    @cached_property
    def _newest(self) -> datetime | None:
        return max((found.at for found in self._store.messages()), default=None)

    def end(self) -> datetime | None:
        return _after(self._newest)


def _named(message: AIMessage, thread: str) -> str:
    return message.name or ""


class CheckpointMessages(_Read):
    """The AI messages at `key` in the states that a checkpointer has. The time of a message is that of the first
    checkpoint which has its id, and its channel is the thread.

    `agent_of` gives the agent of a message and its thread; by default that is the name of the message.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        key: str = "messages",
        *,
        agent_of: AgentOf | None = None,
    ) -> None:
        self.saver = saver
        self.key = key
        self.agent_of = agent_of or _named

    def _all(self) -> Iterator[Message]:
        return _first_ones(self._lists(), self.agent_of)

    def _lists(self) -> Iterator[_Said]:
        for saved in self.saver.list(None):
            settings: Any = saved.config.get("configurable", {})
            values: Any = saved.checkpoint["channel_values"].get(self.key)
            yield str(settings.get("thread_id", "")), moment(saved.checkpoint["ts"]), "", values


class LedgerMessages(_Read):
    """The AI messages that node runs in a ledger returned at `key`. The time of a message is the end of the first node
    run that returned its id, its channel is the thread, and `run_id` that of the ledger.

    `where` is an open ledger, its path or its URL. `agent_of` is that of `CheckpointMessages`. Needs
    `arbiteros[ledger]`. Raises `LedgerUnavailable` for a ledger that does not exist.
    """

    def __init__(
        self,
        where: Ledger | str | Path,
        key: str = "messages",
        *,
        agent_of: AgentOf | None = None,
    ) -> None:
        self.where = where
        self.key = key
        self.agent_of = agent_of or _named

    def _all(self) -> Iterator[Message]:
        try:
            from arbiter.ledger import Ledger
        except ImportError as error:
            raise ConfigurationError(f"messages: {error}.") from None
        if isinstance(self.where, Ledger):
            self.where.flush()
            return _first_ones(self._lists(self.where), self.agent_of)
        with Ledger(self.where, create=False) as ledger:
            return _first_ones(self._lists(ledger), self.agent_of)

    def _lists(self, ledger: Ledger) -> Iterator[_Said]:
        for item in ledger.items():
            values: Any = item.output_state.get(self.key)
            ended = item.timestamp + timedelta(seconds=item.duration)
            yield item.thread_id or item.ref, ended, item.run, values


_Said = tuple[str, datetime, str, Any]
"""A thread, a moment, a run, and the messages that were there, one of them or a list."""


def _first_ones(lists: Iterable[_Said], agent_of: AgentOf) -> Iterator[Message]:
    """The AI messages, each at the first moment at which it was there."""
    found: dict[tuple[str, str], Message] = {}
    for thread, at, run, values in lists:
        for message in values if is_list(values) else (values,):
            if not isinstance(message, AIMessage) or not str(message.text).strip():
                continue
            place = thread, message.id or str(message.text)
            known = found.get(place)
            if known is None or at < known.at:
                agent = agent_of(message, thread)
                found[place] = Message(agent=agent, text=str(message.text), at=at, channel=thread, run_id=run)
    return iter(found.values())
