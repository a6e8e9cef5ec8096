"""The values of a chart, as its values.yaml describes them: for its README.md and its values.schema.json.

A description is a comment that begins with `# --`, on the line before its key.
"""

import json
import re
from typing import Any

import yaml

COMMENT, KEY = re.compile(r" *# -- (.+)"), re.compile(r"( *)([A-Za-z]\w*):")
INDENT = 2
LONGEST_DEFAULT = 90  # of characters that a column of a table takes


def descriptions(text: str) -> dict[str, str]:
    """Return the description of each described value of a values.yaml, by its path."""
    described: dict[str, str] = {}
    path: list[str] = []
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if not (key := KEY.match(line)):
            continue
        path = [*path[: len(key[1]) // INDENT], key[2]]
        if comment := COMMENT.fullmatch(before):
            described[".".join(path)] = comment[1]
    return described


def values_table(text: str) -> str:
    """Return a table in Markdown: every described value with its default."""
    described = descriptions(text)
    rows = ["| value | meaning | default |", "|---|---|---|"]
    for path, description in described.items():
        default: Any = yaml.safe_load(text)
        for key in path.split("."):
            default = default[key]
        is_block = any(other.startswith(f"{path}.") for other in described)
        shown = "" if is_block else json.dumps(default, ensure_ascii=False)
        if len(shown) > LONGEST_DEFAULT:
            shown = "in values.yaml"
        elif shown:
            shown = f"`{shown}`"
        rows.append(f"| `{path}` | {description} | {shown} |")
    return "\n".join(rows) + "\n"


def with_descriptions(schema: str, text: str) -> str:
    """Return the JSON Schema with the descriptions of the values.yaml at its properties; others keep their own."""
    document = json.loads(schema)
    for path, description in descriptions(text).items():
        place = document
        for key in path.split("."):
            place = place["properties"].get(key)
            if place is None:
                raise KeyError(f"values.schema.json has no value {path}, which values.yaml describes")
        constraints = {name: part for name, part in place.items() if name != "description"}
        place.clear()
        place.update({"description": description, **constraints})
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def with_configuration(schema: str, configuration: dict[str, Any]) -> str:
    """Return the JSON Schema of values with the schema of prober.yaml in its definitions: `Configuration`, and what it refers to.

    Helm 3 reads draft 7, which has the parts of a schema in `definitions`. It reads YAML before the prober does, and would write 1.50
    as 1.5 and yes as true: where the prober takes a scalar as it is written, only text and whole numbers are left.
    """
    document = json.loads(schema)
    shared = json.loads(json.dumps(configuration, sort_keys=True).replace('"#/$defs/', '"#/definitions/'))
    parts = shared.pop("$defs")
    for key in (key for part in parts.values() for key in part.get("properties", {}).values()):
        if {"string", "number", "boolean"} <= set(key.get("type", ())):
            key["type"] = [kind if kind != "number" else "integer" for kind in key["type"] if kind != "boolean"]
    del shared["$schema"]
    own = {name: part for name, part in document["definitions"].items() if name[0].islower()}
    return json.dumps(document | {"definitions": own | parts | {"Configuration": shared}})
