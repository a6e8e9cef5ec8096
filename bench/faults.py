"""Faults around a prober, and in it, one thing after another: what it says, what it costs, and how soon it is well.

The real daemon at ten probes a second on loopback: an endpoint, its name, its certificate and its page; the prober's own process,
clock and disk. Of each fault: outcomes, samples that are not of a good answer, seconds to the first good probe after it,
descriptors still open. What takes root, or a C compiler, is left out without, and the result says so.
"""

import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import trustme

from bench.report import goal, part, show
from tests.faults.disks import allow, empty, fill, real_disk, refuse, repair, small_disk, turn_read_only
from tests.faults.endpoint import FAULTS, Act, Endpoint, hostile_page, well
from tests.faults.names import NAME, NXDOMAIN, SERVFAIL, Resolver, certified, own_names
from tests.faults.rig import (
    SAVED_AGAIN,
    Impossible,
    config,
    descriptors,
    kept_tokens,
    probes,
    recovered,
    resident_mb,
    seen,
    series,
    slow_samples,
)
from tests.faults.wall import own_wall_clock
from tests.processes import Daemon, get, until

RATE = 10.0  # probes a second
FAULT_S = 5.0
STOP_S = 30.0
STOPS = 6
RECOVERY_S = 3.0  # the longest deadline of a probe under way, and the next due time
MODELS = 10_000
SLOW_S = 2.0  # far beyond what loopback takes, far below a step of the clock
LIMIT = 110_000_000
BUDGET = f"budget: {{tokens_per_day: {LIMIT}}}"
PROBE_TOKENS = 24  # 20 of the prompt, 4 of the answer
Found = dict[str, Any]


def nothing() -> Found:
    """Is seen beside the outcomes."""
    return {}


def meet(
    daemon: Daemon,
    endpoint: Endpoint,
    begin: Callable[[], object],
    end: Callable[[], object],
    *named: str,
    seconds: float = FAULT_S,
    beside: Callable[[], Found] = nothing,
) -> Found:
    """One fault from begin to end, and what is left of it. named: outcomes that it may have; beside: is asked before its end."""
    before, files = seen(daemon), descriptors(daemon.process.pid)
    begin()
    time.sleep(seconds)
    more = beside()
    recovery_s = recovered(daemon, end, 120)
    until(lambda: not endpoint.misbehaving, "the last of them to be given up")
    time.sleep(1.0)
    found = seen(daemon).since(before)
    return {
        "outcomes": dict(found.outcomes),
        "otherwise": sum(count for said, count in found.outcomes.items() if said not in ("ok", "invalid", *named)),
        "false_samples": max(0, found.samples["ttft"] - found.outcomes["ok"]),
        "recovery_s": round(recovery_s, 2),
        "descriptors_more": descriptors(daemon.process.pid) - files,
        **more,
    }


def stopped(daemon: Daemon) -> None:
    """For as long as the goal says, and then go on."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.kill(daemon.process.pid, signal.SIGCONT)


def answers_and_process(folder: Path) -> Found:
    """Each way of answering badly, an endpoint that is gone, a prober that is stopped and one without descriptors."""
    with Endpoint() as endpoint, Daemon(folder, config(f"http://127.0.0.1:{endpoint.port}")) as daemon:
        until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")
        pid = daemon.process.pid
        files, limits = descriptors(pid), resource.prlimit(pid, resource.RLIMIT_NOFILE)

        def acts(act: Act) -> Callable[[], None]:
            return lambda: setattr(endpoint, "act", act)

        def descriptors_are(soft: int) -> Callable[[], object]:
            return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, limits[1]))

        found = {
            what: meet(daemon, endpoint, acts(act), acts(well), outcome) for what, (act, outcome) in FAULTS.items()
        }
        found["is gone"] = meet(daemon, endpoint, endpoint.down, endpoint.up, "connect_refused", "reset")
        found["stopped for 30 s"] = meet(daemon, endpoint, lambda: stopped(daemon), lambda: None, seconds=0.0)
        found["no descriptors"] = meet(daemon, endpoint, descriptors_are(3), descriptors_are(limits[0]))
        time.sleep(3)
        found["no descriptors"] |= {"descriptors_left": descriptors(pid) - files}
    return found


def stops(folder: Path) -> Found:
    """A prober that is stopped six times. Eight probes may be in flight, two or three are."""
    text = config("http://127.0.0.1:{port}", timeout="10s", total="20s").replace("in_flight: 100", "in_flight: 8")
    slo = "slos: {first: {signal: ttft, threshold: 500ms, objective: 99%}}\n"
    with Endpoint() as endpoint:
        endpoint.act = partial(well, pause_s=0.06)
        with Daemon(
            folder, slo + text.replace("{port}", str(endpoint.port)).replace("tiny}]", "tiny, slos: [first]}]")
        ) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")
            before = seen(daemon)
            for _ in range(STOPS):
                os.kill(daemon.process.pid, signal.SIGSTOP)
                time.sleep(FAULT_S)
                os.kill(daemon.process.pid, signal.SIGCONT)
                time.sleep(2.5)
            return {
                "stopped six times": {
                    "outcomes": dict(seen(daemon).since(before).outcomes),
                    "ttft_events": daemon.value("llmslo_slo_events_total", slo="first"),
                    "bad_ttft_events": daemon.value("llmslo_slo_bad_events_total", slo="first"),
                    "untimed": daemon.value("llmslo_probes_untimed_total"),
                }
            }


class Flapping:
    """A name that is there, not found, and its server's failure, in turn, each for 0.3 s."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver, self._over = resolver, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.begin = self._thread.start

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._resolver.says = "127.0.0.1"

    def _run(self) -> None:
        while not self._over.is_set():
            for says in ("127.0.0.1", NXDOMAIN, SERVFAIL):
                self._resolver.says = says
                self._over.wait(0.3)


def names(folder: Path) -> Found:
    """A name that flaps, and one that moves."""
    with (
        own_names(folder) as resolver,
        Endpoint() as first,
        Endpoint("127.0.0.2", first.port) as second,
        Daemon(folder, config(f"http://{NAME}:{first.port}")) as daemon,
    ):
        until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")
        flapping = Flapping(resolver)
        found = {"its name flaps": meet(daemon, first, flapping.begin, flapping.end, "dns")}
        began = time.monotonic()
        resolver.says = "127.0.0.2"
        until(lambda: second.requests[4], "a probe at its new address")
        found["its name flaps"]["moved_s"] = round(time.monotonic() - began, 2)
    return found


def certificates(folder: Path) -> Found:
    """An expired one in place of a good one."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    with Endpoint(tls=certified(authority)) as endpoint:
        more = f"tls: {{ca_file: {folder}/ca.pem}}"
        with Daemon(folder, config(f"https://127.0.0.1:{endpoint.port}", more=more)) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")
            left_s = daemon.value("llmslo_tls_cert_expiry_timestamp_seconds") - time.time()

            def beside() -> Found:
                said = [str(each["detail"]) for each in probes(daemon) if each["outcome"] == "tls"]
                return {"says": said[0], "said_expired": sum("expired" in each for each in said), "of": len(said)}

            expired = meet(
                daemon,
                endpoint,
                lambda: endpoint.tls(certified(authority, begins=-2, ends=-1)),
                lambda: endpoint.tls(certified(authority)),
                "tls",
                beside=beside,
            )
    return {"its certificate is expired": {**expired, "days_left_of_the_good_one": round(left_s / 86_400, 3)}}


def labels(folder: Path) -> Found:
    """A page of its own of 10,000 series with hostile labels, twice."""
    with Endpoint() as endpoint:
        endpoint.metrics = hostile_page(1)
        page = f"'http://127.0.0.1:{endpoint.port}/metrics', interval: 4s"
        with Daemon(folder, config(f"http://127.0.0.1:{endpoint.port}", page=page)) as daemon:
            until(lambda: daemon.value("llmslo_engine_up") == 1, "the engine's page")
            until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")
            own, length, held = series(daemon), len(get(daemon.url + "/metrics")), resident_mb(daemon.process.pid)
            long = hostile_page(MODELS)

            def begin() -> None:
                endpoint.metrics = long
                until(lambda: daemon.value("llmslo_engine_requests_running") == MODELS, "the engine's long page")

            def beside() -> Found:
                return {
                    "series_more": series(daemon) - own,
                    "bytes_more": len(get(daemon.url + "/metrics")) - length,
                    "resident_mb_more": round(resident_mb(daemon.process.pid) - held, 1),
                    "engine_page_mb": round(len(long) / 1e6, 2),
                }

            def end() -> None:
                endpoint.metrics = hostile_page(1)

            return {"its page is hostile": meet(daemon, endpoint, begin, end, beside=beside)}


def wall_clock(folder: Path) -> Found:
    """The clock on the wall an hour ahead, right again, an hour behind, right again."""
    with own_wall_clock(folder) as wall, Endpoint() as endpoint:
        text = config(f"http://127.0.0.1:{endpoint.port}", more=BUDGET)
        with Daemon(folder, text, "--storage.path", folder / "store") as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")

            def step(seconds: int) -> Found:
                left = daemon.value("llmslo_budget_remaining_ratio", budget="tokens")
                found = meet(daemon, endpoint, lambda: wall.write_text(str(seconds)), lambda: wall.write_text("0"))
                refilled = daemon.value("llmslo_budget_remaining_ratio", budget="tokens") - left
                slow = slow_samples(daemon, SLOW_S)
                return {**found, "slow_samples": slow, "tokens_refilled": max(0.0, refilled * LIMIT)}

            return {"the clock is set an hour ahead": step(3600), "the clock is set an hour back": step(-3600)}


def disks(folder: Path) -> Found:
    """Full, refusing to be written, and read-only after an error, under a prober that keeps its state there."""
    found = {}
    with Endpoint() as endpoint:
        text = config(f"http://127.0.0.1:{endpoint.port}", more=BUDGET)

        def failing(disk: Path, begin: Callable[[Path], object], end: Callable[[Path], object] | None) -> Found:
            """end: has the disk take writes again while the daemon runs."""
            with Daemon(folder, text, "--storage.path", disk) as daemon:
                until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")
                asked = 0

                def starts() -> None:
                    begin(disk)
                    until(lambda: failures() >= 1, "what it says of the disk")

                def failures() -> float:
                    return daemon.value("llmslo_storage_write_failures_total")

                def ends() -> None:
                    nonlocal asked
                    asked = endpoint.requests[4]
                    if end is not None:
                        end(disk)

                met = meet(daemon, endpoint, starts, ends, beside=lambda: {"failures_counted": failures()})
                if end is not None:
                    until(lambda: SAVED_AGAIN in daemon.log.read_text(), "the disk to be used again")
                daemon.log.unlink()
                daemon.kill()
            return {**met, "tokens_asked_for": asked * PROBE_TOKENS}

        def forgotten(met: Found, spent: float, disk: Path) -> Found:
            return {**met, "tokens_forgotten": max(0.0, spent - kept_tokens(disk))}

        with small_disk(folder) as disk:
            met = failing(disk, fill, empty)
            found["the disk is full"] = forgotten(met, met["tokens_asked_for"], disk)
        endpoint.requests.clear()
        with real_disk(folder) as disk:
            met = failing(disk, refuse, allow)
            found["the disk refuses writes"] = forgotten(met, met["tokens_asked_for"], disk)
            before = kept_tokens(disk)
            met = failing(disk, turn_read_only, None)
        repair(folder)
        with real_disk(folder) as disk:
            found["the disk turns read-only"] = forgotten(met, before, disk)
    return found


OWN = ("stopped for 30 s", "no descriptors")
CLOCK = ("the clock is set an hour ahead", "the clock is set an hour back")
DISKS = ("the disk is full", "the disk refuses writes", "the disk turns read-only")


def goals(found: Found) -> list[Found]:
    """Of those faults that this machine can have."""

    def total(what: str, of: Collection[str] = found.keys()) -> float:
        return float(sum(found[each].get(what, 0) for each in of if each in found))

    of_its_own = (*OWN, *CLOCK, *DISKS)
    held = [
        goal("samples that are not of a good answer", total("false_samples"), 0, "samples"),
        goal("probes named otherwise than the fault", total("otherwise", found.keys() - {*of_its_own}), 0, "probes"),
        goal("probes of a prober that itself fails that blame the target", total("otherwise", of_its_own), 0, "probes"),
        goal("slowest recovery", max(each.get("recovery_s", 0.0) for each in found.values()), RECOVERY_S, "s"),
        goal("descriptors left over after all", found[OWN[1]]["descriptors_left"], 5, "descriptors"),
    ]
    stopped_often = found["stopped six times"]
    named = sum(count for outcome, count in stopped_often["outcomes"].items() if outcome not in ("ok", "invalid"))
    held.append(
        goal(f"bad TTFT events by {STOPS} stops of {FAULT_S:g} s", stopped_often["bad_ttft_events"], 0, "events")
    )
    held.append(goal("probes that these stops make anything but ok or invalid", named, 0, "probes"))
    if flaps := found.get("its name flaps"):
        held.append(goal("a name's new address to the first request there", flaps["moved_s"], 1, "s"))
    if expired := found.get("its certificate is expired"):
        held.append(goal("probes that call it otherwise than expired", expired["of"] - expired["said_expired"], 0, ""))
    if hostile := found.get("its page is hostile"):
        held.append(goal(f"series more of {MODELS} hostile labels", hostile["series_more"], 10, "series"))
        held.append(goal("memory more of them", hostile["resident_mb_more"], 64, "MB"))
    if CLOCK[0] in found:
        held.append(goal(f"samples over {SLOW_S:g} s by the clock's steps", total("slow_samples", CLOCK), 0, "samples"))
        held.append(goal("tokens refilled by the clock's steps", total("tokens_refilled", CLOCK), 0, "tokens"))
    if DISKS[0] in found:
        unmeasured = sum(max(0.0, RATE * FAULT_S - found[each]["outcomes"]["ok"]) for each in DISKS)
        held.append(goal("probes due and not measured for want of a disk", unmeasured, 0, "probes"))
        held.append(goal("tokens spent and forgotten with the disk", total("tokens_forgotten", DISKS), 0, "tokens"))
    return held


def main() -> None:
    """Measure and print."""
    found: Found = {}
    left_out = {}
    for group in (answers_and_process, stops, names, certificates, labels, wall_clock, disks):
        with tempfile.TemporaryDirectory(prefix="prober-faults-") as folder:
            try:
                found |= part(group.__name__, group(Path(folder)))
            except Impossible as why:
                left_out[group.__name__] = str(why)
    show("faults", goals(found), faults=found, left_out=left_out)


if __name__ == "__main__":
    main()
