"""Commands that measure once and report a result: gate, compare, matrix, plan, report."""
