"""Trust: counted from evidence, without a model."""

from arbiter.memory.trust.evaluator import Trust, TrustEvaluator

__all__ = ["Trust", "TrustEvaluator"]
