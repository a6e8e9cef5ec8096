"""A continuous-batching engine in virtual time, its faults, its load, and what a prober sees of it.

    from random import Random
    from prober.simulation.faults import Slow
    from prober.simulation.load import AzureConversation
    from prober.simulation.parameters import Parameters
    from prober.simulation.probed import probed

    day = 86_400.0
    load = AzureConversation(rate_per_s=1.0, daily_amplitude=0.3)
    slower = Slow(1.3, start_s=7 * day)
    for seen in probed(Parameters(), load, Random(1), start_unix_s=0.0, duration_s=8 * day, faults=[slower]):
        print(seen.unix_s, seen.ttft_s, seen.itl_p99_s, seen.tpot_s, seen.load)

`engine` serves requests, submitted in the order of time, and keeps their truth; `probed` puts a prober's small requests among a
load's. Everything is a function of its arguments and of the random generators among them: no clock, no files.
"""
