"""A node run costs what the part of the conversation costs that is used, however long the conversation is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from arbiter import ArbiterOS
from arbiter.history import CausalHistory, HistoryItem
from arbiter.personas import (
    AdherenceEvaluator,
    ConvergenceEvaluator,
    FluencyEvaluator,
    Intervention,
    PersonaGate,
    RepetitionSuppressor,
    SelfConsistencyEvaluator,
    anti_convergence,
    variety,
)
from tests.gate_support import PAM, chat, enabled, gated, scored
from tests.personas_support import JIM, Says, prompt_of, scores
from tests.support import MODES, run, thread

LONG = 600
read: set[str] = set()
"""The ids of the messages whose content somebody has read, or that somebody has copied."""


class Watched(AIMessage):
    """A message that tells when it is read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("content", "text", "__deepcopy__"):
            read.add(str(super().__getattribute__("id")))
        return super().__getattribute__(name)


class Plain(TypedDict, total=False):
    """A conversation whose reducer looks at no message."""

    messages: Annotated[list[Any], operator.add]


def jim(state: Any) -> Any:
    return {"messages": [AIMessage("What a day.", name="Jim", id="new")]}


def conversation(size: int, *, named: bool = True) -> dict[str, Any]:
    def said(at: int) -> Any:
        name = ("Jim" if at % 2 else "Pam") if named else None
        return Watched(content=f"word{at} other{at}", name=name, id=str(at))

    return {"messages": [HumanMessage("Hello.", id="hello"), *map(said, range(size))]}


PARTS: dict[str, tuple[Callable[[ArbiterOS], Any], int]] = {
    "gate": (
        lambda os: os.add_correction_gate(
            PersonaGate(
                scored({}),
                [JIM, PAM],
                enabled("adherence", "consistency", "fluency", "suitability", "similarity"),
            )
        ),
        30,
    ),
    "suppressor": (lambda os: os.add_advisor(RepetitionSuppressor([JIM, PAM])), 10),
    "intervention": (
        lambda os: os.add_advisor(
            Intervention(JIM, agents=[PAM], judge=Says(scores()), last_n=15)
            .set_textual_precondition("They agree.")
            .set_effect("Sing.")
        ),
        40,
    ),
    "variety": (lambda os: os.add_advisor(variety([JIM, PAM], Says(scores()))), 60),
    "anti_convergence": (lambda os: os.add_advisor(anti_convergence([JIM, PAM], Says(scores()))), 40),
    "adherence": (lambda os: os.add_evaluator(AdherenceEvaluator(persona=JIM, judge=Says(scores()))), 0),
    "fluency": (lambda os: os.add_evaluator(FluencyEvaluator(persona=JIM, judge=Says(scores()))), 100),
    "consistency": (
        lambda os: os.add_evaluator(SelfConsistencyEvaluator(persona=JIM, judge=Says(scores()))),
        100,
    ),
    "convergence": (lambda os: os.add_evaluator(ConvergenceEvaluator(judge=Says(scores()))), 120),
}


@MODES
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_only_messages_that_are_used_are_read(part: str, named: bool, mode: str) -> None:
    """At most what is shown to a judge or compared, also where nobody has seen who wrote the messages."""
    add, most = PARTS[part]
    builder: Any = StateGraph(Plain)
    builder.add_node("jim", jim)
    builder.add_edge(START, "jim")
    arbiter_os = ArbiterOS()
    add(arbiter_os)
    app = arbiter_os.govern(builder.compile())
    given = conversation(LONG, named=named)
    read.clear()
    run(app, given, mode=mode)
    for item in arbiter_os.history.entries[-1]:
        item.evaluation_results.get(part)
        len(item.evaluation_results)
    arbiter_os.drain(30)
    assert len(read) <= most


@MODES
@pytest.mark.parametrize("snapshot", ["shallow", "deep"])
def test_who_wrote_what_has_no_name_is_found_once(
    snapshot: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node run of the past is looked at once, and not again at each turn that follows."""
    looked: list[str] = []
    seen = CausalHistory.earlier

    def earlier(self: CausalHistory) -> Any:
        for item in seen(self):
            looked.append(item.id)
            yield item

    monkeypatch.setattr(CausalHistory, "earlier", earlier)
    count = [0]

    def speak(state: Any) -> Any:
        count[0] += 1
        return {"messages": [AIMessage(f"words {count[0]}", id=f"own {count[0]}")]}

    def goes_on(state: Any) -> str:
        return "jim" if len(state["messages"]) % 10 else END

    builder: Any = StateGraph(Plain)
    builder.add_node("jim", speak)
    builder.add_edge(START, "jim")
    builder.add_conditional_edges("jim", goes_on)
    judge = scored({})
    arbiter_os = ArbiterOS(snapshot=snapshot)
    arbiter_os.add_correction_gate(PersonaGate(judge, [JIM, PAM], enabled("fluency")))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {"messages": [AIMessage("From elsewhere.", id="start")]}, thread("1"), mode=mode)
    while count[0] < 30:
        run(app, {"messages": []}, thread("1"), mode=mode)
    # One more each time, to see whether what was found before is still the past.
    assert len(looked) <= 2 * count[0] + 2
    assert f"acts: [words {count[0] - 1}]" in judge.prompt()
    assert "--> Jim from assistant: [From elsewhere.]" in judge.prompt()


@MODES
def test_what_has_no_name_is_its_writers_in_a_fork_too(mode: str) -> None:
    """The same id or text may be another agent's where the run went another way."""
    who = ["pam"]
    judge = scored({})

    def speak(name: str) -> Any:
        def node(state: Any) -> Any:
            return {"messages": [AIMessage("Same words.")]}

        node.__name__ = name
        return node

    def first(state: Any) -> str:
        return who[0]

    builder: Any = StateGraph(Plain)
    for name in ("pam", "dwight", "jim"):
        builder.add_node(name, speak(name))
    builder.add_conditional_edges(START, first, ["pam", "dwight"])
    builder.add_edge("pam", "jim")
    builder.add_edge("dwight", "jim")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(PersonaGate(judge, [JIM, PAM], enabled("fluency")))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {"messages": [HumanMessage("Hi.")]}, thread("1"), mode=mode)
    assert "--> Jim from Pam: [Same words.]" in judge.prompt()
    begin = list(app.get_state_history(thread("1")))[-1]
    who[0] = "dwight"
    run(app, {"messages": [HumanMessage("Hi.")]}, begin.config, mode=mode)
    assert "--> Jim from dwight: [Same words.]" in judge.prompt()
    assert "from Pam" not in judge.prompt()


@MODES
def test_what_an_agent_said_long_ago_is_still_its_own(mode: str) -> None:
    """Its five last messages are looked for in all of the conversation, and not in its end alone."""
    old = [AIMessage("we should paint the house blue", name="Jim", id="old")]
    others = [AIMessage(f"word{at}", name="Pam", id=str(at)) for at in range(LONG)]

    def speak(state: Any) -> Any:
        return {"messages": [AIMessage("we should paint the house blue", name="Jim")]}

    speak.__name__ = "jim"
    app, gate, _ = gated(
        scored({}), enabled("similarity", max_correction_attempts=0), speak, personas=[JIM, PAM]
    )
    run(app, {"messages": [*old, *others]}, mode=mode)
    assert gate.actions[0].outcome == "forced_through"


def test_the_ends_of_a_conversation_are_those_of_all_of_it() -> None:
    """Messages without a text are no events, wherever they stand."""
    judge = scored({})
    app, _, _ = gated(judge, enabled("fluency"), jim)
    call: Any = {"name": "look", "args": {}, "id": "1", "type": "tool_call"}
    silent = [AIMessage("", tool_calls=[call], id=f"silent {at}") for at in range(3)]
    said = [AIMessage(f"own {at}", name="Jim", id=f"own {at}") for at in range(20)]
    app.invoke({"messages": [silent[0], *said[:3], silent[1], *said[3:], silent[2]]})
    prompt = prompt_of(judge.asked[0])
    assert "acts: [own 4]" in prompt
    assert "acts: [own 5]" not in prompt
    assert "(5 events omitted)" in prompt
    assert "acts: [own 9]" not in prompt
    assert "acts: [own 10]" in prompt
    assert "acts: [own 19]" in prompt


def test_agents_are_found_by_their_function_once_a_node_run() -> None:
    """`agent_of` of the user is not called again and again for the same node run."""
    calls: list[str] = []

    def who(item: HistoryItem) -> str:
        calls.append(item.id)
        return item.node

    def speak(name: str) -> Any:
        def node(state: Any) -> Any:
            return {"messages": [AIMessage(f"{name} speaks")]}

        node.__name__ = name
        return node

    gate = PersonaGate(scored({}), [JIM, PAM], enabled("fluency"), agent_of=who)
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.govern(chat(speak("pam"), speak("jim"), speak("jim2"), speak("pam2"))).invoke(
        {"messages": [HumanMessage("Hi.")]}
    )
    assert all(calls.count(id) <= 3 for id in calls)
