"""The prober's own page in a real browser, in every scene and with the real daemon."""

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from aiohttp import web
from playwright.sync_api import Browser, Dialog, Page, ViewportSize, expect, sync_playwright

from prober.exposition.families import Registry
from prober.features.capacity.actions import Refused
from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.plots import curves
from prober.measure.outcome import Outcome
from prober.web.answers import complete
from prober.web.page import layout
from prober.web.page.view import PageView, ProbeFilter
from prober.web.site import Site
from prober.web.targets import TargetAnswer
from tests.processes import HANG_S, Mock, Program, free_port, get, until
from tests.serving import serving
from tests.web.scenes import HOSTILE, LONG, NOW, SCENES, fleet, hostile, hundred, page_of, probe, replace, target

Scenes = dict[str, Callable[[], Sequence[TargetAnswer]]]
ALL: Scenes = {**SCENES, "fleet": fleet, "hostile": hostile, "hostile in full": lambda: hostile()[:1]}
PHONE, DESK = ViewportSize(width=360, height=740), ViewportSize(width=1280, height=900)
AXE = files("axe_playwright_python").joinpath("axe.min.js")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


class Stage:
    """The real site in its own thread, with views set by the test. broken: it answers 500; slow_s: delay of answers."""

    def __init__(self, targets: Sequence[TargetAnswer]) -> None:
        self.targets, self.broken, self.slow_s = list(targets), False, 0.0
        self.at, self.refusal, self.begun = NOW, "", list[str]()
        clock = SimpleNamespace(unix_s=lambda: NOW)
        fleet = SimpleNamespace(find=self._find, runners={}, context=SimpleNamespace(clock=clock))
        sweeps = SimpleNamespace(start=self._start)
        self.site = Site(cast(Any, fleet), cast(Any, sweeps), Registry(), self._reload, "", "/slo")
        self.site.api.admin = True
        self.site.views = cast(Any, self)
        self.mistakes: str | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._thread.start()
        assert self._started.wait(HANG_S)

    @property
    def url(self) -> str:
        return f"{self.origin}/slo/"

    async def page(
        self, query: str, number: int, chosen: str, probe_filter: ProbeFilter, *, admin: bool
    ) -> PageView | None:
        if chosen and not any(target.name == chosen for target in self.targets):
            return None
        view = page_of(self.targets, admin=admin, query=query, chosen=chosen)
        return replace(
            view, at_unix_s=self.at, probe_filter=probe_filter, probes=list(filter(probe_filter.takes, view.probes))
        )

    def forget(self) -> None:
        """Nothing is remembered."""

    def charts(self, view: PageView) -> list[Figure]:
        return (
            curves([(sweep.id, sweep) for sweep in view.targets[0].sweeps])
            if view.is_target_page and view.targets
            else []
        )

    def known(self) -> list[str]:
        return [target.name for target in self.targets]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(HANG_S)

    def _find(self, name: str) -> Any:
        place = next((i for i, target in enumerate(self.targets) if target.name == name), None)
        if place is None:
            return None
        held = SimpleNamespace(paused_unix_s=self.targets[place].paused)

        def pause(unix_s: float | None) -> None:
            held.paused_unix_s = None if unix_s is None else NOW
            self.targets[place] = replace(self.targets[place], paused=held.paused_unix_s)

        return SimpleNamespace(name=name, target=held, pause=pause)

    def _start(self, name: str) -> str:
        if self.refusal:
            raise Refused("blackout", self.refusal)
        self.begun.append(name)
        return "c0ffee"

    async def _reload(self) -> str | None:
        return self.mistakes

    @web.middleware
    async def _weather(self, request: web.Request, handler: Any) -> Any:
        if self.slow_s and "text/html" in request.headers.get("Accept", ""):
            await asyncio.sleep(self.slow_s)
        if self.broken:
            return web.Response(status=500, text="broken")
        return await complete(await handler(request))

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self.site.application(self._weather)) as self.origin:
            self._started.set()
            await self._ended.wait()


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    expect.set_options(timeout=1e3 * HANG_S)
    with sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser_ = started.chromium.launch(executable_path=chromium, args=options)
        yield browser_
        browser_.close()


@contextlib.contextmanager
def staged(targets: Sequence[TargetAnswer]) -> Iterator[Stage]:
    stage = Stage(targets)
    try:
        yield stage
    finally:
        stage.close()


@contextlib.contextmanager
def opened(browser: Browser, stage: Stage, path: str = "", **options: Any) -> Iterator[Page]:
    """The page; on exit: the console is empty, and all requests went to the prober."""
    context = browser.new_context(**{"viewport": DESK, **options})
    page = context.new_page()
    messages, requested_urls = list[str](), list[str]()
    page.on("console", lambda message: messages.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requested_urls.append(request.url))
    page.goto(stage.url + path)
    try:
        yield page
    finally:
        context.close()
    assert [requested_url for requested_url in requested_urls if not requested_url.startswith(stage.url)] == []
    assert [
        message for message in messages if not message.startswith("Failed to load resource: the server responded")
    ] == []


def refreshed(page: Page) -> None:
    """Refresh the page as it does itself every few seconds; returns when the answer is shown, which has no mark."""
    page.evaluate("document.getElementById('as-of').setAttribute('data-marked', '')")
    page.evaluate("window.dispatchEvent(new Event('online'))")
    expect(page.locator("#as-of[data-marked]")).to_have_count(0)


def serious(page: Page, where: str = "document") -> list[str]:
    """Serious and critical violations that axe-core finds."""
    page.evaluate(AXE.read_text())
    report = page.evaluate(f"axe.run({where}, {{resultTypes: ['violations']}})")
    return [
        f"{violation['id']}: {node['html'][:120]} {node['failureSummary']}"
        for violation in report["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def open_all(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


@pytest.mark.parametrize("scene", ALL)
def test_everybody_can_read_it(browser: Browser, scene: str) -> None:
    """axe-core finds nothing serious in either theme, all details open."""
    few = [replace(target, probes=target.probes[:14]) for target in ALL[scene]()]
    with staged(few) as stage, opened(browser, stage) as page:
        open_all(page)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert serious(page) == [], scheme


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_what_it_tells_in_between(browser: Browser, scheme: Any) -> None:
    """Messages about a result, an error and a stale page."""
    with staged(SCENES["nothing"]()) as stage, opened(browser, stage, color_scheme=scheme) as page:
        page.get_by_role("button", name="Reload configuration").click()
        expect(page.locator("#notice")).to_contain_text("done")
        assert serious(page, "'#notice'") == []
        stage.mistakes = "no"
        page.get_by_role("button", name="Reload configuration").click()
        expect(page.locator("#notice.wrong")).to_be_visible()
        assert serious(page, "'#notice'") == []
        stage.broken = True
        page.evaluate("window.dispatchEvent(new Event('online'))")
        expect(page.locator("#stale")).to_be_visible()
        assert serious(page, "'#stale'") == []


@pytest.mark.parametrize("scene", ALL)
def test_it_fits_a_phone(browser: Browser, scene: str) -> None:
    """360 pixels wide, whatever the names: the page does not scroll sideways, with all details open."""
    with staged(ALL[scene]()) as stage, opened(browser, stage, viewport=PHONE) as page:
        open_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert page.locator("h1").bounding_box()["y"] < 300  # type: ignore[index]


@pytest.mark.parametrize("scene", ["slow", "drifting", "nothing", "full", "fleet"])
def test_every_column_is_shown(browser: Browser, scene: str) -> None:
    """No part of a table is hidden behind a scrollbar, on a phone or in a window of usual width."""
    with staged(ALL[scene]()) as stage, opened(browser, stage) as page:
        for width in (PHONE["width"], 760, 1024, 1200, DESK["width"], 1440):
            page.set_viewport_size(ViewportSize(width=width, height=900))
            wide = "[...document.querySelectorAll('.wide, .card article')].filter(each => each.scrollWidth > each.clientWidth + 1)"
            texts = page.evaluate(f"{wide}.map(each => each.getAttribute('aria-label') ?? each.textContent)")
            assert texts == [], f"{width} pixels"


TEXTS = {
    "markup": HOSTILE,
    "long": LONG,
    "quotes": "\"'><script>alert(1)</script>",
    "address": "javascript:alert(1)",
    "turned": "\u202eevil",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_name_becomes_code(browser: Browser, text: str) -> None:
    """No dialog, element or title from a foreign text; also after an update, on the target's page, and in a question."""
    with staged(hostile(text)) as stage, opened(browser, stage) as page:
        questions: list[str] = []

        def refuse(dialog: Dialog) -> None:
            questions.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", refuse)
        refreshed(page)
        page.locator(".card h3 a").first.click()
        expect(page.locator("#target")).to_be_visible()
        refreshed(page)
        assert page.locator("img, #main script, iframe").count() == 0
        assert page.title().endswith("– llm-slo-prober")
        assert questions == []
        page.get_by_role("button", name="Pause").click()
        assert len(questions) == 1
        assert questions[0].startswith("Pause ")


def test_an_update_changes_only_what_is_new(browser: Browser) -> None:
    """Open details, selection, focus and scroll position are preserved; nodes stay the same."""
    one = target()
    with staged([one]) as stage, opened(browser, stage) as page:
        third = page.locator(".probes details").nth(2)
        key = third.get_attribute("id")
        third.locator("summary").click()
        page.get_by_role("button", name="Pause").focus()
        page.evaluate("window.scrollTo(0, 400)")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('header.target .model code'))")
        page.evaluate(f"document.getElementById('{key}').kept = true")
        new = replace(one.probes[0], request_id="slo-probe-new", unix_s=NOW + 5)
        stage.targets = [replace(one, probes=[new, *one.probes[:-1]], outcomes={"ok": 1_401})]
        stage.at = NOW + 5
        refreshed(page)
        expect(page.get_by_text("1,401")).to_be_visible()
        assert page.locator(".probes details").nth(3).get_attribute("id") == key
        assert page.evaluate(f"document.getElementById('{key}').open && document.getElementById('{key}').kept")
        assert page.evaluate("document.activeElement.textContent") == "Pause…"
        assert page.evaluate("String(getSelection())") == one.url
        assert page.evaluate("scrollY") == 400
        assert page.locator("#as-of").inner_text() == "11:00:05"


@pytest.mark.parametrize("scene", ["slow", "full", "fleet"])
def test_an_update_without_news_touches_nothing(browser: Browser, scene: str) -> None:
    """Not one node is added, removed or rewritten: no flicker, nothing read out again."""
    with staged(ALL[scene]()) as stage, opened(browser, stage) as page:
        page.evaluate(
            "window.changes = 0; new MutationObserver(all => { changes += all.length }).observe("
            "document.querySelector('#main'), {subtree: true, childList: true, attributes: true, characterData: true})"
        )
        refreshed(page)
        refreshed(page)
        assert page.evaluate("changes") == 0


def test_an_update_shows_what_has_become_of_a_target(browser: Browser) -> None:
    """From no problem to failing: the headline changes; cards are sorted again, worst first."""
    with staged(SCENES["healthy"]()) as stage, opened(browser, stage) as page:
        expect(page.locator("#verdict")).to_have_text("✓ llama-70b: no problem found")
        stage.targets = list(SCENES["down"]())
        refreshed(page)
        expect(page.locator("#verdict")).to_have_text("✗ llama-70b: failing, since 10:53:20")
        stage.targets = [target("a"), replace(SCENES["down"]()[0], name="z")]
        refreshed(page)
        assert page.locator(".card h3").all_inner_texts() == ["z", "a"]
        stage.targets = [replace(SCENES["down"]()[0], name="a"), target("z")]
        refreshed(page)
        assert page.locator(".card h3").all_inner_texts() == ["a", "z"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page refreshes more often."""
    monkeypatch.setattr(layout, "REFRESH_S", 0.3)


def test_it_keeps_itself_up_to_date(browser: Browser, quick: None) -> None:
    """Without any action of the reader."""
    with staged(SCENES["healthy"]()) as stage, opened(browser, stage) as page:
        stage.at = NOW + 61
        expect(page.locator("#as-of")).to_have_text("11:01:01")
        expect(page.locator("html")).to_have_class("script live-on")


def broken(stage: Stage, page: Page, *, is_over: bool = False) -> None:
    stage.broken = not is_over


def slow(stage: Stage, page: Page, *, is_over: bool = False) -> None:
    stage.slow_s = 0.0 if is_over else 30.0


def replaced(stage: Stage, page: Page, *, is_over: bool = False) -> None:
    """A proxy asks for a password with its own page."""
    if is_over:
        page.unroute("**/slo/")
    else:
        page.route("**/slo/", lambda route: route.fulfill(body="<p>Please log in</p>", content_type="text/html"))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (broken, "the prober answers with status 500."),
        (slow, "the prober does not answer"),
        (replaced, "the answer is not from the prober"),
    ],
)
def test_a_stale_page_is_told(browser: Browser, quick: None, spoil: Callable[..., None], reason: str) -> None:
    """It says since when and why, shows what it showed, and recovers by itself with the next answer."""
    with staged(SCENES["healthy"]()) as stage, opened(browser, stage) as page:
        spoil(stage, page)
        expect(page.locator("#stale")).to_contain_text("Stale since 11:00:00 UTC: " + reason)
        expect(page.locator("html")).to_have_class("script stale")
        assert page.locator("#verdict").count() == 1
        spoil(stage, page, is_over=True)
        expect(page.locator("#stale")).to_be_hidden()


def test_a_prober_that_is_gone_is_told(browser: Browser, quick: None) -> None:
    """A refused connection makes the page stale."""
    stage = Stage(SCENES["healthy"]())
    context = browser.new_context(viewport=DESK)
    page = context.new_page()
    page.goto(stage.url)
    stage.close()
    expect(page.locator("#stale")).to_contain_text("the prober cannot be reached")
    context.close()


def test_a_target_is_paused_and_resumed(browser: Browser) -> None:
    """After a confirmation. The page shows it at once, and the same place resumes the target."""
    answers = [False, True]
    with staged(SCENES["healthy"]()) as stage, opened(browser, stage) as page:
        page.on("dialog", lambda dialog: dialog.accept() if answers.pop(0) else dialog.dismiss())
        page.get_by_role("button", name="Pause").click()
        assert stage.targets[0].paused is None
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#verdict")).to_have_text(re.compile(r"^\? llama-70b: paused, since "))
        expect(page.locator("#notice")).to_have_text("✓ Pause: done")
        assert stage.targets[0].paused is not None
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("#verdict")).to_have_text("✓ llama-70b: no problem found")


def test_a_refusal_is_told_in_the_probers_words(browser: Browser) -> None:
    """A refused sweep, a configuration with mistakes: the page shows the prober's sentence."""
    with staged(SCENES["healthy"]()) as stage, opened(browser, stage) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        stage.refusal = "Sat 11:00 is in sweep.blackout"
        page.get_by_role("button", name="Sweep now").click()
        expect(page.locator("#notice.wrong")).to_have_text("✗ blackout: Sat 11:00 is in sweep.blackout")
        stage.refusal = ""
        page.get_by_role("button", name="Sweep now").click()
        expect(page.locator("#notice:not(.wrong)")).to_have_text("✓ Sweep now: done")
        assert stage.begun == ["llama-70b"]
        stage.mistakes = "prober.yaml: targets: needed: a list of targets <b>"
        page.get_by_role("button", name="Reload").click()
        expect(page.locator("#notice.wrong")).to_contain_text("targets: needed: a list of targets <b>")


def test_a_fleet_is_filtered(browser: Browser) -> None:
    """While typing, with the focus kept; the address holds the filter; an empty filter shows all."""
    with staged(hundred()) as stage, opened(browser, stage) as page:
        expect(page.locator(".card")).to_have_count(100)
        page.get_by_role("searchbox").press_sequentially("model-4")
        expect(page.locator(".card")).to_have_count(10)
        assert page.evaluate("document.activeElement.id") == "q"
        assert page.get_by_role("searchbox").input_value() == "model-4"
        assert page.url.endswith("?q=model-4")
        page.reload()
        expect(page.locator(".card")).to_have_count(10)
        page.get_by_role("searchbox").fill("")
        expect(page.locator(".card")).to_have_count(100)


def test_the_last_probes_are_filtered(browser: Browser) -> None:
    """By links; the choice is in the address, and stays while the page refreshes and while targets are filtered."""
    failed = replace(target("b"), probes=[probe(3, Random(1), name="b", outcome=Outcome.RESET, detail="cut")])
    with staged([target("a"), failed]) as stage, opened(browser, stage) as page:
        expect(page.locator(".probes > li")).to_have_count(20)
        page.get_by_role("link", name="failed", exact=True).click()
        expect(page.locator(".probes > li")).to_have_count(1)
        page.get_by_role("searchbox").press_sequentially("a")
        expect(page.locator(".card")).to_have_count(1)
        assert page.url.endswith("?outcome=failed&q=a")
        expect(page.locator(".probes > li")).to_have_count(1)
        page.get_by_role("link", name="all", exact=True).click()
        expect(page.locator(".probes > li")).to_have_count(20)


def test_keys_are_enough(browser: Browser) -> None:
    """Tab reaches the skip link first, then everything in order, each with a visible focus; Enter opens a probe and a target."""
    with staged([target("a"), target("b")]) as stage, opened(browser, stage) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.append(
                page.evaluate(
                    "(() => { const at = document.activeElement, style = getComputedStyle(at);"
                    "return [at.tagName, style.outlineStyle, parseFloat(style.outlineWidth)] })()"
                )
            )
            if page.evaluate("document.activeElement.matches('.probes summary')"):
                break
        assert all(style != "none" and width >= 2 for tag, style, width in seen if tag != "BODY")
        page.keyboard.press("Enter")
        expect(page.locator(".probes details[open] .facts")).to_contain_text("slo-probe-")
        page.locator(".card a").first.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#target")).to_have_text("a")
        page.get_by_role("link", name="← all targets").press("Enter")
        expect(page.locator(".card")).to_have_count(2)


def test_it_can_be_read_without_its_script(browser: Browser) -> None:
    """Everything but actions: probes open, the filter filters, a target has its page."""
    with staged(hundred()) as stage, opened(browser, stage, java_script_enabled=False) as page:
        page.locator(".probes summary").first.press("Enter")  # a click on a page that is still laid out may be lost
        expect(page.locator(".probes .facts").first).to_be_visible()
        page.get_by_role("searchbox").fill("model-42")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator(".card")).to_have_count(1)
        page.locator(".card a").click()
        expect(page.locator("#target")).to_contain_text("model-42")
        expect(page.locator(".actions")).to_be_hidden()


def test_a_target_that_there_is_not(browser: Browser) -> None:
    """A link to a removed target leads to the list of targets."""
    with staged([target("a"), target("b")]) as stage, opened(browser, stage, "?target=gone") as page:
        expect(page.locator("h1")).to_have_text("There is no target gone")
        page.get_by_role("link", name="← all targets").click()
        expect(page.locator(".card")).to_have_count(2)


CONFIG = """
slos:
  ttft: {{signal: ttft, threshold: 2s, objective: 99%}}
defaults: {{max_in_flight: 200}}
targets:
  - {{name: one, url: 'http://127.0.0.1:{port}', probes: [{{workload: probe, rate: 20/s, slos: [ttft]}}],
     sweep: {{min_rate: 5/s, max_rate: 20/s, slos: [ttft]}}}}
  - {{name: <script>two</script>, url: 'http://127.0.0.1:9', rate: 2/s, starting_timeout: 0}}
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    """`prober run` with a mock and with a target that refuses connections; returns the page's address."""
    config, port = tmp_path / "prober.yaml", free_port()
    with Mock(tmp_path / "mock", "--ttft", "10ms", "--itl", "1ms") as mock:
        config.write_text(CONFIG.format(port=mock.port))
        words = ("run", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}")
        with Program(tmp_path / "log", *words, "--web.enable-admin-api", "--web.route-prefix=/slo"):
            until(lambda: get(f"http://127.0.0.1:{port}/slo/-/ready"), "the daemon to be ready")
            yield f"http://127.0.0.1:{port}/slo"


def target_answer(url: str, name: str) -> dict[str, Any]:
    targets: list[dict[str, Any]] = json.loads(get(f"{url}/api/v1/targets"))["data"]
    return next(target for target in targets if target["name"] == name)


def test_the_real_daemon_is_seen_and_steered(browser: Browser, daemon: str) -> None:
    """Probes appear on the page; a probe on request shows its figures; a sweep can be followed and stopped; a pause stops probing."""
    until(lambda: target_answer(daemon, "one")["outcomes"].get("ok", 0) >= 5, "five probes")
    until(lambda: target_answer(daemon, "<script>two</script>")["state"] == "failing", "three failures")
    context = browser.new_context(viewport=DESK)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{daemon}?q=")
    expect(page.locator("#verdict")).to_have_text("✗ 1 of 2 targets needs attention")
    expect(page.locator(".concerns")).to_contain_text("<script>two</script>")
    expect(page.locator(".concerns")).to_contain_text("connect_refused")
    page.get_by_role("link", name="one", exact=True).first.click()
    page.get_by_role("button", name="Probe now").click()
    expect(page.locator("#notice")).to_contain_text("Probe ended ok: TTFT")
    page.get_by_role("button", name="Sweep now").click()
    expect(page.locator(".sweeping")).to_contain_text("requests sent")
    page.get_by_role("button", name="Stop sweep").click()
    expect(page.locator(".sweeping")).to_have_count(0)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#verdict")).to_have_text(re.compile(r"^\? one: paused, since "))
    until(lambda: quiet(daemon), "the last probe that was under way")
    page.get_by_role("button", name="Resume").click()
    before = sum(target_answer(daemon, "one")["outcomes"].values())
    until(lambda: sum(target_answer(daemon, "one")["outcomes"].values()) > before, "a probe after it was resumed")
    assert [message for message in messages if "favicon" not in message] == []
    context.close()


def quiet(daemon: str) -> bool:
    """No probe ends for half a second, which is ten due times."""
    before = target_answer(daemon, "one")["outcomes"]
    time.sleep(0.5)
    return bool(target_answer(daemon, "one")["outcomes"] == before)
