"""The `records:` of the constitution in force set what the ledger keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arbiter import ArbiterOS, ArbiterWarning, EvaluationResult
from arbiter.ledger import Ledger
from arbiter.redaction import Patterns
from tests.constitution.test_constitution import project
from tests.ledger.ledger_support import conf, sql
from tests.support import MODES, Check, Judge, Spy, add, chain, quick, run

CLINIC = """
    records:
      redact:
        keys: ["*patient*"]
        patterns: {case: "AZ-[0-9]{6}"}
"""
SEEN = {"log": ["about AZ-123456", json.dumps({"patient_name": "Ann"})], "patientName": "Ann", "amount": 5}


def stored(path: Path) -> list[Any]:
    """The contents of the items, oldest first."""
    with sql(path) as select:
        rows = select(
            "SELECT c.body FROM contents c JOIN entries e ON e.id = c.entry WHERE e.kind = 'item' ORDER BY e.id"
        )
    return [json.loads(row[0]) for row in rows]


@MODES
def test_fields_and_patterns_of_a_pack_are_redacted(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        arbiter_os = ArbiterOS.from_constitution(
            project(tmp_path / "c", policies__clinic=CLINIC), ledger=ledger
        )
        run(arbiter_os.govern(chain(Spy("a"), state=dict)), SEEN, mode=mode)
        assert ledger.flush(20)
    (found,) = stored(path)
    about, inside = found["input"]["log"]
    assert (about, json.loads(inside)) == ("about [secret: case]", {"patient_name": {"$secret": "field"}})
    assert (found["input"]["patientName"], found["input"]["amount"]) == ({"$secret": "field"}, 5)


def test_what_a_rule_says_is_kept_whatever_the_name_of_the_rule(tmp_path: Path) -> None:
    """A field `api_key` is a secret; a rule of that name is none, in the history and in the scores sent on."""
    arbiter_os = ArbiterOS()
    add(arbiter_os, Check("api_key", lambda _: (False, "has a key"), on_deny="audit"))
    add(arbiter_os, Judge("secrets", lambda _: EvaluationResult(0.5, True, "one", {"password": "x"})))
    add(arbiter_os, Judge("credentials", lambda _: 1 / 0))
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os.add_listener(ledger.listener)
        arbiter_os.govern(chain(Spy("a"), state=dict)).invoke({"api_key": "k"})
        assert ledger.flush(20)
        (item,) = ledger.items()
    assert item.input_state["api_key"] == {"$secret": "field"}
    assert item.check_policy_results["api_key"].reason == "has a key"
    assert item.evaluation_results["secrets"].feedback == "one"
    assert item.evaluation_results["secrets"].metadata == {"password": {"$secret": "field"}}
    assert "ZeroDivisionError" in item.evaluation_errors["credentials"]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("of_ledger", "of_pack", "kept"),
    [
        ("full", "digest", "digest"),
        ("digest", "full", "digest"),
        ("full", "none", None),
        ("none", "full", None),
    ],
)
def test_the_stricter_of_ledger_and_constitution_holds(
    tmp_path: Path, of_ledger: Any, of_pack: str, kept: str | None
) -> None:
    path, pack = tmp_path / "l.db", f"records: {{states: {of_pack}}}\n"
    with Ledger(path, states=of_ledger) as ledger:
        arbiter_os = ArbiterOS.from_constitution(project(tmp_path / "c", policies__a=pack), ledger=ledger)
        arbiter_os.govern(chain(Spy("a"))).invoke({"amount": 5})
        assert ledger.flush(20)
    found = stored(path)
    assert [[*item["input"]["amount"]] for item in found] == ([] if kept is None else [["$digest"]])


def test_a_reload_holds_from_the_next_item_on(tmp_path: Path) -> None:
    path, root = tmp_path / "l.db", project(tmp_path / "c", policies__clinic="checkers: []\n")
    with Ledger(path, keep_days=90) as ledger:
        arbiter_os = ArbiterOS.from_constitution(root, ledger=ledger)
        reloads = [CLINIC, "records: {states: none, keep_days: 3}\n", "checkers: []\n"]

        def node(state: Any) -> Any:
            return {"log": ["about AZ-123456"]}

        app = arbiter_os.govern(chain(node))
        days = list[float | None]()
        for text in ["", *reloads]:
            if text:
                project(root, policies__clinic=text)
                arbiter_os.load_constitution()
            app.invoke({})
            days.append(ledger.keep_days)
        assert ledger.flush(20)
        assert days == [90, 90, 3, 90]
        assert len(list(ledger.items())) == 4
    assert [item["output"]["log"] for item in stored(path)] == [
        ["about AZ-123456"], ["about [secret: case]"], ["about AZ-123456"]
    ]  # fmt: skip


def test_each_arbiter_os_that_shares_a_ledger_keeps_to_its_own_constitution(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        strict = ArbiterOS.from_constitution(project(tmp_path / "c", policies__clinic=CLINIC), ledger=ledger)
        for arbiter_os in (strict, ArbiterOS(ledger=ledger)):
            arbiter_os.govern(chain(Spy("a"))).invoke({"log": ["AZ-123456"]}, conf(f"t{id(arbiter_os)}"))
        assert ledger.flush(20)
    assert [item["input"]["log"] for item in stored(path)] == [["[secret: case]"], ["AZ-123456"]]


def test_records_of_a_shadow_have_no_effect_and_a_warning_says_so(tmp_path: Path) -> None:
    path, root = tmp_path / "l.db", project(tmp_path / "c", policies__clinic=CLINIC)
    stricter = project(tmp_path / "next", policies__clinic="records: {states: none}\n")
    with Ledger(path) as ledger:
        arbiter_os = ArbiterOS.from_constitution(root, ledger=ledger)
        with pytest.warns(ArbiterWarning, match=r"clinic.yaml:\d+: these records have no effect") as warned:
            arbiter_os.load_shadow(stricter)
        assert [each.filename for each in warned] == [__file__]
        arbiter_os.load_shadow(root)  # the same records
        arbiter_os.govern(chain(Spy("a"))).invoke({"amount": 5})
        assert ledger.flush(20)
    assert [item["input"]["amount"] for item in stored(path)] == [5]


def test_a_pattern_that_would_take_for_ever_elsewhere_is_quick() -> None:
    patterns = Patterns({"a": "(a+)+$", "b": "(a|a)*b$"})
    text = "a" * 50_000 + "!"
    patterns.found_in(text)
    with quick(0.05):
        assert patterns.found_in(text) == []
