"""The node runs of a case, compared with its expectations."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypedDict, cast

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.channels import EphemeralValue, LastValue
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import RetryPolicy

from arbiter import ArbiterOS, Verdict
from arbiter.harness import Case, Suite
from arbiter.instructions import GENERATE
from tests.support import MODES, Chat, Check, Judge, Spy, State, chain, good


def fan() -> Any:
    """plan, then a, b and c side by side, then join."""
    builder: Any = StateGraph(State)
    for name in ("plan", "a", "b", "c", "join", "extra"):
        builder.add_node(name, Spy(name))
    builder.add_edge(START, "plan")
    for branch in "abc":
        builder.add_edge("plan", branch)
    builder.add_edge(["a", "b", "c"], "join")
    return builder.compile()


def passes(graph: Any, **expect: Any) -> bool:
    (score,) = Suite("graph", [Case("x", {"log": []}, expect=expect)]).run(graph).results[0].scores
    return score.passed is True


@pytest.mark.parametrize(
    ("nodes", "passed"),
    [
        ({"strict": ["plan", {"all": ["c", "a", "b"]}, "join"]}, True),
        (["plan", {"all": ["c", "a", "b"]}, "join"], True),
        (["plan", {"all": {"c", "a", "b"}}, "join"], True),
        ({"strict": ["plan", "a", "b", "c", "join"]}, False),
        ({"strict": ["plan", {"all": ["c", "a", "b"]}]}, False),
        ({"strict": ["plan", {"all": ["c", "a", "b"]}, "join", "extra"]}, False),
        ({"unordered": ["join", "a", "b", "c", "plan"]}, True),
        ({"unordered": ["join", "a", "b", "c"]}, False),
        ({"subset": ["plan", "a", "b", "c", "join", "extra"]}, True),
        ({"subset": ["plan", "a", "b", "join", "extra"]}, False),
        ({"superset": ["plan", "join"]}, True),
        ({"superset": ["plan", "c", "a", "join"]}, True),
        ({"superset": ["join", "plan"]}, False),
        ({"superset": ["plan", "a", "a"]}, False),
    ],
)
def test_trajectories(nodes: Any, passed: bool) -> None:
    assert passes(fan(), nodes=nodes) == passed


def test_a_subset_may_allow_nodes_that_the_graph_has_not() -> None:
    """The lint says so. In any other comparison, such a name is a mistake before the run."""
    suite = Suite("graph", [Case("x", {"log": []}, expect={"nodes": {"subset": ["plan", "review"]}})])
    graph = chain(Spy("plan"))
    assert suite.run(graph).results[0].passed
    assert replace(suite, target=graph).lint() == [
        "the case 'x' allows the node 'review', which the graph has not"
    ]


def test_the_lint_names_misspelt_tools_and_exceptions() -> None:
    """Of no others: tools may exist during a run only, and an exception may be that of a package."""

    @tool
    def lookup(order: str) -> str:
        """Looks up."""
        return order

    expects: list[Any] = [
        {"tools": ["lokup"]},
        {"tools": ["search"]},
        {"tools": {"superset": ["lookup", "lookups"]}},
        {"raises": "ValueErorr"},
        {"raises": "OrderLost"},
    ]
    cases = [Case(f"x{number}", {"messages": []}, expect=expect) for number, expect in enumerate(expects)]
    target: Any = StateGraph(MessagesState)
    target.add_node("tools", ToolNode([lookup]))
    target.add_edge(START, "tools")
    assert Suite("graph", cases, target=target.compile()).lint() == [
        "the case 'x0' expects the tool 'lokup', which the graph has not. Did you mean 'lookup'?",
        "the case 'x3' expects 'ValueErorr', but no exception has that name. Did you mean 'ValueError'?",
    ]


def itself(given: Any) -> Any:
    return given


class Question(TypedDict):
    log: list[str]


def test_the_lint_and_a_run_name_keys_of_the_input_that_the_graph_ignores(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """LangGraph drops them without a word, and the node fails or answers something else."""
    cases = [Case("x", {"logs": []}), Case("y", {"log": [], "logs": []}), Case("z", {"log": []})]
    target = chain(Spy("plan"))
    suite = Suite("graph", cases, scorers={"size": lambda _: True}, target=target)
    (said,) = suite.lint()
    suite.run(folder=None)
    assert caplog.messages == [f"graph: {said}"]
    assert said.startswith(
        "2 cases have 'logs' in the input, which the graph ignores, because it is not a key of"
    )
    assert said.endswith("Did you mean 'log'?")
    narrow: Any = StateGraph(State, input_schema=Question)
    narrow.add_node("plan", Spy("plan"))
    narrow.add_edge(START, "plan")
    other = Case("x", {"log": [], "amount": 1})
    (said,) = Suite("narrow", [other], scorers={"size": lambda _: True}, target=narrow.compile()).lint()
    assert said.startswith("1 case has 'amount' in the input, which the graph ignores")
    free: Any = StateGraph(cast(Any, dict))
    free.add_node("plan", itself)
    free.add_edge(START, "plan")
    without_state = cast(Any, Pregel)(
        nodes={"plan": NodeBuilder().subscribe_only("given").do(itself).write_to("answer")},
        channels={"given": EphemeralValue(Any), "answer": LastValue(object)},
        input_channels="given",
        output_channels="answer",
    )
    for takes_any in (free.compile(), without_state, itself):
        assert Suite("any", cases, scorers={"size": lambda _: True}, target=takes_any).lint() == []


def test_the_lint_finds_a_node_with_a_slash_in_its_name() -> None:
    graph: Any = StateGraph(State)
    graph.add_node("plan/draft", Spy("plan"))
    graph.add_edge(START, "plan/draft")
    judge = Judge("kind", good, target_nodes=["plan/draft"])
    assert Suite("s", [Case("x", {"log": []})], evaluators=[judge], target=graph.compile()).lint() == []


@MODES
@pytest.mark.parametrize("node", ["inner/fix", "fix"])
def test_a_redirect_in_a_subgraph_can_be_expected(mode: str, node: str) -> None:
    """By the name that `nodes` has for it, and the evaluators of the suite target its nodes by their own names."""
    arbiter_os = ArbiterOS()
    never = Check("never", lambda _: Verdict.deny("no"), target_nodes=["write"], on_deny="redirect:fix")
    arbiter_os.add_policy_checker(never)
    builder: Any = StateGraph(State)
    builder.add_node("inner", chain(Spy("write"), extra=[Spy("fix")]))
    builder.add_node("fix", Spy("fix"))
    builder.add_edge(START, "inner")
    graph = builder.compile()
    judge = Judge("kind", good, target_nodes=["write"])
    case = Case("a", {"log": []}, expect={"redirected_to": node})
    suite = Suite("redirected", [case], evaluators=[judge])
    if mode == "sync":
        report = suite.run(graph, arbiter_os=arbiter_os)
    else:
        report = asyncio.run(suite.arun(graph, arbiter_os=arbiter_os))
    assert report.results[0].passed
    assert replace(suite, target=graph).lint() == []


def test_a_retried_node_counts_once() -> None:
    calls: list[int] = []

    def flaky(state: State) -> State:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError
        return {"log": ["flaky"]}

    builder: Any = StateGraph(State)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False))
    builder.add_edge(START, "flaky")
    assert passes(builder.compile(), nodes=["flaky"])
    assert len(calls) == 3


@pytest.mark.parametrize(
    "nodes",
    [
        ["outer", "after"],
        ["outer/inner", "outer", "after"],
        ["outer/inner", "after"],
        {"superset": ["outer/inner", "after"]},
        ["outer", "after/last"],
    ],
)
def test_a_node_of_a_subgraph_is_named_with_its_parent(nodes: Any) -> None:
    """A subgraph is compared inside only if a node inside it is named."""
    builder: Any = StateGraph(State)
    builder.add_node("outer", chain(Spy("inner")))
    builder.add_node("after", chain(Spy("last")))
    builder.add_edge(START, "outer")
    builder.add_edge("outer", "after")
    assert passes(builder.compile(), nodes=nodes)


@pytest.mark.parametrize(
    ("tools", "passed"),
    [
        ([{"all": ["pay", "search"]}, "search"], True),
        (["search", "pay", "search"], False),
        ({"unordered": ["search", "search", "pay"]}, True),
        ({"superset": ["pay"]}, True),
        ({"subset": ["search"]}, False),
    ],
)
def test_calls_of_tools(tools: Any, passed: bool) -> None:
    def calling(*names: str) -> Any:
        calls: list[Any] = [
            {"name": name, "args": {}, "id": f"{number}"} for number, name in enumerate(names)
        ]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    def first(state: Chat) -> Any:
        return calling("search", "pay")

    def second(state: Chat) -> Any:
        return calling("search")

    suite = Suite("tools", [Case("x", {"messages": []}, expect={"tools": tools})])
    assert suite.run(chain(first, second, state=Chat)).results[0].passed == passed


def test_messages_that_a_node_passes_on_are_no_calls_of_it() -> None:
    """Those of a subgraph, and those that it was given."""
    call: Any = {"name": "search", "args": {}, "id": "1"}

    def model(state: Chat) -> Any:
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def trim(state: Any) -> Any:
        return {"messages": state["messages"]}

    builder: Any = StateGraph(Chat)
    builder.add_node("agent", chain(model, state=Chat))
    builder.add_node("trim", trim)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "trim")
    suite = Suite("tools", [Case("x", {"messages": ["Hello"]}, expect={"tools": ["search"]})])
    assert suite.run(builder).results[0].passed


@pytest.mark.parametrize("passes_on", [False, True])
def test_a_node_that_runs_a_governed_graph_keeps_its_own_calls_of_tools(passes_on: bool) -> None:
    def called(tool: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": tool, "args": {}, "id": tool}])

    def search(state: Chat) -> Any:
        return {"messages": [called("search")]}

    arbiter_os = ArbiterOS()
    inner = arbiter_os.govern(chain(search, state=Chat))

    def agent(state: Chat) -> Any:
        found = inner.invoke({"messages": []})["messages"]
        return {"messages": [*(found if passes_on else ()), called("pay")]}

    suite = Suite("tools", [Case("x", {"messages": []}, expect={"tools": ["search", "pay"]})])
    assert suite.run(chain(agent, state=Chat), arbiter_os=arbiter_os).results[0].passed


def test_branches_of_a_superstep_may_be_named_in_any_order() -> None:
    """Also if an instruction that comes first fits the node that is named after it."""
    graph = ArbiterOS().govern(fan(), {"a": GENERATE, "b": GENERATE})
    for nodes in ([{"instruction": "GENERATE"}, "a", "join"], ["a", {"instruction": "GENERATE"}, "join"]):
        assert passes(graph, nodes={"superset": nodes})
