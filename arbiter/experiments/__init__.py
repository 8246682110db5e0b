"""Experiments: whether a treatment makes agents better, with numbers that can be recomputed.

    Scenario, Corrections (arms) ─▶ Experiment ─▶ ExperimentResult ─▶ table, JSON, forest plot

An `Experiment` lets the same people have the same conversations in each arm, governed in the treatment and
not in the control, and compares what a judge finds in them. `AgentFactory` makes the people of a population.
`verify_table1` recomputes Table 1 of arXiv:2507.09788 (TinyTroupe) from its raw scores, which ship with
Arbiter. See docs/experiments.md.
"""

from arbiter.experiments.arms import Corrections, Exposure
from arbiter.experiments.comparing import MetricComparison
from arbiter.experiments.factory import AgentFactory, FactoryError
from arbiter.experiments.labelling import calibrate_metric, write_sessions
from arbiter.experiments.plans import ExperimentPlan
from arbiter.experiments.profiles import PROFILES, Dimension, Profile
from arbiter.experiments.results import ExperimentResult
from arbiter.experiments.runner import Experiment
from arbiter.experiments.sampling import Directive, Sample, flatten
from arbiter.experiments.scenarios import SCENARIOS, Environment, Scenario
from arbiter.experiments.table1 import Sensitivity, Table1, Table1Row, verify_table1

__all__ = [
    "AgentFactory",
    "Corrections",
    "Dimension",
    "Directive",
    "Environment",
    "Experiment",
    "ExperimentPlan",
    "ExperimentResult",
    "Exposure",
    "FactoryError",
    "MetricComparison",
    "PROFILES",
    "Profile",
    "SCENARIOS",
    "Sample",
    "Scenario",
    "Sensitivity",
    "Table1",
    "Table1Row",
    "calibrate_metric",
    "flatten",
    "verify_table1",
    "write_sessions",
]
