"""Detects that the answers to one check of one workload are wrong more often than before. Without I/O: `step` takes each answer.

The baseline is a share of wrong answers with exact binomial bounds, for the effective number of independent answers. The test
bets against the upper bound with the rivals of `statistics.sequential_test` and sums each bet over all possible starts (Shiryaev and
Roberts; Shin, Ramdas, Rinaldo, "E-detectors", New England Journal of Statistics in Data Science 2, 2023). As long as each answer is
wrong with at most the bound's probability, given all before it, the sum needs at least `threshold` answers on average to reach
`threshold`. If wrong answers cluster, bets are tempered by 1 ÷ dispersion; this has no proof, `bench/answers.py` measures it.

A change must last. After the first evidence PAUSE_ANSWERS answers are skipped; then Wald's test decides with the best bet so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from prober.statistics.quantiles import share_bounds
from prober.statistics.sequential_test import ERROR, RIVALS_ABOVE, RIVALS_BELOW, Rivals
from prober.storage.saved_rows import Moment

Event = Literal["learnt", "alarm", "recovered", "improved", "accepted"]
Cause = Literal["engine_change", "unknown"]  # engine_change: the rise began near a change of the engine

# Half of the false alarm budget is for the test, half for a wrong bound of the baseline.
FALSE_ALARM_MARGIN = 2.0
MIN_ANSWERS, MIN_LEARNING_S, MAX_LEARNING_S = 200, 86_400.0, 7 * 86_400.0
MIN_ANSWERS_BEFORE_CHANGE = 100  # enough for a baseline if the engine changes during learning
PAUSE_ANSWERS = 20  # a burst of wrong answers may last this long
MAX_GROUPS, MIN_GROUPS = 1_024, 16  # of the baseline's answers: stored (an even number), and needed for a variance
MAX_COUNTED_WRONG = 300  # in exact bounds, which get slower: their width is then a fifth of the share
LOG_LIKELY = 3.0  # a change of the engine can be the start if its log likelihood is this close to the best (95%)


@dataclass(slots=True)
class Answers:
    """Right and wrong answers, counted in the order of time.

    groups: number of wrong answers in each group of `size` successive answers; the last group may be smaller
    adopted: number of answers when they last became the baseline; 0 if they never did
    """

    begun: Moment
    count: int = 0
    size: int = 1
    groups: list[int] = field(default_factory=list)
    adopted: int = 0

    def add(self, wrong: bool) -> None:
        """Count the next answer, in the order of time."""
        if self.count % self.size == 0:
            if len(self.groups) == MAX_GROUPS:
                self.groups, self.size = _merged(self.groups), 2 * self.size
            self.groups.append(0)
        self.groups[-1] += wrong
        self.count += 1


def _merged(groups: Sequence[int]) -> list[int]:
    return [groups[at] + groups[at + 1] for at in range(0, len(groups) - 1, 2)]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The normal share of wrong answers.

    low, high: bounds of the share, each wrong with probability ERROR
    dispersion: variance of wrong answers per group ÷ the variance of independent answers, at least 1
    """

    count: int
    wrong: int
    low: float
    high: float
    dispersion: float


def baseline_of(answers: Answers) -> Baseline:
    """Compute the baseline from at least one answer."""
    count, wrong, size = answers.count, sum(answers.groups), answers.size
    share, dispersion, worst, groups = wrong / count, 1.0, 0.0, answers.groups[: count // size]
    while len(groups) >= MIN_GROUPS and 0 < share < 1:
        worst = max(groups) / size
        mean = sum(groups) / len(groups)
        variance = sum((group - mean) ** 2 for group in groups) / (len(groups) - 1)
        dispersion = max(dispersion, variance / (size * share * (1 - share)))
        groups, size = _merged(groups), 2 * size
    scale = min(1 / dispersion, MAX_COUNTED_WRONG / max(1, wrong))
    low, high = share_bounds(round(wrong * scale), max(1, round(count * scale)), ERROR)
    return Baseline(count, wrong, low, max(high, worst), dispersion)


@dataclass(slots=True)
class Bet:
    """A bet on one higher share of wrong answers (a rival): its log evidence since its best start, which was at `since_unix_s`.

    count, wrong: answers since that start
    since_change: log evidence since the engine's last change; None without a known change
    """

    log_evidence: float = 0.0
    since_unix_s: float = 0.0
    count: int = 0
    wrong: int = 0
    since_change: float | None = None


@dataclass(slots=True)
class Rise:
    """A suspected or proved rise of the share of wrong answers.

    logs: log evidence of each rival; the test uses the bet of the strongest rival
    since_unix_s: estimated start; count, wrong: answers since then
    change: the engine's change (Unix seconds, text) near the start; None if there was none
    paused: answers since the first evidence, up to PAUSE_ANSWERS
    log_evidence: evidence of the deciding test; during an alarm, evidence that the rise is over
    raised: when the alarm began; None while the rise is only suspected
    """

    logs: list[float]
    since_unix_s: float
    count: int
    wrong: int
    change: tuple[float, str] | None
    paused: int = 0
    log_evidence: float = 0.0
    raised: Moment | None = None


@dataclass(slots=True)
class AnswerChange:
    """State of the detection for one check.

    asked: digest of the questions and their check; a baseline is valid only for these
    learning: answers collected for the next baseline; None once the baseline is final
    better: for each rival, log evidence since its best start that fewer answers are wrong than in the baseline
    change: the engine's last change (Unix seconds, text)
    """

    asked: str = ""
    learning: Answers | None = None
    baseline: Baseline | None = None
    bets: list[Bet] = field(default_factory=lambda: [Bet() for _ in RIVALS_ABOVE])
    better: list[float] = field(default_factory=lambda: [0.0] * len(RIVALS_BELOW))
    rise: Rise | None = None
    change: tuple[float, str] | None = None

    @property
    def alarm(self) -> Rise | None:
        """The rise that raised an alarm; None if there is none, or if it is only suspected."""
        return self.rise if self.rise is not None and self.rise.raised is not None else None

    def engine_changed(self, text: str, now: Moment, *, is_restart: bool) -> None:
        """Record a change of the engine. Unless it is a restart, the answers before it make the final baseline."""
        self.change = (now.unix_s, text)
        for bet in self.bets:
            bet.since_change = 0.0
        if self.learning is None or self.alarm is not None or is_restart:
            return
        if self.learning.count >= MIN_ANSWERS_BEFORE_CHANGE:
            self.baseline = baseline_of(self.learning)
        self.learning = Answers(now) if self.baseline is None else None

    def step(self, wrong: bool, now: Moment, threshold: float, accept_after_s: float) -> Event | None:
        """Process an answer. threshold: smallest allowed mean number of answers between false suspicions"""
        if self.learning is None and self.baseline is None:
            self.learning = Answers(now)
        if (event := self._learn(wrong, now, accept_after_s)) is not None or self.baseline is None:
            return event
        logs = _logs(wrong, RIVALS_ABOVE, self.baseline.high, self.baseline.dispersion)
        for bet, log in zip(self.bets, logs, strict=True):
            bet.since_change = None if bet.since_change is None else bet.since_change + log
        if self.rise is not None:
            return self._judge(self.rise, wrong, logs, now, threshold)
        for bet, log in zip(self.bets, logs, strict=True):
            if bet.log_evidence <= 0.0:
                bet.log_evidence, bet.since_unix_s, bet.count, bet.wrong = 0.0, now.unix_s, 0, 0
            bet.log_evidence += log
            bet.count, bet.wrong = bet.count + 1, bet.wrong + wrong
        if _mean([bet.log_evidence for bet in self.bets], RIVALS_ABOVE) >= threshold:
            total = [bet.log_evidence for bet in self.bets]
            bet = self.bets[total.index(max(total))]
            is_likely = bet.since_change is not None and bet.since_change >= bet.log_evidence - LOG_LIKELY
            self.rise = Rise(total, bet.since_unix_s, bet.count, bet.wrong, self.change if is_likely else None)
            self._forget_evidence()
            return None
        if self.learning is not None:
            return None
        logs = _logs(wrong, RIVALS_BELOW, self.baseline.low, self.baseline.dispersion)
        self.better = [max(0.0, before + log) for before, log in zip(self.better, logs, strict=True)]
        if _mean(self.better, RIVALS_BELOW) >= threshold:
            self.learning = Answers(now)
            self._forget_evidence()
            return "improved"
        return None

    def _learn(self, wrong: bool, now: Moment, accept_after_s: float) -> Event | None:
        """Collect an answer. The baseline is computed after a day, each time the answers double, and finally after a week."""
        answers = self.learning
        if answers is None:
            return None
        answers.add(wrong)
        age_s, is_first = answers.begun.age_ns(now) / 1e9, answers.adopted == 0
        if self.alarm is not None:
            is_due = age_s >= accept_after_s
        else:
            is_due = age_s >= MAX_LEARNING_S or (age_s >= MIN_LEARNING_S and answers.count >= 2 * answers.adopted)
        if not is_due or answers.count < MIN_ANSWERS:
            return None
        event: Event = "learnt" if self.alarm is None else "accepted"
        self.baseline, answers.adopted = baseline_of(answers), answers.count
        if self.alarm is not None:
            self.rise = None
        if age_s >= MAX_LEARNING_S:
            self.learning = None
        if not is_first:
            return None
        self._forget_evidence()
        return event

    def _judge(self, rise: Rise, wrong: bool, logs: Sequence[float], now: Moment, threshold: float) -> Event | None:
        """Decide whether a suspected rise lasts, or whether a rise with an alarm is over."""
        log = logs[rise.logs.index(max(rise.logs))]
        rise.logs = [before + more for before, more in zip(rise.logs, logs, strict=True)]
        rise.count, rise.wrong = rise.count + 1, rise.wrong + wrong
        if rise.raised is not None:
            rise.log_evidence = max(0.0, rise.log_evidence - log)
            if rise.log_evidence < math.log(threshold / ERROR):  # makes false ends as rare as false alarms
                return None
            self.rise = self.learning = None
            return "recovered"
        if rise.paused < PAUSE_ANSWERS:
            rise.paused += 1
            return None
        rise.log_evidence += log
        if rise.log_evidence >= -math.log(ERROR):
            rise.raised, rise.log_evidence, self.learning = now, 0.0, Answers(now)
            return "alarm"
        if rise.log_evidence <= math.log(ERROR):
            self.rise = None
        return None

    def _forget_evidence(self) -> None:
        self.bets = [Bet(since_change=bet.since_change) for bet in self.bets]
        self.better = [0.0] * len(RIVALS_BELOW)


def threshold(rate_per_s: float, false_alarms_per_s: float) -> float:
    """Evidence that starts a suspicion, for a rate of false alarms. Of false suspicions, a share ERROR becomes alarms."""
    return max(1 / ERROR, FALSE_ALARM_MARGIN * ERROR * rate_per_s / false_alarms_per_s)


def _logs(wrong: bool, rivals: Rivals, share: float, dispersion: float) -> list[float]:
    """Log evidence of an answer for each rival against the share of wrong answers, divided by `dispersion`."""
    against = [math.log1p((odds - 1) * share) for odds, _ in rivals]
    of_wrong = [(math.log(odds) if odds else -math.inf) if wrong else 0.0 for odds, _ in rivals]
    return [(log - lost) / dispersion for log, lost in zip(of_wrong, against, strict=True)]


def _mean(logs: Sequence[float], rivals: Rivals) -> float:
    """Weighted mean of the evidence of all rivals. logs: log evidence of each"""
    return sum(weight * math.exp(log) for log, (_, weight) in zip(logs, rivals, strict=True))
