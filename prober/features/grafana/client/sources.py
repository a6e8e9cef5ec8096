"""The data source that is preselected on the dashboards."""

from typing import Any

from prober.config.problems import no_such
from prober.features.grafana.client.server import GrafanaError, Server, Source

LISTED_TYPE = "prometheus"  # type that the dashboards' variable lists
PROMQL_TYPES = (
    LISTED_TYPE,
    "grafana-amazonprometheus-datasource",
    "grafana-azureprometheus-datasource",
    "victoriametrics-metrics-datasource",
    "victoriametrics-datasource",
)


def choose(server: Server, identity: str | None) -> tuple[Source | None, str]:
    """(data source to preselect, note for people); None leaves the choice to Grafana.

    identity: name or uid. Raises GrafanaError if no data source supports PromQL, or `identity` does not.
    """
    try:
        sources = server.sources()
    except GrafanaError as error:
        if error.status != 403 or identity is not None:
            raise
        return None, "data source: not checked, the token may not read data sources (datasources:read)"
    supported = [source for source in sources if source.type in PROMQL_TYPES]
    if identity is not None:
        return (chosen := _find(server, sources, supported, identity)), f"data source: {_describe(chosen)}"
    if not supported:
        raise GrafanaError(
            f"{server.url}: no data source supports PromQL (there are: {_list(sources)}); add the Prometheus that scrapes the "
            "prober"
        )
    listed = [source for source in supported if source.type == LISTED_TYPE]
    if listed:
        first = next((source for source in listed if source.default), listed[0])
        hint = f"; {len(listed) - 1} more can be chosen on the dashboards" if len(listed) > 1 else ""
        return None, f"data source: Grafana's choice, most likely {_describe(first)}{hint}"
    first = next((source for source in supported if source.default), supported[0])
    return first, f"data source: {_describe(first)}, as there is none of type {LISTED_TYPE}"


def with_source(document: dict[str, Any], source: Source | None) -> dict[str, Any]:
    """The dashboard with its data source variable set to `source` and its queries of that type."""
    if source is None:
        return document
    changed: dict[str, Any] = _with_type(document, source.type)
    for variable in changed["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["query"] = source.type
            variable["current"] = {"selected": True, "text": source.name, "value": source.uid}
    return changed


def _find(server: Server, sources: list[Source], supported: list[Source], identity: str) -> Source:
    by_uid = {source.uid: source for source in sources}
    by_name = {source.name: source for source in sources}
    chosen = by_uid.get(identity) or by_name.get(identity)
    if chosen is None:
        raise GrafanaError(f"{server.url}: {no_such('data source', identity, [source.name for source in supported])}")
    if chosen not in supported:
        raise GrafanaError(
            f"{server.url}: data source {chosen.name!r} is of type {chosen.type!r}, which does not support PromQL; "
            f"those that do: {_list(supported)}"
        )
    return chosen


def _with_type(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return [_with_type(part, kind) for part in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == LISTED_TYPE and str(value.get("uid", "")).startswith("${"):
        return {**value, "type": kind}
    return {key: _with_type(part, kind) for key, part in value.items()}


def _describe(source: Source) -> str:
    return f"{source.name!r} ({source.type}, uid {source.uid})"


def _list(sources: list[Source]) -> str:
    return ", ".join(f"{source.name} of type {source.type}" for source in sources) or "none"
