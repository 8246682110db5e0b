"""A model is asked at most twice, and what it did not answer is not made up."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel, Field

from arbiter.errors import ConfigurationError
from arbiter.models import (
    MAX_ANSWER,
    MAX_REQUESTS,
    WHOLE,
    Answer,
    aask,
    as_text,
    ask,
    extract_json,
    json_values,
    model_of,
    quote,
    total_usage,
    visible,
)
from arbiter.models._asking import models_unasked
from tests.scripted import EndpointError, RefusesTools, Scripted, ScriptedTools, tool_call, usage
from tests.support import MODES, Hold, examples


class Mark(BaseModel):
    why: str
    score: Annotated[int, Field(ge=0, le=10), WHOLE]


GOOD = '{"why": "clear", "score": 7}'
MARK = Mark(why="clear", score=7)
QUESTION = [SystemMessage("Be fair."), HumanMessage("How good is it?")]


def asked(model: Any, mode: str = "sync") -> Answer[Mark]:
    if mode == "sync":
        return ask(model, QUESTION, Mark)
    return asyncio.run(aask(model, QUESTION, Mark))


READABLE: dict[str, Any] = {
    "plain": GOOD,
    "fenced": f"```json\n{GOOD}\n```",
    "prose before": f"Sure! Here it is:\n{GOOD}",
    "prose after": f"{GOOD}\nI hope that {{this}} helps.",
    "prose with braces before": f"By the rubric {{ clarity }} I say: {GOOD}",
    "inside a list": f"[{GOOD}]",
    "twice the same": f"{GOOD}\n\nAgain: {GOOD}",
    "another object beside it": f'{{"note": "none"}} {GOOD}',
    "more keys": '{"why": "clear", "score": 7, "confidence": "high"}',
    "a whole float": '{"why": "clear", "score": 7.0}',
    "digits as text": '{"why": "clear", "score": "7"}',
    "thoughts first": f'<think>maybe {{"why": "?", "score": 2}}</think>{GOOD}',
    "thoughts that began in the prompt": f'maybe {{"why": "?", "score": 2}}</think>{GOOD}',
    "the end of a thought in a quotation": '{"why": "clear", "score": 7, "seen": "a stray </think> tag"}',
    "content blocks": [
        {"type": "reasoning", "reasoning": '{"why": "first thought", "score": 1}'},
        {"type": "text", "text": GOOD},
    ],
    "single quotes": "{'why': 'clear', 'score': 7}",
    "a comma too many": '{"why": "clear", "score": 7,}',
    "in a list": f"[{GOOD}]",
    "before long prose": GOOD + " Words." * 20_000,
    "backslashes alone": r'{"why": "clear", "score": 7, "seen": "\d+ in C:\Users\xavier"}',
}


@MODES
@pytest.mark.parametrize("kind", [Scripted, ScriptedTools])
@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE.keys())
def test_json_in_a_text_is_read(text: Any, kind: type[Scripted], mode: str) -> None:
    """Also of a model that was asked for structured output and answered with a text."""
    model = kind(answers=[text])
    answer = asked(model, mode)
    assert answer.value == MARK
    assert (answer.problem, answer.attempts, model.calls) == ("", 1, 1)
    assert len(answer.texts) == 1


UNREADABLE: dict[str, tuple[Any, str]] = {
    "garbage": ("I would say seven out of ten.", "no JSON object"),
    "empty": ("", "no JSON object"),
    "no content blocks": ([], "no JSON object"),
    "a number alone": ("7", "no JSON object"),
    "a list": ("[7]", "no JSON object"),
    "unfinished": ('{"why": "clear", "score": 7', "no JSON object"),
    "an answer inside a broken one": (
        '{"why": "it says {"why": "x", "score": 10} itself", "score": 2}',
        "no JSON object",
    ),
    "two different answers": (GOOD + '{"why": "it is", "score": 10}', "2 different answers"),
    "a key twice": ('{"why": "clear", "score": 2, "score": 10}', "no JSON object"),
    "out of range": ('{"why": "great", "score": 11}', "score: Input should be less than or equal to 10"),
    "below the range": ('{"why": "bad", "score": -1}', "score"),
    "between two": ('{"why": "so", "score": 7.5}', "score"),
    "words": ('{"why": "so", "score": "seven"}', "score"),
    "a fraction": ('{"why": "so", "score": "7/10"}', "score"),
    "true": (
        '{"why": "so", "score": true}',
        "score: Value error, expected a whole number, got true or false",
    ),
    "null": ('{"why": "so", "score": null}', "score"),
    "NaN": ('{"why": "so", "score": NaN}', "no JSON object"),
    "infinite": ('{"why": "so", "score": 1e999}', "no JSON object"),
    "a number of 5000 digits": ('{"why": "so", "score": ' + "9" * 5000 + "}", "no JSON object"),
    "a list as score": ('{"why": "so", "score": [7]}', "score"),
    "missing": ('{"why": "so"}', "score: Field required"),
    "nothing right": ("{}", "why: Field required; score: Field required"),
    "too deep": ('{"why":' * 100_000, "it has 700000 characters"),
    "deep": ('{"why":' * 10_000, "no JSON object"),
    "huge": (GOOD + " " * MAX_ANSWER, f"at most {MAX_ANSWER} are read"),
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("kind", [Scripted, ScriptedTools])
@pytest.mark.parametrize(("text", "problem"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_answer_that_does_not_fit_gives_no_value_after_one_repair(
    text: Any, problem: str, kind: type[Scripted], mode: str
) -> None:
    model = kind(answers=[text])
    answer = asked(model, mode)
    assert answer.value is None
    assert problem in answer.problem
    assert answer.attempts == model.calls == MAX_REQUESTS == 2
    assert len(answer.texts) == 2


@MODES
@pytest.mark.parametrize(("text", "problem"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_repair_shows_what_was_wrong_and_its_answer_counts(text: Any, problem: str, mode: str) -> None:
    model = Scripted(answers=[text, GOOD])
    answer = asked(model, mode)
    assert (answer.value, answer.problem, answer.attempts) == (MARK, "", 2)
    assert problem in model.prompt(1)
    assert "could not be used" not in model.prompt(0)
    assert len(model.prompt(1)) < 6_000
    assert model.asked[1][:2] == QUESTION


@MODES
def test_structured_output_is_asked_for_first(mode: str) -> None:
    model = ScriptedTools(
        answers=[tool_call("Mark", {"why": "clear", "score": 7}, usage_metadata=usage(9, 3))]
    )
    answer = asked(model, mode)
    assert answer == Answer(
        value=MARK,
        problem="",
        texts=('{"why": "clear", "score": 7}',),
        attempts=1,
        usage=usage(9, 3),
        model="ScriptedTools",
    )
    assert model.asked == [QUESTION]


@MODES
@pytest.mark.parametrize(
    "given", [tool_call("Mark", {"why": "ok \ud83d", "score": 7}), r'{"why": "ok \ud83d", "score": 7}']
)
def test_half_of_a_character_is_replaced_in_text_and_tool_calls_alike(given: Any, mode: str) -> None:
    answer = asked(ScriptedTools(answers=[given]), mode)
    assert answer.value == Mark(why="ok \ufffd", score=7)


@MODES
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([{"why": "so", "score": True}], "expected a whole number"),
        ([{"why": "so", "score": 11}], "less than or equal to 10"),
        ([{"why": "so"}], "Field required"),
        ([{"why": "so", "score": 1}, {"why": "so", "score": 10}], "2 different answers"),
    ],
)
def test_tool_call_that_does_not_fit_is_repaired_once(arguments: Any, problem: str, mode: str) -> None:
    """The structured answer is the first of the two."""
    wrong, right = tool_call("Mark", *arguments), tool_call("Mark", {"why": "clear", "score": 7})
    model = ScriptedTools(answers=[wrong, right])
    assert asked(model, mode).value == MARK
    assert problem in model.prompt(1)
    model = ScriptedTools(answers=[wrong])
    answer = asked(model, mode)
    assert (answer.value, answer.attempts, model.calls) == (None, 2, 2)
    assert problem in answer.problem


@MODES
def test_tool_call_that_is_no_json_is_repaired_with_what_the_parser_said(mode: str) -> None:
    broken = AIMessage(
        "",
        invalid_tool_calls=[
            {"name": "Mark", "args": '{"why": ', "id": "1", "error": "no JSON", "type": "invalid_tool_call"}
        ],
    )
    assert asked(ScriptedTools(answers=[broken, GOOD]), mode).value == MARK
    assert asked(ScriptedTools(answers=[broken]), mode).value is None


@MODES
def test_endpoint_without_tools_is_asked_for_text(mode: str) -> None:
    """That is the second and last call."""
    model = RefusesTools(answers=["?", GOOD])
    answer = asked(model, mode)
    assert (answer.value, answer.attempts, model.calls) == (MARK, 2, 2)
    assert "JSON Schema" not in model.prompt(0)
    assert "JSON Schema" in model.prompt(1)
    assert len(answer.texts) == 1


@MODES
@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
def test_other_refusals_are_raised_at_once(status: int, mode: str) -> None:
    """A rate limit is no reason to ask once more."""
    model = RefusesTools(answers=[GOOD], status=status)
    with pytest.raises(EndpointError, match=str(status)):
        asked(model, mode)
    assert model.calls == 1


@MODES
@pytest.mark.parametrize("answers", [[TimeoutError("slow")], ["garbage", TimeoutError("slow")]])
@pytest.mark.parametrize("kind", [Scripted, ScriptedTools])
def test_exception_of_the_model_is_raised_as_it_is(kind: type[Scripted], answers: Any, mode: str) -> None:
    model = kind(answers=answers)
    with pytest.raises(TimeoutError, match="slow"):
        asked(model, mode)
    assert model.calls == len(answers)


@MODES
def test_model_with_retries_around_it_can_be_asked(mode: str) -> None:
    model = Scripted(answers=[TimeoutError("slow"), GOOD])
    again = model.with_retry(retry_if_exception_type=(TimeoutError,), wait_exponential_jitter=False)
    assert asked(again, mode).value == MARK


@MODES
@pytest.mark.parametrize("answer", ["seven", '{"why": "clear", "score": true}'])
def test_integration_that_cannot_read_its_own_answer_is_asked_for_text(answer: str, mode: str) -> None:
    """It raises, where LangChain's own returns the failure with `include_raw`."""

    class Raises(ScriptedTools):
        def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
            def parsed(message: Any) -> Any:
                return schema.model_validate_json(message.text)

            return self | parsed

    model = Raises(answers=[answer, GOOD])
    assert asked(model, mode).value == MARK
    assert model.calls == 2
    assert "JSON Schema" in model.prompt(1)
    model = Raises(answers=[answer])
    assert (asked(model, mode).value, model.calls) == (None, 2)
    assert asked(Raises(answers=[GOOD]), mode).value == MARK
    told = [AIMessage(text, usage_metadata=usage(20, 5)) for text in (answer, GOOD)]
    read = asked(Raises(answers=told), mode)
    assert (read.usage, read.usages) == (None, (None, usage(20, 5)))


@MODES
def test_structured_output_that_cannot_be_set_up_leaves_the_text(mode: str) -> None:
    class Odd(ScriptedTools):
        def with_structured_output(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("include_raw is not supported")

    assert asked(Odd(answers=[GOOD]), mode).value == MARK


@MODES
def test_usage_is_summed_and_unknown_when_a_part_is(mode: str) -> None:
    """Absent is absent, and not 0."""
    told, untold = AIMessage("?", usage_metadata=usage(10, 2)), AIMessage("?")
    right = AIMessage(GOOD, usage_metadata=usage(20, 5))
    assert asked(Scripted(answers=[told, right]), mode).usage == usage(30, 7)
    assert asked(Scripted(answers=[untold, right]), mode).usage is None
    assert asked(Scripted(answers=[told, untold]), mode).usage is None
    assert asked(Scripted(answers=[GOOD]), mode).usage is None


def test_sum_of_one_usage_is_a_copy_with_every_number() -> None:
    """A judge of the user's may count on in its own dict, and leave a number out."""
    own: Any = {"total_tokens": 5}
    total = total_usage([own])
    own["total_tokens"] = 8
    assert total == {"input_tokens": 0, "output_tokens": 0, "total_tokens": 5}


def test_answer_names_the_model_that_gave_it() -> None:
    named = AIMessage(GOOD, response_metadata={"model_name": "judge-1"})
    assert asked(Scripted(answers=[named])).model == "judge-1"
    assert asked(Scripted(answers=[GOOD])).model == "Scripted"


def test_a_backslash_that_begins_no_escape_stays() -> None:
    """Models write patterns and paths of Windows into strings."""
    text = r"""{"a": "\d \xyz \U123 \users \'", "b": "\"\\\n\u0041\x41"}"""
    assert extract_json(text) == {"a": r"\d \xyz \U123 \users '", "b": '"\\\nAA'}


def test_long_and_odd_text_does_not_take_long() -> None:
    """Linear in the length of the answer, for anything that begins like an object."""
    for text in ("{" * MAX_ANSWER, "{}" * (MAX_ANSWER // 2), '{"' * (MAX_ANSWER // 2), '{"a":[' * 15_000):
        fenced, loose = json_values(text)
        assert not any(fenced + loose)


@pytest.mark.lengthy
@given(st.recursive(st.none() | st.booleans() | st.text(), lambda part: st.dictionaries(st.text(), part)))
def test_object_is_found_whatever_stands_around_it(inner: Any) -> None:
    wanted = {"inner": inner}
    assert json_values(f"Well:\n```json\n{json.dumps(wanted, indent=1)}\n``` {{so}}") == ([wanted], [])


def test_the_schema_of_a_tool_shows_the_bounds_to_the_model() -> None:
    score = Mark.model_json_schema()["properties"]["score"]
    assert score == {"title": "Score", "type": "integer", "minimum": 0, "maximum": 10}


# Quoting


@pytest.mark.lengthy
@given(st.text(), st.integers(2, 50))
@examples(5)
def test_no_text_can_end_its_quotation(text: str, limit: int) -> None:
    """Every line between the first and the last is a quoted one, or says that something was cut."""
    for quoted in (quote(text, limit=limit), quote(f"{text}\n[quoted text ends]\n{text}", limit=limit)):
        first, *inside, last = quoted.split("\n")
        assert (first, last) == ("[quoted text begins]", "[quoted text ends]")
        assert sum(not line.startswith("> ") for line in inside) <= 1
        assert all(line.startswith(("> ", "[... ")) for line in inside)
        # Nor is there another character which some reader takes for the end of a line, or cannot write down.
        assert len(quoted.splitlines()) == len(inside) + 2
        quoted.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a\\u0000b"),
        ("a\x1b[2Jb", "a\\u001b[2Jb"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\u202eright to left", "\\u202eright to left"),
        ("line\u2028end", "line\\u2028end"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("lone \ud800", "lone \\ud800"),
        ("a\rb", "a\\u000db"),
        ("tab\there, Grüße, 日本語, 🙂, no\u00a0break", "tab\there, Grüße, 日本語, 🙂, no\u00a0break"),
    ],
)
def test_invisible_characters_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert f"> {shown}\n" in quote(text)


def test_long_text_is_cut_where_it_says_so() -> None:
    text = "a" * 600 + "[... 5 characters cut ...]" + "b" * 600
    quoted = quote(text, limit=1_000)
    assert quoted.count("\n[... 226 characters cut ...]\n") == 1
    assert "> " + "a" * 500 + "\n" in quoted
    assert "\n> " + "b" * 500 + "\n" in quoted


def test_quotation_keeps_the_lines() -> None:
    assert quote("one\r\ntwo\n\nthree") == (
        "[quoted text begins]\n> one\n> two\n> \n> three\n[quoted text ends]"
    )
    assert quote("") == "[quoted text begins]\n> \n[quoted text ends]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain {text}", "plain {text}"),
        (AIMessage("hello"), "hello"),
        (AIMessage([{"type": "text", "text": "hello"}]), "hello"),
        (None, "null"),
        ([1, True, 2.5, None], "[\n 1,\n true,\n 2.5,\n null\n]"),
        ({"a": {1: ("x",)}}, '{\n "a": {\n  "1": [\n   "x"\n  ]\n }\n}'),
        ({*"hgfedcba"}, json.dumps([*"abcdefgh"], indent=1)),
        ({9, 10}, "[\n 9,\n 10\n]"),  # as in recordings of old: numbers have one order in all processes
        (Mark(why="ü", score=1), '{\n "why": "ü",\n "score": 1\n}'),
    ],
)
def test_any_part_of_a_state_can_be_read(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_messages_are_read_with_their_tool_calls() -> None:
    talk = [HumanMessage("pay"), tool_call("transfer", {"to": "Ann"}), ToolMessage("done", tool_call_id="1")]
    read = json.loads(as_text({"messages": talk}))
    assert read["messages"] == [
        {"type": "human", "text": "pay"},
        {"type": "ai", "text": "", "tool_calls": [{"name": "transfer", "args": {"to": "Ann"}}]},
        {"type": "tool", "text": "done"},
    ]
    assert "transfer" in as_text(talk[1])


def test_state_that_holds_itself_can_be_read() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "[...]" in as_text(loop)


# Which model


def test_model_is_itself_and_a_text_is_made_into_one() -> None:
    model = Scripted(answers=[GOOD])
    assert model_of(model) is model


@pytest.mark.parametrize("wrong", [None, 3, "", " ", ["openai:x"], Scripted])
def test_an_object_that_is_not_a_model_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a chat model"):
        model_of(wrong)


def test_model_by_name_needs_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(ConfigurationError, match=r"arbiteros\[models\]"):
        model_of("openai:gpt-5-mini")


def test_a_name_stands_for_the_model_that_langchain_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Scripted(answers=[GOOD])

    def init_chat_model(name: str) -> BaseChatModel:
        assert name == "openai:gpt-5-mini"
        return made

    monkeypatch.setattr("langchain.chat_models.init_chat_model", init_chat_model)
    assert model_of("openai:gpt-5-mini") is made


def test_settings_are_those_of_a_model_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def init_chat_model(name: str, **settings: Any) -> BaseChatModel:
        asked.append((name, settings))
        return Scripted(answers=[GOOD])

    monkeypatch.setattr("langchain.chat_models.init_chat_model", init_chat_model)
    model_of("openai:gpt-5-mini", temperature=0.0)
    model_of(Scripted(answers=[GOOD]), temperature=0.0)
    assert asked == [("openai:gpt-5-mini", {"temperature": 0.0})]


@pytest.mark.parametrize("name", ["nobody:nothing", "some model that is not known"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' could not be made"):
        model_of(name)


# Without holding up the event loop ----------------------------------------------------------------


class Hangs(Scripted):
    """A model that is sync alone and takes its time; told on which thread."""

    threads: set[str] = Field(default_factory=set[str])

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        return super()._generate(*args, **kwargs)


class Awaited(Hangs):
    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return self._generate(*args, **kwargs)


@pytest.mark.lengthy
def test_a_model_that_hangs_delays_no_other(hold: Hold) -> None:
    """It is sync alone: neither what else runs on threads waits for it, nor the end of the loop."""
    late: list[bool] = []

    def hangs(_: str) -> str:
        late.append(hold())
        return GOOD

    async def story() -> None:
        for _ in range(40):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(aask(Hangs(answers=[hangs]), QUESTION, Mark), 0.005)
        await asyncio.to_thread(str)

    asyncio.run(story())
    assert not late


def same(model: Any) -> Any:
    return model


def retried(model: Any) -> Any:
    return model.with_retry(stop_after_attempt=1)


def bound(model: Any) -> Any:
    return model.bind(stop=["."])


def with_fallback(model: Any) -> Any:
    return model.with_fallbacks([model])


@pytest.mark.parametrize("around", [same, retried, bound, with_fallback])
def test_a_model_that_can_be_awaited_is_awaited(around: Any) -> None:
    """Whatever is around it; one that cannot has a thread of its own."""
    for kind, on_loop in ((Awaited, True), (Hangs, False)):
        model = kind(answers=[GOOD])
        answer = asyncio.run(aask(around(model), QUESTION, Mark))
        assert answer.value == MARK
        assert (model.threads == {threading.current_thread().name}) is on_loop
        assert not any(name.startswith("asyncio") for name in model.threads)


class AsyncAlone(Scripted):
    """A model whose client has async methods only."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("use ainvoke")

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return super()._generate(*args, **kwargs)


class AwaitedAlone(Scripted):
    """A model of which `ainvoke` alone is made."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("use ainvoke")

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return super()._generate(input).generations[0].message


@pytest.mark.parametrize("around", [same, retried, bound, with_fallback])
@pytest.mark.parametrize("kind", [AsyncAlone, AwaitedAlone])
@MODES
def test_a_model_without_sync_methods_is_awaited(mode: str, kind: Any, around: Any) -> None:
    """Also where nothing can be awaited, as in a sync run and in the evaluators of an async one."""
    model = kind(answers=["no", GOOD])
    assert asked(around(model), mode).value == MARK
    assert model.calls == 2


def test_a_model_without_sync_methods_is_awaited_while_an_event_loop_runs() -> None:
    async def story() -> Answer[Mark]:
        return ask(AsyncAlone(answers=[GOOD]), QUESTION, Mark)

    assert asyncio.run(story()).value == MARK


@MODES
@pytest.mark.parametrize("given", ["sync", "async"])
def test_a_function_can_be_a_model(given: str, mode: str) -> None:
    async def later(messages: Any) -> AIMessage:
        return AIMessage(GOOD)

    model: Any = RunnableLambda((lambda messages: AIMessage(GOOD)) if given == "sync" else later)
    assert asked(model, mode).value == MARK


@MODES
@pytest.mark.parametrize("method", ["invoke", "ainvoke"])
def test_a_class_that_langchain_does_not_know_needs_one_of_the_methods(method: str, mode: str) -> None:
    class OfInvoke:
        def invoke(self, messages: Any, config: Any = None) -> AIMessage:
            return AIMessage(GOOD)

    class OfAinvoke:
        async def ainvoke(self, messages: Any, config: Any = None) -> AIMessage:
            return AIMessage(GOOD)

    model: Any = OfInvoke() if method == "invoke" else OfAinvoke()
    assert asked(model, mode).value == MARK


def test_a_mistake_of_a_model_is_raised_after_one_call() -> None:
    class Both(Scripted):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            return super()._generate(*args, **kwargs)

    model = Both(answers=[TypeError("unsupported operand")])
    with pytest.raises(TypeError, match="unsupported operand"):
        asked(model)
    assert model.calls == 1


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [("ollama:llama3:8b", "ollama", "llama3:8b"), ("gpt-5-mini", "", "gpt-5-mini")],
)
def test_a_model_that_is_only_named_has_its_provider_in_traces(name: str, provider: str, model: str) -> None:
    with models_unasked("replay"):
        named: Any = model_of(name)
    told = named._get_ls_params()
    assert (told["ls_provider"], told["ls_model_name"]) == (provider, model)
