"""A target behind a relay that holds answers back, and the same engine probed directly beside it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import Daemon, Mock, get, until

CONFIG = """
defaults: {{rate: 4/s, max_in_flight: 200, connect_lead: 100ms, warmup: 1}}
slos:
  tpot: {{signal: tpot, threshold: 50ms, objective: 90%}}
  ok: {{signal: success, objective: 90%}}
targets:
  - {{name: direct, url: "http://127.0.0.1:{direct}"}}
  - {{name: held, url: "http://127.0.0.1:{held}"}}
"""


@contextmanager
def relay(port: int, policy: str) -> Iterator[int]:
    """Its port."""
    command = [sys.executable, "-m", "tests.relay", str(port), policy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_a_gateway_that_buffers_is_named_and_its_tpot_is_not_0(tmp_path: Path) -> None:
    """Series, page, API, events and SLOs of the target behind it say so; the target beside it is unaffected."""
    with (
        Mock(tmp_path / "mock", "--ttft", "20ms", "--itl", "30ms") as mock,
        relay(mock.port, "all") as port,
        Daemon(tmp_path, CONFIG.format(direct=mock.port, held=port)) as daemon,
    ):
        until(lambda: daemon.value("llmslo_probes_total", target="held") >= 12, "some probes")
        until(lambda: daemon.value("llmslo_target_buffered", target="held") == 1, "the verdict")
        page = get(daemon.url + "/metrics")
        assert 'llmslo_target_buffered{target="direct"} 0' in page
        for name in ("tpot", "itl"):
            assert daemon.value(f"llmslo_{name}_seconds_count", target="held") == 0
            assert daemon.value(f"llmslo_{name}_seconds_count", target="direct") > 0
        assert daemon.value("llmslo_slo_events_total", target="held", slo="tpot") == 0
        assert daemon.value("llmslo_slo_events_total", target="direct", slo="tpot") > 0

        targets = {target["name"]: target for target in json.loads(get(daemon.url + "/api/v1/targets"))["data"]}
        assert (targets["held"]["buffered"], targets["direct"]["buffered"]) == (True, False)
        tpot = next(slo for slo in targets["held"]["slos"] if slo["slo"] == "tpot")
        assert tpot["state"] == "no_data"
        assert "all content arrived at once" in tpot["why"]
        probes = json.loads(get(daemon.url + "/api/v1/probes?target=held&limit=1"))["data"]
        assert (probes[0]["tpot_s"], probes[0]["itl_s"], probes[0]["outcome"]) == (None, [], "ok")
        assert "probe_tpot_seconds" not in get(daemon.url + "/probe?target=held")

        held, direct = (get(f"{daemon.url}/?target={name}") for name in ("held", "direct"))
        assert "state: ready, buffered" in held
        assert "answers arrived all at once" in held
        assert "not measurable here" in held
        assert "buffered" not in direct
        events = json.loads(get(daemon.url + "/api/v1/events"))["data"]
        assert [event["target"] for event in events if event["text"].startswith("buffered: ")] == ["held"]
