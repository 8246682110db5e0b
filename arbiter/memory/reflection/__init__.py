"""Reflection: thoughts about a room, facts in it, and relationships between its participants."""

from arbiter.memory.reflection._evaluator import ReflectionEvaluator

__all__ = ["ReflectionEvaluator"]
