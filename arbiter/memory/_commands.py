"""Whole messages that are nothing but a command to forget, and words that only hasten the extraction: data."""

from __future__ import annotations

from typing import Literal
from unicodedata import category

from arbiter._values.normal import with_latin_i
from arbiter.memory._off_record import folded, is_bare_phrase, ways_to_write
from arbiter.redaction._texts import MOST_CHARACTERS

Command = Literal["everything", "last"]

# By language: words of politeness that may stand before or after, commands to forget everything, and commands to
# forget what the speaker has just said.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "en": (
        "please|pls|ok|okay|now|thanks|thank you",
        """forget everything|forget all|forget everything about me|forget all about me
        |forget everything you know about me|forget all you know about me|forget what you know about me
        |forget everything i told you|forget everything i've told you|forget everything i said
        |delete everything|delete everything about me|delete everything you know about me|delete all my data
        |delete my data|delete all data about me|delete all data you have about me|delete all of my data
        |erase everything|erase everything about me|erase everything you know about me|erase all my data
        |erase my data|wipe your memory of me|wipe everything you know about me|remove all my data""",
        """forget what i just said|forget what i just told you|forget what i said|forget my last message
        |forget the last thing i said|delete my last message|never mind forget that|nevermind forget that""",
    ),
    "es": (
        "por favor|porfa|ahora|gracias",
        """olvida todo|olvídalo todo|olvida todo sobre mí|olvida todo lo que sabes de mí
        |olvida todo lo que sabes sobre mí|borra todo|borra todos mis datos|borra mis datos
        |elimina todos mis datos|elimina mis datos|borra todo lo que sabes de mí""",
        "olvida lo que acabo de decir|olvida lo que dije|olvida mi último mensaje|borra mi último mensaje",
    ),
    "fr": (
        "s'il te plaît|s'il vous plaît|stp|svp|merci",
        """oublie tout|oubliez tout|oublie tout sur moi|oublie tout ce que tu sais sur moi
        |oublie tout ce que tu sais de moi|oubliez tout ce que vous savez de moi
        |oubliez tout ce que vous savez sur moi|efface tout|efface toutes mes données|efface mes données
        |supprime toutes mes données|supprime mes données|supprimez toutes mes données""",
        "oublie ce que je viens de dire|oubliez ce que je viens de dire|oublie mon dernier message",
    ),
    "de": (
        "bitte|jetzt|danke",
        """vergiss alles|vergessen sie alles|vergiss alles über mich|vergiss alles was du über mich weißt
        |vergessen sie alles über mich|lösche alles|lösche alle meine daten|lösche meine daten
        |lösch alle meine daten|lösch meine daten|lösche alles was du über mich weißt
        |lösch alles was du über mich weißt|löschen sie alle meine daten|löschen sie meine daten""",
        """vergiss was ich gerade gesagt habe|vergiss was ich eben gesagt habe|vergiss meine letzte nachricht
        |vergessen sie was ich gerade gesagt habe""",
    ),
    "it": (
        "per favore|per piacere|grazie",
        """dimentica tutto|dimentica tutto di me|dimentica tutto su di me|dimentica tutto quello che sai di me
        |cancella tutto|cancella tutti i miei dati|cancella i miei dati|elimina tutti i miei dati""",
        "dimentica quello che ho appena detto|dimentica il mio ultimo messaggio",
    ),
    "pt": (
        "por favor|obrigado|obrigada",
        """esqueça tudo|esquece tudo|esqueça tudo sobre mim|esquece tudo sobre mim
        |esqueça tudo o que sabe sobre mim|apague tudo|apaga tudo|apague todos os meus dados
        |apague meus dados|apaga os meus dados|exclua todos os meus dados|exclua meus dados""",
        "esqueça o que acabei de dizer|esquece o que acabei de dizer|esqueça a minha última mensagem",
    ),
    "nl": (
        "alsjeblieft|alstublieft|graag|bedankt",
        """vergeet alles|vergeet alles over mij|vergeet alles wat je over mij weet|verwijder alles
        |verwijder al mijn gegevens|verwijder mijn gegevens|wis al mijn gegevens|wis alles""",
        "vergeet wat ik net zei|vergeet wat ik zojuist zei|vergeet mijn laatste bericht",
    ),
    "pl": (
        "proszę|dziękuję",
        """zapomnij wszystko|zapomnij o wszystkim|zapomnij wszystko o mnie|zapomnij wszystko co o mnie wiesz
        |usuń wszystko|usuń wszystkie moje dane|usuń moje dane""",
        "zapomnij co właśnie powiedziałem|zapomnij co właśnie powiedziałam|zapomnij moją ostatnią wiadomość",
    ),
    "tr": (
        "lütfen|teşekkürler",
        """her şeyi unut|benimle ilgili her şeyi unut|hakkımdaki her şeyi unut|her şeyi sil
        |tüm verilerimi sil|bütün verilerimi sil|verilerimi sil""",
        "az önce söylediğimi unut|son mesajımı unut",
    ),
    "ru": (
        "пожалуйста|спасибо",
        """забудь всё|забудь все|забудьте всё|забудьте все|забудь всё обо мне|забудь все обо мне
        |забудь всё что ты знаешь обо мне|забудь все что ты знаешь обо мне|удали всё|удали все
        |удали все мои данные|удали мои данные|удалите все мои данные""",
        "забудь что я только что сказал|забудь что я только что сказала|забудь моё последнее сообщение",
    ),
    "ar": (
        "من فضلك|رجاء|لو سمحت",
        """انس كل شيء|انسى كل شيء|انس كل شيء عني|انس كل ما تعرفه عني|احذف كل بياناتي|احذف جميع بياناتي
            |احذف بياناتي|امسح بياناتي""",
        "انس ما قلته للتو|انس رسالتي الأخيرة",
    ),
    "hi": (
        "कृपया|धन्यवाद",
        """सब कुछ भूल जाओ|सब भूल जाओ|मेरे बारे में सब कुछ भूल जाओ|मेरा सारा डेटा हटा दो|मेरा डेटा हटा दो
            |मेरा सारा डेटा मिटा दो""",
        "जो मैंने अभी कहा उसे भूल जाओ|मेरा आखिरी संदेश भूल जाओ",
    ),
    "zh": (
        "请|請|谢谢|謝謝",
        """忘记一切|忘掉一切|忘记所有|忘记关于我的一切|忘掉关于我的一切|忘记我的一切|删除我的所有数据
            |删除我所有的数据|删除我的数据|删除一切|忘記一切|忘記關於我的一切|刪除我的所有資料
            |刪除我的資料""",
        "忘记我刚才说的|忘掉我刚才说的|忘记我刚才说的话|忘掉我刚才说的话|忘記我剛才說的話",
    ),
    "ja": (
        "お願いします|どうか|ください",
        """全部忘れて|すべて忘れて|全て忘れて|全部忘れてください|すべて忘れてください|全て忘れてください
            |私のことを全部忘れて|私のことをすべて忘れて|私のことを全て忘れて|私のことを全部忘れてください|私のことをすべて忘れてください
            |私のデータを全部消して|私のデータをすべて削除して|私のデータをすべて削除してください
            |私のデータを削除してください|私についてのすべてを忘れて|私についてのすべてを忘れてください
        |私に関するすべてを忘れて|私に関するすべてを忘れてください""",
        "今言ったことを忘れて|今言ったことを忘れてください|さっき言ったことを忘れて|さっき言ったことは忘れて",
    ),
    "ko": (
        "제발|부탁해|부탁해요",
        """다 잊어|전부 잊어|모두 잊어|다 잊어줘|전부 잊어줘|모두 잊어줘|나에 대해 다 잊어줘
            |나에 대한 모든 것을 잊어줘|내 데이터를 모두 삭제해|내 데이터를 모두 삭제해줘
            |내 데이터를 삭제해줘|다 잊어 줘|전부 잊어 줘|모두 잊어 줘|나에 대해 다 잊어 줘
            |나에 대한 모든 것을 잊어 줘|내 데이터를 모두 삭제해 줘|내 데이터를 삭제해 줘""",
        """방금 한 말 잊어|방금 한 말 잊어줘|방금 말한 거 잊어줘|방금 한 말 잊어 줘
        |방금 말한 거 잊어 줘""",
    ),
}
_LONGEST = 120
_HEAD, _TAIL = MOST_CHARACTERS * 3 // 4, MOST_CHARACTERS * 3 // 16
"""Characters that are read of a longer message."""
_PLAIN = frozenset(".,!'-\n\t\u2019\u2026\u00a1\u060c\u06d4\u0964\u3001\u3002\uff01\uff0c\uff0e")
_EMOJIS = "\U0001f000"
_SUNG = frozenset("\u2669\u266a\u266b\u266c\U0001f3b5\U0001f3b6\U0001f3a4")
"""Notes and a microphone: they quote a song."""

# Parts of words with which people ask to forget or to keep a secret. They make an extraction due at once and decide
# nothing, so a few too many cost a call and nothing else.
HASTENING = (
    # en, de, nl, sv, da, no
    *("forget", "forgot", "delet", "erase", "remov", "wipe", "scrub", "un-remember", "unremember", "don't remember"),
    *("do not remember", "stop remembering", "don't keep", "do not keep", "don't store", "don't hold on to"),
    *("frget", "foget", "scrap th", "scrap my", "strike th", "no longer keep", "shouldn't know", "should not know"),
    *("scratch that", "take that back", "drop the thing", "never bring up", "off the record"),
    *("confidential", "don't tell", "between us", "keep this", "private", "secret"),
    *("vergess", "vergiss", "lösch", "entfern", "merk dir", "unter uns", "vertraulich", "vergeet", "vergeten"),
    *("verwijder", "wissen", "glöm", "radera", "ta bort", "glem", "slett", "slet d", "slet m"),
    *("wis dat", "wis dit", "wis mijn", "wis alle"),
    # es, pt, fr, it, ro
    *("olvid", "borra", "bórra", "elimin", "suprim", "esqueç", "esquec", "apag"),
    *("exclua", "oubli", "efface", "supprim", "dimentic"),
    *("cancell", "scord", "uită", "uitaț", "uitaţ", "șterge"),
    *("entre nos", "entre nous", "confidencial", "confidentiel"),
    # pl, cs, ru, uk, el, tr, hu, fi
    *("zapomn", "usuń", "skasuj", "zapomeň", "smaž", "забуд", "забыт", "удал", "сотри", "стереть", "видали", "ξέχ"),
    *("ξεχ", "διέγραψ", "διαγρ", "unut", "sil ", "felejt", "töröl", "unohda", "unohta", "poista"),
    *("mi sil", "mu sil", "mü sil", "nu sil", "ni sil", "ri sil"),
    # ar, fa, he, hi, id, vi, th
    *("انس", "احذف", "امسح", "فراموش", "پاک کن", "תשכח", "שכח", "מחק", "भूल", "हटा", "मिटा", "lupakan", "hapus"),
    *("quên", "xóa", "xoá", "ลืม", "ลบ"),
    # ur, bn, ta, te, sw, tl
    *("بھول", "ভুলে", "মুছে", "மறந்து", "மறக்க", "நீக்கு", "మర్చిపో", "తొలగించ"),
    *("sahau", "ondoa", "futa ", "kalimut", "burahin"),
    # bg, sr and hr, sl, sk, ca, is, et, lv, lt
    *("забрав", "заборав", "изтри", "zaborav", "obriš", "pozabi", "izbriš", "zabudn", "vymaž", "oblid", "esborra"),
    *("gleym", "eyddu", "unusta", "kustuta", "aizmirst", "izdzēs", "pamirš", "ištrin"),
    # ml, kn, gu, pa, sq, ka, hy, kk
    *("മറക്ക", "ಮರೆತ", "ભૂલી", "ਭੁੱਲ", "harro", "დაივიწყ", "մոռաց", "ұмыт"),
    # In Latin letters, and as people type: hi, ru, ja, en
    *("bhool", "bhul ja", " hata do", " mita do", "yaad mat", "mat yaad", "zabud", "wasurete"),
    *("4get", "4got", "forgt", "frgt", "fgt "),
    # Not to remember or to keep: de, es, fr, it, pt, id, hi, ar, zh, ja, ko
    *("nicht speicher", "nicht merken", "nicht aufschreib", "no guardes", "no recuerdes", "ne garde "),
    *("ne gardez ", "ne stocke ", "ne stockez ", "ne retien", "non salvare", "non ricordare"),
    *("não guarde", "não salve", "jangan simpan", "jangan ingat"),
    *("याद मत", "मत याद", "لا تتذكر", "لا تحفظ", "لا تحتفظ", "不要记", "别记", "不要記", "別記"),
    *("覚えないで", "記憶しないで", "기억하지", "기억 하지", "저장하지"),
    # zh, ja, ko
    *("忘", "删", "刪", "清除", "抹掉", "消し", "消去", "削除", "わすれ", "잊", "삭제", "지워"),
)  # fmt: skip


def plain_command(text: str) -> Command | None:
    """The command that a whole message is, apart from politeness; None if it is anything else, also a question
    ("Delete my data?"), a quotation or a piece of code."""
    return None if len(text) > _LONGEST or not _is_said(text) else _WHOLE.get(folded(text))


def _is_said(text: str) -> bool:
    """True if a text has words, marks of a plain sentence and emojis only."""
    return _SUNG.isdisjoint(text) and all(
        char in _PLAIN or char >= _EMOJIS or category(char)[0] in "LMZN" or category(char) in ("So", "Cf")
        for char in text
    )


def hastens(text: str) -> bool:
    """True if a message, as far as it is read, has a word with which people ask to forget, or is nothing but a phrase
    that puts something off the record."""
    read = text if len(text) <= MOST_CHARACTERS else f"{text[:_HEAD]} {text[-_TAIL:]}"
    plain = with_latin_i(read.casefold()).replace("\u2019", "'")
    return any(word in plain for word in HASTENING) or is_bare_phrase(text)


def _whole() -> dict[str, Command]:
    found: dict[str, Command] = {}
    for polite, everything, last in COMMANDS.values():
        kinds: tuple[tuple[Command, str], ...] = (("everything", everything), ("last", last))
        for kind, commands in kinds:
            for command in map(folded, commands.split("|")):
                found[command] = kind
                for word in map(folded, polite.split("|")):
                    found[f"{word} {command}"] = found[f"{command} {word}"] = kind
                    found[f"{word}{command}"] = found[f"{command}{word}"] = kind
    return {written: kind for command, kind in found.items() for written in ways_to_write(command)}


_WHOLE = _whole()
