"""Errors inside a stream, in every shape of the field, and 2xx answers that are no event stream."""

# ruff: noqa: E501 -- a table: one line a case

import gzip

from tests.wire.case import HOLD, Case, Limits
from tests.wire.events import DONE, ROLE, chat, compact, content, end, good, payload, sse, text, usage
from tests.wire.families import refused, said
from tests.wire.heads import CHUNKED, EVENTS, JSON, chunk, head, joined, stream, unended

# fmt: off
CASES = (
    said("OpenAI's error object after content", sse({"error": {"message": "The server had an error", "type": "server_error", "param": None, "code": None}}), "The server had an error"),
    said("error object right after the role chunk", sse({"error": {"message": "KV cache exhausted", "type": "InternalServerError", "code": 500}}), "KV cache exhausted", lead=(ROLE,)),
    said("`error:` as a field: llama.cpp of old", b'error: {"code":500,"message":"context shift is disabled","type":"server_error"}\n\n', "context shift is disabled", "llama.cpp wrote the error as a field of its own", engine="llamacpp", tail=()),
    said("vLLM's old `object: error`", sse({"object": "error", "message": "prompt is too long", "type": "BadRequestError", "param": None, "code": 400}), "prompt is too long"),
    said("TGI's error object, overloaded", sse({"error": {"message": "Model is overloaded", "http_status_code": 422}}, lead="data:"), "Model is overloaded", engine="tgi", lead=()),
    said("transformers serve: an error as text", sse({"error": "CUDA error: device-side assert triggered"}), "device-side assert", engine="transformers", tail=()),
    said("LMDeploy's error", sse({"error": {"message": "session is aborted", "type": "internal_error", "code": 500}}), "session is aborted", engine="lmdeploy"),
    said("Ollama's native error line", sse({"error": "an error was encountered while running the model: unexpected EOF"}), "unexpected EOF", engine="ollama", tail=()),
    said("TensorRT-LLM's error", sse({"error": {"message": "Executor worker died", "type": "InternalServerError", "code": 500}}, tail=" "), "Executor worker died", engine="trtllm"),
    said("MLC's error", sse({"error": {"message": "Background loop has errored already", "code": 500}}), "Background loop", engine="mlc"),
    said("FastAPI's detail as a list", sse({"detail": [{"loc": ["body", "messages"], "msg": "field required", "type": "value_error.missing"}]}), "field required", verdict="error_in_stream", engine=""),
    said("AWS: __type and message", sse({"__type": "ThrottlingException", "message": "Rate exceeded"}), "Rate exceeded", verdict="error_in_stream", engine=""),
    said("Cloudflare's list of errors", sse({"success": False, "errors": [{"code": 3040, "message": "Capacity temporarily exceeded"}], "messages": [], "result": None}), "Capacity temporarily exceeded", verdict="error_in_stream", engine=""),
    said("Azure: content filter as an error", sse({"error": {"message": "The response was filtered due to the prompt triggering content management policy.", "type": None, "param": "prompt", "code": "content_filter", "status": 400, "innererror": {"code": "ResponsibleAIPolicyViolation"}}}), "content management policy", engine="openai"),
    said("OpenRouter: error beside the choices", sse({**payload({"content": ""}, "error"), "error": {"code": "server_error", "message": "Provider disconnected"}}), "Provider disconnected", engine="openai"),
    said("`event: error` with words", sse("upstream connect error", event="error"), "upstream connect error", "event: error is an error whatever its data", verdict="error_in_stream", engine=""),
    said("`event: error` with an empty object", sse({}, event="error"), "", "event: error is an error whatever its data", verdict="error_in_stream", engine=""),
    said("`event: error` with a code only", sse({"code": "rate_limit_exceeded"}, event="error"), "rate_limit_exceeded", engine=""),
    said("error object with a message of several lines", sse({"error": {"message": "first line\nsecond line\nthird", "code": 500}}), "first line", engine=""),
    said("error as a list", sse({"error": [{"message": "listed failure"}]}), "listed failure", engine="", arguable=True),
    said("`error: true` with a message beside it", sse({"error": True, "message": "worker was killed"}), "worker was killed", engine=""),
    said("error message of 100 kB", sse({"error": {"message": "trace: " + "x" * 100_000}}), "trace: xxx", engine=""),
    said("error after the finish reason", sse({"error": {"message": "usage accounting failed", "code": 500}}), "usage accounting failed", lead=(*content(), end())),
    said("error object of a node that goes down", sse({"error": {"message": "node is going down"}}), "node is going down", tail=(DONE,), engine=""),
    Case("error object, connection held open", "error_in_stream", (*unended(*content(2), sse({"error": {"message": "engine is dead"}})), HOLD), "an error ends the answer", detail="engine is dead", limits=Limits(stall=0.8, total=1.2)),
    Case("`error: null` on every chunk", "ok", stream(*(chat({"content": w}, error=None) for w in "abcd"), chat({}, "length", error=None), usage(4), DONE), "the OpenAI client fails on a true value only", chunks=4, completion=4),
    Case("`message` and `detail` beside choices", "ok", stream(chat({"content": "a"}, message="fine", detail="none"), text("b"), text("c"), text("d"), end(), usage(4), DONE), "with choices it is a chunk", chunks=4, completion=4),
    refused("JSON error object with 200", {"error": {"message": "model is loading", "type": "unavailable_error", "code": 503}}, "model is loading"),
    refused("AWS message with 200", {"message": "Endpoint request timed out"}, "Endpoint request timed out"),
    refused("plain text with 200", "no backend available\nsecond line", "no backend available", "content-type: text/plain", verdict="malformed"),
    refused("HTML under text/event-stream", "<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>", "<!DOCTYPE html>", EVENTS, verdict="malformed", why="no field of an event stream: its first line is shown"),
    refused("XML with 200", '<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>', "SlowDown", "content-type: application/xml", verdict="malformed"),
    refused("ndjson, Ollama's native stream", '{"model":"m","message":{"role":"assistant","content":"He"},"done":false}\n{"model":"m","message":{"content":""},"done":true,"done_reason":"stop"}\n', '"model":"m"', "content-type: application/x-ndjson", verdict="malformed"),
    refused("JSON chunks without `data:` under text/event-stream", compact(payload({"content": "a"})) + "\n\n" + compact(payload({}, "stop")) + "\n\n", "chat.completion.chunk", EVENTS, verdict="malformed", why="no field of an event stream: its first line is shown"),
    refused("gzip under text/event-stream", gzip.compress(joined(*good()), mtime=0), "", EVENTS, verdict="malformed", why="binary is no event stream"),
    refused("binary with 200", bytes(range(256)) * 4, "", "content-type: application/octet-stream", verdict="malformed"),
    refused("a JSON string with 200", '"service disabled"', "service disabled", verdict="malformed"),
    Case("chunked JSON error with 200", "error_in_stream", stream(b'{"error":{"mess', 0.02, b'age":"cold start failed"}}', head=head("200 OK", JSON, CHUNKED)), "a 2xx that is no event stream: its first line is shown", detail="cold start failed"),
    Case("plain text that is never ended", "timeout_first_token", (head("200 OK", "content-type: text/plain", CHUNKED), chunk(b"please wait\n"), HOLD), "no content in time; the words are shown", detail="please wait", limits=Limits(first_token=0.5, total=0.8), arguable=True),
    Case("Python traceback in the middle of a stream", "truncated", stream(*content(2), b"Traceback (most recent call last):\n  File \"x.py\", line 1\nRuntimeError: boom\n"), "an engine's own words are never lost", detail="Traceback"),
)
