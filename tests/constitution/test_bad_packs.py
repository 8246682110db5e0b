"""A hundred packs that are wrong: each is refused with one error that says what, where and what to do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from arbiter import ArbiterOS, PackError
from arbiter._constitution.loading import load_constitution
from tests.constitution.bad_packs import BAD, HEAD, Content
from tests.processes import python

SECONDS = 5.0
"""No file may keep its reader waiting; most take a millisecond."""


def written(content: Content) -> bytes:
    if callable(content):
        return content()
    if isinstance(content, bytes):
        return content
    return (content if content.startswith("version") else HEAD + content).encode()


def project(root: Path, name: str) -> Path:
    content, _ = BAD[name]
    (root / "policies").mkdir(parents=True)
    (root / "policies" / f"{name}.yaml").write_bytes(written(content))
    return root


def test_there_are_a_hundred() -> None:
    assert len(BAD) >= 100


@pytest.mark.lengthy
@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_pack_is_refused_and_says_why(tmp_path: Path, name: str) -> None:
    """One error, each mistake with file and line; nothing is in force afterwards."""
    begun = time.process_time()  # other processes do not count
    arbiter_os = ArbiterOS()
    with pytest.raises(PackError) as caught:
        arbiter_os.load_constitution(project(tmp_path, name))
    file, text = f"policies/{name}.yaml", str(caught.value)
    for expected in BAD[name][1]:
        assert expected.replace("{file}", file) in text
    for mistake in caught.value.mistakes:
        assert re.match(rf"{re.escape(file)}:\d+: \S", str(mistake))
        assert "\n" not in str(mistake)
        assert len(str(mistake)) < 1000
    assert arbiter_os.constitution is None
    assert time.process_time() - begun < SECONDS


@pytest.mark.lengthy
def test_mistakes_of_many_files_come_in_one_error(tmp_path: Path) -> None:
    """All files of the corpus at once, beside one that is sound."""
    folder = tmp_path / "policies"
    folder.mkdir()
    names = sorted(name for name in BAD if name != "50-megabytes")
    for name in names:
        # Names of packs are told apart, or each would be a mistake for that too.
        content = written(BAD[name][0]).replace(b"name: it\n", f"name: {name}\n".encode())
        (folder / f"{name}.yaml").write_bytes(content)
    (folder / "sound.yaml").write_bytes(HEAD.replace("it", "sound").encode())
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    told = {mistake.file for mistake in caught.value.mistakes}
    circular = {"policies/extends-itself.yaml"}  # by its new name it extends nobody that is there
    assert told | circular >= {f"policies/{name}.yaml" for name in names}
    assert "policies/sound.yaml" not in told


@pytest.mark.lengthy
def test_the_command_line_reports_mistakes_without_a_traceback(tmp_path: Path) -> None:
    """A sentence for each mistake, and exit code 2."""
    root = project(tmp_path, "unknown-parameter")
    (root / "graph.py").write_text(
        "from langgraph.graph import START, StateGraph\n"
        "graph = StateGraph(dict).add_node('a', lambda s: s).add_edge(START, 'a').compile()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        python("-m", "arbiter.cli", "run", "graph:graph", "--constitution", "."),
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("policies/unknown-parameter.yaml:5: checkers[0].adjacnt: expected one of")
    assert "Traceback" not in done.stderr


# What is no file, and no number -------------------------------------------------------------------


def _pack(times: str) -> str:
    return (
        "version: 1\nname: p\ndescription: d\ncheckers:\n"
        f"  - name: c\n    use: at_most\n    target_nodes: [a]\n    times: {times}\n"
    )


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def _linked(make: Callable[[Path], Any], path: Path) -> None:
    make(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


NO_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a named pipe": (os.mkfifo, "got a named pipe"),
    "a link to one": (partial(_linked, os.mkfifo), "got a named pipe"),
    "a device without end": (lambda path: path.symlink_to("/dev/zero"), "got a device"),
    "a folder": (Path.mkdir, "got a folder"),
    "a socket": (_socket, ""),
    "a link to nothing": (lambda path: path.symlink_to("/nowhere"), "No such file"),
    "a link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
    "no UTF-8": (lambda path: path.write_bytes(b"name: \xe9"), "expected UTF-8"),
    "UTF-16": (lambda path: path.write_text(_pack("1"), "utf-16"), "expected UTF-8"),
    "a large file": (lambda path: path.write_bytes(b"# \n" * 1_000_000), "at most 262144 bytes"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="none of these is there")
@pytest.mark.parametrize("kind", ["policies", "evaluators", "instructions"])
@pytest.mark.parametrize(("make", "says"), NO_FILES.values(), ids=NO_FILES.keys())
def test_only_regular_files_are_read(
    make: Callable[[Path], Any], says: str, kind: str, tmp_path: Path
) -> None:
    """The mistake of the one file is reported with those of the others, and the loader does not wait for a
    writer."""
    (tmp_path / kind).mkdir()
    make(tmp_path / kind / "pipe.yaml")
    (tmp_path / kind / "wrong.yaml").write_text("version: 2\n")
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    mistakes = [str(mistake) for mistake in caught.value.mistakes]
    (mistake,) = [one for one in mistakes if one.startswith(f"{kind}/pipe.yaml:1: ")]
    assert says in mistake
    assert any(one.startswith(f"{kind}/wrong.yaml:") for one in mistakes)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    _linked(lambda path: path.write_text(_pack("1")), tmp_path / "policies" / "pack.yaml")
    assert [contract.name for contract in load_constitution(tmp_path).contracts] == ["c"]


@pytest.mark.parametrize(
    "value",
    [
        "0x" + "f" * 5000,
        "-0x" + "f" * 5000,
        "0" + "7" * 9000,
        "0b" + "1" * 20_000,
        "9" * 5000,
        "1_" * 4000 + "1",
        ":".join(["1"] + ["59"] * 3000),
        "1" + ":59" * 3000 + ".5",
        "1." + "9" * 5000,
        "1.0e+999999999",
        ".inf",
        "2024-99-99",
        "2024-01-01T00:00:00+99:99",
        "!!bool maybe",
        "!!int ''",
        "!!float x",
        "!!timestamp x",
        "!!binary 'x'",
        "!!set {a, b}",
        "!!python/object/apply:os.system [x]",
        "{<<: 3}",
        "=",
        '"\\ud800"',
        '{"\\ud800": 1}',
        '"\\U00110000"',
        '"\\U99999999"',
    ],
    ids=lambda value: value[:20],
)
def test_a_value_that_is_not_a_number_is_a_mistake_with_its_line(value: str, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "pack.yaml").write_text(_pack(value))
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert {(mistake.file, mistake.line) for mistake in caught.value.mistakes} == {("policies/pack.yaml", 8)}
    str(caught.value).encode()
