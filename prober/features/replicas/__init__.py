"""Shards and leases: several probers that share targets and do some work only once."""
