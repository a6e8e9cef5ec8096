"""All that can be set on a mock."""

from dataclasses import dataclass
from pathlib import Path

from prober.mock.engine import Behaviour
from prober.mock.faults import Fault, check
from prober.mock.wire import Wire
from prober.simulation.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Settings:
    """One mock server.

    faults: the schedule, counted from the start; truth: the file of records, None for none
    api_key: the bearer token that `/v1` asks for; seed: of all draws, None for another one each time
    start_delay_s: so long it says that it is loading its model
    simulation: the simulated engine that takes the place of the behaviour's delays and slots; None for none

    Raises ValueError for a fault that its engine does not have.
    """

    model: str = "mock"
    behaviour: Behaviour = Behaviour()
    wire: Wire = Wire()
    faults: tuple[Fault, ...] = ()
    truth: Path | None = None
    api_key: str | None = None
    seed: int | None = None
    start_delay_s: float = 0.0
    simulation: Parameters | None = None

    def __post_init__(self) -> None:
        check(self.faults, simulated=self.simulation is not None)
