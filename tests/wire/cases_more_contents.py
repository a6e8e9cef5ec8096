"""Content: what is a content chunk, and what is not. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import DONE, ROLE, chat, content, end, good, legacy, reasoned, sse, text, usage
from tests.wire.families import TAIL, replaced
from tests.wire.heads import stream

# fmt: off
CASES = (
    Case("role chunk with null content: llama.cpp", "ok", stream(chat({"role": "assistant", "content": None}), 0.1, *content(role=b""), *TAIL), "null is no content", engine="llamacpp", chunks=4),
    Case("role and content in one chunk", "ok", stream(0.02, FIRST, chat({"role": "assistant", "content": "a"}), 0.02, text("b"), 0.02, text("c"), 0.02, LAST, text("d"), *TAIL), "it carries content", chunks=4),
    Case("null content between content", "ok", stream(ROLE, FIRST, text("a"), text(None), text("b"), text("c"), LAST, text("d"), *TAIL), "null is no content", chunks=4),
    Case("content of one zero-width character", "ok", stream(ROLE, FIRST, text("\u200b"), text("b"), text("c"), text("d"), *TAIL), "it was generated", chunks=4),
    Case("choice without a delta", "ok", stream(ROLE, sse({"choices": [{"index": 0, "finish_reason": None}]}), FIRST, text("a"), text("b"), text("c"), text("d"), *TAIL), "no content", chunks=4, arguable=True),
    Case("choices null on a heartbeat", "ok", stream(sse({"id": "x", "choices": None}), *content(), *TAIL), "no content", chunks=4, arguable=True),
    Case("choices of a number", "malformed", stream(sse({"choices": 3}), sse({"choices": [4]}), DONE), "no chunk of this API", arguable=True),
    Case("content as a list of text parts", "ok", stream(ROLE, FIRST, text([{"type": "text", "text": "a"}]), text([{"type": "text", "text": "b"}]), text([{"type": "text", "text": "c"}]), LAST, text([{"type": "text", "text": "d"}]), *TAIL), "Mistral writes content as parts", engine="openai", chunks=4),
    Case("content as an empty list", "ok", stream(ROLE, text([]), 0.1, *content(role=b""), *TAIL), "no content", chunks=4),
    Case("reasoning_content, then content", "ok", stream(*reasoned(), *TAIL), "reasoning is content; the answer has its own first time", chunks=4, engine="sglang"),
    Case("both reasoning fields with the same text", "ok", stream(ROLE, FIRST, chat({"reasoning": "a", "reasoning_content": "a"}), text("b"), text("c"), LAST, text("d"), *TAIL), "vLLM 0.11.1 to 0.15 writes both; it is one chunk", chunks=4),
    Case("null reasoning_content beside content: SGLang", "ok", stream(ROLE, *(chat({"content": w, "reasoning_content": None, "tool_calls": None}) for w in "abcd"), *TAIL), "null is no reasoning", engine="sglang", chunks=4),
    Case("OpenRouter's reasoning_details", "ok", stream(ROLE, FIRST, chat({"content": "", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}), text("b"), text("c"), LAST, text("d"), *TAIL), "one chunk of reasoning", engine="openai", chunks=4),
    Case("tool calls empty list on every chunk", "ok", stream(chat({"role": "assistant", "tool_calls": []}), 0.1, *content(role=b""), *TAIL), "an empty list is no content", chunks=4),
    Case("legacy function_call", "ok", stream(chat({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}), 0.02, chat({"function_call": {"arguments": "{"}}), LAST, chat({"function_call": {"arguments": "}"}}), end("function_call"), usage(3), END, DONE), "the OpenAI client reads it", engine="openai"),
    Case("refusal null on every chunk", "ok", stream(chat({"role": "assistant", "content": "", "refusal": None}), *content(role=b""), *TAIL), "null is no content", engine="openai", chunks=4),
    Case("another choice than the first beside it", "ok", stream(ROLE, FIRST, text("a"), chat({"content": "X"}, index=1), text("b"), chat({"content": "Y"}, index=1), text("c"), LAST, text("d"), chat({}, "stop", index=1), end(), usage(4), END, DONE), "choice 0 is the answer", chunks=4),
    Case("finish reason of choice 1 only", "truncated", stream(*content(), chat({}, "stop", index=1), usage(4), DONE), "choice 0 has no finish reason"),
    Case("choice without an index", "ok", stream(*(sse({"choices": [{"delta": {"content": w}, "finish_reason": None}]}) for w in "abcd"), sse({"choices": [{"delta": {}, "finish_reason": "length"}]}), usage(4), DONE), "the only choice is the answer", engine="", chunks=4),
    Case("logprobs with content", "ok", stream(*(sse({"choices": [{"index": 0, "delta": {"content": w}, "logprobs": {"content": [{"token": w, "logprob": -0.1, "bytes": [97], "top_logprobs": []}]}, "finish_reason": None}]}) for w in "abcd"), *TAIL), "not read", chunks=4),
    Case("text completions with an empty first text", "ok", stream(legacy(""), 0.1, FIRST, legacy("a"), legacy("b"), legacy("c"), LAST, legacy("d", "length"), usage(4), END, DONE), "an empty text is no content", api="completions", chunks=4),
    Case("chat answered with text chunks", "ok", stream(legacy("a"), legacy("b"), legacy("c"), legacy("d", "length"), usage(4), DONE), "another API's shape", arguable=True),
    Case("another model answers", "ok", stream(*replaced(b"probe-model", b"other-model", good())), "a difference is an event, not an outcome", chunks=4, completion=4),
    Case("`obfuscation` padding of OpenAI", "ok", stream(*(chat({"content": w}, obfuscation="x" * 12) for w in "abcd"), chat({}, "stop", obfuscation=""), usage(4, obfuscation="z"), DONE), "padding is not content", engine="openai", chunks=4),
    Case("message instead of delta in each chunk", "empty", stream(*(sse({"choices": [{"index": 0, "message": {"content": w}, "finish_reason": None}]}) for w in "abcd"), end("stop"), DONE), "another API's shape", engine="", arguable=True),
)
