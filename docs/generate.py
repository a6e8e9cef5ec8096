"""Write the parts of docs/ and deploy/ that are generated from the code, or with --check name those that are out of date.

python docs/generate.py [--check]
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # this tree, whichever one is installed
from prober.cli.rules import HEAD, as_yaml
from prober.config.schema import document, json_schema
from prober.daemon.configuration_file import read_config
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import as_operator, groups
from prober.exposition.alerting import RuleOptions
from prober.measure.engine_signals import EngineTable
from prober.measure.engines import DIALECTS, TABLES
from prober.web.api import openapi
from tests import refusals

DOCS = Path(__file__).parent
DEPLOY = DOCS.parent / "deploy"


def series_table() -> str:
    """Return the table of all exported series."""
    rows = ["| series | type | labels | meaning |", "|---|---|---|---|"]
    for declared in ALL_SERIES:
        labels = ", ".join(f"`{label}`" for label in declared.labels) or "–"
        rows.append(f"| `{declared.name}` | {declared.kind} | {labels} | {declared.help} |")
    return "\n".join(rows) + "\n"


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


def files() -> dict[Path, str]:
    """Return every generated file and its content."""
    blocks = (
        ("series.md", "series", series_table()),
        ("configuration.md", "keys", document()),
        ("configuration.md", "dialects", engines_table()),
        ("configuration.md", "pages", pages_table()),
        ("methods.md", "refused requests", refusals.table()),
    )
    wanted: dict[Path, str] = {}
    for name, block, table in blocks:
        page = DOCS / name
        wanted[page] = replace_block(wanted.get(page) or page.read_text(), block, table)
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
        configuration = read_config(str(config))
        found = groups(configuration.uses(), RuleOptions(), configuration.traffic_slos())
        wanted[rules] = HEAD + as_yaml({"groups": found})
        if operators:
            wanted[operators] = HEAD + as_yaml(as_operator(found))
    return wanted


def main() -> None:
    """Write the files, or check them."""
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"out of date: {', '.join(path.name for path in stale)}; run `make generated` and commit")
        return
    for path in stale:
        path.write_text(files()[path])


if __name__ == "__main__":
    main()
