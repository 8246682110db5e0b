"""`arbiter explain`: a rule in words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from arbiter._constitution.kinds import KINDS, UNCLEAR, class_at, parameter_rows, parameters_of
from arbiter._constitution.loading import SECTIONS, SHIPPED, Constitution, load_constitution, shipped_names
from arbiter._contracts import Contract
from arbiter._objects import import_from_here
from arbiter._values.versions import path_of
from arbiter.cli._models import StandIns
from arbiter.errors import ConfigurationError, nearest


def explain_rule(name: str, source: list[str] | None, allow: tuple[str, ...]) -> None:
    """Print what the rule `name` of that constitution does.

    Without a constitution, look in the packs that ship and among the built-in kinds.
    """
    console = Console(highlight=False)
    import_from_here()
    constitutions = _constitutions(source, allow)
    rules = _rules(constitutions)
    if name == "records" and name not in rules:
        _explain_records(constitutions, console)
        return
    if name in rules:
        for contract, given in rules[name]:
            _explain(contract, given, console)
        return
    kinds = {use: path for section in SECTIONS for use, path in KINDS[section].items()}
    found = [path for section in SECTIONS for use, path in KINDS[section].items() if use == name]
    if not found:
        hint = f" {UNCLEAR[name]}" if name in UNCLEAR else nearest(name, [*rules, *kinds])
        raise ConfigurationError(
            f"there is no rule or kind {name!r}.{hint} Rules: {', '.join(sorted(rules)) or 'none'}. "
            f"Kinds: {', '.join(sorted(kinds))}."
        )
    for path in found:
        _describe(class_at(path), name, console)


_Rule = tuple[Contract, Mapping[str, Any]]
"""A rule, and the parameters that its declaration gives."""


def _constitutions(source: list[str] | None, allow: tuple[str, ...]) -> list[Constitution]:
    sources = [source] if source else [[SHIPPED + name] for name in shipped_names()]
    return [load_constitution(each, allow=allow, models=StandIns()) for each in sources]


def _rules(constitutions: Sequence[Constitution]) -> dict[str, list[_Rule]]:
    rules: dict[str, list[_Rule]] = {}
    for constitution in constitutions:
        for contract in constitution.contracts:
            known = rules.setdefault(contract.name, [])
            if contract.source not in [other.source for other, _ in known]:
                known.append((contract, constitution.given[f"{contract.kind}s.{contract.name}"]))
    return rules


def _explain_records(constitutions: Sequence[Constitution], console: Console) -> None:
    """Print what a ledger keeps under these constitutions."""
    found = [constitution.records for constitution in constitutions if constitution.records is not None]
    if not found:
        raise ConfigurationError(
            "no pack says what is recorded: there is no `records:`, so the options of the ledger hold."
        )
    for records in found:
        console.print(Text("records", style="bold"), Text(records.source, style="dim"))
        days = "as the ledger" if records.keep_days is None else f"{records.keep_days:g} days"
        told = {
            "states": records.states or "as the ledger",
            "fields": ", ".join(records.keys) or "the built-in ones",
            **{f"pattern {name}": pattern for name, pattern in records.patterns.items()},
            "detect": ", ".join(records.detectors) or "nothing",
            "kept for": days,
        }
        console.print(_table((key, Text(value)) for key, value in told.items()))


def _explain(contract: Contract, given: Mapping[str, Any], console: Console) -> None:
    own = path_of(type(contract))
    use = next((use for kinds in KINDS.values() for use, path in kinds.items() if path == own), own)
    title = f"{contract.kind} {contract.name} ({use})"
    console.print(Text(title, style="bold"), Text(contract.source, style="dim"))
    told = _told(type(contract))
    if contract.description and not told.startswith(contract.description):  # a function's is its first line
        console.print(Text(contract.description))
    console.print(Text(told))
    console.print(_table((key, Text(value)) for key, value in _parameters(contract, given).items()))


def _table(rows: Iterable[tuple[str, Text]]) -> Table:
    """Names with their explanations."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for key, value in rows:
        table.add_row(Text(key, style="cyan"), value)
    return table


def _told(kind: type[Any]) -> str:
    """Its docstring with one line per paragraph, because the terminal wraps them."""
    return re.sub(r"(?<!\n)\n(?![\s-])", " ", inspect.getdoc(kind) or "")


def _parameters(contract: Contract, given: Mapping[str, Any]) -> dict[str, str]:
    instructions, nodes = contract.target_instructions, contract.target_nodes
    targets = [
        "" if instructions is None else " or ".join(map(str, instructions)),
        "" if nodes is None else "node " + " or ".join(nodes),
    ]
    told = {"mode": contract.mode, "applies to": ", ".join(filter(None, targets)) or "every node"}
    for key in parameters_of(type(contract)).model_fields:
        if key not in ("target_instructions", "target_nodes") and (key in given or hasattr(contract, key)):
            # A contract need not keep its parameters under their names.
            value: Any = getattr(contract, key, given.get(key))
            told[key] = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return told


def _describe(kind: type[Any], use: str, console: Console) -> None:
    console.print(Text(use, style="bold"), Text(path_of(kind), style="dim"))
    console.print(Text(_told(kind)))
    rows: list[tuple[str, Text]] = []
    for row in parameter_rows(kind):
        default = row.default if row.default == "required" else f"default {row.default}"
        rows += [(row.name, Text(f"{row.expected}; {default}", style="dim")), ("", Text(row.sentence))]
    console.print(_table(rows))
