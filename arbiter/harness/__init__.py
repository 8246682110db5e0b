"""The evaluation harness: measures an agent on cases, and fails a build when it got worse.

A `Suite` has cases, scorers and node evaluators. It runs a target (a graph, a function, recorded outputs) on
each case, and makes a `Report`. A `RegressionGate` compares it with a `Baseline`. See docs/evaluation.md and
docs/design/harness.md.
"""

from arbiter.harness.agents import Agent, Agents
from arbiter.harness.baselines import Baseline, BaselineError
from arbiter.harness.calibrating import calibrate
from arbiter.harness.calibration import CANARIES, Calibration, Estimate
from arbiter.harness.cases import Case, Expect, Selection
from arbiter.harness.comparisons import Comparison, RegressionError, RowComparison, Verdict
from arbiter.harness.files import load_suite
from arbiter.harness.gate import GateSettings, RegressionGate
from arbiter.harness.identity import Identity, JudgeIdentity, Measurement
from arbiter.harness.labels import (
    Labelled,
    Labels,
    chosen_for_labelling,
    read_labels,
    write_for_labelling,
)
from arbiter.harness.limits import Limiter, Limits, limited
from arbiter.harness.messages import (
    CheckpointMessages,
    JsonlMessages,
    LedgerMessages,
    Message,
    Messages,
    StoreMessages,
)
from arbiter.harness.planning import Plan, plan
from arbiter.harness.recordings import Recording
from arbiter.harness.reports.report import Report
from arbiter.harness.results import CaseResult, CaseRun
from arbiter.harness.rows import Row
from arbiter.harness.scores import Score
from arbiter.harness.suites import Suite
from arbiter.verdicts import Outcome

__all__ = [
    "Agent",
    "Agents",
    "Baseline",
    "BaselineError",
    "CANARIES",
    "Calibration",
    "Case",
    "CaseResult",
    "CaseRun",
    "CheckpointMessages",
    "Comparison",
    "Estimate",
    "Expect",
    "GateSettings",
    "Identity",
    "JsonlMessages",
    "JudgeIdentity",
    "Labelled",
    "Labels",
    "LedgerMessages",
    "Limiter",
    "Limits",
    "Measurement",
    "Message",
    "Messages",
    "Outcome",
    "Plan",
    "Recording",
    "RegressionError",
    "RegressionGate",
    "Report",
    "Row",
    "RowComparison",
    "Score",
    "Selection",
    "StoreMessages",
    "Suite",
    "Verdict",
    "load_suite",
    "calibrate",
    "chosen_for_labelling",
    "limited",
    "plan",
    "read_labels",
    "write_for_labelling",
]
