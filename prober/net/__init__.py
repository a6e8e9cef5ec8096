"""Network I/O, one system per file. Modules above interpret the answers."""
