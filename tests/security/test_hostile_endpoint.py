"""Every attack of `attacking_endpoint` on one daemon at once, each by a target of its own, beside a good target.

`bench.hostile` measures them one by one.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.processes import Daemon, Mock, get, until
from tests.scripted import threaded
from tests.security.attacking_endpoint import ATTACKS, Server

ROOT = Path(__file__).parent.parent.parent
MIN_PROBES = 2  # of each attack, after which the good target is judged


def short(attack: str) -> str:
    return attack.removeprefix("endpoint: ")


@contextmanager
def attacking() -> Iterator[dict[str, int]]:
    """The ports of servers that attack all the time, by attack."""
    with ExitStack() as servers:
        ports = {}
        for name, reply in ATTACKS.items():
            server = Server(reply)
            server.attacking = True
            ports[name] = int(servers.enter_context(threaded(server.answer)).rpartition(":")[2])
        yield ports


def config(mock: str, ports: dict[str, int]) -> str:
    """The good target, and one for each attack, with a budget that ten answers as claimed would use up."""
    workloads, targets = ["plain: {prompt_tokens: 20, output_tokens: 16}"], []
    for number, (name, port) in enumerate(ports.items()):
        keys = ATTACKS[name].config or "prompt_tokens: 20, output_tokens: 16"
        first_token_s = 2 if short(name) == "silence" else 60  # a busy machine answers late
        workloads.append(f"w{number}: {{{keys}}}")
        targets.append(
            f'{{name: "{short(name)}", url: "http://127.0.0.1:{port}", rate: 0.3/s, metrics: {{interval: 5s}}, '
            f"timeouts: {{first_token: {first_token_s}s}}, budget: {{tokens_per_day: 10M}}, probes: [{{workload: w{number}}}]}}"
        )
    targets.append(f'{{name: good, url: "{mock}", rate: 4/s, probes: [{{workload: plain}}]}}')
    defaults = "defaults: {warmup: 0, arrivals: constant, max_in_flight: 100}\n"
    return (
        defaults + f"workloads: {{{', '.join(workloads)}}}\ntargets:\n" + "".join(f"  - {each}\n" for each in targets)
    )


def trusts(daemon: Daemon) -> bool:
    return daemon.value("llmslo_trusted", target="good") == 1


def test_each_attack_is_its_own_fault_and_the_good_target_is_measured(tmp_path: Path) -> None:
    """No outcome of a neighbour, no trust in the prober, no budget and no task is lost by any of them.

    A busy machine may take the trust, but then also from a prober that has the good target alone.
    """
    (tmp_path / "alone").mkdir()
    with (
        attacking() as ports,
        Mock(tmp_path / "mock", "--ttft=5ms", "--itl=1ms") as mock,
        Daemon(tmp_path, config(mock.url, ports)) as daemon,
        Daemon(tmp_path / "alone", config(mock.url, {})) as alone,
    ):
        outcomes: dict[str, set[str]] = {}

        def are_all_probed() -> bool:
            probes = json.loads(get(f"{daemon.url}/api/v1/probes?limit=10000"))["data"]
            counts: dict[str, int] = {}
            for probe in probes:
                counts[probe["target"]] = counts.get(probe["target"], 0) + (probe["outcome"] != "invalid")
                assert "fault" not in probe["detail"], probe
                if probe["outcome"] != "invalid":  # others use this machine, too
                    outcomes.setdefault(probe["target"], set()).add(probe["outcome"])
            return all(counts.get(short(name), 0) >= MIN_PROBES for name in ATTACKS) and counts.get("good", 0) >= 30

        until(are_all_probed, "probes of every attack")
        assert outcomes.pop("good") == {"ok"}
        assert outcomes == {short(name): {reply.outcome} for name, reply in ATTACKS.items()}
        assert daemon.value("llmslo_task_failures_total") == 0
        assert daemon.value("llmslo_budget_remaining_ratio", target="a billion tokens claimed") > 0.99
        assert daemon.value("llmslo_engine_up", target="page of 250,000 series") == 0
        until(lambda: trusts(daemon) or not trusts(alone), "the trust that a prober without attackers has")
        assert daemon.stop() == 0
    assert "please report" not in (tmp_path / "log").read_text()


ROWS = dict(
    re.findall(
        r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$",
        (ROOT / "bench/figures.md").read_text().partition("### Attacks of an endpoint")[2].partition("\n## ")[0],
        re.MULTILINE,
    )
)


@pytest.mark.parametrize("attack", [short(name) for name in ATTACKS])
def test_each_attack_has_a_row_whose_tests_exist(attack: str) -> None:
    """In bench/figures.md; the benchmark, the test above and the document list the same attacks."""
    named = re.findall(r"`(?:(tests/[\w/]+\.py)|(test_\w+))`", ROWS[attack])
    assert named
    for path, test in named:
        if path:
            assert (ROOT / path).exists(), path
        else:
            assert any(f"def {test}(" in file.read_text() for file in (ROOT / "tests").rglob("test_*.py")), test
