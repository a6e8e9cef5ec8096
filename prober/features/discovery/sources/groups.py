"""Lists of targets in the format of Prometheus's file_sd and http_sd: `[{targets: [host:port], labels: {name: value}}]`."""

import gc
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any, Literal

from prober.config.discovery import MAX_TARGETS
from prober.config.document import parse as parse_yaml
from prober.features.discovery.sources.discovered_targets import TargetLabels

Form = Literal["JSON", "YAML"]


_SPACE = re.compile(r"[ \t\r\n]*")
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")  # a surrogate without the other one, which JSON can hold and no text does


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
        return targets_of(_PARSERS[form](text.decode()), extra, label_names)
    except BadList:
        raise
    except RecursionError:
        raise BadList("is nested too deeply; write a flat list") from None
    except ValueError as problem:
        raise BadList(f"is no {form}: {problem}") from None
    except Exception as problem:
        raise BadList(f"cannot be read: {problem!r}; please report this with the list") from problem
    finally:
        if enabled:
            gc.enable()


def _parse_json(text: str) -> Any:
    """The document. A list is decoded group by group, so that other threads run in between. Raises ValueError."""
    stripped = text.lstrip()
    return list(_groups(stripped)) if stripped.startswith("[") else json.loads(text)


def _groups(text: str) -> Iterator[Any]:
    """Values of the JSON list in `text`, which begins with its bracket. Raises ValueError."""
    decode = json.JSONDecoder().raw_decode
    at = _after_space(text, 1)
    while text[at : at + 1] != "]":
        group, at = decode(text, at)
        yield group
        at = _after_space(text, at)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
            if text[at : at + 1] == "]":
                raise json.JSONDecodeError("Expecting value", text, at)
        elif text[at : at + 1] != "]":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    if text[at + 1 :].strip():
        raise json.JSONDecodeError("Extra data", text, at + 1)


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


_PARSERS: dict[str, Callable[[str], Any]] = {
    "JSON": _parse_json,
    "YAML": partial(parse_yaml, as_written=("labels",)),
}


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
        if not isinstance(name, str) or not isinstance(value, str) or _HALF_A_PAIR.search(name + value):
            shown = str(name).encode(errors="replace").decode()[:60]
            raise BadList(f"{place}.labels: {shown!r} has a value that is no text; write it in quotes")
    return labels
