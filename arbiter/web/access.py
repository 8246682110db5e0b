"""Access to the viewer: who may use it, and what a browser may do with its pages.

    Shell ─▶ TokenAccess, or the application's own middleware ─▶ Admission ─▶ pages

`Shell` sets the headers of every response and bounds requests. `TokenAccess` finds out who asks. `Admission` lets
in known users only, and changes only from pages of the viewer itself. Pages find the `User`, the CSRF token of
their forms and the form of a request as `user`, `csrf` and `form` in `scope["state"]`. All three are plain ASGI,
so streams pass through unbuffered.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arbiter.errors import ConfigurationError, nearest

Auth = Callable[[ASGIApp], ASGIApp]
"""Wraps the viewer in a middleware that finds out who asks."""
ROLES = ("read", "answer")
LONGEST_REQUEST = 1024 * 1024
"""Bytes of a request's body."""
_FIELDS = 1_000
"""Fields of a form."""
_FORM = "application/x-www-form-urlencoded"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_YEAR = 365 * 86_400
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
        "connect-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_log = logging.getLogger("arbiter")


@dataclass(frozen=True, slots=True)
class User:
    """A person at the viewer. The role `read` sees all pages; `answer` may also answer questions."""

    name: str
    roles: frozenset[str] = frozenset(ROLES)

    @property
    def can_answer(self) -> bool:
        return "answer" in self.roles


def middleware(auth: Auth | None) -> list[Middleware]:
    """The middlewares of a viewer, outermost first.

    Without `auth`, the users are those that the application around a mounted viewer has authenticated; a request
    without one is refused.
    """
    return [Middleware(Shell), *([] if auth is None else [Middleware(auth)]), Middleware(Admission)]


class Tokens:
    """The people who may use a viewer, each with the SHA-256 of a token."""

    def __init__(self, people: Iterable[tuple[User, bytes]]) -> None:
        self._people = tuple(people)

    @classmethod
    def fresh(cls, name: str) -> tuple[Tokens, str]:
        """The tokens of a single user who may do everything, and the new token: 256 random bits."""
        token = secrets.token_urlsafe(32)
        return cls([(User(name), sha256(token.encode()).digest())]), token

    @classmethod
    def read(cls, path: str | Path) -> Tokens:
        """The tokens in a file of lines `NAME: SHA256` or `NAME: SHA256 read`.

        The SHA-256 of the token is in hex. The roles of a line without any are both, `read` and `answer`. Raises
        `ConfigurationError` with all mistakes.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the tokens in {str(path)!r} cannot be read: {error}") from None
        people: list[tuple[User, bytes]] = []
        problems: list[str] = []
        for number, line in enumerate(text.splitlines(), 1):
            said = line.split("#")[0].strip()
            if not said:
                continue
            name, _, rest = said.rpartition(":")
            digest, *roles = rest.split() or [""]
            name, digest = name.strip(), digest.lower()
            problem = _problem_with(name, digest, roles)
            if problem is None and name in {user.name for user, _ in people}:
                problem = f"{name!r} has a line already"
            if problem is None and (owners := [user.name for user, known in people if known.hex() == digest]):
                problem = f"{name!r} has the token of {owners[0]!r}; give each person one of their own."
            if problem is not None:
                problems.append(f"{path}:{number}: {problem}")
                continue
            found = frozenset({*roles, "read"}) if roles else frozenset(ROLES)
            people.append((User(name, found), bytes.fromhex(digest)))
        if not people and not problems:
            problems.append(
                f"{path}: it has no tokens; expected lines such as 'ann: SHA256' or 'ben: SHA256 read'."
            )
        if problems:
            raise ConfigurationError("\n".join(problems))
        return cls(people)

    def user_of(self, token: str) -> User | None:
        """The user with that token. The time that this takes depends on the number of users only."""
        given = sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for user, digest in self._people:
            if hmac.compare_digest(digest, given):
                found = user
        return found


def _problem_with(name: str, digest: str, roles: Collection[str]) -> str | None:
    if not name:
        return "expected NAME: SHA256, for example 'ann: 9f2c...' with 64 hex digits."
    if not _SHA256.match(digest):
        # The line may hold the token itself: it is not repeated.
        return f"the SHA-256 of {name!r} is not of 64 hex digits. Write what `printf %s TOKEN | sha256sum` prints."
    for role in roles:
        if role not in ROLES:
            return f"expected the roles read and answer, got {role!r}.{nearest(role, ROLES)}"
    return None


class TokenAccess:
    """A middleware that lets in the holders of `tokens`, at the address that the server is bound to.

    A token arrives once, in the address, and is taken over into a cookie by a redirect without it. A request with
    another `Host` is refused, since a page of somebody else may have had its name point here.
    """

    def __init__(self, tokens: Tokens, *, host: str, port: int) -> None:
        self._tokens = tokens
        self._cookie = f"arbiter-{port}"  # cookies do not tell ports apart
        self._is_host = hosts_of(host, port)

    def __call__(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            refused = self._enter(scope) if scope["type"] == "http" else None
            await (app if refused is None else refused)(scope, receive, send)

        return answer

    def _enter(self, scope: Scope) -> Response | None:
        """Set the user of a request; a response if it is answered here."""
        headers = Headers(scope=scope)
        if not self._is_host(headers.get("host", "")):
            return _said(421, "this viewer does not answer under that name; use the address that it printed.")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and scope["method"] == "GET":
            if self._tokens.user_of(given[-1]) is not None:
                return self._taken_over(scope, given[-1], [pair for pair in query if pair[0] != "token"])
            return _said(401, f"the token in the address is unknown. {_HOW}")
        for token in _cookies(headers, self._cookie):
            user = self._tokens.user_of(token)
            if user is not None:
                scope["state"] = {**scope.get("state", {}), "user": user, "session": token}
                return None
        return _said(401, f"this browser has no key to the viewer. {_HOW}")

    def _taken_over(self, scope: Scope, token: str, query: list[tuple[str, str]]) -> Response:
        # With two slashes, a path would be the name of another host.
        path = "/" + quote(scope["path"]).lstrip("/")
        response = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        _set_cookie(response.headers, scope, self._cookie, token)
        return response


_HOW = "Open the address that `arbiter view` printed, or ask for a token."


def hosts_of(host: str, port: int) -> Callable[[str], bool]:
    """True for the values of `Host` that name a server bound to `host` and `port`.

    A server that is bound to all addresses takes the name of this machine and all numbers: only a name can be
    made to point elsewhere.
    """
    is_any = host in ("", "0.0.0.0", "::")
    names = {"localhost", gethostname().lower()} if is_any else {host.lower().strip("[]")}
    if is_loopback(host):
        names |= {"127.0.0.1", "localhost", "::1"}

    def is_host(value: str) -> bool:
        found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?", value)
        if found is None or not (port in (80, 443) if found[2] is None else int(found[2]) == port):
            return False
        name = found[1].lower().strip("[]")
        return name in names or (is_any and _is_address(name))

    return is_host


def is_loopback(host: str) -> bool:
    """True if only this machine reaches a server that is bound to `host`."""
    name = host.strip("[]")
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Shell:
    """The outermost middleware: security headers on all responses, and bounded requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False
        read = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        async def receive_bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LONGEST_REQUEST:
                raise _TooLongError
            return message

        try:
            length = Headers(scope=scope).get("content-length", "0")
            if not length.isdecimal() or int(length) > LONGEST_REQUEST:
                raise _TooLongError
            await self._app(scope, receive_bounded, send_with_headers)
        except _TooLongError:
            if has_begun:
                raise
            response = _said(413, f"a request may have {LONGEST_REQUEST:,} bytes at most.")
            await response(scope, receive, send_with_headers)
        except Exception:
            if has_begun:
                raise
            _log.exception("a page of the viewer could not be made: %s", scope["path"])
            response = _said(500, "this page could not be made; the log of the viewer says why.")
            await response(scope, receive, send_with_headers)


class _TooLongError(Exception):
    """The body of a request is longer than it may be."""


class Admission:
    """The innermost middleware: known users only, and changes only from pages of this viewer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        user = _user_of(scope)
        if user is None or "read" not in user.roles:
            refused = _said(401, _NO_USER) if user is None else _said(403, f"{user.name} may not read here.")
            await refused(scope, receive, send)
            return
        state: dict[str, Any] = {**scope.get("state", {}), "user": user, "form": {}}
        scope["state"] = state
        session: str | None = state.get("session")
        is_new = False
        if session is None:  # the users are not ours: the forms get a session of their own
            session = next(iter(_cookies(Headers(scope=scope), _FORMS)), None)
            is_new = session is None
            session = session or secrets.token_urlsafe(32)
        state["csrf"] = hmac.new(session.encode(), b"csrf", sha256).hexdigest()

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                _set_cookie(MutableHeaders(scope=message), scope, _FORMS, session)
            await send(message)

        if scope["method"] not in ("GET", "HEAD"):
            body = await _body_of(receive)
            if (answer := _refused_change(scope, body)) is not None:
                await answer(scope, receive, send)
                return
            receive = _again(body, receive)
        await self._app(scope, receive, send_with_cookie if is_new else send)


_FORMS = "arbiter-forms"
_NO_USER = "this request has no user. The application around the viewer has to authenticate it."


def _refused_change(scope: Scope, body: bytes) -> Response | None:
    """The response to a change that does not come from a page of this viewer; None for one that does."""
    headers = Headers(scope=scope)
    if scope["method"] != "POST":
        return _said(405, "expected GET, HEAD or POST.", allow="GET, HEAD, POST")
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return _said(403, "this form is on a page of another site.")
    if headers.get("content-type", "").split(";")[0].strip().lower() == _FORM:
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS)
        except ValueError as error:
            return _said(400, f"the form cannot be read: {error}")
        scope["state"]["form"] = dict(pairs)
    given = headers.get("x-csrf-token") or scope["state"]["form"].get("csrf", "")
    if not hmac.compare_digest(given.encode(), scope["state"]["csrf"].encode()):
        return _said(403, "this form is of an earlier session. Load its page again.")
    return None


async def _body_of(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` that gives a body once more that was read already."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


def _user_of(scope: Scope) -> User | None:
    """The user whom a middleware has set: `user` in the state, or that of Starlette's authentication."""
    given: Any = scope.get("state", {}).get("user")
    if isinstance(given, User):
        return given
    if isinstance(given, dict):
        parts = cast("dict[str, Any]", given)
        return User(str(parts["name"]), frozenset(map(str, parts["roles"])))
    authenticated: Any = scope.get("user")
    if authenticated is None or not authenticated.is_authenticated:
        return None
    scopes: Iterable[str] = getattr(scope.get("auth"), "scopes", ())
    return User(str(authenticated.display_name), frozenset(scopes) & frozenset(ROLES))


def _cookies(headers: Headers, name: str) -> list[str]:
    """The values of all cookies of that name: another server on this machine may have set one as well."""
    found: list[str] = []
    for pair in "; ".join(headers.getlist("cookie")).split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name and value:
            found.append(value)
    return found


def _set_cookie(headers: MutableHeaders, scope: Scope, name: str, value: str) -> None:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    headers.append(
        "set-cookie", f"{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={_YEAR}{secure}"
    )


def _said(status: int, sentence: str, **headers: str) -> Response:
    return PlainTextResponse(sentence[0].upper() + sentence[1:] + "\n", status, headers)
