"""Local servers that speak the parts of Langfuse's and LangSmith's HTTP APIs that receivers use."""

from __future__ import annotations

import base64
import json
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

KEYS = ("pk-lf-1", "sk-lf-1")
SESSION = UUID("11111111-2222-3333-4444-555555555555")


class Stub:
    """A server that keeps its requests. `script` has the statuses of the next answers to scores; then it
    accepts."""

    def __init__(self, port: int = 0) -> None:
        self.script: list[int] = []
        self.requests = 0
        self.bodies: list[str] = []
        self.accepted: defaultdict[str, list[Any]] = defaultdict(list)
        """The scores that were accepted, by their ids."""
        self.unknown: set[str] = set()
        """Runs that the server does not know."""
        self.poison: set[str] = set()
        """Names of scores because of which a batch is refused."""
        self.projects = ["default"]
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                stub.requests += 1
                stub.bodies.append(text)
                self.answer(*stub.answer(self.path, json.loads(text), self.headers))

            def do_GET(self) -> None:
                self.answer(*stub.look_up(self.path))

            def answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", "0.2")
                if status in (301, 302):
                    self.send_header("Location", "/moved")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _scripted(self) -> tuple[int, Any] | None:
        if not self.script:
            return None
        step = self.script.pop(0)
        return step, {"message": f"scripted {step}"}

    def answer(self, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        raise NotImplementedError

    def look_up(self, path: str) -> tuple[int, Any]:
        return 404, {"message": "nothing here"}


class Langfuse(Stub):
    """POST /api/public/scores. A scripted 207 refuses the first score of the batch."""

    def answer(self, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        if path != "/api/public/scores":
            return 404, {"message": "no such route"}
        if headers["Authorization"] != "Basic " + base64.b64encode(":".join(KEYS).encode()).decode():
            return 401, {"message": "Invalid credentials"}
        status, said = self._scripted() or (202, {"message": "Accepted"})
        if self.poison & {score["name"] for score in body}:
            return 400, {"message": "bad score"}
        if status == 207:
            said = {"accepted": len(body) - 1, "rejected": 1, "errors": [{"message": "no such config"}]}
            body = body[1:]
        if status in (202, 207):
            for score in body:
                self.accepted[score["id"]].append(score)
        return status, said


class LangSmith(Stub):
    """GET /info, GET /sessions?name=..., POST /feedback."""

    def look_up(self, path: str) -> tuple[int, Any]:
        parts = urlsplit(path)
        if parts.path == "/info":
            return 200, {"version": "0.12.0", "batch_ingest_config": {"use_multipart_endpoint": True}}
        if parts.path == "/sessions":
            name = parse_qs(parts.query)["name"][0]
            found = {
                "id": str(SESSION),
                "name": name,
                "tenant_id": str(SESSION),
                "start_time": "2026-01-01T00:00:00",
                "reference_dataset_id": None,
            }
            return 200, [found] if name in self.projects else []
        if parts.path in ("/feedback", "/moved"):  # a list, as the real one answers
            return 200, []
        return super().look_up(path)

    def answer(self, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        if path != "/feedback":
            return 404, {"detail": "no such route"}
        status, said = self._scripted() or (200, {})
        if status == 200:
            if body["run_id"] in self.unknown:
                return 404, {"detail": "Run not found"}
            if body["id"] in self.accepted:
                self.accepted[body["id"]].append(body)
                return 409, {"detail": "there already"}
            self.accepted[body["id"]].append(body)
        return status, said


@contextmanager
def serving(stub: Stub) -> Generator[Any]:
    try:
        yield stub
    finally:
        stub.close()
