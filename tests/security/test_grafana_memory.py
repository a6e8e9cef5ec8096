"""A Grafana that answers with a compressed bomb: its process ends before the container of the prober runs out of memory."""

import gzip
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prober.config.grafana import GrafanaSpec
from prober.config.server import Auth
from prober.features.grafana.client.sync import REQUEST, SyncRequest

CONTAINER_BYTES = 256 << 20
DAEMON_BYTES = 120 << 20  # what a sidecar has taken at most

SYNCHRONISE = """
import pathlib, sys
from prober.daemon.grafana_sync import documents, main
try:
    main(lambda: documents().values())
except MemoryError as error:
    print(repr(error), file=sys.stderr)
status = pathlib.Path("/proc/self/status").read_text()
print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


class Bomb(http.server.BaseHTTPRequestHandler):
    body = gzip.compress(b" " * (1 << 20)) * 400  # members of one file

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def bomb() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bomb)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_bomb_ends_its_process_only(bomb: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    spec = GrafanaSpec(url=bomb, auth=Auth(bearer_token_file=str(tmp_path / "token")))
    done = subprocess.run(
        [sys.executable, "-c", SYNCHRONISE],
        input=REQUEST.dump_json(SyncRequest(spec, True)).decode(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MemoryError" in done.stderr or json.loads(done.stdout)["failures"], done
    assert int(done.stderr.split()[-1]) * 1024 + DAEMON_BYTES < CONTAINER_BYTES
