"""The first page: the threads, newest first, or the node runs that filters find."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter.errors import ConfigurationError
from arbiter.ledger import StoredItem
from arbiter.ledger._stored import why_of
from arbiter.web.context import ViewerContext, ensure_known

FILTERS = ("node", "policy", "verdict", "status", "evaluator", "below")
"""The fields of the form that find node runs; with none of them, the page shows threads."""
NAMED: tuple[Literal["node", "policy", "evaluator"], ...] = ("node", "policy", "evaluator")
"""The fields that name something of the ledger."""
TIMES = ("since", "until")
PAGE = 50
_DAY = "24h"


def routes(context: ViewerContext) -> list[Route]:
    def threads(request: Request) -> Response:
        asked = {name: request.query_params.get(name, "").strip() for name in (*FILTERS, *TIMES)}
        after = request.query_params.get("after") or None
        names = {kind: context.ledger.names(kind) for kind in NAMED}
        values: dict[str, Any]
        try:
            for kind in NAMED:
                if asked[kind]:
                    ensure_known(kind, asked[kind], names[kind])
            values = _found(context, {name: text for name, text in asked.items() if text}, after)
            status = 200
        except ConfigurationError as error:
            values, status = {"problem": str(error)}, 400
        values = {"problem": None, "threads": None, "items": None, "next": None, "names": names, **values}
        values["day"] = _counts_of_the_day(context)
        return context.page(request, "threads.html", status, asked=asked, first=after is None, **values)

    return [Route("/", threads, methods=["GET"])]


def _found(context: ViewerContext, asked: Mapping[str, str], after: str | None) -> dict[str, Any]:
    times: dict[str, Any] = {name: asked.get(name) for name in TIMES}
    filters: dict[str, Any] = {name: asked[name] for name in FILTERS if name in asked}
    if not filters:
        page = context.ledger.threads(**times).page(PAGE, after)
        return {"threads": page.rows, "next": _next(asked, page.next)}
    if "below" in filters:
        try:
            filters["below"] = float(filters["below"])
        except ValueError:
            raise ConfigurationError(f"below: expected a number, got {filters['below']!r:.80}.") from None
    found = context.ledger.items(**filters, **times).page(PAGE, after)
    rows = [_row(item, asked.get("evaluator")) for item in found]
    return {"items": rows, "next": _next(asked, found.next)}


def _row(item: StoredItem, evaluator: str | None) -> dict[str, Any]:
    score = None if evaluator is None else item.evaluation_results.get(evaluator)
    return {
        "item": item,
        "end": item.timestamp + timedelta(seconds=item.duration),
        "score": score,
        "why": why_of(item) if score is None else score.feedback,
    }


def _next(asked: Mapping[str, str], cursor: str | None) -> str | None:
    return None if cursor is None else "?" + urlencode({**asked, "after": cursor})


def _counts_of_the_day(context: ViewerContext) -> dict[str, int]:
    """Node runs of the last 24 hours, rounded to whole hours: all of them, and those denied and asked."""
    found = {str(row["name"]): int(row["count"]) for row in context.ledger.counts("verdict", since=_DAY)}
    return {"items": sum(found.values()), "denied": found.get("deny", 0), "asked": found.get("ask", 0)}
