"""The prober's own page as HTML: its text in each scene, its structure, and that no foreign text becomes markup."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prober.features.diagnosis.advice import Advice
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.drift.state import DriftVerdict
from prober.features.experiments.report.plots import curves
from prober.features.slo.compliance import Burn, SloStatus
from prober.measure.engine_signals import EngineInfo, EngineSignals
from prober.measure.objective import Slo
from prober.measure.outcome import NEUTRAL, Outcome
from prober.measure.printable import printable
from prober.measure.result import ProbeResult
from prober.measure.server_timing import TimeParts
from prober.measure.target_state import TargetEvent
from prober.measure.timeline import Connection, Timeline
from prober.results.capacity import Capacity, UndecidedEvents
from prober.statistics.quantiles import Quantile
from prober.storage.watched_file import runbooks
from prober.web.page import filters, layout
from prober.web.page.filters import cut
from prober.web.page.layout import TEMPLATES
from prober.web.page.view import AT_ONCE, RECENT, PageView, ProbeFilter
from prober.web.targets import HealthAnswer, SloAnswer, TargetAnswer, engine_trends
from prober.web.views import early_warnings, why_no_latency
from tests.results.samples import sweep
from tests.web.scenes import (
    HOSTILE,
    ITL,
    LONG,
    NOW,
    OK,
    SCENES,
    TTFT,
    at_other_load,
    drift,
    filled,
    hostile,
    hundred,
    page_of,
    probe,
    replace,
    room,
    slow,
    target,
    unconfigured,
    unusual,
)

GRAFANA = "https://grafana.example"  # checked where it is given
VOID = {"meta", "link", "input", "br", "img", "hr"}


def html(targets: Sequence[TargetAnswer], *, admin: bool = True, query: str = "", chosen: str = "") -> str:
    return html_of(page_of(targets, admin=admin, query=query, chosen=chosen))


def html_of(view: PageView) -> str:
    drawn = curves([(sweep.id, sweep) for sweep in view.targets[0].sweeps]) if view.is_target_page else []
    return layout.page(view, "stamp", drawn)


def rows(probes: Sequence[ProbeResult]) -> str:
    """The list of probes alone."""
    return TEMPLATES.get_template("probes.html").render(
        page=replace(page_of([target()]), probes=probes), now=NOW, with_target=True
    )


class Read(HTMLParser):
    """A page as a browser parses it; a tag closed in the wrong order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.headings: list[int] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, name: str) -> list[str]:
        """The values of one attribute."""
        return [attributes[name] for _, attributes in self.tags if name in attributes]


PAGES: dict[str, Callable[[], list[TargetAnswer]]] = {**SCENES, "hundred": hundred, "hostile": hostile}


@pytest.mark.parametrize("scene", PAGES)
def test_every_scene_is_a_well_formed_page(scene: str) -> None:
    """Tags are closed in order, ids are unique and without blanks, headings skip no level, every drawing has a label."""
    read = Read(html(PAGES[scene]()))
    ids = read.all("id")
    assert len(ids) == len(set(ids))
    assert not any(re.search(r"\s", id_) for id_ in ids)
    assert {part for ids_ in read.all("aria-labelledby") for part in ids_.split()} <= set(ids)
    assert read.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(read.headings, read.headings[1:], strict=False))
    assert all(attributes.get("aria-label") for tag, attributes in read.tags if tag == "svg")
    assert "NaN" not in read.text
    assert "None" not in read.text.replace("None yet", "").replace("None is", "")


@pytest.mark.parametrize("scene", PAGES)
def test_nothing_on_it_leads_away_from_the_prober(scene: str) -> None:
    """Every address is relative, so it works under any prefix; there is one script file and no inline handler."""
    read = Read(html(PAGES[scene]()))
    for address in (*read.all("href"), *read.all("src"), *read.all("action"), *read.all("data-path")):
        assert not re.match(r"[a-z]+:|/", address), address
    assert [attributes for tag, attributes in read.tags if tag == "script"] == [
        {"src": "static/page.js?stamp", "defer": ""}
    ]
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)


TEXTS = {
    "markup": HOSTILE,
    "long": LONG,
    "half characters, controls, a comment, any script": "\ud800\udfff" * 40 + "\x00\x07\x1b[31m]]>--><!--名前 🦙",
}


EVIL = {
    **TEXTS,
    "address": "javascript:alert(1)",
    "attribute": "\" onmouseover=alert(1) x='",
    "template": "{{ 7919 * 7919 }}",
    "end of a script": "</script></style></title><script>alert(1)</script>",
}


@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL)
def test_no_template_takes_any_field_for_markup(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every template, every string of every value in it hostile: the same tags with the same attributes as with plain text."""
    used = set()

    def get_template(name: str, *rest: Any) -> Any:
        used.add(name)
        return original(name, *rest)

    original = TEMPLATES.get_template
    monkeypatch.setattr(TEMPLATES, "get_template", get_template)
    pages = list(every_page(text))
    assert used == set(TEMPLATES.list_templates())
    for before, after in zip(plain_tags(), pages, strict=True):
        read = Read(after)
        assert tags_of(read) == before
        for address in (*read.all("href"), *read.all("src"), *read.all("action"), *read.all("data-path")):
            assert re.match(
                rf"((\.\./)?(\?|#|\.?$|static/|api/v1/|metrics$|-/reload$|runbooks/LLM\w+$)|{GRAFANA}/d/llm-slo)",
                address,
            ), address
        assert str(7919 * 7919) not in read.text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", after)
        after.encode()


def tags_of(read: Read) -> list[tuple[str, list[str]]]:
    return [(tag, list(attributes)) for tag, attributes in read.tags]


@cache
def plain_tags() -> list[list[tuple[str, list[str]]]]:
    """Those of each page of a plain text."""
    return [tags_of(Read(page)) for page in every_page("x")]


def every_page(text: str) -> Iterator[str]:
    """Pages that use all templates, with `text` in every field of their values."""
    scenes = [
        slow()[0],
        *SCENES["drifting"](),
        *SCENES["full"](),
        *SCENES["nothing"](),
        *SCENES["starting"](),
        *SCENES["paused"](),
    ]
    drawn = [replace(curve, svg="<svg></svg>") for curve in filled(curves([("a", sweep("a"))]), text)]
    for one in scenes:
        view = filled(replace(page_of([one], query="x", chosen="x"), problems=unconfigured().problems), text)
        yield layout.page(replace(view, grafana_url=GRAFANA), "stamp", drawn)
    view = replace(page_of(scenes), filter_text="x", page=2, pages=3, matching=300)
    yield layout.page(replace(filled(view, text), grafana_url=GRAFANA), "stamp")
    yield layout.no_such(text, [text], "stamp")
    yield layout.runbook_page(text, "", "stamp")


def test_only_one_place_lets_ready_made_markup_through() -> None:
    """No template calls anything safe or switches escaping off; of the package only `ready_made` makes Markup."""
    package = Path(layout.__file__).parents[1]
    for template in package.glob("templates/*"):
        assert not re.search(r"\|\s*safe|autoescape|Markup", template.read_text()), template.name
    assert sum(source.read_text().count("Markup(") for source in package.rglob("*.py")) == 1


@pytest.mark.parametrize("scene", PAGES)
def test_every_cell_names_its_column(scene: str) -> None:
    """A phone shows tables without their heads, so `data-of` of the cells names the columns in the same order."""
    for table in re.findall(r'<table class="(?:broad)?">.*?</table>', html(PAGES[scene]())):
        head, body = table.split("<tbody>")
        columns = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', head)
        for row in body.split("<tr>")[1:]:
            assert re.findall(r'data-of="([^"]*)"', row) == columns


def test_a_text_is_cut_and_its_faults_are_shown() -> None:
    """Control and direction characters are replaced, not removed; ordinary text of any script stays."""
    assert printable("a\u202eb\x1bc\ud800d\ne") == "a\ufffdb\ufffdc\ufffdd\ne"
    assert cut("x" * 10, 4) == "xxxx…"
    assert printable("模型 модель نموذج") == "模型 модель نموذج"


@pytest.mark.parametrize(
    ("scene", "rank", "headline"),
    [
        ("down", 0, "✗ llama-70b: failing, since 10:53:20"),
        ("slow", 1, "✗ llama-70b: TTFT 1.1 s, 500 ms allowed, since 10:53:20"),
        ("drifting", 2, "▲ llama-70b: slower than its baseline: TTFT p50 ×1.31 [1.24, 1.39], since 09:30:00"),
        ("nothing", 4, "? http://llm.example:8000: pending"),
        ("over", 5, "◇ llama-70b: SLO missed over 30 days: ttft, not burning since 10:50:00"),
        ("paused", 6, "? llama-70b: paused, since 10:50:00"),
        ("full", 9, "✓ llama-70b: no problem found"),
        ("healthy", 9, "✓ llama-70b: no problem found"),
    ],
)
def test_the_headline_is_the_worst_fact(scene: str, rank: int, headline: str) -> None:
    """It has a sign and words. Failing ranks before a burning SLO, that before drift; new targets, missed SLOs of the past and pauses
    come behind them.
    """
    assert SCENES[scene]()[0].concern.rank == rank
    heading = re.search(r"<h1.*?</h1>", html(SCENES[scene]()))
    assert heading is not None
    assert Read(heading[0]).text == headline


def test_a_target_that_gets_no_traffic_is_no_target_without_problem() -> None:
    """Where some of its probes are answered, so that it is ready; that all of them fail goes before it."""
    health = HealthAnswer(state="unhealthy", reason="failed probes: 3 of the last 5")
    (ready,), (down,) = ((replace(view, health=health) for view in SCENES[name]()) for name in ("healthy", "down"))
    assert (ready.concern.rank, ready.concern.text, ready.concern.detail) == (1, "unhealthy", health.reason)
    assert down.concern.text == "failing"


FIGURES = {
    "healthy": "✓ met | TTFT | p50 | p90 | p95 | p99 | 1,400 | no drift found | 1.1 M of 4 M tokens | 42% free | "
    "estimated knee 12/s, 90% interval 10 to 13",
    "slow": "✗ missed | 61 of 2,400 | queueing | requests waiting | GPU utilization | --max-num-seqs | "
    "requests running | 1,200/s | 41% | last ten minutes | "
    "none, demand is above the capacity",
    "drifting": "slower since | slower at the same load | no large drift found (provisional) | ×1.44 | [1.3, 1.61] | "
    "1.00 of 1 | ▲ 3.9 M of 4 M",
    "full": "Sweep running | ramp, stage 5 | 12.5 requests/s | 311 requests | 41 s | Latency over load",
    "down": "✗ llama-70b: failing | state: failing | connect_refused | 127.0.0.1:8000 refused the connection | "
    "✗ missed",
    "nothing": "? no data | no event yet | No latency samples yet | ? learning | No probes yet",
    "buffered": "state: ready, buffered | "
    "Buffered: 10 of the last 10 answers arrived all at once or in flushes of 4 chunks or more; something on the way | "
    "not measurable here: all content arrived at once, so its TTFT is the time of the whole answer",
    "cached": "Cached: probe measures no latency, as every prompt is cached.",
    "over": "◇ missed | not burning since 10:50:00 | What happened | queueing from 10:35:00 until 10:50:00: requests waited",
    "paused": "‖ paused | No probes and no sweeps start until it is resumed | Resume",
}


@pytest.mark.parametrize("scene", FIGURES)
def test_a_targets_page_shows_all_figures(scene: str) -> None:
    """The figures of each scene are on the page with their words."""
    text = Read(html(SCENES[scene]())).text
    assert [missing for missing in FIGURES[scene].split(" | ") if missing not in text] == []


def bounded(*bounds: float | None) -> TargetAnswer:
    """A target of whose SLOs the sweep could not judge one."""
    (well,) = SCENES["healthy"]()
    assert well.swept is not None
    both = [*well.swept.capacities, Capacity("patience", "not_enough_data")]
    return replace(well, swept=replace(well.swept, capacities=both), headroom=room(*bounds))


def diagnosed(**changes: Any) -> TargetAnswer:
    """A slow target whose diagnosis differs so."""
    (view,) = SCENES["slow"]()
    assert view.diagnosis is not None
    return replace(view, diagnosis=replace(view.diagnosis, **changes))


STARTING = "refuses connections since 10:54:00; counted as failures after 20m, from 11:14:00 UTC (starting_timeout)"
# What is said of targets, and what is not.
SAID: dict[str, tuple[list[TargetAnswer], list[str], list[str]]] = {
    "a drift at a load that was not learnt has neither cause nor size": (
        [replace(target(), drift=at_other_load(active=True))],
        ["so neither cause nor size is stated"], ["too few samples yet", "no drift found"],
    ),
    "without a drift there is no verdict at such a load": (
        [replace(target(), drift=at_other_load(active=False))],
        ["? no verdict: the load is outside"], ["too few samples yet", "no drift found"],
    ),
    "what is only unusual is no concern": (
        [replace(target(), drift=unusual())],
        ["no problem found", "? unusual since", "three days are not learnt yet, so it may be usual"], ["slower than its baseline"],
    ),
    "probes that are in no percentile, for lack of CPU time of the prober": (
        [replace(target(), timed=(120, 113))], ["Of 120 probes of the last ten minutes 7 have no TTFT"], [],
    ),
    "no probe is left out": ([replace(target(), timed=(120, 120))], [], ["have no TTFT"]),
    "a headroom beside an SLO without enough data is an upper bound, without a bar": (
        [bounded(None, None, 0.6, None, None, 3.0)],
        ["? at most 60% free: the sweep could not judge patience, which may fail at a lower rate"],
        ["of the capacity in use", "unknown"],
    ),
    "no headroom is no headroom beside it either": (
        [bounded(None, None, -0.1, None, None, 0.0)], ["✗ none, demand is above the capacity"], [],
    ),
    "an unknown headroom is neither 0% nor 100%": (
        [replace(target(), headroom=None, headroom_unknown="the demand is not known at the moment")],
        ["Headroom: ? unknown, the demand is not known at the moment."], ["% free"],
    ),
    "a known headroom": ([target()], ["% free"], ["unknown"]),
    "a target that refuses connections, since when and until when": (SCENES["starting"](), [STARTING], []),
    "and its card": ([target(), *SCENES["starting"]()], [STARTING], []),
    "an action without a cost names none": (
        [diagnosed(advice=(Advice("wait", "nothing"), Advice("add replicas", "cost")))], ["trade-off: cost"], ["trade-off: nothing"],
    ),
    "a command in a sentence, between backticks": (
        [diagnosed(next_measurement="TTFT (`prober diagnose`)", missing=("it`s",))], ["TTFT (prober diagnose)", "it`s"], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_what_is_said_of_a_target(case: str) -> None:
    """And what is not, in words that a reader can act on."""
    views, said, unsaid = SAID[case]
    text = Read(html(views)).text.replace("\xa0", " ")
    assert [words for words in said if words not in text] == []
    assert [words for words in unsaid if words in text] == []


def test_the_last_probes_are_filtered_by_links() -> None:
    """All, failed, the chosen outcome, each workload: links that keep what else is chosen. No probe left is not `no probes yet`."""
    view = page_of([replace(target(), workloads=("chat", "long & slow"))], chosen="llama-70b")
    read = Read(html_of(view))
    hrefs = [link for link in read.all("href") if link.endswith("#h-probes")]
    assert [link for link in hrefs if "outcome=failed" in link] == ["?target=llama-70b&outcome=failed#h-probes"]
    assert "?target=llama-70b&workload=long%20%26%20slow#h-probes" in hrefs
    assert "?target=llama-70b&outcome=http_5xx#h-probes" in hrefs, "a row of the table of outcomes"
    chosen = replace(view, probe_filter=ProbeFilter("http_5xx", "chat"), probes=())
    read = Read(html_of(chosen))
    assert "No probe that this prober remembers matches." in read.text
    assert "No probes yet" not in read.text
    hrefs = [link for link in read.all("href") if link.endswith("#h-probes")]
    assert "?target=llama-70b&workload=chat#h-probes" in hrefs, "all outcomes of this workload"
    assert "?target=llama-70b&outcome=http_5xx#h-probes" in hrefs, "all workloads with this outcome"
    fleet = html_of(
        replace(page_of([target(), target("b")], query="l"), probe_filter=ProbeFilter("failed"), page=2, pages=3)
    )
    assert 'name="outcome" value="failed"' in fleet, "the filter of targets keeps it"
    assert [link for link in Read(fleet).all("href") if "page=3" in link] == ["?q=l&page=3&outcome=failed"]


def test_trouble_leads_to_its_runbook_and_to_grafana() -> None:
    """Each runbook that a page names is one that the site serves; dashboards only where a Grafana is known."""
    named = set()
    for make in SCENES.values():
        view = page_of(make())
        for shown in (
            view,
            *(replace(view, targets=[one], chosen=one.name, is_target_page=True) for one in view.targets[:3]),
        ):
            named |= {link for link in Read(html_of(shown)).all("href") if link.startswith("runbooks/")}
    assert {"runbooks/LLMTargetFailing", "runbooks/LLMErrorBudgetBurn"} <= named
    assert {link.removeprefix("runbooks/") for link in named} <= set(runbooks())
    for signal, runbook in (("ttft", "LLMTTFTP99Drift"), ("itl", "LLMITLP99Drift")):
        drifted = replace(target(), drift=[drift(signal, DriftVerdict("settled", 1.0, active=True))])
        assert drifted.concern.runbook == runbook
        assert runbook in runbooks()
    one = page_of([target("a b")], chosen="a b")
    assert "grafana" not in html_of(one).lower()
    linked = Read(html_of(replace(one, grafana_url="https://g.example/x"))).all("href")
    assert "https://g.example/x/d/llm-slo-target?var-target=a%20b" in linked
    fleet = replace(page_of([target(), target("b")]), grafana_url="https://g.example/x")
    assert "https://g.example/x/d/llm-slo" in Read(html_of(fleet)).all("href")


def burning(slo: Slo, bad: int) -> SloAnswer:
    """An SLO whose budget burns, with so many of the last 100 events bad."""
    burn = Burn(100, bad, 300.0, NOW - 60, NOW)
    return SloAnswer.model_validate(SloStatus(slo, "chat", 2_400, 61, NOW - 9_000, "missed", "", burn))


def test_what_is_bad_now_is_said_first_with_how_much_is_allowed() -> None:
    """In the words of the diagnosis; until it has some, the share of bad events of the SLO that burns fastest."""
    view = replace(target(), slos=[burning(TTFT, 5), burning(OK, 40), burning(ITL, 4)])
    assert view.concern.words(NOW) == "SLO ok: 40% bad, 1% allowed, since 10:59:00"
    told = replace(view, diagnosis=Diagnosis(("unknown",), "not visible", bad="TTFT 1.1 s, 500 ms allowed"))
    assert told.concern.words(NOW) == "TTFT 1.1 s, 500 ms allowed, since 10:59:00"
    assert told.concern.detail == "cause unknown; 40 of 100 bad in the last 5m"


def test_now_goes_before_the_past() -> None:
    """Of 17 targets one burns, one only drifts, and 13 missed an SLO earlier: those are named below, and not called trouble."""
    (slow,), (over,), (drifting,) = SCENES["slow"](), SCENES["over"](), SCENES["drifting"]()
    past = [replace(over, name=f"a{n}") for n in range(13)]
    mild = replace(slow, name="a", slos=[burning(TTFT, 5)])
    worst = replace(slow, name="z", slos=[burning(TTFT, 58)])
    well = [replace(target(), name=f"w{n}") for n in range(2)]
    page = page_of([*past, mild, drifting, *well, worst])
    assert page.headline == ("bad", "3 of 18 targets need attention; 13 more missed an SLO earlier")
    assert [concern.target for concern in page.concerns[:4]] == ["z", "a", "llama-70b", "a0"]
    assert page_of([*past, *well]).headline == ("past", "No problem now; 13 of 15 targets missed an SLO earlier")
    assert page_of(well).headline == ("good", "No problem found on any of 2 targets")


def test_a_missed_slo_whose_bad_events_go_on_is_not_called_over() -> None:
    """It spends its budget too slowly to burn, and faster than it allows; within the budget it is over, as long as nothing is known
    of when it burned without a time.
    """
    cases = {
        (600, 12): ("few", "SLO missed over 30 days: ttft, and bad events go on"),
        (600, 6): ("past", "SLO missed over 30 days: ttft, not burning"),
        (60, 2): ("past", "SLO missed over 30 days: ttft, not burning"),
    }
    for counts, words in cases.items():
        missed = SloStatus(TTFT, "chat", 2_400, 61, NOW - 9_000, "missed", "", Burn(*counts, 300.0))
        concern = replace(target(), slos=[SloAnswer.model_validate(missed)]).concern
        assert (concern.kind, concern.words(NOW)) == words


def test_a_cause_that_is_unknown_is_no_headline() -> None:
    """Where nothing burns and no latency drifted; a named cause is one."""
    (view,) = SCENES["slow"]()
    assert view.diagnosis is not None
    named = replace(view.diagnosis, bad="", since_unix_s=NOW - 60)
    well = replace(view, slos=target().slos, diagnosis=named)
    assert replace(well, diagnosis=Diagnosis(("unknown",), "not visible")).concern.text == "no problem found"
    assert well.concern.words(NOW) == "queueing (requests waiting: 7.2), since 10:59:00"
    growing = replace(well, diagnosis=replace(named, bad="TTFT growing since 10:20, ×1.62"))
    assert (growing.concern.words(NOW), growing.concern.detail) == (growing.trouble, well.cause)


def test_a_certificate_that_expires_soon_is_a_warning_beside_what_is_worse() -> None:
    """On the page and on the card; the first fact only where nothing is worse."""
    warning = "its certificate expires in 9.0 days: 2025-11-30 11:00 UTC"
    well, bad = (replace(view, warnings=[warning]) for view in (target(), SCENES["slow"]()[0]))
    assert (well.concern.kind, well.concern.text) == ("few", warning)
    for views, times in (([well], 1), ([bad], 1), ([replace(well, name="b"), bad], 3)):
        assert Read(html(views)).text.count(warning) == times, "the list at the top names the first fact of each"


@pytest.mark.parametrize(
    ("days", "problem", "words"),
    [
        (14.1, "", []),
        (13.9, "", ["its certificate expires in 13.9 days: 2025-12-05 08:36 UTC"]),
        (-0.1, "", ["its certificate expired: 2025-11-21 08:36 UTC"]),
        (90, "HTTP 404", ["the engine's metrics page cannot be read: HTTP 404"]),
        (None, "", []),
    ],
)
def test_what_will_be_trouble_is_a_warning(days: float | None, problem: str, words: list[str]) -> None:
    """The certificate of the latest probe that has one, from two weeks before its end on; an engine's page that is not read."""
    ends = None if days is None else NOW + days * 86_400
    probes = [replace(probe(at, Random(1)), cert_expiry_unix_s=None if at == 5 else ends) for at in (5, 10)]
    assert list(early_warnings(probes, problem, NOW)) == words


def test_the_state_of_the_engine_is_shown_with_its_last_ten_minutes() -> None:
    """Gauges as they are, counters as rates between readings; a signal that the page lacks is absent, and so is a restart's fall."""
    readings = [
        (10.0 * i, EngineSignals(EngineInfo("vllm"), requests_running=float(i), preemptions_total=count))
        for i, count in enumerate((1.0, 3.0, 0.0))
    ]
    assert engine_trends(readings) == [("requests running", [0.0, 1.0, 2.0], ""), ("preemptions", [12.0, 0.0], "/min")]
    assert engine_trends([]) == engine_trends(readings[:0]) == []


def test_what_happens_is_said_with_how_much_and_how_sure() -> None:
    """In the headline and above the evidence: a name with its first figure, a probable name, two names, or why it is not known."""
    (view,) = SCENES["slow"]()
    diagnosis = view.diagnosis
    assert diagnosis is not None
    assert view.concern.detail == "queueing (requests waiting: 7.2); 35 of 60 bad in the last 5m"
    probable = replace(diagnosis, regimes=("unknown",), probable=("queueing",))
    why = "unknown with these measurements"
    for shown, title, detail in (
        (probable, "probably queueing, confirming", "probably queueing, confirming; "),
        (
            replace(diagnosis, regimes=("slow_decode", "network"), why=why),
            "slow decode and network",
            "slow decode and network (requests waiting: 7.2); ",
        ),
        (replace(diagnosis, regimes=("unknown",), evidence=()), "cause unknown", "cause unknown; "),
    ):
        one = replace(view, diagnosis=shown)
        text = Read(html([one])).text
        assert f"{title}: {shown.means}" in text
        assert one.concern.detail.startswith(detail)
        assert one.concern.text == "TTFT 1.1 s, 500 ms allowed", "what is bad comes first"
        assert (f"Why: {why}" in text) == bool(shown.why)
        assert ("Would tell more" in text) == bool(shown.missing)


def test_the_percentiles_tell_who_took_the_times() -> None:
    """Below the percentiles of a target; nothing is said before the first read, and few reads are called too few."""
    page = page_of([target()])
    by_process = "no valid stamp of the kernel"
    text = html_of(page).replace("\xa0", " ")
    words = "99% of the last 1,200 reads of this process came within 0.41 ms of them; no latency contains this delay."
    assert f"The kernel takes the timestamps. {words}</p>" in text
    none_yet = html_of(replace(page, receive_delay=None, reads=(0, 0)))
    assert "kernel takes" not in none_yet
    assert by_process not in none_yet
    few = html_of(replace(page, receive_delay=Quantile(0.99, 0.00041, None, None, 12))).replace("\xa0", " ")
    assert "All of the last 12 reads of this process came within 0.41 ms" in few
    without = html_of(replace(page, receive_delay=None, reads=(0, 1_500)))
    assert f"Of 1,500 requests and reads since the start, 1,500 have {by_process}" in without
    assert "kernel takes" not in without


def test_a_probe_shows_its_way_and_why_it_has_no_ttft() -> None:
    """How long its request took to the other host, what was sent again, and the bounds of a TTFT that is not known exactly."""
    one = probe(1, Random(1))
    ms = 1_000_000
    merged = Timeline(
        0,
        sent_ns=0,
        acknowledged_ns=12 * ms,
        round_trip_s=0.005,
        retransmitted=2,
        first_ns=90 * ms,
        content_ns=(90 * ms,),
        earliest_ns={90 * ms: 60 * ms},
    )
    text = Read(rows([replace(one, timeline=merged)])).text.replace("\xa0", " ")
    assert "12 ms until its host, or a proxy, had the request (round trip 5 ms, 2 segments sent again)" in text
    assert "the first content came 60 ms to 90 ms after the request: it was read together with later chunks" in text
    text = Read(rows([replace(one, timeline=replace(merged, acknowledged_ns=None, earliest_ns={}))])).text
    assert "after it left" not in text
    assert "read together" not in text


def test_a_probe_shows_where_its_time_went_and_the_servers_id() -> None:
    """As far as the server tells; without its words there is no such line."""
    one = probe(1, Random(1))
    parts = TimeParts(network_s=0.002, queue_s=0.24)
    ended = Timeline(0, sent_ns=0, end_ns=250_000_000, parts=parts)
    text = Read(rows([replace(one, timeline=ended, server_request_id="req_6f1c<b>")])).text.replace("\xa0", " ")
    assert "where its time went" in text
    assert "network 2 ms, queue 240 ms, unexplained 8 ms" in text
    assert "req_6f1c<b>" in text
    text = Read(rows([one])).text
    assert "where its time went" not in text
    assert "the server's request id" not in text


def test_what_rests_on_too_few_samples_says_so() -> None:
    """In words, on the card and on the target's page; 1,400 samples are enough for a p99, 40 are not."""
    few = "<small>too few</small>"
    assert few in html([target(samples=40)])
    assert few in html([target(samples=40), target("b")])
    assert few not in html([target(samples=1_400)]) + html([target(), target("b")])


def test_actions_are_there_only_where_they_are_allowed() -> None:
    """With the flag: probe, sweep, pause and reload, and a running sweep can be stopped. Without it: none, and how to enable them."""
    paths = Read(html(SCENES["healthy"]())).all("data-path")
    assert paths == ["-/reload", *(f"api/v1/{kind}?target=llama-70b" for kind in ("probes", "sweeps", "pauses"))]
    off = html(SCENES["healthy"](), admin=False)
    assert Read(off).all("data-path") == []
    assert "--web.enable-admin-api" in off
    full = [tag for tag in Read(html(SCENES["full"]())).tags if tag[0] == "button"]
    assert ("DELETE", "api/v1/sweeps?target=llama-70b") in [(a.get("data-method"), a.get("data-path")) for _, a in full]


def test_the_worst_targets_come_first() -> None:
    """Three of 100 targets need attention: the head names them, and their cards come first."""
    read = html(hundred())
    head, cards = read.split('<ul class="cards">')
    assert "3 of 100 targets need attention" in head
    assert re.findall(r'href="\?target=([^"]+)"', head) == [f"team-{i % 7}%2Fmodel-{i:02d}" for i in (3, 17, 42)]
    named = re.findall(r'<h3 id="[^"]+"><a href="\?target=([^"]+)"', cards)
    assert named[:3] == [f"team-{i % 7}%2Fmodel-{i:02d}" for i in (3, 17, 42)]
    assert len(named) == 100


def test_a_page_of_a_hundred_targets_is_small() -> None:
    """Below 300 kB uncompressed; a target's page below 200 kB; with names of any length below 400 kB."""
    assert len(html(hostile(LONG))) < 400_000
    assert len(html(hundred())) < 300_000
    long = replace(target(), probes=[probe(i, Random(i), chunks=4_000) for i in range(RECENT)])
    assert len(html([long])) < 200_000


def test_more_targets_than_a_page_holds_are_paged() -> None:
    """The links keep the filter."""
    view = replace(page_of(hundred(), query="model"), page=2, pages=3, matching=2 * AT_ONCE + 1)
    text = layout.page(view, "stamp")
    assert 'href="?q=model&amp;page=1" rel="prev"' in text
    assert 'href="?q=model&amp;page=3" rel="next"' in text
    assert "page 2 of 3" in text


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_can_be_drawn(outcome: Outcome) -> None:
    """The label has its name; a probe that did not succeed has a cross, which is grey if the target is not to blame."""
    one = probe(1, Random(1), outcome=outcome, detail="why")
    drawing = filters.timeline_drawing(one, 10**9)
    assert drawing.label.startswith(f"{outcome.value}: ")
    ends = [kind for kind, _ in drawing.paths if kind.startswith("end")]
    assert ends == ([] if outcome is Outcome.OK else ["end unknown"] if outcome in NEUTRAL else ["end bad"])


def test_a_timeline_is_drawn_to_scale() -> None:
    """Half of the time is half of the width right of the due time; a later stamp stands at the edge."""
    t = Timeline(0, sent_ns=0, first_ns=500, content_ns=(500, 1_000, 99_000), end_ns=99_000)
    paths = dict(filters.timeline_drawing(replace(probe(1, Random(1)), timeline=t), 1_000).paths)
    half = filters.LEFT + (filters.WIDTH - filters.LEFT) // 2
    assert paths["first"] == f"M{half} 1v14"
    assert paths["token"] == f"M{half} 4v8m{filters.WIDTH - 2 - half}-8v8"


def test_a_cut_timeline_shows_its_duration() -> None:
    """A probe longer than the scale has a break and its duration, one that fits has neither. The legend names the scale."""
    t = Timeline(0, sent_ns=0, first_ns=500, content_ns=(500, 99_000_000), end_ns=99_000_000)
    short, long = (
        replace(probe(at, Random(1)), timeline=replace(t, end_ns=end)) for at, end in ((1, 600), (2, 99_000_000))
    )
    assert "break" in dict(filters.timeline_drawing(long, 1_000).paths)
    assert "break" not in dict(filters.timeline_drawing(short, 1_000).paths)
    fits = replace(short, timeline=replace(t, content_ns=(500,), end_ns=40_000_000))
    listed = rows([fits] * 9 + [long])
    assert Read(listed).text.count("→ 99 ms") == 1
    assert "40 ms from the due time to the right edge" in Read(listed).text


def test_the_probers_own_lateness_is_drawn_and_named() -> None:
    """From when a probe was due and its connection ready to when it was sent; nothing if it was sent in time."""
    late = Timeline(0, sent_ns=250, first_ns=500, content_ns=(500,), end_ns=900)
    quarter = filters.LEFT + (filters.WIDTH - filters.LEFT) // 4
    one = replace(probe(1, Random(1)), timeline=late)
    assert dict(filters.timeline_drawing(one, 1_000).paths)["unsent"] == f"M{filters.LEFT} 8H{quarter}"
    connected = replace(late, connection=Connection(0, 250))
    assert "unsent" not in dict(filters.timeline_drawing(replace(one, timeline=connected), 1_000).paths)
    assert "prober's own lateness" in Read(rows([one])).text


def test_headroom_can_be_followed() -> None:
    """By what arrives, how much more of it there may be, and what fits beside it; bars have a number."""
    one = target()
    assert one.swept is not None
    headroom = room(0.2, 0.5, 0.6, 1.2, 3.0, 3.6)
    swept = replace(one.swept, demand_per_s=4.03, shape=(1_234.0, 75.0))
    text = Read(html([replace(one, headroom=headroom, swept=swept)])).text
    arriving = (
        "4.03 requests/s arrive at the engine now, of 1,234 computed prompt tokens and 75 output tokens on average."
    )
    assert arriving in text
    assert "(125 computed tokens each on average)" in text
    assert "50% free [20%, 60%]" in text
    assert "can grow to 2 times their rate, by 3 requests/s [1.2, 3.6]" in text
    assert "50% used" in text


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        (
            "requests like the users' own in the last 7 days",
            "It added requests like the users' own in the last 7 days.",
        ),
        (
            "probe",
            "It added the workload probe, and not requests like the users' own: the less they are alike, the wider is",
        ),
    ],
)
def test_the_capacity_names_the_requests_of_the_sweep(workload: str, sentence: str) -> None:
    """Other requests than the users' say less about the users'."""
    one = target()
    assert one.swept is not None
    assert sentence in Read(html([replace(one, swept=replace(one.swept, workload=workload))])).text
    assert "It added" not in Read(html([one])).text, "of a result that does not say"


def test_a_sweep_without_enough_data_says_how_many_events_it_had() -> None:
    """The text is in place of the capacity and in the table."""
    lacking = Capacity("ttft", "not_enough_data", samples=127, evidence=UndecidedEvents(1.0, 127, 0, 346))
    one = target()
    last = replace(one.sweeps[0], capacities=(lacking,))
    text = Read(html([replace(one, capacity=None, swept=None, sweeps=[last])])).text
    message = "ttft: not enough data: 127 events at 1/s, about 346 needed"
    assert f"Not known: no sweep has found a capacity. The last sweep: {message}" in text
    assert text.count(message) == 2


def test_a_shard_without_targets_says_that_others_have_them() -> None:
    """It does not say that no target is configured."""
    view = replace(page_of(hundred()), targets=(), concerns=(), matching=0, probes=(), events=())
    for changes, text in (
        ({"shard": "1/2", "configured": 3}, "? None of the 3 configured targets belongs to shard 1/2"),
        ({"shard": "1/2", "configured": 1}, "? The one configured target does not belong to shard 1/2"),
        ({"shard": "1/2"}, "? No target is configured"),
        ({}, "? No target is configured"),
    ):
        assert text in Read(layout.page(replace(view, **changes), "stamp")).text


def test_a_runbook_leads_back() -> None:
    """The link back leads one folder up, to the fleet page."""
    assert '<a href="../">' in layout.runbook_page("LLMTargetFailing", "# LLMTargetFailing", "stamp")


def test_a_probe_that_never_left_can_be_drawn() -> None:
    """A probe without connection and stamps has a row."""
    bare = replace(probe(1, Random(1)), timeline=Timeline(5), outcome=Outcome.OVER_BUDGET, request_id="")
    assert "over_budget" in rows([bare])


def test_a_target_whose_latencies_are_not_judged_says_so() -> None:
    """Where nothing worse is known of it, with the reason and the runbook; no other target, and not the headline, speaks of it."""
    (well,) = (replace(view, slos=[], trusted=False) for view in SCENES["healthy"]())
    assert (well.concern.kind, well.concern.text) == ("unknown", "no verdict: the prober lacks CPU time")
    text = Read(html([well])).text
    assert "? llama-70b: no verdict: the prober lacks CPU time" in text
    assert "the prober sent or timed fewer than half of the probes of the last 10 minutes" in text
    assert "no problem found" not in text.lower()
    for scene in ("down", "slow", "drifting"):
        (view,) = SCENES[scene]()
        assert replace(view, trusted=False).concern == view.concern


@pytest.mark.parametrize(
    ("view", "has_earlier", "done", "text"),
    [
        (SCENES["down"]()[0], True, 3, "No latency: no probe is answered now."),
        (target(), True, 3, "No latency was measured in the last 10 minutes."),
        (
            target(),
            False,
            1,
            "Warming up, again after a pause or a restart: 1 of 3 probes, whose latencies do not count.",
        ),
        (target(), False, 3, "Warmed up: latencies count from now on."),
    ],
)
def test_a_target_without_latencies_says_why(view: TargetAnswer, has_earlier: bool, done: int, text: str) -> None:
    """No probe is answered, none was for a while, or the warm-up is not over."""
    assert why_no_latency(view, has_earlier=has_earlier, done=done, warm_up=3) == text


def test_a_failing_target_shows_no_latency_as_of_now() -> None:
    """Its card has none, its page only those of all samples that are kept; a neighbour's card has a table."""
    (down,) = (replace(view, earlier=target().earlier) for view in SCENES["down"]())
    assert html([down, target("up")]).count("No latency: no probe is answered now.") == 1
    page = Read(html([down])).text
    assert "No latency: no probe is answered now." in page
    assert "since " in page


def test_another_model_than_the_requested_one_is_shown() -> None:
    """On the card, on the target's page, and at the probe whose answer names it."""
    one = target()
    assert "name" not in "".join(re.findall(r'<p class="model">(.*?)</p>', html([one])))
    drawn = replace(one.probes[0], timeline=replace(one.probes[0].timeline, answered_model="small-<b>"))
    view = replace(one, other_model="small|tiny", probes=[drawn])
    assert "answers name small|tiny" in Read(html([target(), view])).text
    page = Read(html([view])).text
    assert "answers name small|tiny" in page
    assert "; the answer names small-<b>" in page


@pytest.mark.parametrize("text", ["prober.yaml: targets[0].ulr: unknown key", HOSTILE, LONG])
def test_mistakes_of_the_configuration_stand_at_the_top(text: str) -> None:
    """The first mistakes are listed as text, and how many more are in the log."""
    page = layout.page(unconfigured(text), "stamp")
    read = Read(page)
    assert "configuration not applied, nothing is probed until it is fixed" in read.text
    assert "and 10 more in the log" in read.text
    assert read.text.count(printable(cut(text, 600))) == 20
    assert "<img" not in page
    assert "not applied" not in html([target()])


def test_an_event_of_several_targets_leads_to_none() -> None:
    """Its text names them; an event of one target leads to its page."""
    view = page_of(hundred()[:2])
    text = "12 targets are ready: a, b, c and 9 more"
    several = html_of(replace(view, events=[TargetEvent(NOW, "", "state", text)]))
    assert text in several
    assert 'href="?target="' not in several
