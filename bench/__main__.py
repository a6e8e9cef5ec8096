"""Run every benchmark with goals, one after another; exit 1 if one could not run. A goal missed is reported, not an error.

Eleven of them run only when they are named: `gpu` needs a GPU and PyTorch, `ray` an environment with Ray, `image` needs root and builds
for minutes, `real_sweeps` and `parts` need a vLLM and a quiet machine, `rivals` installs load clients and probers of others (4 GB),
`rule_cost`, `query_cost`, `states` and `alert_count` need Prometheus, `soak` takes its hour. Two programs here have no goals and are
not among them: `floor`, which `accuracy` runs beside the daemon, and the truths that others measure against: `independent.worlds` for
`knee_independent`, `independent.production` and `independent.headroom_scenes` for `headroom_independent`.
"""

import subprocess
import sys

PROGRAMS = (
    "accuracy",
    "footprint",
    "start",
    "failures",
    "scrape",
    "cardinality",
    "parse",
    "buffering",
    "page",
    "watch",
    "simulation",
    "steadiness",
    "drift",
    "drift_independent",
    "drift_odd_days",
    "change_points",
    "drift_sizes",
    "diagnosis_independent",
    "diagnosis_over_time",
    "answers",
    "deciding",
    "dependence",
    "knee_independent",
    "figures",
    "headroom_independent",
    "claims",
    "agreement",
    "users",
    "replicas",
    "discovery",
    "web",
    "hostile",
    "faults",
    "kill",
    "workers",
    "sizing",
    "fuzz",
)


def main() -> None:
    """Run those named on the command line, or all."""
    failed = [
        name
        for name in sys.argv[1:] or PROGRAMS
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    ]
    sys.exit(f"could not run: {', '.join(failed)}" if failed else 0)


main()
