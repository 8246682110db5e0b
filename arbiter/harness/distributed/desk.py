"""The desk: an actor through which workers send what they have, ask for known answers, and share the places for calls
of models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from arbiter.harness.limits import Places

Line = tuple[str, tuple[Any, ...]]
"""The kind of a fact, and its parts."""
ModelKey = tuple[str, str]


class Desk:
    """Runs as an actor, one for each run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: list[Line] = []
        self._places: dict[ModelKey, Places] = {}
        self._held: dict[str, list[tuple[ModelKey, int]]] = {}
        self._gone: set[str] = set()
        self._questions: dict[int, asyncio.Future[Mapping[str, Any] | None]] = {}
        self._asked = 0

    async def put(self, lines: list[Line]) -> None:
        """Take the lines of a worker."""
        self._lines += lines

    async def take(self) -> list[Line]:
        """The lines since the last call, in the order of each worker."""
        lines, self._lines = self._lines, []
        return lines

    async def known(self, key: str) -> Mapping[str, Any] | None:
        """The answer that the driver has in its cache; None if it has none."""
        self._asked += 1
        answer: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._questions[self._asked] = answer
        self._lines.append(("question", (self._asked, key)))
        return await answer

    async def tell(self, number: int, answer: Mapping[str, Any] | None) -> None:
        """Answer a question of a worker."""
        self._questions.pop(number).set_result(answer)

    async def enter(self, task: str, key: ModelKey) -> int:
        """Wait for a place for a call of that model."""
        places = self._places.setdefault(key, Places(self._most))
        began = await asyncio.wrap_future(places.enter())
        if task in self._gone:
            places.leave(began, failed=True)
        else:
            self._held.setdefault(task, []).append((key, began))
        return began

    async def leave(self, task: str, key: ModelKey, began: int, failed: bool, too_many: bool) -> None:
        held = self._held.get(task, [])
        if (key, began) in held:
            held.remove((key, began))
            self._places[key].leave(began, failed=failed, too_many=too_many)

    async def release(self, task: str) -> None:
        """Give back the places of a task whose worker has died."""
        self._gone.add(task)
        for key, began in self._held.pop(task, []):
            self._places[key].leave(began, failed=True)


class DeskAnswers:
    """The cache of the driver, for a worker. The driver alone opens its file."""

    def __init__(self) -> None:
        self.desk: Any = None
        """That of the task that runs now: a run that is resumed has another one."""

    def get(self, key: str) -> Mapping[str, Any] | None:
        ray: Any = import_module("ray")
        found: Mapping[str, Any] | None = ray.get(self.desk.known.remote(key))
        return found

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        ray: Any = import_module("ray")
        ray.get(self.desk.put.remote([("known", (key, value))]))

    def close(self) -> None:
        pass


class DeskPlaces(Places):
    """The places for calls of a model, which all workers share."""

    def __init__(self, desk: Any, task: str, key: ModelKey, most: int) -> None:
        super().__init__(most)
        self._desk = desk
        self._task = task
        self._key = key

    def enter(self) -> Future[int]:
        found: Future[int] = self._desk.enter.remote(self._task, self._key).future()
        return found

    async def aenter(self) -> int:
        future = self.enter()
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except BaseException:
            # The desk may give the place later.
            future.add_done_callback(lambda done: self.leave(done.result(), failed=True))
            raise

    def leave(self, began: int, *, failed: bool = False, too_many: bool = False) -> None:
        self._desk.leave.remote(self._task, self._key, began, failed, too_many)
