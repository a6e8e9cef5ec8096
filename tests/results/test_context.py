"""The context of a result: what was given and what was found."""

from dataclasses import replace

import pytest

from prober.measure.bandwidth_bound import DecodeModel
from prober.results.context import CONFIGURED, agree, disagreement_text, sentences, unknown, with_context
from prober.results.facts import Context, Fact
from prober.results.result import Load, MeasuredTarget, Prices, Result
from tests.results.samples import sweep

BARE = Result("bare", "run", 0.0, 0.0, "tool", MeasuredTarget(), Load(), ())


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        ("precision", "torch.bfloat16", "bf16", True),
        ("precision", "half", "float16", True),
        ("precision", "float16", "bfloat16", False),
        ("gpu", "H100 80GB", "NVIDIA H100 80GB HBM3", True),
        ("gpu", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", False),
        ("gpu_memory", "80 GB", "80 GiB", True),
        ("gpu_memory", "40 GB", "80 GiB", False),
        ("gpu_memory", "large", "80 GiB", False),
        ("gpu_count", "2", "2", True),
        ("gpu_count", "1", "16", False),
        ("engine_version", "0.32", "0.32.0", True),
        ("engine_version", "0.3", "0.32.0", False),
        ("parallelism", "TP 2", "TP 2, PP 1, DP 1", True),
        ("parallelism", "TP 2", "TP 4, PP 2", False),
        ("quantization", "Q4_K_M", "all F32", False),
    ],
)
def test_texts_agree_if_they_may_be_the_same_fact(name: str, one: str, other: str, same: bool) -> None:
    """Other spellings and fuller forms are no disagreement; another number or name is one. The order does not matter."""
    assert agree(name, one, other) is same
    assert agree(name, other, one) is same


def test_the_server_comes_before_the_configuration_and_both_are_shown() -> None:
    """A stale configuration hides no change of the engine."""
    result = with_context(
        BARE, [Fact("precision", "bfloat16", "/server_info")], {"precision": "float16", "cpu": "EPYC"}
    )
    assert result.context.precision == "bfloat16"
    assert (result.context.cpu, result.context_sources["cpu"]) == ("EPYC", CONFIGURED)
    (disagreement,) = result.disagreements
    assert disagreement_text(disagreement) == "bfloat16 (/server_info) but float16 (configuration)"
    assert (
        next(sentences(result)) == "Sources disagree on precision: bfloat16 (/server_info) but float16 (configuration)."
    )


def test_the_fuller_form_of_an_agreed_fact_stays() -> None:
    """With all of its sources."""
    found = [Fact("gpu", "NVIDIA H100 80GB HBM3", "NVML")]
    result = with_context(BARE, found, {"gpu": "H100"})
    assert (result.context.gpu, result.context_sources["gpu"]) == ("NVIDIA H100 80GB HBM3", "NVML, configuration")
    assert not result.disagreements


def test_the_file_of_a_model_comes_last() -> None:
    """An engine may load weights as another type than they are stored as, so the configured type stands first."""
    result = with_context(BARE, (), {"precision": "float16"}, assumed=[Fact("precision", "bfloat16", "config.json")])
    assert disagreement_text(result.disagreements[0]) == "float16 (configuration) but bfloat16 (config.json)"


def test_version_and_flags_of_the_engine() -> None:
    """The engine's own values stay; configured ones fill what it does not state, and differing ones are shown."""
    result = replace(BARE, target=MeasuredTarget(engine_version="0.32.0", flags={"block_size": "16"}))
    result = with_context(result, (), {"engine_version": "0.31"}, flags={"block_size": "32", "max_num_seqs": "256"})
    assert result.target.engine_version == "0.32.0"
    assert dict(result.target.flags) == {"block_size": "16", "max_num_seqs": "256"}
    assert {each.name for each in result.disagreements} == {"engine_version", "flag block_size"}


def test_the_number_of_gpus_is_that_of_all_stages() -> None:
    """Figures per GPU and costs follow from it; where sources disagree about it there are none."""
    measured = replace(sweep(), context=Context(), context_sources={})
    assert {stage.gpus for stage in with_context(measured, (), {"gpu_count": "4"}).stages} == {4}
    found = [Fact("gpu_count", "2", "/server_info")]
    assert {stage.gpus for stage in with_context(measured, found, {"gpu_count": "4"}).stages} == {None}
    assert {stage.gpus for stage in with_context(measured, (), {}).stages} == {2}  # as measured


def test_a_price_replaces_that_of_the_result() -> None:
    """None keeps it."""
    result = replace(BARE, prices=Prices(gpu_per_hour=2.0))
    assert with_context(result).prices.gpu_per_hour == 2.0
    assert with_context(result, gpu_price=3.0).prices.gpu_per_hour == 3.0


@pytest.mark.parametrize(
    ("gpu", "count", "bound"),
    [
        ("NVIDIA H100 80GB HBM3", "2", 2 * 3.35e12 / 16e9),
        ("some GPU", "2", None),
        ("NVIDIA H100 80GB HBM3", None, None),
    ],
)
def test_the_bound_needs_model_gpu_and_count(gpu: str, count: str | None, bound: float | None) -> None:
    """Nothing is guessed."""
    given = {"gpu": gpu} | ({"gpu_count": count} if count else {})
    limit = with_context(BARE, (), given, decode_model=DecodeModel(8e9, 2.0, 0.0)).decode_limit
    assert (limit.tokens_per_s if limit else None) == (pytest.approx(bound) if bound else None)


def test_an_engine_without_gpu_lacks_no_facts_of_gpus() -> None:
    """They do not apply."""
    assert "driver" in unknown(BARE)
    assert "driver" not in unknown(with_context(BARE, (), {"gpu": "none"}))


def test_completing_twice_changes_nothing() -> None:
    """A stored result that a report completes again with the same facts stays as it is."""
    given = {"precision": "float16", "gpu_count": "2"}
    once = with_context(sweep(), [Fact("precision", "bfloat16", "/info")], given)
    assert with_context(once, (), given).context == once.context
    assert {each.name for each in with_context(once, (), given).disagreements} == {
        each.name for each in once.disagreements
    }
