"""Diagnosis of a breach: what happens, with evidence, and if known why; otherwise `unknown`."""
