"""`prober check`: is a configuration right, and what does its probing cost a day?"""

import json
import sys
from typing import Annotated

import typer

from prober.config.load import ConfigError


def check(
    config_file: Annotated[str, typer.Option("--config.file", help="YAML configuration.")] = "prober.yaml",
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of the configuration.")] = False,
) -> None:
    """Report every mistake of the configuration at once, or what each target's probing uses a day."""
    if schema:
        from prober.config.schema import json_schema

        print(json.dumps(json_schema(), indent=2, sort_keys=True))
        return
    from prober.config.specs import estimate_per_day
    from prober.daemon.app import read_config
    from prober.metrics import Recorder, registry

    try:
        specs = read_config(config_file)
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
    print(f"{config_file}: {len(specs)} targets, all right\n")
    print(
        f"{'target':32} {'probes/s':>9} {'prompt tokens/day':>18} {'output tokens/day':>18} {'$/day':>8} {'series':>7}"
    )
    for spec in specs:
        use = estimate_per_day(spec)
        families = registry()
        Recorder(families).declare(spec.name or "undiscovered", spec)
        lines = sum(child.text(False).count("\n") for family in families.values() for child in family.children.values())
        rate = sum(probe.rate_per_s for probe in spec.probes)
        dollars = f"{use.dollars:.2f}" if use.dollars is not None else "–"
        name = spec.name or "(named by its model)"
        print(f"{name:32} {rate:9.3g} {use.prompt_tokens:18,.0f} {use.completion_tokens:18,.0f} {dollars:>8} {lines:7}")
    print("\nEach replica of the prober sends this again.")
