"""Structures of services to fit to a sweep's record, since engines differ in more than their costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prober.simulation.serving import Service


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

    @property
    def mixed(self) -> bool:
        """True if prompts and decodes share steps."""
        return bool(self.changes.get("mixed", 1))

    def applied(self, service: Service, front_base_s: float, front_token_s: float) -> Service:
        """A service of these costs with this structure. front_*: used if it has a front"""
        service = service._replace(**self.changes)
        return service._replace(front_base_s=front_base_s, front_token_s=front_token_s) if self.has_front else service


CHUNKED = Structure("chunked prefill")
STRUCTURES = (  # the plainest first
    CHUNKED,
    Structure("whole prompts before decodes", {"mixed": 0, "split": 0}, penalty=2),
    Structure("prompts before decodes", {"mixed": 0}, penalty=2),
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
