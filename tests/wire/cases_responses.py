"""OpenAI's Responses API."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import ANSWER, END, FIN, FIRST, HOLD, LAST, RST, Limits
from tests.wire.events import (
    CREATED,
    DONE,
    IN_PROGRESS,
    INCOMPLETE,
    ITEM,
    OPENING,
    PART,
    completed,
    good,
    output,
    output_text,
    response,
    response_state,
    sse,
    text_done,
)
from tests.wire.families import broken, item, reply
from tests.wire.heads import body, stream, unended

# fmt: off
CASES = (
    reply("responses: incomplete by max_output_tokens", "ok", stream(*output(), *text_done(), END, INCOMPLETE), "the requested length was reached", chunks=4, completion=4),
    reply("responses: incomplete by content_filter", "error_in_stream", stream(*output(), completed(4, "incomplete", "response.incomplete", incomplete_details={"reason": "content_filter"})), "the answer was withheld", arguable=True),
    reply("responses: incomplete without a reason", "error_in_stream", stream(*output(), completed(4, "incomplete", "response.incomplete", incomplete_details=None)), "nothing says why", arguable=True),
    reply("responses: failed at once", "error_in_stream", stream(CREATED, completed(None, "failed", "response.failed", error={"code": "rate_limit_exceeded", "message": "Slow down"})), "response.failed", detail="Slow down"),
    reply("responses: completed whose status is failed", "error_in_stream", stream(*output(2), completed(2, "failed", error={"code": "server_error", "message": "inner failure"})), "the status inside says so", detail="inner failure"),
    broken("responses: error event, flat", sse({"type": "error", "sequence_number": 9, "code": "server_error", "message": "An internal error occurred", "param": None}, event="error"), "An internal error occurred"),
    broken("responses: error event with an object", sse({"type": "error", "error": {"type": "server_error", "message": "nested words"}}, event="error"), "nested words"),
    broken("responses: chat's error object", sse({"error": {"message": "vLLM's words", "type": "InternalServerError", "code": 500}}), "vLLM's words"),
    reply("responses: llama.cpp's events without sequence numbers", "ok", stream(sse({"type": "response.created", "response": {"id": "resp_1", "object": "response", "status": "in_progress"}}, event="response.created"), sse({"type": "response.in_progress", "response": {"id": "resp_1", "object": "response", "status": "in_progress"}}, event="response.in_progress"), sse({"type": "response.output_item.added", "item": {"content": [], "id": "msg_1", "role": "assistant", "status": "in_progress", "type": "message"}}, event="response.output_item.added"), sse({"type": "response.content_part.added", "item_id": "msg_1", "part": {"type": "output_text", "text": ""}}, event="response.content_part.added"), *(step for i, w in enumerate("abcd") for step in (0.02, *((FIRST,) if i == 0 else ()), *((LAST,) if i == 3 else ()), sse({"type": "response.output_text.delta", "item_id": "msg_1", "delta": w}, event="response.output_text.delta"))), END, completed(4)), "llama-server", engine="llamacpp", chunks=4, completion=4),
    reply("responses: reasoning text, then text", "ok", stream(CREATED, item("reasoning"), 0.02, FIRST, output_text("hm", "response.reasoning_text.delta"), 0.02, output_text("ok", "response.reasoning_text.delta"), 0.05, ANSWER, output_text("Yes"), 0.02, LAST, output_text("."), END, completed(4)), "reasoning is content; the answer has its own first time", chunks=4, completion=4),
    reply("responses: reasoning only, incomplete", "ok", stream(CREATED, item("reasoning"), FIRST, *(output_text(w, "response.reasoning_text.delta") for w in "abc"), LAST, output_text("d", "response.reasoning_text.delta"), END, INCOMPLETE), "reasoning is content", chunks=4, completion=4),
    reply("responses: a refusal", "ok", stream(*OPENING, FIRST, output_text("I can", "response.refusal.delta"), LAST, output_text("not.", "response.refusal.delta"), response("response.refusal.done", refusal="I cannot."), END, completed(4)), "a refusal is generated content", completion=4, arguable=True),
    reply("responses: text only inside completed", "empty", stream(CREATED, completed(4, output=[{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}])), "the text came in one piece", arguable=True),
    reply("responses: created and in_progress long before the text", "ok", stream(CREATED, IN_PROGRESS, 0.15, *output(opening=(ITEM, PART)), END, completed(4)), "TTFT is not taken from created", chunks=4),
    reply("responses: empty deltas", "ok", stream(*OPENING, output_text(""), 0.1, *output(opening=()), END, completed(4)), "an empty text is no content", chunks=4),
    reply("responses: [DONE] after completed", "ok", stream(*output(), END, completed(4), DONE), "gateways add it", chunks=4, completion=4),
    reply("responses: completed, then reset", "ok", (*unended(*output(), END, completed(4)), 0.02, RST), "completed ends the answer", chunks=4, completion=4),
    reply("responses: clean end without completed", "truncated", stream(*output(), *text_done()), "no last event"),
    reply("responses: closed between deltas", "truncated", (*unended(*output(2)), 0.02, FIN), "no last event", chunks=2),
    reply("responses: silence after created", "timeout_first_token", (*unended(CREATED, IN_PROGRESS), HOLD), "created is no content", limits=Limits(first_token=0.4)),
    reply("responses: completed without any text", "empty", stream(*OPENING, completed(0)), "at least one content token"),
    reply("responses: absurd usage", "ok", stream(*output(), END, completed(10**13)), "an absurd usage is refused", chunks=4, completion=None),
    reply("responses: usage with cached tokens", "ok", stream(*output(), END, response("response.completed", response=response_state("completed", usage={"input_tokens": 100, "input_tokens_details": {"cached_tokens": 96}, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 104}))), "cached tokens are the input's", completion=4),
    reply("responses: chat chunks instead", "malformed", stream(*good()), "another API's shape", arguable=True),
    reply("responses: two message items", "ok", stream(*output(2), *text_done("Hello "), item("message", role="assistant"), output_text("the"), output_text("re,"), *text_done("there,"), END, completed(4)), "the answer may have several items", chunks=4, completion=4),
    reply("responses: not streamed, failed", "error_in_stream", body("200 OK", response_state("failed", error={"code": "server_error", "message": "boom inside"}, output=[])), "the status inside says so", stream=False, detail="boom inside"),
)
