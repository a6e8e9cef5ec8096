"""Diagnosis: what happens during a breach, with its evidence and as far as known why, or `unknown`."""
