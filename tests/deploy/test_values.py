"""The chart's values are documented: in values.yaml, and from there in the schema, as editors read it, and in the chart's README."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import CHART
from tools.chart_values import descriptions, values_table, with_descriptions

Json = dict[str, Any]
TEXT = (CHART / "values.yaml").read_text()
SCHEMA: Json = json.loads((CHART / "values.schema.json").read_text())
OPTIONAL = frozenset({"global", "enabled"})
"""In the schema and not in values.yaml: those that parent charts give."""
SMALL = """
# A remark.
# -- The engine.
engine:
  # -- Its port.
  port: 8000
  # not described
  host: "a"
# -- Names of models.
models: [one]
"""


def properties(schema: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, description) of each property; those of config are in docs/configuration.md, others of Kubernetes and the operator."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner.get("description", "")
        if name not in ("config", "affinity", "namespaceSelector"):
            yield from properties(inner, f"{path}{name}.")


def test_every_value_is_described() -> None:
    """In a sentence. The schema has no value that values.yaml has not, but for those of parent charts."""
    texts = dict(properties(SCHEMA))
    assert texts.keys() - descriptions(TEXT).keys() == OPTIONAL
    assert [key for key, text in texts.items() if len(text.split()) < 3 or text[-1] != "."] == []


def test_every_key_of_the_file_is_described() -> None:
    """Itself, or by the block that it is a part of."""
    described = descriptions(TEXT)
    for key, value in yaml.safe_load(TEXT).items():
        assert key in described
        inner = {f"{key}.{name}" for name in value} if isinstance(value, dict) else set()
        assert not inner & described.keys() or inner <= described.keys(), key


def test_descriptions_are_read_from_comments() -> None:
    """Of nested values by their path; other comments are none."""
    assert descriptions(SMALL) == {"engine": "The engine.", "engine.port": "Its port.", "models": "Names of models."}


def test_the_table_has_defaults() -> None:
    """As JSON; a block has none, and a long one is left to the file."""
    text = SMALL + f"# -- Many names.\nmany: {['name'] * 20}\n"
    assert values_table(text).splitlines()[2:] == [
        "| `engine` | The engine. |  |",
        "| `engine.port` | Its port. | `8000` |",
        '| `models` | Names of models. | `["one"]` |',
        "| `many` | Many names. | in values.yaml |",
    ]


def test_a_described_value_without_a_schema_is_told() -> None:
    """By its path."""
    with pytest.raises(KeyError, match=r"no value engine\.port"):
        with_descriptions('{"properties": {"engine": {"properties": {}}}}', SMALL)
