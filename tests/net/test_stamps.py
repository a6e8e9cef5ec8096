"""Times of arrival by the kernel, with clocks set by hand."""

import socket
import struct

import pytest

from prober.net.clock import MAX_READING_NS, Stamps

SECOND, HOUR = 1_000_000_000, 3_600_000_000_000
WALL_NS = 1_700_000_000 * SECOND


class Clocks:
    """The monotonic clock and that on the wall, which a step sets apart."""

    def __init__(self) -> None:
        self.monotonic_ns, self.step_ns = 500 * SECOND, 0
        self.pauses_ns: list[int] = []  # of the process, after each reading of the monotonic clock

    def now_ns(self) -> int:
        now_ns = self.monotonic_ns
        self.monotonic_ns += self.pauses_ns.pop(0) if self.pauses_ns else 0
        return now_ns

    def wall_ns(self) -> int:
        return WALL_NS + self.monotonic_ns + self.step_ns

    def arrived(self) -> list[tuple[int, int, bytes]]:
        """What the kernel says of bytes that arrive now: its wall clock, as two longs."""
        return [(socket.SOL_SOCKET, 35, struct.pack("ll", *divmod(self.wall_ns(), SECOND)))]


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def stamps(clocks: Clocks) -> Stamps:
    return Stamps(clocks.now_ns, clocks.wall_ns)


def test_a_stamp_is_the_time_of_arrival_however_late_it_is_read(clocks: Clocks, stamps: Stamps) -> None:
    """In the monotonic clock, to the nanosecond; the delay of reading is kept beside it."""
    earliest_ns = clocks.monotonic_ns
    for late_ns in (0, 1, 5_000_000, 40 * SECOND):
        arrival_ns, ancillary = clocks.monotonic_ns, clocks.arrived()
        clocks.monotonic_ns += late_ns
        assert stamps.arrival_ns(ancillary, earliest_ns) == (arrival_ns, True)
    assert list(stamps.take_delays()) == [0, 1, 5_000_000, 40 * SECOND]
    assert list(stamps.take_delays()) == []
    assert (stamps.kernel, stamps.process) == (4, 0)


@pytest.mark.parametrize("step_ns", [HOUR, -HOUR])
def test_a_step_of_the_wall_clock_makes_no_stamp(clocks: Clocks, stamps: Stamps, step_ns: int) -> None:
    """Bytes that arrived before the step have the time of reading, which is counted; those after it have their own again."""
    earliest_ns, ancillary = clocks.monotonic_ns, clocks.arrived()
    clocks.monotonic_ns += 3_000_000
    clocks.step_ns = step_ns
    assert stamps.arrival_ns(ancillary, earliest_ns) == (clocks.monotonic_ns, False)
    arrival_ns, ancillary = clocks.monotonic_ns, clocks.arrived()
    clocks.monotonic_ns += 2_000_000
    assert stamps.arrival_ns(ancillary, arrival_ns) == (arrival_ns, True)
    assert (stamps.kernel, stamps.process) == (1, 1)
    assert list(stamps.take_delays()) == [2_000_000]


def test_a_stamp_before_the_last_one_is_none(clocks: Clocks, stamps: Stamps) -> None:
    """Bytes of one connection arrive in their order; what the clocks differ from reading to reading makes no difference."""
    arrival_ns, ancillary = clocks.monotonic_ns, clocks.arrived()
    clocks.monotonic_ns += SECOND
    earliest_ns = arrival_ns + MAX_READING_NS
    assert stamps.arrival_ns(ancillary, earliest_ns) == (earliest_ns, True)
    assert stamps.arrival_ns(ancillary, earliest_ns + 1) == (clocks.monotonic_ns, False)


@pytest.mark.parametrize(
    "ancillary", [[], [(socket.SOL_SOCKET, 35, b"short")], [(socket.SOL_SOCKET, 29, struct.pack("ll", 1, 1))]]
)
def test_without_a_stamp_it_is_the_time_of_reading(
    clocks: Clocks, stamps: Stamps, ancillary: list[tuple[int, int, bytes]]
) -> None:
    """A kernel that says nothing, or something else."""
    assert stamps.arrival_ns(ancillary, clocks.monotonic_ns) == (clocks.monotonic_ns, False)
    assert (stamps.kernel, stamps.process, len(stamps.take_delays())) == (0, 1, 0)


def test_clocks_that_were_read_apart_are_read_again(clocks: Clocks, stamps: Stamps) -> None:
    """A process that is stopped between the two readings would shift the stamp by as much."""
    arrival_ns, ancillary = clocks.monotonic_ns, clocks.arrived()
    clocks.monotonic_ns += 1_000_000
    clocks.pauses_ns = [7 * MAX_READING_NS, 0, 0]
    assert stamps.arrival_ns(ancillary, arrival_ns) == (arrival_ns, True)


def test_a_kernel_that_refuses_stops_nothing() -> None:
    """The request has no effect and raises nothing."""

    class Refusing(socket.socket):
        def setsockopt(self, *_: object) -> None:
            raise OSError("Protocol not available")

    with Refusing() as refusing:
        Stamps().request(refusing)
    with socket.socket() as sock:
        Stamps(by_kernel=False).request(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, 35) == 0
