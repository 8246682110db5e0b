"""Answers: what a model says, however it says it, in a bounded number of calls."""

from arbiter.memory.answers.asking import CallBudget, StructuredOutcome, structured_call
from arbiter.memory.answers.literals import extract_json
from arbiter.memory.answers.replies import TOLERANT

__all__ = ["TOLERANT", "CallBudget", "StructuredOutcome", "extract_json", "structured_call"]
