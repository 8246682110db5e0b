"""The agent as its prompts describe it."""

from __future__ import annotations

from collections.abc import Sequence

from arbiter.errors import ParameterError


class Character:
    """The agent's name and bio. `bio` holds sentences about it; a claim that only repeats one of them is
    never stored as a fact."""

    __slots__ = ("bio", "name")

    def __init__(self, name: str, bio: Sequence[str] | str = ()) -> None:
        if not _is_text(name) or not name.strip():
            raise ParameterError("Character", "name", f"expected a non-empty text, got {name!r:.80}.")
        lines: tuple[str, ...] = (bio,) if isinstance(bio, str) else tuple(bio)
        if not all(map(_is_text, lines)):
            raise ParameterError("Character", "bio", f"expected texts, got {bio!r:.80}.")
        self.name = name
        self.bio = lines

    def __repr__(self) -> str:
        return f"<Character {self.name!r}>"


def _is_text(value: object) -> bool:
    return isinstance(value, str)
