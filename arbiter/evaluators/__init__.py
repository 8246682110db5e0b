"""Built-in evaluators."""

from arbiter.evaluators.condition import ConditionEvaluator
from arbiter.evaluators.consistency import ConsistencyEvaluator, TextSimilarityEvaluator
from arbiter.evaluators.cost import CostEvaluator
from arbiter.evaluators.judge import JudgeEvaluator
from arbiter.evaluators.latency import LatencyEvaluator
from arbiter.evaluators.length import LengthEvaluator
from arbiter.evaluators.schema_valid import SchemaEvaluator
from arbiter.evaluators.threshold import ThresholdEvaluator
from arbiter.evaluators.weighted import WeightedEvaluator

__all__ = [
    "ConditionEvaluator",
    "ConsistencyEvaluator",
    "CostEvaluator",
    "JudgeEvaluator",
    "LatencyEvaluator",
    "LengthEvaluator",
    "SchemaEvaluator",
    "TextSimilarityEvaluator",
    "ThresholdEvaluator",
    "WeightedEvaluator",
]
