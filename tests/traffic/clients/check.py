"""Reads the streams of the cases with the official clients, which validate them: what the server calls right must be right to them.

Run by tests/traffic/clients/run.sh in an environment that has `openai` and `anthropic`, and nothing of the prober.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.traffic.answers import Answer, Piece
from tests.traffic.probe_cases import CASES
from tests.traffic.server import Play, Server
from tests.traffic.verdicts import ProbeCase, always
from tests.traffic.wire import MODEL


@dataclass
class Read:
    """An answer as a client has it, or as it was sent."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    tokens: int | None = None


PROMPT = [{"role": "user", "content": "What is the capital of France?"}]


def sent(answer: Answer) -> Read:
    def text(is_wanted: Callable[[Piece], bool]) -> str:
        return "".join(piece.text for piece in answer.pieces if is_wanted(piece))

    counted = answer.tokens - answer.reasoning_tokens * answer.excludes_reasoning
    return Read(
        text(lambda piece: piece.kind in ("text", "tagged")),
        text(lambda piece: piece.kind in ("reasoning", "summary")),
        answer.calls,
        counted if answer.has_usage else None,
    )


async def chat(client: AsyncOpenAI, fields: dict[str, Any]) -> Read:
    read, calls = Read(), dict[int, list[str]]()
    stream = await client.chat.completions.create(
        model=MODEL, messages=PROMPT, stream=True, stream_options={"include_usage": True}, extra_body=fields
    )
    async for chunk in stream:
        if chunk.usage is not None:
            read.tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            read.text += choice.delta.content or ""
            read.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                joined = calls.setdefault(call.index, ["", ""])
                joined[0] += call.function.name or ""
                joined[1] += call.function.arguments or ""
    read.calls = [(name, arguments) for name, arguments in calls.values()]
    return read


async def completions(client: AsyncOpenAI, fields: dict[str, Any]) -> Read:
    read = Read()
    stream = await client.completions.create(
        model=MODEL,
        prompt="The capital of France is",
        stream=True,
        stream_options={"include_usage": True},
        extra_body=fields,
    )
    async for chunk in stream:
        if chunk.usage is not None:
            read.tokens = chunk.usage.completion_tokens
        read.text += "".join(choice.text for choice in chunk.choices)
    return read


async def responses(client: AsyncOpenAI, fields: dict[str, Any]) -> Read:
    """By the client's own accumulator, which fails on deltas that do not fit the items before them."""
    async with client.responses.stream(model=MODEL, input=PROMPT, extra_body=fields) as stream:
        events = [event async for event in stream]
        final = next(event.response for event in events if event.type in ("response.completed", "response.incomplete"))
    reasoning = "".join(
        event.delta
        for event in events
        if event.type in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
    )
    calls = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    return Read(final.output_text, reasoning, calls, final.usage.output_tokens if final.usage else None)


async def messages(client: AsyncAnthropic, fields: dict[str, Any]) -> Read:
    """By the client's own accumulator."""
    async with client.messages.stream(model=MODEL, max_tokens=64, messages=PROMPT, extra_body=fields) as stream:
        final = await stream.get_final_message()
    blocks = final.content
    return Read(
        "".join(block.text for block in blocks if block.type == "text"),
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        [(block.name, json.dumps(block.input)) for block in blocks if block.type == "tool_use"],
        final.usage.output_tokens,
    )


def as_parsed(read: Read) -> Read:
    """With arguments that do not depend on white space; those that are cut stay text."""

    def parsed(arguments: str) -> Any:
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments

    return replace(read, calls=[(name, parsed(arguments)) for name, arguments in read.calls])


def openai(url: str, *, is_strict: bool = True) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0, _strict_response_validation=is_strict)


def anthropic(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(
        base_url=url.removesuffix("/v1"), api_key="none", max_retries=0, _strict_response_validation=True
    )


async def read_by_client(case: ProbeCase, url: str) -> Read:
    if case.api == "messages":
        async with anthropic(url) as client:
            return await messages(client, case.sampling)
    # The client's type of completions does not have the null that chunks before the last have for a reason.
    async with openai(url, is_strict=case.api != "completions") as client:
        return await {"chat": chat, "completions": completions, "responses": responses}[case.api](client, case.sampling)


async def main() -> int:
    answered = [(case, case.reply) for case in CASES if isinstance(case.reply, Answer)]
    plays = {f"case{number}": Play(always(reply), pause_s=0.0) for number, (_, reply) in enumerate(answered)}
    faults = []
    async with Server(plays) as server:
        for name, (case, reply) in zip(plays, answered, strict=True):
            try:
                read = as_parsed(await read_by_client(case, server.url(name)))
            except Exception as problem:  # whatever a client raises is the finding
                faults.append(f"{case.name}: {problem!r} {problem.__cause__}")
            else:
                due = as_parsed(sent(reply))
                faults += [f"{case.name}: read {read}, sent {due}"] if read != due else []
    print(*faults, f"{len(answered)} streams, {len(faults)} not as the official clients read them", sep="\n")
    return 1 if faults else 0


sys.exit(asyncio.run(main()))
