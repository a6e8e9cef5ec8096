"""How many alerts does one trouble fire? The troubles of `prober demo` side by side, with the shipped rules in a real Prometheus.

Each step 1.6 times slower, the KV cache full, every answer a 503, half of the answers a 429; beside them a healthy engine. After
`--minutes` every alert is counted that fired at any time, whether it still does or not. An alert that changes its labels is another
one to whoever receives it, and counts again.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.parse

from bench.report import goal, require, show
from bench.states import addresses, get

TROUBLES = {"slow": "each step 1.6 times slower", "full": "KV cache full", "broken": "503", "limited": "half 429"}
COMMAND = [
    sys.executable, "-m", "prober", "demo", "--trouble-after", "2m", *(word for name in TROUBLES for word in ("--scene", name)),
]  # fmt: skip
FIRED = 'ALERTS{alertstate="firing"}'


def main() -> None:
    """Run the demo and print the alerts of each target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="of the run; the troubles begin after two")
    minutes = parser.parse_args().minutes
    require("prometheus")
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as demo:
        try:
            _, prometheus = addresses(demo)
            time.sleep(60 * minutes)
            query = urllib.parse.urlencode({"query": f"count_over_time({FIRED}[{minutes:.0f}m])"})
            found = json.loads(get(f"{prometheus}/api/v1/query?{query}"))["data"]["result"]
        finally:
            demo.terminate()
    alerts: dict[str, list[str]] = {}
    for series in found:
        labels = series["metric"]
        name = " ".join(labels[key] for key in ("alertname", "severity", "slo") if key in labels)
        alerts.setdefault(labels.get("target", "of the prober"), []).append(name)
    counts = {name: len(alerts.get(name, ())) for name in TROUBLES}
    others = sum(map(len, alerts.values())) - sum(counts.values())
    show(
        "alert_count",
        [
            goal(
                "alerts of three troubles: slow, KV cache full, 503",
                sum(counts.values()) - counts["limited"],
                6,
                "alerts",
            ),
            goal("most alerts of one trouble", max(counts.values()), 2, "alerts"),
            goal("alerts about the healthy target or the prober", others, 0, "alerts"),
        ],
        minutes=minutes,
        alerts={name: sorted(of) for name, of in alerts.items()},
    )


if __name__ == "__main__":
    main()
