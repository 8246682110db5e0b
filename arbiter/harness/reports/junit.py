"""The report as JUnit XML: a test case for each case × repeat."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from arbiter.harness.reports.report import Report, why_failed
from arbiter.harness.reports.texts import head, remarks
from arbiter.harness.results import CaseResult
from arbiter.models import visible

_ERRORS = frozenset({"failed", "timeout", "lost"})


def render(report: Report) -> str:
    """JUnit XML. A missed assertion is a failure, a run that failed, timed out or was lost an error, and a run
    that the budget kept from starting is skipped. Scores are properties; those of the suite have the head of the
    report and its notes.
    """
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", name=visible(report.suite), timestamp=report.began.isoformat())
    about = SubElement(suite, "properties")
    for name, text in (("about", " · ".join(head(report))), *(("note", note) for note in remarks(report))):
        SubElement(about, "property", name=name, value=visible(text))
    several = any(result.repeat for result in report.results)
    for result in report.results:
        _add(suite, report, result, several)
    counts = {
        "tests": len(report.results),
        **{f"{kind}s": len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error")},
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for element in (root, suite):
        for name, count in counts.items():
            element.set(name, str(count))
        element.set("time", f"{report.seconds:.3f}")
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: Element, report: Report, result: CaseResult, several: bool) -> None:
    name = f"{result.case_id} [repeat {result.repeat + 1}]" if several else result.case_id
    case = SubElement(
        suite,
        "testcase",
        classname=visible(report.suite),
        name=visible(name),
        time=f"{result.duration:.3f}",
    )
    properties = SubElement(case, "properties")
    for score in result.scores:
        value = score.label if score.value is None else f"{score.value:.4f}"
        SubElement(
            properties,
            "property",
            name=visible(score.name),
            value=visible(value or "") if score.outcome == "scored" else score.outcome,
        )
    if result.status in ("skipped_budget", "not_evaluable"):
        why = result.error or report.reached or "the run stopped before it began"
        SubElement(case, "skipped", message=visible(why))
    elif not result.passed:
        is_error = not result.as_expected and result.status in _ERRORS
        problem = SubElement(case, "error" if is_error else "failure", message=visible(why_failed(result)))
        problem.text = visible(result.error or "")
