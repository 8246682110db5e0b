"""The layers of `arbiter/`, its public names, and what importing it brings with it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import arbiter

PACKAGE = Path(arbiter.__file__).parent


def _name(path: Path) -> str:
    """`checkers/budget.py` as "checkers.budget", and `checkers/__init__.py` as "checkers"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"}

LAYERS = (
    # Lowest first. Modules of one layer stand side by side; a module imports from its own layer and below.
    {"errors", "states", "facts", "stored", "calls", "version", "copies"},
    {"instructions", "verdicts", "models", "prices"},
    {"history", "results", "recorder", "rendering", "shadow"},
    {"contracts", "policy", "evaluation", "advice", "values", "conditions"},
    {"checkers", "routers", "evaluators", "advisors", "packs", "kinds", "constitution"},
    {"personas", "memory"},
    {"evaluations", "registry"},
    {"lifecycle"},
    {"drivers", "core"},
    {"weaving"},
    {"functions"},
    {"linting"},
    {"arbiter_os"},
    {"cli"},
    {"__main__"},
)
RANK = {noun: rank for rank, layer in enumerate(LAYERS) for noun in layer}


def noun(module: str) -> str:
    """The folder or top-level module that a module is, or is part of."""
    return module.partition(".")[0]


PRIVATE = {
    "weaving.asking": {"langgraph._internal._constants"},
    "weaving.channel": {"langgraph._internal._constants", "langgraph._internal._typing"},
    "weaving.graph": {"langgraph._internal._runnable", "langgraph.pregel._read", "langgraph.pregel._write"},
    "weaving.node": {
        "langgraph._internal._config",
        "langgraph._internal._constants",
        "langgraph._internal._runnable",
        "langgraph.pregel._retry",
    },
    "weaving.sequence": {"langgraph._internal._runnable"},
    "weaving.writers": {"langgraph._internal._constants", "langgraph.pregel._write"},
    "weaving.govern": {"langgraph.pregel._read"},
    "arbiter_os": {"langgraph._internal._runnable"},
}
"""Who may touch which of LangGraph's private modules. Keep it small."""

BUILT_INS = {"checkers", "routers", "evaluators", "advisors"}
HELPERS = {"conditions", "models", "prices", "values"}
"""What several built-ins share, and a user can use too."""
CONTRACTS = {"contracts", "policy", "evaluation", "advice"}


def imports(path: Path, *, at_import: bool = False) -> set[str]:
    """The modules that a file imports; with `at_import`, only what importing it runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in executed(tree) if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute"
            assert node.module is not None
            found.add(node.module)
    return found


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: no function bodies, no `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from executed(node)


def own(found: set[str]) -> set[str]:
    """Of those modules, the ones of `arbiter`, by their short names."""
    return {name.removeprefix("arbiter.") for name in found if name.startswith("arbiter.")}


def is_private(module: str) -> bool:
    return module.startswith("langgraph") and any(part.startswith("_") for part in module.split("."))


def test_every_module_has_a_layer() -> None:
    """A new module says where it stands."""
    assert set(RANK) == {noun(module) for module in MODULES}
    assert sum(map(len, LAYERS)) == len(RANK)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module: str) -> None:
    """No module imports upward when it is imported."""
    found = own(imports(MODULES[module], at_import=True))
    upward = {name for name in found if RANK[noun(name)] > RANK[noun(module)]}
    assert not upward


def test_imports_have_no_circle() -> None:
    """Of two modules in one layer, one does not need the other."""
    needed = {name: own(imports(path, at_import=True)) for name, path in MODULES.items()}
    done: set[str] = set()
    while ready := {name for name, below in needed.items() if name not in done and below <= done}:
        done |= ready
    assert done == set(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_only_the_weaving_touches_langgraphs_inner_parts(module: str) -> None:
    """The two others find out about a graph before it is woven, and how LangGraph calls a function."""
    private = {name for name in imports(MODULES[module]) if is_private(name)}
    assert private == PRIVATE.get(module, set())


@pytest.mark.parametrize("module", sorted(name for name in MODULES if noun(name) in BUILT_INS))
def test_built_ins_depend_on_the_contracts_only(module: str) -> None:
    """What ships with Arbiter could have been written by a user."""
    values = {"errors", "instructions", "verdicts", "history", "states"}
    assert {noun(name) for name in own(imports(MODULES[module]))} <= CONTRACTS | values | BUILT_INS | HELPERS


def test_packs_know_nothing_of_langgraph() -> None:
    """Packs depend on the contracts and the built-ins, never on the weaving."""
    found = imports(MODULES["packs"])
    assert not {name for name in found if name.startswith("langgraph")}
    assert {noun(name) for name in own(found)} <= CONTRACTS | BUILT_INS | {
        "errors",
        "instructions",
        "verdicts",
    }


def test_the_package_is_the_list_of_public_names_and_nothing_else() -> None:
    """`__init__` imports names and lists them; `__all__` has what is public, sorted."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    docstring, *statements, listed = tree.body
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


@pytest.mark.parametrize("name", sorted(set(arbiter.__all__) - {"__version__"}))
def test_public_names_say_what_they_are(name: str) -> None:
    """Each public class has a docstring of its own, and so has each public method that it defines."""
    member: type = getattr(arbiter, name)
    assert vars(member).get("__doc__")
    missing = [
        method
        for method, function in vars(member).items()
        if inspect.isfunction(function) and not method.startswith("_") and not documented(member, method)
    ]
    assert set(missing) <= SELF_EVIDENT.get(name, set())


SELF_EVIDENT = {
    "Contract": {"applies_to"},
    "History": {"items"},
    "Verdict": {"allow", "deny", "ask"},
    "Correction": {"retry", "give_up"},
}
"""Methods whose name and types, or whose class, say it all."""


def documented(owner: type, method: str) -> bool:
    """Whether the method, or the one that it overrides, has a docstring."""
    return any(getattr(vars(base)[method], "__doc__", None) for base in owner.__mro__ if method in vars(base))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_module_says_what_it_is_for(module: str) -> None:
    """The first thing in a module is its docstring."""
    assert ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))


def test_importing_arbiter_brings_little_that_langgraph_has_not_brought() -> None:
    """What is optional, or needed to print or to load packs only, is imported where it is used."""
    brought = modules_after("import arbiter") - modules_after("import langgraph.graph")
    foreign = {name.partition(".")[0] for name in brought if not name.startswith("_cython")}
    assert foreign <= {"arbiter"}
    assert "arbiter.rendering" not in brought


def test_the_package_has_the_version_that_is_installed() -> None:
    assert arbiter.__version__ == version("arbiteros")


def test_govern_is_a_method_and_no_module() -> None:
    """`from arbiter import govern` fails at once, instead of importing a module that cannot be called."""
    with pytest.raises(ImportError):
        importlib.import_module("arbiter.govern")
    assert not hasattr(arbiter, "govern")


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after that statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE.parent,
    )
    return set(json.loads(done.stdout))
