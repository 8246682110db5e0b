"""Advise: transient context for one call, which never reaches the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langgraph.types import Command
from pydantic import BaseModel

from arbiter.advice import Advisor
from arbiter.errors import ConfigurationError, describe
from arbiter.lifecycle.requests import Call, Raised, Steps
from arbiter.lifecycle.runs import Handed, NodeRun
from arbiter.states import ROOT, as_state, freeze, is_atom, thaw, with_fields, without


def advise(run: NodeRun) -> Steps:
    """Ask all advisors. Returns `Raised` to stop the node if the run was cancelled or is set up wrongly, else None."""
    if not run.is_graph:
        _take_inherited(run)
    blocks: dict[str, list[tuple[str, Advisor, Any]]] = {}
    for number, seat in enumerate(run.plan.advisors):
        state = freeze(as_state(run.input))
        advice = yield Call(seat, (run.view, state))
        if type(advice) is Raised:
            misused = seat.contract.enforced and isinstance(advice.error, ConfigurationError)
            if misused or not isinstance(advice.error, Exception):
                return advice
            run.record.failed(f"advisor {seat.name}", describe(advice.error))
            continue
        if not seat.contract.enforced:
            if advice is not None and advice != "":
                run.record.note(f"advisor {seat.name}", "audit: it would have added advice")
            continue
        id = f"arbiter-{run.record.id}-{number}"
        if seat.contract.block:
            if advice is not None:
                blocks.setdefault(seat.contract.block, []).append((id, seat.contract, advice))
            continue
        try:
            _give(run, seat.contract, advice, id)
        except Exception as exc:
            run.record.failed(f"advisor {seat.name}", describe(exc))
    for members in blocks.values():
        _lend_block(run, members)
    return None


def _lend_block(run: NodeRun, members: Sequence[tuple[str, Advisor, Any]]) -> None:
    id, lead, _ = members[0]
    try:
        _give(run, lead, lead.compose([advice for _, _, advice in members]), id)
    except Exception as exc:
        run.record.failed(f"advisor {lead.name}", describe(exc))


def _give(run: NodeRun, advisor: Advisor, advice: Any, id: str) -> None:
    """Lend advice to the node, or to the nodes inside."""
    if not run.is_graph:
        lend(run, advice, id, key=advisor.messages_key)
    elif advice is not None and advice != "":
        run.handed = (*run.handed, Handed(advisor.name, advice, id, advisor.messages_key))


def _take_inherited(run: NodeRun) -> None:
    """Take what was meant for the graph that this node is part of, as far as the node has a place for it."""
    for handed in run.inherited:
        try:
            lend(run, handed.advice, handed.id, key=handed.messages_key)
        except TypeError:
            continue
        handed.taken = True


def note_untaken(run: NodeRun) -> None:
    """Say which advice no node of the graph inside had a place for."""
    for handed in run.handed:
        if not handed.taken:
            run.record.failed(
                f"advisor {handed.advisor}", "no node of the graph inside could take its advice"
            )


def lend(
    run: NodeRun, advice: Any, id: str, *, key: str = "messages", feedback: bool = False, output: Any = None
) -> None:
    """Add advice to the input of this call: to the messages at `key`, else to those at `messages`.

    `output` of an earlier call shows whether an empty list at `key` is one of messages.
    """
    if advice is None or advice == "":
        return
    state = as_state(run.input)
    key = key if _of_messages(state.get(key), as_state(output).get(key)) else "messages"
    messages: Any = state.get(key)
    has_messages = isinstance(state.get(key), list)
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
        known = {ROOT, *as_state(run.input)}
        run.lent = {**run.lent, **{name: part for name, part in given.items() if name in known}}
        if missing := [name for name in given if name not in known]:
            kind = type(run.input).__name__
            raise TypeError(f"the node's input, a {kind}, has no field {missing[0]!r} to be told in; add one")
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
    run.input = with_fields(run.input, {key: [*messages[:lead], *system, *messages[lead:], *others]})
    run.lent = {**run.lent, **{m.id: m for m in named if m.id}}


def _of_messages(given: object, said: object) -> bool:
    """Whether a list in the state is one of messages; of an empty one, what was said there tells."""
    if _all_messages(given):
        return True
    empty = isinstance(given, list) and not given
    return empty and _all_messages([said] if isinstance(said, BaseMessage) else said)


def _all_messages(value: object) -> bool:
    parts: Any = value
    return isinstance(value, list) and bool(parts) and all(isinstance(one, BaseMessage) for one in parts)


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
