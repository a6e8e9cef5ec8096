"""A server that sheds, written apart from the product and its mock: a limit of requests in progress, and a record of what it did."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from tests.scripted import Asked, Script, scripted
from tests.wire.case import Step
from tests.wire.events import DONE, chat, text, usage
from tests.wire.heads import JSON, UNTIL_CLOSE, body

TOKENS = 4


@dataclass
class SheddingServer:
    """Answers in `service_s` while fewer than `slots` requests are in progress, else with `status` at once.

    retry_after: text of the header, "" for none; pause_s: after it shed, it sheds everything for so long
    sheds: sheds only requests whose Authorization has this text
    log: (seconds of the loop, Authorization, status) of each request, in the order of arrival
    """

    slots: int
    service_s: float
    retry_after: str = "2"
    status: int = 429
    pause_s: float = 0.0
    sheds: str = ""
    log: list[tuple[float, str, int]] = field(default_factory=list)
    _busy: int = 0
    _closed_until_s: float = 0.0

    def run(self) -> AbstractAsyncContextManager[str]:
        """Serve until the end of the block."""
        return scripted(self._reply)

    def _reply(self, asked: Asked) -> Script:
        if asked.path.endswith("/models"):
            return body("200 OK", {"object": "list", "data": [{"id": "m", "object": "model"}]})
        if asked.method != "POST":
            return body("404 Not Found", "")
        key = asked.headers.get("authorization", "")
        may_shed = self.sheds in key
        is_full = self._busy >= self.slots
        if may_shed and (is_full or asked.at_s < self._closed_until_s):
            if is_full:
                self._closed_until_s = asked.at_s + self.pause_s
            self.log.append((asked.at_s, key, self.status))
            fields = [f"Retry-After: {self.retry_after}"] if self.retry_after else []
            return body(f"{self.status} Busy", {"error": {"message": "busy"}}, JSON, *fields)
        self.log.append((asked.at_s, key, 200))
        return self._answer(slots=int(may_shed))

    def _answer(self, slots: int) -> Iterator[Step]:
        self._busy += slots
        try:
            yield UNTIL_CLOSE
            for _ in range(TOKENS - 1):
                yield from (self.service_s / TOKENS, text("a "))
            yield from (self.service_s / TOKENS, chat({"content": "a "}, "length") + usage(TOKENS, 20) + DONE)
        finally:
            self._busy -= slots
