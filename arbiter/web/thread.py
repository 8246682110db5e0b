"""The page of a thread: its graph with the path taken, and its supersteps in time, 200 entries a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter.errors import ConfigurationError
from arbiter.ledger._reading import PATH, Reader
from arbiter.web.context import ViewerContext
from arbiter.web.drawing import Drawing, drawing_of
from arbiter.web.timelines import timeline_of

PAGE = 200
_GRAPHS = 4
"""The drawings on one page: the graph, and the subgraphs that ran last."""


def routes(context: ViewerContext) -> list[Route]:
    def thread(request: Request) -> Response:
        reader = context.ledger.reader
        found = found_thread(reader, request)
        before, after = number(request, "before"), number(request, "after")
        entries, more = reader.entries(found["id"], before=before, after=after, limit=PAGE)
        first, last = (entries[0].seq, entries[-1].seq) if entries else (0, 0)
        newer = more if after is not None else before is not None and bool(entries)
        return context.page(
            request,
            "thread.html",
            thread=found,
            steps=timeline_of(entries),
            older=first if (more if after is None else first > 1) else None,
            newer=last if newer else None,
            last=last,
            drawings=drawings_of(reader, found),
            limit=PATH,
        )

    def rows(request: Request) -> Response:
        reader = context.ledger.reader
        found = found_thread(reader, request)
        after = number(request, "after") or 0
        entries, more = reader.entries(found["id"], after=after, limit=PAGE)
        page = context.page(
            request,
            "thread_rows.html",
            thread=found,
            steps=timeline_of(entries),
            last=entries[-1].seq if entries else after,
            more=more,
        )
        if any(entry.kind in ("erasure", "pruned") for entry in entries):
            page.headers["HX-Refresh"] = "true"  # an open page still shows what is gone now
        return page

    def summary(request: Request) -> Response:
        reader = context.ledger.reader
        found = found_thread(reader, request)
        drawings = drawings_of(reader, found)
        return context.page(request, "thread_summary.html", thread=found, drawings=drawings, limit=PATH)

    return [
        Route("/threads/{ref}", thread, methods=["GET"]),
        Route("/threads/{ref}/rows", rows, methods=["GET"]),
        Route("/threads/{ref}/summary", summary, methods=["GET"]),
    ]


def found_thread(reader: Reader, request: Request) -> dict[str, Any]:
    """The thread that the path names, or a 404 with the nearest name."""
    try:
        return reader.thread(request.path_params["ref"])
    except ConfigurationError as error:
        raise HTTPException(404, str(error)) from None


def number(request: Request, name: str) -> int | None:
    """The number of an entry in the query; None if it is not there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise HTTPException(400, f"{name}: expected the number of an entry, got {text!r:.80}.")
    return int(text)


def drawings_of(reader: Reader, thread: Mapping[str, Any]) -> list[Drawing]:
    """The graph of a thread and the subgraphs that ran last, with the path of the newest node runs."""
    by_graph: dict[str, list[Mapping[str, Any]]] = {}
    outcomes: dict[str, str] = {}
    bodies = reader.path(thread["id"])
    # A recovered node run does not name its graph; without a namespace it is that of the thread.
    whole = next((body["graph"] for body in reversed(bodies) if _is_outer(body)), None)
    for body in bodies:
        if body["kind"] == "execution":
            outcomes[str(body.get("run", ""))] = str(body.get("outcome"))
        elif digest := body.get("graph") or (None if body.get("namespace") else whole):
            runs = by_graph.pop(digest, [])
            runs.append(body)
            by_graph[digest] = runs  # at the end: the graphs that ran last are the last ones
    drawn = [digest for digest in by_graph if digest != whole][1 - _GRAPHS :]
    if whole in by_graph:
        drawn.insert(0, whole)
    found: list[Drawing] = []
    for digest in drawn:
        graph = reader.text("graph", digest)
        if graph is not None:
            found.append(drawing_of(graph, by_graph[digest], outcomes))
    return found


def _is_outer(body: Mapping[str, Any]) -> bool:
    return body["kind"] != "execution" and bool(body.get("graph")) and not body.get("namespace")
