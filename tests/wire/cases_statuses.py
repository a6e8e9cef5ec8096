"""HTTP statuses and their words."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import FIN, HOLD, Case, Limits
from tests.wire.events import DONE, good, sse
from tests.wire.families import status
from tests.wire.heads import CHUNKED, DATE, EVENTS, JSON, body, chunk, head, stream

# fmt: off
CASES = (
    status("401 Unauthorized", "rejected", "our token"),
    status("408 Request Timeout", "http_408"),
    status("422 Unprocessable Content", "rejected", "our request"),
    status("429 Too Many Requests", "http_429", "RFC 9110 §10.2.3: seconds", None, JSON, "Retry-After: 2", name="429 with Retry-After in seconds"),
    status("503 Service Unavailable", "http_5xx", "a value that nobody can read changes nothing", None, JSON, "Retry-After: soon", name="503 with Retry-After in words"),
    status("502 Bad Gateway", "http_5xx", "nginx", "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body></html>", "Content-Type: text/html", words="", name="nginx's 502 page"),
    status("529 ", "http_5xx", "Anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, words="Overloaded", name="Anthropic's 529"),
    status("600 What", "http_5xx", "RFC 9110 §15: invalid, treat as 5xx"),
    status("099 Low", "malformed", "RFC 9110 §15: first digit 1 to 5", words=""),
    status("400 Bad Request", "rejected", "vLLM of old", {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError", "param": None, "code": 400}, words="maximum context length", name="vLLM's old 400"),
    status("500 Internal Server Error", "http_5xx", "no words", "", "content-type: text/plain", words="", name="500 with an empty body"),
    status("302 Found", "rejected", "a login page; not in the list of outcomes", "", JSON, "location: https://u:pw@login.example.test/in?state=s3cr3t", words="redirects are not followed (to …@login.example.test/in?…)"),
    status("307 Temporary Redirect", "rejected", "the place is shown on one line, and no more than 300 characters of it", "", JSON, "location: /" + "x" * 9000, words=f"(to /{'x' * 298}…); set the url"),
    status("308 Permanent Redirect", "rejected", "a redirect that leads nowhere", words="words of the server: redirects are not followed; set"),
    status("401 Unauthorized", "rejected", "the status decides; it is not repeated as the code", {"error": {"code": "401", "message": "Access denied due to invalid subscription key or wrong API endpoint."}}, words="HTTP 401: Access denied due to invalid subscription key or wrong API endpoint.", name="Azure's 401"),
    status("404 Resource Not Found", "http_404", "a code that is a name is shown", {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}}, words="does not exist. (DeploymentNotFound)", name="Azure's 404 without a deployment"),
    status("429 Too Many Requests", "rejected", "the account has no money; type and code are one word, which is shown once", {"error": {"message": "You exceeded your current quota, please check your plan.", "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}}, words="check your plan. (insufficient_quota); the account of this target needs money or a higher limit", name="OpenAI's 429 without a quota"),
    status("429 Too Many Requests", "http_429", "a limit of requests, which users meet too", {"error": {"message": "Rate limit reached for gpt-5 in organization org-x on requests per min (RPM): Limit 3, Used 3, Requested 1.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}, words="(rate_limit_exceeded)", name="OpenAI's 429 of too many requests"),
    status("429 Too Many Requests", "rejected", "the budget of a key of the gateway", {"error": {"message": "Budget has been exceeded! Current cost: 2.0, Max budget: 1.0", "type": "budget_exceeded", "param": None, "code": "429"}}, words="(budget_exceeded); the account of this target needs money or a higher limit", name="LiteLLM's 429 without a budget"),
    status("402 Payment Required", "rejected", "DeepSeek's error codes", {"error": {"message": "Insufficient Balance", "type": "unknown_error", "param": None, "code": "invalid_request_error"}}, words="(unknown_error, invalid_request_error); the account of this target needs money or a higher limit"),
    status("400 Bad Request", "rejected", "Anthropic's want of money has the status of a bad request", {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}, words="the account of this target needs money or a higher limit", name="Anthropic's 400 without credits"),
    status("400 Bad Request", "rejected", "type and code are shown beside words that are cut", {"error": {"message": "long " * 99, "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"}}, words="… (invalid_request_error, context_length_exceeded)", name="OpenAI's 400 with many words"),
    Case("204 No Content", "empty", (head("204 No Content", DATE),), "nothing was answered"),
    Case("206 Partial Content with a good stream", "ok", stream(*good(), head=head("206 Partial Content", EVENTS, CHUNKED)), "any 2xx is a success for clients"),
    Case("404 with an endless body", "http_404", (head("404 Not Found", "content-type: text/html", CHUNKED), *((chunk(b"<p>not here</p>" * 400), 0.002) * 200), HOLD), "the status decides; its body has a bound", limits=Limits(first_token=1.0, total=1.2)),
    Case("500 with an event stream", "http_5xx", stream(sse({"error": {"message": "late words"}}), DONE, head=head("500 Internal Server Error", EVENTS, CHUNKED)), "the status decides", detail="late words"),
    Case("400 whose words have control characters", "rejected", body("400 Bad Request", {"error": {"message": "no \u001b]0;title\u0007 here"}}), "the status decides", detail="no "),
    status("404 Not Found", "http_404"),
    status("413 Content Too Large", "rejected", "our request"),
    status("418 I'm a teapot", "rejected", "not in the list of outcomes"),
    status("429 Too Many Requests", "http_429", "RFC 9110 §10.2.3: a date", None, JSON, "retry-after: Fri, 31 Dec 2100 23:59:59 GMT", name="429 with Retry-After as a date"),
    status("422 Unprocessable Entity", "rejected", "FastAPI's list", {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {}}]}, words="Field required", name="422 with FastAPI's list"),
    status("422 Unprocessable Entity", "rejected", "FastAPI names the field in `loc`", {"detail": [{"type": "extra_forbidden", "loc": ["body", "best_of"], "msg": "Extra inputs are not permitted", "input": 2}]}, words="best_of: Extra inputs are not permitted (extra_forbidden)", name="422 with a field in `loc`"),
    status("422 Unprocessable Entity", "rejected", "each of the fields is named", {"detail": [{"loc": ["body", "user"], "msg": "not permitted"}, {"loc": ["body", "stream_options"], "msg": "not permitted"}]}, words="user: not permitted; stream_options: not permitted; `user: null`, `stream_options: null` in `sampling` leaves it out", engine="openai", name="422 with two fields that the prober sends by itself"),
    status("422 Unprocessable Entity", "rejected", "a union's branch is no field", {"detail": [{"loc": ["body", "function-wrap[__log_extra_fields__()]", "messages", 0, "content"], "msg": "bad"}]}, words="messages.0.content: bad", name="422 with a nested field"),
    status("400 Bad Request", "rejected", "the field is in `error.field`", {"error": {"message": "unknown field", "field": "logit_bias"}}, words="logit_bias: unknown field", name="400 with `error.field`"),
    status("400 Bad Request", "rejected", "the field is in `errors[].path`", {"message": "Validation failed", "errors": [{"path": ["best_of"], "message": "Unrecognized key"}]}, words="best_of: Unrecognized key", name="400 with `errors[].path`"),
    status("400 Bad Request", "rejected", "the path of the URL is no field", {"status": 400, "error": "Bad Request", "path": "/v1/chat/completions"}, words="HTTP 400: Bad Request", name="Spring's 400"),
    status("400 Bad Request", "rejected", "a field that the words have is not repeated", {"error": {"message": "Unsupported value: 'n'", "param": "n"}}, words="HTTP 400: Unsupported value: 'n'", name="400 with `error.param` in its words"),
    status("400 Bad Request", "rejected", "`user` is a word of every day", {"error": {"message": "the user must speak first"}}, words="the user must speak first", name="400 that speaks of the user"),
    status("403 Forbidden", "rejected", "AWS XML", '<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "content-type: application/xml", words="AccessDenied", name="AWS's 403 in XML"),
    Case("205 Reset Content", "empty", (head("205 Reset Content", "content-length: 0"),), "nothing was answered"),
    Case("304 Not Modified", "rejected", (head("304 Not Modified", DATE),), "not in the list of outcomes"),
    Case("429 in HTTP/1.0 without a length", "http_429", (head("429 Too Many Requests", JSON, version="HTTP/1.0"), b'{"error":{"message":"slow down"}}', FIN), "the status decides", detail="slow down"),
    Case("503 in chunks", "http_5xx", stream(b'{"error":{"message":"queue ', b'is full"}}', head=head("503 Service Unavailable", JSON, CHUNKED)), "the status decides", detail="queue is full"),
    Case("500 with words in Latin-1", "http_5xx", body("500 Internal Server Error", "Fehler: ung\xfcltig".encode("latin-1"), "content-type: text/plain; charset=iso-8859-1"), "the status decides", detail="Fehler"),
)
