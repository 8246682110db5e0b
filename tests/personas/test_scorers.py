"""The five scorers: their samples, prompts and numbers, and when they have no score."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from arbiter.errors import ConfigurationError
from arbiter.personas import (
    AdherenceScorer,
    Cast,
    ConsistencyScorer,
    ConvergenceScorer,
    Event,
    FluencyScorer,
    IdeasScorer,
    JudgeRequest,
    Persona,
    PropositionEngine,
    PropositionSet,
    ScorerResult,
    Target,
    Trajectory,
    load_propositions,
    overall_score,
    repetition,
    unique_ratio,
    weighted_mean,
)
from arbiter.personas._characters import Names
from tests.personas.personas_support import JIM, Says, claim, drive, prompt_of, scores, talk
from tests.scripted import usage
from tests.support import MODES


def sets(dimension: str, *propositions: Any) -> PropositionSet:
    return PropositionSet(dimension, propositions or [claim("a", include_personas=False)])


def room(*said: tuple[str, str]) -> Trajectory:
    return Trajectory.of(Event.action(who, text) for who, text in said)


# Aggregation --------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("batch", [True, False])
def test_a_dimension_is_the_weighted_mean_of_its_propositions(mode: str, batch: bool) -> None:
    propositions = sets(
        "adherence",
        claim("a", weight=1),
        claim("b", weight=0.9),
        claim("c", weight=0.8, inverted=True),
        claim("d", weight=0.7),
    )
    judge = Says(scores(a=8, b=6, c=2, d=7))
    found = drive(mode, AdherenceScorer(judge, JIM, propositions, batch=batch), "score", talk("Hi"))
    assert found.overall == pytest.approx(23.9 / 3.4)
    assert round(found.overall, 4) == 7.0294
    assert judge.calls == found.calls == (1 if batch else 4)
    assert found.token_usage == usage(10 * found.calls, 2 * found.calls)


def test_an_inverted_mean_is_turned_around_once() -> None:
    judge = Says(lambda request: {"score": 2 if "[one]" in prompt_of(request) else 3})
    scorer = AdherenceScorer(judge, JIM, sets("adherence", claim("a", inverted=True)), batch=False)
    [score] = scorer.score(talk("one", "two")).propositions
    assert (score.raw, score.score) == (2.5, 6.5)


def result(dimension: str, overall: float | None) -> ScorerResult:
    return ScorerResult(dimension=dimension, overall=overall)


def test_the_overall_score_leaves_out_missing_scores_and_the_ideas() -> None:
    found = [
        result("adherence", 7.5),
        result("consistency", None),
        result("fluency", 6.8),
        result("convergence", 7.5),
        result("ideas_quantity", 12),
    ]
    assert overall_score(found) == pytest.approx(7.2667, abs=1e-4)
    assert overall_score([result("ideas_quantity", 3), result("fluency", None)]) is None
    assert overall_score([]) is None


@pytest.mark.lengthy
@given(st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(0, 9))))
def test_a_weighted_mean_lies_between_its_scores(pairs: list[tuple[float, float | None]]) -> None:
    known = [score for weight, score in pairs if score is not None and weight > 0]
    mean = weighted_mean(pairs)
    if mean is not None:
        assert min(known) - 1e-6 <= mean <= max(known) + 1e-6


@pytest.mark.parametrize("weights", [(1.0, 0.9, 0.8), (1.0, 0.9, 0.8, 0.7), (0.1, 0.2, 0.3), (0.7, 0.1)])
def test_the_same_score_on_everything_is_that_score(weights: tuple[float, ...]) -> None:
    """Exactly, so that it is not below a threshold of the same number."""
    for score in range(10):
        assert weighted_mean((weight, float(score)) for weight in weights) == score


@MODES
def test_a_proposition_without_a_score_is_left_out_of_both_sums(mode: str) -> None:
    def answer(request: JudgeRequest) -> Any:
        return None if request.propositions == ("b",) else {"score": 4}

    scorer = AdherenceScorer(Says(answer), JIM, sets("adherence", claim("a"), claim("b")), batch=False)
    found = drive(mode, scorer, "score", talk("Hi"))
    assert found.overall == 4
    assert [score.score for score in found.propositions] == [4, None]


@MODES
def test_without_any_answer_there_is_no_score_and_no_default(mode: str) -> None:
    found = drive(mode, AdherenceScorer(Says(OSError("down")), JIM), "score", talk("Hi"))
    assert found.overall is None
    assert "down" in found.reason
    assert found.token_usage is None


def test_a_claim_that_does_not_apply_to_a_message_does_not_affect_the_others() -> None:
    """And counts as 9 where it applies to none of them."""

    def only_first(target: Any, *_: Any) -> bool:
        return bool(target.trajectory.events[0].text == "one")

    def never(*_: Any) -> bool:
        return False

    propositions = sets(
        "adherence",
        claim("some", precondition=only_first),
        claim("none", precondition=never, inverted=True),
    )
    found = AdherenceScorer(Says(scores(some=3)), JIM, propositions).score(talk("one", "two"))
    assert [(score.score, score.judged) for score in found.propositions] == [(3, 1), (9, 0)]


def test_the_result_reports_the_worst_element() -> None:
    def answer(request: JudgeRequest) -> Any:
        number = int(re.findall(r"acts: \[m(\d)", prompt_of(request))[0])
        return {"score": number, "reasoning": f"because of {number}"}

    plain = AdherenceScorer(Says(answer), JIM, sets("adherence", claim("a")), batch=False)
    inverted = AdherenceScorer(Says(answer), JIM, sets("adherence", claim("a", inverted=True)), batch=False)
    said = talk("m5", "m2", "m8")
    [score] = plain.score(said).propositions
    assert (score.reasoning, score.snippet) == ("because of 2", "m2")
    [score] = inverted.score(said).propositions
    assert (score.reasoning, score.snippet) == ("because of 8", "m8")


# Adherence ----------------------------------------------------------------------------------------


@pytest.mark.lengthy
@MODES
def test_twenty_of_fifty_messages_are_judged_and_the_same_for_the_same_seed(mode: str) -> None:
    said = talk(*(f"message {number}." for number in range(50)))

    def sampled(seed: int) -> list[str]:
        judge = Says(scores())
        found = drive(mode, AdherenceScorer(judge, JIM, seed=seed), "score", said)
        assert (found.sample_size, judge.calls) == (20, 20)
        return sorted(re.findall(r"message \d+\.", "".join(map(prompt_of, judge.asked))))

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert len(set(sampled(1))) == 20


def test_adherence_shows_the_persona_and_one_message_at_a_time() -> None:
    judge = Says(scores())
    both = room(("Jim", "one"), ("Pam", "two"), ("Jim", "three"))
    AdherenceScorer(judge, JIM).score(both)
    assert judge.calls == 2
    for request in judge.asked:
        assert prompt_of(request).count(JIM.description) == 1
        assert prompt_of(request).count("acts: [") - prompt_of(request).count("Ann acts: [") == 1
    assert "two" not in "".join(re.findall(r"acts: \[(.*)\]", "".join(map(prompt_of, judge.asked))))


@MODES
def test_a_persona_that_said_nothing_is_not_judged(mode: str) -> None:
    """It has no score; only a conversation without any message counts as 9."""
    judge = Says(scores())
    for said, overall in ((Trajectory(), 9), (talk("Hi", by="Pam"), None)):
        found = drive(mode, AdherenceScorer(judge, JIM), "score", said)
        assert (found.overall, found.sample_size, judge.calls) == (overall, 0, 0)
        assert "no message of 'Jim'" in found.reason


def test_a_personas_own_propositions_are_used() -> None:
    from arbiter.personas import Persona

    scorer = AdherenceScorer(Says(scores()), Persona.of("arbiter:ilka"))
    assert "ilka-gushing" in [proposition.id for proposition in scorer.propositions]


# Consistency --------------------------------------------------------------------------------------


def channels(**counts: int) -> Trajectory:
    return Trajectory.of(
        Event.action("Jim", f"{name}{number}", channel=name)
        for name, count in counts.items()
        for number in range(count)
    )


@MODES
def test_pairs_are_of_one_channel(mode: str) -> None:
    judge = Says(scores())
    scorer = ConsistencyScorer(judge)
    found = drive(mode, scorer, "score", channels(A=2, B=1), channels(A=3, C=4))
    assert (found.sample_size, judge.calls) == (6, 6)
    said = [re.findall(r"^> Jim acts: \[(.*)\]$", prompt_of(one), re.MULTILINE) for one in judge.asked]
    assert sorted(map(tuple, said)) == sorted((f"A{h}", f"A{c}") for h in range(3) for c in range(2))


def test_pairs_are_of_every_common_channel() -> None:
    judge = Says(scores())
    ConsistencyScorer(judge, pairs=99).score(channels(A=2, B=1, D=1), channels(B=3, A=2, C=4))
    said = [re.findall(r"^> Jim acts: \[(.*)\]$", prompt_of(one), re.MULTILINE) for one in judge.asked]
    every = [
        (f"{c}{h}", f"{c}{n}")
        for c, old, new in (("A", 2, 2), ("B", 3, 1))
        for h in range(old)
        for n in range(new)
    ]
    assert sorted(map(tuple, said)) == sorted(every)


@MODES
def test_ten_pairs_are_sampled_and_the_same_for_the_same_seed(mode: str) -> None:
    def sampled(seed: int) -> list[str]:
        judge = Says(scores())
        found = drive(mode, ConsistencyScorer(judge, seed=seed), "score", channels(A=4), channels(A=5))
        assert (found.sample_size, judge.calls) == (10, 10)
        return sorted(request.key for request in judge.asked)

    assert sampled(0) == sampled(0)
    assert sampled(0) != sampled(3)
    assert len(set(sampled(0))) == 10


@MODES
def test_no_score_without_a_message_to_compare_with(mode: str) -> None:
    judge = Says(scores())
    scorer = ConsistencyScorer(judge)
    nothing = Trajectory()
    assert drive(mode, scorer, "score", talk("Hi"), nothing).overall is None
    assert drive(mode, scorer, "score", nothing, nothing).overall is None
    assert drive(mode, scorer, "score", channels(A=1), channels(B=1)).overall is None
    assert drive(mode, scorer, "score", nothing, talk("Hi")).overall == 9
    assert judge.calls == 0


@pytest.mark.lengthy
def test_a_huge_cross_product_is_sampled_without_being_made() -> None:
    found = ConsistencyScorer(Says(scores()), pairs=3).score(channels(A=20_000), channels(A=20_000))
    assert found.sample_size == 3


# Fluency ------------------------------------------------------------------------------------------


@MODES
def test_fluency_shows_the_numbers_and_no_persona(mode: str) -> None:
    said = ["I think we should go to the beach", "I think we should go to the park"]
    judge = Says(scores())
    found = drive(mode, FluencyScorer(judge, personas=[JIM]), "score", talk(*said))
    assert judge.calls == 1
    prompt = judge.prompt()
    assert f"{repetition(said, 3):.4f}" in prompt
    assert f"{repetition(said, 5):.4f}" in prompt
    assert JIM.description not in prompt
    assert found.evidence["repetition_3"] == repetition(said, 3)
    assert found.evidence["unique_ratio"] == unique_ratio(said)
    assert prompt.index("acts: [I think we should go to the park]") < prompt.index("0.7143")
    assert found.sample_size == 2


def test_evidence_is_no_event_and_no_score() -> None:
    judge = Says(scores())
    repeated = FluencyScorer(judge).score(talk(*["the very same words"] * 5))
    assert repeated.evidence["repetition_3"] == 1.0
    assert repeated.overall == pytest.approx(weighted_mean([(1, 7), (0.9, 7), (0.8, 7), (0.7, 2)]))
    assert judge.prompt().count("\n> Jim acts:") == 5


@MODES
def test_empty_fluency_and_convergence_are_nine_without_a_call(mode: str) -> None:
    judge = Says(scores())
    for scorer in (FluencyScorer(judge), ConvergenceScorer(judge)):
        assert drive(mode, scorer, "score", Trajectory()).overall == 9
    assert judge.calls == 0


def test_a_scorer_needs_an_agent_if_there_are_several_speakers() -> None:
    with pytest.raises(ConfigurationError, match="got those of Jim, Pam"):
        FluencyScorer(Says(scores())).score(room(("Jim", "a"), ("Pam", "b")))
    judge = Says(scores())
    FluencyScorer(judge, agent="Pam").score(room(("Jim", "secret"), ("Pam", "b")))
    assert "secret" not in judge.prompt()


# Convergence --------------------------------------------------------------------------------------


@MODES
def test_convergence_shows_the_whole_conversation_and_the_vocabularies(mode: str) -> None:
    judge = Says(scores(**{"told-apart": 8, "echo": 2, "own-views": 8}))
    said = room(("Jim", "we sell paper"), ("Pam", "we sell boats"), ("Jim", "paper"))
    found = drive(mode, ConvergenceScorer(judge, personas=[JIM]), "score", said)
    assert judge.calls == 1
    assert found.evidence == {"Jim / Pam": 0.5}
    assert "Jim / Pam: 0.5000" in judge.prompt()
    assert "> Jim acts: [we sell paper]\n> Pam acts: [we sell boats]\n> Jim acts: [paper]" in judge.prompt()
    assert JIM.description not in judge.prompt()
    assert found.overall == pytest.approx((8 + 0.8 * 7 + 0.9 * 8) / 2.7)


@MODES
def test_a_single_speaker_has_no_convergence_score(mode: str) -> None:
    judge = Says(scores())
    found = drive(mode, ConvergenceScorer(judge), "score", talk("Hi", "Ho"))
    assert (found.overall, judge.calls) == (None, 0)
    assert "only 'Jim' speaks" in found.reason


def test_in_a_crowd_the_vocabularies_of_those_who_say_most_are_compared() -> None:
    """Each with each, so that a channel of ten thousand does not take fifty million comparisons."""
    judge = Says(scores())
    crowd = [(f"Guest {number}", "hello there") for number in range(300)]
    said = room(*crowd, ("Jim", "we sell paper"), ("Pam", "we sell boats"), ("Jim", "a"), ("Pam", "a"))
    found = ConvergenceScorer(judge).score(said)
    assert len(found.evidence) == 100 * 99 / 2
    assert found.evidence["Jim / Pam"] == 3 / 5
    assert "both use, of the 100 of 302 who say most:" in judge.prompt()
    assert found.sample_size == len(said)


def test_a_flag_in_the_file_is_obeyed() -> None:
    judge = Says(scores())
    propositions = load_propositions(None, "convergence").changed(include_personas=True)
    ConvergenceScorer(judge, propositions, personas=[JIM]).score(room(("Jim", "a"), ("Pam", "b")))
    assert JIM.description in judge.prompt()


# Ideas --------------------------------------------------------------------------------------------


@MODES
def test_ideas_are_counted_by_the_list(mode: str) -> None:
    judge = Says({"ideas": [f"idea {number}" for number in range(14)], "count": 3})
    found = drive(mode, IdeasScorer(judge), "score", talk(*map(str, range(300))))
    assert (found.overall, found.method, judge.calls) == (14, "enumerate", 1)
    assert len(found.ideas) == 14
    assert judge.prompt().count("Jim acts:") == 300
    assert overall_score([found]) is None


@pytest.mark.parametrize(
    ("value", "count"),
    [({"ideas": [], "count": 4}, 4), ({"ideas": []}, 0), ({"ideas": [], "count": True}, None), (None, None)],
)
def test_the_count_is_used_if_the_list_is_empty(value: Any, count: int | None) -> None:
    assert IdeasScorer(Says(value)).score(talk("Hi")).overall == count


@MODES
def test_no_conversation_has_no_ideas(mode: str) -> None:
    judge = Says({"ideas": ["x"]})
    assert drive(mode, IdeasScorer(judge), "score", Trajectory()).overall == 0
    assert judge.calls == 0


@MODES
def test_the_rapporteur_method_counts_in_a_report(mode: str) -> None:
    judge = Says({"ideas": ["a boat", "a bakery"]})
    scorer = IdeasScorer(judge, method="rapporteur")
    found = drive(mode, scorer, "score", talk("Hi"), report="We want a boat and a bakery.")
    assert (found.overall, found.method) == (2, "rapporteur")
    assert "We want a boat" in judge.prompt()
    assert "acts: [Hi]" not in judge.prompt()
    with pytest.raises(ConfigurationError, match="rapporteur"):
        scorer.score(talk("Hi"))
    with pytest.raises(ConfigurationError, match="rapporteur"):
        IdeasScorer(judge).score(talk("Hi"), report="x")
    lost = drive(mode, IdeasScorer(Says(None), method="rapporteur"), "score", talk("Hi"), report="x")
    assert lost.overall is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdherenceScorer(Says(1), JIM, sample=0),
        lambda: ConsistencyScorer(Says(1), pairs=True),
        lambda: FluencyScorer(Says(1), sets("adherence")),
        lambda: IdeasScorer(Says(1), method="guess"),  # type: ignore[arg-type]
    ],
)
def test_a_scorer_rejects_invalid_settings(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        make()


# The judged agent ---------------------------------------------------------------------------------

SIGNED = {"name": "Jim", "id": "jim", "another case": "JIM", "no name": None}


@MODES
@pytest.mark.parametrize("signed", SIGNED)
def test_the_personas_messages_are_found_however_they_are_signed(mode: str, signed: str) -> None:
    said = [HumanMessage("Hi"), AIMessage("I hate calm!!!", name=SIGNED[signed])]
    for messages in (said, Trajectory.from_messages(said)):
        judge = Says(scores(a=1))
        for scorer in (
            AdherenceScorer(judge, JIM, sets("adherence")),
            FluencyScorer(judge, sets("fluency"), personas=[JIM]),
            FluencyScorer(judge, sets("fluency"), agent="Jim" if signed == "no name" else SIGNED[signed]),
        ):
            found = drive(mode, scorer, "score", messages)
            assert (found.overall, found.sample_size) == (1, 1)
        assert judge.prompt().count("acts: [I hate calm!!!]") == 1


@MODES
def test_two_spellings_of_a_name_are_one_speaker(mode: str) -> None:
    judge = Says(scores())
    before, now = talk("one", by="jim"), talk("two", by="JIM")
    found = drive(mode, ConsistencyScorer(judge, personas=[JIM]), "score", now, before)
    assert found.sample_size == 1
    assert "> Jim acts: [one]\n> Jim acts: [two]" in judge.prompt()
    found = drive(mode, ConvergenceScorer(judge, personas=[JIM]), "score", [*before, *now])
    assert (found.overall, found.reason.startswith("only 'Jim' speaks")) == (None, True)


@MODES
def test_a_conversation_without_the_agent_has_no_score(mode: str) -> None:
    judge = Says(scores())
    others = room(("Pam", "Hi"), ("Al", "Ho"))
    heard = Trajectory.from_messages([HumanMessage("Hi")])
    for said in (others, heard):
        for found in (
            drive(mode, AdherenceScorer(judge, JIM), "score", said),
            drive(mode, AdherenceScorer(judge, JIM, unit="trajectory"), "score", said),
            drive(mode, FluencyScorer(judge, agent="Jim"), "score", said),
            drive(mode, ConsistencyScorer(judge, agent="Jim"), "score", said, talk("Hi")),
            drive(mode, ConsistencyScorer(judge, agent="Jim"), "score", talk("Hi"), said),
        ):
            assert found.overall is None
            assert found.reason
    assert drive(mode, ConvergenceScorer(judge), "score", heard).overall is None
    assert judge.calls == 0
    assert "speakers: 'Pam', 'Al'" in AdherenceScorer(judge, JIM).score(others).reason


def test_earlier_messages_of_another_agent_are_not_compared() -> None:
    with pytest.raises(ConfigurationError, match="got those of Pam, Jim"):
        ConsistencyScorer(Says(scores())).score(talk("Hi"), talk("Ho", by="Pam"))


def test_adherence_to_a_persona_without_a_text_is_refused() -> None:
    for nothing in ("", "  "):
        with pytest.raises(ConfigurationError, match="persona of 'Jim' cannot be judged"):
            AdherenceScorer(Says(1), Persona("Jim", nothing))


# Variables of claims ------------------------------------------------------------------------------


def reads(judge: Says) -> list[list[str]]:
    """The claim of each question, and the text below it that it is about."""
    block = r"(?:The claim.*|The draft|The task description):\n.*\n> (.*)"
    return [re.findall(block, prompt_of(request)) for request in judge.asked]


@MODES
@pytest.mark.parametrize("batch", [True, False])
def test_the_action_is_the_message_that_is_judged(mode: str, batch: bool) -> None:
    judge = Says(scores())
    said = room(("Jim", "one"), ("Pam", "two"), ("Jim", "three"))
    about = claim("a", "{{agent_name}} tells {{recipient_name}} {{action}}", include_personas=False)
    drive(mode, AdherenceScorer(judge, JIM, sets("adherence", about), batch=batch), "score", said)
    drive(
        mode,
        ConsistencyScorer(judge, sets("consistency", about), agent="Jim", batch=batch),
        "score",
        talk("four"),
        said,
    )
    about_it = "Jim tells Pam the draft below"
    assert reads(judge) == [[about_it, text] for text in ("one", "three", "four", "four")]


@MODES
def test_a_conversation_that_is_not_judged_shows_the_recipient(mode: str) -> None:
    """The judged texts remain those of the agent."""
    judge = Says(scores())
    about = claim("a", "{{agent_name}} teases {{recipient_name}}")
    before = room(("Jim", "one"), ("Pam", "orchard"))
    consistency, fluency = sets("consistency", about), sets("fluency", about)
    for unit in ("pair", "trajectory"):
        scorer = ConsistencyScorer(judge, consistency, agent="Jim", unit=unit)
        assert drive(mode, scorer, "score", talk("four"), talk("one"), before=before).overall == 7
    assert (
        drive(mode, FluencyScorer(judge, fluency, agent="Jim"), "score", talk("four"), before=before).overall
        == 7
    )
    assert all("Jim teases Pam" in prompt_of(request) for request in judge.asked)
    assert not any("orchard" in prompt_of(request) for request in judge.asked)


@MODES
def test_a_claim_about_an_unknown_recipient_has_no_score(mode: str) -> None:
    """The others count without it."""
    judge = Says(scores(a=1, b=5))
    both = sets("adherence", claim("a", "{{agent_name}} teases {{recipient_name}}"), claim("b"))
    said = room(("Jim", "one"), ("Pam", "two"), ("Al", "three"))
    found = drive(mode, AdherenceScorer(judge, JIM, both), "score", said)
    assert found.overall == 5
    assert found.reason == "a: there is no value for {{recipient_name}} here."
    alone = drive(mode, AdherenceScorer(judge, JIM, sets("adherence", both[0])), "score", said)
    assert alone.overall is None
    assert "{{recipient_name}}" in alone.reason


@MODES
def test_an_unfillable_claim_has_no_score_and_is_reported_when_the_scorer_is_made(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Says(scores(a=1, b=1))
    both = sets("adherence", claim("a", "{{agent_nam}} is calm"), claim("b"))
    with caplog.at_level("WARNING", "arbiter"):
        scorer = AdherenceScorer(judge, JIM, both)
    assert (
        "proposition 'a': there is no value for {{agent_nam}} here. Did you mean 'agent_name'?" in caplog.text
    )
    found = drive(mode, scorer, "score", talk("Hi"))
    assert found.overall == 1
    assert "agent_nam" in found.reason


def test_variables_of_the_user_fill_claims() -> None:
    judge = Says(scores())
    about = sets("adherence", claim("a", "helps to {{task_description}}"))
    AdherenceScorer(judge, JIM, about, variables={"task_description": "sell paper"}).score(talk("Hi"))
    assert reads(judge) == [["helps to the task description below", "sell paper"]]


@MODES
@pytest.mark.parametrize(("mood", "filled"), [(3, "3"), (2.5, "2.5"), (True, "True"), ("{{x}}", "{{x}}")])
def test_a_variable_can_be_a_number(mood: Any, filled: str, mode: str) -> None:
    """In a scorer and in a question to the engine; a precondition is shown the text."""
    seen: list[Any] = []

    def applies(target: Any, context: str, variables: Any) -> bool:
        seen.append(variables["mood"])
        return True

    about = claim(
        "a", "is in mood {{mood}}.", precondition=applies, recommendations_for_improvement="{{mood}}"
    )
    judge = Says(scores())
    scorer = AdherenceScorer(judge, JIM, sets("adherence", about), variables={"mood": mood})
    drive(mode, scorer, "score", talk("Hi"))
    target = Target(trajectory=talk("Hi"), agent="Jim")
    found = drive(mode, PropositionEngine(judge), "score", about, target, variables={"mood": mood})
    assert (found.claim, found.recommendations) == (f"is in mood {filled}.", filled)
    assert all(f"is in mood {filled}." in prompt_of(asked) for asked in judge.asked)
    assert seen == [filled, filled]


@MODES
@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"mood": None}, "'mood': expected a text or a number, got None"),
        ({"mood": {"now": "calm"}}, "'mood': expected a text or a number, got {'now'"),
        ({"mood": ["calm"]}, "'mood': expected a text or a number, got ['calm']"),
        ({"mood": object}, "'mood': expected a text or a number, got <class 'object'>"),
        ({3: "calm"}, "expected a name as key, got 3"),
        ("calm", "expected a mapping of names to texts, got 'calm'"),
        (["mood"], "expected a mapping of names to texts, got ['mood']"),
    ],
)
def test_a_variable_that_is_no_text_is_refused(variables: Any, why: str, mode: str) -> None:
    """When a scorer is made, and before a judge is asked; whether or not the claim uses it."""
    judge = Says(scores())
    for text in ("is in mood {{mood}}.", "is calm"):
        with pytest.raises(ConfigurationError, match=re.escape(why)):
            AdherenceScorer(judge, JIM, sets("adherence", claim("a", text)), variables=variables)
        target = Target(trajectory=talk("Hi"), agent="Jim")
        for method, asked in (("score", claim("a", text)), ("score_batch", [claim("a", text)])):
            with pytest.raises(ConfigurationError, match=re.escape(why)):
                drive(mode, PropositionEngine(judge), method, asked, target, variables=variables)
    assert not judge.calls


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Persona(3, "Calm."), "Persona: name: expected a text, got 3"),  # type: ignore[arg-type]
        (lambda: Persona("Jim", None), "Persona: description: expected a text"),  # type: ignore[arg-type]
        (lambda: Persona("Jim", "Calm.", 7), "Persona: id: expected a text, got 7"),  # type: ignore[arg-type]
        (lambda: Target(trajectory=talk("Hi"), agent=3), "Target: agent: expected a text"),  # type: ignore[arg-type]
        (lambda: Target(trajectory=talk("Hi"), channel=3), "Target: channel: expected a text"),  # type: ignore[arg-type]
        (lambda: Cast([JIM], channel=3), "channel: expected a text, got 3"),  # type: ignore[arg-type]
    ],
)
def test_a_name_that_is_no_text_is_refused(make: Any, why: str) -> None:
    """It fills a variable of a claim, so it is found before the run."""
    with pytest.raises(ConfigurationError, match=why):
        make()


# Windows and units --------------------------------------------------------------------------------

TALK = room(*(("Jim" if number % 2 else "Pam", f"m{number}") for number in range(8)))


def shown(judge: Says) -> list[list[int]]:
    """The numbers of the messages that each question shows."""
    return [[int(at) for at in re.findall(r"^> .*\[m(\d+)\]$", prompt_of(one), re.M)] for one in judge.asked]


@MODES
@pytest.mark.parametrize(
    ("windows", "seen"),
    [
        ({}, [[1], [3], [5], [7]]),
        ({"first_n": 0, "last_n": 1}, [[1], [3], [5], [7]]),
        ({"first_n": 0, "last_n": 2}, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ({"first_n": 1, "last_n": 0}, [[0, 1], [0, 3], [0, 5], [0, 7]]),
        ({"first_n": 10, "last_n": 100}, [[*range(2)], [*range(4)], [*range(6)], [*range(8)]]),
    ],
)
def test_windows_of_adherence_show_the_messages_before_each_message(
    mode: str, windows: Any, seen: Any
) -> None:
    judge = Says(scores())
    drive(mode, AdherenceScorer(judge, JIM, sets("adherence", claim("a", **windows))), "score", TALK)
    assert shown(judge) == seen
    assert all(prompt_of(one).count("Jim acts: [m") >= 1 for one in judge.asked)


@MODES
@pytest.mark.parametrize(
    ("windows", "seen"),
    [
        ({}, [1, 7]),
        ({"first_n": 0, "last_n": 1}, [1, 7]),
        ({"first_n": 0, "last_n": 3}, [6, 1, 7]),
        ({"first_n": 2, "last_n": 0}, [0, 2, 1, 7]),
    ],
)
def test_windows_of_consistency_keep_the_pair(mode: str, windows: Any, seen: Any) -> None:
    judge = Says(scores())
    scorer = ConsistencyScorer(judge, sets("consistency", claim("a", **windows)), agent="Jim")
    events = tuple(TALK)
    drive(mode, scorer, "score", Trajectory(events[4:5] + events[6:]), Trajectory(events[:3]))
    assert [sorted(found) for found in shown(judge)] == [sorted(seen)]


def test_the_windows_of_consistency_take_memory_for_the_judged_pairs_only() -> None:
    said = talk(*(f"m{at}" for at in range(3_000)))
    scorer = ConsistencyScorer(Says(scores()), sets("consistency", claim("a", last_n=3)), agent="Jim")
    tracemalloc.start()
    try:
        scorer.score(said, talk("m"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000  # a list of all messages before each takes 36 million bytes


def test_context_is_of_the_same_channel() -> None:
    judge = Says(scores())
    said = Trajectory.of(Event.action("Jim", f"m{at}", channel="ab"[at % 2]) for at in range(4))
    AdherenceScorer(judge, JIM, sets("adherence", claim("a", first_n=5, last_n=5))).score(said)
    assert shown(judge) == [[0], [1], [0, 2], [1, 3]]


@MODES
def test_a_trajectory_is_judged_as_a_whole(mode: str) -> None:
    """One score for each proposition and agent-session, with the windows of the propositions."""
    judge = Says(scores())
    scorer = AdherenceScorer(judge, JIM, sets("adherence", claim("a"), claim("b")), unit="trajectory")
    found = drive(mode, scorer, "score", TALK)
    assert (found.sample_size, judge.calls, shown(judge)) == (4, 1, [[*range(8)]])
    assert "--> Jim from Pam: [m0]" in judge.prompt()
    narrow = sets("adherence", claim("a", first_n=1, last_n=2))
    drive(mode, AdherenceScorer(judge, JIM, narrow, unit="trajectory"), "score", TALK)
    assert shown(judge)[-1] == [0, 6, 7]


@MODES
def test_the_consistency_of_a_trajectory_takes_no_history(mode: str) -> None:
    judge = Says(scores())
    scorer = ConsistencyScorer(judge, agent="Jim", unit="trajectory")
    found = drive(mode, scorer, "score", TALK)
    assert (found.sample_size, judge.calls, shown(judge)) == (4, 1, [[*range(8)]])
    both = drive(mode, scorer, "score", Trajectory(TALK.events[4:]), Trajectory(TALK.events[:4]))
    assert (both.sample_size, shown(judge)[-1]) == (4, [*range(8)])
    assert drive(mode, scorer, "score", talk("Hi")).overall is None
    with pytest.raises(ConfigurationError, match="pass a history"):
        ConsistencyScorer(judge, agent="Jim").score(TALK)


def test_an_unknown_unit_is_refused() -> None:
    unit: Any = "session"
    with pytest.raises(ConfigurationError, match="unit: expected 'message' or 'trajectory', got 'session'"):
        AdherenceScorer(Says(1), JIM, unit=unit)
    with pytest.raises(ConfigurationError, match="unit: expected 'pair' or 'trajectory', got 'session'"):
        ConsistencyScorer(Says(1), unit=unit)


# Conversations as users have them ------------------------------------------------------------------

CHAT = [HumanMessage("Shall we?"), AIMessage("No.", name="Jim")]


@pytest.mark.parametrize(
    "messages",
    [
        CHAT,
        tuple(CHAT),
        iter(CHAT),
        [{"role": "user", "content": "Shall we?"}, {"role": "assistant", "content": "No.", "name": "Jim"}],
        [("user", "Shall we?"), CHAT[1]],
    ],
    ids=["list", "tuple", "iterator", "dicts", "pairs"],
)
def test_a_trajectory_takes_any_form_of_message_that_langchain_accepts(messages: Any) -> None:
    assert Trajectory.from_messages(messages) == Trajectory.from_messages(CHAT)


@pytest.mark.parametrize(
    ("messages", "remedy"),
    [
        ("No.", "expected a list of messages, got a text: 'No.'"),
        ({"messages": CHAT}, "pass state['messages']"),
        (None, "got a NoneType"),
        (["No."], "got the text 'No.', which does not say who speaks"),
        ([{"role": "bard", "content": "No."}], "Unexpected message type: 'bard'"),
        ([{"content": "No."}], "must contain 'role'"),
        ([3.5], "Unsupported message type"),
    ],
)
def test_a_trajectory_of_anything_else_is_an_error_that_names_the_remedy(messages: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Trajectory.from_messages(messages)
    assert remedy in str(caught.value)


def test_a_name_is_a_personas_by_name_id_or_another_spelling_of_them() -> None:
    names = Names(
        [Persona("Ilka Brandt", "x", "ilka"), Persona("Pam", "y", "pam"), Persona("PÄM", "z", "Pam")]
    )
    for written in ("Ilka Brandt", "ilka", "ILKA", "Ilka_Brandt", "ilka-brandt", " Ilka  Brandt "):
        assert names.find(written) == "Ilka Brandt"
    assert names.find("Pam") == "Pam"
    assert [names.find(written) for written in ("PAM", "Ilka B", "", "?")] == [None] * 4


def test_scorers_take_messages_folders_and_files(tmp_path: Path) -> None:
    judge = Says(scores())
    said: Any
    for said in (
        CHAT,
        [{"role": "assistant", "content": "No.", "name": "Jim"}],
        list(Trajectory.from_messages(CHAT)),
    ):
        assert AdherenceScorer(judge, JIM).score(said).sample_size == 1
        assert ConsistencyScorer(judge, agent="Jim").score(said, said).sample_size == 1
        assert FluencyScorer(judge, agent="Jim").score(said).sample_size == 1
        assert ConvergenceScorer(judge).score(said).overall is None
    assert IdeasScorer(Says({"ideas": ["a"]})).score(CHAT).overall == 1
    (tmp_path / "adherence").mkdir()
    (tmp_path / "adherence" / "jim.yaml").write_text(
        "dimension: adherence\nagent_id: jim\npropositions: [{id: own, claim: is calm}]\n"
    )
    for folder in (tmp_path, str(tmp_path)):
        assert [found.id for found in AdherenceScorer(judge, JIM, folder).propositions] == ["own"]
    assert len(AdherenceScorer(judge, JIM, [claim("a"), claim("b")]).propositions) == 2
    assert AdherenceScorer(judge, "arbiter:ilka").persona.name == "Ilka Brandt"


@pytest.mark.parametrize("given", ["No.", None, 3, {"messages": CHAT}, ["No."]])
def test_scorers_reject_invalid_conversations(given: Any) -> None:
    judge = Says(scores())
    for scorer in (
        AdherenceScorer(judge, JIM),
        FluencyScorer(judge),
        ConvergenceScorer(judge),
        IdeasScorer(judge),
    ):
        with pytest.raises(ConfigurationError, match="expected"):
            scorer.score(given)
