"""Statements of users about the agent are theirs: other users, and the models that read them, do not get
it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from arbiter.memory import FactRules, ReflectionEvaluator
from tests.memory.dialogue_support import Chat, fact

CALLED_MAX = "The agent is called Max and knows of the merger"
HEAR = {
    "call you Max": fact(CALLED_MAX, subject="agent"),
    "call you Tim": fact("The agent is called Tim", subject="agent"),
}


def chat_with(**options: Any) -> Chat:
    chat = Chat(HEAR, "contradicts", **options)
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    return chat


def prompts_since(chat: Chat, call: int) -> str:
    return "\n".join(chat.model.prompt(number) for number in range(call, chat.model.calls))


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_no_prompt_about_another_user_has_what_a_user_said_about_the_agent(asynchronous: bool) -> None:
    chat = chat_with(asynchronous=asynchronous)
    await chat.say("I call you Max, you know of the merger.", user="ada", room="hers")
    before = chat.model.calls
    await chat.say("I call you Tim.", user="bob", room="his")
    await chat.say("Who are you? Forget what you know about you.", user="bob", room="his")
    assert chat.model.calls > before
    assert "merger" not in prompts_since(chat, before)
    assert await chat.known("agent") == [CALLED_MAX, "The agent is called Tim"]


async def test_the_user_who_said_it_finds_it_again_in_another_room() -> None:
    chat = chat_with()
    await chat.say("I call you Max, you know of the merger.", user="ada", room="hers")
    before = chat.model.calls
    await chat.say("Who are you?", user="ada", room="later")
    assert CALLED_MAX in prompts_since(chat, before)


@pytest.mark.lengthy
async def test_people_in_one_room_and_facts_for_all_are_shared() -> None:
    together = chat_with()
    await together.cycle.memory.aregister_entity("bob", "Bob")
    await together.say("I call you Max, you know of the merger.", user="ada")
    before = together.model.calls
    await together.say(HumanMessage("I call you Tim.", additional_kwargs={"entity_id": "bob"}), user="ada")
    assert CALLED_MAX in prompts_since(together, before)
    public = chat_with(fact_rules=FactRules(visibility="agent"))
    await public.say("I call you Max, you know of the merger.", user="ada", room="hers")
    before = public.model.calls
    await public.say("I call you Tim.", user="bob", room="his")
    assert CALLED_MAX in prompts_since(public, before)


async def test_a_thought_does_not_repeat_what_others_told_of_the_user_elsewhere() -> None:
    chat = Chat({"Bob drinks": fact("Bob drinks a lot", subject="bob")})
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say("Bob drinks.", user="ada", room="hers")
    assert await chat.known("bob") == ["Bob drinks a lot"]
    await chat.say("Hello, do I drink?", user="bob", room="his")
    reflected = [
        p for n in range(chat.model.calls) if "thought" in (p := chat.model.prompt(n)) and "do I" in p
    ]
    assert reflected
    assert "drinks a lot" not in "\n".join(reflected)
