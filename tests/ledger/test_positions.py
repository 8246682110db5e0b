"""Entries name the place of each node run among the committed ones, its rules and its graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from arbiter import ArbiterOS
from arbiter._constitution.loading import load_constitution
from arbiter.ledger import Ledger
from tests.ledger.ledger_support import conf, sql
from tests.support import MODES, Spy, State, chain, run

PACK = """\
version: 1
name: payments
description: Limits.
extends: [base]
instructions:
  - {node: pay, instruction: TOOL_CALL}
checkers:
  - {name: limit, use: condition, deny_when: input.amount > 100}
"""
BASE = """\
version: 1
name: base
description: Base.
checkers:
  - {name: once, use: at_most, times: 5, target_nodes: pay}
"""


def packs(at: Path, limit: int = 100) -> Path:
    (at / "policies").mkdir(parents=True, exist_ok=True)
    (at / "policies" / "payments.yaml").write_text(PACK.replace("100", str(limit)))
    (at / "policies" / "base.yaml").write_text(BASE)
    return at


def bodies(path: Path) -> list[dict[str, Any]]:
    with sql(path) as query:
        rows = query("SELECT body FROM entries WHERE kind = 'item' ORDER BY id")
    return [json.loads(body) for (body,) in rows]


@MODES
def test_an_entry_names_the_last_committed_node_run_before_its_superstep(tmp_path: Path, mode: str) -> None:
    """Siblings come after the same one; a subgraph counts its own; a second input goes on counting."""
    inner = StateGraph(State)
    inner.add_sequence([("one", Spy("one")), ("two", Spy("two"))])
    inner.add_edge(START, "one")
    outer = StateGraph(State)
    nodes: list[Any] = [("first", Spy("first")), ("sub", inner.compile()), ("pay", Spy("pay"))]
    outer.add_sequence(nodes)
    outer.add_node("aside", Spy("aside"))
    outer.add_edge(START, "first")
    outer.add_edge("first", "aside")
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS.from_constitution(packs(tmp_path / "now"), ledger=ledger)
        app = arbiter_os.govern(outer.compile(checkpointer=InMemorySaver()), {"first": "GENERATE"})
        run(app, {"amount": 1}, conf("t"), mode=mode)
        run(app, {"amount": 1}, conf("t"), mode=mode)
        assert ledger.flush(60)
    of = [(body["node"], body["past"]) for body in sorted(bodies(tmp_path / "l.db"), key=lambda b: b["at"])]
    # `sub` adds its two nodes and itself.
    one = [("first", 0), ("sub", 1), ("aside", 1), ("one", 0), ("two", 1), ("pay", 5)]
    again = [(name, past + 6 if name in ("first", "sub", "aside", "pay") else past) for name, past in one]
    assert sorted(of) == sorted([*one, *again])
    known = {body["task"]: body for body in bodies(tmp_path / "l.db")}
    for body in known.values():
        before = known.get(body["after"])
        assert (body["after"] == "") == (body["past"] == 0)
        if before is not None:
            assert before["checkpoint"] != body["checkpoint"]
            assert before.get("namespace") == body.get("namespace")


def test_the_ledger_keeps_the_rules_in_force_and_the_graph(tmp_path: Path) -> None:
    """A reload holds from the next node run on; the text that is kept loads as the same rules."""
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS.from_constitution(packs(tmp_path / "now"), ledger=ledger)
        app = arbiter_os.govern(
            chain(Spy("ask"), Spy("pay"), checkpointer=InMemorySaver()), {"ask": "GENERATE"}
        )
        app.invoke({"amount": 1}, conf("t"))
        arbiter_os.load_constitution(packs(tmp_path / "next", limit=50))
        app.invoke({"amount": 1}, conf("t"))
        assert ledger.flush(60)
    found = bodies(tmp_path / "l.db")
    assert [body["rules"] == found[0]["rules"] for body in found] == [True, True, False, False]
    assert {body["graph"] for body in found} == {found[0]["graph"]}
    with sql(tmp_path / "l.db") as query:
        rules = dict(query("SELECT digest, body FROM constitutions"))
        graphs = dict(query("SELECT digest, body FROM graphs"))
        (execution,) = query("SELECT body FROM entries WHERE kind = 'execution' ORDER BY id LIMIT 1")
    assert rules.keys() == {body["rules"] for body in found}
    assert json.loads(execution[0])["rules"] == found[0]["rules"]
    graph = json.loads(graphs[found[0]["graph"]])
    assert graph["nodes"] == {"ask": "CognitiveCore.GENERATE", "pay": "ExecutionCore.TOOL_CALL"}
    assert ["ask", "pay", False] in graph["edges"]
    assert set(graph["targets"]) >= {"ask", "pay", "__end__"}
    again = tmp_path / "again.yaml"
    again.write_text(rules[found[0]["rules"]])
    loaded = load_constitution(again)
    assert loaded.declared == load_constitution(tmp_path / "now").declared
    assert [contract.name for contract in loaded.contracts] == ["once", "limit"]
