"""The pages for people, from values to HTML."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from prober.features.experiments.report.document import Figure
from prober.web.page.environment import pieces, ready_made
from prober.web.page.filters import cut
from prober.web.page.view import PageView
from prober.web.targets import attention

REFRESH_S = 5
NAMED = 8  # concerns that the fleet page lists


def page(view: PageView, stamp: str, charts: Sequence[Figure] = ()) -> Iterator[str]:
    """The fleet page or a target's page in pieces, each of which takes well below a millisecond.

    Args:
        view: what is shown
        stamp: changes with the style sheet and the script, so that browsers may keep both
        charts: of the target's last sweeps
    """
    values: dict[str, Any] = {"page": view, "events": view.events, "now": view.at_unix_s}
    if view.is_target_page and view.targets:
        target = view.targets[0]
        values |= {"target": target, "concern": target.concern}
        values["charts"] = [replace(chart, svg=ready_made(chart.svg)) for chart in charts]
        yield from _pieces("target.html", f"{cut(target.name, 80)} – llm-slo-prober", stamp, **values)
    else:
        values |= {"listed": attention(view.concerns), "max_listed": NAMED}
        yield from _pieces("fleet.html", "llm-slo-prober", stamp, **values)


def no_such(name: str, known: Sequence[tuple[str, str]], stamp: str) -> str:
    """The page for a target that does not exist. known: (key, name) of some that do."""
    title = "No such target – llm-slo-prober"
    return "".join(_pieces("no_such_target.html", title, stamp, live=False, name=name, known=known))


def runbook_page(alert: str, markdown: str, stamp: str) -> str:
    """A runbook as a page, one folder below the fleet page. It takes milliseconds: call it in a thread."""
    from markdown_it import MarkdownIt  # takes 1 MB: imported only where used

    body = ready_made(MarkdownIt("commonmark").enable("table").render(markdown))
    return "".join(_pieces("runbook.html", alert, stamp, root="../", live=False, body=body))


def _pieces(
    template: str, title: str, stamp: str, *, root: str = "", live: bool = True, **values: Any
) -> Iterator[str]:
    frame = {"title": title, "stamp": stamp, "root": root, "live": live, "refresh_s": REFRESH_S}
    return pieces(template, **frame, **values)
