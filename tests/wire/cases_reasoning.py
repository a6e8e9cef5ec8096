"""Reasoning that is not streamed, or that is streamed between marks in the content."""

# ruff: noqa: E501 -- a table: one line a case

from typing import Any

from tests.wire.case import ANSWER, END, FIRST, LAST, Case, Script
from tests.wire.events import (
    CREATED,
    DONE,
    ITEM,
    MESSAGE_STOP,
    ROLE,
    block_delta,
    block_start,
    block_stop,
    block_text,
    chat,
    completed,
    end,
    message_delta,
    message_start,
    output_text,
    response,
    response_state,
    response_usage,
    text,
    tokens_used,
    usage,
)
from tests.wire.families import item, mail, reply
from tests.wire.heads import stream

PAUSE = 0.03
WORDS = ("The ", "sum ", "of ", "both ", "is ", "42 ", "as ", "asked")
UNSTREAMED = "tokens that were not streamed"
UNMARKED = "does not show where it ends"
USED_UP = "hidden reasoning used up the limit of tokens"


def paced(*chunks: bytes, answer_at: int | None = None) -> Script:
    """Content chunks every 30 ms, the first and last one marked, and the first one of the answer itself."""
    marks = {0: (FIRST,), len(chunks) - 1: (LAST,)}
    steps: list[Any] = []
    for index, chunk in enumerate(chunks):
        steps += [PAUSE, *marks.get(index, ()), *((ANSWER,) if index == answer_at else ()), chunk]
    return tuple(steps)


def spent(completion: int, reasoning: int, **more: Any) -> bytes:
    """The usage of a chat completion with tokens of reasoning."""
    return usage(completion, completion_tokens_details={"reasoning_tokens": reasoning}, **more)


def hidden(name: str, last: bytes, why: str, verdict: str = "ok", reason: str = "length", **more: Any) -> Case:
    """A chat completion that is silent while the model reasons, then has eight chunks."""
    more = {"chunks": 8, "tokens": 64, "engine": "openai", "why_no_ttft_answer": UNMARKED, **more}
    return Case(f"hidden reasoning: {name}", verdict, stream(ROLE, 0.4, *paced(*map(text, WORDS)), end(reason), last, END, DONE), why, **more)  # fmt: skip


def silent(name: str, verdict: str, last: bytes, why: str, reason: str = "length", **more: Any) -> Case:
    """A chat completion without content."""
    return Case(f"no content: {name}", verdict, stream(ROLE, 0.4, end(reason), last, END, DONE), why, **{"engine": "openai", "chunks": 0, "completion": 64, "tokens": 64, **more})  # fmt: skip


def marked(name: str, chunks: tuple[str, ...], answer_at: int | None, why: str, **more: Any) -> Case:
    """A chat completion whose reasoning, if any, is in the content."""
    no_answer = "" if answer_at is not None else "all content is reasoning"
    script = stream(ROLE, *paced(*map(text, chunks), answer_at=answer_at), end("stop"), usage(len(chunks)), END, DONE)
    more = {"chunks": len(chunks), "tokens_after_first": len(chunks) - 1, "tokens": 64, "engine": "", **more}
    return Case(f"marks of reasoning: {name}", "ok", script, why, why_no_ttft_answer=no_answer, **more)


def response_tokens(output: int, reasoning: int) -> dict[str, Any]:
    """The usage of a response with tokens of reasoning."""
    return {**response_usage(output), "output_tokens_details": {"reasoning_tokens": reasoning}}


def summed(name: str, *opening: Any, output: int, reasoning: int, why: str, **more: Any) -> Case:
    """A response of eight chunks of text behind `opening`."""
    last = response(
        "response.completed", response=response_state("completed", usage=response_tokens(output, reasoning))
    )
    return reply(f"responses: {name}", "ok", stream(CREATED, *opening, 0.4, ITEM, *paced(*map(output_text, WORDS), answer_at=0), END, last), why, tokens=64, **more)  # fmt: skip


def thought(name: str, *thinking: Any, output: int, why: str, **more: Any) -> Case:
    """A message of eight chunks of text behind blocks of thinking."""
    details = more.pop("details", {})
    return mail(f"messages: {name}", "ok", stream(message_start(), *thinking, 0.4, block_start(5), *paced(*(block_text(w, 5) for w in WORDS), answer_at=0), block_stop(5), message_delta("end_turn", output, **details), END, MESSAGE_STOP), why, tokens=64, **more)  # fmt: skip


SUMMARY = {"type": "reasoning.summary", "summary": "hm"}
SIGNED = block_delta("signature_delta", signature="EqQB")
REDACTED = (block_start(0, type="redacted_thinking", data="xxxx"), block_stop())
OMITTED = (block_start(0, type="thinking", thinking="", signature=""), SIGNED, block_stop())
THINKING = (block_start(0, type="thinking", thinking=""), block_delta("thinking_delta", thinking="Let me add them"))

# fmt: off
CASES = (
    hidden("counted apart", spent(48, 40), "the eight chunks are the eight tokens that are no reasoning: 30 ms each", completion=48, tokens_after_first=7),
    hidden("counted apart, with a stop token", spent(49, 40), "the stop token is not streamed", reason="stop", completion=49, tokens_after_first=7),
    hidden("other tokens are counted too", spent(55, 40), "seven more tokens have no chunk: how many a chunk has is not known", completion=55, tokens_after_first=None, why_no_tpot=UNSTREAMED),
    hidden("not counted, more tokens than bytes", usage(120), "a token has a byte at least", why_no_ttft_answer="", completion=120, tokens_after_first=None, why_no_tpot=UNSTREAMED),
    hidden("none: it is in the text without a mark", spent(8, 3), "the eight chunks are the eight tokens of the usage", completion=8, tokens_after_first=7),
    hidden("none at all", usage(8), "the neighbour: all eight tokens are streamed", why_no_ttft_answer="", completion=8, tokens_after_first=7),
    hidden("none, counted as 0", spent(8, 0), "the neighbour: all eight tokens are streamed", why_no_ttft_answer="", completion=8, tokens_after_first=7),
    hidden("beside the completion: xAI", spent(8, 386, total_tokens=8 + 8 + 386), "the total shows that the completion is without reasoning", tokens=512, completion=394, tokens_after_first=7),
    hidden("more than the completion", spent(32, 516), "the usage contradicts itself: reasoning is a part of the completion", completion=None, tokens_after_first=None, why_no_tpot="unusable", detail="516 tokens of reasoning among 32"),
    Case("hidden reasoning: usage on each chunk", "ok", stream(ROLE, 0.4, *paced(*(chat({"content": w}, usage=tokens_used(41 + i)) for i, w in enumerate(WORDS))), end(), spent(48, 40), END, DONE), "the first chunk's count has the reasoning in it", tokens=48, tokens_after_first=7, why_no_ttft_answer=UNMARKED),
    Case("hidden reasoning: usage on each chunk, reasoning in the last only", "ok", stream(ROLE, 0.4, *paced(*(chat({"content": w}, usage=tokens_used(1 + i)) for i, w in enumerate(WORDS))), end(), spent(48, 40), END, DONE), "the chunks' counts are of streamed tokens", tokens=48, tokens_after_first=7, why_no_ttft_answer=UNMARKED),
    Case("hidden reasoning: OpenRouter's summary", "ok", stream(ROLE, 0.4, *paced(chat({"content": "", "reasoning": "hm", "reasoning_details": [SUMMARY]}), *map(text, WORDS), answer_at=1), end(), spent(48, 40), END, DONE), "a summary is not the tokens of reasoning", engine="openai", tokens=64, tokens_after_first=None, why_no_tpot=UNSTREAMED),
    Case("hidden reasoning: LiteLLM's redacted blocks", "ok", stream(ROLE, chat({"content": "", "thinking_blocks": [{"type": "redacted_thinking", "data": "x"}]}), 0.4, *paced(*map(text, WORDS), answer_at=0), end(), usage(48), END, DONE), "how many of the 48 tokens are reasoning is not known", engine="litellm", tokens=64, tokens_after_first=None, why_no_tpot=UNSTREAMED),
    Case("streamed reasoning, counted apart", "ok", stream(ROLE, *paced(*(chat({"reasoning_content": w}) for w in WORDS), *map(text, WORDS), answer_at=8), end(), spent(16, 8), END, DONE), "the neighbour: reasoning is streamed, and its tokens are", engine="sglang", tokens=16, completion=16, tokens_after_first=15),
    Case("forced length: hidden reasoning is a part of it", "ok", stream(ROLE, 0.4, *paced(*map(text, WORDS)), end(), spent(16, 8), END, DONE), "16 tokens were generated", tokens=16, completion=16, tokens_after_first=7, why_no_ttft_answer=UNMARKED),
    Case("forced length: not reached with hidden reasoning", "short", stream(ROLE, 0.4, *paced(*map(text, WORDS)), end(), spent(15, 7), END, DONE), "15 tokens were generated", tokens=16),

    silent("hidden reasoning used up the limit", "ok", spent(64, 64), "as with streamed reasoning: the limit is the prober's", detail=USED_UP),
    silent("hidden reasoning, then stop", "empty", spent(64, 64), "the model had tokens left for an answer", reason="stop", detail="only hidden reasoning"),
    silent("no reasoning either", "empty", usage(64), "the neighbour: at least one content token", detail="had no content"),
    silent("hidden reasoning used up the limit of a checked answer", "wrong_answer", spent(64, 64), "the answer lacks the text", golden="42", detail=USED_UP),

    summed("hidden reasoning, counted apart", item("reasoning"), output=48, reasoning=40, why="the item of reasoning ends before the text", tokens_after_first=7),
    summed("no reasoning", output=8, reasoning=0, why="the neighbour: all eight tokens are streamed", tokens_after_first=7),
    summed("summary of hidden reasoning", item("reasoning"), FIRST, output_text("hm", "response.reasoning_summary_text.delta"), output=48, reasoning=40, why="a summary is not the tokens of reasoning", tokens_after_first=None, why_no_tpot=UNSTREAMED),
    reply("responses: hidden reasoning within the answer", "ok", stream(CREATED, ITEM, PAUSE, FIRST, ANSWER, output_text("The "), item("reasoning"), 0.4, *paced(*map(output_text, WORDS[1:])), END, response("response.completed", response=response_state("completed", usage=response_tokens(48, 40)))), "the time of the answer has reasoning in it", tokens=64, tokens_after_first=None, why_no_tpot=UNSTREAMED),
    reply("responses: hidden reasoning used up the limit", "ok", stream(CREATED, item("reasoning"), 0.4, END, completed(64, "incomplete", "response.incomplete", incomplete_details={"reason": "max_output_tokens"})), "the limit is the prober's", tokens=64, chunks=0, completion=64, detail=USED_UP),

    thought("redacted thinking, then eight tokens", *REDACTED, output=48, why="the usage does not tell how many tokens are thinking", tokens_after_first=None, why_no_tpot=UNSTREAMED),
    thought("thinking with a signature only", *OMITTED, output=48, why="the usage does not tell how many tokens are thinking", tokens_after_first=None, why_no_tpot=UNSTREAMED),
    thought("thinking with a signature only, counted apart", *OMITTED, output=48, details={"output_tokens_details": {"thinking_tokens": 40}}, why="the eight chunks are the eight tokens that are no thinking", completion=48, tokens_after_first=7),
    thought("summary of thinking", FIRST, *THINKING, SIGNED, block_stop(), output=48, why="signed thinking may be a summary", tokens_after_first=None, why_no_tpot=UNSTREAMED),
    thought("no thinking", output=8, why="the neighbour: all eight tokens are streamed", tokens_after_first=7),
    mail("messages: redacted thinking used up the limit", "ok", stream(message_start(), *REDACTED, 0.4, message_delta("max_tokens", 64), END, MESSAGE_STOP), "the limit is the prober's", tokens=64, chunks=0, completion=64, detail=USED_UP),

    *(marked(f"{opening} … {closing}", (opening, "Add ", "them", closing, "\n\n", "The ", "sum"), 5, "the answer begins behind the closing mark and white space") for opening, closing in (
        ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"), ("<seed:think>", "</seed:think>"), ("◁think▷", "◁/think▷"), ("[THINK]", "[/THINK]"),
        ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|channel>thought", "<channel|>"), ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    )),
    marked("split over chunks, behind white space", ("\n", " <", "thi", "nk", ">Add", " them <", "/thi", "nk>", "\nThe", " sum"), 8, "chunks are joined"),
    marked("in one chunk with reasoning and answer", ("<think>Add them</think>The ", "sum"), 0, "the answer begins in the first chunk"),
    marked("empty reasoning", ("<think>", "\n\n", "</think>", "\n\n", "The ", "sum"), 4, "the mark is there, whatever it contains"),
    marked("not closed", ("<think>", "Add ", "them"), None, "the limit was reached while the model reasoned"),
    marked("opened by the prompt", ("Add ", "them", ".\n", "</think>", "\n\n", "The ", "sum"), 5, "DeepSeek-R1's template ends with the opening mark"),
    marked("opened by the prompt, split, without line breaks", ("Add ", "them", "</", "think", ">", "The ", "sum"), 5, "DeepSeek-R1's template ends with the opening mark"),
    marked("opened by the prompt, an answer with a leading space", ("Add", " them", "</think>", " The", " sum"), 3, "as tokens begin with their space"),
    marked("another tag", ("<th", "ead>", "The ", "sum"), 0, "the neighbour: no mark of reasoning"),
    marked("opened within the answer", ("The ", "sum ", "<think>", "x", "</think>", "is"), 0, "the neighbour: marks count at the start"),
    marked("closing mark in a sentence", ("R1 ", "ends ", "with ", "</think>", ", and ", "then"), 0, "the neighbour: a quotation"),
    marked("closing mark in code", ("R1 ends with `", "</think>", "`\n", "and then"), 0, "the neighbour: a quotation"),
    marked("closing mark in a block of code", ("Like this:\n```\n", "hm\n", "</think>", "\n42\n", "```"), 0, "the neighbour: a quotation"),
    marked("closing mark in quotation marks", ('Write "', "</think>", '" first'), 0, "the neighbour: a quotation"),
    marked("closing mark as the second mark", ("Both ", "`<think>` ", "and\n", "</think>", "\n", "count"), 0, "the neighbour: the first mark decides"),
    Case("marks of reasoning: before a tool call", "ok", stream(ROLE, *paced(text("<think>"), text("Add"), chat({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}), answer_at=2), end("tool_calls"), usage(9), END, DONE), "a call is answer", engine="", chunks=3),
    Case("marks of reasoning: golden prompt, the words in reasoning only", "wrong_answer", stream(ROLE, *map(text, ("<think>", "is it 42?", "</think>", "No")), end("stop"), usage(4), DONE), "reasoning is no answer", engine="", golden="42"),
    Case("marks of reasoning: golden prompt, opened by the prompt", "wrong_answer", stream(ROLE, *map(text, ("is it 42?", "</think>", "No")), end("stop"), usage(4), DONE), "reasoning is no answer", engine="", golden="42"),
    Case("marks of reasoning: golden prompt, the words in the answer", "ok", stream(ROLE, *map(text, ("<think>", "No", "</think>", "42")), end("stop"), usage(4), END, DONE), "the neighbour: the answer", engine="", golden="42"),
    Case("usage counts reasoning, marks show it", "ok", stream(ROLE, *paced(*map(text, ("<think>", "Add", "</think>", "42")), answer_at=3), end("stop"), spent(4, 1), END, DONE), "reasoning is streamed, and its tokens are", engine="", chunks=4, tokens_after_first=3),
)
