"""The linter: what it finds on graphs with one bug each, that it finds nothing on clean ones, and how it says so."""

from __future__ import annotations

import pytest

from arbiter import ArbiterOS
from arbiter.linting import LintReport
from tests.lint_corpus import CLEAN, SEEDED, Case


def report_of(case: Case) -> LintReport:
    arbiter_os = ArbiterOS(strict=case.strict)
    for rule in case.rules:
        if rule.kind == "checker":
            arbiter_os.add_policy_checker(rule)  # type: ignore[arg-type]
        else:
            arbiter_os.add_policy_router(rule)  # type: ignore[arg-type]
    return arbiter_os.lint(case.make(), instructions=case.instructions or None)


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_no_false_alarm(case: Case) -> None:
    """A clean graph has no error and no warning."""
    assert [str(f) for f in report_of(case) if f.severity != "info"] == []


@pytest.mark.parametrize("case", SEEDED, ids=lambda case: case.name)
def test_a_seeded_bug_is_found(case: Case) -> None:
    """Found under its code, at its node, and nothing else is."""
    report = report_of(case)
    assert case.finds is not None
    code, node = case.finds
    found = [f for f in report if f.severity != "info"]
    assert {f.code for f in found} == {code}, list(map(str, found))
    assert node in ("", found[0].node)
    assert not case.severity or found[0].severity == case.severity
