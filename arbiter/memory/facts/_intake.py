"""Decides which claims may be remembered, about which entity, and on whose word."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, cached_property
from itertools import islice
from typing import Any, get_args

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter._values.normal import normalized
from arbiter.memory._context import EvalContext
from arbiter.memory._conversation import originals, text_of
from arbiter.memory._entities import Entity, called, resolve, without_label
from arbiter.memory._off_record import is_on_record
from arbiter.memory._records import BELIEVED, KINDS, Claim, Fact, Provenance, Sensitivity, time_of
from arbiter.memory.facts._changes import Mention
from arbiter.memory.facts._normal import caseless, normal_form, sentences
from arbiter.memory.facts._own_names import (
    LOOKED_AT,
    Introduction,
    Whose,
    introduces,
    may_give,
    names_itself,
    said_of,
    same_name,
    tells_of_another,
)
from arbiter.memory.facts._privacy import category, has_secret
from arbiter.memory.facts._rules import FactRules

LONGEST = 2_000
"""Longest text of a claim in characters."""
_LONGEST_SUBJECT = 200
_LOOKED_BACK = 64
"""Messages, the last ones, in which a speaker may have said how it is called."""
_TEXT_LOOKED_BACK = 16_000
"""Characters of those that the speakers have written among them, together."""
_SENSITIVITIES: dict[str | None, Sensitivity] = {each: each for each in get_args(Sensitivity)}
_USER_NAMES = (
    "user|the user|human|the human|speaker|the speaker|customer|i|self|myself|nutzer|der nutzer|nutzerin|die nutzerin|"
    "benutzer|der benutzer|gebruiker|de gebruiker|utilisateur|l'utilisateur|utilisatrice|l'utilisatrice|usuario|"
    "el usuario|usuaria|la usuaria|usuário|o usuário|utente|l'utente|användaren|brugeren|brukeren|käyttäjä|użytkownik|"
    "uživatel|пользователь|користувач|kullanıcı|χρήστης|המשתמש|المستخدم|उपयोगकर्ता|用户|用戶|ユーザー|사용자"
)
_USER = frozenset(map(caseless, _USER_NAMES.split("|")))
"""Generic names that models use for the user of the turn, in the languages of conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A claim that may be remembered. `scope` is the entity whose namespace it belongs to, `id` the key of the
    record that it would get there; `Knowledge` gives it."""

    claim: Claim
    scope: str
    subject: str
    mention: Mention
    provenance: Provenance
    sensitivity: Sensitivity
    id: str = ""
    moved: Fact | None = None
    """The record of this claim under another subject; the new record takes its place."""

    @property
    def kind(self) -> str:
        return KINDS[self.claim.type]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that may hold the same claim: one evaluator's status is another's fact."""
        return ("opinions",) if self.claim.type == "opinion" else BELIEVED

    def is_about(self, subject: str) -> bool:
        """True for the same subject. Names of somebody who takes no part are compared in any case."""
        return self.subject == subject or (
            self.scope not in (self.subject, subject) and caseless(self.subject) == caseless(subject)
        )

    def as_sensitive(self) -> Candidate:
        """The same candidate, visible in its room only."""
        return replace(self, sensitivity="sensitive", mention=replace(self.mention, visibility="room"))

    def not_before(self, times: Iterable[datetime]) -> Candidate:
        """The candidate as one of the latest of these times, if its own is earlier."""
        at = max((self.mention.at, *times))
        return self if at == self.mention.at else replace(self, mention=replace(self.mention, at=at))


def is_generic(name: str) -> bool:
    return caseless(name) in _USER


class Intake:
    """The admission of one turn's claims. `forgotten` messages are no sources, and those that `asked` for it
    are not shown. `dropped_private` and `dropped_invalid` count the rejected claims by reason."""

    def __init__(self, ctx: EvalContext, rules: FactRules) -> None:
        self.ctx = ctx
        self.rules = rules
        self.forgotten: Collection[str] = ()
        self.asked: Collection[str] = ()
        self.dropped_private = 0
        self.dropped_invalid = 0
        self.names: dict[str, list[Introduction]] = {}
        """What speakers have said of names, their own and those of others, in the order in which they said it."""
        self._introducing: list[Introduction] = []
        # Many claims may have one subject, or come from one message.
        self._said_of = cache(said_of)
        self._gives = cache(introduces)
        self._shares = cache(tells_of_another)
        self._sources: dict[str, BaseMessage | None] = {}

    def speakers(self, claims: Iterable[Claim], names: Iterable[Introduction] = ()) -> set[str]:
        """The speakers of the messages that the claims and names come from, without the agent."""
        sources = [one.source_message_ids for one in claims] + [one.source_message_ids for one in names]
        spoken = self.spoken({id for ids in sources for id in ids})
        return {speaker for _, speaker in spoken} - {self.ctx.agent_id}

    def introductions(self, claims: Iterable[Claim], names: Iterable[Introduction]) -> list[Introduction]:
        """What speakers say of names, in the order in which they said it: of those that a model lists or gives as
        the speaker's name, and of the subjects of claims."""
        found: dict[Introduction, None] = {}

        def add(name: str, spoken: Sequence[tuple[BaseMessage, str]], listed: Whose | None = None) -> None:
            for message, speaker in spoken:
                is_somebody = speaker not in (self.ctx.agent_id, *self.ctx.strangers.values())
                if isinstance(message, HumanMessage) and is_somebody and not is_generic(name):
                    for whose in self._said_of(text_of(message), name, listed):
                        said = Introduction(
                            name=name,
                            speaker=speaker,
                            source_message_ids=(str(message.id),),
                            whose=whose,
                        )
                        found[said] = None

        for one in names:
            add(one.name, self.spoken(one.source_message_ids), one.whose)
        for claim in claims:
            spoken = self.spoken(claim.source_message_ids)
            if claim.value and names_itself(claim.slot) and self._is_own(claim, spoken):
                add(claim.value, spoken, "own")
            if claim.subject and not _is_secret(claim):
                add(claim.subject, self._before(spoken))
        given = sorted(found, key=lambda said: self.place(said.source_message_ids))
        self._introducing = [
            said for said in given if said.whose == "own" and not self._is_denied(said, given)
        ]
        return given

    def _is_denied(self, said: Introduction, given: Iterable[Introduction]) -> bool:
        """True if the speaker has said since then not to be called so."""
        place = self.place(said.source_message_ids)
        return any(
            other.whose == "not own"
            and other.speaker == said.speaker
            and same_name(other.name, said.name)
            and self.place(other.source_message_ids) > place
            for other in (*given, *self.names.get(said.speaker, ()))
        )

    def _is_own(self, claim: Claim, spoken: Sequence[tuple[BaseMessage, str]]) -> bool:
        """True if a claim is about its only speaker."""
        speakers = [*{speaker for _, speaker in spoken}]
        return len(speakers) == 1 and self._subject(claim, speakers) == (speakers[0], speakers[0])

    def _before(self, spoken: Sequence[tuple[BaseMessage, str]]) -> list[tuple[BaseMessage, str]]:
        """These messages and earlier ones of the same speakers, the last ones of the conversation."""
        speakers = {speaker for _, speaker in spoken}
        ids = {str(message.id) for message, _ in spoken}
        left = _TEXT_LOOKED_BACK
        for message in islice(self._latest(), _LOOKED_BACK if spoken else 0):
            if isinstance(message, HumanMessage) and self.ctx.speaker_of(message) in speakers:
                left -= min(len(text_of(message)), LOOKED_AT)
                if left < 0:
                    break
                ids.add(str(message.id))
        return self.spoken(ids)

    def is_taken(self, given: Introduction) -> bool:
        """True if a name may mean another participant or a registered entity, to whom it stays."""
        return bool(called(given.name, self.ctx.entities) - {given.speaker})

    def admitted(self, claims: Iterable[Claim]) -> list[Candidate]:
        """The claims that may be remembered, each once, in order of first appearance."""
        found: dict[tuple[str, ...], Candidate] = {}
        for claim in claims:
            candidate = self._candidate(claim)
            if candidate is None:
                continue
            # A repeated claim keeps all sources; it is new if one of the repetitions is.
            key = (candidate.kinds[0], candidate.scope, candidate.subject, normal_form(candidate.claim.claim))
            before = found.get(key)
            found[key] = candidate if before is None else _joined(before, candidate)
        return list(found.values())

    def place(self, message_ids: Iterable[str]) -> int:
        """The place of the newest of these messages in the conversation; -1 if none is in it."""
        return max((self._places.get(id, -1) for id in message_ids), default=-1)

    def spoken(self, message_ids: Iterable[str]) -> list[tuple[BaseMessage, str]]:
        """Those of the messages that a model may see, oldest first, with their speakers."""
        ids = {*message_ids} - {*self.asked}
        known = sorted(ids & self._places.keys(), key=self._places.__getitem__)
        return [(message, self.ctx.speaker_of(message)) for message in map(self._message, known) if message]

    def _candidate(self, claim: Claim) -> Candidate | None:
        if not _is_claim(claim):
            self.dropped_invalid += 1
            return None
        if claim.in_bio or (claim.type == "opinion" and not self.rules.store_opinions):
            return None
        if normal_form(claim.claim) in sentences(self.ctx.character.bio):
            return None
        if _is_secret(claim):
            self.dropped_private += 1
            return None
        # Patterns decide only if the model does not say.
        sensitive = claim.sensitivity == "sensitive" or (
            claim.sensitivity not in _SENSITIVITIES and category(claim.claim, claim.slot, claim.value)
        )
        if sensitive and not self.rules.allow_sensitive:
            self.dropped_private += 1
            return None
        return self._attributed(claim, "sensitive" if sensitive else None)

    def _attributed(self, claim: Claim, sensitivity: Sensitivity | None) -> Candidate | None:
        """The claim with its subject and speaker; None if no credible speaker has said it."""
        since, until = (when and time_of(when) for when in (claim.valid_from, claim.valid_to))
        claim = replace(claim, valid_from=since, valid_to=until)
        if claim.derived_from:
            if not self.rules.chaining:
                return None
            scope, subject = self._subject(claim, [])
            return self._made(claim, scope, subject, "inferred", sensitivity, (), self.ctx.agent_id)
        cited = [id for id in claim.source_message_ids if id in self._places]
        told = [message for message in map(self._message, cited) if message is not None]
        if cited and not told:
            self.dropped_private += 1
            return None
        if not told and self._newest is not None and not self.ctx.strangers:
            told = [self._newest]
        speakers = [self.ctx.speaker_of(message) for message in told]
        scope, subject = self._subject(claim, speakers if cited else [])
        # The agent's claims about others are repetitions or inventions, so they are no evidence.
        heard = [
            (str(message.id), speaker)
            for message, speaker in zip(told, speakers, strict=True)
            if (speaker != self.ctx.agent_id or scope == self.ctx.agent_id)
            and speaker not in self.ctx.strangers.values()
        ]
        if not heard:
            return None
        sources = tuple(id for id, _ in heard)
        given: Provenance = "self_reported" if heard[0][1] == subject else "third_party"
        return self._made(claim, scope, subject, given, sensitivity, sources, heard[0][1])

    def _made(
        self,
        claim: Claim,
        scope: str,
        subject: str,
        provenance: Provenance,
        sensitivity: Sensitivity | None,
        sources: tuple[str, ...],
        speaker: str,
    ) -> Candidate:
        ctx = self.ctx
        narrow = sensitivity == "sensitive" or ctx.is_private
        return Candidate(
            claim=claim,
            scope=scope,
            subject=subject,
            provenance=provenance,
            sensitivity=sensitivity or _SENSITIVITIES.get(claim.sensitivity, "personal"),
            mention=Mention(
                sources=sources,
                speaker=speaker,
                room_id=ctx.room_id,
                at=ctx.ended_at,
                turn=ctx.run_key,
                visibility="room" if narrow else self.rules.visibility,
            ),
        )

    def _subject(self, claim: Claim, speakers: Sequence[str]) -> tuple[str, str]:
        """The entity whose namespace a claim belongs to, and its subject.

        A claim about somebody who takes no part is stored with its speaker.
        """
        users = [speaker for speaker in speakers if speaker != self.ctx.agent_id]
        author = users[0] if users else self.ctx.entity_id
        people = (*self.ctx.entities, Entity(id=self.ctx.entity_id))
        named = without_label((claim.subject or "").strip(), people)
        scope, subject = self._resolved(claim, author, named)
        if subject == author and self._means_another(author, named, claim.source_message_ids):
            return author, normal_form(named)
        return scope, subject

    def _resolved(self, claim: Claim, author: str, named: str) -> tuple[str, str]:
        if not named or self._introduces(author, named, claim.source_message_ids):
            return author, author
        if any(same_name(named, own.name) for own in self.names.get(author, ()) if own.whose == "own"):
            others = called(named, self.ctx.entities) - {author}
            return (author, author) if not others else (author, normal_form(named))
        known = resolve(named, self.ctx.entities)
        if known is None and author in called(named, self.ctx.entities):
            known = author  # of two people with one name, a model means the speaker
        if known is None and named == self.ctx.entity_id:
            known = named
        if known is None and is_generic(named):
            known = author
        if known in self.ctx.strangers.values():
            return author, next(name for name, id in self.ctx.strangers.items() if id == known)
        return (known, known) if known is not None else (author, normal_form(named))

    def _introduces(self, author: str, name: str, message_ids: Collection[str]) -> bool:
        """True if one of the messages says that its author is called so, or if an earlier one does and the
        name means no other participant."""
        return any(
            given.speaker == author
            and same_name(given.name, name)
            and (not {*message_ids}.isdisjoint(given.source_message_ids) or not self.is_taken(given))
            for given in self._introducing
        )

    def _means_another(self, author: str, name: str, message_ids: Collection[str]) -> bool:
        """True if the author tells of somebody else of the same name in these messages: "my friend Ada", or Ada
        alone after that."""
        if not name or name == author or is_generic(name):
            return False
        said = [one for one in self.names.get(author, ()) if same_name(one.name, name)]
        shared = any(one.whose == "another's" for one in said)
        own = {
            id for one in (*said, *self._introducing) if one.whose == "own" for id in one.source_message_ids
        }
        return any(
            message.id not in own
            and not self._gives(text_of(message), name)
            and (self._shares(text_of(message), name) or (shared and may_give(text_of(message), name)))
            for message, speaker in self.spoken(message_ids)
            if speaker == author
        )

    @cached_property
    def _places(self) -> dict[str, int]:
        said = originals(self.ctx.messages)
        return {message.id: place for place, message in enumerate(said) if message.id}

    def _message(self, id: str) -> BaseMessage | None:
        """The message of the conversation with that id; None if it may not be a source."""
        if id not in self._sources:
            place, said = self._places[id], self.ctx.messages
            self._sources[id] = said[place] if is_on_record(said, place, self.forgotten) else None
        return self._sources[id]

    def _latest(self) -> Iterator[BaseMessage]:
        """The messages that may be sources, the newest first."""
        return (message for id in reversed(self._places) if (message := self._message(id)) is not None)

    @cached_property
    def _newest(self) -> BaseMessage | None:
        return next((message for message in self._latest() if isinstance(message, HumanMessage)), None)


def wrong_text(claim: Claim | Fact) -> str | None:
    """The field whose text is too long, or `claim` if it is blank; None if all are right."""
    texts: dict[str, Any] = {name: getattr(claim, name) for name in ("claim", "slot", "value")}
    for name, text in texts.items():
        if not isinstance(text or "", str) or len(text or "") > LONGEST:
            return name
        # NFKC makes 18 characters of one in the worst case, and no language twice as many.
        if len(normalized("NFKC", text or "")) > 2 * LONGEST:
            return name
    return None if (texts["claim"] or "").strip() else "claim"


def _is_claim(claim: Claim) -> bool:
    subject: Any = claim.subject or ""
    is_named = isinstance(subject, str) and len(subject) <= _LONGEST_SUBJECT
    return is_named and wrong_text(claim) is None and claim.type in KINDS


def _is_secret(claim: Claim) -> bool:
    return has_secret(claim.claim, subject=claim.subject, slot=claim.slot, value=claim.value)


def _joined(one: Candidate, other: Candidate) -> Candidate:
    sources = dict.fromkeys((*one.mention.sources, *other.mention.sources))
    first, second = one.claim, other.claim
    return replace(
        one,
        claim=replace(
            first,
            already_known=first.already_known and second.already_known,
            known_id=first.known_id or second.known_id,
            slot=first.slot or second.slot,
            value=first.value or second.value,
            kind=first.kind or second.kind,
            valid_from=first.valid_from or second.valid_from,
            valid_to=first.valid_to or second.valid_to,
            corrects=tuple(dict.fromkeys((*first.corrects, *second.corrects))),
        ),
        mention=replace(one.mention, sources=tuple(sources)),
    )
