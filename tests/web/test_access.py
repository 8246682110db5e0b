"""Access to the viewer over real HTTP: tokens, roles, hosts, forms, headers and bounds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from arbiter.errors import ConfigurationError
from arbiter.web.access import LONGEST_REQUEST, TokenAccess, Tokens, hosts_of, middleware
from tests.web.serving import OWN, browsing, free_port, served


def page(request: Request) -> Response:
    state = request.scope["state"]
    if request.method == "POST":
        return PlainTextResponse(f"{state['user'].name} wrote {state['form']}")
    if "fail" in request.query_params:
        raise RuntimeError("a secret of the page")
    return PlainTextResponse(state["csrf"], headers={"x-user": state["user"].name})


def pages(auth: Any) -> Starlette:
    return Starlette(
        routes=[Route("/{path:path}", page, methods=["GET", "POST", "PUT"])], middleware=middleware(auth)
    )


@contextmanager
def guarded(tokens: Tokens | None = None) -> Generator[tuple[str, str]]:
    """Address and token of a server with one user, or with the users of `tokens`."""
    own, token = Tokens.fresh("ann")
    port = free_port()
    access = TokenAccess(tokens or own, host="127.0.0.1", port=port)
    with served(pages(access), port) as address:
        yield address, token


@pytest.fixture(scope="module")
def server() -> Generator[tuple[str, str]]:
    with guarded() as found:
        yield found


def test_a_token_is_taken_over_into_a_cookie_and_leaves_the_address(server: tuple[str, str]) -> None:
    address, token = server
    assert len(token) == 43  # 256 bits
    taken = httpx.get(f"{address}/threads/7?node=pay&token={token}")
    assert (taken.status_code, taken.headers["location"]) == (303, "/threads/7?node=pay")
    cookie = taken.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert part in cookie
    assert token not in taken.headers["location"]
    with browsing(address, token) as client:
        assert client.get("/").headers["x-user"] == "ann"


def test_a_redirect_cannot_lead_to_another_host(server: tuple[str, str]) -> None:
    address, token = server
    taken = httpx.get(f"{address}//evil.example/x?token={token}")
    assert taken.headers["location"] == "/evil.example/x"


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=" + "x" * 43, "/threads/7", "/favicon.ico"])
def test_without_the_token_no_page_is_shown(server: tuple[str, str], path: str) -> None:
    address, _ = server
    refused = httpx.get(address + path)
    assert refused.status_code == 401
    assert "arbiter view" in refused.text
    assert httpx.get(address + path, cookies={"arbiter-1": "x"}).status_code == 401


def test_another_name_for_the_server_is_refused(server: tuple[str, str]) -> None:
    """A page of another site could have its name point to this address, and would then share its origin."""
    address, token = server
    with browsing(address, token) as client:
        port = address.rpartition(":")[2]
        assert client.get("/", headers={"host": f"evil.example:{port}"}).status_code == 421
        assert client.get("/", headers={"host": "127.0.0.1:1"}).status_code == 421
        assert client.get("/", headers={"host": f"localhost:{port}"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "name", "fits"),
    [
        ("127.0.0.1", "127.0.0.1:7575", True),
        ("127.0.0.1", "localhost:7575", True),
        ("127.0.0.1", "[::1]:7575", True),
        ("127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "10.0.0.7:7575", False),
        ("127.0.0.1", "127.0.0.1.evil.example:7575", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "user@127.0.0.1:7575", False),
        ("10.0.0.7", "10.0.0.7:7575", True),
        ("10.0.0.7", "localhost:7575", False),
        ("0.0.0.0", "10.0.0.7:7575", True),
        ("0.0.0.0", "[fe80::1]:7575", True),
        ("0.0.0.0", "evil.example:7575", False),
    ],
)
def test_only_the_bound_names_fit(host: str, name: str, fits: bool) -> None:
    assert hosts_of(host, 7575)(name) is fits


@pytest.mark.lengthy
def test_a_change_needs_the_token_of_the_form(server: tuple[str, str]) -> None:
    address, token = server
    with browsing(address, token) as client:
        csrf = client.get("/").text
        wrote = client.post("/", data={"csrf": csrf, "a": "1"}, headers=OWN).text
        assert wrote == f"ann wrote {{'csrf': '{csrf}', 'a': '1'}}"
        assert client.post("/", content="{}", headers={**OWN, "x-csrf-token": csrf}).status_code == 200
        assert client.post("/", data={"csrf": csrf}, headers={"sec-fetch-site": "none"}).status_code == 200
        for data, headers in (
            ({}, OWN),
            ({"csrf": ""}, OWN),
            ({"csrf": csrf[:-1] + "é"}, OWN),
            ({"csrf": csrf}, {"sec-fetch-site": "same-site"}),
            ({"csrf": csrf}, {"sec-fetch-site": "cross-site"}),
        ):
            assert client.post("/", data=data, headers=headers).status_code == 403
        assert client.put("/", headers={**OWN, "x-csrf-token": csrf}).status_code == 405
    with browsing(address, token) as client, guarded() as (other, key), browsing(other, key) as stranger:
        csrf = stranger.get("/").text
        assert client.post("/", data={"csrf": csrf}, headers=OWN).status_code == 403


def test_every_response_has_the_security_headers(server: tuple[str, str]) -> None:
    address, token = server
    with browsing(address, token) as client:
        responses = [
            client.get("/"),
            client.get("/?fail"),
            client.post("/"),
            httpx.get(address),
            client.get("/", headers={"host": "evil.example"}),
        ]
        assert [response.status_code for response in responses] == [200, 500, 403, 401, 421]
        for response in responses:
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert response.headers["cross-origin-opener-policy"] == "same-origin"
            assert response.headers["cross-origin-resource-policy"] == "same-origin"
            assert response.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in response.headers
            assert "secret" not in response.text


def test_requests_are_bounded(server: tuple[str, str]) -> None:
    address, token = server

    def endless() -> Generator[bytes]:
        for _ in range(40):
            yield b"x" * (LONGEST_REQUEST // 32)

    with browsing(address, token) as client:
        headers = {**OWN, "x-csrf-token": client.get("/").text}
        assert client.post("/", content=b"x" * LONGEST_REQUEST, headers=headers).status_code == 200
        assert client.post("/", content=b"x" * (LONGEST_REQUEST + 1), headers=headers).status_code == 413
        assert client.post("/", content=endless(), headers=headers).status_code == 413
        fields = "&".join(f"f{number}=1" for number in range(2_000))
        form = {**headers, "content-type": "application/x-www-form-urlencoded"}
        assert client.post("/", content=fields, headers=form).status_code == 400


def hashed(token: str) -> str:
    return sha256(token.encode()).hexdigest()


@pytest.mark.lengthy
def test_a_file_of_tokens_names_people_and_roles(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"\ufeffann: {hashed('a')}  # our team\nben lee: {hashed('b').upper()} read  # looks only\n", "utf-8"
    )
    tokens = Tokens.read(path)
    ann, ben = tokens.user_of("a"), tokens.user_of("b")
    assert ann is not None
    assert ben is not None
    assert (ann.name, ann.can_answer, ben.name, ben.can_answer) == ("ann", True, "ben lee", False)
    assert tokens.user_of("c") is None
    with guarded(tokens) as (address, _), browsing(address, "b") as client:
        assert client.get("/").headers["x-user"] == "ben lee"


def test_mistakes_in_a_file_of_tokens_come_all_together(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"ann: my-secret-token\nben: {hashed('b')} raed\nben: {hashed('c')}\nben: {hashed('d')}\n: x\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        Tokens.read(path)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{path}:{number}" for number in (1, 2, 4, 5)]
    assert "64 hex digits" in lines[0]
    assert "Did you mean 'read'?" in lines[1]
    assert "my-secret-token" not in str(caught.value)
    path.write_text(f"ann: {hashed('a')}\nben: {hashed('a')} read\n")
    with pytest.raises(ConfigurationError, match=":2: 'ben' has the token of 'ann'"):
        Tokens.read(path)
    path.write_text("# none yet\n")
    with pytest.raises(ConfigurationError, match="it has no tokens"):
        Tokens.read(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Tokens.read(tmp_path / "none")


class Basic(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> Any:
        name = conn.headers.get("x-name")
        return (
            None if name is None else (AuthCredentials(conn.headers["x-roles"].split(",")), SimpleUser(name))
        )


@pytest.mark.lengthy
def test_a_mounted_viewer_takes_the_users_of_its_application() -> None:
    inner = pages(None)
    with served(Starlette(routes=[Mount("/arbiter", inner)])) as address:
        assert httpx.get(f"{address}/arbiter/").status_code == 401
    app = AuthenticationMiddleware(Starlette(routes=[Mount("/arbiter", inner)]), backend=Basic())
    with served(app) as address, browsing(address) as client:
        assert client.get("/arbiter/").status_code == 401
        assert client.get("/arbiter/", headers={"x-name": "eve", "x-roles": "other"}).status_code == 403
        client.headers.update({"x-name": "cleo", "x-roles": "read,other"})
        shown = client.get("/arbiter/")
        assert (shown.headers["x-user"], "SameSite=Strict" in shown.headers["set-cookie"]) == ("cleo", True)
        assert client.post("/arbiter/", data={"csrf": "x"}, headers=OWN).status_code == 403
        assert client.post("/arbiter/", data={"csrf": shown.text}, headers=OWN).status_code == 200


@pytest.mark.lengthy
def test_auth_may_be_any_middleware() -> None:
    def by_header(app: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                scope["state"] = {
                    "user": {"name": dict(scope["headers"])[b"x-name"].decode(), "roles": ["read"]}
                }
            await app(scope, receive, send)

        return answer

    with served(pages(by_header)) as address:
        assert httpx.get(address, headers={"x-name": "dora"}).headers["x-user"] == "dora"
