"""Interventions are evaluated once a step, before any agent acts, and their nudges are gone after the
call."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import tracemalloc
from itertools import pairwise
from typing import Any, cast

import pytest
from langchain import agents as langchain_agents
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from arbiter import ArbiterOS, ArbiterWarning
from arbiter.errors import ConfigurationError, RegistrationError
from arbiter.history import HistoryItem
from arbiter.models import usage_meter
from arbiter.personas import (
    AdherenceEvaluator,
    Event,
    GateConfig,
    Intervention,
    InterventionBatch,
    MockJudge,
    Persona,
    PersonaGate,
    Proposition,
    PropositionSet,
    RecordingError,
    Target,
    Trajectory,
    anti_convergence,
    requires_action_type,
    variety,
)
from arbiter.personas._interventions import HEADING
from tests.personas.gate_support import PAM, Speaker, chat, hello, texts
from tests.personas.personas_support import JIM, Says, drive, prompt_of, scores
from tests.scripted import ScriptedTools
from tests.support import MODES, Chat, Spy, chain, run, thread

create_agent: Any = cast(Any, langchain_agents).create_agent
DWIGHT = Persona("Dwight", "A volunteer sheriff.", "dwight")


def advised(advisor: Any, *bodies: Any, checkpointer: Any = None) -> Any:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(advisor)
    return arbiter_os.govern(chat(*bodies, checkpointer=checkpointer))


def side_by_side(advisor: Any, *bodies: Any) -> Any:
    """The bodies run in one superstep, after one that says nothing."""
    builder: Any = StateGraph(Chat)
    for body in bodies:
        builder.add_node(body.__name__, body)
        builder.add_edge(START, body.__name__)
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(advisor)
    return arbiter_os.govern(builder.compile())


def conversation(*said: tuple[str, str]) -> Any:
    return {"messages": [AIMessage(text, name=name) for name, text in said]}


ALIKE = conversation(("Jim", "I love this great plan"), ("Pam", "I love this great plan"))
APART = conversation(("Jim", "The tide is wrong"), ("Pam", "My brush needs water"))


# Conditions ---------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    ("functional", "textual", "calls", "fired"),
    [(False, True, 0, False), (True, True, 1, True), (True, False, 1, False)],
)
def test_all_conditions_must_hold(
    functional: bool, textual: bool, calls: int, fired: bool, mode: str
) -> None:
    """39. The function is asked first; what it says no to costs nothing."""
    judge = Says({"result": textual})
    one = (
        Intervention(JIM, judge=judge)
        .set_functional_precondition(lambda targets: functional)
        .set_textual_precondition("they are bored")
        .set_effect("Sing.")
    )
    jim = Speaker("Hi")
    run(advised(one, jim), hello(), mode=mode)
    assert (judge.calls, "Sing." in jim.told()) == (calls, fired)
    assert [found.fired for found in one.log] == [fired]


@MODES
@pytest.mark.parametrize(
    ("threshold", "answer", "fired"),
    [
        (7, {"score": 7}, False),
        (7, {"score": 6}, True),
        (None, {"result": True}, True),
        (None, {"result": False}, False),
    ],
)
def test_a_proposition_holds_below_its_threshold(
    threshold: float | None, answer: Any, fired: bool, mode: str
) -> None:
    """40. Without a threshold it is checked."""
    one = (
        Intervention(JIM, judge=Says(answer))
        .set_propositional_precondition(Proposition("fun", "{{agent_name}} is funny"), threshold)
        .set_effect("Joke.")
    )
    jim = Speaker("Hi")
    run(advised(one, jim), hello("Own."), mode=mode)
    assert ("Joke." in jim.told()) is fired


@MODES
@pytest.mark.parametrize("failing", ["judge", "function", "effect", "answer"])
def test_an_intervention_that_fails_does_not_fire(failing: str, mode: str) -> None:
    """43. The run goes on, and the log says why."""

    def boom(*_: Any) -> Any:
        raise ZeroDivisionError("boom")

    answer: Any = {"result": True}
    if failing in ("judge", "answer"):
        answer = ZeroDivisionError("boom") if failing == "judge" else {"nonsense": 1}
    one = Intervention(JIM, judge=Says(answer)).set_textual_precondition("x").set_effect("Sing.")
    if failing == "function":
        one.set_functional_precondition(boom)
    if failing == "effect":
        one.set_effect(boom)
    jim = Speaker("Hi")
    assert texts(run(advised(one, jim), hello("Own."), mode=mode))[-1] == "Hi"
    assert "Sing." not in jim.told()
    assert one.log[0].problem.startswith("result: " if failing == "answer" else "ZeroDivisionError: boom")


@MODES
def test_a_stale_recording_is_an_error_of_the_run(mode: str) -> None:
    """Also when the run goes on, and for everybody who acts in the step: it is not a judge that says no."""
    one = Intervention([JIM, PAM], judge=MockJudge({})).set_textual_precondition("bored").set_effect("Sing.")
    jim = Speaker("Hi")
    app = advised(one, jim, checkpointer=InMemorySaver())
    for given in (hello("Own."), None):
        with pytest.raises(RecordingError, match="Record again"):
            run(app, given, thread("1"), mode=mode)
    assert jim.calls == 0


def test_a_stale_recording_in_audit_is_noted() -> None:
    one = Intervention(JIM, judge=MockJudge({})).set_textual_precondition("bored").set_effect("Sing.")
    one.mode = "audit"
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    arbiter_os.govern(chat(Speaker("Hi"))).invoke(hello("Own."))
    assert "Record again" in arbiter_os.history.entries[-1][-1].errors["advisor intervention"]


@pytest.mark.parametrize(
    ("targets", "claim"),
    [
        ([JIM, PAM], "{{agent_name}} is sad"),
        ([JIM], "{{agent}} is sad"),
        ([JIM], "{{recipient_name}} is sad"),
        ([], "{{channel_name}} is sad"),
    ],
)
@pytest.mark.parametrize("kind", ["textual", "propositional"])
def test_a_claim_that_cannot_be_filled_cannot_be_registered(targets: Any, claim: str, kind: str) -> None:
    """It would be asked about never."""
    one = Intervention(targets, judge=Says({"result": True})).set_effect("Sing.")
    if kind == "textual":
        one.set_textual_precondition(claim)
    else:
        one.set_propositional_precondition(Proposition("p", claim), 5)
    with pytest.raises(RegistrationError, match="there is no value for"):
        ArbiterOS().add_advisor(one)


def test_a_filled_claim_can_be_asked() -> None:
    judge = Says({"result": True})
    one = Intervention(JIM, judge=judge, channel="office").set_effect("Sing.")
    one.set_textual_precondition("{{agent_name}} is sad in {{channel_name}}")
    advised(one, Speaker("Hi")).invoke(hello("Own."))
    assert "Jim is sad in office" in judge.prompt()
    assert one.log[0].fired


@MODES
def test_a_claim_that_does_not_apply_is_not_found_to_be_true(mode: str) -> None:
    """Its precondition is not met: the judge is not asked, and the intervention does not fire."""
    judge = Says({"result": True})
    claim = Proposition("sad", "{{agent_name}} is sad", precondition=requires_action_type({"THINK"}))
    one = Intervention(JIM, judge=judge).set_propositional_precondition(claim).set_effect("Sing.")
    run(advised(one, Speaker("Hi")), hello("Own."), mode=mode)
    assert (judge.calls, one.log[0].fired) == (0, False)


@MODES
def test_an_empty_conversation_meets_no_condition(mode: str) -> None:
    judge = Says({"result": True})
    one = Intervention(JIM, judge=judge).set_textual_precondition("they agree").set_effect("Sing.")
    jim = Speaker("Hi")
    run(advised(one, jim), {"messages": []}, mode=mode)
    assert judge.calls == 0
    assert not one.log[0].fired


def test_the_window_is_the_interventions() -> None:
    judge = Says({"result": False})
    one = Intervention(JIM, judge=judge, first_n=1, last_n=1).set_textual_precondition("x").set_effect("y")
    advised(one, Speaker("Hi")).invoke(hello("a", "b", "c"))
    assert "(2 events omitted)" in judge.prompt()


def test_an_empty_text_nudges_nobody() -> None:
    one = Intervention(JIM).set_functional_precondition(lambda targets: True).set_effect("")
    advised(one, Speaker("hi")).invoke(hello())
    assert [(found.fired, dict(found.nudges)) for found in one.log] == [(True, {})]


def test_events_of_a_target_are_like_a_tuple() -> None:
    """A condition may print, join, copy and pickle them."""
    seen: list[Target] = []

    def look(targets: list[Target]) -> bool:
        seen.extend(targets)
        return False

    one = Intervention(JIM).set_functional_precondition(look)
    advised(one.set_effect("go on"), Speaker("hi")).invoke(hello())
    trajectory = seen[0].trajectory
    plain = Trajectory(tuple(trajectory.events))
    assert repr(trajectory) == repr(plain)
    assert pickle.loads(pickle.dumps(trajectory)) == copy.deepcopy(trajectory) == plain
    more = Event.action("Jim", "more")
    events: Any = trajectory.events
    assert events + (more,) == (*plain.events, more)  # noqa: RUF005  # as users write it
    assert (more,) + events == (more, *plain.events)  # noqa: RUF005


def test_functions_get_targets_as_a_list() -> None:
    seen: list[list[Target]] = []

    def look(targets: list[Target]) -> bool:
        seen.append(targets)
        return False

    one = Intervention(JIM).set_functional_precondition(look).set_effect("x")
    advised(one, Speaker("Hi")).invoke(hello("Own."))
    ((target,),) = seen
    assert (target.agent, target.personas, len(target.trajectory)) == ("Jim", (JIM,), 2)


@MODES
def test_functions_may_be_async(mode: str) -> None:
    """In an async run they are awaited; in a sync one they cannot be, and nothing fires for that."""
    answers = iter([False, True])

    async def condition(targets: list[Target]) -> bool:
        await asyncio.sleep(0)
        return next(answers)

    async def effect(targets: list[Target]) -> str:
        await asyncio.sleep(0)
        return "Sing."

    one = Intervention(JIM).set_functional_precondition(condition).set_effect(effect)
    jim = Speaker("a", "b")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    run(arbiter_os.govern(talking(jim, rounds=2)), hello(), mode=mode)
    if mode == "async":
        assert [found.fired for found in one.log] == [False, True]
        assert ["Sing." in jim.told(call) for call in range(2)] == [False, True]
    else:
        assert [found.fired for found in one.log] == [False, False]
        assert "needs an async run" in one.log[0].problem


def never(*_: Any) -> bool:
    return False


@MODES
def test_a_claim_that_does_not_apply_holds_for_no_agent(mode: str) -> None:
    """The judge is not asked, so nothing is found."""
    judge = Says({"result": True})
    own = Proposition("p", "{{agent_name}} is loud", precondition=never)
    one = Intervention(JIM, judge=judge).set_propositional_precondition(own).set_effect("Sing.")
    run(advised(one, Speaker("Hi")), hello("Own."), mode=mode)
    assert (judge.calls, one.log[0].fired) == (0, False)


@MODES
def test_a_stale_recording_fails_the_node(mode: str) -> None:
    """A replay in which no intervention fires would otherwise pass after any edit."""
    one = Intervention(JIM, judge=MockJudge({})).set_textual_precondition("x").set_effect("Sing.")
    jim = Speaker("Hi")
    with pytest.raises(RecordingError, match="Record again"):
        run(advised(one, jim), hello("Own."), mode=mode)
    assert jim.calls == 0


# Setting up ---------------------------------------------------------------------------------------


def test_setters_return_the_same_object() -> None:
    """43. Of one and of a batch."""
    for made in (
        Intervention(JIM, judge=Says(None)),
        InterventionBatch.create_for_each([JIM, PAM, DWIGHT], judge=Says(None)),
    ):
        assert made.set_textual_precondition("x") is made
        assert made.set_functional_precondition(lambda targets: True) is made
        assert made.set_propositional_precondition(Proposition("p", "x"), 3) is made
        assert made.set_effect("x") is made


def test_one_for_each_agent() -> None:
    """43."""
    batch = InterventionBatch.create_for_each([JIM, PAM, DWIGHT], judge=Says(None), name="each")
    assert [one.agents for one in batch] == [["Jim"], ["Pam"], ["Dwight"]]
    assert [one.name for one in batch] == ["each:Jim", "each:Pam", "each:Dwight"]


def test_without_effect_or_judge_it_cannot_be_registered() -> None:
    arbiter_os = ArbiterOS()
    with pytest.raises(RegistrationError, match="no effect"):
        arbiter_os.add_advisor(Intervention(JIM).set_functional_precondition(lambda targets: True))
    with pytest.raises(RegistrationError, match="Pass judge="):
        arbiter_os.add_advisor(Intervention(JIM).set_textual_precondition("x").set_effect("x"))
    with pytest.warns(ArbiterWarning, match="fires at every step") as caught:
        arbiter_os.add_advisor(Intervention(JIM).set_effect("x"))
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize("shipped", [anti_convergence, variety])
def test_wrong_targets_of_shipped_interventions_name_them(shipped: Any) -> None:
    judge, name = MockJudge({}), shipped.__name__
    with pytest.raises(ConfigurationError, match=f"^advisor '{name}': target_nodes: expected at least one"):
        shipped([JIM, PAM], judge, target_nodes=[])
    with pytest.raises(
        ConfigurationError, match=f"^advisor '{name}': target_instructions: expected the name"
    ):
        shipped([JIM, PAM], judge, target_instructions=["GENRATE"])


@pytest.mark.parametrize(
    ("targets", "claim"), [([JIM, PAM], "{{agent_name}} is loud"), ([JIM], "{{ agent }} is loud")]
)
def test_a_claim_with_a_variable_that_nothing_fills_cannot_be_registered(targets: Any, claim: str) -> None:
    for one in (
        Intervention(targets, judge=Says(None)).set_textual_precondition(claim),
        Intervention(targets, judge=Says(None)).set_propositional_precondition(Proposition("p", claim)),
    ):
        with pytest.raises(RegistrationError, match=r"there is no value for \{\{agent"):
            ArbiterOS().add_advisor(one.set_effect("Sing."))


ON = GateConfig(anti_convergence_enabled=True, variety_intervention_enabled=True)
one_of: Any = Intervention
converging: Any = anti_convergence
varied: Any = variety
WRONG: dict[str, Any] = {
    "first_n": lambda: one_of(JIM, first_n=-1),
    "last_n": lambda: one_of(JIM, last_n="3"),
    "effect": lambda: one_of(JIM).set_effect(5),
    "condition": lambda: one_of(JIM).set_functional_precondition("x"),
    "claim": lambda: one_of(JIM).set_textual_precondition(" "),
    "threshold": lambda: one_of(JIM).set_propositional_precondition(Proposition("p", "x"), 70),
    "nudges: expected one of": lambda: converging([JIM], Says(None), nudges="devil"),
    "got 'devil'": lambda: varied([JIM], Says(None), nudges={"jim": "devil"}),
    "'jimm'": lambda: varied([JIM], Says(None), nudges={"jimm": "new_ideas"}),
    "settings for 'jimm'": lambda: converging([JIM], Says(None), {"jimm": ON}),
    "settings for 'pam'": lambda: varied([JIM], Says(None), {"pam": ON}),
    "stale_after": lambda: varied([JIM], Says(None), stale_after=-1),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_setting_is_named(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        WRONG[wrong]()


def test_a_disabled_intervention_applies_to_no_node() -> None:
    """It costs nothing, because it is never called."""
    off = GateConfig()
    for advisor in (anti_convergence([JIM, PAM], Says(None), off), variety([JIM], Says(None), off)):
        assert not advisor.applies_to("jim", None)
        arbiter_os = ArbiterOS()
        arbiter_os.add_advisor(advisor)
        with pytest.warns(ArbiterWarning, match="applies to no node: it has no intervention"):
            arbiter_os.govern(chain(Spy("jim"))).invoke({"log": []})
    assert variety([JIM, PAM], Says(None), {"pam": ON}).applies_to("jim", None)


def test_an_intervention_without_agents_reports_that_it_nudges_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as with the agents of a list that was read too early."""
    one = Intervention([]).set_functional_precondition(lambda targets: True).set_effect("Sing.")
    run(advised(one, Speaker("a")), hello())
    run(advised(one, Speaker("a")), hello())
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("intervention 'intervention' has no agents, so its text nudges nobody.")
    caplog.clear()
    variety([], Says(None))
    anti_convergence([], Says(None))
    assert [record.getMessage() for record in caplog.records] == [
        f"intervention {name!r} has no agents, so it nudges nobody. Name its agents."
        for name in ("variety", "anti_convergence")
    ]


# Nudges -------------------------------------------------------------------------------------------


def talking(*speakers: Speaker, rounds: int = 2, checkpointer: Any = None) -> Any:
    """The speakers take turns, round after round."""
    builder: Any = StateGraph(Chat)
    before = START
    for body in speakers:
        builder.add_node(body.__name__, body)
        builder.add_edge(before, body.__name__)
        before = body.__name__

    def more(state: Any) -> str:
        return END if speakers[-1].calls >= rounds else speakers[0].__name__

    builder.add_conditional_edges(before, more)
    return builder.compile(checkpointer=checkpointer)


@MODES
def test_a_nudge_is_for_one_call(mode: str) -> None:
    """42. It is in the prompt of step s, not of step s+1, and never in messages, state or checkpoints."""
    steps = iter([True, False, False])
    one = Intervention(JIM).set_functional_precondition(lambda t: next(steps)).set_effect("Sing.")
    jim = Speaker("a", "b", "c")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    app = arbiter_os.govern(talking(jim, rounds=3, checkpointer=InMemorySaver()))
    output = run(app, hello(), thread("1"), mode=mode)
    assert ["Sing." in jim.told(call) for call in range(3)] == [True, False, False]
    assert HEADING in jim.told(0)
    assert "Sing." not in str(output)
    for snapshot in app.get_state_history(thread("1")):
        assert "Sing." not in str(snapshot)


@MODES
def test_a_nudge_waits_for_its_agent(mode: str) -> None:
    """A nudge for Pam's next call waits if another agent acts in this step; it is given once, however
    often it fires."""
    one = (
        Intervention(PAM, agents=[JIM])
        .set_functional_precondition(lambda targets: True)
        .set_effect(lambda targets: {"pam": "Paint."})
    )
    jim, pam = Speaker("a"), Speaker("b", name="pam")
    run(advised(one, jim, pam), hello(), mode=mode)
    assert "Paint." not in jim.told()
    assert pam.told().count("Paint.") == 1


@MODES
def test_a_lasting_nudge_stays_for_the_run(mode: str) -> None:
    """`persist=True`: the agent keeps the thought, the judge is shown it, and no message has it."""
    steps = iter([True, False, False])
    seen: list[list[Event]] = []

    def once(targets: list[Target]) -> bool:
        seen.append([event for event in targets[0].trajectory if event.type == "THINK"])
        return next(steps)

    one = Intervention(JIM, persist=True).set_functional_precondition(once).set_effect("Sing.")
    jim = Speaker("a", "b", "c")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    output = run(arbiter_os.govern(talking(jim, rounds=3)), hello(), mode=mode)
    assert ["Sing." in jim.told(call) for call in range(3)] == [True, True, True]
    assert [[event.text for event in thoughts] for thoughts in seen] == [[], ["Sing."], ["Sing."]]
    assert "Sing." not in str(output)


@MODES
def test_a_lasting_nudge_is_one_thought_however_often_it_fires(mode: str) -> None:
    seen: list[int] = []

    def always(targets: list[Target]) -> bool:
        seen.append(sum(event.type == "THINK" for event in targets[0].trajectory))
        return True

    one = Intervention(JIM, persist=True).set_functional_precondition(always).set_effect("Sing.")
    jim = Speaker("a", "b", "c")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    run(arbiter_os.govern(talking(jim, rounds=3)), hello(), mode=mode)
    assert [jim.told(call).count("Sing.") for call in range(3)] == [1, 1, 1]
    assert seen == [0, 1, 1]


@MODES
@pytest.mark.parametrize("effect", [{"Jim": 5}, 5, ["Sing."]])
def test_an_effect_that_is_no_text_does_not_fire(effect: Any, mode: str) -> None:
    one = Intervention(JIM).set_functional_precondition(lambda t: True).set_effect(lambda t: effect)
    jim = Speaker("a")
    assert texts(run(advised(one, jim), hello(), mode=mode))[-1] == "a"
    assert (one.log[0].fired, "expected a text" in one.log[0].problem) == (False, True)


@MODES
def test_an_attempt_that_is_repeated_gets_the_same_nudge(mode: str) -> None:
    steps = iter([True])
    one = Intervention(JIM).set_functional_precondition(lambda t: next(steps)).set_effect("Sing.")
    jim = Speaker(ValueError("down"), "a")
    app = advised(one, jim, checkpointer=InMemorySaver())
    with pytest.raises(ValueError, match="down"):
        run(app, hello(), thread("1"), mode=mode)
    run(app, None, thread("1"), mode=mode)
    assert ["Sing." in jim.told(call) for call in range(2)] == [True, True]


def test_a_node_without_messages_gets_the_nudge_as_a_key() -> None:

    node = Spy("jim")
    one = Intervention(JIM, key="log").set_functional_precondition(lambda t: True).set_effect("Sing.")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    arbiter_os.govern(chain(node)).invoke({"log": ["Hello."]})
    assert node.calls[0]["advice"].endswith("Sing.")


# When ---------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("inside", ["graph", "subgraph"])
def test_once_a_superstep_in_order_and_before_anybody_acts(inside: str, mode: str) -> None:
    """44. Agents that act at the same time share one evaluation, in the order of the batch."""
    order: list[str] = []
    lock = threading.Lock()

    def note(what: str) -> None:
        with lock:
            order.append(what)

    def asked(name: str) -> Any:
        def condition(targets: list[Target]) -> bool:
            note(f"evaluate {name}")
            return True

        return condition

    agents = [JIM, PAM, DWIGHT]
    batch = InterventionBatch(
        [
            Intervention(agent, name=agent.id, agents=agents)
            .set_functional_precondition(asked(agent.id))
            .set_effect(f"for {agent.id}")
            for agent in agents
        ]
    )

    class Acts(Speaker):
        def __call__(self, state: Any) -> Any:
            note(f"act {self.__name__}")
            return super().__call__(state)

    bodies = [Acts("x", name=agent.id) for agent in agents]
    builder: Any = StateGraph(Chat)
    for body in bodies:
        builder.add_node(body.__name__, body)
        builder.add_edge(START, body.__name__)
    arbiter_os = ArbiterOS()
    batch.target_nodes = ("jim", "pam", "dwight")
    arbiter_os.add_advisor(batch)
    if inside == "subgraph":
        outer: Any = StateGraph(Chat)
        outer.add_node("office", builder.compile())
        outer.add_edge(START, "office")
        builder = outer
    run(arbiter_os.govern(builder.compile()), hello(), mode=mode)
    assert order[:3] == ["evaluate jim", "evaluate pam", "evaluate dwight"]
    assert sorted(order[3:]) == ["act dwight", "act jim", "act pam"]
    for body in bodies:
        assert f"for {body.__name__}" in body.told()
        assert body.told().count("for ") == 1


@MODES
def test_a_nudge_is_known_to_the_next_intervention_of_the_step(mode: str) -> None:
    seen: list[list[str]] = []

    def look(targets: list[Target]) -> bool:
        seen.append([event.text for event in targets[0].trajectory])
        return True

    first = Intervention(JIM).set_functional_precondition(lambda t: True).set_effect("Sing.")
    second = Intervention(JIM).set_functional_precondition(look).set_effect("Dance.")
    jim = Speaker("x")
    run(advised(InterventionBatch([first, second]), jim), hello(), mode=mode)
    assert seen == [["Hello.", "Sing."]]
    assert jim.told().index("Sing.") < jim.told().index("Dance.")


@MODES
def test_each_round_and_each_run_is_evaluated(mode: str) -> None:
    """Agents that act in turn, one node each, share a round, until one of them acts again."""
    one = Intervention(JIM, agents=[PAM]).set_functional_precondition(lambda t: True).set_effect("Sing.")
    app = advised(one, Speaker("a"), Speaker("b", name="pam"))
    run(app, hello(), mode=mode)
    run(app, hello(), mode=mode)
    assert [found.agent for found in one.log] == ["Jim", "Jim"]
    assert len({found.run_id for found in one.log}) == 2
    assert all(found.at and found.item_id and found.step for found in one.log)


def in_turn(*bodies: Any, rounds: int, checkpointer: Any = None) -> Any:
    """The bodies speak one after another, again and again."""
    builder: Any = StateGraph(Chat)
    left = [rounds]

    def again(state: Any) -> str:
        left[0] -= 1
        return bodies[0].__name__ if left[0] else END

    for one, other in pairwise([START, *(body.__name__ for body in bodies)]):
        builder.add_edge(one, other)
    for body in bodies:
        builder.add_node(body.__name__, body)
    builder.add_conditional_edges(bodies[-1].__name__, again, [bodies[0].__name__, END])
    return builder.compile(checkpointer=checkpointer)


@MODES
def test_a_conversation_in_turn_is_evaluated_once_a_round(mode: str) -> None:
    """So a judge is asked once a round, and a nudged agent gets its nudge when its turn comes."""
    judge = Says({"result": True})
    team = [JIM, PAM, DWIGHT]
    batch = InterventionBatch.create_for_each(team, judge=judge)
    batch.set_textual_precondition("bored").set_effect("Sing.")
    bodies = [Speaker("x", name=agent.id) for agent in team]
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(batch)
    run(arbiter_os.govern(in_turn(*bodies, rounds=4)), hello(), mode=mode)
    assert (judge.calls, len(batch.log)) == (12, 12)
    assert {found.agent for found in batch.log} == {"Jim"}
    assert [["Sing." in body.told(call) for call in range(4)] for body in bodies] == [[True] * 4] * 3


@MODES
def test_rounds_of_a_thread_go_on_over_invokes(mode: str) -> None:
    """One turn an invoke: the next agent that acts in the thread is still in the round."""
    one = Intervention(PAM, agents=[JIM]).set_functional_precondition(lambda t: True).set_effect("Sing.")
    turn = ["jim"]

    def first(state: Any) -> str:
        return turn[0]

    jim, pam = Speaker("a"), Speaker("b", name="pam")
    builder: Any = StateGraph(Chat)
    builder.add_node("jim", jim)
    builder.add_node("pam", pam)
    builder.add_conditional_edges(START, first, ["jim", "pam"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    for name in ("jim", "pam", "jim", "pam"):
        turn[0] = name
        run(app, hello(), thread("1"), mode=mode)
    assert [found.agent for found in one.log] == ["Jim", "Jim"]
    assert {found.thread_id for found in one.log} == {"1"}
    assert ["Sing." in pam.told(call) for call in range(2)] == [True, True]


def either(advisor: Any) -> Any:
    """A graph in which the agent speaks that the input names."""
    builder: Any = StateGraph(Chat)
    for body in (Speaker("x"), Speaker("y", name="pam")):
        builder.add_node(body.__name__, body)

    def named(state: Any) -> str:
        return str(state["messages"][-1].text)

    builder.add_conditional_edges(START, named, ["jim", "pam"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(advisor)
    return arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))


@pytest.mark.parametrize("modes", [("async", "sync"), ("sync", "async"), ("async", "async")])
def test_a_round_goes_on_in_a_sync_and_an_async_run_of_one_thread(modes: tuple[str, str]) -> None:
    """A second agent does not wait for an evaluation that has ended, in either kind of run."""
    one = Intervention([JIM, PAM]).set_functional_precondition(lambda targets: True).set_effect("go on")
    app = either(one)
    ended: list[Any] = []

    def talk() -> None:
        for mode, who in zip(modes, ("jim", "pam"), strict=True):
            given = {"messages": [HumanMessage(who)]}
            ended.append(run(app, given, thread("1"), mode=mode))

    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    talking.join(20)
    assert len(ended) == 2
    assert [entry.fired for entry in one.log] == [True]


@pytest.mark.lengthy
def test_a_sync_run_on_the_event_loop_that_evaluates_does_not_wait_for_itself() -> None:
    """The loop is blocked by the body that calls the other graph, so the evaluation cannot go on before that."""

    async def slow(targets: list[Target]) -> bool:
        await asyncio.sleep(0.2)
        return True

    one = Intervention([JIM, PAM]).set_functional_precondition(slow).set_effect("go on")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    inner = arbiter_os.govern(chat(Speaker("hi", name="pam")))

    async def calls(state: Any) -> Any:
        await asyncio.sleep(0.1)  # the evaluation has begun
        inner.invoke(hello())
        return {}

    async def jim(state: Any) -> Any:
        return {"messages": [AIMessage("hi", name="Jim")]}

    builder: Any = StateGraph(Chat)
    for body in (jim, calls):
        builder.add_node(body.__name__, body)
        builder.add_edge(START, body.__name__)
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    talking = threading.Thread(target=lambda: asyncio.run(app.ainvoke(hello(), thread("1"))), daemon=True)
    talking.start()
    talking.join(20)
    assert not talking.is_alive()


@MODES
def test_each_run_with_a_thread_and_no_checkpointer_is_a_round(mode: str) -> None:
    """Its steps have the same numbers each time."""
    one = Intervention(JIM).set_functional_precondition(lambda targets: True).set_effect("go on")
    app = advised(one, Speaker("hi"))
    for _ in range(3):
        run(app, hello(), thread("1"), mode=mode)
    assert [entry.fired for entry in one.log] == [True] * 3


@MODES
def test_the_user_can_say_what_a_round_is(mode: str) -> None:
    """Here each superstep, then all of a run."""

    def superstep(item: HistoryItem) -> int:
        return item.step

    def everything(item: HistoryItem) -> str:
        return "all"

    for round_of, evaluated in ((superstep, 6), (everything, 1)):
        one = Intervention(JIM, agents=[PAM], round_of=round_of)
        one.set_functional_precondition(lambda t: True).set_effect("Sing.")
        arbiter_os = ArbiterOS()
        arbiter_os.add_advisor(one)
        app = arbiter_os.govern(in_turn(Speaker("a"), Speaker("b", name="pam"), rounds=3))
        run(app, hello(), mode=mode)
        assert len(one.log) == evaluated
    for made in (
        variety([JIM], Says(None), round_of=superstep),
        anti_convergence([JIM], Says(None), round_of=superstep),
        InterventionBatch.create_for_each([JIM], round_of=superstep),
    ):
        assert made.round_of is not None


@MODES
def test_rounds_that_the_user_names_are_those_of_the_thread(mode: str) -> None:
    """As nudges are: a round goes on in the next invoke, and another thread has rounds of its own."""
    one = Intervention(JIM, round_of=lambda item: len(item.input_state["messages"]) // 4)
    one.set_functional_precondition(lambda targets: True).set_effect("Sing.")
    jim = Speaker("a")
    app = advised(one, jim, checkpointer=InMemorySaver())
    for name in ("1", "1", "1", "2"):
        run(app, {"messages": [HumanMessage("Hello.")]}, thread(name), mode=mode)
    assert [found.thread_id for found in one.log] == ["1", "1", "2"]  # of 1, 3, 5 and 1 messages
    assert ["Sing." in jim.told(call) for call in range(4)] == [True, False, True, True]


@tool
def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


def looking(*turns: int) -> ScriptedTools:
    """A model that calls a tool so many times in each turn, and then answers."""
    answers: list[AIMessage] = []
    for turn, calls in enumerate(turns):
        for at in range(calls):
            call: Any = {"name": "look", "args": {"what": f"{turn}"}, "id": f"{turn}-{at}"}
            answers.append(AIMessage("", tool_calls=[call, {**call, "id": f"{turn}-{at}-more"}]))
        answers.append(AIMessage(f"answer {turn}"))
    return ScriptedTools(answers=answers)


@MODES
def test_a_turn_with_tools_is_one_round(mode: str) -> None:
    """Each call of the model in it is nudged, and no call in the next turn, in which the intervention does
    not fire."""
    model = looking(2, 0, 1)
    fires = iter([True, False, True])
    one = Intervention(JIM, target_nodes=["model"])
    one.set_functional_precondition(lambda targets: next(fires)).set_effect("Sing.")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    agent: Any = create_agent(model, [look], checkpointer=InMemorySaver())
    app: Any = arbiter_os.govern(agent)
    for _ in range(3):
        run(app, {"messages": [HumanMessage("Look.")]}, thread("1"), mode=mode)
    assert [found.fired for found in one.log] == [True, False, True]
    assert ["Sing." in str(asked) for asked in model.asked] == [True, True, True, False, True, True]


@pytest.mark.lengthy
@MODES
def test_agents_with_tools_of_their_own_share_a_round(mode: str) -> None:
    """Two agents of LangChain speak in turn, for two rounds; their models are what is advised."""
    models = {"jim": looking(1, 2), "pam": looking(2, 1)}
    one = Intervention(
        [JIM, PAM],
        target_nodes=["model"],
        agent_of=lambda item: item.namespace.partition(":")[0] or None,
    )
    one.set_functional_precondition(lambda targets: True).set_effect("Sing.")
    builder: Any = StateGraph(Chat)
    for name, model in models.items():
        made: Any = create_agent(model, [look], name=name)
        builder.add_node(name, made)
    rounds = [2]

    def again(state: Any) -> str:
        rounds[0] -= 1
        return "jim" if rounds[0] else END

    builder.add_edge(START, "jim").add_edge("jim", "pam").add_conditional_edges("pam", again, ["jim", END])
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    app: Any = arbiter_os.govern(builder.compile())
    run(app, hello(), mode=mode)
    assert [found.agent for found in one.log] == ["Jim", "Jim"]
    assert all("Sing." in str(asked) for model in models.values() for asked in model.asked)


@MODES
def test_the_result_of_anothers_tool_is_no_part_of_a_turn(mode: str) -> None:
    """An agent to whom another hands over by a tool begins a turn, and so a round, if it has had its turn."""
    one = Intervention(JIM, agents=[PAM]).set_functional_precondition(lambda t: True).set_effect("Sing.")
    call: Any = {"name": "hand_over", "args": {}, "id": "1"}

    def pam(state: Any) -> Any:
        result = ToolMessage("handed over", tool_call_id="1")
        return {"messages": [AIMessage("", tool_calls=[call]), result]}

    app = advised_in_turn(one, Speaker("a"), pam, rounds=2)
    run(app, hello(), mode=mode)
    assert [found.agent for found in one.log] == ["Jim", "Jim"]


def advised_in_turn(advisor: Any, *bodies: Any, rounds: int) -> Any:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(advisor)
    return arbiter_os.govern(in_turn(*bodies, rounds=rounds))


@MODES
def test_a_lasting_nudge_stays_for_the_thread(mode: str) -> None:
    """Over its invokes, and not in another thread."""
    fires = iter([True, False, False])
    one = (
        Intervention(JIM, persist=True).set_functional_precondition(lambda t: next(fires)).set_effect("Sing.")
    )
    jim = Speaker("a", "b", "c")
    app = advised(one, jim, checkpointer=InMemorySaver())
    for name in ("1", "1", "2"):
        run(app, hello(), thread(name), mode=mode)
    assert ["Sing." in jim.told(call) for call in range(3)] == [True, True, False]


@MODES
def test_without_evidence_nothing_fires(mode: str) -> None:
    """A judge without evidence has not found the claim to be true; the log gives the reason."""
    judge = Says({"result": True, "evidence_present": False})
    one = Intervention(JIM, judge=judge).set_textual_precondition("they agree").set_effect("Sing.")
    jim = Speaker("Hi")
    run(advised(one, jim), hello("Own."), mode=mode)
    assert "Sing." not in jim.told()
    assert (one.log[0].fired, one.log[0].textual) == (False, False)
    assert "no evidence" in one.log[0].problem


def test_a_host_is_no_speaker_whose_voice_converges() -> None:
    """Messages of a speaker who is no agent neither make voices alike nor keep them apart."""
    host = [AIMessage("completely other words of a moderator", name="Host")] * 3
    judge = Says({"result": True})
    advised(anti_convergence([JIM, PAM], judge), Speaker("a")).invoke(
        {"messages": [*host, *ALIKE["messages"]]}
    )
    assert judge.calls == 1
    echo = [AIMessage("I love this great plan", name=name) for name in ("Jim", "Host")]
    judge = Says({"result": True})
    advised(anti_convergence([JIM, PAM], judge), Speaker("a")).invoke({"messages": echo})
    assert judge.calls == 0


ECHO = conversation(
    ("Jim", "We should open a bakery near the station, people there are hungry in the morning."),
    ("Pam", "I agree, a bakery near the station is a wonderful idea, people are hungry in the morning."),
    ("Dwight", "Absolutely, a bakery near the station! In the morning people there are hungry."),
    ("Jim", "Yes, and we could sell coffee too."),
    ("Pam", "Coffee too, yes."),
    ("Dwight", "Coffee, I agree."),
)
DEBATE = conversation(
    ("Jim", "I do not think that karaoke is a good idea; half of the team hates to sing in public."),
    ("Pam", "Singing is fun, and I would rather have karaoke than another quiz where nobody laughs."),
    ("Dwight", "What does it cost? A machine is two hundred a night, and the quiz is free."),
    ("Jim", "The quiz was a bore, I give you that, but must we humiliate people instead?"),
    ("Pam", "Nobody has to sing. There is dancing, too, and I will bring the drinks."),
    ("Dwight", "Then the drinks are the real cost, and I want a limit on them."),
)


@pytest.mark.parametrize(("given", "calls"), [(ECHO, 1), (DEBATE, 0)])
def test_anti_convergence_asks_about_an_echo_at_its_default(given: Any, calls: int) -> None:
    """Three speakers who repeat one another, and three on one topic who do not. Old messages do not hide
    an echo."""
    before = [AIMessage(f"unlike{n} alone{n}", name=("Jim", "Pam", "Dwight")[n % 3]) for n in range(60)]
    for earlier in ([], before):
        judge = Says({"result": True})
        advised(anti_convergence([JIM, PAM, DWIGHT], judge, first_n=0, last_n=6), Speaker("a")).invoke(
            {"messages": [*earlier, *given["messages"]]}
        )
        assert judge.calls == calls


def quiet(state: Any) -> Any:
    return {}


@MODES
def test_only_a_step_in_which_an_agent_acts_is_evaluated(mode: str) -> None:
    """Neither one that prepares something, nor those inside of a subgraph that is an agent."""
    judge = Says({"result": True})
    one = Intervention(JIM, agents=[PAM], judge=judge).set_textual_precondition("x").set_effect("Sing.")
    jim = Speaker("Hi", name="model")
    builder: Any = StateGraph(Chat)
    builder.add_node("prepare", quiet)
    builder.add_node("jim", chat(jim))
    builder.add_edge(START, "prepare")
    builder.add_edge("prepare", "jim")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    run(arbiter_os.govern(builder.compile()), hello("Own."), mode=mode)
    assert (judge.calls, len(one.log)) == (1, 1)
    assert jim.told().count("Sing.") == 1


def test_many_steps_keep_nothing_but_the_last() -> None:
    one = Intervention(JIM).set_functional_precondition(lambda t: False).set_effect("Sing.")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    app = arbiter_os.govern(chat(Speaker("a")))
    for _ in range(30):
        app.invoke(hello())
    assert len(one.log) == 30


# Shipped interventions ----------------------------------------------------------------------------


@MODES
@pytest.mark.filterwarnings("ignore:.*it has no intervention:arbiter.ArbiterWarning")
@pytest.mark.parametrize(
    ("given", "settings", "calls", "fired"),
    [
        (ALIKE, None, 1, True),
        (APART, None, 0, False),
        (APART, {"convergence_threshold": 0.0}, 1, True),
        (conversation(("Jim", "alone")), None, 0, False),
        (ALIKE, {"anti_convergence_enabled": False}, 0, False),
    ],
)
def test_anti_convergence(given: Any, settings: Any, calls: int, fired: bool, mode: str) -> None:
    """The vocabulary is compared first; then one question, and a nudge for each in its own character."""
    config = None
    if settings is not None:
        config = GateConfig(**{"anti_convergence_enabled": True, **settings})
    judge = Says({"result": True})
    batch = anti_convergence([JIM, PAM], judge, config, nudges={"pam": "personal_story"})
    jim, pam = Speaker("a"), Speaker("b", name="pam")
    run(side_by_side(batch, jim, pam), given, mode=mode)
    assert judge.calls == calls
    assert ("weakest point" in jim.told()) is fired
    assert ("A calm salesman" in jim.told()) is fired
    assert ("happened to Pam" in pam.told()) is fired
    assert ("A shy painter" in pam.told()) is fired


def test_a_mean_of_equal_overlaps_is_that_overlap() -> None:
    """Three pairs of 0.7 each are not less than 0.7."""
    shared = " ".join(f"w{n}" for n in range(14))  # 14 of the 20 words of two of them
    said = [(name, f"{shared} {name}1 {name}2 {name}3") for name in ("Jim", "Pam", "Dwight")]
    judge = Says({"result": True})
    config = GateConfig(anti_convergence_enabled=True, convergence_threshold=0.7)
    batch = anti_convergence([JIM, PAM, DWIGHT], judge, config)
    advised(batch, Speaker("a")).invoke(conversation(*said))
    assert judge.calls == 1


@MODES
@pytest.mark.filterwarnings("ignore:.*it has no intervention:arbiter.ArbiterWarning")
@pytest.mark.parametrize(
    ("own", "settings", "calls"),
    [
        (6, None, 0),
        (7, None, 1),
        (3, {"variety_message_threshold": 3}, 1),
        (7, {"variety_intervention_enabled": False}, 0),
    ],
)
def test_variety(own: int, settings: Any, calls: int, mode: str) -> None:
    """It counts the agent's own messages, not those of the channel."""
    config = None
    if settings is not None:
        config = GateConfig(**{"variety_intervention_enabled": True, **settings})
    judge = Says(scores(textual=True))
    batch = variety([JIM, PAM], judge, config)
    others = [HumanMessage("Well?", name="Pam")] * 3
    jim = Speaker("a")
    run(advised(batch, jim), {"messages": [*others, *hello(*["again"] * own)["messages"]]}, mode=mode)
    assert judge.calls == calls
    assert ("completely new one" in jim.told()) is bool(calls)
    if calls:
        assert "Jim has brought up no entirely new idea in more than its last 5" in prompt_of(judge.asked[0])


@pytest.mark.parametrize("stale", [1, 5, 10])
def test_variety_shows_the_judge_all_messages_that_it_asks_about(stale: int) -> None:
    """In a group of five with a host, more than ten messages of an agent are eleven rounds."""
    team = [JIM, PAM, DWIGHT, Persona("Erin", "A cheerful receptionist."), Persona("Kevin", "Likes food.")]
    said: list[Any] = []
    for number in range(30):
        said += [HumanMessage("Go on.", name="Host")]
        said += [AIMessage(f"{one.name}-{number}!", name=one.name) for one in team]
    judge = Says({"result": False})
    variety(team, judge, stale_after=stale).evaluate(said, step=1)
    for persona, request in zip(team, judge.asked, strict=True):
        assert all(f"{persona.name}-{number}!" in prompt_of(request) for number in range(29 - stale, 30))
    claim = "more than its last message:" if stale == 1 else f"more than its last {stale} messages:"
    assert claim in judge.prompt()


@MODES
def test_a_newer_nudge_of_an_intervention_takes_the_place_of_one_that_waits(mode: str) -> None:
    """Pam, who was silent for ten rounds, gets a thought of each intervention, and not of each round."""
    rounds = iter(range(100))
    one = Intervention(PAM, agents=[JIM]).set_functional_precondition(lambda t: True)
    one.set_effect(lambda targets: f"Idea {next(rounds)}.")
    other = Intervention(PAM, agents=[JIM]).set_functional_precondition(lambda t: True).set_effect("Sing.")

    def named(state: Any) -> str:
        return str(state["messages"][-1].name)

    pam = Speaker("a", name="pam")
    builder: Any = StateGraph(Chat).add_node("jim", Speaker("b")).add_node("pam", pam)
    builder.add_conditional_edges(START, named)
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(InterventionBatch([one, other]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    for name in [*["jim"] * 10, "pam"]:
        run(app, {"messages": [HumanMessage("Go on.", name=name)]}, thread("t"), mode=mode)
    assert pam.told().startswith(f"{HEADING}\n\nIdea 9.\n\nSing.\nGo on.")  # both act in the tenth round


@MODES
def test_a_nudge_for_somebody_who_is_no_agent_is_reported_once(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait for ever."""
    one = Intervention(JIM, agents=[PAM]).set_functional_precondition(lambda t: True)
    one.set_effect(lambda t: {"Jimm": "Sing.", "pam": "Dance."})
    app = advised(one, Speaker("a"))
    for _ in range(2):
        run(app, hello(), mode=mode)
    assert [record.getMessage() for record in caplog.records] == [
        "intervention 'intervention' nudges 'Jimm', which is not an agent. Agents: 'Jim', 'Pam'. Did you mean 'Jim'? "
        "(This is reported once.)"
    ]


@MODES
def test_a_condition_that_returns_none_is_reported_once(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may lack a `return`, and then never lets it fire; or it may be a search that finds nothing yet."""

    def searching(targets: list[Target]) -> Any:
        return next((True for event in targets[0].trajectory if "song" in event.text), None)

    one = Intervention(JIM).set_functional_precondition(searching).set_effect("Sing.")
    jim = Speaker("a")
    app = advised(one, jim)
    for text in ("Hello.", "Hi.", "A song!"):
        run(app, hello(text), mode=mode)
    assert [(each.functional, each.fired, each.failed) for each in one.log] == [
        (False, False, False),
        (False, False, False),
        (True, True, False),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "intervention 'intervention' has a functional precondition that returned None, which counts as False. "
        "(This is reported once.)"
    ]


def test_a_run_can_be_cancelled_while_a_judge_is_asked() -> None:
    """No agent acts after that, and the next run is evaluated anew."""
    entered = asyncio.Event()

    class Waits(Says):
        async def ajudge(self, request: Any) -> Any:
            entered.set()
            await asyncio.sleep(0.05)
            return self.judge(request)

    one = Intervention(JIM, judge=Waits({"result": True})).set_textual_precondition("x").set_effect("Sing.")
    jim = Speaker("a")
    app = advised(one, jim)

    async def story() -> None:
        first = asyncio.create_task(app.ainvoke(hello()))
        await entered.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert jim.calls == 0
        await app.ainvoke(hello())

    asyncio.run(story())
    assert "Sing." in jim.told()


# Evaluated by a node of one's own -------------------------------------------------------------------


def lonely(judge: Any, **known: Any) -> InterventionBatch:
    batch = InterventionBatch.create_for_each([JIM, PAM], judge=judge, **known)
    batch.set_textual_precondition("{{agent_name}} is alone")
    return batch.set_effect(lambda targets: f"Talk to somebody, {targets[0].agent}.")


SAID = [AIMessage("Hi", name="Jim"), AIMessage("Hello", name="Pam")]


@MODES
def test_batch_is_evaluated_once_for_each_step(mode: str) -> None:
    """Three agents that ask in turn are one step; the next step is evaluated over the longer conversation."""
    judge = Says(lambda request: {"result": "Jim is alone" in prompt_of(request)})
    batch = lonely(judge)

    def evaluate(said: Any, step: int, thread_id: str = "env-1") -> Any:
        if mode == "sync":
            return batch.evaluate(said, step=step, thread_id=thread_id)
        return asyncio.run(batch.aevaluate(said, step=step, thread_id=thread_id))

    for _ in range(3):
        assert evaluate(SAID, 1) == {"Jim": f"{HEADING}\n\nTalk to somebody, Jim."}
    assert judge.calls == 2
    evaluate([*SAID, AIMessage("Bye", name="Jim")], 2)
    assert judge.calls == 4
    assert "Bye" in judge.prompt()
    evaluate(SAID, 1, "env-2")
    assert [(one.step, one.thread_id, one.fired) for one in batch.log[-2:]] == [
        (1, "env-2", True),
        (1, "env-2", False),
    ]
    assert {(one.calls, one.token_usage and one.token_usage["input_tokens"]) for one in batch.log} == {
        (1, 10)
    }


def test_nudge_of_a_step_is_gone_in_the_next_unless_it_persists() -> None:
    for persist, second in ((False, {}), (True, {"Jim": f"{HEADING}\n\nSing."})):
        judge = Says(lambda request: {"result": "again" not in prompt_of(request)})
        one = Intervention(JIM, judge=judge, persist=persist).set_textual_precondition("alone")
        one.set_effect("Sing.")
        assert one.evaluate(SAID, step=1) == {"Jim": f"{HEADING}\n\nSing."}
        assert one.evaluate([*SAID, AIMessage("Hi again", name="Pam")], step=2) == second


@pytest.mark.lengthy
def test_nudges_of_ten_thousand_conversations_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Of more, the ones that have rested longest are dropped, and that is reported once."""
    one = Intervention(JIM, persist=True).set_functional_precondition(lambda t: not t[0].trajectory.events)
    one.set_effect("Sing.")
    for number in range(9_999):
        one.evaluate([], step=1, thread_id=str(number))
    assert one.evaluate(SAID, step=2, thread_id="0") == {"Jim": f"{HEADING}\n\nSing."}
    assert not caplog.records
    for number in range(9_999, 10_001):
        one.evaluate([], step=1, thread_id=str(number))
    assert "drops those of the conversations" in caplog.text
    assert len(caplog.records) == 1
    assert one.evaluate(SAID, step=3, thread_id="0") == {"Jim": f"{HEADING}\n\nSing."}
    assert one.evaluate(SAID, step=2, thread_id="1") == {}
    assert one.evaluate(SAID, step=2, thread_id="2") == {"Jim": f"{HEADING}\n\nSing."}


@pytest.mark.lengthy
def test_conversations_that_are_let_go_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbiter.personas._interventions._KEPT", 10)
    one = Intervention(JIM).set_functional_precondition(bool).set_effect("Sing.")

    def used_after(first: int, last: int) -> int:
        for number in range(first, last):
            one.evaluate([], step=1, thread_id=str(number))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = used_after(0, 1_000)
        assert used_after(1_000, 2_000) - before < 50_000  # an entry for each takes 300,000 bytes
    finally:
        tracemalloc.stop()


@MODES
def test_step_that_fails_is_evaluated_again(mode: str) -> None:
    batch = lonely(MockJudge({}))
    for _ in range(2):
        with pytest.raises(RecordingError):
            if mode == "sync":
                batch.evaluate(SAID, step=1)
            else:
                asyncio.run(batch.aevaluate(SAID, step=1))
    with pytest.raises(RegistrationError, match="effect"):
        Intervention(JIM).evaluate(SAID, step=1)


@MODES
def test_judges_of_gates_and_interventions_are_counted_in_purses_of_their_own(mode: str) -> None:
    """A meter in the context of a run gets each call; those of evaluators are no part of it."""
    seen: list[tuple[str, int | None]] = []
    judge = Says(lambda request: {"result": True} if request.purpose == "check" else scores(p=9)(request))
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(
        Intervention(JIM, judge=judge).set_textual_precondition("alone").set_effect("Sing.")
    )
    config = GateConfig(gate_adherence_enabled=True)
    claims = PropositionSet("adherence", [Proposition("p", "{{agent_name}} is calm")])
    arbiter_os.add_correction_gate(
        PersonaGate(judge, [JIM], config, propositions={"adherence": claims}, target_nodes=["jim"])
    )
    arbiter_os.add_evaluator(AdherenceEvaluator(persona=JIM, judge=judge, propositions=claims))
    app = arbiter_os.govern(chat(Speaker("Hi")))

    def meter(purse: str, reply: Any) -> None:
        seen.append((purse, None if reply is None else reply.usage["input_tokens"]))

    token = usage_meter.set(meter)
    try:
        run(app, hello("Own."), mode=mode)
    finally:
        usage_meter.reset(token)
    assert arbiter_os.drain(60)
    assert seen == [("intervention", 10), ("correction", 10)]
    assert judge.calls == 3


@pytest.mark.parametrize("own", [{"target_nodes": ["jim"]}, {"round_of": id}])
def test_a_setting_that_a_batch_replaces_is_warned_of(own: Any) -> None:
    one = Intervention(JIM, name="sing", **own)
    with pytest.warns(
        ArbiterWarning, match=f"{next(iter(own))} of intervention 'sing' has no effect in a batch"
    ):
        InterventionBatch([one])
    assert InterventionBatch([one], **own).interventions == [one]


@MODES
@pytest.mark.parametrize("given", ["Hi", {"messages": []}, None, 3])
def test_a_world_of_its_own_passes_a_list_of_messages(given: Any, mode: str) -> None:
    """The characters of a text, or the keys of a state, would be judged as a conversation."""
    one = Intervention(JIM).set_functional_precondition(bool).set_effect("Sing.")
    with pytest.raises(ConfigurationError, match=r"expected a list of messages, got .* state\['messages'\]"):
        drive(mode, one, "evaluate", given, step=1)
    assert drive(mode, one, "evaluate", AIMessage("Hi", name="Jim"), step=1).keys() == {"Jim"}
