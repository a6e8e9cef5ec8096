"""The chart's values are documented by their schema, as editors and `helm show` users read it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.rendering import CHART

Json = dict[str, Any]
SCHEMA: Json = json.loads((CHART / "values.schema.json").read_text())
VALUES: Json = yaml.safe_load((CHART / "values.yaml").read_text())
FREE = frozenset(
    {"config", "nodeSelector", "labels", "requests", "limits"}
)  # maps whose keys are the user's, or Kubernetes' own
OPTIONAL = frozenset({"global", "config.discovery", "resources.limits.cpu", "shardResources.limits.cpu"})
"""In the schema and not in values.yaml: Helm's own, an alternative to targets, and what is refused."""


def resolved(schema: Json, of: Json) -> Json:
    """Without references; what is beside one stays."""
    for part in [schema, *schema.get("allOf", [])]:
        if "$ref" in part:
            found: Any = of
            for name in part["$ref"].removeprefix("#/").split("/"):
                found = found[name]
            return {**found, **schema}
    return schema


def described(schema: Json, of: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, description) of each property; of an entry of a list by the list's path."""
    schema = resolved(schema, of)
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner.get("description", "")
        yield from described(inner, of, f"{path}{name}.")
    if "items" in schema:
        yield from described(schema["items"], of, path)


def keys(values: Json, path: str = "") -> Iterator[str]:
    """Paths of all keys that the chart has, but for the entries of lists and of free maps."""
    for name, inner in values.items():
        yield f"{path}{name}"
        if isinstance(inner, dict) and name not in FREE:
            yield from keys(inner, f"{path}{name}.")


def undocumented(schema: Json) -> set[str]:
    """Keys of values.yaml that the schema does not have, and keys of the schema that it does not describe in a sentence."""
    texts = dict(described(schema, schema))
    return {key for key in keys(VALUES) if key not in texts} | {
        key
        for key, text in texts.items()
        if len(text.split()) < 3 or not text[0].isupper() | text.startswith("true:") or text[-1] != "."
    }


def test_every_value_is_described() -> None:
    """In a sentence; and what the schema has besides is known."""
    assert undocumented(SCHEMA) == set()
    lists = {"secrets.name", "secrets.mountPath", "networkPolicy.egress.to", "networkPolicy.egress.ports"}
    assert {key for key, _ in described(SCHEMA, SCHEMA)} - set(keys(VALUES)) == OPTIONAL | lists | {"config.targets"}


def test_one_that_is_not_is_told() -> None:
    """The test above can fail: without a description, and without a key."""
    schema = copy.deepcopy(SCHEMA)
    del schema["properties"]["replicas"]["description"]
    del schema["properties"]["image"]
    assert {"replicas", "image"} <= undocumented(schema)
