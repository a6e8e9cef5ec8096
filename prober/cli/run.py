"""`prober run`: the daemon. Flags are named as Prometheus people know them."""

import json
import logging
import sys
import time
from enum import StrEnum
from typing import Annotated

import typer
import uvloop

from prober.config.load import ConfigError


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Format(StrEnum):
    """How a line of the log is written."""

    LOGFMT = "logfmt"
    JSON = "json"


def run(
    config_file: Annotated[str, typer.Option("--config.file", help="YAML configuration.")] = "prober.yaml",
    listen_address: Annotated[str, typer.Option("--web.listen-address", help="host:port or :port.")] = ":9742",
    external_url: Annotated[str, typer.Option("--web.external-url", help="Address at which people reach it.")] = "",
    route_prefix: Annotated[str, typer.Option("--web.route-prefix", help="Path all pages are below.")] = "",
    admin_api: Annotated[
        bool,
        typer.Option(
            "--web.enable-admin-api", help="Let probes, sweeps and pauses be asked for, on the page and over HTTP."
        ),
    ] = False,
    history_limit: Annotated[int, typer.Option("--history.limit", min=1, help="Successes kept a target.")] = 100,
    drain_s: Annotated[
        float, typer.Option("--shutdown.timeout", min=0, help="Seconds that probes under way have after SIGTERM.")
    ] = 20.0,
    storage_path: Annotated[
        str | None, typer.Option("--storage.path", help="Folder for what must survive a restart; none: memory only.")
    ] = None,
    log_level: Annotated[Level, typer.Option("--log.level")] = Level.INFO,
    log_format: Annotated[Format, typer.Option("--log.format")] = Format.LOGFMT,
) -> None:
    """Probe the configured targets until SIGTERM."""
    _log_to_stderr(log_level, log_format)
    from prober.daemon.app import App, Options

    options = Options(
        config_file,
        listen_address,
        external_url,
        route_prefix,
        storage_path,
        history_limit=history_limit,
        admin_api=admin_api,
        drain_s=drain_s,
    )

    async def serve() -> None:
        await App(options).run()

    try:
        uvloop.run(serve())
    except (ConfigError, OSError) as problem:
        print(f"prober: {problem}", file=sys.stderr)
        sys.exit(1)


class _Line(logging.Formatter):
    def __init__(self, kind: Format) -> None:
        super().__init__()
        self._kind = kind

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        if self._kind is Format.JSON:
            return json.dumps({"time": at, "level": record.levelname.lower(), "logger": record.name, "msg": message})
        return f"time={at} level={record.levelname.lower()} msg={json.dumps(message, ensure_ascii=False)}"


def _log_to_stderr(level: Level, kind: Format) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(kind))
    logging.basicConfig(level=level.upper().replace("WARN", "WARNING"), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
