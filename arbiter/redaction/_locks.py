"""Numbers that open something, without a word for "code": "unlock my phone with 4931", "the alarm is 4471".

It looks at each number of four to twelve digits that ends its clause: the word before it says how the number is used,
and the words around it name a lock, and what is done to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LOCKS = (
    "door|gate|alarm|entrance|safe|vault|lock|lockbox|padlock|locker|garage|keypad|building|(?:i|smart)?phone|ipad"
    "|tablet|laptop"
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
NO_LOCK = "".join(
    f"(?<!{word} )"
    for word in (
        *("status", "error", "exit", "http", "return", "response", "result", "fault", "source", "product"),
        *("zip", "postal", "post", "area", "country", "promo", "discount", "coupon", "voucher"),
    )
)
"""Other codes that a door, a building, or a portal has."""
_IS_USED = re.compile(
    rf"\b(?:with|{NO_LOCK}(?<!shows )code|pin|(?:enter|press|typ|dial|punch|us)(?:e|ing)?|(?:type|punch|key)\sin"
    r"|mit|drücke|tippe|wähle|gib|avec|tapez?|composez|entrez?|con|código|marca|teclea|introduce|pulsa"
    r"|codice|digit[ae]|premi|inserisci|com|insere|met|toets|typ"
    r"|kod|kodem|wpisz|код|кодом|введи|введите|набери|нажми):?\s"
    r"(?:(?:the|die|der|den|le|la|el|il|lo|o|a|de|het)\s)?\Z"
)
"""What stands before a number with which something is done."""
_IS_DIALED, _LONGEST_DIALED = re.compile(r"\b(?:dial|wähle|composez|marca)\s(?:le\s)?\Z"), 6
"""Longer numbers that somebody dials are those of phones."""
_HAS_ONE = (
    "(?:alarm|safe|vault|lock|lockbox|padlock|keypad|alarmanlage|tresor|alarma|caja fuerte|candado|alarme|coffre"
    "|cadenas|allarme|cassaforte|lucchetto|cofre|cadeado|kluis)"
)
_IS_ITSELF = re.compile(
    rf"\b{_HAS_ONE}(?:\s(?:is|was|ist|war|est|es|è|é)(?:\s(?:now|set to))?|['’]s)\s\Z"
    r"|(?:\b(?:the|my|our|your|his|her|their|der|die|das|mein|meine|unser|unsere|la|le|el|mi|il|mio|o|meu|ton|mon|notre"
    rf"|het|de|mijn|ons)\s(?:\w{{1,12}}\s)?|\bl'){_HAS_ONE}(?<! lock):\s\Z"
)
"""Locks that a number is said of in place of their code. Doors and gates have numbers of their own."""
_NUMBER = re.compile(
    r"(?<![\w.,:/$€£+-])[#*\"'`“„(]{0,3}(?P<told>[0-9](?:[ -]?[0-9]){3,11}+)(?![\w%€$£/-]|[.,:][0-9])"
)
_ENDS = re.compile(
    r"[#*\"'`”“)]{0,3}(?:[.,;:!?)]|\s{0,3}(?:\Z|\n)|\s(?:\(|[–—-]\s(?![0-9]))"
    r"|\s(?:to|and|or|then|when|if|you|we|on the (?:key)?pad|please|thanks|now|for now|but|so|because"
    r"|auf|aus|ein|an|um|und|wenn|du|man|kannst|lässt|öffne\w*|pour|et|quand|on ouvre|on peut|para|y|cuando|se"
    r"|per|e|quando|si|om|en|als|je|uit|open|aby|żeby|i|чтобы|и)\b)"
)
"""What follows a number that counts nothing."""
_IS_FIRST = re.compile(r"(?:\A|[.,;:!?]\s|\n)\Z")
_OPENS_IT = re.compile(
    r"[#*\"'`”“)]{0,3}\s(?:(?:open|unlock|disarm|deactivate|turn)s|entsperrt|öffnet|ouvre|déverrouille|abre|desbloquea"
    r"|apre|sblocca|opent|ontgrendelt|otwiera|открывает)\b"
)
"""What a number does that is itself the subject: "4931 opens the door"."""
_DATE = re.compile(r"(?:19|20)[0-9]{2}|(?:[01][0-9]|2[0-3]) ?[0-5][0-9]")
"""A year, or a time of the day."""
_IS_NEXT = re.compile(r"[^\W\d_]\s|:\s")
_SENTENCE_END = re.compile(r"[.!?](?:\s|\Z)|\n")
_BEHIND, _AHEAD, _LONGEST = 60, 40, 30


def unlocking_in(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """The ranges of numbers that open a lock; `folded` is the same text in lower case, place by place."""
    for number in _NUMBER.finditer(text):
        begin, (start, end) = number.start(), number.span("told")
        before, least = folded[max(0, begin - 2) : begin], max(0, start - _BEHIND)
        if _OPENS_IT.match(folded, end) and _IS_FIRST.search(before):
            if _LOCK.search(_sentence(folded, start, end)[1]) and _DATE.fullmatch(text, start, end) is None:
                yield start, end
        elif _IS_NEXT.match(before) is None or _ENDS.match(folded, end) is None:
            continue
        elif _IS_USED.search(folded, max(least, start - _LONGEST), begin):
            sentence = _sentence(folded, start, end)
            is_phone = end - start > _LONGEST_DIALED and _IS_DIALED.search(folded, least, begin)
            if not is_phone and any(map(_LOCK.search, sentence)) and any(map(_OPENS.search, sentence)):
                yield start, end
        elif _IS_ITSELF.search(folded, least, begin) and _DATE.fullmatch(text, start, end) is None:
            yield start, end


def _sentence(folded: str, start: int, end: int) -> tuple[str, str]:
    """The words of its sentence on both sides of a number."""
    behind, ahead = folded[max(0, start - _BEHIND) : start], folded[end : end + _AHEAD]
    return _SENTENCE_END.split(behind)[-1], _SENTENCE_END.split(ahead)[0]
