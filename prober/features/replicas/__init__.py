"""Shards and leases: several probers share the targets, and do some work only once."""
