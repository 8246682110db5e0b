"""Wishes to forget, in dialogues: the model reads them in any language, code carries them out."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS
from arbiter.errors import ConfigurationError
from arbiter.memory import (
    EvaluationCycle,
    FactEvaluator,
    FactRules,
    FactsProvider,
    GoalEvaluator,
    ReflectionEvaluator,
    TrustEvaluator,
    _quiet,
    memory_tools,
    open_store,
)
from arbiter.memory._cursors import Cursors
from arbiter.memory._tombstones import Forgettings, Tombstones
from arbiter.memory.facts._forgetting import Forgetting
from tests.memory.memory_support import Clock
from tests.scripted import Scripted

MESSAGE = re.compile(
    r"Message (\S+) of ([^\n]*):\n\[quoted text begins\]\n> (.*?)\n\[quoted text ends\]", re.S
)
KNOWN = re.compile(r"^> (\S+) \((?:fact|status|opinion), about ([^)]*)\): (.*)$", re.M)
EVERYTHING = "Shall I forget everything I know about you?"
OSLO, CAT = "User lives in Oslo", "User has a cat called Pixel"

Said = tuple[str, str]
"""A message's id and text."""
Reading = Callable[[Said, Mapping[str, str]], Mapping[str, Any]]
"""The reading of a message by a model, given the known facts of its prompt: claims by id."""


def claims(*texts: str | dict[str, Any]) -> Reading:
    def read(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        found = [{"claim": text, "type": "fact"} if isinstance(text, str) else text for text in texts]
        return {"claims": [{"source_message_ids": [said[0]], **one} for one in found]}

    return read


def forget(*words: str, named: bool = True, **parts: Any) -> Reading:
    """Wants those known facts forgotten whose claim has one of the words, and says the other `parts`."""

    def read(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        ids = [id for id, claim in known.items() if any(word in claim for word in words)] or ["unlisted"]
        asked = [{"id": id, "message_id": said[0]} for id in ids] if named else ids
        return {"forget": asked, **parts}

    return read


def off_record(*ids: str) -> Reading:
    return lambda said, known: {"off_record": [*(ids or (said[0],))]}


def everything(decision: bool | None) -> Reading:
    return lambda said, known: {"forget_everything": decision}


class Talk:
    """A governed chat of one node; `reads` is what a good model finds in messages with these words."""

    def __init__(
        self,
        reads: Mapping[str, Reading | Iterable[Reading]] | None = None,
        *,
        store: BaseStore | None = None,
        clock: Clock | None = None,
        evaluators: Iterable[Any] = (),
        model: bool = True,
        thought: str = "We talk.",
        **options: Any,
    ) -> None:
        self.reads = reads or {}
        self.rooms: dict[str, None] = {}
        self.thought = thought
        self.clock = clock or Clock()
        self.model = Scripted(answers=[self._answer])
        self.store = InMemoryStore() if store is None else store
        self.shown = ""
        self.reply = "ok"
        options.setdefault("conversation_length", 2)
        if model:
            options["evaluator_model"] = self.model
        self.cycle = EvaluationCycle(store=self.store, clock=self.clock, **options)
        self.memory = self.cycle.memory
        self.arbiter_os = ArbiterOS()
        self.arbiter_os.add_evaluation_cycle(self.cycle)
        for evaluator in evaluators or [FactEvaluator()]:
            self.arbiter_os.add_evaluator(evaluator)
        self.arbiter_os.add_advisor(FactsProvider())
        graph = StateGraph(MessagesState).add_node("reply", self._reply).add_edge(START, "reply")
        self.app: Any = self.arbiter_os.govern(
            graph.compile(checkpointer=InMemorySaver()), {"reply": "RESPOND"}
        )

    def say(self, text: str, *, user: str = "ada", room: str = "room", id: str | None = None) -> Talk:
        self.shown = ""
        self.rooms[room] = None
        config: Any = {"configurable": {"thread_id": room, "user_id": user}}
        self.app.invoke({"messages": [HumanMessage(text, id=id)]}, config)
        return self

    def without_checkpoints(self) -> Callable[[str], None]:
        """Says a text in a call that sends the whole conversation, as clients without a checkpointer do."""
        graph = StateGraph(MessagesState).add_node("reply", self._reply).add_edge(START, "reply")
        app: Any = self.arbiter_os.govern(graph.compile(), {"reply": "RESPOND"})
        so_far: list[tuple[str, str]] = []

        def say(text: str) -> None:
            config: Any = {"configurable": {"thread_id": "room", "user_id": "ada"}}
            said = app.invoke({"messages": [*so_far, ("human", text)]}, config)["messages"]
            so_far[:] = [(message.type, message.text) for message in said]

        return say

    def known(self, user: str = "ada") -> list[str]:
        return sorted(fact.claim for fact in self.memory.facts(user, state=None))

    @property
    def result(self) -> Any:
        item = self.arbiter_os.history.last(node="reply")
        assert item is not None
        return item.evaluation_results["GET_FACTS"]

    @property
    def prompts(self) -> str:
        return "\n".join(self.model.prompt(call) for call in range(self.model.calls))

    def recorded(self) -> str:
        """The results, errors and traces of all turns in all rooms."""
        items = [item for room in self.rooms for item in self.arbiter_os.history_of(thread_id=room).items()]
        return str([(dict(i.evaluation_results), i.evaluation_errors, i.evaluator_trace) for i in items])

    def dump(self) -> str:
        items = self.store.search((), limit=10_000)
        return json.dumps([[*item.namespace, item.key, item.value] for item in items], ensure_ascii=False)

    def _reply(self, state: MessagesState) -> dict[str, Any]:
        self.shown = "\n".join(message.text for message in state["messages"] if message.type == "system")
        return {"messages": [AIMessage(self.reply)]}

    def _answer(self, prompt: str) -> str:
        if "The new messages:" not in prompt:
            return json.dumps(
                {"thought": self.thought, "facts": [], "relationships": [], "goals": [], "risk": 0.5}
            )
        before, new = prompt.split("The new messages:")
        known = {id: claim for id, _, claim in KNOWN.findall(before)}
        answer: dict[str, Any] = {"claims": []}
        for id, _, text in MESSAGE.findall(new):
            for words, readings in self.reads.items():
                if words in text:
                    for read in [readings] if callable(readings) else readings:
                        for part, found in read((id, text), known).items():
                            answer[part] = (
                                [*answer.get(part, []), *found] if isinstance(found, list) else found
                            )
        return json.dumps(answer)


# Any words, any language --------------------------------------------------------------------------

WISHES = [
    ("pls forgett what i said about my salary", "User earns 85k a year", "85k"),
    ("Forget my salary.", "User earns 85k a year", "85k"),
    ("Please delete my address.", "User lives near the Elm park in Bristol", "Elm"),
    ("Could you remove the bit about my pay?", "User earns 85k a year", "85k"),
    ("Vergiss bitte, dass ich in Köln wohne.", "Der Nutzer wohnt in Köln", "Köln"),
    ("Por favor olvida lo que te dije de mi jefe.", "El jefe del usuario es Paco", "Paco"),
    ("Oublie que j'habite à Lyon, s'il te plaît.", "L'utilisateur habite à Lyon", "Lyon"),
    ("请忘记我住在北京", "用户住在北京", "北京"),
    ("忘れてください、私の住所", "ユーザーは大阪に住んでいる", "大阪"),
    ("Пожалуйста, забудь мой адрес", "Пользователь живёт в Омске", "Омск"),
    ("Zapomnij o mojej pracy.", "Użytkownik pracuje w Acme", "Acme"),
    ("Esqueça o que eu disse sobre a Ana.", "O usuário tem uma irmã, Ana", "Ana"),
    ("انسَ عنواني من فضلك", "المستخدم يعيش في القاهرة", "القاهرة"),
]


@pytest.mark.parametrize(("wish", "claim", "word"), WISHES)
def test_a_wish_in_any_words_is_carried_out_at_once(wish: str, claim: str, word: str) -> None:
    """Also in a long conversation, whose messages are not read yet."""
    talk = Talk({"first": claims(claim, CAT), wish: forget(word)})
    talk.say("first things")
    talk.cycle.conversation_length = 32
    talk.say(wish)
    assert talk.known() == [CAT]
    assert talk.result.metadata["forgotten"] == 1
    assert word not in talk.dump()


@pytest.mark.parametrize(
    "idiom",
    [
        "My therapist told me: forget everything. Funny advice.",
        "Forget Paris, we are going to Rome!",
        "A customer wrote: please delete all my data. What should I answer?",
        "Oh man, forget all of it, I need a holiday.",
        "Honestly, forget everything, I'm exhausted.",
        "The title of the film is Forget Everything.",
    ],
)
def test_an_idiom_or_a_quotation_deletes_nothing(idiom: str) -> None:
    talk = Talk({"first": claims("User was born in Paris", CAT)})
    talk.say("first things").say(idiom)
    assert talk.known() == [CAT, "User was born in Paris"]
    assert "forgotten" not in talk.result.feedback


@pytest.mark.parametrize("before", [1_000, 5_000, 7_000, 90_000])
def test_a_wish_at_the_end_of_a_long_message_is_carried_out_at_once(before: int) -> None:
    talk = Talk(
        {"Oslo": claims(OSLO), "where I live": forget("Oslo"), "Pixel": claims(CAT)}, conversation_length=32
    )
    talk.say("I live in Oslo")
    assert talk.arbiter_os.drain(10)
    assert talk.known() == [OSLO]
    talk.say("very " * (before // 5) + "long. My cat is called Pixel. Please forget where I live.")
    assert talk.known() == [CAT]


def test_a_message_that_forgets_one_thing_teaches_another() -> None:
    wish = "Forget what I said about Bergen, I live in Portland."
    talk = Talk(
        {
            "in Bergen": claims("User lives in Bergen"),
            wish: [claims("User lives in Portland"), forget("Bergen")],
        }
    )
    talk.say("I live in Bergen.").say(wish)
    assert talk.known() == ["User lives in Portland"]
    assert "Bergen" not in talk.dump()
    talk.say("And now?").say("And then?")
    assert "Bergen" not in talk.model.prompt()


def test_a_fact_that_is_stated_again_later_is_learned_again() -> None:
    talk = Talk({"called Pixel": claims(CAT), "about my cat": forget("Pixel")})
    talk.say("I have a cat called Pixel.").say("Forget about my cat.")
    assert talk.known() == []
    talk.clock.pass_by(days=40)
    talk.say("I changed my mind: I have a cat called Pixel.", room="later")
    assert talk.known() == [CAT]


def test_reading_the_same_messages_again_does_not_bring_it_back() -> None:
    talk = Talk({"called Pixel": claims(CAT), "about my cat": forget("Pixel")})
    talk.say("I have a cat called Pixel.").say("Forget about my cat.")
    for item in talk.store.search(("arbiter", "agent", "cursors")):
        talk.store.delete(item.namespace, item.key)
    talk.say("Hello again")
    assert talk.known() == []
    assert "I have a cat called Pixel" not in talk.model.prompt()


@pytest.mark.parametrize(
    "careless",
    [
        CAT,
        "The user does not want their cat Pixel to be remembered",
        "User asked to forget that they have a cat called Pixel",
        "Der Nutzer möchte, dass Pixel vergessen wird",
    ],
)
def test_a_claim_that_repeats_the_wish_is_not_learned(careless: str) -> None:
    """A careless model lists what is to be forgotten as a claim, or the wish itself."""
    wish = "Please forget that I have a cat called Pixel. I deleted my old account, too."
    account = "User has deleted an old account"
    talk = Talk({"I have a cat": claims(CAT), wish: [forget("Pixel"), claims(careless, account)]})
    talk.say("I have a cat called Pixel").say(wish)
    assert talk.known() == [account]
    assert "Pixel" not in talk.dump()
    assert talk.result.metadata["forgotten"] == 1


@pytest.mark.lengthy
def test_a_wish_may_mean_one_of_many_records() -> None:
    """The old one is among the records that a model is shown."""
    texts = [f"User has bought thing number {n}" for n in range(60)]
    talk = Talk({"first": claims("User earns 85k a year"), "list": claims(*texts), "salary": forget("85k")})
    talk.say("first things")
    talk.clock.pass_by(days=1)
    talk.say("my list").say("Forget my salary")
    assert talk.known() == sorted(texts)


@pytest.mark.lengthy
def test_a_wish_that_no_table_knows_may_mean_one_of_many_records(any_store: BaseStore) -> None:
    """The model does not see the record, and says so; then it is shown more."""
    talk = Talk({"Ne tartsd": forget("Oslo")}, store=any_store)
    talk.memory.remember("ada", OSLO)
    talk.clock.pass_by(days=1)
    for number in range(40):
        talk.memory.remember("ada", f"User owns thing {number}")
    talk.say("Ne tartsd nyilván, ahol lakom.")
    assert (OSLO in talk.known(), talk.result.metadata["llm_calls"]) == (False, 2)


def test_superseded_records_can_be_forgotten_too() -> None:
    old = {"claim": "User lives in Köln", "type": "status", "slot": "home", "value": "Köln"}
    new = {"claim": "User lives in Rome", "type": "status", "slot": "home", "value": "Rome"}
    talk = Talk({"Köln": claims(old), "Rome": claims(new), "addresses": forget("lives in")})
    talk.say("I live in Köln").say("I live in Rome now").say("Delete all my addresses")
    assert talk.known() == []


# Off the record -----------------------------------------------------------------------------------


class Spy(Embeddings):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.seen += texts
        return [[1.0, 0.1] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.mark.parametrize(
    "text",
    [
        "Off the record: I am quitting in May.",
        "Entre nosotros: voy a dejar mi trabajo, quitting.",
        "Unter uns, ich kündige. quitting",
        "Just off the record: quitting",
        "Merk dir das nicht: quitting",
        "ARAMIZDA KALSIN: quitting",
        "ΜΕΤΑΞΥ ΜΑΣ: quitting",
        "ここだけの話、quitting",
    ],
)
def test_a_message_that_begins_off_the_record_reaches_no_model_embedder_store_trace_or_log(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    spy = Spy()
    store = InMemoryStore(index={"dims": 2, "embed": spy, "fields": ["claim"]})
    evaluators = [FactEvaluator(), ReflectionEvaluator(), GoalEvaluator(), TrustEvaluator()]
    talk = Talk({"hello": claims(OSLO)}, store=store, evaluators=evaluators, max_llm_calls_per_turn=8)
    talk.memory.create_goal("room", "Find a flat", ["look"], entity_id="ada")
    talk.say("hello there").say(text).say("and now something else")
    for place in (talk.prompts, talk.dump(), "\n".join(spy.seen), talk.recorded(), caplog.text):
        assert "quitting" not in place
    assert "something else" in talk.prompts
    assert "something else" in "\n".join(spy.seen)


@pytest.mark.parametrize("symbol", ["🤰", "☪", "€"])
def test_a_symbol_off_the_record_reaches_no_model(symbol: str) -> None:
    """A gesture beside the phrase says nothing."""
    talk = Talk({"hello": claims(OSLO)})
    talk.say("hello there").say(f"Off the record: {symbol}").say("Don't tell anyone 🙏🏽")
    assert symbol not in talk.prompts
    assert "tell anyone 🙏🏽" in talk.prompts


@pytest.mark.parametrize("wish", [forget("Pixel"), off_record("m1")], ids=["forget", "off the record"])
def test_the_agents_answer_to_a_wish_is_shown_to_no_later_call(wish: Reading) -> None:
    """It may repeat what it has forgotten."""
    talk = Talk({"Pixel is": claims(CAT), "please": wish})
    talk.say("Pixel is my cat", id="m1")
    talk.reply = "Done, your cat Pixel is forgotten"
    talk.say("Forget my cat, please", id="m2")
    calls = talk.model.calls
    talk.reply = "ok"
    talk.say("I like tea").say("And biscuits")
    later = "\n".join(talk.model.prompt(call) for call in range(calls, talk.model.calls))
    assert "biscuits" in later
    assert "Pixel" not in later


BARE = (
    "Merk dir das nicht!",
    "merke dir das nicht",
    "Please don't tell anyone!",
    "Off the record.",
    "ok, this is confidential, thanks",
    "Das bleibt unter uns.",
    "Resta tra noi",
    "不要记录",
)


@pytest.mark.parametrize("wish", BARE)
def test_a_phrase_alone_that_is_about_the_message_before_is_a_wish(wish: str) -> None:
    """Before something else, the same words put that off the record."""
    talk = Talk({"Pixel": claims(CAT), wish: forget("Pixel")})
    talk.say("Mein Kater heißt Pixel").say(wish)
    assert talk.known() == []


@pytest.mark.parametrize("wish", BARE)
def test_a_phrase_alone_that_is_about_the_next_message_is_a_wish(wish: str) -> None:
    talk = Talk({"Pixel": [claims(CAT), off_record("m2")]})
    talk.say(wish).say("Mein Kater heißt Pixel", id="m2")
    assert wish in talk.model.prompt().split("The new messages:")[0]
    assert talk.known() == []


def test_a_message_that_a_model_sees_to_be_off_the_record_is_shown_to_no_later_call() -> None:
    spy = Spy()
    store = InMemoryStore(index={"dims": 2, "embed": spy, "fields": ["claim"]})
    secret = "Sag das bitte keinem weiter: ich kündige im Mai"
    talk = Talk(
        {"kündige": [claims("Der Nutzer kündigt"), off_record()]},
        store=store,
        evaluators=[FactEvaluator(), ReflectionEvaluator()],
        max_llm_calls_per_turn=8,
    )
    talk.say(secret)
    assert talk.known() == []
    assert talk.result.metadata["off_record"] == 1
    calls, seen = talk.model.calls, len(spy.seen)
    talk.say("Wie geht es dir?").say("Und sonst?")
    later = "\n".join(talk.model.prompt(call) for call in range(calls, talk.model.calls))
    assert "kündige" not in later + talk.dump() + "\n".join(spy.seen[seen:])


def test_a_conversation_that_is_sent_anew_keeps_its_messages_off_the_record() -> None:
    """Its messages have other ids in each call: in the calls of providers, too, which come first."""
    spy = Spy()
    store = InMemoryStore(index={"dims": 2, "embed": spy, "fields": ["claim"]})
    for _ in range(2):  # also by a process that has not seen the conversation before
        talk = Talk({"kündige": off_record(), "hello": claims(OSLO)}, store=store, conversation_length=8)
        say = talk.without_checkpoints()
        say("hello there")
        say("Sag das bitte keinem: ich kündige im Mai")
        seen = len(spy.seen)
        for text in ("Wie geht es dir?", "Und sonst?", "Aha"):
            say(text)
        assert talk.known() == [OSLO]
        assert any("Und sonst" in text for text in spy.seen[seen:])
        assert "kündige" not in "\n".join(spy.seen[seen:]) + talk.dump()


def test_no_guess_of_a_forgotten_text_can_be_checked_against_the_ids_of_another_store() -> None:
    """Messages without ids get them from their texts and a random key of the store."""
    buried: list[Any] = []
    for _ in range(2):
        talk = Talk({"Pixel": claims(CAT), "Forget": forget("Pixel")})
        say = talk.without_checkpoints()
        say("My cat is called Pixel")
        say("Forget my cat")
        assert talk.known() == []
        [tombstone] = talk.store.search(("arbiter", "agent", "tombstones", "room"))
        buried.append(set(tombstone.value["messages"]))
    assert all(buried)
    assert buried[0].isdisjoint(buried[1])


@pytest.mark.lengthy
def test_records_without_another_source_go_with_their_message() -> None:
    talk = Talk({"I live": claims(OSLO), "Pixel": claims(CAT), "earlier": off_record("m1")})
    talk.say("I live in Oslo", id="m1").say("My cat is called Pixel", id="m2").say("I live in Oslo", room="b")
    talk.say("Don't keep what I said earlier", id="m3")
    assert talk.known() == [CAT, OSLO]
    talk = Talk({"I live": claims(OSLO), "Pixel": claims(CAT), "earlier": off_record("m1")})
    talk.say("I live in Oslo", id="m1").say("My cat is called Pixel", id="m2")
    talk.say("Don't keep what I said earlier", id="m3")
    assert talk.known() == [CAT]


@pytest.mark.parametrize("text", ["I moved to Oslo. It is very quiet here.", "Unter uns wohnt ein Hund."])
def test_nothing_else_is_off_the_record(text: str) -> None:
    talk = Talk({text: claims(OSLO)})
    assert talk.say(text).known() == [OSLO]


@pytest.mark.lengthy
def test_forgotten_words_are_nowhere_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    """In no record, no thought, no later prompt, query, trace or log; the history has counts and ids."""
    caplog.set_level(logging.DEBUG)
    spy = Spy()
    store = InMemoryStore(index={"dims": 2, "embed": spy, "fields": ["claim"]})
    pixel = {"claim": CAT, "type": "fact", "slot": "pet", "value": "Pixel"}
    talk = Talk(
        {"cat": claims(pixel), "Oslo": claims(OSLO), "Forget that": forget("Pixel")},
        store=store,
        evaluators=[ReflectionEvaluator(), FactEvaluator(), GoalEvaluator(), TrustEvaluator()],
        thought="Pixel is a lovely cat.",
        max_llm_calls_per_turn=8,
    )
    talk.memory.create_goal("room", "Find a flat", ["look"], entity_id="ada")
    talk.say("My cat is called Pixel").say("I live in Oslo").say("Where is Pixel?", room="b")
    assert "Pixel" in talk.dump()
    talk.thought = "We talk."
    talk.say("Forget that, my cat Pixel is a secret")
    calls, seen = talk.model.calls, len(spy.seen)
    talk.say("Hello").say("What do you know?").say("And here?", room="c")
    later = "\n".join(talk.model.prompt(call) for call in range(calls, talk.model.calls))
    for place in (talk.dump(), later, talk.shown, "\n".join(spy.seen[seen:]), talk.recorded(), caplog.text):
        assert "Pixel" not in place
    assert "Oslo" in talk.dump()


# Who may ask --------------------------------------------------------------------------------------


class Group(Talk):
    """One thread in which several people speak; the program has named them."""

    def say(self, text: str, *, user: str = "ada", room: str = "room", id: str | None = None) -> Talk:
        config: Any = {"configurable": {"thread_id": room, "user_id": "ada"}}
        said = HumanMessage(text, id=id, additional_kwargs={"entity_id": user})
        self.app.invoke({"messages": [said]}, config)
        return self


@pytest.mark.parametrize("named", [True, False])
def test_users_cannot_have_the_facts_of_others_forgotten(named: bool) -> None:
    oslo = claims({"claim": OSLO, "type": "fact", "subject": "bob"})
    talk = Group({"in Oslo": oslo, "where Bob lives": forget("Oslo", named=named)})
    talk.memory.register_entity("bob", "Bob")
    talk.memory.register_entity("eve", "Eve")
    talk.say("I live in Oslo", user="bob")
    talk.cycle.conversation_length = 32
    talk.say("Hi Eve", user="bob").say("Forget where Bob lives", user="eve")
    assert talk.known("bob") == [OSLO]
    assert talk.result.metadata["ignored_wishes"] == 1
    assert talk.result.metadata["forgotten"] == 0


@pytest.mark.parametrize("named", [True, False])
def test_users_cannot_strike_the_messages_of_others(named: bool) -> None:
    def strike(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        return {"off_record": [{"id": "m1", "message_id": said[0]} if named else "m1"]}

    oslo = claims({"claim": OSLO, "type": "fact", "subject": "bob"})
    talk = Group({"in Oslo": oslo, "Strike": strike})
    talk.memory.register_entity("bob", "Bob")
    talk.memory.register_entity("eve", "Eve")
    talk.say("I live in Oslo", user="bob", id="m1").say("Strike what Bob said", user="eve")
    assert talk.known("bob") == [OSLO]
    assert talk.result.metadata["ignored_wishes"] == 1
    talk.say("Strike it, I say", user="bob")
    assert talk.known("bob") == []


def test_a_wish_counts_for_the_speaker_whose_message_it_is_in() -> None:
    """Two people ask in one window; each has their own facts forgotten, and no others."""

    def both(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        return {"forget": [{"id": id, "message_id": "m4"} for id in known]}

    talk = Group(
        {
            "Oslo": claims({"claim": OSLO, "type": "fact", "subject": "bob"}),
            "Pixel": claims({"claim": CAT, "type": "fact", "subject": "eve"}),
            "Forget all this": both,
        }
    )
    talk.memory.register_entity("bob", "Bob")
    talk.memory.register_entity("eve", "Eve")
    talk.say("I live in Oslo", user="bob", id="m1").say("My cat is Pixel", user="eve", id="m3")
    talk.say("Forget all this", user="eve", id="m4")
    assert (talk.known("bob"), talk.known("eve")) == ([OSLO], [])


@pytest.mark.lengthy
def test_what_a_user_alone_told_about_others_can_be_forgotten() -> None:
    spy = {"claim": "Ann is a spy", "type": "fact", "subject": "ann"}
    cook = {**spy, "claim": "Ann is a cook"}
    talk = Talk({"spy": claims(spy), "cook": claims(cook), "what I said of": forget("spy", "cook")})
    talk.memory.register_entity("ann", "Ann")
    talk.say("Ann is a spy").say("Ann is a cook").say("Ann is a cook", user="bob", room="b")
    talk.say("Forget what I said of Ann")
    assert talk.known("ann") == ["Ann is a cook"]
    assert "spy" not in talk.dump()


def test_unknown_ids_are_ignored_and_counted() -> None:
    def odd(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        return {
            "forget": ["nothing", {"id": "x", "message_id": "y"}, 7, None, {"a": 1}],
            "off_record": ["m99", {}, "agent"],
            "forget_everything": "maybe",
        }

    talk = Talk({"I live": claims(OSLO), "forget": odd})
    talk.say("I live in Oslo").say("forget")
    assert talk.known() == [OSLO]
    assert talk.result.metadata["ignored_wishes"] == 5


def test_an_answer_with_the_fields_of_the_seed_works() -> None:
    talk = Talk({"I live": claims(OSLO)}).say("I live in Oslo")
    assert (talk.known(), talk.result.metadata["forgotten"]) == ([OSLO], 0)
    assert "off_record" not in talk.result.metadata


@pytest.mark.lengthy
def test_a_wish_outlasts_a_model_that_gives_no_usable_answer(caplog: pytest.LogCaptureFixture) -> None:
    """For three hours of attempts; then a warning says that nothing was forgotten."""

    def at_last(failures: int) -> list[str]:
        talk = Talk({"Oslo": claims(OSLO), "my home": forget("Oslo")}).say("I live in Oslo")
        good = talk.model.answers
        talk.model.answers = ["no idea"]
        talk.say("please forget my home")
        for _ in range(failures - 1):
            talk.clock.pass_by(minutes=65)
            talk.say("hm")
        talk.model.answers = good
        talk.clock.pass_by(minutes=65)
        return talk.say("hello").known()

    assert at_last(6) == []
    assert "nothing is forgotten" not in caplog.text
    assert at_last(8) == [OSLO]
    assert caplog.text.count("nothing is forgotten") == 1


# Everything ---------------------------------------------------------------------------------------


def wiping(**reads: Reading) -> Talk:
    talk = Talk({"first": claims(OSLO, CAT), "wipe": everything(True), **reads})
    return talk.say("first things").say("Could you wipe all you have on me?")


@pytest.mark.lengthy
@pytest.mark.parametrize("between", [(), ("hm?",)])
def test_everything_is_asked_back_and_forgotten_if_the_user_confirms(between: tuple[str, ...]) -> None:
    talk = wiping(yes=everything(True))
    assert talk.known() == [CAT, OSLO]
    assert talk.result.metadata["everything"] == "asked"
    talk.cycle.conversation_length = 32
    shown = ""
    for text in (*between, "yes, do"):
        talk.say(text)
        shown += talk.shown
    assert shown.count(EVERYTHING) == 1
    assert talk.known() == []
    assert "Oslo" not in talk.dump()
    talk.say("hello")
    assert EVERYTHING not in talk.shown


@pytest.mark.lengthy
@pytest.mark.parametrize("answers", [("no, keep it",), ("What is the weather?", "And tomorrow?")])
def test_a_wish_to_forget_everything_lapses(answers: tuple[str, ...]) -> None:
    talk = wiping(**{"no, keep": everything(False), "sure": everything(True)})
    for text in answers:
        talk.say(text)
    assert talk.say("sure").known() == [CAT, OSLO]
    assert EVERYTHING not in talk.shown


def test_a_wish_that_is_read_twice_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash the same message is read again: the user has not answered yet."""
    talk = Talk({"live": claims(OSLO), "wipe": everything(True)})
    talk.say("I live in Oslo")
    advance = Cursors.advance

    async def crash(cursors: Cursors, read: Any) -> None:
        monkeypatch.setattr(Cursors, "advance", advance)
        raise OSError

    monkeypatch.setattr(Cursors, "advance", crash)
    talk.say("Would you wipe me from your memory?")
    assert talk.memory.process("room").results["GET_FACTS"].metadata["everything"] == "asked"
    assert talk.known() == [OSLO]


@pytest.mark.lengthy
def test_what_was_said_before_a_wish_to_forget_everything_does_not_answer_it() -> None:
    """Two quiet threads of another process are read after the wish in a third one."""
    talk = Talk({"wipe": everything(True), "yes": everything(True)})
    other = Talk({"first": claims(OSLO)}, store=talk.store, clock=talk.clock, conversation_length=32)
    other.say("first things", room="a").say("hello", room="b")
    talk.clock.pass_by(minutes=1)
    talk.say("Could you wipe all you have on me?")
    for room in ("a", "b"):
        assert other.memory.process(room).evaluators
    assert talk.known() == [OSLO]
    assert talk.say("yes, do").known() == []


@pytest.mark.lengthy
def test_a_wish_to_forget_everything_can_be_confirmed_for_a_day() -> None:
    talk = wiping(yes=everything(True))
    talk.clock.pass_by(days=2)
    talk.say("yes, do")
    assert EVERYTHING not in talk.shown
    assert talk.known() == [CAT, OSLO]


@pytest.mark.lengthy
def test_an_unconfirmed_wish_is_not_imported() -> None:
    asked = wiping()
    talk = Talk({"Pixel": claims(CAT)}, clock=asked.clock, conversation_length=32)
    talk.say("My cat is Pixel")
    talk.memory.import_(asked.memory.export("ada"))
    talk.cycle.conversation_length = 4
    assert talk.say("hello").known() == [CAT, OSLO]


@pytest.mark.lengthy
def test_another_user_cannot_confirm() -> None:
    talk = wiping(yes=everything(True))
    talk.say("yes, do", user="bob", room="b").say("yes, do", user="bob", room="b")
    assert talk.known() == [CAT, OSLO]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "command",
    [
        "Forget everything about me.",
        "Vergiss alles!",
        "Borra todos mis datos, por favor",
        "HAKKIMDAKİ HER ŞEYİ UNUT",
        "Usun wszystkie moje dane, prosze",
        "忘记一切",
        "すべて忘れてください",
    ],
)
@pytest.mark.parametrize("model", [True, False])
def test_a_message_that_is_nothing_but_the_command_is_carried_out_at_once(command: str, model: bool) -> None:
    """Also without a model; it is one of the few things that work then."""
    store = InMemoryStore()
    Talk({"first": claims(OSLO, CAT)}, store=store).say("first things")
    talk = Talk(store=store, model=model).say(command, room="b")
    assert talk.known() == []
    assert talk.model.calls == 0
    assert talk.result.metadata["everything"] == "done"


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "Delete my data?",
        "\u201eVergiss alles\u201c",
        "> forget everything",
        "`forget everything`",
        "\u266a forget everything \u266a",
        "\u5fd8\u8bb0\u4e00\u5207\uff1f",
    ],
)
def test_a_question_a_quotation_or_code_is_no_command(text: str, model: bool) -> None:
    talk = Talk(model=model)
    talk.memory.remember("ada", OSLO)
    assert talk.say(text).known() == [OSLO]


@pytest.mark.lengthy
@pytest.mark.parametrize("named", [[], ["m1"]])
def test_a_model_that_names_all_facts_of_a_user_is_asked_back(named: list[str]) -> None:
    """A wish for everything is confirmed, in whichever form the model gives it."""
    texts = [f"User owns thing {n}" for n in range(8)]

    def all_of_it(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        return {"forget": [*named, *known]}

    talk = Talk({"list": claims(*texts), "rid of": all_of_it, "yes": all_of_it, "two": forget("2", "3")})
    talk.say("my list", id="m1").say("get rid of it all")
    assert (len(talk.known()), talk.result.metadata["everything"]) == (8, "asked")
    talk.say("yes, forget it")
    assert (talk.known(), talk.result.metadata["everything"]) == ([], "done")
    talk.say("my list").say("forget two of them")
    assert len(talk.known()) == 6


def test_undoing_leaves_what_was_learned_again_meanwhile() -> None:
    """Also after everything was forgotten, with the key that the ids of facts are made with."""
    talk = Talk(
        {"Pixel": claims(CAT), "Oslo": claims(OSLO)}, fact_rules=FactRules(undo_within=timedelta(days=1))
    )
    talk.say("My cat Pixel").say("I live in Oslo").say("Forget everything about me").say("My cat is Pixel")
    assert talk.known() == [CAT]
    assert talk.memory.undo("ada") == 1
    assert talk.known() == [CAT, OSLO]


@pytest.mark.parametrize("claimed", [True, False])
def test_a_user_with_the_id_of_the_agent_shares_nothing_with_others(
    claimed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the program or a message says so: facts of the agent are in the prompts of all users."""
    talk = Talk({"Berg": claims("User lives in Bergen")})
    said: Any = HumanMessage("I live in Bergen", additional_kwargs={"entity_id": "agent"} if claimed else {})
    where = {"thread_id": "room", **({} if claimed else {"user_id": "agent"})}
    talk.app.invoke({"messages": [said]}, {"configurable": where})
    talk.say("hello", user="bob", room="b")
    assert "Bergen" not in talk.model.prompt() + talk.shown
    assert (talk.known("agent"), talk.known("user:agent")) == ([], ["User lives in Bergen"])
    assert caplog.text.count("Give the EvaluationCycle an agent_id that no user has") == 1


def test_a_plain_command_is_carried_out_whatever_a_selector_chooses() -> None:
    store = InMemoryStore()
    Talk({"first": claims(OSLO, CAT)}, store=store).say("first things")

    def nobody(ctx: Any, candidates: Any) -> list[str]:
        return []

    talk = Talk(store=store, selector=nobody).say("Forget everything about me")
    assert talk.known() == []


def test_messages_of_other_threads_from_before_are_not_learned_afterwards() -> None:
    talk = Talk({"Oslo": claims(OSLO), "Pixel": claims(CAT)}, conversation_length=32)
    talk.say("I live in Oslo", room="a")
    talk.clock.pass_by(minutes=1)
    talk.say("Forget everything about me", room="b")
    talk.clock.pass_by(minutes=1)
    talk.cycle.conversation_length = 4
    talk.say("My cat is called Pixel", room="a").say("What else?", room="a")
    assert talk.known() == [CAT]
    assert "I live in Oslo" not in talk.prompts


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_quiet_thread_from_before_is_not_learned_from_afterwards(elsewhere: bool) -> None:
    talk = Talk({"Oslo": claims(OSLO)}, conversation_length=32)
    talk.say("I live in Oslo", room="a")
    talk.clock.pass_by(minutes=1)
    talk.say("Forget everything about me", room="b")
    talk.clock.pass_by(minutes=1)
    if elsewhere:  # in another process, which was not told of the thread
        talk.memory.process("a", user_id="ada", messages=[HumanMessage("I live in Oslo", id="m1")])
    else:
        talk.memory.process("a")
    assert talk.known() == []
    assert "Oslo" not in talk.dump()


@pytest.mark.lengthy
@pytest.mark.parametrize("after_idle_s", [60, None])
@pytest.mark.parametrize("known_before", [True, False])
def test_an_unread_message_of_another_thread_does_not_teach_again(
    any_store: BaseStore, after_idle_s: float | None, known_before: bool
) -> None:
    """It is read first, so that the wish means what it says, too; what else it says is learned."""
    talk = Talk(
        {"Oslo": claims(OSLO), "Pixel": claims(CAT), "where I live": forget("Oslo")},
        store=any_store,
        conversation_length=32,
        after_idle_s=after_idle_s,
    )
    if known_before:
        talk.memory.remember("ada", OSLO)
    talk.say("I live in Oslo, with my cat Pixel", room="a").say("I sail in Bergen", user="bob", room="c")
    assert not talk.model.calls
    talk.say("Please forget where I live", room="b")
    assert talk.known() == [CAT]
    assert "Bergen" not in talk.prompts  # another user's thread waits on
    talk.arbiter_os.drain(10)
    talk.memory.process("a")
    assert talk.known() == [CAT]


@pytest.mark.parametrize("by", ["program", "tool"])
def test_a_program_forgets_what_waits_in_a_thread_too(by: str) -> None:
    talk = Talk({"Oslo": claims(OSLO), "Pixel": claims(CAT)}, conversation_length=32)
    home = talk.memory.remember("ada", OSLO)
    talk.say("I live in Oslo, with my cat Pixel", room="a")
    if by == "program":
        assert talk.memory.forget("ada", "oslo") == 1
    else:
        [_, _, tool] = memory_tools(talk.cycle)
        config: Any = {"configurable": {"thread_id": "b", "user_id": "ada"}}
        assert "1" in tool.invoke({"ids": [home.id]}, config)
    talk.arbiter_os.drain(10)
    assert talk.known() == [CAT]


@pytest.mark.parametrize("named", ["m1", OSLO, OSLO.upper()])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_wish_may_name_the_message_or_the_new_claim(named: str, is_read: bool) -> None:
    """A model that has no id for what the user has just said; it is not asked again."""
    talk = Talk(
        {"Oslo": claims(OSLO), "Pixel": claims(CAT), "where I live": lambda said, known: {"forget": [named]}},
        conversation_length=2 if is_read else 32,
    )
    talk.say("I live in Oslo", id="m1").say("My cat is called Pixel", id="m2")
    calls = talk.model.calls
    talk.say("Please forget where I live", id="m3")
    assert talk.known() == [CAT]
    assert talk.model.calls == calls + 1
    assert talk.say("My cat Pixel sleeps", id="m4").known() == [CAT]


def test_a_wish_finds_what_the_same_unread_messages_say() -> None:
    """A model that has no id for it is asked once more, with the new claims next to the known facts."""
    salary = {"claim": "User earns 85k", "type": "fact"}
    talk = Talk(
        {"85k": claims(salary), "Pixel": claims(CAT), "salary": [claims(OSLO), forget("85k")]},
        conversation_length=32,
    )
    talk.say("I earn 85k. My cat is called Pixel").say("Forget my salary, I live in Oslo")
    assert talk.arbiter_os.drain(10)
    assert talk.known() == [CAT, OSLO]
    assert talk.model.calls == 2


def test_a_new_claim_is_learned_although_a_wish_has_the_model_see_it_with_an_id() -> None:
    def read(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        id = next((id for id, claim in known.items() if claim == CAT), None)
        found = {"claim": CAT, "type": "fact", "source_message_ids": [said[0]]}
        return {"claims": [{**found, "already_known": id is not None, "known_id": id}]}

    talk = Talk({"Pixel": read, "salary": forget("85k")}, conversation_length=32)
    talk.say("My cat is called Pixel").say("Forget my salary")
    assert talk.arbiter_os.drain(10)
    assert (talk.known(), talk.model.calls) == ([CAT], 2)


@pytest.mark.lengthy
def test_no_other_evaluator_learns_what_a_wish_has_kept_from_being_learned() -> None:
    talk = Talk(
        {"Oslo": claims(OSLO), "where I live": lambda said, known: {"forget": [OSLO]}},
        evaluators=[FactEvaluator(), ReflectionEvaluator()],
        conversation_length=32,
    )
    talk.say("I live in Oslo").say("Forget where I live")
    assert talk.known() == []
    calls = talk.model.calls
    for _ in range(8):
        talk.say("Go on")
    assert talk.model.calls > calls
    assert not any("I live in Oslo" in talk.model.prompt(call) for call in range(calls, talk.model.calls))


@pytest.mark.parametrize("named", ["m3", "User sails"])
def test_a_wish_cannot_name_itself_or_what_nobody_said(named: str) -> None:
    talk = Talk({"Oslo": claims(OSLO), "where I live": lambda said, known: {"forget": [named]}})
    talk.say("I live in Oslo", id="m1").say("Forget where I live. I live in Oslo", id="m3")
    assert talk.known() == [OSLO]
    assert talk.result.metadata["ignored_wishes"] == 1


@pytest.mark.lengthy
@pytest.mark.parametrize("reader", ["timer", "wish"])
@pytest.mark.parametrize("by", ["program", "user"])
def test_a_forgetting_waits_for_a_thread_that_is_being_read(by: str, reader: str) -> None:
    """It would teach the forgotten fact when the model answers; a timer or another wish may have begun it."""
    begun = Event()

    def slowly(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        begun.set()
        time.sleep(0.3)
        return claims(OSLO, CAT)(said, known)

    talk = Talk(
        {"Oslo": slowly, "where I live": forget("Oslo")},
        conversation_length=32,
        after_idle_s=0.05 if reader == "timer" else 60,
    )
    talk.say("I live in Oslo, with my cat Pixel", room="a")
    with ThreadPoolExecutor() as pool:
        if reader == "wish":
            pool.submit(talk.say, "Please forget my shoe size", room="b")
        assert begun.wait(10)
        if by == "program":
            assert talk.memory.forget("ada", "Oslo") == 1
        else:
            talk.say("Please forget where I live", room="c")
        assert talk.known() == [CAT]
    assert talk.arbiter_os.drain(10)
    assert talk.known() == [CAT]


def test_a_wish_does_not_wait_for_a_place_among_the_quiet_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """All places may be taken by threads that wait for the turn of the wish."""
    monkeypatch.setattr(_quiet, "AT_ONCE", 0)
    talk = Talk({"Oslo": claims(OSLO), "where I live": forget("Oslo")}, conversation_length=32)
    talk.say("I live in Oslo", room="a")
    begun = time.monotonic()
    talk.say("Please forget where I live", room="b")
    assert time.monotonic() - begun < 10
    talk.memory.process("a")
    assert talk.known() == []


@pytest.mark.lengthy
@pytest.mark.parametrize("after_idle_s", [0.05, 60, None])
def test_many_wishes_at_once_do_not_wait_for_each_other(after_idle_s: float | None) -> None:
    """Of users and of the program, in threads whose earlier messages are unread."""
    talk = Talk(
        {"Oslo": claims(OSLO), "where I live": forget("Oslo")},
        evaluators=[FactEvaluator(), ReflectionEvaluator()],
        conversation_length=32,
        after_idle_s=after_idle_s,
    )
    talk.model.pause = 0.01

    def turn(number: int) -> None:
        talk.say("Please forget where I live" if number % 5 < 2 else "I live in Oslo", room=f"{number % 6}")
        if number % 7 == 0:
            talk.memory.forget("ada", "Oslo")

    with ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(turn, number) for number in range(60)]:
            done.result(20)
    assert talk.arbiter_os.drain(20)


@pytest.mark.lengthy
@pytest.mark.parametrize("model", [True, False])
def test_the_last_message_can_be_taken_back_by_a_plain_command(model: bool) -> None:
    store = InMemoryStore()
    talk = Talk({"Pixel": claims(CAT), "Oslo": claims(OSLO)}, store=store)
    talk.say("My cat is called Pixel").say("I live in Oslo")
    if not model:
        talk.cycle.evaluator_model = None
    talk.say("Forget what I just said.")
    assert talk.known() == [CAT]
    assert "Oslo" not in talk.dump()


def test_a_wish_for_everything_that_also_names_the_few_facts_is_asked_back() -> None:
    def all_of_it(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        return {"forget": [*known], "forget_everything": True}

    talk = Talk({"first": claims(OSLO, CAT), "rid of": all_of_it, "no": everything(False)})
    talk.say("first things").say("get rid of it all")
    assert (talk.known(), talk.result.metadata["everything"]) == ([CAT, OSLO], "asked")
    talk.say("oh no, keep it")
    assert talk.known() == [CAT, OSLO]
    talk.say("get rid of it all").say("get rid of it all")
    assert (talk.known(), talk.result.metadata["everything"]) == ([], "done")


# Undo ---------------------------------------------------------------------------------------------

WEEK = FactRules(undo_within=timedelta(days=7))


@pytest.mark.lengthy
def test_what_was_forgotten_can_be_undone_for_a_time() -> None:
    talk = Talk({"first": claims(OSLO, CAT), "my cat": forget("Pixel")}, fact_rules=WEEK)
    talk.say("first things").say("Forget my cat")
    assert talk.known() == [OSLO]
    assert "Pixel" not in json.dumps(talk.memory.export("ada"))
    talk.say("What do you know?")
    assert "Pixel" not in talk.shown
    assert talk.memory.undo("ada") == 1
    assert talk.known() == [CAT, OSLO]
    assert talk.memory.undo("ada") == 0


def test_a_forgetting_is_undone_by_its_id() -> None:
    talk = Talk({"first": claims(OSLO, CAT)}, fact_rules=WEEK).say("first things")
    one, other = talk.memory.forget("ada", "Oslo"), talk.memory.forget("ada", "cat")
    assert (one, other) == (1, 1)
    assert one.id != other.id
    assert talk.memory.undo("ada", id=one.id) == 1
    assert talk.known() == [OSLO]
    assert talk.memory.undo("bob", id=other.id) == 0


def test_of_two_forgettings_the_last_is_undone_first() -> None:
    """Also by a clock that shows the same time for both."""
    talk = Talk({"first": claims(OSLO, CAT)}, fact_rules=WEEK).say("first things")
    assert (talk.memory.forget("ada", "Oslo"), talk.memory.forget("ada", "cat")) == (1, 1)
    assert (talk.memory.undo("ada"), talk.known()) == (1, [CAT])


def test_an_empty_forgetting_does_not_hide_the_one_before_from_undo() -> None:
    talk = Talk({"first": claims(OSLO, CAT)}, fact_rules=WEEK).say("first things")
    for forgotten in (2, 0, 0):
        assert talk.memory.forget("ada") == forgotten
        talk.clock.pass_by(minutes=1)
    assert talk.memory.undo("ada") == 2
    talk.say("first things", room="b")
    assert talk.known() == [CAT, OSLO]
    assert talk.memory.undo("ada") == 0


def test_a_restored_fact_does_not_hold_beside_the_one_that_was_said_in_its_place() -> None:
    """By the rule for comparisons without a model."""

    def told(slot: str, value: str) -> dict[str, Any]:
        return {"claim": f"{slot} is {value}", "type": "status", "slot": slot, "value": value}

    reads = {
        "first": claims(told("residence.city", "Oslo"), told("pet", "a dog")),
        "moved": claims(told("residence.city", "Bergen"), told("job", "baker")),
    }
    talk = Talk(reads, fact_rules=WEEK)
    talk.say("first things").memory.forget("ada")
    talk.clock.pass_by(days=1)
    assert talk.say("I have moved").memory.undo("ada") == 2
    held = {fact.claim for fact in talk.memory.facts("ada")}
    assert held == {"residence.city is Bergen", "pet is a dog", "job is baker"}
    [oslo] = talk.memory.facts("ada", "superseded")
    assert (oslo.claim, oslo.valid_to) == ("residence.city is Oslo", talk.clock.now)


@pytest.mark.parametrize(("slot", "kind"), [("residence.city", None), ("Wohnort", "home")])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_of_several_restored_homes_the_last_one_holds(
    order: tuple[int, ...], slot: str, kind: str | None
) -> None:
    cities = ("Oslo", "Rome", "Bergen")
    reads = {
        f"in {city}": claims(
            {"claim": f"home is {city}", "type": "status", "slot": slot, "value": city, "kind": kind}
        )
        for city in cities
    }
    talk = Talk(reads, fact_rules=WEEK)
    gone: list[str | None] = []
    for city in cities:
        talk.say(f"I live in {city}").clock.pass_by(days=1)
        gone.append(talk.memory.forget("ada", city).id)
        talk.clock.pass_by(days=1)
    for number in order:
        assert talk.memory.undo("ada", id=gone[number]) == 1
    assert [fact.claim for fact in talk.memory.facts("ada")] == ["home is Bergen"]
    assert {fact.claim for fact in talk.memory.facts("ada", "superseded")} == {"home is Oslo", "home is Rome"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_a_restored_home_holds_beside_a_restored_one_of_earlier_years(order: tuple[int, int]) -> None:
    home = {"type": "status", "slot": "home"}
    reads = {
        "in Oslo": claims({"claim": OSLO, "value": "Oslo", **home}),
        "in Rome": claims({"claim": "Until 2019 in Rome", "value": "Rome", "valid_to": "2019-12-31", **home}),
    }
    talk = Talk(reads, fact_rules=WEEK)
    gone: list[str | None] = []
    for city in ("Oslo", "Rome"):
        talk.say(f"... in {city}").clock.pass_by(days=1)
        gone.append(talk.memory.forget("ada", city).id)
        talk.clock.pass_by(days=1)
    for number in order:
        assert talk.memory.undo("ada", id=gone[number]) == 1
    assert [fact.claim for fact in talk.memory.facts("ada")] == [OSLO]


def test_a_home_that_was_known_beside_a_forgotten_one_holds_after_an_undo() -> None:
    reads = {
        f"in {city}": claims({"claim": f"home is {city}", "type": "status", "slot": "home", "value": city})
        for city in ("Oslo", "Rome")
    }
    talk = Talk(reads, fact_rules=WEEK)
    read = talk.model.answers[0]

    def answer(prompt: str) -> Any:
        both_hold = '{"relations": [{"pair": 1, "relation": "unrelated"}]}'
        return both_hold if "Pair 1." in prompt else read(prompt)

    talk.model.answers[:] = [answer]
    talk.say("I live in Oslo").clock.pass_by(days=1)
    talk.say("I live in Rome").clock.pass_by(days=1)
    assert talk.memory.undo("ada", id=talk.memory.forget("ada", "Rome").id) == 1
    assert len(talk.memory.facts("ada")) == 2


@pytest.mark.parametrize(
    ("restored", "newer"),
    [
        pytest.param(
            {"type": "status", "slot": "home", "value": "Oslo"},
            {"type": type, "slot": "home", "value": "Rome", "valid_to": "2019-01-01T00:00:00Z"},
            id=f"a {type} of the past",
        )
        for type in ("fact", "status")
    ]
    + [
        pytest.param(
            {"type": "status", "slot": "pet", "value": "a dog"},
            {"type": "status", "slot": "pet", "value": "a cat"},
            id="another pet",
        ),
        pytest.param(
            {"type": "status", "slot": "visited.city", "value": "Oslo"},
            {"type": "status", "slot": "visited.city", "value": "Rome"},
            id="another visited city",
        ),
    ],
)
def test_a_restored_fact_holds_if_the_newer_value_need_not_have_replaced_it(
    restored: dict[str, Any], newer: dict[str, Any]
) -> None:
    reads = {
        "first": claims({"claim": "The first", **restored}),
        "then": claims({"claim": "The next", **newer}),
    }
    talk = Talk(reads, fact_rules=WEEK)
    talk.say("first things").memory.forget("ada")
    talk.clock.pass_by(days=1)
    talk.say("and then")
    talk.clock.pass_by(days=1)
    assert talk.memory.undo("ada") == 1
    assert "The first" in [fact.claim for fact in talk.memory.facts("ada")]


def test_forgetting_everything_is_undone_with_the_messages() -> None:
    talk = Talk({"first": claims(OSLO), "second": claims(CAT)}, fact_rules=WEEK, conversation_length=32)
    talk.cycle.conversation_length = 2
    talk.say("first things")
    talk.cycle.conversation_length = 32
    talk.say("second things", room="b")
    talk.clock.pass_by(minutes=1)
    talk.say("Forget everything about me", room="c")
    assert talk.known() == []
    assert talk.memory.undo("ada") == 1
    talk.cycle.conversation_length = 2
    talk.say("hello", room="b")
    assert talk.known() == [CAT, OSLO]


def test_an_undone_command_is_not_carried_out_again() -> None:
    """It is still unread in the next turn of its thread."""
    talk = Talk({"first": claims(OSLO, CAT)}, fact_rules=WEEK).say("first things")
    talk.cycle.conversation_length = 32
    talk.say("Forget everything about me")
    assert talk.memory.undo("ada") == 2
    talk.say("hello").say("Forget what I just said.")
    assert talk.memory.undo("ada") == 0
    assert talk.say("hello again").known() == [CAT, OSLO]


def test_what_was_told_about_others_can_be_forgotten_again_after_an_undo() -> None:
    spy = {"claim": "Ann is a spy", "type": "fact", "subject": "ann"}
    talk = Talk({"is a spy": claims(spy), "Forget Ann": forget("spy")}, fact_rules=WEEK)
    talk.memory.register_entity("ann", "Ann")
    talk.say("Ann is a spy").say("Forget Ann").say("Forget Ann")
    assert talk.known("ann") == []
    assert talk.memory.undo("ada") == 1
    assert talk.known("ann") == ["Ann is a spy"]
    talk.say("Forget Ann")
    assert talk.known("ann") == []


def test_a_restored_fact_holds_beside_one_that_was_said_in_private() -> None:
    oslo, bergen = (
        {"claim": f"User lives in {city}", "type": "status", "slot": "home", "value": city}
        for city in ("Oslo", "Bergen")
    )
    reads = {"first": claims(oslo), "Bergen": claims(bergen)}

    def is_private(config: Any) -> bool:
        return bool(config["configurable"]["thread_id"] == "p")

    talk = Talk(reads, fact_rules=WEEK, is_private=is_private)
    talk.say("first things").memory.forget("ada")
    talk.clock.pass_by(days=1)
    talk.say("I live in Bergen now", room="p")
    assert talk.memory.undo("ada") == 1
    assert talk.memory.search("lives", "ada", room_id="room") == [
        fact for fact in talk.memory.facts("ada") if "Oslo" in fact.claim
    ]
    assert talk.memory.facts("ada", "superseded") == []


def test_a_restored_fact_does_not_hold_beside_the_one_that_came_with_the_wish() -> None:
    """ "Forget Oslo, I live in Bergen": a claim of the same message."""
    oslo, bergen = (
        {"claim": f"User lives in {city}", "type": "status", "slot": "home", "value": city}
        for city in ("Oslo", "Bergen")
    )
    wish = [forget("Oslo"), claims(bergen)]
    talk = Talk({"first": claims(oslo), "Bergen": wish}, fact_rules=WEEK)
    talk.say("first things").clock.pass_by(days=1)
    talk.say("Forget Oslo, I live in Bergen")
    assert talk.memory.undo("ada") == 1
    assert [fact.claim for fact in talk.memory.facts("ada")] == ["User lives in Bergen"]


@pytest.mark.parametrize("command", ["Forget everything about me", "Forget what I just said"])
def test_a_command_that_was_interrupted_is_carried_out_in_the_next_turn(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk({"first": claims(OSLO)}).say("first things")

    async def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Forgetting, "_delete", killed)
        with contextlib.suppress(KeyboardInterrupt):
            talk.say(command)
    assert talk.known() == [OSLO]
    talk.cycle.conversation_length = 32
    assert talk.say("hello").known() == []


@pytest.mark.parametrize("step", ["_delete", "_forget_thoughts"])
def test_a_retraction_that_was_interrupted_is_carried_out_in_the_next_turn(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is buried already, so no model can name it again."""

    def read(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        return {"off_record": [{"id": "m1", "message_id": said[0]}]} if "m1" in talk.model.prompt() else {}

    talk = Talk(
        {"Oslo": claims(OSLO), "scratch": read},
        evaluators=[FactEvaluator(), ReflectionEvaluator()],
        thought=OSLO,
    )
    talk.say("I live in Oslo", id="m1")
    assert OSLO in talk.dump()
    talk.thought = ""

    async def fails(*_: Any) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(Forgetting, step, fails)
        talk.say("hm, scratch that", id="m2")
    talk.clock.now += timedelta(hours=1)
    talk.say("hello", id="m3")
    assert (talk.known(), OSLO in talk.dump()) == ([], False)


@pytest.mark.parametrize(("place", "step"), [(Tombstones, "sweep"), (Forgettings, "note")])
def test_a_command_to_forget_everything_that_was_interrupted_early_is_not_lost(
    place: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk({"first": claims(OSLO)}).say("first things")

    async def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(place, step, killed)
        with contextlib.suppress(KeyboardInterrupt):
            talk.say("Forget everything about me")
    assert talk.known() == [OSLO]
    assert talk.say("hello").known() == []


def test_the_bin_is_emptied_when_the_time_is_over() -> None:
    talk = Talk({"first": claims(OSLO, CAT)}, fact_rules=WEEK).say("first things")
    talk.memory.forget("ada", "cat")
    assert "Pixel" in talk.dump()
    talk.clock.pass_by(days=8)
    talk.say("hello", user="bob", room="b")
    assert "Pixel" not in talk.dump()
    assert talk.memory.undo("ada") == 0


def test_without_the_option_nothing_is_kept_and_undo_says_so() -> None:
    talk = Talk({"first": claims(OSLO, CAT)}).say("first things")
    assert talk.memory.forget("ada", "cat").id is None
    assert "Pixel" not in talk.dump()
    with pytest.raises(ConfigurationError, match=r"FactRules\(undo_within=timedelta\(days=7\)\)"):
        talk.memory.undo("ada")


# Stores and processes -----------------------------------------------------------------------------


@pytest.mark.lengthy
def test_a_wish_is_carried_out_in_every_store(any_store: BaseStore) -> None:
    talk = Talk({"first": claims(OSLO, CAT), "my cat": forget("Pixel")}, store=any_store, fact_rules=WEEK)
    talk.say("first things").say("Forget my cat")
    assert talk.known() == [OSLO]
    assert talk.memory.undo("ada") == 1
    talk.say("Forget everything about me")
    assert talk.known() == []


@pytest.mark.lengthy
def test_a_wish_is_confirmed_in_another_process(tmp_path: Path) -> None:
    reads = {"first": claims(OSLO), "wipe": everything(True), "yes": everything(True)}
    with open_store(str(tmp_path / "memory.db")) as store:
        Talk(reads, store=store).say("first things").say("wipe me please")
    with open_store(str(tmp_path / "memory.db")) as store:
        talk = Talk(reads, store=store)
        assert talk.known() == [OSLO]
        talk.say("yes", room="elsewhere")
        assert EVERYTHING in talk.shown
        assert talk.known() == []
    for file in tmp_path.iterdir():
        assert b"Oslo" not in file.read_bytes()


def test_tombstones_hold_message_ids_and_a_time() -> None:
    talk = Talk({"first": claims(CAT), "my cat": forget("Pixel")})
    talk.say("first things", id="m1").say("Forget my cat", id="m2")
    [tombstone] = talk.store.search(("arbiter", "agent", "tombstones", "room"))
    assert tombstone.value == {"at": talk.clock().isoformat(), "messages": ["m1"], "asked": ["m2"]}


class Counting(InMemoryStore):
    """Counts the operations."""

    count = 0

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        listed = [*ops]
        self.count += len(listed)
        return super().batch(listed)

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        return self.batch(ops)


@pytest.mark.lengthy
def test_forgetting_costs_the_same_with_many_other_users() -> None:
    costs: list[int] = []
    for others in (1, 20):
        store = Counting()
        talk = Talk({"first": claims(OSLO, CAT), "my cat": forget("Pixel")}, store=store)
        for number in range(others):
            talk.say("first things", user=f"other-{number}", room=f"other-{number}")
        talk.say("first things")
        before = store.count
        talk.say("Forget my cat")
        costs.append(store.count - before)
        assert talk.known() == [OSLO]
    assert costs[0] == costs[1]


# Elsewhere at the same time -----------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("claim", [OSLO, "User still lives in Oslo"])
def test_what_is_forgotten_while_a_model_reads_is_not_learned_again_from_what_it_reads(
    named: bool, claim: str
) -> None:
    """By another process: it knows nothing of the call, and its tombstones are in another room."""
    clock = Clock()
    elsewhere = EvaluationCycle(store=(store := InMemoryStore()), clock=clock).memory
    forgotten: list[int] = []

    def again(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        forgotten.append(elsewhere.forget("ada", "Oslo"))
        repeated = {"known_id": next(iter(known))} if named else {}
        return claims({"claim": claim, "type": "fact", **repeated}, CAT)(said, known)

    talk = Talk({"As you know": again}, store=store, clock=clock)
    elsewhere.remember("ada", OSLO, source="m0", room_id="other")
    talk.say("As you know, I live in Oslo. I have a cat.")
    assert forgotten == [1]
    is_repeated = named or claim == OSLO
    assert (claim in talk.known()) == (not is_repeated)
    assert CAT in talk.known()
    talk.reads = {"live": claims(claim)}
    talk.say("I live in Oslo again")
    assert claim in talk.known()


def repeating(words: str, claim: str, **more: Any) -> Reading:
    """A claim that a model gives with the id of the known one with these words."""

    def read(said: Said, known: Mapping[str, str]) -> Mapping[str, Any]:
        [id] = [id for id, text in known.items() if words in text]
        return claims({"claim": claim, "type": "fact", "known_id": id, **more})(said, known)

    return read


def test_a_claim_that_repeats_a_record_of_another_entity_is_learned() -> None:
    bergen = {"claim": "Bob lives in Bergen", "type": "fact", "subject": "bob"}
    again = repeating("Bergen", "Bob lives in Bergen, Norway", subject="bob")
    talk = Talk({"in Bergen": claims(bergen), "still": again})
    talk.say("bob lives in Bergen")
    talk.memory.register_entity("bob", "bob")
    talk.say("bob is still there, in Norway")
    assert talk.known("bob") == ["Bob lives in Bergen, Norway"]


def test_a_claim_that_repeats_a_record_with_a_new_subject_is_learned() -> None:
    east = "User lives in the east of Oslo"
    talk = Talk(
        {
            "Ada lives": claims({"claim": OSLO, "type": "fact", "subject": "Ada"}),
            "I'm Ada": claims({"claim": "User is Ada", "type": "fact", "slot": "name", "value": "Ada"}),
            "not Ada": repeating("Oslo", east),
        }
    )
    for text in ("Ada lives in Oslo", "I'm Ada", "I'm not Ada. But I live in Oslo too, in the east."):
        talk.say(text, user="u1")
    subjects = {fact.claim: fact.subject for fact in talk.memory.facts("u1", state=None)}
    assert (subjects[OSLO], subjects[east]) == ("Ada", "u1")


@pytest.mark.lengthy
def test_messages_with_long_ids_that_an_earlier_version_read_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It kept such ids in full."""
    ids = [f"{number}" * 2_000 for number in range(3)]
    dog = "User has a dog"
    rules = FactRules(undo_within=timedelta(days=1))
    talk = Talk({"Oslo": claims(OSLO), "a cat": claims(CAT), "a dog": claims(dog)}, fact_rules=rules)
    with monkeypatch.context() as patch:
        patch.setattr("arbiter.memory._records._LONGEST_ID", 1_000_000)
        talk.say("I live in Oslo", id=ids[0]).say("I have a cat", id=ids[1])
        talk.memory.remember("ada", "User rows", source=ids[2])
        assert talk.memory.forget("ada", "Oslo") == 1
        assert ids[0] in talk.dump()
    talk.memory.remember("ada", "User rows", source=ids[2])
    talk.say("I have a dog", id=ids[1])  # an edited message
    assert talk.known() == [dog, "User rows"]
    assert {fact.mention_count for fact in talk.memory.facts("ada")} == {1}
    talk.say("I live in Oslo, as I said", id=ids[0])
    assert OSLO not in talk.known()
    assert talk.memory.undo("ada") == 1
    assert OSLO in talk.known()
