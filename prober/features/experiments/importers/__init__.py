"""Readers of other tools' files, one module per tool. `DIFFERS` lists figures that have another meaning than this prober's."""
