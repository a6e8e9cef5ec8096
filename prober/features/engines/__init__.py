"""The metrics page of an engine, in one vocabulary for all engines."""
