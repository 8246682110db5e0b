"""Built-in evaluators."""

from arbiter.evaluators.condition import ConditionEvaluator
from arbiter.evaluators.threshold import ThresholdEvaluator

__all__ = ["ConditionEvaluator", "ThresholdEvaluator"]
