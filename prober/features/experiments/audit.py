"""The field's checklist of what makes a serving benchmark worth believing, answered from the result itself."""

from collections.abc import Callable
from dataclasses import dataclass

from prober.results.conditions import lines
from prober.results.result import OPEN_LOOP, Result, Stage
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE

LEAST_RATES = 3
# Long enough for queues to show. 20% above the knee of a sharp engine, 10 s show a quarter of the breaches of the long run, 40 s two
# thirds, 160 s five sixths; and an engine whose answers take long changes its batch as slowly.
LEAST_S = 60.0
LEAST_ANSWERS = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the list. done: None where the result does not tell."""

    name: str
    done: bool | None
    why: str


def audit(result: Result) -> list[Check]:
    """The list, in its usual order."""
    return [Check(name, *ask(result)) for name, ask in _ASKED]


Answer = tuple[bool | None, str]


def _warm_up(result: Result) -> Answer:
    left_out = sum(each.warm_up for each in result.requests)
    if result.warm_up is not None and result.warm_up.requests:
        return True, f"{result.warm_up.requests:,} requests went before what counts"
    if left_out:
        return True, f"{left_out:,} requests of a cold engine are left out of the latencies"
    return (None, "the file does not tell") if result.warm_up is None else (False, "none was sent")


def _open_loop(result: Result) -> Answer:
    arrivals = result.load.arrivals
    if arrivals is None:
        return None, "the file does not tell how requests arrived"
    if arrivals in OPEN_LOOP:
        return True, f"{arrivals} arrivals, whatever becomes of the requests"
    return False, f"{arrivals}: a slow target is asked less, which hides its queue"


def _tails(result: Result) -> Answer:
    most = max((found.count for stage in result.stages if (found := stage.quantile("ttft", 0.99))), default=0)
    needed = int(MIN_SAMPLES_BY_QUANTILE[0.99])
    if most >= needed:
        return True, f"p99 of TTFT rests on up to {most:,} samples"
    return False, f"p99 of TTFT rests on {most:,} samples at most; under {needed:,} it is no more than a hint"


def _lengths(result: Result) -> Answer:
    if result.load.varied is None:
        return None, "the file does not tell how lengths were drawn"
    if result.load.varied:
        return True, "lengths are drawn from distributions"
    return False, "every prompt has one fixed length, which no user has"


def _rates(result: Result) -> Answer:
    """Of one shape: other rates of other shapes make no curve."""
    rates = [
        {each.rate_per_s if each.rate_per_s is not None else each.name for each in line.stages}
        for line in lines([("", result)])
    ]
    most = max(map(len, rates), default=0)
    shape = " under one set of conditions" if len(rates) > 1 else ""
    return most >= LEAST_RATES, f"{most} of at least {LEAST_RATES} that make a curve{shape}"


def _duration(result: Result) -> Answer:
    """Every stage whose latencies are shown: one that is too short to queue looks faster than it is."""
    shown = [each for each in result.stages if each.latencies]
    known = [(seconds, each.quantile("e2e", 0.5)) for each in shown if (seconds := _sending_s(each)) is not None]
    if not known:
        return None, "the file does not tell how long was sent"
    span = f"{min(sent for sent, _ in known):,.3g} to {max(sent for sent, _ in known):,.3g} s"
    if len(known) < len(shown) or not all(answer and answer.estimate for _, answer in known):
        return None, f"stages were sent for {span}, but not of all is known how long, or how long an answer takes"
    long = sum(sent >= max(LEAST_S, LEAST_ANSWERS * answer.estimate) for sent, answer in known if answer)
    if long == len(known):
        return True, f"each stage was sent for {LEAST_S:g} s and {LEAST_ANSWERS:g} median answers or more ({span})"
    return False, (
        f"{long} of {len(known)} stages were sent for {LEAST_S:g} s and {LEAST_ANSWERS:g} median answers or more ({span}); "
        "a queue builds up more slowly than that, so the others look faster than they are"
    )


def _sending_s(stage: Stage) -> float | None:
    """How long was sent; waiting for the last answers afterwards is no load."""
    return stage.sending_s if stage.sending_s is not None else stage.duration_s


def _hardware(result: Result) -> Answer:
    wanted = ("gpu", "gpu_count", "driver")
    return _known(result, wanted, all_of=True)


def _precision(result: Result) -> Answer:
    return _known(result, ("precision", "quantization"), all_of=False)


def _batch(result: Result) -> Answer:
    means = [each.use.running_mean for each in result.stages if each.use.running_mean is not None]
    if not result.stages or len(means) < len(result.stages):
        return False, f"running requests were read in {len(means)} of {len(result.stages)} stages"
    return True, f"{min(means):.3g} to {max(means):.3g} running requests in the mean"


def _phases(result: Result) -> Answer:
    seen = {latency for stage in result.stages for latency in stage.latencies}
    missing = [name for name, latencies in (("prefill", {"ttft"}), ("decode", {"tpot", "itl"})) if not latencies & seen]
    if missing:
        return False, f"not measured apart: {', '.join(missing)}"
    return True, "prefill by TTFT, decode by TPOT and ITL"


def _known(result: Result, names: tuple[str, ...], *, all_of: bool) -> Answer:
    found = {name: getattr(result.context, name) for name in names}
    missing = [name.replace("_", " ") for name, value in found.items() if value is None]
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found.items() if value is not None)
    done = not missing if all_of else bool(said)
    return done, said if done else f"not known: {', '.join(missing)}"


_ASKED: tuple[tuple[str, Callable[[Result], Answer]], ...] = (
    ("warm-up", _warm_up),
    ("open loop", _open_loop),
    ("tails", _tails),
    ("realistic lengths", _lengths),
    ("several rates", _rates),
    ("duration", _duration),
    ("hardware", _hardware),
    ("precision", _precision),
    ("batch", _batch),
    ("both phases", _phases),
)
