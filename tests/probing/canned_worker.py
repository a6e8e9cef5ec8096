"""A worker that replays answers instead of sending: the result of a request is a function of its lengths and its due time."""

import asyncio
import sys
from collections.abc import Callable

from prober.measure.chat import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline
from prober.probing import worker
from prober.probing.probe import always, new_request_id, nonce_of
from prober.probing.target import Target
from prober.workload.workloads import Drawer, DrawnRequest

OUTCOMES = (Outcome.OK, Outcome.OK, Outcome.OK, Outcome.HTTP_5XX, Outcome.TRUNCATED)


class CannedFlight:
    """In place of `Flight`."""

    def __init__(
        self,
        target: Target,
        drawer: Drawer,
        due_ns: int,
        may: Callable[[], bool] = always,
        request_id: str = "",
    ) -> None:
        self.request_id = request_id or new_request_id()
        self._worker = target.worker
        self.drawn: DrawnRequest = drawer.draw(nonce_of(self.request_id), None)
        self.answer, self._due_ns = None, due_ns

    def first_ns(self) -> int | None:
        return None

    def delivered(self) -> Timeline:
        return Timeline(self._due_ns)

    async def fly(self) -> ProbeResult:
        await asyncio.sleep(0)
        prompt, output = self.drawn.requested_tokens
        first_ns = self._due_ns + 1_000_003 * prompt
        content_ns = [first_ns + number * (3_000_000 + 7_919 * output) for number in range(output)]
        timeline = Timeline(
            self._due_ns,
            Connection(self._due_ns - 9_000_000, self._due_ns - 8_000_000, tcp_s=0.001),
            *(self._due_ns + prompt * 311, first_ns - 500, first_ns, first_ns, content_ns[-1] + 40_000),
            content_ns=content_ns,
            usage=Usage(prompt + 3, output),
            finish_reason="length",
            answered_model="canned",
        )
        outcome = OUTCOMES[(prompt + output) % len(OUTCOMES)]
        detail = "" if outcome is Outcome.OK else "as canned"
        return ProbeResult(
            *("", self.drawn.workload, self.request_id, 0.0, outcome, detail, timeline),
            requested_prompt_tokens=prompt,
            requested_output_tokens=output,
            has_asked_length=True,
            worker=self._worker,
        )


if __name__ == "__main__":
    worker.Flight = CannedFlight  # type: ignore[attr-defined, assignment]
    worker.main(sys.argv[1:])
