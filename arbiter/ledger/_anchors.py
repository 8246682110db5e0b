"""Anchors: one line about all threads that have grown since the last one, to be kept outside the database.

A chain alone does not show that its newest entries were cut, that a thread is gone, or that everything was
hashed anew. An anchor names the heads of the threads by a Merkle root (RFC 6962), follows the anchor before
it, and is signed if there is a key.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, cast

import orjson

from arbiter._values.files import writing
from arbiter.errors import ConfigurationError
from arbiter.ledger._chain import canonical

_log = logging.getLogger("arbiter")
VERSION = 1
SHORTEST_KEY = 32
_TAIL = 8192
"""Bytes at the end of a file in which its newest anchor is looked for."""
AnchorSink = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry of a thread at the time of an anchor."""

    ref: str
    seq: int
    hash: bytes

    def leaf(self) -> bytes:
        return canonical({"ref": self.ref, "seq": self.seq, "hash": self.hash.hex()})


def merkle_root(heads: Sequence[Head]) -> str:
    """The root over the heads in the order of their refs, as RFC 6962 computes it; hex."""
    leaves = [sha256(b"\x00" + head.leaf()).digest() for head in sorted(heads, key=lambda head: head.ref)]
    return _root(leaves).hex()


def _root(nodes: list[bytes]) -> bytes:
    if not nodes:
        return sha256(b"").digest()
    if len(nodes) == 1:
        return nodes[0]
    half = 1 << (len(nodes) - 1).bit_length() - 1
    return sha256(b"\x01" + _root(nodes[:half]) + _root(nodes[half:])).digest()


def line_of(
    ledger: str,
    n: int,
    upto: int,
    at: int,
    threads: int,
    root: str,
    previous: str,
    key_id: str | None,
    signature: str | None,
) -> dict[str, Any]:
    """The line of a stored anchor."""
    line: dict[str, Any] = {
        "v": VERSION,
        "ledger": ledger,
        "n": n,
        "at": at,
        "upto": upto,
        "threads": threads,
        "root": root,
        "previous": previous,
    }
    if key_id is None and signature is None:
        return line
    return {**line, "key": key_id, "signature": signature}


def anchor_hash(anchor: Mapping[str, Any]) -> str:
    """The hash by which the next anchor names this one: of its whole line, with its signature."""
    return sha256(canonical(dict(anchor))).hexdigest()


def signed_part(anchor: Mapping[str, Any]) -> bytes:
    """The bytes that a signature is made of."""
    return canonical({name: part for name, part in anchor.items() if name not in ("key", "signature")})


class Key:
    """Signs anchors: with HMAC-SHA256 of at least 32 bytes, or with an Ed25519 private key in PEM.

    `id` is the method and the first 8 hex digits of the SHA-256 of the public key, or of HMAC(key, "id").
    """

    def __init__(self, secret: bytes) -> None:
        self._private: Any = None
        self._public: Any = None
        self._secret = secret
        if secret.lstrip().startswith(b"-----BEGIN"):
            self._read_pem(secret)
        elif len(secret) < SHORTEST_KEY:
            raise ConfigurationError(
                f"the ledger's key has {len(secret)} bytes; expected at least {SHORTEST_KEY}, or an Ed25519 key in PEM."
            )
        else:
            self.id = "hmac:" + sha256(hmac.digest(secret, b"id", "sha256")).hexdigest()[:8]

    @classmethod
    def of(cls, given: bytes | str) -> Key:
        """A key; texts are PEM or taken as UTF-8. Raises `ConfigurationError` for anything else."""
        if not isinstance(cast(Any, given), bytes | str):
            raise ConfigurationError(f"key: expected bytes or a text, got {type(given).__name__}.")
        return cls(given.encode() if isinstance(given, str) else given)

    def _read_pem(self, pem: bytes) -> None:
        try:
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ed25519
        except ImportError as error:
            raise ConfigurationError(
                "a key in PEM needs cryptography: pip install 'arbiteros[sign]'"
            ) from error
        try:
            if b"PUBLIC" in pem:
                self._public = serialization.load_pem_public_key(pem)
            else:
                self._private = serialization.load_pem_private_key(pem, password=None)
                self._public = self._private.public_key()
        except ValueError as error:
            raise ConfigurationError(
                f"the ledger's key is not readable PEM: {error}. Expected an Ed25519 key without a password."
            ) from error
        if not isinstance(self._public, ed25519.Ed25519PublicKey):
            raise ConfigurationError(
                f"the ledger's key is a {type(self._public).__name__}; expected an Ed25519 key."
            )
        raw = self._public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.id = "ed25519:" + sha256(raw).hexdigest()[:8]

    @property
    def can_sign(self) -> bool:
        """False for a public key, which only verifies."""
        return self._public is None or self._private is not None

    def sign(self, data: bytes) -> str:
        if self._public is None:
            return hmac.digest(self._secret, data, "sha256").hex()
        return str(self._private.sign(data).hex())

    def verifies(self, data: bytes, signature: str) -> bool:
        if self._public is None:
            return hmac.compare_digest(self.sign(data).encode(), signature.encode())
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(bytes.fromhex(signature), data)
        except (InvalidSignature, ValueError):
            return False
        return True


def key_from(given: bytes | str | None) -> Key | None:
    """The key that signs. Raises `ConfigurationError` for a public key."""
    if given is None:
        return None
    key = Key.of(given)
    if not key.can_sign:
        raise ConfigurationError(
            f"the ledger's key {key.id} is a public key, which cannot sign anchors; give the Ed25519 private key. "
            "A public key verifies: ledger.verify(keys=[...])."
        )
    return key


def sink_for(where: str | os.PathLike[str] | AnchorSink | None) -> AnchorSink | None:
    """A function that takes anchors: the callable itself, or one that appends a synced line to a file."""
    if callable(where):
        kind: Any = type(where)
        if iscoroutinefunction(where) or iscoroutinefunction(kind.__call__):
            raise ConfigurationError(f"anchors: expected a function that is not async, got {where!r:.80}.")
        return where
    if where is None:
        return None
    if not isinstance(cast(object, where), str | os.PathLike) or not os.fspath(where):
        raise ConfigurationError(f"anchors: expected a file or a callable, got {where!r:.80}.")
    path = Path(where)
    problem = None
    if path.is_dir():
        problem = "it is a directory; name a file in it"
    elif not path.parent.is_dir():
        problem = f"there is no folder {str(path.parent)!r}; make it first"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "no permission to write it"
    if problem is not None:
        raise ConfigurationError(f"anchors: {os.fspath(path)!r} cannot be written: {problem}.")

    return AnchorFile(path)


class AnchorFile:
    """Appends anchors to a file, a synced line each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, anchor: Mapping[str, Any]) -> None:
        is_torn = self._end()[-1:] not in (b"", b"\n")
        with writing(self._path), self._path.open("ab") as file:
            file.write(b"\n" * is_torn + canonical(dict(anchor)) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def newest(self, ledger: str) -> int:
        """The number of the newest anchor of that ledger at the end of the file; 0 if there is none."""
        anchors = [_read(line) for line in self._end().decode(errors="replace").splitlines()]
        return max((each["n"] for each in anchors if is_anchor(each) and each["ledger"] == ledger), default=0)

    def _end(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
                return file.read()
        except OSError:
            return b""  # there is no file yet; if there is one, to append to it fails as well


def _read(line: str) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:
        return None


def read_anchors(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The anchors in a file. Logs lines that were not written to their end, because the disk was full or a process
    was killed. Raises `ConfigurationError` with the number of any other line that is no anchor.
    """
    found: list[dict[str, Any]] = []
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                if line.rstrip()[:2] in ("{", '{"') and not line.rstrip().endswith("}"):
                    _log.warning(
                        "%s:%d: a line that was not written to its end was left out.", os.fspath(path), number
                    )
                    continue
                anchor = _read(line)
                if not is_anchor(anchor):
                    raise ConfigurationError(
                        f"{os.fspath(path)}:{number}: this line is not an anchor of a ledger."
                    )
                found.append(anchor)
    except OSError as error:
        raise ConfigurationError(f"anchors: {os.fspath(path)!r} cannot be read: {error.strerror}.") from None
    return found


def is_anchor(line: Any) -> bool:
    """True if the line has the parts of an anchor."""
    return isinstance(line, Mapping) and all(type(line.get(name)) is kind for name, kind in _FORM.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


_FORM = {"v": int, "ledger": str, "n": int, "upto": int, "root": str}
