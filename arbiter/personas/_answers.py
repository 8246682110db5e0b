"""The schemas of a judge's answers, and the conversion of its numbers to scores."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from arbiter.models import WHOLE

HIGHEST = 9
"""The best score; the worst is 0."""
MAX_BATCH = 10
"""Most claims in one question to a judge."""

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def finite(value: Any) -> float:
    """A number, or a text of digits, as a finite number. Raises `ValueError` for anything else, including
    booleans and NaN."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r:.40}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    return value


def round_half_up(value: float) -> int:
    """The nearest whole number; halves go up (Python's `round(4.5)` is 4)."""
    return value if isinstance(value, int) else math.floor(value + 0.5)


def as_score(value: float) -> tuple[int, bool]:
    """A finite number as a score from 0 to 9, and True if it had to be clamped."""
    whole = round_half_up(value)
    score = min(max(whole, 0), HIGHEST)
    return score, score != whole


def _confidence(value: Any) -> float:
    try:
        return float(min(max(finite(value), 0), 1))
    except ValueError:
        return 0.5  # a confidence in words ("quite sure") must not cost the score


def _text(value: Any) -> str:
    """The reasoning as text. One in another form, such as a list of sentences, must not cost the score either."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def _present(value: Any) -> Any:
    return True if value is None else value


def _complete(given: object, missing: str, value: Any) -> Any:
    """The answer with that field: without evidence a judge may leave it out, because it then has no effect."""
    answer: Any = given
    if not isinstance(given, Mapping) or answer.get(missing) is not None:
        return answer
    has_none = str(answer.get("evidence_present")).strip().lower() in ("false", "no")
    return {**answer, missing: value} if has_none else answer


Number = Annotated[
    int | float,
    PlainValidator(finite),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": HIGHEST}),
]
Confidence = Annotated[
    float, PlainValidator(_confidence), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})
]
Reasoning = Annotated[str, BeforeValidator(_text)]
Present = Annotated[bool, BeforeValidator(_present)]


_NO_EVIDENCE = "False if the quoted text has nothing by which the claim could be judged."


class ScoreAnswer(BaseModel):
    """How true one claim is."""

    reasoning: Reasoning = Field("", description="What in the quoted text speaks for and against the claim.")
    evidence_present: Present = Field(True, description=_NO_EVIDENCE)
    score: Number = Field(description="0 (certainly false everywhere) to 9 (certainly true everywhere).")
    confidence: Confidence = Field(0.5, description="How sure you are of the score, 0 to 1.")

    @model_validator(mode="before")
    @classmethod
    def _without_evidence(cls, given: Any) -> Any:
        return _complete(given, "score", HIGHEST)


class BatchItem(ScoreAnswer):
    """How true one of the claims is."""

    id: str = Field(description="The id of the claim.")


class BatchAnswer(BaseModel):
    """How true each of the claims is."""

    judgements: list[BatchItem] = Field(description="One for each claim, with its id.")


class CheckAnswer(BaseModel):
    """Whether one claim is true."""

    reasoning: Reasoning = Field("", description="What in the quoted text speaks for and against the claim.")
    result: bool = Field(description="Whether the claim is true.")
    evidence_present: Present = Field(True, description=_NO_EVIDENCE)
    confidence: Confidence = Field(0.5, description="How sure you are, 0 to 1.")

    @model_validator(mode="before")
    @classmethod
    def _without_evidence(cls, given: Any) -> Any:
        return _complete(given, "result", False)


class IdeasAnswer(BaseModel):
    """The distinct ideas in a conversation."""

    reasoning: Reasoning = Field("", description="What was counted as one idea, and why.")
    ideas: list[str] = Field(description="Each distinct idea once, in a few words.")
    count: Annotated[int, Field(ge=0), WHOLE] | None = Field(None, description="How many there are.")
