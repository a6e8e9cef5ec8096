"""An OpenAI-compatible server that says back all it was sent, in every place where words of a server end up."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

CHUNK = 'data: {{"model":"m","choices":[{{"delta":{{"content":{}}}}}]}}\n\n'
END = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
MODES = ("well", "rejected", "failing", "in_stream", "malformed", "no_http", "plain", "closed")


class Echo(ThreadingHTTPServer):
    """mode: how it answers what is asked of a model; it is set while it runs. `with` ends it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = "well"
        self.heard: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Echo
    protocol_version = "HTTP/1.1"
    sent: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        said = self._said()
        if self.path.endswith("/models"):
            if self.server.mode in ("well", "in_stream", "plain", "malformed"):
                self._answer(200, json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}), "application/json")
            else:
                self._answer(401, json.dumps({"error": {"message": said}}), "application/json")
        elif self.path.endswith("/metrics"):
            self._answer(200, f"vllm:num_requests_running {said}\n{said}\n", "text/plain")
        else:
            self._answer(404, said, "text/plain")

    def do_POST(self) -> None:
        said, mode = self._said(), self.server.mode
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = CHUNK.format(json.dumps(said))
        match mode:
            case "rejected" | "failing":
                status = 401 if mode == "rejected" else 500
                self._answer(status, json.dumps({"error": {"message": f"no: {said}"}}), "application/json")
            case "in_stream":
                self._answer(200, content + "data: " + json.dumps({"error": {"message": said}}) + "\n\n")
            case "malformed":
                self._answer(200, f"data: {said}\n\n")
            case "plain":
                self._answer(200, said, "text/html")
            case "no_http":
                self.wfile.write(said.encode() + b"\r\n\r\n")
                self.close_connection = True
            case "closed":
                self.close_connection = True
            case _:
                self._answer(200, content * 24 + END)

    def do_CONNECT(self) -> None:
        self._answer(407, self._said(), "text/plain")

    def _said(self) -> str:
        said = " ".join([self.path, *(f"{name}: {value}" for name, value in self.headers.items())])
        self.server.heard.append(said)
        return " ".join(self.headers.values())

    def _answer(self, status: int, body: str, kind: str = "text/event-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass
