"""Configuration of Grafana."""

from urllib.parse import urlsplit

from prober.config import models
from prober.config.problems import Problems
from prober.config.serving import resolve_tls
from prober.config.specs import GrafanaSpec
from prober.config.units import duration

SHORTEST_S = duration("1m")


def resolve_grafana(block: models.Grafana | None, problems: Problems) -> GrafanaSpec | None:
    """Settings of Grafana; None if the block is missing or invalid."""
    if block is None:
        return None
    if problem := flaw(block.url):
        problems.add("grafana.url", problem)
    if block.interval < SHORTEST_S:
        problems.add(
            "grafana.interval", f"{block.interval:g}s is more often than anybody edits a dashboard; use 1m or more"
        )
    if not (block.dashboards or block.annotations):
        problems.add("grafana", "neither dashboards nor annotations are wanted; remove the block")
    tls = resolve_tls(block.tls, "grafana.tls", problems)
    if tls is not None and tls.server_name:
        problems.add("grafana.tls.server_name", "is for targets only; give the url the name in the certificate")
    return GrafanaSpec(
        block.url.rstrip("/"),
        block.auth.bearer_token_file,
        tls,
        block.folder,
        block.datasource,
        block.dashboards,
        block.annotations,
        block.interval,
    )


def flaw(url: str) -> str | None:
    """Error in the URL of Grafana, without its secrets."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as problem:
        why = "" if "@" in url else f": {problem}"  # the message may contain a password
        return f"is no address{why}; write https://grafana.example.org"
    if parts.username or parts.password:
        return "has a user or password in it; give the token as a file"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{url!r} is not an http or https URL; write https://grafana.example.org"
    if parts.query or parts.fragment:
        return f"{url!r} is not a base URL; remove the part after ? or #"
    return None
