"""The parts of a stage that differ in shape."""

from dataclasses import replace

from prober.measure.chat import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.stage_parts import series_of

MS = 1_000_000


def probe(series: str, ttft_ms: int, usage: Usage | None) -> ProbeResult:
    return ProbeResult("t", series, "id", 0.0, Outcome.OK, "", Timeline(0, first_ns=ttft_ms * MS, usage=usage))


def test_turns_have_their_own_ttft_and_cached_share() -> None:
    """Answers that count nowhere else do not count here; without cached tokens of the server there is no share.

    What was not answered stands beside them with the most frequent reason, also where nothing was.
    """
    probes = [
        probe("chat_turn2", 40, Usage(200, 5, 100)),
        probe("chat_turn2", 60, Usage(200, 5, 60)),
        probe("chat_turn2", 60, Usage(900, 5)),
        probe("chat_turn1", 100, Usage(100, 5)),
        replace(probe("chat_turn1", 9_000, None), warm_up=True),
        replace(probe("chat_turn1", 9_000, None), cached=True),
        replace(probe("chat_turn1", 9_000, None), outcome=Outcome.RESET),
        *[replace(probe("chat_turn3", 1, None), outcome=Outcome.REJECTED, detail="HTTP 400: too long")] * 2,
        replace(probe("chat_turn3", 1, None), outcome=Outcome.SHED, detail="no session"),
        replace(probe("", 1, None), outcome=Outcome.CANCELLED),
    ]
    first, second, third = series_of(probes)
    assert third.text() == "chat_turn3 no TTFT of 0, 3 not answered, most often rejected: HTTP 400: too long"
    assert (first.name, first.requests, first.prompt_tokens) == ("chat_turn1", 1, 0)
    assert first.text() == "chat_turn1 TTFT p50 100 ms*, p99 100 ms* of 1, 1 not answered, most often reset"
    assert (second.requests, second.prompt_tokens, second.cached_tokens) == (3, 400, 160)
    assert second.text() == "chat_turn2 TTFT p50 60 ms*, p99 60 ms* of 3, 40% of the prompt cached"


def test_a_single_series_is_not_repeated() -> None:
    """The figures are those of the stage."""
    assert series_of([probe("chat", 40, None)] * 3) == ()
