"""The files that pages load: all in the package, the vendored ones as their projects published them."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import arbiter.web
from arbiter.web.static_files import StaticFiles

WEB = Path(arbiter.web.__file__).parent
VENDOR = WEB / "static" / "vendor"
LISTED: list[dict[str, Any]] = json.loads((VENDOR / "vendor.json").read_text())


def test_vendored_files_are_those_of_the_list() -> None:
    """Each has its version, licence, source and SHA-256; no other file lies there."""
    for each in LISTED:
        assert sha256((VENDOR / each["file"]).read_bytes()).hexdigest() == each["sha256"]
        assert sha256((VENDOR / each["licence_file"]).read_bytes()).hexdigest() == each["licence_sha256"]
        assert each["from"].startswith("https://registry.npmjs.org/")
        assert each["version"] in each["from"]
    named = {each[key] for each in LISTED for key in ("file", "licence_file")}
    assert {path.name for path in VENDOR.iterdir()} == {*named, "vendor.json"}


def test_no_page_names_another_server() -> None:
    """Templates and own scripts fetch nothing from elsewhere, have no inline handlers, and no text is safe."""
    own = [*(WEB / "templates").iterdir(), *(WEB / "static").glob("*.js"), *(WEB / "static").glob("*.css")]
    for path in own:
        text = path.read_text().replace("http://www.w3.org/", "")
        assert not re.search(r"(src|href|url\(|@import|fetch\()\W{0,3}(https?:)?//", text), path.name
        assert not re.search(
            r"\son\w+\s*=|\|\s*safe\b|innerHTML|insertAdjacentHTML|document\.write|eval\(", text
        ), path.name


def test_only_files_of_the_package_are_served() -> None:
    """A name is looked up among those that were there at the start."""
    static = StaticFiles()
    assert static.url("style.css").startswith("/static/style.css?v=")
    assert "htmx" in static.text("vendor/htmx.min.js")
