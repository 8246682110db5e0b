"""Texts as detectors read them: without invisible characters, and of bounded length."""

from __future__ import annotations

import re

from arbiter._values.normal import normalized

MOST_CHARACTERS = 8_000
"""Characters of a text that are looked at, by default."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]+"
)
"""The categories Cc and Cf without tabs and line ends."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
"""What a program sends to a terminal; its letter would hide the begin of a secret."""


def bare(text: str) -> str:
    """`text` in NFKC and without invisible characters, so that no zero-width character hides a secret."""
    if "\x1b" in text:
        text = _COLOURS.sub(" ", text)
    if text.isascii():
        return text if text.isprintable() else _CONTROLS.sub("", text)
    return normalized("NFKC", _UNSEEN.sub("", text))
