"""`arbiter view`: the pages of a ledger, served on this machine."""

from __future__ import annotations

import errno
import getpass
import socket
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from arbiter._constitution.loading import load_constitution
from arbiter._objects import import_from_here, load_graph
from arbiter.arbiter_os import ArbiterOS
from arbiter.cli._models import StandIns
from arbiter.cli._options import Screen, opened
from arbiter.errors import ConfigurationError

if TYPE_CHECKING:
    from arbiter.cli._app_options import ViewOptions
    from arbiter.ledger import Ledger

_TRIED = 50
_STOP = 3
"""Seconds that requests may take to end after Ctrl+C."""


def view_ledger(options: ViewOptions) -> None:
    """Serve the viewer until Ctrl+C.

    Its graphs are governed by the constitution, and their questions can be answered.
    """
    try:
        import uvicorn

        from arbiter.web import viewer
        from arbiter.web.access import TokenAccess, Tokens, is_loopback
    except ImportError as error:
        missing = "the viewer needs starlette, uvicorn and jinja2: pip install 'arbiteros[web]'"
        raise ConfigurationError(missing if "uvicorn" in str(error) else str(error)) from error
    screen, host, allow = Screen("table"), options.host, options.allow
    constitution = options.constitution or None
    if options.tokens is not None and options.name is not None:
        raise ConfigurationError(
            "--as is for a single user; the names of several are in the file of --tokens."
        )
    if options.tokens is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} lets others reach the viewer: name them in a file and give it with --tokens."
        )
    if constitution is not None:  # its mistakes are reported here, and not when somebody asks for a replay
        import_from_here()
        load_constitution(constitution, allow=allow, models=StandIns())
    token = None
    if options.tokens is not None:
        known = Tokens.read(options.tokens)
    else:
        known, token = Tokens.fresh(options.name or _user())

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.feed.close()  # open pages would keep their streams for ever
            super().handle_exit(sig, frame)

    with opened(options.ledger) as ledger, _bound(host, options.port) as listening:
        named = _graphs(options, ledger)
        port = int(listening.getsockname()[1])
        auth = TokenAccess(known, host=host, port=port)
        app = viewer(
            ledger, named, auth=auth, constitution=constitution, allow=allow, reports=options.reports
        )
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token or 'TOKEN'}"
        screen.say(f"{address}   {_HOW if token is None else _KEY}")
        if not is_loopback(host):
            screen.say(_WARNING)
        if options.open and token is not None:
            webbrowser.open(address)
        server = Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,  # a line of it would have the token of a first request
                server_header=False,
                timeout_graceful_shutdown=_STOP,
            )
        )
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


_KEY = "this address is the key to it; stop with Ctrl+C"
_HOW = "with the own token of each person; stop with Ctrl+C"
_WARNING = (
    "warning: others reach this viewer, and HTTP is not encrypted: tokens and pages can be read on the way. Put a "
    "server with TLS in front of it."
)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this user id
        return "viewer"


def _graphs(options: ViewOptions, ledger: Ledger) -> dict[str, Any]:
    """The graphs by their names, as they are governed here."""
    named: dict[str, Any] = {}
    for given in options.graphs:
        name, equals, place = given.partition("=")
        if not equals or not name or not place:
            raise ConfigurationError(
                f"--graph is {given!r}; expected NAME=module:graph, as in pay=examples.payments.graph:graph"
            )
        graph = _governed(name, load_graph(place), options, ledger)
        if name in named:
            raise ConfigurationError(
                f"--graph gives the name {name!r} twice; give each graph a name of its own."
            )
        named[name] = graph
    return named


def _governed(name: str, graph: Any, options: ViewOptions, ledger: Ledger) -> Any:
    if hasattr(graph, "_arbiter_checkpointed"):  # governed in code, with a ledger
        return graph
    if not options.constitution:
        raise ConfigurationError(
            f"--graph {name} needs -c: the rules that asked have to read the answer, or the run would go on without it."
        )
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.load_constitution(options.constitution, allow=options.allow)
    return arbiter_os.govern(graph)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens on that port; 0 takes a free one."""
    try:
        return _listening(host, port)
    except (OSError, UnicodeError) as error:
        if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(
                f"port {port} of {host} cannot be used: {why}. Give another with --host or --port."
            ) from None
    for free in range(port + 1, port + _TRIED):
        with suppress(OSError, OverflowError):
            _listening(host, free).close()
            raise ConfigurationError(f"port {port} is taken; {free} is free: --port {free}")
    raise ConfigurationError(f"port {port} is taken; give another with --port.")


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except BaseException:
        made.close()
        raise
    return made
