"""Content: what is a content chunk, and what is not."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import DONE, ROLE, chat, content, end, good, legacy, reasoned, sse, text, usage
from tests.wire.families import CALL, PIECE, TAIL, replaced
from tests.wire.heads import stream

# fmt: off
CASES = (
    Case("role chunk 0.15 s before the content", "ok", stream(ROLE, 0.15, *content(role=b""), *TAIL), "TTFT is never the role chunk", chunks=4),
    Case("role on every chunk: TGI", "ok", stream(*(chat({"role": "assistant", "content": w}) for w in "abcd"), chat({"role": "assistant", "content": ""}, "length"), usage(4), DONE), "TGI writes the role on every chunk", engine="tgi", chunks=4),
    Case("empty content between content", "ok", stream(ROLE, FIRST, text("a"), text(""), text("b"), text(""), text("c"), LAST, text("d"), text(""), *TAIL), "an empty text is no content", chunks=4),
    Case("content of white space", "ok", stream(ROLE, FIRST, text(" "), text("\n"), text("\t"), LAST, text("d"), *TAIL), "white space is generated content", chunks=4),
    Case("delta null", "ok", stream(ROLE, sse({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}), FIRST, text("a"), text("b"), text("c"), text("d"), *TAIL), "no content", chunks=4, arguable=True),
    Case("choices empty at the start: Azure's prompt filter", "ok", stream(sse({"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}), 0.05, *content(), *TAIL), "no content", engine="openai", chunks=4),
    Case("choices as an object", "malformed", stream(sse({"choices": {"0": {"delta": {"content": "a"}}}}), DONE), "no chunk of this API", arguable=True),
    Case("content as a number", "ok", stream(ROLE, text(5), text(6), text(7), text(8), *TAIL), "no text", arguable=True),
    Case("content as a list of thinking parts: Mistral", "ok", stream(ROLE, FIRST, text([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]), text("b"), text("c"), LAST, text("d"), *TAIL), "Mistral writes reasoning as parts", engine="openai", chunks=4, arguable=True),
    Case("content as a list of one empty text", "ok", stream(ROLE, text([{"type": "text", "text": ""}]), 0.1, *content(role=b""), *TAIL), "no content", chunks=4),
    Case("reasoning, then content", "ok", stream(*reasoned("reasoning"), *TAIL), "vLLM from 0.16", chunks=4),
    Case("empty reasoning_content beside content: TensorRT-LLM", "ok", stream(ROLE, *(chat({"content": w, "reasoning_content": ""}) for w in "abcd"), *TAIL), "an empty text is no reasoning", engine="trtllm", chunks=4),
    Case("reasoning only, then length", "ok", stream(ROLE, FIRST, chat({"reasoning_content": "a"}), chat({"reasoning_content": "b"}), chat({"reasoning_content": "c"}), LAST, chat({"reasoning_content": "d"}), *TAIL), "reasoning is generated content", engine="sglang", chunks=4),
    Case("tool calls only", "ok", stream(ROLE, 0.02, FIRST, chat({"tool_calls": [CALL]}), 0.02, chat({"tool_calls": [PIECE]}), 0.02, LAST, chat({"tool_calls": [PIECE]}), end("tool_calls"), usage(3), END, DONE), "tool calls are content", engine="", chunks=3),
    Case("tool calls without index or id", "ok", stream(ROLE, FIRST, chat({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}), end("tool_calls"), usage(2), DONE), "clients of gateways see it", engine="", chunks=1),
    Case("refusal only", "ok", stream(ROLE, FIRST, chat({"refusal": "I can"}), LAST, chat({"refusal": "not"}), end("stop"), usage(2), END, DONE), "the OpenAI client reads delta.refusal", engine="openai", arguable=True),
    Case("audio delta and transcript", "ok", stream(ROLE, chat({"audio": {"id": "a1", "transcript": "Hi"}}), chat({"audio": {"data": "AAAA"}}), end("stop"), usage(2), DONE), "not asked for", engine="openai", arguable=True),
    Case("only choice 1 has content", "ok", stream(ROLE, chat({"content": "X"}, index=1), chat({}, "stop", index=1), end("stop"), usage(1), DONE), "a client that reads the first element of `choices` gets all of it", engine="", arguable=True),
    Case("two choices in one chunk, the second first", "ok", stream(ROLE, FIRST, sse({"choices": [{"index": 1, "delta": {"content": "X"}, "finish_reason": None}, {"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}), text("b"), text("c"), LAST, text("d"), *TAIL), "the index decides, not the place", chunks=4),
    Case("content beside null finish reason missing", "ok", stream(*(sse({"choices": [{"index": 0, "delta": {"content": w}}]}) for w in "abcd"), sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}), DONE), "fields may be missing", engine="", chunks=4),
    Case("text completions", "ok", stream(0.02, FIRST, legacy("##"), 0.02, legacy("TI"), 0.02, legacy(" in"), 0.02, LAST, legacy("s", "length"), usage(4), END, DONE), "completions write `text`", api="completions", chunks=4, completion=4),
    Case("text completions answered with chat chunks", "ok", stream(*good()), "another API's shape", api="completions", arguable=True),
    Case("text null in completions", "ok", stream(legacy(None), FIRST, legacy("a"), legacy("b"), legacy("c"), LAST, legacy("d", "length"), usage(4), END, DONE), "null is no content", api="completions", chunks=4),
    Case("model null and missing", "ok", stream(*replaced(b'"model":"probe-model"', b'"model":null', good())), "nothing to compare", chunks=4),
    Case("service_tier and system_fingerprint", "ok", stream(*(chat({"content": w}, service_tier="default", system_fingerprint=None) for w in "abcd"), chat({}, "stop", service_tier="default"), usage(4), DONE), "not read", engine="openai", chunks=4),
    Case("all content empty, usage counts tokens", "empty", stream(ROLE, *(text("") for _ in range(4)), *TAIL), "special tokens have no text; at least one content token", engine="tgi", arguable=True),
)
