"""Built-in evaluators."""

from arbiter.evaluators.threshold import ThresholdEvaluator

__all__ = ["ThresholdEvaluator"]
