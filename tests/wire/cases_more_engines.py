"""The stream of each engine as it is in the field. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import DONE, ROLE, chat, content, end, good, payload, reasoned, sse, text, tokens_used, usage
from tests.wire.families import AXUM_HEAD, GO_HEAD, LLAMA_HEAD, TIMINGS
from tests.wire.heads import DATE, EVENTS, head, stream

# fmt: off
CASES = (
    Case("vLLM: several tokens a chunk", "ok", stream(ROLE, 0.01, FIRST, text("False"), 0.02, text("idthￍ lo\n     "), 0.02, text("ttributeError"), 0.02, LAST, chat({"content": "pect DocTest"}, "length"), usage(8, 27), END, DONE), "captured stream: 8 tokens in 4 chunks", tokens=8, chunks=4, completion=8),
    Case("vLLM with keep-alive comments", "ok", stream(b": keep-alive\n\n", 0.05, b": keep-alive\n\n", *good()), "--sse-keep-alive-interval", chunks=4, completion=4),
    Case("vLLM: error between tokens, [DONE] behind it", "error_in_stream", stream(*content(2), sse({"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": None, "code": 500}}), DONE), "vLLM's generator writes the error, then [DONE]", detail="EngineCore encountered an issue", chunks=2),
    Case("SGLang: reasoning separated", "ok", stream(*reasoned(), end(), usage(4, reasoning_tokens=2), END, DONE), "SGLang's serving_chat", engine="sglang", chunks=4, completion=4),
    Case("TGI chat", "ok", stream(*(sse(payload({"role": "assistant", "content": w}, None, system_fingerprint="3.3.7-native"), lead="data: ") for w in "abc"), sse(payload({"role": "assistant", "content": "d"}, "length")), usage(4), END, DONE, head=AXUM_HEAD), "TGI's router", engine="tgi", chunks=4, completion=4),
    Case("TensorRT-LLM: space before each line end, first output behind the role", "ok", stream(0.02, FIRST, sse(payload({"role": "assistant"}), tail=" ") + sse(payload({"content": "a", "reasoning_content": "", "tool_calls": []}), tail=" "), *(sse(payload({"content": w, "reasoning_content": "", "tool_calls": []}), tail=" ") for w in "bc"), LAST, sse(payload({"content": "d"}, "length"), tail=" "), sse({"choices": [], "usage": tokens_used(4)}, tail=" "), END, DONE), "trtllm-serve's postprocess handlers", engine="trtllm", chunks=4, completion=4),
    Case("llama.cpp chat", "ok", stream(chat({"role": "assistant", "content": None}), 0.02, FIRST, text("a"), text("b"), text("c"), LAST, text("d"), end("length"), sse({"choices": [], "usage": tokens_used(4), "timings": TIMINGS}), END, DONE, head=LLAMA_HEAD), "llama-server", engine="llamacpp", chunks=4, completion=4),
    Case("llama.cpp: empty comments as pings", "ok", stream(b":\n\n", chat({"role": "assistant", "content": None}), FIRST, text("a"), b":\n\n", text("b"), text("c"), LAST, text("d"), chat({}, "length", timings=TIMINGS), END, DONE, head=LLAMA_HEAD), "sse_ping_interval", engine="llamacpp", chunks=4),
    Case("Ollama chat", "ok", stream(*(chat({"role": "assistant", "content": w}, system_fingerprint="fp_ollama") for w in "abcd"), chat({"role": "assistant", "content": ""}, "stop", system_fingerprint="fp_ollama"), usage(4), END, DONE, head=GO_HEAD), "Ollama's openai middleware", engine="ollama", chunks=4, completion=4),
    Case("Ollama: model is loaded first", "ok", stream(0.3, *good(finish="stop"), head=GO_HEAD), "a cold load counts into TTFT", engine="ollama", chunks=4),
    Case("LiteLLM proxy", "ok", stream(chat({"role": "assistant", "content": "Hel"}), text("lo "), text("the"), text("re"), end("stop"), chat({}, usage=tokens_used(4)), END, DONE, head=head("200 OK", DATE, "x-litellm-call-id: 386ef49c", "x-litellm-version: 1.106.2", "cache-control: no-cache", EVENTS, "Transfer-Encoding: chunked")), "captured stream", engine="litellm", chunks=4, completion=4),
    Case("MLC with extra in usage", "ok", stream(*(chat({"role": "assistant", "content": w}) for w in "abcd"), chat({"role": "assistant", "content": ""}, "length"), usage(4, extra={"ttft_s": 0.02, "prefill_tokens_per_s": 400.0}), END, DONE), "MLC's engine server", engine="mlc", chunks=4, completion=4),
    Case("Azure OpenAI with content filter results", "ok", stream(sse({"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": []}), *(sse({"choices": [{"index": 0, "delta": {"content": w}, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}, "finish_reason": None}]}) for w in "abcd"), end("stop"), usage(4), END, DONE), "Azure's asynchronous filter", engine="openai", chunks=4, completion=4),
    Case("Dynamo's frontend with event names and comments", "ok", stream(*content(), end("length"), usage(4), sse({"worker_id": {"prefill": 1}}, event="nvext"), END, DONE), "unknown named events are ignored", chunks=4, completion=4),
    Case("Ray Serve LLM: error in a chunk", "error_in_stream", stream(*content(1), sse({"error": {"message": "Message: replica died, Internal exception", "type": "RayServeError", "code": 500}})), "an error object inside a 200", engine="", detail="replica died"),
    Case("Aphrodite and older vLLM: finish on the last content", "ok", stream(ROLE, FIRST, text("a"), text("b"), text("c"), LAST, chat({"content": "d"}, "length", usage=tokens_used(4)), END, DONE), "usage beside the finish reason", chunks=4, completion=4),
    Case("NIM: vLLM's wire with a trailing comment", "ok", stream(*good(), b": end\n\n"), "NIM 2 is vLLM", chunks=4, completion=4),
)
