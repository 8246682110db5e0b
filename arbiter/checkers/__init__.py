"""Built-in policy checkers."""

from arbiter.checkers._arguments import ArgumentRule
from arbiter.checkers.budget import BudgetChecker
from arbiter.checkers.condition import ConditionChecker
from arbiter.checkers.flow import FlowChecker, Label
from arbiter.checkers.history import HistoryPolicyChecker
from arbiter.checkers.rate_limit import RateLimitChecker
from arbiter.checkers.schema import SchemaChecker
from arbiter.checkers.tools import ToolRule, ToolsChecker

__all__ = [
    "ArgumentRule",
    "BudgetChecker",
    "ConditionChecker",
    "FlowChecker",
    "HistoryPolicyChecker",
    "Label",
    "RateLimitChecker",
    "SchemaChecker",
    "ToolRule",
    "ToolsChecker",
]
