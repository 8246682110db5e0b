"""Arbiter governs LangGraph: policies, evaluators and a history around the nodes of a graph that already works."""

from arbiter._values.parameters import Param, check_parameters
from arbiter._values.version import __version__
from arbiter.advice import Advisor, CorrectionGate
from arbiter.advisors import EvaluatorGate, FeedbackAdvisor
from arbiter.arbiter_os import ArbiterOS
from arbiter.checkers import HistoryPolicyChecker
from arbiter.errors import (
    AmbiguousHistoryError,
    ArbiterError,
    ArbiterWarning,
    ConfigurationError,
    CorrectionError,
    EvaluationError,
    NotAGraphError,
    OutputSchemaError,
    PackError,
    PolicyViolationError,
    RegistrationError,
    SyncDriverError,
    UnknownInstructionError,
    UnknownNodeError,
)
from arbiter.evaluation import NodeEvaluator
from arbiter.evaluators import ThresholdEvaluator
from arbiter.history._items import History, HistoryItem
from arbiter.listening import HistoryListener
from arbiter.plugins import Plugin
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.routers import EvaluationRouter, MetricThresholdPolicyRouter
from arbiter.verdicts import Correction, EvaluationResult, Verdict

__all__ = [
    "Advisor",
    "AmbiguousHistoryError",
    "ArbiterError",
    "ArbiterOS",
    "ArbiterWarning",
    "ConfigurationError",
    "Correction",
    "CorrectionError",
    "CorrectionGate",
    "EvaluationError",
    "EvaluationResult",
    "EvaluationRouter",
    "EvaluatorGate",
    "FeedbackAdvisor",
    "History",
    "HistoryItem",
    "HistoryListener",
    "HistoryPolicyChecker",
    "MetricThresholdPolicyRouter",
    "NodeEvaluator",
    "NotAGraphError",
    "OutputSchemaError",
    "PackError",
    "Param",
    "Plugin",
    "PolicyChecker",
    "PolicyRouter",
    "PolicyViolationError",
    "RegistrationError",
    "SyncDriverError",
    "ThresholdEvaluator",
    "UnknownInstructionError",
    "UnknownNodeError",
    "Verdict",
    "__version__",
    "check_parameters",
]
