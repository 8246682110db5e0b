"""Weaving the lifecycle into a compiled LangGraph graph.

This package uses LangGraph's internals; `tests/weaving/test_langgraph_contract.py` checks each of them
against the oldest and the newest supported release.

A governed graph is a copy. LangGraph builds each node's cached `PregelNode.node`, which a task runs, from a
wrapper and gated writers. `bound` and `writers` do not change, so code that inspects the graph sees the
original. One hidden channel, `FactsChannel`, carries the facts through checkpoints. See
docs/design/weaving.md.
"""

from arbiter._weaving.asking import ask_human, begin_function, is_resumed, pause_function, saver_of
from arbiter._weaving.channel import FACTS, Origin
from arbiter._weaving.graph import (
    NodeRule,
    Rules,
    facts_channel_of,
    governed_nodes,
    subgraph_of,
    targets_of,
    weave,
)
from arbiter._weaving.node import GovernedNode, NodeAttempt, without_effects
from arbiter._weaving.tools import HeldTools
from arbiter._weaving.watching import watched

__all__ = [
    "FACTS",
    "GovernedNode",
    "HeldTools",
    "NodeRule",
    "Origin",
    "Rules",
    "NodeAttempt",
    "ask_human",
    "begin_function",
    "governed_nodes",
    "facts_channel_of",
    "is_resumed",
    "pause_function",
    "saver_of",
    "subgraph_of",
    "targets_of",
    "watched",
    "weave",
    "without_effects",
]
