"""The forms of a report: what they show, and that texts of models and users stay data."""

from __future__ import annotations

import builtins
import json
import math
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from junitparser import JUnitXml, TestSuite

from arbiter import ConfigurationError
from arbiter.evaluators import JudgeEvaluator
from arbiter.harness import Case, CaseRun, Limits, Report, Score, Suite
from tests.scripted import Named
from tests.support import Spy, chain

HOSTILE = (
    "[red]", "[/]", "\x1b[2J", "a\nb\r\nc", "a|b", "\x00", "\ud800", "<script>alert(1)</script>", "`x`",
    "@everyone", "see #12, GH-12 and o/r#12", "# no heading", "]]>", "&amp;", "{{ 7 * 7 }}", "‮evil", "x" * 5_000,
)  # fmt: skip


def echo(given: Any) -> Any:
    return given


def judged(run: CaseRun) -> Score:
    return Score("tone", 3.0, passed=False, reason=str(run.output), scale=(0.0, 9.0))


def fails(given: Any) -> Any:
    if given == "raise":
        raise ValueError("broken\x1b[2J")
    return given


@pytest.fixture
def hostile() -> Report:
    cases = [Case(f"c{number}", number) for number in range(len(HOSTILE))]
    return Suite("su|te <b>", cases, scorers={"tone": judged}).run(HOSTILE.__getitem__)


def misfits(report: Report) -> list[str]:
    """Where the JSON of a report does not fit the schema that ships with Arbiter."""
    schema = json.loads((files("arbiter.harness.reports") / "report.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    found = validator.iter_errors(json.loads(report.to_json()))  # pyright: ignore[reportUnknownMemberType]
    return [f"{error.json_path}: {error.message}" for error in found]


def written(report: Report, tmp_path: Path, ending: str) -> str:
    return report.write(tmp_path / f"report{ending}").read_text(encoding="utf-8")


def test_junit_has_a_case_for_each_repeat_with_failures_errors_and_skips(tmp_path: Path) -> None:
    suite = Suite(
        "answers",
        [Case("good", "yes"), Case("bad", "no"), Case("raises", "raise")],
        scorers={"says_yes": lambda run: run.output == "yes"},
        repeats=2,
        limits=Limits(concurrency=1),
    )
    written(suite.run(fails), tmp_path, ".xml")
    (found,) = JUnitXml.fromfile(str(tmp_path / "report.xml"))
    assert isinstance(found, TestSuite)
    assert (found.tests, found.failures, found.errors, found.skipped) == (6, 2, 2, 0)
    cases: list[Any] = list(found)
    by_name = {case.name: case for case in cases}
    assert by_name["good [repeat 1]"].is_passed
    assert [each.message for each in by_name["bad [repeat 2]"].result] == ["says_yes"]
    assert "ValueError: broken\\u001b" in by_name["raises [repeat 1]"].result[0].message
    properties = ElementTree.parse(tmp_path / "report.xml").findall(".//testcase//property")
    assert {(each.get("name"), each.get("value")) for each in properties} == {
        ("says_yes", "0.0000"),
        ("says_yes", "1.0000"),
    }


def test_junit_stays_readable_whatever_models_and_users_write(hostile: Report, tmp_path: Path) -> None:
    written(hostile, tmp_path, ".xml")
    (found,) = JUnitXml.fromfile(str(tmp_path / "report.xml"))
    assert found.name == "su|te <b>"
    assert len(list(found)) == len(HOSTILE)


def test_markdown_shows_texts_as_they_are_and_on_one_line(hostile: Report, tmp_path: Path) -> None:
    text = written(hostile, tmp_path, ".md")
    assert "\x1b" not in text
    assert "@everyone" not in text
    assert "see #&#8203;12, GH-&#8203;12 and o/r#&#8203;12" in text
    assert not re.search(r"(#|GH-)12", text)
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(listed) == len(HOSTILE)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {6}
    assert "\\<script\\>" in text


def test_markdown_folds_after_the_worst_cases(tmp_path: Path) -> None:
    suite = Suite("many", [Case(f"c{n}", n) for n in range(230)], scorers={"never": lambda run: False})
    text = written(suite.run(echo), tmp_path, ".md")
    assert text.count("- ✗") == 200
    assert "- and 30 more" in text


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_has_every_case_a_picture_of_intervals_and_no_script(
    hostile: Report, tmp_path: Path
) -> None:
    text = written(hostile, tmp_path, ".html")
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert names.count("details") == len(HOSTILE)
    assert not {"script", "link", "img", "iframe", "b"} & set(names)
    assert not [attrs for _, attrs in page.tags if {"src", "href", "onclick"} & attrs.keys()]
    (picture,) = [attrs for tag, attrs in page.tags if tag == "svg"][:1]
    assert picture["aria-label"] == "mean 3.00, 95 % 3.00 … 3.00 of 0–9"
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "<script>alert(1)</script>" in "".join(page.texts)
    assert "{{ 7 * 7 }}" in "".join(page.texts)


@pytest.mark.parametrize("ending", [".html", ".md", ".xml"])
def test_labels_of_scorers_are_shown_without_their_control_characters(ending: str, tmp_path: Path) -> None:
    cases = [Case(f"c{number}", number) for number in range(len(HOSTILE))]
    suite = Suite("labelled", cases, scorers={"kind": lambda run: run.output, "nothing": lambda run: None})
    report = suite.run(HOSTILE.__getitem__)
    text = written(report, tmp_path, ending)
    assert not {"\x1b", "\x00", "\u202e"} & set(text)
    if ending == ".html":
        assert "\\u001b[2J" in text
        assert "<td>None</td>" not in text


def test_a_reason_of_several_lines_is_shown_on_one() -> None:
    def lines(run: CaseRun) -> Score:
        return Score("lines", 0.0, False, reason="too long\n\n  by 3 words")

    report = Suite("lines", [Case("a", 1)], scorers={"lines": lines}).run({"a": "text"})
    assert "a: lines: too long by 3 words" in report.rendered("markdown")


def test_a_long_label_is_cut() -> None:
    suite = Suite("labelled", [Case("a", "a")], scorers={"kind": lambda run: "x" * 5_000})
    shown = suite.run(echo).printed()
    assert f"kind: {'x' * 59}… 1" in shown


def test_the_printed_report_is_the_same_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich recognises the kernel of a notebook by this class, and would show the text instead of writing it."""
    shell = type("ZMQInteractiveShell", (), {})
    report = Suite("s", [Case("a", 1)]).run(echo)
    text = report.printed()
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    assert report.printed() == text


def test_the_page_shows_what_did_not_pass_first(tmp_path: Path) -> None:
    suite = Suite("s", [Case("good", "yes"), Case("bad", "raise")])
    page = Page(written(suite.run(fails), tmp_path, ".html"))
    shown = "".join(page.texts)
    assert shown.index("\nbad") < shown.index("\ngood")
    opened = ["open" in attrs for tag, attrs in page.tags if tag == "details"]
    assert opened == [True, False]


def test_an_unknown_ending_names_the_known_ones(hostile: Report, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\.json, \.md, \.xml, \.html"):
        hostile.write(tmp_path / "report.pdf")


def test_json_keeps_texts_as_they_are(hostile: Report, tmp_path: Path) -> None:
    data = json.loads(written(hostile, tmp_path, ".json"))
    assert [result["output"] for result in data["results"]] == [
        text.replace("\ud800", "\\ud800") for text in HOSTILE
    ]


def test_json_has_the_usage_of_a_score_in_one_order() -> None:
    """LangChain adds token counts in an order that differs from process to process."""
    usage = {"total_tokens": 3, "input_token_details": {"b": 1, "a": 0}, "input_tokens": 1}
    suite = Suite("s", [Case("a", 1)], scorers={"fine": lambda run: Score("fine", 1.0, usage=usage)})
    found = suite.run(echo, folder=None).to_json()
    assert '"usage":{"input_token_details":{"a":0,"b":1},"input_tokens":1,"total_tokens":3}' in found


@pytest.mark.lengthy
def test_a_verdict_by_another_test_than_the_usual_one_says_so(project: Path) -> None:
    """More than 1,000 changed cases take the paired t test."""

    class Tone:
        name, scale, version = "tone", (0, 9), "1"

        def __init__(self, drop: float) -> None:
            self.drop = drop

        def score(self, run: CaseRun) -> float:
            return 8 - self.drop * float(run.input % 3)

    suite = Suite("many", [Case(f"case-{n}", n) for n in range(1_600)], scorers=[Tone(0)])
    suite.run(echo, folder=None).save_baseline("many.json")
    worse = Suite("many", suite.cases, scorers=[Tone(1)]).run(echo, folder=None, baseline="many.json")
    assert "✗ regressed, paired t" in worse.printed()
    assert "regressed, paired t" in written(worse, project, ".md")


def test_the_json_fits_its_schema(project: Path, hostile: Report) -> None:
    """Of graphs and functions, with failures, labels, open scales, judges and a baseline."""

    class Steps:
        name, scale = "steps", (0, math.inf)

        def score(self, run: CaseRun) -> Any:
            return {"all": 3.0, "word": "rude", "none": None, "wrong": math.nan}

    judge = Named(answers=['{"reasoning": "fine", "score": 8}'], model_name="judge-2")
    of_graph = Suite(
        "graph",
        [Case("a", {"log": []}, expect={"nodes": ["plan"]})],
        evaluators=[JudgeEvaluator("good", "It is good.", judge)],
        votes=2,
    )
    of_graph.run(chain(Spy("plan"))).save_baseline("graph.json")
    judged_run = of_graph.run(chain(Spy("plan")), baseline="graph.json")
    of_function = Suite("mixed", [Case("a", "a"), Case("b", "raise")], scorers=[Steps()])
    for report in (judged_run, of_function.run(fails, folder=None), hostile):
        assert misfits(report) == []
    assert judged_run.to_dict()["identity"]["judges"]["good"]["returned"] == ["judge-2"]
