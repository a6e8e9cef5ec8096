"""The stored comparison of two targets: differences between their figures, and limitations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from prober.results.refused_requests import RefusedRequests
from prober.results.result import Load, MeasuredTarget
from prober.results.result_file import KEY
from prober.results.strict_json import Reader, Unreadable, dumps
from prober.statistics.quantiles import Quantile
from prober.statistics.sequential_test import Evidence

Side = Literal["a", "b"]
INSIDE = "comparison"
FORMAT = 5


@dataclass(frozen=True, slots=True)
class Compared:
    """Difference of B from A on one axis (such as ttft_p50) at one rate, for one workload if there are several.

    rounds: number of rounds with a figure; fewer if rounds are pooled because they are dependent
    effect, lower, upper: B ÷ A − 1 (`ratio`) or B − A, with the 95% interval for this axis alone; None with too few rounds
    p: p-value of Wilcoxon's test; p_adjusted: adjusted for all axes and rates
    better: the better side; None if the adjusted p is above the error
    a, b: the quantile of each side over all rounds (latencies only)
    """

    axis: str
    rate_per_s: float
    ratio: bool
    rounds: int
    effect: float
    lower: float | None
    upper: float | None
    p: float
    p_adjusted: float
    better: Side | None
    a: Quantile | None = None
    b: Quantile | None = None
    workload: str = ""

    @property
    def place(self) -> str:
        """Workload, axis and rate as text, such as `chat ttft_p50 at 4/s`."""
        return f"{self.workload} {self.axis} at {self.rate_per_s:g}/s".lstrip()


@dataclass(frozen=True, slots=True)
class Risk:
    """How much an axis may worsen if one side replaces the other.

    move: "adopt": B replaces A; "go_back": A replaces B, which is the risk of a rollback
    margin: largest acceptable worsening, as a ratio; as a difference of shares if `ratio` is False
    least, most: bounds of the worsening, negative for an improvement; None with too few rounds. All bounds of a comparison hold
    together with its error
    evidence: that the worsening is within the margin: holds if `most` is within it, fails if `least` is beyond it
    """

    move: Literal["adopt", "go_back"]
    axis: str
    rate_per_s: float
    workload: str
    ratio: bool
    margin: float
    least: float | None
    most: float | None

    @property
    def place(self) -> str:
        """Workload, axis and rate as text, such as `chat ttft_p50 at 4/s`."""
        return f"{self.workload} {self.axis} at {self.rate_per_s:g}/s".lstrip()

    def interval(self) -> str:
        """Bounds of the worsening as text, such as `-3.2% to 8%`."""
        if self.least is None or self.most is None:
            return "too few rounds for a bound"
        return f"{amount(self.least, ratio=self.ratio)} to {amount(self.most, ratio=self.ratio)}"

    @property
    def evidence(self) -> Evidence:
        """Evidence that the worsening is within the margin: "holds", "fails" or "undecided"."""
        if self.most is not None and self.most <= self.margin:
            return "holds"
        return "fails" if self.least is not None and self.least > self.margin else "undecided"


@dataclass(frozen=True, slots=True)
class ComparedAnswers:
    """Result of one check of a workload's answers, for pairs of answers by both sides to the same request.

    only_a_wrong, only_b_wrong: pairs with one wrong answer; both_wrong: pairs with two
    p_adjusted: McNemar's exact test, adjusted for all checks
    better: the better side; None if the adjusted p is above the error
    """

    workload: str
    check: str
    pairs: int
    only_a_wrong: int
    only_b_wrong: int
    both_wrong: int
    p_adjusted: float
    better: Side | None

    def text(self) -> str:
        """Counts and verdict as a sentence without its full stop."""
        verdict = f"{self.better.upper()} is better" if self.better else "no difference is shown"
        return (
            f"answers of {self.workload} checked by {self.check}: of {self.pairs:,} pairs only A's is wrong in {self.only_a_wrong:,}, "
            f"only B's in {self.only_b_wrong:,}, both in {self.both_wrong:,}: {verdict} (exact McNemar, p {self.p_adjusted:.2g})"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two targets.

    load: requests sent to both sides; None if the sides cannot be compared
    error: largest probability that any claim is wrong
    differs: (property, value of A, value of B) for engine and model properties that differ
    remarks: limitations of the figures, as sentences
    refused: refused requests by side, with rate or stage; if they are too many, nothing is compared
    shares: B's output tokens/s per GPU and per dollar relative to A's, as sentences
    risks: one per axis and move; rollback: what going back to A needs and loses, written by a person
    configuration: configuration of the command, as JSON
    answers: one per check of answers, for two endpoints; these tests share a separate error
    """

    id: str
    started_unix_s: float
    ended_unix_s: float
    tool: str
    a: MeasuredTarget
    b: MeasuredTarget
    load: Load | None
    error: float
    compared: tuple[Compared, ...]
    differs: tuple[tuple[str, str, str], ...]
    remarks: tuple[str, ...]
    configuration: str | None = None
    shares: tuple[str, ...] = ()
    risks: tuple[Risk, ...] = ()
    rollback: str | None = None
    refused: Mapping[str, RefusedRequests] = field(default_factory=dict)
    answers: tuple[ComparedAnswers, ...] = ()

    @property
    def not_judged(self) -> list[str]:
        """Sides and stages with too many refused requests, as text; empty if the sides are compared."""
        return [f"{place}: {refused}" for place, refused in self.refused.items() if refused.is_too_many]


def with_refused(comparison: Comparison, refused: Mapping[str, RefusedRequests]) -> Comparison:
    """Add refused requests to the comparison. If they are too many, its figures are removed."""
    remarks = (*comparison.remarks, *(f"{place}: {part}" for place, part in refused.items()))
    comparison = replace(comparison, refused=refused, remarks=remarks)
    return replace(comparison, compared=(), answers=()) if comparison.not_judged else comparison


def risk_sentences(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on the measured risk of adopting B and of going back to A, and on what going back needs; none without risks."""
    for move, heading in _MOVES.items():
        parts = [
            f"{words} {', '.join(f'{risk.place} ({risk.interval()})' for risk in of_move)}"
            for evidence, words in _EVIDENCE.items()
            if (of_move := [risk for risk in comparison.risks if (risk.move, risk.evidence) == (move, evidence)])
        ]
        if parts:
            yield f"{heading}, at most {margins(comparison.risks)} worse: {'; '.join(parts)}."
    if comparison.risks:
        yield f"The intervals of these risks together err with at most {amount(comparison.error)}."
        yield rollback_sentence(comparison)


def margins(risks: Sequence[Risk]) -> str:
    """The margins of the risks as text, such as `10% or 1 point`."""
    return " or ".join(dict.fromkeys(amount(risk.margin, ratio=risk.ratio) for risk in risks))


def rollback_sentence(comparison: Comparison) -> str:
    """Sentence on what going back to A needs and loses, as written by a person."""
    return f"Going back to A needs: {(comparison.rollback or 'not stated (--rollback)').rstrip('.')}."


_MOVES = {"adopt": "Risk of adopting B", "go_back": "Risk of a rollback to A"}
_EVIDENCE: dict[Evidence, str] = {"fails": "fails for", "undecided": "undecided for", "holds": "holds for"}


def amount(value: float, *, ratio: bool = True) -> str:
    """A ratio as a percentage; with `ratio` False a difference of shares, as points."""
    unit = "%" if ratio else " point" if value == 0.01 else " points"
    return f"{100 * value:.3g}{unit}"


_READER = Reader(Comparison)


def to_json(comparison: Comparison) -> str:
    """The text of the file."""
    return dumps({KEY: {"format": FORMAT, INSIDE: comparison}}).decode()


def from_object(document: Any, source: str) -> Comparison:
    """Read the comparison that `to_json` wrote. Raises Unreadable, which names `source` and the key."""
    own = document[KEY]
    if own.get("format") != FORMAT:
        raise Unreadable(
            f"{source}: {KEY}.format: is {own.get('format')!r}, this prober reads comparisons of {FORMAT}; use the version that "
            "wrote it"
        )
    comparison: Comparison = _READER.read(own[INSIDE], source, f"{KEY}.{INSIDE}")
    return comparison
