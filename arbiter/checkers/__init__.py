"""Built-in policy checkers."""

from arbiter.checkers.approval import ApprovalChecker
from arbiter.checkers.history import HistoryPolicyChecker

__all__ = ["ApprovalChecker", "HistoryPolicyChecker"]
