"""A hundred packs that are wrong: each is refused with one error that says what, where and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arbiter import ArbiterOS, PackError
from arbiter.constitution import load_constitution
from tests.bad_packs import BAD, HEAD, Content

SECONDS = 5.0
"""No file may hold up whoever reads it; most take a millisecond."""


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


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_pack_is_refused_and_says_why(tmp_path: Path, name: str) -> None:
    """One error, each mistake with file and line; nothing is in force afterwards."""
    begun = time.monotonic()
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
    assert time.monotonic() - begun < SECONDS


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


def test_the_command_line_tells_mistakes_and_shows_no_traceback(tmp_path: Path) -> None:
    """A sentence for each mistake, and exit code 2."""
    root = project(tmp_path, "unknown-parameter")
    (root / "graph.py").write_text(
        "from langgraph.graph import START, StateGraph\n"
        "graph = StateGraph(dict).add_node('a', lambda s: s).add_edge(START, 'a').compile()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "arbiter.cli", "run", "graph:graph", "--constitution", "."],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("policies/unknown-parameter.yaml:5: checkers[0].adjacnt: expected one of")
    assert "Traceback" not in done.stderr
