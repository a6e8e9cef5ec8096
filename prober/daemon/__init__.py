"""The daemon: composition of all parts, reload, persistence of state."""
