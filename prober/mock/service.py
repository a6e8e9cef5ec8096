"""Interface between server and engine: requests take places in the engine, which plans their chunks."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Protocol

from prober.mock.completion_request import CompletionRequest
from prober.mock.engine import Behaviour, Emission
from prober.mock.faults import Schedule
from prober.mock.page import Page
from prober.mock.record import Record
from prober.net.clock import Clock


class Place(Protocol):
    """The place of one request in the engine, from `Service.enter` to `Service.leave`."""

    record: Record

    @property
    def known(self) -> Callable[[], Awaitable[None]] | None:
        """Waits until the next emission of the plan is known; None if the plan is known from the start."""

    async def wait(self) -> int:
        """Wait for the service to begin and return the time."""

    def plan(self, tokens: int | None, factor: float = 1.0) -> Iterator[Emission]:
        """Chunks of an answer of `tokens` tokens (None: endless), with due times after the start of the service."""


class Service(ABC):
    """The engine of one mock, for the running loop; call `start`, at the end `stop`."""

    def __init__(self, behaviour: Behaviour, model: str, seed: int | None, clock: Clock) -> None:
        self.behaviour, self.pacer, self.rng = behaviour, clock, Random(seed)
        self.page = Page(model, clock.unix_s())

    @abstractmethod
    def start(self) -> None:
        """Start the background load."""

    @abstractmethod
    async def stop(self) -> None:
        """Cancel all unfinished requests."""

    @abstractmethod
    def schedule(self, schedule: Schedule) -> None:
        """Set the faults of the entire engine."""

    @abstractmethod
    def enter(self, record: Record, completion: CompletionRequest, at_ns: int, *, endless: bool) -> Place:
        """Add a request and fill in the prompt tokens of its record. Raises RequestRefused."""

    @abstractmethod
    def leave(self, place: Place, reason: str | None, at_ns: int) -> None:
        """End a request at `at_ns`, with one of vLLM's reasons, or None if its client left."""

    @abstractmethod
    def render(self, now_ns: int) -> str:
        """The metrics page."""
