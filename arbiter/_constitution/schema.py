"""JSON Schemas for editors, made from the models of a pack file and the parameters of each kind."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from arbiter._constitution.kinds import KINDS, class_at, parameters_of
from arbiter._constitution.loading import SECTIONS
from arbiter._constitution.pack_file import Binding, DomainCore, PackFile, RuleHead
from arbiter.instructions import Instruction, known_instructions


@cache
def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a pack file, with the parameters of every built-in kind."""
    schema = PackFile.model_json_schema()
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    for section in SECTIONS:
        for use, path in KINDS[section].items():
            definitions[f"{section}.{use}"] = _rule_schema(use, path, definitions)
        own = {
            "allOf": [{"$ref": "#/$defs/rule"}],
            "properties": {
                "use": {"pattern": r"\.", "description": "The dotted path of a class or function of yours."}
            },
            "required": ["name", "use"],
        }
        change = {
            "allOf": [{"$ref": "#/$defs/rule"}],
            "not": {"required": ["use"]},
            "description": "Changes the rule of that name in a pack that this one extends.",
        }
        definitions[f"{section}.own"], definitions[f"{section}.change"] = own, change
        names = [f"{section}.{use}" for use in (*KINDS[section], "own", "change")]
        schema["properties"][section]["items"] = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    head = RuleHead.model_json_schema()
    definitions["rule"] = {"type": "object", "properties": head["properties"], "required": ["name"]}
    for model in (Binding, DomainCore):
        found = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(found.pop("$defs", {}))
        definitions[model.__name__] = found
    schema["properties"]["instructions"]["items"] = {
        "anyOf": [{"$ref": "#/$defs/Binding"}, {"$ref": "#/$defs/DomainCore"}]
    }
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An Arbiter pack",
        **{key: value for key, value in schema.items() if key != "title"},
    }
    built_in = (each for each in known_instructions() if type(each).__module__ == Instruction.__module__)
    names = [str(instruction) for instruction in built_in]
    definitions["instruction"] = {"anyOf": [{"enum": names}, {"type": "string", "minLength": 1}]}
    return cast("dict[str, Any]", _with_instructions(whole))


def _with_instructions(schema: Any) -> Any:
    """The same, with a reference to the one definition of the instructions wherever one stands."""
    members: Any = schema
    if isinstance(schema, list):
        return list(map(_with_instructions, members))
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    parts = {key: _with_instructions(part) for key, part in given.items() if key != "$comment"}
    return {"$ref": "#/$defs/instruction", **parts} if "$comment" in given else parts


def _rule_schema(use: str, path: str, definitions: dict[str, Any]) -> dict[str, Any]:
    model = parameters_of(class_at(path))
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(schema.pop("$defs", {}))
    head = RuleHead.model_json_schema()["properties"]
    return {
        **schema,
        "title": use,
        "properties": {**head, "use": {**head["use"], "const": use}, **schema.get("properties", {})},
        "required": ["name", "use", *schema.get("required", ())],
    }
