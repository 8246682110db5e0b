"""The ledger: what governed graphs did is kept, proved and searched, after the process has ended.

    listener (at the moment) ─▶ queue ─▶ writer ─▶ salted contents beside a chain of hashes ─▶ columns, rollups
                                                                  └▶ anchors, kept elsewhere

See docs/ledger.md.
"""

from arbiter.ledger._anchors import AnchorSink
from arbiter.ledger._database import LedgerError, LedgerUnavailable
from arbiter.ledger._ledger import Erasure, Health, Items, Ledger
from arbiter.ledger._queries import Page
from arbiter.ledger._stored import StoredHistory
from arbiter.ledger._verifying import Finding, Verification

__all__ = [
    "AnchorSink",
    "Erasure",
    "Finding",
    "Health",
    "Items",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "Page",
    "StoredHistory",
    "Verification",
]
