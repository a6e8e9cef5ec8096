"""Readers of other tools' files, one module per tool. `DIFFERS` lists figures that mean something else than in this prober."""
