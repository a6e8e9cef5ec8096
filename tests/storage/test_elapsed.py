"""Time since an event in another process."""

from prober.storage.saved_rows import Moment, moment

HOUR_NS = 3600 * 10**9


def test_on_one_machine_the_wall_clock_may_say_what_it_likes() -> None:
    """Set by an hour, or by a day, either way."""
    then = Moment("boot", 5 * HOUR_NS, 1e9)
    for wrong_s in (-86_400, -3600, 0, 3600, 86_400):
        assert then.age_ns(Moment("boot", 7 * HOUR_NS, 1e9 + 7200 + wrong_s)) == 2 * HOUR_NS


def test_across_machines_the_wall_clocks_tell_less_the_error_that_is_allowed_for() -> None:
    """A machine with an unknown boot id counts as another one, and what is in the future is now."""
    then = Moment("boot", 5 * HOUR_NS, 1e9)
    for boot in ("other", ""):
        for wrong_s, hours in ((-86_400, 0), (-3600, 1), (0, 2), (3600, 3)):
            now = Moment(boot, HOUR_NS, 1e9 + 7200 + wrong_s)
            assert then.age_ns(now) == hours * HOUR_NS
            assert then.age_ns(now, 3600.0) == max(0, hours - 1) * HOUR_NS
    assert Moment("", 0, 1e9).age_ns(Moment("", HOUR_NS, 1e9 + 7200)) == 2 * HOUR_NS
    assert then.age_ns(Moment("boot", 0, 1e9 + 7200)) == 2 * HOUR_NS, "a monotonic clock that went back is another one"


def test_this_moment_is_now() -> None:
    """And its machine is known on Linux."""
    first = moment(0, 1e9)
    assert first.age_ns(moment(HOUR_NS, 1e9)) == HOUR_NS
