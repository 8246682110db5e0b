"""The browser of the viewer's tests, started once."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.web.chromium import Chromium, chromium


@pytest.fixture(scope="session")
def browser() -> Generator[Chromium]:
    with chromium() as found:
        yield found
