"""Relabelling of what was discovered, as Prometheus does it: the labels of one target in, others out, or none at all.

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
LONGEST = 4_096  # characters of the text that is looked at
_GROUP = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")


@dataclass(frozen=True, slots=True)
class Rule:
    """One step. target_label: None for keep and drop."""

    action: Literal["replace", "keep", "drop"]
    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    regex: str = "(.*)"
    target_label: str | None = None
    replacement: str = "$1"


def relabel(labels: Labels, rules: Sequence[Rule]) -> Labels | None:
    """The labels after all rules; None where one of them drops the target. A label set to nothing is removed."""
    found = dict(labels)
    for rule in rules:
        text = rule.separator.join(found.get(name, "") for name in rule.source_labels)[:LONGEST]
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
    """The expression; a dot fits a line break too. Raises ValueError for what RE2 does not know."""
    options = re2.Options()
    options.log_errors, options.dot_nl = False, True
    try:
        return re2.compile(regex, options)
    except re2.error as problem:
        said = problem.args[0] if problem.args else b""
        raise ValueError(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)) from None


def _expanded(replacement: str, match: Any) -> str:
    """With the groups of the match in place; a group that there is not, or that did not take part, is empty."""

    def group(found: "re.Match[str]") -> str:
        if found[1]:
            return "$"
        name = found[2] or found[3]
        number = int(name) if name.isdecimal() else match.re.groupindex.get(name, -1)
        return (match[number] or "") if 0 <= number <= match.re.groups else ""

    return _GROUP.sub(group, replacement)
