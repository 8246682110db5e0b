"""`arbiter view` as a process of its own: its address, its answers, and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from socket import socket
from typing import Any

import httpx
import pytest

from arbiter.ledger import Ledger
from tests.cli.cli_support import refused
from tests.web.paused_graph import Payments, paused
from tests.web.serving import browsing, free_port
from tests.web.test_inbox import answers, questions
from tests.web.test_live import streaming

PACK = """
name: payments
version: 1
description: Large payments are approved.
checkers:
  - use: condition
    name: large
    target_nodes: [pay]
    ask_when: input.amount > 1000
    reason: a large amount
"""
GRAPH = """
from pathlib import Path
from tests.web.paused_graph import Payments

graph = Payments(Path.cwd()).graph()
"""


@contextmanager
def viewing(folder: Path, *options: str) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """The address that a running `arbiter view` has printed, and its process."""
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-m", "arbiter", "view", "--port", "0", *options],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        printed = process.stdout.readline()
        assert printed.startswith("http://"), printed + process.stdout.read()
        yield printed.split()[0], process
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Press Ctrl+C; the exit code, and the rest of what it printed."""
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    said = process.stdout.read()
    return process.wait(30), said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A constitution, a graph, and a ledger with a run that waits; it was paused by this process."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "payments.yaml").write_text(PACK)
    (tmp_path / "app.py").write_text(GRAPH)
    with Ledger(tmp_path / "arbiter.db") as ledger:
        paused(Payments(tmp_path).governed(ledger), "pay-7")
    return tmp_path


@pytest.mark.lengthy
@pytest.mark.parametrize("missing", ["jinja2", "sqlalchemy", "starlette"])
def test_without_its_packages_the_viewer_names_the_extra(missing: str) -> None:
    code = f"import sys\nsys.modules[{missing!r}] = None\nimport arbiter.web"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "needs starlette, uvicorn and jinja2: pip install 'arbiteros[web]'" in done.stderr


@pytest.mark.lengthy
def test_a_run_that_another_process_paused_is_answered_and_ctrl_c_ends_it(folder: Path) -> None:
    """The token in the printed address is the key; an open stream and Ctrl+C do not wait for one another."""
    with viewing(folder, "--graph", "LangGraph=app.py:graph", "-c", ".", "--as", "ann") as (address, process):
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/\?token=([\w-]{43})", address)
        assert found is not None
        assert httpx.get(found[1]).status_code == 401
        with browsing(found[1], found[2]) as client:
            (page,) = questions(client)
            assert "the run has ended" in page.answer("edit", **{"field-0": "900"}).text
            cookies: Any = dict(client.cookies)
            with streaming(found[1], cookies=cookies) as events:
                code, said = ended(process)
                list(events)
        assert (code, found[2] in said, "Traceback" in said) == (0, False, False)
    assert Payments(folder).paid == ["900 Löhne None"]
    with Ledger(folder / "arbiter.db") as ledger:
        assert answers(ledger, folder) == [("edit", "ann")]
        assert [item.node for item in ledger.history("pay-7").items()][-1] == "tell"
        assert ledger.verify()


@pytest.mark.slow
def test_people_have_their_own_tokens_and_roles(folder: Path) -> None:
    tokens = {"ann": "a" * 43, "ben": "b" * 43}
    lines = [f"{name}: {sha256(token.encode()).hexdigest()}" for name, token in tokens.items()]
    (folder / "tokens").write_text(f"{lines[0]}\n{lines[1]} read\n")
    options = ("--tokens", "tokens", "--graph", "LangGraph=app.py:graph", "-c", ".")
    with viewing(folder, *options) as (address, process):
        assert address.endswith("/?token=TOKEN")
        root = address.removesuffix("/?token=TOKEN")
        with browsing(root, tokens["ben"]) as ben, browsing(root, tokens["ann"]) as ann:
            (page,) = questions(ben)
            assert page.answer("approve").status_code == 403
            (page,) = questions(ann)
            assert page.answer("reject", message="not now").status_code == 200
        assert ended(process)[0] == 0
    with Ledger(folder / "arbiter.db") as ledger:
        assert answers(ledger, folder) == [("reject", "ann")]


@pytest.mark.lengthy
def test_wrong_options_are_sentences(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "tokens").write_text("ann: x\n")
    (folder / "good").write_text(f"ann: {'a' * 64}\n")
    rules = "checkers:\n  - {name: a, use: conditio}\n  - {name: b, use: at_most, times: -1}\n"
    (folder / "wrong.yaml").write_text(f"version: 1\nname: wrong\ndescription: Rules.\n{rules}")
    for options, said in (
        (("--host", "0.0.0.0"), "--host 0.0.0.0 lets others reach the viewer"),
        (("--tokens", "tokens"), "tokens:1: the SHA-256 of 'ann' is not of 64 hex digits."),
        (("--tokens", "none"), "the tokens in 'none' cannot be read"),
        (("--tokens", "tokens", "--as", "ann"), "--as is for a single user"),
        (("--graph", "app.py:graph"), "expected NAME=module:graph"),
        (("--graph", "a=app.py:graph"), "--graph a needs -c"),
        (("-c", ".", "--graph", "a=app.py:graph", "--graph", "a=app.py:graph"), "the name 'a' twice"),
        (("--host", "no.such.host.invalid", "--tokens", "t"), "cannot be"),
        (("--host", "a" * 70, "--tokens", "good"), "label too long"),
        (("--host", "192.0.2.1", "--tokens", "good"), "Give another with --host or --port."),
        (("--ledger", "none.db"), "there is no ledger at 'none.db'"),
        (("-c", "none"), "no constitution in 'none'"),
        (("-c", "wrong.yaml"), "wrong.yaml:5: checkers[0].use: expected one of "),
        (("-c", "wrong.yaml"), "wrong.yaml:6: checkers[1].times: expected a whole number from 0, got -1"),
    ):
        assert said in refused("view", "--port", str(free_port()), *options), options


def test_a_port_that_is_taken_is_a_sentence_with_a_free_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        said = re.search(
            rf"port {taken} is taken; (\d+) is free: --port \1", refused("view", "--port", str(taken))
        )
    assert said is not None
    assert int(said[1]) > taken
