"""Each dimension as an evaluator of a governed graph: in the record, in a router's hands, in a pack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from typing_extensions import TypedDict

from arbiter import ArbiterOS, EvaluationRouter, HistoryItem, NodeEvaluator
from arbiter._constitution.kinds import KINDS, parameters_of, takes_model
from arbiter._constitution.loading import load_constitution
from arbiter.errors import PackError, ParameterError
from arbiter.evaluators import TextSimilarityEvaluator
from arbiter.instructions import REFLECT, RESPOND
from arbiter.personas import (
    AdherenceEvaluator,
    ChatJudge,
    ConvergenceEvaluator,
    FluencyEvaluator,
    IdeasQuantityEvaluator,
    MockJudge,
    Persona,
    Proposition,
    PropositionSet,
    RecordingJudge,
    SelfConsistencyEvaluator,
)
from tests.personas.personas_support import JIM, Says, prompt_of, scores
from tests.scripted import Scripted
from tests.support import MODES, run, thread


class Text(TypedDict, total=False):
    text: Any


def speaking(output: Any, schema: Any = MessagesState) -> Any:
    """A graph whose one node says that."""
    builder = StateGraph(schema)
    builder.add_node("speak", lambda state: output)
    builder.add_edge(START, "speak")
    return builder.compile()


def judged(
    evaluator: Any, output: Any, *, before: Any = (), schema: Any = MessagesState, mode: str = "sync"
) -> HistoryItem:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    app = arbiter_os.govern(speaking(output, schema), instructions={"speak": RESPOND})
    run(app, {"messages": list(before)} if schema is MessagesState else before, mode=mode)
    assert arbiter_os.drain(60)
    return arbiter_os.history.entries[-1][-1]


def says(text: str, name: str | None = None) -> dict[str, Any]:
    return {"messages": [AIMessage(text, name=name)]}


# The result ---------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("raw", range(10))
def test_the_score_is_a_ninth_of_the_raw_one(mode: str, raw: int) -> None:
    """And passes from the limit on, the limit included."""
    every = Says(
        lambda request: {
            "judgements": [
                {"id": id, "score": 9 - raw if id == "generic-assistant" else raw}
                for id in request.propositions
            ]
        }
    )
    item = judged(AdherenceEvaluator(persona=JIM, judge=every, at_least=5), says("Hi"), mode=mode)
    result = item.evaluation_results["adherence"]
    assert result.metadata["raw"] == pytest.approx(raw)
    assert result.score == pytest.approx(raw / 9)
    assert result.passed == (raw >= 5)


def test_the_feedback_has_problems_and_recommendations() -> None:
    judge = Says(scores(**{"speaks-in-character": 2, "generic-assistant": 0}))
    item = judged(AdherenceEvaluator(persona=JIM, judge=judge, propositions=None), says("Hi"))
    result = item.evaluation_results["adherence"]
    assert result.feedback.startswith("adherence 6 (✗ at_least=7)")
    assert "speaks-in-character 2" in result.feedback
    assert "Recommended: Read the persona again and say the same thing the way Jim would" in result.feedback
    assert "motives-from-persona" not in result.feedback
    assert result.metadata["propositions"]["generic-assistant"] == 9
    assert result.metadata["calls"] == 1


# The judged messages ------------------------------------------------------------------------------


def test_adherence_judges_the_messages_of_this_node() -> None:
    judge = Says(scores())
    before = [HumanMessage("Hello"), AIMessage("old words", name="Jim")]
    judged(AdherenceEvaluator(persona=JIM, judge=judge), says("new words"), before=before)
    assert judge.calls == 1
    assert "> Jim acts: [new words]" in judge.prompt()
    assert "old words" not in judge.prompt()


def test_a_message_under_the_personas_id_is_its_own() -> None:
    judge = Says(scores())
    judged(AdherenceEvaluator(persona=JIM, judge=judge), says("Hi", "jim"))
    assert "> Jim acts: [Hi]" in judge.prompt()


def test_a_node_that_returns_the_whole_conversation_said_the_end_of_it() -> None:
    judge = Says(scores())
    before = [HumanMessage("Hello", id="1"), AIMessage("old words", id="2")]
    output = {"messages": [*before, AIMessage("new words", id="3")]}
    judged(AdherenceEvaluator(persona=JIM, judge=judge), output, before=before)
    assert judge.calls == 1
    assert "old words" not in judge.prompt()


@pytest.mark.parametrize(
    "output", ["Hi there", ["Hi there"], [("ai", "Hi there")], [{"role": "ai", "content": "Hi there"}]]
)
def test_messages_may_be_texts_or_any_form_that_langchain_accepts(output: Any) -> None:
    judge = Says(scores())
    evaluator = AdherenceEvaluator(persona=JIM, judge=judge, key="text")
    item = judged(evaluator, {"text": output}, before={"text": None}, schema=Text)
    assert item.evaluation_results["adherence"].metadata["sample_size"] == 1
    assert "> Jim acts: [Hi there]" in judge.prompt()


def test_windows_of_adherence_show_the_nodes_input() -> None:
    judge = Says(scores())
    before = [AIMessage(f"m{number}", name="Pam") for number in range(5)]
    propositions = PropositionSet("adherence", [Proposition("p", "is calm", first_n=1, last_n=2)])
    evaluator = AdherenceEvaluator(persona=JIM, judge=judge, propositions=propositions)
    judged(evaluator, says("new words"), before=before)
    assert [line for line in judge.prompt().splitlines() if "[m" in line or "omitted" in line] == [
        "> --> Jim from Pam: [m0]",
        "> (3 events omitted)",
        "> --> Jim from Pam: [m4]",
    ]


UNFILLED = [Proposition("p", "{{agent_nam}} is calm"), Proposition("q", "is calm")]


@pytest.mark.parametrize(
    ("kind", "dimension"),
    [
        (AdherenceEvaluator, "adherence"),
        (SelfConsistencyEvaluator, "consistency"),
        (FluencyEvaluator, "fluency"),
        (ConvergenceEvaluator, "convergence"),
    ],
)
def test_an_evaluator_with_a_claim_that_cannot_be_filled_is_refused(kind: Any, dimension: str) -> None:
    known: dict[str, Any] = {"persona": JIM} if dimension == "adherence" else {}
    with pytest.raises(
        ParameterError, match=r"propositions: proposition 'p': there is no value for \{\{agent_nam"
    ):
        kind(judge=Says(scores()), propositions=PropositionSet(dimension, UNFILLED), **known)


@MODES
def test_self_consistency_compares_with_the_nodes_input(mode: str) -> None:
    judge = Says(scores())
    before = [HumanMessage("Hello"), AIMessage("one"), AIMessage("two"), AIMessage("else", name="Pam")]
    item = judged(SelfConsistencyEvaluator(judge=judge), says("three"), before=before, mode=mode)
    assert item.evaluation_results["self_consistency"].metadata["sample_size"] == 2
    assert all("acts: [three]" in prompt_of(request) for request in judge.asked)
    assert "else" not in "".join(
        line for r in judge.asked for line in prompt_of(r).splitlines() if line[0:1] == ">"
    )


def test_fluency_is_about_all_that_the_agent_said() -> None:
    judge = Says(scores())
    before = [AIMessage("we go to the beach", name="Jim"), AIMessage("no", name="Pam")]
    item = judged(FluencyEvaluator(judge=judge, persona=JIM), says("we go to the beach"), before=before)
    result = item.evaluation_results["fluency"]
    assert result.metadata["evidence"]["repetition_3"] == 1.0
    assert "Pam" not in judge.prompt()


def test_convergence_is_about_everybody() -> None:
    judge = Says(scores())
    before = [AIMessage("we sell paper", name="Jim")]
    item = judged(ConvergenceEvaluator(judge=judge), says("we sell boats", "Pam"), before=before)
    assert item.evaluation_results["convergence"].metadata["evidence"] == {"Jim / Pam": 0.5}


@pytest.mark.parametrize(
    ("ideas", "score", "passed"), [(0, 0.0, False), (2, 0.5, False), (4, 1.0, True), (14, 1.0, True)]
)
def test_ideas_are_counted_and_not_cut_off(ideas: int, score: float, passed: bool) -> None:
    judge = Says({"ideas": [str(number) for number in range(ideas)]})
    result = judged(IdeasQuantityEvaluator(judge=judge, at_least=4), says("Hi")).evaluation_results[
        "ideas_quantity"
    ]
    assert (result.metadata["raw"], result.score, result.passed) == (ideas, score, passed)


# Abstentions --------------------------------------------------------------------------------------

ABSTAINS: dict[str, tuple[Callable[[Any], NodeEvaluator], Any, str]] = {
    "nothing said": (lambda judge: AdherenceEvaluator(persona=JIM, judge=judge), {"messages": []}, "said nothing"),
    "another speaker": (lambda judge: AdherenceEvaluator(persona=JIM, judge=judge), says("Hi", "Pam"), "and not Jim"),
    "no persona": (lambda judge: FluencyEvaluator(judge=judge), says("Hi", "Pam"), "the persona of Pam"),
    "no history": (lambda judge: SelfConsistencyEvaluator(judge=judge), says("Hi"), "no earlier message"),
    "a single speaker": (lambda judge: ConvergenceEvaluator(judge=judge), says("Hi"), "only 'assistant' speaks"),
    "another key": (lambda judge: FluencyEvaluator(judge=judge, key="text"), says("Hi"), "said nothing at 'text'"),
}  # fmt: skip


@MODES
@pytest.mark.parametrize("case", ABSTAINS)
def test_an_unjudgeable_run_is_an_error_and_no_score(mode: str, case: str) -> None:
    make, output, why = ABSTAINS[case]
    judge = Says(scores())
    item = judged(make(judge), output, mode=mode)
    assert not dict(item.evaluation_results)
    [error] = item.evaluation_errors.values()
    assert "abstained" in error
    assert why in error
    assert judge.calls == 0


@MODES
def test_a_judge_that_fails_gives_no_score_and_does_not_disturb_the_run(mode: str) -> None:
    item = judged(AdherenceEvaluator(persona=JIM, judge=Scripted(answers=["so so"])), says("Hi"), mode=mode)
    assert item.status == "completed"
    assert "abstained" in item.evaluation_errors["adherence"]


def test_invalid_messages_are_reported() -> None:
    item = judged(
        FluencyEvaluator(judge=Says(1), key="text"), {"text": [3.5]}, before={"text": None}, schema=Text
    )
    assert "holds no messages" in item.evaluation_errors["fluency"]


# In a graph ---------------------------------------------------------------------------------------


def drifting(checkpointer: Any = None) -> Any:
    """A node that first speaks like an assistant, and in character after a reflection."""
    builder = StateGraph(MessagesState)

    def speak(state: MessagesState) -> Any:
        reflected = any("Drop the phrases" in str(message.text) for message in state["messages"])
        return says(
            "Fog. We wait." if reflected else "Great question! I would be happy to help.", "Ilka Brandt"
        )

    def reflect(state: MessagesState) -> Any:
        return {"messages": [HumanMessage("Drop the phrases of an assistant.")]}

    builder.add_node("speak", speak)
    builder.add_node("reflect", reflect)
    builder.add_edge(START, "speak")
    builder.add_edge("speak", END)
    builder.add_edge("reflect", "speak")
    return builder.compile(checkpointer=checkpointer)


def in_character(request: Any) -> Any:
    drifts = "happy to help" in prompt_of(request)
    bad = {id for id in request.propositions if id in ("generic-assistant", "ilka-gushing")}
    return {
        "judgements": [
            {"id": id, "score": (9 if id in bad else 1) if drifts else (0 if id in bad else 8)}
            for id in request.propositions
        ]
    }


@MODES
def test_a_drifting_agent_is_sent_to_reflect(mode: str) -> None:
    judge = Says(in_character)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(AdherenceEvaluator(persona="arbiter:ilka", judge=judge, target_nodes=["speak"]))
    arbiter_os.add_policy_router(EvaluationRouter("drift", "adherence", "reflect", target_nodes=["speak"]))
    app = arbiter_os.govern(drifting(), instructions={"speak": RESPOND, "reflect": REFLECT})
    state = run(app, {"messages": [HumanMessage("Shall we sail?")]}, mode=mode)
    assert [item.node for item in arbiter_os.history.items()] == ["speak", "reflect", "speak"]
    assert str(state["messages"][-1].text) == "Fog. We wait."
    raw = [
        item.evaluation_results["adherence"].metadata["raw"]
        for item in arbiter_os.history.items()
        if item.node == "speak"
    ]
    assert raw[0] < 2
    assert raw[1] > 7


def test_a_recording_makes_the_same_run_again_without_a_model(tmp_path: Path) -> None:
    def nodes(judge: Any) -> list[str]:
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluator(
            AdherenceEvaluator(persona="arbiter:ilka", judge=judge, target_nodes=["speak"])
        )
        arbiter_os.add_policy_router(
            EvaluationRouter("drift", "adherence", "reflect", target_nodes=["speak"])
        )
        app = arbiter_os.govern(drifting(), instructions={"speak": RESPOND, "reflect": REFLECT})
        app.invoke({"messages": [HumanMessage("Shall we sail?")]})
        return [item.node for item in arbiter_os.history.items()]

    recorder = RecordingJudge(Says(in_character))
    first = nodes(recorder)
    recorder.save(tmp_path / "r.json")
    assert nodes(MockJudge(tmp_path / "r.json")) == first == ["speak", "reflect", "speak"]


@MODES
def test_judgements_do_not_show_in_the_streams(mode: str) -> None:
    answer = '{"judgements": []}'
    model = Scripted(answers=[answer, '{"score": 8}'])
    arbiter_os = ArbiterOS()
    evaluator = AdherenceEvaluator(persona=JIM, judge=ChatJudge(model), durable=True)
    arbiter_os.add_evaluator(evaluator)
    app = arbiter_os.govern(speaking(says("Hi", "Jim")), instructions={"speak": RESPOND})

    async def astream() -> list[Any]:
        return [part async for part in app.astream({"messages": []}, stream_mode="messages")]

    if mode == "sync":
        streamed: list[Any] = list(app.stream({"messages": []}, stream_mode="messages"))
    else:
        streamed = asyncio.run(astream())
    assert [str(message.text) for message, _ in streamed] == ["Hi"]
    assert arbiter_os.history.entries[-1][-1].evaluation_results["adherence"].metadata["calls"] == 5


def test_a_durable_score_is_found_by_another_process(tmp_path: Path) -> None:
    """It is committed with what the node wrote."""
    with SqliteSaver.from_conn_string(str(tmp_path / "db.sqlite")) as saver:
        first = ArbiterOS()
        first.add_evaluator(
            AdherenceEvaluator(
                persona="arbiter:ilka", judge=Says(in_character), durable=True, target_nodes=["speak"]
            )
        )
        app = first.govern(drifting(saver), instructions={"speak": RESPOND})
        app.invoke({"messages": [HumanMessage("So?")]}, thread("t"))
        facts = saver.get_tuple(thread("t"))
        assert facts is not None
        assert "adherence" in str(facts.checkpoint["channel_values"])


# In a pack ----------------------------------------------------------------------------------------

PACK = """
version: 1
name: in-character
description: Who speaks stays in character.
evaluators:
  - name: stays_ilka
    use: adherence
    persona: arbiter:ilka
    judge: small
    at_least: 6.5
    target_nodes: [speak]
  - {name: same_ilka, use: self_consistency, judge: small, persona: arbiter:ilka}
  - {name: fresh, use: fluency, judge: small, persona: arbiter:ilka}
  - {name: own_voices, use: convergence, judge: small}
  - {name: many_ideas, use: ideas_quantity, judge: small, at_least: 3}
  - name: inline
    use: adherence
    persona: {name: Jim, description: Calm., fields: {age: 30}}
    judge: small
"""


def test_a_pack_names_dimensions_personas_and_judges(tmp_path: Path) -> None:
    (tmp_path / "pack.yaml").write_text(PACK)
    model = Scripted(answers=["{}"])
    loaded = load_constitution(tmp_path / "pack.yaml", models={"small": model})
    first, *others, inline = loaded.evaluators
    assert isinstance(first, AdherenceEvaluator)
    assert first.persona == Persona.of("arbiter:ilka")
    judge: Any = first.scorer.engine.judge
    assert judge.model is model
    assert [type(found) for found in others] == [
        SelfConsistencyEvaluator,
        FluencyEvaluator,
        ConvergenceEvaluator,
        IdeasQuantityEvaluator,
    ]
    assert isinstance(inline, AdherenceEvaluator)
    assert inline.persona == Persona("Jim", "Calm.", "", {"age": 30})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("persona: arbiter:nobody", "persona: expected one of arbiter:ilka, arbiter:tomasz"),
        ("persona: {name: Jim}", "persona.description: expected a value"),
        ("persona: arbiter:ilka\n    at_least: 10", "at_least: expected a number from 0 to 9"),
        ("persona: arbiter:ilka\n    sample: 0", "sample: "),
        ("persona: arbiter:ilka\n    propositions: nowhere", "propositions: "),
    ],
)
def test_mistakes_in_a_pack_are_reported(tmp_path: Path, line: str, message: str) -> None:
    head = "version: 1\nname: p\ndescription: d\nevaluators:\n  - name: x\n    use: adherence\n    judge: m\n"
    pack = f"{head}    {line}\n"
    (tmp_path / "pack.yaml").write_text(pack)
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path / "pack.yaml", models={"m": Scripted(answers=["x"])})
    assert message in str(caught.value)


def test_consistency_names_no_kind_and_the_error_names_both_that_it_may_mean(tmp_path: Path) -> None:
    head = "version: 1\nname: p\ndescription: d\nevaluators:\n"
    (tmp_path / "pack.yaml").write_text(f"{head}  - {{name: x, use: consistency, key: text}}\n")
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path / "pack.yaml")
    assert "pack.yaml:5: evaluators[0].use: expected one of" in str(caught.value)
    assert "Write self_consistency, which lets a judge decide" in str(caught.value)
    assert "or text_similarity, which compares words" in str(caught.value)
    text = (
        "  - {name: x, use: text_similarity, key: text}\n  - {name: y, use: self_consistency, judge: small}\n"
    )
    (tmp_path / "pack.yaml").write_text(head + text)
    loaded = load_constitution(tmp_path / "pack.yaml", models={"small": Scripted(answers=["x"])})
    assert list(map(type, loaded.evaluators)) == [TextSimilarityEvaluator, SelfConsistencyEvaluator]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "expected a Persona, a mapping or a file, got None"),
        (Persona("Jim", " "), "adherence to the persona of 'Jim' cannot be judged: its description is empty"),
    ],
)
def test_a_persona_that_cannot_be_recognised_is_refused_by_its_name(given: Any, problem: str) -> None:
    with pytest.raises(ParameterError, match=f"persona: {problem}"):
        AdherenceEvaluator(judge=Says(1), persona=given)


@pytest.mark.parametrize("kind", [AdherenceEvaluator, SelfConsistencyEvaluator, FluencyEvaluator])
def test_propositions_of_another_dimension_are_refused_by_their_name(kind: Any) -> None:
    given = PropositionSet("convergence", [Proposition("calm", "It is calm.")])
    with pytest.raises(ParameterError, match=r"propositions: expected .*, got those of 'convergence'"):
        kind(judge=Says(1), persona="arbiter:ilka", propositions=given)


@pytest.mark.parametrize("given", [3, True, ["ilka"], {}])
@pytest.mark.parametrize("kind", [FluencyEvaluator, ConvergenceEvaluator])
def test_propositions_of_a_wrong_type_are_refused(kind: Any, given: Any) -> None:
    with pytest.raises(ParameterError, match="propositions: expected the folder of propositions, got"):
        kind(judge=Says(1), propositions=given)


@pytest.mark.parametrize("at_least", [True, -1, 9.5, float("nan"), "7"])
def test_a_limit_is_a_number_from_zero_to_nine(at_least: Any) -> None:
    with pytest.raises(ParameterError, match="at_least: expected a number from 0 to 9"):
        FluencyEvaluator(judge=Says(1), at_least=at_least)


@pytest.mark.parametrize("use", ["adherence", "convergence", "fluency", "ideas_quantity", "self_consistency"])
def test_every_dimension_is_a_kind_with_a_judge(use: str) -> None:
    module, _, name = KINDS["evaluators"][use].rpartition(".")
    kind = getattr(__import__(module, fromlist=["x"]), name)
    assert takes_model(kind) == {"judge"}
    assert "judge" in parameters_of(kind).model_fields


@pytest.mark.parametrize("words", ["Calm, dry and blunt. ", "x"])
@pytest.mark.parametrize("length", [1, 300])
def test_a_description_in_the_place_of_a_persona_is_reported(words: str, length: int) -> None:
    """A text that is long, or has a dot, is not taken for the path of a file."""
    with pytest.raises(
        ParameterError, match=r"persona: expected a persona.*Write Persona\(name, description\)"
    ):
        AdherenceEvaluator(persona=words * length, judge=Says(None))


def test_a_sentence_in_the_place_of_a_folder_of_propositions_is_reported() -> None:
    with pytest.raises(ParameterError, match=r"propositions: the folder of propositions .* cannot be read"):
        AdherenceEvaluator(persona=JIM, judge=Says(None), propositions="Jim is calm. " * 40)
