"""Unjudged drafts do not count as passed and are reported; speakers are found, also if they speak by a
tool."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import io
import json
import logging
import pickle
import warnings
from typing import Any, TypedDict

import pytest
from langchain import agents as langchain_agents_module
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeCancelledError
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from rich.console import Console

from arbiter import ArbiterOS
from arbiter.errors import ConfigurationError, CorrectionError
from arbiter.instructions import RESPOND, TOOL_CALL
from arbiter.personas import (
    Cast,
    GatedAction,
    Intervention,
    InterventionBatch,
    Persona,
    PersonaGate,
    Proposition,
    PropositionSet,
    RepetitionSuppressor,
    variety,
)
from tests.personas.gate_support import PAM, Speaker, chat, enabled, gated, hello, scored, texts
from tests.personas.personas_support import JIM, Says, prompt_of, scores
from tests.scripted import Scripted, ScriptedTools
from tests.support import MODES, Chat, Hold, run, thread, until

langchain_agents: Any = langchain_agents_module

# A judge that cannot be reached or read -----------------------------------------------------------


@MODES
@pytest.mark.parametrize("answer", [PermissionError("401"), None, {"nonsense": 1}])
def test_an_unreachable_judge_is_reported(answer: Any, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """One warning a gate; each item says so, and the statistics count no such draft as passed."""
    app, gate, arbiter_os = gated(Says(answer), enabled("adherence", "fluency"), Speaker("Fine"))
    with caplog.at_level(logging.WARNING, "arbiter"):
        for _ in range(3):
            assert texts(run(app, hello(), mode=mode))[-1] == "Fine"
            item = arbiter_os.history.entries[-1][-1]
            assert "adherence" in item.errors["gate persona"]
            assert "fluency" in item.errors["gate persona"]
    warned = [record for record in caplog.records if record.name.startswith("arbiter.personas")]
    assert len(warned) == 1
    assert "cannot be reached or read" in warned[0].getMessage()
    found = gate.statistics()
    assert (found.total_actions, found.judged_count, found.unjudged_count) == (3, 0, 3)
    assert (found.original_pass_rate, found.timeout_count) == (None, 3)
    assert {name: (d.judged, d.errors) for name, d in found.dimensions.items()} == {
        "adherence": (0, 3),
        "fluency": (0, 3),
    }


def test_a_speaker_without_a_persona_hides_no_judge_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Each of the two is reported once."""
    zed, jim = Speaker("I am new", name="act"), Speaker("Fine")
    zed.fields = {"name": "Zed"}  # the name of its messages
    app, _, _ = gated(
        Says(PermissionError("401")), enabled("adherence"), zed, jim, target_nodes=["act", "jim"]
    )
    for _ in range(2):
        app.invoke(hello())
    told = [record.getMessage() for record in caplog.records if record.name == "arbiter.personas"]
    assert len(told) == 2
    assert "an agent has no persona, so drafts pass unjudged" in told[0]
    assert "its judge cannot be reached or read, so drafts pass unjudged" in told[1]


class Deaf(Says):
    """A judge that ignores its cancellation until `over`."""

    over: asyncio.Event

    async def ajudge(self, request: Any) -> Any:
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                pass
        return self.judge(request)


@pytest.mark.lengthy
def test_a_judge_that_ignores_its_cancellation_costs_its_timeout() -> None:
    """In a gate and in an intervention."""
    jim, nudges, scores = Speaker("Fine"), Deaf({"result": True}), Deaf({"score": 2})
    nudge = Intervention(JIM, judge=nudges, timeout=0.1)
    nudge.set_textual_precondition("they agree").set_effect("Sing.")
    gate = PersonaGate(scores, [JIM], enabled("adherence", "fluency", judge_timeout=0.1))
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(nudge)
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(chat(jim))

    async def story() -> None:
        nudges.over = scores.over = asyncio.Event()
        await app.ainvoke(hello("own"))
        nudges.over.set()
        await asyncio.sleep(0)

    asyncio.run(story())
    assert gate.actions[0].outcome == "timeout_pass_through"
    assert "Sing." not in jim.told()


@pytest.mark.lengthy
def test_a_gate_that_is_cancelled_as_it_begins_leaves_nothing_that_is_never_awaited() -> None:
    """Whichever task the run has just made, before that task begins."""

    async def cancelled_at(place: int) -> int:
        """Cancel the task that makes the task of that number. Returns the number of tasks."""
        made = 0

        def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            nonlocal made
            made += 1
            maker = asyncio.current_task(loop)
            if made == place and maker is not None:
                loop.call_soon(maker.cancel)
            return asyncio.Task(coroutine, loop=loop, **options)

        app, _, _ = gated(scored({}), enabled("adherence", "fluency"), Speaker("Hi."))
        asyncio.get_running_loop().set_task_factory(make)
        with contextlib.suppress(asyncio.CancelledError, NodeCancelledError):
            await app.ainvoke(hello())
        return made

    place = 1
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        while asyncio.run(cancelled_at(place)) >= place:
            place += 1
        gc.collect()
    assert place > 7  # the node, two questions and what they wait for
    assert [str(each.message) for each in noted if each.category is RuntimeWarning] == []


@pytest.mark.lengthy
def test_the_threads_of_a_judge_that_hangs_are_bounded(monkeypatch: pytest.MonkeyPatch, hold: Hold) -> None:
    monkeypatch.setattr("arbiter.personas._gate._MOST_LATE", 3)

    def waits(request: Any) -> Any:
        hold()
        return {"score": 9}

    judge = Says(waits)
    app, gate, _ = gated(judge, enabled("adherence", "fluency", judge_timeout=0.02), Speaker("Fine"))
    for _ in range(5):
        app.invoke(hello())
    until(lambda: judge.calls >= 4)  # a thread may begin after its timeout
    assert judge.calls == 4  # both dimensions of two messages
    assert "earlier questions still wait" in gate.actions[-1].dimension_scores["adherence"].reasoning
    hold.release()
    until(lambda: app.invoke(hello()) and gate.actions[-1].outcome == "passed")


def test_a_rate_counts_judged_drafts_only() -> None:
    """A draft before the minimum of actions is not judged, so it is no part of a rate."""
    config = enabled("adherence", minimum_required_qty_of_actions=1)
    app, gate, _ = gated(scored({}), config, Speaker("Fine"))
    app.invoke(hello())
    assert (gate.statistics().original_pass_rate, gate.statistics().unjudged_count) == (None, 1)
    app.invoke(hello("own"))
    assert (gate.statistics().original_pass_rate, gate.statistics().judged_count) == (1.0, 1)


def printed(arbiter_os: ArbiterOS) -> str:
    file = io.StringIO()
    arbiter_os.history.pprint(Console(width=200, file=file))
    return file.getvalue()


def test_the_printed_history_shows_the_outcome_of_a_draft() -> None:
    app, _, arbiter_os = gated(
        scored({"bad": {"adherence": 2}}), enabled("adherence", "fluency", "similarity"), Speaker("bad")
    )
    app.invoke(hello())
    text = printed(arbiter_os)
    assert "gate: forced_through - adherence 2 of 7, fluency 9, similarity 0.00, attempt 1 of 3" in text
    app, _, arbiter_os = gated(Says(None), enabled("adherence"), Speaker("bad"))
    app.invoke(hello())
    assert "gate: timeout_pass_through - adherence error" in printed(arbiter_os)
    app, _, arbiter_os = gated(scored({}), enabled("adherence"), Speaker("good"))
    app.invoke(hello())
    assert "gate: passed - adherence 9" in printed(arbiter_os)


def test_a_gate_and_an_advisor_can_be_copied() -> None:
    for contract in (
        PersonaGate(scored({}), [JIM], enabled("fluency")),
        RepetitionSuppressor([JIM]),
        Intervention(JIM).set_effect("Sing."),
    ):
        for one in (copy.deepcopy(contract), copy.copy(contract)):
            assert one.cast.name("jim") == "Jim"
    gate = copy.deepcopy(PersonaGate(Says(None), [JIM], enabled("similarity")))
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.govern(chat(Speaker("x"))).invoke(hello())
    assert len(gate.actions) == 1
    assert pickle.loads(pickle.dumps(Cast([JIM]))).name("jim") == "Jim"


# Mistakes found before the run --------------------------------------------------------------------


@pytest.mark.parametrize("personas", [(), ["Jim"], [JIM, "Pam"], ["arbiter:ilka"]])
def test_adherence_needs_the_description_of_a_persona(personas: Any) -> None:
    with pytest.raises(ConfigurationError, match="no description of a persona"):
        PersonaGate(scored({}), personas, enabled("adherence"))
    with pytest.raises(ConfigurationError, match="no description of a persona"):
        PersonaGate(scored({}), personas, {"*": enabled("adherence")})


def test_adherence_needs_no_persona_if_no_claim_shows_it() -> None:
    """Nor from an agent for whom it is not enabled."""
    own = {"adherence": PropositionSet("adherence", [Proposition("p", "{{action}}", include_personas=False)])}
    assert PersonaGate(scored({}), (), enabled("adherence"), propositions=own)
    config = {"jim": enabled("adherence"), "*": enabled("fluency")}
    assert PersonaGate(scored({}), [JIM, "Pam"], config)


def test_a_text_is_one_agent() -> None:
    assert list(PersonaGate(scored({}), "Jim", enabled("fluency")).cast.personas) == ["Jim"]
    assert list(RepetitionSuppressor("Jim").cast.personas) == ["Jim"]
    assert list(PersonaGate(scored({}), JIM).cast.personas) == ["Jim"]


def test_the_error_about_a_judge_names_its_missing_method() -> None:
    class Half:
        def judge(self, request: Any) -> Any: ...

    class Other:
        async def ajudge(self, request: Any) -> Any: ...

    half: Any = Half()
    with pytest.raises(ConfigurationError, match=r"a Half without ajudge\(\)"):
        PersonaGate(half, [JIM], enabled("fluency"))
    half = Other()
    with pytest.raises(ConfigurationError, match=r"an? Other without judge\(\)"):
        PersonaGate(half, [JIM], enabled("fluency"))


@MODES
@pytest.mark.parametrize("kind", ["intervention", "batch", "repetition", "variety"])
def test_an_intervention_without_a_known_speaker_is_reported(
    kind: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the nodes and the remedy; nothing else of the run changes."""
    one = Intervention([JIM, PAM]).set_functional_precondition(lambda targets: True).set_effect("Sing.")
    advisors: dict[str, Any] = {
        "intervention": one,
        "batch": InterventionBatch([one]),
        "repetition": RepetitionSuppressor([JIM, PAM]),
        "variety": variety([JIM, PAM], Says(scores())),
    }
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(advisors[kind])
    speak = Speaker("x", name="speak")
    app = arbiter_os.govern(chat(speak, Speaker("y", name="again")))
    with caplog.at_level(logging.WARNING, "arbiter"):
        run(app, hello(), mode=mode)
        run(app, hello(), mode=mode)
    warned = [record for record in caplog.records if record.name == "arbiter.personas"]
    assert len(warned) == 1
    assert "no node is known to be one of 'Jim', 'Pam'" in warned[0].getMessage()
    assert "'again', 'speak'" in warned[0].getMessage()
    assert "agent_of=" in warned[0].getMessage()
    assert speak.calls == 2


def test_a_helper_node_next_to_an_agents_node_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(RepetitionSuppressor([JIM, PAM]))
    app = arbiter_os.govern(chat(Speaker("x", name="prepare"), Speaker("y")))
    with caplog.at_level(logging.WARNING, "arbiter"):
        app.invoke(hello())
    assert not caplog.records
    assert not arbiter_os.history.entries[0][0].errors


# The first graph of a newcomer --------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("node", ["chatbot", "model"])
def test_a_single_persona_is_gated_by_instruction(node: str, mode: str) -> None:
    """Unnamed messages of a node of another name, and nothing said about who speaks."""
    judge = scored({"one": 2})
    speak = Speaker("one", "two", name=node)
    gate = PersonaGate(judge, [JIM], enabled("adherence"), target_instructions=[RESPOND])
    nudge = Intervention(JIM, target_instructions=["RESPOND"])
    nudge.set_functional_precondition(lambda t: True).set_effect("Sing.")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.add_advisor(nudge)
    arbiter_os.add_advisor(RepetitionSuppressor([JIM], target_instructions=[RESPOND]))
    arbiter_os.add_advisor(variety([JIM], Says(scores()), target_instructions=[RESPOND]))
    said = "I like paper a lot indeed"
    assert (
        texts(run(arbiter_os.govern(chat(speak), {node: RESPOND}), hello(said, said), mode=mode))[-1] == "two"
    )
    assert [(action.agent, action.outcome) for action in gate.actions] == [("Jim", "passed_after_retry")]
    assert "Sing." in speak.told()
    assert "repeating yourself" in speak.told()


def test_its_own_node_is_the_only_one_of_an_instruction() -> None:
    gate = PersonaGate(scored({}), [JIM], enabled("fluency"), target_instructions=[RESPOND])
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(
        chat(Speaker("a", name="narrator"), Speaker("b")), {"narrator": RESPOND, "jim": RESPOND}
    )
    app.invoke(hello())
    assert [action.agent for action in gate.actions] == [None, "Jim"]


# Speaking by a tool -------------------------------------------------------------------------------


class Post:
    """A tool that sends, and an agent that calls it with one text after another until the tool reports
    success."""

    def __init__(self, *drafts: str, argument: str = "text") -> None:
        self.sent: list[str] = []
        self.drafts = iter(drafts)
        self.argument = argument

        @tool
        def send_message(text: str) -> str:
            """Send a text."""
            self.sent.append(text)
            return "sent"

        self.tool = send_message

    def model(self, state: Any) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("", id="end")]}
        call: Any = {"name": "send_message", "args": {"text": next(self.drafts)}, "id": f"c{len(self.sent)}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def graph(self, **known: Any) -> Any:
        builder: Any = StateGraph(Chat)
        builder.add_node("model", self.model)
        builder.add_node("tools", ToolNode([self.tool]))
        builder.add_edge(START, "model")
        builder.add_edge("model", "tools")
        return builder.compile(**known)


def posting(post: Post, judge: Any, *nodes: str, **known: Any) -> tuple[Any, PersonaGate, ArbiterOS]:
    rewriter = known.pop("rewriter", None)
    gate = PersonaGate(
        judge, [JIM], enabled("adherence", "similarity", **known), rewriter=rewriter, target_nodes=nodes
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    return arbiter_os.govern(post.graph()), gate, arbiter_os


@MODES
@pytest.mark.parametrize("nodes", [("model",), ("model", "tools")])
def test_a_message_by_a_tool_is_judged_before_the_call(nodes: Any, mode: str) -> None:
    """A draft that fails is written again, and the tool sends what passed; nothing is judged twice."""
    post = Post("bad", "good")
    judge = scored({"bad": 2})
    app, gate, _ = posting(post, judge, *nodes)
    output = run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)
    assert post.sent == ["good"]
    texts = [str((m.content, getattr(m, "tool_calls", ()))) for m in output["messages"]]
    assert not [text for text in texts if "'bad'" in text]  # a random id may well hold these letters
    assert [(a.outcome, a.original_text, a.corrected_text) for a in gate.actions] == [
        ("passed_after_retry", "bad", "good")
    ]
    assert judge.calls == 2


@MODES
def test_a_rewritten_text_is_sent(mode: str) -> None:
    """By the model's call, or in the tool node alone, where no agent can write it again."""
    for nodes in (["model"], ["tools"], ["model", "tools"]):
        post = Post("bad")
        rewriter = Scripted(answers=["better"])
        app, gate, _ = posting(
            post,
            scored({"bad": 2}),
            *nodes,
            rewriter=rewriter,
            enable_direct_correction=True,
            enable_regeneration=False,
        )
        run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)
        assert post.sent == ["better"]
        assert [(a.outcome, a.corrected_text) for a in gate.actions] == [("corrected", "better")]


@MODES
@pytest.mark.parametrize(
    ("between", "instruction"),
    [
        ([ToolMessage("A human refused it.", tool_call_id="0")], None),
        ([HumanMessage("Go on.")], TOOL_CALL),
        ([ToolMessage("It is no JSON.", tool_call_id=id) for id in ("wrong", "also wrong")], None),
    ],
)
def test_a_call_is_judged_that_other_messages_follow(between: Any, instruction: Any, mode: str) -> None:
    """LangGraph's tool node makes the calls of the last AI message, also if it is not the last message."""
    sent: list[str] = []

    @tool
    def send_message(text: str) -> str:
        """Send it."""
        sent.append(text)
        return "sent"

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    calls: Any = [
        {"name": "look", "args": {}, "id": "0"},
        {"name": "send_message", "args": {"text": "bad"}, "id": "1"},
    ]

    invalid: Any = [
        {"name": "look", "args": "{", "id": id, "error": "no JSON"} for id in ("wrong", "also wrong")
    ]

    def model(state: Any) -> Any:
        return {"messages": [AIMessage("", tool_calls=calls, invalid_tool_calls=invalid), *between]}

    builder: Any = StateGraph(Chat)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([send_message, look]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    settings = enabled("fluency", enable_direct_correction=True, enable_regeneration=False)
    gate = PersonaGate(
        scored({"bad": 2}), [JIM], settings, rewriter=Scripted(answers=["better"]), target_nodes=["tools"]
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(builder.compile(), {"tools": instruction} if instruction else None)
    output = run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)
    assert sent == ["better"]
    assert [(a.outcome, a.original_text) for a in gate.actions] == [("corrected", "bad")]
    assert texts(output)[: 2 + len(between)] == ["Hello.", "", *(one.content for one in between)]


@MODES
@pytest.mark.parametrize("after", [{"role": "assistant", "content": "Wait."}, ("ai", "Wait.")])
def test_a_message_in_another_form_hides_no_call(after: Any, mode: str) -> None:
    """LangGraph's tool node takes the last message of LangChain's own class."""
    sent: list[str] = []

    @tool
    def send_message(text: str) -> str:
        """Send it."""
        sent.append(text)
        return "sent"

    class Raw(TypedDict):
        messages: list[Any]

    builder: Any = StateGraph(Raw)
    builder.add_node("tools", ToolNode([send_message]))
    builder.add_edge(START, "tools")
    settings = enabled("fluency", enable_direct_correction=True, enable_regeneration=False)
    gate = PersonaGate(
        scored({"bad": 2}), [JIM], settings, rewriter=Scripted(answers=["better"]), target_nodes=["tools"]
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(builder.compile(), {"tools": TOOL_CALL})
    call: Any = {"name": "send_message", "args": {"text": "bad"}, "id": "1"}
    run(app, {"messages": [AIMessage("", tool_calls=[call]), after]}, mode=mode)
    assert (sent, [action.outcome for action in gate.actions]) == (["better"], ["corrected"])


@MODES
@pytest.mark.parametrize("node", ["model", "tools"])
def test_a_rewritten_text_goes_to_each_receiver(node: str, mode: str) -> None:
    """Several calls in one message send it once to each, and other calls stay as they were."""
    sent: list[tuple[str, str]] = []

    @tool
    def send_message(text: str, to: str) -> str:
        """Send it."""
        sent.append((to, text))
        return "sent"

    @tool
    def look(text: str) -> str:
        """Look."""
        sent.append(("look", text))
        return "seen"

    names = [("send_message", "Pam"), ("look", ""), ("send_message", "Bo"), ("send_message", "Bo")]
    calls: Any = [
        {"name": name, "args": {"text": "bad", **({"to": to} if to else {})}, "id": str(at)}
        for at, (name, to) in enumerate(names)
    ]

    def model(state: Any) -> Any:
        return {"messages": [AIMessage("", tool_calls=calls)]}

    builder: Any = StateGraph(Chat)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([send_message, look]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(
        PersonaGate(
            scored({"bad\n> bad\n> bad": 2}),
            [JIM],
            enabled("fluency", enable_direct_correction=True, enable_regeneration=False),
            rewriter=Scripted(answers=["better"]),
            target_nodes=[node],
        )
    )
    run(arbiter_os.govern(builder.compile()), {"messages": [HumanMessage("Hello.")]}, mode=mode)
    assert sorted(each for each in sent if each[1]) == [("Bo", "better"), ("Pam", "better"), ("look", "bad")]


@MODES
@pytest.mark.parametrize(("goes_on", "outcome"), [(True, "forced_through"), (False, "rejected")])
def test_the_node_of_the_tools_alone_judges_before_they_run(goes_on: bool, outcome: str, mode: str) -> None:
    post = Post("bad")
    app, gate, arbiter_os = posting(post, scored({"bad": 2}), "tools", continue_on_failure=goes_on)
    if goes_on:
        run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)
    else:
        with pytest.raises(CorrectionError, match="adherence"):
            run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)
    assert post.sent == (["bad"] if goes_on else [])
    assert [(a.outcome, a.node, a.agent) for a in gate.actions] == [(outcome, "tools", "Jim")]
    assert arbiter_os.history.entries[-1][-1].gating["outcome"] == outcome


@MODES
def test_a_text_that_was_rewritten_is_sent_again_when_the_tool_is_tried_again(mode: str) -> None:
    post = Post("bad")
    tries: list[str] = []

    @tool
    def send_message(text: str) -> str:
        """Send a text."""
        tries.append(text)
        if len(tries) == 1:
            raise ConnectionError("down")
        return "sent"

    post.tool = send_message
    judge = scored({"bad": 2})
    gate = PersonaGate(
        judge,
        [JIM],
        enabled("adherence", enable_direct_correction=True, enable_regeneration=False),
        rewriter=Scripted(answers=["better"]),
        target_nodes=["tools"],
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(post.graph(checkpointer=InMemorySaver()))
    with pytest.raises(ConnectionError):
        run(app, {"messages": [HumanMessage("Hello.")]}, thread("1"), mode=mode)
    run(app, None, thread("1"), mode=mode)
    assert tries == ["better", "better"]
    assert (len(gate.actions), judge.calls) == (1, 2)


@MODES
@pytest.mark.parametrize("nodes", [["model"], ["tools"], ["model", "tools"]])
def test_an_agent_of_langchain_that_speaks_by_a_tool_is_gated(nodes: list[str], mode: str) -> None:
    post = Post()
    texts_of = iter(["bad", "bad", "bad"])

    class Model(Scripted):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            from langchain_core.outputs import ChatGeneration, ChatResult

            done = any(message.type == "tool" for message in messages)
            call: Any = {"name": "send_message", "args": {"text": "" if done else next(texts_of)}, "id": "c"}
            said = AIMessage("", tool_calls=[] if done else [call])
            return ChatResult(generations=[ChatGeneration(message=said)])

    gate = PersonaGate(scored({"bad": 2}), [JIM], enabled("adherence"), target_nodes=nodes)
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app: Any = arbiter_os.govern(langchain_agents.create_agent(Model(answers=[]), [post.tool]))
    run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)
    assert post.sent == ["bad"]
    assert [action.outcome for action in gate.actions] == ["forced_through"]
    assert len(gate.actions[0].attempts) == (3 if "model" in nodes else 1)


@pytest.mark.parametrize(
    ("tools", "args", "judged"),
    [
        (("send_message",), {"text": "one"}, True),
        (("send_message",), {"content": "one"}, True),
        (("say",), {"text": "one"}, False),
        ({"send_message": "body"}, {"body": "one", "text": "two"}, True),
        ({"send_message": "body"}, {"text": "one"}, False),
        ((), {"text": "one"}, False),
    ],
)
def test_the_tools_by_which_an_agent_speaks_can_be_named(tools: Any, args: Any, judged: bool) -> None:
    judge = scored({"one": 9})

    def jim(state: Any) -> Any:
        call: Any = {"name": "send_message", "args": args, "id": "1"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    gate = PersonaGate(judge, [JIM], enabled("fluency"), speaking_tools=tools)
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.govern(chat(jim)).invoke(hello())
    assert [action.original_text for action in gate.actions] == (["one"] if judged else [])


@MODES
@pytest.mark.parametrize("node", ["model", "tools"])
def test_all_texts_of_a_call_are_judged(node: str, mode: str) -> None:
    """Whichever of the arguments fails; a rewritten text is said once."""
    sent: list[tuple[str, str]] = []

    @tool
    def send_message(text: str, content: str, to: str) -> str:
        """Send it."""
        sent.append((text, content))
        return "sent"

    args = {"text": "fine", "content": "bad", "to": "Pam"}
    post = Post()
    post.tool = send_message
    call: Any = {"name": "send_message", "args": args, "id": "1"}
    post.model = lambda state: {"messages": [AIMessage("", tool_calls=[call])]}  # type: ignore[method-assign]
    gate = PersonaGate(
        scored({"fine\n> bad": 2}),
        [JIM],
        enabled("fluency", enable_direct_correction=True, enable_regeneration=False),
        rewriter=Scripted(answers=["better"]),
        target_nodes=[node],
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    run(arbiter_os.govern(post.graph()), hello(), mode=mode)
    assert [(a.original_text, a.corrected_text) for a in gate.actions] == [("fine\nbad", "better")]
    assert sent == [("better", "")]


def test_a_message_sent_by_a_tool_counts_as_the_agents_own() -> None:
    """It is in the trajectory, and a copy of it is too similar."""
    call: Any = {"name": "send_message", "args": {"text": "we should paint the house blue"}, "id": "0"}
    judge = scored({})
    app, gate, _ = gated(
        judge,
        enabled("similarity", "fluency", max_correction_attempts=0),
        Speaker("we should paint the house blue"),
    )
    said = [AIMessage("", name="Jim", tool_calls=[call]), ToolMessage("sent", tool_call_id="0")]
    app.invoke({"messages": [HumanMessage("Hello."), *said]})
    assert gate.actions[0].outcome == "forced_through"
    assert "Jim acts: [we should paint the house blue]" in prompt_of(judge.asked[0])


# The record ---------------------------------------------------------------------------------------


@MODES
def test_each_action_has_an_id_of_its_own(mode: str) -> None:
    """A retry of a node run after a rejection has one too; the id names run, thread and agent."""
    config = enabled("adherence", continue_on_failure=False, max_correction_attempts=0)
    persona = Persona("Jim Halpert", "A calm salesman.", "jim")
    app, gate, _ = gated(
        scored({"x": 2}), config, Speaker("x"), personas=[persona], checkpointer=InMemorySaver()
    )
    for given in (hello(), None, None):
        with pytest.raises(CorrectionError):
            run(app, given, thread("1"), mode=mode)
    assert len({action.id for action in gate.actions}) == 3
    assert len({action.item_id for action in gate.actions}) == 1
    assert {(a.agent, a.agent_id, a.thread_id) for a in gate.actions} == {("Jim Halpert", "jim", "1")}
    assert all(action.run_id for action in gate.actions)


def test_an_action_is_the_same_after_json() -> None:
    app, gate, _ = gated(
        scored({"one": {"adherence": 2}}),
        enabled("adherence", "fluency", "similarity", "consistency"),
        Speaker("one", "two"),
    )
    app.invoke(hello("own"))
    action = gate.actions[0]
    assert GatedAction.from_dict(json.loads(json.dumps(action.to_dict()))) == action


@MODES
def test_audit_records_its_judgements(mode: str) -> None:
    """A control arm: judged and not corrected. The agent writes once, and what it wrote is committed."""
    speak = Speaker("bad", "good")
    app, gate, _ = gated(scored({"bad": 2}), enabled("adherence"), speak)
    gate.mode = "audit"
    assert texts(run(app, hello(), mode=mode))[-1] == "bad"
    assert texts(run(app, hello(), mode=mode))[-1] == "good"
    assert [(a.outcome, a.enforced, a.total_score) for a in gate.actions] == [
        ("forced_through", False, 2),
        ("passed", False, 9),
    ]
    assert (speak.calls, gate.statistics().original_pass_rate) == (2, 0.5)


def says_by(tool: str, *arguments: dict[str, Any]) -> Any:
    """A graph whose agent calls a tool once an answer, each call with the same id, until there are no more."""
    calls = [AIMessage("", tool_calls=[{"name": tool, "args": given, "id": "call-0"}]) for given in arguments]
    return ScriptedTools(answers=[*calls, AIMessage("")])


@MODES
def test_calls_with_the_same_id_are_each_judged(mode: str) -> None:
    """Some models give each call the same id: one that passed says nothing about the next."""
    sent: list[str] = []

    @tool
    def send_message(text: str) -> str:
        """Say it."""
        sent.append(text)
        return "sent"

    gate = PersonaGate(
        scored({"bad": 2}), [JIM], enabled("fluency", continue_on_failure=False), target_nodes=["tools"]
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    agent: Any = langchain_agents.create_agent(
        says_by("send_message", {"text": "good"}, {"text": "bad"}), [send_message]
    )
    with pytest.raises(CorrectionError):
        run(arbiter_os.govern(agent), hello(), mode=mode)
    assert sent == ["good"]


@MODES
@pytest.mark.parametrize(
    ("known", "said", "why"),
    [
        ({"key": "mesages"}, AIMessage("bad", name="Jim"), "no 'mesages'. Keys: 'messages'"),
        (
            {},
            AIMessage("", tool_calls=[{"name": "send_message", "args": {"body": "bad"}, "id": "1"}]),
            "speaking_tools={'send_message'",
        ),
    ],
    ids=["a key that nobody has", "an argument that is not known"],
)
def test_a_gate_that_finds_nothing_to_judge_says_so(
    known: Any, said: Any, why: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the first item, and once in the log."""

    def jim(state: Any) -> Any:
        return {"messages": [said]}

    app, _, arbiter_os = gated(scored({}), enabled("fluency"), jim, **known)
    told: list[bool] = []
    for _ in range(2):
        run(app, hello(), mode=mode)
        told.append("gate persona" in arbiter_os.history.entries[-1][-1].errors)
    assert [why in record.getMessage() for record in caplog.records] == [True]
    assert told == [True, False]


@MODES
def test_a_gate_of_tools_alone_says_that_it_finds_no_text(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[str] = []

    @tool
    def send_message(body: str) -> str:
        """Send it."""
        sent.append(body)
        return "sent"

    post = Post()
    post.tool = send_message
    call: Any = {"name": "send_message", "args": {"body": "bad"}, "id": "1"}
    post.model = lambda state: {"messages": [AIMessage("", tool_calls=[call])]}  # type: ignore[method-assign]
    app, gate, _ = posting(post, scored({"bad": 2}), "tools")
    for _ in range(2):
        run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)
    assert (sent, [*gate.actions]) == (["bad", "bad"], [])
    told = (
        "messages sent by calling 'send_message' are not judged, because no known argument holds their text"
    )
    assert [told in record.getMessage() for record in caplog.records] == [True]


def test_two_personas_or_settings_of_one_agent_are_refused() -> None:
    """Otherwise one of them would do nothing."""
    other = Persona("Jim", "A loud salesman.", "jim2")
    with pytest.raises(ConfigurationError, match="two personas have the name 'Jim'"):
        PersonaGate(scored({}), [JIM, other], enabled("fluency"))
    with pytest.raises(ConfigurationError, match="'Jim' and 'jim' are the same agent"):
        PersonaGate(scored({}), [JIM], {"Jim": enabled("fluency"), "jim": enabled("adherence")})


def test_a_persona_stays_where_it_is_also_given_by_name() -> None:
    one = Intervention(JIM, agents=["Jim", "Pam"])
    assert one.cast.personas["Jim"] == JIM
