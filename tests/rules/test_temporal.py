"""Rules over time: require_before, never_after, within_steps and at_most."""

from __future__ import annotations

import itertools
import operator
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from arbiter import ArbiterOS, EvaluationResult, History, HistoryItem, PolicyChecker, PolicyViolationError
from arbiter.checkers import AtMost, NeverAfter, RequireBefore, SchemaChecker, WithinSteps
from arbiter.checkers._steps import Step
from arbiter.errors import ParameterError
from arbiter.instructions import COMMUNICATE, GENERATE, TOOL_CALL, VERIFY
from arbiter.routers import ErrorRouter
from tests.support import MODES, Check, Hold, Judge, Route, bad, examples, good, run, thread

KINDS = {
    "check": VERIFY,
    "draft": GENERATE,
    "pay": TOOL_CALL,
    "tell": COMMUNICATE,
}
ALL_KINDS = KINDS | {f"team:{name}": kind for name, kind in KINDS.items()}


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


def building(schema: Any) -> Any:
    """A builder; its types, which leave parameters open, stay in here."""
    return StateGraph(schema)


def nothing(_: Any) -> dict[str, Any]:
    return {}


def until_two(key: str) -> Callable[[Any], str]:
    def again(state: Any) -> str:
        return "pay" if state[key] < 2 else END

    return again


def sending(width: int) -> Callable[[Any], list[Send]]:
    def sends(_: Any) -> list[Send]:
        return [Send("pay", {}) for _ in range(width)]

    return sends


class Play:
    """A graph that runs, superstep by superstep, what a script says."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.bodies: list[str] = []

    def graph(self, checkpointer: Any = None) -> Any:
        inner = building(Inside)
        builder = building(Playing)
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
        turn: int = state.get("turn", 0)
        return list(self.turns[turn]) if turn < len(self.turns) else [END]

    def next_inside(self, state: Any) -> list[str]:
        outer: int = state.get("turn", 0)
        turn: int = state.get("inner", 0)
        turns: list[Turn] = self.turns[outer]["team"]
        return list(turns[turn]) if turn < len(turns) else ["close"]

    def body(self, name: str, *, inside: bool) -> Callable[[Any], Any]:
        def work(state: Any) -> Any:
            turn: int = state.get("turn", 0)
            within: int = state.get("inner", 0)
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
            case RequireBefore() if rule.since:
                past = self.before(item, "thread")
                passes = [o for o in past if _is(rule.required, o) and _passed(rule, o)]
                return all(self.closed(o, passes) for o in self.before(item, rule.per) if _opens(rule, o))
            case RequireBefore():
                return self.balance(rule, item) > 0
            case _:
                raise AssertionError(rule)

    def closed(self, item: HistoryItem, passes: list[HistoryItem]) -> bool:
        return item in passes or any(precedes(self.when[item.id], self.when[o.id]) for o in passes)

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


def _opens(rule: RequireBefore, item: HistoryItem) -> bool:
    return item.status == "completed" and any(_is(step, item) for step in rule.since)


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
sinces = st.lists(st.sampled_from(["GENERATE", "COMMUNICATE", "node:draft"]), min_size=1, unique=True)
bounds = st.sampled_from([None, None, ["amount"], ["amount", "payee"]])


@st.composite
def rule_sets(draw: Any) -> list[PolicyChecker]:
    def where(*names: str) -> dict[str, Any]:
        return {"target_nodes": names, "on_deny": draw(on_denies)}

    strict: dict[str, Any] = {"once_per_use": draw(st.booleans()), "bound_to": draw(bounds)}
    return [
        RequireBefore("plain", draw(required), per=draw(pers), **where("draft")),
        RequireBefore(
            "judged",
            draw(required),
            evaluator="sound",
            per=draw(pers),
            target_nodes=["pay", "tell"],
            on_deny="redirect:skip",  # in force: what an audit rule reads is no reading for the others
            **strict,
        ),
        RequireBefore("since", draw(required), since=draw(sinces), per=draw(pers), **where("pay", "draft")),
        NeverAfter("never", draw(steps), per=draw(pers), **where("check", "draft", "pay")),
        WithinSteps("within", draw(steps), draw(st.integers(1, 4)), **where("pay", "draft")),
        AtMost("most", draw(st.integers(0, 4)), per=draw(pers), **where("check", "pay", "tell")),
    ]


@pytest.mark.lengthy
@examples(0.4)
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
        app = arbiter_os.govern(play.graph(saver), instructions=ALL_KINDS)
        run(
            app,
            {"turn": 0, "amount": 1},
            {**config, "recursion_limit": 100},
            mode="async" if asynchronous else "sync",
        )
        arbiter_os.drain(60)
        runs.append([item for item in arbiter_os.history.items() if item.id not in known])
        known |= {item.id for item in runs[-1]}
    slow = Slow(runs)
    for item in slow.items:
        for rule in rules:
            verdict = item.check_policy_results.get(rule.name)
            if verdict is not None:
                told = [(other, slow.when[other.id]) for other in slow.items], slow.when[item.id]
                assert (verdict.kind == "allow") == slow.allows(rule, item), (rule.name, item, verdict, told)


# One by one ---------------------------------------------------------------------------------------


def decided(
    rules: list[PolicyChecker],
    turns: list[Turn],
    *,
    mode: str = "sync",
    saver: Any = None,
    state: Mapping[str, Any] = {"turn": 0},
    arbiter_os: ArbiterOS | None = None,
) -> list[str]:
    """The status of each run of `pay`, in order."""
    arbiter_os = arbiter_os or governing(rules)
    play = Play()
    play.turns = turns
    app = arbiter_os.govern(play.graph(saver), instructions=ALL_KINDS)
    run(app, state, thread("1") if saver else None, mode=mode)
    return [item.status for item in arbiter_os.history.items() if item.node == "pay"]


def paying(**outcome: Any) -> Turn:
    return {"pay": outcome}


def checking(**outcome: Any) -> Turn:
    return {"check": outcome}


def before_pay(**parameters: Any) -> RequireBefore:
    return RequireBefore("rule", "VERIFY", target_nodes=["pay"], on_deny="redirect:skip", **parameters)


STEPS_AND_PASSES: list[tuple[Turn, bool]] = [
    (checking(), True),
    (checking(sound=False), False),
    (checking(unjudged=True), False),
    (checking(sent_away=True), False),
    (checking(fails=True), False),
    ({"draft": {}}, False),
    ({"team": [{"check": {}}]}, True),
    ({"team": [{"check": {"sound": False}}]}, False),
]


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize(("step", "allowed"), STEPS_AND_PASSES)
def test_the_required_step_must_have_passed_and_not_merely_run(mode: str, step: Turn, allowed: bool) -> None:
    status = "completed" if allowed else "denied"
    turns: list[Turn] = [step, {"draft": {}}, paying()]
    assert decided([before_pay(evaluator="sound")], turns, mode=mode) == [status]


def test_without_an_evaluator_what_was_read_must_have_passed() -> None:
    rule = before_pay()
    assert decided([rule], [checking(sound=False), paying()]) == ["completed"]
    assert decided([rule], [checking(style=False), paying()]) == ["completed"]
    assert decided([rule], [checking(style=False, read=True), paying()]) == ["denied"]


@pytest.mark.parametrize("first", [True, False])
def test_results_read_do_not_depend_on_the_order_of_the_rules(first: bool) -> None:
    judged = RequireBefore("judged", "VERIFY", evaluator="sound", target_nodes=["tell"])
    rules: list[PolicyChecker] = [before_pay(), judged]
    assert decided(rules if first else rules[::-1], [checking(sound=False), paying()]) == ["denied"]


def test_a_rule_waits_for_the_evaluation_of_the_step_and_of_no_other(hold: Hold) -> None:
    ended: list[bool] = []

    def slow(history: History) -> EvaluationResult:
        if history.entries[-1][-1].node == "pay":
            ended.append(hold())
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(before_pay(evaluator="slow", once_per_use=True))
    arbiter_os.add_evaluator(Judge("slow", slow))
    assert decided([], [checking(), paying()], arbiter_os=arbiter_os) == ["completed"]
    assert not ended


def test_each_pass_permits_one_run() -> None:
    turns = [checking(), paying(), paying(), checking(), checking(), paying(), paying(), paying()]
    expected = ["completed", "denied", "completed", "completed", "denied"]
    assert decided([before_pay(once_per_use=True)], turns) == expected


def test_a_run_that_failed_has_not_used_the_pass() -> None:
    turns = [checking(), paying(fails=True), paying(), paying()]
    assert decided([before_pay(once_per_use=True)], turns) == ["failed", "completed", "denied"]


def test_under_audit_what_would_have_been_denied_uses_no_pass() -> None:
    rule = before_pay(once_per_use=True)
    rule.mode = "audit"
    arbiter_os = governing([rule])
    decided([], [paying(), checking(), paying(), paying()], arbiter_os=arbiter_os)
    verdicts = [i.check_policy_results["rule"].kind for i in arbiter_os.history.items() if i.node == "pay"]
    assert verdicts == ["deny", "allow", "deny"]


@pytest.mark.lengthy
def test_a_pass_counts_for_the_fields_that_it_was_bound_to() -> None:
    rule = before_pay(bound_to=["amount", "payee"])
    to_a = {"turn": 0, "amount": 5, "payee": "a"}
    changed: Turn = {"draft": {"amount": 6}}
    assert decided([rule], [checking(), paying()], state=to_a) == ["completed"]
    assert decided([rule], [checking(), changed, paying()], state=to_a) == ["denied"]
    assert decided([rule], [checking(amount=6), paying()], state=to_a) == ["completed"]
    assert decided([rule], [checking(), changed, checking(), paying()], state=to_a) == ["completed"]


def test_a_missing_field_denies_and_is_named() -> None:
    class Bare(TypedDict, total=False):
        amount: int
        payee: str

    builder = building(Bare)
    builder.add_node("check", nothing)
    builder.add_node("pay", nothing)
    builder.add_edge(START, "check")
    builder.add_edge("check", "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        RequireBefore("rule", "node:check", bound_to=["amount", "payee"], target_nodes=["pay"])
    )
    app = arbiter_os.govern(builder.compile())
    with pytest.raises(PolicyViolationError, match="the input lacks payee, to which a pass of node 'check'"):
        app.invoke({"amount": 1})


def test_a_body_that_changes_its_input_in_place_has_used_the_pass_all_the_same() -> None:
    class Order(TypedDict, total=False):
        order: dict[str, int]
        paid: int

    def pay(state: Any) -> Any:
        state["order"]["note"] = state.get("paid", 0) + 1
        return {"paid": state.get("paid", 0) + 1, "order": {"amount": 1}}

    builder = building(Order)
    builder.add_node("check", nothing)
    builder.add_node("pay", pay)
    builder.add_edge(START, "check")
    builder.add_edge("check", "pay")
    builder.add_conditional_edges("pay", until_two("paid"))
    arbiter_os = ArbiterOS()
    rule = RequireBefore("rule", "node:check", bound_to=["order"], once_per_use=True, target_nodes=["pay"])
    arbiter_os.add_policy_checker(rule)
    with pytest.raises(PolicyViolationError, match="node 'check' has no unused pass for this order"):
        arbiter_os.govern(builder.compile()).invoke({"order": {"amount": 1}})


@pytest.mark.lengthy
def test_a_pass_that_was_forgotten_denies() -> None:
    """Of more than 256 passes for different values the oldest are forgotten."""
    turns = [*(checking(amount=number) for number in range(300)), {"draft": {"amount": 0}}, paying()]
    late = [{"draft": {"amount": 250}}, paying()]
    rule = before_pay(bound_to=["amount"])
    arbiter_os = governing([rule])
    play = Play()
    play.turns = [*turns, *late]
    app = arbiter_os.govern(play.graph(), instructions=ALL_KINDS)
    app.invoke({"turn": 0, "amount": 0}, {"recursion_limit": 1000})
    assert [i.status for i in arbiter_os.history.items() if i.node == "pay"] == ["denied", "completed"]


@pytest.mark.parametrize(("per", "status"), [("thread", "completed"), ("run", "denied")])
def test_a_pass_of_an_earlier_run_counts_for_the_thread(per: Any, status: str, tmp_path: Path) -> None:
    """Also in another process: a fresh ArbiterOS on the same database."""
    rule = before_pay(per=per)
    with SqliteSaver.from_conn_string(str(tmp_path / "db.sqlite")) as saver:
        decided([rule], [checking()], saver=saver)
    with SqliteSaver.from_conn_string(str(tmp_path / "db.sqlite")) as saver:
        assert decided([rule], [paying()], saver=saver) == [status]


@pytest.mark.lengthy
@MODES
def test_a_crash_between_steps_changes_no_decision(mode: str) -> None:
    """The process ends before `pay`; another one goes on from the checkpoint."""
    saver, play = InMemorySaver(), Play()
    play.turns = [checking(), paying(), paying()]

    arbiter_os = governing([before_pay(once_per_use=True)])
    app = arbiter_os.govern(play.graph(saver), instructions=ALL_KINDS)
    app.invoke({"turn": 0}, thread("1"), interrupt_before=["pay"])
    other = governing([before_pay(once_per_use=True)])
    app = other.govern(play.graph(saver), instructions=ALL_KINDS)
    run(app, None, thread("1"), mode=mode)
    assert [i.status for i in other.history.items() if i.node == "pay"] == ["completed", "denied"]


def test_a_fork_decides_by_its_own_past() -> None:
    """From a checkpoint before the check, paying is denied; from one after it, it is allowed as it was."""
    saver, play = InMemorySaver(), Play()
    play.turns = [{"draft": {}}, checking(), paying(), {"tell": {}}]
    arbiter_os = governing(
        [before_pay(once_per_use=True), NeverAfter("closed", "node:tell", target_nodes=["draft"])]
    )
    app = arbiter_os.govern(play.graph(saver), instructions=ALL_KINDS)
    app.invoke({"turn": 0}, thread("1"))
    snapshots = {snapshot.next: snapshot.config for snapshot in app.get_state_history(thread("1"))}
    app.invoke(None, snapshots[("pay",)])
    assert [i.status for i in arbiter_os.history.items() if i.node == "pay"] == ["completed"]
    play.turns = [{"draft": {}}, paying()]
    app.invoke(None, snapshots[("draft",)])
    assert [i.status for i in arbiter_os.history.items() if i.node == "pay"] == ["denied"]


def test_an_interrupted_run_uses_its_pass_once() -> None:
    builder = building(Playing)

    def pay(state: Any) -> Any:
        interrupt("sure?")
        return {"turn": state.get("turn", 0) + 1}

    builder.add_node("check", nothing)
    builder.add_node("pay", pay)
    builder.add_edge(START, "check")
    builder.add_edge("check", "pay")
    builder.add_conditional_edges("pay", until_two("turn"))
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        RequireBefore("rule", "node:check", once_per_use=True, target_nodes=["pay"], on_deny="end")
    )
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    app.invoke({}, thread("1"))
    app.invoke(Command(resume="yes"), thread("1"))
    assert [(i.node, i.status) for i in arbiter_os.history.items()] == [
        ("check", "completed"),
        ("pay", "completed"),
        ("pay", "denied"),
    ]


def test_without_targets_everything_but_the_required_step_waits_for_it() -> None:
    rule = RequireBefore("rule", "node:check")
    assert not rule.applies_to("check", VERIFY)
    assert rule.applies_to("other", VERIFY)
    play = Play()
    play.turns = [{"draft": {}}]
    app = governing([rule]).govern(play.graph(), instructions=ALL_KINDS)
    with pytest.raises(PolicyViolationError, match="node 'check' has not passed"):
        app.invoke({"turn": 0})
    play.turns = [checking(), {"draft": {}}, paying()]
    app.invoke({"turn": 0})


@pytest.mark.lengthy
def test_never_after_knows_what_was_before_it_was_registered() -> None:
    saver = InMemorySaver()
    decided([before_pay()], [{"tell": {}}], saver=saver)
    late = NeverAfter("closed", "node:tell", target_nodes=["pay"], on_deny="redirect:skip")
    assert decided([late], [paying()], saver=saver) == ["denied"]


@pytest.mark.parametrize("after", ["COMMUNICATE", "node:tell", COMMUNICATE])
def test_never_after(after: Any) -> None:
    rule = NeverAfter("closed", after, target_nodes=["pay"], on_deny="redirect:skip")
    assert decided([rule], [paying(), {"tell": {"fails": True}}, paying(), {"tell": {}}, paying()]) == [
        "completed",
        "completed",
        "denied",
    ]


@pytest.mark.lengthy
def test_within_steps_counts_supersteps_in_and_around_subgraphs() -> None:
    rule = WithinSteps("fresh", "VERIFY", 2, target_nodes=["pay"], on_deny="redirect:skip")
    idle: Turn = {"draft": {}}
    assert decided([rule], [checking(), paying()]) == ["completed"]
    assert decided([rule], [checking(), idle, paying()]) == ["completed"]
    assert decided([rule], [checking(), idle, idle, paying()]) == ["denied"]
    assert decided([rule], [checking(), {"team": [idle, paying()]}]) == ["completed"]
    assert decided([rule], [checking(), {"team": [idle, idle, paying()]}]) == ["denied"]
    # `close` is the last step inside; `pay` is the second after the check.
    assert decided([rule], [{"team": [checking()]}, paying()]) == ["completed"]
    assert decided([rule], [{"team": [checking(), idle]}, paying()]) == ["denied"]


@pytest.mark.lengthy
def test_at_most_counts_the_runs_of_all_targets() -> None:
    rule = AtMost("few", 2, target_instructions=["TOOL_CALL"], on_deny="redirect:skip")
    assert decided([rule], [paying(), {"team": [paying()]}, paying()]) == ["completed", "completed", "denied"]
    assert decided([rule], [paying(fails=True), paying(), paying()]) == ["failed", "completed", "denied"]


def test_siblings_see_the_same_past() -> None:
    """At most 2 lets a fan-out of 3 begin: an exact limit there is a budget's."""
    builder = building(Playing)
    builder.add_node("pay", nothing)
    builder.add_node("again", nothing)
    builder.add_conditional_edges(START, sending(3), ["pay"])
    builder.add_edge("pay", "again")
    builder.add_conditional_edges("again", sending(1), ["pay"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("few", 2, target_nodes=["pay"], on_deny="end"))
    arbiter_os.govern(builder.compile()).invoke({})
    paid = [i.status for i in arbiter_os.history.items() if i.node == "pay"]
    assert paid == ["completed"] * 3 + ["denied"]


def test_a_denial_says_that_all_runs_of_the_rule_s_nodes_count() -> None:
    """Also without targets, where all nodes count, and the denied node itself has not run."""
    builder = building(Playing)
    builder.add_sequence([("check", nothing), ("tell", nothing), ("pay", nothing)])
    builder.add_edge(START, "check")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("few", 2))
    said = "node 'pay': the rule's nodes, all together, ran 2 times in this run; at most 2 allowed"
    with pytest.raises(PolicyViolationError, match=said):
        arbiter_os.govern(builder.compile()).invoke({})


@pytest.mark.lengthy
@MODES
def test_a_run_begins_with_each_input_also_where_the_start_is_conditional(mode: str) -> None:
    saver = InMemorySaver()
    rule = AtMost("once", 1, target_nodes=["pay"], on_deny="redirect:skip")
    arbiter_os = governing([rule])
    for _ in range(3):
        statuses = decided([], [paying(), paying()], saver=saver, arbiter_os=arbiter_os, mode=mode)
        assert statuses == ["completed", "denied"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RequireBefore("r", "VERFY"),
            "checker 'r': required: .*Did you mean 'VERIFY'.*'node:<name>'",
        ),
        (lambda: RequireBefore("r", "node:"), "required: expected 'node:<name>'"),
        (lambda: RequireBefore("r", 3), "required: expected an instruction or its name, got 3"),  # type: ignore[arg-type]
        (lambda: RequireBefore("r", "VERIFY", bound_to="amount"), "bound_to: expected a list of field names"),
        (lambda: RequireBefore("r", "VERIFY", bound_to=[]), "bound_to: expected a list of field names"),
        (lambda: RequireBefore("r", "VERIFY", per="day"), "per: expected 'run' or 'thread', got 'day'"),  # type: ignore[arg-type]
        (lambda: NeverAfter("r", "node: "), "after: expected 'node:<name>'"),
        (lambda: WithinSteps("r", "VERIFY", 0), "steps: expected a whole number from 1, got 0"),
        (lambda: AtMost("r", True), "times: expected a whole number from 0, got True"),
        (lambda: RequireBefore("r", "VERIFY", passed_when="output."), "passed_when: "),
        (lambda: RequireBefore("r", "VERIFY", passed_when="history.x > 1"), "passed_when: "),
    ],
)
def test_wrong_parameters_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()


@MODES
def test_a_condition_says_whether_the_step_passed(mode: str) -> None:
    rule = before_pay(passed_when="output.outcome.amount >= input.amount && node == 'check'")
    state = {"turn": 0, "amount": 5}
    assert decided([rule], [checking(amount=5), paying()], state=state, mode=mode) == ["completed"]
    assert decided([rule], [checking(amount=4), paying()], state=state, mode=mode) == ["denied"]


def test_a_condition_that_cannot_be_evaluated_is_no_pass_and_the_record_says_why() -> None:
    arbiter_os = governing([before_pay(passed_when="output.outcome.amount >= 1")])
    assert decided([], [checking(), paying()], arbiter_os=arbiter_os) == ["denied"]
    check = arbiter_os.history.last(node="check")
    assert check is not None
    assert "amount" in check.errors["checker rule"]


@pytest.mark.lengthy
def test_a_condition_and_an_evaluator_must_both_hold() -> None:
    rule = before_pay(evaluator="sound", passed_when="output.outcome.amount == 1")
    assert decided([rule], [checking(amount=1), paying()]) == ["completed"]
    assert decided([rule], [checking(amount=2), paying()]) == ["denied"]
    assert decided([rule], [checking(amount=1, sound=False), paying()]) == ["denied"]


# Subgraphs of which nothing is committed ----------------------------------------------------------


class Order(TypedDict, total=False):
    score: float
    paid: Annotated[list[str], operator.add]


def boom(_: Any) -> dict[str, Any]:
    raise ValueError("boom")


def pay_once(_: Any) -> dict[str, list[str]]:
    return {"paid": ["pay"]}


def order(check: Any, last: Any) -> Any:
    inner = building(Order)
    inner.add_node("check", check)
    inner.add_node("last", last)
    inner.add_edge(START, "check")
    inner.add_edge("check", "last")
    outer = building(Order)
    outer.add_node("team", inner.compile())
    outer.add_node("pay", pay_once)
    outer.add_edge(START, "team")
    outer.add_edge("team", "pay")
    return outer.compile(checkpointer=InMemorySaver())


TEAM: dict[str, Any] = {"target_nodes": ["team"]}
UNCOMMITTED: dict[str, Any] = {
    "failed": ErrorRouter("ending", "pay", **TEAM),
    "denied": SchemaChecker(
        "ending", output={"properties": {"score": {"minimum": 2}}}, on_deny="redirect:pay", **TEAM
    ),
}


@MODES
@pytest.mark.parametrize("ending", [*UNCOMMITTED, "committed"])
@pytest.mark.parametrize(
    "verified",
    [
        RequireBefore("verified", VERIFY, target_nodes=["pay"]),
        Check("verified", lambda h: h.last(instruction=VERIFY) is not None, target_nodes=["pay"]),
    ],
    ids=["by its tallies", "by the history"],
)
def test_steps_of_a_subgraph_count_only_if_they_are_committed(
    verified: PolicyChecker, ending: str, mode: str
) -> None:
    """A verification in it was not kept, so it does not allow the next step."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(verified)
    add_ending(arbiter_os, ending)
    graph = order(nothing, boom if ending == "failed" else nothing)
    app = arbiter_os.govern(graph, {"team:check": VERIFY})
    if ending == "committed":
        assert run(app, {"score": 1.0}, thread("1"), mode=mode)["paid"] == ["pay"]
    else:
        with pytest.raises(PolicyViolationError, match="verified"):
            run(app, {"score": 1.0}, thread("1"), mode=mode)


@MODES
@pytest.mark.parametrize("ending", UNCOMMITTED)
def test_consumption_of_a_subgraph_stays_counted(ending: str, mode: str) -> None:
    checks: list[Any] = []

    def check(state: Any) -> dict[str, Any]:
        checks.append(state)
        return {}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("once", 1, per="thread", target_nodes=["check"]))
    add_ending(arbiter_os, ending)
    app = arbiter_os.govern(order(check, boom if ending == "failed" else nothing))
    assert run(app, {"score": 1.0}, thread("1"), mode=mode)["paid"] == ["pay"]
    with suppress(PolicyViolationError):
        run(app, {"score": 1.0}, thread("1"), mode=mode)
    assert len(checks) == 1


def add_ending(arbiter_os: ArbiterOS, ending: str) -> None:
    if ending == "failed":
        arbiter_os.add_policy_router(UNCOMMITTED[ending])
    elif ending == "denied":
        arbiter_os.add_policy_checker(UNCOMMITTED[ending])
