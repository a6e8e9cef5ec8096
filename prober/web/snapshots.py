"""Snapshots of all targets with what happened between them: the lines of `prober watch --json`, which its screen is drawn from too.

The values are those of the API: `targets` is the data of `/api/v1/targets`, and a probe has the fields of `/api/v1/probes` that fit
a line. A field is added without a new version; one that changes its meaning or goes raises it.
"""

import asyncio
from collections.abc import Sequence

from prober import __version__
from prober.measure.event import TargetEvent
from prober.measure.result import ProbeResult
from prober.probing.target_runner import RunnerContext
from prober.web.api_types import ConcernAnswer, EndedProbe, EventAnswer, ProblemAnswer, Snapshot, TargetAnswer, dumped
from prober.web.page.view import Concern, PageView, concern, headline
from prober.web.views import Views

_Key = tuple[str, str, int]


class Snapshots:
    """Takes one snapshot after the other. Every step of it takes well below a millisecond, and then the event loop is released."""

    def __init__(self, views: Views, context: RunnerContext) -> None:
        self._views, self._context = views, context
        self._probes: set[_Key] = set()  # that the snapshot before had, or could have had
        self._last_event: TargetEvent | None = None

    async def take(self) -> bytes:
        """The next snapshot as one line of JSON."""
        clock, views = self._context.clock, await self._views.targets()
        targets, facts, seen, new = list[bytes](), list[Concern](), set[_Key](), list[ProbeResult]()
        for view in views:
            targets.append(dumped(TargetAnswer.model_validate(view)))
            facts.append(concern(view))
            keys = [(probe.target, probe.request_id, probe.timeline.intended_ns) for probe in view.probes]
            new += [probe for key, probe in zip(keys, view.probes, strict=True) if key not in self._probes]
            seen.update(keys)
            await asyncio.sleep(0)
        self._probes = seen
        parts = {
            "targets": targets,
            "concerns": [
                dumped(
                    ConcernAnswer(target=view.name, rank=fact.rank, kind=fact.kind, text=fact.text, detail=fact.detail)
                )
                for view, fact in zip(views, facts, strict=True)
            ],
            "probes": await _ended(new),
            "events": [dumped(EventAnswer.model_validate(event)) for event in self._new_events()],
        }
        concerns = [(view.key, view.name, fact) for view, fact in zip(views, facts, strict=True)]
        trusted = self._context.trust.trusted(clock.now_ns())
        frame = Snapshot(
            time=round(clock.unix_s(), 3),
            prober=__version__,
            trusted=trusted,
            headline=headline(PageView(clock.unix_s(), (), concerns, len(views), len(views), (), (), trusted)).text,
            problems=[ProblemAnswer.model_validate(problem) for problem in self._views.problems.values()],
            **{name: [] for name in parts},
        )
        await asyncio.sleep(0)
        head = dumped(frame, without=parts.keys())
        lists = (b'"%s": [%s]' % (name.encode(), b", ".join(items)) for name, items in parts.items())
        return b"%s, %s}\n" % (head.removesuffix(b"}"), b", ".join(lists))

    def _new_events(self) -> list[TargetEvent]:
        new = []
        for event in self._context.events.latest():
            if event is self._last_event:
                break
            new.append(event)
        if new:
            self._last_event = new[0]
        return new[::-1]


async def _ended(probes: Sequence[ProbeResult]) -> list[bytes]:
    """The probes in the order of their due times."""
    pieces = []
    for probe in sorted(probes, key=lambda probe: probe.timeline.intended_ns):
        pieces.append(dumped(EndedProbe.model_validate(probe)))
        await asyncio.sleep(0)
    return pieces
