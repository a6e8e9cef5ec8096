"""Usage: where it stands, and what it may not say. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import DONE, ROLE, chat, content, end, legacy, sse, text, tokens_used, usage
from tests.wire.families import counted
from tests.wire.heads import stream

# fmt: off
CASES = (
    counted("usage as a float without fraction", 4.0, (4, None), why="JSON knows one kind of number; clients read 4.0"),
    counted("usage as text", "4", (4, None), why="no client promises it", arguable=True),
    counted("usage Infinity", sse({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": "@", "total_tokens": 12}}).replace(b'"@"', b"Infinity"), None),
    counted("negative usage", -4, None),
    counted("usage of 10^30 tokens", 10**30, None),
    counted("usage null in its fields", None, None, why="nothing was counted", tokens_after_first=None),
    counted("usage is null", sse({"choices": [], "usage": None}), None, why="nothing was counted", tokens_after_first=None),
    counted("usage is a number", sse({"choices": [], "usage": 12}), None),
    counted("absurd prompt tokens", usage(4, 10**15), 4, why="the prompt's count is refused, the answer's is not"),
    counted("cached tokens above the prompt's", usage(4, 8, prompt_tokens_details={"cached_tokens": 900}), 4, why="the cached count is refused"),
    counted("prompt_tokens_details null", usage(4, 8, prompt_tokens_details=None), 4, why="vLLM writes it so by default"),
    counted("usage in a chunk with an empty delta: LiteLLM", chat({}, usage=tokens_used(4)), 4, why="LiteLLM's choices are not empty", engine="litellm"),
    counted("usage without choices", sse({"usage": tokens_used(4)}), 4, why="a chunk without choices"),
    Case("usage on every chunk, cumulative", "ok", stream(chat({"role": "assistant", "content": ""}, usage=tokens_used(0)), FIRST, chat({"content": "a"}, usage=tokens_used(1)), 0.03, chat({"content": "b"}, usage=tokens_used(2)), 0.03, LAST, chat({"content": "cd"}, "length", usage=tokens_used(4)), usage(4), END, DONE), "continuous_usage_stats", chunks=3, completion=4, tokens_after_first=3),
    Case("first chunk of three tokens, by its usage", "ok", stream(FIRST, chat({"content": "abc"}, usage=tokens_used(3)), 0.06, LAST, chat({"content": "d"}, "length", usage=tokens_used(4)), usage(4), END, DONE), "TPOT counts the tokens after the first chunk", chunks=2, completion=4, tokens_after_first=1),
    Case("usage zero on every chunk: Ollama completions", "ok", stream(*(legacy(w, usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}) for w in "abcd"), legacy("", "length", usage=tokens_used(4)), DONE), "Ollama writes zeros until the end", api="completions", engine="ollama", completion=4, chunks=4),
    Case("usage per chunk that is not cumulative", "ok", stream(*(chat({"content": w}, usage=tokens_used(1)) for w in "abc"), chat({"content": "d"}, "length", usage=tokens_used(1)), DONE), "some gateways write the chunk's own count", engine="", chunks=4, arguable=True),
    Case("usage beside the last content and again alone", "ok", stream(ROLE, text("a"), text("b"), text("c"), chat({"content": "d"}, "length", usage=tokens_used(4)), usage(4), DONE), "the same count twice", completion=4, chunks=4),
    Case("vLLM's usage with its metrics object", "ok", stream(*content(), end(), sse({"choices": [], "usage": tokens_used(4), "metrics": {"time_to_first_token_ms": 72.4, "queue_time_ms": 0.1, "mean_itl_ms": None}}), END, DONE), "--enable-per-request-metrics", completion=4),
    Case("usage of a hundred tokens for one character", "ok", stream(ROLE, text("a"), end("length"), usage(100), DONE), "tokens may be invisible; 100 were asked for and possible", tokens=100, completion=(100, None), arguable=True),
)
