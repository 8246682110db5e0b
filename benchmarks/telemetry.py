"""The cost of OpenTelemetry's spans, beside a bare LangGraph step. `python benchmarks/telemetry.py`.

CPU of the process for a chain of 100 governed nodes: without a listener, without an SDK, sampled out, and with
spans that are exported to nowhere; beside them the same spans by the SDK alone. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
LIMITS = {"spans": 0.15, "sampled out": 0.03}
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
        self._open[item.record.id] = self._tracer.start_span(item.node, self._around, attributes=attributes)

    def ended(self, item: HistoryItem) -> None:
        span = self._open.pop(item.record.id)
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
    found: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    names = [*apps]
    while time.perf_counter() < end or len(found) < 5:
        names = [*names[1:], names[0]]
        found.append({name: cpu(partial(apps[name].invoke, {"value": 0}, DEEP)) for name in names})
    table = Table("CPU of a step", "µs", "added, in bare steps", "limit", title=f"{len(found)} rounds")
    bare = statistics.median(each["bare"] for each in found)
    for name in apps:
        took = statistics.median(each[name] for each in found)
        added = statistics.median((each[name] - each["a listener"]) / each["bare"] for each in found)
        limit = LIMITS.get(name)
        verdict = "" if limit is None else f"{limit:.2f} {'ok' if added <= limit else 'missed'}"
        if name == "no SDK":
            verdict = f"{NO_SDK_US:g} µs {'ok' if added * bare / LENGTH * 1e6 <= NO_SDK_US else 'missed'}"
        table.add_row(name, f"{took / LENGTH * 1e6:.1f}", f"{added:+.3f}", verdict)
    Console().print(table)


if __name__ == "__main__":
    main()
