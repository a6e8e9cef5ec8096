"""Time, tasks and lifetimes: what runs for months."""
