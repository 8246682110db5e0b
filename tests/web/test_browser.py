"""The viewer in a real Chromium that reaches nothing but the viewer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from arbiter import ArbiterOS
from arbiter.harness import Case, Suite
from arbiter.ledger import Ledger
from arbiter.web.context import line
from arbiter.web.exporting import html_lines
from examples.payments.graph import build
from examples.payments.viewer import record
from tests.experiments.experiment_support import experiment
from tests.ledger.ledger_support import conf, payments, pays_up_to, sql
from tests.support import Spy, chain
from tests.web.chromium import Chromium, Tab
from tests.web.drafts import record_drafts
from tests.web.hostile_texts import TEXTS, record_hostile
from tests.web.pages import opened

pytestmark = pytest.mark.lengthy
EXAMPLE = Path(__file__).parents[2] / "examples" / "payments"
INTRUDERS = (
    "main :is(img, iframe, base, style, link, meta, template, object, b), main script:not([type='application/json']), "
    "main [onerror], main [onload], main [ontoggle], form[action*=evil], a[href^=javascript]"
)
"""Elements that no page makes, but hostile texts would."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A ledger and the address with the key to its viewer."""

    ledger: Ledger
    key: str

    @property
    def address(self) -> str:
        return self.key.partition("/?")[0]

    def thread(self, thread_id: str) -> str:
        return f"{self.address}/threads/{self.ledger.reader.thread(thread_id)['ref']}"

    def item(self, **wanted: Any) -> str:
        item = next(iter(self.ledger.items(**wanted)))
        return f"{self.address}/threads/{item.ref}/items/{item.seq}"


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shown]:
    with Ledger(tmp_path_factory.mktemp("books") / "books.db") as ledger:
        record(ledger, build())
        record_drafts(ledger, ["too short", "now it is long enough"])
        with opened(ledger, constitution=str(EXAMPLE)) as (key, _):
            yield Shown(ledger, key)


def pages(shown: Shown) -> list[str]:
    """One page of each kind."""
    return [
        f"{shown.address}/",
        f"{shown.address}/?verdict=deny",
        f"{shown.address}/?below=x",
        shown.thread("A-2-kim-3"),
        shown.item(node="pay", thread_id="A-2-kim-3"),
        shown.item(verdict="deny"),
        shown.item(thread_id="drafted"),
        f"{shown.address}/evaluations",
        f"{shown.address}/verify",
        f"{shown.address}/replay",
        f"{shown.address}/reports",
        f"{shown.address}/reports/table1",
    ]


def test_from_the_threads_to_a_node_run_by_mouse(browser: Chromium, books: Shown) -> None:
    def visit(tab: Tab) -> str:
        page = tab.page
        page.goto(books.key)
        page.click("text=I-1-kim-1")
        page.wait_for_selector("svg.drawn")
        page.click("summary:has-text('✗ denied')")
        page.wait_for_selector("details[open] .part h2:has-text('Checks')")
        page.goto(books.item(verdict="deny", policy="known_vendors"))
        return str(page.inner_text("main"))

    assert "known_vendors" in browser.run(visit)


def test_from_the_threads_to_a_node_run_by_keyboard(browser: Chromium, books: Shown) -> None:
    """Tab and Enter alone lead from the list into a node run of the thread."""

    def press_until(page: Any, key: str, selector: str) -> None:
        for _ in range(80):
            page.keyboard.press(key)
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} gets no focus")

    def visit(tab: Tab) -> str:
        page = tab.page
        page.goto(books.key)
        press_until(page, "Tab", "a[href^='/threads/']")
        page.keyboard.press("Enter")
        page.wait_for_selector("svg.drawn")
        press_until(page, "Tab", ".siblings summary")
        page.keyboard.press("Enter")
        page.wait_for_selector("details[open] .part h2")
        return str(page.inner_text("details[open] .part"))

    assert "Place in the chain" in browser.run(visit)


def test_the_drawing_marks_the_recorded_path(browser: Chromium, books: Shown) -> None:
    """A denied payment was never sent; a memo was sent back as often as recorded."""

    def visit(tab: Tab) -> dict[str, int]:
        tab.page.goto(books.key)
        tab.page.goto(books.thread("I-1-kim-1"))
        tab.page.wait_for_selector("svg.drawn")
        found: dict[str, int] = tab.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('svg.drawn .edge.taken')].map(edge =>"
            " [`${edge.dataset.from} ${edge.dataset.to}`, Number(edge.dataset.count)]))"
        )
        return found

    nodes = [item.node for item in books.ledger.items(thread_id="I-1-kim-1", order="oldest")]
    expected: dict[str, int] = {}
    for pair in zip(["__start__", *nodes], nodes, strict=False):
        expected[" ".join(pair)] = expected.get(" ".join(pair), 0) + 1
    assert browser.run(visit) == expected


def test_a_thread_that_grows_shows_its_new_node_runs_and_its_longer_path(
    browser: Chromium, tmp_path: Path
) -> None:
    """The page that is open is not loaded again."""
    with Ledger(tmp_path / "grows.db") as ledger:
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf("t"))
        assert ledger.flush(60)
        with opened(ledger) as (key, _):
            shown = Shown(ledger, key)

            def visit(tab: Tab) -> None:
                page = tab.page
                page.goto(key)
                page.goto(shown.thread("t"))
                page.wait_for_selector("svg.drawn")
                assert page.locator(".siblings details").count() == 2
                page.evaluate("() => { window.sameDocument = true; }")
                page.locator("summary:has-text('The path as a table')").press("Enter")
                for _ in range(2):
                    app.invoke({"amount": 1}, conf("t"))
                page.wait_for_function("() => document.querySelectorAll('.siblings details').length === 6")
                longer = "svg.drawn .edge[data-from=check][data-to=pay][data-count='3']"
                page.wait_for_selector(longer, state="attached")
                page.get_by_text("6, 0 denied, 0 asked").wait_for()
                assert page.evaluate("() => window.sameDocument")
                page.wait_for_selector("details[open] summary:focus:has-text('The path as a table')")
                assert page.locator("svg.drawn").count() == 1

            browser.run(visit)


@pytest.mark.slow
def test_a_page_that_stays_open_keeps_its_newest_rows_and_a_link_to_the_others(
    browser: Chromium, tmp_path: Path
) -> None:
    """A node run that a person has unfolded stays; the browser keeps nothing of the rows that have gone."""
    with Ledger(tmp_path / "grows.db", flush_every=0.01) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(*(Spy(f"node {number}") for number in range(99))))
        app.invoke({}, conf("t"))
        assert ledger.flush(30)
        with opened(ledger) as (key, _):
            shown = Shown(ledger, key)

            def rows(page: Any) -> list[int]:
                ids: list[str] = page.evaluate(
                    "() => [...document.querySelectorAll('.siblings > details, .steps > .remark')].map(row => row.id)"
                )
                return [int(each[1:]) for each in ids]

            def newest() -> int:
                entries, _ = ledger.reader.entries(ledger.reader.thread("t")["id"], limit=1)
                return entries[0].seq

            def grow(page: Any, times: int) -> int:
                """Run the graph, and return the number of nodes that the browser keeps then."""
                for _ in range(times):
                    app.invoke({}, conf("t"))
                    assert ledger.flush(30)
                    page.wait_for_selector(f"#e{newest()}", state="attached")
                page.wait_for_function("() => document.querySelectorAll('.siblings details').length <= 250")
                protocol = page.context.new_cdp_session(page)
                protocol.send("HeapProfiler.collectGarbage")
                protocol.send("HeapProfiler.collectGarbage")
                return int(protocol.send("Memory.getDOMCounters")["nodes"])

            def visit(tab: Tab) -> None:
                page = tab.page
                page.goto(key)
                page.goto(shown.thread("t"))
                page.click("#e3 summary")
                page.wait_for_selector("#e3[open] .part h2")
                before = grow(page, 4)
                after = grow(page, 4)
                assert after < 1.2 * before
                found = rows(page)
                assert len(found) <= 250
                assert found[0] == 3
                assert found[1:] == list(range(found[1], newest() + 1))
                with page.expect_navigation():
                    page.click("#older a")
                assert rows(page)[-1] == found[1] - 1

            browser.run(visit)


def test_an_open_page_of_a_thread_that_is_erased_shows_its_contents_no_more(
    browser: Chromium, tmp_path: Path
) -> None:
    """Neither those of a node run that is unfolded, nor the name of the thread."""
    with Ledger(tmp_path / "erased.db", flush_every=0.01) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        app.invoke({"log": ["a private text"]}, conf("secret-name"))
        assert ledger.flush(10)
        with opened(ledger) as (key, _):
            shown = Shown(ledger, key)

            def visit(tab: Tab) -> None:
                page = tab.page
                page.goto(key)
                home = page.context.new_page()
                home.goto(key.partition("?")[0])
                page.goto(shown.thread("secret-name"))
                page.click(".siblings summary >> nth=0")
                page.wait_for_selector("details[open] .part pre:has-text('a private text')")
                with Ledger(tmp_path / "erased.db") as another:
                    another.erase(thread_id="secret-name", reason="request 1")
                page.get_by_role("heading", name="(erased)").wait_for()
                home.get_by_text("(erased)").first.wait_for()
                for each in (page, home):
                    assert "a private text" not in each.content()
                    assert "secret-name" not in each.content()

            browser.run(visit)


def test_all_but_live_and_drawing_works_without_scripts(browser: Chromium, books: Shown) -> None:
    def visit(tab: Tab) -> None:
        page = tab.page
        page.goto(books.key)
        page.select_option("select[name=verdict]", "deny")
        page.click("button:has-text('Find')")
        page.click("tbody th a >> nth=0")
        assert page.inner_text("h1")
        page.click("nav[aria-label=Place] a >> nth=0")
        page.click("summary:has-text('The path as a table')")
        assert "memo" in page.inner_text("details[open] table")
        page.click(".siblings summary >> nth=0")
        page.click("details[open] .part a")
        assert "Place in the chain" in page.inner_text("main")
        page.goto(f"{books.address}/verify")
        page.click("main button")
        page.wait_for_selector("#verdict")
        assert "intact" in page.inner_text("#verdict")

    browser.run(visit, java_script_enabled=False)


def test_pages_are_accessible_in_light_and_dark(browser: Chromium, books: Shown) -> None:
    """axe-core finds nothing, and a screen of 320 px needs no sideways scrolling."""
    assert _findings(browser, books, pages(books)) == {}


def _echo(text: Any) -> Any:
    return text


@pytest.mark.slow
def test_pages_of_measurements_are_accessible(
    browser: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few environments show little
        experiment().run()
    cases = [Case("a", "yes"), Case("b", "no")]
    Suite("suite", cases, scorers={"yes": lambda run: run.output == "yes"}).run(_echo)
    with Ledger(tmp_path / "l.db") as ledger, opened(ledger) as (key, client):
        listed = re.findall(r'href="(/reports/[^"]+)"', client.get("/reports").text)
        assert len(listed) == 3
        shown = Shown(ledger, key)
        assert _findings(browser, shown, [shown.address + path for path in ("/reports", *listed)]) == {}


def _findings(browser: Chromium, shown: Shown, addresses: Sequence[str]) -> dict[str, Any]:
    """The findings of axe-core on these pages in light and dark, and their widths if they are above 320
    px."""

    def visit(tab: Tab) -> dict[str, Any]:
        page = tab.page
        page.goto(shown.key)
        found: dict[str, Any] = {}
        for address in addresses:
            page.goto(address)
            if "/threads/" in address and "items" not in address:
                page.wait_for_selector("svg.drawn")
            if problems := tab.axe():
                found[f"light {address}"] = problems
            page.emulate_media(color_scheme="dark")
            if problems := tab.axe(["color-contrast"]):
                found[f"dark {address}"] = problems
            page.emulate_media(color_scheme="light")
            width = page.evaluate("() => document.documentElement.scrollWidth")
            if width > 320:
                found[f"wide {address}"] = width
        # A page that says what is wrong with a filter has the status 400, which Chromium reports.
        tab.troubles = [trouble for trouble in tab.troubles if "400 (Bad Request)" not in trouble]
        return found

    return browser.run(visit, viewport={"width": 320, "height": 640})


SOME = TEXTS[::18]


@pytest.mark.parametrize("texts", [SOME, pytest.param(TEXTS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_hostile_texts_are_texts_on_every_page(
    browser: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Sequence[str]
) -> None:
    """No dialog, no error, no request elsewhere, and no element that a text has made."""
    monkeypatch.chdir(tmp_path)
    with Ledger(tmp_path / "hostile.db") as ledger:
        graphs = record_hostile(ledger, texts)
        for text in texts:
            Suite(
                line(text, 60), [Case("a", text)], scorers={"text": lambda run, text=text: (0.5, text)}
            ).run(_echo)
        with opened(ledger, graphs=graphs, constitution=str(EXAMPLE)) as (key, _):
            shown = Shown(ledger, key)

            def visit(tab: Tab) -> None:
                tab.page.goto(key)
                _visit_threads(tab.page, shown)
                _visit_others(tab.page, shown)
                # A ledger escapes NUL in the id of a thread, so no checkpointer finds that thread by it.
                assert _visit_questions(tab.page, shown) == sum("\0" not in text for text in texts)
                _visit_jobs(tab.page, shown, tmp_path / "hostile.db")

            browser.run(visit)


def _visit_threads(page: Any, shown: Shown) -> None:
    _check(page)
    for path in ("/?verdict=deny", "/?status=failed"):
        page.goto(shown.address + path)
        _check(page)
    for thread in shown.ledger.threads():
        page.goto(f"{shown.address}/threads/{thread['ref']}")
        page.wait_for_selector("svg.drawn")
        _check(page)
        assert line(thread["thread_id"], 60).strip() in page.inner_text("h1")
        for wanted in ({"verdict": "ask"}, {"verdict": "deny"}, {"status": "failed"}):
            page.goto(shown.item(thread_id=thread["thread_id"], **wanted))
            _check(page)


def _visit_others(page: Any, shown: Shown) -> None:
    """The pages of evaluations and reports."""
    page.goto(f"{shown.address}/evaluations")
    for number in range(page.locator("select[name=name] option").count()):
        page.goto(f"{shown.address}/evaluations")
        page.select_option("select[name=name]", index=number)
        page.click("button:has-text('Show')")
        page.wait_for_selector("#scores")
        _check(page)
    page.goto(f"{shown.address}/reports")
    _check(page)
    for run in page.eval_on_selector_all(
        "a[href*='/reports/runs/']", "links => links.map(link => link.href)"
    ):
        page.goto(run)
        _check(page)


def _visit_questions(page: Any, shown: Shown) -> int:
    """The number of questions. The first one is answered."""
    page.goto(f"{shown.address}/inbox")
    _check(page)
    found = page.eval_on_selector_all("td a[href*='/inbox/']", "links => links.map(link => link.href)")
    for question in found:
        page.goto(question)
        _check(page)
    page.get_by_label("Reason").fill(TEXTS[1])
    page.get_by_role("button", name="Reject").click()
    page.get_by_text("✗ the run was denied").wait_for()
    _check(page)
    return len(found)


def _visit_jobs(page: Any, shown: Shown, file: Path) -> None:
    """A replay with differences, and a verification with findings."""
    page.goto(f"{shown.address}/replay")
    page.click("main button")
    page.get_by_role("heading", name="Differences").wait_for()
    _check(page)
    with sql(file) as run:
        run("UPDATE entries SET node = node || '<b>' WHERE kind = 'item'")
    page.goto(f"{shown.address}/verify")
    page.click("main button")
    page.get_by_role("heading", name="Findings").wait_for()
    _check(page)


def _check(page: Any) -> None:
    assert page.locator(INTRUDERS).count() == 0, page.url


def test_exports_show_hostile_texts_as_texts(browser: Chromium, tmp_path: Path) -> None:
    """The file draws the graph and asks no server; its policy lets no other script run."""
    with Ledger(tmp_path / "hostile.db") as ledger:
        record_hostile(ledger, TEXTS[:3])
        files = [tmp_path / f"{number}.html" for number, _ in enumerate(ledger.threads())]
        for file, thread in zip(files, ledger.threads(), strict=True):
            file.write_text("".join(html_lines(ledger, thread["ref"])), encoding="utf-8")

    def visit(tab: Tab) -> None:
        for file in files:
            tab.page.goto(file.as_uri())
            tab.page.wait_for_selector("svg.drawn")
            _check(tab.page)
        assert set(tab.requests) == {file.as_uri() for file in files}

    browser.run(visit)


@pytest.mark.slow
def test_a_long_thread_opens_as_fast_as_a_short_one(browser: Chromium, tmp_path: Path) -> None:
    """A page of a thread of 10,000 node runs: at most 250 rows and 300 kB, painted within three times an empty
    page's time.
    """
    with Ledger(tmp_path / "long.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(pays_up_to(100))
        app = arbiter_os.govern(chain(*(Spy(f"node {number}") for number in range(10))))
        for _ in range(1_000):
            app.invoke({"amount": 1}, conf("long"))
        assert ledger.flush(120)
        with opened(ledger) as (key, client):
            shown = Shown(ledger, key)
            long, empty = shown.thread("long"), f"{shown.address}/verify"
            for query in ("", "?before=5000", "?after=5000"):
                assert len(client.get(long + query).content) < 300_000

            def painted(tab: Tab, address: str) -> float:
                tab.page.goto(address)
                tab.page.wait_for_function("() => performance.getEntriesByType('paint').length > 0")
                found: float = tab.page.evaluate(
                    "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
                )
                return found

            def visit(tab: Tab) -> tuple[float, float, int]:
                tab.page.goto(key)
                pairs = [(painted(tab, empty), painted(tab, long)) for _ in range(7)]
                rows = tab.page.locator("ol.steps > li").count()
                return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs), rows

            before, after, rows = browser.run(visit)
    print(f"first paint: empty page {before:.0f} ms, 10,000 node runs {after:.0f} ms, {rows} rows")
    assert rows <= 250
    assert after < 3 * before + 100, (before, after)
