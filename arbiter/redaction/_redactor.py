"""`Redactor`: replaces what must not be kept; `SecretRedactor` does it by detectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from arbiter.errors import ParameterError
from arbiter.redaction._detectors import DETECTORS, Found, found_in
from arbiter.redaction._patterns import Patterns
from arbiter.redaction._texts import MOST_CHARACTERS, bare

Path = tuple[str | int, ...]
_BEYOND = 256
"""Characters searched beyond a cut, so that half of a secret does not stay."""
_OPENED, _CLOSED = "-----BEGIN ", "-----END "


class Redactor(Protocol):
    """Replaces what must not be kept of a value. `path` names the keys and places that lead to the value."""

    def redact(self, value: Any, path: Path) -> Any:
        """`value` without what must not be kept."""
        ...


class SecretRedactor:
    """Replaces in texts, and in texts inside of mappings, lists and tuples, what the detectors `detect` and the
    expressions `patterns` find.

    A secret becomes `mark`, with the name of the detector or expression for `{name}`. At most `most`
    characters of a text are looked at and kept: the head and the tail, with a remark in between. All the
    rest stays as it is.
    """

    def __init__(
        self,
        detect: Collection[str] = ("secrets", "cards"),
        *,
        mark: str = "[secret: {name}]",
        most: int = MOST_CHARACTERS,
        patterns: Patterns | None = None,
    ) -> None:
        for name in detect:
            if name not in DETECTORS:
                raise ParameterError("SecretRedactor", "detect", f"expected {DETECTORS}, got {name!r:.80}.")
        if most < 1_000:
            raise ParameterError(
                "SecretRedactor", "most", f"expected at least 1000 characters, got {most!r}."
            )
        self.detect = tuple(dict.fromkeys(detect))
        self.patterns = patterns
        self.mark = mark
        self.most = most

    def redact(self, value: Any, path: Path = ()) -> Any:
        """`value` with the texts in it redacted, wherever they stand: `path` makes no difference."""
        if isinstance(value, str):
            return self.text(value)
        parts: Any = value
        if isinstance(value, Mapping):
            return {key: self.redact(part) for key, part in parts.items()}
        if isinstance(value, list | tuple):
            redacted = [self.redact(part) for part in parts]
            return redacted if isinstance(value, list) else tuple(redacted)
        return value

    def text(self, text: str) -> str:
        """`text` with each secret replaced; the same text if it has none and is not too long."""
        if len(text) > self.most:
            return self._excerpt(text)
        looked_at = bare(text)[: 2 * self.most]
        found = self._found_in(looked_at)
        return self._replaced(looked_at, found, 0, len(looked_at)) if found else text

    def _excerpt(self, text: str) -> str:
        """The head and the tail of a long text, each searched a little beyond its cut."""
        head, tail = self.most * 3 // 4, self.most * 3 // 16
        first = self._part(text[: head + _BEYOND], upto=len(bare(text[:head])))
        begin = _behind_key(text, len(text) - tail)
        before = text[max(0, begin - _BEYOND) : begin]
        last = self._part(before + text[begin:], since=len(bare(before)))
        return f"{first}\n[{begin - head} characters left out]\n{last}"

    def _part(self, text: str, *, since: int = 0, upto: int | None = None) -> str:
        looked_at = bare(text)[: 2 * self.most]
        end = len(looked_at) if upto is None else upto
        return self._replaced(looked_at, self._found_in(looked_at), since, end)

    def _found_in(self, text: str) -> list[Found]:
        found = found_in(text, self.detect)
        if not self.patterns:
            return found
        return sorted([*found, *self.patterns.found_in(text)], key=lambda one: (one.start, -one.end))

    def _replaced(self, text: str, found: Sequence[Found], since: int, upto: int) -> str:
        """`text` from `since` to `upto`. A secret that is cut is replaced as a whole."""
        made: list[str] = []
        at, hidden = since, 0
        for one in found:
            if one.end <= since or one.start >= upto:
                continue
            if one.start >= hidden:
                made += (text[at : max(at, one.start)], self.mark.replace("{name}", one.detector))
            at = hidden = max(hidden, one.end)
        made.append(text[at:upto])
        return "".join(made)


def _behind_key(text: str, begin: int) -> int:
    """`begin`, or the end of the private key that has begun before it: part of a key has no sign."""
    opened = text.rfind(_OPENED, 0, begin)
    if opened < 0:
        return begin
    closed = text.find(_CLOSED, opened)
    if closed < 0:
        return len(text)
    end = text.find("-----", closed + len(_CLOSED))
    return max(begin, len(text) if end < 0 else end + 5)
