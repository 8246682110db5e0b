"""Patterns that are written as lists of phrases."""

from __future__ import annotations


def one_of(phrases: str) -> str:
    """A pattern for what any line of `phrases` matches. Each line is a pattern; blanks around it do not count."""
    lines = (line.strip() for line in phrases.splitlines())
    return "(?:" + "|".join(filter(None, lines)) + ")"
