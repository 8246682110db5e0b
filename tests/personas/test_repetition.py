"""Repetition suppression: counted, not judged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from arbiter import ArbiterOS, ArbiterWarning
from arbiter.personas import GateConfig, RepetitionSuppressor, ngrams, repeated_phrases, repetition
from tests.personas.gate_support import PAM, Speaker, chat, hello
from tests.personas.personas_support import JIM
from tests.support import MODES, run, thread

SAME = ("we should go to the beach", "we should go to the park", "we should go to the bar")


def told(advisor: Any, *own: str, mode: str = "sync") -> str:
    jim = Speaker("x")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(advisor)
    app = arbiter_os.govern(chat(jim, checkpointer=InMemorySaver()))
    output = run(app, hello(*own), thread("1"), mode=mode)
    assert "repeating yourself" not in str(output)
    assert "repeating yourself" not in str(list(app.get_state_history(thread("1"))))
    return "\n".join(str(message.text) for message in jim.seen[-1] if message.type == "system")


@MODES
def test_an_agent_that_repeats_itself_gets_phrases_to_avoid(mode: str) -> None:
    """45. The messages, and the phrases of at least two of them; nothing of it stays."""
    text = told(RepetitionSuppressor([JIM]), *SAME, mode=mode)
    assert "You are repeating yourself" in text
    assert "> we should go to the park" in text
    assert "- we should go\n- should go to\n- go to the" in text
    assert "to the beach" not in text.partition("Avoid these phrases:")[2]


@MODES
def test_an_agent_that_does_not_repeat_itself_gets_no_advice(mode: str) -> None:
    for own in ((), SAME[:1], ("a b c d", "e f g h")):
        assert "repeating yourself" not in told(RepetitionSuppressor([JIM]), *own, mode=mode)


def test_phrases_without_blanks_are_shown_as_they_were_written() -> None:
    assert repeated_phrases(["我们去海边吧"] * 2) == ["我们去海", "们去海边", "去海边吧"]


def test_only_the_last_five_messages_count() -> None:
    fresh = ["one two three", "four five six", "seven eight nine", "ten eleven twelve", "red green blue"]
    assert "repeating" not in told(RepetitionSuppressor([JIM]), *SAME, *fresh)
    assert "repeating" in told(RepetitionSuppressor([JIM]), *fresh, *SAME, *SAME)


@pytest.mark.lengthy
def test_the_threshold_is_strict() -> None:
    """At the threshold nothing is said; it has to be more."""
    overlap = repetition(SAME, 3)
    for limit, speaks in ((overlap, False), (overlap - 0.01, True), (0.0, True), (1.0, False)):
        config = GateConfig(repetition_suppression_enabled=True, repetition_threshold=limit)
        assert ("repeating" in told(RepetitionSuppressor([JIM], config), *SAME)) is speaks


def test_it_is_enabled_by_agent() -> None:
    on = GateConfig(repetition_suppression_enabled=True)
    with pytest.warns(ArbiterWarning, match="'repetition' applies to no node: its settings enable it for no"):
        assert "repeating" not in told(RepetitionSuppressor([JIM], GateConfig()), *SAME)
    assert "repeating" not in told(RepetitionSuppressor([JIM, PAM], {"pam": on}), *SAME)
    assert "repeating" in told(RepetitionSuppressor([JIM, PAM], {"jim": on}), *SAME)


def test_disabled_it_applies_to_no_node() -> None:
    """It costs nothing, because it is never called."""
    on = GateConfig(repetition_suppression_enabled=True)
    assert not RepetitionSuppressor([JIM], GateConfig()).applies_to("jim", None)
    assert RepetitionSuppressor([JIM, PAM], {"pam": on}).applies_to("pam", None)


@pytest.mark.parametrize("messages", [["a b c d", "b c d", "a b c"]])
def test_phrases_are_ordered_by_frequency_then_first_appearance(messages: list[str]) -> None:
    assert repeated_phrases(messages) == ["a b c", "b c d"]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), max_size=6))
def test_phrases_are_in_two_messages_and_at_most_ten(messages: list[str]) -> None:
    found = repeated_phrases(messages)
    assert len(found) <= 10
    counts = [sum(phrase in ngrams(message, 3) for message in messages) for phrase in found]
    assert counts == sorted(counts, reverse=True)
    assert all(count >= 2 for count in counts)
