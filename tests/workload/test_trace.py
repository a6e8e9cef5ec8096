"""Parsing of published traces, and errors for invalid ones."""

import json
from collections.abc import Sequence
from random import Random

import pytest

from prober.measure.request import Request
from prober.workload.shapes import Fixed
from prober.workload.trace import BLOCK_TOKENS, BadTrace, Trace, parse_trace
from prober.workload.workloads import RequestGenerator, TraceWorkload

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
NEEDS_JSON = "needs a JSON object with timestamp (ms), input_length, output_length and, if known, hash_ids"
NEEDS_CSV = "needs a time, prompt tokens and generated tokens, such as 2023-11-16 18:15:46.68,374,44"


def mooncake(**changes: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 9, "output_length": 1} | changes)


def draws(trace: Trace, count: int) -> list[Request]:
    drawer = RequestGenerator(TraceWorkload("t", Fixed(1), Fixed(1), trace=trace), Random(1))
    return [drawer.draw(i) for i in range(count)]


def test_rows_are_sorted_by_time() -> None:
    """Offsets ascend from 0, and each row keeps its lengths and blocks."""
    rows = [mooncake(timestamp=3500, input_length=7, hash_ids=[2]), mooncake(timestamp=500, input_length=5)]
    assert parse_trace("\n".join(rows), "t") == Trace((0, 3_000_000_000), (5, 7), (1, 1), ((), (2,)))


@pytest.mark.parametrize(
    ("first", "second", "offset_ns"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901", 100),
        ("2023-11-16 18:15:46", "2023-11-16 18:15:46.000000001", 1),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.009931+00:00", 1_000_001_000),
        ("2024-05-10 00:00:00Z", "2024-05-10 02:00:00.5+01:00", 3_600_500_000_000),
    ],
)
def test_times_of_both_azure_releases_are_exact(first: str, second: str, offset_ns: int) -> None:
    """Seven decimals without a zone (2023) and six with one (2024) are read exactly."""
    assert parse_trace(f"{HEADER}{first},1,1\n{second},1,1\n", "t").offsets_ns == (0, offset_ns)


def test_a_byte_order_mark_windows_line_ends_and_empty_lines_are_accepted() -> None:
    """Files written on other systems are read unchanged."""
    text = f"\ufeff{HEADER}2023-11-16 18:15:46,1,2\n\n2023-11-16 18:15:47,3,4\n\n".replace("\n", "\r\n")
    assert parse_trace(text, "t") == Trace((0, 10**9), (1, 3), (2, 4))
    rows = f"\ufeff{mooncake()}\r\n\r\n{mooncake(timestamp=1)}\r\n"
    assert parse_trace(rows, "t").offsets_ns == (0, 1_000_000)


@pytest.mark.parametrize(
    ("times", "seems_in_seconds"),
    [
        (range(0, 3_600), True),  # one a second, and as milliseconds 1,000 a second
        ([0.0, 0.35, 0.9, 1.4, 2.2], True),
        ([1_700_000_000, 1_700_000_060, 1_700_000_125], True),  # Unix time
        ([1_700_000_000.25, 1_700_000_900.5], True),
        (range(0, 3_600_000, 1_000), False),
        (range(0, 60_000, 20), False),  # 50/s, as the busiest published traces
        ([0.25, 27.5, 61.125], False),
        ([1_700_000_000_000, 1_700_000_060_000], False),
        ([0, 3_000, 900_000_000], False),  # ten days
    ],
)
def test_times_that_are_seconds_are_noticed(times: Sequence[float], seems_in_seconds: bool) -> None:
    """The format has milliseconds. Times at a rate that no recording has, or that are Unix times in seconds, are seconds."""
    text = "\n".join(mooncake(timestamp=time) for time in times)
    assert parse_trace(text, "t").seems_in_seconds is seems_in_seconds


def test_azures_times_have_their_unit() -> None:
    """Dates cannot be taken for milliseconds, however close they are."""
    rows = "".join(f"2023-11-16 18:15:46.{number:03},1,1\n" for number in range(100))
    assert not parse_trace(HEADER + rows, "t").seems_in_seconds


def test_a_length_of_zero_becomes_one_token() -> None:
    """Recorded requests without output stay in the trace; servers reject requests for 0 tokens."""
    trace = parse_trace(f"{mooncake(input_length=0)}\n{mooncake(timestamp=1, output_length=0)}", "t")
    assert (trace.prompt_tokens, trace.output_tokens) == ((1, 9), (1, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (f"{mooncake()}\n{mooncake(**change)}", f"t: line 2: {NEEDS_JSON}")
            for change in (
                {"timestamp": float("inf")},
                {"timestamp": float("nan")},
                {"timestamp": "x"},
                {"input_length": float("inf")},
                {"input_length": -1},
                {"output_length": None},
                {"hash_ids": 7},
            )
        ),
        (f'{mooncake()}\n{{"a":{"[" * 100_000}', f"t: line 2: {NEEDS_JSON}"),
        (f"{mooncake()}\n[1]", f"t: line 2: {NEEDS_JSON}"),
        (f"{HEADER}2023-11-16 18:15:46,1\n", f"t: line 2: {NEEDS_CSV}"),
        (f"{HEADER}2023-11-16 18:15:46,1,-1\n", f"t: line 2: {NEEDS_CSV}"),
        (f"{HEADER}2023-11-16 18:15:46.-5,1,1\n", f"t: line 2: {NEEDS_CSV}"),
        (f"{HEADER}2023-11-16 18:15:46,1,1\n\n,1,1\n", f"t: line 4: {NEEDS_CSV}"),
        (
            f'{HEADER}2023-11-16 18:15:46,1,"1\n' + "2023-11-16 18:15:47,1,1\n" * 10_000,
            f"t: line 2: {NEEDS_CSV}",
        ),
        (
            f"{mooncake()}\n{mooncake()}\n{mooncake()}",
            "t: all 3 requests have the same time; a trace needs two times or more",
        ),
        (mooncake(), "t: 1 requests in it; a trace needs two or more to have a rate"),
        ("", "t: line 1: neither JSON lines nor the columns TIMESTAMP,ContextTokens,GeneratedTokens"),
    ],
)
def test_an_error_names_place_and_remedy(text: str, message: str) -> None:
    """The message names the file, the line and the expected form, without traceback."""
    with pytest.raises(BadTrace) as error:
        parse_trace(text, "t")
    assert str(error.value) == message


def test_prompts_of_a_trace_without_blocks_are_cold() -> None:
    """No prefix is known to be shared, so every prompt starts with its nonce."""
    trace = parse_trace(f"{HEADER}2023-11-16 18:15:46,20,2\n2023-11-16 18:15:47,30,4\n", "t")
    requests = draws(trace, 3)
    assert [(draw.prompt_tokens, draw.output_tokens, draw.warm) for draw in requests] == [
        (20, 2, False),
        (30, 4, False),
        (20, 2, False),
    ]
    assert all(draw.messages[0][1].startswith(f"[{i:020d}] ") for i, draw in enumerate(requests))


def test_equal_blocks_are_equal_text_in_every_lap() -> None:
    """A prompt made of blocks has no nonce, so that a prefix cache finds it; it has the recorded length."""
    blocks = parse_trace(
        f"{mooncake(input_length=1500, hash_ids=[1, 2, 3])}\n{mooncake(timestamp=1, input_length=1030, hash_ids=[1, 2, 9])}",
        "t",
    )
    first, second, again = (draw.messages[0][1].split() for draw in draws(blocks, 3))
    two_blocks = 2 * (BLOCK_TOKENS - 3)
    assert first == again
    assert first[:two_blocks] == second[:two_blocks]
    assert (first[two_blocks], second[two_blocks]) == ("[3]", "[9]")
    # An id is one word of about 4 tokens.
    assert (len(first) + 3 * 3, len(second) + 3 * 3) == (1500, 1030)


def test_tokens_outside_of_blocks_are_not_shared() -> None:
    """A row with too few blocks, or none, has a prompt of the recorded length whose rest is new each time."""
    rows = (mooncake(input_length=812, hash_ids=[1]), mooncake(timestamp=1, input_length=40, hash_ids=[]))
    part, none, again, _ = draws(parse_trace("\n".join(rows), "t"), 4)
    words = part.messages[0][1].split()
    assert words[0] == "[1]"
    assert words[BLOCK_TOKENS - 3] == f"[{0:020d}]"
    assert len(words) == BLOCK_TOKENS - 3 + 1 + 300
    assert again.messages[0][1].split()[: BLOCK_TOKENS - 3] == words[: BLOCK_TOKENS - 3]
    assert none.messages[0][1].startswith(f"[{1:020d}] ")
    assert [part.warm, none.warm] == [True, False]
