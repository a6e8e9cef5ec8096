"""The data source that dashboards begin with."""

from typing import Any

from prober.config.problems import no_such
from prober.features.grafana.client.server import GrafanaError, Server, Source

ASKED = "prometheus"  # what the dashboards' variable lists
TYPES = (
    ASKED,
    "grafana-amazonprometheus-datasource",
    "grafana-azureprometheus-datasource",
    "victoriametrics-metrics-datasource",
    "victoriametrics-datasource",
)


def choose(server: Server, wanted: str | None) -> tuple[Source | None, str]:
    """What the dashboards shall begin with, None to leave it to Grafana, and that in words.

    wanted: name or uid. Raises GrafanaError if there is nothing that understands PromQL, or `wanted` is nothing of the kind.
    """
    try:
        found = server.sources()
    except GrafanaError as refusal:
        if refusal.status != 403 or wanted is not None:
            raise
        return None, "data source: not checked, the token may not read data sources (datasources:read)"
    fit = [source for source in found if source.type in TYPES]
    if wanted is not None:
        return (chosen := _named(server, found, fit, wanted)), f"data source: {_called(chosen)}"
    if not fit:
        raise GrafanaError(
            f"{server.url}: no data source understands PromQL (there are: {_listed(found)}); add the Prometheus that scrapes the "
            "prober"
        )
    listed = [source for source in fit if source.type == ASKED]
    if listed:
        first = next((source for source in listed if source.default), listed[0])
        others = f"; {len(listed) - 1} more can be chosen on the dashboards" if len(listed) > 1 else ""
        return None, f"data source: Grafana's choice, most likely {_called(first)}{others}"
    first = next((source for source in fit if source.default), fit[0])
    return first, f"data source: {_called(first)}, as there is none of type {ASKED}"


def beginning_with(document: dict[str, Any], source: Source | None) -> dict[str, Any]:
    """The dashboard with its variable set to the source, and its queries of that type."""
    if source is None:
        return document
    changed: dict[str, Any] = _typed(document, source.type)
    for variable in changed["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["query"] = source.type
            variable["current"] = {"selected": True, "text": source.name, "value": source.uid}
    return changed


def _named(server: Server, found: list[Source], fit: list[Source], wanted: str) -> Source:
    by_uid = {source.uid: source for source in found}
    by_name = {source.name: source for source in found}
    chosen = by_uid.get(wanted) or by_name.get(wanted)
    if chosen is None:
        raise GrafanaError(f"{server.url}: {no_such('data source', wanted, [source.name for source in fit])}")
    if chosen not in fit:
        raise GrafanaError(
            f"{server.url}: data source {chosen.name!r} is of type {chosen.type!r}, which has no PromQL; "
            f"those that have: {_listed(fit)}"
        )
    return chosen


def _typed(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return [_typed(each, kind) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == ASKED and str(value.get("uid", "")).startswith("${"):
        return {**value, "type": kind}
    return {key: _typed(each, kind) for key, each in value.items()}


def _called(source: Source) -> str:
    return f"{source.name!r} ({source.type}, uid {source.uid})"


def _listed(sources: list[Source]) -> str:
    return ", ".join(f"{source.name} of type {source.type}" for source in sources) or "none"
