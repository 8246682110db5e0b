"""Python programs in processes of their own that start in some 50 ms, for `subprocess`.

An interpreter needs a second to import Arbiter and LangGraph. Here one process a test run imports them and
forks for each program. The command that `python` returns is a small client: it hands its standard streams,
folder and environment to that process and ends as the program ends, also by a signal; a client that is killed
takes the program along. Programs exit as Python always does. Use `sys.executable` to test what an import
brings, or hash seeds.
"""

import contextlib
import io
import json
import os
import selectors
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

PRELOADED = (
    "alembic.command",
    "arbiter",
    "arbiter.cli",
    "arbiter.memory",
    "arbiter.personas",
    "langchain_core.messages",
    "langgraph.checkpoint.memory",
    "langgraph.checkpoint.sqlite",
    "langgraph.graph",
    "langgraph.store.sqlite",
    "sqlalchemy.dialects.sqlite",
)


class Server:
    """The process that forks, started by the first program of a test run; it ends with the test run."""

    def __init__(self) -> None:
        import atexit
        import subprocess
        import tempfile

        self.folder = tempfile.TemporaryDirectory(prefix="arbiter-")
        self.address = os.path.join(self.folder.name, "s")
        command = [sys.executable, __file__, "serve", self.address]
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": root, "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        atexit.register(self.close)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.folder.cleanup()


_servers: list[Server] = []


def python(*arguments: str) -> list[str]:
    """As `[sys.executable, *arguments]`; `arguments` may be `-W action`, then `-c code`, `-m module` or a file."""
    if not _servers:
        _servers.append(Server())
    return [sys.executable, "-I", "-S", __file__, "run", _servers[0].address, *arguments]


def run_example(name: str, folder: "Path", *arguments: str) -> "CompletedProcess[str]":
    """A story of `examples/` as a reader runs it, from another folder, warnings as errors."""
    import subprocess

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return subprocess.run(
        python("-W", "error", os.path.join(root, "examples", name, "main.py"), *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "COLUMNS": "110", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=90,
    )


# The client ---------------------------------------------------------------------------------------


def client(address: str, arguments: list[str]) -> None:
    request = json.dumps({"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"+"], [0, 1, 2])
        connection.sendall(request.encode() + b"\n")
        code = int(connection.makefile().readline())
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


# The server ---------------------------------------------------------------------------------------


def serve(address: str) -> None:
    """Returns in each forked process, which has become the program; the server itself never returns."""
    import gc
    import importlib

    sys.path[0] = ""  # not this folder: `tests/statistics` is no stand-in for Python's module of that name
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    waiting = selectors.DefaultSelector()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(0, selectors.EVENT_READ)
    print("ready", flush=True)
    # By its connection and by the pipe that closes when it ends.
    programs: dict[object, tuple[int, socket.socket, int]] = {}
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:  # the test run has ended
                for pid, _, _ in programs.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            elif key.fileobj is listener:
                connection = listener.accept()[0]
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                with connection.makefile() as lines:
                    request = json.loads(lines.readline())
                ended, running = os.pipe()
                pid = os.fork()
                if pid == 0:
                    waiting.close()
                    listener.close()
                    connection.close()
                    become(streams, request)
                    return
                for descriptor in (running, *streams):
                    os.close(descriptor)
                for part in (connection, ended):
                    programs[part] = (pid, connection, ended)
                    waiting.register(part, selectors.EVENT_READ)
            elif key.fileobj in programs:
                pid, connection, ended = programs[key.fileobj]
                if key.fileobj is connection:  # the client was killed
                    os.kill(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                for part in (connection, ended):
                    del programs[part]
                    waiting.unregister(part)
                with contextlib.suppress(OSError), connection:
                    connection.sendall(f"{code}\n".encode())
                os.close(ended)


def become(streams: list[int], request: dict[str, Any]) -> None:
    """Take over the streams, the folder and the environment of the client, and run its program."""
    import runpy
    import types
    import warnings

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Those of Python belong to the streams of the server: a pipe cannot be sought, for example.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old: Any = getattr(sys, name)
        raw = os.fdopen(number, "wb" if number else "rb", closefd=False)
        made = io.TextIOWrapper(raw, encoding=old.encoding, errors=old.errors)
        made.reconfigure(line_buffering=name == "stderr" or made.isatty())
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    arguments: list[str] = request["arguments"]
    what, *rest = arguments
    while what == "-W":
        action: Any = rest[0]
        warnings.simplefilter(action)
        what, *rest = rest[1:]
    first: str = {"-c": "", "-m": os.getcwd()}.get(what, os.path.dirname(what))
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [first, *(folder for folder in folders if folder)]
    if what == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [what, *rest]
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        client(sys.argv[2], sys.argv[3:])
