"""The answers of contracts: a `Verdict` before a node, an `EvaluationResult` after it, a `Correction` of a
draft.

Plain values without knowledge of LangGraph, the history or the contracts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Literal, TypeGuard, cast, get_args

from arbiter._values.states import FrozenDict, freeze, is_whole

_NOTHING: Mapping[str, Any] = FrozenDict()
_DICT: Any = dict


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of a policy checker about one node run. True in a boolean context only if it allows.

    `payload` is extra JSON-able data of an `ask`, shown to the human with the reason. It cannot replace the
    keys that every question has (`policy`, `reason`, `node`, `input`, ...). Three of its keys are enforced:
    `approvers`, the names of those who may approve; `expires_after`, the seconds in which they may; and
    `retries`, the number of further runs of the body that one approval covers after the body has failed.
    """

    kind: Literal["allow", "deny", "ask"]
    reason: str = ""
    payload: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        if self.payload is not _NOTHING:  # otherwise readers of the history could change the next question
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
"""The beginning of the reason of a denial that a checker's failure caused."""


Outcome = Literal["scored", "not_applicable", "abstained", "timeout", "error", "skipped_budget"]
"""How a judgement ended. Only what is "scored" is a number; the other outcomes are counted beside it."""


@dataclass(frozen=True, slots=True, init=False)
class EvaluationResult:
    """The judgement of one node run. `score` is a finite number, by convention 0.0 to 1.0.

    `passed` is None if the evaluator gave a score without a judgement. With another `outcome` than "scored",
    such as "not_applicable", policies read the score as usual, and no mean or test counts it.
    """

    score: float
    passed: bool | None
    feedback: str = ""
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    outcome: Outcome = field(default="scored", kw_only=True)

    # Equivalent to the `__init__` of a dataclass, in half the time: every step makes some.
    def __init__(
        self,
        score: float,
        passed: bool | None,
        feedback: str = "",
        metadata: Mapping[str, Any] = _NOTHING,
        *,
        outcome: Outcome = "scored",
    ) -> None:
        _set_score(self, score)
        _set_passed(self, passed)
        _set_feedback(self, feedback)
        _set_metadata(self, metadata if type(metadata) is not _DICT else FrozenDict(metadata))
        _set_outcome(self, outcome)

    def __repr__(self) -> str:
        shown = f"score={self.score!r}, passed={self.passed!r}, feedback={self.feedback!r}"
        ended = "" if self.outcome == "scored" else f", outcome={self.outcome!r}"
        return f"EvaluationResult({shown}, metadata={self.metadata!r}{ended})"


_result: Any = EvaluationResult
_set_score, _set_passed = _result.score.__set__, _result.passed.__set__
_set_feedback, _set_metadata = _result.feedback.__set__, _result.metadata.__set__
_set_outcome = _result.outcome.__set__


Single = EvaluationResult | bool | float
Evaluated = Single | Mapping[str, Single]
"""The possible return values of an evaluator: a result, a bool, a score, or several of these by name."""


OTHER_TARGETS = "it is for other nodes"


@dataclass(frozen=True, slots=True)
class EvaluatorTrace:
    """The account of one evaluator of a group in a node run, at a `stage` such as "gate", "select" or "run".

    `status` is the outcome: for example `ran`, `failed`, `timeout`, or, if the evaluator did not run,
    `filtered`, `no_response`, `validate_false`, `not_selected`; `pending` while the group runs. `ms` is the
    time that it took.
    """

    name: str
    stage: str
    status: str
    ms: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Correction:
    """The decision of a correction gate about one draft of a node's output.

    `commit` accepts the draft, or `output` instead of it, or the draft of an earlier `attempt`; `retry` calls
    the node again with `feedback` as transient input; `give_up` fails the node.

    `keep` is JSON-able data about a draft that is sent back. The checkpointer keeps it until the node is
    done, and the gate gets it again if the run pauses or crashes before the next attempt. `details` appear in
    the history (`HistoryItem.gating`). `problem` is the reason why the gate could not judge; it appears in
    the item's `errors`.
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
        """Accept the draft; with one argument, commit that value instead of the draft."""
        if len(output) > 1:
            raise TypeError(f"Correction.commit() takes at most one output, got {len(output)}")
        value = output[0] if output else None
        return Correction("commit", output=value, replaces=bool(output), details=details)

    @staticmethod
    def commit_attempt(attempt: int, *, details: Mapping[str, Any] = _NOTHING) -> Correction:
        """Accept the draft of that attempt, with its streamed chunks. Attempts count from 1."""
        return Correction("commit", attempt=attempt, details=details)

    @staticmethod
    def retry(feedback: str, *, keep: Any = None) -> Correction:
        return Correction("retry", feedback, keep=keep)

    @staticmethod
    def give_up(reason: str, *, details: Mapping[str, Any] = _NOTHING) -> Correction:
        return Correction("give_up", reason, details=details)


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions of an approval.

    `approvers` are the names of those who may approve (None: anybody), `expires_after` the seconds in which
    they may (None: no limit), and `retries` the number of further runs of a failing body that one approval
    covers.
    """

    approvers: frozenset[str] | None
    expires_after: float | None
    retries: int = 0

    def expired(self, asked_at: float | None, answered_at: float) -> bool:
        """True if an answer came too late, or if the time of the question is unknown."""
        if self.expires_after is None:
            return False
        return asked_at is None or answered_at > asked_at + self.expires_after


class TermsError(ValueError):
    """A parameter of a question, which the message names, is wrong."""


def terms_of(question: Verdict) -> Terms:
    """Read `approvers`, `expires_after` and `retries` of a question's payload. Raises `TermsError`."""
    approvers: Any = question.payload.get("approvers")
    seconds: object = question.payload.get("expires_after")
    names: list[Any] | None = None
    if approvers is not None:
        given = approvers
        names = list(given) if isinstance(approvers, Iterable) and not isinstance(approvers, str) else []
        if not names or not all(isinstance(name, str) and name for name in names):
            raise TermsError(f"approvers: expected a list of names, got {short(given)}. Write ['alice'].")
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf
    ):
        raise TermsError(f"expires_after: expected seconds above 0, got {short(seconds)}. Write 3600.")
    retries: object = question.payload.get("retries", 0)
    if not is_whole(retries, least=0):
        raise TermsError(f"retries: expected a whole number from 0, got {short(retries)}. Write 2.")
    return Terms(None if names is None else frozenset(map(str, names)), seconds, retries)


def as_verdict(answer: object) -> Verdict:
    """Read the return value of `check_before`: a `Verdict`, a bool, or `(bool, reason)`.

    Any other value is a denial that quotes it: an invalid value never allows.
    """
    if isinstance(answer, Verdict):
        if answer.kind not in ("allow", "deny", "ask"):
            return Verdict.deny(f"the checker returned a Verdict of unknown kind {answer.kind!r}")
        reason: object = answer.reason
        return answer if type(reason) is str else Verdict(answer.kind, short(reason), answer.payload)
    match answer:
        case True | (True, str()):
            return ALLOW
        case False:
            return Verdict.deny("the checker returned False")
        case (False, str() as reason):
            return Verdict.deny(reason)
        case _:
            return Verdict.deny(
                f"the checker returned {short(answer)}; expected a Verdict, a bool or (bool, reason)"
            )


@dataclass(frozen=True, slots=True)
class Several:
    """The results of an evaluator that returned several, and the mistakes in the others. By key."""

    results: Mapping[str, EvaluationResult]
    faults: Mapping[str, str]


def as_evaluation(answer: object) -> EvaluationResult | Several | str:
    """Read the return value of `evaluate`. If it is invalid, returns a text with the reason."""
    if isinstance(answer, EvaluationResult):
        return _fault_in(answer) or answer
    if isinstance(answer, Mapping):
        return _as_several(cast("Mapping[object, object]", answer))
    return _as_single(answer)


def _as_single(answer: object) -> EvaluationResult | str:
    result: EvaluationResult
    if isinstance(answer, EvaluationResult):
        result = answer
    elif isinstance(answer, bool):
        result = EvaluationResult(float(answer), answer)
    elif is_numeric(answer):
        result = EvaluationResult(answer, None)
    else:
        return (
            f"returned {short(answer)}; expected an EvaluationResult, a bool, a number or a mapping of these"
        )
    return _fault_in(result) or result


def _as_several(answer: Mapping[object, object]) -> Several | str:
    results: dict[str, EvaluationResult] = {}
    faults: dict[str, str] = {}
    for key, value in answer.items():
        if not isinstance(key, str) or not key:
            return f"returned a result named {short(key)}; expected a non-empty text"
        read = _as_single(value)
        if isinstance(read, str):
            faults[key] = read
        else:
            results[key] = read
    return Several(results, faults)


def _fault_in(answer: EvaluationResult) -> str | None:
    """The reason why `answer` is not a valid evaluation result, or `None` if it is valid."""
    score: object = answer.score
    if not (isfinite(score) if type(score) is float else _is_finite(score)):
        return f"returned the score {short(score)}; expected a finite number"
    if type(answer.passed) is not bool and answer.passed is not None:
        return f"returned passed={short(answer.passed)}; expected True, False or None"
    feedback: object = answer.feedback
    if type(feedback) is not str:
        return f"returned feedback={short(feedback)}; expected a text"
    if type(answer.metadata) is not FrozenDict and not _is_mapping(answer.metadata):
        return f"returned metadata={short(answer.metadata)}; expected a mapping"
    outcome: object = answer.outcome
    if outcome != "scored" and outcome not in get_args(Outcome):
        return f"returned outcome={short(outcome)}; expected one of {', '.join(get_args(Outcome))}"
    return None


def evaluation_fault(answer: object) -> str | None:
    """The reason why `answer` is not a valid evaluation result, or `None` if it is valid."""
    if not isinstance(answer, EvaluationResult):
        return f"returned {short(answer)}; expected an EvaluationResult"
    return _fault_in(answer)


def unjudged(evaluator: str) -> str:
    """The error message if a rule needs a pass or a failure, and the evaluator gave only a score."""
    return (
        f"evaluator {evaluator!r} gave a score without saying whether it passed; "
        "return EvaluationResult(score, passed) or a bool"
    )


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def is_numeric(value: object) -> TypeGuard[float]:
    """True for a number of any library. Truth values are rejected, also those of numpy and torch."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        return False
    # The truth values of numpy and torch have `__float__` too, and say "passed", not "score 1".
    return "bool" not in type(value).__name__ and "bool" not in str(getattr(value, "dtype", ""))


def _is_finite(value: object) -> bool:
    return is_numeric(value) and isfinite(float(value))


def short(value: object) -> str:
    """`repr`, bounded and safe for an error message."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
