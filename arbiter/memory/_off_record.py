"""Messages off the record: what code recognises before any call, and which messages a model may see."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from unicodedata import category

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter._values.normal import anycase, unaccented
from arbiter.memory._conversation import counts, safe, text_of

# By language. A message that begins with one of them, followed by punctuation or nothing, is off the record.
OPENINGS = {
    "en": """off the record|strictly off the record|this is off the record|not for the record|between us
        |just between us|strictly between us|between you and me|just between you and me|between the two of us
        |confidential|strictly confidential|confidentially|this is confidential|in confidence
        |in strict confidence
        |keep this between us|please keep this between us|keep this to yourself|please keep this to yourself
        |don't remember this|please don't remember this|do not remember this|please do not remember this
        |don't store this|please don't store this|do not store this|don't save this|please don't save this
        |don't record this|please don't record this|do not record this|don't write this down|don't note this
        |don't tell anyone|please don't tell anyone|don't tell anybody|this stays between us
        |this stays between the two of us|between me and you
        |don't share this with anyone|do not share this|no need to remember this|hush hush|this is a secret
        |it's a secret""",
    "de": """unter uns|ganz unter uns|nur unter uns|unter uns gesagt|mal unter uns|das bleibt unter uns
    |im vertrauen
        |vertraulich|streng vertraulich|off the record gesagt|bitte nicht speichern|nicht speichern
        |bitte nicht merken|nicht merken|merk dir das nicht|merke dir das nicht
        |erzähl es niemandem|sag es niemandem|unter vier augen""",
    "es": """entre nosotros|que quede entre nosotros|esto queda entre nosotros|entre tú y yo
        |entre nos|confidencial|en confianza|extraoficialmente|no guardes esto|por favor no guardes esto
        |no recuerdes esto|no se lo digas a nadie""",
    "fr": """entre nous|juste entre nous|entre nous soit dit
        |que ça reste entre nous|ça reste entre nous|entre toi et moi
        |entre vous et moi|de toi à moi|confidentiel|en confidence|hors micro|n'enregistre pas ça
        |n'enregistre pas ceci|ne retiens pas ça|ne le dis à personne|ne le dites à personne""",
    "it": """tra noi|fra noi|detto tra noi|detto fra noi|che resti tra noi|resti tra noi|resta tra noi
        |rimanga tra noi|in confidenza|riservato
        |confidenziale|non salvarlo|non dirlo a nessuno""",
    "pt": """entre nós|cá entre nós|aqui entre nós|só entre nós|que fique entre nós|fica entre nós|em off
        |confidencial|em confiança|não guarde isto|não guarde isso|não conte a ninguém""",
    "nl": """onder ons|onder ons gezegd|tussen ons|in vertrouwen|vertrouwelijk|niet opslaan
    |vertel het niemand""",
    "pl": """między nami|tak między nami|tylko między nami|poufne|poufnie|nie zapisuj tego|nie mów nikomu""",
    "cs": """mezi námi|jen mezi námi|důvěrně|neukládej to|nikomu to neříkej""",
    "ro": """între noi|doar între noi|confidențial|nu spune nimănui""",
    "hu": """köztünk szólva|köztünk maradjon|bizalmas|bizalmasan""",
    "sv": """mellan oss|mellan oss sagt|bara mellan oss|i förtroende|konfidentiellt""",
    "da": """mellem os|mellem os sagt|kun mellem os|i fortrolighed|fortroligt""",
    "no": """mellom oss|mellom oss sagt|bare mellom oss|i fortrolighet|fortrolig""",
    "fi": """meidän kesken|näin meidän kesken|luottamuksellisesti|luottamuksellista""",
    "el": """μεταξύ μας|εμπιστευτικά|εμπιστευτικό""",
    "tr": """aramızda|aramızda kalsın|söz aramızda|laf aramızda|gizli|bunu kaydetme""",
    "ru": """между нами|только между нами|строго между нами|между нами говоря|не для протокола|не для записи
        |конфиденциально|по секрету|не запоминай это|не сохраняй это|никому не говори""",
    "uk": """між нами|тільки між нами|конфіденційно|по секрету|не для протоколу""",
    "ar": "بيننا|بيني وبينك|سري|سري للغاية|هذا سر|لا تحفظ هذا|لا تخبر أحدا",
    "fa": "بین خودمان|بین خودمون|محرمانه",
    "he": "בינינו|ביני לבינך|חסוי",
    "hi": "हमारे बीच|हमारे बीच की बात|यह बात हमारे बीच रहे|गोपनीय|किसी को मत बताना",
    "id": "antara kita|di antara kita|rahasia|jangan simpan ini",
    "vi": "chỉ giữa chúng ta|giữa chúng ta|bí mật|đừng lưu điều này",
    "zh": """私下说|私下里说|咱们私下说|保密|请保密|这件事请保密|别记录|不要记录|请不要记录|不要保存
        |別記錄|請保密|私下說|不要記錄|别告诉别人|不要告诉别人|别告诉任何人|別告訴別人|不要告訴別人""",
    "ja": """ここだけの話|ここだけの話ですが|ここだけの話だけど|ここだけの話なんだけど
        |ここだけの話なんですが|オフレコ|オフレコで|オフレコですが
        |内緒だけど|内緒なんだけど|内緒ですが|内緒なんですが|内緒の話|記録しないで|記録しないでください
        |誰にも言わないで|誰にも言わないでください""",
    "ko": """우리끼리 얘기인데|우리끼리 하는 말인데|우리끼리만|비밀인데|이건 비밀인데|비밀이야|오프더레코드|기록하지 마
        |기록하지 마세요|아무에게도 말하지 마|아무한테도 말하지 마""",
}
# In English also as a part of its own anywhere: "I quit, off the record."
_ANYWHERE = frozenset(
    f"{before}off the record{after}"
    for before in (
        "",
        "this is ",
        "that is ",
        "that's ",
        "that was ",
        "it's ",
        "strictly ",
        "just ",
        "totally ",
        "all ",
    )
    for after in ("", " please", " ok", " okay")
)
_BREAK = re.compile(
    r"[.,:;!?*\u2026\u2014\u2013()\[\]\u3001\u3002\u060c\u061b\u061f\u0964"
    r"\uff0c\uff1a\uff1b\uff01\uff1f\uff0e\uff08\uff09\n]|\s-+(?=\s)"
)
_LOOKED_AT = 400
"""Characters at each end of a message in which code looks for such phrases."""
_LONGEST = 60
"""Characters, and parts between punctuation, of the longest phrase with which a message may begin."""
_PARTS = 2
_HELLO = "hi hello hey hallo hei hej hola salut bonjour ciao olá oi moin servus there all und and"
GREETINGS = frozenset(_HELLO.split())
_POLITE = "please pls ok okay thanks thank you bitte danke por favor merci per favore grazie пожалуйста"
_COURTESY = GREETINGS | frozenset(_POLITE.split())
_GESTURES = frozenset("🙏🤫🤐🙊😊🙂😉😅🏻🏼🏽🏾🏿")
"""Symbols that tell nothing beside a phrase; any other may be what is off the record."""
_ADDRESSED = 3
"""Words of a greeting ("Hi Ada, ...") that may stand before a phrase."""


# What its author does not say: blocks and spans of code, quoted lines, texts in quotation marks.
_NOT_SAID = re.compile(
    r"""(?:^|(?<=\n))[ \t]*(?P<fence>```|~~~)[\s\S]*?(?:\n[ \t]*(?P=fence)|\Z)|(?:^|(?<=\n))[ \t]*>[^\n]*"""
    r"""|`[^`\n]+`|(?P<docs>\"{3}|'{3})[\s\S]*?(?:(?P=docs)|\Z)|(?<!\w)"[^"\n]+"(?!\w)"""
    r"""|\u201c[^\u201c\u201d\n]+\u201d|\u201e[^\u201c-\u201e\n]+[\u201c\u201d]|\u00ab[^\u00ab\u00bb\n]+\u00bb"""
    r"""|[\u300c\u300e][^\u300c-\u300f\n]+[\u300d\u300f]"""
)
_COMMENT = re.compile(r"^[ \t]*(?:[+-][ \t]*)?(?:\#(?!!)|//|/\*|\*|<!--|--|;;|%)|\s(?:\#|//|/\*|--|<!--)\s")
_CODE = re.compile(
    r"[;{}]\s*$|\w\([^()\n]*\)|\w\s*[=!+*/<>-]=\s*\S|^\s*(?:<\w|\#include|\#!|[}\])])"
    r"|^\s*[\w.\[\]]+\s*(?::\s*\w+\s*)?=\s*\S|^\s*(?:(?:async )?def \w|class \w+\s*[:({]|import [\w.]+\s*$)"
    r"|^\s*(?:from [\w.]+ import\b|(?:const|let|var) \w+\s*=|SELECT\b.*\bFROM\b)|^\s+return\b"
)


def without_quotations(text: str) -> str:
    """The text without code and quotations; a comment is code if another line of the message, or the line before
    the comment, looks like code."""
    lines = _NOT_SAID.sub("\ufffc", text).split("\n")
    parts = [(line, found.start() if (found := _COMMENT.search(line)) else len(line)) for line in lines]
    is_code = any(_CODE.search(line[:end]) for line, end in parts)
    return "\n".join(line[:end] if is_code else line for line, end in parts)


def off_the_record(text: str) -> bool:
    """True if a message begins with a phrase that puts it off the record, in one of many languages, or says
    "off the record" in a part of its own, and not in code or a quotation. Other ways to say it are for the model
    to see."""
    return _is_off(text) and _is_off(without_quotations(text))


def is_bare_phrase(text: str) -> bool:
    """True if a message puts something off the record and says nothing else ("Please don't tell anyone!"): it means
    another message, the one before or the next, which is for the model to see."""
    if len(text) > _LONGEST or not off_the_record(text):
        return False
    if any(category(char)[0] == "S" and char not in _GESTURES for char in text):
        return False
    parts = [part for part in map(folded, _BREAK.split(text)) if part]
    return all(part in _PHRASES or _COURTESY.issuperset(part.split()) for part in parts)


def _is_off(text: str) -> bool:
    head, tail = text[:_LOOKED_AT], text[-_LOOKED_AT:]
    # A phrase may continue on the next line.
    for begin in dict.fromkeys((head, head.replace("\n", " "))):
        if not _OPENINGS.isdisjoint(_beginnings(begin)) or _is_said_in(begin):
            return True
    return len(text) > _LOOKED_AT and _is_said_in(tail)


def folded(text: str) -> str:
    """The words of a text in lower case with single spaces between them, without punctuation and invisible
    characters."""
    plain = anycase(text).replace("\u2019", "'")
    kept = "".join(
        char
        if char.isalnum() or char == "'" or category(char)[0] == "M"
        else ""
        if category(char) == "Cf"
        else " "
        for char in plain
    )
    return " ".join(kept.split())


def _beginnings(text: str) -> Iterator[str]:
    """The text before its first punctuation, and before the next one ("Please, don't tell anyone: ..."), folded, no
    longer than a phrase, and without a greeting."""
    begun = start = 0
    ends = (found.span() for found in _BREAK.finditer(text))
    parts = 0
    for end, after in (*ends, (len(text), len(text))):
        words = folded(text[start:end]).split()
        if words and (parts or len(words) > _ADDRESSED or words[0] not in GREETINGS):
            begun = begun if parts else start
            if end - begun > _LONGEST or parts == _PARTS:
                return
            parts += 1
            yield folded(text[begun:end])
        start = after


def _is_said_in(text: str) -> bool:
    if "record" not in text.casefold():
        return False
    return any(folded(part) in _ANYWHERE for part in _BREAK.split(text))


def ways_to_write(phrase: str) -> set[str]:
    """A folded phrase with all its accents, and without any: many people write so, and Greek capitals have none.

    A text with other accents says something else: "bí mật" is a secret, and "bị mất" is lost.
    """
    return {phrase, unaccented(phrase)}


_OPENINGS = frozenset(
    written
    for phrases in OPENINGS.values()
    for phrase in phrases.split("|")
    for written in ways_to_write(folded(phrase))
)
_PHRASES = _OPENINGS | _ANYWHERE


def without_hidden(messages: Sequence[BaseMessage], hidden: Collection[str] = ()) -> list[BaseMessage]:
    """All messages but those that `on_record` leaves out for what they say or answer; system and tool messages
    stay. Messages are judged without their secrets, as everywhere in memory."""
    said = [safe(message) if isinstance(message, HumanMessage) else message for message in messages]
    kept = {id(message) for message in on_record(said, hidden)}
    return [
        message
        for message, seen in zip(messages, said, strict=True)
        if id(seen) in kept or not counts(message)
    ]


def is_on_record(messages: Sequence[BaseMessage], place: int, hidden: Collection[str] = ()) -> bool:
    """True if `on_record` keeps the message at that place, and not as a wish, without reading others than those that it
    answers."""
    if not counts(messages[place]) or messages[place].id in hidden:
        return False
    for at in range(place, -1, -1):
        message = messages[at]
        if isinstance(message, HumanMessage) and counts(message):
            return not (message.id in hidden or off_the_record(text_of(message)))
    return True


def on_record(messages: Iterable[BaseMessage], hidden: Collection[str] = ()) -> list[BaseMessage]:
    """The human and AI messages that a model may see and that may be sources, in order.

    Left out are messages off the record, those whose ids are `hidden` (see `EvalContext.hidden`), and the
    agent's answers to both. A message that is nothing but a phrase is a wish about another one, and is kept.
    """
    kept: list[BaseMessage] = []
    answers_hidden = False
    for message in messages:
        if not counts(message):
            continue
        is_wish = False
        if isinstance(message, HumanMessage):
            answers_hidden = message.id in hidden or off_the_record(text_of(message))
            is_wish = answers_hidden and is_bare_phrase(text_of(message))
        if message.id not in hidden and (is_wish or not answers_hidden):
            kept.append(message)
    return kept
