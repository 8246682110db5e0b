"""The graph that a command works on."""

from __future__ import annotations

from arbiter._objects import import_from_here, load_graph

__all__ = ["import_from_here", "load_graph"]
