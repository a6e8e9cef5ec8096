"""Finish reasons, and lengths that were forced."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import Case
from tests.wire.events import DONE, ROLE, chat, content, end, text, usage
from tests.wire.families import FAILED, ended
from tests.wire.heads import stream

# fmt: off
CASES = (
    ended("vLLM: stop at the forced length", "stop", finish="stop"),
    ended("vLLM: error", "error", FAILED),
    ended("SGLang: abort", "abort", FAILED, engine="sglang"),
    ended("SGLang: a dict as on its native route", {"type": "length", "length": 4}, engine="sglang", finish="length"),
    ended("SGLang: a dict of an abort", {"type": "abort", "message": "x"}, FAILED, engine="sglang", detail="aborted"),
    ended("TGI: eos_token", "eos_token", engine="tgi"),
    ended("Ollama: unload", "unload", FAILED, engine="ollama"),
    ended("OpenAI: content_filter", "content_filter", FAILED, engine="openai", detail="", why="a reason of this API; the answer was withheld"),
    ended("DeepSeek: insufficient_system_resource", "insufficient_system_resource", FAILED, engine="openai"),
    ended("vLLM: a word nobody knows", "preempted", detail="'preempted' is unknown"),
    ended("unknown engine: MAX_TOKENS", "MAX_TOKENS", engine="", why="Gemini's native word"),
    ended("unknown engine: end_turn", "end_turn", "ok", engine="", detail="", why="Anthropic's word through a gateway"),
    ended("finish reason that is a number", 1, engine="", detail="unknown", why="no reason of any engine; the answer is complete otherwise"),
    ended("finish reason of 10 kB", "z" * 10_000, engine="", detail="unknown"),
    ended("unknown words that name a failure", "backend_error_17", FAILED, engine=""),
    Case("null as a text on every chunk: DashScope", "ok", stream(*(chat({"content": w}, "null") for w in "abcd"), end("stop"), usage(4), DONE), "it says so while the answer goes on", engine="", chunks=4, finish="stop"),
    Case("null as a text only", "truncated", stream(*(chat({"content": w}, "null") for w in "abcd"), usage(4), DONE), "the answer goes on", engine=""),
    Case("empty finish reason only", "truncated", stream(*(chat({"content": w}, "") for w in "abcd"), chat({}, ""), usage(4), DONE), "an empty text is no reason", engine=""),
    Case("forced length not reached, finish reason length", "short", stream(*content(4), end("length"), usage(4), DONE), "16 tokens were forced", tokens=16, completion=4),
    Case("one token short of the forced length", "short", stream(*content(4), end("stop"), usage(15), DONE), "16 tokens were forced", tokens=16, completion=15),
    Case("forced length reached, no usage", "ok", stream(*content(8), end("length"), DONE), "8 chunks of 8 tokens", tokens=8, completion=None, tokens_after_first=None, chunks=8),
    Case("length is not forced at an unknown engine", "ok", stream(*content(3), end("stop"), usage(3), DONE), "nothing was forced", engine="", tokens=16, completion=3),
    Case("one token more than forced", "ok", stream(*content(5), end("length"), usage(5), DONE), "some engines count the end token", tokens=4, completion=5),
    Case("32 tokens forced, 32 tokens in 4 chunks", "ok", stream(*content(4), end("length"), usage(32), DONE), "tokens are counted from usage", tokens=32, completion=32, chunks=4),
    ended("vLLM: length", "length", finish="length", completion=4),
    ended("vLLM: repetition", "repetition", "short", count=2, why="its repetition detection ended the answer early"),
    ended("TGI: stop_sequence", "stop_sequence", engine="tgi"),
    ended("transformers serve: stop", "stop", engine="transformers"),
    ended("OpenAI: function_call", "function_call", engine="openai"),
    ended("unknown engine: a word nobody knows", "quux", engine="", detail="'quux' is unknown"),
    Case("a word nobody knows, without [DONE]", "truncated", stream(*content(), end("quux"), usage(4)), "the stream is not complete"),
    ended("unknown engine: STOP in capitals", "STOP", engine="", why="Gemini's native word"),
    Case("empty finish reason on every chunk, then stop", "ok", stream(*(chat({"content": w}, "") for w in "abcd"), end("stop"), usage(4), DONE), "one-api and others write an empty text for none", engine="", chunks=4),
    Case("forced length not reached, llama.cpp's timings only", "short", stream(*content(3), chat({}, "stop", timings={"prompt_n": 8, "predicted_n": 3, "predicted_ms": 20.0, "prompt_ms": 5.0}), DONE), "16 tokens were forced", engine="llamacpp", tokens=16),
    Case("forced length not reached, no usage, stop", "short", stream(*content(4), end("stop"), DONE), "16 were forced; 4 chunks of one word each and a stop", tokens=16, completion=None),
    Case("few chunks, no usage, finish reason length", "ok", stream(ROLE, text("several words came in this chunk"), text(" and several more in this one"), end("length"), DONE), "tokens are not chunks: 16 tokens may lie in two", tokens=16, completion=None),
    Case("eight times the forced length", "ok", stream(*content(8, 0.005), *((text("x"),) * 24), end("stop"), usage(32), DONE), "far more than asked for is told; no outcome is named", tokens=4),
    Case("usage 0 beside content at a forced length", "ok", stream(*content(4), end("length"), usage(0), DONE), "usage contradicts the content, and decides nothing", tokens=4, completion=None, detail="unusable"),
)
