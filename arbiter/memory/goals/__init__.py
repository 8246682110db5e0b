"""Goals of a room. Only the conversation moves them."""

from arbiter.memory.goals._evaluator import GoalEvaluator, Goals

__all__ = ["GoalEvaluator", "Goals"]
