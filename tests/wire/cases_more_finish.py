"""Finish reasons by engine, and forced lengths. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import Case
from tests.wire.events import DONE, ROLE, chat, content, end, text, usage
from tests.wire.families import FAILED, ended
from tests.wire.heads import stream

# fmt: off
CASES = (
    ended("vLLM: length", "length", finish="length", completion=4),
    ended("vLLM: abort", "abort", FAILED),
    ended("vLLM: repetition", "repetition", "short", count=2, why="its repetition detection ended the answer early"),
    ended("SGLang: length", "length", engine="sglang"),
    ended("SGLang: content_filter", "content_filter", FAILED, engine="sglang", arguable=True),
    ended("TensorRT-LLM: length", "length", engine="trtllm"),
    ended("TensorRT-LLM: timeout", "timeout", FAILED, engine="trtllm"),
    ended("TGI: length", "length", engine="tgi"),
    ended("TGI: stop_sequence", "stop_sequence", engine="tgi"),
    ended("llama.cpp: length", "length", engine="llamacpp"),
    ended("LMDeploy: error", "error", FAILED, engine="lmdeploy"),
    ended("Ollama: load", "load", "empty|" + FAILED, engine="ollama", detail="", count=0, why="the model was loaded and nothing was generated", arguable=True),
    ended("transformers serve: stop", "stop", engine="transformers"),
    ended("LiteLLM: stop", "stop", engine="litellm"),
    ended("TabbyAPI: length", "length", engine="tabbyapi"),
    ended("OpenAI: function_call", "function_call", engine="openai"),
    ended("DeepSeek at an unknown engine: insufficient_system_resource", "insufficient_system_resource", FAILED, engine=""),
    ended("unknown engine: cancelled", "cancelled", FAILED, engine=""),
    ended("unknown engine: aborted", "aborted", FAILED, engine=""),
    ended("unknown engine: a word nobody knows", "quux", FAILED, engine=""),
    ended("unknown engine: STOP in capitals", "STOP", FAILED, engine="", detail="", why="Gemini's native word", arguable=True),
    ended("unknown engine: model_length", "model_length", FAILED, engine="", detail="", why="Mistral's word for the context's end", arguable=True),
    ended("unknown engine: stop", "stop", engine="", count=3, completion=3),
    ended("finish reason `true`", True, FAILED, engine="", detail="", why="no reason of any engine", arguable=True),
    Case("empty finish reason on every chunk, then stop", "ok", stream(*(chat({"content": w}, "") for w in "abcd"), end("stop"), usage(4), DONE), "one-api and others write an empty text for none", engine="", chunks=4),
    Case("forced length not reached, usage says so", "short", stream(*content(4), end("stop"), usage(4), DONE), "16 tokens were forced", tokens=16, completion=4),
    Case("forced length not reached, SGLang", "short", stream(*content(3), end("stop"), usage(3), DONE), "16 tokens were forced", engine="sglang", tokens=16, completion=3),
    Case("forced length not reached, llama.cpp's timings only", "short", stream(*content(3), chat({}, "stop", timings={"prompt_n": 8, "predicted_n": 3, "predicted_ms": 20.0, "prompt_ms": 5.0}), DONE), "16 tokens were forced", engine="llamacpp", tokens=16),
    Case("forced length not reached, no usage, stop", "short", stream(*content(4), end("stop"), DONE), "16 were forced; 4 chunks of one word each and a stop", tokens=16, completion=None),
    Case("few chunks, no usage, finish reason length", "ok", stream(ROLE, text("several words came in this chunk"), text(" and several more in this one"), end("length"), DONE), "tokens are not chunks: 16 tokens may lie in two", tokens=16, completion=None, arguable=True),
    Case("length is not forced at TGI", "ok", stream(*content(3), end("stop"), usage(3), DONE), "nothing was forced", engine="tgi", tokens=16, completion=3),
    Case("eight times the forced length", "ok", stream(*content(8, 0.005), *((text("x"),) * 24), end("stop"), usage(32), DONE), "far more than asked for is told; no outcome is named", tokens=4, arguable=True),
    Case("usage 0 beside content at a forced length", "short", stream(*content(4), end("length"), usage(0), DONE), "usage contradicts the content", tokens=4, arguable=True),
)
