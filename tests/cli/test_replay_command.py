"""`arbiter replay`: screens, exit codes, and the same JSON wherever the recorded runs are stored."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from sqlalchemy import create_engine

from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from arbiter.ledger._tables import metadata
from tests.cli.cli_support import refused, typed
from tests.ledger.ledger_support import conf, sql
from tests.ledger.test_replay import LIMIT, pack
from tests.support import Spy, chain


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger of three payments, and with constitutions: `now`, `next`, `same`."""
    folder = tmp_path_factory.mktemp("replayed")
    pack(folder, "next", LIMIT.format(5))
    rules = pack(folder, "now", LIMIT.format(100))
    with Ledger(folder / "arbiter.db") as ledger:
        arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
        app = arbiter_os.govern(chain(Spy("look"), Spy("pay"), checkpointer=InMemorySaver()))
        for number, amount in enumerate((1, 10, 200)):
            app.invoke({"amount": amount}, conf(f"pay-{number}"))
        assert ledger.flush(20)
    return folder


@pytest.fixture
def folder(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ARBITER_LEDGER", raising=False)
    monkeypatch.chdir(recorded)
    return recorded


def test_the_screen(folder: Path) -> None:
    out = typed("replay", "-c", "next.yaml", code=1)
    lines = [line.rstrip() for line in out.splitlines()]
    assert re.fullmatch(r"3 threads, 6 node runs, 6 decisions of \d{4}-\d\d-\d\d", lines[0])
    assert lines[1:6] == [
        " the same                  5",
        " stricter                  1   allow → deny 1",
        " looser                    0",
        " elsewhere                 0",
        " unknown                   0",
    ]
    assert lines[6].split() == ["thread", "step", "node", "recorded", "next", "why"]
    assert re.split(r" {2,}", lines[8]) == [
        "pay-1", "2", "pay", "allow", "deny → end by limit", "input.amount is 10",
    ]  # fmt: skip
    said = r"Decided by the rules of next.yaml \([0-9a-f]{6}…\); recorded under [0-9a-f]{6}…\. "
    assert re.fullmatch(said + "No node, tool or model was called.", lines[9])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("-c", "now.yaml"), 0),
        (("-c", "next.yaml"), 1),
        (("-c", "next.yaml", "--fail-on", "looser,elsewhere"), 0),
        (("-c", "next.yaml", "--fail-on", "none"), 0),
        (("-c", "next.yaml", "pay-0"), 0),
        (("-c", "next.yaml", "pay-1", "pay-2"), 1),
    ],
)
def test_exit_codes(folder: Path, options: tuple[str, ...], code: int) -> None:
    typed("replay", *options, code=code)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "replay needs the constitution that is to decide: arbiter replay -c DIR"),
        (("-c", "nowhere"), "no constitution in 'nowhere'"),
        (
            ("-c", "next.yaml", "--fail-on", "loser"),
            "'loser'; expected none, or some of .* Did you mean 'looser'",
        ),
        (("-c", "next.yaml", "--since", "2999-01-01"), "no node runs between 2999-01-01 00:00:00"),
        (("-c", "next.yaml", "pay-9"), "this ledger has no thread 'pay-9'. Did you mean 'pay-"),
        (("-c", "next.yaml", "--ledger", "none.db"), "there is no ledger at 'none.db'"),
        (("-c", "next.yaml", "--from", "next.yaml"), "next.yaml:1: "),
        (
            ("-c", "next.yaml", "--from", "f", "--ledger", "none.db"),
            "--from reads a file in place of a ledger",
        ),
        (("-c", "next.yaml", "--format", "xml"), "--format is 'xml'"),
    ],
)
def test_bad_input_is_a_sentence(folder: Path, options: tuple[str, ...], sentence: str) -> None:
    assert re.search(sentence, refused("replay", *options))


def test_what_was_changed_is_a_sentence_and_no_difference(folder: Path, tmp_path: Path) -> None:
    """A traceback ended with 1, as if a decision differed."""
    typed("export", "-o", str(tmp_path / "runs.jsonl"))
    (tmp_path / "changed.jsonl").write_text(
        re.sub(r'"contents":\{.*\}', '"contents":5}', (tmp_path / "runs.jsonl").read_text())
    )
    shutil.copy(folder / "arbiter.db", tmp_path / "l.db")
    with sql(tmp_path / "l.db") as run:
        run("UPDATE contents SET body = '5'")
    replay = ("replay", "-c", "next.yaml")
    for given in (("--from", str(tmp_path / "changed.jsonl")), ("--ledger", str(tmp_path / "l.db"))):
        assert "has an entry that cannot be read (AttributeError" in refused(*replay, *given)


@pytest.mark.lengthy
def test_the_json_fits_its_schema_and_is_the_same_from_a_file(folder: Path) -> None:
    out = typed("replay", "-c", "next.yaml", "--format", "json", code=1)
    schema = json.loads((files("arbiter.ledger.replaying") / "report.schema.json").read_text())
    jsonschema.validate(json.loads(out), schema, format_checker=jsonschema.FormatChecker())
    (difference,) = json.loads(out)["differences"]
    assert difference["outcome"] == "stricter"
    older = json.loads(out)
    del older["differences"][0]["why"]  # reports of older versions have no values
    jsonschema.validate(older, schema)
    typed("export", "-o", "runs.jsonl")
    from_file = ("replay", "-c", "next.yaml", "--from", "runs.jsonl")
    assert typed(*from_file, "--format", "json", code=1) == out
    lines = typed(*from_file, "--format", "jsonl", code=1)
    assert [json.loads(line) for line in lines.splitlines()] == [difference]


@pytest.mark.lengthy
def test_the_json_is_the_same_from_postgresql(folder: Path, tmp_path: Path, postgres_url: str) -> None:
    """Also of a thread that was erased."""
    shutil.copy(folder / "arbiter.db", tmp_path)
    kept, file = str(tmp_path / "arbiter.db"), str(tmp_path / "runs.jsonl")
    typed("erase", "--thread", "pay-2", "--reason", "request 7", "--ledger", kept)
    asked = ("replay", "-c", "next.yaml", "--format", "json")
    out = typed(*asked, "--ledger", kept, code=1)
    assert '"input.amount was erased"' in out
    typed("export", "-o", file, "--ledger", kept)
    with Ledger(postgres_url):
        pass  # makes the tables
    copied_from = create_engine(f"sqlite:///{kept}")
    copied_to = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with copied_from.connect() as one, copied_to.begin() as other:
        for table in reversed(metadata.sorted_tables):
            other.execute(table.delete())
        for table in metadata.sorted_tables:
            if rows := [dict(row) for row in one.execute(table.select()).mappings()]:
                other.execute(table.insert(), rows)
    copied_from.dispose()
    copied_to.dispose()
    assert typed(*asked, "--ledger", postgres_url, code=1) == typed(*asked, "--from", file, code=1) == out


def test_the_classes_of_a_constitution_are_found_from_the_working_directory(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed command has its own folder in the path of modules, and not the one that it is called in."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules_from_here.py").write_text(
        "from arbiter import PolicyChecker\n\n\nclass Small(PolicyChecker):\n    def check_before(self, history):\n"
        "        return history.item.input_state['amount'] < 5\n"
    )
    pack(tmp_path, "own", "name: small, use: rules_from_here.Small, target_nodes: pay, on_deny: end")
    options = ("--ledger", str(recorded / "arbiter.db"), "-c", "own.yaml", "--allow", "rules_from_here")
    assert "deny → end by small" in typed("replay", *options, code=1)
