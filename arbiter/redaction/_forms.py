"""Secrets by their form: private keys, tokens of providers, JWTs, headers, URLs and commands with passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PRIVATE = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|.*)",
    re.DOTALL | re.IGNORECASE,
)
_TOKENS = re.compile(
    r"""\b(?:sk|pk(?=.{6}[a-z_-]{0,40}[0-9])|rk|whsec)[-_](?:live|test|proj|ant|or|svcacct|admin)[-_][\w-]{3,}
    | \bsk-[\w-]{8,}
    | \b(?:gh[oprsu]_|github_pat_|glpat-|pypi-|dop_v1_|shpat_|xox[abeoprs]-|ya29\.|AIza|EAAC
      # but for the names of functions and settings
      | (?-i:hf_|npm_|SG\.)(?![a-z]{1,40}(?:[_.]{1,2}[a-z]{1,40}){1,9}(?![\w.-])) )[\w.-]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)
# These begin other words as well: a long rest with a digit must follow, and of tokens without dashes and underscores
# twenty characters in a row, for names (xai-grok-4-fast, fw_cfg_read_v2) have none.
_LONG = re.compile(
    r"""(?: (?i: (?: pplx- | xai- | pmak- | nrak- | pul- | fc- | age-secret-key- | gsk_ | r8_ | ntn_ | gls?[ac]_ | sbp_
          | e2b_ | lin_api_ | fm2_ | fw_ | shp(?:ss|ca|pa)_ | do[or]_v1_ | sntry[su]_ | nfp_ | bkua_ | ccipat_
          | rubygems_ )(?=[a-z0-9]{20})
        | gl(?:d|r|cb|pt|f|soa|im)t- | glagent- | gloas- | xapp- | xoxd- | gocspx- | tskey- | nvapi- | tvly-
        | sq0(?:cs|at)p- | hrku- | lsv2_ | pcsk_ | figd_ | sb_secret_ | dckr_pat_ | pscale_ | vercel_blob_rw_
        | whsec_ | hv[sb]\.(?=[\w-]{16}) | dp\.[ps]t\. )
        (?=[\w.-]{0,60}?[0-9])[\w.-]{16,}
      | (?<![+/]) (?: AT[AC]TT3 | ATBB | ABSK | LTAI | EAAAE
        | LS0tLS1CRUdJTiB(?!DRVJU|QVUJM)  # a PEM file in base64, but for certificates and public keys
        ) (?=[\w-]{0,60}?[0-9])[\w-]{16,}
      | (?<![+/]) (?: dapi[0-9a-f]{32}(?:-[0-9])? | key-[0-9a-z]{32} | [0-9a-f]{32}-us[0-9]{1,2}
        | secret_[A-Za-z0-9]{43} | cio[A-Za-z0-9]{32} | pat[A-Za-z0-9]{14}\.[0-9a-f]{64}
        | [A-Za-z0-9]{14}\.atlasv1\.[\w-]{60,}
        | [MNO][DTjz][\w-]{21,27}\.[\w-]{6}\.[\w-]{27,40} )(?![\w-])
      | (?<=1//)0[\w-]{20,}
      | (?<=[0-9]{8}:)AA[\w-]{32,} ) [\w+/-]*+ =*""",
    re.VERBOSE,
)
"""Tokens of providers, each with twenty characters of words in a row from its begin."""
_IN_WORDS = (
    bytes(b"a"[0] if chr(c).isalnum() or chr(c) in "_.-" else b" "[0] for c in range(128)) + b" " * 128
)
_RUN = b"a" * 20
_PUTTY = re.compile(r"private-lines: [0-9]{1,4}\s{1,2}(?P<told>[A-Za-z0-9+/=\s]{16,}+)", re.IGNORECASE)
_AWS_SECRET = (
    r"(?=[a-zA-Z/+]{0,39}[0-9])(?=[A-Z0-9/+]{0,39}[a-z])(?=[a-z0-9/+]{0,39}[A-Z])[A-Za-z0-9/+]{40}(?![\w/+=])"
)
_AWS = re.compile(
    rf"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{{12,}}(?:[\s\"':=,;/|`]{{1,8}}{_AWS_SECRET})?"
    rf"|(?i:secret[ _-]?(?:access[ _-]?)?key)(?:\sis)?[\s\"':=,;/|`]{{1,8}}(?P<told>{_AWS_SECRET})"
)
# A part that is no JWT is read once: the next attempt begins after the run of its characters.
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?")
_HEADER = re.compile(
    r"\b(?:(?:bearer|basic)\s{1,8}(?=\S{0,4000}\d)[\w.~+/-]{12,}+=*+"
    r"|authorization\W{1,4}(?:bearer|basic|token|apikey)\s{1,8}(?=\S{0,4000}(?:\d|(?-i:[a-z])(?-i:[A-Z])|[\w-]\.[\w-]))"
    r"(?P<told>[\w.~+/-]{8,}+=*+))",
    re.IGNORECASE,
)
_URL = re.compile(
    r"\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:"
    r"(?!(?:<[^<>\s@]{1,40}>|\$?\{[^{}\s@]{1,40}\}|\$[a-z_]{1,40})@)[^\s/@]{1,200}@(?:[^\s/:@?#,;\"'<>()]{1,200}@)?",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"""\bcookie["']?\s{0,2}:\s{0,4}(?=[^\n"'\\]{0,150}?=(?=[^\s;="'\\]{10})[^\s;="'\\0-9]{0,80}[0-9])"""
    r"""(?P<told>[^\n"'\\]{10,4000})""",
    re.IGNORECASE,
)
_HOOK = re.compile(
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/(?:v[0-9]{1,2}/)?webhooks/[0-9]{1,25}/"
    r"|webhook\.office\.com/[a-z0-9]{1,20}/|hooks\.zapier\.com/hooks/catch/)(?P<told>[\w/@-]{16,})",
    re.IGNORECASE,
)
# Signatures and codes that let in whoever has the URL; of keys only those that no file or page is named by.
_SIGNATURE = re.compile(
    r"(?:[?&;]|,\s?)(?:sig|(?:x-(?:amz|goog)-)?signature)=(?=[^0-9\s]{0,60}[0-9])(?P<told>[\w.~+/%-]{20,}+=*)(?!\()",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"[?&](?:code=(?P<code>(?=[A-Z0-9./_~%-]{0,60}[a-z])(?=[a-z0-9./_~%-]{0,60}[A-Z])(?=[^0-9\s]{0,60}[0-9])[\w./~%-]{20,})"
    r"|(?:key|appid|subscription-key)=(?=[^0-9\s]{0,60}[0-9])"
    r"(?P<told>(?:(?=[0-9a-f]{32})|(?=[A-Z0-9_-]{0,60}[a-z])(?=[a-z0-9_-]{0,60}[A-Z]))[\w-]{24,}+(?![\w./%])))"
)
_NETRC = re.compile(
    r"""\bmachine\s{1,8}(?=\S{0,60}?\.|\S{1,100}[ \t]{0,4}\n)\S{1,100}\s{1,8}login\s{1,8}\S{1,100}\s{1,8}"""
    r"""(?:account\s{1,8}\S{1,100}\s{1,8})?"""
    r"""password\s{1,8}(?P<told>[^\s"'{$<[][^\s"']{2,200})""",
    re.IGNORECASE,
)
_BASIC = (
    r"(?=[a-zA-Z+/]{0,60}[0-9])(?=[A-Z0-9+/]{0,60}[a-z])(?=[a-z0-9+/]{0,60}[A-Z])[A-Za-z0-9+/]{12,}={0,2}"
)
BASIC = re.compile(rf"{_BASIC}\Z")
"""What Docker's settings have as `auth`: name and password in base64."""
_AUTH = re.compile(rf"""auth(?<=["']auth)\\{{0,3}}["']\s?:\s?\\{{0,3}}["'](?P<told>{_BASIC})\\{{0,3}}["']""")
_NPMRC = re.compile(
    r"""_(?:(?<=/:_)|(?<![\w.]_))(?:auth|password)[ ]?=[ ]?["']?"""
    r"""(?=[A-Za-z+/]{0,60}[0-9=])(?P<told>[A-Za-z0-9+/]{8,}=*)(?![\w.(\[/+=-])"""
)
_WIFI = re.compile(r"WIFI:(?=[A-Z]:)[^\n\"]{0,120}?\bP:(?P<told>[^;\n\"]{3,100});")
_ORACLE = re.compile(
    r"""(?:\bthin:|\bsqlplus(?:\s{1,4}-[a-zA-Z]{1,4}){0,3}\s{1,4})["']?[\w$#]{1,64}/["']?(?P<told>[^\s@/"']{2,64})@"""
)
# Of letters alone: of an environment's variable, or between the parts of a connection string.
_LETTERS = re.compile(
    r"""(?:(?:PASSWORD|PASSWD|_PASS|_PWD)=|[;&?]\ ?(?i:password|pwd)=)["']?"""
    r"""(?!(?i:none|null|true|false|your|password)\b)(?P<told>[A-Za-z][A-Za-z!@#^*-]{5,63})(?![\w.(\[{/$%:\\])"""
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
    rf"""(?!(?-i:pwd:[ \t]{{0,3}}[a-z0-9._-]{{1,60}}/))(?:{"|".join(_NAMED)}|token|_pass){_NO_PAGE}
    (?: =
        | [ ]=[ ]{{1,3}}(?:["']|(?=[^\s"'&;,<>(){{}}\[\]|\\]{{16}}))
        | (?<!secret)(?<!token)(?<!_pass)(?<!/passwd):[ \t]{{0,3}}["']?(?!(?-i:[a-z]\w{{0,30}}\.\w{{0,60}}Key\b))
        | (?: (?:(?<=secret)(?<!:secret)|(?<=token)):[ \t]{{0,3}} | (?<=--secret)[ \t]{{1,3}}(?!id=) )["']?
          (?=\S{{12}})(?=\S{{0,40}}?(?-i:[A-Z]))(?=\S{{0,40}}?(?-i:[a-z]))
        | (?:{_OPTIONS})[ \t]{{1,3}}["']? )
    (?=[^\s"'&;,<>(){{}}\[\]|\\0-9]{{0,100}}+[0-9])(?=[^\s"'&;,<>(){{}}\[\]|\\a-z]{{0,100}}+[a-z])(?![\w.]{{0,100}}\()
    (?!(?-i:~|/[A-Za-z][a-z]{{0,20}})/ | (?:(?:min|max)[a-z]{{0,4}}[_-]?)?[0-9]{{1,3}}(?:[+-][0-9]{{0,3}})?
      (?:char|character|digit|letter)s?(?!\w))
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
        | redis-cli{_FEW}-a\s{{1,4}}
        | ldap(?:search|add|modify|delete|passwd|whoami){_FEW}-w\s{{1,4}}
        | (?:unzip|zip|sqlcmd|bcp){_FEW}-P\s{{1,4}}
        | 7z[ar]?\s[axe]{_FEW}-p(?=\S)
        | wget{_FEW}--(?:http-|ftp-|proxy-)?password[\s=]{{1,4}}
        | openssl{_ARGUMENTS}-pass(?:in|out)?\s{{1,4}}pass:
        | smbclient{_FEW}(?:-U\s{{0,4}}|--user[\s=]{{1,4}})[^\s%"']{{1,64}}%
        | lftp{_FEW}-u\s{{1,4}}[^\s,"']{{1,64}},) (?P<a>\\{{0,7}}["'])?
    | curl(?=[^:=]{{0,400}}[:=]){_ARGUMENTS}
        (?:-u\s{{0,4}}|--(?:proxy-)?user[\s=]{{1,4}}|(?P<cookie>-b\s{{0,4}}|--cookie[\s=]{{1,4}}))
        (?P<b>\\{{0,7}}["'])? (?(cookie)(?=[^\s=;]{{1,80}}=)|[^\s:"'`$<>]{{1,64}}:))
    (?![$<{{(\[%*.])
    (?P<told>(?(a)[^"'\n\\]{{3,200}} | (?(b)[^"'\n\\]{{3,200}} | [^\s"'`&|;<>(){{}}\[\]\\]{{3,200}})))
    """,
    re.VERBOSE,
)

_HTPASSWD = re.compile(
    r"""\bhtpasswd(?=\s[^\n]{0,60}?-[a-zA-Z]{0,5}b)\s{1,4}(?:-[a-zA-Z0-9]{1,8}\s{1,4}(?:[0-9]{1,2}\s{1,4})?){1,4}"""
    r"""(?:["']?[^\s"'-][^\s"']{0,100}["']?\s{1,4}){1,2}["']?(?P<told>(?=[^\s0-9!#$%^*"']{0,60}[0-9!#%^*])[^\s"'\\]{3,200})"""
)
_PIPED = re.compile(
    r"""\becho\s{1,4}(?:-[en]{1,2}\s{1,4})?["']?(?:[^\s:"'|]{1,64}:)?(?P<told>[^\s"'|$\\]{3,200})["']?"""
    r"""\s{0,4}\|\s{0,4}(?:sudo\s{1,4}-S\b|(?:sudo\s{1,4})?chpasswd\b)"""
)
_PROGRAMS = (
    "mysql", "mariadb", "sshpass", "curl", " login", "mongo", "redis-cli", "ldap", "zip", "sqlcmd", "bcp", "7z", "wget",
    "openssl", "smbclient", "lftp",
)  # fmt: skip
_OPTION = (" -", "\t-", "\n-", "\r-")
"""A dash is common in prose, one that begins a word is not."""
_STEMS = ("password", "passwd", "passphrase", "pwd", "secret", "token", "key")
BY_SIGN: tuple[tuple[str, tuple[str, ...], tuple[str, ...], re.Pattern[str]], ...] = (
    ("-", (), ("-----begin",), _PRIVATE),
    (":", (), ("://",), _URL),
    ("-", _OPTION, _PROGRAMS, _COMMANDS),
    ("-", _OPTION, ("htpasswd",), _HTPASSWD),
    ("|", (), ("chpasswd", "sudo"), _PIPED),
    ("=", (), ("_pass=", *(f"{stem}{by}=" for stem in _STEMS for by in ("", " "))), _ASSIGNED),
    (":", (), tuple(f"{name}:" for name in (*_NAMED, "token")), _ASSIGNED),
    ("-", ("--",), tuple(f"--{name}" for name in (*_NAMED, "token")), _ASSIGNED),
    ("", (), ("bearer", "basic", "authorization"), _HEADER),
    (".", (), ("eyj",), _JWT),
    ("", (), ("akia", "asia", "agpa", "aroa", "aida"), _AWS),
    ("", ("secret",), tuple(f"{of}{by}key" for of in ("secret", "access") for by in ("", " ", "_", "-")), _AWS),
    (":", (), ("cookie",), _COOKIE),
    ("/", (), ("hook",), _HOOK),
    ("=", (), ("sig=", "signature="), _SIGNATURE),
    *((char, (), ("code=", "key=", "appid="), _QUERY) for char in "?&"),
    ("=", (), ("password=", "passwd=", "_pass=", "pwd="), _LETTERS),
    ("", ("machine",), ("login",), _NETRC),
    ("=", (), ("_auth=", "_auth =", "_password=", "_password ="), _NPMRC),
    (":", (), ("auth\"", "auth'", "auth\\"), _AUTH),
    (":", ("wifi:",), (";",), _WIFI),
    ("@", (), ("thin:", "sqlplus"), _ORACLE),
    ("-", ("private-lines: ",), (" ",), _PUTTY),
    ("-", (), ("sk-", "pk-", "rk-", "whsec-", "glpat-", "pypi-", "xox"), _TOKENS),
    ("_", (), ("sk_", "pk_", "rk_", "whsec_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "hf_", "npm_",
           "dop_v1_", "shpat_"), _TOKENS),
    (".", (), ("ya29.", "sg."), _TOKENS),
    ("", (), ("aiza", "eaac"), _TOKENS),
)  # fmt: skip
"""Patterns, with the mark, one of the words (if there are any) and one of the signs without which they match nothing,
in lower case."""
_BY_MARK = tuple(
    (mark, tuple(entry[1:] for entry in BY_SIGN if entry[0] == mark))
    for mark in dict.fromkeys(entry[0] for entry in BY_SIGN)
)
"""The same by the mark: a text is searched for one character ten times as fast as for a word."""


def keys_in(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """The ranges of secrets in `text`; `folded` is the same text in lower case."""
    searched: set[int] = set()
    has = folded.__contains__
    for mark, of in _BY_MARK:
        if mark not in folded:
            continue
        for words, signs, pattern in of:
            if id(pattern) not in searched and (not words or any(map(has, words))) and any(map(has, signs)):
                searched.add(id(pattern))
                for match in _assigned_in(text, folded) if pattern is _ASSIGNED else pattern.finditer(text):
                    yield match.span(match.lastgroup or 0)


def tokens_in(text: str) -> Iterator[tuple[int, int]]:
    """The ranges of the tokens of many providers, which are looked for where words are long."""
    words = text.encode("ascii", "replace").translate(_IN_WORDS)
    begin = words.find(_RUN)
    while begin >= 0:
        if (match := _LONG.match(text, begin)) is not None:
            yield match.span()
            begin = match.end()
        end = words.find(b" ", begin)
        begin = -1 if end < 0 else words.find(_RUN, end)


def _assigned_in(text: str, folded: str) -> Iterator[re.Match[str]]:
    end = 0
    for begin in _BEGINS.finditer(folded):
        if begin.start() >= end and (found := _ASSIGNED.match(text, begin.start())) is not None:
            yield found
            end = found.end()
