"""One governed node run, as a generator without I/O: check, advise, run, evaluate, route, record.

The generator yields what it needs (`Call`, `Body`, `Ask`, `Resolve`) and is sent the answer, or `Raised` when
there was an exception; it never raises itself. What it returns is the node's output, or `Raised`. The two
drivers in `drivers.py` are all that knows about threads, event loops and LangGraph's interrupt.
See docs/design/lifecycle.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langgraph.constants import END
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.types import Command
from pydantic import TypeAdapter, ValidationError

from arbiter.errors import (
    CorrectionError,
    OutputSchemaError,
    PolicyViolationError,
    SyncDriverError,
    nearest,
)
from arbiter.evaluations import Background, Evaluations, Lane, ReadEvaluations
from arbiter.facts import Fact
from arbiter.history import CausalHistory, HistoryItem, Record, fact_from
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.registry import Plan, Seat
from arbiter.states import Snapshot, as_state, digest, freeze, snapshot, with_fields, without
from arbiter.verdicts import ALLOW, Correction, EvaluationResult, Verdict, as_verdict

# What the generator asks for ----------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """Call a contract's method."""

    seat: Seat[Any]
    method: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(slots=True)
class Body:
    """Run the node's body. `held`: what it streams is kept back until it is released."""

    input: Any
    held: bool = False


@dataclass(slots=True)
class Ask:
    """Interrupt with `payload`, unless a human has answered that: sends the answer. `number` counts the
    questions of this node run from 0, `key` is the digest of the input that the question is about."""

    payload: Mapping[str, Any]
    number: int
    key: str


@dataclass(slots=True)
class Resolve:
    """Wait for one evaluator's outcome."""

    evaluations: Evaluations
    lane: Lane


@dataclass(slots=True)
class Raised:
    """An exception in place of an answer."""

    error: BaseException


class NoAnswer:
    """The answer to a question that was not asked about this input."""


NO_ANSWER = NoAnswer()
Op = Call | Body | Ask | Resolve
Steps = Generator[Op, Any, Any]


# One node run -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Schemas:
    """Declared shapes of a node's input and output. Anything that a pydantic `TypeAdapter` takes."""

    input: TypeAdapter[Any] | None = None
    output: TypeAdapter[Any] | None = None
    input_name: str = ""
    output_name: str = ""


@dataclass(slots=True)
class Settings:
    """What is the same for all node runs of one `ArbiterOS`."""

    snapshot: Snapshot
    background: Background
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter


@dataclass(slots=True)
class NodeRun:
    """Everything that the lifecycle of one node run reads and decides."""

    record: Record
    plan: Plan
    view: CausalHistory
    input: Any
    settings: Settings
    targets: frozenset[str]
    """Nodes that a redirect can lead to, from here."""
    schemas: Schemas | None = None
    is_final: Callable[[BaseException], bool] = lambda _: True
    """Whether LangGraph will not retry after that error of the body."""
    is_own: Callable[[Command[Any]], bool] = lambda _: False
    """Whether a command that came up from a subgraph is meant for this node's graph."""
    release: Callable[[], None] = lambda: None
    """Let go of what a held body has streamed."""
    inner: Callable[[], Mapping[str, Any] | None] = lambda: None
    """What subgraphs in the body have committed meanwhile, as a ledger value."""
    redirect: str | None = None
    """Where the run goes instead of along the edges: a node, or END."""
    lent: dict[str, Any] = field(default_factory=dict[str, Any])
    """State keys that hold something for this call only."""
    reads: ReadEvaluations | None = None
    questions: int = 0
    begun: float = 0.0

    def fact(self) -> Fact:
        """What is to be committed with the node's own writes."""
        read: Mapping[str, EvaluationResult] = {} if self.reads is None else self.reads.read
        fact = fact_from(self.record, read.items())
        if (inner := self.inner()) is not None:
            fact["inner"] = inner
        return fact


def lifecycle(run: NodeRun) -> Steps:
    """The whole of one node run. Returns the body's output, or `Raised`."""
    plan = run.plan
    run.begun = run.settings.timer()
    if plan.checkers or (run.schemas is not None and run.schemas.input is not None):
        stopped = yield from _check(run)
        if stopped is not None or run.redirect is not None:
            return _end(run, stopped)
    if plan.advisors:
        yield from _advise(run)
    if plan.gate is None:
        output = yield Body(run.input)
    else:
        output = yield from _correct(run, plan.gate)
    if type(output) is Raised:
        return (yield from _failed(run, output))
    if run.lent:
        output = _without_lent(run, output)
    if (wrong := _output_refused(run, output)) is not None:
        return (yield from _failed(run, Raised(wrong)))
    return (yield from _completed(run, output, output))


def _end(run: NodeRun, output: Any) -> Any:
    run.record.duration = run.settings.timer() - run.begun
    return output


def _completed(run: NodeRun, output: Any, answer: Any) -> Steps:
    """The body is done: record, evaluate, route. `answer` is what the node run returns."""
    record, plan = run.record, run.plan
    record.duration = run.settings.timer() - run.begun
    record.output = snapshot(output, run.settings.snapshot)
    record.status = "completed"
    if plan.lanes:
        evaluations = record.evaluations = Evaluations(
            plan.lanes, CausalHistory(run.view.past, HistoryItem(record, view=True), run.view.lookup)
        )
        run.reads = ReadEvaluations(evaluations)
        run.view.give_results(run.reads)
        for lane in plan.lanes:
            if lane.evaluator.durable:
                yield Resolve(evaluations, lane)
                run.reads.get(lane.name)
    if plan.routers:
        yield from _route(run, output, plan.routers)
    if plan.lanes and not all(record.evaluations.done(lane.name) for lane in plan.lanes):  # type: ignore[union-attr]
        run.settings.background.enqueue(record.evaluations)  # type: ignore[arg-type]
    return answer


def _failed(run: NodeRun, raised: Raised) -> Steps:
    """The body raised. Only a router with `on_error` can keep the exception from passing through."""
    record, error = run.record, raised.error
    if isinstance(error, ParentCommand):
        # A subgraph hands over with a command; for this graph that is the node's result.
        command: Command[Any] = error.args[0]
        if not run.is_own(command):
            record.status = "completed"
            return _end(run, raised)
        return (yield from _completed(run, command, raised))
    record.duration = run.settings.timer() - run.begun
    if isinstance(error, GraphBubbleUp):
        record.status = "interrupted"
        return raised
    record.status = "failed" if isinstance(error, Exception) else "cancelled"
    record.error = describe(error)
    if run.plan.error_routers and isinstance(error, Exception) and run.is_final(error):
        yield from _route(run, None, run.plan.error_routers)
        if run.redirect is not None:
            return None
    return raised


# Check --------------------------------------------------------------------------------------------


def _check(run: NodeRun) -> Steps:
    """Ask all checkers; the strongest verdict wins. Returns `Raised` to stop the node, else None."""
    record, plan = run.record, run.plan
    approved: set[tuple[str, str]] = set()
    while True:
        if (refused := _input_refused(run)) is not None:
            record.checks = {"input_schema": Verdict.deny(refused)}
            return _denied(run, "input_schema", "raise", refused, None)
        verdicts: dict[str, Verdict] = {}
        causes: dict[str, BaseException] = {}
        for seat in plan.checkers:
            answer = yield Call(seat, seat.contract.check_before, (run.view,))
            if type(answer) is Raised:
                error = answer.error
                if isinstance(error, SyncDriverError) or not isinstance(error, Exception):
                    record.status, record.error = "failed", describe(error)
                    return answer
                if isinstance(error, GraphBubbleUp):
                    record.status = "interrupted"  # a checker may call LangGraph's interrupt() itself
                    return answer
                causes[seat.name] = error
                verdicts[seat.name] = Verdict.deny(f"the checker failed: {describe(error)}")
            else:
                verdicts[seat.name] = ALLOW if answer is True else as_verdict(answer)
        if all(verdict.kind == "allow" for verdict in verdicts.values()):
            record.checks = plan.all_allowed
            return None
        record.checks = verdicts
        enforced = [s.contract for s in plan.checkers if s.contract.on_deny != "audit"]
        for checker in enforced:
            if verdicts[checker.name].kind == "deny":
                cause = causes.get(checker.name)
                reason = verdicts[checker.name].reason if cause is None else ""
                return _denied(run, checker.name, checker.on_deny, reason, cause)
        asking = [c for c in enforced if verdicts[c.name].kind == "ask"]
        if asking:
            key = digest(as_state(run.input))
            asking = [c for c in asking if (c.name, key) not in approved]
        if not asking:
            return None
        stopped = yield from _approve(run, asking, verdicts, approved)
        if stopped is not None or run.redirect is not None:
            return stopped


def _input_refused(run: NodeRun) -> str | None:
    schemas = run.schemas
    if schemas is None or schemas.input is None:
        return None
    return _refused(schemas.input, schemas.input_name, run.input)


def _output_refused(run: NodeRun, output: Any) -> OutputSchemaError | None:
    schemas = run.schemas
    if schemas is None or schemas.output is None:
        return None
    refused = _refused(schemas.output, schemas.output_name, output)
    if refused is None:
        return None
    return OutputSchemaError(node=run.record.node, schema=schemas.output_name, message=refused)


def _refused(schema: TypeAdapter[Any], name: str, value: Any) -> str | None:
    """What the schema finds wrong, in one line, or None."""
    if isinstance(value, Command | list):
        value = as_state(value)  # pyright: ignore[reportUnknownArgumentType]
    try:
        schema.validate_python(value, from_attributes=True)
    except ValidationError as exc:
        parts = [f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in exc.errors()[:5]]
        return f"{name}: " + "; ".join(parts)
    return None


def _denied(
    run: NodeRun, policy: str, on_deny: str, reason: str, cause: BaseException | None
) -> Raised | None:
    record = run.record
    record.status = "denied"
    record.duration = run.settings.timer() - run.begun
    _, found, target = on_deny.partition("redirect:")
    if on_deny == "end":
        target = END
    elif not found:
        target = ""
    if target and target in run.targets:
        run.redirect = record.redirected_to = target
        return None
    error = PolicyViolationError(
        policy=policy, node=record.node, instruction=record.instruction, reason=reason, cause=cause
    )
    record.error = str(error)
    return Raised(error)


def _approve(
    run: NodeRun,
    asking: Sequence[PolicyChecker],
    verdicts: Mapping[str, Verdict],
    approved: set[tuple[str, str]],
) -> Steps:
    """Ask a human. An approval counts for the very input that it was given for."""
    record, first = run.record, asking[0]
    state = as_state(run.input)
    key = digest(state)
    payload = {
        "type": "approval",
        "policy": first.name,
        "reason": verdicts[first.name].reason,
        "requests": [{"policy": c.name, "reason": verdicts[c.name].reason} for c in asking],
        "node": record.node,
        "instruction": record.instruction.qualified if record.instruction else None,
        "input": state,
        "digest": key,
        "allowed": ["approve", "edit", "reject"],
        **{k: v for c in reversed(asking) for k, v in verdicts[c.name].payload.items()},
    }
    answer: Any = NO_ANSWER
    while answer is NO_ANSWER:
        answer = yield Ask(payload, run.questions, key)
        run.questions += 1
    if type(answer) is Raised:
        if isinstance(answer.error, GraphBubbleUp) or not isinstance(answer.error, Exception):
            record.status = "interrupted"
            return answer
        reason = f"it needs a human's approval, and nobody can be asked here: {describe(answer.error)}"
        return _denied(run, first.name, first.on_deny, reason, None)
    kind, detail = _read_answer(answer)
    if kind == "edit":
        try:
            run.input = with_fields(run.input, detail)
        except Exception as exc:
            kind, detail = "reject", f"the edited input does not fit: {describe(exc)}"
        else:
            record.input = snapshot(run.input, run.settings.snapshot)
            key = digest(as_state(run.input))
    if kind == "reject":
        return _denied(run, first.name, first.on_deny, f"rejected: {detail}", None)
    approved.update((checker.name, key) for checker in asking)
    return None


def _read_answer(answer: Any) -> tuple[str, Any]:
    """("approve", None), ("edit", changes) or ("reject", why). Anything unknown is a rejection."""
    if isinstance(answer, Mapping) and isinstance(decisions := answer.get("decisions"), list):
        answer = decisions[0] if len(decisions) == 1 else answer  # LangChain's envelope
    if isinstance(answer, str) and answer in ("approve", "reject"):
        return answer, "no message was given"
    if isinstance(answer, Mapping):
        match answer.get("type"):
            case "approve":
                return "approve", None
            case "edit" if isinstance(changes := answer.get("input"), Mapping):
                return "edit", changes
            case "edit":
                return "reject", "an edit needs {'type': 'edit', 'input': {...}}"
            case "reject":
                return "reject", str(answer.get("message") or "no message was given")
            case _:
                pass
    text = repr(answer)
    text = text if len(text) <= 80 else text[:77] + "..."
    return "reject", f"the answer was {text}; expected approve, edit or reject"


# Advise and correct -------------------------------------------------------------------------------


def _advise(run: NodeRun) -> Steps:
    for number, seat in enumerate(run.plan.advisors):
        state = freeze(as_state(run.input))
        advice = yield Call(seat, seat.contract.advise, (run.view, state))
        if type(advice) is Raised:
            if not isinstance(advice.error, Exception):
                continue
            run.record.failed(f"advisor {seat.name}", describe(advice.error))
            continue
        try:
            _lend(run, advice, f"arbiter-{run.record.id}-{number}")
        except Exception as exc:
            run.record.failed(f"advisor {seat.name}", describe(exc))


def _lend(run: NodeRun, advice: Any, id: str, *, feedback: bool = False) -> None:
    """Add advice to the input of this call."""
    if advice is None or advice == "":
        return
    state = as_state(run.input)
    messages = state.get("messages")
    if isinstance(advice, str):
        if isinstance(messages, list):
            advice = HumanMessage(advice) if feedback else SystemMessage(advice)
        else:
            advice = {"feedback" if feedback else "advice": advice}
    if isinstance(advice, Mapping):
        run.input = with_fields(run.input, advice)
        run.lent.update(advice)
        return
    added = [advice] if isinstance(advice, BaseMessage) else advice
    if not isinstance(added, Sequence) or not all(isinstance(m, BaseMessage) for m in added):
        raise TypeError(f"advice was a {type(advice).__name__}; expected a text, messages or a mapping")
    if not isinstance(messages, list):
        raise TypeError("advice was messages, but the node's input has no list 'messages'")
    named = [m.model_copy(update={"id": f"{id}-{i}"}) for i, m in enumerate(added)]
    lead = next((i for i, m in enumerate(messages) if getattr(m, "type", "") != "system"), len(messages))
    # System messages go with the leading ones: some providers refuse them anywhere else.
    system = [m for m in named if m.type == "system"]
    others = [m for m in named if m.type != "system"]
    run.input = with_fields(run.input, {"messages": [*messages[:lead], *system, *messages[lead:], *others]})
    run.lent.update({m.id: m for m in named if m.id})


def _without_lent(run: NodeRun, output: Any) -> Any:
    """The output without what was lent, should the node have returned it."""
    lent = run.lent
    output = without(output, lambda part: isinstance(part, BaseMessage) and part.id in lent)
    if isinstance(output, dict) and any(key in lent and value is lent[key] for key, value in output.items()):
        return {k: v for k, v in output.items() if not (k in lent and v is lent[k])}
    return output


def _correct(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Call the body until the gate takes a draft."""
    gate, record, given = seat.contract, run.record, run.input
    lent = dict(run.lent)
    attempt = 0
    while True:
        attempt += 1
        output = yield Body(run.input, held=True)
        if type(output) is Raised:
            return output
        if run.lent:
            output = _without_lent(run, output)
        record.output = snapshot(output, run.settings.snapshot)
        answer = yield Call(seat, gate.review, (run.view, freeze(as_state(output)), attempt))
        if type(answer) is Raised or not isinstance(answer, Correction):
            if type(answer) is Raised and not isinstance(answer.error, Exception):
                return answer
            problem = (
                describe(answer.error)
                if type(answer) is Raised
                else f"returned a {type(answer).__name__}; expected a Correction"
            )
            record.failed(f"gate {seat.name}", f"{problem}; the draft was let through")
            break
        if answer.kind == "commit":
            output = answer.output if answer.replaces else output
            break
        record.corrections = (*record.corrections, answer.feedback)
        exhausted = attempt >= gate.max_attempts
        if answer.kind == "give_up" or (exhausted and gate.on_exhausted == "raise"):
            reason = answer.feedback or "no reason was given"
            if answer.kind == "retry":
                reason = f"{attempt} drafts were sent back, the last one because: {reason}"
            return Raised(CorrectionError(gate=seat.name, node=record.node, reason=reason))
        if exhausted:
            record.note(f"gate {seat.name}", f"max_attempts={attempt} reached; the last draft was taken")
            break
        run.input, run.lent = given, dict(lent)
        try:
            _lend(run, answer.feedback, f"arbiter-{record.id}-draft-{attempt}", feedback=True)
        except Exception as exc:
            record.failed(f"gate {seat.name}", f"the feedback could not be passed on: {describe(exc)}")
    run.release()
    return output


# Route --------------------------------------------------------------------------------------------


def _route(run: NodeRun, output: Any, seats: Sequence[Seat[PolicyRouter]]) -> Steps:
    """Ask all routers; the first that answers and may, wins."""
    record = run.record
    shown = freeze(output) if isinstance(output, dict | list) else output
    routes: dict[str, str | None] = {}
    for seat in seats:
        router = seat.contract
        evaluations = record.evaluations
        if isinstance(evaluations, Evaluations):
            for name in router.needs:
                if (lane := evaluations.lane(name)) is not None:
                    yield Resolve(evaluations, lane)
        target = yield Call(seat, router.route_after, (run.view, shown) if seat.takes_output else (run.view,))
        routes[seat.name] = None
        if type(target) is Raised:
            if not isinstance(target.error, Exception) or isinstance(target.error, SyncDriverError):
                record.failed(f"router {seat.name}", describe(target.error))
            else:
                record.failed(f"router {seat.name}", f"{describe(target.error)}; the normal edges were taken")
        elif target is None:
            continue
        elif not isinstance(target, str) or target not in run.targets:
            names = ", ".join(sorted(run.targets - {END})) or "none"
            hint = nearest(target, run.targets) if isinstance(target, str) else ""
            record.failed(
                f"router {seat.name}",
                f"redirects to {target!r}, which is not a node of this graph. Nodes: {names}.{hint}",
            )
        else:
            routes[seat.name] = target
            if run.redirect is not None:
                continue
            if run.view.past.redirects(seat.name) >= router.max_redirects:
                record.note(
                    f"router {seat.name}",
                    f"max_redirects={router.max_redirects} reached; the normal edges were taken",
                )
                continue
            run.redirect = record.redirected_to = target
            record.redirected_by = seat.name
    record.routes = run.plan.no_routes if not any(routes.values()) and seats is run.plan.routers else routes


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
