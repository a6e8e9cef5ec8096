"""Who has which target."""

import subprocess
import sys
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.probing.replicas import Shard, shard_of

GOLDEN = [[0, 1, 2, 8, 445], [0, 0, 0, 0, 754], [0, 0, 0, 7, 706], [0, 0, 2, 2, 349]]
KEYS = [f"http://vllm-{number}.models.svc:8000" for number in range(10_000)]


@given(st.text(max_size=200), st.integers(1, 200))
def test_every_key_has_one_shard(key: str, count: int) -> None:
    """None is left out, and none is probed twice."""
    assert [Shard(index, count).has(key) for index in range(count)].count(True) == 1


@given(st.text(max_size=200), st.integers(1, 200))
def test_one_more_shard_takes_and_nobody_else_does(key: str, count: int) -> None:
    """A key stays, or goes to the new shard."""
    assert shard_of(key, count + 1) in (shard_of(key, count), count)


@pytest.mark.parametrize("count", [2, 3, 7, 20])
def test_shards_differ_by_chance_only(count: int) -> None:
    """Each within five standard deviations of its share; so is what moves to one shard more."""
    for share, found in (
        *((1 / count, sum(shard_of(key, count) == index for key in KEYS)) for index in range(count)),
        (1 / (count + 1), sum(shard_of(key, count) != shard_of(key, count + 1) for key in KEYS)),
    ):
        assert abs(found - share * len(KEYS)) < 5 * sqrt(len(KEYS) * share * (1 - share))


def test_it_is_the_same_in_every_process_and_version() -> None:
    """Written down once: a change would move targets in the middle of a roll-out."""
    keys = ("chat", "embeddings", "http://10.0.0.1:8000", "é")
    found = [[shard_of(key, count) for count in (1, 2, 3, 10, 1000)] for key in keys]
    assert found == GOLDEN
    code = "import sys; from prober.probing.replicas import shard_of; print([shard_of(k, 1000) for k in sys.argv[1:]])"
    for seed in ("0", "7"):
        said = subprocess.run(
            [sys.executable, "-c", code, *keys],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.strip() == str([each[-1] for each in GOLDEN])


def test_a_shard_is_said_by_number_or_by_the_pods_name() -> None:
    """As `--shard` takes it."""
    assert Shard.parse("1/3", None) == Shard(1, 3)
    assert Shard.parse("ordinal/3", "prober-fleet-2") == Shard(2, 3)
    assert str(Shard(1, 3)) == "1/3"
    assert Shard().has("anything")


@pytest.mark.parametrize(
    ("text", "pod", "message"),
    [
        ("3/3", None, "shard 3 of 3 does not exist; they are 0 to 2"),
        ("0/0", None, "does not exist"),
        ("-1/3", None, "is not a shard; write it as 0/3"),
        ("1", None, "is not a shard"),
        ("ordinal/3", None, "POD_NAME is not set"),
        ("ordinal/3", "prober-5c9f7d6b8-x2x4z", "POD_NAME is 'prober-5c9f7d6b8-x2x4z'"),
        ("ordinal/3", "prober-3", "shard 3 of 3 does not exist"),
    ],
)
def test_what_is_no_shard_is_told(text: str, pod: str | None, message: str) -> None:
    """With what to write."""
    with pytest.raises(ValueError, match=message):
        Shard.parse(text, pod)
