"""Asking a human by LangGraph's interrupt: each answer goes to the question that it was given to, once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    INTERRUPT,
    NS_SEP,
    NULL_TASK_ID,
    RESUME,
)
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from arbiter.lifecycle import NO_ANSWER, Answered, Ask
from arbiter.weaving.channel import conf_of

_STAMP = "__arbiter_answer__"
_FRESH = object()


def ask_human(op: Ask, config: RunnableConfig | None) -> Any:
    """Interrupt, or the answer that was given to this very question. `NO_ANSWER` if one was given to another.

    LangGraph hands a resume value to whatever asks first. Between question and answer the state may have
    been changed (`update_state`, `Command(resume=..., update=...)`): then nobody was shown this input. So a fresh
    answer is held against the questions in the checkpoint, and the outcome is noted beside it. And it would hand out
    the value again, to a question that is asked later: so what was given before this one is spent when it pauses.
    """
    try:
        answer = _answer(op, config)
    except GraphInterrupt:
        _spend(conf_of(config))
        raise
    if answer is not _FRESH:
        return answer
    conf = conf_of(config)
    saver = _saver_of(conf)
    for where in places_of(conf):
        if (saved := saver.get_tuple(where)) is not None:
            return _settle(op, conf, saved)
    raise RuntimeError(_NO_CHECKPOINT)


async def aask_human(op: Ask, config: RunnableConfig | None) -> Any:
    """As `ask_human`, in an event loop."""
    try:
        answer = _answer(op, config)
    except GraphInterrupt:
        await _aspend(conf_of(config))
        raise
    if answer is not _FRESH:
        return answer
    conf = conf_of(config)
    saver = _saver_of(conf)
    for where in places_of(conf):
        if (saved := await saver.aget_tuple(where)) is not None:
            return _settle(op, conf, saved)
    raise RuntimeError(_NO_CHECKPOINT)


def _answer(op: Ask, config: RunnableConfig | None) -> Any:
    """What LangGraph has for this question; it pauses the graph if that is nothing. `_FRESH`: it came just now."""
    if CONFIG_KEY_SCRATCHPAD in (config or {}).get(CONF, {}):
        _saver_of(conf_of(config))  # without one nobody could answer
    token = var_child_runnable_config.set(config)
    try:
        answer: Any = interrupt({**op.payload, "question": op.number, "after": asked_before(config)})
    finally:
        var_child_runnable_config.reset(token)
    given: Any = answer
    if isinstance(answer, dict) and _STAMP in answer:
        if not op.is_about(given[_STAMP], given.get("policies")):
            return NO_ANSWER
        return Answered(given["answer"], given.get("asked_at"), given["at"])
    return _FRESH


def asked_before(config: RunnableConfig | None) -> int:
    """How many questions of this task have an answer: all that were asked before the one that is open."""
    pad = (config or {}).get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return 0 if pad is None else len(pad.resume)


_NO_CHECKPOINT = (
    "this graph has no checkpointer, which keeps the question until it is answered. "
    "Compile the graph with one, and a subgraph without checkpointer=False"
)


def note_id(note: Mapping[str, Any]) -> str:
    """Where a note is kept. Not under the task's own id: LangGraph would take the task for done."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{note['task']} {note['seq']}"))


def _saver_of(conf: Mapping[str, Any]) -> Any:
    saver = conf.get(CONFIG_KEY_CHECKPOINTER)
    if not hasattr(saver, "get_tuple"):
        raise RuntimeError(_NO_CHECKPOINT)
    return saver


def places_of(conf: Mapping[str, Any]) -> list[RunnableConfig]:
    """Where the checkpoint of this task may be: in the graph's namespace, which for a @task is further out."""
    info = conf[CONFIG_KEY_RUNTIME].execution_info
    places: list[RunnableConfig] = []
    namespace: str = conf[CONFIG_KEY_CHECKPOINT_NS]
    while namespace:
        namespace = namespace.rpartition(NS_SEP)[0]
        place = {
            CONFIG_KEY_THREAD_ID: str(conf.get(CONFIG_KEY_THREAD_ID)),
            CONFIG_KEY_CHECKPOINT_NS: namespace,
            "checkpoint_id": info.checkpoint_id,
        }
        places.append({"configurable": place})
    return places


def _settle(op: Ask, conf: Mapping[str, Any], saved: Any) -> Any:
    """Whether the fresh answer was given to this very question; noted, so that it stays settled."""
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    index = len(pad.resume) - 1  # a fresh answer is the newest
    answer = pad.resume[index]
    shown = questions_of(saved.pending_writes or (), conf[CONFIG_KEY_TASK_ID])
    question = next((question for question in shown if op.is_like(question)), None)
    stamp: dict[str, Any] = {_STAMP: "", "answer": answer, "at": op.at}
    if question is not None:
        stamp |= {_STAMP: op.key, "policies": op.policies, "asked_at": question.get("asked_at")}
    pad.resume[index] = stamp
    conf[CONFIG_KEY_SEND]([(RESUME, list(pad.resume[: index + 1]))])
    return NO_ANSWER if question is None else Answered(answer, stamp["asked_at"], op.at)


def _spend(conf: Mapping[str, Any]) -> None:
    """Take out of the checkpoint the resume value that this run was given, now that a question has had it.

    LangGraph keeps it for as long as the superstep is unfinished, and gives it to whatever asks next.
    """
    saver = _saver_of(conf)
    for pause in PAUSES:
        found = [saver.get_tuple(level) for level in _levels(conf)]
        for place, task, resume in _spent(conf, found):
            saver.put_writes(place, [(RESUME, resume)], task)
        if _is_spent(conf, found):
            return
        time.sleep(pause)
    raise RuntimeError(_NOT_SPENT)


async def _aspend(conf: Mapping[str, Any]) -> None:
    """As `_spend`, in an event loop."""
    saver = _saver_of(conf)
    for pause in PAUSES:
        found = [await saver.aget_tuple(level) for level in _levels(conf)]
        for place, task, resume in _spent(conf, found):
            await saver.aput_writes(place, [(RESUME, resume)], task)
        if _is_spent(conf, found):
            return
        await asyncio.sleep(pause)
    raise RuntimeError(_NOT_SPENT)


PAUSES = (0.001, 0.01, 0.1, 0.4, 1.0, 2.0)
"""Seconds between looks at what LangGraph saves in the background."""
_NOT_SPENT = (
    "the answer to an earlier question is not in the checkpointer of this graph, so that it might be taken for the "
    "answer to this one too. Give a subgraph no checkpointer of its own"
)


def _levels(conf: Mapping[str, Any]) -> list[RunnableConfig]:
    """The checkpoints of this task's graph, and of those around it, from the inside out."""
    thread = str(conf.get(CONFIG_KEY_THREAD_ID))
    known: Mapping[str, str] = conf[CONFIG_KEY_CHECKPOINT_MAP]
    return [
        {
            CONF: {
                CONFIG_KEY_THREAD_ID: thread,
                CONFIG_KEY_CHECKPOINT_NS: namespace,
                "checkpoint_id": known[namespace],
            }
        }
        for namespace in sorted(known, key=len, reverse=True)
    ]


def _spent(conf: Mapping[str, Any], found: Sequence[Any]) -> list[tuple[RunnableConfig, str, Any]]:
    """What is to be saved, in this order: the answers that this task has had, as its own, and in the place of the
    resume value nothing. A crash between the two loses no answer."""
    given = [saved for saved in found if saved is not None and _given(saved)]
    if not given:
        return []
    spent: list[tuple[RunnableConfig, str, Any]] = []
    if found[0] is not None and (had := conf[CONFIG_KEY_SCRATCHPAD].resume):
        spent.append((found[0].config, conf[CONFIG_KEY_TASK_ID], list(had)))
    return [*spent, *((saved.config, NULL_TASK_ID, None) for saved in given)]


def _is_spent(conf: Mapping[str, Any], found: Sequence[Any]) -> bool:
    """Whether no resume value of this run can be on its way into the checkpoint any more."""
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    # What came by the id of its question is not kept, and with "exit" it is dropped before anything is saved.
    if conf.get(CONFIG_KEY_RESUME_MAP) or conf.get(CONFIG_KEY_DURABILITY) == "exit":
        return True
    if any(saved is not None and _given(saved) for saved in found):
        return True
    before = 0
    if found[0] is not None:
        before = max((len(had) for had in _resumes(found[0], conf[CONFIG_KEY_TASK_ID])), default=0)
    return len(pad.resume) <= before


def _given(saved: Any) -> bool:
    return any(value is not None for value in _resumes(saved, NULL_TASK_ID))


def _resumes(saved: Any, task: str) -> list[Any]:
    writes = saved.pending_writes or ()
    return [value for of_task, channel, value in writes if (of_task, channel) == (task, RESUME)]


def questions_of(writes: Sequence[Any], task: str) -> list[Mapping[str, Any]]:
    """The questions of a task among the pending writes of its checkpoint."""
    return [
        question.value
        for of_task, channel, value in writes
        if of_task == task and channel == INTERRUPT
        for question in cast(Sequence[Any], value)
        if isinstance(question.value, Mapping)
    ]
