"""Warnings about a set-up in which an evaluator or a provider does nothing, or not for everybody: each once, with
the remedy."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Hashable, Sequence
from pathlib import PurePath

from arbiter._values.once import Once

_log = logging.getLogger("arbiter.memory")

NO_CYCLE = (
    "no EvaluationCycle was added. Call "
    "arbiter_os.add_evaluation_cycle(EvaluationCycle(store=..., evaluator_model=...))"
)
OPENED = "with open_store(...) as store: EvaluationCycle(store=store, ...)"
NO_STORE = f"there is no store. Give the EvaluationCycle one, {OPENED}, or compile the graph with one"
NO_MODEL = "there is no model. Give the EvaluationCycle one, EvaluationCycle(evaluator_model=...)"
_KEY = "Check the key of the model"
_ADDRESS = "Check the name, the address and the key of the model, and the network"


class Told:
    """Logs each warning once for each name and cause."""

    def __init__(self) -> None:
        self._once = Once()

    def _warn(self, key: Hashable, text: str, *args: object) -> None:
        if self._once.is_new(key):
            _log.warning(text, *args)

    def missing(self, kind: str, names: Sequence[str], cause: str) -> None:
        """Warn that evaluators or providers, in one warning, have nothing to work with."""
        fresh = [name for name in names if self._once.is_new((name, cause))]
        if fresh:
            several = "s" if len(fresh) > 1 else ""
            listed = ", ".join(map(repr, fresh))
            _log.warning("%s%s %s cannot work: %s.", kind, several, listed, cause)

    def unreachable(self, name: str, model: str, cause: str) -> None:
        """Warn that a model gave no answer. `cause` is the error's class and status, never its text, which may
        hold a key or quote a message."""
        remedy = _KEY if "(status 401)" in cause or "(status 403)" in cause else _ADDRESS
        self._warn(
            (name, cause),
            "evaluator %r got no answer from its model %s: %s. %s. It is asked again in a few minutes; this "
            "warning is not repeated.",
            *(name, model, cause, remedy),
        )

    def failed(self, names: Sequence[str], problem: str, error: BaseException | None = None) -> None:
        """Warn that evaluators raised, or returned what they should not. The place of an error is named, and its text
        is not: it may quote what somebody said."""
        where = "" if error is None else _place_of(error)
        several = "s" if len(names) > 1 else ""
        self._warn(
            (tuple(names), problem, where),
            "evaluator%s %s failed: %s%s. This warning is not repeated.",
            *(several, ", ".join(map(repr, names)), problem, where),
        )

    def left_out(self, name: str, max_chars: int) -> None:
        self._warn(
            (name, "left out"),
            "provider %r added nothing to a call: the first line of its text did not fit into the block of notes, "
            "which has at most %d characters. Write shorter lines, or give the EvaluationCycle a larger "
            "max_context_chars. This warning is not repeated.",
            *(name, max_chars),
        )

    def late(self, name: str, seconds: float | None) -> None:
        self._warn(
            (name, "late"),
            "evaluator %r was stopped after %s s (EvaluationCycle(handler_timeout_s=...)). If it waits for a "
            "model: %s.",
            *(name, seconds, _ADDRESS[0].lower() + _ADDRESS[1:]),
        )

    def cut_off(self, name: str, model: str) -> None:
        self._warn(
            (name, "cut off"),
            "the answer of the model %s to evaluator %r is cut off: its complete items are used, and the rest is "
            "lost. Let the model write more tokens, or give the EvaluationCycle a shorter conversation_length; this "
            "warning is not repeated.",
            *(model, name),
        )

    def passed_over(self, name: str, problem: str) -> None:
        self._warn(
            (name, "passed over"),
            "evaluator %r got no usable answer from its model: %s. After several attempts, the messages are passed "
            "over, and nothing is learned from them. If the answers are cut off, let the model write more tokens; "
            "this warning is not repeated.",
            *(name, problem),
        )

    def too_many(self, name: str, most: int) -> None:
        self._warn(
            (name, "too many"),
            "evaluator %r found more than %d claims in one answer of its model: the first %d are learned. If they "
            "are real, give the EvaluationCycle a shorter conversation_length, so that each answer covers fewer "
            "messages; this warning is not repeated.",
            *(name, most, most),
        )

    def about_quiet(self, what: str, cause: str) -> None:
        """Warn that something failed about a quiet thread: a store that is closed too early has many of them."""
        self._warn(
            (what, cause),
            "%s failed about a quiet thread: %s. Other threads may have the same problem; this warning is not "
            "repeated.",
            *(what, cause),
        )

    def naive(self, now: object) -> None:
        self._warn(
            "naive",
            "no facts are learned or shown, because the clock of the EvaluationCycle returned %r, a time without a "
            "zone. Write clock=lambda: datetime.now(UTC).",
            now,
        )

    def strangers(self) -> None:
        self._warn(
            "strangers",
            "a human message has a name that is not known as the user's, and no speaker's id: what that person "
            "says is not learned. Give such messages additional_kwargs={'entity_id': ...} and register the "
            "entity with memory.register_entity(id, name); if it is the user's own name, register it for the user.",
        )

    def namesake(self, user: str, kept_as: str) -> None:
        self._warn(
            "namesake",
            "a user has the id of the agent, %r: what is known about that user is kept under %r. Give the "
            "EvaluationCycle an agent_id that no user has.",
            *(user, kept_as),
        )

    def anonymous(self, *, has_thread: bool) -> None:
        where = "thread has no" if has_thread else "run has neither a thread_id nor a"
        self._warn(
            "anonymous",
            "a %s user_id (in the context or in configurable): memories of its user are kept for that %s alone.",
            *(where, where.partition(" ")[0]),
        )


def _place_of(error: BaseException) -> str:
    """The file and line that raised it, in brackets."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return f" ({PurePath(frames[-1][0].f_code.co_filename).name}:{frames[-1][1]})" if frames else ""


def cause_of(error: BaseException) -> str:
    """The class of a model's error, and its HTTP status if it has one."""
    status = getattr(error, "status_code", None)
    return f"{type(error).__name__} (status {status})" if isinstance(status, int) else type(error).__name__
