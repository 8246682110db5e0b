"""Structured answers of a model, read in any form and in a bounded number of calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeGuard, TypeVar

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from pydantic import AliasChoices, BaseModel, BeforeValidator, ValidationError, ValidationInfo, WrapValidator

from arbiter._values.contexts import ambient
from arbiter._values.kinds import is_list, is_mapping
from arbiter.models import (
    MAX_ANSWER,
    ChatModel,
    Reply,
    aask,
    complete_part,
    described,
    extract_json,
    json_values,
    whole,
)

__all__ = ["TOLERANT", "CallBudget", "StructuredOutcome", "extract_json", "structured_call"]

T = TypeVar("T", bound=BaseModel)

TAGS = ("nostream", "arbiter:evaluator")
"""Tags of each model call: its tokens stay out of the graph's stream, and a tracer can tell it from the agent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutcome(Generic[T]):
    """The outcome of a structured call.

    `value` is None if no answer fits; `error` then gives the reason, without the model's words. `status` is
    `ok` for the first reply, `repaired` for a later one, `salvaged` for a part of one, or `failed`. `calls`
    is the number of model calls. `dropped_items` counts the items that were left out of `value`, by
    `TOLERANT` or by salvaging.
    """

    value: T | None
    status: Literal["ok", "repaired", "salvaged", "failed"]
    calls: int
    dropped_items: int = 0
    error: str = ""
    raised: bool = False
    """True if there was no answer at all: the model raised or timed out."""
    is_cut_off: bool = False
    """True if `value` is the complete part of an answer that ended before its end, as at the limit of tokens."""
    failure: Exception | None = field(default=None, compare=False, repr=False)
    """The model's exception in that case."""


class CallBudget:
    """The number of model calls that a turn has left."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def left(self) -> int:
        return self.limit - self.used

    def take(self) -> bool:
        """Use up one call. Returns False if none is left."""
        if self.used >= self.limit:
            return False
        self.used += 1
        return True


async def structured_call(
    model: ChatModel,
    schema: type[T],
    messages: Sequence[BaseMessage],
    *,
    repair_attempts: int = 1,
    timeout_s: float | None = 20,
    item_field: str | None = None,
    budget: CallBudget | None = None,
) -> StructuredOutcome[T]:
    """Ask a model for a `schema`, within `timeout_s` seconds in total.

    The first question is that of `arbiter.models.aask`; a bare JSON array is read as the list `item_field`.
    If the answer does not fit, the model sees it with its mistakes, up to `repair_attempts` times. If none
    fits, the valid part of the last one is kept: wrong items of lists and wrong fields with a default are
    left out, and at least one given value must remain. Of an answer that is cut off, the complete items of its
    list are valid. A model that refuses structured output is asked for
    text, which costs one more call. Each call takes one of `budget`. Errors of the model are returned in the
    outcome, never raised.
    """
    if budget is not None and not budget.take():
        return StructuredOutcome(value=None, status="failed", calls=0, error="no model calls are left")
    calls = 1

    def more(replies: int) -> bool:
        nonlocal calls
        if replies > repair_attempts or not (budget is None or budget.take()):
            return False
        calls += 1
        return True

    reader = Reader(schema, item_field)
    config: RunnableConfig = {"tags": list(TAGS)}
    raised: Exception | None = None
    try:
        # Callbacks and streams of the graph's run must not see this call.
        with ambient(None):
            async with asyncio.timeout(timeout_s):
                answer = await aask(model, messages, schema, read=reader.read, more=more, config=config)
        value, error = answer.value, reader.trouble
    except Exception as failure:  # each model integration has errors of its own
        value, error, raised = None, type(failure).__name__, failure
    if value is not None:
        status: Literal["ok", "repaired"] = "ok" if reader.replies == 1 else "repaired"
        return StructuredOutcome(value=value, status=status, calls=calls, dropped_items=reader.dropped)
    value, dropped = reader.salvaged()
    if value is not None:
        return StructuredOutcome(
            value=value,
            status="salvaged",
            calls=calls,
            dropped_items=dropped,
            error=error,
            is_cut_off=reader.is_cut_off,
        )
    return StructuredOutcome(
        value=None, status="failed", calls=calls, error=error, raised=raised is not None, failure=raised
    )


_NO_JSON = "the answer has no JSON object"
_NO_FIT = "the answer does not fit the schema"
_CUT_OFF = "the answer is cut off"
_TOO_MANY = "the answer has several different values where one is expected"


class Reader(Generic[T]):
    """Finds a `schema` in replies, and keeps the candidates that did not fit, to salvage parts of them."""

    def __init__(self, schema: type[T], item_field: str | None) -> None:
        self.schema = schema
        self.item_field = item_field
        self.keys = _keys(schema)
        self.replies = 0
        self.dropped = 0
        self.trouble = ""
        self.is_cut_off = False
        self.candidates: list[tuple[list[Any], bool]] = []

    def read(self, reply: Reply) -> tuple[T | None, str]:
        """The value and "", or None and the problem as the model will see it."""
        self.replies += 1
        if len(reply.text) > MAX_ANSWER:
            self.trouble = f"the answer has more than {MAX_ANSWER} characters"
            return None, self.trouble
        problem = ""
        misfits: list[Any] = []
        for group in self._groups(reply):
            fits: dict[int, tuple[T, int]] = {}
            for candidate in filter(self._may_be_one, group):
                try:
                    fit = self._valid(candidate)
                except ValidationError as error:
                    problem = problem or described(error)
                    misfits.append(candidate)
                else:
                    if all(fit[0] != other for other, _ in fits.values()):
                        fits[len(fits)] = fit
            if len(fits) > 1:
                # Do not guess which one the model means: it may have quoted one.
                self.trouble = _TOO_MANY
                return None, self.trouble
            if fits:
                value, self.dropped = fits[0]
                return value, ""
        begun = [*filter(self._may_be_one, self._begun(reply))]
        self.candidates.append((misfits + begun, bool(begun)))
        self.trouble = _NO_FIT if misfits else _CUT_OFF if begun or _is_limited(reply) else _NO_JSON
        return None, problem or self.trouble

    def salvaged(self) -> tuple[T | None, int]:
        """The valid part of the last reply that has one, and the number of values left out."""
        for candidates, is_cut_off in reversed(self.candidates):
            for candidate in candidates:
                found = self._saved(candidate)
                if found is not None:
                    self.is_cut_off = is_cut_off
                    return found
        return None, 0

    def _groups(self, reply: Reply) -> Iterator[list[Any]]:
        """The possible answers in a reply; a later group counts only if nothing in the earlier ones fits."""
        is_limited = _is_limited(reply)
        if is_limited and reply.calls:
            return
        yield _joined([self._whole(whole(call)) for call in reply.calls])
        if reply.parsed is not None and not is_limited:
            yield [self._whole(reply.parsed)]
        for text in _texts(reply):
            for values in json_values(text):
                yield [*map(self._whole, values)]

    def _begun(self, reply: Reply) -> list[Any]:
        """The complete parts of answers that are cut off."""
        if not reply.calls:
            parts = map(complete_part, _texts(reply))
            return [self._whole(part, is_cut=True) for part in parts if part is not None]
        last = self._whole(_without_last(reply.calls[-1]), is_cut=True)
        return _joined([*map(self._whole, reply.calls[:-1]), last]) if _is_limited(reply) else []

    def _whole(self, candidate: Any, *, is_cut: bool = False) -> Any:
        """The candidate as models mean it: taken out of an object with one other key ("result") or of a call
        ("arguments"), or a bare list or item put where it belongs. A bare item that is cut off lacks fields."""
        given = self._named(candidate)
        if self._is_foreign(given):
            parts = [self._named(part) for part in given.values() if is_mapping(part)]
            if len(given) > 1:
                # An item may have objects of its own.
                is_item = self._is_item(given)
                parts = [part for part in parts if part and not (is_item or self._is_foreign(part))]
            given = parts[0] if len(parts) == 1 else given
        if is_list(given):
            if len(given) == 1 and (self.item_field is None or self._has_items(given[0])):
                return given[0]
            return given if self.item_field is None else {self.item_field: given}
        if not is_cut and self._is_foreign(given) and self._is_item(given):
            return {self.item_field: [given]}
        return self._without_spare(given) if is_mapping(given) else given

    def _named(self, candidate: Any) -> Any:
        """The candidate with the keys of the schema, which models also write as in JavaScript."""
        known = {key for keys in self.keys.values() for key in keys}
        return in_snake_case(candidate, known) if is_mapping(candidate) else candidate

    def _without_spare(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The object without fields that say nothing under one name and something under another."""
        told = [names for names in self.keys.values() if any(given.get(name) for name in names)]
        spare = {name for names in told for name in names if not given.get(name)}
        return {key: part for key, part in given.items() if key not in spare}

    def _may_be_one(self, candidate: Any) -> bool:
        """False for an object with no key of the schema: if the schema requires none, it would fit and be
        empty."""
        is_needy = any(field.is_required() for field in self.schema.model_fields.values())
        return is_needy or not self._is_foreign(candidate)

    def _is_foreign(self, candidate: Any) -> TypeGuard[Mapping[str, Any]]:
        """True for an object that has keys, and none of the schema's."""
        known = {key for keys in self.keys.values() for key in keys}
        return is_mapping(candidate) and bool(candidate) and known.isdisjoint(candidate)

    def _has_items(self, candidate: Any) -> bool:
        """True for an object that has the list of items itself."""
        names = self.keys.get(self.item_field or "", set())
        return is_mapping(candidate) and not names.isdisjoint(candidate)

    def _is_item(self, candidate: Any) -> bool:
        """True if `candidate` is an item of the list in the schema, and says something."""
        if self.item_field is None:
            return False
        try:
            value, dropped = self._valid({self.item_field: [candidate]})
        except ValidationError:
            return False
        (item,) = getattr(value, self.item_field) if not dropped else (None,)
        return isinstance(item, BaseModel) and bool(item.model_fields_set)

    def _valid(self, candidate: Any) -> tuple[T, int]:
        dropped: list[int] = []
        value = self.schema.model_validate(candidate, context={_DROPPED: dropped})
        return value, sum(dropped)

    def _saved(self, candidate: Any) -> tuple[T, int] | None:
        """`candidate` without its mistakes, and their number; None if they cannot be left out or nothing
        remains."""
        if not is_mapping(candidate):
            return None
        given: dict[str, Any] = {**candidate}
        without = 0
        for _ in range(len(self.keys) + 1):
            try:
                value, dropped = self._valid(given)
            except ValidationError as error:
                left_out = self._leave_out(given, error)
                if not left_out:
                    return None
                without += left_out
            else:
                told = (given[key] for keys in self.keys.values() for key in keys & {*given})
                return (
                    (value, without + dropped) if any(part not in ([], "", None) for part in told) else None
                )
        return None

    def _leave_out(self, given: dict[str, Any], error: ValidationError) -> int:
        """Remove from `given` the parts with errors. Returns their number; 0 if an error concerns the
        whole."""
        wrong: dict[str, set[int]] = {}
        for mistake in error.errors(include_url=False, include_input=False, include_context=False):
            place = mistake["loc"]
            field = next((name for name, keys in self.keys.items() if place and place[0] in keys), None)
            key = next((key for key in given if field is not None and key in self.keys[field]), None)
            if key is None:
                return 0
            numbers = wrong.setdefault(key, set())
            if is_list(given[key]) and len(place) > 1 and isinstance(place[1], int):
                numbers.add(place[1])
            else:
                numbers.add(-1)  # the error concerns the field, not one item
        for key, numbers in wrong.items():
            if -1 in numbers:
                del given[key]
            else:
                items: list[Any] = given[key]
                given[key] = [item for number, item in enumerate(items) if number not in numbers]
        return sum(map(len, wrong.values()))


def _keys(schema: type[BaseModel]) -> dict[str, set[str]]:
    """The keys that each field may have in an answer: its name and aliases."""
    found: dict[str, set[str]] = {}
    for name, declared in schema.model_fields.items():
        found[name] = {name}
        for alias in (declared.alias, declared.validation_alias):
            choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
            found[name] |= {choice for choice in choices if isinstance(choice, str)}
    return found


_NOTHING: tuple[Any, ...] = (None, "", [], {})


def _joined(calls: list[Any]) -> list[Any]:
    """Several calls as one with all of their lists, which a model may split; as they are if they disagree."""
    joined: dict[str, Any] = {}
    for call in calls:
        for key, part in call.items():
            before = joined.get(key)
            if before in _NOTHING:
                joined[key] = part
            elif is_list(before) and is_list(part) and before != part:
                joined[key] = [*before, *part]
            elif part != before and part not in _NOTHING:
                return calls
    return [joined] if calls else []


def _texts(reply: Reply) -> list[str]:
    message = reply.message
    calls = message.invalid_tool_calls if isinstance(message, AIMessage) else ()
    return [*(call["args"] or "" for call in calls), reply.text]


def _is_limited(reply: Reply) -> bool:
    """True if a model stopped at its limit of tokens. LangChain then closes the brackets of a call that it streams, and
    of JSON that it parses, so that a part of a claim looks like one."""
    said: Mapping[str, Any] = getattr(reply.message, "response_metadata", None) or {}
    details = said.get("incomplete_details")
    reasons = [said.get(key) for key in ("finish_reason", "stop_reason", "stopReason", "done_reason")]
    reasons.append(details.get("reason") if is_mapping(details) else None)
    return any(str(reason).rpartition(".")[2].lower() in _LIMITS for reason in reasons)


_LIMITS = ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded")


def _without_last(value: Any) -> Any:
    """A value without its last item or field, which may be a part of one."""
    if is_list(value):
        return value[:-1]
    *others, (key, last) = value.items() if is_mapping(value) and value else [("", None)]
    return dict([*others, (key, _without_last(last))] if is_list(last) or is_mapping(last) else others)


_DROPPED = "arbiter:dropped"


def _without_misfits(value: Any, validate: Any, info: ValidationInfo) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        if is_mapping(value):
            return validate([value])
        if not is_list(value):
            raise
        wrong = {mistake["loc"][0] for mistake in error.errors() if mistake["loc"]}
        left = validate([item for number, item in enumerate(value) if number not in wrong])
        context: Any = info.context
        if context is not None and _DROPPED in context:
            context[_DROPPED].append(len(wrong))
        return left


def in_snake_case(given: Mapping[str, Any], known: Collection[str] | None = None) -> dict[str, Any]:
    """The object with `source_message_ids` for "sourceMessageIds", and `claim` for "Claim"; with `known`, only where
    that makes a known key of another one."""
    found: dict[str, Any] = {}
    for key, part in given.items():
        snake = _HUMP.sub("_", str(key)).lower()
        is_meant = snake not in given and (known is None or (key not in known and snake in known))
        found[snake if is_meant else key] = part
    return found


_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def as_text(value: Any) -> Any:
    """A number as the text that it stands for: models write ids as numbers."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


TEXT = BeforeValidator(as_text)
LISTED = BeforeValidator(lambda value: [] if value is None else value)
"""For a list in a schema, for which a model may write null."""
TOLERANT = WrapValidator(_without_misfits)
"""For a list in a schema, `Annotated[list[Item], TOLERANT]`: wrong items are left out and counted in
`StructuredOutcome.dropped_items`. An object alone is a list of one; another value that is no list is an error."""
