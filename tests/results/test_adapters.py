"""First uses of adapters beside requests to loaded ones."""

from dataclasses import replace

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.adapters import adapter_use_of, kinds_of_use
from tests.known import known
from tests.results.samples import answered


def probe(adapter: str, due_s: float, ttft_s: float = 0.05) -> ProbeResult:
    return answered(due_s, ttft_s, ttft_s + 0.1, adapter=adapter)


def kinds(*probes: ProbeResult) -> str:
    """f: first use, l: loaded, -: neither; by due time."""
    first, loaded, _ = kinds_of_use(probes)
    ordered = sorted(probes, key=lambda probe: probe.timeline.intended_ns)
    return "".join("f" if probe in first else "l" if probe in loaded else "-" for probe in ordered)


def test_the_first_request_of_a_turn_is_a_first_use_and_the_next_ones_are_loaded() -> None:
    """Three adapters with turns of three, twice round: the order of the results does not matter."""
    turns = [adapter for adapter in "abcabc" for _ in range(3)]
    probes = [probe(adapter, due_s) for due_s, adapter in enumerate(turns)]
    assert kinds(*probes) == "fll" * 6
    assert kinds(*reversed(probes)) == "fll" * 6


def test_a_request_that_waits_for_the_load_is_neither() -> None:
    """It is due before the first token of the first use, so it is not known to be for a loaded adapter."""
    assert kinds(probe("a", 0, 2.5), probe("a", 1, 1.5), probe("a", 2, 0.5), probe("a", 3), probe("b", 4)) == "f--lf"


def test_an_adapter_that_fewer_than_all_others_came_between_is_neither() -> None:
    """With room for two of three adapters, one other does not displace an adapter, and both do."""
    assert kinds(*(probe(adapter, due_s) for due_s, adapter in enumerate("abacbcab"))) == "ff-ff-ff"


def test_an_adapter_in_use_is_no_first_use() -> None:
    """A previous request has not ended, so that no engine has unloaded it."""
    assert kinds(probe("a", 0, ttft_s=9), probe("b", 1), probe("a", 2), probe("b", 3)) == "ff-f"


def test_ratios_need_evidence() -> None:
    """20 requests of both kinds for p50, in blocks of 5 s; the other quantiles have no figure, and none is printed."""
    turns = [adapter for _ in range(8) for adapter in "abc" for _ in range(3)]
    probes = [probe(adapter, 2 * place, ttft_s=0.5 if place % 3 == 0 else 0.05) for place, adapter in enumerate(turns)]
    use = known(adapter_use_of(probes))
    assert (use.adapters, use.first_uses, use.loaded, use.unclear) == (3, 24, 48, 0)
    (p50,) = use.ratios
    assert (p50.q, round(p50.estimate, 6), round(p50.lower, 6), round(p50.upper, 6)) == (0.5, 10, 10, 10)
    assert use.text() == (
        "3 adapters: TTFT of 24 first uses p50 500 ms, of 48 requests to loaded adapters p50 50 ms; first uses relative to loaded: "
        "p50 10 times (10 to 10)"
    )
    few = known(adapter_use_of(probes[:45]))
    assert few.ratios == ()
    assert few.text() == (
        "3 adapters: TTFT of 15 first uses (no quantile: p50 takes 20), of 30 requests to loaded adapters p50 50 ms; no ratio: too few "
        "requests, too few blocks of 5 s, or too many failed"
    )


def test_a_failed_first_use_counts_as_slower_than_all_others() -> None:
    """Else an engine that refuses to load looks fast."""
    turns = [adapter for _ in range(10) for adapter in "abc" for _ in range(3)]
    probes = [probe(adapter, 2 * place) for place, adapter in enumerate(turns)]
    failed = [
        replace(each, outcome=Outcome.HTTP_5XX, timeline=Timeline(each.timeline.intended_ns)) if at % 6 == 0 else each
        for at, each in enumerate(probes)
    ]
    use = known(adapter_use_of(failed))
    assert use.failed_first_uses == 15
    assert use.ratios == ()
    assert "30 first uses (15 failed)" in use.text()


def test_without_several_adapters_there_is_nothing_to_compare() -> None:
    """Neither the model of the target nor a single adapter has first uses."""
    assert adapter_use_of([probe("", 1), probe("", 2)]) is None
    assert adapter_use_of([probe("a", 1), probe("a", 2)]) is None


def test_an_adapter_that_never_answers_does_not_vanish() -> None:
    """It is named with how many were not answered, and the most frequent reason; refused requests are no uses, but they are told."""
    refused = replace(probe("b", 9), outcome=Outcome.REJECTED, detail="HTTP 400: no such model")
    use = known(adapter_use_of([probe("a", 1), probe("a", 2), refused, replace(refused, detail="other"), refused]))
    assert use.unanswered == (("b", 3, 3, "rejected: HTTP 400: no such model"),)
    assert use.text().endswith("; b: 3 of 3 not answered, most often rejected: HTTP 400: no such model")
