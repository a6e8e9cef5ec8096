"""Writes the parts of docs/ and deploy/ that come from the code, or with --check says which are out of date.

python docs/generate.py [--check]
"""

import json
import sys
from pathlib import Path

from prober.cli.rules import HEAD, as_yaml
from prober.config.schema import document, json_schema
from prober.daemon.app import read_config
from prober.daemon.registry import ALL as ALL_SERIES
from prober.features.slo.rules import Options, as_operator, groups
from prober.measure.engine_signals import Table
from prober.measure.engines import DIALECTS, TABLES
from prober.web.api import openapi

DOCS = Path(__file__).parent
DEPLOY = DOCS.parent / "deploy"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->"


def series_table() -> str:
    """Every exported series."""
    rows = ["| series | type | labels | meaning |", "|---|---|---|---|"]
    for declared in ALL_SERIES:
        labels = ", ".join(f"`{label}`" for label in declared.labels) or "–"
        rows.append(f"| `{declared.name}` | {declared.kind} | {labels} | {declared.help} |")
    return "\n".join(rows) + "\n"


def engines_table() -> str:
    """Every dialect."""
    rows = [
        "| engine | told by | length forced with | kept out of the prefix cache with | `[DONE]` | usage on every chunk |"
    ]
    rows.append("|---|---|---|---|---|---|")
    for dialect in DIALECTS.values():
        told = (
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
        rows.append(f"| `{dialect.name}` | {told} | `{force}` | `{bypass}` | {done} | {usage} |")
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
    ("start", "start_time_seconds"),
)


def pages_table() -> str:
    """Every table of an engine's page, and what it tells."""
    rows = [
        f"| engine | names | page | {' | '.join(name for name, _ in SHOWN)} |",
        "|---|---|---|" + "---|" * len(SHOWN),
    ]
    for table in TABLES:
        names = table.shape.prefixes or table.shape.names[:1] if table.shape else ()
        port = f":{table.port}" if table.port else ""
        page = f"`{port}{table.paths[0]}`" if table.paths else "none"
        told = {*table.signals, *(("kv_cache_capacity_tokens",) if "capacity_tokens" in _facts(table) else ())}
        told |= {"start_time_seconds"} if table.start_time_header else set()
        marks = " | ".join("•" if signal in told else "" for _, signal in SHOWN)
        shown = f"`{names[0]}`" if names else ""
        rows.append(f"| {table.engine} | {shown} | {page} | {marks} |")
    return "\n".join(rows) + "\n"


def _facts(table: Table) -> set[str]:
    return {fact.says for fact in table.facts}


def between(text: str, content: str) -> str:
    """`text` with `content` between its markers."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + content + END + rest.partition(END)[2]


def files() -> dict[Path, str]:
    """Each file as it should be."""
    tables = {"series.md": series_table(), "configuration.md": document(), "engines.md": engines_table()}
    tables["engine-pages.md"] = pages_table()
    wanted = {DOCS / name: between((DOCS / name).read_text(), table) for name, table in tables.items()}
    wanted[DOCS / "config.schema.json"] = json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"
    wanted[DOCS / "openapi.json"] = json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"
    kustomize = DEPLOY / "kustomize"
    for config, rules, operators in (
        (DEPLOY / "prober.yaml", DEPLOY / "prometheus/rules.yaml", DEPLOY / "prometheus/prometheusrule.yaml"),
        (
            kustomize / "base/prober.yaml",
            DEPLOY / "chart/rules.yaml",
            kustomize / "components/prometheus-operator/rules/prometheusrule.yaml",
        ),
        (DEPLOY / "compose/prober.yaml", DEPLOY / "compose/rules.yaml", None),
    ):
        found = groups(read_config(str(config)).uses(), Options())
        wanted[rules] = HEAD + as_yaml({"groups": found})
        if operators:
            wanted[operators] = HEAD + as_yaml(as_operator(found))
    return wanted


def main() -> None:
    """Write, or check."""
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"out of date: {', '.join(path.name for path in stale)}; run `make generated` and commit")
        return
    for path in stale:
        path.write_text(files()[path])


if __name__ == "__main__":
    main()
