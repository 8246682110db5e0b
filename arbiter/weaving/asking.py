"""Asking a human by LangGraph's interrupt: each answer goes to the question that it was given to, once.

What is asked, answered and begun is noted beside the checkpoint, as pending writes under task ids that are made here. A
resume value, an interrupt of a body, an update of the state or what a node returns cannot be written there, so a note
is known by where it is. See "Approval" in docs/design/lifecycle.md.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any, TypeVar, cast

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

from arbiter.lifecycle import NO_ANSWER, TAKEN, Answered, Ask, Entry, Question, Saved, Spend
from arbiter.weaving.channel import conf_of

_NOTE = "__arbiter_note"
_OURS = "__arbiter_answer__"
"""Marks the place of an answer to a question of ours among a task's resume values. It says nothing of the answer."""
T = TypeVar("T")


# Input and output ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Get:
    place: RunnableConfig

    def now(self, saver: Any) -> Any:
        return saver.get_tuple(self.place)

    async def later(self, saver: Any) -> Any:
        return await saver.aget_tuple(self.place)


@dataclass(slots=True)
class _Put:
    place: RunnableConfig
    writes: Sequence[tuple[str, Any]]
    task: str

    def now(self, saver: Any) -> None:
        saver.put_writes(self.place, self.writes, self.task)

    async def later(self, saver: Any) -> None:
        await saver.aput_writes(self.place, self.writes, self.task)


@dataclass(slots=True)
class _Wait:
    seconds: float

    def now(self, saver: Any) -> None:
        time.sleep(self.seconds)

    async def later(self, saver: Any) -> None:
        await asyncio.sleep(self.seconds)


Access = Generator[_Get | _Put | _Wait, Any, T]
"""What is to be done with a checkpointer, in a sync run or an async one."""


def access(steps: Access[T], saver: Any) -> T:
    resume: Any = steps.send
    given: Any = None
    try:
        while True:
            op = resume(given)
            try:
                resume, given = steps.send, op.now(saver)
            except BaseException as exc:
                resume, given = steps.throw, exc
    except StopIteration as stop:
        return cast(T, stop.value)


async def aaccess(steps: Access[T], saver: Any) -> T:
    """As `access`, in an event loop."""
    resume: Any = steps.send
    given: Any = None
    try:
        while True:
            op = resume(given)
            try:
                resume, given = steps.send, await op.later(saver)
            except BaseException as exc:
                resume, given = steps.throw, exc
    except StopIteration as stop:
        return cast(T, stop.value)


_NO_CHECKPOINT = (
    "this graph has no checkpointer, which keeps the question until it is answered. "
    "Compile the graph with one, and a subgraph without checkpointer=False"
)


def saver_of(conf: Mapping[str, Any]) -> Any:
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


PAUSES = (0.001, 0.01, 0.1, 0.4, 1.0, 2.0)
"""Seconds between looks at what LangGraph saves in the background."""


# Notes --------------------------------------------------------------------------------------------


def _id(task: str, name: object) -> str:
    """Where a note is kept. Not under the task's own id: LangGraph would take the task for done."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{task} {name}"))


def _notes_at(saved: Any, task: str) -> dict[str, Mapping[str, Any]]:
    return {} if saved is None else notes_of(saved.pending_writes or (), task)


def notes_of(writes: Sequence[Any], task: str) -> dict[str, Mapping[str, Any]]:
    """The notes about a task, by name. What has the shape of one and is not in its place is none."""
    notes: dict[str, Mapping[str, Any]] = {}
    for of_task, channel, note in writes:
        if channel == _NOTE and of_task == _id(task, note.get("name")):
            notes[note["name"]] = note["about"]
    return notes


def _noted(place: RunnableConfig, task: str, name: str, about: Mapping[str, Any]) -> _Put:
    return _Put(place, [(_NOTE, {"name": name, "about": {**about, "task": task}})], _id(task, name))


_being_noted: dict[str, str] = {}
"""Of notes that only one may write, who writes it just now in this process."""


def _note_first(
    place: RunnableConfig, task: str, name: str, about: Mapping[str, Any]
) -> Access[Mapping[str, Any] | None]:
    """Write a note unless there is one; the one that stands, None if this execution's own does.

    Savers keep the first of two writes in one place, and so the two processes of which each finds none learn from a
    second look whose it is. One that keeps the last does so in one process alone, where they are asked to wait in line.
    """
    by = uuid.uuid4().hex
    where = _id(task, name)
    if _being_noted.setdefault(where, by) != by:
        return {"by": "another execution"}
    try:
        stands = _notes_at((yield _Get(place)), task).get(name)
        if stands is None:
            yield _noted(place, task, name, {**about, "by": by})
            stands = _notes_at((yield _Get(place)), task).get(name)
        if stands is None:
            raise RuntimeError(
                "the checkpointer of this graph has not kept what was noted beside its checkpoint"
            )
        return None if stands["by"] == by else stands
    finally:
        del _being_noted[where]


def keep_draft(conf: Mapping[str, Any], task: str, note: Mapping[str, Any]) -> Access[None]:
    """Keep a note about a draft."""
    place = places_of(conf)[0]
    # A note on a checkpoint that LangGraph saves in the background, and a crash keeps from being saved, would be lost.
    # With "exit" it is not saved before the end.
    for pause in () if conf.get(CONFIG_KEY_DURABILITY) == "exit" else PAUSES:
        if (yield _Get(place)) is not None:
            break
        yield _Wait(pause)
    yield _noted(place, task, f"attempt {note['seq']}", note)


def note_spent(conf: Mapping[str, Any], task: str, op: Spend) -> Access[None]:
    """Note what a task has used up."""
    about = {"spent": {policy: dict(amounts) for policy, amounts in op.spent.items()}}
    yield _noted(places_of(conf)[0], task, f"spent {op.id}", about)


def _spent_in(writes: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """What tasks have used up, by task and note."""
    spent: dict[str, dict[str, Any]] = {}
    tasks = {note["about"]["task"] for _, channel, note in writes if channel == _NOTE and "about" in note}
    for task in tasks:
        found = {name: n["spent"] for name, n in notes_of(writes, task).items() if name.startswith("spent ")}
        if found:
            spent[task] = {name.removeprefix("spent "): amounts for name, amounts in found.items()}
    return spent


def read_notes(writes: Sequence[Any], task: str) -> Saved:
    """What was noted about a node run, among the pending writes of its checkpoint."""
    notes = notes_of(writes, task)
    asked = [cast(Question, note) for name, note in notes.items() if name == f"ask {note.get('number')}"]
    entries = [cast(Entry, note) for name, note in notes.items() if name.startswith("entry ")]
    entry = max(entries, key=lambda entry: entry["entry"], default=None)
    return Saved(
        asked=sorted(asked, key=lambda question: question["number"]),
        shown=[
            shown.value
            for shown in _interrupts([write for write in writes if write[0] == task])
            if any(_shows(shown, question) for question in asked)
        ],
        entry=entry,
        paused=entry is not None and f"paused {entry['entry']}" in notes,
        spent=_spent_in(writes),
        notes=[note for name, note in notes.items() if name.startswith("attempt ")],
    )


def _is_of(shown: Mapping[str, Any], question: Question) -> bool:
    """Whether an interrupt is how that question was put."""
    found = (shown.get("question"), shown.get("type"), shown.get("digest"), shown.get("asked_at"))
    return found == (question["number"], question["type"], question["digest"], question["asked_at"])


# Questions ----------------------------------------------------------------------------------------


def ask_human(op: Ask, config: RunnableConfig | None, *, inside: bool = False) -> Any:
    """Interrupt, or the answer that was given to this very question. `NO_ANSWER` if one was given to another, `TAKEN`
    if another execution of the graph uses it. `inside` a body, questions have their places among those that the body
    itself asks.

    LangGraph hands a resume value to whatever asks first. Between question and answer the state may have
    been changed (`update_state`, `Command(resume=..., update=...)`): then nobody was shown this input. And it would
    hand out the value again, to a question that is asked later: so what was given before this one is spent when it
    pauses.
    """
    if CONFIG_KEY_SCRATCHPAD not in (config or {}).get(CONF, {}):
        return _interrupt(op, config, _question(op, "", 0))  # there is nobody to ask, and it says so
    return access(_ask(op, cast(Any, config), inside), saver_of(conf_of(config)))


async def aask_human(op: Ask, config: RunnableConfig | None, *, inside: bool = False) -> Any:
    """As `ask_human`, in an event loop."""
    if CONFIG_KEY_SCRATCHPAD not in (config or {}).get(CONF, {}):
        return _interrupt(op, config, _question(op, "", 0))
    return await aaccess(_ask(op, cast(Any, config), inside), saver_of(conf_of(config)))


def _ask(op: Ask, config: RunnableConfig, inside: bool) -> Access[Any]:
    conf = conf_of(config)
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    task = conf[CONFIG_KEY_TASK_ID]
    at = pad.interrupt_counter() if inside else None
    ask = str(op.number) if at is None else f"at {at - _ours_in(pad.resume)}"
    places, writes = yield from _checkpoint_of(conf)
    notes = notes_of(writes, task)
    question = cast(Question | None, notes.get(f"ask {ask}"))
    if question is None:
        for number in range(op.number if at is None else 0):
            _take(cast(Question, notes[f"ask {number}"]), conf, at, writes)
        question = _question(op, ask, len(pad.resume) if at is None else at)
        for place in places:
            yield _noted(place, task, f"ask {ask}", question)
    elif not op.is_like(question):
        if at is not None or f"ask {op.number + 1}" not in notes:
            _take(question, conf, at, writes)  # it was given to that one
        return NO_ANSWER
    elif (known := notes.get(f"answer {ask}")) is not None:
        _take(question, conf, at, writes)  # a crash may have left it
        return Answered(known["answer"], question["asked_at"], known["at"])
    elif any(_is_mark(value, ask) for value in pad.resume):
        return NO_ANSWER  # what was answered was put aside
    elif (given := _given_to(question, conf, at, writes)) is not None:
        answer = {"answer": given, "at": op.at}
        try:
            stands = yield from _note_first(places[0], task, f"answer {ask}", answer)
        except Exception as exc:
            problem = f"the answer could not be saved: {type(exc).__name__}: {exc}"
            return Answered({"type": "reject", "message": problem}, question["asked_at"], op.at)
        if stands is not None:
            return TAKEN
        _take(question, conf, at, writes)
        return Answered(given, question["asked_at"], op.at)
    if conf.get(CONFIG_KEY_DURABILITY) == "exit":
        pad.get_null_resume(True)  # or it is saved when this run ends, after all that can be spent
    try:
        return _interrupt(op, config, question)
    except GraphInterrupt:
        yield from spend(conf)
        raise


def _checkpoint_of(conf: Mapping[str, Any]) -> Access[tuple[list[RunnableConfig], Sequence[Any]]]:
    """Where the checkpoint of this task is, or may come to be, and its pending writes."""
    places = places_of(conf)
    given = (
        bool(conf.get(CONFIG_KEY_RESUME_MAP))
        or conf[CONFIG_KEY_SCRATCHPAD].get_null_resume(False) is not None
    )
    # With "exit" it is not saved before the end, else perhaps in the background.
    in_time = conf.get(CONFIG_KEY_DURABILITY) == "exit" or not given
    for pause in (0.0,) if in_time else (0.0, *PAUSES):
        yield _Wait(pause)
        for place in places:
            if (saved := (yield _Get(place))) is not None:
                return [place], saved.pending_writes or ()
    if not in_time:
        raise RuntimeError(_NO_CHECKPOINT)
    return places, ()


def _question(op: Ask, ask: str, after: int) -> Question:
    return {
        "task": "",
        "ask": ask,
        "number": op.number,
        "type": op.payload["type"],
        "digest": op.key,
        "policies": op.policies,
        "asked_at": op.payload["asked_at"],
        "after": after,
    }


def _interrupt(op: Ask, config: RunnableConfig | None, question: Question) -> Any:
    """Pause the graph with the question. Resume values stay with those whom they were given to."""
    payload = {
        **op.payload,
        "question": op.number,
        "after": question["after"],
        "asked_at": question["asked_at"],
    }
    if "expires_at" in payload:  # it is as old as it was when it was asked first
        payload["expires_at"] += question["asked_at"] - op.payload["asked_at"]
    if config is not None and (pad := config.get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)) is not None:
        if pad.resume:
            conf_of(config)[CONFIG_KEY_SEND]([(RESUME, list(pad.resume))])
        silent = replace(pad, get_null_resume=_no_answer, interrupt_counter=count(len(pad.resume)).__next__)
        config = {**config, CONF: {**conf_of(config), CONFIG_KEY_SCRATCHPAD: silent}}
    token = var_child_runnable_config.set(config)
    try:
        return interrupt(payload)
    finally:
        var_child_runnable_config.reset(token)


def _no_answer(consume: bool = False) -> None:
    return None


def _given_to(question: Question, conf: Mapping[str, Any], at: int | None, writes: Sequence[Any]) -> Any:
    """The resume value that was given to a question, None if there is none. One that was on its way before the question
    was shown was given to another."""
    pad, after = conf[CONFIG_KEY_SCRATCHPAD], question["after"] if at is None else at
    if len(pad.resume) > after:
        by_id: Mapping[str, Any] = conf.get(CONFIG_KEY_RESUME_MAP) or {}
        ids = [shown.id for shown in _interrupts(writes) if _shows(shown, question)]
        # LangGraph also takes the id of a task's first question for that of a later one.
        return pad.resume[after] if not ids or any(id in by_id for id in ids) else None
    if any(_shows(shown, question) for shown in _interrupts(_loaded(pad))):
        return pad.get_null_resume(False)
    return None


def _take(question: Question, conf: dict[str, Any], at: int | None, writes: Sequence[Any]) -> None:
    """Put a mark in the place of a question's answer, if there was one or not: no other question has this place. Marks
    come before the answers to the body's own questions, or where the body asked."""
    pad, after = conf[CONFIG_KEY_SCRATCHPAD], question["after"] if at is None else at
    if not any(_is_mark(value, question["ask"]) for value in pad.resume):
        if len(pad.resume) > after:
            pad.resume.pop(after)
        elif _given_to(question, conf, at, writes) is not None:
            pad.get_null_resume(True)
        pad.resume.insert(_ours_in(pad.resume) if at is None else at, {_OURS: question["ask"]})
    conf[CONFIG_KEY_SEND]([(RESUME, list(pad.resume))])
    if at is None:
        skip_ours(conf)


def _interrupts(writes: Sequence[Any]) -> list[Any]:
    """The questions among pending writes."""
    return [
        each for _, channel, found in writes if channel == INTERRUPT for each in cast(Sequence[Any], found)
    ]


def _shows(shown: Any, question: Question) -> bool:
    return isinstance(shown.value, Mapping) and _is_of(cast(Any, shown.value), question)


def _loaded(pad: Any) -> Sequence[Any]:
    """The pending writes from among which LangGraph would hand out a resume value, as they were when this execution of
    the graph began: the value answers what was shown then. Only the function that hands it out knows them."""
    while pad is not None:
        hands_out: Any = pad.get_null_resume
        names: Sequence[str] = hands_out.__code__.co_freevars if hands_out.__closure__ else ()
        known = {
            name: cell.cell_contents for name, cell in zip(names, hands_out.__closure__ or (), strict=True)
        }
        if known.get("null_resume_write") is not None:
            return cast(Sequence[Any], known["pending_writes"])
        pad = known.get("parent_scratchpad")
    return ()


def _is_mark(value: Any, ask: str | None = None) -> bool:
    """Whether a resume value is the mark of a question that came before the body. Of a forged one the body is not
    told, and asks again."""
    if not isinstance(value, dict) or _OURS not in value:
        return False
    mark: Any = cast(Any, value)[_OURS]
    return isinstance(mark, str) and (mark == ask if ask is not None else not mark.startswith("at "))


def _ours_in(resume: Sequence[Any]) -> int:
    """How many of the resume values are no answers to the body's own questions. They come first."""
    return sum(1 for _ in takewhile(_is_mark, resume))


def skip_ours(conf: dict[str, Any], more: int = 0) -> None:
    """Let the body's first question find the first answer that was given to the body, after so many `more`."""
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    if first := _ours_in(pad.resume) + more:
        conf[CONFIG_KEY_SCRATCHPAD] = replace(pad, interrupt_counter=count(first).__next__)


def body_answers(config: RunnableConfig | None) -> int:
    """How many answers the body of this task has had."""
    pad = (config or {}).get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return 0 if pad is None else len(pad.resume) - _ours_in(pad.resume)


# Bodies that humans have approved -----------------------------------------------------------------


bodies: set[str] = set()
"""The tasks of this process whose bodies run on approvals."""


def begin_body(conf: Mapping[str, Any], entry: Mapping[str, Any]) -> Access[bool]:
    """Note that a body begins to run on approvals; whether no other execution has."""
    task = conf[CONFIG_KEY_TASK_ID]
    stands = yield from _note_first(places_of(conf)[0], task, f"entry {entry['entry']}", entry)
    if stands is not None:
        return False
    bodies.add(task)
    return True


def pause_body(conf: Mapping[str, Any], entry: Mapping[str, Any]) -> Access[None]:
    """Note that it has paused, and goes on with its approvals when it is resumed."""
    task = conf[CONFIG_KEY_TASK_ID]
    yield _noted(places_of(conf)[0], task, f"paused {entry['entry']}", {})


# What was given and is not to be given again ------------------------------------------------------


def spend(conf: Mapping[str, Any]) -> Access[None]:
    """Take out of the checkpoint the resume value that this run was given, now that a question has had it.

    LangGraph keeps it for as long as the superstep is unfinished, and gives it to whatever asks next.
    """
    for pause in PAUSES:
        found: list[Any] = []
        for level in _levels(conf):
            found.append((yield _Get(level)))
        for place, task, resume in _spent(conf, found):
            yield _Put(place, [(RESUME, resume)], task)
        if _is_spent(conf, found):
            return
        yield _Wait(pause)
    raise RuntimeError(_NOT_SPENT)


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
