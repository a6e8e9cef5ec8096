"""Diagnosis: the likely cause of a breach, with its evidence, or `unknown`."""
