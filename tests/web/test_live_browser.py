"""Live pages and answers in a real Chromium: all tabs of a browser, and a person at a form."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from arbiter.ledger import Ledger
from arbiter.web import threads, viewer
from arbiter.web.access import TokenAccess, Tokens
from tests.ledger.ledger_support import conf, payments
from tests.web.chromium import Chromium, Tab
from tests.web.paused_graph import SECRET, Payments, paused
from tests.web.serving import free_port, served, signed_in
from tests.web.test_inbox import answers

pytestmark = pytest.mark.lengthy
TABS = 12
HOSTILE = "<img src=x onerror=alert(1)>'\"\u202e\x1b[31m{{7*7}}</textarea><script>alert(2)</script>"


def shows(page: Any, text: str) -> None:
    page.get_by_text(text, exact=True).first.wait_for(timeout=20_000)


@pytest.mark.slow
def test_twelve_tabs_are_live_and_a_thirteenth_loads(browser: Chromium, tmp_path: Path) -> None:
    """All tabs of a browser share one stream: with one for each, the seventh would hang."""
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf("before"))
        ledger.flush(20)
        made = viewer(ledger, auth=signed_in)

        def visit(tab: Tab) -> tuple[int, float]:
            context = tab.page.context
            tabs = [tab.page, *(context.new_page() for _ in range(TABS - 1))]
            for page in tabs:
                page.goto(address)
                shows(page, "before")
            app.invoke({"amount": 1}, conf("while-open"))
            ledger.flush(20)
            committed = time.monotonic()
            for page in tabs:
                shows(page, "while-open")
            took = time.monotonic() - committed
            streams = made.state.feed.streams
            thirteenth = context.new_page()
            thirteenth.goto(address)
            shows(thirteenth, "while-open")
            return streams, took

        with served(made) as address:
            streams, took = browser.run(visit)
        assert streams == 1
        # Shown in all tabs, asked one after another; alone on a machine, it takes 0.5 s.
        assert took < 1.5 * TABS


@pytest.mark.parametrize("has_shared_workers", [True, False])
def test_a_page_hears_of_the_first_run_of_a_ledger_when_it_came_before_its_stream(
    browser: Chromium, tmp_path: Path, has_shared_workers: bool
) -> None:
    """The page shows an empty ledger, and the run is committed before the page has begun to listen."""
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)
        made = viewer(ledger, auth=signed_in)

        def first_run() -> None:
            app.invoke({"amount": 1}, conf("first"))
            assert ledger.flush(20)

        async def slow_to_listen(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == "/live" and not ledger.last_entry:
                await run_in_threadpool(first_run)
            await made(scope, receive, send)

        def visit(tab: Tab) -> None:
            if not has_shared_workers:
                tab.page.add_init_script("delete window.SharedWorker")
            tab.page.goto(address)
            shows(tab.page, "first")

        with served(slow_to_listen) as address:
            browser.run(visit)


def test_a_thread_shows_what_was_committed_while_its_page_was_asking(
    browser: Chromium, tmp_path: Path
) -> None:
    """The rows that it gets replace the element that asked for them, and events to it would be lost."""
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)
        made = viewer(ledger, auth=signed_in)
        is_slow = [True]

        def runs() -> None:
            app.invoke({"amount": 1}, conf("t"))
            assert ledger.flush(20)

        async def slow_rows(scope: Any, receive: Any, send: Any) -> None:
            async def later(message: Any) -> None:
                if message["type"] == "http.response.start" and is_slow and scope["path"].endswith("/rows"):
                    is_slow.clear()
                    await run_in_threadpool(runs)  # the rows are made, and do not have this run
                    await asyncio.sleep(1)  # the page hears of it meanwhile
                await send(message)

            await made(scope, receive, later)

        def visit(tab: Tab) -> None:
            tab.page.goto(f"{address}/threads/{next(iter(ledger.threads()))['ref']}")
            runs()
            tab.page.wait_for_function("() => document.querySelectorAll('.siblings details').length === 6")

        runs()
        with served(slow_rows) as address:
            browser.run(visit)


def test_tabs_hear_of_what_was_committed_while_the_stream_was_refused(
    browser: Chromium, tmp_path: Path
) -> None:
    """Also of what a tab that was opened meanwhile shows already; and they say that they are not updated."""
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)
        made = viewer(ledger, auth=signed_in)
        refused = [True]

        async def refuses_streams(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == "/live" and refused:
                await PlainTextResponse("no", 503)(scope, receive, send)
            else:
                await made(scope, receive, send)

        def visit(tab: Tab) -> None:
            tab.page.goto(address)
            tab.page.get_by_text("This page is not updated now").wait_for()
            app.invoke({"amount": 1}, conf("meanwhile"))
            assert ledger.flush(20)
            other = tab.page.context.new_page()
            other.goto(address)
            shows(other, "meanwhile")
            refused.clear()
            shows(tab.page, "meanwhile")
            tab.page.wait_for_selector("#lost:empty", state="attached")
            tab.troubles[:] = [each for each in tab.troubles if "503" not in each]

        with served(refuses_streams) as address:
            browser.run(visit)


def test_a_list_that_goes_on_on_further_pages_is_live(
    browser: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of the day and the link to older threads follow; a page of older threads stays as it is."""
    monkeypatch.setattr(threads, "PAGE", 2)
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)

        def run(*names: str) -> None:
            for name in names:
                app.invoke({"amount": 1}, conf(name))
            assert ledger.flush(20)

        def visit(tab: Tab) -> None:
            page = tab.page
            page.goto(address)
            older = page.context.new_page()
            older.goto(address)
            older.click("text=Older threads")
            shows(older, "t1")
            run("new")
            shows(page, "new")
            page.get_by_text("8 node runs", exact=False).wait_for()
            page.click("text=Older threads")
            shows(page, "t2")
            assert older.locator("tbody th").all_inner_texts() == ["t1"]

        run("t1", "t2", "t3")
        with served(viewer(ledger, auth=signed_in)) as address:
            browser.run(visit)


@pytest.mark.slow
def test_a_page_goes_on_after_the_viewer_has_restarted(browser: Chromium, tmp_path: Path) -> None:
    """The browser comes back with the id of the last event, and hears of what it missed."""
    port = free_port()
    tokens, token = Tokens.fresh("ann")
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        _, app = payments(ledger)

        def server() -> Any:
            return served(viewer(ledger, auth=TokenAccess(tokens, host="127.0.0.1", port=port)), port)

        def run(thread: str) -> None:
            app.invoke({"amount": 1}, conf(thread))
            ledger.flush(20)

        def visit(tab: Tab) -> None:
            with server() as address:
                tab.page.goto(f"{address}/?token={token}")
                assert "token" not in tab.page.url
                run("first")
                shows(tab.page, "first")
                assert tab.troubles == []
            run("while-down")
            tab.page.evaluate("console.error('a fault of the page')")
            with server():
                shows(tab.page, "while-down")
                tab.forgive_unanswered()
                assert tab.troubles == ["console: a fault of the page"]
                tab.troubles.clear()
                run("after")
                shows(tab.page, "after")

        browser.run(visit)


@pytest.mark.parametrize("has_scripts", [True, False])
def test_a_run_is_edited_in_the_browser(browser: Chromium, tmp_path: Path, has_scripts: bool) -> None:
    """It was paused elsewhere; the browser sends a wrong edit and then a right one, with scripts or without."""
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        waiting = Payments(tmp_path)
        paused(waiting.governed(ledger), "pay-7", note=HOSTILE, account={"api_key": SECRET})
        ledger.flush(20)
        graph = Payments(tmp_path).governed(ledger)

        def visit(tab: Tab) -> None:
            page = tab.page
            page.goto(f"{address}/inbox")
            page.get_by_role("link", name="Answer the question of pay-7, pay").click()
            assert SECRET not in page.content()
            assert page.get_by_label("note").input_value().startswith('"<img src=x onerror=alert(1)>')
            assert "\\u202e" in page.get_by_label("note").input_value()
            page.get_by_label("amount").fill("nine")
            page.get_by_role("button", name="Approve with these changes").click()
            assert "This is not JSON" in page.get_by_role("alert").inner_text()
            tab.troubles[:] = [each for each in tab.troubles if "status of 400" not in each]
            assert page.get_by_label("amount").input_value() == "nine"
            page.get_by_label("amount").fill("900")
            page.get_by_role("button", name="Approve with these changes").click()
            shows(page, "✓ the run has ended")

        with served(viewer(ledger, {"payments": graph}, auth=signed_in)) as address:
            browser.run(visit, java_script_enabled=has_scripts)
        assert waiting.paid == [f"900 Löhne {SECRET}"]
        assert answers(ledger, tmp_path) == [("edit", "ann")]
        assert graph.get_state(conf("pay-7")).values["note"] == HOSTILE


def test_the_inbox_is_live_and_accessible(browser: Chromium, tmp_path: Path) -> None:
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as ledger:
        graph = Payments(tmp_path).governed(ledger)

        def findings(tab: Tab) -> list[str]:
            wide = tab.page.evaluate("document.documentElement.scrollWidth")
            found = tab.axe()
            tab.page.emulate_media(color_scheme="light")
            found += [f"light: {each}" for each in tab.axe(["color-contrast"])]
            tab.page.emulate_media(color_scheme="dark")
            return [*found, *([f"{tab.page.url} is {wide} pixels wide"] if wide > 320 else ())]

        def visit(tab: Tab) -> list[str]:
            page = tab.page
            page.goto(f"{address}/inbox")
            found = findings(tab)
            for number, thread in enumerate(("pay-7", HOSTILE)):
                paused(graph, thread, note=HOSTILE)
                page.get_by_role("link", name="Answer the question of").nth(number).wait_for()
            found += findings(tab)
            page.get_by_role("link", name="Answer the question of <img").press("Enter")
            found += findings(tab)
            page.get_by_label("amount").fill("x")
            page.get_by_role("button", name="Approve with these changes").press("Enter")
            shows(page, "✗ This is not JSON: Expecting value: line 1 column 1 (char 0). A text needs quotes.")
            found += findings(tab)
            page.get_by_label("Reason").fill("not now")
            page.get_by_role("button", name="Reject").press("Enter")
            page.get_by_text("✗ the run was denied").wait_for()
            found += findings(tab)
            tab.troubles[:] = [each for each in tab.troubles if "status of 400" not in each]
            return found

        with served(viewer(ledger, {"payments": graph}, auth=signed_in)) as address:
            assert browser.run(visit, viewport={"width": 320, "height": 640}, color_scheme="dark") == []
