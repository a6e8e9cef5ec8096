"""Bounds of what sources find."""

import pytest

from prober.features.discovery import discovered_targets
from prober.features.discovery.discovered_targets import DiscoveredTargets


def test_a_watch_without_end_finds_no_more_objects_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were found are followed, and a removed one makes room."""
    monkeypatch.setattr(discovered_targets, "MAX_OWNERS", 10)
    discovered = DiscoveredTargets("pods", lambda: None)
    for number in range(15):
        discovered.put("all", f"pod-{number}", ({"__address__": f"10.0.0.{number}:1"},))
    assert len(list(discovered.items())) == 10
    assert discovered.problems == ["all: has targets of more than 10 objects; select fewer"]
    discovered.put("all", "pod-3", ({"__address__": "10.0.1.3:1"},))
    assert ("all", "pod-3") in dict(discovered.items())
    discovered.put("all", "pod-4", ())
    discovered.put("all", "pod-20", ({"__address__": "10.0.0.20:1"},))
    assert ("all", "pod-20") in dict(discovered.items())
