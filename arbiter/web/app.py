"""`viewer`: the ASGI application of all pages.

    request ─▶ auth (tokens, Host, CSRF, limits) ─▶ routes of each page ─▶ ledger

A mistake in a request, and a question that the ledger cannot answer, become a page with one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter._databases import sentences
from arbiter.errors import ArbiterError, ConfigurationError, describe
from arbiter.ledger import LedgerError, LedgerUnavailable
from arbiter.ledger._database import CHANGED, SCHEMA, unreadable
from arbiter.web import checks, evaluations, items, reports, thread, threads
from arbiter.web.access import Auth, middleware
from arbiter.web.context import OnAnswer, ViewerContext
from arbiter.web.inbox import Inbox
from arbiter.web.live import LiveFeed

if TYPE_CHECKING:
    from arbiter._constitution.loading import Source
    from arbiter.ledger import Ledger

_PAGES: tuple[Callable[[ViewerContext], list[Route]], ...] = (
    threads.routes,
    thread.routes,
    items.routes,
    evaluations.routes,
    checks.routes,
    reports.routes,
)
_log = logging.getLogger("arbiter")
_SENTENCES = {404: "There is no such page.", 405: "This page does not take that method."}


def viewer(
    ledger: Ledger,
    graphs: Mapping[str, Any] = MappingProxyType({}),
    *,
    auth: Auth | None = None,
    on_answer: OnAnswer | None = None,
    constitution: Source | None = None,
    allow: Iterable[str] = (),
    reports: str | None = None,
) -> Starlette:
    """The pages of a ledger as an ASGI application, to be served alone or mounted in another one.

    `graphs` are governed graphs by name; the inbox resumes their paused threads, and `on_answer(thread_id,
    interrupt_id, answer)` does so in place of them. `constitution` is what the replay page asks, with `allow` as
    in `ArbiterOS.from_constitution`. `reports` is a folder of evaluation runs, shown as pages. `auth` is ASGI
    middleware that says who asks; without it, the application around the viewer has to authenticate, and a request
    without a user is refused. Raises `ConfigurationError` for graphs that cannot be answered.
    """
    context = ViewerContext(
        ledger=ledger,
        graphs=dict(graphs),
        on_answer=on_answer,
        constitution=constitution,
        allow=tuple(allow),
        reports=reports,
    )

    def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            status = error.status_code
            sentence = _SENTENCES.get(status, error.detail) if error.detail in _PHRASES else error.detail
        else:
            status, sentence = (400 if isinstance(error, ConfigurationError) else 500), str(error)
        return context.page(request, "error.html", status, sentence=sentence)

    def unexpected(request: Request, error: Exception) -> Response:
        _log.error(
            "the viewer could not make a page: %s",
            describe(error),
            exc_info=None if isinstance(error, LedgerError) else error,
        )
        try:
            with sentences(ledger.where, SCHEMA):
                ledger.reader.ensure_current(ledger.where)
                raise error
        except LedgerError as known:
            sentence = str(known)
        except Exception:
            sentence = str(unreadable(ledger.where, error))
        return context.page(request, "error.html", 500, sentence=sentence)

    feed, inbox = LiveFeed(ledger), Inbox(context)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        feed.close()
        await run_in_threadpool(inbox.close)

    made = Starlette(
        routes=[
            *context.static.routes(),
            *feed.routes(),
            *inbox.routes(),
            *(route for routes in _PAGES for route in routes(context)),
        ],
        middleware=[*middleware(auth), Middleware(feed.marked)],
        exception_handlers={
            HTTPException: refused,
            ArbiterError: refused,
            **dict.fromkeys((*CHANGED, LedgerUnavailable, SQLAlchemyError), unexpected),
        },
        lifespan=lifespan,
    )
    made.state.feed = feed
    return made


_PHRASES = ("Not Found", "Method Not Allowed")
