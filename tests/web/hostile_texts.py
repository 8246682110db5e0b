"""Texts that would do something if a page took them for anything but text, and a ledger that has them everywhere."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from arbiter import ArbiterOS, EvaluationResult, NodeEvaluator, PolicyViolationError, Verdict
from arbiter.ledger import Ledger
from tests.support import Check

TEXTS = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "'; alert(1); //",
    "</script><script>alert(1)</script>", "<!--", "-->", "]]>", "</pre></td></table></main>", "{{ 7 * 7 }}",
    "{% raw %}", "${7*7}", "#{7*7}", "javascript:alert(1)", "http://evil.example/x.png", "//evil.example/x",
    "<a href=javascript:alert(1)>x</a>", "<iframe srcdoc='<script>alert(1)</script>'>",
    "<style>*{display:none}</style>", "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=0;url=//evil.example>", "<form action=//evil.example><input name=csrf>",
    "<link rel=stylesheet href=//evil.example/x.css>", "&lt;b&gt;", "&#x3c;script&#x3e;", "%3Cscript%3E",
    "\u202eevil\u202c", "\u200bhidden\u200b", "\x00nul", "\x1b[31mred", "\ufeffbom", "long " * 400,
    "日本語😀", "e" + "\u0301" * 50, "../../etc/passwd", "?x=1&y=2#z", "\n\r\nnew: line",
    "<b hx-get=/verify hx-trigger=load>", "__proto__", "\\u003cscript\\u003e", "' OR 1=1 --",
    "<template shadowrootmode=open>", "<details open ontoggle=alert(1)>",
)  # fmt: skip


class State(TypedDict, total=False):
    extra: Annotated[list[Any], operator.add]
    how: str


class _Feedback(NodeEvaluator):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def evaluate(self, history: Any) -> EvaluationResult:
        return EvaluationResult(0.5, None, self.text, {self.text: self.text})


def node_of(text: str) -> str:
    """The text as the name of a node: LangGraph forbids two characters."""
    return text.replace(":", "꞉").replace("|", "¦")


def record_hostile(ledger: Ledger, texts: Sequence[str] = TEXTS) -> dict[str, Any]:
    """For each text a thread whose id, node, policies, evaluator, reasons, states, tool, error and answer are that
    text. One node run asks a human, one is denied, one fails, and one waits.

    Returns the governed graphs by name: each has its text as its name.
    """
    apps = {text: _record(ledger, text) for text in texts}
    assert ledger.flush(30)
    return apps


def _record(ledger: Ledger, text: str) -> Any:
    def says(state: Any) -> Any:
        tool = {"name": text, "args": {text: text}, "id": text}
        return {"extra": [{text: text}, AIMessage(text, tool_calls=[tool])]}

    def fails(state: Any) -> Any:
        raise RuntimeError(text)

    def decides(history: Any) -> Verdict:
        item = history.item
        if item.node != "last":
            return Verdict.ask(text, about=text)
        return Verdict.deny(text) if item.input_state.get("how") == "deny" else Verdict.allow()

    builder: Any = StateGraph(State)
    builder.add_node(node_of(text), says)
    builder.add_node("last", fails)
    builder.add_edge(START, node_of(text))
    builder.add_edge(node_of(text), "last")
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(Check(text, decides))
    arbiter_os.add_evaluator(_Feedback(text))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver(), name=text))
    config: Any = {"configurable": {"thread_id": text, "user_id": text}}
    for how, fails_with in (("deny", PolicyViolationError), ("fail", RuntimeError)):
        app.invoke({"how": how, "extra": [text]}, config)
        edit = {"type": "edit", "input": {"extra": [text, "edited"]}}
        with pytest.raises(fails_with):
            app.invoke(Command(resume=edit), config)
    app.invoke({"how": "wait", "extra": [text]}, config)
    return app
