"""`OpenTelemetry`: spans, log records and metrics of governed runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry._logs import LoggerProvider, get_logger_provider
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from arbiter._values.records import Records
from arbiter._values.version import __version__
from arbiter.errors import ConfigurationError
from arbiter.history import HistoryItem
from arbiter.history._record import Record
from arbiter.instructions import TOOL_CALL
from arbiter.listening import ExecutionInfo, HistoryListener
from arbiter.redaction import ContentRedactor
from arbiter.telemetry import _names as names
from arbiter.telemetry._events import (
    Event,
    Text,
    decisions_of,
    evaluations_of,
    log_record,
    no_text,
    tasks_around,
)

if TYPE_CHECKING:
    from arbiter.ledger import Health, Ledger

_TEXT = 4_000
"""Characters of a state, a reason or an explanation that are sent."""
_BEYOND = 256
"""Further characters that are searched for secrets, so that no half of one is sent."""


_OF_SCORES = (names.EVALUATION_NAME, names.NODE)


class _Open:
    """A span that has begun, the context in which it is the current one, and those around it."""

    __slots__ = ("before", "context", "has_inner", "is_recording", "outer", "span")

    def __init__(self, span: Span, context: Context, outer: Context, is_recording: bool) -> None:
        self.span = span
        self.context = context
        self.outer = outer
        """The context of the span around it."""
        self.is_recording = is_recording
        self.before = contexts.get_current()
        self.has_inner = False
        """True if node runs of another graph belong to it."""


class _Judged(NamedTuple):
    """A node run that waits for its evaluations."""

    opened: _Open
    ended: int
    """When its span ended, in nanoseconds since 1970."""
    read: frozenset[str]
    """The evaluations that were read before."""


def _ids_of(span: Span) -> tuple[str, str]:
    """The ids of the trace and of the span, in hex."""
    place = span.get_span_context()
    return f"{place.trace_id:032x}", f"{place.span_id:016x}"


def _observe(meter: Meter, ledger: Ledger) -> None:
    """Report the health of a ledger as gauges."""

    def observed(read: Callable[[Health], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: [Observation(read(ledger.health()))]

    gauge = meter.create_observable_gauge
    gauge(names.QUEUED, [observed(lambda of: of.queued)], "{entry}", "Entries that wait to be written")
    gauge(names.DROPPED, [observed(lambda of: of.dropped)], "{entry}", "Entries that were dropped")
    gauge(names.LAG, [observed(_lag)], "s", "Seconds since the last commit, 0 if nothing waits")


def _lag(health: Health) -> float:
    if not health.queued or health.last_commit is None:
        return 0.0
    return max(time.time() - health.last_commit.timestamp(), 0.0)


class OpenTelemetry(HistoryListener):
    """Reports executions, node runs, evaluations and decisions to OpenTelemetry.

    An execution and each attempt of a node run are spans. The span of a node run is the current one while
    its checkers and its body run, so what they open is its child. Each evaluation is a log record
    `gen_ai.evaluation.result` in the context of its node's span; each denial, question and redirect is a
    log record `arbiter.policy.decision`. Metrics count the decisions, and collect scores and durations; with
    `ledger`, gauges say how much its queue holds, how much was dropped, and how far it is behind. An evaluator
    is a span `evaluate NAME`: a child of its node's, or linked to it if it ran after the node had ended.

    The providers are the global ones unless they are given. With `contents`, spans have the input and the
    output, and records the reasons and the feedback, all redacted as the constitution says; without it, no text
    of a state, a user or a model is sent. Spans that the sampler leaves out have no log records.
    """

    keeps_times = True

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        logger_provider: LoggerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        ledger: Ledger | None = None,
        contents: bool = False,
    ) -> None:
        self._tracer = (tracer_provider or trace.get_tracer_provider()).get_tracer(names.SCOPE, __version__)
        self._logger = (logger_provider or get_logger_provider()).get_logger(names.SCOPE, __version__)
        meter = (meter_provider or metrics.get_meter_provider()).get_meter(names.SCOPE, __version__)
        self._decisions = meter.create_counter(
            names.DECISIONS, "{decision}", "Decisions before and after nodes, by kind and policy"
        )
        self._scores = meter.create_histogram(names.SCORES, "1", "Scores of evaluations, by evaluator")
        self._durations = meter.create_histogram(names.DURATIONS, "s", "Durations of node runs, by node")
        if ledger is not None:
            if not callable(getattr(ledger, "health", None)):
                raise ConfigurationError(
                    f"OpenTelemetry: ledger is {ledger!r:.80}; expected an open ledger: Ledger({str(ledger)!r:.60})."
                )
            _observe(meter, ledger)
        self._contents = contents
        self._executions: dict[str, _Open] = {}
        self._runs: dict[tuple[str, str], _Open] = {}
        """The open node runs, by execution and task."""
        self._judged: dict[int, _Judged] = {}
        """The node runs that wait for their evaluations, by the id of these."""

    def execution_began(self, execution: ExecutionInfo) -> None:
        parent = contexts.get_current()
        attributes = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT: execution.graph,
            names.EXECUTION: execution.id,
        }
        if execution.thread_id is not None:
            attributes[names.CONVERSATION] = execution.thread_id
        if execution.rules is not None:
            attributes[names.RULES] = execution.rules
        name = f"{names.INVOKE_AGENT} {execution.graph}"
        span = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes)
        if span.get_span_context().is_valid:  # else there is no SDK
            is_recording = span.is_recording()
            context = trace.set_span_in_context(span, parent)
            self._executions[execution.id] = _Open(span, context, parent, is_recording)
            if is_recording:
                execution.trace = (*_ids_of(span), _ids_of(trace.get_current_span(parent))[1])

    def execution_ended(self, execution: ExecutionInfo) -> None:
        opened = self._executions.pop(execution.id, None)
        if opened is None:
            return
        span = opened.span
        if span.is_recording():
            span.set_attributes({names.RUN: execution.run_id, names.OUTCOME: execution.outcome or ""})
            if opened.has_inner:
                span.update_name(f"{names.INVOKE_WORKFLOW} {execution.graph}")
                span.set_attribute(names.OPERATION, names.INVOKE_WORKFLOW)
                span.set_attribute(names.WORKFLOW, execution.graph)
            if execution.outcome == "failed":
                span.set_status(Status(StatusCode.ERROR))
        span.end()

    def began(self, item: HistoryItem) -> None:
        record = item.record
        execution, instruction = record.execution, record.instruction
        assert execution is not None
        around = whole = self._executions.get(execution.id)
        if around is None or whole is None:
            return
        if record.namespace:
            whole.has_inner = True
            around = self._around(record.namespace, execution) or whole
        if not around.is_recording:  # sampled out: what the body opens is so too
            self._runs[execution.id, record.id] = _Open(around.span, around.context, around.outer, False)
            contexts.attach(around.context)
            return
        # Attributes cost half as much at the start, where a sampler sees them too.
        attributes: dict[str, Any] = {
            names.NODE: record.node,
            names.STEP: record.step,
            names.TASK: record.id,
            names.ATTEMPT: record.attempt,
        }
        name = record.node
        if instruction is not None:
            attributes[names.INSTRUCTION] = instruction.qualified
            if instruction is TOOL_CALL:
                name = f"{names.EXECUTE_TOOL} {name}"
                attributes[names.OPERATION], attributes[names.TOOL] = names.EXECUTE_TOOL, record.node
        if self._contents and (text := _state(record, record.input)) is not None:
            attributes[names.INPUT] = text
        span = self._tracer.start_span(name, around.context, SpanKind.INTERNAL, attributes)
        context = trace.set_span_in_context(span, around.context)
        self._runs[execution.id, record.id] = _Open(span, context, around.context, True)
        place = span.get_span_context()
        record.kept_account.trace = place.trace_id, place.span_id
        contexts.attach(context)

    def ended(self, item: HistoryItem) -> None:
        record = item.record
        assert record.execution is not None
        self._durations.record(record.duration, {names.NODE: record.node, names.STATUS: record.status})
        if record.checks or record.redirected_by is not None:
            self._count(item)
        opened = self._runs.pop((record.execution.id, record.id), None)
        if opened is None:
            return
        if contexts.get_current() is opened.context:
            contexts.attach(opened.before)
        if opened.is_recording:
            self._finish(opened, item)
            if record.account is not None and record.account.model_checks:
                self._asked(opened, item, record.account.model_checks)
            if hasattr(record.evaluations, "then"):
                ended = time.time_ns()
                self._judged[id(record.evaluations)] = _Judged(opened, ended, frozenset(item.read_results))
                opened.span.end(ended)
            else:
                opened.span.end()

    def _finish(self, opened: _Open, item: HistoryItem) -> None:
        """Add to a span how its node run ended, and log the decisions."""
        span, record, decision = opened.span, item.record, item.decision
        # One by one: `set_attributes` checks and copies a mapping, which costs more than three of these calls.
        put = span.set_attribute
        put(names.STATUS, record.status)
        put(names.VERDICT, decision.kind)
        if opened.has_inner:
            span.update_name(f"{names.INVOKE_AGENT} {record.node}")
            put(names.OPERATION, names.INVOKE_AGENT)
            put(names.AGENT, record.node)
        if (policy := decision.policy or record.redirected_by) is not None:
            put(names.POLICY, policy)
        if record.redirected_to is not None:
            put(names.REDIRECTED_TO, record.redirected_to)
        if self._contents and record.output and (text := _state(record, record.output)) is not None:
            put(names.OUTPUT, text)
        if record.status == "failed":
            put(names.ERROR_TYPE, next(iter(record.error_types), "_OTHER"))
            span.set_status(Status(StatusCode.ERROR, self._texts(record)(record.error)))
        if decision.policy is not None or record.redirected_by is not None or record.checks:
            for event in decisions_of(item, self._texts(record)):
                self._log(opened, event)

    def judged(self, item: HistoryItem) -> None:
        evaluations: Any = item.evaluation_results
        judged = self._judged.pop(id(evaluations), None)
        if judged is not None:
            self._evaluated(judged, item)
        versions = {each.name: each.version for each in evaluations.judgements()}
        read = () if judged is None else judged.read
        for event in evaluations_of(item, versions, read, self._texts(item.record)):
            found = event.attributes
            if (score := found.get(names.EVALUATION_SCORE)) is not None:
                self._scores.record(score, {name: found[name] for name in _OF_SCORES})
            if judged is not None:
                self._log(judged.opened, event)

    def _asked(self, opened: _Open, item: HistoryItem, checks: Sequence[tuple[str, int, int]]) -> None:
        """Report each checker that asked a model as a span."""
        for name, begun, ended in checks:
            attributes = {names.EVALUATION_NAME: name, names.POLICY: name, names.NODE: item.node}
            self._tracer.start_span(
                f"{names.EVALUATE} {name}", opened.context, SpanKind.INTERNAL, attributes, start_time=begun
            ).end(ended)

    def _evaluated(self, judged: _Judged, item: HistoryItem) -> None:
        """Report each evaluator that ran as a span: a child of its node's, or linked to it if it ran later."""
        times: Mapping[str, tuple[int, int]] = getattr(item.record.evaluations, "times", None) or {}
        opened, outcomes = judged.opened, item.evaluation_outcomes
        for name, (begun, ended) in times.items():
            was_open = begun < judged.ended
            span = self._tracer.start_span(
                f"{names.EVALUATE} {name}",
                opened.context if was_open else opened.outer,
                SpanKind.INTERNAL,
                {names.EVALUATION_NAME: name, names.EVALUATOR: name, names.NODE: item.node},
                links=None if was_open else [Link(opened.span.get_span_context())],
                start_time=begun,
            )
            outcome = outcomes.get(name, "scored")  # an evaluator with several results has none of its own
            if outcome in ("error", "timeout"):
                span.set_attribute(names.ERROR_TYPE, outcome)
                span.set_status(Status(StatusCode.ERROR))
            span.end(ended)

    def _around(self, namespace: str, execution: ExecutionInfo) -> _Open | None:
        """The span of the node that the graph with this namespace is in."""
        for task in tasks_around(namespace):
            if (outer := self._runs.get((execution.id, task))) is not None:
                outer.has_inner = True
                return outer
        return None

    def _count(self, item: HistoryItem) -> None:
        """Count the decisions of all checkers, and of the router that redirected or asked."""
        record = item.record
        made: list[tuple[str, str]] = [(name, verdict.kind) for name, verdict in record.checks.items()]
        if record.redirected_by is not None:
            redirected = record.redirected_to is not None
            made.append((record.redirected_by, "redirect" if redirected else item.decision.kind))
        for policy, kind in made:
            self._decisions.add(1, {names.POLICY: policy, names.DECISION_KIND: kind})

    def _log(self, opened: _Open, event: Event) -> None:
        self._logger.emit(log_record(opened.span.get_span_context(), opened.context, event))

    def _texts(self, record: Record) -> Text:
        """The form in which texts about a node run are sent: redacted, or not at all."""
        return partial(_text, _redactor(record.records)) if self._contents else no_text


def _redactor(records: Records | None) -> ContentRedactor:
    """The redactor of what the constitution says about what is recorded."""
    said = records or Records()
    return _made(said.keys, said.detectors, tuple(said.patterns.items()))


@lru_cache(maxsize=8)
def _made(
    keys: tuple[str, ...], detect: tuple[str, ...], patterns: tuple[tuple[str, str], ...]
) -> ContentRedactor:
    return ContentRedactor(keys=keys, detect=detect, patterns=dict(patterns))


def _text(redactor: ContentRedactor, text: str | None) -> str | None:
    if text is None:
        return None
    redacted = str(redactor.redact(text[: _TEXT + _BEYOND]))
    # An exporter drops an attribute with half of a surrogate pair, which models write now and then.
    return redacted.encode("utf-8", "backslashreplace").decode()[:_TEXT]


def _state(record: Record, state: Mapping[str, Any]) -> str | None:
    """A state as an attribute, redacted; None if the constitution says that none is recorded."""
    if record.records is not None and record.records.states in ("none", "digest"):
        return None
    from arbiter.ledger._contents import before_redaction, capture, dumped

    redacted = _redactor(record.records).redact(before_redaction(capture(state)))
    return dumped(redacted).decode()[:_TEXT]
