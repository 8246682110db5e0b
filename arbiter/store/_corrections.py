"""Gated actions and evaluated interventions as rows, and actions from rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from arbiter.models import NO_TOKENS
from arbiter.personas import Attempt, DimensionCheck, GatedAction, Intervened, Persona
from arbiter.store._opening import StoreError

Row = Mapping[str, Any]
LOST = "the text of the first draft is lost, because another process wrote it"


def agent_row(name: str | None, id: str | None, persona: Persona | None, place: str) -> dict[str, Any]:
    """The agent that a record belongs to. An unknown one is the environment at that `place`."""
    if name is None:
        return {"id": f"env:{place}", "display_name": place, "kind": "environment"}
    prompt = persona.text if persona is not None and persona.text.strip() else None
    return {"id": id or name, "display_name": name, "system_prompt": prompt, "kind": "agent"}


def run_uuid(run: UUID | str | None) -> UUID | None:
    """The id of a run of a graph. Raises `StoreError` for a text that is no uuid."""
    try:
        return None if run is None else UUID(str(run))
    except ValueError:
        raise StoreError(f"run_id: expected the uuid of a run, got {run!r:.80}.") from None


# The columns that have a field of an action, or of an attempt, as it is, with the field's name.
_SAME = ("corrected_text", "similarity_score", "total_score", "attempt_number", "outcome", "enforced")
_ACTION = {**{name: name for name in (*_SAME, "item_id", "node", "token_usage")}, "created_at": "at"}
_ATTEMPT = {
    **{name: name for name in ("text", "stage", "similar_to", "calls", "token_usage")},
    "attempt_number": "number",
    "similarity_score": "similarity",
    "max_similarity": "most_similarity",
}


def action_row(action: GatedAction) -> dict[str, Any]:
    """The row of an action, without its agent."""
    lost = LOST if action.original_text is None else ""
    return {
        **{column: getattr(action, field) for column, field in _ACTION.items()},
        "id": uuid4(),
        "run_id": run_uuid(action.run_id),
        "action_id": action.id,
        "original_text": action.original_text or "",
        "dimension_scores": _checks(action.dimension_scores),
        "problem": "; ".join(filter(None, (action.problem, lost))),
    }


def attempt_rows(log: UUID, attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """The rows of the attempts of one action."""
    return [
        {
            **{column: getattr(attempt, field) for column, field in _ATTEMPT.items()},
            "correction_log_id": log,
            "dimension_scores": _checks(attempt.checks),
            "total_score": attempt.total if attempt.checks else None,
            "passed": attempt.passed,
            "status": _status(attempt),
        }
        for attempt in attempts
    ]


def _checks(checks: Mapping[str, DimensionCheck]) -> dict[str, Any] | None:
    return {name: check.to_dict() for name, check in checks.items()} or None


def _status(attempt: Attempt) -> str:
    """The worst status of the dimensions: "unchecked" if nothing was checked."""
    found = {check.status for check in attempt.checks.values()}
    if not found:
        return "unchecked" if attempt.similarity is None else "judged"
    order = ("error", "timeout", "judged", "no_evidence", "precondition_false")
    return next(status for status in order if status in found)


def action_of(row: Row, attempts: Iterable[Row]) -> GatedAction:
    """The action of a row, which has the columns of its agent and its run as well."""
    found = tuple(map(_attempt, attempts))
    lost = bool(found) and found[0].text is None
    return GatedAction(
        id=row["action_id"] or str(row["id"]),
        agent=row["display_name"] if row["kind"] == "agent" else None,
        agent_id=row["agent_id"] if row["kind"] == "agent" else None,
        thread_id=row["thread_id"],
        run_id=None if row["run_id"] is None else str(row["run_id"]),
        original_text=None if lost else row["original_text"],
        dimension_scores=_checks_of(row["dimension_scores"]),
        calls=sum(attempt.calls for attempt in found),
        attempts=found,
        problem=row["problem"],
        **{field: row[column] for column, field in _ACTION.items()},
    )


def _attempt(row: Row) -> Attempt:
    stored = {field: row[column] for column, field in _ATTEMPT.items() if row[column] is not None}
    known: dict[str, Any] = {"text": None, **stored}
    return Attempt(**known, checks=_checks_of(row["dimension_scores"]))


_CHECK: Row = {"score": None, "threshold": 0.0, "status": "judged", "reasoning": "", "recommended": ()}
"""What the rows of other programs may lack."""


def _checks_of(stored: Mapping[str, Row] | None) -> dict[str, DimensionCheck]:
    known = {field.name for field in fields(DimensionCheck)}
    return {
        name: DimensionCheck.from_dict(
            {**_CHECK, **{key: value for key, value in check.items() if key in known}}
        )
        for name, check in (stored or {}).items()
    }


def intervention_rows(
    evaluated: Intervened, personas: Sequence[Persona]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of an agent and the row about it: one for each nudged agent, else one for the only target or,
    with several, for the environment. The first row has the token usage."""
    by_name = {persona.name: persona for persona in personas}
    alone = evaluated.targets[0] if len(evaluated.targets) == 1 else None
    named: list[str | None] = [*evaluated.nudges] or [alone]
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name in named:
        persona = by_name.get(name or "")
        agent = agent_row(name, persona.id if persona else None, persona, evaluated.channel)
        used = evaluated.token_usage if not rows else NO_TOKENS
        rows.append(
            (
                agent,
                {
                    "channel": evaluated.channel,
                    "name": evaluated.name,
                    "functional": evaluated.functional,
                    "textual": evaluated.textual,
                    "propositional": evaluated.propositional,
                    "fired": evaluated.fired,
                    "nudge": None if name is None else evaluated.nudges.get(name),
                    "token_usage": None if used is None else dict(used),
                    "created_at": evaluated.at or datetime.now(UTC),
                    "problem": evaluated.problem,
                },
            )
        )
    return rows
