"""The decoding sequences of a batch. Each gains one token per round, so the round and one number per sequence give its state."""

from heapq import heappop, heappush
from itertools import count

from prober.simulation.request import Run, Truth

_MIN_TRIMMED_RUNS = 4096


class Decoding:
    """The decoding part of the batch, in rounds (steps with decodes).

    rounds: number of rounds so far
    count: number of sequences
    tokens_out: total number of generated tokens
    """

    __slots__ = (
        "_finishes",
        "_log",
        "_log_from",
        "_offsets",
        "_order",
        "_phases",
        "_size",
        "_trim_at",
        "count",
        "rounds",
        "tokens_out",
    )

    def __init__(self, block_tokens: int) -> None:
        self.rounds = self.count = self.tokens_out = 0
        self._size = block_tokens
        self._offsets = 0  # sum of the offsets of all sequences
        # Number of sequences by offset modulo block, which determines the round of their next block.
        self._phases = [0] * block_tokens
        self._finishes: list[tuple[int, int, Truth]] = []  # heap of (round, …); stale if the sequence left
        self._order = count()
        self._log: list[Run] = []  # durations of the steps, the ITLs of all sequences
        self._log_from = 0
        self._trim_at = _MIN_TRIMMED_RUNS

    @property
    def context(self) -> int:
        """Number of tokens that the next round reads: prompts and answers so far."""
        return self.count * self.rounds + self._offsets

    def tokens(self, truth: Truth) -> int:
        """Generated tokens of one sequence."""
        return self.rounds + truth.offset - truth.request.prompt_tokens

    def blocks(self, truth: Truth) -> int:
        """Number of blocks of one sequence. Its latest token enters the cache only in the next round."""
        return -(-(self.rounds + truth.offset - 1) // self._size)

    def join(self, truth: Truth) -> None:
        """Add a sequence with a computed prompt and a generated latest token."""
        request = truth.request
        truth.offset = request.prompt_tokens + truth.tokens - self.rounds
        truth.finish = self.rounds + request.output_tokens - truth.tokens
        truth.mark = self._log_from + len(self._log)
        self.count += 1
        self._offsets += truth.offset
        self._phases[truth.offset % self._size] += 1
        heappush(self._finishes, (truth.finish, next(self._order), truth))

    def leave(self, truth: Truth) -> None:
        """Remove a sequence and record its tokens, blocks and ITLs."""
        truth.blocks = self.blocks(truth)
        truth.tokens = self.tokens(truth)
        truth.finish = -1
        truth.runs += self._log[truth.mark - self._log_from :]
        self.count -= 1
        self._offsets -= truth.offset
        self._phases[truth.offset % self._size] -= 1

    def to_first_finish(self) -> int:
        """Number of rounds until a sequence has all its tokens."""
        finishes = self._finishes
        while finishes[0][2].finish != finishes[0][0]:
            heappop(finishes)
        return finishes[0][0] - self.rounds

    def next_growth(self) -> int:
        """Number of blocks added by the next round."""
        return self._phases[(1 - self.rounds) % self._size]

    def growth(self, rounds: int) -> int:
        """Number of blocks added by `rounds` rounds."""
        laps, remainder = divmod(rounds, self._size)
        phases = self._phases
        end = (1 - self.rounds) % self._size + 1
        if remainder <= end:
            return laps * self.count + sum(phases[end - remainder : end])
        return laps * self.count + sum(phases[:end]) + sum(phases[end - remainder :])

    def rounds_in(self, blocks: int) -> int:
        """Number of rounds for which `blocks` blocks suffice."""
        laps, left = divmod(blocks, self.count)
        ahead = 0
        while (left := left - self._phases[(1 - self.rounds - ahead) % self._size]) >= 0:
            ahead += 1
        return laps * self._size + ahead

    def run(self, rounds: int, first_s: float, slope_s: float) -> list[Truth]:
        """Run rounds that last first_s, first_s + slope_s, … seconds. Returns the sequences that now have all their tokens."""
        self.rounds += rounds
        self.tokens_out += self.count * rounds
        self._log.append((rounds, first_s, slope_s))
        done = []
        while self._finishes and self._finishes[0][0] <= self.rounds:
            finish, _, truth = heappop(self._finishes)
            if truth.finish == finish:
                done.append(truth)
                self.leave(truth)
        if len(self._log) > self._trim_at:  # drop the log before the oldest sequence
            marks = (truth.mark for finish, _, truth in self._finishes if truth.finish == finish)
            oldest = min(marks, default=self._log_from + len(self._log))
            del self._log[: oldest - self._log_from]
            self._log_from = oldest
            self._trim_at = 2 * len(self._log) + _MIN_TRIMMED_RUNS  # a long request needs much of the log
        return done
