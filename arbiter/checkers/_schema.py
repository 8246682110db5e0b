"""A checker of a node's input and output, by JSON Schema or pydantic class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter._values.shapes import A_SCHEMA, Shape, shape_of, whole
from arbiter.errors import ParameterError
from arbiter.history._items import History
from arbiter.policy import CheckerOptions, PolicyChecker
from arbiter.verdicts import Verdict


class SchemaChecker(PolicyChecker):
    """Denies a node whose input does not fit a schema, and holds back an output that does not.

    `input` and `output` are each a JSON Schema (a mapping; draft 2020-12 unless `$schema` says otherwise), a
    class that pydantic validates, or the dotted path of such a class. The input is checked before the body
    runs; the output before it is committed. Values are not converted: the node gets its input unchanged.
    """

    reads_history = False
    DOTTED_PARAMETERS: ClassVar[tuple[str, ...]] = ("input", "output")
    """Parameters in which a text is the dotted path of a class, which the constructor imports.

    A loader of files must check first that the path is allowed.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        *,
        input: Annotated[
            Mapping[str, Any] | str | type | None,
            Param("what the node's input must fit; at least one of the two is needed", expected=A_SCHEMA),
        ] = None,
        output: Annotated[
            Mapping[str, Any] | str | type | None,
            Param("what the node writes must fit", expected=A_SCHEMA),
        ] = None,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        owner = f"checker {name!r}"
        if input is None and output is None:
            raise ParameterError(owner, "input", "expected a schema for input, output or both, got neither.")
        self._input = None if input is None else shape_of(input, owner, "input")
        self._output = None if output is None else shape_of(output, owner, "output")

    def check_before(self, history: History) -> Verdict:
        return _verdict(self._input, history.item.input_state, "input")

    def check_after(self, output: Mapping[str, Any], history: History) -> Verdict:
        return _verdict(self._output, output, "output")


def _verdict(shape: Shape | None, state: Mapping[str, Any], what: str) -> Verdict:
    mistakes = shape.mistakes(whole(state), what) if shape is not None else ()
    return Verdict.deny("; ".join(mistakes)) if mistakes else Verdict.allow()
