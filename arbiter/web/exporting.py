"""A thread as one HTML file, for a ticket or an auditor: everything is inside, and opening it asks no server.

The file's own policy names its scripts and its style by their hashes, so that no other text in it can run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from arbiter._values.version import __version__
from arbiter.ledger._reading import PATH, Reader
from arbiter.web.context import environment
from arbiter.web.items import values_of
from arbiter.web.static_files import StaticFiles
from arbiter.web.thread import PAGE, drawings_of
from arbiter.web.timelines import Remark, Step, timeline_of

if TYPE_CHECKING:
    from arbiter.ledger import Ledger

_SCRIPTS = ("vendor/dagre.min.js", "graph.js")


def html_lines(ledger: Ledger, thread: str) -> Iterator[str]:
    """The parts of the file of a thread, with all of its entries. Raises `ConfigurationError` for an unknown one."""
    reader = ledger.reader
    found = reader.thread(thread)
    static, templates = StaticFiles(), environment()
    scripts = [static.text(name) for name in _SCRIPTS]
    style = static.text("style.css")
    part = templates.get_template("item_part.html")

    def whole(seq: int) -> Markup:
        values = values_of(reader, found, reader.whole(found, seq))
        return Markup(part.render(root="", exported=True, **values))

    yield from templates.get_template("export.html").generate(
        thread=found,
        drawings=drawings_of(reader, found),
        pages=_pages(reader, found),
        whole=whole,
        limit=PATH,
        # These are files of the package; texts that were recorded are escaped as on every page.
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        licence=static.text("vendor/dagre.LICENSE.txt"),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(map(_hash, scripts))}; "
        "base-uri 'none'; form-action 'none'",
        now=datetime.now(UTC),
        ledger=ledger.uuid,
        version=__version__,
    )


def _pages(reader: Reader, thread: Mapping[str, Any]) -> Iterator[list[Step | Remark]]:
    after, more = 0, True
    while more:
        entries, more = reader.entries(thread["id"], after=after, limit=PAGE)
        if entries:
            after = entries[-1].seq
            yield timeline_of(entries)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
