"""Live pages: each commit of any process is announced once, and streams end, lag and come back."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import arbiter.web.live
from arbiter.ledger import Ledger, _watching
from arbiter.web import viewer
from tests.ledger.ledger_support import conf, payments
from tests.support import until
from tests.web.serving import served, signed_in


class Events:
    """The events of an open stream, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()
        begun = next(self)
        assert begun["event"] == "begun"
        self.began_at = int(begun["id"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            if not line and "event" in found:
                return {**found, "data": json.loads(found["data"])}
            if name in ("id", "event", "data"):
                found[name] = value
        raise StopIteration

    def upto(self, last: int) -> set[str]:
        """The threads that are announced up to that entry."""
        found: set[str] = set()
        if self.began_at >= last:
            return found
        for event in self:
            found.update(event["data"]["threads"])
            if int(event["id"]) >= last:
                return found
        raise AssertionError("the stream has ended")


@contextmanager
def streaming(address: str, **options: Any) -> Generator[Events]:
    with httpx.stream("GET", f"{address}/live", timeout=30, **options) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path, postgres: Any) -> str:
    return str(tmp_path / "arbiter.db") if request.param == "sqlite" else postgres()


def run(app: Any, ledger: Ledger, *threads: str) -> int:
    """Run these threads, and return the id of the newest entry."""
    for thread in threads:
        app.invoke({"amount": 1}, conf(thread))
    assert ledger.flush(20)
    return ledger.last_entry


def refs(ledger: Ledger) -> dict[str, str]:
    return {str(thread["thread_id"]): str(thread["ref"]) for thread in ledger.threads()}


@pytest.mark.lengthy
def test_every_commit_is_announced_to_every_stream(where: str) -> None:
    """Also commits of another writer; a stream that comes back hears of what it missed, after a restart as well."""
    with Ledger(where, flush_every=0.01) as ledger, Ledger(where, create=False) as shown:
        _, app = payments(ledger)
        first = run(app, ledger, "t0")
        with (
            served(viewer(shown, auth=signed_in)) as address,
            streaming(address) as one,
            streaming(address) as other,
        ):
            assert one.began_at == first
            last = run(app, ledger, "t1", "t2")
            known = refs(ledger)
            for events in (one, other):
                assert events.upto(last) == {known["t1"], known["t2"]}
            with streaming(address, headers={"last-event-id": str(last)}) as third:
                newest = run(app, ledger, "t3")
                assert third.upto(newest) == one.upto(newest) == {refs(ledger)["t3"]}
        with served(viewer(shown, auth=signed_in)) as address:
            with streaming(address, headers={"last-event-id": str(last)}) as events:
                assert next(events)["data"]["threads"] == [refs(ledger)["t3"]]
            with streaming(address, params={"after": "0"}) as events:
                assert set(next(events)["data"]["threads"]) == set(refs(ledger).values())
            with streaming(address, headers={"last-event-id": "no number"}) as events:
                assert events.began_at == newest


@pytest.mark.lengthy
def test_a_stream_that_begins_between_a_commit_and_the_next_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poller announces the commit after the stream has looked, and before it is among its listeners."""
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)
        before = run(app, ledger, "t0")
        with served(viewer(ledger, auth=signed_in)) as address, streaming(address) as one:
            last = run(app, ledger, "t1")
            one.upto(last)
            monkeypatch.setattr(Ledger, "last_entry", before)
            with streaming(address) as other:
                assert int(next(other)["id"]) == last


@pytest.mark.lengthy
def test_streams_end_when_the_file_of_the_ledger_is_gone_and_pages_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not show what was removed for ever; what is put back is shown again."""
    monkeypatch.setattr(_watching, "_AGAIN", 0.1)
    monkeypatch.setattr(arbiter.web.live, "_RETRY", 0.1)
    path, aside = tmp_path / "arbiter.db", tmp_path / "aside"
    with Ledger(path) as ledger:
        _, app = payments(ledger)
        run(app, ledger, "t0")
    with Ledger(path) as ledger, served(viewer(ledger, auth=signed_in)) as address:
        with streaming(address) as events:
            path.rename(aside)
            path.touch()
            gone = httpx.get(address)
            assert gone.status_code == 500
            assert "is another file now; put it back" in gone.text
            path.unlink()
            assert "was removed; put it back" in httpx.get(f"{address}/inbox").text
            assert httpx.get(f"{address}/live").status_code == 500
            assert list(events) == []  # it has ended
            assert not path.exists()
        aside.rename(path)
        assert httpx.get(address).status_code == 200


@pytest.mark.lengthy
def test_a_stream_that_lags_hears_that_everything_may_have_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter.web.live, "_KEPT", 5)
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)
        run(app, ledger, "t0", "t1", "t2")
        with (
            served(viewer(ledger, auth=signed_in)) as address,
            streaming(address, params={"after": "1"}) as events,
        ):
            assert next(events)["data"]["threads"] is None


@pytest.mark.lengthy
def test_streams_are_bounded_and_pages_still_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter.web.live, "STREAMS", 2)
    with Ledger(tmp_path / "arbiter.db") as ledger, served(viewer(ledger, auth=signed_in)) as address:
        with streaming(address) as _one, streaming(address) as _other:  # a stream without a name is closed
            assert httpx.get(f"{address}/live").status_code == 503
            assert httpx.get(address).status_code == 200

        def again() -> bool:
            with httpx.stream("GET", f"{address}/live", timeout=30) as response:
                return response.status_code == 200

        until(again)


@pytest.mark.lengthy
def test_streams_that_are_asked_for_at_once_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter.web.live, "STREAMS", 2)

    def began(connection: socket.socket) -> bool:
        """Wait for the first event, or for the sign that there is none."""
        found = b""
        while not any(sign in found for sign in (b"begun", b"retry: 30000", b" 503 ")):
            found += connection.recv(4096)
        return b"begun" in found

    with Ledger(tmp_path / "arbiter.db") as ledger, served(viewer(ledger, auth=signed_in)) as address:
        url = httpx.URL(address)
        with ExitStack() as stack:
            asking = [stack.enter_context(socket.create_connection((url.host, url.port))) for _ in range(8)]
            for connection in asking:
                connection.sendall(b"GET /live HTTP/1.1\r\nHost: viewer\r\n\r\n")
            assert sum(map(began, asking)) == 2


@pytest.mark.lengthy
def test_a_quiet_stream_gets_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter.web.live, "QUIET", 0.05)
    with (
        Ledger(tmp_path / "arbiter.db") as ledger,
        served(viewer(ledger, auth=signed_in)) as address,
        httpx.stream("GET", f"{address}/live", timeout=30) as response,
    ):
        assert ": nothing new" in iter(response.iter_lines())


@pytest.mark.lengthy
def test_a_viewer_that_stops_ends_its_streams_and_its_poller(tmp_path: Path) -> None:
    with Ledger(tmp_path / "arbiter.db") as ledger:
        app = viewer(ledger, auth=signed_in)
        with served(app) as address, streaming(address) as events:
            app.state.feed.close()
            assert list(events) == []
        until(lambda: "arbiter live" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.lengthy
def test_a_commit_is_noticed_without_reading_the_tables(where: str) -> None:
    """SQLite's number has changed, or PostgreSQL has notified; while nothing is committed, no look is due."""
    with Ledger(where, flush_every=0.01) as ledger, closing(ledger.watch()) as looks:
        _, app = payments(ledger)
        run(app, ledger, "t0")
        assert next(looks) is True
        assert not all(next(looks) for _ in range(20))
        run(app, ledger, "t1")
        assert True in [next(looks) for _ in range(3)]
