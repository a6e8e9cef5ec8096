"""Targets found by a source, and its failures. While the source fails, the last known targets stay."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prober.config.labels import Labels

TargetLabels = tuple[Labels, ...]  # all targets of one owner
MAX_OWNERS = 100_000  # per scope
log = logging.getLogger(__name__)


class Source(Protocol):
    """A source of targets, such as files, DNS or Kubernetes."""

    async def run(self) -> None:
        """Report targets and failures until cancelled."""


class DiscoveredTargets:
    """Labels of the targets by scope (a file, a name, a namespace) and owner within the scope (an object, an address).

    Unchanged labels remain the same object, so they need no new evaluation.

    name: name of the discovery, for the log
    changed: called after a change, after the first answer for a scope, and after a failure
    """

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.failures = 0
        self._name, self._changed = name, changed
        self._scopes: dict[str, dict[str, TargetLabels]] = {}
        self._problems: dict[str, str] = {}
        self._expected: set[str] | None = None

    @property
    def complete(self) -> bool:
        """True if the source has answered for every expected scope, such as a namespace or file."""
        return self._expected is not None and self._expected <= self._scopes.keys()

    @property
    def problems(self) -> list[str]:
        """Current failures, as messages."""
        return list(self._problems.values())

    def items(self) -> Iterator[tuple[tuple[str, str], TargetLabels]]:
        """All targets by (scope, owner)."""
        for scope, owners in self._scopes.items():
            for owner, labels in owners.items():
                yield (scope, owner), labels

    def labels(self, scope: str, owner: str) -> TargetLabels:
        """The targets of one owner; empty if it has none."""
        return self._scopes.get(scope, {}).get(owner, ())

    def expect(self, *scopes: str) -> None:
        """Set the expected scopes; targets of other scopes are removed."""
        first, self._expected = self._expected is None, set(scopes)
        self._problems = {scope: problem for scope, problem in self._problems.items() if scope in scopes}
        removed = [scope for scope in self._scopes if scope not in scopes]
        for scope in removed:
            del self._scopes[scope]
        if removed or first:
            self._changed()

    def replace(self, scope: str, targets: Mapping[str, TargetLabels]) -> None:
        """Set all targets of a scope."""
        self.answered(scope)
        before = self._scopes.get(scope)
        known = before or {}
        now: dict[str, TargetLabels] = {}
        changed = before is None or len(known) != len(targets)
        for owner, labels in targets.items():
            now[owner] = known[owner] if known.get(owner) == labels else labels
            changed = changed or now[owner] is labels
        self._scopes[scope] = now
        if changed:
            self._changed()

    def put(self, scope: str, owner: str, labels: TargetLabels) -> None:
        """Set the targets of one owner; an empty tuple removes it."""
        owners = self._scopes.setdefault(scope, {})
        if owners.get(owner, ()) == labels:
            return
        if not labels:
            del owners[owner]
        elif owner in owners or len(owners) < MAX_OWNERS:
            owners[owner] = labels
        else:
            self.failed(scope, f"{scope}: has targets of more than {MAX_OWNERS:,} objects; select fewer")
            return
        self._changed()

    def answered(self, scope: str) -> None:
        """Record that the source answered for a scope."""
        if self._problems.pop(scope, None) is not None:
            log.info("discovery=%s %s: answers again", self._name, scope)
            self._changed()

    def failed(self, scope: str, problem: str) -> None:
        """Record that the source failed for a scope. The targets of the scope stay."""
        self.failures += 1
        if self._problems.get(scope) != problem:
            log.warning("discovery=%s %s; its last known targets are kept", self._name, problem)
        self._problems[scope] = problem
        self._changed()
