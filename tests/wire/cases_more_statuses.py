"""HTTP statuses and their words. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import FIN, Case
from tests.wire.families import status
from tests.wire.heads import CHUNKED, DATE, JSON, body, head, stream

# fmt: off
CASES = (
    status("400 Bad Request", "rejected", "our request"),
    status("402 Payment Required", "rejected", "not in the list of outcomes", arguable=True),
    status("404 Not Found", "http_404"),
    status("406 Not Acceptable", "rejected", "not in the list of outcomes", arguable=True),
    status("409 Conflict", "rejected", "not in the list of outcomes", arguable=True),
    status("413 Content Too Large", "rejected", "our request"),
    status("418 I'm a teapot", "rejected", "not in the list of outcomes", arguable=True),
    status("424 Failed Dependency", "rejected", "Hugging Face's endpoints use it; not in the list", arguable=True),
    status("429 Too Many Requests", "http_429"),
    status("429 Too Many Requests", "http_429", "RFC 9110 §10.2.3: a date", None, JSON, "retry-after: Fri, 31 Dec 2100 23:59:59 GMT", name="429 with Retry-After as a date"),
    status("503 Service Unavailable", "http_5xx", "RFC 9110 §5.6.7: obsolete forms of a date", None, JSON, "Retry-After: Friday, 31-Dec-99 23:59:59 GMT", name="503 with Retry-After as an RFC 850 date"),
    status("503 Service Unavailable", "http_5xx", "a value that nobody can read changes nothing", None, JSON, "Retry-After: -5", name="503 with a negative Retry-After"),
    status("431 Request Header Fields Too Large", "rejected", "not in the list of outcomes", arguable=True),
    status("499 Client Closed Request", "rejected", "nginx writes it; not in the list", arguable=True),
    status("501 Not Implemented", "http_5xx"),
    status("503 Service Unavailable", "http_5xx", "Envoy", "no healthy upstream", "content-type: text/plain", words="no healthy upstream", name="Envoy's 503 in words"),
    status("504 Gateway Time-out", "http_5xx", "AWS", {"message": "Endpoint request timed out"}, words="Endpoint request timed out", name="AWS API gateway's 504"),
    status("524 ", "http_5xx", "Cloudflare", "<!DOCTYPE html>\n<html><title>A timeout occurred</title></html>", "content-type: text/html", words="", name="Cloudflare's 524 page"),
    status("599 Network Connect Timeout", "http_5xx"),
    status("999 Request denied", "http_5xx", "RFC 9110 §15: invalid, treat as 5xx", arguable=True),
    status("500 Internal Server Error", "http_5xx", "transformers: detail", {"detail": "Internal Server Error: tokenizer failed"}, words="tokenizer failed", engine="transformers", name="500 with FastAPI's detail"),
    status("422 Unprocessable Entity", "rejected", "FastAPI's list", {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {}}]}, words="Field required", name="422 with FastAPI's list"),
    status("404 Not Found", "http_404", "vLLM", {"error": {"message": "The model `nope` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}}, words="does not exist", name="vLLM's 404"),
    status("500 Internal Server Error", "http_5xx", "LiteLLM", {"error": {"message": "litellm.InternalServerError: Connection error.", "type": "internal_server_error", "param": None, "code": "500"}}, words="Connection error", engine="litellm", name="LiteLLM's 500"),
    status("403 Forbidden", "rejected", "AWS XML", '<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "content-type: application/xml", words="AccessDenied", name="AWS's 403 in XML"),
    status("301 Moved Permanently", "rejected", "not in the list of outcomes; a redirect is not followed", "", JSON, "Location: /v2/chat/completions", words="", arguable=True),
    status("307 Temporary Redirect", "rejected", "not in the list of outcomes", "", JSON, "Location: https://elsewhere.test/v1/chat/completions", words="", arguable=True),
    Case("205 Reset Content", "empty", (head("205 Reset Content", "content-length: 0"),), "nothing was answered", arguable=True),
    Case("304 Not Modified", "rejected", (head("304 Not Modified", DATE),), "not in the list of outcomes", arguable=True),
    Case("429 in HTTP/1.0 without a length", "http_429", (head("429 Too Many Requests", JSON, version="HTTP/1.0"), b'{"error":{"message":"slow down"}}', FIN), "the status decides", detail="slow down"),
    Case("503 in chunks", "http_5xx", stream(b'{"error":{"message":"queue ', b'is full"}}', head=head("503 Service Unavailable", JSON, CHUNKED)), "the status decides", detail="queue is full"),
    Case("500 with words in Latin-1", "http_5xx", body("500 Internal Server Error", "Fehler: ung\xfcltig".encode("latin-1"), "content-type: text/plain; charset=iso-8859-1"), "the status decides", detail="Fehler"),
)
