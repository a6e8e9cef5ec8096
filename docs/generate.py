"""Write the parts of docs/ and deploy/ that are generated from the code, or with --check name those that are out of date.

python docs/generate.py [--check]
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

sys.path.insert(0, str(Path(__file__).parents[1]))  # this tree, whichever one is installed
from prober import __version__
from prober.cli.rules import HEAD, as_yaml
from prober.config.configuration import Configuration
from prober.config.schema import default_text, json_schema
from prober.config.server import Auth, TlsSpec
from prober.config.target import Overridable, Template
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import as_operator, groups
from prober.exposition.alerting import RuleOptions
from prober.measure.engine_signals import EngineTable
from prober.measure.engines import DIALECTS, TABLES
from prober.measure.outcome import Outcome, Trait
from prober.web.api_types import BegunAnswer, EventAnswer, PausedAnswer, ProbeAnswer, SweepAnswer
from prober.web.targets import TargetAnswer
from tests import refusals
from tools import shape
from tools.chart_values import values_table, with_configuration, with_descriptions

DOCS = Path(__file__).parent
DEPLOY = DOCS.parent / "deploy"
OPENAPI = DOCS.parent / "prober/static/openapi.json"


def series_table() -> str:
    """Return the table of all exported series."""
    rows = ["| series | type | labels | meaning |", "|---|---|---|---|"]
    for declared in ALL_SERIES:
        labels = ", ".join(f"`{label}`" for label in declared.labels) or "–"
        rows.append(f"| `{declared.name}` | {declared.kind} | {labels} | {declared.help} |")
    return "\n".join(rows) + "\n"


# Blocks whose keys the table has elsewhere.
SHARED_BLOCKS: dict[type[BaseModel] | None, str] = {
    Template: "keys of `targets[]` but `url` and `name`",
    Auth: "`bearer_token_file` as in `targets[].auth`",
    TlsSpec: "keys as in `targets[].tls` but `server_name`",
}


def keys_table() -> str:
    """Return the table of all keys of the configuration, with descriptions and defaults."""
    rows = ["| key | meaning | default |", "|---|---|---|"]
    for name, field in Configuration.model_fields.items():
        model, is_list = _block_of(field.annotation)
        if model is not None:
            rows += _key_rows(f"{name}[]" if is_list else name, model)
        elif get_origin(field.annotation) is dict:
            rows += _key_rows(f"{name}.NAME", get_args(field.annotation)[1])
    return "\n".join(rows) + "\n"


def _key_rows(prefix: str, model: type[BaseModel]) -> list[str]:
    rows: list[str] = []
    own = sorted(model.model_fields.items(), key=lambda item: item[0] not in model.__annotations__)
    for name, field in own:
        if prefix == "targets[]" and name in Overridable.model_fields:
            continue  # the same keys as `defaults`, documented there
        nested, is_list = _block_of(field.annotation)
        if nested in SHARED_BLOCKS and not prefix.startswith("targets[]"):
            rows.append(f"| `{prefix}.{name}` | {field.description}: {SHARED_BLOCKS[nested]} | {_default(field)} |")
            continue
        rows.append(f"| `{prefix}.{name}` | {field.description} | {_default(field)} |")
        if nested:
            rows += _key_rows(f"{prefix}.{name}" + ("[]" if is_list else ""), nested)
    return rows


def _default(field: FieldInfo) -> str:
    """The default for the table; `needed` if there is none, empty if it is null or a block."""
    default = "needed" if field.is_required() else default_text(field)
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def _block_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """(model of a key's block, None if its value is no block; True if the value is a list of blocks)."""
    kinds = [argument for argument in get_args(annotation) if argument is not NoneType]
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return _block_of(kinds[0]) if len(kinds) == 1 else (None, False)
    if get_origin(annotation) is Annotated:
        return _block_of(kinds[0])
    if get_origin(annotation) is tuple:
        return _block_of(kinds[0])[0], True
    is_block = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return (annotation if is_block else None), False


def engines_table() -> str:
    """Return the table of dialects: what is sent to each engine beyond the specification."""
    rows = [
        "| engine | recognised by | length forced with | prefix cache bypassed with | sends `[DONE]` | usage on every chunk |"
    ]
    rows.append("|---|---|---|---|---|---|")
    for dialect in DIALECTS.values():
        recognised_by = (
            f"`owned_by: {dialect.owned_by}`"
            if dialect.owned_by
            else f"header `{dialect.header}`"
            if dialect.header
            else "`engine:`"
        )
        force, bypass = (
            json.dumps(dict(table)) if table else "–" for table in (dialect.force_length, dialect.cache_bypass)
        )
        done, usage = ("yes" if flag else "no" for flag in (dialect.sends_done, dialect.continuous_usage))
        rows.append(f"| `{dialect.name}` | {recognised_by} | `{force}` | `{bypass}` | {done} | {usage} |")
    return "\n".join(rows).replace("`–`", "–") + "\n"


SHOWN = (
    ("running", "requests_running"),
    ("waiting", "requests_waiting"),
    ("KV", "kv_cache_usage_ratio_max"),
    ("capacity", "kv_cache_capacity_tokens"),
    ("preemptions", "preemptions_total"),
    ("prefix", "prefix_cache_hits_tokens_total"),
    ("tokens", "generation_tokens_total"),
    ("TTFT", "ttft_seconds"),
    ("ITL", "itl_seconds"),
    ("queue", "queue_seconds"),
    ("KV transfer", "kv_transfer_seconds"),
    ("failures", "requests_failed_total"),
    ("start", "start_time_seconds"),
)


def pages_table() -> str:
    """Return the table of metrics pages: which signals each engine exports."""
    rows = [
        f"| engine | prefix | page | {' | '.join(name for name, _ in SHOWN)} |",
        "|---|---|---|" + "---|" * len(SHOWN),
    ]
    for table in TABLES:
        names = table.shape.prefixes or table.shape.names[:1] if table.shape else ()
        port = f":{table.port}" if table.port else ""
        page = f"`{port}{table.paths[0]}`" if table.paths else "none"
        exported = {*table.signals, *(("kv_cache_capacity_tokens",) if "capacity_tokens" in _facts(table) else ())}
        exported |= {"start_time_seconds"} if table.start_time_header else set()
        marks = " | ".join("•" if signal in exported else "" for _, signal in SHOWN)
        shown = f"`{names[0]}`" if names else ""
        rows.append(f"| {table.engine} | {shown} | {page} | {marks} |")
    return "\n".join(rows) + "\n"


def _facts(table: EngineTable) -> set[str]:
    return {fact.name for fact in table.facts}


def outcomes_table() -> str:
    """Return the table of all outcomes: what they mean, and how they count."""
    counts = {Trait.ANSWERED: "answered", Trait.BAD: "bad", Trait.NEUTRAL: "neutral"}
    rows = ["| outcome | counts as | meaning |", "|---|---|---|"]
    for outcome in Outcome:
        (count,) = (text for trait, text in counts.items() if trait in outcome.traits)
        rows.append(f"| `{outcome}` | {count} | {outcome.meaning} |")
    return "\n".join(rows) + "\n"


def replace_block(text: str, name: str, content: str) -> str:
    """Return `text` with `content` between the markers of the block `name`.

    Raises ValueError if the page has no such block.
    """
    begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
    head, marker, rest = text.partition(begin)
    _, closing, tail = rest.partition(end)
    if not marker or not closing:
        raise ValueError(f"the page has no block {begin.strip()} … {end}")
    return head + begin + content + end + tail


def openapi() -> str:
    """Return the OpenAPI document, whose paths are written by hand, with the schemas of its answers and the prober's version."""
    document = json.loads(OPENAPI.read_text())
    answers = (TargetAnswer, ProbeAnswer, EventAnswer, SweepAnswer, PausedAnswer, BegunAnswer)
    _, schemas = models_json_schema(
        [(answer, "serialization") for answer in answers], ref_template="#/components/schemas/{model}"
    )
    document["info"]["version"] = __version__
    document["components"]["schemas"] = schemas["$defs"]
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def files() -> dict[Path, str]:
    """Return every generated file and its content."""
    blocks = (
        ("series.md", "series", series_table()),
        ("configuration.md", "keys", keys_table()),
        ("configuration.md", "dialects", engines_table()),
        ("configuration.md", "pages", pages_table()),
        ("methods.md", "outcomes", outcomes_table()),
        ("methods.md", "refused requests", refusals.table()),
        ("shape.md", "rooms", shape.rooms_table()),
        ("shape.md", "stories", shape.stories_table()),
    )
    wanted: dict[Path, str] = {}
    for name, block, table in blocks:
        page = DOCS / name
        wanted[page] = replace_block(wanted.get(page) or page.read_text(), block, table)
    wanted[DOCS / "config.schema.json"] = json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"
    wanted[OPENAPI] = openapi()
    for folder in (DEPLOY / "chart", DEPLOY / "sidecar-chart"):
        values, schema, readme = (folder / name for name in ("values.yaml", "values.schema.json", "README.md"))
        text = with_configuration(schema.read_text(), json_schema())
        wanted[schema] = with_descriptions(text, values.read_text())
        wanted[readme] = replace_block(readme.read_text(), "values", values_table(values.read_text()))
    options = RuleOptions(has_several_probers=True)  # one set for every prober that a Prometheus scrapes
    in_cluster = replace(options, runbook_url="http://llm-slo-prober:9742/runbooks")  # the Service
    mixin = replace(in_cluster, dashboard_url="http://grafana:3000")
    operator = DEPLOY / "kustomize/components/prometheus-operator/rules/prometheusrule.yaml"
    wanted[DEPLOY / "prometheus/rules.yaml"] = HEAD + as_yaml({"groups": groups(None, options)})
    wanted[operator] = HEAD + as_yaml(as_operator(groups(None, in_cluster)))
    wanted[DEPLOY / "mixin/rules.yaml"] = HEAD + as_yaml({"groups": groups(None, mixin)})
    return wanted


def main() -> None:
    """Write the files, or check them."""
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"out of date: {', '.join(path.name for path in stale)}; run `make generated` and commit")
        return
    for path, text in stale.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
