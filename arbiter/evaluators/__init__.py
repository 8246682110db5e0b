"""Built-in evaluators."""

from arbiter.evaluators.schema_valid import SchemaEvaluator
from arbiter.evaluators.threshold import ThresholdEvaluator

__all__ = ["SchemaEvaluator", "ThresholdEvaluator"]
