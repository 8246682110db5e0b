"""Runs of cases, as scorers read them, and results, as reports keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from arbiter._values.copies import for_deep_copy
from arbiter._values.states import FrozenDict
from arbiter.harness.canonical import ATOMS, plain_copy
from arbiter.harness.cases import Case
from arbiter.harness.rows import mean_of
from arbiter.harness.scores import Score
from arbiter.harness.trajectories import Trajectory, Visits, trajectory_of
from arbiter.history._items import RunHistory
from arbiter.verdicts import Outcome

Status = Literal[
    "completed", "failed", "timeout", "denied", "waits", "skipped_budget", "lost", "not_evaluable"
]
"""How the target ended. `denied`: a policy stopped the run. `waits`: it asked a human. `lost`: its worker died.
`not_evaluable`: there is nothing to judge, such as an agent without messages."""
_UNJUDGED: Mapping[Status, Outcome] = {"skipped_budget": "skipped_budget", "not_evaluable": "not_applicable"}
"""The statuses that say nothing about the target."""
COMPLETED, EXPECT = "completed", "expect"
"""The rows of the shares of runs that ended as their case expects, and whose assertions all hold."""
CUT = "the time of the run was over"
"""The `error` of a timeout that is not the target's fault: `limits.run_timeout` ended it, and a resumed run tries it
again."""
_NOTHING: Mapping[str, Any] = FrozenDict()
_WORST: tuple[Outcome, ...] = ("error", "timeout", "abstained", "skipped_budget", "not_applicable")


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """One run of the target on a case, as a scorer reads it.

    `repeat` counts from 0. `history` is the governed graph's, None for other targets. `duration` is in seconds.
    `error` is the target's exception as a text; `error_types` are the names of its class and base classes.
    `policies` are the checkers that denied, or that asked if the status is "waits".
    """

    case: Case
    repeat: int = 0
    output: Any = None
    history: RunHistory | None = None
    visits: Visits = ()
    """The trajectory as JSON-able data."""
    usage: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    usd: float | None = 0.0
    """The cost of the target's calls of models; None if a price or a count is unknown."""
    duration: float = 0.0
    status: Status = "completed"
    error: str | None = None
    error_types: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()

    @cached_property
    def trajectory(self) -> Trajectory:
        """The node runs of the governed graph, superstep by superstep."""
        return trajectory_of(self.visits)

    @property
    def input(self) -> Any:
        """A copy of the input of the case."""
        return plain_copy(self.case.input)

    @property
    def expected(self) -> Any:
        """A copy of what the case expects."""
        return plain_copy(self.case.expected)

    def with_own_output(self) -> CaseRun:
        """The same run with a copy of the output, so that a scorer which changes it changes it for itself alone.
        Parts that cannot be copied are shared."""
        if type(self.output) in ATOMS:
            return self
        own = object.__new__(CaseRun)  # `replace` takes several times as long
        vars(own).update(vars(self), output=for_deep_copy({})(self.output))
        return own

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.case.metadata

    @property
    def tokens(self) -> int:
        """All tokens that the target used, as far as its models report them."""
        counts = self.usage.values()
        return sum(int(of.get("input_tokens", 0)) + int(of.get("output_tokens", 0)) for of in counts)

    @property
    def known_tokens(self) -> int | None:
        """As `tokens`; None if there were calls, and none reported its own. A failed call reports none."""
        return self.tokens or (None if any(of.get("unknown_calls") for of in self.usage.values()) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of a case × repeat, as plain data. `output` and `trajectory` are JSON-able.

    An evaluator that judged several node runs has several scores of one name.
    """

    case_id: str
    repeat: int
    status: Status
    output: Any = None
    error: str | None = None
    policies: tuple[str, ...] = ()
    as_expected: bool = True
    """True if it ended as its case expects: completed, or denied by the expected checker."""
    trajectory: Any = ()
    scores: tuple[Score, ...] = ()
    usage: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    duration: float = 0.0
    thread_id: str = ""

    def scored(self, name: str) -> tuple[Score, ...]:
        """All scores of that name."""
        return tuple(score for score in self.scores if score.name == name)

    def elements(self, name: str) -> tuple[tuple[str, float], ...]:
        """The judged messages or pairs of that score, of an agent."""
        return next((score.elements for score in self.scores if score.elements and score.name == name), ())

    def value(self, name: str) -> float | None:
        """The mean of the values of that name; None if nothing is scored.

        The value of "completed" is 1 if the run ended as its case expects, that of "expect" is 1 if all assertions
        of the case hold.
        """
        if name == COMPLETED:
            return None if self.status in _UNJUDGED else float(self.as_expected)
        if name == EXPECT:
            held = [score.passed for score in self.scores if score.name.startswith("expect.")]
            return None if not held or None in held else float(all(held))
        values = [
            s.value for s in self.scores if s.name == name and s.outcome == "scored" and s.value is not None
        ]
        return mean_of(values) if values else None

    def outcome(self, name: str) -> Outcome:
        """ "scored" if there is a value, else the worst outcome of that name.

        A scorer that failed has no keys, so its failure is that of each of them.
        """
        if name == COMPLETED:
            return _UNJUDGED.get(self.status, "scored")
        if name == EXPECT:
            found = {score.outcome for score in self.scores if score.name.startswith("expect.")}
            if not found and self.status not in _UNJUDGED:
                return "not_applicable"  # the case has no assertions, however it ended
        else:
            found = {
                score.outcome
                for score in self.scores
                if score.name == name or (score.outcome != "scored" and name.startswith(f"{score.name}."))
            }
            if "scored" in found:
                return "scored"
        for outcome in _WORST:
            if outcome in found:
                return outcome
        return self.unasked

    @property
    def unasked(self) -> Outcome:
        """The outcome of a scorer that was not asked, or had nothing to judge."""
        if self.status == "timeout":
            return "timeout"
        if self.status in _UNJUDGED:
            return _UNJUDGED[self.status]
        return "not_applicable" if self.as_expected else "error"

    @property
    def passed(self) -> bool:
        """True if it ended as expected and no assertion failed."""
        return self.as_expected and not any(
            score.passed is False or score.outcome in ("error", "timeout") for score in self.scores
        )
