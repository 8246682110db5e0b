"""`arbiter run`: run a governed graph, show its progress, and print its history."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
import sys
import traceback
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt, StateSnapshot
from rich.console import Console
from rich.status import Status
from rich.text import Text

from arbiter._lifecycle.asking import read_answer
from arbiter._objects import ignored_keys, load_graph
from arbiter._values.copies import jsonable
from arbiter._weaving.govern import has_async_nodes
from arbiter._weaving.pausing import pausing_saver
from arbiter.arbiter_os import ArbiterOS
from arbiter.cli._options import check_format, opened, option_of
from arbiter.cli._streams import reader_may_leave, sentence, tell
from arbiter.errors import ArbiterError, ConfigurationError, PolicyViolationError, closest

if TYPE_CHECKING:
    from arbiter.cli._app_options import RunOptions

FORMATS = ("text", "json")
_DENIAL = re.compile(r"\b(dis|un|no|never)|n['’o]t\b", re.IGNORECASE)
"""Finds the denials among the words that are like "approve", such as "disapprove"."""
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def run_graph(options: RunOptions) -> int:
    """Run the graph and print history and output. With the format "json", stdout gets only the output.

    Returns 0, or 1 if the graph failed, 3 if a policy denied, 4 if it waits for a human.
    """
    check_format(options.format, FORMATS)
    talk = out if options.format == "text" else err  # the console for everything but the output
    where, resume, ledger = options.graph, options.resume, options.ledger
    graph: Any = load_graph(where)
    given: Any = _json(options.input, "--input") if resume is None else Command(resume=_answer(resume))
    arbiter_os = ArbiterOS()
    if options.constitution:
        arbiter_os.load_constitution(options.constitution, allow=options.allow)
    governed: Any = arbiter_os.govern(graph)
    if governed.checkpointer in (None, False):
        if resume is not None or (options.thread is not None and ledger is None):
            raise ConfigurationError(
                f"{where} has no checkpointer, so no thread is kept; "
                "compile it with one for --thread and --resume, or record the thread with --ledger."
            )
        governed.checkpointer = pausing_saver()  # so that it can pause and ask on this terminal
    for key, _, why in ignored_keys(governed, [given]):
        tell(f"warning: --input has {key!r}, {why}", "yellow")
    thread = options.thread or f"run-{uuid.uuid4().hex[:8]}"
    if resume is not None and (state := _state_of(governed, _config(thread))) is not None:
        if not state.next:  # an answer would begin a new run, with no input
            raise ConfigurationError(
                f"--resume: the thread {thread!r} waits for no answer. Name one that does with --thread, or give "
                "--input for a new run."
            )
        for asked in state.interrupts:
            if isinstance(given.resume, dict) and asked.id in given.resume:
                _check_answer(given.resume[asked.id], asked.value)
            elif len(state.interrupts) == 1:
                _check_answer(given.resume, asked.value)
    with ExitStack() as opening:
        kept = None if ledger is None else opening.enter_context(opened(ledger, create=True, sign=True))
        if kept is not None:  # last: a mistake in the configuration makes no file
            recording = kept.recording()
            recording.keep(None if arbiter_os.constitution is None else arbiter_os.constitution.records)
            arbiter_os.add_listener(recording)
        code = _run_thread(arbiter_os, governed, given, thread, talk)
        if kept is not None and kept.flush(60):
            named = f"{shlex.quote(thread)}{option_of(ledger or '')}"
            tell(f"recorded: arbiter history {named}")
    return code


def _run_thread(arbiter_os: ArbiterOS, governed: Any, given: Any, thread: str, talk: Console) -> int:
    """Run the thread, ask on this terminal, and print history and output. Returns the exit code."""
    config = _config(thread)
    code, output = 0, None
    try:
        output = _run(governed, given, config)
        while questions := _questions(output):
            if not sys.stdin.isatty():
                code = 4
                break
            output = _run(governed, Command(resume=_answers(questions, talk)), config)
    except typer.Abort:  # Ctrl+C or Ctrl+D in place of an answer
        talk.print()
        code = 4
    except PolicyViolationError as error:
        tell(str(error), "bold red")
        code = 3
    except KeyboardInterrupt:
        # Without the history, which waits for scores.
        tell(f"interrupted.{_how_to_go_on(governed, thread, '--input null')}", "bold yellow")
        return 130
    except BaseException as error:  # a user's node may raise anything, and may call sys.exit
        tell(_failure(error, arbiter_os), "bold red")
        code = 1
    arbiter_os.drain(60)
    with reader_may_leave():
        arbiter_os.history.pprint(talk)
    if code == 4:
        asked = _json_of([question.value for question in _questions(output)])
        tell(f"waits for a human: {asked}.{_how_to_go_on(governed, thread, '--resume')}", "bold yellow")
    if code == 0 and output is not None:
        with reader_may_leave():
            out.print_json(_json_of(output))
    return code


def _how_to_go_on(governed: Any, thread: str, option: str) -> str:
    """The end of a sentence; nothing if no checkpointer keeps the thread for another process."""
    if governed.checkpointer is None or isinstance(governed.checkpointer, InMemorySaver):
        return ""
    return f" Go on with --thread {shlex.quote(thread)} {option}."


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def _state_of(graph: Any, config: RunnableConfig) -> StateSnapshot | None:
    state: StateSnapshot
    try:
        state = asyncio.run(graph.aget_state(config)) if has_async_nodes(graph) else graph.get_state(config)
    except Exception:  # the user's checkpointer may raise anything; the run then reports it
        return None
    return state


def _check_answer(answer: Any, question: Any) -> None:
    """Refuse an answer that was perhaps to approve or edit: it would reject, and that is final."""
    if not isinstance(question, dict) or "digest" not in question:  # a question of the node itself
        return
    said: Any = answer
    match said:
        case {"decisions": [{"type": word}]} | {"type": word}:  # in LangChain's envelope, or alone
            pass
        case word:
            pass
    if not isinstance(word, str) or _DENIAL.search(word):
        return
    read, approvers = read_answer(answer, _subject(cast(Any, question))), cast(Any, question).get("approvers")
    if read.kind != "reject" and read.by is None and approvers:
        example = json.dumps({"type": read.kind, "by": approvers[0]})
        raise ConfigurationError(
            f"--resume is {answer!r:.60}, which does not say by whom; expected JSON such as {example}. "
            f"These may approve: {', '.join(approvers)}."
        )
    if read.kind != "reject":
        return
    if closest(word, ("approve", "edit", "reject")) in ("approve", "edit"):
        raise ConfigurationError(f"--resume is {answer!r:.60}; expected {_expected(cast(Any, question))}.")


def _subject(question: dict[str, Any]) -> str:
    """The key of that which a human is shown, and may edit."""
    return "output" if question.get("type") == "escalation" else "input"


def _expected(question: dict[str, Any]) -> str:
    return f'approve, reject, or JSON such as {{"type": "edit", "{_subject(question)}": {{...}}}}'


def _failure(error: BaseException, arbiter_os: ArbiterOS) -> str:
    if isinstance(error, ArbiterError):
        return str(error)
    failed = [item for item in arbiter_os.history.items() if item.status == "failed"]
    who = f"node {failed[-1].node!r}" if failed else "the graph"
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = (str(error).splitlines() or [""])[0]  # LangGraph adds lines with links
    return f"{who} raised {type(error).__name__}: {said} ({place.filename}:{place.lineno})"


def _json_of(value: Any) -> str:
    """A value as JSON, whole: plain data of any size and depth as it is, other objects by their fields."""
    whole = partial(jsonable, most=math.inf)
    try:
        return json.dumps(value, default=whole, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # Keys that are no texts, infinity, a value that holds itself.
        return json.dumps(whole(value))


def _json(text: str, option: str) -> Any:
    path = Path(text)
    shown = text if len(text) <= 60 else text[:57] + "..."
    try:
        if not text.lstrip().startswith(("{", "[", '"')):
            if path.is_file():
                return json.loads(path.read_text(encoding="utf-8"))
            if path.suffix == ".json":
                raise FileNotFoundError("there is no such file")
        return json.loads(text)
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigurationError(
            f"{option} is {shown!r}; expected JSON, or a file that contains it: {error}"
        ) from None


def _answer(text: str) -> Any:
    return _json(text, "--resume") if text.lstrip().startswith(("{", "[", '"')) else text


def _run(graph: Any, given: Any, config: RunnableConfig) -> Any:
    """The output of `invoke`. Only a graph with async nodes gets an event loop, because sync savers fail
    inside of one.
    """
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


def _questions(output: Any) -> list[Interrupt]:
    return list(cast(Any, output).get("__interrupt__", ())) if isinstance(output, dict) else []


def _answers(questions: list[Interrupt], talk: Console) -> Any:
    """The value to resume with: the answer, or a map of answers if several nodes ask at once."""
    if len(questions) == 1:
        return _ask(questions[0].value, talk)
    return {question.id: _ask(question.value, talk) for question in questions}


def _ask(question: Any, talk: Console) -> Any:
    if not isinstance(question, dict):
        return _answer(typer.prompt(sentence(str(question)).plain, err=talk is err))
    talk.print_json(_json_of(question))
    while True:
        said = typer.prompt(_expected(cast(Any, question)), err=talk is err)
        try:
            answer = _answer(said)
            _check_answer(answer, question)
            return answer
        except ConfigurationError as error:
            tell(str(error))
