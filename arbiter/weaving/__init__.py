"""Weaving the lifecycle into a compiled LangGraph graph.

The one module that touches LangGraph's inner parts; `tests/test_langgraph_contract.py` holds exactly those
against the oldest and the newest supported release.

A governed graph is a copy in which each node's cached `PregelNode.node`, which is what a task runs, is built by
LangGraph from a wrapper and gated writers. `bound` and `writers` stay what they were, so everything that looks at
the graph sees the original. One hidden channel, `LedgerChannel`, carries the facts through checkpoints.
See docs/design/weaving.md.
"""

from arbiter.weaving.asking import aask_human, ask_human
from arbiter.weaving.channel import LEDGER, Origin
from arbiter.weaving.graph import NodeRule, Rules, governed_nodes, ledger_of, subgraph_of, targets_of, weave
from arbiter.weaving.node import GovernedNode, Visit, with_handlers, without_effects
from arbiter.weaving.tools import HeldTools

__all__ = [
    "LEDGER",
    "GovernedNode",
    "HeldTools",
    "NodeRule",
    "Origin",
    "Rules",
    "Visit",
    "aask_human",
    "ask_human",
    "governed_nodes",
    "ledger_of",
    "subgraph_of",
    "targets_of",
    "weave",
    "with_handlers",
    "without_effects",
]
