"""Advise: transient context for one call, which never reaches the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langgraph.types import Command
from pydantic import BaseModel

from arbiter.errors import ConfigurationError
from arbiter.lifecycle.outcomes import describe
from arbiter.lifecycle.requests import Call, Raised, Steps
from arbiter.lifecycle.runs import NodeRun
from arbiter.states import as_state, freeze, is_atom, thaw, with_fields, without


def advise(run: NodeRun) -> Steps:
    """Ask all advisors. Returns `Raised` to stop the node, when the run was cancelled; else None."""
    for number, seat in enumerate(run.plan.advisors):
        state = freeze(as_state(run.input))
        advice = yield Call(seat, (run.view, state))
        if type(advice) is Raised:
            if not isinstance(advice.error, Exception):
                run.record.status, run.record.error = "cancelled", describe(advice.error)
                return advice
            if isinstance(advice.error, ConfigurationError) and seat.contract.enforced:
                run.record.status, run.record.error = "failed", describe(advice.error)
                return advice
            run.record.failed(f"advisor {seat.name}", describe(advice.error))
            continue
        if not seat.contract.enforced:
            if advice is not None and advice != "":
                run.record.note(f"advisor {seat.name}", "audit: it would have added advice")
            continue
        try:
            lend(run, advice, f"arbiter-{run.record.id}-{number}")
        except Exception as exc:
            run.record.failed(f"advisor {seat.name}", describe(exc))
    return None


def lend(run: NodeRun, advice: Any, id: str, *, feedback: bool = False) -> None:
    """Add advice to the input of this call."""
    if advice is None or advice == "":
        return
    state = as_state(run.input)
    messages: Any = state.get("messages")
    has_messages = isinstance(state.get("messages"), list)
    if isinstance(advice, str):
        if has_messages:
            advice = HumanMessage(advice) if feedback else SystemMessage(advice)
        else:
            advice = {"feedback" if feedback else "advice": advice}
    given: Any = thaw(advice)
    if isinstance(advice, Mapping):
        if run.given is None:
            run.given = state
        run.input = with_fields(run.input, given)
        run.lent = {**run.lent, **given}
        return
    added: Any = [given] if isinstance(advice, BaseMessage) else given
    if not isinstance(advice, BaseMessage | Sequence) or not all(isinstance(m, BaseMessage) for m in added):
        raise TypeError(f"advice was a {type(given).__name__}; expected a text, messages or a mapping")
    if not has_messages:
        raise TypeError("advice was messages, but the node's input has no list 'messages'")
    named = [m.model_copy(update={"id": f"{id}-{i}"}) for i, m in enumerate(added)]
    lead = next((i for i, m in enumerate(messages) if getattr(m, "type", "") != "system"), len(messages))
    # System messages go with the leading ones: some providers refuse them anywhere else.
    system = [m for m in named if m.type == "system"]
    others = [m for m in named if m.type != "system"]
    run.input = with_fields(run.input, {"messages": [*messages[:lead], *system, *messages[lead:], *others]})
    run.lent = {**run.lent, **{m.id: m for m in named if m.id}}


def without_lent(run: NodeRun, output: Any) -> Any:
    """The output without what was lent, should the node have returned it."""
    lent = run.lent
    output = without(output, lambda part: isinstance(part, BaseMessage) and part.id in lent)
    given: Any = output
    if isinstance(output, Command):
        update: Any = given.update
        kept = _own_fields(run, update) if isinstance(given.update, dict) else update
        return given if kept is update else dataclasses.replace(given, update=kept)
    if isinstance(output, dict):
        return _own_fields(run, given)
    if isinstance(output, BaseModel):
        return given.model_copy(update=changes) if (changes := _lent_back(run, given)) else given
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(given, **changes) if (changes := _lent_back(run, given)) else given
    return given


def _own_fields(run: NodeRun, output: dict[str, Any]) -> dict[str, Any]:
    """The fields of an output that the node wrote itself."""
    # A number that equals a lent one is the node's own, unless the node hands back the whole of its input.
    given = run.given or {}
    whole = given.keys() <= output.keys() and any(
        output[k] is v for k, v in given.items() if k not in run.lent
    )
    back = [k for k, v in output.items() if k in run.lent and v is run.lent[k] and (whole or not is_atom(v))]
    return {k: v for k, v in output.items() if k not in back} if back else output


def _lent_back(run: NodeRun, output: Any) -> dict[str, Any]:
    """Fields of a model that came back as they were lent, with what they were before."""
    given = run.given or {}
    state = as_state(output)
    return {k: given[k] for k, v in state.items() if k in run.lent and v is run.lent[k] and k in given}
