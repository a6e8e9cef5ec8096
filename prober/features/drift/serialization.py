"""The state of a drift detector as bytes, so that it survives a restart: `restore` continues exactly where `dump` stopped.

A line with format and checksum, then JSON; arrays as base64 of their bytes in this machine's order. What follows from other
parts (bets, guards, a fit's intermediate sums) is not written but made again.
"""

import binascii
import json
import zlib
from array import array
from base64 import b64decode, b64encode
from dataclasses import fields, is_dataclass
from typing import Any

from prober.features.drift.baseline import Baseline, Blocks
from prober.features.drift.detector import Alarm, Drift, Ring, Settings, fitting, follow, fresh

FORMAT = "llmslo-drift-1"
DERIVED = {"settings", "gap_s", "mixture", "table", "doubt", "allowance", "run"}
PARTS = {"baseline": Baseline, "stretch": Blocks, "spread": Blocks, "ring": Ring, "alarm": Alarm}


def dump(state: Drift) -> bytes:
    """Everything but the settings. At most about 90 kB; some 0.3 ms."""
    body = json.dumps(_plain(state), separators=(",", ":")).encode()
    return f"{FORMAT} {zlib.crc32(body):08x}\n".encode() + body


def restore(settings: Settings, data: bytes) -> Drift:
    """The state that was dumped, under these settings. Raises ValueError saying what is wrong with `data`.

    A fit in progress is caught up with at once, which takes up to 0.1 s.
    """
    head, _, body = data.partition(b"\n")
    name, _, checksum = head.decode("ascii", "replace").partition(" ")
    if name != FORMAT:
        raise ValueError(f"not a drift state of format {FORMAT}: it begins with {name[:40]!r}")
    if checksum != f"{zlib.crc32(body):08x}":
        raise ValueError(f"the drift state is damaged: {len(body)} bytes do not have its checksum")
    try:
        return _state(settings, json.loads(body))
    except (KeyError, TypeError, IndexError, AttributeError, StopIteration, binascii.Error) as error:
        raise ValueError(f"the drift state does not fit this version: {error!r}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return {"type": value.typecode, "bytes": b64encode(value.tobytes()).decode()}
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.name not in DERIVED}
    return value


def _state(settings: Settings, read: dict[str, Any]) -> Drift:
    state = fresh(settings)
    for name, value in read.items():
        if name in PARTS and value is not None:
            value = PARTS[name](**{key: _value(each) for key, each in value.items()})
        if name != "fit":
            setattr(state, name, value)
    if state.baseline is not None:
        follow(state)
        if state.mixture is None or len(state.slower) != state.mixture.components:
            raise ValueError(f"the drift state has {len(state.slower)} bets, not those of this version")
    if read["fit"] is not None:
        state.fit = fitting(state, spread=read["fit"]["spread"])
        for _ in range(read["fit"]["slices"]):
            next(state.fit.run)
        state.fit.slices = read["fit"]["slices"]
    return state


def _value(read: Any) -> Any:
    if isinstance(read, dict):
        values = array(read["type"])
        values.frombytes(b64decode(read["bytes"], validate=True))
        return values
    return tuple(read) if isinstance(read, list) else read
