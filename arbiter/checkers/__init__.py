"""Built-in policy checkers."""

from arbiter.checkers.budget import BudgetChecker
from arbiter.checkers.history import HistoryPolicyChecker
from arbiter.checkers.rate_limit import RateLimitChecker

__all__ = ["BudgetChecker", "HistoryPolicyChecker", "RateLimitChecker"]
