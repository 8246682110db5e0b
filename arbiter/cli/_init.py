"""`arbiter init`: the three folders for a graph, with a proposed instruction for each node.

A proposal comes from the first of these that suggests one: the node's label or binding pack, a `ToolNode`, a
chat model, the node's name, the first words of its docstring. If none does, the user is asked, or the node is
left open.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from arbiter._constitution.loading import FOLDERS
from arbiter._objects import load_graph
from arbiter._values.files import writing
from arbiter._weaving.govern import NodeFacts, describe_nodes
from arbiter.cli._schema import HEADER, write_schemas
from arbiter.errors import ConfigurationError, UnknownInstructionError
from arbiter.instructions import (
    COMPRESS,
    CONSTRAIN,
    DECOMPOSE,
    DELEGATE,
    FALLBACK,
    FILTER,
    GENERATE,
    INFER_INTENT,
    INTERRUPT,
    LOAD,
    REFLECT,
    RENDER,
    RESPOND,
    STORE,
    STRUCTURE,
    TOOL_BUILD,
    TOOL_CALL,
    VERIFY,
    Instruction,
    find_instruction,
)

WORDS: Mapping[Instruction, tuple[str, ...]] = {
    TOOL_BUILD: ("build_tool", "make_tool"),
    TOOL_CALL: ("tool", "tools", "call_api", "execute", "pay", "send", "book", "order", "delete", "publish"),
    INTERRUPT: ("human", "approval", "approve", "ask_user"),
    FALLBACK: ("fallback", "recover", "handle_error"),
    REFLECT: ("reflect", "reflection", "critique", "criticise", "revise", "improve"),
    VERIFY: ("verify", "verification", "validate", "check", "grade", "test"),
    DECOMPOSE: ("plan", "planner", "decompose", "split", "break_down"),
    RESPOND: ("respond", "reply", "answer_user", "final", "finish"),
    COMPRESS: ("summarise", "summarize", "compress", "shorten"),
    FILTER: ("filter", "rerank", "select", "prune"),
    LOAD: ("retrieve", "retriever", "search", "fetch", "load", "lookup", "recall"),
    STORE: ("store", "save", "remember", "persist"),
    STRUCTURE: ("extract", "parse", "structure"),
    RENDER: ("render", "format"),
    DELEGATE: ("delegate", "handoff", "hand_off", "supervisor", "subagent"),
    CONSTRAIN: ("guard", "guardrail", "redact", "moderate"),
    INFER_INTENT: ("intent", "classify", "route", "router"),
    GENERATE: (
        "generate",
        "model",
        "agent",
        "llm",
        "chat",
        "write",
        "writer",
        "draft",
        "answer",
        "call_model",
    ),
}
_INSTRUCTION_OF = {word: instruction.qualified for instruction, words in WORDS.items() for word in words}
_SAYS_WHAT_IT_DOES = 3
"""The number of words of a docstring that count: "Calls the model", "Looks for the order" (which orders
nothing).
"""
Ask = Callable[[str, str], str]


def propose(node: NodeFacts) -> str:
    """A proposed instruction for a node, or ""."""
    if node.instruction:
        return node.instruction
    if node.code.rsplit(".", 1)[-1] == "ToolNode" or "tool_node.ToolNode" in node.code:
        return TOOL_CALL.qualified
    if node.chat_model:
        return GENERATE.qualified
    return _by_words(_words(node.name.rpartition(":")[2])) or _by_words(
        _words(node.docstring)[:_SAYS_WHAT_IT_DOES]
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())


def _by_words(words: list[str]) -> str:
    """The instruction of the first word or words that suggest one: names and docstrings begin with the verb."""
    for at in range(len(words)):
        for length in (2, 1):
            phrase = "_".join(words[at : at + length])
            bases = (phrase, phrase.removesuffix("s"), phrase.removesuffix("es"), re.sub("ies$", "y", phrase))
            for base in bases:
                if base in _INSTRUCTION_OF:
                    return _INSTRUCTION_OF[base]
    return ""


def scaffold(where: str, folder: Path, *, ask: Ask | None) -> list[Path]:
    """Write the folders. `ask` (question, proposal) returns the answer; with None, every proposal is
    accepted.

    Returns the written files. No file is overwritten: if one exists, raises `ConfigurationError` before
    writing any.
    """
    graph = load_graph(where)
    name = _pack_name(where)
    targets = {
        folder / "instructions" / f"{name}.yaml": _instructions(name, where, _chosen(graph, ask)),
        folder / "policies" / f"{name}.yaml": _POLICIES.format(
            header=HEADER, name=f"{name}-policies", graph=where
        ),
        folder / "evaluators" / f"{name}.yaml": _EVALUATORS.format(
            header=HEADER, name=f"{name}-evaluators", graph=where
        ),
    }
    for path in targets:
        if path.exists():
            raise ConfigurationError(f"{path} already exists. Remove it, or choose another folder.")
    for kind in FOLDERS:
        with writing(folder / kind):
            (folder / kind).mkdir(parents=True, exist_ok=True)
    for path, text in targets.items():
        with writing(path):
            path.write_text(text, encoding="utf-8")
    return [*targets, *write_schemas(folder)]


def _pack_name(where: str) -> str:
    stem = (
        re.sub(r"\.py$", "", where.rpartition(":")[0])
        .replace("\\", "/")
        .rsplit("/", 1)[-1]
        .rsplit(".", 1)[-1]
    )
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "project"


def _chosen(graph: Any, ask: Ask | None) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for node in describe_nodes(graph):
        proposal = propose(node)
        if ask is not None:
            proposal = _asked(node.name, proposal, ask)
        chosen[node.name] = proposal
    return chosen


def _asked(name: str, proposal: str, ask: Ask) -> str:
    question = f"instruction of node {name!r} (- for none)"
    while answer := ask(question, proposal):
        try:
            return find_instruction(answer).qualified
        except UnknownInstructionError as error:
            question, proposal = f"{error} Again", ""
    return ""


def _instructions(name: str, where: str, chosen: Mapping[str, str]) -> str:
    bound = {node: instruction for node, instruction in chosen.items() if instruction}
    lines = [
        HEADER + f"# The instruction of each node of {where}. Policies apply by instruction.\n",
        "version: 1",
        f"name: {_yaml(name)}",
        f"description: {_yaml(f'The nodes of {where}.')}",
        "instructions:" if bound else "instructions: []",
        *(f"  - {{node: {_yaml(node)}, instruction: {instruction}}}" for node, instruction in bound.items()),
        *(f"  # {json.dumps(node)}: no proposal" for node in chosen if node not in bound),
    ]
    return "\n".join(lines) + "\n"


def _yaml(text: str) -> str:
    """The text as YAML, in quotes if it has to be: `no`, for example, would be false."""
    return str(yaml.safe_dump([text], default_flow_style=True, width=math.inf))[1:-2]


_POLICIES = """\
{header}# The policies of {graph}. `arbiter explain <kind>` describes a kind.

version: 1
name: {name}
description: What may happen.
extends: [arbiter:kernel]
routers: []
checkers: []
# An example, in place of the line above:
# checkers:
#   - name: payments_are_small
#     use: condition
#     target_instructions: [TOOL_CALL]
#     deny_when: "input.amount > 1000"
"""
_EVALUATORS = """\
{header}# The evaluators of {graph}. Routers decide by their results.

version: 1
name: {name}
description: How good it was.
evaluators: []
# An example, in place of the line above:
# evaluators:
#   - name: answer_is_short
#     use: length
#     key: answer
#     at_most: 2000
#     target_instructions: [RESPOND]
"""
