"""Selection: chooses the evaluators that run among those that passed the gate."""

from arbiter.memory.selection._selecting import Selection, Strategy, check_selectable, normal, resolve, select

__all__ = ["Selection", "Strategy", "check_selectable", "normal", "resolve", "select"]
