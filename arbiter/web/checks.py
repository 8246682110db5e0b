"""The pages of a verification and of a replay: start it, see it go, then its findings or differences with links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter.errors import ConfigurationError
from arbiter.ledger import ReplayReport
from arbiter.web.context import ViewerContext, form_of, redirect
from arbiter.web.jobs import Jobs

FINDINGS = 500
"""The findings or differences that a page shows."""
Work = Callable[[Callable[[int], None]], Any]
REPLAYS = "Start the viewer with the constitution that is to decide: arbiter view -c DIR."


def routes(context: ViewerContext) -> list[Route]:
    return [
        *_pages(context, "verify", _verification),
        *_pages(context, "replay", _replay),
        Route("/find", _finder(context), methods=["GET"]),
    ]


def _pages(
    context: ViewerContext, name: str, work_of: Callable[[ViewerContext, Mapping[str, str]], tuple[Work, str]]
) -> list[Route]:
    jobs = Jobs()

    def overview(request: Request) -> Response:
        return context.page(request, f"{name}.html", job=None, jobs=jobs.newest(), problem=None)

    def begin(request: Request) -> Response:
        form = form_of(request)
        try:
            work, about = work_of(context, form)
        except ConfigurationError as error:
            return context.page(
                request, f"{name}.html", 400, job=None, jobs=jobs.newest(), problem=str(error)
            )
        job = jobs.begin(work, about=about, by=str(request.scope["state"]["user"].name))
        return redirect(request, f"/{name}/{job.id}")

    def one(request: Request) -> Response:
        job = jobs.find(request.path_params["id"])
        if job is None:
            raise HTTPException(404, "This job is not there any more. Start it again.")
        return context.page(
            request, f"{name}.html", job=job, jobs=(), problem=None, limit=FINDINGS, find=_find
        )

    return [
        Route(f"/{name}", overview, methods=["GET"]),
        Route(f"/{name}", begin, methods=["POST"]),
        Route(f"/{name}/{{id}}", one, methods=["GET"]),
    ]


def _find(thread: str, task: str) -> str:
    return "/find?" + urlencode({"thread": thread, "task": task})


def _finder(context: ViewerContext) -> Callable[[Request], Response]:
    def find(request: Request) -> Response:
        """The page of a node run that is known by its thread and its task."""
        reader = context.ledger.reader
        try:
            thread = reader.thread(request.query_params.get("thread", ""))
        except ConfigurationError as error:
            raise HTTPException(404, str(error)) from None
        seq = reader.find_task(thread["id"], request.query_params.get("task", ""))
        place = f"/threads/{thread['ref']}" + ("" if seq is None else f"/items/{seq}")
        return redirect(request, place)

    return find


def _verification(context: ViewerContext, form: Mapping[str, str]) -> tuple[Work, str]:
    name = form.get("thread", "").strip()
    if name:
        context.ledger.reader.thread(name)  # an unknown one is an error of the form

    def work(progress: Callable[[int], None]) -> Any:
        return context.ledger.verify(name or None, progress=progress)

    return work, f"thread {name}" if name else "all threads"


def _replay(context: ViewerContext, form: Mapping[str, str]) -> tuple[Work, str]:
    source = context.constitution
    if source is None:
        raise ConfigurationError(REPLAYS)
    since, thread = form.get("since", "").strip(), form.get("thread", "").strip()
    if thread:
        context.ledger.reader.thread(thread)  # an unknown one is an error of the form
    context.ledger.threads(since=since or None)  # a wrong time is an error of the form

    def work(progress: Callable[[int], None]) -> ReplayReport:
        return context.ledger.replay(
            source,
            threads=[thread] if thread else None,
            since=since or None,
            allow=context.allow,
            progress=progress,
        )

    where = f"thread {thread}" if thread else "all threads"
    return work, f"{where}, since {since}" if since else where
