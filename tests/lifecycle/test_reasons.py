"""Reasons say which field and which rule. No stored reason has a value of the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel, Field, field_validator

from arbiter import ArbiterOS, PolicyViolationError
from arbiter.checkers import ArgumentRule, ConditionChecker, SchemaChecker, ToolRule, ToolsChecker
from arbiter.errors import OutputSchemaError
from arbiter.evaluators import SchemaEvaluator
from arbiter.history._past import Past
from arbiter.instructions import TOOL_CALL
from arbiter.policy import PolicyChecker
from tests.support import MODES, Check, run, thread

SECRET = "hunter2-4111111111111111"
NUMBER = 4111111111111111


class State(TypedDict, total=False):
    text: Any
    number: Any
    table: Any
    messages: list[Any]


class Strict(BaseModel):
    text: str = Field(max_length=3)
    number: int = Field(le=10)

    @field_validator("text", "number", mode="before")
    @classmethod
    def own(cls, value: Any) -> Any:
        if value == SECRET:
            raise ValueError(f"{value} will not do")
        return value


def leaks(history: Any) -> bool:
    raise ValueError(f"bad state: {dict(history.entries[-1][-1].input_state)}")


OBJECT: dict[str, Any] = {"type": "object"}


def schema(**properties: Any) -> SchemaChecker:
    return SchemaChecker("rule", input={**OBJECT, "properties": properties}, target_nodes=["work"])


def condition(text: str) -> ConditionChecker:
    return ConditionChecker("rule", text, target_nodes=["work"])


RULES: dict[str, tuple[PolicyChecker, str]] = {
    "type": (schema(text={"type": "integer"}), "input.text"),
    "enum": (schema(text={"enum": ["a", "b"]}), "input.text"),
    "const": (schema(text={"const": "a"}), "input.text"),
    "pattern": (schema(text={"pattern": "^a$"}), "input.text"),
    "maxLength": (schema(text={"maxLength": 3}), "input.text"),
    "format": (schema(text={"format": "email", "pattern": "@"}), "input.text"),
    "maximum": (schema(number={"maximum": 10}), "input.number"),
    "multipleOf": (schema(number={"multipleOf": 10}), "input.number"),
    "not": (schema(text={"not": {"type": "string"}}), "input.text"),
    "anyOf": (schema(text={"anyOf": [{"type": "null"}, {"maxLength": 2}]}), "input.text"),
    "oneOf": (schema(text={"oneOf": [{"type": "string"}, {"minLength": 2}]}), "input.text"),
    "contains": (schema(table={"properties": {"list": {"contains": {"type": "null"}}}}), "input.table"),
    "uniqueItems": (schema(table={"properties": {"list": {"uniqueItems": True}}}), "input.table"),
    "maxItems": (schema(table={"properties": {"list": {"maxItems": 1}}}), "input.table"),
    "prefixItems": (
        schema(table={"properties": {"list": {"prefixItems": [{}], "items": False}}}),
        "input.table",
    ),
    "a class": (SchemaChecker("rule", input=Strict, target_nodes=["work"]), "input"),
    "a condition": (
        condition("input.number > 9"),
        "number > 9",
    ),
    "a condition with a key of the state": (condition("input.table[input.text] == 1"), "no such key"),
    "a condition that converts": (condition("int(input.text) > 5"), "'int'"),
    "a condition of a duration": (condition("duration(input.text) > duration('1s')"), "'duration'"),
    "a condition with a pattern": (condition("'a'.matches('(' + input.text)"), "not a valid regex"),
    "a condition that overflows": (condition("input.number * input.number > 1"), "overflow"),
    "a checker that fails": (Check("rule", leaks, target_nodes=["work"]), "ValueError"),
}


def wipe(state: State) -> State:
    return {"text": "wiped", "number": 0, "table": {}, "messages": []}


def tell(state: State) -> State:
    return {"text": SECRET, "number": NUMBER}


def graph_of(saver: Any, body: Any = None) -> Any:
    builder = StateGraph(State)
    builder.add_node("work", body or wipe)
    builder.add_node("wipe", wipe)
    builder.add_edge(START, "work")
    return builder.compile(checkpointer=saver)


def facts_in(app: Any, config: Any) -> str:
    """The facts about past node runs in the newest checkpoint, as text."""
    saved = app.checkpointer.get_tuple(config)
    facts = list(Past(saved.checkpoint["channel_values"]["__arbiter_ledger"]).facts())
    assert any(fact["node"] == "work" for fact in facts)
    return repr(facts)


def quoted(text: str) -> bool:
    return SECRET in text or str(NUMBER) in text


STATE: dict[str, Any] = {
    "text": SECRET,
    "number": NUMBER,
    "table": {"list": [SECRET, SECRET, NUMBER], "a": SECRET},
}


@MODES
@pytest.mark.parametrize("rule", RULES)
def test_no_reason_that_is_committed_quotes_the_state(rule: str, mode: str) -> None:
    """The run goes on where the state is wiped; only the reason is left."""
    checker, says = RULES[rule]
    checker.on_deny = "redirect:wipe"
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(checker)
    app, config = arbiter_os.govern(graph_of(InMemorySaver())), thread("1")
    run(app, STATE, config, mode=mode)
    (denied,) = [item for item in arbiter_os.history_of(thread_id="1").items() if item.status == "denied"]
    reason = denied.check_policy_results["rule"].reason
    assert says in reason
    assert rule == "a checker that fails" or not quoted(reason)
    assert not quoted(facts_in(app, config))


@MODES
@pytest.mark.parametrize("rule", RULES)
def test_no_exception_quotes_the_state(rule: str, mode: str) -> None:
    checker, _ = RULES[rule]
    checker.on_deny = "raise"
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(checker)
    with pytest.raises(PolicyViolationError) as found:
        run(arbiter_os.govern(graph_of(None)), STATE, mode=mode)
    assert not quoted(str(found.value))
    assert not quoted(found.value.reason)


@pytest.mark.parametrize("side", ["input", "output"])
def test_schemas_of_a_node_quote_nothing(side: str) -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(graph_of(None, tell), schemas={"work": {side: Strict}})
    with pytest.raises((PolicyViolationError, OutputSchemaError)) as found:
        app.invoke(STATE)
    assert "number" in str(found.value)
    assert not quoted(str(found.value))


TOOLS: list[ToolRule] = [
    ToolRule("pay", arguments={"to": ArgumentRule(one_of=["me"])}),
    ToolRule("pay", arguments={"to": ArgumentRule(matches="[a-z]+")}),
    ToolRule("pay", arguments={"amount": ArgumentRule(at_most=100)}),
    ToolRule("pay", arguments={"to": ArgumentRule(under="/srv")}),
    ToolRule("pay", arguments={"to": ArgumentRule(max_length=3)}),
    ToolRule("pay", when="args.amount <= 100"),
    ToolRule("pay", when="int(args.to) <= 100"),
]


@pytest.mark.parametrize("number", range(len(TOOLS)))
@pytest.mark.parametrize("door", ["before the node", "when the tool starts"])
def test_reasons_of_the_tools_rule_quote_no_argument(number: int, door: str, tmp_path: Any) -> None:
    def pay(to: str, amount: int) -> str:
        """Pays."""
        return "paid"

    def messages() -> Sequence[Any]:
        call = {"name": "pay", "args": {"to": SECRET, "amount": NUMBER}, "id": "1", "type": "tool_call"}
        return [AIMessage("", tool_calls=[call])]

    tools = ToolNode([StructuredTool.from_function(pay)], handle_tool_errors=True)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ToolsChecker("rule", [TOOLS[number]], on_deny="redirect:wipe"))
    with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        kinds = {"work": TOOL_CALL} if door == "before the node" else None
        app = arbiter_os.govern(graph_of(saver, tools), kinds)
        app.invoke({"messages": messages()}, thread("1"))
        assert not quoted(facts_in(app, thread("1")))
    item = next(item for item in arbiter_os.history.items() if item.node == "work")
    assert item.check_policy_results["rule"].kind == "deny"
    assert not quoted(item.check_policy_results["rule"].reason)
    assert not quoted(str(dict(item.notes)))


def test_the_feedback_of_an_evaluator_quotes_nothing() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(
        SchemaEvaluator(
            "fits", {"properties": {"text": {"maxLength": 3}, "number": {"maximum": 3}}}, durable=True
        )
    )
    app = arbiter_os.govern(graph_of(InMemorySaver(), tell))
    app.invoke({}, thread("1"))
    result = arbiter_os.history.entries[-1][-1].evaluation_results["fits"]
    assert "output.number" in result.feedback
    assert not quoted(result.feedback)
    assert not quoted(facts_in(app, thread("1")))
