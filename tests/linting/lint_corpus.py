"""Graphs to lint: clean ones, and ones with exactly one bug, with the code and the node that must be found."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import langchain.agents
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt
from langsmith import traceable  # pyright: ignore[reportUnknownVariableType]
from typing_extensions import TypedDict

from arbiter import HistoryPolicyChecker, MetricThresholdPolicyRouter, checkers
from arbiter._contracts import Contract
from arbiter.checkers import (
    ApprovalChecker,
    AtMost,
    ConditionChecker,
    NeverAfter,
    RequireBefore,
    ToolsChecker,
    WithinSteps,
)
from arbiter.evaluators import ConditionEvaluator, ThresholdEvaluator
from arbiter.instructions import (
    CONSTRAIN,
    DELEGATE,
    FALLBACK,
    GENERATE,
    INTERRUPT,
    LOAD,
    REFLECT,
    RESPOND,
    TOOL_CALL,
    VERIFY,
    Instruction,
)
from arbiter.routers import ErrorRouter, EvaluationRouter
from tests.graphs import EchoModel
from tests.support import Check, allow

create_agent = cast(Any, langchain.agents).create_agent


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    items: list[str]
    rounds: int
    score: float
    next: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph with rules. `finds` is None for a clean one, else (code, the offending node or "")."""

    name: str
    make: Callable[[], Any]
    rules: Sequence[Contract] = ()
    finds: tuple[str, str] | None = None
    severity: str = ""
    strict: bool = False


CASES: list[Case] = []
Step = Callable[[Any], Any]

KINDS: dict[str, Instruction] = {
    "draft": GENERATE,
    "write": GENERATE,
    "agent": GENERATE,
    "plan": GENERATE,
    "reflect": REFLECT,
    "load": LOAD,
    "verify": VERIFY,
    "check": VERIFY,
    "guard": CONSTRAIN,
    "pay": TOOL_CALL,
    "send": TOOL_CALL,
    "tools": TOOL_CALL,
    "work": TOOL_CALL,
    "hand": DELEGATE,
    "answer": RESPOND,
    "ask": INTERRUPT,
    "fallback": FALLBACK,
}


def clean(name: str, make: Callable[[], Any], *rules: Contract, **more: Any) -> None:
    CASES.append(Case(name=name, make=make, rules=rules, **more))


def bug(name: str, finds: tuple[str, str], make: Callable[[], Any], *rules: Contract, **more: Any) -> None:
    CASES.append(Case(name=name, make=make, rules=rules, finds=finds, **more))


def body(state: State) -> State:
    return {"log": ["ran"]}


def graph(
    *paths: str,
    bodies: Mapping[str, Any] | None = None,
    branches: Mapping[str, tuple[Any, Any]] | None = None,
    joins: Mapping[str, str] | None = None,
    defer: Sequence[str] = (),
    extra: Sequence[str] = (),
    bare: Sequence[str] = (),
    destinations: Mapping[str, tuple[str, ...]] | None = None,
    **options: Any,
) -> Callable[[], Any]:
    """A factory of a graph with an edge for each step of each path, "START draft verify pay END".

    Each node has the instruction that its name has in `KINDS`, but for those that are `bare`.
    """

    def make() -> Any:
        builder: Any = StateGraph(State)
        steps = [[_place(name) for name in path.split()] for path in paths]
        named: list[str] = [name for path in steps for name in path]
        for start, (_, ends) in (branches or {}).items():
            named.append(_place(start))
            named += ends.values() if isinstance(ends, dict) else ends or ()
        for starts, end in (joins or {}).items():
            named += [*starts.split(), _place(end)]
        names: list[str] = [*named, *extra, *(bodies or {})]
        for name in dict.fromkeys(names):
            if name not in (START, END):
                kind = KINDS.get(name)
                builder.add_node(
                    name,
                    (bodies or {}).get(name, body),
                    metadata={"instruction": kind} if kind is not None and name not in bare else None,
                    defer=name in defer,
                    destinations=(destinations or {}).get(name),
                )
        for path in steps:
            for start, end in itertools.pairwise(path):
                builder.add_edge(start, end)
        for start, (choose, ends) in (branches or {}).items():
            builder.add_conditional_edges(_place(start), choose, ends)
        for starts, end in (joins or {}).items():
            builder.add_edge(starts.split(), _place(end))
        return builder.compile(**options)

    return make


def _place(name: str) -> str:
    return {"START": START, "END": END}.get(name, name)


# What graphs choose by ----------------------------------------------------------------------------


def by_score(state: State) -> str:
    return "again" if state.get("score", 1.0) < 0.8 else "done"


def by_rounds(state: State) -> str:
    return "draft" if state.get("rounds", 0) < 3 else END


def back_or_nowhere(state: State) -> Any:
    return ["draft"] if state.get("score", 1.0) < 0.8 else []


def both(state: State) -> list[Literal["load", "reflect"]]:
    return ["load", "reflect"]


def to_verify_or_end(state: State) -> str:
    return "verify" if state.get("score", 1.0) < 0.8 else END


def to_verify_or_pay(state: State) -> str:
    return "verify" if state.get("score", 1.0) < 0.8 else "pay"


def typed_verify_or_end(state: State) -> Literal["verify", "__end__"]:
    return "verify" if state.get("score") else "__end__"


def typed_verify_or_pay(state: State) -> Literal["verify", "pay"]:
    return "verify" if state.get("score") else "pay"


def wherever(state: State) -> str:
    return state.get("next", END)


def fan_out(state: State) -> list[Send]:
    return [Send("work", {"items": [item]}) for item in state.get("items", [])]


def fan_to_pay(state: State) -> list[Send]:
    return [Send("pay", {"items": [item]}) for item in state.get("items", [])]


def go_verify(state: State) -> Command[Literal["verify"]]:
    return Command(goto="verify")


def go_pay(state: State) -> Command[Literal["pay"]]:
    return Command(goto="pay")


def go_verify_or_pay(state: State) -> Command[Literal["verify", "pay"]]:
    return Command(goto="verify" if state.get("score") else "pay")


def go_agent_or_end(state: State) -> Command[Literal["agent", "__end__"]]:
    return Command(goto="agent" if state.get("score") else "__end__")


def go_draft(state: State) -> Command[Literal["draft"]]:
    return Command(goto="draft")


def go_write(state: State) -> Command[Literal["write"]]:
    return Command(goto="write")


def go_undeclared_verify(state: State) -> Command[str]:
    return Command(update={"log": ["x"]}, goto="verify")


def go_undeclared_pay(state: State) -> Command[str]:
    return Command(goto="pay" if state.get("score") else "verify")


@traceable
def traced(state: State) -> Command[str]:
    return go_undeclared_verify(state)


def go_traced(state: State) -> Command[str]:
    return traced(state)


def go_wherever(state: State) -> Command[str]:
    return Command(goto=state.get("next", END))


def up_to_verify(state: State) -> Command[str]:
    return Command(graph=Command.PARENT, goto="verify")


def up_to_pay(state: State) -> Command[str]:
    return Command(graph=Command.PARENT, goto="pay")


def ask_human(state: State) -> State:
    return {"log": [str(interrupt("go on?"))]}


def lookup(query: str) -> str:
    """Look something up."""
    return query


def tool() -> StructuredTool:
    return StructuredTool.from_function(lookup)


def hand_over() -> StructuredTool:
    def transfer() -> Any:
        """Hand the conversation over."""
        return Command(goto="verify", graph=Command.PARENT)

    return StructuredTool.from_function(transfer)


def calls_model(state: State) -> State:
    answer: BaseMessage = AIMessage("done")
    return {"messages": [cast(AnyMessage, answer)]}


def agent(**more: Any) -> Callable[[], Any]:
    return lambda: create_agent(EchoModel(), tools=[tool()], **more)


def tool_loop(**options: Any) -> Callable[[], Any]:
    return graph(
        "START agent",
        "tools agent",
        bodies={"agent": calls_model, "tools": ToolNode([tool()])},
        branches={"agent": (tools_condition, ["tools", END])},
        **options,
    )


def sub(*paths: str, **more: Any) -> Any:
    return graph(*paths, **more)()


def of_dicts() -> Any:
    builder: Any = StateGraph(cast(Any, dict))
    builder.add_node("pay", RunnableLambda(str), metadata={"instruction": TOOL_CALL})
    builder.add_edge(START, "pay")
    return builder.compile()


def demands(**more: Any) -> RequireBefore:
    options: dict[str, Any] = {"target_instructions": [TOOL_CALL], **more}
    return RequireBefore("verified", VERIFY, **options)


def once(node: str) -> AtMost:
    return AtMost(f"{node}_rounds", 5, target_nodes=[node])


# Clean graphs -------------------------------------------------------------------------------------

clean("one node", graph("START answer END"))
clean("a chain", graph("START draft verify pay answer END"), demands())
clean("a chain without rules", graph("START load draft answer END"))
clean(
    "a chain of which one rule is for one node",
    graph("START draft verify pay END"),
    demands(target_nodes=["pay"]),
)
clean(
    "required by node name",
    graph("START load pay END"),
    RequireBefore("loaded", "node:load", target_nodes=["pay"]),
)
clean(
    "a branch with a list of ends",
    graph("START draft", "verify pay END", branches={"draft": (to_verify_or_end, ["verify", END])}),
    demands(),
)
clean(
    "a branch with a mapping",
    graph("START draft", "verify pay END", branches={"draft": (by_score, {"again": "verify", "done": END})}),
    demands(),
)
clean(
    "a branch with an annotated answer",
    graph("START draft", "verify pay END", branches={"draft": (typed_verify_or_end, None)}),
    demands(),
)
clean(
    "a branch that declares nothing, and names its ends",
    graph("START draft", "verify pay END", branches={"draft": (to_verify_or_end, None)}),
    demands(),
)
clean(
    "a branch that can lead anywhere",
    graph("START draft", extra=["write", "answer"], branches={"draft": (wherever, None)}),
)
clean(
    "a diamond that comes back together after the check",
    graph("START verify pay END", "START draft pay"),
    demands(),
)
clean(
    "a join that waits for the check",
    graph("START verify", "START draft reflect", joins={"verify reflect": "pay"}),
    demands(),
)
clean("a deferred node", graph("START draft reflect pay", "START verify", defer=["pay"]), demands())
clean(
    "a fan-out after the check",
    graph("START verify", "work answer END", branches={"verify": (fan_out, ["work"])}),
    demands(),
)
clean(
    "a fan-out that declares nothing",
    graph("START verify", "work answer END", branches={"verify": (fan_out, None)}),
    demands(),
)
clean(
    "a command with annotated ends",
    graph("START draft", "verify pay END", bodies={"draft": go_verify}),
    demands(),
)
clean(
    "a command with destinations",
    graph(
        "START draft",
        "verify pay END",
        bodies={"draft": go_undeclared_verify},
        destinations={"draft": ("verify",)},
    ),
    demands(),
)
clean(
    "a command that declares nothing, and names its end",
    graph("START draft", "verify pay END", bodies={"draft": go_undeclared_verify}),
    demands(),
)
clean(
    "a command of a function that a framework's decorator wraps",
    graph("START draft", "verify pay END", bodies={"draft": go_traced}),
    demands(),
)
clean(
    "a command that can go anywhere",
    graph("START draft", extra=["write", "answer"], bodies={"draft": go_wherever}),
)
clean(
    "a loop that counts, with a cap",
    graph("START draft", branches={"draft": (by_rounds, ["draft", END])}),
    once("draft"),
)
clean(
    "a loop with an edge that may choose nothing, as far as its annotation says",
    graph("START draft reflect", "write draft", branches={"reflect": (back_or_nowhere, ["draft", "write"])}),
    once("draft"),
)
clean(
    "a loop with a cap",
    graph("START draft reflect", branches={"reflect": (by_score, {"again": "draft", "done": END})}),
    once("reflect"),
)
clean(
    "a loop that a human stops",
    graph(
        "START draft ask",
        bodies={"ask": ask_human},
        branches={"ask": (by_score, {"again": "draft", "done": END})},
    ),
)
clean(
    "a conversation that never ends, turn by turn",
    graph("START agent ask agent", bodies={"ask": ask_human}, checkpointer=InMemorySaver()),
)
clean(
    "a loop that stops before a node",
    graph(
        "START draft reflect",
        branches={"reflect": (by_score, {"again": "draft", "done": END})},
        interrupt_before=["reflect"],
        checkpointer=InMemorySaver(),
    ),
)
clean(
    "a loop with a recursion limit",
    lambda: graph(
        "START draft reflect", branches={"reflect": (by_score, {"again": "draft", "done": END})}
    )().with_config(recursion_limit=20),
)
clean(
    "a loop with a checker of one's own that counts",
    graph("START draft reflect", branches={"reflect": (by_score, {"again": "draft", "done": END})}),
    type("Counting", (Check,), {"reads_history": True})("counting", allow, target_nodes=["draft"]),
)
clean(
    "a loop that only a router makes",
    graph("START draft answer END", extra=["reflect"]),
    MetricThresholdPolicyRouter("better", "score", 0.5, "reflect", target_nodes=["draft"]),
)
clean("a ToolNode loop with a cap", tool_loop(), once("tools"))
clean("a create_agent with a cap", agent(), once("model"))
clean("a create_agent without tools", lambda: create_agent(EchoModel(), tools=[]))
clean(
    "an agent as a subgraph",
    lambda: graph("START verify worker answer END", bodies={"worker": agent()()})(),
    demands(),
    once("model"),
)
clean(
    "a subgraph that checks",
    graph("START inner pay END", bodies={"inner": sub("START draft verify END")}),
    demands(),
)
clean(
    "a subgraph that acts after a check outside",
    graph("START verify inner END", bodies={"inner": sub("START draft pay END")}),
    demands(),
)
clean(
    "a subgraph in a subgraph",
    graph(
        "START verify outer END",
        bodies={"outer": sub("START inner END", bodies={"inner": sub("START pay END")})},
    ),
    demands(),
)
clean(
    "a loop through a subgraph that has a cap inside",
    graph(
        "START inner",
        bodies={"inner": sub("START draft reflect END")},
        branches={"inner": (by_score, {"again": "inner", "done": END})},
    ),
    once("reflect"),
)
clean(
    "a subgraph that hands over to its parent",
    graph(
        "START inner",
        "verify pay END",
        bodies={"inner": sub("START draft END", bodies={"draft": up_to_verify})},
    ),
    demands(),
)
clean(
    "tools that hand over to the parent",
    graph(
        "START inner",
        "verify pay END",
        bodies={"inner": sub("START tools END", bodies={"tools": ToolNode([hand_over()])})},
        destinations={"inner": ("verify",)},
    ),
    demands(target_nodes=["pay"]),
)
clean(
    "a denial that goes to the step that was missing",
    graph("START draft pay END", "verify pay"),
    demands(on_deny="redirect:verify"),
)
clean(
    "a forbidden sequence with a step between",
    graph("START draft verify pay END"),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]),
)
clean(
    "a forbidden sequence with a path past it that another rule closes",
    graph("START draft verify pay answer END"),
    RequireBefore("verified", VERIFY, since=[GENERATE], target_instructions=[TOOL_CALL]),
)
clean(
    "nothing was made that had to be verified",
    graph("START pay draft verify answer END"),
    RequireBefore("verified", VERIFY, since=[GENERATE], target_instructions=[TOOL_CALL]),
)
clean(
    "verified inside of a subgraph, and in a loop",
    graph("START inner pay END", bodies={"inner": sub("START draft verify END")}),
    RequireBefore("verified", VERIFY, since=[GENERATE], target_instructions=[TOOL_CALL]),
)
clean(
    "a forbidden sequence that other nodes have",
    graph("START tools draft pay END"),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL], target_nodes=["draft", "tools"]),
)
clean(
    "a step that stays in time",
    graph("START verify draft pay END"),
    WithinSteps("fresh", VERIFY, 2, target_nodes=["pay"]),
)
clean(
    "nothing after the answer",
    graph("START draft pay answer END"),
    NeverAfter("closed", RESPOND, target_nodes=["pay"]),
)
clean(
    "never after, on one of two paths",
    graph(
        "START draft", "answer pay END", branches={"draft": (by_score, {"again": "answer", "done": "pay"})}
    ),
    NeverAfter("closed", RESPOND, target_nodes=["pay"]),
)
clean(
    "two demands in order",
    graph("START load verify pay END"),
    demands(),
    RequireBefore("loaded", LOAD, target_nodes=["verify"]),
)
clean(
    "tools allowed and denied, of different names",
    graph("START tools END"),
    ToolsChecker("tool names", allow=["search"], deny=["delete"], target_nodes=["tools"]),
)
clean(
    "a denied tool, and others that may exist during a run only",
    graph("START tools END", bodies={"tools": ToolNode([tool()])}),
    checkers.ToolsChecker("no lookups", deny=["lookup", "lokup*", "remove"], target_nodes=["tools"]),
)
clean(
    "an LCEL sequence",
    graph("START draft END", bodies={"draft": RunnableLambda(body) | RunnableLambda(body)}),
)
clean("a builder that was not compiled", lambda: graph("START draft verify pay END")().builder, demands())
clean(
    "a fallback by denial",
    graph("START draft verify pay END", extra=["fallback"]),
    demands(on_deny="redirect:fallback"),
)
clean("a rule that is off", graph("START draft pay END"), demands())
CASES[-1].rules[0].mode = "off"

# One bug each -------------------------------------------------------------------------------------

bug("one node has none", ("no-instruction", "mystery"), graph("START draft mystery END"), severity="warning")
bug(
    "one node has none, strictly",
    ("no-instruction", "mystery"),
    graph("START draft mystery END"),
    severity="error",
    strict=True,
)
bug(
    "a node of a subgraph has none",
    ("no-instruction", "inner:mystery"),
    graph("START inner END", bodies={"inner": sub("START mystery END")}),
)
bug("a tool node has none", ("no-instruction", "tools"), tool_loop(bare=["tools"]), once("agent"))

bug(
    "a rule for an instruction that no node has",
    ("dead-rule", ""),
    graph("START draft END"),
    AtMost("calls", 3, target_instructions=[TOOL_CALL]),
)
bug(
    "a rule for a node, and another instruction",
    ("dead-rule", ""),
    graph("START draft pay END"),
    AtMost("calls", 3, target_instructions=[TOOL_CALL], target_nodes=["draft"]),
)
bug(
    "a forbidden step that no node is",
    ("dead-rule", ""),
    graph("START draft pay END"),
    HistoryPolicyChecker("no", [LOAD, TOOL_CALL]),
)
bug(
    "never after what never runs",
    ("dead-rule", ""),
    graph("START draft pay END"),
    NeverAfter("closed", RESPOND, target_nodes=["pay"]),
)
bug(
    "a rule for a misspelt node",
    ("unknown-node", ""),
    graph("START draft pay END"),
    AtMost("calls", 3, target_nodes=["pya"]),
)
bug(
    "one of two nodes misspelt",
    ("unknown-node", ""),
    graph("START draft pay END"),
    AtMost("calls", 3, target_nodes=["pay", "darft"]),
)

bug(
    "a router to nowhere",
    ("unknown-target", "draft"),
    graph("START draft answer END", extra=[]),
    MetricThresholdPolicyRouter("better", "score", 0.5, "reflekt", target_nodes=["draft"]),
)
bug(
    "a denial to nowhere",
    ("unknown-target", "pay"),
    graph("START verify pay END"),
    AtMost("calls", 3, target_nodes=["pay"], on_deny="redirect:fallbak"),
)
bug(
    "a redirect into another graph",
    ("unknown-target", "inner:pay"),
    graph("START inner fallback END", bodies={"inner": sub("START pay END")}),
    AtMost("calls", 3, target_nodes=["pay"], on_deny="redirect:fallback"),
)

bug(
    "a check that comes too late",
    ("unverified-path", "pay"),
    graph("START draft pay verify END"),
    demands(),
    severity="error",
)
clean("a check beside it, a step earlier", graph("START draft pay END", "START verify END"), demands())
bug(
    "no node that checks",
    ("unverified-path", "pay"),
    graph("START draft pay END"),
    demands(),
    severity="error",
)
bug(
    "a branch past the check",
    ("unverified-path", "pay"),
    graph("START draft", "verify pay END", branches={"draft": (to_verify_or_pay, ["verify", "pay"])}),
    demands(),
    severity="error",
)
bug(
    "an annotated branch past the check",
    ("unverified-path", "pay"),
    graph("START draft", "verify pay END", branches={"draft": (typed_verify_or_pay, None)}),
    demands(),
    severity="error",
)
bug(
    "a branch past the check that declares nothing",
    ("unverified-path", "pay"),
    graph("START draft", "verify pay END", branches={"draft": (to_verify_or_pay, None)}),
    demands(),
    severity="warning",
)
bug(
    "a branch to anywhere, past the check too",
    ("unverified-path", "pay"),
    graph("START draft", "verify pay END", branches={"draft": (wherever, None)}),
    demands(),
    severity="warning",
)
bug(
    "a command past the check",
    ("unverified-path", "pay"),
    graph("START draft", "verify pay END", bodies={"draft": go_verify_or_pay}),
    demands(),
    severity="error",
)
bug(
    "a command past the check that declares nothing",
    ("unverified-path", "pay"),
    graph("START draft", "verify pay END", bodies={"draft": go_undeclared_pay}),
    demands(),
    severity="warning",
)
bug(
    "a fan-out past the check",
    ("unverified-path", "work"),
    graph("START plan", "work verify answer END", branches={"plan": (fan_out, ["work"])}),
    demands(),
    severity="error",
)
bug(
    "a fan-out past the check that declares nothing",
    ("unverified-path", "pay"),
    graph("START plan", "pay verify answer END", branches={"plan": (fan_to_pay, None)}),
    demands(),
    severity="warning",
)
bug(
    "a check beside it, in the same step",
    ("unverified-path", "pay"),
    graph("START draft pay END", "draft verify END"),
    demands(),
)
bug(
    "an uneven diamond: the shorter side comes first",
    ("unverified-path", "pay"),
    graph("START draft pay END", "START reflect verify pay"),
    demands(),
)
bug(
    "a join without the check",
    ("unverified-path", "pay"),
    graph("START draft", "START reflect", "START load verify END", joins={"draft reflect": "pay"}),
    demands(target_nodes=["pay"]),
)
bug(
    "a subgraph that acts at once",
    ("unverified-path", "inner:pay"),
    graph("START draft inner verify END", bodies={"inner": sub("START pay END")}),
    demands(),
)
bug(
    "a subgraph that checks on one of two paths",
    ("unverified-path", "pay"),
    graph(
        "START inner pay END",
        bodies={
            "inner": sub("START draft", "verify END", branches={"draft": (to_verify_or_end, ["verify", END])})
        },
    ),
    demands(),
)
bug(
    "a subgraph that hands over past the check",
    ("unverified-path", "pay"),
    graph(
        "START inner verify pay END", bodies={"inner": sub("START draft END", bodies={"draft": up_to_pay})}
    ),
    demands(),
)
bug(
    "a join after an edge that chooses both of its starts, as its annotation says",
    ("unverified-path", "pay"),
    graph("START draft", branches={"draft": (both, ["load", "reflect"])}, joins={"load reflect": "pay"}),
    demands(),
)
bug("the tools of an agent", ("unverified-path", "tools"), agent(), demands(), once("model"))
bug(
    "a redirect past the check",
    ("unverified-path", "pay"),
    graph("START draft verify pay END"),
    demands(),
    MetricThresholdPolicyRouter("fast", "score", 0.5, "pay", target_nodes=["draft"]),
)
bug(
    "one check for two payments",
    ("unverified-path", "send"),
    graph("START verify pay send END"),
    demands(once_per_use=True),
)

bug(
    "never after, on every path",
    ("always-denied", "pay"),
    graph("START answer pay END"),
    NeverAfter("closed", RESPOND, target_nodes=["pay"]),
)
bug(
    "too many steps after the check",
    ("always-denied", "pay"),
    graph("START verify draft reflect pay END"),
    WithinSteps("fresh", VERIFY, 2, target_nodes=["pay"]),
)
bug(
    "at most no time",
    ("always-denied", "pay"),
    graph("START draft pay END"),
    AtMost("none", 0, target_nodes=["pay"]),
)
bug(
    "a sequence of one",
    ("always-denied", "pay"),
    graph("START draft pay END"),
    HistoryPolicyChecker("none", [TOOL_CALL]),
)

bug(
    "an edge into a forbidden sequence",
    ("denied-edge", "pay"),
    graph("START draft pay END"),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]),
    severity="error",
)
bug(
    "a forbidden sequence of three",
    ("denied-edge", "pay"),
    graph("START load draft pay END"),
    HistoryPolicyChecker("no blind", [LOAD, GENERATE, TOOL_CALL]),
    severity="error",
)
bug(
    "a forbidden sequence of three on every path, with steps between",
    ("always-denied", "pay"),
    graph("START load reflect draft verify pay END"),
    HistoryPolicyChecker("no blind", [LOAD, GENERATE, TOOL_CALL], adjacent=False),
    severity="error",
)
for name, made in {
    "in another order": graph("START draft load pay END"),
    "side by side": graph("START draft pay END", "START load pay"),
    "on one of two paths": graph(
        "START load",
        "draft pay END",
        "verify pay",
        branches={"load": (by_score, {"again": "draft", "done": "verify"})},
    ),
}.items():
    clean(
        f"a forbidden sequence of three {name}",
        made,
        HistoryPolicyChecker("no blind", [LOAD, GENERATE, TOOL_CALL], adjacent=False),
    )
for steps in ([GENERATE, TOOL_CALL], [LOAD, GENERATE, TOOL_CALL]):
    clean(
        f"a forbidden sequence of {len(steps)} with a node that may fail",
        graph("START load draft pay END"),
        HistoryPolicyChecker("no blind", steps, adjacent=False),
        ErrorRouter("rescue", "pay", target_nodes=["draft"]),
    )
bug(
    "a conditional edge into a forbidden sequence",
    ("denied-edge", "pay"),
    graph("START draft", "verify pay END", branches={"draft": (to_verify_or_pay, ["verify", "pay"])}),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]),
    severity="warning",
)
bug(
    "an edge into a forbidden sequence in a subgraph",
    ("denied-edge", "inner:pay"),
    graph("START inner END", bodies={"inner": sub("START draft pay END")}),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]),
)
bug(
    "a command into a forbidden sequence",
    ("denied-edge", "pay"),
    graph("START draft", "pay END", bodies={"draft": go_pay}),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]),
)

bug(
    "a node that does nothing in a forbidden sequence",
    ("passed-sequence", "pay"),
    graph("START draft load pay END"),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]),
    severity="warning",
)
bug(
    "a subgraph that ends in the first step of a forbidden sequence",
    ("passed-sequence", "pay"),
    graph("START inner pay END", bodies={"inner": sub("START draft END")}),
    HistoryPolicyChecker("no blind", [GENERATE, TOOL_CALL]),
    severity="warning",
)
bug(
    "a forbidden sequence of three with a loop in it",
    ("passed-sequence", "inner:pay"),
    graph(
        "START load reflect inner END",
        bodies={"inner": sub("START draft pay END")},
        branches={"reflect": (by_score, {"again": "load", "done": "inner"})},
    ),
    HistoryPolicyChecker("no blind", [LOAD, GENERATE, TOOL_CALL]),
    once("reflect"),
    severity="warning",
)
bug(
    "written anew after it was verified",
    ("unverified-path", "pay"),
    graph("START draft verify write load pay END"),
    RequireBefore("verified", VERIFY, since=[GENERATE], target_instructions=[TOOL_CALL]),
    severity="error",
)
bug(
    "written inside of a subgraph, and verified before it",
    ("unverified-path", "pay"),
    graph("START verify inner pay END", bodies={"inner": sub("START load draft END")}),
    RequireBefore("verified", VERIFY, since=[GENERATE], target_instructions=[TOOL_CALL]),
    severity="error",
)
bug(
    "written beside the verification",
    ("unverified-path", "pay"),
    graph("START verify pay END", "START draft pay"),
    RequireBefore("verified", VERIFY, since=[GENERATE], target_instructions=[TOOL_CALL]),
    severity="error",
)
bug(
    "a loop without a cap",
    ("uncapped-cycle", "draft"),
    graph("START draft reflect", branches={"reflect": (by_score, {"again": "draft", "done": END})}),
)
bug(
    "a loop that its own code ends is not known to be capped",
    ("uncapped-cycle", "draft"),
    graph("START draft", branches={"draft": (by_rounds, ["draft", END])}),
)
bug("a ToolNode loop without a cap", ("uncapped-cycle", "agent"), tool_loop())
bug("a create_agent without a cap", ("uncapped-cycle", "model"), agent())
bug(
    "a command loop without a cap",
    ("uncapped-cycle", "agent"),
    graph("START agent tools", bodies={"tools": go_agent_or_end}),
)
bug(
    "a loop in a subgraph without a cap",
    ("uncapped-cycle", "inner:draft"),
    graph(
        "START inner END",
        bodies={
            "inner": sub(
                "START draft reflect", branches={"reflect": (by_score, {"again": "draft", "done": END})}
            )
        },
    ),
)
bug(
    "a cap that misses one of two loops",
    ("uncapped-cycle", "draft"),
    graph(
        "START draft",
        "reflect draft",
        "write draft",
        branches={"draft": (by_score, {"again": "reflect", "more": "write", "done": END})},
    ),
    once("write"),
)
bug("a cap that is off", ("uncapped-cycle", "agent"), tool_loop(), once("agent"))
CASES[-1].rules[0].mode = "off"

bug("two nodes for ever", ("endless-cycle", "draft"), graph("START draft reflect draft"), severity="error")
bug(
    "an end that is an edge too",
    ("endless-cycle", "draft"),
    graph("START draft reflect draft", "reflect END"),
    severity="error",
)
bug(
    "for ever in a subgraph",
    ("endless-cycle", "inner:draft"),
    graph("START inner END", bodies={"inner": sub("START draft reflect draft")}),
)
bug(
    "for ever through a join",
    ("endless-cycle", "draft"),
    graph("START draft", "START load", "reflect draft", "reflect load", joins={"draft load": "reflect"}),
)
bug(
    "every choice stays inside",
    ("no-end", "draft"),
    graph(
        "START draft reflect",
        "write draft",
        branches={"reflect": (by_score, {"again": "draft", "done": "write"})},
    ),
)
bug(
    "commands in a circle",
    ("no-end", "draft"),
    graph("START draft", bodies={"draft": go_write, "write": go_draft}),
)

bug(
    "two demands that wait for one another",
    ("contradiction", "pay"),
    graph("START load pay END"),
    RequireBefore("a", LOAD, target_nodes=["pay"]),
    RequireBefore("b", TOOL_CALL, target_nodes=["load"]),
)
bug(
    "a demand of itself",
    ("contradiction", "pay"),
    graph("START load pay END"),
    RequireBefore("a", TOOL_CALL, target_instructions=[TOOL_CALL]),
)
bug(
    "demanded before, and forbidden before",
    ("contradiction", "pay"),
    graph("START verify pay END"),
    demands(),
    HistoryPolicyChecker("never", [VERIFY, TOOL_CALL], adjacent=False),
)
bug(
    "a tool both allowed and denied",
    ("contradiction", "tools"),
    graph("START tools END"),
    ToolsChecker("tool names", allow=["search", "delete"], deny=["delete"], target_nodes=["tools"]),
)
bug(
    "a tool allowed by one and denied by another",
    ("contradiction", "tools"),
    graph("START tools END"),
    ToolsChecker("yes", allow=["delete"], deny=[], target_nodes=["tools"]),
    ToolsChecker("no", allow=[], deny=["delete"], target_nodes=["tools"]),
)

for _name, _evaluators, _severity in (
    ("none of its name", [], "warning"),
    ("a misspelt one", [ThresholdEvaluator("qualty", "score", 0.5)], "error"),
):
    bug(
        f"a router reads an evaluator, and there is {_name}",
        ("unknown-evaluator", "draft"),
        graph("START draft reflect END"),
        *_evaluators,
        EvaluationRouter("better", "quality", "reflect", target_nodes=["draft"]),
        severity=_severity,
    )
for _condition in ('instruction == "TOOLCALL"', 'instruction != "MemoryCore.LOAD" && input.score > 1.0'):
    bug(
        f"an instruction that is none: {_condition}",
        ("unknown-instruction", ""),
        graph("START draft END"),
        ConditionChecker("kind", _condition),
        severity="warning",
    )
for _condition in ("history.denied.spendng > 1", "history.denied.spending > 1 && history.denied.Kind > 1"):
    bug(
        f"denials of a misspelt rule: {_condition}",
        ("unknown-rule", ""),
        graph("START draft END"),
        AtMost("spending", 9),
        ConditionChecker("kind", _condition),
        severity="warning",
    )

clean(
    "conditions and keys of the state",
    graph("START draft pay END", checkpointer=InMemorySaver()),
    ConditionChecker("rounds", "input.rounds > 3 && history.nodes.draft > 1", target_nodes=["pay"]),
    ConditionChecker(
        "one node", "has(input.user) && input.user == 'node' && node == 'pay' && node != 'draft'"
    ),
    ConditionChecker("if given", "has(input.user) && input.user == 'x'", ask_when="input.score < 0.5"),
    ApprovalChecker("boss", target_nodes=["pay"]),
    ThresholdEvaluator("own", "confidence", 0.5),
    ConditionEvaluator("sure", "output.score > 0.5 || output.other"),
)
clean("a state that is a dict", of_dicts, ConditionChecker("small", "input.amount > 3"))
bug(
    "a misspelt field in a condition",
    ("unknown-field", "pay"),
    graph("START draft pay END"),
    ConditionChecker("rounds", "input.round > 3", target_nodes=["pay"]),
    severity="error",
)
bug(
    "a field that a branch may send",
    ("unknown-field", "work"),
    graph("START draft", "work END", branches={"draft": (fan_out, ["work"])}),
    ConditionChecker("payload", "input.item == 'x'", target_nodes=["work"]),
    severity="warning",
)
clean(
    "a value without fields that a branch may send",
    graph("START draft", "work END", branches={"draft": (fan_out, ["work"])}),
    ConditionChecker("calls", 'input["__root__"].exists(c, c.name == "pay")', target_nodes=["work"]),
)
bug(
    "a misspelt field of an output",
    ("unknown-field", "draft"),
    graph("START draft pay END"),
    ConditionEvaluator("sure", "output.scor > 0.5", target_nodes=["draft"]),
    severity="warning",
)
bug(
    "a field that passes are bound to and no target gets",
    ("unknown-field", "pay"),
    graph("START draft pay END"),
    RequireBefore("for this payee", "node:draft", bound_to=["payee"], target_nodes=["pay"]),
    severity="error",
)
bug(
    "a misspelt key",
    ("unknown-field", "draft"),
    graph("START draft pay END"),
    ThresholdEvaluator("sure", "scores", 0.5, target_nodes=["draft"]),
    severity="warning",
)
for given in (
    "1 + 2",
    "(input.rounds)-1",
    "size(input.log)",
    "'x'",
    "[input.score]",
    "input.items.map(p, p)",
):
    bug(
        f"a condition that is neither true nor false: {given}",
        ("no-boolean", ""),
        graph("START draft pay END", checkpointer=InMemorySaver()),
        ConditionChecker("odd", given, target_nodes=["pay"]),
        severity="error",
    )
clean(
    "conditions whose parts are numbers and lists",
    graph("START draft pay END", checkpointer=InMemorySaver()),
    ConditionChecker("compared", "(input.rounds + 1 > 2) && !('x' in [input.next])", target_nodes=["pay"]),
    ConditionChecker("chosen", "input.rounds > 1 ? true : [true, false][0]", target_nodes=["pay"]),
    ConditionChecker("text", "string(input.rounds).contains('1')", target_nodes=["pay"]),
)
bug(
    "a misspelt tool that is denied",
    ("unknown-tool", ""),
    graph("START tools END", bodies={"tools": ToolNode([tool()])}),
    checkers.ToolsChecker("no lookups", deny=["lokup", "remove"], target_nodes=["tools"]),
    severity="warning",
)
bug(
    "a misspelt tool that is allowed",
    ("unknown-tool", ""),
    graph("START tools END", bodies={"tools": ToolNode([tool()])}),
    checkers.ToolsChecker("lookups", allow=["lokup", "remove"], target_nodes=["tools"]),
    severity="warning",
)
clean(
    "a tool, and another one of nearly its name",
    graph("START tools END", bodies={"tools": ToolNode([tool()])}),
    checkers.ToolsChecker("lookups", allow=["lookup", "lookups", "remove"], target_nodes=["tools"]),
)
bug(
    "a misspelt tool of a subgraph",
    ("unknown-tool", ""),
    graph("START inner END", bodies={"inner": sub("START tools END", bodies={"tools": ToolNode([tool()])})}),
    checkers.ToolsChecker("no lookups", deny=["Look_up"], on_deny="audit"),
    severity="warning",
)
bug(
    "a misspelt exception",
    ("unknown-error", ""),
    graph("START draft pay END"),
    ErrorRouter(
        "offline", "pay", errors=["ConnectionErr", "TimeoutError", "ConnectTimeout", "elsewhere.ReadTimeot"]
    ),
    severity="warning",
)


class NodeError(Exception):
    """Its name is nearly that of Python's `NameError`."""


clean(
    "an exception of the program itself",
    graph("START draft pay END"),
    ErrorRouter("unlucky", "pay", errors=["NodeError", "json.decoder.JSONDecodeError", "builtins.OSError"]),
)
bug(
    "an exception in a module that does not define it",
    ("unknown-error", ""),
    graph("START draft pay END"),
    ErrorRouter("no answer", "pay", errors=["json.JSONDecodeError"]),
    severity="warning",
)
bug(
    "another name of an exception",
    ("unknown-error", ""),
    graph("START draft pay END"),
    ErrorRouter("no disk", "pay", errors=["IOError"]),
    severity="warning",
)
bug(
    "an exception in the wrong case",
    ("unknown-error", ""),
    graph("START draft pay END"),
    ErrorRouter("offline", "pay", errors=["Timeouterror"]),
    severity="warning",
)
bug(
    "a node that a condition counts",
    ("unknown-node", ""),
    graph("START draft pay END"),
    ConditionChecker("once", "history.nodes.payy > 1", target_nodes=["pay"]),
    severity="error",
)
bug(
    "a node that a condition compares with",
    ("unknown-node", ""),
    graph("START draft pay END"),
    ConditionChecker("one", "node in ['draft', 'payy'] && input.score > 3.0"),
    severity="warning",
)
bug(
    "an audited condition that is never true",
    ("unknown-node", ""),
    graph("START draft pay END"),
    ConditionChecker("one", "'ss' == node", on_deny="audit"),
    severity="warning",
)
bug(
    "an approval in a subgraph without a checkpointer",
    ("no-checkpointer", "inner:pay"),
    graph(
        "START draft inner END",
        bodies={"inner": sub("START pay END", checkpointer=False)},
        checkpointer=InMemorySaver(),
    ),
    ApprovalChecker("boss", target_nodes=["pay"]),
    severity="error",
)
bug(
    "a question in a subgraph without a checkpointer",
    ("no-checkpointer", "inner:pay"),
    graph(
        "START inner END",
        bodies={"inner": sub("START pay END", checkpointer=False)},
        checkpointer=InMemorySaver(),
    ),
    ConditionChecker("large", ask_when="input.score > 3.0", target_nodes=["pay"]),
)

bug("a node without an edge to it", ("unreachable", "write"), graph("START draft END", extra=["write"]))
bug(
    "two nodes that only lead to one another",
    ("unreachable", "write"),
    graph("START draft END", "write reflect END"),
)
bug(
    "a branch that forgot a node",
    ("unreachable", "answer"),
    graph("START draft", "verify END", "answer END", branches={"draft": (to_verify_or_end, ["verify", END])}),
)
bug(
    "unreachable in a subgraph",
    ("unreachable", "inner:write"),
    graph("START inner END", bodies={"inner": sub("START draft END", extra=["write"])}),
)
bug(
    "a command that forgot a node",
    ("unreachable", "answer"),
    graph("START draft", "verify END", extra=["answer"], bodies={"draft": go_verify}),
)
bug(
    "a join of what never comes",
    ("unreachable", "write"),
    graph("START draft", joins={"draft write": "answer"}),
)

CLEAN = [case for case in CASES if case.finds is None]
SEEDED = [case for case in CASES if case.finds is not None]
