"""Built-in policy checkers."""

from arbiter.checkers.condition import ConditionChecker
from arbiter.checkers.history import HistoryPolicyChecker

__all__ = ["ConditionChecker", "HistoryPolicyChecker"]
