"""The inbox: questions that wait for a human, and forms that answer them.

An answer names its question by interrupt, digest and number, and its author is the user of the request. Everything
else is read again from the checkpointer when it arrives.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter.errors import ConfigurationError
from arbiter.web.access import User
from arbiter.web.answering import LATE, Answering, LateAnswer
from arbiter.web.context import ViewerContext, form_of, redirect
from arbiter.web.questions import InvalidAnswer, Question, Questions, Stamp, edited
from arbiter.web.thread import found_thread

PAGE = 50
_SHOWN = 5
"""Interrupted node runs that are shown of a thread whose checkpointer is not known here."""
_LONGEST_REASON = 4_000


def _ensure_answerable(name: str, graph: Any) -> None:
    if not hasattr(graph, "get_state"):
        raise ConfigurationError(f"viewer: graph {name!r} is {graph!r:.80}; expected a governed graph.")
    if graph.checkpointer in (None, False, True):
        raise ConfigurationError(
            f"viewer: graph {name!r} has no checkpointer, so it cannot wait for an answer. Compile it with one."
        )
    if not hasattr(graph, "_arbiter_checkpointed"):
        raise ConfigurationError(
            f"viewer: graph {name!r} is not governed with a ledger. Give what ArbiterOS(ledger=...).govern returns."
        )


class Inbox:
    """The pages of the inbox of one viewer."""

    def __init__(self, context: ViewerContext) -> None:
        if context.on_answer is not None and not context.graphs:
            raise ConfigurationError(
                "viewer: on_answer needs graphs, whose checkpointers know the questions. Give the governed graphs too."
            )
        for name, graph in context.graphs.items():
            _ensure_answerable(name, graph)
        self._context = context
        self._questions = Questions(context.ledger, context.graphs)
        self._answering = Answering(context.ledger, self._questions, context.on_answer)

    def routes(self) -> list[Route]:
        return [
            Route("/inbox", self.waiting, methods=["GET"]),
            Route("/inbox/{ref}/{interrupt}", self.question, methods=["GET"]),
            Route("/inbox/{ref}/{interrupt}", self.answer, methods=["POST"]),
        ]

    def close(self) -> None:
        """Wait for the runs that go on with an answer."""
        self._answering.close()

    def waiting(self, request: Request) -> Response:
        """All questions that wait, and the answers that were given here."""
        after = request.query_params.get("after") or None
        page = self._context.ledger.waiting().page(PAGE, after)
        unmarked = self._questions.unmarked() if after is None else []
        rows = [_row(thread, each) for thread in unmarked for each in self._questions.of(thread)]
        elsewhere = 0
        for thread in page.rows:
            found = [_row(thread, each) for each in self._questions.of(thread)]
            if not found and self._context.graphs:
                elsewhere += 1
            rows += found or ([] if self._context.graphs else self._recorded(thread))
        return self._context.page(
            request,
            "inbox.html",
            rows=rows,
            elsewhere=elsewhere,
            next=None if page.next is None else f"?after={page.next}",
            first=after is None,
            given=self._answering.given(),
            now=datetime.now(UTC),
        )

    def _recorded(self, thread: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The ledger's account of the questions of a thread, and the command that answers them."""
        items = self._context.ledger.items(thread_id=thread["ref"], status="interrupted").page(_SHOWN)
        newest = {item.node: item for item in reversed(items.rows)}
        name = shlex.quote(str(thread["thread_id"]))
        command = f"arbiter run MODULE:GRAPH -c . --thread {name} --resume"
        return [
            {
                "thread": thread,
                "question": None,
                "node": item.node,
                "at": item.timestamp,
                "requests": requests,
                "command": f"{command} {'approve' if requests else 'ANSWER'}",
            }
            for item in newest.values()
            for requests in (_asking(item),)
        ]

    def question(self, request: Request) -> Response:
        """One question, with the forms that answer it."""
        thread = self._thread(request)
        interrupt = request.path_params["interrupt"]
        found = next((each for each in self._questions.of(thread) if each.interrupt == interrupt), None)
        return self._late(request) if found is None else self._page_of(request, found)

    def _page_of(
        self,
        request: Request,
        question: Question,
        *,
        form: Mapping[str, str] | None = None,
        problems: Mapping[str, str] | None = None,
    ) -> Response:
        return self._context.page(
            request,
            "question.html",
            400 if problems else 200,
            question=question,
            fields=self._questions.fields(question),
            extras=self._questions.text(question.extras) if question.extras else "",
            form=form or {},
            problems=problems or {},
            now=datetime.now(UTC),
        )

    async def answer(self, request: Request) -> Response:
        """Take an answer, and let the run go on with it."""
        form, loop = form_of(request), asyncio.get_running_loop()
        return await run_in_threadpool(self._answer, request, form, loop)

    def _answer(self, request: Request, form: Mapping[str, str], loop: asyncio.AbstractEventLoop) -> Response:
        user: User = request.scope["state"]["user"]
        if not user.can_answer:
            return self._refused(request, 403, f"{user.name} may read, and not answer.")
        number = form.get("number", "")
        if not number.isdecimal() or len(number) > 9 or "digest" not in form:
            return self._refused(request, 400, "the form does not name its question. Load its page again.")
        thread = self._thread(request)
        stamp = Stamp(request.path_params["interrupt"], form["digest"], int(number))
        found: list[Question] = []

        def read(question: Question) -> tuple[str, Any]:
            found.append(question)
            return self._read(question, user, form)

        try:
            self._answering.give(thread, stamp, user.name, read, loop)
        except LateAnswer:
            return self._late(request)
        except InvalidAnswer as error:
            return self._page_of(request, found[0], form=form, problems=error.problems)
        return redirect(request, "/inbox")

    def _read(self, question: Question, user: User, form: Mapping[str, str]) -> tuple[str, Any]:
        """The answer in a form, and the word for it. Its author is the user."""
        if question.subject is None:
            return "answer", _own_answer(form.get("value", ""))
        if missing := question.missing_rules():
            raise InvalidAnswer({"form": _NO_RULE.format(", ".join(map(repr, missing)))})
        kind = form.get("answer")
        if kind in ("approve", "edit") and not question.may_approve(user.name):
            names = ", ".join(question.approvers or ())
            raise InvalidAnswer({"form": f"{user.name} may not approve this. These may: {names}."})
        if kind == "approve":
            return kind, {"type": kind, "by": user.name}
        if kind == "edit":
            changes = edited(question, self._questions.fields(question), form)
            return kind, {"type": kind, question.subject: changes, "by": user.name}
        if kind == "reject":
            reason = form.get("message", "").strip()
            if not reason:
                raise InvalidAnswer({"message": "Give a reason: the history shows it."})
            return kind, {"type": kind, "message": reason[:_LONGEST_REASON], "by": user.name}
        raise InvalidAnswer({"form": "Choose one of approve, edit and reject."})

    def _thread(self, request: Request) -> Mapping[str, Any]:
        return found_thread(self._context.ledger.reader, request)

    def _late(self, request: Request) -> Response:
        return self._refused(request, 409, LATE)

    def _refused(self, request: Request, status: int, sentence: str) -> Response:
        return self._context.page(
            request, "unanswered.html", status, sentence=sentence[0].upper() + sentence[1:]
        )


def _row(thread: Mapping[str, Any], question: Question) -> dict[str, Any]:
    return {
        "thread": thread,
        "question": question,
        "node": question.node,
        "at": question.asked_at,
        "requests": question.requests,
    }


_NO_RULE = (
    "The rules of this viewer lack {}, which asked, so the run would go on whatever the answer is. Start the viewer "
    "with the constitution that the run is governed by."
)


def _asking(item: Any) -> list[dict[str, str]]:
    """The checkers that ask, or else the router; none for a question of the node's own."""
    asked = [
        {"policy": name, "reason": verdict.reason}
        for name, verdict in item.check_policy_results.items()
        if verdict.kind == "ask"
    ]
    router = item.decision.policy if item.decision.kind == "ask" else None
    return asked or ([] if router is None else [{"policy": router, "reason": ""}])


def _own_answer(text: str) -> Any:
    """The answer to a question of a node's own: JSON, or else a text as it is."""
    said = text.strip()
    if not said:
        raise InvalidAnswer({"value": "Give an answer: JSON, or a text."})
    try:
        return json.loads(said)
    except RecursionError:
        raise InvalidAnswer({"value": "This is nested too deeply."}) from None
    except ValueError as error:
        if said[0] in '{["':
            raise InvalidAnswer({"value": f"This is not JSON: {error}."}) from None
        return said
