"""Built-in policy checkers."""

from arbiter.checkers._arguments import ArgumentRule
from arbiter.checkers.approval import ApprovalChecker
from arbiter.checkers.at_most import AtMost
from arbiter.checkers.budget import BudgetChecker
from arbiter.checkers.condition import ConditionChecker
from arbiter.checkers.flow import FlowChecker, Label
from arbiter.checkers.history import HistoryPolicyChecker
from arbiter.checkers.never_after import NeverAfter
from arbiter.checkers.rate_limit import RateLimitChecker
from arbiter.checkers.require_before import RequireBefore
from arbiter.checkers.schema import SchemaChecker
from arbiter.checkers.tools import ToolRule, ToolsChecker
from arbiter.checkers.within_steps import WithinSteps

__all__ = [
    "ApprovalChecker",
    "ArgumentRule",
    "AtMost",
    "BudgetChecker",
    "ConditionChecker",
    "FlowChecker",
    "HistoryPolicyChecker",
    "Label",
    "NeverAfter",
    "RateLimitChecker",
    "RequireBefore",
    "SchemaChecker",
    "ToolRule",
    "ToolsChecker",
    "WithinSteps",
]
