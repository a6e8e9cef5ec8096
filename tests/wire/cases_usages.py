"""Counts of tokens: those of the server, or none."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import (
    DONE,
    MESSAGE_STOP,
    ROLE,
    blocks,
    chat,
    content,
    end,
    legacy,
    message_delta,
    output,
    response,
    response_state,
    response_usage,
    sse,
    text,
    tokens_used,
    usage,
)
from tests.wire.families import counted
from tests.wire.heads import stream

# fmt: off
CASES = (
    counted("usage as integers", 4, 4, why="the plain case", tokens_after_first=3),
    counted("usage as a float with a fraction", 4.5, None, why_no_tpot="unusable"),
    counted("usage NaN", sse({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": "@", "total_tokens": 12}}).replace(b'"@"', b"NaN"), None),
    counted("usage of a million million tokens", 10**12, None, why_no_tpot="unusable"),
    counted("usage `true`", True, None, why_no_tpot="unusable"),
    counted("usage is a list", sse({"choices": [], "usage": [1, 2]}), None, why_no_tpot="unusable"),
    counted("usage of zero beside four chunks", 0, None, "ok", detail="unusable", why_no_tpot="unusable", why="contradicts the content"),
    counted("negative prompt tokens", usage(4, -1), None, why_no_tpot="unusable"),
    counted("zeros only", usage(0, 0), None, why_no_tpot="unusable"),
    counted("usage null", sse({"choices": [], "usage": None}), None, why_no_tpot="the server sent no usage", why="nothing was claimed"),
    counted("usage without counts", sse({"choices": [], "usage": {}}), None, why_no_tpot="the server sent no usage", why="nothing was claimed"),
    counted("no count of the prompt", sse({"choices": [], "usage": {"completion_tokens": 4}}), 4, why="the other count is right", tokens_after_first=3),
    counted("all of the prompt cached", usage(4, 8, prompt_tokens_details={"cached_tokens": 8}), 4, why="as many as the prompt has", tokens_after_first=3),
    counted("cached tokens as a text", usage(4, 8, prompt_tokens_details={"cached_tokens": "8"}), None, why_no_tpot="unusable"),
    counted("usage with choices null", sse({"choices": None, "usage": tokens_used(4)}), 4, why="a chunk without choices"),
    Case("no usage at all", "ok", stream(*content(), end("stop"), END, DONE), "without usage n and TPOT are absent", engine="", completion=None, tokens_after_first=None, chunks=4),
    Case("usage on every chunk, no final one", "ok", stream(FIRST, chat({"content": "a"}, usage=tokens_used(1)), 0.03, chat({"content": "b"}, usage=tokens_used(2)), 0.03, LAST, chat({"content": "cd"}, "length", usage=tokens_used(4)), END, DONE), "the last count is the answer's", chunks=3, completion=4),
    Case("usage that falls from chunk to chunk", "ok", stream(chat({"content": "a"}, usage=tokens_used(3)), chat({"content": "b"}, usage=tokens_used(2)), chat({"content": "c"}, usage=tokens_used(1)), chat({"content": "d"}, "length", usage=tokens_used(4)), usage(4), DONE), "no ITL from a falling count; the last one counts", completion=4, chunks=4),
    Case("two usage chunks that differ", "ok", stream(*content(), end("length"), usage(2), usage(4), END, DONE), "the last one counts", engine="", completion=4),
    Case("llama.cpp's timings without usage", "ok", stream(*content(), chat({}, "length", timings={"cache_n": 0, "prompt_n": 8, "prompt_ms": 30.1, "predicted_n": 4, "predicted_ms": 40.2}), END, DONE), "predicted_n are the completion's tokens", engine="llamacpp", completion=4),
    Case("Groq's usage under x_groq", "ok", stream(*content(), chat({}, "stop", x_groq={"id": "req_1", "usage": tokens_used(4)}), DONE), "Groq's field", engine="openai", chunks=4, completion=4),
    Case("Moonshot's usage in the choice", "ok", stream(*content(), sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": tokens_used(4)}]}), DONE), "Moonshot's field", engine="openai", chunks=4, completion=4),
    Case("messages: no tokens at the end of an answer", "ok", stream(*blocks(), message_delta(output=0), MESSAGE_STOP), "contradicts the content", api="messages", engine="", completion=None, why_no_tpot="unusable"),
    Case("responses: cached tokens above the prompt's", "ok", stream(*output(), END, response("response.completed", response=response_state("completed", usage=response_usage(4) | {"input_tokens_details": {"cached_tokens": 9}}))), "an absurd usage is refused", api="responses", engine="", completion=None, why_no_tpot="unusable"),
    counted("usage as a float without fraction", 4.0, (4, None), why="JSON knows one kind of number; clients read 4.0"),
    counted("usage as text", "4", None, why="no client promises it", why_no_tpot="unusable"),
    counted("negative usage", -4, None),
    counted("absurd prompt tokens", usage(4, 10**15), None, why_no_tpot="unusable"),
    counted("cached tokens above the prompt's", usage(4, 8, prompt_tokens_details={"cached_tokens": 900}), None, why_no_tpot="unusable", detail="900 cached tokens among 8 prompt tokens"),
    counted("usage in a chunk with an empty delta: LiteLLM", chat({}, usage=tokens_used(4)), 4, why="LiteLLM's choices are not empty", engine="litellm"),
    Case("first chunk of three tokens, by its usage", "ok", stream(FIRST, chat({"content": "abc"}, usage=tokens_used(3)), 0.06, LAST, chat({"content": "d"}, "length", usage=tokens_used(4)), usage(4), END, DONE), "TPOT counts the tokens after the first chunk", chunks=2, completion=4, tokens_after_first=1),
    Case("usage zero on every chunk: Ollama completions", "ok", stream(*(legacy(w, usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}) for w in "abcd"), legacy("", "length", usage=tokens_used(4)), DONE), "Ollama writes zeros until the end", api="completions", engine="ollama", completion=4, chunks=4),
    Case("usage per chunk that is not cumulative", "ok", stream(*(chat({"content": w}, usage=tokens_used(1)) for w in "abc"), chat({"content": "d"}, "length", usage=tokens_used(1)), DONE), "some gateways write the chunk's own count", engine="", chunks=4),
    Case("usage of a hundred tokens for one character", "ok", stream(ROLE, text("a"), end("length"), usage(100), DONE), "tokens may be invisible; 100 were asked for and possible", tokens=100, completion=(100, None)),
)
