"""The sequences that decode. All gain one token a round, so the rounds so far and one number a sequence say where each stands."""

from heapq import heappop, heappush
from itertools import count

from prober.simulation.request import Run, Truth

_LOG_RUNS = 4096


class Decoding:
    """The decoding part of the batch, in rounds (steps with decodes).

    rounds: so far; count: sequences; tokens_out: tokens they have made in all
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
        self._offsets = 0  # the sum of them
        self._phases = [0] * block_tokens  # sequences by offset modulo block: who needs a block in which round
        self._finishes: list[tuple[int, int, Truth]] = []  # a heap by round; entries of sequences that left are stale
        self._order = count()
        self._log: list[Run] = []  # the steps: these are everyone's ITLs
        self._log_from = 0
        self._trim_at = _LOG_RUNS

    @property
    def context(self) -> int:
        """Tokens that the next round reads: prompts and answers so far."""
        return self.count * self.rounds + self._offsets

    def tokens(self, truth: Truth) -> int:
        """Tokens that one sequence has out."""
        return self.rounds + truth.offset - truth.request.prompt_tokens

    def blocks(self, truth: Truth) -> int:
        """Blocks that one sequence holds. Its latest token is not in the cache: the round that makes the next puts it there."""
        return -(-(self.rounds + truth.offset - 1) // self._size)

    def join(self, truth: Truth) -> None:
        """A sequence whose prompt is computed and whose latest token is out."""
        request = truth.request
        truth.offset = request.prompt_tokens + truth.tokens - self.rounds
        truth.finish = self.rounds + request.output_tokens - truth.tokens
        truth.mark = self._log_from + len(self._log)
        self.count += 1
        self._offsets += truth.offset
        self._phases[truth.offset % self._size] += 1
        heappush(self._finishes, (truth.finish, next(self._order), truth))

    def leave(self, truth: Truth) -> None:
        """It decodes no more; its tokens, blocks and ITLs are settled."""
        truth.blocks = self.blocks(truth)
        truth.tokens = self.tokens(truth)
        truth.finish = -1
        truth.runs += self._log[truth.mark - self._log_from :]
        self.count -= 1
        self._offsets -= truth.offset
        self._phases[truth.offset % self._size] -= 1

    def to_first_finish(self) -> int:
        """Rounds until a sequence has all its tokens."""
        finishes = self._finishes
        while finishes[0][2].finish != finishes[0][0]:
            heappop(finishes)
        return finishes[0][0] - self.rounds

    def next_growth(self) -> int:
        """Blocks that the next round adds."""
        return self._phases[(1 - self.rounds) % self._size]

    def growth(self, rounds: int) -> int:
        """Blocks that so many rounds add."""
        laps, rest = divmod(rounds, self._size)
        phases = self._phases
        end = (1 - self.rounds) % self._size + 1
        if rest <= end:
            return laps * self.count + sum(phases[end - rest : end])
        return laps * self.count + sum(phases[:end]) + sum(phases[end - rest :])

    def rounds_in(self, blocks: int) -> int:
        """Rounds that so many blocks are enough for."""
        laps, left = divmod(blocks, self.count)
        ahead = 0
        while (left := left - self._phases[(1 - self.rounds - ahead) % self._size]) >= 0:
            ahead += 1
        return laps * self._size + ahead

    def go(self, rounds: int, first_s: float, slope_s: float) -> list[Truth]:
        """So many rounds of first_s, first_s + slope_s, …; returns who has all its tokens now."""
        self.rounds += rounds
        self.tokens_out += self.count * rounds
        self._log.append((rounds, first_s, slope_s))
        done = []
        while self._finishes and self._finishes[0][0] <= self.rounds:
            finish, _, truth = heappop(self._finishes)
            if truth.finish == finish:
                done.append(truth)
                self.leave(truth)
        if len(self._log) > self._trim_at:
            self._trim()
        return done

    def _trim(self) -> None:
        """Forget the part of the log that belongs to no one."""
        marks = (truth.mark for finish, _, truth in self._finishes if truth.finish == finish)
        oldest = min(marks, default=self._log_from + len(self._log))
        del self._log[: oldest - self._log_from]
        self._log_from = oldest
        self._trim_at = 2 * len(self._log) + _LOG_RUNS  # a long request keeps much of it
