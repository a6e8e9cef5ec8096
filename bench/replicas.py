"""Several replicas: how soon does the one that is cut off stop, how soon does another follow, and do two ever hold the lease?

    python -m bench.replicas [--quick]

Histories are in virtual time (tests/features/replicas/simulated_leases.py): 2 to 5 replicas, messages late, lost or answered in
vain, partitions, pauses, an API server that is away, clocks that run up to 19% too fast or too slow; as a control, the same with
clocks beyond the bound of 20%.
Pairs are in real time, over sockets, against the stand-in API server with the default lease of 15 s, cut off, or told to end, at
random moments. The last part are two real daemons, of which the leader is cut off from the API server in the middle of a sweep.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any

from bench.report import goal, part, percentile, show
from prober.daemon.registry import registry
from prober.features.replicas.leadership import KubernetesLeadership, KubernetesLease
from prober.features.replicas.lease_machine import Timing
from prober.net.kubernetes import Api
from prober.probing.replicas import shard_of
from tests.features.replicas.simulated_leases import Trouble, World
from tests.kubernetes.apiserver import ApiServer, threaded_api_server
from tests.processes import Daemon, Mock, fetch, until

TIMING = Timing()
KEYS = [f"http://vllm-{number}.models.svc:8000" for number in range(10_000)]
CONFIG = """
defaults: {{rate: 1/s, warmup: 0}}
slos: {{quick: {{signal: ttft, threshold: 2s, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 40}}}}
targets: [{{name: one, url: '{url}', metrics: {{url: none}}, probes: [{{workload: tiny}}],
  sweep: {{workload: tiny, min_rate: 10/s, max_rate: 20/s, mode: grid}}}}]
"""


def history(seed: int, most_drift: float = 0.19) -> tuple[int, int, int, float, int]:
    """(moments with two holders, fencing numbers that two had, due work done twice, share of time held, take-overs)."""
    rng = Random(seed)
    found = World(rng, rng.randint(2, 5), Trouble(drift=rng.uniform(most_drift / 2, most_drift))).run()
    owners: dict[int, set[int]] = {}
    for _, number, who in found.taken:
        owners.setdefault(number, set()).add(who)
    twice = sum(times > 1 for times in Counter(due for due, _ in found.ran).values())
    shared = sum(len(each) > 1 for each in owners.values())
    return found.two_holders, shared, twice, found.held_s / 400, len(found.taken)


def beyond(seed: int) -> int:
    """Moments with two holders where clocks differ by more than the bound."""
    return history(seed, 0.6)[0]


def moved() -> dict[str, Any]:
    """Of 10,000 keys, from N to N + 1 shards: the share that moves over the share that has to, and the fullest shard's load."""
    rows = {}
    for count in (1, 2, 3, 5, 10, 20, 50):
        share = sum(shard_of(key, count) != shard_of(key, count + 1) for key in KEYS) / len(KEYS)
        fullest = max(Counter(shard_of(key, count) for key in KEYS).values())
        rows[f"{count} to {count + 1}"] = {
            "moved": round(share, 4),
            "to_be_moved": round(1 / (count + 1), 4),
            "fullest_over_mean": round(fullest * count / len(KEYS), 3),
        }
    return rows


async def pairs(many: int) -> dict[str, list[float]]:
    """Seconds from the moment at which leaders were cut off, or told to end."""
    found: dict[str, list[float]] = {"lost": [], "followed": [], "gap": [], "released": []}
    async with ApiServer() as server:

        async def pair(number: int) -> None:
            rng, name = Random(number), f"pair-{number}"
            a, b = (
                KubernetesLeadership(
                    KubernetesLease(Api(server.url(f"{who}{number}")), "default", name), who, TIMING, registry()
                )
                for who in "ab"
            )
            tasks = [asyncio.create_task(a.run())]
            await _until(lambda: a.held() is not None)
            tasks.append(asyncio.create_task(b.run()))
            await asyncio.sleep(rng.uniform(4, 8))
            if number % 2:
                server.faults(f"a{number}").cut = "requests"
                begun = time.monotonic()
                await _until(lambda: a.held() is None)
                lost = time.monotonic()
                await _until(lambda: b.held() is not None)
                found["lost"].append(lost - begun)
                found["followed"].append(time.monotonic() - begun)
                found["gap"].append(time.monotonic() - lost)
                server.heal(f"a{number}")
            else:
                begun = time.monotonic()
                await a.close()
                await _until(lambda: b.held() is not None)
                found["released"].append(time.monotonic() - begun)
            await a.close()
            await b.close()

        await asyncio.gather(*(pair(number) for number in range(many)))
    return found


async def _until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(90):
        while not true():  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0.005)


def daemons() -> dict[str, float]:
    """Seconds from the cut to the end of the sending, and until the other one holds the lease."""
    with tempfile.TemporaryDirectory() as folder, threaded_api_server() as server:
        place = Path(folder)

        def daemon(who: str, url: str) -> Daemon:
            (place / who).mkdir()
            flags = ("--lease.name=bench", "--lease.namespace=default", f"--lease.api-server={server.url(who)}")
            return Daemon(place / who, CONFIG.format(url=url), *flags, "--web.enable-admin-api", "--shutdown.timeout=1")

        with Mock(place / "mock", "--ttft", "50ms", "--itl", "10ms") as mock, daemon("a", mock.url) as first:
            until(lambda: first.value("llmslo_lease_held") == 1, "the first to hold it")
            until(lambda: first.value("llmslo_target_state", state="ready"), "the target")
            with daemon("b", mock.url) as second:
                assert fetch(f"{first.url}/api/v1/sweeps?target=one", "POST")[0] == 202
                until(lambda: first.value("llmslo_sweep_rate_per_second") > 0, "the sweep to send")
                time.sleep(3)
                server.faults("a").cut = "requests"
                cut = time.monotonic()
                until(lambda: first.value("llmslo_sweep_rate_per_second") == 0, "the sweep to stop")
                stopped = time.monotonic() - cut
                until(lambda: second.value("llmslo_lease_held") == 1, "the second to follow")
                followed = time.monotonic() - cut
                until(lambda: first.value("llmslo_sweep_stops_total", reason="lease_lost") == 1, "the result")
                return {"stopped_s": round(stopped, 2), "followed_s": round(followed, 2)}


def main() -> None:
    """Print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="500 histories, 8 pairs")
    quick = parser.parse_args().quick
    many = 500 if quick else 10_000
    with Pool() as pool:
        histories = pool.map(history, range(many), chunksize=25)
        control = sum(pool.map(beyond, range(200), chunksize=10))
    two, shared, twice = (sum(each[place] for each in histories) for place in range(3))
    part("histories", {"two holders": two, "shared numbers": shared, "done twice": twice, "control": control})
    shares = part("keys moved", moved())
    times = part("pairs", asyncio.run(pairs(8 if quick else 40)))
    real = part("daemons", daemons())
    worst = max(abs(row["moved"] / row["to_be_moved"] - 1) for row in shares.values())
    show(
        "replicas",
        [
            goal(f"moments with two holders in {many} histories", two, 0, "moments"),
            goal("fencing numbers that two replicas had", shared, 0, "numbers"),
            goal("due work that was done twice", twice, 0, "times"),
            goal("cut off until it lets go, longest", max(times["lost"]), TIMING.lease_s, "s"),
            goal(
                "cut off until another holds it, longest",
                max(times["followed"]),
                TIMING.lease_s + 2 * 1.5 * TIMING.retry_s,
                "s",
            ),
            goal(
                "SIGTERM's release until another holds it, longest",
                max(times["released"]),
                2 * 1.5 * TIMING.retry_s,
                "s",
            ),
            goal("real daemon cut off until its sweep stops", real["stopped_s"], TIMING.lease_s, "s"),
            goal("keys moved to one shard more, from what has to, at most off by", worst, 0.15, "ratio"),
        ],
        control_moments_with_two_holders=control,
        held_share_mean=round(sum(each[3] for each in histories) / many, 4),
        taken_mean=round(sum(each[4] for each in histories) / many, 2),
        pairs={
            name: {"n": len(values), "p50": round(percentile(values, 0.5), 2), "max": round(max(values), 2)}
            for name, values in times.items()
        },
        nobody_holds_it_least_s=round(min(times["gap"]), 2),
        daemons=real,
        shards=shares,
    )


if __name__ == "__main__":
    main()
