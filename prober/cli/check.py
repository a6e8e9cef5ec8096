"""`prober check`: validates a configuration and shows its daily cost and what fires its alerts."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from glob import glob, has_magic
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.options import ConfigFile, split_file
from prober.cli.output import echo
from prober.cli.sweep_cost import SweepCost
from prober.config.configuration import Configuration
from prober.config.document import Problems
from prober.config.hosts import Forbidden
from prober.config.hosts import check as check_address
from prober.config.problems import ConfigError, path_of
from prober.config.schema import json_schema
from prober.config.server import texts
from prober.config.target import estimate_per_day
from prober.config.units import counted, first_names
from prober.daemon.configuration_file import read_config
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions
from prober.features.slo.compliance import percentile_events
from prober.features.slo.firing import firing_checks
from prober.measure.objective import JudgedStream, Slo, format_percent, format_rate, promql
from prober.measure.printable import shown_path
from prober.net.prometheus import LoadedRule, QueryFailed, loaded_rules
from prober.web.web_config import read

MAX_NAMED = 10  # targets with equal figures, or rules
P99 = Decimal("0.99")  # needs a thousand events, like any lower objective
VERDICT_S = 6 * 3_600  # longest time without a verdict for which no higher rate is advised
SECRET_FILES = ("bearer_token_file", "key_file")
FILES = (*SECRET_FILES, "ca_file", "cert_file")
Located = Iterator[tuple[str, str]]  # (path in the configuration, message or value)


def check(
    path: Annotated[
        str, typer.Argument(metavar="[FILE]", help="YAML configuration; default: prober.yaml.", show_default=False)
    ] = "",
    config_file: ConfigFile = "",
    web_config_file: Annotated[
        str | None, typer.Option("--web.config.file", help="Also check this file with TLS and passwords of the pages.")
    ] = None,
    prometheus: Annotated[
        str,
        typer.Option("--prometheus", help="URL of a Prometheus: are the rules of this configuration loaded, and once?"),
    ] = "",
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of the configuration.")] = False,
) -> None:
    """Report every mistake of the configuration, or the daily cost of each target and what fires its alerts."""
    if schema:
        echo(json.dumps(json_schema(), indent=2, sort_keys=True))
        return
    config_file = split_file("check", [*filter(None, [path])], config_file)[1] or "prober.yaml"
    specs, secured, broken = None, "", list[str]()
    try:
        specs = read_config(config_file)
        file: Problems | None = specs.file
    except ConfigError as problem:
        file = problem.file
        broken.append(str(problem))
    try:
        secured = f"{web_config_file}: {read(web_config_file).words}" if web_config_file is not None else ""
    except ValueError as problem:
        broken.append(str(problem))
    costs = [SweepCost.of(place, spec) for place, spec in specs.places.items()] if specs is not None else []
    sweeps = {cost.spec.key: cost for cost in costs if cost is not None}
    warnings = list(specs.warnings) if specs is not None else []
    if specs is not None and not specs.slos:
        warnings.append(f"{config_file}: slos: none, so LLMErrorBudgetBurn cannot fire; declare one")
    if file is not None:
        found = [*_missing_files(file.parse()), *(_refused_addresses(specs) if specs is not None else ())]
        found += [warning for cost in sweeps.values() for warning in cost.warnings()]
        mistaken = "\n".join(broken)
        warnings += [file.line(path, text) for path, text in found if f": {path.lstrip('.')}: " not in mistaken]
    if warnings:
        echo("".join(f"WARNING: {text}\n" for text in warnings))
    if specs is None:
        fail("\n".join(broken), ExitCode.FAILED)
    _costs(specs, sweeps)
    alerts = _alerts(specs) if specs.uses() else []
    if specs.traffic_slos():
        echo(
            "latency SLOs of `metrics.slos` use the nearest bound of the engine's histogram; the log of `prober run` says which it is."
        )
    echo()
    if secured:
        echo(secured)
    broken += _loaded(specs, prometheus.rstrip("/")) if prometheus else []
    unfit = [mistake for cost in sweeps.values() for mistake in cost.mistakes()]
    echo(f"{config_file}: {_headline(specs, len(alerts), len(unfit), len(warnings), len(broken))}")
    mistakes = [specs.file.line(*mistake) for mistake in (*alerts, *unfit)]
    if mistakes or broken:
        fail("\n".join([*mistakes, *broken]), ExitCode.FAILED)


def _missing_files(written: object) -> Located:
    """Warnings about files that a configuration names but this machine lacks. written: the configuration as in its file"""
    for keys, path in texts(written):
        shown = shown_path(path) if keys[-1] in SECRET_FILES else path
        if keys[-1] not in FILES and keys[-3:-1] != ("file", "files"):
            continue
        if has_magic(path) and not glob(path):
            yield path_of(keys), f"nothing on this machine fits {shown}; there must be something where the prober runs"
        elif not has_magic(path) and not Path(path).exists():
            yield path_of(keys), f"{shown} is not on this machine; it must be there where the prober runs"


def _refused_addresses(specs: Configuration) -> Located:
    """Warnings about configured link-local addresses, to which the prober does not connect."""
    for place, spec in specs.places.items():
        urls = {"url": spec.url, "proxy_url": spec.proxy_url, "metrics.url": spec.metrics and spec.metrics.url}
        for key, url in urls.items():
            try:
                check_address(urlsplit(url or "").hostname or "", allow_link_local=spec.allow_link_local)
            except Forbidden as refusal:
                yield f"{place}.{key}", str(refusal.strerror)


def _headline(specs: Configuration, alerts: int, sweeps: int, warnings: int, others: int) -> str:
    """The summary line, with the numbers of targets, mistakes and warnings."""
    names = ", ".join(discovery.name for discovery in specs.discovery)
    targets = [counted(len(specs.probed), "target")] if specs.probed else []
    targets += [f"{'those' if targets else 'the targets'} of discovery {names}"] if names else []
    verdict = f"; {counted(alerts, 'alert')} cannot fire" if alerts else ""
    verdict += f"; {counted(sweeps, 'sweep limit')} and budget do not fit" if sweeps else ""
    verdict += f"; {counted(others, 'other mistake')}" if others else ""
    verdict = verdict or ("" if warnings else ", all right")
    return " and ".join(targets) + verdict + (f"; {counted(warnings, 'warning')}" if warnings else "")


def _costs(specs: Configuration, sweeps: Mapping[str, SweepCost]) -> None:
    echo(f"{'target':32} {'probes/s':>9} {'prompt tokens/day':>18} {'output tokens/day':>18} {'$/day':>8}")
    discovered = [(f"each of discovery {discovery.name}", discovery.template) for discovery in specs.discovery]
    rows: list[tuple[str, str]] = []  # (names of targets, their figures)
    swept: list[tuple[str, str]] = []
    for name, spec in [*((spec.key, spec) for spec in specs.probed), *discovered]:
        use = estimate_per_day(spec)
        rate = sum(probe.rate for probe in spec.probes)
        prompt, completion, dollars = use.prompt_tokens, use.completion_tokens, use.dollars
        if (sweep := sweeps.get(spec.key)) is not None:
            swept.append((name, str(sweep)))
            tokens = sweep.amount_per_day("tokens")
            of_prompts = tokens * sweep.prompt_tokens / (sweep.prompt_tokens + sweep.completion_tokens)
            prompt, completion = prompt + of_prompts, completion + tokens - of_prompts
            dollars = None if dollars is None or not sweep.has_price else dollars + sweep.amount_per_day("cost")
        price = "–" if dollars is None else f"{dollars:.2f}"
        rows.append((name, f"{rate:9.3g} {prompt:18,.0f} {completion:18,.0f} {price:>8}"))
    for name, figures in _grouped(rows):
        echo(f"{name:32} {figures}")
    echo()
    if swept:
        echo("Of these figures sweeps take at most, by each prober, at their workloads' mean lengths:")
        echo(f"{'':32} {'tokens a sweep':>14} {'$':>8} {'a day':>9} {'tokens a day':>14} {'$':>8}  limited by")
        echo("".join(f"{f'sweep of {name}':32} {figures}\n" for name, figures in _grouped(swept)), end="")
        echo("Sweeps that are asked for, or follow a change of the engine, come on top; a budget holds for all.")
        if any(cost.spec.sweep and "workload" not in cost.spec.sweep.model_fields_set for cost in sweeps.values()):
            echo(
                "Sweeps without `workload` send requests like the users' own where the engine's page tells their lengths. Nothing is "
                "known of these here; the figures are those of `probe`."
            )
        echo()
    for discovery in specs.discovery:
        echo(
            f"Discovery {discovery.name} brings at most {counted(discovery.limit, 'target')}, each of which costs that."
        )
    echo("Each replica of the prober sends this again, unless each has a shard of its own (`prober run --shard`).")


def _grouped(rows: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (name, figures) rows; equal figures of more than MAX_NAMED names share a row."""
    names: dict[str, list[str]] = {}
    for name, figures in rows:
        names.setdefault(figures, []).append(name)
    for figures, of_row in names.items():
        for name in [f"{first_names(of_row, 1)}, each"] if len(of_row) > MAX_NAMED else of_row:
            yield name, figures


def _alerts(specs: Configuration) -> list[tuple[str, str]]:
    """Print how many bad probes fire each pair of burn-rate windows; streams with equal numbers share a row.

    Returns (path, message) for each alert that cannot fire.
    """
    mistakes = []
    echo("\nBad probes, of those expected, that fire each burn-rate alert (both windows must):")
    echo(f"{'slo':12} {'target, workload':40} {'severity':9} {'burn':>5}  {'long window':>22}  {'short window':>22}")
    for slo, uses in specs.uses().items():
        rows: dict[tuple[str, str, str], list[str]] = {}  # {(figures, problem, place) of an alert: names}
        for check in firing_checks(slo, uses):
            pair = check.pair
            long = f"{check.bad_long} of {check.probes_long:,.0f} in {promql(pair.long_s)}"
            short = f"{check.bad_short} of {check.probes_short:,.0f} in {promql(pair.short_s)}"
            figures = f"{pair.severity:9} {pair.burn!s:>5}  {long:>22}  {short:>22}"
            names = rows.setdefault((figures, check.problem, check.place), [])
            names.append(f"{check.use.target}, {check.use.workload}")
        for (figures, problem, place), names in rows.items():
            echo(f"{slo.name:12} {first_names(names, 1):40} {figures}")
            if problem:
                mistakes.append((place, f"{first_names(names, 1)}: its alert cannot fire: {problem}"))
                echo(f"{'':12} CANNOT FIRE: {problem}")
    echo()
    for slo, uses in specs.uses().items():
        echo(f"slos.{slo.name}: {_evidence(slo, uses)}")
    return mistakes


def _evidence(slo: Slo, uses: Sequence[JudgedStream]) -> str:
    """How long an SLO lacks events for a verdict, and how to shorten this."""
    needed, rate_per_s = percentile_events(slo), min(use.rate_per_s for use in uses)
    text = f"{format_percent(slo.objective)} is met on {needed:,} events or more, "
    text += f"{_time(needed / rate_per_s)} at {format_rate(rate_per_s)}"
    if needed / rate_per_s > VERDICT_S:
        at_p99_s = percentile_events(replace(slo, objective=P99)) / rate_per_s
        lower = "99% or " if slo.objective > P99 and at_p99_s <= VERDICT_S else ""
        text += f"; use {lower}{format_rate(needed / VERDICT_S)} for a verdict within {_time(VERDICT_S)}"
    return text


def _time(seconds: float) -> str:
    """Format a time, such as `28 h`."""
    for unit, size_s in (("d", 86_400), ("h", 3_600)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:,.0f} {unit}"
    return f"{seconds / 60:.0f} min"


def _loaded(specs: Configuration, url: str) -> list[str]:
    """Print whether a Prometheus has loaded the configuration's rules. Returns missing and repeated ones."""
    try:
        loaded = asyncio.run(loaded_rules(url))
    except QueryFailed as problem:
        return [f"--prometheus: {problem}"]
    expected = {
        str(rule.get("alert") or rule["record"]) for group in groups(specs, RuleOptions()) for rule in group["rules"]
    }
    places: dict[tuple[str, str], list[LoadedRule]] = {}  # by name and query
    for rule in loaded:
        if rule.name in expected:
            places.setdefault((rule.name, rule.query), []).append(rule)
    repeated: dict[tuple[str, ...], set[str]] = {}  # {files, or groups of one file: names}
    for (name, _), copies in places.items():
        files = {copy.file for copy in copies}
        if len({(copy.group, copy.file) for copy in copies}) > 1:
            where = files if len(files) > 1 else {f"group {copy.group} of {copy.file}" for copy in copies}
            repeated.setdefault(tuple(sorted(where)), set()).add(name)
    problems = [
        f"--prometheus: rules are loaded {len(where)} times, by {' and '.join(where)}: {first_names(names, 3)}; remove all but one "
        "(from `rule_files`, or the PrometheusRule objects)"
        for where, names in repeated.items()
    ]
    if missing := expected - {name for name, _ in places}:
        problems.append(
            f"--prometheus: rules of this configuration are not loaded: {first_names(missing, 3)}; load the file that `prober rules` "
            "writes"
        )
    if not problems:
        echo("--prometheus: all rules of this configuration are loaded, each once.")
    return problems
