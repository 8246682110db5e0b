"""The packs that ship: what they promise holds on every path that a graph can take."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from arbiter import ArbiterOS, History, PolicyViolationError
from arbiter.instructions import (
    COMMUNICATE,
    DELEGATE,
    GENERATE,
    REFLECT,
    RESPOND,
    TOOL_BUILD,
    TOOL_CALL,
    UPDATE_KNOWLEDGE,
    VERIFY,
    Instruction,
)
from tests.support import MODES, Route, examples, run, thread

WRITES = {"draft": GENERATE, "build": TOOL_BUILD}
ACTS = {"pay": TOOL_CALL, "hand": DELEGATE, "tell": COMMUNICATE, "learn": UPDATE_KNOWLEDGE, "answer": RESPOND}
KINDS: dict[str, Instruction] = {**WRITES, **ACTS, "check": VERIFY, "reflect": REFLECT}
NAMES = [*KINDS, "rest", "ask"]
TEAMS = ["team", "crew"]
PREFIXES = ["", *(f"{a}:" for a in TEAMS), *(f"{a}:{b}:" for a in TEAMS for b in TEAMS)]

Turn = Mapping[str, Any]
"""What runs in one superstep: nodes with how they go on; of "team" and "crew", whose bodies are graphs, the turns
inside."""


def both(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    return one | other


def newest(_: Any, new: Any) -> Any:
    return new


Ids = Annotated[frozenset[str], both]


class State(TypedDict, total=False):
    """`made` is what models wrote, `verified` what of it was there when a VERIFY ran: LangGraph's own account."""

    made: Ids
    verified: Ids
    turn: Annotated[int, newest]


class Inside(State, total=False):
    inner: Annotated[int, newest]


class Deep(Inside, total=False):
    deep: Annotated[int, newest]


COUNTERS = ["turn", "inner", "deep"]
SCHEMAS: list[Any] = [State, Inside, Deep]


@dataclass
class Script:
    """A graph that runs, superstep by superstep, what is written here; in its subgraphs, too."""

    turns: list[Turn] = field(default_factory=list[Turn])
    writes: str = "draft"
    sends: bool = True
    acted: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Each node that acted, and whether all that models had written was verified."""

    def graph(self, checkpointer: Any = None, depth: int = 0) -> Any:
        builder: Any = StateGraph(SCHEMAS[depth])
        for name in NAMES:
            builder.add_node(name, self.body(name, depth))
        builder.add_node("close", self.close(depth))
        teams = TEAMS if depth < 2 else []
        for name in teams:
            builder.add_node(name, self.graph(depth=depth + 1))
        for name in [START, *NAMES, *teams]:
            builder.add_conditional_edges(name, self.next(depth), [*NAMES, *teams, "close"])
        return builder.compile(checkpointer=checkpointer)

    def at(self, state: Any, depth: int) -> list[Turn]:
        """The turns of the graph at that depth."""
        turns: Any = self.turns
        for counter in COUNTERS[:depth]:
            here: Turn = turns[state.get(counter, 0)]
            turns = next(here[name] for name in TEAMS if name in here)
        found: list[Turn] = turns
        return found

    def next(self, depth: int) -> Callable[[Any], list[Any]]:
        def choose(state: Any) -> list[Any]:
            turns = self.at(state, depth)
            turn: int = state.get(COUNTERS[depth], 0)
            if turn >= len(turns):
                return ["close"]
            # What an edge sends lacks what the siblings of its node wrote, so here those have none that send.
            alone = self.sends and (turn == 0 or len(turns[turn - 1]) == 1)
            return [Send(n, dict(state)) if how == "sent" and alone else n for n, how in turns[turn].items()]

        return choose

    def body(self, name: str, depth: int) -> Callable[[Any], Any]:
        def work(state: Any) -> Any:
            made: frozenset[str] = state.get("made", frozenset())
            verified: frozenset[str] = state.get("verified", frozenset())
            update: dict[str, Any] = {COUNTERS[depth]: state.get(COUNTERS[depth], 0) + 1}
            if name == "ask":
                interrupt("go on?")
            if name == self.writes:
                update["made"] = frozenset({uuid.uuid4().hex})
            elif name == "check":
                update["verified"] = made
            elif name in ACTS:
                self.acted.append((name, made <= verified))
            return update

        return work

    def close(self, depth: int) -> Callable[[Any], Any]:
        def done(state: Any) -> Any:
            outer = COUNTERS[max(depth - 1, 0)]
            return {outer: state.get(outer, 0) + (depth > 0)}

        return done


NOTHING: dict[str, str] = {}
ways = st.sampled_from(["", "", "", "sent"])
plain = st.dictionaries(st.sampled_from(NAMES), ways, min_size=1, max_size=3)
likely = st.dictionaries(
    st.sampled_from(["draft", "build", "check", "pay", "rest"]), ways, min_size=1, max_size=2
)
turns = st.recursive(
    st.one_of(likely, plain),
    lambda inside: st.tuples(
        st.sampled_from(TEAMS), st.lists(inside, min_size=1, max_size=3), plain | st.just(NOTHING)
    ).map(lambda parts: {**parts[2], parts[0]: parts[1]}),
    max_leaves=4,
).filter(lambda turn: _depth(turn) <= 2)
scripts = st.lists(turns, min_size=1, max_size=6)


def _depth(turn: Turn) -> int:
    inner: list[list[Turn]] = [part for part in turn.values() if not isinstance(part, str)]
    return max((1 + _depth(each) for part in inner for each in part), default=0)


def away(_: History, __: Any) -> str | None:
    return "rest"


PROMISES: dict[str, tuple[str, str, dict[str, str]]] = {
    "actions": (
        "arbiter:think-then-verify",
        "draft",
        {
            "pay": "no_unverified_action",
            "hand": "no_unverified_delegation",
            "tell": "no_unverified_delegation",
            "answer": "no_unverified_answer",
        },
    ),
    "tools": ("arbiter:kernel", "build", {"pay": "built_tools_are_verified"}),
    "guesses": ("arbiter:kernel", "draft", {"learn": "guesses_are_not_learned"}),
}
"""For each promise the pack, what makes something, and what may not act on it with the rule that says so."""


@pytest.mark.lengthy
@pytest.mark.parametrize("promise", PROMISES)
@examples(0.2, phases=[Phase.explicit, Phase.generate])
@given(
    plays=st.lists(scripts, min_size=1, max_size=3),
    redirected=st.booleans(),
    asynchronous=st.booleans(),
)
def test_unverified_output_of_a_model_is_not_acted_on(
    promise: str, plays: list[list[Turn]], redirected: bool, asynchronous: bool
) -> None:
    """With no-ops, loops, branches, Sends and subgraphs in between; over several invokes of a thread, resumed
    elsewhere after a pause, and where a router sends the run away. Verified output is acted on."""
    pack, writes, rules = PROMISES[promise]
    script, saver, config = (
        Script(writes=writes, sends=not redirected),
        InMemorySaver(),
        thread(str(uuid.uuid4())),
    )
    graph, mode = script.graph(saver), "async" if asynchronous else "sync"
    every = {f"{prefix}{name}": kind for name, kind in KINDS.items() for prefix in PREFIXES}

    def governed() -> tuple[ArbiterOS, Any]:
        arbiter_os = ArbiterOS.from_constitution(pack)
        if redirected:
            arbiter_os.add_policy_router(
                Route("away", away, target_nodes=["draft", "build"], max_redirects=1)
            )
        return arbiter_os, arbiter_os.govern(graph, instructions=every)

    for script.turns in plays:
        given_now: Any = {"turn": 0}
        for _ in range(20):
            arbiter_os, app = governed()
            # A redirect may leave the script.
            with suppress(PolicyViolationError, *((IndexError, RuntimeError) if redirected else ())):
                run(app, given_now, {**config, "recursion_limit": 60}, mode=mode)
            for item in arbiter_os.history.items():
                verdict = item.check_policy_results.get(rules.get(item.node, ""))
                if verdict is not None and verdict.kind == "deny":
                    made = item.input_state.get("made", frozenset())
                    assert not made <= item.input_state.get("verified", frozenset()), item
            if not (asked := app.get_state(config).interrupts):
                break
            given_now = Command(resume={question.id: "go" for question in asked})
    assert all(verified for name, verified in script.acted if name in rules)


def chain(*names: str, saver: Any = None) -> tuple[Script, Any]:
    """The nodes one after another, each in a superstep of its own."""
    script = Script(turns=[{name: ""} for name in names])
    return script, script.graph(saver)


KIND_OF_PATH = {
    "directly": ["draft", "pay"],
    "after a step that does nothing": ["draft", "rest", "pay"],
    "after many of them": ["draft", *["rest"] * 5, "pay"],
    "after criticism": ["draft", "reflect", "pay"],
    "written anew after it was verified": ["draft", "check", "draft", "rest", "pay"],
    "verified before it was written": ["check", "draft", "pay"],
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("path", KIND_OF_PATH)
def test_new_output_of_a_model_reaches_no_tool(path: str, mode: str) -> None:
    script, graph = chain(*KIND_OF_PATH[path])
    app = ArbiterOS.from_constitution("arbiter:think-then-verify").govern(graph, instructions=KINDS)
    with pytest.raises(PolicyViolationError, match="VERIFY has not passed since GENERATE"):
        run(app, {}, mode=mode)
    assert script.acted == []


@pytest.mark.lengthy
@pytest.mark.parametrize("act", ["hand", "tell", "answer"])
def test_new_output_of_a_model_reaches_no_agent_and_no_user(act: str) -> None:
    script, graph = chain("draft", act)
    app = ArbiterOS.from_constitution("arbiter:think-then-verify").govern(graph, instructions=KINDS)
    with pytest.raises(PolicyViolationError, match="VERIFY"):
        app.invoke({})
    assert script.acted == []


@pytest.mark.lengthy
@MODES
def test_verified_output_is_acted_on(mode: str) -> None:
    """Also by several steps, with others between; and without output there is nothing to verify."""
    script, graph = chain("pay", "draft", "rest", "check", "rest", "pay", "tell", "hand", "answer")
    app = ArbiterOS.from_constitution("arbiter:think-then-verify").govern(graph, instructions=KINDS)
    run(app, {}, mode=mode)
    assert [name for name, _ in script.acted] == ["pay", "pay", "tell", "hand", "answer"]


@pytest.mark.lengthy
def test_an_earlier_run_and_another_process_have_verified_nothing() -> None:
    """Output of one invoke of a thread is not acted on in the next one, also by another process."""
    saver, config = InMemorySaver(), thread("1")
    for names in (["draft"], ["rest"]):
        _, graph = chain(*names, saver=saver)
        app = ArbiterOS.from_constitution("arbiter:think-then-verify").govern(graph, instructions=KINDS)
        app.invoke({"turn": 0}, config)
    script, graph = chain("pay", saver=saver)
    app = ArbiterOS.from_constitution("arbiter:think-then-verify").govern(graph, instructions=KINDS)
    with pytest.raises(PolicyViolationError, match="VERIFY has not passed since GENERATE"):
        app.invoke({"turn": 0}, config)
    assert script.acted == []


@pytest.mark.lengthy
def test_output_from_before_the_pack_was_loaded_counts_as_unverified() -> None:
    saver, config = InMemorySaver(), thread("1")
    for pack, names in (("arbiter:budgets", ["draft"]), ("arbiter:think-then-verify", ["rest", "pay"])):
        script, graph = chain(*names, saver=saver)
        app = ArbiterOS.from_constitution(pack).govern(graph, instructions=KINDS)
        if pack == "arbiter:budgets":
            app.invoke({"turn": 0}, config)
            continue
        with pytest.raises(PolicyViolationError, match="VERIFY has not passed since GENERATE"):
            app.invoke({"turn": 0}, config)
        assert script.acted == []


@pytest.mark.lengthy
def test_verifiers_side_by_side_verify_what_both_have_seen() -> None:
    """And a subgraph that writes beside another one that verifies what it wrote itself leaves nothing verified."""
    cases: list[tuple[list[Turn], bool]] = [
        ([{"draft": ""}, {"check": "", "rest": ""}, {"pay": ""}], True),
        (
            [{"team": [{"draft": ""}, {"check": ""}], "crew": [{"draft": ""}, {"check": ""}]}, {"pay": ""}],
            True,
        ),
        ([{"draft": ""}, {"team": [{"check": ""}], "check": ""}, {"pay": ""}], True),
        ([{"team": [{"rest": ""}, {"check": ""}], "draft": ""}, {"pay": ""}], False),
        ([{"draft": ""}, {"check": "", "draft": ""}, {"pay": ""}], False),
    ]
    for turns, acts in cases:
        script = Script(turns=turns)
        every = {f"{prefix}{name}": kind for name, kind in KINDS.items() for prefix in PREFIXES}
        app = ArbiterOS.from_constitution("arbiter:think-then-verify").govern(
            script.graph(), instructions=every
        )
        if acts:
            app.invoke({})
        else:
            with pytest.raises(PolicyViolationError):
                app.invoke({})
        assert [name for name, _ in script.acted] == ["pay"] * acts, turns
