"""History items as the ledger recorded them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from arbiter.history import RunHistory
from arbiter.history._record import Record, kind_of
from arbiter.history._results import Results
from arbiter.instructions import Instruction, find_instruction
from arbiter.ledger._contents import restored
from arbiter.ledger._entries import scores_of
from arbiter.verdicts import EvaluationResult, Verdict


class StoredHistory(RunHistory):
    """The history of one thread, or of one run of it, from a ledger."""

    __slots__ = ()


def record_of(
    body: Mapping[str, Any],
    contents: Mapping[str, Any] | None,
    judged: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = (),
) -> Record:
    """The record of a node run: its entry, and the evaluations that were written after it."""
    found: Mapping[str, Any] = contents or {}
    started, lasted = map(float, body.get("times") or (body["at"] / 1_000_000, 0.0))
    record = Record(
        body.get("task") or body["key"],
        body.get("node", ""),
        _instruction(body.get("instruction")),
        body.get("step", 0),
        body.get("namespace", ""),
        started,
        _path(body.get("path", ("__pregel_pull", body.get("node", "")))),
    )
    record.attempt = body.get("attempt", 1)
    record.status = body.get("status", "completed")
    record.duration = lasted
    record.input = _state(found.get("edited", found.get("input")))
    record.output = _state(found.get("output"))
    reasons: Mapping[str, str] = found.get("reasons") or {}
    checks: Mapping[str, Any] = body.get("checks") or {}
    record.checks = {name: Verdict(kind, reasons.get(name, "")) for name, kind in checks.items()}
    record.routes = dict(body.get("routes") or {})
    record.redirected_to = (body.get("route") or {}).get("target") or (body.get("decision") or {}).get(
        "target"
    )
    record.notes = dict(found.get("notes") or {})
    record.errors = dict(found.get("errors") or {})
    record.error = found.get("error")
    record.error_types = tuple(found.get("error_types") or ())
    record.corrections = tuple(found.get("corrections") or ())
    record.gating = _state(found.get("gating"))
    results: dict[str, EvaluationResult] = {}
    errors: dict[str, str] = {}
    for part, text in ((body, found), *((late, more or {}) for late, more in judged)):
        said: Mapping[str, Any] = text.get("evaluations") or {}
        for score in scores_of(part):
            of: Mapping[str, Any] = said.get(score.evaluator) or {}
            results[score.evaluator] = EvaluationResult(
                score.score, score.passed, of.get("feedback", ""), restored(of.get("metadata") or {})
            )
        errors.update(text.get("evaluation_errors") or dict.fromkeys(part.get("failed") or (), "it failed"))
    record.evaluations = Results(results, errors)
    return record


def _state(captured: Any) -> Mapping[str, Any]:
    value = restored(captured)
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"__root__": value}  # pyright: ignore[reportUnknownVariableType]


def _path(path: Any) -> Any:
    return tuple(map(_path, path)) if isinstance(path, list) else path  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _instruction(qualified: str | None) -> Instruction | None:
    try:
        return find_instruction(qualified) if qualified else None
    except ValueError:  # its core is not imported in this process
        return None


def records_of(rows: Sequence[tuple[str, str | None]]) -> list[Record]:
    """Records of rows of (body, contents), in order. A `judged` entry is merged into the item that it is about."""
    parsed = [(orjson.loads(body), None if text is None else orjson.loads(text)) for body, text in rows]
    judged: dict[str, list[tuple[Any, Any]]] = {}
    for body, contents in parsed:
        if body["kind"] == "judged":
            judged.setdefault(body["of"], []).append((body, contents))
    return [
        record_of(body, contents, judged.get(body["key"], ()))
        for body, contents in parsed
        if body["kind"] in ("item", "recovered")
    ]


def history_of(rows: Sequence[tuple[str, str | None]]) -> StoredHistory:
    """The history in these rows: of each task its newest attempt, in the place of its first."""
    newest: dict[str, Record] = {}
    for record in records_of(rows):
        newest[record.id] = record
    records = list(newest.values())
    return StoredHistory(records, Counter(map(kind_of, records)))
