"""Profiles: a program's own pydantic models, filled from a conversation field by field."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from enum import Enum
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field, field_validator

from arbiter import ArbiterOS
from arbiter.errors import ParameterError
from arbiter.memory import EvaluationCycle, FactEvaluator, FactRules, ProfileProvider
from tests.memory.memory_support import Clock
from tests.scripted import Scripted, ScriptedTools
from tests.support import MODES, run


class Address(BaseModel):
    city: str | None = None
    street: str | None = None


class UserProfile(BaseModel):
    """The user as the shop knows them."""

    name: str | None = None
    city: str | None = Field(default=None, description="Where they live.")
    age: int | None = Field(default=None, ge=0, le=130)
    hobbies: list[str] = []
    works_at: Address | None = None
    has_children: bool | None = None

    @field_validator("city")
    @classmethod
    def _is_a_name(cls, city: str | None) -> str | None:
        if city is not None and city.isdigit():
            raise ValueError("a city has a name")
        return city


class Diet(BaseModel):
    vegetarian: bool | None = None


def said(claims: Any = (), **profiles: Any) -> str:
    """A model's answer with profiles."""
    found = [{"claim": claim, "type": "fact", "source_message_ids": ["m1"]} for claim in claims]
    return json.dumps({"claims": found, "profiles": profiles})


class Shop:
    """An agent that fills profiles, turn by turn."""

    def __init__(
        self, *answers: Any, store: BaseStore | None = None, mode: str = "invoke", **options: Any
    ) -> None:
        kind = options.pop("kind", Scripted)
        schemas = options.pop("schemas", [UserProfile])
        options.setdefault("conversation_length", 2)
        self.model = kind(answers=[*answers])
        self.store = InMemoryStore() if store is None else store
        self.cycle = EvaluationCycle(store=self.store, evaluator_model=self.model, **options)
        self.arbiter_os = ArbiterOS()
        self.arbiter_os.add_evaluation_cycle(self.cycle)
        self.arbiter_os.add_evaluator(FactEvaluator(schemas=schemas))
        self.arbiter_os.add_advisor(ProfileProvider(*schemas))
        self.mode = mode
        self.heard: list[str] = []

        def reply(state: MessagesState) -> dict[str, Any]:
            self.heard.append("\n".join(str(m.text) for m in state["messages"] if m.type == "system"))
            return {"messages": [AIMessage("Noted.")]}

        graph = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply")
        self.app: Any = self.arbiter_os.govern(graph.compile(checkpointer=InMemorySaver()))

    def tells(self, text: str, id: str = "m1", *, user: str = "ada", room: str = "room") -> None:
        config: RunnableConfig = {"configurable": {"thread_id": room, "user_id": user}}
        run(self.app, {"messages": [HumanMessage(text, id=id)]}, config, mode=self.mode)

    def hears(self, text: str, id: str = "m1", *, user: str = "ada", room: str = "room") -> Any:
        self.tells(text, id, user=user, room=room)
        item = self.arbiter_os.history_of(thread_id=room).last()
        assert item is not None
        return item.evaluation_results["GET_FACTS"].metadata

    def profile(self, user: str = "ada") -> UserProfile:
        return self.cycle.memory.profile(user, UserProfile)


# Filling ------------------------------------------------------------------------------------------


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("kind", [Scripted, ScriptedTools])
def test_a_profile_is_filled_in_the_same_call_field_by_field(
    any_store: BaseStore, mode: str, kind: Any
) -> None:
    """One record: each turn adds what it tells, and leaves the rest."""
    shop = Shop(
        said(["Ada lives in Oslo"], UserProfile={"name": "Ada", "city": "Oslo"}),
        said(UserProfile={"city": "Rome", "hobbies": ["chess"], "works_at": {"city": "Milan"}}),
        store=any_store,
        mode=mode,
        kind=kind,
    )
    assert shop.profile() == UserProfile()
    found = shop.hears("I'm Ada from Oslo")
    assert (found["profile_fields"], found["llm_calls"], found["inserted"]) == (2, 1, 1)
    assert shop.profile() == UserProfile(name="Ada", city="Oslo")
    shop.hears("I moved to Rome, I play chess, I work in Milan", "m2")
    assert shop.model.calls == 2
    wanted = UserProfile(name="Ada", city="Rome", hobbies=["chess"], works_at=Address(city="Milan"))
    assert shop.profile() == wanted
    assert asyncio.run(shop.cycle.memory.aprofile("ada", UserProfile)) == wanted
    assert "UserProfile.city: Oslo" in shop.model.prompt(1)
    [record] = shop.cycle.memory.export("ada")["profiles"]
    assert record["schema"] == "UserProfile"
    assert record["fields"]["name"]["source_message_ids"] == ["m1"]


@MODES
def test_the_newest_value_holds_although_the_clock_was_set_back(mode: str) -> None:
    clock = Clock()
    cities = [said(UserProfile={"city": city}) for city in ("Oslo", "Rome")]
    shop = Shop(*cities, clock=clock, mode=mode)
    shop.tells("I live in Oslo")
    clock.pass_by(hours=-1)
    shop.tells("I moved to Rome", "m2")
    assert shop.profile().city == "Rome"


def test_the_model_sees_the_fields_and_what_they_mean() -> None:
    shop = Shop(said(), schemas=[UserProfile, Diet])
    shop.hears("Hello")
    assert all(word in shop.model.prompt() for word in ("Where they live.", "vegetarian", "profiles"))


def test_the_model_sees_the_known_parts_of_a_nested_model_and_is_asked_for_all_of_them() -> None:
    """A new value replaces the earlier one."""
    shop = Shop(
        said(UserProfile={"works_at": {"city": "Oslo"}}),
        said(UserProfile={"works_at": {"city": "Oslo", "street": "Mill Lane"}}),
    )
    shop.hears("I work in Oslo")
    shop.hears("In Mill Lane", "m2")
    assert 'UserProfile.works_at: {"city": "Oslo"' in shop.model.prompt()
    assert "a list or an object is given whole" in shop.model.prompt()
    assert shop.profile().works_at == Address(city="Oslo", street="Mill Lane")


def test_the_schema_of_an_answer_is_made_once() -> None:
    """It takes many times as long as the rest of the turn."""
    made: list[type[BaseModel]] = []

    class Noting(Scripted):
        def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
            made.append(schema)
            raise NotImplementedError

    shop = Shop(said(), kind=Noting)
    shop.hears("Hello")
    shop.hears("Hello again", "m2")
    assert len(made) == 2
    assert made[0] is made[1]


def test_the_next_call_shows_the_profile() -> None:
    shop = Shop(said(UserProfile={"city": "Oslo", "hobbies": ["chess", "go"]}))
    shop.hears("I live in Oslo")
    shop.hears("Hi again", room="another")
    assert '## Profile of the user\ncity: Oslo\nhobbies: ["chess", "go"]' in shop.heard[-1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"age": "old", "city": "Oslo"}, {"city": "Oslo"}),
        ({"age": 400, "city": "Oslo"}, {"city": "Oslo"}),
        ({"city": "123", "name": "Ada"}, {"name": "Ada"}),
        ({"city": ["Oslo"], "age": 34}, {"age": 34}),
        ({"planet": "Mars", "city": "Oslo"}, {"city": "Oslo"}),
        ({"city": None, "name": "Ada"}, {"name": "Ada"}),
        ([{"city": "Oslo"}, {"name": "Ada"}], {"city": "Oslo", "name": "Ada"}),
        ("Oslo", {}),
        (None, {}),
    ],
)
def test_a_field_that_does_not_fit_costs_itself_alone(given: Any, kept: dict[str, Any]) -> None:
    shop = Shop(said(["Ada bakes"], UserProfile=given))
    shop.hears("Hello")
    assert shop.profile() == UserProfile(**kept)
    assert [fact.claim for fact in shop.cycle.memory.facts("ada")] == ["Ada bakes"]


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


class Shoe(BaseModel):
    kind: Literal["low", "high"]
    sizes: list[Size] = []


class Boot(BaseModel):
    kind: Literal["Low", "High"]
    height: int


class Wardrobe(BaseModel):
    size: Size | None = None
    fit: Literal["slim", "wide"] | None = None
    colours: list[Literal["red", "blue"]] = []
    number: Literal[1, 2] | None = None
    unit: Literal["mm", "Mm"] | None = None
    best: Shoe | None = None
    shoes: list[Shoe] = []
    by_day: dict[str, Shoe] = {}
    either: Shoe | Boot | None = None
    brim: Literal["flat", "curved"] | int | None = None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"size": "l", "fit": "Wide"}, {"size": "L", "fit": "wide"}),
        ({"colours": ["Red", "blue", "BLUE"]}, {"colours": ["red", "blue", "blue"]}),
        ({"size": "XL", "fit": "SLIM"}, {"fit": "slim"}),
        ({"colours": ["Red", "Green"], "number": "One", "size": "s"}, {"size": "S"}),
        ({"size": {"L": "l"}, "fit": ["Wide"]}, {}),
        ({"unit": "MM", "fit": "WIDE"}, {"fit": "wide"}),
        ({"best": {"kind": "Low", "sizes": ["s", "L"]}}, {"best": {"kind": "low", "sizes": ["S", "L"]}}),
        ({"shoes": [{"kind": "low"}, {"kind": "HIGH"}]}, {"shoes": [{"kind": "low"}, {"kind": "high"}]}),
        ({"by_day": {"Mo": {"kind": "High"}}}, {"by_day": {"Mo": {"kind": "high"}}}),
        ({"shoes": [{"kind": "clog"}], "best": {"kind": "Low"}}, {"best": {"kind": "low"}}),
        ({"either": {"kind": "HIGH", "height": "x", "sizes": 3}, "fit": "Slim"}, {"fit": "slim"}),
        ({"brim": "FLAT"}, {"brim": "flat"}),
        ({"either": {"kind": "HIGH", "height": 3, "sizes": 3}}, {"either": {"kind": "High", "height": 3}}),
    ],
)
def test_a_choice_is_read_in_any_case(given: Any, kept: Any) -> None:
    shop = Shop(said(Wardrobe=given), schemas=[Wardrobe])
    shop.hears("I wear L")
    assert shop.cycle.memory.profile("ada", Wardrobe) == Wardrobe(**kept)


def test_an_answer_with_profiles_alone_is_an_answer() -> None:
    shop = Shop(json.dumps({"profiles": {"UserProfile": {"city": "Oslo"}}}))
    assert shop.hears("I live in Oslo")["llm_calls"] == 1
    assert shop.profile().city == "Oslo"


@pytest.mark.parametrize(
    "profiles",
    [
        {"userprofile": {"city": "Oslo", "hobbies": ["chess"]}},
        [{"UserProfile": {"city": "Oslo"}}, {"UserProfile": {"hobbies": ["chess"]}}],
        {"UserProfile": {"city": "Oslo"}, "userprofile": {"hobbies": ["chess"]}},
        {"UserProfile": [{"city": "Oslo"}, {"hobbies": ["chess"]}]},
        {"city": "Oslo", "hobbies": ["chess"]},
        [{"city": "Oslo"}, {"hobbies": ["chess"]}, "Oslo", {}],
        [{"name": "UserProfile", "city": "Oslo", "hobbies": ["chess"]}],
    ],
)
def test_profiles_are_read_in_any_shape_that_has_one_meaning(profiles: Any) -> None:
    shop = Shop(json.dumps({"claims": [], "profiles": profiles}))
    shop.hears("I live in Oslo and play chess")
    assert shop.profile() == UserProfile(city="Oslo", hobbies=["chess"])


def test_a_field_may_be_called_as_its_profile() -> None:
    class City(BaseModel):
        city: str | None = None

    shop = Shop(json.dumps({"claims": [], "profiles": {"city": "Oslo"}}), schemas=[City])
    assert shop.hears("I live in Oslo")["profile_fields"] == 1


def test_fields_without_a_profile_are_nobodys_if_there_are_two_profiles() -> None:
    shop = Shop(json.dumps({"claims": [], "profiles": {"city": "Oslo"}}), schemas=[UserProfile, Diet])
    assert shop.hears("I live in Oslo")["profile_fields"] == 0


def test_an_answer_without_profiles_changes_nothing() -> None:
    shop = Shop(said(UserProfile={"city": "Oslo"}), json.dumps({"claims": []}))
    shop.hears("I live in Oslo")
    assert shop.hears("Hm", "m2")["profile_fields"] == 0
    assert shop.profile().city == "Oslo"


def test_users_cannot_fill_another_persons_profile() -> None:
    shop = Shop(
        said(UserProfile=[{"subject": "bob", "city": "Rome"}, {"city": "Oslo", "subject": "the user"}])
    )
    shop.cycle.memory.register_entity("bob", "Bob")
    assert shop.hears("Bob lives in Rome, I live in Oslo")["dropped_invalid"] == 1
    assert (shop.profile("bob"), shop.profile().city) == (UserProfile(), "Oslo")


class Pupil(BaseModel):
    education: str | None = None
    preferred_location: str | None = None
    pets: list[str] = []
    homeCity: str | None = None  # noqa: N815 (programs have such names, too)


@pytest.mark.parametrize(
    ("query", "gone"),
    [
        ("cat", ["pets"]),
        ("loc", ["preferred_location"]),
        *((each, ["homeCity"]) for each in ("home", "city", "homeCity")),
    ],
)
def test_a_query_forgets_fields_by_the_beginnings_of_words_in_their_names(
    query: str, gone: list[str]
) -> None:
    """A cat is in no education, and in no location."""
    told = {"education": "MIT", "preferred_location": "Rome", "pets": ["a cat"], "homeCity": "Bern"}
    claims = [
        {"claim": "Ada is at MIT", "type": "fact", "slot": "education"},
        {"claim": "Ada likes Rome", "type": "fact", "slot": "location.best"},
        {"claim": "Ada is in Bern", "type": "fact"},
        {"claim": "Ada has a cat", "type": "fact", "slot": "pet"},
    ]
    shop = Shop(json.dumps({"claims": claims, "profiles": {"Pupil": told}}), schemas=[Pupil])
    shop.hears("I study at MIT, like Rome, live in Bern and have a cat")
    shop.cycle.memory.forget("ada", query)
    left = shop.cycle.memory.profile("ada", Pupil).model_dump(exclude_defaults=True)
    assert [*told.keys() - left.keys()] == gone
    kept = {fact.slot for fact in shop.cycle.memory.facts("ada")} - {None}
    lost = {"cat": "pet", "loc": "location.best"}.get(query)
    assert kept == {"education", "location.best", "pet"} - {lost}


# Privacy ------------------------------------------------------------------------------------------


def test_secrets_and_sensitive_values_are_not_kept() -> None:
    shop = Shop(said(UserProfile={"name": "sk-live-4eC39HqLyjWDarjtT1zdp7dc", "hobbies": ["has diabetes"]}))
    assert shop.hears("Hello")["dropped_private"] == 2
    assert shop.profile() == UserProfile()
    allowed = Shop(
        said(UserProfile={"hobbies": ["has diabetes"]}), fact_rules=FactRules(allow_sensitive=True)
    )
    allowed.hears("Hello")
    assert allowed.profile().hobbies == ["has diabetes"]
    allowed.hears("Hi", "m2", room="another")
    assert "diabetes" not in allowed.heard[-1]


def test_what_is_told_in_a_private_room_is_shown_there_only() -> None:
    def is_private(config: RunnableConfig) -> bool:
        return config.get("configurable", {}).get("thread_id") == "private"

    shop = Shop(said(UserProfile={"city": "Oslo"}), said(), is_private=is_private)
    shop.hears("I live in Oslo", room="private")
    shop.hears("Hi", "m2", room="open")
    assert "Oslo" not in shop.heard[-1]
    assert "UserProfile.city" not in shop.model.prompt()
    shop.hears("Hi", "m3", room="private")
    assert "city: Oslo" in shop.heard[-1]


@pytest.mark.parametrize("how", ["id", "query", "all"])
def test_a_forgotten_fact_takes_its_field_with_it_and_leaves_the_others(how: str) -> None:
    shop = Shop(
        said(
            ["Ada lives in Oslo", "Ada is called Ada Lovelace", "Ada is 34 years old", "Ada has two kids"],
            UserProfile={"name": "Ada Lovelace", "city": "Oslo", "age": 34, "has_children": True},
        )
    )
    shop.hears("I'm Ada Lovelace, 34, from Oslo, with two kids")
    memory = shop.cycle.memory
    facts = {fact.claim: fact.id for fact in memory.facts("ada")}
    if how == "all":
        memory.forget("ada")
        assert shop.profile() == UserProfile()
        assert memory.export("ada")["profiles"] == []
    elif how == "id":
        memory.forget("ada", id=facts["Ada lives in Oslo"])
        assert (shop.profile().name, shop.profile().age, shop.profile().city) == ("Ada Lovelace", 34, None)
        # Which fact of the message tells this field cannot be known, so it goes with the first one.
        assert shop.profile().has_children is None
    else:
        memory.forget("ada", "oslo")
        assert (shop.profile().age, shop.profile().city) == (34, None)
    assert "Oslo" not in json.dumps(memory.export("ada"))


def test_a_message_that_is_not_to_be_remembered_fills_nothing() -> None:
    answer = json.loads(said(UserProfile={"city": "Oslo"}))
    shop = Shop(json.dumps({**answer, "off_record": [{"id": "m1"}]}))
    shop.hears("Entre nous, I live in Oslo, tell nobody")
    assert shop.profile() == UserProfile()
    assert "Oslo" not in json.dumps(shop.cycle.memory.export("ada"))


def test_undoing_a_forgetting_brings_its_fields_back() -> None:
    rules = FactRules(undo_within=timedelta(days=1))
    shop = Shop(said(["Ada lives in Oslo"], UserProfile={"city": "Oslo", "age": 34}), fact_rules=rules)
    shop.hears("I live in Oslo, and I am 34")
    memory = shop.cycle.memory
    memory.forget("ada", "oslo")
    assert shop.profile().city is None
    memory.undo("ada")
    assert shop.profile() == UserProfile(city="Oslo", age=34)


def test_undoing_a_forgetting_brings_the_parts_of_a_list_back() -> None:
    rules = FactRules(undo_within=timedelta(days=1))
    claims = ["Ada plays chess", "Ada plays golf"]
    shop = Shop(said(claims, UserProfile={"hobbies": ["chess", "golf"]}), fact_rules=rules)
    shop.hears("I play chess and golf")
    memory = shop.cycle.memory
    memory.forget("ada", "golf")
    assert shop.profile().hobbies == ["chess"]
    memory.undo("ada")
    assert shop.profile().hobbies == ["chess", "golf"]


def test_undoing_one_forgetting_brings_nothing_back_that_another_one_took() -> None:
    claims = ["Ada lives in Oslo", "Ada plays chess", "Ada plays golf"]
    shop = Shop(
        said(claims, UserProfile={"city": "Oslo", "hobbies": ["chess", "golf"]}),
        fact_rules=FactRules(undo_within=timedelta(days=1)),
    )
    shop.hears("I live in Oslo and play chess and golf")
    memory = shop.cycle.memory
    golf, chess, _ = [memory.forget("ada", word) for word in ("golf", "chess", "Oslo")]
    memory.undo("ada", id=golf.id)
    assert shop.profile() == UserProfile(hobbies=["golf"])
    memory.undo("ada", id=chess.id)
    assert shop.profile() == UserProfile(hobbies=["golf", "chess"])


@pytest.mark.parametrize("how", ["id", "query", "wish"])
def test_a_forgotten_fact_takes_its_part_of_a_list_alone(how: str) -> None:
    claims = ["Ada plays chess", "Ada plays golf"]
    shop = Shop(said(claims, UserProfile={"hobbies": ["chess", "golf"]}))
    shop.hears("I play chess and golf")
    memory = shop.cycle.memory
    [golf] = [fact.id for fact in memory.facts("ada") if "golf" in fact.claim]
    if how == "wish":
        shop.model.answers.append(json.dumps({"claims": [], "forget": [{"id": golf}]}))
        shop.hears("Forget that I play golf", "m2")
    elif how == "id":
        memory.forget("ada", id=golf)
    else:
        memory.forget("ada", "golf")
    assert shop.profile().hobbies == ["chess"]
    assert "golf" not in json.dumps(memory.export("ada"))


@MODES
@pytest.mark.parametrize("named", ["Ada lives in Oslo", "m1"])
def test_a_field_of_the_messages_that_also_ask_to_forget_it_is_not_filled(mode: str, named: str) -> None:
    answer = json.loads(
        said(["Ada lives in Oslo"], UserProfile={"city": "Oslo", "age": 34, "hobbies": ["chess"]})
    )
    answer["claims"] += [
        {"claim": claim, "type": "fact", "source_message_ids": ["m2"]}
        for claim in ("Ada is 34 years old", "Ada plays chess")
    ]
    wish = {"id": named, "message_id": "m3"}
    shop = Shop(json.dumps({**answer, "forget": [wish]}), mode=mode, conversation_length=32)
    for id, text in (
        ("m1", "I live in Oslo"),
        ("m2", "I'm 34 and play chess"),
        ("m3", "Forget where I live"),
    ):
        shop.tells(text, id)
    assert shop.profile() == UserProfile(age=34, hobbies=["chess"])
    assert "Oslo" not in json.dumps(shop.cycle.memory.export("ada"))


@pytest.mark.parametrize(
    ("sources", "told", "city"),
    [
        (["m1"], "Oslo", None),
        (["m2"], "Oslo", None),
        (["m2"], "Rome", "Rome"),
        (["m1"], "Rome", None),
        (["m3"], "Oslo", "Oslo"),
    ],
)
def test_an_answer_that_fills_a_field_and_names_it_in_a_wish_does_not_keep_what_was_forgotten(
    sources: list[str], told: str, city: str | None
) -> None:
    """A value that the wish itself or a later message says anew is kept."""
    answer = json.loads(said(UserProfile={"city": told, "source_message_ids": sources}))
    wish = {"id": "UserProfile.city", "message_id": "m2"}
    shop = Shop(json.dumps({**answer, "forget": [wish]}), conversation_length=32)
    before = Shop(said(UserProfile={"city": "Oslo"}), store=shop.store)
    before.hears("I live in Oslo", "m0", room="before")
    for id, text in (("m1", "Oslo, or Rome?"), ("m2", "Away with my city"), ("m3", "Hm")):
        shop.tells(text, id)
    shop.arbiter_os.drain(10)
    assert shop.profile().city == city


@pytest.mark.parametrize("subject", [None, "user", "ada", "u-1", "Ada"])
def test_a_field_is_not_filled_whatever_an_answer_calls_the_user(subject: str | None) -> None:
    answer = json.loads(said(UserProfile={"city": "Oslo"}))
    lives = {"claim": "Ada lives in Oslo", "type": "fact", "subject": subject, "source_message_ids": ["m1"]}
    answer |= {"claims": [lives], "forget": [{"id": "Ada lives in Oslo", "message_id": "m2"}]}
    answer["names"] = [{"name": "Ada", "message_id": "m1"}]
    shop = Shop(json.dumps(answer), conversation_length=32)
    shop.tells("I'm Ada from Oslo", "m1", user="u-1")
    shop.tells("Forget where I live", "m2", user="u-1")
    assert shop.profile("u-1") == UserProfile()
    assert shop.cycle.memory.facts("u-1") == []


@pytest.mark.parametrize(("forgotten", "city"), [("Ada", None), ("Ada's sister", "Oslo")])
def test_what_is_forgotten_of_somebody_else_decides_no_field(forgotten: str, city: str | None) -> None:
    answer = json.loads(said(["Ada lives in Oslo"], UserProfile={"city": "Oslo"}))
    sister = {"claim": "Ada's sister lives in Oslo", "type": "fact", "subject": "sister"}
    answer["claims"].append({**sister, "source_message_ids": ["m2"]})
    answer["forget"] = [{"id": f"{forgotten} lives in Oslo", "message_id": "m3"}]
    shop = Shop(json.dumps(answer), conversation_length=32)
    for id, text in (("m1", "I live in Oslo"), ("m2", "So does my sister"), ("m3", "Forget one of them")):
        shop.tells(text, id)
    assert shop.profile().city == city


@pytest.mark.lengthy
@MODES
def test_a_field_that_no_fact_tells_can_be_forgotten_by_its_name(any_store: BaseStore, mode: str) -> None:
    shop = Shop(
        said(UserProfile={"city": "Oslo", "age": 34, "hobbies": ["chess", "golf"]}),
        json.dumps({"claims": [], "forget": [{"id": "UserProfile.city", "message_id": "m2"}]}),
        json.dumps(
            {
                "claims": [],
                "forget": ["[UserProfile.hobbies]"],
                "profiles": {"UserProfile": {"hobbies": ["chess"]}},
            }
        ),
        store=any_store,
        mode=mode,
        fact_rules=FactRules(undo_within=timedelta(days=1)),
    )
    shop.hears("I'm 34, from Oslo, and play chess and golf")
    found = shop.hears("Forget where I live", "m2")
    assert (shop.profile().city, shop.profile().age, shop.model.calls) == (None, 34, 2)
    assert "UserProfile.city: Oslo" in shop.model.prompt(1)
    shop.hears("Forget the golf", "m3")
    assert shop.profile() == UserProfile(age=34, hobbies=["chess"])
    shop.cycle.memory.undo("ada", id=found["undo_ids"][0])
    assert shop.profile().city == "Oslo"


@pytest.mark.lengthy
def test_nobody_else_can_have_a_field_of_the_user_forgotten() -> None:
    wish = {"claims": [], "forget": [{"id": "UserProfile.city", "message_id": "m2"}]}
    shop = Shop(said(UserProfile={"city": "Oslo"}), json.dumps(wish))
    shop.cycle.memory.register_entity("bob", "Bob")
    shop.hears("I live in Oslo")
    config: RunnableConfig = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    asked = HumanMessage("Forget where Ada lives", id="m2", additional_kwargs={"entity_id": "bob"})
    shop.app.invoke({"messages": [asked]}, config)
    assert shop.model.calls == 2
    assert shop.profile().city == "Oslo"


def test_a_field_that_is_told_anew_beside_a_wish_is_filled() -> None:
    """ "Forget Seattle, I live in Rome", and another user of the room who tells the same as was forgotten."""
    answer = {
        "claims": [
            {"claim": "Ada lives in Oslo", "type": "fact", "source_message_ids": ["m1"]},
            {"claim": "Ada lives in Rome", "type": "fact", "source_message_ids": ["m2"]},
        ],
        "forget": [{"id": "Ada lives in Oslo", "message_id": "m2"}],
        "profiles": {"UserProfile": {"city": "Rome"}},
    }
    shop = Shop(json.dumps(answer), conversation_length=32)
    shop.tells("I live in Oslo", "m1")
    shop.tells("Forget Oslo, I live in Rome", "m2")
    assert shop.profile().city == "Rome"


# Mistakes -----------------------------------------------------------------------------------------


class Required(BaseModel):
    city: str


class Aliased(BaseModel):
    city: str | None = Field(default=None, alias="town")


class Reserved(BaseModel):
    subject: str | None = None


class Empty(BaseModel):
    pass


@pytest.mark.parametrize(
    ("schemas", "told"),
    [
        ([Required], "Required.city has no default"),
        ([Aliased], "Aliased.city: expected a name other than"),
        ([Reserved], "Reserved.subject: expected a name other than"),
        ([Empty], "Empty has no fields"),
        ([UserProfile, UserProfile], "two models are called UserProfile"),
        ([dict], "expected a pydantic model, got <class 'dict'>"),
        ([UserProfile()], "expected a pydantic model"),
        (UserProfile, "expected a list of pydantic models"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_an_error_at_construction(schemas: Any, told: str) -> None:
    with pytest.raises(ParameterError, match=told):
        FactEvaluator(schemas=schemas)


def test_all_mistakes_of_all_schemas_are_reported_at_once() -> None:
    with pytest.raises(ParameterError) as caught:
        FactEvaluator(schemas=[Required, Aliased])
    assert "Required.city" in str(caught.value)
    assert "Aliased.city" in str(caught.value)


def test_a_stored_field_that_no_longer_fits_is_left_out() -> None:
    """As after a change of the program: the rest is still read, and can be filled."""
    shop = Shop(said(UserProfile={"city": "Oslo", "age": 34}))
    shop.hears("Hello")

    class NewProfile(BaseModel):
        city: int | None = None
        age: int | None = None

    NewProfile.__name__ = "UserProfile"
    assert shop.cycle.memory.profile("ada", NewProfile) == NewProfile(age=34)
    other = Shop(said(UserProfile={"age": 35}), store=shop.store, schemas=[NewProfile])
    other.hears("Hello", "m9", room="another")
    assert other.cycle.memory.profile("ada", NewProfile) == NewProfile(age=35)


def test_a_stored_choice_is_read_in_its_new_spelling() -> None:
    shop = Shop(said(UserProfile={"city": "Oslo"}))
    shop.hears("Hello")

    class NewProfile(BaseModel):
        city: Literal["OSLO"] | None = None
        age: int | None = None

    NewProfile.__name__ = "UserProfile"
    other = Shop(said(UserProfile={"age": 35}), store=shop.store, schemas=[NewProfile])
    other.hears("Hello", "m9", room="another")
    assert other.cycle.memory.profile("ada", NewProfile) == NewProfile(city="OSLO", age=35)


# Age ----------------------------------------------------------------------------------------------


@pytest.mark.lengthy
@MODES
def test_a_field_that_was_not_mentioned_for_long_is_neither_known_nor_stored(
    any_store: BaseStore, mode: str
) -> None:
    clock = Clock()
    shop = Shop(
        said(UserProfile={"name": "Ada", "city": "Oslo"}),
        said(UserProfile={"name": "Ada"}),
        said(),
        store=any_store,
        mode=mode,
        clock=clock,
        fact_rules=FactRules(profile_ttl=timedelta(days=30)),
    )
    shop.hears("I am Ada, from Oslo", "m1")
    clock.now += timedelta(days=20)
    shop.hears("Ada here", "m2")
    clock.now += timedelta(days=20)
    assert (shop.profile().name, shop.profile().city) == ("Ada", None)
    shop.hears("Hello", "m3")
    assert "Ada" in shop.heard[-1]
    assert "Oslo" not in shop.heard[-1]
    assert "Oslo" not in json.dumps(shop.cycle.memory.export("ada"))


def test_an_invalid_time_of_profiles_is_refused() -> None:
    with pytest.raises(ParameterError, match="profile_ttl"):
        FactRules(profile_ttl=timedelta(0))


def test_a_value_that_is_nested_too_deeply_costs_its_profile_and_not_the_answer() -> None:
    class Loose(BaseModel):
        anything: Any = None

    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    found = {
        "claims": [{"claim": "Ada rows", "type": "fact"}],
        "profiles": {"Loose": [{"anything": deep}], "UserProfile": [{"city": "Oslo"}]},
    }
    call = {"name": "ExtractedClaims", "args": found, "id": "1", "type": "tool_call"}
    shop = Shop(AIMessage("", tool_calls=[call]), kind=ScriptedTools, schemas=[Loose, UserProfile])
    assert shop.hears("I row in Oslo")["profile_fields"] == 1
    assert shop.profile().city == "Oslo"
    assert [fact.claim for fact in shop.cycle.memory.facts("ada")] == ["Ada rows"]
