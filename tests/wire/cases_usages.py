"""Usage: where it stands, and what it may not say."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import DONE, chat, content, end, sse, tokens_used, usage
from tests.wire.families import counted
from tests.wire.heads import stream

# fmt: off
CASES = (
    counted("usage as integers", 4, 4, why="the plain case", tokens_after_first=3),
    counted("usage as a float with a fraction", 4.5, None, arguable=True),
    counted("usage NaN", sse({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": "@", "total_tokens": 12}}).replace(b'"@"', b"NaN"), None),
    counted("usage 1e400", sse({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": "@", "total_tokens": 12}}).replace(b'"@"', b"1e400"), None),
    counted("usage of a million million tokens", 10**12, None),
    counted("usage `true`", True, None),
    counted("usage is an empty object", sse({"choices": [], "usage": {}}), None, why="nothing was counted", tokens_after_first=None),
    counted("usage is a list", sse({"choices": [], "usage": [1, 2]}), None),
    counted("usage of zero beside four chunks", 0, (0, None), "ok", why="contradicts the content", arguable=True),
    counted("negative prompt tokens", usage(4, -1), 4, why="the prompt's count is refused, the answer's is not"),
    counted("cached tokens as text", usage(4, 8, prompt_tokens_details={"cached_tokens": "many"}), 4, why="the cached count is refused"),
    counted("completion_tokens_details with reasoning tokens", usage(4, 8, completion_tokens_details={"reasoning_tokens": 2}), 4, why="part of the completion's count"),
    counted("usage with choices null", sse({"choices": None, "usage": tokens_used(4)}), 4, why="a chunk without choices"),
    Case("no usage at all", "ok", stream(*content(), end("stop"), END, DONE), "without usage n and TPOT are absent", engine="", completion=None, tokens_after_first=None, chunks=4),
    Case("usage on every chunk, no final one", "ok", stream(FIRST, chat({"content": "a"}, usage=tokens_used(1)), 0.03, chat({"content": "b"}, usage=tokens_used(2)), 0.03, LAST, chat({"content": "cd"}, "length", usage=tokens_used(4)), END, DONE), "the last count is the answer's", chunks=3, completion=4),
    Case("usage null on every chunk: LMDeploy", "ok", stream(*(chat({"content": w}, usage=None) for w in "abcd"), chat({"content": ""}, "length", usage=None), usage(4), DONE), "LMDeploy writes it so", engine="lmdeploy", completion=4, chunks=4),
    Case("usage that falls from chunk to chunk", "ok", stream(chat({"content": "a"}, usage=tokens_used(3)), chat({"content": "b"}, usage=tokens_used(2)), chat({"content": "c"}, usage=tokens_used(1)), chat({"content": "d"}, "length", usage=tokens_used(4)), usage(4), DONE), "no ITL from a falling count; the last one counts", completion=4, chunks=4),
    Case("two usage chunks that differ", "ok", stream(*content(), end("length"), usage(2), usage(4), END, DONE), "the last one counts", engine="", completion=4),
    Case("llama.cpp's timings without usage", "ok", stream(*content(), chat({}, "length", timings={"cache_n": 0, "prompt_n": 8, "prompt_ms": 30.1, "predicted_n": 4, "predicted_ms": 40.2}), END, DONE), "predicted_n are the completion's tokens", engine="llamacpp", completion=4),
    Case("Groq's usage under x_groq", "ok", stream(*content(), chat({}, "stop", x_groq={"id": "req_1", "usage": tokens_used(4)}), DONE), "not the API's field", engine="openai", chunks=4, completion=(4, None), arguable=True),
)
