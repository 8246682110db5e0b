"""Advise: transient context for one call, which never reaches the state."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from operator import is_not
from typing import Any, cast

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langgraph.types import Command, Send
from pydantic import BaseModel

from arbiter._lifecycle.requests import Call, Raised, Steps
from arbiter._lifecycle.runs import DelegatedAdvice, NodeRun
from arbiter._values.states import (
    LEFT_OUT,
    ROOT,
    are_commands,
    as_state,
    freeze,
    is_atom,
    replaced,
    thaw,
    with_fields,
    with_set,
)
from arbiter.advice import Advisor
from arbiter.errors import ConfigurationError, describe

_INSTEAD = "llm_input_messages"
"""The messages that a hook before the model of LangGraph's prebuilt agent has made: it reads no others, and a
node of another graph may read both."""


def advise(run: NodeRun) -> Steps:
    """Ask all advisors. Returns `Raised` to stop the node if the run was cancelled or set up wrongly, else
    None.
    """
    waiting = [] if run.is_graph else _take_inherited(run)
    blocks: dict[str, list[tuple[str, Advisor, Any]]] = {}
    for number, registration in enumerate(run.plan.advisors):
        state = freeze(as_state(run.input))
        advice = yield Call(registration, (run.view, state))
        if type(advice) is Raised:
            misused = registration.contract.enforced and isinstance(advice.error, ConfigurationError)
            if misused or not isinstance(advice.error, Exception):
                return advice
            run.record.failed(f"advisor {registration.name}", describe(advice.error))
            continue
        if not registration.contract.enforced:
            if not _is_nothing(advice):
                run.record.note(f"advisor {registration.name}", "audit: it would have added advice")
            continue
        id = f"arbiter-{run.record.id}-{number}"
        if registration.contract.block:
            if advice is not None:
                blocks.setdefault(registration.contract.block, []).append((id, registration.contract, advice))
            continue
        try:
            _give(run, registration.contract, advice, id, registration.contract.messages_key)
        except Exception as exc:
            run.record.failed(f"advisor {registration.name}", describe(exc))
    given = [names for members in blocks.values() if (names := _add_block(run, members))]
    for handed in waiting:
        if any(handed.block <= names for names in given):
            handed.taken = True
        else:
            _take(run, handed)
    return None


def _add_block(run: NodeRun, members: Sequence[tuple[str, Advisor, Any]]) -> frozenset[str]:
    """Add the advice of a block. Returns the names of its advisors; none if there is no advice."""
    id, lead, first = members[0]
    names = frozenset(advisor.name for _, advisor, _ in members)
    # An answer may know better where its node has the messages.
    key = getattr(first, "messages_key", None) or lead.messages_key
    try:
        advice = lead.compose([advice for _, _, advice in members])
        _give(run, lead, advice, id, key, names)
    except Exception as exc:
        run.record.failed(f"advisor {lead.name}", describe(exc))
        return frozenset()
    return frozenset() if _is_nothing(advice) else names


def _give(
    run: NodeRun, advisor: Advisor, advice: Any, id: str, key: str, block: frozenset[str] = frozenset()
) -> None:
    """Add advice to the node's input, or keep it for the nodes inside."""
    if not run.is_graph:
        add_transient(run, advice, id, key=key)
    elif not _is_nothing(advice):
        run.handed = (*run.handed, DelegatedAdvice(advisor.name, advice, id, key, block))


def _is_nothing(advice: Any) -> bool:
    return advice is None or (isinstance(advice, str | Mapping | Sequence) and not advice)


def _take_inherited(run: NodeRun) -> list[DelegatedAdvice]:
    """Add the advice for the graph around this node. Returns the blocks whose advisors the node asks itself: it needs
    them only if its own advisors do not answer."""
    asked = {registration.name for registration in run.plan.advisors}
    waiting: list[DelegatedAdvice] = []
    for handed in run.inherited:
        if handed.block and handed.block <= asked:
            waiting.append(handed)
        else:
            _take(run, handed)
    return waiting


def _take(run: NodeRun, handed: DelegatedAdvice) -> None:
    """Add advice for the graph around this node if the node's input has a place for it."""
    try:
        add_transient(run, handed.advice, handed.id, key=handed.messages_key)
    except TypeError:
        return
    handed.taken = True


def note_untaken(run: NodeRun) -> None:
    """Record the advice for which no node of the inner graph had a place."""
    for handed in run.handed:
        if not handed.taken:
            run.record.failed(
                f"advisor {handed.advisor}", "no node of the graph inside could take its advice"
            )


def add_transient(
    run: NodeRun, advice: Any, id: str, *, key: str = "messages", feedback: bool = False, output: Any = None
) -> None:
    """Add advice to the input of this call: to the messages at `key`, else to those at `messages`, or to the list of
    messages that the input is.

    `output` of an earlier call shows whether an empty list at `key` is a list of messages. Raises `TypeError`
    if the input has no place for the advice, or if the advice has a wrong type.
    """
    if _is_nothing(advice):
        return
    state = as_state(run.input)
    if not _of_messages(state.get(key), as_state(output).get(key)):
        key = ROOT if _all_messages(state.get(ROOT)) else "messages"
    keys = [key] if isinstance(state.get(key), list) else []
    keys += [_INSTEAD] if _all_messages(state.get(_INSTEAD)) else []
    if isinstance(advice, str):
        if keys:
            advice = HumanMessage(advice) if feedback else SystemMessage(advice)
        else:
            advice = {"feedback" if feedback else "advice": advice}
    given: Any = thaw(advice)
    if isinstance(advice, Mapping):
        if dataclasses.is_dataclass(run.input):
            _check_fields(run.input, given)  # its class would refuse others in words of its own
        if run.given is None:
            run.given = state
        run.input = with_fields(run.input, given)
        known = {ROOT, *as_state(run.input)}
        run.transient = {**run.transient, **{name: part for name, part in given.items() if name in known}}
        _check_fields(run.input, given)
        return
    added: Any = [given] if isinstance(advice, BaseMessage) else given
    if not isinstance(advice, BaseMessage | Sequence) or not all(isinstance(m, BaseMessage) for m in added):
        raise TypeError(f"advice was a {type(given).__name__}; expected a text, messages or a mapping")
    if not keys:
        raise TypeError("advice was messages, but the node's input has no list 'messages'")
    named = [m.model_copy(update={"id": f"{id}-{i}"}) for i, m in enumerate(added)]
    run.input = with_fields(run.input, {name: _joined(state[name], named) for name in keys})
    run.transient = {**run.transient, **{m.id: m for m in named if m.id}}


def _check_fields(value: Any, names: Iterable[str]) -> None:
    """Raise `TypeError` if the input of a node lacks one of these fields."""
    known = {ROOT, *as_state(value)}
    if (missing := next((name for name in names if name not in known), None)) is not None:
        kind = type(value).__name__
        raise TypeError(f"the node's input, a {kind}, has no field {missing!r} for the advice; add one")


def _joined(messages: list[Any], added: Sequence[BaseMessage]) -> list[Any]:
    lead = next((i for i, m in enumerate(messages) if getattr(m, "type", "") != "system"), len(messages))
    # System messages go with the leading ones, because some providers refuse them anywhere else.
    system = [m for m in added if m.type == "system"]
    others = [m for m in added if m.type != "system"]
    return [*messages[:lead], *system, *messages[lead:], *others]


def _of_messages(given: object, said: object) -> bool:
    """True if a list in the state holds messages. If it is empty, the messages written there before decide."""
    if _all_messages(given):
        return True
    empty = isinstance(given, list) and not given
    return empty and _all_messages([said] if isinstance(said, BaseMessage) else said)


def _all_messages(value: object) -> bool:
    parts: Any = value
    return isinstance(value, list) and bool(parts) and all(isinstance(one, BaseMessage) for one in parts)


def without_transient(run: NodeRun, output: Any) -> Any:
    """The output without the transient advice, in case the node returned it."""
    from langgraph.func import entrypoint

    ends: Any = output
    if isinstance(output, entrypoint.final):
        return entrypoint.final(
            value=without_transient(run, ends.value), save=without_transient(run, ends.save)
        )
    transient = run.transient

    def part_for(part: Any) -> Any:
        return LEFT_OUT if isinstance(part, BaseMessage) and part.id in transient else part

    # The fields first: a list without the transient messages is not the list that the node was given.
    return replaced(_without_fields(run, output), part_for)


def _without_fields(run: NodeRun, output: Any) -> Any:
    """The output without the fields of the advice, and without the advice in what it sends to other nodes."""
    given: Any = output
    if isinstance(output, Command):
        update, goto = _without_fields(run, given.update), _goto_without(run, given.goto)
        if update is given.update and goto is given.goto:
            return given
        return dataclasses.replace(given, update=update, goto=goto)
    if are_commands(output):
        return [_without_fields(run, part) for part in given]
    if isinstance(output, dict):
        return _own_fields(run, given)
    if isinstance(output, BaseModel):
        if not (changes := _restored(run, given)):
            return given
        empty = {name for name, part in changes.items() if part is None}
        return with_set(given.model_copy(update=changes), given.model_fields_set - empty)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(given, **changes) if (changes := _restored(run, given)) else given
    return given


def _goto_without(run: NodeRun, goto: Any) -> Any:
    """The targets of a command, without the advice in the states that it sends to them."""
    given: Any = goto
    if isinstance(goto, list | tuple):
        targets = [_goto_without(run, target) for target in given]
        return targets if any(map(is_not, targets, given)) else given
    if not isinstance(goto, Send) or (kept := without_transient(run, goto.arg)) is goto.arg:
        return goto
    if isinstance(kept, dict):  # the node gets nothing but what is sent, so no field may be missing
        own = cast(dict[str, Any], kept)
        kept = {key: part for key, part in {**(run.given or {}), **own}.items() if key in goto.arg}
    target = copy.copy(goto)
    target.arg = kept
    return target


def _own_fields(run: NodeRun, output: dict[str, Any]) -> dict[str, Any]:
    """The fields of an output that the node wrote itself."""
    # A number that equals a transient one is the node's own, unless the node returns its whole input.
    given = run.given or {}
    seen = as_state(run.input)  # a model that was given advice has copies of the lists
    whole = given.keys() <= output.keys() and any(
        output[k] is seen.get(k) for k in given if k not in run.transient
    )
    back = [
        k for k, v in output.items() if k in run.transient and v is seen.get(k) and (whole or not is_atom(v))
    ]
    return {k: v for k, v in output.items() if k not in back} if back else output


def _restored(run: NodeRun, output: Any) -> dict[str, Any]:
    """The original values of a model's fields that were returned with their transient values."""
    given = run.given or {}
    seen = as_state(run.input)
    state = as_state(output)
    return {k: given[k] for k, v in state.items() if k in run.transient and v is seen.get(k) and k in given}
