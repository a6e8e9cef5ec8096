"""State in, verdict out: what samples say and how sure they are."""
