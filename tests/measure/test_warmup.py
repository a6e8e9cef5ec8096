"""Which successes are warm-up."""

from prober.measure.warmup import WarmUp

MINUTE = 60 * 10**9


def test_the_first_successes_and_those_after_a_restart_or_a_long_silence() -> None:
    """After start, after a restart and after more than ten minutes without a success the next `count` are warm-up."""
    warm = WarmUp(2)
    assert [warm.take(i * MINUTE) for i in range(4)] == [True, True, False, False]
    warm.restarted()
    assert [warm.take((5 + i) * MINUTE) for i in range(3)] == [True, True, False]
    assert [warm.take((18 + i) * MINUTE) for i in range(3)] == [True, True, False]


def test_at_most_ten_an_hour() -> None:
    """An engine in a crash loop is not in warm-up for ever."""
    warm = WarmUp(3)
    taken = []
    for i in range(20):
        warm.restarted()
        taken.append(warm.take(i * MINUTE))
    assert taken == [True] * 10 + [False] * 10
    warm.restarted()
    assert warm.take(61 * MINUTE)
