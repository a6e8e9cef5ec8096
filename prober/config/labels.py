"""Labels of targets: those that users configure, and relabelling of discovered targets as in Prometheus.

Configured labels are on every series about a target and on its alerts. Relabelling turns the labels of a target into new
labels, or drops the target. Its regular expressions are RE2's and must match the entire text. RE2 takes time linear in the text, so
no label from another system can make it slow.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from prober.config.fields import Block, Items, Mistakes, PositiveCount, mistake, require
from prober.config.problems import no_such
from prober.measure import quality
from prober.measure.printable import name_problem

MAX_LABELS = 10
MAX_VALUE_CHARS = 128
LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Labels of the prober's series and rules, and of every alert.
_OWN_LABELS = (
    "action alertname alertstate bound budget cause change check direction discovery engine error_type event finished_reason gpu le "
    "limit load long measure model name object part percentile period phase quantile rank reason service_tier severity shard shards "
    "short signal slo source stage state target task text token_type uuid vantage verdict version window workload"
)
OWN_LABELS = frozenset(_OWN_LABELS.split())
# Prometheus and its operator set these to the prober's own values, and rename equal names to exported_….
SCRAPE_LABELS = frozenset(("container", "endpoint", "instance", "job", "namespace", "pod", "prometheus", "service"))


def label_name_problem(name: str) -> str:
    """Why a user's label cannot have this name; empty if it can."""
    if not LABEL_NAME.fullmatch(name) or name.startswith("__"):
        return f"{name[:80]!r} is no name of a label: write up to 64 letters, digits and _, such as team"
    if name in OWN_LABELS:
        return f"{name!r} is a label of the prober itself; choose another name"
    if name in SCRAPE_LABELS:
        return f"{name!r} is set by Prometheus, to that of the prober; choose another name, such as target_{name}"
    return ""


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    with Mistakes() as mistakes:
        if len(labels) > MAX_LABELS:
            mistakes.add(
                "", f"{len(labels)} labels; use {MAX_LABELS} or fewer, as every series about the target has them"
            )
        for name, value in labels.items():
            if problem := label_name_problem(name) or name_problem(value, MAX_VALUE_CHARS):
                mistakes.add(f".{name[:80]}", problem)
    return dict(labels)


UserLabels = Annotated[dict[str, str], AfterValidator(_checked)]


TARGET_LABELS = ("__address__", "__scheme__", "__path__", "name", "model")
Labels = Mapping[str, str]
MAX_MATCHED_CHARS = 4_096
_LABEL = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_GROUP = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")


def _set(labels: dict[str, str], name: str | None, value: str) -> None:
    labels[name or ""] = value
    if not value:
        del labels[name or ""]


def _replace(rule: "Rule", labels: dict[str, str], text: str) -> bool:
    match = compiled(rule.regex).fullmatch(text[:MAX_MATCHED_CHARS])
    if match is not None and _LABEL.fullmatch(name := _expanded(rule.target_label or "", match)):
        _set(labels, name, _expanded(rule.replacement, match))
    return True


def _keep(rule: "Rule", labels: dict[str, str], text: str) -> bool:
    return _is_match(rule.regex, text) == (rule.action == "keep")


def _keep_equal(rule: "Rule", labels: dict[str, str], text: str) -> bool:
    return (labels.get(rule.target_label or "", "") == text) == (rule.action == "keepequal")


def _hash(rule: "Rule", labels: dict[str, str], text: str) -> bool:
    number = int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[8:])
    _set(labels, rule.target_label, str(number % (rule.modulus or 1)))
    return True


def _change_case(rule: "Rule", labels: dict[str, str], text: str) -> bool:
    """Change the case of each character separately, as Go does: ß stays ß."""
    convert = str.lower if rule.action == "lowercase" else str.upper
    _set(labels, rule.target_label, "".join(new if len(new := convert(old)) == 1 else old for old in text))
    return True


def _map_names(rule: "Rule", labels: dict[str, str], text: str) -> bool:
    for name, value in sorted(labels.items()):
        match = compiled(rule.regex).fullmatch(name[:MAX_MATCHED_CHARS])
        if match is not None and value:
            labels[_expanded(rule.replacement, match)] = value
    return True


def _drop_names(rule: "Rule", labels: dict[str, str], text: str) -> bool:
    for name in [name for name in labels if _is_match(rule.regex, name) == (rule.action == "labeldrop")]:
        del labels[name]
    return True


# Prometheus's actions: (function, which returns whether the target stays; the keys that it uses).
_ACTIONS: dict[str, tuple[Callable[["Rule", dict[str, str], str], bool], str]] = {
    "replace": (_replace, "source_labels separator regex target_label replacement"),
    "keep": (_keep, "source_labels separator regex"),
    "drop": (_keep, "source_labels separator regex"),
    "keepequal": (_keep_equal, "source_labels target_label"),
    "dropequal": (_keep_equal, "source_labels target_label"),
    "hashmod": (_hash, "source_labels separator target_label modulus"),
    "lowercase": (_change_case, "source_labels separator target_label"),
    "uppercase": (_change_case, "source_labels separator target_label"),
    "labelmap": (_map_names, "regex replacement"),
    "labeldrop": (_drop_names, "regex"),
    "labelkeep": (_drop_names, "regex"),
}


def _action(name: str) -> str:
    if name.lower() not in _ACTIONS:
        raise mistake(no_such("action", name, _ACTIONS))
    return name.lower()


# Without quotes a number or a truth is the text that the file has.
_Text = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean"]})]


class Rule(Block):
    """A relabelling rule."""

    source_labels: Items[Annotated[str, require(_LABEL.fullmatch, "{!r} is no name of a label")]] = Field(
        (), description="labels whose values are joined and matched"
    )
    separator: _Text = Field(";", description="text between the joined values")
    regex: Annotated[_Text, require(lambda regex: compiled(regex), "")] = Field(
        "(.*)", description="RE2 expression that matches the whole text; a dot matches line breaks too"
    )
    modulus: PositiveCount | None = Field(None, description="with hashmod: number of values")
    target_label: str | None = Field(None, description="label to set, or to compare with")
    replacement: _Text = Field("$1", description="new value; $1 and ${name} are groups of the regex")
    action: Annotated[
        str, AfterValidator(_action), WithJsonSchema({"anyOf": [{"enum": [*_ACTIONS]}, {"pattern": "[A-Z]"}]})
    ] = Field("replace", description=f"as in Prometheus, in any letter case: {', '.join(_ACTIONS)}")

    @model_validator(mode="after")
    def _check(self) -> Self:
        with Mistakes() as mistakes:
            used = _ACTIONS[self.action][1].split()
            for key, field in type(self).model_fields.items():
                if key != "action" and key not in used and getattr(self, key) != field.default:
                    mistakes.add(key, f"has no effect with action {self.action}; remove it")
            if "modulus" in used and self.modulus is None:
                mistakes.add("modulus", "needed with action hashmod, such as 4")
            if self.action in ("keep", "drop") and not self.source_labels:
                mistakes.add("source_labels", f"needed with action {self.action}")
            if "target_label" in used and not self.target_label:
                mistakes.add(
                    "target_label", f"needed: one of {', '.join(TARGET_LABELS)}, or __tmp_… for rules that follow"
                )
        return self

    @property
    def reads(self) -> dict[str, str]:
        """{place in the rule: label that it reads}. labelmap reads all labels with matching names."""
        names = {f"source_labels[{index}]": name for index, name in enumerate(self.source_labels)}
        return names | ({"target_label": self.target_label or ""} if "equal" in self.action else {})

    @property
    def sets(self) -> tuple[str, str]:
        """(key of the rule with the name of the label to set, that name). The name may contain groups; "" if no label is set."""
        if self.action == "labelmap":
            return "replacement", self.replacement
        return "target_label", "" if "equal" in self.action else self.target_label or ""


@dataclass(frozen=True, slots=True)
class LabelNames:
    """Labels that are read from a source. patterns: regular expressions for further names"""

    names: frozenset[str]
    patterns: tuple[str, ...] = ()

    def __contains__(self, name: object) -> bool:
        return name in self.names or any(_is_match(pattern, str(name)) for pattern in self.patterns)


def relabel(labels: Labels, rules: Sequence[Rule]) -> Labels | None:
    """Apply all rules to labels; None if a rule drops the target. Labels set to an empty value are removed."""
    changed = dict(labels)
    for rule in rules:
        text = rule.separator.join(changed.get(name, "") for name in rule.source_labels)
        if not _ACTIONS[rule.action][0](rule, changed, text):
            return None
    return changed


def compiled(regex: str) -> Any:
    """Compile a regular expression whose dot also matches line breaks. Raises ValueError for syntax unknown to RE2."""
    try:
        return quality.compiled(regex, dot_nl=True)
    except ValueError as problem:
        raise ValueError(f"{regex!r} is no expression of RE2: {problem}") from None


def _is_match(regex: str, text: str) -> bool:
    return compiled(regex).fullmatch(text[:MAX_MATCHED_CHARS]) is not None


def _expanded(template: str, match: Any) -> str:
    """Fill the groups of a match into a template, like Go's Regexp.Expand; missing groups are empty."""
    groups = {str(index): match[index] for index in range(match.re.groups + 1)} | match.groupdict()
    return _GROUP.sub(
        lambda reference: "$" if reference[1] else groups.get(reference[2] or reference[3]) or "", template
    )
