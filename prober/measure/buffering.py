"""Buffering: whether the answers of a target arrive held back, all at once or several tokens at a time.

One answer proves little, because a busy prober or kernel now and then delivers several chunks in one read. `Buffering.after` judges
over the last answers, and changes its mind only when most of them say otherwise:

    buffering = Buffering()
    for timeline in timelines:
        buffering = buffering.after(timeline)
    print(buffering.is_buffered)
"""

from dataclasses import dataclass

from prober.measure.timeline import Timeline

MIN_CHUNKS = 4  # in a flush. Speculative decoding may write the two or three tokens of a step as events of their own
WINDOW = 10  # answers
MIN_ANSWERS = 5
BUFFERED_SHARE, STREAMED_SHARE = 0.8, 0.2  # of the held-back answers in the window; in between, the verdict stays


def is_held_back(timeline: Timeline) -> bool | None:
    """Whether an answer was held back: its median flush has at least MIN_CHUNKS chunks, or all of that many tokens came at once.

    The median, since a reader that is late now and then makes a few large flushes among many small ones. Chunks and not tokens are
    counted: an engine that puts several tokens into a chunk holds nothing back. None if the answer is too short to tell.
    """
    sizes = sorted(timeline.flush_sizes)
    tokens = (timeline.usage.completion_tokens if timeline.usage else None) or 0
    if max(len(timeline.content_ns), tokens) < MIN_CHUNKS or not sizes:
        return None
    return len(sizes) == 1 or sizes[len(sizes) // 2] >= MIN_CHUNKS


@dataclass(frozen=True, slots=True)
class Buffering:
    """The verdict on a target.

    held_back: of its last answers that can be judged, shape (up to WINDOW,)
    is_buffered: None until MIN_ANSWERS were judged, and while they disagree from the start
    """

    held_back: tuple[bool, ...] = ()
    is_buffered: bool | None = None

    @property
    def text(self) -> str:
        """The evidence in words."""
        count = f"{sum(self.held_back)} of the last {len(self.held_back)} answers"
        return f"{count} arrived all at once or in flushes of {MIN_CHUNKS} chunks or more"

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
