"""A large ledger: no page takes longer because there is more of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arbiter.ledger import Ledger
from benchmarks.ledger_pages import LIMIT, fill, page_times

ITEMS = 1_000_000 if os.environ.get("ARBITER_STRESS") == "full" else 50_000


@pytest.mark.slow
def test_each_page_of_a_large_ledger_takes_less_than_a_tenth_of_a_second(tmp_path: Path) -> None:
    """Each filter alone and in a range of time, the first page and later ones. The items are made once, by the
    ledger's own store."""
    with Ledger(tmp_path / "l.db") as ledger:
        fill(ledger, ITEMS)
        late = {
            (name, place): seconds
            for name, places in page_times(ledger).items()
            for place, seconds in places.items()
            if seconds > LIMIT
        }
    assert late == {}
