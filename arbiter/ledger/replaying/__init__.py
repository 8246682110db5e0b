"""Replay: what another constitution would have decided about recorded runs.

    recorded threads ─▶ pasts ─▶ visits (the lifecycle's own shadow stages) ─▶ report
                          views: a read of what the ledger does not have makes a decision unknown

No node, tool or, unless it is given, model is called. See docs/ledger.md and docs/design/replay.md.
"""

from arbiter.ledger.replaying._report import Outcome, ReplayDifference, ReplayReport, ReplaySummary

__all__ = ["Outcome", "ReplayDifference", "ReplayReport", "ReplaySummary"]
