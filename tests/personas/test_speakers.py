"""Speakers in a node are never guessed: messages belong to their writers, and unknown ones are reported as
such."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel

from arbiter import ArbiterOS
from arbiter.errors import ConfigurationError
from arbiter.history import HistoryItem
from arbiter.personas import (
    AdherenceEvaluator,
    Cast,
    FluencyEvaluator,
    FluencyScorer,
    GateConfig,
    Intervention,
    InterventionBatch,
    Persona,
    PersonaGate,
    Proposition,
    PropositionSet,
    RepetitionSuppressor,
    SelfConsistencyEvaluator,
    Target,
    Trajectory,
    anti_convergence,
    load_propositions,
    variety,
)
from tests.personas.gate_support import PAM, Speaker, chat, enabled, gated, hello, scored, texts
from tests.personas.personas_support import JIM, Says, prompt_of, scores
from tests.scripted import Scripted
from tests.support import MODES, run

SAME = "I like paper a lot indeed"


# The set-up ---------------------------------------------------------------------------------------

OF_AGENTS: dict[str, Callable[[Any], Any]] = {
    "gate": lambda agents: PersonaGate(Says(None), agents, enabled("fluency")).cast,
    "intervention": lambda agents: Intervention(agents).cast,
    "batch": lambda agents: InterventionBatch.create_for_each(agents).cast,
    "variety": lambda agents: variety(agents, Says(None)).cast,
    "anti_convergence": lambda agents: anti_convergence(agents, Says(None)).cast,
    "suppressor": lambda agents: RepetitionSuppressor(agents).cast,
}
OF_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "gate": lambda config: PersonaGate(Says(None), [JIM], config),
    "variety": lambda config: variety([JIM], Says(None), config),
    "anti_convergence": lambda config: anti_convergence([JIM], Says(None), config),
    "suppressor": lambda config: RepetitionSuppressor([JIM], config),
}


@pytest.mark.parametrize("kind", OF_AGENTS)
@pytest.mark.parametrize("wrong", [None, 5, [5], {"name": "Jim", "description": "calm"}])
def test_what_is_no_agent_is_refused(kind: str, wrong: Any) -> None:
    """The keys of a mapping are no agents, either."""
    with pytest.raises(ConfigurationError, match="expected agents, each a Persona or a name, got"):
        OF_AGENTS[kind](wrong)


@pytest.mark.parametrize("kind", OF_AGENTS)
@pytest.mark.parametrize("agent", ["Jim", JIM])
def test_a_single_agent_needs_no_list(kind: str, agent: Any) -> None:
    """Its letters are no agents."""
    assert list(OF_AGENTS[kind](agent).personas) == ["Jim"]


@pytest.mark.parametrize("kind", OF_SETTINGS)
@pytest.mark.parametrize("wrong", [5, [GateConfig()], {"Jim": None}, {"Jim": {}}, {5: GateConfig()}])
def test_what_is_no_config_is_refused(kind: str, wrong: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="expected a GateConfig, or a mapping with one for each agent"
    ):
        OF_SETTINGS[kind](wrong)


def test_what_is_no_function_is_refused() -> None:
    wrong: Any = "jim"
    for make in (
        lambda: PersonaGate(Says(None), [JIM], enabled("fluency"), agent_of=wrong),
        lambda: Intervention(JIM, agent_of=wrong),
        lambda: RepetitionSuppressor(JIM, agent_of=wrong),
        lambda: variety(JIM, Says(None), round_of=wrong),
    ):
        with pytest.raises(
            ConfigurationError, match=r"(agent|round)_of: expected a function of a node run, got 'jim'"
        ):
            make()


def test_a_wrong_setting_is_refused_where_it_is_made() -> None:
    wrong: Any = None
    for make, problem in (
        (lambda: anti_convergence(JIM, Says(None), nudges=wrong), "nudges: expected a kind of nudge"),
        (
            lambda: variety(JIM, Says(None), nudges=cast(Any, ["new_ideas"])),
            "nudges: expected a kind of nudge",
        ),
        (lambda: Intervention(JIM).set_textual_precondition(wrong), "claim: expected a claim, got None"),
        (
            lambda: Intervention(JIM).set_propositional_precondition(cast(Any, "x")),
            "proposition: expected a Proposition, got 'x'",
        ),
        (lambda: Intervention(JIM).set_effect(" "), "effect: expected a text or a function, got ' '"),
        (
            lambda: InterventionBatch(cast(Any, [JIM])),
            "batch 'interventions': expected interventions, got Persona",
        ),
        (lambda: InterventionBatch(wrong), "expected interventions, got None"),
        (
            lambda: PersonaGate(Says(None), JIM, speaking_tools=wrong),
            "speaking_tools: expected names of tools",
        ),
        (lambda: FluencyScorer(Says(None), agent=cast(Any, JIM)), "agent: expected a name, got Persona"),
        (
            lambda: load_propositions(None, "adherence", cast(Any, JIM)),
            "expected the name of a folder or file",
        ),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            make()
    one: Any = Intervention(JIM).set_effect("Wake up.")
    assert [*InterventionBatch(one)] == [one]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"name": " "}, "name: expected a name, got ' '"),
        ({"fields": ["old"]}, r"fields: expected a mapping, got \['old'\]"),
    ],
)
def test_a_persona_has_a_name_and_a_mapping_of_traits(wrong: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        dataclasses.replace(JIM, **wrong)
    with pytest.raises(ConfigurationError, match="expected a persona's YAML file, or one that ships"):
        Persona.of("")


def test_propositions_of_an_unknown_dimension_are_refused() -> None:
    claims = PropositionSet("adherence", [Proposition("p", "x")])
    for wrong, problem in (({"adherense": claims}, "Did you mean 'adherence'"), ({"fluency": 5}, "got 5")):
        given: Any = wrong
        with pytest.raises(ConfigurationError, match=problem):
            PersonaGate(Says(None), [JIM], enabled("fluency"), propositions=given)


# Agents are never guessed -------------------------------------------------------------------------


@MODES
def test_a_nudge_is_for_its_agent_and_not_for_the_first_to_act(mode: str) -> None:
    """Also where the graph has nodes that no persona is given for."""
    one = (
        Intervention(JIM)
        .set_functional_precondition(lambda targets: len(targets[0].trajectory) >= 1)
        .set_effect("Sing.")
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(one)
    pam, jim = Speaker("a", name="pam"), Speaker("b")
    run(arbiter_os.govern(chat(pam, jim)), hello(), mode=mode)
    assert "Sing." not in pam.told()
    assert "Sing." in jim.told()


@MODES
def test_only_the_agent_that_repeats_itself_gets_advice(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(RepetitionSuppressor([JIM]))
    pam, jim = Speaker("a", name="pam"), Speaker("b")
    run(arbiter_os.govern(chat(pam, jim)), hello(SAME, SAME), mode=mode)
    assert "repeating yourself" not in pam.told()
    assert "repeating yourself" in jim.told()


@MODES
@pytest.mark.parametrize("personas", [[JIM], [JIM, PAM]])
def test_a_draft_of_an_unknown_agent_passes_and_its_action_records_that(personas: Any, mode: str) -> None:
    """No call is made for it, and it is no action that passed."""
    judge = scored({"Fine": 2})
    config = enabled("adherence", "fluency", "similarity")
    app, gate, _ = gated(judge, config, Speaker("Fine", name="speak"), personas=personas)
    assert texts(run(app, hello(), mode=mode))[-1] == "Fine"
    (action,) = gate.actions
    assert (action.agent, action.outcome, action.calls, judge.calls) == (None, "timeout_pass_through", 0, 0)
    assert {check.status for check in action.dimension_scores.values()} == {"error"}
    assert "not known who speaks in node 'speak'" in action.problem
    assert action.to_dict()["problem"] == action.problem


def test_similarity_alone_is_not_checked_for_an_unknown_agent() -> None:
    app, gate, _ = gated(scored({}), enabled("similarity"), Speaker("Fine", name="speak"))
    app.invoke(hello())
    assert gate.actions[0].outcome == "timeout_pass_through"


@MODES
def test_a_single_agent_is_bound_to_nodes(mode: str) -> None:
    """By `target_nodes`, for the gate, interventions and repetition alike."""
    judge = scored({"one": 2})
    speak = Speaker("one", "two", name="speak")
    gate = PersonaGate(judge, [JIM], enabled("adherence"), target_nodes=["speak"])
    nudge = Intervention(JIM, target_nodes="speak")
    nudge.set_functional_precondition(lambda t: True).set_effect("Sing.")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.add_advisor(nudge)
    arbiter_os.add_advisor(RepetitionSuppressor([JIM], target_nodes=["speak"]))
    run(arbiter_os.govern(chat(speak)), hello(SAME, SAME), mode=mode)
    assert [(action.agent, action.outcome) for action in gate.actions] == [("Jim", "passed_after_retry")]
    assert "Sing." in speak.told()
    assert "repeating yourself" in speak.told()


def test_a_node_of_its_own_name_is_the_only_one() -> None:
    """An intervention may have to be evaluated in the nodes of others, too; they are not its agent's."""
    judge = scored({"one": 2})
    app, gate, _ = gated(
        judge,
        enabled("fluency"),
        Speaker("one", name="pam"),
        Speaker("one", "two"),
        target_nodes=["pam", "jim"],
    )
    app.invoke(hello())
    assert [action.agent for action in gate.actions] == [None, "Jim"]


@MODES
def test_without_personas_each_node_is_an_agent(mode: str) -> None:
    """Dimensions that need no persona are judged."""
    judge = scored({"one": 2})
    arbiter_os = ArbiterOS()
    gate = PersonaGate(judge, config=enabled("fluency"))
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(chat(Speaker("one", "two")))
    assert texts(run(app, hello(), mode=mode))[-1] == "two"
    (action,) = gate.actions
    assert (action.agent, action.outcome) == ("jim", "passed_after_retry")
    assert action.attempts[0].checks["fluency"].score == 2


@pytest.mark.parametrize("how", ["name", "agent_of"])
def test_adherence_of_an_agent_without_a_persona_is_not_judged(how: str) -> None:
    judge = scored({"Fine": 2})

    def misspelt(item: HistoryItem) -> str:
        return "Jmi"

    known: dict[str, Any] = {"agent_of": misspelt} if how == "agent_of" else {}

    def speak(state: Any) -> Any:
        return {"messages": [AIMessage("Fine", name=None if known else "Zed")]}

    app, gate, _ = gated(judge, enabled("adherence"), speak, personas=[JIM, PAM], **known)
    app.invoke(hello())
    (action,) = gate.actions
    assert (action.agent, action.outcome) == ("Jmi" if known else "Zed", "timeout_pass_through")
    assert judge.calls == 0


def test_a_draft_that_is_written_again_stays_its_agents() -> None:
    """A message that has lost its name on the way does not get around the gate."""
    calls: list[Any] = []

    def speak(state: Any) -> Any:
        calls.append(state)
        return {"messages": [AIMessage("one", name="Jim" if len(calls) == 1 else None)]}

    app, gate, _ = gated(scored({"one": 2}), enabled("adherence"), speak)
    app.invoke(hello())
    assert [(action.agent, action.outcome) for action in gate.actions] == [("Jim", "forced_through")]


# Unnamed messages ---------------------------------------------------------------------------------

BLUE = "we should paint the house blue"


def unnamed(name: str, said: Any = BLUE) -> Any:
    def speak(state: Any) -> Any:
        return {"messages": [AIMessage(said)]}

    speak.__name__ = name
    return speak


@MODES
@pytest.mark.parametrize("personas", [[JIM, PAM], [JIM], []])
def test_an_unnamed_message_is_that_of_the_node_that_wrote_it(personas: Any, mode: str) -> None:
    """Pam's is not taken for Jim's: not for what he repeats, nor for what he has to be consistent with."""
    judge = scored({})
    config = enabled("similarity", "consistency", "fluency", max_correction_attempts=0)
    gate = PersonaGate(judge, personas, config)
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    run(arbiter_os.govern(chat(unnamed("pam"), unnamed("jim"))), hello(), mode=mode)
    jim = gate.actions[-1]
    assert (jim.outcome, jim.similarity_score) == ("passed", 0.0)
    assert jim.dimension_scores["consistency"].status == "no_evidence"
    who = "Pam" if PAM in personas else "pam"
    assert f" from {who}: [{BLUE}]" in judge.prompt()
    assert f"acts: [{BLUE}]" not in judge.prompt()


def test_an_unnamed_message_of_its_own_is_an_agents_own() -> None:
    def without_digit(item: HistoryItem) -> str:
        return item.node.rstrip("2")

    app, gate, _ = gated(
        scored({}),
        enabled("similarity", max_correction_attempts=0),
        unnamed("pam", "Yo"),
        unnamed("jim"),
        unnamed("jim2"),
        personas=[JIM, PAM],
        agent_of=without_digit,
    )
    app.invoke(hello())
    assert [(a.agent, a.outcome) for a in gate.actions] == [
        ("Pam", "passed"),
        ("Jim", "passed"),
        ("Jim", "forced_through"),
    ]


@pytest.mark.parametrize(("personas", "own"), [([JIM], True), ([JIM, PAM], False)])
def test_a_message_of_unseen_origin_belongs_to_a_single_agent_or_to_none(personas: Any, own: bool) -> None:
    """A server that is handed the conversation with each request has no names in it."""
    config = enabled("similarity", max_correction_attempts=0)
    app, gate, _ = gated(scored({}), config, unnamed("jim"), personas=personas)
    app.invoke({"messages": [HumanMessage("Hello."), AIMessage(BLUE)]})
    assert gate.actions[0].outcome == ("forced_through" if own else "passed")


def test_texts_are_those_of_the_node_that_wrote_them() -> None:
    class Log(TypedDict):
        said: Annotated[list[str], operator.add]

    def speak(state: Any) -> Any:
        return {"said": [BLUE]}

    builder: Any = StateGraph(Log)
    builder.add_node("pam", speak)
    builder.add_node("jim", speak)
    builder.add_edge(START, "pam")
    builder.add_edge("pam", "jim")
    gate = PersonaGate(scored({}), [JIM, PAM], enabled("similarity", max_correction_attempts=0), key="said")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.govern(builder.compile()).invoke({"said": []})
    assert [(action.agent, action.outcome) for action in gate.actions] == [
        ("Pam", "passed"),
        ("Jim", "passed"),
    ]


def test_an_evaluator_does_not_take_anothers_unnamed_message_for_the_agents() -> None:
    judge = Says(scores())
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(SelfConsistencyEvaluator(judge=judge, persona=JIM, target_nodes=["jim"]))
    arbiter_os.add_evaluator(FluencyEvaluator(judge=judge, target_nodes=["jim"]))
    arbiter_os.govern(chat(unnamed("pam"), unnamed("jim", "No."))).invoke(hello())
    item = arbiter_os.history.entries[-1][-1]
    item.evaluation_results.get("fluency")
    assert "no earlier message" in item.evaluation_errors["self_consistency"]
    assert all(BLUE not in prompt_of(request) for request in judge.asked)


# Speakers cannot be forged ------------------------------------------------------------------------


@pytest.mark.parametrize("message", [HumanMessage, ToolMessage])
def test_the_content_of_a_text_cannot_change_its_speaker(message: Any) -> None:
    """An unnamed message that says "Pam: I quit" is another line than Pam's own."""
    fields = {"tool_call_id": "1"} if message is ToolMessage else {}
    cast = Cast([JIM, PAM])

    def line(one: Any) -> str:
        return cast.trajectory([one], "Jim").seen_by("Jim").text()

    assert line(AIMessage("I quit", name="Pam")) == "--> Jim from Pam: [I quit]"
    assert line(message("Pam: I quit", **fields)) == "--> Jim: [Pam: I quit]"
    assert line(message("I quit", **fields)) == "--> Jim: [I quit]"


def test_a_name_cannot_close_a_bracket_that_it_did_not_open() -> None:
    said = Trajectory.from_messages([HumanMessage("b", name="Jim acts: [I quit] Eve")])
    assert said.text() == "Jim acts: (I quit) Eve acts: [b]"


# Drafts -------------------------------------------------------------------------------------------

SHAPES: dict[str, Callable[[str], Any]] = {
    "dict": lambda text: {"role": "assistant", "content": text},
    "pair": lambda text: ("ai", text),
    "message": lambda text: AIMessage(text),
    "list": lambda text: [{"role": "assistant", "content": text}],
    "named": lambda text: [HumanMessage(text, name="Jim")],
    "by id": lambda text: HumanMessage(text, name="jim"),
}


@MODES
@pytest.mark.parametrize("how", SHAPES)
def test_every_form_of_message_that_langgraph_accepts_is_judged(how: str, mode: str) -> None:
    judge = scored({"one": 2})
    drafts = iter(["one", "two"])

    def jim(state: Any) -> Any:
        return {"messages": SHAPES[how](next(drafts))}

    app, gate, _ = gated(judge, enabled("adherence"), jim)
    assert texts(run(app, hello(), mode=mode)) == ["Hello.", "two"]
    assert [(action.outcome, action.original_text) for action in gate.actions] == [
        ("passed_after_retry", "one")
    ]


@pytest.mark.parametrize("how", ["dict", "pair", "message", "list"])
def test_a_rewritten_message_is_a_message(how: str) -> None:
    def jim(state: Any) -> Any:
        return {"messages": SHAPES[how]("one")}

    config = enabled("adherence", enable_direct_correction=True, enable_regeneration=False)
    app, _, _ = gated(scored({"one": 2}), config, jim, rewriter=Scripted(answers=["two"]))
    message = app.invoke(hello())["messages"][-1]
    assert (message.type, message.text) == ("ai", "two")


def test_messages_of_others_in_an_agents_node_are_no_drafts() -> None:
    def jim(state: Any) -> Any:
        return {"messages": [HumanMessage("one", name="Host"), HumanMessage("one")]}

    judge = scored({"one": 2})
    app, gate, _ = gated(judge, enabled("adherence"), jim)
    app.invoke(hello())
    assert (judge.calls, list(gate.actions)) == (0, [])


def test_a_text_that_is_said_again_is_a_draft() -> None:
    """The text that a key had before is not a part of what the node says now."""

    class Talk(TypedDict):
        reply: str

    def jim(state: Any) -> Any:
        return {"reply": "one two"}

    builder: Any = StateGraph(Talk)
    builder.add_node("jim", jim)
    builder.add_edge(START, "jim")
    gate = PersonaGate(scored({}), [JIM], enabled("similarity", max_correction_attempts=0), key="reply")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.govern(builder.compile()).invoke({"reply": "one two"})
    assert gate.actions[0].outcome == "forced_through"


CALL: Any = {"name": "look", "args": {}, "id": "1", "type": "tool_call"}


@MODES
@pytest.mark.parametrize(("said", "left"), [("", ""), ("DONE", ""), ("Let me look.", "Let me look.")])
def test_a_call_of_a_tool_instead_of_a_new_draft_is_committed(said: str, left: str, mode: str) -> None:
    drafts = iter([AIMessage("one"), AIMessage(said, tool_calls=[CALL])])

    def jim(state: Any) -> Any:
        return {"messages": [next(drafts)]}

    app, gate, _ = gated(scored({"one": 2}), enabled("adherence"), jim)
    message = run(app, hello(), mode=mode)["messages"][-1]
    assert (message.text, [call["name"] for call in message.tool_calls]) == (left, ["look"])
    assert [(a.outcome, len(a.attempts), a.corrected_text) for a in gate.actions] == [
        ("passed_after_retry", 2, left)
    ]


# The place of feedback and advice -----------------------------------------------------------------


class Room(TypedDict, total=False):
    chat: Annotated[list[AnyMessage], add_messages]
    messages: list[str]


@MODES
@pytest.mark.parametrize("given", [[], [HumanMessage("Hello.")]])
def test_feedback_reaches_a_chat_node_where_its_messages_are(given: Any, mode: str) -> None:
    seen: list[list[Any]] = []

    def jim(state: Any) -> Any:
        seen.append(list(state["chat"]))
        return {"chat": [*state["chat"], AIMessage("one" if len(seen) == 1 else "two")]}

    builder: Any = StateGraph(Room)
    builder.add_node("jim", jim)
    builder.add_edge(START, "jim")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(PersonaGate(scored({"one": 2}), [JIM], enabled("adherence"), key="chat"))
    output = run(arbiter_os.govern(builder.compile()), {"chat": given}, mode=mode)
    assert "adherence: 2" in str(seen[1][-1].text)
    assert isinstance(seen[1][-1], HumanMessage)
    assert [str(message.text) for message in output["chat"]] == [*(m.text for m in given), "two"]


@MODES
def test_advice_reaches_a_chat_node_where_its_messages_are(mode: str) -> None:
    seen: list[list[Any]] = []

    def jim(state: Any) -> Any:
        seen.append(list(state["chat"]))
        return {"chat": [AIMessage("x")]}

    builder: Any = StateGraph(Room)
    builder.add_node("jim", jim)
    builder.add_edge(START, "jim")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(
        Intervention(JIM, key="chat").set_functional_precondition(lambda t: True).set_effect("Sing.")
    )
    arbiter_os.add_advisor(RepetitionSuppressor([JIM], key="chat"))
    said = [AIMessage(SAME, name="Jim"), AIMessage(SAME, name="Jim")]
    run(arbiter_os.govern(builder.compile()), {"chat": said}, mode=mode)
    assert [type(message) for message in seen[0]] == [SystemMessage, SystemMessage, AIMessage, AIMessage]


class Model(BaseModel):
    draft: str = ""


class Told(Model):
    feedback: str = ""


@dataclass
class Plain:
    draft: str = ""


@pytest.mark.parametrize("schema", [Model, Told, Plain])
def test_feedback_without_a_place_in_the_input_is_an_error_of_the_gate(schema: Any) -> None:
    seen: list[Any] = []

    def jim(state: Any) -> Any:
        seen.append(state)
        return {"draft": "one" if len(seen) == 1 else "two"}

    builder: Any = StateGraph(schema)
    builder.add_node("jim", jim)
    builder.add_edge(START, "jim")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(PersonaGate(scored({"one": 2}), [JIM], enabled("adherence"), key="draft"))
    arbiter_os.govern(builder.compile()).invoke({})
    errors = arbiter_os.history.entries[-1][-1].errors
    if schema is Told:
        assert "adherence: 2" in seen[1].feedback
        assert not errors
    else:
        assert "feedback" in errors["gate persona"]


class Models(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []


@dataclass
class Plains:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list[AnyMessage])


@pytest.mark.parametrize("schema", [Models, Plains])
def test_feedback_does_not_come_back_in_a_model(schema: Any) -> None:
    """A node may return the whole state that it was given, with its transient message."""
    drafts = iter(["one", "two"])

    def jim(state: Any) -> Any:
        return schema(messages=[*state.messages, AIMessage(next(drafts))])

    builder: Any = StateGraph(schema)
    builder.add_node("jim", jim)
    builder.add_edge(START, "jim")
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(PersonaGate(scored({"one": 2}), [JIM], enabled("adherence")))
    assert texts(arbiter_os.govern(builder.compile()).invoke(hello())) == ["Hello.", "two"]


# Digests ------------------------------------------------------------------------------------------


@MODES
def test_a_conversation_is_judged_although_the_history_keeps_digests(mode: str) -> None:
    judge = Says(scores())
    seen: list[Target] = []

    def look(targets: list[Target]) -> bool:
        seen.extend(targets)
        return False

    arbiter_os = ArbiterOS(snapshot="digest")
    gate = PersonaGate(judge, [JIM], GateConfig(gate_similarity_enabled=True, max_correction_attempts=0))
    arbiter_os.add_correction_gate(gate)
    arbiter_os.add_advisor(Intervention(JIM).set_functional_precondition(look).set_effect("x"))
    arbiter_os.add_advisor(RepetitionSuppressor([JIM]))
    arbiter_os.add_evaluator(AdherenceEvaluator(judge=Says(scores()), persona=JIM))
    run(arbiter_os.govern(chat(Speaker("x"))), hello(SAME), mode=mode)
    assert gate.actions[0].similarity_score is not None
    assert seen
    assert judge.calls == 0
    item = arbiter_os.history.item
    assert not item.errors
    assert item.evaluation_results["adherence"].score is not None
    assert len(item.input_state["messages"]) == 32


def test_a_text_that_looks_like_a_digest_is_a_text() -> None:
    app, gate, _ = gated(
        scored({"f" * 32: 2}), enabled("fluency", max_correction_attempts=0), Speaker("f" * 32)
    )
    app.invoke(hello())
    assert gate.actions[0].outcome == "forced_through"
