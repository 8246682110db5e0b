"""A thread whose node had drafts that a correction gate sent back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arbiter import ArbiterOS, Correction, CorrectionGate, History
from arbiter.ledger import Ledger
from tests.ledger.ledger_support import conf
from tests.support import chain


class _UntilTheLast(CorrectionGate):
    def __init__(self, drafts: Sequence[str]) -> None:
        super().__init__("length", max_attempts=len(drafts))
        self.drafts = drafts

    def review(self, history: History, draft: Any, attempt: int) -> Correction:
        if attempt == len(self.drafts):
            return Correction.commit()
        return Correction.retry(f"{self.drafts[attempt - 1]} is not good enough")


def record_drafts(ledger: Ledger, drafts: Sequence[str], thread_id: str = "drafted") -> None:
    """A run of one node that writes these drafts, of which the last one is accepted."""
    left = list(drafts)

    def write(state: Any) -> Any:
        return {"log": [left.pop(0)]}

    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_correction_gate(_UntilTheLast(drafts))
    arbiter_os.govern(chain(write)).invoke({"amount": 1}, conf(thread_id))
    assert ledger.flush(60)
