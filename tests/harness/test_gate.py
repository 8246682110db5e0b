"""The regression gate: verdicts, exit codes, and the numbers behind them."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arbiter.errors import ConfigurationError
from arbiter.harness import (
    Baseline,
    Case,
    CaseRun,
    GateSettings,
    Identity,
    JudgeIdentity,
    RegressionError,
    Score,
    Suite,
)
from arbiter.harness.planning import plan
from tests.harness.measurements import (
    AFTER,
    BEFORE,
    CAPTURED,
    baseline,
    cases,
    compared,
    row,
    run,
    share,
    tone,
)


def test_the_first_screen() -> None:
    """Tone fell, one case of ten is no longer grounded, all completed: three rows, of which Holm counts one."""
    before = baseline(row("tone", BEFORE), share("grounded", [1] * 10), share("completed", [1] * 10))
    now = run(row("tone", AFTER), share("grounded", [1] * 8 + [0, 1]), share("completed", [1] * 10))
    found = compared(now, before)
    fell, grounded, completed = found.rows.values()
    assert (fell.verdict, fell.n, fell.delta, fell.p, fell.adjusted) == (
        "regressed",
        10,
        -0.7,
        1 / 64,
        1 / 64,
    )
    assert fell.sd == pytest.approx(0.674949, abs=5e-7)
    assert fell.interval == pytest.approx((-1.1828, -0.2172), abs=5e-5)
    assert [each.counted for each in found.rows.values()] == [True, False, False]
    assert (grounded.verdict, grounded.p, grounded.broken) == ("underpowered", 0.5, ("case-09",))
    assert grounded.detectable == pytest.approx(0.32, abs=0.005)
    assert (completed.verdict, completed.p, completed.delta) == ("steady", 1, 0)
    assert fell.worst[0] == "case-05"
    assert found.exit_code == 1
    with pytest.raises(RegressionError) as caught:
        found.check()
    assert str(caught.value) == (
        "refunds regressed: tone fell by 0.70 of 0–9 (0.20 or more counts; p 0.016, Holm over 1 of 3 rows)."
    )
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.regressed, copy.exit_code, copy.comparison.rows["tone"].delta) == (("tone",), 1, -0.7)


def test_cases_are_paired_by_id() -> None:
    """The order of the cases changes nothing."""
    straight = tone(BEFORE, AFTER)
    shuffled = random.Random(3).sample(sorted(cases(AFTER).items()), 10)
    found = compared(run(row("tone", dict(shuffled))), baseline(row("tone", BEFORE)))
    assert found.rows["tone"].p == straight.rows["tone"].p
    assert dict(found.rows["tone"].pairs) == dict(straight.rows["tone"].pairs)


def test_repeats_are_no_cases() -> None:
    """Ten cases with ten repeats each: n is 10, and p that of the means."""
    repeated = [[value - 1, value + 1] * 5 for value in AFTER]
    assert tone(BEFORE, repeated).rows["tone"].p == tone(BEFORE, AFTER).rows["tone"].p
    assert tone(BEFORE, repeated).rows["tone"].n == 10


@pytest.mark.parametrize(
    ("before", "after", "verdict", "p"),
    [
        pytest.param(BEFORE, BEFORE, "steady", 1, id="unchanged"),
        pytest.param(BEFORE[:6], [score + 1 for score in BEFORE[:6]], "improved", 1, id="all better"),
        pytest.param([7] * 4, [6] * 4, "steady", 1 / 16, id="four worse are not enough"),
        pytest.param([7] * 5, [6] * 5, "regressed", 1 / 32, id="five worse are"),
        pytest.param([7] * 3, [5.9] * 3, "regressed", 1 / 8, id="three much worse"),
        pytest.param([7] * 50, [6.9] * 50, "steady", 2.0**-50, id="certain, and too small to count"),
        pytest.param([8.3] * 2, [7.3] * 2, "steady", 1 / 4, id="exactly the largest drop"),
        pytest.param([6.3333] * 9, [19 / 3] * 9, "steady", 1, id="a third that was rounded in the file"),
    ],
)
def test_verdicts(before: Any, after: Any, verdict: str, p: float) -> None:
    """The row `completed`, which did not change, is not counted by Holm."""
    done = share("completed", [1] * len(before))
    found = compared(run(row("tone", after), done), baseline(row("tone", before), done))
    assert (found.rows["tone"].verdict, found.rows["tone"].p) == (verdict, p)
    assert found.exit_code == (1 if verdict == "regressed" else 0)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ([6] * 4, "tone fell by 1.00 of 0–9, which is not significant (p 0.063)"),
        ([7] * 4, "tone did not fall by 0.60 of 0–9"),
    ],
)
def test_a_steady_row_that_fell_says_so(after: Any, reason: str) -> None:
    found = tone([7] * 4, after).rows["tone"]
    assert (found.verdict, found.reason) == ("steady", reason)


def test_zeros_and_ones_are_mcnemars_test() -> None:
    """3 better, 10 worse, 7 the same."""
    before = baseline(share("grounded", [0] * 3 + [1] * 10 + [1] * 7))
    found = compared(run(share("grounded", [1] * 3 + [0] * 10 + [1] * 7)), before).rows["grounded"]
    assert found.p == pytest.approx(0.046143, abs=5e-7)
    assert found.verdict == "regressed"


def test_holm_counts_all_rows_that_could_be_significant() -> None:
    """Five of five worse is p 0.031 alone, and not enough where three rows are tested."""
    names = ("tone", "style", "facts")
    before = baseline(*(row(name, [7] * 5 + [6] * 5) for name in names))
    now = run(
        row("tone", [6.5] * 5 + [6] * 5),
        *(row(name, [8, 6] * 2 + [8] + [6] * 5) for name in ("style", "facts")),
    )
    found = compared(now, before)
    assert (found.rows["tone"].p, found.rows["tone"].adjusted) == (1 / 32, 3 / 32)
    assert found.rows["tone"].verdict == "steady"
    assert compared(now, before, rows=["tone"]).rows["tone"].verdict == "regressed"


def test_more_than_a_thousand_changed_cases_take_the_paired_t_test() -> None:
    rng = random.Random(1)
    before = [rng.randint(3, 9) for _ in range(1_200)]
    found = tone(before, [score - rng.choice([-1, 1, 1]) for score in before]).rows["tone"]
    assert (found.method, found.verdict) == ("paired t", "regressed")


def test_a_changed_rubric_makes_its_row_incomparable() -> None:
    """The other rows are decided; the run is not."""
    before = baseline(row("tone", BEFORE, version="1"), row("style", BEFORE, version="1"))
    now = run(row("tone", AFTER, version="2"), row("style", BEFORE, version="1"))
    found = compared(now, before)
    assert (found.rows["tone"].verdict, found.rows["style"].verdict) == ("incomparable", "steady")
    assert found.rows["tone"].reason == "tone changed: version 1 then, 2 now"
    assert (found.rows["tone"].p, found.exit_code) == (None, 5)
    shown = compared(now, before, accept_changed=True)
    assert (shown.rows["tone"].delta, shown.rows["tone"].p, shown.exit_code) == (-0.7, 1 / 64, 0)
    assert (shown.rows["tone"].verdict, shown.rows["tone"].gated) == ("incomparable", False)


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        (
            {"mode": "live"},
            {"mode": "synthetic"},
            "the baseline was measured in mode 'live', this run in mode 'synthetic'",
        ),
        (
            {"judges": {"tone": JudgeIdentity(model="small")}},
            {"judges": {"tone": JudgeIdentity(model="large")}},
            "the judge of tone changed: small then, large now",
        ),
    ],
)
def test_another_judge_or_mode_is_incomparable(then: Any, now: Any, reason: str) -> None:
    found = compared(run(row("tone", BEFORE), **now), baseline(row("tone", BEFORE), **then))
    assert (found.rows["tone"].verdict, found.rows["tone"].reason) == ("incomparable", reason)
    assert found.exit_code == 5


def test_a_changed_scorer_changes_all_of_its_rows() -> None:
    """A scorer that returns several scores has one version, and so have its rows."""
    versions = [{"style": version} for version in ("1", "2")]
    found = compared(
        run(row("style.tone", BEFORE), rows=versions[1]),
        baseline(row("style.tone", BEFORE), rows=versions[0]),
    )
    assert found.rows["style.tone"].reason == "style.tone changed: version 1 then, 2 now"
    judged: dict[str, Any] = {"judges": {"style": JudgeIdentity(model="small")}}
    again = run(row("style.tone", BEFORE), **judged)
    assert (
        compared(again, baseline(row("style.tone", BEFORE), **judged), require_calibrated=True).exit_code == 5
    )


def test_another_scale_is_incomparable() -> None:
    found = compared(run(row("tone", [0.5] * 9, scale=(0, 1))), baseline(row("tone", [5] * 9)))
    assert found.rows["tone"].reason == "the scale of tone changed: 0–9 then, 0–1 now"


@pytest.mark.parametrize("outcome", ["error", "timeout", "abstained", "skipped_budget", None])
def test_lost_scores_make_a_row_incomplete(outcome: Any) -> None:
    """Two of ten cases without a judgement are too many, one is not. A case of which nothing is known is lost."""

    def lost(count: int) -> Any:
        gone = {case: (outcome,) for case in list(cases(BEFORE))[:count] if outcome}
        known = dict(list(cases(BEFORE).items())[count:])
        inputs = {case: f"hash of {case}" for case in cases(BEFORE)}
        return compared(run(row("tone", known, missing=gone), inputs=inputs), baseline(row("tone", BEFORE)))

    found = lost(2)
    assert (found.rows["tone"].verdict, found.exit_code) == ("incomplete", 5)
    assert found.rows["tone"].lost == ("case-01", "case-02")
    assert (lost(1).rows["tone"].verdict, lost(1).rows["tone"].n, lost(1).exit_code) == ("steady", 9, 0)


def test_max_missing_is_obeyed() -> None:
    missing = {"case-01": ("error",), "case-02": ("error",)}
    now = run(row("tone", dict(list(cases(BEFORE).items())[2:]), missing=missing))
    assert compared(now, baseline(row("tone", BEFORE)), max_missing=0.2).exit_code == 0


def test_cases_without_anything_to_judge_are_no_loss() -> None:
    missing = dict.fromkeys(list(cases(BEFORE))[:6], ("not_applicable",))
    now = run(row("tone", dict(list(cases(BEFORE).items())[6:]), missing=missing))
    found = compared(now, baseline(row("tone", BEFORE))).rows["tone"]
    assert (found.verdict, found.n, found.lost) == ("steady", 4, ())


@pytest.mark.lengthy
@given(
    st.lists(
        st.sampled_from(["error", "timeout", "abstained", "not_applicable", "skipped_budget"]), max_size=9
    )
)
def test_what_was_never_scored_decides_nothing(outcomes: list[Any]) -> None:
    """Cases without a score on both sides change no p, no interval and no verdict."""
    missing = {f"unscored-{place}": (outcome,) for place, outcome in enumerate(outcomes)}
    before = baseline(row("tone", [*BEFORE] * 9))
    with_more = replace(before, rows={"tone": replace(before.rows["tone"], missing=missing)})
    found = compared(run(row("tone", [*AFTER] * 9, missing=missing, threshold=6.0)), with_more).rows["tone"]
    plain = compared(run(row("tone", [*AFTER] * 9, threshold=6.0)), before).rows["tone"]
    assert found == plain


def test_a_row_that_judged_nothing_never_passes() -> None:
    """With and without a baseline, and also if there was nothing to judge."""
    now = run(row("tone", {}, missing={"case-01": ("not_applicable",)}))
    for before in (None, baseline(row("tone", BEFORE))):
        found = compared(now, before)
        assert (found.rows["tone"].verdict, found.exit_code) == ("incomplete", 5)
    assert compared(run(), None).undecided == ("nothing was judged",)


def test_a_single_pair_is_incomplete() -> None:
    assert tone([7], [7]).rows["tone"].verdict == "incomplete"


def test_new_gone_and_changed_cases_are_left_out_or_too_many() -> None:
    """One of ten is listed and left out; two of ten make the row incomparable."""
    twenty = baseline(row("tone", [7] * 20))
    inputs = {"case-01": "another input"}
    found = compared(run(row("tone", [1, *[7] * 18]), inputs=inputs), twenty).rows["tone"]
    assert (found.verdict, found.changed, found.gone, found.n) == ("steady", ("case-01",), ("case-20",), 18)
    found = compared(run(row("tone", [7] * 21)), twenty).rows["tone"]
    assert (found.verdict, found.new, found.n) == ("steady", ("case-21",), 20)
    others = compared(run(row("tone", [7] * 23)), twenty)
    assert (others.rows["tone"].verdict, others.exit_code) == ("incomparable", 5)
    assert others.rows["tone"].reason == "the cases of tone changed: 3 new, 0 gone, 0 changed, of 20"


def test_three_of_ten_runs_that_fail_are_a_regression_and_one_is_not() -> None:
    before = baseline(share("completed", [1] * 10), row("tone", BEFORE))
    for failed, code in ((3, 1), (1, 0)):
        kept = dict(list(cases(BEFORE).items())[failed:])
        missing = dict.fromkeys(list(cases(BEFORE))[:failed], ("error",))
        now = run(share("completed", [0] * failed + [1] * (10 - failed)), row("tone", kept, missing=missing))
        found = compared(now, before)
        assert found.exit_code == code
        assert (found.rows["completed"].verdict == "regressed") == bool(code)


def test_a_case_that_must_pass_decides_whatever_the_gate_says() -> None:
    now = run(row("tone", BEFORE), failing={"other-card": "expect.denied_by failed"})
    for before in (None, baseline(row("tone", BEFORE))):
        found = compared(now, before)
        assert (found.exit_code, found.failures) == (
            1,
            ("case other-card must pass: expect.denied_by failed",),
        )


def test_an_unfinished_run_is_undecided_and_a_regression_counts_all_the_same() -> None:
    stopped = "interrupted after 10 of 40 cases"
    assert (
        compared(run(row("tone", BEFORE), unfinished=stopped), baseline(row("tone", BEFORE))).exit_code == 5
    )
    found = compared(run(row("tone", AFTER), unfinished=stopped), baseline(row("tone", BEFORE)))
    assert (found.exit_code, found.undecided) == (1, (stopped,))


def test_strict_makes_underpowered_undecided() -> None:
    before, after = [7, 7, 7, 5, 7, 7], [7, 8, 6, 6, 5, 8]
    assert tone(before, after).rows["tone"].verdict == "underpowered"
    assert [tone(before, after, strict=strict).exit_code for strict in (False, True)] == [0, 5]
    assert tone(before, after, strict=True, detect=5).exit_code == 0


def test_the_threshold_decides_until_a_baseline_does() -> None:
    found = tone(BEFORE, BEFORE, threshold=9)
    assert (found.exit_code, found.failures) == (1, ("tone has the mean 6.90, below its threshold 9.00",))
    assert tone(BEFORE, BEFORE, threshold=9, ci=True).exit_code == 0
    assert tone(BEFORE, BEFORE, threshold=6.9).exit_code == 0
    shares = compared(run(share("grounded", [1, 0])), None, threshold=5.0)
    assert shares.notes == ("the threshold 5.00 is for rows from 0 to 9, and this run has none",)
    own = run(share("grounded", [1, 0], threshold=0.6))
    assert compared(own, None).failures == ("grounded has the mean 0.50, below its threshold 0.60",)


def test_ci_needs_a_baseline() -> None:
    assert [compared(run(row("tone", BEFORE)), None, ci=ci).exit_code for ci in (False, True)] == [0, 2]
    assert compared(run(row("tone", BEFORE)), None).rows["tone"].verdict == "new"


def test_an_uncalibrated_judge_is_incomparable_if_a_calibrated_one_is_required() -> None:
    judges = [{"tone": JudgeIdentity(model="j", calibrated=calibrated)} for calibrated in (False, True)]
    codes = [
        compared(
            run(row("tone", BEFORE), judges=judge),
            baseline(row("tone", BEFORE), judges=judge),
            require_calibrated=True,
        ).exit_code
        for judge in judges
    ]
    assert codes == [5, 0]


def test_counts_are_shown_and_never_gated() -> None:
    def counts(ideas: int, tokens: int) -> Any:
        return row("ilka.ideas_quantity", [ideas] * 9), row("tokens", [tokens] * 9, scale=(0, math.inf))

    before, now = baseline(row("tone", BEFORE), *counts(9, 9)), run(row("tone", BEFORE), *counts(2, 2))
    found = compared(now, before)
    assert (found.rows["ilka.ideas_quantity"].delta, found.rows["tokens"].delta, found.exit_code) == (
        -7,
        -7,
        0,
    )
    named = compared(now, before, rows=["tokens"])
    assert named.exit_code == 5
    assert named.undecided == ("gate: rows: 'tokens' is a count, which is shown and never gated",)


def test_elements_of_another_window_are_compared_as_groups() -> None:
    """Fewer than 90 % of the messages are those of the baseline: Welch's test, and `unpaired` if nothing fell."""

    def window(values: list[int], start: int) -> Any:
        return row(
            "ilka.fluency", {f"m{start + i}": (value,) for i, value in enumerate(values)}, is_sampled=True
        )

    before = baseline(window([7, 8, 6, 7, 8, 7, 6, 8], 0), cases={})
    same = compared(run(window([7, 8, 6, 7, 8, 7, 6, 7], 0), cases={}), before).rows["ilka.fluency"]
    other = compared(run(window([8, 7, 7, 6, 8, 7, 8, 6], 100), cases={}), before).rows["ilka.fluency"]
    worse = compared(run(window([5, 6, 6, 7, 5, 6, 6, 5], 100), cases={}), before).rows["ilka.fluency"]
    assert (same.method, same.n) == ("sign flip", 8)
    assert (other.method, other.verdict) == ("Welch", "underpowered")
    assert (worse.method, worse.verdict) == ("Welch", "regressed")


def test_the_same_score_of_other_messages_is_no_change(tmp_path: Path) -> None:
    """A baseline keeps four decimals. Of scores without any spread, what it cut off was a drop with a p of 0."""
    score = 309 / 59

    def window(start: int) -> Any:
        return row("tone.ilka", {f"m{start + i}": (score,) for i in range(3)}, is_sampled=True)

    baseline(window(0), cases={}).write(tmp_path / "ilka.json")
    found = compared(run(window(100), cases={}), Baseline.read(tmp_path / "ilka.json")).rows["tone.ilka"]
    assert (found.method, found.delta, found.p) == ("Welch", 0, 1)


def test_a_cluster_is_one_unit() -> None:
    """Eight turns of two conversations are two units, which can never be significant."""
    clusters = {case: "a" if place < 4 else "b" for place, case in enumerate(cases(BEFORE[:8]))}
    plain = compared(run(row("tone", [6] * 8)), baseline(row("tone", [7] * 8))).rows["tone"]
    found = compared(
        run(row("tone", [6] * 8, clusters=clusters)), baseline(row("tone", [7] * 8, clusters=clusters))
    ).rows["tone"]
    assert (plain.verdict, found.verdict, found.n, found.p) == ("regressed", "steady", 2, 0.25)


def test_a_baseline_of_means_is_compared_by_the_largest_drop_alone() -> None:
    means = Baseline(
        identity=Identity(suite=""), captured_at=CAPTURED, agent_id="ilka", dimensions={"fluency": 8.3}
    )
    for after, verdict in ((7.3, "steady"), (7.2, "regressed"), (9.0, "steady")):
        found = compared(run(row("fluency", [after] * 4), row("tone", BEFORE)), means)
        assert (found.rows["fluency"].verdict, found.rows["fluency"].method) == (verdict, "means")
        assert found.rows["tone"].verdict == "new"
        assert "means without cases" in found.notes[0]


def numbers(run: CaseRun) -> float:
    if run.output < 0:
        raise ValueError("no answer")
    return float(run.output)


def always(run: CaseRun) -> float:
    return 0.5


def both(run: CaseRun) -> list[Score]:
    return [Score("", float(run.output)), Score("tone", 0.5)]


@pytest.mark.parametrize(
    ("scorers", "after", "code"),
    [
        ({"style": both}, 0.1, 1),
        ({"style": numbers, "style.tone": always}, 0.1, 1),
        ({"style": numbers, "style.tone": always}, -1.0, 5),
    ],
)
def test_a_row_is_not_hidden_by_one_whose_name_begins_with_its_own(
    scorers: Any, after: float, code: int
) -> None:
    suite = Suite("refunds", [Case(f"c{n}", n) for n in range(8)], scorers=scorers)
    ids = [case.id for case in suite.cases]
    before = suite.run(dict.fromkeys(ids, 0.9), folder=None).measurement()
    then = Baseline.of(before, captured_at=CAPTURED)
    found = suite.run(dict.fromkeys(ids, after), folder=None).compare(then)
    assert found.exit_code == code
    assert [*found.rows] == ["style", "style.tone", "completed"]


def test_a_row_that_vanished_leaves_the_run_undecided() -> None:
    then = baseline(row("tone", BEFORE), row("style", BEFORE))
    found = compared(run(row("tone", BEFORE)), then)
    assert found.exit_code == 5
    assert found.undecided == ("style is in the baseline, and this run has not measured it",)
    accepted = compared(run(row("tone", BEFORE)), then, accept_changed=True)
    assert accepted.exit_code == 0
    assert accepted.notes == ("the baseline has rows that this run does not have: style",)
    chosen = compared(run(row("tone", BEFORE)), then, rows=["tone"])
    assert chosen.exit_code == 0


def test_a_baseline_of_another_suite_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="the baseline is of the suite 'returns', the run of 'refunds'"
    ):
        compared(run(row("tone", BEFORE)), baseline(row("tone", BEFORE), suite="returns"))


def test_a_gated_row_that_does_not_exist_cannot_be_decided() -> None:
    found = tone(BEFORE, AFTER, rows=["tune"])
    assert found.exit_code == 5
    assert found.undecided == ("gate: rows: this run has no row 'tune'. Rows: tone. Did you mean 'tone'?",)


def test_the_name_of_a_scorer_gates_all_of_its_rows() -> None:
    rows = [row("tone.ilka", BEFORE), row("tone.tomasz", AFTER), row("toner", AFTER)]
    before = baseline(row("tone.ilka", BEFORE), row("tone.tomasz", BEFORE), row("toner", BEFORE))
    found = compared(run(*rows), before, rows=["tone"])
    assert {name: each.gated for name, each in found.rows.items()} == {
        "tone.ilka": True,
        "tone.tomasz": True,
        "toner": False,
    }
    assert found.exit_code == 1


def test_gated_rows_may_be_what_can_be_read_once() -> None:
    rows = [row("tone", AFTER), row("style", AFTER)]
    then = baseline(row("tone", BEFORE), row("style", BEFORE))
    found = compared(run(*rows), then, rows=(name for name in ("style", "tone")))
    assert [each.gated for each in found.rows.values()] == [True, True]


@pytest.mark.parametrize("where", ["gate", "run"])
def test_a_baseline_that_is_no_file_is_refused_in_a_sentence(where: str) -> None:
    wrong: Any = 5
    suite = Suite("refunds", [Case("a", 1)], gate=GateSettings(baseline=wrong if where == "gate" else None))
    with pytest.raises(ConfigurationError, match="baseline is 5; expected the path of a file"):
        suite.run({"a": 1}, baseline=wrong if where == "run" else None, folder=None)


def test_wrong_settings_are_reported_together() -> None:
    settings: Any = {"alpha": 5, "max_missing": "10 %", "threshold": 12, "rows": [], "strict": 1}
    with pytest.raises(ConfigurationError) as caught:
        GateSettings(**settings)
    assert str(caught.value).splitlines() == [
        "gate: alpha: expected a number above 0 to 0.5, got 5.",
        "gate: max_missing: expected a number from 0 to 1, got '10 %'.",
        "gate: rows: expected a non-empty list of texts, got [].",
        "gate: threshold: expected a number from 0 to 9, got 12.",
        "gate: strict: expected true or false, got 1.",
    ]
    with pytest.raises(ConfigurationError, match="min_drop: is 2, above max_drop, which is 1"):
        GateSettings(min_drop=2, max_drop=1)


def test_very_large_scores_are_compared_and_printed_in_few_digits() -> None:
    class Huge:
        name, version, scale = "huge", "1", (0.0, 1.7e308)

        def __init__(self, most: float) -> None:
            self.most = most

        def score(self, run: CaseRun) -> Score:
            value = self.most * (1 - 0.01 * run.repeat - 0.001 * run.case.input)
            return Score("huge", value, scale=self.scale)

    def answer(given: int) -> int:
        return given

    given = [Case(f"case-{number}", number) for number in range(6)]
    Suite("huge", given, scorers=[Huge(1.6e308)], repeats=2).run(answer).save_baseline("huge.json")
    report = Suite("huge", given, scorers=[Huge(1e308)], repeats=2).run(answer, baseline="huge.json")
    said = "huge fell by 5.95e+307 of 0–1.7e+308 (3.4e+306 or more counts; p 0.016, Holm over 1 of 2 rows)."
    assert said in report.rendered("markdown").replace("\\", "")
    assert max(map(len, report.rendered("markdown").splitlines())) < 200
    assert "a drop of 1.43e+306 is found" in str(plan(report.rows["huge"]))


def test_a_regression_error_has_no_control_characters() -> None:
    """A terminal obeys them, and no other process can be sent half of a surrogate pair."""

    def answer(given: int) -> str:
        raise ValueError("\x1b[2J \ud800\nline")

    report = Suite("hostile", [Case("a", 1, must_pass=True)]).run(answer)
    with pytest.raises(RegressionError) as caught:
        report.comparison.check()
    assert str(caught.value).startswith("hostile failed: case a must pass")
    assert str(caught.value).isprintable()
    assert "ValueError: \\u001b[2J \\ud800 line" in str(caught.value)
