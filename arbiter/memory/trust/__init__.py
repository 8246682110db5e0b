"""Trust: computed from evidence, without a model."""

from arbiter.memory.trust._evaluator import Trust, TrustEvaluator

__all__ = ["Trust", "TrustEvaluator"]
