"""Objectives written in one line, `ttft<500ms:99%`, as the configuration's block of SLOs, which says what is wrong with them."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OBJECTIVE = re.compile(r"\s*(\w+)\s*(?:<=?\s*([^:<]+?))?\s*:\s*(\S.*?)\s*")
WRITE = "write signal<threshold:objective, such as 'ttft<500ms:99%' or 'success:99%'"


class Objective(NamedTuple):
    """The parts, as they were written. threshold: None where there is none."""

    signal: str
    threshold: str | None
    share: str


def objective(text: object) -> Objective | None:
    """The parts of one; None if it is none, which WRITE helps with."""
    match = _OBJECTIVE.fullmatch(text) if isinstance(text, str) else None
    return Objective(match[1], match[2], match[3]) if match else None


def named(objectives: Iterable[Objective]) -> dict[Objective, str]:
    """A name for each that is not like another one: its signal, with a number if there is another one of that."""
    found: dict[Objective, str] = {}
    for each in dict.fromkeys(objectives):
        others = sum(other.signal == each.signal for other in found)
        found[each] = f"{each.signal}-{others + 1}" if others else each.signal
    return found


def block(objectives: Iterable[Objective]) -> dict[str, dict[str, str]]:
    """The block `slos` of a configuration that declares them."""
    return {
        name: {"signal": each.signal, "objective": each.share}
        | ({} if each.threshold is None else {"threshold": each.threshold})
        for each, name in named(objectives).items()
    }


def expressions(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """The block `slos` of what `--slo` was given. Raises ValueError."""
    found = [objective(text) for text in texts]
    for text, each in zip(texts, found, strict=True):
        if each is None:
            raise ValueError(f"--slo {text!r}: {WRITE}")
    return block(each for each in found if each is not None)
