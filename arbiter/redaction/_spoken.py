"""Secrets that somebody says: "my password is hunter2", "Meine PIN lautet 4821", "密码是hunter2".

The table has the words for passwords, PINs and keys in many languages. From such a word on, a few words are
read: a token that looks like a secret, or the first word after "is", ":" or the like that describes nothing,
is the secret. Without the table's words nothing is read, and after each word at most `_MOST_PIECES` pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal

from arbiter.redaction._forms import NOT_SECRET
from arbiter.redaction._locks import LOCKS, NO_LOCK, unlocking_in

Range = tuple[int, int]
Kind = Literal["plain", "strict", "foreign", "number", "lock", "once", "phrase", "words", "pair"]
"""What counts as a secret after a word: any word after "is" (`plain`), the same if it ends the clause (`foreign`), only
what looks like a secret (`strict`), numbers (`number`), numbers after "is" or at once (`lock`), the digits of a code
for one login (`once`), all words to the end of the sentence (`phrase`), at least twelve words as in a wallet's seed
(`words`), what looks like a secret behind a name and a slash or colon (`pair`: "login: bob / Tr0ub4dor")."""

_KEYED = r"(?:api|access|secret|private|auth|encryption|license|client|recovery|seed)[ _-]?"
_WIRELESS = r"(?:wi-?fi|wlan|wpa2?|wep)[ _-]?"
_PAIRED = r"(?=(?:\s{0,2}[:=]|\s(?:is|are|was))\s{0,3}[^\s/|:,;]{1,64}\s{0,2}[/|:])"
_LOCKED = (
    r"(?:security|door|gate|alarm|entry|safe|vault|lock|lockbox|locker|garage|keypad|iphone|ipad|tablet|phone's"
    r"|(?:my|our|his|her|their) phone)(?:'s)? "
)
_LOCK = (
    r"s? (?:for|to|of|on|at|für|zur|zum|vom|von|del?|della|du|da|do|para|van|voor|от|к)(?: [^\s.,;:!?]{1,16}){0,3}? "
    rf"(?:(?:dell|d|l)')?(?:{LOCKS})s?"
)
"""What a code is for, after the word for "code": "code for the door", "Code für die Haustür"."""
_ONCE = r"(?:verification|confirmation|authenticat(?:ion|or)|2fa|mfa|one[ -]time|login|sms) "
_ROMANCE_ONCE = (
    r" (?:de|di) (?:verificaci[oó]n|verificação|vérification|verifica|confirmaci[oó]n|confirmação|confirmation|conferma"
    r"|seguridad|segurança|sécurité|sicurezza|acceso|acesso|accesso|connexion|autenticaci[oó]n|autenticação)"
)
_NAMES: tuple[tuple[str, str, Kind, str], ...] = (
    # A sign in lower case, what follows it, what counts as a secret after it, and what comes before it.
    ("pass", r"[ _-]?(?:word|code)s?|wd|wrod|wrd|wort\w{0,3}", "plain", ""),
    ("pass", r"[ _-]?phrase", "phrase", ""),
    ("pass", "", "strict", ""),
    ("pass", "ord(?:et)?", "foreign", ""),
    ("pass", "e", "foreign", r"(?:mots? de|palavra[ -]) ?"),
    ("pasw", r"ord", "plain", ""),
    ("pw", "d?", "plain", ""),
    ("p/w", "", "plain", ""),
    ("pin", r"(?:[ -]?(?:code|number|nummer)s?)?", "number", ""),
    ("pin", "s", "number", r"(?:my|our|your|his|her|their|meine|mis|mes|mijn) "),
    ("puk", r"(?:[ -]?(?:code|number|nummer))?", "number", ""),
    ("p.i.n", r"\.?", "number", ""),
    ("cvv", "2?", "number", ""),
    ("cvc", "2?", "number", ""),
    ("code", "s?", "number", _LOCKED),
    *((code, _LOCK, "lock", NO_LOCK) for code in ("code", "codice", "código", "codigo", "kod", "код")),
    ("code", "", "once", _ONCE),
    *((code, _ROMANCE_ONCE, "once", "") for code in ("code", "codice", "código", "codigo")),
    (
        "code",
        "",
        "once",
        r"(?:bestätigungs|verifizierungs|sicherheits|anmelde|einmal|verificatie|bevestigings|inlog)",
    ),
    ("tan", "", "once", r"(?:(?:sms|m|push|photo|chip)-?|(?:meine|deine|ihre|unsere|die|der) )"),
    ("kod", r" (?:weryfikacyjny|autoryzacyjny|sms)", "once", ""),
    ("код", r" (?:подтверждения|авторизации|доступа|для входа|из смс)", "once", ""),
    ("doğrulama kod", r"u\w{0,3}", "once", ""),
    ("otp", r"(?:[ -]?code)?", "once", ""),
    ("code", "s?", "plain", _KEYED),
    ("code", "s?", "lock", "backup[ _-]?"),
    ("key", "s?", "lock", "backup[ _-]?"),
    (
        "code",
        "",
        "number",
        r"(?:zugangs|toegangs|handy|\w{0,8}tür|tor|garagen|alarm|tresor|safe|\w{0,6}schloss)-?",
    ),
    ("code", " secret", "number", ""),
    ("key", "s?", "plain", _KEYED),
    ("key", "", "plain", _WIRELESS),
    ("clé", r" (?:du )?(?:wi-?fi|wpa2?|réseau)", "foreign", ""),
    ("schlüssel", "", "foreign", r"(?:wlan|wi-?fi|wpa2?|netzwerk|sicherheits)[- ]?"),
    ("token", "s?", "plain", _KEYED),
    ("token", "s?", "strict", ""),
    ("phrase", "", "phrase", r"(?:recovery|backup|seed)[ _-]?"),
    ("words", "", "words", r"(?:recovery|backup|seed|wallet)[ _-]?"),
    ("seed", "", "words", ""),
    ("mnemonic", "", "words", ""),
    ("secret", "", "plain", r"client[ _-]"),
    ("secret", r"(?=\w{0,40}[\"']?\s{0,4}[:=])", "plain", ""),
    ("secret", "", "strict", ""),
    ("credential", "s?", "strict", ""),
    ("login", "", "strict", ""),
    ("login", f"s?{_PAIRED}", "pair", ""),
    ("log in", _PAIRED, "pair", ""),
    ("credential", rf"s?(?:{_PAIRED}|(?=\s[^\s/|:,;]{{1,64}}[/|:]))", "pair", ""),
    ("user", rf"(?:[ _-]?name)?{_PAIRED}", "pair", ""),
    ("account", _PAIRED, "pair", ""),
    ("combination", "", "number", ""),
    ("combo", "", "number", _LOCKED),
    ("security question", "", "plain", ""),
    ("maiden name", "", "plain", ""),
    # German, Dutch, Scandinavian
    ("kennwort", r"e?s?", "foreign", ""),
    ("geheimzahl", "", "number", ""),
    ("wachtwoord", r"(?:en)?", "foreign", ""),
    ("lösenord", r"(?:et)?", "foreign", ""),
    ("kode", r"(?:n|ord(?:et)?)?", "foreign", r"(?:adgangs)?"),
    # Romance
    ("contrase", r"(?:ñas?|nyas?|nas?)", "foreign", ""),
    ("clave", r"s?", "strict", ""),
    ("mdp", "", "foreign", ""),
    ("senha", r"s?", "foreign", ""),
    ("parol", "a d'ordine", "foreign", ""),
    ("parol", r"[aăe]?", "strict", ""),
    # Slavic and Baltic
    ("парол", r"\w{0,3}", "foreign", ""),
    ("лозинк", r"\w{0,3}", "foreign", ""),
    ("пин", r"(?:[ -]?код\w{0,2})?", "number", ""),
    ("пін", r"(?:[ -]?код\w{0,2})?", "number", ""),
    ("hasł", r"\w{1,3}", "foreign", ""),
    ("hesl", r"[oauem]\w{0,2}", "foreign", ""),
    ("gesl", r"[oau]", "foreign", ""),
    ("lozink", r"\w{1,3}", "foreign", ""),
    ("slaptažod", r"\w{1,4}", "foreign", ""),
    # Finnish, Estonian, Hungarian, Turkish, Greek
    ("salas", r"[aõ]n\w{1,6}", "foreign", ""),
    ("parool", r"\w{0,3}", "foreign", ""),
    ("jelsz", r"\w{1,6}", "foreign", ""),
    ("şifre", r"\w{0,6}", "foreign", ""),
    ("sifrem", r"\w{0,3}", "foreign", ""),
    ("parolam", r"\w{0,3}", "foreign", ""),
    ("κωδικ", r"\w{1,4}(?: πρόσβασης)?", "foreign", ""),
    # Hebrew, Arabic, Persian, Hindi, Bengali
    ("סיסמ", r"\w{1,3}", "foreign", ""),
    ("كلمة المرور", "", "foreign", ""),
    ("كلمة السر", "", "foreign", ""),
    ("الرقم السري", "", "number", ""),
    ("رقمي السري", "", "number", ""),
    ("رمز عبور", "", "foreign", ""),
    ("گذرواژه", r"\w{0,3}", "foreign", ""),
    ("पासवर्ड", "", "foreign", ""),
    ("পাসওয়ার্ড", "", "foreign", ""),
    # Indonesian, Malay, Vietnamese, Swahili
    ("kata ", "(?:sandi\\w{0,3}|laluan)", "foreign", ""),
    ("sandi", r"(?:ku\b| (?:saya|aku|kami|anda|kamu|wi-?fi|akun))", "foreign", ""),
    ("mật khẩu", "", "foreign", ""),
    ("nenosiri", "", "foreign", ""),
)
_TAIL = r"(?:_\w{1,40})?(?![^\W_])"
_NOT_NAMED = re.compile(
    rf"{NOT_SECRET}\Z|.{{1,60}}_(?:type|count|length|limit|size|policy|expiry|expires_?(?:in|at))\Z"
)
"""Names in programs that only look like those of secrets."""
_ENDS = re.compile(r"tokens?\Z|_\w")
"""How all of these end."""
_NO_VALUE = re.compile(r"(?:none|null|true|false|\$\{?(?-i:[A-Z][A-Z0-9_]*)\}?)[,;.)]?\Z", re.IGNORECASE)
_GIVEN = re.compile(
    r"(?<![\w-])(?:G-)?(?:[0-9]{6}|[0-9]{3}[ -][0-9]{3})(?= is your (?:[A-Z]\w{0,20} )?code\b)"
    r"|(?<![\w-])(?:G-)?(?:[0-9]{4,8}|[0-9]{3}[ -][0-9]{3})(?= is your (?:\w{1,20} ){0,2}?"
    r"(?:verification|confirmation|authentication|login|security|one[- ]time|2fa|sms|access) (?:pass)?code\b)"
    r"|(?i:\byour )(?:[A-Z]\w{0,20} )?code is:? (?P<told>[0-9]{3}[ -]?[0-9]{3})(?![\w-])"
)
"""A code for one login, as services send it: "834211 is your code"."""
_COMPOUNDED = ("passwor", "kennwort", "wachtwoord", "lösenord", "salasan", "парол", "סיסמ", "كلمة")
"""Words that may end a longer word."""


@dataclass(frozen=True, slots=True)
class _Name:
    sign: str
    pattern: re.Pattern[str]
    kind: Kind
    before: re.Pattern[str] | None


def _compiled(sign: str, after: str, kind: Kind, before: str) -> _Name:
    pattern = re.compile(f"{re.escape(sign)}(?:{after}){_TAIL}")
    return _Name(sign, pattern, kind, re.compile(f"{before}$") if before else None)


TABLE = tuple(_compiled(*entry) for entry in _NAMES)
SIGNS = tuple(dict.fromkeys(name.sign for name in TABLE))
_ASCII_SIGNS = tuple(sign for sign in SIGNS if sign.isascii())

_NO_BLANKS = (
    "密码", "密碼", "口令", "パスワード", "暗証番号", "비밀번호", "암호", "패스워드", "รหัสผ่าน", "ລະຫັດຜ່ານ", "ពាក្យសម្ងាត់",
)  # fmt: skip
"""The same in scripts without blanks between words, or with endings that join words."""
_ONCE_NO_BLANKS = (
    "验证码",
    "驗證碼",
    "認証コード",
    "確認コード",
    "인증번호",
    "인증 번호",
    "인증코드",
    "인증 코드",
)
"""Codes for one login, in the same scripts."""
_ONCE_AFTER = re.compile(
    r"[^\n0-9!-~]{0,10}[ :]{0,3}(?P<linked>[0-9]{4,8})(?![0-9]|[-/.][0-9]| ?[年秒分天초분])"
)
_AFTER_NAME = re.compile(
    r"(?:是|为|為|は|が|を|는|은|가|คือ|:|=|\s){1,4}[\"'`“「『]?(?P<linked>[!-~]{3,64})"
    r"|[^\n!-~]{0,10}[\"'`“「『:=]{0,2}(?P<strong>[!-~]{4,64})"
)
_UNSPACED = {**dict.fromkeys(_NO_BLANKS, _AFTER_NAME), **dict.fromkeys(_ONCE_NO_BLANKS, _ONCE_AFTER)}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LINKS = _words("""
    is was are were has have had been be being got gets remains remain stays stay became becomes equals reads will
    ist war lautet lauten heisst heißt luidt är er oli
    es era est était è é este fost są jest to je byl było esti
    это был является είναι היא הוא هو هي है adalah ialah là
""")
_TO_LINK = _words("set reset changed updated switched back")
_TO = _words("to auf in a à")
_SKIPPED = _words("""
    now still always again actually currently really only also just today already probably simply
    jetzt noch immer wieder aktuell momentan übrigens nun ahora todavía siempre maintenant toujours adesso sempre agora
    nu altijd теперь сейчас пока
""")
_BEFORE_SECRET = _words("""
    very so too the a an der die das ein eine el la un una le une il lo uno o um uma de het een den det en ett
""")
"""Words between "is" and what looks like a secret, such as articles."""
_INDEFINITE = _words("a an ein eine einen un una une uno um uma een en ett et")
"""No number is called so: "Meine PIN ist ein MP3-Player"."""
_FOR = _words("for to of on für zu zum zur vom von de del du da do di des van voor od от para")
# Words that describe a password without revealing it.
_HARMLESS = _words("""
    not no now very too so still always never only also a an the one in on for at by with being something based used
    weak strong secure insecure safe unsafe short long old new wrong correct valid invalid hard easy difficult important
    required needed mandatory optional expired expiring changed reset lost forgotten stolen compromised leaked broken
    stored saved kept managed protected hashed encrypted shared hidden private secret confidential unknown missing empty
    set updated switched rotated generated different same similar identical unchanged unique simple complex complicated
    working blank longer shorter stronger weaker safer better worse good bad fine ok okay gone due again else another
    to from of and or but than more less protect avoid prevent improve comply be been known about worth what that this
    it
    nicht kein keine falsch richtig sicher unsicher schwach stark weg abgelaufen geändert vergessen lang kurz neu alt
    gut schlecht zu sehr geheim gespeichert leer ungültig gültig gesperrt bekannt einfach schwer im der die das
    no incorrecta correcta segura insegura débil fuerte larga corta nueva vieja vacía secreta obligatoria mala buena
    pas faux incorrect invalide valide sûr faible fort oublié expiré changé long court nouveau vide secret requis trop
    non sbagliata corretta sicura debole forte lunga corta nuova vecchia vuota segreta scaduta troppo
    não errada correta fraca forte longa curta nova velha vazia expirada inválida muito muy
    niet fout juist veilig zwak sterk verlopen vergeten gewijzigd nieuw oud leeg geheim te
    не неверный неправильный слабый сильный длинный короткий новый старый пустой слишком очень изменён забыт
""")
# Things that are no password although their names begin with the word.
_THINGS = _words("""
    manager managers policy policies rules strength generator reset field prompt hint hints box pad rotation
    requirements office expires expired
""")
_BEFORE_LINK = _words("as is was ist es est è é als como comme come это")
_OWNERS = _words("""
    my your his her their our its the a an mein meine dein sein ihr unser das die mi tu su nuestro la el mon ma ton son
    sa notre votre le mio mia tuo il minha meu seu a o mijn jouw uw zijn haar ons мой моя ваш
""")
_PRONOUNS = _words("it that this which das dies eso esto ça ce questo isso dat это")
_AND = _words("and or und oder y o et ou e en i и или")
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "«": "»", "‘": "’", "「": "」", "『": "』"}
_AROUND = "\"'`“”„«»‘’()[]{}<>.,;:!?*"
_MOST_NAMES = 200
"""Words of the table that are read on from in one text; from the next one on, all of the text is a secret."""
_MOST_PIECES = 10
_MOST_FILLERS = 5
_REACH = 240

_HEAD = re.compile(r"""[\s"'`)\]*]{0,4}(?P<link>[:=]{1,2}>?|[-=]{1,2}>|→)?[ \t]{0,4}\n?""")
_ITEM = r"(?:\d{1,2}[.):]?\s{0,2})?[A-Za-z][a-z]{2,7}"
_WORDS = re.compile(
    rf"[\s:\"']{{0,4}}(?:(?:is|was|are)[\s:\"']{{1,4}})?(?P<words>(?:{_ITEM}[\s,]{{1,3}}){{11,23}}{_ITEM})"
)
_PIECE = re.compile(r"\S+")
_PHRASE = re.compile(r"[a-z]{2,12}(?: [a-z]{2,12}){2,7}(?=\s{0,4}(?:$|\n))")
"""Words to the end of a line: a password after a colon may be several."""
_FAMOUS = "correct horse"
_CODE = re.compile(
    r"""["'`)]{0,2}(?:
      (?:\s{0,2}[:=]\s{0,3}|\s(?:is|was|ist|lautet|war|es|est|è|é|to|это):?\s{1,3})["'`*]{0,2}
        (?P<linked>[0-9]{3}[ -]?[0-9]{3}(?![\w-])|[0-9]{4,8}(?=["'`*]{0,2}(?:[.,;!?)](?:\s|$)|\s{0,4}(?:$|\n))))
    | \s["'`*]{0,2}(?P<next>[0-9]{3}[ -]?[0-9]{3}(?![\w-]))
    )""",
    re.VERBOSE,
)
"""The digits after "OTP" or "verification code". "The login code is 1200 lines long" has none."""
_SIX = re.compile(r"\d{6}")
_YEAR = re.compile(r"(?:19|20)\d\d")
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_PAIR = re.compile(
    r"(?:\s{0,2}[:=]|\s(?:is|are|was))?\s{0,3}(?P<name>[^\s/|:,;]{1,64})\s{0,2}[/|:]\s{0,2}(?P<told>[^\s/|(]{6,64})(?![^\s])"
)
_NO_NAMES = _words("id no nr number name http https email phone tel")
_NO_PASSWORD = re.compile(r"\d+(?:st|nd|rd|th)\b|.*\.[a-z]{1,4}$")
_USER = re.compile(r"(?:user(?:[ _-]?name)?|log[ -]?in|account|e-?mail)\s?[:=]\s?\S{1,64}[\s,;/|]{1,4}$")
_ALONE = re.compile(r"[ \t]{0,3}[:=][ \t]{0,3}(?P<told>[!-~]{8,64})[ \t]{0,3}(?:$|[\r\n])")
_ORDINARY = re.compile(r"(?:ed|ing|able|ible|ly|tion|sion|ment|ness|ance|ence|ory|ity|less|ful)$")
_LONG_WORD, _LONG_TOKEN = 11, 8
_MIXED = re.compile(r"[^\W\d_]\d")
_COUNTED = re.compile(r"[~<>+-]?\d[\d.,]*(?:-?[^\W\d_]{1,12}|%|°\w?)?")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+|\w{1,10}://\S+|[\w-]+(?:\.[^\W\d_]{2,})+/?\S*")
_NUMBER = re.compile(
    r"\d(?:[ -]?\d){2,11}+(?! (?:bytes|characters|lines|zeilen|lignes|l[ií]neas|linhas|righe|regels|строк))"
)
_SPOKEN_DIGIT = (
    r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|null|eins|zwei|zwo|drei|vier|fünf|sechs|sieben|acht|neun"
    r"|cero|uno|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|zéro|un|deux|trois|quatre|cinq|sept|huit|neuf|due|tre"
    r"|quattro|cinque|sei|sette|otto|nove|um|dois|quatro|oito|nul|een|twee|drie|vijf|zes|zeven|negen)"
)
_SPELLED = re.compile(rf"(?:{_SPOKEN_DIGIT}[\s,-]{{1,2}}){{2,11}}{_SPOKEN_DIGIT}(?!\w)", re.IGNORECASE)
"""A number said digit by digit, as a microphone writes it."""
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")
_COLON = re.compile(r""":[ \t]{1,4}(?!["'`]\s)\S""")
_CLAUSE_END = re.compile(r"""["'`)]*(?:[.,;:!?)]|\s{0,4}(?:$|\n))""")
_CLOSED = re.compile(rf"{_CLAUSE_END.pattern}|\s(?:for|to|on|and|but|für|und|para|y|pour|et|per|e|voor|en)\b")


def told_in(text: str, folded: str) -> Iterator[Range]:
    """The ranges of secrets that `text` says; `folded` is the same text in lower case, place by place."""
    is_ascii = text.isascii()
    if any(map(folded.__contains__, _ASCII_SIGNS if is_ascii else SIGNS)):
        left = count(_MOST_NAMES, -1)
        for name in TABLE:
            if name.sign in folded:
                yield from _told(text, folded, name, left)
    yield from unlocking_in(text, folded)
    if "code is" in folded or "is your " in folded:
        yield from (given.span(given.lastgroup or 0) for given in _GIVEN.finditer(text))
    if not is_ascii:
        for unspaced, after in _UNSPACED.items():
            if text.count(unspaced) > _MOST_NAMES:
                yield text.find(unspaced), len(text)
            else:
                yield from _unspaced(text, unspaced, after)


def _told(text: str, folded: str, name: _Name, left: Iterator[int]) -> Iterator[Range]:
    told_until = 0
    for match in name.pattern.finditer(folded):
        start = match.start()
        if start < told_until:
            continue
        if name.before is not None:
            before = name.before.search(folded, max(0, start - 14), start)
            if before is None:
                continue
            start = before.start()
        if not (_begins(text, start) or match[0].startswith(_COMPOUNDED)) or _is_no_secret(folded, match):
            continue
        if next(left) < 1:
            yield start, len(text)
            return
        kind = name.kind
        if name.sign == "pass" and kind == "strict" and _USER.search(folded, max(0, start - 120), start):
            kind = "plain"
        found = _after(text, match, kind) or _before(text, start, match.end(), kind)
        if found is None and name.sign == "pass":
            found = _alone(text, match)
        is_several = match[0].endswith("s") and match[0] != "pass"
        if found is not None and is_several and found[0] >= match.end():
            found = _and_more(text, found)
        if found is not None:
            told_until = found[1]
            yield found


def _is_no_secret(folded: str, name: re.Match[str]) -> bool:
    """True for the names of numbers of tokens, of pages, and the like: next_page_token, password_length."""
    if not _ENDS.search(name[0]):
        return False
    begin = name.start()
    least = max(0, begin - 40)
    while begin > least and (folded[begin - 1].isalnum() or folded[begin - 1] in "_-"):
        begin -= 1
    return _NOT_NAMED.match(folded, begin, name.end()) is not None


def _begins(text: str, at: int) -> bool:
    """True if a word begins there: also after an underscore or at a capital, as in names of variables."""
    if at == 0 or not text[at - 1].isalnum():
        return True
    return text[at].isupper() and text[at - 1].islower()


def _after(text: str, name: re.Match[str], kind: Kind) -> Range | None:
    """The secret after a name."""
    end = name.end()
    if kind == "pair":
        return _paired(text, end)
    if kind == "once":
        code = _CODE.match(text, end)
        return None if code is None else code.span(code.lastgroup or 0)
    told = _WORDS.match(text, end) if kind in ("words", "phrase") else None
    if kind == "words":
        return None if told is None else told.span("words")
    if told is not None and (told["words"][0].isdigit() or text[end : told.start("words")].strip()):
        # A passphrase may go on after the most words of a wallet.
        return told.start("words"), _sentence(text, told.end("words"))[1]
    link, start = "", end
    if (head := _HEAD.match(text, end)) is not None:
        link, start = head["link"] or "", head.end()
    if link.startswith("=") and not text[start - 1].isspace() and start < len(text):
        # An assignment: whatever follows is the value.
        if (value := _quoted(text, start)) is not None:
            return value
        if (assigned := _PIECE.match(text, start)) is not None:
            return None if _NO_VALUE.match(assigned[0]) else _range(assigned)
    walk = _Walk(text, start, name[0], colon=link != "")
    if kind in ("number", "lock"):
        return _number(walk, at_once=kind == "number")
    return _word(walk, kind)


class _Walk:
    """The words after a name, but for those that only lead to the secret. `linked` is True behind "is", ":" or the
    like, and `fillers` is the number of words that were before. A quotation behind a link ends it (`quoted`), and so
    does a word after which the name is that of something else (`is_other`)."""

    def __init__(self, text: str, start: int, name: str, *, colon: bool) -> None:
        self.text, self.start, self.name = text, start, name
        self.linked = self.colon = colon
        self.turned: str | None = None
        self.fillers = 0
        self.quoted: Range | None = None
        self.is_other = False

    def __iter__(self) -> Iterator[tuple[re.Match[str], str]]:
        """Each word, and its core in lower case."""
        for piece in islice(_PIECE.finditer(self.text, self.start, self.start + _REACH), _MOST_PIECES):
            core = piece[0].strip(_AROUND).lower()
            if self.linked and (quoted := _quoted(self.text, piece.start())) is not None:
                self.quoted = quoted
                return
            if core in _LINKS and not (self.linked and self.colon):
                self.linked = True
            elif self.turned == "" and core in _TO:
                self.linked, self.turned = True, core
            elif core in _TO_LINK and (self.linked or self.fillers <= _MOST_FILLERS) and not self.colon:
                # "Was changed to x" tells the password, "was changed" does not.
                self.linked, self.turned = False, ""
            elif not core or core in _SKIPPED:
                continue
            elif core in _THINGS or core == self.name:
                self.is_other = True
                return
            else:
                yield piece, core
                self.fillers += not self.linked


def _number(walk: _Walk, *, at_once: bool) -> Range | None:
    """The number after a PIN or a code; `at_once` also without "is" before it."""
    text, peek = walk.text, False
    for piece, core in walk:
        word = piece[0]
        around = _AROUND + "#" if walk.linked else _AROUND
        number = _NUMBER.match(text, piece.start() + len(word) - len(word.lstrip(around)))
        if number is not None and walk.turned == "in" and _YEAR.fullmatch(number[0]):
            # "Was changed in 2023 to 4931"
            number, walk.linked, walk.turned, at_once = None, False, "", False
        # Without "is", a short number behind "code for the door" is that of a door.
        is_next = walk.fillers == 0 and number is not None and len(number[0]) > 3
        if number is not None and (walk.linked or at_once or is_next):
            return number.span()
        if walk.linked and (spelled := _SPELLED.match(text, piece.start())) is not None:
            return spelled.span()
        if walk.linked and not peek and _looks_secret(core, next_to=False):
            return _range(piece)
        if walk.linked and core in _BEFORE_SECRET:
            peek = core in _INDEFINITE
        elif walk.linked or word[-1] in ".!?":
            return None
    return walk.quoted


def _word(walk: _Walk, kind: Kind) -> Range | None:
    """The word, or the words, after the name of a password, a key or a token."""
    text, peek, is_for = walk.text, False, False
    guessed: Range | None = None
    for piece, core in walk:
        is_harmless = core in _HARMLESS and not text.startswith(_FAMOUS, piece.start())
        if peek:
            return _range(piece) if _MIXED.search(piece[0]) else None
        if walk.linked:
            if kind == "phrase" and not is_harmless:
                return _sentence(text, piece.start())
            if core in _BEFORE_SECRET and not walk.colon and kind != "phrase":
                peek = True
                continue
            if is_harmless or not _is_told(text, piece, kind, walk.colon):
                return None
            is_phrase = kind == "plain" and (walk.colon or core in _HARMLESS)
            phrase = _PHRASE.match(text, piece.start()) if is_phrase else None
            return _range(piece) if phrase is None else phrase.span()
        if _looks_secret(core, next_to=walk.fillers == 0):
            guessed = guessed or _range(piece)
        is_for = core in _FOR if walk.fillers == 0 else is_for
        if is_for and kind in ("plain", "foreign") and _COLON.match(text, piece.end() - 1):
            # "Password for the zip: blue-horse"
            walk.linked, kind = True, "foreign"
        elif piece[0][-1] in ".!?" or walk.fillers == _MOST_FILLERS:
            break
    return walk.quoted or (None if kind == "strict" or walk.is_other else guessed)


def _and_more(text: str, first: Range) -> Range:
    """The first of several secrets with those that follow it: "the backup codes are 1a2b-3c4d and 5e6f-7g8h"."""
    end = first[1]
    is_number = _LETTER.search(text, *first) is None
    goes_on = text[end - 1] in ",;"
    for piece in islice(_PIECE.finditer(text, end, end + _REACH), _MOST_PIECES):
        core = piece[0].strip(_AROUND).lower()
        if _looks_secret(core, next_to=is_number or goes_on) and "=" not in core:
            end = _range(piece)[1]
            goes_on = piece[0][-1] in ",;"
        elif not core or core in _AND:
            goes_on = True
        else:
            break
    return first[0], end


def _paired(text: str, end: int) -> Range | None:
    """The password behind a name: "bob / Tr0ub4dor"."""
    pair = _PAIR.match(text, end)
    if pair is None or pair["name"].strip(_AROUND).lower() in _NO_NAMES:
        return None
    told = pair["told"].rstrip(_AROUND)
    if _NO_PASSWORD.match(told) or not _looks_secret(told.lower(), next_to=False):
        return None
    return pair.span("told")


def _alone(text: str, name: re.Match[str]) -> Range | None:
    """The word in a line that has nothing else: "pass: correcthorse". English words that often stand there
    ("Pass: required") are none."""
    line = text.rfind("\n", 0, name.start()) + 1
    told = _ALONE.match(text, name.end())
    if told is None or text[line : name.start()].strip(" \t-*>").lower() not in ("", "my"):
        return None
    word = told["told"].strip(_AROUND).lower()
    least = _LONG_WORD if word.isalpha() else _LONG_TOKEN
    return None if len(word) < least or word in _HARMLESS or _ORDINARY.search(word) else told.span("told")


def _is_told(text: str, piece: re.Match[str], kind: Kind, colon: bool) -> bool:
    """True if the word after "is" or ":" is a secret."""
    word = piece[0]
    strong = len(word) >= 4 and bool(_DIGIT.search(word)) and bool(_LETTER.search(word))
    if strong or kind == "plain":
        return True
    if kind == "strict":
        return False
    ends = _CLAUSE_END.match(text, piece.end()) is not None or word[-1] in ".,;!?"
    return ends or bool(_DIGIT.search(word)) or colon


def _looks_secret(core: str, *, next_to: bool) -> bool:
    """True if a word looks like a secret without "is" before it: digits and letters, or digits beside the
    name."""
    if len(core) < 4 or not _DIGIT.search(core) or _ADDRESS.fullmatch(core):
        return False
    if next_to and not _LETTER.search(core):
        return True
    return bool(_LETTER.search(core)) and not _COUNTED.fullmatch(core)


def _quoted(text: str, start: int) -> Range | None:
    """The range inside quotes that open at `start`."""
    closing = _QUOTES.get(text[start])
    if closing is None:
        return None
    end = text.find(closing, start + 1, start + 202)
    while closing == "'" and end > 0 and text[end + 1 : end + 2].isalnum():
        end = text.find(closing, end + 1, start + 202)
    inside = text[start + 1 : end] if end > 0 else ""
    if not inside.strip() or "\n" in inside or inside.strip().lower() in _HARMLESS:
        return None
    return start + 1, end


def _quoted_to(text: str, end: int, least: int) -> Range | None:
    """The range inside quotes that close at `end`."""
    opening = next((opening for opening, closing in _QUOTES.items() if text[end - 1] == closing), None)
    begin = -1 if opening is None else text.rfind(opening, least, end - 1)
    return (begin + 1, end - 1) if 0 <= begin < end - 2 else None


def _sentence(text: str, start: int) -> Range:
    end = _SENTENCE_END.search(text, start, start + 300)
    return start, end.start() if end is not None else min(len(text), start + 300)


def _range(piece: re.Match[str]) -> Range:
    """The piece without quotes and brackets before it, to its end beyond the reach too."""
    whole = _PIECE.match(piece.string, piece.start()) or piece
    word = whole[0]
    return whole.start() + len(word) - len(word.lstrip("\"'`“„«‘(")), whole.end()


def _before(text: str, start: int, end: int, kind: Kind) -> Range | None:
    """The secret before its name: "hunter2 is my password", "uses hunter2 as password"."""
    if kind not in ("plain", "foreign", "once"):
        return None
    begin = max(0, start - 80)
    pieces = list(_PIECE.finditer(text, begin, start))[-5:]
    words = [piece[0].strip(_AROUND).lower() for piece in pieces]
    for place in range(len(words) - 1, 0, -1):
        if words[place] not in _BEFORE_LINK:
            continue
        owned = place + 1 < len(words) and (words[place + 1] in _OWNERS or words[place + 1].endswith("'s"))
        if words[place] != "as" and not owned:
            return None
        place -= 2 if place > 1 and words[place - 1] in _PRONOUNS else 1
        # "`bcrypt` is the password library" goes on.
        if (quoted := _quoted_to(text, pieces[place].end(), begin)) is not None and _CLOSED.match(text, end):
            return quoted
        is_code = kind != "once" or _SIX.fullmatch(words[place]) is not None
        return _range(pieces[place]) if is_code and _looks_secret(words[place], next_to=True) else None
    return None


def _unspaced(text: str, name: str, after: re.Pattern[str]) -> Iterator[Range]:
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        found = after.match(text, end)
        if found is not None:
            told = "linked" if found["linked"] else "strong"
            if told == "linked" or _DIGIT.search(found[told]):
                yield found.span(told)
        at = text.find(name, end)
