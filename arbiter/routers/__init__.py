"""Built-in policy routers."""

from arbiter.routers._errors import ErrorRouter
from arbiter.routers._escalation import EscalationRouter
from arbiter.routers._quality import EvaluationRouter, MetricThresholdPolicyRouter

__all__ = ["ErrorRouter", "EscalationRouter", "EvaluationRouter", "MetricThresholdPolicyRouter"]
