"""Settings of a mock."""

from dataclasses import dataclass
from pathlib import Path

from prober.mock.adapters import AdapterSettings
from prober.mock.faults import Fault, check
from prober.mock.service import Behaviour
from prober.mock.tokenizer import Tokenizer
from prober.mock.wire import Wire
from prober.simulation.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one mock server.

    faults: the schedule, counted from the start
    truth: file of records; None: no file
    api_key: bearer token that `/v1` requires
    seed: of all random draws; None: random
    start_delay_s: time during which it reports that its model is loading
    simulation: the simulated engine, instead of the delays and slots of `behaviour`; None: not simulated
    adapters: LoRA adapters, of the drawn engine only
    version: that `/version` tells

    Raises ValueError for a fault that the engine does not support.
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
    tokenizer: Tokenizer = Tokenizer()
    adapters: AdapterSettings = AdapterSettings()
    version: str = "0.32.0"

    def __post_init__(self) -> None:
        check(self.faults, simulated=self.simulation is not None)
        if self.adapters.names and self.simulation is not None:
            raise ValueError("adapters are of the drawn engine; the simulated one has none")
