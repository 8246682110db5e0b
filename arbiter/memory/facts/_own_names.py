"""The names that speakers give themselves: "I'm Ada" makes Ada the user, "I'm not Ada" takes that back, and "my
friend Ada" is somebody else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from arbiter.memory._entities import MAX_NAME
from arbiter.memory._notes import Listed
from arbiter.memory._off_record import GREETINGS, without_quotations
from arbiter.memory._records import Record
from arbiter.memory.facts._normal import caseless
from arbiter.memory.stores._words import words_of

LOOKED_AT = 4_000
"""Characters of a message in which code looks for phrases with a name."""
_MOST = 16
"""Names kept for one entity, the latest: of its own, and of others."""


Whose = Literal["own", "not own", "another's"]
_OPPOSITE: dict[Whose, Whose] = {"own": "not own", "not own": "own"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction(Record):
    """A speaker has said in these messages to be called `name`; or not to be, or that somebody else is."""

    name: str
    speaker: str = ""
    source_message_ids: tuple[str, ...] = ()
    whose: Whose = "own"


class OwnNames(Listed[Introduction]):
    """The introductions of one entity. Its own names mean it in its own claims and nowhere else, because anybody
    may give any name."""

    kind, key, field = "own_names", "given", "names"
    member = Introduction

    async def note(self, given: Introduction) -> None:
        """Keep what a speaker says of a name; whether it is their own holds as it was said last."""

        def noted(known: list[Introduction]) -> list[Introduction]:
            same = [one for one in known if same_name(one.name, given.name)]
            over = [one for one in same if one.whose == _OPPOSITE.get(given.whose)]
            left = [one for one in known if one not in over]
            ids = {id for one in same if one.whose == given.whose for id in one.source_message_ids}
            if ids and ids.issuperset(given.source_message_ids):
                return left
            alike = [one for one in left if one.whose == given.whose]
            full = alike[: max(len(alike) + 1 - _MOST, 0)]
            return [*(one for one in left if one not in full), given]

        await self.change(noted)

    async def own(self) -> list[str]:
        return [one.name for one in await self.all() if one.whose == "own"]

    async def remove(self, gone: Collection[Introduction]) -> None:
        await self.change(lambda known: [one for one in known if one not in gone] or None)


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
_PLACES = 64
# Phrases before a name; "~" is the place of a negation, with which a phrase takes the name back.
_phrases = (
    "i am ~|i'm ~|im ~|my name is ~|my name's ~|(?:(do not) )?call me|ich bin ~|ich heiße ~|ich heisse ~"
    "|mein name ist ~|ik ben ~|ik heet ~|mijn naam is ~|je ~ suis ~|je ~ m'appelle ~|mon nom ~ est ~|moi c'est"
    "|moi, c'est|(?:yo )?(?:(no) )?soy|(?:(no) )?me llamo|mi nombre (?:(no) )?es|~ sono|~ mi chiamo|il mio nome ~ è"
    r"|~ sou|eu ~ sou|~ me chamo|eu ~ me chamo|(?:\bo )?meu nome ~ é|jag heter ~|jag är ~|jeg heter ~|jeg hedder ~"
    "|jeg er ~|olen|nimeni on|~ jestem|~ nazywam się|mam na imię ~|jmenuji se|меня ~ зовут ~|я ~|мене ~ звати ~"
    "|benim adim|adim|我~叫|我~是|我的名字~是|我的名字~叫|私は|僕は|저는|제 이름은"
)
_NEGATED = {
    "~ ": "(?:(non|não|ne|nie|не) )?",
    " ~": "(?: (not|nicht|niet|pas|inte|ikke|nie|не))?",
    "~": "(不)?",
}
for _place, _negation in _NEGATED.items():
    _phrases = _phrases.replace(_place, _negation)
_INTRODUCING = re.compile(rf"(?:{_phrases})(?: (?:the|die|der|a|o))?$")
_DENYING = GREETINGS | words_of(
    "no nope wait sorry actually oh well but nein doch aber non mais pero ma mas но"
)
_OPENING = ".!?,;:-–—。！？，、"
_OF_ANOTHER = ("'s", "の", "的", "의")
_MINE = (
    "my|our|(?:mein|unser)(?:e|en|em|er|es)?|mij?n|onze|mon|ma|mes|notre|mi|mis|nuestr[oa]|mio|mia|nostr[oa]|meu|"
    "minha|noss[oa]|min|mitt|vår|m[oó]j|moja|мой|моя|мо[йї]|наш|наша|benim|내|제|우리"
)
_THEIRS = (
    "his|her|their|(?:sein|ihr)(?:e|en|em|er|es)?|zijn|haar|son|sa|su|suo|sua|seu|hans|hennes|hendes|его|её"
)
_ANOTHERS_BEFORE = re.compile(
    rf"\b(?:{_MINE}|{_THEIRS}) (?P<who>[^\W\d]+(?:[ -][^\W\d]+)?),? ?$"
    r"|\b(?:an?|eine?n?|een|une?|una?|um|uma|en|ett|et) (?P<a>[^\W\d]+(?: of mine)?),?"
    r" (?:called|named|namens|llamad[oa]|chamad[oa]|chiamat[oa]|appelée?|genaamd|som heter|der hedder) $"
    r"|(?:我的?|我们的?|她的?|他的?|私の|僕の|俺の)(?P<cjk>[^\W\d是叫]{1,4}?)の?$"
    r"|(?P<ja>友達|友だち|友人|親友|同僚|上司|先輩|後輩|彼女|彼氏|妻|夫|母|父|兄|姉|弟|妹|息子|娘|いとこ)の$"
)
_ANOTHERS_AFTER = re.compile(
    rf"(?:,| is| ist| es| est| è| é| är| er)? (?:(?:{_MINE}) (?P<who>[^\W\d]+)|an? (?P<a>[^\W\d]+) of (?:mine|ours))"
    r"|は(?:私|僕|俺)の(?P<cjk>\w+)"
)
_OF_PHRASES = words_of(re.sub(r"\W", " ", _phrases))
_NAMING = re.compile("nam|nom|имя|зовут|isim|adim|名|이름")
_TOO = re.compile(
    r",? ?(?:too|also|as well|auch|también|aussi|anche|também|ook|också|også|też|тоже|也|도|も)(?!\w)"
)


_NOT = re.compile(
    r",? ?(?:(?:değil|deyil)(?! mi)|(?:では|じゃ|でわ)(?:ない|ありません|なく)|(?:이|가|은|는)? ?아[니닙]|नहीं)"
)


def introduces(text: str, name: str) -> bool:
    """True if a message begins a sentence with "I'm Ada", in one of some twenty languages, not in code or a quotation.

    This is for models that do not list the speakers who introduce themselves; it does not find every
    introduction.
    """
    return any(place.is_own(GREETINGS) for place in _places_of(text, name))


def denies(text: str, name: str) -> bool:
    """True if a message begins a sentence with "I'm not Ada", in as many languages."""
    return any(place.is_own(_DENYING) is False for place in _places_of(text, name))


def tells_of_another(text: str, name: str) -> bool:
    """True if a message tells of somebody else of that name: "my friend Ada", "Ada is my sister", "I'm Ada too"."""
    return any(place.is_anothers() for place in _places_of(text, name))


def said_of(text: str, name: str, listed: Whose | None = None) -> tuple[Whose, ...]:
    """What a message says of a name. A model has `listed` it as the speaker's own, or as not."""
    if not may_give(text, name):
        return ()
    places = [*_places_of(text, name)]
    another = any(place.is_anothers() for place in places)
    found: list[Whose] = ["another's"] if another else []
    if listed != "not own" and any(place.is_own(GREETINGS) for place in places):
        found.append("own")
    elif any(place.is_own(_DENYING) is False for place in places):
        found.append("not own")
    elif listed is not None and not another:
        found.append(listed)
    return tuple(found)


class _Place:
    """A place where a name stands: the text of the line before and after it."""

    def __init__(self, before: str, after: str) -> None:
        self.before, self.after = before, after
        self._head = before[-_BEFORE:].rstrip().replace("n't", " not")
        # Looked for once: this takes most of the time.
        self._phrase = _INTRODUCING.search(self._head)

    def is_own(self, leading: Collection[str]) -> bool | None:
        """True if one of the phrases ends the text before the name, at the beginning of a sentence or after one of
        the `leading` words; False if it does with a negation."""
        if self._phrase is None:
            return None
        rest = self._head[: self._phrase.start()].rstrip()
        begins = rest[-1] in _OPENING or rest.split()[-1] in leading if rest else len(self.before) <= _BEFORE
        return not (self._phrase.lastindex or _NOT.match(self.after)) if begins else None

    def is_anothers(self) -> bool:
        if self.is_own(GREETINGS):
            return _TOO.match(self.after) is not None
        found = _ANOTHERS_BEFORE.search(self.before[-_BEFORE:]) or _ANOTHERS_AFTER.match(self.after[:_BEFORE])
        who = next(filter(None, found.groups()), "") if found else ""
        return bool(who) and not _NAMING.search(who) and _OF_PHRASES.isdisjoint(words_of(who))


def _places_of(text: str, name: str) -> Iterator[_Place]:
    """The first places where that name stands, outside of code and quotations."""
    wanted = caseless(name)
    left = _PLACES
    for line in without_quotations(text[:LOOKED_AT]).splitlines() if wanted else ():
        said = caseless(line).replace("\u2019", "'")
        at = said.find(wanted)
        while at >= 0 and left > 0:
            left -= 1
            before, after = said[:at], said[at + len(wanted) :]
            if _ends(after):
                yield _Place(before, after)
            at = said.find(wanted, at + 1)


def _ends(after: str) -> bool:
    """True if the name ends here, and is no part of "Adam" or "Ada's brother"."""
    goes_on = after[:1].isdigit() or after[:1].upper() != after[:1]  # scripts without capitals join words
    return not goes_on and not after.startswith(_OF_ANOTHER)
