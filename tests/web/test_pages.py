"""The pages of the viewer as a client without JavaScript gets them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount

from arbiter import ArbiterOS
from arbiter.cli._export import export_records
from arbiter.errors import ConfigurationError
from arbiter.harness import Case, Suite
from arbiter.ledger import Ledger
from arbiter.web import viewer
from arbiter.web.differences import word_differences
from arbiter.web.evaluations import POINTS, bounded
from arbiter.web.exporting import html_lines
from examples.payments.graph import build
from examples.payments.viewer import record
from tests.experiments.experiment_support import experiment
from tests.ledger.ledger_support import conf, payments, pays_up_to, recorded, sql
from tests.support import Judge, Spy, chain, until
from tests.web.drafts import record_drafts
from tests.web.hostile_texts import TEXTS, record_hostile
from tests.web.pages import opened
from tests.web.serving import served, signed_in

EXAMPLE = Path(__file__).parents[2] / "examples" / "payments"


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Ledger, httpx.Client]]:
    """The ledger of the payments example and a client of its viewer."""
    with Ledger(tmp_path_factory.mktemp("books") / "books.db") as ledger:
        record(ledger, build())
        with opened(ledger, constitution=str(EXAMPLE)) as (_, client):
            yield ledger, client


def text_of(page: str) -> str:
    """The text of a page, without its markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def ref_of(ledger: Ledger, thread_id: str) -> str:
    return str(ledger.reader.thread(thread_id)["ref"])


def linked(page: str, pattern: str) -> list[str]:
    """The addresses in a page that match."""
    return [unescape(link) for link in re.findall(r'href="([^"]*)"', page) if re.search(pattern, link)]


@pytest.mark.lengthy
def test_threads_are_listed_with_their_totals_and_how_they_ended(books: tuple[Ledger, httpx.Client]) -> None:
    ledger, client = books
    page = client.get("/")
    text = text_of(page.text)
    for thread in ledger.threads():
        assert str(thread["thread_id"]) in text
        assert f"/threads/{thread['ref']}" in page.text
    assert "denied by known_vendors" in text
    assert "waits for a human" in text


@pytest.mark.parametrize(
    "asked",
    [
        {"verdict": "deny"},
        {"node": "pay", "status": "completed"},
        {"evaluator": "memo_quality", "below": "0.9"},
    ],
)
def test_filters_find_the_node_runs_that_the_ledger_finds(
    books: tuple[Ledger, httpx.Client], asked: dict[str, str]
) -> None:
    ledger, client = books
    wanted: dict[str, Any] = {**asked, **({"below": float(asked["below"])} if "below" in asked else {})}
    expected = {f"/threads/{item.ref}/items/{item.seq}" for item in ledger.items(**wanted)}
    shown = set(linked(client.get("/", params=asked).text, r"/items/\d+$"))
    assert shown == expected != set()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/?below=x", "expected a number"),
        ("/?below=1", "name the evaluator"),
        ("/?since=yesterday", "expected an aware datetime"),
        ("/?verdict=no", "expected one of"),
        ("/?node=pya", "Did you mean 'pay'?"),
        ("/?policy=known_vendor", "Did you mean 'known_vendors'?"),
        ("/?node=pay&after=zzzz.1", "of another ledger"),
        ("/evaluations?name=memo_qualty", "Did you mean 'memo_quality'?"),
        ("/evaluations?every=week", "which this ledger does not know"),
    ],
)
def test_a_wrong_filter_is_a_sentence_on_the_page(
    books: tuple[Ledger, httpx.Client], path: str, sentence: str
) -> None:
    answer = books[1].get(path)
    assert answer.status_code == 400
    assert sentence in text_of(answer.text)
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/threads/none",
        "/threads/none/items/1",
        "/nowhere",
        "/reports/runs/..%2f..%2fetc",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
    ],
)
def test_an_unknown_page_is_a_404_with_a_sentence(books: tuple[Ledger, httpx.Client], path: str) -> None:
    assert books[1].get(path).status_code == 404


def test_browsers_that_ask_for_an_icon_get_one(books: tuple[Ledger, httpx.Client]) -> None:
    found = books[1].get("/favicon.ico")
    assert (found.status_code, found.headers["content-type"]) == (200, "image/svg+xml")


def test_a_node_run_shows_who_decided_by_which_rule_and_its_place_in_the_chain(
    books: tuple[Ledger, httpx.Client],
) -> None:
    """The rule's text is that of the constitution under which the run was decided."""
    ledger, client = books
    (item, *_) = ledger.items(verdict="deny", policy="known_vendors")
    page = client.get(f"/threads/{item.ref}/items/{item.seq}").text
    text = text_of(page)
    assert f"✗ denied known_vendors: {item.check_policy_results['known_vendors'].reason}" in text
    assert "name: known_vendors" in text
    with sql(Path(ledger.where)) as run:
        ((hash,),) = run(
            "SELECT hash FROM entries e JOIN threads t ON t.id = e.thread WHERE ref = ? AND seq = ?",
            item.ref,
            item.seq,
        )
    assert hash.hex() in page
    assert "the entry is chained only" in text


def test_an_edited_input_shows_the_difference_and_the_answer(books: tuple[Ledger, httpx.Client]) -> None:
    ledger, client = books
    (item,) = ledger.items(thread_id="A-2-kim-3", node="pay")
    page = client.get(f"/threads/{item.ref}/items/{item.seq}").text
    assert "A human edited the input" in text_of(page)
    (removed, added) = re.search(r"<del>([^<]*)</del>.*?<ins>([^<]*)</ins>", page, re.S).groups()  # type: ignore[union-attr]
    assert (removed, added) == ("1800", "900")
    assert "answer edit" in text_of(page)
    assert "attempt 1: interrupted" in text_of(page)


@pytest.mark.lengthy
def test_drafts_show_what_was_added_and_removed(tmp_path: Path) -> None:
    """Words that a later draft added are `ins`, removed ones `del`, and all are escaped."""
    with Ledger(tmp_path / "drafts.db") as ledger:
        record_drafts(ledger, ["<b>too</b> short", "<b>now</b> long enough"])
        with opened(ledger) as (_, client):
            (item,) = ledger.items()
            page = client.get(f"/threads/{item.ref}/items/{item.seq}").text
    assert "<del>too</del>" in page
    assert "<ins>now</ins>" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


@pytest.mark.lengthy
def test_a_long_thread_is_walked_by_pages_of_200_each_entry_once(tmp_path: Path) -> None:
    """The newest are at the end of the first page; each page is at most 300 kB."""
    with recorded(tmp_path / "long.db", 0) as ledger:
        _, app = payments(ledger)
        for _ in range(150):
            app.invoke({"amount": 1}, conf("long"))
        assert ledger.flush(30)
        with opened(ledger) as (_, client):
            ref = ref_of(ledger, "long")
            link, found, sizes = f"/threads/{ref}", list[int](), list[int]()
            while link:
                page = client.get(link).text
                found = [int(seq) for seq in re.findall(r'id="e(\d+)"', page)] + found
                sizes.append(len(page.encode()))
                older = linked(page, r"\?before=")
                link = f"/threads/{ref}{older[0]}" if older else ""
            newer = client.get(f"/threads/{ref}?before=101").text
            assert linked(newer, r"\?after=100")
    with sql(tmp_path / "long.db") as run:  # scores that came late stand with their node run
        assert found == [seq for (seq,) in run("SELECT seq FROM entries WHERE kind != 'judged' ORDER BY seq")]
    assert len(found) == 450
    assert len(sizes) == 3
    assert max(sizes) < 300_000


def test_the_evaluations_page_shows_what_the_ledger_computes(books: tuple[Ledger, httpx.Client]) -> None:
    ledger, client = books
    page = client.get("/evaluations", params={"name": "memo_quality"}).text
    (table,) = re.findall(r'<table id="scores">.*?</table>', page, re.S)
    shown = re.findall(r"<tr>(.*?)</tr>", table, re.S)[1:]
    rows = [re.findall(r'<td class="number">(.*?)</td>', row) for row in shown]
    expected = [
        [
            f"{row['count']:,}",
            *(f"{row[name]:.4g}" for name in ("mean", "least", "most")),
            f"{100 * row['passed']:.1f} %",
        ]
        for row in ledger.scores("memo_quality", every="hour")
    ]
    assert rows == expected != []
    by_node = client.get("/evaluations", params={"name": "memo_quality", "node": "memo"}).text
    assert re.findall(r'<table id="scores">.*?</table>', by_node, re.S) == [table]
    scored = ledger.items(evaluator="memo_quality")
    lowest = min(item.evaluation_results["memo_quality"].score for item in scored)
    named = re.match(
        rf"{lowest:.4g}: entry (\d+) of thread (\S+)", text_of(page).partition("Lowest scores")[2].strip()
    )
    assert named is not None
    (item,) = [item for item in scored if (item.seq, item.thread_id) == (int(named[1]), named[2])]
    assert item.evaluation_results["memo_quality"].score == lowest


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=900))
def test_a_curve_has_at_most_300_points_and_keeps_the_totals(values: list[tuple[int, float]]) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            "at": begin + timedelta(hours=hour),
            "count": n,
            "mean": mean,
            "least": mean,
            "most": mean,
            "passed": mean,
        }
        for hour, (n, mean) in enumerate(values)
    ]
    found, _ = bounded(rows)
    assert len(found) <= POINTS
    assert sum(row["count"] for row in found) == sum(n for n, _ in values)
    total = sum(row["mean"] * row["count"] for row in found)
    assert total == pytest.approx(sum(n * mean for n, mean in values))


@given(st.text(), st.text())
def test_the_parts_of_a_difference_are_the_two_texts(before: str, after: str) -> None:
    parts = word_differences(before, after)
    assert "".join(text for kind, text in parts if kind != "ins") == before
    assert "".join(text for kind, text in parts if kind != "del") == after


def test_texts_without_a_common_word_are_compared_at_once() -> None:
    """Each blank of one text fits each blank of the other, which took minutes."""
    before, after = (" ".join(f"{letter}{number}" for number in range(1_200)) for letter in "ab")
    began = process_time()
    parts = word_differences(before, after)
    assert process_time() - began < 5
    assert parts == [("del", before), ("ins", after)]


def test_one_word_of_a_long_text_of_few_words_is_the_difference() -> None:
    before = "ok fail ok " * 200
    after = before.replace("fail", "late", 1)
    assert [part for part in word_differences(before, after) if part[0] != "same"] == [
        ("del", "fail"),
        ("ins", "late"),
    ]


def finished(client: httpx.Client, begun: httpx.Response) -> str:
    """The page of a job when it is done. The page renews itself while it runs."""
    return until(lambda: "" if 'http-equiv="refresh"' in (page := client.get(str(begun.url)).text) else page)


def begin(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    (csrf,) = set(re.findall(r'name="csrf" value="([^"]*)"', client.get(path).text))
    return client.post(path, data={"csrf": csrf, **fields}, headers={"sec-fetch-site": "same-origin"})


@pytest.mark.lengthy
def test_a_verification_leads_to_the_entry_that_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "edited.db"
    with recorded(path, 3) as ledger, opened(ledger) as (_, client):
        assert "✓ intact" in text_of(finished(client, begin(client, "/verify")))
        with sql(path) as run:
            run(
                "UPDATE entries SET body = replace(body, '\"pay\"', '\"bet\"') WHERE node = 'pay' AND thread = 2"
            )
        text = finished(client, begin(client, "/verify"))
        assert "BROKEN" in text_of(text)
        (place, *_) = linked(text, r"^/threads/.*#e\d+$")
        assert place.startswith(f"/threads/{ref_of(ledger, 't1')}")
        assert client.get(place).status_code == 200
        assert begin(client, "/verify", thread="t9").status_code == 400


@pytest.mark.lengthy
def test_a_replay_shows_the_decisions_that_differ_with_links_to_them(
    books: tuple[Ledger, httpx.Client],
) -> None:
    """The numbers are those of `Ledger.replay`; the same constitution differs nowhere."""
    ledger, client = books
    text = text_of(finished(client, begin(client, "/replay")))
    report = ledger.replay(str(EXAMPLE), since="7d")
    assert ("no decision differs" in text) == (len(report) == 0)
    for name in ("same", "stricter", "looser", "elsewhere", "unknown"):
        assert f"{name} {getattr(report.summary, name):,}" in text
    assert begin(client, "/replay", since="soon").status_code == 400


@pytest.mark.lengthy
def test_a_curve_of_scores_as_large_as_a_float_can_be_has_no_nan(tmp_path: Path) -> None:
    scores = iter([1e308, 1e308, -1e308, -1e308, -1e308])
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Judge("size", lambda _: next(scores)))
        app = arbiter_os.govern(chain(Spy("plan")))
        for _ in range(5):
            app.invoke({"log": []})
        assert ledger.flush(60)
        with opened(ledger) as (_, client):
            page = client.get("/evaluations", params={"name": "size"}).text
    (curve,) = re.findall("<svg.*?</svg>", page, re.S)
    assert "<polyline" in curve
    assert not re.search(r"\b(nan|inf)\b", curve)


@pytest.mark.lengthy
def test_a_replay_of_another_constitution_links_what_differs(tmp_path: Path) -> None:
    with recorded(tmp_path / "l.db", 1) as ledger:
        _, app = payments(ledger)
        with pytest.raises(Exception, match="denied"):
            app.invoke({"amount": 1200}, conf("much"))
        assert ledger.flush(60)
        with opened(ledger, constitution=str(EXAMPLE)) as (_, client):
            page = finished(client, begin(client, "/replay"))
            assert "1 of 3 decisions differ" in text_of(page)
            (link,) = linked(page, "^/find")
            assert client.get(link).url.path == f"/threads/{ref_of(ledger, 'much')}/items/1"
            arbiter_os = ArbiterOS(ledger=ledger)
            arbiter_os.add_policy_checker(pays_up_to(100))
            with pytest.raises(Exception, match="denied"):
                arbiter_os.govern(chain(Spy("pay"))).invoke({"amount": 1200})
            assert ledger.flush(60)
            ref = next(each["ref"] for each in ledger.threads() if each["thread_id"] is None)
            page = finished(client, begin(client, "/replay", thread=ref[:8]))
            (link,) = linked(page, "^/find")
            assert client.get(link).url.path == f"/threads/{ref}/items/1"


@pytest.mark.lengthy
def test_a_replay_whose_rules_leave_python_fails_and_another_one_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of rules may call `sys.exit`, such as for a missing setting."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaving_rules.py").write_text("raise SystemExit('KEY is not set')\n", encoding="utf-8")
    pack = tmp_path / "pack.yaml"
    pack.write_text("version: 1\nname: p\ncheckers: [{name: a, use: leaving_rules.Rule}]\n", encoding="utf-8")
    with (
        recorded(tmp_path / "l.db", 1) as ledger,
        opened(ledger, constitution=str(pack), allow=["leaving_rules."]) as (_, client),
    ):
        first = begin(client, "/replay")
        assert "KEY is not set" in text_of(finished(client, first))
        assert begin(client, "/replay").url != first.url


@pytest.mark.lengthy
def test_without_a_constitution_the_page_says_how_to_get_a_replay(tmp_path: Path) -> None:
    with recorded(tmp_path / "l.db", 1) as ledger, opened(ledger) as (_, client):
        assert "arbiter view -c DIR" in text_of(client.get("/replay").text)


@pytest.mark.lengthy
def test_pages_are_made_from_postgresql_too(postgres_url: str) -> None:
    with recorded(postgres_url, 2) as ledger, opened(ledger) as (_, client):
        thread = f"/threads/{ref_of(ledger, 't1')}"
        for path, shown in (
            ("/", "t1"),
            ("/?node=pay", "✓ allowed"),
            (thread, "the call of the graph ended: completed"),
            (f"{thread}?before=3", "pay"),
            (f"{thread}/rows?after=1", "pay"),
            (f"{thread}/items/1", "the entry is chained only"),
            ("/evaluations?name=score&node=pay&since=7d", "Lowest scores"),
            ("/evaluations?name=score&since=7d", "Lowest scores"),
        ):
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert shown in text_of(answer.text), path


@pytest.mark.lengthy
def test_an_erased_thread_is_shown_by_its_ref_without_its_texts(tmp_path: Path) -> None:
    with recorded(tmp_path / "l.db", 2) as ledger:
        ref = ref_of(ledger, "t1")
        ledger.erase(thread_id="t1", reason="request 4711")
        with opened(ledger) as (_, client):
            page = client.get(f"/threads/{ref}").text
            assert "t1" not in text_of(page)
            assert "were erased" in text_of(page)
            assert "no contents are kept" in text_of(client.get(f"/threads/{ref}/items/1").text)


@pytest.mark.lengthy
@pytest.mark.parametrize("change", ["entries SET body = '{'", "contents SET body = '5'"])
def test_changed_contents_are_a_page_and_no_traceback(change: str, tmp_path: Path) -> None:
    """A body that is not JSON any more, or another value, is one sentence that names the command which finds it."""
    path = tmp_path / "l.db"
    with recorded(path, 1) as ledger, opened(ledger) as (_, client):
        with sql(path) as run:
            run(f"UPDATE {change}")
        answer = client.get(f"/threads/{ref_of(ledger, 't0')}/items/1")
        assert answer.status_code == 500
        assert "arbiter verify" in text_of(answer.text)


def _says_yes(run: Any) -> bool:
    return bool(run.output == "yes")


def _echo(text: Any) -> Any:
    return text


@pytest.mark.lengthy
def test_a_ledger_that_a_newer_version_has_upgraded_is_a_sentence(tmp_path: Path) -> None:
    """It was opened before. No page shows what this version reads wrongly, or as an error of SQL."""
    with Ledger(tmp_path / "l.db") as ledger:
        _, app = payments(ledger)
        app.invoke({"amount": 1}, conf("t"))
        assert ledger.flush(10)
        with opened(ledger) as (_, client):
            with sql(tmp_path / "l.db") as run:
                run("UPDATE arbiter_ledger_version SET version_num = '9999'")
                run("ALTER TABLE entries RENAME COLUMN verdict TO verdict_9999")
            page = client.get(f"/threads/{ref_of(ledger, 't')}")
            assert page.status_code == 500
            assert "another process has upgraded" in text_of(page.text)
            assert "no such column" not in page.text


@pytest.mark.lengthy
def test_reports_of_evaluation_runs_are_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cases = [Case("a", "yes"), Case("b", "no")]
    Suite("the <suite>", cases, scorers={"yes": _says_yes}).run(_echo)
    with recorded(tmp_path / "l.db", 1) as ledger, opened(ledger) as (_, client):
        listed = client.get("/reports").text
        (run,) = linked(listed, "/reports/runs/")
        report = client.get(run).text
        assert "the <suite>" in text_of(report)
        assert "✗ not passed" in text_of(report)
        assert "<suite>" not in report
        assert "every cell agrees" in text_of(client.get("/reports/table1").text)


@pytest.mark.lengthy
def test_the_report_of_a_large_run_has_pages_with_the_failed_cases_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = [Case(f"case-{number}", "no" if number == 449 else "yes") for number in range(450)]
    Suite("large", cases, scorers={"yes": _says_yes}).run(_echo)
    with recorded(tmp_path / "l.db", 1) as ledger, opened(ledger) as (_, client):
        (run,) = linked(client.get("/reports").text, "/reports/runs/")
        pages = [client.get(run).text]
        while more := re.search(r'rel="next" href="([^"]+)"', pages[-1]):
            pages.append(client.get(run + more[1]).text)
        shown = [re.findall(r"case-\d+", text_of(page.partition("<h2>Cases</h2>")[2])) for page in pages]
        assert [len(ids) for ids in shown] == [200, 200, 50]
        assert shown[0][0] == "case-449"
        assert {id for ids in shown for id in ids} == {case.id for case in cases}
        assert "401 to 450 of 450" in text_of(pages[-1])
        assert 'rel="prev" href="?after=200"' in pages[-1]
        assert client.get(f"{run}?after=x").status_code == 400
        assert "450 to 450 of 450" in text_of(client.get(f"{run}?after=999999").text)


@pytest.mark.lengthy
def test_reports_name_the_folder_that_has_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with recorded(tmp_path / "l.db", 1) as ledger, opened(ledger, reports="elsewhere") as (_, client):
        assert "There is no run in elsewhere yet." in text_of(client.get("/reports").text)


@pytest.mark.lengthy
def test_results_of_experiments_are_pages_with_their_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few environments show little
        result = experiment().run()
    with recorded(tmp_path / "l.db", 1) as ledger, opened(ledger) as (_, client):
        (run,) = linked(client.get("/reports").text, "/reports/experiments/")
        assert " ".join(result.table().split()) in text_of(client.get(run).text)
        picture = client.get(f"{run}/picture.svg")
        assert picture.headers["content-type"] == "image/svg+xml"
        assert picture.text.startswith("<svg")


@pytest.mark.lengthy
def test_the_export_of_a_thread_has_everything_and_asks_no_server(books: tuple[Ledger, httpx.Client]) -> None:
    ledger, _ = books
    thread = next(iter(ledger.threads()))["thread_id"]
    page = "".join(html_lines(ledger, thread))
    for item in ledger.items(thread_id=thread):
        assert f'id="e{item.seq}"' in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert page.count("default-src &#39;none&#39;") == 1


@pytest.mark.lengthy
def test_the_command_writes_a_thread_as_a_file(tmp_path: Path) -> None:
    """Without a thread, or with one that is unknown, it says what to give, and writes nothing."""
    where, file = str(tmp_path / "l.db"), tmp_path / "t0.html"
    recorded(where, 1).close()
    for thread, sentence in ((None, "shows one thread"), ("t9", "has no thread 't9'")):
        with pytest.raises(ConfigurationError, match=sentence):
            export_records(where, "html", thread, since=None, follow=False, output=str(file))
    assert not file.exists()
    assert export_records(where, "html", "t0", since=None, follow=False, output=str(file)) == 0
    assert "Thread t0" in text_of(file.read_text(encoding="utf-8"))


@pytest.mark.lengthy
def test_the_viewer_can_be_mounted_below_a_path(tmp_path: Path) -> None:
    """All links stay below it."""
    with recorded(tmp_path / "l.db", 1) as ledger:
        app = Starlette(routes=[Mount("/audit", viewer(ledger, auth=signed_in))])
        with served(app) as address, httpx.Client(base_url=address) as client:
            page = client.get("/audit/").text
            thread = linked(page, "/threads/")
            assert thread[0].startswith("/audit/threads/")
            assert client.get(thread[0]).status_code == 200
            assert all(link.startswith(("/audit/", "#")) for link in linked(page, "."))


TAGS = """
    a body button circle code datalist dd del details div dl dt footer form h1 h2 h3 head header html input ins
    label li line link main meta nav ol option p polygon polyline pre rect script section select span strong
    summary svg table tbody td text th thead time title tr ul
"""
"""The elements of the pages about threads."""


class _Page(HTMLParser):
    """The elements of a page that it should not have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.strange: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        links = [value or "" for name, value in attrs if name in ("href", "src", "action", "hx-get")]
        if (
            tag not in TAGS.split()
            or any(name.startswith("on") for name in names)
            or len(set(names)) < len(names)
        ):
            self.strange.append(f"{tag} {attrs}")
        self.strange += [link for link in links if not re.match(r"(/(?!/)|#|\?)", link)]


@pytest.mark.lengthy
def test_hostile_texts_make_no_element(tmp_path: Path) -> None:
    """On no page about threads, nor in the export: an element or an attribute that no template has."""

    def texts(ledger: Ledger, client: httpx.Client) -> Iterator[tuple[str, str]]:
        for path in ("/", "/?verdict=deny", "/?status=failed", "/?verdict=ask"):
            yield path, client.get(path).text
        for number, thread in enumerate(ledger.threads()):
            place = f"/threads/{thread['ref']}"
            yield place, client.get(place).text
            if not number % 8:
                yield f"{place} as a file", "".join(html_lines(ledger, thread["ref"])).replace("<style>", "")
        for item in islice(ledger.items(since="1h"), 0, None, 3):  # of each thread, and of each kind
            place = f"/threads/{item.ref}/items/{item.seq}"
            yield place, client.get(place).text

    with Ledger(tmp_path / "hostile.db") as ledger:
        record_hostile(ledger)
        with opened(ledger) as (_, client):
            pages = list(texts(ledger, client))
            for name in TEXTS[::4]:
                page = client.get("/evaluations", params={"name": name.replace("\0", "\\x00")})
                pages.append((name, page.text))
    assert not {path: strange for path, page in pages if (strange := _Page(page).strange)}
    assert len(pages) > 2.5 * len(TEXTS)
