"""A real Ray cluster, whose nodes are processes of this machine."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.processes import free_port


def node_arguments() -> dict[str, int]:
    """A processor for one worker, and fixed ports: a node waits 15 s for ports that its agents choose, too short on a busy machine."""
    ports = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {"num_cpus": 1} | {name: free_port() for name in ports}


def head(cluster: Any, attempts: int = 3) -> None:
    """Add the first node. Ray gives it 30 s, too short where Ray itself is read for the first time on a busy machine."""
    try:
        cluster.add_node(include_dashboard=False, **node_arguments())
    except Exception as problem:
        if attempts == 1 or "timed out during startup" not in str(problem):
            raise
        head(cluster, attempts - 1)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """One node with a processor for a worker; a test adds others."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        head(cluster)
        yield cluster
    finally:
        cluster.shutdown()
