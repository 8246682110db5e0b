"""Live pages: what the ledger commits is announced to the pages that are open.

    ledger ─▶ one poller of the viewer ─▶ LiveFeed ─▶ one event stream of a browser ─▶ SharedWorker ─▶ its tabs

An event names the threads that have grown, never their contents: each page then asks for the part that it shows.
The id of an event is that of an entry, so a browser that comes back with `Last-Event-ID` hears of what it missed,
also after the viewer has restarted. The poller rests while no page is open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from arbiter.errors import ArbiterError

if TYPE_CHECKING:
    from arbiter.ledger import Ledger

STREAMS = 100
"""Event streams that are open at once."""
_TOO_MANY = 30
"""Seconds after which a browser beyond that may try again."""
QUIET = 15.0
"""Seconds after which a stream without events gets a comment, so that proxies keep it open."""
_RETRY = 1.0
"""Seconds until a ledger that could not be read is read again."""
_KEPT = 1_000
"""Entries that are kept for streams that lag behind, and that are read at once."""
_MOST = 200
"""Threads that an event names; with more, all may have grown."""
_log = logging.getLogger("arbiter")


@dataclass(eq=False, slots=True)
class _Stream:
    """One open stream. It is woken on its own event loop."""

    loop: asyncio.AbstractEventLoop
    upto: int
    """The newest entry that it has announced."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    is_ended: bool = False

    def wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.woken.set)
        except RuntimeError:  # its loop has ended, and it with it
            pass


class LiveFeed:
    """Announces the commits to one ledger to any number of streams."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._streams: set[_Stream] = set()
        self._recent: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._since = 0
        """All entries after this one are among the recent ones."""
        self._is_polling = False
        self._is_closed = False

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def routes(self) -> list[Route]:
        return [Route("/live", self._answer, methods=["GET"])]

    def marked(self, app: ASGIApp) -> ASGIApp:
        """A middleware that notes in the state, as `newest`, the newest entry before a page is made: what comes after
        it may be missing on the page.
        """

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "GET":
                # If the ledger cannot be read, the page says so.
                with suppress(ArbiterError, SQLAlchemyError):
                    scope["state"]["newest"] = await run_in_threadpool(lambda: self._ledger.last_entry)
            await app(scope, receive, send)

        return answer

    def close(self) -> None:
        """End all streams: a server that stops waits for them."""
        self._is_closed = True
        self._end_streams()

    def _end_streams(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.is_ended = True
            stream.wake()

    async def _answer(self, request: Request) -> Response:
        with self._lock:
            if len(self._streams) >= STREAMS:
                sentence = f"{STREAMS} browsers listen already; this page is not updated by itself.\n"
                return PlainTextResponse(sentence, 503, {"retry-after": str(_TOO_MANY)})
        asked = request.headers.get("last-event-id") or request.query_params.get("after", "")
        after = int(asked) if asked.isdecimal() and len(asked) < 19 else None
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        last = await run_in_threadpool(lambda: self._ledger.last_entry)
        return StreamingResponse(self._events(after, last), headers=headers, media_type="text/event-stream")

    async def _events(self, after: int | None, last: int) -> AsyncIterator[str]:
        """A stream of events: what was committed after the entry `after`, by default after the newest, `last`."""
        stream = _Stream(asyncio.get_running_loop(), last)
        if not self._add(stream):
            yield f"retry: {_TOO_MANY}000\n\n"
            return
        try:
            # The first event gives the browser an id to come back with: one from which nothing is missed.
            begun = last if after is None else min(after, last)
            yield f"retry: 1000\nid: {begun}\nevent: begun\ndata: {{}}\n\n"
            if begun < last:
                missed = await run_in_threadpool(self._ledger.grown, begun, limit=_KEPT)
                yield _event(last, None if len(missed) == _KEPT else {ref for _, ref in missed})
            while not (stream.is_ended or self._is_closed):
                # First without waiting: what the poller published before the stream was among its listeners.
                if (news := self._news(stream)) is not None:
                    yield news
                try:
                    await asyncio.wait_for(stream.woken.wait(), QUIET)
                except TimeoutError:
                    yield ": nothing new\n\n"
                stream.woken.clear()
        finally:
            with self._lock:
                self._streams.discard(stream)

    def _add(self, stream: _Stream) -> bool:
        """Add a stream to the open ones. False if there are too many."""
        with self._lock:
            if len(self._streams) >= STREAMS:
                return False
            self._streams.add(stream)
            if self._is_polling:
                return True
            self._is_polling = True
            self._recent.clear()
            self._since = stream.upto
        threading.Thread(target=self._poll, args=(stream.upto,), name="arbiter live", daemon=True).start()
        return True

    def _news(self, stream: _Stream) -> str | None:
        """The event about what a stream has not announced yet; None if there is nothing."""
        with self._lock:
            if not self._recent or self._recent[-1][0] <= stream.upto:
                return None
            before, stream.upto = stream.upto, self._recent[-1][0]
            refs = None if before < self._since else {ref for id, ref in self._recent if id > before}
        return _event(stream.upto, refs)

    # On the poller's thread

    def _poll(self, last: int) -> None:
        has_failed = False
        while True:
            try:
                with closing(self._ledger.watch()) as looks:
                    for may_have_grown in looks:
                        if not self._goes_on():
                            return
                        if may_have_grown:
                            last = self._publish(last)
                            has_failed = False
            except Exception as error:
                if has_failed:
                    self._end_streams()  # the browsers come back, and say that their pages are not updated
                else:
                    _log.warning(
                        "pages are not updated: the ledger cannot be read (%s)", type(error).__name__
                    )
                has_failed = True
                time.sleep(_RETRY)
                if not self._goes_on():
                    return

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_polling = bool(self._streams) and not self._is_closed
            return self._is_polling

    def _publish(self, last: int) -> int:
        """Announce the entries after `last`. Returns the newest one."""
        while found := self._ledger.grown(last, limit=_KEPT):
            last = found[-1][0]
            with self._lock:
                left_out = len(self._recent) + len(found) - _KEPT
                if left_out > 0:
                    self._since = [*self._recent, *found][left_out - 1][0]
                self._recent.extend(found)
                streams = list(self._streams)
            for stream in streams:
                stream.wake()
            if len(found) < _KEPT:
                break
        return last


def _event(last: int, refs: Collection[str] | None) -> str:
    threads = None if refs is None or len(refs) > _MOST else sorted(refs)
    return f"id: {last}\nevent: grown\ndata: {json.dumps({'threads': threads})}\n\n"
