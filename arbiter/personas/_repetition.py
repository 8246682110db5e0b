"""Repetition suppression: gives a repetitive agent a list of phrases to avoid, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from arbiter.advice import Advisor
from arbiter.history._items import History
from arbiter.instructions import Instruction
from arbiter.models import quote
from arbiter.personas._characters import Persona
from arbiter.personas._config import GateConfig, all_configs, checked_configs, config_for
from arbiter.personas._conversation import (
    AgentOf,
    Cast,
    nobody_known,
)
from arbiter.personas._texts import as_written, ngrams, repetition, tokens

RECENT = 5
MOST_PHRASES = 10


class RepetitionSuppressor(Advisor):
    """Lists phrases for an agent to avoid when its last five messages overlap too much.

    It acts when the mean overlap of their 3-grams (`repetition`) is above `repetition_threshold`. A `config`
    applies to all agents, or by agent with "*" for the others; only agents with
    `repetition_suppression_enabled` are checked. Mean overlap falls with the length of messages, so equal
    openings of long messages go unnoticed. Agents are assigned to nodes as for an `Intervention`.
    """

    # Comparing texts of thousands of words takes milliseconds.
    blocking = True

    def __init__(
        self,
        agents: Persona | str | Iterable[Persona | str] = (),
        config: GateConfig | Mapping[str, GateConfig] | None = None,
        *,
        name: str = "repetition",
        key: str = "messages",
        agent_of: AgentOf | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes)
        self.cast = Cast(
            agents,
            key=key,
            agent_of=agent_of,
            nodes=self.target_nodes,
            instructions=self.target_instructions,
        )
        self._warned = False
        self.messages_key = key
        enabled = GateConfig(repetition_suppression_enabled=True) if config is None else config
        self.config = checked_configs(enabled, self.cast, f"advisor {name!r}")
        self._on = any(found.repetition_suppression_enabled for found in all_configs(self.config))
        if not self._on:
            self.when_idle = (
                "its settings enable it for no agent",
                "Set repetition_suppression_enabled=True, or leave it out.",
            )

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        return self._on and super().applies_to(node, instruction)

    def governs(self, nodes: Collection[str]) -> None:
        self.cast.known_nodes.update(nodes)

    def advise(self, history: History, state: Mapping[str, Any]) -> str | None:
        item = history.item
        agent = self.cast.acting(item)
        config = config_for(self.config, self.cast, agent)
        if agent is None and not self._warned and not self.cast.is_known:
            self._warned = True
            raise nobody_known(self.cast, "no repetition is looked for", self.name)
        if not config.repetition_suppression_enabled or agent is None:
            return None
        messages = [event.text for event in self.cast.before(history, agent).actions_of(agent, last=RECENT)]
        if len(messages) < 2 or repetition(messages, 3) <= config.repetition_threshold:
            return None
        phrases = "\n".join(f"- {phrase}" for phrase in repeated_phrases(messages))
        shown = "\n".join(quote(message) for message in messages)
        return (
            f"You are repeating yourself. These are your last messages:\n{shown}\n\n"
            f"Say something else, in other words. Avoid these phrases:\n{phrases}"
        )


def repeated_phrases(messages: Sequence[str], most: int = MOST_PHRASES) -> list[str]:
    """The 3-grams that at least two of `messages` share: the most frequent first, then the earliest."""
    counts = Counter(ngram for message in messages for ngram in ngrams(message, 3))
    first: dict[str, int] = {}
    for message in messages:
        words = tokens(message)
        for at in range(len(words) - 2):
            first.setdefault(" ".join(words[at : at + 3]), len(first))
    shared = [ngram for ngram, count in counts.items() if count > 1]
    return [as_written(each) for each in sorted(shared, key=lambda each: (-counts[each], first[each]))[:most]]
