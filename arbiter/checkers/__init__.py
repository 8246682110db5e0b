"""Built-in policy checkers."""

from arbiter.checkers.history import HistoryPolicyChecker

__all__ = ["HistoryPolicyChecker"]
