"""Retries, timeouts, caches, error handlers, interrupts, edits of the state, time travel and forks: as without
Arbiter, and one history item for each task with its attempts counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.errors import NodeError, NodeTimeoutError
from langgraph.graph import END, START
from langgraph.pregel import _retry
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt

from arbiter import ArbiterOS, History
from tests import graphs
from tests.graphs import TypedState

Script = Callable[["Session"], Any]
NO_OPTIONS: dict[str, Any] = {}
QUICK = RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=3, retry_on=ConnectionError)


@dataclass
class Session:
    """One graph in use: runs it, and keeps all that comes of it. Sync and async look the same to a script."""

    driver: str
    saver: Any
    arbiter_os: ArbiterOS | None
    seen: list[Any] = field(default_factory=list[Any])
    errors: list[BaseException | None] = field(default_factory=list[BaseException | None])
    recorder: graphs.Recorder = field(default_factory=graphs.Recorder)
    graph: Any = None

    def use(self, builder: Any, **compiling: Any) -> None:
        graph = builder.compile(checkpointer=self.saver, **compiling)
        self.graph = graph if self.arbiter_os is None else self.arbiter_os.govern(graph)

    def config(self, **configurable: Any) -> Any:
        config = graphs.config_of("one", self.recorder, 1)
        return {**config, "configurable": {"thread_id": "one", **configurable}}

    async def run(self, given: Any, config: Any = None, *, entry: str = "updates", **more: Any) -> None:
        config = config or self.config()
        if self.driver == "sync":
            seen = graphs.run(self.graph, entry, given, config, **more)
        else:
            seen = await graphs.arun(self.graph, entry, given, config, **more)
        self.seen.append(seen.chunks)
        self.errors.append(seen.error)
        await self.state()

    async def state(self) -> Any:
        """The state now, which is kept too."""
        if self.saver is None:
            return None
        config = self.config()
        if self.driver == "sync":
            state = self.graph.get_state(config, subgraphs=True)
        else:
            state = await self.graph.aget_state(config, subgraphs=True)
        self.seen.append(graphs.as_is(state))
        return state

    async def states(self) -> list[Any]:
        """All checkpoints, newest first."""
        if self.saver is None:
            return []
        config = self.config()
        if self.driver == "sync":
            return list(self.graph.get_state_history(config))
        return [state async for state in self.graph.aget_state_history(config)]

    async def update(self, config: Any, values: Any, as_node: str | None = None) -> Any:
        if self.driver == "sync":
            return self.graph.update_state(config, values, as_node)
        return await self.graph.aupdate_state(config, values, as_node)

    def account(self, states: Sequence[Any]) -> Any:
        names = graphs.Names()
        return names.plain([self.seen, self.errors, self.recorder.events, list(states)])

    @property
    def history(self) -> History:
        assert self.arbiter_os is not None
        return self.arbiter_os.history_of(thread_id="one")


async def play(script: Script, driver: str, saver_kind: str, arbiter_os: ArbiterOS | None) -> Session:
    """Run a script to its end, and account for it."""
    if driver == "sync":
        with graphs.saver(saver_kind) as saver:
            return await _play(script, Session(driver, saver, arbiter_os))
    async with graphs.asaver(saver_kind) as saver:
        return await _play(script, Session(driver, saver, arbiter_os))


async def _play(script: Script, session: Session) -> Session:
    await script(session)
    session.seen = session.account(await session.states())
    return session


async def compare(script: Script, driver: str, saver_kind: str = "memory") -> tuple[Session, Session]:
    """The script on the bare graph, with nothing registered, and with policies; gives the governed sessions."""
    expected = await play(script, driver, saver_kind, None)
    empty = await play(script, driver, saver_kind, ArbiterOS())
    assert empty.seen == expected.seen
    arbiter_os = graphs.with_policies(asynchronous=driver == "async")
    full = await play(script, driver, saver_kind, arbiter_os)
    assert full.seen == expected.seen
    return empty, full


def items(session: Session) -> list[tuple[str, str, int]]:
    return [(item.node, item.status, item.attempt) for item in session.history.items()]


def say(*words: str) -> Callable[[Any], Any]:
    return lambda state: {"log": list(words)}


def failing(times: int, error: type[Exception] = ConnectionError) -> Callable[[Any], Any]:
    """A node that fails the first calls."""
    calls = iter(range(1, 100))

    def flaky(state: Any) -> Any:
        call = next(calls)
        if call <= times:
            raise error(f"call {call}")
        return {"log": [f"call {call}"]}

    return flaky


def chain(**nodes: Any) -> Any:
    """A graph of nodes in a row. A value is a node, or a node and the options of `add_node`."""
    graph = graphs.builder(TypedState)
    before = START
    for name, node in nodes.items():
        action, options = cast("tuple[Any, dict[str, Any]]", node if isinstance(node, tuple) else (node, {}))
        graph.add_node(name, action, **options)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph


both = pytest.mark.parametrize("driver", ["sync", "async"])
savers = pytest.mark.parametrize("saver_kind", ["memory", "SQLite"])


# Retries, timeouts, caches, error handlers --------------------------------------------------------


@pytest.mark.lengthy
@both
@pytest.mark.parametrize("failures", [0, 1, 2, 3])
async def test_retries_are_attempts_of_one_item(driver: str, failures: int) -> None:
    """LangGraph retries as it would, and the history has one item with its attempts counted."""

    async def script(session: Session) -> None:
        session.use(chain(a=say("a"), flaky=(failing(failures), {"retry_policy": QUICK}), z=say("z")))
        await session.run({"log": []}, entry="debug")

    ends = "completed" if failures < 3 else "failed"
    expected = [("a", "completed", 1), ("flaky", ends, min(failures + 1, 3))]
    if ends == "completed":
        expected.append(("z", "completed", 1))
    for session in await compare(script, driver):
        assert items(session) == expected
        if ends == "failed":
            assert session.history.entries[-1][-1].error == "ConnectionError: call 3"


@both
async def test_a_subgraph_is_retried_as_a_whole(driver: str) -> None:
    """The node that holds the subgraph counts its attempts; LangGraph resumes the subgraph where it failed."""

    async def script(session: Session) -> None:
        inner = chain(ready=say("ready"), flaky=failing(1)).compile()
        session.use(chain(team=(inner, {"retry_policy": QUICK})))
        await session.run({"log": []}, entry="updates")

    for session in await compare(script, driver):
        last = session.history.last(node="team")
        assert last is not None
        assert (last.status, last.attempt) == ("completed", 2)
        assert session.history.count(node="team") == 1


@both
async def test_a_failed_run_goes_on_where_it_failed(driver: str) -> None:
    """Invoking with None after a failure runs the failed task again: one more attempt of its item."""

    async def script(session: Session) -> None:
        session.use(chain(a=say("a"), flaky=failing(1), z=say("z")))
        await session.run({"log": []})
        await session.run(None)

    for session in await compare(script, driver):
        assert items(session) == [("a", "completed", 1), ("flaky", "completed", 2), ("z", "completed", 1)]


@pytest.mark.lengthy
@pytest.mark.parametrize("retried", [False, True])
async def test_a_timeout_ends_an_attempt(retried: bool) -> None:
    """A node's `timeout` raises what it raises without Arbiter, and is retried as without."""

    async def outcome(arbiter_os: ArbiterOS | None) -> tuple[Any, ...]:
        calls = iter([60, *[0] * 9])

        async def slow(state: Any) -> Any:
            await asyncio.sleep(next(calls))
            return {"log": ["slow"]}

        # On a busy machine a quick attempt may be late as well.
        policy = RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=9)
        options = {"timeout": 0.1, "retry_policy": policy if retried else None}
        session = Session("async", None, arbiter_os)
        session.use(chain(slow=(slow, options)))
        await session.run({"log": []})
        (error,) = session.errors
        # How long it took is in LangGraph's text too.
        return session.seen, type(error), getattr(error, "timeout", None)

    expected = await outcome(None)
    assert (expected[1] is NodeTimeoutError) != retried
    for arbiter_os in (ArbiterOS(), graphs.with_policies(asynchronous=True)):
        assert await outcome(arbiter_os) == expected
        ((item,),) = arbiter_os.history_of(thread_id="one").entries
        assert item.attempt > 1 if retried else item.attempt == 1
        assert item.status == ("completed" if retried else "cancelled")


@pytest.mark.lengthy
@both
async def test_a_cached_node_is_not_run_again(driver: str) -> None:
    """A node cache serves a second thread as it would; the body runs once."""

    def script_with(calls: list[str]) -> Script:
        def costly(state: Any) -> Any:
            calls.append("costly")
            return {"log": ["costly"]}

        async def script(session: Session) -> None:
            cached: Any = (costly, {"cache_policy": CachePolicy()})
            session.use(chain(costly=cached, z=say("z")), cache=InMemoryCache())
            for thread in ("one", "two", "three"):
                await session.run({"log": ["in"]}, session.config(thread_id=thread))
            await session.run({"log": ["other"]}, session.config(thread_id="four"))

        return script

    expected: list[str] = []
    bare = await play(script_with(expected), driver, "memory", None)
    assert len(expected) == 2
    for arbiter_os in (ArbiterOS(), graphs.with_policies(asynchronous=driver == "async")):
        calls: list[str] = []
        session = await play(script_with(calls), driver, "memory", arbiter_os)
        assert session.seen == bare.seen
        assert calls == expected
        assert items(session) == [("costly", "completed", 1), ("z", "completed", 1)]


@pytest.mark.lengthy
@both
@pytest.mark.parametrize("leaves", ["update", "command", "raises"])
@pytest.mark.parametrize("default", [False, True])
async def test_an_error_handler_takes_over(driver: str, leaves: str, default: bool) -> None:
    """A node's `error_handler`, or the graph's, is run with the error, after the retries."""

    def handler(state: Any, error: NodeError) -> Any:
        text = f"{error.node}: {error.error}"
        if leaves == "raises":
            raise RuntimeError(f"cannot handle {text}")
        if leaves == "command":
            return Command(update={"log": [text]}, goto="rescue")
        return {"log": [text]}

    async def script(session: Session) -> None:
        options: dict[str, Any] = {"retry_policy": QUICK}
        if not default:
            options["error_handler"] = handler
        graph = chain(a=say("a"), flaky=(failing(9), options), z=say("z"))
        graph.add_node("rescue", say("rescue"))
        if default:
            graph.set_node_defaults(error_handler=handler)
        session.use(graph)
        await session.run({"log": []}, entry="debug")

    for session in await compare(script, driver):
        flaky = session.history.last(node="flaky")
        assert flaky is not None
        assert (flaky.status, flaky.attempt) == ("failed", 3)
        handled = [item for item in session.history.items() if "error_handler" in item.node]
        ends = "failed" if leaves == "raises" else "completed"
        assert [(item.status, item.attempt) for item in handled] == [(ends, 1)]
        assert session.history.count(node="rescue") == (1 if leaves == "command" else 0)


# Interrupts ---------------------------------------------------------------------------------------


@pytest.mark.lengthy
@both
@savers
@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("at", ["compile", "run"])
async def test_static_interrupts(driver: str, saver_kind: str, when: str, at: str) -> None:
    """The graph pauses where it would, and goes on with None; no task is counted twice."""

    async def script(session: Session) -> None:
        stops: dict[str, Any] = {when: ["b"]}
        session.use(chain(a=say("a"), b=say("b"), c=say("c")), **(stops if at == "compile" else NO_OPTIONS))
        await session.run({"log": []}, **(stops if at == "run" else NO_OPTIONS))
        await session.run(None)

    for session in await compare(script, driver, saver_kind):
        assert items(session) == [(name, "completed", 1) for name in "abc"]


def asking(*questions: str) -> Callable[[Any], Any]:
    def ask(state: Any) -> Any:
        answers = [interrupt({"question": question}) for question in questions]
        return {"log": [f"{question}={answer}" for question, answer in zip(questions, answers, strict=True)]}

    return ask


@pytest.mark.lengthy
@both
@savers
async def test_interrupts_in_a_node(driver: str, saver_kind: str) -> None:
    """A node that asks twice is resumed twice: three attempts of one item."""

    async def script(session: Session) -> None:
        session.use(chain(a=say("a"), ask=asking("name", "age"), z=say("z")))
        await session.run({"log": []})
        await session.run(Command(resume="Ada"))
        await session.run(Command(resume=36), entry="debug")

    for session in await compare(script, driver, saver_kind):
        assert items(session) == [("a", "completed", 1), ("ask", "completed", 3), ("z", "completed", 1)]


@pytest.mark.lengthy
@both
@savers
async def test_interrupts_in_branches_and_subgraphs(driver: str, saver_kind: str) -> None:
    """Branches that ask at once are answered by interrupt id; the subgraph's task is resumed, not begun again."""

    async def script(session: Session) -> None:
        inner = chain(ready=say("ready"), ask=asking("inside")).compile()
        graph = chain(a=say("a"))
        graph.add_node("left", asking("left"))
        graph.add_node("team", inner)
        graph.add_node("z", say("z"))
        graph.add_conditional_edges(
            "a", graphs.of(lambda state: ["team", Send("left", state)]), ["left", "team"]
        )
        graph.add_edge(["left", "team"], "z")
        session.use(graph)
        await session.run({"log": []}, entry="debug")
        state = await session.state()
        answers = {asked.id: f"to {asked.value['question']}" for asked in state.interrupts}
        await session.run(Command(resume=answers), entry="debug")

    for session in await compare(script, driver, saver_kind):
        assert sorted(items(session)) == [
            ("a", "completed", 1),
            ("ask", "completed", 2),
            ("left", "completed", 2),
            ("ready", "completed", 1),
            ("team", "completed", 2),
            ("z", "completed", 1),
        ]


@both
async def test_an_interrupt_and_a_retry_in_one_node(driver: str) -> None:
    """Retries before and after the answer count as attempts of the same item."""

    async def script(session: Session) -> None:
        flaky, ask = failing(2), asking("go")

        def both_at_once(state: Any) -> Any:
            told = ask(state)
            flaky(state)
            return told

        session.use(chain(node=(both_at_once, {"retry_policy": QUICK})))
        await session.run({"log": []})
        await session.run(Command(resume="yes"))

    # Older releases count a retry's questions on, so that it asks again.
    ends = ("completed", 4) if hasattr(_retry, "_reset_interrupt_counter") else ("interrupted", 3)
    for session in await compare(script, driver):
        assert items(session) == [("node", *ends)]


# Edits of the state, time travel, forks -----------------------------------------------------------


@both
@savers
async def test_update_state(driver: str, saver_kind: str) -> None:
    """The state is edited, also as a node, and the run goes on from there."""

    async def script(session: Session) -> None:
        graph = chain(a=say("a"), b=say("b"), c=say("c"))
        session.use(graph, interrupt_before=["b"])
        await session.run({"log": [], "n": 1})
        await session.update(session.config(), {"log": ["edited"], "n": 5})
        await session.state()
        await session.update(session.config(), {"log": ["as b"]}, "b")
        await session.run(None)
        await session.run({"log": ["again"]})
        await session.run(None)

    for session in await compare(script, driver, saver_kind):
        assert items(session) == [(name, "completed", 1) for name in ("a", "c", "a", "b", "c")]


@pytest.mark.lengthy
@both
@savers
async def test_time_travel_and_forks(driver: str, saver_kind: str) -> None:
    """Replays from a checkpoint and forks with an edit do what they do, and are runs of their own."""

    async def script(session: Session) -> None:
        session.use(chain(a=say("a"), b=say("b"), c=say("c")))
        await session.run({"log": [], "n": 1})
        before_b = next(s for s in await session.states() if s.next == ("b",))
        await session.run(None, before_b.config)
        fork = await session.update(before_b.config, {"log": ["forked"]})
        await session.run(None, fork)
        await session.run({"log": ["more"]})

    for session in await compare(script, driver, saver_kind):
        counts = {name: session.history.count(node=name) for name in "abc"}
        assert counts == {"a": 2, "b": 4, "c": 4}
        assert all((status, attempt) == ("completed", 1) for _, status, attempt in items(session))


@both
@savers
async def test_travel_back_to_a_question(driver: str, saver_kind: str) -> None:
    """A question can be answered twice, each time in its own fork."""

    async def script(session: Session) -> None:
        session.use(chain(a=say("a"), ask=asking("name"), z=say("z")))
        await session.run({"log": []})
        await session.run(Command(resume="Ada"))
        asked = next(s for s in await session.states() if s.next == ("ask",))
        await session.run(None, asked.config)
        await session.run(Command(resume="Grace"))

    for session in await compare(script, driver, saver_kind):
        assert [node for node, _, _ in items(session)].count("z") == 2
        assert {status for _, status, _ in items(session)} == {"completed"}
