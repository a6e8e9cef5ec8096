"""`prober check`: is a configuration right, what does its probing cost a day, and can its alerts fire?"""

import json
import sys
from typing import Annotated

import typer

from prober.config.load import ConfigError
from prober.config.specs import Specs

RETENTION_S = 15 * 86_400  # Prometheus's default


def check(
    config_file: Annotated[str, typer.Option("--config.file", help="YAML configuration.")] = "prober.yaml",
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of the configuration.")] = False,
) -> None:
    """Report every mistake of the configuration at once, or what each target's probing uses a day and what fires its alerts."""
    if schema:
        from prober.config.schema import json_schema

        print(json.dumps(json_schema(), indent=2, sort_keys=True))
        return
    from prober.daemon.app import read_config

    try:
        specs = read_config(config_file)
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
    print(f"{config_file}: {len(specs.targets)} targets, all right\n")
    _costs(specs)
    if specs.uses() and not _alerts(specs):
        sys.exit(1)


def _costs(specs: Specs) -> None:
    from prober.config.specs import estimate_per_day
    from prober.metrics import Recorder, registry

    print(
        f"{'target':32} {'probes/s':>9} {'prompt tokens/day':>18} {'output tokens/day':>18} {'$/day':>8} {'series':>7}"
    )
    for spec in specs.targets:
        use = estimate_per_day(spec)
        families = registry()
        Recorder(families).declare(spec.name or "undiscovered", spec)
        lines = sum(child.text(False).count("\n") for family in families.values() for child in family.children.values())
        rate = sum(probe.rate_per_s for probe in spec.probes)
        dollars = f"{use.dollars:.2f}" if use.dollars is not None else "–"
        name = spec.name or "(named by its model)"
        print(f"{name:32} {rate:9.3g} {use.prompt_tokens:18,.0f} {use.completion_tokens:18,.0f} {dollars:>8} {lines:7}")
    print("\nEach replica of the prober sends this again.")


def _alerts(specs: Specs) -> bool:
    """Print what fires each burn-rate pair; False if one cannot fire."""
    from prober.slo.firing import percent, percentile_events, percentile_window, proofs
    from prober.slo.windows import promql

    fine = True
    print("\nBad probes, of those expected, that fire each burn-rate alert (both windows must):")
    print(f"{'slo':12} {'target, workload':40} {'severity':9} {'burn':>5}  {'long window':>22}  {'short window':>22}")
    for slo, uses in specs.uses().items():
        for proof in proofs(slo, uses):
            pair = proof.pair
            long, short = (
                f"{bad} of {expected:,.0f} in {promql(seconds)}"
                for bad, expected, seconds in (
                    (proof.bad_long, proof.probes_long, pair.long_s),
                    (proof.bad_short, proof.probes_short, pair.short_s),
                )
            )
            where = f"{proof.use.target}, {proof.use.workload}"
            print(f"{slo.name:12} {where:40} {pair.severity:9} {pair.burn!s:>5}  {long:>22}  {short:>22}")
            if proof.problem:
                fine = False
                print(f"{'':12} CANNOT FIRE: {proof.problem}")
    print()
    for slo, uses in specs.uses().items():
        found, needed, window = percentile_window(slo, uses), percentile_events(slo), promql(slo.window_s)
        if found:
            print(
                f"slos.{slo.name}: its percentile is judged over {promql(found[0])}, where {needed:,} events or more are due"
            )
        else:
            print(
                f"slos.{slo.name}: no percentile alert: to judge {percent(slo.objective)} takes {needed:,} events, more than "
                f"{window} hold; the burn-rate alerts do without"
            )
        if slo.window_s > RETENTION_S:
            print(
                f"slos.{slo.name}: warning: its window of {window} is longer than the {promql(RETENTION_S)} that Prometheus keeps "
                "by default; raise --storage.tsdb.retention.time, or its budget is that of what is kept"
            )
    return fine
