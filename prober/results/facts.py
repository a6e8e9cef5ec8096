"""Types for facts about a target. The configuration imports them too, so they are separate from the results."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Context:
    """Facts about engine and hardware that cannot be measured from outside, as text; None: unknown.

    weights: path or repository of the weights that the server loaded
    cuda: version that the engine uses; the driver states only the highest supported version
    streaming: whether the answers were streamed
    host_ram_available: memory of the engine's host available at the start
    storage: file system of a path in `weights` on this machine, with its disk, if any
    prober_host: processor, system and Python of the machine that measured
    network: address family, interface and link from the prober's machine to the server
    network_round_trip: round trip to the server or proxy, measured by the kernel while connecting
    """

    gpu: str | None = None
    gpu_count: str | None = None
    gpu_memory: str | None = None
    gpu_processes: str | None = None
    interconnect: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cpu: str | None = None
    host_ram: str | None = None
    host_ram_available: str | None = None
    storage: str | None = None
    engine_commit: str | None = None
    parallelism: str | None = None
    attention_backend: str | None = None
    scheduling_policy: str | None = None
    max_batch: str | None = None
    weights: str | None = None
    model_revision: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    precision: str | None = None
    quantization: str | None = None
    speculation: str | None = None
    streaming: str | None = None
    prober_host: str | None = None
    network: str | None = None
    network_round_trip: str | None = None


CONTEXT_NAMES = tuple(field.name for field in fields(Context))
ENGINE_VERSION = "engine_version"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a target. name: one of CONTEXT_NAMES, or ENGINE_VERSION; source: origin of the value"""

    name: str
    value: str
    source: str
