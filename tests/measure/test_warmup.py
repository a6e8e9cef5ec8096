"""Detection of warm-up probes."""

from prober.measure.target_state import WarmUp

MINUTE = 60 * 10**9


def test_first_successes_after_start_restart_or_idle_time_are_warm_up() -> None:
    """After the start, after a restart and after more than ten minutes without a success the next `count` are warm-up."""
    warm = WarmUp(2)
    assert [warm.record_success(i * MINUTE) for i in range(4)] == [True, True, False, False]
    warm.restarted()
    assert [warm.record_success((5 + i) * MINUTE) for i in range(3)] == [True, True, False]
    assert [warm.record_success((18 + i) * MINUTE) for i in range(3)] == [True, True, False]


def test_at_most_ten_warm_up_probes_per_hour() -> None:
    """An engine in a crash loop does not stay in warm-up forever."""
    warm = WarmUp(3)
    taken = []
    for i in range(20):
        warm.restarted()
        taken.append(warm.record_success(i * MINUTE))
    assert taken == [True] * 10 + [False] * 10
    warm.restarted()
    assert warm.record_success(61 * MINUTE)
