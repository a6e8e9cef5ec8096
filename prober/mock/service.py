"""Interface between server and engine. A request gets a place in the engine, which schedules the chunks of its answer.

All due times count from the start of the service, so a late write does not shift later ones.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from prober.mock.completion_request import CompletionRequest, Tokenizer
from prober.mock.delays import constant
from prober.mock.faults import Fault, Schedule, check
from prober.mock.page import Page
from prober.mock.record import Record
from prober.mock.wire import Wire
from prober.net.clock import Clock
from prober.simulation.parameters import Parameters
from prober.workload.shapes import LengthDistribution


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Latencies and slots of the engine.

    ttft, itl: in ns
    slots: requests served at the same time; others wait in order of arrival; 0: no limit
    background_per_s: rate of background requests, which take slots and are counted on the metrics page
    reasoning: number of reasoning tokens at the start of an answer
    json_factor: multiplies all delays of an answer that must be JSON, like a grammar; not for the simulated engine
    """

    ttft: LengthDistribution = constant(0.05)
    itl: LengthDistribution = constant(0.01)
    slots: int = 0
    background_per_s: float = 0.0
    reasoning: int = 0
    json_factor: float = 1.0


class Place(ABC):
    """A request in the engine, from `Service.enter` to `Service.leave`. The engine decides when it is served and tokens are due."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._progress = asyncio.Event()

    async def wait(self) -> int:
        """Wait for the service to begin; return the time in ns."""
        while self.record.started_ns is None:
            await self.next_progress()
        return self.record.started_ns

    async def plan(self, tokens: int | None) -> AsyncIterator[int]:
        """Yield the due time in ns of each token of an answer of `tokens` tokens (None: endless), as soon as it is known."""
        for _ in count() if tokens is None else range(tokens):
            yield await self.due_ns()

    @abstractmethod
    async def due_ns(self) -> int:
        """Due time in ns of the next token; waits until it is known."""

    def progressed(self) -> None:
        """Wake up the tasks that wait for progress."""
        self._progress.set()

    async def next_progress(self) -> None:
        """Wait until the engine has progressed."""
        self._progress.clear()
        await self._progress.wait()


class Service(ABC):
    """The engine of one mock, for the running event loop. Its background load begins immediately. Call `stop` at the end."""

    def __init__(self, behaviour: Behaviour, model: str, seed: int | None, clock: Clock) -> None:
        self.behaviour, self.pacer, self.rng = behaviour, clock, Random(seed)
        self.page = Page(model, clock.unix_s())

    @abstractmethod
    async def stop(self) -> None:
        """Cancel all unfinished requests."""

    def schedule(self, schedule: Schedule) -> None:  # noqa: B027 - few engines have such faults
        """Set the faults of the entire engine."""

    @abstractmethod
    def enter(
        self, record: Record, completion: CompletionRequest, at_ns: int, *, endless: bool, factor: float
    ) -> Place:
        """Add a request and fill in the prompt tokens of its record. Raises RequestRefused.

        factor: multiplies its delays, if they are drawn
        """

    @abstractmethod
    def leave(self, place: Place, reason: str | None, at_ns: int) -> None:
        """End a request at `at_ns`. reason: vLLM's finish reason; None if its client left"""

    @abstractmethod
    def render(self, now_ns: int) -> str:
        """The metrics page."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one mock server.

    faults: schedule of faults, timed from the start
    truth: path of the truth file; None: no file
    api_key: bearer token that `/v1` requires
    seed: seed of all random numbers; None: different in each run
    simulation: parameters of a simulated engine, which replaces the delays and slots of `behaviour`; None: not simulated
    version: version reported by `/version`

    Raises ValueError for a fault that the engine does not support.
    """

    model: str = "mock"
    behaviour: Behaviour = Behaviour()
    wire: Wire = Wire()
    faults: tuple[Fault, ...] = ()
    truth: Path | None = None
    api_key: str | None = None
    seed: int | None = None
    simulation: Parameters | None = None
    tokenizer: Tokenizer = Tokenizer()
    version: str = "0.32.0"

    def __post_init__(self) -> None:
        check(self.faults, simulated=self.simulation is not None)
