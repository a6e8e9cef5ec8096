"""Objectives in one line, such as `ttft<500ms:99%`, converted to an `slos` block, which validates them."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OBJECTIVE = re.compile(r"\s*(\w+)\s*(?:<=?\s*([^:<]+?))?\s*:\s*(\S.*?)\s*")
WRITE = "write signal<threshold:objective, such as 'ttft<500ms:99%' or 'success:99%'"


class Objective(NamedTuple):
    """Parts of an objective as written. threshold: None without one."""

    signal: str
    threshold: str | None
    share: str


def objective(text: object) -> Objective | None:
    """Parse an objective; None if it is malformed (WRITE shows the form)."""
    match = _OBJECTIVE.fullmatch(text) if isinstance(text, str) else None
    return Objective(match[1], match[2], match[3]) if match else None


def named(objectives: Iterable[Objective]) -> dict[Objective, str]:
    """Unique name for each objective: its signal, with a number if needed."""
    found: dict[Objective, str] = {}
    for each in dict.fromkeys(objectives):
        others = sum(other.signal == each.signal for other in found)
        found[each] = f"{each.signal}-{others + 1}" if others else each.signal
    return found


def block(objectives: Iterable[Objective]) -> dict[str, dict[str, str]]:
    """`slos` block that declares the objectives."""
    return {
        name: {"signal": each.signal, "objective": each.share}
        | ({} if each.threshold is None else {"threshold": each.threshold})
        for each, name in named(objectives).items()
    }


def expressions(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """`slos` block of the values of `--slo`. Raises ValueError."""
    found = [objective(text) for text in texts]
    for text, each in zip(texts, found, strict=True):
        if each is None:
            raise ValueError(f"--slo {text!r}: {WRITE}")
    return block(each for each in found if each is not None)
