"""Built-in policy checkers."""

from arbiter.checkers.at_most import AtMost
from arbiter.checkers.history import HistoryPolicyChecker
from arbiter.checkers.never_after import NeverAfter
from arbiter.checkers.require_before import RequireBefore
from arbiter.checkers.within_steps import WithinSteps

__all__ = ["AtMost", "HistoryPolicyChecker", "NeverAfter", "RequireBefore", "WithinSteps"]
