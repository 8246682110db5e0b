"""`FileLocks`: named locks in a file, shared by the processes of one machine."""

from __future__ import annotations

import os
import sys
from hashlib import sha256

from arbiter._threads.forks import new_lock
from arbiter.memory.stores._locks import SharedLocks

# The operating system ends the locks of a process with the process, also after SIGKILL.
if sys.platform == "win32":
    import msvcrt

    def _locked(file: int, place: int) -> bool:
        os.lseek(file, place % 2**31, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int, place: int) -> None:
        os.lseek(file, place % 2**31, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _locked(file: int, place: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(file: int, place: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


class FileLocks(SharedLocks):
    """A lock provider with one byte of a file for each name. The file stays empty and is never deleted.

    The locks belong to the process, and closing any of its handles of the file ends all of them. So a process
    has one `FileLocks` for each file: see `file_locks`.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.users = 0
        self._file: int | None = None
        self._guard = new_lock()

    async def _try(self, name: str) -> bool:
        with self._guard:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            return _locked(self._file, _place(name))

    async def _release(self, name: str) -> bool:
        with self._guard:
            if self._file is None:  # the store was closed, and the lock with it
                return False
            _unlock(self._file, _place(name))
            return True

    def close(self) -> None:
        """Close the file if no other user in this process is left. A later lock opens it again."""
        with _GUARD:
            self.users -= 1
            if self.users:
                return
            _OPEN.pop(self.path, None)
        with self._guard:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)


_OPEN: dict[str, FileLocks] = {}
_GUARD = new_lock()


def file_locks(path: str) -> FileLocks:
    """The locks of this process for the SQLite file `path`, in a file beside it. Each user must close them."""
    beside = f"{os.path.realpath(path)}-lock"
    with _GUARD:
        found = _OPEN.setdefault(beside, FileLocks(beside))
        found.users += 1
        return found


def _place(name: str) -> int:
    return int.from_bytes(sha256(name.encode("utf-8", "surrogatepass")).digest()[:7], "big")
