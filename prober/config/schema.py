"""JSON Schema and key table of the configuration."""

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from prober.config import models


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, for editors."""
    schema = models.Config.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "llm-slo-prober configuration"
    return schema


def document() -> str:
    """Markdown table of all keys with descriptions, from the models."""
    rows = ["| key | meaning |", "|---|---|"]
    blocks: tuple[tuple[str, type[BaseModel]], ...] = (
        ("defaults", models.Overridable),
        ("slos.NAME", models.Slo),
        ("workloads.NAME", models.WorkloadBlock),
        ("targets[]", models.Target),
        ("discovery[]", models.Discovery),
        ("drift", models.Drift),
        ("storage", models.Storage),
        ("prometheus", models.Prometheus),
        ("grafana", models.Grafana),
    )
    for prefix, model in blocks:
        rows += _rows(prefix, model)
    return "\n".join(rows) + "\n"


def _rows(prefix: str, model: type[BaseModel]) -> list[str]:
    rows: list[str] = []
    own = sorted(model.model_fields.items(), key=lambda each: each[0] not in model.__annotations__)
    for name, field in own:
        if prefix == "targets[]" and name in models.Overridable.model_fields:
            continue  # the same keys as `defaults`, documented there
        nested, listed = _nested(field.annotation)
        if nested is models.Template:
            rows.append(f"| `{prefix}.{name}` | {field.description}: keys of `targets[]` but `url` and `name` |")
            continue
        needed = " (needed)" if field.is_required() else ""
        rows.append(f"| `{prefix}.{name}` | {field.description or ''}{needed} |")
        if nested:
            rows += _rows(f"{prefix}.{name}" + ("[]" if listed else ""), nested)
    return rows


def _nested(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Block model of a key, if it is one, and whether the key holds a list of blocks."""
    kinds = [each for each in get_args(annotation) if each is not NoneType]
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return _nested(kinds[0]) if len(kinds) == 1 else (None, False)
    if get_origin(annotation) is list:
        return _nested(kinds[0])[0], True
    found = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return (annotation if found else None), False
