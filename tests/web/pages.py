"""A viewer that is served, and a ledger of the payments example for it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx

from arbiter.ledger import Ledger
from arbiter.web import viewer
from arbiter.web.access import TokenAccess, Tokens
from tests.web.serving import free_port, served


@contextmanager
def opened(ledger: Ledger, **options: Any) -> Generator[tuple[str, httpx.Client]]:
    """The address with the key to a viewer of that ledger, and a client that is let in."""
    port = free_port()
    tokens, token = Tokens.fresh("ann")
    app = viewer(ledger, auth=TokenAccess(tokens, host="127.0.0.1", port=port), **options)
    with (
        served(app, port) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=60) as client,
    ):
        key = f"{address}/?token={token}"
        assert client.get(key).status_code == 200
        yield key, client
