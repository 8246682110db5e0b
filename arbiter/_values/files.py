"""Files that are written whole or not at all, and the error of a file that cannot be written."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from arbiter.errors import ConfigurationError


def write_whole(path: Path, text: str | Iterable[str], *, is_private: bool = False) -> int:
    """Write beside `path` and rename, so that a killed process leaves the old file. Returns the number of parts of
    `text`. If `path` is a link, the file behind it is replaced. Only the user of this process may read a file that
    `is_private`. Half of a surrogate pair becomes `\\ud800`, which is also how JSON has it. Raises `OSError`, which
    names `path`."""
    given, path = path, Path(os.path.realpath(path))
    count = 0
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(given)
        raise
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            for part in [text] if isinstance(text, str) else text:
                file.write(part)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if not is_private:
            os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return count


def ensure_ending(file: Path, endings: Iterable[str]) -> None:
    """Raise `ConfigurationError` for a file whose ending names no form in which it can be written."""
    if file.suffix not in endings:
        raise ConfigurationError(
            f"{str(file)!r} has the ending {file.suffix!r}; expected one of {', '.join(endings)}."
        )


def ensure_writable(path: Path) -> None:
    """Raise the `OSError` with which `write_whole` would fail for a folder, a permission or a long name."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.").close()


@contextmanager
def writing(path: str | os.PathLike[str]) -> Generator[None]:
    """Inside, an `OSError` becomes a `ConfigurationError` that names the file `path`, and the reason."""
    try:
        yield
    except OSError as error:
        problem = f"{os.fspath(path)!r} cannot be written: {error.strerror or error}."
        raise ConfigurationError(problem) from error
