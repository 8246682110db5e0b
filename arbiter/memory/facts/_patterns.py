"""Patterns written as lists of phrases."""

from __future__ import annotations


def one_of(phrases: str) -> str:
    """A pattern that matches any line of `phrases`. Each line is a pattern; surrounding blanks are
    ignored."""
    lines = (line.strip() for line in phrases.splitlines())
    return "(?:" + "|".join(filter(None, lines)) + ")"
