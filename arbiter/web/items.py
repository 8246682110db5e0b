"""The page of a node run: what it was given and gave back, who decided what about it, and its place in the chain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter.errors import ConfigurationError
from arbiter.harness.reports.page import shown
from arbiter.history import HistoryItem
from arbiter.history._rendering import value_text
from arbiter.ledger._entries import time_of
from arbiter.ledger._reading import Reader, WholeEntry
from arbiter.ledger._stored import state_of
from arbiter.web.context import ViewerContext
from arbiter.web.differences import state_differences
from arbiter.web.thread import found_thread
from arbiter.web.timelines import policies_of

_WIDTH, _LINES = 100, 300
_SECTIONS = ("checkers", "routers", "evaluators")
_LONGEST = 256 * 1024
"""The most characters of contents as they are stored that a page shows."""


def routes(context: ViewerContext) -> list[Route]:
    def item(request: Request) -> Response:
        return context.page(request, "item.html", **_values(context, request))

    def part(request: Request) -> Response:
        return context.page(request, "item_part.html", **_values(context, request))

    return [
        Route("/threads/{ref}/items/{seq:int}", item, methods=["GET"]),
        Route("/threads/{ref}/items/{seq:int}/part", part, methods=["GET"]),
    ]


def _values(context: ViewerContext, request: Request) -> dict[str, Any]:
    reader = context.ledger.reader
    thread = found_thread(reader, request)
    try:
        whole = reader.whole(thread, min(request.path_params["seq"], 2**31 - 1))
    except ConfigurationError as error:
        raise HTTPException(404, str(error)) from None
    return values_of(reader, thread, whole)


def values_of(reader: Reader, thread: Mapping[str, Any], whole: WholeEntry) -> dict[str, Any]:
    """The values in the templates of a node run."""
    item, body, contents = whole.item, whole.body, whole.contents
    rules = reader.text("constitution", body.get("rules"))
    asked_about = item.asked_about
    stored = "" if contents is None else json.dumps(contents, ensure_ascii=False, indent=1)
    return {
        "thread": thread,
        "whole": whole,
        "item": item,
        "body": body,
        "input": _shown(item.input_state),
        "output": _shown(item.output_state),
        "edits": None if asked_about is None else list(state_differences(asked_about, item.record.input)),
        "drafts": list(_drafts(item)),
        "gating": _shown(item.gating) if item.gating else "",
        "answers": [_answer(*each) for each in whole.answers],
        "rules": list(_rules(rules, policies_of(body))),
        "kept": rules is not None,
        "stored": shown(stored[:_LONGEST]),
        "cut": max(0, len(stored) - _LONGEST),
    }


def _shown(state: Any) -> str:
    return value_text(state, width=_WIDTH, max_lines=_LINES) if state else ""


def _drafts(item: HistoryItem) -> Iterator[dict[str, Any]]:
    """The outputs that a correction gate sent back, each with what the next one changed, by field."""
    outputs = [*(output for output, _ in item.drafts), item.record.output]
    for (before, feedback), after in zip(item.drafts, outputs[1:], strict=True):
        changes = list(state_differences(before, after))
        yield {"output": _shown(before), "feedback": shown(feedback), "changes": changes}


def _answer(seq: int, body: Mapping[str, Any], contents: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a human to a question of this node run."""
    return {
        "seq": seq,
        "kind": str(body.get("answer")),
        "by": body.get("by"),
        "asked_at": time_of(body["asked_at"]) if body.get("asked_at") else None,
        "at": time_of(body["at"]),
        "policy": str(body.get("policy_asked") or ""),
        "digest": str(body.get("question") or ""),
        "question": _shown(state_of(contents.get("question"))),
        "detail": _shown(state_of(contents.get("detail"))),
    }


def _rules(constitution: Any, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The declarations of these rules in a constitution, as YAML."""
    sections: Mapping[str, Sequence[Mapping[str, Any]]] = constitution or {}
    declared = {
        str(rule.get("name") or rule.get("use")): rule
        for name in _SECTIONS
        for rule in sections.get(name, ())
    }
    for name in names:
        if name in declared:
            yield (
                name,
                shown(yaml.safe_dump(declared[name], sort_keys=False, allow_unicode=True, width=_WIDTH)),
            )
