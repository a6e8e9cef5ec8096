"""All probed targets. A new configuration keeps unchanged targets and their statistics.

A changed target drains, is removed, and returns as after a restart of the prober.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from random import Random
from typing import TypeVar

from prober.config.target import TargetSpec
from prober.measure.target_state import TargetEvent
from prober.net.endpoint import BadEndpoint
from prober.probing.history import MAX_TOLD_APART, FirstAnswers
from prober.probing.observer import TargetObserver
from prober.probing.replicas import Shard, shard_of
from prober.probing.target import Target
from prober.probing.target_runner import RunnerContext, TargetRunner

START_GAP_S, START_WITHIN_S = 0.02, 60.0  # start of many targets: 50 per second, or all within a minute
FIRST_ANSWERS_S = 90.0  # after the begin of many targets, until the event about those that have answered
Observer = TypeVar("Observer", bound=TargetObserver)
log = logging.getLogger(__name__)


class Fleet:
    """The runners of all targets of one shard. runners: runner by target key"""

    def __init__(self, context: RunnerContext, shard: Shard | None = None) -> None:
        self.context = context
        self.shard = shard or Shard()
        self.rng = Random()
        self.runners: dict[str, TargetRunner] = {}
        self._desired: dict[str, TargetSpec] = {}
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._next_start_s = 0.0
        self._elsewhere: set[str] = set()  # keys of other shards' targets

    async def wait_until_stopped(self) -> None:
        """Wait until all removed and changed targets have stopped."""
        while self._changing:
            await asyncio.wait(list(self._changing.values()))

    async def change(self, specs: Iterable[TargetSpec], drain_s: float) -> None:
        """Start and stop targets to match `specs`. Removed and changed targets stop in the background, within `drain_s` seconds.

        Only one call at a time is allowed. Each turn of the event loop creates one target, because hundreds take a second; their starts
        are spread.
        """
        desired: dict[str, TargetSpec] = {}
        elsewhere: set[str] = set()
        for spec in specs:
            if self.shard.has(spec.key):
                desired[spec.key] = spec
            else:
                elsewhere.add(spec.key)
        self._desired, self._elsewhere = desired, elsewhere
        stale = {key for key, runner in self.runners.items() if key not in self._changing and self._is_stale(runner)}
        begin = [key for key in desired if key not in self.runners or key in stale]
        first_answers = None
        if len(begin) > MAX_TOLD_APART:
            first_answers = FirstAnswers(begin, self._record)
            asyncio.get_running_loop().call_later(FIRST_ANSWERS_S, first_answers.end)
        for key in stale:
            self._changing[key] = asyncio.create_task(self._change_one(key, drain_s, first_answers))
        made: list[TargetRunner] = []
        for key in begin:
            if key not in self.runners and key not in stale:
                made += filter(None, [self._make(desired[key], first_answers)])
                await asyncio.sleep(0)
        for runner in made:
            runner.start(self._pause_s(len(made)))

    async def stop(self, drain_s: float) -> None:
        """Stop all probing within `drain_s` seconds."""
        changing = list(self._changing.values())
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)
        await asyncio.gather(*(runner.stop(drain_s) for runner in list(self.runners.values())))

    def find(self, name: str) -> TargetRunner | None:
        """The target with this label `name` in its series; None if there is none."""
        return self.runners.get(name)

    def observers(self, kind: type[Observer]) -> Iterator[Observer]:
        """Yield the observers of this kind for all targets."""
        for runner in list(self.runners.values()):
            if (observer := runner.find(kind)) is not None:
                yield observer

    def elsewhere(self, name: str) -> Shard | None:
        """The other shard with the target of this name; None if there is none."""
        if name not in self._elsewhere:
            return None
        return Shard(shard_of(name, self.shard.count), self.shard.count)

    def is_awaited(self, name: str) -> bool:
        """True if the target with this name is configured and may still lack a runner."""
        return name in self._desired

    @property
    def configured(self) -> int:
        """Number of configured targets of all shards."""
        return len(self._desired) + len(self._elsewhere)

    def _is_stale(self, runner: TargetRunner) -> bool:
        desired = self._desired.get(runner.spec.key)
        return desired is not runner.spec and desired != runner.spec

    async def _change_one(self, key: str, drain_s: float, first_answers: FirstAnswers | None) -> None:
        """Restart or remove a target until it matches the configuration."""
        try:
            while (runner := self.runners.get(key)) is not None and self._is_stale(runner):
                is_ending = runner.target.is_ending
                runner.target.is_ending = is_ending or key not in self._desired
                await runner.stop(drain_s)
                async with self._one_at_a_time:
                    del self.runners[key]
                    runner.remove()
                    spec = self._desired.get(key)
                    after = self._make(spec, first_answers, runner.target) if spec is not None else None
                    await asyncio.sleep(0)
                if after is not None:
                    after.end(is_ending)
                    after.start(self._pause_s(len(self._changing)))
        finally:
            del self._changing[key]

    def _make(
        self, spec: TargetSpec, first_answers: FirstAnswers | None, former: Target | None = None
    ) -> TargetRunner | None:
        """Create a runner without starting it; None, with a log line, if the target's certificates cannot be used."""
        try:
            runner = TargetRunner(spec, self.context, former)
        except BadEndpoint as problem:
            log.error("target=%s is not probed: %s", spec.key, problem)
            return None
        runner.first_answers = first_answers
        self.runners[spec.key] = runner
        return runner

    def _record(self, text: str) -> None:
        """Record an event of several targets."""
        self.context.events.record(log, TargetEvent(self.context.clock.unix_s(), "", "state", text))

    def _pause_s(self, among: int) -> float:
        """Seconds before the next target's start, so that `among` targets do not begin at the same time."""
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._next_start_s)
        self._next_start_s = begin_s + min(START_GAP_S, START_WITHIN_S / among)
        return begin_s - now_s if begin_s - now_s <= START_WITHIN_S else self.rng.uniform(0.0, START_WITHIN_S)
