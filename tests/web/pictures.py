"""Makes the pictures of docs/viewer.md and docs/telemetry.md from the real pages: python -m tests.web.pictures"""

from __future__ import annotations

import re
import tempfile
from contextlib import chdir
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from arbiter.ledger import Ledger
from arbiter.telemetry import OpenTelemetry
from examples.payments.graph import build
from examples.payments.viewer import HERE, record
from tests.web.chromium import Chromium, Tab, chromium
from tests.web.pages import opened

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = {"width": 1000, "height": 640}
_TO_THE_TOP = "heading => heading.scrollIntoView({block: 'start'})"
_CUT_OFF = """() => [...document.querySelectorAll('.wide')].filter(each => each.scrollWidth > each.clientWidth)
  .map(each => each.getAttribute('aria-label'))"""
"""The tables that do not fit into the picture."""


def take(browser: Chromium, folder: Path, to: Path = PICTURES) -> list[Path]:
    """Record the payments example in the folder, and write a picture of each page."""
    # The pages show the path of the ledger: a name without a folder.
    with chdir(folder), Ledger("payments.db") as ledger:
        app = record(ledger, build(), listeners=[OpenTelemetry(TracerProvider())])
        refs = {str(thread["thread_id"]): thread["ref"] for thread in ledger.threads()}
        denied = next(iter(ledger.items(verdict="deny", policy="known_vendors")))
        with opened(ledger, constitution=str(HERE), graphs={"payments": app}) as (key, client):
            question = re.findall(r'"(/inbox/[^"]+)"', client.get("/inbox").text)[0]
            pages = {
                "threads": ("/", None),
                "thread": (f"/threads/{refs['A-2-kim-3']}", None),
                "item": (f"/threads/{denied.ref}/items/{denied.seq}", None),
                "trace": (f"/threads/{denied.ref}/items/{denied.seq}", "Place in the chain"),
                "inbox": ("/inbox", None),
                "question": (question, None),
                "evaluations": ("/evaluations", None),
            }

            def visit(tab: Tab) -> list[Path]:
                made: list[Path] = []
                tab.page.goto(key)
                for name, (path, heading) in pages.items():
                    tab.page.goto(key.partition("/?")[0] + path)
                    if name == "thread":
                        tab.page.wait_for_selector("svg.drawn")
                    if heading is not None:
                        tab.page.get_by_role("heading", name=heading, exact=True).evaluate(_TO_THE_TOP)
                    assert tab.page.evaluate(_CUT_OFF) == [], name
                    made.append(to / f"{name}.png")
                    tab.page.screenshot(path=made[-1], full_page=name == "question")
                return made

            return browser.run(visit, viewport=SIZE, color_scheme="light")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for picture in take(browser, Path(folder)):
            print(f"wrote {picture}, {picture.stat().st_size:,} bytes")
