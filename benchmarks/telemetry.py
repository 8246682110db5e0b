"""The cost of OpenTelemetry's spans, beside a bare LangGraph step. `python benchmarks/telemetry.py`.

CPU of the process for a chain of 100 governed nodes: without a listener, without an SDK, sampled out, and with
spans that are exported to nowhere; beside them the same spans by the SDK alone. The lowest tenth of interleaved
rounds is compared: other work on the machine only adds.

The limits are for the calls that a listener gets, made again in a row: a run finds the caches of the processor
cold, and the differences of whole runs change by a tenth of a step on a machine that has other work.
"""

from __future__ import annotations

import argparse
import gc
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
from arbiter.listening import ExecutionInfo
from arbiter.telemetry import OpenTelemetry
from benchmarks.overhead import chain, increment, no_garbage

LENGTH = 100
LIMITS = {"spans": 0.15, "sampled out": 0.03}
"""CPU of the calls of a step, in bare steps."""
NO_SDK_US = 5.0
DEEP: Any = {"recursion_limit": 1000}


class Deaf(HistoryListener):
    """A listener that is called and does nothing: the cost of having one."""


class Calls(HistoryListener):
    """Keeps the calls of a run, to repeat them for another listener."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, Any]] = []

    def execution_began(self, execution: ExecutionInfo) -> None:
        self._kept.append(("execution_began", execution))

    def execution_ended(self, execution: ExecutionInfo) -> None:
        self._kept.append(("execution_ended", execution))

    def began(self, item: HistoryItem) -> None:
        self._kept.append(("began", item))

    def ended(self, item: HistoryItem) -> None:
        self._kept.append(("ended", item))

    def repeat(self, listener: HistoryListener) -> None:
        for name, about in self._kept:
            getattr(listener, name)(about)


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
        span.set_attribute("arbiter.status", item.status)
        span.set_attribute("arbiter.verdict", item.decision.kind)
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


def main() -> int:
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
    calls = Calls()
    ArbiterOS(listeners=[calls]).govern(graph).invoke({"value": 0}, DEEP)
    gc.collect()
    gc.freeze()  # so that collecting garbage before each sample takes little of the time
    found: dict[str, list[float]] = {name: [] for name in apps}
    alone: dict[str, list[float]] = {name: [] for name in listeners}
    end = time.perf_counter() + seconds
    names = [*apps]
    while time.perf_counter() < end or len(found["bare"]) < 10:
        names = [*names[1:], names[0]]
        for name in names:
            found[name].append(cpu(partial(apps[name].invoke, {"value": 0}, DEEP)))
            if name in listeners:
                alone[name] += [cpu(partial(calls.repeat, listeners[name])) for _ in range(3)]
    took, calls_took = (
        {name: low(each) / LENGTH * 1e6 for name, each in kind.items()} for kind in (found, alone)
    )
    table = Table(
        "CPU of a step", "µs", "added", "calls alone", "limit", title=f"{len(found['bare'])} rounds"
    )
    missed = False
    for name in apps:
        added = (took[name] - took["a listener"]) / took["bare"]
        row, verdict = ["", ""], True
        if name in calls_took:
            of_step = calls_took[name] / took["bare"]
            row[0] = f"{of_step:.3f} ({calls_took[name]:.1f} µs)"
            if name in LIMITS:
                verdict, row[1] = of_step <= LIMITS[name], f"{LIMITS[name]:.2f}"
            elif name == "no SDK":
                verdict, row[1] = calls_took[name] <= NO_SDK_US, f"{NO_SDK_US:g} µs"
            row[1] += "" if not row[1] else " ok" if verdict else " missed"
        missed = missed or not verdict
        table.add_row(name, f"{took[name]:.1f}", f"{added:+.3f}", *row)
    console = Console()
    console.print(table)
    console.print("Added and calls alone are in bare steps.")
    return 1 if missed else 0


def low(found: list[float]) -> float:
    """The lowest tenth."""
    return sorted(found)[len(found) // 10]


if __name__ == "__main__":
    raise SystemExit(main())
