"""What an engine is to the server: requests take their places in it, and learn when their pieces are due."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from prober.mock.ask import Ask
from prober.mock.engine import Behaviour, Emission
from prober.mock.faults import Schedule
from prober.mock.page import Page
from prober.mock.record import Record
from prober.net.clock import Clock


class Place(Protocol):
    """One request's place in the engine, from `Service.enter` to `Service.leave`."""

    record: Record

    @property
    def known(self) -> Callable[[float | None], Awaitable[bool]] | None:
        """Waits until the plan's next emission is known, at most so many seconds (None: however long), and says whether it is.

        None where all of the plan is known from the start.
        """

    async def wait(self, timeout_s: float | None = None) -> int | None:
        """The time the service began; None if that is not within `timeout_s` (None: however long it takes)."""

    def plan(self, tokens: int | None, factor: float = 1.0) -> Iterator[Emission]:
        """When the chunks of the answer are due after the start of the service; None: of one without end."""


class Service(Protocol):
    """The engine of one mock. Belongs to the running loop; `start` it, then `stop` it."""

    behaviour: Behaviour
    pacer: Clock
    page: Page

    def start(self) -> None:
        """Let the background load begin."""

    async def stop(self) -> None:
        """Give up all that is not finished."""

    def schedule(self, schedule: Schedule) -> None:
        """What goes wrong with the engine as a whole, from now on."""

    def enter(self, record: Record, ask: Ask, at_ns: int, *, endless: bool) -> Place:
        """A request asks to be served; fills in what its record says of its prompt. Raises Refused."""

    def leave(self, place: Place, reason: str | None, at_ns: int) -> None:
        """It is over at `at_ns`, for one of vLLM's reasons or because its client left (None)."""

    def render(self, now_ns: int) -> str:
        """The metrics page."""
