"""Secrets by their form: private keys, tokens of providers, JWTs, bearer headers, URLs with passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PRIVATE = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|.*)",
    re.DOTALL | re.IGNORECASE,
)
_TOKENS = re.compile(
    r"""\b(?:sk|pk|rk|whsec)[-_](?:live|test|proj|ant|or|svcacct|admin)[-_][\w-]{3,}
    | \bsk-[\w-]{8,}
    | \b(?:gh[oprsu]_|github_pat_|glpat-|hf_|npm_|pypi-|dop_v1_|shpat_|xox[abeoprs]-|ya29\.|SG\.|AIza|EAAC)[\w.-]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)
_AWS = re.compile(r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}")
# A part that is no JWT is read once: the next attempt begins after the run of its characters.
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?")
_HEADER = re.compile(
    r"\b(?:(?:bearer|basic)\s{1,8}(?=\S{0,4000}\d)[\w.~+/-]{12,}+=*+"
    r"|authorization\W{1,4}(?:bearer|basic|token|apikey)\s{1,8}(?=\S{0,4000}(?:\d|(?-i:[a-z])(?-i:[A-Z])|[\w-]\.[\w-]))"
    r"(?P<told>[\w.~+/-]{8,}+=*+))",
    re.IGNORECASE,
)
_URL = re.compile(
    r"\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:[^\s/@]{1,200}@(?:[^\s/:@?#,;\"'<>()]{1,200}@)?",
    re.IGNORECASE,
)
_PAGES = ("page", "pagination", "continuation", "(?<!a)sync", "cursor")
_COUNTS = r"(?:max|min|n|num|total|input|output|prompt|completion|reasoning|cache\w{0,20})"
# Numbers of tokens, and tokens that name a page of results. Each begins the name or a part of it: neither
# session_token nor admin_token is one.
NOT_SECRET = (
    rf"(?:{_COUNTS}_token|(?:[\w-]{{0,40}}[_-])?"
    rf"(?:{_COUNTS}_tokens|(?:(?:next|prev)?(?:{'|'.join(_PAGES)})|next)[_-]?tokens?))"
)
_NO_PAGE = "".join(f"(?<!{page}token)(?<!{page}[_-]token)" for page in _PAGES)
_KEYS = tuple(
    f"{of}{by}key" for of in ("api", "access", "private", "secret", "account") for by in ("", "_", "-")
)
_NAMED = ("password", "passwd", "passphrase", "pwd", "secret", *_KEYS)
_OPTIONS = "|".join(f"(?<=--{name})" for name in (*_NAMED, "token") if name != "secret")
# Of letters and digits: the names of variables and of settings, and paths (PWD=/home/bob2), are no secrets. Nor is
# a variable that another one is assigned to: between blanks, a value is a quoted or a long one.
_ASSIGNED = re.compile(
    rf"""(?:{"|".join(_NAMED)}|token|_pass){_NO_PAGE}
    (?: =
        | [ ]=[ ]{{1,3}}(?:["']|(?=[^\s"'&;,<>(){{}}\[\]|\\]{{16}}))
        | (?<!secret)(?<!token)(?<!_pass)(?<!/passwd):[ \t]{{0,3}}["']?(?!(?-i:[a-z]\w{{0,30}}\.\w{{0,60}}Key\b))
        | (?: (?:(?<=secret)(?<!:secret)|(?<=token)):[ \t]{{0,3}} | (?<=--secret)[ \t]{{1,3}}(?!id=) )["']?
          (?=\S{{12}})(?=\S{{0,40}}?(?-i:[A-Z]))(?=\S{{0,40}}?(?-i:[a-z]))
        | (?:{_OPTIONS})[ \t]{{1,3}}["']? )
    (?=[^\s"'&;,<>(){{}}\[\]|\\0-9]{{0,100}}+[0-9])(?=[^\s"'&;,<>(){{}}\[\]|\\a-z]{{0,100}}+[a-z])(?![\w.]{{0,100}}\()
    (?!(?-i:~|/[A-Za-z][a-z]{{0,20}})/)
    (?P<told>[^\s"'&;,<>(){{}}\[\]|\\$%`*.][^\s"'&;,<>(){{}}\[\]|\\`]{{5,400}})
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BEGINS = re.compile(rf"(?:{'|'.join(_NAMED)}|token|_pass)(?=[:= \t])")
"""What `_ASSIGNED` begins with, in lower case: a search for it is ten times as fast."""
# A password as the value of an option. A variable, or a place to fill in, is none.
_ARGUMENTS = r"(?=\s)(?:[^\n|;&]|\\\n|&(?=\w)){0,150}?\s"
_FEW = _ARGUMENTS.replace("150", "80")
_COMMANDS = re.compile(
    rf"""\b(?:(?:(?:mysql|mariadb)[\w-]{{0,20}}{_ARGUMENTS}-p(?!lease\b)
        | sshpass\s{{1,4}}-p\s{{0,4}}
        | (?:(?:docker|podman|nerdctl|buildah|skopeo|oras|helm\sregistry|az|oc)\slogin|mongo(?:sh|dump|restore)?)
            {_FEW}(?:(?<!mkdir[ ])-p|--password)[\s=]{{1,4}}(?![0-9.]{{0,15}}:?[0-9]{{1,5}}:[0-9])
        | redis-cli{_FEW}-a\s{{1,4}}) (?P<a>\\{{0,7}}["'])?
    | curl{_ARGUMENTS}(?:-u\s{{0,4}}|--(?:proxy-)?user[\s=]{{1,4}}) (?P<b>\\{{0,7}}["'])? [^\s:"'`$<>]{{1,64}}:)
    (?![$<{{(\[%*.])
    (?P<told>(?(a)[^"'\n\\]{{3,200}} | (?(b)[^"'\n\\]{{3,200}} | [^\s"'`&|;<>(){{}}\[\]\\]{{3,200}})))
    """,
    re.VERBOSE,
)

_STEMS = ("password", "passwd", "passphrase", "pwd", "secret", "token", "key")
BY_SIGN: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    ("-", ("-----begin",), _PRIVATE),
    (":", ("://",), _URL),
    ("-", ("mysql", "mariadb", "sshpass", "curl", " login", "mongo", "redis-cli"), _COMMANDS),
    ("=", ("_pass=", *(f"{stem}{by}=" for stem in _STEMS for by in ("", " "))), _ASSIGNED),
    (":", tuple(f"{name}:" for name in (*_NAMED, "token")), _ASSIGNED),
    ("-", tuple(f"--{name}" for name in (*_NAMED, "token")), _ASSIGNED),
    ("", ("bearer", "basic", "authorization"), _HEADER),
    (".", ("eyj",), _JWT),
    ("", ("akia", "asia", "agpa", "aroa", "aida"), _AWS),
    ("-", ("sk-", "pk-", "rk-", "whsec-", "glpat-", "pypi-", "xox"), _TOKENS),
    ("_", ("sk_", "pk_", "rk_", "whsec_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "hf_", "npm_",
           "dop_v1_", "shpat_"), _TOKENS),
    (".", ("ya29.", "sg."), _TOKENS),
    ("", ("aiza", "eaac"), _TOKENS),
)  # fmt: skip
"""Patterns, with the character and the signs in lower case without which they match nothing."""


def keys_in(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """The ranges of secrets in `text`; `folded` is the same text in lower case."""
    searched: set[int] = set()
    for char, signs, pattern in BY_SIGN:
        if id(pattern) in searched or (char and char not in folded):
            continue
        if any(map(folded.__contains__, signs)):
            searched.add(id(pattern))
            for match in _assigned_in(text, folded) if pattern is _ASSIGNED else pattern.finditer(text):
                yield match.span(match.lastgroup or 0)


def _assigned_in(text: str, folded: str) -> Iterator[re.Match[str]]:
    end = 0
    for begin in _BEGINS.finditer(folded):
        if begin.start() >= end and (found := _ASSIGNED.match(text, begin.start())) is not None:
            yield found
            end = found.end()
