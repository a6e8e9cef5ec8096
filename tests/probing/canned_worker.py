"""A worker that replays answers instead of sending: the result of a request is a function of its lengths and its due time."""

import asyncio
import sys

from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline
from prober.probing import worker
from prober.probing.probe import LocalRun

OUTCOMES = (Outcome.OK, Outcome.OK, Outcome.OK, Outcome.HTTP_5XX, Outcome.TRUNCATED)


class CannedRun(LocalRun):
    """In place of `LocalRun`."""

    async def send(self) -> ProbeResult:
        await asyncio.sleep(0)
        (prompt, output), due_ns = self.request.tokens, self.request.due_ns
        first_ns = due_ns + 1_000_003 * prompt
        content_ns = [first_ns + number * (3_000_000 + 7_919 * output) for number in range(output)]
        timeline = Timeline(
            due_ns,
            Connection(due_ns - 9_000_000, due_ns - 8_000_000, 8_000_000, tcp_s=0.001),
            sent_ns=due_ns + prompt * 311,
            acknowledged_ns=due_ns + prompt * 320,
            headers_ns=first_ns - 500,
            first_ns=first_ns,
            first_answer_ns=first_ns,
            end_ns=content_ns[-1] + 40_000,
            earliest_ns={first_ns: first_ns - 700},
            content_ns=content_ns,
            usage=Usage(prompt + 3, output),
            finish_reason="length",
            answered_model="canned",
        )
        outcome = OUTCOMES[(prompt + output) % len(OUTCOMES)]
        detail = "" if outcome is Outcome.OK else "as canned"
        return ProbeResult(
            *("", self.request.workload, self.request.request_id, 0.0, outcome, detail, timeline),
            requested_prompt_tokens=prompt,
            requested_output_tokens=output,
            has_asked_length=True,
            worker=self._target.worker,
        )


if __name__ == "__main__":
    worker.LocalRun = CannedRun  # type: ignore[attr-defined]
    worker.main(sys.argv[1:])
