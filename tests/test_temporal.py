"""Rules over time: require_before, never_after, within_steps and at_most."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from arbiter import ArbiterOS, EvaluationResult, History, HistoryItem, PolicyChecker, PolicyViolationError
from arbiter.checkers import AtMost, NeverAfter, RequireBefore, WithinSteps
from arbiter.checkers.steps import Step
from arbiter.errors import ParameterError
from arbiter.instructions import COMMUNICATE, GENERATE, TOOL_CALL, VERIFY
from arbiter.states import digest
from tests.support import MODES, Judge, Route, bad, good, run, thread

KINDS = {
    "check": VERIFY,
    "draft": GENERATE,
    "pay": TOOL_CALL,
    "tell": COMMUNICATE,
}


def newest(_: Any, new: Any) -> Any:
    return new


class Playing(TypedDict, total=False):
    turn: Annotated[int, newest]
    amount: Annotated[int, newest]
    payee: Annotated[str, newest]
    outcome: Annotated[dict[str, Any], newest]


class Inside(Playing, total=False):
    inner: Annotated[int, newest]


Turn = Mapping[str, Any]
"""What runs in one superstep: outcomes by node; of "team", whose body is a graph, the turns inside it."""


class Play:
    """A graph that runs, superstep by superstep, what a script says."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.bodies: list[str] = []

    def graph(self, checkpointer: Any = None) -> Any:
        inner = StateGraph(Inside)
        builder = StateGraph(Playing)
        names = [*KINDS, "skip"]
        inside: dict[str, Any] = {name: name for name in [*names, "close"]}
        outside: dict[str, Any] = {name: name for name in [*names, "team"]} | {END: END}
        for name in names:
            builder.add_node(name, self.body(name, inside=False))
            inner.add_node(name, self.body(name, inside=True))
            inner.add_conditional_edges(name, self.next_inside, inside)
        inner.add_node("close", self.close)
        inner.add_conditional_edges(START, self.next_inside, inside)
        builder.add_node("team", inner.compile())
        for name in [START, *names, "team"]:
            builder.add_conditional_edges(name, self.next, outside)
        return builder.compile(checkpointer=checkpointer)

    def next(self, state: Any) -> list[str]:
        turn = state.get("turn", 0)
        return list(self.turns[turn]) if turn < len(self.turns) else [END]

    def next_inside(self, state: Any) -> list[str]:
        turns, turn = self.turns[state.get("turn", 0)]["team"], state.get("inner", 0)
        return list(turns[turn]) if turn < len(turns) else ["close"]

    def body(self, name: str, *, inside: bool) -> Callable[[Any], Any]:
        def work(state: Any) -> Any:
            turn, within = state.get("turn", 0), state.get("inner", 0)
            outcome: Mapping[str, Any] = {}
            if name != "skip":
                outcome = self.turns[turn]["team"][within][name] if inside else self.turns[turn][name]
            self.bodies.append(name)
            if outcome.get("fails"):
                raise ValueError("the body failed")
            moved = {"inner": within + 1} if inside else {"turn": turn + 1}
            changed = {key: outcome[key] for key in ("amount", "payee") if key in outcome}
            return {**moved, **changed, "outcome": dict(outcome)}

        return work

    def close(self, state: Any) -> Any:
        return {"turn": state.get("turn", 0) + 1}


def outcome(history: History) -> Mapping[str, Any]:
    found: Mapping[str, Any] = history.entries[-1][-1].output_state["outcome"]
    return found


def sound(history: History) -> EvaluationResult:
    if outcome(history).get("unjudged"):
        raise ValueError("cannot say")
    return good(history) if outcome(history).get("sound", True) else bad(history)


def style(history: History) -> EvaluationResult:
    return good(history) if outcome(history).get("style", True) else bad(history)


def reader(history: History, _: Any) -> str | None:
    if outcome(history).get("read"):
        history.entries[-1][-1].evaluation_results.get("style")
    return "skip" if outcome(history).get("sent_away") else None


def rescue(_: History, __: Any) -> str:
    return "skip"


def governing(rules: list[PolicyChecker], facts: int = 256) -> ArbiterOS:
    arbiter_os = ArbiterOS(keep=None, facts=facts)
    for rule in rules:
        arbiter_os.add_policy_checker(rule)
    arbiter_os.add_evaluator(Judge("sound", sound, target_instructions=[VERIFY]))
    arbiter_os.add_evaluator(Judge("style", style, target_instructions=[VERIFY]))
    arbiter_os.add_policy_router(Route("reader", reader, target_nodes=["check"], max_redirects=10_000))
    arbiter_os.add_policy_router(Route("rescue", rescue, on_error=True, max_redirects=10_000))
    return arbiter_os


# The slow account ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """When a node run was, in supersteps over everything: `begin` is the one that it runs in, `end` the one with
    which it is done. `root` is the superstep of the outermost graph, `owner` the node run it is inside of."""

    run: int
    root: int
    owner: str
    inner: int
    begin: int
    end: int


def moments(runs: list[list[HistoryItem]]) -> dict[str, Moment]:
    found: dict[str, Moment] = {}
    clock = root = 0
    for number, items in enumerate(runs):
        outside = [item for item in items if not item.namespace]
        for _, group in itertools.groupby(sorted(outside, key=lambda i: i.step), key=lambda i: i.step):
            root += 1
            siblings = list(group)
            longest = 1
            for owner in siblings:
                own = [i for i in items if i.namespace and i.namespace.endswith(owner.id)]
                ranks = {step: rank for rank, step in enumerate(sorted({i.step for i in own}), 1)}
                longest = max(longest, len(ranks))
                for item in own:
                    rank = ranks[item.step]
                    at = clock + rank
                    found[item.id] = Moment(number, root, owner.id, rank, at, at)
            for item in siblings:
                found[item.id] = Moment(number, root, "", 0, clock + 1, clock + longest)
            clock += longest
    return found


def precedes(one: Moment, other: Moment) -> bool:
    """Whether `one` was committed when `other` was checked, as far as `other` can know."""
    if one.root != other.root:
        return one.root < other.root
    return one.owner == other.owner != "" and one.inner < other.inner


class Slow:
    """Decides by going through everything that happened."""

    def __init__(self, runs: list[list[HistoryItem]]) -> None:
        self.when = moments(runs)
        self.items = [item for items in runs for item in items]

    def before(self, item: HistoryItem, per: str) -> list[HistoryItem]:
        own = self.when[item.id]
        return [
            other
            for other in self.items
            if precedes(self.when[other.id], own) and (per == "thread" or self.when[other.id].run == own.run)
        ]

    def allows(self, rule: PolicyChecker, item: HistoryItem) -> bool:
        match rule:
            case NeverAfter():
                past = self.before(item, rule.per)
                return not any(_is(rule.after, o) and o.status == "completed" for o in past)
            case AtMost():
                past = self.before(item, rule.per)
                ran = [o for o in past if rule.name in _rules(o) and o.status in ("completed", "failed")]
                return len(ran) < rule.times
            case WithinSteps():
                ends = [
                    self.when[o.id].end
                    for o in self.before(item, "run")
                    if _is(rule.required, o) and o.status == "completed"
                ]
                return bool(ends) and self.when[item.id].begin - max(ends) <= rule.steps
            case RequireBefore():
                return self.balance(rule, item) > 0
            case _:
                raise AssertionError(rule)

    def balance(self, rule: RequireBefore, item: HistoryItem) -> int:
        if any(field not in item.input_state for field in rule.bound_to):
            return 0
        wanted = [item.input_state[field] for field in rule.bound_to]
        balance = 0
        for other in self.before(item, rule.per):
            if _is(rule.required, other) and _passed(rule, other):
                state = {**other.input_state, **other.output_state}
                balance += [state.get(field) for field in rule.bound_to] == wanted
            if rule.once_per_use and other.status == "completed" and _allowed(rule, other):
                balance -= [other.input_state[field] for field in rule.bound_to] == wanted
        return balance


def _is(step: Step, item: HistoryItem) -> bool:
    return item.node == step.node if step.node else item.instruction == step.instruction


def _rules(item: HistoryItem) -> Mapping[str, Any]:
    return item.check_policy_results


def _allowed(rule: PolicyChecker, item: HistoryItem) -> bool:
    verdict = item.check_policy_results.get(rule.name)
    return verdict is not None and verdict.kind == "allow"


def _passed(rule: RequireBefore, item: HistoryItem) -> bool:
    if item.status != "completed" or item.redirected_to is not None:
        return False
    known = item.output_state["outcome"]
    is_sound = known.get("sound", True) and not known.get("unjudged")
    if rule.evaluator == "sound":
        return bool(is_sound)
    # Another rule reads "sound"; nobody but the router reads "style".
    return bool(is_sound and (known.get("style", True) or not known.get("read")))


# Random histories ---------------------------------------------------------------------------------


flag = st.sampled_from([False, False, True])
outcomes = st.fixed_dictionaries(
    {},
    optional={
        "amount": st.integers(1, 2),
        "payee": st.sampled_from(["a", "b"]),
        "sound": flag.map(lambda no: not no),
        "style": flag.map(lambda no: not no),
        "unjudged": flag,
        "read": flag,
        "sent_away": flag,
        "fails": flag,
    },
)
nodes = st.dictionaries(st.sampled_from(sorted(KINDS)), outcomes, min_size=1, max_size=3)
teams = st.lists(nodes, min_size=1, max_size=3).map(lambda turns: {"team": turns})
turns = st.one_of(nodes, nodes, st.tuples(nodes, teams).map(lambda both: {**both[0], **both[1]}), teams)
scripts = st.lists(turns, min_size=1, max_size=7)
pers = st.sampled_from(["run", "thread"])
steps = st.sampled_from(["VERIFY", "node:check", "GENERATE", "node:tell"])
on_denies = st.sampled_from(["redirect:skip", "audit"])
required = st.sampled_from(["VERIFY", "node:check"])
bounds = st.sampled_from([None, None, ["amount"], ["amount", "payee"]])

@st.composite
def rule_sets(draw: Any) -> list[PolicyChecker]:
    def where(*names: str) -> dict[str, Any]:
        return {"target_nodes": names, "on_deny": draw(on_denies)}

    strict: dict[str, Any] = {"once_per_use": draw(st.booleans()), "bound_to": draw(bounds)}
    return [
        RequireBefore("plain", draw(required), per=draw(pers), **where("draft")),
        RequireBefore(
            "judged", draw(required), evaluator="sound", per=draw(pers), **strict, **where("pay", "tell")
        ),
        NeverAfter("never", draw(steps), per=draw(pers), **where("check", "draft", "pay")),
        WithinSteps("within", draw(steps), draw(st.integers(1, 4)), **where("pay", "draft")),
        AtMost("most", draw(st.integers(0, 4)), per=draw(pers), **where("check", "pay", "tell")),
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rules=rule_sets(),
    plays=st.lists(scripts, min_size=1, max_size=3),
    facts=st.sampled_from([1, 3, 256]),
    elsewhere=st.booleans(),
    asynchronous=st.booleans(),
)
def test_decisions_equal_those_made_from_the_whole_history(
    rules: list[PolicyChecker],
    plays: list[list[Turn]],
    facts: int,
    elsewhere: bool,
    asynchronous: bool,
) -> None:
    """Over several runs of a thread, with parallel nodes, subgraphs, failures, redirects and denials; when facts
    were dropped, and when another process goes on."""
    play, saver, config = Play(), InMemorySaver(), thread(str(uuid.uuid4()))
    arbiter_os = governing(rules, facts)
    runs: list[list[HistoryItem]] = []
    known: set[str] = set()
    for script in plays:
        if elsewhere:
            arbiter_os = governing(rules, facts)
        play.turns = script
        app = arbiter_os.govern(play.graph(saver), instructions=KINDS)
        run(app, {"turn": 0, "amount": 1}, {**config, "recursion_limit": 100}, mode="async" if asynchronous else "sync")
        arbiter_os.drain(10)
        runs.append([item for item in arbiter_os.history.items() if item.id not in known])
        known |= {item.id for item in runs[-1]}
    slow = Slow(runs)
    for item in slow.items:
        for rule in rules:
            verdict = item.check_policy_results.get(rule.name)
            if verdict is not None:
                told = [(other, slow.when[other.id]) for other in slow.items], slow.when[item.id]
                assert (verdict.kind == "allow") == slow.allows(rule, item), (rule.name, item, verdict, told)
