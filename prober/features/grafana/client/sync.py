"""A synchronisation with Grafana, in a separate process; `main` is its entry point.

The client library takes 25 MB and 0.2 s to import, building the dashboards takes 0.1 s, and Python threads switch every 5 ms: in the
prober's process this would make probes late.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from prober.config.grafana import GrafanaSpec
from prober.config.server import TlsSpec
from prober.features.grafana.client.marks import Mark
from prober.net.address import refuse_link_local

MEMORY_BYTES = 96 << 20  # it needs 34 MiB; with the prober beside it, it must stay within the 256 MiB of the manifests
PROCESS_TIMEOUT_S = 300
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """Work of one synchronisation: push the dashboards, create annotations from the marks."""

    spec: GrafanaSpec
    dashboards: bool
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Result of a synchronisation.

    dashboards: (title, state, detail) of each dashboard; None if none was pushed.
    marks: number of annotations created.
    failures: error message by task.
    """

    dashboards: list[tuple[str, str, str]] | None = None
    marks: int = 0
    failures: dict[str, str] = field(default_factory=dict)


REQUEST, RESULT = TypeAdapter(SyncRequest), TypeAdapter(SyncResult)  # their form in the pipes between both processes


def sync(request: SyncRequest, dashboards: Callable[[], Iterable[Json]]) -> SyncResult:
    """Run the synchronisation; a failed task does not stop the others. dashboards: builds the documents."""
    from prober.features.grafana.client.marks import annotate
    from prober.features.grafana.client.push import PushOptions, push
    from prober.features.grafana.client.server import GrafanaError, Server
    from prober.storage.watched_file import Secret

    spec = request.spec
    secret = Secret(spec.auth.secret_file)
    token = secret.read()
    tasks = [name for name, due in (("dashboards", request.dashboards), ("annotations", bool(request.marks))) if due]
    if token is None:
        return SyncResult(failures=dict.fromkeys(tasks, f"grafana.{secret.problem}"))
    tls = spec.tls or TlsSpec()
    failures: dict[str, str] = {}
    states: list[tuple[str, str, str]] | None = None
    marks = 0
    pair = (tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None
    with Server(spec.url, token, ca_file=tls.ca_file, insecure=tls.insecure_skip_verify, pair=pair) as server:
        if "dashboards" in tasks:
            try:
                report = push(server, dashboards(), PushOptions(spec.folder, spec.datasource))
                states = [(result.title, result.state, result.detail) for result in report.dashboards]
                failed = [result.detail for result in report.dashboards if result.state == "failed"]
                failures |= {"dashboards": failed[0]} if failed else {}
            except GrafanaError as error:
                failures["dashboards"] = str(error)
        if "annotations" in tasks:
            try:
                marks = annotate(server, list(request.marks))
            except GrafanaError as error:
                failures["annotations"] = str(error)
    return SyncResult(states, marks, failures)


def main(dashboards: Callable[[], Iterable[Json]]) -> None:
    """Read the request from standard input and write the result to standard output, as JSON."""
    signal.alarm(PROCESS_TIMEOUT_S)
    refuse_link_local()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))  # limits a decompressed response
    print(json.dumps(asdict(sync(REQUEST.validate_json(sys.stdin.read()), dashboards))))  # noqa: T201 - read by the parent process
