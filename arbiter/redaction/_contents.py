"""`ContentRedactor`: redacts whole states, by the names of fields as well as by what texts hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from fnmatch import translate
from re import IGNORECASE, compile, split
from typing import Any

from arbiter.redaction._detectors import found_in
from arbiter.redaction._forms import BASIC, NOT_SECRET
from arbiter.redaction._patterns import Patterns
from arbiter.redaction._redactor import Path, Redactor, SecretRedactor

_log = logging.getLogger("arbiter")
FIELDS = (
    "*password*", "*passwd*", "pwd", "*_pwd", "*passphrase*", "*secret*", "*token", "*api_key*", "*apikey*",
    "*api-key*", "*private_key*", "*privatekey*", "*private-key*", "*access_key*", "*accesskey*", "*access-key*",
    "authorization", "*-authorization", "cookie", "cookies", "set-cookie", "*credential*",
)  # fmt: skip
"""Names of fields whose values are always secrets, whatever they look like. Case does not matter."""
_FOLDER = compile(r"""[/~]|\.{1,2}(?![^/\\"'])|[A-Za-z]:[\\/]""")
"""How the name of a folder begins: `pwd` is short for a password, and for the folder in which a program works."""
_NOT_SECRET = compile(rf"(?i){NOT_SECRET}\Z")
_UNREAD = compile(r"\\(?:[ubf]|\\\\)")
_JSON_LEVELS = 2
LONGEST_JSON = 64 * 1024
"""Characters of a text up to which JSON in it is read."""
_PAIR = compile(r"""(?:(\\{0,7}["'])([^"'\\]{1,100})\1\s{0,20}:\s{0,20}|\b(\w{1,100})=)b?(\\{0,7})(["'])""")
"""A name, and the quote that opens its text, in JSON that is cut or is inside of JSON, or as Python prints it."""
_WHOLE = 2**40
_INTEGERS = 2**63
"""JSON has whole numbers below."""
_FAILED: Mapping[str, Any] = {"$secret": "failed"}
_LONG = 1_000_000
"""A whole number from here on may be the number of a card or telephone."""


class ContentRedactor:
    """Redacts mappings, lists and texts, and JSON inside of texts, two levels deep.

    The value of a field that `keys` or the built-in names name becomes `{"$secret": "field"}`; what the
    detectors `detect`, and the RE2 expressions `patterns` by their names, find in a text becomes
    `[secret: NAME]`. `also` are further redactors, which are asked in order about the whole, then about each
    part that they left as it was, with its path; one that raises, or returns what is no JSON, leaves
    `{"$secret": "failed"}`, never the value. `by_rule` names the entries of the whole whose keys are names of rules
    and not of fields: a policy may well be named for the passwords that it looks for.
    """

    def __init__(
        self,
        *,
        keys: Iterable[str] = (),
        detect: Collection[str] = ("secrets", "cards"),
        patterns: Mapping[str, str] | None = None,
        also: Iterable[Redactor] = (),
        by_rule: Collection[str] = (),
    ) -> None:
        names = "|".join(translate(name) for name in (*FIELDS, *keys))
        self._names = compile(names, IGNORECASE)
        self._known: dict[str, bool] = {}
        self._harmless: set[str] = set()
        """Keys that are no secrets themselves."""
        self._signs = sorted({_sign_of(name) for name in (*FIELDS, *keys)})
        self._detect = tuple(detect)
        self._patterns = Patterns(patterns or {})
        self._texts = SecretRedactor(detect, most=_WHOLE, patterns=self._patterns)
        self._also = tuple(also)
        self._told = False
        self._by_rule = {(name,) for name in by_rule}

    def is_clean(self, dumped: str) -> bool:
        """True if contents in this form, as lines of JSON, surely have nothing to redact.

        A quick look: False may still turn out to be clean.
        """
        if self._also or self._patterns or not dumped.isascii():
            return False
        # An escaped character may be a part of a name in JSON that is inside of a text, or an invisible one. Three
        # backslashes are of JSON that is inside of such JSON.
        if "\x7f" in dumped or ("\\" in dumped and _UNREAD.search(dumped) is not None):
            return False
        folded = dumped.lower()
        if any(map(folded.__contains__, self._signs)):
            return False
        looked_at = [dumped]
        if "spoken" in self._detect:  # it reads lines: each text is one, and each text of JSON in a text
            lines = dumped.replace('\\"', "\0").replace('"', "\n")
            looked_at = [lines.replace("\0", '"'), _unescaped(lines.replace("\0", "\n"))]
        return not any(found_in(_unescaped(text), self._detect) for text in looked_at)

    def redact(self, value: Any, path: Path = ()) -> Any:
        """`value` redacted. Never raises."""
        try:
            redacted: Any = self._value(value, path, _JSON_LEVELS)
            for redactor in self._also:
                redacted = self._asked(redactor, redacted, path)
            left: object = redacted
            if isinstance(value, Mapping) and not isinstance(left, Mapping):
                return dict(_FAILED)  # readers of whole contents expect a mapping
            return redacted
        except Exception:
            return dict(_FAILED)

    def _asked(self, redactor: Redactor, value: Any, path: Path) -> Any:
        """`value` as a redactor leaves it and the parts of it."""
        try:
            answer: Any = redactor.redact(value, path)
        except BaseException as error:  # also SystemExit: it would end the thread that writes
            if isinstance(error, KeyboardInterrupt):
                raise
            return self._failed(redactor, type(error).__name__)
        return self._answered(redactor, answer, value, path)

    def _answered(self, redactor: Redactor, answer: Any, value: Any, path: Path) -> Any:
        """A redactor's answer about `value`, after it was asked about the parts that it has not made itself."""
        left: object = answer
        given: object = value
        before: Any = answer  # without parts to compare with, each part is asked about
        if isinstance(left, Mapping):
            if isinstance(given, Mapping):
                before = value
            if all(isinstance(key, str) for key in answer):
                return {
                    key: self._part(redactor, part, before.get(key, part), (*path, key))
                    for key, part in answer.items()
                }
        elif isinstance(left, list | tuple):
            if isinstance(given, list) and len(value) == len(answer):
                before = value
            return [self._part(redactor, part, before[at], (*path, at)) for at, part in enumerate(answer)]
        elif left is None or isinstance(left, float) or (isinstance(left, int) and abs(left) < _INTEGERS):
            return left
        elif isinstance(left, str):
            return left.encode(errors="backslashreplace").decode()
        return self._failed(redactor, f"a return value of type {type(answer).__name__}")

    def _part(self, redactor: Redactor, part: Any, was: Any, path: Path) -> Any:
        # A redactor that goes through the whole itself is not asked about what it has made.
        if part is was or (isinstance(part, str | int | float) and part == was):
            return self._asked(redactor, part, path)
        return self._answered(redactor, part, was, path)

    def _failed(self, redactor: Redactor, why: str) -> Any:
        if not self._told:  # without the exception's text, which may hold what is to be redacted
            self._told = True
            _log.warning(
                "redactor %s: %s; what it was asked about is not kept. (This is reported once.)",
                type(redactor).__name__, why,
            )  # fmt: skip
        return dict(_FAILED)

    def _value(self, value: Any, path: Path, levels: int) -> Any:
        parts: Any = value
        if isinstance(value, str):
            return self._text(value, path, levels)
        if isinstance(value, Mapping):
            are_fields = path not in self._by_rule
            found: dict[Any, Any] = {}
            for key, part in parts.items():
                name = self._key(key)
                while name in found:  # several keys are secrets
                    name = f"{name} {len(found)}"
                is_secret = are_fields and self._is_field(str(key), part)
                found[name] = (
                    {"$secret": "field"} if is_secret else self._value(part, (*path, str(key)), levels)
                )
            return found
        if isinstance(value, list | tuple):
            return [self._value(part, (*path, at), levels) for at, part in enumerate(parts)]
        if isinstance(value, int) and abs(value) >= _LONG:
            digits = str(value)
            return value if (redacted := self._texts.text(digits)) == digits else redacted
        return value

    def _key(self, key: Any) -> Any:
        """A key without the secret that it is or holds."""
        if not isinstance(key, str) or key in self._harmless:
            return key
        redacted = self._texts.text(key)
        if redacted == key and len(self._harmless) < 10_000:
            self._harmless.add(key)
        return redacted

    def _is_field(self, name: str, part: Any) -> bool:
        """True for a value that its name makes a secret. In Docker's settings `auth` has a name with a password."""
        if self._is_secret(name):
            text: Any = part
            if isinstance(part, dict):
                text = text.get("$path")  # a `Path` as a ledger has it
            return part not in (None, "", [], {}) and not (isinstance(text, str) and _is_folder(name, text))
        if name != "auth" or "secrets" not in self._detect:
            return False
        return isinstance(part, str) and BASIC.match(part) is not None

    def _is_secret(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._names.match(name) is not None and _NOT_SECRET.match(name) is None
            if len(self._known) < 10_000:
                self._known[name] = known
        return known

    def _text(self, text: str, path: Path, levels: int) -> str:
        inside = _json_in(text) if levels else None
        if inside is None:
            return self._texts.text(self._without_pairs(text))
        redacted = self._value(inside, path, levels - 1)
        return text if redacted == inside else json.dumps(redacted, ensure_ascii=False)

    def _without_pairs(self, text: str) -> str:
        if not any(map(text.casefold().__contains__, self._signs)):
            return text
        made: list[str] = []
        at = 0
        for found in _PAIR.finditer(text):
            name = found[2] or found[3]
            if found.start() < at or not self._is_secret(name) or _is_folder(name, text, found.end()):
                continue
            # A quote with more backslashes is part of the text; one with fewer closes what is around it.
            closing = compile(rf"(?<!\\)\\{{0,{len(found[4])}}}{found[5]}").search(text, found.end())
            made += (text[at : found.end()], "[secret: field]")
            at = len(text) if closing is None else closing.start()
        return "".join((*made, text[at:]))


def _is_folder(name: str, text: str, at: int = 0) -> bool:
    return name.casefold() == "pwd" and _FOLDER.match(text, at) is not None


def _sign_of(name: str) -> str:
    """The longest part of a pattern that is in all names that fit it, without case."""
    return max(split(r"[*?]|\[.*?\]", name), key=len).casefold()


def _unescaped(dumped: str) -> str:
    """Texts as they are, from their JSON: a letter in the place of a line's end would hide what begins after it."""
    if "\\" in dumped:
        escapes = (("\\\\", "\0"), ("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ('\\"', '"'), ("\0", "\\"))
        for escaped, char in escapes:
            dumped = dumped.replace(escaped, char)
    return dumped


def _json_in(text: str) -> Any:
    """The JSON object or list that the text is; None if it is none, or too long to be read."""
    if text[:1] not in ("{", "[") or len(text) > LONGEST_JSON:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
