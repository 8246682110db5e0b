"""A router for failed nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Unpack

from arbiter._values.exceptions import ExceptionNames, is_one_named
from arbiter._values.parameters import Param, check_parameters
from arbiter.history._items import History
from arbiter.instructions import Instruction
from arbiter.policy import PolicyRouter, RedirectOptions

# In more nodes, more exceptions would end there: wider targets are not tighter.
_Instructions = Annotated[
    Iterable[Instruction | str] | Instruction | str | None,
    Param(
        "the instructions of the nodes whose failures count; all by default",
        expected="an instruction or a list of them",
    ),
]
_Nodes = Annotated[
    Iterable[str] | str | None,
    Param(
        "the names of the nodes whose failures count; all by default",
        expected="the name of a node or a list of them",
    ),
]


class ErrorRouter(PolicyRouter):
    """Goes to `target` if a node failed for good, after LangGraph's own retries. The exception is then
    handled.

    `errors` names the exceptions that count, as "ConnectionError" or "requests.exceptions.Timeout"; their
    subclasses count too. None: every exception.

    At the cap, `on_cap="continue"` raises the exception, `"end"` ends the run without it, and
    `"best_attempt"` takes the normal edges with the best earlier attempt of the node in this run, by
    `best_by`; the exception is raised if there is none.
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        target: Annotated[str, Param("the node to go to")],
        *,
        errors: Annotated[
            Sequence[str] | None,
            Param(
                "names of exception classes, as `ConnectionError` or `httpx.ConnectTimeout` (the module that defines "
                "it); those that derive from one count too, and all by default",
                min_length=1,
                expected="a non-empty list of names of exception classes",
            ),
        ] = None,
        target_instructions: _Instructions = None,
        target_nodes: _Nodes = None,
        **options: Unpack[RedirectOptions],
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_error=True, **options)
        self.errors: frozenset[str] | None = None if errors is None else ExceptionNames(errors)
        self.target = target
        self.targets = (target,)

    def route_after(self, history: History, current_output: Any) -> str | None:
        counts = self.errors is None or is_one_named(history.item.error_types, self.errors)
        return self.target if counts else None
