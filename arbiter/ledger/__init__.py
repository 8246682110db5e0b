"""The ledger: what governed graphs did is kept, proved and searched, after the process has ended.

    listener (at the moment) ─▶ queue ─▶ writer ─▶ salted contents beside a chain of hashes ─▶ columns, rollups
                                                                  └▶ anchors, kept elsewhere

See docs/ledger.md.
"""

try:
    from arbiter.ledger._anchors import AnchorSink
    from arbiter.ledger._database import LedgerError, LedgerUnavailable
    from arbiter.ledger._erasing import Erasure
    from arbiter.ledger._ledger import Executions, Health, Items, Ledger, Threads
    from arbiter.ledger._queries import Page
    from arbiter.ledger._stored import StoredHistory, StoredItem
    from arbiter.ledger._verifying import Finding, Verification
    from arbiter.ledger.replaying import ReplayDifference, ReplayReport
except ModuleNotFoundError as error:
    if error.name != "orjson":
        raise
    raise ImportError(
        "a ledger needs orjson, sqlalchemy and alembic: pip install 'arbiteros[ledger]'"
    ) from error

__all__ = [
    "AnchorSink",
    "Erasure",
    "Executions",
    "Finding",
    "Health",
    "Items",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "Page",
    "ReplayDifference",
    "ReplayReport",
    "StoredHistory",
    "StoredItem",
    "Threads",
    "Verification",
]
