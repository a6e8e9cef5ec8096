"""A Grafana that answers with gigabytes: the response is refused before it takes the memory of the prober's container."""

import gzip
import tracemalloc
from collections.abc import Iterator

import pytest

from prober.features.grafana import GrafanaError
from prober.features.grafana.client import connected
from tests.scripted import Asked, threaded
from tests.wire.case import Step
from tests.wire.heads import head

MEMBER = gzip.compress(b" " * (1 << 20))
LIMIT_BYTES = 16 << 20


def bomb(asked: Asked) -> Iterator[Step]:
    """400 MiB; slow: byte by byte."""
    kind = "text/html" if asked.path.startswith("/page/") else "application/json"
    is_gzip = asked.path.startswith("/gzip/")
    yield head("200 OK", f"Content-Type: {kind}", *(["Content-Encoding: gzip"] if is_gzip else []))
    for _ in range(400):
        yield from (0.01, b" ") if asked.path.startswith("/slow/") else (MEMBER if is_gzip else b" " * (1 << 20),)


@pytest.mark.parametrize(
    ("path", "message"),
    [("gzip", "compressed"), ("long", "has more than"), ("slow", "has more than"), ("page", "is not JSON")],
)
def test_a_bomb_is_refused(path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, though identity was asked; without an end; byte by byte; and a page."""
    monkeypatch.setattr("prober.features.grafana.client.MAX_BODY_S", 0.1 if path == "slow" else 300.0)
    tracemalloc.start()
    with threaded(bomb) as url, connected(f"{url}/{path}", "token") as api, pytest.raises(GrafanaError, match=message):
        api.folder.get_all_folders()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < LIMIT_BYTES
