"""Drift of a latency against its own baseline, sample by sample, at a configured rate of false alarms."""
