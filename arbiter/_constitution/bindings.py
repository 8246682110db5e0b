"""Binding packs: the instructions of the nodes of a known graph, which is recognised by a fingerprint.

They are meant for graphs whose nodes the user did not name, such as LangChain's `create_agent`, and must never apply
to a graph that merely uses the same names. So a fingerprint consists of the graph's own metadata, or of the places
where the code of its nodes is defined; node names alone are rejected.

This module does not depend on LangGraph: the caller describes a graph in a `GraphFacts`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from arbiter._constitution.documents import (
    Document,
    InstructionText,
    PackModel,
    Text,
    load_packs,
    pack_folder,
    short,
)
from arbiter.errors import PackError
from arbiter.instructions import Instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """The properties of a graph by which a binding pack recognises it.

    `nodes` maps each node's name to the place where its code is defined, as `code_of` returns it; `metadata`
    is that of the compiled graph's own config.
    """

    nodes: Mapping[str, str]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


def code_of(runnable: object) -> str:
    """The place where the code of a runnable or function is defined, as module and qualified name.

    For a runnable around a function (LangGraph wraps each node's) it is the function's:
    "langchain.agents.factory.create_agent.<locals>.model_node". For any other object it is its class's.
    """
    code = runnable
    for _ in range(4):  # bounded, because a mock has an endless chain of `func`
        inner = getattr(code, "func", None) or getattr(code, "afunc", None)
        if not callable(inner):
            break
        code = inner
    defined: Any = code if hasattr(code, "__qualname__") else type(code)
    return f"{defined.__module__}.{defined.__qualname__}"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The marks of a graph: `metadata` that must be equal, `nodes` whose code must match a pattern."""

    metadata: Mapping[str, str]
    nodes: Mapping[str, str]

    def fits(self, facts: GraphFacts) -> bool:
        return all(facts.metadata.get(key) == value for key, value in self.metadata.items()) and all(
            _fits(facts.nodes.get(node, ""), code) for node, code in self.nodes.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingPack:
    """The instructions of nodes, in graphs that match one of `match`.

    `bindings` are pairs of a node's name (or a pattern with `*` and `?`) and its instruction; the first that
    matches a node counts. `file` is the file of the pack, and `lines` are the lines of its bindings.
    """

    name: str
    description: str
    file: str
    match: tuple[Fingerprint, ...]
    bindings: tuple[tuple[str, Instruction], ...]
    lines: tuple[int, ...] = field(default=(), compare=False)

    def fits(self, facts: GraphFacts) -> bool:
        """True if the pack is meant for that graph. A project's own pack needs no fingerprint: it is for all
        its graphs.
        """
        return not self.match or any(fingerprint.fits(facts) for fingerprint in self.match)

    def instruction_of(self, node: str) -> Instruction | None:
        """The instruction of `node`, or None. The name of a node in a subgraph has its parents in front:
        "team:pay".
        """
        fitting = (instruction for name, instruction in self.bindings if _binds(name, node))
        return next(fitting, None)

    def instructions_of(self, nodes: Iterable[str]) -> dict[str, Instruction]:
        """The nodes that the pack knows, with their instructions, in the form that `govern` takes."""
        found = ((node, self.instruction_of(node)) for node in nodes)
        return {node: instruction for node, instruction in found if instruction is not None}


def idle_bindings(
    packs: Iterable[BindingPack], nodes: Collection[str]
) -> Iterator[tuple[BindingPack, str, int, str]]:
    """The bindings without effect, in packs that are for every graph: the pack, the name or pattern, its line, and
    why, if an earlier one binds all that it can fit to another instruction; "" if it fits no node.
    """
    taken: dict[str, tuple[str, Instruction, str]] = {}
    for pack in (pack for pack in packs if not pack.match):
        for (name, instruction), line in zip(pack.bindings, pack.lines, strict=False):
            own = name, instruction, f"{name!r} comes before it at {pack.file}:{line}"
            first = [taken.setdefault(node, own) for node in nodes if _binds(name, node)]
            if all(other is not instruction and _binds(before, name) for before, other, _ in first):
                yield pack, name, line, first[0][2] if first else ""


def _binds(pattern: str, node: str) -> bool:
    """True if the pattern matches the node. A node of a subgraph matches by its own name, or with its
    parent's in front.
    """
    return _fits(node if ":" in pattern else node.rpartition(":")[2], pattern)


def _fits(name: str, pattern: str) -> bool:
    # Brackets are not wildcards: a middleware's node is "PIIMiddleware[email].before_model".
    return name == pattern or (
        not {"*", "?"}.isdisjoint(pattern) and fnmatchcase(name, pattern.replace("[", "[[]"))
    )


def load_bindings(folder: Traversable) -> tuple[BindingPack, ...]:
    """The binding packs of a folder, by file name. Raises `PackError`, also for two packs with the same name."""
    seen: dict[str, str] = {}

    def convert(document: Document, pack: _BindingFile) -> BindingPack:
        if (other := seen.setdefault(pack.name, document.file)) != document.file:
            message = f"expected a name of its own, got {pack.name!r}, which {other} has"
            raise PackError([document.mistake(("name",), message)])
        return BindingPack(
            name=pack.name,
            description=pack.description,
            file=document.file,
            match=tuple(Fingerprint(match.metadata, match.nodes) for match in pack.match),
            bindings=tuple((binding.node, binding.instruction) for binding in pack.instructions),
            lines=tuple(document.line(("instructions", i)) for i in range(len(pack.instructions))),
        )

    return load_packs(folder, _BindingFile, convert)


@cache
def shipped_bindings() -> tuple[BindingPack, ...]:
    """The binding packs that ship with Arbiter, read on first use."""
    return load_bindings(pack_folder("instructions"))


def binding_for(facts: GraphFacts, packs: Iterable[BindingPack] | None = None) -> BindingPack | None:
    """The first of `packs` (by default those that ship with Arbiter) whose fingerprint matches, or None."""
    candidates = shipped_bindings() if packs is None else packs
    return next((pack for pack in candidates if pack.fits(facts)), None)


_DEFINED_SOMEWHERE = re.compile(r"[A-Za-z_]\w*\.")


def _code(value: object) -> str:
    if not isinstance(value, str) or not _DEFINED_SOMEWHERE.match(value):
        raise ValueError(
            "expected where the node's code is defined, such as 'langchain.agents.factory.*', "
            f"got {short(value)}. A node's name alone is not a fingerprint."
        )
    return value


def has_traits(match: FingerprintEntry) -> FingerprintEntry:
    if not match.metadata and not match.nodes:
        raise ValueError("expected metadata or nodes, got neither. It would fit every graph.")
    return match


class FingerprintEntry(PackModel):
    metadata: dict[str, str] = Field(
        default_factory=dict[str, str], description="what the graph's metadata has, by key"
    )
    nodes: dict[str, Annotated[str, PlainValidator(_code)]] = Field(
        default_factory=dict[str, Any], description="for each node the function or class that it runs"
    )


class _BindingEntry(PackModel):
    node: Text
    instruction: InstructionText


class _BindingFile(PackModel):
    version: Literal[1]
    name: Text
    description: Text
    match: Annotated[list[Annotated[FingerprintEntry, AfterValidator(has_traits)]], Field(min_length=1)]
    instructions: Annotated[list[_BindingEntry], Field(min_length=1)]
