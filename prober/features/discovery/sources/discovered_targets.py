"""What a source has found so far, and whether it still hears: the last good targets stay while it does not."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prober.config.relabel import Labels

Found = tuple[Labels, ...]
SLICE = 500  # owners that are compared in one turn of the event loop
log = logging.getLogger(__name__)


class Source(Protocol):
    """Looks for targets, for ever."""

    async def run(self) -> None:
        """Until cancelled; what is found, and what fails, goes to its findings."""


class Findings:
    """Targets by scope (a file, a name, a namespace) and by owner in it (an object, an address).

    Labels that did not change stay the same object, so that nobody has to look at them again. changed: called after a change,
    after a scope is answered for the first time, and after a failure; name: of the discovery, for the log.
    """

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.failures = 0
        self._name, self._changed = name, changed
        self._scopes: dict[str, dict[str, Found]] = {}
        self._problems: dict[str, str] = {}
        self._awaited: set[str] | None = None

    @property
    def complete(self) -> bool:
        """Every scope that is awaited has been answered once."""
        return self._awaited is not None and self._awaited <= self._scopes.keys()

    @property
    def problems(self) -> list[str]:
        """What fails now."""
        return list(self._problems.values())

    def items(self) -> Iterator[tuple[tuple[str, str], Found]]:
        """All targets by (scope, owner)."""
        for scope, owners in self._scopes.items():
            for owner, found in owners.items():
                yield (scope, owner), found

    def awaits(self, *scopes: str) -> None:
        """From now on there are these scopes only; what is known of others is forgotten."""
        first, self._awaited = self._awaited is None, set(scopes)
        self._problems = {scope: problem for scope, problem in self._problems.items() if scope in scopes}
        gone = [scope for scope in self._scopes if scope not in scopes]
        for scope in gone:
            del self._scopes[scope]
        if gone or first:
            self._changed()

    async def replace(self, scope: str, found: Mapping[str, Found]) -> None:
        """All that a scope has; looked at in slices. Nothing else may change the scope meanwhile."""
        self.fine(scope)
        before = self._scopes.get(scope)
        kept = before or {}
        now: dict[str, Found] = {}
        changed = before is None or len(kept) != len(found)
        for index, (owner, labels) in enumerate(found.items(), 1):
            now[owner] = kept[owner] if kept.get(owner) == labels else labels
            changed = changed or now[owner] is labels
            if not index % SLICE:
                await asyncio.sleep(0)
        self._scopes[scope] = now
        if changed:
            self._changed()

    def put(self, scope: str, owner: str, found: Found) -> None:
        """What one owner has now; nothing removes it."""
        owners = self._scopes.setdefault(scope, {})
        if owners.get(owner, ()) == found:
            return
        if found:
            owners[owner] = found
        else:
            del owners[owner]
        self._changed()

    def fine(self, scope: str) -> None:
        """The scope was heard of."""
        if self._problems.pop(scope, None) is not None:
            log.info("discovery=%s %s: heard of again", self._name, scope)
            self._changed()

    def failed(self, scope: str, problem: str) -> None:
        """The scope was not heard of; its targets stay as they were."""
        self.failures += 1
        if self._problems.get(scope) != problem:
            log.warning("discovery=%s %s; the targets known from before stay", self._name, problem)
        self._problems[scope] = problem
        self._changed()
