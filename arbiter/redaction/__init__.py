"""Redaction: finds secrets and personal numbers in texts, and replaces them.

Each detector runs only on a text that has one of its signs, and takes time linear in the length of the text.
See docs/design/redaction.md.
"""

from arbiter.redaction._contents import LONGEST_JSON, ContentRedactor
from arbiter.redaction._detectors import DETECTORS, Found, found_in
from arbiter.redaction._patterns import PatternError, Patterns
from arbiter.redaction._redactor import Redactor, SecretRedactor

__all__ = [
    "DETECTORS",
    "LONGEST_JSON",
    "ContentRedactor",
    "Found",
    "PatternError",
    "Patterns",
    "Redactor",
    "SecretRedactor",
    "found_in",
]
