"""Recorded runs reach an OTLP collector as the spans that they were, or would have been."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from arbiter import ArbiterOS, PolicyViolationError
from arbiter.instructions import TOOL_CALL
from arbiter.ledger import Ledger, LedgerError
from arbiter.telemetry import OpenTelemetry
from arbiter.telemetry._recorded import send_spans
from tests.processes import python
from tests.support import Check, Spy, State, chain

Facts = dict[str, tuple[Any, ...]]


class Collector:
    """An OTLP collector: keeps the spans that it gets, unless its status is an error."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                if collector.status == 200 and self.path == "/v1/traces":
                    for resource in request.resource_spans:
                        for scope in resource.scope_spans:
                            collector.spans += scope.spans
                self.send_response(collector.status)
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
    """A graph in a graph with a tool, a failure, and a denial."""
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


def live(span: ReadableSpan) -> tuple[str, tuple[Any, ...]]:
    assert span.context
    attributes = {name: str(value) for name, value in (span.attributes or {}).items()}
    parent = f"{span.parent.span_id:016x}" if span.parent else ""
    trace = f"{span.context.trace_id:032x}"
    is_error = not span.status.is_ok and not span.status.is_unset
    return f"{span.context.span_id:016x}", (trace, parent, span.name, is_error, attributes)


def test_recorded_spans_are_those_that_were_sent_when_they_happened(
    tmp_path: Path, collector: Collector
) -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, listeners=[OpenTelemetry(provider)])
        with provider.get_tracer("app").start_as_current_span("request"):
            runs(arbiter_os)
        assert ledger.flush(10)
        assert ledger.verify()
        sent = send_spans(ledger.records())
    were = dict(live(span) for span in memory.get_finished_spans() if span.name != "request")
    assert sent == len(were) == 9
    assert collector.facts() == were
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans)


def test_runs_that_were_not_traced_get_the_same_ids_each_time(tmp_path: Path, collector: Collector) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        runs(ArbiterOS(ledger=ledger))
        assert ledger.flush(10)
        send_spans(ledger.records())
        once = collector.facts()
        send_spans(ledger.records())
        assert send_spans(ledger.records(thread_id="t")) == 5
    assert collector.facts() == once
    assert len(once) == 9
    assert len(collector.spans) == 9 + 9 + 5


def test_a_collector_that_refuses_is_an_error(tmp_path: Path, collector: Collector) -> None:
    collector.status = 400
    with Ledger(tmp_path / "l.db") as ledger:
        runs(ArbiterOS(ledger=ledger))
        assert ledger.flush(10)
        with pytest.raises(LedgerError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
            send_spans(ledger.records())


@pytest.mark.lengthy
def test_the_command_sends_spans(tmp_path: Path, collector: Collector) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        runs(ArbiterOS(ledger=ledger))
    command = python("-m", "arbiter", "export", "--to", "otlp", "--ledger", str(tmp_path / "l.db"))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "sent 9 spans\n"
    assert len(collector.spans) == 9
    done = subprocess.run([*command, "--since", "2200-01-01"], capture_output=True, text=True, check=True)
    assert done.stdout == "sent 0 spans\n"
