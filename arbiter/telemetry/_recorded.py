"""Recorded runs for an OTLP collector, as spans and log records with their recorded ids and times.

    entries of a thread ─▶ an execution with its node runs ─┬▶ ReadableSpan ──────▶ OTLPSpanExporter
                                                            └▶ ReadableLogRecord ─▶ OTLPLogExporter

A run that was not traced gets ids that are derived from the ledger's own, so sending it again gives the same
spans. The environment says where they go, as for every OpenTelemetry exporter.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from arbiter._values.version import __version__
from arbiter.history import HistoryItem
from arbiter.instructions import TOOL_CALL
from arbiter.ledger import LedgerError
from arbiter.ledger._entries import ITEMS, VERDICT, columns_of, scores_of, times_of
from arbiter.ledger._exporting import RecordedThread, Records
from arbiter.ledger._stored import record_of
from arbiter.telemetry import _names as names
from arbiter.telemetry._events import decisions_of, evaluations_of, known, log_record, tasks_around

_BATCH = 512
_DECIDED = slice(VERDICT, VERDICT + 3)
_SCOPE = InstrumentationScope(names.SCOPE, __version__)
Body = Mapping[str, Any]


@dataclass(slots=True)
class _Execution:
    """The entries of one call of a graph."""

    id: str
    own: Body | None = None
    """The entry of its end; None if its process was killed."""
    items: list[tuple[Body, Sequence[str]]] = field(default_factory=list[tuple[Body, Sequence[str]]])
    """Its node runs, with the types of their errors."""
    judged: dict[str, list[Body]] = field(default_factory=dict[str, list[Body]])
    """The evaluations that ended after their node runs, by the keys of these."""


class Sent(NamedTuple):
    """How much a collector took."""

    spans: int
    log_records: int


def send_recorded(
    records: Records,
    *,
    since: int | None = None,
    spans: SpanExporter | None = None,
    logs: LogRecordExporter | None = None,
) -> Sent:
    """Send the executions that ended since then, in microseconds: they and their node runs as spans, evaluations
    and decisions as log records.

    By default the environment names the collector; OTEL_TRACES_EXPORTER=none and OTEL_LOGS_EXPORTER=none leave
    out a part. Raises `LedgerError` if the collector does not take them.
    """
    resource = Resource.create()
    to_spans = _Batches("spans", "TRACES", spans or (_wanted("TRACES") and OTLPSpanExporter()) or None)
    to_logs = _Batches("log records", "LOGS", logs or (_wanted("LOGS") and OTLPLogExporter()) or None)
    try:
        for thread in records.threads():
            for execution in _executions(thread):
                if since is None or _end(execution) >= since:
                    placed = _places(execution, records.uuid)
                    to_spans.add(_spans(execution, thread, placed, resource))
                    to_logs.add(_log_records(execution, placed, resource))
        return Sent(to_spans.finish(), to_logs.finish())
    finally:
        to_spans.close()
        to_logs.close()


def _wanted(signal: str) -> bool:
    return os.environ.get(f"OTEL_{signal}_EXPORTER") != "none"


class _Batches:
    """Sends what it gets in batches; nothing if it has no exporter."""

    def __init__(self, what: str, signal: str, exporter: Any) -> None:
        self._what = what
        self._signal = signal
        self._exporter = exporter
        self._waiting: list[Any] = []
        self._sent = 0

    def add(self, found: Iterable[Any]) -> None:
        if self._exporter is None:
            return
        for each in found:
            self._waiting.append(each)
            if len(self._waiting) == _BATCH:
                self._send()

    def finish(self) -> int:
        """Send what is left. Returns how much was sent in all."""
        if self._waiting:
            self._send()
        return self._sent

    def _send(self) -> None:
        batch, self._waiting = self._waiting, []
        # The results of both exporters are enums of their own, with the same names.
        if self._exporter.export(batch).name != "SUCCESS":
            raise LedgerError(
                f"the collector did not take the {self._what}. Check OTEL_EXPORTER_OTLP_ENDPOINT and its headers; "
                "the exporter's log above says why. Sending again gives the same spans. "
                f"OTEL_{self._signal}_EXPORTER=none sends no {self._what}."
            )
        self._sent += len(batch)

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.shutdown()


def _executions(thread: RecordedThread) -> list[_Execution]:
    found: dict[str, _Execution] = {}
    for row in thread.rows:
        body, contents = row.parsed()
        id, kind = body.get("execution") or body.get("run") or body["key"], body["kind"]
        if kind == "judged":
            if id in found:
                found[id].judged.setdefault(body["of"], []).append(body)
        elif kind in (*ITEMS, "execution"):
            execution = found.setdefault(id, _Execution(id))
            if kind == "execution":
                execution.own = body
            else:
                # Only this of the contents: they may be many times as long as the bodies.
                execution.items.append((body, (contents or {}).get("error_types") or ()))
    return [*found.values()]


def _end(execution: _Execution) -> int:
    own = execution.own
    return int(own["at"] if own is not None else max(body["at"] for body, _ in execution.items))


@dataclass(frozen=True, slots=True)
class _Places:
    """The spans of an execution and of its node runs, by the keys of these."""

    root: SpanContext
    spans: Mapping[str, SpanContext]
    trace: str


def _places(execution: _Execution, ledger: str) -> _Places:
    own: Body = execution.own or {}
    bodies = [body for body, _ in execution.items]
    traced = next((body["trace"] for body in (own, *bodies) if "trace" in body), None)
    trace = traced or _derived(ledger, execution.id, 32)
    return _Places(
        root=_context(trace, own.get("span") or _derived(ledger, f"span {execution.id}", 16)),
        spans={
            body["key"]: _context(trace, body.get("span") or _derived(ledger, body["key"], 16))
            for body in bodies
        },
        trace=trace,
    )


def _spans(
    execution: _Execution, thread: RecordedThread, placed: _Places, resource: Resource
) -> Iterator[ReadableSpan]:
    own: Body = execution.own or {}
    bodies = [body for body, _ in execution.items]
    root, spans, trace = placed.root, placed.spans, placed.trace
    parent = own.get("parent", "")
    tasks = {str(body.get("task")): spans[body["key"]] for body in bodies}
    around = {body["key"]: _around(body, tasks) for body in bodies}
    nested = {context.span_id for context in around.values() if context is not None}
    graph = own.get("graph") or thread.graph or ""
    operation = names.INVOKE_WORKFLOW if nested else names.INVOKE_AGENT
    begins = [body["at"] - body.get("took", 0) for body in bodies]
    end = _end(execution)
    attributes = {
        names.OPERATION: operation,
        names.AGENT: graph,
        names.WORKFLOW: graph if nested else None,
        names.CONVERSATION: thread.thread_id,
        names.RUN: (own or bodies[0]).get("run"),
        names.EXECUTION: execution.id,
        names.RULES: own.get("rules"),
        names.OUTCOME: own.get("outcome"),
    }
    yield ReadableSpan(
        f"{operation} {graph}",
        root,
        _context(trace, parent) if parent.strip("0") else None,
        resource,
        known(attributes),
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if own.get("outcome") == "failed" else StatusCode.UNSET),
        start_time=int(own.get("began", min(begins, default=end))) * 1000,
        end_time=end * 1000,
        instrumentation_scope=_SCOPE,
    )
    for body, errors in execution.items:
        context = spans[body["key"]]
        yield _node(body, errors, context, around[body["key"]] or root, resource, context.span_id in nested)


def _node(
    body: Body,
    errors: Sequence[str],
    context: SpanContext,
    parent: SpanContext,
    resource: Resource,
    is_agent: bool,
) -> ReadableSpan:
    verdict, policy, target = columns_of(body)[_DECIDED]
    route: Mapping[str, Any] = body.get("route") or {}
    node, status = body.get("node", ""), body.get("status")
    is_tool = body.get("instruction") == TOOL_CALL.qualified
    operation = names.INVOKE_AGENT if is_agent else names.EXECUTE_TOOL if is_tool else None
    attributes = {
        names.OPERATION: operation,
        names.AGENT: node if is_agent else None,
        names.TOOL: node if is_tool else None,
        names.NODE: node,
        names.INSTRUCTION: body.get("instruction"),
        names.STEP: body.get("step"),
        names.TASK: body.get("task"),
        names.ATTEMPT: body.get("attempt"),
        names.STATUS: status,
        names.VERDICT: verdict,
        names.POLICY: policy or route.get("policy"),
        names.REDIRECTED_TO: target,
    }
    if status == "failed":
        attributes[names.ERROR_TYPE] = next(iter(errors), "_OTHER")
    start, took = times_of(body)
    begin = round(start * 1e6) * 1000
    return ReadableSpan(
        node if operation is None else f"{operation} {node}",
        context,
        parent,
        resource,
        known(attributes),
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if status == "failed" else StatusCode.UNSET),
        start_time=begin,
        end_time=begin + round(took * 1e9),
        instrumentation_scope=_SCOPE,
    )


def _log_records(execution: _Execution, placed: _Places, resource: Resource) -> Iterator[ReadableLogRecord]:
    """The decisions and evaluations of an execution, without texts."""
    for body, _ in execution.items:
        late = execution.judged.get(body["key"], [])
        item = HistoryItem(record_of(body, None, [(each, None) for each in late]))
        span = placed.spans[body["key"]]
        context = set_span_in_context(NonRecordingSpan(span), Context())
        versions: dict[str, str] = {}
        read: set[str] = set()
        for name, was_read, version in (each for part in (body, *late) for each in _judgements(part)):
            if version:
                versions[name] = version
            if was_read:
                read.add(name)
        judged_at = max(each["at"] for each in (body, *late))
        for at, event in (
            *((body["at"], event) for event in decisions_of(item)),
            *((judged_at, event) for event in evaluations_of(item, versions, read)),
        ):
            yield ReadableLogRecord(log_record(span, context, event, at * 1000), resource, _SCOPE)


def _judgements(body: Body) -> Iterator[tuple[str, bool, str]]:
    """The evaluations in a body: their names, whether a policy read them, and the versions of the evaluators."""
    for score in scores_of(body):
        yield score.evaluator, score.read, score.version
    for name, _, was_read, version in body.get("failed") or ():
        yield name, was_read, version


def _around(body: Body, tasks: Mapping[str, SpanContext]) -> SpanContext | None:
    """The span of the node that the node run's graph is in."""
    around = tasks_around(body.get("namespace") or "")
    return next((tasks[task] for task in around if task in tasks), None)


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(1))


def _derived(ledger: str, name: str, digits: int) -> str:
    """An id of that many hex digits, which is the same each time."""
    return sha256(f"{ledger} {name}".encode()).hexdigest()[:digits]
