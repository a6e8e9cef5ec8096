"""Simulation of one or more engines under known requests: the model that is fitted to the record of a sweep.

Continuous batching in virtual time, reduced to what affects latencies: a step generates tokens of all decoding sequences and computes
prompts within a budget; while only the context grows, equal steps run at once. `Service` has the differences between engines: how
prompts and decodes share steps, and how many engines take requests in turn.

The loop is serving.c, which `hatch_build.py` compiles with the package.
"""

import ctypes
import math
from array import array
from functools import cache
from typing import NamedTuple, TypeAlias

Doubles: TypeAlias = "array[float]"

NO_LIMIT = math.inf


class NotCompiled(Exception):
    """The package was installed without a compiler; the message has the remedy."""


class Service(NamedTuple):
    """Structure and costs of a service. Costs are in seconds; the flags are 0 or 1.

    step_s, sequence_s, prefill_token_s, kv_token_s: cost per step, per decoding sequence, per prompt token, per token of context
    attention_s: cost per pair of a prompt token and a token before it
    budget, slots, kv_tokens: per engine: maximum tokens per step, maximum running sequences, tokens in the KV cache
    tokens_per_step: tokens generated per step and sequence (speculative decoding)
    mixed: 1: prompts are computed in steps that also decode; 0: decoding waits for prompts
    admits_pieces: 1: a prompt begins when its first piece fits into the KV cache; 0: when all of it fits
    replicas: number of engines behind one address, used in turn
    """

    step_s: float
    sequence_s: float
    prefill_token_s: float
    kv_token_s: float
    attention_s: float = 0.0
    budget: float = 2_048
    slots: float = 2_048
    kv_tokens: float = NO_LIMIT
    tokens_per_step: float = 1.0
    mixed: float = 1
    admits_pieces: float = 0
    replicas: float = 1


class Stream(NamedTuple):
    """Requests in order of arrival, each field of shape (n,). prompts, outputs: tokens; with_gaps: 1: compute token gaps"""

    at_s: Doubles
    prompts: Doubles
    outputs: Doubles
    with_gaps: bytes


class Course(NamedTuple):
    """Result of `serve`: times of each request, shape (n,), and values of the metrics page. −1: did not happen before the end.

    served: number of requests that arrived before the queue grew beyond its limit
    first_s, end_s: times of first and last token
    gap_s, max_gap_s: median and largest token gap in seconds, for requests with gaps
    slow: number of gaps above the limit
    running, waiting: requests in all engines at the times of the readings
    """

    served: int
    first_s: Doubles
    end_s: Doubles
    gap_s: Doubles
    max_gap_s: Doubles
    slow: Doubles
    running: Doubles
    waiting: Doubles


def serve(
    service: Service,
    stream: Stream,
    until_s: float,
    readings_s: Doubles,
    *,
    limit_s: float = NO_LIMIT,
    max_waiting: float = NO_LIMIT,
) -> Course:
    """Simulate a stream up to `until_s`, or until more than `max_waiting` requests wait at one engine.

    readings_s: times at which `running` and `waiting` are read
    limit_s: gaps between tokens above it are counted
    """
    count = len(stream.at_s)
    course = Course(count, *(array("d", bytes(8 * size)) for size in (*(count,) * 5, len(readings_s), len(readings_s))))

    def pointer(values: Doubles) -> ctypes.c_void_p:
        return ctypes.c_void_p(values.buffer_info()[0])

    served = _library().serve_stream(
        (ctypes.c_double * len(service))(*service),
        ctypes.c_int64(count),
        *map(pointer, stream[:3]),
        ctypes.c_char_p(stream.with_gaps),
        ctypes.c_double(until_s),
        ctypes.c_double(limit_s),
        ctypes.c_double(max_waiting),
        ctypes.c_int64(len(readings_s)),
        pointer(readings_s),
        *map(pointer, course[1:]),
    )
    return course._replace(served=served)


@cache
def _library() -> ctypes.CDLL:
    """Load the compiled loop. Raises NotCompiled with the remedy if the package lacks it."""
    try:
        library = ctypes.CDLL(__file__.removesuffix("serving.py") + "_serving.so")
    except OSError as problem:
        raise NotCompiled(
            f"this installation lacks the compiled loop that an estimate simulates with ({problem}): install a wheel for this "
            "platform, or gcc and then the prober again with pip install --force-reinstall --no-deps --no-cache-dir"
        ) from None
    library.serve_stream.restype = ctypes.c_int64
    return library
