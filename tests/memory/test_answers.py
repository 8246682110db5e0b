"""A model's answer is read in any form, in a bounded number of calls, and never made up."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from arbiter.memory.answers import (
    TOLERANT,
    CallBudget,
    StructuredOutcome,
    extract_json,
    structured_call,
)
from arbiter.models import MAX_ANSWER
from tests.scripted import RefusesTools, Scripted, ScriptedTools, tool_call
from tests.support import MODES, Hold, quick

QUESTION = [HumanMessage("What did they say?")]
KINDS = pytest.mark.parametrize("kind", [Scripted, ScriptedTools])


class Item(BaseModel):
    claim: str
    type: str = "fact"


class Items(BaseModel):
    items: list[Item]


class Parts(BaseModel):
    """Three parts that stand on their own."""

    thought: str = ""
    facts: list[Item] = []
    relations: Annotated[list[Item], Field(alias="relationships")] = []


def asked(model: Any, schema: Any = Items, **options: Any) -> StructuredOutcome[Any]:
    options = {"item_field": "items"} if schema is Items and not options else options
    return asyncio.run(structured_call(model, schema, QUESTION, **options))


class Renamed(BaseModel):
    """A list that has two names."""

    goals: Annotated[list[Item], Field(validation_alias=AliasChoices("goals", "updates"))]


@pytest.mark.parametrize("nothing", [None, []], ids=str)
@pytest.mark.parametrize("names", [("goals", "updates"), ("updates", "goals")], ids=str)
def test_a_list_is_read_under_another_name_beside_an_empty_one(names: tuple[str, str], nothing: Any) -> None:
    answer = json.dumps({names[0]: nothing, names[1]: [{"claim": "A"}]})
    outcome = asked(Scripted(answers=[answer]), Renamed, item_field="goals")
    assert outcome.value == Renamed.model_validate({"goals": [{"claim": "A"}]})


# Finding JSON in a text

WRITTEN: dict[str, tuple[str, Any]] = {
    "nothing in it": ("[]", []),
    "bare": ('["A", "C"]', ["A", "C"]),
    "single quotes": ("['A', 'B']", ["A", "B"]),
    "a comma too many": ('["A",]', ["A"]),
    "commas too many, inside": ('{"a": [1, 2,\n ],\n}', {"a": [1, 2]}),
    "prose around": ('Sure! ["A", "B"] hope that helps', ["A", "B"]),
    "fenced on one line": (
        """```json [{"claim":"Bob's dog isn't old"}] ```""",
        [{"claim": "Bob's dog isn't old"}],
    ),
    "fenced": ('Here:\n```\n{"a": 1}\n```\nBye.', {"a": 1}),
    "fenced after another": ('I saw [1]. ```json\n["A"]\n``` or {"b": 2}', ["A"]),
    "a fence that is not closed": ('```json\n["A"]\n', ["A"]),
    "a fence in a string": ('```json\n["use ```x```"]\n```', ["use ```x```"]),
    "thoughts first": ('<think>maybe ["B"]?</think>["A"]', ["A"]),
    "thoughts between": ('So <think>["B"]</think> then <THINK>["C"]</THINK> ["A"]', ["A"]),
    "thoughts that began in the prompt": ('```["B"]``` is it.</think>\n["A"]', ["A"]),
    "thoughts in a string": ('["<think>x</think>"]', ["<think>x</think>"]),
    "brackets of prose": ('[sic] {{name}} [A, B] {this}: ["A"]', ["A"]),
    "brackets in strings": ('["]", "}", "\\"]"]', ["]", "}", '"]']),
    "apostrophes in both kinds of strings": ("""["it's", 'it\\'s "so"']""", ["it's", 'it\'s "so"']),
    "words of Python": ("{'a': True, 'b': None, 'c': [False]}", {"a": True, "b": None, "c": [False]}),
    "words of both": ("{'a': true, 'b': None}", {"a": True, "b": None}),
    "words in strings": ("""['True', "None, ]", ',]']""", ["True", "None, ]", ",]"]),
    "a line end in a string": ('["one\ntwo"]', ["one\ntwo"]),
    "escapes": (r"""['\x41\n', "\u00fc\\", '\U0001f642']""", ["A\n", "ü\\", "\U0001f642"]),
    "nested": ('{"a": {"b": [{"c": []}]}}', {"a": {"b": [{"c": []}]}}),
    "the first of two": ("[1] [2]", [1]),
    "after a broken one": ('{"a": oops} ["A"]', ["A"]),
}


@pytest.mark.parametrize(("text", "value"), WRITTEN.values(), ids=WRITTEN.keys())
def test_json_is_found(text: str, value: Any) -> None:
    assert extract_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "dunno",
            "null",
            '"A"',
            "7",
            "it's fine",
            "[A, B]",
            "{1, 2}",
            "['A'",
            '["A", "B"',
            '{"a": [1, 2]',
        ),
        *("[NaN]", '{"a": NaN}', '{"a": -Infinity}', "[1e999]", '{"a": 1, "a": 2}', '["A"}', "['a', [)]"),
        *(
            '<think>["A"]</think>',
            '<think>["A"]',
            '{"why": "he said {"a": 1} to me"}',
            "[" + "9" * 5_000 + "]",
        ),
        *('["\\ud8"]', "['\\U99999999']", "['\\Uffffffff']", "[" * 90 + "1" + "]" * 90),
    ],
)
def test_broken_json_is_not_guessed(text: str) -> None:
    """Also: a value inside a broken or unfinished one is not the answer."""
    with pytest.raises(ValueError, match="no JSON"):
        extract_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4),
    max_leaves=12,
)
PROSE = st.text(st.characters(exclude_characters="[]{}`<", exclude_categories=["Cs"]))


@pytest.mark.lengthy
@given(
    JSON.filter(lambda value: isinstance(value, list | dict)),
    PROSE,
    PROSE,
    st.sampled_from(["{}", "```json\n{}\n```", "```{}```", "<think>[1] ```</think>{}"]),
    st.sampled_from([json.dumps, repr, partial(json.dumps, ensure_ascii=False, indent=1)]),
)
def test_values_are_found_in_any_surrounding_text(
    value: Any, before: str, after: str, around: str, written: Any
) -> None:
    """As JSON and as Python writes it, apostrophes and all."""
    assert extract_json(before + around.replace("{}", written(value)) + after) == value


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "[",
            "{",
            '["',
            "['",
            '[1\\"]',
            '["]',
            '[["]',
            '[1"\\"]',
            '{"a":',
            '{"a":[',
            "[ ",
            "[1,",
            "[1 ]}",
            "{}",
        ),
        *(
            "```",
            "<think>",
            "</think>",
            "[]",
            "[[]",
            "\\",
            '"',
            "'",
            "['\"",
            ", ",
            "[,",
            '[" ',
            '{"}',
            "[-'\"{",
        ),
        *('["\\', "[1 '", "[\"'\\", "{'a':[\"]\",", "```[", '["a",', "\\[", "[\t"),
    ],
)
def test_hostile_text_does_not_take_long(unit: str) -> None:
    """Twice the text takes about twice the time, and no text is nested too deep to be read."""
    text = unit * (MAX_ANSWER // len(unit))
    with quick(2), suppress(ValueError):
        extract_json(text)


@pytest.mark.lengthy
@pytest.mark.parametrize("text", ["{}", "[]", "[3]", '{"items":3}', '{"thought":1}'])
def test_hostile_answer_does_not_take_long(text: str) -> None:
    text = text * (MAX_ANSWER // len(text)) if text != "[3]" else f"[{'3,' * 49_000}3]"
    for schema in (Items, Parts, Tolerant):
        with quick(2):
            asked(Scripted(answers=[text]), schema, item_field="items" if schema is Items else None)


# Answers


READABLE: dict[str, Any] = {
    "an object": '{"items": [{"claim": "Bob\'s dog isn\'t old"}]}',
    "a bare array": '[{"claim": "Bob\'s dog isn\'t old"}]',
    "fenced": '```json [{"claim": "Bob\'s dog isn\'t old"}] ```',
    "a Python literal": """Well: {'items': [{'claim': "Bob's dog isn't old",}]}""",
    "content blocks": [
        {"type": "reasoning", "reasoning": '[{"claim": "no"}]'},
        {"type": "text", "text": '[{"claim": "Bob\'s dog isn\'t old"}]'},
    ],
    "content as a list of texts": ['[{"claim": "Bob\'s dog', " isn't old\"}]"],
    "twice the same": '[{"claim": "Bob\'s dog isn\'t old"}] and [{"claim": "Bob\'s dog isn\'t old"}]',
    "beside what does not fit": 'As said in [1]: [{"claim": "Bob\'s dog isn\'t old"}]',
    "a tool call": tool_call("Items", {"items": [{"claim": "Bob's dog isn't old"}]}),
    "a tool call that is no JSON": AIMessage(
        "",
        invalid_tool_calls=[
            {
                "name": "Items",
                "args": """{"items": [{'claim': "Bob's dog isn't old"},]}""",
                "id": "1",
                "error": "no JSON",
                "type": "invalid_tool_call",
            }
        ],
    ),
}


@KINDS
@pytest.mark.parametrize("answer", READABLE.values(), ids=READABLE.keys())
def test_answer_is_read_with_one_call(answer: Any, kind: type[Scripted]) -> None:
    model = kind(answers=[answer])
    outcome = asked(model)
    assert outcome == StructuredOutcome(
        value=Items(items=[Item(claim="Bob's dog isn't old")]), status="ok", calls=1
    )
    assert model.calls == 1


@KINDS
def test_answer_that_does_not_fit_is_repaired_once(kind: type[Scripted]) -> None:
    """The model is shown what was wrong, and what it said."""
    model = kind(answers=['[{"type": "dunno-1"}]', '[{"claim": "a"}]'])
    outcome = asked(model)
    assert outcome == StructuredOutcome(value=Items(items=[Item(claim="a")]), status="repaired", calls=2)
    assert "items.0.claim: Field required" in model.prompt(1)
    assert '> [{"type": "dunno-1"}]' in model.prompt(1)


@KINDS
@pytest.mark.parametrize("repairs", [0, 1, 3])
def test_garbage_for_ever_ends(repairs: int, kind: type[Scripted]) -> None:
    model = kind(answers=["no idea, secret-1"])
    outcome = asked(model, repair_attempts=repairs, item_field="items")
    assert (outcome.value, outcome.status, outcome.calls) == (None, "failed", repairs + 1)
    assert outcome.error == "the answer has no JSON object"
    assert model.calls == repairs + 1


@KINDS
def test_two_different_answers_count_as_none(kind: type[Scripted]) -> None:
    """One of them may be quoted from the conversation; which one is meant is not guessed, nor saved."""
    model = kind(answers=['[{"claim": "a"}] [{"claim": "b"}]'])
    outcome = asked(model)
    assert (outcome.value, outcome.status, outcome.calls) == (None, "failed", 2)
    assert "several different" in outcome.error


@KINDS
@pytest.mark.parametrize("form", ["As in {example}:\n{answer}", "{answer}\nIt is in the form of {example}."])
def test_an_answer_in_a_fence_counts_before_an_example_beside_it(form: str, kind: type[Scripted]) -> None:
    answer = '```json\n{"items": [{"claim": "a"}]}\n```'
    text = form.format(example='{"items": [{"claim": "..."}]}', answer=answer)
    outcome = asked(kind(answers=[text]))
    assert (outcome.value, outcome.calls) == (Items(items=[Item(claim="a")]), 1)


def test_an_array_is_rejected_without_an_item_field() -> None:
    assert asked(Scripted(answers=['[{"claim": "a"}, 1]']), item_field=None).status == "failed"


def test_an_object_without_known_keys_is_rejected() -> None:
    """Though it would fit a schema that requires none. An empty one is an answer."""
    assert asked(Scripted(answers=['{"error": "I cannot"}']), Parts).status == "failed"
    assert asked(Scripted(answers=["{}"]), Parts).value == Parts()
    assert asked(Scripted(answers=['{"relationships": []}']), Parts).value == Parts()


# Salvage


@KINDS
def test_good_items_survive_bad_ones_after_the_repair(kind: type[Scripted]) -> None:
    model = kind(answers=['[{"claim": "a"}, {"claim": 3}, "x", {"claim": "b"}]'])
    outcome = asked(model)
    assert outcome.value == Items(items=[Item(claim="a"), Item(claim="b")])
    assert (outcome.status, outcome.calls, outcome.dropped_items) == ("salvaged", 2, 2)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Scripted, '{"items": [{"claim": "a"}, {"claim": "b \\ud83d"}]}'),
        (Scripted, '{"items": [{"claim": "a"}, {"claim": "b \ud83d"}]}'),
        (Scripted, "{'items': [{'claim': 'a'}, {'claim': 'b \\ud83d'},]}"),
        (ScriptedTools, tool_call("Items", {"items": [{"claim": "a"}, {"claim": "b \ud83d"}]})),
    ],
)
def test_half_a_character_does_not_lose_the_rest(kind: type[Scripted], wrong: Any) -> None:
    outcome = asked(kind(answers=[wrong]))
    assert outcome.value == Items(items=[Item(claim="a"), Item(claim="b \ufffd")])
    assert (outcome.status, outcome.calls) == ("ok", 1)
    assert extract_json('["\\ud83d\\ude00"]') == ["\U0001f600"]


@KINDS
def test_bad_part_does_not_lose_the_others(kind: type[Scripted]) -> None:
    answer = '{"thought": "t", "facts": [{"claim": "a"}, {"claim": 3}], "relationships": "oops"}'
    model = kind(answers=[answer])
    outcome = asked(model, Parts)
    assert outcome.value == Parts(thought="t", facts=[Item(claim="a")])
    assert (outcome.status, outcome.calls, outcome.dropped_items) == ("salvaged", 2, 2)


@pytest.mark.parametrize(
    "second", ["no idea", RuntimeError("down"), '[{"claim": 3}]', '{"items": "oops"}'], ids=repr
)
def test_parts_of_an_earlier_reply_are_salvaged_if_the_last_has_none(second: Any) -> None:
    outcome = asked(Scripted(answers=['[{"claim": "a"}, {"claim": 3}]', second]))
    assert outcome.value == Items(items=[Item(claim="a")])
    assert (outcome.status, outcome.calls, outcome.dropped_items) == ("salvaged", 2, 1)


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        (Items, '[{"claim": 3}]'),
        (Items, '{"items": "oops"}'),
        (Items, '{"items": null}'),
        (Parts, '{"facts": "oops"}'),
        (Parts, '{"thought": 3, "facts": [{"claim": 3}], "relationships": 3}'),
    ],
)
def test_an_answer_without_a_valid_part_is_dropped(schema: Any, answer: str) -> None:
    """An empty list that the model did not give would pass for "there is nothing"."""
    outcome = asked(Scripted(answers=[answer]), schema)
    assert (outcome.value, outcome.status, outcome.calls) == (None, "failed", 2)
    assert outcome.error == "the answer does not fit the schema"


class Tolerant(BaseModel):
    model_config = ConfigDict(extra="ignore")
    items: Annotated[list[Item], TOLERANT]


@KINDS
def test_schema_that_tolerates_bad_items_needs_no_repair(kind: type[Scripted]) -> None:
    for answer in (
        '{"items": [{"claim": "a"}, {"claim": 3}]}',
        tool_call("Tolerant", {"items": [{"claim": "a"}, 3]}),
    ):
        outcome = asked(kind(answers=[answer]), Tolerant)
        assert outcome.value == Tolerant(items=[Item(claim="a")])
        assert (outcome.status, outcome.calls, outcome.dropped_items) == ("ok", 1, 1)
    assert asked(kind(answers=['{"items": "oops"}']), Tolerant).status == "failed"


def test_tolerant_schema_can_be_used_without_a_call() -> None:
    assert Tolerant.model_validate({"items": [{"claim": "a"}, 3]}).items == [Item(claim="a")]


# The budget


@KINDS
@pytest.mark.parametrize(("limit", "calls"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_each_call_takes_one_of_the_budget(limit: int, calls: int, kind: type[Scripted]) -> None:
    """With one call left there is no repair, and with none left the model is not asked."""
    budget = CallBudget(limit)
    model = kind(answers=["no idea"])
    outcome = asked(model, budget=budget)
    assert (outcome.status, outcome.calls, model.calls) == ("failed", calls, calls)
    assert (budget.used, budget.left) == (calls, limit - calls)


def test_refusal_of_structured_output_is_a_call_and_no_repair() -> None:
    model = RefusesTools(answers=["?", "no idea", '{"items": [{"claim": "a"}]}'])
    budget = CallBudget(9)
    outcome = asked(model, budget=budget, item_field="items")
    assert (outcome.status, outcome.calls, model.calls, budget.used) == ("repaired", 3, 3, 3)
    model = RefusesTools(answers=["?", '{"items": [{"claim": "a"}]}'])
    assert asked(model, budget=CallBudget(2)).status == "ok"
    model = RefusesTools(answers=["?", '{"items": [{"claim": "a"}]}'])
    outcome = asked(model, budget=CallBudget(1))
    assert (outcome.status, outcome.calls, outcome.error) == ("failed", 1, "EndpointError")


# Structured output of other makes


class Own(Scripted):
    """A model whose integration gives structured output in its own way."""

    gives: list[Any]

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, **kwargs: Any) -> Any:
        def give(_: Any) -> Any:
            self.asked.append([])
            found = self.gives[min(len(self.asked), len(self.gives)) - 1]
            if isinstance(found, Exception):
                raise found
            return found

        return RunnableLambda(give)


def parts(raw: Any, parsed: Any = None, error: Any = None) -> dict[str, Any]:
    return {"raw": raw, "parsed": parsed, "parsing_error": error}


GOOD = Items(items=[Item(claim="a")])


@pytest.mark.parametrize(
    "given",
    [
        parts(AIMessage(""), GOOD),
        parts(AIMessage('[{"claim": "a"}]')),
        parts(AIMessage("```json\n[{'claim': 'a'}]\n```"), None, ValueError("no tool call")),
        parts(AIMessage('[{"claim": "a"}]'), {"wrong": 1}),
        parts('[{"claim": "a"}]'),
        GOOD,
        {"items": [{"claim": "a"}]},
        AIMessage('[{"claim": "a"}]'),
    ],
    ids=repr,
)
def test_raw_text_is_looked_at_before_another_call(given: Any) -> None:
    model = Own(answers=[], gives=[given])
    assert asked(model) == StructuredOutcome(value=GOOD, status="ok", calls=1)
    assert model.calls == 1


@pytest.mark.parametrize("refusal", [NotImplementedError("no"), TypeError("unexpected argument")], ids=repr)
def test_integration_without_structured_output_is_asked_for_text(refusal: Exception) -> None:
    model = Own(answers=["?", '[{"claim": "a"}]'], gives=[refusal])
    assert asked(model) == StructuredOutcome(value=GOOD, status="ok", calls=2)
    assert "JSON Schema" in model.prompt()


@pytest.mark.parametrize("given", [None, 7, "", parts(None), parts(AIMessage("")), parts([1])], ids=repr)
def test_structured_output_of_no_use_is_repaired(given: Any) -> None:
    outcome = asked(Own(answers=[], gives=[given, parts(AIMessage(""), GOOD)]))
    assert outcome == StructuredOutcome(value=GOOD, status="repaired", calls=2)
    assert asked(Own(answers=[], gives=[given])).status == "failed"


def test_words_of_a_parser_are_not_in_the_error() -> None:
    secret = parts(AIMessage("secret-1"), None, ValueError("could not parse secret-1"))
    outcome = asked(Own(answers=[], gives=[secret]))
    assert outcome.error == "the answer has no JSON object"
    wrong = '{"items": [{"claim": {"secret-1": 1}}], "secret-1": 2}'
    assert "secret" not in asked(Scripted(answers=[wrong])).error


# Failures


@KINDS
@pytest.mark.parametrize(
    "answers", [[RuntimeError("secret-1")], ["no idea", RuntimeError("secret-1")]], ids=repr
)
def test_exception_of_the_model_is_an_outcome(answers: list[Any], kind: type[Scripted]) -> None:
    """The outcome names the exception without its words, which may be a user's. The model is not asked
    again."""
    model = kind(answers=answers)
    outcome = asked(model)
    assert outcome == StructuredOutcome(
        value=None, status="failed", calls=len(answers), error="RuntimeError", raised=True
    )
    assert model.calls == len(answers)


class Hangs(Scripted):
    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if len(self.asked) >= len(self.answers):
            await asyncio.sleep(600)
        return self._generate(messages)


@pytest.mark.lengthy
def test_timeout_is_over_all_calls() -> None:
    outcome = asked(Hangs(answers=["no idea"]), timeout_s=0.1)
    assert (outcome.value, outcome.status, outcome.calls) == (None, "failed", 2)
    assert outcome.error == "TimeoutError"
    saved = asked(Hangs(answers=['[{"claim": "a"}, 3]']), timeout_s=0.1, item_field="items")
    assert (saved.value, saved.status) == (GOOD, "salvaged")


def test_model_that_blocks_a_thread_is_given_up(hold: Hold) -> None:
    model = Scripted(answers=[hold.then("no idea")])
    outcome = asyncio.run(structured_call(model, Items, QUESTION, timeout_s=0.05))
    assert outcome.error == "TimeoutError"


def test_cancellation_passes() -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(structured_call(Hangs(answers=[]), Items, QUESTION))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_too_long_answer_is_not_read() -> None:
    outcome = asked(Scripted(answers=['[{"claim": "a"}]' + " " * MAX_ANSWER]))
    assert (outcome.status, outcome.error) == ("failed", f"the answer has more than {MAX_ANSWER} characters")


# Visibility in a graph


class Tags(BaseCallbackHandler):
    """Records the tags of the model calls that it sees."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def on_chat_model_start(self, *args: Any, tags: list[str] | None = None, **kwargs: Any) -> None:
        self.seen.append(tags or [])


@KINDS
@MODES
def test_no_token_reaches_the_stream_of_the_graph(kind: type[Scripted], mode: str) -> None:
    """Neither its messages nor its callbacks; what the model itself was given sees the call by its tag."""
    own, of_the_run = Tags(), Tags()
    model = kind(answers=["no idea", '[{"claim": "extracted"}]'], callbacks=[own])
    outcomes: list[Any] = []
    shown: list[Any]

    async def areply(state: MessagesState) -> dict[str, Any]:
        outcomes.append(await structured_call(model, Items, QUESTION, item_field="items"))
        answer = await Scripted(answers=["ok"]).ainvoke("hello")
        return {"messages": [answer]}

    def reply(state: MessagesState) -> dict[str, Any]:
        outcomes.append(asyncio.run(structured_call(model, Items, QUESTION, item_field="items")))
        return {"messages": [Scripted(answers=["ok"]).invoke("hello")]}

    builder = StateGraph(MessagesState)
    builder.add_node("reply", RunnableLambda(reply, areply))
    builder.add_edge(START, "reply")
    graph = builder.compile()
    given: Any = {"messages": [HumanMessage("hi")]}

    async def streamed() -> list[Any]:
        config: Any = {"callbacks": [of_the_run]}
        return [part async for part in graph.astream(given, config, stream_mode="messages")]

    if mode == "async":
        shown = asyncio.run(streamed())
    else:
        shown = list(graph.stream(given, {"callbacks": [of_the_run]}, stream_mode="messages"))
    assert [message.text for message, _ in shown] == ["ok"]
    assert outcomes[0].status == "repaired"
    assert len(of_the_run.seen) == 1
    assert len(own.seen) == 2
    assert all({"nostream", "arbiter:evaluator"} <= {*tags} for tags in own.seen)
