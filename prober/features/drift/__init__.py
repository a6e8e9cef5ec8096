"""Detects drift of a latency from its own baseline, sample by sample, with a configured rate of false alarms."""
