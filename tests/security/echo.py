"""A server that says back all it was sent, in every place where words of a server end up: as an engine, as the list of an http
discovery, and as a Kubernetes API server."""

import json
from collections import Counter
from typing import Any, Self

from tests.scripted import Asked, Script, threaded
from tests.wire.heads import body

CHUNK = 'data: {{"model":"m","choices":[{{"delta":{{"content":{}}}}}]}}\n\n'
END = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM = "text/event-stream"
PODS, LEASES = "/api/v1/namespaces/default/pods", "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MODES = ("well", "rejected", "failing", "in_stream", "malformed", "no_http", "plain", "closed")


class Echo:
    """mode: how it answers what is asked of a model; it is set while it runs. `with` ends it.

    As a list and as an API server it first fails in every way that it knows, then goes well.
    """

    def __init__(self) -> None:
        self.mode = "well"
        self.heard: list[str] = []
        self.requests = Counter[str]()  # by kind
        self.lease: dict[str, Any] = {}
        self._serving = threaded(self._reply)
        self.address = self._serving.__enter__().removeprefix("http://")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)

    def _reply(self, asked: Asked) -> Script:
        headers = asked.headers
        self.heard.append(" ".join([asked.path, *(f"{name}: {value}" for name, value in headers.items())]))
        received = " ".join([headers.get("authorization", ""), *headers.values(), asked.path])
        if asked.method == "CONNECT":
            return answer(407, received, "text/plain")
        if asked.path.startswith(LEASES):
            return self._lease(received) if asked.method == "GET" else self._keep(asked.json, received)
        if asked.method == "POST":
            return self._completion(received, asked.json.get("max_tokens", 24))
        if asked.path.startswith("/list"):
            return self._list(headers.get("authorization", ""), asked.path.rpartition("=")[2], received)
        if asked.path.startswith(PODS):
            return self._pods(received, is_watch="watch=" in asked.path)
        if asked.path.endswith("/models"):
            if self.mode in ("well", "in_stream", "plain", "malformed"):
                return answer(200, {"data": [{"id": "m", "owned_by": "vllm"}]})
            return answer(401, {"error": {"message": received}})
        if asked.path.endswith("/metrics"):
            return answer(200, f"vllm:num_requests_running {received}\n{received}\n", "text/plain")
        return answer(404, received, "text/plain")

    def _completion(self, received: str, tokens: int) -> Script:
        content = CHUNK.format(json.dumps(received))
        match self.mode:
            case "rejected" | "failing":
                return answer(401 if self.mode == "rejected" else 500, {"error": {"message": f"no: {received}"}})
            case "in_stream":
                error = "data: " + json.dumps({"error": {"message": received}}) + "\n\n"
                return answer(200, content + error, STREAM)
            case "malformed":
                return answer(200, f"data: {received}\n\n", STREAM)
            case "plain":
                return answer(200, received, "text/html")
            case "no_http":
                return received.encode() + b"\r\n\r\n"
            case "closed":
                return ()
        return answer(200, content * tokens + END, STREAM)

    def _turn(self, kind: str) -> int:
        self.requests[kind] += 1
        return self.requests[kind]

    def _list(self, authorization: str, query: str, received: str) -> Script:
        """The list that an http discovery reads."""
        received = (
            f"{authorization.removeprefix('Bearer ')} {query} {received}"  # of some things only the beginning is told
        )
        group: dict[str, Any] = {"targets": [self.address], "labels": {"__path__": "/found/v1"}}
        match self._turn("list"):
            case 1:
                return answer(401, received, "text/plain")
            case 2:
                return answer(200, [{received: 1, **group}])
            case 3:
                return answer(200, [group | {"labels": {received: None}}])
            case 4:
                return received.encode() + b"\r\n\r\n"
            case number if number % 2:
                return answer(200, [], received.replace(";", ","))
        return answer(200, [group])

    def _pods(self, received: str, *, is_watch: bool) -> Script:
        """A list, and a watch that is over at once."""
        if not is_watch:
            listed = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [self._pod()]}
            return {1: status(401, received), 2: answer(200, received)}.get(self._turn("pods"), answer(200, listed))
        events: dict[int, Any] = {
            1: {"type": "ERROR", "object": {"code": 500, "reason": received, "message": received}},
            2: {"type": received, "object": received},
        }
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1"}}}
        turn = self._turn("watch")
        return answer(200, (received if turn == 3 else json.dumps(events.get(turn, bookmark))) + "\n")

    def _pod(self) -> dict[str, Any]:
        host, _, port = self.address.partition(":")
        ready = [{"type": "Ready", "status": "True"}]
        return {
            "metadata": {"name": "pod", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": int(port)}]}]},
            "status": {"phase": "Running", "podIP": host, "conditions": ready},
        }

    def _lease(self, received: str) -> Script:
        """Not to be had at first, then nobody's, then of whoever took it."""
        turn = self._turn("lease")
        if turn == 1:
            return status(403, received)
        if turn > 3:
            return answer(200, self.lease) if self.lease else status(404, received)
        duration = received if turn == 2 else 1
        spec = {"holderIdentity": received, "leaseDurationSeconds": duration, "leaseTransitions": 1}
        return answer(200, {"metadata": {"resourceVersion": "1"}, "spec": spec})

    def _keep(self, lease: dict[str, Any], received: str) -> Script:
        """The lease as it was written; once that fails."""
        if (number := self._turn("write")) == 2:
            return status(500, received)
        lease["metadata"]["resourceVersion"] = str(number)
        self.lease = lease
        return answer(200, lease)


def answer(status: int, content: Any, kind: str = "application/json") -> Script:
    """Texts as they are, other values as JSON."""
    return body(f"{status} Echo", content, f"Content-Type: {kind}", "Connection: close")


def status(code: int, received: str) -> Script:
    """A Status object of an API server."""
    return answer(code, {"kind": "Status", "code": code, "reason": received, "message": f"no: {received}"})
