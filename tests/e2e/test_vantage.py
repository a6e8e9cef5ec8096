"""Two probers of one target in different places, each with its `--vantage`."""

import subprocess
import sys
from pathlib import Path

from prober.cli.exit_codes import ExitCode
from tests.processes import Daemon, Mock, get, until

CONFIG = """
defaults: {{rate: 5/s, max_send_lag: 5s, warmup: 0}}
slos: {{quick: {{signal: ttft, threshold: 2s, objective: 90%}}}}
targets: [{{name: one, url: '{url}', probes: [{{slos: [quick]}}]}}]
"""


def test_the_series_of_one_target_are_told_apart_by_vantage(tmp_path: Path) -> None:
    """On the page in both text forms; the prober's own series have no vantage, nor has anything of a prober without one."""
    (tmp_path / "b").mkdir()
    with Mock(tmp_path / "mock.log", "--ttft", "5ms", "--itl", "1ms") as mock:
        config = CONFIG.format(url=mock.url)
        with Daemon(tmp_path, config, "--vantage=eu-west-1") as paris, Daemon(tmp_path / "b", config) as plain:
            until(lambda: plain.value("llmslo_ttft_seconds_count", target="one") > 2, "probes of the one without")
            until(lambda: paris.value("llmslo_ttft_seconds_count", target="one") > 2, "probes of the one with")
            assert paris.value("llmslo_ttft_seconds_count", vantage="eu-west-1", target="one") > 2
            for form in ("text/plain", "application/openmetrics-text;version=1.0.0"):
                lines = [line for line in get(f"{paris.url}/metrics", Accept=form).splitlines() if line[0] != "#"]
                assert all(('vantage="eu-west-1"' in line) == ('target="' in line) for line in lines)
            assert "vantage" not in get(f"{plain.url}/metrics")


def test_a_vantage_that_is_no_name_ends_the_start() -> None:
    """With an example of one that is."""
    command = [sys.executable, "-m", "prober", "run", "--vantage", "$(NODE_NAME)"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.WRONG_CALL
    assert "prober: --vantage: '$(NODE_NAME)' is not the name of a place" in ended.stderr
    assert "such as eu-west-1" in ended.stderr
