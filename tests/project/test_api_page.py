"""docs/api.md is what the code says."""

from __future__ import annotations

from tests import api_page


def test_the_api_page_is_that_of_the_code() -> None:
    """`python -m tests.api_page` writes the page from the code, and a test compares them."""
    shown = api_page.PAGE.read_text(encoding="utf-8")
    assert shown == api_page.page(), "docs/api.md is out of date. Run: python -m tests.api_page"
