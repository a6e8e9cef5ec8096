"""Token buckets."""

from prober.web.token_bucket import Rates


def test_a_burst_then_so_many_a_second() -> None:
    """A refusal takes nothing from the bucket, and the returned wait is long enough."""
    rates = Rates(per_s=2.0, burst=3)
    assert [rates.take("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert rates.take("a", 0.25) == 0.25
    assert rates.take("a", 0.5) == 0.0
    assert rates.take("b", 0.5) == 0.0
    assert [rates.take("a", 100.0) for _ in range(4)][-1] == 0.5  # no more than a burst is saved


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    rates = Rates(per_s=1.0, burst=1)
    assert rates.take("a", 10.0) == 0.0
    assert rates.take("a", 5.0) == 1.0


def test_a_million_clients_take_the_memory_of_a_few() -> None:
    """The one least seen is forgotten, and begins anew."""
    rates = Rates(per_s=0.001, burst=1, most=10)
    for index in range(1000):
        rates.take(str(index), float(index))
    assert len(rates._left) == 10
    assert rates.take("999", 1000.0) > 0
    assert rates.take("0", 1000.0) == 0.0
