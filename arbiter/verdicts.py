"""What the contracts answer: a `Verdict` before a node, an `EvaluationResult` after it, a `Correction` of a draft.

Plain values; nothing in here knows about LangGraph, the history or who asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Literal

from arbiter.states import FrozenDict, freeze, is_whole

_NOTHING: Mapping[str, Any] = FrozenDict()
_DICT: Any = dict


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy checker decided about one node run. True in a boolean context only if it allows.

    `payload` is extra JSON-able data of an `ask`, shown to the human with the reason. The keys that every
    question has (`policy`, `reason`, `node`, `input`, ...) stay as they are. Three keys of it are held to:
    `approvers`, the names of those who may approve, `expires_after`, the seconds in which they may, and `retries`, how
    many further runs of the body one approval covers after the body has failed.
    """

    kind: Literal["allow", "deny", "ask"]
    reason: str = ""
    payload: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        if (
            self.payload is not _NOTHING
        ):  # whoever sees the verdict in the history could change what is asked next
            object.__setattr__(self, "payload", freeze(self.payload))

    @staticmethod
    def allow() -> Verdict:
        return ALLOW

    @staticmethod
    def deny(reason: str) -> Verdict:
        return Verdict("deny", reason)

    @staticmethod
    def ask(reason: str, **payload: Any) -> Verdict:
        return Verdict("ask", reason, payload)

    def __bool__(self) -> bool:
        return self.kind == "allow"


ALLOW = Verdict("allow")
FAILED = "the checker failed: "
"""Begins the reason of a denial for which a checker's failure stands."""


@dataclass(frozen=True, slots=True, init=False)
class EvaluationResult:
    """How good one node run was. `score` is a finite number, by convention 0.0 to 1.0."""

    score: float
    passed: bool
    feedback: str = ""
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    # As a dataclass would have it, in half the time: there are some for every step.
    def __init__(
        self, score: float, passed: bool, feedback: str = "", metadata: Mapping[str, Any] = _NOTHING
    ) -> None:
        _set_score(self, score)
        _set_passed(self, passed)
        _set_feedback(self, feedback)
        _set_metadata(self, metadata if type(metadata) is not _DICT else FrozenDict(metadata))


_result: Any = EvaluationResult
_set_score, _set_passed = _result.score.__set__, _result.passed.__set__
_set_feedback, _set_metadata = _result.feedback.__set__, _result.metadata.__set__


OTHER_TARGETS = "it is for other nodes"


@dataclass(frozen=True, slots=True)
class EvaluatorTrace:
    """What a cycle did with one of its evaluators in a node run, at `stage` "gate", "select" or "run".

    `status` says how that ended, for example `ran`, `failed`, `timeout`, or, where it did not run, `filtered`,
    `no_response`, `validate_false`, `not_selected`; `pending` while the cycle runs. `ms` is how long it took.
    """

    name: str
    stage: str
    status: str
    ms: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Correction:
    """What a correction gate decided about one draft of a node's output.

    `commit` takes the draft, or `output` in its place, or the draft of an earlier `attempt`;
    `retry` calls the node again with `feedback` as transient input; `give_up` fails the node.

    `keep` is JSON-able data about a draft that is sent back, which the checkpointer keeps until the node is done:
    should the run pause or crash before the next attempt, the gate is handed it again. `details` are what the history
    shows of the decision (`HistoryItem.gating`). `problem`, what kept the gate from judging, is shown by its `errors`.
    """

    kind: Literal["commit", "retry", "give_up"]
    feedback: str = ""
    output: Any = None
    replaces: bool = False
    attempt: int | None = None
    keep: Any = None
    details: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    problem: str = ""

    @staticmethod
    def commit(*output: Any, details: Mapping[str, Any] = _NOTHING) -> Correction:
        """Take the draft; with one argument, take that value in the draft's place."""
        if len(output) > 1:
            raise TypeError(f"Correction.commit() takes at most one output, got {len(output)}")
        value = output[0] if output else None
        return Correction("commit", output=value, replaces=bool(output), details=details)

    @staticmethod
    def commit_attempt(attempt: int, *, details: Mapping[str, Any] = _NOTHING) -> Correction:
        """Take the draft of that attempt, with what it streamed. Attempts count from 1."""
        return Correction("commit", attempt=attempt, details=details)

    @staticmethod
    def retry(feedback: str, *, keep: Any = None) -> Correction:
        return Correction("retry", feedback, keep=keep)

    @staticmethod
    def give_up(reason: str, *, details: Mapping[str, Any] = _NOTHING) -> Correction:
        return Correction("give_up", reason, details=details)


@dataclass(frozen=True, slots=True)
class Terms:
    """Who may approve, and within how many seconds; None: anybody, for ever. And how many more runs of a body that
    fails one approval covers."""

    approvers: frozenset[str] | None
    expires_after: float | None
    retries: int = 0

    def expired(self, asked_at: float | None, answered_at: float) -> bool:
        """Whether an answer came too late; also if it is not known when the question was asked."""
        if self.expires_after is None:
            return False
        return asked_at is None or answered_at > asked_at + self.expires_after


class TermsError(ValueError):
    """`parameter` of a question is wrong, and `problem` says how."""

    def __init__(self, parameter: str, problem: str) -> None:
        self.parameter = parameter
        self.problem = problem
        super().__init__(f"{parameter}: {problem}")


def terms_of(question: Verdict) -> Terms:
    """Read `approvers`, `expires_after` and `retries` of a question's payload. Raises `TermsError`."""
    approvers: Any = question.payload.get("approvers")
    seconds: object = question.payload.get("expires_after")
    names: list[Any] | None = None
    if approvers is not None:
        given = approvers
        names = list(given) if isinstance(approvers, Iterable) and not isinstance(approvers, str) else []
        if not names or not all(isinstance(name, str) and name for name in names):
            raise TermsError("approvers", f"expected a list of names, got {_short(given)}. Write ['alice'].")
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf
    ):
        raise TermsError("expires_after", f"expected seconds above 0, got {_short(seconds)}. Write 3600.")
    retries: object = question.payload.get("retries", 0)
    if not is_whole(retries, least=0):
        raise TermsError("retries", f"expected a whole number from 0, got {_short(retries)}. Write 2.")
    return Terms(None if names is None else frozenset(map(str, names)), seconds, retries)


def as_verdict(answer: object) -> Verdict:
    """Read what `check_before` returned: a `Verdict`, a bool, or `(bool, reason)`.

    Anything else is a denial that says what was returned: nonsense never allows.
    """
    if isinstance(answer, Verdict):
        if answer.kind not in ("allow", "deny", "ask"):
            return Verdict.deny(f"the checker returned a Verdict of unknown kind {answer.kind!r}")
        reason: object = answer.reason
        return answer if type(reason) is str else Verdict(answer.kind, _short(reason), answer.payload)
    match answer:
        case True:
            return ALLOW
        case False:
            return Verdict.deny("the checker returned False")
        case (bool() as allowed, str() as reason):
            return ALLOW if allowed else Verdict.deny(reason)
        case _:
            return Verdict.deny(
                f"the checker returned {_short(answer)}; expected a Verdict, a bool or (bool, reason)"
            )


def evaluation_fault(answer: object) -> str | None:
    """Why `answer` is no valid evaluation result, or `None` if it is one."""
    if not isinstance(answer, EvaluationResult):
        return f"returned {_short(answer)}; expected an EvaluationResult"
    score: object = answer.score
    if not (isfinite(score) if type(score) is float else _is_finite(score)):
        return f"returned the score {_short(score)}; expected a finite number"
    if type(answer.passed) is not bool:
        return f"returned passed={_short(answer.passed)}; expected True or False"
    feedback: object = answer.feedback
    if type(feedback) is not str:
        return f"returned feedback={_short(feedback)}; expected a text"
    if type(answer.metadata) is not FrozenDict and not _is_mapping(answer.metadata):
        return f"returned metadata={_short(answer.metadata)}; expected a mapping"
    return None


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_finite(value: Any) -> bool:
    is_number = hasattr(value, "__float__") and not isinstance(value, bool | str | bytes)
    return is_number and isfinite(float(value))


def _short(value: object) -> str:
    """`repr`, bounded and safe for an error message."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
