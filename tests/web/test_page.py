"""The prober's own page, as text: what it says in each scene, and what it never does."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from random import Random

import pytest

from prober.features.experiments.report.plots import curves
from prober.measure.outcome import NEUTRAL, Outcome
from prober.measure.timeline import Connection, Timeline
from prober.results.capacity import Capacity, Evidence
from prober.web.page import layout, probes
from prober.web.page.marks import clean
from prober.web.page.view import AT_ONCE, RECENT, Room, TargetView, concern
from tests.web.scenes import HOSTILE, LONG, NOW, SCENES, hostile, hundred, page_of, probe, target, unconfigured

VOID = {"meta", "link", "input", "br", "img"}


def html(targets: Sequence[TargetView], *, admin: bool = True, asked: str = "", chosen: str = "") -> str:
    view = page_of(targets, admin=admin, asked=asked, chosen=chosen)
    drawn = curves([(each.id, each) for each in view.targets[0].sweeps]) if view.whole else []
    return "".join(layout.page(view, "stamp", drawn))


class Read(HTMLParser):
    """A page as a browser would read it; a tag that is closed out of turn is an error."""

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


PAGES: dict[str, Callable[[], list[TargetView]]] = {**SCENES, "hundred": hundred, "hostile": hostile}


@pytest.mark.parametrize("scene", PAGES)
def test_every_scene_is_a_well_formed_page(scene: str) -> None:
    """Tags are closed in turn, ids are unique and without blanks, headings skip no level, every picture has a text."""
    read = Read(html(PAGES[scene]()))
    ids = read.all("id")
    assert len(ids) == len(set(ids))
    assert not any(re.search(r"\s", each) for each in ids)
    assert {part for each in read.all("aria-labelledby") for part in each.split()} <= set(ids)
    assert read.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(read.headings, read.headings[1:], strict=False))
    assert all(attributes.get("aria-label") for tag, attributes in read.tags if tag == "svg")
    assert "NaN" not in read.text
    assert "None" not in read.text.replace("None yet", "").replace("None is", "")


@pytest.mark.parametrize("scene", PAGES)
def test_nothing_on_it_leads_away_from_the_prober(scene: str) -> None:
    """Every address is relative, so it holds under any prefix; there is no script but the one file, and no handler."""
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
    "half characters": "\ud800\udfff" * 40,
    "controls": "\x00\x07\x1b[31m",
    "comment": "]]>--><!--",
    "any script": "名前 🦙",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_text_from_elsewhere_is_markup(text: str) -> None:
    """Whatever a configuration or an endpoint puts into a name, the page has the same tags, and is bounded."""
    plain, evil = html(hostile("x")), html(hostile(text))
    assert [tag for tag, _ in Read(evil).tags] == [tag for tag, _ in Read(plain).tags]
    evil.encode()
    assert len(evil) < 400_000
    whole = html(hostile(text)[:1])
    assert [tag for tag, _ in Read(whole).tags] == [tag for tag, _ in Read(html(hostile("x")[:1])).tags]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", evil + whole)


def test_a_text_is_cut_and_its_faults_are_shown() -> None:
    """What steers or turns text is replaced, not left out; ordinary text of any script stays."""
    assert clean("a\u202eb\x1bc\ud800d\ne") == "a\ufffdb\ufffdc\ufffdd\ne"
    assert clean("x" * 10, 4) == "xxxx…"
    assert clean("模型 модель نموذج") == "模型 модель نموذج"


@pytest.mark.parametrize(
    ("scene", "headline"),
    [
        ("healthy", "✓ llama-70b is well"),
        ("slow", "✗ llama-70b: SLO missed: ttft"),
        ("drifting", "▲ llama-70b: slower than its baseline: TTFT"),
        ("full", "✓ llama-70b is well"),
        ("down", "✗ llama-70b: failing"),
        ("nothing", "? (not found out yet): pending"),
        ("paused", "? llama-70b: paused"),
    ],
)
def test_the_headline_says_what_is_the_matter(scene: str, headline: str) -> None:
    """By a sign and in words, before anything else."""
    found = re.search(r"<h1.*?</h1>", html(SCENES[scene]()))
    assert found is not None
    assert Read(found[0]).text == headline


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        (
            "healthy",
            [
                "✓ met",
                "TTFT",
                "p50",
                "p90",
                "p99",
                "1,400",
                "as usual",
                "1.1 M of 4 M tokens",
                "42% free",
                "holds up to 12/s",
            ],
        ),
        (
            "slow",
            [
                "✗ missed",
                "61 of 2,400",
                "queueing",
                "requests waiting",
                "GPU utilization",
                "--max-num-seqs",
                "none, 8% above",
            ],
        ),
        ("drifting", ["slower since", "cause: regression", "×1.44", "[1.3, 1.61]", "1.00 of 1", "▲ 3.9 M of 4 M"]),
        ("full", ["Sweep under way", "ramp, stage 5", "12.5 requests/s", "311 requests", "41 s", "Latency over load"]),
        (
            "down",
            [
                "✗ llama-70b: failing",
                "state: failing",
                "connect_refused",
                "127.0.0.1:8000 refused the connection",
                "✗ missed",
            ],
        ),
        ("nothing", ["? no data", "no event yet", "neither good nor bad", "? learning", "No probe yet"]),
        ("paused", ["‖ paused", "Nothing is sent to it since", "Resume"]),
    ],
)
def test_a_target_is_told_in_full(scene: str, said: list[str]) -> None:
    """Each scene's figures, each with its words."""
    text = Read(html(SCENES[scene]())).text
    assert [each for each in said if each not in text] == []


def test_what_rests_on_too_few_samples_says_so() -> None:
    """By words, on the card and in full; 1,400 samples are enough for a p99, 40 are not."""
    few = "<small>too few</small>"
    assert few in html([target(samples=40)])
    assert few in html([target(samples=40), target("b")])
    assert few not in html([target(samples=1_400)]) + html([target(), target("b")])


def test_actions_are_there_only_where_they_are_allowed() -> None:
    """Probe, sweep, pause and reload with the flag; without it none, and how to allow them. A sweep that runs can be stopped."""
    paths = Read(html(SCENES["healthy"]())).all("data-path")
    assert paths == [
        "-/reload",
        *(f"api/v1/{each}?target=llama-70b" for each in ("probes", "sweeps", "pauses")),
    ]
    off = html(SCENES["healthy"](), admin=False)
    assert Read(off).all("data-path") == []
    assert "--web.enable-admin-api" in off
    full = [each for each in Read(html(SCENES["full"]())).tags if each[0] == "button"]
    assert ("DELETE", "api/v1/sweeps?target=llama-70b") in [(a.get("data-method"), a.get("data-path")) for _, a in full]


def test_those_in_trouble_come_first() -> None:
    """Of 100 targets three need attention: they are named in the head, and their cards are the first."""
    read = html(hundred())
    head, cards = read.split('<ul class="cards">')
    assert "3 of 100 targets need attention" in head
    assert re.findall(r'href="\?target=([^"]+)"', head) == [f"team-{i % 7}%2Fmodel-{i:02d}" for i in (3, 17, 42)]
    named = re.findall(r'<h3 id="[^"]+"><a href="\?target=([^"]+)"', cards)
    assert named[:3] == [f"team-{i % 7}%2Fmodel-{i:02d}" for i in (3, 17, 42)]
    assert len(named) == 100


def test_a_page_of_a_hundred_targets_is_small() -> None:
    """Below 300 kB before it is compressed, in pieces of which none is large; one target in full below 200 kB."""
    pieces = list(layout.page(page_of(hundred()), "stamp"))
    assert sum(map(len, pieces)) < 300_000
    assert max(map(len, pieces)) < 20_000
    long = replace(target(), probes=[probe(i, Random(i), chunks=4_000) for i in range(RECENT)])
    assert len(html([long])) < 200_000


def test_more_targets_than_a_page_holds_are_paged() -> None:
    """With what was filtered by kept in the links."""
    view = replace(page_of(hundred(), asked="model"), page=2, pages=3, matching=2 * AT_ONCE + 1)
    text = "".join(layout.page(view, "stamp"))
    assert 'href="?q=model&amp;page=1" rel="prev"' in text
    assert 'href="?q=model&amp;page=3" rel="next"' in text
    assert "page 2 of 3" in text


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_can_be_drawn(outcome: Outcome) -> None:
    """With its name as text; a probe that did not succeed has a cross, in its own colour if it is nobody's fault."""
    one = probe(1, Random(1), outcome=outcome, detail="why")
    drawn = probes.drawn(one, 10**9)
    assert f'aria-label="{outcome.value}: ' in drawn
    assert ('class="end' in drawn) == (outcome is not Outcome.OK)
    assert ('class="end unknown"' in drawn) == (outcome in NEUTRAL)


def test_a_timeline_is_drawn_to_scale() -> None:
    """Half of the time is half of the width behind the due time; what is later than the scale stands on its edge."""
    t = Timeline(0, sent_ns=0, first_ns=500, content_ns=(500, 1_000, 99_000), end_ns=99_000)
    drawn = probes.drawn(replace(probe(1, Random(1)), timeline=t), 1_000)
    half = probes.LEFT + (probes.WIDTH - probes.LEFT) // 2
    assert f'class="first" d="M{half} 1v14"' in drawn
    assert f'class="token" d="M{half} 4v8m{probes.WIDTH - 2 - half}-8v8"' in drawn


def test_what_is_cut_says_so() -> None:
    """Longer than the scale: a break, and where it ends; what fits has neither. The scale itself is told."""
    t = Timeline(0, sent_ns=0, first_ns=500, content_ns=(500, 99_000_000), end_ns=99_000_000)
    short, long = (
        replace(probe(at, Random(1)), timeline=replace(t, end_ns=end)) for at, end in ((1, 600), (2, 99_000_000))
    )
    assert 'class="break"' in probes.drawn(long, 1_000)
    assert 'class="break"' not in probes.drawn(short, 1_000)
    listed = "".join(
        probes.rows(
            [replace(short, timeline=replace(t, content_ns=(500,), end_ns=40_000_000))] * 9 + [long], NOW, named=False
        )
    )
    assert Read(listed).text.count("→ 99 ms") == 1
    assert "to the edge 40 ms" in Read(listed).text


def test_the_probers_own_lateness_is_drawn_and_named() -> None:
    """From when a probe was due, or its connection ready, to when it was sent; nothing where it was sent in time."""
    late = Timeline(0, sent_ns=250, first_ns=500, content_ns=(500,), end_ns=900)
    half = probes.LEFT + (probes.WIDTH - probes.LEFT) // 4
    assert f'class="unsent" d="M{probes.LEFT} 8H{half}"' in probes.drawn(
        replace(probe(1, Random(1)), timeline=late), 1_000
    )
    connected = replace(late, connection=Connection(0, 250))
    assert "unsent" not in probes.drawn(replace(probe(1, Random(1)), timeline=connected), 1_000)
    assert "prober's own lateness" in Read(probes.legend(1)).text


def test_headroom_can_be_followed() -> None:
    """Demand in requests of the sweep's shape, beside the capacity in the same; bars say of what they are full."""
    one = target()
    assert one.capacity is not None
    rooms = [Room("requests", 0.84, 0.87, 0.89)]
    found = replace(one.capacity, rooms=rooms, demand_per_s=4.03, shape_ratio=4.155)
    text = Read(html([replace(one, capacity=found)])).text
    assert (
        "4.03 requests/s now, as much as 0.97/s of the sweep's shape: they are 4.16 times smaller, in tokens." in text
    )
    assert "of 125 tokens each" in text
    assert "87% free" in text
    assert "13% used" in text
    larger = Read(html([replace(one, capacity=replace(found, shape_ratio=0.5))])).text
    assert "as much as 8.06/s of the sweep's shape: they are 2 times larger, in tokens." in larger


def test_an_unknown_headroom_is_said_to_be_unknown() -> None:
    """Not 0% and not 100% free: the capacity stands alone, and no bar is drawn."""
    seen = target()
    assert seen.capacity is not None
    unknown = replace(seen.capacity, demand_per_s=None, rooms=[Room("requests", None, None, None)])
    text = Read(html([replace(seen, capacity=unknown)], chosen=seen.name)).text
    assert "Demand and headroom are not known now." in text
    assert "% free" not in text
    assert "Headroom in" not in text
    assert "Demand and headroom are not known now." not in Read(html([seen], chosen=seen.name)).text


def test_a_sweep_without_enough_data_says_how_many_events_it_had() -> None:
    """Where the capacity would stand, and in the table."""
    lacking = Capacity("ttft", "not_enough_data", samples=127, evidence=Evidence(1.0, 127, 0, 346))
    one = target()
    last = replace(one.sweeps[0], capacities=(lacking,))
    text = Read(html([replace(one, capacity=None, sweeps=[last])])).text
    said = "ttft: not enough data: 127 events at 1/s and above, about 346 needed"
    assert f"Not known: no sweep has found one. The last one: {said}" in text
    assert text.count(said) == 2


def test_a_shard_without_targets_says_whose_they_are() -> None:
    """That none is configured would be wrong."""
    view = replace(page_of(hundred()), targets=(), concerns=(), total=0, matching=0, probes=(), events=())
    for changes, said in (
        ({"shard": "1/2", "configured": 3}, "? Shard 1/2 has none of the 3 configured targets"),
        ({"shard": "1/2", "configured": 1}, "? Shard 1/2 has not the one configured target"),
        ({"shard": "1/2"}, "? No target is configured"),
        ({}, "? No target is configured"),
    ):
        assert said in Read("".join(layout.page(replace(view, **changes), "stamp"))).text


def test_a_runbook_leads_back() -> None:
    """To the page that it is below."""
    assert '<a href="../">' in layout.runbook_page("LLMTargetFailing", "# LLMTargetFailing", "stamp")


def test_a_probe_that_never_left_can_be_drawn() -> None:
    """No connection, no stamp but the due time."""
    bare = replace(probe(1, Random(1)), timeline=Timeline(5), outcome=Outcome.OVER_BUDGET, request_id="")
    assert "over_budget" in "".join(probes.rows([bare], NOW, named=True))


@pytest.mark.parametrize(
    ("scene", "rank"), [("down", 0), ("slow", 1), ("drifting", 2), ("nothing", 4), ("paused", 5), ("healthy", 9)]
)
def test_what_is_worst_is_told(scene: str, rank: int) -> None:
    """A target that fails before one that misses, before one that drifts; what is paused or new is no alarm."""
    assert concern(SCENES[scene]()[0]).rank == rank


def test_the_prober_says_when_it_does_not_trust_itself() -> None:
    """On every page, above all targets."""
    assert "does not trust itself" in "".join(layout.page(replace(page_of(hundred()), trusted=False), "stamp"))
    assert "does not trust itself" not in html(hundred())


def test_a_target_that_refuses_connections_says_since_when_and_until_when() -> None:
    """On its page and on its card: nobody has to know the bound by heart."""
    (view,) = SCENES["starting"]()
    said = "refuses connections since 10:54:00; counted as failures after 20m, from 11:14:00 UTC (starting_timeout)"
    assert concern(view).kind == "unknown"
    assert said in Read(html([view])).text
    assert said in Read(html([target(), view])).text


@pytest.mark.parametrize("text", ["prober.yaml: targets[0].ulr: unknown key", HOSTILE, LONG])
def test_mistakes_of_the_configuration_stand_at_the_top(text: str) -> None:
    """As text, the first of them, and how many more the log has."""
    page = "".join(layout.page(unconfigured(text), "stamp"))
    read = Read(page)
    assert "configuration not taken over, nothing is probed until it is mended" in read.text
    assert "and 10 more, in the log" in read.text
    assert read.text.count(clean(text, 600)) == 20
    assert "<img" not in page
    assert "not taken over" not in html([target()])
