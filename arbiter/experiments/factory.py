"""The agent factory: a population of personas for a profile, the same one for the same seed.

    profile ─▶ dimensions ─▶ plan ─▶ samples ─▶ agents
               (model)      (model)   (pure)    (model, in parallel)

A model describes the dimensions in which the people differ, then how many people of which subpopulation there
are. Code turns that into one value of each dimension for each person, and a model turns these into personas.
Without a model all of it comes from the profile and from templates. A cache keeps the answers of a model, so that
a run that is started again meets the same people.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables.config import ContextThreadPoolExecutor
from pydantic import BaseModel, ValidationError

from arbiter.errors import ArbiterError, ArbiterWarning, ConfigurationError, callers, describe
from arbiter.experiments.people import (
    NameList,
    Person,
    default_dimensions,
    person_prompt,
    persona_of,
    template,
)
from arbiter.experiments.planning import AREAS, dimensions_prompt, dimensions_schema, plan_prompt, plan_schema
from arbiter.experiments.profiles import OPINIONS, Dimension, Profile, profile_of
from arbiter.experiments.sampling import Directive, Sample, flatten
from arbiter.harness.cache import FILE, Cache
from arbiter.harness.canonical import digest
from arbiter.harness.judging import judge_settings
from arbiter.models import ChatJudge, ChatModel, ask, model_of, total_usage
from arbiter.personas import Persona

T = TypeVar("T", bound=BaseModel)
_TRIES = 2
"""How often a person is asked for."""


class FactoryError(ArbiterError, RuntimeError):
    """A model gave no dimensions or no plan. `stage` says which."""

    def __init__(self, stage: str, problem: str) -> None:
        self.stage = stage
        super().__init__(f"the model gave no {stage}: {problem}. Try again, or use another model.")


class AgentFactory:
    """Makes people of a profile, which is one of `PROFILES` or your own `Profile`.

    Equal profile, `n`, seed and answers of the model give equal people. `template_only` makes them without a
    model. `cache` is the file that keeps a model's answers; None keeps them in this object alone. At most
    `concurrency` people are asked for at once. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        profile: Profile | str,
        model: ChatModel | str | None = None,
        seed: int = 42,
        cache: str | Path | None = FILE,
        *,
        template_only: bool = False,
        concurrency: int = 8,
    ) -> None:
        self.profile = profile_of(profile)
        self.seed = seed
        if template_only is (model is not None):
            given = "both" if template_only else "neither"
            raise ConfigurationError(
                f"AgentFactory({self.profile.id!r}): expected a model or template_only=True, got {given}. A model "
                "invents the people; templates need no model."
            )
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigurationError(
                f"AgentFactory: concurrency: expected a whole number above 0, got {concurrency!r:.80}."
            )
        if type(seed) is not int:
            raise ConfigurationError(f"AgentFactory: seed: expected a whole number, got {seed!r:.80}.")
        self._model = None if model is None else model_of(model)
        self._asking = None if self._model is None else _Asking(self._model, cache)
        self._concurrency = concurrency
        self._dimensions: tuple[Dimension, ...] | None = None
        self._plans: dict[int, tuple[Directive, ...]] = {}
        self._agents: dict[int, tuple[Persona, ...]] = {}

    @property
    def calls(self) -> int:
        """The calls of the model so far."""
        return 0 if self._asking is None else self._asking.calls

    @property
    def usage(self) -> UsageMetadata | None:
        """The tokens that these calls used; None if the model does not report those of one of them."""
        return total_usage([] if self._asking is None else self._asking.usages)

    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of the population: those that the profile decides, then the model's.

        Raises `FactoryError` if the model gives none.
        """
        if self._dimensions is None:
            own = self.profile.dimensions()
            if self._asking is None:
                others = default_dimensions(self.profile)
            else:
                areas = [area for area in AREAS if not (self.profile.axes and area in OPINIONS)]
                schema = dimensions_schema([each.name for each in own], areas=areas)
                prompt = dimensions_prompt(self.profile, own, areas)
                others = self._asking.value("dimensions", schema, prompt).found()
            self._dimensions = (*own, *others)
        return self._dimensions

    def plan(self, n: int) -> tuple[Directive, ...]:
        """The subpopulations of `n` people. Without a model, one in which everything is open.

        Raises `FactoryError` if the model gives none.
        """
        _check_size(n)
        if n not in self._plans:
            if self._asking is None:
                self._plans[n] = (Directive(population=self.profile.population, quantity=n),)
            else:
                own = {each.name for each in self.profile.dimensions()}
                free = [each for each in self.dimensions() if each.name not in own]
                schema = plan_schema(free)
                prompt = plan_prompt(self.profile, free, n)
                self._plans[n] = self._asking.value("plan", schema, prompt).found()
        return self._plans[n]

    def samples(self, n: int) -> tuple[Sample, ...]:
        """The values of each of `n` people, in a random order that the seed fixes."""
        return flatten(self.plan(n), n, dimensions=self.dimensions(), axes=self.profile.axes, seed=self.seed)

    def agents(self, n: int) -> tuple[Persona, ...]:
        """The `n` people, in the order of their samples. No two have one name.

        A person that the model could not make in two tries is a template, with an `ArbiterWarning`.
        """
        _check_size(n)
        if n not in self._agents:
            samples = self.samples(n)
            people = self._from_templates(samples) if self._asking is None else self._from_model(samples)
            self._agents[n] = tuple(
                persona_of(person, sample, self.profile)
                for person, sample in zip(people, samples, strict=True)
            )
        return self._agents[n]

    def _from_templates(self, samples: Sequence[Sample]) -> list[Person]:
        names = NameList()
        return [self._template(at, sample, names) for at, sample in enumerate(samples)]

    def _template(self, at: int, sample: Sample, names: NameList) -> Person:
        person = template(sample, self.profile, names, Random(f"{self.seed}:person:{at}"))
        names.add(person.name)
        return person

    def _from_model(self, samples: Sequence[Sample]) -> list[Person]:
        assert self._asking is not None
        names = NameList()
        people: dict[int, Person] = {}
        problems: dict[int, str] = {}
        left = list(range(len(samples)))
        last: dict[int, Person] = {}
        for _ in range(_TRIES):
            found = self._ask_for(left, samples, last)
            # In input order, so that the names do not depend on which answer came first.
            for at in left:
                person = found[at]
                if isinstance(person, str):
                    problems[at] = person
                elif person.name in names:
                    last[at] = person
                else:
                    names.add(person.name)
                    people[at] = person
            left = [at for at in left if at not in people]
        for at in left:
            if (known := last.get(at)) is not None:
                name = names.unused([known.name])
                names.add(name)
                people[at] = known.model_copy(update={"name": name})
            else:
                people[at] = self._template(at, samples[at], names)
        made = [at for at in left if at not in last]
        if made:
            warnings.warn(
                f"the model could not make {len(made)} of {len(samples)} people; they are templates instead "
                f"(numbers {', '.join(map(str, made[:5]))}{', …' if len(made) > 5 else ''}): {problems[made[0]]}.",
                ArbiterWarning,
                stacklevel=callers(),
            )
        return [people[at] for at in range(len(samples))]

    def _ask_for(
        self, numbers: Sequence[int], samples: Sequence[Sample], last: dict[int, Person]
    ) -> dict[int, Person | str]:
        """Ask for these people; a text is the reason why there is none."""
        assert self._asking is not None
        prompts = [person_prompt(self.profile, samples[at], last.get(at)) for at in numbers]
        # Each thread keeps the context, in which a harness counts the calls of models.
        with ContextThreadPoolExecutor(max_workers=self._concurrency) as pool:
            people = pool.map(self._asking.person, prompts, numbers)
            return dict(zip(numbers, people, strict=True))


class _Asking:
    """A model, and what it has answered."""

    def __init__(self, model: ChatModel, cache: str | Path | None) -> None:
        self.calls = 0
        self.usages: list[UsageMetadata | None] = []
        self._model = model
        self._settings = judge_settings(ChatJudge(model, temperature=None))
        self._path = cache
        self._opened: Cache | None = None
        self._lock = threading.Lock()

    def value(self, stage: str, schema: type[T], prompt: Sequence[BaseMessage]) -> T:
        """The answer to a question, from the cache or from the model. Raises `FactoryError`."""
        value, problem = self._value(stage, schema, prompt)
        if value is None:
            raise FactoryError(stage, problem)
        return value

    def person(self, prompt: Sequence[BaseMessage], number: int) -> Person | str:
        """A person; the reason if there is none. Equal questions about two people have two answers."""
        try:
            value, problem = self._value(f"person {number}", Person, prompt)
        except Exception as error:
            return describe(error)[:500]
        return problem if value is None else value

    def _value(self, stage: str, schema: type[T], prompt: Sequence[BaseMessage]) -> tuple[T | None, str]:
        asked = [stage, [(message.type, str(message.text)) for message in prompt], schema.model_json_schema()]
        key = digest(["factory", self._settings, asked])
        cache = self._cache()
        if cache is not None and (kept := cache.get(key)) is not None:
            with suppress(ValidationError):  # else it is asked again
                return schema.model_validate(kept), ""
        answer = ask(self._model, prompt, schema)
        with self._lock:
            self.calls += answer.attempts
            self.usages.append(answer.usage)
        if answer.value is not None and cache is not None:
            cache.put(key, answer.value.model_dump(mode="json"))
        return answer.value, answer.problem

    def _cache(self) -> Cache | None:
        with self._lock:
            if self._opened is None and self._path is not None:
                self._opened = Cache(self._path)
            return self._opened


def _check_size(n: int) -> None:
    if type(n) is not int or n < 1:
        raise ConfigurationError(f"AgentFactory: n: expected a whole number above 0, got {n!r:.80}.")
