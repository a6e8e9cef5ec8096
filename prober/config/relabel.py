"""Relabelling of discovered targets as in Prometheus: labels of a target in, new labels or nothing out.

The regular expressions are RE2's and have to fit the whole text. RE2 takes time linear in the text, so that no label that
somebody else writes can make one run long.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import re2
from pydantic import Field, ValidationInfo, field_validator

from prober.config.fields import Block, Items, matching, mistake, require

TARGET_LABELS = ("__address__", "__scheme__", "__path__", "name", "model")
Labels = Mapping[str, str]
MAX_MATCHED_CHARS = 4_096
_GROUP = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")


class Rule(Block):
    """A relabelling rule."""

    action: Literal["replace", "keep", "drop"] = Field(
        "replace", description="keep: drop targets that do not match; drop: drop targets that match"
    )
    source_labels: Items[Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "is no name of a label")]] = Field(
        (), validate_default=True, description="labels whose values are joined and matched"
    )
    separator: str = Field(";", description="text between the joined values")
    regex: Annotated[str, require(lambda regex: compiled(regex), "")] = Field(
        "(.*)", description="RE2 expression that matches the whole text"
    )
    target_label: str | None = Field(None, validate_default=True, description="label to set")
    replacement: str = Field("$1", description="new value; $1 and ${name} are groups of the regex")

    @field_validator("source_labels", "target_label", "replacement")
    @classmethod
    def _check_use(cls, value: Any, info: ValidationInfo) -> Any:
        action, is_source = info.data.get("action"), info.field_name == "source_labels"
        if action in ("keep", "drop") and is_source and not value:
            raise mistake(f"needed with action {action}")
        if action in ("keep", "drop") and not is_source and value is not None:
            raise mistake(f"is for action replace; `{action}` looks only")
        if action == "replace" and value is None:
            raise mistake(f"needed: one of {', '.join(TARGET_LABELS)}, or __tmp_… for rules that follow")
        return value


def relabel(labels: Labels, rules: Sequence[Rule]) -> Labels | None:
    """Labels after all rules; None if a rule drops the target. Labels set to an empty value are removed."""
    changed = dict(labels)
    for rule in rules:
        text = rule.separator.join(changed.get(name, "") for name in rule.source_labels)[:MAX_MATCHED_CHARS]
        match = compiled(rule.regex).fullmatch(text)
        if rule.action != "replace":
            if (match is None) == (rule.action == "keep"):
                return None
        elif match is not None and rule.target_label is not None:
            value = _expanded(rule.replacement, match)
            if value:
                changed[rule.target_label] = value
            else:
                changed.pop(rule.target_label, None)
    return changed


@lru_cache(maxsize=1_000)
def compiled(regex: str) -> Any:
    """Compile a regular expression; a dot matches line breaks too. Raises ValueError for syntax unknown to RE2."""
    options = re2.Options()
    options.log_errors, options.dot_nl = False, True
    try:
        return re2.compile(regex, options)
    except re2.error as problem:
        why = problem.args[0] if problem.args else b""
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise ValueError(f"{regex!r} is no expression of RE2: {text}") from None


def _expanded(replacement: str, match: Any) -> str:
    """Expand the groups of a match; missing groups are empty."""

    def group(reference: "re.Match[str]") -> str:
        if reference[1]:
            return "$"
        name = reference[2] or reference[3]
        number = int(name) if name.isdecimal() else match.re.groupindex.get(name, -1)
        return (match[number] or "") if 0 <= number <= match.re.groups else ""

    return _GROUP.sub(group, replacement)
