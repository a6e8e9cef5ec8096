"""Calibration of prompt lengths: how many tokens a server counts for filler text.

A server counts `constant_tokens + tokens_per_word × words`: the constant is its chat template and the prompt's nonce, the slope
depends on its tokenizer. Two sample prompts without words give the constant (two, as nonces may differ); one with every word
of the pool equally often gives the slope. The result never changes afterwards, because prompts whose length changes would look like
drift.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from prober.workload.prompts import CYCLE_WORDS

SAMPLES = Counter({0: 2, CYCLE_WORDS: 1})  # number of prompts by number of words
MAX_TOKENS_PER_WORD = 30.0


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Length in tokens of a prompt of filler words, as the server counts it."""

    constant_tokens: float = 0.0
    tokens_per_word: float = 1.0

    def words(self, tokens: float) -> float:
        """Number of words with `tokens` tokens, without the constant part."""
        return tokens / self.tokens_per_word

    def prompt_words(self, tokens: int, rng: Random) -> int:
        """Number of words, at least 1, of a prompt of `tokens` tokens. Random rounding keeps the mean length exact."""
        exact = self.words(tokens - self.constant_tokens)
        return max(1, int(exact + rng.random()) if exact > 0 else 1)

    def tokens(self, words: int) -> int:
        """Number of tokens of a prompt of `words` words."""
        return round(self.constant_tokens + self.tokens_per_word * words)


UNCALIBRATED = PromptLength()


@dataclass(slots=True)
class PromptCalibration:
    """Learns the `PromptLength` of one server from the usage that it reports for sample prompts.

    length: None until it is known
    problem: why it cannot be determined; "" without a problem
    """

    length: PromptLength | None = None
    problem: str = ""
    _counted: list[tuple[int, int]] = field(default_factory=list)  # (words, tokens) of sample prompts
    _drawn: int = 0

    @property
    def is_due(self) -> bool:
        """True if sample prompts are still needed."""
        return self.length is None and not self.problem

    def next_sample_words(self) -> int | None:
        """Number of words of the next sample prompt; None if no more are needed."""
        if not self.is_due:
            return None
        missing = list(self._missing())
        self._drawn += 1
        return missing[(self._drawn - 1) % len(missing)]

    def answered(self, words: int, prompt_tokens: int | None, why_none: str = "") -> None:
        """Record the answer to a sample prompt of `words` words. prompt_tokens: as in the server's usage; None if unknown"""
        if not self.is_due:
            return
        if not prompt_tokens:
            self.stop(why_none or "the server sent no usage")
            return
        self._counted.append((words, prompt_tokens))
        if self._missing():
            return
        constant, long = (
            fmean(tokens for words, tokens in self._counted if words == sample_words) for sample_words in SAMPLES
        )
        tokens_per_word = (long - constant) / CYCLE_WORDS
        if 0 < tokens_per_word <= MAX_TOKENS_PER_WORD:
            self.length = PromptLength(constant, tokens_per_word)
        else:
            self.stop(f"the server counts {constant:g} tokens for no words and {long:g} for {CYCLE_WORDS}")

    def stop(self, problem: str) -> None:
        """Send no more sample prompts. A word then counts as one token."""
        if self.is_due:
            self.problem = problem

    def _missing(self) -> tuple[int, ...]:
        """Numbers of words of the sample prompts without an answer."""
        return tuple((SAMPLES - Counter(words for words, _ in self._counted)).elements())
