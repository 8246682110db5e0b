"""Built-in policy routers."""

from arbiter.routers.errors import ErrorRouter
from arbiter.routers.escalation import EscalationRouter
from arbiter.routers.quality import EvaluationRouter, MetricThresholdPolicyRouter

__all__ = ["ErrorRouter", "EscalationRouter", "EvaluationRouter", "MetricThresholdPolicyRouter"]
