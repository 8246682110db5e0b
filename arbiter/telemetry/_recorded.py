"""Recorded runs as spans for an OTLP collector, with their recorded ids and times.

    entries of a thread ─▶ an execution with its node runs ─▶ ReadableSpan ─▶ OTLPSpanExporter

A run that was not traced gets ids that are derived from the ledger's own, so sending it again gives the same
spans. The environment says where they go, as for every OpenTelemetry exporter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from arbiter._values.version import __version__
from arbiter.instructions import TOOL_CALL
from arbiter.ledger import LedgerError
from arbiter.ledger._entries import ITEMS, VERDICT, columns_of, times_of
from arbiter.ledger._exporting import RecordedThread, Records
from arbiter.telemetry import _names as names

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
    items: list[tuple[Body, Mapping[str, Any]]] = field(default_factory=list[tuple[Body, Mapping[str, Any]]])
    """Its node runs, with their contents."""


def send_spans(records: Records, *, since: int | None = None, exporter: SpanExporter | None = None) -> int:
    """Send the executions that ended since then, in microseconds, and their node runs. Returns the number of spans.

    Raises `LedgerError` if the collector does not take them.
    """
    exporter = exporter or OTLPSpanExporter()
    resource, sent, batch = Resource.create(), 0, list[ReadableSpan]()
    try:
        for thread in records.threads():
            for execution in _executions(thread):
                if since is None or _end(execution) >= since:
                    batch += _spans(execution, thread, records.uuid, resource)
                if len(batch) >= _BATCH:
                    sent += _send(exporter, batch)
                    batch = []
        return sent + _send(exporter, batch)
    finally:
        exporter.shutdown()


def _send(exporter: SpanExporter, batch: Sequence[ReadableSpan]) -> int:
    for at in range(0, len(batch), _BATCH):
        if exporter.export(batch[at : at + _BATCH]) is not SpanExportResult.SUCCESS:
            raise LedgerError(
                "the collector did not take the spans. Check OTEL_EXPORTER_OTLP_ENDPOINT and its headers; "
                "the exporter's log above says why. Sending them again gives the same spans."
            )
    return len(batch)


def _executions(thread: RecordedThread) -> list[_Execution]:
    found: dict[str, _Execution] = {}
    for text, contents in thread.rows:
        body = orjson.loads(text)
        if body["kind"] in (*ITEMS, "execution"):
            id = body.get("execution") or body.get("run") or body["key"]
            execution = found.setdefault(id, _Execution(id))
            if body["kind"] == "execution":
                execution.own = body
            else:
                execution.items.append((body, orjson.loads(contents) if contents else {}))
    return [*found.values()]


def _end(execution: _Execution) -> int:
    own = execution.own
    return int(own["at"] if own is not None else max(body["at"] for body, _ in execution.items))


def _spans(
    execution: _Execution, thread: RecordedThread, ledger: str, resource: Resource
) -> Iterator[ReadableSpan]:
    own: Body = execution.own or {}
    bodies = [body for body, _ in execution.items]
    traced = next((body["trace"] for body in (own, *bodies) if "trace" in body), None)
    trace = traced or _derived(ledger, execution.id, 32)
    root = _context(trace, own.get("span") or _derived(ledger, f"span {execution.id}", 16))
    parent = own.get("parent", "")
    spans = {
        body["key"]: _context(trace, body.get("span") or _derived(ledger, body["key"], 16)) for body in bodies
    }
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
        _there(attributes),
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if own.get("outcome") == "failed" else StatusCode.UNSET),
        start_time=int(own.get("began", min(begins, default=end))) * 1000,
        end_time=end * 1000,
        instrumentation_scope=_SCOPE,
    )
    for body, contents in execution.items:
        context = spans[body["key"]]
        yield _node(body, contents, context, around[body["key"]] or root, resource, context.span_id in nested)


def _node(
    body: Body,
    contents: Mapping[str, Any],
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
        attributes[names.ERROR_TYPE] = next(iter(contents.get("error_types") or ()), "_OTHER")
    start, took = times_of(body)
    begin = round(start * 1e6) * 1000
    return ReadableSpan(
        node if operation is None else f"{operation} {node}",
        context,
        parent,
        resource,
        _there(attributes),
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if status == "failed" else StatusCode.UNSET),
        start_time=begin,
        end_time=begin + round(took * 1e9),
        instrumentation_scope=_SCOPE,
    )


def _around(body: Body, tasks: Mapping[str, SpanContext]) -> SpanContext | None:
    """The span of the node that the node run's graph is in."""
    namespace: str = body.get("namespace") or ""
    for place in reversed(namespace.split("|")) if namespace else ():
        if (found := tasks.get(place.rpartition(":")[2])) is not None:
            return found
    return None


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(1))


def _derived(ledger: str, name: str, digits: int) -> str:
    """An id of that many hex digits, which is the same each time."""
    return sha256(f"{ledger} {name}".encode()).hexdigest()[:digits]


def _there(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
