"""Something that happened, beside the probes."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["state", "engine", "drift", "diagnosis", "sweep"]


@dataclass(frozen=True, slots=True)
class Event:
    """What is worth a mark in a graph of `target`."""

    unix_s: float
    target: str
    kind: Kind
    text: str
