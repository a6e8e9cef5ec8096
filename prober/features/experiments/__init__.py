"""Measurements with a beginning and an end: gate, compare, matrix, plan, report."""
