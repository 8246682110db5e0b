"""Structured answers of models, read in any form and in a bounded number of calls."""

from arbiter.memory.answers._asking import CallBudget, StructuredOutcome, structured_call
from arbiter.memory.answers._replies import TOLERANT
from arbiter.models import extract_json

__all__ = ["TOLERANT", "CallBudget", "StructuredOutcome", "extract_json", "structured_call"]
