"""The names that speakers give themselves: "I'm Ada" makes Ada the user."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from arbiter.memory._entities import MAX_NAME
from arbiter.memory._notes import Listed
from arbiter.memory._records import Record
from arbiter.memory.facts._normal import caseless
from arbiter.memory.stores._words import words_of

_MOST = 16
"""Names kept for one entity, the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction(Record):
    """A speaker has said in these messages to be called `name`."""

    _tuples = ("source_message_ids",)

    name: str
    speaker: str = ""
    source_message_ids: tuple[str, ...] = ()


class OwnNames(Listed[Introduction]):
    """The introductions of one entity. The names mean it in its own claims and nowhere else, because anybody may
    give any name."""

    kind, key, field = "own_names", "given", "names"
    member = Introduction

    async def note(self, given: Introduction) -> None:
        def noted(known: list[Introduction]) -> list[Introduction]:
            ids = {id for one in known if same_name(one.name, given.name) for id in one.source_message_ids}
            is_known = ids and ids.issuperset(given.source_message_ids)
            return known if is_known else [*known, given][-_MOST:]

        await self.change(noted)

    async def forget(self, message_ids: Collection[str] | None = None) -> None:
        """Forget the names given in these messages; by default all."""
        gone = None if message_ids is None else {*message_ids}

        def kept(known: list[Introduction]) -> list[Introduction] | None:
            return [
                one for one in known if gone is not None and gone.isdisjoint(one.source_message_ids)
            ] or None

        await self.change(kept)


def same_name(one: str, other: str) -> bool:
    return caseless(one) == caseless(other)


def may_give(text: str, name: str) -> bool:
    """True if a message may give a name: it contains it. So no model can invent one."""
    wanted = caseless(name)
    return bool(wanted) and len(wanted) <= MAX_NAME and wanted in caseless(text)


_NAME_SLOTS = words_of("first given full nick preferred own display user person personal identity")


def names_itself(slot: str | None) -> bool:
    """True for a slot that has the name of its subject: name, first_name, but not pet.name."""
    words = words_of((slot or "").replace("_", " ").replace(".", " ").replace("-", " "))
    return bool(words & {"name", "nickname"}) and words - {"name", "nickname"} <= _NAME_SLOTS


# Without a word of the model ----------------------------------------------------------------------

_BEFORE = 60
_LONGEST = 4_000
_PHRASES = (
    *("i am", "i'm", "im", "my name is", "my name's", "call me"),
    *("ich bin", "ich heiße", "ich heisse", "mein name ist", "ik ben", "ik heet", "mijn naam is"),
    *("je suis", "je m'appelle", "mon nom est", "moi c'est", "moi, c'est"),
    *("soy", "yo soy", "me llamo", "mi nombre es", "sono", "mi chiamo", "il mio nome è"),
    *("sou", "eu sou", "me chamo", "eu me chamo", "meu nome é", "o meu nome é"),
    *("jag heter", "jag är", "jeg heter", "jeg hedder", "jeg er", "olen", "nimeni on"),
    *("jestem", "nazywam się", "mam na imię", "jmenuji se", "меня зовут", "я", "мене звати"),
    *("benim adım", "adım", "我叫", "我是", "我的名字是", "我的名字叫", "私は", "僕は", "저는", "제 이름은"),
)
_ARTICLES = ("the", "die", "der", "a", "o")
_GREETINGS = words_of(
    "hi hello hey hallo hei hej hola salut bonjour ciao olá oi moin servus there all und and"
)
_OPENING = ".!?,;:-–—。！？，、"
_OF_ANOTHER = ("'s", "の", "的", "의")


def introduces(text: str, name: str) -> bool:
    """True if a message begins a sentence with "I'm Ada", in one of some twenty languages.

    This is for models that do not list the speakers who introduce themselves; it does not find every
    introduction.
    """
    wanted = caseless(name)
    return bool(wanted) and any(_gives(line, wanted) for line in text[:_LONGEST].splitlines())


def _gives(line: str, wanted: str) -> bool:
    said = caseless(line).replace("\u2019", "'")
    at = said.find(wanted)
    while at >= 0:
        after = said[at + len(wanted) :]
        if _ends(after) and _opens(said[:at]):
            return True
        at = said.find(wanted, at + 1)
    return False


def _ends(after: str) -> bool:
    """True if the name ends here, and is no part of "Adam" or "Ada's brother"."""
    goes_on = after[:1].isdigit() or after[:1].upper() != after[:1]  # scripts without capitals join words
    return not goes_on and not after.startswith(_OF_ANOTHER)


def _opens(before: str) -> bool:
    """True if the text before a name is a greeting and a phrase of introduction, at the beginning of a
    sentence."""
    head = before[-_BEFORE:].rstrip()
    words = head.rsplit(" ", 1)
    if len(words) == 2 and words[1] in _ARTICLES:
        head = words[0]
    for phrase in _PHRASES:
        if head.endswith(phrase):
            rest = head.removesuffix(phrase).rstrip()
            if not rest:
                return len(before) <= _BEFORE
            if rest[-1] in _OPENING or rest.split()[-1] in _GREETINGS:
                return True
    return False
