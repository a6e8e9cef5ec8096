"""Sends probes at their due times, independent of earlier probes (open loop)."""
