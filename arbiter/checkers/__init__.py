"""Built-in policy checkers."""

from arbiter.checkers._approval import ApprovalChecker
from arbiter.checkers._arguments import ArgumentRule
from arbiter.checkers._at_most import AtMost
from arbiter.checkers._budget import BudgetChecker
from arbiter.checkers._condition import ConditionChecker
from arbiter.checkers._flow import FlowChecker, Label
from arbiter.checkers._history import HistoryPolicyChecker
from arbiter.checkers._never_after import NeverAfter
from arbiter.checkers._rate_limit import RateLimitChecker
from arbiter.checkers._require_before import RequireBefore
from arbiter.checkers._schema import SchemaChecker
from arbiter.checkers._tools import ToolRule, ToolsChecker
from arbiter.checkers._within_steps import WithinSteps

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
