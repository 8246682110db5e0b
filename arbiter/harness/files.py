"""Suites in files.

    suite file ─▶ Document ─▶ SuiteFile ─▶ cases of other files, scorers, evaluators ─▶ Suite

All mistakes of all files are reported at once, each with its file and line, in one `PackError`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from arbiter._constitution.documents import (
    Document,
    PackModel,
    Place,
    explain,
    read_document,
    validate,
)
from arbiter._constitution.kinds import AsMapping
from arbiter._constitution.loading import load_evaluators, prefixes_of
from arbiter._constitution.schema import json_schema as pack_schema
from arbiter._objects import load_object, model_named
from arbiter._values.kinds import is_list, is_mapping
from arbiter.errors import ArbiterError, ConfigurationError, PackError, PackMistake, nearest
from arbiter.evaluation import NodeEvaluator
from arbiter.harness.agents import Agent, Agents, mistakes_in_times
from arbiter.harness.cache import CacheMode
from arbiter.harness.case_files import (
    BOUNDS,
    CaseEntry,
    case_of,
    load_cases,
    load_outputs,
    mistakes_in,
    unquoted,
)
from arbiter.harness.cases import Case, same_cases
from arbiter.harness.dimensions import OF_CHANNELS
from arbiter.harness.expectations import Expectations
from arbiter.harness.gate import GateSettings
from arbiter.harness.kinds import SCORERS, ScorerEntry
from arbiter.harness.limits import Limits
from arbiter.harness.messages import JsonlMessages, LedgerMessages, Messages, StoreMessages
from arbiter.harness.scorers import scorers_of
from arbiter.harness.suites import Suite
from arbiter.harness.targets import TargetFile
from arbiter.models._asking import models_unasked
from arbiter.personas import Persona

SCHEMA = "suite.schema.json"
_log = logging.getLogger("arbiter.harness")


# The models of a file -----------------------------------------------------------------------------


class FromEntry(PackModel):
    """Cases of another file."""

    file: str = Field(alias="from", description="a .jsonl, .json, .yaml or .csv file with cases")


class AgentEntry(PackModel):
    """An agent, under its name in the messages."""

    persona: str | dict[str, Any] = Field(
        description="a file, arbiter:ilka, or a mapping with name and description"
    )
    graph: str | None = Field(None, description="the graph that answers prompts in the mode synthetic")


class TargetEntry(PackModel):
    """The target of a suite: a graph, a function, recorded outputs, or agents."""

    graph: str | None = Field(None, description="package.module:name or path/to/file.py:name of a graph")
    function: str | None = Field(
        None, description="package.module:name or path/to/file.py:name of a function"
    )
    outputs: str | None = Field(None, description="a .jsonl file with the `output` of each case by `id`")
    agents: dict[str, AgentEntry] | None = Field(None, description="agents by their names in the messages")
    messages: str | None = Field(
        None,
        description="a .jsonl file with agent, text, at and channel of each message, a store's URL, or ledger:PATH",
    )
    window: str = Field("7d", description="the time whose messages are judged: 7d, 24h or 2w")
    until: str | datetime | None = Field(
        None, description="its end, such as 2026-11-23T00:00:00Z; by default the newest message"
    )
    history: str | None = Field(None, description="the earlier messages that consistency reads: 30d..7d")
    channels: list[str] = Field(
        default_factory=list[str], description="the channels whose convergence and ideas are judged"
    )
    constitution: str | None = Field(None, description="the rules that govern the graph")
    output: str | None = Field(None, description="the key of the final state that is judged")
    watch: list[str] = Field(
        default_factory=list[str],
        description="files on which its answers depend beside its own and the rules, such as prompts/**",
    )
    record: bool = Field(
        False, description="whether the answers of a function are recorded, as those of a graph"
    )
    fresh: Literal["worker", "case"] = Field("worker", description="how often a function makes the graph")
    configurable: dict[str, Any] = Field(
        default_factory=dict, description="what each run has in its config beside the thread id: user_id, ..."
    )


class SuiteFile(PackModel):
    """A suite: cases, what judges them, and what is measured."""

    suite: str = Field(pattern=r"^\w[\w.-]*$", description="the name of the suite")
    target: TargetEntry | None = None
    models: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="chat models by name: openai:gpt-5-mini, or path/to/file.py:name of one of yours",
    )
    evaluators: list[Any] = Field(
        default_factory=list[Any], description="rules that judge node runs, as in a pack"
    )
    scorers: list[Any] = Field(default_factory=list[Any], description="scorers that judge whole runs")
    cases: list[Any] = Field(
        default_factory=list[Any], description="the cases, or files with cases; agents are cases themselves"
    )
    repeats: int = Field(1, ge=1, description="how often each case runs")
    votes: int | None = Field(
        None,
        ge=1,
        description="how often judges are asked each question; by default as often as each row asks",
    )
    cache: CacheMode = Field(
        "off", description="what live runs take from earlier ones in .arbiter/cache.sqlite"
    )
    seed: int = Field(42, ge=0, description="chooses the messages that persona scorers judge")
    gate: Annotated[GateSettings, AsMapping()] = Field(default_factory=GateSettings)
    limits: Annotated[Limits, AsMapping()] = Field(default_factory=Limits)

    @field_validator("cases", mode="before")
    @classmethod
    def _are_listed(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(
                f"expected a list, got {given!r:.60}. Write [{{from: {given:.60}}}] for a file of cases"
            )
        return given


@cache
def suite_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a suite file."""
    schema = SuiteFile.model_json_schema(ref_template="#/$defs/{model}")
    pack = pack_schema()
    definitions: dict[str, Any] = {**pack["$defs"], **schema["$defs"]}
    kinds: list[Any] = []
    for use, (model, _) in SCORERS.items():
        found = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(found.pop("$defs", {}))
        definitions[f"scorers.{use}"] = found
        kinds.append({"$ref": f"#/$defs/scorers.{use}"})
    own = ScorerEntry.model_json_schema()
    own["properties"]["use"]["pattern"] = "[.:]"
    definitions["scorers.own"] = own
    of_function = {**own, "properties": {**own["properties"], "function": own["properties"]["use"]}}
    del of_function["properties"]["use"]
    of_function["required"] = ["name", "function"]
    definitions["scorers.function"] = of_function
    owns = [{"$ref": f"#/$defs/scorers.{form}"} for form in ("own", "function")]
    schema["properties"]["scorers"]["items"] = {"anyOf": [*kinds, *owns]}
    schema["properties"]["evaluators"] = pack["properties"]["evaluators"]
    for model in (FromEntry, CaseEntry):
        found = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(found.pop("$defs", {}))
        definitions[model.__name__] = found
    schema["properties"]["cases"]["items"] = {
        "anyOf": [{"$ref": "#/$defs/FromEntry"}, {"$ref": "#/$defs/CaseEntry"}]
    }
    of_agents = {"required": ["agents"], "properties": {"agents": {"type": "object"}}}
    schema["anyOf"] = [
        {"required": ["cases"], "properties": {"cases": {"minItems": 1}}},
        {"required": ["target"], "properties": {"target": of_agents}},
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A suite of Arbiter's evaluation harness",
        "$defs": definitions,
    }


# Suites -------------------------------------------------------------------------------------------

_PART = re.compile(r"(?:cases|scorers)\[\d+\]|[^.\[]*")
"""The part of a suite file in which a mistake is, by its path. A case and a scorer are parts of their own."""


def suite_files() -> list[Path]:
    """The suites of the project in the working directory: the YAML files in suites/, by name."""
    return sorted(file for end in ("yaml", "yml") for file in Path("suites").glob(f"*.{end}"))


def load_suite(
    path: str | Path,
    *,
    allow: Iterable[str] = (),
    models: Mapping[str, Any] | None = None,
    replay: bool = False,
) -> Suite:
    """The suite in a YAML file. Paths in it are relative to the working directory.

    `allow` are prefixes of dotted paths, such as "mycompany.", under which it may name classes and functions.
    `models` replace models that the file names, by name. With `replay`, for a run in the mode "mock", models that
    are named by a text need neither the package of their provider nor a key. Raises `PackError` with all mistakes
    in all files.
    """
    file = Path(path)
    document = read_document(file, str(path), BOUNDS)
    mistakes: list[PackMistake] = []
    unread: frozenset[str] = frozenset()
    try:
        suite = validate(document, SuiteFile)
    except PackError as error:
        if not is_mapping(document.data):
            raise
        # Its other parts are read all the same, so that their mistakes are reported, too.
        mistakes += error.mistakes
        unread = frozenset(found.group() for mistake in mistakes if (found := _PART.match(mistake.path)))
        sound = {
            name: part
            for name, part in document.data.items()
            if name in SuiteFile.model_fields and name not in unread
        }
        suite = SuiteFile.model_validate({"suite": "unnamed", **sound})
    known: dict[str, Any] = {**suite.models, **(models or {})}
    for name, model in known.items():
        try:
            known[name] = model_named(model) if isinstance(model, str) else model
        except ConfigurationError as error:
            mistakes.append(document.mistake(("models", name), str(error)))
            unread |= {"models"}
    with models_unasked("replay") if replay else nullcontext():
        return _Loader(document, suite, prefixes_of(allow), known, mistakes, unread).load()


@dataclass(slots=True)
class _Loader:
    document: Document
    file: SuiteFile
    allow: tuple[str, ...]
    models: Mapping[str, Any]
    mistakes: list[PackMistake]
    unread: frozenset[str]
    """The parts of the file that are so wrong that nothing is known about them."""

    def load(self) -> Suite:
        agents = self.agents()
        cases = list(self.cases()) if agents is None else list(agents.cases)
        has_models = "models" not in self.unread
        scorers = dict(self.scorers()) if has_models else {}
        evaluators = self.evaluators() if has_models else ()
        target = self.target() if agents is None else agents
        self.same_names(scorers, evaluators)
        if len(scorers) == len(self.file.scorers) and "scorers" not in self.unread:
            self.useless_seed(scorers.values())
        of_agents = self.file.target is not None and self.file.target.agents is not None
        if "target" not in self.unread and (agents is not None or not of_agents):
            self.without_persona(agents)
        for case, said in (*same_cases(cases), *Expectations().mistakes(cases)):
            place = _place_of(case) or (self.document.file, self.document.line(("target",)))
            self.mistakes.append(PackMistake(*place, "", said))
        if not self.mistakes:
            self.report_unused()
            try:
                return Suite(
                    self.file.suite,
                    cases,
                    scorers=list(scorers.values()),
                    evaluators=evaluators,
                    target=target,
                    repeats=self.file.repeats,
                    votes=self.file.votes,
                    cache=self.file.cache,
                    seed=self.file.seed,
                    gate=self.file.gate,
                    limits=self.file.limits,
                )
            except ConfigurationError as error:
                self.wrong((), str(error))
        raise PackError(self.mistakes)

    def wrong(self, place: Place, said: str) -> None:
        self.mistakes.append(self.document.mistake(place, said))

    def report_unused(self) -> None:
        """Name the models that nothing in the file uses. The rules of a constitution may, which are read with the
        target."""
        if self.file.target is not None and self.file.target.constitution is not None:
            return
        named = set(_texts([self.file.scorers, self.file.evaluators]))
        if unused := [name for name in self.models if name not in named]:
            _log.warning(
                "%s: models: no scorer or evaluator uses %s.%s Correct the name, or leave it out. "
                "(This is reported once.)",
                self.document.file,
                ", ".join(map(repr, unused)),
                nearest(unused[0], named),
            )

    def items(self, part: str, given: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The items of a list with their numbers, without those that could not be read."""
        return ((at, data) for at, data in enumerate(given) if f"{part}[{at}]" not in self.unread)

    def cases(self) -> Iterator[Case]:
        is_of_agents = self.file.target is not None and self.file.target.agents is not None
        if not self.file.cases and not is_of_agents and not self.unread & {"cases", "target"}:
            self.wrong(("cases",), "expected at least one case, got none")
        self.mistakes += unquoted(self.document, 2)
        for number, data in self.items("cases", self.file.cases):
            place: Place = ("cases", number)
            if isinstance(data, str):
                self.wrong(
                    place,
                    f"expected a case, got {data!r:.60}. Write {{from: {data:.60}}} for a file of cases",
                )
                continue
            model = FromEntry if is_mapping(data) and "from" in data else CaseEntry
            try:
                entry = model.model_validate(data)
            except ValidationError as error:
                found = explain(model, data, error) if model is FromEntry else mistakes_in(data, error)
                self.mistakes += [self.document.mistake((*place, *where), said) for where, said in found]
                continue
            try:
                if isinstance(entry, FromEntry):
                    yield from load_cases(entry.file)
                else:
                    yield case_of(entry, self.document.mistake(place, ""))
            except PackError as error:
                self.mistakes += error.mistakes
            except OSError as error:
                said = f"expected a file that can be read, got {data['from']!r}: {error.strerror or error}"
                self.wrong((*place, "from"), said)

    def scorers(self) -> Iterator[tuple[int, Any]]:
        """The scorers by their numbers in the file."""
        for number, data in self.items("scorers", self.file.scorers):
            place: Place = ("scorers", number)
            if not is_mapping(data):
                self.wrong(place, f"expected a mapping, got {data!r:.60}")
                continue
            try:
                scorer = self.scorer(place, dict(data))
            except ArbiterError as error:
                self.wrong(place, str(error))
            else:
                if scorer is not None:
                    yield number, scorer

    def scorer(self, place: Place, data: dict[str, Any]) -> Any:
        if "function" in data and "use" not in data:  # as in a target
            data["use"] = data.pop("function")
        use = data.get("use")
        known = SCORERS.get(use) if isinstance(use, str) else None
        if known is None and not (isinstance(use, str) and any(mark in use for mark in ".:")):
            got = "nothing" if use is None else repr(use)
            hint = nearest(str(use), SCORERS)
            said = f"expected one of {', '.join(SCORERS)}, or a function as package.module:name, got {got}.{hint}"
            self.wrong((*place, "use"), said)
            return None
        model = ScorerEntry if known is None else known[0]
        try:
            entry: Any = model.model_validate(data)
        except ValidationError as error:
            for where, said in explain(model, data, error):
                self.wrong((*place, *where), said)
            return None
        return known[1](entry, self.models) if known is not None else self.function(place, entry)

    def function(self, place: Place, entry: Any) -> Any:
        path = entry.use if ":" in entry.use else ":".join(entry.use.rsplit(".", 1))
        if not path.replace(":", ".").startswith(self.allow or ("\0",)):
            allowed = ", ".join(map(repr, self.allow)) or "none"
            said = (
                f"expected a function under an allowed prefix ({allowed}), got {entry.use!r}. "
                f"Allow it: --allow {path.partition(':')[0].partition('.')[0]}."
            )
            self.wrong((*place, "use"), said)
            return None
        found = load_object(path, "function")
        made: Any = found() if isinstance(found, type) else found
        return scorers_of({entry.name: made})[0]

    def evaluators(self) -> tuple[NodeEvaluator, ...]:
        try:
            return load_evaluators(self.document, allow=self.allow, models=self.models)
        except PackError as error:
            self.mistakes += error.mistakes
            return ()

    def same_names(self, scorers: Mapping[int, Any], evaluators: Sequence[NodeEvaluator]) -> None:
        known = {evaluator.name: evaluator.source for evaluator in evaluators}
        for number, scorer in scorers.items():
            place = ("scorers", number, "name")
            if scorer.name in known:
                said = f"expected a name of its own, got {scorer.name!r}, which {known[scorer.name]} has"
                self.wrong(place, said)
            known[scorer.name] = f"{self.document.file}:{self.document.line(('scorers', number))}"

    def useless_seed(self, scorers: Iterable[Any]) -> None:
        if "seed" in self.file.model_fields_set and not any(
            getattr(one, "samples", False) for one in scorers
        ):
            said = (
                "expected a scorer that samples (adherence, consistency), got none: seed would have no effect"
            )
            self.wrong(("seed",), said)

    def without_persona(self, agents: Agents | None) -> None:
        """Report scorers of dimensions that lack the persona or the channel that they judge."""
        for number, data in self.items("scorers", self.file.scorers):
            use, said = (str(data.get("use")) if is_mapping(data) else ""), ""
            if agents is None and use == "adherence" and data.get("persona") is None:
                said = "expected a persona, such as arbiter:ilka or a file, got none"
            if agents is not None and use in OF_CHANNELS and not agents.channels:
                said = f"expected target.channels, because {use} is about a whole channel, got none"
            if said:
                self.wrong(("scorers", number), said)

    def useless(self, names: Sequence[str], instead: str) -> None:
        """Report the settings of the target with these names that are given, and would have no effect."""
        given = set[str]() if self.file.target is None else self.file.target.model_fields_set
        for name in names:
            if name in given:
                self.wrong(("target", name), f"expected {instead}: {name} would have no effect")

    def agents(self) -> Agents | None:
        """The agents of the target; None if it has none, or if they are wrong."""
        given = self.file.target
        if given is None or given.agents is None:
            self.useless(("messages", "window", "until", "history", "channels"), "agents beside it, got none")
            return None
        if both := [name for name in ("graph", "function", "outputs") if getattr(given, name) is not None]:
            said = f"expected exactly one of graph, function, outputs and agents, got agents and {both[0]}"
            self.wrong(("target",), said)
        if self.file.cases:
            said = "expected none, because each agent and channel is a case, got some"
            self.wrong(("cases",), said)
        self.useless(("output", "configurable", "fresh", "record"), "a graph, got agents")
        if given.messages is None:
            self.wrong(("target",), "expected messages, a .jsonl file or the URL of a store, got none")
        wrong = dict(mistakes_in_times(given.window, given.until, given.history))
        for name, said in wrong.items():
            self.wrong(("target", name), said)
        agents = list(self.each_agent(given))
        if wrong or len(agents) < len(given.agents):
            return None
        try:
            return Agents(
                agents=agents,
                messages=_messages(given.messages or ""),
                window=given.window,
                until=given.until,
                history=given.history,
                channels=given.channels,
            )
        except ConfigurationError as error:
            self.wrong(("target",), str(error))
            return None

    def each_agent(self, given: TargetEntry) -> Iterator[Agent]:
        for name, entry in (given.agents or {}).items():
            try:
                persona = Persona.of(entry.persona)
            except PackError as error:
                self.mistakes += error.mistakes
                continue
            except ConfigurationError as error:
                where = ("target", "agents", name, "persona")
                self.wrong(where, str(error))
                continue
            graph = None
            if entry.graph is not None:
                graph = TargetFile(
                    graph=entry.graph,
                    constitution=given.constitution,
                    watch=given.watch,
                    allow=self.allow,
                    models=self.models,
                )
            yield Agent(id=name, persona=persona, graph=graph)

    def target(self) -> TargetFile | None:
        given = self.file.target
        if given is None or given.agents is not None:  # mistakes of agents are reported already
            return None
        kinds = [name for name in ("graph", "function", "outputs") if getattr(given, name) is not None]
        if len(kinds) != 1:
            got = " and ".join(kinds) or "none of them"
            said = f"expected exactly one of graph, function, outputs and agents, got {got}"
            self.wrong(("target",), said)
            return None
        if kinds != ["graph"]:
            self.useless(("constitution", "output", "fresh", "configurable"), f"a graph, got {kinds[0]}")
        if given.record and kinds != ["function"]:
            self.useless(("record",), f"a function, got {kinds[0]}")
        if "thread_id" in given.configurable:
            said = "expected no thread_id: each case runs in a thread of its own"
            self.wrong(("target", "configurable", "thread_id"), said)
        if kinds == ["outputs"] and given.watch:
            self.useless(("watch",), "a graph or a function, got outputs")
        return TargetFile(
            graph=given.graph,
            function=given.function,
            outputs=None if given.outputs is None else self.outputs(given.outputs),
            constitution=given.constitution,
            output=given.output,
            watch=given.watch,
            fresh=given.fresh == "case",
            configurable=given.configurable,
            record=given.record,
            allow=self.allow,
            models=self.models,
        )

    def outputs(self, path: str) -> Mapping[str, Any]:
        try:
            return load_outputs(Path(path))
        except PackError as error:
            self.mistakes += error.mistakes
        except OSError as error:
            said = f"expected a file that can be read, got {path!r}: {error.strerror or error}"
            self.wrong(("target", "outputs"), said)
        return {}


_LEDGER = "ledger:"
"""The beginning of `target.messages` that names a ledger, by its path or its URL."""


def _messages(where: str) -> Messages:
    if where.startswith(_LEDGER):
        return LedgerMessages(where.removeprefix(_LEDGER))
    return StoreMessages(where) if "://" in where else JsonlMessages(where)


def _texts(value: Any) -> Iterator[str]:
    """All texts in the data of a file."""
    if isinstance(value, str):
        yield value
    elif is_mapping(value):
        yield from _texts(list(value.values()))
    elif is_list(value):
        for part in value:
            yield from _texts(part)


def _place_of(case: Case) -> tuple[str, int] | None:
    """The file and line of a case; None for an agent or a channel."""
    file, _, line = case.source.rpartition(":")
    return (file, int(line)) if file else None
