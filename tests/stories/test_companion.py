"""The companion: what it learns, corrects and forgets in the story, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from arbiter.memory import open_store
from examples.companion.main import Companion
from tests.processes import run_example

pytestmark = pytest.mark.lengthy


def test_the_story_is_told(tmp_path: Path) -> None:
    done = run_example("companion", tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    before, _, after = done.stdout.partition("forget that I have a cat")
    assert "Juniper: In Portland." in before
    assert "Juniper: Pixel, your cat." in before
    assert "1 forgotten" in after
    assert "Juniper: I know of no pet of yours." in after
    known = after.partition("what Juniper knows of Ada")[2]
    assert "Ada lives in Portland" in known
    assert "Ada works as a baker" in known
    for gone in ("Seattle", "Pixel", "quit"):
        assert gone not in known
    assert "✓ find a flat, · tell the neighbours" in known


def test_a_file_remembers_from_one_run_to_the_next(tmp_path: Path) -> None:
    """A companion that is started later answers from earlier facts."""
    with open_store(tmp_path / "memory.db") as store:
        companion = Companion(store)
        companion.say("Hi, I'm Ada. I live in Seattle, and I bake for a living.", "one")
    with open_store(tmp_path / "memory.db") as store:
        companion = Companion(store)
        assert companion.say("Where do I live?", "two").text == "In Seattle."
        [old] = [fact for fact in companion.cycle.memory.facts("ada") if "Seattle" in fact.claim]
        companion.say("Big news. I moved to Portland!", "two")
        assert companion.say("Where do I live?", "three").text == "In Portland."
        [kept] = [fact for fact in companion.cycle.memory.facts("ada", None) if fact.id == old.id]
        assert (kept.state, kept.valid_to is not None) == ("superseded", True)


def test_an_unknown_model_is_reported_in_one_line(tmp_path: Path) -> None:
    done = run_example("companion", tmp_path, "--model", "nobody:nothing")
    assert done.returncode == 2
    assert "the model 'nobody:nothing' could not be made" in done.stderr
    assert "Traceback" not in done.stderr
