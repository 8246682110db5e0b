"""The agent as its prompts describe it, and the templates of these prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from arbiter.errors import ParameterError, nearest
from arbiter.memory._options import has_members, text
from arbiter.models import visible


class Placeholders(NamedTuple):
    """The `{{placeholders}}` of a template: those that it must have, and others that it may have."""

    needed: tuple[str, ...]
    others: tuple[str, ...]


_COMMON = ("agentName", "senderName", "bio", "today")
TEMPLATES: Mapping[str, Placeholders] = {
    "evaluationTemplate": Placeholders(
        ("evaluators",), ("evaluatorNames", "evaluatorExamples", "recentMessages", *_COMMON)
    ),
    "factsTemplate": Placeholders(
        ("recentMessages",), ("knownFacts", "profiles", "evaluationExamples", *_COMMON)
    ),
    "reflectionTemplate": Placeholders(
        ("recentMessages",), ("knownFacts", "entitiesInRoom", "existingRelationships", *_COMMON)
    ),
    "goalsTemplate": Placeholders(("goals", "recentMessages"), ("knownFacts", *_COMMON)),
}
"""The prompts that a character may replace, by the name of their template."""

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_GAP = re.compile(r"\n{3,}")


class Character:
    """The agent's name and bio, and its own prompts.

    `bio` holds sentences about the agent; a claim that only repeats one of them is never stored as a fact.
    `templates` replaces the task of a prompt: "evaluationTemplate" (the selector's), "factsTemplate",
    "reflectionTemplate", "goalsTemplate". `{{placeholders}}` mark the places of the material; docs/memory.md lists
    them. Arbiter adds the material that a template does not place, the quotation marks around other people's texts,
    and the form of the answer.
    """

    __slots__ = ("bio", "name", "templates")

    def __init__(
        self, name: str, bio: Sequence[str] | str = (), templates: Mapping[str, str] | None = None
    ) -> None:
        text("name", name, "Character")
        given: Any = bio
        lines: tuple[str, ...] = tuple(given) if has_members(given) else (given,)
        if not all(map(_is_text, lines)):
            raise ParameterError("Character", "bio", f"expected texts, got {bio!r:.80}.")
        self.name = name
        self.bio = lines
        self.templates = _checked({} if templates is None else templates)

    def __repr__(self) -> str:
        return f"<Character {self.name!r}>"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _checked(templates: Mapping[str, str]) -> dict[str, str]:
    """The templates. Raises `ParameterError` with all mistakes in them."""
    given: Any = templates
    if not isinstance(given, Mapping):
        raise ParameterError("Character", "templates", f"expected texts by name, got {given!r:.80}.")
    mistakes: list[str] = []
    for name, template in templates.items():
        if name not in TEMPLATES:
            mistakes.append(
                f"there is no template {name!r}. Templates: {', '.join(TEMPLATES)}.{nearest(name, TEMPLATES)}"
            )
        elif not _is_text(template) or not template.strip():
            mistakes.append(f"{name}: expected a non-empty text, got {template!r:.80}.")
        else:
            mistakes += _mistakes(name, template)
    if mistakes:
        raise ParameterError("Character", "templates", " ".join(mistakes))
    return dict(templates)


def _mistakes(name: str, template: str) -> list[str]:
    needed, others = TEMPLATES[name]
    used = dict.fromkeys(_PLACEHOLDER.findall(template))
    mistakes = [f"{name} lacks {{{{{wanted}}}}}." for wanted in needed if wanted not in used]
    known = (*needed, *others)
    for found in used:
        if found not in known:
            mistakes.append(
                f"{name} has {{{{{found}}}}}, which is no placeholder of it. "
                f"Placeholders: {', '.join(known)}.{nearest(found, known)}"
            )
    return mistakes


def composed(
    character: Character,
    name: str,
    default: str,
    material: Mapping[str, str],
    *,
    sender: str,
    today: datetime,
    notices: Sequence[str] = (),
    instructions: str = "",
    closing: str,
) -> list[BaseMessage]:
    """A prompt: the character's template of that name, or else the `default` one, with the `material` in its
    places.

    `material` maps placeholders to finished texts, in which everything that other people wrote is quoted.
    Material that the template does not place follows in the second message, in this order, before the
    `closing` line. No template replaces the `notices` of the first message. `sender` is the user's name.
    """
    template = character.templates.get(name, default)
    values = {
        "agentName": visible(character.name),
        "bio": " ".join(map(visible, character.bio)),
        "senderName": visible(sender, 100),
        "today": today.date().isoformat(),
        **material,
    }
    # One pass: a placeholder in somebody's message is never replaced.
    task = _GAP.sub("\n\n", _PLACEHOLDER.sub(lambda found: values[found[1]], template)).strip()
    added = [f"Instructions of the operator:\n{instructions}"] if instructions else []
    placed = {*_PLACEHOLDER.findall(template)}
    left = [shown for part, shown in material.items() if part not in placed and shown]
    return [
        SystemMessage("\n\n".join([task, *added, *notices])),
        HumanMessage("\n\n".join([*left, closing])),
    ]


def checked_instructions(evaluator: str, given: Any) -> str:
    """The operator's instructions for an evaluator; None for none. Raises `ParameterError`."""
    if given is None:
        return ""
    text("instructions", given, f"evaluator {evaluator!r}")
    return str(given)
