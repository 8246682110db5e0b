"""`ViewerContext`: the parts that all pages of a viewer share, and how a page is made.

    ledger, graphs ─▶ ViewerContext ─▶ routes of each page ─▶ template ─▶ HTML

A module of pages has `routes(context) -> list[Route]`. Its endpoints ask the ledger, and make a response with
`context.page`. Templates escape everything; no template marks a text as safe.

Live updates are events in the browser. An element with `data-live="ledger"` gets the event `grown` when
something was committed, and one with `data-live="thread:REF"` when that thread has grown; htmx then asks for
the part of the page that the element names (`hx-get`, `hx-trigger="grown"`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from arbiter.errors import ConfigurationError, nearest
from arbiter.harness.reports.page import shown, templates
from arbiter.history._rendering import duration_text, moment_text
from arbiter.history._text import Ink
from arbiter.web.static_files import StaticFiles

if TYPE_CHECKING:
    from arbiter._constitution.loading import Source
    from arbiter.ledger import Ledger

OnAnswer = Callable[[str, str, Any], Awaitable[Any] | Any]
"""Called with a thread id, the id of an interrupt, and the answer."""
NAME = 120
"""The most columns that a name takes on a page."""
_INK = Ink("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerContext:
    """The parts that the pages of one viewer share."""

    ledger: Ledger
    graphs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Compiled graphs by name, which the inbox resumes."""
    on_answer: OnAnswer | None = None
    constitution: Source | None = None
    """The constitution that a replay asks; None if the viewer was started without one."""
    allow: tuple[str, ...] = ()
    reports: str | None = None
    """The folder of evaluation runs; None for none."""
    static: StaticFiles = field(default_factory=StaticFiles)
    navigation: tuple[tuple[str, str], ...] = (
        ("/", "Threads"),
        ("/inbox", "Inbox"),
        ("/evaluations", "Evaluations"),
        ("/verify", "Verify"),
        ("/replay", "Replay"),
        ("/reports", "Reports"),
    )
    """The paths and names of the pages that each page links."""
    environment: Environment = field(default_factory=lambda: environment())

    def page(self, request: Request, template: str, status_code: int = 200, /, **values: Any) -> Response:
        """The page of a template. `user`, `csrf`, `root`, `health` and `viewer` are there for all of them."""
        state: Mapping[str, Any] = request.scope.get("state") or {}
        root = request.scope.get("root_path", "")
        text = self.environment.get_template(template).render(
            user=state.get("user"),
            csrf=state.get("csrf", ""),
            newest=state.get("newest", 0),
            root=root,
            here=request.url.path.removeprefix(root),
            health=self.ledger.health(),
            viewer=self,
            **values,
        )
        return HTMLResponse(text, status_code)


def ensure_known(name: str, value: str, known: Sequence[str]) -> None:
    """Raise `ConfigurationError` for a name that does not occur in the ledger."""
    if value not in known:
        raise ConfigurationError(
            f"{name} is {value!r:.80}, which this ledger does not know.{nearest(value, known)}"
        )


def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the form in a request. If a name occurs twice, the last value counts."""
    form: Mapping[str, str] = request.scope["state"]["form"]
    return form


def redirect(request: Request, path: str) -> Response:
    """Send the browser to another page of the viewer."""
    return RedirectResponse(request.scope.get("root_path", "") + path, 303)


def environment() -> Environment:
    """The templates of the viewer, and those of reports."""
    reports = PrefixLoader({"reports": PackageLoader("arbiter.harness", "reports")})
    made = templates(ChoiceLoader([PackageLoader("arbiter.web", "templates"), reports]))
    made.filters.update(
        line=line,
        lines=lines,
        shown_names=shown_names,
        moment=moment_text,
        iso=datetime.isoformat,
        lasted=duration_text,
        count="{:,}".format,
    )
    return made


def line(value: object, cells: int = NAME) -> str:
    """A text on one line: control and invisible characters are shown as escapes, a long text is cut."""
    return _INK.line("" if value is None else str(value), cells)


def lines(text: object, chars: int = 16_384) -> str:
    """A text with its line ends, other invisible characters as their codes, cut after that many characters."""
    whole = str(text)
    left = len(whole) - chars
    return shown(whole[:chars]) + (f"… (+{left:,} chars)" if left > 0 else "")


def shown_names(drawing: Mapping[str, Any]) -> Any:
    """The data of a drawing, with each text on one line and invisible characters as escapes."""

    def shown(value: Any) -> Any:
        return line(value, 200) if isinstance(value, str) else value

    parts: dict[str, Any] = {"name": line(drawing["name"])}
    for kind in ("nodes", "edges"):
        parts[kind] = [{key: shown(value) for key, value in each.items()} for each in drawing[kind]]
    return parts
