"""`arbiter run`: run a graph governed, show how far it is, and print its history."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from rich.console import Console
from rich.status import Status
from rich.text import Text

from arbiter.arbiter_os import ArbiterOS
from arbiter.cli.graphs import load_graph
from arbiter.errors import ConfigurationError, PolicyViolationError
from arbiter.govern import has_async_nodes

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def run_graph(
    where: str,
    input: str,
    constitution: str | None,
    allow: tuple[str, ...],
    thread: str | None,
    resume: str | None,
) -> int:
    """Run the graph and print output and history: 0, 3 when a policy denied, 4 when it waits for a human."""
    graph: Any = load_graph(where)
    given: Any = _json(input, "--input") if resume is None else Command(resume=_answer(resume))
    arbiter_os = ArbiterOS()
    if constitution is not None:
        arbiter_os.load_constitution(constitution, allow=allow)
    governed: Any = arbiter_os.govern(graph)
    if governed.checkpointer in (None, False):
        if resume is not None or thread is not None:
            raise ConfigurationError(
                f"{where} has no checkpointer, so no thread is kept; compile it with one for --thread and --resume."
            )
        governed.checkpointer = InMemorySaver()  # so that it can pause and ask, here and now
    config: RunnableConfig = {"configurable": {"thread_id": thread or "arbiter-run"}}
    code, output = 0, None
    try:
        output = _run(governed, given, config)
        while questions := _questions(output):
            if not sys.stdin.isatty():
                code = 4
                break
            output = _run(governed, Command(resume=_ask(questions[0])), config)
    except PolicyViolationError as error:
        err.print(Text(str(error), style="bold red"))
        code = 3
    arbiter_os.drain(60)
    arbiter_os.history.pprint(out)
    if code == 4:
        err.print(
            Text(f"waits for a human: {json.dumps(_questions(output), default=str)}", style="bold yellow")
        )
    if code == 0 and output is not None:
        out.print_json(json.dumps(output, default=str))
    return code


def _json(text: str, option: str) -> Any:
    path = Path(text)
    shown = text if len(text) <= 60 else text[:57] + "..."
    try:
        if not text.lstrip().startswith(("{", "[", '"')) and path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        return json.loads(text)
    except (ValueError, OSError) as error:
        raise ConfigurationError(
            f"{option} is {shown!r}; expected JSON, or a file that holds it: {error}"
        ) from None


def _answer(text: str) -> Any:
    return _json(text, "--resume") if text.lstrip().startswith(("{", "[", '"')) else text


def _run(graph: Any, given: Any, config: RunnableConfig) -> Any:
    """What `invoke` returns. Async nodes need an event loop; the rest gets none, for the sake of sync savers."""
    with _progress() as show:
        if has_async_nodes(graph):
            return asyncio.run(_arun(graph, given, config, show))
        output: Any = None
        for mode, chunk in graph.stream(given, config, stream_mode=["tasks", "values"]):
            output = _noted(mode, chunk, output, show)
        return output


async def _arun(graph: Any, given: Any, config: RunnableConfig, show: Any) -> Any:
    output: Any = None
    async for mode, chunk in graph.astream(given, config, stream_mode=["tasks", "values"]):
        output = _noted(mode, chunk, output, show)
    return output


def _noted(mode: str, chunk: Any, output: Any, show: Any) -> Any:
    if mode == "values":
        return chunk
    if "input" in chunk:  # a task begins
        show(chunk["name"])
    return output


@contextmanager
def _progress() -> Generator[Any]:
    if not err.is_terminal:
        yield lambda name: None  # pyright: ignore[reportUnknownLambdaType]
        return
    done = 0
    with Status("starting", console=err) as status:

        def show(name: str) -> None:
            nonlocal done
            done += 1
            status.update(Text(f"task {done}: {name}"))

        yield show


def _questions(output: Any) -> list[Any]:
    given: Any = output
    found: Any = given.get("__interrupt__", ()) if isinstance(output, dict) else ()
    return [interrupt.value for interrupt in found]


def _ask(question: Any) -> Any:
    if not isinstance(question, dict):
        return _answer(typer.prompt(str(question)))
    reason: Any = question.get("reason", "")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    out.print_json(json.dumps(question, default=str))
    return _answer(typer.prompt(f"{reason} approve, reject, or JSON such as {{'type': 'edit', ...}}"))
