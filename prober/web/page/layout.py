"""The page around its parts. All addresses in it are relative, so that it works under any prefix and behind any proxy."""

from collections.abc import Iterator, Sequence
from html import escape

from markdown_it import MarkdownIt

from prober.features.experiments.report.document import Figure
from prober.web.page import probes
from prober.web.page.cards import card
from prober.web.page.marks import attribute, clean, clock, link, mark, told
from prober.web.page.view import Concern, Kind, PageView, Problem, concern
from prober.web.page.whole import action, happenings, panel, whole

Named = tuple[str, str, Concern]  # key, name, and what is known first
REFRESH_S = 5
NAMED = 8  # concerns that the head lists
MISTAKES = 20  # of a configuration, that it lists
API = ("metrics", "api/v1/targets", "api/v1/probes", "api/v1/events", "api/v1/sweeps", "api/v1/openapi.json")


def page(view: PageView, stamp: str, charts: Sequence[Figure] = ()) -> Iterator[str]:
    """The whole page in pieces, none of which takes long; stamp: changes with the style and the script."""
    chosen = clean(view.targets[0].name, 80) if view.whole and view.targets else ""
    yield _top(f"{chosen} – llm-slo-prober" if chosen else "llm-slo-prober", stamp, live=True)
    yield _bar(view)
    yield f'<main id="main">{_verdict(view)}'
    if view.whole and view.targets:
        yield from whole(view.targets[0], view.events, charts, view.at_unix_s, admin=view.admin)
    else:
        yield from _overview(view)
    yield f"</main>{_foot(view)}"


def _top(title: str, stamp: str, root: str = "", *, live: bool = False) -> str:
    script = f'<script src="{root}static/page.js?{stamp}" defer></script>' if live else ""
    return (
        f'<!DOCTYPE html><html lang="en" data-every="{REFRESH_S}"><head><meta charset="utf-8"><title>{attribute(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="{root}static/icon.svg?{stamp}" type="image/svg+xml">'
        f'<link rel="stylesheet" href="{root}static/page.css?{stamp}">{script}</head><body>'
    )


def _bar(view: PageView) -> str:
    home = '<a class="home" href="." aria-label="llm-slo-prober, all targets">llm-slo-prober</a>'
    reload = action("Reload configuration", "POST", "-/reload") if view.admin else ""
    return (
        f'<a class="skip" href="#main">Skip to the targets</a><header class="bar"><div>{home}</div>'
        f'<div class="live"><span id="age">as of <b id="as-of">{clock(view.at_unix_s, view.at_unix_s)}</b> UTC</span>'
        f'<span id="actions-bar">{reload}</span></div></header>'
        '<p id="stale" role="alert" hidden></p><p id="said" role="status" hidden></p>'
    )


def _verdict(view: PageView) -> str:
    """What a tired person reads first."""
    found = [each for each in view.concerns if each[2].kind != "good"]
    urgent = [each for each in found if each[2].kind in ("bad", "few")]
    untrusted = (
        ""
        if view.trusted
        else f'<p class="banner">{mark("bad", "The prober does not trust itself: it was late itself. No SLO can be judged.")}</p>'
    )
    listed = urgent or found
    items = "".join(
        f'<li><a href="{link(key)}">{told(name, 80)}</a> {mark(each.kind, told(each.text))}'
        f"{f' <small>{told(each.detail, 160)}</small>' if each.detail else ''}</li>"
        for key, name, each in listed[:NAMED]
    )
    more = f"<li>and {len(listed) - NAMED} more</li>" if len(listed) > NAMED else ""
    headline, back = _headline(view, urgent, found), ""
    if view.whole and view.targets:
        back = f'<p class="back"><a href=".">← all targets</a>: {headline}</p>' if view.total > 1 else ""
        one = concern(view.targets[0])
        said = " is well" if one.kind == "good" else f": {told(one.text)}"
        headline = mark(one.kind, f'<span id="target">{told(view.targets[0].name, 120)}</span>{said}')
    lists = f'<ul class="concerns">{items}{more}</ul>' if listed and not view.whole else ""
    problems = "".join(map(_problem, view.problems))
    return f'{back}<h1 id="verdict" aria-live="polite">{headline}</h1>{problems}{untrusted}{lists}'


def _problem(problem: Problem) -> str:
    """What of the configuration is not in effect, and every mistake."""
    items = "".join(f"<li>{told(mistake, 600)}</li>" for mistake in problem.mistakes[:MISTAKES])
    more = len(problem.mistakes) - MISTAKES
    items += f"<li>and {more} more, in the log</li>" if more > 0 else ""
    return f'<div class="banner">{mark("bad", told(problem.headline))}<ul>{items}</ul></div>'


def _headline(view: PageView, urgent: Sequence[Named], found: Sequence[Named]) -> str:
    """Of all targets; found: those that are not known to be well, urgent: of them those that are not."""
    if view.total == 0 and view.configured and view.shard:
        if view.configured == 1:
            return mark("unknown", f"Shard {view.shard} has not the one configured target")
        return mark("unknown", f"Shard {view.shard} has none of the {view.configured:,} configured targets")
    if view.total == 0:
        return mark("unknown", "No target is configured")
    if urgent:
        kind: Kind = "bad" if any(each.kind == "bad" for _, _, each in urgent) else "few"
        need = "needs" if len(urgent) == 1 else "need"
        return mark(kind, f"{len(urgent)} of {view.total} targets {need} attention")
    if found:
        return mark(
            "unknown", f"Nothing is wrong that was seen; no verdict yet on {len(found)} of {view.total} targets"
        )
    return mark("good", f"All {view.total} targets are well")


def _overview(view: PageView) -> Iterator[str]:
    yield (
        '<nav class="jump" aria-label="On this page"><a href="#h-targets">Targets</a> <a href="#h-probes">Last probes</a> '
        '<a href="#h-events">Events</a></nav>'
        f'<section aria-labelledby="h-targets"><h2 id="h-targets">Targets</h2>{_filter(view)}'
        f'<ul class="cards{" four" if len(view.targets) == 4 else ""}">'
    )
    for each in view.targets:
        yield card(each)
    yield f'</ul>{_pages(view)}</section><div class="halves">'
    yield '<section class="panel" aria-labelledby="h-probes"><h2 id="h-probes">Last probes</h2>'
    yield from probes.rows(view.probes, view.at_unix_s, named=True)
    yield "</section>"
    yield panel("Events", happenings(view.events, view.at_unix_s, named=True))
    yield "</div>"


def _filter(view: PageView) -> str:
    if view.total < 2:
        return ""
    told_ = f"{view.matching} of {view.total}" if view.asked else f"{view.total}"
    return (
        '<form class="filter" role="search" method="get" action="."><label for="q">Filter by name, model, engine or state</label>'
        f'<input id="q" name="q" type="search" value="{attribute(view.asked)}" autocomplete="off" spellcheck="false">'
        f'<button type="submit">Filter</button> <span id="matching">{told_} targets, those in trouble first</span></form>'
    )


def _pages(view: PageView) -> str:
    if view.pages < 2:
        return ""
    asked = f"q={link(view.asked).removeprefix('?target=')}&amp;" if view.asked else ""
    parts = [
        f'<a href="?{asked}page={at}" rel="{rel}">{words}</a>'
        for at, rel, words in ((view.page - 1, "prev", "← worse"), (view.page + 1, "next", "better →"))
        if 1 <= at <= view.pages
    ]
    return f'<nav class="pages" aria-label="Pages of targets">page {view.page} of {view.pages} {" ".join(parts)}</nav>'


def _foot(view: PageView) -> str:
    links = " ".join(f'<a href="{path}">/{path}</a>' for path in API)
    off = "" if view.admin else " Actions are off; <code>--web.enable-admin-api</code> allows them."
    return f'<footer><p>llm-slo-prober {escape(view.version)}.{off}</p><nav aria-label="API">{links}</nav></footer></body></html>'


def no_such(name: str, known: Sequence[tuple[str, str]], stamp: str) -> str:
    """There is no such target; known: (key, name) of some that there are."""
    items = "".join(f'<li><a href="{link(key)}">{told(each)}</a></li>' for key, each in known)
    return (
        f'{_top("No such target – llm-slo-prober", stamp)}<main id="main"><h1>There is no target {told(name, 200)}</h1>'
        f'<p><a href=".">← all targets</a></p><ul>{items}</ul></main></body></html>'
    )


def runbook_page(alert: str, markdown: str, stamp: str) -> str:
    """A runbook as a page, one folder below."""
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    back = '<p class="back"><a href="../">← all targets</a></p>'
    return f'{_top(alert, stamp, "../")}<main id="main" class="text">{back}{body}</main></body></html>'
