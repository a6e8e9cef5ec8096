"""Truth: forty answers of the wire suite over HTTP. Which does a client call a success, with how many tokens, and what TTFT?

Each client sends one request after the other, and each gets the next answer. A good answer is one that any client of OpenAI reads to
its end; a bad one is cut, an error inside a 200, an error status, or no answer at all. What tools may rightly dispute is left out: a
missing `[DONE]`, a length that was not reached, unusual HTTP.
"""

import contextlib
import re
import socket
import socketserver
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.report import goal, part
from bench.rivals.clients import CLIENTS, OURS, Client, Load, Run, Seen, run
from tests.wire.case import ANSWER, FIN, FIRST, HOLD, RST, Case, Mark
from tests.wire.events import DONE, ROLE, chat, end, usage
from tests.wire.families import CALL, PIECE
from tests.wire.heads import stream
from tests.wire.table import read_cases

TIMEOUT_S, LEAST_S = 120.0, 10.0
TOKENS = 4
HOLD_S = 3.0
TTFT_TOLERANCE_S = 0.015  # less than the time between two tokens
MODELS = '{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'

# One of the table has three tokens, where this load forces four.
TOOL_CALLS = Case(
    "a tool call of four tokens",
    "ok",
    stream(
        *(ROLE, 0.02, FIRST, chat({"tool_calls": [CALL]})),
        *(
            0.02,
            chat({"tool_calls": [PIECE]}),
            0.02,
            chat({"tool_calls": [PIECE]}),
            0.02,
            chat({"tool_calls": [PIECE]}),
        ),
        *(end("tool_calls"), usage(4), DONE),
    ),
    "tool calls are content",
)
UNKNOWN = -1
# name: tokens of a good answer, UNKNOWN: the server does not say; None: bad
ANSWERS: dict[str, int | None] = {
    "vLLM's answer with usage in its own chunk": 4,
    "last chunk between two content chunks": None,
    "role chunk 0.15 s before the content": 4,
    "closed between two content chunks": None,
    "reasoning, then content": 4,
    "reset between two content chunks": None,
    "a tool call of four tokens": 4,
    "closed behind the role chunk": None,
    "comments do not start TTFT": 4,
    "Content-Length not reached in mid-answer": None,
    "NIM: vLLM's wire with a trailing comment": 4,
    "reset before the answer": None,
    "Content-Length stream": 4,
    "closed before the answer": None,
    "one byte a write": 4,
    "finish reason and [DONE] without content": None,
    "the whole answer in one write": 4,
    "role only, then [DONE]": None,
    "chunks that split events and UTF-8 characters": 4,
    "empty body": None,
    "[DONE] split over two writes": 4,
    "comments only, then a clean end": None,
    "vLLM with continuous usage": 4,
    "vLLM: error between tokens, [DONE] behind it": None,
    "LM Studio: usage in the last chunk, statistics behind it": 4,
    "OpenAI's error object after content": None,
    "headers at once, content later": 4,
    "vLLM's old `object: error`": None,
    "last chunk 0.4 s after [DONE]": 4,
    "JSON error object with 200": None,
    "finish reason on the last content chunk": 4,
    "HTML under text/event-stream": None,
    "`error: null` on every chunk": 4,
    "gzip under text/event-stream": None,
    "no usage at all": UNKNOWN,
    "Python traceback in the middle of a stream": None,
    "`id` and `retry` fields on every event": 4,
    "closed inside a 503's body": None,
    "unknown fields": 4,
    "429 with Retry-After in seconds": None,
}


@dataclass
class Served:
    """What the server did for a request. first_s: from the request's arrival to its marks, by mark"""

    case: Case
    first_s: dict[Mark, float] = field(default_factory=dict)


class Server(socketserver.ThreadingTCPServer):
    """Serves the cases in turn; a request that is sent again at once gets the same case."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(self, cases: list[Case]) -> None:
        self.cases, self.served, self.last_body, self.lock = cases, list[Served](), b"", threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    def next_case(self, body: bytes) -> Served:
        """The case of a request."""
        with self.lock:
            if body != self.last_body:
                self.served.append(Served(self.cases[len(self.served) % len(self.cases)]))
            self.last_body = body
            return self.served[-1]


class Handler(socketserver.StreamRequestHandler):
    """A connection, with one request after the other."""

    server: Server

    def handle(self) -> None:
        """Answer until somebody ends the connection."""
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while (head := self._head()) and self._answer(head):
                pass

    def _head(self) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line:
                return b""
            head += line
        return head

    def _answer(self, head: bytes) -> bool:
        """Returns whether the connection goes on."""
        length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
        body = self.rfile.read(int(length[1])) if length else b""
        if not head.startswith(b"POST ") or b"/chat/completions" not in head.split(b"\r\n")[0]:
            is_models = b"/models" in head.split(b"\r\n")[0]
            status, text = ("200 OK", MODELS) if is_models else ("404 Not Found", "{}")
            if b"/health" in head.split(b"\r\n")[0]:
                status = "200 OK"
            fields = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
            self.wfile.write(f"{fields}\r\n\r\n{text}".encode())
            return True
        return self._play(self.server.next_case(body))

    def _play(self, served: Served) -> bool:
        received_s, mark = time.monotonic(), None
        for step in served.case.script:
            if isinstance(step, float):
                time.sleep(step)
            elif isinstance(step, Mark):
                mark = step
            elif isinstance(step, bytes):
                if mark is not None:
                    served.first_s.setdefault(mark, time.monotonic() - received_s)
                mark = None
                self.wfile.write(step)
            elif step is RST:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return False
            elif step is FIN:
                return False
            elif step is HOLD:
                time.sleep(HOLD_S)
                return False
        return True


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server of the forty answers."""
    known = {case.name: case for case in (*read_cases(), TOOL_CALLS)}
    with Server([known[name] for name in ANSWERS]) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def measure(client: Client, clients: Path, timeout_s: float) -> dict[str, Any]:
    """What a client says of the answers."""
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as path, serving() as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        done = run(client, Load(clients, Path(path), url, None, len(ANSWERS), TOKENS), timeout_s)
        return judged(done, server.served)


def judged(done: Run, served: list[Served]) -> dict[str, Any]:
    """What is wrong with a client's report, by answer. Requests are paired in order, with those that were sent last."""
    found: dict[str, Any] = {"command": done.command, "sent": len(served)}
    if done.seen is None:
        return found | {"problem": done.problem}
    if len(served) < len(done.seen):
        return found | {"problem": f"reports {len(done.seen)} requests, and sent {len(served)}"}
    answers = served[len(served) - len(done.seen) :]
    wrong: dict[str, list[str]] = {"verdict": [], "tokens": [], "ttft": []}
    for seen, answer in zip(done.seen, answers, strict=True):
        for kind, words in faults(seen, answer):
            wrong[kind].append(f"{answer.case.name}: {words}")
    return found | {"reported": len(done.seen), "wrong": wrong}


def faults(seen: Seen, answer: Served) -> Iterator[tuple[str, str]]:
    """(kind, words) of each thing that is wrong. TTFT may be that of reasoning or of the answer."""
    tokens = ANSWERS[answer.case.name]
    if seen.is_success != (tokens is not None):
        yield "verdict", f"called a {'success' if seen.is_success else 'failure'}"
    if tokens is None or not seen.is_success:
        return
    if tokens != UNKNOWN and seen.tokens != tokens:
        yield "tokens", f"{seen.tokens} tokens, not {tokens}"
    true_s = [answer.first_s[mark] for mark in (FIRST, ANSWER) if mark in answer.first_s]
    if true_s and (seen.ttft_s is None or min(abs(seen.ttft_s - one) for one in true_s) > TTFT_TOLERANCE_S):
        ttft = "none" if seen.ttft_s is None else f"{seen.ttft_s * 1e3:.0f} ms"
        yield "ttft", f"TTFT {ttft}, not {true_s[0] * 1e3:.0f} ms"


def play(clients: Path, deadline_s: float) -> dict[str, Any]:
    """All clients, until the deadline of the monotonic clock."""
    found: dict[str, Any] = {}
    for client in CLIENTS:
        left_s = deadline_s - time.monotonic()
        enough = left_s > LEAST_S
        found[client.name] = part(
            f"truth, {client.name}",
            measure(client, clients, min(TIMEOUT_S, left_s)) if enough else {"problem": "no time was left"},
        )
    return found


def goals(found: dict[str, Any]) -> list[dict[str, Any]]:
    """No wrong verdict, number of tokens or TTFT of ours."""
    wrong = found[OURS.name].get("wrong")
    titles = {"verdict": "wrong verdicts", "tokens": "wrong or no numbers of tokens", "ttft": "wrong or no TTFTs"}
    return [
        goal(f"truth: {title} of {len(ANSWERS)} answers", len(wrong[kind]) if wrong else len(ANSWERS), 0, "answers")
        for kind, title in titles.items()
    ]
