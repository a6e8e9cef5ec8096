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
        ("discovery[]", models.Discovery),
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
    "file": models.FileDiscovery,
    "http": models.HttpDiscovery,
    "dns": models.DnsDiscovery,
    "kubernetes": models.KubernetesDiscovery,
    "relabel": models.Relabel,
}
LISTS = ("probes", "golden", "relabel")


def _rows(prefix: str, model: type[BaseModel]) -> list[str]:
    rows: list[str] = []
    own = sorted(model.model_fields.items(), key=lambda each: each[0] not in model.__annotations__)
    for name, field in own:
        if prefix == "targets[]" and name in models.Overridable.model_fields:
            continue  # the same keys as `defaults`, documented there
        if isinstance(field.annotation, type) and issubclass(field.annotation, models.Template):
            rows.append(f"| `{prefix}.{name}` | {field.description}: keys of `targets[]` but `url` and `name` |")
            continue
        needed = " (needed)" if field.is_required() else ""
        rows.append(f"| `{prefix}.{name}` | {field.description or ''}{needed} |")
        nested = _NESTED.get(name)
        if nested:
            rows += _rows(f"{prefix}.{name}" + ("[]" if name in LISTS else ""), nested)
    return rows
