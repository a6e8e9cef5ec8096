"""Whether the targets of a configuration fit into the memory of the container, beyond which the kernel kills the prober."""

from pathlib import Path

LIMITS = (  # of this container, by control groups of version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
OWN_MB, TARGET_MB = 60.0, 0.6  # rather too little: a sidecar takes 69 MB, and 500 targets 410 MB (docs/measurements.md)


def excess(targets: int) -> str:
    """What is wrong with so many targets; "" if they fit, or if nothing limits the memory."""
    needed_mb, limit_mb = OWN_MB + TARGET_MB * targets, _limit_mb()
    if needed_mb <= limit_mb:
        return ""
    return (
        f"targets: {targets:,} take {needed_mb:,.0f} MB of memory or more after an hour, and this container may use "
        f"{limit_mb:,.0f} MB, beyond which the kernel kills it; raise its limit, or leave targets out"
    )


def _limit_mb() -> float:
    for path in LIMITS:
        try:
            return int(path.read_text(encoding="ascii")) / 1e6
        except (OSError, ValueError):  # the other version, or "max"
            continue
    return float("inf")
