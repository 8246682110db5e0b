"""The files that pages load: scripts, the style and the icon, all from the package.

Only the names of files that were there at the start are served. `vendor/vendor.json` lists the files of others
with their versions, licences and SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file in memory. `digest` is the start of its SHA-256."""

    body: bytes
    type: str
    digest: str


class StaticFiles:
    """The static files of the package by their names, such as `style.css` or `vendor/htmx.min.js`."""

    def __init__(self) -> None:
        self._files = dict(_found(files("arbiter.web") / "static", ""))

    def text(self, name: str) -> str:
        """The text of a file, for a page that carries it."""
        return self._files[name].body.decode()

    def url(self, name: str) -> str:
        """The path of a file below the viewer's root. It changes with the file's content."""
        return f"/static/{name}?v={self._files[name].digest}"

    def routes(self) -> list[Route]:
        return [
            Route("/static/{name:path}", self._serve, methods=["GET"]),
            Route("/favicon.ico", self._icon, methods=["GET"]),
        ]

    def _serve(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Response("there is no such file", 404, media_type="text/plain")
        return Response(
            found.body,
            headers={"content-type": found.type, "cache-control": "private, max-age=31536000, immutable"},
        )

    def _icon(self, request: Request) -> Response:
        icon = self._files["icon.svg"]
        return Response(icon.body, headers={"content-type": icon.type, "cache-control": "max-age=86400"})


def _found(folder: Traversable, prefix: str) -> list[tuple[str, StaticFile]]:
    found: list[tuple[str, StaticFile]] = []
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            found += _found(each, f"{prefix}{each.name}/")
        elif (type := _TYPES.get(each.name[each.name.rfind(".") :])) is not None:
            body = each.read_bytes()
            found.append((prefix + each.name, StaticFile(body, type, sha256(body).hexdigest()[:16])))
    return found
