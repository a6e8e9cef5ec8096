"""The table of keys in the documentation, held against the JSON Schema."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from prober.config.schema import json_schema

SCHEMA = json_schema()
PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
TABLE = PAGE.partition("<!-- generated: keys -->")[2].partition("<!-- end of keys -->")[0]
ROWS = [(match[1], match[2]) for match in re.finditer(r"^\| `([^`]+)` \| (.*?) \|.*$", TABLE, re.MULTILINE)]


def resolved(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a schema may be: without references and alternatives."""
    if "$ref" in schema:
        yield from resolved(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from resolved(each)
    else:
        yield schema


def at(path: str) -> list[dict[str, Any]]:
    """What the schema has at a path of the table; nothing where no configuration can have it."""
    found = [SCHEMA]
    for part in path.split("."):
        key, listed = part.removesuffix("[]"), part.endswith("[]")
        nexts = [
            each["additionalProperties"] if key == "NAME" else each["properties"][key]
            for schema in found
            for each in resolved(schema)
            if (
                isinstance(each.get("additionalProperties"), dict)
                if key == "NAME"
                else key in each.get("properties", {})
            )
        ]
        found = [each["items"] for schema in nexts for each in resolved(schema) if "items" in each] if listed else nexts
    return found


def test_every_row_is_a_key_of_the_configuration() -> None:
    """At its whole path, not only by its last name, and it is told what it means."""
    for path, meaning in ROWS:
        (found,) = at(path)
        assert meaning.startswith(found["description"]), path


def test_every_default_is_written_as_in_a_file() -> None:
    """A default is valid under the schema of its own key: durations and rates have units."""
    validator = jsonschema.validators.validator_for(SCHEMA)
    validator.check_schema(SCHEMA)
    defaults = {
        f"{name}.{key}": schema
        for name, block in {"": SCHEMA, **SCHEMA["$defs"]}.items()
        for key, schema in block.get("properties", {}).items()
        if "default" in schema
    }
    assert len(defaults) > 50
    for key, schema in defaults.items():
        errors = validator({**schema, "$defs": SCHEMA["$defs"]}).iter_errors(schema["default"])
        assert [error.message for error in errors] == [], key


def test_defaults_with_units_are_in_the_schema_and_in_the_table() -> None:
    """Quantities are shown as the file would have them."""
    inherited = SCHEMA["$defs"]["Overridable"]["properties"]
    assert [inherited[key]["default"] for key in ("rate", "connect_lead", "starting_timeout")] == [
        "0.2/s",
        "1s",
        "20m",
    ]
    assert (
        "| `drift.false_alarms` | most false alarms per signal or check of a workload, at most 1/h | 1/30d |" in TABLE
    )


def test_a_path_that_no_configuration_has_is_noticed() -> None:
    """By the same look-up."""
    for path in ("targets[].decode_bound.gpus.indices", "workloads.NAME.trace.file.files", "timeouts"):
        assert at(path) == []


def test_every_block_is_in_the_table() -> None:
    """Each key of a block has a row below the block, or below the block of a target that its row names."""
    told = dict(ROWS)
    for path, meaning in ROWS:
        kinds = [each for schema in at(path) for each in resolved(schema) if each.get("type") != "null"]
        if len(kinds) == 1 and path != "discovery[].target":
            listed = "items" in kinds[0]
            (block,) = resolved(kinds[0]["items"]) if listed else kinds
            within = f"{path}[]" if listed else path
            if of_target := re.search(r" as in `(targets\[\]\.\w+)`", meaning):
                within = of_target[1]
            assert {f"{within}.{key}" for key in block.get("properties", {})} <= told.keys(), path
