"""Finish reasons by engine, and forced lengths."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import Case
from tests.wire.events import DONE, chat, content, end, usage
from tests.wire.families import FAILED, ended
from tests.wire.heads import stream

# fmt: off
CASES = (
    ended("vLLM: stop at the forced length", "stop", finish="stop"),
    ended("vLLM: error", "error", FAILED),
    ended("vLLM: tool_calls", "tool_calls"),
    ended("SGLang: abort", "abort", FAILED, engine="sglang"),
    ended("SGLang: a dict as on its native route", {"type": "length", "length": 4}, FAILED, engine="sglang", detail="", arguable=True),
    ended("TensorRT-LLM: cancelled", "cancelled", FAILED, engine="trtllm"),
    ended("TensorRT-LLM: not_finished", "not_finished", FAILED, engine="trtllm"),
    ended("TGI: eos_token", "eos_token", engine="tgi"),
    ended("llama.cpp: stop", "stop", engine="llamacpp"),
    ended("LMDeploy: abort", "abort", FAILED, engine="lmdeploy"),
    ended("Ollama: stop", "stop", engine="ollama"),
    ended("Ollama: unload", "unload", FAILED, engine="ollama"),
    ended("MLC: error", "error", FAILED, engine="mlc"),
    ended("LiteLLM: content_filter", "content_filter", FAILED, engine="litellm", detail="", arguable=True),
    ended("OpenAI: content_filter", "content_filter", FAILED, engine="openai", detail="", why="a reason of this API; the answer was withheld", arguable=True),
    ended("DeepSeek: insufficient_system_resource", "insufficient_system_resource", FAILED, engine="openai"),
    ended("OpenRouter: error", "error", FAILED, engine="openai"),
    ended("unknown engine: timeout", "timeout", FAILED, engine=""),
    ended("unknown engine: error", "error", FAILED, engine=""),
    ended("vLLM: a word nobody knows", "preempted", FAILED),
    ended("unknown engine: MAX_TOKENS", "MAX_TOKENS", FAILED, engine="", detail="", why="Gemini's native word", arguable=True),
    ended("unknown engine: end_turn", "end_turn", "ok", engine="", detail="", why="Anthropic's word through a gateway", arguable=True),
    ended("finish reason that is a number", 1, FAILED, engine="", detail="", why="no reason of any engine", arguable=True),
    ended("finish reason of 10 kB", "z" * 10_000, FAILED, engine="", detail="zzz"),
    Case("empty finish reason only", "truncated", stream(*(chat({"content": w}, "") for w in "abcd"), chat({}, ""), usage(4), DONE), "an empty text is no reason", engine=""),
    Case("forced length not reached, finish reason length", "short", stream(*content(4), end("length"), usage(4), DONE), "16 tokens were forced", tokens=16, completion=4),
    Case("forced length not reached, LMDeploy", "short", stream(*content(3), end("stop"), usage(3), DONE), "16 tokens were forced", engine="lmdeploy", tokens=16, completion=3),
    Case("one token short of the forced length", "short", stream(*content(4), end("stop"), usage(15), DONE), "16 tokens were forced", tokens=16, completion=15),
    Case("forced length reached, no usage", "ok", stream(*content(8), end("length"), DONE), "8 chunks of 8 tokens", tokens=8, completion=None, tokens_after_first=None, chunks=8),
    Case("length is not forced at an unknown engine", "ok", stream(*content(3), end("stop"), usage(3), DONE), "nothing was forced", engine="", tokens=16, completion=3),
    Case("one token more than forced", "ok", stream(*content(5), end("length"), usage(5), DONE), "some engines count the end token", tokens=4, completion=5),
    Case("32 tokens forced, 32 tokens in 4 chunks", "ok", stream(*content(4), end("length"), usage(32), DONE), "tokens are counted from usage", tokens=32, completion=32, chunks=4),
)
