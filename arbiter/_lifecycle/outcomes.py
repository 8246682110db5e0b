"""The ends of a node run: a denial, an output that its schema rejects, and their records."""

from __future__ import annotations

import logging
from typing import Any

from langgraph.constants import END
from langgraph.types import Command, Overwrite
from pydantic import TypeAdapter, ValidationError

from arbiter._lifecycle.requests import Raised
from arbiter._lifecycle.runs import NodeRun, Schemas
from arbiter._values.shapes import problem_of
from arbiter._values.states import as_state, with_own, with_parts, written_by
from arbiter.errors import ConfigurationError, OutputSchemaError, PolicyViolationError, describe
from arbiter.history._record import PolicyDecision
from arbiter.policy import PolicyChecker

_log = logging.getLogger("arbiter")


def end(run: NodeRun, output: Any) -> Any:
    run.record.duration = run.lasted
    return output


def note_output(run: NodeRun, output: Any) -> None:
    record = run.record
    record.duration = run.lasted
    run.states.output = written_by(run.written(output))
    record.status = "completed"
    record.drafts = ()


def schemas_unfinished(schemas: Schemas, node: str) -> ConfigurationError | None:
    """The error of a node whose schemas name a type that is still not defined when it runs."""
    for adapter, name in ((schemas.input, schemas.input_name), (schemas.output, schemas.output_name)):
        # An older pydantic reports it when the adapter is made.
        if adapter is not None and not getattr(adapter, "pydantic_complete", True):
            try:
                adapter.rebuild()
            except Exception as exc:
                return unusable(name, f"node {node!r}", exc)
    return None


def unusable(schema: str, node: str, error: Exception) -> ConfigurationError:
    why = describe(error).splitlines()[0].removesuffix(".")
    return ConfigurationError(
        f"schemas of {node}: {schema} cannot be validated by pydantic: {why}. Give a model class, a "
        "dataclass, a typing_extensions.TypedDict or another type. For a JSON Schema, add a SchemaChecker."
    )


def input_refused(run: NodeRun) -> str | None:
    schemas = run.schemas
    if schemas is None or schemas.input is None:
        return None
    # Checkers and the body get the same copy that is validated. No sibling has it.
    run.input = with_own(run.input, schemas.input_fields)
    run.states.input = as_state(run.input)
    return _refused(schemas.input, schemas.input_name, run.input)


def output_refused(run: NodeRun, output: Any) -> OutputSchemaError | None:
    schemas = run.schemas
    if schemas is None or schemas.output is None:
        return None
    refused = _refused(schemas.output, schemas.output_name, output)
    if refused is None:
        return None
    return OutputSchemaError(node=run.record.node, schema=schemas.output_name, message=refused)


def _refused(schema: TypeAdapter[Any], name: str, value: Any) -> str | None:
    """The mistakes that the schema finds, in one line, or None."""
    if isinstance(value, Command | list):
        value = as_state(value)  # pyright: ignore[reportUnknownArgumentType]
    fields = as_state(value).items()
    if written := {key: part.value for key, part in fields if isinstance(part, Overwrite)}:
        value = with_parts(value, written)
    try:
        schema.validate_python(value, from_attributes=True)
    except ValidationError as exc:
        parts = [f"{'.'.join(map(str, e['loc'])) or name}: {problem_of(e)}" for e in exc.errors()[:5]]
        return f"{name}: " + "; ".join(parts)
    except Exception as exc:  # a validator that raises has not accepted the value
        return f"{name}: its validator raised {type(exc).__name__}"
    return None


def log(run: NodeRun, event: str, *args: object) -> None:
    """Log an event at a node to the logger `arbiter`. Costs nothing if no handler wants INFO records."""
    if _log.isEnabledFor(logging.INFO):
        record, thread = run.record, run.run.log.thread_id
        of = f" ({record.instruction.name})" if record.instruction else ""
        where = f"node {record.node!r}{of}, step {record.step}" + (f", thread {thread!r}" if thread else "")
        _log.info(f"%s: {event}", where, *args)


def consequence_of(run: NodeRun, checker: PolicyChecker) -> str:
    """The effect of a denial by that checker: its `on_deny`, but "raise" once it has reached its cap."""
    _, redirects, target = checker.on_deny.partition("redirect:")
    if not redirects or target == END or run.past.redirects(checker.name) < checker.max_redirects:
        return checker.on_deny
    return "raise"


def denied_by(
    run: NodeRun, checker: PolicyChecker, reason: str, cause: BaseException | None = None
) -> Raised | None:
    """Deny the node in the name of a checker, with the effect that its denial has now."""
    consequence = consequence_of(run, checker)
    if consequence != checker.on_deny:
        capped = f"max_redirects={checker.max_redirects} reached; it did not {checker.on_deny.replace(':', ' to ')}"
        run.record.note(f"checker {checker.name}", capped)
        error = PolicyViolationError(policy=checker.name, node=run.record.node, reason=reason, cause=cause)
        reason = f"{error.reason}; {capped}"
    return denied(run, checker.name, consequence, reason, cause)


def denied(
    run: NodeRun, policy: str, on_deny: str, reason: str, cause: BaseException | None
) -> Raised | None:
    record = run.record
    record.status = "denied"
    record.kept_account.decision = PolicyDecision(kind="deny", policy=policy, consequence=on_deny)
    record.duration = run.lasted
    _, found, target = on_deny.partition("redirect:")
    if on_deny == "end":
        target = END
    elif not found:
        target = ""
    # If states are not kept, reasons are not either, because they may quote them.
    shown = "" if run.settings.snapshot == "digest" else f": {reason or (cause and describe(cause))}"
    log(run, "%s denied it%s", policy, shown)
    run.take_back()  # LangGraph would save what the body has written by itself, also with an exception
    if target and target in run.plan.targets:
        log(run, "%s redirected to %r", policy, target)
        run.redirect = record.redirected_to = target
        return None
    error = PolicyViolationError(
        policy=policy, node=record.node, instruction=record.instruction, reason=reason, cause=cause
    )
    record.error = str(error)
    return Raised(error)
