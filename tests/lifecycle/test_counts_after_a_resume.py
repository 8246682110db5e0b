"""Work that a body did before a pause counts once for the rules after it, whatever LangGraph runs again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from arbiter import ArbiterOS, Correction, CorrectionGate, History, PolicyChecker, PolicyViolationError
from arbiter.checkers import AtMost
from tests.graphs import asaver, saver
from tests.support import MODES, Spy, State, chain, examples, run, thread

TASK: Any = task
MOST_RESUMES = 50
QUICK = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=OSError)


@dataclass(frozen=True)
class Step:
    """One step of a body: it calls a "graph", or one that is "pausing", either may have "kept" its state, or a
    "function", which may be "caught" when it fails at its end, runs "both" of its steps at the same time, or pauses
    itself ("pause").
    """

    kind: str
    steps: tuple[Step, ...] = ()


def steps_of(*kinds: str, inside: st.SearchStrategy[Step] | None = None) -> st.SearchStrategy[Step]:
    if inside is None:
        return st.sampled_from([Step(kind) for kind in kinds])
    return st.builds(Step, st.sampled_from(kinds), st.lists(inside, min_size=1, max_size=3).map(tuple))


def _both(one: Step, other: Step) -> Step:
    return Step("both", (one, other))


ONE = st.sampled_from([Step(kind, (Step("graph"),)) for kind in ("function", "caught")])
PAUSES = st.sampled_from([Step("function", (Step(kind),)) for kind in ("graph", "pausing")])
STEP = st.recursive(
    # LangGraph numbers the graphs of a body in the order of their calls, so that it has to be the same each time.
    steps_of("graph", "kept graph", "pause", "pausing", "kept pausing") | st.builds(_both, PAUSES, ONE),
    lambda inside: steps_of("function", "caught", inside=inside),
    max_leaves=5,
)


def _asks(state: State) -> Any:
    return {"log": [interrupt("?")]}


class Gate(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Any:
        return Correction.commit()


Body = Callable[[], Any]


class Program:
    """A body made of steps, each of which calls nodes and functions of its own names."""

    def __init__(self, arbiter_os: ArbiterOS, mode: str, steps: Sequence[Step]) -> None:
        self.arbiter_os, self.mode = arbiter_os, mode
        self.nodes: list[str] = []
        self.functions: list[str] = []
        self.failing: list[str] = []
        self.body = self._all([self._step(step) for step in steps])

    @property
    def expected(self) -> dict[str, int]:
        return {**dict.fromkeys(self.nodes + self.functions, 1), **dict.fromkeys(self.failing, 0)}

    def _name(self, names: list[str]) -> str:
        names.append(f"n{len(self.nodes) + len(self.functions) + len(self.failing)}")
        return names[-1]

    def _all(self, bodies: Sequence[Body], *, at_once: bool = False) -> Body:
        def calls() -> None:
            for body in bodies:
                body()

        async def acalls() -> None:
            if at_once:
                await asyncio.gather(*(body() for body in bodies))
            for body in () if at_once else bodies:
                answer = body()
                if inspect.isawaitable(answer):
                    await answer

        return calls if self.mode == "sync" else acalls

    def _step(self, step: Step) -> Body:
        bodies = [self._step(each) for each in step.steps]
        if step.kind == "pause":
            return self._all([lambda: interrupt("?")])
        if step.kind == "both":
            return self._all(bodies, at_once=True)
        if step.kind in ("function", "caught"):
            return self._function(self._all(bodies), step.kind == "caught")
        made = self._pausing() if "pausing" in step.kind else self._graph()
        if "kept" in step.kind:
            made.checkpointer = True
        graph: Any = self.arbiter_os.govern(made)
        return self._all([lambda: (graph.invoke if self.mode == "sync" else graph.ainvoke)({"log": []})])

    def _graph(self) -> Any:
        return chain(Spy(self._name(self.nodes)))

    def _pausing(self) -> Any:
        """A graph with a node before its pause, one beside it, and one after it."""
        before, beside, asks, after = (self._name(self.nodes) for _ in range(4))
        builder: Any = StateGraph(State)
        builder.add_node(asks, _asks)
        for name in (before, beside, after):
            builder.add_node(name, Spy(name))
        builder.add_edge(START, before).add_edge(before, beside).add_edge(before, asks).add_edge(asks, after)
        return builder.compile()

    def _function(self, body: Body, fails: bool) -> Body:
        def function(state: Any) -> Any:
            body()
            if fails:
                raise KeyError("caught")
            return {"log": []}

        async def afunction(state: Any) -> Any:
            await body()
            if fails:
                raise KeyError("caught")
            return {"log": []}

        made: Any = function if self.mode == "sync" else afunction
        made.__name__ = self._name(self.failing if fails else self.functions)
        governed: Any = self.arbiter_os.govern(made)

        def call() -> None:
            try:
                governed({})
            except KeyError:
                assert fails

        async def acall() -> None:
            try:
                await cast(Awaitable[Any], governed({}))
            except KeyError:
                assert fails

        return call if self.mode == "sync" else acall


def counting(steps: Sequence[Step], place: str, mode: str, gated: bool, fails: list[int]) -> tuple[Any, Any]:
    """An app that runs the steps in this place, then a governed "later", and the counts that a rule sees there."""
    arbiter_os = ArbiterOS()
    program = Program(arbiter_os, mode, steps)
    counts: dict[str, int] = {}

    @arbiter_os.checker(target_nodes=["later"])
    def look(history: History) -> bool:
        counts.update({name: history.count(node=name) for name in program.expected})
        return True

    if gated:
        arbiter_os.add_correction_gate(Gate("gate", target_nodes=["node", *program.functions]))

    def body(*args: Any) -> Any:
        program.body()
        return ended()

    async def abody(*args: Any) -> Any:
        await program.body()
        return ended()

    def ended() -> Any:
        if fails:
            raise OSError(fails.pop())
        return {"log": []}

    node: Any = body if mode == "sync" else abody
    if place == "node":
        builder: Any = StateGraph(State).add_node("node", node, retry_policy=QUICK)
        builder.add_node("later", Spy("later"))
        builder.add_edge(START, "node").add_edge("node", "later")

        def graph(saver: Any) -> Any:
            return arbiter_os.govern(builder.compile(checkpointer=saver))

        return graph, (counts, program.expected)
    later: Any = arbiter_os.govern(Spy("later"))
    called: Any = TASK(node, name="body", retry_policy=QUICK) if place == "task" else node

    def main(state: Any) -> Any:
        found = called()
        if place == "task":
            found.result()
        later({})
        return {"log": []}

    async def amain(state: Any) -> Any:
        await called()
        later({})
        return {"log": []}

    made: Any = main if mode == "sync" else amain
    policy = QUICK if place == "entrypoint" else None

    def functional(saver: Any) -> Any:
        return cast(Any, entrypoint)(checkpointer=saver, retry_policy=policy)(made)

    return functional, (counts, program.expected)


@pytest.mark.lengthy
@pytest.mark.parametrize("place", ["node", "entrypoint", "task"])
@MODES
@examples(2)
@given(
    steps=st.lists(STEP, min_size=1, max_size=3),
    gated=st.booleans(),
    kind=st.sampled_from(["memory", "SQLite"]),
    elsewhere=st.booleans(),
    fails=st.booleans(),
)
def test_each_node_run_in_a_body_counts_once_after_its_pauses(
    place: str, mode: str, steps: list[Step], gated: bool, kind: str, elsewhere: bool, fails: bool
) -> None:
    """In functions that complete or fail, in parallel ones, at retries, and in a process that resumes the graph."""
    if place != "node":
        # A graph that no governed function calls is a run of its own there. And no checkpoint keeps what functions did.
        steps, elsewhere = [Step("function", tuple(steps))], False
    failures = [1] if fails else []

    def make() -> tuple[Any, Any]:
        return counting(steps, place, mode, gated, failures)

    async def aresumed() -> Any:
        app, seen = make()
        resumes = 0
        async with asaver(kind) as held:
            output = await app(held).ainvoke({"log": []}, thread("t"))
            while "__interrupt__" in output and (resumes := resumes + 1) < MOST_RESUMES:
                app, seen = make() if elsewhere else (app, seen)
                output = await app(held).ainvoke(Command(resume="yes"), thread("t"))
        return seen

    def resumed() -> Any:
        app, seen = make()
        resumes = 0
        with saver(kind) as held:
            output = app(held).invoke({"log": []}, thread("t"))
            while "__interrupt__" in output and (resumes := resumes + 1) < MOST_RESUMES:
                app, seen = make() if elsewhere else (app, seen)
                output = app(held).invoke(Command(resume="yes"), thread("t"))
        return seen

    counts, expected = resumed() if mode == "sync" else asyncio.run(aresumed())
    assert counts == expected


@MODES
@pytest.mark.parametrize("body", ["input twice", "resumed after the pause", "resumed before the pause"])
@pytest.mark.parametrize("is_function", [False, True])
def test_a_graph_with_a_thread_of_its_own_counts_once(body: str, is_function: bool, mode: str) -> None:
    """It begins again, or goes on, with the body of the node that pauses."""
    counts: dict[str, int] = {}
    arbiter_os = ArbiterOS()

    @arbiter_os.checker(target_nodes=["later"])
    def look(history: History) -> bool:
        counts.update({name: history.count(node=name) for name in ("before", "ask", "after")})
        return True

    def ask(state: State) -> Any:
        return {"log": [interrupt("?")]}

    graph = arbiter_os.govern(chain(Spy("before"), ask, Spy("after"), checkpointer=InMemorySaver()))

    def calls(given: Any) -> Any:
        return graph.invoke(given, thread("own")) if mode == "sync" else graph.ainvoke(given, thread("own"))

    def begun() -> bool:
        return body == "resumed after the pause" and bool(graph.get_state(thread("own")).next)

    def node(state: State) -> None:
        if not begun():
            calls({"log": []})
        if body == "resumed before the pause":
            calls(Command(resume="yes"))
        answer = interrupt("??")
        if body != "resumed before the pause":
            calls(Command(resume=answer))

    async def anode(state: State) -> None:
        if not begun():
            await calls({"log": []})
        if body == "resumed before the pause":
            await calls(Command(resume="yes"))
        answer = interrupt("??")
        if body != "resumed before the pause":
            await calls(Command(resume=answer))

    made: Any = node if mode == "sync" else anode
    made.__name__ = "node"
    inside: Any = arbiter_os.govern(made)

    def around(state: State) -> Any:
        return inside({})

    async def aaround(state: State) -> Any:
        return await inside({})

    if is_function:
        made = around if mode == "sync" else aaround
    app = arbiter_os.govern(chain(made, Spy("later"), checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("t"), mode=mode)
    run(app, Command(resume="yes"), thread("t"), mode=mode)
    assert counts == {"before": 1, "ask": 1, "after": 1}


@MODES
@pytest.mark.parametrize("retries", [False, True])
@pytest.mark.parametrize("place", ["entrypoint", "task"])
def test_a_limit_lets_a_function_be_called_again_where_langgraph_runs_a_body_again(
    place: str, retries: bool, mode: str
) -> None:
    """That is the same call, after a pause or at a retry. A second call in the body is denied."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("once", 1, target_nodes=["pay"]))
    pay = Spy("pay")
    paid = arbiter_os.govern(pay)
    failures = [1] if retries else []

    def body(_: Any = None) -> None:
        paid({})
        if failures:
            raise OSError(failures.pop())
        if interrupt("go on?") == "again":
            paid({})

    in_a_task = TASK(body, name="body", retry_policy=QUICK)

    def main(_: Any) -> None:
        in_a_task().result() if place == "task" else body()

    async def amain(_: Any) -> None:
        await in_a_task() if place == "task" else body()

    made: Any = entrypoint(checkpointer=InMemorySaver(), retry_policy=QUICK)
    app = made(main if mode == "sync" else amain)
    for name in ("one", "two"):
        run(app, "", thread(name), mode=mode)
    assert run(app, Command(resume="yes"), thread("one"), mode=mode) is None
    assert len(pay.calls) == 3 + retries
    with pytest.raises(PolicyViolationError, match="ran once"):
        run(app, Command(resume="again"), thread("two"), mode=mode)


def test_a_task_that_is_done_counts_beside_the_calls_that_its_entrypoint_makes_again() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("two", 2, target_nodes=["pay"]))
    pay = Spy("pay")
    paid = arbiter_os.govern(pay)
    in_a_task = TASK(lambda: paid({}), name="in_a_task")

    @entrypoint(checkpointer=InMemorySaver())
    def main(_: str) -> None:
        paid({})
        in_a_task().result()
        interrupt("go on?")
        paid({})

    main.invoke("", thread("t"))
    with pytest.raises(PolicyViolationError, match="ran 2 times"):
        main.invoke(Command(resume="yes"), thread("t"))
    assert len(pay.calls) == 3


def test_many_tasks_of_an_entrypoint_all_count_when_it_calls_again_what_it_called() -> None:
    arbiter_os = ArbiterOS()
    counts: list[int] = []

    @arbiter_os.checker(target_nodes=["later"])
    def look(history: History) -> bool:
        counts.append(history.count(node="pay"))
        return True

    paid, later = arbiter_os.govern(Spy("pay")), arbiter_os.govern(Spy("later"))
    in_a_task = TASK(lambda: paid({}), name="in_a_task")

    @entrypoint(checkpointer=InMemorySaver())
    def main(given: str) -> None:
        paid({})
        for _ in range(100):
            in_a_task().result()
        interrupt("go on?")
        later({})

    main.invoke("", thread("t"))
    main.invoke(Command(resume="yes"), thread("t"))
    assert counts == [101]


def payments_counted() -> tuple[ArbiterOS, list[int]]:
    """Governance with a rule before the node `later`, and what it counts of the node `pay`."""
    counts: list[int] = []
    arbiter_os = ArbiterOS()

    @arbiter_os.checker(target_nodes=["later"])
    def look(history: History) -> bool:
        counts.append(history.count(node="pay"))
        return True

    return arbiter_os, counts


@MODES
def test_a_look_at_the_state_of_a_graph_counts_nothing_after_a_resume(mode: str) -> None:
    """Also not behind the call of a graph that is not governed."""
    arbiter_os, counts = payments_counted()
    graph, bare = arbiter_os.govern(chain(Spy("pay"))), chain(Spy("bare"))

    def node(state: State) -> Any:
        graph.invoke({"log": []})
        interrupt("go on?")
        bare.invoke({"log": []})
        assert graph.get_state(get_config()).values == {"log": ["pay"]}

    async def anode(state: State) -> Any:
        await graph.ainvoke({"log": []})
        interrupt("go on?")
        await bare.ainvoke({"log": []})
        assert (await graph.aget_state(get_config())).values == {"log": ["pay"]}

    made: Any = node if mode == "sync" else anode
    app = arbiter_os.govern(chain(made, Spy("later"), checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("t"), mode=mode)
    run(app, Command(resume="yes"), thread("t"), mode=mode)
    assert counts == [1]


@MODES
@pytest.mark.parametrize("does", ["read", "updated"])
def test_a_graph_with_a_thread_of_its_own_that_is_only_read_or_updated_counts_nothing(
    does: str, mode: str
) -> None:
    """Also not behind the call of a graph that is not governed, in a body that is resumed."""
    arbiter_os, counts = payments_counted()
    other: Any = arbiter_os.govern(chain(Spy("pay"), Spy("later"), checkpointer=InMemorySaver()))
    run(other, {"log": []}, thread("own"), mode=mode)
    bare = chain(Spy("bare"))

    def node(state: State) -> Any:
        interrupt("go on?")
        bare.invoke({"log": []})
        if does == "read":
            other.get_state(thread("own"))
        else:
            other.update_state(thread("own"), {"log": ["more"]})

    async def anode(state: State) -> Any:
        interrupt("go on?")
        await bare.ainvoke({"log": []})
        if does == "read":
            await other.aget_state(thread("own"))
        else:
            await other.aupdate_state(thread("own"), {"log": ["more"]})

    made: Any = node if mode == "sync" else anode
    app = arbiter_os.govern(chain(made, Spy("later"), checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("t"), mode=mode)
    run(app, Command(resume="yes"), thread("t"), mode=mode)
    assert counts == [1, 0]


def test_many_tasks_that_run_at_once_all_count_when_the_entrypoint_is_resumed() -> None:
    arbiter_os = ArbiterOS()
    counts: list[int] = []
    tasks = 100
    all_run = asyncio.Barrier(tasks)

    @arbiter_os.checker(target_nodes=["later"])
    def look(history: History) -> bool:
        counts.append(history.count(node="pay"))
        return True

    async def pay(state: Any) -> None:
        await all_run.wait()

    called, paid, later = (arbiter_os.govern(each) for each in (Spy("called"), pay, Spy("later")))

    async def pays() -> None:
        await cast(Any, paid({}))

    in_a_task = TASK(pays, name="in_a_task")

    @entrypoint(checkpointer=InMemorySaver())
    async def main(given: str) -> None:
        called({})
        await asyncio.gather(*(in_a_task() for _ in range(tasks)))
        interrupt("go on?")
        later({})

    run(main, "", thread("t"), mode="async")
    run(main, Command(resume="yes"), thread("t"), mode="async")
    assert counts == [tasks]


@MODES
def test_functions_in_an_entrypoint_count_beside_those_that_a_rule_in_audit_mode_calls(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("twice", 2, target_nodes=["pay"]))
    look_up, pay = arbiter_os.govern(Spy("look_up")), arbiter_os.govern(Spy("pay"))

    class Looks(PolicyChecker):
        def check_before(self, history: History) -> bool:
            look_up({})
            return True

    arbiter_os.add_policy_checker(Looks("looks", target_nodes=["pay"], on_deny="audit"))

    def main(given: str) -> None:
        for _ in range(3):
            pay({})

    async def amain(given: str) -> None:
        main(given)

    app = cast(Any, entrypoint)(checkpointer=InMemorySaver())(main if mode == "sync" else amain)
    with pytest.raises(PolicyViolationError, match="ran 2 times"):
        run(app, "", thread("t"), mode=mode)


def pausing_after(graph: Any, mode: str) -> Any:
    """A node that runs a graph and then pauses."""

    def node(state: State) -> Any:
        graph.invoke({"log": []})
        interrupt("go on?")

    async def anode(state: State) -> Any:
        await graph.ainvoke({"log": []})
        interrupt("go on?")

    return node if mode == "sync" else anode


@MODES
def test_a_graph_that_keeps_its_state_counts_for_each_send_that_ran_it_before_a_pause(mode: str) -> None:
    """Its place has only what the last one of them saved."""
    arbiter_os, counts = payments_counted()
    kept = arbiter_os.govern(chain(Spy("pay"), checkpointer=True))

    def sends(state: State) -> list[Send]:
        return [Send("node", {}) for _ in range(3)]

    builder: Any = StateGraph(State).add_node("node", pausing_after(kept, mode))
    builder.add_node("later", Spy("later")).add_edge("node", "later")
    builder.add_conditional_edges(START, sends, ["node"])
    app: Any = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    config: Any = {**thread("t"), "max_concurrency": 1}
    for times in (3, 6):
        run(app, {"log": []}, config, mode=mode)
        answers = {each.id: "yes" for each in app.get_state(config).interrupts}
        run(app, Command(resume=answers), config, mode=mode)
        assert counts.pop() == times


@MODES
def test_a_graph_that_keeps_its_state_counts_where_it_goes_on_after_an_update(mode: str) -> None:
    """Its nodes ran in another superstep than the one in which it began."""
    names = "before", "ask", "after"
    counts: list[dict[str, int]] = []
    arbiter_os = ArbiterOS()

    @arbiter_os.checker(target_nodes=["later"])
    def look(history: History) -> bool:
        counts.append({name: history.count(node=name) for name in names})
        return True

    def ask(state: State) -> Any:
        return {"log": [interrupt("inside")]}

    kept = arbiter_os.govern(chain(Spy("before"), ask, Spy("after"), checkpointer=True))

    builder: Any = StateGraph(State).add_node("node", pausing_after(kept, mode))
    builder.add_node("later", Spy("later")).add_edge(START, "node").add_edge("node", "later")
    app: Any = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("t"), mode=mode)
    app.update_state(thread("t"), {"log": ["changed"]})
    resume: Any = Command(resume="yes")
    for again in (None, resume, resume):
        run(app, again, thread("t"), mode=mode)
    assert counts == [dict.fromkeys(names, 1)]
