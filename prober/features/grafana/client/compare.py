"""Comparison of a dashboard in Grafana with the generated one, and the fingerprint of who saved it."""

import difflib
import hashlib
import json
import re
from typing import Any

from prober import __version__

Json = dict[str, Any]

_ASSIGNED_BY_GRAFANA = frozenset(("id", "version", "iteration"))
_MESSAGE = re.compile(r"^llm-slo-prober \S+ ([0-9a-f]{16})$")
_MAX_DIFF_LINES = 40
_MAX_LINE_CHARS = 160


def fingerprint(document: Json) -> str:
    """16 hexadecimal digits of a hash of the dashboard."""
    text = json.dumps(_without_assigned(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def message_of(document: Json) -> str:
    """Version message for the history of the dashboard, with the fingerprint.

    A save by anybody else creates a version with another message or none, so the newest message shows whether the dashboard was
    edited. A mark inside the dashboard would be copied by such a save, and its content may change without an edit, because newer
    releases of Grafana migrate it to their own schema.
    """
    return f"llm-slo-prober {__version__} {fingerprint(document)}"


def fingerprint_in(message: str | None) -> str | None:
    """Fingerprint in a version message of the prober; None in any other message."""
    match = _MESSAGE.match(message or "")
    return match[1] if match else None


def same(present: Json, generated: Json) -> bool:
    """Whether the dashboards are equal after normalisation."""
    return normalized(present) == normalized(generated)


def normalized(document: Json) -> Json:
    """The dashboard without numbers that Grafana assigns, empty values and built-in annotations."""
    parts = _without_empty(_without_assigned(document))
    annotations = parts.get("annotations", {}).get("list", [])
    own = [annotation for annotation in annotations if not annotation.get("builtIn")]
    rest = {key: value for key, value in parts.items() if key != "annotations"}
    return rest | ({"annotations": {"list": own}} if own else {})


def difference(present: Json, generated: Json) -> list[str]:
    """Unified diff, limited to _MAX_DIFF_LINES lines of _MAX_LINE_CHARS characters."""
    one, two = (
        json.dumps(normalized(document), indent=1, sort_keys=True, ensure_ascii=False)
        for document in (present, generated)
    )
    lines = list(difflib.unified_diff(one.splitlines(), two.splitlines(), "in Grafana", "to be sent", lineterm="", n=2))
    excerpt = [
        line if len(line) <= _MAX_LINE_CHARS else line[: _MAX_LINE_CHARS - 1] + "…" for line in lines[:_MAX_DIFF_LINES]
    ]
    hidden = len(lines) - len(excerpt)
    return excerpt + ([f"… {hidden} lines more"] if hidden else [])


def _without_assigned(document: Json) -> Json:
    return {key: value for key, value in document.items() if key not in _ASSIGNED_BY_GRAFANA}


def _without_empty(value: Any) -> Any:
    """`value` without keys that are null, false or empty."""
    if isinstance(value, dict):
        parts = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part not in (None, "", [], {}) and part is not False}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value
