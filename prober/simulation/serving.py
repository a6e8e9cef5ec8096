"""A service of one or several engines under a known stream of requests: the model that a sweep's record is fitted with.

Continuous batching in virtual time, reduced to what latencies show: a step generates tokens of all decoding sequences and computes
prompts within a budget; while only the context grows, equal steps run at once. `Service` says what differs between engines:
how prompts and decodes share steps, how many engines there are and who chooses among them, what stands in front.

The loop is serving.c, which `hatch_build.py` compiles with the package.
"""

import ctypes
import math
from array import array
from functools import cache
from typing import NamedTuple, TypeAlias

Doubles: TypeAlias = "array[float]"

NO_LIMIT = math.inf


class Service(NamedTuple):
    """Structure and costs of a service. The flags are 0 or 1.

    step_s, sequence_s, prefill_token_s, kv_token_s: cost of a step, per decoding sequence, prompt token and token of context
    attention_s: per prompt token and token before it
    budget: tokens of a step; slots: running sequences; kv_tokens: KV cache; each of one engine
    tokens_per_step: tokens of a sequence that a step generates (speculative decoding)
    mixed: prompts are computed in steps that also decode; else decodes wait while there are prompts
    split: prompts are computed in pieces of the budget; else whole
    padded: the batch is padded to a power of two
    overlapped: a step is planned while the one before runs, so a new request waits for one more
    overlaid: reading (step, context) and computing (prompts, sequences) take place at the same time; else one after the other
    shortest_first: the shortest prompt that waits is served first; else the first
    replicas: number of engines behind one address; least_busy: the one with the fewest requests is chosen, else one after the other
    front_base_s, front_token_s: of one request and prompt token in a front that takes one request at a time
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
    split: float = 1
    padded: float = 0
    overlapped: float = 0
    overlaid: float = 0
    shortest_first: float = 0
    replicas: float = 1
    least_busy: float = 0
    front_base_s: float = 0.0
    front_token_s: float = 0.0


class Stream(NamedTuple):
    """Requests by arrival, each of shape (n,). with_gaps: 1 for requests whose gaps are wanted, which costs time"""

    at_s: Doubles
    prompts: Doubles
    outputs: Doubles
    with_gaps: bytes


class Course(NamedTuple):
    """Course of the requests of a stream, each of shape (n,), and of the page at given times. −1: not until the end.

    served: number of requests that arrived before the queue grew beyond its limit
    first_s, end_s: times of first and last token
    gap_s, max_gap_s: median and largest gap between tokens, of requests with gaps
    slow: gaps above the limit
    running, waiting: requests of all engines at the times of the readings
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
    """The course of a stream up to `until_s`, or until more than `max_waiting` requests wait at one engine.

    limit_s: gaps above it are counted
    """
    count = len(stream.at_s)
    course = Course(count, *(array("d", bytes(8 * size)) for size in (*(count,) * 5, len(readings_s), len(readings_s))))

    def pointer(values: Doubles) -> ctypes.c_void_p:
        return ctypes.c_void_p(values.buffer_info()[0])

    served = _library().serve(
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
    """The compiled loop. Raises OSError with the remedy if the package was installed without it."""
    path = __file__.removesuffix("serving.py") + "_serving.so"
    try:
        library = ctypes.CDLL(path)
    except OSError as problem:
        raise OSError(f"{path} cannot be loaded ({problem}); install the package again, for this machine") from None
    library.serve.restype = ctypes.c_int64
    return library
