"""Synchronisation of dashboards and annotations with Grafana. Only `server` imports the client library, which is large."""

from importlib.util import find_spec

MISSING = "the library grafana-client is not installed: pip install 'llm-slo-prober[grafana]'"


def available() -> bool:
    """True if the Grafana client library, an extra of the package, is installed."""
    return find_spec("grafana_client") is not None
