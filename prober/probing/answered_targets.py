"""Targets that have answered before, in the store, so that a restarted prober does not take a dead engine for a starting one."""

import json
from collections.abc import Callable, Iterable, Iterator

from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows

ROW = "all"  # key of the one row in the store
EXPECTED_SAVES = 60  # one a minute: for so long a target of the earlier process may still be found by its discovery


class AnsweredTargets:
    """Addresses of targets that have answered, by the keys of the targets.

    targets: those that are probed now
    saved: the row of an earlier process
    """

    def __init__(self, targets: Callable[[], Iterable[Target]], saved: SavedRows) -> None:
        self._targets = targets
        problem = (
            "which targets have answered before cannot be read; those that refuse connections are taken for starting"
        )
        self._before: dict[str, str] = saved.pop(ROW, _read, problem) or {}
        self._saves = 0

    def take(self, target: Target) -> bool:
        """True if an earlier process had an answer of this target at this address. The entry is removed: a second call is False."""
        return self._before.pop(target.spec.key, None) == _address(target)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """The row to save; none while there are no targets, as discovery may still find them, so that the earlier row stays."""
        targets = list(self._targets())
        if targets:
            self._saves += 1
            expected = self._before if self._saves <= EXPECTED_SAVES else {}
            answered = {target.spec.key: _address(target) for target in targets if target.has_answered}
            yield ROW, json.dumps(expected | answered).encode()


def _address(target: Target) -> str:
    return f"{target.endpoint.host}:{target.endpoint.port}"


def _read(data: bytes) -> dict[str, str]:
    rows = json.loads(data)
    if not isinstance(rows, dict) or not all(isinstance(address, str) for address in rows.values()):
        raise ValueError("no table of addresses")
    return rows
