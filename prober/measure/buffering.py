"""Buffering: do a target's answers arrive held back, all at once or several tokens at a time?

One answer proves little, because a busy prober or kernel sometimes delivers several chunks in one read. `Buffering.after` judges the
last answers together, and changes its verdict only if most of them contradict it:

    buffering = Buffering()
    for timeline in timelines:
        buffering = buffering.after(timeline)
    print(buffering.is_buffered)
"""

from dataclasses import dataclass
from itertools import pairwise

from prober.measure.timeline import Timeline

MIN_CHUNKS = 4  # in a flush; speculative decoding may write the two or three tokens of a step as separate events
# A busy machine stops prober or server for up to 20 ms at a time (`bench/buffering.py`), which also releases tokens together.
MIN_FLUSH_GAP_NS = 30_000_000
# In an answer that came at once; generating them takes longer than such a stop, unless the engine is very fast.
MIN_TOKENS_AT_ONCE = 12
WINDOW = 10  # answers
MIN_ANSWERS = 5
CONSEQUENCE = (
    "something on the way, such as a gateway, holds tokens back: TTFT includes the wait, ITL is not the engine's"
)
BUFFERED_SHARE, STREAMED_SHARE = 0.8, 0.2  # share of held-back answers in the window; in between, the verdict stays


def is_held_back(timeline: Timeline) -> bool | None:
    """True if an answer was held back: all content came at once, or its median flush has at least MIN_CHUNKS chunks.

    The median is used because a reader that is sometimes late makes a few large flushes among many small ones. Chunks are counted,
    not tokens: several tokens in one chunk are not held back. None if undecidable: the prober was late, or a busy
    machine may be the cause, because few tokens came at once or the flushes are less than MIN_FLUSH_GAP_NS apart.
    """
    stamps = timeline.content_ns
    starts = timeline.flush_starts
    if not starts or timeline.is_read_late:
        return None
    if len(starts) == 1:
        return True if max(len(stamps), timeline.streamed_tokens or 0) >= MIN_TOKENS_AT_ONCE else None
    sizes = sorted(timeline.flush_sizes)
    if sizes[len(sizes) // 2] < MIN_CHUNKS:
        return False
    gaps_ns = sorted(stamps[b] - stamps[a] for a, b in pairwise(starts))
    return True if gaps_ns[len(gaps_ns) // 2] >= MIN_FLUSH_GAP_NS else None


@dataclass(frozen=True, slots=True)
class Buffering:
    """Verdict on whether a target's answers arrive held back.

    held_back: result of `is_held_back` for the last answers that can be judged, at most WINDOW
    is_buffered: the verdict; None before MIN_ANSWERS can be judged, or if they disagree
    """

    held_back: tuple[bool, ...] = ()
    is_buffered: bool | None = None

    @property
    def text(self) -> str:
        """Text such as `5 of the last 8 answers arrived all at once or in flushes of 3 chunks or more`."""
        answers = len(self.held_back)
        count = f"{sum(self.held_back)} of the last {answers} answers" if answers > 1 else "the answer"
        return f"{count} arrived all at once or in flushes of {MIN_CHUNKS} chunks or more"

    @property
    def sentence(self) -> str:
        """`text` and the consequence of buffering. Call it only if the answers are buffered."""
        return f"{self.text}; {CONSEQUENCE}"

    def after(self, timeline: Timeline) -> "Buffering":
        """The verdict after one more answer."""
        held_back = is_held_back(timeline)
        if held_back is None:
            return self
        window = (*self.held_back, held_back)[-WINDOW:]
        share, is_buffered = sum(window) / len(window), self.is_buffered
        if len(window) >= MIN_ANSWERS and share >= BUFFERED_SHARE:
            is_buffered = True
        elif len(window) >= MIN_ANSWERS and share <= STREAMED_SHARE:
            is_buffered = False
        return Buffering(window, is_buffered)
