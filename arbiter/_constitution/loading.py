"""The constitution: instructions, checkers, routers and evaluators declared in packs, made into objects.

    files ─▶ documents ─▶ packs ─▶ rules (after `extends`) ─▶ entries that fit their kind ─▶ contracts

No contract is made unless all files are right: each stage collects the mistakes in all files, and one
`PackError` reports them. A pack that extends another has its rules too, and may make one of them tighter by
naming it again; a change that is not known to be tighter needs `override: true`. See docs/constitution.md.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from pydantic import ValidationError

from arbiter._constitution.bindings import BindingPack, Fingerprint
from arbiter._constitution.documents import (
    Document,
    Kind,
    PackModel,
    Place,
    explain,
    pack_files,
    pack_folder,
    quotes,
    read_document,
    short,
    validate,
)
from arbiter._constitution.kinds import (
    CONTRACTS,
    KINDS,
    UNCLEAR,
    Section,
    class_at,
    in_effect,
    make,
    parameters_of,
    rule_class_at,
    takes_instructions,
    takes_model,
    tightening,
)
from arbiter._constitution.pack_file import HEAD, Binding, DomainCore, PackFile, RecordsEntry, RuleHead
from arbiter._constitution.records import changed, looser_parts
from arbiter._constitution.tightening import is_same, is_tighter, with_instructions
from arbiter._contracts import Contract, Mode
from arbiter._threads.forks import new_rlock
from arbiter._values.parameters import Tighter
from arbiter._values.records import Records
from arbiter.errors import (
    ArbiterError,
    ConfigurationError,
    PackError,
    PackMistake,
    ParameterError,
    RegistrationError,
    UnknownInstructionError,
    closest,
    describe,
    nearest,
    with_article,
)
from arbiter.evaluation import NodeEvaluator
from arbiter.instructions import Instruction, define, find_instruction, withdraw
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.redaction import PatternError, Patterns

OneSource = str | Path | Traversable
Source = OneSource | Sequence[OneSource]
SHIPPED = "arbiter:"
FOLDERS: tuple[Kind, ...] = get_args(Kind)
SECTIONS: tuple[Section, ...] = get_args(Section)
_HEADER = frozenset({"version", "name", "description", "mode", "match"})
"""The keys of a pack that do nothing by themselves."""
_OTHERS = frozenset({"propositions", "personas", "actions", "prompts"})
"""The folders in `evaluators` whose files are no packs."""
_PARAMETER = 3
"""The length of the place of a rule's parameter, such as `("checkers", 0, "allow")`."""
_log = logging.getLogger("arbiter")
C = TypeVar("C", bound=Contract)


# Constitutions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Constitution:
    """The loaded packs. Contracts are in the order of their declaration, those of extended packs first.

    `cores` are the domain cores by name; they exist as long as some object refers to them.
    """

    origin: str
    packs: tuple[str, ...] = ()
    bindings: tuple[BindingPack, ...] = ()
    cores: Mapping[str, type[Instruction]] = field(default_factory=dict[str, type[Instruction]])
    checkers: tuple[PolicyChecker, ...] = ()
    routers: tuple[PolicyRouter, ...] = ()
    evaluators: tuple[NodeEvaluator, ...] = ()

    core_places: Mapping[str, PackMistake] = field(default_factory=dict[str, PackMistake])
    """The place where each of `cores` was declared, as a mistake without its message."""

    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """The parameters that each contract's declaration gives, by section and name."""

    declared: Mapping[str, str] = field(default_factory=dict[str, str])
    """The deciding part of each contract's declaration, by section and name."""

    records: Records | None = None
    """What a ledger keeps; None if no pack says anything about it."""

    text: str = "{}"
    """All rules and instructions as one pack, after extending, as JSON."""

    models: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The models that rules name: for each name what was passed for it, else the name."""

    prefixes: frozenset[str] = frozenset()
    """The allowed prefixes under which rules name classes."""

    @property
    def contracts(self) -> tuple[Contract, ...]:
        return (*self.evaluators, *self.checkers, *self.routers)

    def keeping(self, before: Constitution) -> Constitution:
        """This constitution with the objects of `before` for contracts with the same declaration.

        Contracts that name an instruction of a changed core, or another chat model, are not kept. The kept
        objects get their mode, description and place from this constitution.
        """
        words = [
            word
            for name in self.cores.keys() & before.cores.keys()
            if self.cores[name] is not before.cores[name]
            for core in (self.cores[name], before.cores[name])
            for word in (name, *(member.value for member in core))
        ]
        models = [
            name for name, model in self.models.items() if _which(model) != _which(before.models.get(name))
        ]

        def kept(section: Section, new: tuple[C, ...], old: tuple[C, ...]) -> tuple[C, ...]:
            known = {contract.name: contract for contract in old}

            def same(contract: C) -> bool:
                place = f"{section}.{contract.name}"
                declared = self.declared[place]
                return (
                    declared == before.declared.get(place)
                    and not any(word in declared for word in words)
                    and not any(self.given[place].get(key) in models for key in takes_model(type(contract)))
                )

            return tuple(_relabelled(known[c.name], c) if same(c) else c for c in new)

        return replace(
            self,
            checkers=kept("checkers", self.checkers, before.checkers),
            routers=kept("routers", self.routers, before.routers),
            evaluators=kept("evaluators", self.evaluators, before.evaluators),
        )


def _which(model: Any) -> object:
    """Tells chat models apart, also those with equal settings."""
    return model if isinstance(model, str) else id(model)


def _relabelled(contract: C, like: Contract) -> C:
    contract.mode, contract.description, contract.source = like.mode, like.description, like.source
    return contract


def load_constitution(
    source: Source,
    *,
    allow: Iterable[str] = (),
    models: Mapping[str, Any] | None = None,
) -> Constitution:
    """Read a project's `instructions/`, `policies/` and `evaluators/`, a single pack file, or a shipped pack
    such as "arbiter:kernel"; or several of these, in the order of the list.

    `allow` are the prefixes of dotted paths, such as "mycompany.", under which packs may name classes; none
    by default. `models` are chat models by the names that packs use. Raises `PackError` with every mistake in
    every file, or `ConfigurationError` if there is nothing to read.
    """
    loader = _Loader(prefixes_of(allow), models_by_name(models))
    with all_or_nothing():
        return loader.load(_sources(source))


def load_evaluators(
    document: Document, *, allow: Iterable[str] = (), models: Mapping[str, Any] | None = None
) -> tuple[NodeEvaluator, ...]:
    """The entries under `evaluators` of a document that is no pack, as a pack would have them.

    Raises `PackError` with every mistake in them.
    """
    loader = _Loader(prefixes_of(allow), models_by_name(models))
    return loader.load_entries(replace(document, data={"evaluators": document.data.get("evaluators", [])}))


def _sources(source: Source) -> Sequence[OneSource]:
    """The sources of a list, or the only one."""
    given: Any = source
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        return [cast(OneSource, given)]
    if not source:
        raise ConfigurationError("the list of sources is empty. Name one, such as 'arbiter:kernel'.")
    return list(cast("Sequence[OneSource]", given))


def models_by_name(models: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The mapping of `models=`, checked."""
    if models is None:
        return {}
    given: Any = models
    names: list[Any] = list(models) if isinstance(given, Mapping) else [None]
    if not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"models is {given!r:.80}; expected a mapping from the names that packs use to chat models, such as "
            "{'judge': model}."
        )
    return models


def prefixes_of(allow: Iterable[str]) -> tuple[str, ...]:
    """The prefixes of `allow=`, checked, each with its dot."""
    given: Any = allow
    if isinstance(given, str) or not isinstance(given, Iterable):
        example = given if isinstance(given, str) else "mycompany."
        raise ConfigurationError(f"allow is {given!r}; expected a list of prefixes: [{example!r}].")
    prefixes = tuple(allow)
    for prefix in prefixes:
        if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"allow has {prefix!r}; expected a text such as 'mycompany.'.")
        if not prefix.strip("."):
            raise ConfigurationError(
                f"allow has the prefix {prefix!r}, which would allow any class. Name a package, such as 'mycompany.'."
            )
    return tuple(prefix if prefix.endswith(".") else prefix + "." for prefix in prefixes)


# Loading ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Pack:
    document: Document
    file: PackFile

    @property
    def name(self) -> str:
        return self.file.name

    def entries(self, section: Section | Literal["instructions"]) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The readable entries of a section, each with its place."""
        for index, entry in enumerate(getattr(self.file, section)):
            if isinstance(entry, dict):
                yield (section, index), cast("dict[str, Any]", entry)


@dataclass(slots=True, eq=False)
class _Rule:
    """One rule as several packs declare it together: its own entry on top of the entry that it changes."""

    section: Section
    pack: _Pack
    place: Place
    data: dict[str, Any]
    origins: dict[str, tuple[Document, Place]]
    """The document and place of each value, since a rule that changes another has values from both."""
    mode: Mode

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def source(self) -> str:
        return f"{self.pack.document.file}:{self.pack.document.line(self.place)}"

    def mistake(self, place: Place, message: str) -> PackMistake:
        """A mistake at a place inside this rule."""
        document, base = self.origins.get(str(place[0]) if place else "", (self.pack.document, self.place))
        return document.mistake((*base, *place), message)


class _Loader:
    def __init__(self, allow: tuple[str, ...], models: Mapping[str, Any]) -> None:
        self.allow = allow
        self.models = models
        self.mistakes: list[PackMistake] = []
        self.packs: dict[str, _Pack] = {}
        self.files: list[str] = []
        self.taken: set[object] = set()
        self.broken: set[str] = set()
        """Packs that exist but could not be read. References to them are not mistakes."""
        self.named: dict[str, Any] = {}
        """The models that rules name, as in `Constitution.models`."""
        self.used: set[str] = set()
        """The allowed prefixes of classes that rules name."""
        self.twins: list[_Rule] = []
        """Rules without a name, or with a name that another rule has. Their other values are checked
        nevertheless.
        """

    def load(self, sources: Sequence[OneSource]) -> Constitution:
        for source in sources:
            try:
                # Files of a single folder are named relative to it; files of several could share a name.
                self._read(source, "" if len(sources) == 1 else f"{source}/")
            except OSError as error:  # a folder that may not be read, or the text of a pack as a path
                raise ConfigurationError(
                    f"the constitution {str(source)!r:.200} cannot be read: {error.strerror}. "
                    "Give the path of a folder or of a YAML file."
                ) from None
        order = self._ordered()
        cores = self._cores(order)
        bindings = tuple(self._bindings(pack) for pack in order if pack.file.instructions)
        rules = self._merged(order)
        records = self._records(order)
        contracts = [(rule.section, self._made(rule)) for rule in rules]
        for rule in self.twins:
            if "use" in rule.data:  # otherwise it may change the rule with that name
                self._made(rule)
        self._stop()
        self._report_idle(sources, {pack.file for pack in bindings if pack.bindings})
        found = [(section, contract) for section, contract in contracts if contract is not None]
        return Constitution(
            origin=", ".join(map(str, sources)),
            packs=tuple(pack.name for pack in order),
            bindings=tuple(pack for pack in bindings if pack.bindings),
            cores={name: core for name, (core, _) in cores.items()},
            core_places={name: place for name, (_, place) in cores.items()},
            given={f"{rule.section}.{rule.name}": _given(rule) for rule in rules},
            records=records,
            text=_text(order, rules, records),
            models=self.named,
            prefixes=frozenset(self.used),
            declared={f"{rule.section}.{rule.name}": _decisive(rule) for rule in rules},
            checkers=tuple(cast(PolicyChecker, c) for section, c in found if section == "checkers"),
            routers=tuple(cast(PolicyRouter, c) for section, c in found if section == "routers"),
            evaluators=tuple(cast(NodeEvaluator, c) for section, c in found if section == "evaluators"),
        )

    def load_entries(self, document: Document) -> tuple[NodeEvaluator, ...]:
        self.files.append(document.file)
        rules = self._merged([_Pack(document, _readable(document, document.file))])
        found = [self._made(rule) for rule in (*rules, *self.twins)]
        self._stop()
        return tuple(each for each in found if isinstance(each, NodeEvaluator))

    def _stop(self) -> None:
        if self.mistakes:
            raise PackError(sorted(self.mistakes, key=lambda each: (self.files.index(each.file), each.line)))

    def _report_idle(self, sources: Sequence[OneSource], bound: Collection[str]) -> None:
        """Log what puts no rule in force although it is there, and words that YAML reads as true or false."""
        if not self.packs:
            _log.warning(
                "the constitution %r has no YAML file, and so no rule.", ", ".join(map(str, sources))
            )
        for pack in self.packs.values():
            for place, word in pack.document.words.items():
                # Inside a parameter it may be meant as a text.
                if place[0] in SECTIONS and len(place) > _PARAMETER:
                    value = str(word.lower() in ("yes", "on")).lower()
                    said = f"YAML reads {word} as {value}. Write {value}, or {word!r} in quotes for the text."
                    _log.warning("%s", pack.document.mistake(place, said))
            if pack.file.model_fields_set <= _HEADER:
                _log.warning(
                    "the pack %r (%s) has a header only, and so no rule. Add checkers, routers, evaluators, "
                    "instructions or records, or the packs that it extends.",
                    pack.name,
                    pack.document.file,
                )
            elif pack.file.match and pack.document.file not in bound:
                _log.warning(
                    "the pack %r (%s) has a match, which says for which graphs its bindings are, and binds no node: "
                    "its rules apply to every graph.",
                    pack.name,
                    pack.document.file,
                )

    # Files

    def _read(self, source: OneSource, where: str) -> None:
        if isinstance(source, str) and source.startswith(SHIPPED):
            if self._shipped(source) is None:
                names = [SHIPPED + name for name in shipped_names()]
                raise ConfigurationError(
                    f"no pack {source!r} ships with Arbiter. There are: {', '.join(names)}.{nearest(source, names)}"
                )
            return
        given: Any = source
        if not isinstance(given, str | Traversable):
            raise ConfigurationError(
                f"a constitution is read from a folder, a YAML file or a shipped pack, got {given!r}. Give its path."
            )
        root: Any = Path(given) if isinstance(given, str) else given
        if root.is_file():
            self._take(root, where.removesuffix("/") or root.name)
            return
        folders = [folder for folder in FOLDERS if root.joinpath(folder).is_dir()]
        if not folders:
            raise ConfigurationError(
                f"no constitution in {str(source)!r}: expected a folder with at least one of {', '.join(FOLDERS)}, "
                "a YAML file, or a shipped pack such as 'arbiter:kernel'. `arbiter init` makes the folders."
                f"{_nearest_pack(str(source))}"
            )
        for folder in folders:
            for file in pack_files(root.joinpath(folder)):
                self._take(file, f"{where}{folder}/{file.name}")
            for inside in _unread(root.joinpath(folder)):
                _log.warning(
                    "the YAML files in %r are not read: packs are the files right in %r. Move them there.",
                    str(inside),
                    str(root.joinpath(folder)),
                )
        absent = [folder for folder in FOLDERS if folder not in folders]
        for other in root.iterdir() if absent else ():
            meant = closest(other.name, absent)
            if meant and other.is_dir() and any(map(_has_header, pack_files(other))):
                _log.warning("the YAML files in %r are not read. Did you mean %r?", str(other), meant)

    def _take(self, file: Traversable, name: str, prefix: str = "") -> _Pack | None:
        place = os.path.realpath(file) if isinstance(file, Path) else file
        # A source may be named twice, or be a file of another one.
        if not prefix and place in self.taken:
            return None
        self.taken.add(place)
        self.files.append(name)
        try:
            document = read_document(file, name)
        except PackError as error:
            self.broken.add(prefix + file.name.rpartition(".")[0])
            self.mistakes.extend(error.mistakes)
            return None
        try:
            pack = _Pack(document, validate(document, PackFile))
        except PackError as error:
            self.mistakes.extend(error.mistakes)
            if not isinstance(document.data, dict):
                return None
            self.broken.add(f"{prefix}{document.data.get('name')}")
            pack = _Pack(document, _readable(document, file.name.rpartition(".")[0]))
        known = self.packs.setdefault(prefix + pack.name, pack)
        if known is not pack:
            message = f"expected a name of its own, got {pack.name!r}, which {known.document.file} has"
            self.mistakes.append(document.mistake(("name",), message))
        return pack

    def _shipped(self, name: str) -> _Pack | None:
        """The pack "arbiter:<name>", read on first use; None if there is none."""
        if name in self.packs:
            return self.packs[name]
        stem = name.removeprefix(SHIPPED)
        for folder in FOLDERS:
            for file in pack_files(pack_folder(folder)):
                if file.name.rpartition(".")[0] == stem:
                    return self._take(file, f"{SHIPPED}{folder}/{file.name}", SHIPPED)
        return None

    # Extending

    def _ordered(self) -> list[_Pack]:
        """All packs; extended packs come before those that extend them."""
        done: dict[str, _Pack] = {}

        def visit(key: str, pack: _Pack, path: tuple[str, ...]) -> None:
            if key in done:
                return
            for number, name in enumerate(pack.file.extends):
                place: Place = ("extends", number)
                base = self._shipped(name) if name.startswith(SHIPPED) else self.packs.get(name)
                if base is None:
                    if name not in self.broken:
                        self.mistakes.append(pack.document.mistake(place, self._unknown(name)))
                elif name in (*path, key):
                    circle = " → ".join([*path[path.index(name) if name in path else len(path) :], key, name])
                    message = f"expected a pack that does not extend this one, got a circle: {circle}"
                    self.mistakes.append(pack.document.mistake(place, message))
                else:
                    visit(name, base, (*path, key))
            done[key] = pack

        for key, pack in list(self.packs.items()):
            visit(key, pack, ())
        return list(done.values())

    def _unknown(self, name: str) -> str:
        hint = nearest(name, self.packs) or _nearest_pack(name) or f" Packs: {', '.join(sorted(self.packs))}."
        return f"expected the name of a pack, got {name!r}.{hint}"

    def _merged(self, order: Sequence[_Pack]) -> list[_Rule]:
        rules: dict[tuple[bool, str], _Rule] = {}
        for pack in order:
            below = self._below(pack)
            for section in SECTIONS:
                for place, entry in pack.entries(section):
                    self._declare(pack, below, section, place, entry, rules)
        return list(rules.values())

    def _below(self, pack: _Pack) -> set[int]:
        """The packs that this one extends, directly or indirectly."""
        found: set[int] = set()
        todo = list(pack.file.extends)
        while todo:
            base = self.packs.get(todo.pop())
            if base is not None and id(base) not in found:
                found.add(id(base))
                todo.extend(base.file.extends)
        return found - {id(pack)}

    def _declare(
        self,
        pack: _Pack,
        below: set[int],
        section: Section,
        place: Place,
        entry: dict[str, Any],
        rules: dict[tuple[bool, str], _Rule],
    ) -> None:
        document = pack.document
        name: object = entry.get("name")
        if not isinstance(name, str) or not name:
            got = f"{name!r}{quotes(name)}" if "name" in entry else "nothing"
            self.mistakes.append(document.mistake((*place, "name"), f"expected a text, got {got}"))
            origins = dict.fromkeys(entry, (document, place))
            self.twins.append(_Rule(section, pack, place, {**entry, "name": "-"}, origins, "enforce"))
            return
        mode = entry.get("mode") or pack.file.mode
        rule = _Rule(
            section,
            pack,
            place,
            dict(entry),
            dict.fromkeys(entry, (document, place)),
            mode if mode in get_args(Mode) else "enforce",
        )
        # A checker and a router cannot share a name, because a history names only the policy.
        space = (section == "evaluators", name)
        known = rules.get(space)
        if known is None:
            if entry.get("override") is True and not self.broken.intersection(pack.file.extends):
                message = f"expected a rule {name!r} in a pack that this one extends, got none to override"
                self.mistakes.append(rule.mistake(("override",), message))
            rules[space] = rule
            return
        if id(known.pack) not in below or known.section != section:
            message = f"expected a name of its own, got {name!r}, which the rule at {known.source} has"
            self.mistakes.append(rule.mistake(("name",), message))
            self.twins.append(rule)
            return
        if "use" not in entry:
            rule.data = {**known.data, "override": False, **entry}
            rule.origins = {**known.origins, **rule.origins}
        if "mode" not in entry and "mode" not in pack.file.model_fields_set:
            rule.mode = known.mode
        if rule.data.get("override") is not True:
            self._only_tighter(known, rule)
        rules[space] = rule

    def _only_tighter(self, known: _Rule, rule: _Rule) -> None:
        remedy = f"it changes the rule at {known.source}. Make it tighter, or write override: true"
        ranks = {"off": 0, "audit": 1, "enforce": 2}
        if ranks[rule.mode] < ranks[known.mode]:
            message = f"expected {known.mode!r}, got {rule.mode!r}; {remedy}"
            self.mistakes.append(rule.pack.document.mistake((*rule.place, "mode"), message))
        if rule.data.get("use") != known.data.get("use"):
            message = f"expected {known.data.get('use')!r}, got {rule.data.get('use')!r}; {remedy}"
            self.mistakes.append(rule.mistake(("use",), message))
            return
        cls = self._class_of(rule, report=False)
        if cls is None:
            return  # reported where the rule is made
        use = str(rule.data["use"])
        try:
            was, now = (in_effect(use, cls, _given(each)) for each in (known, rule))
            wrong = _wrong_in(parameters_of(cls), _given(rule))
        except Exception:
            return  # as above
        for parameter in sorted((was.keys() | now.keys()) - wrong):  # these are reported there, too
            before, after = was.get(parameter), now.get(parameter)
            how = tightening(cls, parameter)
            change = [before, after]
            if takes_instructions(cls, parameter):
                change = with_instructions(change)
            if not is_same(*change) and not is_tighter(how, *change):
                message = f"expected {_wanted(how, before)}, got {after!r}; {remedy}"
                self.mistakes.append(rule.mistake((parameter,), message))

    # Records

    def _records(self, order: Sequence[_Pack]) -> Records | None:
        """The records of the constitution: at most one pack has them, or several that extend one another."""
        records, owner = None, None
        for pack in order:
            entry, document = pack.file.records, pack.document
            if entry is None:
                continue
            self._check_patterns(pack, entry)
            source = f"{document.file}:{document.line(('records',))}"
            if records is None or owner is None:
                if entry.override and not self.broken.intersection(pack.file.extends):
                    message = "expected records in a pack that this one extends, got none to override"
                    self.mistakes.append(document.mistake(("records", "override"), message))
                records, owner = changed(Records(), entry, source), pack
                continue
            if id(owner) not in self._below(pack):
                message = f"expected at most one, got another beside the records at {records.source}"
                self.mistakes.append(document.mistake(("records",), message))
                continue
            if not entry.override:
                remedy = f"it changes the records at {records.source}. Keep less, or write override: true"
                for place, message in looser_parts(records, entry):
                    self.mistakes.append(document.mistake(("records", *place), f"{message}; {remedy}"))
            records, owner = changed(records, entry, source), pack
        return records

    def _check_patterns(self, pack: _Pack, entry: RecordsEntry) -> None:
        for name, pattern in entry.redact.patterns.items():
            try:
                Patterns({name: pattern})
            except PatternError as error:
                place: Place = ("records", "redact", "patterns", name)
                message = f"expected an expression of RE2, got {short(pattern)}: {error}"
                self.mistakes.append(pack.document.mistake(place, message))

    # Making

    def _other_section(self, use: str) -> str:
        """`" 'judge' is an evaluator; move the rule to `evaluators:`."`, or "" if no section has that kind."""
        found: list[Section] = [section for section in SECTIONS if use in KINDS[section]]
        kinds = " or ".join(with_article(CONTRACTS[section].kind) for section in found)
        places = " or ".join(f"`{section}:`" for section in found)
        return f" {use!r} is {kinds}; move the rule to {places}." if found else ""

    def _class_of(self, rule: _Rule, *, report: bool = True) -> type[Contract] | None:
        """The class that a rule's `use` names, or None after reporting the mistake."""
        use: object = rule.data.get("use")
        kinds, contract = KINDS[rule.section], CONTRACTS[rule.section]
        problem: str
        if "use" not in rule.data:
            problem = _NO_USE + self._nearest_rule(rule)
        elif not isinstance(use, str) or not use:
            problem = f"expected the kind of the rule, got {use!r}"
        elif use in kinds:
            return cast("type[Contract]", class_at(kinds[use]))
        elif "." not in use:
            names = ", ".join(sorted(kinds))
            problem = f"expected one of {names}, or the dotted path of a class or function, got {use!r}."
            problem += (
                f" {UNCLEAR[use]}" if use in UNCLEAR else self._other_section(use) or nearest(use, kinds)
            )
        elif not self._allows(use):
            prefix = f"{use.partition('.')[0]}."
            problem = (
                f"expected a class or function under an allowed prefix ({self._allowed}), got {use!r}. Pass "
                f"allow=[{prefix!r}] where the constitution is loaded, or --allow {prefix} in a shell, if you trust it"
            )
        else:
            try:
                found = rule_class_at(use, contract)
                if issubclass(found, contract):
                    return found
                problem = f"expected a subclass of {contract.__name__} or a function, got {use!r}"
            except RegistrationError as error:
                problem = f"expected a subclass of {contract.__name__} or a function in its place, got {use!r}: {error}"
            except (Exception, SystemExit) as error:  # importing runs the user's code
                problem = (
                    f"expected a subclass of {contract.__name__}, or a function, that can be imported, got {use!r}: "
                    f"{describe(error)}"
                )
        if report:
            self.mistakes.append(rule.mistake(("use",) if "use" in rule.data else (), problem))
        return None

    def _nearest_rule(self, rule: _Rule) -> str:
        """`". Did you mean 'model_calls'?"`, a rule of a pack that this one extends, or ""."""
        below = self._below(rule.pack)
        extended = (pack for pack in self.packs.values() if id(pack) in below)
        names = [str(entry.get("name")) for pack in extended for entry in getattr(pack.file, rule.section)]
        hint = nearest(rule.name, names)
        return f".{hint}" if hint else ""

    @property
    def _allowed(self) -> str:
        return ", ".join(map(repr, self.allow)) or "none"

    def _allows(self, path: str) -> bool:
        found = [prefix for prefix in self.allow if path.startswith(prefix)]
        self.used.update(found)
        return bool(found)

    def _made(self, rule: _Rule) -> Contract | None:
        """The contract that a rule declares; None if it has mistakes, which are added to the list."""
        before = len(self.mistakes)
        self._check_head(rule)
        given = _given(rule)
        cls = self._class_of(rule)
        if cls is None:
            self._check_common(rule, given)
            return None
        try:
            model = parameters_of(cls)
        except Exception as error:  # reads the user's annotations
            self.mistakes.append(rule.mistake(("use",), f"expected a class that YAML can describe: {error}"))
            self._check_common(rule, given)
            return None
        try:
            parameters = self._parameters(cls, model, given)
        except ValidationError as error:
            self.mistakes.extend(self._mistakes(rule, model, given, error))
            wrong = _wrong_in(model, given) | self._check_paths(rule, cls, given)
            left = {key: value for key, value in given.items() if key not in wrong}
            with suppress(ValidationError):  # it needs the wrong parameters
                whole = wrong <= parameters_of(CONTRACTS[rule.section]).model_fields.keys()
                self._check_others(rule, cls, self._parameters(cls, model, left), whole=whole)
            return None
        refused = self._check_paths(rule, cls, parameters)
        if len(self.mistakes) > before:
            self._check_others(rule, cls, {k: v for k, v in parameters.items() if k not in refused})
            return None
        return self._construct(rule, cls, parameters)

    def _parameters(
        self, cls: type[Contract], model: type[PackModel], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments of the constructor, from an entry that fits the model. Raises `ValidationError`."""
        checked = model.model_validate(given)
        parameters = {key: _plain(getattr(checked, key)) for key in checked.model_fields_set}
        for key in takes_model(cls) & parameters.keys():
            if isinstance(name := parameters[key], str):
                self.named[name] = parameters[key] = self.models.get(name, name)
        return parameters

    def _construct(self, rule: _Rule, cls: type[Contract], parameters: dict[str, Any]) -> Contract | None:
        try:
            contract = make(cls, rule.name, parameters)
            contract.mode = rule.mode
            contract.source = rule.source
            contract.description = str(rule.data.get("description") or contract.description)
            contract.ensure_valid()
        except ParameterError as error:
            place = _place_of(error.parameter)
            self.mistakes.append(rule.mistake(place, error.problem + self._nearest_model(rule, cls, place)))
            if place and place[0] in parameters:
                self._check_others(rule, cls, {k: v for k, v in parameters.items() if k != place[0]})
        except UnknownInstructionError as error:
            at = [key for key, given in parameters.items() if isinstance(given, list) and error.name in given]
            self.mistakes.append(rule.mistake(tuple(at[:1]), str(error)))
        except ArbiterError as error:
            self.mistakes.append(rule.mistake((), str(error)))
        except (Exception, SystemExit) as error:  # a user's class may raise anything
            message = f"{cls.__name__} could not be made: {describe(error)}"
            self.mistakes.append(rule.mistake((), message))
        else:
            return contract
        return None

    def _nearest_model(self, rule: _Rule, cls: type[Contract], place: Place) -> str:
        """`" Did you mean 'judge'?"`, or how to name one, for a parameter that names a model, or ""."""
        name = rule.data.get(str(place[0])) if place else None
        if not isinstance(name, str) or place[0] not in takes_model(cls) or name in self.models:
            return ""
        if (hint := nearest(name, self.models)) or ":" in name:
            return hint
        return f" Write a name like 'openai:gpt-5-mini', or pass models={{{name!r}: ...}}."

    def _check_others(
        self, rule: _Rule, cls: type[Contract], left: Mapping[str, Any], *, whole: bool = False
    ) -> None:
        """Report the constructor's mistakes in the parameters that are `left` after others were wrong.

        A constructor stops at its first mistake, so it is called again without that parameter. `whole`: no
        other parameter depends on the wrong ones.
        """
        try:
            make(cls, rule.name, left)
        except ParameterError as error:
            place = _place_of(error.parameter)
            known = bool(place) and place[0] in left
            if known or whole:  # otherwise it misses a parameter that was left out
                self.mistakes.append(rule.mistake(place, error.problem))
            if known:
                self._check_others(rule, cls, {k: v for k, v in left.items() if k != place[0]})
        except Exception:
            return  # it needs a parameter that was left out

    def _check_common(self, rule: _Rule, given: Mapping[str, Any]) -> None:
        """Report mistakes in the parameters that all rules of a section have, whatever kind this rule is
        meant to be.
        """
        model = parameters_of(CONTRACTS[rule.section])
        common = {key: value for key, value in given.items() if key in model.model_fields}
        try:
            model.model_validate(common)
        except ValidationError as error:
            self.mistakes.extend(self._mistakes(rule, model, common, error))

    def _check_head(self, rule: _Rule) -> None:
        head = {key: value for key, value in rule.data.items() if key in HEAD - {"use"}}
        try:
            RuleHead.model_validate({**head, "use": "-"})
        except ValidationError as error:
            self.mistakes.extend(self._mistakes(rule, RuleHead, head, error))

    def _mistakes(
        self, rule: _Rule, model: type[PackModel], given: Mapping[str, Any], error: ValidationError
    ) -> Iterator[PackMistake]:
        reported = {(mistake.file, mistake.path) for mistake in self.mistakes}
        for place, message in explain(model, given, error, also=HEAD):
            mistake = rule.mistake(place, message + self._constructor_lacks(rule, place))
            if (mistake.file, mistake.path) not in reported:  # an unreadable value is None by now
                yield mistake

    def _constructor_lacks(self, rule: _Rule, place: Place) -> str:
        """The remedy if a user's class does not take a parameter of its base class."""
        cls = None if rule.data.get("use") in KINDS[rule.section] else self._class_of(rule, report=False)
        if cls is None or len(place) != 1 or place[0] in parameters_of(cls).model_fields:
            return ""
        if place[0] not in parameters_of(CONTRACTS[rule.section]).model_fields:
            return ""
        return f" Add {place[0]} to {cls.__name__}.__init__, or **kwargs that it passes to its base class."

    def _check_paths(self, rule: _Rule, cls: type[Contract], parameters: Mapping[str, Any]) -> set[str]:
        """Report classes in parameters that are not under an allowed prefix. Returns the names of these
        parameters.
        """
        refused: set[str] = set()
        for key in getattr(cls, "DOTTED_PARAMETERS", ()):
            path = parameters.get(key)
            if isinstance(path, str) and not self._allows(path):
                message = f"expected a class under an allowed prefix ({self._allowed}), got {path!r}"
                self.mistakes.append(rule.mistake((key,), message))
                refused.add(key)
        return refused

    # Instructions

    def _cores(self, order: Sequence[_Pack]) -> dict[str, tuple[type[Instruction], PackMistake]]:
        """The domain cores of these packs, each with a mistake without its message, for its place."""
        cores: dict[str, tuple[type[Instruction], PackMistake]] = {}
        for pack in order:
            for place, entry in pack.entries("instructions"):
                if "core" not in entry:
                    continue
                if (declared := self._entry(pack, place, entry, DomainCore)) is None:
                    continue
                if declared.core in cores:
                    message = f"expected a core of its own, got {declared.core!r} again"
                    self.mistakes.append(pack.document.mistake((*place, "core"), message))
                    continue
                known = _cores.get(declared.core)
                try:
                    core = known[1] if known and _alike(known[0], declared) else _make_core(declared)
                except ArbiterError as error:
                    self.mistakes.append(pack.document.mistake((*place, "core"), str(error)))
                    continue
                cores[declared.core] = core, pack.document.mistake(place, "")
                _cores[declared.core] = declared, core
                _set_meanings(declared, core)
        return cores

    def _bindings(self, pack: _Pack) -> BindingPack:
        bindings: list[tuple[str, Instruction]] = []
        lines: list[int] = []
        for place, entry in pack.entries("instructions"):
            if "core" in entry or (binding := self._entry(pack, place, entry, Binding)) is None:
                continue
            try:
                bindings.append((binding.node, find_instruction(binding.instruction)))
                lines.append(pack.document.line(place))
            except UnknownInstructionError as error:
                self.mistakes.append(pack.document.mistake((*place, "instruction"), str(error)))
        return BindingPack(
            name=pack.name,
            description=pack.file.description,
            file=pack.document.file,
            match=tuple(Fingerprint(match.metadata, match.nodes) for match in pack.file.match),
            bindings=tuple(bindings),
            lines=tuple(lines),
        )

    def _entry(self, pack: _Pack, place: Place, entry: Mapping[str, Any], model: Any) -> Any:
        try:
            return model.model_validate(entry)
        except ValidationError as error:
            for where, message in explain(model, entry, error):
                self.mistakes.append(pack.document.mistake((*place, *where), message))
            return None


_NO_USE = "expected `use`, the kind of the rule, got nothing"
_cores: dict[str, tuple[DomainCore, type[Instruction]]] = {}
"""Domain cores that packs have declared.

Loading the same declaration again returns the same core, so that graphs governed before still match.
"""
_cores_lock = new_rlock()


@contextmanager
def all_or_nothing() -> Generator[None]:
    """If the block raises, the domain cores that it declared or changed are withdrawn."""
    with _cores_lock:
        before = dict(_cores)
        try:
            yield
        except BaseException:
            for name, (_, core) in _cores.items():
                if name not in before or before[name][1] is not core:
                    withdraw(core)
            _cores.clear()
            _cores.update(before)
            for declared, core in before.values():
                _set_meanings(declared, core)
            raise


def _alike(one: DomainCore, other: DomainCore) -> bool:
    """True if two declarations differ only in the texts of meanings, which decide nothing."""
    return [(name, m.unverified, m.acts) for name, m in one.members.items()] == [
        (name, m.unverified, m.acts) for name, m in other.members.items()
    ]


def _set_meanings(declared: DomainCore, core: type[Instruction]) -> None:
    for member in core:
        member.meaning = declared.members[member.value].meaning


def _make_core(declared: DomainCore) -> type[Instruction]:
    members = {
        name: define(member.meaning, unverified=member.unverified, acts=member.acts)
        for name, member in declared.members.items()
    }
    made: type[Instruction] = cast(Any, Instruction)(declared.core, members, module=__name__)
    return made


def _readable(document: Document, name: str) -> PackFile:
    """The readable part of a file with mistakes, so that its rules are checked too. `name` is used if it has
    none.
    """
    given: dict[str, Any] = document.data
    lists: dict[str, list[Any]] = {
        key: given[key] if isinstance(given.get(key), list) else []
        for key in ("extends", "instructions", *SECTIONS)
    }
    if isinstance(given.get("extends"), str):
        lists["extends"] = [given["extends"]]
    lists["extends"] = [each for each in lists["extends"] if isinstance(each, str)]
    own_name, mode = given.get("name"), given.get("mode")
    found: dict[str, Any] = {
        "version": 1,
        "name": own_name if isinstance(own_name, str) and own_name else name,
        "description": "-",
        "mode": mode if mode in get_args(Mode) else "enforce",
        "match": [],
        "records": _readable_records(given.get("records")),
        **lists,
    }
    return PackFile.model_construct(**found)


def _readable_records(given: Any) -> RecordsEntry | None:
    """The parts of `records:` without a mistake."""
    if not isinstance(given, dict):
        return None
    parts = {key: part for key, part in cast("dict[str, Any]", given).items() if key != "redact"}
    found = {key: part for key, part in parts.items() if _fits({key: part})}
    redact: Any = cast("dict[str, Any]", given).get("redact")
    if isinstance(redact, dict):
        inside = cast("dict[str, Any]", redact)
        found["redact"] = {key: part for key, part in inside.items() if _fits({"redact": {key: part}})}
    return RecordsEntry.model_validate(found)


def _fits(part: dict[str, Any]) -> bool:
    try:
        RecordsEntry.model_validate(part)
    except ValidationError:
        return False
    return True


def _given(rule: _Rule) -> dict[str, Any]:
    return {key: value for key, value in rule.data.items() if key not in HEAD}


def _wrong_in(model: type[PackModel], given: Mapping[str, Any]) -> set[str]:
    """The parameters that do not fit the model."""
    try:
        model.model_validate(given)
    except ValidationError as error:
        return {str(details["loc"][0]) for details in error.errors(include_url=False) if details["loc"]}
    return set()


def _text(order: Sequence[_Pack], rules: Sequence[_Rule], records: Records | None) -> str:
    """One pack with all that these packs declare: loading it gives the same rules."""
    whole: dict[str, Any] = {
        "version": 1,
        "name": "constitution",
        "description": f"The packs {', '.join(pack.name for pack in order)} after extending.",
        "instructions": [entry for pack in order for _, entry in pack.entries("instructions")],
    }
    if records is not None:
        whole["records"] = records.to_dict()
    for section in SECTIONS:
        whole[section] = [
            {**{key: value for key, value in rule.data.items() if key != "override"}, "mode": rule.mode}
            for rule in rules
            if rule.section == section
        ]
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"), default=str)


def _decisive(rule: _Rule) -> str:
    """The parts of a rule that determine its contract, without its mode and texts, which an object may
    change.
    """
    return repr({key: value for key, value in rule.data.items() if key == "use" or key not in HEAD})


def _plain(value: Any) -> Any:
    """The value of a model as an argument of the constructor: mappings and lists, without unset members."""
    if isinstance(value, PackModel):
        return {key: _plain(getattr(value, key)) for key in value.model_fields_set}
    parts: Any = value
    if isinstance(value, list):
        return [_plain(part) for part in parts]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in parts.items()}
    return value


def _place_of(parameter: str) -> Place:
    """`allow[2].when` as ("allow", 2, "when"), and `weights['a']` as ("weights", "a")."""
    return tuple(
        int(index) if index else key or name
        for index, key, name in re.findall(r"\[(\d+)\]|\['(.*?)'\]|([^.\[]+)", parameter)
    )


def _wanted(how: Tighter | None, before: Any) -> str:
    match how:
        case "lower":
            return f"at most {before!r}"
        case "higher":
            return f"at least {before!r}"
        case "fewer":
            return f"nothing beyond {before!r}"
        case "more" | "wider":
            return f"all of {before!r}" if before else "none"
        case "denial":
            return f"{before!r} or 'raise'" if before != "raise" else "'raise'"
        case _:
            return repr(before)


# Shipped packs ------------------------------------------------------------------------------------


def shipped_names() -> list[str]:
    """The packs that ship with Arbiter, sorted."""
    return sorted(
        file.name.rpartition(".")[0] for folder in FOLDERS for file in pack_files(pack_folder(folder))
    )


def _unread(folder: Traversable) -> Iterator[Traversable]:
    """The folders in a folder of packs whose YAML files look like packs, and are not read."""
    for inside in sorted(folder.iterdir(), key=lambda entry: entry.name):
        known = folder.name == "evaluators" and inside.name in _OTHERS
        if inside.is_dir() and not known and not inside.name.startswith(".") and pack_files(inside):
            yield inside


def _has_header(file: Traversable) -> bool:
    """True if a file begins like a pack. Suites and cases, as in a folder `evals`, do not."""
    return file.is_file() and re.search(rb"^version:", file.read_bytes(), re.MULTILINE) is not None


def _nearest_pack(name: str) -> str:
    """`" Did you mean 'arbiter:kernel'?"`, or ""."""
    found = closest(name.removeprefix(SHIPPED), shipped_names())
    return f" Did you mean {SHIPPED + found!r}?" if found else ""
