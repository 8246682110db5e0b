"""A large ledger: no page takes longer because there is more of it."""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path

import pytest

from arbiter.ledger import Ledger
from benchmarks.ledger_pages import LIMIT, events, fill, page_times

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


def _written() -> int:
    """The bytes that this process has written to files so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


@pytest.mark.lengthy
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's count of written bytes")
def test_a_batch_is_written_once_to_the_log_and_to_no_temporary_file(tmp_path: Path) -> None:
    """SQLite keeps what an insert of many rows changes, to undo it: not in a file."""
    with Ledger(tmp_path / "l.db") as ledger:
        store = ledger._store  # pyright: ignore[reportPrivateUsage]
        made = events(4_000, time.time_ns() // 1000)
        log = tmp_path / "l.db-wal"
        store.write(list(islice(made, 512)))
        before, size = _written(), log.stat().st_size
        store.write(list(islice(made, 512)))
        grown = log.stat().st_size - size
        assert grown > 0
        assert _written() - before < 1.2 * grown
