"""`ContentRedactor`: redacts whole states, by the names of fields as well as by what texts hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from fnmatch import translate
from re import IGNORECASE, compile, escape
from typing import Any

from arbiter.redaction._detectors import found_in
from arbiter.redaction._redactor import Path, Redactor, SecretRedactor

FIELDS = (
    "*password*", "*passwd*", "passphrase", "*secret*", "*token", "*api_key*", "*apikey*", "*api-key*",
    "*private_key*", "*access_key*", "authorization", "*-authorization", "cookie", "set-cookie", "*credential*",
)  # fmt: skip
"""Names of fields whose values are always secrets, whatever they look like. Case does not matter."""
_NOT_SECRET = compile(
    r"(?i)(?:max|min|n|num|total|input|output|prompt|completion|reasoning|cache\w*)_tokens?\Z"
)
_JSON_LEVELS = 2
LONGEST_JSON = 64 * 1024
"""Characters of a text up to which JSON in it is read."""
_PAIR = compile(r'"([^"\\]{1,100})"(\s{0,20}:\s{0,20})"(?:[^"\\]|\\.)*+"?')
"""A name and its text in JSON that is cut, or is none: possessive, so that it is linear."""


_WHOLE = 2**40


class ContentRedactor:
    """Redacts mappings, lists and texts, and JSON inside of texts, two levels deep.

    The value of a field that `keys` or the built-in names name becomes `{"$secret": "field"}`; what the
    detectors `detect` find in a text becomes `[secret: NAME]`. `also` are further redactors, which are asked in
    order; one that raises leaves `{"$secret": "failed"}`, never the value.
    """

    def __init__(
        self,
        *,
        keys: Iterable[str] = (),
        detect: Collection[str] = ("secrets", "cards"),
        also: Iterable[Redactor] = (),
    ) -> None:
        names = "|".join(translate(name) for name in (*FIELDS, *keys))
        self._names = compile(names, IGNORECASE)
        self._known: dict[str, bool] = {}
        words = {name.strip("*") for name in (*FIELDS, *keys)}
        self._words = compile("|".join(sorted(map(escape, words))), IGNORECASE)
        self._detect = tuple(detect)
        self._texts = SecretRedactor(detect, most=_WHOLE)
        self._also = tuple(also)

    def is_clean(self, dumped: str) -> bool:
        """True if contents in this form, as one line of JSON, surely have nothing to redact.

        A quick look: False may still turn out to be clean.
        """
        if self._also or not dumped.isascii() or self._words.search(dumped) is not None:
            return False
        return not found_in(dumped, self._detect)

    def redact(self, value: Any, path: Path = ()) -> Any:
        """`value` redacted. Never raises."""
        try:
            redacted = self._value(value, path, _JSON_LEVELS)
            for redactor in self._also:
                redacted = redactor.redact(redacted, path)
            return redacted
        except Exception:
            return {"$secret": "failed"}

    def _value(self, value: Any, path: Path, levels: int) -> Any:
        parts: Any = value
        if isinstance(value, str):
            return self._text(value, path, levels)
        if isinstance(value, Mapping):
            return {
                key: {"$secret": "field"}
                if self._is_secret(str(key)) and part not in (None, "", [], {})
                else self._value(part, (*path, str(key)), levels)
                for key, part in parts.items()
            }
        if isinstance(value, list | tuple):
            return [self._value(part, (*path, at), levels) for at, part in enumerate(parts)]
        return value

    def _is_secret(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._names.match(name) is not None and _NOT_SECRET.match(name) is None
            if len(self._known) < 10_000:
                self._known[name] = known
        return known

    def _text(self, text: str, path: Path, levels: int) -> str:
        if levels and text[:1] in ("{", "[") and len(text) <= LONGEST_JSON:
            try:
                inside: Any = json.loads(text)
            except (ValueError, RecursionError):
                return self._texts.text(self._without_pairs(text))
            redacted = self._value(inside, path, levels - 1)
            return text if redacted == inside else json.dumps(redacted, ensure_ascii=False)
        return self._texts.text(self._without_pairs(text))

    def _without_pairs(self, text: str) -> str:
        if '"' not in text or ":" not in text:
            return text
        return _PAIR.sub(
            lambda found: (
                f'"{found[1]}"{found[2]}"[secret: field]"' if self._is_secret(found[1]) else found[0]
            ),
            text,
        )
