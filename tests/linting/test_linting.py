"""The linter: what it finds on graphs with one bug each, that it finds nothing on clean ones, and how it says so."""

from __future__ import annotations

import builtins
import json
import operator
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from arbiter import Advisor, ArbiterOS, FeedbackAdvisor, NodeEvaluator, PolicyChecker, PolicyRouter
from arbiter import checkers as kinds
from arbiter._contracts import Contract
from arbiter.checkers import AtMost, HistoryPolicyChecker, RequireBefore
from arbiter.errors import ArbiterWarning, NotAGraphError, UnknownInstructionError, UnknownNodeError
from arbiter.evaluators import ThresholdEvaluator, WeightedEvaluator
from arbiter.instructions import GENERATE, TOOL_CALL, VERIFY
from arbiter.linting import (
    CODES,
    Finding,
    LintReport,
    lint,
    render_table,
    to_json,
    to_mermaid,
    to_sarif,
)
from arbiter.routers import ErrorRouter, EvaluationRouter, MetricThresholdPolicyRouter
from tests.linting.lint_corpus import (
    CLEAN,
    SEEDED,
    Case,
    agent,
    body,
    by_score,
    demands,
    graph,
    sub,
    up_to_pay,
)
from tests.support import examples


def governing(*rules: Contract, strict: bool = False) -> ArbiterOS:
    arbiter_os = ArbiterOS(strict=strict)
    for rule in rules:
        match rule:
            case PolicyChecker():
                arbiter_os.add_policy_checker(rule)
            case PolicyRouter():
                arbiter_os.add_policy_router(rule)
            case NodeEvaluator():
                arbiter_os.add_evaluator(rule)
            case Advisor():
                arbiter_os.add_advisor(rule)
            case _:
                raise TypeError(rule)
    return arbiter_os


def report_of(case: Case) -> LintReport:
    return governing(*case.rules, strict=case.strict).lint(case.make())


def alarms(report: LintReport) -> list[Finding]:
    return [finding for finding in report if finding.severity != "info"]


# The corpus ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_no_false_alarm(case: Case) -> None:
    """A clean graph has no error and no warning."""
    assert list(map(str, alarms(report_of(case)))) == []


@pytest.mark.parametrize("case", SEEDED, ids=lambda case: case.name)
def test_a_seeded_bug_is_found(case: Case) -> None:
    """It is found under its code, at its node, and nothing else is found."""
    assert case.finds is not None
    code, node = case.finds
    found = alarms(report_of(case))
    assert [finding.code for finding in found] == [code], list(map(str, found))
    assert found[0].node == node or not node
    assert not case.severity or found[0].severity == case.severity
    assert found[0].message
    assert found[0].remedy


def test_the_corpus_is_large_enough() -> None:
    """30 clean graphs and more, 30 with a bug and more, each code several times."""
    assert len(CLEAN) >= 30
    assert len(SEEDED) >= 30
    seeded = Counter(case.finds[0] for case in SEEDED if case.finds is not None)
    assert set(seeded) == set(CODES) - {"not-analysed"}
    assert min(seeded.values()) >= 2
    assert len({case.name for case in (*CLEAN, *SEEDED)}) == len(CLEAN) + len(SEEDED)


# Against what LangGraph does ----------------------------------------------------------------------

NODES = ("a", "b", "c", "d", "pay")
ENDS = (*NODES, END)


class Log(TypedDict, total=False):
    ran: Annotated[list[tuple[int, str]], operator.add]


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Static edges, choices, a join and a deferred node among five nodes; "a" is the step that "pay" needs."""
    ends = st.lists(st.sampled_from(ENDS), max_size=2, unique=True)
    return {
        "first": draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True)),
        "edges": {name: draw(ends) for name in NODES},
        "choices": {
            name: draw(st.lists(st.sampled_from(ENDS), min_size=1, max_size=3, unique=True))
            for name in draw(st.lists(st.sampled_from(NODES), max_size=2, unique=True))
        },
        "join": draw(st.none() | st.lists(st.sampled_from(NODES), min_size=2, max_size=3, unique=True)),
        "joined": draw(st.sampled_from(NODES)),
        "deferred": draw(st.none() | st.sampled_from(NODES)),
    }


def drawn(shape: dict[str, Any], dice: random.Random) -> Any:
    builder: Any = StateGraph(Log)

    def node(name: str) -> Any:
        def run(state: Log, config: RunnableConfig) -> Log:
            return {"ran": [(config.get("metadata", {})["langgraph_step"], name)]}

        return run

    def choice(ends: list[str]) -> Any:
        def choose(state: Log) -> str:
            return dice.choice(ends)

        return choose

    for name in NODES:
        kind = {"a": VERIFY, "pay": TOOL_CALL}.get(name, GENERATE)
        deferred = name == shape["deferred"]
        builder.add_node(name, node(name), metadata={"instruction": kind}, defer=deferred)
        for end in shape["edges"][name]:
            builder.add_edge(name, end)
    for name in shape["first"]:
        builder.add_edge(START, name)
    for name, ends in shape["choices"].items():
        builder.add_conditional_edges(name, choice(ends), ends)
    if shape["join"]:
        builder.add_edge(shape["join"], shape["joined"])
    return builder.compile()


def acted_unverified(ran: list[tuple[int, str]]) -> bool:
    """Whether "pay" ran while no earlier superstep had "a"."""
    first = min((step for step, name in ran if name == "a"), default=10**6)
    return any(name == "pay" and step <= first for step, name in ran)


@pytest.mark.lengthy
@examples(0.8)
@given(shape=shapes(), seed=st.integers(0, 10**6))
def test_every_observed_problem_was_found(shape: dict[str, Any], seed: int) -> None:
    """If a run of LangGraph acts without the step before it, the linter reported it; without choices, only then."""
    dice = random.Random(seed)
    app = drawn(shape, dice)
    found = lint(app, [RequireBefore("verified", VERIFY, target_nodes=["pay"])])
    said = any(f.code == "unverified-path" and f.severity == "error" for f in found)
    happened = False
    for _ in range(1 if not shape["choices"] else 8):
        ran: list[tuple[int, str]] = []
        try:
            for update in app.stream({}, {"recursion_limit": 12}, stream_mode="values"):
                ran = update.get("ran", ran)
        except GraphRecursionError:
            pass
        happened |= acted_unverified(ran)
    assert said or not happened
    if not shape["choices"]:
        assert said == happened


@pytest.mark.lengthy
@examples(0.6)
@given(shape=shapes(), seed=st.integers(0, 10**6))
def test_reported_unreachable_nodes_and_endless_cycles_are_real(shape: dict[str, Any], seed: int) -> None:
    """A node that is called unreachable never runs, and a run that meets an endless cycle never ends."""
    app = drawn(shape, random.Random(seed))
    found = lint(app)
    lost = {node for f in found if f.code == "unreachable" for node in f.nodes}
    endless = [set(f.nodes) for f in found if f.code in ("endless-cycle", "no-end")]
    for _ in range(5):
        ran: list[tuple[int, str]] = []
        ended = True
        try:
            for update in app.stream({}, {"recursion_limit": 12}, stream_mode="values"):
                ran = update.get("ran", ran)
        except GraphRecursionError:
            ended = False
        names = {name for _, name in ran}
        assert not names & lost
        if any(members & names for members in endless):
            assert not ended


# What is looked at --------------------------------------------------------------------------------


def test_instructions_can_be_given_or_come_from_the_governed_graph() -> None:
    """`lint` takes instructions as `govern` does, and knows those that a graph was governed with."""
    bare = graph("START draft pay END", bare=["draft", "pay"])()
    arbiter_os = ArbiterOS()
    kinds = {"draft": GENERATE, "pay": TOOL_CALL}
    governed = arbiter_os.govern(bare, instructions=kinds)
    assert [f.code for f in arbiter_os.lint(bare)] == ["no-instruction", "no-instruction"]
    assert not arbiter_os.lint(bare, instructions=kinds)
    assert not arbiter_os.lint(governed)
    with pytest.raises(UnknownNodeError):
        arbiter_os.lint(bare, instructions={"darft": GENERATE})


def test_unlintable_objects_are_refused() -> None:
    with pytest.raises(NotAGraphError, match="cannot lint"):
        lint(print)


def test_linting_runs_no_node() -> None:
    """Neither a node nor a checker."""

    def explode(state: Any) -> Any:
        raise AssertionError

    class Exploding(PolicyChecker):
        def check_before(self, history: Any) -> bool:
            raise AssertionError

    case = graph("START draft END", bodies={"draft": explode})
    assert not governing(Exploding("exploding")).lint(case())


def test_the_path_goes_through_subgraphs() -> None:
    """From START to the node, with the nodes that lead to it on every level."""
    app = graph(
        "START draft outer", bodies={"outer": sub("START load inner", bodies={"inner": sub("START pay")})}
    )
    (finding,) = governing(demands()).lint(app())
    assert finding.path == (START, "draft", "outer", "outer:load", "outer:inner", "outer:inner:pay")


def test_the_graphs_of_a_sequence_are_read_one_after_another() -> None:
    """A step of one comes before those of the next, and before what follows the node."""
    check, pay = sub("START verify END"), sub("START pay END")
    for first, second, codes in ((check, pay, []), (pay, check, ["unverified-path"])):
        inside = graph("START both END", bodies={"both": first | second})
        assert [finding.code for finding in governing(demands()).lint(inside())] == codes
    for sequence in (check | sub("START draft END"), sub("START draft END") | check):
        before = graph("START both pay END", bodies={"both": sequence})
        assert not list(governing(demands()).lint(before()))


@pytest.mark.parametrize(
    ("inside", "finds"),
    [
        (sub("START draft load draft"), [("endless-cycle", "both:draft")]),
        (sub("START draft END", "load END"), [("unreachable", "both:load")]),
        (sub("START draft load pay END"), [("passed-sequence", "both:pay")]),
    ],
)
def test_each_graph_of_a_sequence_is_linted(inside: Any, finds: list[tuple[str, str]]) -> None:
    """As a graph that is the whole body of a node, whichever place it has."""
    other = sub("START reflect END")
    for both in (inside, other | inside, inside | other):
        app = graph("START both END", bodies={"both": both})
        report = governing(HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL])).lint(app())
        assert [(each.code, each.nodes[0]) for each in report if each.nodes] == finds


@pytest.mark.parametrize(
    ("first", "second"), [("draft", "pay"), ("draft", "load pay"), ("load draft", "pay")]
)
def test_a_sequence_of_graphs_evades_a_forbidden_sequence(first: str, second: str) -> None:
    both = sub(f"START {first} END") | sub(f"START {second} END")
    app = graph("START both END", bodies={"both": both})
    governed = governing(HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]))
    assert [each.code for each in governed.lint(app())] == ["passed-sequence"]
    # The rule does not stop the run.
    governed.govern(app()).invoke({"log": []})


def test_a_cap_in_any_graph_of_a_sequence_caps_the_cycle_around_it() -> None:
    load, draft = sub("START load END"), sub("START draft END")
    for both in (draft | load, load | draft):
        app = graph(
            "START both", bodies={"both": both}, branches={"both": (by_score, {"again": "both", "done": END})}
        )
        assert [each.code for each in governing().lint(app())] == ["uncapped-cycle"]
        assert not list(governing(AtMost("few", 2, target_nodes=["draft"])).lint(app()))


def test_a_command_for_the_parent_graph_is_read_in_any_graph_of_a_sequence() -> None:
    load, leaving = sub("START load END"), sub("START reflect END", bodies={"reflect": up_to_pay})
    for both in (leaving | load, load | leaving):
        app = graph("START both END", "pay END", bodies={"both": both})
        assert not list(governing().lint(app()))


def test_a_step_of_a_subgraph_is_named_without_its_parents() -> None:
    """As `govern` takes it: a rule that waits for "parent:child" waits for a node that no graph has."""
    app = graph("START outer pay END", bodies={"outer": sub("START check")})
    waits = {
        name: RequireBefore("v", f"node:{name}", target_nodes=["pay"]) for name in ("check", "outer:check")
    }
    reports = {name: governing(rule).lint(app()) for name, rule in waits.items()}
    assert {name: [each.code for each in report] for name, report in reports.items()} == {
        "check": [],
        "outer:check": ["unverified-path"],
    }


def test_a_question_without_a_checkpointer_is_information() -> None:
    """LangGraph's server and `arbiter run` bring one, so it is no warning. A rule that only records does not ask."""
    rules = [kinds.ApprovalChecker("boss"), kinds.ApprovalChecker("quiet", on_deny="audit")]
    report = governing(*rules).lint(graph("START pay END")())
    assert [(f.code, f.severity, f.rule, f.nodes) for f in report] == [
        ("no-checkpointer", "info", "boss", ("pay",))
    ]
    assert "compile(checkpointer=InMemorySaver())" in report[0].remedy


def test_audit_makes_a_warning_of_an_error() -> None:
    """A rule that only records breaks nothing."""
    rule = demands()
    rule.mode = "audit"
    report = governing(rule).lint(graph("START pay END")())
    assert [(f.code, f.severity) for f in report] == [("unverified-path", "warning")]
    assert report.ok


def circle() -> list[Contract]:
    return [
        RequireBefore("a", "node:check", target_nodes=["draft"]),
        RequireBefore("b", "node:draft", target_nodes=["check"]),
    ]


def forbidden_step() -> list[Contract]:
    return [demands(), HistoryPolicyChecker("never", [VERIFY, TOOL_CALL], adjacent=False)]


def forbidden_tool() -> list[Contract]:
    return [kinds.ToolsChecker("yes", allow=["delete"]), kinds.ToolsChecker("no", deny=["delete"])]


@pytest.mark.parametrize("rules", [circle, forbidden_step, forbidden_tool])
def test_a_contradiction_with_a_rule_that_only_records_is_a_warning(
    rules: Callable[[], list[Contract]],
) -> None:
    """Nothing is denied by both, so that CI may pass; what the rule in force finds is reported all the same."""
    make = graph("START draft check pay END")
    enforced, recording = rules(), rules()
    recording[1].mode = "audit"
    assert [f.severity for f in governing(*enforced).lint(make()) if f.code == "contradiction"] == ["error"]
    found = governing(*recording).lint(make())
    assert [f.severity for f in found if f.code == "contradiction"] == ["warning"]
    assert {f.rule for f in found.errors} <= {recording[0].name}


def test_a_rule_named_like_a_node_in_a_contradiction_is_checked_too() -> None:
    """Only findings about the contradicting rules themselves are left out."""
    late = RequireBefore("check", "node:load", target_nodes=["pay"])
    report = governing(*circle(), late).lint(graph("START draft check load END", "START pay END")())
    assert [(f.code, f.rule) for f in report.errors] == [("unverified-path", "check"), ("contradiction", "a")]


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (kinds.ConditionChecker("c", "input.score > 1", on_deny="redirect:nowhere"), "unknown-target"),
        (kinds.ConditionChecker("c", "input.score > 1", target_nodes=["drafft"]), "unknown-node"),
    ],
)
def test_a_node_that_governing_refuses_is_an_error_also_in_audit_mode(rule: PolicyChecker, code: str) -> None:
    rule.mode = "audit"
    arbiter_os, app = governing(rule), graph("START draft END")()
    assert [f.code for f in arbiter_os.lint(app).errors] == [code]
    with pytest.raises(UnknownNodeError):
        arbiter_os.govern(app)


def binding(folder: Path, *bindings: str) -> ArbiterOS:
    """Governance by a pack that gives nodes their instructions; the first binding is in its line 5."""
    pack = folder / "instructions.yaml"
    head = "version: 1\nname: p\ndescription: d\ninstructions:\n"
    pack.write_text(head + "".join(f"  - {each}\n" for each in bindings))
    return ArbiterOS.from_constitution(pack)


def test_a_binding_of_an_instruction_to_no_node_is_found(tmp_path: Path) -> None:
    """A misspelt name is an error, as when the graph is governed; a pattern without a node is a warning."""
    arbiter_os = binding(
        tmp_path,
        "{node: drafft, instruction: GENERATE}",
        '{node: "pay_*", instruction: TOOL_CALL}',
        "{node: pay, instruction: TOOL_CALL}",
    )
    app = graph("START draft pay END")()
    found = [f for f in arbiter_os.lint(app) if f.code == "unknown-node"]
    assert [(f.severity, f.source) for f in found] == [
        ("error", "instructions.yaml:5"),
        ("warning", "instructions.yaml:6"),
    ]
    assert "Did you mean 'draft'?" in found[0].message
    with pytest.raises(UnknownNodeError):
        arbiter_os.govern(app)


def test_a_binding_behind_one_that_has_all_its_nodes_is_found(tmp_path: Path) -> None:
    """Also by the first run; a general one behind those of single nodes is meant so."""
    arbiter_os = binding(
        tmp_path,
        '{node: "p*", instruction: GENERATE}',
        "{node: pay, instruction: TOOL_CALL}",
        "{node: plan, instruction: GENERATE}",
        '{node: "*", instruction: LOAD}',
    )
    app = graph("START plan pay END", bare=["plan", "pay"])()
    (found,) = alarms(arbiter_os.lint(app))
    assert (found.code, found.severity, found.source) == ("dead-rule", "warning", "instructions.yaml:6")
    assert found.message.endswith("has no effect: 'p*' comes before it at instructions.yaml:5")
    with pytest.warns(
        ArbiterWarning, match=r"instructions.yaml:6: the binding of 'pay' has no effect: 'p\*' comes"
    ):
        arbiter_os.govern(app).invoke({})


def test_a_rule_of_a_shipped_pack_may_find_nothing_to_do() -> None:
    """It was written for any graph; that it never fires on this one is worth no warning."""
    rule = AtMost("calls", 3, target_instructions=[TOOL_CALL])
    rule.source = "arbiter:kernel.yaml:14"
    (finding,) = governing(rule).lint(graph("START draft END")())
    assert (finding.code, finding.severity) == ("dead-rule", "info")


@pytest.mark.lengthy
def test_a_graph_with_too_many_runs_is_said_to_be() -> None:
    """The linter gives up in bounded time, and says so instead of passing or alarming."""
    names = [f"n{i}" for i in range(9)]

    def choose(state: Any) -> str:
        return str(state)

    builder: Any = StateGraph(Log)
    for name in names:
        builder.add_node(name, body, metadata={"instruction": GENERATE})
        builder.add_edge(START, name)
        builder.add_conditional_edges(name, choose, [*names, END])
    builder.add_node("check", body, metadata={"instruction": VERIFY})
    builder.add_node("pay", body, metadata={"instruction": TOOL_CALL})
    builder.add_edge(START, "check")
    builder.add_edge(names, "pay")
    report = governing(demands(), AtMost("cap", 9, target_instructions=[GENERATE])).lint(builder.compile())
    assert "not-analysed" in {f.code for f in report}
    assert not alarms(report)


def test_middleware_of_an_agent_needs_no_instruction_of_its_own() -> None:
    """`create_agent` graphs are known by their binding pack."""
    report = governing(AtMost("rounds", 9, target_nodes=["model"])).lint(agent()())
    assert not alarms(report)


# How it is said -----------------------------------------------------------------------------------


def to_pay(state: Any) -> str:
    return "pay"


def sourced(source: str = "policies/[red]pay[/red].yaml:14") -> tuple[LintReport, Any]:
    rule = demands()
    rule.source = source
    app = graph("START draft", "verify pay END", branches={"draft": (to_pay, ["verify", "pay"])})()
    return governing(rule).lint(app), app


def test_the_table_fits_80_columns_and_shows_text_as_it_is() -> None:
    """Rule, file and line, path and remedy; markup in names and control characters do nothing."""
    report, _ = sourced("policies/[red]\x1b[31mpay.yaml:14")
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    assert "START → draft → pay" in text
    assert "verified  policies/[red]\\x1b[31mpay.yaml:14" in text
    assert "remedy: " in text
    assert "1 error" in text
    assert "\x1b" not in text
    assert "\x1b[" in render_table(report, color=True)
    assert str(LintReport()) == "Nothing found."


def test_a_notebook_shows_the_table() -> None:
    report, _ = sourced("policies/<pay>.yaml:14")
    html = report._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "policies/&lt;pay&gt;.yaml:14" in html
    assert "START → draft → pay" in html


def test_the_text_of_a_report_is_the_same_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich recognises the kernel of a notebook by this class, and would show the text there as well."""

    def show(*_: object) -> None:
        pytest.fail("it was shown, too")

    shell = type("ZMQInteractiveShell", (), {})
    report, _ = sourced()
    text = str(report)
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    monkeypatch.setattr("rich.jupyter.display", show)
    assert str(report) == text


def test_json_holds_everything() -> None:
    report, _ = sourced()
    data = json.loads(to_json(report))
    assert data["ok"] is False
    assert data["counts"] == {"error": 1, "warning": 0, "info": 0}
    (finding,) = data["findings"]
    assert finding == report[0].to_dict()
    assert (finding["code"], finding["nodes"]) == ("unverified-path", ["pay"])
    assert finding["path"] == [START, "draft", "pay"]
    assert finding["source"] == "policies/[red]pay[/red].yaml:14"


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("policies/a b.yaml:14", "policies/a%20b.yaml"),
        ("/home/me/policies/pay.yaml:14", "file:///home/me/policies/pay.yaml"),
        ("arbiter:kernel/floor.yaml:14", None),
        ("code", None),
        ("", None),
    ],
)
def test_sarif_points_at_the_rule(source: str, uri: str | None) -> None:
    """SARIF 2.1.0 with a rule for each code, and a place for each result: the file, else the node."""
    report, _ = sourced(source)
    log = json.loads(to_sarif(report))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["unverified-path"]
    (result,) = run["results"]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("unverified-path", 0, "error")
    assert "draft → pay" in result["message"]["text"]
    (location,) = result["locations"]
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "pay"
    physical = location.get("physicalLocation")
    if uri is None:
        assert physical is None
    else:
        assert physical == {"artifactLocation": {"uri": uri}, "region": {"startLine": 14}}


def test_mermaid_marks_nodes_and_edges() -> None:
    """LangGraph's own drawing comes first; below are classes, edge styles and a comment for each finding."""
    report, app = sourced()
    text = to_mermaid(report, app)
    drawing = app.get_graph(xray=True).draw_mermaid()
    assert text.startswith(drawing.rstrip("\n"))
    assert "\tclass pay lint_error\n" in text
    edges = [line for line in drawing.splitlines() if line.endswith(";") and "graph" not in line]
    marked = {edges[int(line.split()[1])] for line in text.splitlines() if "linkStyle" in line}
    assert marked == {"\t__start__ --> draft;", "\tdraft -.-> pay;"}
    assert "%% error unverified-path: node 'pay'" in text


@pytest.mark.lengthy
@pytest.mark.parametrize("case", [*CLEAN, *SEEDED], ids=lambda case: case.name)
def test_every_report_can_be_shown_in_every_format(case: Case) -> None:
    app = case.make()
    report = governing(*case.rules, strict=case.strict).lint(app)
    assert to_mermaid(report, app).count("%% ") == len(report)
    assert len(json.loads(to_sarif(report))["runs"][0]["results"]) == len(report)
    assert len(json.loads(to_json(report))["findings"]) == len(report)
    assert all(len(line) <= 80 for line in str(report).splitlines())


VERIFIED = {"draft": GENERATE, "verify": VERIFY, "pay": TOOL_CALL}


def on_drafts(name: str = "e", node: str = "draft") -> ThresholdEvaluator:
    return ThresholdEvaluator(name, "score", 0.5, target_nodes=[node])


def off(rule: ThresholdEvaluator) -> ThresholdEvaluator:
    rule.mode = "off"
    return rule


MISSES: list[tuple[str, str, list[Contract]]] = [
    (
        "always-denied",
        "error",
        [on_drafts(), kinds.RequireBefore("v", VERIFY, evaluator="e", target_nodes=["pay"])],
    ),
    (
        "dead-rule",
        "warning",
        [on_drafts(node="verify"), EvaluationRouter("r", "e", "draft", target_nodes=["draft"])],
    ),
    ("always-denied", "error", [HistoryPolicyChecker("h", [GENERATE, TOOL_CALL], adjacent=False)]),
    (
        "unverified-path",
        "error",
        [
            kinds.RequireBefore("v", VERIFY, target_nodes=["pay"]),
            MetricThresholdPolicyRouter("r", "s", 0.5, "pay", target_nodes=["verify"]),
        ],
    ),
    (
        "unverified-path",
        "error",
        [
            kinds.RequireBefore("v", VERIFY, target_nodes=["pay"]),
            ErrorRouter("r", "pay", target_nodes=["verify"]),
        ],
    ),
    (
        "dead-rule",
        "warning",
        [
            kinds.FlowChecker(
                "f", labels={"u": kinds.Label(written_by=["STORE"])}, forbid={"u": ["TOOL_CALL"]}
            )
        ],
    ),
    (
        "dead-rule",
        "warning",
        [kinds.FlowChecker("f", labels={"u": kinds.Label(input_keys=["x"])}, forbid={"u": ["DELEGATE"]})],
    ),
    ("dead-rule", "warning", [HistoryPolicyChecker("h", [GENERATE, TOOL_CALL], target_nodes=["draft"])]),
    (
        "dead-rule",
        "warning",
        [
            kinds.FlowChecker(
                "f", {"u": kinds.Label(input_keys=["x"])}, {"u": ["TOOL_CALL"]}, target_nodes=["draft"]
            )
        ],
    ),
    (
        "dead-rule",
        "warning",
        [
            kinds.FlowChecker(
                "f",
                {"u": kinds.Label(input_keys=["x"]), "v": kinds.Label(input_keys=["s"])},
                {"u": ["TOOL_CALL"], "v": []},
            )
        ],
    ),
    ("dead-rule", "warning", [kinds.FlowChecker("f", {"u": kinds.Label(input_keys=["x"])}, {"u": []})]),
    ("dead-rule", "warning", [on_drafts(), WeightedEvaluator("w", {"e": 1}, target_nodes=["verify"])]),
    ("dead-rule", "warning", [kinds.RequireBefore("v", VERIFY, since=["REFLECT"], target_nodes=["pay"])]),
    ("dead-rule", "warning", [kinds.ConditionChecker("c", "1 > 2")]),
    (
        "dead-rule",
        "warning",
        [kinds.ConditionChecker("c", 'input.score > 0.5 && node == "pay"', target_nodes=["draft", "verify"])],
    ),
    (
        "dead-rule",
        "warning",
        [
            kinds.ConditionChecker(
                "c", 'instruction in ["GENERATE"] && history.nodes.pay > 1', target_nodes=["pay"]
            )
        ],
    ),
    (
        "dead-rule",
        "warning",
        [
            kinds.ConditionChecker(
                "c", 'has(input.x) && input.x == "has" && node == "pay"', target_nodes=["draft"]
            )
        ],
    ),
    ("unknown-evaluator", "error", [on_drafts("quality"), EvaluationRouter("r", "qualty", "verify")]),
    ("unknown-evaluator", "warning", [EvaluationRouter("r", "quality", "verify")]),
    ("unknown-evaluator", "warning", [on_drafts("quality"), FeedbackAdvisor("a", "qualty")]),
    ("unknown-evaluator", "warning", [off(on_drafts()), FeedbackAdvisor("a", "e")]),
    (
        "unknown-evaluator",
        "error",
        [off(on_drafts()), kinds.RequireBefore("v", VERIFY, evaluator="e", target_nodes=["pay"])],
    ),
    ("unknown-instruction", "warning", [kinds.ConditionChecker("c", 'instruction == "TOOLCALL"')]),
    (
        "unknown-instruction",
        "warning",
        [kinds.ConditionChecker("c", 'instruction in ["ExecutionCore.TOOL_CALL", "GENERATE"]')],
    ),
    (
        "unknown-rule",
        "warning",
        [
            kinds.BudgetChecker("spending", calls=9),
            kinds.ConditionChecker("c", "history.denied.spendng > 1 || history.denied.registered_later > 1"),
        ],
    ),
    ("no-boolean", "error", [kinds.ToolsChecker("t", [kinds.ToolRule("pay", when="size(args.x)")])]),
    (
        "unknown-field",
        "warning",
        [
            kinds.FlowChecker(
                "f",
                labels={"u": kinds.Label(written_by=["GENERATE"], keys=["scores"])},
                forbid={"u": ["TOOL_CALL"]},
            )
        ],
    ),
    (
        "unknown-field",
        "warning",
        [
            kinds.FlowChecker(
                "f", labels={"u": kinds.Label(input_keys=["scoer"])}, forbid={"u": ["TOOL_CALL"]}
            )
        ],
    ),
]
FINE: list[list[Contract]] = [
    [
        on_drafts(node="verify"),
        kinds.RequireBefore("v", VERIFY, evaluator="e", target_nodes=["pay"]),
        EvaluationRouter("r", "e", "draft", target_nodes=["verify"]),
    ],
    [HistoryPolicyChecker("h", [TOOL_CALL, GENERATE], adjacent=False)],
    [
        kinds.RequireBefore("v", VERIFY, target_nodes=["pay"]),
        ErrorRouter("r", "draft", target_nodes=["verify"]),
    ],
    [kinds.FlowChecker("f", labels={"u": kinds.Label(input_keys=["x"])}, forbid={"u": ["TOOL_CALL"]})],
    [on_drafts(), WeightedEvaluator("w", {"e": 1}, target_nodes=["draft", "verify"])],
    [on_drafts(), EvaluationRouter("r", "e.tone", "verify", target_nodes=["draft"])],
    [on_drafts(), FeedbackAdvisor("a", "e")],
    [kinds.ConditionChecker("c", 'instruction == "TOOL_CALL" && history.denied.c > 1')],
    [kinds.ConditionChecker("c", "has(input.score) && input.score > 0.5")],
    [kinds.ConditionChecker("c", "has(config.user) && has(config.user.name) && config.user.name != ''")],
    [kinds.ConditionChecker("c", "size(input.x) > 5 && has(config.user_id)")],
    [kinds.ConditionChecker("c", "input.x in ['a'] || history.count > 9", target_nodes=["pay"])],
    [kinds.ConditionChecker("c", '1 > 2 || node != "pay"')],
    [kinds.RequireBefore("v", VERIFY, since=["REFLECT", "GENERATE"], target_nodes=["pay"])],
]


def found_on_a_payment(rules: list[Contract]) -> list[tuple[str, str]]:
    builder = StateGraph(Payment)
    builder.add_sequence([(name, nothing) for name in VERIFIED])
    builder.add_edge(START, "draft")
    return [
        (finding.code, finding.severity)
        for finding in governing(*rules).lint(builder.compile(), instructions=VERIFIED)
    ]


class Payment(TypedDict, total=False):
    x: str
    s: float
    score: float


def nothing(state: Any) -> Any:
    return {}


@pytest.mark.parametrize(("code", "severity", "rules"), MISSES)
def test_rules_that_can_only_deny_or_never_fire(code: str, severity: str, rules: list[Contract]) -> None:
    """Each is found once, by its one mistake."""
    assert found_on_a_payment(rules) == [(code, severity)]


def test_a_label_without_use_is_named_in_a_rule_that_has_others() -> None:
    """The rule itself may well fire."""
    labels = {"u": kinds.Label(input_keys=["x"]), "v": kinds.Label(input_keys=["s"])}
    rule = kinds.FlowChecker("f", labels, {"u": ["TOOL_CALL"]})
    (found,) = alarms(governing(rule).lint(graph("START draft tools END")()))
    assert found.message == (
        "checker 'f' can never fire for its label 'v': no instruction is forbidden to read it"
    )


@pytest.mark.parametrize("rules", FINE)
def test_the_same_rules_without_the_mistake_are_fine(rules: list[Contract]) -> None:
    assert found_on_a_payment(rules) == []


@pytest.mark.parametrize(
    ("metadata", "given", "where"),
    [
        ({"instruction": "GENERAT"}, None, "node 'draft': metadata['instruction']: "),
        ({}, {"draft": "GENERAT"}, "instructions['draft']: "),
    ],
)
def test_a_name_that_is_no_instruction_is_reported_with_its_node(
    metadata: dict[str, str], given: dict[str, str | Any] | None, where: str
) -> None:
    builder = StateGraph(Payment).add_node("draft", nothing, metadata=metadata).add_edge(START, "draft")
    for look in (ArbiterOS().lint, ArbiterOS().govern):
        with pytest.raises(UnknownInstructionError) as caught:
            look(builder, instructions=given)
        assert str(caught.value).startswith(f"{where}expected the name of an instruction, got 'GENERAT'")
        assert caught.value.name == "GENERAT"
