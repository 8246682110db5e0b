"""The contents of a pack file: the models that validate its YAML."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from arbiter._constitution.bindings import FingerprintEntry, has_traits
from arbiter._constitution.documents import INSTRUCTION, PackModel, Text
from arbiter._contracts import Mode
from arbiter._values.records import States


class Member(PackModel):
    """One instruction of a domain core."""

    meaning: Annotated[Text, Field(description="what a step of this instruction does")]
    unverified: Annotated[
        bool, Field(description="whether a model makes its output, so that nothing has confirmed it yet")
    ] = False
    acts: Annotated[bool, Field(description="whether it has an effect outside of the agent")] = False


class Binding(PackModel):
    """The instruction of a node. `node` is its name, or a pattern with `*` and `?`."""

    node: Annotated[Text, Field(description="the name of the node, or a pattern with `*` and `?`")]
    instruction: Annotated[
        Text,
        WithJsonSchema(INSTRUCTION, mode="validation"),
        Field(description="the instruction that the node is"),
    ]


class DomainCore(PackModel):
    """A core with instructions of your own."""

    core: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$", description="the name of the core")]
    members: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], Member],
        Field(min_length=1, description="its instructions by name"),
    ]


def _no_bool(value: object) -> object:
    return repr(value) if isinstance(value, bool) else value  # True equals 1, but is not a version


Entries = Annotated[list[dict[str, Any]], Field(default_factory=list[dict[str, Any]])]


Match = Annotated[FingerprintEntry, AfterValidator(has_traits)]


class RedactEntry(PackModel):
    """Names, expressions and detectors of secrets that are replaced before anything is stored."""

    keys: Annotated[
        list[Text],
        Field(
            default_factory=list[Text],
            description="names of fields, at any depth, whose values are redacted: patterns with `*` and `?`, no case",
        ),
    ]
    patterns: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")], Text],
        Field(
            default_factory=dict[str, str],
            description="expressions of RE2 by name; the name is shown in the place of what one finds",
        ),
    ]
    detect: Annotated[
        list[Literal["secrets", "cards", "papers", "spoken", "emails", "phones"]] | None,
        Field(description="the detectors that look into texts; by default `secrets` and `cards`"),
    ] = None


class RecordsEntry(PackModel):
    """The records that a ledger keeps. An extending pack can only keep less, unless it overrides."""

    states: Annotated[
        States | None,
        Field(
            description="what is kept of inputs and outputs at most, from `none` over `digest` and `bounded` to `full`"
        ),
    ] = None
    redact: Annotated[
        RedactEntry,
        Field(default_factory=lambda: RedactEntry.model_validate({}), description="what is replaced"),
    ]
    keep_days: Annotated[
        float | None, Field(gt=0, description="the days after which contents and old threads are removed")
    ] = None
    override: Annotated[
        bool, Field(description="whether it may keep more than the records of an extended pack")
    ] = False


class PackFile(PackModel):
    """One file."""

    version: Annotated[Literal[1], BeforeValidator(_no_bool), Field(description="the version of this format")]
    name: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="the name by which other packs extend it")
    ]
    description: Annotated[Text, Field(description="what the pack is for, in a sentence")]
    extends: Annotated[
        list[Text], Field(default_factory=list[Text], description="the packs whose rules it takes over")
    ]
    mode: Annotated[Mode, Field(description="the mode of the rules that say none of their own")] = "enforce"
    match: Annotated[
        list[Match],
        Field(default_factory=list[Match], description="the graphs that the bindings of this pack are for"),
    ]
    instructions: Annotated[
        Entries,
        Field(description="which nodes are which instructions, and cores of instructions of your own"),
    ]
    records: Annotated[
        RecordsEntry | None,
        Field(description="what a ledger keeps of the runs: states, redaction, for how long"),
    ] = None
    checkers: Annotated[Entries, Field(description="rules that decide before a node runs whether it may")]
    routers: Annotated[Entries, Field(description="rules that decide after a node where the run goes")]
    evaluators: Annotated[Entries, Field(description="rules that judge what a node returned")]


class RuleHead(PackModel):
    """The keys that every rule may have, of whatever kind."""

    name: Annotated[Text, Field(description="the name of the rule, of which there is one in a section")]
    use: Annotated[Text, Field(description="the kind of the rule, or the dotted path of a class")]
    description: Annotated[str, Field(description="what the rule is for, in a sentence")] = ""
    mode: Annotated[
        Mode | None,
        Field(
            description="whether the rule decides, is only recorded (audit), or is off; by default as the pack"
        ),
    ] = None
    override: Annotated[
        bool, Field(description="whether the rule may loosen the one that it changes in an extended pack")
    ] = False


HEAD = frozenset(RuleHead.model_fields)
