"""A rule that applies to no node is reported: a misspelt node is an error, anything else one warning."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

from arbiter import (
    Advisor,
    ArbiterOS,
    ArbiterWarning,
    ConfigurationError,
    CorrectionGate,
    FeedbackAdvisor,
    History,
    HistoryPolicyChecker,
    PolicyChecker,
    PolicyViolationError,
    ThresholdEvaluator,
    UnknownNodeError,
)
from arbiter._values.spelling import misspelt
from arbiter.checkers import (
    ApprovalChecker,
    AtMost,
    ConditionChecker,
    FlowChecker,
    Label,
    NeverAfter,
    RequireBefore,
    ToolRule,
    ToolsChecker,
)
from arbiter.instructions import GENERATE, REFLECT, RESPOND, TOOL_CALL, VERIFY
from arbiter.routers import ErrorRouter, EscalationRouter, EvaluationRouter, MetricThresholdPolicyRouter
from tests.support import MODES, Chat, Check, Judge, Route, Spy, State, allow, chain, good, run, thread


class Hint(Advisor):
    def advise(self, history: History, state: Any) -> str:
        return "be brief"


class Gate(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Any:
        raise NotImplementedError


def add(arbiter_os: ArbiterOS, kind: str, **where: Any) -> None:
    """Register a contract of that kind, named "rule"."""
    match kind:
        case "checker":
            arbiter_os.add_policy_checker(Check("rule", allow, **where))
        case "router":
            arbiter_os.add_policy_router(Route("rule", lambda _, __: None, **where))
        case "evaluator":
            arbiter_os.add_evaluator(Judge("rule", good, **where))
        case "advisor":
            arbiter_os.add_advisor(Hint("rule", **where))
        case _:
            arbiter_os.add_correction_gate(Gate("rule", **where))


KINDS = ("checker", "router", "evaluator", "advisor", "gate")


def ruled(**where: Any) -> ArbiterOS:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("rule", 0, **where))
    return arbiter_os


def graph_of(*names: str) -> Any:
    return chain(*map(Spy, names))


@contextmanager
def warned() -> Generator[list[str]]:
    """The texts of Arbiter's warnings."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(each.message) for each in caught if each.category is ArbiterWarning]


def pack(folder: Path, text: str, name: str = "policies/p.yaml") -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"version: 1\nname: p\ndescription: d\n{text}\n", encoding="utf-8")
    return folder


# A misspelt node ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_target_is_an_error_when_the_graph_is_governed(kind: str) -> None:
    arbiter_os = ArbiterOS()
    add(arbiter_os, kind, target_nodes=["respnd"])
    with pytest.raises(UnknownNodeError, match=f"{kind} 'rule' is for 'respnd'.*Did you mean 'respond'"):
        arbiter_os.govern(graph_of("write", "respond"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_has_its_parent_in_front_is_an_error_that_says_how_to_name_it(kind: str) -> None:
    """As the history prints it. The linter says the same."""
    arbiter_os = ArbiterOS()
    add(arbiter_os, kind, target_nodes=["team:respond"])
    graph = team_of(graph_of("write", "respond"))
    said = "A rule names a node of a subgraph without its parents."
    with pytest.raises(UnknownNodeError, match=f"Did you mean 'respond'. {said}"):
        arbiter_os.govern(graph)
    found = [each.remedy for each in arbiter_os.lint(graph) if each.code == "unknown-node"]
    assert found == [f"{said} Nodes: respond, team, write."]


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_target_is_an_error_when_it_is_registered_for_a_governed_graph(kind: str) -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(graph_of("write", "respond"))
    with pytest.raises(UnknownNodeError, match="Did you mean 'respond'"):
        add(arbiter_os, kind, target_nodes=["respnd"])
    app.invoke({})  # nothing was registered


@pytest.mark.parametrize(
    "section",
    [
        'checkers:\n  - {name: rule, use: condition, deny_when: "true", target_nodes: [respnd]}',
        "routers:\n  - {name: rule, use: on_error, target: write, target_nodes: [respnd]}",
        "evaluators:\n  - {name: rule, use: latency, at_most: 3, target_nodes: [respnd]}",
    ],
)
def test_a_misspelt_target_in_a_file_is_reported_with_its_line(section: str, tmp_path: Path) -> None:
    pack(tmp_path, section)
    with pytest.raises(UnknownNodeError, match=r"policies/p\.yaml:5: .* 'respnd'.*Did you mean 'respond'"):
        ArbiterOS.from_constitution(tmp_path).govern(graph_of("write", "respond"))


@pytest.mark.parametrize(
    "rule",
    [
        "use: never_after, after: 'node:respnd'",
        "use: require_before, required: 'node:respnd'",
        "use: require_before, required: VERIFY, since: ['node:respnd']",
        "use: within_steps, required: 'node:respnd', steps: 2",
    ],
)
def test_a_misspelt_node_that_a_rule_waits_for_is_an_error(rule: str, tmp_path: Path) -> None:
    """It would never come: the rule would do nothing, or deny for good."""
    pack(tmp_path, f"checkers:\n  - {{name: rule, {rule}, target_nodes: [write]}}")
    with pytest.raises(
        UnknownNodeError,
        match=r"policies/p\.yaml:5: checker 'rule' waits for 'respnd'.*Did you mean 'respond'",
    ):
        ArbiterOS.from_constitution(tmp_path).govern(graph_of("write", "respond"))


def test_a_rule_for_a_node_may_wait_for_another_with_nearly_its_name() -> None:
    """Here `send_mail` is a function that is labelled later."""
    arbiter_os = ArbiterOS()
    order = RequireBefore("order", required="node:send_mail", per="run", target_nodes=["send_mails"])
    arbiter_os.add_policy_checker(order)
    with pytest.raises(PolicyViolationError, match="node 'send_mail' has not passed"):
        arbiter_os.govern(graph_of("send_mails")).invoke({})


def test_a_reload_with_a_misspelt_target_changes_nothing(tmp_path: Path) -> None:
    rule = "checkers:\n  - {name: rule, use: at_most, times: 3, target_nodes: [%s]}"
    arbiter_os = ArbiterOS.from_constitution(pack(tmp_path, rule % "respond"))
    arbiter_os.govern(graph_of("write", "respond"))
    pack(tmp_path, rule % "respnd")
    with pytest.raises(UnknownNodeError, match="respnd"):
        arbiter_os.load_constitution()
    assert arbiter_os.constitution is not None
    assert arbiter_os.constitution.checkers[0].target_nodes == ("respond",)
    with pytest.raises(UnknownNodeError, match="respnd"):
        arbiter_os.load_shadow(tmp_path)


def test_a_step_that_is_run_alone_is_a_node_too() -> None:
    def respond(state: Any) -> Any:
        return state

    with pytest.raises(UnknownNodeError, match="Did you mean 'respond'"):
        ruled(target_nodes=["respnd"]).execute({}, respond, instruction=RESPOND)


@MODES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_runnable", [False, True])
def test_a_misspelt_function_is_an_error_at_each_call(kind: str, mode: str, as_runnable: bool) -> None:
    """Not when it is governed: the function that the rule is for may come after it."""
    called: list[Any] = []

    def respond(state: Any) -> Any:
        called.append(state)
        return state

    async def arespond(state: Any) -> Any:
        return respond(state)

    def govern(function: Any) -> Any:
        body: Any = RunnableLambda(function, name="respond") if as_runnable else function
        call: Any = arbiter_os.govern(body)
        if as_runnable:
            call = call.invoke if mode == "sync" else call.ainvoke
        return call if mode == "sync" else partial(awaited, call)

    def awaited(call: Any, state: Any) -> Any:
        return asyncio.run(call(state))

    arbiter_os = ArbiterOS()
    add(arbiter_os, kind, target_nodes=["respnd"])
    arespond.__name__ = "respond"
    governed = govern(respond if mode == "sync" else arespond)
    for _ in range(2):
        with pytest.raises(UnknownNodeError, match=f"{kind} 'rule' is for 'respnd'.*Did you mean 'respond'"):
            governed({})
    assert not called
    assert not list(arbiter_os.history.items())

    def respnd(state: Any) -> Any:
        return state

    arbiter_os.govern(respnd)
    governed({})
    assert called == [{}]


def test_a_runnable_that_is_run_alone_is_a_node_too() -> None:
    def respond(state: Any) -> Any:
        return state

    runnable: Any = RunnableLambda(respond)
    with pytest.raises(UnknownNodeError, match="Did you mean 'respond'"):
        ruled(target_nodes=["respnd"]).execute({}, runnable)


def test_a_rule_for_no_function_is_one_warning_at_the_first_call() -> None:
    """Steps of `execute` are not known beforehand, so a rule may be for another one."""
    arbiter_os = ruled(target_nodes=["elsewhere"])

    def step(state: Any) -> Any:
        return state

    with warned() as texts:
        arbiter_os.execute({}, step)
        governed = arbiter_os.govern(step)
    assert not texts
    with warned() as texts:
        governed({})
        governed({})
    assert len(texts) == 1
    assert "there is no node 'elsewhere'" in texts[0]


def test_a_node_of_the_second_graph_of_a_sequence_is_a_node() -> None:
    """A rule and an instruction may name it, and neither `govern` nor the linter takes it for a misspelt one."""
    builder = StateGraph(State)
    builder.add_node("both", chain(Spy("writer")) | chain(Spy("writers")))
    builder.add_edge(START, "both")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("most", 0, target_nodes=["writers"]))
    app = arbiter_os.govern(builder, {"writers": GENERATE})
    assert "unknown-node" not in {finding.code for finding in arbiter_os.lint(app)}
    with pytest.raises(PolicyViolationError, match=r"'writers' \(GENERATE\)"):
        app.invoke({"log": []})


def test_two_graphs_of_a_sequence_may_have_nodes_of_the_same_name() -> None:
    """Such a name is that of both, so it is not ambiguous, and it is reported once."""
    builder = StateGraph(State)
    builder.add_node("both", chain(Spy("writer")) | chain(Spy("writer")))
    builder.add_edge(START, "both")
    arbiter_os = ArbiterOS(strict=True)
    arbiter_os.govern(builder, {"writer": GENERATE}).invoke({"log": []})
    assert [item.instruction for item in arbiter_os.history.items() if item.node == "writer"] == [
        GENERATE
    ] * 2
    with pytest.raises(ConfigurationError, match=r"no instruction: both:writer\."):
        arbiter_os.govern(builder)


def test_a_misspelt_node_of_a_subgraph_is_an_error() -> None:
    builder = StateGraph(State)
    builder.add_node("team", graph_of("respond"))
    builder.add_edge(START, "team")
    for name in ("respnd", "team:respond"):  # a target is a node's own name
        with pytest.raises(UnknownNodeError, match="Did you mean 'respond'"):
            ruled(target_nodes=[name]).govern(builder)


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("respnd", "respond"),
        ("resspond", "respond"),
        ("resopnd", "respond"),
        ("Respond", "respond"),
        ("writr", "write"),
        ("pya", "pay"),
        ("tool", "tools"),
        ("node_a", "nodeA"),
        ("call-model", "call_model"),
        ("retreive_documants", "retrieve_documents"),
    ],
)
def test_a_spelling_of_a_node_is_recognised(name: str, node: str) -> None:
    assert misspelt(name, ["other", node]) == node


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("step_1", "step_2"),
        ("step1", "step2"),
        ("pay_a", "pay_b"),
        ("agent", "agent2"),
        ("send", "end"),
        ("search", "research"),
        ("say", "pay"),
        ("a", "b"),
        ("verify", "write"),
        ("planner", "plan"),
    ],
)
def test_a_name_of_its_own_is_no_misspelt_one(name: str, node: str) -> None:
    """Another graph of the same ArbiterOS may well have a node of that name."""
    assert misspelt(name, [node]) is None
    assert misspelt(node, [name]) is None


def test_a_name_that_another_governed_graph_has_is_no_mistake() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.govern(graph_of("tools"))
    arbiter_os.add_policy_checker(AtMost("rule", 3, target_nodes=["tools"]))
    arbiter_os.govern(graph_of("tool"))
    both = ruled(target_nodes=["tool", "tools"])  # names both, so it means both
    both.govern(graph_of("tool"))


def test_a_rule_that_is_off_is_not_looked_at() -> None:
    rule = AtMost("rule", 0, target_nodes=["respnd"])
    rule.mode = "off"
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(rule)
    with warned() as texts:
        arbiter_os.govern(graph_of("respond")).invoke({})
    assert not texts


# Anything else ------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_for_no_node_is_one_warning(kind: str, mode: str) -> None:
    arbiter_os = ArbiterOS()
    add(arbiter_os, kind, target_nodes=["elsewhere"])
    with warned() as texts:
        app = arbiter_os.govern(graph_of("write", "respond"))
        run(app, {}, mode=mode)
        run(app, {}, mode=mode)
        run(arbiter_os.govern(graph_of("third")), {}, mode=mode)
    assert texts == [
        f"{kind} 'rule' applies to no node: there is no node 'elsewhere'. Nodes: respond, write. "
        "Correct target_nodes, or remove the rule."
    ]


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("node:closed", "there is no node 'closed'. Nodes: respond, write. "),
        ("VERIFY", "no node has the instruction VERIFY. "),
        (
            ["node:closed", "VERIFY"],
            "there is no node 'closed', and no node has the instruction VERIFY. Nodes: respond, write. ",
        ),
    ],
)
def test_a_rule_that_waits_for_no_node_is_reported_once(
    step: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    rule = (
        NeverAfter("rule", step, target_nodes=["respond"])
        if isinstance(step, str)
        else RequireBefore("rule", "node:write", since=step, target_nodes=["respond"])
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(rule)
    app = arbiter_os.govern(graph_of("write", "respond"), {"write": GENERATE})
    app.invoke({})
    app.invoke({})
    assert caplog.messages == [
        f"checker 'rule' waits for a step that never comes: {why}Correct the step, or remove the rule."
    ]


def test_the_remedy_of_rules_that_wait_for_no_node_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(NeverAfter("closed", "node:closed", target_nodes=["respond"]))
    arbiter_os.add_policy_checker(NeverAfter("verified", "VERIFY", target_nodes=["respond"]))
    arbiter_os.govern(graph_of("write", "respond"), {"write": GENERATE}).invoke({})
    assert caplog.messages == [
        "2 of the 2 rules of the program wait for steps that never come: checker 'closed': there is no node 'closed'; "
        "checker 'verified': no node has the instruction VERIFY. Nodes: respond, write. "
        "Correct the step, or remove the rule."
    ]


def test_a_condition_that_names_no_node_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    arbiter_os = ArbiterOS()
    for number, expression in enumerate(
        ("node == 'wriite'", "history.nodes.gone > 1", "node == 'write' && false")
    ):
        arbiter_os.add_policy_checker(ConditionChecker(f"rule {number}", expression))
    app = arbiter_os.govern(graph_of("write", "respond"))
    app.invoke({})
    app.invoke({})
    assert caplog.messages == [
        "2 of the 3 rules of the program name nodes that do not exist: the condition of checker 'rule 0': there is no "
        "node 'wriite'; the condition of checker 'rule 1': there is no node 'gone'. Nodes: respond, write. Did you "
        "mean 'write'? Correct the name in the condition. Nodes: respond, write. Correct the name in the condition."
    ]


def test_an_advisor_of_an_evaluator_that_is_not_registered_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(FeedbackAdvisor("hint", "soure"))
    arbiter_os.add_advisor(FeedbackAdvisor("part", "sourced.brief"))
    arbiter_os.add_advisor(FeedbackAdvisor("off", "silent"))
    silent = ThresholdEvaluator("silent", "n", 1)
    silent.mode = "off"
    arbiter_os.add_evaluator(silent)
    app = arbiter_os.govern(graph_of("write"))
    arbiter_os.add_evaluator(ThresholdEvaluator("sourced", "n", 1))
    for _ in range(2):
        app.invoke({})
    assert arbiter_os.drain()
    assert caplog.messages == [
        "advisor 'hint' reads an evaluator that is not registered: there is no 'soure'. Evaluators: silent, sourced. "
        "Did you mean 'sourced'? Correct the name, or register it."
    ]


def test_a_router_of_an_evaluator_of_other_nodes_is_reported_once() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("sourced", good, target_nodes=["write"]))
    arbiter_os.add_policy_router(EvaluationRouter("revise", "sourced", "write", target_nodes=["respond"]))
    arbiter_os.add_policy_router(EvaluationRouter("every", "sourced", "write"))
    arbiter_os.add_policy_router(
        MetricThresholdPolicyRouter("low", "n", 0, "write", target_nodes=["respond"])
    )
    app = arbiter_os.govern(graph_of("write", "respond"))
    with warned() as texts:
        for _ in range(2):
            app.invoke({})
    assert texts == [
        "router 'revise' reads an evaluator that judges none of its nodes: 'sourced' never judges respond. "
        "Give both the same targets."
    ]


def test_a_router_of_an_evaluator_that_judges_nothing_yet_causes_no_warning_of_its_own() -> None:
    """The evaluator has one. It may be for a graph that is governed later."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("sourced", good, target_nodes=["write"]))
    arbiter_os.add_policy_router(EvaluationRouter("revise", "sourced", "respond"))
    with warned() as texts:
        arbiter_os.govern(graph_of("respond")).invoke({})
    (text,) = texts
    assert text.startswith("evaluator 'sourced' applies to no node")


def test_a_shipped_router_that_a_graph_has_no_use_for_is_not_reported() -> None:
    arbiter_os = ArbiterOS.from_constitution("arbiter:reflect-on-low-quality")
    with warned() as texts:
        arbiter_os.govern(graph_of("act", "reflect"), {"act": TOOL_CALL}).invoke({})
    assert not texts


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        (HistoryPolicyChecker("rule", [REFLECT, GENERATE]), "REFLECT"),
        (FlowChecker("rule", {"web": Label(written_by=["TOOL_CALL"])}, {"web": ["GENERATE"]}), "TOOL_CALL"),
        (FlowChecker("rule", {"web": Label(written_by=["GENERATE"])}, {"web": ["RESPOND"]}), "RESPOND"),
    ],
)
def test_a_rule_on_several_instructions_of_which_one_is_missing_is_reported(
    rule: PolicyChecker, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is for all nodes, and without that instruction it denies none of them."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(rule)
    arbiter_os.govern(graph_of("write", "respond"), {"write": GENERATE}).invoke({})
    assert caplog.messages == [
        f"checker 'rule' waits for a step that never comes: no node has the instruction {missing}. "
        "Correct the step, or remove the rule."
    ]


def test_a_flow_rule_is_not_reported_while_one_of_its_labels_has_a_source(
    caplog: pytest.LogCaptureFixture,
) -> None:
    labels = {"web": Label(written_by=["TOOL_CALL"]), "model": Label(written_by=["GENERATE"])}
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(FlowChecker("rule", labels, {"web": ["RESPOND"], "model": ["RESPOND"]}))
    app = arbiter_os.govern(graph_of("write", "respond"), {"write": GENERATE, "respond": RESPOND})
    with pytest.raises(PolicyViolationError, match="RESPOND may not read"):
        app.invoke({"log": []})
    assert not any("waits for a step" in message for message in caplog.messages)


@tool
def delete_files(path: str) -> str:
    """Deletes."""
    return f"deleted {path}"


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        (["delete_file"], "delete_file"),
        (["deletefiles"], "deletefiles"),
        (["Delete_Files"], "Delete_Files"),
        (["rm"], None),
        (["delete_f*"], None),
        (["delete_*", "delete_file"], None),
        (["delete_file", "read_*"], "delete_file"),
        (["delete_fil?", "delete_file"], "delete_file"),
        (["delete_files", "*s", "delete_file"], None),
        ([ToolRule("delete_*", when="args.path != '/'"), "delete_file"], "delete_file"),
    ],
)
@pytest.mark.parametrize("parameter", ["allow", "deny"])
def test_a_tool_of_a_rule_that_is_nearly_one_of_the_graph_is_reported(
    parameter: str, named: list[Any], wrong: str | None
) -> None:
    """Once; other names may be those of tools that exist only during a run. One that a pattern for a tool of the graph
    covers, too, changes nothing."""
    call: Any = {"name": "delete_files", "args": {"path": "/x"}, "id": "1"}
    builder: Any = StateGraph(Chat)
    builder.add_node("tools", ToolNode([delete_files]))
    builder.add_edge(START, "tools")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ToolsChecker("files", on_deny="audit", **cast(Any, {parameter: named})))
    app = arbiter_os.govern(team_of(builder.compile(), Chat), {"team:tools": TOOL_CALL})
    with warned() as texts:
        for _ in range(2):
            app.invoke({"messages": [AIMessage("", tool_calls=[call])]})
    said = f"checker 'files' names the tool {wrong!r}, which this graph does not have. Did you mean 'delete_files'?"
    assert texts == ([said] if wrong else [])


def team_of(graph: Any, state: Any = State) -> Any:
    builder = StateGraph(state)
    builder.add_node("team", graph)
    builder.add_edge(START, "team")
    return builder.compile()


OWN = type("EnvironmentError", (Exception,), {})
"""An exception of the program with a name that Python has for another."""


@MODES
@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("ValueErorr", "ValueError"),
        ("json.JSONDecodeError", "json.decoder.JSONDecodeError"),
        ("IOError", "OSError"),
        ("json.decoder.JSONDecodeError", None),
        ("some_package.Unheard", None),
        ("TaskError", None),
        ("EnvError", None),
        ("EnvironmentError", None),
    ],
)
def test_an_exception_that_is_never_raised_is_reported_once(named: str, meant: str | None, mode: str) -> None:
    """A name of a package that is not imported yet may be right, and so is the name of a class of the program."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(ErrorRouter("rule", "b", errors=["TimeoutError", named]))
    app = arbiter_os.govern(graph_of("a", "b"))
    with warned() as texts:
        run(app, {}, mode=mode)
        run(app, {}, mode=mode)
    assert texts == (
        [
            f"router 'rule' names an exception that does not exist: there is no {named!r}. "
            f"Did you mean {meant!r}? Correct the name in errors."
        ]
        if meant
        else []
    )


def test_nodes_that_another_arbiter_governs_are_reported() -> None:
    """They keep the rules of that one, and a rule for them alone applies to no node."""
    team = team_of(ArbiterOS().govern(graph_of("pay")))
    with warned() as texts:
        app = ruled(target_nodes=["pay"]).govern(team)
        assert app.invoke({"log": []}) == {"log": ["pay"]}
    assert len(texts) == 2
    assert "node 'team' is a graph that another ArbiterOS governs" in texts[0]
    assert "'rule' applies to no node: there is no node 'pay'" in texts[1]


def test_nodes_that_the_same_arbiter_governs_keep_their_instructions() -> None:
    arbiter_os = ArbiterOS(strict=True)
    arbiter_os.add_policy_checker(AtMost("rule", 0, target_instructions=[TOOL_CALL]))
    team = team_of(arbiter_os.govern(graph_of("pay"), {"pay": TOOL_CALL}))
    with warned() as texts, pytest.raises(PolicyViolationError, match="node 'pay'"):
        arbiter_os.govern(team).invoke({"log": []})
    assert texts == []
    with pytest.raises(UnknownNodeError, match="instructions= names 'team:pay'"):
        arbiter_os.govern(team, {"team:pay": GENERATE})


def test_the_warning_is_at_the_line_of_the_caller() -> None:
    app = ruled(target_nodes=["elsewhere"]).govern(graph_of("write"))
    with pytest.warns(ArbiterWarning) as caught:
        app.invoke({})
    assert caught[0].filename == __file__


def test_a_flow_rule_that_forbids_nothing_is_reported() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(FlowChecker("flow", {"u": Label(input_keys=["x"])}, {"u": []}))
    with warned() as texts:
        arbiter_os.govern(graph_of("write"), {"write": GENERATE}).invoke({})
    assert texts == [
        "checker 'flow' applies to no node: it forbids no instruction to read a label. Name some under forbid."
    ]


def test_a_rule_in_a_file_is_reported_with_its_line(tmp_path: Path) -> None:
    pack(tmp_path, "checkers:\n  - {name: never, use: at_most, times: 1, target_nodes: [elsewhere]}")
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    with warned() as texts:
        arbiter_os.govern(graph_of("write")).invoke({})
    (text,) = texts
    assert text.startswith(
        "policies/p.yaml:5: checker 'never' applies to no node: there is no node 'elsewhere'."
    )


def test_the_rules_of_one_source_are_one_warning(tmp_path: Path) -> None:
    pack(
        tmp_path,
        "checkers:\n"
        "  - {name: one, use: at_most, times: 1, target_nodes: [elsewhere]}\n"
        "  - {name: two, use: at_most, times: 1, target_instructions: [VERIFY]}\n"
        "  - {name: both, use: at_most, times: 1, target_instructions: [GENERATE], target_nodes: [respond]}\n"
        "  - {name: used, use: at_most, times: 9}\n",
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    arbiter_os.add_policy_checker(AtMost("coded", 1, target_instructions=["TOOL_CALL"]))
    with warned() as texts:
        arbiter_os.govern(graph_of("write", "respond"), {"write": GENERATE}).invoke({})
    coded, filed = texts
    assert coded.startswith("checker 'coded' applies to no node: no node has the instruction TOOL_CALL.")
    assert "Instructions of the nodes: GENERATE" in coded
    assert filed.startswith("policies/p.yaml:5: 3 of the 4 rules of policies/p.yaml apply to no node: ")
    assert "checker 'two' (line 6): no node has the instruction VERIFY" in filed
    assert "checker 'both' (line 7): no node 'respond' has the instruction GENERATE" in filed


@MODES
def test_a_rule_for_another_governed_graph_is_not_reported(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("of_a", 9, target_nodes=["pay"]))
    arbiter_os.add_policy_checker(AtMost("of_b", 9, target_nodes=["ship"]))
    arbiter_os.add_policy_checker(AtMost("of_sub", 9, target_nodes=["pack"]))
    builder = StateGraph(State)
    builder.add_node("team", graph_of("pack"))
    builder.add_edge(START, "team")
    with warned() as texts:
        graphs = [arbiter_os.govern(graph) for graph in (graph_of("pay"), graph_of("ship"), builder)]
        for app in graphs:
            run(app, {}, mode=mode)
    assert not texts


def test_a_rule_for_a_graph_that_is_gone_is_not_reported() -> None:
    arbiter_os = ruled(target_nodes=["pay"])
    arbiter_os.govern(graph_of("pay"))
    with warned() as texts:
        arbiter_os.govern(graph_of("ship")).invoke({})
    assert not texts


def test_a_rule_for_a_governed_or_labelled_function_is_not_reported() -> None:
    arbiter_os = ruled(target_nodes=["alone"])
    arbiter_os.add_policy_checker(AtMost("labelled", 9, target_instructions=[VERIFY]))

    def alone(state: Any) -> Any:
        return state

    @arbiter_os.instruction(VERIFY)
    def labelled(state: Any) -> Any:
        return state

    arbiter_os.govern(alone)
    with warned() as texts:
        arbiter_os.govern(graph_of("pay"), {"pay": TOOL_CALL}).invoke({})
    assert not texts
    assert labelled({}) == {}


@MODES
def test_a_rule_that_is_registered_later_is_reported_at_the_next_run(mode: str) -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(graph_of("write"))
    with warned() as texts:
        run(app, {}, mode=mode)
    assert not texts
    arbiter_os.add_policy_checker(AtMost("late", 1, target_nodes=["elsewhere"]))
    with warned() as texts:
        run(app, {}, mode=mode)
        run(app, {}, mode=mode)
    assert len(texts) == 1


def test_a_reload_reports_what_has_changed(tmp_path: Path) -> None:
    rule = "checkers:\n  - {name: rule, use: at_most, times: %d, target_nodes: [elsewhere]}"
    arbiter_os = ArbiterOS.from_constitution(pack(tmp_path, rule % 1))
    app = arbiter_os.govern(graph_of("write"))
    counts: list[int] = []
    for times in (1, 1, 2):
        pack(tmp_path, rule % times)
        arbiter_os.load_constitution()
        with warned() as texts:
            app.invoke({})
        counts.append(len(texts))
    assert counts == [1, 0, 1]


def test_a_rule_of_a_shadow_is_reported(tmp_path: Path) -> None:
    arbiter_os = ArbiterOS()
    pack(tmp_path, "checkers:\n  - {name: rule, use: at_most, times: 1, target_nodes: [elsewhere]}")
    arbiter_os.load_shadow(tmp_path)
    with warned() as texts:
        arbiter_os.govern(graph_of("write")).invoke({})
    assert len(texts) == 1


def test_a_class_that_says_itself_where_it_applies_is_asked() -> None:
    class ByPrefix(PolicyChecker):
        def applies_to(self, node: str, instruction: Any) -> bool:
            return any(node.startswith(target) for target in self.target_nodes or ())

        def check_before(self, history: History) -> bool:
            return True

    for prefix, count in (("wri", 0), ("pay", 1)):
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(ByPrefix("rule", target_nodes=[prefix]))
        with warned() as texts:
            arbiter_os.govern(graph_of("write")).invoke({})
        assert len(texts) == count


@MODES
def test_a_warning_that_is_an_error_is_raised_once_and_before_the_node(mode: str) -> None:
    write = Spy("write")
    app = ruled(target_nodes=["elsewhere"]).govern(chain(write))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ArbiterWarning):
            run(app, {}, thread("t"), mode=mode)
        assert not write.calls
        run(app, {}, thread("t"), mode=mode)
    assert len(write.calls) == 1


# No node has an instruction -----------------------------------------------------------------------


def test_the_kernel_on_a_graph_without_instructions_says_so_when_it_is_governed() -> None:
    arbiter_os = ArbiterOS.from_constitution("arbiter:kernel")
    with warned() as texts:
        app = arbiter_os.govern(graph_of("write", "respond"))
    (text,) = texts
    assert text.startswith(
        "8 of the 10 rules of arbiter:kernel apply to no node, because no node has an instruction. "
        "Run `arbiter init app.py:graph`"
    )
    with warned() as texts:
        app.invoke({})
        arbiter_os.govern(graph_of("third")).invoke({})
    assert not texts


def test_the_kernel_on_a_graph_with_instructions_says_nothing() -> None:
    """A rule that ships is for any graph: one that this graph has no use for is no mistake."""
    arbiter_os = ArbiterOS.from_constitution("arbiter:kernel")
    with warned() as texts:
        arbiter_os.govern(graph_of("write", "pay"), {"write": GENERATE, "pay": TOOL_CALL}).invoke({})
    assert not texts


def test_rules_of_a_project_that_lack_instructions_are_one_warning_with_their_line(tmp_path: Path) -> None:
    pack(
        tmp_path,
        "checkers:\n"
        "  - {name: one, use: at_most, times: 1, target_instructions: [VERIFY]}\n"
        "  - {name: two, use: at_most, times: 1, target_instructions: [TOOL_CALL]}\n",
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    with warned() as texts:
        arbiter_os.govern(graph_of("write")).invoke({})
    (text,) = texts
    assert text.startswith(
        "policies/p.yaml:5: 2 of the 2 rules of policies/p.yaml apply to no node, because no node has an instruction."
    )


# Instructions that are bound to nodes -------------------------------------------------------------


def test_a_misspelt_node_among_the_bindings_is_an_error(tmp_path: Path) -> None:
    pack(tmp_path, "instructions:\n  - {node: respnd, instruction: RESPOND}", "instructions/p.yaml")
    match = r"instructions/p\.yaml:5: .* 'respnd'.*Did you mean 'respond'"
    with pytest.raises(UnknownNodeError, match=match):
        ArbiterOS.from_constitution(tmp_path).govern(graph_of("respond"))


def test_bindings_that_fit_no_node_are_one_warning(tmp_path: Path) -> None:
    pack(
        tmp_path,
        "instructions:\n"
        "  - {node: respond, instruction: RESPOND}\n"
        "  - {node: elsewhere, instruction: VERIFY}\n"
        '  - {node: "step_*", instruction: GENERATE}\n',
        "instructions/p.yaml",
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    with warned() as texts:
        arbiter_os.govern(graph_of("respond")).invoke({})
    (text,) = texts
    assert text.startswith("instructions/p.yaml:6: 2 of the 3 bindings of instructions/p.yaml fit no node")


def test_a_binding_names_a_node_of_a_subgraph_with_or_without_its_parent(tmp_path: Path) -> None:
    builder = StateGraph(State)
    builder.add_node("team", graph_of("respond", "check"))
    builder.add_edge(START, "team")
    pack(
        tmp_path,
        'instructions:\n  - {node: "team:respond", instruction: RESPOND}\n  - {node: check, instruction: VERIFY}',
        "instructions/p.yaml",
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    with warned() as texts:
        arbiter_os.govern(builder).invoke({})
    assert not texts
    found = {item.node: item.instruction for item in arbiter_os.history.items()}
    assert (found["respond"], found["check"]) == (RESPOND, VERIFY)


@MODES
@pytest.mark.parametrize("at", [None, "now", True, float("nan"), float("inf"), 1e300, datetime.now(UTC)])
def test_a_clock_returns_seconds(at: Any, mode: str) -> None:
    """Another value is an error before the first node runs, also where no rule or checkpoint needs the time."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS(clock=lambda: at)
    for app in (chain(pay), chain(pay, checkpointer=InMemorySaver())):
        with pytest.raises(
            ConfigurationError, match=r"^clock returned .*; expected POSIX seconds, such as \d+\."
        ):
            run(arbiter_os.govern(app), {"log": []}, thread("t"), mode=mode)
    with pytest.raises(ConfigurationError, match="clock returned"):
        arbiter_os.execute({}, pay)
    assert pay.calls == []


def test_a_clock_and_instructions_of_another_type_are_errors() -> None:
    given: Any = 5
    with pytest.raises(ConfigurationError, match="clock is 5; expected a function"):
        ArbiterOS(clock=given)
    given = ["a"]
    with pytest.raises(ConfigurationError, match=r"instructions= is \['a'\]; expected a mapping"):
        ArbiterOS().govern(chain(Spy("a")), given)


# Rules that ask, without a checkpointer -----------------------------------------------------------


@MODES
def test_rules_that_cannot_ask_are_one_warning_before_the_first_node_runs(mode: str) -> None:
    """Compiling and governing need no checkpointer: a server, or the graph around, may bring one."""
    first, pay = Spy("first"), Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    arbiter_os.add_policy_router(EscalationRouter("editor", target_nodes=["pay"]))
    app = arbiter_os.govern(chain(first, pay))
    with warnings.catch_warnings(), pytest.raises(ArbiterWarning, match="no checkpointer"):
        warnings.simplefilter("error")
        run(app, {"log": []}, mode=mode)
    assert first.calls == []
    app = arbiter_os.govern(chain(first, pay))
    with warned() as texts:
        for _ in range(2):
            with pytest.raises(PolicyViolationError, match="no checkpointer"):
                run(app, {"log": []}, mode=mode)
    (text,) = texts
    assert "checker 'boss' (node 'pay'), router 'editor' (node 'pay'). Compile it with one" in text


@MODES
def test_a_rule_that_asks_under_a_condition_is_reported_before_it_asks(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        ConditionChecker("large", ask_when="input.amount > 100", target_nodes=["pay"])
    )
    with warned() as texts:
        run(arbiter_os.govern(chain(Spy("first"), Spy("pay"))), {"amount": 1}, mode=mode)
    assert len(texts) == 1


@MODES
def test_a_first_node_that_asks_without_a_checkpointer_is_denied_without_a_warning(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss"))
    with warned() as texts, pytest.raises(PolicyViolationError, match="no checkpointer"):
        run(arbiter_os.govern(chain(Spy("pay"))), {"log": []}, mode=mode)
    assert texts == []


@pytest.mark.parametrize("checkpointer", [None, True])
def test_a_graph_that_gets_a_checkpointer_is_not_warned_of(checkpointer: Any) -> None:
    """From the graph around it, in the config, or because the rules only record."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    arbiter_os.add_policy_checker(ApprovalChecker("audit", target_nodes=["pay"], on_deny="audit"))
    builder = StateGraph(State)
    builder.add_node("team", chain(Spy("first"), Spy("pay"), checkpointer=checkpointer))
    builder.add_edge(START, "team")
    with warned() as texts:
        governed = arbiter_os.govern(builder)
        governed.checkpointer = InMemorySaver()  # as LangGraph's server does
        assert governed.invoke({"log": []}, thread("1"))["__interrupt__"]
    assert texts == []


def test_a_subgraph_without_a_checkpointer_is_warned_of() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    builder = StateGraph(State)
    builder.add_node("team", chain(Spy("first"), Spy("pay"), checkpointer=False))
    builder.add_edge(START, "team")
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    with warned() as texts:
        app.invoke({"log": []}, thread("1"))
    (text,) = texts
    assert "'boss' (node 'team:pay')" in text
