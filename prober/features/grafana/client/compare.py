"""Is a dashboard in Grafana the one that would be sent, and whose is it?"""

import difflib
import hashlib
import json
import re
from typing import Any

from prober import __version__

Json = dict[str, Any]

_BY_GRAFANA = frozenset(("id", "version", "iteration"))
_MESSAGE = re.compile(r"^llm-slo-prober \S+ ([0-9a-f]{16})$")
_LINES = 40
_LONG = 160


def fingerprint(document: Json) -> str:
    """16 hexadecimal digits of what would be sent, the same for the same dashboard."""
    text = json.dumps(_without(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def message_of(document: Json) -> str:
    """For the version's entry in the dashboard's history: says who saved it, and what.

    A save by anybody else makes a version with a message of its own, or with none, so that the newest message tells whether a
    dashboard is still as it was sent. A mark inside the dashboard would be copied by every such save; and what the dashboard
    holds need not stay what was sent, since newer releases bring it up to their own schema.
    """
    return f"llm-slo-prober {__version__} {fingerprint(document)}"


def sent(message: str | None) -> str | None:
    """The fingerprint in a message of ours, None in anybody else's."""
    found = _MESSAGE.match(message or "")
    return found[1] if found else None


def same(held: Json, wanted: Json) -> bool:
    """Nothing that a reader could see differs."""
    return normal(held) == normal(wanted)


def normal(document: Json) -> Json:
    """Without what Grafana numbers, adds empty, or has on every dashboard by itself."""
    found = _full(_without(document))
    annotations = found.get("annotations", {}).get("list", [])
    own = [each for each in annotations if not each.get("builtIn")]
    rest = {key: value for key, value in found.items() if key != "annotations"}
    return rest | ({"annotations": {"list": own}} if own else {})


def difference(held: Json, wanted: Json) -> list[str]:
    """A unified diff, cut where it gets long."""
    one, two = (json.dumps(normal(each), indent=1, sort_keys=True, ensure_ascii=False) for each in (held, wanted))
    lines = list(difflib.unified_diff(one.splitlines(), two.splitlines(), "in Grafana", "to be sent", lineterm="", n=2))
    cut = [line if len(line) <= _LONG else line[: _LONG - 1] + "…" for line in lines[:_LINES]]
    return cut + ([f"… {len(lines) - _LINES} lines more"] if len(lines) > _LINES else [])


def _without(document: Json) -> Json:
    return {key: value for key, value in document.items() if key not in _BY_GRAFANA}


def _full(value: Any) -> Any:
    """Without keys whose value says nothing."""
    if isinstance(value, dict):
        parts = ((key, _full(each)) for key, each in value.items())
        return {key: each for key, each in parts if each is not None and each is not False and each not in ("", [], {})}
    return [_full(each) for each in value] if isinstance(value, list) else value
