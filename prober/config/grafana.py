"""Grafana, to which dashboards and annotations are written."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from prober.config.fields import Block, Duration, at_least, mistake
from prober.config.server import Auth, TlsSpec, server_auth, server_problem, server_tls


def url_problem(url: str) -> str:
    """Error in the URL of Grafana, without its secrets; empty if it is valid."""
    problem = server_problem(url, "https://grafana.example.org")
    return problem or ("has a query or fragment; give the base address only" if set(url) & set("?#") else "")


def _base_url(url: str) -> str:
    if problem := url_problem(url):
        raise mistake(problem)
    return url.rstrip("/")


class GrafanaSpec(Block):
    """Grafana for dashboards and annotations. url: without a slash at its end."""

    url: Annotated[str, AfterValidator(_base_url)] = Field(description="base URL, with its path prefix")
    auth: Annotated[Auth, AfterValidator(server_auth)] = Field(description="token of a service account")
    tls: Annotated[TlsSpec, AfterValidator(server_tls)] | None = Field(None, description="settings for https")
    folder: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        "LLM SLO prober", description="title or uid of the dashboards' folder; created if it is missing"
    )
    datasource: str | None = Field(
        None, description="name or uid of the default Prometheus of the dashboards; absent: Grafana's default"
    )
    dashboards: bool = Field(True, description="keep the dashboards up to date; edited ones are not overwritten")
    annotations: bool = Field(True, description="annotate sweeps, drift and changes of the engine")
    interval: Annotated[
        Duration,
        at_least(60.0),
    ] = Field(3600.0, description="time between checks of the dashboards, at least 1m")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.dashboards or self.annotations):
            raise mistake("neither dashboards nor annotations are wanted; remove the block")
        return self
