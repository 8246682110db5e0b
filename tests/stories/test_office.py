"""The office: what the script has put there is found, corrected and shown, without a network."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.office.main import Office
from examples.office.script import LINES
from tests.processes import run_example


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_example("office", folder, *arguments)


@pytest.mark.lengthy
def test_the_story_is_told(tmp_path: Path) -> None:
    """Scores, corrections and nudges are tables, those of drafts that pass at once too."""
    done = started(tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    story = done.stdout
    for part in (
        "Marta: passed_after_retry",
        "Bright: passed_after_retry",
        "┃ to Pell alone",
        "│ You are repeating yourself",
        "│ 1.7 of 9",
        "┃ to Bright alone",
        "│ A thought comes to your mind",
        "phosphorescent algae",
        "evaluations of an intervention fired",
    ):
        assert part in story
    assert story.count(": passed\n") + story.count(": passed ") == 10


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--rounds", "0"), "--rounds: expected a whole number from 1, got '0'"),
        (("--model", "nobody:nothing"), "the model 'nobody:nothing' could not be made"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[str, str], problem: str, tmp_path: Path) -> None:
    done = started(tmp_path, *arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "create_connection", refused)
    return Office()


@pytest.mark.lengthy
def test_rejected_drafts_and_private_messages_stay_hidden(office: Office) -> None:
    output = office.app.invoke({})
    said = {str(message.text) for message in output["messages"]}
    assert LINES["Marta"][1].draft not in said
    assert LINES["Marta"][1].again in said
    assert LINES["Bright"][1].draft not in said
    assert not any("comes to your mind" in text or "not sent" in text for text in said)
    assert len(output["messages"]) == 1 + 3 * 4 + 1


@pytest.mark.lengthy
def test_each_mechanism_did_its_part(office: Office) -> None:
    office.app.invoke({})
    outcomes = [(action.agent, action.outcome) for action in office.gate.actions if len(action.attempts) > 1]
    assert outcomes == [("Marta", "passed_after_retry"), ("Bright", "passed_after_retry")]
    history = office.arbiter_os.history
    assert [item.redirected_to for item in history.items() if item.node == "pell"] == [
        None,
        None,
        "reflect",
        None,
    ]
    assert {found.name for found in office.interventions.log if found.fired} == {
        "anti_convergence",
        "variety:Bright",
    }
