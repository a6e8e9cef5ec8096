"""HTTP statuses and their words."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import HOLD, Case, Limits
from tests.wire.events import DONE, good, sse
from tests.wire.families import status
from tests.wire.heads import CHUNKED, DATE, EVENTS, JSON, body, chunk, head, stream

# fmt: off
CASES = (
    status("401 Unauthorized", "rejected", "our token"),
    status("403 Forbidden", "rejected", "our token"),
    status("405 Method Not Allowed", "rejected", "not in the list of outcomes", arguable=True),
    status("408 Request Timeout", "http_408"),
    status("410 Gone", "rejected", "not in the list of outcomes", arguable=True),
    status("415 Unsupported Media Type", "rejected", "not in the list of outcomes", arguable=True),
    status("422 Unprocessable Content", "rejected", "our request"),
    status("425 Too Early", "rejected", "not in the list of outcomes", arguable=True),
    status("429 Too Many Requests", "http_429", "RFC 9110 §10.2.3: seconds", None, JSON, "Retry-After: 2", name="429 with Retry-After in seconds"),
    status("429 Too Many Requests", "http_429", "RFC 9110 §10.2.3: a date of the past", None, JSON, "Retry-After: Sat, 21 Nov 2020 00:00:00 GMT", name="429 with Retry-After as a date of the past"),
    status("503 Service Unavailable", "http_5xx", "a value that nobody can read changes nothing", None, JSON, "Retry-After: soon", name="503 with Retry-After in words"),
    status("503 Service Unavailable", "http_5xx", "a value without bound changes nothing", None, JSON, "Retry-After: 99999999999999999999", name="503 with an endless Retry-After"),
    status("451 Unavailable For Legal Reasons", "rejected", "not in the list of outcomes", arguable=True),
    status("500 Internal Server Error", "http_5xx"),
    status("502 Bad Gateway", "http_5xx", "nginx", "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body></html>", "Content-Type: text/html", words="", name="nginx's 502 page"),
    status("503 Service Unavailable", "http_5xx", "llama.cpp is loading", {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, words="Loading model", engine="llamacpp", name="llama.cpp's 503 while it loads"),
    status("520 ", "http_5xx", "Cloudflare", "error code: 520", "content-type: text/plain", words="error code: 520", name="Cloudflare's 520"),
    status("529 ", "http_5xx", "Anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, words="Overloaded", name="Anthropic's 529"),
    status("600 What", "http_5xx", "RFC 9110 §15: invalid, treat as 5xx", arguable=True),
    status("099 Low", "malformed", "RFC 9110 §15: first digit 1 to 5", words="", arguable=True),
    status("422 Unprocessable Entity", "rejected", "transformers: unknown fields", {"detail": "Unexpected keys in the request: {'ignore_eos'}"}, words="Unexpected keys", engine="transformers", name="422 with FastAPI's detail"),
    status("400 Bad Request", "rejected", "vLLM", {"error": {"message": "max_tokens=99999 cannot be greater than max_model_len=1024.", "type": "BadRequestError", "param": "max_tokens", "code": 400}}, words="max_model_len", name="vLLM's 400"),
    status("400 Bad Request", "rejected", "vLLM of old", {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError", "param": None, "code": 400}, words="maximum context length", name="vLLM's old 400"),
    status("401 Unauthorized", "rejected", "Azure", {"error": {"code": "401", "message": "Access denied due to invalid subscription key"}}, words="Access denied", engine="openai", name="Azure's 401"),
    status("500 Internal Server Error", "http_5xx", "no words", "", "content-type: text/plain", words="", name="500 with an empty body"),
    status("302 Found", "rejected", "a login page; not in the list of outcomes", "", JSON, "location: https://login.example.test/", words="", arguable=True),
    Case("204 No Content", "empty", (head("204 No Content", DATE),), "nothing was answered", arguable=True),
    Case("206 Partial Content with a good stream", "ok", stream(*good(), head=head("206 Partial Content", EVENTS, CHUNKED)), "any 2xx is a success for clients", arguable=True),
    Case("404 with an endless body", "http_404", (head("404 Not Found", "content-type: text/html", CHUNKED), *((chunk(b"<p>not here</p>" * 400), 0.002) * 200), HOLD), "the status decides; its body has a bound", limits=Limits(first_token=1.0, total=1.2)),
    Case("500 with an event stream", "http_5xx", stream(sse({"error": {"message": "late words"}}), DONE, head=head("500 Internal Server Error", EVENTS, CHUNKED)), "the status decides", detail="late words", arguable=True),
    Case("400 whose words have control characters", "rejected", body("400 Bad Request", {"error": {"message": "no \u001b]0;title\u0007 here"}}), "the status decides", detail="no "),
)
