"""Weaving the lifecycle into a compiled LangGraph graph.

This package uses LangGraph's internals; `tests/weaving/test_langgraph_contract.py` checks each of them
against the oldest and the newest supported release.

A governed graph is a copy. LangGraph builds each node's cached `PregelNode.node`, which a task runs, from a
wrapper and gated writers. `bound` and `writers` do not change, so code that inspects the graph sees the
original. One hidden channel, `FactsChannel`, carries the facts through checkpoints. See
docs/design/weaving.md.
"""
