"""Runs the daemon for a command: writes a configuration for URLs, and runs the process until probing has ended."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.main import hold_signals
from prober.config.problems import ConfigError
from prober.measure.printable import mask_secrets
from prober.net.libc import configure_malloc

if TYPE_CHECKING:
    from prober.daemon.app import App

OF_URLS = "of the URLs"  # name of their configuration in logs and errors
THREADS_END_S, POLL_S = 2.0, 0.02  # threads access files and Grafana
log = logging.getLogger(__name__)


def url_configuration(
    command: str,
    urls: Sequence[str],
    rate: str | None = None,
    fields: Mapping[str, Any] | None = None,
    slos: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Write a configuration with these targets as YAML.

    rate: rate of the probes, None: the default; fields: further fields of each target; slos: blocks of `slos` by name

    Exits with WRONG_CALL for an invalid URL, and for one with credentials, which must not be printed.
    """
    import yaml

    from prober.config.server import base_url
    from prober.config.target import TargetSpec

    for url in urls:
        try:
            base_url(url)
        except ValueError as problem:
            fail(f"prober {command}: URL {mask_secrets(url)}: {problem}", ExitCode.WRONG_CALL)
    defaults, hosts = TargetSpec.model_fields, [urlsplit(url).netloc for url in urls]
    names = [host if hosts.count(host) == 1 else url.partition("://")[2] for host, url in zip(hosts, urls, strict=True)]
    blocks: dict[str, Any] = {"slos": {name: dict(block) for name, block in slos.items()}} if slos else {}
    blocks["defaults"] = {
        "rate": rate or f"{defaults['rate'].default:g}/s",
        "max_in_flight": defaults["max_in_flight"].default,
    }
    blocks["targets"] = [
        {"name": name, "url": url, **(fields or {}), "probes": [{"workload": "probe"}]}
        for name, url in zip(names, urls, strict=True)
    ]
    return str(yaml.safe_dump(blocks, sort_keys=False))


def run_app(command: str, app: "App") -> None:
    """Run the daemon until it ends. If it must restart, replace this process. Exits with FAILED if it cannot start."""

    async def serve() -> None:
        threads = ThreadPoolExecutor()
        asyncio.get_running_loop().set_default_executor(threads)
        await app.run()
        hold_signals()
        await asyncio.sleep(POLL_S)  # lets the loop handle earlier signals
        if app.should_restart:
            if app.pod_ends:
                signal.raise_signal(signal.SIGUSR1)
            logging.shutdown()
            # Keep the process, so that a kubelet waiting for its end sees none.
            os.execv(sys.executable, sys.orig_argv)
        end = threading.Thread(target=threads.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        end.start()
        end.join(THREADS_END_S)
        if end.is_alive():
            log.warning(
                "a file is still being read, or a Grafana called, after the end of probing; the process ends without it"
            )
            logging.shutdown()
            os._exit(ExitCode.OK)  # otherwise Python waits for a thread that nothing can end

    configure_malloc()
    try:
        asyncio.run(serve())
    except (ConfigError, OSError) as problem:
        fail(f"prober {command}: {problem}", ExitCode.FAILED)
