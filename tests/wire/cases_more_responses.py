"""OpenAI's Responses API. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import ANSWER, END, FIN, FIRST, HOLD, LAST, RST, Limits
from tests.wire.events import (
    CREATED,
    DONE,
    OPENING,
    completed,
    output,
    output_text,
    response,
    response_state,
    response_usage,
    sse,
    text_done,
)
from tests.wire.families import broken, item, reply, unnamed
from tests.wire.heads import body, stream, unended

# fmt: off
CASES = (
    reply("responses: OpenAI's stream", "ok", stream(*output(), *text_done(), END, completed(4)), chunks=4, completion=4, tokens_after_first=3),
    reply("responses: vLLM's completed with status incomplete", "ok", stream(*output(), *text_done(), END, completed(4, "incomplete", incomplete_details={"reason": "max_output_tokens"})), "vLLM names the last event completed and says incomplete inside", engine="vllm", chunks=4, completion=4),
    reply("responses: incomplete for an unknown reason", "error_in_stream", stream(*output(), completed(4, "incomplete", "response.incomplete", incomplete_details={"reason": "node_drained"})), "an unknown reason is a named failure", detail="node_drained"),
    reply("responses: failed with an error", "error_in_stream", stream(*output(2), completed(2, "failed", "response.failed", error={"code": "server_error", "message": "The model produced invalid output"})), "response.failed", detail="The model produced invalid output"),
    reply("responses: failed without an error object", "error_in_stream", stream(*output(2), completed(2, "failed", "response.failed", error=None)), "response.failed"),
    reply("responses: completed whose status is cancelled", "error_in_stream", stream(*output(4), completed(4, "cancelled")), "a cancelled answer is a named failure", detail="cancelled"),
    broken("responses: error event without a code", sse({"type": "error", "message": "worker lost"}, event="error"), "worker lost"),
    broken("responses: error type without an event name", sse({"type": "error", "code": "x", "message": "no event name"}), "no event name"),
    broken("responses: error event in words", sse("upstream gone", event="error"), "upstream gone", verdict="malformed"),
    reply("responses: without event names", "ok", stream(*unnamed((*output(), *text_done(), END, completed(4)))), "the type is in the data", chunks=4, completion=4),
    reply("responses: reasoning summary, then text", "ok", stream(CREATED, item("reasoning"), 0.02, FIRST, output_text("hm", "response.reasoning_summary_text.delta", summary_index=0), 0.05, ANSWER, output_text("a"), output_text("b"), LAST, output_text("c"), END, completed(4)), "a summary is generated content", chunks=4, completion=4, arguable=True),
    reply("responses: a function call", "ok", stream(CREATED, FIRST, item("function_call", name="f", call_id="c1", arguments=""), 0.02, output_text('{"a"', "response.function_call_arguments.delta"), 0.02, LAST, output_text(":1}", "response.function_call_arguments.delta"), response("response.function_call_arguments.done", item_id="it_1", arguments='{"a":1}'), END, completed(4)), "tool calls are content", completion=4),
    reply("responses: no delta, only output_text.done", "empty", stream(*OPENING, 0.1, *text_done("Hello there,"), completed(4)), "the text came in one piece", completion=4, arguable=True),
    reply("responses: output_text.done repeats the text", "ok", stream(*output(), *text_done("Hello there,"), END, completed(4)), "done events are no content", chunks=4, completion=4),
    reply("responses: queued, then in progress", "ok", stream(response("response.queued", response=response_state("queued")), *output(), END, completed(4)), "background answers are queued first", chunks=4),
    reply("responses: unknown event types", "ok", stream(*OPENING, response("response.web_search_call.searching", item_id="ws"), response("response.output_text.annotation.added", annotation={}), response("response.future.event", x=1), *output(opening=()), END, completed(4)), "unknown events are ignored", chunks=4, completion=4),
    reply("responses: completed, then held open", "ok", (*unended(*output(), END, completed(4)), HOLD), "completed ends the answer", chunks=4, completion=4),
    reply("responses: completed, then FIN without the last chunk", "ok", (*unended(*output(), END, completed(4)), FIN), "completed ends the answer", chunks=4, completion=4),
    reply("responses: [DONE] without completed", "truncated", stream(*output(), *text_done(), DONE), "no last event"),
    reply("responses: reset between deltas", "reset", (*unended(*output(2)), 0.02, RST), "reset", chunks=2),
    reply("responses: silence between deltas", "timeout_stall", (*unended(*output(2)), HOLD), "a gap above the limit", limits=Limits(stall=0.4)),
    reply("responses: completed without usage", "ok", stream(*output(), END, response("response.completed", response=response_state("completed", usage=None))), "without usage n is absent", chunks=4, completion=None, tokens_after_first=None),
    reply("responses: usage as a float", "ok", stream(*output(), END, completed(4.0)), "JSON knows one kind of number", completion=(4, None)),
    reply("responses: JSON error with 200", "error_in_stream", body("200 OK", {"error": {"message": "no such model", "type": "invalid_request_error"}}), "a 2xx that is no event stream", detail="no such model"),
    reply("responses: not served, 404", "http_404", body("404 Not Found", {"detail": "Not Found"}), "the status decides", detail="Not Found"),
    reply("responses: not streamed", "ok", body("200 OK", response_state("completed", error=None, output=[{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "Hello", "annotations": []}]}], usage=response_usage(4))), "a complete answer has no TTFT", stream=False, completion=4),
    reply("responses: a custom tool's input", "ok", stream(CREATED, item("custom_tool_call", name="sh", input=""), FIRST, output_text("ls", "response.custom_tool_call_input.delta"), LAST, output_text(" -l", "response.custom_tool_call_input.delta"), END, completed(4)), "tool input is content", completion=4, arguable=True),
)
