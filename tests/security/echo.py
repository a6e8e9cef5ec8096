"""A server that says back all it was sent, in every place where words of a server end up: as an engine, as the list of an http
discovery, and as a Kubernetes API server."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

CHUNK = 'data: {{"model":"m","choices":[{{"delta":{{"content":{}}}}}]}}\n\n'
END = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
JSON = "application/json"
PODS, LEASES = "/api/v1/namespaces/default/pods", "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MODES = ("well", "rejected", "failing", "in_stream", "malformed", "no_http", "plain", "closed")


class Echo(ThreadingHTTPServer):
    """mode: how it answers what is asked of a model; it is set while it runs. `with` ends it.

    As a list and as an API server it first fails in every way that it knows, then goes well.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = "well"
        self.heard: list[str] = []
        self.requests = Counter[str]()  # by kind
        self.lease: dict[str, Any] = {}
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
        received = self._received()
        if self.path.startswith("/list"):
            self._list(received)
        elif self.path.startswith(PODS):
            self._pods(received)
        elif self.path.startswith(LEASES):
            self._lease(received)
        elif self.path.endswith("/models"):
            if self.server.mode in ("well", "in_stream", "plain", "malformed"):
                self._answer(200, json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}), JSON)
            else:
                self._answer(401, json.dumps({"error": {"message": received}}), JSON)
        elif self.path.endswith("/metrics"):
            self._answer(200, f"vllm:num_requests_running {received}\n{received}\n", "text/plain")
        else:
            self._answer(404, received, "text/plain")

    def do_POST(self) -> None:
        received, mode = self._received(), self.server.mode
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith(LEASES):
            self._keep(body, received)
            return
        content = CHUNK.format(json.dumps(received))
        match mode:
            case "rejected" | "failing":
                status = 401 if mode == "rejected" else 500
                self._answer(status, json.dumps({"error": {"message": f"no: {received}"}}), JSON)
            case "in_stream":
                self._answer(200, content + "data: " + json.dumps({"error": {"message": received}}) + "\n\n")
            case "malformed":
                self._answer(200, f"data: {received}\n\n")
            case "plain":
                self._answer(200, received, "text/html")
            case "no_http":
                self.wfile.write(received.encode() + b"\r\n\r\n")
                self.close_connection = True
            case "closed":
                self.close_connection = True
            case _:
                self._answer(200, content * json.loads(body).get("max_tokens", 24) + END)

    def do_PUT(self) -> None:
        self._keep(self.rfile.read(int(self.headers.get("Content-Length", 0))), self._received())

    def do_CONNECT(self) -> None:
        self._answer(407, self._received(), "text/plain")

    def _turn(self, kind: str) -> int:
        self.server.requests[kind] += 1
        return self.server.requests[kind]

    def _list(self, received: str) -> None:
        """The list that an http discovery reads."""
        token, query = self.headers.get("Authorization", "").removeprefix("Bearer "), self.path.rpartition("=")[2]
        received = f"{token} {query} {received}"  # first, as of some things only the beginning is told
        group: dict[str, Any] = {"targets": [self.server.address], "labels": {"__path__": "/found/v1"}}
        match self._turn("list"):
            case 1:
                self._answer(401, received, "text/plain")
            case 2:
                self._answer(200, json.dumps([{received: 1, **group}]), JSON)
            case 3:
                self._answer(200, json.dumps([group | {"labels": {received: None}}]), JSON)
            case 4:
                self.wfile.write(received.encode() + b"\r\n\r\n")
                self.close_connection = True
            case number if number % 2:
                self._answer(200, "[]", received.replace(";", ","))
            case _:
                self._answer(200, json.dumps([group]), JSON)

    def _pods(self, received: str) -> None:
        """A list, and a watch that is over at once."""
        listed = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [self._pod()]}
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1"}}}
        if "watch=" not in self.path:
            match self._turn("pods"):
                case 1:
                    self._status(401, received)
                case 2:
                    self._answer(200, received, JSON)
                case _:
                    self._answer(200, json.dumps(listed), JSON)
            return
        match self._turn("watch"):
            case 1:
                event: Any = {"type": "ERROR", "object": {"code": 500, "reason": received, "message": received}}
            case 2:
                event = {"type": received, "object": received}
            case 3:
                event = received
            case _:
                event = bookmark
        self._answer(200, (event if event is received else json.dumps(event)) + "\n", JSON)

    def _pod(self) -> dict[str, Any]:
        host, _, port = self.server.address.partition(":")
        ready = [{"type": "Ready", "status": "True"}]
        return {
            "metadata": {"name": "pod", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": int(port)}]}]},
            "status": {"phase": "Running", "podIP": host, "conditions": ready},
        }

    def _lease(self, received: str) -> None:
        """Not to be had at first, then nobody's, then of whoever took it."""
        spec = {"holderIdentity": received, "leaseDurationSeconds": 1, "leaseTransitions": 1}
        match self._turn("lease"):
            case 1:
                self._status(403, received)
            case 2:
                spec["leaseDurationSeconds"] = received
                self._answer(200, json.dumps({"metadata": {"resourceVersion": "1"}, "spec": spec}), JSON)
            case 3:
                self._answer(200, json.dumps({"metadata": {"resourceVersion": "1"}, "spec": spec}), JSON)
            case _ if self.server.lease:
                self._answer(200, json.dumps(self.server.lease), JSON)
            case _:
                self._status(404, received)

    def _keep(self, body: bytes, received: str) -> None:
        """The lease as it was written; once that fails."""
        if (number := self._turn("write")) == 2:
            self._status(500, received)
            return
        self.server.lease = json.loads(body)
        self.server.lease["metadata"]["resourceVersion"] = str(number)
        self._answer(200, json.dumps(self.server.lease), JSON)

    def _status(self, code: int, received: str) -> None:
        self._answer(
            code, json.dumps({"kind": "Status", "code": code, "reason": received, "message": f"no: {received}"}), JSON
        )

    def _received(self) -> str:
        received = " ".join([self.path, *(f"{name}: {value}" for name, value in self.headers.items())])
        self.server.heard.append(received)
        return " ".join([self.headers.get("Authorization", ""), *self.headers.values(), self.path])

    def _answer(self, status: int, body: str, kind: str = "text/event-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass
