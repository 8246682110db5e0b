"""Scores: one measured value each, or the reason why there is none.

The return value of a scorer says what it is:

    bool      an assertion: the value 1.0 or 0.0, and `passed`
    number    a score
    text      a label
    mapping   several of these by key; the key "tone" of the scorer "style" is the score "style.tone"
    Score     all of it; a list or tuple of these gives several
    None      nothing to judge: the outcome `not_applicable`

A score that breaks the rules (NaN, a value outside its scale, any other object) is the outcome `error`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from arbiter._values.kinds import is_list, is_mapping, is_tuple
from arbiter.errors import EvaluationError, describe, with_article
from arbiter.harness.canonical import canonical
from arbiter.verdicts import Outcome, is_numeric

Scale = tuple[float, float]
SHARE: Scale = (0.0, 1.0)
"""The scale of assertions, and of scores that name no other."""
NINE: Scale = (0.0, 9.0)
"""The scale of the dimensions of personas, and of labels that are scores."""
COUNT: Scale = (0.0, math.inf)
_OUTCOMES = frozenset(get_args(Outcome))
_PLAIN = frozenset({float, int, type(None)})
_MAX_REASON = 2_000


def plain_scale(scale: Scale) -> list[float | None]:
    """A scale in its JSON form: an open end is null."""
    return [end if math.isfinite(end) else None for end in scale]


def scale_from(data: Sequence[float | None]) -> Scale:
    low, high = data
    return -math.inf if low is None else low, math.inf if high is None else high


@dataclass(frozen=True, slots=True)
class Score:
    """One measured value, or the outcome that kept it from being measured.

    `value` is on `scale`, and None for a label or an outcome other than "scored". `node`, `step` and
    `item_id` name the node run that an evaluator judged; they are None if a whole run was judged. `votes` are
    the answers of a judge that was asked several times. `duration` is in seconds. `raw` is a number that the
    judge gave and that does not count, such as the 9 of a dimension without evidence. `used_for_control` says
    that a correction loop read it. For a persona's dimension, `sample_size` counts the judged messages or
    pairs, `elements` are their ids and scores, and `propositions` the scores of the claims by id.
    """

    name: str
    value: float | None = None
    passed: bool | None = None
    label: str | None = None
    outcome: Outcome = "scored"
    reason: str = ""
    scale: Scale = SHARE
    node: str | None = None
    step: int | None = None
    item_id: str | None = None
    votes: tuple[float, ...] = ()
    usage: Mapping[str, Any] | None = None
    calls: int = 0
    duration: float = 0.0
    version: str = ""
    model: str = ""
    used_for_control: bool = False
    raw: float | None = None
    sample_size: int = 0
    elements: tuple[tuple[str, float], ...] = ()
    propositions: Mapping[str, float] | None = None


def failed(name: str, error: BaseException | str, *, scale: Scale = SHARE) -> Score:
    """The score of a scorer that raised, timed out or returned something else."""
    outcome: Outcome = "timeout" if isinstance(error, TimeoutError) else "error"
    if isinstance(error, EvaluationError) and error.outcome in _OUTCOMES:
        outcome = error.outcome
    reason = error if isinstance(error, str) else describe(error)
    return Score(name, outcome=outcome, reason=reason[:_MAX_REASON], scale=scale)


def of_judge(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The judge's part in a result: its model, calls, tokens and votes, as far as the evaluator gives them."""
    votes: Any = metadata.get("votes")
    return {
        "model": str(metadata.get("model") or ""),
        "calls": int(metadata.get("calls") or metadata.get("attempts") or 0),
        "usage": metadata.get("usage"),
        "votes": tuple(map(float, votes)) if is_list(votes) else (),
    }


def scores_of(name: str, answer: object, *, scale: Scale = SHARE, duration: float = 0.0) -> tuple[Score, ...]:
    """The scores that the return value of the scorer `name` stands for, with the seconds that it took unless the
    scores have some of their own. Never raises."""
    if type(answer) is bool:  # most scorers are assertions, and a score costs as much as its journal line
        return (Score(name, 1.0 if answer else 0.0, answer, duration=duration),)
    found = _scores_of(name, answer, scale)
    if not duration:
        return found
    return tuple(score if score.duration else replace(score, duration=duration) for score in found)


def _scores_of(name: str, answer: object, scale: Scale) -> tuple[Score, ...]:
    if is_mapping(answer):
        if not answer:
            return (failed(name, "returned an empty mapping; return None if there is nothing to judge"),)
        return tuple(_several(name, answer, scale))
    if (is_list(answer) or is_tuple(answer)) and answer and all(isinstance(each, Score) for each in answer):
        return tuple(_single(_joined(name, str(each.name)), each, scale) for each in answer)
    return (_single(name, answer, scale),)


def _several(name: str, given: Mapping[Any, Any], scale: Scale) -> Iterator[Score]:
    for key, value in given.items():
        if not isinstance(key, str) or not key:
            yield failed(name, f"returned a score named {key!r:.80}; expected a text that is not empty")
        else:
            yield _single(f"{name}.{key}", value, scale)


def _joined(name: str, own: str) -> str:
    return name if own in ("", name) else f"{name}.{own.removeprefix(f'{name}.')}"


def _single(name: str, answer: object, scale: Scale) -> Score:
    try:
        return _read(name, answer, scale)
    except Exception as error:  # such as an array of several numbers, or an int that no float can hold
        kind = type(answer).__name__
        return failed(name, f"returned {kind}, which cannot be read: {describe(error)}", scale=scale)


def _read(name: str, answer: object, scale: Scale) -> Score:
    kind = type(answer)
    if kind is bool:
        return Score(name, 1.0 if answer else 0.0, cast(bool, answer))
    if kind is float or kind is int:
        return _checked(Score(name, cast(float, answer), scale=scale))
    if answer is None:
        return Score(name, outcome="not_applicable", scale=scale)
    if isinstance(answer, str):
        return Score(name, label=answer, scale=scale)
    if isinstance(answer, Score):
        fault = _unwritable(answer)
        if fault is not None:
            return failed(name, fault, scale=scale)
        low, high = answer.scale
        item = None if answer.item_id is None else str(answer.item_id)  # often a number, as a version is
        read = replace(
            answer, name=name, scale=(float(low), float(high)), item_id=item, version=str(answer.version)
        )
        return _checked(read)
    if "bool" in kind.__name__ and hasattr(answer, "item"):  # numpy's truth values
        return Score(name, float(bool(answer)), bool(answer))
    if is_numeric(answer):
        return _checked(Score(name, float(answer), scale=scale))
    return failed(
        name,
        f"returned {kind.__name__}; expected a bool, a number, a text, a mapping of these, a Score or None",
        scale=scale,
    )


def _checked(score: Score) -> Score:
    """The score with its value as a float and plain numbers, or the outcome `error` if it breaks a rule."""
    fault = _fault(score)
    if fault is not None:
        return failed(score.name, fault, scale=score.scale)
    numbers: tuple[Any, ...] = (score.value, score.raw, *score.votes)
    if type(numbers[0]) is not int and _PLAIN.issuperset(map(type, numbers)):
        return score
    value, raw, *votes = [number if type(number) in _PLAIN else float(number) for number in numbers]
    return replace(score, value=None if value is None else float(value), raw=raw, votes=tuple(votes))


def _fault(score: Score) -> str | None:
    outcome: Any = score.outcome
    value: Any = score.value
    passed: Any = score.passed
    if outcome not in _OUTCOMES:
        return f"has the outcome {outcome!r}; expected one of {', '.join(get_args(Outcome))}"
    if passed is not None and type(passed) is not bool:
        return f"has passed={passed!r:.80}; expected True, False or None"
    if outcome != "scored":
        return None if value is None else f"has the value {value!r} and the outcome {outcome!r}; expected one"
    if value is None:
        return (
            None
            if score.label is not None
            else "has neither a value nor a label; expected a name, then a value, as in Score('tone', 0.7)"
        )
    if isinstance(value, bool) or not is_numeric(value) or not math.isfinite(value):
        return f"has the value {value!r:.80}; expected a finite number"
    low, high = score.scale
    if not low < high:
        return f"has the scale {score.scale!r:.80}; expected two numbers, the lower one first"
    if not low <= value <= high:
        said = f"has the value {value:g}, which is outside of its scale {low:g} to {high:g}"
        return f"{said}; return a Score with its own scale" if score.scale == SHARE else said
    return None


_TEXTS = ("label", "reason", "node", "model")
_PLAIN_PARTS = ("usage", "calls", "step", "duration", "sample_size", "used_for_control")


def _unwritable(score: Score) -> str | None:
    """The parts of a score that a report cannot write."""
    for name in _TEXTS:
        text: Any = getattr(score, name)
        if text is not None and not isinstance(text, str):
            return f"has {with_article(name)} of type {type(text).__name__}; expected a text"
    for name in ("votes", "elements"):
        several: Any = getattr(score, name)
        if not (is_tuple(several) or is_list(several)):
            return f"has {name} of type {type(several).__name__}; expected a tuple"
    for number in (*score.votes, *([] if score.raw is None else [score.raw])):
        if not is_numeric(number) or not math.isfinite(number):
            return f"has {number!r:.80} in votes or raw; expected finite numbers"
    for name in (*_PLAIN_PARTS, "elements", "propositions"):
        try:
            if value := getattr(score, name):
                canonical(dict(value) if name in ("elements", "propositions") else value)
        except (TypeError, ValueError) as error:
            found = f"{name} that are" if name.endswith("s") else f"a {name} that is"
            return f"has {found} not JSON: {error}"
    return None
