"""One visit to Grafana in a process of its own.

`python -m prober.features.grafana.client.visit` reads an order from standard input and writes the result to standard output.

The client library takes 25 MB and 0.2 s to import, and Python lets two threads take turns of 5 ms: in the prober's own process
it would spoil the stamps of probes that end meanwhile.
"""

import json
import resource
import signal
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from prober.config.specs import GrafanaSpec, TlsSpec
from prober.features.grafana.client.marks import Mark
from prober.net.address import refuse_link_local

MEMORY_BYTES = 256 << 20
LONGEST_S = 300  # after which it ends, whatever it waits for


@dataclass(frozen=True, slots=True)
class Order:
    """What to do there: push the dashboards, make the marks."""

    spec: GrafanaSpec
    dashboards: bool
    marks: tuple[Mark, ...] = ()

    def as_json(self) -> str:
        """For `order_of`."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Came:
    """What came of it. dashboards: (title, state, detail) of each, None where nothing was pushed; failures: words by duty."""

    dashboards: list[tuple[str, str, str]] | None = None
    marks: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def order_of(text: str) -> Order:
    """The order in its JSON."""
    read: dict[str, Any] = json.loads(text)
    spec = read["spec"]
    tls = TlsSpec(**spec.pop("tls")) if spec["tls"] else spec.pop("tls")
    marks = tuple(Mark(each["time_ms"], each["end_ms"], tuple(each["tags"]), each["text"]) for each in read["marks"])
    return Order(GrafanaSpec(tls=tls, **spec), read["dashboards"], marks)


def came_of(text: str) -> Came:
    """What a visit wrote. Raises ValueError."""
    try:
        read: dict[str, Any] = json.loads(text)
        dashboards = read["dashboards"]
        return Came(
            None if dashboards is None else [tuple(each) for each in dashboards], read["marks"], read["failures"]
        )
    except (KeyError, TypeError) as problem:
        raise ValueError(f"a visit wrote something else than what came of it: {problem!r}") from None


def visit(order: Order) -> Came:
    """Do it; each duty fails for itself."""
    from prober.features.grafana.client.marks import annotate
    from prober.features.grafana.client.push import Wish, push
    from prober.features.grafana.client.server import Refused, Server
    from prober.features.grafana.dashboards import files
    from prober.storage.watched_file import Secret

    spec = order.spec
    secret = Secret(spec.token_file)
    token = secret.read()
    duties = [name for name, due in (("dashboards", order.dashboards), ("annotations", bool(order.marks))) if due]
    if token is None:
        return Came(failures=dict.fromkeys(duties, f"grafana.{secret.problem}"))
    tls = spec.tls or TlsSpec(None, insecure_skip_verify=False)
    failures: dict[str, str] = {}
    dashboards: list[tuple[str, str, str]] | None = None
    marks = 0
    pair = (tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None
    with Server(spec.url, token, ca_file=tls.ca_file, insecure=tls.insecure_skip_verify, pair=pair) as server:
        if "dashboards" in duties:
            try:
                documents = [json.loads(text) for text in files().values()]
                report = push(server, documents, Wish(spec.folder, spec.datasource))
                dashboards = [(each.title, each.state, each.detail) for each in report.dashboards]
                failed = [each.detail for each in report.dashboards if each.state == "failed"]
                failures |= {"dashboards": failed[0]} if failed else {}
            except Refused as refusal:
                failures["dashboards"] = str(refusal)
        if "annotations" in duties:
            try:
                marks = annotate(server, list(order.marks))
            except Refused as refusal:
                failures["annotations"] = str(refusal)
    return Came(dashboards, marks, failures)


def main() -> None:
    """Order on standard input, what came of it on standard output, as JSON."""
    signal.alarm(LONGEST_S)
    refuse_link_local()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))  # whatever an answer unpacks to
    print(json.dumps(asdict(visit(order_of(sys.stdin.read())))))  # noqa: T201 - the answer to who started it


if __name__ == "__main__":
    main()
