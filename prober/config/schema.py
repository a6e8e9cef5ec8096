"""The configuration for machines and for readers: a JSON Schema, and a table of every key."""

from typing import Any

from pydantic import BaseModel

from prober.config import models


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, for editors."""
    schema = models.Config.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "llm-slo-prober configuration"
    return schema


def document() -> str:
    """A Markdown table of every key with its description, from the models."""
    rows = ["| key | meaning |", "|---|---|"]
    blocks: tuple[tuple[str, type[BaseModel]], ...] = (
        ("defaults", models.Overridable),
        ("timeouts", models.Timeouts),
        ("slos.NAME", models.Slo),
        ("workloads.NAME", models.WorkloadBlock),
        ("targets[]", models.Target),
        ("drift", models.Drift),
        ("storage", models.Storage),
        ("prometheus", models.Prometheus),
        ("grafana", models.Grafana),
    )
    for prefix, model in blocks:
        rows += _rows(prefix, model)
    return "\n".join(rows) + "\n"


_NESTED: dict[str, type[BaseModel]] = {
    "probes": models.Probe,
    "budget": models.Budget,
    "auth": models.Auth,
    "tls": models.Tls,
    "metrics": models.Metrics,
    "gpus": models.Gpus,
    "decode_bound": models.DecodeBound,
    "sweep": models.Sweep,
    "guard": models.SweepGuard,
    "limits": models.SweepLimits,
    "prefix": models.PrefixBlock,
    "prompts": models.PromptsFile,
    "trace": models.TraceFile,
    "golden": models.GoldenPrompt,
    "expect": models.Expect,
}


def _rows(prefix: str, model: type[BaseModel]) -> list[str]:
    rows: list[str] = []
    for name, field in model.model_fields.items():
        if prefix == "targets[]" and name in models.Overridable.model_fields:
            continue  # the same keys as `defaults`, documented there
        needed = " (needed)" if field.is_required() else ""
        rows.append(f"| `{prefix}.{name}` | {field.description or ''}{needed} |")
        nested = _NESTED.get(name)
        if nested:
            rows += _rows(f"{prefix}.{name}" + ("[]" if name in ("probes", "golden") else ""), nested)
    return rows
