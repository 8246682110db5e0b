"""Numbers that open something, without a word for "code": "unlock my phone with 4931", "the alarm is 4471".

It looks at each number of four to twelve digits that ends its clause: the word before it says how the number is used,
and the words around it name a lock, and what is done to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LOCKS = (
    "door|gate|alarm|entrance|safe|vault|lock|lockbox|padlock|locker|garage|keypad|building|i?phone|ipad|tablet|laptop"
    r"|\w{0,8}tür|tor|alarmanlage|tresor|\w{0,8}schloss|handy|telefon"
    "|puerta|port[aó]n|portal|garaje|alarma|caja fuerte|candado|edificio|móvil|celular|teléfono"
    "|porte|portail|immeuble|entrée|alarme|coffre|cadenas|interphone|téléphone|portable"
    "|porta|portone|cancello|allarme|cassaforte|lucchetto|telefono|cellulare"
    "|portão|cofre|garagem|cadeado|prédio|telemóvel|telefone"
    r"|\w{0,4}deur|poort|kluis|telefoon"
    "|drzwi|bramy|domofonu|sejfu|telefonu"
    "|двери|домофона|подъезда|ворот|сейфа|замка|сигнализации|телефона"
)
"""What has a code, as it stands behind "code for" in several languages."""
_LOCK = re.compile(
    rf"\b(?:{LOCKS}|bramę|domofon|sejf|дверь|домофон|подъезд|ворота|сейф|замок|сигнализаци[яю]|телефон)s?\b"
)
_OPENS = re.compile(
    r"\b(?:unlock|open|get into|disarm|deactivat|(?:turn|switch|shut)(?:s|ed)? off"
    r"|entsperr|entriegel|öffne|deaktivier|(?:geht|schalte\w{0,2})\b"
    r"|déverrouill|débloqu|ouvr|désactiv|desbloque|abr[aeio]|desa[ct]|sblocc|apr[ei]|disattiv|disinser"
    r"|ontgrendel|gaat\b|odblok|otwier|otwórz|wyłącz|разблокир|откр|отключ)"
)
"""What is done to a lock."""
_IS_USED = re.compile(
    r"\b(?:with|using|code|pin|enter|press|type|dial|punch|use|(?:type|punch|key)\sin"
    r"|mit|drücke|tippe|wähle|gib|avec|tapez?|composez|entrez?|con|código|marca|teclea|introduce|pulsa"
    r"|codice|digit[ae]|premi|inserisci|com|insere|met|toets|typ"
    r"|kod|kodem|wpisz|код|кодом|введи|введите|набери|нажми)\s"
    r"(?:(?:the|die|der|den|le|la|el|il|lo|o|a|de|het)\s)?\Z"
)
"""What stands before a number with which something is done."""
_IS_ITSELF = re.compile(
    r"(?:\b(?:the|my|our|your|his|her|their|der|die|das|mein|meine|unser|unsere|la|le|el|mi|il|mio|o|meu|ton|mon|notre"
    r"|het|de|mijn|ons)\s(?:\w{1,12}\s)?|\bl')"
    r"(?P<lock>alarm|safe|vault|lock|lockbox|padlock|keypad|alarmanlage|tresor|alarma|caja fuerte|candado|alarme|coffre"
    r"|cadenas|allarme|cassaforte|lucchetto|cofre|cadeado|kluis)(?:\s(?:is|was|ist|war|est|es|è|é)|:)\s\Z"
)
"""Locks that a number is said of in place of their code. Doors and gates have numbers of their own."""
_NUMBER = re.compile(r"(?<![\w.,:/$€£+-])[#*]?(?P<told>[0-9](?:[ -]?[0-9]){3,11}+)(?![\w%€$£/-]|[.,:][0-9])")
_ENDS = re.compile(
    r"[#*]?[\"'`)]{0,2}(?:[.,;:!?)]|\s{0,3}(?:\Z|\n)|\s(?:to|and|or|then|when|if|you|we|on the (?:key)?pad"
    r"|auf|aus|ein|an|um|und|wenn|du|man|kannst|lässt|öffne\w*|pour|et|quand|on ouvre|on peut|para|y|cuando|se"
    r"|per|e|quando|si|om|en|als|je|uit|open|aby|żeby|i|чтобы|и)\b)"
)
"""What follows a number that counts nothing."""
_DATE = re.compile(r"(?:19|20)[0-9]{2}|(?:[01][0-9]|2[0-3])[0-5][0-9]")
"""A year, or a time of the day."""
_IS_NEXT = re.compile(r"[^\W\d_]\s|:\s")
_SENTENCE_END = re.compile(r"[.!?](?:\s|\Z)|\n")
_BEHIND, _AHEAD, _LONGEST = 60, 40, 30


def unlocking_in(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """The ranges of numbers that open a lock; `folded` is the same text in lower case, place by place."""
    for number in _NUMBER.finditer(text):
        start, end = number.span("told")
        before, least = folded[max(0, number.start() - 2) : number.start()], max(0, start - _BEHIND)
        if _IS_NEXT.match(before) is None or _ENDS.match(folded, end) is None:
            continue
        if _IS_USED.search(folded, max(least, start - _LONGEST), number.start()):
            sentence = [
                *_SENTENCE_END.split(folded[least:start])[-1:],
                *_SENTENCE_END.split(folded[end : end + _AHEAD])[:1],
            ]
            if any(map(_LOCK.search, sentence)) and any(map(_OPENS.search, sentence)):
                yield start, end
        elif _DATE.fullmatch(text, start, end) is None and _IS_ITSELF.search(folded, least, number.start()):
            yield start, end
