"""Lists of targets in the format of Prometheus's file_sd and http_sd: `[{targets: [host:port], labels: {name: value}}]`."""

import gc
from collections import Counter
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any, Literal

import orjson

from prober.config.discovery import MAX_TARGETS
from prober.config.document import parse as parse_yaml
from prober.features.discovery.sources.discovered_targets import TargetLabels

Form = Literal["JSON", "YAML"]
_PARSERS: dict[Form, Callable[[str], Any]] = {"JSON": orjson.loads, "YAML": partial(parse_yaml, as_written=("labels",))}


class BadList(ValueError):
    """Not a list of targets; the message names the place and the remedy."""


def read_targets(
    text: bytes, form: Form, extra: Mapping[str, str], label_names: Container[str]
) -> dict[str, TargetLabels]:
    """Labels of each target in `text`, as `targets_of`. Raises BadList, whatever the text is. For a thread.

    Garbage collection is off meanwhile: it would stop all threads, including the one that takes timestamps.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        document = _PARSERS[form](text.decode())
        return targets_of(document, extra, label_names)
    except BadList:
        raise
    except ValueError as problem:
        raise BadList(f"is no {form}: {problem}") from None
    finally:
        if enabled:
            gc.enable()


def targets_of(document: Any, extra: Mapping[str, str], label_names: Container[str]) -> dict[str, TargetLabels]:
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
        addresses = group.get("targets")
        if not isinstance(addresses, list) or not all(isinstance(address, str) and address for address in addresses):
            raise BadList(f"[{index}].targets: needed: a list of host:port, each in quotes")
        for address in addresses:
            owner = address
            while owner in targets:
                repeats[address] += 1
                owner = f"{address} {repeats[address] + 1}"
            targets[owner] = ({**labels, "__address__": address},)
        if len(targets) > MAX_TARGETS:
            raise BadList(f"has more than {MAX_TARGETS:,} targets")
    return targets


def _labels(group: Any, place: str) -> dict[str, str]:
    if not isinstance(group, dict):
        raise BadList(f"{place}: is not a mapping with `targets` and `labels`")
    if unknown := sorted(str(key) for key in group.keys() - {"targets", "labels"}):
        raise BadList(f"{place}: unknown key {unknown[0][:60]!r}; known: labels, targets")
    labels = group.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadList(f"{place}.labels: is not a mapping of names to values")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadList(f"{place}.labels: {str(name)[:60]!r} has a value that is no text; write it in quotes")
    return labels
