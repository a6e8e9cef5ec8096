"""The complete configuration. A file is valid if `load` accepts it; a reload compares its targets with ==."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from prober.config.discovery import DiscoverySpec
from prober.config.document import Problems
from prober.config.fields import Block, Duration, Items, Percent, Rate, at_least, mistake, require
from prober.config.server import Auth, TlsSpec, http_url, server_auth, server_problem, server_tls
from prober.config.slos import SloSpec
from prober.config.target import Overridable, TargetSpec
from prober.config.workloads import WorkloadSpec
from prober.measure.objective import DAY_S, JudgedStream, Slo


def url_problem(url: str, example: str = "https://grafana.example.org") -> str:
    """Error in the URL of a site for people, without its secrets; empty if it is valid."""
    problem = server_problem(url, example)
    return problem or ("has a query or fragment; give the base address only" if set(url) & set("?#") else "")


def _base_url(url: str) -> str:
    if problem := url_problem(url):
        raise mistake(problem)
    return url.rstrip("/")


class GrafanaSpec(Block):
    """Grafana for dashboards and annotations. url: without a trailing slash"""

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
    interval: Annotated[Duration, at_least(60.0)] = Field(
        3600.0, description="time between checks of the dashboards, at least 1m"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.dashboards or self.annotations):
            raise mistake("neither dashboards nor annotations are wanted; remove the block")
        return self


class DriftSpec(Block):
    """Drift detection. false_alarms: per second and latency; material: smallest change that matters, as a ratio of the baseline"""

    false_alarms: Annotated[
        Rate, require(lambda per_s: per_s <= 1 / 3600, "is more than one an hour for each signal; use 1/h or less")
    ] = Field(1 / (30 * DAY_S), description="most false alarms per signal or check of a workload, at most 1/h")
    material: Annotated[
        Percent,
        require(
            lambda share: share >= 0.05,
            "{:.2%} cannot be told from the wander of a healthy engine; use 5% to 100%",
        ),
    ] = Field(0.2, description="smallest change of a latency that matters")
    accept_after: Duration = Field(7 * DAY_S, description="age at which a change becomes the new baseline")


class StorageSpec(Block):
    """Storage of state. path: folder; None: state is in memory only"""

    path: str | None = Field(
        None, description="folder for state that survives a restart; `--storage.path` overrides it"
    )


class PrometheusSpec(Block):
    """The Prometheus that scrapes this prober. url: without a trailing slash"""

    url: Annotated[
        str, AfterValidator(lambda text, info: http_url(text, info, "http://prometheus:9090").rstrip("/"))
    ] = Field(
        description="base URL of the Prometheus that scrapes this prober, for past latencies and demand; may contain `${NAME}` of the "
        "environment",
        repr=False,
    )


class Configuration(Block):
    """The complete configuration. Without arguments it has the defaults and no targets."""

    defaults: Overridable = Field(default_factory=Overridable, description="for all targets")
    slos: dict[str, SloSpec] = Field(default_factory=dict, description="name to objective")
    workloads: dict[str, WorkloadSpec] = Field(default_factory=dict, description="name to shape of request")
    drift: DriftSpec = Field(default_factory=DriftSpec, description="when a change of latencies or answers is reported")
    storage: StorageSpec = Field(default_factory=StorageSpec, description="state that survives a restart")
    prometheus: PrometheusSpec | None = Field(None, description="the Prometheus that scrapes this prober")
    grafana: GrafanaSpec | None = Field(None, description="Grafana for dashboards and annotations")
    targets: Items[TargetSpec] = Field((), description="targets to probe; needed without `discovery`")
    discovery: Items[DiscoverySpec] = Field((), description="sources of further targets")
    _warnings: tuple[str, ...] = PrivateAttr(())
    _file: Problems | None = PrivateAttr(None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about valid but risky values, as `source:line: path: message`."""
        return self._warnings

    @property
    def file(self) -> Problems:
        """The file from which the configuration was read, for messages with its lines."""
        assert self._file is not None, "set by `load`"
        return self._file

    @property
    def prometheus_url(self) -> str | None:
        """URL of the Prometheus; None if it is not configured."""
        return self.prometheus.url if self.prometheus is not None else None

    @property
    def probed(self) -> tuple[TargetSpec, ...]:
        """The configured targets, and for one with ranks each of them."""
        return tuple(each for target in self.targets for each in target.per_rank())

    @property
    def kinds(self) -> tuple[TargetSpec, ...]:
        """All targets, and per discovery a template of its targets."""
        return tuple(self.places.values())

    @property
    def places(self) -> dict[str, TargetSpec]:
        """The targets and templates of `kinds`, by their path in the file."""
        places = {f"targets[{index}]": target for index, target in enumerate(self.targets)}
        return places | {f"discovery[{index}].target": spec.template for index, spec in enumerate(self.discovery)}

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels that targets have in addition to the prober's own."""
        return tuple(sorted({name for kind in self.kinds for each in kind.per_rank()[:1] for name in each.labels}))

    def for_watching(self) -> Self:
        """The configuration for a second prober of the same targets: without storage, Grafana and sweeps."""
        targets = tuple(target.model_copy(update={"sweep": None}) for target in self.targets)
        discovery = tuple(spec.without_sweep() for spec in self.discovery)
        return self.model_copy(
            update={"storage": StorageSpec(), "grafana": None, "targets": targets, "discovery": discovery}
        )

    def uses(self) -> dict[Slo, list[JudgedStream]]:
        """SLO → streams of probes that it judges."""
        streams: dict[Slo, list[JudgedStream]] = {}
        for target in self.kinds:
            for slo, use in target.uses():
                streams.setdefault(slo, []).append(use)
        return streams

    def traffic_slos(self) -> list[Slo]:
        """SLOs that judge all requests of an engine."""
        return list(dict.fromkeys(slo for target in self.kinds for slo in target.traffic_slos))
