"""Files, locks and the SQLite store."""
