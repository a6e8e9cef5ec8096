"""`prober mock`: serves an OpenAI API with configurable latencies and faults, and records its true timing."""

import asyncio
import contextlib
import signal
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from prober.cli.exit_codes import ExitCode, exit_on
from prober.cli.options import RareOption
from prober.cli.output import echo
from prober.config.units import duration, rate
from prober.mock.adapters import AdapterSettings
from prober.mock.completion_request import BLOCK_TOKENS, TOKENIZERS, Tokenizer
from prober.mock.delays import parse_delay
from prober.mock.faults import fault_forms, parse_fault
from prober.mock.server import running
from prober.mock.service import Behaviour, Settings
from prober.mock.structured_answer import CALL_FORMS
from prober.mock.wire import LINE_ENDS, REASONING_FIELDS, ROLE_CHUNKS, USAGES, Wire
from prober.simulation.parameters import Parameters

ENGINES = ("drawn", "simulated")
DRAWN_TTFT, DRAWN_ITL = "50ms", "10ms"


def mock(
    host: Annotated[str, RareOption(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: take a free one and print it.")
    ] = 8000,
    model: Annotated[str, typer.Option(help="Name of the served model.")] = "mock",
    engine: Annotated[str, typer.Option(help="drawn: chosen delays; simulated: requests share a batch.")] = "drawn",
    ttft: Annotated[
        str, typer.Option(help="TTFT: 50ms, lognormal:MEDIAN:SIGMA or uniform:LOW:HIGH; drawn only.")
    ] = DRAWN_TTFT,
    itl: Annotated[str, typer.Option(help="Delay between tokens, in the same form; drawn only.")] = DRAWN_ITL,
    slots: Annotated[int, typer.Option(min=0, help="Requests served at a time, the others queue; 0: no limit.")] = 0,
    kv_blocks: Annotated[int, RareOption(min=0, help="KV cache, blocks of 16 tokens; 0: 25000; simulated only.")] = 0,
    background: Annotated[str, RareOption(help="Rate of background load, such as 2/s.")] = "",
    tokenizer: Annotated[str, RareOption(help=f"Tokens of prompts: {', '.join(TOKENIZERS)}.")] = "words",
    template_tokens: Annotated[int, RareOption(min=0, help="Tokens that the chat template adds to a prompt.")] = 0,
    tokens_per_chunk: Annotated[int, RareOption(min=1)] = 1,
    reasoning: Annotated[int, typer.Option(min=0, help="Reasoning tokens before the answer.")] = 0,
    adapters: Annotated[str, RareOption(help="Names of LoRA adapters, such as a,b,c; drawn only.")] = "",
    adapter_slots: Annotated[int, RareOption(min=1, help="Adapters that are loaded at a time.")] = 1,
    adapter_load: Annotated[str, RareOption(help="Time to load an adapter, in the form of --ttft.")] = "500ms",
    reasoning_field: Annotated[str, RareOption(help=" or ".join(REASONING_FIELDS))] = "reasoning",
    role_chunk: Annotated[str, RareOption(help=", ".join(ROLE_CHUNKS))] = "with-first",
    calls: Annotated[str, RareOption(help=f"Form of tool calls: {', '.join(CALL_FORMS)}.")] = "pieces",
    usage: Annotated[str, RareOption(help=", ".join(USAGES))] = "final",
    done: Annotated[bool, RareOption(help="End streams with [DONE].")] = True,
    line_ending: Annotated[str, RareOption(help=", ".join(LINE_ENDS))] = "lf",
    keepalive: Annotated[str, RareOption(help="Send a comment after this time without a write, such as 15s.")] = "",
    fault: Annotated[
        list[str] | None, typer.Option(help=f"Fault NAME[:ARGUMENT][/SHARE][@START-END]; repeatable: {fault_forms()}.")
    ] = None,
    engine_version: Annotated[str, RareOption(help="Version that it tells.")] = "0.32.0",
    truth: Annotated[
        Path | None, typer.Option(help="JSONL file that records when requests were received and chunks were written.")
    ] = None,
    tls_cert: Annotated[Path | None, RareOption(help="PEM certificate; enables https.")] = None,
    tls_key: Annotated[Path | None, RareOption(help="PEM key.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Bearer token that /v1 requires.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random draws.")] = None,
    start_delay: Annotated[str, RareOption(help="Report that the model is loading for this time.")] = "",
    ends_after: Annotated[str, typer.Option("--duration", help="Exit after this time.")] = "",
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    with exit_on(ValueError, OSError, command="mock"):
        choices = (
            (engine, ENGINES),
            (tokenizer, tuple(TOKENIZERS)),
            (role_chunk, ROLE_CHUNKS),
            (calls, CALL_FORMS),
            (usage, USAGES),
            (line_ending, LINE_ENDS),
            (reasoning_field, REASONING_FIELDS),
        )
        for value, known in choices:
            if value not in known:
                raise ValueError(f"{value!r} is not one of {', '.join(known)}")
        if engine == "simulated" and (ttft, itl) != (DRAWN_TTFT, DRAWN_ITL):
            raise ValueError("--ttft and --itl are of the drawn engine; the simulated one takes what its steps take")
        if engine == "drawn" and kv_blocks:
            raise ValueError("--kv-blocks is of the simulated engine; add --engine simulated")
        settings = Settings(
            model=model,
            behaviour=Behaviour(
                ttft=parse_delay(ttft),
                itl=parse_delay(itl),
                slots=slots,
                background_per_s=rate(background) if background else 0.0,
                tokens_per_chunk=tokens_per_chunk,
                reasoning=reasoning,
            ),
            wire=Wire(
                role_chunk,
                usage,
                done,
                reasoning_field,
                LINE_ENDS[line_ending],
                duration(keepalive) if keepalive else 0.0,
                calls,
            ),
            faults=tuple(parse_fault(text) for text in fault or ()),
            truth=truth,
            api_key=api_key,
            seed=seed,
            start_delay_s=duration(start_delay) if start_delay else 0.0,
            simulation=_parameters(slots, kv_blocks) if engine == "simulated" else None,
            tokenizer=Tokenizer(tokenizer, template_tokens),
            adapters=AdapterSettings(
                tuple(filter(None, (name.strip() for name in adapters.split(",")))),
                adapter_slots,
                parse_delay(adapter_load),
            ),
            version=engine_version,
        )
        limit_s = duration(ends_after) if ends_after else None
        tls = None
        if tls_cert:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(tls_cert, tls_key)
    with exit_on(OSError, command="mock", code=ExitCode.FAILED):
        asyncio.run(_serve(settings, host, port, tls, limit_s))


def _parameters(slots: int, kv_blocks: int) -> Parameters:
    plausible = Parameters()
    return replace(
        plausible,
        max_sequences=slots or plausible.max_sequences,
        max_batched_tokens=max(slots, plausible.max_batched_tokens),
        kv_blocks=kv_blocks or plausible.kv_blocks,
        prefix_block_tokens=BLOCK_TOKENS,
    )


async def _serve(settings: Settings, host: str, port: int, tls: ssl.SSLContext | None, limit_s: float | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, port, host=host, tls=tls) as address:
        echo(f"serving {settings.model!r} on {address}/v1", flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await stop.wait()
