"""Writes of a gated body other than its output belong to its draft as the output does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.message import push_message
from langgraph.types import Command, interrupt

from tests.personas.gate_support import enabled, gated, hello, scored, texts
from tests.support import MODES, run, thread

STREAMS = ["values", "updates", "messages", "custom", "debug", "checkpoints", "tasks"]
DRAFTS = ("REJECTED-ONE words", "REJECTED-TWO words", "ACCEPTED words")


def pushing() -> Any:
    """Says each draft twice: by `push_message`, and as its output."""
    drafts = iter(DRAFTS)

    def jim(state: Any) -> Any:
        text = next(drafts)
        push_message(AIMessage(f"pushed {text}", id=text))
        return {"messages": [AIMessage(text)]}

    return jim


@MODES
def test_pushes_of_a_rejected_draft_are_in_no_state_stream_or_file(mode: str, tmp_path: Path) -> None:
    judge = scored(dict.fromkeys(DRAFTS[:2], 3))

    async def stream() -> list[Any]:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.sqlite")) as saver:
            app, _, _ = gated(judge, enabled("adherence"), pushing(), checkpointer=saver)
            parts = app.astream(hello(), thread("1"), stream_mode=STREAMS)
            return [part async for part in parts]

    if mode == "async":
        parts = asyncio.run(stream())
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "s.sqlite")) as saver:
            app, _, _ = gated(judge, enabled("adherence"), pushing(), checkpointer=saver)
            parts = list(app.stream(hello(), thread("1"), stream_mode=STREAMS))
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert "pushed ACCEPTED" in str(parts)
    assert b"pushed ACCEPTED" in content
    assert "REJECTED" not in str(parts)
    assert b"REJECTED" not in content


@MODES
@pytest.mark.parametrize(("scores", "taken"), [((3, 6, 3), 1), ((3, 3, 9), 2)])
def test_pushes_of_the_committed_draft_are_committed(scores: tuple[int, ...], taken: int, mode: str) -> None:
    judge = scored(dict(zip(DRAFTS, scores, strict=True)))
    app, _, _ = gated(judge, enabled("adherence"), pushing())
    said = texts(run(app, hello(), mode=mode))
    assert said == ["Hello.", f"pushed {DRAFTS[taken]}", DRAFTS[taken]]


@MODES
def test_an_answer_outlives_the_draft_that_asked(mode: str) -> None:
    """A human who has answered is not asked again, although the draft is not taken."""
    seen: list[str] = []

    def jim(state: Any) -> Any:
        if "not sent" not in str(state["messages"][-1].text):
            seen.append(str(interrupt("May I?")))
            return {"messages": [AIMessage("REJECTED")]}
        seen.append(f"then {interrupt('And now?')}")
        return {"messages": [AIMessage("ACCEPTED")]}

    app, _, _ = gated(scored({"REJECTED": 3}), enabled("adherence"), jim, checkpointer=InMemorySaver())
    run(app, hello(), thread("1"), mode=mode)
    run(app, Command(resume="yes"), thread("1"), mode=mode)
    assert texts(run(app, Command(resume="go on"), thread("1"), mode=mode)) == ["Hello.", "ACCEPTED"]
    assert seen == ["yes", "then go on"]
