"""Several votes on a question, scores by element, and elements without a judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from arbiter import ArbiterOS, ArbiterWarning
from arbiter.errors import ConfigurationError
from arbiter.evaluators import JudgeEvaluator
from arbiter.models import judged_thread
from arbiter.personas import (
    AdherenceEvaluator,
    AdherenceScorer,
    ConvergenceScorer,
    IdeasScorer,
    JudgeReply,
    JudgeRequest,
    MockJudge,
    PropositionEngine,
    PropositionSet,
    RecordingError,
    RecordingJudge,
)
from tests.personas.personas_support import JIM, Says, claim, drive, scores, talk, target
from tests.personas.test_evaluators import judged, speaking
from tests.support import MODES, no_room_after, thread


def by_vote(*values: Any) -> Says:
    """Answers with one value for each vote."""
    return Says(lambda request: scores(p=values[request.vote])(request))


@MODES
def test_score_of_several_votes_is_their_mean(mode: str) -> None:
    judge = by_vote(8, 6, 5)
    result = drive(mode, PropositionEngine(judge, votes=3), "score", claim(), target())
    assert (result.score, result.raw, result.votes) == (19 / 3, 19 / 3, (8.0, 6.0, 5.0))
    assert result.calls == 3
    assert [request.vote for request in judge.asked] == [0, 1, 2]
    assert len({request.key for request in judge.asked}) == 1  # the judge sees the same question


@MODES
def test_votes_of_a_batch(mode: str) -> None:
    """Three votes on two claims are three questions. A vote that fails counts in no mean."""

    def answer(request: JudgeRequest) -> Any:
        if request.vote == 1:
            raise ConnectionError("no line")
        return scores(p=[8, 0, 4][request.vote], q=3)(request)

    found = drive(
        mode, PropositionEngine(Says(answer), votes=3), "score_batch", [claim(), claim("q")], target()
    )
    assert [(one.score, one.votes) for one in found] == [(6.0, (8.0, 4.0)), (3.0, (3.0, 3.0))]
    assert found.calls == 3


@MODES
@pytest.mark.parametrize(("votes", "result"), [((True, False, True), True), ((False, True, False), False)])
def test_most_votes_decide_a_check(votes: Any, result: bool, mode: str) -> None:
    found = drive(mode, PropositionEngine(by_vote(*votes), votes=3), "check", claim(), target())
    assert found.result is result


@pytest.mark.parametrize("votes", [0, -1, 2.5, True, "3"])
def test_votes_are_a_whole_number_from_1(votes: Any) -> None:
    with pytest.raises(ConfigurationError, match="votes"):
        PropositionEngine(Says(7), votes=votes)


CLAIM = PropositionSet("adherence", [claim("p", "{{action}} is calm")])


def test_elements_are_known_by_what_was_judged() -> None:
    """Two results of the same messages pair, in whatever order; a repeated message is an element of its own."""

    def answer(request: JudgeRequest) -> Any:
        return scores(p=8 if "Hi" in str(request.messages[-1].text) else 4)(request)

    scorer = AdherenceScorer(Says(answer), JIM, CLAIM)
    one = scorer.score(talk("Hi", "Go away", "Hi"))
    other = scorer.score(talk("Go away", "Hi", "Hi"))
    assert {part.id: part.score for part in one.elements} == {part.id: part.score for part in other.elements}
    assert sorted(part.score or 0 for part in one.elements) == [4.0, 8.0, 8.0]
    assert len({part.id for part in one.elements}) == 3
    assert (one.judged, one.outcome) == (3, "scored")


def unseen(request: JudgeRequest) -> Any:
    found = scores(p=3)(request)
    for part in found.get("judgements", [found]):
        part["evidence_present"] = False
    return found


@pytest.mark.parametrize(
    ("answer", "outcome", "overall"),
    [
        (7, "scored", 7.0),
        (unseen, "not_applicable", 9.0),
        (TimeoutError("late"), "timeout", None),
        (ConnectionError("no line"), "error", None),
    ],
)
def test_an_unjudged_nine_differs_from_a_judged_one(answer: Any, outcome: str, overall: float | None) -> None:
    judge = Says(scores(p=answer) if isinstance(answer, int) else answer)
    result = AdherenceScorer(judge, JIM, CLAIM).score(talk("Hi"))
    assert (result.outcome, result.overall) == (outcome, overall)
    assert [part.outcome for part in result.elements] == [outcome]
    item = judged(
        AdherenceEvaluator(persona=JIM, judge=judge, propositions=CLAIM),
        {"messages": [{"role": "assistant", "content": "Hi", "name": "Jim"}]},
    )
    assert dict(item.evaluation_outcomes) == {"adherence": outcome}
    if overall is not None:
        evaluator = AdherenceEvaluator(persona=JIM, judge=judge, propositions=CLAIM)
        assert evaluator.value_of(item.evaluation_results["adherence"]) == overall
        assert evaluator.scale == (0.0, 9.0)


def test_empty_conversation_and_a_single_speaker_are_not_judged() -> None:
    scorer = AdherenceScorer(Says(7), JIM, CLAIM)
    assert (scorer.score([]).overall, scorer.score([]).outcome) == (9.0, "not_applicable")
    assert ConvergenceScorer(Says(7)).score(talk("Hi")).outcome == "not_applicable"
    assert IdeasScorer(Says(7)).score([]).outcome == "not_applicable"


@MODES
def test_ideas_of_several_votes_are_their_mean(mode: str) -> None:
    judge = Says(lambda request: {"ideas": ["a", "b", "c"][: request.vote + 1]})
    result = drive(mode, IdeasScorer(PropositionEngine(judge, votes=2)), "score", talk("Hi"))
    assert (result.overall, result.judged, result.outcome) == (1.5, 2, "scored")


# Recordings ---------------------------------------------------------------------------------------


@MODES
def test_every_vote_is_recorded_and_replayed(mode: str, tmp_path: Path) -> None:
    """Of the votes 8 and 6 both are kept, and a replay has both again."""
    recorder = RecordingJudge(by_vote(8, 6), tmp_path / "judgements.jsonl")
    first = drive(mode, PropositionEngine(recorder, votes=2), "score", claim(), target())
    recorder.save(tmp_path / "judgements.json")
    for source in (recorder.recording, tmp_path / "judgements.json", tmp_path / "judgements.jsonl"):
        mock = MockJudge(source)
        again = drive(mode, PropositionEngine(mock, votes=2), "score", claim(), target())
        assert again == first
        assert again.votes == (8.0, 6.0)
        mock.check_used()


def test_question_that_is_asked_again_gets_the_next_answer() -> None:
    answers = iter([8, 6])
    recorder = RecordingJudge(Says(lambda request: {"score": next(answers)}))
    assert [PropositionEngine(recorder).score(claim(), target()).score for _ in range(2)] == [8.0, 6.0]
    mock = PropositionEngine(MockJudge(recorder.recording))
    assert [mock.score(claim(), target()).score for _ in range(3)] == [8.0, 6.0, 6.0]


def test_recording_with_too_few_votes_is_an_error() -> None:
    recorder = RecordingJudge(by_vote(8))
    PropositionEngine(recorder).score(claim(), target())
    with pytest.raises(RecordingError, match="no vote 2"):
        PropositionEngine(MockJudge(recorder.recording), votes=2, concurrency=1).score(claim(), target())


def test_crash_loses_no_answer_that_was_recorded(tmp_path: Path) -> None:
    """Each answer is in the file before the next question is asked."""
    path = tmp_path / "judgements.jsonl"
    seen: list[int] = []

    def answer(request: JudgeRequest) -> Any:
        seen.append(len(path.read_text().splitlines()))
        return {"score": 7}

    engine = PropositionEngine(RecordingJudge(Says(answer), path))
    for text in ("one", "two", "three"):
        engine.score(claim(), target(text))
    assert seen == [0, 1, 2]


def test_a_recording_stays_in_its_file_if_the_program_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    engine = PropositionEngine(RecordingJudge(Says({"score": 7}), "judgements.jsonl"))
    engine.score(claim(), target("one"))
    monkeypatch.chdir("elsewhere")
    engine.score(claim(), target("two"))
    assert len((tmp_path / "judgements.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("odd", ["a\u2028b\x85c\x0b", "half \ud83d", "é\n"])
def test_any_reasoning_can_be_recorded(odd: str, tmp_path: Path) -> None:
    recorder = RecordingJudge(Says({"score": 7, "reasoning": odd}), tmp_path / "judgements.jsonl")
    assert PropositionEngine(recorder).score(claim(), target()).reasoning == odd
    recorder.save(tmp_path / "judgements.json")
    for name in ("judgements.jsonl", "judgements.json"):
        assert PropositionEngine(MockJudge(tmp_path / name)).score(claim(), target()).reasoning == odd


def test_a_recording_that_met_a_full_disk_has_all_answers_but_that(tmp_path: Path) -> None:
    path = tmp_path / "judgements.jsonl"
    engine = PropositionEngine(RecordingJudge(Says({"score": 7, "reasoning": "é" * 200}), path))
    engine.score(claim(), target("one"))
    with no_room_after(path.stat().st_size + 100):
        assert engine.score(claim(), target("two")).score is None
    texts = ("one", "three", "two")
    for text in texts[1:]:
        engine.score(claim(), target(text))
    again = PropositionEngine(MockJudge(path))
    assert [again.score(claim(), target(text)).score for text in texts] == [7.0, 7.0, 7.0]


def test_a_full_disk_takes_no_line_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Any = Path.open
    path, others = tmp_path / "judgements.jsonl", b'{"name": "other", "value": null}\n'
    recorder = RecordingJudge(Says({"score": 7, "reasoning": "é" * 200}), path)

    def meanwhile(self: Path, *options: Any, **named: Any) -> Any:
        file: Any = opened(self, *options, **named)
        with opened(self, "ab") as other:
            other.write(others)
        return file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", meanwhile)
        with no_room_after(len(others) + 100):
            assert PropositionEngine(recorder).score(claim(), target()).score is None
    assert path.read_bytes() == others


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_recording_that_was_cut_off_has_all_answers_but_the_last(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "judgements.jsonl"
    engine = PropositionEngine(RecordingJudge(Says({"score": 7, "reasoning": "é" * 200}), path))
    for text in ("one", "two"):
        engine.score(claim(), target(text))
    path.write_bytes(path.read_bytes()[: -1 - cut])
    with pytest.warns(ArbiterWarning, match="the last line is cut off, and left out"):
        mock = MockJudge(path)
    assert PropositionEngine(mock).score(claim(), target("one")).score == 7.0
    with pytest.raises(RecordingError):
        PropositionEngine(mock).score(claim(), target("two"))


def test_a_recording_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "judgements.jsonl"
    PropositionEngine(RecordingJudge(by_vote(8), path)).score(claim(), target())
    recorded = path.read_bytes()
    with pytest.raises(ConfigurationError, match="has a recording already"):
        RecordingJudge(by_vote(6), path)
    assert path.read_bytes() == recorded
    with pytest.raises(ConfigurationError, match="cannot be written: No such file"):
        RecordingJudge(by_vote(6), tmp_path / "none" / "judgements.jsonl")
    with pytest.raises(ConfigurationError, match="cannot be written: Is a directory"):
        RecordingJudge(by_vote(6), tmp_path)


# Other judges in the place of an evaluator's own ---------------------------------------------------


@MODES
def test_rubric_judge_takes_a_judge_and_votes(mode: str) -> None:
    """The grade is the mean of the votes that gave one; the copy leaves the evaluator as it was."""

    def answer(request: JudgeRequest) -> Any:
        return None if request.vote == 1 else {"score": [8, 0, 5][request.vote], "reasoning": "So."}

    own = Says(answer)
    evaluator = JudgeEvaluator("j", "Good.", own, at_least=0.6)
    result = judged(evaluator.with_judges(lambda judge: judge, votes=3), {"messages": []}, mode=mode)
    found = result.evaluation_results["j"]
    assert (found.score, found.passed, found.metadata["votes"]) == (0.65, True, [8, 5])
    assert found.metadata["usage"]["input_tokens"] == 30
    assert (evaluator.votes, evaluator.with_judges(lambda judge: judge).votes) == (1, 1)


@pytest.mark.parametrize(
    "evaluator",
    [
        JudgeEvaluator("j", "Good.", Says({"score": 0})),
        AdherenceEvaluator("j", persona=JIM, judge=Says(scores(p=0)), propositions=CLAIM),
    ],
    ids=lambda evaluator: type(evaluator).__name__,
)
def test_judges_of_an_evaluator_can_be_replaced(evaluator: Any) -> None:
    """The other judge is asked in place of the evaluator's own, and sees on which thread."""
    threads: list[str | None] = []

    class Wrapped:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def judge(self, request: JudgeRequest) -> JudgeReply:
            threads.append(judged_thread.get())
            self.inner.judge(request)
            return JudgeReply(value={"reasoning": "", "score": 9, "judgements": [{"id": "p", "score": 9}]})

        async def ajudge(self, request: JudgeRequest) -> JudgeReply:
            return self.judge(request)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator.with_judges(Wrapped))
    app = arbiter_os.govern(speaking({"messages": [AIMessage("Hi", name="Jim")]}))
    app.invoke({"messages": []}, thread("case-1"))
    assert arbiter_os.history_of(thread_id="case-1").item.evaluation_results["j"].score > 0.8
    assert threads == ["case-1"]
    assert evaluator.version == evaluator.with_judges(Wrapped, votes=3).version
