"""Each fault does what it says, in its time and in no other."""

import math
from random import Random

import pytest

from prober.simulation.engine import Engine
from prober.simulation.faults import Crash, Fault, Flush, KvLost, Slow, Tail
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth


def served(requests: list[Request], *faults: Fault, kv_blocks: int = 25_000) -> list[Truth]:
    engine = Engine(Parameters(kv_blocks=kv_blocks), Random(1), faults)
    truths = [engine.submit(request) for request in requests]
    engine.advance(math.inf)
    return truths


EVERY_SECOND = [Request(float(at), 500, 50) for at in range(30)]


def test_a_slow_engine_is_slow_while_it_lasts() -> None:
    """TTFT and ITL are multiplied from the start to the end, and are what they were before and after."""
    plain, slow = served(EVERY_SECOND), served(EVERY_SECOND, Slow(1.3, 10.0, 20.0))
    for before, after in zip(plain, slow, strict=True):
        factor = 1.3 if 10 <= before.request.arrival_s < 20 else 1.0
        assert (after.ttft_s or 0) == pytest.approx((before.ttft_s or 0) * factor)
        assert (after.tpot_s or 0) == pytest.approx((before.tpot_s or 0) * factor)


def test_slow_faults_multiply() -> None:
    """Two at a time are as slow as their product."""
    (plain, *_), (slow, *_) = served(EVERY_SECOND), served(EVERY_SECOND, Slow(2.0), Slow(1.5))
    assert (slow.ttft_s or 0) == pytest.approx(3 * (plain.ttft_s or 0))


def test_a_tail_strikes_a_share_of_the_decode_steps() -> None:
    """About 4% of ITLs are four times as long, TTFT is as it was."""
    requests = [Request(20.0 * at, 500, 1000) for at in range(20)]
    plain, tail = served(requests), served(requests, Tail(0.04, 4.0, 100.0, 300.0))
    assert [truth.ttft_s for truth in plain] == pytest.approx([truth.ttft_s for truth in tail])
    struck = [sum(itl > 0.03 for itl in truth.itls_s()) / 999 for truth in tail]
    assert sum(struck[5:15]) / 10 == pytest.approx(0.04, abs=0.01)
    assert struck[:5] + struck[15:] == [0.0] * 10
    assert max(tail[7].itls_s()) / min(tail[7].itls_s()) == pytest.approx(4.0, rel=0.02)


def test_a_tail_of_all_steps_is_every_step() -> None:
    """A share of 1."""
    plain, tail = served(EVERY_SECOND[:1]), served(EVERY_SECOND[:1], Tail(1.0, 2.0))
    assert tail[0].itls_s() == pytest.approx([2 * itl for itl in plain[0].itls_s()])


def test_lost_blocks_preempt_and_come_back() -> None:
    """Requests that do not fit are preempted and wait, if necessary until the blocks come back."""
    requests = [Request(0.0, 320, 200), Request(0.0, 320, 200)]
    both = served(requests, KvLost(30, 0.5, 60.0), kv_blocks=70)
    assert [truth.preemptions for truth in both] == [0, 1]
    assert both[1].end_s == pytest.approx(3.09, abs=0.1)
    nobody = served(requests, KvLost(70, 0.5, 60.0), kv_blocks=70)
    assert [truth.preemptions for truth in nobody] == [1, 1]
    assert min(truth.end_s or 0 for truth in nobody) > 60


def test_a_flush_empties_the_prefix_cache() -> None:
    """A prefix that hit before the flush misses once after it."""
    requests = [Request(float(at), 600, 5, (7,)) for at in range(6)]
    assert [truth.cached_tokens for truth in served(requests, Flush(3.5))] == [0, 512, 512, 512, 0, 512]


def test_a_crash_loses_who_was_there() -> None:
    """Running and waiting ones, those who come before it is up again, and the prefix cache; then it serves."""
    requests = [Request(at, 600, 100, (7,)) for at in (0.0, 5.0, 5.1, 8.0, 12.0)]
    truths = served(requests, Crash(5.5, 10.0))
    lost, complete = End.LOST, End.COMPLETE
    assert [truth.end for truth in truths] == [complete, lost, lost, lost, complete]
    assert truths[1].end_s == pytest.approx(5.5, abs=0.02)
    assert truths[1].tokens > 20
    assert truths[3].end_s == 8.0
    assert truths[4].cached_tokens == 0


def test_faults_can_be_changed_on_the_way() -> None:
    """The new ones count from the next step on, the old ones are gone; one in force is in force at once."""
    engine = Engine(Parameters(), Random(1), [Slow(2.0)])
    truth = engine.submit(Request(0.0, 100, 1000))
    engine.advance(2.0)
    engine.set_faults([Slow(3.0, 0.0, 10.0), KvLost(1000)])
    engine.advance(4.0)
    engine.set_faults([])
    engine.advance(math.inf)
    itls = truth.itls_s()
    assert [itls[0] / itls[-1], itls[150] / itls[-1]] == pytest.approx([2.0, 3.0], rel=0.02)


@pytest.mark.parametrize("wrong", [Slow(0.0), Slow(2.0, 5.0, 5.0), Tail(0.0, 2.0), Tail(1.1, 2.0), KvLost(-1)])
def test_a_fault_that_cannot_be_is_refused(wrong: Fault) -> None:
    """With itself in the message."""
    with pytest.raises(ValueError, match=type(wrong).__name__):
        Engine(Parameters(), Random(1), [wrong])
