"""A router that goes elsewhere when a node failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from arbiter.errors import ParameterError
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnCap, PolicyRouter
from arbiter.routers._cap import set_cap


class ErrorRouter(PolicyRouter):
    """Goes to `target` when a node failed for good: after LangGraph's own retries. The exception then ends there.

    `errors` names the exceptions that count, as "ConnectionError" or "requests.exceptions.Timeout"; those that derive
    from a named one count too. None: every exception.

    At the cap, `on_cap="continue"` lets the exception pass through, `"end"` ends the run without it, and
    `"best_attempt"` takes the normal edges with the best earlier attempt of the node in this run, by `best_by`; the
    exception passes through if there is none.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        target: str,
        *,
        errors: Sequence[str] | None = None,
        on_cap: OnCap = "continue",
        best_by: str | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        max_redirects: int = 3,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, max_redirects, on_error=True)
        set_cap(self, on_cap, best_by)
        self.errors = None if errors is None else _names(f"router {name!r}", errors)
        self.target = target
        self.targets = (target,)

    def route_after(self, history: History, current_output: Any) -> str | None:
        if self.errors is None:
            return self.target
        kinds = history.entries[-1][-1].error_types
        counts = any(kind in self.errors or kind.rpartition(".")[2] in self.errors for kind in kinds)
        return self.target if counts else None


def _names(owner: str, errors: Sequence[str]) -> frozenset[str]:
    given: Any = errors
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ParameterError(
            owner, "errors", f"expected a list of names, got {given!r}. Write ['ConnectionError']."
        )
    names: list[Any] = list(given)  # pyright: ignore[reportUnknownArgumentType]
    if not names:
        raise ParameterError(
            owner, "errors", "expected one or more names, got none. Leave it out for every exception."
        )
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise ParameterError(
                owner,
                f"errors[{index}]",
                f"expected the name of an exception class, got {name!r}. Write 'ConnectionError'.",
            )
    return frozenset(names)
