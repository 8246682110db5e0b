"""Built-in evaluators."""

from arbiter.evaluators._condition import ConditionEvaluator
from arbiter.evaluators._consistency import ConsistencyEvaluator, TextSimilarityEvaluator
from arbiter.evaluators._cost import CostEvaluator
from arbiter.evaluators._judge import JudgeEvaluator
from arbiter.evaluators._latency import LatencyEvaluator
from arbiter.evaluators._length import LengthEvaluator
from arbiter.evaluators._schema_valid import SchemaEvaluator
from arbiter.evaluators._threshold import ThresholdEvaluator
from arbiter.evaluators._weighted import WeightedEvaluator

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
