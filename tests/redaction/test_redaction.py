"""Secrets are found by form and by what is said before them, in linear time and without touching other text."""

from __future__ import annotations

import json
import unicodedata
from itertools import accumulate, pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arbiter._values.normal import normalized
from arbiter.errors import ParameterError
from arbiter.evaluators._consistency import similarity
from arbiter.redaction import DETECTORS, ContentRedactor, SecretRedactor, found_in
from arbiter.redaction._forms import BY_SIGN, keys_in
from arbiter.redaction._numbers import cards_in, ibans_in
from arbiter.redaction._redactor import Path
from arbiter.redaction._spoken import SIGNS, TABLE
from arbiter.redaction._texts import bare
from tests.memory.test_facts_privacy import HARMLESS, SECRETS
from tests.redaction.codes import NO_CODES, TOLD_CODES
from tests.redaction.forms import FORMS
from tests.redaction.hostile import NAMES, hostile_texts

TOLD = (
    "Mein WLAN-Passwort lautet sonnenblume7",
    "Mein Passwort ist hunter2",
    "Das WLAN-Passwort lautet sonnenblume",
    "Meine PIN lautet 4821",
    "Meine PIN ist die 4821",
    "El PIN es el 4821",
    "il mio PIN è il 4821",
    "o meu PIN é o 4821",
    "mon code PIN est le 4821",
    "Mijn pincode is de 4821",
    "My pin is the 4821",
    "Das Kennwort für den Server ist Xk29fz",
    "mi contraseña es hunter2",
    "La contraseña del wifi es girasol77",
    "A contrasenya: girasol77",
    "mot de passe : hunter2",
    "Mon mot de passe est tournesol9",
    "minha senha é girassol22",
    "a palavra-passe é girassol22",
    "la mia password è girasole4",
    "mijn wachtwoord is zonnebloem3",
    "mitt lösenord är solros99",
    "min adgangskode er solsikke5",
    "passordet mitt er solsikke5",
    "salasanani on auringonkukka1",
    "moje hasło to slonecznik8",
    "moje heslo je slunecnice8",
    "moja lozinka je suncokret8",
    "мой пароль hunter2",
    "Пароль от почты: подсолнух7",
    "мій пароль соняшник7",
    "a jelszavam napraforgo6",
    "şifrem aycicegi55",
    "ŞİFREM: aycicegi55",
    "PİN KODUM 4821",
    "sifrem: aycicegi55",
    "parolam aycicegi55",
    "parolamız: aycicegi55",
    "ο κωδικός μου είναι iliotropio4",
    "הסיסמה שלי היא hamaniya4",
    "كلمة المرور هي shams2024x",
    "رقمي السري ٤٨٢١",
    "मेरा पासवर्ड है surajmukhi1",
    "kata sandi saya bungamatahari2",
    "mật khẩu của tôi là huongduong3",
    "nenosiri langu ni alizeti44",
    "密码是 hunter2",
    "我的密码是hunter2，谢谢",
    "パスワードは hunter2 です",
    "비밀번호는 hunter2 입니다",
    "รหัสผ่านคือ hunter2",
    "my passwrod is hunter2",
    "the wifi pw is sunflower99",
    "The gate code is 99-1233",
    "The recovery phrase: witch collapse practice feed",
    "my seed is witch collapse practice feed shame open despair creek road again ice least",
    "hunter2 is my password",
    "what I said about hunter2x9, it is my password",
    "My PIN code is zq81kk",
    "Personalausweis L01X00T47",
    "Mein Reisepass hat die Nummer C01X00T47",
    "passport from Germany with C01X00T47",
    "my passport (C01X00T47) is new",
    "passport123456789",
    "passport_number=K123456",
    "Passport that I have had for a good many years by now is 12345678901234567890",
    "passeport numéro 12AB34567",
    "identity card ABC 123456",
    "identity card AT 123456",
    "passport: BY 1234567",
    "passport number:\n1234567",
    "passport number is\r\nX-1234567-L",
    "passport\tnumber\t1234567",
    "passport nos. 1234567",
    "Meine Reisepassnummer ist die 1234567",
    "identity card no CCC 123456",
    "driver's license WDLABCD456DG",
    "driving licence SMITH 701 018 AB",
    "passport ABC-DEF-123456",
    "passport num. 1234567",
    "my passport is still 1234567",
    "login: bob / Tr0ub4dor",
    "Login is bob@example.com / Tr0ub4dor&3",
    "user: bob | s3cretS3cret",
    "credentials bob:Tr0ub4dor&3",
    "account: bob / Winter2024!",
    "user: bob pass correcthorse9",
    "Username: bob, pass: horse9",
    "pass: correcthorse",
    "the server is old.example.com\npass: correct-horse\nthanks",
    "wifi key: correcthorse7",
    "my OTP is 123456",
    "OTP: 123 456",
    "Your verification code is 834211 and expires soon",
    "the login code was 4821.",
    "the sms code 834211",
    "password: correct horse battery",
    "Password: horse battery staple",
    "passphrase: correct horse battery staple",
    "sandi saya hunter2",
    "sandi saya adalah rahasia",
    "The code for the front door is 4931, come in",
    "code for Ada's garage: #4931",
    "The codes of the gates are 4931 and 8812",
    "the lockbox code: 4931",
    "safe combo 32-14-88",
    "Der Code für die Haustür ist 4931",
    "Der Türcode lautet 4931",
    "El código de la puerta es 4931",
    "Le code de la porte est le 4931",
    "le code de l'immeuble : 4931",
    "Il codice del cancello è 4931",
    "O código do portão é 4931",
    "de code van de voordeur is 4931",
    "kod do drzwi 4931",
    "Код от домофона 4931",
    "Tu código de verificación es 482913",
    "Votre code de vérification est 482913",
    "Ihr Bestätigungscode lautet 482913",
    "482913 ist Ihr Bestätigungscode",
    "Il tuo codice di verifica è 482913",
    "Seu código de verificação é 482913",
    "Ваш код подтверждения: 482913",
    "您的验证码是482913",
    "認証コードは482913です",
    "인증번호는 482913 입니다",
    "G-482913 is your Google verification code",
    "smsTAN 482913",
    "Meine TAN ist 482913",
    "PUK 12345678",
    "My PIN is four nine three one",
    "Meine PIN lautet vier neun drei eins",
    "my PINs are 4931 and 8812",
    "The backup codes are 1a2b-3c4d, 5e6f-7g8h",
    "my passwords: hunter22, swordfish9 and blue88x",
    "ma clé wifi est tournesol9",
    "Mein WLAN-Schlüssel lautet sonnenblume",
    "p/w hunter2",
    "password for the zip: blue-horse",
    "Passwort für den Router: 'gelbe sonne'",
    "'horse battery staple' is my password",
    "seed phrase:\n1. legal\n2. winner\n3. thank\n4. year\n5. wave\n6. sausage\n7. worth\n8. useful\n9. legal\n"
    "10. winner\n11. thank\n12. yellow",
    "my recovery words are legal winner thank year wave sausage worth useful legal winner thank yellow",
    "PIN codes are 4931 and 8812",
    "my PINs: 4931, 8812",
    "passwords: hunter22 ; swordfish9",
    "Backup code: 48291034",
    "Mi PIN es un 4821",
    "Ihre TAN: 482913",
)
NOT_TOLD = (
    "Mein Passwort ist falsch.",
    "Mein Passwort ist zu schwach",
    "Das Passwort liegt in der Schublade.",
    "La clave es la paciencia",
    "mi contraseña es muy débil",
    "mon mot de passe est trop court",
    "J'ai oublié mon mot de passe",
    "minha senha está errada",
    "Ich habe nie 20 Leute eingeladen",
    "我忘记了密码",
    "The pin is 4 cm long",
    "The pin is a 12mm bolt",
    "Die PIN ist die 4-stellige Nummer",
    "La contraseña es la de siempre",
    "The token is worth 3 euros",
    "User's password manager is Bitwarden",
    "User wants the API key rotated on Friday",
    "Passcode rules: at least 8 characters",
    "The access token expires after 3600 seconds",
    "Bob's PIN code is known to nobody",
    "This is my password.",
    "User's favourite cvc is Carlyle",
    "Order number 4111 2222 3333 4444",
    "User's tracking number is 1Z999AA10123456784",
    "My combination of 3 drugs",
    "Meine PIN ist ein MP3-Player",
    "Mi PIN es un MP3",
    "The code for the door sensor is 300 lines long",
    "Code for the building is due in 2027",
    "I wrote code for garage door openers 2019-2021",
    "The code on the safe side of 2024",
    "El código de la alarma cambió en 2024",
    "Der Code für das Tor ist geändert",
    "my tan lines from 2024",
    "My verification code never arrived",
    "Mein Hausschlüssel ist schwarz.",
    "My password problem: solved",
    "The password for new staff: please ask IT",
    "My recovery took twelve weeks of words about every single thing under the bright sun there",
    "Je n'ai pas reçu le code de vérification",
    "Connect pins 17 27 22 to ground",
    "We sold 300 pins, 500 badges",
    "The status code of the portal is 404",
    "HTTP code of the portal: 500",
    "The postal code of the building is 10115",
    "The code for the alarm is 5000 bytes",
    "Use the code to open door 101",
    "The `getpass` is the password prompt",
    "The column 'user_pw' is the password column",
    'He said "no" as password rules demand',
    "[sudo] password for ada: \nSorry, try again.",
    'getpass("Password for %s on %s: " % (user, host or "here"))',
    "My passphrase and the other things that were stored there have all been lost",
    "The backup code is messy, we rewrote it",
    "The backup key is stale",
    "Tan: 2019.",
    "Mr Tan has 650000 dollars",
    "验证码功能上线于 2024-05-01",
    "验证码过期时间为 3600 秒",
)
ORDINARY = """
The user can log in or pass the form. Login: see page 4 / section4 of the manual. The users: Bob / Ada / Eve.
User: what is your name? Assistant: I am Ada. The user passes oauth2 tokens to the server. Boarding pass: gate 12b.
Pass: required
Pass: unlimited
Pass: accommodation
pass: yes
Ski pass: six days from 220 euros, boarding at 9:30. The mountain pass is closed: snow. A pass / fail exam in room 12b.
She will pass mathematics2 next year. I pass the bakery every day at 8:15. My account: savings / current / shared.
Account: ends in 12/2024. Account is 30/70 split between us. Accounts: Twitter/X, Mastodon. Account manager: Ada/Bob.
The login is at 10:30am today. My login is slow / broken since v2.1. Login is by name / email. login: 2nd / 3rd-floor.
Credentials are on file / in the safe. Her credentials: MSc 2019 / PhD 2023. Credentials: MBA, PMP, ITIL4.
Username is taken / reserved. User name: Ada / Countess. user: ada/src/main2.py is missing. The user id: ab/1234567.
He keyed in 12/24 at the wifi hotspot. The wifi key is on the fridge. The wifi key does not work any more.
Our WLAN key hangs in the hall. The key to room 12b is lost. User stories: login / logout / sign-up. log in / log out
User is 34 / from Oslo. User is allergic to nuts / gluten. The user was born 3/4/1990. Account was opened 3/2019.
I work in accounts: payable / receivable. Pass me the salt: it is over there.
Erlang/OTP 27 and OTP 26.2.1 were released. The OTP supervisor restarts 100 processes, as in the OTP 2024 release.
An OTP is valid for 300 seconds. OTP valid for 300 seconds. Enter the OTP within 120 seconds. OTP: 2024-11-28
The login code has 2500 lines. The authentication code is 1200 lines long. The 2FA code: see page 123.
The confirmation code takes 120 seconds. The SMS code: 6 digits. The password is correct. Password: correct
Sandi Metz wrote rails7 books. Sandi saw version2b of it. Sandi adalah kata. operasi sandi 2024abc
mysql -p asks for the password. mysql -u root -p mydb. Use mysql -P 3306, mysql -p<password>, mysql -p$PW or -p"$PW".
curl -u user: https://x. curl -u $USER:$PASS x. curl -u "$A:$B" x; docker run -u 1000:1000 img. curl -u <user>:<pass>
We use curl; sudo -u bob:staff x. sshpass -p $PW ssh x; sshpass -e ssh x; sshpass -f file ssh x. sshpass -p "$PW" x
See http://localhost:8080/@user and http://a:80, or bob@host. https://medium.com/@bob https://host:443/a@b
""".splitlines()
TOKENS = (
    "glpat-abcdefgh12345", "hf_abcdefghij", "npm_abcdefghij", "pypi-abcdefghij", "xoxb-1234567890",
    "ya29.abcdefghij", "SG.abcdefghij", "AIzaSyabcdefghij", "EAACabcdefghij", "github_pat_abcdefghij",
    "dop_v1_abcdefgh", "shpat_abcdefghij", "whsec_test_abc", "rk_live_abc", "sk-abcdefgh",
    "Authorization: Bearer abcdef123456ghijkl", "https://user:pw@host/", "redis://:hunter2@host", "https://a:b@c@host",
    "mysql -phunter2", "mysql -u root -p'hunter 2' db", "mariadb-dump -uroot -phunter2", "sshpass -p hunter2 ssh x",
    "curl -u bob:hunter2 https://x", 'curl https://x --user "bob:hunter 2"', "curl -s \\\n  -ubob:hunter2 https://x",
    "PGPASSWORD=hunter2 psql", "host=db password=hunter2 user=bob", "https://x/?access_token=abc123def&y=1",
    "AccountName=x;AccountKey=Zm9vYmFyZm9v12==;EndpointSuffix=core", "--api-key=abc-123",
)  # fmt: skip
PAPERS_WITHOUT_NUMBER = (
    "My passport expired in 2021",
    "My passport is valid until 2031",
    "My passport expires on 12.05.2027",
    "our dni expired on 2024-01-02",
    "I renewed my passport for 120 euros",
    "passport renewal takes 8 to 12 weeks and costs 130 pounds",
    "my bank account has 2500 euros",
    "I lost my driving licence in May 2024",
    "My driver license test is at 1030",
    "The NHS has 1500000 employees",
    "Mein Personalausweis ist seit 2020 abgelaufen",
    "Mi pasaporte caduca en 2030",
    "I have had 3 passports since 1990",
    "passport renewal 2024-2025",
    "my passport expires on 12.05.27",
    "npm i passport v0.10.6",
    "my bank account was at 150000 last year",
    "MY BANK ACCOUNT HAS 150000 EUROS",
    "my bank account has the 150000 euros",
)
ALL = ("secrets", "cards", "papers", "spoken")
OURS = SecretRedactor(ALL)


@pytest.mark.parametrize("text", [*SECRETS, *TOLD])
def test_a_secret_is_replaced(text: str) -> None:
    shown = OURS.redact(text)
    assert shown != text
    assert "[secret: " in shown


@pytest.mark.lengthy
@pytest.mark.parametrize("before", ["see\n", "see\t", "see\r", "\n", "\x1b[31m"], ids=repr)
def test_a_secret_at_the_begin_of_a_line_is_replaced(before: str) -> None:
    """Also in a text as Python prints it, where a letter stands for the end of the line."""
    for text in (before + secret for secret in (*SECRETS, *TOKENS, *map("".join, FORMS))):
        assert "[secret: " in OURS.redact(text), text
        assert before[0] == "\x1b" or "[secret: " in OURS.redact(repr(text)), text


@pytest.mark.parametrize(
    "text", ["login: bob / Tr0ub\\n4dor", "https://bob:s3cr\\net@", "my password is ab\\tss9Wd"]
)
def test_a_secret_with_a_backslash_before_a_letter_is_replaced_as_a_whole(text: str) -> None:
    """It looks as the end of a line does in the printed form of a text."""
    assert OURS.redact(text).endswith("]")


_PARTS = st.one_of(
    st.sampled_from(
        [
            *SECRETS,
            *TOLD,
            *TOKENS,
            *map("".join, FORMS),
            *NOT_TOLD,
            "4111 1111 1111 1111",
            "DE89370400440532013000",
        ]
    ),
    st.sampled_from(["\n", "\t", "\r", '"', "'", "\\", " ", ": ", "a", "7", "\b", "{", "\\n"]),
)


@pytest.mark.lengthy
@example("the server is old.example.com\npass: correct-horse\nthanks")
@example("shpat_\fabcdefgh12")
@example("glpat\b-abcdefgh12")
@example("glpat\x7f-abcdefgh12")
@given(st.lists(_PARTS, min_size=1, max_size=4).map("".join))
def test_what_is_taken_for_clean_at_a_first_look_has_nothing_to_redact(text: str) -> None:
    """The first look is at the JSON of contents, the second at each text."""
    for detect in (("secrets", "cards"), ALL):
        redactor = ContentRedactor(detect=detect)
        inner = json.dumps({"a": text})
        for value in ([text], {"a": text}, {text: 1}, [inner], [json.dumps([inner])]):
            if redactor.is_clean(json.dumps(value)):
                assert redactor.redact(value) == value


@pytest.mark.parametrize("text", TOLD)
def test_what_looks_like_the_secret_is_gone(text: str) -> None:
    shown = OURS.redact(text)
    told = [word for word in bare(text).split() if any(char.isdigit() for char in word)]
    assert all(word not in shown for word in told)


def test_a_passphrase_is_replaced_to_the_end_of_its_sentence() -> None:
    """Also if it begins with as many words as that of a wallet has."""
    told = "the quick brown fox jumps over the lazy dog and then eats my old Volvo"
    assert OURS.redact(f"my passphrase is: {told}! Bye") == "my passphrase is: [secret: spoken]! Bye"


@pytest.mark.parametrize(
    "text", ["pass: hunter22 2024-01-01 12:00:00 ok", "passwords: hunter22 2024-05-05 ok"]
)
def test_what_follows_a_secret_in_a_log_stays(text: str) -> None:
    assert OURS.redact(text) == text.replace("hunter22", "[secret: spoken]")


@pytest.mark.parametrize("text", [*HARMLESS, *NOT_TOLD, *PAPERS_WITHOUT_NUMBER])
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert OURS.redact(text) is text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("my passport is X1234567 and I live in Oslo", "my passport is {} and I live in Oslo"),
        ("Passport PA 12345678 valid until 2031", "Passport {} valid until 2031"),
        ("My driver's license: S123-4567-8901 thanks", "My driver's license: {} thanks"),
        ("NHS number 943 476 5919 since 1990", "NHS number {} since 1990"),
        ("My passports are X1234567 and Y7654321", "My passports are {} and {}"),
        ("passport 1234567 or 7654321", "passport {} or {}"),
        ("Паспорт X1234567 и Y7654321", "Паспорт {} и {}"),
        ("my passport is X1234567 call 5551234567", "my passport is {} call 5551234567"),
        ("my SSN is 078-05-1120 and my phone is 5551234567", "my SSN is {} and my phone is 5551234567"),
    ],
)
def test_what_stands_around_the_number_of_a_paper_stays(text: str, left: str) -> None:
    found = "[secret: papers]"
    assert OURS.redact(text) == left.format(found, found)


@pytest.mark.parametrize("line", TOLD_CODES.strip().splitlines())
def test_a_code_is_replaced_however_somebody_tells_it(line: str) -> None:
    text, _, code = line.partition(" | ")
    assert code not in OURS.redact(text)
    assert "[secret: spoken]" in OURS.redact(f"Hello! {text}.\nBye")


def test_numbers_that_open_nothing_stay_as_they_are() -> None:
    lines = NO_CODES.strip().splitlines()
    assert {line: shown for line in lines if (shown := OURS.redact(line)) != line} == {}
    assert OURS.redact("\n".join(lines)) == "\n".join(lines)


def test_ordinary_sentences_with_words_of_logins_stay_as_they_are() -> None:
    wrong = {line: shown for line in ORDINARY if (shown := OURS.redact(line)) != line}
    assert wrong == {}
    whole = "\n".join(ORDINARY)
    assert OURS.redact(whole) == whole


@pytest.mark.parametrize(
    "text", [*SECRETS, *TOLD, *TOKENS, *map("".join, FORMS), *(text.upper() for text in SECRETS)]
)
def test_no_sign_is_missing(text: str) -> None:
    """Whatever a pattern finds has one of the signs without which the pattern is not run."""
    looked_at = bare(text)
    folded = looked_at.lower()
    has = folded.__contains__
    for of in {pattern for _, _, _, pattern in BY_SIGN if pattern.search(looked_at)}:
        assert any(
            has(mark) and (not words or any(map(has, words))) and any(map(has, signs))
            for mark, words, signs, pattern in BY_SIGN
            if pattern is of
        ), of
    assert {name.sign for name in TABLE} == set(SIGNS)
    assert all(name.pattern.pattern.startswith(name.sign[:1]) for name in TABLE)


_PIECES = (
    "4111",
    "1111",
    "4111111111111111",
    "5500005555555559",
    "DE89",
    "DE89370400440532013000",
    "GB82",
    "WEST",
)
_BETWEEN = tuple('0123456789abYZ \t\n\v\f\r\x1c\x1d\x1e\x1f\x00.,/_-:"')


@given(st.lists(st.sampled_from(_PIECES + _BETWEEN), max_size=60).map("".join))
def test_a_first_look_at_a_text_misses_no_number(text: str) -> None:
    """A character beyond ASCII keeps the first look out, and the same numbers are found."""
    for find in (cards_in, ibans_in):
        assert [(start + 2, end + 2) for start, end in find(text)] == list(find("é " + text))


@pytest.mark.parametrize("between", ["", *" \t\n\v\f\r\x1c\x1d\x1e\x1f.,/_-"])
def test_a_card_is_found_whatever_is_between_its_digits(between: str) -> None:
    card = between.join(("4111", "1111", "1111", "1111"))
    assert list(cards_in(f"pay {card} now")) == [(4, 4 + len(card))]


@pytest.mark.parametrize(
    "text", ["0.3840444763526488", "[-0.25, 0.5555555555554444]", "3.840444763526488e-05"]
)
def test_a_decimal_number_is_no_card(text: str) -> None:
    assert list(cards_in(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "the run 20261201-061933-3025eca6 has ended",
        "eval/case-4/20230522-203727-0ac4ee65",
        "table1-20240413-031947-002178.json",
        "IMG_20240624_010006760.jpg",
        "backup-20230820003142.tar",
        "from 2024-12-14 2023-05-28",
        "24.09.2027 - 07.05.2028",
        "f4869929-9476-401d-9a67-4ef1c159d895",
        "6806e32285f447559189369404d03921",
        "682110476340312f93cb2cee8501dc0bfd70fe3410d8dd82eeb55701d12963e3",
        "50.557703, 19.411667",
        "204.255.26.232 49.189.19.121",
        "[414, 516, 922, 715, 832, 544]",
        "[45.42, 68.45, 61.61, 12.84, 83.13, 68.99]",
    ],
)
def test_an_id_a_time_an_address_or_a_list_of_numbers_is_no_card(text: str) -> None:
    """The digits of each of them have the check digit of a card."""
    assert list(cards_in(text)) == []


_CARDS = {
    "4222222222222": [4, 4, 4, 1],
    "4111111111111111": [4, 4, 4, 4],
    "4000000000000000006": [4, 4, 4, 4, 3],
    "5500005555555559": [4, 4, 4, 4],
    "2221000000000009": [4, 4, 4, 4],
    "2200000000000004": [4, 4, 4, 4],
    "378282246310005": [4, 6, 5],
    "3530111333300000": [4, 4, 4, 4],
    "30569309025904": [4, 6, 4],
    "6011111111111117": [4, 4, 4, 4],
    "6304000000000000000": [6, 13],
}


@pytest.mark.parametrize("card", _CARDS)
@pytest.mark.parametrize("between", ["", " ", "-", ", ", "\u2013"])
def test_a_card_of_each_network_is_found_in_any_surroundings(card: str, between: str) -> None:
    ends = [0, *accumulate(_CARDS[card])]
    shown = between.join(card[start:end] for start, end in pairwise(ends))
    for before in ("card ", "card:", "card", "1, 2, 30, 40, ", "on 2026-12-01 ", "3. ", "10.0.0.1 "):
        for behind in ("", "exp 12/27", ",12,26,345", " 12.12.2026", ".", "x"):
            text = before + shown + behind
            start, end = len(before), len(before + shown)
            assert any(found[0] <= start and end <= found[1] for found in cards_in(text)), text


@pytest.mark.parametrize("card", [card for card in _CARDS if len(card) < 19])
def test_a_card_written_as_an_amount_is_found(card: str) -> None:
    shown = f"{int(card):,}"
    assert list(cards_in(f"card {shown}, thanks")) == [(5, 5 + len(shown))]


@pytest.mark.parametrize("before", ["a card.", "It costs 20.", "version 3.0.", "0. ", "0,"])
def test_a_card_after_a_full_stop_is_found(before: str) -> None:
    assert [
        f"{before}4111111111111111"[start:end] for start, end in cards_in(f"{before}4111111111111111")
    ] == ["4111111111111111"]


@pytest.mark.parametrize("between", [" ", " and ", "-", ", ", " or from ab12 to "])
@pytest.mark.parametrize(
    "first", ["DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "order ab12 of today"]
)
def test_an_account_number_after_another_one_is_found(first: str, between: str) -> None:
    """The text before it may look like the begin of an account number, too."""
    text = f"{first}{between}NL91 ABNA 0417 1643 00 and GB82WEST12345698765432"
    found = [text[start:end] for start, end in ibans_in(text)]
    assert found[-2:] == ["NL91 ABNA 0417 1643 00", "GB82WEST12345698765432"]
    assert found[:-2] == [first] * first.startswith("DE89")


def test_tokens_of_providers_are_found() -> None:
    for text in TOKENS:
        assert list(keys_in(text, text.lower())), text


@pytest.mark.parametrize(("before", "secret", "behind"), FORMS)
def test_of_a_token_a_header_a_url_or_a_command_only_the_secret_is_replaced(
    before: str, secret: str, behind: str
) -> None:
    shown = SecretRedactor().redact(before + secret + behind)
    assert shown == f"{before}[secret: secrets]{behind}"
    assert shown == SecretRedactor().redact(shown)


def test_code_and_places_to_fill_in_are_no_secrets() -> None:
    text = """
hf_hub_download(HF_TOKEN_PATH, HF_HUB_OFFLINE), npm_lifecycle_event, NPM_CONFIG_BINROOT, sg.group_name, pk_test_table
mssql+aioodbc://<username>:<password>@d, s3://{access_key}:{secret_key}@b, postgres://u:$PW@h, postgres://u:${PW}@h/db
pwd: build2/out, password: min8chars, password: 8-20characters, Cookie: a small biscuit=1; Cookie: theme=dark; lang=en
xai-grok-4-fast-reasoning, pplx-embed-context-v1-0.6b, fw_load_from_user_helper_v2(), fc-21-dp-00000-of-00004.txt
e2b_sandbox_template_v2, gsk_clinical_trial_phase_3, r8_build_rules_for_android_14, hvs.dashboard.view.of.2024
NotFoundComponentSpecOfAll.client.SomethingLongEnoughForThisCase, author: bob12345678, "author": "aB3aB3aB3aB3aB3"
sign(a, signature=signature_of_version_2(body)), sha512-signature=none
xai-grok-models-are-listed-there, fc-list-of-all-the-fonts, e2b_tests_are_run_by_hand_here, key-value-stores-of-clouds2
https://x/?key=PROJ-123&code=ERR_CONNECTION_REFUSED_12345, ?key=uploads/2024/01/report-Final.pdf&sig=none, ?code=404
client-certificate-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUR123456, "auth": "required1", _auth = HTTPAuth2(x)
MD5 9f86d081884c7d659a2feaa0c55ad015, 0f1b2c3d-1a2b-3c4d-5e6f-444455556666, 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12
sha256:9f86d081884c7d659a2feaa0c55ad0159f86d081884c7d659a2feaa0c55ad015, arn:aws:iam::123456789012:role/Admin-Role-2024
echo $PW | sudo -S ls; echo ok | tee x; htpasswd -b file user $PW; htpasswd -c file user2; wget --password=$PW x
machine learning login page password reset, WIFI: a café has P: free;
The machine has a login page; password reset 2, sqlplus / as sysdba@x; WIFI:S:home;T:nopass;; PASSWORD=getpass(), zip
https://docs.slack.dev/hooks/services/abc, https://discord.com/developers/docs/resources/webhook, _LONG_NAME_OF_CONST_2
password=None, token=self.token, api_key=os.environ.get("KEY1"), secret=get_secret2(x), max_tokens=100, TOKEN=$TOKEN1
PWD=/home/bob2/x OLDPWD=/Users/bob1 pwd=~/src2, PWD=/srv/app2 ; secret=/run/secrets/db1, private_key=/etc/ssl/key1.pem
token=12, pwd=/, password=********, password=<your-password-1>, api_key={API_KEY_1}, monkey=abc123def, key=abc123def
page_token=CAEQ12abc next_page_token=CAEQ12abc, sync-token=abc1234, cursorToken=abc1234; mysql -please 1 row
def f(token: str, secret: Secret2 = secret1, password: str = password1): token = token2[0]; secret: db-creds-v12
password: required, token: layer12, api_key: None, docker run -p 8080:80 nginx1 && docker login registry1.example.org
Authorization: Bearer YOUR_TOKEN, --token-file /run/token1, --password-stdin abc123, --token $TOKEN1
arn:aws:secretsmanager:us-west-2:123456789012:secret:MyTestSecret-a1b2c3, /etc/passwd:12:root, --secret db-pass-v2
docker run --name mongo -p 27017:27017 -p 127.0.0.1:8081:8081 m, docker build --secret id=MySecret12345,src=x
def sign(private_key: ed25519.Ed25519PrivateKey): nextSyncToken=CPDAlvWDx70; install mongo and mkdir -p /data/db
"""
    assert SecretRedactor().redact(text) == text


def test_of_a_command_or_an_assignment_only_the_secret_is_replaced() -> None:
    assert OURS.redact("curl -u bob:hunter2 https://x") == "curl -u bob:[secret: secrets] https://x"
    assert OURS.redact("mysql -u bob -p'hunter 2' db") == "mysql -u bob -p'[secret: secrets]' db"
    assert SecretRedactor().redact("x?token=abc123def&y=1") == "x?token=[secret: secrets]&y=1"
    assert OURS.redact("https://bob:hunt@er2@host/x") == "[secret: secrets]host/x"
    assert OURS.redact("password: horse battery staple\nnext") == "password: [secret: spoken]\nnext"


@pytest.mark.parametrize(
    ("before", "secret"),
    [
        ("password: ", "hunter2"),
        ("DB_PASS=", "hunter2"),
        ("Passwd:", "Tr0ub4dor"),
        ("x-api-key: ", "abc123def456"),
        ("token: ", "abcdEFGH1234"),
        ("SECRET_KEY=", "django-insecure-abc123"),
        ("secretkey: ", "abc123def"),
        ("async_token=", "abc123def"),
        ("mongosh -p ", "2345678"),
        ("aws_secret_access_key = ", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        ('password = "', "hunter2"),
        ("curl --token ", "abc123def"),
        ("docker login -u bob -p ", "Xy7pass9"),
        ("helm registry login --password ", "hunter2"),
        ("mongosh -u x -p ", "hunter2"),
        ("redis-cli -h x -a ", "hunter2"),
        ("Authorization: Basic ", "dXNlcjpwYXNz"),
        ("authorization: Bearer ", "abcdef.ghijkl.mnopqr"),
    ],
)
def test_a_password_of_a_setting_a_header_or_a_command_is_found_without_being_spoken(
    before: str, secret: str
) -> None:
    assert SecretRedactor().redact(f"run {before}{secret}") == f"run {before}[secret: secrets]"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("834211 is your code", "[secret: spoken] is your code"),
        ("834 211 is your Acme verification code.", "[secret: spoken] is your Acme verification code."),
        ("Your Acme code is 834211.", "Your Acme code is [secret: spoken]."),
        ("90210 is your zip code", None),
        ("Your error code is 404112", None),
        (
            "max_tokens=100 token_count=12 password_length=12 next_page_token=CAEQ12abc token_type=bearer",
            None,
        ),
        ("token=None, api_key=null", None),
    ],
)
def test_codes_that_a_service_sends_are_found_and_names_in_programs_are_not(
    text: str, redacted: str | None
) -> None:
    assert OURS.redact(text) == (redacted or text)


def test_a_redactor_that_goes_through_the_whole_is_applied_once() -> None:
    class Pseudonyms:
        def __init__(self) -> None:
            self.asked: list[Path] = []

        def redact(self, value: Any, path: Path) -> Any:
            self.asked.append(path)
            parts: Any = value
            if isinstance(value, dict):
                return {key: self.redact(part, (*path, key)) for key, part in parts.items()}
            if isinstance(value, list):
                return [self.redact(part, (*path, at)) for at, part in enumerate(parts)]
            return f"<{value}>" if isinstance(value, str) else value

    names = Pseudonyms()
    redacted = ContentRedactor(also=[names]).redact({"input": {"a": ["ann", {"b": "ann"}], "n": 7}})
    assert redacted == {"input": {"a": ["<ann>", {"b": "<ann>"}], "n": 7}}
    assert names.asked.count(("input",)) == 1


def test_a_mapping_by_secrets_keeps_all_its_values() -> None:
    sessions = {f"ghp_{letter * 36}": number for number, letter in enumerate("abc")}
    redacted = ContentRedactor().redact({"sessions": sessions})
    assert [*redacted["sessions"].values()] == [0, 1, 2]
    assert "ghp_" not in str(redacted)


def test_the_auth_of_dockers_settings_is_a_secret_field_and_no_other_auth() -> None:
    settings = {"auths": {"https://index.docker.io/v1/": {"auth": "Ym9iOmh1bnRlcjIyMjI="}}}
    redacted = {"auths": {"https://index.docker.io/v1/": {"auth": {"$secret": "field"}}}}
    assert ContentRedactor().redact(settings) == redacted
    assert json.loads(ContentRedactor().redact(json.dumps(settings))) == redacted
    for auth in ({"user": "bob"}, "required", "", None):
        assert ContentRedactor().redact({"auth": auth}) == {"auth": auth}
        named = ContentRedactor(keys=["auth"]).redact({"auth": auth})
        assert named == {"auth": {"$secret": "field"} if auth else auth}
    without = ContentRedactor(detect=("emails",))
    assert without.is_clean(json.dumps(settings))
    assert without.redact(settings) == settings


def test_the_token_of_a_page_is_no_secret_field() -> None:
    fields = {"page_token": "CAEQ", "nextPageToken": "CAEQ", "sync_token": "a"}
    assert ContentRedactor().redact(fields) == fields
    for name in ("auth_token", "session_token", "admin_token", "json_token", "async_token", "previous_token"):
        assert ContentRedactor().redact({name: "a"}) == {name: {"$secret": "field"}}
        assert OURS.redact(f"{name}: abc123def") != f"{name}: abc123def"


@pytest.mark.parametrize("name", ["pwd", "PWD", "Pwd"])
def test_pwd_is_a_password_unless_it_is_a_folder(name: str) -> None:
    redactor = ContentRedactor()
    for told in ("swordfish", "sw0rd/fish", ".Summer24", "..12..", 4821):
        for value in ({name: told}, [{"db": {name: told, "uid": "sa"}}]):
            assert not redactor.is_clean(json.dumps(value))
            assert str(told) not in str(redactor.redact(value))
            for text in (json.dumps(value), json.dumps({"inner": json.dumps(value)})):
                assert str(told) not in redactor.redact(text)
    printed, redacted = {name: "swordfish"}, {name: "[secret: field]"}
    assert redactor.redact(f"made {printed}") == f"made {redacted}"
    assert redactor.redact({name: {"$path": "/home/ann"}}) == {name: {"$path": "/home/ann"}}
    for folder in ("/home/ann", "~/src", "./src", ".", "..", "..\\src", "C:\\Users\\ann", "D:/work"):
        field = {name: folder}
        for harmless in (field, json.dumps(field), f"made {field}"):
            assert redactor.redact(harmless) == harmless


def test_values_inside_of_mappings_and_lists_are_replaced() -> None:
    value = {"a": ["my password is hunter2", 7, ("ok", None)], "b": "fine"}
    shown = OURS.redact(value)
    assert shown == {"a": ["my password is [secret: spoken]", 7, ("ok", None)], "b": "fine"}


def test_digits_of_other_scripts_are_read_as_ascii_ones_and_kept() -> None:
    redactor = ContentRedactor(patterns={"id": "[٠-٩]{10}"})
    assert redactor.redact("رقم ٤١١١١١١١١١١١١١١١ وعمري ٣٥") == "رقم [secret: cards] وعمري ٣٥"
    assert redactor.redact("رقمي ٠١٢٣٤٥٦٧٨٩") == "رقمي [secret: id]"
    assert SecretRedactor(most=1_000).text("عمري ٣٥ سنة " * 100).startswith("عمري ٣٥ سنة ")


def test_detectors_are_chosen_by_name() -> None:
    text = "Write to bob@example.com or call +49 170 1234567"
    assert SecretRedactor().redact(text) is text
    shown = SecretRedactor(("emails", "phones")).redact(text)
    assert shown == "Write to [secret: emails] or call [secret: phones]"
    assert set(DETECTORS) == {"secrets", "cards", "papers", "spoken", "emails", "phones"}
    with pytest.raises(ParameterError, match=r"detect: expected .*'secrets'.*, got 'mails'"):
        SecretRedactor(("mails",))


# Long texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 5_995, 50_000, 98_100, 98_125, 99_900])
def test_no_part_of_a_secret_is_shown_wherever_a_long_text_is_cut(at: int) -> None:
    secret = "sk-live-" + "Zq9" * 20
    text = ("word " * 20_000)[:at] + " " + secret + " " + ("word " * 20_000)[at:]
    shown = OURS.redact(text)
    assert "Zq9" not in shown
    assert len(shown) < 9_000
    assert "characters left out" in shown


@pytest.mark.parametrize("lines", [100, 1_000, 2_000])
@pytest.mark.parametrize("before", [0, 1_500])
def test_no_part_of_a_long_private_key_is_shown(lines: int, before: int) -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\n" * lines
    for text in (key, key + "-----END PRIVATE KEY-----\nthanks"):
        shown = OURS.redact("word " * before + text)
        assert "MIIEvQ" not in shown
        assert ("thanks" in shown) == ("thanks" in text)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", NAMES)
def test_hostile_texts_take_little_time(name: str) -> None:
    """100,000 characters of anything take less than 50 ms of CPU."""
    text = hostile_texts()[name]
    best = min(_seconds(text) for _ in range(3))
    assert best < 0.05


@pytest.mark.lengthy
@pytest.mark.parametrize("name", NAMES)
def test_time_grows_with_the_length_and_not_faster(name: str) -> None:
    text = bare(hostile_texts()[name][:16_000])[:16_000]
    short, long = (min(_found(text[:n]) for _ in range(3)) for n in (4_000, 16_000))
    assert long < max(16 * short, 0.004)


def test_plain_text_costs_little() -> None:
    plain = "I went to the market and bought some apples for my friends. " * 273
    assert min(_seconds(plain) for _ in range(5)) < 0.002


def _seconds(text: str) -> float:
    begun = process_time()
    OURS.redact(text)
    return process_time() - begun


def _found(text: str) -> float:
    begun = process_time()
    found_in(text, DETECTORS)
    return process_time() - begun


@pytest.mark.lengthy
def test_invisible_characters_are_all_known() -> None:
    """The list of invisible characters is Unicode's."""
    unseen = "".join(
        char
        for char in map(chr, range(0x110000))
        if unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"
    )
    assert bare(f"a{unseen}é") == "aé"


def test_long_runs_of_combining_marks_take_linear_time() -> None:
    """Unicode's normal forms sort each run of marks, which takes quadratic time."""
    text = "a\u0301\u0316" + "\u0301\u0316" * 50_000
    begun = process_time()
    for form in ("NFC", "NFD", "NFKC"):
        assert len(normalized(form, text)) <= 31
    assert similarity(text, f"{text} more") == 0.5
    assert process_time() - begun < 1
    assert normalized("NFC", "a\u0316\u0301" * 100) == unicodedata.normalize("NFC", "a\u0316\u0301" * 100)
