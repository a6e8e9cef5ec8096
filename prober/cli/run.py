"""`prober run`: the daemon. Options are named like Prometheus's."""

import os
from typing import Annotated

import typer

from prober.cli.daemon import OF_URLS, run_app, url_configuration
from prober.cli.exit_codes import exit_on
from prober.cli.options import ConfigFile, ListenAddress, RareOption, quantity, split_file
from prober.cli.output import echo
from prober.config.units import count, duration
from prober.net.log_lines import Format, Level, log_to_stderr
from prober.probing.replicas import Shard


def run(
    urls_or_file: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE or URL]...",
            help="YAML configuration, or targets to probe with the defaults; default: prober.yaml.",
        ),
    ] = None,
    config_file: ConfigFile = "",
    listen_address: ListenAddress = ":9742",
    external_url: Annotated[
        str, RareOption("--web.external-url", help="http or https URL at which users reach the prober.")
    ] = "",
    grafana_url: Annotated[
        str,
        RareOption("--web.grafana-url", help="URL at which users reach Grafana; the page links to its dashboards."),
    ] = "",
    route_prefix: Annotated[
        str, RareOption("--web.route-prefix", help="Path prefix of all pages; default: the path of the external URL.")
    ] = "",
    admin_api: Annotated[
        bool,
        typer.Option(
            "--web.enable-admin-api", help="Allow probes, sweeps and pauses to be requested on the page and over HTTP."
        ),
    ] = False,
    web_config_file: Annotated[
        str | None,
        typer.Option(
            "--web.config.file", help="TLS and passwords of the pages, in the format of Prometheus's exporter-toolkit."
        ),
    ] = None,
    keep_running: Annotated[
        bool,
        RareOption(
            "--keep-running",
            help="Wait for a valid configuration, address or web configuration instead of exiting, and keep state in memory "
            "while storage cannot be used. For a sidecar, which must not take its engine out of service.",
        ),
    ] = False,
    history_limit: Annotated[
        int, RareOption("--history.limit", min=1, help="Successful probes kept per target.")
    ] = 100,
    shutdown_timeout: Annotated[
        str,
        RareOption("--shutdown.timeout", help="Time for probes in flight after SIGTERM; a plain number is in seconds."),
    ] = "20s",
    storage_path: Annotated[
        str | None,
        typer.Option("--storage.path", help="Directory for state that survives a restart; default: memory only."),
    ] = None,
    storage_max_size: Annotated[
        str | None,
        RareOption("--storage.max-size", help="Bytes that --storage.path may take, such as 56M; default: no limit."),
    ] = None,
    shard: Annotated[
        str,
        typer.Option("--shard", help="I/N: shard I (from 0) of N; ordinal/N: I is taken from POD_NAME."),
    ] = "0/1",
    vantage: Annotated[
        str,
        RareOption(
            "--vantage",
            help="Name of the place from which this prober probes, if several probe one target; a label of every series about targets.",
        ),
    ] = "",
    lease_name: Annotated[
        str | None,
        RareOption(
            "--lease.name",
            help="Kubernetes Lease whose holder sweeps and writes to Grafana; the shard is appended to the name.",
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None, RareOption("--lease.namespace", help="Namespace; default: the pod's.")
    ] = None,
    lease_api_server: Annotated[
        str | None,
        RareOption("--lease.api-server", help="URL of the API server; default: the pod's."),
    ] = None,
    lease_token_file: Annotated[str | None, RareOption("--lease.token-file", help="Token of the API server.")] = None,
    lease_ca_file: Annotated[str | None, RareOption("--lease.ca-file", help="CA of the API server.")] = None,
    lease_duration: Annotated[
        str,
        RareOption("--lease.duration", help="Time without a renewal after which another replica takes the lease."),
    ] = "15s",
    log_level: Annotated[Level, typer.Option("--log.level")] = Level.INFO,
    log_format: Annotated[Format, RareOption("--log.format")] = Format.LOGFMT,
) -> None:
    """Probe the configured targets, or those of the URLs, until SIGTERM."""
    urls, config_file = split_file("run", urls_or_file or (), config_file)
    log_to_stderr(log_level, log_format)
    from prober.config.configuration import url_problem
    from prober.daemon.app import App, Options
    from prober.daemon.registry import vantage_name
    from prober.features.replicas.leadership import LeaseOptions
    from prober.web.site import external_address, host_and_port

    with exit_on(ValueError, command="run"):
        own_shard = quantity("--shard", shard, lambda text: Shard.parse(text, os.environ.get("POD_NAME")))
        own_vantage = quantity("--vantage", vantage, vantage_name)
        quantity("--web.listen-address", listen_address, host_and_port)
        external = quantity("--web.external-url", external_url, external_address) if external_url else ""
        if grafana_url and (wrong := url_problem(grafana_url)):
            raise ValueError(f"--web.grafana-url: {wrong}")
        lease_s = quantity("--lease.duration", lease_duration, duration)
        max_bytes = None if storage_max_size is None else quantity("--storage.max-size", storage_max_size, count)
        drain_s = quantity("--shutdown.timeout", shutdown_timeout, patience_s)
    text = url_configuration("run", urls) if urls else None
    if text:
        echo(f"# Configuration in use. Save it as prober.yaml, with slos:, to change it.\n{text.rstrip()}")
    options = Options(
        OF_URLS if text else config_file or "prober.yaml",
        listen_address,
        external,
        grafana_url.rstrip("/"),
        route_prefix,
        storage_path,
        history_limit=history_limit,
        admin_api=admin_api,
        web_config_file=web_config_file,
        drain_s=drain_s,
        shard=own_shard,
        vantage=own_vantage,
        lease=LeaseOptions(lease_name, lease_namespace, lease_api_server, lease_token_file, lease_ca_file, lease_s),
        keep_running=keep_running,
        storage_max_bytes=max_bytes,
        config_text=text,
    )

    run_app("run", App(options))


def patience_s(text: str) -> float:
    """Parse a duration such as `30`, `30s` or `2m`; a bare number is in seconds. Raises ValueError."""
    return duration(f"{text}s" if text.replace(".", "", 1).isdecimal() else text)
