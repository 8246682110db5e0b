"""Spans, log records and metrics of governed runs, by the real SDK."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListLLM
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from arbiter import ArbiterOS, ConfigurationError, EvaluationResult, PolicyViolationError, Verdict
from arbiter.checkers import ApprovalChecker
from arbiter.instructions import TOOL_CALL
from arbiter.ledger import Ledger
from arbiter.memory import CognitiveEvaluator, EvalContext, EvaluationCycle
from arbiter.routers import EscalationRouter
from arbiter.telemetry import OpenTelemetry
from tests.constitution.test_constitution import project
from tests.scripted import Scripted
from tests.support import MODES, Check, Judge, Route, Spy, State, add, allow, chain, run, thread


class Kept:
    """An SDK that keeps in memory what it gets."""

    def __init__(self, sampler: Sampler = ALWAYS_ON, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        exporter: Any = InMemoryLogRecordExporter
        self._records = exporter()
        self._metrics = InMemoryMetricReader()
        self.traces = TracerProvider(sampler=sampler)
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        logs = LoggerProvider()
        logs.add_log_record_processor(SimpleLogRecordProcessor(self._records))
        meters = MeterProvider(metric_readers=[self._metrics])
        self.listener = OpenTelemetry(self.traces, logger_provider=logs, meter_provider=meters, **options)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._spans.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def tree(self) -> set[tuple[str, str | None]]:
        """Each span's name, with that of its parent."""
        names = {span.context.span_id: span.name for span in self.spans if span.context}
        return {(span.name, names.get(span.parent.span_id) if span.parent else None) for span in self.spans}

    def records(self, event: str) -> list[dict[str, Any]]:
        """The attributes of these log records, without their ids."""
        records = [data.log_record for data in self._records.get_finished_logs()]
        found = [dict(record.attributes or {}) for record in records if record.event_name == event]
        ids = [each.pop("log.record.uid") for each in found]
        assert len(set(ids)) == len(ids)
        return found

    def span_ids(self, event: str) -> set[int | None]:
        records = [data.log_record for data in self._records.get_finished_logs()]
        return {record.span_id for record in records if record.event_name == event}

    def points(self, name: str) -> list[Any]:
        data: Any = self._metrics.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def observed(*contracts: Any, sampler: Sampler = ALWAYS_ON, **options: Any) -> tuple[ArbiterOS, Kept]:
    kept = Kept(sampler, **options)
    arbiter_os = ArbiterOS(listeners=[kept.listener])
    for contract in contracts:
        add(arbiter_os, contract)
    return arbiter_os, kept


def work(tracer: trace.Tracer, name: str) -> Any:
    """A node that opens a span of its own."""

    def body(state: State) -> State:
        with tracer.start_as_current_span(f"inside {name}"):
            return {"log": [name]}

    body.__name__ = name
    return body


@MODES
def test_an_execution_is_the_root_and_what_a_body_opens_is_a_child_of_its_node(mode: str) -> None:
    arbiter_os, kept = observed()
    tracer = kept.traces.get_tracer("app")
    app = arbiter_os.govern(chain(work(tracer, "a"), work(tracer, "b")), {"b": TOOL_CALL})
    run(app, {}, thread("t"), mode=mode)
    assert kept.tree() == {
        ("invoke_agent LangGraph", None),
        ("a", "invoke_agent LangGraph"),
        ("inside a", "a"),
        ("execute_tool b", "invoke_agent LangGraph"),
        ("inside b", "execute_tool b"),
    }
    assert (kept.span("invoke_agent LangGraph").attributes or {})["gen_ai.conversation.id"] == "t"
    attributes = dict(kept.span("a").attributes or {})
    assert attributes["arbiter.status"] == "completed"
    assert attributes["arbiter.verdict"] == "allow"
    assert not {"arbiter.input", "arbiter.output"} & attributes.keys()
    assert trace.get_current_span().get_span_context().is_valid is False


def twice(state: State) -> list[Send]:
    return [Send("worker", {}), Send("worker", {})]


@MODES
def test_parallel_tasks_and_subgraphs_have_their_own_places(mode: str) -> None:
    arbiter_os, kept = observed()
    tracer = kept.traces.get_tracer("app")
    builder: Any = StateGraph(State)
    builder.add_node("plan", Spy("plan"))
    builder.add_node("worker", work(tracer, "worker"))
    builder.add_node("inner", chain(work(tracer, "deep")))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", twice, ["worker"])
    builder.add_edge("worker", "inner")
    run(arbiter_os.govern(builder.compile(name="crew")), {}, mode=mode)
    assert kept.tree() == {
        ("invoke_workflow crew", None),
        ("plan", "invoke_workflow crew"),
        ("worker", "invoke_workflow crew"),
        ("inside worker", "worker"),
        ("invoke_agent inner", "invoke_workflow crew"),
        ("deep", "invoke_agent inner"),
        ("inside deep", "deep"),
    }
    assert len(kept.spans) == 9
    workers = {span.context.span_id for span in kept.spans if span.name == "worker" and span.context}
    inside = {span.parent.span_id for span in kept.spans if span.name == "inside worker" and span.parent}
    assert inside == workers


def test_the_callers_span_is_the_parent_and_stays_the_current_one() -> None:
    arbiter_os, kept = observed()
    tracer = kept.traces.get_tracer("app")
    with tracer.start_as_current_span("request") as request:
        for _ in arbiter_os.govern(chain(Spy("a"))).stream({}):
            assert trace.get_current_span() is request
        assert arbiter_os.execute({}, Spy("step"))
        assert trace.get_current_span() is request
    assert {("invoke_agent LangGraph", "request"), ("a", "invoke_agent LangGraph")} <= kept.tree()
    assert {parent for name, parent in kept.tree() if name == "step"} == {"invoke_agent step"}


def test_the_span_is_current_while_checkers_are_asked() -> None:
    seen: list[Any] = []

    def look(_: Any) -> Verdict:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return Verdict.allow()

    arbiter_os, kept = observed(Check("look", look))
    arbiter_os.govern(chain(Spy("a"))).invoke({})
    span = kept.span("a")
    assert span.context
    assert seen == [span.context.span_id]


def test_a_denial_is_no_error_and_a_failure_is_one_without_its_text() -> None:
    def fail(state: State) -> State:
        raise ValueError("card 4111 1111 1111 1111")

    arbiter_os, kept = observed(Check("no", lambda _: Verdict.deny("too much"), target_nodes=["pay"]))
    with pytest.raises(PolicyViolationError):
        arbiter_os.govern(chain(Spy("pay"))).invoke({})
    with pytest.raises(ValueError, match="card"):
        arbiter_os.govern(chain(fail)).invoke({})
    denied, failed = kept.span("pay"), kept.span("fail")
    assert denied.status.is_unset
    assert (denied.attributes or {})["arbiter.policy"] == "no"
    assert not failed.status.is_ok
    assert (failed.attributes or {})["error.type"] == "builtins.ValueError"
    assert "1111 1111" not in "".join(span.to_json() for span in kept.spans)
    roots = [span.status.is_unset for span in kept.spans if span.name == "invoke_agent LangGraph"]
    assert roots == [True, False]
    assert kept.records("arbiter.policy.decision") == [
        {"arbiter.policy.decision.kind": "deny", "arbiter.policy": "no", "arbiter.node": "pay"}
    ]
    outcomes = [dict(span.attributes or {}).get("arbiter.outcome") for span in kept.spans]
    assert "denied" in outcomes
    assert "failed" in outcomes


@MODES
def test_a_paused_node_and_its_resumed_attempt_are_spans_of_their_executions(mode: str) -> None:
    def ask(state: State) -> State:
        return {"log": [interrupt("go on?")]}

    arbiter_os, kept = observed()
    app = arbiter_os.govern(chain(ask, checkpointer=InMemorySaver()))
    run(app, {}, thread("t"), mode=mode)
    run(app, Command(resume="yes"), thread("t"), mode=mode)
    statuses = [(span.attributes or {}).get("arbiter.status") for span in kept.spans if span.name == "ask"]
    assert statuses == ["interrupted", "completed"]
    assert len({span.context.trace_id for span in kept.spans if span.context}) == 2
    assert all(span.end_time for span in kept.spans)


@pytest.mark.lengthy
def test_each_attempt_of_a_retry_is_a_span() -> None:
    tries: list[int] = []

    def flaky(state: State) -> State:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return {"log": ["done"]}

    arbiter_os, kept = observed()
    builder: Any = StateGraph(State)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.001))
    builder.add_edge(START, "flaky")
    arbiter_os.govern(builder.compile()).invoke({})
    attempts = [(span.attributes or {}).get("arbiter.attempt") for span in kept.spans if span.name == "flaky"]
    assert attempts == [1, 2, 3]


def test_a_cancelled_run_ends_its_spans() -> None:
    arbiter_os, kept = observed()
    begun = asyncio.Event()

    async def wait(state: State) -> State:
        begun.set()
        await asyncio.sleep(60)
        return {}

    async def main() -> None:
        task = asyncio.create_task(arbiter_os.govern(chain(wait)).ainvoke({}))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert {span.name for span in kept.spans} == {"wait", "invoke_agent LangGraph"}


@MODES
def test_a_stream_that_its_reader_leaves_ends_its_spans(mode: str) -> None:
    arbiter_os, kept = observed()
    app: Any = arbiter_os.govern(chain(Spy("a"), Spy("b")))

    async def leave() -> None:
        async with aclosing(app.astream({})) as chunks:
            await anext(chunks)

    if mode == "async":
        asyncio.run(leave())
    else:
        with closing(app.stream({})) as chunks:
            next(chunks)
    root = kept.span("invoke_agent LangGraph")
    assert (root.attributes or {})["arbiter.outcome"] == "closed"
    assert ("a", "invoke_agent LangGraph") in kept.tree()
    assert trace.get_current_span().get_span_context().is_valid is False


def test_each_evaluation_is_a_log_record_of_its_nodes_span_and_a_score() -> None:
    def grade(_: Any) -> EvaluationResult:
        return EvaluationResult(0.4, False, "the key is sk-" + "a1B2" * 12)

    def broken(_: Any) -> EvaluationResult:
        raise RuntimeError("the judge knows the customer's name")

    arbiter_os, kept = observed(Judge("quality", grade), Judge("broken", broken))
    arbiter_os.govern(chain(Spy("a"))).invoke({})
    assert arbiter_os.drain(60)
    found = sorted(kept.records("gen_ai.evaluation.result"), key=str)
    versions = [record.pop("arbiter.evaluation.version", None) for record in found]
    assert all(versions)
    assert found == [
        {"gen_ai.evaluation.name": "broken", "arbiter.node": "a", "error.type": "error",
         "arbiter.evaluation.read": False},
        {"gen_ai.evaluation.name": "quality", "arbiter.node": "a", "gen_ai.evaluation.score.value": 0.4,
         "gen_ai.evaluation.score.label": "fail", "arbiter.evaluation.read": False},
    ]  # fmt: skip
    span = kept.span("a")
    assert span.context
    assert kept.span_ids("gen_ai.evaluation.result") == {span.context.span_id}
    (scored,) = kept.points("arbiter.evaluation.score")
    assert (scored.count, scored.sum) == (1, 0.4)


def test_contents_are_sent_only_when_asked_for_and_then_without_secrets() -> None:
    secret = "sk-" + "a1B2" * 12
    arbiter_os, kept = observed(
        Judge("quality", lambda _: EvaluationResult(0.4, False, f"it says {secret}")), contents=True
    )
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": [f"my key {secret}"]})
    assert arbiter_os.drain(60)
    attributes = dict(kept.span("a").attributes or {})
    assert "my key" in str(attributes["arbiter.input"])
    assert "it says" in kept.records("gen_ai.evaluation.result")[0]["gen_ai.evaluation.explanation"]
    everything = str(attributes) + str(kept.records("gen_ai.evaluation.result"))
    assert secret not in everything


def test_texts_with_half_of_a_surrogate_pair_have_a_form_that_a_collector_takes() -> None:
    arbiter_os, kept = observed(
        Check("odd", lambda _: (False, "\ud83d is cut"), on_deny="audit"),
        Judge("quality", lambda _: EvaluationResult(0.4, False, "half of \ud83d")),
        contents=True,
    )
    arbiter_os.govern(chain(Spy("a"))).invoke({})
    assert arbiter_os.drain(60)
    (judged,), (decided,) = kept.records("gen_ai.evaluation.result"), kept.records("arbiter.policy.decision")
    assert judged["gen_ai.evaluation.explanation"] == "half of \\ud83d"
    assert decided["arbiter.reason"] == "\\ud83d is cut"


@MODES
def test_what_a_constitution_redacts_is_redacted_in_spans_too(tmp_path: Path, mode: str) -> None:
    """No ledger is needed for it, and a reload holds from the next node run on."""
    clinic = """
    records:
      redact:
        keys: ["*patient*"]
        patterns: {case: "AZ-[0-9]{6}"}
    """
    kept = Kept(contents=True)
    root = project(tmp_path, policies__clinic=clinic)
    arbiter_os = ArbiterOS.from_constitution(root, listeners=[kept.listener])
    add(arbiter_os, Judge("quality", lambda _: EvaluationResult(0.4, False, "it is AZ-123456")))
    add(arbiter_os, Check("audit", lambda _: (False, "about AZ-123456"), on_deny="audit"))
    app = arbiter_os.govern(chain(Spy("a"), state=dict))
    run(app, {"patientName": "Ann", "about": "AZ-123456", "amount": 5}, mode=mode)
    assert arbiter_os.drain(60)
    attributes = dict(kept.span("a").attributes or {})
    (judged,), (decided,) = kept.records("gen_ai.evaluation.result"), kept.records("arbiter.policy.decision")
    assert '"about":"[secret: case]"' in str(attributes["arbiter.input"])
    assert '"amount":5' in str(attributes["arbiter.input"])
    assert judged["gen_ai.evaluation.explanation"] == "it is [secret: case]"
    assert "about [secret: case]" in decided.values()
    assert "Ann" not in str(attributes)

    project(root, policies__clinic="records: {states: digest}\n")
    arbiter_os.load_constitution()
    run(app, {"amount": 5}, mode=mode)
    newest = [span for span in kept.spans if span.name == "a"][-1]
    assert not {"arbiter.input", "arbiter.output"} & (newest.attributes or {}).keys()


def test_redirects_are_decisions_and_decisions_are_counted() -> None:
    arbiter_os, kept = observed(Check("fine", allow), Route("skip", lambda history, output: END))
    arbiter_os.govern(chain(Spy("a"), Spy("b"))).invoke({})
    (decided,) = kept.records("arbiter.policy.decision")
    assert decided["arbiter.redirected_to"] == END
    counted = {
        (point.attributes["arbiter.policy"], point.attributes["arbiter.policy.decision.kind"]): point.value
        for point in kept.points("arbiter.decisions")
    }
    assert counted == {("fine", "allow"): 1, ("skip", "redirect"): 1}


def test_a_router_that_asks_a_human_is_not_a_redirect() -> None:
    """Its question is a decision `ask`, in the log records and in the metric."""
    arbiter_os, kept = observed(EscalationRouter("look", key="amount", below=10))
    app = arbiter_os.govern(chain(Spy("a", amount=1), checkpointer=InMemorySaver()))
    app.invoke({}, thread("asked"))
    (decided,) = kept.records("arbiter.policy.decision")
    assert (decided["arbiter.policy"], decided["arbiter.policy.decision.kind"]) == ("look", "ask")
    (counted,) = kept.points("arbiter.decisions")
    assert counted.attributes["arbiter.policy.decision.kind"] == "ask"


def test_a_denial_without_effect_is_a_decision_that_says_so() -> None:
    """In audit mode, and beside the denial that decided."""
    no = {"arbiter.policy.decision.kind": "deny", "arbiter.node": "a"}
    checks = [Check(name, lambda _: False, on_deny="audit") for name in ("watches", "too")]
    arbiter_os, kept = observed(*checks)
    arbiter_os.govern(chain(Spy("a"))).invoke({})
    assert kept.records("arbiter.policy.decision") == [
        {**no, "arbiter.policy": name, "arbiter.policy.decision.enforced": False}
        for name in ("watches", "too")
    ]
    assert (kept.span("a").attributes or {})["arbiter.verdict"] == "allow"
    arbiter_os, kept = observed(*checks, Check("decides", lambda _: False))
    with pytest.raises(PolicyViolationError):
        arbiter_os.govern(chain(Spy("a"))).invoke({})
    assert {**no, "arbiter.policy": "decides"} in kept.records("arbiter.policy.decision")
    assert len(kept.records("arbiter.policy.decision")) == 3


def test_a_redirect_is_that_of_the_policy_that_redirects() -> None:
    """Not of a denial in audit mode, or of a human's approval, of the same node run."""
    checks = [
        Check("watches", lambda _: False, on_deny="audit"),
        Check("ends", lambda _: False, on_deny="end"),
    ]
    for contracts in (
        [*checks],
        [checks[0], ApprovalChecker("human"), Route("ends", lambda history, output: END)],
    ):
        arbiter_os, kept = observed(*contracts)
        app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        app.invoke({}, thread("t"))
        if len(contracts) == 3:
            app.invoke(Command(resume="approve"), thread("t"))
        targets = {
            each["arbiter.policy"]: each.get("arbiter.redirected_to")
            for each in kept.records("arbiter.policy.decision")
        }
        assert targets == {**dict.fromkeys((each.name for each in contracts), None), "ends": END}


def test_without_an_sdk_or_sampled_out_outputs_and_histories_are_the_same() -> None:
    def told(arbiter_os: ArbiterOS) -> Any:
        out = arbiter_os.govern(chain(Spy("a"), Spy("b"))).invoke({})
        return out, [item.node for step in arbiter_os.history for item in step]

    sampled_out, kept = observed(Judge("q", lambda _: EvaluationResult(1.0, True, "")), sampler=ALWAYS_OFF)
    assert told(sampled_out) == told(ArbiterOS(listeners=[OpenTelemetry()])) == told(ArbiterOS())
    assert sampled_out.drain(60)
    assert not kept.spans
    assert not kept.records("gen_ai.evaluation.result")


def test_a_ledger_keeps_the_ids_of_the_span_and_stays_intact(tmp_path: Path) -> None:
    kept = Kept()
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, listeners=[kept.listener])
        arbiter_os.govern(chain(Spy("a"))).invoke({})
        assert ledger.flush(60)
        assert ledger.verify()
    context = kept.span("a").context
    assert context
    with closing(sqlite3.connect(tmp_path / "l.db")) as database:
        rows = database.execute("SELECT trace, span FROM entries WHERE kind = 'item'").fetchall()
    assert rows == [(f"{context.trace_id:032x}", f"{context.span_id:016x}")]


def test_an_evaluator_is_a_child_of_its_node_or_linked_to_it_if_it_ran_later() -> None:
    release = threading.Event()

    def late(_: Any) -> EvaluationResult:
        assert release.wait(20)
        raise ValueError("no judgement")

    read = Route("read", lambda history, _: None if history.item.evaluation_results["early"].passed else END)
    arbiter_os, kept = observed(
        Judge("early", lambda _: EvaluationResult(1.0, True)), Judge("late", late), read
    )
    arbiter_os.govern(chain(Spy("a"))).invoke({})
    release.set()
    assert arbiter_os.drain(60)
    early, late_span, node = kept.span("evaluate early"), kept.span("evaluate late"), kept.span("a")
    root = kept.span("invoke_agent LangGraph")
    assert early.parent
    assert late_span.parent
    assert node.context
    assert root.context
    assert early.parent.span_id == node.context.span_id
    assert not early.links
    assert late_span.parent.span_id == root.context.span_id
    assert [link.context.span_id for link in late_span.links] == [node.context.span_id]
    assert (late_span.attributes or {})["error.type"] == "error"
    assert (early.start_time or 0) <= (early.end_time or 0)


def test_the_health_of_a_ledger_is_reported_as_gauges(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        kept = Kept(ledger=ledger)
        arbiter_os = ArbiterOS(ledger=ledger, listeners=[kept.listener])
        arbiter_os.govern(chain(Spy("a"))).invoke({})
        assert ledger.flush(60)
        values = {
            name: kept.points(f"arbiter.ledger.{name}")[0].value for name in ("queued", "dropped", "lag")
        }
    assert values == {"queued": 0, "dropped": 0, "lag": 0.0}
    wrong: Any = "ledger.db"
    with pytest.raises(ConfigurationError, match=r"ledger is 'ledger.db'; expected an open ledger: Ledger\("):
        OpenTelemetry(ledger=wrong)


@MODES
def test_a_check_that_asks_a_model_is_a_span_of_its_node(mode: str) -> None:
    def ask(_: Any) -> bool:
        return Scripted(answers=["yes"]).invoke("may it?").text == "yes"

    def ask_in_a_chain(_: Any) -> bool:
        return bool((RunnableLambda(str) | FakeListLLM(responses=["no"])).invoke("may it?") == "yes")

    arbiter_os, kept = observed(
        Check("quick", allow),
        Check("guard", ask),
        Check("quick too", allow),
        Check("watches", ask_in_a_chain, on_deny="audit"),
    )
    run(arbiter_os.govern(chain(Spy("a"))), {}, mode=mode)
    node = kept.span("a")
    assert {pair for pair in kept.tree() if pair[0].startswith("evaluate ")} == {
        ("evaluate guard", "a"),
        ("evaluate watches", "a"),
    }
    guard = kept.span("evaluate guard")
    assert dict(guard.attributes or {})["arbiter.policy"] == "guard"
    assert (node.start_time or 0) <= (guard.start_time or 0) <= (guard.end_time or 0) <= (node.end_time or 0)


class Remembers(CognitiveEvaluator):
    needs_messages = False
    always_run = True

    async def handle(self, ctx: EvalContext) -> EvaluationResult:
        return EvaluationResult(1.0, True)


def test_the_evaluators_of_a_cycle_are_spans_of_their_node() -> None:
    arbiter_os, kept = observed()
    arbiter_os.add_evaluation_cycle(EvaluationCycle(mode="inline"))
    arbiter_os.add_evaluator(Remembers("remembers"))
    arbiter_os.govern(chain(Spy("a"))).invoke({})
    assert arbiter_os.drain(10)
    assert ("evaluate remembers", "a") in kept.tree()
