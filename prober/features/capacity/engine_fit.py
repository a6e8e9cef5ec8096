"""A fitted engine: its structure, and how well its replay agrees with the record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from prober.features.capacity.replay import Background
from prober.simulation.serving import Service

# Median |log(observed ÷ replayed)| of a fit that is used alone, and of one that is used beside the fractions of bad events; the
# same for the mismatch of the tail.
MAX_TTFT_ERROR, MAX_POOR_TTFT_ERROR = 0.25, 0.4
MAX_MISMATCH, MAX_POOR_MISMATCH = 3.0, 6.0


class Tail(NamedTuple):
    """The slowest TTFTs of a record, compared with those of its replay.

    log_factor: log of the factor by which replayed TTFTs are multiplied; error: its standard error
    mismatch: how much the number of slow TTFTs still differs after the factor, at most over the record, in standard deviations
    """

    log_factor: float
    error: float
    mismatch: float


class Rival(NamedTuple):
    """A model of the engine with another structure that explains the measured latencies nearly as well as the fit.

    weight: its likelihood ÷ that of the fit
    """

    service: Service
    front_s: float
    weight: float


Quality = Literal["good", "poor", "unusable"]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted service.

    structure: name of its structure, of STRUCTURES
    front_s: latency in front of it (network, gateway)
    repeats: services that fit the same record under random weights (bootstrap)
    rivals: other structures
    error: median of |log(TTFT observed ÷ replayed)|
    tail: of the record beside that of the replay; None without an objective for TTFT
    background: background load of the replay
    """

    service: Service
    structure: str
    front_s: float
    repeats: tuple[tuple[Service, float], ...]
    rivals: tuple[Rival, ...]
    error: float
    tail: Tail | None
    background: Background

    @property
    def quality(self) -> Quality:
        """Quality of the replay, by its agreement with the record.

        It decides whether the model is used alone at rates that were not tried, with the fractions of bad events, or not at all.
        """
        mismatch = self.tail.mismatch if self.tail is not None else 0.0
        if self.error >= MAX_POOR_TTFT_ERROR or mismatch >= MAX_POOR_MISMATCH:
            return "unusable"
        return "good" if self.error < MAX_TTFT_ERROR and mismatch < MAX_MISMATCH else "poor"


@dataclass(frozen=True, slots=True)
class Structure:
    """Structure of a service: its number of engines, and how they batch.

    changes: fields of `Service` that it sets
    has_front: a serial front is part of it, with costs of its own
    penalty: added to the cost of its fit, since more structures find more accidents to explain
    """

    name: str
    changes: Mapping[str, float] = field(default_factory=dict)
    has_front: bool = False
    penalty: float = 0.0

    @property
    def replicas(self) -> float:
        """Number of engines."""
        return self.changes.get("replicas", 1)

    def applied(self, service: Service, front_base_s: float, front_token_s: float) -> Service:
        """A copy of the service with this structure. front_*: costs of the serial front, used if the structure has one"""
        service = service._replace(**self.changes)
        return service._replace(front_base_s=front_base_s, front_token_s=front_token_s) if self.has_front else service


CHUNKED = Structure("chunked prefill")
STRUCTURES = (  # the plainest first
    CHUNKED,
    Structure("prompts that begin when a piece fits", {"admits_pieces": 1}),
    Structure("whole prompts before decodes", {"mixed": 0, "split": 0}, penalty=2),
    Structure("prompts before decodes", {"mixed": 0}, penalty=2),
    *(
        Structure(f"prompts after {count} decodes", {"mixed": 0, "split": 0, "turn_steps": count}, penalty=2)
        for count in (5, 10, 20)
    ),
    Structure("reading beside computing", {"overlaid": 1}, penalty=2),
    Structure("padded batches", {"padded": 1}, penalty=2),
    Structure("steps planned ahead", {"overlapped": 1}, penalty=2),
    Structure("shortest prompt first", {"shortest_first": 1}, penalty=8),
    Structure("serial front", has_front=True, penalty=4),
    *(Structure(f"{count} engines in turn", {"replicas": count}, penalty=2) for count in (2, 3, 4)),
    *(
        Structure(f"{count} engines, least busy", {"replicas": count, "least_busy": 1}, penalty=2)
        for count in (2, 3, 4)
    ),
)
