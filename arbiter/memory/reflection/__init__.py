"""Reflection: thoughts about a room, facts in it, and who has to do with whom."""

from arbiter.memory.reflection.evaluator import ReflectionEvaluator

__all__ = ["ReflectionEvaluator"]
