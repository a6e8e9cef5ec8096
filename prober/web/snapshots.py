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
from prober.web.api_types import (
    ConcernAnswer,
    EndedProbe,
    EventAnswer,
    ProblemAnswer,
    Snapshot,
    TargetAnswer,
    dumped,
)
from prober.web.page.view import Concern, PageView, TargetView, concern, headline
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
        clock = self._context.clock
        targets, concerns, latest = list[bytes](), list[bytes](), list[ProbeResult]()
        views = await self._views.targets()
        for view in views:
            targets.append(dumped(TargetAnswer.model_validate(view)))
            concerns.append(dumped(_concern(view)))
            latest += view.probes
            await asyncio.sleep(0)
        parts = {"targets": targets, "concerns": concerns}
        parts["probes"] = await self._new_probes(latest)
        parts["events"] = [dumped(EventAnswer.model_validate(event)) for event in self._new_events()]
        frame = Snapshot(
            time=round(clock.unix_s(), 3),
            prober=__version__,
            trusted=self._context.trust.trusted(clock.now_ns()),
            headline=_headline(clock.unix_s(), views).text,
            problems=[ProblemAnswer.model_validate(problem) for problem in self._views.problems.values()],
            **{name: [] for name in parts},
        )
        head = dumped(frame, without=parts.keys())
        lists = (b'"%s": [%s]' % (name.encode(), b", ".join(items)) for name, items in parts.items())
        return b"%s, %s}\n" % (head.removesuffix(b"}"), b", ".join(lists))

    async def _new_probes(self, latest: Sequence[ProbeResult]) -> list[bytes]:
        """Those of the latest probes that the snapshot before did not have."""
        new = sorted((probe for probe in latest if _key(probe) not in self._probes), key=_due_ns)
        self._probes = {_key(probe) for probe in latest}
        pieces = []
        for probe in new:
            pieces.append(dumped(EndedProbe.model_validate(probe)))
            await asyncio.sleep(0)
        return pieces

    def _new_events(self) -> list[TargetEvent]:
        new = []
        for event in self._context.events.latest():
            if event is self._last_event:
                break
            new.append(event)
        if new:
            self._last_event = new[0]
        return new[::-1]


def _concern(view: TargetView) -> ConcernAnswer:
    fact = concern(view)
    return ConcernAnswer(target=view.name, rank=fact.rank, kind=fact.kind, text=fact.text, detail=fact.detail)


def _headline(unix_s: float, views: Sequence[TargetView]) -> Concern:
    concerns = [(view.key, view.name, concern(view)) for view in views]
    return headline(PageView(unix_s, (), concerns, len(views), len(views), (), ()))


def _key(probe: ProbeResult) -> _Key:
    return probe.target, probe.request_id, probe.timeline.intended_ns


def _due_ns(probe: ProbeResult) -> int:
    return probe.timeline.intended_ns
