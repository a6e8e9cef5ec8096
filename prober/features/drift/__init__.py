"""A latency against its own baseline, sample by sample, at a stated rate of false alarms."""
