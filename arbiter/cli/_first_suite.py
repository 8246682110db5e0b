"""`arbiter eval init`: a first suite that runs at once, and a workflow that evaluates each pull request."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from arbiter._constitution.loading import FOLDERS
from arbiter._objects import load_graph, load_object
from arbiter._values.files import writing
from arbiter._weaving.graph import facts_channel_of
from arbiter.cli._evaluating import write_schema
from arbiter.errors import ConfigurationError
from arbiter.harness.files import SCHEMA, suite_files
from arbiter.harness.targets import TargetFile, target_of

SUITES = Path("suites")
WORKFLOW = Path(".github/workflows/evaluate.yml")
QUESTIONS = ("Hello", "What can you do?")
"""The texts of the cases for a target. The gate compares two cases or more."""


def write_first_suite(target: str | None, *, github: bool, allow: Sequence[str]) -> list[Path]:
    """Write a suite for a target, or one with an example; with `github` also the workflow.

    A project that has suites gets the workflow alone, unless a target is named. Returns the written files.
    No file is overwritten: if one exists, raises `ConfigurationError` before writing any.
    """
    texts: dict[Path, str] = {}
    if target is not None:
        texts[SUITES / "first.yaml"] = _suite_of(target, allow)
    elif not github or not suite_files():
        texts[SUITES / "first.yaml"] = _HEADER + _EXAMPLE
        texts[SUITES / "first_agent.py"] = _AGENT
    if github:
        root, folder = _place_in_repository()
        texts[root / WORKFLOW] = _workflow(folder)
    for path in texts:
        if path.exists():
            way = ", or copy its job for another folder" if path.name == WORKFLOW.name else ""
            raise ConfigurationError(f"{path} already exists, and nothing was written. Remove it first{way}.")
    for path, text in texts.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    written = list(texts)
    if SUITES / "first.yaml" in texts and not (SUITES / SCHEMA).exists():
        written.append(write_schema(SUITES))
    return written


# The suite ----------------------------------------------------------------------------------------


def _suite_of(where: str, allow: Sequence[str]) -> str:
    """A suite with one case for a graph or function, which is loaded as a run loads it."""
    found = load_object(where, "graph or function")
    if target_of(found, name=where).kind == "graph":
        graph = load_graph(where)
        governed = facts_channel_of(graph) is not None
        constitution = "." if not governed and any(Path(kind).is_dir() for kind in FOLDERS) else None
        TargetFile(graph=where, constitution=constitution, allow=allow).load(None, ())
        entry = {"graph": where, **({"constitution": constitution} if constitution else {})}
        inputs = [_input_of_graph(graph, text) for text in QUESTIONS]
    else:
        entry, inputs = {"function": where}, [_input_of_function(found, text) for text in QUESTIONS]
    shown = ", ".join(f"{key}: {json.dumps(value)}" for key, value in entry.items())
    first, second = (json.dumps(given, ensure_ascii=False) for given in inputs)
    return _HEADER + _OWN.format(target=shown, first=first, second=second)


def _input_of_graph(graph: Any, text: str) -> Any:
    """An input that a graph can take, by the types of its input state, with `text` for its texts."""
    builder = getattr(graph, "builder", graph)
    schema = getattr(builder, "input_schema", None)
    if schema is None:
        return text
    needed = getattr(schema, "__required_keys__", None)
    fields = _of_fields(schema, text).items()
    return {
        name: value
        for name, value in fields
        if name not in builder.managed and (not needed or name in needed)
    }


def _input_of_function(function: Any, text: str) -> Any:
    """An input that a function can take, by the type of its parameter, with `text` for its texts."""
    call = function if inspect.isroutine(function) else type(function).__call__
    hints = [hint for name, hint in _hints(call).items() if name != "return"]
    return _of_type(hints[0], text) if hints else text


def _of_fields(schema: Any, text: str) -> dict[str, Any]:
    return {
        name: [{"role": "user", "content": text}] if name == "messages" else _of_type(hint, text)
        for name, hint in _hints(schema).items()
    }


def _hints(thing: Any) -> dict[str, Any]:
    try:
        return get_type_hints(thing)
    except (NameError, TypeError):  # a type that is known to type checkers only, or none at all
        return {}


def _of_type(hint: Any, text: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return parts[0]
    if origin in (Union, UnionType):
        return _of_type(next(part for part in parts if part is not NoneType), text)
    if is_typeddict(hint):
        return _of_fields(hint, text)
    kind: Any = origin or hint
    if not isinstance(kind, type) or issubclass(kind, str):
        return text
    return next((value for known, value in _VALUES if issubclass(kind, known)), text)


_VALUES: tuple[tuple[type, Any], ...] = (
    (bool, True),
    (int, 1),
    (float, 1.0),
    (Mapping, {}),
    (Sequence, []),
    (AbstractSet, []),
)
"""The value for a type, the narrower type first."""
_HEADER = f"# yaml-language-server: $schema={SCHEMA}\n"
_OWN = """\
# Run it: arbiter eval run suites/first.yaml
suite: first
target: {{{target}}}
scorers:                           # judge whole runs; each is a row of the report
  - {{name: quick, use: seconds, most: 60}}
#  - {{name: right, use: contains}}  # the output contains the `expected` of the case
cases:                             # replace the input by questions of your users, and add more: 20 find a drop
  - id: hello
    input: {first}
#    expected: a text that a good answer contains
    expect: {{completes: true}}
  - id: help
    input: {second}
    expect: {{completes: true}}
gate: {{baseline: baselines/first.json}}
"""
_EXAMPLE = """\
# Run it: arbiter eval run suites/first.yaml
suite: first
target: {function: suites/first_agent.py:answer}   # or `graph: app.py:graph`
scorers:                           # judge whole runs; each is a row of the report
  - {name: right, use: contains}   # the output contains the `expected` of the case
  - {name: quick, use: seconds, most: 60}
cases:                             # replace them by questions of your users, and add more: 20 find a drop
  - {id: france, input: "What is the capital of France?", expected: Paris}
  - {id: italy, input: "What is the capital of Italy?", expected: Rome}
  - id: atlantis
    input: What is the capital of Atlantis?
    expected: I do not know
    must_pass: true                # the run fails if this case does
gate: {baseline: baselines/first.json}
"""
_AGENT = '''\
"""The target of suites/first.yaml. Replace the body of `answer` by a call of your agent."""

CAPITALS = {"France": "Paris", "Italy": "Rome"}


def answer(question: str) -> str:
    for country, capital in CAPITALS.items():
        if country in question:
            return f"The capital of {country} is {capital}."
    return "I do not know."
'''


# The workflow -------------------------------------------------------------------------------------


def _place_in_repository() -> tuple[Path, str]:
    """The root of the git repository, where GitHub reads workflows, and the working directory in it ("" is the root).
    Without a repository, both are the working directory."""
    here = Path.cwd()
    for root in (here, *here.parents):
        if (root / ".git").exists():
            return Path(os.path.relpath(root)), "" if root == here else here.relative_to(root).as_posix()
    return Path(), ""


def _workflow(folder: str) -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = _WORKFLOW.replace("PYTHON", python).replace("PACKAGES", _packages())
    defaults = f"defaults:\n  run:\n    working-directory: {json.dumps(folder)}\n\n" if folder else ""
    return text.replace("DEFAULTS\n", defaults).replace("FOLDER/", f"{folder}/" if folder else "")


def _packages() -> str:
    """The arguments of pip that install Arbiter and the project in the working directory."""
    if Path("requirements.txt").is_file():
        return "arbiteros -r requirements.txt"
    return "arbiteros ." if Path("pyproject.toml").is_file() else "arbiteros"


_WORKFLOW = """\
# Evaluates each pull request: runs the suites, compares them with their baselines, and fails if a row regressed.
# Commit suites/, baselines/ and recordings/. A baseline is measured by `arbiter eval baseline suites/NAME.yaml`.
name: evaluate

on:
  pull_request:
    # What changes the answers. A check that is required has to run always: remove the paths then.
    paths:
      - "FOLDER/**.py"
      - "FOLDER/pyproject.toml"
      - "FOLDER/requirements*.txt"
      - "FOLDER/prompts/**"
      - "FOLDER/personas/**"
      - "FOLDER/instructions/**"
      - "FOLDER/policies/**"
      - "FOLDER/evaluators/**"
      - "FOLDER/suites/**"
      - "FOLDER/cases/**"
      - "FOLDER/baselines/**"
      - "FOLDER/recordings/**"
      - ".github/workflows/evaluate.yml"

permissions:
  contents: read
  pull-requests: write # for the comment

concurrency:
  group: evaluate-${{ github.ref }}
  cancel-in-progress: true

DEFAULTS
jobs:
  evaluate:
    runs-on: ubuntu-latest
    timeout-minutes: 15
    steps:
      - uses: actions/checkout@v6
        with:
          persist-credentials: false
      - uses: actions/setup-python@v6
        with:
          python-version: "PYTHON"
      - name: Install
        run: python -m pip install PACKAGES
      - name: Evaluate
        # With recordings no model is called, and the judges of suites need no key. A model that your graph's file makes
        # may need one; any text will do. Without recordings models are called, and need their keys here:
        # env:
        #   OPENAI_API_KEY: ${{ secrets.OPENAI_API_KEY }}
        run: |
          if ls recordings/*/*.jsonl > /dev/null 2>&1; then
            arbiter eval run --ci --mock
          else
            arbiter eval run --ci
          fi
      - name: Summary
        if: ${{ !cancelled() && hashFiles('FOLDER/.arbiter/evals/*/run.json') != '' }}
        run: arbiter eval comment --ci >> "$GITHUB_STEP_SUMMARY"
      - name: Comment
        # The token of a pull request from a fork can only read.
        if: >-
          ${{ !cancelled() && hashFiles('FOLDER/.arbiter/evals/*/run.json') != ''
          && github.event.pull_request.head.repo.full_name == github.repository }}
        env:
          GITHUB_TOKEN: ${{ github.token }}
          NUMBER: ${{ github.event.pull_request.number }}
        run: arbiter eval comment --ci --pr "$NUMBER"
"""
