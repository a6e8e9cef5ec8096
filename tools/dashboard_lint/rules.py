"""Rules of the lint, after grafana/dashboard-linter. Each rule yields the problems of one dashboard as sentences.

What `prober/exposition/dashboards` makes by construction or by its types is not checked again: links between dashboards, data
sources, places on the grid, ids, units, names of declared series.

A rule of grafana/dashboard-linter is left out: a template variable `instance`, because recorded series of SLOs have no such label
and replicas of the prober are aggregated. Instead every selector must have a matcher.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from prober.exposition.dashboards.board import PLACE
from prober.exposition.dashboards.queries import NOW, RECENTLY, RECORDED_WINDOW
from prober.exposition.families import AnySeries
from tools.dashboard_lint.promql import Expression, InvalidExpression, Selector, parse
from tools.dashboard_lint.schema import DASHBOARD

Json = dict[str, Any]
SeriesLabels = Mapping[str, frozenset[str]]
SCRAPE_LABELS = frozenset({"instance", *PLACE})
RANGES = {"$__rate_interval", "$window", "$__range", NOW, RECENTLY, RECORDED_WINDOW}
# Added by functions in an expression, or by Prometheus itself.
ADDED_LABELS = frozenset(
    {
        "window",
        "le",
        "__name__",
        "alertname",
        "alertstate",
        "severity",
        "slo",
        "long",
        "short",
        "signal",
        "cause",
        "told",
        "whole_gpu",
    }
)
MIN_DESCRIPTION_WORDS = 6
_VALIDATOR = Draft202012Validator(DASHBOARD)


LEVELS = {
    "slo": "target workload slo",
    "workload": "target workload signal",
    "gpu": "target gpu",
}  # of recorded names: their labels


def labels_of_series(series: Iterable[AnySeries], rules: Iterable[Json]) -> SeriesLabels:
    """Labels of every series that a query may name: declared in `series`, recorded by `rules`, or of Prometheus."""
    of_alerts = ADDED_LABELS | {"target", "workload"} | SCRAPE_LABELS
    labels_of: dict[str, frozenset[str]] = {"ALERTS": of_alerts, "ALERTS_FOR_STATE": of_alerts}
    for declared in series:
        place = {"vantage"} if "target" in declared.labels else frozenset[str]()
        labels = labels_of[declared.name] = frozenset(declared.labels) | place | SCRAPE_LABELS
        if declared.kind == "histogram":  # under its own name: native buckets
            labels_of |= {
                f"{declared.name}_bucket": labels | {"le"},
                f"{declared.name}_count": labels,
                f"{declared.name}_sum": labels,
            }
    for rule in rules:
        if "record" in rule:
            by = LEVELS[rule["record"].partition(":")[0]].split()
            if aggregated := re.match(r"\w+ by \(([^)]*)\)", rule["expr"]):
                by += aggregated[1].split(", ")
            labels_of[rule["record"]] = frozenset(by) | frozenset(rule.get("labels", ())) | frozenset(PLACE)
    return labels_of


def problems(document: Json, labels_of: SeriesLabels) -> list[str]:
    """Problems with their places; if the document violates the schema, only these errors."""
    errors = [f"{error.json_path}: {error.message}" for error in _VALIDATOR.iter_errors(document)]
    if errors:
        return errors
    return [*(problem for rule in RULES for problem in rule(document)), *_expressions(document, labels_of)]


def panels(document: Json) -> list[Json]:
    """All panels except rows, those in closed rows too."""
    return [panel for each in document["panels"] for panel in (each["panels"] if each["type"] == "row" else [each])]


def expressions(document: Json) -> Iterator[tuple[str, str]]:
    """(place, expression) of every query: of panels, annotations and variables."""
    for panel in panels(document):
        yield from ((f"panel {panel['title']!r}, query {query['refId']}", query["expr"]) for query in panel["targets"])
    for annotation in document["annotations"]["list"]:
        if "expr" in annotation:  # the others are in Grafana's own store
            yield f"annotation {annotation['name']!r}", annotation["expr"]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']!r}", _inside(variable["query"]["query"])


def _inside(query: str) -> str:
    """The expression of `label_values(expression, label)` or `query_result(expression)`."""
    body = query.partition("(")[2].removesuffix(")")
    return body.rpartition(",")[0] if query.startswith("label_values") else body


def _words(document: Json) -> Iterator[str]:
    titles: set[str] = set()
    for panel in panels(document):
        title, text = panel["title"], panel["description"]
        if title in titles:
            yield f"two panels are called {title!r}"
        titles.add(title)
        if len(text.split()) < MIN_DESCRIPTION_WORDS or not text.endswith("."):
            yield f"panel {title!r}: its description is not a sentence"
        elif "Bad: " not in text:
            yield f"panel {title!r}: its description does not say what bad looks like"


def _variables(document: Json) -> Iterator[str]:
    names = {variable["name"] for variable in document["templating"]["list"]}
    text = " ".join(expression for _, expression in expressions(document))
    text += " ".join(row["title"] for row in document["panels"] if row["type"] == "row")
    used = set(re.findall(r"\$\{?(\w+)", text)) | {panel["repeat"] for panel in panels(document) if "repeat" in panel}
    for name in sorted(used - names):
        if not name.startswith("__") and not name.isdigit():
            yield f"variable ${name} is used but does not exist"
    for name in sorted(names - used - {"datasource"}):
        yield f"variable ${name} is not used"
    if "target" not in names:
        yield "no variable `target`, which links in alerts set"


def _overrides(document: Json) -> Iterator[str]:
    """An override that matches nothing is a mistake: Grafana matches the whole name."""
    for panel in panels(document):
        names = {re.sub(r"\{\{\w+\}\}", "x", query["legendFormat"]) for query in panel["targets"]}
        for transformation in panel["transformations"]:
            names |= set(transformation["options"].get("renameByName", {}).values())
        refs = {query["refId"] for query in panel["targets"]}
        for override in panel["fieldConfig"]["overrides"]:
            kind, wanted = override["matcher"]["id"], override["matcher"]["options"]
            matches = {
                "byName": wanted in names,
                "byRegexp": any(re.fullmatch(wanted, name) for name in names),
                "byFrameRefID": wanted in refs,
            }
            if not matches[kind]:
                yield f"panel {panel['title']!r}: the override for {wanted!r} matches nothing"


def _expressions(document: Json, labels_of: SeriesLabels) -> Iterator[str]:
    for place, text in expressions(document):
        try:
            expression = parse(text)
        except InvalidExpression as error:
            yield f"{place}: {error}"
            continue
        problems = [*_names(expression, labels_of), *(() if place.startswith("variable") else _ranges(expression))]
        yield from (f"{place}: {problem}" for problem in problems)


def _names(expression: Expression, labels_of: SeriesLabels) -> Iterator[str]:
    """Series exist and have the labels that the expression uses."""
    if not expression.selectors:
        yield "it selects no series"
    labels = set(ADDED_LABELS)
    for selector in expression.selectors:
        names = _selected(selector, labels_of)
        if not names:
            yield f"no series is called {selector.name or selector.matchers}"
            continue
        if not selector.matchers:
            yield f"{selector.name} has no matcher"
        available = frozenset[str]().union(*(labels_of[name] for name in names))
        labels |= available
        unknown = (label for label, _, _ in selector.matchers if label not in available | {"__name__"})
        yield from (f"{names[0]} has no label {label!r}" for label in unknown)
    yield from (f"no series here has the label {label!r}" for label in sorted(expression.labels - labels))


def _ranges(expression: Expression) -> Iterator[str]:
    """Ranges are variables, and counters are inside of rate or increase."""
    for selector in expression.selectors:
        counter = selector.name.startswith("llmslo_") and selector.name.endswith(
            ("_total", "_bucket", "_count", "_sum")
        )
        if selector.duration and selector.duration not in RANGES:
            yield f"the range [{selector.duration}] is none of {', '.join(sorted(RANGES))}"
        if counter and not selector.duration:
            yield f"{selector.name} is a counter: use its rate or increase"


def _selected(selector: Selector, labels_of: SeriesLabels) -> list[str]:
    """Names of the series that a selector matches, by name or by a pattern of names."""
    if selector.name:
        return [selector.name] if selector.name in labels_of else []
    pattern = next(
        (value for label, operator, value in selector.matchers if (label, operator) == ("__name__", "=~")), None
    )
    return [name for name in labels_of if pattern is not None and re.fullmatch(pattern, name)]


RULES: tuple[Callable[[Json], Iterator[str]], ...] = (_words, _variables, _overrides)
