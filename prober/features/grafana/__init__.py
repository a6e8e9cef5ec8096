"""Dashboards and annotations in a Grafana. Only `client` imports the client library, which takes 25 MB of memory and 0.2 s."""

from importlib.util import find_spec

MISSING = "the library grafana-client is not installed: pip install 'llm-slo-prober[grafana]'"


class GrafanaError(Exception):
    """A call to Grafana failed. The message has the address and the remedy, never the token."""


def available() -> bool:
    """True if the Grafana client library, an extra of the package, is installed."""
    return find_spec("grafana_client") is not None
