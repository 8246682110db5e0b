"""The cost of a node run depends on the used part of the conversation, not on its length."""

from __future__ import annotations

import asyncio
import marshal
import operator
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Overwrite

from arbiter import ArbiterOS
from arbiter._threads import deadlines
from arbiter.history import CausalHistory, HistoryItem
from arbiter.personas import (
    AdherenceEvaluator,
    ConvergenceEvaluator,
    FluencyEvaluator,
    Intervention,
    PersonaGate,
    Proposition,
    PropositionSet,
    RepetitionSuppressor,
    SelfConsistencyEvaluator,
    anti_convergence,
    variety,
)
from tests.personas.gate_support import PAM, chat, enabled, gated, scored
from tests.personas.personas_support import JIM, Says, prompt_of, scores
from tests.support import MODES, run, thread

LONG = 600
read: set[str] = set()
"""The ids of the messages whose content somebody has read, or that somebody has copied."""


readers: set[int] = set()
"""The threads on which that was done."""


class Watched(AIMessage):
    """A message that records its reads and their threads."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("content", "text", "__deepcopy__"):
            read.add(str(super().__getattribute__("id")))
            readers.add(threading.get_ident())
        return super().__getattribute__(name)

    def __copy__(self) -> Watched:
        read.add(str(self.id))
        return super().__copy__()


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
    "condition": (
        lambda os: os.add_advisor(
            Intervention(JIM, agents=[PAM])
            .set_functional_precondition(
                lambda targets: "word" in targets[0].trajectory.seen_by("Pam").text(5, 10)
            )
            .set_effect("Sing.")
        ),
        20,
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


def governed(add: Callable[[ArbiterOS], Any], node: Any) -> tuple[Any, ArbiterOS]:
    builder: Any = StateGraph(Plain)
    builder.add_node("jim", node)
    builder.add_edge(START, "jim")
    arbiter_os = ArbiterOS()
    add(arbiter_os)
    return arbiter_os.govern(builder.compile()), arbiter_os


def evaluated(app: Any, arbiter_os: ArbiterOS, given: Any, mode: str) -> None:
    read.clear()
    readers.clear()
    run(app, given, mode=mode)
    for item in arbiter_os.history.entries[-1]:
        len(item.evaluation_results)
    arbiter_os.drain(30)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_only_messages_that_are_used_are_read(part: str, named: bool, mode: str) -> None:
    """At most the messages shown to a judge or compared, even if the history does not show their writers."""
    add, most = PARTS[part]
    app, arbiter_os = governed(add, jim)
    evaluated(app, arbiter_os, conversation(LONG, named=named), mode)
    assert len(read) <= most


WINDOW = {"first_n": 5, "last_n": 10}
CLAIMS: dict[str, dict[str, Any]] = {
    "{{agent_name}} teases {{recipient_name}} with {{action}}": {},
    "{{agent_name}} teases {{recipient_name}}": WINDOW,
    "{{agent_name}} says {{action}}": WINDOW,
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("whole", [False, True])
def test_a_gate_makes_as_many_calls_in_a_long_conversation_as_in_a_short_one(whole: bool, mode: str) -> None:
    """Passes over all messages, such as the search for edits in place, are a fixed number of calls of C code."""

    def speak(state: Any) -> Any:
        said = AIMessage("What a day.", name="Jim", id="new")
        return {"messages": Overwrite([*state["messages"], said]) if whole else [said]}

    speak.__name__ = "jim"
    app, _ = governed(PARTS["gate"][0], speak)
    messages: list[Any] = [HumanMessage("Hello.", id="hello")]
    messages += [AIMessage(f"word{at}", name="Jim" if at % 2 else "Pam", id=str(at)) for at in range(LONG)]
    taken = [calls_of(partial(run, app, {"messages": messages[:size]}, mode=mode)) for size in (60, 60, LONG)]
    # The first run fills caches, and threads differ a little in how often they wait.
    assert abs(taken[2] - taken[1]) < (LONG - 60) / 4


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("gate_mode", ["enforce", "audit"])
def test_a_body_may_edit_every_message_of_a_long_conversation(
    gate_mode: Any, has_ids: bool, mode: str
) -> None:
    """To undo an edit takes no copy of the calls of all messages, and no look at all that the body returned."""

    def speak(state: Any) -> Any:
        for message in state["messages"]:
            message.content += "!"
        return {"messages": Overwrite([*state["messages"], AIMessage("What a day.", name="Jim")])}

    speak.__name__ = "jim"
    app, arbiter_os = governed(PARTS["gate"][0], speak)
    (gate,) = arbiter_os._core.registry.registered(PersonaGate)  # pyright: ignore[reportPrivateUsage]
    gate.mode = gate_mode

    def taken(size: int) -> tuple[int, int]:
        """All calls, and those that unpack the calls of all messages."""
        said = [AIMessage("a", name="Pam", id=str(at) if has_ids else None) for at in range(size)]
        before = unpacked[0]
        calls = calls_of(partial(run, app, {"messages": said}, mode=mode), seen)
        return calls, unpacked[0] - before

    unpacked = [0]

    def seen(part: Any) -> None:
        unpacked[0] += part is marshal.loads

    taken(60)
    (short, once), (long, again) = taken(60), taken(LONG)
    assert (once, again) == (1, 1)
    assert long < 12 * short


def calls_of(work: Callable[[], Any], seen: Callable[[Any], Any] = id) -> int:
    """The number of calls that Python code makes meanwhile, on this thread and on new ones. `seen` gets each called
    function that is written in C."""
    calls = [0]

    def count(frame: Any, event: str, part: Any) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1
            seen(part)

    with pytest.MonkeyPatch.context() as patch:
        # Each call on a new thread: which of the old ones is free at that moment varies.
        patch.setattr(deadlines, "THREADS", deadlines.Threads())
        patch.setattr(deadlines, "_MOST_IDLE", 0)
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(cast(Any, None))
    return calls[0]


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("claim", CLAIMS)
def test_variables_and_windows_of_a_claim_do_not_take_the_whole_conversation(
    claim: str, drafts: int, mode: str
) -> None:
    """A long conversation takes as many messages as a short one, also where the node says several at once."""
    judge = Says(scores())
    asked = PropositionSet("adherence", [Proposition("a", claim, **CLAIMS[claim])])

    def speak(state: Any) -> Any:
        return {"messages": [AIMessage(f"Day {at}.", name="Jim", id=f"new {at}") for at in range(drafts)]}

    app, arbiter_os = governed(
        lambda os: os.add_evaluator(AdherenceEvaluator(persona=JIM, judge=judge, propositions=asked)), speak
    )
    taken: list[int] = []
    for size in (150, 3_000):
        evaluated(app, arbiter_os, conversation(size), mode)
        taken.append(len(read))
        assert ("teases Pam" in judge.prompt()) == ("teases" in claim)
        assert ("word3 other3" in judge.prompt()) == bool(CLAIMS[claim])
    assert taken[0] == taken[1] <= 110


TEASES = "{{agent_name}} teases {{recipient_name}}"
ABOUT_A_RECIPIENT: dict[str, Callable[[Says, Proposition], Any]] = {
    "adherence": lambda judge, claim: AdherenceEvaluator(
        persona=JIM, judge=judge, propositions=PropositionSet("adherence", [claim])
    ),
    "self_consistency": lambda judge, claim: SelfConsistencyEvaluator(
        persona=JIM, judge=judge, propositions=PropositionSet("consistency", [claim])
    ),
    "fluency": lambda judge, claim: FluencyEvaluator(
        persona=JIM, judge=judge, propositions=PropositionSet("fluency", [claim])
    ),
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("name", ABOUT_A_RECIPIENT)
def test_an_evaluator_finds_the_recipient_at_the_end_of_the_conversation(name: str, mode: str) -> None:
    """It is the other speaker of the last hundred events, even if several spoke before. The evaluator reads no
    older events of others."""
    judge = Says(scores())
    evaluator = ABOUT_A_RECIPIENT[name](judge, Proposition("a", TEASES))
    app, arbiter_os = governed(lambda os: os.add_evaluator(evaluator), jim)
    taken: list[int] = []
    for size in (300, 3_000):
        given = conversation(size)
        given["messages"][1].name = "Al"
        evaluated(app, arbiter_os, given, mode)
        taken.append(len(read))
        assert "Jim teases Pam" in judge.prompt()
    assert taken[0] == taken[1] <= 160


@pytest.mark.parametrize("part", PARTS)
def test_no_text_is_worked_on_by_the_event_loop(part: str) -> None:
    """A text may have thousands of words, and other work on the loop does not wait for them."""
    app, arbiter_os = governed(PARTS[part][0], jim)
    evaluated(app, arbiter_os, conversation(30), "async")
    assert threading.main_thread().ident not in readers
    assert readers or not PARTS[part][1]


async def test_texts_are_worked_on_by_one_thread_at_a_time() -> None:
    """The event loop shares the interpreter with such threads, and has its turn between them."""
    at_once: list[int] = []
    working = [0]

    def condition(targets: Any) -> bool:
        working[0] += 1
        time.sleep(0.002)
        at_once.append(working[0])
        working[0] -= 1
        return False

    def add(arbiter_os: ArbiterOS) -> None:
        for number in range(3):
            one = Intervention(JIM, name=str(number)).set_functional_precondition(condition)
            arbiter_os.add_advisor(one.set_effect("Sing."))

    app, _ = governed(add, jim)
    await asyncio.gather(*(app.ainvoke(conversation(3)) for _ in range(4)))
    assert at_once == [1] * 12


@pytest.mark.lengthy
async def test_a_function_that_waits_holds_up_no_other_run() -> None:
    """Drafts of other runs are judged meanwhile, and none passes because its judge had no time."""
    go_on = threading.Event()
    waits = Intervention(JIM).set_functional_precondition(lambda targets: go_on.wait(20)).set_effect("Sing.")
    held, _ = governed(lambda os: os.add_advisor(waits), jim)
    gate = PersonaGate(scored({}), [JIM, PAM], enabled("fluency"))
    free, _ = governed(lambda os: os.add_correction_gate(gate), jim)
    waiting = asyncio.create_task(held.ainvoke(conversation(3)))
    while threading.active_count() < 2 and not waiting.done():
        await asyncio.sleep(0.01)
    await free.ainvoke(conversation(3))
    assert gate.actions[0].outcome == "passed"
    assert not waiting.done()
    go_on.set()
    await waiting


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("snapshot", ["shallow", "deep"])
def test_writers_of_unnamed_messages_are_found_once(
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
def test_unnamed_messages_keep_their_writers_in_a_fork(mode: str) -> None:
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
def test_an_agents_earliest_messages_still_count_as_its_own(mode: str) -> None:
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
