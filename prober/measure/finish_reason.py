"""Finish reasons: the closed table of those that end an answer properly, by API and engine, and of those that tell of a failure.

A reason in neither table is a failure too, because nobody can tell whether such an answer is complete.

Sources: the API references of OpenAI (chat, Responses: `status` and `incomplete_details.reason`) and Anthropic (Messages); vLLM's and
TGI's `FinishReason`; DeepSeek's, Azure's and OpenRouter's references.
"""

PROPER = frozenset(
    {
        *("stop", "length", "tool_calls", "function_call"),
        *("completed", "max_output_tokens"),  # Responses
        *("end_turn", "max_tokens", "stop_sequence", "tool_use"),  # Messages
    }
)
BEHIND_ANYTHING = frozenset({"", "openai", "litellm"})
PROPER_OF_ENGINES = {"vllm": frozenset({"repetition"}), "tgi": frozenset({"eos_token"})}
# Reasons of a limit of tokens. An answer that was forced to a length and ended for another reason is shorter than that.
LENGTH = frozenset({"length", "max_tokens", "max_output_tokens"})
FAILURES = {
    "abort": "the engine aborted the request",
    "aborted": "the engine aborted the request",
    "cancelled": "the request was cancelled",
    "canceled": "the request was cancelled",
    "content_filter": "a content filter cut the answer",
    "error": "the engine failed",
    "failed": "the engine failed",
    "insufficient_system_resource": "the engine ran out of resources",
    "model_context_window_exceeded": "the context of the model was full",
    "network_error": "a connection inside the server failed",
    "pause_turn": "the server paused the turn, and the answer goes on in another request",
    "refusal": "a classifier stopped the answer",
    "server_error": "the engine failed",
    "timeout": "a time limit of the server passed",
}


def is_proper(reason: str, engine: str) -> bool:
    """Whether an answer of `engine` that ends with `reason` is complete. Behind a gateway or an unknown engine all tables hold."""
    if reason in PROPER or reason in PROPER_OF_ENGINES.get(engine, ()):
        return True
    return engine in BEHIND_ANYTHING and any(reason in reasons for reasons in PROPER_OF_ENGINES.values())


def failure(reason: str) -> str:
    """Text for people on a reason that is not proper."""
    return FAILURES.get(reason, "unknown: the prober cannot tell whether the answer is complete")
