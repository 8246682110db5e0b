"""`arbiter history`: the threads of a ledger, the items that fit, or the history of one thread."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from arbiter.cli._options import Screen, known_names, number_of, opened, option_of
from arbiter.cli._streams import reader_may_leave
from arbiter.errors import ConfigurationError
from arbiter.history import HistoryItem
from arbiter.history._rendering import duration_text, moment_text

if TYPE_CHECKING:
    from arbiter.cli._app_options import HistoryOptions
    from arbiter.ledger import Ledger, StoredItem

NOTHING = "nothing is recorded yet"
_SECONDS = 5.0
"""The time in which a screen of items is filled."""
_FILTERS = ("node", "policy", "verdict", "status", "evaluator", "below")
_TIMES = ("since", "until")
_HINT = (
    "arbiter history THREAD shows one; --node, --policy, --verdict, --status, --evaluator NAME --below N, "
    "--since, --until find items."
)
_OUTCOMES = {"paused": "waits for a human", None: "has no end"}
_DECIDED = {"deny": "denied", "ask": "asked", "allow": "allowed"}


def show_history(options: HistoryOptions) -> None:
    """Print a table of threads, or the history of one; with a filter, or of one thread in a time, a table of items."""
    where, thread, run, follow = options.ledger, options.thread, options.run, options.follow
    screen = Screen(options.format)
    wanted = {name: getattr(options, name) for name in (*_FILTERS, *_TIMES, "after")}
    given = {name for name, value in wanted.items() if value is not None}
    filters = given.intersection(_FILTERS)
    finds_items = bool(filters or (thread is not None and given.intersection(_TIMES)))
    if thread is None and (follow or run is not None):
        raise ConfigurationError("--follow and --run are about one thread: arbiter history THREAD --follow")
    if run is not None and finds_items:
        raise ConfigurationError(
            "--run shows a run of a thread whole; leave it out to find items of the thread."
        )
    if thread is not None and "after" in given and not finds_items:
        raise ConfigurationError("--after goes on with a page of threads or items; a thread is shown whole.")
    if follow and (finds_items or run is not None or screen.format == "json"):
        raise ConfigurationError("--follow shows a whole thread, as a table or as jsonl.")
    with reader_may_leave(), opened(where) as ledger:
        ledger.threads(since=wanted["since"], until=wanted["until"])  # reports wrong times in any case
        if not ledger.threads().page(limit=1):
            if screen.format == "json":
                screen.data([])
            screen.say(NOTHING)
        elif thread is not None and follow:
            _follow(ledger, thread, screen)
        elif thread is not None and not finds_items:
            _thread(ledger, thread, run, screen)
        elif finds_items:
            _items(ledger, {"thread_id": thread, **wanted}, screen, where)
        else:
            _threads(ledger, wanted, screen, where)


def _threads(ledger: Ledger, wanted: Mapping[str, Any], screen: Screen, where: str) -> None:
    page = ledger.threads(since=wanted["since"], until=wanted["until"]).page(after=wanted["after"])
    if screen.format == "table":
        screen.table(
            ("thread", "graph", "started", ">took", ">items", ">denied", ">asked", "lowest score", "ended"),
            [
                (
                    _name(thread),
                    thread["graph"],
                    moment_text(thread["first_at"]),
                    duration_text((thread["last_at"] - thread["first_at"]).total_seconds()),
                    thread["items"],
                    thread["denied"],
                    thread["asked"],
                    _lowest(thread),
                    _ended(thread),
                )
                for thread in page
            ],
        )
    else:
        screen.data([dict(thread) for thread in page])
    screen.say(f"{number_of(len(page), 'thread')}. {_HINT}")
    _say_next(screen, page.next, wanted, where)


def _name(thread: Mapping[str, Any]) -> str:
    erased = " (erased)" if thread["erased_at"] is not None else ""
    return f"{thread['thread_id'] or thread['ref'][:8]}{erased}"


def _lowest(thread: Mapping[str, Any]) -> str:
    if thread["lowest"] is None:
        return "" if thread["is_searched"] else "not searched"
    return "{} {:.2f}".format(*thread["lowest"])


def _ended(thread: Mapping[str, Any]) -> str:
    outcome = _OUTCOMES.get(thread["outcome"], thread["outcome"])
    return f"denied by {thread['policy']}" if thread["policy"] else str(outcome)


def _items(ledger: Ledger, wanted: Mapping[str, Any], screen: Screen, where: str) -> None:
    question = {name: value for name, value in wanted.items() if name != "after"}
    with known_names():
        page = ledger.items(**question).page(after=wanted["after"], seconds=_SECONDS)
    evaluator = wanted["evaluator"]
    scores = () if evaluator is None else (">score",)
    if screen.format == "table":
        screen.table(
            ("at", "thread", ">step", "node", "instruction", *scores, "decision", "why"),
            [
                (
                    moment_text(_end(item)),
                    item.thread_id or item.ref[:8],
                    item.step,
                    item.node,
                    item.instruction,
                    *(() if evaluator is None else (f"{item.evaluation_results[evaluator].score:.2f}",)),
                    decision_of(item),
                    _why(item, evaluator),
                )
                for item in page
            ],
        )
    else:
        screen.data([item_data(item) for item in page])
    screen.say(f"{number_of(len(page), 'item')}.")
    _say_next(screen, page.next, wanted, where)


def item_data(item: StoredItem) -> dict[str, Any]:
    """An item in its JSON form: its place in the ledger, its decision, and everything that `to_dict` has."""
    return {
        "thread_id": item.thread_id,
        "ref": item.ref,
        "run": item.run,
        "verdict": item.decision.kind,
        "policy": item.decision.policy,
        **item.to_dict(),
    }


def _end(item: HistoryItem) -> datetime:
    return item.timestamp + timedelta(seconds=item.duration)


def decision_of(item: HistoryItem) -> str:
    """The outcome of a node run: denied or asked by a policy, redirected by a router, failed, or allowed."""
    decision = item.decision
    if decision.policy is not None:
        return f"{_DECIDED[decision.kind]} {decision.policy}"
    if item.redirected_to is not None:
        return f"{item.record.redirected_by or ''} → {item.redirected_to}".strip()
    return _DECIDED[decision.kind] if item.status == "completed" else item.status


def _why(item: HistoryItem, evaluator: str | None = None) -> str:
    if evaluator is not None:
        return item.evaluation_results[evaluator].feedback
    from arbiter.ledger._stored import why_of

    return why_of(item)


def _say_next(screen: Screen, cursor: str | None, wanted: Mapping[str, Any], where: str) -> None:
    if cursor is None:
        return
    given = {**wanted, "after": cursor}
    words = ["arbiter", "history"]
    if given.pop("thread_id", None) is not None:
        words.append(shlex.quote(wanted["thread_id"]))
    for name, value in given.items():
        if value is not None:
            words += [f"--{name}", shlex.quote(str(value))]
    form = "" if screen.format == "table" else f" --format {screen.format}"
    screen.say(f"Next: {' '.join(words)}{option_of(where)}{form}")


def _thread(ledger: Ledger, thread: str, run: int | None, screen: Screen) -> None:
    history = ledger.history(thread, run=run)
    if screen.format == "table":
        history.pprint(screen.console)
    else:
        screen.data(history.to_dicts())


def _follow(ledger: Ledger, thread: str, screen: Screen) -> None:
    """Print the history of the thread, then a line for each new node run."""
    parts = ledger.follow(thread)
    with suppress(KeyboardInterrupt):
        for number, history in enumerate(parts):
            if screen.format == "jsonl":
                screen.data([item.to_dict() for item in history.items()])
            elif number == 0:
                history.pprint(screen.console)
            else:
                for item in history.items():
                    words = (
                        moment_text(_end(item)),
                        f"step {item.step}",
                        item.node,
                        decision_of(item),
                        _why(item),
                    )
                    screen.console.print(screen.text("  ".join(filter(None, words))), soft_wrap=True)
