"""A Grafana that answers with gigabytes: the response is refused before it takes the memory of the prober's container."""

import gzip
import http.server
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from prober.features.grafana import GrafanaError
from prober.features.grafana.client import connected

MEMBER = gzip.compress(b" " * (1 << 20))
LIMIT_BYTES = 16 << 20


class Bomb(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        compressed = self.path.startswith("/gzip/")
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path.startswith("/page/") else "application/json")
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            for _ in range(400):
                if self.path.startswith("/slow/"):
                    time.sleep(0.01)
                    self.wfile.write(b" ")
                else:
                    self.wfile.write(MEMBER if compressed else b" " * (1 << 20))
        except ConnectionError:
            pass

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def bomb() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bomb)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "message"),
    [("gzip", "compressed"), ("long", "has more than"), ("slow", "has more than"), ("page", "has more than")],
)
def test_a_bomb_is_refused(bomb: str, path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, though identity was asked; without an end; byte by byte; and a page."""
    monkeypatch.setattr("prober.features.grafana.client.MAX_BODY_S", 0.1 if path == "slow" else 300.0)
    tracemalloc.start()
    with connected(f"{bomb}/{path}", "token") as api, pytest.raises(GrafanaError, match=message):
        api.folder.get_all_folders()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < LIMIT_BYTES
