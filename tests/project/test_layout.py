"""The layers of `arbiter/`, its public names, and what importing it brings with it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

import arbiter
from tests.docs_check import ROOT

PACKAGE = Path(arbiter.__file__).parent


def _name(path: Path) -> str:
    """`checkers/budget.py` as "checkers.budget", `checkers/__init__.py` as "checkers", the package as "__init__"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}

LAYERS = (
    # Lowest first. Modules of one layer stand side by side; a module imports from its own layer and below.
    {"errors", "_threads", "_values"},
    {"instructions", "verdicts", "models", "redaction", "_databases"},
    {"history"},
    {"_contracts", "policy", "evaluation", "advice", "plugins", "listening", "_conditions"},
    {"checkers", "routers", "evaluators", "advisors"},
    {"_constitution", "packs"},
    {"_lifecycle"},
    {"_weaving"},
    {"linting"},
    {"arbiter_os", "testing", "_objects"},
    {"__init__"},
    {"personas", "memory", "ledger"},
    {"telemetry", "store"},
    {"statistics"},
    {"harness"},
    {"experiments"},
    {"web"},
    {"cli"},
    {"__main__"},
)
RANK = {noun: rank for rank, layer in enumerate(LAYERS) for noun in layer}


def noun(module: str) -> str:
    """The folder or top-level module that a module is, or is part of."""
    return module.partition(".")[0]


PRIVATE = {
    "_weaving.asking": {"langgraph._internal._constants"},
    "_weaving.channel": {"langgraph._internal._constants", "langgraph._internal._typing"},
    "_weaving.graph": {"langgraph._internal._runnable", "langgraph.pregel._read", "langgraph.pregel._write"},
    "_weaving.node": {
        "langgraph._internal._config",
        "langgraph._internal._constants",
        "langgraph._internal._runnable",
        "langgraph.pregel._retry",
    },
    "_weaving.runtimes": {"langgraph._internal._constants"},
    "_weaving.sequence": {"langgraph._internal._runnable"},
    "_weaving.writers": {"langgraph._internal._constants", "langgraph.pregel._write"},
    "_weaving.govern": {"langgraph.pregel._read"},
    "arbiter_os": {"langgraph._internal._runnable"},
}
"""Who may touch which of LangGraph's private modules. Keep it small."""

BUILT_INS = {"checkers", "routers", "evaluators", "advisors"}
HELPERS = {"_conditions", "_values", "models"}
"""What several built-ins share, and a user can use too."""
CONTRACTS = {"_contracts", "policy", "evaluation", "advice"}
GUESTS = {"personas", "memory", "ledger", "telemetry", "store"}
"""Folders on top of Arbiter. The core imports none of them."""


@cache
def source(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


TEXT = re.compile(r"""(\"{3}|'{3})(?:\\.|[^\\])*?\1|(["'])(?:\\.|[^\\\n])*?\2|#[^\n]*""", re.DOTALL)
IMPORT = re.compile(r"^ *((?:from \S+ )?import (?:\([^)]*\)|.*))", re.MULTILINE)


def statements(module: str) -> ast.Module:
    """The import statements of a module. Parsing all of its lines takes thirty times as long."""
    text = MODULES[module].read_text(encoding="utf-8")
    return ast.parse("\n".join(IMPORT.findall(TEXT.sub("", text))))


@cache
def imports(module: str) -> frozenset[str]:
    """All modules that a module imports: when it is imported, in a function, or for types only."""
    return imported_by(statements(module), module)


def imported_by(tree: ast.Module, module: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in names if _is_own(name)}
            found |= modules if modules == names else {node.module, *modules}
    return frozenset(found)


def _is_own(name: str) -> bool:
    return name.startswith("arbiter.") and name.removeprefix("arbiter.") in MODULES


def own(module: str) -> set[str]:
    """The modules of `arbiter` that a module imports, by their short names."""
    found = {name.removeprefix("arbiter.") for name in imports(module) if name.startswith("arbiter.")}
    return found | {"__init__"} if "arbiter" in imports(module) else found


def nouns(module: str) -> set[str]:
    return {noun(name) for name in own(module)}


def is_private(module: str) -> bool:
    return module.startswith("langgraph") and any(part.startswith("_") for part in module.split("."))


def circles(needed: Mapping[str, Iterable[str]]) -> list[str]:
    """The circles of a graph. Of each one arrow is left out before the next is looked for."""
    left = {name: sorted(below) for name, below in needed.items()}
    found: list[str] = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as exc:
            needs = list(reversed(exc.args[1]))
            found.append(" -> ".join(needs))
            left[needs[0]].remove(needs[1])
        else:
            return found


def rooms(folder: str) -> dict[str, set[str]]:
    """The other files and folders of the same folder that each file or folder imports; "" is the package.

    The folder's own `__init__` does not count: it hands on the names of all.
    """
    prefix = f"{folder}." if folder else ""
    needed: dict[str, set[str]] = {}
    for module in MODULES:
        if module.startswith(prefix) and module != "__init__":
            room = noun(module.removeprefix(prefix))
            others = {noun(name.removeprefix(prefix)) for name in own(module) if name.startswith(prefix)}
            needed.setdefault(room, set()).update(others - {room, "__init__"})
    return needed


@pytest.mark.slow
def test_the_imports_of_a_module_are_those_that_the_parser_finds() -> None:
    assert {module: imports(module) for module in MODULES} == {
        module: imported_by(source(module), module) for module in MODULES
    }


def test_every_module_has_a_layer() -> None:
    """A new module says where it stands."""
    assert set(RANK) == {noun(module) for module in MODULES}
    assert sum(map(len, LAYERS)) == len(RANK)


def test_the_map_for_contributors_has_every_room() -> None:
    """Lowest layer first, apart from the package itself and its command."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)/?`", "".join(re.findall(r"^\| (`.+?) \|", text, re.M)))
    assert sorted(named) == sorted(RANK.keys() - {"__init__", "__main__"})
    assert named == sorted(named, key=lambda room: RANK[room])


@pytest.mark.lengthy
def test_imports_point_one_way() -> None:
    """No module imports upward, also not for types or in a function."""
    upward = [
        f"{module} -> {name}"
        for module in MODULES
        for name in sorted(own(module))
        if RANK[noun(name)] > RANK[noun(module)]
    ]
    assert not upward


def test_imports_have_no_circle() -> None:
    """Of two modules, one does not need the other."""
    assert not circles({module: own(module) for module in MODULES})


def test_rooms_have_no_circle() -> None:
    """Of two files or folders side by side, one does not need the other."""
    folders = {"", *(name for name, path in MODULES.items() if path.name == "__init__.py")} - {"__init__"}
    found = {folder: circles(rooms(folder)) for folder in sorted(folders)}
    assert not {folder: circle for folder, circle in found.items() if circle}


def test_only_the_weaving_touches_langgraphs_inner_parts() -> None:
    """The two others find out about a graph before it is woven, and how LangGraph calls a function."""
    private = {module: {name for name in imports(module) if is_private(name)} for module in MODULES}
    assert {module: found for module, found in private.items() if found} == PRIVATE


def test_built_ins_depend_on_the_contracts_only() -> None:
    """A user could have written the rules that ship with Arbiter."""
    values = {"_threads", "errors", "instructions", "verdicts", "history"}
    allowed = CONTRACTS | values | BUILT_INS | HELPERS
    beyond = {module: nouns(module) - allowed for module in MODULES if noun(module) in BUILT_INS}
    assert not {module: found for module, found in beyond.items() if found}


def test_personas_and_memory_know_nothing_of_the_core() -> None:
    """They stand on the contracts, and the core does not know them. Replay alone goes through the lifecycle's
    stages: it has to decide as a live run does. Memory's access to stores alone asks the weaving for what
    LangGraph's own do not say.
    """
    core = {name for layer in LAYERS[RANK["_lifecycle"] : RANK["personas"]] for name in layer}
    guests = [name for name in MODULES if noun(name) in GUESTS and not name.startswith("ledger.replaying.")]
    beyond = {module: nouns(module) & core for module in guests}
    assert {module: found for module, found in beyond.items() if found} == {
        "memory.stores._access": {"_weaving"}
    }
    assert "arbiter._weaving.stores" in imports("memory.stores._access")


def test_packs_know_nothing_of_langgraph() -> None:
    """Packs depend on the contracts and the built-ins, never on the weaving."""
    below = (
        CONTRACTS
        | BUILT_INS
        | HELPERS
        | {"_constitution", "_threads", "errors", "history", "instructions", "redaction", "verdicts"}
    )
    packs = [module for module in MODULES if noun(module) in ("_constitution", "packs")]
    assert not [name for module in packs for name in imports(module) if name.startswith("langgraph")]
    assert not {module: nouns(module) - below for module in packs if not nouns(module) <= below}


def test_the_package_is_the_list_of_public_names_and_nothing_else() -> None:
    """`__init__` imports names and lists them; `__all__` has what is public, sorted."""
    docstring, *statements, listed = source("__init__").body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(listed, ast.Assign)
    imported = [
        alias.asname or alias.name
        for statement in statements
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]
    assert len(statements) == sum(isinstance(s, ast.ImportFrom) for s in statements)
    assert arbiter.__all__ == sorted(imported)
    assert all(hasattr(arbiter, name) for name in arbiter.__all__)


def test_public_names_say_what_they_are() -> None:
    """Each public class or function has a docstring of its own, and so has each public method that it defines."""
    members: dict[str, type] = {name: getattr(arbiter, name) for name in arbiter.__all__ if name[0] != "_"}
    assert not [name for name, member in members.items() if not member.__doc__]
    missing = {
        f"{name}.{method}"
        for name, member in members.items()
        for method, function in vars(member).items()
        if inspect.isfunction(function) and method[0] != "_" and not documented(member, method)
    }
    assert not missing


def documented(owner: type, method: str) -> bool:
    """Whether the method, or the one that it overrides, has a docstring."""
    return any(getattr(vars(base)[method], "__doc__", None) for base in owner.__mro__ if method in vars(base))


def test_every_module_says_what_it_is_for() -> None:
    """The first thing in a module is its docstring."""
    assert not [
        name for name, path in MODULES.items() if not path.read_text(encoding="utf-8").startswith('"""')
    ]


@pytest.mark.lengthy
def test_importing_arbiter_brings_little_that_langgraph_has_not_brought() -> None:
    """Optional packages, and modules that only print or load packs, are imported where they are used."""
    brought = modules_after("import arbiter") - modules_after("import langgraph.graph")
    foreign = {name.partition(".")[0] for name in brought if not name.startswith("_cython")}
    assert foreign <= {"arbiter"}
    on_top = {"redaction"} | {name for layer in LAYERS[RANK["personas"] :] for name in layer}
    assert not {name for name in brought if name.split(".")[1:2] and name.split(".")[1] in on_top}
    assert "arbiter.history._text" not in brought


def test_the_package_has_the_version_that_is_installed() -> None:
    assert arbiter.__version__ == version("arbiteros")


def test_the_oldest_releases_that_are_tested_are_those_that_extras_allow() -> None:
    """`make bounds` runs what `pyproject.toml` promises: neither changes alone."""
    run = re.search(r"^OLDEST := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert run is not None
    tested = dict(re.findall(r"([\w-]+)==([\d.]+)", run[1]))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = {need for extra in extras["optional-dependencies"].values() for need in extra}
    allowed = {need.partition(">=")[::2] for need in needs if need.partition(">=")[0] in tested}
    assert {name for name, _ in allowed} == {*tested} >= {"alembic", "jinja2", "pyarrow", "ray", "sqlalchemy"}
    for name, least in allowed:
        assert re.fullmatch(rf"{re.escape(least)}(\.0)*", tested[name]), (name, least, tested[name])


def test_the_page_of_installing_names_every_extra() -> None:
    """The extras of developers are left out."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs/installing.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`arbiteros\[([\w-]+)\]`", page))
    assert named == extras["optional-dependencies"].keys() - {"test", "dev"}


def test_govern_is_a_method_and_no_module() -> None:
    """`from arbiter import govern` fails at once, instead of importing a module that cannot be called."""
    with pytest.raises(ImportError):
        importlib.import_module("arbiter.govern")
    assert not hasattr(arbiter, "govern")


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after that statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE.parent,
    )
    return set(json.loads(done.stdout))
