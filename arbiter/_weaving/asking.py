"""Questions to humans by LangGraph's interrupt: each answer counts for its own question, and only once.

Notes about them are stored next to the checkpoint, see `notes.py` and "Approval" in docs/design/lifecycle.md.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count, takewhile
from threading import local
from typing import Any, cast
from weakref import ReferenceType, WeakSet, ref

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_READ,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    NS_SEP,
    NULL_TASK_ID,
    RESUME,
)
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt, interrupt

from arbiter._lifecycle.asking import is_refused
from arbiter._lifecycle.requests import NO_ANSWER, TAKEN, Answered, Ask, Entry, Question, Saved, Spend
from arbiter._lifecycle.saving import Access, Put, Wait
from arbiter._threads.forks import new_lock, renew_in_child
from arbiter._values.contexts import ambient
from arbiter._values.recent import Recent
from arbiter._values.versions import cells
from arbiter._weaving.channel import conf_of, runs_in
from arbiter._weaving.notes import Writes, being_noted, note, note_first, read, read_again, read_first
from arbiter.errors import describe
from arbiter.history._facts import RunFact
from arbiter.history._recorder import TaskAttempt

_OURS = "__arbiter_answer__"
"""Marks the place of an answer to one of Arbiter's questions among a task's resume values. It does not
contain the answer.
"""


_NO_TASK = "only a graph can pause. Call this in a node of a graph that has a checkpointer"
_NO_CHECKPOINT = (
    "this graph has no checkpointer, which keeps the question until it is answered. "
    "Compile the graph with one, and a subgraph without checkpointer=False"
)


def saver_of(config: RunnableConfig | None) -> Any:
    return saver_in((config or {}).get(CONF, {}))


def saver_in(conf: Mapping[str, Any]) -> Any:
    """The checkpointer of the execution to which a task belongs; None if there is none."""
    saver = conf.get(CONFIG_KEY_CHECKPOINTER)
    return saver if saver is not None and hasattr(saver, "get_tuple") else None


def is_resumed(conf: Mapping[str, Any]) -> bool:
    """True if LangGraph reports that this execution resumes an earlier one."""
    return bool(conf.get(CONFIG_KEY_RESUMING))


def attempt_of(conf: Mapping[str, Any]) -> TaskAttempt | None:
    """The task that calls a function, or None if the config has only the names of one, as for a rule in audit mode."""
    if CONFIG_KEY_READ not in conf:
        return None
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    # A resume gives the task another scratchpad, a retry does not.
    info = getattr(conf.get(CONFIG_KEY_RUNTIME), "execution_info", None)
    return conf[CONFIG_KEY_TASK_ID], (pad.call_counter, info and info.node_attempt)


def places_of(conf: Mapping[str, Any]) -> list[RunnableConfig]:
    """The possible places of this task's checkpoint: the graph's namespace, or for a @task one further out."""
    info = conf[CONFIG_KEY_RUNTIME].execution_info
    places: list[RunnableConfig] = []
    namespace: str = conf[CONFIG_KEY_CHECKPOINT_NS]
    while namespace:
        namespace = namespace.rpartition(NS_SEP)[0]
        places.append(place_in(conf, namespace, checkpoint_id=info.checkpoint_id))
    return places


def place_in(conf: Mapping[str, Any], namespace: str, **checkpoint: Any) -> RunnableConfig:
    """The place of a checkpoint in this task's thread; without a `checkpoint_id`, of the newest."""
    thread = str(conf.get(CONFIG_KEY_THREAD_ID))
    return {CONF: {CONFIG_KEY_THREAD_ID: thread, CONFIG_KEY_CHECKPOINT_NS: namespace, **checkpoint}}


PAUSES = (0.001, 0.01, 0.1, 0.4, 1.0, 2.0)
"""Seconds between attempts to read data that LangGraph saves in the background."""


def keep_draft(conf: Mapping[str, Any], task: str, draft: Mapping[str, Any]) -> Access[None]:
    """Save a note about a draft."""
    place = places_of(conf)[0]
    # A note would be lost if LangGraph saves its checkpoint in the background and a crash prevents that.
    # With "exit" the checkpoint is not saved before the end.
    for pause in () if conf.get(CONFIG_KEY_DURABILITY) == "exit" else PAUSES:
        if (yield from read(conf, place, "")) is not None:
            break
        yield Wait(pause)
    yield from note(place, task, f"attempt {draft['seq']}", draft)


def note_spent(conf: Mapping[str, Any], task: str, op: Spend) -> Access[None]:
    """Save a note about the amounts that a task has used up."""
    about = {"spent": {policy: dict(amounts) for policy, amounts in op.spent.items()}}
    yield from note(places_of(conf)[0], task, f"spent {op.id}", about)


def read_saved(conf: Mapping[str, Any], task: str) -> Access[Saved]:
    """The saved data of a node run and its unfinished superstep."""
    found = yield from read_first(conf, places_of(conf), task)
    if found is None:
        return Saved()
    writes = found[1]
    notes = writes.notes(task)
    entry, asked = _entry_in(notes), _asked_in(notes)
    paused = entry is not None and f"paused {entry['entry']}" in notes
    return Saved(
        facts=writes.facts,
        asked=asked,
        shown=[*_shown_in(writes, task, asked), *(_held_in(notes, entry) if paused else ())],
        entry=entry,
        paused=paused,
        spent=writes.spent,
        # If it is done, this is a replay.
        notes=()
        if task in writes.done
        else [note for name, note in notes.items() if name.startswith("attempt ")],
    )


def _asked_in(notes: Mapping[str, Any]) -> list[Question]:
    """The questions that were asked about a task, in order."""
    asked = [cast(Question, note) for name, note in notes.items() if name == f"ask {note.get('number')}"]
    return sorted(asked, key=lambda question: question["number"])


def _shown_in(writes: Writes, task: str, asked: Sequence[Question]) -> list[Any]:
    """The payloads of these that are open or were just answered."""
    return [
        shown.value for shown in writes.interrupts(task) if any(_shows(shown, question) for question in asked)
    ]


def _held_in(notes: Mapping[str, Any], entry: Entry | None) -> list[Any]:
    """Those about an approved output that an edge's question has replaced, the latest first."""
    if entry is None or not entry["output"]:
        return []
    names = (f"held {number}" for number in range(entry["entry"], -1, -1))
    return [shown for name in names if name in notes for shown in notes[name]["shown"]]


def _entry_in(notes: Mapping[str, Any]) -> Entry | None:
    entries = [cast(Entry, note) for name, note in notes.items() if name.startswith("entry ")]
    return max(entries, key=lambda entry: entry["entry"], default=None)


def _shows(shown: Any, question: Question) -> bool:
    """True if an interrupt shows that question."""
    if not isinstance(shown.value, Mapping):
        return False
    found: Mapping[str, Any] = cast(Any, shown.value)
    known = (found.get("question"), found.get("type"), found.get("digest"), found.get("asked_at"))
    return known == (question["number"], question["type"], question["digest"], question["asked_at"])


def _shown_by(shown: Any, notes: Mapping[str, Any]) -> list[Question]:
    """The questions among these notes that an interrupt shows."""
    asks = [cast(Question, note) for name, note in notes.items() if name.startswith("ask ")]
    return [question for question in asks if _shows(shown, question)]


def is_answered(writes: Sequence[Any], task: str, shown: Any) -> bool:
    """True if the pending writes of a checkpoint have an answer to the question that an interrupt shows."""
    notes = Writes(writes).notes(task)
    return any(f"answer {question['ask']}" in notes for question in _shown_by(shown, notes))


# Questions ----------------------------------------------------------------------------------------


def ask_human(op: Ask, config: RunnableConfig | None, *, inside: bool = False) -> Access[Any]:
    """Interrupt the graph, or return the answer to this very question.

    Returns `NO_ANSWER` if the answer belongs to another question, `TAKEN` if another execution of the graph
    uses it. With `inside`, the question is one of those that a body itself asks.

    LangGraph passes a resume value to the next question, whichever it is. Between question and answer the
    state may have been changed (`update_state`, `Command(resume=..., update=...)`), so that no human has seen
    this input. And LangGraph would pass the same value again to a later question. So values that were given
    before this question are marked as spent when it pauses.
    """
    if CONFIG_KEY_SCRATCHPAD not in (config or {}).get(CONF, {}):
        raise RuntimeError(_NO_TASK)
    if saver_of(config) is None:
        raise RuntimeError(_NO_CHECKPOINT)
    return (yield from _ask(op, cast(Any, config), inside))


def _ask(op: Ask, config: RunnableConfig, inside: bool) -> Access[Any]:
    conf = conf_of(config)
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    task = conf[CONFIG_KEY_TASK_ID]
    at = pad.interrupt_counter() if inside else None
    places, writes = yield from _checkpoint_of(conf)
    notes = writes.notes(task)
    ask, spot = str(op.number), at
    if at is not None:
        ask, earlier = _unused(notes, f"at {at - _ours_in(pad.resume)}")
        if earlier and (yield from is_used(conf, claims_of(config, earlier))):
            return TAKEN
        op.use = f"{ask}: {len(_begun(notes, ask))}"
        if earlier:  # the mark of the earlier answer keeps the place, and the new answer comes last
            op.payload = {**op.payload, "note": _USED}
            if conf.get(CONFIG_KEY_RESUME_MAP):
                before = earlier[-1].rpartition(": ")[0]
                _drop_repeated(cast(Question, notes[f"ask {before}"]), conf)
            if f"ask {ask}" not in notes:
                _keep_for_later(pad, task, notes)
            after = len(pad.resume) - _ours_in(pad.resume)
            spot = notes.get(f"ask {ask}", {"after": after})["after"] + _ours_in(pad.resume)
    question = cast(Question | None, notes.get(f"ask {ask}"))
    if question is None:
        for number in range(op.number if at is None else 0):
            _take(cast(Question, notes[f"ask {number}"]), conf, at, spot, writes)
        after = len(pad.resume) if spot is None else spot - _ours_in(pad.resume)
        question = _question(op, ask, after, resumed=is_resumed(conf))
        for place in places:
            yield from note(place, task, f"ask {ask}", question)
            # Two executions may ask at once. Both show the question whose note stands: an interrupt without a note
            # is not known as a question, and an output that travels with it would be lost.
            if (found := (yield from read(conf, place, task))) is not None:
                question = cast(Question, found.notes(task).get(f"ask {ask}", question))
        if not op.is_like(question):
            return NO_ANSWER
    elif not op.is_like(question):
        if at is not None or f"ask {op.number + 1}" not in notes:
            _take(question, conf, at, spot, writes)  # it was the answer to that question
        return NO_ANSWER
    elif (known := notes.get(f"answer {ask}")) is not None:
        later = _drop_repeated(question, conf) if at is None else None
        _take(question, conf, at, spot, writes)  # a crash may have left it
        ignored = later is not None and later != known["answer"]
        return Answered(known["answer"], question["asked_at"], known["at"], ignored)
    elif any(_is_mark(value, ask) for value in pad.resume):
        return NO_ANSWER  # the answer was set aside
    elif (given := _given_to(question, conf, spot, writes)) is not None:
        answer = {"answer": given, "at": op.at}
        try:
            stands = yield from note_first(conf, places[0], task, f"answer {ask}", answer)
        except Exception as exc:
            problem = f"the answer could not be saved: {describe(exc)}"
            return Answered({"type": "reject", "message": problem}, question["asked_at"], op.at)
        if stands is not None:
            return TAKEN
        _take(question, conf, at, spot, writes)
        return Answered(given, question["asked_at"], op.at)
    if conf.get(CONFIG_KEY_DURABILITY) == "exit":
        # Otherwise it is saved at the end of this run, when it can no longer be marked as spent.
        pad.get_null_resume(True)
    try:
        return _interrupt(op, config, question)
    except GraphInterrupt:
        yield from spend(conf)
        raise


_USED = "the earlier approval is used: the function has begun on it"


def _unused(notes: Mapping[str, Any], place: str) -> tuple[str, list[str]]:
    """The name of the question to ask at a place in a body, and the runs on the earlier approvals there, if these are
    used."""
    asks = chain((place,), (f"{place} again {number}" for number in count(1)))
    used = list(takewhile(lambda ask: _is_used(notes, ask), asks))
    ask = f"{place} again {len(used)}" if used else place
    return ask, [use for each in used for use in _begun(notes, each)]


def _keep_for_later(pad: Any, task: str, notes: Mapping[str, Any]) -> None:
    """Save the resume value as the answer to the question that was shown, which comes later in the body."""
    for shown in Writes(_loaded(pad)).interrupts(task):
        had = len(pad.resume) - _ours_in(pad.resume)
        ours = _shown_by(shown, notes)
        is_next = all(had == q["after"] and f"answer {q['ask']}" not in notes for q in ours)
        if is_next and (value := pad.get_null_resume(True)) is not None:
            pad.resume.append(value)


def _is_used(notes: Mapping[str, Any], ask: str) -> bool:
    begun = _begun(notes, ask)
    ended = [use for use in begun if f"paused {use}" not in notes]
    return bool(ended) and len(ended) > notes[f"begun {ended[-1]}"]["retries"]


def _begun(notes: Mapping[str, Any], ask: str) -> list[str]:
    """The names of the runs that a function has begun on the approval of a question."""
    uses = (f"{ask}: {number}" for number in count())
    return list(takewhile(lambda use: f"begun {use}" in notes, uses))


def _checkpoint_of(conf: Mapping[str, Any]) -> Access[tuple[list[RunnableConfig], Writes]]:
    """The places where this task's checkpoint is or will be, and its pending writes."""
    places = places_of(conf)
    given = (
        bool(conf.get(CONFIG_KEY_RESUME_MAP))
        or conf[CONFIG_KEY_SCRATCHPAD].get_null_resume(False) is not None
    )
    # With "exit" it is not saved before the end; otherwise perhaps in the background.
    in_time = conf.get(CONFIG_KEY_DURABILITY) == "exit" or not given
    for pause in (0.0,) if in_time else (0.0, *PAUSES):
        yield Wait(pause)
        if (found := (yield from read_first(conf, places, conf[CONFIG_KEY_TASK_ID]))) is not None:
            return [found[0]], found[1]
    if not in_time:
        raise RuntimeError(_NO_CHECKPOINT)
    return places, Writes(())


def _question(op: Ask, ask: str, after: int, *, resumed: bool) -> Question:
    return {
        "task": "",
        "ask": ask,
        "number": op.number,
        "type": op.payload["type"],
        "digest": op.key,
        "policies": op.policies,
        "asked_at": op.payload["asked_at"],
        "after": after,
        "resumed": resumed,
    }


def _interrupt(op: Ask, config: RunnableConfig, question: Question) -> Any:
    """Pause the graph with the question. Resume values stay with their own questions."""
    payload = {
        **op.payload,
        "question": op.number,
        "after": question["after"],
        "asked_at": question["asked_at"],
    }
    if "expires_at" in payload:  # its time counts from the first time that it was asked
        payload["expires_at"] += question["asked_at"] - op.payload["asked_at"]
    conf = conf_of(config)
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    if pad.resume:
        conf[CONFIG_KEY_SEND]([(RESUME, list(pad.resume))])
    silent = replace(pad, get_null_resume=no_answer, interrupt_counter=count(len(pad.resume)).__next__)
    config = {**config, CONF: {**conf, CONFIG_KEY_SCRATCHPAD: silent}}
    with ambient(config):
        return interrupt(payload)


def no_answer(consume: bool = False) -> None:
    return None


def _given_to(question: Question, conf: Mapping[str, Any], spot: int | None, writes: Writes) -> Any:
    """The resume value for a question, or None if there is none.

    A value that was under way before the question was shown belongs to another question.
    """
    pad, after = conf[CONFIG_KEY_SCRATCHPAD], question["after"] if spot is None else spot
    if len(pad.resume) > after:
        by_id: Mapping[str, Any] = conf.get(CONFIG_KEY_RESUME_MAP) or {}
        shown_to_humans = writes.interrupts(conf[CONFIG_KEY_TASK_ID])
        ids = [shown.id for shown in shown_to_humans if _shows(shown, question)]
        # LangGraph also applies the id of a task's first question to a later one.
        return pad.resume[after] if not ids or any(id in by_id for id in ids) else None
    if any(_shows(shown, question) for shown in Writes(_loaded(pad)).interrupts()):
        return pad.get_null_resume(False)
    return None


def _take(question: Question, conf: dict[str, Any], at: int | None, spot: int | None, writes: Writes) -> None:
    """Put a mark in the place of a question's answer, whether there was one or not, so that no other question
    gets this place.

    Marks come before the answers to the body's own questions, or stand where the body asked.
    """
    pad, after = conf[CONFIG_KEY_SCRATCHPAD], question["after"] if spot is None else spot
    if not any(_is_mark(value, question["ask"]) for value in pad.resume):
        if len(pad.resume) > after:
            pad.resume.pop(after)
        elif _given_to(question, conf, spot, writes) is not None:
            pad.get_null_resume(True)
        if at is not None and _OURS in next(iter(pad.resume[at : at + 1]), ()):
            pad.resume.pop(at)  # the mark of a question there whose approval is used
        pad.resume.insert(_ours_in(pad.resume) if at is None else at, {_OURS: question["ask"]})
    conf[CONFIG_KEY_SEND]([(RESUME, list(pad.resume))])
    if at is None:
        skip_ours(conf)


def _drop_repeated(question: Question, conf: Mapping[str, Any]) -> Any:
    """Drop and return a resume value that was given to this question, which had its answer: a crash or a denial has
    left it on the screen."""
    pad, by_id = conf[CONFIG_KEY_SCRATCHPAD], conf.get(CONFIG_KEY_RESUME_MAP)
    for known in _resumed_in(pad):
        for shown in Writes(known.get("pending_writes", ())).interrupts():
            if not _shows(shown, question):
                continue
            if not by_id:
                return pad.get_null_resume(True)
            is_given = shown.id in by_id and pad.resume and not _is_any_mark(pad.resume[-1])
            return pad.resume.pop() if is_given else None
    return None


def _loaded(pad: Any) -> Sequence[Any]:
    """The pending writes from which LangGraph would take a resume value, as they were when this execution
    began.

    The value answers the questions that were shown then. Only the closure of LangGraph's function holds these
    writes.
    """
    for known in _resumed_in(pad):
        if known.get("null_resume_write") is not None:
            return cast(Sequence[Any], known["pending_writes"])
    return ()


def _resumed_in(pad: Any) -> Iterator[dict[str, Any]]:
    """The variables of LangGraph's function for resume values: those of a graph, then of the graphs around it."""
    while pad is not None:
        yield (known := cells(pad.get_null_resume))
        pad = known.get("parent_scratchpad")


def finished_siblings(conf: Mapping[str, Any]) -> list[RunFact]:
    """The facts of the superstep's tasks, and of the nodes inside them, that were done when the execution began."""
    runs = chain.from_iterable(
        (*fact.get("inner", {}).get("facts", ()), fact) for fact in runs_in(_pending(conf))
    )
    return [fact for fact in runs if "node" in fact]


def finished_tasks(conf: Mapping[str, Any]) -> set[str]:
    """The superstep's tasks that had run and were done when the execution began."""
    pending = _pending(conf)
    return {task for task, *_ in pending}.intersection(fact["id"] for fact in runs_in(pending))


def _pending(conf: Mapping[str, Any]) -> Sequence[Any]:
    """The writes that the superstep's tasks had made when the execution began."""
    return cast(Sequence[Any], cells(conf[CONFIG_KEY_SCRATCHPAD].get_null_resume).get("pending_writes", ()))


def _is_any_mark(value: Any) -> bool:
    """True if a resume value is the mark of one of Arbiter's questions."""
    return isinstance(value, dict) and _OURS in value


def _is_mark(value: Any, ask: str | None = None) -> bool:
    """True if a resume value is the mark of a question that came before the body.

    A forged mark does not count as an answer for the body, so the body asks again.
    """
    if not _is_any_mark(value):
        return False
    mark: Any = value[_OURS]
    return isinstance(mark, str) and (mark == ask if ask is not None else not mark.startswith("at "))


def _ours_in(resume: Sequence[Any]) -> int:
    """The number of leading resume values that are not answers to the body's own questions."""
    return sum(1 for _ in takewhile(_is_mark, resume))


def skip_ours(conf: dict[str, Any], more: int = 0) -> None:
    """Make the body's first question read the body's first answer, after `more` further ones."""
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    if first := _ours_in(pad.resume) + more:
        conf[CONFIG_KEY_SCRATCHPAD] = replace(pad, interrupt_counter=count(first).__next__)


def body_answers(config: RunnableConfig | None) -> int:
    """The number of answers that the body of this task has had."""
    pad = (config or {}).get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return 0 if pad is None else len(pad.resume) - _ours_in(pad.resume)


# Graphs in a body that saves nothing --------------------------------------------------------------


@contextmanager
def keeping_answers(conf: Mapping[str, Any]) -> Generator[Any]:
    """A scratchpad for a body whose graphs have no checkpointer: their questions count as the body's own.

    Such a graph begins anew when the run is resumed. It then asks its earlier questions again, in the same
    order, and gets the answers that the task has kept. The task keeps no answer that the schema of its
    question refused.
    """
    parent_scratchpad = conf[CONFIG_KEY_SCRATCHPAD]  # `_loaded` looks for this name
    answers, asks, last = parent_scratchpad.resume, local(), -1
    _place_by_id(conf)

    def number() -> int:
        nonlocal last
        at: int = parent_scratchpad.interrupt_counter()
        last = at
        asks.itself = at >= len(answers)  # then `interrupt` goes on with `answer`, in this thread
        return at

    def answer(consume: bool = False) -> Any:
        nonlocal last
        if not consume or getattr(asks, "itself", False):
            asks.itself = False
            return parent_scratchpad.get_null_resume(consume)
        last = at = parent_scratchpad.interrupt_counter()
        if at == len(answers) and (value := parent_scratchpad.get_null_resume(True)) is not None:
            answers.append(value)
        return answers[at] if at < len(answers) else None

    try:
        yield replace(parent_scratchpad, interrupt_counter=number, get_null_resume=answer)
    except BaseException as error:
        if last >= 0 and is_refused(error):
            del answers[last:]
        raise
    finally:
        if kept := answers[: last + 1]:
            conf[CONFIG_KEY_SEND]([(RESUME, kept)])


_placed: WeakSet[Any] = WeakSet()
"""The functions of the scratchpads, one for each execution of a task, whose answers by id have their place."""


def _place_by_id(conf: Mapping[str, Any]) -> None:
    """Add the answer that was given by the id of a question inside. LangGraph finds no place for it, since the
    id is that of a task which is gone. It does the same for the body's own questions.
    """
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    by_id: Mapping[str, Any] = conf.get(CONFIG_KEY_RESUME_MAP) or {}
    if not by_id or pad.get_null_resume in _placed:
        return
    _placed.add(pad.get_null_resume)
    shown = Writes(cells(pad.get_null_resume).get("pending_writes", ())).interrupts(conf[CONFIG_KEY_TASK_ID])
    place = conf[CONFIG_KEY_CHECKPOINT_NS]
    places = [place, *(f"{place}{NS_SEP}{number}" for number in range(len(pad.resume) + 1))]
    own = {Interrupt.from_ns(None, each).id for each in places}
    if len(shown) == 1 and shown[0].id in by_id and shown[0].id not in own:
        pad.resume.append(by_id[shown[0].id])


# Bodies that humans have approved -----------------------------------------------------------------


_running: dict[str, Any] = {}
"""What runs on approvals in this process: tasks, and calls of functions in them. Each with its execution."""
_done = Recent[str, ReferenceType[Any]](1000)
"""The last of these whose tasks have come to their end. LangGraph may not have saved the outputs yet."""
_lock = new_lock()


class _Child:
    """A body that runs in the parent process, or writes a note there, does not do so in a forked one."""

    def renew(self) -> None:
        _running.clear()
        being_noted.clear()


_child = _Child()
renew_in_child(_child)


def begin_body(conf: Mapping[str, Any], entry: Mapping[str, Any]) -> Access[bool]:
    """Note that a body begins to run on approvals. Returns False if another execution has already begun."""
    task = conf[CONFIG_KEY_TASK_ID]
    return (yield from _begin(conf, places_of(conf)[0], {task: f"entry {entry['entry']}"}, entry))


def _begin(
    conf: Mapping[str, Any], place: RunnableConfig, names: Mapping[str, str], about: Mapping[str, Any]
) -> Access[bool]:
    """Write notes with these names, by claim. Returns False if another execution has."""
    own, begun = _execution_of(conf), False
    with _lock:  # before the notes: an execution that reads one must find that it is in use
        if any(_running.get(claim, own) is not own for claim in names):
            return False
        _running.update(dict.fromkeys(names, own))
    try:
        for name in names.values():
            if (yield from note_first(conf, place, conf[CONFIG_KEY_TASK_ID], name, about)) is not None:
                return False
        begun = True
    finally:
        if not begun:
            let_go([*names])
    return True


def let_go(claims: Sequence[str], done: str | None = None) -> None:
    """Note that what ran on approvals has ended. `done` is its task, if this has an output: what ran in tasks inside
    it has been saved by their own graph, or is not to be saved."""
    for claim in claims:
        if done is not None and claim.startswith(done) and (execution := _running.get(claim)) is not None:
            with _lock:
                _done[claim] = ref(execution)
        _running.pop(claim, None)


def is_used(conf: Mapping[str, Any], claims: Sequence[str]) -> Access[bool]:
    """True if another execution in this process runs one of these on its approvals, or has run it to the end.

    LangGraph saves the output of its task in the background. Until then the checkpoint looks as after a crash.
    """
    own, task = _execution_of(conf), conf[CONFIG_KEY_TASK_ID]
    if any(_running.get(claim, own) is not own for claim in claims):
        return True
    done = {claim: by for claim in claims if (by := _done.get(claim)) is not None}
    # After a body of this execution, an edge has failed, and LangGraph tries again.
    is_own = any(by() is own for by in done.values())
    waits = done and not is_own and not _is_replayed(conf)
    for pause in PAUSES if waits else ():
        for place in places_of(conf):
            found = yield from read_again(conf, place)
            if found is not None and task in found.done:
                return True
        yield Wait(pause)
    with _lock:  # the output is not to come: nobody need wait for it again
        for claim in done:
            _done.pop(claim, None)
    return False


def _execution_of(conf: Mapping[str, Any]) -> Any:
    """An object that all attempts at a task in one execution share, also those of tasks inside it."""
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    while (around := cells(pad.get_null_resume).get("parent_scratchpad")) is not None:
        pad = around
    return pad.get_null_resume


def _is_replayed(conf: Mapping[str, Any]) -> bool:
    """True if the task was done when this execution began."""
    return any(
        conf[CONFIG_KEY_TASK_ID] in Writes(known.get("pending_writes", ())).done
        for known in _resumed_in(conf[CONFIG_KEY_SCRATCHPAD])
    )


def drop_refused(conf: Mapping[str, Any]) -> None:
    """Drop the answer, given by its id, that the schema of the body's own question refused.

    LangGraph would not save it, but Arbiter's marks are saved together with the answers after them.
    """
    pad, place = conf[CONFIG_KEY_SCRATCHPAD], conf[CONFIG_KEY_CHECKPOINT_NS]
    if before := len(pad.resume) - 1:
        place = f"{place}{NS_SEP}{before}"
    if pad.resume and Interrupt.from_ns(None, place).id in (conf.get(CONFIG_KEY_RESUME_MAP) or {}):
        pad.resume.pop()
        conf[CONFIG_KEY_SEND]([(RESUME, list(pad.resume))])


def pause_body(conf: Mapping[str, Any], entry: Mapping[str, Any]) -> Access[None]:
    """Note that the body has paused, and continues with its approvals when it is resumed."""
    task = conf[CONFIG_KEY_TASK_ID]
    yield from note(places_of(conf)[0], task, f"paused {entry['entry']}", {})
    yield from spend(conf)


def pause_edge(conf: Mapping[str, Any]) -> Access[None]:
    """Note that an edge has paused after a body that ran on approvals: the body runs again, and continues with them.
    An output that a human has approved is kept.
    """
    task = conf[CONFIG_KEY_TASK_ID]
    with _lock:
        done = [claim for claim in _done if claim.startswith(task)]
        for claim in done:
            del _done[claim]
    found = (yield from read_first(conf, places_of(conf), task)) if done else None
    if found is None:
        return
    place, writes = found
    notes = writes.notes(task)
    entry = _entry_in(notes)
    number = 0 if entry is None else entry["entry"]
    if entry is not None and entry["output"] and (shown := _shown_in(writes, task, _asked_in(notes))):
        yield from note(place, task, f"held {number}", {"shown": shown})
    for claim in done:
        use = claim.removeprefix(task).lstrip() or number
        yield from note(place, task, f"paused {use}", {})
    yield from spend(conf)


def begin_function(config: RunnableConfig, uses: Sequence[str], retries: int) -> Access[bool]:
    """Note that a function in a body begins to run on approvals. Returns False if another execution has begun."""
    conf = conf_of(config)
    places, _ = yield from _checkpoint_of(conf)
    names = {claim: f"begun {use}" for claim, use in zip(claims_of(config, uses), uses, strict=True)}
    return (yield from _begin(conf, places[0], names, {"retries": retries}))


def claims_of(config: RunnableConfig, uses: Iterable[str]) -> list[str]:
    """The names of the calls of a function on the approvals `uses`."""
    return [f"{conf_of(config)[CONFIG_KEY_TASK_ID]} {use}" for use in uses]


def pause_function(config: RunnableConfig, uses: Sequence[str]) -> Access[None]:
    """Note that the function has paused, and continues with its approvals when it is resumed."""
    conf = conf_of(config)
    places, _ = yield from _checkpoint_of(conf)
    for use in uses:
        yield from note(places[0], conf[CONFIG_KEY_TASK_ID], f"paused {use}", {})
    yield from spend(conf)


# Answers that must not be used again --------------------------------------------------------------


def spend(conf: Mapping[str, Any]) -> Access[None]:
    """Remove the resume value of this run from the checkpoint, after a question has used it.

    LangGraph keeps it while the superstep is unfinished, and would pass it to the next question.
    """
    task, levels, pad = conf[CONFIG_KEY_TASK_ID], _levels(conf), conf[CONFIG_KEY_SCRATCHPAD]
    if pad.get_null_resume(False) is None or (execution := _execution_of(conf)) in _spent:
        return  # there is none
    # A value given by the id of its question is not kept, and with "exit" it is dropped before anything is saved.
    is_kept = not conf.get(CONFIG_KEY_RESUME_MAP) and conf.get(CONFIG_KEY_DURABILITY) != "exit"
    for pause in PAUSES:
        found: list[Writes | None] = []
        for level in levels:
            found.append((yield from (read_again(conf, level) if is_kept else read(conf, level, task))))
        given = [level for level, writes in zip(levels, found, strict=True) if writes and _given(writes)]
        # First the answers of this task as its own, then an empty value instead of the resume value: a crash
        # between the two loses no answer.
        own, had = found[0], pad.resume
        if given and own and had:
            yield Put(levels[0], [(RESUME, list(had))], task)
        for place in given:
            yield Put(place, [(RESUME, None)], NULL_TASK_ID)
        before = max((len(earlier) for earlier in _resumes(own, task)), default=0) if own else 0
        if given:
            _spent.add(execution)
        if given or not is_kept or len(had) <= before:
            return  # no resume value of this run can still reach the checkpoint
        yield Wait(pause)
    raise RuntimeError(_NOT_SPENT)


_spent: WeakSet[Any] = WeakSet()
"""The executions, each of an outermost task, whose resume value is removed from the checkpoint."""

_NOT_SPENT = (
    "the answer to an earlier question is not in the checkpointer of this graph, so that it might be taken for the "
    "answer to this one too. Give a subgraph no checkpointer of its own"
)


def _levels(conf: Mapping[str, Any]) -> list[RunnableConfig]:
    """The checkpoints of this task's graph and of the graphs around it, from the inside out."""
    known: Mapping[str, str] = conf[CONFIG_KEY_CHECKPOINT_MAP]
    return [
        place_in(conf, namespace, checkpoint_id=known[namespace])
        for namespace in sorted(known, key=len, reverse=True)
    ]


def _given(writes: Writes) -> bool:
    return any(value is not None for value in _resumes(writes, NULL_TASK_ID))


def _resumes(writes: Writes, task: str) -> list[Any]:
    return [value for channel, value in writes.of.get(task, ()) if channel == RESUME]
