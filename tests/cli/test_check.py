"""What `prober check` says of several replicas."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from prober.cli.check import check
from prober.limits.shard import shard_of

NAMES = ("a", "b", "c", "d", "e", "f")
CONFIG = """
workloads: {one: {prompt_tokens: 100, output_tokens: 10}}
defaults: {rate: 1/s}
targets:
""" + "".join(
    f"- {{name: {name}, url: 'http://127.0.0.1:1/{name}', probes: [{{workload: one}}],\n"
    "   budget: {cost_per_day: 1000, price_per_million: {prompt: 1, completion: 10}}}\n"
    for name in NAMES
)


@pytest.fixture
def checked(tmp_path: Path) -> "Call":
    return Call(tmp_path)


class Call:
    def __init__(self, folder: Path) -> None:
        self._config = folder / "prober.yaml"
        self._config.write_text(CONFIG)
        self._app = typer.Typer()
        self._app.command()(check)

    def __call__(self, *flags: str) -> Result:
        return CliRunner().invoke(self._app, ["--config.file", str(self._config), *flags])

    def costs(self, *flags: str) -> dict[str, tuple[str, ...]]:
        """Name to probes/s, tokens a day and dollars a day."""
        rows = [line.split() for line in self(*flags).stdout.splitlines()]
        return {row[0]: tuple(row[1:5]) for row in rows if row and row[0] in NAMES}


def test_replicas_without_shards_multiply_what_probing_costs(checked: Call) -> None:
    """Rate, tokens and dollars; it is a warning, and says what to do."""
    one, three = checked.costs(), checked.costs("--replicas", "3")
    assert one == dict.fromkeys(NAMES, ("1", "8,640,000", "864,000", "17.28"))
    assert three == dict.fromkeys(NAMES, ("3", "25,920,000", "2,592,000", "51.84"))
    said = checked("--replicas", "3").stdout
    assert "WARNING: 3 replicas without shards of their own cost 3 times as much; --shard=ordinal/3" in said
    assert "A budget is one replica's: 3 of them may use 3 times as much." in said
    assert "WARNING" not in checked().stdout


def test_shards_do_not(checked: Call) -> None:
    """Each target is one replica's; how many each has is said, and what nobody probes."""
    assert checked.costs("--replicas", "3", "--shard", "ordinal/3") == checked.costs()
    said = checked("--replicas", "3", "--shard", "ordinal/3").stdout
    shares = [sum(shard_of(name, 3) == index for name in NAMES) for index in range(3)]
    assert f"Targets of the shards: {', '.join(map(str, shares))}." in said
    assert "WARNING" not in said
    assert "A budget is one replica's: each counts its own targets." in said
    few = checked("--replicas", "2", "--shard", "ordinal/3").stdout
    assert f"WARNING: 2 replicas of 3 shards: {shares[2]} targets are probed by nobody" in few


def test_one_shard_shows_its_own_targets(checked: Call) -> None:
    """And replicas of the same shard multiply again."""
    mine = {name for name in NAMES if shard_of(name, 2) == 1}
    assert set(checked.costs("--shard", "1/2")) == mine
    assert checked.costs("--shard", "1/2", "--replicas", "2")[min(mine)][0] == "2"
    assert "WARNING: 2 replicas without shards of their own" in checked("--shard", "1/2", "--replicas", "2").stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--shard", "2/2"), "--shard: '2/2': shard 2 of 2 does not exist"),
        (("--shard", "ordinal/2", "--replicas", "3"), "replica 2 does not start; as many replicas as shards"),
    ],
)
def test_what_cannot_be_is_refused(checked: Call, flags: tuple[str, ...], message: str) -> None:
    """With exit code 1."""
    done = checked(*flags)
    assert done.exit_code == 1
    assert message in done.output
