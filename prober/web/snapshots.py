"""Snapshots of all targets with what happened between them: the lines of `prober watch --json`, which its screen is drawn from too.

The values are those of the API: `targets` is the data of `/api/v1/targets`, and a probe has the fields of `/api/v1/probes` that fit
a line. A field is added without a new version; one that changes its meaning or goes raises it.
"""

import asyncio

from prober import __version__
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent
from prober.probing.target_runner import RunnerContext
from prober.web.api_types import EndedProbe, EventAnswer, dumped
from prober.web.targets import Snapshot, headline
from prober.web.views import Views

_Key = tuple[str, str, int]


class Snapshots:
    """Takes snapshots one after the other, in steps well below a millisecond, between which other tasks run."""

    def __init__(self, views: Views, context: RunnerContext) -> None:
        self._views, self._context = views, context
        self._probes: set[_Key] = set()  # that the snapshot before had, or could have had
        self._last_event: TargetEvent | None = None

    async def take(self) -> bytes:
        """The next snapshot as one line of JSON."""
        clock, targets = self._context.clock, await self._views.targets()
        lists: dict[str, list[bytes]] = {"targets": [], "concerns": [], "probes": [], "events": []}
        concerns, seen, new = [target.concern for target in targets], set[_Key](), list[ProbeResult]()
        for target, concern in zip(targets, concerns, strict=True):
            lists["targets"].append(dumped(target))
            lists["concerns"].append(dumped(concern))
            keys = [(probe.target, probe.request_id, probe.timeline.intended_ns) for probe in target.probes]
            new += [probe for key, probe in zip(keys, target.probes, strict=True) if key not in self._probes]
            seen.update(keys)
            await asyncio.sleep(0)
        self._probes = seen
        for probe in sorted(new, key=lambda probe: probe.timeline.intended_ns):
            lists["probes"].append(dumped(EndedProbe.model_validate(probe)))
            await asyncio.sleep(0)
        lists["events"] = [dumped(EventAnswer.model_validate(event)) for event in self._new_events()]
        trusted = self._context.trust.trusted(clock.now_ns())
        frame = Snapshot(
            time=round(clock.unix_s(), 3),
            prober=__version__,
            trusted=trusted,
            headline=headline(concerns, trusted=trusted)[1],
            problems=list(self._views.problems.values()),
            **{name: [] for name in lists},
        )
        await asyncio.sleep(0)
        head = dumped(frame, without=lists.keys())
        texts = (b'"%s": [%s]' % (name.encode(), b", ".join(items)) for name, items in lists.items())
        return b"%s, %s}\n" % (head.removesuffix(b"}"), b", ".join(texts))

    def _new_events(self) -> list[TargetEvent]:
        new = []
        for event in self._context.events.latest():
            if event is self._last_event:
                break
            new.append(event)
        if new:
            self._last_event = new[0]
        return new[::-1]
