"""Built-in policy routers."""

from arbiter.routers.quality import EvaluationRouter, MetricThresholdPolicyRouter

__all__ = ["EvaluationRouter", "MetricThresholdPolicyRouter"]
