"""The past of a demo target: results of three days of probes of a simulated engine, learned and stored as by the daemon."""

import time
from collections.abc import Iterable
from contextlib import closing
from random import Random

from prober.cli.scenes import DRIFT_LOAD_PER_S, DRIFT_PROBES_PER_S, DRIFT_STEP_RATIO
from prober.features.drift.blocks import DAY_S
from prober.features.drift.declaration import FEATURE
from prober.features.drift.detector import step
from prober.features.drift.monitor import name_of_state
from prober.features.drift.serialization import dump
from prober.features.drift.state import Observation, Settings, new_state
from prober.simulation.faults import Slow
from prober.simulation.load import AzureConversation
from prober.simulation.parameters import Parameters
from prober.simulation.probe_samples import simulate_probes
from prober.storage.store import Store

PAST_S = 3.1 * DAY_S  # the first settled baseline covers three days
SEED = 1


def store_past(folder: str, targets: Iterable[str]) -> None:
    """Store what a prober would have learned about these targets' workload `probe`. Their engines are of one kind. Takes seconds."""
    settings = Settings(DRIFT_PROBES_PER_S)
    ttft, itl = new_state(settings), new_state(settings)
    now_unix_s = time.time()
    load = AzureConversation(DRIFT_LOAD_PER_S, daily_amplitude=0.0)
    slow = (Slow(DRIFT_STEP_RATIO),)
    for probe in simulate_probes(
        Parameters(), load, Random(SEED), now_unix_s - PAST_S, PAST_S, DRIFT_PROBES_PER_S, slow
    ):
        step(ttft, Observation(probe.unix_s, probe.ttft_s, probe.load))
        step(itl, Observation(probe.unix_s, probe.itl_p99_s, probe.load))
    rows = [
        (name_of_state(target, ("probe", signal)), dump(state))
        for target in targets
        for signal, state in (("ttft", ttft), ("itl", itl))
    ]
    with closing(Store(folder)) as store:
        store.save(FEATURE.saved, rows, now_unix_s)
