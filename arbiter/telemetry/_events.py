"""The decisions and evaluations of a node run, as events: the names and attributes of log records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from arbiter._values.ids import id_at
from arbiter.history import HistoryItem
from arbiter.telemetry import _names as names

Text = Callable[[Any], str | None]
"""The form in which a text is sent, None if it is not."""


class Event(NamedTuple):
    """A log record to be. `about` distinguishes it from the other records of its span."""

    name: str
    about: tuple[str, ...]
    attributes: Mapping[str, Any]


def no_text(text: Any) -> None:
    return None


def decisions_of(item: HistoryItem, text: Text = no_text) -> Iterator[Event]:
    """The denial or question that held, the redirect, and the denials and questions without effect."""
    record, decision = item.record, item.decision
    if decision.policy is not None:
        verdict = record.checks.get(decision.policy)
        reason = None if verdict is None else verdict.reason
        target = item.redirected_to if record.redirected_by is None else None
        yield _decision(item, decision.kind, decision.policy, text(reason), target)
    # A router that asks a human names no node.
    if record.redirected_by is not None and item.redirected_to is not None:
        yield _decision(item, "redirect", record.redirected_by, target=item.redirected_to)
    for name, verdict in record.checks.items():
        if verdict.kind != "allow" and name != decision.policy:
            yield _decision(item, verdict.kind, name, text(verdict.reason), enforced=False)


def _decision(
    item: HistoryItem,
    kind: str,
    policy: str,
    reason: str | None = None,
    target: str | None = None,
    *,
    enforced: bool = True,
) -> Event:
    return _event(
        names.DECISION,
        (kind, policy),
        {
            names.DECISION_KIND: kind,
            names.POLICY: policy,
            names.NODE: item.node,
            names.REDIRECTED_TO: target,
            names.REASON: reason,
            names.ENFORCED: None if enforced else False,
        },
    )


def evaluations_of(
    item: HistoryItem, versions: Mapping[str, str], read: Collection[str], text: Text = no_text
) -> Iterator[Event]:
    """The evaluations of a node run; `read` names those that a policy read. Waits for all of them."""
    results, errors = item.evaluation_results, item.evaluation_errors
    for name, outcome in item.evaluation_outcomes.items():
        result = results.get(name)
        score = None if result is None or outcome != "scored" else float(result.score)
        passed = None if score is None or result is None else result.passed
        version = versions.get(name, "")
        yield _event(
            names.EVALUATION,
            (name, version),
            {
                names.EVALUATION_NAME: name,
                names.NODE: item.node,
                names.EVALUATION_SCORE: score,
                names.EVALUATION_LABEL: None if passed is None else "pass" if passed else "fail",
                names.ERROR_TYPE: outcome if score is None else None,
                names.EVALUATION_READ: name in read,
                names.EVALUATION_VERSION: version or None,
                names.EVALUATION_EXPLANATION: text(errors.get(name) if result is None else result.feedback),
            },
        )


def _event(name: str, about: tuple[str, ...], attributes: Mapping[str, Any]) -> Event:
    return Event(name, about, known(attributes))


def known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}


def tasks_around(namespace: str) -> Iterator[str]:
    """The ids of the tasks in which the graph with this namespace runs, the innermost first."""
    for place in reversed(namespace.split("|")):
        yield place.rpartition(":")[2]


def log_record(span: SpanContext, context: Context, event: Event, at: int | None = None) -> LogRecord:
    """The log record of an event in the context of a span, at a time in nanoseconds since 1970, or now.

    Its id is the same each time that it is sent; that of an evaluation is the id of its score.
    """
    id = id_at(f"{span.trace_id:032x}", f"{span.span_id:016x}", *event.about)
    return LogRecord(
        timestamp=at,
        observed_timestamp=at,
        context=context,
        severity_number=SeverityNumber.INFO,
        event_name=event.name,
        attributes={**event.attributes, names.RECORD_ID: id},
    )
