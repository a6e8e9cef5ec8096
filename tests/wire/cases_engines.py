"""Streams as each engine writes them."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import (
    DONE,
    ROLE,
    chat,
    content,
    end,
    good,
    legacy,
    payload,
    reasoned,
    sse,
    text,
    tokens_used,
    usage,
)
from tests.wire.families import AXUM_HEAD, GO_HEAD, LLAMA_HEAD, TABBY_HEAD, TIMINGS, lines_end_with
from tests.wire.heads import DATE, EVENTS, head, stream

# fmt: off
CASES = (
    Case("vLLM with continuous usage", "ok", stream(chat({"role": "assistant", "content": ""}, usage=tokens_used(0)), *(step for i, w in enumerate(("box", "\n", " two")) for step in (0.01, chat({"content": w}, usage=tokens_used(i + 1)))), 0.01, chat({"content": "ter"}, "length", usage=tokens_used(4)), usage(4, prompt_tokens_details={"cached_tokens": 0}), END, DONE), "captured stream", chunks=4, completion=4, finish="length"),
    Case("vLLM completions", "ok", stream(legacy("##"), 0.01, legacy("TI"), 0.01, legacy(" ins", "length"), usage(3, 1), END, DONE), "captured stream", api="completions", tokens=3, chunks=3, completion=3, finish="length"),
    Case("SGLang with reasoning_content on every delta", "ok", stream(chat({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}, matched_stop=None), *(chat({"role": None, "content": w, "reasoning_content": None, "tool_calls": None}) for w in "abcd"), sse({"choices": [{"index": 0, "delta": {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}, "logprobs": None, "finish_reason": "length", "matched_stop": None}]}), usage(4), END, DONE), "SGLang's serving_chat", engine="sglang", chunks=4, completion=4),
    Case("TGI: one special token without text", "ok", stream(*(chat({"role": "assistant", "content": w}) for w in ("a", "b", "c", "")), chat({"role": "assistant", "content": ""}, "stop"), usage(4), END, DONE, head=AXUM_HEAD), "special tokens have no text", engine="tgi", chunks=3, completion=4),
    Case("TensorRT-LLM: empty content while text is not flushed", "ok", stream(ROLE, text(""), text(""), 0.05, FIRST, text("ab"), text(""), LAST, text("cd"), end(), usage(4), END, DONE), "detokeniser holds text back", engine="trtllm", chunks=2, completion=4),
    Case("llama.cpp: prompt progress before content", "ok", stream(*(chat({"role": "assistant", "content": None}, prompt_progress={"total": 8, "cache": 0, "processed": n, "time_ms": n}) for n in (2, 5, 8)), 0.05, FIRST, text("a"), text("b"), text("c"), LAST, text("d"), chat({}, "length", timings=TIMINGS), END, DONE, head=LLAMA_HEAD), "return_progress", engine="llamacpp", chunks=4),
    Case("LMDeploy chat", "ok", stream(chat({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}, usage=None), *(chat({"role": "assistant", "content": w, "reasoning_content": None}, usage=None) for w in "abcd"), chat({"role": "assistant", "content": ""}, "length", usage=None), usage(4), END, DONE), "LMDeploy's api_server", engine="lmdeploy", chunks=4, completion=4),
    Case("Ollama chat with reasoning", "ok", stream(*(chat({"role": "assistant", "content": "", "reasoning": w}) for w in "ab"), *(chat({"role": "assistant", "content": w}) for w in "cd"), chat({"role": "assistant", "content": ""}, "stop"), usage(4), END, DONE, head=GO_HEAD), "Ollama's openai middleware", engine="ollama", chunks=4, completion=4),
    Case("transformers serve: role at once, content later", "ok", stream(chat({"role": "assistant"}), 0.2, FIRST, text("a"), text("b"), text("c"), LAST, text("d"), END, chat({}, "stop", usage=tokens_used(4))), "TTFT is not the role chunk", engine="transformers", chunks=4, completion=4),
    Case("TabbyAPI: CRLF and pings", "ok", stream(*lines_end_with(b"\r\n", (b": ping - 2026-11-21 00:08:51.12+00:00\n\n", *content(), chat({}, "stop"), usage(4), END, DONE)), head=TABBY_HEAD), "sse-starlette", engine="tabbyapi", chunks=4, completion=4),
    Case("OpenAI with obfuscation and usage null on chunks", "ok", stream(chat({"role": "assistant", "content": "", "refusal": None}, usage=None, obfuscation="aB3"), *(chat({"content": w}, usage=None, obfuscation="x") for w in "abcd"), chat({}, "stop", usage=None), usage(4, completion_tokens_details={"reasoning_tokens": 0}), END, DONE), "api.openai.com", engine="openai", chunks=4, completion=4),
    Case("OpenRouter with processing comments", "ok", stream(b": OPENROUTER PROCESSING\n\n", 0.05, b": OPENROUTER PROCESSING\n\n", *content(), sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "stop", "native_finish_reason": "STOP"}]}), usage(4, cost=0.0001), END, DONE), "comments keep the connection alive", engine="openai", chunks=4, completion=4),
    Case("Dynamo: an error as a named event with a comment", "error_in_stream", stream(*content(1), b"event: error\n: worker stream ended before generation completed\n\n", sse({"message": "worker stream ended before generation completed", "code": 500}, event="error")), "Dynamo annotates errors", detail="worker stream ended", chunks=1),
    Case("LM Studio: usage in the last chunk, statistics behind it", "ok", stream(*content(), sse({**payload({}, "stop"), "stats": {"tokens_per_second": 51.4}, "usage": tokens_used(4)}), END, DONE), "unknown fields are ignored", engine="", chunks=4, completion=4),
    Case("vLLM: several tokens a chunk", "ok", stream(ROLE, 0.01, FIRST, text("False"), 0.02, text("idthￍ lo\n     "), 0.02, text("ttributeError"), 0.02, LAST, chat({"content": "pect DocTest"}, "length"), usage(8, 27), END, DONE), "captured stream: 8 tokens in 4 chunks", tokens=8, chunks=4, completion=8),
    Case("vLLM: error between tokens, [DONE] behind it", "error_in_stream", stream(*content(2), sse({"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": None, "code": 500}}), DONE), "vLLM's generator writes the error, then [DONE]", detail="EngineCore encountered an issue", chunks=2),
    Case("SGLang: reasoning separated", "ok", stream(*reasoned(), end(), usage(4, reasoning_tokens=2), END, DONE), "SGLang's serving_chat", engine="sglang", chunks=4, completion=4),
    Case("TGI chat", "ok", stream(*(sse(payload({"role": "assistant", "content": w}, None, system_fingerprint="3.3.7-native"), lead="data: ") for w in "abc"), sse(payload({"role": "assistant", "content": "d"}, "length")), usage(4), END, DONE, head=AXUM_HEAD), "TGI's router", engine="tgi", chunks=4, completion=4),
    Case("TensorRT-LLM: space before each line end, first output behind the role", "ok", stream(0.02, FIRST, sse(payload({"role": "assistant"}), tail=" ") + sse(payload({"content": "a", "reasoning_content": "", "tool_calls": []}), tail=" "), *(sse(payload({"content": w, "reasoning_content": "", "tool_calls": []}), tail=" ") for w in "bc"), LAST, sse(payload({"content": "d"}, "length"), tail=" "), sse({"choices": [], "usage": tokens_used(4)}, tail=" "), END, DONE), "trtllm-serve's postprocess handlers", engine="trtllm", chunks=4, completion=4),
    Case("llama.cpp chat", "ok", stream(chat({"role": "assistant", "content": None}), 0.02, FIRST, text("a"), text("b"), text("c"), LAST, text("d"), end("length"), sse({"choices": [], "usage": tokens_used(4), "timings": TIMINGS}), END, DONE, head=LLAMA_HEAD), "llama-server", engine="llamacpp", chunks=4, completion=4),
    Case("Ollama: model is loaded first", "ok", stream(0.3, *good(finish="stop"), head=GO_HEAD), "a cold load counts into TTFT", engine="ollama", chunks=4),
    Case("LiteLLM proxy", "ok", stream(chat({"role": "assistant", "content": "Hel"}), text("lo "), text("the"), text("re"), end("stop"), chat({}, usage=tokens_used(4)), END, DONE, head=head("200 OK", DATE, "x-litellm-call-id: 386ef49c", "x-litellm-version: 1.106.2", "cache-control: no-cache", EVENTS, "Transfer-Encoding: chunked")), "captured stream", engine="litellm", chunks=4, completion=4),
    Case("MLC with extra in usage", "ok", stream(*(chat({"role": "assistant", "content": w}) for w in "abcd"), chat({"role": "assistant", "content": ""}, "length"), usage(4, extra={"ttft_s": 0.02, "prefill_tokens_per_s": 400.0}), END, DONE), "MLC's engine server", engine="mlc", chunks=4, completion=4),
    Case("Azure OpenAI with content filter results", "ok", stream(sse({"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": []}), *(sse({"choices": [{"index": 0, "delta": {"content": w}, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}, "finish_reason": None}]}) for w in "abcd"), end("stop"), usage(4), END, DONE), "Azure's asynchronous filter", engine="openai", chunks=4, completion=4),
    Case("Dynamo's frontend with event names and comments", "ok", stream(*content(), end("length"), usage(4), sse({"worker_id": {"prefill": 1}}, event="nvext"), END, DONE), "unknown named events are ignored", chunks=4, completion=4),
    Case("NIM: vLLM's wire with a trailing comment", "ok", stream(*good(), b": end\n\n"), "NIM 2 is vLLM", chunks=4, completion=4),
)
