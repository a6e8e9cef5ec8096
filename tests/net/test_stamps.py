"""Times of departure and arrival by the kernel, with clocks set by hand."""

import socket
import struct

import pytest

from prober.net.clock import MAX_READING_NS, Departure, Stamps

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
        """What the kernel says of bytes that arrive now: its wall clock, as two longs, and two times of hardware."""
        return [(socket.SOL_SOCKET, 37, struct.pack("6l", *divmod(self.wall_ns(), SECOND), 0, 0, 0, 0))]

    def departed(self, stamp: int, last_byte: int, origin: tuple[int, int] = (0, 11)) -> list[tuple[int, int, bytes]]:
        """What its error queue says of bytes that leave now (stamp 0), or are acknowledged (2): an extended error, and an address."""
        error = struct.pack("IBBBBII", 42, 4, 0, 0, 0, stamp, last_byte) + bytes(16)
        return [*self.arrived(), (*origin, error)]


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
    "ancillary", [[], [(socket.SOL_SOCKET, 37, b"short")], [(socket.SOL_SOCKET, 29, struct.pack("6l", *[1] * 6))]]
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
        assert sock.getsockopt(socket.SOL_SOCKET, 37) == 0


@pytest.mark.parametrize("origin", [(socket.IPPROTO_IP, 11), (socket.IPPROTO_IPV6, 25)])
@pytest.mark.parametrize(("stamp", "is_acknowledged"), [(0, False), (2, True)])
def test_a_departure_has_its_time_and_the_number_of_its_last_byte(
    clocks: Clocks, stamps: Stamps, origin: tuple[int, int], stamp: int, is_acknowledged: bool
) -> None:
    """However late it is read, of IPv4 and of IPv6; reading counts nothing, as a request has several."""
    left_ns, ancillary = clocks.monotonic_ns, clocks.departed(stamp, 4711, origin)
    clocks.monotonic_ns += 40 * SECOND
    assert stamps.departure(ancillary, left_ns) == Departure(left_ns, is_acknowledged, 4711)
    assert (stamps.kernel, stamps.process) == (0, 0)


def test_other_words_of_the_error_queue_are_no_departure(clocks: Clocks, stamps: Stamps) -> None:
    """A time of scheduling, an error without a time, a time without an error, and nothing."""
    for ancillary in (clocks.departed(1, 0), clocks.departed(0, 0)[1:], clocks.arrived(), []):
        assert stamps.departure(ancillary, clocks.monotonic_ns) is None


@pytest.mark.parametrize("step_ns", [HOUR, -HOUR])
def test_a_step_of_the_wall_clock_makes_no_departure(clocks: Clocks, stamps: Stamps, step_ns: int) -> None:
    """Nothing left before it was sent, or leaves in the future."""
    begun_ns, ancillary = clocks.monotonic_ns, clocks.departed(0, 9)
    clocks.monotonic_ns += 3_000_000
    clocks.step_ns = step_ns
    assert stamps.departure(ancillary, begun_ns) is None
