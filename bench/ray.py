"""Workers on a Ray cluster of two nodes beside one process: verdicts, clocks, and requests that the server received.

Needs the environment of `make test-ray`, so it runs only when it is named: `.tools/ray/bin/python -m bench.ray`. The nodes are
processes of this machine and stand in for machines: their clocks are one clock, so the offset must be zero within its stated error.
That a lost node's requests are counted is shown by `make test-ray`.
"""

import argparse
import re
from typing import Any

from ray.cluster_utils import Cluster

from bench.report import goal, part, show
from bench.stage import free_port
from bench.workers import ROWS, send

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
CLOCK = re.compile(r"its clock is ([+-][\d.]+) ms from the prober's, its due times were off by ([\d.]+) ms at most")


def node() -> dict[str, Any]:
    """Arguments of a node with a processor for one worker. Fixed ports: it waits only 15 s for those that its agents choose."""
    return {"num_cpus": 1} | {name: free_port() for name in PORTS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20.0)
    rate_per_s = parser.parse_args().rate
    one = [part("one process", send(1, rate_per_s, row)) for row in ROWS]
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **node()})
    try:
        cluster.add_node(**node())
        two = [part("two nodes", send(2, rate_per_s, row, cluster.address)) for row in ROWS]
    finally:
        cluster.shutdown()
    clocks = [tuple(map(float, found)) for run in two for text in run["workers_said"] for found in CLOCK.findall(text)]
    invalid = sum(run["outcomes"]["invalid"] for run in two) / sum(run["requests"] for run in two)
    # The server also sees the warm-up, and of each worker a connection without a request.
    lost = [
        abs((run["received"] - run["requests"]) - (alone["received"] - alone["requests"]))
        for run, alone in zip(two, one, strict=True)
    ]
    goals = [
        goal(
            "verdicts that differ from those of one process",
            sum(a["verdict"] != b["verdict"] for a, b in zip(one, two, strict=True)),
            0,
            "",
        ),
        goal("requests of the result that differ from those the server received", max(lost), 0, ""),
        goal("stated error of the clocks, largest", max(error for _, error in clocks), 10.0, "ms"),
        goal(
            "clocks whose true offset, zero, lies outside the stated error", sum(abs(o) > e for o, e in clocks), 0, ""
        ),
        goal("invalid requests", invalid, 0.0, ""),
        goal("TTFT error p50", max(run["ttft_error_ms"]["p50"] for run in two), 0.7, "ms"),
    ]
    show("ray", goals, one_process=one, two_nodes=two, clocks_ms=clocks)


main()
