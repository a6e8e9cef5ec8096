"""Events of a target other than probes."""

from dataclasses import dataclass
from typing import Literal

EventKind = Literal["state", "engine", "drift", "diagnosis", "slo", "sweep"]


@dataclass(frozen=True, slots=True)
class TargetEvent:
    """An event of `target` that is shown in its history and as an annotation in its graphs. target: "" if it is of several.

    times: how often the same has happened since `since_unix_s`, None if once
    """

    unix_s: float
    target: str
    kind: EventKind
    text: str
    times: int = 1
    since_unix_s: float | None = None
