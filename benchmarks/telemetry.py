"""The cost of OpenTelemetry's spans, beside a bare LangGraph step. `python benchmarks/telemetry.py`.

CPU of the process for a chain of 100 governed nodes: without a listener, without an SDK, sampled out, and with
spans that are exported to nowhere; beside them the same spans by the SDK alone. The lowest tenth of interleaved
rounds is compared: other work on the machine only adds.

The SDK alone takes more than the limit of a span, so the last row says what `OpenTelemetry` adds to it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arbiter import ArbiterOS, HistoryListener
from arbiter.history import HistoryItem
from arbiter.telemetry import OpenTelemetry
from benchmarks.overhead import chain, increment, no_garbage

LENGTH = 100
LIMITS = {"spans": 0.15, "sampled out": 0.03, "spans, beyond the SDK": 0.05}
"""CPU added to a step, in bare steps."""
NO_SDK_US = 5.0
DEEP: Any = {"recursion_limit": 1000}


class Deaf(HistoryListener):
    """A listener that is called and does nothing: the cost of having one."""


class BareSdk(HistoryListener):
    """The spans that `OpenTelemetry` makes, and nothing else: the part of the cost that is the SDK's own."""

    def __init__(self) -> None:
        self._tracer = provider_of(ALWAYS_ON).get_tracer("bare")
        self._around = trace.set_span_in_context(self._tracer.start_span("root"))
        self._open: dict[str, trace.Span] = {}

    def began(self, item: HistoryItem) -> None:
        attributes: dict[str, Any] = {
            "arbiter.node": item.node,
            "arbiter.step": item.step,
            "arbiter.task": item.record.id,
            "arbiter.attempt": item.attempt,
        }
        span = self._tracer.start_span(item.node, self._around, attributes=attributes)
        contexts.attach(trace.set_span_in_context(span, self._around))
        self._open[item.record.id] = span

    def ended(self, item: HistoryItem) -> None:
        span = self._open.pop(item.record.id)
        contexts.attach(self._around)
        span.set_attributes({"arbiter.status": item.status, "arbiter.verdict": item.decision.kind})
        span.end()


class Nowhere(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def provider_of(sampler: Sampler) -> TracerProvider:
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    return provider


def traced(sampler: Sampler) -> OpenTelemetry:
    return OpenTelemetry(provider_of(sampler))


def cpu(run: Callable[[], object]) -> float:
    with no_garbage():
        begun = time.process_time()
        run()
        return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    seconds: float = parser.parse_args().seconds
    graph = chain(LENGTH, increment)

    apps: dict[str, Any] = {"bare": graph, "governed": ArbiterOS().govern(graph)}
    listeners: dict[str, HistoryListener] = {
        "a listener": Deaf(),
        "no SDK": OpenTelemetry(),
        "the SDK alone": BareSdk(),
        "sampled out": traced(ALWAYS_OFF),
        "spans": traced(ALWAYS_ON),
    }
    for name, listener in listeners.items():
        apps[name] = ArbiterOS(listeners=[listener]).govern(graph)
    found: dict[str, list[float]] = {name: [] for name in apps}
    end = time.perf_counter() + seconds
    names = [*apps]
    while time.perf_counter() < end or len(found["bare"]) < 10:
        names = [*names[1:], names[0]]
        for name in names:
            found[name].append(cpu(partial(apps[name].invoke, {"value": 0}, DEEP)))
    took = {name: low(each) / LENGTH * 1e6 for name, each in found.items()}
    added = {name: (each - took["a listener"]) / took["bare"] for name, each in took.items()}
    added["spans, beyond the SDK"] = added["spans"] - added["the SDK alone"]
    table = Table(
        "CPU of a step", "µs", "added, in bare steps", "limit", title=f"{len(found['bare'])} rounds"
    )
    for name, more in added.items():
        verdict = ""
        if (limit := LIMITS.get(name)) is not None:
            verdict = f"{limit:.2f} {'ok' if more <= limit else 'missed'}"
        if name == "no SDK":
            verdict = f"{NO_SDK_US:g} µs {'ok' if more * took['bare'] <= NO_SDK_US else 'missed'}"
        table.add_row(name, f"{took[name]:.1f}" if name in took else "", f"{more:+.3f}", verdict)
    Console().print(table)


def low(found: list[float]) -> float:
    """The lowest tenth."""
    return sorted(found)[len(found) // 10]


if __name__ == "__main__":
    main()
