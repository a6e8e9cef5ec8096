"""Values in, text out: pages and drawings."""
