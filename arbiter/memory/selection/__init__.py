"""Selection: which of the evaluators that may run are to run."""

from arbiter.memory.selection.selecting import Selection, Strategy, check_selectable, resolve, select

__all__ = ["Selection", "Strategy", "check_selectable", "resolve", "select"]
