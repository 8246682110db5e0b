"""Locks of files and folders, and the reasons why one cannot be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def lock(file: int | IO[Any]) -> None:
    """Keep other processes that ask for the lock of an open file out until it is closed. On Windows, and on a file
    system without locks, two processes are not kept apart. Raises `BlockingIOError` if another one has it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        pass


def locked(folder: Path) -> Callable[[], None]:
    """Make a folder, and `lock` it until the result is called. Raises `BlockingIOError` if another process has it, and
    `OSError` if no file can be made in it."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
    if os.name == "nt":  # Windows cannot open a folder
        return lambda: None
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock(handle)
    except BlockingIOError:
        os.close(handle)
        raise
    return lambda: os.close(handle)


def why_unwritable(place: Path, error: OSError) -> str:
    """The reason why a folder cannot be made or written."""
    for part in (place, *place.parents):
        # These functions of `os.path` are False for a name that is too long, for which `Path` raises.
        if os.path.islink(part) and not os.path.exists(part):
            return f"{str(part)!r} is a link to {os.readlink(part)!r}, which does not exist"
        if os.path.exists(part) and not os.path.isdir(part):
            return f"{str(part)!r} is not a folder"
    return error.strerror or str(error)
