"""How a run asks its judges: recorded, replayed, cached, counted and limited; and what makes a recording stale."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from arbiter import ArbiterOS
from arbiter.errors import ArbiterWarning, ConfigurationError
from arbiter.evaluators import JudgeEvaluator
from arbiter.harness import Case, Suite
from arbiter.harness.cache import Cache
from arbiter.harness.identity import Identity, JudgeIdentity, file_hashes
from arbiter.harness.judging import Judging
from arbiter.harness.limits import Limits
from arbiter.harness.recordings import Place, Recording
from arbiter.harness.usage import Spent
from arbiter.models import JudgeRequest, RecordingError, judged_thread
from arbiter.personas import (
    AdherenceEvaluator,
    AdherenceScorer,
    GateConfig,
    Persona,
    PersonaGate,
    Proposition,
    PropositionSet,
)
from tests.harness.measurements import purse
from tests.personas.personas_support import Says, talk
from tests.personas.test_evaluators import speaking
from tests.scripted import EndpointError, Scripted, usage
from tests.support import MODES, run, thread

CLAIM = "{{agent_name}} is calm"


class Named(Scripted):
    model: str = "judge-1"
    temperature: float = 0.0

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model": self.model, "temperature": self.temperature}


def grade(score: int) -> AIMessage:
    text = json.dumps({"reasoning": "So.", "score": score, "judgements": [{"id": "p", "score": score}]})
    return AIMessage(text, usage_metadata=usage(10, 2))


def rubric(model: Any, text: str = "Good.") -> JudgeEvaluator:
    return JudgeEvaluator("tone", text, model)


def adherence(model: Any, claim: str = CLAIM, persona: str = "Calm.") -> AdherenceEvaluator:
    claims = PropositionSet("adherence", [Proposition("p", claim)])
    return AdherenceEvaluator("tone", persona=Persona("Jim", persona), judge=model, propositions=claims)


def measured(
    judging: Judging,
    evaluator: Any,
    *,
    cases: Mapping[str, str] | None = None,
    repeats: int = 1,
    mode: str = "sync",
) -> dict[str, Any]:
    """The evaluator's results by case × repeat, on a governed graph that says what the case is."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(judging.evaluator(evaluator))
    found: dict[str, Any] = {}
    for case, text in (cases or {"one": "Hi"}).items():
        app = arbiter_os.govern(speaking({"messages": [AIMessage(text, name="Jim")]}))
        for repeat in range(repeats):
            id = f"run:{case}:{repeat}"
            judging.begin(id, Place(case, repeat))
            run(app, {"messages": []}, thread(id), mode=mode)
            item = arbiter_os.history_of(thread_id=id).item
            result = item.evaluation_results.get("tone")
            found[f"{case}:{repeat}"] = dict(item.evaluation_outcomes) if result is None else result.score
            judging.end(id)
    return found


def recorded(folder: Path, evaluator: Any, **known: Any) -> dict[str, Any]:
    recordings = Recording(folder, "record")
    found = measured(Judging(recordings=recordings, votes=known.pop("votes", None)), evaluator, **known)
    recordings.close()
    return found


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a replay opens no connection")

    monkeypatch.setattr(socket.socket, "connect", refused)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("kind", [rubric, adherence])
@pytest.mark.usefixtures("no_network")
def test_recorded_judgements_are_replayed_without_a_call(kind: Any, mode: str, tmp_path: Path) -> None:
    """Three repeats × two votes are six judgements, each with its own answer; a second recording asks none."""
    model = Named(answers=[grade(score) for score in (8, 6, 7, 3, 5, 9)])
    first = recorded(tmp_path, kind(model), repeats=3, votes=2, mode=mode)
    assert model.calls == 6
    files = (tmp_path / "judgements.jsonl").read_bytes()
    assert recorded(tmp_path, kind(model), repeats=3, votes=2, mode=mode) == first
    assert model.calls == 6
    assert (tmp_path / "judgements.jsonl").read_bytes() == files

    silent = Named(answers=[AssertionError("asked")])
    recordings = Recording(tmp_path)
    judging = Judging(recordings=recordings, votes=2)
    assert measured(judging, kind(silent), repeats=3, mode=mode) == first
    recordings.check(strict=True)
    assert silent.calls == 0
    assert judging.usage.total == Spent(replayed_calls=6, replayed_tokens=72)


def test_an_answer_of_a_judge_that_could_not_be_read_is_recorded_again(tmp_path: Path) -> None:
    """A replay has it meanwhile: it is what the judge said."""
    assert recorded(tmp_path, rubric(Named(answers=["?"]))) == {"one:0": {"tone": "abstained"}}
    silent = rubric(Named(answers=[AssertionError("asked")]))
    assert measured(Judging(recordings=Recording(tmp_path)), silent) == {"one:0": {"tone": "abstained"}}
    again = Named(answers=[grade(8)])
    assert recorded(tmp_path, rubric(again)) == recorded(tmp_path, rubric(again))
    assert again.calls == 1
    assert len((tmp_path / "judgements.jsonl").read_text().splitlines()) == 1


def test_claims_that_were_asked_one_by_one_are_not_asked_together_again(tmp_path: Path) -> None:
    """A model that cannot answer several at once would be paid for that with each recording."""
    judge = Named(answers=["?", "?", grade(8)])
    first = recorded(tmp_path, adherence(judge))
    assert (judge.calls, first) == (3, {"one:0": pytest.approx(8 / 9)})
    assert recorded(tmp_path, adherence(judge)) == first
    assert judge.calls == 3


CHANGES: dict[str, tuple[Any, str]] = {
    "rubric": (rubric(Named(answers=["?"]), "Short."), "its rubric changed"),
    "model": (
        rubric(Named(answers=["?"], model="judge-2")),
        "the model of its judge changed from 'named:judge-1' to 'named:judge-2'",
    ),
    "temperature": (
        rubric(Named(answers=["?"], temperature=0.7)),
        "the temperature of its judge changed from 0.0",
    ),
}


@pytest.mark.parametrize(("changed", "why"), CHANGES.values(), ids=CHANGES)
def test_stale_judgement_names_the_change(changed: Any, why: str, tmp_path: Path) -> None:
    recorded(tmp_path, rubric(Named(answers=[grade(8)])))
    recordings = Recording(tmp_path)
    assert measured(Judging(recordings=recordings), changed) == {"one:0": {"tone": "error"}}
    with pytest.raises(RecordingError) as raised:
        recordings.check()
    assert f"tone of one (repeat 1): {why}" in str(raised.value)
    assert "arbiter eval record" in str(raised.value)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"claim": "{{agent_name}} is loud"}, "its claims changed"),
        ({"persona": "Loud."}, "its persona changed"),
    ],
)
def test_stale_judgement_of_a_persona(known: Any, why: str, tmp_path: Path) -> None:
    recorded(tmp_path, adherence(Named(answers=[grade(8)])))
    recordings = Recording(tmp_path)
    measured(Judging(recordings=recordings), adherence(Named(answers=["?"]), **known))
    with pytest.raises(RecordingError, match=why):
        recordings.check()


@pytest.mark.lengthy
def test_another_answer_of_the_target_differs_from_a_new_case(tmp_path: Path) -> None:
    recorded(tmp_path, rubric(Named(answers=[grade(8)])))
    recordings = Recording(tmp_path)
    measured(
        Judging(recordings=recordings), rubric(Named(answers=["?"])), cases={"one": "Go", "two": "Hi there"}
    )
    assert recordings.missing == [
        "tone of one (repeat 1): the judged text changed",
        "tone of two (repeat 1): the case was never judged",
    ]
    assert recordings.unused == ["tone of one (repeat 1)"]
    recordings.missing.reverse()  # they are reported in one order, whichever case was done first
    with pytest.raises(
        RecordingError, match=r"2 recordings are missing or stale.*\n.*tone of one.*\n.*tone of two"
    ):
        recordings.check()


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        ([0, 2], "vote 2: only votes 1, 3 were recorded"),
        ([0], "vote 2: only vote 1 was recorded"),
        ([1, 2], "(repeat 1): only votes 2, 3 were recorded"),
    ],
)
def test_a_missing_vote_is_reported_with_the_recorded_ones(
    kept: Sequence[int], why: str, tmp_path: Path
) -> None:
    recorded(tmp_path, rubric(Named(answers=[grade(8)])), votes=3)
    path = tmp_path / "judgements.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["vote"] in kept))
    recordings = Recording(tmp_path)
    measured(Judging(recordings=recordings, votes=3), rubric(Named(answers=["?"])))
    assert recordings.missing[0].endswith(why)


def test_only_stale_questions_are_asked_again(tmp_path: Path) -> None:
    """The file then has the new judgement and not the old one; other cases keep theirs."""
    recorded(tmp_path, rubric(Named(answers=[grade(8), grade(6)])), cases={"one": "Hi", "two": "Go"})
    model = Named(answers=[grade(2)])
    found = recorded(tmp_path, rubric(model), cases={"one": "Hello"})
    assert (found, model.calls) == ({"one:0": 0.2}, 1)
    lines = [json.loads(line) for line in (tmp_path / "judgements.jsonl").read_text().splitlines()]
    assert sorted((line["case"], line["value"]["score"]) for line in lines) == [("one", 2), ("two", 6)]
    assert [line["key"] for line in lines] == sorted(line["key"] for line in lines)


def test_record_again_takes_no_earlier_answer(tmp_path: Path) -> None:
    recorded(tmp_path, rubric(Named(answers=[grade(8)])))
    recordings = Recording(tmp_path, "record", again=True)
    assert measured(Judging(recordings=recordings), rubric(Named(answers=[grade(3)]))) == {"one:0": 0.3}
    recordings.close()
    assert measured(Judging(recordings=Recording(tmp_path)), rubric(Named(answers=["?"]))) == {"one:0": 0.3}


def test_outdated_judgement_is_taken_only_if_that_is_allowed(tmp_path: Path) -> None:
    recorded(tmp_path, rubric(Named(answers=[grade(8)])))
    recordings = Recording(tmp_path, allow_stale=True)
    changed = rubric(Named(answers=["?"]), "Short.")
    assert measured(Judging(recordings=recordings), changed) == {"one:0": 0.8}
    recordings.check(strict=True)
    assert recordings.outdated == ["tone of one (repeat 1): its rubric changed"]


def test_double_checks_are_recorded_and_replayed(tmp_path: Path) -> None:
    claims = PropositionSet("adherence", [Proposition("p", CLAIM, double_check=True)])

    def checked(model: Any) -> AdherenceEvaluator:
        return AdherenceEvaluator("tone", persona=Persona("Jim", "Calm."), judge=model, propositions=claims)

    model = Named(answers=[grade(8), grade(6)])
    first = recorded(tmp_path, checked(model))
    assert model.calls == 2
    silent = Named(answers=[AssertionError("asked")])
    assert measured(Judging(recordings=Recording(tmp_path)), checked(silent)) == first


def test_judgements_are_written_as_they_come(tmp_path: Path) -> None:
    """A run that dies after two judgements has paid for two, and keeps them."""
    model = Named(answers=[grade(8), grade(6), KeyError("the process dies")])
    recordings = Recording(tmp_path, "record")
    cases = {"one": "1", "two": "2", "three": "3"}
    measured(Judging(recordings=recordings), rubric(model), cases=cases)
    assert len((tmp_path / "judgements.jsonl").read_text().splitlines()) == 2
    recordings.close()
    more = Named(answers=[grade(1)])
    assert recorded(tmp_path, rubric(more), cases=cases) == {"one:0": 0.8, "two:0": 0.6, "three:0": 0.1}
    assert more.calls == 1


# Answers ------------------------------------------------------------------------------------------


TARGET = {"app.py": "a1", "prompts/ask.txt": "b1"}


def test_answers_of_a_target_are_kept_by_input_target_and_repeat(tmp_path: Path) -> None:
    recordings = Recording(tmp_path / "refunds", "record")
    for repeat in range(2):
        assert recordings.answer(Place("one", repeat), input={"q": 1}, target=TARGET) is None
        recordings.keep_answer(
            Place("one", repeat),
            input={"q": 1},
            target=TARGET,
            answer={"status": "completed", "output": f"answer {repeat}"},
        )
    recordings.close()
    replay = Recording(tmp_path / "refunds")
    cases = {Place("one", repeat): {"q": 1} for repeat in range(2)}
    replay.check_answers(cases, TARGET)
    outputs = [replay.answer(place, input=input, target=TARGET) for place, input in cases.items()]
    assert [found and found["output"] for found in outputs] == ["answer 0", "answer 1"]
    replay.check(strict=True)


@pytest.mark.parametrize(
    ("place", "input", "target", "why"),
    [
        (Place("one"), {"q": 2}, TARGET, "its input changed"),
        (Place("one"), {"q": 1}, {**TARGET, "prompts/ask.txt": "b2"}, "prompts/ask.txt changed"),
        (Place("one"), {"q": 1}, {"app.py": "a1"}, "prompts/ask.txt is gone"),
        (Place("one"), {"q": 1}, {**TARGET, "tools.py": "c"}, "tools.py is new"),
        (Place("one", 1), {"q": 1}, TARGET, "it was never recorded"),
        (Place("two"), {"q": 3}, TARGET, "it was never recorded"),
    ],
)
def test_stale_answer_names_the_change(
    place: Place, input: Any, target: Mapping[str, str], why: str, tmp_path: Path
) -> None:
    """Before the first case runs, and all of them at once."""
    recordings = Recording(tmp_path, "record")
    recordings.keep_answer(
        Place("one"), input={"q": 1}, target=TARGET, answer={"status": "completed", "output": 1}
    )
    recordings.close()
    with pytest.raises(RecordingError, match=f"the answer to .*: {why}"):
        Recording(tmp_path).check_answers({place: input}, target)
    with pytest.raises(RecordingError, match=why):
        Recording(tmp_path).answer(place, input=input, target=target)


# Files --------------------------------------------------------------------------------------------


def test_files_that_are_no_recordings_are_refused_with_their_line(tmp_path: Path) -> None:
    recorded(tmp_path, rubric(Named(answers=[grade(8)])))
    path = tmp_path / "judgements.jsonl"
    whole = path.read_text()
    for broken, why in (
        ("{\n" + whole, "judgements.jsonl:1: "),
        (whole + "[]\n" + whole, ":2: .*not a JSON object"),
        (whole.replace('"v": 1', '"v": 2'), "format 2"),
        (whole.replace('"row"', '"line"'), "without 'row'"),
        (whole.replace('"value"', '"was"'), "without a value"),
        (whole.replace('"vote": 0', '"vote": [0]'), "repeat or vote is no number"),
        (whole.replace('"row": "tone"', '"row": ["tone"]'), "case or row is no text"),
        (whole.replace('"judge": {', '"judge": 1, "was": {'), "judge, parts or details are no JSON object"),
        (whole.replace('"parts": {', '"parts": 1, "were": {'), "judge, parts or details are no JSON object"),
    ):
        path.write_text(broken)
        with pytest.raises(RecordingError, match=why):
            Recording(tmp_path)
    path.write_text(whole + whole[:40])
    with pytest.warns(ArbiterWarning, match=r"judgements.jsonl:2: a torn last line"):
        assert len(Recording(tmp_path).unused) == 1


@pytest.mark.lengthy
def test_recording_again_replaces_lines_that_cannot_be_read(tmp_path: Path) -> None:
    """Of another format, or with the marks of a merge."""
    cases = {"one": "1", "two": "2", "three": "3"}
    recorded(tmp_path, rubric(Named(answers=[grade(8), grade(6), grade(4)])), cases=cases)
    path = tmp_path / "judgements.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text(first.replace('"v": 1', '"v": 2') + "<<<<<<< HEAD\n" + "".join(others))
    model = Named(answers=[grade(1)])
    with pytest.warns(ArbiterWarning, match=r"judgements.jsonl:1: .*format 2.*, and 1 more of its lines"):
        found = recorded(tmp_path, rubric(model), cases=cases)
    assert model.calls == 1
    assert (
        measured(Judging(recordings=Recording(tmp_path)), rubric(Named(answers=["?"])), cases=cases) == found
    )


def test_recording_removes_broken_lines_that_no_question_needs(tmp_path: Path) -> None:
    recorded(tmp_path, rubric(Named(answers=[grade(8)])))
    path = tmp_path / "judgements.jsonl"
    whole = path.read_text()
    path.write_text("=======\n" + whole)
    with pytest.warns(ArbiterWarning, match="what it was about is asked again"):
        recorded(tmp_path, rubric(Named(answers=["?"])))
    assert path.read_text() == whole


def test_secret_in_a_recording_is_a_warning(tmp_path: Path) -> None:
    """The files are meant to be committed."""
    recordings = Recording(tmp_path, "record")
    with pytest.warns(ArbiterWarning, match="looks like a secret"):
        recordings.keep_answer(
            Place("one"),
            input=1,
            target=TARGET,
            answer={"status": "completed", "output": "key sk-proj-Zk3Jx9vQ2mT7bLw8RfYc1dNa"},
        )


# The cache ----------------------------------------------------------------------------------------


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", [rubric, adherence])
def test_cached_judgements_cost_nothing_and_stay_apart(kind: Any, tmp_path: Path) -> None:
    """Two repeats × two votes of one question are four answers, in another run of another process too."""
    model = Named(answers=[grade(score) for score in (8, 6, 4, 2)])
    with_cache = Judging(cache=Cache(tmp_path / "cache.sqlite"), votes=2)
    first = measured(with_cache, kind(model), repeats=2)
    again = Judging(cache=Cache(tmp_path / "cache.sqlite"), votes=2)
    assert measured(again, kind(model), repeats=2) == first
    assert first["one:0"] != first["one:1"]
    assert model.calls == 4
    assert again.usage.total.replayed_calls == 4
    assert again.usage.total.calls == 0
    other = Named(answers=[grade(1)], temperature=0.5)
    assert measured(again, kind(other))["one:0"] != first["one:0"]


def test_failures_and_unreadable_answers_are_not_cached(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    for answers in (["no", "no"], [ValueError("broken")], [EndpointError(400)]):
        measured(Judging(cache=cache), rubric(Named(answers=answers)))
    cache.put("k", {"a": 1})
    cache.put("k", {"a": 2})
    assert cache.get("k") == {"a": 2}
    cache.close()
    with closing(sqlite3.connect(tmp_path / "cache.sqlite")) as kept:
        assert kept.execute("SELECT key FROM answers").fetchall() == [("k",)]


@pytest.mark.parametrize("value", ['{"a": ', b"\xb0"])
def test_a_cache_that_is_damaged_is_named(tmp_path: Path, value: str | bytes) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    cache.put("key", {})
    with closing(sqlite3.connect(tmp_path / "cache.sqlite")) as kept:
        kept.execute("UPDATE answers SET value = CAST(? AS TEXT)", (value,))
        kept.commit()
    with pytest.raises(ConfigurationError, match=r"cache.sqlite' cannot be used: .* Delete the file"):
        cache.get("key")


def test_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache.sqlite").write_text("no database, but long enough to be none" * 100)
    with pytest.raises(ConfigurationError, match="Delete the file"):
        Cache(tmp_path / "cache.sqlite")
    with closing(sqlite3.connect(":memory:")) as other, other:
        assert other.execute("SELECT 1").fetchone() == (1,)


# Counting, limits, scorers ------------------------------------------------------------------------


@MODES
def test_judge_calls_of_each_case_are_counted(mode: str) -> None:
    """A repair counts as a call; a failure as an unknown one; an answer without tokens makes the sum unknown."""
    model = Named(
        answers=[AIMessage("?", usage_metadata=usage(5, 1)), grade(7), EndpointError(400), grade(7)]
    )
    judging = Judging()
    measured(judging, rubric(model), cases={"one": "1", "two": "2"}, mode=mode)
    one = purse(judging.usage, "judge", "run:one:0")
    assert (one.calls, one.tokens, one.unknown_calls) == (2, 18, 0)
    two = purse(judging.usage, "judge", "run:two:0")
    assert two.calls + one.calls == model.calls
    assert judging.judges == {"tone": JudgeIdentity(model="named:judge-1", temperature=0.0)}


def test_judges_of_one_model_share_a_limiter() -> None:
    judging = Judging(limits=Limits(judge_concurrency=3))
    for row in ("a", "b"):
        judging.judge(row, rubric(Named(answers=["?"])).judge)
    assert judging.limiters.of(Named(answers=["!"])).most == 3


def test_scorers_with_judges_go_the_same_way(tmp_path: Path) -> None:
    """The questions of a scorer belong to the thread that the harness names."""
    recordings = Recording(tmp_path, "record")
    judging = Judging(recordings=recordings)
    claims = PropositionSet("adherence", [Proposition("p", CLAIM)])
    scorer = judging.scorer(
        "style", AdherenceScorer(Named(answers=[grade(7)]), Persona("Jim", "Calm."), claims)
    )
    judging.begin("run:one:0", Place("one"))
    token = judged_thread.set("run:one:0")
    assert scorer.score(talk("Hi")).overall == 7.0
    judged_thread.reset(token)
    recordings.close()
    [line] = map(json.loads, (tmp_path / "judgements.jsonl").read_text().splitlines())
    assert (line["row"], line["case"], line["usage"]["input_tokens"]) == ("style", "one", 10)
    assert purse(judging.usage, "judge", "run:one:0").calls == 1

    def plain(case: Any) -> float:
        return 1.0

    assert judging.scorer("plain", plain) is plain


def test_judgements_that_a_journal_has_are_not_asked_again() -> None:
    """An earlier session of the run has paid for them; `Session.recount` counts them."""
    bought: dict[tuple[str, str], Any] = {}
    model = Named(answers=[grade(8)])
    first, resumed = Judging(), Judging()
    first.kept = lambda asked, reply: bought.update({(asked.key, asked.place.case): {"value": reply.value}})
    assert measured(first, rubric(model)) == {"one:0": 0.8}
    resumed.known = bought
    assert measured(resumed, rubric(Named(answers=["?"]))) == {"one:0": 0.8}
    assert resumed.usage.total == Spent()


def test_judge_that_is_no_model_is_recorded_too(tmp_path: Path) -> None:
    def answer(request: JudgeRequest) -> Any:
        return {"reasoning": "", "score": 4}

    own = Says(answer)
    assert recorded(tmp_path, rubric(own)) == {"one:0": 0.4}
    assert measured(Judging(recordings=Recording(tmp_path)), rubric(Says(answer))) == {"one:0": 0.4}
    assert own.calls == 1


# Identity -----------------------------------------------------------------------------------------


def test_watched_files_are_known_by_their_contents(tmp_path: Path) -> None:
    (tmp_path / "prompts" / "deep").mkdir(parents=True)
    (tmp_path / "prompts" / "a.txt").write_bytes(b"one\r\ntwo\n")
    (tmp_path / "prompts" / "deep" / "b.txt").write_bytes(b"three")
    before = file_hashes(tmp_path, ["prompts/**"])
    assert list(before) == ["prompts/a.txt", "prompts/deep/b.txt"]
    (tmp_path / "prompts" / "a.txt").write_bytes(b"one\ntwo\n")
    assert file_hashes(tmp_path, ["prompts/**"]) == before
    (tmp_path / "prompts" / "a.txt").write_bytes(b"one\ntwo!\n")
    assert file_hashes(tmp_path, ["prompts/*.txt"])["prompts/a.txt"] != before["prompts/a.txt"]
    with pytest.raises(ConfigurationError, match=r"'prmpts/\*\*' matches no file"):
        file_hashes(tmp_path, ["prmpts/**"])


@pytest.mark.parametrize("pattern", ["", "/etc/hosts"])
def test_a_watched_pattern_that_is_not_relative_is_refused(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"watch: '{pattern}' is no pattern of files"):
        file_hashes(tmp_path, [pattern])


def test_identity_names_all_that_changed() -> None:
    """The versions of Arbiter and Python are kept, and never compared."""
    then = Identity(suite="s", cases={"a": "1", "b": "2"}, rows={"tone": "v1"}, votes=1, python="3.11")
    now = Identity(suite="s", cases={"a": "1", "c": "3"}, rows={"tone": "v2"}, votes=3, python="3.13")
    assert now.changes(then) == [
        "votes changed from 1 to 3",
        "case b is gone",
        "case c is new",
        "row tone changed",
    ]
    assert then.changes(then) == []


# In a suite ---------------------------------------------------------------------------------------


def test_dimension_without_evidence_is_no_part_of_a_mean() -> None:
    """Its 9 is kept as `raw`; a judge's model and calls stand beside the score."""

    def answer(request: JudgeRequest) -> Any:
        seen = "Hi" in str(request.messages[-1].text)
        return {"judgements": [{"id": "p", "score": 4, "evidence_present": seen}]}

    builder: Any = StateGraph(MessagesState)

    def speak(state: MessagesState) -> Any:
        return {"messages": [AIMessage(str(state["messages"][-1].text), name="Jim")]}

    builder.add_node(speak)
    builder.add_edge(START, "speak")
    cases = [Case(word, {"messages": [("user", word)]}) for word in ("Hi", "Mm")]
    report = Suite("s", cases, evaluators=[adherence(Says(answer))]).run(builder.compile())
    [hi], [mm] = (result.scored("tone") for result in report.results)
    assert (hi.outcome, hi.value, hi.scale, hi.calls, hi.model) == ("scored", 4.0, (0.0, 9.0), 1, "m")
    assert (mm.outcome, mm.value, mm.raw) == ("not_applicable", None, 9.0)
    assert report.rows["tone"].cases["Hi"] == (4.0,)
    assert report.rows["tone"].mean == 4.0


@MODES
def test_each_purse_has_its_sum(mode: str) -> None:
    """A target of two calls, because a gate sent its first draft back; a judge with a repair; two checks."""

    def scored(score: int) -> AIMessage:
        return AIMessage(f'{{"score": {score}}}', usage_metadata=usage(100, 1))

    model = Named(answers=[AIMessage("Hi", usage_metadata=usage(10, 1))], model="target")
    judge = Named(
        answers=[
            AIMessage("?", usage_metadata=usage(1_000, 1)),
            AIMessage(GRADE, usage_metadata=usage(1_000, 1)),
        ]
    )
    checks = Named(answers=[scored(2), scored(9)], model="checks")
    claims = PropositionSet("adherence", [Proposition("p", CLAIM)])
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(
        PersonaGate(
            checks,
            [Persona("Jim", "Calm.")],
            GateConfig(gate_adherence_enabled=True, max_correction_attempts=2),
            propositions={"adherence": claims},
            target_nodes=["speak"],
        )
    )

    def speak(state: MessagesState) -> Any:
        return {"messages": [model.invoke("?")]}

    async def aspeak(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke("?")]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("speak", speak if mode == "sync" else aspeak)
    builder.add_edge(START, "speak")
    # A durable judgement is made inside the run.
    tone = JudgeEvaluator("tone", "Good.", judge, durable=True)
    suite = Suite("s", [Case("one", {"messages": [("user", "?")]})], evaluators=[tone])
    report = suite.run(builder.compile(), arbiter_os=arbiter_os)
    [result] = report.results
    assert result.value("tone") == 0.8
    found = {
        purse: [(model, spent["calls"], spent["input_tokens"]) for model, spent in models.items()]
        for purse, models in result.usage.items()
    }
    assert found == {
        "target": [("target", 2, 20)],
        "judge": [("judge-1", 2, 2_000)],
        "correction": [("checks", 2, 200)],
    }


GRADE = '{"reasoning": "So.", "score": 8}'
