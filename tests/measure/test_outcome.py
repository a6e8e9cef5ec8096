"""The one classifier."""

from typing import Any

import pytest

from prober.measure.outcome import ANSWERED, BAD, NEUTRAL, Ending, Outcome, Promise, Verdict, classify

GOOD = Ending(status=200, finish_reason="stop", done=True, content=5, completion_tokens=5)
RESET = Verdict(Outcome.RESET, "broke")


def ending(**changes: Any) -> Ending:
    return Ending(**{**{name: getattr(GOOD, name) for name in GOOD.__slots__}, **changes})


CASES = [
    (GOOD, Promise(), Outcome.OK),
    (ending(status=404), Promise(), Outcome.HTTP_404),
    (ending(status=408), Promise(), Outcome.HTTP_408),
    (ending(status=429), Promise(), Outcome.HTTP_429),
    (ending(status=500), Promise(), Outcome.HTTP_5XX),
    (ending(status=503), Promise(), Outcome.HTTP_5XX),
    *((ending(status=status), Promise(), Outcome.REJECTED) for status in (301, 400, 401, 403, 413, 422)),
    (ending(error="died"), Promise(), Outcome.ERROR_IN_STREAM),
    (ending(finish_reason="abort"), Promise(), Outcome.ERROR_IN_STREAM),
    (ending(malformed="{"), Promise(), Outcome.MALFORMED),
    (ending(finish_reason=None, done=False), Promise(), Outcome.TRUNCATED),
    (ending(finish_reason=None), Promise(), Outcome.TRUNCATED),
    (ending(done=False), Promise(), Outcome.TRUNCATED),
    (ending(done=False), Promise(sends_done=False), Outcome.OK),
    (ending(done=False), Promise(streamed=False), Outcome.OK),
    (ending(content=0), Promise(), Outcome.EMPTY),
    (GOOD, Promise(forced_tokens=6), Outcome.SHORT),
    (GOOD, Promise(forced_tokens=5), Outcome.OK),
    (ending(completion_tokens=None), Promise(forced_tokens=6), Outcome.OK),
    (ending(broken=RESET, finish_reason=None, done=False), Promise(), Outcome.RESET),
    (ending(broken=Verdict(Outcome.TIMEOUT_STALL), finish_reason=None, done=False), Promise(), Outcome.TIMEOUT_STALL),
    # Evidence before circumstance: what the server said explains why the connection broke after it.
    (ending(broken=RESET, error="died", finish_reason=None, done=False), Promise(), Outcome.ERROR_IN_STREAM),
    (ending(broken=RESET, status=503), Promise(), Outcome.HTTP_5XX),
    (ending(broken=RESET), Promise(), Outcome.OK),
    (ending(broken=Verdict(Outcome.CANCELLED)), Promise(), Outcome.CANCELLED),
    (Ending(broken=RESET), Promise(), Outcome.RESET),
]


@pytest.mark.parametrize(("seen", "promise", "expected"), CASES)
def test_every_ending_has_its_outcome(seen: Ending, promise: Promise, expected: Outcome) -> None:
    """Each kind of ending is classified as the method says, and all but `ok` say what was seen."""
    verdict = classify(seen, promise)
    assert verdict.outcome is expected
    assert verdict.detail or expected is Outcome.OK or seen.broken is not None


def test_the_list_is_closed_and_parted() -> None:
    """Every outcome is answered, bad or neutral, and only one of them."""
    assert set(Outcome) == BAD | NEUTRAL | ANSWERED
    assert not BAD & NEUTRAL
