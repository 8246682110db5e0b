"""Secrets that pass through a governed run are in no byte that the ledger leaves, wherever they come from."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import add_messages
from langgraph.types import Command

import arbiter
from arbiter import (
    ArbiterOS,
    Correction,
    CorrectionGate,
    EvaluationResult,
    History,
    HistoryListener,
    Verdict,
)
from arbiter.ledger import Ledger
from tests.ledger.ledger_support import conf, sql
from tests.redaction.forms import FORMS
from tests.support import MODES, Check, Judge, Route, Spy, chain, run
from tests.telemetry.test_spans import Kept

CANARY = "canary7431"
FORM = f"sk-proj-{CANARY}abcdefghijklmnopqrstuvwxyz0123"
"""A secret by its form."""
CARDS = [4_111_111_111_111_111, 6_304_000_000_000_000_000]
"""Card numbers as whole numbers, one of them beyond those of JSON."""
LOGGERS = {
    name
    for path in Path(arbiter.__file__).parent.rglob("*.py")
    for name in re.findall(r'getLogger\("?(arbiter[\w.]*|__name__)"?\)', path.read_text())
}
"""The loggers that Arbiter's modules use."""
PLACES = (
    "field", "nested", "inside", "twice", "key", "form", "split", "bytes", "argument", "name", "reason", "feedback",
    "metadata", "error", "failure", "config", "draft", "correction", "question", "edit", "comment", "route",
)  # fmt: skip


def secret(place: str) -> str:
    assert place in PLACES
    return f"{CANARY}-{place}-x"


def formed(place: str) -> str:
    assert place in PLACES
    return f"{FORM}-{place}-x"


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    password: str
    settings: dict[str, Any]
    note: str
    blob: Any
    draft: str
    amount: int


INPUT: Any = {
    "messages": [
        HumanMessage(f"my key is {formed('form')}"),
        AIMessage(
            "",
            tool_calls=[
                {"name": "look", "args": {"api_key": secret("argument"), "q": formed("argument")}, "id": "1"}
            ],
        ),
    ],
    "password": secret("field"),
    "settings": {"deep": [{"client_secret": secret("nested")}], formed("key"): 1},
    "note": json.dumps({"token": secret("inside"), "more": json.dumps({"api_key": secret("twice")})}),
    "blob": {
        "split": f"use\u200b {FORM[:12]}\u200b{FORM[12:]}-split-x",
        "bytes": formed("bytes").encode(),
        "cards": CARDS,
    },
    "amount": 1,
}


class Reviewer(CorrectionGate):
    """Sends the first draft back, with a secret in its feedback."""

    def review(self, history: History, draft: Mapping[str, Any], attempt: int) -> Correction:
        return Correction.commit() if attempt > 1 else Correction.retry(f"not {formed('correction')}")


def judged(history: History) -> EvaluationResult:
    return EvaluationResult(
        0.5, True, f"saw {formed('feedback')}", {"token": secret("metadata"), "found": formed("metadata")}
    )


def failing(history: History) -> EvaluationResult:
    raise RuntimeError(f"no answer for {formed('failure')}")


def everything(ledger: Ledger, mode: str, *listeners: HistoryListener) -> None:
    """Runs with secrets in all places: input, output, verdicts, drafts, a question with its answer, an error."""
    drafts = 0

    def work(state: Any) -> Any:
        nonlocal drafts
        drafts += 1
        return {"draft": f"{formed('draft')} {drafts}", "note": formed("name")}

    def pay(state: Any) -> Any:
        return {"amount": 2}

    def fail(state: Any) -> Any:
        raise ValueError(f"Authorization: Bearer {CANARY}-error-0123456789abcdef")

    arbiter_os = ArbiterOS(ledger=ledger, listeners=listeners)
    arbiter_os.add_correction_gate(Reviewer("review", target_nodes=["work"]))
    arbiter_os.add_evaluator(Judge("judge", judged))
    arbiter_os.add_evaluator(Judge("failing", failing))
    arbiter_os.add_policy_checker(
        Check("human", lambda h: Verdict.ask(f"allow {formed('question')}?"), target_nodes=["pay"])
    )
    arbiter_os.add_policy_checker(
        Check("audit", lambda h: (False, f"has {formed('reason')}"), target_nodes=["work"], on_deny="audit")
    )
    arbiter_os.add_policy_router(Route("router", lambda h, _: None))
    app = arbiter_os.govern(chain(work, pay, fail, state=State, checkpointer=InMemorySaver()))
    config = conf("t", "ann", access_token=secret("config"), remark=formed("config"))
    run(app, INPUT, config, mode=mode)
    answer = {
        "type": "edit", "by": "bob", "comment": formed("comment"),
        "input": {"note": formed("edit"), "password": secret("edit")},
    }  # fmt: skip
    with pytest.raises(ValueError, match="Bearer"):
        run(app, Command(resume=answer), config, mode=mode)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("states", ["bounded", "full"])
def test_no_secret_is_in_a_byte_that_the_ledger_leaves(
    tmp_path: Path,
    states: Any,
    mode: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the database, its log, its anchors and a copy of it; in spans and log records with contents; in the
    process's own log and output.
    """
    caplog.set_level(logging.WARNING)
    with Ledger(tmp_path / "l.db", states=states, anchors=tmp_path / "anchors") as ledger:
        kept = Kept(contents=True)
        everything(ledger, mode, kept.listener)
        assert ledger.flush(20)
        ledger.anchor()
        with sql(tmp_path / "l.db") as select:
            select("VACUUM INTO ?", str(tmp_path / "backup.db"))
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert {"l.db", "l.db-wal", "anchors", "backup.db"} <= files.keys()
        told = "".join(capfd.readouterr()) + caplog.text
        found = [place for place in PLACES for data in files.values() if f"-{place}-x".encode() in data]
        assert found == []
        assert [name for name, data in files.items() if CANARY.encode() in data] == []
        assert [card for card in CARDS for data in files.values() if str(card).encode() in data] == []
        events = map(kept.records, ("gen_ai.evaluation.result", "arbiter.policy.decision"))
        sent = "".join((*(span.to_json() for span in kept.spans), *map(str, events)))
        assert CANARY not in told + sent
        assert [card for card in CARDS if str(card) in sent] == []
        # The rest is there: it was not kept out by keeping nothing.
        kinds = [row[0] for row in _rows(tmp_path, "SELECT DISTINCT kind FROM entries ORDER BY kind")]
        assert kinds == ["answer", "execution", "item"]
        contents = "".join(row[0] for row in _rows(tmp_path, "SELECT body FROM contents"))
        assert contents.count("[secret: secrets]") > 10
        assert contents.count('{"$secret":"field"}') > 5
        for part in ("allow ", "not ", "saw ", "has ", "ValueError", "look", '"by"'):
            assert part in contents or part == '"by"'
        for part in ("saw ", "has ", "allow ", "ValueError", "arbiter.input"):
            assert part in sent
        assert ledger.verify()
        (item,) = ledger.items(node="work")
        assert item.input_state["blob"]["cards"] == ["[secret: cards]"] * 2


def _rows(folder: Path, statement: str) -> list[Any]:
    with sql(folder / "l.db") as select:
        return select(statement)


@pytest.mark.parametrize("end", ["\n", "\t", "\r"], ids=repr)
def test_a_secret_that_begins_a_line_is_not_stored(tmp_path: Path, end: str) -> None:
    """Also if nothing else in the run has a sign of a secret."""
    with Ledger(tmp_path / "l.db") as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({"log": [f"first line{end}{FORM}"]})
        assert ledger.flush(60)
        (item,) = ledger.items()
        assert item.input_state["log"] == [f"first line{end}[secret: secrets]"]
    assert not [path for path in tmp_path.iterdir() if CANARY.encode() in path.read_bytes()]


def test_no_secret_of_a_known_form_is_in_a_byte_of_the_database(tmp_path: Path) -> None:
    texts = list(map("".join, FORMS))
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a")))
        for given in (
            texts,
            [f"see\n{text}" for text in texts],
            [json.dumps({"out": text}) for text in texts],
        ):
            app.invoke({"log": given})
        assert ledger.flush(60)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [secret for _, secret, _ in FORMS if json.dumps(secret)[1:-1].encode() in stored] == []


@pytest.mark.parametrize("name", ["arbiter", *sorted(LOGGERS - {"arbiter"})])
def test_messages_and_tracebacks_of_all_loggers_are_redacted_once_a_ledger_was_opened(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    Ledger(tmp_path / "l.db").close()
    log = logging.getLogger(name)
    try:
        raise ValueError(f"refused {FORM}")
    except ValueError:
        log.exception("asked with %s", FORM)
    log.warning("without", exc_info=ValueError("harmless"))
    log.warning("without", exc_info=True)
    assert "asked with [secret: secrets]" in caplog.text
    assert "ValueError: refused [secret: secrets]" in caplog.text
    assert "ValueError: harmless" in caplog.text
    assert CANARY not in "".join(str(vars(record)) for record in caplog.records) + caplog.text


def test_a_wrong_log_call_is_left_to_the_handlers_while_a_ledger_is_open(tmp_path: Path) -> None:
    wrong = logging.makeLogRecord({"levelno": logging.WARNING, "msg": "%d of %d", "args": ("one",)})
    with Ledger(tmp_path / "ledger.db"):
        assert logging.getLogger("arbiter").filter(wrong)
