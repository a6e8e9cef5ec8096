"""Lists of targets in the format of Prometheus's file_sd and http_sd: `[{targets: [host:port], labels: {name: value}}]`."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from prober.features.discovery.sources.discovered_targets import TargetLabels

MAX_TARGETS = 100_000


class BadList(ValueError):
    """Not a list of targets; the message names the place and the remedy."""


def targets_of(document: Any, extra: Mapping[str, str], label_names: Collection[str]) -> dict[str, TargetLabels]:
    """Labels of each target, by its address; a repeated address gets a number. Raises BadList.

    extra: labels of all targets
    label_names: the labels to keep
    """
    targets: dict[str, TargetLabels] = {}
    repeats = Counter[str]()
    if document is None:
        return targets
    if not isinstance(document, list):
        raise BadList('is not a list; write [{"targets": ["host:port"], "labels": {}}]')
    for index, group in enumerate(document):
        labels = _labels(group, f"[{index}]")
        labels = {name: value for name, value in {**labels, **extra}.items() if name in label_names}
        for address in _addresses(group, f"[{index}]"):
            owner = address
            while owner in targets:
                repeats[address] += 1
                owner = f"{address} {repeats[address] + 1}"
            targets[owner] = ({**labels, "__address__": address},)
        if len(targets) > MAX_TARGETS:
            raise BadList(f"has more than {MAX_TARGETS:,} targets")
    return targets


def _addresses(group: dict[str, Any], place: str) -> list[str]:
    listed = group.get("targets")
    if not isinstance(listed, list) or not all(isinstance(address, str) and address for address in listed):
        raise BadList(f"{place}.targets: needed: a list of host:port, each in quotes")
    return listed


def _labels(group: Any, place: str) -> dict[str, str]:
    if not isinstance(group, dict):
        raise BadList(f"{place}: is not a mapping with `targets` and `labels`")
    if unknown := sorted(str(key) for key in group.keys() - {"targets", "labels"}):
        raise BadList(f"{place}: unknown key {unknown[0][:60]!r}; known: labels, targets")
    labels = group.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadList(f"{place}.labels: is not a mapping of names to values")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise BadList(f"{place}.labels: {str(name)[:60]!r} has a value that is no text; write it in quotes")
    return {name: value if isinstance(value, str) else _text(value) for name, value in labels.items()}


def _text(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
