"""`prober check`: is a configuration right, what does its probing cost a day, and can its alerts fire?"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import typer

from prober.config.load import ConfigError
from prober.config.specs import Specs, TargetSpec
from prober.limits.shard import Shard, shard_of

RETENTION_S = 15 * 86_400  # Prometheus's default


def check(
    config_file: Annotated[str, typer.Option("--config.file", help="YAML configuration.")] = "prober.yaml",
    web_config_file: Annotated[
        str | None, typer.Option("--web.config.file", help="TLS and passwords of the pages; looked at too.")
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Probers that run with this configuration.")] = 1,
    shard: Annotated[
        str | None, typer.Option("--shard", help="As they get it: ordinal/N for each its own, I/N for all the same.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of the configuration.")] = False,
) -> None:
    """Report every mistake of the configuration at once, or what each target's probing uses a day and what fires its alerts."""
    if schema:
        from prober.config.schema import json_schema

        print(json.dumps(json_schema(), indent=2, sort_keys=True))
        return
    from prober.daemon.app import read_config
    from prober.edge.webconfig import read

    try:
        fleet = _Fleet.told(replicas, shard)
        specs = read_config(config_file)
        if web_config_file is not None:
            read(web_config_file)
    except (ConfigError, ValueError) as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
    print(f"{config_file}: {len(specs.targets)} targets, all right\n")
    _costs(specs, fleet)
    if specs.uses() and not _alerts(specs):
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class _Fleet:
    """How many probers there are, and who probes what. only: the one shard that all of them have, None for every shard."""

    replicas: int
    shards: int
    only: int | None

    @classmethod
    def told(cls, replicas: int, shard: str | None) -> Self:
        """Raises ValueError."""
        if shard is None:
            return cls(replicas, 1, None)
        ordinal = shard.strip().startswith("ordinal/")
        try:
            found = Shard.parse(shard, "prober-0")
        except ValueError as problem:
            raise ValueError(f"--shard: {problem}") from None
        if ordinal and replicas > found.count:
            raise ValueError(
                f"--replicas {replicas}: {shard} has shards 0 to {found.count - 1}, so replica {found.count} does not start; "
                "as many replicas as shards"
            )
        return cls(replicas, found.count, None if ordinal else found.index)

    @property
    def each(self) -> int:
        """Probers that probe one and the same target."""
        return 1 if self.shards > 1 and self.only is None else self.replicas

    def words(self, targets: Iterable[TargetSpec]) -> Iterator[str]:
        """What they come to together."""
        alone = self.shards > 1 and self.only is None
        if alone:
            yield f"Each of {self.shards} shards has its own targets: every target is probed by one replica."
            counts = Counter(shard_of(spec.key, self.shards) for spec in targets)
            yield f"Targets of the shards: {', '.join(str(counts[index]) for index in range(self.shards))}."
            if left := sum(counts[index] for index in range(self.replicas, self.shards)):
                yield (
                    f"WARNING: {self.replicas} replicas of {self.shards} shards: {left} targets are probed by nobody; run as many "
                    "replicas as shards"
                )
        elif self.replicas > 1:
            yield f"Each of {self.replicas} replicas sends as much; the figures are those of all of them together."
            yield (
                f"WARNING: {self.replicas} replicas without shards of their own cost {self.replicas} times as much; "
                f"--shard=ordinal/{self.replicas} in a StatefulSet shares the targets out"
            )
        else:
            yield "Each replica of the prober sends this again, unless each has a shard of its own; see --replicas and --shard."
        if self.replicas > 1 and any(spec.budget for spec in targets):
            yield (
                "A budget is one replica's: "
                + (
                    "each counts its own targets."
                    if alone
                    else f"{self.replicas} of them may use {self.replicas} times as much."
                )
            )


def _costs(specs: Specs, fleet: _Fleet) -> None:
    from prober.config.specs import estimate_per_day
    from prober.metrics import Recorder, registry

    print(
        f"{'target':32} {'probes/s':>9} {'prompt tokens/day':>18} {'output tokens/day':>18} {'$/day':>8} {'series':>7}"
    )
    mine = [spec for spec in specs.targets if fleet.only in (None, shard_of(spec.key, fleet.shards))]
    found = [(f"each of discovery {each.name}", each.template) for each in specs.discovery]
    for name, spec in [*((spec.name or "(named by its model)", spec) for spec in mine), *found]:
        use = estimate_per_day(spec)
        families = registry()
        Recorder(families).declare(spec.name or "undiscovered", spec)
        lines = sum(child.text(False).count("\n") for family in families.values() for child in family.children.values())
        rate = fleet.each * sum(probe.rate_per_s for probe in spec.probes)
        prompt, output = fleet.each * use.prompt_tokens, fleet.each * use.completion_tokens
        dollars = f"{fleet.each * use.dollars:.2f}" if use.dollars is not None else "–"
        print(f"{name:32} {rate:9.3g} {prompt:18,.0f} {output:18,.0f} {dollars:>8} {fleet.each * lines:7}")
    print()
    for each in specs.discovery:
        print(f"Discovery {each.name} brings at most {each.limit:,} targets, each of which costs that.")
    for line in fleet.words(mine):
        print(line)


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
