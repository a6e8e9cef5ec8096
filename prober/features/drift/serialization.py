"""Converts the state of a drift detector to bytes and back: `restore` continues exactly where `dump` stopped.

Format: a line with format and checksum, then JSON; arrays are base64 of their bytes in this machine's order. Derived parts (bets,
guards) are not written but recomputed.
"""

import binascii
import json
import zlib
from array import array
from base64 import b64decode, b64encode
from dataclasses import fields, is_dataclass
from typing import Any

from prober.features.drift.baseline import Baseline
from prober.features.drift.blocks import Blocks
from prober.features.drift.detector import derive
from prober.features.drift.state import Alarm, Drift, Improvement, Ring, Settings, Visit, new_state

FORMAT = "llmslo-drift-6"
DERIVED = {"settings", "gap_s", "mixture", "tables", "doubt", "allowance", "block_samples", "block_count"}
PARTS = {
    "baseline": Baseline,
    "stretch": Blocks,
    "spread": Blocks,
    "ring": Ring,
    "alarm": Alarm,
    "improvement": Improvement,
    "visit": Visit,
}


def dump(state: Drift) -> bytes:
    """Write a state without its settings: at most about 90 kB, in about 0.3 ms."""
    body = json.dumps(_plain(state), separators=(",", ":")).encode()
    return f"{FORMAT} {zlib.crc32(body):08x}\n".encode() + body


def restore(settings: Settings, data: bytes) -> Drift:
    """Read the state that `dump` wrote, with these settings. Raises ValueError with the reason if `data` is invalid."""
    head, _, body = data.partition(b"\n")
    name, _, checksum = head.decode("ascii", "replace").partition(" ")
    if name != FORMAT:
        raise ValueError(f"not a drift state of format {FORMAT}: it begins with {name[:40]!r}")
    if checksum != f"{zlib.crc32(body):08x}":
        raise ValueError(f"the drift state is damaged: {len(body)} bytes do not have its checksum")
    try:
        return _state(settings, json.loads(body))
    except (KeyError, TypeError, IndexError, AttributeError, binascii.Error) as error:
        raise ValueError(f"the drift state does not fit this version: {error!r}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return {"type": value.typecode, "bytes": b64encode(value.tobytes()).decode()}
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.name not in DERIVED}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _state(settings: Settings, document: dict[str, Any]) -> Drift:
    state = new_state(settings)
    for name, value in document.items():
        if name in PARTS and value is not None:
            value = PARTS[name](**{key: _value(part) for key, part in value.items()})
        setattr(state, name, value)
    if state.baseline is not None:
        derive(state)
        if state.mixture is None or len(state.slower) != state.mixture.components:
            raise ValueError(f"the drift state has {len(state.slower)} bets, not those of this version")
    return state


def _value(document: Any) -> Any:
    if isinstance(document, dict):
        values = array(document["type"])
        values.frombytes(b64decode(document["bytes"], validate=True))
        return values
    return tuple(map(_value, document)) if isinstance(document, list) else document
