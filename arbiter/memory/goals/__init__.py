"""Goals: what is to be reached in a room, moved by what is said and by nothing else."""

from arbiter.memory.goals.evaluator import GoalEvaluator, Goals

__all__ = ["GoalEvaluator", "Goals"]
