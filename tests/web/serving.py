"""Serves ASGI applications on localhost by uvicorn, as `arbiter view` does."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any

import httpx
import uvicorn

from arbiter.web.access import User
from tests.support import until

OWN = {"sec-fetch-site": "same-origin"}
"""The header that a browser sends with a form of this viewer."""


def free_port() -> int:
    with socket(AF_INET, SOCK_STREAM) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def served(app: Any, port: int | None = None) -> Generator[str]:
    """The address of a running server of that application."""
    port = port or free_port()
    config = uvicorn.Config(app, port=port, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


@contextmanager
def browsing(address: str, token: str = "") -> Generator[httpx.Client]:
    """A client that keeps cookies and follows redirects, as a browser does; it has taken over the token."""
    with httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client:
        if token:
            assert client.get("/", params={"token": token}).status_code == 200
        yield client


def signed_in(app: Any) -> Any:
    """A middleware that takes the user from a header; without one it is ann."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            name, _, role = dict(scope["headers"]).get(b"x-user", b"ann").decode().partition(" ")
            scope["state"] = {"user": User(name, frozenset({"read", role or "answer"}))}
        await app(scope, receive, send)

    return answer
