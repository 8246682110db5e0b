"""Recorded runs reach an OTLP collector as the spans and log records that they were, or would have been."""

from __future__ import annotations

import subprocess
import threading
import time
import tracemalloc
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.graph import END, START, StateGraph
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from arbiter import ArbiterOS, EvaluationResult, PolicyViolationError
from arbiter.instructions import TOOL_CALL
from arbiter.ledger import Ledger, LedgerError
from arbiter.telemetry import OpenTelemetry
from arbiter.telemetry._recorded import send_recorded
from tests.processes import python
from tests.support import Check, Judge, Route, Spy, State, chain

Facts = dict[str, tuple[Any, ...]]


class Collector:
    """An OTLP collector: keeps the spans and log records that it gets, unless its status is an error."""

    def __init__(self) -> None:
        self.status = 200
        self.logs_status = 200
        self.spans: list[Any] = []
        self.log_records: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                status = collector.status if self.path == "/v1/traces" else collector.logs_status
                if status == 200 and self.path == "/v1/traces":
                    traces = ExportTraceServiceRequest()
                    traces.ParseFromString(data)
                    for of_traces in traces.resource_spans:
                        for spans in of_traces.scope_spans:
                            collector.spans += spans.spans
                elif status == 200:
                    logs = ExportLogsServiceRequest()
                    logs.ParseFromString(data)
                    for of_logs in logs.resource_logs:
                        for records in of_logs.scope_logs:
                            collector.log_records += records.log_records
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def facts(self) -> Facts:
        """By the span's id: trace, parent, name, status, and attributes as texts."""
        return {
            span.span_id.hex(): (
                span.trace_id.hex(),
                span.parent_span_id.hex(),
                span.name,
                span.status.code == 2,
                {each.key: str(_value(each.value)) for each in span.attributes},
            )
            for span in self.spans
        }

    def ids(self) -> list[str]:
        """The ids of the log records."""
        return [
            str(_value(each.value))
            for record in self.log_records
            for each in record.attributes
            if each.key == "log.record.uid"
        ]

    def events(self) -> list[tuple[str, ...]]:
        """Of each log record trace, span, name, and attributes."""
        return sorted(
            (
                record.trace_id.hex(),
                record.span_id.hex(),
                record.event_name,
                str(sorted((each.key, _value(each.value)) for each in record.attributes)),
            )
            for record in self.log_records
        )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Generator[Collector]:
    found = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    yield found
    found.server.shutdown()
    found.server.server_close()


def fail(state: State) -> State:
    raise ValueError("no")


def runs(arbiter_os: ArbiterOS) -> None:
    """A graph in a graph with a tool, a failure, a denial, one without effect, a redirect, and evaluations: one
    that a router reads, one that fails, one with nothing to judge, and one that ends after its node.
    """
    late = threading.Event()

    def slowly(_: Any) -> EvaluationResult:
        assert late.wait(30)
        return EvaluationResult(0.25, False, "slow")

    def broken(_: Any) -> EvaluationResult:
        raise ValueError("no judgement")

    for judge in (
        Judge("early", lambda _: EvaluationResult(1.0, True, "fine")),
        Judge("late", slowly),
        Judge("broken", broken),
        Judge("idle", lambda _: None),
    ):
        arbiter_os.add_evaluator(judge)
    arbiter_os.add_policy_checker(Check("watches", lambda _: False, target_nodes=["deep"], on_deny="audit"))
    read = Route("read", lambda history, _: END if history.item.evaluation_results["early"].passed else None)
    read.target_nodes = ("tool",)
    arbiter_os.add_policy_router(read)
    arbiter_os.add_policy_checker(Check("never", lambda history: history.item.node != "pay"))
    builder: Any = StateGraph(State)
    builder.add_node("plan", Spy("plan"))
    builder.add_node("inner", chain(Spy("deep"), Spy("tool")))
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "inner")
    app = arbiter_os.govern(builder.compile(name="crew"), {"tool": TOOL_CALL})
    app.invoke({}, {"configurable": {"thread_id": "t"}})
    with pytest.raises(ValueError, match="no"):
        arbiter_os.govern(chain(fail)).invoke({})
    with pytest.raises(PolicyViolationError):
        arbiter_os.govern(chain(Spy("pay"))).invoke({})
    late.set()
    assert arbiter_os.drain(30)


def live(span: ReadableSpan) -> tuple[str, tuple[Any, ...]]:
    assert span.context
    attributes = {name: str(value) for name, value in (span.attributes or {}).items()}
    parent = f"{span.parent.span_id:016x}" if span.parent else ""
    trace = f"{span.context.trace_id:032x}"
    is_error = not span.status.is_ok and not span.status.is_unset
    return f"{span.context.span_id:016x}", (trace, parent, span.name, is_error, attributes)


def live_event(record: ReadableLogRecord) -> tuple[str, ...]:
    found = record.log_record
    attributes = str(sorted((found.attributes or {}).items()))
    return f"{found.trace_id or 0:032x}", f"{found.span_id or 0:016x}", str(found.event_name), attributes


def test_recorded_spans_and_log_records_are_those_that_were_sent_when_they_happened(
    tmp_path: Path, collector: Collector
) -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    exporter: Any = InMemoryLogRecordExporter
    events, logs = exporter(), LoggerProvider()
    logs.add_log_record_processor(SimpleLogRecordProcessor(events))
    begun = time.time_ns()
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, listeners=[OpenTelemetry(provider, logger_provider=logs)])
        with provider.get_tracer("app").start_as_current_span("request"):
            runs(arbiter_os)
        assert ledger.flush(60)
        assert ledger.verify()
        ended = time.time_ns()
        sent = send_recorded(ledger.records())
    were = dict(
        live(span)
        for span in memory.get_finished_spans()
        if span.name != "request" and not span.name.startswith("evaluate ")
    )
    assert sent.spans == len(were) == 9
    assert collector.facts() == were
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans)
    told = sorted(live_event(record) for record in events.get_finished_logs())
    assert sent.log_records == len(told) == 4 * 4 + 3
    assert collector.events() == told
    assert len(set(collector.ids())) == sent.log_records
    assert all(begun - 1000 <= record.time_unix_nano <= ended for record in collector.log_records)


@pytest.mark.lengthy
def test_runs_that_were_not_traced_get_the_same_ids_each_time(tmp_path: Path, collector: Collector) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        runs(ArbiterOS(ledger=ledger))
        assert ledger.flush(60)
        send_recorded(ledger.records())
        once, events = collector.facts(), collector.events()
        send_recorded(ledger.records())
        assert send_recorded(ledger.records(thread_id="t")).spans == 5
    assert collector.facts() == once
    assert set(collector.events()) == set(events)
    assert len(collector.ids()) > len(set(collector.ids())) == 4 * 4 + 3
    assert {span for _, span, *_ in events} <= once.keys()
    assert len(once) == 9
    assert len(collector.spans) == 9 + 9 + 5


def test_a_collector_that_refuses_is_an_error_and_either_part_can_be_left_out(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.status = 400
    with Ledger(tmp_path / "l.db") as ledger:
        runs(ArbiterOS(ledger=ledger))
        assert ledger.flush(60)
        with pytest.raises(LedgerError, match=r"the spans\. Check OTEL_EXPORTER_OTLP_ENDPOINT"):
            send_recorded(ledger.records())
        collector.status, collector.logs_status = 200, 400
        with pytest.raises(LedgerError, match="OTEL_LOGS_EXPORTER=none sends no log records"):
            send_recorded(ledger.records())
        monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
        assert send_recorded(ledger.records()) == (9, 0)
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        assert send_recorded(ledger.records()) == (0, 0)


@pytest.mark.lengthy
def test_the_command_sends_spans_and_log_records(tmp_path: Path, collector: Collector) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        runs(ArbiterOS(ledger=ledger))
    command = python("-m", "arbiter", "export", "--to", "otlp", "--ledger", str(tmp_path / "l.db"))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "sent 9 spans and 19 log records\n"
    assert len(collector.spans) == 9
    done = subprocess.run([*command, "--since", "2200-01-01"], capture_output=True, text=True, check=True)
    assert done.stdout == "sent 0 spans and 0 log records\n"


@pytest.mark.lengthy
def test_sending_a_thread_keeps_no_contents_of_its_node_runs(tmp_path: Path) -> None:
    """A thread may have gigabytes of contents; parsed, they take many times as much memory."""
    with Ledger(tmp_path / "l.db", states="full") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), Spy("b")))
        for _ in range(20):
            app.invoke({"log": ["xy"] * 2_000}, {"configurable": {"thread_id": "t"}})
        assert ledger.flush(60)
        (thread,) = ledger.records().threads()
        size = sum(len(row.body) + len(row.contents or "") for row in thread.rows)
        tracemalloc.start()
        try:
            send_recorded(
                ledger.records(), spans=InMemorySpanExporter(), logs=cast(Any, InMemoryLogRecordExporter)()
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 4 * size
