"""Renders the pages: values in, HTML out.

The environment, not the templates, escapes every value and replaces its unprintable characters, so no template can forget it.
Only `ready_made` lets markup pass.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from prober.features.experiments.report.document import Figure
from prober.features.slo.compliance import UNTRUSTED
from prober.measure.printable import printable
from prober.probing.series import PHASES
from prober.web.page.filters import FILTERS, cut
from prober.web.page.view import PageView
from prober.web.targets import NO_DRIFT_DATA, attention, engine_trends

CONSTANTS = {
    "no_drift_data": NO_DRIFT_DATA,
    "untrusted": UNTRUSTED,
    "connect_phases": PHASES,
    "max_mistakes": 20,  # listed mistakes of the configuration
    "max_open_probes": 12,  # further ones are folded
    "max_sweeps": 6,
    "shown_quantiles": (0.5, 0.9, 0.95, 0.99),
    "api_paths": ("metrics", *(f"api/v1/{name}" for name in ("targets", "probes", "events", "sweeps", "openapi.json"))),
}
REFRESH_S = 5
NAMED = 8  # concerns listed on the fleet page
_LAYOUT = re.compile(r"(?<=[>}])[ \t]*\n\s*|[ \t]*\n\s*(?=[<{])")


class LineBreaksAreLayout(Extension):
    """Removes line breaks beside template tags, with their indentation, from the text of a template.

    So templates can be indented without blank text nodes on the page. The break moves into a comment: errors name the right line.
    """

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Remove such line breaks from the source of a template."""
        return _LAYOUT.sub(lambda match: "{#" + "\n" * match[0].count("\n") + "#}", source)


def ready_made(html: str) -> Markup:
    """Mark HTML or SVG that the prober made from escaped parts, so that it is not escaped again."""
    return Markup(printable(html))


TEMPLATES = Environment(
    loader=PackageLoader("prober.web"),
    extensions=[LineBreaksAreLayout],
    autoescape=True,
    undefined=StrictUndefined,
    finalize=lambda value: printable(value) if type(value) is str else value,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
    cache_size=-1,
)
TEMPLATES.filters.update(FILTERS)
TEMPLATES.globals.update(CONSTANTS)
for template_name in TEMPLATES.list_templates():
    TEMPLATES.get_template(template_name)  # compile now, in the importing thread


def page(view: PageView, stamp: str, charts: Sequence[Figure] = ()) -> str:
    """The fleet page or a target's page.

    Args:
        view: values to show
        stamp: changes with the style sheet and the script, so that browsers can cache both
        charts: charts of the target's last sweeps
    """
    values: dict[str, Any] = {"page": view, "events": view.events, "now": view.at_unix_s}
    if view.is_target_page and view.targets:
        target = view.targets[0]
        values |= {"target": target, "concern": target.concern, "trends": engine_trends(target.readings)}
        values["charts"] = [replace(chart, svg=ready_made(chart.svg)) for chart in charts]
        return _rendered("target.html", f"{cut(target.name, 80)} – llm-slo-prober", stamp, **values)
    values |= {"listed": attention(view.concerns), "max_listed": NAMED}
    return _rendered("fleet.html", "llm-slo-prober", stamp, **values)


def no_such(name: str, known: Sequence[str], stamp: str) -> str:
    """The page for an unknown target. known: names of some existing targets"""
    title = "No such target – llm-slo-prober"
    return _rendered("no_such_target.html", title, stamp, live=False, name=name, known=known)


def runbook_page(alert: str, markdown: str, stamp: str) -> str:
    """A runbook as a page, one folder below the fleet page, without its links to other files of the repository."""
    from markdown_it import MarkdownIt  # takes 1 MB: imported only where used

    html = MarkdownIt("commonmark").enable("table").render(markdown)
    body = ready_made(re.sub(r'<a href="\.\./\.\./[^"]*">(.*?)</a>', r"\1", html))
    return _rendered("runbook.html", alert, stamp, root="../", live=False, body=body)


def _rendered(template: str, title: str, stamp: str, *, root: str = "", live: bool = True, **values: Any) -> str:
    frame = {"title": title, "stamp": stamp, "root": root, "live": live, "refresh_s": REFRESH_S}
    return TEMPLATES.get_template(template).render(**frame, **values)
