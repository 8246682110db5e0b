"""Built-in policy checkers."""

from arbiter.checkers.condition import ConditionChecker
from arbiter.checkers.flow import FlowChecker, Label
from arbiter.checkers.history import HistoryPolicyChecker
from arbiter.checkers.schema import SchemaChecker

__all__ = ["ConditionChecker", "FlowChecker", "HistoryPolicyChecker", "Label", "SchemaChecker"]
