"""Recognises requests of privacy in messages: off the record, or to be forgotten. English only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter.memory._conversation import counts, speaker_of, text_of
from arbiter.memory.facts._guards import names
from arbiter.memory.facts._patterns import one_of
from arbiter.memory.stores._words import words_of
from arbiter.redaction._texts import bare

_THIS = one_of(r"""
    this|that|it|these|those
    what i\W\w+ (?:telling|going|about)\b.{0,40}?|what i (?:just )?(?:say|said|tell|told)(?: you)?
""")
_SECRET = (
    r"(?:\w+ly |very |all |just |a |to be )*"
    r"(?:confidential|private|secret|quiet|between (?:us|you and me)|to yourself)\b"
)
_NOT = (
    r"(?:do not|don't|dont|never|please not|must not|mustn't|shouldn't|not to|(?:can|could|would) you not"
    r"|(?:rather|prefer|prefer if|prefer it if) you (?:didn't|did not|not)) (?:ever |please |you |dare )*"
)
_REMEMBER = (
    r"(?:remember|store|save|record|keep|log|memori[sz]e|note|retain|write|repeat) (?:down |any of |about )*"
)
_OFF_RECORD = re.compile(
    one_of(rf"""
        (?<!not )(?<!n't )(?<!no longer )\b(?:off[ -]the[ -]record|not for the record)\b
        (?<!\bi )(?<!\bwe )(?<!\bthey )\b{_NOT}{_REMEMBER}(?:this|that|it\b|these|those|what|anything|the following)
        \b(?:do not|don't|dont|never) tell (?:anyone|anybody|a soul)
        \b{_THIS}(?:'s| is| are| was| stays?| remains?| (?:should|must|has to|needs to) (?:be|stay|remain)) {_SECRET}
        \bkeep {_THIS} {_SECRET}
        \b(?:just|strictly) between us\b|\bbetween you and me\b|\bin (?:strict |the strictest )?confidence\b
        ^(?:strictly )?confidential(?:ly)?\s*[:,.!-]
    """)
)


def off_the_record(text: str) -> bool:
    """True if a message asks not to be remembered itself."""
    plain = _plain(text)
    # A phrase may continue on the next line.
    return any(_OFF_RECORD.search(looked_at) is not None for looked_at in (plain, plain.replace("\n", " ")))


# Forgetting ---------------------------------------------------------------------------------------

_ASKED = (
    r"(?:^|[.!?;:,\n]\s*|\s-+\s*|\b(?:please|pls|can you|could you|would you|will you|i want you to|i need you to"
    r"|i(?:'d| would) like you to|you (?:should|must|have to))\s+)(?:please |just |now |kindly )*"
)
_SAID = r"i(?:'ve| have)? (?:ever |just )?(?:said|told you|mentioned|shared|wrote)"
_KNOWN = rf"(?:you (?:know|learned|learnt|remember|stored|saved|have)|{_SAID})"
_OF_ME = r"(?: (?:about|of|on) me)"
_ALL = r"(?:everything|all (?:data|information|facts|memories)|all|whatever|what)"
_END = r"\s*(?=[.!?,;\n]|$)"
_TOPIC = r"[^.,;!?\n]+"
_EVERYTHING = (
    rf"(?:everything|anything|all(?: of it)?)(?: that)?(?: {_KNOWN})?{_OF_ME}?"
    r"|(?:all )?(?:about )?me|who i am"
)
_DATA = (
    rf"{_ALL}(?: that)? {_KNOWN}{_OF_ME}?"
    r"|(?:all )?(?:of )?my (?:data|memor(?:y|ies)|facts)|your memor(?:y|ies) of me"
)
_FORGOTTEN = one_of(rf"""
    (?P<all>{_EVERYTHING}){_END}
    (?P<last>(?:what|the (?:last )?(?:thing|message|part))(?: that)? {_SAID}(?: (?:just )?(?:now|before))?){_END}
    (?:(?:everything|anything|all|what)(?: that)? (?:{_KNOWN} )?)?(?:about |that |of )?(?P<topic>{_TOPIC})
""")
_ERASED = one_of(rf"""
    (?P<data>{_DATA}){_END}
    {_ALL}(?: that)? {_KNOWN} (?:about|of|on) (?P<about>{_TOPIC})
""")
_FORGET = re.compile(
    rf"{_ASKED}(?:(?:forget|unremember) {_FORGOTTEN}|(?:erase|delete|remove|wipe|clear) {_ERASED})"
)
_NEVER_MIND = re.compile(r"\bnever ?mind\W{1,3}(?:please |just )*forget (?:that|this)(?: again)?\W*$")
_SAYS_NOTHING = words_of("""
    a about all also am an and any anything are as at be been being but by did do does ever everything fact facts for
    from had has have he her him his i if in is it its just know me mention mentioned mine my never not now of on or our
    ours please said say she so some something that the their them there these they thing things this those to told
    tell us user users was we were what when where which who will with would you your
    m s d t ll re ve don doesn didn isn aren wasn weren hasn haven hadn
""")
_IRREGULAR = {
    "ate": "eat", "began": "begin", "bought": "buy", "broke": "break", "came": "come", "drove": "drive", "felt": "feel",
    "found": "find", "gave": "give", "gone": "go", "got": "get", "gotten": "get", "grew": "grow", "kept": "keep",
    "knew": "know", "left": "leave", "lost": "lose", "made": "make", "met": "meet", "paid": "pay", "ran": "run",
    "saw": "see", "sold": "sell", "spent": "spend", "spoke": "speak", "took": "take", "taught": "teach",
    "thought": "think", "went": "go", "won": "win", "wrote": "write", "goes": "go", "going": "go", "children": "child",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """A request to forget: everything, the speaker's last message, or all texts with all of `words`. If no
    text has them, all texts with all of `named`."""

    everything: bool = False
    last: bool = False
    words: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()

    def means(self, text: str, *, loosely: bool = False) -> bool:
        """True if the request covers a text; with `loosely`, if the text has the same names."""
        if self.everything:
            return True
        if loosely:
            return bool(self.named) and self.named <= {name.casefold() for name in names(text)}
        return bool(self.words) and self.words <= _said(text)


def forget_request(text: str) -> Forget | None:
    """The request to forget in a message; None if there is none ("don't forget that ..." is none)."""
    plain = _plain(text)
    if _NEVER_MIND.search(plain):
        return Forget(last=True)
    found = _FORGET.search(plain)
    if found is None:
        return None
    if found["all"] or found["data"]:
        return Forget(everything=True)
    if found["last"]:
        return Forget(last=True)
    topic = found["topic"] or found["about"] or ""
    words = _said(topic)
    # Names are found by their capitals, which the plain text has lost.
    named = frozenset(name.casefold() for name in names(bare(text)))
    return Forget(words=words, named=named & words_of(topic)) if words else None


def said_by(text: str) -> frozenset[str]:
    """The content words of a text, reduced to a common form: "lives", "lived" and "living" are one."""
    return _said(text)


def _said(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in words_of(bare(text)) if word not in _SAYS_NOTHING)


def _stem(word: str) -> str:
    word = _IRREGULAR.get(word, word)
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    word = word[:-1] if len(word) > 3 and word[-1] == word[-2] else word
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


def _plain(text: str) -> str:
    lines = bare(text).replace("\u2019", "'").casefold().splitlines()
    return "\n".join(" ".join(line.split()) for line in lines)


# Both ---------------------------------------------------------------------------------------------


def requests(
    messages: Sequence[BaseMessage], *, agent_id: str, entity_id: str
) -> list[tuple[BaseMessage, str, Forget]]:
    """The human messages that ask to forget, with their speakers, oldest first."""
    return [
        (message, speaker_of(message, agent_id=agent_id, entity_id=entity_id), asked)
        for message in messages
        if isinstance(message, HumanMessage) and (asked := forget_request(text_of(message))) is not None
    ]


def on_record(messages: Sequence[BaseMessage], *, agent_id: str, entity_id: str) -> list[BaseMessage]:
    """The messages that a model may see and that may be sources, oldest first.

    Left out are messages off the record, requests to forget, the agent's answers to both, and messages that
    their speaker later asked to forget.
    """
    asked: dict[str, list[Forget]] = {}
    last: set[str] = set()
    kept: list[BaseMessage] = []
    for message in reversed(messages):
        if not counts(message):
            continue
        speaker = speaker_of(message, agent_id=agent_id, entity_id=entity_id)
        said = text_of(message)
        request = forget_request(said) if isinstance(message, HumanMessage) else None
        if request is not None:
            asked.setdefault(speaker, []).append(request)
            if request.last:
                last.add(speaker)
            hidden = True
        elif isinstance(message, HumanMessage):
            hidden = (
                off_the_record(said)
                or speaker in last
                or any(wish.means(said) for wish in asked.get(speaker, ()))
            )
            last.discard(speaker)
        else:
            kept.append(message)
            continue
        # The agent's answers follow the hidden message and repeat it.
        while hidden and kept and not isinstance(kept[-1], HumanMessage):
            kept.pop()
        if not hidden:
            kept.append(message)
    return kept[::-1]
