"""Where corrections and interventions are kept: what a gate and an intervention ask of a repository.

    gated action, evaluated intervention ─▶ on a thread, for at most `WAIT` seconds ─▶ repository
                                                  └─ fails ─▶ a problem in the record, a warning

A repository that fails changes nothing of what a graph commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from arbiter._threads.deadlines import awaited, start, within
from arbiter.errors import ConfigurationError, describe
from arbiter.personas._characters import Persona
from arbiter.personas._gated import GatedAction
from arbiter.personas._intervened import Intervened

WAIT = 5.0
"""Seconds that a node waits for its record to be stored."""


@runtime_checkable
class CorrectionRepository(Protocol):
    """Keeps what went through a gate. Its method may raise."""

    def log_correction(self, action: GatedAction, persona: Persona | None = None) -> Any:
        """Store an action. `persona` is its agent, if that is known."""


@runtime_checkable
class InterventionRepository(Protocol):
    """Keeps the evaluations of interventions. Its method may raise."""

    def log_intervention(self, evaluated: Intervened, personas: Sequence[Persona] = ()) -> Any:
        """Store an evaluation. `personas` are those of the conversation."""


def checked_repository(repository: Any, kind: type, owner: str) -> Any:
    """The repository, or None. Raises `ConfigurationError` if it lacks the method that will be called."""
    if repository is None or (isinstance(repository, kind) and not isinstance(repository, type)):
        return repository
    methods = " and ".join(f"{name}()" for name in dir(kind) if name.startswith("log_"))
    raise ConfigurationError(
        f"{owner}: repository: expected an object with {methods}, such as SqlRepository(), "
        f"got {repository!r:.80}."
    )


@dataclass(frozen=True, slots=True)
class Storing:
    """Store one record. The result of the operation is the reason why that failed, or "". `warn` gets it too."""

    call: Callable[[], Any]
    warn: Callable[[str], Any]

    def do(self) -> str:
        """Store it, on a thread."""
        try:
            within(WAIT, start(self.call, name="arbiter-repository"))
        except Exception as error:
            return self._failed(error)
        return ""

    async def ado(self) -> str:
        """Async version of `do`."""
        try:
            await awaited(WAIT, asyncio.wrap_future(start(self.call, name="arbiter-repository")))
        except Exception as error:
            return self._failed(error)
        return ""

    def _failed(self, error: Exception) -> str:
        problem = f"the repository did not store this: {describe(error)}"
        self.warn(problem)
        return problem


def problems(*texts: str) -> str:
    return "; ".join(filter(None, texts))
