"""Makes the pictures of docs/viewer.md from the real pages: python -m tests.web.pictures"""

from __future__ import annotations

import tempfile
from pathlib import Path

from arbiter.ledger import Ledger
from examples.payments.graph import build
from examples.payments.viewer import HERE, record
from tests.web.chromium import Tab, chromium
from tests.web.pages import opened

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = {"width": 900, "height": 560}


def take(folder: Path) -> list[Path]:
    """Record the payments example, and write a picture of each page to the folder."""
    with Ledger(folder / "payments.db") as ledger, chromium() as browser:
        app = record(ledger, build())
        refs = {str(thread["thread_id"]): thread["ref"] for thread in ledger.threads()}
        denied = next(iter(ledger.items(verdict="deny", policy="known_vendors")))
        pages = {
            "threads": "/",
            "thread": f"/threads/{refs['A-2-kim-3']}",
            "item": f"/threads/{denied.ref}/items/{denied.seq}",
            "inbox": "/inbox",
            "evaluations": "/evaluations",
        }
        with opened(ledger, constitution=str(HERE), graphs={"payments": app}) as (key, _):

            def visit(tab: Tab) -> list[Path]:
                made: list[Path] = []
                tab.page.goto(key)
                for name, path in pages.items():
                    tab.page.goto(key.partition("/?")[0] + path)
                    if name == "thread":
                        tab.page.wait_for_selector("svg.drawn")
                    made.append(PICTURES / f"{name}.png")
                    tab.page.screenshot(path=made[-1])
                return made

            return browser.run(visit, viewport=SIZE, color_scheme="light")


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for picture in take(Path(folder)):
            print(f"wrote {picture}, {picture.stat().st_size:,} bytes")
