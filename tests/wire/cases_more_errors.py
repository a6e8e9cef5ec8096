"""Errors inside a stream, in every shape of the field, and 2xx answers that are no event stream. Held back."""

# ruff: noqa: E501 -- a table: one line a case

import gzip

from tests.wire.case import END, FIN, FIRST, LAST, RST, Case
from tests.wire.events import DONE, ROLE, chat, content, end, good, message, payload, sse, text, tokens_used, usage
from tests.wire.families import refused, said
from tests.wire.heads import EVENTS, head, joined, stream, unended, until_close

# fmt: off
CASES = (
    said("error object before any content", sse({"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "param": None, "code": 500}}), "EngineCore encountered an issue", lead=()),
    said("error object without [DONE]: llama.cpp now", sse({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}), "Context size has been exceeded", engine="llamacpp", tail=()),
    said("`error:` as a field in front of any data, llama.cpp of old", b'error: {"code":503,"message":"slot unavailable","type":"unavailable_error"}\n\n', "slot unavailable", "llama.cpp wrote the error as a field of its own", engine="llamacpp", lead=(), tail=()),
    said("SGLang's error object", sse({"error": {"object": "error", "message": "Request is aborted by the scheduler", "type": "InternalServerError", "param": None, "code": 500}}), "aborted by the scheduler", engine="sglang"),
    said("TGI's native error", sse({"error": "Request failed during generation: CUDA out of memory", "error_type": "generation"}, lead="data:"), "CUDA out of memory", engine="tgi"),
    said("transformers serve: error that is no valid JSON", b'data: {"error": "unexpected token "x" in template"}\n\n', "unexpected token", "its message is not escaped", verdict="malformed", engine="transformers", tail=()),
    said("Ollama's error", sse({"error": {"message": "llama runner process has terminated: exit status 2", "type": "api_error", "param": None, "code": None}}), "llama runner process has terminated", engine="ollama", tail=()),
    said("LiteLLM's error with a code that is text", sse({"error": {"message": "litellm.APIConnectionError: OpenAIException - peer closed", "type": None, "param": None, "code": "500"}}), "peer closed", engine="litellm"),
    said("TabbyAPI's error", sse({"error": {"message": "Chat completion aborted. Please check the server console.", "trace": None}}).replace(b"\n", b"\r\n"), "Please check the server console", engine="tabbyapi"),
    said("FastAPI's detail as text", sse({"detail": "upstream model not loaded"}), "upstream model not loaded", verdict="error_in_stream", engine=""),
    said("AWS: message alone", sse({"message": "Too many requests, please wait before trying again."}), "Too many requests", verdict="error_in_stream", engine=""),
    said("AWS: Message with a capital", sse({"Message": "Model invocation failed"}), "Model invocation failed", verdict="error_in_stream", engine=""),
    said("Databricks: error_code and message", sse({"error_code": "INTERNAL_ERROR", "message": "served entity is unhealthy"}), "served entity is unhealthy", verdict="error_in_stream", engine=""),
    said("OpenRouter: error in a choice", sse({**payload({"content": ""}, "error"), "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": {"code": 502, "message": "Provider returned error"}}]}), "Provider returned error", engine="openai"),
    said("`event: error` with an object", sse({"error": {"message": "quota exceeded", "type": "quota"}}, event="error"), "quota exceeded", engine=""),
    said("`event: error` in Anthropic's shape", sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, event="error"), "Overloaded", engine=""),
    said("`event: error` without data", b"event: error\n\n", "", "WHATWG: without data nothing is dispatched", verdict="truncated", engine="", arguable=True),
    said("error object with a code only", sse({"error": {"code": "rate_limit_exceeded"}}), "rate_limit_exceeded", engine=""),
    said("error with a message that is an object", sse({"error": {"message": {"text": "inner words"}, "code": 500}}), "inner words", engine="", arguable=True),
    said("list of one error object: Gemini", sse([{"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}]), "The model is overloaded", verdict="malformed", engine="openai"),
    said("errors in an array, GraphQL style", sse({"errors": [{"message": "no capacity"}]}), "no capacity", verdict="error_in_stream", engine=""),
    said("error with control characters", sse({"error": {"message": "bad \u001b[31mred\u001b[0m \u202eword"}}), "bad", engine=""),
    said("error beside content in one chunk", sse({**payload({"content": "b"}), "error": {"message": "half an answer"}}), "half an answer", engine=""),
    Case("error object, connection reset right behind it", "error_in_stream", (*unended(*content(2), sse({"error": {"message": "node lost"}})), 0.03, RST), "the words came before the reset", detail="node lost"),
    Case("error object without a blank line at the end of the body", "error_in_stream", until_close(*content(2), sse({"error": {"message": "cut words"}})[:-1]), "the line is complete; the OpenAI client reads it", detail="cut words", arguable=True),
    Case("`error: {}` and `error: \"\"` on chunks", "ok", stream(chat({"content": "a"}, error={}), chat({"content": "b"}, error=""), chat({"content": "c"}, error=False), text("d"), end(), usage(4), DONE), "the OpenAI client fails on a true value only", chunks=4, arguable=True),
    Case("the model writes an error object as its content", "ok", stream(ROLE, FIRST, text('data: {"error": {"message": "x"}}\n\n'), text("event: error"), text("[DONE]"), LAST, text("data: [DONE]\n\n"), end(), usage(4), END, DONE), "content is no protocol", chunks=4, completion=4),
    refused("FastAPI detail with 200", {"detail": "Not authenticated with upstream"}, "Not authenticated with upstream"),
    refused("a complete chat completion instead of a stream", message("Hello", usage=tokens_used(4)), "", verdict="malformed", why="a stream was requested"),
    refused("plain text under text/event-stream", "upstream connect error or disconnect/reset before headers", "upstream connect error", EVENTS, verdict="malformed", why="no field of an event stream: its first line is shown"),
    refused("HTML login page with 200", "<html><head><title>Sign in</title></head><body></body></html>", "<html>", "content-type: text/html; charset=utf-8", verdict="malformed"),
    refused("problem+json with 200", {"type": "about:blank", "title": "Service Unavailable", "status": 503, "detail": "the upstream is gone"}, "the upstream is gone", "content-type: application/problem+json"),
    refused("ndjson with an error line", '{"error":"model \\"m\\" not found, try pulling it first"}\n', "try pulling it first", "content-type: application/x-ndjson"),
    refused("JSON error under text/event-stream", {"error": {"message": "stream aborted by gateway", "code": 502}}, "stream aborted by gateway", EVENTS),
    refused("gzip with Content-Encoding that nobody asked for", gzip.compress(joined(*good()), mtime=0), "gzip", EVENTS, "content-encoding: gzip", verdict="malformed", arguable=True),
    refused("AWS event stream with 200", b"\x00\x00\x00\x70\x00\x00\x00\x40\xab\xcd\xef\x01\x0b:event-type\x07\x00\x05chunk", "", "content-type: application/vnd.amazon.eventstream", verdict="malformed"),
    refused("`null` with 200", "null", "", verdict="malformed", why="no event stream", arguable=True),
    Case("plain text until close, HTTP/1.0", "malformed", (head("200 OK", "content-type: text/plain", version="HTTP/1.0"), b"busy, come back later\n", FIN), "a 2xx that is no event stream: its first line is shown", detail="busy, come back later"),
    Case("plain text line in the middle of a stream", "truncated", stream(*content(2), b"Internal Server Error\n"), "an engine's own words are never lost", detail="Internal Server Error"),
)
