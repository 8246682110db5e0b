"""`records:` in a pack: what a ledger keeps. A pack that extends another can only keep less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from arbiter import ArbiterOS, PackError
from arbiter._constitution.loading import load_constitution
from arbiter._constitution.schema import json_schema
from tests.cli.cli_support import typed
from tests.constitution.test_constitution import project
from tests.support import Spy, chain

CLINIC = """
    records:
      states: bounded
      redact:
        keys: ["*patient*", iban]
        patterns: {case: "AZ-[0-9]{6}"}
        detect: [secrets, emails]
      keep_days: 90
"""


def extended(text: str) -> str:
    return "extends: [clinic]\n" + text


def test_a_pack_declares_what_is_recorded(tmp_path: Path) -> None:
    found = load_constitution(project(tmp_path, policies__clinic=CLINIC)).records
    assert found is not None
    assert (found.states, found.keep_days, found.source) == ("bounded", 90, "policies/clinic.yaml:4")
    assert (found.keys, dict(found.patterns)) == (("*patient*", "iban"), {"case": "AZ-[0-9]{6}"})
    assert load_constitution(project(tmp_path / "other", policies__a="checkers: []\n")).records is None


def test_without_a_ledger_records_are_fine(tmp_path: Path) -> None:
    arbiter_os = ArbiterOS.from_constitution(project(tmp_path, policies__clinic=CLINIC))
    assert arbiter_os.govern(chain(Spy("a"))).invoke({})["log"] == ["a"]


def test_an_extending_pack_keeps_less_and_inherits_the_rest(tmp_path: Path) -> None:
    own = extended("""
records:
  states: digest
  redact: {keys: [diagnosis], patterns: {room: "R[0-9]+"}, detect: [emails, secrets, phones]}
""")
    found = load_constitution(project(tmp_path, policies__clinic=CLINIC, policies__ward=own)).records
    assert found is not None
    assert (found.states, found.keep_days, found.source) == ("digest", 90, "policies/ward.yaml:6")
    assert found.keys == ("*patient*", "iban", "diagnosis")
    assert dict(found.patterns) == {"case": "AZ-[0-9]{6}", "room": "R[0-9]+"}


LOOSER = {
    "states: full": "records.states: expected 'none' or 'digest' or 'bounded', got 'full'",
    "keep_days: 365": "records.keep_days: expected at most 90, got 365",
    "redact: {detect: [secrets]}": "records.redact.detect: expected all of secrets, emails, got secrets",
    'redact: {patterns: {case: "ZZ"}}': "records.redact.patterns.case: expected 'AZ-[0-9]{6}', got 'ZZ'",
}


@pytest.mark.parametrize("part", LOOSER)
def test_an_extending_pack_that_keeps_more_is_a_mistake_unless_it_overrides(
    tmp_path: Path, part: str
) -> None:
    own = extended(f"\nrecords:\n  {part}\n")
    with pytest.raises(PackError) as wrong:
        load_constitution(project(tmp_path, policies__clinic=CLINIC, policies__ward=own))
    (mistake,) = wrong.value.mistakes
    assert str(mistake).startswith(f"policies/ward.yaml:7: {LOOSER[part]}")
    assert "it changes the records at policies/clinic.yaml:4. Keep less, or write override: true" in str(
        mistake
    )
    own = extended(f"\nrecords:\n  {part}\n  override: true\n")
    assert load_constitution(project(tmp_path, policies__clinic=CLINIC, policies__ward=own)).records


def test_with_override_keys_and_patterns_replace_those_of_the_extended_pack(tmp_path: Path) -> None:
    own = extended("\nrecords: {redact: {keys: [diagnosis]}, override: true}\n")
    found = load_constitution(project(tmp_path, policies__clinic=CLINIC, policies__ward=own)).records
    assert found is not None
    assert (found.keys, [*found.patterns]) == (("diagnosis",), ["case"])


def test_two_packs_that_both_say_it_are_a_mistake_with_both_places(tmp_path: Path) -> None:
    other = "records:\n  keep_days: 1\n"
    with pytest.raises(PackError) as wrong:
        load_constitution(project(tmp_path, policies__clinic=CLINIC, policies__other=other))
    assert "policies/other.yaml:4: records: expected at most one" in str(wrong.value)
    assert "beside the records at policies/clinic.yaml:4" in str(wrong.value)


WRONG = {
    "keepdays: 3": "records.keepdays: expected one of keep_days, override, redact, states, got 'keepdays'",
    "keep_days: 0": "records.keep_days: expected greater than 0, got 0",
    "states: all": "records.states: expected 'none', 'digest', 'bounded' or 'full', got 'all'",
    "redact: {detect: [secret]}": "records.redact.detect[0]: expected 'secrets', 'cards'",
    "redact: {patterns: {look: '(?=x)'}}": "records.redact.patterns.look: expected an expression of RE2, got '(?=x)': "
    "invalid perl operator",
    "redact: {patterns: {all: 'x*'}}": "records.redact.patterns.all: expected an expression of RE2, got 'x*': "
    "it finds the empty text",
    "redact: {patterns: {'a b': x}}": "records.redact.patterns.a b: expected a text like",
    "override: true": "records.override: expected records in a pack that this one extends, got none to override",
}


@pytest.mark.parametrize("part", WRONG)
def test_a_mistake_is_reported_with_its_place(tmp_path: Path, part: str) -> None:
    with pytest.raises(PackError) as wrong:
        load_constitution(project(tmp_path, policies__clinic=f"records:\n  {part}\n"))
    assert f"policies/clinic.yaml:5: {WRONG[part]}" in str(wrong.value)


def test_all_mistakes_of_records_come_together(tmp_path: Path) -> None:
    own = extended(
        "\nrecords:\n  keepdays: 3\n  states: full\n  redact: {patterns: {look: '(?=x)'}, detect: [x]}\n"
    )
    with pytest.raises(PackError) as wrong:
        load_constitution(project(tmp_path, policies__clinic=CLINIC, policies__ward=own))
    assert sorted(mistake.line for mistake in wrong.value.mistakes) == [7, 8, 9, 9]


def test_without_google_re2_a_pattern_is_a_mistake_that_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    with pytest.raises(PackError, match=r"it needs google-re2: pip install 'arbiteros\[ledger\]'"):
        load_constitution(project(tmp_path, policies__clinic=CLINIC))


@pytest.mark.parametrize(
    ("part", "fits"), [("states: none", True), ("states: all", False), ("keep_days: 0", False)]
)
def test_the_json_schema_knows_records(part: str, fits: bool) -> None:
    name, _, value = part.partition(": ")
    pack: dict[str, Any] = {
        "version": 1, "name": "a", "description": "A.", "records": {name: int(value) if value == "0" else value}
    }  # fmt: skip
    found = [*jsonschema.Draft202012Validator(json_schema()).iter_errors(pack)]
    assert (not found) == fits


def test_the_digest_of_a_constitution_covers_its_records(tmp_path: Path) -> None:
    text = json.loads(load_constitution(project(tmp_path, policies__clinic=CLINIC)).text)
    assert text["records"]["redact"]["keys"] == ["*patient*", "iban"]


def test_explain_shows_the_recorded_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(tmp_path, policies__clinic=CLINIC))
    told = typed("explain", "records", "-c", ".")
    for part in ("policies/clinic.yaml:4", "*patient*, iban", "AZ-[0-9]{6}", "secrets, emails", "90 days"):
        assert part in told
