"""The world of an experiment: one graph for all arms, in which treatments act from outside."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda

from arbiter.errors import ConfigurationError
from arbiter.experiments import Corrections, Exposure
from arbiter.experiments.arms import Treatment
from arbiter.experiments.world import Setting, World, seed_of
from arbiter.personas import (
    GateConfig,
    Intervention,
    InterventionBatch,
    JudgeRequest,
    Target,
    anti_convergence,
    variety,
)
from tests.experiments.experiment_support import GATE, corrector, never, nudging, people, speaker
from tests.personas.personas_support import Says
from tests.scripted import Scripted

ORDERS = ("parallel", "sequential_random")
PROMPTS = {0: "Introduce yourselves.", 1: "Talk about tea."}


def talk(
    model: Scripted,
    corrections: Corrections | None = None,
    order: Any = "parallel",
    *,
    judge: Any = None,
    size: int = 3,
    steps: int = 3,
    **known: Any,
) -> tuple[list[BaseMessage], Exposure]:
    world, setting = World(model, order=order), Setting(people(size), PROMPTS, steps, **known)
    treatment = Treatment(corrections or Corrections(), setting.personas, judge or corrector())
    said = asyncio.run(world.converse(setting, graph=treatment.govern(world.graph)))
    return said, treatment.exposure(setting.drafts)


def speakers(said: list[BaseMessage]) -> list[str | None]:
    return [message.name for message in said]


def heard(model: Scripted, agent: str) -> list[str]:
    """The prompts of an agent, oldest first."""
    return [
        text
        for call in range(model.calls)
        if f"You are {agent}, and you stay" in (text := model.prompt(call))
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_interventions_are_evaluated_once_a_step(order: str) -> None:
    seen: list[int] = []

    def condition(targets: list[Target]) -> bool:
        seen.append(len(targets[0].trajectory))
        return False

    def counting(personas: Any, judge: Any) -> InterventionBatch:
        batch = InterventionBatch.create_for_each(personas[:1], judge=judge)
        return batch.set_functional_precondition(condition).set_effect("never")

    _, exposure = talk(speaker(), Corrections(interventions=(counting,)), order, steps=4)
    assert exposure.evaluations == 4
    # Nothing, then a prompt and three messages, then two prompts and six: never the prompt of its own step.
    assert seen == [0, 4, 8, 11]


@pytest.mark.parametrize("order", ORDERS)
def test_a_nudge_reaches_the_next_call_of_its_agent_and_nothing_else(order: str) -> None:
    def once(personas: Any, judge: Any) -> InterventionBatch:
        batch = InterventionBatch.create_for_each(personas[:1], judge=judge)
        return batch.set_functional_precondition(lambda targets: len(targets[0].trajectory) == 4).set_effect(
            "remember the biscuits"
        )

    model = speaker()
    said, exposure = talk(model, Corrections(interventions=(once,)), order)
    assert exposure.nudges == 1
    assert [("remember the biscuits" in prompt) for prompt in heard(model, "Person 0")] == [
        False,
        True,
        False,
    ]
    assert sum("biscuits" in model.prompt(call) for call in range(model.calls)) == 1
    assert not any("biscuits" in str(message.text) for message in said)


def test_a_thought_that_persists_stays_for_the_rest_of_the_conversation_and_out_of_it() -> None:
    def once(personas: Any, judge: Any) -> InterventionBatch:
        batch = InterventionBatch.create_for_each(personas[:1], judge=judge, persist=True)
        return batch.set_functional_precondition(lambda targets: len(targets[0].trajectory) == 4).set_effect(
            "remember the biscuits"
        )

    model = speaker()
    said, exposure = talk(model, Corrections(interventions=(once,)), steps=4)
    assert exposure.nudges == 1
    assert ["biscuits" in prompt for prompt in heard(model, "Person 0")] == [False, True, True, True]
    assert not any("biscuits" in str(message.text) for message in said)


def test_agents_that_act_at_the_same_time_hear_nothing_of_one_another() -> None:
    model = speaker()
    said, _ = talk(model)
    assert speakers(said) == [
        None,
        *["Person 0", "Person 1", "Person 2"],
        None,
        *["Person 0", "Person 1", "Person 2"] * 2,
    ]
    firsts = [heard(model, f"Person {n}")[0] for n in range(3)]
    assert not any("says a" in prompt for prompt in firsts)
    assert "Person 0: Person 0 says a" in heard(model, "Person 1")[1]


def test_messages_of_agents_are_delivered_in_the_agents_order() -> None:
    def slow(prompt: str) -> str:
        time.sleep(0.05 if "You are Person 0" in prompt else 0)
        return "hm"

    said, _ = talk(speaker(slow), steps=2)
    assert speakers(said)[1:4] == ["Person 0", "Person 1", "Person 2"]


def test_one_after_another_agents_hear_who_spoke_before_them() -> None:
    model = speaker()
    said, _ = talk(model, order="sequential_random", seed=3)
    first, second = speakers(said)[1:3]
    assert f"{first} says a" in heard(model, str(second))[0]


@pytest.mark.lengthy
def test_the_order_of_agents_is_that_of_the_seed() -> None:
    places = [(1, 0), (1, 0), (2, 0), (1, 1)]
    runs = [
        speakers(talk(speaker(), order="sequential_random", size=5, seed=seed, environment=environment)[0])
        for seed, environment in places
    ]
    assert runs[0] == runs[1]
    assert len({*map(str, runs)}) == 3
    assert runs[0] == speakers(
        talk(speaker(), Corrections(GATE, (nudging,)), order="sequential_random", size=5, seed=1)[0]
    )
    assert seed_of(42, 7, 3) == int(hashlib.sha256(b"42:7:3").hexdigest(), 16)


@pytest.mark.parametrize("order", ORDERS)
def test_the_gate_judges_each_draft_and_nothing_rejected_is_heard(order: str) -> None:
    model = speaker()
    said, exposure = talk(model, Corrections(GATE), order)
    assert exposure == Exposure(drafts=18, checks=18, regenerations=9)
    assert all("good" in message.text for message in said if message.name)
    assert not any(
        "poor" in line for prompt in heard(model, "Person 1") for line in prompt.splitlines() if ": " in line
    )


@pytest.mark.lengthy
def test_a_message_of_which_no_draft_passes_is_forced() -> None:
    always = Says({"score": 1, "reasoning": "poor"})
    _, forced = talk(speaker(), Corrections(GATE), judge=always)
    assert (forced.forced, forced.regenerations) == (9, 18)


def test_a_gate_whose_judge_fails_has_judged_nothing() -> None:
    _, exposure = talk(speaker(), Corrections(GATE), judge=Says(ConnectionError("down")))
    assert (exposure.checks, exposure.unjudged) == (0, 9)


def test_the_control_is_the_graph_itself() -> None:
    world = World(speaker())
    treatment = Treatment(Corrections(), people(2), corrector())
    assert treatment.govern(world.graph) is world.graph
    _, exposure = talk(speaker())
    assert exposure == Exposure(drafts=9)
    assert not exposure.treated


def test_half_of_a_character_does_not_end_a_conversation() -> None:
    """No client can send a lone surrogate, and the words of each agent are in the prompts of all."""

    def tea(prompt: str) -> str:
        return f"Tea \ud83d? {len(prompt.encode())}"

    model = Scripted(answers=[tea])
    said, _ = talk(model, size=2, steps=2)
    assert len(said) == 6
    assert str(said[1].content).startswith("Tea \ufffd?")


def test_reasoning_that_a_model_shows_is_not_said() -> None:
    """As with judges. A model whose answers are texts can play agents, too."""
    answer = "<think>I would rather have coffee.</think>\nTea, please."

    def speaks(prompt: Any) -> str:
        return answer

    models: list[Any] = [Scripted(answers=[answer]), RunnableLambda(speaks)]
    for model in models:
        said, _ = talk(model, size=2, steps=2)
        assert {str(message.content) for message in said if message.name} == {"Tea, please."}


def test_phrases_of_an_agent_that_repeats_itself_are_suppressed() -> None:
    model = speaker(lambda prompt: "as I always say, tea is the best drink of all")
    _, exposure = talk(model, Corrections(repetition=True), steps=4)
    assert exposure.repetitions == 6
    assert "Avoid these phrases" in heard(model, "Person 2")[3]


@pytest.mark.lengthy
def test_the_exposure_counts_all_evaluations_of_a_long_conversation() -> None:
    def many(personas: Any, judge: Any) -> InterventionBatch:
        each = [Intervention(personas, judge=judge, name=f"i{number}") for number in range(400)]
        return (
            InterventionBatch(each)
            .set_functional_precondition(lambda targets: True)
            .set_effect(lambda targets: {str(targets[0].agent): "Go on."})
        )

    _, exposure = talk(speaker(), Corrections(interventions=(many,)), size=1, steps=3)
    assert (exposure.evaluations, exposure.nudges) == (1_200, 1_200)


def test_shipped_interventions_are_arms() -> None:
    corrections = Corrections(interventions=(variety, anti_convergence))
    assert corrections.evaluations(5) == 6
    model = speaker(lambda prompt: "the very same words")
    _, exposure = talk(
        model, corrections, steps=8, judge=Says({"score": 9, "result": True, "reasoning": "read"})
    )
    assert exposure.evaluations == 8 * 4
    assert exposure.nudges > 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Corrections(GateConfig()), "enables no dimension"),
        (
            lambda: Corrections(GateConfig(gate_adherence_enabled=True, continue_on_failure=False)),
            "Leave it True",
        ),
        (lambda: Corrections(interventions=("variety",)), "expected functions such as variety"),  # type: ignore[arg-type]
        (lambda: Corrections(gate=True), "expected a GateConfig or None"),  # type: ignore[arg-type]
        (lambda: World(None, order="random"), "order is 'random'"),  # type: ignore[arg-type]
        (lambda: Setting([], {}, 2), "expected at least one"),
        (lambda: Setting([*people(1), *people(1)], {}, 2), "each with its own name"),
    ],
)
def test_wrong_settings_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        wrong()


def test_an_arm_without_effect_on_anybody_is_counted_as_such() -> None:
    _, exposure = talk(speaker(), Corrections(interventions=(never,)))
    assert (exposure.evaluations, exposure.nudges) == (9, 0)


class _Noting(InterventionBatch):
    """Notes the messages that it was given at each step."""

    def __init__(self, personas: Any) -> None:
        super().__init__([Intervention(personas[0]).set_effect(lambda targets: None)])
        self.set_functional_precondition(lambda targets: False)
        self.given: list[list[Any]] = []

    async def aevaluate(self, conversation: Any, **known: Any) -> Any:
        self.given.append(list(conversation))
        return await super().aevaluate(conversation, **known)


def test_a_message_is_read_once_however_long_the_conversation_gets() -> None:
    """Prompts and interventions of later steps have the same objects. A copy for each step takes 80 µs a message."""
    model, batches = speaker(), list[_Noting]()

    def noting(personas: Any, judge: Any) -> InterventionBatch:
        batches.append(_Noting(personas))
        return batches[-1]

    talk(model, Corrections(interventions=(noting,)), steps=4)
    earlier, later = batches[0].given[-2:]
    assert len(earlier) < len(later)
    assert all(one is other for one, other in zip(earlier, later, strict=False))
    # Agents of a step are asked side by side, in any order.
    of_one = [asked for asked in model.asked if asked[0].content == model.asked[0][0].content]
    first, last = ([m for m in asked if m.type == "human"] for asked in (of_one[1], of_one[-1]))
    # All but "It is your turn", which is the last one.
    assert all(one is other for one, other in zip(first[:-1], last[:-1], strict=False))


def test_prompts_of_a_gated_conversation_share_their_messages() -> None:
    """A gate's node gets copies of what was said, which are not kept one by one."""
    model = speaker()
    talk(model, Corrections(GATE), steps=4)
    said = [message for asked in model.asked for message in asked if message.type == "human"]
    assert len({id(message) for message in said}) < len(said) / 2
    texts = {str(message.text) for message in said if not str(message.text).startswith("It is your turn")}
    shared = {id(message) for message in said if str(message.text) in texts}
    assert len(shared) == len(texts)


@pytest.mark.lengthy
def test_only_interventions_whose_judge_or_function_raises_count_as_failures() -> None:
    def asking(personas: Any, judge: Any) -> InterventionBatch:
        batch = InterventionBatch.create_for_each(personas, judge=judge)
        return batch.set_textual_precondition("{{agent_name}} is calm").set_effect("be calm")

    def found(answer: Any) -> tuple[int, int]:
        _, exposure = talk(speaker(), Corrections(interventions=(asking,)), judge=Says(answer))
        return exposure.evaluations, exposure.failures

    def raises(request: JudgeRequest) -> Any:
        raise ValueError("no answer")

    assert found({"result": True, "evidence_present": False}) == (9, 0)
    assert found(raises) == (9, 6)  # nobody has said anything at the first step
