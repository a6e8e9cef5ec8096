"""What is wrong with a dashboard, in the spirit of grafana/dashboard-linter: each rule yields sentences, none where all is well.

Two of its rules are not held, on purpose: series have no template of job and instance, because recorded series of SLOs have
neither and replicas of the prober are taken together. In their place every selector must narrow what it asks for.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from prober.exposition.families import Series
from prober.features.grafana.dashboards.board import TAG, UIDS
from prober.features.grafana.dashboards.promql import Reading, Selector, Unreadable, read
from prober.features.grafana.dashboards.schema import DASHBOARD

Json = dict[str, Any]
Known = Mapping[str, frozenset[str]]
SCRAPED = frozenset({"job", "instance"})
RANGES = {"$__rate_interval", "$window", "$__range"}
# Made by functions of an expression, or of Prometheus itself.
MADE = frozenset(
    {"window", "le", "__name__", "alertname", "alertstate", "severity", "slo", "long", "short", "signal", "cause"}
)
UNITS = frozenset(
    {
        *("none", "short", "s", "percentunit", "reqps", "cps", "ops", "Bps", "watt", "hertz", "celsius", "joule"),
        *("currencyUSD", "dateTimeFromNow"),
    }
)
TEXT_WORDS = 6
_VALIDATOR = Draft202012Validator(DASHBOARD)


def known(series: Iterable[Series], rules: Iterable[Json]) -> Known:
    """Labels of every series that a query may name: declared in `series`, recorded by `rules`, or of Prometheus itself."""
    found: dict[str, frozenset[str]] = {}
    for declared in series:
        labels = frozenset(declared.labels) | SCRAPED
        if declared.kind == "histogram":
            found |= {f"{declared.name}_bucket": labels | {"le"}, f"{declared.name}_count": labels}
            found[declared.name] = labels  # native
        else:
            found[declared.name] = labels
    for rule in rules:
        if "record" in rule:
            by = rule["record"].partition(":")[0].split("_")
            found[rule["record"]] = frozenset(by) | frozenset(rule.get("labels", ()))
    return found | {"ALERTS": MADE | {"target", "workload"} | SCRAPED}


def problems(document: Json, series_known: Known) -> list[str]:
    """Sentences, each with the place; the rest is looked at only if the document has the form of a dashboard."""
    form = [f"{error.json_path}: {error.message}" for error in _VALIDATOR.iter_errors(document)]
    if form:
        return form
    return [*(said for rule in RULES for said in rule(document)), *_expressions(document, series_known)]


def panels(document: Json) -> list[Json]:
    """Without rows."""
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def expressions(document: Json) -> Iterator[tuple[str, str]]:
    """(place, expression) of every query: of panels, annotations and variables."""
    for panel in panels(document):
        yield from ((f"panel {panel['title']!r}, query {each['refId']}", each["expr"]) for each in panel["targets"])
    for each in document["annotations"]["list"]:
        if "expr" in each:  # else it is what Grafana itself keeps
            yield f"annotation {each['name']!r}", each["expr"]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']!r}", _inside(variable["query"]["query"])


def _inside(query: str) -> str:
    """The expression of `label_values(expression, label)` or `query_result(expression)`."""
    body = query.partition("(")[2].removesuffix(")")
    return body.rpartition(",")[0] if query.startswith("label_values") else body


def _identity(document: Json) -> Iterator[str]:
    if document["uid"] not in UIDS.values():
        yield f"uid {document['uid']!r} is none of those that links know: {', '.join(UIDS.values())}"
    if TAG not in document["tags"]:
        yield f"the tag {TAG!r} is missing"


def _links(document: Json) -> Iterator[str]:
    wanted = {f"/d/{uid}" for uid in UIDS.values()} - {f"/d/{document['uid']}"}
    for missing in sorted(wanted - {link["url"] for link in document["links"]}):
        yield f"no link to {missing}"
    for link in document["links"]:
        if not (link["includeVars"] and link["keepTime"]):
            yield f"link {link['title']!r} loses the target or the time"
    for found in re.findall(r'"url": "(/d/[^"?]*)', json.dumps(document)):
        if found.removeprefix("/d/") not in UIDS.values():
            yield f"a link to {found}, which is no dashboard of these"


def _source(document: Json) -> Iterator[str]:
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    if variables.get("datasource", {}).get("query") != "prometheus":
        yield "no variable `datasource` for a Prometheus"
    for place, source in _sources(document):
        if source["uid"] != "${datasource}":
            yield f"{place} has the data source {source['uid']!r} instead of ${{datasource}}"


def _sources(document: Json) -> Iterator[tuple[str, Json]]:
    for panel in panels(document):
        yield f"panel {panel['title']!r}", panel["datasource"]
        yield from (
            (f"panel {panel['title']!r}, query {each['refId']}", each["datasource"]) for each in panel["targets"]
        )
    yield from (
        (f"annotation {each['name']!r}", each["datasource"])
        for each in document["annotations"]["list"]
        if each["datasource"]["type"] != "grafana"
    )
    yield from (
        (f"variable {each['name']!r}", each["datasource"])
        for each in document["templating"]["list"]
        if "datasource" in each
    )


def _words(document: Json) -> Iterator[str]:
    titles: set[str] = set()
    for panel in panels(document):
        title, text = panel["title"], panel["description"]
        if title in titles:
            yield f"two panels are called {title!r}"
        titles.add(title)
        if len(text.split()) < TEXT_WORDS or not text.endswith("."):
            yield f"panel {title!r}: its description is no sentence"
        elif "Bad: " not in text:
            yield f"panel {title!r}: its description does not say what bad looks like"


def _units(document: Json) -> Iterator[str]:
    for panel in panels(document):
        given = [panel["fieldConfig"]["defaults"]["unit"]]
        given += [
            each["value"]
            for over in panel["fieldConfig"]["overrides"]
            for each in over["properties"]
            if each["id"] == "unit"
        ]
        yield from (f"panel {panel['title']!r}: unit {unit!r} is not known" for unit in given if unit not in UNITS)


def _grid(document: Json) -> Iterator[str]:
    taken: dict[tuple[int, int], str] = {}
    ids: set[int] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            yield f"panel {panel['title']!r} is wider than the grid"
        cells = [
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        others = {taken[cell] for cell in cells if cell in taken}
        yield from (f"panel {panel['title']!r} lies over {other!r}" for other in sorted(others))
        taken |= dict.fromkeys(cells, panel["title"])
        if panel["id"] in ids:
            yield f"panel {panel['title']!r} has the id of another one, {panel['id']}"
        ids.add(panel["id"])
    yield from _repeats(document)


def _repeats(document: Json) -> Iterator[str]:
    for panel in panels(document):
        alone = [each for each in document["panels"] if each["gridPos"]["y"] == panel["gridPos"]["y"]] == [panel]
        if "repeat" in panel and not alone:
            yield f"panel {panel['title']!r} is repeated and not alone on its line"


def _variables(document: Json) -> Iterator[str]:
    names = {variable["name"] for variable in document["templating"]["list"]}
    text = " ".join(expression for _, expression in expressions(document))
    used = set(re.findall(r"\$\{?(\w+)", text)) | {panel["repeat"] for panel in panels(document) if "repeat" in panel}
    for name in sorted(used - names):
        if not name.startswith("__") and not name.isdigit():
            yield f"variable ${name} is used and not there"
    for name in sorted(names - used - {"datasource"}):
        yield f"variable ${name} is there and not used"
    if "target" not in names:
        yield "no variable `target`, which the links of alerts set"


def _overrides(document: Json) -> Iterator[str]:
    """One that matches nothing is a slip: Grafana wants the whole name."""
    for panel in panels(document):
        names = {re.sub(r"\{\{\w+\}\}", "x", each["legendFormat"]) for each in panel["targets"]}
        shown = {name for each in panel["transformations"] for name in each["options"].get("renameByName", {}).values()}
        refs = {each["refId"] for each in panel["targets"]}
        for override in panel["fieldConfig"]["overrides"]:
            kind, wanted = override["matcher"]["id"], override["matcher"]["options"]
            found = {
                "byName": wanted in shown | names,
                "byRegexp": any(re.fullmatch(wanted, name) for name in shown | names),
                "byFrameRefID": wanted in refs,
            }
            if not found[kind]:
                yield f"panel {panel['title']!r}: the override for {wanted!r} matches nothing"


def _refs(document: Json) -> Iterator[str]:
    for panel in panels(document):
        refs = [each["refId"] for each in panel["targets"]]
        if len(set(refs)) < len(refs):
            yield f"panel {panel['title']!r}: two queries have the same refId"
        yield from (
            f"panel {panel['title']!r}: query {each['refId']} is both of an instant and of a range, or neither"
            for each in panel["targets"]
            if each["instant"] == each["range"]
        )


def _expressions(document: Json, series_known: Known) -> Iterator[str]:
    for place, text in expressions(document):
        try:
            found = read(text)
        except Unreadable as problem:
            yield f"{place}: {problem}"
            continue
        yield from (f"{place}: {said}" for said in _expression(found, series_known))
        if not place.startswith("variable"):
            yield from (f"{place}: {said}" for said in _ranges(found))


def _expression(found: Reading, series_known: Known) -> Iterator[str]:
    if not found.selectors:
        yield "it asks for no series"
    labels = set(MADE)
    for selector in found.selectors:
        names = _named(selector, series_known)
        if not names:
            yield f"no series is called {selector.name or selector.matchers}"
            continue
        if not selector.matchers:
            yield f"{selector.name} is asked for without a selector"
        has = frozenset[str]().union(*(series_known[name] for name in names))
        labels |= has
        unknown = (label for label, _, _ in selector.matchers if label not in has | {"__name__"})
        yield from (f"{names[0]} has no label {label!r}" for label in unknown)
    yield from (f"no series here has the label {label!r}" for label in sorted(found.labels - labels))


def _ranges(found: Reading) -> Iterator[str]:
    """Rates over what Grafana or the reader chooses, and counters only as rates."""
    for selector in found.selectors:
        counter = selector.name.startswith("llmslo_") and selector.name.endswith(("_total", "_bucket", "_count"))
        if selector.duration and selector.duration not in RANGES:
            yield f"the range [{selector.duration}] is none of {', '.join(sorted(RANGES))}"
        if counter and not selector.duration:
            yield f"{selector.name} is a counter: its rate or increase is wanted"


def _named(selector: Selector, series_known: Known) -> list[str]:
    """The series that a selector reaches, by name or by a pattern of names."""
    if selector.name:
        return [selector.name] if selector.name in series_known else []
    pattern = next(
        (value for label, operator, value in selector.matchers if (label, operator) == ("__name__", "=~")), None
    )
    return [name for name in series_known if pattern is not None and re.fullmatch(pattern, name)]


RULES: tuple[Callable[[Json], Iterator[str]], ...] = (
    _identity,
    _links,
    _source,
    _words,
    _units,
    _grid,
    _variables,
    _overrides,
    _refs,
)
