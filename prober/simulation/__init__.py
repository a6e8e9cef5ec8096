"""A continuous-batching engine in virtual time, with faults, load and probes.

    from random import Random
    from prober.simulation.faults import Slow
    from prober.simulation.load import AzureConversation
    from prober.simulation.parameters import Parameters
    from prober.simulation.probe_samples import simulate_probes

    day = 86_400.0
    load = AzureConversation(rate_per_s=1.0, daily_amplitude=0.3)
    slower = Slow(1.3, start_s=7 * day)
    for probe in simulate_probes(Parameters(), load, Random(1), start_unix_s=0.0, duration_s=8 * day, faults=[slower]):
        print(probe.unix_s, probe.ttft_s, probe.itl_p99_s, probe.tpot_s, probe.load)

`engine` serves requests, submitted in order of time, and records their true times; `probe_samples` adds a prober's small
requests to a load. Results depend only on the arguments, including random generators; clock and files are not used.
"""
