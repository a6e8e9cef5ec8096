"""OpenAI's Responses API."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import ANSWER, END, FIRST, HOLD, LAST, RST, Limits
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
    response_usage,
    sse,
    text_done,
)
from tests.wire.families import RESPONSE, WHOLE, broken, item, reply, unnamed
from tests.wire.heads import body, stream, unended

# fmt: off
CASES = (
    reply("responses: incomplete by max_output_tokens", "ok", stream(*output(), *text_done(), END, INCOMPLETE), "the requested length was reached", chunks=4, completion=4),
    reply("responses: incomplete by content_filter", "error_in_stream", stream(*output(), completed(4, "incomplete", "response.incomplete", incomplete_details={"reason": "content_filter"})), "the answer was withheld"),
    reply("responses: failed at once", "error_in_stream", stream(CREATED, completed(None, "failed", "response.failed", error={"code": "rate_limit_exceeded", "message": "Slow down"})), "response.failed", detail="Slow down (rate_limit_exceeded)"),
    reply("responses: completed whose status is failed", "error_in_stream", stream(*output(2), completed(2, "failed", error={"code": "server_error", "message": "inner failure"})), "the status inside says so", detail="inner failure"),
    broken("responses: error event, flat", sse({"type": "error", "sequence_number": 9, "code": "server_error", "message": "An internal error occurred", "param": None}, event="error"), "An internal error occurred"),
    reply("responses: llama.cpp's events without sequence numbers", "ok", stream(sse({"type": "response.created", "response": {"id": "resp_1", "object": "response", "status": "in_progress"}}, event="response.created"), sse({"type": "response.in_progress", "response": {"id": "resp_1", "object": "response", "status": "in_progress"}}, event="response.in_progress"), sse({"type": "response.output_item.added", "item": {"content": [], "id": "msg_1", "role": "assistant", "status": "in_progress", "type": "message"}}, event="response.output_item.added"), sse({"type": "response.content_part.added", "item_id": "msg_1", "part": {"type": "output_text", "text": ""}}, event="response.content_part.added"), *(step for i, w in enumerate("abcd") for step in (0.02, *((FIRST,) if i == 0 else ()), *((LAST,) if i == 3 else ()), sse({"type": "response.output_text.delta", "item_id": "msg_1", "delta": w}, event="response.output_text.delta"))), END, completed(4)), "llama-server", engine="llamacpp", chunks=4, completion=4),
    reply("responses: reasoning text, then text", "ok", stream(CREATED, item("reasoning"), 0.02, FIRST, output_text("hm", "response.reasoning_text.delta"), 0.02, output_text("ok", "response.reasoning_text.delta"), 0.05, ANSWER, output_text("Yes"), 0.02, LAST, output_text("."), END, completed(4)), "reasoning is content; the answer has its own first time", chunks=4, completion=4),
    reply("responses: a refusal", "ok", stream(*OPENING, FIRST, output_text("I can", "response.refusal.delta"), LAST, output_text("not.", "response.refusal.delta"), response("response.refusal.done", refusal="I cannot."), END, completed(4)), "a refusal is generated content", completion=4),
    reply("responses: created and in_progress long before the text", "ok", stream(CREATED, IN_PROGRESS, 0.15, *output(opening=(ITEM, PART)), END, completed(4)), "TTFT is not taken from created", chunks=4),
    reply("responses: completed, then reset", "ok", (*unended(*output(), END, completed(4)), 0.02, RST), "completed ends the answer", chunks=4, completion=4),
    reply("responses: clean end without completed", "truncated", stream(*output(), *text_done()), "no last event", detail="without response.completed after 4 content chunks"),
    reply("responses: completed without any text", "empty", stream(*OPENING, completed(0)), "at least one content token"),
    reply("responses: absurd usage", "ok", stream(*output(), END, completed(10**13)), "an absurd usage is refused", chunks=4, completion=None),
    reply("responses: usage with cached tokens", "ok", stream(*output(), END, response("response.completed", response=response_state("completed", usage={"input_tokens": 100, "input_tokens_details": {"cached_tokens": 96}, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 104}))), "cached tokens are the input's", completion=4),
    reply("responses: chat chunks instead", "malformed", stream(*good()), "another API's shape"),
    reply("responses: two message items", "ok", stream(*output(2), *text_done("Hello "), item("message", role="assistant"), output_text("the"), output_text("re,"), *text_done("there,"), END, completed(4)), "the answer may have several items", chunks=4, completion=4),
    reply("responses: not streamed, failed", "error_in_stream", body("200 OK", response_state("failed", error={"code": "server_error", "message": "boom inside"}, output=[])), "the status inside says so", stream=False, detail="boom inside"),
    reply("responses: OpenAI's stream", "ok", stream(*output(), *text_done(), END, completed(4)), chunks=4, completion=4, tokens_after_first=3),
    reply("responses: failed with an error", "error_in_stream", stream(*output(2), completed(2, "failed", "response.failed", error={"code": "server_error", "message": "The model produced invalid output"})), "response.failed", detail="The model produced invalid output"),
    reply("responses: completed whose status is cancelled", "error_in_stream", stream(*output(4), completed(4, "cancelled")), "a cancelled answer is a named failure", detail="cancelled"),
    broken("responses: error event in words", sse("upstream gone", event="error"), "upstream gone", verdict="malformed"),
    reply("responses: without event names", "ok", stream(*unnamed((*output(), *text_done(), END, completed(4)))), "the type is in the data", chunks=4, completion=4),
    reply("responses: reasoning summary, then text", "ok", stream(CREATED, item("reasoning"), 0.02, FIRST, output_text("hm", "response.reasoning_summary_text.delta", summary_index=0), 0.05, ANSWER, output_text("a"), output_text("b"), LAST, output_text("c"), END, completed(4)), "a summary is generated content", chunks=4, completion=4),
    reply("responses: a function call", "ok", stream(CREATED, FIRST, item("function_call", name="f", call_id="c1", arguments=""), 0.02, output_text('{"a"', "response.function_call_arguments.delta"), 0.02, LAST, output_text(":1}", "response.function_call_arguments.delta"), response("response.function_call_arguments.done", item_id="it_1", arguments='{"a":1}'), END, completed(4)), "tool calls are content", completion=4),
    reply("responses: a function call whose arguments come whole", "ok", stream(CREATED, FIRST, LAST, item("function_call", name="f", call_id="c1", arguments=""), 0.05, response("response.output_item.done", output_index=0, item={"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":1}', "status": "completed"}), END, completed(4)), "the item is complete when it is done", chunks=1, completion=4),
    reply("responses: a function call in output_item.done only", "ok", stream(CREATED, 0.05, FIRST, LAST, response("response.output_item.done", output_index=0, item={"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":1}', "status": "completed"}), END, completed(4)), "the call comes in one piece", chunks=1, completion=4),
    reply("responses: no delta, only output_text.done", "empty", stream(*OPENING, 0.1, *text_done("Hello there,"), completed(4)), "the text came in one piece", completion=4),
    reply("responses: output_text.done repeats the text", "ok", stream(*output(), *text_done("Hello there,"), END, completed(4)), "done events are no content", chunks=4, completion=4),
    reply("responses: unknown event types", "ok", stream(*OPENING, response("response.web_search_call.searching", item_id="ws"), response("response.output_text.annotation.added", annotation={}), response("response.future.event", x=1), *output(opening=()), END, completed(4)), "unknown events are ignored", chunks=4, completion=4),
    reply("responses: [DONE] without completed", "truncated", stream(*output(), *text_done(), DONE), "no last event"),
    reply("responses: silence between deltas", "timeout_stall", (*unended(*output(2)), HOLD), "a gap above the limit", limits=Limits(stall=0.4)),
    reply("responses: not streamed", "ok", body("200 OK", response_state("completed", error=None, output=[{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "Hello", "annotations": []}]}], usage=response_usage(4))), "a complete answer has no TTFT", stream=False, completion=4),
    reply("responses: a custom tool's input", "ok", stream(CREATED, item("custom_tool_call", name="sh", input=""), FIRST, output_text("ls", "response.custom_tool_call_input.delta"), LAST, output_text(" -l", "response.custom_tool_call_input.delta"), END, completed(4)), "tool input is content", completion=4),
    reply("responses: a whole response in one event", "malformed", stream(sse(RESPONSE), DONE), WHOLE, detail="the whole answer in one event"),
    reply("responses: text only inside completed", "malformed", stream(CREATED, response("response.completed", response=RESPONSE)), WHOLE, detail="the whole answer in one event"),
    reply("responses: completed repeats the text", "ok", stream(*output(), *text_done(), END, response("response.completed", response=RESPONSE)), "the last event repeats the text", chunks=4, completion=4),
)
