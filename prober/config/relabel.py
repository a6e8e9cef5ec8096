"""Relabelling of discovered targets as in Prometheus: labels of a target in, new labels or nothing out.

The regular expressions are RE2's and have to fit the whole text. RE2 takes time linear in the text, so that no label that
somebody else writes can make one run long.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import re2

Labels = Mapping[str, str]
MAX_MATCHED_CHARS = 4_096
_GROUP = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")


@dataclass(frozen=True, slots=True)
class Rule:
    """One relabelling rule. target_label: None for keep and drop."""

    action: Literal["replace", "keep", "drop"]
    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    regex: str = "(.*)"
    target_label: str | None = None
    replacement: str = "$1"


def relabel(labels: Labels, rules: Sequence[Rule]) -> Labels | None:
    """Labels after all rules; None if a rule drops the target. Labels set to an empty value are removed."""
    found = dict(labels)
    for rule in rules:
        text = rule.separator.join(found.get(name, "") for name in rule.source_labels)[:MAX_MATCHED_CHARS]
        match = compiled(rule.regex).fullmatch(text)
        if rule.action != "replace":
            if (match is None) == (rule.action == "keep"):
                return None
        elif match is not None and rule.target_label is not None:
            value = _expanded(rule.replacement, match)
            if value:
                found[rule.target_label] = value
            else:
                found.pop(rule.target_label, None)
    return found


@lru_cache(maxsize=1_000)
def compiled(regex: str) -> Any:
    """Compile a regular expression; a dot matches line breaks too. Raises ValueError for syntax unknown to RE2."""
    options = re2.Options()
    options.log_errors, options.dot_nl = False, True
    try:
        return re2.compile(regex, options)
    except re2.error as problem:
        said = problem.args[0] if problem.args else b""
        raise ValueError(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)) from None


def _expanded(replacement: str, match: Any) -> str:
    """Expand the groups of a match; missing groups are empty."""

    def group(found: "re.Match[str]") -> str:
        if found[1]:
            return "$"
        name = found[2] or found[3]
        number = int(name) if name.isdecimal() else match.re.groupindex.get(name, -1)
        return (match[number] or "") if 0 <= number <= match.re.groups else ""

    return _GROUP.sub(group, replacement)
