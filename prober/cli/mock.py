"""`prober mock`: serves an OpenAI API with configurable latencies and faults, and records its true timing."""

import asyncio
import contextlib
import errno
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from prober.cli.console import on_interrupt
from prober.cli.exit_codes import ExitCode, exit_on
from prober.cli.options import Duration, RareOption, quantity
from prober.cli.output import echo
from prober.config.units import duration as parse_duration
from prober.config.units import rate
from prober.mock.completion_request import BLOCK_TOKENS, TOKENIZERS, Tokenizer
from prober.mock.delays import parse_delay
from prober.mock.faults import fault_forms, parse_fault
from prober.mock.server import running
from prober.mock.service import Behaviour, Settings
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
    reasoning: Annotated[int, typer.Option(min=0, help="Reasoning tokens before the answer.")] = 0,
    fault: Annotated[
        list[str] | None, typer.Option(help=f"Fault NAME[:ARGUMENT][/SHARE][@START-END]; repeatable: {fault_forms()}.")
    ] = None,
    engine_version: Annotated[str, RareOption(help="Version that it tells.")] = "0.32.0",
    truth: Annotated[
        Path | None, typer.Option(help="JSONL file that records when requests were received and chunks were written.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random draws.")] = None,
    duration: Duration = "",
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    with exit_on(ValueError, OSError, command="mock"):
        for option, value, known in (("--engine", engine, ENGINES), ("--tokenizer", tokenizer, TOKENIZERS)):
            if value not in known:
                raise ValueError(f"{option} {value!r}: is not one of {', '.join(known)}")
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
                reasoning=reasoning,
            ),
            faults=tuple(parse_fault(text) for text in fault or ()),
            truth=truth,
            seed=seed,
            simulation=_parameters(slots, kv_blocks) if engine == "simulated" else None,
            tokenizer=Tokenizer(tokenizer),
            version=engine_version,
        )
        limit_s = quantity("--duration", duration, parse_duration) if duration else None
    with exit_on(OSError, command="mock", code=ExitCode.FAILED):
        try:
            asyncio.run(_serve(settings, host, port, limit_s))
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE:
                raise
            raise OSError(f"--port {port}: another program listens there; choose another port") from None


def _parameters(slots: int, kv_blocks: int) -> Parameters:
    plausible = Parameters()
    return replace(
        plausible,
        max_sequences=slots or plausible.max_sequences,
        max_batched_tokens=max(slots, plausible.max_batched_tokens),
        kv_blocks=kv_blocks or plausible.kv_blocks,
        prefix_block_tokens=BLOCK_TOKENS,
    )


async def _serve(settings: Settings, host: str, port: int, limit_s: float | None) -> None:
    stop = asyncio.Event()
    on_interrupt(stop.set)
    async with running(settings, port, host=host) as address:
        echo(f"serving {settings.model!r} on {address}/v1", flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await stop.wait()
