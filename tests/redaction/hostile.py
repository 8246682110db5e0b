"""Texts of 100,000 characters that make careless patterns slow."""

from __future__ import annotations

import random
from functools import cache

LENGTH = 100_000
REPEATED = (
    "please ", "forget ", "( ( (", '"', "'", "password ", "password is ", "password for a b c d ", "pin ",
    "my pin is a b ", "pass ", "token to ", "4 ", "1 2-3.", "4111 1111 1111 111", "eyJ-", "eyJaaaaaaaaa.",
    "eyJaaaaaaaaa-eyJ", "a://a:", "://", "http://a:b", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "sk-",
    "sk-live-", "bearer ", "basic 1", "DE89 ", "AB12CD34EF56GH78IJ90KL12MN34_", "ssn ", "ssn:::::",
    "passport number is ", "a.b-c1:", "api_key_", "seed word ", "the as my password ", "密码", "密码是",
    "пароль ", "é", "\u0301", "a\u0301\u0316", "\ufdfa", "\u200b", "😀", "İ", "\n", "x\n", "a b\n", " ",
    "son is ", "recovery phrase is (", "pass\t", "[{", '{"a":', "```", "<b>", "@a.", "a@", "+1(",
    "mot de passe ", "secret=", "secret: '", "password is '", 'password is "x', "never mind forget this ",
    "i want you to forget everything that ", "what i'm telling ", "keep this really ", "son bbbbb son ",
    "what i said ", "login: a / ", "user: a ", "login: a:", "credentials a:", "otp is ", "mysql ",
    "mysql -u ", "curl ", "curl -u ", "curl -u a:", "sshpass -p ", "token=", "pwd=a",
    "a://a:b@", "password: a b c ", "\\n",
    "pass: a\n", "user: a pass ",
    "token:a", "oc login -", "_pass=", "cookie:", "cookie:=", "cookie: a=b; ", "htpasswd -b a ",
    "htpasswd -", "/webhooks/1/", "hooks.slack.com/services/", "?code=", "?code=aA", "?key=aA", "&sig=",
    "&sig=a", ",signature=", "machine a login b ", "machine a login ", "'auth': '", "'auth':'aA", "_auth=a",
    "WIFI:", "WIFI:P:", "thin:a/", "sqlplus a/b", "PASSWORD=a", ";pwd=aaaaaa", "echo a:", "echo a | ",
    "AKIAAAAAAAAAAAAA ", "secret key ", "secretkey:aA", "private-lines: 1 ", "gsk_", "gsk_aaaaaaaaaaaaaaaa ",
    "aaaaaaaaaaaaaaaaaaaa ", "aaaaaaaaaaaaaaaaaaaa.", "12345678:AA", "ldapsearch -", "wget -", "openssl a ",
    "7z -", "smbclient -U a", "lftp -u a", "unzip -P", "curl -b a", "a://<", "a://a:<", "pwd:a", "hf_a_",
    "password:min8", "pk_test_a", "0123456789-us1 ",
    "with 4931 ", "alarm with 4931, ", "unlock with 4931, ", "unlock the alarm 4931, ", "the alarm is 1930. ",
    "the alarm is ", "with the the ", "4931 opens a. ", "with (4931) - ", "((((", "((4931", "lock: 4931\n",
    "gsk_aaaaaaaaaaaaaaaaaaa1/", "&code=", "'auth'", "_auth =", "sudo | echo a ",
)  # fmt: skip


LETTERS = {
    "no blanks": "abcdefghijklmnopqrstuvwxyz",
    "any characters": "".join(map(chr, range(32, 0x3000))),
    "digits": "0123456789",
    "grouped digits": "0123456789 -.",
}
LINES, WORDS = "10,000 lines", "words"
NAMES = (*map(repr, REPEATED), *LETTERS, LINES, WORDS)


@cache
def hostile_texts() -> dict[str, str]:
    """The texts by their `NAMES`."""
    chance = random.Random(7)
    drawn = {name: "".join(chance.choices(letters, k=LENGTH)) for name, letters in LETTERS.items()}
    words = ("password", "is", "my", "to", "set", "1", "a2", "pin", "key", "as", "the")
    return {
        **{repr(part): (part * LENGTH)[:LENGTH] for part in REPEATED},
        **drawn,
        LINES: "\n".join(f"line {number}" for number in range(10_000)),
        WORDS: " ".join(chance.choices(words, k=LENGTH // 3))[:LENGTH],
    }
