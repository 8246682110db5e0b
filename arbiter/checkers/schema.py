"""A checker of what goes into a node and what comes out of it, by JSON Schema or pydantic class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from arbiter.errors import ParameterError
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny, PolicyChecker
from arbiter.values import Shape, shape_of, whole
from arbiter.verdicts import Verdict


class SchemaChecker(PolicyChecker):
    """Denies a node whose input does not fit a schema, and keeps back an output that does not.

    `input` and `output` are each a JSON Schema (a mapping; draft 2020-12 unless `$schema` says otherwise), a class
    that pydantic validates, or the dotted path of such a class. The input is checked before the body runs; the
    output, what the node writes, before it is committed. Nothing is converted: the node gets what it would have got.
    """

    reads_history = False
    DOTTED_PARAMETERS: ClassVar[tuple[str, ...]] = ("input", "output")
    """Parameters in which a text is the dotted path of a class, which the constructor imports. Whoever takes them
    from a file checks beforehand that the path is allowed."""

    def __init__(
        self,
        name: str,
        *,
        input: Mapping[str, Any] | str | type | None = None,
        output: Mapping[str, Any] | str | type | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_deny, deadline)
        owner = f"checker {name!r}"
        if input is None and output is None:
            raise ParameterError(owner, "input", "expected a schema for input, output or both, got neither.")
        self._input = None if input is None else shape_of(input, owner, "input")
        self._output = None if output is None else shape_of(output, owner, "output")

    def check_before(self, history: History) -> Verdict:
        return _verdict(self._input, history.entries[-1][-1].input_state, "input")

    def check_after(self, output: Mapping[str, Any], history: History) -> Verdict:
        return _verdict(self._output, output, "output")


def _verdict(shape: Shape | None, state: Mapping[str, Any], what: str) -> Verdict:
    mistakes = shape.mistakes(whole(state), what) if shape is not None else ()
    return Verdict.deny("; ".join(mistakes)) if mistakes else Verdict.allow()
