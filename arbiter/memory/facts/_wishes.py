"""Carries out what users want forgotten: as a model has read it, or as whole messages command it.

Code decides who may ask: the speaker of a human message, about facts that are about them or that they alone
have told, and about their own messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import takewhile
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter.memory._commands import hastens, plain_command
from arbiter.memory._context import EvalContext
from arbiter.memory._conversation import counts, originals, text_of
from arbiter.memory._records import Claim, Fact
from arbiter.memory._tombstones import Pending
from arbiter.memory.facts._changes import OPEN
from arbiter.memory.facts._extraction import Remarks, Request, fact_of, label, meant
from arbiter.memory.facts._forgetting import Forgetting, Forgotten, Wanted
from arbiter.memory.facts._normal import caseless
from arbiter.memory.stores._words import terms_that_mean

_ALL = 5
"""As many facts of a speaker, if the model names all that it was shown, are everything, also if it does not say so."""
_LONGEST = 1_000
"""Characters of a message that are compared with the words of a wish."""
_PATIENCE = 2
"""Turns that may pass without an answer to the question whether to forget everything."""


@dataclass(slots=True, kw_only=True)
class Carried:
    """The outcome of the wishes of one turn, as counts and ids. `gone` are the deleted facts, `unsaid` new claims
    that are not to be learned, `fields` those of profiles with the values that they had, and `asking` the messages
    whose wish was carried out; `ignored` counts unknown ids and those of others."""

    forgotten: int = 0
    off_record: int = 0
    ignored: int = 0
    everything: str = ""
    """`asked` if the user must confirm the wish to forget everything, `done` if it was carried out."""
    undo_ids: list[str] = field(default_factory=list[str])
    gone: list[Fact] = field(default_factory=list[Fact])
    unsaid: set[str] = field(default_factory=set[str])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    asking: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, forgotten: Forgotten) -> None:
        self.forgotten += forgotten
        if forgotten.id is not None:
            self.undo_ids.append(forgotten.id)

    def data(self) -> dict[str, object]:
        """For the metadata of a result: what is not empty, and `forgotten`."""
        rest = {
            "off_record": self.off_record,
            "ignored_wishes": self.ignored,
            "everything": self.everything,
            "undo_ids": self.undo_ids,
        }
        return {"forgotten": self.forgotten, **{key: value for key, value in rest.items() if value}}


@dataclass(slots=True, kw_only=True)
class _Asked:
    """What one speaker wants forgotten; of new claims, their words."""

    facts: set[str] = field(default_factory=set[str])
    claims: set[str] = field(default_factory=set[str])
    messages: set[str] = field(default_factory=set[str])
    fields: set[str] = field(default_factory=set[str])
    asking: set[str] = field(default_factory=set[str])
    off_record: bool = False
    """True if some of these messages were not meant to be remembered in the first place."""

    def add(self, what: _Asked, asking: str) -> None:
        self.facts |= what.facts
        self.claims |= what.claims
        self.messages |= what.messages
        self.fields |= what.fields
        self.asking |= {*what.asking, asking}
        self.off_record |= what.off_record

    def names(self, fact: Fact) -> bool:
        """True for such a fact, and for one that has no other source than such messages."""
        sources = {*fact.source_message_ids}
        return fact.id in self.facts or (bool(sources) and sources <= self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a model has read and named: the facts of its prompt by id, by their labels the human messages in it and
    the `fresh` ones among them, and by their words (`worded`), by their words the sources of the new claims, and the
    fields of the user's profiles."""

    facts: Mapping[str, Fact]
    known: Mapping[str, BaseMessage]
    fresh: dict[str, BaseMessage]
    worded: Mapping[str, BaseMessage]
    said: Mapping[str, Collection[str]]
    fields: Collection[str]

    @property
    def newest(self) -> BaseMessage | None:
        return next(reversed(self.fresh.values()), None)

    def message(self, named: str) -> BaseMessage | None:
        """The message that a model names: it may write the words of one for its id."""
        return self.known.get(meant(named, self.known)) or self.worded.get(caseless(named[:_LONGEST]))


class WishBook:
    """The wishes of one turn, carried out one after another."""

    def __init__(self, ctx: EvalContext, forgetting: Callable[[str], Forgetting]) -> None:
        self.ctx = ctx
        self.carried = Carried()
        self._forgetting = forgetting

    async def resume(self) -> None:
        """Carry out to the end what an earlier attempt has begun."""
        for speaker, messages in (await self.ctx.hidden(anew=True)).begun.items():
            await self._forget(speaker, _Asked(messages={*messages}))

    # Commands

    async def commands(self, unread: Sequence[BaseMessage]) -> None:
        """Carry out the unread messages that are nothing but a command, each once."""
        hidden = await self.ctx.hidden()
        for message in unread:
            command = command_of(message)
            if command is None or message.id in hidden.forgotten:
                continue
            speaker = self.ctx.speaker_of(message)
            if command == "everything":
                await self._everything(speaker, message)
            else:
                await self._forget(speaker, _Asked(messages={*self._said_before(message, speaker)[-1:]}))
                await self._is_done(message)
            hidden = await self.ctx.hidden(anew=True)

    # What a model has read

    async def read(
        self,
        wishes: Remarks,
        *,
        shown: Mapping[str, Fact],
        fresh: Sequence[BaseMessage],
        earlier: Sequence[BaseMessage],
        claims: Iterable[Claim],
        fields: Collection[str],
    ) -> None:
        """Carry out a model's answer about `fresh` messages, with a human one among them; `shown` are the facts of its
        prompt by id, `earlier` the other messages in it, `claims` those of the same answer, and `fields` the names of
        those of the user's profiles."""
        known = _humans((*earlier, *fresh))
        read = _Read(
            facts=shown,
            known=known,
            worded={caseless(text_of(each)[:_LONGEST]): each for each in reversed(known.values())},
            fresh=_humans(fresh),
            said=_sources(claims),
            fields=fields,
        )
        asked = self._checked(wishes, read)
        newest = next(m for m in reversed(fresh) if isinstance(m, HumanMessage))
        decision = wishes.forget_everything
        speaker = self.ctx.speaker_of(newest)
        few = 1 if decision else _ALL
        if self._is_all(asked.get(speaker), shown, speaker, few):
            del asked[speaker]
            decision = True
        for speaker, what in asked.items():
            self.carried.off_record += len(what.messages)
            self.carried.unsaid |= what.claims
            await self._forget(speaker, what)
            self.carried.asking |= dict.fromkeys(what.asking - what.messages)
        await self._decide_everything(decision, newest)
        if self.carried.gone or asked or self.carried.everything:
            await self.ctx.hidden(anew=True)

    def _checked(self, wishes: Remarks, read: _Read) -> dict[str, _Asked]:
        """By speaker, what it may have forgotten of what the model has read."""
        found: dict[str, _Asked] = {}
        for request in wishes.forget:
            asking = self._asking(request, read, read.newest)
            what = None if asking is None else self._named(request.id, asking, read)
            if asking is None or what is None:
                self.carried.ignored += 1
                continue
            found.setdefault(self.ctx.speaker_of(asking), _Asked()).add(what, str(asking.id))
        for request in wishes.off_record:
            message = read.message(request.id)
            # A new message may ask for itself; an earlier one was read without a wish, so the newest asks for it.
            asking = self._asking(request, read, message if message in read.fresh.values() else read.newest)
            if (
                message is None
                or asking is None
                or self.ctx.speaker_of(asking) != self.ctx.speaker_of(message)
            ):
                self.carried.ignored += 1
                continue
            what = _Asked(messages={str(message.id)}, off_record=True)
            found.setdefault(self.ctx.speaker_of(asking), _Asked()).add(what, str(asking.id))
        return found

    def _named(self, named: str, asking: BaseMessage, read: _Read) -> _Asked | None:
        """What a model names that a message asks to forget, if its speaker may: a known fact, another message, a field
        of the user's profiles, or the words of a new claim."""
        speaker = self.ctx.speaker_of(asking)
        message = read.message(named)
        if (fact := fact_of(named, read.facts)) is not None:
            asked = self._claimed(caseless(fact.claim), asking, read)
            asked.facts.add(fact.id)
            return asked if self._is_theirs(fact, speaker) else None
        if message is not None:
            is_own = self.ctx.speaker_of(message) == speaker and message is not asking
            return _Asked(messages={str(message.id)}) if is_own else None
        if named_field := meant(named, read.fields):
            return _Asked(fields={named_field}) if speaker == self.ctx.entity_id else None
        return self._claimed(caseless(named), asking, read) if caseless(named) in read.said else None

    def _claimed(self, words: str, asking: BaseMessage, read: _Read) -> _Asked:
        """A claim with these words, which no prompt is to repeat from the speaker's messages before the wish."""
        speaker = self.ctx.speaker_of(asking)
        before = takewhile(lambda message: message is not asking, read.fresh.values())
        own = {str(message.id) for message in before if self.ctx.speaker_of(message) == speaker}
        return _Asked(claims={words}, asking=own.intersection(read.said.get(words, ())))

    def _is_all(self, what: _Asked | None, shown: Mapping[str, Fact], speaker: str, few: int) -> bool:
        """True if a wish names all facts of its speaker that the model was shown, at least `few`: it is asked back."""
        if what is None or what.off_record:
            return False
        theirs = {id for id, fact in shown.items() if fact.state in OPEN and self._is_theirs(fact, speaker)}
        return len(theirs) >= few and theirs <= what.facts

    def _asking(self, request: Request, read: _Read, default: BaseMessage | None) -> BaseMessage | None:
        """The fresh message that asks; `default` if the model names none. If it names another one, the default asks
        too, unless it is or may be somebody else's."""
        named = read.known.get(meant(request.message_id, read.known))
        if request.message_id is None or named in read.fresh.values():
            return named or default
        speakers = {*map(self.ctx.speaker_of, [*read.fresh.values(), *([] if named is None else [named])])}
        return default if len(speakers) == 1 else None

    def _is_theirs(self, fact: Fact, speaker: str) -> bool:
        return fact.subject == speaker or fact.speakers == (speaker,)

    # Everything

    async def _decide_everything(self, decision: bool | None, newest: BaseMessage) -> None:
        """Ask back before everything is forgotten; carry it out if the wish is reported again."""
        ctx = self.ctx
        speaker = ctx.speaker_of(newest)
        forgettings = ctx.everything(speaker)
        pending = await forgettings.pending(ctx.clock())
        # A message may be read a second time, and is no answer to itself.
        if decision is True and pending is not None and pending.message_id != newest.id:
            await self._everything(speaker, newest)
        elif decision is True:
            noted = Pending(at=ctx.clock(), entity_id=speaker, message_id=newest.id or "")
            await forgettings.ask_back(noted)
            self.carried.everything = "asked"
        elif pending is not None and ctx.ended_at >= pending.at:
            # A turn that ended before the wish was noted could not answer the question.
            turns = pending.turns + 1
            lapses = decision is False or turns >= _PATIENCE
            await forgettings.ask_back(None if lapses else replace(pending, turns=turns))
            await ctx.hidden(anew=True)

    async def _everything(self, speaker: str, message: BaseMessage) -> None:
        said = {self.ctx.room_id: self._said_before(message, speaker)}
        wanted = Wanted(fact=lambda fact: True, told=True, everything=self.ctx.ended_at, messages=said)
        await self._carry_out(speaker, wanted)
        await self._is_done(message)
        await self.ctx.everything(speaker).ask_back(None)
        self.carried.everything = "done"

    # Both

    async def _forget(self, speaker: str, what: _Asked) -> None:
        messages = {self.ctx.room_id: what.messages} if what.messages else {}
        wanted = Wanted(
            fact=what.names,
            fields=what.fields,
            messages=messages,
            asked=what.asking,
            named=bool(what.facts or what.claims or what.fields),
            told=True,
        )
        if messages:
            await self.ctx.tombstones.begin(speaker, what.messages)
        await self._carry_out(speaker, wanted)
        if messages:
            await self.ctx.tombstones.end(speaker)

    async def _carry_out(self, speaker: str, wanted: Wanted) -> None:
        forgetting = self._forgetting(speaker)
        # Before the claims of the same turn, which may tell what holds in place of the forgotten.
        forgetting.wished_at = self.ctx.ended_at - timedelta.resolution
        self.carried.add(await forgetting.forget(wanted))
        self.carried.gone += forgetting.gone.values()
        self.carried.fields |= forgetting.fields

    async def _is_done(self, message: BaseMessage) -> None:
        """Note a message whose wish was carried out: at the end, so that a crash repeats it, and apart, so that
        an undo does not."""
        await self.ctx.tombstones.bury([str(message.id)], at=self.ctx.clock())

    def _said_before(self, message: BaseMessage, speaker: str) -> list[str]:
        """The ids of a speaker's messages before that one, oldest first."""
        before = takewhile(lambda said: said.id != message.id, originals(self.ctx.messages))
        spoken = (said for said in before if isinstance(said, HumanMessage) and counts(said))
        return [said.id for said in spoken if said.id and self.ctx.speaker_of(said) == speaker]

    def still_claimed(self, claims: Iterable[Claim]) -> list[Claim]:
        """The claims without those that repeat what their own speaker has just had forgotten, from messages up to
        the one that asked: claims with the same words, or the same id, and claims that tell of the wish itself."""
        gone, asking = self.carried.gone, self.carried.asking
        if not gone and not self.carried.unsaid:
            return [*claims]
        places = {message.id: place for place, message in enumerate(originals(self.ctx.messages))}
        last = max((places[id] for id in asking if id in places), default=-1)
        ids = {fact.id for fact in gone}
        texts = {caseless(fact.claim) for fact in gone}
        words = {word for text in texts for word in terms_that_mean(text)}
        texts |= self.carried.unsaid

        def repeats(claim: Claim) -> bool:
            text = caseless(claim.claim)
            tells_of_the_wish = hastens(text) or "remember" in text
            return (
                claim.known_id in ids
                or text in texts
                or (tells_of_the_wish and not words.isdisjoint(terms_that_mean(text)))
            )

        return [
            claim
            for claim in claims
            if not repeats(claim) or any(places.get(id, last + 1) > last for id in claim.source_message_ids)
        ]


def _sources(claims: Iterable[Claim]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for claim in claims:
        found.setdefault(caseless(claim.claim), set()).update(claim.source_message_ids)
    return found


def _humans(messages: Iterable[BaseMessage]) -> dict[str, BaseMessage]:
    return {label(m.id): m for m in messages if isinstance(m, HumanMessage) and m.id}


def command_of(message: BaseMessage) -> str | None:
    return plain_command(text_of(message)) if isinstance(message, HumanMessage) else None
