"""Parameters of the simulated engine: cost of a step, and limits of the scheduler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """Costs and limits of an engine. A step takes `step_s + sequence_s × decodes + prefill_token_s × prompt tokens + kv_token_s ×
    context`.

    step_s: seconds to read the weights and launch kernels
    sequence_s: seconds to sample and detokenize, per decoding sequence
    prefill_token_s: seconds to compute one token of a prompt
    kv_token_s: seconds to read one token of context of a decoding sequence
    max_batched_tokens: token budget of a step: one for each decoding sequence, the rest for (pieces of) prompts
    max_sequences: number of requests that can run at a time
    kv_blocks, block_tokens: number of blocks of the KV cache, and tokens per block
    prefix_block_tokens: number of tokens for each id in `Request.prefix`

    The defaults are plausible, not measured: a model of 8 billion weights in bfloat16 on a GPU of 80 GB, 2.0 TB/s
    and 312 TFLOP/s (the data sheet of an A100 SXM). step_s: 16 GB of weights ÷ 2.0 TB/s and half a millisecond of launches.
    prefill_token_s: 16 GFLOP a token at half the peak. kv_token_s: 128 KiB (32 layers × 8 KV heads × 128 × 2 × 2 bytes) ÷
    2.0 TB/s. kv_blocks: 90% of the memory less weights and activations, about 52 GB. Token budget and number of sequences
    are vLLM's defaults for such a GPU. Raises ValueError.
    """

    step_s: float = 0.0085
    sequence_s: float = 20e-6
    prefill_token_s: float = 100e-6
    kv_token_s: float = 65e-9
    max_batched_tokens: int = 2048
    max_sequences: int = 256
    kv_blocks: int = 25_000
    block_tokens: int = 16
    prefix_block_tokens: int = 512

    def __post_init__(self) -> None:
        if self.step_s <= 0:
            raise ValueError(f"step_s is {self.step_s}: a step takes time")
        if min(self.sequence_s, self.prefill_token_s, self.kv_token_s) < 0:
            raise ValueError("a cost is below 0")
        if min(self.max_sequences, self.kv_blocks, self.block_tokens) < 1:
            raise ValueError("max_sequences, kv_blocks and block_tokens are 1 or more")
        if self.max_batched_tokens < self.max_sequences:  # else a decode could starve; vLLM requires this too
            raise ValueError(f"max_batched_tokens ({self.max_batched_tokens}) < max_sequences ({self.max_sequences})")
        if self.prefix_block_tokens < 1 or self.prefix_block_tokens % self.block_tokens:
            raise ValueError(f"prefix_block_tokens is a multiple of block_tokens ({self.block_tokens})")

    def blocks(self, tokens: int) -> int:
        """Number of KV blocks for `tokens` tokens."""
        return -(-tokens // self.block_tokens)
