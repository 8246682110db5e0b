"""The pictures of the documentation are pictures of the real pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.web.chromium import Chromium
from tests.web.pictures import PICTURES, take

pytestmark = pytest.mark.lengthy


def test_the_pictures_of_the_documentation_can_be_made_again(browser: Chromium, tmp_path: Path) -> None:
    """Each picture is one of a real page without a table that is cut off, and each is shown on a page of docs/."""
    made = {picture.name for picture in take(browser, tmp_path, to=tmp_path)}
    pages = "".join(page.read_text(encoding="utf-8") for page in PICTURES.parent.glob("*.md"))
    assert made == {picture.name for picture in PICTURES.iterdir()}
    assert made == set(re.findall(r"]\(pictures/([^)]+)\)", pages))
