"""Built-in policy checkers."""

from arbiter.checkers._arguments import ArgumentRule
from arbiter.checkers.history import HistoryPolicyChecker
from arbiter.checkers.tools import ToolRule, ToolsChecker

__all__ = ["ArgumentRule", "HistoryPolicyChecker", "ToolRule", "ToolsChecker"]
